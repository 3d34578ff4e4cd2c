//! The share of requests that may be sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use culvert_edge_config::Retries;

/// What one retry costs. A request adds its share in percent.
const PER_RETRY: u32 = 100;
const FULL: u32 = Retries::RESERVE * PER_RETRY;

/// The rest of the budget, in hundredths of a retry.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Shared with the budget that it continues: requests that began before a change of the list spend from it too.
    left: Arc<AtomicU32>,
    percent: u32,
}

impl Budget {
    /// A budget to which each request adds `percent` of a retry. It goes on with the rest of `before`, and is full without one.
    pub(crate) fn new(percent: u8, before: Option<&Self>) -> Self {
        Self {
            left: before.map_or_else(
                || Arc::new(AtomicU32::new(FULL)),
                |before| Arc::clone(&before.left),
            ),
            percent: u32::from(percent),
        }
    }

    /// A request has arrived.
    pub(crate) fn earn(&self) {
        // A full one is only read, so threads that serve requests do not contend.
        if self.percent > 0 && self.left.load(Ordering::Relaxed) < FULL {
            self.left.fetch_add(self.percent, Ordering::Relaxed);
        }
    }

    /// Takes one retry; `false` if none is left.
    pub(crate) fn spend(&self) -> bool {
        if self.percent == 0 {
            return false;
        }
        let spent = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(PER_RETRY)
            });
        spent.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(budget: &Budget) -> u32 {
        let mut count = 0;
        while budget.spend() {
            count += 1;
        }
        count
    }

    #[test]
    fn a_share_of_the_requests_is_sent_again() {
        let budget = Budget::new(20, None);
        assert_eq!(spent(&budget), Retries::RESERVE);
        for _ in 0..50 {
            budget.earn();
        }
        assert_eq!(spent(&budget), 10);
    }

    #[test]
    fn it_never_holds_more_than_the_reserve() {
        let budget = Budget::new(100, None);
        for _ in 0..10_000 {
            budget.earn();
        }
        assert_eq!(spent(&budget), Retries::RESERVE);
    }

    #[test]
    fn another_share_does_not_fill_it() {
        let before = Budget::new(20, None);
        assert_eq!(spent(&before), Retries::RESERVE);
        let none = Budget::new(0, Some(&before));
        assert!(!none.spend());
        let after = Budget::new(50, Some(&none));
        assert!(!after.spend());
        for _ in 0..4 {
            after.earn();
        }
        // A request that began before the change takes its retry from the same budget.
        assert!(before.spend());
        assert_eq!(spent(&after), 1);
    }

    #[test]
    fn no_share_is_no_retry() {
        let budget = Budget::new(0, None);
        budget.earn();
        assert!(!budget.spend());
    }
}
