//! The socket of a connection. It records the identification line of the client, and it can be closed from outside at
//! any time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Maximum length of the identification line (RFC 4253 section 4.2).
const NAME_BYTES_MAX: usize = 255;

/// The client's identification line: `SSH-2.0-OpenSSH_9.2p1`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientName(Arc<Mutex<(String, bool)>>);

impl ClientName {
    /// The part of the line that has arrived.
    pub(crate) fn get(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .0
            .clone()
    }

    fn receive(&self, bytes: &[u8]) -> bool {
        let mut heard = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for byte in bytes {
            if matches!(byte, b'\r' | b'\n') || heard.0.len() >= NAME_BYTES_MAX {
                heard.1 = true;
            }
            if heard.1 {
                return true;
            }
            // Replaces non-printable bytes.
            heard.0.push(if byte.is_ascii_graphic() || *byte == b' ' {
                char::from(*byte)
            } else {
                '?'
            });
        }
        false
    }
}

/// A socket whose connection can be cancelled.
pub(crate) struct CancellableSocket<S> {
    socket: S,
    name: ClientName,
    is_named: bool,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> CancellableSocket<S> {
    pub(crate) fn new(socket: S, name: ClientName, cut: CancellationToken) -> Self {
        Self {
            socket,
            name,
            is_named: false,
            cut: Box::pin(cut.cancelled_owned()),
        }
    }

    fn is_cut(&mut self, cx: &mut Context<'_>) -> bool {
        self.cut.as_mut().poll(cx).is_ready()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CancellableSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut(cx) {
            return Poll::Ready(Ok(()));
        }
        let had = buf.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        if !self.is_named {
            self.is_named = self.name.receive(&buf.filled()[had..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CancellableSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut(cx) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut(cx) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_name_is_overheard_and_a_cut_is_an_end() {
        let (name, cut) = (ClientName::default(), CancellationToken::new());
        let (near, mut far) = tokio::io::duplex(1024);
        let mut line = CancellableSocket::new(near, name.clone(), cut.clone());
        far.write_all(b"SSH-2.0-Ope").await.unwrap();
        let mut bytes = [0; 11];
        line.read_exact(&mut bytes).await.unwrap();
        far.write_all(b"nSSH_9.2\r\nnot of it").await.unwrap();
        let mut bytes = [0; 19];
        line.read_exact(&mut bytes).await.unwrap();
        assert_eq!(name.get(), "SSH-2.0-OpenSSH_9.2");
        cut.cancel();
        assert_eq!(line.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(line.write_all(b"x").await.is_err());

        let long = ClientName::default();
        assert!(long.receive(&[b'x'; 1000]));
        assert_eq!(long.get().len(), NAME_BYTES_MAX);
    }
}
