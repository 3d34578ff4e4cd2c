//! The task that writes buffered batches to the queue.
//!
//! The recorder and the workers only request a spill, and timers find batches that were not sent in time. So neither
//! waits for the disk, and a destination that is served from memory is independent of others that fill the queue. The
//! task writes the buffers in turn, a limited number of bytes at a time. Batches that it has taken stay in memory, and
//! count towards its limits, until they are in the queue.
//!
//! The task also writes the counts from which the next run computes the losses of a crash (`losses`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_store::{BatchClass, NewBatch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::health::DeliveryCounters;
use crate::plane::Plane;
use crate::plane::meters::Dropped;
use crate::queue::buffer::BufferedBatch;
use crate::recorder::losses::Counts;

/// Writes buffered batches to the queue.
pub(crate) struct SpillTask {
    plane: Arc<Plane>,
    counts: Option<Counts>,
    /// Offered and completed records at the last count.
    counted: (u64, u64),
    counted_at: Instant,
}

/// Batches taken from one buffer.
struct SpillBatches {
    destination: Arc<str>,
    counters: Arc<DeliveryCounters>,
    batches: Vec<BufferedBatch>,
}

/// Maximum bytes of one append, and of one buffer in it; the last batch may exceed it.
const APPEND_BYTES: u64 = 4 << 20;
const BUFFER_BYTES: u64 = 1 << 20;
/// Interval at which a stopping task checks whether the buffers are empty.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl SpillTask {
    /// A task that also counts records if `counts` of earlier appends are known.
    pub(crate) fn new(plane: Arc<Plane>, counts: Option<Counts>) -> Self {
        Self {
            plane,
            counts,
            counted: (0, 0),
            counted_at: Instant::now(),
        }
    }

    /// Runs until the recorder has finished and the buffers are empty.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let plane = self.plane.clone();
        let flush_after = plane.settings.flush_after;
        loop {
            let look_at = self.fire_timers();
            let taken = self.take();
            if !taken.is_empty() {
                self.append(taken, &cancel).await;
                continue;
            }
            if plane.spill.is_last.load(Ordering::SeqCst) {
                break;
            }
            // A commit for each of many batches would cost more than the batches.
            let has_buffered = plane.direct_events.load(Ordering::Relaxed) > 0;
            let is_uncounted =
                self.counts.is_some() && (has_buffered || self.count_now() != self.counted);
            let due = is_uncounted.then_some(self.counted_at + flush_after);
            let refresh_at = self.counts.as_ref().and_then(Counts::refresh_at);
            let count_at = due.into_iter().chain(refresh_at).min();
            if count_at.is_some_and(|at| at <= Instant::now()) {
                self.count().await;
                continue;
            }
            let next = count_at.into_iter().chain(look_at).min();
            let timer = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = plane.spill.wake.notified() => {}
                () = timer => {}
            }
        }
        self.wait_for_sends(&cancel).await;
        self.count().await;
        if let Some(counts) = &mut self.counts {
            counts.end(&plane.queue).await;
        }
    }

    /// Requests a spill for buffers whose first batch is due. Returns the time of the next timer.
    fn fire_timers(&self) -> Option<Instant> {
        let spill = &self.plane.spill;
        let now = Instant::now();
        loop {
            match spill.next_timer(now) {
                Ok(destination) => {
                    if let Some(counters) = self.plane.all_counters.get(&destination) {
                        counters.buffer.timer_fired();
                        spill.arm_timer(&destination, &counters);
                    }
                }
                Err(at) => return at,
            }
        }
    }

    /// Writes the remaining batches, and waits for those being sent. A worker writes a batch that its destination does
    /// not accept in time.
    async fn wait_for_sends(&mut self, cancel: &CancellationToken) {
        let until = Instant::now() + 2 * self.plane.settings.direct_for;
        loop {
            let all_counters = self.plane.all_counters.each();
            for (destination, counters) in &all_counters {
                self.plane.spill.request_spill(destination, counters);
            }
            let taken = self.take();
            let is_empty = taken.is_empty();
            if !is_empty {
                self.append(taken, cancel).await;
                continue;
            }
            if !all_counters
                .iter()
                .any(|(_, counters)| counters.buffer.is_busy())
                || Instant::now() >= until
            {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes batches from each buffer in turn for one append.
    fn take(&self) -> Vec<SpillBatches> {
        let mut all = Vec::new();
        let mut bytes = 0;
        let n_buffers = lock(&self.plane.spill.buffers).len();
        for _ in 0..n_buffers {
            if bytes >= APPEND_BYTES {
                break;
            }
            let next = lock(&self.plane.spill.buffers).pop_front();
            let Some((destination, counters)) = next else {
                break;
            };
            let batches = counters.buffer.take_to_spill(BUFFER_BYTES);
            if batches.is_empty() {
                continue;
            }
            bytes += batches.iter().map(BufferedBatch::bytes).sum::<u64>();
            all.push(SpillBatches {
                destination,
                counters,
                batches,
            });
        }
        all
    }

    /// Appends all batches in one append, and repeats it until it succeeds or the server stops.
    async fn append(&mut self, taken: Vec<SpillBatches>, cancel: &CancellationToken) {
        let plane = self.plane.clone();
        let meters = &plane.meters;
        let mut n_events = 0;
        // A worker may settle these batches before the append returns.
        for (counters, one) in each(&taken) {
            counters.queued(BatchClass::Traffic, one.events(), one.bytes());
            counters.released(one.events(), one.bytes());
            n_events += one.events();
        }
        plane.direct_events.fetch_sub(n_events, Ordering::Relaxed);
        let mut pause = Duration::from_millis(50);
        let mut is_faulted = false;
        let is_appended = loop {
            let batches = taken.iter().flat_map(SpillBatches::stored).collect();
            let appended = match plane.log.is_in_database() {
                // The counts join the same commit.
                true => tokio::join!(plane.log.append(batches), self.count()).0,
                // The counts may be late, but never early: a batch that is counted as done is in the queue.
                false => {
                    let appended = plane.log.append(batches).await;
                    if appended.is_ok() {
                        self.count().await;
                    }
                    appended
                }
            };
            let Err(error) = appended else { break true };
            meters.flush_errors.add(1);
            if !std::mem::replace(&mut is_faulted, true) {
                tracing::error!(cause = %culvert_target::failure::chain(&error), "cannot queue traffic events");
            }
            if cancel.is_cancelled() {
                break false;
            }
            // Meanwhile buffers fill up. Events beyond their limits are dropped and counted.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        };
        if is_appended && is_faulted {
            tracing::info!("traffic events are queued again");
        }
        if is_appended {
            meters.flushes.add(1);
            meters.queued.add(n_events);
        } else {
            for (counters, one) in each(&taken) {
                counters.settled(BatchClass::Traffic, one.events(), one.bytes());
                counters.dropped.add(Dropped::Stopped, one.events());
                meters.dropped.add(Dropped::Stopped, one.events());
            }
        }
        for one in &taken {
            one.counters.buffer.spilled();
            // Batches that arrived meanwhile may be written next.
            plane.spill.arm_timer(&one.destination, &one.counters);
            plane.notifier.wake(&one.destination);
        }
    }

    /// Records offered, and those that are complete: written to the queue, delivered, or without a
    /// subscription.
    fn count_now(&self) -> (u64, u64) {
        let on_lanes = self.plane.direct_events.load(Ordering::Relaxed);
        let taken = self.plane.spill.taken.load(Ordering::SeqCst);
        (self.plane.offers.accepted(), taken.saturating_sub(on_lanes))
    }

    async fn count(&mut self) {
        self.counted_at = Instant::now();
        self.counted = self.count_now();
        let (offered, done) = self.counted;
        if let Some(counts) = &mut self.counts {
            counts.write(&self.plane.queue, offered, done).await;
        }
    }
}

impl SpillBatches {
    fn stored(&self) -> impl Iterator<Item = NewBatch> + '_ {
        self.batches.iter().map(|one| NewBatch {
            destination: self.destination.to_string(),
            class: BatchClass::Traffic,
            count: one.batch.len(),
            body: one.batch.clone().finish(),
        })
    }
}

fn each(taken: &[SpillBatches]) -> impl Iterator<Item = (&DeliveryCounters, &BufferedBatch)> {
    taken
        .iter()
        .flat_map(|taken| taken.batches.iter().map(|one| (&*taken.counters, one)))
}
