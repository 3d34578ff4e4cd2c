//! Copies of events from a log to the queue, with a cursor that moves in the same transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_base::Fault;
use culvert_store::{BatchClass, CursorMove, NewBatch, QueueError};
use culvert_target::batch::{BatchLimits, OpenBatch};

use crate::plane::Plane;

/// One event for one subscription and destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy<'a> {
    pub(crate) subscription: &'a str,
    pub(crate) destination: &'a str,
    pub(crate) envelope: &'a str,
}

/// Batches of copies with their bytes, for each destination in the given order.
#[derive(Debug)]
pub(crate) struct Copies(Vec<(NewBatch, usize)>);

impl Copies {
    pub(crate) fn lay_out<'a>(
        plane: &Plane,
        class: BatchClass,
        copies: impl Iterator<Item = Copy<'a>>,
    ) -> Self {
        let table = plane.table.load();
        let mut open: BTreeMap<&str, OpenBatch> = BTreeMap::new();
        let mut done = Vec::new();
        let seal = |destination: &str, batch: OpenBatch| {
            let bytes = batch.bytes();
            let batch = NewBatch {
                destination: destination.to_owned(),
                class,
                count: batch.len(),
                body: batch.finish(),
            };
            (batch, bytes)
        };
        for copy in copies {
            let limits = table
                .destination(copy.destination)
                .map_or(BatchLimits::DEFAULT, |destination| destination.limits);
            let batch = open.entry(copy.destination).or_default();
            let subscription = Arc::from(copy.subscription);
            let envelope = copy.envelope.as_bytes();
            if !batch.push_within(limits, &subscription, envelope) {
                done.push(seal(copy.destination, std::mem::take(batch)));
                batch.push(&subscription, envelope);
            }
        }
        done.extend(
            open.into_iter()
                .map(|(destination, batch)| seal(destination, batch)),
        );
        Self(done)
    }

    /// Appends the batches and moves the cursor, in one transaction. False, with nothing appended, if the cursor has
    /// moved meanwhile.
    pub(crate) async fn append(self, plane: &Plane, cursor: CursorMove) -> Result<bool, Fault> {
        let mut sizes: BTreeMap<(String, BatchClass), (u64, u64)> = BTreeMap::new();
        for (batch, bytes) in &self.0 {
            let key = (batch.destination.clone(), batch.class);
            let size = sizes.entry(key).or_default();
            size.0 += u64::from(batch.count);
            size.1 += u64::try_from(*bytes).unwrap_or(u64::MAX);
        }
        let batches = self.0.into_iter().map(|(batch, _)| batch).collect();
        match plane.queue.append(batches, Some(cursor)).await {
            Ok(()) => {}
            Err(QueueError::Lost) => return Ok(false),
            Err(QueueError::Fault(fault)) => return Err(fault),
        }
        for ((destination, class), (events, bytes)) in sizes {
            plane.meters.offered.add(events);
            plane.meters.queued.add(events);
            let counters = plane.all_counters.of(&destination);
            counters.queued(class, events, bytes);
            plane.notifier.wake(&destination);
        }
        Ok(true)
    }
}
