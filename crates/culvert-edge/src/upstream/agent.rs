//! Upstreams behind an agent: the port to whoever holds the connections of agents.
//!
//! The edge names an endpoint and says who its client is; it gets a stream and knows nothing of how
//! that travels.

use std::fmt;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::snapshot::Scheme;

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyVersion {
    /// A line of text.
    One,
    /// Binary.
    Two,
}

/// A stream to a service behind an agent is wanted.
#[derive(Clone, Copy, Debug)]
pub struct AgentCall<'a> {
    /// Id of the endpoint the agent serves.
    pub endpoint: &'a str,
    /// How the endpoint is spoken to.
    pub scheme: Scheme,
    /// Whose connection it is for.
    pub client: SocketAddr,
    /// Whether the bytes are TLS from end to end.
    pub passes_tls: bool,
}

/// A stream to a service behind an agent.
#[derive(Debug)]
pub struct AgentStream {
    /// Its bytes.
    pub io: Box<dyn AgentIo>,
    /// Whether it may be kept while its client pauses: an agent stands only so many streams.
    pub may_rest: bool,
}

/// What a stream to an agent can do.
pub trait AgentIo: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> AgentIo for T {}

/// Why there is no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentRefused {
    /// No agent serves the endpoint.
    #[error("no agent serves the endpoint")]
    Away,
    /// Each agent that serves it has as many streams as it stands.
    #[error("all agents of the endpoint are busy")]
    Busy,
}

/// Opens streams to services behind agents. Never waits.
pub trait Dial: fmt::Debug + Send + Sync {
    /// Opens one.
    ///
    /// # Errors
    ///
    /// When no agent takes it.
    fn dial(&self, call: &AgentCall<'_>) -> Result<AgentStream, AgentRefused>;

    /// Whether an agent serves the endpoint.
    fn is_online(&self, endpoint: &str) -> bool;
}
