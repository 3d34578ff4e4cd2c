//! The schedule of the health checks of one upstream, and what their results mean.

use std::time::Duration;

use culvert_edge_config::{ActiveHealth, CheckReport};
use tokio::time::Instant;

/// A first check is not delayed by more than this.
const FIRST_WITHIN: Duration = Duration::from_secs(2);

/// The schedule and the results of the checks of one upstream.
#[derive(Debug, Default)]
pub(crate) struct CheckState {
    pub(crate) next_at: Option<Instant>,
    is_running: bool,
    /// Checks in a row that passed, or that did not.
    row: u32,
    /// Whether these passed.
    passes: bool,
    /// The list whose checks count. Results of one before it, which may come late, do not.
    list: u64,
    pub(crate) last: Option<CheckReport>,
}

impl CheckState {
    /// When the next check is due, unless one runs. `random` is from 0 to 1.
    pub(crate) fn due_at(
        &mut self,
        checks: &ActiveHealth,
        now: Instant,
        random: f64,
    ) -> Option<Instant> {
        if self.is_running {
            return None;
        }
        let first = || now + checks.interval.min(FIRST_WITHIN).mul_f64(random);
        Some(*self.next_at.get_or_insert_with(first))
    }

    /// Begins a check. Returns when the next one is due.
    pub(crate) fn begin(&mut self, checks: &ActiveHealth, now: Instant, random: f64) -> Instant {
        self.is_running = true;
        // So that many upstreams, and many nodes, do not check together.
        let next_at = now + checks.interval.mul_f64(0.9 + 0.2 * random);
        self.next_at = Some(next_at);
        next_at
    }

    /// Goes on with the checks of another list. They begin again if they differ from those before.
    pub(crate) fn pass_to(&mut self, list: u64, is_changed: bool) {
        self.list = list;
        if is_changed {
            *self = Self {
                list,
                is_running: self.is_running,
                ..Self::default()
            };
        }
    }

    /// No check runs any more.
    pub(crate) fn stop(&mut self) {
        self.is_running = false;
    }

    /// Notes a result of a list. Returns whether the upstream passes, or fails, once there were enough of them in a row.
    pub(crate) fn end(
        &mut self,
        list: u64,
        checks: &ActiveHealth,
        report: CheckReport,
    ) -> Option<bool> {
        if list != self.list {
            return None;
        }
        let passes = report.failure.is_empty();
        self.row = match self.passes == passes {
            true => self.row.saturating_add(1),
            false => 1,
        };
        self.passes = passes;
        self.last = Some(report);
        let enough = match passes {
            true => checks.healthy_threshold,
            false => checks.unhealthy_threshold,
        };
        (self.row >= enough).then_some(passes)
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::Timestamp;
    use culvert_edge_config::Probe;

    use super::*;

    const CHECKS: ActiveHealth = ActiveHealth {
        probe: Probe::Tcp,
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(1),
        healthy_threshold: 2,
        unhealthy_threshold: 3,
    };

    fn report(failure: &str) -> CheckReport {
        CheckReport {
            at: Timestamp::from_unix_seconds(1),
            duration: Duration::ZERO,
            failure: failure.to_owned(),
        }
    }

    #[test]
    fn results_in_a_row_decide() {
        let mut state = CheckState::default();
        let results = [
            ("", None),
            ("", Some(true)),
            ("refused", None),
            ("refused", None),
            ("", None),
            ("refused", None),
            ("refused", None),
            ("refused", Some(false)),
            ("refused", Some(false)),
            ("", None),
            ("", Some(true)),
        ];
        for (nth, (failure, decided)) in results.into_iter().enumerate() {
            assert_eq!(state.end(0, &CHECKS, report(failure)), decided, "{nth}");
        }
    }

    #[test]
    fn the_first_check_is_soon_and_the_others_follow_the_interval() {
        let now = Instant::now();
        let mut state = CheckState::default();
        let first = state.due_at(&CHECKS, now, 1.0).unwrap();
        assert_eq!(first - now, FIRST_WITHIN);
        assert_eq!(state.due_at(&CHECKS, now, 0.0), Some(first), "once chosen");
        let second = state.begin(&CHECKS, first, 0.5);
        assert_eq!(second - first, CHECKS.interval);
        assert_eq!(state.due_at(&CHECKS, first, 0.0), None, "it runs");
        state.end(0, &CHECKS, report(""));
        assert_eq!(state.due_at(&CHECKS, first, 0.0), None, "it still runs");
        state.stop();
        assert_eq!(state.due_at(&CHECKS, first, 0.0), Some(second));
    }

    /// A check that began before a change of the list ends after it.
    #[test]
    fn results_of_an_earlier_list_do_not_count() {
        let mut state = CheckState::default();
        state.pass_to(1, false);
        assert_eq!(state.end(1, &CHECKS, report("refused")), None);
        state.begin(&CHECKS, Instant::now(), 0.5);
        state.pass_to(2, true);
        assert!(state.last.is_none());
        assert_eq!(state.due_at(&CHECKS, Instant::now(), 0.5), None, "it runs");
        for _ in 0..5 {
            assert_eq!(state.end(1, &CHECKS, report("refused")), None);
        }
        assert!(state.last.is_none());
        state.stop();
        assert!(state.due_at(&CHECKS, Instant::now(), 0.5).is_some());
        assert_eq!(state.end(2, &CHECKS, report("")), None);
        assert_eq!(state.end(2, &CHECKS, report("")), Some(true));
    }
}
