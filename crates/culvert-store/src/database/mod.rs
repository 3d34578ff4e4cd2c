//! A database on either engine: migrated, with its statements, readers, tasks and health. The store and the queue have
//! one each.

pub(crate) mod dialect;
pub(crate) mod health;
pub(crate) mod migrate;
pub(crate) mod pool;
pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;
pub(crate) mod store_url;
pub(crate) mod trouble;

use std::path::Path;
use std::sync::{Arc, Mutex};

use culvert_base::{Clock, Fault, Supervisor};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::commit::writer::{WriteBackend, Writer};
use crate::database::dialect::{Access, Arg, Site, While};
use crate::database::health::Health;
use crate::database::migrate::Step;
use crate::database::pool::Pool;
use crate::database::statements::meta;
use crate::database::store_url::StoreUrl;

/// Selects one of the two databases of an installation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatabasePart {
    /// File beside the state file; `None` for the state file itself.
    pub(crate) file: Option<&'static str>,
    pub(crate) schema: &'static str,
    pub(crate) steps: &'static [Step],
    /// Number of read connections on PostgreSQL. With those of the writer, lookups and
    /// notifications, both databases together use 16.
    pub(crate) postgres_readers: usize,
}

pub(crate) const STATE: DatabasePart = DatabasePart {
    file: None,
    schema: "culvert",
    steps: migrate::STATE,
    postgres_readers: 7,
};

/// Name of the value that says where a state file's data was transferred.
pub(crate) const MOVED_TO: &str = "moved_to";

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) site: Site,
    pub(crate) pool: Arc<Pool>,
    health: Arc<Health>,
    closing: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
    supervisor: Supervisor,
    is_queue: bool,
}

impl Database {
    pub(crate) async fn open(
        url: &StoreUrl,
        part: DatabasePart,
        clock: &dyn Clock,
    ) -> Result<Self, Fault> {
        let (site, n_readers) = match url {
            StoreUrl::Sqlite(path) => {
                let path = match part.file {
                    Some(name) => path.with_file_name(name),
                    None => path.clone(),
                };
                (Site::Sqlite(sqlite::File::prepare(&path)?), SQLITE_READERS)
            }
            StoreUrl::Postgres(url) => (
                Site::Postgres(postgres::Schema::at(url, part.schema)?),
                part.postgres_readers,
            ),
        };
        let opening = &site.opening();
        let opened = match (site.connect(Access::Write).await, &site) {
            // The disk failed, and takes writes by now.
            (Err(error), Site::Sqlite(file))
                if health::is_of_disk(&error) && !file.is_unwritable() =>
            {
                site.connect(Access::Write).await
            }
            (opened, _) => opened,
        };
        let (mut connection, health) = match (opened, &site) {
            // SQLite opens such a file if its WAL and index are there, and fails with the first write.
            (Ok(connection), Site::Sqlite(file)) if file.is_unwritable() => {
                connection.close().await;
                file.set_read_only().await?;
                tracing::error!(file = %file.path.display(),
                    "the disk takes no writes: the database is read-only until it does");
                let connection = site.connect(Access::Read).await.during(opening)?;
                (connection, Health::read_only(file))
            }
            (Ok(connection), Site::Sqlite(file)) => (connection, Health::of_file(file)),
            (Ok(connection), Site::Postgres(_)) => (connection, Health::good()),
            (Err(error), Site::Sqlite(file))
                if health::is_of_disk(&error) && file.is_unwritable() =>
            {
                file.set_read_only().await?;
                tracing::error!(file = %file.path.display(), %error,
                    "the disk takes no writes: the database is read-only until it does");
                let connection = site.connect(Access::Read).await.during(opening)?;
                (connection, Health::read_only(file))
            }
            (Err(error), _) => return Err(error).during(opening),
        };
        let sound = match &site {
            Site::Sqlite(file) => sqlite::problems(&mut connection, sqlite::Check::Quick)
                .await
                .during(opening)
                .and_then(|problems| report(&file.path, &problems)),
            Site::Postgres(_) => postgres::Schema::check_durability(&mut connection).await,
        };
        connection.close().await;
        sound?;
        match health.is_read_only() {
            true => migrate::check(&site, part.steps, clock).await?,
            false => migrate::migrate(&site, part.steps, clock).await?,
        }
        Ok(Self {
            pool: Arc::new(Pool::new(site.clone(), n_readers)),
            site,
            health: Arc::new(health),
            closing: watch::Sender::new(false),
            tasks: Mutex::new(JoinSet::new()),
            supervisor: Supervisor::default(),
            is_queue: part.file.is_some(),
        })
    }

    /// Fails for a state file whose data was transferred to another database.
    pub(crate) async fn refuse_moved(&self) -> Result<(), Fault> {
        let doing = "opening the database";
        let name = [Arg::Text(MOVED_TO)];
        let Some(row) = self.pool.row(doing, meta::GET, &name).await? else {
            return Ok(());
        };
        let location: String = row.get(0).during(doing)?;
        Err(Fault::bare(format!(
            "{doing}: its data was migrated to {location}; set `database_url`, or undo the \
             migration with `culvert admin move --undo`"
        )))
    }

    /// Starts the writing task, and for a SQLite file the checkpointer.
    pub(crate) fn start_writer<B: WriteBackend>(&self, book: Arc<B>) -> Writer<B> {
        let committed = Arc::new(Notify::new());
        let (writer, task) = Writer::new(
            book,
            self.site.clone(),
            Arc::clone(&self.health),
            Arc::clone(&committed),
            self.closing(),
        );
        let guard = Guard(Arc::clone(&self.health));
        let (writing, checkpointing) = match self.is_queue {
            true => ("queue.writer", "queue.checkpoint"),
            false => ("store.writer", "store.checkpoint"),
        };
        self.start(writing, async move {
            let _guard = guard;
            task.await;
        });
        if let Site::Sqlite(file) = &self.site {
            let (file, health) = (file.clone(), Arc::clone(&self.health));
            let mut closing = self.closing();
            self.start(checkpointing, async move {
                sqlite::wait_for_room(&file, &health, &mut closing).await;
                sqlite::checkpoint(file, committed, health, closing).await;
            });
        }
        writer
    }

    /// Starts a task that ends when `closing` is signalled.
    pub(crate) fn start(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let closing = self.closing();
        let is_stopping = move || *closing.borrow();
        let task = self.supervisor.supervise(name, is_stopping, task);
        self.tasks
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .spawn(task);
    }

    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// The tasks of the database.
    pub(crate) fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    pub(crate) fn shared_health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    pub(crate) async fn backup(&self, to: &Path, named: &[(&str, &str)]) -> Result<(), Fault> {
        match &self.site {
            Site::Sqlite(file) => file.backup(to, named).await,
            Site::Postgres(_) => Err(Fault::bare(
                "backing up: use PostgreSQL tools such as `pg_dump` for a PostgreSQL database",
            )),
        }
    }

    /// Runs the engine's own check of the whole database.
    pub(crate) async fn check(&self) -> Result<(), Fault> {
        let Site::Sqlite(file) = &self.site else {
            return Ok(());
        };
        let doing = "checking the database";
        let mut connection = self.site.connect(Access::Read).await.during(doing)?;
        let problems = sqlite::problems(&mut connection, sqlite::Check::Whole).await;
        connection.close().await;
        report(&file.path, &problems.during(doing)?)
    }

    pub(crate) async fn close(&self) {
        self.closing.send_replace(true);
        let mut tasks = std::mem::take(
            &mut *self
                .tasks
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner()),
        );
        while tasks.join_next().await.is_some() {}
        self.pool.close().await;
    }
}

fn report(path: &Path, problems: &[String]) -> Result<(), Fault> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(Fault::bare(format!(
        "checking the database {}: {}",
        path.display(),
        problems.join("; ")
    )))
}

/// Marks the database as broken if the writing task panics, because nothing could be written any
/// more.
struct Guard(Arc<Health>);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up("the writing task panicked".to_owned());
        }
    }
}

const SQLITE_READERS: usize = 4;
