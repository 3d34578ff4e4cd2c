//! A file that lists the messages that this node holds. After a restart, the node returns them
//! immediately, so other nodes need not wait for their deadlines.
//!
//! The file has one slot for each destination, with the last message and the time until which this
//! node surely held it. It is never synced, so it survives a crash of the process but not of the
//! machine. In that case the deadlines pass.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use culvert_base::Timestamp;

/// Bytes of a slot. A reply subject that does not fit is not recorded.
const SLOT: usize = 512;
/// Slots that are read after a start.
const SLOTS_MAX: usize = 65_536;

/// The file of held messages.
#[derive(Debug, Default)]
pub(super) struct HeldFile {
    file: Option<Arc<File>>,
    n_slots: AtomicU64,
}

/// A destination's position in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(u64);

impl HeldFile {
    /// Opens and empties the file. Returns the reply subjects of the messages that the previous run
    /// still held at `now`.
    pub(super) fn open(path: &Path, now: Timestamp) -> std::io::Result<(Self, Vec<String>)> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(path)?;
        let mut slot = [0; SLOT];
        let mut replies = Vec::new();
        for number in 0..SLOTS_MAX {
            let at = u64::try_from(number * SLOT).unwrap_or(u64::MAX);
            if file.read_exact_at(&mut slot, at).is_err() {
                break;
            }
            replies.extend(read(&slot, now));
        }
        file.set_len(0)?;
        let opened = Self {
            file: Some(Arc::new(file)),
            n_slots: AtomicU64::new(0),
        };
        Ok((opened, replies))
    }

    /// Allocates a slot.
    pub(super) fn slot(&self) -> Slot {
        Slot(self.n_slots.fetch_add(1, Ordering::Relaxed))
    }

    /// Records that this node holds a message until `until`. If the write fails, the message is not
    /// returned after a restart, and its deadline passes.
    pub(super) async fn note(&self, slot: Slot, reply: &str, until: Timestamp) {
        let mut text = format!("{} {reply}", until.unix_nanos()).into_bytes();
        let Some(file) = self.file.clone().filter(|_| text.len() <= SLOT) else {
            return;
        };
        text.resize(SLOT, 0);
        // A disk that hangs must not block a thread that other tasks need.
        let write = move || file.write_all_at(&text, slot.0.saturating_mul(SLOT as u64));
        if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
            tracing::debug!(%error, "recording the event log position of this node failed");
        }
    }
}

fn read(slot: &[u8], now: Timestamp) -> Option<String> {
    let text = std::str::from_utf8(slot).ok()?.trim_end_matches('\0');
    let (until, reply) = text.split_once(' ')?;
    let until = Timestamp::from_unix_nanos(until.parse().ok()?);
    (now < until && reply.starts_with("$JS.ACK.")).then(|| reply.to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_restart_finds_exactly_the_held_messages() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("held");
        let now = Timestamp::from_unix_seconds(1_800_000_000);
        let later = now.plus(Duration::from_secs(30));
        let (held, before) = HeldFile::open(&path, now).unwrap();
        assert_eq!(before, Vec::<String>::new());
        let (a, b, c) = (held.slot(), held.slot(), held.slot());
        held.note(c, "$JS.ACK.s.c.1", later).await;
        held.note(a, "$JS.ACK.s.a.1", later).await;
        held.note(a, "$JS.ACK.s.a.2", later).await;
        held.note(b, "$JS.ACK.s.b.1", now).await;
        held.note(b, &"$JS.ACK.".repeat(SLOT), later).await;
        let (_, before) = HeldFile::open(&path, now).unwrap();
        assert_eq!(before, ["$JS.ACK.s.a.2", "$JS.ACK.s.c.1"]);
        let (_, before) = HeldFile::open(&path, now).unwrap();
        assert_eq!(before, Vec::<String>::new(), "once");
        std::fs::write(&path, b"not a slot").unwrap();
        HeldFile::open(&path, now).unwrap();
    }
}
