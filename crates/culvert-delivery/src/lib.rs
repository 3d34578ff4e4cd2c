//! Events out: from records and the audit outbox, through the durable queue, to destinations.
//!
//! ```text
//! planes ─offer─▶ recorder ─────┐                       ┌─▶ worker ─▶ target
//! store's outbox ─▶ dispatcher ─┼─append─▶ queue ─lease─┤
//! the audit log ─▶ replayer ────┘                       └─▶ worker ─▶ target
//! ```
//!
//! At least once from the queue on, with the same id at every attempt; traffic never waits for any
//! of it. Control compiles subscriptions and destinations into a [`Table`] and publishes it.
//!
//! Not here: how an event was produced, who may configure what, how metrics are exported.

mod amqp;
pub mod aws;
pub mod batch;
mod buffer;
mod certificate_verifier;
mod cluster;
mod config;
mod destination_ids;
mod dispatcher;
mod event_log;
pub mod failure;
#[cfg(test)]
mod fake;
pub mod guard;
mod headers;
mod health;
mod http_failure;
mod kafka;
mod losses;
pub mod meters;
pub mod net;
mod recorder;
mod replay;
mod request_body;
mod retained;
mod retention;
pub mod retry;
mod spill;
mod subscription;
mod tail;
pub mod target;
mod tls_client;
mod worker;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use culvert_base::{Clock, Entropy, Fault, Refusal, Supervisor, Timestamp};
use culvert_events::{EventIds, Recorder, encode};
use culvert_store::{BatchClass, Bound, DeadLetter, Queue, Range, Store};

use batch::Batch;
use dispatcher::Dispatcher;
use event_log::{EventLog, JetStream};
use health::{AllCounters, DeliveryCounters};
use losses::Losses;
use meters::Dropped;
use recorder::{BufferPool, Flusher, OfferLimits, RecordShards};
use replay::Replayer;
use retained::Keeping;
use retry::RetryBudget;
use spill::{SpillTask, SpillWriter};
use subscription::Compiled;
use tail::Tails;
use target::verdict::{Outcome, Verdict};
use worker::WorkerNotifier;

pub use cluster::{ClusterHealth, NodeHealth};
pub use event_log::{JetStreamSettings, NatsServers, STREAM_LEASE};
pub use health::{Health, State};
pub use meters::Meters;
pub use net::Net;
pub use replay::Replay;
pub use retained::TrafficRange;
pub use subscription::{Destination, Source, Table};
pub use tail::{TAIL_BYTES_MAX, TAIL_LINES_MAX, Tail, TailSpec, Tailed};
pub use target::{Target, TargetContext, TargetSettings, TargetType, Whose};

/// The kind of document that destinations are stored as. A destination without one is deleted.
pub const DESTINATION_KIND: &str = "event_destination";

/// Limits and names. The defaults are the contract's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node's name; leases carry it, and those of its former life are released at start.
    pub node: String,
    /// File of this node in which it notes how many records it was offered, for the life after it to
    /// tell what a crash took; without one, what was offered since the last commit goes uncounted.
    pub counts: Option<PathBuf>,
    /// Names this start of the machine, which outlives the process: after another one what the file says may
    /// be too little. Without a name that is not told apart.
    pub boot: Option<String>,
    /// Whether other nodes use the same database: they tell each other how destinations are doing, and
    /// live tails see the traffic of all.
    pub is_shared: bool,
    /// Whether this node sends; one that does not still records and copies, for nodes that do.
    pub sends: bool,
    /// Where traffic batches wait; in the queue where there is none.
    pub event_log: Option<JetStreamSettings>,
    /// What targets may use and reach.
    pub targets: TargetSettings,
    /// Records waiting to be written, at most; more are dropped and counted.
    pub offer_records_max: usize,
    /// Bytes of records waiting to be written, at most.
    pub offer_bytes_max: usize,
    /// A flush happens after that many events,
    pub flush_events: usize,
    /// or that many bytes of them,
    pub flush_bytes: usize,
    /// or that long after the first, whichever comes first.
    pub flush_after: Duration,
    /// A batch that was not taken for so long is put into the queue, if it did not go there at once;
    /// zero: all go there.
    pub direct_for: Duration,
    /// Traffic events waiting for one destination, at most; further ones are dropped and counted. Audit
    /// events have room of their own.
    pub destination_events_max: u64,
    /// Bytes of traffic events waiting for one destination, at most.
    pub destination_bytes_max: u64,
    /// Bytes waiting for all destinations, at most, for traffic events.
    pub disk_bytes_max: u64,
    /// Bytes of events in memory, of all destinations; above that one that has more than its share of
    /// them gets no more.
    pub held_bytes_max: u64,
    /// Live tails open at once.
    pub tails_max: usize,
    /// A send takes no longer.
    pub send_deadline: Duration,
    /// A lease holds for this long; longer than a send.
    pub lease: Duration,
    /// The audit log keeps events for this long.
    pub audit_retention: Duration,
    /// Traffic events are kept for replays for this long; zero: not at all.
    pub traffic_retention: Duration,
    /// Bytes of them that are kept at most.
    pub traffic_retention_bytes: u64,
    /// Stopping takes no longer.
    pub drain: Duration,
    /// When to try again and when to stop.
    pub schedule: retry::Schedule,
    /// Where long-lived tasks report their end.
    pub supervisor: Supervisor,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node: "culvert".to_owned(),
            counts: None,
            boot: None,
            is_shared: false,
            sends: true,
            event_log: None,
            targets: TargetSettings::default(),
            offer_records_max: 65_536,
            offer_bytes_max: 32 << 20,
            flush_events: 500,
            flush_bytes: 512 << 10,
            flush_after: Duration::from_millis(200),
            direct_for: Duration::from_millis(500),
            destination_events_max: 10_000,
            destination_bytes_max: 32 << 20,
            disk_bytes_max: 4 << 30,
            held_bytes_max: 64 << 20,
            tails_max: 64,
            send_deadline: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            audit_retention: Duration::from_secs(365 * 24 * 60 * 60),
            traffic_retention: Duration::ZERO,
            traffic_retention_bytes: 1 << 30,
            drain: Duration::from_secs(10),
            schedule: retry::Schedule::default(),
            supervisor: Supervisor::default(),
        }
    }
}

/// An object of gathered events is put in no longer time. The leases of its batches hold for twice as
/// long.
pub const PUT_DEADLINE: Duration = Duration::from_secs(300);
/// A test event is tried for no longer.
const TEST_DEADLINE: Duration = Duration::from_secs(10);

/// What recorder, dispatcher and workers share.
#[derive(Debug)]
pub(crate) struct Plane {
    pub(crate) settings: Settings,
    /// Batches on their way.
    pub(crate) log: Arc<dyn EventLog>,
    /// Cursors, dead letters and audit events, whatever the log.
    pub(crate) queue: Queue,
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) targets: TargetContext,
    pub(crate) table: ArcSwap<Compiled>,
    /// How many tables were published; moves after the table.
    pub(crate) tables: watch::Sender<u64>,
    pub(crate) offers: Arc<RecordShards>,
    pub(crate) tails: Arc<Tails>,
    pub(crate) all_counters: AllCounters,
    pub(crate) meters: Arc<Meters>,
    pub(crate) notifier: WorkerNotifier,
    /// Events on the lanes of all destinations.
    pub(crate) direct_events: AtomicU64,
    /// Lanes that are to be written down.
    pub(crate) spill: SpillWriter,
    /// Pieces of the traffic log that are to be written.
    pub(crate) keeping: Keeping,
    pub(crate) spare: BufferPool,
    budget: Mutex<RetryBudget>,
    disk_full: AtomicBool,
}

impl Plane {
    /// Whether the queue holds more than traffic may fill. Looked at every few seconds.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    pub(crate) fn look_at_disk(&self) {
        let is_full = self.all_counters.queued_bytes() >= self.settings.disk_bytes_max;
        if self.disk_full.swap(is_full, Ordering::Relaxed) != is_full && is_full {
            tracing::error!("the event queue is full: dropping traffic events until it drains");
        }
    }

    /// Counts what is left on the lane of a destination that is gone, or of a server that stops.
    pub(crate) fn abandon(&self, counters: &DeliveryCounters, why: Dropped) {
        for one in counters.buffer.empty() {
            counters.released(one.events(), one.bytes());
            self.direct_events
                .fetch_sub(one.events(), Ordering::Relaxed);
            counters.dropped.add(why, one.events());
            self.meters.dropped.add(why, one.events());
        }
    }

    /// Whether the retry budget lets a batch go.
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

    /// Tells the planes what is wanted now.
    pub(crate) fn recapture(&self) {
        let table = self.table.load();
        let kept = self.keeps_traffic().then(retained::captures);
        let wanted = table.captures().chain(self.tails.captures());
        self.offers
            .set_captures(wanted.chain(kept.into_iter().flatten()));
    }

    /// Whether traffic events are kept for replays.
    pub(crate) fn keeps_traffic(&self) -> bool {
        !self.settings.traffic_retention.is_zero()
    }
}

/// Records after which the recorder is woken: so few that it finds them in the processor's cache.
const WAKE_RECORDS: usize = 128;

/// The delivery plane.
#[derive(Debug)]
pub struct Delivery {
    plane: Arc<Plane>,
}

impl Delivery {
    /// A plane with an empty table; nothing moves before [`Self::run`].
    pub fn new(
        settings: Settings,
        queue: Queue,
        store: Store,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Arc<Self> {
        let targets = TargetContext::new(settings.targets.clone(), clock.clone(), entropy.clone());
        let meters = Arc::new(Meters::default());
        let limits = OfferLimits {
            records_max: settings.offer_records_max,
            bytes_max: settings.offer_bytes_max,
            wake_records: settings.flush_events.clamp(1, WAKE_RECORDS),
            wake_bytes: settings.flush_bytes.max(1),
        };
        let log: Arc<dyn EventLog> = match &settings.event_log {
            None => Arc::new(queue.clone()),
            Some(stream) => Arc::new(JetStream::new(
                stream,
                queue.clone(),
                clock.clone(),
                meters.clone(),
            )),
        };
        Arc::new(Self {
            plane: Arc::new(Plane {
                log,
                queue,
                store,
                targets,
                table: ArcSwap::default(),
                tables: watch::Sender::new(0),
                offers: Arc::new(RecordShards::new(limits, meters.clone())),
                tails: Arc::default(),
                all_counters: AllCounters::default(),
                meters,
                notifier: WorkerNotifier::default(),
                direct_events: AtomicU64::new(0),
                spill: SpillWriter::default(),
                keeping: Keeping::default(),
                spare: BufferPool::default(),
                budget: Mutex::new(RetryBudget::new(clock.now())),
                disk_full: AtomicBool::new(false),
                settings,
                clock,
                entropy,
            }),
        })
    }

    /// Where the planes leave their records.
    pub fn recorder(&self) -> Arc<dyn Recorder> {
        self.plane.offers.clone()
    }

    /// Runs on `table` from now on. Records already offered are judged by it too.
    pub fn publish(&self, table: Table) {
        let compiled = Compiled::new(table, &self.plane.all_counters);
        self.plane
            .all_counters
            .keep(|id| compiled.outlet(id).is_some());
        let compiled = Arc::new(compiled);
        let before = self.plane.table.swap(Arc::clone(&compiled));
        self.plane.tables.send_modify(|n| *n = n.saturating_add(1));
        self.plane.recapture();
        // What did not change has nothing new to do.
        let edited = compiled.unlike(&before).chain(before.unlike(&compiled));
        self.plane.notifier.wake_each(edited);
    }

    /// The guard and the clients behind it.
    pub fn net(&self) -> &Net {
        self.plane.targets.net()
    }

    /// What targets are opened with.
    pub fn targets(&self) -> &TargetContext {
        &self.plane.targets
    }

    /// Follows events as they happen.
    ///
    /// # Errors
    /// 238, 5401 to 5406 as for a source, and a refusal when too many tails are open.
    pub fn tail(&self, spec: TailSpec) -> Result<Tail, Refusal> {
        tail::open(&self.plane, spec)
    }

    /// Counters.
    pub fn meters(&self) -> &Meters {
        &self.plane.meters
    }

    /// Deliveries that wait: in the queue, whichever node put them there, as far as this one knows, and in
    /// its own memory.
    pub fn waiting(&self) -> u64 {
        self.plane.all_counters.waiting_events()
    }

    /// Whether the event log can be used right now.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn event_log_usable(&self) -> Result<(), Fault> {
        self.plane.log.usable().await
    }

    /// How a destination is doing, as all nodes see it.
    ///
    /// # Errors
    /// A queue that fails.
    pub async fn cluster_health(&self, destination: &str) -> Result<ClusterHealth, Fault> {
        cluster::health(&self.plane, destination).await
    }

    /// How a destination is doing as this node sees it; `None` when it is not known here.
    pub fn health(&self, destination: &str) -> Option<Health> {
        Some(self.plane.all_counters.get(destination)?.health())
    }

    /// How every destination is doing that is known here, by id.
    pub fn healths(&self) -> Vec<(String, Health)> {
        self.plane.all_counters.healths()
    }

    /// Dead letters of a destination, newest first, with ids below `before`.
    ///
    /// # Errors
    /// A queue that fails.
    pub async fn dead_letters(
        &self,
        destination: &str,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Fault> {
        let queue = &self.plane.queue;
        queue.dead_letters(destination, before, limit).await
    }

    /// Events of dead letters that this process removed to make room for newer ones of the same destination
    /// and class.
    pub fn forgotten(&self, class: BatchClass) -> u64 {
        self.plane.queue.forgotten(class)
    }

    /// Puts dead letters of a destination back at the end of its line, in the order of `ids`; how many
    /// there were.
    ///
    /// # Errors
    /// A queue that fails; what was put back stays so.
    pub async fn redrive(&self, destination: &str, ids: &[i64]) -> Result<u32, Fault> {
        let queue = &self.plane.queue;
        let mut n_redriven = 0;
        for id in ids {
            // Ids are of all destinations: only this one's may be moved.
            let found = queue
                .dead_letters(destination, Some(id.saturating_add(1)), 1)
                .await?;
            let is_there = found.first().is_some_and(|letter| letter.id == *id);
            if is_there && queue.redrive(*id).await? {
                n_redriven += 1;
            }
        }
        if n_redriven > 0 {
            self.plane.notifier.wake(destination);
        }
        Ok(n_redriven)
    }

    /// How far a replay is: the last position of its range whose events are in the queue or behind
    /// it, or the one before the range.
    ///
    /// # Errors
    /// A queue that fails.
    pub async fn replayed(&self, replay: &str, range: &Range) -> Result<i64, Fault> {
        let value = self.plane.queue.cursor(&Replay::cursor(replay)).await?;
        Ok(Replay::position(range, value))
    }

    /// The same in the log of traffic.
    ///
    /// # Errors
    /// A queue that fails.
    pub async fn replayed_traffic(&self, replay: &str, range: &TrafficRange) -> Result<i64, Fault> {
        let name = Replay::traffic_cursor(replay);
        let value = self.plane.queue.cursor(&name).await?;
        Ok(value.max(range.first.saturating_sub(1)))
    }

    /// Whether this server keeps traffic events for replays.
    pub fn keeps_traffic(&self) -> bool {
        self.plane.keeps_traffic()
    }

    /// When a traffic event of `account` happened, if it is kept.
    ///
    /// # Errors
    /// A queue that fails.
    pub async fn find_traffic(&self, id: &str, account: &str) -> Result<Option<Timestamp>, Fault> {
        let found = retained::find(&self.plane, id, account).await?;
        Ok(found.map(|(_, at)| at))
    }

    /// The kept traffic events between two bounds, both inside, to the last there is now; `None` when a
    /// bound is an event of `account` that is not kept.
    ///
    /// # Errors
    /// A queue that fails.
    pub async fn traffic_range(
        &self,
        from: &Bound,
        to: Option<&Bound>,
        account: &str,
    ) -> Result<Option<TrafficRange>, Fault> {
        retained::range(&self.plane, from, to, account).await
    }

    /// Sends a `test` event to a destination: one attempt, not recorded. The error is a sentence for
    /// the user.
    pub async fn send_test(&self, destination: &str) -> Result<(), String> {
        let plane = &self.plane;
        let outlet = plane
            .table
            .load()
            .outlet(destination)
            .cloned()
            .ok_or("the destination does not exist or is not active yet")?;
        let now = plane.clock.now();
        let id = EventIds::new(plane.entropy.clone()).next(now);
        let event = encode::test(&id, now, &outlet.account);
        let batch = Batch::of_one(outlet.id.clone(), BatchClass::Audit, event.body.as_bytes())
            .map_err(|error| error.to_string())?;
        let sent = tokio::time::timeout(TEST_DEADLINE, outlet.target.send(&batch))
            .await
            .map_err(|_| format!("no response within {} s", TEST_DEADLINE.as_secs()))?;
        match sent {
            Verdict::Delivered => Ok(()),
            Verdict::Failed(failure) => Err(failure.to_string()),
            Verdict::Partial(outcomes) => match outcomes.into_iter().next() {
                Some(Outcome::Failed(failure)) => Err(failure.to_string()),
                _ => Err("the destination did not accept the event".to_owned()),
            },
        }
    }

    /// Moves events until cancelled; then flushes what was offered, lets workers finish, and returns
    /// within [`Settings::drain`].
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let plane = self.plane.clone();
        plane.log.start(plane.targets.net()).await;
        if let Err(fault) = plane.log.release_owner(&plane.settings.node).await {
            tracing::error!(cause = %fault.chain(), "releasing the leases of the previous run failed");
        }
        let look = plane.all_counters.look();
        if let Ok(backlog) = plane.log.backlog().await {
            let events = backlog.iter().map(|waiting| waiting.events).sum();
            plane.meters.recovered.add(events);
            plane.all_counters.refresh(look, &backlog);
            plane.look_at_disk();
            for waiting in backlog.iter().filter(|waiting| waiting.batches > 0) {
                plane.notifier.wake(&waiting.destination);
            }
        }
        let counts = plane.settings.counts.as_deref();
        let boot = plane.settings.boot.as_deref();
        let losses = match Losses::read(&plane.queue, &plane.settings.node, counts, boot).await {
            Ok((mut losses, lost)) => {
                plane.meters.lost.add(lost.counted);
                plane.meters.maybe_lost.add(lost.maybe);
                if lost.counted > 0 {
                    tracing::warn!(
                        lost = lost.counted,
                        "the previous run ended with {} traffic events that were not queued",
                        lost.counted
                    );
                }
                if lost.maybe > 0 {
                    let span = losses::UNCOUNTED_INTERVALS * plane.settings.flush_after;
                    tracing::warn!(
                        maybe_lost = lost.maybe,
                        "the machine or the data directory changed while the server ran: up to {} more traffic \
                         events of the last {} ms may be lost (an estimate)",
                        lost.maybe,
                        span.as_millis()
                    );
                }
                // Counted once is enough. From here on this life counts.
                losses.counts.write(&plane.queue, 0, 0).await;
                if let Some(note) = &mut losses.note {
                    note.write(0);
                }
                Some(losses)
            }
            Err(fault) => {
                tracing::error!(cause = %fault.chain(), "cannot read the record counts of the previous run");
                None
            }
        };
        let stop_workers = CancellationToken::new();
        let mut makers = JoinSet::new();
        let (counts, note) =
            losses.map_or((None, None), |losses| (Some(losses.counts), losses.note));
        let supervisor = &plane.settings.supervisor;
        let stopping = |token: &CancellationToken| {
            let token = token.clone();
            move || token.is_cancelled()
        };
        let flusher = Flusher::new(plane.clone(), note).run(cancel.clone());
        makers.spawn(supervisor.supervise("delivery.flusher", stopping(&cancel), flusher));
        let spill = SpillTask::new(plane.clone(), counts).run(cancel.clone());
        makers.spawn(supervisor.supervise("delivery.appender", stopping(&cancel), spill));
        let retained = retained::run(plane.clone(), cancel.clone());
        makers.spawn(supervisor.supervise("delivery.traffic_log", stopping(&cancel), retained));
        let dispatcher = Dispatcher::new(plane.clone()).run(cancel.clone());
        makers.spawn(supervisor.supervise("delivery.dispatcher", stopping(&cancel), dispatcher));
        let replayer = Replayer::new(plane.clone()).run(cancel.clone());
        makers.spawn(supervisor.supervise("delivery.replayer", stopping(&cancel), replayer));
        let retention = retention::run(plane.clone(), cancel.clone());
        makers.spawn(supervisor.supervise("delivery.retention", stopping(&cancel), retention));
        if plane.settings.is_shared {
            let cluster = cluster::run(plane.clone(), cancel.clone());
            makers.spawn(supervisor.supervise("delivery.cluster", stopping(&cancel), cluster));
        }
        let stop_keeping = CancellationToken::new();
        let mut keeper = JoinSet::new();
        let (log, stop) = (plane.log.clone(), stop_keeping.clone());
        let keeping = async move { log.keep(stop).await };
        keeper.spawn(supervisor.supervise("delivery.event_log", stopping(&stop_keeping), keeping));
        let mut workers = JoinSet::new();
        let working = worker::supervise(plane.clone(), stop_workers.clone());
        workers.spawn(supervisor.supervise("delivery.workers", stopping(&stop_workers), working));
        cancel.cancelled().await;
        let drained = tokio::time::timeout(plane.settings.drain, async {
            while makers.join_next().await.is_some() {}
            stop_workers.cancel();
            while workers.join_next().await.is_some() {}
            stop_keeping.cancel();
            while keeper.join_next().await.is_some() {}
            plane.log.close().await;
        });
        if drained.await.is_err() {
            tracing::warn!(
                "delivery did not finish in time; queued events are delivered after the next start"
            );
        }
        for (_, counters) in plane.all_counters.each() {
            plane.abandon(&counters, Dropped::Stopped);
        }
    }
}

#[cfg(test)]
mod tests;
