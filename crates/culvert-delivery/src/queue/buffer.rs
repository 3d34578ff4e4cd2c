//! Traffic batches in memory, in a buffer for each destination.
//!
//! The queue is for destinations that are unreachable or slow. A destination that accepts its batches gets them from
//! memory, one at a time, from the same worker that sends queued batches (`worker/direct`). A batch that is not settled
//! within [`crate::Settings::direct_for`] is written to the queue (`spill`). So no event is only in memory for longer
//! than that and the flush before it, as long as the queue can be written. When a send fails, all batches behind it are
//! written to the queue immediately.
//!
//! No batch overtakes those in the queue or those being written to it. Batches that arrive meanwhile wait here until
//! the queue is empty or their time limit is reached, so one slow moment does not send all later batches through the
//! disk. Small batches are joined into full ones while they wait.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use culvert_base::sync::lock;
use culvert_target::batch::{BatchLimits, OpenBatch};
use tokio::time::Instant;

/// The batches of one destination.
#[derive(Debug, Default)]
pub(crate) struct DeliveryBuffer(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<BufferedBatch>,
    taken: Taken,
    route: Route,
    /// Whether the buffer is in the list of the spill task.
    is_spill_requested: bool,
    /// Whether a timer is armed for the first batch.
    has_timer: bool,
}

/// The holder of batches that were taken from the front and are not settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Taken {
    #[default]
    Nobody,
    /// A worker sends one, with this many events and bytes. Until it is settled or queued, none is written.
    Worker { events: u64, bytes: u64 },
    /// The spill task writes some. Until they are queued, none is sent.
    SpillTask,
}

/// Where batches leave the buffer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Route {
    /// To the worker, or to the queue when their time is over.
    #[default]
    Worker,
    /// To the queue, immediately.
    Queue,
}

/// A batch, and how long it may wait here.
#[derive(Debug)]
pub(crate) struct BufferedBatch {
    pub(crate) batch: OpenBatch,
    /// When it must be on its way to the queue if it was not accepted.
    pub(crate) until: Instant,
}

impl BufferedBatch {
    pub(crate) fn events(&self) -> u64 {
        u64::from(self.batch.len())
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(self.batch.bytes()).unwrap_or(u64::MAX)
    }
}

impl DeliveryBuffer {
    /// Adds a batch at the end, or to the last batch if that has room. It waits no longer than `until`.
    /// `route` holds for all batches here.
    pub(crate) fn put(&self, batch: OpenBatch, limits: BatchLimits, until: Instant, route: Route) {
        let mut state = self.state();
        state.route = route;
        let last = state.batches.back_mut();
        if !last.is_some_and(|last| last.batch.join_within(limits, &batch)) {
            state.batches.push_back(BufferedBatch { batch, until });
        }
    }

    /// Removes all batches.
    pub(crate) fn empty(&self) -> Vec<BufferedBatch> {
        self.state().batches.drain(..).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    pub(crate) fn is_spilling(&self) -> bool {
        self.state().taken == Taken::SpillTask
    }

    /// Whether batches are here, or were taken and are not settled.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.state();
        !state.batches.is_empty() || state.taken != Taken::Nobody
    }

    /// Requests that the spill task writes the batches. Returns whether it must be notified.
    pub(crate) fn request_spill(&self) -> bool {
        let mut state = self.state();
        !state.batches.is_empty() && !std::mem::replace(&mut state.is_spill_requested, true)
    }

    /// Takes batches from the front to write them: `bytes_max` bytes or one batch more. None while a batch
    /// before them is not settled: settling it requests a spill again. Nothing else is taken until
    /// [`Self::spilled`].
    pub(crate) fn take_to_spill(&self, bytes_max: u64) -> Vec<BufferedBatch> {
        let mut state = self.state();
        state.is_spill_requested = false;
        let mut batches = Vec::new();
        if state.taken != Taken::Nobody {
            return batches;
        }
        let mut bytes = 0;
        while bytes < bytes_max
            && let Some(batch) = state.batches.pop_front()
        {
            bytes += batch.bytes();
            batches.push(batch);
        }
        if !batches.is_empty() {
            state.taken = Taken::SpillTask;
        }
        batches
    }

    /// Notes that the batches taken to be written are in the queue, or dropped.
    pub(crate) fn spilled(&self) {
        let mut state = self.state();
        if state.taken == Taken::SpillTask {
            state.taken = Taken::Nobody;
        }
    }

    /// Whether the first batch must be on its way to the queue.
    pub(crate) fn must_spill(&self, now: Instant) -> bool {
        let state = self.state();
        let first = state.batches.front();
        first.is_some_and(|batch| batch.until <= now || state.route == Route::Queue)
    }

    /// When the first batch must be on its way to the queue, if no timer is armed for it.
    pub(crate) fn arm_timer(&self) -> Option<Instant> {
        let mut state = self.state();
        let until = state.batches.front()?.until;
        (!std::mem::replace(&mut state.has_timer, true)).then_some(until)
    }

    /// Notes that the timer is over.
    pub(crate) fn timer_fired(&self) {
        self.state().has_timer = false;
    }

    /// Notes that a worker starts. Returns the number of events and bytes that the previous one had taken and not
    /// settled.
    pub(crate) fn start_worker(&self) -> Option<(u64, u64)> {
        let mut state = self.state();
        let Taken::Worker { events, bytes } = state.taken else {
            return None;
        };
        state.taken = Taken::Nobody;
        Some((events, bytes))
    }

    /// Takes the next batch to send it, if the queue is empty. The queue is checked under the lock: written
    /// batches are in the queue before [`Self::spilled`].
    pub(crate) fn take_to_send(
        &self,
        has_empty_queue: impl FnOnce() -> bool,
    ) -> Option<BufferedBatch> {
        let mut state = self.state();
        if state.taken == Taken::SpillTask || !has_empty_queue() {
            return None;
        }
        let batch = state.batches.pop_front()?;
        state.taken = Taken::Worker {
            events: batch.events(),
            bytes: batch.bytes(),
        };
        Some(batch)
    }

    /// Notes that the batch taken to be sent is settled or queued, or puts it `back` to be sent again.
    pub(crate) fn sent(&self, back: Option<BufferedBatch>) {
        let mut state = self.state();
        if matches!(state.taken, Taken::Worker { .. }) {
            state.taken = Taken::Nobody;
        }
        if let Some(batch) = back {
            state.batches.push_front(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch with one event.
    fn batch() -> OpenBatch {
        let mut batch = OpenBatch::default();
        batch.push(&"esb_1".into(), br#"{"event_id":"ev_1"}"#);
        batch
    }

    #[test]
    fn a_worker_and_the_spill_task_never_hold_batches_concurrently() {
        let buffer = DeliveryBuffer::default();
        let now = Instant::now();
        let limits = BatchLimits {
            events_max: 1,
            bytes_max: 1 << 10,
        };
        for _ in 0..2 {
            buffer.put(batch(), limits, now, Route::Worker);
        }
        assert!(buffer.take_to_send(|| false).is_none());
        let sending = buffer.take_to_send(|| true).unwrap();
        assert!(buffer.request_spill() && !buffer.request_spill());
        assert!(buffer.take_to_spill(1).is_empty());
        // Settling the batch lets the request be made again.
        buffer.sent(Some(sending));
        assert!(buffer.request_spill());
        assert_eq!(buffer.take_to_spill(1).len(), 1);
        assert!(buffer.take_to_send(|| true).is_none() && buffer.is_spilling());
        // A worker that starts does not end the write.
        assert_eq!(buffer.start_worker(), None);
        assert!(buffer.is_spilling());
        buffer.spilled();
        let sending = buffer.take_to_send(|| true).unwrap();
        assert!(buffer.is_busy());
        let lost = (sending.events(), sending.bytes());
        assert_eq!(buffer.start_worker(), Some(lost));
        assert!(!buffer.is_busy());
    }

    #[test]
    fn a_timer_is_armed_once() {
        let buffer = DeliveryBuffer::default();
        let until = Instant::now() + std::time::Duration::from_secs(60);
        assert_eq!(buffer.arm_timer(), None);
        buffer.put(batch(), BatchLimits::DEFAULT, until, Route::Worker);
        assert_eq!(buffer.arm_timer(), Some(until));
        assert_eq!(buffer.arm_timer(), None);
        buffer.timer_fired();
        assert_eq!(buffer.arm_timer(), Some(until));
        assert!(!buffer.must_spill(Instant::now()) && buffer.must_spill(until));
        buffer.put(batch(), BatchLimits::DEFAULT, until, Route::Queue);
        assert!(buffer.must_spill(Instant::now()));
    }
}
