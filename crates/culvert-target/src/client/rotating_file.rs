//! Append-only files of lines, rotated by size and age.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use culvert_base::Timestamp;

use crate::failure::{Failure, FailureClass};

#[allow(
    missing_docs,
    reason = "the text would be in the API's reference, where the field has one"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "FileTargetFsync")]
pub enum Fsync {
    /// Let the operating system sync; a power failure may lose delivered events.
    None,
    /// Sync to disk after every batch.
    Batch,
}

/// Why a path cannot be used.
#[derive(Debug)]
pub enum Escape {
    /// A component of it is a symbolic link.
    Link,
    /// It cannot be read.
    Io(io::Error),
}

/// Checks every path component from `root` down to the file: none may be a symbolic link.
/// Components that do not exist are allowed.
pub fn stays_inside(root: &Path, relative: &Path) -> Result<(), Escape> {
    let mut path = root.to_owned();
    for part in relative.components() {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => return Err(Escape::Link),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Escape::Io(error)),
        }
    }
    Ok(())
}

/// The open files, by path. Destinations with the same path share one file and its lock.
#[derive(Debug, Default)]
pub struct FileRoots(Mutex<HashMap<PathBuf, Weak<Slot>>>);

impl FileRoots {
    /// The file at a path below `root`.
    pub fn slot(&self, root: PathBuf, relative: PathBuf) -> Arc<Slot> {
        let path = root.join(&relative);
        let mut slots = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        slots.retain(|_, slot| slot.strong_count() > 0);
        if let Some(slot) = slots.get(&path).and_then(Weak::upgrade) {
            return slot;
        }
        let slot = Arc::new(Slot {
            root,
            relative,
            open: Mutex::new(None),
        });
        slots.insert(path, Arc::downgrade(&slot));
        slot
    }
}

/// A file of lines.
#[derive(Debug)]
pub struct Slot {
    root: PathBuf,
    relative: PathBuf,
    open: Mutex<Option<OpenFile>>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    length: u64,
    began_at: Timestamp,
    inode: (u64, u64),
    /// A sync failed, so the content on disk is unknown and a new file is started.
    suspect: bool,
}

/// When a file is rotated.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// Above this size in bytes.
    pub max_bytes: u64,
    /// At this age.
    pub max_age: Duration,
    /// Rotated files that are kept.
    pub max_files: u32,
}

impl Slot {
    /// Appends whole lines.
    ///
    /// # Errors
    /// The lines are not in the file.
    pub fn append(
        &self,
        lines: &[u8],
        rotation: Rotation,
        fsync: Fsync,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let mut open = self
            .open
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut file = match open.take() {
            Some(file) if self.is_still_there(&file) => file,
            _ => self.reopen(now)?,
        };
        let adding = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        let too_long = file.length > 0 && file.length.saturating_add(adding) > rotation.max_bytes;
        let too_old = file.length > 0 && now.since(file.began_at) >= rotation.max_age;
        if file.suspect || too_long || too_old {
            self.rotate(rotation.max_files, now).map_err(blame)?;
            file = self.reopen(now)?;
        }
        let before = file.length;
        if let Err(error) = file.file.write_all(lines) {
            // Remove the partial write, because the whole batch is sent again.
            if file.file.set_len(before).is_ok() {
                *open = Some(file);
            }
            return Err(blame(error));
        }
        file.length = before.saturating_add(adding);
        if fsync == Fsync::Batch
            && let Err(error) = file.file.sync_data()
        {
            file.suspect = true;
            *open = Some(file);
            return Err(blame(error));
        }
        *open = Some(file);
        Ok(())
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.root.join(&self.relative)
    }

    /// Whether the path still refers to the open file. False after another program renamed or
    /// removed it.
    fn is_still_there(&self, file: &OpenFile) -> bool {
        fs::symlink_metadata(self.path())
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == file.inode)
    }

    fn reopen(&self, now: Timestamp) -> Result<OpenFile, Failure> {
        let path = self.path();
        self.guard()?;
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(blame)?;
        }
        let existed = path.exists();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .map_err(blame)?;
        let metadata = file.metadata().map_err(blame)?;
        // Checked again after the open, in case a symbolic link was created in between.
        self.guard()?;
        let there = fs::symlink_metadata(&path).map_err(blame)?;
        let inode = (metadata.dev(), metadata.ino());
        if !metadata.is_file() || (there.dev(), there.ino()) != inode {
            return Err(escaped());
        }
        let length = cut_torn_line(&mut file, metadata.len()).map_err(blame)?;
        if !existed {
            sync_folder(&path).map_err(blame)?;
        }
        let began_at = if length == 0 {
            now
        } else {
            // Not all file systems record the creation time.
            metadata
                .created()
                .ok()
                .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok())
                .and_then(|since| i64::try_from(since.as_nanos()).ok())
                .map_or(now, |nanos| Timestamp::from_unix_nanos(nanos).min(now))
        };
        Ok(OpenFile {
            file,
            length,
            began_at,
            inode,
            suspect: false,
        })
    }

    fn guard(&self) -> Result<(), Failure> {
        stays_inside(&self.root, &self.relative).map_err(|error| match error {
            Escape::Link => escaped(),
            Escape::Io(error) => blame(error),
        })
    }

    /// Renames the file to `<path>.<UTC time>` and removes the oldest such files beyond
    /// `files_max`.
    fn rotate(&self, files_max: u32, now: Timestamp) -> io::Result<()> {
        let path = self.path();
        // 2026-11-20T19:53:18.528374173Z without punctuation, so it sorts by time and is a valid
        // file name everywhere.
        let stamp: String = now
            .to_nanos_text()
            .chars()
            .filter(|c| !matches!(c, '-' | ':' | '.'))
            .collect();
        let mut aside = path.clone().into_os_string();
        aside.push(".");
        aside.push(stamp);
        fs::rename(&path, &aside)?;
        sync_folder(&path)?;
        let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
        else {
            return Ok(());
        };
        let mut rotated = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let stamped = entry
                .file_name()
                .to_str()
                .and_then(|other| other.strip_prefix(name)?.strip_prefix('.'))
                .is_some_and(is_stamp);
            if stamped {
                rotated.push(entry.path());
            }
        }
        rotated.sort();
        let keep = usize::try_from(files_max).unwrap_or(usize::MAX);
        let n_old = rotated.len().saturating_sub(keep);
        for old in &rotated[..n_old] {
            fs::remove_file(old)?;
        }
        Ok(())
    }
}

/// Whether a text is the time in the name of a rotated file, such as `20261120T195318528374173Z`.
pub fn is_stamp(text: &str) -> bool {
    text.len() == 25
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 => byte == b'T',
            24 => byte == b'Z',
            _ => byte.is_ascii_digit(),
        })
}

/// Removes an unfinished last line, left by a crash during a write. Its batch was not acknowledged.
fn cut_torn_line(file: &mut File, length: u64) -> io::Result<u64> {
    const STEP: u64 = 64 << 10;
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(STEP);
        file.seek(SeekFrom::Start(start))?;
        let mut tail = vec![0; usize::try_from(end - start).unwrap_or(0)];
        file.read_exact(&mut tail)?;
        if let Some(last) = tail.iter().rposition(|byte| *byte == b'\n') {
            let keep = start + u64::try_from(last).unwrap_or(0) + 1;
            if keep < length {
                file.set_len(keep)?;
            }
            return Ok(keep);
        }
        end = start;
    }
    if length > 0 {
        file.set_len(0)?;
    }
    Ok(0)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn escaped() -> Failure {
    Failure::new(
        FailureClass::Config,
        "path",
        "the path contains a symbolic link or is not a regular file",
    )
}

/// Classifies an I/O error. Errors that need action have their own class.
pub fn blame(error: io::Error) -> Failure {
    use io::ErrorKind::{
        IsADirectory, NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem,
        StorageFull,
    };
    let (class, code) = match error.kind() {
        StorageFull | QuotaExceeded => (FailureClass::Retryable, "ENOSPC"),
        PermissionDenied => (FailureClass::Config, "EACCES"),
        NotADirectory | IsADirectory => (FailureClass::Config, "path"),
        ReadOnlyFilesystem => (FailureClass::Config, "EROFS"),
        _ => (FailureClass::Retryable, "io"),
    };
    Failure::new(class, code, error.kind().to_string())
}
