//! The write backend of the state: the ledger, documents, their rows, and the outbox.

use culvert_base::{BoxFuture, Event};
use tokio::sync::watch;

use crate::chain::Link;
use crate::changes::{AuditEvent, Changes, Step};
use crate::commit_error::CommitError;
use crate::condition::Condition;
use crate::dialect::{Arg, Connection};
use crate::document::{Document, Head, Key, OnDelete};
use crate::feed::Feed;
use crate::statements::{meta, state};
use crate::text_index::{self, Standing, Texts};
use crate::writer::{Outcome, WriteBackend};
use crate::{audit, outbox};

/// Writes `Changes` in the order of the ledger, whose one row every transaction locks first. So
/// revisions and outbox positions are in commit order, on every node.
#[derive(Debug)]
pub(crate) struct StateLog {
    pub(crate) revision: watch::Sender<i64>,
    /// What documents are found by.
    pub(crate) texts: Texts,
    /// What stands for it in the ledger.
    pub(crate) mark: String,
    /// What its commits touched.
    pub(crate) feed: Feed,
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
    },
    /// Hashes of rows that have none, of this many at most.
    Chain {
        rows_max: i64,
    },
    /// The rows of texts are those of this program from now on, made anew.
    ClaimTexts,
    /// Rows of texts that are missing, of this many documents at most.
    CatchUp {
        documents_max: usize,
    },
}

/// What an entry's writer hears.
#[derive(Debug)]
pub(crate) enum StateOutcome {
    Revision(i64),
    Rows(u64),
}

/// The last revision and outbox position given out, and where the chain over the outbox ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateTransaction {
    revision: i64,
    outbox: i64,
    /// At `outbox`, unless a program that knows of no chain has written since.
    head: Link,
    /// At `revision`, unless rows are to be made up for.
    texts: Standing,
}

/// Rows without a hash that one transaction chains before its own.
const CHAINED_AHEAD: i64 = 128;

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
            let row = connection
                .row(state::LOCK, &[])
                .await?
                .ok_or(sqlx::Error::RowNotFound)?;
            let mut page = StateTransaction {
                revision: row.get(0)?,
                outbox: row.get(1)?,
                head: audit::link(&row, 2)?,
                texts: Standing::read(&row, 4, &self.mark)?,
            };
            if page.head.seq < page.outbox {
                page.head =
                    outbox::chain(connection, page.head, page.outbox, CHAINED_AHEAD).await?;
            }
            Ok(page)
        })
    }

    fn write<'a>(
        &'a self,
        connection: &'a mut Connection,
        page: &'a mut StateTransaction,
        entry: &'a StateCommand,
    ) -> BoxFuture<'a, Result<Outcome<Self>, sqlx::Error>> {
        Box::pin(async move {
            match entry {
                StateCommand::Commit(changes) => {
                    let has_all_texts = page.texts.is_whole(page.revision);
                    page.revision += 1;
                    match changes.apply(connection, page, &self.texts).await {
                        Ok(()) => {
                            if has_all_texts {
                                page.texts.up_to = page.revision;
                            }
                            self.feed.note(page.revision, changes);
                            Ok(Outcome::Written(StateOutcome::Revision(page.revision)))
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
                StateCommand::PruneOutbox { up_to } => {
                    let n = outbox::prune(connection, page.head, *up_to).await?;
                    Ok(Outcome::Written(StateOutcome::Rows(n)))
                }
                StateCommand::Chain { rows_max } => {
                    page.head =
                        outbox::chain(connection, page.head, page.outbox, *rows_max).await?;
                    let n_left = page.outbox.saturating_sub(page.head.seq);
                    Ok(Outcome::Written(StateOutcome::Rows(n_left.unsigned_abs())))
                }
                StateCommand::ClaimTexts => {
                    let n = connection
                        .run(state::CLAIM_TEXTS, &[Arg::Text(&self.mark)])
                        .await?;
                    page.texts = Standing {
                        up_to: 0,
                        is_ours: true,
                    };
                    Ok(Outcome::Written(StateOutcome::Rows(n)))
                }
                StateCommand::CatchUp { documents_max } => {
                    if !page.texts.is_ours {
                        return Ok(Outcome::Unchanged(StateOutcome::Rows(0)));
                    }
                    let (from, to) = (page.texts.up_to, page.revision);
                    page.texts.up_to =
                        text_index::catch_up(connection, &self.texts, from, to, *documents_max)
                            .await?;
                    let n_left = to.saturating_sub(page.texts.up_to);
                    Ok(Outcome::Written(StateOutcome::Rows(n_left.unsigned_abs())))
                }
            }
        })
    }

    fn close<'a>(
        &'a self,
        connection: &'a mut Connection,
        page: &'a StateTransaction,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            let head = page.head.hash.to_string();
            let arguments = [
                Arg::Int(page.revision),
                Arg::Int(page.outbox),
                Arg::Int(page.head.seq),
                Arg::Text(&head),
                Arg::Int(page.texts.up_to),
            ];
            connection.run(state::ADVANCE, &arguments).await.map(drop)
        })
    }

    fn committed(&self, page: &StateTransaction) {
        self.feed.commit();
        announce(&self.revision, page.revision);
    }
}

/// Moves the watch forward, never back.
pub(crate) fn announce(watch: &watch::Sender<i64>, revision: i64) {
    watch.send_if_modified(|latest| {
        let is_newer = revision > *latest;
        if is_newer {
            *latest = revision;
        }
        is_newer
    });
}

/// Why a step could not be applied.
enum Failure {
    Refused(CommitError),
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<CommitError> for Failure {
    fn from(refused: CommitError) -> Self {
        Self::Refused(refused)
    }
}

async fn tell(
    connection: &mut Connection,
    page: &mut StateTransaction,
    event: &Event,
) -> Result<(), Failure> {
    let audience = outbox::audience(connection, event).await?;
    let is_chained = page.head.seq == page.outbox;
    page.outbox += 1;
    if is_chained {
        page.head = page
            .head
            .next(page.outbox, outbox::content(event, &audience));
    }
    // Behind rows that are not chained yet it waits for its turn.
    let hash = is_chained.then(|| page.head.hash.to_string());
    if outbox::tell(connection, page.outbox, event, &audience, hash.as_deref()).await? {
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
        page: &mut StateTransaction,
        texts: &Texts,
    ) -> Result<(), Failure> {
        Condition::check(&self.conditions, connection).await??;
        for step in &self.steps {
            step.apply(connection, page, texts).await?;
        }
        // References are judged by how things stand at the end, so the order of steps is free.
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
        page: &mut StateTransaction,
        texts: &Texts,
    ) -> Result<(), Failure> {
        match self {
            Self::Insert(document, told) => {
                insert(connection, document, page.revision, texts).await?;
                told.tell(connection, page).await
            }
            Self::Replace(document, told) => {
                replace(connection, document, page.revision, texts).await?;
                told.tell(connection, page).await
            }
            Self::Remove(head, told) => {
                // Told to those who wanted to know before: a subscription reports its own end.
                told.tell(connection, page).await?;
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
            Self::Tell(event) => tell(connection, page, event).await,
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
            Self::Insert(..) | Self::Replace(..) | Self::Tell(_) => Ok(()),
        }
    }
}

impl AuditEvent {
    async fn tell(
        &self,
        connection: &mut Connection,
        page: &mut StateTransaction,
    ) -> Result<(), Failure> {
        match self {
            Self::Emit(event) => tell(connection, page, event).await,
            Self::Suppress { reason } => {
                tracing::debug!(reason, "a write without an audit event");
                Ok(())
            }
        }
    }
}
