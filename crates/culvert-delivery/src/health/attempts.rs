//! The last sends to each destination, as this node made them. They are in memory and empty after a restart.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use culvert_base::Timestamp;
use culvert_target::failure::Failure;
use serde::{Deserialize, Serialize};

/// Maximum number of attempts of a destination that a node remembers, and that a list shows.
pub(crate) const ATTEMPTS_MAX: usize = 100;

/// One send to a destination.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Attempt {
    /// When it ended.
    pub at: Timestamp,
    /// How long it took.
    pub duration_ms: u64,
    /// 1 for the first attempt with these events.
    pub attempt: u32,
    /// `audit` or `traffic`.
    pub class: String,
    /// Number of events.
    pub events: u64,
    /// ID of the first event; `None` if it was an object of several batches.
    pub event_id: Option<String>,
    /// `delivered`, `partial`, or the class of the failure.
    pub outcome: String,
    /// The HTTP status of the first failure, or else the last one; `None` if there was none.
    pub status: Option<u16>,
    /// The text of a failure, which has the begin of the answer, without secrets. Empty if all events were accepted.
    pub text: String,
}

/// The HTTP status of an attempt. The last response may be about another event than the one that failed, which has its own.
pub(crate) fn status_of(last: Option<u16>, failure: Option<&Failure>) -> Option<u16> {
    let of_failure = failure.and_then(|failure| failure.status);
    let of_failure = of_failure.filter(|status| (100..600).contains(status));
    last.map(|last| of_failure.unwrap_or(last))
}

/// The newest attempts to one destination.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// The oldest first.
    newest: Mutex<VecDeque<Attempt>>,
}

impl Attempts {
    pub(crate) fn push(&self, attempt: Attempt) {
        let mut attempts = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if attempts.len() >= ATTEMPTS_MAX {
            attempts.pop_front();
        }
        attempts.push_back(attempt);
    }

    /// At most `count`, the newest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<Attempt> {
        let attempts = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.iter().rev().take(count).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_has_the_status_of_the_event_that_failed() {
        use culvert_target::failure::FailureClass;

        let of = |code: &str, status| Failure {
            status,
            ..Failure::new(FailureClass::Permanent, code, "no")
        };
        assert_eq!(status_of(Some(200), Some(&of("418", Some(418)))), Some(418));
        assert_eq!(status_of(Some(200), None), Some(200));
        assert_eq!(
            status_of(Some(200), Some(&of("AccessDenied", None))),
            Some(200)
        );
        // The code of the vendor is another number.
        assert_eq!(status_of(Some(500), Some(&of("241", Some(500)))), Some(500));
        assert_eq!(status_of(Some(500), Some(&of("241", None))), Some(500));
        // Not HTTP.
        assert_eq!(status_of(None, Some(&of("418", None))), None);
    }

    #[test]
    fn the_newest_attempts_are_remembered() {
        let attempts = Attempts::default();
        for number in 0..150 {
            attempts.push(Attempt {
                at: Timestamp::default(),
                duration_ms: 0,
                attempt: number,
                class: String::new(),
                events: 1,
                event_id: None,
                outcome: String::new(),
                status: None,
                text: String::new(),
            });
        }
        let numbers = |count| -> Vec<u32> {
            let newest = attempts.newest(count);
            newest.iter().map(|one| one.attempt).collect()
        };
        assert_eq!(numbers(2), [149, 148]);
        assert_eq!(numbers(1000).len(), ATTEMPTS_MAX);
        assert_eq!(numbers(1000).last(), Some(&50));
    }
}
