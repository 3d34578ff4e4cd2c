//! The writes of the queue, each inside its savepoint.
//!
//! Every destination has a queue of audit batches and one of traffic batches. All writes keep their order: batches are
//! appended at the end, and pieces take the place of the batch that they replace.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use culvert_base::{BoxFuture, Timestamp};
use tokio::sync::watch;

use super::{
    BatchClass, Body, CursorMove, DEAD_LETTERS_FOR, DeadBatch, DeadLetterBounds, DeadLetterReason,
    Gathering, Lease, NewBatch, QueueError, Run, WHY_BYTES_MAX, checksum, cut, small,
};
use crate::dialect::{Arg, Connection, Row};
use crate::queue::traffic::NewPiece;
use crate::statements::{BEGIN_KEEPING, BODIES, INDEX_PIECE, LEASE_LISTED, events};
use crate::writer::{Outcome, WriteBackend};

/// The write backend of the queue.
#[derive(Debug)]
pub(crate) struct QueueLog {
    pub(crate) appended: watch::Sender<u64>,
    /// Limits for each destination and class.
    pub(crate) dead_letters: DeadLetterBounds,
    /// Events of dead letters that were displaced by newer ones, by class.
    pub(crate) forgotten: [AtomicU64; 2],
}

/// A write command.
#[derive(Debug)]
pub(crate) enum QueueCommand {
    Append {
        batches: Vec<NewBatch>,
        cursor: Option<CursorMove>,
        at: Timestamp,
    },
    AppendLeased {
        batch: NewBatch,
        owner: String,
        until: Timestamp,
        at: Timestamp,
    },
    Lease {
        destination: String,
        owner: String,
        until: Timestamp,
        now: Timestamp,
    },
    LeaseSeveral {
        destination: String,
        owner: String,
        until: Timestamp,
        now: Timestamp,
        bytes_max: u64,
    },
    LeaseRun {
        destination: String,
        owner: String,
        until: Timestamp,
        now: Timestamp,
        gathering: Gathering,
    },
    Settle {
        batch: i64,
        fence: i64,
        settlement: Settlement,
    },
    SettleRun {
        /// Ids and fences.
        held: Vec<(i64, i64)>,
        settlement: Settlement,
    },
    PutDead {
        dead: Box<DeadBatch>,
        at: Timestamp,
    },
    ReleaseOwner {
        owner: String,
    },
    Redrive {
        id: i64,
        at: Timestamp,
    },
    DropDestination {
        destination: String,
    },
    DropCursor {
        name: String,
    },
    Hasten {
        destination: String,
        now: Timestamp,
    },
    Prune {
        now: Timestamp,
    },
    NoteHealths {
        node: String,
        /// Destinations, and the stored views of their health.
        notes: Vec<(String, String)>,
        at: Timestamp,
    },
    OpenTail {
        id: String,
        node: String,
        spec: String,
        until: Timestamp,
    },
    CloseTail {
        id: String,
    },
    TellTail {
        id: String,
        body: String,
    },
    DropTailLines {
        id: String,
        up_to: i64,
    },
    KeepTraffic {
        pieces: Vec<NewPiece>,
    },
    PruneTraffic {
        up_to: i64,
    },
}

/// How a lease ends.
#[derive(Debug)]
pub(crate) enum Settlement {
    Ack,
    Retry {
        at: Timestamp,
        why: String,
    },
    Replace {
        pieces: Vec<NewBatch>,
        at: Timestamp,
    },
    DeadLetter {
        why: DeadLetterReason,
        at: Timestamp,
    },
}

#[derive(Debug)]
pub(crate) enum QueueOutcome {
    Lease(Option<Box<Lease>>),
    Leases(Vec<Lease>),
    Run(Run),
    Rows(u64),
}

/// Whether anything was appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueTransaction {
    has_appended: bool,
}

impl WriteBackend for QueueLog {
    type Command = QueueCommand;
    type Outcome = QueueOutcome;
    type Refused = QueueError;
    type Transaction = QueueTransaction;

    fn open<'a>(
        &'a self,
        _: &'a mut Connection,
    ) -> BoxFuture<'a, Result<QueueTransaction, sqlx::Error>> {
        Box::pin(std::future::ready(Ok(QueueTransaction {
            has_appended: false,
        })))
    }

    fn write<'a>(
        &'a self,
        connection: &'a mut Connection,
        transaction: &'a mut QueueTransaction,
        command: &'a QueueCommand,
    ) -> BoxFuture<'a, Result<Outcome<Self>, sqlx::Error>> {
        Box::pin(async move {
            transaction.has_appended |= matches!(
                command,
                QueueCommand::Append { .. } | QueueCommand::Redrive { .. }
            );
            match command {
                QueueCommand::Append {
                    batches,
                    cursor,
                    at,
                } => append(connection, batches, cursor.as_ref(), *at).await,
                QueueCommand::AppendLeased {
                    batch,
                    owner,
                    until,
                    at,
                } => append_leased(connection, batch, owner, *until, *at).await,
                QueueCommand::Lease {
                    destination,
                    owner,
                    until,
                    now,
                } => lease(self, connection, (destination, owner), *until, *now).await,
                QueueCommand::LeaseSeveral {
                    destination,
                    owner,
                    until,
                    now,
                    bytes_max,
                } => {
                    let keys = (&**destination, &**owner);
                    lease_several(self, connection, keys, *until, *now, *bytes_max).await
                }
                QueueCommand::LeaseRun {
                    destination,
                    owner,
                    until,
                    now,
                    gathering,
                } => lease_run(connection, destination, owner, *until, *now, *gathering).await,
                QueueCommand::SettleRun { held, settlement } => {
                    let mut n = 0;
                    for (batch, fence) in held {
                        let held = [Arg::Int(*batch), Arg::Int(*fence)];
                        n += u64::from(settlement.apply(self, connection, held).await?);
                    }
                    Ok(written(n))
                }
                QueueCommand::Settle {
                    batch,
                    fence,
                    settlement,
                } => {
                    let held = [Arg::Int(*batch), Arg::Int(*fence)];
                    Ok(match settlement.apply(self, connection, held).await? {
                        true => Outcome::Written(QueueOutcome::Rows(1)),
                        false => Outcome::Refused(QueueError::Lost),
                    })
                }
                QueueCommand::PutDead { dead, at } => {
                    let arguments = [
                        Arg::Text(&dead.batch.destination),
                        Arg::Int(dead.batch.class.number()),
                        Arg::Int(i64::from(dead.batch.count)),
                        Arg::Int(dead.batch.body.counted()),
                        Arg::Int(dead.batch.body.checksum()),
                        Arg::Int(i64::from(dead.attempts)),
                        Arg::Int(dead.first_at.unix_nanos()),
                        Arg::Int(at.unix_nanos()),
                        Arg::Text(&dead.why.class),
                        Arg::Text(&dead.why.code),
                        Arg::Text(cut(&dead.why.text, WHY_BYTES_MAX)),
                        Arg::Blob(&dead.batch.body.stored),
                    ];
                    let row = connection.row(events::PUT_DEAD, &arguments).await?;
                    row.ok_or(sqlx::Error::RowNotFound)?;
                    let bytes = dead.batch.body.counted();
                    let keys = (&*dead.batch.destination, dead.batch.class.number());
                    self.make_room(connection, keys, bytes).await?;
                    Ok(written(1))
                }
                QueueCommand::ReleaseOwner { owner } => {
                    rows(connection, &[(events::RELEASE_OWNER, &[Arg::Text(owner)])]).await
                }
                QueueCommand::Redrive { id, at } => {
                    let (id, at) = (Arg::Int(*id), Arg::Int(at.unix_nanos()));
                    let Some(row) = connection.row(events::REDRIVE, &[id, at]).await? else {
                        return Ok(written(0));
                    };
                    let batch = Arg::Int(row.get(0)?);
                    connection.run(events::REDRIVE_BODY, &[id, batch]).await?;
                    if let Some(row) = connection.row(events::UNBURY, &[id]).await? {
                        shrink(connection, &row, 0).await?;
                    }
                    Ok(written(1))
                }
                QueueCommand::DropDestination { destination } => {
                    let of = [Arg::Text(destination)];
                    connection.run(events::DROP_DEAD_LINES, &of).await?;
                    connection.run(events::DROP_HEALTHS, &of).await?;
                    let n_batches = connection.run(events::DROP_BATCHES, &of).await?;
                    let n_letters = connection.run(events::DROP_DEAD_LETTERS, &of).await?;
                    Ok(Outcome::Written(QueueOutcome::Rows(n_batches + n_letters)))
                }
                QueueCommand::DropCursor { name } => {
                    rows(connection, &[(events::DROP_CURSOR, &[Arg::Text(name)])]).await
                }
                QueueCommand::Hasten { destination, now } => {
                    let arguments = [Arg::Text(destination), Arg::Int(now.unix_nanos())];
                    rows(connection, &[(events::HASTEN, &arguments)]).await
                }
                QueueCommand::Prune { now } => self.prune(connection, *now).await,
                QueueCommand::NoteHealths { node, notes, at } => {
                    let (node, at) = (Arg::Text(node), Arg::Int(at.unix_nanos()));
                    for (destination, body) in notes {
                        let arguments = [Arg::Text(destination), node, at, Arg::Text(body)];
                        connection.run(events::NOTE_HEALTH, &arguments).await?;
                    }
                    Ok(written(notes.len() as u64))
                }
                QueueCommand::OpenTail {
                    id,
                    node,
                    spec,
                    until,
                } => {
                    let until = Arg::Int(until.unix_nanos());
                    let arguments = [Arg::Text(id), Arg::Text(node), Arg::Text(spec), until];
                    rows(connection, &[(events::OPEN_TAIL, &arguments)]).await
                }
                QueueCommand::CloseTail { id } => {
                    let of_tail = [Arg::Text(id), Arg::Int(i64::MAX)];
                    connection.run(events::CLOSE_TAIL, &of_tail[..1]).await?;
                    connection.run(events::DROP_TAIL_LINES, &of_tail).await?;
                    Ok(written(1))
                }
                QueueCommand::TellTail { id, body } => {
                    let arguments = [Arg::Text(id), Arg::Text(body), Arg::Int(TAIL_LINES_MAX)];
                    rows(connection, &[(events::TELL_TAIL, &arguments)]).await
                }
                QueueCommand::DropTailLines { id, up_to } => {
                    let arguments = [Arg::Text(id), Arg::Int(*up_to)];
                    rows(connection, &[(events::DROP_TAIL_LINES, &arguments)]).await
                }
                QueueCommand::KeepTraffic { pieces } => keep_traffic(connection, pieces).await,
                QueueCommand::PruneTraffic { up_to } => {
                    rows(connection, &[(events::PRUNE_TRAFFIC, &[Arg::Int(*up_to)])]).await
                }
            }
        })
    }

    fn is_one_statement(&self, command: &QueueCommand) -> bool {
        let settlement = match command {
            QueueCommand::Settle { settlement, .. } => settlement,
            QueueCommand::SettleRun { held, settlement } if held.len() == 1 => settlement,
            _ => return false,
        };
        matches!(settlement, Settlement::Ack | Settlement::Retry { .. })
    }

    fn close<'a>(
        &'a self,
        _: &'a mut Connection,
        _: &'a QueueTransaction,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn committed(&self, transaction: &QueueTransaction) {
        if transaction.has_appended {
            self.appended.send_modify(|n| *n = n.wrapping_add(1));
        }
    }
}

fn written(n: u64) -> Outcome<QueueLog> {
    if n == 0 {
        Outcome::Unchanged(QueueOutcome::Rows(0))
    } else {
        Outcome::Written(QueueOutcome::Rows(n))
    }
}

/// Runs statements and adds up the rows they touched.
async fn rows(
    connection: &mut Connection,
    statements: &[(&'static str, &[Arg<'_>])],
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let mut n = 0;
    for (sql, arguments) in statements {
        n += connection.run(sql, arguments).await?;
    }
    Ok(written(n))
}

async fn append(
    connection: &mut Connection,
    batches: &[NewBatch],
    cursor: Option<&CursorMove>,
    at: Timestamp,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    if let Some(CursorMove { name, from, to }) = cursor {
        let (name, from, to) = (Arg::Text(name), Arg::Int(*from), Arg::Int(*to));
        let mut n_moved = connection
            .run(events::MOVE_CURSOR, &[name, from, to])
            .await?;
        if n_moved == 0 && matches!(from, Arg::Int(0)) {
            n_moved = connection.run(events::START_CURSOR, &[name, to]).await?;
        }
        if n_moved == 0 {
            return Ok(Outcome::Refused(QueueError::Lost));
        }
    }
    for batch in batches {
        let arguments = [
            Arg::Text(&batch.destination),
            Arg::Int(batch.class.number()),
            Arg::Int(i64::from(batch.count)),
            Arg::Int(batch.body.counted()),
            Arg::Int(batch.body.checksum()),
            Arg::Int(at.unix_nanos()),
        ];
        put(connection, events::APPEND, &arguments, &batch.body).await?;
    }
    Ok(Outcome::Written(QueueOutcome::Rows(0)))
}

/// Inserts a batch and its body. Returns the batch's id, followed by the result of the first insert.
async fn put(
    connection: &mut Connection,
    sql: &'static str,
    arguments: &[Arg<'_>],
    body: &Body,
) -> Result<Row, sqlx::Error> {
    let row = connection.row(sql, arguments).await?;
    let row = row.ok_or(sqlx::Error::RowNotFound)?;
    let of_batch = [Arg::Int(row.get(0)?), Arg::Blob(&body.stored)];
    connection.run(events::PUT_BODY, &of_batch).await?;
    Ok(row)
}

async fn append_leased(
    connection: &mut Connection,
    batch: &NewBatch,
    owner: &str,
    until: Timestamp,
    at: Timestamp,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let arguments = [
        Arg::Text(&batch.destination),
        Arg::Int(batch.class.number()),
        Arg::Int(i64::from(batch.count)),
        Arg::Int(batch.body.counted()),
        Arg::Int(batch.body.checksum()),
        Arg::Int(at.unix_nanos()),
        Arg::Text(owner),
        Arg::Int(until.unix_nanos()),
    ];
    let row = put(connection, events::APPEND_LEASED, &arguments, &batch.body).await?;
    Ok(Outcome::Written(QueueOutcome::Lease(Some(Box::new(
        Lease {
            batch: row.get(0)?,
            destination: batch.destination.clone(),
            class: batch.class,
            count: batch.count,
            body: Vec::new(),
            attempt: 1,
            first_at: at,
            fence: row.get(1)?,
            why: None,
        },
    )))))
}

async fn lease(
    log: &QueueLog,
    connection: &mut Connection,
    (destination, owner): (&str, &str),
    until: Timestamp,
    now: Timestamp,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let mut has_dead_lettered = false;
    for class in [BatchClass::Audit, BatchClass::Traffic] {
        while let Some(row) = connection
            .row(
                events::LEASE,
                &[
                    Arg::Text(owner),
                    Arg::Int(until.unix_nanos()),
                    Arg::Text(destination),
                    Arg::Int(class.number()),
                    Arg::Int(now.unix_nanos()),
                ],
            )
            .await?
        {
            let body: Option<Vec<u8>> = row.get(7)?;
            let body = body.unwrap_or_default();
            if let Some(lease) =
                whole(log, connection, &row, body, (destination, class), now).await?
            {
                return Ok(Outcome::Written(QueueOutcome::Lease(Some(Box::new(lease)))));
            }
            has_dead_lettered = true;
        }
    }
    Ok(if has_dead_lettered {
        Outcome::Written(QueueOutcome::Lease(None))
    } else {
        Outcome::Unchanged(QueueOutcome::Lease(None))
    })
}

/// A batch that was just leased with its body; a damaged one is dead-lettered instead.
async fn whole(
    log: &QueueLog,
    connection: &mut Connection,
    row: &Row,
    body: Vec<u8>,
    (destination, class): (&str, BatchClass),
    now: Timestamp,
) -> Result<Option<Lease>, sqlx::Error> {
    let crc: i64 = row.get(2)?;
    let lease = lease_of(row, body, destination, class)?;
    if crc == checksum(&lease.body) {
        return Ok(Some(lease));
    }
    tracing::error!(
        batch.id = lease.batch,
        destination.id = destination,
        "batch {} for {destination} is damaged on disk and became a dead letter",
        lease.batch
    );
    let why = DeadLetterReason {
        class: "damaged".to_owned(),
        code: String::new(),
        text: "the stored batch does not match its checksum".to_owned(),
    };
    let held = [Arg::Int(lease.batch), Arg::Int(lease.fence)];
    Settlement::DeadLetter { why, at: now }
        .apply(log, connection, held)
        .await?;
    Ok(None)
}

fn lease_of(
    row: &Row,
    body: Vec<u8>,
    destination: &str,
    class: BatchClass,
) -> Result<Lease, sqlx::Error> {
    Ok(Lease {
        batch: row.get(0)?,
        destination: destination.to_owned(),
        class,
        count: small(row, 1)?,
        attempt: small(row, 3)?,
        first_at: Timestamp::from_unix_nanos(row.get(4)?),
        fence: row.get(5)?,
        why: row.get(6)?,
        body,
    })
}

/// Leases free batches from the head of their class. Returns their rows in that order; `None` if another node was faster,
/// which may hold the head of the rest.
async fn lease_listed(
    connection: &mut Connection,
    ids: &[i64],
    owner: &str,
    until: Timestamp,
    now: Timestamp,
) -> Result<Option<Vec<Row>>, sqlx::Error> {
    let listed = list(ids);
    let arguments = [
        Arg::Text(owner),
        Arg::Int(until.unix_nanos()),
        Arg::Text(&listed),
        Arg::Int(now.unix_nanos()),
    ];
    let sql = connection.spell(LEASE_LISTED);
    let mut by_id = by_id(connection.rows(sql, &arguments).await?)?;
    Ok(ids.iter().map(|id| by_id.remove(id)).collect())
}

fn by_id(rows: Vec<Row>) -> Result<HashMap<i64, Row>, sqlx::Error> {
    let pairs = rows.into_iter().map(|row| Ok((row.get(0)?, row)));
    pairs.collect()
}

/// Ids as JSON.
fn list(ids: &[i64]) -> String {
    let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
    format!("[{}]", ids.join(","))
}

/// Maximum number of batches leased together with their bodies.
const SEVERAL_MAX: i64 = 128;

async fn lease_several(
    log: &QueueLog,
    connection: &mut Connection,
    (destination, owner): (&str, &str),
    until: Timestamp,
    now: Timestamp,
    bytes_max: u64,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let now_at = now.unix_nanos();
    for class in [BatchClass::Audit, BatchClass::Traffic] {
        let keys = [
            Arg::Text(destination),
            Arg::Int(class.number()),
            Arg::Int(SEVERAL_MAX),
        ];
        let mut ids = Vec::new();
        let mut bytes = 0u64;
        for row in connection.rows(events::LINE, &keys).await? {
            let size = u64::try_from(row.get::<i64>(1)?).unwrap_or(0);
            bytes = bytes.saturating_add(size);
            // A batch that is leased or waits for its time delays those behind it.
            if free_at(&row)? > now_at || (!ids.is_empty() && bytes > bytes_max) {
                break;
            }
            ids.push(row.get(0)?);
        }
        if ids.is_empty() {
            continue;
        }
        let Some(rows) = lease_listed(connection, &ids, owner, until, now).await? else {
            return Ok(Outcome::Refused(QueueError::Lost));
        };
        let listed = list(&ids);
        let sql = connection.spell(BODIES);
        let bodies = connection.rows(sql, &[Arg::Text(&listed)]).await?;
        let bodies = by_id(bodies)?;
        let mut leases = Vec::with_capacity(rows.len());
        for (id, row) in ids.iter().zip(&rows) {
            let body = bodies.get(id).map_or(Ok(Vec::new()), |row| row.get(1))?;
            leases.extend(whole(log, connection, row, body, (destination, class), now).await?);
        }
        return Ok(Outcome::Written(QueueOutcome::Leases(leases)));
    }
    Ok(Outcome::Unchanged(QueueOutcome::Leases(Vec::new())))
}

/// Batches of a class that are read for a run.
const RUN_MAX: i64 = 8192;

async fn lease_run(
    connection: &mut Connection,
    destination: &str,
    owner: &str,
    until: Timestamp,
    now: Timestamp,
    gathering: Gathering,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let now_at = now.unix_nanos();
    let mut next_at = None;
    for class in [BatchClass::Audit, BatchClass::Traffic] {
        let keys = [
            Arg::Text(destination),
            Arg::Int(class.number()),
            Arg::Int(RUN_MAX),
        ];
        let rows = connection.rows(events::LINE, &keys).await?;
        let mut ids = Vec::new();
        let mut bytes = 0;
        // The head may go when it is free, due, and was tried before or is old enough.
        let mut ripe_at = None;
        let mut is_full = i64::try_from(rows.len()).unwrap_or(i64::MAX) >= RUN_MAX;
        for row in &rows {
            let (attempt, first_at): (i64, i64) = (row.get(2)?, row.get(3)?);
            let free_at = free_at(row)?;
            if ids.is_empty() {
                let first_at = Timestamp::from_unix_nanos(first_at);
                let old_at = first_at.plus(gathering.age_max).unix_nanos();
                ripe_at = Some((free_at, if attempt > 0 { free_at } else { old_at }));
            }
            if free_at > now_at {
                break;
            }
            let size = u64::try_from(row.get::<i64>(1)?).unwrap_or(0);
            if !ids.is_empty() && size.saturating_add(bytes) > gathering.bytes_max {
                is_full = true;
                break;
            }
            bytes += size;
            is_full |= bytes >= gathering.bytes_max;
            ids.push(row.get::<i64>(0)?);
        }
        let Some((free_at, old_at)) = ripe_at else {
            continue;
        };
        if ids.is_empty() || !(is_full || old_at <= now_at) {
            let at = free_at.max(old_at);
            next_at = Some(next_at.map_or(at, |next: i64| next.min(at)));
            continue;
        }
        let Some(rows) = lease_listed(connection, &ids, owner, until, now).await? else {
            return Ok(Outcome::Refused(QueueError::Lost));
        };
        let leases = rows
            .iter()
            .map(|row| lease_of(row, Vec::new(), destination, class));
        let leases = leases.collect::<Result<_, _>>()?;
        let next_at = None;
        return Ok(Outcome::Written(QueueOutcome::Run(Run { leases, next_at })));
    }
    let next_at = next_at.map(Timestamp::from_unix_nanos);
    let leases = Vec::new();
    Ok(Outcome::Unchanged(QueueOutcome::Run(Run {
        leases,
        next_at,
    })))
}

/// When a batch may be leased.
fn free_at(row: &Row) -> Result<i64, sqlx::Error> {
    let (due_at, lease_until): (i64, Option<i64>) = (row.get(4)?, row.get(5)?);
    Ok(due_at.max(lease_until.unwrap_or(i64::MIN)))
}

impl Settlement {
    /// False if the lease has ended.
    async fn apply(
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
    async fn make_room(
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
                class = BatchClass::of(class)?.name(),
                "destination {destination} reached the dead letter limit; new dead letters \
                 replace the oldest"
            );
        }
        Ok(())
    }

    async fn prune(
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
/// Maximum number of pieces that wait for the node of a tail.
const TAIL_LINES_MAX: i64 = 64;

/// Dead letters of each class that one pruning removes beyond those that are too old.
const PRUNED_AT_ONCE: usize = 1_000;

/// Counts a removed dead letter with its events.
async fn shrink(
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
            Arg::Int(piece.body.counted()),
            Arg::Int(piece.body.checksum()),
            Arg::Int(attempt),
            Arg::Int(first_at),
            Arg::Int(at.unix_nanos()),
            Arg::MaybeText(why.as_deref()),
        ];
        put(connection, events::PUT_PIECE, &arguments, &piece.body).await?;
    }
    Ok(true)
}

async fn keep_traffic(
    connection: &mut Connection,
    pieces: &[NewPiece],
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let mut n = 0;
    let begin = connection.spell(BEGIN_KEEPING);
    connection.row(begin, &[]).await?;
    for piece in pieces {
        let arguments = [
            Arg::Int(piece.first_at.unix_nanos()),
            Arg::Int(piece.last_at.unix_nanos()),
            Arg::Int(length(&piece.body)),
            Arg::Int(checksum(&piece.body)),
            Arg::Blob(&piece.body),
        ];
        let row = connection.row(events::KEEP_TRAFFIC, &arguments).await?;
        let id: i64 = row.ok_or(sqlx::Error::RowNotFound)?.get(0)?;
        index_piece(connection, id, &piece.endpoints).await?;
        n += 1;
    }
    Ok(written(n))
}

/// Notes which endpoints the events of a piece are of.
async fn index_piece(
    connection: &mut Connection,
    piece: i64,
    endpoints: &[String],
) -> Result<(), sqlx::Error> {
    if endpoints.is_empty() {
        return Ok(());
    }
    let endpoints =
        serde_json::to_string(endpoints).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let arguments = [Arg::Int(piece), Arg::Text(&endpoints)];
    let sql = connection.spell(INDEX_PIECE);
    connection.run(sql, &arguments).await.map(drop)
}

fn length(body: &[u8]) -> i64 {
    i64::try_from(body.len()).unwrap_or(i64::MAX)
}

impl Body {
    fn counted(&self) -> i64 {
        i64::try_from(self.bytes).unwrap_or(i64::MAX)
    }

    fn checksum(&self) -> i64 {
        checksum(&self.stored)
    }
}
