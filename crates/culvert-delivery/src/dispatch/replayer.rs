//! Copies the events of replays to the queue.
//!
//! A replay copies events from a log in the same way as the dispatcher, with its own cursor that moves in the
//! transaction that appends the copies. So neither a crash nor a second node copies an event twice. It limits how many
//! events wait in the destination's queue, so a long range needs little space and hardly delays new events. The cursor
//! alone shows whether a replay is complete.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use culvert_base::{Fault, Ksuid};
use culvert_events::{Record, encode};
use culvert_store::{BatchClass, CursorMove};

use crate::dispatch::copies::{Copies, Copy};
use crate::dispatch::replay::{CURSORS, EventBound, Replay, TRAFFIC_CURSORS, TrafficRange};
use crate::plane::Plane;
use crate::retained_events::retained;
use crate::retained_events::stored_piece::StoredEvent;
use crate::subscription::Compiled;

/// Rows copied together; each has at most 256 KiB.
const ROWS: u32 = 128;
/// Pieces of the traffic log copied together; each has about 512 KiB.
const PIECES: u32 = 2;
/// A replay waits while this many events wait for the destination.
const WAITING_MAX: u64 = 1_000;
/// Pause of a replay that waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Interval of removing cursors of deleted replays.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// A replay younger than this may be missing from this node's table because it is new.
const SWEEP_AFTER: Duration = Duration::from_secs(3600);
const AFTER_FAULT: Duration = Duration::from_secs(1);

/// Result of one step of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayStep {
    /// Events were copied, and there may be more.
    Moved,
    /// The queue of its destination has enough events.
    Waits,
    /// All events are queued.
    Done,
}

pub(crate) struct Replayer {
    plane: Arc<Plane>,
    /// Completed replays.
    done: HashSet<String>,
    swept_at: Option<tokio::time::Instant>,
}

impl Replayer {
    pub(crate) fn new(plane: Arc<Plane>) -> Self {
        Self {
            plane,
            done: HashSet::new(),
            swept_at: None,
        }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let mut tables = self.plane.tables.subscribe();
        while !cancel.is_cancelled() {
            // Before the first table is published, replays are unknown; an empty table would mean that there are none.
            let n_tables = *tables.borrow_and_update();
            let pause = match n_tables {
                0 => SWEEP_EVERY,
                _ => self.pass().await.unwrap_or_else(|fault| {
                    tracing::error!(cause = %fault.chain(), "replay failed");
                    AFTER_FAULT
                }),
            };
            tokio::select! {
                alive = tables.changed() => if alive.is_err() { return },
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
        }
    }

    /// Steps every replay once. Returns the pause before the next pass.
    pub(crate) async fn pass(&mut self) -> Result<Duration, Fault> {
        let table = self.plane.table.load_full();
        let mut pause = SWEEP_EVERY;
        for replay in &*table.replays {
            if self.done.contains(&replay.id) {
                continue;
            }
            pause = pause.min(match self.step(replay).await? {
                ReplayStep::Moved => Duration::ZERO,
                ReplayStep::Waits => LOOK_EVERY,
                ReplayStep::Done => {
                    self.done.insert(replay.id.clone());
                    SWEEP_EVERY
                }
            });
        }
        let is_known = |id: &str| table.replays.iter().any(|replay| replay.id == id);
        self.done.retain(|id| is_known(id));
        if self.swept_at.is_none_or(|at| at.elapsed() >= SWEEP_EVERY) {
            self.swept_at = Some(tokio::time::Instant::now());
            sweep(&self.plane, is_known).await?;
        }
        Ok(pause)
    }

    /// Copies audit events first, then traffic.
    async fn step(&self, replay: &Replay) -> Result<ReplayStep, Fault> {
        match (self.step_in_audit(replay).await?, &replay.traffic) {
            (ReplayStep::Done, Some(range)) => self.step_in_traffic(replay, range).await,
            (step, _) => Ok(step),
        }
    }

    /// Copies each event for those of the destination's subscriptions that select it now, with their fields. An event
    /// that no subscription selects is sent whole, for the replay itself.
    async fn step_in_traffic(
        &self,
        replay: &Replay,
        range: &TrafficRange,
    ) -> Result<ReplayStep, Fault> {
        let plane = &self.plane;
        let name = Replay::traffic_cursor(&replay.id);
        let from = plane.queue.cursor(&name).await?;
        let position = from.max(range.first.saturating_sub(1));
        if position >= range.last {
            return Ok(ReplayStep::Done);
        }
        if self.has_enough(replay, BatchClass::Traffic) {
            return Ok(ReplayStep::Waits);
        }
        let queue = &plane.queue;
        let pieces = queue.traffic_pieces(position, range.last, PIECES).await?;
        let to = pieces.last().map_or(range.last, |piece| piece.id);
        let table = plane.table.load_full();
        let (mut copies, mut n_events) = (Vec::new(), 0u64);
        for (piece, stored) in pieces.into_iter().filter_map(retained::read) {
            let (from, to) = (range.from_event.as_ref(), range.to_event.as_ref());
            // For events with the time of a bound: whether they come after the first event, and after the last one.
            let mut is_behind_first = from.is_none_or(|from| piece > from.piece);
            let mut is_behind_last = to.is_some_and(|to| piece > to.piece);
            for event in stored.events() {
                let is = |bound: &EventBound| piece == bound.piece && event.id() == bound.id;
                is_behind_first |= from.is_some_and(is);
                let mut parsed = None;
                if let Some(record) = event.record(&mut parsed)
                    && replay.wants_traffic(record, range)
                    && (is_behind_first || range.since != Some(record.at()))
                    && (!is_behind_last || range.until != Some(record.at()))
                {
                    let before = copies.len();
                    write(&table, replay, event, record, &mut copies);
                    n_events += u64::from(copies.len() > before);
                }
                is_behind_last |= to.is_some_and(is);
            }
        }
        let copies = copies.iter().filter_map(|(subscription, envelope)| {
            Some(Copy {
                subscription,
                destination: &replay.destination,
                envelope: std::str::from_utf8(envelope).ok()?,
            })
        });
        let cursor = CursorMove { name, from, to };
        let copies = Copies::lay_out(plane, BatchClass::Traffic, copies);
        if copies.append(plane, cursor).await? {
            plane.meters.replayed.add(n_events);
        }
        Ok(ReplayStep::Moved)
    }

    /// Whether enough events of that class wait for the destination.
    fn has_enough(&self, replay: &Replay, class: BatchClass) -> bool {
        let counters = self.plane.all_counters.of(&replay.destination);
        counters.queued_events(class) >= WAITING_MAX
    }

    async fn step_in_audit(&self, replay: &Replay) -> Result<ReplayStep, Fault> {
        let plane = &self.plane;
        let name = Replay::cursor(&replay.id);
        let from = plane.queue.cursor(&name).await?;
        let position = Replay::position(&replay.range, from);
        if position >= replay.range.last {
            return Ok(ReplayStep::Done);
        }
        if self.has_enough(replay, BatchClass::Audit) {
            return Ok(ReplayStep::Waits);
        }
        let log = plane.store.audit_log();
        let rows = log.rows(position, replay.range.last, ROWS).await?;
        let table = plane.table.load_full();
        let mut wanted = Vec::new();
        for row in rows.iter().filter(|row| replay.wants(row)) {
            let is_withheld = |reader: &str| {
                table.is_withheld(reader, &replay.destination, &row.kind, row.body.as_bytes())
            };
            wanted.push((row, replay.readers(row, is_withheld)?));
        }
        let copies = wanted.iter().flat_map(|(row, readers)| {
            readers.iter().map(|subscription| Copy {
                subscription,
                destination: &replay.destination,
                envelope: &row.body,
            })
        });
        let cursor = CursorMove {
            name,
            from,
            to: rows.last().map_or(replay.range.last, |row| row.seq),
        };
        let copies = Copies::lay_out(plane, BatchClass::Audit, copies);
        let is_moved = copies.append(plane, cursor).await?;
        if is_moved {
            let n_wanted = u64::try_from(wanted.len()).unwrap_or(0);
            plane.meters.replayed.add(n_wanted);
        }
        Ok(ReplayStep::Moved)
    }
}

/// Encodes a retained event for each subscription it is replayed for.
fn write(
    table: &Compiled,
    replay: &Replay,
    event: StoredEvent<'_>,
    record: &Record,
    copies: &mut Vec<(Arc<str>, Vec<u8>)>,
) {
    let mut is_subscribed = false;
    for group in table.groups(record.kind(), record.account()) {
        for reader in &*group.readers {
            let mut destinations = reader.destinations.iter();
            if !destinations.any(|destination| *destination.id == *replay.destination) {
                continue;
            }
            is_subscribed = true;
            let filter = reader.filter.as_ref();
            if filter.is_none_or(|filter| filter.matches(record) == Ok(true)) {
                let mut written = Vec::new();
                // Truncation was counted when the event was retained.
                let selection = &group.selection;
                encode::event(record, selection, event.id(), &mut written)
                    .reasons()
                    .for_each(drop);
                copies.push((reader.subscription.clone(), written));
            }
        }
    }
    if !is_subscribed && let Some(whole) = event.envelope() {
        copies.push((Arc::from(&*replay.id), whole.into_owned().into_bytes()));
    }
}

/// The first position that a replay still has to read.
pub(crate) async fn needed_from(plane: &Plane) -> Result<Option<i64>, Fault> {
    let table = plane.table.load_full();
    let mut needed: Option<i64> = None;
    for replay in &*table.replays {
        let value = plane.queue.cursor(&Replay::cursor(&replay.id)).await?;
        let position = Replay::position(&replay.range, value);
        if position < replay.range.last {
            let next = position.saturating_add(1);
            needed = Some(needed.map_or(next, |needed| needed.min(next)));
        }
    }
    Ok(needed)
}

/// Removes the cursors of deleted replays.
async fn sweep(plane: &Plane, is_known: impl Fn(&str) -> bool) -> Result<(), Fault> {
    // By a clock that was just set forward, a new replay would seem old, and would begin again without its cursor.
    let young = plane.cutoff(SWEEP_AFTER);
    let mut names = plane.queue.cursors(CURSORS).await?;
    names.extend(plane.queue.cursors(TRAFFIC_CURSORS).await?);
    for name in names {
        let mut prefixes = [CURSORS, TRAFFIC_CURSORS].into_iter();
        let Some(id) = prefixes.find_map(|prefix| name.strip_prefix(prefix)) else {
            continue;
        };
        let made_at = culvert_base::id::split(id)
            .and_then(|(_, body)| body.parse::<Ksuid>().ok())
            .map(|ksuid| ksuid.at());
        if !is_known(id) && made_at.is_none_or(|at| at < young) {
            plane.queue.drop_cursor(&name).await?;
        }
    }
    Ok(())
}
