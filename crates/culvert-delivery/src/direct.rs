//! Traffic batches that go to their destination without lying in the queue first.
//!
//! The queue is for destinations that are away or slow. One that takes what it is sent gets its
//! batches from memory, one at a time, by the same worker that sends what is queued. A batch that is
//! not settled within [`crate::Settings::direct_for`] is written down, and so is everything behind it:
//! no event is in memory alone for longer than that and the flush before it. What is being sent at
//! that moment is written down as leased, so that no other node sends it too.
//!
//! Nothing overtakes what is in the queue: while anything waits there, nothing new comes in here.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use culvert_base::Fault;
use culvert_store::{BatchClass, Lease, NewBatch};
use tokio::time::Instant;

use crate::Plane;
use crate::batch::Batch;
use crate::health::Ledger;
use crate::meters::Dropped;
use crate::subscription::Outlet;
use crate::target::Verdict;
use crate::worker::{Step, Worker};

/// Batches of one destination at most; what comes then is queued. In events and bytes the limits of
/// the destination hold.
const BATCHES_MAX: usize = 256;

/// The batches of one destination.
#[derive(Debug, Default)]
pub(crate) struct Lane(Mutex<VecDeque<Direct>>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) batch: NewBatch,
    /// Of its lines.
    pub(crate) bytes: u64,
    /// When it must be in the queue if it was not taken.
    pub(crate) until: Instant,
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Direct>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn take(&self) -> Option<Direct> {
        self.lock().pop_front()
    }

    fn put_back(&self, one: Direct) {
        self.lock().push_front(one);
    }
}

/// Puts a batch onto its destination's lane; gives it back where the queue is the better way.
pub(crate) fn offer(plane: &Plane, outlet: &Outlet, one: Direct) -> Result<(), Direct> {
    let ledger = &outlet.ledger;
    let is_open = ledger.queued_events.load(Ordering::Relaxed) == 0 && !ledger.is_failing();
    if !is_open {
        return Err(one);
    }
    let mut waiting = ledger.lane.lock();
    if waiting.len() >= BATCHES_MAX {
        return Err(one);
    }
    let events = u64::from(one.batch.count);
    plane.direct_events.fetch_add(events, Ordering::Relaxed);
    waiting.push_back(one);
    drop(waiting);
    plane.wakes.wake(&outlet.id);
    Ok(())
}

/// Counts what is left on the lane of a server that stops as lost.
pub(crate) fn abandon(plane: &Plane, ledger: &Ledger) {
    for one in ledger.lane.lock().drain(..) {
        let events = u64::from(one.batch.count);
        ledger.released(events, one.bytes);
        ledger.dropped.add(Dropped::Stopped, events);
        plane.meters.dropped.add(Dropped::Stopped, events);
    }
}

/// Appends everything that is on a lane to the queue. What could not be appended stays.
pub(crate) async fn write_down(
    plane: &Plane,
    destination: &str,
    ledger: &Ledger,
) -> Result<(), Fault> {
    let waiting: Vec<Direct> = ledger.lane.lock().drain(..).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    // Before the append: a worker may be done with them before it returns.
    for one in &waiting {
        entered(plane, ledger, one);
    }
    let batches = waiting.iter().map(|one| one.batch.clone()).collect();
    match plane.queue.append(batches, None).await {
        Ok(()) => {
            let events = waiting.iter().map(|one| u64::from(one.batch.count));
            plane.meters.queued.add(events.sum());
            plane.wakes.wake(destination);
            Ok(())
        }
        Err(error) => {
            let mut lane = ledger.lane.lock();
            for one in waiting.into_iter().rev() {
                took_back(plane, ledger, &one);
                lane.push_front(one);
            }
            Err(Fault::new("queueing what was not sent", error))
        }
    }
}

/// From memory to the queue.
fn entered(plane: &Plane, ledger: &Ledger, one: &Direct) {
    let events = u64::from(one.batch.count);
    ledger.queued(events, one.bytes);
    ledger.released(events, one.bytes);
    plane.direct_events.fetch_sub(events, Ordering::Relaxed);
}

fn took_back(plane: &Plane, ledger: &Ledger, one: &Direct) {
    let events = u64::from(one.batch.count);
    ledger.held(events, one.bytes);
    ledger.left(events, one.bytes);
    plane.direct_events.fetch_add(events, Ordering::Relaxed);
}

impl Worker {
    /// Sends the next batch of the lane, if there is one.
    pub(crate) async fn step_directly(
        &mut self,
        outlet: &Arc<Outlet>,
    ) -> Result<Option<Step>, Fault> {
        let ledger = &outlet.ledger;
        let Some(mut one) = ledger.lane.take() else {
            return Ok(None);
        };
        if one.until <= Instant::now() {
            ledger.lane.put_back(one);
            write_down(&self.plane, &self.destination, ledger).await?;
            return Ok(Some(Step::Moved));
        }
        let body = Bytes::from(std::mem::take(&mut one.batch.body));
        let read = Batch::read(self.destination.clone(), BatchClass::Traffic, body.clone());
        let Ok(batch) = read else {
            // The queue buries it with its reason.
            one.batch.body = body.into();
            one.until = Instant::now();
            ledger.lane.put_back(one);
            return Ok(Some(Step::Moved));
        };
        self.plane.may_send(1);
        let (verdict, lease) = {
            let mut sending = std::pin::pin!(self.send(outlet, &batch, 1));
            tokio::select! {
                biased;
                verdict = &mut sending => (verdict, None),
                () = tokio::time::sleep_until(one.until) => {
                    let leasing = self.write_down_leased(outlet, &one, &body);
                    let (lease, verdict) = tokio::join!(leasing, sending);
                    (verdict, Some(lease))
                }
            }
        };
        if let (Verdict::Delivered, None | Some(Err(_))) = (&verdict, &lease) {
            let now = self.plane.clock.now();
            self.succeeded(outlet, now);
            let events = u64::from(one.batch.count);
            self.plane.meters.delivered.add(events);
            ledger.sent.add(events);
            ledger.bytes.add(one.bytes);
            ledger.released(events, one.bytes);
            self.plane
                .direct_events
                .fetch_sub(events, Ordering::Relaxed);
            return Ok(Some(Step::Moved));
        }
        let lease = match lease {
            Some(lease) => lease,
            None => self.write_down_leased(outlet, &one, &body).await,
        };
        match lease {
            Ok(lease) => self.settle(outlet, &lease, &batch, verdict).await.map(Some),
            Err(fault) => {
                // It was not taken and cannot be written down: it is sent again.
                drop(batch);
                one.batch.body = body.into();
                one.until = Instant::now() + self.plane.settings.direct_for;
                ledger.lane.put_back(one);
                Err(fault)
            }
        }
    }

    /// Appends a batch that is being sent, as leased by this node, and then everything behind it.
    async fn write_down_leased(
        &self,
        outlet: &Outlet,
        one: &Direct,
        body: &Bytes,
    ) -> Result<Lease, Fault> {
        let plane = &self.plane;
        let batch = NewBatch {
            body: body.to_vec(),
            ..one.batch.clone()
        };
        let settings = &plane.settings;
        let lease = plane
            .queue
            .append_leased(batch, &settings.node, settings.lease)
            .await?;
        entered(plane, &outlet.ledger, one);
        plane.meters.queued.add(u64::from(one.batch.count));
        if let Err(fault) = write_down(plane, &self.destination, &outlet.ledger).await {
            tracing::error!(destination.id = %self.destination, cause = %fault.chain(),
                "what waits in memory cannot be queued");
        }
        Ok(lease)
    }
}
