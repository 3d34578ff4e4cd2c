//! Relays bytes in both directions: TCP endpoints, TLS passed through, upgraded connections.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::BoxFuture;
use culvert_http::slow_reader::SlowReader;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::counting::RelayCount;
use crate::downstream::Downstream;
use crate::http::upgrade::Tunnel;
use crate::http1::server::Http1Server;
use crate::http2::stream::Tunnelled;
use crate::relay::{Relay, RelayEnd};
use crate::rules::Timeouts;
use crate::snapshot::group::Member;
use crate::splice::Pipe;
use crate::upstream::agent::refusal;
use crate::upstream::pool::Pool;
use crate::upstream::url::{DialError, UpWire};

/// Most bytes of a client that are kept until the upstream's first byte.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// The first pause before a connection that an agent refused goes to another, which doubles each time, and the time
/// limit of these attempts.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
const REFUSED_RETRY_WITHIN: Duration = Duration::from_secs(5);
/// The idle limit of a half-closed connection, where it is unknown whether the closed side still reads.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(3600);

/// Serves a connection to a TCP or TLS endpoint, from which `ahead` was read. If its upstream is unreachable, the other
/// endpoints of the address are tried.
pub(crate) async fn endpoint<S>(
    mut socket: S,
    ahead: Vec<u8>,
    member: &Member,
    timeouts: Timeouts,
    down: &Arc<Downstream>,
) where
    S: RelayEnd,
{
    // In a box, so that a connection keeps no room for it while bytes pass.
    let connecting = Box::pin(reach(ahead, member, timeouts, down));
    let Some(mut wire) = connecting.await else {
        return;
    };
    let counted = [Arc::clone(member.counters(&down.conn.edge))];
    let count = RelayCount::of_connection(&counted);
    relay(&mut socket, &mut wire, timeouts, down, count).await;
}

/// Connects to the upstream of an endpoint, and sends the bytes that were already read from the client.
async fn reach(
    ahead: Vec<u8>,
    member: &Member,
    timeouts: Timeouts,
    down: &Arc<Downstream>,
) -> Option<RetryingUpstream> {
    let limit = timeouts.connect.unwrap_or(down.conn.rules.limits.connect);
    let pools: Vec<Arc<Pool>> = member
        .pool
        .iter()
        .chain(&member.stand_ins)
        .cloned()
        .collect();
    member.wait_for_agent(down.edge.agents()).await;
    let wire = connected(&pools, &member.endpoint.id, limit, down).await?;
    let is_agents = |pool: &Arc<Pool>| pool.upstream().agents_endpoint().is_some();
    let mut wire = match pools.iter().any(is_agents) {
        true => RetryingUpstream::new(wire, pools, member, limit, down),
        false => RetryingUpstream::fixed(wire),
    };
    wire.write_all(&ahead).await.ok()?;
    Some(wire)
}

/// A connection to the first upstream that accepts one. If all reachable agents are busy, waits for the first.
async fn connected(
    pools: &[Arc<Pool>],
    endpoint: &str,
    limit: Duration,
    down: &Arc<Downstream>,
) -> Option<UpWire> {
    let unreached = |error: &DialError| {
        tracing::debug!(endpoint.id = endpoint, %error, "upstream unreachable");
    };
    let mut busy = None;
    for pool in pools {
        match pool.dial(&down.connector(), limit).await {
            Ok(wire) => return Some(wire),
            Err(error) => {
                unreached(&error);
                if error.is_busy() {
                    busy.get_or_insert(pool);
                }
            }
        }
    }
    busy?
        .dial_in_turn(&down.connector(), limit)
        .await
        .inspect_err(unreached)
        .ok()
}

/// A connection to an upstream behind agents. If an agent refuses it, it starts again at the next one: the client's
/// bytes are kept until the first byte of the upstream.
struct RetryingUpstream {
    state: UpstreamState,
    /// Whether the client has closed its side.
    is_shut: bool,
    /// `None` if it cannot start again.
    retry: Option<Box<RetryPlan>>,
}

enum UpstreamState {
    Connected(UpWire),
    Connecting(BoxFuture<'static, Option<UpWire>>),
}

/// How to start again.
struct RetryPlan {
    /// The bytes sent to the upstream.
    sent: Vec<u8>,
    pools: Vec<Arc<Pool>>,
    endpoint: String,
    limit: Duration,
    down: Arc<Downstream>,
    until: Instant,
    pause: Duration,
}

impl RetryingUpstream {
    fn new(
        wire: UpWire,
        pools: Vec<Arc<Pool>>,
        member: &Member,
        limit: Duration,
        down: &Arc<Downstream>,
    ) -> Self {
        let retry = RetryPlan {
            sent: Vec::new(),
            pools,
            endpoint: member.endpoint.id.to_string(),
            limit,
            down: Arc::clone(down),
            until: Instant::now() + REFUSED_RETRY_WITHIN,
            pause: REFUSED_PAUSE,
        };
        Self {
            state: UpstreamState::Connected(wire),
            is_shut: false,
            retry: Some(Box::new(retry)),
        }
    }

    fn fixed(wire: UpWire) -> Self {
        Self {
            state: UpstreamState::Connected(wire),
            is_shut: false,
            retry: None,
        }
    }

    /// Stops keeping bytes: it cannot start again.
    fn settle(&mut self) {
        self.retry = None;
    }

    fn keep(&mut self, bytes: &[u8]) {
        match &mut self.retry {
            Some(retry) if retry.sent.len() + bytes.len() <= KEPT_BYTES_MAX => {
                retry.sent.extend(bytes);
            }
            _ => self.settle(),
        }
    }

    /// Starts again at another agent, if possible.
    fn retry_elsewhere(&mut self) -> bool {
        let Some(retry) = &mut self.retry else {
            return false;
        };
        if Instant::now() >= retry.until {
            return false;
        }
        retry.down.edge.state.meters.upstream_retries.up();
        // The next agent in turn.
        retry.pools.rotate_left(1);
        let (pools, endpoint) = (retry.pools.clone(), retry.endpoint.clone());
        let (limit, down, pause) = (retry.limit, Arc::clone(&retry.down), retry.pause);
        retry.pause = pause * 2;
        let (sent, is_shut) = (retry.sent.clone(), self.is_shut);
        self.state = UpstreamState::Connecting(Box::pin(async move {
            tokio::time::sleep(pause).await;
            let mut wire = connected(&pools, &endpoint, limit, &down).await?;
            wire.write_all(&sent).await.ok()?;
            if is_shut {
                wire.shutdown().await.ok()?;
            }
            Some(wire)
        }));
        true
    }

    fn poll_wire(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut UpWire>> {
        if let UpstreamState::Connecting(moving) = &mut self.state {
            let wire = ready!(moving.as_mut().poll(cx));
            let wire = wire.ok_or(io::ErrorKind::ConnectionRefused)?;
            self.state = UpstreamState::Connected(wire);
        }
        match &mut self.state {
            UpstreamState::Connected(wire) => Poll::Ready(Ok(wire)),
            UpstreamState::Connecting(_) => Poll::Pending,
        }
    }
}

impl AsyncRead for RetryingUpstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let wire = ready!(self.poll_wire(cx))?;
            match ready!(Pin::new(wire).poll_read(cx, buf)) {
                Err(error) if refusal(&error).is_some() && self.retry_elsewhere() => {}
                read => {
                    self.settle();
                    return Poll::Ready(read);
                }
            }
        }
    }
}

impl AsyncWrite for RetryingUpstream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let wire = ready!(self.poll_wire(cx))?;
            match ready!(Pin::new(wire).poll_write(cx, bytes)) {
                Err(error) if refusal(&error).is_some() && self.retry_elsewhere() => {}
                Ok(count) => {
                    self.keep(bytes.get(..count).unwrap_or_default());
                    return Poll::Ready(Ok(count));
                }
                failed => return Poll::Ready(failed),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = ready!(self.poll_wire(cx))?;
        Pin::new(wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = ready!(self.poll_wire(cx))?;
        let shut = ready!(Pin::new(wire).poll_shutdown(cx));
        self.is_shut = true;
        match shut {
            // The reader handles the refusal.
            Err(error) if refusal(&error).is_some() && self.retry.is_some() => Poll::Ready(Ok(())),
            shut => Poll::Ready(shut),
        }
    }
}

impl RelayEnd for RetryingUpstream {
    fn has_pieces(&self) -> bool {
        match &self.state {
            UpstreamState::Connected(wire) => wire.has_pieces(),
            UpstreamState::Connecting(_) => true,
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<Bytes>> {
        loop {
            let wire = ready!(self.poll_wire(cx))?;
            match ready!(wire.poll_piece(cx, bytes_max)) {
                Err(error) if refusal(&error).is_some() && self.retry_elsewhere() => {}
                read => {
                    self.settle();
                    return Poll::Ready(read);
                }
            }
        }
    }

    fn is_socket(&self) -> bool {
        match &self.state {
            UpstreamState::Connected(wire) => self.retry.is_none() && wire.is_socket(),
            UpstreamState::Connecting(_) => false,
        }
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_wire(cx))?.poll_fill(cx, pipe, bytes_max)
    }

    fn poll_empty(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        ready!(self.poll_wire(cx))?.poll_empty(cx, pipe)
    }
}

/// Relays an upgraded connection. The client has sent `early` before the 101.
pub(crate) async fn tunnel(
    client: &mut Http1Server,
    early: &[u8],
    tunnel: Tunnel,
    down: &Arc<Downstream>,
) {
    let Tunnel {
        mut upstream,
        early: late,
        exchange,
    } = tunnel;
    let timeouts = exchange.timeouts();
    let begun: io::Result<()> = async {
        client.write_all(&late).await?;
        upstream.write_all(early).await
    }
    .await;
    if begun.is_ok() {
        let count = exchange.count.relay(down.conn.counters.bytes());
        relay(client, &mut upstream, timeouts, down, count).await;
    }
    exchange.tunnel_closed();
}

/// Relays an upgraded stream of HTTP/2. It ends with its connection at the latest.
pub(crate) async fn stream(mut client: Tunnelled, tunnel: Tunnel) {
    let Tunnel {
        upstream,
        early,
        exchange,
    } = tunnel;
    let (idle, write) = (exchange.idle_limit(), exchange.write_limit());
    let moved = Arc::new(Moved::default());
    let mut upstream = CountedUpstream {
        io: upstream,
        moved: Arc::clone(&moved),
    };
    moved.count_from_upstream(early.len());
    if client.write_all(&early).await.is_ok() {
        let mut count = exchange.count.relay((0, 0));
        let moved = || count.up_to(moved.bytes());
        let limits = (idle, write);
        pass(&mut client, &mut upstream, None, limits, moved, |_| false).await;
    }
    exchange.tunnel_closed();
}

/// Relays a whole connection, until the edge cuts it, or an operator that brings it loses the endpoint.
async fn relay<A, B>(
    client: &mut A,
    upstream: &mut B,
    timeouts: Timeouts,
    down: &Arc<Downstream>,
    mut count: RelayCount<'_>,
) where
    A: RelayEnd,
    B: RelayEnd,
{
    let limits = &down.conn.rules.limits;
    let idle = timeouts.idle.unwrap_or(limits.tunnel_idle);
    let write = timeouts.write.unwrap_or(limits.write_stall);
    let moved = || count.up_to(down.conn.counters.bytes());
    let is_cut = |waker: &Waker| {
        down.conn.driver.register(waker);
        // An operator that lost the endpoint moves no further byte.
        down.conn.is_cut() || down.is_unbound()
    };
    pass(client, upstream, Some(down), (idle, write), moved, is_cut).await;
}

/// Relays until both directions are closed, one fails, the idle timeout expires, the client reads too slowly, or the
/// connection is cut.
async fn pass<A, B>(
    client: &mut A,
    upstream: &mut B,
    down: Option<&Arc<Downstream>>,
    (idle, write): (Duration, Duration),
    mut moved: impl FnMut() -> u64,
    mut is_cut: impl FnMut(&Waker) -> bool,
) where
    A: RelayEnd,
    B: RelayEnd,
{
    let mut alarm = Alarm::default();
    let mut seen = moved();
    let mut since = Instant::now();
    let mut client = PacedClient {
        io: client,
        down,
        taken: 0,
        reader: SlowReader::default(),
        write,
        alarm: Alarm::default(),
        is_half: Arc::default(),
    };
    let is_half = Arc::clone(&client.is_half);
    let mut copy = Relay::new(down.map(|down| &down.conn));
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
            idle.min(HALF_CLOSED_MAX)
        } else {
            idle
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
struct PacedClient<'a, T> {
    io: &'a mut T,
    /// The connection, if the relay uses all of it.
    down: Option<&'a Arc<Downstream>>,
    taken: u64,
    reader: SlowReader,
    write: Duration,
    alarm: Alarm,
    /// Whether one side has closed.
    is_half: Arc<AtomicBool>,
}

impl<T: AsyncRead + Unpin> AsyncRead for PacedClient<'_, T> {
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

impl<T: RelayEnd> RelayEnd for PacedClient<'_, T> {
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

impl<T: AsyncWrite + Unpin> PacedClient<'_, T> {
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
                if let Some(down) = self.down {
                    down.conn.too_slow();
                }
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PacedClient<'_, T> {
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

/// A stream of HTTP/2 is no socket.
impl RelayEnd for Tunnelled {}

impl<T: AsyncRead + AsyncWrite + Unpin> RelayEnd for CountedUpstream<T> {}

/// Bytes that a relay has moved, by direction.
#[derive(Default)]
struct Moved {
    to_upstream: AtomicU64,
    from_upstream: AtomicU64,
}

impl Moved {
    fn count_from_upstream(&self, bytes: usize) {
        self.from_upstream
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes received from the client and sent to it.
    fn bytes(&self) -> (u64, u64) {
        (
            self.to_upstream.load(Ordering::Relaxed),
            self.from_upstream.load(Ordering::Relaxed),
        )
    }
}

/// The upstream's side, with byte counters.
struct CountedUpstream<T> {
    io: T,
    moved: Arc<Moved>,
}

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
