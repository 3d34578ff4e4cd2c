//! The last sends to each destination, as this node made them. They are in memory and empty after a restart.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use culvert_base::Timestamp;
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
    /// The last HTTP status; `None` if there was none.
    pub status: Option<u16>,
    /// The text of a failure, which has the begin of the answer, without secrets. Empty if all events were accepted.
    pub text: String,
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
