//! Detects that the database lost commits that this process knew of.
//!
//! A fail-over to an asynchronous standby, or a restored backup, takes commits back. The next ones get the numbers of
//! those that were lost, so a number alone says nothing. Each process that commits has a random id, its writer, and the
//! database has the latest commit of each writer. A writer never repeats a number: if its own latest commit is missing,
//! it gets another id. So a commit is still there exactly if its writer's latest one is not before it.
//!
//! Every reading of the ledger is compared with what was known before it began. If that is missing, another epoch begins:
//! the feed is emptied, and every reader reads everything again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use culvert_base::{Clock, Entropy, OsEntropy, Timestamp};
use tokio::sync::watch;

use crate::commit::revision::Revision;
use crate::database::dialect::Row;

/// What this process knows of the commits of the database.
#[derive(Debug)]
pub(crate) struct History {
    revision: watch::Sender<Revision>,
    known: Mutex<KnownHistory>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct KnownHistory {
    mark: Mark,
    writer: Writer,
    loss: Option<LostCommits>,
}

/// A loss of commits that this process noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostCommits {
    /// When it was noticed.
    pub noticed_at: Timestamp,
    /// The latest revision that was known before.
    pub known: Revision,
    /// The latest revision found instead, in a new epoch.
    pub found: Revision,
}

/// A commit and its writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) writer: String,
    pub(crate) number: i64,
}

/// The commits of this process.
#[derive(Debug)]
struct Writer {
    id: String,
    /// The latest one.
    committed: i64,
    /// One whose outcome is unknown.
    unknown: Option<i64>,
}

/// What was known when a reading of the ledger began.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    revision: Revision,
    pub(crate) mark: Mark,
}

/// The part of the ledger that tells its history.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) number: i64,
    mark: Mark,
    /// The latest commit of the expected mark's writer.
    reached: i64,
}

impl Reading {
    /// Reads three columns, the first at `index`, of a ledger with this latest revision.
    pub(crate) fn read(row: &Row, index: usize, number: i64) -> Result<Self, sqlx::Error> {
        let written: i64 = row.get(index + 1)?;
        Ok(Self {
            number,
            mark: Mark {
                writer: row.get(index)?,
                number: written.min(number),
            },
            reached: row.get(index + 2)?,
        })
    }

    /// The latest commit of this writer that the ledger's row names.
    pub(crate) fn reached_by(&self, writer: &str) -> i64 {
        match self.mark.writer == writer {
            true => self.mark.number,
            false => 0,
        }
    }
}

impl History {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            revision: watch::Sender::new(Revision::START),
            known: Mutex::new(KnownHistory {
                mark: Mark::default(),
                writer: Writer::new(),
                loss: None,
            }),
            clock,
        }
    }

    /// The latest revision known here.
    pub(crate) fn revision(&self) -> Revision {
        *self.revision.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// The latest loss of commits.
    pub(crate) fn loss(&self) -> Option<LostCommits> {
        self.lock().loss
    }

    /// The knowledge of now. A reading that begins after this must contain it.
    pub(crate) fn expected(&self) -> Expected {
        let known = self.lock();
        Expected {
            revision: self.revision(),
            mark: known.mark.clone(),
        }
    }

    /// Compares a reading with what was known before it began. Returns its revision, and whether it began an epoch.
    pub(crate) fn observe(&self, expected: &Expected, reading: Reading) -> (Revision, bool) {
        let mut known = self.lock();
        let latest = self.revision();
        if latest.epoch != expected.revision.epoch {
            // Another reading began the epoch meanwhile. This one may be older.
            return (latest, false);
        }
        let is_continued =
            reading.number >= expected.revision.number && reading.reached >= expected.mark.number;
        let found = Revision {
            epoch: latest.epoch + u64::from(!is_continued),
            number: reading.number,
        };
        if is_continued && found.number < latest.number {
            // A commit of this process was faster.
            return (found, false);
        }
        known.mark = reading.mark;
        if !is_continued {
            tracing::error!(
                known = latest.number,
                found = found.number,
                "the database lost commits, as a fail-over to a standby without them does; reading everything again"
            );
            known.loss = Some(LostCommits {
                noticed_at: self.clock.now(),
                known: latest,
                found,
            });
        }
        self.raise(found);
        (found, !is_continued)
    }

    /// The id under which this process commits.
    pub(crate) fn writer(&self) -> String {
        self.lock().writer.id.clone()
    }

    /// Compares this process's own commits with its latest one in the database. Returns whether the one whose outcome
    /// was unknown is there. If others are missing, the next commits have another id.
    pub(crate) fn recognize(&self, reached: i64) -> bool {
        let writer = &mut self.lock().writer;
        let unknown = writer.unknown.take();
        let is_there = unknown == Some(reached);
        if is_there || writer.committed == reached {
            writer.committed = reached;
        } else {
            *writer = Writer::new();
        }
        is_there
    }

    /// Notes that a commit of this process begins. False if an epoch began since the transaction did.
    pub(crate) fn begin_commit(&self, revision: Revision) -> bool {
        let mut known = self.lock();
        let is_current = self.revision().epoch == revision.epoch;
        known.writer.unknown = is_current.then_some(revision.number);
        is_current
    }

    /// Notes that a commit of this process is on disk.
    pub(crate) fn committed(&self, revision: Revision) {
        let mut known = self.lock();
        if known.writer.unknown.take() == Some(revision.number) {
            known.writer.committed = revision.number;
        }
        let latest = self.revision();
        if latest.epoch == revision.epoch && latest.number < revision.number {
            known.mark = Mark {
                writer: known.writer.id.clone(),
                number: revision.number,
            };
            self.raise(revision);
        }
    }

    /// Never lowers it.
    fn raise(&self, revision: Revision) {
        self.revision.send_if_modified(|latest| {
            let is_newer = revision > *latest;
            if is_newer {
                *latest = revision;
            }
            is_newer
        });
    }

    fn lock(&self) -> MutexGuard<'_, KnownHistory> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn new() -> Self {
        let entropy: &dyn Entropy = &OsEntropy;
        Self {
            id: entropy.text(b"abcdefghijklmnopqrstuvwxyz0123456789", 20),
            committed: 0,
            unknown: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::ManualClock;

    use super::*;

    fn history() -> History {
        let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
        History::new(Arc::new(clock))
    }

    fn reading(number: i64, writer: &str, written: i64, reached: i64) -> Reading {
        Reading {
            number,
            mark: Mark {
                writer: writer.to_owned(),
                number: written,
            },
            reached,
        }
    }

    /// Observes a reading that began now.
    fn observe(history: &History, reading: Reading) -> (u64, i64, bool) {
        let (revision, is_new) = history.observe(&history.expected(), reading);
        (revision.epoch, revision.number, is_new)
    }

    #[test]
    fn a_commit_that_is_missing_begins_an_epoch() {
        let history = history();
        assert_eq!(observe(&history, reading(95, "a", 95, 0)), (0, 95, false));
        assert_eq!(
            observe(&history, reading(100, "b", 100, 95)),
            (0, 100, false)
        );
        // A program of an older format committed 101.
        assert_eq!(
            observe(&history, reading(101, "b", 100, 100)),
            (0, 101, false)
        );
        // The numbers were reached again, by another writer.
        assert_eq!(observe(&history, reading(110, "a", 110, 0)), (1, 110, true));
        assert_eq!(
            observe(&history, reading(111, "a", 111, 111)),
            (1, 111, false)
        );
        // A lower number alone.
        assert_eq!(observe(&history, reading(99, "a", 99, 111)), (2, 99, true));
        assert_eq!(observe(&history, reading(99, "a", 99, 99)), (2, 99, false));
        let loss = history.loss().unwrap();
        assert_eq!((loss.known.number, loss.found.number), (111, 99));
        assert!(loss.found > loss.known && history.revision() == loss.found);
    }

    #[test]
    fn a_reading_that_a_commit_overtook_is_no_loss() {
        let history = history();
        observe(&history, reading(5, "a", 5, 0));
        let expected = history.expected();
        let commit = Revision {
            epoch: 0,
            number: 6,
        };
        assert!(history.begin_commit(commit));
        history.committed(commit);
        let (revision, is_new) = history.observe(&expected, reading(5, "a", 5, 5));
        assert_eq!((revision.number, is_new), (5, false));
        assert_eq!(history.revision(), commit);
        // One that began before an epoch says nothing about it.
        let expected = history.expected();
        observe(&history, reading(4, "a", 4, 0));
        let (revision, is_new) = history.observe(&expected, reading(6, "a", 6, 6));
        assert_eq!((revision.epoch, revision.number, is_new), (1, 4, false));
        assert!(
            !history.begin_commit(commit),
            "its transaction began before"
        );
    }

    #[test]
    fn a_writer_knows_its_own_commits() {
        let history = history();
        let id = history.writer();
        let commit = |number| Revision { epoch: 0, number };
        assert!(!history.recognize(0));
        assert!(history.begin_commit(commit(1)));
        history.committed(commit(1));
        assert!(!history.recognize(1));
        assert!(history.begin_commit(commit(2)));
        assert!(history.recognize(2), "committed, and the answer lost");
        assert!(history.begin_commit(commit(3)));
        assert!(!history.recognize(2), "not committed");
        assert_eq!(history.writer(), id);
        assert!(!history.recognize(1), "lost");
        assert_ne!(history.writer(), id);
        assert!(!history.recognize(0));
    }
}
