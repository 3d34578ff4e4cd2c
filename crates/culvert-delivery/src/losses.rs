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
//!
//! A power cut takes the file's last number too. So the queue says as well in which start of the machine
//! this node runs, until it stops cleanly, and how many records at most came between two counts lately. A
//! start that finds another start of the machine there, or no file, knows that there may be records that no
//! count has, and how many they were if traffic was no denser than in the minutes before. It cannot know
//! more: neither when the cut was, nor what happened after the last commit.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::Fault;
use culvert_store::{CursorMove, Queue, QueueError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The two counts in the queue, as last written.
#[derive(Debug)]
pub(crate) struct Counts {
    offered: Count,
    done: Count,
    /// In which start of the machine this node runs; 0 when it has stopped cleanly.
    running: Count,
    boot: i64,
    /// The most records between two counts lately, as a power of two so that it seldom changes.
    width: Count,
    widths: Widths,
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

/// What the life before lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Records that are known to have been offered.
    pub(crate) counted: u64,
    /// Records besides that may have been, after the last count that can be believed.
    pub(crate) maybe: u64,
}

#[derive(Debug)]
struct Count {
    name: String,
    at: i64,
}

/// How many records came between two counts.
#[derive(Debug)]
struct Widths {
    offered: u64,
    /// The most in this period and in the one before.
    most: [u64; 2],
    began: Instant,
}

/// What is longer ago says nothing of the traffic of now.
const WIDTH_PERIOD: Duration = Duration::from_secs(60);
/// Intervals between two counts that a cut may take: the one that begins, and the one whose count was on its
/// way to the disk.
pub(crate) const UNCOUNTED_INTERVALS: u32 = 2;
/// Where the start of the machine has no name.
const UNKNOWN_BOOT: i64 = 1;

impl Losses {
    /// Reads the counts of `node`, and how many records its life before lost. `file` is made if it is
    /// not there; counting goes on without it if it cannot be used.
    /// `boot` names this start of the machine.
    pub(crate) async fn read(
        queue: &Queue,
        node: &str,
        file: Option<&Path>,
        boot: Option<&str>,
    ) -> Result<(Self, Lost), Fault> {
        let count = async |what: &str| -> Result<Count, Fault> {
            let name = format!("{what}:{node}");
            let at = queue.cursor(&name).await?;
            Ok(Count { name, at })
        };
        let (offered, done) = (count("offered").await?, count("done").await?);
        let (running, width) = (count("running").await?, count("width").await?);
        let boot = boot.map_or(UNKNOWN_BOOT, boot_number);
        let opened = file.and_then(|path| {
            let opened = open(path);
            opened
                .inspect_err(|error| tracing::warn!(%error, path = %path.display(), "cannot open the record count file"))
                .ok()
        });
        let noted = opened.as_ref().map_or(0, |(_, noted)| *noted);
        // What a file says of another database is nothing of this one's.
        let is_known = offered.at.max(done.at) > 0;
        let last = if is_known { offered.at.max(noted) } else { 0 };
        // Of the file of another start of the machine, or of none, the last number may be missing.
        let has_file = opened.as_ref().is_some_and(|(_, noted)| *noted > 0);
        let is_cut = running.at != 0 && (running.at != boot || !has_file);
        let intervals = i64::from(UNCOUNTED_INTERVALS);
        let maybe = match is_cut {
            true => width.at.saturating_mul(intervals) - (last - offered.at.max(done.at)).max(0),
            false => 0,
        };
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        let lost = Lost {
            counted: unsigned(last.saturating_sub(done.at)),
            maybe: unsigned(maybe),
        };
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
            running,
            boot,
            widths: Widths::after(unsigned(width.at)),
            width,
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
        let width = self.widths.count(offered, Instant::now());
        let (offered, done) = (sum(self.base, offered), sum(self.base, done));
        tokio::join!(
            self.offered.move_to(queue, offered),
            self.done.move_to(queue, done),
            self.running.move_to(queue, self.boot),
            self.width.move_to(queue, width),
        );
    }

    /// When to write again though nothing was offered: what was long ago says nothing of now.
    pub(crate) fn refresh_at(&self) -> Option<Instant> {
        (self.width.at > 0).then_some(self.widths.began + WIDTH_PERIOD)
    }

    /// Writes that this node stopped with nothing left to count.
    pub(crate) async fn end(&mut self, queue: &Queue) {
        self.running.move_to(queue, 0).await;
    }
}

impl Widths {
    /// What was seen in the life before holds for a period.
    fn after(before: u64) -> Self {
        Self {
            offered: 0,
            most: [0, before],
            began: Instant::now(),
        }
    }

    /// So many records were offered until now. The most between two counts, as a power of two or 0.
    fn count(&mut self, offered: u64, now: Instant) -> i64 {
        if now.duration_since(self.began) >= WIDTH_PERIOD {
            self.most = [0, self.most[0]];
            self.began = now;
        }
        let came = offered.saturating_sub(self.offered);
        self.offered = offered;
        self.most[0] = self.most[0].max(came);
        match self.most[0].max(self.most[1]) {
            0 => 0,
            most => i64::try_from(most.next_power_of_two()).unwrap_or(i64::MAX),
        }
    }
}

/// A name of a start of the machine as a cursor can have it.
fn boot_number(name: &str) -> i64 {
    // FNV-1a: nobody chooses these names.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i64::try_from(hash >> 1)
        .unwrap_or(UNKNOWN_BOOT)
        .max(UNKNOWN_BOOT + 1)
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
                tracing::debug!(cause = %fault.chain(), "writing the record count failed");
            }
        }
    }
}
