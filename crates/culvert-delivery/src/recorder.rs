//! Records become batches: offered by the planes, filtered, written, and put into the durable queue.
//!
//! Offering never waits: a record is pushed onto one of a few short lists under a lock that is held
//! for a push, or it is dropped and counted when the lists hold too much. One flusher wakes for the
//! first record and for every few, never for each, while they are still in the processor's cache; it
//! takes all lists at once, writes an event once for each distinct selection, and appends the batches
//! of all destinations in one go: after 500 events, 512 KiB, or 200 ms, whichever comes first. A
//! target on this machine gets its batch directly as long as it takes it. What is in memory here is
//! what a crash may lose.
//!
//! Not here: who reads what (`subscription`), how batches lie in the queue (`batch`).

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use culvert_events::encode::{self, Truncated};
use culvert_events::{Capture, EventIds, Kind, Record, Recorder};
use culvert_store::{BatchClass, NewBatch};

use crate::Plane;
use crate::batch::{Batch, OpenBatch, Unreadable};
use crate::direct::{self, Direct};
use crate::losses::Losses;
use crate::meters::{Dropped, Meters};
use crate::subscription::{Compiled, Outlet};
use crate::target::Verdict;

/// Lists that records are pushed onto; a thread keeps to one.
const SHARDS: usize = 8;

/// Where the planes leave their records.
#[derive(Debug)]
pub(crate) struct Offers {
    captures: ArcSwap<Vec<(&'static Kind, Capture)>>,
    shards: [Mutex<Vec<Record>>; SHARDS],
    records: AtomicUsize,
    bytes: AtomicUsize,
    /// Records taken in since the start.
    accepted: AtomicU64,
    limits: OfferLimits,
    wake: Notify,
    meters: Arc<Meters>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferLimits {
    pub(crate) records_max: usize,
    pub(crate) bytes_max: usize,
    /// The flusher is woken after that many records or bytes.
    pub(crate) wake_records: usize,
    pub(crate) wake_bytes: usize,
}

impl Offers {
    pub(crate) fn new(limits: OfferLimits, meters: Arc<Meters>) -> Self {
        Self {
            captures: ArcSwap::default(),
            shards: Default::default(),
            records: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            accepted: AtomicU64::new(0),
            limits,
            wake: Notify::new(),
            meters,
        }
    }

    /// Says what is wanted from now on.
    pub(crate) fn set_captures(&self, wanted: impl Iterator<Item = (&'static Kind, Capture)>) {
        let mut captures: Vec<(&'static Kind, Capture)> = Vec::new();
        for (kind, capture) in wanted {
            match captures
                .iter_mut()
                .find(|(known, _)| known.name == kind.name)
            {
                Some((_, union)) => *union = union.union(capture),
                None => captures.push((kind, capture)),
            }
        }
        self.captures.store(Arc::new(captures));
    }

    fn is_empty(&self) -> bool {
        self.records.load(Ordering::Acquire) == 0
    }

    fn is_full_enough(&self) -> bool {
        self.records.load(Ordering::Relaxed) >= self.limits.wake_records
            || self.bytes.load(Ordering::Relaxed) >= self.limits.wake_bytes
    }

    /// Moves everything offered so far to the end of `into`, in the order in which it happened.
    ///
    /// All lists are held at once: of two records of a connection, offered by different threads, the
    /// later is never taken without the earlier.
    fn take(&self, into: &mut Vec<Record>) {
        let before = into.len();
        let mut shards = self.shards.each_ref().map(|shard| {
            shard
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        });
        for shard in &mut shards {
            // The list keeps its memory; only the records move.
            into.append(shard);
        }
        drop(shards);
        let taken = &mut into[before..];
        // A few sorted runs, which is what this sort is quick at.
        taken.sort_by_key(Record::at);
        let bytes: usize = taken.iter().map(Record::bytes).sum();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.records
            .fetch_sub(into.len() - before, Ordering::Release);
    }
}

impl Recorder for Offers {
    fn capture(&self, kind: &'static Kind) -> Capture {
        self.captures
            .load()
            .iter()
            .find(|(known, _)| std::ptr::eq(*known, kind) || known.name == kind.name)
            .map_or(Capture::NONE, |(_, capture)| *capture)
    }

    fn offer(&self, record: Record) {
        let size = record.bytes();
        let records = self.records.fetch_add(1, Ordering::AcqRel) + 1;
        let bytes = self.bytes.fetch_add(size, Ordering::Relaxed) + size;
        if records > self.limits.records_max || bytes > self.limits.bytes_max {
            self.records.fetch_sub(1, Ordering::Relaxed);
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            self.meters.offered.add(1);
            self.meters.dropped.add(Dropped::OfferFull, 1);
            return;
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.shards[shard_of_this_thread()]
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push(record);
        let crossed = bytes / self.limits.wake_bytes != (bytes - size) / self.limits.wake_bytes;
        if records == 1 || records.is_multiple_of(self.limits.wake_records) || crossed {
            self.wake.notify_one();
        }
    }
}

fn shard_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
}

/// Takes what is offered and puts it into the queue.
pub(crate) struct Flusher {
    plane: Arc<Plane>,
    ids: EventIds,
    taken: Vec<Record>,
    scratch: Vec<u8>,
    /// By the address of the outlet, which the entry keeps alive.
    open: HashMap<usize, Open>,
    sealed: Vec<Sealed>,
    /// Events and bytes in `open` and `sealed`.
    held_events: usize,
    held_bytes: usize,
    /// Buffers of batches that were delivered, for the next ones.
    spare: Vec<Vec<u8>>,
    /// Records taken since the start.
    n_taken: u64,
    losses: Option<Losses>,
    counted_at: Instant,
    /// Whether something was delivered since then.
    is_uncounted: bool,
}

struct Open {
    outlet: Arc<Outlet>,
    batch: OpenBatch,
}

struct Sealed {
    outlet: Arc<Outlet>,
    batch: NewBatch,
    bytes: u64,
}

/// What one round counted, added to the meters at its end.
#[derive(Default)]
struct Tally {
    offered: u64,
    filtered: u64,
    filter_errors: u64,
}

/// Records written without letting others run.
const CHUNK: usize = 256;
/// While records wait, how often their number is noted.
const NOTE_EVERY: Duration = Duration::from_millis(5);
/// How often a flusher that stops looks whether the lanes are empty.
const LANE_LOOK_EVERY: Duration = Duration::from_millis(5);
/// Buffers kept for the next batches, while there is much to write.
const SPARE_MAX: usize = 4;

impl Flusher {
    /// A flusher that counts what a crash would take, if it knows where counting stood.
    pub(crate) fn new(plane: Arc<Plane>, losses: Option<Losses>) -> Self {
        Self {
            ids: EventIds::new(plane.entropy.clone()),
            plane,
            taken: Vec::new(),
            scratch: Vec::with_capacity(4 << 10),
            open: HashMap::new(),
            sealed: Vec::new(),
            held_events: 0,
            held_bytes: 0,
            spare: Vec::new(),
            n_taken: 0,
            losses,
            counted_at: Instant::now(),
            is_uncounted: false,
        }
    }

    /// Runs until cancelled, then flushes what was offered before.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let flush_after = self.plane.settings.flush_after;
        let plane = self.plane.clone();
        let offers = &plane.offers;
        // When the oldest of what is held must be in the queue.
        let mut due: Option<Instant> = None;
        loop {
            let stopping = cancel.is_cancelled();
            let waiting = !offers.is_empty() || self.holds();
            let is_due = stopping || due.is_some_and(|due| Instant::now() >= due);
            if waiting && (is_due || offers.is_full_enough()) {
                self.write_taken().await;
                if is_due || !self.sealed.is_empty() || self.is_full_enough() {
                    self.flush(&cancel).await;
                    due = None;
                }
                if is_due {
                    self.spare.clear();
                }
            }
            if stopping {
                // What is on a lane is waited for after all else, not here without a pause.
                if !offers.is_empty() || self.held_events > 0 {
                    continue;
                }
                self.outlast_lanes().await;
                self.count().await;
                return;
            }
            let waiting = !offers.is_empty() || self.holds();
            if waiting && due.is_none() {
                due = Some(Instant::now() + flush_after);
            }
            if let Some(losses) = &mut self.losses {
                losses.note(offers.accepted.load(Ordering::Relaxed)).await;
            }
            let timer = async {
                match due {
                    Some(due) => {
                        let soon = Instant::now() + NOTE_EVERY;
                        tokio::time::sleep_until(due.min(soon)).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = offers.wake.notified() => {}
                () = timer => {}
                () = cancel.cancelled() => {}
            }
        }
    }

    /// Waits until nothing is on a lane, which is soon: what is not taken is written down.
    async fn outlast_lanes(&self) {
        let until = Instant::now() + 2 * self.plane.settings.direct_for;
        while self.plane.direct_events.load(Ordering::Relaxed) > 0 && Instant::now() < until {
            tokio::time::sleep(LANE_LOOK_EVERY).await;
        }
    }

    /// Whether a flush has something to do.
    fn holds(&self) -> bool {
        self.held_events > 0 || self.is_uncounted
    }

    fn is_full_enough(&self) -> bool {
        self.held_events >= self.plane.settings.flush_events
            || self.held_bytes >= self.plane.settings.flush_bytes
    }

    /// Takes what is offered and writes it into open batches.
    async fn write_taken(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        self.plane.offers.take(&mut taken);
        self.n_taken += u64::try_from(taken.len()).unwrap_or(0);
        let mut records = taken.drain(..);
        loop {
            let plane = self.plane.clone();
            let table = plane.table.load_full();
            let mut tally = Tally::default();
            for record in records.by_ref().take(CHUNK) {
                self.write(&plane, &table, &record, &mut tally);
            }
            let meters = &plane.meters;
            meters.offered.add(tally.offered);
            meters.filtered.add(tally.filtered);
            meters.filter_errors.add(tally.filter_errors);
            if records.len() == 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(records);
        self.taken = taken;
    }

    /// Writes one record for everybody who wants it.
    fn write(&mut self, plane: &Plane, table: &Compiled, record: &Record, tally: &mut Tally) {
        let id = self.ids.next(record.at());
        plane.tails.record(record, &id, &plane.meters);
        for group in table.groups(record.kind(), record.account()) {
            let mut is_written = false;
            for reader in &group.readers {
                let n = u64::try_from(reader.outlets.len()).unwrap_or(u64::MAX);
                tally.offered += n;
                match reader.filter.as_ref().map(|filter| filter.matches(record)) {
                    None | Some(Ok(true)) => {}
                    Some(Ok(false)) => {
                        tally.filtered += n;
                        continue;
                    }
                    // Never delivered "to be safe".
                    Some(Err(fault)) => {
                        tracing::debug!(subscription.id = %reader.subscription, %fault, "a filter failed");
                        tally.filtered += n;
                        tally.filter_errors += n;
                        continue;
                    }
                }
                if !is_written {
                    self.scratch.clear();
                    let truncated = encode::event(record, &group.selection, &id, &mut self.scratch);
                    count_truncated(&plane.meters, truncated);
                    is_written = true;
                }
                for outlet in &reader.outlets {
                    self.push(plane, outlet, &reader.subscription);
                }
            }
        }
    }

    /// Adds the written event to a destination's open batch, if its queue has room.
    fn push(&mut self, plane: &Plane, outlet: &Arc<Outlet>, subscription: &Arc<str>) {
        let settings = &plane.settings;
        let length = self.scratch.len();
        let size = u64::try_from(length + 1).unwrap_or(u64::MAX);
        let (events, bytes) = outlet.ledger.waiting();
        if outlet.is_full(
            settings,
            events.saturating_add(1),
            bytes.saturating_add(size),
        ) {
            drop_one(plane, outlet, Dropped::QueueFull);
            return;
        }
        if plane.is_disk_full() {
            drop_one(plane, outlet, Dropped::DiskFull);
            return;
        }
        outlet.ledger.held(1, size);
        let address = Arc::as_ptr(outlet).addr();
        let spare = &mut self.spare;
        let mut empty = || OpenBatch::within(spare.pop().unwrap_or_default());
        let open = self.open.entry(address).or_insert_with(|| Open {
            outlet: outlet.clone(),
            batch: empty(),
        });
        if !open.batch.fits(length, open.outlet.limits) {
            let full = std::mem::replace(&mut open.batch, empty());
            self.sealed.push(seal(&open.outlet, full));
        }
        open.batch.push(subscription, &self.scratch);
        self.held_events += 1;
        self.held_bytes += length + 1;
    }

    /// Hands over what a local target takes at once, and appends everything else that is held, in
    /// one append, trying until it works or the server stops.
    async fn flush(&mut self, cancel: &CancellationToken) {
        self.sealed.extend(
            self.open
                .drain()
                .filter(|(_, open)| !open.batch.is_empty())
                .map(|(_, open)| seal(&open.outlet, open.batch)),
        );
        self.held_events = 0;
        self.held_bytes = 0;
        if self.sealed.is_empty() {
            if self.is_uncounted {
                self.count().await;
            }
            return;
        }
        let sealed = std::mem::take(&mut self.sealed);
        let plane = self.plane.clone();
        let meters = &plane.meters;
        let lanes_for = match cancel.is_cancelled() {
            true => Duration::ZERO,
            false => plane.settings.direct_for,
        };
        let sealed = hand_over(&plane, sealed, &mut self.spare, lanes_for).await;
        if sealed.is_empty() {
            meters.flushes.add(1);
            // A commit of its own for each of many batches would cost more than they do.
            self.is_uncounted = true;
            if self.counted_at.elapsed() >= plane.settings.flush_after {
                self.count().await;
            }
            return;
        }
        // A worker may be done with them before the append returns.
        for one in &sealed {
            let events = u64::from(one.batch.count);
            one.outlet.ledger.queued(events, one.bytes);
            one.outlet.ledger.released(events, one.bytes);
        }
        let mut pause = Duration::from_millis(50);
        loop {
            let batches = sealed.iter().map(|sealed| sealed.batch.clone()).collect();
            // The counts join the same commit.
            let (appended, ()) = tokio::join!(plane.queue.append(batches, None), self.count());
            let error = match appended {
                Ok(()) => break,
                Err(error) => error,
            };
            meters.flush_errors.add(1);
            tracing::error!(cause = %crate::chain(&error), "traffic events cannot be queued");
            if cancel.is_cancelled() {
                for Sealed {
                    outlet,
                    batch,
                    bytes,
                } in sealed
                {
                    let events = u64::from(batch.count);
                    outlet.ledger.left(events, bytes);
                    outlet.ledger.dropped.add(Dropped::Stopped, events);
                    meters.dropped.add(Dropped::Stopped, events);
                }
                return;
            }
            // Meanwhile offers fill up and are dropped there, counted.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        meters.flushes.add(1);
        for Sealed { outlet, batch, .. } in &sealed {
            meters.queued.add(u64::from(batch.count));
            plane.wakes.wake(&outlet.id);
        }
    }

    /// Writes down how many records were offered and how many are done with.
    async fn count(&mut self) {
        let on_lanes = self.plane.direct_events.load(Ordering::Relaxed);
        self.is_uncounted = on_lanes > 0;
        self.counted_at = Instant::now();
        let done = self.n_taken.saturating_sub(on_lanes);
        let offered = self.plane.offers.accepted.load(Ordering::Relaxed);
        if let Some(losses) = &mut self.losses {
            losses.write(&self.plane.queue, offered, done).await;
        }
    }
}

/// The queue is for destinations that may be away. A target on this machine that has nothing waiting
/// gets its batch here, another one on its lane, if there may be lanes for any time; what neither
/// takes goes the way of all others. Returns what is left; the buffers of what was taken here become
/// `spare`.
async fn hand_over(
    plane: &Plane,
    sealed: Vec<Sealed>,
    spare: &mut Vec<Vec<u8>>,
    lanes_for: Duration,
) -> Vec<Sealed> {
    let mut left = Vec::with_capacity(sealed.len());
    for mut one in sealed {
        let outlet = &one.outlet;
        let is_same = |other: &Sealed| Arc::ptr_eq(&other.outlet, outlet);
        let events = u64::from(one.batch.count);
        // Nothing may overtake what is in the queue or failed before.
        let is_next =
            outlet.ledger.queued_events.load(Ordering::Relaxed) == 0 && !left.iter().any(is_same);
        // What becomes one object of many batches comes together in the queue.
        let gathers = outlet.target.gathers().is_some();
        if !(plane.settings.sends && is_next) || gathers {
            left.push(one);
            continue;
        }
        if !outlet.target.is_local() {
            left.extend(on_lane(plane, one, lanes_for));
            continue;
        }
        let body = Bytes::from(std::mem::take(&mut one.batch.body));
        let batch = Batch::read(outlet.id.clone(), BatchClass::Traffic, body.clone());
        let sent = match &batch {
            Ok(batch) => {
                plane.meters.sends.add(1);
                outlet.ledger.batches.add(1);
                tokio::time::timeout(plane.settings.send_deadline, outlet.target.send(batch)).await
            }
            // The queue's worker buries it with its reason.
            Err(Unreadable) => Ok(Verdict::Partial(Vec::new())),
        };
        drop(batch);
        let now = plane.clock.now();
        match sent {
            Ok(Verdict::Delivered) => {
                outlet.ledger.released(events, one.bytes);
                outlet.ledger.sent.add(events);
                outlet.ledger.bytes.add(one.bytes);
                outlet.ledger.succeeded(now);
                plane.meters.delivered.add(events);
                if let (true, Ok(buffer)) = (spare.len() < SPARE_MAX, body.try_into_mut()) {
                    spare.push(buffer.into());
                }
                continue;
            }
            Ok(Verdict::Failed(failure)) => {
                outlet.ledger.failed(&failure, now);
            }
            Ok(Verdict::Partial(_)) | Err(_) => {}
        }
        one.batch.body = body.into();
        left.push(one);
    }
    left
}

/// Puts a batch on its destination's lane; gives it back if it does not belong there.
fn on_lane(plane: &Plane, one: Sealed, lanes_for: Duration) -> Option<Sealed> {
    if lanes_for.is_zero() {
        return Some(one);
    }
    let Sealed {
        outlet,
        batch,
        bytes,
    } = one;
    let until = Instant::now() + lanes_for;
    let refused = direct::offer(
        plane,
        &outlet,
        Direct {
            batch,
            bytes,
            until,
        },
    );
    refused.err().map(|Direct { batch, bytes, .. }| Sealed {
        outlet,
        batch,
        bytes,
    })
}

fn drop_one(plane: &Plane, outlet: &Outlet, reason: Dropped) {
    outlet.ledger.dropped.add(reason, 1);
    plane.meters.dropped.add(reason, 1);
}

fn seal(outlet: &Arc<Outlet>, batch: OpenBatch) -> Sealed {
    Sealed {
        bytes: u64::try_from(batch.bytes()).unwrap_or(u64::MAX),
        batch: NewBatch {
            destination: outlet.id.to_string(),
            class: BatchClass::Traffic,
            count: batch.len(),
            body: batch.finish(),
        },
        outlet: outlet.clone(),
    }
}

fn count_truncated(meters: &Meters, truncated: Truncated) {
    for (is_truncated, counter) in [
        (truncated.headers, &meters.truncated_headers),
        (truncated.logs, &meters.truncated_logs),
        (truncated.url, &meters.truncated_url),
    ] {
        if is_truncated {
            counter.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use culvert_base::Timestamp;
    use culvert_events::TCP_CONNECTION_CLOSED;

    use super::*;

    #[test]
    fn records_of_one_connection_keep_their_order_whatever_threads_offer_them() {
        const THREADS: usize = 4;
        const RECORDS: i64 = 2_000;
        let limits = OfferLimits {
            records_max: usize::MAX,
            bytes_max: usize::MAX,
            wake_records: 64,
            wake_bytes: 1 << 20,
        };
        let offers = Offers::new(limits, Arc::default());
        let turn = Mutex::new(0);
        let barrier = Barrier::new(THREADS + 1);
        let mut taken = Vec::new();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    loop {
                        // As exchanges of a connection: one after the other, each on some thread.
                        let mut number = turn.lock().unwrap();
                        if *number == RECORDS {
                            return;
                        }
                        *number += 1;
                        let mut record =
                            Record::new(&TCP_CONNECTION_CLOSED, Capture::NONE, Arc::from("ac_1"));
                        record.complete(Timestamp::from_unix_nanos(*number));
                        offers.offer(record);
                    }
                });
            }
            barrier.wait();
            while taken.len() < RECORDS.unsigned_abs() as usize {
                offers.take(&mut taken);
            }
        });
        let numbers: Vec<i64> = taken
            .iter()
            .map(|record| record.at().unix_nanos())
            .collect();
        assert_eq!(numbers, (1..=RECORDS).collect::<Vec<_>>());
    }
}
