//! Measures how long writes take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long the last write counts if none is in progress.
const RECENT: Duration = Duration::from_secs(1);

/// The write latency of one writing task. Times are nanoseconds since it was created.
#[derive(Debug)]
pub(crate) struct WriteLatency {
    made: Instant,
    /// When the write in progress began, plus 1; 0 if there is none.
    began: AtomicU64,
    /// When the last write ended, and its duration.
    ended: AtomicU64,
    took: AtomicU64,
}

impl WriteLatency {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            made: now,
            began: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            took: AtomicU64::new(0),
        }
    }

    pub(crate) fn begin(&self, now: Instant) {
        self.began.store(self.at(now).max(1), Ordering::Relaxed);
    }

    pub(crate) fn end(&self, now: Instant) {
        let (now, began) = (self.at(now), self.began.swap(0, Ordering::Relaxed));
        self.took
            .store(now.saturating_sub(began), Ordering::Relaxed);
        self.ended.store(now, Ordering::Relaxed);
    }

    /// The duration of the write in progress so far or of the last write, whichever is longer.
    pub(crate) fn delay(&self, now: Instant) -> Duration {
        let now = self.at(now);
        let under_way = match self.began.load(Ordering::Relaxed) {
            0 => 0,
            began => now.saturating_sub(began),
        };
        let since = now.saturating_sub(self.ended.load(Ordering::Relaxed));
        let last = match Duration::from_nanos(since) < RECENT {
            true => self.took.load(Ordering::Relaxed),
            false => 0,
        };
        Duration::from_nanos(under_way.max(last))
    }

    fn at(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.made);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_while_it_lasts_and_for_a_moment_after() {
        let made = Instant::now();
        let at = |millis| made + Duration::from_millis(millis);
        let pace = WriteLatency::new(made);
        assert_eq!(pace.delay(at(500)), Duration::ZERO);
        pace.begin(at(10_000));
        assert_eq!(pace.delay(at(13_000)), Duration::from_secs(3));
        pace.end(at(13_000));
        assert_eq!(pace.delay(at(13_900)), Duration::from_secs(3));
        pace.begin(at(13_900));
        pace.end(at(13_950));
        assert_eq!(pace.delay(at(14_000)), Duration::from_millis(50));
        assert_eq!(pace.delay(at(14_950)), Duration::ZERO);
    }
}
