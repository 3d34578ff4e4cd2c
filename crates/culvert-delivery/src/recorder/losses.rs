//! Counts the records that a crash lost: those that were offered but never reached the queue. Events that are only
//! retained, for no subscription, are not counted.
//!
//! Each node keeps two cursors in the queue: the number of records offered, and the number of
//! records that are finished (written to the queue, delivered, or selected by no subscription).
//! Each append updates both; without appends they are updated 200 ms after the last change. They
//! are equal after a clean stop; any difference at the start is the loss of the previous run. To
//! include records that were offered after the last commit, the offered count is also kept in a
//! file that is written every few milliseconds and never synced. The file survives a crash of the
//! process but not of the machine. The difference may include records that a filter would have
//! rejected or that were delivered since the last count.
//!
//! The result can be wrong by the records that were offered between two writes of the file, and by
//! those that a receiver accepted but that were not yet counted. The first error could be avoided
//! with a memory-mapped file, which needs `unsafe`. The second cannot be avoided.
//!
//! A power failure can lose the file's last number too. So until a clean stop, the queue also
//! contains the boot ID of the machine, and the highest recent number of records between two
//! counts. If the next start finds another boot ID or no file, there may be uncounted records.
//! Their number is estimated from that rate. Neither the time of the failure nor later records can
//! be known.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::Fault;
use culvert_store::{CursorMove, Queue, QueueError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The cursors in the queue, as last written.
#[derive(Debug)]
pub(crate) struct Counts {
    offered: Count,
    done: Count,
    /// A number made from the boot ID of the machine; 0 after a clean stop.
    running: Count,
    boot: i64,
    /// The highest recent number of records between two counts, rounded up to a power of two so
    /// that it seldom changes.
    width: Count,
    widths: Widths,
    /// The offered count at the start of this run.
    base: i64,
}

/// The file with the offered count: 8 bytes, little-endian, and their complement, so that garbage is no count.
#[derive(Debug)]
pub(crate) struct Note {
    file: Arc<File>,
    /// The number last written to the file.
    noted: i64,
    base: i64,
    /// The last write.
    writing: Option<JoinHandle<std::io::Result<()>>>,
}

/// The counts at the start of a run.
#[derive(Debug)]
pub(crate) struct Losses {
    pub(crate) counts: Counts,
    pub(crate) note: Option<Note>,
}

/// The records that the previous run lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Records that are known to have been offered.
    pub(crate) counted: u64,
    /// Estimated further records, offered after the last reliable count.
    pub(crate) maybe: u64,
}

#[derive(Debug)]
struct Count {
    name: String,
    at: i64,
}

/// Numbers of records between two counts.
#[derive(Debug)]
struct Widths {
    offered: u64,
    /// The highest number in this period and in the previous one.
    most: [u64; 2],
    began: Instant,
}

/// Traffic of earlier periods is not used to estimate the current rate.
const WIDTH_PERIOD: Duration = Duration::from_secs(60);
/// Intervals between two counts that a power failure may lose: the current one, and the one whose
/// count was being written.
pub(crate) const UNCOUNTED_INTERVALS: u32 = 2;
/// A number without a complement may not be larger: a hundred thousand records a second for years.
const OFFERED_MAX: i64 = 1 << 44;
/// The value of `running` if the boot ID is unknown.
const UNKNOWN_BOOT: i64 = 1;

impl Losses {
    /// Reads the counts of `node` and computes the losses of its previous run. `file` is created if
    /// it is missing; without a usable file, counting continues in the queue alone. `boot` is the
    /// boot ID of the machine.
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
        // A file that was written beside another database is ignored.
        let is_known = offered.at.max(done.at) > 0;
        let last = if is_known { offered.at.max(noted) } else { 0 };
        // If the file is missing or older than this boot, its last number may be lost.
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
    /// Writes the offered count to the file, unless the previous write is still running. Does not
    /// wait.
    pub(crate) fn write(&mut self, offered: u64) {
        let offered = sum(self.base, offered);
        let is_busy = |writing: &JoinHandle<_>| !writing.is_finished();
        if self.noted == offered || self.writing.as_ref().is_some_and(is_busy) {
            return;
        }
        self.noted = offered;
        let file = self.file.clone();
        // A disk that hangs must not block a thread that other tasks need.
        let write = move || file.write_all_at(&encoded(offered), 0);
        self.writing = Some(tokio::task::spawn_blocking(write));
    }
}

fn sum(base: i64, count: u64) -> i64 {
    base.saturating_add(i64::try_from(count).unwrap_or(i64::MAX))
}

impl Counts {
    /// Writes the counts of this run, in the same commit as other pending writes of the queue.
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

    /// When to write again without new records, because the estimated rate expires after a period.
    pub(crate) fn refresh_at(&self) -> Option<Instant> {
        (self.width.at > 0).then_some(self.widths.began + WIDTH_PERIOD)
    }

    /// Records a clean stop.
    pub(crate) async fn end(&mut self, queue: &Queue) {
        self.running.move_to(queue, 0).await;
    }
}

impl Widths {
    /// The rate of the previous run is used for one period.
    fn after(before: u64) -> Self {
        Self {
            offered: 0,
            most: [0, before],
            began: Instant::now(),
        }
    }

    /// Notes the total of records offered so far. Returns the highest number between two counts,
    /// rounded up to a power of two, or 0.
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

/// A boot ID as a number, which a cursor can store.
fn boot_number(name: &str) -> i64 {
    // FNV-1a is sufficient: no attacker chooses these IDs.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i64::try_from(hash >> 1)
        .unwrap_or(UNKNOWN_BOOT)
        .max(UNKNOWN_BOOT + 1)
}

fn encoded(offered: i64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&offered.to_le_bytes());
    bytes[8..].copy_from_slice(&(!offered).to_le_bytes());
    bytes
}

/// The number in a file; `None` if it has none. Former versions wrote it without a complement.
fn decoded(bytes: &[u8]) -> Option<i64> {
    let (number, complement) = bytes.split_first_chunk()?;
    let number = i64::from_le_bytes(*number);
    let is_sound = match complement.first_chunk() {
        Some(complement) => i64::from_le_bytes(*complement) == !number,
        None => complement.is_empty() && number <= OFFERED_MAX,
    };
    (is_sound && number >= 0).then_some(number)
}

/// Opens the file and reads its number; 0 if it has none.
fn open(path: &Path) -> std::io::Result<(File, i64)> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let mut bytes = [0; 16];
    let length = file.read_at(&mut bytes, 0)?;
    let noted = decoded(&bytes[..length]);
    if noted.is_none() && length > 0 {
        tracing::warn!(path = %path.display(), "the record count file is damaged and will be overwritten");
    }
    Ok((file, noted.unwrap_or(0)))
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
            // A conflict must not stop the writes that are counted: read the cursor and continue
            // from there.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_no_count() {
        for number in [0, 1, 217_000_000_000_000_000, i64::MAX] {
            assert_eq!(decoded(&encoded(number)), Some(number));
        }
        assert_eq!(decoded(&7i64.to_le_bytes()), Some(7), "of a former version");
        let mut torn = encoded(1 << 40);
        torn[3] ^= 1;
        let garbage = 217_000_000_000_000_000i64.to_le_bytes();
        for bytes in [
            &torn[..],
            &garbage,
            &encoded(-1),
            &[1, 2, 3],
            &[0xFF; 16],
            &[1; 16],
            &[],
        ] {
            assert_eq!(decoded(bytes), None, "{bytes:?}");
        }
    }
}
