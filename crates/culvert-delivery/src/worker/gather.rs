//! Destinations that make one object of many batches.
//!
//! The batches stay in the queue until the object is written: nothing is copied, and a crash loses nothing. A run
//! of batches is leased when it is large enough or its first batch is old enough. The batches are read one by one
//! while the object is made, and settled in one transaction.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use culvert_base::{BoxFuture, Fault, Timestamp};
use culvert_store::{DeadLetterReason, Lease};
use culvert_target::batch::Batch;
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::{Gathers, Run};
use futures_util::FutureExt;

use super::{AFTER_FAULT, SentEvents, Step, Worker, with_status};
use crate::plane::Plane;
use crate::plane::settings::PUT_DEADLINE;
use crate::queue::event_log::Settlement;
use crate::retry::Next;
use crate::subscription::CompiledDestination;

/// The code of failures for lack of time.
const TIMEOUT: &str = "timeout";
/// Objects that take too long do not become smaller than this.
const OBJECT_BYTES_MIN: u64 = 1 << 20;

impl Worker {
    /// Writes at most one object.
    pub(super) async fn gather(
        &mut self,
        destination: &CompiledDestination,
        gathers: &dyn Gathers,
        now: Timestamp,
    ) -> Result<Step, Fault> {
        let plane = self.plane.clone();
        let mut gathering = gathers.gathering();
        gathering.bytes_max = gathering.bytes_max.min(self.object_bytes_max);
        let (_, waiting) = destination.counters.waiting();
        // Every append wakes a worker; most of them change nothing here.
        if let Some(gather_due_at) = self.gather_due_at.filter(|at| now < *at)
            && waiting < gathering.bytes_max
        {
            return Ok(Step::Idle(Some(gather_due_at)));
        }
        let run = plane
            .log
            .lease_run(
                &self.destination,
                &plane.settings.node,
                2 * PUT_DEADLINE,
                now,
                gathering,
            )
            .await?;
        self.gather_due_at = run.next_at;
        let longest = plane.settings.schedule.longest() + gathering.age_max;
        if run.next_at.is_some_and(|at| at > now.plus(longest)) {
            // It was put off by a wrong clock.
            self.gather_due_at = None;
            plane.log.hasten(&self.destination, now).await?;
            return Ok(Step::Idle(Some(now.plus(AFTER_FAULT))));
        }
        let Some(first) = run.leases.first() else {
            return Ok(Step::Idle(run.next_at));
        };
        if !plane.may_send(first.attempt) {
            let at = now.plus(std::time::Duration::from_secs(1));
            let why = "waiting for the retry budget";
            plane.log.settle(&run.leases, put_back(at, why)).await?;
            return Ok(Step::Idle(Some(at)));
        }
        plane.meters.sends.add(1);
        destination.counters.batches.add(1);
        if first.attempt > 1 {
            plane.meters.repeated_sends.add(1);
        }
        let leased = Leased {
            plane: &plane,
            destination: self.destination.clone(),
            leases: &run.leases,
            unreadable: AtomicUsize::new(usize::MAX),
            bytes: AtomicUsize::new(0),
            withheld: run.leases.iter().map(|_| AtomicU64::new(0)).collect(),
        };
        let began = tokio::time::Instant::now();
        let putting = AssertUnwindSafe(gathers.put(&leased)).catch_unwind();
        let (put, status) = with_status(tokio::time::timeout(PUT_DEADLINE, putting)).await;
        let took = began.elapsed();
        destination.counters.count.sent(took);
        let put = match put {
            Ok(Ok(put)) => put,
            Ok(Err(_)) => Err(self.panicked()),
            Err(_) => {
                let text = format!("timed out after {} s", PUT_DEADLINE.as_secs());
                Err(Failure::new(FailureClass::Unknown, TIMEOUT, text))
            }
        };
        let sent = SentEvents::of_run(first, &run.leases);
        let failure = put.as_ref().err().map(|failure| (false, failure));
        self.note_attempt(destination, sent, took, status, failure);
        let bytes = u64::try_from(leased.bytes.load(Ordering::Relaxed)).unwrap_or(0);
        self.object_bytes_max = match &put {
            Ok(()) if took < PUT_DEADLINE / 4 => self.object_bytes_max.saturating_mul(2),
            // Smaller objects may be written in time.
            Err(failure) if failure.code == TIMEOUT && run.leases.len() > 1 => {
                (gathering.bytes_max / 2).max(OBJECT_BYTES_MIN)
            }
            _ => self.object_bytes_max,
        };
        let unreadable = leased.unreadable.load(Ordering::Relaxed);
        let now = plane.clock.now();
        match put {
            Ok(()) => {
                let sent = leased.sent(|_| true);
                if sent > 0 {
                    self.circuit.succeeded(now);
                    self.recovered(destination, now);
                }
                let settled = plane.log.settle(&run.leases, Settlement::Ack).await?;
                self.count_lost(&run.leases, &settled);
                if !settled.is_empty() {
                    let is_settled = |lease: &Lease| settled.contains(&lease.batch);
                    let sent = leased.sent(is_settled);
                    let withheld = events_of(run.leases.iter().filter(|one| is_settled(one)));
                    // Their bytes are counted when the backlog is read.
                    self.drop_withheld(destination, first.class, withheld.saturating_sub(sent), 0);
                    self.delivered(destination, first.class, sent, bytes);
                }
                Ok(Step::Moved)
            }
            Err(failure) if unreadable < run.leases.len() => {
                // It is dead-lettered alone; the others are not at fault.
                let (bad, rest) = part(&run.leases, unreadable);
                self.dead_letter_run(destination, &bad, &failure).await?;
                plane
                    .log
                    .settle(&rest, put_back(now, &failure.text))
                    .await?;
                Ok(Step::Moved)
            }
            Err(failure) => {
                self.put_off_run(destination, gathers, &run.leases, failure)
                    .await
            }
        }
    }

    async fn put_off_run(
        &mut self,
        destination: &CompiledDestination,
        gathers: &dyn Gathers,
        leases: &[Lease],
        failure: Failure,
    ) -> Result<Step, Fault> {
        let now = self.plane.clock.now();
        self.failed_with(destination, &failure, now);
        self.last = Some(failure.clone());
        let waited = gathers.gathering().age_max;
        let (mut expired, mut retried, mut at) = (Vec::new(), Vec::new(), None);
        for lease in leases {
            match self.next_after(lease, &failure, now, waited) {
                // All get the time of the first.
                Next::At(next) => {
                    at.get_or_insert(next);
                    retried.push(lease.clone());
                }
                Next::GiveUp => expired.push(lease.clone()),
            }
        }
        self.circuit.failed(at.unwrap_or(now));
        if let Some(at) = at {
            let how = put_back(at, &failure.to_string());
            let settled = self.plane.log.settle(&retried, how).await?;
            self.count_lost(&retried, &settled);
        }
        if !expired.is_empty() {
            self.dead_letter_run(destination, &expired, &failure)
                .await?;
        }
        Ok(Step::Failed)
    }

    async fn dead_letter_run(
        &mut self,
        destination: &CompiledDestination,
        leases: &[Lease],
        failure: &Failure,
    ) -> Result<(), Fault> {
        let dead_letter = DeadLetterReason {
            class: failure.class.name().to_owned(),
            code: failure.code.clone(),
            text: failure.text.clone(),
        };
        let how = Settlement::DeadLetter(dead_letter);
        let settled = self.plane.log.settle(leases, how).await?;
        self.count_lost(leases, &settled);
        if !settled.is_empty() {
            let is_settled = |lease: &&Lease| settled.contains(&lease.batch);
            let events = events_of(leases.iter().filter(is_settled));
            self.dead_lettered(destination, failure, events);
            let letters = u64::try_from(settled.len()).unwrap_or(0);
            destination
                .counters
                .dead_lettered
                .fetch_add(letters, Ordering::Relaxed);
            // Their bytes are counted when the backlog is read.
            if let Some(first) = leases.first() {
                destination.counters.settled(first.class, events, 0);
            }
        }
        Ok(())
    }

    pub(super) fn count_lost(&self, leases: &[Lease], settled: &[i64]) {
        let n_lost = leases.len().saturating_sub(settled.len());
        let n_lost = u64::try_from(n_lost).unwrap_or(0);
        self.plane.meters.leases_lost.add(n_lost);
    }
}

impl SentEvents {
    fn of_run(first: &Lease, leases: &[Lease]) -> Self {
        Self {
            class: first.class,
            attempt: first.attempt,
            events: events_of(leases.iter()),
            event_id: None,
        }
    }
}

fn put_back(at: Timestamp, why: &str) -> Settlement {
    let why = why.to_owned();
    Settlement::Retry { at, why }
}

fn events_of<'a>(leases: impl Iterator<Item = &'a Lease>) -> u64 {
    leases.map(|lease| u64::from(lease.count)).sum()
}

fn part(leases: &[Lease], at: usize) -> (Vec<Lease>, Vec<Lease>) {
    let mut rest = leases.to_vec();
    let bad = rest.remove(at);
    (vec![bad], rest)
}

/// Leased batches, read from the queue on demand.
struct Leased<'a> {
    plane: &'a Plane,
    destination: Arc<str>,
    leases: &'a [Lease],
    /// The first batch that cannot be read.
    unreadable: AtomicUsize,
    /// Bytes of the lines of each batch, known once it was read.
    bytes: AtomicUsize,
    /// For each batch, the events whose reader lost the right to them while they waited. A response may come before the
    /// last batches are read for the last time.
    withheld: Vec<AtomicU64>,
}

impl Leased<'_> {
    /// Events of the batches with such leases that were not withheld.
    fn sent(&self, has: impl Fn(&Lease) -> bool) -> u64 {
        let batches = self.leases.iter().zip(&self.withheld);
        let sent = |(lease, withheld): (&Lease, &AtomicU64)| {
            u64::from(lease.count).saturating_sub(withheld.load(Ordering::Relaxed))
        };
        batches.filter(|(lease, _)| has(lease)).map(sent).sum()
    }
}

impl Run for Leased<'_> {
    fn batches(&self) -> usize {
        self.leases.len()
    }

    fn batch(&self, index: usize) -> BoxFuture<'_, Result<Batch, Failure>> {
        Box::pin(async move {
            if index == 0 {
                self.bytes.store(0, Ordering::Relaxed);
            }
            let lost = |code: &str, text: &str| Failure::new(FailureClass::Retryable, code, text);
            let lease = self
                .leases
                .get(index)
                .ok_or_else(|| lost("run", "there is no such batch"))?;
            let body = self.plane.log.body(lease).await.map_err(|fault| {
                tracing::error!(cause = %fault.chain(), "cannot read a leased batch");
                lost("queue", "cannot read the queue")
            })?;
            let batch =
                body.and_then(|body| Batch::read(self.destination.clone(), lease.class, body).ok());
            let Some(batch) = batch else {
                self.unreadable.fetch_min(index, Ordering::Relaxed);
                let text = "cannot read a stored batch";
                return Err(Failure::new(FailureClass::Permanent, "unreadable", text));
            };
            let withheld = self.plane.table.load().withheld_of(&batch);
            let rest = withheld.map(|withheld| batch.part(|index| !withheld[index]));
            let sent = rest.as_ref().map_or(batch.len(), Batch::len);
            if let Some(withheld) = self.withheld.get(index) {
                let events = u64::try_from(batch.len() - sent).unwrap_or(0);
                withheld.store(events, Ordering::Relaxed);
            }
            let batch = rest.unwrap_or(batch);
            self.bytes.fetch_add(batch.lines().len(), Ordering::Relaxed);
            Ok(batch)
        })
    }
}
