//! SQLite: one file in WAL mode, a checkpointer of its own, online backups.
//!
//! Commits are synced before they return (`synchronous=FULL`). The WAL is copied back by a separate
//! connection, so that no commit waits for it in ordinary times.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use culvert_base::Fault;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteLockingMode, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection as _};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::dialect::{Access, Arg, Connection, While};
use crate::health::Health;

/// A database file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
}

impl File {
    /// Makes the file (0600) and its folder (0700) unless they exist, and takes a file's rights from
    /// everyone else.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Fault> {
        let doing = || format!("preparing the database file {}", path.display());
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        if !folder.exists() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(|error| Fault::new(doing(), error))?;
        }
        let open_to_others = |path: &Path| -> io::Result<bool> {
            Ok(std::fs::metadata(path)?.permissions().mode() & 0o077 != 0)
        };
        if open_to_others(folder).map_err(|error| Fault::new(doing(), error))? {
            tracing::warn!(folder = %folder.display(), "other users may enter the data folder; mode 0700 keeps them out");
        }
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
        {
            Ok(file) => file.sync_all().and_then(|()| sync_folder(folder)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|error| Fault::new(doing(), error))?;
        for part in ["", "-wal", "-shm"] {
            let part = beside(path, part);
            if part.exists() && open_to_others(&part).map_err(|error| Fault::new(doing(), error))? {
                std::fs::set_permissions(&part, Permissions::from_mode(0o600))
                    .map_err(|error| Fault::new(doing(), error))?;
            }
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }

    pub(crate) async fn connect(&self, access: Access) -> Result<SqliteConnection, sqlx::Error> {
        let mut options = self.options();
        if access == Access::Read {
            options = options.pragma("query_only", "ON");
        }
        connect(&options).await
    }

    /// A connection beside which there is no other, of any process; busy where there is one.
    pub(crate) async fn connect_alone(&self) -> Result<SqliteConnection, sqlx::Error> {
        connect(&self.options().locking_mode(SqliteLockingMode::Exclusive)).await
    }

    fn options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT)
            .row_buffer_size(ROW_BUFFER)
            .pragma("trusted_schema", "OFF")
            .pragma("cell_size_check", "ON")
            .pragma("wal_autocheckpoint", "0")
            .pragma("temp_store", "MEMORY")
            .disable_statement_logging()
    }

    /// A consistent copy of the file as it is now, complete or absent.
    pub(crate) async fn backup(&self, to: &Path) -> Result<(), Fault> {
        let doing = format!("backing up {} to {}", self.path.display(), to.display());
        let fault = |error: io::Error| Fault::new(doing.clone(), error);
        let unfinished = beside(to, ".unfinished");
        match std::fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fault(error)),
            _ => {}
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .map_err(fault)?;
        let name = unfinished
            .to_str()
            .ok_or_else(|| Fault::bare(format!("{doing}: the path is not UTF-8")))?;
        let mut connection = Connection::Sqlite(self.connect(Access::Write).await.during(&doing)?);
        let copied = connection.run("VACUUM INTO $1", &[Arg::Text(name)]).await;
        connection.close().await;
        copied.during(&doing)?;
        file.sync_all().map_err(fault)?;
        std::fs::rename(&unfinished, to).map_err(fault)?;
        sync_folder(to.parent().unwrap_or(Path::new("."))).map_err(fault)
    }

    /// A copy named after the format that comes next, before migrating to it. The newest two are
    /// kept.
    pub(crate) async fn backup_before(&self, format: i64) -> Result<(), Fault> {
        self.backup(&beside(&self.path, &format!(".pre-{format}")))
            .await?;
        let old = beside(&self.path, &format!(".pre-{}", format - BACKUPS_KEPT));
        match std::fs::remove_file(&old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Fault::new("removing an old backup", error))
            }
            _ => Ok(()),
        }
    }
}

async fn connect(options: &SqliteConnectOptions) -> Result<SqliteConnection, sqlx::Error> {
    let until = Instant::now() + BUSY_TIMEOUT;
    loop {
        // Of two that open a new file at once, one may not wait for the other while both turn the
        // log on: SQLite tells it at once that the file is locked.
        match SqliteConnection::connect_with(options).await {
            Err(error) if is_busy(&error) && Instant::now() < until => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            connected => return connected,
        }
    }
}

/// Copies the WAL back shortly after commits, until told to stop.
pub(crate) async fn checkpoint(
    file: File,
    committed: Arc<Notify>,
    health: Arc<Health>,
    mut closing: watch::Receiver<bool>,
) {
    let mut connection = None;
    let mut restart_after = Instant::now();
    loop {
        tokio::select! {
            () = committed.notified() => {}
            _ = closing.wait_for(|closing| *closing) => break,
        }
        tokio::select! {
            () = tokio::time::sleep(CHECKPOINT_AFTER) => {}
            _ = closing.wait_for(|closing| *closing) => break,
        }
        if let Err(error) = checkpoint_once(&file, &mut connection, &mut restart_after).await {
            health.judge(&error, "copying the write-ahead log into the database");
            tracing::warn!(%error, file = %file.path.display(), "a checkpoint failed");
            connection = None;
        }
    }
    if let Some(connection) = connection {
        connection.close().await;
    }
}

async fn checkpoint_once(
    file: &File,
    connection: &mut Option<Connection>,
    restart_after: &mut Instant,
) -> Result<(), sqlx::Error> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            let opened = connection.insert(Connection::Sqlite(file.connect(Access::Write).await?));
            opened.rows(RESTART_AT_MOST, &[]).await?;
            opened
        }
    };
    let row = connection
        .row("PRAGMA wal_checkpoint(PASSIVE)", &[])
        .await?;
    let frames: i64 = row.map_or(Ok(0), |row| row.get(1))?;
    if frames > WAL_FRAMES_MAX && Instant::now() >= *restart_after {
        // Under steady load the log never comes to rest and would grow for ever: make writers wait
        // for the little that is left, so that it starts over. Where a long reader (a backup) is in
        // the way, writers must not wait for that too, so it is tried rarely and briefly.
        connection
            .rows("PRAGMA wal_checkpoint(RESTART)", &[])
            .await?;
        *restart_after = Instant::now() + RESTART_EVERY;
    }
    Ok(())
}

/// What SQLite finds wrong with the file; empty if nothing.
pub(crate) async fn problems(
    connection: &mut Connection,
    check: Check,
) -> Result<Vec<String>, sqlx::Error> {
    let mut problems = Vec::new();
    let pragma = match check {
        Check::Quick => "PRAGMA quick_check(10)",
        Check::Whole => "PRAGMA integrity_check(10)",
    };
    for row in connection.rows(pragma, &[]).await? {
        let text: String = row.get(0)?;
        if text != "ok" {
            problems.push(text);
        }
    }
    if check == Check::Whole
        && !connection
            .rows("PRAGMA foreign_key_check", &[])
            .await?
            .is_empty()
    {
        problems.push("a reference points at nothing".to_owned());
    }
    Ok(problems)
}

/// How thoroughly to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Quick,
    Whole,
}

/// Whether another connection holds the file (`SQLITE_BUSY`, of whatever extended code).
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: i32 = 5;
    let code = error.as_database_error().and_then(|error| error.code());
    let number = code.and_then(|code| code.parse::<i32>().ok());
    number.is_some_and(|number| number & 0xFF == BUSY)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder == Path::new("") {
        Path::new(".")
    } else {
        folder
    };
    std::fs::File::open(folder)?.sync_all()
}

/// How long a connection waits for a lock another process holds. Shorter than a commit may take, so
/// that its caller hears that nothing was written.
const BUSY_TIMEOUT: Duration = Duration::from_secs(4);
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Rows the driver's thread may be ahead of us.
const ROW_BUFFER: usize = 128;
/// Commits within this time are copied back together.
const CHECKPOINT_AFTER: Duration = Duration::from_millis(100);
/// How long, in milliseconds, the checkpointer keeps writers waiting for others.
const RESTART_AT_MOST: &str = "PRAGMA busy_timeout = 50";
const RESTART_EVERY: Duration = Duration::from_secs(2);
/// 64 MiB in pages of 4 KiB.
const WAL_FRAMES_MAX: i64 = 16_384;
const BACKUPS_KEPT: i64 = 2;
