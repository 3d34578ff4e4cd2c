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
mod outstanding;
mod stream;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{BoxFuture, Clock, Fault, Timestamp};
use culvert_store::{
    Backlog, BatchClass, Body, CursorMove, DeadBatch, Gathering, Lease, NewBatch, Queue,
    QueueError, Run,
};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::{NatsServers, Net};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::lease::{ConsumerLease, Facts, is_of_stream};
use self::outstanding::{Outstanding, StreamState};
use self::stream::{Stream, StreamError, Waiting};
use super::{EventLog, Settlement};
use crate::plane::meters::Meters;

/// Messages that one look searches one by one.
const DOUBTFUL_MAX: usize = 500;
/// How long the start waits for the first connection.
const CONNECT_FOR: Duration = Duration::from_secs(2);
const CONNECT_LOOK_EVERY: Duration = Duration::from_millis(20);
/// Pause after a fault.
const AFTER_FAULT: Duration = Duration::from_secs(1);

/// How long a proof that messages were lost is kept for other nodes.
const PROOF_KEPT: Duration = Duration::from_secs(120);

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
    /// File in which a node that stops records the messages that it stored and that still wait, so
    /// that its next run notices if they vanish.
    pub stored: Option<PathBuf>,
    /// Whether other nodes use the stream too.
    pub is_shared: bool,
}

/// Default acknowledgement deadline of messages.
pub const STREAM_LEASE: Duration = Duration::from_secs(30);

/// The event log in a stream.
#[derive(Debug)]
pub(crate) struct JetStream {
    stream: Stream,
    held: Option<PathBuf>,
    stored: Option<PathBuf>,
    is_shared: bool,
    outstanding: Outstanding,
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
            stored: settings.stored.clone(),
            is_shared: settings.is_shared,
            outstanding: Outstanding::default(),
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
        let publication = self.outstanding.publish();
        let outcomes = self.stream.publish(&entries).await;
        for (message, outcome) in entries.into_iter().zip(outcomes) {
            match outcome {
                Ok(stored) => {
                    // A repeated one may have been settled before.
                    if !stored.is_repeated {
                        publication.stored(&message.destination, stored.sequence, message.events);
                    }
                    self.slot(&message.destination).more();
                }
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
                for lease in leases {
                    self.settled(lease);
                }
            }
            return Ok(Vec::new());
        };
        let mut lost = Vec::new();
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
                    self.lose(first);
                    consumer.remove(&self.stream, first).await;
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
                        self.lose(lease);
                        lost.push(lease.batch);
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
            self.settled(lease);
            consumer.remove(&self.stream, lease).await;
        }
        let mut settled = batches_of(leases);
        settled.retain(|batch| !lost.contains(batch));
        Ok(settled)
    }

    fn settled(&self, lease: &Lease) {
        let sequence = lease.batch.unsigned_abs();
        self.outstanding.settled(&lease.destination, sequence);
    }

    /// Counts a leased batch that is not in the stream any more.
    fn lose(&self, lease: &Lease) {
        let sequence = lease.batch.unsigned_abs();
        self.outstanding
            .lose(&lease.destination, sequence, lease.count);
    }

    /// Messages of this node that were not in the stream when it last looked.
    #[cfg(test)]
    pub(super) fn n_away(&self) -> usize {
        self.outstanding.n_away()
    }

    /// Looks for messages that the stream lost.
    async fn find_lost(&self, proofs: &mut BTreeMap<String, Instant>) -> Result<(), StreamError> {
        let state = self.stream.state().await?;
        if self.outstanding.note(&state) {
            tracing::error!(
                stream = self.stream.name(),
                "the event log was deleted or lost its data, and was created again"
            );
        }
        if self.is_shared
            && let Err(fault) = self.read_proofs(&state, proofs).await
        {
            tracing::debug!(cause = %fault.chain(), "cannot read what other nodes found lost");
        }
        let mut destinations: HashSet<String> =
            self.outstanding.destinations().into_iter().collect();
        if self.is_shared {
            destinations.extend(lock(&self.slots).keys().cloned());
        }
        for destination in destinations {
            let slot = self.slot(&destination);
            let mut consumer = slot.consumer.lock().await;
            // Batches in a send may end at any moment. They are checked later.
            if consumer.is_sending(self.clock.now()) {
                continue;
            }
            if self.is_shared && consumer.may_prove_loss(&self.stream) {
                let lost = consumer
                    .take_lost(&self.stream, &destination, &state)
                    .await?;
                if let Some(lost) = lost {
                    slot.more();
                    self.prove(&destination, state.created, lost).await;
                }
            }
            self.look_for(&destination, &state).await?;
        }
        Ok(())
    }

    /// Looks for messages that their consumer will never deliver, and removes such a consumer: the next pull makes it again.
    /// A server that lost the end of its stream, but not the states of the consumers, gives new messages sequence numbers
    /// that the consumers count as settled. `seen` has those of the last look, since only a message that stays is one.
    async fn find_passed_over(&self, seen: &mut HashMap<String, u64>) -> Result<(), StreamError> {
        let mut found = HashMap::new();
        for destination in self.stream.waiting(None).await?.into_keys() {
            let Some(sequence) = self.stream.passed_over(&destination).await? else {
                continue;
            };
            if seen.get(&destination) != Some(&sequence) {
                found.insert(destination, sequence);
                continue;
            }
            self.stream.drop_consumer(&destination).await?;
            tracing::error!(
                destination.id = destination,
                sequence,
                "the event log lost the end of its stream, and passed over later batches; they are delivered now"
            );
            self.slot(&destination).more();
        }
        *seen = found;
        Ok(())
    }

    /// Looks for the messages of a destination.
    async fn look_for(&self, destination: &str, state: &StreamState) -> Result<(), StreamError> {
        let mut looked_for = HashMap::new();
        // A message each, so the others wait for later looks.
        let doubtful = self.outstanding.doubtful(destination, state);
        for (sequence, events) in doubtful.into_iter().take(DOUBTFUL_MAX) {
            let found = self.stream.get(sequence).await?;
            let is_there =
                found.is_some_and(|found| self.stream.is_of(&found, destination, events));
            looked_for.insert(sequence, is_there);
        }
        let first = match self.outstanding.first(destination, state) {
            Some(first) => self.stream.next(destination, first).await?,
            None => None,
        };
        let first = first.map(|message| message.sequence);
        // If the stream was created again since its state was read, the first message is one of the new stream, and
        // would bring back the messages that other nodes settled.
        if first.is_some()
            && self.outstanding.is_any_away(destination)
            && self.stream.state().await?.created != state.created
        {
            return Ok(());
        }
        self.outstanding
            .looked(destination, state, &looked_for, first, !self.is_shared);
        Ok(())
    }

    /// Tells all nodes that the stream lost the messages of a range.
    async fn prove(&self, destination: &str, created: i64, lost: Range<u64>) {
        let name = format!("{}{created}:{destination}:{}", self.proofs(), lost.start);
        let to = i64::try_from(lost.end).unwrap_or(i64::MAX);
        self.outstanding.prove(destination, created, lost);
        let cursor = CursorMove { name, from: 0, to };
        if let Err(error) = self.queue.append(Vec::new(), Some(cursor)).await {
            tracing::warn!(destination.id = destination, %error,
                "other nodes do not learn which events the event log lost, and do not count them");
        }
    }

    /// What the names of cursors with proofs begin with.
    fn proofs(&self) -> String {
        format!("log_lost:{}:", self.stream.name())
    }

    /// Reads what other nodes have proven, and removes old proofs.
    async fn read_proofs(
        &self,
        state: &StreamState,
        seen: &mut BTreeMap<String, Instant>,
    ) -> Result<(), Fault> {
        let prefix = self.proofs();
        let names = self.queue.cursors(&prefix).await?;
        seen.retain(|name, _| names.contains(name));
        for name in names {
            if let Some(seen_at) = seen.get(&name) {
                if seen_at.elapsed() >= PROOF_KEPT {
                    self.queue.drop_cursor(&name).await?;
                }
                continue;
            }
            let to = u64::try_from(self.queue.cursor(&name).await?).unwrap_or(0);
            let mut parts = name[prefix.len()..].split(':');
            let created = parts.next().and_then(|text| text.parse().ok());
            let destination = parts.next();
            let from = parts.next().and_then(|text| text.parse::<u64>().ok());
            if let (Some(created), Some(destination), Some(from)) = (created, destination, from)
                && created == state.created
            {
                self.outstanding.prove(destination, created, from..to);
            }
            seen.insert(name, Instant::now());
        }
        Ok(())
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
    async fn check_stream(&self, seen: &mut Option<(bool, Option<String>)>) {
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
            if let Some(path) = &self.stored {
                let loaded = self.outstanding.load(path, self.stream.name());
                if let Err(error) = loaded {
                    tracing::warn!(%error, path = %path.display(), "batches of the previous run are not counted if the event log lost them");
                }
            }
        })
    }

    fn keep<'a>(
        &'a self,
        cancel: CancellationToken,
        lost: &'a (dyn Fn(&str, u64) + Send + Sync),
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut seen = None;
            let mut proofs = BTreeMap::new();
            let mut passed_over = HashMap::new();
            let every = self.stream.lease / 4;
            while !cancel.is_cancelled() {
                self.check_stream(&mut seen).await;
                for slot in self.slots() {
                    let now = self.clock.now();
                    slot.consumer.lock().await.keep(&self.stream, now).await;
                }
                // Leases must be extended in time. Other destinations have their turn at a later look.
                match tokio::time::timeout(every, self.find_lost(&mut proofs)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(trouble)) => tracing::debug!(%trouble, "cannot look for lost batches"),
                    Err(_) => tracing::debug!("looking for lost batches takes long"),
                }
                match tokio::time::timeout(every, self.find_passed_over(&mut passed_over)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(trouble)) => {
                        tracing::debug!(%trouble, "cannot look for batches that are passed over")
                    }
                    Err(_) => {
                        tracing::debug!("looking for batches that are passed over takes long")
                    }
                }
                for (destination, events) in self.outstanding.take_lost() {
                    tracing::error!(
                        destination.id = destination,
                        events,
                        "the event log lost {events} traffic events that waited for a destination"
                    );
                    lost(&destination, events);
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
            if let Some(path) = &self.stored {
                let saved = self.outstanding.save(path, self.stream.name());
                if let Err(error) = saved {
                    tracing::warn!(%error, path = %path.display(), "waiting batches are not counted if the event log loses them before the next start");
                }
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
                if let Some(Ok(stored)) = stored {
                    let sequence = stored.sequence;
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
            self.outstanding.forget(destination);
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
