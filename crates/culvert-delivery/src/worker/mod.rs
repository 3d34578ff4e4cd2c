//! Sends batches to one destination and settles them.
//!
//! A worker has at most one leased batch. It never drops a batch: every lease ends in an acknowledgement, a retry,
//! a replacement or a dead letter. A crash between send and settlement repeats the send with the same event ids.
//! Each destination has its own worker, so a destination that hangs holds one task and one connection only.
//!
//! Not here: the content of batches (`recorder`, `dispatcher`), when to stop retrying (`retry`).

mod direct;
mod drain;
mod gather;
mod refused;
mod supervise;
pub(crate) mod worker_notifier;

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use culvert_base::{Fault, Timestamp};
use culvert_store::{BatchClass, DeadLetterReason, Lease, NewBatch, QueueError};
use culvert_target::batch::{Batch, OpenBatch};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::LAST_STATUS;
use culvert_target::{Outcome, Verdict};

use self::refused::{Refusing, SplitBatch, SplitMode};
pub(crate) use self::supervise::supervise;
use crate::health::DestinationState;
use crate::health::attempts::{self, Attempt};
use crate::plane::Plane;
use crate::plane::meters::Dropped;
use crate::plane::settings::DESTINATION_KIND;
use crate::retry::{Circuit, Failed, Next};
use crate::subscription::CompiledDestination;

const AFTER_FAULT: Duration = Duration::from_secs(1);
/// Longest pause of a worker that panics again and again. The first is [`AFTER_FAULT`].
const AFTER_PANIC_MAX: Duration = Duration::from_secs(60);
/// Shortest pause of a worker that found nothing to send.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Rejected events of a split batch that a worker remembers, so it does not send them again alone.
const REJECTED_MAX: usize = 4096;

/// Result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A batch was delivered, split or dead-lettered.
    Moved,
    /// A batch failed and waits for its next attempt.
    Failed,
    /// Nothing can be sent before that time, or until a wake-up.
    Idle(Option<Timestamp>),
    /// The destination and its queue do not exist.
    Gone,
}

/// The worker of one destination.
pub(crate) struct Worker {
    plane: Arc<Plane>,
    destination: Arc<str>,
    circuit: Circuit,
    /// The revision of the destination that `circuit` and `gone` apply to.
    revision: Option<i64>,
    /// How many times the clock was set when their times were read.
    times_set: u64,
    /// The destination reported that it is permanently gone.
    gone: Option<Failure>,
    /// The failure of the last send.
    last: Option<Failure>,
    /// Events that the destination permanently rejected, by idempotency key.
    rejected: HashMap<String, Failure>,
    /// When the gathered batches are old enough for an object, as far as is known.
    gather_due_at: Option<Timestamp>,
    /// Bytes of an object that can be written in time, as far as is known.
    object_bytes_max: u64,
    /// Whether the last batch came from memory.
    is_direct: bool,
    /// Whether a batch was accepted and none failed since.
    has_moved: bool,
    /// Number of batches to lease one by one, because they were rejected together.
    single_leases: u32,
    /// The rejected batch whose parts are being sent.
    split: Option<SplitBatch>,
    refusing: Refusing,
}

impl Worker {
    pub(crate) fn new(plane: Arc<Plane>, destination: Arc<str>) -> Self {
        Self {
            plane,
            destination,
            circuit: Circuit::default(),
            revision: None,
            times_set: 0,
            gone: None,
            last: None,
            rejected: HashMap::new(),
            gather_due_at: None,
            object_bytes_max: u64::MAX,
            is_direct: false,
            has_moved: false,
            single_leases: 0,
            split: None,
            refusing: Refusing::default(),
        }
    }

    /// Runs until the destination is deleted or the worker is cancelled. After cancellation it continues while
    /// batches are accepted, to empty the queue.
    async fn run(mut self, wake: Arc<Notify>, cancel: CancellationToken) -> Arc<str> {
        self.plane.begin_worker(&self.destination);
        let (mut is_faulted, mut panics) = (false, 0);
        loop {
            let Ok(step) = AssertUnwindSafe(self.step()).catch_unwind().await else {
                let pause = AFTER_FAULT.saturating_mul(1 << panics.min(16));
                panics += 1;
                self = self.after_panic();
                tokio::select! {
                    () = tokio::time::sleep(pause.min(AFTER_PANIC_MAX)) => continue,
                    () = cancel.cancelled() => return self.destination,
                }
            };
            if matches!(step, Ok(Step::Moved)) {
                panics = 0;
            }
            if step.is_ok() && std::mem::take(&mut is_faulted) {
                tracing::info!(destination.id = %self.destination, "batches can be read and settled again");
            }
            let until = match step {
                Ok(Step::Gone) => return self.destination,
                // Also after cancellation: the queue is emptied while batches are accepted.
                Ok(Step::Moved) => continue,
                _ if cancel.is_cancelled() => return self.destination,
                // The next step finds out how long to wait.
                Ok(Step::Failed) => continue,
                Ok(Step::Idle(until)) => until.map(|until| until.since(self.plane.clock.now())),
                Err(fault) => {
                    // Logged once, not at every attempt.
                    if !std::mem::replace(&mut is_faulted, true) {
                        tracing::error!(destination.id = %self.destination, cause = %fault.chain(),
                            "cannot read or settle batches");
                    }
                    Some(AFTER_FAULT)
                }
            };
            let timer = async {
                match until {
                    Some(until) => tokio::time::sleep(until.max(PAUSE_MIN)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wake.notified() => {}
                () = timer => {}
                () = cancel.cancelled() => {}
            }
        }
    }

    /// A worker that knows nothing of this one, which panicked. A batch from the queue is leased again when its lease
    /// has expired; one from memory is gone.
    fn after_panic(self) -> Self {
        tracing::error!(destination.id = %self.destination, "a delivery worker panicked; restarting it");
        self.plane.begin_worker(&self.destination);
        Self::new(self.plane, self.destination)
    }

    /// Sends at most one batch.
    pub(crate) async fn step(&mut self) -> Result<Step, Fault> {
        let plane = self.plane.clone();
        let Some(destination) = plane.table.load().destination(&self.destination).cloned() else {
            return self.without_destination().await;
        };
        let now = plane.clock.now();
        let times_set = plane.clock.times_set();
        if self.revision != Some(destination.revision) || self.times_set != times_set {
            if self.revision.is_some() {
                // Failures under the old settings say nothing about the new ones, and times of a clock that was set
                // since say nothing about the present.
                plane.log.hasten(&self.destination, now).await?;
            }
            self.revision = Some(destination.revision);
            self.times_set = times_set;
            self.circuit.reset();
            self.gone = None;
            self.gather_due_at = None;
            self.split = None;
        }
        let paused_until = self.circuit.paused_until(now);
        let counters = &destination.counters;
        let is_ready = paused_until.is_none() && self.gone.is_none();
        if is_ready && counters.has_empty_queue() {
            if let Some(step) = self.step_directly(&destination).await? {
                self.is_direct = true;
                return Ok(step);
            }
            // The wake-up was for the buffer. Other batches cause their own wake-ups.
            if std::mem::take(&mut self.is_direct) {
                return Ok(Step::Idle(None));
            }
        }
        // Batches that cannot be sent now wait in the queue, not in memory.
        if !is_ready || counters.is_failing() {
            plane.spill.request_spill(&destination.id, counters);
        }
        if let Some(until) = paused_until
            && !self.circuit.is_open()
        {
            // Ramping. While the circuit is open, batches that are due are still checked for their age, below.
            return Ok(Step::Idle(Some(until)));
        }
        if let Some(gathers) = destination.target.gathers() {
            return match paused_until {
                Some(until) => Ok(Step::Idle(Some(until))),
                None => self.gather(&destination, gathers, now).await,
            };
        }
        if is_ready && self.may_drain(&destination) {
            if let Some(step) = self.drain(&destination, now).await? {
                return Ok(step);
            }
            self.has_moved = false;
            let due = self.next_due(now).await?;
            return Ok(Step::Idle(due));
        }
        // A read first: most wake-ups of a failing destination come before its next attempt is due.
        let due = self.next_due(now).await?;
        if due.is_some_and(|due| due > now) {
            return Ok(Step::Idle(due.max(paused_until)));
        }
        let settings = &plane.settings;
        let lease = plane
            .log
            .lease(&self.destination, &settings.node, settings.lease, now)
            .await?;
        let Some(mut lease) = lease else {
            // Another node has leased it.
            return Ok(Step::Idle(due.max(paused_until)));
        };
        // Settlement needs only the lease's numbers.
        let body = std::mem::take(&mut lease.body);
        let Ok(batch) = Batch::read(self.destination.clone(), lease.class, body) else {
            let failure = Failure::new(
                FailureClass::Permanent,
                "unreadable",
                "the stored batch is malformed",
            );
            self.dead_letter(&destination, &lease, 0, &failure).await?;
            return Ok(Step::Moved);
        };
        if self.withhold(&destination, &lease, &batch).await? {
            return Ok(Step::Moved);
        }
        if let Some(failure) = self.condemned_whole(&batch) {
            self.dead_letter(&destination, &lease, bytes_of(&batch), &failure)
                .await?;
            return Ok(Step::Moved);
        }
        if let (Some(until), Some(failure)) = (paused_until, self.last.clone()) {
            return self
                .pass_by(&destination, &lease, &batch, &failure, until)
                .await;
        }
        if let Some(failure) = self.gone.clone() {
            return self.put_off(&destination, &lease, &batch, &failure).await;
        }
        if !plane.may_send(lease.attempt) {
            let at = now.plus(Duration::from_secs(1));
            self.settled(
                plane
                    .log
                    .retry(&lease, at, "waiting for the retry budget")
                    .await,
            )?;
            return Ok(Step::Idle(Some(at)));
        }
        let verdict = self.send(&destination, &batch, lease.attempt).await;
        self.settle(&destination, &lease, &batch, verdict).await
    }

    /// When the next batch is due. One that is later than any wait can be was put off by a wrong clock: it is due now.
    async fn next_due(&self, now: Timestamp) -> Result<Option<Timestamp>, Fault> {
        let (plane, destination) = (&self.plane, &*self.destination);
        let due = plane.log.next_due(destination).await?;
        if due.is_none_or(|due| due <= now.plus(plane.settings.schedule.longest())) {
            return Ok(due);
        }
        plane.log.hasten(destination, now).await?;
        plane.log.next_due(destination).await
    }

    /// Postpones a batch to `until`, or gives it up if it is too old. So batches expire even if another batch uses
    /// every probe.
    async fn pass_by(
        &mut self,
        destination: &CompiledDestination,
        lease: &Lease,
        batch: &Batch,
        failure: &Failure,
        until: Timestamp,
    ) -> Result<Step, Fault> {
        match self.next(lease, failure, self.plane.clock.now()) {
            Next::At(_) => {
                let why = failure.to_string();
                self.settled(self.plane.log.retry(lease, until, &why).await)?;
            }
            Next::GiveUp => {
                self.dead_letter(destination, lease, bytes_of(batch), failure)
                    .await?
            }
        }
        Ok(Step::Moved)
    }

    /// Handles a destination that is not in the table: deleted, or not compiled yet.
    async fn without_destination(&self) -> Result<Step, Fault> {
        let plane = &self.plane;
        let exists = plane
            .store
            .get(DESTINATION_KIND, &self.destination)
            .await?
            .is_some();
        if exists {
            if let Some(counters) = plane.all_counters.get(&self.destination) {
                plane.spill.request_spill(&self.destination, &counters);
            }
            // A published table wakes all workers; the supervisor reads the backlog as a fallback.
            return Ok(Step::Idle(None));
        }
        let dropped = plane
            .log
            .backlog()
            .await?
            .into_iter()
            .find(|waiting| *waiting.destination == *self.destination)
            .map_or(0, |waiting| waiting.events);
        plane.log.drop_destination(&self.destination).await?;
        if let Some(counters) = plane.all_counters.get(&self.destination) {
            plane.abandon(&counters, Dropped::DestinationDeleted);
        }
        plane
            .meters
            .dropped
            .add(Dropped::DestinationDeleted, dropped);
        Ok(Step::Gone)
    }

    /// Removes the events whose reader lost the right to them while they waited, and queues the rest again. Returns
    /// whether there were any.
    async fn withhold(
        &mut self,
        destination: &CompiledDestination,
        lease: &Lease,
        batch: &Batch,
    ) -> Result<bool, Fault> {
        let Some(withheld) = self.plane.table.load().withheld_of(batch) else {
            return Ok(false);
        };
        let (mut events, mut bytes) = (0, 0);
        for (delivery, _) in batch.deliveries().zip(&withheld).filter(|(_, is)| **is) {
            events += 1;
            bytes += u64::try_from(delivery.envelope.len() + 1).unwrap_or(0);
        }
        self.split = None;
        let settled = match batch.only(|index| !withheld[index]) {
            Some(rest) => {
                let now = self.plane.clock.now();
                let rest = vec![self.piece(lease, rest)];
                self.plane.log.replace(lease, rest, now).await
            }
            None => self.plane.log.ack(lease).await,
        };
        if self.settled(settled)? {
            self.drop_withheld(destination, lease.class, events, bytes);
        }
        Ok(true)
    }

    fn drop_withheld(
        &self,
        destination: &CompiledDestination,
        class: BatchClass,
        events: u64,
        bytes: u64,
    ) {
        self.plane.meters.dropped.add(Dropped::RightsLost, events);
        destination
            .counters
            .dropped
            .add(Dropped::RightsLost, events);
        destination.counters.settled(class, events, bytes);
    }

    async fn send(
        &self,
        destination: &CompiledDestination,
        batch: &Batch,
        attempt: u32,
    ) -> Verdict {
        let plane = &self.plane;
        plane.meters.sends.add(1);
        destination.counters.batches.add(1);
        if attempt > 1 {
            plane.meters.repeated_sends.add(1);
        }
        let deadline = plane.settings.send_deadline;
        let began = tokio::time::Instant::now();
        let sending = AssertUnwindSafe(destination.target.send(batch)).catch_unwind();
        let (sent, status) = with_status(tokio::time::timeout(deadline, sending)).await;
        let took = began.elapsed();
        destination.counters.count.sent(took);
        let verdict = match sent {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(_)) => Verdict::Failed(self.panicked()),
            Err(_) => Verdict::Failed(Failure::new(
                FailureClass::Unknown,
                "timeout",
                format!("timed out after {} s", deadline.as_secs()),
            )),
        };
        let verdict = match verdict {
            // A list of results that does not match the batch is not reliable.
            Verdict::Partial(outcomes) if outcomes.len() != batch.len() => {
                Verdict::Failed(Failure::new(
                    FailureClass::Unknown,
                    "outcomes",
                    "the outcomes do not match the batch",
                ))
            }
            other => other,
        };
        let first = batch.deliveries().next();
        let failure = verdict.failure();
        let failure = failure.map(|failure| (matches!(verdict, Verdict::Partial(_)), failure));
        let sent = SentEvents {
            class: batch.class(),
            attempt,
            events: u64::try_from(batch.len()).unwrap_or(u64::MAX),
            event_id: first.map(|delivery| delivery.event_id.to_owned()),
        };
        self.note_attempt(destination, sent, took, status, failure);
        verdict
    }

    /// Remembers an attempt. `failure` has whether only a part of the events failed, and `status` is that of the last
    /// response, which may be about another event than the one that failed.
    fn note_attempt(
        &self,
        destination: &CompiledDestination,
        sent: SentEvents,
        took: Duration,
        status: Option<u16>,
        failure: Option<(bool, &Failure)>,
    ) {
        destination.counters.attempts.push(Attempt {
            at: self.plane.clock.now(),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            attempt: sent.attempt,
            class: sent.class.name().to_owned(),
            events: sent.events,
            event_id: sent.event_id,
            outcome: match failure {
                None => "delivered",
                Some((true, _)) => "partial",
                Some((false, failure)) => failure.class.name(),
            }
            .to_owned(),
            status: attempts::status_of(status, failure.map(|(_, failure)| failure)),
            text: failure.map_or_else(String::new, |(_, failure)| failure.text.clone()),
        });
    }

    /// The failure of a send that panicked. It is retried like others, so it neither repeats without a pause nor loses
    /// its batch.
    fn panicked(&self) -> Failure {
        tracing::error!(destination.id = %self.destination, "sending a batch panicked");
        let text = "internal error; see the server log";
        Failure::new(FailureClass::Unknown, "panic", text)
    }

    async fn settle(
        &mut self,
        destination: &CompiledDestination,
        lease: &Lease,
        batch: &Batch,
        verdict: Verdict,
    ) -> Result<Step, Fault> {
        match verdict {
            Verdict::Delivered => self.acknowledge(destination, lease, batch).await,
            Verdict::Partial(outcomes) => self.part(destination, lease, batch, outcomes).await,
            Verdict::Failed(failure) => {
                let now = self.plane.clock.now();
                self.failed_with(destination, &failure, now);
                match failure.class {
                    FailureClass::Split | FailureClass::Permanent => {
                        self.refused(destination, lease, batch, &failure, now).await
                    }
                    FailureClass::Gone => {
                        self.gone = Some(failure.clone());
                        self.put_off(destination, lease, batch, &failure).await
                    }
                    _ => self.put_off(destination, lease, batch, &failure).await,
                }
            }
        }
    }

    /// Handles a batch that was permanently rejected as a whole: its parts are sent alone, to find
    /// the rejected events.
    async fn refused(
        &mut self,
        destination: &CompiledDestination,
        lease: &Lease,
        batch: &Batch,
        failure: &Failure,
        now: Timestamp,
    ) -> Result<Step, Fault> {
        let events = batch.len();
        let is_part = |split: &&mut SplitBatch| split.has(lease, events);
        let mut split = self.split.as_mut().filter(is_part);
        let cut = match (&mut split, events) {
            (Some(split), 1) => {
                split.refused(failure);
                SplitMode::Whole
            }
            // A batch that is too large says nothing about smaller ones.
            (Some(split), _) if failure.class == FailureClass::Permanent => split.cut(failure),
            (_, 1) => SplitMode::Whole,
            _ => SplitMode::Halves,
        };
        let parts = match cut {
            SplitMode::Halves => batch.halves(),
            SplitMode::FirstAlone => batch.first_and_rest(),
            SplitMode::Whole => None,
        };
        let Some(parts) = parts else {
            self.dead_letter(destination, lease, bytes_of(batch), failure)
                .await?;
            self.halving_settled(lease, events, false);
            return Ok(Step::Moved);
        };
        if split.is_none() && failure.class == FailureClass::Permanent {
            self.split = Some(SplitBatch::of(lease, failure, events));
        }
        let parts = parts.map(|part| self.piece(lease, part)).into();
        let replaced = self.plane.log.replace(lease, parts, now).await;
        self.settled(replaced)?;
        Ok(Step::Moved)
    }

    /// Counts settled events, which may belong to the batch that is being split.
    fn halving_settled(&mut self, lease: &Lease, events: usize, is_taken: bool) {
        let is_part = |split: &&mut SplitBatch| split.has(lease, events);
        let Some(split) = self.split.as_mut().filter(is_part) else {
            return;
        };
        if is_taken {
            split.taken();
        }
        if split.settled(events) {
            self.split = None;
        }
    }

    /// If every event of a batch was permanently rejected before: the failure.
    fn condemned_whole(&mut self, batch: &Batch) -> Option<Failure> {
        if self.rejected.is_empty() {
            return None;
        }
        let mut keys = batch.deliveries().map(|one| one.idempotency_key());
        if !keys.all(|key| self.rejected.contains_key(&key)) {
            return None;
        }
        let mut why = None;
        for delivery in batch.deliveries() {
            why = self.rejected.remove(&delivery.idempotency_key()).or(why);
        }
        why
    }

    async fn acknowledge(
        &mut self,
        destination: &CompiledDestination,
        lease: &Lease,
        batch: &Batch,
    ) -> Result<Step, Fault> {
        self.succeeded(destination, self.plane.clock.now());
        self.has_moved = true;
        if self.settled(self.plane.log.ack(lease).await)? {
            self.delivered(
                destination,
                lease.class,
                u64::from(lease.count),
                bytes_of(batch),
            );
        }
        self.halving_settled(lease, batch.len(), true);
        Ok(Step::Moved)
    }

    fn succeeded(&mut self, destination: &CompiledDestination, now: Timestamp) {
        self.circuit.succeeded(now);
        self.recovered(destination, now);
    }

    /// Notes that a whole batch was accepted.
    fn recovered(&mut self, destination: &CompiledDestination, now: Timestamp) {
        let id = &self.destination;
        if destination.counters.succeeded(now) == Some(DestinationState::Unhealthy) {
            tracing::info!(destination.id = %id, "destination {id} accepts events again");
        }
        if let Some(events) = self.refusing.calm(now) {
            tracing::info!(destination.id = %id, events,
                "destination {id} accepts all events again; {events} events became dead letters");
        }
    }

    /// Notes a failed send, and logs it if the destination's state changes.
    fn failed_with(&self, destination: &CompiledDestination, failure: &Failure, now: Timestamp) {
        let id = &self.destination;
        match destination.counters.failed(failure, now) {
            Some(DestinationState::Unhealthy) => {
                tracing::warn!(destination.id = %id, cause = %failure, "destination {id} is unhealthy");
            }
            Some(DestinationState::Retrying) => {
                tracing::debug!(destination.id = %id, cause = %failure, "a send to {id} failed; retrying");
            }
            Some(DestinationState::Ok) | None => {}
        }
    }

    /// Settles a batch of which some events were accepted. The others stay queued, except those
    /// permanently rejected.
    async fn part(
        &mut self,
        destination: &CompiledDestination,
        lease: &Lease,
        batch: &Batch,
        outcomes: Vec<Outcome>,
    ) -> Result<Step, Fault> {
        let now = self.plane.clock.now();
        // The destination reports a result for each event.
        self.split = None;
        let mut pieces = Vec::new();
        // Rejected events, by reason.
        let mut refused: Vec<((FailureClass, String), OpenBatch)> = Vec::new();
        let mut holding_back = None;
        let mut noted = Vec::new();
        let mut only_reason = None;
        let mut bytes_taken = 0;
        let mut n_taken = 0u64;
        for (delivery, outcome) in batch.deliveries().zip(&outcomes) {
            match outcome {
                Outcome::Delivered => {
                    n_taken += 1;
                    bytes_taken += u64::try_from(delivery.envelope.len() + 1).unwrap_or(0);
                }
                Outcome::NotTried => {}
                Outcome::Failed(failure) => {
                    // One send counts as one failure for each reason, however many events failed.
                    if !noted.contains(&failure.class) {
                        noted.push(failure.class);
                        self.failed_with(destination, failure, now);
                    }
                    if !is_final(failure) {
                        holding_back.get_or_insert_with(|| failure.clone());
                    } else if batch.len() == 1 {
                        self.dead_letter(destination, lease, bytes_of(batch), failure)
                            .await?;
                        return Ok(Step::Moved);
                    } else {
                        if self.rejected.len() >= REJECTED_MAX {
                            // A forgotten rejection costs one more send.
                            self.rejected.clear();
                        }
                        self.rejected
                            .insert(delivery.idempotency_key(), failure.clone());
                        only_reason.get_or_insert_with(|| failure.clone());
                        let reason = (failure.class, failure.code.clone());
                        let at = refused.iter().position(|(known, _)| *known == reason);
                        let at = at.unwrap_or_else(|| {
                            refused.push((reason, OpenBatch::default()));
                            refused.len() - 1
                        });
                        refused[at].1.push(delivery.subscription, delivery.envelope);
                    }
                }
            }
        }
        // One dead letter for each reason, not for each event.
        let n_reasons = refused.len();
        pieces.extend(refused.into_iter().map(|(_, open)| self.piece(lease, open)));
        let rest = batch.only(|index| match outcomes.get(index) {
            Some(Outcome::Failed(failure)) => !is_final(failure),
            Some(Outcome::NotTried) => true,
            Some(Outcome::Delivered) | None => false,
        });
        if pieces.is_empty() && n_taken == 0 {
            // No event was settled, so there is nothing to split.
            let failure = holding_back.unwrap_or_else(|| {
                Failure::new(FailureClass::Unknown, "outcomes", "nothing was sent")
            });
            return self.put_off(destination, lease, batch, &failure).await;
        }
        if let (Some(failure), 1, None, 0) = (&only_reason, n_reasons, &rest, n_taken) {
            // Every event failed with its own result.
            self.condemned_whole(batch);
            self.dead_letter(destination, lease, bytes_of(batch), failure)
                .await?;
            return Ok(Step::Moved);
        }
        pieces.extend(rest.map(|rest| self.piece(lease, rest)));
        if n_taken > 0 {
            self.circuit.succeeded(now);
            if holding_back.is_none() {
                self.recovered(destination, now);
            }
        }
        let at = match &holding_back {
            Some(failure) => match self.next(lease, failure, now) {
                Next::At(at) => at,
                // It is dead-lettered when it is leased alone with the rest.
                Next::GiveUp => now,
            },
            None => now,
        };
        if pieces.is_empty() {
            return self.acknowledge(destination, lease, batch).await;
        }
        if self.settled(self.plane.log.replace(lease, pieces, at).await)? {
            self.delivered(destination, lease.class, n_taken, bytes_taken);
        }
        if holding_back.is_some() {
            return Ok(Step::Failed);
        }
        Ok(Step::Moved)
    }

    /// Returns a batch to the queue for another attempt, or gives it up because of its age.
    async fn put_off(
        &mut self,
        destination: &CompiledDestination,
        lease: &Lease,
        batch: &Batch,
        failure: &Failure,
    ) -> Result<Step, Fault> {
        let now = self.plane.clock.now();
        self.last = Some(failure.clone());
        match self.next(lease, failure, now) {
            Next::At(at) => {
                self.circuit.failed(at);
                let why = failure.to_string();
                self.settled(self.plane.log.retry(lease, at, &why).await)?;
            }
            Next::GiveUp => {
                self.split = None;
                self.circuit.failed(now);
                self.dead_letter(destination, lease, bytes_of(batch), failure)
                    .await?;
            }
        }
        Ok(Step::Failed)
    }

    fn next(&self, lease: &Lease, failure: &Failure, now: Timestamp) -> Next {
        self.next_after(lease, failure, now, Duration::ZERO)
    }

    /// Like [`Self::next`], for a batch that was held back for this long before its first attempt.
    fn next_after(
        &self,
        lease: &Lease,
        failure: &Failure,
        now: Timestamp,
        waited: Duration,
    ) -> Next {
        let schedule = &self.plane.settings.schedule;
        let failed = Failed {
            attempt: lease.attempt,
            class: failure.class,
            retry_after: failure.after,
            first_at: lease.first_at,
            give_up_after: match lease.class {
                BatchClass::Audit => schedule.give_up_audit,
                BatchClass::Traffic => schedule.give_up_traffic,
            } + waited,
        };
        let random = u64::from_le_bytes(self.plane.entropy.bytes());
        schedule.next(failed, now, random)
    }

    async fn dead_letter(
        &mut self,
        destination: &CompiledDestination,
        lease: &Lease,
        bytes: u64,
        failure: &Failure,
    ) -> Result<(), Fault> {
        let dead_letter = DeadLetterReason {
            class: failure.class.name().to_owned(),
            code: failure.code.clone(),
            text: failure.text.clone(),
        };
        if self.settled(self.plane.log.dead_letter(lease, dead_letter).await)? {
            let events = u64::from(lease.count);
            self.dead_lettered(destination, failure, events);
            destination
                .counters
                .dead_lettered
                .fetch_add(1, Ordering::Relaxed);
            destination.counters.settled(lease.class, events, bytes);
        }
        Ok(())
    }

    /// Counts events that became dead letters.
    fn dead_lettered(&mut self, destination: &CompiledDestination, failure: &Failure, events: u64) {
        let id = &destination.id;
        if self.refusing.count(failure, events, self.plane.clock.now()) {
            tracing::warn!(destination.id = %id, events, cause = %failure,
                "events for destination {id} become dead letters; more with this cause are counted but not logged");
        }
        self.plane.meters.dead_lettered.add(events);
        destination.counters.count.dead_events.add(events);
    }

    fn delivered(
        &self,
        destination: &CompiledDestination,
        class: BatchClass,
        events: u64,
        bytes: u64,
    ) {
        self.plane.meters.delivered.add(events);
        destination.counters.sent.add(events);
        destination.counters.bytes.add(bytes);
        destination.counters.settled(class, events, bytes);
    }

    fn piece(&self, lease: &Lease, batch: OpenBatch) -> NewBatch {
        NewBatch {
            destination: lease.destination.clone(),
            class: lease.class,
            count: batch.len(),
            body: batch.finish(),
        }
    }

    /// Whether a settlement counted. A lease that has passed to another holder is settled by that holder.
    fn settled(&self, outcome: Result<(), QueueError>) -> Result<bool, Fault> {
        match outcome {
            Ok(()) => Ok(true),
            Err(QueueError::Lost) => {
                self.plane.meters.leases_lost.add(1);
                Ok(false)
            }
            Err(QueueError::Fault(fault)) => Err(fault),
        }
    }
}

/// What an attempt sent.
struct SentEvents {
    class: BatchClass,
    attempt: u32,
    events: u64,
    event_id: Option<String>,
}

/// The output of a send, and the last HTTP status that it got.
async fn with_status<T>(send: impl Future<Output = T>) -> (T, Option<u16>) {
    let send = async {
        let output = send.await;
        (output, LAST_STATUS.with(Cell::get))
    };
    LAST_STATUS.scope(Cell::new(None), send).await
}

/// Whether one event failed permanently.
fn is_final(failure: &Failure) -> bool {
    matches!(failure.class, FailureClass::Permanent | FailureClass::Split)
}

fn bytes_of(batch: &Batch) -> u64 {
    u64::try_from(batch.lines().len()).unwrap_or(u64::MAX)
}
