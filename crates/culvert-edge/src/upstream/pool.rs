//! Reuse of connections to one upstream.
//!
//! An HTTP/1 connection has no task: the task of the exchange that leases it moves its bytes, so a request
//! never changes tasks. The connection is kept only if request and response were complete and nothing else
//! was received; otherwise it is closed. An HTTP/2 connection is shared, and a task of the edge drives it.
//! Another one is opened only when the existing ones carry as many streams as the upstream allows.
//!
//! Idle connections are spread over shards, which are locked with `try_lock` only. A lane uses only its own
//! shard, because the connection of another lane would wake that lane.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::task::AtomicWaker;
use http::{request, response};
use http_body::{Frame, SizeHint};
use hyper::client::conn::http2;
use hyper::rt::ReadBufCursor;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use crate::edge_state::EdgeState;
use crate::http::request_body::RequestBody;
use crate::http1::client::{Http1Client, Http1ClientError};
use crate::lanes;
use crate::overload::Level;
use crate::upstream::connector::Connector;
use crate::upstream::handover::Handover;
use crate::upstream::url::{DialError, UpWire, Upstream};

const SHARDS: usize = 8;
/// Maximum number of idle connections per shard, normally and under load.
const IDLE_MAX: usize = 256;
const IDLE_WHEN_BUSY_MAX: usize = IDLE_MAX / 2;
/// How often in a row a connection passes directly to the next waiting request. After that its stream ends,
/// so that requests for other endpoints of the same agent get their turn.
const HANDOVERS_MAX: u8 = 64;
/// How long an idle connection is kept.
const IDLE_FOR: Duration = Duration::from_secs(60);
/// How long an upstream is skipped after a failed connection, if another upstream is available.
const PASSED_OVER_FOR: Duration = Duration::from_secs(5);
/// How long a new HTTP/2 connection waits for the upstream's SETTINGS.
const SETTINGS_WITHIN: Duration = Duration::from_secs(2);
/// Receive windows of HTTP/2 streams and connections. The connection's window is large enough that 1,024
/// clients which read nothing leave the others their share. The library also derives from it how many small
/// frames may wait unread before it closes the connection.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1_024 * STREAM_WINDOW;
/// How often a new connection checks whether SETTINGS have arrived.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The stream limit of a new connection before the upstream's SETTINGS.
const NOT_SAID: usize = usize::MAX - 1;
/// Maximum number of HTTP/2 connections to one upstream. At the limit, requests wait for a free stream.
const HTTP2_CONNECTIONS_MAX: usize = 64;

/// The connections to one upstream.
#[derive(Debug)]
#[allow(
    clippy::vec_box,
    reason = "a lease takes the box, and what is in it is large"
)]
pub(crate) struct Pool {
    upstream: Upstream,
    idle: [Mutex<Vec<Box<Http1>>>; SHARDS],
    idle_max: AtomicUsize,
    handover: Handover<Box<Http1>>,
    http2: ArcSwap<Vec<Arc<Http2>>>,
    /// When a further HTTP/2 connection last failed.
    http2_refused_at: ArcSwapOption<Instant>,
    /// When a connection last failed; cleared when one succeeds.
    failed_at: ArcSwapOption<Instant>,
    /// Held while an HTTP/2 connection is opened, so that only one is opened at a time.
    connecting: tokio::sync::Mutex<()>,
}

/// One HTTP/1 connection.
#[derive(Debug)]
pub(crate) struct Http1 {
    connection: Http1Client,
    has_served: bool,
    received: Arc<AtomicU64>,
    idle_since: Instant,
    /// Number of handovers since it was last idle.
    handovers: u8,
}

/// One HTTP/2 connection.
#[derive(Debug)]
struct Http2 {
    sender: http2::SendRequest<RequestBody>,
    has_served: AtomicBool,
    in_use: AtomicUsize,
    /// When the last stream ended, in milliseconds since the connection was opened.
    idle_since: AtomicU64,
    made_at: Instant,
    told: Arc<Told>,
}

/// Runs the tasks of the HTTP/2 library.
#[derive(Clone, Debug)]
struct StreamTasks(Arc<EdgeState>);

impl<F> hyper::rt::Executor<F> for StreamTasks
where
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.track(stream.map(drop));
    }
}

/// The upstream's SETTINGS. Only the connection's task can read them from the library, and it copies them
/// here.
#[derive(Debug)]
struct Told {
    /// Whether it supports extended CONNECT (RFC 8441).
    becomes: AtomicBool,
    /// Its limit of concurrent streams.
    streams: AtomicUsize,
    task: AtomicWaker,
}

impl Http2 {
    /// Another stream, if the limit allows it.
    fn stream(self: &Arc<Self>) -> Option<Http2Stream> {
        if self.sender.is_closed() {
            return None;
        }
        let most = self.told.streams.load(Ordering::Relaxed);
        let one_more = |in_use: usize| (in_use < most).then_some(in_use + 1);
        self.in_use
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
        Some(Http2Stream(Arc::clone(self)))
    }

    /// Another stream, which waits until the upstream has capacity.
    fn waiting_stream(self: &Arc<Self>) -> Http2Stream {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Http2Stream(Arc::clone(self))
    }

    /// Whether it has had no streams for the idle timeout.
    fn is_unused(&self) -> bool {
        let idle_since = Duration::from_millis(self.idle_since.load(Ordering::Relaxed));
        self.in_use.load(Ordering::Relaxed) == 0
            && self.made_at.elapsed().saturating_sub(idle_since) >= IDLE_FOR
    }
}

/// A stream of an HTTP/2 connection. It counts as in use until dropped.
#[derive(Debug)]
pub(crate) struct Http2Stream(Arc<Http2>);

impl Drop for Http2Stream {
    fn drop(&mut self) {
        let millis = u64::try_from(self.0.made_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.idle_since.store(millis, Ordering::Relaxed);
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream with a pending extended CONNECT.
#[derive(Debug)]
pub(crate) struct OnBecoming {
    becoming: OnUpgrade,
    stream: Option<Http2Stream>,
}

impl OnBecoming {
    pub(crate) fn new(becoming: OnUpgrade, stream: Http2Stream) -> Self {
        let stream = Some(stream);
        Self { becoming, stream }
    }
}

impl Future for OnBecoming {
    type Output = hyper::Result<Became>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let became = ready!(Pin::new(&mut self.becoming).poll(cx));
        let _stream = self.stream.take();
        Poll::Ready(became.map(|io| Became { io, _stream }))
    }
}

/// A stream after an extended CONNECT. It counts as in use until dropped.
#[derive(Debug)]
pub(crate) struct Became {
    io: Upgraded,
    _stream: Option<Http2Stream>,
}

impl hyper::rt::Read for Became {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl hyper::rt::Write for Became {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Sends a request over HTTP/2.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) sender: http2::SendRequest<RequestBody>,
    /// Whether the connection has served a request before.
    pub(crate) was_used: bool,
    pub(crate) stream: Http2Stream,
}

impl Link {
    /// Whether the upstream supports extended CONNECT, which only its first SETTINGS can announce.
    pub(crate) fn takes_streams(&self) -> bool {
        self.stream.0.told.becomes.load(Ordering::Acquire)
    }
}

/// An HTTP/1 connection leased to one exchange.
#[derive(Debug)]
pub(crate) struct Lease {
    link: Box<Http1>,
    pool: Arc<Pool>,
}

/// The result of sending a request.
#[derive(Debug)]
pub(crate) enum Sent {
    /// A response arrived.
    Answered(response::Parts),
    /// The connection was already closed and nothing was received, so the request can be sent again.
    Stale,
    /// The exchange failed.
    Failed(Http1ClientError, Heard),
}

/// Whether anything was received before an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    Something,
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Dial(DialError),
    #[error("the request failed: {0}")]
    Http1(#[from] Http1ClientError),
    #[error("the request failed: {0}")]
    Http2(#[from] hyper::Error),
    #[error("the agent's service closed the connection without a response: {0}")]
    Silent(Http1ClientError),
    #[error("the connection was closed, and the request cannot be repeated")]
    Closed,
    #[error("the response timed out")]
    TooSlow,
    #[error("the client did not send its request in time")]
    ClientTooSlow,
    #[error("the upstream does not support extended CONNECT")]
    Unsuited,
    #[error("{0}")]
    Unacceptable(&'static str),
}

impl Pool {
    pub(crate) fn new(upstream: Upstream) -> Self {
        Self {
            upstream,
            idle: std::array::from_fn(|_| Mutex::new(Vec::new())),
            idle_max: AtomicUsize::new(IDLE_MAX),
            handover: Handover::default(),
            http2: ArcSwap::default(),
            http2_refused_at: ArcSwapOption::empty(),
            failed_at: ArcSwapOption::empty(),
            connecting: tokio::sync::Mutex::new(()),
        }
    }

    pub(crate) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// An open connection that has served before, if there is one.
    pub(crate) fn reuse(self: &Arc<Self>, cx: &mut Context<'_>) -> Option<Lease> {
        for shard in self.shards() {
            while let Some(mut link) = shard.try_lock().ok().and_then(|mut idle| idle.pop()) {
                // Events that happened while it was idle show now.
                if link.connection.wire().resume() && link.connection.is_free(cx) {
                    return Some(Lease {
                        link,
                        pool: Arc::clone(self),
                    });
                }
            }
        }
        None
    }

    /// Opens a new connection within `limit`.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        connector: &Connector<'_>,
        limit: Duration,
    ) -> Result<Lease, Failure> {
        let wire = self.dial(connector, limit).await.map_err(Failure::Dial)?;
        Ok(self.lease(wire))
    }

    /// As [`Pool::connect`], but if agents have no capacity, waits until one has, or until another request
    /// hands over its connection.
    pub(crate) async fn connect_in_turn(
        self: &Arc<Self>,
        connector: &Connector<'_>,
        limit: Duration,
    ) -> Result<Lease, Failure> {
        let waiting = Waiting::enter(self);
        let mut dialled = pin!(self.dial_in_turn(connector, limit));
        loop {
            let mut link = tokio::select! {
                biased;
                wire = &mut dialled => return Ok(self.lease(wire.map_err(Failure::Dial)?)),
                link = waiting.0.handover.next() => link,
            };
            if poll_fn(|cx| Poll::Ready(link.connection.is_free(cx))).await {
                return Ok(Lease {
                    link,
                    pool: Arc::clone(self),
                });
            }
        }
    }

    fn lease(self: &Arc<Self>, wire: UpWire) -> Lease {
        let link = Box::new(Http1 {
            has_served: false,
            received: wire.received(),
            connection: Http1Client::new(wire),
            idle_since: Instant::now(),
            handovers: 0,
        });
        Lease {
            link,
            pool: Arc::clone(self),
        }
    }

    /// Opens a new connection within `limit`, for raw bytes or another protocol.
    pub(crate) async fn dial(
        &self,
        connector: &Connector<'_>,
        limit: Duration,
    ) -> Result<UpWire, DialError> {
        self.noted(connector.dial(&self.upstream, limit, false).await)
    }

    /// As [`Pool::dial`], but if agents have no capacity, waits until one has.
    pub(crate) async fn dial_in_turn(
        &self,
        connector: &Connector<'_>,
        limit: Duration,
    ) -> Result<UpWire, DialError> {
        self.noted(connector.dial(&self.upstream, limit, true).await)
    }

    fn noted(&self, dialled: Result<UpWire, DialError>) -> Result<UpWire, DialError> {
        match &dialled {
            // The agent is connected and will have capacity again.
            Err(error) if error.is_busy() => {}
            Ok(_) if self.failed_at.load().is_some() => self.failed_at.store(None),
            Ok(_) => {}
            Err(_) => self.failed_at.store(Some(Arc::new(Instant::now()))),
        }
        dialled
    }

    /// Whether the upstream counts as reachable.
    pub(crate) fn is_reachable(&self) -> bool {
        let failed_at = self.failed_at.load();
        failed_at
            .as_ref()
            .is_none_or(|at| at.elapsed() >= PASSED_OVER_FOR)
    }

    /// A stream of a shared HTTP/2 connection. If the existing ones are full, opens one within `limit`.
    pub(crate) async fn http2(
        &self,
        connector: &Connector<'_>,
        limit: Duration,
    ) -> Result<Link, Failure> {
        let stream = match self.http2_stream() {
            Some(stream) => stream,
            None => {
                let _one = self.connecting.lock().await;
                match self.http2_stream() {
                    Some(stream) => stream,
                    None => self.further_http2_stream(connector, limit).await?,
                }
            }
        };
        Ok(Link {
            sender: stream.0.sender.clone(),
            was_used: stream.0.has_served.swap(true, Ordering::Relaxed),
            stream,
        })
    }

    /// A stream of the first connection with capacity, so that later connections become idle. If no further
    /// connection is possible, the stream waits at the connection with the fewest streams.
    fn http2_stream(&self) -> Option<Http2Stream> {
        let all = self.http2.load();
        if let Some(stream) = all.iter().find_map(Http2::stream) {
            return Some(stream);
        }
        let refused_at = self.http2_refused_at.load();
        let is_recent = |at: &Arc<Instant>| at.elapsed() < PASSED_OVER_FOR;
        match all.len() >= HTTP2_CONNECTIONS_MAX || refused_at.as_ref().is_some_and(is_recent) {
            true => least_used(&all),
            false => None,
        }
    }

    /// Opens a connection and a stream on it.
    async fn further_http2_stream(
        &self,
        connector: &Connector<'_>,
        limit: Duration,
    ) -> Result<Http2Stream, Failure> {
        let is_first = least_used(&self.http2.load()).is_none();
        // Only the first connection waits for an agent without capacity.
        let wire = match is_first {
            true => self.dial_in_turn(connector, limit).await,
            false => self.dial(connector, limit).await,
        };
        let made = match wire {
            Ok(wire) => self.connect_http2(connector, wire).await,
            Err(error) => Err(Failure::Dial(error)),
        };
        let made = made.map(|made| made.stream().unwrap_or_else(|| made.waiting_stream()));
        made.or_else(|failure| {
            self.http2_refused_at.store(Some(Arc::new(Instant::now())));
            least_used(&self.http2.load()).ok_or(failure)
        })
    }

    /// Performs the HTTP/2 handshake and waits for the upstream's SETTINGS.
    async fn connect_http2(
        &self,
        connector: &Connector<'_>,
        wire: UpWire,
    ) -> Result<Arc<Http2>, Failure> {
        let edge = connector.edge;
        let (sender, connection) = http2::Builder::new(StreamTasks(Arc::clone(edge)))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(NOT_SAID)
            .max_frame_size(16 << 10)
            .max_header_list_size(64 << 10)
            // Responses that clients cancel are not the upstream's fault.
            .max_local_error_reset_streams(None)
            .handshake(TokioIo::new(wire))
            .await?;
        let told = Arc::new(Told {
            becomes: false.into(),
            streams: NOT_SAID.into(),
            task: AtomicWaker::new(),
        });
        let heard = Arc::clone(&told);
        edge.track(async move {
            let mut connection = std::pin::pin!(connection);
            let ended = poll_fn(|cx| {
                heard.task.register(cx.waker());
                let polled = connection.as_mut().poll(cx);
                let becomes = connection.is_extended_connect_protocol_enabled();
                let streams = connection.current_max_send_streams();
                heard.becomes.store(becomes, Ordering::Release);
                heard.streams.store(streams, Ordering::Release);
                polled
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "HTTP/2 connection to an upstream failed");
            }
        });
        let made_at = Instant::now();
        while told.streams.load(Ordering::Acquire) == NOT_SAID
            && made_at.elapsed() < SETTINGS_WITHIN
            && !sender.is_closed()
        {
            told.task.wake();
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let made = Arc::new(Http2 {
            sender,
            has_served: false.into(),
            in_use: 0.into(),
            idle_since: 0.into(),
            made_at,
            told,
        });
        let open = self.http2.load();
        let open = open.iter().filter(|other| !other.sender.is_closed());
        let all = open.chain([&made]).cloned().collect();
        self.http2.store(Arc::new(all));
        Ok(made)
    }

    /// Closes connections that exceeded the idle timeout, were closed by the upstream, or exceed the limit at
    /// this overload level.
    pub(crate) fn sweep(&self, level: Level) {
        let idle_max = match level {
            Level::Calm => IDLE_MAX,
            Level::Busy | Level::Tight | Level::Full => IDLE_WHEN_BUSY_MAX,
        };
        self.idle_max.store(idle_max, Ordering::Relaxed);
        self.sweep_http2();
        let mut cx = Context::from_waker(Waker::noop());
        for shard in &self.idle {
            let Ok(mut idle) = shard.try_lock() else {
                continue;
            };
            idle.retain_mut(|link| {
                link.connection.rest();
                link.idle_since.elapsed() < IDLE_FOR && link.connection.is_free(&mut cx)
            });
            // The longest idle ones are first.
            let excess = idle.len().saturating_sub(idle_max);
            idle.drain(..excess);
        }
    }

    /// Closes further HTTP/2 connections that are no longer needed.
    fn sweep_http2(&self) {
        let all = self.http2.load();
        if all.len() < 2 {
            return;
        }
        // Skips this while a connection is being opened, because the list is about to change.
        let Ok(_one) = self.connecting.try_lock() else {
            return;
        };
        let all = self.http2.load();
        let is_kept = |(nth, it): &(usize, &Arc<Http2>)| {
            !it.sender.is_closed() && (*nth == 0 || !it.is_unused())
        };
        let kept: Vec<_> = all.iter().enumerate().filter(is_kept).collect();
        if kept.len() < all.len() {
            let kept = kept.into_iter().map(|(_, it)| Arc::clone(it)).collect();
            self.http2.store(Arc::new(kept));
        }
    }

    /// The shards that this thread uses.
    fn shards(&self) -> impl Iterator<Item = &Mutex<Vec<Box<Http1>>>> {
        let looks_at = if lanes::is_here() { 1 } else { SHARDS };
        let order = self.idle.iter().cycle().skip(shard());
        order.take(looks_at)
    }

    /// Keeps a connection for later requests, if it is reusable.
    fn keep(&self, mut link: Box<Http1>) {
        let connection = &mut link.connection;
        if connection.is_complete() && connection.wire().rest() {
            self.put(link);
        } else if connection.is_over() {
            connection.wire().end();
        }
    }

    fn put(&self, mut link: Box<Http1>) {
        link.idle_since = Instant::now();
        link.handovers = 0;
        for shard in self.shards() {
            if let Ok(mut idle) = shard.try_lock() {
                if idle.len() < self.idle_max.load(Ordering::Relaxed) {
                    idle.push(link);
                }
                return;
            }
        }
    }
}

/// A request that waits for a connection of a pool.
struct Waiting<'a>(&'a Pool);

impl<'a> Waiting<'a> {
    fn enter(pool: &'a Pool) -> Self {
        pool.handover.enter();
        Self(pool)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        for link in self.0.handover.leave() {
            self.0.keep(link);
        }
    }
}

/// A waiting stream on the connection with the fewest streams, if there is a connection.
fn least_used(all: &[Arc<Http2>]) -> Option<Http2Stream> {
    let open = all.iter().filter(|it| !it.sender.is_closed());
    let least = open.min_by_key(|it| it.in_use.load(Ordering::Relaxed));
    least.map(Http2::waiting_stream)
}

/// The first shard that this thread tries.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
    }
    SHARD.with(|shard| match shard.get() {
        Some(number) => number,
        None => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            shard.set(Some(number));
            number
        }
    })
}

impl Lease {
    /// Sends a request and waits for the head of its response. Interim responses go to `inform`.
    pub(crate) async fn send(
        &mut self,
        head: &request::Parts,
        body: RequestBody,
        mut inform: impl FnMut(response::Parts),
    ) -> Sent {
        let link = &mut *self.link;
        let before = link.received.load(Ordering::Relaxed);
        let was_reused = std::mem::replace(&mut link.has_served, true);
        let connection = &mut link.connection;
        connection.start(head, body);
        let head = poll_fn(|cx| connection.poll_head(cx, &mut inform)).await;
        let is_silent = link.received.load(Ordering::Relaxed) == before;
        match head {
            Ok(head) => Sent::Answered(head),
            Err(Http1ClientError::Io(_) | Http1ClientError::Ended) if was_reused && is_silent => {
                Sent::Stale
            }
            Err(error) if is_silent => Sent::Failed(error, Heard::Nothing),
            Err(error) => Sent::Failed(error, Heard::Something),
        }
    }

    /// The next frame of the response's body.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1ClientError>>> {
        self.link.connection.poll_frame(cx)
    }

    /// Whether the response's body has been read completely.
    pub(crate) fn is_spent(&self) -> bool {
        self.link.connection.is_spent()
    }

    /// The remaining size of the response's body.
    pub(crate) fn size_hint(&self) -> SizeHint {
        self.link.connection.size_hint()
    }

    /// Ends a complete exchange and keeps the connection if it is reusable. A later lease checks whether it
    /// is still open.
    pub(crate) fn give_back(self) {
        let Self { mut link, pool } = self;
        if link.connection.is_complete() && link.handovers < HANDOVERS_MAX {
            link.handovers += 1;
            match pool.handover.give(link) {
                Some(own) => link = own,
                None => return,
            }
        }
        pool.keep(link);
    }

    /// Whether the connection has served an earlier request.
    pub(crate) fn was_used(&self) -> bool {
        self.link.has_served
    }

    /// The raw connection after an upgrade, and the bytes received after the 101.
    pub(crate) fn into_upgraded(self) -> (UpWire, Bytes) {
        self.link.connection.into_wire()
    }
}
