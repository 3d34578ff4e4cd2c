//! Group commit: one task that combines waiting writes into one transaction.
//!
//! A write is acknowledged once its transaction is on disk. Each write has its own outcome: if one
//! is refused, a savepoint undoes it without affecting the others. A write whose caller no longer
//! waits is not started.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Fault};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::dialect::{Access, Connection, Site};
use crate::health::Health;
use crate::statements::transaction;
use crate::write_latency::WriteLatency;

/// Defines the writes and how one is applied.
pub(crate) trait WriteBackend: Send + Sync + 'static {
    /// One write.
    type Command: Debug + Send + Sync + 'static;
    /// The result for the caller of a command.
    type Outcome: Send + 'static;
    /// The error for a refused command.
    type Refused: From<Fault> + Send + 'static;
    /// State of a transaction, passed from command to command.
    type Transaction: Copy + Send + Sync + 'static;

    /// Called at the start of a transaction.
    fn open<'a>(
        &'a self,
        connection: &'a mut Connection,
    ) -> BoxFuture<'a, Result<Self::Transaction, sqlx::Error>>;

    /// Applies a command, in a savepoint or alone in its transaction.
    fn write<'a>(
        &'a self,
        connection: &'a mut Connection,
        transaction: &'a mut Self::Transaction,
        command: &'a Self::Command,
    ) -> BoxFuture<'a, Result<Outcome<Self>, sqlx::Error>>;

    /// Whether a command is a single statement that depends on no read. Alone, such a command needs
    /// no explicit transaction.
    fn is_one_statement(&self, _: &Self::Command) -> bool {
        false
    }

    /// Called at the end of a transaction, before the commit.
    fn close<'a>(
        &'a self,
        connection: &'a mut Connection,
        transaction: &'a Self::Transaction,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    /// Called when the transaction is on disk, before callers get their results.
    fn committed(&self, transaction: &Self::Transaction);
}

/// The outcome of a command.
pub(crate) enum Outcome<B: WriteBackend + ?Sized> {
    /// Something was written.
    Written(B::Outcome),
    /// Nothing needed to be written.
    Unchanged(B::Outcome),
    /// Nothing was written; partial work was undone.
    Refused(B::Refused),
}

/// Passes commands to the writing task.
#[derive(Debug)]
pub(crate) struct Writer<B: WriteBackend> {
    entries: mpsc::Sender<Waiting<B>>,
    health: Arc<Health>,
    pace: Arc<WriteLatency>,
}

#[derive(Debug)]
struct Waiting<B: WriteBackend> {
    command: B::Command,
    answer: oneshot::Sender<Result<B::Outcome, B::Refused>>,
}

impl<B: WriteBackend> Writer<B> {
    /// A writer and its task, which runs until `closing`.
    pub(crate) fn new(
        book: Arc<B>,
        site: Site,
        health: Arc<Health>,
        committed: Arc<Notify>,
        closing: watch::Receiver<bool>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        // If the channel is full, callers wait until their deadline.
        let (entries, waiting) = mpsc::channel(WAITING_MAX);
        let pace = Arc::new(WriteLatency::new(Instant::now()));
        let task = Task {
            book,
            site,
            health: Arc::clone(&health),
            pace: Arc::clone(&pace),
            committed,
            connection: None,
        };
        let writer = Self {
            entries,
            health,
            pace,
        };
        (writer, task.run(waiting, closing))
    }

    /// The current duration of a transaction.
    pub(crate) fn delay(&self) -> Duration {
        self.pace.delay(Instant::now())
    }

    /// Writes a command. Returns when it is on disk or refused, or with an error after five
    /// seconds.
    pub(crate) async fn write(
        &self,
        doing: &str,
        command: B::Command,
    ) -> Result<B::Outcome, B::Refused> {
        self.health.check()?;
        self.health.check_room()?;
        let write = async {
            let (answer, outcome) = oneshot::channel();
            if self
                .entries
                .send(Waiting { command, answer })
                .await
                .is_err()
            {
                return Err(Fault::bare(format!("{doing}: the store is closed")).into());
            }
            outcome.await.unwrap_or_else(|_| {
                Err(Fault::bare(format!(
                    "{doing}: the store stopped; the outcome is unknown"
                ))
                .into())
            })
        };
        tokio::time::timeout(WRITE_TIMEOUT, write)
            .await
            .unwrap_or_else(|_| {
                Err(Fault::bare(format!(
                    "{doing}: not written within {} s; the outcome is unknown",
                    WRITE_TIMEOUT.as_secs()
                ))
                .into())
            })
    }
}

struct Task<B: WriteBackend> {
    book: Arc<B>,
    site: Site,
    health: Arc<Health>,
    pace: Arc<WriteLatency>,
    committed: Arc<Notify>,
    connection: Option<Connection>,
}

impl<B: WriteBackend> Task<B> {
    async fn run(
        mut self,
        mut waiting: mpsc::Receiver<Waiting<B>>,
        mut closing: watch::Receiver<bool>,
    ) {
        let mut size_before = 1;
        loop {
            let first = tokio::select! {
                first = waiting.recv() => first,
                _ = closing.wait_for(|closing| *closing), if !waiting.is_closed() => {
                    // Accepted commands are still written; new ones are not accepted.
                    waiting.close();
                    continue;
                }
            };
            let Some(first) = first else { break };
            let mut group = gather(first, &mut waiting, size_before).await;
            size_before = group.len();
            group.retain(|one| !one.answer.is_closed());
            if !group.is_empty() {
                self.pace.begin(Instant::now());
                self.write(group).await;
                self.pace.end(Instant::now());
            }
        }
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
    }

    /// Writes a group and sends each caller its result.
    async fn write(&mut self, group: Vec<Waiting<B>>) {
        if let Err(fault) = self.health.check() {
            return refuse(group, &fault);
        }
        let (entries, answers): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|one| (one.command, one.answer))
            .unzip();
        let kept = self.connection.take();
        let is_kept = kept.is_some();
        let mut written = self.attempt(kept, &entries).await;
        // The server may have closed the connection since its last use, as a restart does.
        if is_kept && written.as_ref().is_err_and(Failure::may_be_repeated) {
            tracing::debug!("repeating a transaction on a new connection");
            written = self.attempt(None, &entries).await;
        }
        match written {
            Ok(outcomes) => {
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    // Fails if the caller no longer waits.
                    drop(answer.send(outcome));
                }
            }
            Err(Failure { doing, error, .. }) => {
                for answer in answers {
                    let fault = Fault::new(doing, error.to_string());
                    drop(answer.send(Err(fault.into())));
                }
            }
        }
    }

    /// Runs one transaction on `connection`, or on a new one. Keeps the connection if it works.
    async fn attempt(
        &mut self,
        connection: Option<Connection>,
        entries: &[B::Command],
    ) -> Result<Outcomes<B>, Failure> {
        let mut connection = match connection {
            Some(connection) => connection,
            None => {
                let opened = self.site.connect(Access::Write).await;
                opened.map_err(Failure::undone(
                    "reaching the database; nothing was written",
                ))?
            }
        };
        let transaction = self.transact(&mut connection, entries);
        let written = tokio::time::timeout(TRANSACTION_TIMEOUT, transaction)
            .await
            .unwrap_or_else(|_| {
                let doing = "committing: timed out; the outcome is unknown";
                Err(Failure::unknown(doing)(sqlx::Error::PoolTimedOut))
            });
        match &written {
            Ok(_) => self.connection = Some(connection),
            // Dropping the connection ends the transaction, whatever its state.
            Err(failure) => self.health.judge(&failure.error, failure.doing),
        }
        written
    }

    /// Runs one transaction. An error means that the whole group failed.
    async fn transact(
        &self,
        connection: &mut Connection,
        entries: &[B::Command],
    ) -> Result<Outcomes<B>, Failure> {
        if let [command] = entries
            && self.book.is_one_statement(command)
        {
            let written = self.statement(connection, command).await;
            return written
                .map(|outcome| vec![outcome])
                .map_err(Failure::unknown(COMMITTING));
        }
        let beginning = Failure::undone("beginning a transaction; nothing was written");
        connection.begin().await.map_err(beginning)?;
        let mut transaction = self.book.open(connection).await.map_err(beginning)?;
        let mut outcomes = Vec::with_capacity(entries.len());
        let mut has_written = false;
        for command in entries {
            let before = transaction;
            let outcome = match entries {
                // A refused command is undone with the transaction.
                [_] => Ok(self.apply(connection, &mut transaction, command).await),
                _ => self.one(connection, &mut transaction, command).await,
            };
            let outcome = outcome.map_err(Failure::undone("writing; nothing was written"))?;
            outcomes.push(match outcome {
                Outcome::Written(answer) => {
                    has_written = true;
                    Ok(answer)
                }
                Outcome::Unchanged(answer) => Ok(answer),
                Outcome::Refused(refused) => {
                    transaction = before;
                    Err(refused)
                }
            });
        }
        if has_written {
            let committing = Failure::unknown(COMMITTING);
            self.book
                .close(connection, &transaction)
                .await
                .map_err(committing)?;
            connection
                .run(transaction::COMMIT, &[])
                .await
                .map_err(committing)?;
            self.committed(&transaction);
        } else {
            connection
                .run(transaction::ROLLBACK, &[])
                .await
                .map_err(beginning)?;
        }
        Ok(outcomes)
    }

    /// Runs a command that is a single statement, outside a transaction.
    async fn statement(
        &self,
        connection: &mut Connection,
        command: &B::Command,
    ) -> Result<Result<B::Outcome, B::Refused>, sqlx::Error> {
        let mut transaction = self.book.open(connection).await?;
        match self
            .book
            .write(connection, &mut transaction, command)
            .await?
        {
            Outcome::Written(answer) => {
                self.committed(&transaction);
                Ok(Ok(answer))
            }
            Outcome::Unchanged(answer) => Ok(Ok(answer)),
            Outcome::Refused(refused) => Ok(Err(refused)),
        }
    }

    fn committed(&self, transaction: &B::Transaction) {
        self.health.committed();
        self.book.committed(transaction);
        self.committed.notify_one();
    }

    /// Applies a command in its savepoint.
    async fn one(
        &self,
        connection: &mut Connection,
        transaction: &mut B::Transaction,
        command: &B::Command,
    ) -> Result<Outcome<B>, sqlx::Error> {
        connection.run(transaction::SAVEPOINT, &[]).await?;
        let outcome = self.apply(connection, transaction, command).await;
        if matches!(outcome, Outcome::Refused(_)) {
            connection.run(transaction::ROLLBACK_TO, &[]).await?;
        }
        connection.run(transaction::RELEASE, &[]).await?;
        Ok(outcome)
    }

    async fn apply(
        &self,
        connection: &mut Connection,
        transaction: &mut B::Transaction,
        command: &B::Command,
    ) -> Outcome<B> {
        match self.book.write(connection, transaction, command).await {
            Ok(outcome) => outcome,
            Err(error) => {
                self.health.judge(&error, "writing");
                Outcome::Refused(Fault::new("writing; nothing was written", error).into())
            }
        }
    }
}

/// The outcome of each command of a group.
type Outcomes<B> = Vec<Result<<B as WriteBackend>::Outcome, <B as WriteBackend>::Refused>>;

/// Why a whole group failed.
struct Failure {
    doing: &'static str,
    error: sqlx::Error,
    /// Whether it is certain that nothing was written.
    is_undone: bool,
}

impl Failure {
    fn undone(doing: &'static str) -> impl Fn(sqlx::Error) -> Self + Copy {
        move |error| Self {
            doing,
            error,
            is_undone: true,
        }
    }

    fn unknown(doing: &'static str) -> impl Fn(sqlx::Error) -> Self + Copy {
        move |error| Self {
            doing,
            error,
            is_undone: false,
        }
    }

    /// Whether the connection was lost before anything was written.
    fn may_be_repeated(&self) -> bool {
        let is_lost = match &self.error {
            // Class 57P of PostgreSQL: the server is shutting down, or was restarted.
            sqlx::Error::Database(error) => {
                error.code().is_some_and(|code| code.starts_with("57P"))
            }
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => true,
            _ => false,
        };
        self.is_undone && is_lost
    }
}

/// Collects the first command and those that wait. If the last group was larger, waits briefly for
/// more, because callers that just got a result usually send the next command.
async fn gather<T>(first: T, waiting: &mut mpsc::Receiver<T>, size_before: usize) -> Vec<T> {
    let mut group = vec![first];
    let deadline = Instant::now() + GATHER_AT_MOST;
    while group.len() < GROUP_MAX {
        if let Ok(next) = waiting.try_recv() {
            group.push(next);
        } else if group.len() < size_before {
            match tokio::time::timeout_at(deadline, waiting.recv()).await {
                Ok(Some(next)) => group.push(next),
                Ok(None) | Err(_) => break,
            }
        } else {
            break;
        }
    }
    group
}

fn refuse<B: WriteBackend>(group: Vec<Waiting<B>>, fault: &Fault) {
    for one in group {
        let fault = Fault::new("writing; nothing was written", fault.chain());
        drop(one.answer.send(Err(fault.into())));
    }
}

const COMMITTING: &str = "committing; the outcome is unknown";
const GROUP_MAX: usize = 64;
const WAITING_MAX: usize = 4 * GROUP_MAX;
const GATHER_AT_MOST: Duration = Duration::from_millis(2);
/// Time limit of a write. After it, the write fails.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time a connection counts as broken, and the next group opens another.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
