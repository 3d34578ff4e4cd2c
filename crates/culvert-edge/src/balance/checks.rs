//! Health checks of upstreams: which are due, and how one is carried out.
//!
//! Each process checks for itself. A check opens a further connection, so it sees whether the upstream takes new ones.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{Clock, Entropy, FairPermits};
use culvert_edge_config::{CheckReport, UnhealthyUpstream, UpstreamStatus};
use culvert_upstream::{Connector, LookupFor, Network, ProbeFailure, UploadBody};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::balance::target_set::TargetSet;
use crate::edge::edge_state::EdgeState;

/// Most checks that run at one time. An owner has a share of them; its others wait, and so come later.
const RUNNING_MAX: usize = 256;
/// Shortest time from one look for due checks to the next.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Most checks of an owner that begin at one look. Each costs its upstream a connection, and other services may be listed.
const OF_OWNER_MAX: u32 = 20;
/// Longest time from one look to the next.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(3_600);
/// Longest text about a failure, in bytes.
const FAILURE_BYTES_MAX: usize = 256;

/// The endpoints with several upstreams, and the checks of those that have some.
#[derive(Debug)]
pub(crate) struct Checks<B> {
    sets: Mutex<HashMap<String, Arc<TargetSet<B>>>>,
    changed: Notify,
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
struct Due<B> {
    at: Instant,
    targets: Arc<TargetSet<B>>,
    index: usize,
}

/// A check that runs. However it ends, the next one may begin then.
struct Running<B: UploadBody> {
    targets: Arc<TargetSet<B>>,
    index: usize,
}

impl<B: UploadBody> Drop for Running<B> {
    fn drop(&mut self) {
        if let Some(state) = self.targets.check_states().nth(self.index) {
            lock(state).stop();
        }
    }
}

impl<B> Default for Checks<B> {
    fn default() -> Self {
        Self {
            sets: Mutex::default(),
            changed: Notify::new(),
        }
    }
}

impl<B: UploadBody> Checks<B> {
    fn sets(&self) -> MutexGuard<'_, HashMap<String, Arc<TargetSet<B>>>> {
        lock(&self.sets)
    }

    /// The upstreams of all endpoints.
    pub(crate) fn replace(&self, all: impl Iterator<Item = (String, Arc<TargetSet<B>>)>) {
        *self.sets() = all.collect();
        self.changed.notify_one();
    }

    /// The upstreams of an endpoint; `None` if it has not several any more.
    pub(crate) fn set(&self, endpoint_id: &str, targets: Option<Arc<TargetSet<B>>>) {
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

    /// The upstreams of all endpoints that are unhealthy.
    pub(crate) fn unhealthy(&self) -> Vec<UnhealthyUpstream> {
        let mut found = Vec::new();
        for targets in self.sets().values() {
            targets.add_unhealthy(&mut found);
        }
        found
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
        let entropy = &*checker.entropy;
        let (mut due, mut next) = self.due(entropy, now);
        // Those that wait for a place come first.
        due.sort_by_key(|one| one.at);
        let mut of_owners: HashMap<u64, u32> = HashMap::new();
        for Due { targets, index, .. } in due {
            let of_owner = of_owners.entry(targets.share().owner()).or_default();
            let permit = match *of_owner < OF_OWNER_MAX {
                true => permits.try_acquire(targets.share()).ok(),
                false => None,
            };
            let (Some(checks), Some(permit)) = (&targets.list().checks, permit) else {
                next = now;
                continue;
            };
            *of_owner += 1;
            if let Some(state) = targets.check_states().nth(index) {
                let next_at = lock(state).begin(checks, now, random(entropy));
                next = next.min(next_at);
            }
            let checker = checker.clone();
            running.spawn(async move {
                let running = Running { targets, index };
                checker.check(&running.targets, index).await;
                drop((running, permit));
            });
        }
        next
    }

    /// The checks that are due, and when the next of the others is.
    fn due(&self, entropy: &dyn Entropy, now: Instant) -> (Vec<Due<B>>, Instant) {
        let (mut due, mut next) = (Vec::new(), now + LOOK_AT_LEAST_EVERY);
        for targets in self.sets().values() {
            let Some(checks) = &targets.list().checks else {
                continue;
            };
            for (index, state) in targets.check_states().enumerate() {
                let mut state = lock(state);
                let is_new = state.next_at.is_none();
                let random = if is_new { random(entropy) } else { 0.0 };
                match state.due_at(checks, now, random) {
                    Some(at) if at <= now => {
                        let targets = Arc::clone(targets);
                        due.push(Due { at, targets, index });
                    }
                    Some(at) => next = next.min(at),
                    None => {}
                }
            }
        }
        (due, next)
    }
}

impl Checker {
    /// Checks one upstream, and notes the result. Returns when nothing of the check is left.
    async fn check<B: UploadBody>(&self, targets: &TargetSet<B>, index: usize) {
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
            share: targets.share(),
            lookup_for: LookupFor::Checks,
            is_tls_terminated: false,
        };
        let began = Instant::now();
        let until = began + checks.timeout;
        let checked = match pool.dial_apart(&connector, checks.timeout).await {
            Ok(wire) => timeout_at(until, pool.check_health(&connector, wire, &checks.probe))
                .await
                .unwrap_or(Err(ProbeFailure::TooSlow)),
            Err(failure) => Err(failure),
        };
        // What this process lacks says nothing about the upstream.
        if !checked.as_ref().is_err_and(ProbeFailure::is_local) {
            self.note(targets, index, began, checked);
        }
    }

    fn note<B: UploadBody>(
        &self,
        targets: &TargetSet<B>,
        index: usize,
        began: Instant,
        checked: Result<(), ProbeFailure>,
    ) {
        let meters = &self.state.meters;
        meters.upstream_checks.up();
        if checked.is_err() {
            meters.upstream_checks_failed.up();
        }
        let mut failure = checked.map_or_else(|failure| failure.to_string(), |()| String::new());
        failure.truncate(failure.floor_char_boundary(FAILURE_BYTES_MAX));
        let report = CheckReport {
            at: self.clock.now(),
            duration: began.elapsed(),
            failure,
        };
        targets.checked(index, report, meters);
    }
}

/// From 0 to 1.
fn random(entropy: &dyn Entropy) -> f64 {
    f64::from(u16::from_le_bytes(entropy.bytes())) / f64::from(u16::MAX)
}
