//! Turns records into batches: offered by the planes, filtered, encoded, and put into the buffers of destinations.
//!
//! One flusher takes offered records (`record_shards`) in small groups, while they are still in the processor's
//! cache. It encodes an event once for each distinct selection. It hands a batch over when it is full, and all
//! batches after 500 events, 512 KiB or 200 ms, whichever comes first. It never waits for the disk or a destination.
//! A crash loses the records and batches in memory. Every 200 ms the flusher also closes the pieces of the traffic log that
//! the offering threads fill (`open_pieces`).
//!
//! Not here: which subscriptions want an event (`subscription`), delivery (`buffer`, `spill`), the format of batches
//! (`batch`).

pub(crate) mod losses;
pub(crate) mod record_shards;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use culvert_events::encode::{self, Truncated};
use culvert_events::{EventIds, Record};
use culvert_target::batch::OpenBatch;

use crate::plane::Plane;
use crate::plane::meters::{Dropped, Meters};
use crate::queue::buffer::Route;
use crate::recorder::losses::Note;
use crate::subscription::{Compiled, CompiledDestination, Reader};

/// Takes offered records and puts them into buffers.
pub(crate) struct Flusher {
    plane: Arc<Plane>,
    ids: EventIds,
    taken: Vec<Record>,
    scratch: Vec<u8>,
    /// Keyed by the address of the destination, which the value keeps alive.
    open: HashMap<usize, OpenDestination>,
    /// Events and bytes in `open`.
    held_events: usize,
    held_bytes: usize,
    /// Records taken since the start.
    n_taken: u64,
    note: Option<Note>,
    is_stopping: bool,
    /// Whether traffic events are retained.
    is_retaining: bool,
    pieces_closed_at: Instant,
}

struct OpenDestination {
    destination: Arc<CompiledDestination>,
    batch: OpenBatch,
}

/// Counts of one round, added to the meters at its end.
#[derive(Default)]
struct RoundCounts {
    offered: u64,
    filtered: u64,
    filter_errors: u64,
}

/// Records encoded before other tasks get their turn.
const CHUNK: usize = 256;
/// Interval of writing the number of waiting records to the file.
const NOTE_EVERY: Duration = Duration::from_millis(5);

impl Flusher {
    /// A flusher. With a `note`, it keeps the file from which the next run computes the records
    /// lost in a crash.
    pub(crate) fn new(plane: Arc<Plane>, note: Option<Note>) -> Self {
        Self {
            ids: EventIds::new(plane.entropy.clone()),
            is_retaining: plane.retains_traffic(),
            pieces_closed_at: Instant::now(),
            plane,
            taken: Vec::new(),
            scratch: Vec::with_capacity(4 << 10),
            open: HashMap::new(),
            held_events: 0,
            held_bytes: 0,
            n_taken: 0,
            note,
            is_stopping: false,
        }
    }

    /// Runs until cancelled, then flushes the records offered before.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let flush_after = self.plane.settings.flush_after;
        let plane = self.plane.clone();
        let offers = &plane.offers;
        // When the oldest held event must be handed over.
        let mut due: Option<Instant> = None;
        loop {
            self.is_stopping = cancel.is_cancelled();
            let is_due = self.is_stopping || due.is_some_and(|due| Instant::now() >= due);
            if is_due || offers.is_full_enough() {
                self.write_taken().await;
                if is_due || self.is_full_enough() || self.held_events == 0 {
                    self.flush();
                    due = None;
                    // Until then, some records were only in the flusher's memory.
                    plane.spill.taken(self.n_taken);
                }
                // Under load, batches are full before the timer, and reuse buffers. Otherwise no buffer is kept.
                if is_due {
                    plane.spare.clear();
                }
            }
            if is_due || self.pieces_closed_at.elapsed() >= flush_after {
                offers.close_pieces();
                self.pieces_closed_at = Instant::now();
            }
            if self.is_stopping && offers.is_empty() {
                plane.spill.finish();
                plane.pieces.finish();
                plane.bodies.finish();
                return;
            }
            // Takes what was offered meanwhile.
            if self.is_stopping {
                continue;
            }
            let waiting = !offers.is_empty() || self.held_events > 0;
            if due.is_none() && (waiting || !offers.arm_wake()) {
                due = Some(Instant::now() + flush_after);
            }
            if let Some(note) = &mut self.note {
                note.write(offers.accepted());
            }
            let note_at = self.note.as_ref().map(|_| Instant::now() + NOTE_EVERY);
            let timer = async {
                match due {
                    Some(due) => {
                        let soon = note_at.map_or(due, |note_at| due.min(note_at));
                        tokio::time::sleep_until(soon).await;
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

    fn is_full_enough(&self) -> bool {
        self.held_events >= self.plane.settings.flush_events
            || self.held_bytes >= self.plane.settings.flush_bytes
    }

    /// Takes offered records and encodes them into open batches.
    async fn write_taken(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        self.plane.offers.take(&mut taken);
        self.n_taken += u64::try_from(taken.len()).unwrap_or(0);
        let mut records = taken.drain(..);
        loop {
            let plane = self.plane.clone();
            // Loaded for each chunk, so that new subscriptions take effect soon under load too.
            let table = plane.table.load_full();
            let mut tally = RoundCounts::default();
            for record in records.by_ref().take(CHUNK) {
                self.write(&plane, &table, record, &mut tally);
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

    /// Encodes one record for all its subscriptions.
    fn write(
        &mut self,
        plane: &Plane,
        table: &Compiled,
        mut record: Record,
        tally: &mut RoundCounts,
    ) {
        let event = record.id().unwrap_or_else(|| self.ids.next(record.at()));
        if let Some(bodies) = record.take_bodies()
            && self.is_retaining
        {
            plane.bodies.put(event, record.at(), bodies);
        }
        let id: &str = &event;
        plane.tails.record(&record, id, &plane.meters);
        self.write_for_subscriptions(plane, table, &record, id, tally);
    }

    fn write_for_subscriptions(
        &mut self,
        plane: &Plane,
        table: &Compiled,
        record: &Record,
        id: &str,
        tally: &mut RoundCounts,
    ) {
        for group in table.groups(record.kind(), record.account()) {
            let mut is_written = false;
            for reader in &*group.readers {
                let n = u64::try_from(reader.destinations.len()).unwrap_or(u64::MAX);
                tally.offered += n;
                match reader.filter.as_ref().map(|filter| filter.matches(record)) {
                    None | Some(Ok(true)) => {}
                    Some(Ok(false)) => {
                        tally.filtered += n;
                        continue;
                    }
                    // If the filter fails, the event is not delivered.
                    Some(Err(fault)) => {
                        tracing::debug!(subscription.id = %reader.subscription, %fault, "a filter failed");
                        tally.filtered += n;
                        tally.filter_errors += n;
                        continue;
                    }
                }
                if !is_written {
                    self.scratch.clear();
                    let truncated = encode::event(record, &group.selection, id, &mut self.scratch);
                    count_truncated(&plane.meters, truncated);
                    is_written = true;
                }
                for destination in &reader.destinations {
                    self.push(plane, table, reader, destination, record.is_refused());
                }
            }
        }
    }

    /// Adds the encoded event to a destination's open batch, if its limits allow. When memory is short, each
    /// destination gets its share. Refused traffic finds no place in the second half of what may wait.
    fn push(
        &mut self,
        plane: &Plane,
        table: &Compiled,
        reader: &Reader,
        destination: &Arc<CompiledDestination>,
        is_refused: bool,
    ) {
        let settings = &plane.settings;
        let length = self.scratch.len();
        let size = u64::try_from(length + 1).unwrap_or(u64::MAX);
        let (events, bytes) = destination.counters.waiting_traffic();
        let weight = if is_refused { 2 } else { 1 };
        if destination.is_full(
            settings,
            events.saturating_add(1).saturating_mul(weight),
            bytes.saturating_add(size).saturating_mul(weight),
        ) {
            drop_one(plane, destination, Dropped::QueueFull);
            return;
        }
        if plane.is_disk_full() {
            drop_one(plane, destination, Dropped::DiskFull);
            return;
        }
        let (held, held_of_all) = destination.counters.held_bytes();
        let share = settings.held_bytes_max / table.n_destinations().max(1);
        if held_of_all > settings.held_bytes_max && held > share {
            drop_one(plane, destination, Dropped::QueueFull);
            return;
        }
        destination.counters.held(1, size);
        let address = Arc::as_ptr(destination).addr();
        let empty = || OpenBatch::within(plane.spare.take());
        let open = self.open.entry(address).or_insert_with(|| OpenDestination {
            destination: destination.clone(),
            batch: empty(),
        });
        let (limits, subscription) = (open.destination.limits, &reader.subscription);
        if !open.batch.push_within(limits, subscription, &self.scratch) {
            let full = std::mem::replace(&mut open.batch, empty());
            open.batch.push(subscription, &self.scratch);
            self.held_events -= full.len() as usize;
            self.held_bytes -= full.bytes();
            hand_on(plane, &open.destination, full, self.is_stopping);
        }
        self.held_events += 1;
        self.held_bytes += length + 1;
    }

    /// Hands over all open batches.
    fn flush(&mut self) {
        for (_, OpenDestination { destination, batch }) in self.open.drain() {
            if !batch.is_empty() {
                hand_on(&self.plane, &destination, batch, self.is_stopping);
            }
        }
        self.held_events = 0;
        self.held_bytes = 0;
    }
}

/// Puts a batch into its destination's buffer, for the worker or for the queue.
fn hand_on(plane: &Plane, destination: &CompiledDestination, batch: OpenBatch, is_stopping: bool) {
    let (settings, counters) = (&plane.settings, &destination.counters);
    let events = u64::from(batch.len());
    plane.direct_events.fetch_add(events, Ordering::Relaxed);
    // Batches for a failing destination would only use memory. Those that become one object are gathered in the queue.
    let is_direct = settings.sends
        && !is_stopping
        && !settings.direct_for.is_zero()
        && !counters.is_failing()
        && destination.target.gathers().is_none();
    let route = match is_direct {
        true => Route::Worker,
        false => Route::Queue,
    };
    let until = Instant::now() + settings.direct_for;
    counters.buffer.put(batch, destination.limits, until, route);
    plane.spill.arm_timer(&destination.id, counters);
    if is_direct {
        plane.notifier.wake(&destination.id);
    }
}

fn drop_one(plane: &Plane, destination: &CompiledDestination, reason: Dropped) {
    destination.counters.dropped.add(reason, 1);
    plane.meters.dropped.add(reason, 1);
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
