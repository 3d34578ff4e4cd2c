//! Bytes passed both ways without looking: TCP endpoints, TLS passed through, upgraded connections.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::downstream::Downstream;
use crate::edge::Phase;
use crate::http::upgrade::Tunnel;
use crate::http1::Inbound;
use crate::http2::Tunnelled;
use crate::snapshot::Member;

/// Serves a connection to a TCP or TLS endpoint: `ahead` was read from it already. Where the endpoint
/// shares its address with others, they are tried when its upstream takes no connection.
pub(crate) async fn endpoint<S>(
    mut socket: S,
    ahead: &[u8],
    member: &Member,
    down: &Arc<Downstream>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    for pool in member.pool.iter().chain(&member.stand_ins) {
        match pool.dial(down).await {
            Ok(mut wire) => {
                wire.probe();
                if wire.write_all(ahead).await.is_ok() {
                    relay(&mut socket, &mut wire, down).await;
                }
                return;
            }
            Err(error) => {
                tracing::debug!(endpoint.id = %member.endpoint.id, %error, "an upstream cannot be reached");
            }
        }
    }
}

/// Passes bytes of an upgraded connection: `early` came from the client ahead of the 101.
pub(crate) async fn tunnel(
    client: &mut Inbound,
    early: &[u8],
    tunnel: Tunnel,
    down: &Arc<Downstream>,
) {
    let Tunnel {
        mut upstream,
        early: late,
        recording,
    } = tunnel;
    client.probe();
    upstream.probe();
    let begun: io::Result<()> = async {
        client.write_all(&late).await?;
        upstream.write_all(early).await
    }
    .await;
    if begun.is_ok() {
        relay(client, &mut upstream, down).await;
    }
    recording.tunnel_closed();
}

/// Passes bytes of a stream of HTTP/2 that was upgraded. It ends with its connection, if not before.
pub(crate) async fn stream(mut client: Tunnelled, tunnel: Tunnel) {
    let Tunnel {
        upstream,
        early,
        recording,
    } = tunnel;
    upstream.probe();
    let idle = recording.down().rules.limits.tunnel_idle;
    let mut upstream = Moving {
        io: upstream,
        moved: Arc::default(),
    };
    let moved = Arc::clone(&upstream.moved);
    if client.write_all(&early).await.is_ok() {
        let moved = || moved.load(Ordering::Relaxed);
        pass(&mut client, &mut upstream, idle, moved, |_| false).await;
    }
    recording.tunnel_closed();
}

/// Passes bytes of a whole connection, until the edge cuts at the latest.
async fn relay<A, B>(client: &mut A, upstream: &mut B, down: &Arc<Downstream>)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let idle = down.rules.limits.tunnel_idle;
    let moved = || {
        let (bytes_in, bytes_out) = down.bytes();
        bytes_in.wrapping_add(bytes_out)
    };
    let is_cut = |waker: &Waker| {
        down.driver.register(waker);
        down.edge.phase() == Phase::Cut
    };
    pass(client, upstream, idle, moved, is_cut).await;
}

/// Passes bytes until both directions are closed, one breaks, nothing moved for the idle time, or it
/// is cut.
async fn pass<A, B>(
    client: &mut A,
    upstream: &mut B,
    idle: Duration,
    moved: impl Fn() -> u64,
    mut is_cut: impl FnMut(&Waker) -> bool,
) where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut alarm = Alarm::default();
    let mut seen = moved();
    let mut since = Instant::now();
    let mut copy = pin!(copy_bidirectional(client, upstream));
    poll_fn(|cx| {
        if is_cut(cx.waker()) || copy.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let bytes = moved();
        if bytes != seen {
            seen = bytes;
            since = Instant::now();
        }
        if alarm.is_due(cx, since + idle) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// An upstream's end, with a count of the bytes that pass.
struct Moving<T> {
    io: T,
    moved: Arc<AtomicU64>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Moving<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        let bytes = buf.filled().len() - before;
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Moving<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(bytes)) = result {
            self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
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
