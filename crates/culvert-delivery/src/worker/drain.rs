//! Sends a backlog to a destination that accepts it.
//!
//! Several batches are leased together and sent in sequence; small ones are joined as far as the target allows. Each
//! is acknowledged before the next is sent, so a crash repeats only the batch that was being sent. At the first
//! failure, unsent batches are returned, and batches are leased one by one until one is accepted.

use std::collections::VecDeque;
use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use culvert_store::Lease;
use culvert_target::batch::{Batch, OpenBatch};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::{Outcome, Verdict};

use super::{Step, Worker, bytes_of, is_final};
use crate::queue::event_log::Settlement;
use crate::subscription::CompiledDestination;

/// A leased batch.
type QueuedPieces = (Lease, Batch);

impl Worker {
    /// Whether the destination accepts batches, as far as is known.
    pub(super) fn may_drain(&mut self, destination: &CompiledDestination) -> bool {
        if self.single_leases > 0 {
            self.single_leases -= 1;
            return false;
        }
        self.has_moved && !destination.counters.is_failing() && self.rejected.is_empty()
    }

    /// Sends the batches that were leased together. `None` if nothing is due.
    pub(super) async fn drain(
        &mut self,
        destination: &CompiledDestination,
        now: Timestamp,
    ) -> Result<Option<Step>, Fault> {
        let plane = self.plane.clone();
        let settings = &plane.settings;
        let began = tokio::time::Instant::now();
        let (node, lease_for) = (&settings.node, settings.lease);
        let leases = plane
            .log
            .lease_several(&self.destination, node, lease_for, now, destination.limits)
            .await?;
        if leases.is_empty() {
            return Ok(None);
        }
        let mut waiting = VecDeque::with_capacity(leases.len());
        let mut damaged = Vec::new();
        for mut lease in leases {
            // Settlement needs only the lease's numbers.
            let body = std::mem::take(&mut lease.body);
            match Batch::read(self.destination.clone(), lease.class, body) {
                Ok(batch) => waiting.push_back((lease, batch)),
                Err(_) => damaged.push(lease),
            }
        }
        if !damaged.is_empty() {
            self.give_back(waiting.iter(), "a batch leased with it is damaged")
                .await?;
            for lease in damaged.iter().rev() {
                self.dead_letter(destination, lease, 0, &unreadable())
                    .await?;
            }
            return Ok(Some(Step::Moved));
        }
        while let Some((held, joined)) = next(&mut waiting, destination) {
            let attempt = held.first().map_or(1, |(lease, _)| lease.attempt);
            // A batch that is sent now must be settled while its lease lasts.
            let is_late = began.elapsed() + settings.send_deadline >= settings.lease;
            // A destination that was unreachable for long does not get the whole backlog
            // immediately.
            let paces_until = self.circuit.paused_until(plane.clock.now());
            let next_at = match is_late || paces_until.is_some() {
                true => Some(paces_until),
                false if plane.may_send(attempt) => None,
                false => Some(Some(now.plus(Duration::from_secs(1)))),
            };
            if let Some(next_at) = next_at {
                let all = held.iter().chain(&waiting);
                self.give_back(all, "it was not sent").await?;
                return Ok(Some(next_at.map_or(Step::Moved, |at| Step::Idle(Some(at)))));
            }
            let table = plane.table.load_full();
            if held
                .iter()
                .any(|(_, batch)| table.withheld_of(batch).is_some())
            {
                self.give_back(waiting.iter(), "it was not sent").await?;
                // The first batch comes last, because the log may use it as a bound.
                for one in held.iter().rev() {
                    if !self.withhold(destination, &one.0, &one.1).await? {
                        let unsent = std::iter::once(one);
                        self.give_back(unsent, "it was not sent").await?;
                    }
                }
                return Ok(Some(Step::Moved));
            }
            let verdict = match (&joined, held.first()) {
                (Some(joined), _) => self.send(destination, joined, attempt).await,
                (None, Some((_, only))) => self.send(destination, only, attempt).await,
                (None, None) => break,
            };
            if verdict == Verdict::Delivered {
                self.succeeded(destination, plane.clock.now());
                self.acknowledge_all(destination, &held).await?;
                for (lease, batch) in &held {
                    self.halving_settled(lease, batch.len(), true);
                }
                continue;
            }
            let why = "an earlier batch failed";
            self.give_back(waiting.iter(), why).await?;
            return self.failed(destination, held, verdict).await.map(Some);
        }
        Ok(Some(Step::Moved))
    }

    /// Settles batches that were sent together and not accepted as a whole.
    async fn failed(
        &mut self,
        destination: &CompiledDestination,
        held: Vec<QueuedPieces>,
        verdict: Verdict,
    ) -> Result<Step, Fault> {
        self.has_moved = false;
        let failure = match verdict {
            Verdict::Partial(outcomes) => return self.parts(destination, held, outcomes).await,
            Verdict::Failed(failure) => failure,
            Verdict::Delivered => return Ok(Step::Moved),
        };
        let [(lease, batch), rest @ ..] = &held[..] else {
            return Ok(Step::Moved);
        };
        if !rest.is_empty() && is_final(&failure) {
            // Sending each batch alone shows which one is at fault.
            self.failed_with(destination, &failure, self.plane.clock.now());
            self.single_leases = u32::try_from(held.len()).unwrap_or(u32::MAX);
            self.give_back(held.iter(), &failure.to_string()).await?;
            return Ok(Step::Moved);
        }
        self.give_back(rest.iter(), &failure.to_string()).await?;
        self.settle(destination, lease, batch, Verdict::Failed(failure))
            .await
    }

    /// Settles each batch by the outcomes of its events.
    async fn parts(
        &mut self,
        destination: &CompiledDestination,
        held: Vec<QueuedPieces>,
        outcomes: Vec<Outcome>,
    ) -> Result<Step, Fault> {
        let first = held.first().map(|(lease, _)| lease.batch);
        let is_first = |held: &[QueuedPieces]| held.first().map(|(lease, _)| lease.batch) == first;
        let mut outcomes = outcomes.into_iter();
        let (mut taken, mut untried, mut step) = (Vec::new(), Vec::new(), Step::Moved);
        let mut rest = Vec::new();
        for (lease, batch) in held {
            let own: Vec<Outcome> = outcomes.by_ref().take(batch.len()).collect();
            if own.iter().all(|outcome| *outcome == Outcome::Delivered) {
                taken.push((lease, batch));
            } else if own.iter().all(|outcome| *outcome == Outcome::NotTried) {
                untried.push((lease, batch));
            } else {
                rest.push((lease, batch, own));
            }
        }
        let why = "it was not sent";
        // The first batch comes last, because the log may use it as a bound.
        let (ends_with_taken, ends_with_untried) = (is_first(&taken), is_first(&untried));
        if !ends_with_taken {
            self.acknowledge_all(destination, &taken).await?;
        }
        if !ends_with_untried {
            self.give_back(untried.iter(), why).await?;
        }
        for (lease, batch, own) in rest.into_iter().rev() {
            let settled = self.settle(destination, &lease, &batch, Verdict::Partial(own));
            if settled.await? == Step::Failed {
                step = Step::Failed;
            }
        }
        if ends_with_taken {
            self.acknowledge_all(destination, &taken).await?;
        }
        if ends_with_untried {
            self.give_back(untried.iter(), why).await?;
        }
        Ok(step)
    }

    async fn acknowledge_all(
        &self,
        destination: &CompiledDestination,
        held: &[QueuedPieces],
    ) -> Result<(), Fault> {
        let leases: Vec<Lease> = held.iter().map(|(lease, _)| lease.clone()).collect();
        if leases.is_empty() {
            return Ok(());
        }
        let settled = self.plane.log.settle(&leases, Settlement::Ack).await?;
        self.count_lost(&leases, &settled);
        // Lost leases are counted by their new holder.
        for (lease, batch) in held {
            if settled.contains(&lease.batch) {
                let events = u64::from(lease.count);
                self.delivered(destination, lease.class, events, bytes_of(batch));
            }
        }
        Ok(())
    }

    /// Returns unsent batches, due immediately.
    async fn give_back<'a>(
        &self,
        held: impl Iterator<Item = &'a QueuedPieces>,
        why: &str,
    ) -> Result<(), Fault> {
        let leases: Vec<Lease> = held.map(|(lease, _)| lease.clone()).collect();
        if leases.is_empty() {
            return Ok(());
        }
        let how = Settlement::Retry {
            at: self.plane.clock.now(),
            why: why.to_owned(),
        };
        self.plane.log.settle(&leases, how).await.map(drop)
    }
}

/// The next send: one batch, or several from the front that fit into one.
fn next(
    waiting: &mut VecDeque<QueuedPieces>,
    destination: &CompiledDestination,
) -> Option<(Vec<QueuedPieces>, Option<Batch>)> {
    let first = waiting.pop_front()?;
    let mut held = vec![first];
    let mut joined: Option<OpenBatch> = None;
    while let Some((_, next)) = waiting.front() {
        let open = joined.get_or_insert_with(|| held[0].1.reopened());
        if !open.join_batch_within(destination.limits, next) {
            break;
        }
        held.extend(waiting.pop_front());
    }
    let class = held[0].0.class;
    let joined = joined.filter(|_| held.len() > 1);
    let joined = joined.map(|open| open.batch(destination.id.clone(), class));
    Some((held, joined))
}

fn unreadable() -> Failure {
    let text = "the stored batch is malformed";
    Failure::new(FailureClass::Permanent, "unreadable", text)
}
