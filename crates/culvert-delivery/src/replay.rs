//! Replays: ranges of the audit log on their way to a destination once more.
//!
//! A replay copies events from the log to the queue as the dispatcher does, with a cursor of its own
//! that moves in the transaction that appends the copies: a crash, or a second node, makes no second
//! copy. It fills the destination's line only so far, so that a long range needs little room and new
//! events are not held up for long. Whether a replay is done is told by its cursor alone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use culvert_base::{Fault, Ksuid, Timestamp};
use culvert_store::{AuditRow, CursorMove, Range};

use crate::Plane;
use crate::dispatcher::{Copies, Copy};

/// A range of the audit log to be sent to a destination again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// `replay_…`.
    pub id: String,
    /// `ed_…`.
    pub destination: String,
    /// Only events of this account are sent.
    pub account: String,
    /// Where in the log.
    pub range: Range,
    /// Only events of these kinds are sent.
    pub kinds: Vec<String>,
    /// Subscription ids that events are sent for if they were for none of the destination's when they
    /// happened, with the kinds they want. An event that nobody wants is sent for the replay itself.
    pub subscriptions: Vec<(String, Vec<String>)>,
}

/// The names of replays' cursors begin with it.
const CURSORS: &str = "replay:";
/// Rows copied at once; each at most 256 KiB.
const ROWS: u32 = 128;
/// While this many events wait for the destination, a replay waits too.
const WAITING_MAX: u64 = 1_000;
/// How soon a replay that waits for room looks again.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often cursors of replays that are gone are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// A replay younger than this may be missing in this node's table only because it is new.
const SWEEP_AFTER: Duration = Duration::from_secs(3600);
const AFTER_FAULT: Duration = Duration::from_secs(1);

impl Replay {
    pub(crate) fn cursor(id: &str) -> String {
        format!("{CURSORS}{id}")
    }

    /// Where a cursor stands that reads `value`; 0 before its first move.
    pub(crate) fn position(range: &Range, value: i64) -> i64 {
        value.max(range.first.saturating_sub(1))
    }

    fn wants(&self, row: &AuditRow) -> bool {
        row.account == self.account
            && self.kinds.contains(&row.kind)
            && self
                .range
                .holds(Timestamp::from_unix_nanos(row.happened_at))
    }

    /// The subscriptions a row is sent for: those it was for when it happened, so that a receiver
    /// that knows the delivery knows it again.
    fn readers(&self, row: &AuditRow) -> Result<Vec<String>, Fault> {
        let audience: Vec<(String, String)> = serde_json::from_str(&row.audience)
            .map_err(|error| Fault::new(format!("reading who event {} was for", row.seq), error))?;
        let of_destination = |(subscription, destination): (String, String)| {
            (destination == self.destination).then_some(subscription)
        };
        let then: Vec<String> = audience.into_iter().filter_map(of_destination).collect();
        if !then.is_empty() {
            return Ok(then);
        }
        let wanting = self.subscriptions.iter();
        let now: Vec<String> = wanting
            .filter(|(_, kinds)| kinds.contains(&row.kind))
            .map(|(subscription, _)| subscription.clone())
            .collect();
        Ok(if now.is_empty() {
            vec![self.id.clone()]
        } else {
            now
        })
    }
}

/// What one look at a replay did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It went on and may go on further.
    Moved,
    /// Its destination has enough to do.
    Waits,
    /// All of it is in line.
    Done,
}

pub(crate) struct Replayer {
    plane: Arc<Plane>,
    /// Replays that need not be looked at again.
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
            // Of the first table nothing is known, so it is not taken for one without replays.
            let n_tables = *tables.borrow_and_update();
            let pause = match n_tables {
                0 => SWEEP_EVERY,
                _ => self.pass().await.unwrap_or_else(|fault| {
                    tracing::error!(cause = %fault.chain(), "a replay cannot go on");
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

    /// Looks at every replay once. When to look again.
    pub(crate) async fn pass(&mut self) -> Result<Duration, Fault> {
        let table = self.plane.table.load_full();
        let mut pause = SWEEP_EVERY;
        for replay in &table.replays {
            if self.done.contains(&replay.id) {
                continue;
            }
            pause = pause.min(match self.step(replay).await? {
                Step::Moved => Duration::ZERO,
                Step::Waits => LOOK_EVERY,
                Step::Done => {
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

    async fn step(&self, replay: &Replay) -> Result<Step, Fault> {
        let plane = &self.plane;
        let name = Replay::cursor(&replay.id);
        let from = plane.queue.cursor(&name).await?;
        let position = Replay::position(&replay.range, from);
        if position >= replay.range.last {
            return Ok(Step::Done);
        }
        let ledger = plane.ledgers.of(&replay.destination);
        let n_waiting = ledger
            .queued_events
            .load(std::sync::atomic::Ordering::Relaxed);
        if n_waiting >= WAITING_MAX {
            return Ok(Step::Waits);
        }
        let log = plane.store.audit_log();
        let rows = log.rows(position, replay.range.last, ROWS).await?;
        let mut wanted = Vec::new();
        for row in rows.iter().filter(|row| replay.wants(row)) {
            wanted.push((row, replay.readers(row)?));
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
        let is_moved = Copies::lay_out(plane, copies).append(plane, cursor).await?;
        if is_moved {
            let n_wanted = u64::try_from(wanted.len()).unwrap_or(0);
            plane.meters.replayed.add(n_wanted);
        }
        Ok(Step::Moved)
    }
}

/// The first position that some replay still has to read.
pub(crate) async fn needed_from(plane: &Plane) -> Result<Option<i64>, Fault> {
    let table = plane.table.load_full();
    let mut needed: Option<i64> = None;
    for replay in &table.replays {
        let value = plane.queue.cursor(&Replay::cursor(&replay.id)).await?;
        let position = Replay::position(&replay.range, value);
        if position < replay.range.last {
            let next = position.saturating_add(1);
            needed = Some(needed.map_or(next, |needed| needed.min(next)));
        }
    }
    Ok(needed)
}

/// Forgets the cursors of replays that are not there any more.
async fn sweep(plane: &Plane, is_known: impl Fn(&str) -> bool) -> Result<(), Fault> {
    let young = plane.clock.now().minus(SWEEP_AFTER);
    for name in plane.queue.cursors(CURSORS).await? {
        let Some(id) = name.strip_prefix(CURSORS) else {
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
