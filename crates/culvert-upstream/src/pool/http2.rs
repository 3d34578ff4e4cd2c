//! HTTP/2 connections of a pool, shared by many exchanges, and connections that become streams of bytes.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::task::AtomicWaker;
use hyper::client::conn::http2;
use hyper::rt::ReadBufCursor;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout};

use super::{IDLE_FOR, PASSED_OVER_FOR, Pool, UpstreamError};
use crate::connector::Connector;
use crate::dial_error::DialError;
use crate::ports::{PoolOwner, UploadBody};
use crate::stream::UpstreamStream;

/// How long a new HTTP/2 connection waits for the upstream's SETTINGS.
const SETTINGS_WITHIN: Duration = Duration::from_secs(2);
/// Receive windows of HTTP/2 streams and connections. The connection's window is large enough that 1,024
/// clients which read nothing leave the others their share. The library also derives from it how many small
/// frames may wait unread before it closes the connection.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1_024 * STREAM_WINDOW;
/// Maximum number of streams of a connection, also if the upstream takes more. With [`RESETS_MAX`] it is below the 100 resets in a
/// row that servers take: clients that leave end no requests of others. It is also far below what the connection's window is for.
const STREAMS_MAX: usize = 64;
/// Streams that a connection may have reset, beyond those that it has completed, until requests use another one.
const RESETS_MAX: u32 = 32;
/// How often a new connection checks whether SETTINGS have arrived.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The stream limit of a new connection before the upstream's SETTINGS.
const UNKNOWN: usize = usize::MAX - 1;
/// Maximum number of HTTP/2 connections to one upstream. At the limit, requests wait for a free stream.
const HTTP2_CONNECTIONS_MAX: usize = 256;

/// One HTTP/2 connection.
#[derive(Debug)]
pub(super) struct Http2<B> {
    sender: http2::SendRequest<B>,
    has_served: AtomicBool,
    in_use: AtomicUsize,
    /// When the last stream ended, in milliseconds since the connection was opened.
    idle_since: AtomicU64,
    /// Streams that were reset, less those that were completed.
    resets: AtomicU32,
    made_at: Instant,
    settings: Arc<PeerSettings>,
    /// The address it leads to; `None` for agents.
    pub(super) peer: Option<IpAddr>,
    /// Whether it takes no further streams, as long as there is another connection.
    pub(super) is_retired: AtomicBool,
    _counted: Arc<()>,
}

impl<B: UploadBody> Http2<B> {
    /// Another stream, if the limit allows it.
    fn stream(self: &Arc<Self>) -> Option<Http2Stream<B>> {
        if self.sender.is_closed() || self.is_retired.load(Ordering::Relaxed) {
            return None;
        }
        let most = self.settings.streams_max.load(Ordering::Relaxed);
        let most = most.min(STREAMS_MAX);
        let one_more = |in_use: usize| (in_use < most).then_some(in_use + 1);
        self.in_use
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
        Some(Http2Stream::of(self))
    }

    /// Another stream, which waits until the upstream has capacity.
    fn waiting_stream(self: &Arc<Self>) -> Http2Stream<B> {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Http2Stream::of(self)
    }

    /// Whether it has served its last stream.
    fn is_over(&self) -> bool {
        let is_retired = self.is_retired.load(Ordering::Relaxed);
        self.sender.is_closed() || (is_retired && self.in_use.load(Ordering::Relaxed) == 0)
    }

    /// Whether it has had no streams for the idle timeout.
    fn is_unused(&self) -> bool {
        let idle_since = Duration::from_millis(self.idle_since.load(Ordering::Relaxed));
        self.in_use.load(Ordering::Relaxed) == 0
            && self.made_at.elapsed().saturating_sub(idle_since) >= IDLE_FOR
    }
}

/// Runs the tasks of the HTTP/2 library.
pub(crate) struct StreamTasks<E>(pub(crate) Arc<E>);

impl<E> Clone for StreamTasks<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E, F> hyper::rt::Executor<F> for StreamTasks<E>
where
    E: PoolOwner,
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.track(stream.map(drop));
    }
}

/// The upstream's SETTINGS. Only the connection's task can read them from the library, and it copies them
/// here.
#[derive(Debug)]
struct PeerSettings {
    /// Whether it supports extended CONNECT (RFC 8441).
    extended_connect: AtomicBool,
    /// Its limit of concurrent streams.
    streams_max: AtomicUsize,
    task: AtomicWaker,
}

/// A stream of an HTTP/2 connection. It counts as in use until dropped.
#[derive(Debug)]
pub struct Http2Stream<B> {
    connection: Arc<Http2<B>>,
    is_complete: bool,
}

impl<B> Http2Stream<B> {
    fn of(connection: &Arc<Http2<B>>) -> Self {
        Self {
            connection: Arc::clone(connection),
            is_complete: false,
        }
    }

    /// The whole response has arrived. A stream that is dropped before counts as one that was reset.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Lets no further requests use the connection: the upstream refuses them.
    pub fn retire(&self) {
        self.connection.is_retired.store(true, Ordering::Relaxed);
    }

    fn count_reset(&self) {
        let resets = &self.connection.resets;
        if !self.is_complete {
            if resets.fetch_add(1, Ordering::Relaxed) >= RESETS_MAX {
                self.retire();
            }
        } else if resets.load(Ordering::Relaxed) > 0 {
            let fewer = |resets: u32| resets.checked_sub(1);
            let _none = resets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
    }
}

impl<B> Drop for Http2Stream<B> {
    fn drop(&mut self) {
        self.count_reset();
        let it = &self.connection;
        let millis = u64::try_from(it.made_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        it.idle_since.store(millis, Ordering::Relaxed);
        it.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream with a pending extended CONNECT.
#[derive(Debug)]
pub struct PendingStream<B> {
    becoming: OnUpgrade,
    stream: Option<Http2Stream<B>>,
}

impl<B> PendingStream<B> {
    /// Waits for the response to the request on `stream`.
    pub fn new(becoming: OnUpgrade, stream: Http2Stream<B>) -> Self {
        let stream = Some(stream);
        Self { becoming, stream }
    }
}

impl<B> Future for PendingStream<B> {
    type Output = hyper::Result<ConnectedStream<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let became = ready!(Pin::new(&mut self.becoming).poll(cx));
        let mut _stream = self.stream.take();
        // However long it lasts, it is no request that was cancelled.
        if let Some(stream) = &mut _stream {
            stream.complete();
        }
        Poll::Ready(became.map(|io| ConnectedStream { io, _stream }))
    }
}

/// A stream after an extended CONNECT. It counts as in use until dropped.
#[derive(Debug)]
pub struct ConnectedStream<B> {
    io: Upgraded,
    _stream: Option<Http2Stream<B>>,
}

impl<B> hyper::rt::Read for ConnectedStream<B> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<B> hyper::rt::Write for ConnectedStream<B> {
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
pub struct Http2Sender<B> {
    /// Sends the request.
    pub sender: http2::SendRequest<B>,
    /// Whether the connection has served a request before.
    pub was_used: bool,
    /// The stream that the request uses.
    pub stream: Http2Stream<B>,
}

impl<B: UploadBody> Http2Sender<B> {
    fn of(stream: Http2Stream<B>) -> Self {
        Self {
            sender: stream.connection.sender.clone(),
            was_used: stream.connection.has_served.swap(true, Ordering::Relaxed),
            stream,
        }
    }

    /// Whether the upstream supports extended CONNECT, which only its first SETTINGS can announce.
    pub fn takes_streams(&self) -> bool {
        self.stream
            .connection
            .settings
            .extended_connect
            .load(Ordering::Acquire)
    }
}

impl<B: UploadBody> Pool<B> {
    /// A stream of a shared HTTP/2 connection. If the existing ones are full, opens one, or waits for the one that another
    /// request opens, within `limit`.
    ///
    /// # Errors
    ///
    /// The upstream cannot be connected to, or does not speak HTTP/2.
    pub async fn http2(
        &self,
        connector: &Connector<'_, impl PoolOwner>,
        limit: Duration,
    ) -> Result<Http2Sender<B>, UpstreamError> {
        let stream = match self.http2_stream() {
            Some(stream) => stream,
            None => {
                let turn = self.turn_to_connect(limit).await;
                match (self.http2_stream(), turn) {
                    (Some(stream), _) => stream,
                    (None, Ok(_turn)) => self.further_http2_stream(connector, limit).await?,
                    (None, Err(failure)) => return Err(failure),
                }
            }
        };
        Ok(Http2Sender::of(stream))
    }

    /// Waits for the turn to open a connection. Many requests may wait for those that others open, so the limit begins again
    /// with each connection that is opened; if there is none in this time, all that wait give up.
    async fn turn_to_connect(&self, limit: Duration) -> Result<MutexGuard<'_, ()>, UpstreamError> {
        loop {
            let since = Instant::now();
            if let Ok(turn) = timeout(limit, self.connecting.lock()).await {
                return Ok(turn);
            }
            let is_new = |one: &Arc<Http2<B>>| one.made_at >= since;
            if !self.http2.load().iter().any(is_new) {
                return Err(UpstreamError::Dial(DialError::TooSlow));
            }
        }
    }

    /// The only stream of a new HTTP/2 connection, which is opened within `limit` and closes after the exchange.
    ///
    /// # Errors
    ///
    /// The upstream cannot be connected to, or does not speak HTTP/2.
    pub async fn http2_alone(
        &self,
        connector: &Connector<'_, impl PoolOwner>,
        limit: Duration,
    ) -> Result<Http2Sender<B>, UpstreamError> {
        let wire = self.dial_in_turn(connector, limit).await;
        let wire = wire.map_err(UpstreamError::Dial)?;
        let made = handshake(connector, wire, &self.addresses.connections).await?;
        Ok(Http2Sender::of(made.waiting_stream()))
    }

    /// A stream of the first connection with capacity, so that later connections become idle. If no further
    /// connection is possible, the stream waits at the connection with the fewest streams.
    fn http2_stream(&self) -> Option<Http2Stream<B>> {
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
        connector: &Connector<'_, impl PoolOwner>,
        limit: Duration,
    ) -> Result<Http2Stream<B>, UpstreamError> {
        let is_first = least_used(&self.http2.load()).is_none();
        // Only the first connection waits for an agent without capacity.
        let wire = match is_first {
            true => self.dial_in_turn(connector, limit).await,
            false => self.dial(connector, limit).await,
        };
        let made = match wire {
            Ok(wire) => self.connect_http2(connector, wire).await,
            Err(error) => Err(UpstreamError::Dial(error)),
        };
        let made = made.map(|made| made.stream().unwrap_or_else(|| made.waiting_stream()));
        made.or_else(|failure| {
            self.http2_refused_at.store(Some(Arc::new(Instant::now())));
            least_used(&self.http2.load()).ok_or(failure)
        })
    }

    /// Opens a connection that later requests use too.
    async fn connect_http2(
        &self,
        connector: &Connector<'_, impl PoolOwner>,
        wire: UpstreamStream,
    ) -> Result<Arc<Http2<B>>, UpstreamError> {
        let made = handshake(connector, wire, &self.addresses.connections).await?;
        // The name may have changed since its lookup.
        if !self.addresses.has(made.peer) {
            made.is_retired.store(true, Ordering::Relaxed);
        }
        let open = self.http2.load();
        let open = open.iter().filter(|other| !other.is_over());
        let all = open.chain([&made]).cloned().collect();
        self.http2.store(Arc::new(all));
        Ok(made)
    }

    /// Closes further HTTP/2 connections that are no longer needed.
    pub(super) fn sweep_http2(&self) {
        let all = self.http2.load();
        if all.len() < 2 && !all.iter().any(|one| one.is_over()) {
            return;
        }
        // Skips this while a connection is being opened, because the list is about to change.
        let Ok(_one) = self.connecting.try_lock() else {
            return;
        };
        let all = self.http2.load();
        let is_kept =
            |(nth, it): &(usize, &Arc<Http2<B>>)| !it.is_over() && (*nth == 0 || !it.is_unused());
        let kept: Vec<_> = all.iter().enumerate().filter(is_kept).collect();
        if kept.len() < all.len() {
            let kept = kept.into_iter().map(|(_, it)| Arc::clone(it)).collect();
            self.http2.store(Arc::new(kept));
        }
    }
}

/// Performs the HTTP/2 handshake and waits for the upstream's SETTINGS.
async fn handshake<B: UploadBody>(
    connector: &Connector<'_, impl PoolOwner>,
    wire: UpstreamStream,
    connections: &Arc<()>,
) -> Result<Arc<Http2<B>>, UpstreamError> {
    let peer = wire.peer();
    let owner = connector.owner;
    let (sender, connection) = http2::Builder::new(StreamTasks(Arc::clone(owner)))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_max_send_streams(UNKNOWN)
        .max_frame_size(16 << 10)
        .max_header_list_size(64 << 10)
        // Responses that clients cancel are not the upstream's fault.
        .max_local_error_reset_streams(None)
        .handshake(TokioIo::new(wire))
        .await?;
    let settings = Arc::new(PeerSettings {
        extended_connect: false.into(),
        streams_max: UNKNOWN.into(),
        task: AtomicWaker::new(),
    });
    let heard = Arc::clone(&settings);
    owner.track(async move {
        let mut connection = std::pin::pin!(connection);
        let ended = poll_fn(|cx| {
            heard.task.register(cx.waker());
            let polled = connection.as_mut().poll(cx);
            let extended_connect = connection.is_extended_connect_protocol_enabled();
            let streams_max = connection.current_max_send_streams();
            heard
                .extended_connect
                .store(extended_connect, Ordering::Release);
            heard.streams_max.store(streams_max, Ordering::Release);
            polled
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "HTTP/2 connection to an upstream failed");
        }
    });
    let made_at = Instant::now();
    while settings.streams_max.load(Ordering::Acquire) == UNKNOWN
        && made_at.elapsed() < SETTINGS_WITHIN
        && !sender.is_closed()
    {
        settings.task.wake();
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(Arc::new(Http2 {
        sender,
        has_served: false.into(),
        in_use: 0.into(),
        idle_since: 0.into(),
        resets: 0.into(),
        made_at,
        settings,
        peer,
        is_retired: false.into(),
        _counted: Arc::clone(connections),
    }))
}

/// A waiting stream on the connection with the fewest streams, if there is a connection.
fn least_used<B: UploadBody>(all: &[Arc<Http2<B>>]) -> Option<Http2Stream<B>> {
    let open = all.iter().filter(|it| !it.sender.is_closed());
    let least = open.min_by_key(|it| {
        let is_retired = it.is_retired.load(Ordering::Relaxed);
        (is_retired, it.in_use.load(Ordering::Relaxed))
    });
    least.map(Http2::waiting_stream)
}
