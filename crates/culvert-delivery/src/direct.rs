//! Traffic batches in memory, a lane for each destination.
//!
//! The queue is for destinations that are away or slow. One that takes what it is sent gets its
//! batches from memory, one at a time, by the same worker that sends what is queued. A batch that is
//! not settled within [`crate::Settings::direct_for`] is written down: no event is in memory alone for
//! longer than that and the flush before it, as long as the queue can be written. What is being sent at
//! that moment is written down as leased, so that no other node sends it too; everything else is the
//! appender's (`appender`). When a send fails, everything behind it is written down at once.
//!
//! Nothing overtakes what is in the queue or on its way there: what comes meanwhile waits here, as long
//! as it may, for the queue to be empty again, so that one slow moment does not send everything after
//! it by way of the disk. Full batches are all that many small ones become while they wait.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use culvert_base::Fault;
use culvert_store::{BatchClass, Lease, NewBatch};
use tokio::time::Instant;

use crate::Plane;
use crate::batch::{Batch, OpenBatch};
use crate::health::Ledger;
use crate::meters::Dropped;
use crate::subscription::Outlet;
use crate::target::Verdict;
use crate::worker::{Step, Worker};

/// The batches of one destination.
#[derive(Debug, Default)]
pub(crate) struct Lane(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<Direct>,
    /// A worker sends what was first; until that is settled or in the queue, nothing else goes there.
    is_being_sent: bool,
    /// The appender has taken what was first; until that is in the queue, nothing else is sent.
    is_being_written: bool,
    /// The appender was asked to take what is here.
    is_wanted: bool,
    /// What is put here now belongs into the queue, however soon it might be sent.
    is_for_queue: bool,
    /// The appender was told when what is first here must be on its way.
    is_watched: bool,
}

impl Waiting {
    fn is_due(&self, now: Instant) -> bool {
        self.batches.front().is_some_and(|one| one.until <= now)
    }
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) batch: OpenBatch,
    /// When it must be on its way into the queue if it was not taken.
    until: Instant,
}

impl Direct {
    pub(crate) fn events(&self) -> u64 {
        u64::from(self.batch.len())
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(self.batch.bytes()).unwrap_or(u64::MAX)
    }
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn is_being_written(&self) -> bool {
        self.lock().is_being_written
    }

    /// Whether there is anything on it or taken from it that is not settled.
    pub(crate) fn is_busy(&self) -> bool {
        let lane = self.lock();
        !lane.batches.is_empty() || lane.is_being_sent || lane.is_being_written
    }

    /// Notes that the appender shall take what is here. Whether it has to be told.
    pub(crate) fn want(&self) -> bool {
        let mut lane = self.lock();
        !lane.batches.is_empty() && !std::mem::replace(&mut lane.is_wanted, true)
    }

    /// What the appender writes: batches from the front, of that many bytes or one more. None while one
    /// that was before them is not settled; whoever settles it asks again. Until [`Self::written`],
    /// nothing else is taken.
    pub(crate) fn take_to_write(&self, bytes_max: u64) -> Vec<Direct> {
        let mut lane = self.lock();
        lane.is_wanted = false;
        let mut taken = Vec::new();
        if lane.is_being_sent || lane.is_being_written {
            return taken;
        }
        let mut bytes = 0;
        while bytes < bytes_max
            && let Some(one) = lane.batches.pop_front()
        {
            bytes += one.bytes();
            taken.push(one);
        }
        lane.is_being_written = !taken.is_empty();
        taken
    }

    /// What was taken to be written is in the queue, or given up.
    pub(crate) fn written(&self) {
        self.lock().is_being_written = false;
    }

    /// Whether what is first here must be on its way into the queue.
    pub(crate) fn must_be_written(&self, now: Instant) -> bool {
        let lane = self.lock();
        lane.is_due(now) || (lane.is_for_queue && !lane.batches.is_empty())
    }

    /// When it must, if nobody was told to look then.
    pub(crate) fn watch(&self) -> Option<Instant> {
        let mut lane = self.lock();
        let until = lane.batches.front()?.until;
        (!std::mem::replace(&mut lane.is_watched, true)).then_some(until)
    }

    /// Whoever was told to look does so.
    pub(crate) fn looked_at(&self) {
        self.lock().is_watched = false;
    }

    /// A worker begins: none before it is at work.
    pub(crate) fn begin(&self) {
        self.lock().is_being_sent = false;
    }

    /// What a worker sends next.
    fn take_to_send(&self, ledger: &Ledger) -> Option<Direct> {
        let mut lane = self.lock();
        // In this order: the queue is said to have it before it is said to be written.
        if lane.is_being_written || !ledger.has_empty_queue() {
            return None;
        }
        let one = lane.batches.pop_front()?;
        lane.is_being_sent = true;
        Some(one)
    }

    /// What was taken to be sent is settled, or in the queue; or it is `back`, to be sent again.
    fn sent(&self, back: Option<Direct>) {
        let mut lane = self.lock();
        lane.is_being_sent = false;
        if let Some(one) = back {
            lane.batches.push_front(one);
        }
    }
}

/// Puts a batch onto its destination's lane, for its worker, or for the queue where that is the better
/// way.
pub(crate) fn put(plane: &Plane, outlet: &Outlet, batch: OpenBatch, is_stopping: bool) {
    let (settings, ledger) = (&plane.settings, &outlet.ledger);
    let events = u64::from(batch.len());
    plane.direct_events.fetch_add(events, Ordering::Relaxed);
    // What becomes one object of many batches comes together in the queue.
    let is_direct = settings.sends
        && !is_stopping
        && !settings.direct_for.is_zero()
        && !ledger.is_failing()
        && outlet.target.gathers().is_none();
    let mut lane = ledger.lane.lock();
    match lane.batches.back_mut() {
        Some(last) if last.batch.has_room_for(&batch, outlet.limits) => last.batch.join(&batch),
        _ => lane.batches.push_back(Direct {
            batch,
            until: Instant::now() + settings.direct_for,
        }),
    }
    lane.is_for_queue = !is_direct;
    drop(lane);
    plane.unwritten.keep_time(&outlet.id, ledger);
    if is_direct {
        plane.wakes.wake(&outlet.id);
    }
}

/// Counts what is left on the lane of a destination that is gone, or of a server that stops.
pub(crate) fn abandon(plane: &Plane, ledger: &Ledger, why: Dropped) {
    for one in ledger.lane.lock().batches.drain(..) {
        ledger.released(one.events(), one.bytes());
        plane
            .direct_events
            .fetch_sub(one.events(), Ordering::Relaxed);
        ledger.dropped.add(why, one.events());
        plane.meters.dropped.add(why, one.events());
    }
}

impl Worker {
    /// Sends the next batch of the lane, if there is one.
    pub(crate) async fn step_directly(
        &mut self,
        outlet: &Arc<Outlet>,
    ) -> Result<Option<Step>, Fault> {
        let (plane, ledger) = (self.plane.clone(), &outlet.ledger);
        let Some(one) = ledger.lane.take_to_send(ledger) else {
            return Ok(None);
        };
        if one.until <= Instant::now() {
            ledger.lane.sent(Some(one));
            plane.unwritten.keep_time(&outlet.id, ledger);
            // It wakes this worker when it is done.
            return Ok(Some(Step::Idle(None)));
        }
        let (events, bytes, until) = (one.events(), one.bytes(), one.until);
        let batch = one
            .batch
            .batch(self.destination.clone(), BatchClass::Traffic);
        plane.may_send(1);
        let (verdict, lease) = {
            let mut sending = std::pin::pin!(self.send(outlet, &batch, 1));
            tokio::select! {
                biased;
                verdict = &mut sending => (verdict, None),
                () = tokio::time::sleep_until(until) => {
                    let leasing = self.write_down_leased(outlet, &batch);
                    let (lease, verdict) = tokio::join!(leasing, sending);
                    (verdict, Some(lease))
                }
            }
        };
        if let (Verdict::Delivered, None | Some(Err(_))) = (&verdict, &lease) {
            self.succeeded(outlet, plane.clock.now());
            self.has_moved = true;
            plane.meters.delivered.add(events);
            ledger.sent.add(events);
            ledger.bytes.add(bytes);
            ledger.released(events, bytes);
            plane.direct_events.fetch_sub(events, Ordering::Relaxed);
            ledger.lane.sent(None);
            plane.spare.put(batch);
            return Ok(Some(Step::Moved));
        }
        let lease = match lease {
            Some(lease) => lease,
            None => self.write_down_leased(outlet, &batch).await,
        };
        match lease {
            Ok(lease) => self.settle(outlet, &lease, &batch, verdict).await.map(Some),
            Err(fault) => {
                // It was not taken and cannot be written down: it is sent again.
                ledger.lane.sent(Some(Direct {
                    batch: batch.reopened(),
                    until: Instant::now() + plane.settings.direct_for,
                }));
                Err(fault)
            }
        }
    }

    /// Appends a batch that is being sent, as leased by this node.
    async fn write_down_leased(&self, outlet: &Outlet, batch: &Batch) -> Result<Lease, Fault> {
        let (plane, ledger) = (&self.plane, &outlet.ledger);
        let open = batch.reopened();
        let (events, bytes) = (u64::from(open.len()), bytes_of(&open));
        let settings = &plane.settings;
        let lease = plane
            .log
            .append_leased(
                NewBatch {
                    destination: self.destination.to_string(),
                    class: BatchClass::Traffic,
                    count: open.len(),
                    body: open.finish(),
                },
                &settings.node,
                settings.lease,
            )
            .await?;
        ledger.queued(events, bytes);
        ledger.released(events, bytes);
        plane.direct_events.fetch_sub(events, Ordering::Relaxed);
        plane.meters.queued.add(events);
        ledger.lane.sent(None);
        plane.unwritten.keep_time(&outlet.id, ledger);
        Ok(lease)
    }
}

fn bytes_of(batch: &OpenBatch) -> u64 {
    u64::try_from(batch.bytes()).unwrap_or(u64::MAX)
}
