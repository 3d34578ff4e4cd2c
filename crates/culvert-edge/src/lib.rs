//! Traffic in, traffic out.
//!
//! The edge accepts HTTP, TLS and raw TCP, finds the endpoint a connection or request is for in its
//! [`Snapshot`], forwards to that endpoint's [`Upstream`], and offers one event for every exchange
//! and every connection to a [`Recorder`](culvert_events::Recorder).
//!
//! It runs on a snapshot (`crates/culvert-edge-config`) that others compile and [publish](Edge::publish), and knows
//! nothing of accounts, resources or storage: an account is a label on an endpoint here.
//!
//! # A request
//!
//! `crates/culvert-edge` accepts under a budget and hands the connection to one of its threads
//! (`crates/culvert-io/src/threads.rs`), which serves it to its end, with upstream connections of that thread. It
//! selects the certificate by SNI, reads the request, normalises its target (`crates/culvert-http/src/target.rs`),
//! routes by host, runs the request phase of the endpoint's policy, forwards through a pooled connection
//! (`crates/culvert-upstream/src/pool.rs`), runs the response phase, and counts bytes in both directions
//! (`crates/culvert-edge/src/http/pipeline.rs`). The pools get the heads and bodies of requests as type parameters,
//! so they know no exchange. Upgraded connections, TCP and TLS are relayed (`crates/culvert-io/src/relay/mod.rs`).
//! Under load `crates/culvert-overload/src/level.rs` decides what the edge sheds. The state of a connection
//! (`crates/culvert-edge/src/connection/conn_state.rs`) knows no endpoints and no upstreams, so protocol code,
//! pools and records stand alone. HTTP/1 is our own (`crates/culvert-http/src/http1`, driven by
//! `crates/culvert-edge/src/http1`): a head is read once, strictly, in one pass if it has the usual form
//! (`crates/culvert-http/src/http1/raw.rs`), and one task moves both directions of an exchange without a channel
//! between them. So is HTTP/2 from clients (`crates/culvert-http/src/http2`, driven by
//! `crates/culvert-edge/src/http2`): one task reads a connection's frames, moves the exchanges of all its streams
//! and sends their output together. One table says what each frame does in each stream state and what it costs the
//! client (`crates/culvert-http/src/http2/states.rs`), so no flood is free. A library speaks HTTP/2 to upstreams. A
//! request to an endpoint without a policy has its head as text: on HTTP/1 as received, on HTTP/2 written from the
//! field section if it has at most 4 KiB (`crates/culvert-http/src/http1/raw.rs`). Its lines are copied to the
//! upstream (`crates/culvert-edge/src/http/plain.rs`), and those of the response to the client. All other requests
//! have a map of their fields. `crates/culvert-edge/src/http/started_request.rs` has both paths; tests compare what they
//! send.
//!
//! An endpoint with several upstreams divides its requests and connections among them, ejects those that fail, and sends
//! to another one what may be sent again (`crates/culvert-edge/src/balance/mod.rs`,
//! `crates/culvert-edge/src/http/balanced.rs`).
//!
//! When the exchange ends, in whatever way, its thread packs the event for the traffic log
//! (`crates/culvert-delivery/src/retained_events/open_pieces.rs`). If a subscription or a tail may want the event,
//! its record also goes to the recorder's bounded queue. If the queue is full, the record is dropped and counted;
//! traffic never waits.
//!
//! # A connection of a Kubernetes operator
//!
//! Control compiles which operators select each endpoint with the binding `kubernetes`
//! (`crates/culvert-endpoints/src/kubernetes_operator/endpoint_selector.rs`), so the edge decides without
//! the database. The edge verifies the operator's certificate against the operators of its snapshot
//! (`crates/culvert-edge/src/snapshot/operators.rs`), reads which host and port it wants, and serves the rest as a
//! connection to that endpoint (`crates/culvert-edge/src/kubernetes/mod.rs`). Each request of an HTTP endpoint is
//! routed, and thereby checked, again.
//!
//! # A request sent again
//!
//! Control (`crates/culvert-event-config/src/captured/mod.rs`) checks the rights and builds the request,
//! which names the endpoint of the original event and its host. The edge (`crates/culvert-edge/src/http/replay.rs`)
//! runs it as an exchange without a client connection, marked with a field that it removes from requests of
//! clients, and assigns the id of its event in advance.

//!
//! # Refused traffic
//!
//! A request that the edge refuses before it reaches an endpoint has a [`Reason`](culvert_events::Reason). Its host, or the
//! TLS server name of its connection, may name an endpoint (`crates/culvert-edge/src/http/routing.rs`); then its event is that
//! of the endpoint, else [`Edge::take_refused`] hands it over with those of its network. How many have an event is
//! limited (`crates/culvert-edge/src/recording/refusal_sampler.rs`); all are counted.

mod balance;
mod client_services;
mod connection;
mod edge;
mod http;
mod http1;
mod http2;
mod kubernetes;
mod pools;
mod recording;
mod settings;
mod snapshot;
mod tcp;

#[cfg(test)]
mod tests;

pub use client_services::client_services;
pub use connection::replay_state::REPLAY_OF;
pub use culvert_edge_config::{
    Change, Endpoint, EndpointBinding, ForwardRights, Limits, NotReplayed, Operator, Operators,
    ReplayRequest, Replayed, Restriction, Snapshot, SnapshotBuilder, Timeouts, UnhealthyUpstream,
    UpstreamStatus,
};
pub use culvert_io::Inherited;
pub use culvert_io::forward_proxy::Proxies;
pub use culvert_io::proxy::ProxyVersion;
pub use culvert_overload::WriteDelay;
pub use culvert_upstream::{
    AgentCall, AgentIo, AgentPlace, AgentRefused, Clients, Dial, Protocol, PublicClient, Upstream,
};
pub use edge::Edge;
pub use edge::meters::{Meters, Pressure};
pub use settings::Settings;
pub use settings::bounds::sizes;
pub use settings::rules::ProxyProtocol;
pub use settings::tracing::Tracing;
