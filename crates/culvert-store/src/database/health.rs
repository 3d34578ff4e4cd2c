//! Whether a database can be trusted.
//!
//! After a failed sync the state of the disk is unknown, and a second sync may succeed without writing
//! anything. So the first failure is final: no further commit is accepted, and the process exits.
//! The next start recovers from the WAL.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_base::Fault;
use sqlx::error::DatabaseError;
use sqlx::sqlite::SqliteError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::database::sqlite::File;
use crate::database::trouble::Trouble;

/// The state of a database. A broken one stays broken; a full disk may recover.
#[derive(Debug)]
pub(crate) struct Health {
    broken: watch::Sender<Option<String>>,
    is_full: AtomicBool,
    is_read_only: watch::Sender<bool>,
    /// Tells a full quota from other errors of the disk.
    file: Option<File>,
    /// What the latest write failed with.
    trouble: Mutex<Option<Trouble>>,
    /// When the latest transaction was on disk.
    committed_at: Mutex<Instant>,
}

impl Health {
    pub(crate) fn good() -> Self {
        Self {
            broken: watch::Sender::new(None),
            is_full: AtomicBool::new(false),
            is_read_only: watch::Sender::new(false),
            file: None,
            trouble: Mutex::default(),
            committed_at: Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn of_file(file: &File) -> Self {
        Self {
            file: Some(file.clone()),
            ..Self::good()
        }
    }

    /// The state of a database that was opened on a disk that takes no writes.
    pub(crate) fn read_only(file: &File) -> Self {
        let health = Self::of_file(file);
        health.is_read_only.send_replace(true);
        health
    }

    pub(crate) fn is_read_only(&self) -> bool {
        *self.is_read_only.borrow()
    }

    /// Notes that the disk takes writes again.
    pub(crate) fn set_writable(&self) {
        self.is_read_only.send_replace(false);
    }

    /// Completes once writes are accepted, possibly immediately.
    pub(crate) async fn until_writable(&self) {
        let mut is_read_only = self.is_read_only.subscribe();
        // The sender lives as long as `self`.
        drop(is_read_only.wait_for(|is_read_only| !is_read_only).await);
    }

    /// Marks the database as broken if the error is fatal.
    pub(crate) fn judge(&self, error: &sqlx::Error, doing: &str) {
        if self.is_without_room(error) {
            self.is_full.store(true, Ordering::Relaxed);
        } else if is_fatal(error) {
            self.give_up(format!("{doing}: {error}"));
        } else if let Some(trouble) = Trouble::of(error) {
            *lock(&self.trouble) = Some(trouble);
        }
    }

    /// SQLite rolls a transaction back whose write failed. A write beyond a quota is an I/O error for it, and needs no
    /// other treatment than a full disk. A failed sync is another error.
    fn is_without_room(&self, error: &sqlx::Error) -> bool {
        let is_write = extended_code(error).is_some_and(|code| WRITES.contains(&code));
        is_full(error) || is_write && self.file.as_ref().is_some_and(File::has_no_room)
    }

    /// Notes that a transaction is on disk.
    pub(crate) fn committed(&self) {
        self.is_full.store(false, Ordering::Relaxed);
        *lock(&self.trouble) = None;
        *lock(&self.committed_at) = Instant::now();
    }

    /// How long ago the latest transaction was on disk.
    pub(crate) fn idle_for(&self) -> Duration {
        lock(&self.committed_at).elapsed()
    }

    /// The problem of the database, in words that may be public.
    pub(crate) fn trouble(&self) -> Option<String> {
        if self.check_room().is_err() {
            return Some("read-only: the disk took no writes at startup".to_owned());
        }
        if self.is_full.load(Ordering::Relaxed) {
            return Some("the disk is full".to_owned());
        }
        match (*lock(&self.trouble))? {
            Trouble::Stalled => Some(format!("no commit for {} s", self.idle_for().as_secs())),
            trouble => Some(trouble.to_string()),
        }
    }

    /// Notes that a write had no result in time.
    pub(crate) fn stalled(&self) {
        lock(&self.trouble).get_or_insert(Trouble::Stalled);
    }

    /// Whether writes are expected to succeed.
    pub(crate) fn check_writes(&self) -> Result<(), Fault> {
        self.check()?;
        self.check_room()?;
        match self.is_full.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Fault::bare("writing to the database: the disk is full")),
        }
    }

    /// Whether the disk had room at the start or since.
    pub(crate) fn check_room(&self) -> Result<(), Fault> {
        match self.is_read_only() {
            false => Ok(()),
            true => Err(Fault::bare(
                "writing to the database: the disk took no writes at startup, so the database is \
                 read-only until it does",
            )),
        }
    }

    pub(crate) fn give_up(&self, why: String) {
        self.broken.send_if_modified(|broken| {
            if broken.is_some() {
                return false;
            }
            tracing::error!(why, "the database is no longer reliable; culvert must stop");
            *broken = Some(why);
            true
        });
    }

    pub(crate) fn check(&self) -> Result<(), Fault> {
        match &*self.broken.borrow() {
            None => Ok(()),
            Some(why) => Err(broken(why)),
        }
    }

    /// Completes once the database is broken.
    pub(crate) async fn broken(&self) -> Fault {
        let mut receiver = self.broken.subscribe();
        loop {
            // The guard must be dropped before the wait.
            if let Some(why) = receiver.borrow_and_update().as_deref() {
                return broken(why);
            }
            if receiver.changed().await.is_err() {
                // Unreachable: the sender lives as long as `self`.
                return std::future::pending().await;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(why: &str) -> Fault {
    Fault::new("using a database that failed earlier", why.to_owned())
}

/// Whether it is an I/O error, corruption, or not a database. PostgreSQL handles errors of its
/// disk itself.
fn is_fatal(error: &sqlx::Error) -> bool {
    // SQLITE_IOERR, SQLITE_CORRUPT, SQLITE_NOTADB.
    sqlite_code(error).is_some_and(|code| [10, 11, 26].contains(&code))
}

/// `SQLITE_FULL`, or PostgreSQL's `disk_full`.
fn is_full(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    sqlite_code(error) == Some(13) || code.as_deref() == Some("53100")
}

/// `SQLITE_IOERR_WRITE`, `_TRUNCATE`, `_SHMOPEN`, `_SHMSIZE` and `_SHMMAP`.
const WRITES: [i32; 5] = [778, 1546, 4618, 4874, 5386];

/// Whether a file could perhaps not be opened because the disk takes no WAL and no index.
pub(crate) fn is_of_disk(error: &sqlx::Error) -> bool {
    // SQLITE_READONLY, SQLITE_IOERR, SQLITE_CANTOPEN.
    is_full(error) || sqlite_code(error).is_some_and(|code| [8, 10, 14].contains(&code))
}

/// The primary code, which is the low byte.
fn sqlite_code(error: &sqlx::Error) -> Option<i32> {
    extended_code(error).map(|code| code & 0xff)
}

fn extended_code(error: &sqlx::Error) -> Option<i32> {
    error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<SqliteError>())
        .and_then(DatabaseError::code)
        .and_then(|code| code.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn broken_once_is_broken_for_good_and_tells_the_first_reason() {
        let health = Health::good();
        health.judge(&sqlx::Error::RowNotFound, "reading");
        assert!(health.check().is_ok());
        health.give_up("sync failed".to_owned());
        health.give_up("later".to_owned());
        assert!(health.check().is_err());
        assert!(health.broken().await.chain().contains("sync failed"));
    }
}
