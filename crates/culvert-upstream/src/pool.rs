//! Reuse of connections to one upstream.
//!
//! An HTTP/1 connection has no task: the task of the exchange that leases it moves its bytes, so a request
//! never changes tasks. The connection is kept only if request and response were complete and nothing else
//! was received; otherwise it is closed. An HTTP/2 connection is shared, and a task of the edge drives it.
//! Another one is opened only when the existing ones carry as many streams as the upstream allows.
//!
//! Idle connections are spread over shards, which are locked with `try_lock` only. A thread uses only its own
//! shard, because the connection of another thread would wake that thread.

mod addresses;
mod handover;
mod http1;
mod http2;
mod probe;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::time::Instant;

use self::addresses::CurrentAddresses;
use self::handover::Handover;
use self::http1::Http1;
pub use self::http1::{Lease, Received, SendResult};
use self::http2::Http2;
use self::http2::StreamTasks;
pub use self::http2::{Http2Sender, Http2Stream, PendingStream};
pub use self::probe::{HttpProbe, Probe, ProbeFailure};
use crate::connector::Connector;
use crate::dial_error::DialError;
use crate::http1_client::Http1ClientError;
use crate::ports::{PoolOwner, UploadBody};
use crate::stream::UpstreamStream;
use crate::upstream::Upstream;

const SHARDS: usize = 8;
/// Maximum number of idle connections per shard, normally and under load.
const IDLE_MAX: usize = 256;
const IDLE_WHEN_BUSY_MAX: usize = IDLE_MAX / 2;
/// How long an idle connection is kept.
const IDLE_FOR: Duration = Duration::from_secs(60);
/// How often failed connections are logged.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// How long an upstream is skipped after a failed connection, if another upstream is available.
const PASSED_OVER_FOR: Duration = Duration::from_secs(5);

/// The connections to one upstream.
#[derive(Debug)]
#[allow(
    clippy::vec_box,
    reason = "a lease takes the box, and its content is large"
)]
pub struct Pool<B> {
    upstream: Upstream,
    /// The upstream as text, for events.
    name: Box<str>,
    idle: [Mutex<Vec<Box<Http1<B>>>>; SHARDS],
    idle_max: AtomicUsize,
    handover: Handover<Box<Http1<B>>>,
    http2: ArcSwap<Vec<Arc<Http2<B>>>>,
    /// When a further HTTP/2 connection last failed.
    http2_refused_at: ArcSwapOption<Instant>,
    /// When a connection last failed; cleared when one succeeds.
    failed_at: ArcSwapOption<Instant>,
    /// When a failure was last logged.
    logged_at: ArcSwapOption<Instant>,
    created: Instant,
    /// When it last sent more than a response, in milliseconds since its creation plus one; 0 for never.
    excess_at: AtomicU64,
    /// Held while an HTTP/2 connection is opened, so that only one is opened at a time.
    connecting: tokio::sync::Mutex<()>,
    addresses: CurrentAddresses,
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The upstream cannot be connected to.
    #[error("{0}")]
    Dial(DialError),
    /// The exchange over HTTP/1 failed.
    #[error("the request failed: {0}")]
    Http1(#[from] Http1ClientError),
    /// The exchange over HTTP/2 failed.
    #[error("the request failed: {0}")]
    Http2(#[from] hyper::Error),
    /// The service behind an agent closed the connection without a response.
    #[error("the agent's service closed the connection without a response: {0}")]
    Silent(#[source] Http1ClientError),
    /// The connection was closed, and the request cannot be repeated.
    #[error("the connection was closed, and the request cannot be repeated")]
    Closed,
    /// The response did not begin in time.
    #[error("the response timed out")]
    TooSlow,
    /// The client did not send its request in time.
    #[error("the client did not send its request in time")]
    ClientTooSlow,
    /// The upstream does not support extended CONNECT.
    #[error("the upstream does not support extended CONNECT")]
    Unsuited,
    /// The upstream has as many requests in flight as its limit allows.
    #[error("the upstream has reached its limit of requests in flight")]
    Full,
    /// The request or its response is not acceptable.
    #[error("{0}")]
    Unacceptable(&'static str),
}

impl<B: UploadBody> Pool<B> {
    /// A pool without connections.
    pub fn new(upstream: Upstream) -> Self {
        Self {
            name: upstream.to_string().into(),
            upstream,
            idle: std::array::from_fn(|_| Mutex::new(Vec::new())),
            idle_max: AtomicUsize::new(IDLE_MAX),
            handover: Handover::default(),
            http2: ArcSwap::default(),
            http2_refused_at: ArcSwapOption::empty(),
            failed_at: ArcSwapOption::empty(),
            logged_at: ArcSwapOption::empty(),
            created: Instant::now(),
            excess_at: AtomicU64::new(0),
            connecting: tokio::sync::Mutex::new(()),
            addresses: CurrentAddresses::default(),
        }
    }

    /// Where its connections lead, as text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its connections lead.
    #[inline]
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Opens a new connection within `limit`, for raw bytes or another protocol.
    ///
    /// # Errors
    ///
    /// The upstream cannot be connected to.
    pub async fn dial(
        &self,
        connector: &Connector<'_, impl PoolOwner>,
        limit: Duration,
    ) -> Result<UpstreamStream, DialError> {
        self.noted(connector.dial(&self.upstream, limit, false).await)
    }

    /// As [`Pool::dial`], but if agents have no capacity, waits until one has.
    ///
    /// # Errors
    ///
    /// The upstream cannot be connected to.
    pub async fn dial_in_turn(
        &self,
        connector: &Connector<'_, impl PoolOwner>,
        limit: Duration,
    ) -> Result<UpstreamStream, DialError> {
        self.noted(connector.dial(&self.upstream, limit, true).await)
    }

    fn noted(
        &self,
        dialled: Result<UpstreamStream, DialError>,
    ) -> Result<UpstreamStream, DialError> {
        match &dialled {
            // The agent is connected and will have capacity again.
            Err(error) if error.is_busy() => {}
            // Other endpoints use the pool too, and may have what this one lacks.
            Err(error) if error.is_local() => {}
            // Stored only if it changes: threads share this.
            Ok(_) if self.failed_at.load().is_some() => self.failed_at.store(None),
            Ok(_) => {}
            Err(error) => {
                self.failed_at.store(Some(Arc::new(Instant::now())));
                self.log(error);
            }
        }
        dialled
    }

    /// Logs why there is no connection, once in a while. That no agent is there is not a failure.
    fn log(&self, error: &DialError) {
        if matches!(error, DialError::Agent(_)) {
            return;
        }
        let logged_at = self.logged_at.load();
        let is_due = |at: &Arc<Instant>| at.elapsed() >= LOGGED_EVERY;
        if logged_at.as_ref().is_none_or(is_due) {
            self.logged_at.store(Some(Arc::new(Instant::now())));
            tracing::warn!(upstream = %self.name, %error, "no connection to an upstream");
        }
    }

    /// Whether the upstream counts as reachable.
    pub fn is_reachable(&self) -> bool {
        let failed_at = self.failed_at.load();
        failed_at
            .as_ref()
            .is_none_or(|at| at.elapsed() >= PASSED_OVER_FOR)
    }

    /// Closes connections that exceeded the idle timeout, were closed by the upstream, or exceed the limit, which is
    /// lower while this process is overloaded.
    pub fn sweep(&self, is_overloaded: bool) {
        let idle_max = match is_overloaded {
            false => IDLE_MAX,
            true => IDLE_WHEN_BUSY_MAX,
        };
        self.idle_max.store(idle_max, Ordering::Relaxed);
        self.sweep_http2();
        let mut cx = Context::from_waker(Waker::noop());
        let now = Instant::now();
        for shard in &self.idle {
            // A thread uses it now. The next sweep visits it again.
            let Ok(mut idle) = shard.try_lock() else {
                continue;
            };
            idle.retain_mut(|link| {
                link.connection.free_buffers();
                // The first sweep that finds it idle sets the time, so that requests need not read the clock.
                let since = *link.idle_since.get_or_insert(now);
                now.saturating_duration_since(since) < IDLE_FOR
                    && self.is_current(link)
                    && self.is_free(link, &mut cx)
            });
            // The longest idle ones are first.
            let excess = idle.len().saturating_sub(idle_max);
            idle.drain(..excess);
        }
    }
}
