//! What delivery counts: plain atomics that others may read.
//!
//! The unit is a *delivery*: one event for one subscription and one destination. At rest
//! `offered + recovered = filtered + dropped + delivered + dead_lettered + queued`, where `recovered`
//! is what the queue held when this process started. A record lost before anybody knew how many
//! deliveries it would become counts as one offered and one dropped.
//!
//! Not here: how metrics are exported, health of one destination (`health`).

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets it.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why an event was not delivered and is not waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The offer queue of this node was full.
    OfferFull,
    /// The destination's queue was full.
    QueueFull,
    /// The queue on disk was full.
    DiskFull,
    /// The destination was deleted.
    DestinationDeleted,
    /// The server stopped while the queue could not be written.
    Stopped,
}

impl Dropped {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::OfferFull,
        Self::QueueFull,
        Self::DiskFull,
        Self::DestinationDeleted,
        Self::Stopped,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OfferFull => "offer_full",
            Self::QueueFull => "queue_full",
            Self::DiskFull => "disk_full",
            Self::DestinationDeleted => "destination_deleted",
            Self::Stopped => "stopped",
        }
    }
}

/// Counts by reason.
#[derive(Debug, Default)]
pub struct DroppedCounters([Counter; Dropped::ALL.len()]);

impl DroppedCounters {
    /// Adds to one reason.
    pub fn add(&self, reason: Dropped, n: u64) {
        for (known, counter) in Dropped::ALL.iter().zip(&self.0) {
            if *known == reason {
                counter.add(n);
            }
        }
    }

    /// Every reason's name and number.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Dropped::ALL
            .iter()
            .zip(&self.0)
            .map(|(reason, counter)| (reason.name(), counter.get()))
    }

    /// All reasons together.
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }
}

/// Counters of the whole plane.
#[derive(Debug, Default)]
pub struct Meters {
    /// Deliveries that were considered, traffic and audit.
    pub offered: Counter,
    /// Deliveries found in the queue at start.
    pub recovered: Counter,
    /// Deliveries a filter kept back.
    pub filtered: Counter,
    /// Those of them that were kept back because the filter failed.
    pub filter_errors: Counter,
    /// Deliveries written to the queue.
    pub queued: Counter,
    /// Deliveries that were acknowledged.
    pub delivered: Counter,
    /// Deliveries given up.
    pub dead_lettered: Counter,
    /// Deliveries lost, by reason.
    pub dropped: DroppedCounters,
    /// Records the life before this one had taken and not queued when it crashed:
    /// `events_lost_total{reason="crash"}`. Not part of this life's identity.
    pub lost: Counter,
    /// Records besides those that a power cut, or a crash of the machine, may have taken without a count.
    pub maybe_lost: Counter,
    /// Events that lost header maps to stay below the size of an event.
    pub truncated_headers: Counter,
    /// Events that lost policy logs.
    pub truncated_logs: Counter,
    /// Events that lost parts of their URL.
    pub truncated_url: Counter,
    /// Whether the event log outside of the database can be used: 1 or 0.
    pub log_up: Gauge,
    /// Deliveries that went to the database because the event log did not take them.
    pub log_fallbacks: Counter,
    /// Appends to the queue.
    pub flushes: Counter,
    /// Appends that failed and were tried again.
    pub flush_errors: Counter,
    /// Events in the audit log.
    pub audit_events: Gauge,
    /// Position of the last of them.
    pub audit_head: Gauge,
    /// Events that left the audit log for their age.
    pub audit_pruned: Counter,
    /// Traffic events written down for replays.
    pub retained: Counter,
    /// Traffic events that could not be.
    pub not_retained: Counter,
    /// Bytes of those that are there.
    pub retained_bytes: Gauge,
    /// Events put in line once more by replays.
    pub replayed: Counter,
    /// Audit events copied from the outbox.
    pub outbox_copied: Counter,
    /// Sends, first ones and repeated ones.
    pub sends: Counter,
    /// Sends of batches that had been leased before: receivers may have seen them.
    pub repeated_sends: Counter,
    /// Settlements refused because the lease had passed to another holder.
    pub leases_lost: Counter,
    /// Lines a slow live tail missed.
    pub tail_lost: Counter,
}

impl Meters {
    /// Deliveries waiting now: in memory, in the queue, or being sent.
    pub fn waiting(&self) -> u64 {
        let gone = self.filtered.get()
            + self.dropped.total()
            + self.delivered.get()
            + self.dead_lettered.get();
        (self.offered.get() + self.recovered.get()).saturating_sub(gone)
    }
}
