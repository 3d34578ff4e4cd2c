//! Health and counts of each destination (contract: destinations 1.6). They are in memory and empty after a restart.

pub(crate) mod attempts;
pub(crate) mod destination_count;
pub(crate) mod statistics;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use culvert_base::Timestamp;
use culvert_store::{Backlog, BatchClass};
use culvert_target::failure::{Failure, FailureClass};

use crate::health::attempts::Attempts;
use crate::health::destination_count::DestinationCount;
use crate::plane::meters::{Counter, DroppedCounters};
use crate::queue::buffer::DeliveryBuffer;

/// State of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationState {
    /// The last send was accepted, or there was none yet.
    Ok,
    /// The last send failed with a transient error.
    Retrying,
    /// The last error needs action, or twenty sends in a row failed.
    Unhealthy,
}

impl DestinationState {
    /// `ok`, `retrying` or `unhealthy`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Retrying => "retrying",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// Health of a destination at one moment.
#[derive(Clone, Debug)]
pub struct Health {
    /// The state.
    pub state: DestinationState,
    /// When a batch was last accepted.
    pub last_success_at: Option<Timestamp>,
    /// When a send last failed.
    pub last_error_at: Option<Timestamp>,
    /// The last failure, without secrets.
    pub last_error: Option<Failure>,
    /// Queued events.
    pub queued: u64,
    /// Events lost.
    pub dropped: u64,
    /// Number of dead letters.
    pub dead_lettered: u64,
    /// Events delivered.
    pub sent: u64,
    /// Bytes of lines delivered.
    pub bytes: u64,
    /// Number of sends, including retries.
    pub batches: u64,
    /// Failed sends by class.
    pub failures: Vec<(&'static str, u64)>,
}

/// Events and their bytes.
#[derive(Debug, Default)]
struct Amount {
    events: AtomicU64,
    bytes: AtomicU64,
}

impl Amount {
    fn add(&self, events: u64, bytes: u64) {
        self.events.fetch_add(events, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn take(&self, events: u64, bytes: u64) {
        take_from(&self.events, events);
        take_from(&self.bytes, bytes);
    }

    fn set(&self, events: u64, bytes: u64) {
        self.events.store(events, Ordering::SeqCst);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        let events = self.events.load(Ordering::SeqCst);
        (events, self.bytes.load(Ordering::Relaxed))
    }
}

/// Counters and state of one destination.
#[derive(Debug, Default)]
pub(crate) struct DeliveryCounters {
    /// Events in the queue, as of the last count of this node. Each class has its own limit.
    audit: Amount,
    traffic: Amount,
    /// Events in memory: with the recorder or in the buffer.
    held: Amount,
    pub(crate) buffer: DeliveryBuffer,
    shared: Arc<Shared>,
    /// The number of the backlog read that was current when an event was last queued.
    queued_at: AtomicU64,
    pub(crate) dead_lettered: AtomicU64,
    pub(crate) dropped: DroppedCounters,
    pub(crate) sent: Counter,
    pub(crate) bytes: Counter,
    pub(crate) batches: Counter,
    failures: [Counter; FailureClass::ALL.len()],
    pub(crate) count: DestinationCount,
    pub(crate) attempts: Attempts,
    last: Mutex<Last>,
}

/// State that the counters of all destinations share.
#[derive(Debug, Default)]
struct Shared {
    /// Bytes of events in memory, of all destinations.
    held_bytes: AtomicU64,
    /// Number of backlog reads that have begun.
    looks: AtomicU64,
}

#[derive(Debug, Default)]
struct Last {
    success_at: Option<Timestamp>,
    error_at: Option<Timestamp>,
    error: Option<Failure>,
    in_a_row: u32,
}

impl Last {
    fn state(&self) -> DestinationState {
        let error = self.error.as_ref();
        let needs_a_hand = error.is_some_and(|error| error.class.needs_a_hand());
        match self.in_a_row {
            0 => DestinationState::Ok,
            n if needs_a_hand || n >= crate::retry::CIRCUIT_FAILURES => DestinationState::Unhealthy,
            _ => DestinationState::Retrying,
        }
    }
}

/// Subtracts, but not below zero.
fn take_from(gauge: &AtomicU64, n: u64) {
    // The update always succeeds: it always returns a number.
    gauge
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            Some(held.saturating_sub(n))
        })
        .ok();
}

impl Health {
    /// Health of a destination to which nothing was sent yet.
    pub fn unknown() -> Self {
        DeliveryCounters::default().health()
    }
}

impl DeliveryCounters {
    pub(crate) fn queued(&self, class: BatchClass, events: u64, bytes: u64) {
        let look = self.shared.looks.load(Ordering::SeqCst);
        self.queued_at.store(look, Ordering::SeqCst);
        self.of(class).add(events, bytes);
    }

    pub(crate) fn settled(&self, class: BatchClass, events: u64, bytes: u64) {
        // Another node may have settled events that this node has not counted.
        self.of(class).take(events, bytes);
    }

    fn of(&self, class: BatchClass) -> &Amount {
        match class {
            BatchClass::Audit => &self.audit,
            BatchClass::Traffic => &self.traffic,
        }
    }

    /// Events of a class that wait in the queue.
    pub(crate) fn queued_events(&self, class: BatchClass) -> u64 {
        self.of(class).get().0
    }

    /// Adds events in memory.
    pub(crate) fn held(&self, events: u64, bytes: u64) {
        self.held.add(events, bytes);
        self.shared.held_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes events from memory: dropped, settled, or on their way to the queue.
    pub(crate) fn released(&self, events: u64, bytes: u64) {
        self.held.take(events, bytes);
        take_from(&self.shared.held_bytes, bytes);
    }

    /// Events in memory.
    pub(crate) fn held_events(&self) -> u64 {
        self.held.get().0
    }

    /// Bytes in memory: of this destination, and of all.
    pub(crate) fn held_bytes(&self) -> (u64, u64) {
        (
            self.held.get().1,
            self.shared.held_bytes.load(Ordering::Relaxed),
        )
    }

    /// Whether no event is known to wait in the queue.
    pub(crate) fn has_empty_queue(&self) -> bool {
        self.audit.get().0 == 0 && self.traffic.get().0 == 0
    }

    /// Events and bytes that wait in memory or in the queue.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let (events, bytes) = self.audit.get();
        let (traffic_events, traffic_bytes) = self.waiting_traffic();
        (
            events.saturating_add(traffic_events),
            bytes.saturating_add(traffic_bytes),
        )
    }

    /// Traffic events and bytes that wait in memory or in the queue. They count towards the limits of traffic.
    pub(crate) fn waiting_traffic(&self) -> (u64, u64) {
        let (queued_events, queued_bytes) = self.traffic.get();
        let (held_events, held_bytes) = self.held.get();
        (
            queued_events.saturating_add(held_events),
            queued_bytes.saturating_add(held_bytes),
        )
    }

    /// Notes an accepted send. Returns the state before, if it changed.
    pub(crate) fn succeeded(&self, at: Timestamp) -> Option<DestinationState> {
        let mut last = self.last();
        let before = last.state();
        last.success_at = Some(at);
        last.in_a_row = 0;
        (before != DestinationState::Ok).then_some(before)
    }

    /// Notes a failed send. Returns the new state, if it changed.
    pub(crate) fn failed(&self, failure: &Failure, at: Timestamp) -> Option<DestinationState> {
        for (class, counter) in FailureClass::ALL.iter().zip(&self.failures) {
            if *class == failure.class {
                counter.add(1);
            }
        }
        let mut last = self.last();
        let before = last.state();
        last.error_at = Some(at);
        last.error = Some(failure.clone());
        last.in_a_row = last.in_a_row.saturating_add(1);
        let after = last.state();
        (before != after).then_some(after)
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.last().in_a_row > 0
    }

    pub(crate) fn health(&self) -> Health {
        let last = self.last();
        Health {
            state: last.state(),
            last_success_at: last.success_at,
            last_error_at: last.error_at,
            last_error: last.error.clone(),
            queued: self.waiting().0,
            dropped: self.dropped.total(),
            dead_lettered: self.dead_lettered.load(Ordering::Relaxed),
            sent: self.sent.get(),
            bytes: self.bytes.get(),
            batches: self.batches.get(),
            failures: FailureClass::ALL
                .iter()
                .zip(&self.failures)
                .map(|(class, counter)| (class.name(), counter.get()))
                .collect(),
        }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The counters of every destination that exists or has events waiting.
#[derive(Debug, Default)]
pub(crate) struct AllCounters {
    by_destination: Mutex<HashMap<Arc<str>, Arc<DeliveryCounters>>>,
    shared: Arc<Shared>,
}

impl AllCounters {
    /// The counters of a destination, created if missing.
    pub(crate) fn of(&self, destination: &str) -> Arc<DeliveryCounters> {
        let mut all_counters = self.lock();
        if let Some(counters) = all_counters.get(destination) {
            return counters.clone();
        }
        let counters = Arc::new(DeliveryCounters {
            shared: self.shared.clone(),
            ..DeliveryCounters::default()
        });
        all_counters.insert(destination.into(), counters.clone());
        counters
    }

    pub(crate) fn get(&self, destination: &str) -> Option<Arc<DeliveryCounters>> {
        self.lock().get(destination).cloned()
    }

    pub(crate) fn healths(&self) -> Vec<(String, Health)> {
        let all_counters = self.lock();
        let health = |(id, counters): (&Arc<str>, &Arc<DeliveryCounters>)| {
            (id.to_string(), counters.health())
        };
        let mut healths: Vec<_> = all_counters.iter().map(health).collect();
        healths.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        healths
    }

    pub(crate) fn each(&self) -> Vec<(Arc<str>, Arc<DeliveryCounters>)> {
        let all_counters = self.lock();
        let pair =
            |(id, counters): (&Arc<str>, &Arc<DeliveryCounters>)| (id.clone(), counters.clone());
        all_counters.iter().map(pair).collect()
    }

    pub(crate) fn forget(&self, destination: &str) {
        self.lock().remove(destination);
    }

    /// Removes the counters of deleted destinations without waiting events.
    pub(crate) fn keep(&self, exists: impl Fn(&str) -> bool) {
        self.lock()
            .retain(|destination, counters| exists(destination) || counters.waiting().0 > 0);
    }

    pub(crate) fn n_failing(&self) -> usize {
        self.lock()
            .values()
            .filter(|counters| counters.is_failing())
            .count()
    }

    pub(crate) fn waiting_events(&self) -> u64 {
        self.lock()
            .values()
            .map(|counters| counters.waiting().0)
            .sum()
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.lock()
            .values()
            .map(|counters| counters.waiting().1)
            .sum()
    }

    /// Begins a backlog read and returns its number for [`Self::refresh`].
    pub(crate) fn begin_read(&self) -> u64 {
        self.shared.looks.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Sets the queued events to the result of a backlog read. Destinations that it does not name have none. The read
    /// may have missed events queued since it began; such a destination keeps its numbers until the next read.
    pub(crate) fn refresh(&self, look: u64, backlog: &[Backlog]) {
        let said: HashMap<&str, &Backlog> = backlog
            .iter()
            .map(|waiting| (&*waiting.destination, waiting))
            .collect();
        for destination in said.keys() {
            self.of(destination);
        }
        for (destination, counters) in self.lock().iter() {
            if counters.queued_at.load(Ordering::SeqCst) >= look || counters.buffer.is_spilling() {
                continue;
            }
            let [events, bytes, traffic_events, traffic_bytes, dead_lettered] =
                said.get(&**destination).map_or([0; 5], |waiting| {
                    [
                        waiting.events,
                        waiting.bytes,
                        waiting.traffic_events,
                        waiting.traffic_bytes,
                        waiting.dead_lettered,
                    ]
                });
            let audit_events = events.saturating_sub(traffic_events);
            let audit_bytes = bytes.saturating_sub(traffic_bytes);
            counters.audit.set(audit_events, audit_bytes);
            counters.traffic.set(traffic_events, traffic_bytes);
            counters
                .dead_lettered
                .store(dead_lettered, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<DeliveryCounters>>> {
        self.by_destination
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_failures_set_the_health_state() {
        let counters = DeliveryCounters::default();
        let at = Timestamp::from_unix_seconds(1);
        assert_eq!(counters.health().state, DestinationState::Ok);
        counters.failed(&Failure::new(FailureClass::Retryable, "503", "busy"), at);
        assert_eq!(counters.health().state, DestinationState::Retrying);
        for _ in 0..19 {
            counters.failed(&Failure::new(FailureClass::Retryable, "503", "busy"), at);
        }
        assert_eq!(counters.health().state, DestinationState::Unhealthy);
        counters.succeeded(at);
        assert_eq!(counters.health().state, DestinationState::Ok);
        counters.failed(&Failure::new(FailureClass::Auth, "401", "no"), at);
        let health = counters.health();
        assert_eq!(health.state, DestinationState::Unhealthy);
        assert_eq!(health.failures[0], ("retryable", 20));
        assert_eq!(health.failures[1], ("auth", 1));
    }

    #[test]
    fn queued_counters_never_become_negative() {
        let counters = DeliveryCounters::default();
        for class in [BatchClass::Audit, BatchClass::Traffic] {
            counters.queued(class, 3, 30);
            counters.settled(class, 5, 10);
        }
        assert_eq!(counters.health().queued, 0);
        assert_eq!(counters.waiting(), (0, 40));
        assert_eq!(counters.waiting_traffic(), (0, 20));
    }

    #[test]
    fn a_refresh_of_the_backlog_keeps_batches_in_transit() {
        let all_counters = AllCounters::default();
        let counters = all_counters.of(&Arc::from("ed_1"));
        counters.held(1, 10);
        counters.held(1, 10);
        all_counters.refresh(all_counters.begin_read(), &[]);
        assert_eq!(counters.health().queued, 2);
        // An event is queued during the backlog read.
        let look = all_counters.begin_read();
        counters.queued(BatchClass::Traffic, 2, 20);
        counters.released(2, 20);
        all_counters.refresh(look, &[]);
        assert_eq!(counters.waiting(), (2, 20));
        all_counters.refresh(all_counters.begin_read(), &[]);
        assert_eq!(counters.waiting(), (0, 0));
    }
}
