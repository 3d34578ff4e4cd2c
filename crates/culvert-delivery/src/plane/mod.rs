//! The plane as a whole: the state that recorder, dispatcher, replayer and workers share. Beside it, the public interface,
//! settings, counters, and what the nodes of one database share.

pub(crate) mod cluster;
pub(crate) mod delivery;
pub mod meters;
pub(crate) mod settings;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::Instant;

use culvert_base::sync::lock;
use culvert_base::{Clock, Entropy, RetentionClock, Timestamp};
use culvert_store::{Queue, Revision, Store};
use culvert_target::TargetContext;

use crate::health::{AllCounters, DeliveryCounters};
use crate::plane::meters::{Dropped, Meters};
use crate::plane::settings::Settings;
use crate::queue::buffer_pool::BufferPool;
use crate::queue::event_log::EventLog;
use crate::queue::spill_writer::SpillWriter;
use crate::recorder::record_shards::{CapturedKinds, RecordShards};
use crate::retained_events::body_queue::BodyQueue;
use crate::retained_events::pruning_notice::{PruningHolds, PruningNotice};
use crate::retained_events::retained_pieces::{self, PieceQueue};
use crate::retry::RetryBudget;
use crate::subscription::{Compiled, TableChange, TableCompiler};
use crate::tail::followers::Tails;
use crate::worker::worker_notifier::WorkerNotifier;

/// The shared state of the delivery plane.
#[derive(Debug)]
pub(crate) struct Plane {
    pub(crate) settings: Settings,
    /// The log in which batches wait.
    pub(crate) log: Arc<dyn EventLog>,
    /// Cursors, dead letters and audit events, whichever log is used.
    pub(crate) queue: Queue,
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) targets: TargetContext,
    pub(crate) table: ArcSwap<Compiled>,
    /// Held while the table changes.
    pub(crate) compiler: Mutex<TableCompiler>,
    /// Number of published tables; incremented after the table is stored.
    pub(crate) tables: watch::Sender<u64>,
    /// The table has the rights of this revision of the store, or later ones.
    pub(crate) rights: watch::Sender<Revision>,
    pub(crate) offers: Arc<RecordShards>,
    pub(crate) tails: Arc<Tails>,
    pub(crate) all_counters: AllCounters,
    pub(crate) meters: Arc<Meters>,
    pub(crate) notifier: WorkerNotifier,
    /// Events in the buffers of all destinations.
    pub(crate) direct_events: AtomicU64,
    /// Requests to write buffers to the queue.
    pub(crate) spill: SpillWriter,
    /// Pieces of the traffic log that wait to be written.
    pub(crate) pieces: Arc<PieceQueue>,
    /// Captured messages that wait to be written.
    pub(crate) bodies: BodyQueue,
    pub(crate) spare: BufferPool,
    pub(crate) budget: Mutex<RetryBudget>,
    pub(crate) retention_clock: RetentionClock,
    /// Writes the event of audit events that are removed, and the holds; without them none are removed.
    pub(crate) pruning: OnceLock<(Arc<dyn PruningNotice>, Arc<dyn PruningHolds>)>,
    pub(crate) disk_full: AtomicBool,
}

impl Plane {
    /// Whether the queue exceeds the limit for traffic. Updated every few seconds.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    pub(crate) fn check_disk(&self) {
        let is_full = self.all_counters.queued_bytes() >= self.settings.disk_bytes_max;
        if self.disk_full.swap(is_full, Ordering::Relaxed) != is_full && is_full {
            tracing::error!("the event queue is full: dropping traffic events until it drains");
        }
    }

    /// Drops and counts the buffered batches of a deleted destination, or of a server that stops.
    pub(crate) fn abandon(&self, counters: &DeliveryCounters, why: Dropped) {
        for one in counters.buffer.empty() {
            counters.released(one.events(), one.bytes());
            self.direct_events
                .fetch_sub(one.events(), Ordering::Relaxed);
            counters.dropped.add(why, one.events());
            self.meters.dropped.add(why, one.events());
        }
    }

    /// Counts events that the event log lost.
    pub(crate) fn lose(&self, destination: &str, events: u64) {
        let counters = self.all_counters.of(destination);
        counters.dropped.add(Dropped::EventLogLost, events);
        self.meters.dropped.add(Dropped::EventLogLost, events);
    }

    /// Notes that a worker starts. A batch that the previous one had in memory, and did not settle, is lost.
    pub(crate) fn begin_worker(&self, destination: &str) {
        let counters = self.all_counters.of(destination);
        let Some((events, bytes)) = counters.buffer.start_worker() else {
            return;
        };
        counters.released(events, bytes);
        self.direct_events.fetch_sub(events, Ordering::Relaxed);
        counters.dropped.add(Dropped::InternalError, events);
        self.meters.dropped.add(Dropped::InternalError, events);
    }

    /// Applies a change to the table. It also applies to records that wait in the recorder.
    pub(crate) fn apply(&self, change: TableChange) {
        let edited: Vec<String> = change.destinations.keys().cloned().collect();
        let mut compiler = lock(&self.compiler);
        let table = compiler.apply(&self.table.load(), change, &self.all_counters);
        self.table.store(Arc::new(table));
        drop(compiler);
        self.tables.send_modify(|n| *n = n.saturating_add(1));
        self.recapture();
        // Workers of unchanged destinations need not be woken.
        self.notifier.wake_each(edited.iter().map(String::as_str));
    }

    /// Removes the counters of deleted destinations without waiting events.
    pub(crate) fn forget_deleted(&self) {
        // No destination appears meanwhile.
        let _compiler = lock(&self.compiler);
        let table = self.table.load();
        self.all_counters.keep(|id| table.destination(id).is_some());
    }

    /// Whether the retry budget allows an attempt.
    pub(crate) fn may_send(&self, attempt: u32) -> bool {
        let mut budget = self
            .budget
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if attempt <= 1 {
            budget.sent();
            return true;
        }
        budget.take(self.all_counters.n_failing(), self.clock.now())
    }

    /// Events from before this time are too old if they are retained for `retention`.
    pub(crate) fn cutoff(&self, retention: Duration) -> Timestamp {
        let instant = Instant::now().into_std();
        let now = self.retention_clock.now(&*self.clock, instant);
        now.minus(retention)
    }

    /// Updates what the planes capture.
    pub(crate) fn recapture(&self) {
        self.offers.set_captures(|| CapturedKinds {
            followed: self
                .table
                .load()
                .captures()
                .chain(self.tails.captures())
                .collect(),
            retained: match self.retains_traffic() {
                true => retained_pieces::captures().collect(),
                false => Vec::new(),
            },
        });
    }

    /// Whether traffic events are retained.
    pub(crate) fn retains_traffic(&self) -> bool {
        !self.settings.traffic_retention.is_zero()
    }
}
