//! Documents, the outbox and the audit log: the public interface of the store.

use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use culvert_base::{Clock, Fault, Supervisor, Timestamp};
use tokio::sync::{Notify, watch};

use crate::audit_log::audit::AuditLog;
use crate::audit_log::outbox::OutboxRow;
use crate::commit::answers::{self, KeptAnswer};
use crate::commit::changes::Changes;
use crate::commit::commit_error::CommitError;
use crate::commit::history::{History, LostCommits};
use crate::commit::revision::Revision;
use crate::commit::state_log::{StateCommand, StateLog, StateOutcome};
use crate::commit::writer::Writer;
use crate::database::dialect::{Arg, Site, While};
use crate::database::health::Health;
use crate::database::pool::Pool;
use crate::database::statements::{PAGE_CONTAINING, meta, state};
use crate::database::store_url::StoreUrl;
use crate::database::{Database, STATE};
use crate::document::lookup::Lookup;
use crate::document::text_index::Texts;
use crate::document::{BEHIND_EVERY_ID, Document, Key, PageQuery};
use crate::feed::ledger_watch::{POLL_EVERY, watch_ledger};
use crate::feed::notifications;
use crate::feed::{Feed, Touched};
use crate::node::broadcast;

/// How many documents one read of many returns.
const PAGE_LENGTH: usize = 1_000;
/// How many of them are converted between two turns of the next read.
const CONVERTED_TOGETHER: usize = 50;

/// A handle to documents and the outbox. Clones share the store.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) database: Database,
    pub(crate) writer: Arc<Writer<StateLog>>,
    pub(crate) lookup: Lookup,
    pub(crate) state_log: Arc<StateLog>,
}

impl Store {
    /// Opens the store, creates or migrates its tables, and starts its tasks on the current
    /// runtime. `texts` lists the fields by which documents can be found. If it is empty, the index
    /// is left to other programs.
    pub async fn open(url: &StoreUrl, clock: Arc<dyn Clock>, texts: Texts) -> Result<Self, Fault> {
        let database = Database::open(url, STATE, clock.as_ref()).await?;
        database.refuse_moved().await?;
        let state_log = Arc::new(StateLog {
            site: database.site.clone(),
            history: History::new(clock),
            feed: Feed::default(),
            mark: texts.mark(),
            texts,
            channel: broadcast::channel(&database.site, &database.pool, "commit").await?,
            confirmed_at: Mutex::new(Instant::now()),
        });
        state_log.read_ledger(&database.pool).await?;
        let writer = Arc::new(database.start_writer(Arc::clone(&state_log)));
        let (lookup, tasks) = Lookup::new(&database.site, &database.closing());
        for task in tasks {
            database.start("store.lookup", task);
        }
        let pool = Arc::clone(&database.pool);
        let heard = Arc::new(Notify::new());
        if state_log.channel.is_some() {
            let notifications = notifications::listen(
                database.site.clone(),
                Arc::clone(&pool),
                Arc::clone(&state_log),
                Arc::clone(&heard),
                database.closing(),
            );
            database.start("store.notifications", notifications);
        }
        let ledger = watch_ledger(
            pool,
            Arc::clone(&writer),
            Arc::clone(&state_log),
            heard,
            database.closing(),
        );
        let store = Self {
            shared: Arc::new(Shared {
                database,
                writer,
                lookup,
                state_log,
            }),
        };
        let database = &store.shared.database;
        if store.is_read_only() {
            let shared = Arc::downgrade(&store.shared);
            let writable = Self::until_begun(shared, database.shared_health(), database.closing());
            database.start("store.ledger", async {
                writable.await;
                ledger.await;
            });
        } else {
            store.begin().await?;
            database.start("store.ledger", ledger);
        }
        Ok(store)
    }

    /// Work that must precede the first commit of this process.
    async fn begin(&self) -> Result<(), Fault> {
        self.chain().await?;
        self.claim_texts().await
    }

    /// Waits until a read-only store becomes writable, and then does that work.
    async fn until_begun(
        shared: Weak<Shared>,
        health: Arc<Health>,
        mut closing: watch::Receiver<bool>,
    ) {
        tokio::select! {
            () = health.until_writable() => {}
            _ = closing.wait_for(|closing| *closing) => return,
        }
        while let Some(shared) = shared.upgrade() {
            let begun = Self { shared }.begin().await;
            let Err(fault) = begun else { return };
            tracing::warn!(cause = %fault.chain(), "the store is not ready for changes yet");
            tokio::select! {
                () = tokio::time::sleep(POLL_EVERY) => {}
                _ = closing.wait_for(|closing| *closing) => return,
            }
        }
    }

    /// Chains rows that a program of an older format wrote without hashes.
    async fn chain(&self) -> Result<(), Fault> {
        let extent = self.audit_log().extent().await?;
        let mut n_left = extent.last.saturating_sub(extent.head.seq).unsigned_abs();
        if n_left > 0 {
            tracing::info!(events = n_left, "chaining the audit log");
        }
        while n_left > 0 {
            let command = StateCommand::Chain {
                rows_max: CHAINED_AT_ONCE,
            };
            let left = self.write("chaining the audit log", command).await?;
            // Rows cannot be chained if rows before them were deleted. Verification reports this.
            if left >= n_left {
                break;
            }
            n_left = left;
        }
        Ok(())
    }

    /// The audit log, for reading.
    pub fn audit_log(&self) -> AuditLog {
        AuditLog {
            pool: Arc::clone(&self.shared.database.pool),
            has_tree: true,
        }
    }

    /// The document with this kind and id.
    pub async fn get(&self, kind: &str, id: &str) -> Result<Option<Document>, Fault> {
        let document = self.shared.lookup.get(id).await?;
        Ok(document.filter(|document| document.head.kind == kind))
    }

    /// The document of this kind that has this unique value.
    pub async fn find(
        &self,
        kind: &str,
        key_name: &str,
        value: &str,
    ) -> Result<Option<Document>, Fault> {
        let value = Key::spelled(value);
        let arguments = [Arg::Text(kind), Arg::Text(key_name), Arg::Text(&value)];
        let documents = self.documents(state::FIND, &arguments).await?;
        Ok(documents.into_iter().next())
    }

    /// The documents of this kind with a unique value that ends in `end`. Scans all values of this
    /// name.
    pub async fn find_ending(
        &self,
        kind: &str,
        key_name: &str,
        end: &str,
    ) -> Result<Vec<Document>, Fault> {
        let end = Key::spelled(end);
        let arguments = [Arg::Text(kind), Arg::Text(key_name), Arg::Text(&end)];
        self.documents(state::FIND_ENDING, &arguments).await
    }

    /// Documents of one kind and account, newest (largest id) first.
    pub async fn page(&self, query: &PageQuery) -> Result<Vec<Document>, Fault> {
        let arguments = [
            Arg::Text(&query.kind),
            Arg::Text(&query.account),
            Arg::Text(query.before.as_deref().unwrap_or(BEHIND_EVERY_ID)),
            Arg::Int(i64::from(query.limit)),
        ];
        match &query.refs_to {
            None => self.documents(state::PAGE, &arguments).await,
            Some(to) => {
                let [kind, account, before, limit] = arguments;
                let arguments = [kind, account, before, limit, Arg::Text(to)];
                self.documents(state::PAGE_OF_REFERRERS, &arguments).await
            }
        }
    }

    /// Every document of a kind written after a revision, in the order of writing. A document that is written
    /// meanwhile may appear again, later and with its new revision.
    pub async fn changed(&self, kind: &str, after: i64) -> Result<Vec<Document>, Fault> {
        let mut documents = Vec::new();
        let push = |document| documents.push(document);
        self.each_changed(kind, after, push).await?;
        Ok(documents)
    }

    /// Passes the documents of [`Self::changed`] to `each`. They are read in pages, so that the time limit of a read does
    /// not limit how many there are. The database reads the next page while `each` has the documents of one.
    pub async fn each_changed(
        &self,
        kind: &str,
        after: i64,
        mut each: impl FnMut(Document),
    ) -> Result<(), Fault> {
        let doing = "reading documents";
        let page = async |revision: i64, id: &str| {
            let length = Arg::Int(i64::try_from(PAGE_LENGTH).unwrap_or(i64::MAX));
            let arguments = [Arg::Text(kind), Arg::Int(revision), Arg::Text(id), length];
            let pool = self.pool();
            pool.rows(doing, state::NEXT_CHANGED, &arguments).await
        };
        let mut rows = page(after, BEHIND_EVERY_ID).await?;
        while let Some(last) = rows.last() {
            let is_full = rows.len() == PAGE_LENGTH;
            let (revision, id) = Document::sort_key(last).during(doing)?;
            let next = async {
                match is_full {
                    true => page(revision, &id).await,
                    false => Ok(Vec::new()),
                }
            };
            let pass = async {
                for some in rows.chunks(CONVERTED_TOGETHER) {
                    for row in some {
                        each(Document::read(row).during(doing)?);
                    }
                    // The read has a time limit, and its rows must be taken in time.
                    tokio::task::yield_now().await;
                }
                Ok(())
            };
            // The first one is polled first, which starts the read.
            let (next, ()) = tokio::try_join!(biased; next, pass)?;
            rows = next;
        }
        Ok(())
    }

    /// The latest revision known here, and the documents that commits after `since` touched.
    /// Instead of the documents, `None` if they must be read from the database, for example after a
    /// very large commit. If the epochs differ, all that was read up to `since` is out of date.
    pub async fn touched(&self, since: Revision) -> (Revision, Option<Vec<Touched>>) {
        let state_log = &self.shared.state_log;
        let until = state_log.history.revision();
        (until, state_log.feed.between(since, until).await)
    }

    /// The number of documents of a kind.
    pub async fn count(&self, kind: &str) -> Result<usize, Fault> {
        self.number(state::COUNT, &[Arg::Text(kind)]).await
    }

    /// The number of documents of a kind that were last written by this revision.
    pub async fn count_until(&self, kind: &str, revision: i64) -> Result<usize, Fault> {
        let arguments = [Arg::Text(kind), Arg::Int(revision)];
        self.number(state::COUNT_UNTIL, &arguments).await
    }

    /// The id of every document of a kind.
    pub async fn ids(&self, kind: &str) -> Result<Vec<String>, Fault> {
        let doing = "reading ids";
        let rows = self
            .pool()
            .rows(doing, state::IDS, &[Arg::Text(kind)])
            .await?;
        rows.iter().map(|row| row.get(0).during(doing)).collect()
    }

    /// The number of references to this id.
    pub async fn n_referring(&self, to: &str) -> Result<usize, Fault> {
        self.number(state::COUNT_REFERRERS, &[Arg::Text(to)]).await
    }

    /// A page like [`Self::page`], of the documents whose body contains this text. The database
    /// searches faster than the caller could.
    pub async fn page_containing(
        &self,
        query: &PageQuery,
        text: &str,
    ) -> Result<Vec<Document>, Fault> {
        let arguments = [
            Arg::Text(&query.kind),
            Arg::Text(&query.account),
            Arg::Text(query.before.as_deref().unwrap_or(BEHIND_EVERY_ID)),
            Arg::Int(i64::from(query.limit)),
            Arg::Text(text),
        ];
        let sql = self.shared.database.site.spell(PAGE_CONTAINING);
        self.documents(sql, &arguments).await
    }

    /// Every document of a kind, in the order of their ids.
    pub async fn all(&self, kind: &str) -> Result<Vec<Document>, Fault> {
        let mut documents = self.changed(kind, 0).await?;
        documents.sort_by(|a, b| (&a.head.id, b.head.revision).cmp(&(&b.head.id, a.head.revision)));
        documents.dedup_by(|next, first| next.head.id == first.head.id);
        Ok(documents)
    }

    /// Documents of every kind and account with ids above `id`, in the order of their ids.
    pub async fn documents_after(&self, id: &str, limit: u32) -> Result<Vec<Document>, Fault> {
        let arguments = [Arg::Text(id), Arg::Int(i64::from(limit))];
        self.documents(state::ALL_AFTER, &arguments).await
    }

    /// Commits all changes or none. Returns the new revision once it is on disk, or an error within
    /// five seconds.
    pub async fn commit(&self, changes: Changes) -> Result<Revision, CommitError> {
        match self
            .shared
            .writer
            .write("committing", StateCommand::Commit(changes))
            .await?
        {
            StateOutcome::Revision(revision) => Ok(revision),
            StateOutcome::Rows(_) => {
                Err(Fault::bare("committing: the database returned no revision").into())
            }
        }
    }

    /// The latest revision known here. Commits of this process appear immediately; those of other
    /// processes after a notification, or within a second without one.
    pub fn watch(&self) -> watch::Receiver<Revision> {
        self.shared.state_log.history.watch()
    }

    /// How often this process found that commits were lost. What was read in an earlier epoch is out of date.
    pub fn epoch(&self) -> u64 {
        self.shared.state_log.history.revision().epoch
    }

    /// The latest loss of commits that this process noticed, as after a fail-over to a standby without them.
    pub fn lost_commits(&self) -> Option<LostCommits> {
        self.shared.state_log.history.loss()
    }

    /// The latest revision committed anywhere.
    pub async fn revision(&self) -> Result<Revision, Fault> {
        let (revision, _) = self.shared.state_log.read_ledger(self.pool()).await?;
        Ok(revision)
    }

    /// At most `limit` outbox rows after `seq`, in commit order.
    pub async fn outbox_after(&self, seq: i64, limit: u32) -> Result<Vec<OutboxRow>, Fault> {
        let doing = "reading the outbox";
        let arguments = [Arg::Int(seq), Arg::Int(i64::from(limit))];
        let rows = self
            .pool()
            .rows(doing, state::OUTBOX_AFTER, &arguments)
            .await?;
        rows.iter()
            .map(|row| OutboxRow::read(row).during(doing))
            .collect()
    }

    /// A named value stored besides the documents.
    pub async fn meta_get(&self, name: &str) -> Result<Option<String>, Fault> {
        let doing = "reading a setting";
        let row = self
            .pool()
            .row(doing, meta::GET, &[Arg::Text(name)])
            .await?;
        row.map(|row| row.get(0)).transpose().during(doing)
    }

    /// Sets a named value. This is not a commit, so the revision is unchanged.
    pub async fn meta_set(&self, name: &str, value: &str) -> Result<(), Fault> {
        let command = StateCommand::Meta {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        self.write("writing a setting", command).await.map(drop)
    }

    /// A consistent online copy of the state file, with these named values in addition. SQLite only. Copy the queue
    /// before the store, so that its cursors cannot be ahead of the outbox.
    pub async fn backup(&self, to: &Path, named: &[(&str, &str)]) -> Result<(), Fault> {
        self.shared.database.backup(to, named).await
    }

    /// Checks everything: the file, references, positions. Returns the first defect.
    pub async fn check(&self) -> Result<(), Fault> {
        self.shared.database.check().await?;
        for (sql, problem) in [
            (state::BEYOND_THE_LEDGER, "rows beyond the ledger"),
            (state::DANGLING, "references to nothing"),
        ] {
            let doing = "checking the store";
            let row = self.pool().row(doing, sql, &[]).await?;
            let n: i64 = row.map_or(Ok(0), |row| row.get(0)).during(doing)?;
            if n > 0 {
                return Err(Fault::bare(format!("{doing}: {n} {problem}")));
            }
        }
        Ok(())
    }

    /// Whether the disk was full at the start and still is. The store is then read-only.
    pub fn is_read_only(&self) -> bool {
        self.shared.database.health().is_read_only()
    }

    /// Completes when the store accepts changes: immediately, unless [`Self::is_read_only`].
    pub async fn until_writable(&self) {
        self.shared.database.health().until_writable().await;
    }

    /// Whether the store can be used, for readiness checks. On PostgreSQL, writes if there was no commit for a while.
    pub async fn usable(&self) -> Result<(), Fault> {
        let database = &self.shared.database;
        match database.site {
            Site::Sqlite(_) => database.health().check_writes()?,
            Site::Postgres(_) => {
                let probe = self
                    .shared
                    .writer
                    .probe("probing the store", StateCommand::Probe);
                probe.await?;
            }
        }
        self.revision().await.map(drop)
    }

    /// When the latest revision was last read from the database. `None` with SQLite, where no other process has a
    /// newer one.
    pub fn confirmed_at(&self) -> Option<Instant> {
        match self.shared.database.site {
            Site::Sqlite(_) => None,
            Site::Postgres(_) => Some(self.shared.state_log.confirmed_at()),
        }
    }

    /// The problem of the store, in words that may be public: `read only`, `no commit for 8 s`.
    pub fn trouble(&self) -> Option<String> {
        self.shared.database.health().trouble()
    }

    /// Completes when the store cannot be trusted any more, for example after a failed sync.
    /// Commits then fail, and a server exits with 70.
    pub async fn broken(&self) -> Fault {
        self.shared.database.health().broken().await
    }

    /// The long-lived tasks of the store.
    pub fn supervisor(&self) -> &Supervisor {
        self.shared.database.supervisor()
    }

    /// The current duration of a write.
    pub fn write_delay(&self) -> Duration {
        self.shared.writer.delay()
    }

    /// Finishes accepted writes and closes all connections.
    pub async fn close(&self) {
        self.shared.database.close().await;
    }

    pub(crate) async fn documents(
        &self,
        sql: &'static str,
        arguments: &[Arg<'_>],
    ) -> Result<Vec<Document>, Fault> {
        let doing = "reading documents";
        let rows = self.pool().rows(doing, sql, arguments).await?;
        rows.iter()
            .map(|row| Document::read(row).during(doing))
            .collect()
    }

    async fn number(&self, sql: &'static str, arguments: &[Arg<'_>]) -> Result<usize, Fault> {
        let doing = "counting";
        let row = self.pool().row(doing, sql, arguments).await?;
        let n: i64 = row.map_or(Ok(0), |row| row.get(0)).during(doing)?;
        Ok(usize::try_from(n).unwrap_or(0))
    }

    /// The kept answer with this ID.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn kept_answer(&self, id: &str) -> Result<Option<KeptAnswer>, Fault> {
        let doing = "reading a kept answer";
        let row = self
            .pool()
            .row(doing, state::ANSWER, &[Arg::Text(id)])
            .await?;
        row.map(|row| answers::read(&row)).transpose().during(doing)
    }

    /// Removes what was kept up to `answers_until`, and the secrets of what was kept up to `secrets_until`. Returns
    /// how many rows it changed. Reads only if there are none.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn prune_answers(
        &self,
        answers_until: Timestamp,
        secrets_until: Timestamp,
    ) -> Result<u64, Fault> {
        let doing = "removing old kept responses";
        let due = [
            Arg::Int(answers_until.unix_nanos()),
            Arg::Int(secrets_until.unix_nanos()),
        ];
        let mut n_changed = 0;
        while self
            .pool()
            .row(doing, state::ANSWERS_DUE, &due)
            .await?
            .is_some()
        {
            let command = StateCommand::PruneAnswers {
                answers_until,
                secrets_until,
            };
            match self.write(doing, command).await? {
                0 => break,
                n => n_changed += n,
            }
        }
        Ok(n_changed)
    }

    pub(crate) async fn write(&self, doing: &str, command: StateCommand) -> Result<u64, Fault> {
        match self.shared.writer.write(doing, command).await {
            Ok(StateOutcome::Rows(n)) => Ok(n),
            Ok(StateOutcome::Revision(_)) => Err(Fault::bare(format!(
                "{doing}: the database returned no count"
            ))),
            Err(CommitError::Fault(fault)) => Err(fault),
            Err(refused) => Err(Fault::new(doing, refused)),
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.shared.database.pool
    }
}

/// Rows chained in one transaction if many are missing hashes.
const CHAINED_AT_ONCE: i64 = 512;
