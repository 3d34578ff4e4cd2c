//! The counters of delivery, as plain atomics that other modules may read.
//!
//! The unit is a *delivery*: one event for one subscription and one destination. When nothing is in
//! progress, `offered + recovered = filtered + dropped + delivered + dead_lettered + queued`, where
//! `recovered` is the number in the queue when this process started. A record that is lost before
//! its deliveries are known counts as one offered and one dropped. Those that the event log lost while the
//! process was stopped count as dropped only.
//!
//! Not here: how metrics are exported, health of one destination (`health`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;

/// Limit of the accounts that are counted one by one.
const ACCOUNTS_MAX: usize = 1_000;

/// A counter that only increases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that can increase and decrease.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The current value.
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
    /// The owner of the subscription lost the right to the event while it waited.
    RightsLost,
    /// The server stopped while the queue could not be written.
    Stopped,
    /// A part of this server failed while it had the event in memory.
    InternalError,
    /// The event log lost it: its stream was deleted, reached a limit, or lost its disks.
    EventLogLost,
    /// The file that they waited in was damaged. Only those that could be read in it are counted.
    FileDamaged,
}

impl Dropped {
    /// Every reason.
    pub const ALL: [Self; 9] = [
        Self::OfferFull,
        Self::QueueFull,
        Self::DiskFull,
        Self::DestinationDeleted,
        Self::RightsLost,
        Self::Stopped,
        Self::InternalError,
        Self::EventLogLost,
        Self::FileDamaged,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OfferFull => "offer_full",
            Self::QueueFull => "queue_full",
            Self::DiskFull => "disk_full",
            Self::DestinationDeleted => "destination_deleted",
            Self::RightsLost => "rights_lost",
            Self::Stopped => "stopped",
            Self::InternalError => "internal_error",
            Self::EventLogLost => "event_log_lost",
            Self::FileDamaged => "file_damaged",
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

    /// The sum over all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }
}

/// What dropped events are counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DroppedFrom {
    /// The account, if they were dropped before their destinations were known; else empty.
    pub account: String,
    /// The destination; else empty.
    pub destination: String,
    /// The name of the reason in metrics.
    pub reason: &'static str,
}

/// Events that were dropped before their destinations were known, by account.
#[derive(Debug, Default)]
pub(crate) struct DroppedOffers {
    /// At most [`ACCOUNTS_MAX`]; further ones have an empty name.
    by_account: Mutex<HashMap<Arc<str>, u64>>,
}

impl DroppedOffers {
    /// Each account with the number of its events.
    pub(crate) fn each(&self) -> Vec<(Arc<str>, u64)> {
        let by_account = lock(&self.by_account);
        let each = by_account.iter();
        each.map(|(account, count)| (Arc::clone(account), *count))
            .collect()
    }
}

impl Meters {
    /// Counts events of an account that were dropped before their destinations were known.
    pub fn drop_offers(&self, account: &Arc<str>, n: u64) {
        self.dropped.add(Dropped::OfferFull, n);
        let mut by_account = lock(&self.dropped_offers.by_account);
        let is_counted = by_account.len() < ACCOUNTS_MAX || by_account.contains_key(account);
        let account = if is_counted {
            Arc::clone(account)
        } else {
            "".into()
        };
        *by_account.entry(account).or_default() += n;
    }
}

/// Counters of the whole plane.
#[derive(Debug, Default)]
pub struct Meters {
    /// Deliveries that were considered, of traffic and audit events.
    pub offered: Counter,
    /// Deliveries found in the queue at start.
    pub recovered: Counter,
    /// Deliveries that a filter rejected.
    pub filtered: Counter,
    /// Deliveries among `filtered` that were rejected because the filter failed.
    pub filter_errors: Counter,
    /// Deliveries written to the queue.
    pub queued: Counter,
    /// Deliveries that were acknowledged.
    pub delivered: Counter,
    /// Deliveries that became dead letters.
    pub dead_lettered: Counter,
    /// Deliveries lost, by reason.
    pub dropped: DroppedCounters,
    /// Those that were dropped before their destinations were known, by account.
    pub(crate) dropped_offers: DroppedOffers,
    /// Records that the previous run had accepted but not queued when it crashed:
    /// `events_lost_total{reason="crash"}`. Not part of the equation for this run.
    pub lost: Counter,
    /// Estimated further records that a power failure or a crash of the machine may have lost
    /// uncounted.
    pub maybe_lost: Counter,
    /// Events whose header maps were removed because the event was too large.
    pub truncated_headers: Counter,
    /// Events that lost policy logs because they were too large.
    pub truncated_logs: Counter,
    /// Events whose URL was shortened because they were too large.
    pub truncated_url: Counter,
    /// Whether the event log outside of the database can be used: 1 or 0.
    pub log_up: Gauge,
    /// Deliveries that went to the database because the event log did not accept them.
    pub log_fallbacks: Counter,
    /// Appends to the queue.
    pub flushes: Counter,
    /// Appends that failed and were repeated.
    pub flush_errors: Counter,
    /// Events in the audit log.
    pub audit_events: Gauge,
    /// Position of the last event in the audit log.
    pub audit_head: Gauge,
    /// Position of the first event in the audit log that a hold keeps beyond the retention; 0 for none.
    pub audit_held_from: Gauge,
    /// Events removed from the audit log because of their age.
    pub audit_pruned: Counter,
    /// Traffic events stored for searches and replays.
    pub retained: Counter,
    /// Traffic events that could not be stored.
    pub not_retained: Counter,
    /// Bytes of the stored traffic events.
    pub retained_bytes: Gauge,
    /// Captured messages of traffic events that were stored.
    pub bodies_kept: Counter,
    /// Captured messages that could not be stored.
    pub bodies_lost: Counter,
    /// Bytes of stored captured messages.
    pub bodies_bytes: Gauge,
    /// Events queued again by replays.
    pub replayed: Counter,
    /// Audit events copied from the outbox.
    pub outbox_copied: Counter,
    /// Sends, including repeated ones.
    pub sends: Counter,
    /// Sends of batches that had been leased before, which receivers may have already.
    pub repeated_sends: Counter,
    /// Settlements refused because the lease had passed to another holder.
    pub leases_lost: Counter,
    /// Lines that a slow live tail missed.
    pub tail_lost: Counter,
}

impl Meters {
    /// Deliveries that wait in memory or in the queue, or are being sent.
    pub fn waiting(&self) -> u64 {
        let gone = self.filtered.get()
            + self.dropped.total()
            + self.delivered.get()
            + self.dead_lettered.get();
        (self.offered.get() + self.recovered.get()).saturating_sub(gone)
    }
}
