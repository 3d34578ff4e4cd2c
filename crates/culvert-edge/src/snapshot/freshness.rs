//! How old the configuration is, and whether that is too old to serve.
//!
//! A node without the database does not learn of changes: an endpoint may have been deleted, its name may belong to
//! another owner, its policy may deny more. So after a limit it serves no endpoint at all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The age of the configuration. Times are those of the monotonic clock.
#[derive(Debug)]
pub(crate) struct Freshness {
    began: Instant,
    /// When the configuration was last known to be current, in milliseconds since `began`; [`NEVER`] if it cannot
    /// become outdated.
    current_at: AtomicU64,
    is_outdated: AtomicBool,
}

const NEVER: u64 = u64::MAX;

impl Freshness {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            began: now,
            current_at: AtomicU64::new(NEVER),
            is_outdated: AtomicBool::new(false),
        }
    }

    /// Notes that the configuration was current at this time. It is not younger than an earlier call said.
    pub(crate) fn confirm(&self, at: Instant) {
        let at = u64::try_from(at.saturating_duration_since(self.began).as_millis());
        let at = at.unwrap_or(NEVER - 1).min(NEVER - 1);
        let later = |before| (before == NEVER || before < at).then_some(at);
        // The error is that it was confirmed later.
        let _is_older = self
            .current_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// The time since the configuration was current; zero if it cannot become outdated.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        match self.current_at.load(Ordering::Relaxed) {
            NEVER => Duration::ZERO,
            at => (now - self.began).saturating_sub(Duration::from_millis(at)),
        }
    }

    /// Decides again whether it is too old; without a limit it never is. Returns the new decision if it differs.
    pub(crate) fn judge(&self, now: Instant, limit: Option<Duration>) -> Option<bool> {
        let is_outdated = limit.is_some_and(|limit| self.age(now) > limit);
        let before = self.is_outdated.swap(is_outdated, Ordering::Relaxed);
        (before != is_outdated).then_some(is_outdated)
    }

    /// Whether it is too old to serve.
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn a_configuration_is_outdated_after_the_limit_until_it_is_confirmed() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let freshness = Freshness::new(began);
        assert_eq!(freshness.judge(at(1_000), LIMIT), None, "never confirmed");
        freshness.confirm(at(1_000));
        freshness.confirm(at(900));
        assert_eq!(freshness.age(at(1_030)), Duration::from_secs(30));
        assert_eq!(freshness.judge(at(1_060), LIMIT), None);
        assert_eq!(freshness.judge(at(1_061), LIMIT), Some(true));
        assert_eq!(freshness.judge(at(1_062), LIMIT), None, "once");
        assert!(freshness.is_outdated());
        assert_eq!(freshness.judge(at(1_062), None), Some(false), "a reload");
        assert_eq!(freshness.judge(at(1_062), LIMIT), Some(true));
        freshness.confirm(at(1_063));
        assert_eq!(freshness.judge(at(1_063), LIMIT), Some(false));
        assert!(!freshness.is_outdated());
    }
}
