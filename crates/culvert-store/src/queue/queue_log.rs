//! The writes of the queue, each inside its savepoint.
//!
//! Every destination has a queue of audit batches and one of traffic batches. All writes keep their order: batches are
//! appended at the end, and pieces take the place of the batch that they replace.

mod append;
pub(super) mod bodies;
mod lease;
mod settle;
pub(super) mod statistics;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use culvert_base::{BoxFuture, Entropy, OsEntropy, Timestamp};
use tokio::sync::watch;

use super::batch::{
    CursorMove, DeadBatch, DeadLetterBounds, DeadLetterReason, Gathering, Lease, MissingHash,
    NewBatch, NewPiece, QueueError, Run, WHY_BYTES_MAX, checksum, class_number, counted, cut,
};
use super::record_limits::HASHES_KEPT;
use crate::commit::writer::{Outcome, WriteBackend};
use crate::database::dialect::{Arg, Connection};
use crate::database::statements::{LOCK_HELD, LOCK_WRITER, events, transaction};

use append::{append, append_leased, hash_traffic, keep_traffic};
use bodies::NewTrafficBody;
use lease::{lease, lease_run, lease_several};
use settle::shrink;
use statistics::{FrameRange, StatisticChunk, StatisticFrame};

/// The write backend of the queue.
#[derive(Debug)]
pub(crate) struct QueueLog {
    /// Identifies the transactions of this process.
    pub(crate) writer: QueueWriter,
    pub(crate) appended: watch::Sender<u64>,
    /// Limits for each destination and class.
    pub(crate) dead_letters: DeadLetterBounds,
    /// Events of dead letters that were displaced by newer ones, by class.
    pub(crate) forgotten: [AtomicU64; 2],
}

/// A process that writes to the queue. In PostgreSQL, its row has the number of its latest transaction, so it can ask
/// whether one was committed.
#[derive(Debug)]
pub(crate) struct QueueWriter {
    id: String,
    opened_at: Timestamp,
    numbers: AtomicI64,
}

impl QueueWriter {
    pub(crate) fn new(opened_at: Timestamp) -> Self {
        let entropy: &dyn Entropy = &OsEntropy;
        Self {
            id: entropy.text(b"abcdefghijklmnopqrstuvwxyz0123456789", 20),
            opened_at,
            numbers: AtomicI64::new(0),
        }
    }
}

/// How long the writer of something new waits for its outcome. It keeps it in memory until then.
const OUTCOME_WITHIN: Duration = Duration::from_secs(600);
/// How long the row of a process is kept. A longer-lived process writes it again.
const WRITERS_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A write command.
#[derive(Debug)]
pub(crate) enum QueueCommand {
    /// Removes the rows of processes that were opened long ago. Commits in any case.
    PruneWriters,
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
    /// Adds hashes to pieces that have none.
    HashTraffic {
        hashes: Vec<MissingHash>,
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
    /// Its number among those of this process.
    number: i64,
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
            number: self.writer.numbers.fetch_add(1, Ordering::Relaxed) + 1,
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
                QueueCommand::PruneWriters => {
                    let before = self.writer.opened_at.minus(WRITERS_FOR);
                    let arguments = [Arg::Int(before.unix_nanos())];
                    let n = connection.run(events::PRUNE_WRITERS, &arguments).await?;
                    Ok(Outcome::Written(QueueOutcome::Rows(n)))
                }
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
                        Arg::Int(class_number(dead.batch.class)),
                        Arg::Int(i64::from(dead.batch.count)),
                        Arg::Int(counted(&dead.batch.body)),
                        Arg::Int(checksum(&dead.batch.body.stored)),
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
                    let bytes = counted(&dead.batch.body);
                    let keys = (&*dead.batch.destination, class_number(dead.batch.class));
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
                QueueCommand::HashTraffic { hashes } => hash_traffic(connection, hashes).await,
                QueueCommand::PruneTraffic { up_to } => {
                    let arguments = [Arg::Int(*up_to)];
                    let pruned = rows(connection, &[(events::PRUNE_TRAFFIC, &arguments)]).await?;
                    let arguments = [Arg::Int(*up_to), Arg::Int(HASHES_KEPT)];
                    connection
                        .run(events::PRUNE_TRAFFIC_HASHES, &arguments)
                        .await?;
                    Ok(pruned)
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

    fn one_statement(&self, command: &QueueCommand) -> Option<QueueOutcome> {
        let (batch, _) = command.settles_one()?;
        Some(match command {
            QueueCommand::SettleRun { .. } => QueueOutcome::Settled(vec![batch]),
            _ => QueueOutcome::Rows(1),
        })
    }

    fn close<'a>(
        &'a self,
        _: &'a mut Connection,
        _: &'a QueueTransaction,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn commit<'a>(
        &'a self,
        connection: &'a mut Connection,
        transaction: &'a QueueTransaction,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            if let Connection::Sqlite(_) = connection {
                return connection.run(transaction::COMMIT, &[]).await.map(drop);
            }
            // One round trip; the values are our own.
            let QueueWriter { id, opened_at, .. } = &self.writer;
            let (number, at) = (transaction.number, opened_at.unix_nanos());
            let commit = format!(
                "INSERT INTO writer (id, number, opened_at) VALUES ('{id}', {number}, {at}) \
                 ON CONFLICT (id) DO UPDATE SET number = excluded.number; COMMIT"
            );
            connection.script(commit).await
        })
    }

    fn is_committed<'a>(
        &'a self,
        connection: &'a mut Connection,
        commands: &'a [QueueCommand],
        transaction: &'a QueueTransaction,
    ) -> BoxFuture<'a, Result<bool, sqlx::Error>> {
        Box::pin(async move {
            if let [command] = commands
                && let Some((batch, fence)) = command.settles_one()
            {
                let held = [Arg::Int(batch), Arg::Int(fence)];
                return Ok(connection.row(LOCK_HELD, &held).await?.is_none());
            }
            let writer = [Arg::Text(&self.writer.id)];
            let row = connection.row(LOCK_WRITER, &writer).await?;
            let number: i64 = row.map_or(Ok(0), |row| row.get(0))?;
            Ok(number == transaction.number)
        })
    }

    /// Appended rows must be there once. Their writers are background tasks.
    fn outcome_within(&self, command: &QueueCommand) -> Duration {
        match command {
            QueueCommand::Append { .. }
            | QueueCommand::KeepTraffic { .. }
            | QueueCommand::KeepBodies { .. }
            | QueueCommand::PutDead { .. }
            | QueueCommand::PutStatistics { .. } => OUTCOME_WITHIN,
            _ => Duration::ZERO,
        }
    }

    /// Otherwise a batch that was sent would stay leased.
    fn is_repeated_alone(&self, command: &QueueCommand) -> bool {
        matches!(
            command,
            QueueCommand::Settle { .. } | QueueCommand::SettleRun { .. }
        )
    }

    /// A lease that its node does not know of would delay all batches behind it. A batch that was appended with it is
    /// still in the memory of its sender.
    fn undo(&self, command: &QueueCommand, outcome: &QueueOutcome) -> Option<QueueCommand> {
        let leases = match outcome {
            QueueOutcome::Lease(lease) => lease.as_deref().map(std::slice::from_ref)?,
            QueueOutcome::Leases(leases) => leases,
            QueueOutcome::Run(run) => &run.leases,
            QueueOutcome::Rows(_) | QueueOutcome::Settled(_) => return None,
        };
        let held = leases.iter().map(|lease| (lease.batch, lease.fence));
        let settlement = match command {
            QueueCommand::AppendLeased { .. } => Settlement::Ack,
            _ => Settlement::Retry {
                at: self.writer.opened_at,
                why: "its lease was not received".to_owned(),
            },
        };
        Some(QueueCommand::SettleRun {
            held: held.collect(),
            settlement,
        })
    }

    fn committed(&self, transaction: &QueueTransaction) {
        if transaction.has_appended {
            self.appended.send_modify(|n| *n = n.wrapping_add(1));
        }
    }
}

impl QueueCommand {
    /// The batch and fence, if the command is a single statement that settles one batch.
    fn settles_one(&self) -> Option<(i64, i64)> {
        let (held, settlement) = match self {
            Self::Settle {
                batch,
                fence,
                settlement,
            } => ((*batch, *fence), settlement),
            Self::SettleRun { held, settlement } => match held[..] {
                [held] => (held, settlement),
                _ => return None,
            },
            _ => return None,
        };
        matches!(settlement, Settlement::Ack | Settlement::Retry { .. }).then_some(held)
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
