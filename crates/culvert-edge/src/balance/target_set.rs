//! The upstreams of an endpoint at run time: their connections, open requests and failures.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use culvert_base::Share;
use culvert_base::sync::lock;
use culvert_edge_config::{
    Balancing, CheckReport, PassiveHealth, UnhealthyUpstream, UpstreamList, UpstreamStatus,
};
use culvert_upstream::{Pool, UploadBody, Upstream};
use tokio::time::Instant;

use crate::balance::budget::Budget;
use crate::balance::check_state::CheckState;
use crate::balance::gate::{Gate, InFlight, Places};
use crate::balance::view::{Candidate, View};
use crate::edge::meters::Meters;

/// How often the log has a line about an upstream.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// In how many steps the share of an upstream grows that is used again.
const WARMING_STEPS: u32 = 10;

/// The upstreams of one endpoint, with the connections to them.
#[derive(Debug)]
pub(crate) struct TargetSet<B> {
    /// Distinguishes it from others for the same endpoint.
    id: u64,
    /// ID of the endpoint.
    endpoint: Arc<str>,
    account: Arc<str>,
    owner: Arc<str>,
    share: Share,
    list: Arc<UpstreamList>,
    targets: Box<[Target<B>]>,
    /// Who waits for them.
    gate: Arc<Gate>,
    /// Whether one of them has a limit.
    is_limited: bool,
    view: ArcSwap<View>,
    turn: AtomicU64,
    pub(crate) budget: Budget,
    /// Held while the view is made again.
    changing: Mutex<()>,
}

/// An upstream of a list.
#[derive(Debug)]
struct Target<B> {
    pool: Arc<Pool<B>>,
    state: Arc<TargetState>,
    /// A hash of its URL, the same on all nodes.
    identity: u64,
}

/// The state of an upstream. It stays when the list around it changes.
#[derive(Debug)]
struct TargetState {
    /// Those of the requests and connections that it serves.
    places: Arc<Places>,
    /// Failures in a row.
    failures: AtomicU32,
    /// Whether it is ejected. Written under the lock of `ejection`.
    is_out: AtomicBool,
    /// Whether it fails its checks. Written under the lock of `check`.
    is_down: AtomicBool,
    /// Whether it was ejected or failed its checks, and has not responded or passed them since. Written under the lock of
    /// `reason`.
    is_unhealthy: AtomicBool,
    /// Why it is unhealthy, and since when.
    reason: Mutex<(String, Option<Instant>)>,
    ejection: Mutex<Ejection>,
    check: Mutex<CheckState>,
}

/// Since when and for how long an upstream is ejected.
#[derive(Debug, Default)]
struct Ejection {
    until: Option<Instant>,
    /// How long it was, or is, ejected the last time.
    length: Duration,
    /// When that was over.
    ended: Option<Instant>,
    /// Since when it is used again, or used at all, while its share grows.
    warming_since: Option<Instant>,
    /// When the log last had a line about it.
    logged_at: Option<Instant>,
}

/// The upstreams that a request was sent to, by their position.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried(u64);

const _: () = assert!(UpstreamList::LENGTH_MAX <= 64, "each has a bit of `Tried`");

/// How an attempt at an upstream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It responded.
    Good,
    /// It cannot be connected to, or has not responded as it should: why, for the log.
    Bad(&'static str),
    /// Nothing about the upstream.
    Unknown,
}

impl Tried {
    /// Adds an upstream.
    pub(crate) fn add(&mut self, index: usize) {
        self.0 |= bit(index);
    }

    fn has(self, index: usize) -> bool {
        self.0 & bit(index) != 0
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A hash that is the same on all nodes and in all versions.
pub(crate) fn hash_of(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh64::xxh64(bytes, 0)
}

/// The hash of the address of a client, in whichever form it has.
pub(crate) fn address_hash(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => hash_of(&address.octets()),
        // A client may have all addresses of its network.
        IpAddr::V6(address) => hash_of(&address.octets()[..8]),
    }
}

fn bit(index: usize) -> u64 {
    u32::try_from(index)
        .ok()
        .and_then(|index| 1_u64.checked_shl(index))
        .unwrap_or(0)
}

impl TargetState {
    fn new(gate: &Arc<Gate>) -> Self {
        Self {
            places: Places::new(gate, None),
            failures: AtomicU32::new(0),
            is_out: AtomicBool::new(false),
            is_down: AtomicBool::new(false),
            is_unhealthy: AtomicBool::new(false),
            reason: Mutex::default(),
            ejection: Mutex::default(),
            check: Mutex::default(),
        }
    }

    /// Whether it gets no traffic, unless too few others are left.
    fn is_unused(&self) -> bool {
        self.is_out.load(Ordering::Relaxed) || self.is_down.load(Ordering::Relaxed)
    }
}

/// Notes that an upstream is unhealthy, unless it has become healthy meanwhile.
fn note_unhealthy(state: &TargetState, why: &str) {
    let mut reason = lock(&state.reason);
    if !state.is_unused() {
        return;
    }
    let since = reason.1.unwrap_or_else(Instant::now);
    *reason = (why.to_owned(), Some(since));
    state.is_unhealthy.store(true, Ordering::Relaxed);
}

/// Notes that an upstream is healthy, unless it fails its checks: these decide then.
fn note_healthy(state: &TargetState) {
    let mut reason = lock(&state.reason);
    if state.is_down.load(Ordering::Relaxed) {
        return;
    }
    *reason = (String::new(), None);
    state.is_unhealthy.store(false, Ordering::Relaxed);
}

impl Ejection {
    /// Whether the log may have another line about the upstream: an upstream that fails at times changes often.
    fn may_log(&mut self, now: Instant) -> bool {
        let is_new = |at: Instant| now.saturating_duration_since(at) < LOG_EVERY;
        if self.logged_at.is_some_and(is_new) {
            return false;
        }
        self.logged_at = Some(now);
        true
    }

    /// Begins to raise the share of the upstream, which takes this long.
    fn begin_to_warm(&mut self, slow_start: Duration) {
        self.warming_since = (!slow_start.is_zero()).then(Instant::now);
    }

    /// How much of its share the upstream has, in percent, and when that grows. `whole` is the time until it has all.
    fn warmth(&mut self, whole: Duration, now: Instant) -> (u8, Option<Instant>) {
        let step = whole / WARMING_STEPS;
        let Some(since) = self.warming_since.filter(|_| !step.is_zero()) else {
            return (100, None);
        };
        let elapsed = now.saturating_duration_since(since);
        let steps = (1..WARMING_STEPS).find(|steps| elapsed < step * *steps);
        let Some(steps) = steps else {
            self.warming_since = None;
            return (100, None);
        };
        let warmth = u8::try_from(100 * steps / WARMING_STEPS).unwrap_or(100);
        (warmth, Some(since + step * steps))
    }

    /// Ejects an upstream, for longer if it has failed again soon after the last time.
    fn begin(&mut self, health: &PassiveHealth, now: Instant) -> Duration {
        let is_soon = self.ended.is_some_and(|ended| {
            now.saturating_duration_since(ended) < self.length.max(health.ejection_time)
        });
        let length = match is_soon {
            true => self.length.saturating_mul(2),
            false => health.ejection_time,
        };
        self.warming_since = None;
        self.length = length.min(health.ejection_time_max);
        self.until = now.checked_add(self.length);
        self.ended = self.until;
        self.length
    }
}

impl<B: UploadBody> TargetSet<B> {
    /// The upstreams of a list of an endpoint, its account and its owner, with their pools in its order. Those that `before` has
    /// keep their state. Both have this gate.
    pub(crate) fn new(
        (endpoint, account, owner): (&str, &Arc<str>, &Arc<str>),
        list: Arc<UpstreamList>,
        pools: impl Iterator<Item = Arc<Pool<B>>>,
        before: Option<&Self>,
        gate: &Arc<Gate>,
    ) -> Self {
        let known = |pool: &Pool<B>| {
            let mut targets = before?.targets.iter();
            // By its URL: it is the same service if options of TLS or the version of HTTP change.
            let known = targets.find(|target| target.pool.name() == pool.name());
            Some(Arc::clone(&known?.state))
        };
        let new = || {
            let state = TargetState::new(gate);
            // Those of a first list have nothing to spare each other.
            if before.is_some() {
                lock(&state.ejection).begin_to_warm(list.slow_start);
            }
            Arc::new(state)
        };
        let targets: Box<[Target<B>]> = pools
            .map(|pool| Target {
                state: known(&pool).unwrap_or_else(new),
                identity: hash_of(pool.name().as_bytes()),
                pool,
            })
            .collect();
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let set = Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            endpoint: endpoint.into(),
            account: Arc::clone(account),
            owner: Arc::clone(owner),
            share: Share::new(owner, endpoint),
            budget: Budget::new(
                list.retries.budget_percent,
                before.map(|before| &before.budget),
            ),
            view: ArcSwap::from_pointee(View::of(&[], 0, None)),
            turn: AtomicU64::new(before.map_or(0, |before| before.turn.load(Ordering::Relaxed))),
            targets,
            gate: Arc::clone(gate),
            is_limited: list.upstreams.iter().any(|one| one.in_flight_max.is_some()),
            list,
            changing: Mutex::default(),
        };
        let checks_before = before.and_then(|before| before.list.checks.as_ref());
        let is_changed = set.list.checks.as_ref() != checks_before;
        if let Some(before) = before {
            // One that had no traffic begins like one that is new.
            let had_none = |target: &Target<B>| {
                let mut known = before.targets.iter().zip(&before.list.upstreams);
                known.any(|(known, listed)| {
                    known.pool.name() == target.pool.name() && listed.weight == 0
                })
            };
            for (target, listed) in set.targets.iter().zip(&set.list.upstreams) {
                if listed.weight > 0 && had_none(target) {
                    lock(&target.state.ejection).begin_to_warm(set.list.slow_start);
                }
            }
        }
        for target in &set.targets {
            let mut check = lock(&target.state.check);
            check.pass_to(set.id, is_changed);
            // What checks found holds no longer. Whether it is healthy shows the next response.
            if set.list.checks.is_none() {
                target.state.is_down.store(false, Ordering::Relaxed);
            }
        }
        set.view.store(Arc::new(set.new_view()));
        set.open_gate(before);
        set
    }

    /// The configuration.
    pub(crate) fn list(&self) -> &Arc<UpstreamList> {
        &self.list
    }

    /// The ID of the owner of its endpoint.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// Whose limited resources its checks take.
    pub(crate) fn share(&self) -> Share {
        self.share
    }

    /// The checks of each upstream.
    pub(crate) fn check_states(&self) -> impl Iterator<Item = &Mutex<CheckState>> {
        self.targets.iter().map(|target| &target.state.check)
    }

    /// The connections of an upstream.
    pub(crate) fn pool(&self, index: usize) -> Option<&Arc<Pool<B>>> {
        self.targets.get(index).map(|target| &target.pool)
    }

    /// The position of an upstream.
    pub(crate) fn position(&self, upstream: &Upstream) -> Option<usize> {
        let mut targets = self.targets.iter();
        targets.position(|target| target.pool.upstream() == upstream)
    }

    /// Whether one of its upstreams is expected to serve.
    pub(crate) fn is_reachable(&self) -> bool {
        let view = self.view.load();
        let may_return = view.until.is_some_and(|until| Instant::now() >= until);
        let served = self.targets.iter().zip(&self.list.upstreams);
        let mut served = served.filter(|(_, listed)| listed.weight > 0);
        served.any(|(target, _)| {
            let state = &target.state;
            // Only a choice ends an ejection whose time is over.
            let returns = may_return && !state.is_down.load(Ordering::Relaxed) && {
                let until = lock(&state.ejection).until;
                until.is_some_and(|until| Instant::now() >= until)
            };
            returns || !state.is_unused()
        })
    }

    fn current_view(&self, meters: &Meters) -> Guard<Arc<View>> {
        let view = self.view.load();
        if view.until.is_some_and(|until| Instant::now() >= until) {
            self.refresh(meters);
            return self.view.load();
        }
        view
    }

    /// The upstream of the next request, of those that were not tried; `None` if all were. Requests with the same `key`
    /// have the same one, if the list says so.
    pub(crate) fn choose(&self, key: Option<u64>, tried: Tried, meters: &Meters) -> Option<usize> {
        let view = self.current_view(meters);
        if let (Balancing::Hash(_), Some(key)) = (&self.list.balancing, key) {
            let chosen = view.of_key(key, self.identity(), |index| !tried.has(index));
            if chosen.is_some() {
                return chosen;
            }
        } else if tried.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let first = view.at(turn)?;
            return Some(match &self.list.balancing {
                Balancing::RoundRobin | Balancing::Hash(_) => first,
                Balancing::LeastRequests => self.less_busy(&view, turn, first),
            });
        }
        // The turns are those of requests, however often they are sent.
        let turn = self.turn.load(Ordering::Relaxed);
        let is_untried = |index: &usize| !tried.has(*index);
        let is_in = |index: &usize| {
            let target = self.targets.get(*index);
            target.is_some_and(|target| !target.state.is_unused())
        };
        let mut good = view.starting_at(turn).filter(is_untried).filter(is_in);
        let others = || {
            let mut others = self.list.upstreams.iter().enumerate();
            let found = others.find(|(index, one)| one.weight > 0 && !tried.has(*index));
            found.map(|(index, _)| index)
        };
        good.next()
            .or_else(|| view.starting_at(turn).find(is_untried))
            .or_else(others)
    }

    fn identity(&self) -> impl Fn(usize) -> u64 {
        |index| self.targets.get(index).map_or(0, |one| one.identity)
    }

    /// Whether an upstream gets traffic.
    pub(crate) fn is_used(&self, index: usize, meters: &Meters) -> bool {
        self.current_view(meters).has(index)
    }

    /// Whether there is another upstream than those tried.
    pub(crate) fn has_more(&self, tried: Tried) -> bool {
        let mut listed = self.list.upstreams.iter().enumerate();
        listed.any(|(index, one)| one.weight > 0 && !tried.has(index))
    }

    /// Of the upstream whose turn it is and another one, that with fewer open requests for its weight.
    fn less_busy(&self, view: &View, turn: u64, first: usize) -> usize {
        // Scattered, so that each upstream meets each other one.
        let other = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let mut others = view.starting_at(other);
        let Some(second) = others.find(|index| *index != first) else {
            return first;
        };
        let load = |index: usize| {
            let open = self.targets.get(index);
            let open = open.map_or(0, |target| target.state.places.open());
            (u64::from(open), view.weight(index).max(1))
        };
        let ((open, weight), (other_open, other_weight)) = (load(first), load(second));
        match open * other_weight <= other_open * weight {
            true => first,
            false => second,
        }
    }

    /// Counts an open request of an upstream, whatever its limit is.
    fn open(&self, index: usize) -> Option<InFlight> {
        Some(self.targets.get(index)?.state.places.enter())
    }

    /// Notes how an attempt ended. An upstream with too many failures in a row is ejected, and one that responds returns.
    pub(crate) fn report(&self, index: usize, outcome: Outcome, meters: &Meters) {
        let Some(target) = self.targets.get(index) else {
            return;
        };
        let state = &target.state;
        match outcome {
            Outcome::Unknown => {}
            Outcome::Good => {
                // Only read, so that threads that serve requests do not contend.
                if state.failures.load(Ordering::Relaxed) != 0 {
                    state.failures.store(0, Ordering::Relaxed);
                }
                if state.is_unhealthy.load(Ordering::Relaxed) {
                    if state.is_out.load(Ordering::Relaxed) {
                        self.restore(target, meters);
                    }
                    note_healthy(state);
                }
            }
            Outcome::Bad(why) => {
                let failures = state
                    .failures
                    .fetch_add(1, Ordering::Relaxed)
                    .saturating_add(1);
                let most = self.list.health.consecutive_failures;
                if most > 0 && failures >= most {
                    self.eject(index, target, (failures, why), meters);
                }
            }
        }
    }

    fn eject(
        &self,
        index: usize,
        target: &Target<B>,
        (failures, why): (u32, &str),
        meters: &Meters,
    ) {
        let changing = lock(&self.changing);
        let health = &self.list.health;
        let is_out = |target: &Target<B>| target.state.is_out.load(Ordering::Relaxed);
        let is_first = !is_out(target);
        if is_first {
            let out = self.targets.iter().filter(|target| is_out(target)).count();
            let most = self.targets.len() * usize::from(health.ejected_percent_max);
            let is_allowed = match out {
                0 => health.ejected_percent_max > 0,
                out => (out + 1) * 100 <= most,
            };
            if !is_allowed {
                return;
            }
            let now = Instant::now();
            let (length, may_log) = {
                let mut ejection = lock(&target.state.ejection);
                target.state.is_out.store(true, Ordering::Relaxed);
                (ejection.begin(health, now), ejection.may_log(now))
            };
            meters.upstreams_ejected.up();
            if may_log {
                tracing::warn!(
                    endpoint.id = %self.endpoint,
                    upstream = target.pool.name(),
                    failures,
                    why,
                    seconds = length.as_secs(),
                    "the upstream is ejected after failures in a row"
                );
            }
        }
        // Another list of the same endpoint, from before a change, may have done it.
        if is_first || self.view.load().has(index) {
            self.renew(&changing);
        }
        drop(changing);
        if is_first {
            note_unhealthy(
                &target.state,
                &format!("{failures} failures in a row: {why}"),
            );
        }
    }

    /// Notes the result of a check. Enough of them in a row decide whether the upstream is used.
    pub(crate) fn checked(&self, index: usize, report: CheckReport, meters: &Meters) {
        let (Some(target), Some(checks)) = (self.targets.get(index), &self.list.checks) else {
            return;
        };
        let state = &target.state;
        let failure = report.failure.clone();
        let was_down = {
            let mut check = lock(&state.check);
            let Some(passes) = check.end(self.id, checks, report) else {
                return;
            };
            if !passes {
                lock(&state.ejection).warming_since = None;
            }
            state.is_down.swap(!passes, Ordering::Relaxed)
        };
        match (failure.is_empty(), was_down) {
            (false, false) => {
                if lock(&state.ejection).may_log(Instant::now()) {
                    tracing::warn!(
                        endpoint.id = %self.endpoint,
                        upstream = target.pool.name(),
                        why = failure,
                        "the upstream fails its health checks"
                    );
                }
                self.renew(&lock(&self.changing));
                note_unhealthy(state, &format!("health check: {failure}"));
            }
            (true, true) => {
                if lock(&state.ejection).may_log(Instant::now()) {
                    tracing::info!(
                        endpoint.id = %self.endpoint,
                        upstream = target.pool.name(),
                        "the upstream passes its health checks"
                    );
                }
                state.failures.store(0, Ordering::Relaxed);
                self.restore(target, meters);
                note_healthy(state);
            }
            // One that was ejected serves again, whether its time is over or not.
            (true, false) if state.is_unhealthy.load(Ordering::Relaxed) => {
                state.failures.store(0, Ordering::Relaxed);
                if state.is_out.load(Ordering::Relaxed) {
                    self.restore(target, meters);
                }
                note_healthy(state);
            }
            _ => {}
        }
    }

    /// The health of its upstreams.
    pub(crate) fn statuses(&self) -> Vec<UpstreamStatus> {
        let now = Instant::now();
        let view = self.view.load();
        let of_target = |(index, target): (usize, &Target<B>)| {
            let state = &target.state;
            let ejection = lock(&state.ejection).until;
            let ejection = ejection.map(|until| until.saturating_duration_since(now));
            let reason = lock(&state.reason).0.clone();
            let last_check = lock(&state.check).last.clone();
            UpstreamStatus {
                url: target.pool.name().to_owned(),
                is_healthy: !state.is_unhealthy.load(Ordering::Relaxed),
                is_used: view.has(index),
                reason,
                ejected_for: ejection.filter(|_| state.is_out.load(Ordering::Relaxed)),
                open_requests: state.places.open(),
                failures: state.failures.load(Ordering::Relaxed),
                last_check,
            }
        };
        self.targets.iter().enumerate().map(of_target).collect()
    }

    /// Adds its upstreams that are unhealthy.
    pub(crate) fn add_unhealthy(&self, found: &mut Vec<UnhealthyUpstream>) {
        for target in &self.targets {
            if !target.state.is_unhealthy.load(Ordering::Relaxed) {
                continue;
            }
            let (reason, since) = lock(&target.state.reason).clone();
            found.push(UnhealthyUpstream {
                endpoint: Arc::clone(&self.endpoint),
                account: Arc::clone(&self.account),
                owner: Arc::clone(&self.owner),
                url: target.pool.name().to_owned(),
                reason,
                lasts: since.map_or(Duration::ZERO, |since| since.elapsed()),
            });
        }
    }

    fn restore(&self, target: &Target<B>, meters: &Meters) {
        let changing = lock(&self.changing);
        let (was_out, may_log) = {
            let mut ejection = lock(&target.state.ejection);
            ejection.begin_to_warm(self.list.slow_start);
            // It responded, so its next ejection is a first one: else a client whose requests fail at times could prolong
            // the ejections of upstreams that serve all others.
            ejection.until = None;
            ejection.ended = None;
            let was_out = target.state.is_out.swap(false, Ordering::Relaxed);
            (was_out, was_out && ejection.may_log(Instant::now()))
        };
        if was_out {
            self.count_return(target, may_log, meters);
        }
        self.renew(&changing);
    }

    fn count_return(&self, target: &Target<B>, may_log: bool, meters: &Meters) {
        meters.upstreams_returned.up();
        if may_log {
            tracing::info!(
                endpoint.id = %self.endpoint,
                upstream = target.pool.name(),
                "the upstream is used again"
            );
        }
    }

    /// Lets those return whose time is over. Their next failure ejects them again.
    fn refresh(&self, meters: &Meters) {
        // Another thread does it.
        let changing = match self.changing.try_lock() {
            Ok(changing) => changing,
            Err(TryLockError::Poisoned(changing)) => changing.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let now = Instant::now();
        for target in &self.targets {
            let mut ejection = lock(&target.state.ejection);
            if ejection.until.take_if(|until| *until <= now).is_some() {
                ejection.begin_to_warm(self.list.slow_start);
                let failures = self.list.health.consecutive_failures.saturating_sub(1);
                target.state.failures.store(failures, Ordering::Relaxed);
                target.state.is_out.store(false, Ordering::Relaxed);
                let may_log = ejection.may_log(now);
                drop(ejection);
                self.count_return(target, may_log, meters);
            }
        }
        self.renew(&changing);
    }

    /// Makes the view again.
    fn renew(&self, _changing: &MutexGuard<'_, ()>) {
        let view = self.new_view();
        let was_panic = self.view.load().is_panic;
        match (was_panic, view.is_panic) {
            (false, true) => tracing::warn!(
                endpoint.id = %self.endpoint,
                upstreams = self.targets.len(),
                "too many upstreams are ejected, so all of them are used"
            ),
            (true, false) => tracing::info!(
                endpoint.id = %self.endpoint,
                "enough upstreams respond again, so only these are used"
            ),
            _ => {}
        }
        self.view.store(Arc::new(view));
        self.offer_places();
    }

    fn new_view(&self) -> View {
        let now = Instant::now();
        let mut until = None::<Instant>;
        let of_target = |(target, listed): (&Target<B>, &culvert_edge_config::ListedUpstream)| {
            let mut ejection = lock(&target.state.ejection);
            let (warmth, grows) = ejection.warmth(self.list.slow_start, now);
            until = until.into_iter().chain(ejection.until).chain(grows).min();
            Candidate {
                weight: listed.weight,
                priority: listed.priority,
                is_out: target.state.is_unused(),
                warmth,
            }
        };
        let candidates: Vec<Candidate> = self
            .targets
            .iter()
            .zip(&self.list.upstreams)
            .map(of_target)
            .collect();
        View::of(&candidates, self.list.health.panic_below_percent, until)
    }
}

pub(crate) mod entry;
#[cfg(test)]
mod tests;
