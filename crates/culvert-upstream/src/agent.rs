//! Upstreams behind an agent: the port to the owner of the agents' connections.
//!
//! The edge names an endpoint and a client, and gets a stream. It does not know the transport.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use culvert_base::BoxFuture;
use culvert_policy::Scheme;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes of a read that copies.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// A request for a stream to a service behind an agent.
#[derive(Clone, Copy, Debug)]
pub struct AgentCall<'a> {
    /// Id of the endpoint the agent serves.
    pub endpoint: &'a str,
    /// The scheme of the endpoint.
    pub scheme: Scheme,
    /// The client; `None` if the stream carries requests of many clients.
    pub client: Option<SocketAddr>,
    /// Whether the bytes are TLS from end to end.
    pub passes_tls: bool,
}

/// A stream to a service behind an agent. The number of streams of an agent is limited, so each is kept no longer
/// than necessary.
///
/// Reading from a refused stream returns an error with an [`AgentRefused`]: the agent was busy, or is not connected
/// to the node that was asked.
pub trait AgentIo: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {
    /// Reads at most `bytes_max` bytes, without copying them if they are in memory. Empty at the end, and then again.
    fn poll_read_bytes(
        &mut self,
        cx: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<io::Result<Bytes>> {
        poll_read_copy(self, cx, bytes_max)
    }

    /// Marks it as idle: no data is in flight. It may be closed if streams run short. `false` if it cannot be used
    /// again.
    fn set_idle(&mut self) -> bool {
        true
    }

    /// Takes it into use again. `false` if it was closed meanwhile.
    fn resume(&mut self) -> bool {
        true
    }

    /// Closes it, after both directions are complete.
    fn end(&mut self) {}
}

/// Reads at most `bytes_max` bytes into a buffer that belongs to them.
pub(crate) fn poll_read_copy(
    io: &mut (impl AsyncRead + Unpin + ?Sized),
    cx: &mut Context<'_>,
    bytes_max: usize,
) -> Poll<io::Result<Bytes>> {
    let mut bytes = BytesMut::zeroed(bytes_max.min(COPIED_BYTES_MAX));
    let mut buf = ReadBuf::new(&mut bytes);
    ready!(Pin::new(io).poll_read(cx, &mut buf))?;
    let length = buf.filled().len();
    bytes.truncate(length);
    Poll::Ready(Ok(bytes.freeze()))
}

/// Why a stream was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentRefused {
    /// No agent serves the endpoint.
    #[error("no agent serves the endpoint")]
    Away,
    /// All agents that serve it have reached their stream limits.
    #[error("all agents of the endpoint are busy")]
    Busy,
    /// The connections of the agents that serve it carry nothing.
    #[error("no agent of the endpoint responds")]
    Silent,
}

/// The refusal in an error of a stream, if there is one and the agent has used nothing of the stream.
pub fn refusal(error: &io::Error) -> Option<AgentRefused> {
    let refused = error.get_ref()?.downcast_ref().copied();
    // An agent that does not respond may have used it before.
    refused.filter(|it| *it != AgentRefused::Silent)
}

/// Whether a failure was caused by an agent that does not respond.
pub fn is_silent(failure: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(failure);
    while let Some(error) = cause {
        let of_stream = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let refused = of_stream.and_then(|it| it.downcast_ref::<AgentRefused>());
        if refused == Some(&AgentRefused::Silent) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Opens streams to services behind agents.
pub trait Dial: fmt::Debug + Send + Sync {
    /// Opens a stream immediately.
    ///
    /// # Errors
    ///
    /// When no agent takes it.
    fn dial(&self, call: &AgentCall<'_>) -> Result<Box<dyn AgentIo>, AgentRefused>;

    /// Opens a stream as soon as an agent has capacity. Callers wait in a queue, for a few seconds at most.
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

    /// Whether the last agent of the endpoint has just lost its connection and may reconnect. True for two seconds at
    /// most; a request waits while it is.
    fn may_return(&self, _endpoint: &str) -> bool {
        false
    }

    /// Where the agent of the endpoint is, for traces.
    fn place(&self, _endpoint: &str) -> AgentPlace {
        AgentPlace::default()
    }
}

/// Where the agent of an endpoint is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPlace {
    /// Its session, if it is connected to this node and no other serves the endpoint here.
    pub session: Option<String>,
    /// The address of the node that it is connected to, if that is another one.
    pub node: Option<String>,
}
