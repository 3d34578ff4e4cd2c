//! The progress of a request's body: whether the client has to send more, and whether it is too slow.
//!
//! The task that reads the body ([`UploadMeter`]) and the task that waits for the response share an [`UploadProgress`].
//! The timeouts of the body apply until the response begins. After that the client may pause, as clients of
//! bidirectional streams do; gRPC clients may pause from the start.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use culvert_http::slow_reader::RATE_MIN;
use tokio::time::Instant;

/// The state that the reader of the body and the task that waits for the response share.
#[derive(Debug)]
pub struct UploadProgress {
    began: Instant,
    /// When waiting for the client began, in milliseconds since the start plus one; 0 if the edge does not wait.
    waits: AtomicU64,
    /// Whether the body is no longer read.
    is_over: AtomicBool,
    is_answered: AtomicBool,
    is_too_slow: AtomicBool,
    is_grpc: bool,
    /// When the body was complete.
    whole: OnceLock<Instant>,
}

/// What an exchange without a response waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The upstream: the request is complete, or the upstream reads no more of it.
    Upstream,
    /// More of the request's body, since this moment.
    Client(Instant),
    /// More of the request's body, since this moment, from a client that may pause.
    Stream(Instant),
}

impl UploadProgress {
    /// The progress of a body that begins now. `is_grpc` if its client may pause before the response.
    pub fn new(is_grpc: bool) -> Self {
        Self {
            began: Instant::now(),
            waits: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_answered: AtomicBool::new(false),
            is_too_slow: AtomicBool::new(false),
            is_grpc,
            whole: OnceLock::new(),
        }
    }

    /// When the whole body had arrived.
    pub fn whole_at(&self) -> Option<Instant> {
        self.whole.get().copied()
    }

    /// Whether the client may pause before the response.
    pub fn is_grpc(&self) -> bool {
        self.is_grpc
    }

    /// Reports that the response has begun.
    pub fn begin_response(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
    }

    /// Whether the body is no longer read.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Whether the body was aborted because the client was too slow.
    pub fn is_too_slow(&self) -> bool {
        self.is_too_slow.load(Ordering::Acquire)
    }

    /// What the exchange waits for.
    pub fn awaited(&self) -> Awaited {
        let waits = self.waits.load(Ordering::Relaxed);
        match waits.checked_sub(1) {
            _ if self.is_over() => Awaited::Upstream,
            None => Awaited::Upstream,
            Some(millis) => {
                let since = self.began + Duration::from_millis(millis);
                if self.is_grpc {
                    Awaited::Stream(since)
                } else {
                    Awaited::Client(since)
                }
            }
        }
    }

    /// Whether the client may pause.
    fn is_free(&self) -> bool {
        self.is_grpc || self.is_answered.load(Ordering::Relaxed)
    }
}

/// Reports the progress of a body to the task that waits for the response, and measures the rate of its client. Its drop
/// says that the body is no longer read.
#[derive(Debug)]
pub struct UploadMeter {
    progress: Arc<UploadProgress>,
    since: Option<Instant>,
    /// The waiting time since the last rate check, and the bytes in that time.
    waited: Duration,
    bytes: u64,
    check_after: Duration,
}

impl UploadMeter {
    /// Reports to `progress`. The rate is checked after each `check_after` of waiting.
    pub fn new(progress: Arc<UploadProgress>, check_after: Duration) -> Self {
        Self {
            progress,
            since: None,
            waited: Duration::ZERO,
            bytes: 0,
            check_after,
        }
    }

    /// Reports that the body is complete.
    pub fn complete(&self) {
        self.progress.whole.get_or_init(Instant::now);
    }

    /// Reports that the client has to send more.
    pub fn wait(&mut self) {
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            let millis = now
                .saturating_duration_since(self.progress.began)
                .as_millis();
            let millis = u64::try_from(millis).unwrap_or(u64::MAX - 1);
            self.progress.waits.store(millis + 1, Ordering::Relaxed);
        }
    }

    /// Counts received bytes. Returns `false` if the client was too slow.
    pub fn receive(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        let Some(since) = self.since.take() else {
            return true;
        };
        self.progress.waits.store(0, Ordering::Relaxed);
        self.waited += since.elapsed();
        if self.waited < self.check_after {
            return true;
        }
        let owed = u128::from(RATE_MIN) * self.waited.as_millis();
        let is_slow = u128::from(self.bytes) * 1_000 < owed && !self.progress.is_free();
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        if is_slow {
            self.progress.is_too_slow.store(true, Ordering::Release);
        }
        !is_slow
    }
}

impl Drop for UploadMeter {
    fn drop(&mut self) {
        self.progress.is_over.store(true, Ordering::Relaxed);
    }
}
