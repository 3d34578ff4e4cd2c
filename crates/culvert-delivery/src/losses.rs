//! What a crash took: how many records had been offered and never reached the queue.
//!
//! Two counts of this node are kept in the queue and moved beside every append, or 200 ms after the last
//! time where nothing is appended: records offered, and records that are done with (written to the
//! queue, delivered, or wanted by nobody). They meet at every clean stop; where they do not, the
//! difference is what the life before lost. So that records offered since the last commit are counted
//! too, the first of the two is also kept in a file that is written every few milliseconds and never
//! synced: it outlives the process, if not the machine. The difference may count records that a filter
//! would have kept back or that were delivered since.
//!
//! It is exact but for what happened between two writes of the file, and between a receiver's answer and
//! the count of it. The first could go with a count in memory that outlives the process, which takes a
//! mapped file and with it `unsafe`; the second could not, whoever counts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use culvert_base::Fault;
use culvert_store::{CursorMove, Queue, QueueError};
use tokio::task::JoinHandle;

/// The two counts in the queue, as last written.
#[derive(Debug)]
pub(crate) struct Counts {
    offered: Count,
    done: Count,
    /// Where this life's own counting began.
    base: i64,
}

/// The first of them in the file: 8 bytes, the lowest first.
#[derive(Debug)]
pub(crate) struct Note {
    file: Arc<File>,
    /// What it has.
    noted: i64,
    base: i64,
    /// The last writing of it.
    writing: Option<JoinHandle<std::io::Result<()>>>,
}

/// Where counting stands at the start.
#[derive(Debug)]
pub(crate) struct Losses {
    pub(crate) counts: Counts,
    pub(crate) note: Option<Note>,
}

#[derive(Debug)]
struct Count {
    name: String,
    at: i64,
}

impl Losses {
    /// Reads the counts of `node`, and how many records its life before lost. `file` is made if it is
    /// not there; counting goes on without it if it cannot be used.
    pub(crate) async fn read(
        queue: &Queue,
        node: &str,
        file: Option<&Path>,
    ) -> Result<(Self, u64), Fault> {
        let count = async |what: &str| -> Result<Count, Fault> {
            let name = format!("{what}:{node}");
            let at = queue.cursor(&name).await?;
            Ok(Count { name, at })
        };
        let (offered, done) = (count("offered").await?, count("done").await?);
        let opened = file.and_then(|path| {
            let opened = open(path);
            opened
                .inspect_err(|error| tracing::warn!(%error, path = %path.display(), "records are counted without their file"))
                .ok()
        });
        let noted = opened.as_ref().map_or(0, |(_, noted)| *noted);
        // What a file says of another database is nothing of this one's.
        let is_known = offered.at.max(done.at) > 0;
        let last = if is_known { offered.at.max(noted) } else { 0 };
        let lost = u64::try_from(last.saturating_sub(done.at)).unwrap_or(0);
        let base = last.max(done.at);
        let note = opened.map(|(file, noted)| Note {
            file: Arc::new(file),
            noted,
            base,
            writing: None,
        });
        let counts = Counts {
            base,
            offered,
            done,
        };
        Ok((Self { counts, note }, lost))
    }
}

impl Note {
    /// Notes in the file how many records were offered, unless it is still busy with the number before:
    /// nobody waits for it.
    pub(crate) fn write(&mut self, offered: u64) {
        let offered = sum(self.base, offered);
        let is_busy = |writing: &JoinHandle<_>| !writing.is_finished();
        if self.noted == offered || self.writing.as_ref().is_some_and(is_busy) {
            return;
        }
        self.noted = offered;
        let file = self.file.clone();
        // A disk that hangs must not hold a thread that others need.
        let write = move || file.write_all_at(&offered.to_le_bytes(), 0);
        self.writing = Some(tokio::task::spawn_blocking(write));
    }
}

fn sum(base: i64, count: u64) -> i64 {
    base.saturating_add(i64::try_from(count).unwrap_or(i64::MAX))
}

impl Counts {
    /// Writes this life's counts, together with whatever else the queue commits at the moment.
    pub(crate) async fn write(&mut self, queue: &Queue, offered: u64, done: u64) {
        let (offered, done) = (sum(self.base, offered), sum(self.base, done));
        tokio::join!(
            self.offered.move_to(queue, offered),
            self.done.move_to(queue, done)
        );
    }
}

/// The file and what it says: 0 where it says nothing.
fn open(path: &Path) -> std::io::Result<(File, i64)> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let mut noted = [0; 8];
    let noted = match file.read_exact_at(&mut noted, 0) {
        Ok(()) => i64::from_le_bytes(noted),
        Err(_) => 0,
    };
    Ok((file, noted))
}

impl Count {
    async fn move_to(&mut self, queue: &Queue, to: i64) {
        if self.at == to {
            return;
        }
        let cursor = CursorMove {
            name: self.name.clone(),
            from: self.at,
            to,
        };
        match queue.append(Vec::new(), Some(cursor)).await {
            Ok(()) => self.at = to,
            // Counting must never stand in the way of what it counts: look where it stands and go
            // on from there.
            Err(QueueError::Lost) => {
                if let Ok(at) = queue.cursor(&self.name).await {
                    self.at = at;
                }
            }
            Err(QueueError::Fault(fault)) => {
                tracing::debug!(cause = %fault.chain(), "a count of records was not written");
            }
        }
    }
}
