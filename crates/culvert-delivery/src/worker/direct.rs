//! Sends batches from memory to a destination that accepts them.
//!
//! A batch that is not settled in time is written to the queue as leased while it is being sent, so no other node
//! sends it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use culvert_base::Fault;
use culvert_store::{BatchClass, Lease, NewBatch};
use culvert_target::Verdict;
use culvert_target::batch::Batch;
use tokio::time::Instant;

use super::{Step, Worker};
use crate::queue::buffer::BufferedBatch;
use crate::subscription::CompiledDestination;

impl Worker {
    /// Sends the next buffered batch, if there is one.
    pub(super) async fn step_directly(
        &mut self,
        destination: &Arc<CompiledDestination>,
    ) -> Result<Option<Step>, Fault> {
        let (plane, counters) = (self.plane.clone(), &destination.counters);
        let Some(one) = counters.buffer.take_to_send(|| counters.has_empty_queue()) else {
            return Ok(None);
        };
        if one.until <= Instant::now() {
            counters.buffer.sent(Some(one));
            plane.spill.arm_timer(&destination.id, counters);
            // The spill task wakes this worker when it is done.
            return Ok(Some(Step::Idle(None)));
        }
        let (events, bytes, until) = (one.events(), one.bytes(), one.until);
        let batch = one
            .batch
            .batch(self.destination.clone(), BatchClass::Traffic);
        plane.may_send(1);
        let (verdict, lease) = {
            let mut sending = std::pin::pin!(self.send(destination, &batch, 1));
            tokio::select! {
                biased;
                verdict = &mut sending => (verdict, None),
                () = tokio::time::sleep_until(until) => {
                    let leasing = self.write_down_leased(destination, &batch);
                    let (lease, verdict) = tokio::join!(leasing, sending);
                    (verdict, Some(lease))
                }
            }
        };
        if let (Verdict::Delivered, None | Some(Err(_))) = (&verdict, &lease) {
            self.succeeded(destination, plane.clock.now());
            self.has_moved = true;
            plane.meters.delivered.add(events);
            counters.sent.add(events);
            counters.bytes.add(bytes);
            counters.released(events, bytes);
            plane.direct_events.fetch_sub(events, Ordering::Relaxed);
            counters.buffer.sent(None);
            plane.spare.put(batch);
            return Ok(Some(Step::Moved));
        }
        let lease = match lease {
            Some(lease) => lease,
            None => self.write_down_leased(destination, &batch).await,
        };
        match lease {
            Ok(lease) => self
                .settle(destination, &lease, &batch, verdict)
                .await
                .map(Some),
            Err(fault) => {
                // It was not accepted and cannot be queued: it is sent again.
                counters.buffer.sent(Some(BufferedBatch {
                    batch: batch.reopened(),
                    until: Instant::now() + plane.settings.direct_for,
                }));
                Err(fault)
            }
        }
    }

    /// Appends a batch that is being sent, as leased by this node.
    async fn write_down_leased(
        &self,
        destination: &CompiledDestination,
        batch: &Batch,
    ) -> Result<Lease, Fault> {
        let (plane, counters) = (&self.plane, &destination.counters);
        let open = batch.reopened();
        let (events, bytes) = (u64::from(open.len()), super::bytes_of(batch));
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
        counters.queued(BatchClass::Traffic, events, bytes);
        counters.released(events, bytes);
        plane.direct_events.fetch_sub(events, Ordering::Relaxed);
        plane.meters.queued.add(events);
        counters.buffer.sent(None);
        plane.spill.arm_timer(&destination.id, counters);
        Ok(lease)
    }
}
