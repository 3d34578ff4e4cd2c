//! Health checks of upstreams: which are due, and their results.
//!
//! Each process checks for itself. A check opens a connection of its own, so it sees whether the upstream takes new ones.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{Clock, Entropy, FairPermits, Share};
use culvert_edge_config::{ActiveHealth, CheckReport, UpstreamStatus};
use culvert_upstream::Network;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::edge::edge_state::EdgeState;
use crate::pools::{Connector, TargetSet};

/// Most checks that run at one time. An owner has a share of them; its others wait, and so come later.
const RUNNING_MAX: usize = 256;
/// Shortest time from one look for due checks to the next.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A first check is not delayed by more than this.
const FIRST_WITHIN: Duration = Duration::from_secs(2);
/// Longest time from one look to the next.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(3_600);

/// The endpoints with several upstreams, and the checks of those that have some.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    sets: Mutex<HashMap<String, Arc<TargetSet>>>,
    changed: Notify,
}

/// The schedule and the results of the checks of one upstream.
#[derive(Debug, Default)]
pub(crate) struct CheckState {
    next_at: Option<Instant>,
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
    fn due_at(&mut self, checks: &ActiveHealth, now: Instant, random: f64) -> Option<Instant> {
        if self.is_running {
            return None;
        }
        let first = || now + checks.interval.min(FIRST_WITHIN).mul_f64(random);
        Some(*self.next_at.get_or_insert_with(first))
    }

    /// Begins a check. Returns when the next one is due.
    fn begin(&mut self, checks: &ActiveHealth, now: Instant, random: f64) -> Instant {
        self.is_running = true;
        // So that many upstreams, and many nodes, do not check together.
        let next_at = now + checks.interval.mul_f64(0.9 + 0.2 * random);
        self.next_at = Some(next_at);
        next_at
    }

    /// Goes on with the checks of another list. They begin anew if they differ from those before.
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

    /// Notes a result of a list. Returns whether the upstream passes, or fails, once there were enough of them in a row.
    pub(crate) fn end(
        &mut self,
        list: u64,
        checks: &ActiveHealth,
        report: CheckReport,
    ) -> Option<bool> {
        self.is_running = false;
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

/// What checks need of the edge.
#[derive(Clone)]
pub(crate) struct Checker {
    pub(crate) state: Arc<EdgeState>,
    pub(crate) network: Arc<Network>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

/// A check that is due.
struct Due {
    at: Instant,
    targets: Arc<TargetSet>,
    index: usize,
}

impl Checks {
    fn sets(&self) -> MutexGuard<'_, HashMap<String, Arc<TargetSet>>> {
        lock(&self.sets)
    }

    /// The upstreams of all endpoints.
    pub(crate) fn replace(&self, all: impl Iterator<Item = (String, Arc<TargetSet>)>) {
        *self.sets() = all.collect();
        self.changed.notify_one();
    }

    /// The upstreams of an endpoint; `None` if it has not several any more.
    pub(crate) fn set(&self, endpoint_id: &str, targets: Option<Arc<TargetSet>>) {
        let Some(targets) = targets else {
            self.sets().remove(endpoint_id);
            return;
        };
        self.sets().insert(endpoint_id.to_owned(), targets);
        // The next check may be earlier than was known.
        self.changed.notify_one();
    }

    /// The health of the upstreams of an endpoint.
    pub(crate) fn statuses(&self, endpoint_id: &str) -> Option<Vec<UpstreamStatus>> {
        let targets = Arc::clone(self.sets().get(endpoint_id)?);
        Some(targets.statuses())
    }

    /// Checks those that are due. Never returns.
    pub(crate) async fn run(&self, checker: Checker) {
        let permits = FairPermits::new(RUNNING_MAX);
        let mut running = JoinSet::new();
        let mut next = Instant::now();
        loop {
            let changed = self.changed.notified();
            let now = Instant::now();
            if now >= next {
                let due = self.start_due(&checker, &permits, &mut running);
                next = due.max(now + LOOK_EVERY);
            }
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = changed => next = next.min(Instant::now() + LOOK_EVERY),
                Some(_) = running.join_next() => {}
            }
        }
    }

    /// Starts the checks that are due. Returns when the next one is.
    fn start_due(
        &self,
        checker: &Checker,
        permits: &FairPermits,
        running: &mut JoinSet<()>,
    ) -> Instant {
        let now = Instant::now();
        let mut next = now + LOOK_AT_LEAST_EVERY;
        let mut due = Vec::new();
        let entropy = &checker.entropy;
        for targets in self.sets().values() {
            let Some(checks) = &targets.list().checks else {
                continue;
            };
            for (index, state) in targets.check_states().enumerate() {
                let mut state = lock(state);
                let is_new = state.next_at.is_none();
                let random = if is_new { random(&**entropy) } else { 0.0 };
                let Some(at) = state.due_at(checks, now, random) else {
                    continue;
                };
                if at > now {
                    next = next.min(at);
                    continue;
                }
                let targets = Arc::clone(targets);
                due.push(Due { at, targets, index });
            }
        }
        // Those that wait for a place come first.
        due.sort_by_key(|one| one.at);
        for Due { targets, index, .. } in due {
            let share = Share::new(targets.account(), targets.endpoint());
            let (Some(checks), Ok(permit)) = (&targets.list().checks, permits.try_acquire(share))
            else {
                next = now;
                continue;
            };
            if let Some(state) = targets.check_states().nth(index) {
                let next_at = lock(state).begin(checks, now, random(&**entropy));
                next = next.min(next_at);
            }
            let checker = checker.clone();
            running.spawn(async move {
                checker.check(&targets, index).await;
                drop(permit);
            });
        }
        next
    }
}

impl Checker {
    /// Checks one upstream, and notes the result.
    async fn check(&self, targets: &TargetSet, index: usize) {
        let (Some(checks), Some(pool)) = (&targets.list().checks, targets.pool(index)) else {
            return;
        };
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let connector = Connector {
            owner: &self.state,
            network: &self.network,
            agents: None,
            client: nowhere,
            server: nowhere,
            is_tls_terminated: false,
        };
        let began = Instant::now();
        let checked = pool.probe(&connector, &checks.probe, checks.timeout).await;
        let meters = &self.state.meters;
        meters.upstream_checks.up();
        if checked.is_err() {
            meters.upstream_checks_failed.up();
        }
        let failure = checked.err().map(|failure| failure.to_string());
        let report = CheckReport {
            at: self.clock.now(),
            duration: began.elapsed(),
            failure: failure.unwrap_or_default(),
        };
        targets.checked(index, checks, report, meters);
    }
}

/// From 0 to 1.
fn random(entropy: &dyn Entropy) -> f64 {
    f64::from(u16::from_le_bytes(entropy.bytes())) / f64::from(u16::MAX)
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
        assert!(state.due_at(&CHECKS, Instant::now(), 0.5).is_some());
        assert_eq!(state.end(2, &CHECKS, report("")), None);
        assert_eq!(state.end(2, &CHECKS, report("")), Some(true));
    }
}
