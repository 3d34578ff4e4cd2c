//! Counts the traffic of endpoints.
//!
//! An endpoint has counters from its first traffic on. Each thread writes its own part of them, so counting takes no lock
//! and threads do not wait for each other's cache lines. A reader adds the parts up.
//!
//! The number of endpoints with counters of their own is limited. The traffic of further ones is counted together, by
//! account. An endpoint without traffic for a while gives up its place once the edge no longer refers to its counters.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use culvert_base::sync::lock;

use crate::frame::{Frame, Key, SubjectKind};
use crate::histogram::AtomicHistogram;
use crate::point::{Field, Point, REFUSED};

/// Most parts of the counters of an endpoint. More threads share them.
const STRIPES_MAX: usize = 16;
/// How many readings without traffic pass before an endpoint gives up its place: five minutes at ten seconds each.
const IDLE_READINGS: u32 = 30;
/// Most accounts whose further endpoints are counted apart from those of other accounts.
const OTHERS_MAX: usize = 1_000;

/// The status classes, and requests without a response.
const OUTCOMES: [Field; 6] = [
    Field::Status1xx,
    Field::Status2xx,
    Field::Status3xx,
    Field::Status4xx,
    Field::Status5xx,
    Field::Aborted,
];

/// Whether a request reached an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamUse {
    /// It needed none, such as one that a policy denies.
    Unneeded,
    /// It was sent to one.
    Reached,
    /// It needed one, and none could be reached.
    Unreached,
}

/// The counts of one thread for an endpoint, in separate cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe {
    outcomes: [AtomicU64; OUTCOMES.len()],
    /// Of requests that reached an upstream, which are counted here only.
    reached: [AtomicU64; OUTCOMES.len()],
    unreached: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    connections: AtomicU64,
    latency: AtomicHistogram,
    /// Refused traffic by reason. Most endpoints never have any.
    refused: OnceLock<Box<[AtomicU64; REFUSED]>>,
}

impl Stripe {
    /// Moves everything into `point`.
    fn take_into(&self, point: &mut Point) {
        for (field, count) in OUTCOMES.iter().zip(&self.outcomes) {
            point.add(*field, count.swap(0, Ordering::Relaxed));
        }
        for (field, count) in OUTCOMES.iter().zip(&self.reached) {
            let count = count.swap(0, Ordering::Relaxed);
            point.add(*field, count);
            point.add(Field::Reached, count);
        }
        point.add(Field::Unreached, self.unreached.swap(0, Ordering::Relaxed));
        point.add(Field::BytesIn, self.bytes_in.swap(0, Ordering::Relaxed));
        point.add(Field::BytesOut, self.bytes_out.swap(0, Ordering::Relaxed));
        let connections = self.connections.swap(0, Ordering::Relaxed);
        point.add(Field::Connections, connections);
        let micros = self.latency.take_into(&mut point.latency);
        point.add(Field::LatencyMicros, micros);
        let refused = self
            .refused
            .get()
            .into_iter()
            .flat_map(|counts| counts.iter());
        for (field, count) in Field::REFUSED.iter().zip(refused) {
            point.add(*field, count.swap(0, Ordering::Relaxed));
        }
    }
}

thread_local! {
    /// The number of this thread among those that count, once it has one.
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NUMBER.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(Some(number));
        number
    })
}

/// The counters of an endpoint.
#[derive(Debug)]
pub struct EndpointCounters {
    stripes: Box<[OnceLock<Box<Stripe>>]>,
}

impl EndpointCounters {
    fn new(stripes: usize) -> Self {
        Self {
            stripes: (0..stripes.max(1)).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The part of this thread, allocated at its first use.
    fn stripe(&self) -> Option<&Stripe> {
        let stripe = self.stripes.get(thread_number() % self.stripes.len())?;
        Some(stripe.get_or_init(Box::default))
    }

    /// Counts a request with the status of its response and the time until its head; `None` if there was no response.
    pub fn request(&self, response: Option<(u16, Duration)>, upstream: UpstreamUse) {
        let Some(stripe) = self.stripe() else { return };
        let outcome = match response {
            Some((status, latency)) => {
                stripe.latency.record(latency);
                usize::from(status / 100).clamp(1, 5) - 1
            }
            None => OUTCOMES.len() - 1,
        };
        let outcomes = match upstream {
            UpstreamUse::Reached => &stripe.reached,
            UpstreamUse::Unneeded | UpstreamUse::Unreached => &stripe.outcomes,
        };
        if let Some(count) = outcomes.get(outcome) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if upstream == UpstreamUse::Unreached {
            stripe.unreached.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a connection that needed an upstream and reached none.
    pub fn unreached(&self) {
        if let Some(stripe) = self.stripe() {
            stripe.unreached.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts bytes received from clients and sent to them.
    pub fn bytes(&self, received: u64, sent: u64) {
        let Some(stripe) = self.stripe() else { return };
        if received > 0 {
            stripe.bytes_in.fetch_add(received, Ordering::Relaxed);
        }
        if sent > 0 {
            stripe.bytes_out.fetch_add(sent, Ordering::Relaxed);
        }
    }

    /// Counts a refused request or connection. `reason` is the position of its field in [`Field::REFUSED`].
    pub fn refused(&self, reason: usize) {
        let Some(stripe) = self.stripe() else { return };
        let counts = stripe.refused.get_or_init(Box::default);
        if let Some(count) = counts.get(reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an accepted connection.
    pub fn connection(&self) {
        if let Some(stripe) = self.stripe() {
            stripe.connections.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take_into(&self, point: &mut Point) {
        for stripe in self.stripes.iter().filter_map(OnceLock::get) {
            stripe.take_into(point);
        }
    }
}

/// The place of an endpoint's counters in the table of the edge. Empty until its first traffic.
#[derive(Debug, Default)]
pub struct Slot(OnceLock<Arc<EndpointCounters>>);

impl Slot {
    /// The counters of the endpoint. The first call takes a lock, the others do not.
    pub fn counters(
        &self,
        traffic: &Traffic,
        account: &Arc<str>,
        endpoint: &Arc<str>,
    ) -> &Arc<EndpointCounters> {
        self.0.get_or_init(|| traffic.counters(account, endpoint))
    }

    /// The counters, if [`Self::counters`] was called.
    pub fn get(&self) -> Option<&Arc<EndpointCounters>> {
        self.0.get()
    }
}

/// The traffic of one endpoint, or of those of an account that share counters.
#[derive(Debug)]
struct EndpointTraffic {
    account: Arc<str>,
    counters: Arc<EndpointCounters>,
    /// Since the last reading.
    pending: Point,
    /// Since the start.
    total: Point,
    /// Readings without traffic.
    idle: u32,
    /// Whether metrics name it.
    is_named: bool,
}

impl EndpointTraffic {
    fn new(account: &Arc<str>, stripes: usize, is_named: bool) -> Self {
        Self {
            account: Arc::clone(account),
            counters: Arc::new(EndpointCounters::new(stripes)),
            pending: Point::default(),
            total: Point::default(),
            idle: 0,
            is_named,
        }
    }

    fn collect(&mut self) {
        let mut new = Point::default();
        self.counters.take_into(&mut new);
        if !new.is_empty() {
            self.pending.merge_step(&new);
            self.total.merge_step(&new);
        }
    }

    /// Whether it was idle for long and the edge does not refer to its counters. New references need the lock.
    fn gives_up(&mut self) -> bool {
        if self.idle < IDLE_READINGS || Arc::get_mut(&mut self.counters).is_none() {
            return false;
        }
        // The last one may have counted since the reading.
        self.collect();
        self.pending.is_empty()
    }

    /// What was counted since the last reading.
    fn read(&mut self) -> Point {
        self.collect();
        let point = std::mem::take(&mut self.pending);
        self.idle = if point.is_empty() { self.idle + 1 } else { 0 };
        point
    }
}

#[derive(Debug, Default)]
struct State {
    endpoints: HashMap<Arc<str>, EndpointTraffic>,
    /// Endpoints beyond the limit, by account; empty for those of further accounts.
    others: HashMap<Arc<str>, EndpointTraffic>,
    /// Endpoints that metrics name.
    named: usize,
    /// Totals of endpoints that gave up their places and that metrics did not name.
    former: Point,
}

/// The traffic of all endpoints of an edge.
#[derive(Debug)]
pub struct Traffic {
    state: Mutex<State>,
    endpoints_max: usize,
    named_max: usize,
    stripes: usize,
}

/// Totals since the start, for metrics.
#[derive(Debug)]
pub struct TrafficTotals {
    /// Endpoints by ID, in order.
    pub endpoints: Vec<(Arc<str>, Point)>,
    /// All further endpoints together.
    pub others: Point,
}

impl Traffic {
    /// Counts at most `endpoints_max` endpoints apart. Metrics name the first `named_max` of these.
    pub fn new(endpoints_max: usize, named_max: usize) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
        Self {
            state: Mutex::default(),
            endpoints_max,
            named_max,
            stripes: threads.min(STRIPES_MAX),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The counters of an endpoint, created if missing; beyond the limit, those that its account's further endpoints share.
    fn counters(&self, account: &Arc<str>, endpoint: &Arc<str>) -> Arc<EndpointCounters> {
        let mut state = self.state();
        let state = &mut *state;
        if let Some(counted) = state.endpoints.get(endpoint) {
            return Arc::clone(&counted.counters);
        }
        if state.endpoints.len() < self.endpoints_max {
            let is_named = state.named < self.named_max;
            state.named += usize::from(is_named);
            let counted = EndpointTraffic::new(account, self.stripes, is_named);
            let counters = Arc::clone(&counted.counters);
            state.endpoints.insert(Arc::clone(endpoint), counted);
            return counters;
        }
        let has_room = state.others.len() < OTHERS_MAX || state.others.contains_key(account);
        let account = if has_room { account } else { &Arc::from("") };
        let counted = state
            .others
            .entry(Arc::clone(account))
            .or_insert_with(|| EndpointTraffic::new(account, self.stripes, false));
        Arc::clone(&counted.counters)
    }

    /// Adds what was counted since the last reading to `frame`: a point of each endpoint with traffic, and of each account.
    pub fn read(&self, frame: &mut Frame) {
        let mut state = self.state();
        let state = &mut *state;
        for (endpoint, counted) in &mut state.endpoints {
            let point = counted.read();
            frame.add(Key::new(SubjectKind::Account, &counted.account, ""), &point);
            frame.add(
                Key::new(SubjectKind::Endpoint, &counted.account, endpoint),
                &point,
            );
        }
        for counted in state.others.values_mut() {
            let point = counted.read();
            frame.add(Key::new(SubjectKind::Account, &counted.account, ""), &point);
        }
        let is_idle = |_: &Arc<str>, counted: &mut EndpointTraffic| counted.gives_up();
        for (_, counted) in state.endpoints.extract_if(is_idle) {
            if counted.is_named {
                state.named -= 1;
            } else {
                state.former.merge_step(&counted.total);
            }
        }
    }

    /// The totals since the start, up to now.
    pub fn totals(&self) -> TrafficTotals {
        let mut state = self.state();
        let state = &mut *state;
        let mut others = state.former.clone();
        let mut endpoints = Vec::with_capacity(state.named);
        for (endpoint, counted) in &mut state.endpoints {
            counted.collect();
            if counted.is_named {
                endpoints.push((Arc::clone(endpoint), counted.total.clone()));
            } else {
                others.merge_step(&counted.total);
            }
        }
        for counted in state.others.values_mut() {
            counted.collect();
            others.merge_step(&counted.total);
        }
        endpoints.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        TrafficTotals { endpoints, others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn read(traffic: &Traffic) -> Vec<(String, u64)> {
        let mut frame = Frame::default();
        traffic.read(&mut frame);
        let point = |(key, point): (&Key, &Point)| (key.to_string(), point.requests());
        frame.points().map(point).collect()
    }

    fn counted(points: &[(&str, u64)]) -> Vec<(String, u64)> {
        let owned = points
            .iter()
            .map(|(key, count)| ((*key).to_owned(), *count));
        owned.collect()
    }

    #[test]
    fn requests_are_counted_by_outcome_and_read_once() {
        let traffic = Traffic::new(10, 10);
        let (account, endpoint) = ("ac_1".into(), "ep_1".into());
        let slot = Slot::default();
        let counters = slot.counters(&traffic, &account, &endpoint);
        for status in [101, 200, 204, 302, 404] {
            counters.request(Some((status, MILLI)), UpstreamUse::Reached);
        }
        for status in [999, 0] {
            counters.request(Some((status, MILLI)), UpstreamUse::Unneeded);
        }
        counters.request(Some((503, MILLI)), UpstreamUse::Unreached);
        counters.request(None, UpstreamUse::Unneeded);
        counters.unreached();
        counters.bytes(10, 0);
        counters.bytes(0, 20);
        counters.connection();
        counters.refused(0);
        counters.refused(REFUSED - 1);
        counters.refused(REFUSED);

        let mut frame = Frame::default();
        traffic.read(&mut frame);
        let points: Vec<_> = frame.points().collect();
        let [(account_key, total), (key, point)] = points.as_slice() else {
            panic!("{points:?}");
        };
        assert_eq!(account_key.as_str(), "a/ac_1/");
        assert_eq!(key.as_str(), "e/ac_1/ep_1");
        assert_eq!(total, point);
        let values = [
            (Field::Status1xx, 2),
            (Field::Status2xx, 2),
            (Field::Status3xx, 1),
            (Field::Status4xx, 1),
            (Field::Status5xx, 2),
            (Field::Aborted, 1),
            (Field::BytesIn, 10),
            (Field::BytesOut, 20),
            (Field::Connections, 1),
            (Field::LatencyMicros, 8_000),
            (Field::Reached, 5),
            (Field::Unreached, 2),
            (Field::RefusedMalformed, 1),
            (Field::RefusedConnectionLimit, 1),
        ];
        for (field, value) in values {
            assert_eq!(point.get(field), value, "{field:?}");
        }
        assert_eq!(point.refused(), 2);
        assert_eq!(point.latency.count(), 8);
        assert!(read(&traffic).is_empty());
        assert_eq!(traffic.totals().endpoints[0].1.requests(), 9);
    }

    #[test]
    fn threads_lose_nothing() {
        let traffic = Arc::new(Traffic::new(10, 10));
        let (account, endpoint): (Arc<str>, Arc<str>) = ("ac_1".into(), "ep_1".into());
        let counting: Vec<_> = (0..20)
            .map(|_| {
                let traffic = Arc::clone(&traffic);
                let (account, endpoint) = (account.clone(), endpoint.clone());
                std::thread::spawn(move || {
                    // As after a change of the endpoint, which brings a new slot.
                    for _ in 0..10 {
                        let slot = Slot::default();
                        for _ in 0..1_000 {
                            slot.counters(&traffic, &account, &endpoint)
                                .request(Some((200, MILLI)), UpstreamUse::Reached);
                        }
                    }
                })
            })
            .collect();
        let mut sum = 0;
        while counting.iter().any(|thread| !thread.is_finished()) {
            sum += read(&traffic).iter().map(|(_, count)| count).sum::<u64>();
        }
        for thread in counting {
            thread.join().unwrap();
        }
        sum += read(&traffic).iter().map(|(_, count)| count).sum::<u64>();
        // Once for the endpoint and once for its account.
        assert_eq!(sum, 2 * 20 * 10 * 1_000);
    }

    #[test]
    fn endpoints_beyond_the_limit_are_counted_together_and_places_are_given_up() {
        let traffic = Traffic::new(2, 1);
        let account: Arc<str> = "ac_1".into();
        let mut slots = Vec::new();
        for nth in 0..5 {
            let slot = Slot::default();
            let endpoint = format!("ep_{nth}").into();
            slot.counters(&traffic, &account, &endpoint)
                .request(Some((200, MILLI)), UpstreamUse::Reached);
            slots.push(slot);
        }
        let expected = counted(&[("a/ac_1/", 5), ("e/ac_1/ep_0", 1), ("e/ac_1/ep_1", 1)]);
        assert_eq!(read(&traffic), expected);
        let totals = traffic.totals();
        assert_eq!(totals.endpoints.len(), 1);
        assert_eq!(totals.others.requests(), 4);

        // While the edge refers to the counters, they stay.
        for _ in 0..IDLE_READINGS {
            assert!(read(&traffic).is_empty());
        }
        assert_eq!(traffic.state().endpoints.len(), 2);
        drop(slots);
        read(&traffic);
        assert_eq!(traffic.state().endpoints.len(), 0);
        let totals = traffic.totals();
        // Totals of the rest never decrease.
        assert_eq!((totals.endpoints.len(), totals.others.requests()), (0, 4));

        let slot = Slot::default();
        slot.counters(&traffic, &account, &"ep_9".into())
            .request(None, UpstreamUse::Reached);
        let expected = counted(&[("a/ac_1/", 1), ("e/ac_1/ep_9", 1)]);
        assert_eq!(read(&traffic), expected);
    }
}
