//! Group commit: one task that combines waiting writes into one transaction.
//!
//! A write is acknowledged once its transaction is on disk. Each write has its own outcome: if one
//! is refused, a savepoint undoes it without affecting the others. A write whose caller no longer
//! waits is not started.
//!
//! If the answer to a commit is lost, the task asks the database whether the transaction is there
//! before it begins another. If it is not, it is repeated for those who still wait.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{BoxFuture, Fault};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use crate::commit::write_latency::WriteLatency;
use crate::database::dialect::{Access, Connection, Site, fault};
use crate::database::health::Health;
use crate::database::statements::transaction;
use crate::database::trouble::{self, Trouble};

/// Defines the writes and how one is applied.
pub(crate) trait WriteBackend: Send + Sync + 'static {
    /// One write.
    type Command: Debug + Send + Sync + 'static;
    /// The result for the caller of a command.
    type Outcome: Debug + Send + Sync + 'static;
    /// The error for a refused command.
    type Refused: From<Fault> + Debug + Send + Sync + 'static;
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

    /// The outcome of a successful command that is a single statement and depends on no read. Alone, such a command
    /// needs no explicit transaction. `None` for all others.
    fn one_statement(&self, _: &Self::Command) -> Option<Self::Outcome> {
        None
    }

    /// Called at the end of a transaction, before the commit.
    fn close<'a>(
        &'a self,
        connection: &'a mut Connection,
        transaction: &'a Self::Transaction,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    /// Commits a transaction.
    fn commit<'a>(
        &'a self,
        connection: &'a mut Connection,
        _: &'a Self::Transaction,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async { connection.run(transaction::COMMIT, &[]).await.map(drop) })
    }

    /// Whether a transaction with these commands, the answer to whose commit was lost, is in the database. Waits for the
    /// end of the transaction. PostgreSQL only.
    fn is_committed<'a>(
        &'a self,
        connection: &'a mut Connection,
        commands: &'a [Self::Command],
        transaction: &'a Self::Transaction,
    ) -> BoxFuture<'a, Result<bool, sqlx::Error>>;

    /// Called when the transaction is on disk, before callers get their results.
    fn committed(&self, transaction: &Self::Transaction);

    /// How long a caller waits for the outcome of a command that was begun.
    fn outcome_within(&self, _: &Self::Command) -> Duration {
        WRITE_TIMEOUT
    }

    /// Whether a command that was not committed is repeated although its caller no longer waits.
    fn is_repeated_alone(&self, _: &Self::Command) -> bool {
        false
    }

    /// The command that takes back an outcome of a command which no caller received.
    fn undo(&self, _: &Self::Command, _: &Self::Outcome) -> Option<Self::Command> {
        None
    }
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
    book: Arc<B>,
    entries: mpsc::Sender<Waiting<B>>,
    unreceived: Arc<Unreceived<B>>,
    health: Arc<Health>,
    pace: Arc<WriteLatency>,
}

#[derive(Debug)]
struct Waiting<B: WriteBackend> {
    command: B::Command,
    caller: WaitingCaller<B>,
}

#[derive(Debug)]
struct WaitingCaller<B: WriteBackend> {
    answer: oneshot::Sender<Answer<B>>,
    /// Set by the task that begins the command, or by the caller that no longer waits, if that is earlier.
    is_settled: Arc<AtomicBool>,
}

/// The result for a caller.
#[derive(Debug)]
struct Answer<B: WriteBackend> {
    result: Result<B::Outcome, B::Refused>,
    /// Takes the outcome back if the caller does not receive it.
    undo: Option<B::Command>,
}

/// Commands that take back outcomes which were sent to callers and not received.
#[derive(Debug)]
struct Unreceived<B: WriteBackend> {
    /// At most one for each command that waits.
    commands: Mutex<Vec<B::Command>>,
    added: Notify,
}

/// A caller that waits for its result.
struct Expected<B: WriteBackend> {
    answer: oneshot::Receiver<Answer<B>>,
    unreceived: Arc<Unreceived<B>>,
}

impl<B: WriteBackend> Expected<B> {
    /// Waits until `deadline`. `None` if the task has ended.
    async fn by(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<Result<B::Outcome, B::Refused>>, Elapsed> {
        let answered = tokio::time::timeout_at(deadline, &mut self.answer).await?;
        Ok(answered.ok().map(|answer| answer.result))
    }
}

impl<B: WriteBackend> Drop for Expected<B> {
    fn drop(&mut self) {
        // After this the task finds out itself that no one waits.
        self.answer.close();
        if let Ok(Answer {
            undo: Some(undo), ..
        }) = self.answer.try_recv()
        {
            lock(&self.unreceived.commands).push(undo);
            self.unreceived.added.notify_one();
        }
    }
}

impl<B: WriteBackend> Waiting<B> {
    /// A command without a caller.
    fn alone(command: B::Command) -> Self {
        let caller = WaitingCaller {
            answer: oneshot::channel().0,
            is_settled: Arc::new(AtomicBool::new(true)),
        };
        Self { command, caller }
    }
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
        let unreceived = Arc::new(Unreceived {
            commands: Mutex::default(),
            added: Notify::new(),
        });
        let task = Task {
            book: Arc::clone(&book),
            site,
            health: Arc::clone(&health),
            pace: Arc::clone(&pace),
            committed,
            connection: None,
            unknown: None,
            undone: Vec::new(),
            unreceived: Arc::clone(&unreceived),
        };
        let writer = Self {
            book,
            entries,
            unreceived,
            health,
            pace,
        };
        (writer, task.run(waiting, closing))
    }

    /// The current duration of a transaction.
    pub(crate) fn delay(&self) -> Duration {
        self.pace.delay(Instant::now())
    }

    /// Whether writes succeed: one did recently, or this one does.
    pub(crate) async fn probe(&self, doing: &str, command: B::Command) -> Result<(), Fault> {
        self.health.check_writes()?;
        if self.health.idle_for() < PROBED_AFTER && self.health.trouble().is_none() {
            return Ok(());
        }
        let probe = self.write(doing, command);
        match tokio::time::timeout(PROBED_WITHIN, probe).await {
            Ok(Ok(_)) => Ok(()),
            // Others may have been written meanwhile.
            Err(_) if self.health.idle_for() < PROBED_AFTER => Ok(()),
            failed => {
                if failed.is_err() {
                    self.health.stalled();
                }
                let trouble = self.health.trouble();
                let trouble = trouble.unwrap_or_else(|| "the probe was refused".to_owned());
                Err(Fault::bare(format!("{doing}: {trouble}")).passing())
            }
        }
    }

    /// Writes a command. Returns when it is on disk or refused, or with an error if it is not begun within five
    /// seconds, or if its outcome is not known within the time of the backend.
    pub(crate) async fn write(
        &self,
        doing: &str,
        command: B::Command,
    ) -> Result<B::Outcome, B::Refused> {
        self.health.check()?;
        self.health.check_room()?;
        let late = |why: &str| {
            let seconds = WRITE_TIMEOUT.as_secs();
            let why = format!("{doing}: not written within {seconds} s; {why}");
            Err(Fault::bare(why).passing().into())
        };
        let (answer, expected) = oneshot::channel();
        let mut expected = Expected {
            answer: expected,
            unreceived: Arc::clone(&self.unreceived),
        };
        let is_settled = Arc::new(AtomicBool::new(false));
        let caller = WaitingCaller {
            answer,
            is_settled: Arc::clone(&is_settled),
        };
        let deadline = Instant::now() + WRITE_TIMEOUT;
        let outcome_within = self.book.outcome_within(&command);
        let sending = self.entries.send(Waiting { command, caller });
        match tokio::time::timeout_at(deadline, sending).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                return Err(Fault::bare(format!("{doing}: the store is closed")).into());
            }
            Err(_) => return late("nothing was written"),
        }
        let mut answered = expected.by(deadline).await;
        if answered.is_err() {
            // Not begun, and the task skips it now.
            if !is_settled.swap(true, Ordering::AcqRel) {
                return late("nothing was written");
            }
            let rest = outcome_within.saturating_sub(WRITE_TIMEOUT);
            answered = expected.by(Instant::now() + rest).await;
        }
        match answered {
            Ok(Some(outcome)) => outcome,
            Ok(None) => {
                let why = format!("{doing}: the store stopped; the outcome is unknown");
                Err(Fault::bare(why).into())
            }
            Err(_) => late("the outcome is unknown"),
        }
    }
}

struct Task<B: WriteBackend> {
    book: Arc<B>,
    site: Site,
    health: Arc<Health>,
    pace: Arc<WriteLatency>,
    committed: Arc<Notify>,
    connection: Option<Connection>,
    /// The transaction before, if the answer to its commit was lost. Nothing else is written until it is known.
    unknown: Option<UnknownCommit<B>>,
    /// Commands that take back what no caller received.
    undone: Vec<B::Command>,
    unreceived: Arc<Unreceived<B>>,
}

/// A transaction whose commit was not answered.
struct UnknownCommit<B: WriteBackend> {
    commands: Vec<B::Command>,
    callers: Vec<WaitingCaller<B>>,
    outcomes: Outcomes<B>,
    transaction: B::Transaction,
}

/// The result of an attempt to write a group.
enum Attempt<B: WriteBackend> {
    Done(Outcomes<B>),
    /// The commit was not answered.
    Unknown(Outcomes<B>, B::Transaction),
    Failed(Failure),
}

impl<B: WriteBackend> Task<B> {
    async fn run(
        mut self,
        mut waiting: mpsc::Receiver<Waiting<B>>,
        mut closing: watch::Receiver<bool>,
    ) {
        let mut size_before = 1;
        loop {
            if let Some(unknown) = self.unknown.take() {
                self.ask(unknown).await;
            }
            self.undone.append(&mut *lock(&self.unreceived.commands));
            if self.unknown.is_none() && !self.undone.is_empty() {
                let commands = std::mem::take(&mut self.undone).into_iter();
                self.write(commands.map(Waiting::alone).collect()).await;
                continue;
            }
            let first = tokio::select! {
                first = waiting.recv(), if self.unknown.is_none() => first,
                () = self.unreceived.added.notified(), if self.unknown.is_none() => continue,
                () = tokio::time::sleep(ASK_EVERY), if self.unknown.is_some() => {
                    match waiting.is_closed() {
                        // The store closes. Its callers get the error that the outcome is unknown.
                        true => break,
                        false => continue,
                    }
                }
                _ = closing.wait_for(|closing| *closing), if !waiting.is_closed() => {
                    // Accepted commands are still written; new ones are not accepted.
                    waiting.close();
                    continue;
                }
            };
            let Some(first) = first else { break };
            let mut group = gather(first, &mut waiting, size_before).await;
            size_before = group.len();
            // Callers that gave up before this got the answer that nothing was written.
            group.retain(|one| !one.caller.is_settled.swap(true, Ordering::AcqRel));
            self.write_timed(group).await;
        }
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
    }

    async fn write_timed(&mut self, group: Vec<Waiting<B>>) {
        if !group.is_empty() {
            self.pace.begin(Instant::now());
            self.write(group).await;
            self.pace.end(Instant::now());
        }
    }

    /// Writes a group and sends each caller its result.
    async fn write(&mut self, group: Vec<Waiting<B>>) {
        let (commands, callers): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|one| (one.command, one.caller))
            .unzip();
        if let Err(fault) = self.health.check() {
            return refuse(callers, &fault);
        }
        let deadline = Instant::now() + REPEATED_WITHIN;
        let kept = self.connection.take();
        let mut kept = kept.filter(|kept| self.site.is_current(kept));
        loop {
            let is_kept = kept.is_some();
            match self.attempt(kept.take(), &commands).await {
                Attempt::Done(outcomes) => return self.answer(&commands, callers, outcomes),
                Attempt::Unknown(outcomes, transaction) => {
                    self.unknown = Some(UnknownCommit {
                        commands,
                        callers,
                        outcomes,
                        transaction,
                    });
                    return;
                }
                Attempt::Failed(failure)
                    if failure.may_be_repeated(is_kept) && Instant::now() < deadline =>
                {
                    tracing::debug!(error = %failure.error, "repeating a transaction");
                    tokio::time::sleep(REPEATED_AFTER).await;
                }
                Attempt::Failed(Failure { doing, error, .. }) => {
                    return refuse(callers, &fault(doing, error));
                }
            }
        }
    }

    /// Asks the database about a transaction whose commit was not answered.
    async fn ask(&mut self, unknown: UnknownCommit<B>) {
        let asking = async {
            let mut connection = self.site.connect(Access::Write).await?;
            let (commands, transaction) = (&unknown.commands, &unknown.transaction);
            let book = &self.book;
            let is_committed = book.is_committed(&mut connection, commands, transaction);
            let is_committed = is_committed.await?;
            Ok::<_, sqlx::Error>((connection, is_committed))
        };
        let asked = tokio::time::timeout(TRANSACTION_TIMEOUT, asking).await;
        match asked.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
            Ok((connection, true)) => {
                self.connection = Some(connection);
                self.on_disk(&unknown.transaction);
                self.answer(&unknown.commands, unknown.callers, unknown.outcomes);
            }
            Ok((connection, false)) => {
                self.connection = Some(connection);
                let group = unknown.commands.into_iter().zip(unknown.callers);
                let group = group.map(|(command, caller)| Waiting { command, caller });
                // Callers that no longer wait have the error that the outcome is unknown.
                let is_wanted = |one: &Waiting<B>| {
                    !one.caller.answer.is_closed() || self.book.is_repeated_alone(&one.command)
                };
                let group = group.filter(is_wanted);
                let group = group.collect();
                self.write_timed(group).await;
            }
            Err(error) => {
                self.note(&error, "asking for the outcome of a commit");
                self.unknown = Some(unknown);
            }
        }
    }

    /// Runs one transaction on `connection`, or on a new one. Keeps the connection if it works.
    async fn attempt(
        &mut self,
        connection: Option<Connection>,
        commands: &[B::Command],
    ) -> Attempt<B> {
        let attempt = self.try_once(connection, commands).await;
        if let Attempt::Failed(failure) = &attempt {
            self.note(&failure.error, failure.doing);
        }
        attempt
    }

    async fn try_once(
        &mut self,
        connection: Option<Connection>,
        commands: &[B::Command],
    ) -> Attempt<B> {
        let mut connection = match connection {
            Some(connection) => connection,
            None => match self.site.connect(Access::Write).await {
                Ok(connection) => connection,
                Err(error) => {
                    return Attempt::Failed(Failure::undone(
                        "reaching the database; nothing was written",
                    )(error));
                }
            },
        };
        if let [command] = commands
            && let Some(success) = self.book.one_statement(command)
        {
            return self.statement(connection, command, success).await;
        }
        // Dropping the connection ends the transaction, whatever its state.
        let preparing = self.prepare(&mut connection, commands);
        let prepared = tokio::time::timeout(TRANSACTION_TIMEOUT, preparing).await;
        let late = |_| Err(Failure::undone("writing; nothing was written")(late()));
        let (outcomes, transaction) = match prepared.unwrap_or_else(late) {
            Ok((outcomes, Some(transaction))) => (outcomes, transaction),
            Ok((outcomes, None)) => {
                let rollback = connection.run(transaction::ROLLBACK, &[]);
                let ended = tokio::time::timeout(TRANSACTION_TIMEOUT, rollback).await;
                self.connection = matches!(ended, Ok(Ok(_))).then_some(connection);
                return Attempt::Done(outcomes);
            }
            Err(failure) => return Attempt::Failed(failure),
        };
        let commit = self.book.commit(&mut connection, &transaction);
        let committed = tokio::time::timeout(TRANSACTION_TIMEOUT, commit).await;
        if let Err(error) = committed.unwrap_or_else(|_| Err(self::late())) {
            return self.unanswered(error, outcomes, transaction);
        }
        self.on_disk(&transaction);
        self.connection = Some(connection);
        Attempt::Done(outcomes)
    }

    /// Runs the commands of a transaction. Returns its state if there is something to commit. An error means that the whole
    /// group failed.
    async fn prepare(
        &self,
        connection: &mut Connection,
        commands: &[B::Command],
    ) -> Result<(Outcomes<B>, Option<B::Transaction>), Failure> {
        let beginning = Failure::undone("beginning a transaction; nothing was written");
        connection.begin().await.map_err(beginning)?;
        let mut transaction = self.book.open(connection).await.map_err(beginning)?;
        let writing = Failure::undone("writing; nothing was written");
        let mut outcomes = Vec::with_capacity(commands.len());
        let mut has_written = false;
        for command in commands {
            let before = transaction;
            let outcome = match commands {
                // A refused command is undone with the transaction.
                [_] => self.apply(connection, &mut transaction, command).await,
                _ => self.one(connection, &mut transaction, command).await,
            };
            outcomes.push(match outcome.map_err(writing)? {
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
        if !has_written {
            return Ok((outcomes, None));
        }
        let closed = self.book.close(connection, &transaction).await;
        closed.map_err(writing)?;
        Ok((outcomes, Some(transaction)))
    }

    /// Runs a command that is a single statement, outside a transaction.
    async fn statement(
        &mut self,
        mut connection: Connection,
        command: &B::Command,
        success: B::Outcome,
    ) -> Attempt<B> {
        let mut transaction = match self.book.open(&mut connection).await {
            Ok(transaction) => transaction,
            Err(error) => {
                return Attempt::Failed(Failure::undone(
                    "beginning a transaction; nothing was written",
                )(error));
            }
        };
        let writing = self.book.write(&mut connection, &mut transaction, command);
        let written = tokio::time::timeout(TRANSACTION_TIMEOUT, writing).await;
        let outcome = match written.unwrap_or_else(|_| Err(late())) {
            Ok(Outcome::Written(answer)) => {
                self.on_disk(&transaction);
                Ok(answer)
            }
            Ok(Outcome::Unchanged(answer)) => Ok(answer),
            Ok(Outcome::Refused(refused)) => Err(refused),
            Err(error) => return self.unanswered(error, vec![Ok(success)], transaction),
        };
        self.connection = Some(connection);
        Attempt::Done(vec![outcome])
    }

    /// What an error of a commit means for its transaction.
    fn unanswered(
        &self,
        error: sqlx::Error,
        outcomes: Outcomes<B>,
        transaction: B::Transaction,
    ) -> Attempt<B> {
        if is_answer(&error) {
            return Attempt::Failed(Failure::undone("committing; nothing was written")(error));
        }
        // Only PostgreSQL can be asked.
        if let Site::Sqlite(_) = self.site {
            return Attempt::Failed(Failure {
                doing: "committing; the outcome is unknown",
                error,
                is_undone: false,
            });
        }
        self.note(&error, "committing; the outcome is asked for");
        Attempt::Unknown(outcomes, transaction)
    }

    /// Sends each caller its outcome. Takes back an outcome that is of no use without its caller.
    fn answer(
        &mut self,
        commands: &[B::Command],
        callers: Vec<WaitingCaller<B>>,
        outcomes: Outcomes<B>,
    ) {
        for (command, (caller, result)) in commands.iter().zip(callers.into_iter().zip(outcomes)) {
            let outcome = result.as_ref().ok();
            let undo = outcome.and_then(|outcome| self.book.undo(command, outcome));
            // Fails if the caller no longer waits.
            if let Err(answer) = caller.answer.send(Answer { result, undo }) {
                self.undone.extend(answer.undo);
            }
        }
    }

    fn note(&self, error: &sqlx::Error, doing: &str) {
        self.health.judge(error, doing);
        self.site.judge(error);
    }

    fn on_disk(&self, transaction: &B::Transaction) {
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
        let outcome = self.apply(connection, transaction, command).await?;
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
    ) -> Result<Outcome<B>, sqlx::Error> {
        match self.book.write(connection, transaction, command).await {
            Err(error) if trouble::ends_transaction(&error) => Err(error),
            Err(error) => {
                self.note(&error, "writing");
                let fault = fault("writing; nothing was written", error);
                Ok(Outcome::Refused(fault.into()))
            }
            outcome => outcome,
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

    /// Whether nothing was written, and another attempt may succeed: the server asks for it, or the connection was kept
    /// from before and its server is gone, or has another role.
    fn may_be_repeated(&self, is_kept: bool) -> bool {
        let is_other_server = is_kept
            && matches!(
                Trouble::of(&self.error),
                Some(Trouble::Unreachable | Trouble::ReadOnly | Trouble::Standby)
            );
        self.is_undone && (is_other_server || trouble::is_conflict(&self.error))
    }
}

/// The error of something that takes too long.
fn late() -> sqlx::Error {
    sqlx::Error::PoolTimedOut
}

/// Whether an error is the server's answer to a commit, which therefore did not happen.
fn is_answer(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some() && Trouble::of(error) != Some(Trouble::Unreachable)
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

fn refuse<B: WriteBackend>(callers: Vec<WaitingCaller<B>>, fault: &Fault) {
    for caller in callers {
        let answer = Answer {
            result: Err(fault.copy().into()),
            undo: None,
        };
        drop(caller.answer.send(answer));
    }
}

const GROUP_MAX: usize = 64;
const WAITING_MAX: usize = 4 * GROUP_MAX;
const GATHER_AT_MOST: Duration = Duration::from_millis(2);
/// Time limit of a write. After it, the write fails.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time a connection counts as broken, and the next group opens another.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a commit after which a probe writes, and its time limit.
const PROBED_AFTER: Duration = Duration::from_secs(5);
const PROBED_WITHIN: Duration = Duration::from_secs(2);
/// How long a transaction is repeated that conflicts with others, and the pause between two attempts.
const REPEATED_WITHIN: Duration = Duration::from_secs(4);
const REPEATED_AFTER: Duration = Duration::from_millis(5);
/// Interval of asking for the outcome of a commit.
const ASK_EVERY: Duration = Duration::from_millis(200);
