//! The public interface of the delivery plane.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use culvert_base::{Clock, Entropy, Fault, Refusal, RetentionClock, Timestamp};
use culvert_events::bodies::{BodyBudget, CapturedMessages};
use culvert_events::{EventIds, Recorder, encode};
use culvert_store::{BatchClass, Bound, DeadLetter, Queue, Range, Revision, Store};
use culvert_target::batch::Batch;
use culvert_target::{Net, Outcome, TargetContext, Verdict};

use crate::dispatch::dispatcher::{self, Dispatcher};
use crate::dispatch::replay::{Replay, TrafficRange};
use crate::dispatch::replayer::Replayer;
use crate::health::attempts::Attempt;
use crate::health::{AllCounters, Health};
use crate::plane::Plane;
use crate::plane::cluster::{self, ClusterHealth};
use crate::plane::meters::{Dropped, DroppedFrom, Meters};
use crate::plane::settings::Settings;
use crate::queue::buffer_pool::BufferPool;
use crate::queue::event_log::{EventLog, JetStream};
use crate::queue::spill::SpillTask;
use crate::queue::spill_writer::SpillWriter;
use crate::recorder::Flusher;
use crate::recorder::losses::{self, Losses};
use crate::recorder::record_shards::{OfferLimits, RecordShards};
use crate::retained_events::body_queue::BodyQueue;
use crate::retained_events::event_query::{self, Cursor, EventPage, EventQuery};
use crate::retained_events::open_pieces::OpenPieces;
use crate::retained_events::pruning_notice::{PruningHolds, PruningNotice};
use crate::retained_events::retained_pieces::PieceQueue;
use crate::retained_events::search_turns::SearchTurns;
use crate::retained_events::{retained, retained_bodies, retention};
use crate::retry::RetryBudget;
use crate::subscription::{CompiledDestination, TableChange};
use crate::tail::followers::TailSpec;
use crate::tail::{self, Tail};
use crate::worker;
use crate::worker::worker_notifier::WorkerNotifier;

/// Time limit of a test event.
const TEST_DEADLINE: Duration = Duration::from_secs(10);
/// How long a test event waits for its destination to become active.
const ACTIVE_WITHIN: Duration = Duration::from_secs(5);

/// Records after which the flusher is woken: few enough to still be in the processor's cache.
const WAKE_RECORDS: usize = 128;

/// The delivery plane.
#[derive(Debug)]
pub struct Delivery {
    pub(crate) plane: Arc<Plane>,
    searches: SearchTurns,
}

impl Delivery {
    /// A plane with an empty table. It does nothing before [`Self::run`].
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
        let bodies = (!settings.traffic_retention.is_zero())
            .then(|| BodyBudget::new(settings.capture_bytes_max));
        let pieces = Arc::new(PieceQueue::default());
        let open_pieces = (!settings.traffic_retention.is_zero())
            .then(|| OpenPieces::new(&entropy, pieces.clone(), meters.clone()));
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
            searches: SearchTurns::new(),
            plane: Arc::new(Plane {
                log,
                queue,
                store,
                targets,
                table: ArcSwap::default(),
                compiler: Mutex::default(),
                tables: watch::Sender::new(0),
                rights: watch::Sender::new(Revision::START),
                offers: Arc::new(RecordShards::new(
                    limits,
                    meters.clone(),
                    bodies,
                    open_pieces,
                )),
                tails: Arc::default(),
                all_counters: AllCounters::default(),
                meters,
                notifier: WorkerNotifier::default(),
                direct_events: AtomicU64::new(0),
                spill: SpillWriter::default(),
                pieces,
                bodies: BodyQueue::default(),
                spare: BufferPool::default(),
                budget: Mutex::new(RetryBudget::new(clock.now())),
                retention_clock: RetentionClock::default(),
                pruning: OnceLock::new(),
                disk_full: AtomicBool::new(false),
                settings,
                clock,
                entropy,
            }),
        })
    }

    /// The port to which the planes offer records.
    pub fn recorder(&self) -> Arc<dyn Recorder> {
        self.plane.offers.clone()
    }

    /// Applies a change to the table: the first one has everything. It also applies to records that wait in the
    /// recorder.
    pub fn apply(&self, change: TableChange) {
        self.plane.apply(change);
    }

    /// Notes that the published table has the rights of this revision of the store, or later ones.
    pub fn has_rights_of(&self, revision: Revision) {
        self.plane.rights.send_replace(revision);
    }

    /// Sets what writes the event of audit events that are removed, and what knows which are kept. Without them none are
    /// removed. The first ones stay.
    pub fn prune_by(&self, notice: Arc<dyn PruningNotice>, holds: Arc<dyn PruningHolds>) {
        self.plane.pruning.get_or_init(|| (notice, holds));
    }

    /// Removes audit events at the end of their retention, in one step. Returns how many.
    ///
    /// # Errors
    /// If the store or the queue fails.
    pub async fn prune_audit_log(&self) -> Result<u64, Fault> {
        retention::prune(&self.plane).await
    }

    /// The last position of the audit log that was copied to the queue.
    ///
    /// # Errors
    /// If the queue fails.
    pub async fn audit_copied_to(&self) -> Result<i64, Fault> {
        self.plane.queue.cursor(dispatcher::CURSOR).await
    }

    /// How full the queue of traffic events of a destination is, in percent of its limit.
    pub fn queue_percent(&self, destination: &str) -> u64 {
        let Some(counters) = self.plane.all_counters.get(destination) else {
            return 0;
        };
        let (events, bytes) = counters.waiting_traffic();
        let settings = &self.plane.settings;
        let percent = |used: u64, limit: u64| used.saturating_mul(100) / limit.max(1);
        percent(events, settings.destination_events_max)
            .max(percent(bytes, settings.destination_bytes_max))
    }

    /// Events of traffic that were dropped since the start.
    pub fn dropped(&self) -> Vec<(DroppedFrom, u64)> {
        let mut dropped = Vec::new();
        for (account, count) in self.plane.meters.dropped_offers.each() {
            let from = DroppedFrom {
                account: account.to_string(),
                destination: String::new(),
                reason: Dropped::OfferFull.name(),
            };
            dropped.push((from, count));
        }
        for (id, counters) in self.plane.all_counters.each() {
            for (reason, count) in counters.dropped.each() {
                let from = DroppedFrom {
                    account: String::new(),
                    destination: id.to_string(),
                    reason,
                };
                dropped.push((from, count));
            }
        }
        dropped.retain(|(_, count)| *count > 0);
        dropped
    }

    /// The network client with its address guard.
    pub fn net(&self) -> &Net {
        self.plane.targets.net()
    }

    /// The context that targets are opened with.
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

    /// How many damaged files of events were set aside at a start and are still there.
    pub fn files_set_aside(&self) -> usize {
        self.plane.queue.files_set_aside()
    }

    /// Counts deliveries that waited in a damaged file.
    pub fn count_lost_with_file(&self, deliveries: u64) {
        let dropped = &self.plane.meters.dropped;
        dropped.add(Dropped::FileDamaged, deliveries);
    }

    /// Metrics.
    pub fn meters(&self) -> &Meters {
        &self.plane.meters
    }

    /// Deliveries that wait: in the memory of this node, and in the queue as of the last count of this node.
    pub fn waiting(&self) -> u64 {
        self.plane.all_counters.waiting_events()
    }

    /// Whether the event log can be used right now.
    ///
    /// # Errors
    /// The cause, if it cannot be used.
    pub async fn event_log_usable(&self) -> Result<(), Fault> {
        self.plane.log.usable().await
    }

    /// Health of a destination across all nodes.
    ///
    /// # Errors
    /// If the queue fails.
    pub async fn cluster_health(&self, destination: &str) -> Result<ClusterHealth, Fault> {
        cluster::health(&self.plane, destination).await
    }

    /// Health of all destinations across all nodes, by ID, read with one query.
    ///
    /// # Errors
    /// If the queue fails.
    pub async fn cluster_healths(&self) -> Result<HashMap<String, Health>, Fault> {
        cluster::healths(&self.plane).await
    }

    /// The last attempts to send to a destination, the newest first, each with its node. At most 100.
    pub async fn attempts(&self, destination: &str) -> Result<Vec<(String, Attempt)>, Fault> {
        cluster::attempts(&self.plane, destination).await
    }

    /// Health of a destination on this node; `None` if this node does not know it.
    pub fn health(&self, destination: &str) -> Option<Health> {
        Some(self.plane.all_counters.get(destination)?.health())
    }

    /// Health of every destination that this node knows, by id.
    pub fn healths(&self) -> Vec<(String, Health)> {
        self.plane.all_counters.healths()
    }

    /// Dead letters of a destination, newest first, with ids below `before`.
    ///
    /// # Errors
    /// If the queue fails.
    pub async fn dead_letters(
        &self,
        destination: &str,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Fault> {
        let queue = &self.plane.queue;
        queue.dead_letters(destination, before, limit).await
    }

    /// Events of dead letters that this process removed to make space for newer ones of the same destination and
    /// class.
    pub fn forgotten(&self, class: BatchClass) -> u64 {
        self.plane.queue.forgotten(class)
    }

    /// Moves dead letters of a destination to the end of its queue, in the order of `ids`. Returns how many existed.
    ///
    /// # Errors
    /// If the queue fails. Dead letters moved before the failure stay in the queue.
    pub async fn redrive(&self, destination: &str, ids: &[i64]) -> Result<u32, Fault> {
        let queue = &self.plane.queue;
        let mut n_redriven = 0;
        for id in ids {
            // Ids are shared by all destinations; only dead letters of this one may move.
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

    /// Progress of a replay: the last position of its range whose events are queued or sent, or the position before
    /// the range.
    ///
    /// # Errors
    /// If the queue fails.
    pub async fn replayed(&self, replay: &str, range: &Range) -> Result<i64, Fault> {
        let value = self.plane.queue.cursor(&Replay::cursor(replay)).await?;
        Ok(Replay::position(range, value))
    }

    /// Progress of a replay in the traffic log.
    ///
    /// # Errors
    /// If the queue fails.
    pub async fn replayed_traffic(&self, replay: &str, range: &TrafficRange) -> Result<i64, Fault> {
        let name = Replay::traffic_cursor(replay);
        let value = self.plane.queue.cursor(&name).await?;
        Ok(value.max(range.first.saturating_sub(1)))
    }

    /// A page of the retained events.
    ///
    /// # Errors
    /// If the store or the queue fails.
    pub async fn events(&self, query: &EventQuery) -> Result<EventPage, Fault> {
        let turn = self.searches.take(&query.owner, query.is_followed);
        let _turn = turn.await;
        event_query::page(&self.plane, query).await
    }

    /// Captured messages and bodies that were omitted because the memory for captures was used up.
    pub fn bodies_skipped(&self) -> u64 {
        let budget = self.plane.offers.bodies();
        budget.map_or(0, |budget| budget.skipped())
    }

    /// The cursor after all retained events, from which new events are followed.
    ///
    /// # Errors
    /// If the store or the queue fails.
    pub async fn events_end(&self) -> Result<Cursor, Fault> {
        event_query::end(&self.plane).await
    }

    /// Whether this server retains traffic events.
    pub fn retains_traffic(&self) -> bool {
        self.plane.retains_traffic()
    }

    /// The time of a retained traffic event of `account`, if it exists.
    ///
    /// # Errors
    /// If the queue fails.
    pub async fn find_traffic(&self, id: &str, account: &str) -> Result<Option<Timestamp>, Fault> {
        let found = retained::find(&self.plane, id, account).await?;
        Ok(found.map(|(_, at)| at))
    }

    /// The messages captured beside a traffic event; `None` if there are none.
    ///
    /// # Errors
    /// If the queue fails.
    pub async fn messages(&self, event: &str) -> Result<Option<CapturedMessages>, Fault> {
        retained_bodies::of(&self.plane, event).await
    }

    /// The retained traffic events between two bounds, both inclusive, up to the current end of the log. `None` if a
    /// bound is an event of `account` that is not retained.
    ///
    /// # Errors
    /// If the queue fails.
    pub async fn traffic_range(
        &self,
        from: &Bound,
        to: Option<&Bound>,
        account: &str,
    ) -> Result<Option<TrafficRange>, Fault> {
        retained::range(&self.plane, from, to, account).await
    }

    /// A destination, also if it becomes active within [`ACTIVE_WITHIN`], as one that was created just now does.
    async fn active(&self, id: &str) -> Option<Arc<CompiledDestination>> {
        let mut tables = self.plane.tables.subscribe();
        let active = async {
            loop {
                if let Some(found) = self.plane.table.load().destination(id) {
                    return Some(Arc::clone(found));
                }
                tables.changed().await.ok()?;
            }
        };
        tokio::time::timeout(ACTIVE_WITHIN, active).await.ok()?
    }

    /// Sends a `test` event to a destination: one attempt, which is not recorded. The error is a sentence for the
    /// user.
    pub async fn send_test(&self, destination: &str) -> Result<(), String> {
        let plane = &self.plane;
        let destination = self
            .active(destination)
            .await
            .ok_or("the destination does not exist or is not active yet")?;
        let now = plane.clock.now();
        let id = EventIds::new(plane.entropy.clone()).next(now);
        let event = encode::test(&id, now, &destination.account);
        let batch = Batch::of_one(
            destination.id.clone(),
            BatchClass::Audit,
            event.body.as_bytes(),
        )
        .map_err(|error| error.to_string())?;
        let sent = tokio::time::timeout(TEST_DEADLINE, destination.target.send(&batch))
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

    /// Runs until cancelled. Then it flushes offered records, lets workers finish their sends, and returns within
    /// [`Settings::drain`].
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let plane = self.plane.clone();
        plane.log.start(plane.targets.net()).await;
        if let Err(fault) = plane.log.release_owner(&plane.settings.node).await {
            tracing::error!(cause = %fault.chain(), "releasing the leases of the previous run failed");
        }
        let read = plane.all_counters.begin_read();
        if let Ok(backlog) = plane.log.backlog().await {
            let events = backlog.iter().map(|waiting| waiting.events).sum();
            plane.meters.recovered.add(events);
            plane.all_counters.refresh(read, &backlog);
            plane.check_disk();
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
                // The loss is counted once. From here on, the counts are those of this run.
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
        let bodies = retained_bodies::run(plane.clone(), cancel.clone());
        makers.spawn(supervisor.supervise("delivery.bodies", stopping(&cancel), bodies));
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
        let of = plane.clone();
        let pieces = async move {
            log.keep(stop, &|destination, events| of.lose(destination, events))
                .await;
        };
        keeper.spawn(supervisor.supervise("delivery.event_log", stopping(&stop_keeping), pieces));
        let mut workers = JoinSet::new();
        let working = worker::supervise(plane.clone(), stop_workers.clone());
        workers.spawn(supervisor.supervise("delivery.workers", stopping(&stop_workers), working));
        cancel.cancelled().await;
        // In the direction of the events: the workers send what the flusher still hands over, and the log keeps their
        // leases until they have settled them.
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
