//! Keeps the copy of the edge's configuration that a start without the database serves from.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_base::{BoxFuture, Clock, Fault};
use culvert_command::with_causes;
use culvert_control::{CopyEntry, CopySource};
use culvert_installation::config::Role;
use culvert_installation::edge_copy::{CopyFacts, EdgeCopy, NewCopy, WholeCopy};
use culvert_store::Store;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::server::foundation::Foundation;
use crate::server::part::{self, Name, Start};

/// Shortest time between two writes.
const WRITE_EVERY: Duration = Duration::from_secs(10);
/// A write takes at most this share of the time.
const SHARE: u32 = 20;
/// Longest time until a copy is written again although nothing has changed, so that its age says how long the database
/// was not read. A tenth of the greatest age is enough.
const RENEW_EVERY_MAX: Duration = Duration::from_secs(600);
/// How long a stop waits for a last write.
const LAST_WITHIN: Duration = Duration::from_secs(5);
/// How often changes that were made during a write are added, at most. The next write has later ones.
const ROUNDS_MAX: usize = 8;
/// A copy is written whole again once the changes behind it are as long as its first entries, and longer than this.
const APPENDED_BYTES_LEAST: u64 = 1 << 20;

#[derive(Clone)]
pub(super) struct Part {
    store: Store,
    copy: Arc<EdgeCopy>,
    clock: Arc<dyn Clock>,
    renew_every: Duration,
}

impl Part {
    /// The part, if this process has an edge whose database may be away. Without it, an old copy is removed.
    pub(super) fn new(foundation: &Foundation) -> Option<Self> {
        let opened = &foundation.opened;
        let copy = EdgeCopy::of(&opened.settings, &opened.master);
        if !opened.has(Role::Edge) || !opened.is_shared() {
            return None;
        }
        let Some(age_max) = opened.settings.edge.copy_age_max() else {
            match std::fs::remove_file(copy.path()) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(%error, "cannot remove the copy of the configuration");
                }
                _ => {}
            }
            return None;
        };
        Some(Self {
            store: opened.store.clone(),
            copy: Arc::new(copy),
            clock: opened.clock.clone(),
            renew_every: (age_max / 10).min(RENEW_EVERY_MAX),
        })
    }

    /// Writes copies until `stop`, and a last one then.
    async fn keep(self, stop: CancellationToken) {
        let mut revision = self.store.watch();
        let mut keeper = Keeper::new(self.clone());
        let mut is_failing = false;
        loop {
            revision.mark_unchanged();
            let began = Instant::now();
            let (kept, written) = keeper.write_on_thread().await;
            keeper = kept;
            match written {
                Ok(()) => is_failing = false,
                // Other lines say that the database is away.
                Err(_) if self.store.revision().await.is_err() => {}
                Err(error) if !std::mem::replace(&mut is_failing, true) => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "the copy of the configuration cannot be written; retrying"
                    );
                }
                Err(_) => {}
            }
            let pause = WRITE_EVERY.max(SHARE * began.elapsed());
            let next = async {
                tokio::time::sleep(pause).await;
                let renew = self.renew_every.saturating_sub(pause);
                // The sender lives in the store, which this has.
                drop(tokio::time::timeout(renew, revision.changed()).await);
            };
            tokio::select! {
                () = next => {}
                () = stop.cancelled() => break,
            }
        }
        if revision.has_changed().unwrap_or(false) {
            // Without it, the copy that is there is a few seconds older.
            drop(tokio::time::timeout(LAST_WITHIN, keeper.write_on_thread()).await);
        }
    }
}

/// What the last write left for the next one.
struct Keeper {
    part: Part,
    source: CopySource,
    /// The facts of the latest copy.
    last: Option<CopyFacts>,
    /// Bytes of the latest copy that was read as a whole.
    whole_bytes: u64,
}

impl Keeper {
    fn new(part: Part) -> Self {
        Self {
            source: CopySource::new(part.store.clone()),
            part,
            last: None,
            whole_bytes: 0,
        }
    }

    /// Writes on a thread where a disk that hangs blocks no other task.
    async fn write_on_thread(self) -> (Self, Result<()>) {
        let part = self.part.clone();
        let runtime = Handle::current();
        let write = move || {
            let mut keeper = self;
            let written = runtime.block_on(keeper.write());
            if written.is_err() {
                // What was read and not written must be read again.
                keeper = Self::new(keeper.part);
            }
            (keeper, written)
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(done) => done,
            Err(error) => (Self::new(part), Err(error.into())),
        }
    }

    /// Writes a copy, if something has changed or the latest one is due to be renewed.
    async fn write(&mut self) -> Result<()> {
        let Part {
            store, copy, clock, ..
        } = self.part.clone();
        let read_at = clock.now();
        // Fails while the database is away: then the copy says how old it is.
        store.revision().await.map_err(with_causes)?;
        let changes = self.source.changes().await.map_err(with_causes)?;
        let is_fresh = self
            .last
            .as_ref()
            // One of the future, as after a clock that was set back, is renewed.
            .is_some_and(|last| {
                last.read_at <= read_at.unix_millis() && last.age(read_at) < self.part.renew_every
            });
        if is_fresh && changes.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        store.make_database_id().await.map_err(with_causes)?;
        let installation = store.database_id().await.map_err(with_causes)?;
        let installation = installation.context("the database has no ID")?;
        let mut new = copy.begin()?;
        match (changes, self.appendable(&copy)) {
            (Some(changes), Some(latest)) => {
                new.add_all_of(latest)?;
                add(&mut new, changes)?;
            }
            _ => {
                self.read_all(&mut new).await?;
                self.whole_bytes = new.bytes();
            }
        }
        for _ in 0..ROUNDS_MAX {
            match self.source.changes().await.map_err(with_causes)? {
                Some(changes) if changes.is_empty() => break,
                Some(changes) => add(&mut new, changes)?,
                None => bail!("the documents that were written meanwhile are not known"),
            }
        }
        let revision = self.source.complete_to().context("nothing was read")?;
        let facts = CopyFacts::new(installation, revision, read_at);
        new.finish(facts.clone())?;
        self.last = Some(facts);
        Ok(())
    }

    async fn read_all(&mut self, new: &mut NewCopy<'_>) -> Result<()> {
        let mut failed = None;
        let add = |entry| {
            new.add(entry).map_err(|error| {
                failed = Some(error);
                Fault::bare("writing the copy of the configuration")
            })
        };
        let read = self.source.all(add).await;
        match failed {
            Some(error) => Err(error),
            None => read.map_err(with_causes),
        }
    }

    /// The latest copy, if changes can be appended to it.
    fn appendable(&self, copy: &EdgeCopy) -> Option<WholeCopy> {
        let last = self.last.as_ref()?;
        let latest = copy.open().ok().flatten()?;
        let is_short = latest.bytes() < (2 * self.whole_bytes).max(APPENDED_BYTES_LEAST);
        (latest.facts() == last && is_short).then_some(latest)
    }
}

fn add(new: &mut NewCopy<'_>, entries: Vec<CopyEntry>) -> Result<()> {
    entries.into_iter().try_for_each(|entry| new.add(entry))
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::EdgeCopy
    }

    fn depends_on(&self) -> &'static [Name] {
        &[Name::Control]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let part = self.clone();
            start.tasks.start("edge_copy", |stop| part.keep(stop));
            Ok(())
        })
    }
}
