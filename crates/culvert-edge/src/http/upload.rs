//! How a client sends the body of its request: whether it is waited for, and whether it is too slow.
//!
//! The body may be read by another task than the one that waits for the answer, so what both must know is
//! here. A client owes its body until the answer begins. From then on it may pause as it likes, as clients
//! of streams in both directions do; those of gRPC may from the start.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use culvert_http::slow_reader::RATE_MIN;
use tokio::time::Instant;

/// How much of a body may still come, and whether more came.
#[derive(Debug)]
pub(crate) struct Cap {
    pub(crate) left: u64,
    pub(crate) is_over: Arc<AtomicBool>,
}

/// What the reader of a request's body and the one who waits for the answer share.
#[derive(Debug)]
pub(crate) struct UploadPace {
    began: Instant,
    /// Since when the client is waited for, in milliseconds from the beginning and one; 0 if it is not.
    waits: AtomicU64,
    /// Whether nothing more of the body is read.
    is_over: AtomicBool,
    is_answered: AtomicBool,
    is_too_slow: AtomicBool,
    is_grpc: bool,
    /// When the whole body had arrived.
    whole: OnceLock<Instant>,
}

/// What an exchange without an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The upstream: the request is whole, or the upstream takes no more of it.
    Upstream,
    /// More of the request's body, since this moment.
    Client(Instant),
    /// The same, from a client that may pause as it likes.
    Stream(Instant),
}

impl UploadPace {
    pub(crate) fn new(is_grpc: bool) -> Self {
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
    pub(crate) fn whole_at(&self) -> Option<Instant> {
        self.whole.get().copied()
    }

    pub(crate) fn is_grpc(&self) -> bool {
        self.is_grpc
    }

    /// The answer has begun.
    pub(crate) fn answered(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
    }

    /// Whether nothing more of it is read.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Whether the body broke off because it came too slowly.
    pub(crate) fn is_too_slow(&self) -> bool {
        self.is_too_slow.load(Ordering::Acquire)
    }

    /// What is waited for.
    pub(crate) fn awaited(&self) -> Awaited {
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

    /// Whether the client may send as slowly as it likes.
    fn is_free(&self) -> bool {
        self.is_grpc || self.is_answered.load(Ordering::Relaxed)
    }
}

/// The end of it that reads.
#[derive(Debug)]
pub(crate) struct UploadWatch {
    pace: Arc<UploadPace>,
    since: Option<Instant>,
    /// How long the client was waited for since the rate was last judged, and what it sent meanwhile.
    waited: Duration,
    bytes: u64,
    judged_over: Duration,
}

impl UploadWatch {
    /// The rate is judged over `judged_over` of waiting.
    pub(crate) fn new(pace: Arc<UploadPace>, judged_over: Duration) -> Self {
        Self {
            pace,
            since: None,
            waited: Duration::ZERO,
            bytes: 0,
            judged_over,
        }
    }

    /// The whole body has come.
    pub(crate) fn is_whole(&self) {
        self.pace.whole.get_or_init(Instant::now);
    }

    /// The client has to send more.
    pub(crate) fn waits(&mut self) {
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            let millis = now.saturating_duration_since(self.pace.began).as_millis();
            let millis = u64::try_from(millis).unwrap_or(u64::MAX - 1);
            self.pace.waits.store(millis + 1, Ordering::Relaxed);
        }
    }

    /// So many bytes came. False when the client was too slow.
    pub(crate) fn came(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        let Some(since) = self.since.take() else {
            return true;
        };
        self.pace.waits.store(0, Ordering::Relaxed);
        self.waited += since.elapsed();
        if self.waited < self.judged_over {
            return true;
        }
        let owed = u128::from(RATE_MIN) * self.waited.as_millis();
        let is_slow = u128::from(self.bytes) * 1_000 < owed && !self.pace.is_free();
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        if is_slow {
            self.pace.is_too_slow.store(true, Ordering::Release);
        }
        !is_slow
    }
}

impl Drop for UploadWatch {
    fn drop(&mut self) {
        self.pace.is_over.store(true, Ordering::Relaxed);
    }
}
