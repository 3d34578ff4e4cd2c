//! Connects to upstreams, which are the services that traffic is forwarded to, and keeps the connections for later requests.
//!
//! - An [`Upstream`] is where a service is: the URL of a host, or the agents of an endpoint.
//! - A [`Pool`] has the connections to one upstream. It opens them with a [`Connector`], on behalf of a client, and
//!   leases them to requests over HTTP/1 ([`Lease`]) and HTTP/2 ([`Http2Stream`]).
//! - An [`AddressGuard`] decides which addresses may be connected to, and a [`PublicClient`] sends single requests to
//!   those that are public.
//! - [`Dial`] is the port to the owner of agents, [`PoolOwner`] the port to the owner of pools.
//!
//! Nothing here knows routes, policies or the connections of clients.

mod agent;
mod connector;
mod dial_error;
mod dialer;
mod fetch;
mod guard;
mod http1_client;
mod names;
mod pool;
mod ports;
mod stream;
mod tls;
mod upstream;

pub use agent::{AgentCall, AgentIo, AgentPlace, AgentRefused, Dial, is_silent, refusal};
pub use connector::Connector;
pub use dial_error::DialError;
pub use dialer::Dialer;
pub use fetch::{Network, PublicClient};
pub use guard::{AddressGuard, is_private};
pub use http1_client::Http1ClientError;
pub use names::LookupFor;
pub use pool::{
    Http2Sender, Http2Stream, HttpProbe, Lease, PendingStream, Pool, Probe, ProbeFailure, Received,
    SendResult, UpstreamError,
};
pub use ports::{PoolOwner, UploadBody, UploadError, UpstreamHead};
pub use stream::UpstreamStream;
pub use tls::{TlsOptions, TlsWithheld};
pub use upstream::{Clients, Protocol, Upstream};
