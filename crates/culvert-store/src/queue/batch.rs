//! The values of the queue: batches, leases, dead letters and their limits.

use std::time::Duration;

pub use culvert_base::batch::{BatchClass, Body, Gathering};
use culvert_base::{Fault, Timestamp};
use culvert_tlog::TreeHash;

use crate::database::dialect::Row;

/// A batch to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBatch {
    /// Id of the destination.
    pub destination: String,
    /// Queue of the destination that it joins.
    pub class: BatchClass,
    /// Events in it.
    pub count: u32,
    /// Its content.
    pub body: Body,
}

/// A move of a cursor together with an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorMove {
    /// Name of the cursor.
    pub name: String,
    /// The expected position; the append is lost if the cursor is elsewhere.
    pub from: i64,
    /// The new position.
    pub to: i64,
}

/// The right to send a batch for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Id of the batch.
    pub batch: i64,
    /// Id of the destination.
    pub destination: String,
    /// Queue of the destination that it belongs to.
    pub class: BatchClass,
    /// Number of its events.
    pub count: u32,
    /// Content; empty in the leases of a [`Run`].
    pub body: Vec<u8>,
    /// 1 for the first lease. An expired lease counts.
    pub attempt: u32,
    /// When the batch was appended; a replacement keeps the time.
    pub first_at: Timestamp,
    /// Grows with every lease of this batch.
    pub fence: i64,
    /// Why the previous attempt failed.
    pub why: Option<String>,
}

/// Batches from the head of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// In order, without bodies; [`super::Queue::body`] reads those. Empty if none are due.
    pub leases: Vec<Lease>,
    /// When to lease again; `None` if nothing waits.
    pub next_at: Option<Timestamp>,
}

/// A piece to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPiece {
    /// Time of its first event.
    pub first_at: Timestamp,
    /// Time of its last event.
    pub last_at: Timestamp,
    /// The endpoints of its events, without duplicates.
    pub endpoints: Vec<String>,
    /// Which values its events have, for searches. Opaque to the queue; empty for none.
    pub summary: Vec<u8>,
    /// Opaque to the queue.
    pub body: Vec<u8>,
}

/// The hash of a piece that was written without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingHash {
    pub(crate) piece: i64,
    /// Time of the last event, in nanoseconds since 1970.
    pub(crate) last_at: i64,
    pub(crate) hash: TreeHash,
}

/// Why a batch was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterReason {
    /// Outcome class, such as `permanent`.
    pub class: String,
    /// The destination's error code, if it returned one.
    pub code: String,
    /// Truncated to 500 bytes.
    pub text: String,
}

/// A batch that was given up outside of this queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadBatch {
    /// The batch.
    pub batch: NewBatch,
    /// Number of attempts that failed.
    pub attempts: u32,
    /// When the batch was created.
    pub first_at: Timestamp,
    /// Why the last attempt failed.
    pub why: DeadLetterReason,
}

/// A dead letter: a batch that was given up, retained for inspection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Id of the dead letter; ascending.
    pub id: i64,
    /// Id of the destination.
    pub destination: String,
    /// Queue that the batch was in.
    pub class: BatchClass,
    /// Number of its events.
    pub count: u32,
    /// Content.
    pub body: Vec<u8>,
    /// Number of attempts that failed.
    pub attempts: u32,
    /// When the batch was appended.
    pub first_at: Timestamp,
    /// When it was given up.
    pub buried_at: Timestamp,
    /// Why it was given up.
    pub why: DeadLetterReason,
}

/// The backlog of one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Id of the destination.
    pub destination: String,
    /// Number of batches that wait or are leased.
    pub batches: u64,
    /// Number of their events.
    pub events: u64,
    /// Total size of their bodies.
    pub bytes: u64,
    /// Events of the traffic part.
    pub traffic_events: u64,
    /// Bytes of the traffic part.
    pub traffic_bytes: u64,
    /// When the oldest was appended; `None` if there are only dead letters.
    pub oldest: Option<Timestamp>,
    /// Number of dead letters.
    pub dead_lettered: u64,
}

/// Why a queue operation had no effect.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The lease or the cursor has passed to another holder.
    #[error("the lease or cursor has passed to another holder")]
    Lost,
    /// An internal failure.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Maximum number of dead letters for each destination and class. A new one displaces the oldest.
pub const DEAD_LETTERS_MAX: i64 = 10_000;
/// Maximum bytes of dead letters for each destination and class.
pub const DEAD_LETTERS_BYTES_MAX: i64 = 64 << 20;
/// Time until a dead letter is removed.
pub const DEAD_LETTERS_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Maximum bytes of the reason of a retry or a dead letter.
pub const WHY_BYTES_MAX: usize = 500;

/// How many dead letters of a destination and class are kept, and how many bytes of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadLetterBounds {
    pub(crate) letters: i64,
    pub(crate) bytes: i64,
}

impl DeadLetterBounds {
    pub(crate) const DEFAULT: Self = Self {
        letters: DEAD_LETTERS_MAX,
        bytes: DEAD_LETTERS_BYTES_MAX,
    };
}

impl QueueError {
    pub(super) fn into_fault(self, doing: &str) -> Fault {
        match self {
            Self::Fault(fault) => fault,
            Self::Lost => Fault::new(doing, self),
        }
    }
}

/// The number of a class in the database.
pub(crate) fn class_number(class: BatchClass) -> i64 {
    match class {
        BatchClass::Audit => 0,
        BatchClass::Traffic => 1,
    }
}

pub(super) fn read_class(number: i64) -> Result<BatchClass, sqlx::Error> {
    match number {
        0 => Ok(BatchClass::Audit),
        1 => Ok(BatchClass::Traffic),
        _ => Err(sqlx::Error::Decode(
            format!("there is no batch class {number}").into(),
        )),
    }
}

impl Backlog {
    /// The backlog of a destination for which nothing waits.
    pub fn empty(destination: String) -> Self {
        Self {
            destination,
            batches: 0,
            events: 0,
            bytes: 0,
            traffic_events: 0,
            traffic_bytes: 0,
            oldest: None,
            dead_lettered: 0,
        }
    }
}

impl DeadLetter {
    pub(super) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            destination: row.get(1)?,
            class: read_class(row.get(2)?)?,
            count: small(row, 3)?,
            attempts: small(row, 4)?,
            first_at: Timestamp::from_unix_nanos(row.get(5)?),
            buried_at: Timestamp::from_unix_nanos(row.get(6)?),
            why: DeadLetterReason {
                class: row.get(7)?,
                code: row.get(8)?,
                text: row.get(9)?,
            },
            body: row.get(10)?,
        })
    }
}

pub(super) fn unsigned(row: &Row, index: usize) -> Result<u64, sqlx::Error> {
    let number: i64 = row.get(index)?;
    u64::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}

pub(super) fn small(row: &Row, index: usize) -> Result<u32, sqlx::Error> {
    let number: i64 = row.get(index)?;
    u32::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// The size of a body as a column has it.
pub(super) fn counted(body: &Body) -> i64 {
    i64::try_from(body.bytes).unwrap_or(i64::MAX)
}

pub(crate) fn checksum(body: &[u8]) -> i64 {
    i64::from(crc32fast::hash(body))
}

/// The leaf of a piece of the traffic log: its times in nanoseconds since 1970, 8 bytes each, big-endian, and its stored bytes.
pub(crate) fn leaf(first_at: i64, last_at: i64, body: &[u8]) -> TreeHash {
    let [first_at, last_at] = [first_at, last_at].map(i64::to_be_bytes);
    TreeHash::leaf(&[&first_at[..], &last_at[..], body].concat())
}

/// The longest prefix of `text` with at most `max` bytes that ends at a character boundary.
pub(super) fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
