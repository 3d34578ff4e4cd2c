//! The write backend of the state: the ledger, documents, their rows, and the outbox.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use culvert_base::{BoxFuture, Event, Fault, Timestamp};

use crate::audit_log::audit::Deciding;
use crate::audit_log::chain::Link;
use crate::audit_log::tree::{Growth, Signature, TileRepair};
use crate::audit_log::{audit, event_names, outbox};
use crate::commit::answers;
use crate::commit::changes::{AuditEvent, Changes, Step};
use crate::commit::commit_error::{CommitError, Failure};
use crate::commit::condition::Condition;
use crate::commit::history::{Expected, History, Reading};
use crate::commit::revision::Revision;
use crate::commit::writer::{Outcome, WriteBackend};
use crate::database::dialect::{Arg, Connection, Site, While};
use crate::database::pool::Pool;
use crate::database::statements::{ADVANCE_AND_NOTIFY, meta, state, transaction};
use crate::document::text_index::{self, IndexProgress, Texts};
use crate::document::{Document, Head, Key, OnDelete};
use crate::feed::Feed;
use crate::feed::notifications;
use crate::node::broadcast::Channel;

/// Writes `Changes` in the order of the ledger, whose one row every transaction locks first. So revisions and outbox
/// positions are in commit order on every node.
#[derive(Debug)]
pub(crate) struct StateLog {
    pub(crate) site: Site,
    pub(crate) history: History,
    /// The indexed text fields.
    pub(crate) texts: Texts,
    /// Identifies these fields in the ledger.
    pub(crate) mark: String,
    /// Documents that recent commits touched.
    pub(crate) feed: Feed,
    /// The channel that notifies other processes of commits; `None` if there are none.
    pub(crate) channel: Option<Channel>,
    /// When the latest revision was read.
    pub(crate) confirmed_at: Mutex<Instant>,
}

/// One write to the state.
#[derive(Debug)]
pub(crate) enum StateCommand {
    Commit(Changes),
    Meta {
        name: String,
        value: String,
    },
    PruneOutbox {
        up_to: i64,
        deciding: Deciding,
    },
    /// Adds hashes to at most this many rows without one.
    Chain {
        rows_max: i64,
    },
    /// Indexes at most this many rows of the outbox by object and actor.
    IndexEvents {
        rows_max: i64,
    },
    /// Adds leaves to the tree over the audit log.
    GrowTree(Growth),
    /// Replaces the signed head of the tree.
    SignTree(Signature),
    /// Replaces damaged tiles of the tree.
    RepairTree(TileRepair),
    /// Claims the text index for the fields of this program; it is then rebuilt.
    ClaimTexts,
    /// Removes each kept answer, or its secret,, up to these times.
    PruneAnswers {
        answers_until: Timestamp,
        secrets_until: Timestamp,
    },
    /// Commits without a change.
    Probe,
    /// Indexes the texts of at most this many documents.
    CatchUp {
        documents_max: usize,
    },
}

/// The result of a command.
#[derive(Debug)]
pub(crate) enum StateOutcome {
    Revision(Revision),
    Rows(u64),
}

/// The last revision and outbox position, and the end of the chain over the outbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateTransaction {
    revision: Revision,
    outbox: i64,
    /// Whether this process has not committed under its id yet.
    is_first: bool,
    /// At `outbox`, unless a version without the chain has written since.
    head: Link,
    /// At `revision`, unless documents are not indexed yet.
    texts: IndexProgress,
}

/// Rows without a hash that a transaction chains before its own.
const CHAINED_AHEAD: i64 = 128;
/// Limit of writers that the database remembers: those with the latest commits.
const WRITERS_MAX: i64 = 256;

impl StateLog {
    /// Reads the latest revision and the progress of indexing. Begins an epoch if commits were lost.
    pub(crate) async fn read_ledger(
        &self,
        pool: &Pool,
    ) -> Result<(Revision, IndexProgress), Fault> {
        let doing = "reading the revision";
        let (asked_at, expected) = (Instant::now(), self.history.expected());
        let row = pool
            .row(doing, state::REVISION, &[Arg::Text(&expected.mark.writer)])
            .await?
            .ok_or_else(|| Fault::bare(format!("{doing}: the ledger is empty")))?;
        let number = row.get(0).during(doing)?;
        let texts = IndexProgress::read(&row, 1, &self.mark).during(doing)?;
        let reading = Reading::read(&row, 3, number).during(doing)?;
        let revision = self.observe(&expected, reading);
        // Only after readers know the revision.
        *self.confirmed() = asked_at;
        Ok((revision, texts))
    }

    /// When the latest revision was last asked for with success.
    pub(crate) fn confirmed_at(&self) -> Instant {
        *self.confirmed()
    }

    fn confirmed(&self) -> MutexGuard<'_, Instant> {
        let confirmed = self.confirmed_at.lock();
        confirmed.unwrap_or_else(PoisonError::into_inner)
    }

    fn observe(&self, expected: &Expected, reading: Reading) -> Revision {
        let (revision, is_new_epoch) = self.history.observe(expected, reading);
        if is_new_epoch {
            self.feed.begin_epoch(revision.epoch);
            // Some may still lead to the server before the fail-over.
            self.site.replace_connections();
        }
        revision
    }
}

impl WriteBackend for StateLog {
    type Command = StateCommand;
    type Outcome = StateOutcome;
    type Refused = CommitError;
    type Transaction = StateTransaction;

    fn open<'a>(
        &'a self,
        connection: &'a mut Connection,
    ) -> BoxFuture<'a, Result<StateTransaction, sqlx::Error>> {
        Box::pin(async move {
            self.feed.begin();
            let expected = self.history.expected();
            let writer = self.history.writer();
            let arguments = [Arg::Text(&expected.mark.writer), Arg::Text(&writer)];
            let row = connection
                .row(state::LOCK, &arguments)
                .await?
                .ok_or(sqlx::Error::RowNotFound)?;
            let reading = Reading::read(&row, 6, row.get(0)?)?;
            let reached: i64 = row.get(9)?;
            // The row was locked after the statement's snapshot, which may lack the last commit.
            let reached = reached.max(reading.reached_by(&writer));
            self.history.recognize(reached);
            let number = reading.number;
            let Revision { epoch, .. } = self.observe(&expected, reading);
            let mut transaction = StateTransaction {
                revision: Revision { epoch, number },
                outbox: row.get(1)?,
                is_first: reached == 0,
                head: audit::link(&row, 2)?,
                texts: IndexProgress::read(&row, 4, &self.mark)?,
            };
            if transaction.head.seq < transaction.outbox {
                transaction.head = outbox::chain(
                    connection,
                    transaction.head,
                    transaction.outbox,
                    CHAINED_AHEAD,
                )
                .await?;
            }
            Ok(transaction)
        })
    }

    fn write<'a>(
        &'a self,
        connection: &'a mut Connection,
        transaction: &'a mut StateTransaction,
        command: &'a StateCommand,
    ) -> BoxFuture<'a, Result<Outcome<Self>, sqlx::Error>> {
        Box::pin(async move {
            match command {
                StateCommand::Commit(changes) => {
                    let has_all_texts = transaction.texts.is_complete(transaction.revision.number);
                    transaction.revision.number += 1;
                    match changes.apply(connection, transaction, &self.texts).await {
                        Ok(()) => {
                            // Behind a gap, the texts count only once `CatchUp` has filled it.
                            if has_all_texts {
                                transaction.texts.up_to = transaction.revision.number;
                            }
                            self.feed.note(transaction.revision.number, changes);
                            Ok(Outcome::Written(StateOutcome::Revision(
                                transaction.revision,
                            )))
                        }
                        Err(Failure::Refused(refused)) => Ok(Outcome::Refused(refused)),
                        Err(Failure::Database(error)) => Err(error),
                    }
                }
                StateCommand::Meta { name, value } => {
                    let n = connection
                        .run(meta::SET, &[Arg::Text(name), Arg::Text(value)])
                        .await?;
                    Ok(Outcome::Written(StateOutcome::Rows(n)))
                }
                StateCommand::PruneOutbox { up_to, deciding } => {
                    let epoch = transaction.revision.epoch;
                    if deciding.is_outdated(connection, epoch).await? {
                        return Ok(Outcome::Unchanged(StateOutcome::Rows(0)));
                    }
                    let n = outbox::prune(connection, transaction.head, *up_to).await?;
                    Ok(Outcome::Written(StateOutcome::Rows(n)))
                }
                StateCommand::Chain { rows_max } => {
                    transaction.head =
                        outbox::chain(connection, transaction.head, transaction.outbox, *rows_max)
                            .await?;
                    let n_left = transaction.outbox.saturating_sub(transaction.head.seq);
                    Ok(Outcome::Written(StateOutcome::Rows(n_left.unsigned_abs())))
                }
                StateCommand::IndexEvents { rows_max } => {
                    let n = event_names::index(connection, *rows_max).await?;
                    Ok(Outcome::Written(StateOutcome::Rows(n)))
                }
                StateCommand::GrowTree(growth) => growth.write(connection).await.map(written),
                StateCommand::SignTree(signature) => signature.write(connection).await.map(written),
                StateCommand::RepairTree(repair) => repair.write(connection).await.map(written),
                StateCommand::ClaimTexts => {
                    let n = connection
                        .run(state::CLAIM_TEXTS, &[Arg::Text(&self.mark)])
                        .await?;
                    transaction.texts = IndexProgress {
                        up_to: 0,
                        is_ours: true,
                    };
                    Ok(Outcome::Written(StateOutcome::Rows(n)))
                }
                StateCommand::PruneAnswers {
                    answers_until,
                    secrets_until,
                } => answers::prune(connection, *answers_until, *secrets_until)
                    .await
                    .map(written),
                StateCommand::Probe => Ok(Outcome::Written(StateOutcome::Rows(0))),
                StateCommand::CatchUp { documents_max } => {
                    if !transaction.texts.is_ours {
                        return Ok(Outcome::Unchanged(StateOutcome::Rows(0)));
                    }
                    let (from, to) = (transaction.texts.up_to, transaction.revision.number);
                    transaction.texts.up_to =
                        text_index::catch_up(connection, &self.texts, from, to, *documents_max)
                            .await?;
                    let n_left = to.saturating_sub(transaction.texts.up_to);
                    Ok(Outcome::Written(StateOutcome::Rows(n_left.unsigned_abs())))
                }
            }
        })
    }

    fn close<'a>(
        &'a self,
        connection: &'a mut Connection,
        transaction: &'a StateTransaction,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            let head = transaction.head.hash.to_string();
            let revision = Arg::Int(transaction.revision.number);
            let outbox = Arg::Int(transaction.outbox);
            let chained = Arg::Int(transaction.head.seq);
            let head = Arg::Text(&head);
            let texts = Arg::Int(transaction.texts.up_to);
            let commits = self.feed.pending();
            if commits.is_empty() {
                let none = (Arg::MaybeText(None), Arg::MaybeInt(None));
                let arguments = [revision, outbox, chained, head, texts, none.0, none.1];
                return connection.run(state::ADVANCE, &arguments).await.map(drop);
            }
            if !self.history.begin_commit(transaction.revision) {
                return Err(sqlx::Error::Protocol(
                    "the database lost commits since this transaction began".to_owned(),
                ));
            }
            let id = self.history.writer();
            let writer = Arg::Text(&id);
            if transaction.is_first {
                let arguments = [Arg::Int(WRITERS_MAX)];
                connection.run(state::PRUNE_WRITERS, &arguments).await?;
            }
            if let Some(channel) = &self.channel {
                let messages = notifications::messages(channel, &commits);
                let (channel, messages) = (Arg::Text(channel.name()), Arg::Text(&messages));
                let arguments = [
                    revision, outbox, chained, head, texts, writer, channel, messages,
                ];
                let advanced = connection.row(ADVANCE_AND_NOTIFY, &arguments).await;
                return advanced.map(drop);
            }
            let arguments = [writer, revision];
            connection.run(state::NOTE_WRITER, &arguments).await?;
            let arguments = [revision, outbox, chained, head, texts, writer, revision];
            connection.run(state::ADVANCE, &arguments).await.map(drop)
        })
    }

    fn is_committed<'a>(
        &'a self,
        connection: &'a mut Connection,
        _: &'a [StateCommand],
        _: &'a StateTransaction,
    ) -> BoxFuture<'a, Result<bool, sqlx::Error>> {
        Box::pin(async move {
            connection.begin().await?;
            let writer = self.history.writer();
            let arguments = [Arg::Text(""), Arg::Text(&writer)];
            let row = connection.row(state::LOCK, &arguments).await?;
            let row = row.ok_or(sqlx::Error::RowNotFound)?;
            let reading = Reading::read(&row, 6, row.get(0)?)?;
            let reached: i64 = row.get(9)?;
            connection.run(transaction::ROLLBACK, &[]).await?;
            // A transaction without a new revision may be repeated.
            let reached = reached.max(reading.reached_by(&writer));
            Ok(self.history.recognize(reached))
        })
    }

    fn committed(&self, transaction: &StateTransaction) {
        let revision = transaction.revision;
        self.feed.commit(revision.epoch);
        self.history.committed(revision);
    }
}

/// The outcome of a command that wrote this number of rows.
fn written(n: u64) -> Outcome<StateLog> {
    match n {
        0 => Outcome::Unchanged(StateOutcome::Rows(0)),
        n => Outcome::Written(StateOutcome::Rows(n)),
    }
}

async fn write_event(
    connection: &mut Connection,
    transaction: &mut StateTransaction,
    event: &Event,
) -> Result<(), Failure> {
    let audience = outbox::audience(connection, event).await?;
    let is_chained = transaction.head.seq == transaction.outbox;
    transaction.outbox += 1;
    if is_chained {
        transaction.head = transaction
            .head
            .next(transaction.outbox, outbox::content(event, &audience));
    }
    // After rows without a hash, it is chained later.
    let hash = is_chained.then(|| transaction.head.hash.to_string());
    if outbox::insert(
        connection,
        transaction.outbox,
        event,
        &audience,
        hash.as_deref(),
    )
    .await?
    {
        return Ok(());
    }
    Err(CommitError::Duplicate {
        kind: "event".to_owned(),
        name: "id".to_owned(),
    }
    .into())
}

async fn insert(
    connection: &mut Connection,
    document: &Document,
    revision: i64,
    texts: &Texts,
) -> Result<(), Failure> {
    let head = &document.head;
    let n_written = connection
        .run(
            state::INSERT,
            &[
                Arg::Text(&head.id),
                Arg::Text(&head.kind),
                Arg::Text(&head.account),
                Arg::Int(revision),
                Arg::Int(head.created_at.unix_nanos()),
                Arg::Int(head.updated_at.unix_nanos()),
                Arg::Text(&document.links()?),
                Arg::Text(&document.body),
            ],
        )
        .await?;
    if n_written == 0 {
        return Err(CommitError::Duplicate {
            kind: head.kind.clone(),
            name: "id".to_owned(),
        }
        .into());
    }
    text_index::insert(connection, &texts_of(texts, head, &document.body)).await?;
    link(connection, document).await
}

/// The rows of a document with this body.
fn texts_of(texts: &Texts, head: &Head, body: &str) -> Vec<[String; 5]> {
    texts.rows(&head.id, &head.kind, &head.account, body)
}

async fn replace(
    connection: &mut Connection,
    document: &Document,
    revision: i64,
    texts: &Texts,
) -> Result<(), Failure> {
    let head = &document.head;
    let named = [Arg::Text(&head.id), Arg::Text(&head.kind)];
    let stored = connection
        .row(
            state::BEFORE,
            &[named[0], named[1], Arg::Int(head.revision)],
        )
        .await?
        .ok_or(CommitError::Stale)?;
    let links_before: String = stored.get(0)?;
    let body_before: String = stored.get(1)?;
    let links = document.links()?;
    connection
        .run(
            state::REPLACE,
            &[
                named[0],
                named[1],
                Arg::Int(revision),
                Arg::Int(head.updated_at.unix_nanos()),
                Arg::Text(&links),
                Arg::Text(&document.body),
            ],
        )
        .await?;
    let rows = texts_of(texts, head, &document.body);
    if rows != texts_of(texts, head, &body_before) {
        text_index::remove(connection, &[&head.id]).await?;
        text_index::insert(connection, &rows).await?;
    }
    if links == links_before {
        return Ok(());
    }
    for sql in [state::REMOVE_KEYS, state::REMOVE_REFS, state::REMOVE_TOPICS] {
        connection.run(sql, &[named[0]]).await?;
    }
    link(connection, document).await
}

/// Writes the rows that enforce a document's keys and references and hold its topics.
async fn link(connection: &mut Connection, document: &Document) -> Result<(), Failure> {
    let head = &document.head;
    let id = Arg::Text(&head.id);
    for key in &document.keys {
        let n_written = connection
            .run(
                state::INSERT_KEY,
                &[
                    Arg::Text(&head.kind),
                    Arg::Text(&key.name),
                    Arg::Text(&Key::spelled(&key.value)),
                    id,
                ],
            )
            .await?;
        if n_written == 0 {
            return Err(CommitError::Duplicate {
                kind: head.kind.clone(),
                name: key.name.clone().into_owned(),
            }
            .into());
        }
    }
    for reference in &document.refs {
        let blocks = i64::from(reference.on_delete == OnDelete::Block);
        connection
            .run(
                state::INSERT_REF,
                &[
                    id,
                    Arg::Text(&reference.field),
                    Arg::Text(&reference.to),
                    Arg::Int(blocks),
                ],
            )
            .await?;
    }
    for topic in &document.topics {
        connection
            .run(
                state::INSERT_TOPIC,
                &[
                    Arg::Text(&head.account),
                    Arg::Text(&topic.kind),
                    id,
                    Arg::Text(&topic.destination),
                ],
            )
            .await?;
    }
    Ok(())
}

impl Changes {
    async fn apply(
        &self,
        connection: &mut Connection,
        transaction: &mut StateTransaction,
        texts: &Texts,
    ) -> Result<(), Failure> {
        Condition::check(&self.conditions, connection, transaction.revision.epoch).await??;
        for step in &self.steps {
            step.apply(connection, transaction, texts).await?;
        }
        // References are checked after all steps, so the order of steps does not matter.
        for step in &self.steps {
            step.check_references(connection).await?;
        }
        Ok(())
    }
}

impl Step {
    async fn apply(
        &self,
        connection: &mut Connection,
        transaction: &mut StateTransaction,
        texts: &Texts,
    ) -> Result<(), Failure> {
        match self {
            Self::Insert(document, audit_event) => {
                insert(connection, document, transaction.revision.number, texts).await?;
                audit_event.write(connection, transaction).await
            }
            Self::Replace(document, audit_event) => {
                replace(connection, document, transaction.revision.number, texts).await?;
                audit_event.write(connection, transaction).await
            }
            Self::Remove(head, audit_event) => {
                // Emitted before the removal, so a subscription receives the event of its
                // removal.
                audit_event.write(connection, transaction).await?;
                let n_removed = connection
                    .run(
                        state::REMOVE,
                        &[
                            Arg::Text(&head.id),
                            Arg::Text(&head.kind),
                            Arg::Int(head.revision),
                        ],
                    )
                    .await?;
                if n_removed == 0 {
                    return Err(CommitError::Stale.into());
                }
                Ok(())
            }
            Self::Tell(event) => write_event(connection, transaction, event).await,
            Self::Meta { name, value } => {
                let arguments = [Arg::Text(name), Arg::Text(value)];
                connection.run(meta::SET, &arguments).await?;
                Ok(())
            }
            Self::Answer(step) => step.apply(connection, transaction.revision.number).await,
        }
    }

    async fn check_references(&self, connection: &mut Connection) -> Result<(), Failure> {
        match self {
            Self::Insert(document, _) | Self::Replace(document, _) if !document.refs.is_empty() => {
                let missing = connection
                    .row(state::MISSING, &[Arg::Text(&document.head.id)])
                    .await?;
                match missing {
                    None => Ok(()),
                    Some(row) => Err(CommitError::Missing {
                        field: row.get(0)?,
                        to: row.get(1)?,
                    }
                    .into()),
                }
            }
            Self::Remove(head, _) => {
                let referrer = connection
                    .row(state::REFERRER, &[Arg::Text(&head.id)])
                    .await?;
                let Some(row) = referrer else { return Ok(()) };
                let blocks: i64 = row.get(2)?;
                if blocks == 0 {
                    return Err(CommitError::Stale.into());
                }
                Err(CommitError::InUse {
                    id: head.id.clone(),
                    by: row.get(0)?,
                    by_kind: row.get(1)?,
                }
                .into())
            }
            Self::Insert(..)
            | Self::Replace(..)
            | Self::Tell(_)
            | Self::Meta { .. }
            | Self::Answer(_) => Ok(()),
        }
    }
}

impl AuditEvent {
    async fn write(
        &self,
        connection: &mut Connection,
        transaction: &mut StateTransaction,
    ) -> Result<(), Failure> {
        match self {
            Self::Emit(event) => write_event(connection, transaction, event).await,
            Self::Suppress { reason } => {
                tracing::debug!(reason, "a write without an audit event");
                Ok(())
            }
        }
    }
}
