//! The lock of a data directory: one process writes to it at a time.
//!
//! The lock is on the directory itself, which cannot be replaced while its files are in use: a copy or a new
//! directory of the same name has other files. The kernel releases the lock when the process ends, in whatever way,
//! so a killed server leaves no stale lock. The file `lock` names the holder for error messages. It is locked too,
//! for older versions and for file systems that cannot lock a directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Maximum number of bytes that are read of the lock file for an error message.
const HOLDER_BYTES_MAX: u64 = 256;

/// The lock. Dropping it releases the data directory.
#[derive(Debug)]
pub struct DataDirLock {
    _directory: File,
    _file: Option<File>,
}

impl DataDirLock {
    /// Locks the data directory `folder` for this process, which other processes will see as `node`.
    ///
    /// # Errors
    /// Another process holds the lock, or the file system can lock neither the directory nor its file.
    pub fn acquire(folder: &Path, node: &str) -> Result<Self> {
        let path = path_in(folder);
        let doing = || format!("locking the data directory `{}`", folder.display());
        let directory = File::open(folder).with_context(doing)?;
        let has_directory = match directory.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => bail!(in_use(folder, File::open(&path).ok())),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(%error, folder = %folder.display(),
                    "the file system cannot lock a directory; do not remove the file `lock` while the server runs");
                false
            }
        };
        let file = match Self::lock_file(&path, node) {
            Ok(Ok(file)) => Some(file),
            Ok(Err(held)) => bail!(in_use(folder, Some(held))),
            // The directory is locked, and reading does not need disk space.
            Err(error) if has_directory && is_unwritable(&error) => None,
            Err(error) => {
                let doing = || format!("locking the data directory with `{}`", path.display());
                return Err(error).with_context(doing);
            }
        };
        Ok(Self {
            _directory: directory,
            _file: file,
        })
    }

    /// The lock file, either locked with the name of this process, or the file that another process has locked.
    fn lock_file(path: &Path, node: &str) -> io::Result<std::result::Result<File, File>> {
        // The name of the previous holder stays until this process has the lock.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Err(file)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        match writeln!(file, "{} {node}", std::process::id()) {
            Err(error) if !is_unwritable(&error) => Err(error),
            // If the disk is too full for the name, the file is still locked.
            _ => Ok(Ok(file)),
        }
    }
}

/// Whether the disk takes no writes: it is full, or its file system is read-only or fails.
fn is_unwritable(error: &io::Error) -> bool {
    /// `EIO`, for which the standard library has no kind.
    const IO_ERROR: i32 = 5;
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem
    ) || error.raw_os_error() == Some(IO_ERROR)
}

/// An error for a locked `folder`, with the holder that `lock` names.
fn in_use(folder: &Path, lock: Option<File>) -> String {
    let holder = lock.map_or_else(|| UNNAMED.to_owned(), |mut file| holder(&mut file));
    format!(
        "the data directory `{}` is in use by {holder}; stop that process first, or name another directory with \
         `--data-dir`",
        folder.display()
    )
}

/// The holder if the lock file is missing or names no process.
const UNNAMED: &str = "another process";

fn path_in(folder: &Path) -> PathBuf {
    folder.join("lock")
}

/// A description of the process that holds the lock.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // Without a readable name, the error names no process.
    drop(file.take(HOLDER_BYTES_MAX).read_to_string(&mut text));
    match text.trim().split_once(' ') {
        Some((process, node)) => format!("process {process} (node `{node}`)"),
        None => UNNAMED.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_with_the_process_id_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataDirLock::acquire(folder.path(), "one").unwrap();
        let refused = DataDirLock::acquire(folder.path(), "two").unwrap_err();
        let expected = format!("in use by process {} (node `one`)", std::process::id());
        assert!(refused.to_string().contains(&expected), "{refused}");
        drop(first);
        drop(DataDirLock::acquire(folder.path(), "two").unwrap());
    }

    #[test]
    fn a_second_holder_is_refused_even_if_the_lock_file_changed() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let path = path_in(&data);
        let other = folder.path().join("other");
        let moved = folder.path().join("moved");
        let first = DataDirLock::acquire(&data, "one").unwrap();
        let refuse = |folder: &Path, case: &str| {
            let refused = DataDirLock::acquire(folder, "two");
            let refused = refused.expect_err(case).to_string();
            assert!(refused.contains("is in use by"), "{case}: {refused}");
        };
        std::fs::remove_file(&path).unwrap();
        refuse(&data, "removed");
        refuse(&data, "still removed");
        std::fs::write(&other, "4711 other").unwrap();
        std::fs::rename(&other, &path).unwrap();
        refuse(&data, "replaced");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&data, &link).unwrap();
        refuse(&link, "by another path");
        std::fs::rename(&data, &moved).unwrap();
        refuse(&moved, "moved");
        drop(first);
        drop(DataDirLock::acquire(&moved, "two").unwrap());
    }

    #[test]
    fn a_server_of_an_older_version_has_locked_the_file_alone() {
        let folder = tempfile::tempdir().unwrap();
        let older = File::create(path_in(folder.path())).unwrap();
        older.lock().unwrap();
        (&older).write_all(b"4711 older\n").unwrap();
        let refused = DataDirLock::acquire(folder.path(), "two").unwrap_err();
        let expected = "in use by process 4711 (node `older`)";
        assert!(refused.to_string().contains(expected), "{refused}");
    }

    #[test]
    fn a_lock_file_without_a_holder_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        for left in [&b""[..], b"4711 gone\n", b"\xff\xfe", &[b'9'; 4096]] {
            std::fs::write(path_in(folder.path()), left).unwrap();
            drop(DataDirLock::acquire(folder.path(), "one").unwrap());
        }
    }
}
