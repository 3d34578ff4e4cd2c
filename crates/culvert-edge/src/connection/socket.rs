//! The client's socket with byte counters, plain or with TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use culvert_io::{Pipe, Prefixed, RelayEnd};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Empty, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::connection::conn_state::ConnState;

/// What carries a client's bytes.
#[derive(Debug)]
pub(crate) enum Carrier {
    Tcp(TcpStream),
    /// The TLS of a Kubernetes operator. Only the bytes of its client are counted.
    Operator(Box<TlsStream<TcpStream>>),
}

culvert_io::delegate_io!(AsyncRead, AsyncWrite for Carrier {
    Self::Tcp(io) => io,
    Self::Operator(io) => io,
});

impl Carrier {
    /// The socket whose bytes are the client's, which the kernel may move. Below the TLS of an operator there is none:
    /// the bytes of that socket are encrypted.
    fn spliceable(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(tcp) => Some(tcp),
            Self::Operator(_) => None,
        }
    }

    /// The socket itself, for its options.
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Tcp(tcp) => tcp,
            Self::Operator(stream) => stream.get_ref().0,
        }
    }
}

/// A client's socket. Counts its bytes. Its drop is the end of the connection, and records the time.
#[derive(Debug)]
pub(crate) struct CountedSocket {
    carrier: Carrier,
    conn: Arc<ConnState>,
    read: u64,
    written: u64,
}

impl CountedSocket {
    pub(crate) fn new(carrier: Carrier, conn: Arc<ConnState>) -> Self {
        Self {
            carrier,
            conn,
            read: 0,
            written: 0,
        }
    }

    /// Makes it close with a reset, which may lose data that was sent.
    pub(crate) fn reset(&self) {
        let linger = SockRef::from(self.carrier.tcp()).set_linger(Some(Duration::ZERO));
        if let Err(error) = linger {
            tracing::debug!(%error, "cannot set SO_LINGER; closing the connection normally");
        }
    }

    fn received(&mut self, bytes: usize) {
        if bytes > 0 {
            self.read = self.read.saturating_add(bytes as u64);
            self.conn.counters.set_bytes_in(self.read);
        }
    }

    fn wrote(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = result {
            self.written = self.written.saturating_add(bytes as u64);
            self.conn.counters.set_bytes_out(self.written);
        }
        result
    }
}

impl Drop for CountedSocket {
    fn drop(&mut self) {
        if self.conn.is_reset() {
            self.reset();
        }
        self.conn.closed();
    }
}

impl AsyncRead for CountedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.carrier).poll_read(cx, buf);
        self.received(buf.filled().len() - before);
        result
    }
}

impl AsyncWrite for CountedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.carrier).poll_write(cx, bytes);
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.carrier).poll_write_vectored(cx, slices);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.carrier.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_shutdown(cx)
    }
}

impl RelayEnd for CountedSocket {
    fn is_socket(&self) -> bool {
        self.carrier.spliceable().is_some()
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        let Some(tcp) = self.carrier.spliceable() else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let bytes = ready!(pipe.poll_fill(cx, tcp, bytes_max))?;
        self.received(bytes);
        Poll::Ready(Ok(bytes))
    }

    fn poll_empty(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let Some(tcp) = self.carrier.spliceable() else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let result = pipe.poll_empty(cx, tcp);
        self.wrote(result)
    }
}

/// A client's connection for HTTP: plain, or with TLS terminated here.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(CountedSocket),
    Tls(Box<TlsStream<Prefixed<CountedSocket>>>),
    /// Moved to another protocol.
    Moved(Empty),
}

impl Wire {
    /// See [`CountedSocket::reset`].
    pub(crate) fn reset(&self) {
        match self {
            Self::Plain(socket) => socket.reset(),
            Self::Tls(stream) => stream.get_ref().0.get_ref().reset(),
            Self::Moved(_) => {}
        }
    }

    /// Leaves nothing behind.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Moved(tokio::io::empty()))
    }

    /// Whether it has no TLS of ours.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Whether its bytes are those of a socket, so that the kernel may move them.
    pub(crate) fn is_socket(&self) -> bool {
        matches!(self, Self::Plain(socket) if socket.is_socket())
    }

    /// Sends bytes of a pipe. Only for sockets.
    pub(crate) fn poll_empty(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_empty(cx, pipe),
            Self::Tls(_) | Self::Moved(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }
}

culvert_io::delegate_io!(AsyncRead, AsyncWrite for Wire {
    Self::Plain(io) => io,
    Self::Tls(io) => io,
    Self::Moved(io) => io,
});
