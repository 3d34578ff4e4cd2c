//! SQLite: one file in WAL mode, with its own checkpointer and online backups.
//!
//! Commits are synced before they return (`synchronous=FULL`). A separate connection copies the WAL
//! back into the file, so commits usually do not wait for it.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::Fault;
use culvert_base::sync::lock;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteLockingMode, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection as _};
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock, watch};
use tokio::time::Instant;

use crate::database::dialect::{Access, Arg, Connection, While};
use crate::database::health::Health;
use crate::database::statements::{meta, transaction};

/// A database file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// Whether the file is only read, because the disk takes no WAL and no index.
    is_read_only: Arc<AtomicBool>,
    /// A copy elsewhere that is read instead: the WAL has commits that the file lacks.
    copy: Arc<Mutex<Option<ReadableCopy>>>,
    /// Held shared by connections that read the file without WAL, because it must not change
    /// meanwhile.
    read_as_is: Arc<RwLock<()>>,
}

impl File {
    /// Creates the file (0600) and its directory (0700) if they are missing, and removes the
    /// permissions of other users from an existing file.
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
            tracing::warn!(folder = %folder.display(), "other users can access the data directory; set its mode to 0700");
        }
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
        {
            Ok(file) => file.sync_all().and_then(|()| sync_folder(folder)),
            // A disk that takes no writes may say so although the file is there, which can be read.
            Err(_) if path.exists() => Ok(()),
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
        Ok(Self::at(path))
    }

    /// An existing file.
    pub(crate) fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            is_read_only: Arc::default(),
            copy: Arc::default(),
            read_as_is: Arc::default(),
        }
    }

    /// Makes the file read-only: from now on it is read without a WAL or its index, for a disk that
    /// takes none. If a WAL has commits that the file lacks, a copy of both is read, in the
    /// directory for temporary files.
    pub(crate) async fn set_read_only(&self) -> Result<(), Fault> {
        if self.log_bytes() > 0 {
            let copy = ReadableCopy::of(&self.path).await.map_err(|error| {
                let log = beside(&self.path, "-wal");
                let doing = format!(
                    "opening the database: the disk takes no writes, and the changes in `{}` \
                     cannot be read without; free 1 MiB or make the file system writable, and restart",
                    log.display()
                );
                Fault::new(doing, error)
            })?;
            *lock(&self.copy) = Some(copy);
        }
        self.is_read_only.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps the file read-only while the guard is held, so a connection may read it without a WAL.
    /// `None` if the file is writable.
    pub(crate) async fn read_as_is(&self) -> Option<OwnedRwLockReadGuard<()>> {
        if !self.is_read_only() {
            return None;
        }
        let held = Arc::clone(&self.read_as_is).read_owned().await;
        self.is_read_only().then_some(held)
    }

    /// Opens the file for writing, if the disk has room for the WAL and its index. Waits for
    /// connections that read the file without them.
    pub(crate) async fn leave_read_only(&self) -> Result<(), sqlx::Error> {
        let _alone = self.read_as_is.write().await;
        let connection = connect(&self.options()).await?;
        let mut connection = Connection::Sqlite(connection);
        // Creates the WAL and its index.
        connection.begin().await?;
        connection.run(transaction::ROLLBACK, &[]).await?;
        connection.close().await;
        self.is_read_only.store(false, Ordering::Relaxed);
        *lock(&self.copy) = None;
        Ok(())
    }

    /// Writes and syncs as much as a WAL index and a page beside the file.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let probe = beside(&self.path, ".probe");
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&probe)
            .and_then(|mut file| {
                file.write_all(&[0; PROBE_BYTES])?;
                file.sync_all()
            });
        // The probe file is not needed any more.
        drop(std::fs::remove_file(&probe));
        written
    }

    /// Whether the disk takes no writes: it is full, or its file system is read-only or fails.
    pub(crate) fn is_unwritable(&self) -> bool {
        /// `EIO`
        const IO_ERROR: i32 = 5;
        self.probe().is_err_and(|error| {
            is_without_room(&error)
                || error.kind() == io::ErrorKind::ReadOnlyFilesystem
                || error.raw_os_error() == Some(IO_ERROR)
        })
    }

    /// Whether the disk, or the quota on it, has no room for a WAL index and a page.
    pub(crate) fn has_no_room(&self) -> bool {
        self.probe().is_err_and(|error| is_without_room(&error))
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    pub(crate) async fn connect(&self, access: Access) -> Result<SqliteConnection, sqlx::Error> {
        if self.is_read_only() {
            if access == Access::Write {
                return Err(io::Error::from(io::ErrorKind::StorageFull).into());
            }
            let copied = lock(&self.copy).as_ref().map(ReadableCopy::path);
            let options = SqliteConnectOptions::new()
                .filename(copied.as_deref().unwrap_or(&self.path))
                .read_only(true)
                .immutable(true)
                .row_buffer_size(ROW_BUFFER)
                .pragma("trusted_schema", "OFF")
                .pragma("temp_store", "MEMORY")
                .disable_statement_logging();
            return connect(&options).await;
        }
        let mut options = self.options();
        if access == Access::Read {
            options = options.pragma("query_only", "ON");
        }
        connect(&options).await
    }

    /// A connection in exclusive mode. Fails as busy if another connection of any process is open.
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

    /// Makes a consistent copy of the file's current state, with these named values in addition. After a failure, no copy
    /// exists.
    pub(crate) async fn backup(&self, to: &Path, named: &[(&str, &str)]) -> Result<(), Fault> {
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
        if !named.is_empty() {
            name_values(&unfinished, named).await.during(&doing)?;
        }
        file.sync_all().map_err(fault)?;
        std::fs::rename(&unfinished, to).map_err(fault)?;
        sync_folder(to.parent().unwrap_or(Path::new("."))).map_err(fault)
    }

    /// Makes a copy before migrating, named after the next format. The newest two copies are kept.
    pub(crate) async fn backup_before(&self, format: i64) -> Result<(), Fault> {
        self.backup(&beside(&self.path, &format!(".pre-{format}")), &[])
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

/// Sets named values in a copy, which has no WAL then either.
async fn name_values(copy: &Path, named: &[(&str, &str)]) -> Result<(), sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(copy)
        .journal_mode(SqliteJournalMode::Memory)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging();
    let mut connection = Connection::Sqlite(connect(&options).await?);
    let mut outcome = Ok(());
    for (name, value) in named {
        let arguments = [Arg::Text(name), Arg::Text(value)];
        outcome = connection.run(meta::SET, &arguments).await.map(drop);
        if outcome.is_err() {
            break;
        }
    }
    connection.close().await;
    outcome
}

async fn connect(options: &SqliteConnectOptions) -> Result<SqliteConnection, sqlx::Error> {
    let until = Instant::now() + BUSY_TIMEOUT;
    loop {
        // When two processes open a new file at the same time, both switch to WAL mode. In that
        // case SQLite reports the file as locked immediately, without waiting.
        match SqliteConnection::connect_with(options).await {
            Err(error) if is_busy(&error) && Instant::now() < until => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            connected => return connected,
        }
    }
}

/// Waits until the disk of a read-only file takes writes, and opens the file for writing. Ends early
/// when cancelled.
pub(crate) async fn wait_for_room(
    file: &File,
    health: &Health,
    closing: &mut watch::Receiver<bool>,
) {
    let mut is_reported = false;
    while file.is_read_only() {
        tokio::select! {
            () = tokio::time::sleep(ROOM_LOOK_EVERY) => {}
            _ = closing.wait_for(|closing| *closing) => return,
        }
        let looked = file.clone();
        // A disk that hangs must not block a thread that other tasks need.
        let is_full = tokio::task::spawn_blocking(move || looked.probe().is_err());
        if is_full.await.unwrap_or(true) {
            continue;
        }
        match file.leave_read_only().await {
            Ok(()) => {
                tracing::info!(file = %file.path.display(), "the disk takes writes again; the database is writable");
            }
            Err(error) if !std::mem::replace(&mut is_reported, true) => {
                tracing::warn!(%error, file = %file.path.display(), "the database stays read-only");
            }
            Err(_) => {}
        }
    }
    health.set_writable();
}

/// Copies the WAL back shortly after commits, until cancelled.
pub(crate) async fn checkpoint(
    file: File,
    committed: Arc<Notify>,
    health: Arc<Health>,
    mut closing: watch::Receiver<bool>,
) {
    let mut connection = None;
    let mut truncate_after = Instant::now();
    let mut is_long = false;
    loop {
        // A WAL that is too long is truncated even if there are no further commits.
        let again = async {
            match is_long {
                true => tokio::time::sleep(TRUNCATE_EVERY).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = committed.notified() => {}
            () = again => {}
            _ = closing.wait_for(|closing| *closing) => break,
        }
        tokio::select! {
            () = tokio::time::sleep(CHECKPOINT_AFTER) => {}
            _ = closing.wait_for(|closing| *closing) => break,
        }
        is_long = true;
        let done = checkpoint_once(&file, &mut connection, &mut truncate_after).await;
        if done.is_ok() {
            is_long = file.log_bytes() > WAL_BYTES_MAX;
        }
        if let Err(error) = done {
            health.judge(&error, "checkpointing the write-ahead log");
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
    truncate_after: &mut Instant,
) -> Result<(), sqlx::Error> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            let opened = connection.insert(Connection::Sqlite(file.connect(Access::Write).await?));
            opened.rows(TRUNCATE_AT_MOST, &[]).await?;
            opened
        }
    };
    connection
        .rows("PRAGMA wal_checkpoint(PASSIVE)", &[])
        .await?;
    if file.log_bytes() > WAL_BYTES_MAX && Instant::now() >= *truncate_after {
        // Under steady load the WAL is never fully copied back: it would grow without limit, and a
        // grown file keeps its size. So writers are made to wait for the short rest of the copy,
        // and the WAL restarts empty. A long reader (such as a backup) would make writers wait for
        // it too, so this is tried rarely and briefly.
        connection
            .rows("PRAGMA wal_checkpoint(TRUNCATE)", &[])
            .await?;
        *truncate_after = Instant::now() + TRUNCATE_EVERY;
    }
    Ok(())
}

impl File {
    /// Size of the WAL in bytes.
    fn log_bytes(&self) -> u64 {
        std::fs::metadata(beside(&self.path, "-wal")).map_or(0, |log| log.len())
    }
}

/// Defects that SQLite finds in the file; empty if none.
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
        problems.push("a reference has no target".to_owned());
    }
    Ok(problems)
}

/// How thorough the check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Quick,
    Whole,
}

/// Whether another connection holds the file (`SQLITE_BUSY` or one of its extended codes).
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: i32 = 5;
    code_of(error).is_some_and(|number| number & 0xFF == BUSY)
}

/// SQLite's extended code of an error.
pub(crate) fn code_of(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error().and_then(|error| error.code());
    code.and_then(|code| code.parse().ok())
}

pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn is_without_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// A copy of a database file and its WAL, which is removed when dropped.
#[derive(Debug)]
struct ReadableCopy(tempfile::TempDir);

impl ReadableCopy {
    async fn of(path: &Path) -> io::Result<Self> {
        let log = beside(path, "-wal");
        let bytes = std::fs::metadata(path)?.len() + std::fs::metadata(&log)?.len();
        if bytes > COPY_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Only this user can read it.
        let copy = Self(private_folder()?);
        std::fs::copy(path, copy.path())?;
        std::fs::copy(&log, beside(&copy.path(), "-wal"))?;
        // Copies the WAL back, and removes it with the last connection.
        let file = File::at(&copy.path());
        let connection = connect(&file.options()).await.map_err(io::Error::other)?;
        let mut connection = Connection::Sqlite(connection);
        let copied = connection
            .rows("PRAGMA wal_checkpoint(TRUNCATE)", &[])
            .await;
        connection.close().await;
        copied.map_err(io::Error::other)?;
        Ok(copy)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("copy.db")
    }
}

/// A new folder in the directory for temporary files, which only this user can read. Dropping it removes it.
pub(crate) fn private_folder() -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder == Path::new("") {
        Path::new(".")
    } else {
        folder
    };
    std::fs::File::open(folder)?.sync_all()
}

/// How long a connection waits for a lock of another process. Shorter than the time limit of a
/// commit, so that the caller learns that nothing was written.
const BUSY_TIMEOUT: Duration = Duration::from_secs(4);
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Rows that the driver's thread may read ahead: at least a page of documents, so that it never waits for the reader.
const ROW_BUFFER: usize = 1024;
/// Commits within this time are copied back together.
const CHECKPOINT_AFTER: Duration = Duration::from_millis(100);
/// How long the checkpointer may make writers wait, in milliseconds.
const TRUNCATE_AT_MOST: &str = "PRAGMA busy_timeout = 50";
const TRUNCATE_EVERY: Duration = Duration::from_secs(2);
/// How often to check a disk that was full at the start.
const ROOM_LOOK_EVERY: Duration = Duration::from_secs(2);
/// A WAL longer than this is truncated after it is copied back.
pub(crate) const WAL_BYTES_MAX: u64 = 16 << 20;
/// Size of a WAL index and a page.
const PROBE_BYTES: usize = 36 << 10;
const BACKUPS_KEPT: i64 = 2;
/// The most bytes that are copied to read a database on a disk that takes no writes.
const COPY_BYTES_MAX: u64 = 1 << 30;
