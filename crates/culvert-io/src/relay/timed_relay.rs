//! Runs a relay under time limits: of silence, and of a client that reads too slowly.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use culvert_http::slow_reader::SlowReader;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::relay::splice::Pipe;
use crate::relay::{Relay, RelayClient, RelayEnd};

/// The idle limit of a half-closed connection, where it is unknown whether the closed side still reads.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(3600);

/// The time limits of a relay.
#[derive(Clone, Copy, Debug)]
pub struct RelayLimits {
    /// Without a byte in either direction.
    pub idle: Duration,
    /// While the client reads nothing of waiting data.
    pub write: Duration,
}

/// Relays until both directions are closed, one fails, the idle timeout expires, the client reads too slowly, or the
/// connection is cut.
///
/// `owner` is the client, if the relay uses all of its connection. `moved` returns the number of bytes that the relay has
/// moved so far. `is_cut` is called with the waker of the task, and says whether the relay ends.
pub async fn run_relay<A, B, C>(
    client: &mut A,
    upstream: &mut B,
    owner: Option<&Arc<C>>,
    limits: RelayLimits,
    mut moved: impl FnMut() -> u64,
    mut is_cut: impl FnMut(&Waker) -> bool,
) where
    A: RelayEnd,
    B: RelayEnd,
    C: RelayClient,
{
    let mut alarm = Alarm::default();
    let mut seen = moved();
    let mut since = Instant::now();
    let mut client = PacedClient {
        io: client,
        owner,
        taken: 0,
        reader: SlowReader::default(),
        write: limits.write,
        alarm: Alarm::default(),
        is_half: Arc::default(),
    };
    let is_half = Arc::clone(&client.is_half);
    let mut copy = Relay::new(owner);
    let relayed = poll_fn(|cx| {
        if is_cut(cx.waker()) || copy.poll(cx, &mut client, upstream).is_ready() {
            return Poll::Ready(());
        }
        let bytes = moved();
        if bytes != seen {
            seen = bytes;
            since = Instant::now();
        }
        let idle = if is_half.load(Ordering::Relaxed) {
            limits.idle.min(HALF_CLOSED_MAX)
        } else {
            limits.idle
        };
        if alarm.is_due(cx, since + idle) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    relayed.await;
    moved();
}

/// The client's side, with a check that it reads fast enough.
struct PacedClient<'a, T, C> {
    io: &'a mut T,
    owner: Option<&'a Arc<C>>,
    taken: u64,
    reader: SlowReader,
    write: Duration,
    alarm: Alarm,
    /// Whether one side has closed.
    is_half: Arc<AtomicBool>,
}

impl<T: AsyncRead + Unpin, C: RelayClient> AsyncRead for PacedClient<'_, T, C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut *self.io).poll_read(cx, buf);
        if result.is_ready() && buf.filled().len() == before {
            self.is_half.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl<T: RelayEnd, C: RelayClient> RelayEnd for PacedClient<'_, T, C> {
    fn is_socket(&self) -> bool {
        self.io.is_socket()
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        let result = self.io.poll_fill(cx, pipe, bytes_max);
        if let Poll::Ready(Ok(0) | Err(_)) = result {
            self.is_half.store(true, Ordering::Relaxed);
        }
        result
    }

    fn poll_empty(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let wrote = self.io.poll_empty(cx, pipe);
        self.wrote(cx, wrote)
    }
}

impl<T: AsyncWrite + Unpin, C: RelayClient> PacedClient<'_, T, C> {
    /// Notes what the client has taken, or waits for it.
    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match result {
            Poll::Ready(Ok(bytes)) => {
                self.taken = self.taken.saturating_add(bytes as u64);
                Poll::Ready(Ok(bytes))
            }
            Poll::Pending => self.waits(cx),
            failed => failed,
        }
    }

    /// Waits for the client to read, or fails if it is too slow.
    fn waits<R>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<R>> {
        let waits = self
            .reader
            .waits(self.taken, self.write, Instant::now().into_std());
        match waits {
            Ok(deadline) if !self.alarm.is_due(cx, deadline.into()) => Poll::Pending,
            _ => {
                if let Some(owner) = self.owner {
                    owner.too_slow();
                }
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<T: AsyncWrite + Unpin, C: RelayClient> AsyncWrite for PacedClient<'_, T, C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut *self.io).poll_write(cx, bytes);
        self.wrote(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut *self.io).poll_write_vectored(cx, slices);
        self.wrote(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut *self.io).poll_flush(cx) {
            // A flush follows the last write.
            Poll::Ready(Ok(())) => {
                let (taken, write) = (self.taken, self.write);
                if self.reader.is_waiting() {
                    let now = Instant::now().into_std();
                    self.reader.caught_up(taken, write, now);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending => self.waits(cx),
            failed => failed,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_half.store(true, Ordering::Relaxed);
        Pin::new(&mut *self.io).poll_shutdown(cx)
    }
}
