//! Traffic in, traffic out.
//!
//! The edge accepts HTTP, TLS and raw TCP, finds the endpoint a connection or request is for in its
//! [`Snapshot`], forwards to that endpoint's [`Upstream`], and offers one event for every exchange
//! and every connection to a [`Recorder`](culvert_events::Recorder).
//!
//! It runs on a snapshot that others compile and [publish](Edge::publish), and knows nothing of
//! accounts, resources or storage: an account is a label on an endpoint here.

mod bounds;
mod client_services;
mod conn_state;
mod connection_phase;
mod counting;
mod downstream;
mod edge;
mod edge_context;
mod edge_state;
mod event_slots;
mod http;
mod http1;
mod http1_state;
mod http2;
mod kubernetes;
mod listener;
mod meters;
mod pools;
mod recording;
mod replay_state;
mod route;
mod rules;
mod settings;
mod snapshot;
mod socket;
mod tcp;

#[cfg(test)]
mod tests;

pub use bounds::sizes;
pub use client_services::client_services;
pub use culvert_io::Inherited;
pub use culvert_io::proxy::ProxyVersion;
pub use culvert_overload::WriteDelay;
pub use culvert_upstream::{
    AgentCall, AgentIo, AgentRefused, Clients, Dial, Protocol, PublicClient, Upstream,
};
pub use edge::Edge;
pub use http::replay::{NotReplayed, ReplayRequest, Replayed};
pub use meters::{Meters, Pressure};
pub use replay_state::REPLAY_OF;
pub use rules::{Limits, ProxyProtocol, Timeouts};
pub use settings::Settings;
pub use snapshot::change::Change;
pub use snapshot::endpoint::{Endpoint, EndpointBinding, ForwardRights, Restriction};
pub use snapshot::input::{Snapshot, SnapshotBuilder};
pub use snapshot::operators::{Operator, Operators};
