//! How leases end, and the limits of dead letters.

use std::sync::atomic::Ordering;
use std::time::Duration;

use culvert_base::Timestamp;

use super::append::put;
use super::{QueueLog, QueueOutcome, Settlement};
use crate::commit::writer::Outcome;
use crate::database::dialect::{Arg, Connection, Row};
use crate::database::statements::events;
use crate::queue::batch::{
    DEAD_LETTERS_FOR, NewBatch, WHY_BYTES_MAX, checksum, counted, cut, read_class,
};

impl Settlement {
    /// False if the lease has ended.
    pub(super) async fn apply(
        &self,
        log: &QueueLog,
        connection: &mut Connection,
        held: [Arg<'_>; 2],
    ) -> Result<bool, sqlx::Error> {
        let [batch, fence] = held;
        match self {
            Self::Ack => Ok(connection.run(events::ACK, &held).await? > 0),
            Self::Retry { at, why } => {
                let arguments = [batch, fence, Arg::Int(at.unix_nanos()), Arg::Text(why)];
                Ok(connection.run(events::RETRY, &arguments).await? > 0)
            }
            Self::Replace { pieces, at } => replace(connection, held, pieces, *at).await,
            Self::DeadLetter { why, at } => {
                let arguments = [
                    batch,
                    fence,
                    Arg::Int(at.unix_nanos()),
                    Arg::Text(&why.class),
                    Arg::Text(&why.code),
                    Arg::Text(cut(&why.text, WHY_BYTES_MAX)),
                    Arg::Blob(&[]),
                ];
                let Some(row) = connection
                    .row(events::INSERT_DEAD_LETTER, &arguments)
                    .await?
                else {
                    return Ok(false);
                };
                connection.run(events::ACK, &held).await?;
                let destination: String = row.get(1)?;
                let keys = (&*destination, row.get(2)?);
                log.make_room(connection, keys, row.get(3)?).await?;
                Ok(true)
            }
        }
    }
}

/// Maximum number of dead letters that one displaces. After a large one among many small ones, the limit is exceeded for
/// a moment.
const FORGOTTEN_AT_ONCE: usize = 64;

impl QueueLog {
    /// Counts a dead letter of this size, and removes the oldest of the same destination and class beyond the limits.
    pub(super) async fn make_room(
        &self,
        connection: &mut Connection,
        (destination, class): (&str, i64),
        bytes: i64,
    ) -> Result<(), sqlx::Error> {
        let grown = [Arg::Text(destination), Arg::Int(class), Arg::Int(bytes)];
        let row = connection.row(events::DEAD_LINE_GROWS, &grown).await?;
        let row = row.ok_or(sqlx::Error::RowNotFound)?;
        let size = (row.get(0)?, row.get(1)?, row.get(2)?);
        self.forget_oldest(connection, (destination, class), size, FORGOTTEN_AT_ONCE)
            .await
    }

    /// Removes the oldest dead letters of a class until it is within its limits, and adds their events to those removed
    /// before.
    async fn forget_oldest(
        &self,
        connection: &mut Connection,
        (destination, class): (&str, i64),
        (mut letters, mut bytes, forgotten): (i64, i64, i64),
        at_most: usize,
    ) -> Result<(), sqlx::Error> {
        let keys = [Arg::Text(destination), Arg::Int(class)];
        let mut n_events = 0i64;
        for _ in 0..at_most {
            // The last one stays, whatever its size.
            let is_within =
                letters <= self.dead_letters.letters && bytes <= self.dead_letters.bytes;
            if is_within || letters <= 1 {
                break;
            }
            let Some(oldest) = connection.row(events::OLDEST_DEAD, &keys).await? else {
                break;
            };
            let (id, size, events): (i64, i64, i64) =
                (oldest.get(0)?, oldest.get(1)?, oldest.get(2)?);
            if let Some(row) = connection.row(events::UNBURY, &[Arg::Int(id)]).await? {
                shrink(connection, &row, events).await?;
            }
            (letters, bytes) = (letters - 1, bytes - size);
            n_events += events;
        }
        if n_events > 0 {
            let counter = usize::try_from(class)
                .ok()
                .and_then(|class| self.forgotten.get(class));
            if let Some(counter) = counter {
                counter.fetch_add(n_events.unsigned_abs(), Ordering::Relaxed);
            }
        }
        // Once for each class, not for each dead letter.
        if n_events > 0 && forgotten == 0 {
            tracing::warn!(
                destination.id = destination,
                class = read_class(class)?.name(),
                "destination {destination} reached the dead letter limit; new dead letters \
                 replace the oldest"
            );
        }
        Ok(())
    }

    pub(super) async fn prune(
        &self,
        connection: &mut Connection,
        now: Timestamp,
    ) -> Result<Outcome<Self>, sqlx::Error> {
        let too_old = [Arg::Int(now.minus(DEAD_LETTERS_FOR).unix_nanos())];
        let n = connection.run(events::PRUNE_OLD, &too_old).await?;
        // Nodes of an older version do not count their dead letters.
        connection.run(events::RECOUNT_DEAD, &[]).await?;
        connection.run(events::DROP_EMPTY_DEAD_LINES, &[]).await?;
        let mut n_forgotten = 0;
        for row in connection.rows(events::DEAD_LINES, &[]).await? {
            let (destination, class): (String, i64) = (row.get(0)?, row.get(1)?);
            let (letters, bytes): (i64, i64) = (row.get(2)?, row.get(3)?);
            if letters > self.dead_letters.letters || bytes > self.dead_letters.bytes {
                n_forgotten += 1;
                let size = (letters, bytes, row.get(4)?);
                self.forget_oldest(connection, (&destination, class), size, PRUNED_AT_ONCE)
                    .await?;
            }
        }
        let quiet_since = [Arg::Int(now.minus(HEALTH_FOR).unix_nanos())];
        connection.run(events::PRUNE_HEALTHS, &quiet_since).await?;
        let closed = [Arg::Int(now.unix_nanos())];
        connection.run(events::PRUNE_TAILS, &closed).await?;
        connection.run(events::PRUNE_TAIL_LINES, &[]).await?;
        Ok(Outcome::Written(QueueOutcome::Rows(n + n_forgotten)))
    }
}

/// A node's view of a destination expires after this; running nodes store it again.
const HEALTH_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// Dead letters of each class that one pruning removes beyond those that are too old.
const PRUNED_AT_ONCE: usize = 1_000;

/// Counts a removed dead letter with its events.
pub(super) async fn shrink(
    connection: &mut Connection,
    removed: &Row,
    forgotten: i64,
) -> Result<(), sqlx::Error> {
    let destination: String = removed.get(0)?;
    let arguments = [
        Arg::Text(&destination),
        Arg::Int(removed.get(1)?),
        Arg::Int(removed.get(2)?),
        Arg::Int(forgotten),
    ];
    connection
        .run(events::DEAD_LINE_SHRINKS, &arguments)
        .await
        .map(drop)
}

async fn replace(
    connection: &mut Connection,
    held: [Arg<'_>; 2],
    pieces: &[NewBatch],
    at: Timestamp,
) -> Result<bool, sqlx::Error> {
    let Some(row) = connection.row(events::TAKE, &held).await? else {
        return Ok(false);
    };
    let destination: String = row.get(0)?;
    let (class, place, part): (i64, i64, i64) = (row.get(1)?, row.get(2)?, row.get(3)?);
    let (attempt, first_at): (i64, i64) = (row.get(4)?, row.get(5)?);
    let why: Option<String> = row.get(6)?;
    let keys = [Arg::Text(&destination), Arg::Int(class), Arg::Int(place)];
    let [destination, class, place] = keys;
    let n_pieces = i64::try_from(pieces.len()).unwrap_or(i64::MAX);
    if n_pieces > 1 {
        let room = [
            destination,
            class,
            place,
            Arg::Int(part),
            Arg::Int(n_pieces - 1),
        ];
        connection.run(events::MAKE_ROOM, &room).await?;
    }
    for (part, piece) in (part..).zip(pieces) {
        let arguments = [
            destination,
            class,
            place,
            Arg::Int(part),
            Arg::Int(i64::from(piece.count)),
            Arg::Int(counted(&piece.body)),
            Arg::Int(checksum(&piece.body.stored)),
            Arg::Int(attempt),
            Arg::Int(first_at),
            Arg::Int(at.unix_nanos()),
            Arg::MaybeText(why.as_deref()),
        ];
        put(connection, events::PUT_PIECE, &arguments, &piece.body).await?;
    }
    Ok(true)
}
