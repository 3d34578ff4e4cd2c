//! Upstreams behind an agent: the port to whoever holds the connections of agents.
//!
//! The edge names an endpoint and says who its client is; it gets a stream and knows nothing of how
//! that travels.

use std::fmt;
use std::net::SocketAddr;

use culvert_base::BoxFuture;
use culvert_policy::Scheme;
use tokio::io::{AsyncRead, AsyncWrite};

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
    /// Whose connection it is for; `None` if it will carry the requests of many clients.
    pub client: Option<SocketAddr>,
    /// Whether the bytes are TLS from end to end.
    pub passes_tls: bool,
}

/// A stream to a service behind an agent. An agent takes only so many, so each is held no longer than
/// there is use for it.
///
/// Reading from a stream that was refused gives an error that holds an [`AgentRefused`]: the agent was
/// busy, or is away from where the stream looked for it.
pub trait AgentIo: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {
    /// Its user keeps it for later: nothing is on its way in either direction. It may be ended
    /// meanwhile where streams run short. `false` if it cannot serve again.
    fn rest(&mut self) -> bool {
        true
    }

    /// Its user wants it again. `false` if it was ended meanwhile.
    fn resume(&mut self) -> bool {
        true
    }

    /// Its user needs it no more, and all that was to be said in either direction was.
    fn end(&mut self) {}
}

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

/// Why a stream was refused after it was opened, if it was. Nothing of it was used then.
pub(crate) fn refusal(error: &std::io::Error) -> Option<AgentRefused> {
    error.get_ref()?.downcast_ref().copied()
}

/// Opens streams to services behind agents.
pub trait Dial: fmt::Debug + Send + Sync {
    /// Opens one at once.
    ///
    /// # Errors
    ///
    /// When no agent takes it.
    fn dial(&self, call: &AgentCall<'_>) -> Result<Box<dyn AgentIo>, AgentRefused>;

    /// Opens one as soon as an agent has room. Those who wait have their turn one after the other, and
    /// none waits for more than a few seconds.
    ///
    /// # Errors
    ///
    /// When no agent takes it.
    fn dial_in_turn<'a>(
        &'a self,
        call: AgentCall<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn AgentIo>, AgentRefused>>;

    /// Whether an agent serves the endpoint.
    fn is_online(&self, endpoint: &str) -> bool;

    /// Whether the last agent of the endpoint lost its connection a moment ago and may come back: a
    /// request that waits until this says no more meets it. It says so for two seconds at most.
    fn may_return(&self, _endpoint: &str) -> bool {
        false
    }
}
