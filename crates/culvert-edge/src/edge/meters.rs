//! The counters of the edge: plain atomics. Other crates export them.

use std::sync::Arc;

use culvert_base::Meter;
use culvert_events::Reason;
use culvert_policy::services::PolicyMeters;

/// The usage that determines the overload level, in percent.
#[derive(Debug, Default)]
pub struct Pressure {
    /// Of the memory.
    pub memory: Meter,
    /// Of the open files.
    pub files: Meter,
    /// Of the time that tasks may wait before they run.
    pub run_queue: Meter,
    /// Of the time that a write to the store may take.
    pub store: Meter,
}

/// All counters of the edge.
#[derive(Debug, Default)]
pub struct Meters {
    /// Connections open now.
    pub connections: Meter,
    /// Connections accepted.
    pub accepted: Meter,
    /// Connections closed at accept because the edge has reached its limit.
    pub refused_full: Meter,
    /// Connections closed at accept because their source has reached its limit.
    pub refused_source: Meter,
    /// Connections closed because they lacked the required PROXY header.
    pub refused_announcements: Meter,
    /// TLS connections with an unknown name, or without one.
    pub unknown_names: Meter,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: Meter,
    /// Connections of Kubernetes operators that were refused after the handshake: their message was malformed, or the
    /// operator binds no such endpoint.
    pub refused_bindings: Meter,
    /// Requests with a valid head.
    pub requests: Meter,
    /// Requests rejected because of the bytes on the wire.
    pub requests_refused: Meter,
    /// Refused requests and connections, by the position of their [`Reason`].
    pub refused: [Meter; Reason::REFUSALS],
    /// Those of them that name no endpoint.
    pub refused_elsewhere: [Meter; Reason::REFUSALS],
    /// Refused requests and connections that have no event of their own, because others of their network stand
    /// for them.
    pub refusals_sampled: Meter,
    /// The current overload level, 0 to 3.
    pub overload_level: Meter,
    /// Connections closed at accept for overload.
    pub shed_connections: Meter,
    /// Requests answered 503 for overload.
    pub shed_requests: Meter,
    /// Idle connections closed early for overload.
    pub shed_idle: Meter,
    /// Connections and streams closed because the client read too slowly.
    pub slow_readers: Meter,
    /// TLS handshakes rejected for overload.
    pub shed_handshakes: Meter,
    /// Agents that waited because of overload.
    pub held_agents: Meter,
    /// Events dropped for overload.
    pub shed_events: Meter,
    /// Exchanges ended for overload because of the memory that they held.
    pub shed_exchanges: Meter,
    /// Events that lack header maps and policy logs because of overload.
    pub events_trimmed: Meter,
    /// Usage in percent of the limits: memory, files, scheduling delay of tasks, and write latency of the store.
    pub pressure: Pressure,
    /// HTTP/2 connections cut because too many streams were reset.
    pub floods_resets: Meter,
    /// HTTP/2 connections cut because of too many frames without progress.
    pub floods_idle_frames: Meter,
    /// HTTP/2 connections cut because a field section came in too many pieces.
    pub floods_continuations: Meter,
    /// HTTP/2 connections ended for another error of the client.
    pub http2_errors: Meter,
    /// Requests for a host without an endpoint.
    pub unknown_hosts: Meter,
    /// Challenges of certificate authorities that were answered: requests and handshakes.
    pub challenges_answered: Meter,
    /// Connections made to upstreams.
    pub upstream_connects: Meter,
    /// Connections to upstreams that failed.
    pub upstream_connects_failed: Meter,
    /// Requests on reused upstream connections.
    pub upstream_reused: Meter,
    /// Requests sent again because a reused connection had closed.
    pub upstream_retries: Meter,
    /// Upstream requests that failed.
    pub upstream_failed: Meter,
    /// Requests and connections that went to another upstream of their endpoint.
    pub upstream_moves: Meter,
    /// Requests that were not sent again because the budget for that was spent.
    pub upstream_moves_refused: Meter,
    /// Upstreams that were ejected after failures in a row.
    pub upstreams_ejected: Meter,
    /// Health checks of upstreams.
    pub upstream_checks: Meter,
    /// Health checks that did not pass.
    pub upstream_checks_failed: Meter,
    /// Upstreams that were used again after that.
    pub upstreams_returned: Meter,
    /// Requests and connections that wait now for a place at an upstream or endpoint with a limit.
    pub upstream_waiting: Meter,
    /// Those that had to wait.
    pub upstream_waits: Meter,
    /// Those that got no place in time, or found too many waiting.
    pub upstream_waits_refused: Meter,
    /// Counters of policies.
    pub policy: Arc<PolicyMeters>,
    /// TCP ports of endpoints that could not be listened on.
    pub ports_failed: Meter,
    /// Seconds since the configuration was current.
    pub configuration_age: Meter,
    /// Requests and connections refused because the configuration is too old.
    pub outdated_refused: Meter,
    /// Snapshots taken into use.
    pub snapshots: Meter,
    /// Panics, each of which ended one connection or one stream.
    pub panics: Meter,
    /// Bytes read from the sockets of clients, of connections that have closed.
    pub bytes_in: Meter,
    /// Bytes written to them.
    pub bytes_out: Meter,
}
