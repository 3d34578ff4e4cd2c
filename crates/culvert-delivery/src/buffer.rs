//! Traffic batches in memory, a lane for each destination.
//!
//! The queue is for destinations that are away or slow. One that takes what it is sent gets its
//! batches from memory, one at a time, by the same worker that sends what is queued (`worker/direct`).
//! A batch that is not settled within [`crate::settings::Settings::direct_for`] is written down (`spill`): no
//! event is in memory alone for longer than that and the flush before it, as long as the queue can be
//! written. When a send fails, everything behind it is written down at once.
//!
//! Nothing overtakes what is in the queue or on its way there: what comes meanwhile waits here, as long
//! as it may, for the queue to be empty again, so that one slow moment does not send everything after
//! it by way of the disk. Full batches are all that many small ones become while they wait.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use tokio::time::Instant;

use crate::batch::{BatchLimits, OpenBatch};

/// The batches of one destination.
#[derive(Debug, Default)]
pub(crate) struct DeliveryBuffer(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<BufferedBatch>,
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
pub(crate) struct BufferedBatch {
    pub(crate) batch: OpenBatch,
    /// When it must be on its way into the queue if it was not taken.
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
    /// Adds a batch at the end, to the last one there if that has room. What comes now waits no longer
    /// than `until`; not at all, if it is for the queue.
    pub(crate) fn put(
        &self,
        batch: OpenBatch,
        limits: BatchLimits,
        until: Instant,
        is_for_queue: bool,
    ) {
        let mut buffer = self.lock();
        buffer.is_for_queue = is_for_queue;
        match buffer.batches.back_mut() {
            Some(last) if last.batch.has_room_for(&batch, limits) => last.batch.join(&batch),
            _ => buffer.batches.push_back(BufferedBatch { batch, until }),
        }
    }

    /// Everything that is here, given up.
    pub(crate) fn empty(&self) -> Vec<BufferedBatch> {
        self.lock().batches.drain(..).collect()
    }

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
        let buffer = self.lock();
        !buffer.batches.is_empty() || buffer.is_being_sent || buffer.is_being_written
    }

    /// Notes that the appender shall take what is here. Whether it has to be told.
    pub(crate) fn request_spill(&self) -> bool {
        let mut buffer = self.lock();
        !buffer.batches.is_empty() && !std::mem::replace(&mut buffer.is_wanted, true)
    }

    /// What the appender writes: batches from the front, of that many bytes or one more. None while one
    /// that was before them is not settled; whoever settles it asks again. Until [`Self::written`],
    /// nothing else is taken.
    pub(crate) fn take_to_write(&self, bytes_max: u64) -> Vec<BufferedBatch> {
        let mut buffer = self.lock();
        buffer.is_wanted = false;
        let mut taken = Vec::new();
        if buffer.is_being_sent || buffer.is_being_written {
            return taken;
        }
        let mut bytes = 0;
        while bytes < bytes_max
            && let Some(one) = buffer.batches.pop_front()
        {
            bytes += one.bytes();
            taken.push(one);
        }
        buffer.is_being_written = !taken.is_empty();
        taken
    }

    /// What was taken to be written is in the queue, or given up.
    pub(crate) fn written(&self) {
        self.lock().is_being_written = false;
    }

    /// Whether what is first here must be on its way into the queue.
    pub(crate) fn must_be_written(&self, now: Instant) -> bool {
        let buffer = self.lock();
        buffer.is_due(now) || (buffer.is_for_queue && !buffer.batches.is_empty())
    }

    /// When it must, if nobody was told to look then.
    pub(crate) fn watch(&self) -> Option<Instant> {
        let mut buffer = self.lock();
        let until = buffer.batches.front()?.until;
        (!std::mem::replace(&mut buffer.is_watched, true)).then_some(until)
    }

    /// Whoever was told to look does so.
    pub(crate) fn timer_fired(&self) {
        self.lock().is_watched = false;
    }

    /// A worker begins: none before it is at work.
    pub(crate) fn begin(&self) {
        self.lock().is_being_sent = false;
    }

    /// What a worker sends next, if the queue is empty, which is asked while nothing here changes: what
    /// was written is in the queue before it is said to be written.
    pub(crate) fn take_to_send(
        &self,
        has_empty_queue: impl FnOnce() -> bool,
    ) -> Option<BufferedBatch> {
        let mut buffer = self.lock();
        if buffer.is_being_written || !has_empty_queue() {
            return None;
        }
        let one = buffer.batches.pop_front()?;
        buffer.is_being_sent = true;
        Some(one)
    }

    /// What was taken to be sent is settled, or in the queue; or it is `back`, to be sent again.
    pub(crate) fn sent(&self, back: Option<BufferedBatch>) {
        let mut buffer = self.lock();
        buffer.is_being_sent = false;
        if let Some(one) = back {
            buffer.batches.push_front(one);
        }
    }
}
