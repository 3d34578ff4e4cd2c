//! Connections to upstreams as byte streams: TCP, a Unix socket, TLS, a stream of an agent or over HTTP/2.

use std::fmt;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use culvert_io::proxy::ProxyAddresses;
use culvert_io::{Pipe, RelayEnd, proxy};
use culvert_policy::Scheme;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use crate::agent::{AgentCall, AgentIo, Dial, poll_read_copy};
use crate::dial_error::DialError;
use crate::upstream::{Clients, Upstream};

/// A connection to an upstream. Counts what it receives.
#[derive(Debug)]
pub struct UpstreamStream {
    stream: Transport,
    received: Arc<AtomicU64>,
}

/// What arrived on a connection without a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Excess<'r> {
    None,
    /// The upstream has closed the connection, or it failed.
    End,
    Bytes(&'r [u8]),
}

#[derive(Debug)]
enum Transport {
    Plain(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    Agent(Box<dyn AgentIo>),
    Carried(Box<dyn ByteStream>),
}

/// A stream over HTTP/2.
trait ByteStream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> ByteStream for T {}

impl UpstreamStream {
    /// A connection without TLS.
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self::new(Transport::Plain(socket))
    }

    /// A connection to a Unix socket.
    pub(crate) fn unix(socket: UnixStream) -> Self {
        Self::new(Transport::Unix(socket))
    }

    /// A connection whose TLS handshake is complete.
    pub(crate) fn tls(stream: TlsStream<TcpStream>) -> Self {
        Self::new(Transport::Tls(Box::new(stream)))
    }

    /// A stream over HTTP/2, such as a tunnel that a request opened.
    pub fn carried(
        stream: impl AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static,
    ) -> Self {
        Self::new(Transport::Carried(Box::new(stream)))
    }

    fn new(stream: Transport) -> Self {
        Self {
            stream,
            received: Arc::default(),
        }
    }

    /// The address that it leads to, if that is known.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        let socket = match &self.stream {
            Transport::Plain(socket) => socket,
            Transport::Tls(stream) => stream.get_ref().0,
            Transport::Unix(_) | Transport::Agent(_) | Transport::Carried(_) => return None,
        };
        Some(socket.peer_addr().ok()?.ip())
    }

    /// Counts received bytes.
    fn count(&self, bytes: usize) {
        if bytes > 0 {
            let received = self.received.load(Ordering::Relaxed);
            let received = received.saturating_add(bytes as u64);
            self.received.store(received, Ordering::Relaxed);
        }
    }

    /// Opens a stream to the service behind an agent for the connection from `client` to `server`. `is_tls_ended`: this
    /// server terminated the TLS of that connection. With `in_turn`, waits until an agent has room.
    pub(crate) async fn to_agent(
        dial: &dyn Dial,
        to: &Upstream,
        (client, server): (SocketAddr, SocketAddr),
        is_tls_ended: bool,
        in_turn: bool,
    ) -> Result<Self, DialError> {
        let Some((scheme, proxy, clients)) = to.agent_streams() else {
            return Err(DialError::NoAddress);
        };
        let call = AgentCall {
            endpoint: to.host(),
            scheme,
            client: (clients == Clients::Apart).then_some(client),
            passes_tls: scheme == Scheme::Tls && !is_tls_ended,
        };
        let opened = match in_turn {
            true => dial.dial_in_turn(call).await,
            false => dial.dial(&call),
        };
        let mut wire = Self::new(Transport::Agent(opened.map_err(DialError::Agent)?));
        if let Some(version) = proxy {
            let header = proxy::encode(version, ProxyAddresses { client, server });
            wire.write_all(&header).await.map_err(DialError::Connect)?;
        }
        Ok(wire)
    }

    /// Prepares the connection for the pool of idle connections: no bytes are in flight. `false` if it cannot serve another
    /// request.
    pub(crate) fn set_idle(&mut self) -> bool {
        match &mut self.stream {
            Transport::Plain(_) | Transport::Unix(_) | Transport::Tls(_) => true,
            Transport::Agent(stream) => stream.set_idle(),
            Transport::Carried(_) => false,
        }
    }

    /// Takes the connection out of idle for a request. `false` if it was closed while idle.
    pub(crate) fn resume(&mut self) -> bool {
        match &mut self.stream {
            Transport::Agent(stream) => stream.resume(),
            Transport::Plain(_)
            | Transport::Unix(_)
            | Transport::Tls(_)
            | Transport::Carried(_) => true,
        }
    }

    /// Whether the connection is a socket without TLS.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.stream, Transport::Plain(_) | Transport::Unix(_))
    }

    /// Reads from the socket what arrived without a request, even before the runtime reports it as readable. With TLS,
    /// bytes may be a close alert: they count as the end. Always none for a stream of an agent or over HTTP/2: its ordinary
    /// reads report excess bytes.
    pub(crate) fn read_excess<'r>(&self, room: &'r mut [u8]) -> Excess<'r> {
        let (socket, is_tls) = match &self.stream {
            Transport::Plain(socket) => (SockRef::from(socket), false),
            Transport::Unix(socket) => (SockRef::from(socket), false),
            Transport::Tls(stream) => (SockRef::from(stream.get_ref().0), true),
            Transport::Agent(_) | Transport::Carried(_) => return Excess::None,
        };
        match (&*socket).read(room) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Excess::None,
            Ok(bytes) if bytes > 0 && !is_tls => {
                Excess::Bytes(room.get(..bytes).unwrap_or_default())
            }
            Ok(_) | Err(_) => Excess::End,
        }
    }

    /// Closes the stream of an agent. No bytes are in flight.
    pub(crate) fn end(&mut self) {
        if let Transport::Agent(stream) = &mut self.stream {
            stream.end();
        }
    }

    /// The counter of received bytes. It keeps counting while another task uses the connection.
    pub(crate) fn received(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }
}

culvert_io::delegate_io!(AsyncRead, AsyncWrite for Transport {
    Self::Plain(io) => io,
    Self::Unix(io) => io,
    Self::Tls(io) => io,
    Self::Agent(io) => io,
    Self::Carried(io) => io,
});

impl AsyncRead for UpstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.count(buf.filled().len() - before);
        result
    }
}

culvert_io::delegate_io!(AsyncWrite for UpstreamStream { Self { stream, .. } => stream });

impl RelayEnd for UpstreamStream {
    fn has_pieces(&self) -> bool {
        matches!(self.stream, Transport::Agent(_))
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<Bytes>> {
        let Transport::Agent(stream) = &mut self.stream else {
            return poll_read_copy(self, cx, bytes_max);
        };
        let piece = ready!(stream.poll_read_bytes(cx, bytes_max))?;
        self.count(piece.len());
        Poll::Ready(Ok(piece))
    }

    fn is_socket(&self) -> bool {
        matches!(self.stream, Transport::Plain(_))
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        let Transport::Plain(socket) = &self.stream else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let bytes = ready!(pipe.poll_fill(cx, socket, bytes_max))?;
        self.count(bytes);
        Poll::Ready(Ok(bytes))
    }

    fn poll_empty(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let Transport::Plain(socket) = &self.stream else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        pipe.poll_empty(cx, socket)
    }
}
