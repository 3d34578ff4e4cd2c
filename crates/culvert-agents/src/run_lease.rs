//! How long a run serves its agents while it cannot reach the database.
//!
//! The names of agents belong to their sessions in the database. A run that the other nodes find dead loses its sessions,
//! and later its names, which another owner may then take. So a run must know that it is still registered, or stop
//! serving before its names can be taken. It knows it from its own heartbeat, or from that of another node, which it asks
//! to write it. If every other node responds that it has no database either, no node can end the sessions of this run.
//!
//! Times are those of the monotonic clock.

use std::time::{Duration, Instant};

use culvert_tunnel::nodes::RunState;

use super::failure_detector::SILENCE_MAX;

/// How much earlier a run stops than its names may be taken: the interval of checks, and time to end connections.
const MARGIN: Duration = Duration::from_secs(2);
/// How long a run serves because no known node has the database. A node that starts during this time, reaches the
/// database and not this node, is not known here.
const OUTAGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The right of a run to serve its agents.
#[derive(Debug)]
pub struct RunLease {
    /// When the run was last known to be registered.
    confirmed_at: Instant,
    /// Until when it serves.
    until: Instant,
    /// How long it serves after it was known to be registered.
    kept: Duration,
    /// Whether it has stopped serving.
    is_over: bool,
    /// Whether other nodes write its heartbeat.
    is_helped: bool,
    /// Whether its last own heartbeat was written.
    has_database: bool,
}

/// What changed, to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Another node writes the heartbeat.
    Helped,
    /// This node writes its heartbeat again.
    Back,
}

impl RunLease {
    /// A lease of a run that registers `now`. Names are reserved for their owners for `names_kept` after a session ends.
    pub(crate) fn new(names_kept: Duration, now: Instant) -> Self {
        // A session ends when its run was silent for some time, or immediately if another process takes the name of its
        // node. The former is the usual case, and the latter needs the reservation.
        let kept = names_kept.max(SILENCE_MAX).saturating_sub(MARGIN);
        Self {
            confirmed_at: now,
            until: now + kept,
            kept,
            is_over: false,
            is_helped: false,
            has_database: true,
        }
    }

    /// Notes that this run wrote its heartbeat, which it began at `asked_at`.
    pub fn beat(&mut self, asked_at: Instant) -> Option<Change> {
        self.confirm(asked_at);
        self.is_over = false;
        self.has_database = true;
        std::mem::take(&mut self.is_helped).then_some(Change::Back)
    }

    /// Notes that this run could not write its heartbeat.
    pub(crate) fn missed(&mut self) {
        self.has_database = false;
    }

    /// Whether this run reached the database with its last heartbeat.
    pub(crate) fn has_database(&self) -> bool {
        self.has_database
    }

    /// Notes what the other nodes responded to a question of `asked_at`; `None` for no response. Returns whether the run
    /// was removed, and what changed.
    pub fn asked(
        &mut self,
        asked_at: Instant,
        states: &[Option<RunState>],
    ) -> (bool, Option<Change>) {
        if states.contains(&Some(RunState::Registered)) {
            self.confirm(asked_at);
            let is_new = !std::mem::replace(&mut self.is_helped, true);
            return (false, is_new.then_some(Change::Helped));
        }
        if states.contains(&Some(RunState::Removed)) {
            self.until = asked_at;
            return (true, None);
        }
        let is_outage = states
            .iter()
            .all(|state| *state == Some(RunState::NoDatabase));
        if is_outage {
            let longest = self.confirmed_at + OUTAGE_MAX;
            self.until = self.until.max((asked_at + self.kept).min(longest));
        }
        (false, None)
    }

    fn confirm(&mut self, at: Instant) {
        self.confirmed_at = at;
        self.until = at + self.kept;
    }

    /// Whether the run must stop serving now. True once.
    pub fn ends(&mut self, now: Instant) -> bool {
        now >= self.until && !std::mem::replace(&mut self.is_over, true)
    }

    /// Whether it has stopped serving.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(180);

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_run_knows_whether_it_reached_the_database_last() {
        let now = Instant::now();
        let mut lease = RunLease::new(KEPT, now);
        lease.beat(now);
        assert!(lease.has_database());
        lease.missed();
        assert!(!lease.has_database());
        lease.asked(now, &[Some(RunState::Registered)]);
        assert!(!lease.has_database(), "another node wrote it");
        lease.beat(now);
        assert!(lease.has_database());
    }

    #[test]
    fn a_run_serves_while_it_is_known_to_be_registered() {
        let began = Instant::now();
        let mut lease = RunLease::new(KEPT, began);
        assert!(!lease.ends(began + seconds(177)));
        assert_eq!(lease.beat(began + seconds(170)), None);
        assert!(!lease.ends(began + seconds(340)));
        let helped = [None, Some(RunState::NoDatabase), Some(RunState::Registered)];
        let at = began + seconds(340);
        assert_eq!(lease.asked(at, &helped), (false, Some(Change::Helped)));
        assert_eq!(lease.asked(at, &helped), (false, None));
        assert!(!lease.ends(at + seconds(177)));
        assert_eq!(lease.beat(at + seconds(177)), Some(Change::Back));
    }

    #[test]
    fn a_run_ends_before_its_names_can_be_taken() {
        for (kept, until) in [(KEPT, 178), (Duration::ZERO, 23)] {
            let began = Instant::now();
            let mut lease = RunLease::new(kept, began);
            // One node may have the database.
            let unknown = [Some(RunState::NoDatabase), None];
            for second in (0..until).step_by(5) {
                assert_eq!(
                    lease.asked(began + seconds(second), &unknown),
                    (false, None)
                );
                assert!(!lease.ends(began + seconds(second)));
            }
            assert!(!lease.is_over());
            assert!(lease.ends(began + seconds(until)));
            assert!(!lease.ends(began + seconds(until + 1)), "once");
            assert!(lease.is_over());
            lease.beat(began + seconds(until + 2));
            assert!(!lease.is_over());
        }
    }

    #[test]
    fn a_removed_run_ends_at_once() {
        let began = Instant::now();
        let mut lease = RunLease::new(KEPT, began);
        let removed = [None, Some(RunState::NoDatabase), Some(RunState::Removed)];
        let at = began + seconds(5);
        assert_eq!(lease.asked(at, &removed), (true, None));
        assert!(lease.ends(at));
    }

    #[test]
    fn an_outage_for_all_nodes_ends_no_run_for_a_day() {
        for others in [vec![], vec![Some(RunState::NoDatabase); 2]] {
            let began = Instant::now();
            let mut lease = RunLease::new(KEPT, began);
            let day = 24 * 3600;
            for second in (0..day).step_by(60) {
                lease.asked(began + seconds(second), &others);
                assert!(!lease.ends(began + seconds(second)), "{second}");
            }
            lease.asked(began + seconds(day), &others);
            assert!(lease.ends(began + seconds(day)));
        }
    }
}
