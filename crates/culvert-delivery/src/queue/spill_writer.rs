//! Requests to write buffered batches to the queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::health::DeliveryCounters;

/// Destinations whose batches must be written to the queue.
#[derive(Debug, Default)]
pub(crate) struct SpillWriter {
    pub(crate) buffers: Mutex<VecDeque<(Arc<str>, Arc<DeliveryCounters>)>>,
    /// Timers for buffers that need no spill yet, the soonest first.
    timers: Mutex<BinaryHeap<Reverse<Timer>>>,
    pub(crate) wake: Notify,
    /// Records that the recorder has taken since the start.
    pub(crate) taken: AtomicU64,
    /// Set when the recorder will add no more batches.
    pub(crate) is_last: AtomicBool,
}

/// The time of a timer, and the destination's id.
type Timer = (Instant, Arc<str>);

impl SpillWriter {
    /// Requests that the batches of this buffer are written to the queue.
    pub(crate) fn request_spill(&self, destination: &Arc<str>, counters: &Arc<DeliveryCounters>) {
        if counters.buffer.request_spill() {
            lock(&self.buffers).push_back((destination.clone(), counters.clone()));
            self.wake.notify_one();
        }
    }

    /// Requests a spill of this buffer if one is due, or arms a timer for it.
    pub(crate) fn arm_timer(&self, destination: &Arc<str>, counters: &Arc<DeliveryCounters>) {
        if counters.buffer.must_spill(Instant::now()) {
            self.request_spill(destination, counters);
        } else if let Some(at) = counters.buffer.arm_timer() {
            let mut timers = lock(&self.timers);
            let is_soonest = timers
                .peek()
                .is_none_or(|Reverse((soonest, _))| at < *soonest);
            timers.push(Reverse((at, destination.clone())));
            drop(timers);
            if is_soonest {
                self.wake.notify_one();
            }
        }
    }

    /// Removes a timer that is due, or returns the time of the next one.
    pub(crate) fn next_timer(&self, now: Instant) -> Result<Arc<str>, Option<Instant>> {
        let mut timers = lock(&self.timers);
        match timers.peek() {
            Some(Reverse((at, _))) if *at > now => Err(Some(*at)),
            Some(_) => timers
                .pop()
                .map(|Reverse((_, destination))| destination)
                .ok_or(None),
            None => Err(None),
        }
    }

    /// Notes how many records the recorder has taken and put into buffers.
    pub(crate) fn taken(&self, n_records: u64) {
        if self.taken.swap(n_records, Ordering::SeqCst) != n_records {
            self.wake.notify_one();
        }
    }

    /// Notes that the recorder has finished.
    pub(crate) fn finish(&self) {
        self.is_last.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }
}
