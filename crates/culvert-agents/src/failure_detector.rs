//! Detects failed runs of servers: those whose heartbeat has not changed for `SILENCE_MAX`, as observed by this
//! process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use culvert_base::{Ksuid, Timestamp};

/// A run whose heartbeat does not change for this long has failed.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(25);

/// If two polls are further apart than this, the failure detector restarts.
pub(crate) const GAP_MAX: Duration = Duration::from_secs(12);

/// The last heartbeat of each other run, and when this process first saw it.
#[derive(Debug, Default)]
pub(crate) struct FailureDetector {
    pub(crate) looked_at: Option<Instant>,
    pub runs: BTreeMap<String, (Timestamp, Instant)>,
}

impl FailureDetector {
    /// Starts a poll. After a gap, every run gets the full time again.
    pub(crate) fn begin(&mut self, now: Instant) {
        let is_gap = self
            .looked_at
            .is_some_and(|at| now.duration_since(at) > GAP_MAX);
        if is_gap {
            self.runs.clear();
        }
        self.looked_at = Some(now);
    }

    /// Whether the heartbeat of a run has been unchanged for too long.
    pub(crate) fn has_failed(&mut self, id: &str, wrote_at: Timestamp, now: Instant) -> bool {
        let seen = self.runs.entry(id.to_owned()).or_insert((wrote_at, now));
        if seen.0 != wrote_at {
            *seen = (wrote_at, now);
        }
        now.duration_since(seen.1) > SILENCE_MAX
    }

    /// Starts the silence of a run again.
    pub(crate) fn forget(&mut self, id: &str) {
        self.runs.remove(id);
    }

    pub(crate) fn forget_all_but(&mut self, there: &BTreeSet<String>) {
        self.runs.retain(|id, _| there.contains(id));
    }
}

/// The id of a run.
pub fn id_of(body: Ksuid) -> String {
    format!("agrun_{body}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_new_heartbeats_is_silent() {
        let (began, wrote) = (Instant::now(), Timestamp::from_unix_seconds(1));
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut failure_detector = FailureDetector::default();
        let mut look = |seconds: u64, wrote: Timestamp| {
            failure_detector.begin(after(seconds));
            failure_detector.has_failed("agrun_1", wrote, after(seconds))
        };
        // The written time does not matter.
        for seconds in (0..=25).step_by(5) {
            assert!(!look(seconds, wrote), "{seconds}");
        }
        assert!(look(30, wrote));
        let wrote = Timestamp::from_unix_seconds(2);
        assert!(!look(35, wrote));
        // The database was unavailable, and no run could write.
        assert!(!look(95, wrote));
        assert!(!look(100, wrote));
    }

    /// The times of heartbeats are those of a clock that jumps both ways. Only whether they change matters.
    #[test]
    fn a_clock_that_jumps_ends_no_run_and_keeps_none() {
        let began = Instant::now();
        let mut failure_detector = FailureDetector::default();
        let mut looks = 0;
        let mut look = |wrote: i64| {
            let now = began + Duration::from_secs(5 * looks);
            looks += 1;
            failure_detector.begin(now);
            let wrote = Timestamp::from_unix_seconds(wrote);
            failure_detector.has_failed("agrun_1", wrote, now)
        };
        for wrote in [100_000, 100_005, 5, 10, 900_000_000, 100_020, 100_025, 0] {
            assert!(!look(wrote), "{wrote}");
        }
        // Silent since a heartbeat from the future, or from the past.
        for wrote in [900_000_000, 7] {
            for n in 0..=5 {
                assert!(!look(wrote), "{wrote} {n}");
            }
            assert!(look(wrote), "{wrote}");
        }
    }
}
