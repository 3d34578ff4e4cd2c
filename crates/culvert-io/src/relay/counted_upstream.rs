//! Counts the bytes of a relay that is only a part of its client's connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::relay::RelayEnd;

/// Bytes that a relay has moved, by direction.
#[derive(Debug, Default)]
pub struct MovedBytes {
    to_upstream: AtomicU64,
    from_upstream: AtomicU64,
}

impl MovedBytes {
    /// Counts bytes that the upstream has sent.
    fn count_from_upstream(&self, bytes: usize) {
        self.from_upstream
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes received from the client and sent to it.
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.to_upstream.load(Ordering::Relaxed),
            self.from_upstream.load(Ordering::Relaxed),
        )
    }
}

/// The upstream's side, with byte counters.
#[derive(Debug)]
pub struct CountedUpstream<T> {
    io: T,
    moved: Arc<MovedBytes>,
}

impl<T> CountedUpstream<T> {
    /// Counts in `moved`.
    pub fn new(io: T, moved: Arc<MovedBytes>) -> Self {
        Self { io, moved }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> RelayEnd for CountedUpstream<T> {}

impl<T: AsyncRead + Unpin> AsyncRead for CountedUpstream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        self.moved.count_from_upstream(buf.filled().len() - before);
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountedUpstream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(bytes)) = result {
            let sent = &self.moved.to_upstream;
            sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
