//! The writes of the queue, each inside its savepoint.
//!
//! Every destination has a queue of audit batches and one of traffic batches. All writes keep their order: batches are
//! appended at the end, and pieces take the place of the batch that they replace.

mod append;
pub(super) mod bodies;
mod lease;
mod settle;
pub(super) mod statistics;

use std::sync::atomic::AtomicU64;

use culvert_base::{BoxFuture, Timestamp};
use tokio::sync::watch;

use super::batch::{
    CursorMove, DeadBatch, DeadLetterBounds, DeadLetterReason, Gathering, Lease, NewBatch,
    NewPiece, QueueError, Run, WHY_BYTES_MAX, cut,
};
use crate::dialect::{Arg, Connection};
use crate::statements::events;
use crate::writer::{Outcome, WriteBackend};

use append::{append, append_leased, keep_traffic};
use bodies::NewTrafficBody;
use lease::{lease, lease_run, lease_several};
use settle::shrink;
use statistics::{FrameRange, StatisticChunk, StatisticFrame};

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
    BoundLeases {
        latest: Timestamp,
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
    NoteNode {
        node: String,
        at: Timestamp,
        body: String,
    },
    /// Removes the note of a node, and all that are older.
    DropNodeNotes {
        node: String,
        before: Timestamp,
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
    KeepBodies {
        bodies: Vec<NewTrafficBody>,
    },
    PruneBodies {
        up_to: i64,
    },
    PutStatistics {
        frames: Vec<StatisticFrame>,
        chunks: Vec<StatisticChunk>,
        folded: Option<FrameRange>,
    },
    /// Deletes some of the frames and chunks of a step.
    PruneStatistics {
        step: i64,
        before: i64,
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
    /// Ids of the batches.
    Settled(Vec<i64>),
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
                    let mut settled = Vec::with_capacity(held.len());
                    for (batch, fence) in held {
                        let held = [Arg::Int(*batch), Arg::Int(*fence)];
                        if settlement.apply(self, connection, held).await? {
                            settled.push(*batch);
                        }
                    }
                    Ok(match settled.is_empty() {
                        true => Outcome::Unchanged(QueueOutcome::Settled(settled)),
                        false => Outcome::Written(QueueOutcome::Settled(settled)),
                    })
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
                QueueCommand::BoundLeases { latest } => {
                    let arguments = [Arg::Int(latest.unix_nanos())];
                    rows(connection, &[(events::BOUND_LEASES, &arguments)]).await
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
                QueueCommand::KeepBodies { bodies: new } => bodies::keep(connection, new).await,
                QueueCommand::PruneBodies { up_to } => {
                    let arguments = [Arg::Int(*up_to)];
                    rows(connection, &[(events::PRUNE_TRAFFIC_BODY, &arguments)]).await
                }
                QueueCommand::NoteNode { node, at, body } => {
                    let arguments = [Arg::Text(node), Arg::Int(at.unix_nanos()), Arg::Text(body)];
                    rows(connection, &[(events::NOTE_NODE, &arguments)]).await
                }
                QueueCommand::DropNodeNotes { node, before } => {
                    let arguments = [Arg::Text(node), Arg::Int(before.unix_nanos())];
                    rows(connection, &[(events::DROP_NODE_NOTES, &arguments)]).await
                }
                QueueCommand::PutStatistics {
                    frames,
                    chunks,
                    folded,
                } => {
                    let put = statistics::put(connection, frames, chunks, folded.as_ref());
                    Ok(written(put.await?))
                }
                QueueCommand::PruneStatistics { step, before } => Ok(written(
                    statistics::prune(connection, *step, *before).await?,
                )),
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

/// Maximum number of pieces that wait for the node of a tail.
const TAIL_LINES_MAX: i64 = 64;
