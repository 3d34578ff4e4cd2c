//! The edge's connections to services behind agents: the adapter between the edge's port and the tunnel.
//!
//! It uses nothing else of this crate, because `benches/through_agent.rs` of `culvert-edge` includes it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use culvert_base::BoxFuture;
use culvert_edge::{AgentCall, AgentIo, AgentPlace, AgentRefused, Dial};
use culvert_policy::Scheme;
use culvert_tunnel::driver::{self, Stream};
use culvert_tunnel::nodes::{self, Nodes};
use culvert_tunnel::server::{Bindings, DialError};
use culvert_tunnel::wire::{self, ProxyHeader};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The edge's connections to agents: first those of this process, then those of other nodes.
#[derive(Debug)]
pub(crate) struct ToAgents {
    pub(crate) here: Option<Arc<Bindings>>,
    pub(crate) elsewhere: Option<Arc<Nodes>>,
}

/// A stream to an agent, as used by the edge.
#[derive(Debug)]
struct Carried {
    stream: Stream,
    /// The agents of this process and the id of the endpoint; `None` for an agent of another node.
    here: Option<(Arc<Bindings>, String)>,
}

impl AgentIo for Carried {
    fn poll_read_bytes(
        &mut self,
        cx: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<io::Result<Bytes>> {
        let read = self.stream.poll_read_bytes(cx, bytes_max);
        read.map_err(agent_error)
    }

    /// Streams through another node are not kept for reuse: that node could not use them for its own clients, and
    /// this node does not learn immediately when an endpoint goes offline there.
    fn set_idle(&mut self) -> bool {
        if self.here.is_none() {
            self.stream.end_in_order();
            return false;
        }
        self.stream.set_idle()
    }

    /// A stream is not reused if its agent no longer serves the endpoint.
    fn resume(&mut self) -> bool {
        let is_served = |(bindings, id): &(Arc<Bindings>, String)| bindings.count(id) > 0;
        self.here.as_ref().is_some_and(is_served) && self.stream.resume()
    }

    fn end(&mut self) {
        self.stream.end_in_order();
    }
}

/// Converts errors for the edge. An agent that rejected a stream is busy; a reset code may say that it is no longer
/// at the node.
fn agent_error(error: io::Error) -> io::Error {
    if driver::is_refused(&error) {
        return io::Error::new(error.kind(), AgentRefused::Busy);
    }
    if driver::is_silent(&error) {
        return io::Error::new(io::ErrorKind::TimedOut, AgentRefused::Silent);
    }
    match driver::reset_code(&error) {
        Some(nodes::AWAY) => io::Error::new(error.kind(), AgentRefused::Away),
        _ => error,
    }
}

impl AsyncRead for Carried {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream)
            .poll_read(cx, buf)
            .map_err(agent_error)
    }
}

impl AsyncWrite for Carried {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream)
            .poll_write(cx, buf)
            .map_err(agent_error)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        written.map_err(agent_error)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn header(call: &AgentCall<'_>) -> ProxyHeader {
    ProxyHeader {
        id: call.endpoint.to_owned(),
        client_addr: match call.client {
            Some(client) => client.to_string(),
            None => wire::MANY_CLIENTS.to_owned(),
        },
        proto: call.scheme.name().to_owned(),
        edge_type: match call.scheme {
            Scheme::Tcp => "1",
            Scheme::Tls => "2",
            Scheme::Http | Scheme::Https => "3",
        }
        .to_owned(),
        passthrough_tls: call.passes_tls,
    }
}

impl ToAgents {
    /// Converts the result of opening a stream to an agent of this process.
    fn here(
        &self,
        opened: Result<Stream, DialError>,
        id: String,
    ) -> Result<Box<dyn AgentIo>, AgentRefused> {
        let here = self.here.clone().map(|bindings| (bindings, id));
        carried(opened, here)
    }
}

fn carried(
    opened: Result<Stream, DialError>,
    here: Option<(Arc<Bindings>, String)>,
) -> Result<Box<dyn AgentIo>, AgentRefused> {
    match opened {
        Ok(stream) => Ok(Box::new(Carried { stream, here })),
        Err(DialError::Away) => Err(AgentRefused::Away),
        Err(DialError::Busy) => Err(AgentRefused::Busy),
        Err(DialError::Silent) => Err(AgentRefused::Silent),
    }
}

impl Dial for ToAgents {
    fn dial(&self, call: &AgentCall<'_>) -> Result<Box<dyn AgentIo>, AgentRefused> {
        let header = header(call);
        let here = match &self.here {
            Some(bindings) => bindings.dial(&header),
            None => Err(DialError::Away),
        };
        match (here, &self.elsewhere) {
            (Err(DialError::Away), Some(nodes)) => carried(nodes.dial(&header), None),
            (here, _) => self.here(here, header.id),
        }
    }

    fn dial_in_turn<'a>(
        &'a self,
        call: AgentCall<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn AgentIo>, AgentRefused>> {
        Box::pin(async move {
            let header = header(&call);
            let here = match &self.here {
                Some(bindings) => bindings.dial_in_turn(&header).await,
                None => Err(DialError::Away),
            };
            match (here, &self.elsewhere) {
                (Err(DialError::Away), Some(nodes)) => {
                    carried(nodes.dial_in_turn(&header).await, None)
                }
                (here, _) => self.here(here, header.id),
            }
        })
    }

    fn is_online(&self, endpoint: &str) -> bool {
        let has = |bindings: &Arc<Bindings>| bindings.count(endpoint) > 0;
        self.here.as_ref().is_some_and(has)
            || self
                .elsewhere
                .as_ref()
                .is_some_and(|nodes| nodes.is_online(endpoint))
    }

    fn place(&self, endpoint: &str) -> AgentPlace {
        let here = self.here.as_ref().filter(|it| it.count(endpoint) > 0);
        let elsewhere = self.elsewhere.as_ref().filter(|_| here.is_none());
        AgentPlace {
            session: here.and_then(|bindings| bindings.only_session(endpoint)),
            node: elsewhere.and_then(|nodes| nodes.node_of(endpoint)),
        }
    }

    fn may_return(&self, endpoint: &str) -> bool {
        // Neither check takes a lock unless an endpoint was lost recently.
        let here = self.here.as_ref();
        let elsewhere = self.elsewhere.as_ref();
        let is_lost = here.is_some_and(|bindings| bindings.has_just_lost(endpoint))
            || elsewhere.is_some_and(|nodes| nodes.has_just_lost(endpoint));
        is_lost && !self.is_online(endpoint)
    }
}
