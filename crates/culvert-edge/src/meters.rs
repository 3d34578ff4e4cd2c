//! What the edge counts. Plain atomics that others may read; how they are exported is not known here.

use std::sync::Arc;

use culvert_base::Meter;
use culvert_policy::services::PolicyMeters;

/// Shares that make the level of overload, in percent.
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

/// Everything the edge counts.
#[derive(Debug, Default)]
pub struct Meters {
    /// Connections open now.
    pub connections: Meter,
    /// Connections accepted.
    pub accepted: Meter,
    /// Connections closed at accept: the edge has as many as it takes.
    pub refused_full: Meter,
    /// Connections closed at accept: their source has as many as it may.
    pub refused_source: Meter,
    /// Connections closed because they did not begin with the PROXY header they had to.
    pub refused_announcements: Meter,
    /// TLS connections that asked for a name nobody has here, or for none.
    pub unknown_names: Meter,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: Meter,
    /// Requests whose head was believed.
    pub requests: Meter,
    /// Requests refused for what is on the wire.
    pub requests_refused: Meter,
    /// The level of overload now, 0 to 3.
    pub overload_level: Meter,
    /// Connections closed at accept for overload.
    pub shed_connections: Meter,
    /// Requests answered 503 for overload.
    pub shed_requests: Meter,
    /// Idle connections closed early for overload.
    pub shed_idle: Meter,
    /// Connections and streams cut because the client took too little of what waited for it.
    pub slow_readers: Meter,
    /// TLS handshakes that had no turn in time for overload.
    pub shed_handshakes: Meter,
    /// Agents that waited for overload.
    pub held_agents: Meter,
    /// Events dropped for overload.
    pub shed_events: Meter,
    /// Exchanges ended for overload, each for what it held.
    pub shed_exchanges: Meter,
    /// Events without header maps and policy logs for overload.
    pub events_trimmed: Meter,
    /// What is used, in percent of what may be: memory, files, the time tasks wait before they run, the
    /// time the store takes to write.
    pub pressure: Pressure,
    /// HTTP/2 connections cut because too many streams were reset.
    pub floods_resets: Meter,
    /// HTTP/2 connections cut because too many frames brought nothing forward.
    pub floods_idle_frames: Meter,
    /// HTTP/2 connections cut because a field section came in too many pieces.
    pub floods_continuations: Meter,
    /// HTTP/2 connections ended for another error of the client.
    pub http2_errors: Meter,
    /// Requests for a host without an endpoint.
    pub unknown_hosts: Meter,
    /// Looks of a certificate authority that were answered: requests and handshakes.
    pub challenges_answered: Meter,
    /// Connections made to upstreams.
    pub upstream_connects: Meter,
    /// Connections to upstreams that failed.
    pub upstream_connects_failed: Meter,
    /// Requests carried by an upstream connection that had carried one before.
    pub upstream_reused: Meter,
    /// Requests sent again because a reused connection turned out closed.
    pub upstream_retries: Meter,
    /// Upstream answers that could not be taken.
    pub upstream_failed: Meter,
    /// What policies count.
    pub policy: Arc<PolicyMeters>,
    /// TCP ports of endpoints that could not be listened on.
    pub ports_failed: Meter,
    /// Snapshots taken into use.
    pub snapshots: Meter,
    /// Panics, each of which ended one connection or one stream.
    pub panics: Meter,
    /// Bytes read from the sockets of clients, of connections that have closed.
    pub bytes_in: Meter,
    /// Bytes written to them.
    pub bytes_out: Meter,
}
