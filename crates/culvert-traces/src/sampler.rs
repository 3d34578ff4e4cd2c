//! Which requests are recorded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::context::TraceId;

/// Which requests are recorded, if no caller has decided it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample {
    /// A share of them, from 0 to 1.
    Share(f64),
    /// Those for which an expression holds. The edge evaluates it.
    Condition,
}

/// A share of all numbers of 56 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share(u64);

/// The bits of a trace ID that are random (level 2, 3.2.2.3.1).
const RANDOM_BITS: u32 = 56;

impl Share {
    pub(crate) fn new(share: f64) -> Self {
        let all = (1_u64 << RANDOM_BITS) as f64;
        Self((share.clamp(0.0, 1.0) * all) as u64)
    }

    /// Whether a trace is among the share: the same for all who decide by its ID.
    pub(crate) fn has(self, id: &TraceId) -> bool {
        let last = id.last_chunk().copied().unwrap_or([0_u8; 8]);
        u64::from_be_bytes(last) << (64 - RANDOM_BITS) >> (64 - RANDOM_BITS) < self.0
    }
}

/// How many requests in each second are recorded because strangers ask for it.
#[derive(Debug)]
pub(crate) struct Strangers {
    began: Instant,
    /// Time between two of them; `None` if there are none.
    every: Option<Duration>,
    /// When the allowance is unused again, in nanoseconds since `began`.
    until: AtomicU64,
}

/// The allowance that may be used without a pause.
const BURST: Duration = Duration::from_secs(1);

impl Strangers {
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        Self {
            began: now,
            every: Duration::from_secs(1).checked_div(per_second),
            until: AtomicU64::new(0),
        }
    }

    /// Takes one of the allowance. False if it is used up.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let Some(every) = self.every.map(nanos) else {
            return false;
        };
        let now = nanos(now.saturating_duration_since(self.began));
        let next = |until: u64| {
            let next = until.max(now).saturating_add(every);
            (next.saturating_sub(now) <= nanos(BURST)).then_some(next)
        };
        self.until
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_that_of_the_ids() {
        let id = |n: u64| {
            let mut id = [7; 16];
            // Bits that are not random do not count.
            id[8..].copy_from_slice(&(n | 0xff << 56).to_be_bytes());
            id
        };
        assert!(Share::new(1.0).has(&id((1 << 56) - 1)));
        assert!(!Share::new(0.0).has(&id(0)));
        let half = Share::new(0.5);
        assert!(half.has(&id((1 << 55) - 1)) && !half.has(&id(1 << 55)));
    }

    #[test]
    fn strangers_have_an_allowance_for_each_second() {
        let now = Instant::now();
        let strangers = Strangers::new(10, now);
        let taken = |at: Instant| (0..100).filter(|_| strangers.take(at)).count();
        assert_eq!(taken(now), 10);
        assert_eq!(taken(now + Duration::from_millis(300)), 3);
        // An unused allowance does not add up.
        assert_eq!(taken(now + Duration::from_secs(60)), 10);
        assert!(!Strangers::new(0, now).take(now));
    }
}
