//! Bytes passed both ways without looking: TCP endpoints, TLS passed through, upgraded connections.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use culvert_base::BoxFuture;
use culvert_http::slow_reader::SlowReader;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::downstream::Downstream;
use crate::edge_state::Phase;
use crate::http::upgrade::Tunnel;
use crate::http1::server::Http1Server;
use crate::http2::stream::Tunnelled;
use crate::rules::Timeouts;
use crate::snapshot::group::Member;
use crate::upstream::agent::refusal;
use crate::upstream::pool::Pool;
use crate::upstream::url::{DialError, UpWire};

/// What a client sent is kept up to this, until its upstream says something.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// A connection that an agent refuses is taken to another after so long, twice as long each time, for
/// as long as a client waits for a stream.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
const REFUSED_RETRY_WITHIN: Duration = Duration::from_secs(5);
/// How long nothing may move when one end has said all it has to say: whether it is still there to hear
/// the other is not known.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(3600);

/// Serves a connection to a TCP or TLS endpoint: `ahead` was read from it already. Where the endpoint
/// shares its address with others, they are tried when its upstream takes no connection.
pub(crate) async fn endpoint<S>(
    mut socket: S,
    ahead: &[u8],
    member: &Member,
    timeouts: Timeouts,
    down: &Arc<Downstream>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let limit = timeouts.connect.unwrap_or(down.conn.rules.limits.connect);
    let pools: Vec<Arc<Pool>> = member
        .pool
        .iter()
        .chain(&member.stand_ins)
        .cloned()
        .collect();
    member.wait_for_agent(down.edge.agents()).await;
    let Some(wire) = connected(&pools, &member.endpoint.id, limit, down).await else {
        return;
    };
    let is_agents = |pool: &Arc<Pool>| pool.upstream().agents_endpoint().is_some();
    let mut wire = match pools.iter().any(is_agents) {
        true => Movable::new(wire, pools, member, limit, down),
        false => Movable::fixed(wire),
    };
    if wire.write_all(ahead).await.is_ok() {
        relay(&mut socket, &mut wire, timeouts, down).await;
    }
}

/// A connection to the first upstream that takes one. Where all that could are busy, waits for the
/// first of those.
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

/// A connection to an upstream behind agents. One that an agent refuses begins again at the next agent: what
/// the client sent is kept until the first byte comes back.
struct Movable {
    way: Way,
    /// What the upstream was sent; `None` where it cannot begin again.
    sent: Option<Vec<u8>>,
    /// The client has nothing more to say.
    is_shut: bool,
    again: Option<Again>,
}

enum Way {
    There(UpWire),
    Moving(BoxFuture<'static, Option<UpWire>>),
}

/// How to begin again.
struct Again {
    pools: Vec<Arc<Pool>>,
    endpoint: String,
    limit: Duration,
    down: Arc<Downstream>,
    until: Instant,
    pause: Duration,
}

impl Movable {
    fn new(
        wire: UpWire,
        pools: Vec<Arc<Pool>>,
        member: &Member,
        limit: Duration,
        down: &Arc<Downstream>,
    ) -> Self {
        let again = Again {
            pools,
            endpoint: member.endpoint.id.to_string(),
            limit,
            down: Arc::clone(down),
            until: Instant::now() + REFUSED_RETRY_WITHIN,
            pause: REFUSED_PAUSE,
        };
        Self {
            way: Way::There(wire),
            sent: Some(Vec::new()),
            is_shut: false,
            again: Some(again),
        }
    }

    fn fixed(wire: UpWire) -> Self {
        Self {
            way: Way::There(wire),
            sent: None,
            is_shut: false,
            again: None,
        }
    }

    /// From now on it stays where it is.
    fn settle(&mut self) {
        (self.sent, self.again) = (None, None);
    }

    fn keep(&mut self, bytes: &[u8]) {
        match &mut self.sent {
            Some(sent) if sent.len() + bytes.len() <= KEPT_BYTES_MAX => sent.extend(bytes),
            _ => self.settle(),
        }
    }

    /// Begins again elsewhere, if it can.
    fn begin_again(&mut self) -> bool {
        let (Some(sent), Some(again)) = (&self.sent, &mut self.again) else {
            return false;
        };
        if Instant::now() >= again.until {
            return false;
        }
        again.down.edge.state.meters.upstream_retries.up();
        // Another has its turn.
        again.pools.rotate_left(1);
        let (pools, endpoint) = (again.pools.clone(), again.endpoint.clone());
        let (limit, down, pause) = (again.limit, Arc::clone(&again.down), again.pause);
        again.pause = pause * 2;
        let (sent, is_shut) = (sent.clone(), self.is_shut);
        self.way = Way::Moving(Box::pin(async move {
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
        if let Way::Moving(moving) = &mut self.way {
            let wire = ready!(moving.as_mut().poll(cx));
            let wire = wire.ok_or(io::ErrorKind::ConnectionRefused)?;
            self.way = Way::There(wire);
        }
        match &mut self.way {
            Way::There(wire) => Poll::Ready(Ok(wire)),
            Way::Moving(_) => Poll::Pending,
        }
    }
}

impl AsyncRead for Movable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let wire = ready!(self.poll_wire(cx))?;
            match ready!(Pin::new(wire).poll_read(cx, buf)) {
                Err(error) if refusal(&error).is_some() && self.begin_again() => {}
                read => {
                    self.settle();
                    return Poll::Ready(read);
                }
            }
        }
    }
}

impl AsyncWrite for Movable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let wire = ready!(self.poll_wire(cx))?;
            match ready!(Pin::new(wire).poll_write(cx, bytes)) {
                Err(error) if refusal(&error).is_some() && self.begin_again() => {}
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
            // The refusal is met by who reads.
            Err(error) if refusal(&error).is_some() && self.again.is_some() => Poll::Ready(Ok(())),
            shut => Poll::Ready(shut),
        }
    }
}

/// Passes bytes of an upgraded connection: `early` came from the client ahead of the 101.
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
        relay(client, &mut upstream, timeouts, down).await;
    }
    exchange.tunnel_closed();
}

/// Passes bytes of a stream of HTTP/2 that was upgraded. It ends with its connection, if not before.
pub(crate) async fn stream(mut client: Tunnelled, tunnel: Tunnel) {
    let Tunnel {
        upstream,
        early,
        exchange,
    } = tunnel;
    let (idle, write) = (exchange.idle_limit(), exchange.write_limit());
    let mut upstream = Moving {
        io: upstream,
        moved: Arc::default(),
    };
    let moved = Arc::clone(&upstream.moved);
    if client.write_all(&early).await.is_ok() {
        let moved = || moved.load(Ordering::Relaxed);
        let limits = (idle, write);
        pass(&mut client, &mut upstream, None, limits, moved, |_| false).await;
    }
    exchange.tunnel_closed();
}

/// Passes bytes of a whole connection, until the edge cuts at the latest.
async fn relay<A, B>(client: &mut A, upstream: &mut B, timeouts: Timeouts, down: &Arc<Downstream>)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let limits = &down.conn.rules.limits;
    let idle = timeouts.idle.unwrap_or(limits.tunnel_idle);
    let write = timeouts.write.unwrap_or(limits.write_stall);
    let moved = || {
        let (bytes_in, bytes_out) = down.conn.counters.bytes();
        bytes_in.wrapping_add(bytes_out)
    };
    let is_cut = |waker: &Waker| {
        down.conn.driver.register(waker);
        down.edge.state.phase() == Phase::Cut
    };
    pass(client, upstream, Some(down), (idle, write), moved, is_cut).await;
}

/// Passes bytes until both directions are closed, one breaks, nothing moved for the idle time, the client
/// is too slow to take what waits for it, or it is cut.
async fn pass<A, B>(
    client: &mut A,
    upstream: &mut B,
    down: Option<&Arc<Downstream>>,
    (idle, write): (Duration, Duration),
    moved: impl Fn() -> u64,
    mut is_cut: impl FnMut(&Waker) -> bool,
) where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut alarm = Alarm::default();
    let mut seen = moved();
    let mut since = Instant::now();
    let mut client = Judged {
        io: client,
        down,
        taken: 0,
        reader: SlowReader::default(),
        write,
        alarm: Alarm::default(),
        is_half: Arc::default(),
    };
    let is_half = Arc::clone(&client.is_half);
    let mut copy = pin!(copy_bidirectional(&mut client, upstream));
    poll_fn(|cx| {
        if is_cut(cx.waker()) || copy.as_mut().poll(cx).is_ready() {
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
    })
    .await;
}

/// A client's end, which must take what waits for it.
struct Judged<'a, T> {
    io: &'a mut T,
    /// Its connection, if it is all of it.
    down: Option<&'a Arc<Downstream>>,
    taken: u64,
    reader: SlowReader,
    write: Duration,
    alarm: Alarm,
    /// Whether one of the two ends has nothing more to say.
    is_half: Arc<AtomicBool>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Judged<'_, T> {
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

impl<T: AsyncWrite + Unpin> Judged<'_, T> {
    /// What is to be done about bytes that wait.
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

impl<T: AsyncWrite + Unpin> AsyncWrite for Judged<'_, T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut *self.io).poll_write(cx, bytes) {
            Poll::Ready(Ok(bytes)) => {
                self.taken = self.taken.saturating_add(bytes as u64);
                Poll::Ready(Ok(bytes))
            }
            Poll::Pending => self.waits(cx),
            failed => failed,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut *self.io).poll_flush(cx) {
            // It is flushed when there is nothing more to be written.
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
