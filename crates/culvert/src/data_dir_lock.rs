//! The lock of a data directory: one process writes to it at a time.
//!
//! The kernel holds the lock for the open file and releases it when the process ends, however it ends, so
//! a killed server leaves no stale lock behind. The file `lock` names the holder for error messages only.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Bytes of the lock file that are read for an error message.
const HOLDER_BYTES_MAX: u64 = 256;

/// The lock. Dropping it releases the data directory.
#[derive(Debug)]
pub struct DataDirLock {
    _file: File,
}

impl DataDirLock {
    /// Locks the data directory `folder` for this process, which other processes will see as `node`.
    ///
    /// # Errors
    /// Another process holds the lock, or the file system cannot lock.
    pub fn acquire(folder: &Path, node: &str) -> Result<Self> {
        let path = path_in(folder);
        let doing = || format!("locking the data directory with `{}`", path.display());
        // The holder's name stays until the lock is ours.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(doing)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "the data directory `{}` is in use by {}; stop that process first, or name another \
                 directory with `--data-dir`",
                folder.display(),
                holder(&mut file)
            ),
            Err(TryLockError::Error(error)) => return Err(error).with_context(doing),
        }
        file.set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| writeln!(file, "{} {node}", std::process::id()))
            .with_context(doing)?;
        Ok(Self { _file: file })
    }
}

fn path_in(folder: &Path) -> PathBuf {
    folder.join("lock")
}

/// The process that holds the lock, in words.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // Without a readable name the refusal stands all the same.
    drop(file.take(HOLDER_BYTES_MAX).read_to_string(&mut text));
    match text.trim().split_once(' ') {
        Some((process, node)) => format!("process {process} (node `{node}`)"),
        None => "another process".to_owned(),
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
    fn a_lock_file_without_a_holder_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        for left in [&b""[..], b"4711 gone\n", b"\xff\xfe", &[b'9'; 4096]] {
            std::fs::write(path_in(folder.path()), left).unwrap();
            drop(DataDirLock::acquire(folder.path(), "one").unwrap());
        }
    }
}
