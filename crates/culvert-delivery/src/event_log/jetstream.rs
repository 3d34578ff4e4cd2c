//! The event log in NATS JetStream: traffic batches are messages of one stream that all nodes
//! share.
//!
//! Batches that the stream does not accept go to the queue in the database, which also has the
//! audit events that the dispatcher copies. Workers drain both; within a destination, the database
//! comes first. Dead letters are in the database.
//!
//! A message's id is computed from its batch, so a repeated append changes nothing. The stream
//! keeps a batch until the consumer acknowledges it. Leases and acknowledgements are for whole
//! batches, never for single events.

mod held;
mod lease;
mod stream;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{BoxFuture, Clock, Fault, Timestamp};
use culvert_store::{
    Backlog, BatchClass, Body, DeadBatch, Gathering, Lease, NewBatch, Queue, QueueError, Run,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::lease::{ConsumerLease, Facts, is_of_stream};
use self::stream::{Stream, StreamError, Waiting};
use super::servers::NatsServers;
use super::{EventLog, Settlement};
use crate::batch::{Batch, BatchLimits};
use crate::meters::Meters;
use crate::net::Net;

/// How long the start waits for the first connection.
const CONNECT_FOR: Duration = Duration::from_secs(2);
const CONNECT_LOOK_EVERY: Duration = Duration::from_millis(20);
/// Pause after a fault.
const AFTER_FAULT: Duration = Duration::from_secs(1);

/// Batches that are due now are reported as due since this long ago.
const LONG_AGO: Duration = Duration::from_secs(60);

/// Servers and name of the stream.
#[derive(Clone, Debug)]
pub struct JetStreamSettings {
    /// Servers of one cluster.
    pub servers: NatsServers,
    /// Name of the stream, and what its subjects begin with: letters, digits, `-` and `_`.
    pub stream: String,
    /// Replicas of the stream in a cluster, used when the stream is created.
    pub replicas: u8,
    /// Acknowledgement deadline of messages. If a node dies, other nodes get its batches after this
    /// time.
    pub lease: Duration,
    /// File in which this node records the messages that it holds, so that after a restart it can
    /// return them immediately.
    pub held: Option<PathBuf>,
}

/// Default acknowledgement deadline of messages.
pub const STREAM_LEASE: Duration = Duration::from_secs(30);

/// The event log in a stream.
#[derive(Debug)]
pub(crate) struct JetStream {
    stream: Stream,
    held: Option<PathBuf>,
    queue: Queue,
    /// Changes with every append of this process to the queue.
    appended: watch::Receiver<u64>,
    /// The value of `appended` at which a destination's queue was last found empty.
    empty_at: Mutex<HashMap<String, u64>>,
    queue_failing_until: Mutex<Option<Instant>>,
    slots: Mutex<HashMap<String, Arc<ConsumerSlot>>>,
    clock: Arc<dyn Clock>,
    meters: Arc<Meters>,
}

/// The lease state of a destination, and whether the stream may have messages for it.
#[derive(Debug, Default)]
struct ConsumerSlot {
    has_more: AtomicBool,
    consumer: tokio::sync::Mutex<ConsumerLease>,
}

impl ConsumerSlot {
    fn more(&self) {
        self.has_more.store(true, Ordering::Release);
    }
}

impl JetStream {
    /// A log that connects in [`EventLog::start`].
    pub(crate) fn new(
        settings: &JetStreamSettings,
        queue: Queue,
        clock: Arc<dyn Clock>,
        meters: Arc<Meters>,
    ) -> Self {
        Self {
            stream: Stream::new(settings),
            held: settings.held.clone(),
            appended: queue.watch(),
            queue,
            empty_at: Mutex::default(),
            queue_failing_until: Mutex::default(),
            slots: Mutex::default(),
            clock,
            meters,
        }
    }

    fn slot(&self, destination: &str) -> Arc<ConsumerSlot> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(destination) {
            return slot.clone();
        }
        let slot = Arc::<ConsumerSlot>::default();
        slots.insert(destination.to_owned(), slot.clone());
        slot
    }

    fn slots(&self) -> Vec<Arc<ConsumerSlot>> {
        lock(&self.slots).values().cloned().collect()
    }

    /// Stores batches as messages. Returns those that the stream did not accept.
    async fn store(&self, batches: Vec<(NewBatch, Facts)>) -> Vec<NewBatch> {
        let mut left = Vec::new();
        let mut entries = Vec::with_capacity(batches.len());
        let bytes_max = self.stream.body_bytes_max();
        for (batch, facts) in batches {
            for part in parts(batch, bytes_max) {
                match part.class == BatchClass::Traffic && part.body.stored.len() <= bytes_max {
                    true => entries.push(facts.message(part)),
                    false => left.push(part),
                }
            }
        }
        let outcomes = self.stream.publish(&entries).await;
        for (message, outcome) in entries.into_iter().zip(outcomes) {
            match outcome {
                Ok(_) => self.slot(&message.destination).more(),
                Err(trouble) => {
                    if matches!(trouble, StreamError::Refused(_)) {
                        tracing::error!(destination.id = message.destination, %trouble,
                            "the event log rejected a batch; writing it to the database");
                    }
                    left.push(NewBatch {
                        destination: message.destination,
                        class: BatchClass::Traffic,
                        count: message.events,
                        body: Body {
                            stored: message.body.into(),
                            bytes: message.bytes,
                        },
                    });
                }
            }
        }
        left
    }

    /// The next batch of the database's queue, if the queue may have one.
    async fn lease_queued(
        &self,
        destination: &str,
        owner: &str,
        lease_for: Duration,
        now: Timestamp,
    ) -> Result<Option<Lease>, Fault> {
        let Some(seen) = self.may_be_queued(destination) else {
            return Ok(None);
        };
        let leased = async {
            let lease = self.queue.lease(destination, owner, lease_for, now).await?;
            if lease.is_none() {
                self.note_empty(destination, seen).await?;
            }
            Ok(lease)
        };
        let leased: Result<_, Fault> = leased.await;
        self.note_fault(leased)
    }

    /// The current value of `appended` if the database's queue may have batches of the destination.
    fn may_be_queued(&self, destination: &str) -> Option<u64> {
        let failing_until = *lock(&self.queue_failing_until);
        if failing_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let seen = *self.appended.borrow();
        let is_empty = lock(&self.empty_at).get(destination) == Some(&seen);
        (!is_empty).then_some(seen)
    }

    async fn note_empty(&self, destination: &str, seen: u64) -> Result<(), Fault> {
        if self.queue.next_due(destination).await?.is_none() {
            lock(&self.empty_at).insert(destination.to_owned(), seen);
        }
        Ok(())
    }

    fn note_fault<T>(&self, outcome: Result<T, Fault>) -> Result<T, Fault> {
        if outcome.is_err() {
            *lock(&self.queue_failing_until) = Some(Instant::now() + AFTER_FAULT);
        }
        outcome
    }

    async fn settle_streamed(&self, leases: &[Lease], how: Settlement) -> Result<Vec<i64>, Fault> {
        let Some(first) = leases.first() else {
            return Ok(Vec::new());
        };
        let slot = self.slot(&first.destination);
        let mut consumer = slot.consumer.lock().await;
        let Some(facts) = consumer.held(&self.stream, first) else {
            if matches!(how, Settlement::Ack) {
                consumer.late(&self.stream, first).await;
            }
            return Ok(Vec::new());
        };
        match how {
            Settlement::Ack => {}
            // It is retried together with the head.
            Settlement::Retry { .. } if consumer.is_behind_head(first) => {
                return Ok(batches_of(leases));
            }
            Settlement::Retry { at, .. } => {
                if consumer.put_off(first, at) || leases.len() > 1 {
                    return Ok(batches_of(leases));
                }
                // A claimed batch is stored again, so that the consumer delivers it in order, if
                // the stream is usable.
                let Some(message) = self.stream.get(first.batch.unsigned_abs()).await? else {
                    return Ok(Vec::new());
                };
                let again = Facts {
                    due_at: Some(at),
                    claimed_until: None,
                    ..facts
                };
                let batch = as_new(first, self.stream.body_of(message));
                let left = self.store(vec![(batch, again)]).await;
                if !left.is_empty() {
                    self.queue_all(left).await?;
                }
            }
            Settlement::Replace { pieces, at } => {
                let now = self.clock.now();
                let facts = Facts {
                    attempts: first.attempt,
                    due_at: (now < at).then_some(at),
                    claimed_until: None,
                    ..facts
                };
                let of_line = |piece: NewBatch| NewBatch {
                    destination: first.destination.clone(),
                    class: first.class,
                    ..piece
                };
                let pieces = pieces.into_iter().map(|piece| (of_line(piece), facts));
                let left = self.store(pieces.collect()).await;
                if !left.is_empty() {
                    self.queue_all(left).await?;
                }
            }
            Settlement::DeadLetter(why) => {
                for lease in leases {
                    let Some(message) = self.stream.get(lease.batch.unsigned_abs()).await? else {
                        continue;
                    };
                    let dead = DeadBatch {
                        batch: as_new(lease, self.stream.body_of(message)),
                        attempts: lease.attempt,
                        first_at: lease.first_at,
                        why: why.clone(),
                    };
                    self.queue.put_dead(dead).await?;
                }
            }
        }
        // The head is settled last: until then no other node gets a batch of the destination.
        for lease in leases.iter().rev() {
            consumer.remove(&self.stream, lease).await;
        }
        Ok(batches_of(leases))
    }

    /// Appends to the queue the batches that the stream did not accept.
    async fn queue_all(&self, batches: Vec<NewBatch>) -> Result<(), Fault> {
        let events = batches.iter().map(|batch| u64::from(batch.count)).sum();
        let appended = self.queue.append(batches, None).await;
        appended.map_err(|error| match error {
            QueueError::Fault(fault) => fault,
            QueueError::Lost => Fault::new("appending batches", error),
        })?;
        self.meters.log_fallbacks.add(events);
        Ok(())
    }

    /// The backlog of the stream; empty while the stream is unreachable, so that callers can
    /// continue.
    async fn waiting(&self) -> BTreeMap<String, Waiting> {
        match self.stream.waiting(None).await {
            Ok(waiting) => waiting,
            Err(trouble) => {
                tracing::debug!(%trouble, "cannot read the backlog of the event log");
                BTreeMap::new()
            }
        }
    }

    /// Checks whether the stream can be used. Logs changes, and the reason if there is no
    /// connection.
    async fn look(&self, seen: &mut Option<(bool, Option<String>)>) {
        let usable = self.stream.usable().await;
        self.meters.log_up.set(u64::from(usable.is_ok()));
        let now = (usable.is_ok(), self.stream.why_unconnected());
        if seen.as_ref() != Some(&now) {
            match &usable {
                Ok(()) => tracing::info!("event log available"),
                Err(trouble) => tracing::error!(
                    "event log unavailable; queuing traffic events in the database: {trouble}"
                ),
            }
        }
        *seen = Some(now);
    }
}

impl EventLog for JetStream {
    fn start<'a>(&'a self, net: &'a Net) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Err(fault) = self.stream.connect(net).await {
                tracing::error!(cause = %fault.chain(), "cannot connect to the event log");
                return;
            }
            let until = Instant::now() + CONNECT_FOR;
            while !self.stream.is_connected() && Instant::now() < until {
                tokio::time::sleep(CONNECT_LOOK_EVERY).await;
            }
            if let Some(path) = &self.held {
                let given_back = self.stream.give_back_held(path, self.clock.now()).await;
                if let Err(error) = given_back {
                    tracing::warn!(%error, path = %path.display(), "batches of the previous run wait for their leases to expire");
                }
            }
        })
    }

    fn keep(&self, cancel: CancellationToken) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut seen = None;
            let every = self.stream.lease / 4;
            while !cancel.is_cancelled() {
                self.look(&mut seen).await;
                for slot in self.slots() {
                    let now = self.clock.now();
                    slot.consumer.lock().await.keep(&self.stream, now).await;
                }
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    () = cancel.cancelled() => {}
                }
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for slot in self.slots() {
                slot.consumer.lock().await.give_back(&self.stream).await;
            }
        })
    }

    fn usable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let (queue, stream) = tokio::join!(self.queue.usable(), self.stream.usable());
            queue?;
            Ok(stream?)
        })
    }

    fn append(&self, batches: Vec<NewBatch>) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let facts = Facts::new(self.clock.now());
            let batches = batches.into_iter().map(|batch| (batch, facts)).collect();
            let left = self.store(batches).await;
            if left.is_empty() {
                return Ok(());
            }
            self.queue_all(left).await
        })
    }

    fn append_leased<'a>(
        &'a self,
        batch: NewBatch,
        owner: &'a str,
        lease_for: Duration,
    ) -> BoxFuture<'a, Result<Lease, Fault>> {
        Box::pin(async move {
            let fits = batch.body.stored.len() <= self.stream.body_bytes_max();
            if batch.class == BatchClass::Traffic && fits {
                let now = self.clock.now();
                let facts = Facts {
                    attempts: 1,
                    claimed_until: Some(now.plus(lease_for)),
                    ..Facts::new(now)
                };
                let slot = self.slot(&batch.destination);
                let mut consumer = slot.consumer.lock().await;
                let message = facts.claimed(batch.clone(), owner);
                let stored = self.stream.publish(&[message]).await.into_iter().next();
                if let Some(Ok(sequence)) = stored {
                    slot.more();
                    let fence = consumer.claim(sequence, facts, lease_for);
                    return Ok(Lease {
                        batch: i64::try_from(sequence).unwrap_or(i64::MAX),
                        destination: batch.destination,
                        class: batch.class,
                        count: batch.count,
                        body: Vec::new(),
                        attempt: 1,
                        first_at: now,
                        fence,
                        why: None,
                    });
                }
            }
            let events = u64::from(batch.count);
            let lease = self.queue.append_leased(batch, owner, lease_for).await?;
            self.meters.log_fallbacks.add(events);
            Ok(lease)
        })
    }

    fn lease<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Option<Lease>, Fault>> {
        Box::pin(async move {
            let queued = self.lease_queued(destination, owner, lease_for, now).await;
            if let Ok(Some(_)) = &queued {
                return queued;
            }
            let slot = self.slot(destination);
            let mut consumer = slot.consumer.lock().await;
            let mut has_more = slot.has_more.swap(false, Ordering::AcqRel);
            let streamed = consumer
                .lease(
                    &self.stream,
                    (destination, owner),
                    lease_for,
                    now,
                    &mut has_more,
                )
                .await;
            if has_more {
                slot.more();
            }
            match streamed {
                Ok(Some(lease)) => Ok(Some(lease)),
                Ok(None) => queued,
                Err(StreamError::Refused(why)) => Err(StreamError::Refused(why).into()),
                Err(trouble) => {
                    tracing::debug!(destination.id = destination, %trouble, "cannot lease a batch");
                    queued
                }
            }
        })
    }

    fn lease_several<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
        send: BatchLimits,
    ) -> BoxFuture<'a, Result<Vec<Lease>, Fault>> {
        Box::pin(async move {
            if let Some(seen) = self.may_be_queued(destination) {
                let several =
                    EventLog::lease_several(&self.queue, destination, owner, lease_for, now, send);
                match self.note_fault(several.await) {
                    Ok(leases) if leases.is_empty() => self.note_empty(destination, seen).await?,
                    Ok(leases) => return Ok(leases),
                    Err(fault) => {
                        tracing::debug!(destination.id = destination, cause = %fault.chain(), "cannot lease batches");
                    }
                }
            }
            let slot = self.slot(destination);
            let mut consumer = slot.consumer.lock().await;
            let mut has_more = slot.has_more.swap(false, Ordering::AcqRel);
            let line_of = (destination, owner);
            let streamed = consumer
                .lease_several(&self.stream, line_of, lease_for, now, send, &mut has_more)
                .await;
            if has_more {
                slot.more();
            }
            match streamed {
                Ok(leases) => Ok(leases),
                Err(StreamError::Refused(why)) => Err(StreamError::Refused(why).into()),
                Err(trouble) => {
                    tracing::debug!(destination.id = destination, %trouble, "cannot lease batches");
                    Ok(Vec::new())
                }
            }
        })
    }

    fn lease_run<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
        gathering: Gathering,
    ) -> BoxFuture<'a, Result<Run, Fault>> {
        Box::pin(async move {
            let mut queued = Run::default();
            if let Some(seen) = self.may_be_queued(destination) {
                let run = self
                    .queue
                    .lease_run(destination, owner, lease_for, now, gathering);
                queued = self.note_fault(run.await)?;
                if queued.leases.is_empty() && queued.next_at.is_none() {
                    self.note_empty(destination, seen).await?;
                }
            }
            if !queued.leases.is_empty() {
                return Ok(queued);
            }
            let slot = self.slot(destination);
            let mut consumer = slot.consumer.lock().await;
            let mut has_more = slot.has_more.swap(false, Ordering::AcqRel);
            let streamed = consumer
                .lease_run(
                    &self.stream,
                    (destination, owner),
                    lease_for,
                    now,
                    gathering,
                    &mut has_more,
                )
                .await;
            if has_more {
                slot.more();
            }
            match streamed {
                Ok(run) if run.leases.is_empty() => Ok(Run {
                    leases: Vec::new(),
                    next_at: earlier(run.next_at, queued.next_at),
                }),
                Ok(run) => Ok(run),
                Err(StreamError::Refused(why)) => Err(StreamError::Refused(why).into()),
                Err(trouble) => {
                    tracing::debug!(destination.id = destination, %trouble, "cannot lease batches");
                    Ok(queued)
                }
            }
        })
    }

    fn body<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Option<Vec<u8>>, Fault>> {
        Box::pin(async move {
            if !is_of_stream(lease) {
                return self.queue.body(lease).await;
            }
            let slot = self.slot(&lease.destination);
            if slot
                .consumer
                .lock()
                .await
                .held(&self.stream, lease)
                .is_none()
            {
                return Ok(None);
            }
            let found = self.stream.get(lease.batch.unsigned_abs()).await?;
            Ok(found.map(|message| message.payload.into()))
        })
    }

    fn settle<'a>(
        &'a self,
        leases: &'a [Lease],
        how: Settlement,
    ) -> BoxFuture<'a, Result<Vec<i64>, Fault>> {
        Box::pin(async move {
            match leases.first().is_some_and(is_of_stream) {
                true => self.settle_streamed(leases, how).await,
                false => EventLog::settle(&self.queue, leases, how).await,
            }
        })
    }

    fn next_due<'a>(
        &'a self,
        destination: &'a str,
    ) -> BoxFuture<'a, Result<Option<Timestamp>, Fault>> {
        Box::pin(async move {
            let queued = match self.may_be_queued(destination) {
                Some(_) => self.note_fault(self.queue.next_due(destination).await)?,
                None => None,
            };
            let slot = self.slot(destination);
            let consumer = slot.consumer.lock().await;
            let streamed = consumer.next_due().or_else(|| {
                let has_more = slot.has_more.load(Ordering::Acquire);
                let now = self.clock.now();
                // Earlier than any time at which the caller may have read its clock.
                let at = match self.stream.is_connected() {
                    true => now.minus(LONG_AGO),
                    false => now.plus(AFTER_FAULT),
                };
                has_more.then_some(at)
            });
            Ok(earlier(queued, streamed))
        })
    }

    fn backlog(&self) -> BoxFuture<'_, Result<Vec<Backlog>, Fault>> {
        Box::pin(async move {
            let waiting = self.waiting().await;
            for destination in waiting.keys() {
                self.slot(destination).more();
            }
            let queued = self.queue.backlog().await?;
            lock(&self.empty_at).retain(|destination, _| {
                !queued
                    .iter()
                    .any(|waiting| waiting.batches > 0 && waiting.destination == *destination)
            });
            let mut backlog: BTreeMap<String, Backlog> = queued
                .into_iter()
                .map(|queued| (queued.destination.clone(), queued))
                .collect();
            for (destination, waiting) in waiting {
                let total = backlog
                    .entry(destination.clone())
                    .or_insert_with(|| Backlog::empty(destination));
                total.batches += waiting.batches;
                total.events += waiting.events;
                total.bytes += waiting.bytes;
                // The stream has no audit events.
                total.traffic_events += waiting.events;
                total.traffic_bytes += waiting.bytes;
            }
            Ok(backlog.into_values().collect())
        })
    }

    fn hasten<'a>(
        &'a self,
        destination: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            self.queue.hasten(destination, now).await?;
            let slot = self.slot(destination);
            // Messages that are stored later are not affected.
            let last = self.stream.last().await.unwrap_or(0);
            slot.consumer.lock().await.hasten(now, last);
            Ok(())
        })
    }

    fn drop_destination<'a>(&'a self, destination: &'a str) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            self.stream.drop_line(destination).await?;
            lock(&self.slots).remove(destination);
            lock(&self.empty_at).remove(destination);
            self.queue.drop_destination(destination).await.map(drop)
        })
    }

    fn release_owner<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.queue.release_owner(owner))
    }
}

/// Splits a batch so that each part fits into a message. A single event is never split.
fn parts(batch: NewBatch, bytes_max: usize) -> Vec<NewBatch> {
    let mut done = Vec::new();
    let mut left = vec![batch];
    while let Some(batch) = left.pop() {
        let is_small = batch.body.stored.len() <= bytes_max || batch.count <= 1;
        let halves = match is_small {
            true => None,
            false => {
                let destination = batch.destination.as_str().into();
                let read = Batch::read(destination, batch.class, batch.body.stored.clone()).ok();
                read.and_then(|read| read.halves())
            }
        };
        match halves {
            Some([first, second]) => left.extend([second, first].map(|half| NewBatch {
                count: half.len(),
                body: half.finish(),
                destination: batch.destination.clone(),
                class: batch.class,
            })),
            None => done.push(batch),
        }
    }
    done
}

fn as_new(lease: &Lease, body: Body) -> NewBatch {
    NewBatch {
        destination: lease.destination.clone(),
        class: lease.class,
        count: lease.count,
        body,
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

fn batches_of(leases: &[Lease]) -> Vec<i64> {
    leases.iter().map(|lease| lease.batch).collect()
}
