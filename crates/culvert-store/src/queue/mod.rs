//! The durable queue of batches: append, lease, then acknowledge, retry, replace or dead-letter.
//!
//! Only the holder of its lease can end a batch. Every lease has a fence, a number that grows with each lease of the
//! batch. If the batch was leased again, a settlement with the old fence fails with [`QueueError::Lost`].
//!
//! Audit batches of a destination come before traffic batches. Within a class, batches keep the order of appending: the
//! first delays the others while it is leased or waits for its time.
//!
//! Not here: the content of batches (`delivery`), the retry schedule.

mod batch;
mod bodies;
mod nodes;
mod queue_log;
mod record_limits;
mod statistics;
mod traffic;
mod traffic_hashes;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use culvert_base::{Clock, Fault, Supervisor, Timestamp};
use tokio::sync::watch;

pub use self::batch::{
    Backlog, BatchClass, Body, CursorMove, DEAD_LETTERS_BYTES_MAX, DEAD_LETTERS_FOR,
    DEAD_LETTERS_MAX, DeadBatch, DeadLetter, DeadLetterReason, Gathering, Lease, NewBatch,
    NewPiece, QueueError, Run, WHY_BYTES_MAX,
};
pub(crate) use self::batch::{DeadLetterBounds, checksum, leaf};
use self::batch::{cut, read_class, unsigned};
pub use self::nodes::{NodeNote, OpenTail, TailPiece};
pub use self::queue_log::bodies::NewTrafficBody;
pub use self::queue_log::statistics::{FrameRange, StatisticChunk, StatisticFrame};
use self::queue_log::{QueueCommand, QueueLog, QueueOutcome, QueueWriter, Settlement};
#[cfg(test)]
pub(crate) use self::record_limits::HASHES_KEPT;
pub use self::traffic::{Piece, RetainedTraffic};
pub use self::traffic_hashes::{
    HashedTraffic, PieceFound, TrafficLog, TrafficState, UnrecordedTraffic,
};
use crate::commit::writer::Writer;
use crate::database::dialect::{Arg, Site, While};
use crate::database::migrate;
use crate::database::pool::Pool;
use crate::database::statements::{events, meta};
use crate::database::store_url::StoreUrl;
use crate::database::{Database, DatabasePart};
use crate::installation::{INSTALLATION, set_aside_beside};

/// The durable queue. Clones share it.
#[derive(Clone, Debug)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    database: Database,
    writer: Writer<QueueLog>,
    log: Arc<QueueLog>,
    clock: RwLock<Arc<dyn Clock>>,
}

impl Shared {
    fn now(&self) -> Timestamp {
        let clock = self.clock.read();
        clock.unwrap_or_else(PoisonError::into_inner).now()
    }
}

pub(crate) const EVENTS: DatabasePart = DatabasePart {
    file: Some("events.db"),
    schema: "culvert_events",
    steps: migrate::EVENTS,
    postgres_readers: 4,
};

impl Queue {
    /// Opens the queue that belongs to the store at `url`: the file `events.db` beside the state
    /// file, or the schema `culvert_events`. Starts its tasks on the current runtime.
    pub async fn open(url: &StoreUrl, clock: Arc<dyn Clock>) -> Result<Self, Fault> {
        Self::open_within(url, clock, DeadLetterBounds::DEFAULT).await
    }

    pub(crate) async fn open_within(
        url: &StoreUrl,
        clock: Arc<dyn Clock>,
        dead_letters: DeadLetterBounds,
    ) -> Result<Self, Fault> {
        let database = Database::open(url, EVENTS, clock.as_ref()).await?;
        let log = Arc::new(QueueLog {
            writer: QueueWriter::new(clock.now()),
            appended: watch::Sender::new(0),
            dead_letters,
            forgotten: Default::default(),
        });
        let writer = database.start_writer(Arc::clone(&log));
        let queue = Self {
            shared: Arc::new(Shared {
                database,
                writer,
                log,
                clock: RwLock::new(clock),
            }),
        };
        // The row of this process must exist before a transaction that is asked for.
        if let Site::Postgres(_) = queue.shared.database.site {
            let entered = queue.count("entering the queue", QueueCommand::PruneWriters);
            entered.await?;
        }
        Ok(queue)
    }

    /// The ID of the installation that the queue belongs to: see [`crate::InstallationFiles`].
    pub async fn installation(&self) -> Result<Option<String>, Fault> {
        let doing = "reading the ID of the installation";
        let name = [Arg::Text(INSTALLATION)];
        let row = self.pool().row(doing, meta::GET, &name).await?;
        row.map(|row| row.get(0)).transpose().during(doing)
    }

    /// Uses another clock from here on, such as the one that all nodes share. Times of the queue are compared with times
    /// of its users, so they need the same one.
    pub fn follow_clock(&self, clock: Arc<dyn Clock>) {
        let own = self.shared.clock.write();
        *own.unwrap_or_else(PoisonError::into_inner) = clock;
    }

    /// Appends all batches and moves the cursor, in one transaction. Durable on return. Lost, with nothing appended, if
    /// the cursor is elsewhere.
    pub async fn append(
        &self,
        batches: Vec<NewBatch>,
        cursor: Option<CursorMove>,
    ) -> Result<(), QueueError> {
        let at = self.shared.now();
        self.write(
            "appending batches",
            QueueCommand::Append {
                batches,
                cursor,
                at,
            },
        )
        .await
        .map(drop)
    }

    /// Appends a batch that `owner` is sending already, as leased for the first time. Durable on return.
    pub async fn append_leased(
        &self,
        batch: NewBatch,
        owner: &str,
        lease_for: Duration,
    ) -> Result<Lease, Fault> {
        let doing = "appending a batch that is being sent";
        let at = self.shared.now();
        let command = QueueCommand::AppendLeased {
            batch,
            owner: owner.to_owned(),
            until: at.plus(lease_for),
            at,
        };
        match self.write(doing, command).await {
            Ok(QueueOutcome::Lease(Some(lease))) => Ok(*lease),
            Ok(_) => Err(Fault::bare(format!(
                "{doing}: the database returned no lease"
            ))),
            Err(error) => Err(error.into_fault(doing)),
        }
    }

    /// Position of a cursor; 0 before its first move.
    pub async fn cursor(&self, name: &str) -> Result<i64, Fault> {
        let doing = "reading a cursor";
        let row = self
            .pool()
            .row(doing, events::CURSOR, &[Arg::Text(name)])
            .await?;
        row.map_or(Ok(0), |row| row.get(0)).during(doing)
    }

    /// Names of cursors that begin with `prefix`, which is ASCII and not empty: the first thousand.
    pub async fn cursors(&self, prefix: &str) -> Result<Vec<String>, Fault> {
        let doing = "listing cursors";
        // The smallest text that sorts after all texts with this prefix.
        let (stem, last) = prefix.split_at(prefix.len().saturating_sub(1));
        let end = last.bytes().next().unwrap_or_default().saturating_add(1);
        let end = format!("{stem}{}", char::from(end));
        let arguments = [Arg::Text(prefix), Arg::Text(&end), Arg::Int(1_000)];
        let rows = self.pool().rows(doing, events::CURSORS, &arguments).await?;
        rows.iter().map(|row| row.get(0).during(doing)).collect()
    }

    /// Removes a cursor.
    pub async fn drop_cursor(&self, name: &str) -> Result<(), Fault> {
        let name = name.to_owned();
        self.count("dropping a cursor", QueueCommand::DropCursor { name })
            .await
            .map(drop)
    }

    /// Changes after each append of this process. Other nodes append without it.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.shared.log.appended.subscribe()
    }

    /// Leases the next batch of a destination; `None` if none is due. Audit before traffic, oldest first. A batch that is
    /// leased or waits for its time delays its class.
    pub async fn lease(
        &self,
        destination: &str,
        owner: &str,
        lease_for: Duration,
        now: Timestamp,
    ) -> Result<Option<Lease>, Fault> {
        let command = QueueCommand::Lease {
            destination: destination.to_owned(),
            owner: owner.to_owned(),
            until: now.plus(lease_for),
            now,
        };
        match self.write("leasing a batch", command).await {
            Ok(QueueOutcome::Lease(lease)) => Ok(lease.map(|lease| *lease)),
            Ok(_) => Ok(None),
            Err(error) => Err(error.into_fault("leasing a batch")),
        }
    }

    /// Leases the next batches of a destination with their bodies: all that are due in one class, up to a number of bytes
    /// or one batch. Audit before traffic, oldest first.
    pub async fn lease_several(
        &self,
        destination: &str,
        owner: &str,
        lease_for: Duration,
        now: Timestamp,
        bytes_max: u64,
    ) -> Result<Vec<Lease>, Fault> {
        let doing = "leasing several batches";
        let command = QueueCommand::LeaseSeveral {
            destination: destination.to_owned(),
            owner: owner.to_owned(),
            until: now.plus(lease_for),
            now,
            bytes_max,
        };
        match self.write(doing, command).await {
            Ok(QueueOutcome::Leases(leases)) => Ok(leases),
            // Another node has leased them.
            Err(QueueError::Lost) => Ok(Vec::new()),
            Ok(_) => Err(Fault::bare(format!(
                "{doing}: the database returned no leases"
            ))),
            Err(error) => Err(error.into_fault(doing)),
        }
    }

    /// Leases several batches of one class, once there are enough or the first is old enough. Audit before traffic, oldest
    /// first. A batch that is leased or waits for its time delays those behind it.
    pub async fn lease_run(
        &self,
        destination: &str,
        owner: &str,
        lease_for: Duration,
        now: Timestamp,
        gathering: Gathering,
    ) -> Result<Run, Fault> {
        let doing = "leasing batches";
        let command = QueueCommand::LeaseRun {
            destination: destination.to_owned(),
            owner: owner.to_owned(),
            until: now.plus(lease_for),
            now,
            gathering,
        };
        match self.write(doing, command).await {
            Ok(QueueOutcome::Run(run)) => Ok(run),
            // Another node has leased them.
            Err(QueueError::Lost) => Ok(Run {
                leases: Vec::new(),
                next_at: Some(now),
            }),
            Ok(_) => Err(Fault::bare(format!(
                "{doing}: the database returned no run"
            ))),
            Err(error) => Err(error.into_fault(doing)),
        }
    }

    /// The body of a leased batch; `None` if the lease has ended or the body is damaged.
    pub async fn body(&self, lease: &Lease) -> Result<Option<Vec<u8>>, Fault> {
        let doing = "reading a batch";
        let held = [Arg::Int(lease.batch), Arg::Int(lease.fence)];
        let Some(row) = self.pool().row(doing, events::BODY, &held).await? else {
            return Ok(None);
        };
        let crc: i64 = row.get(0).during(doing)?;
        let body: Option<Vec<u8>> = row.get(1).during(doing)?;
        Ok(body.filter(|body| crc == checksum(body)))
    }

    /// [`Self::ack`] for several batches, in one transaction. Returns the ids of the batches whose leases were
    /// still held.
    pub async fn ack_run(&self, leases: &[Lease]) -> Result<Vec<i64>, Fault> {
        self.settle_run("acknowledging batches", leases, Settlement::Ack)
            .await
    }

    /// [`Self::retry`] for several batches, in one transaction.
    pub async fn retry_run(
        &self,
        leases: &[Lease],
        at: Timestamp,
        why: &str,
    ) -> Result<Vec<i64>, Fault> {
        let why = cut(why, WHY_BYTES_MAX).to_owned();
        self.settle_run(
            "putting batches back",
            leases,
            Settlement::Retry { at, why },
        )
        .await
    }

    /// [`Self::dead_letter`] for several batches, in one transaction.
    pub async fn dead_letter_run(
        &self,
        leases: &[Lease],
        why: DeadLetterReason,
    ) -> Result<Vec<i64>, Fault> {
        let at = self.shared.now();
        self.settle_run(
            "dead-lettering batches",
            leases,
            Settlement::DeadLetter { why, at },
        )
        .await
    }

    async fn settle_run(
        &self,
        doing: &str,
        leases: &[Lease],
        settlement: Settlement,
    ) -> Result<Vec<i64>, Fault> {
        let held = leases.iter().map(|lease| (lease.batch, lease.fence));
        let held = held.collect();
        let command = QueueCommand::SettleRun { held, settlement };
        match self.write(doing, command).await {
            Ok(QueueOutcome::Settled(settled)) => Ok(settled),
            Ok(_) => Err(Fault::bare(format!(
                "{doing}: the database returned no batches"
            ))),
            Err(error) => Err(error.into_fault(doing)),
        }
    }

    /// Removes a delivered batch.
    pub async fn ack(&self, lease: &Lease) -> Result<(), QueueError> {
        self.settle("acknowledging a batch", lease, Settlement::Ack)
            .await
    }

    /// Returns a batch to the queue, due at `at`.
    pub async fn retry(&self, lease: &Lease, at: Timestamp, why: &str) -> Result<(), QueueError> {
        let why = cut(why, WHY_BYTES_MAX).to_owned();
        self.settle("putting a batch back", lease, Settlement::Retry { at, why })
            .await
    }

    /// Replaces a batch by `pieces` in its place, in order, due at `at`, with its first time and attempts. They get the
    /// destination and class of the lease.
    pub async fn replace(
        &self,
        lease: &Lease,
        pieces: Vec<NewBatch>,
        at: Timestamp,
    ) -> Result<(), QueueError> {
        self.settle(
            "replacing a batch",
            lease,
            Settlement::Replace { pieces, at },
        )
        .await
    }

    /// Makes a batch a dead letter.
    pub async fn dead_letter(
        &self,
        lease: &Lease,
        why: DeadLetterReason,
    ) -> Result<(), QueueError> {
        let at = self.shared.now();
        self.settle(
            "dead-lettering a batch",
            lease,
            Settlement::DeadLetter { why, at },
        )
        .await
    }

    /// Stores a batch that was not in this queue as a dead letter.
    pub async fn put_dead(&self, dead: DeadBatch) -> Result<(), Fault> {
        let at = self.shared.now();
        let dead = Box::new(dead);
        self.count("keeping a dead letter", QueueCommand::PutDead { dead, at })
            .await
            .map(drop)
    }

    /// Releases all leases of `owner`, such as those of a previous run of this node.
    pub async fn release_owner(&self, owner: &str) -> Result<(), Fault> {
        let owner = owner.to_owned();
        self.count("releasing leases", QueueCommand::ReleaseOwner { owner })
            .await
            .map(drop)
    }

    /// When `lease` may next return a batch of a destination; in the past if it may now, `None` if nothing waits.
    pub async fn next_due(&self, destination: &str) -> Result<Option<Timestamp>, Fault> {
        let doing = "looking for the next batch";
        let rows = self
            .pool()
            .rows(doing, events::HEADS, &[Arg::Text(destination)])
            .await?;
        let mut next = None;
        for row in &rows {
            let due_at: i64 = row.get(0).during(doing)?;
            let lease_until: Option<i64> = row.get(1).during(doing)?;
            let at = due_at.max(lease_until.unwrap_or(i64::MIN));
            next = Some(next.map_or(at, |next: i64| next.min(at)));
        }
        Ok(next.map(Timestamp::from_unix_nanos))
    }

    /// How many damaged files were set aside for this one and are still there.
    pub fn files_set_aside(&self) -> usize {
        match &self.shared.database.site {
            Site::Sqlite(file) => set_aside_beside(&file.path).len(),
            Site::Postgres(_) => 0,
        }
    }

    /// The backlog of every destination with waiting batches or dead letters.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, Fault> {
        let doing = "counting what waits";
        let mut found = BTreeMap::new();
        for row in self.pool().rows(doing, events::BACKLOG, &[]).await? {
            let destination: String = row.get(0).during(doing)?;
            let number = |index| unsigned(&row, index).during(doing);
            let (events, bytes) = (number(3)?, number(4)?);
            let line: &mut Backlog = found
                .entry(destination.clone())
                .or_insert_with(|| Backlog::empty(destination));
            line.batches += number(2)?;
            line.events += events;
            line.bytes += bytes;
            if read_class(row.get(1).during(doing)?).during(doing)? == BatchClass::Traffic {
                line.traffic_events += events;
                line.traffic_bytes += bytes;
            }
            let first_at = Timestamp::from_unix_nanos(row.get(5).during(doing)?);
            line.oldest = Some(line.oldest.map_or(first_at, |oldest| oldest.min(first_at)));
        }
        for row in self
            .pool()
            .rows(doing, events::COUNT_DEAD_LETTERS, &[])
            .await?
        {
            let destination: String = row.get(0).during(doing)?;
            let line = found
                .entry(destination.clone())
                .or_insert_with(|| Backlog::empty(destination));
            line.dead_lettered = unsigned(&row, 1).during(doing)?;
        }
        Ok(found.into_values().collect())
    }

    /// Dead letters of a destination, newest first, with ids below `before`.
    pub async fn dead_letters(
        &self,
        destination: &str,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Fault> {
        let doing = "reading dead letters";
        let arguments = [
            Arg::Text(destination),
            Arg::MaybeInt(before),
            Arg::Int(i64::from(limit)),
        ];
        let rows = self
            .pool()
            .rows(doing, events::DEAD_LETTERS, &arguments)
            .await?;
        rows.iter()
            .map(|row| DeadLetter::read(row).during(doing))
            .collect()
    }

    /// Moves a dead letter to the end of its queue, as if appended now. False if it does not exist.
    pub async fn redrive(&self, id: i64) -> Result<bool, Fault> {
        let at = self.shared.now();
        let n = self
            .count("redriving a dead letter", QueueCommand::Redrive { id, at })
            .await?;
        Ok(n > 0)
    }

    /// Makes all postponed batches due `now`, such as after an edit of the destination. Returns how many.
    pub async fn hasten(&self, destination: &str, now: Timestamp) -> Result<u64, Fault> {
        let destination = destination.to_owned();
        self.count(
            "making batches due",
            QueueCommand::Hasten { destination, now },
        )
        .await
    }

    /// Ends leases at `latest` that would last longer, as those of a node whose clock was wrong. Returns how many.
    pub async fn bound_leases(&self, latest: Timestamp) -> Result<u64, Fault> {
        self.count("bounding leases", QueueCommand::BoundLeases { latest })
            .await
    }

    /// Removes everything of a deleted destination. Returns the number of batches and dead letters.
    pub async fn drop_destination(&self, destination: &str) -> Result<u64, Fault> {
        let destination = destination.to_owned();
        self.count(
            "dropping a destination",
            QueueCommand::DropDestination { destination },
        )
        .await
    }

    /// Removes dead letters older than [`DEAD_LETTERS_FOR`], and those beyond the limits that were not counted before.
    /// Returns how many were too old.
    pub async fn prune(&self, now: Timestamp) -> Result<u64, Fault> {
        self.count("pruning dead letters", QueueCommand::Prune { now })
            .await
    }

    /// Events of dead letters that this process removed to make space for newer ones of the same destination and class.
    pub fn forgotten(&self, class: BatchClass) -> u64 {
        match class {
            BatchClass::Audit => &self.shared.log.forgotten[0],
            BatchClass::Traffic => &self.shared.log.forgotten[1],
        }
        .load(Ordering::Relaxed)
    }

    /// Whether the queue can be used, for readiness checks.
    pub async fn usable(&self) -> Result<(), Fault> {
        let database = &self.shared.database;
        match database.site {
            Site::Sqlite(_) => database.health().check_writes()?,
            Site::Postgres(_) => {
                let probe = QueueCommand::PruneWriters;
                self.shared.writer.probe("probing the queue", probe).await?;
            }
        }
        self.pool()
            .rows("checking whether the queue is usable", events::USABLE, &[])
            .await
            .map(drop)
    }

    /// Completes when the queue cannot be trusted any more, for example after a failed sync.
    /// Writes then fail, and a server exits with 70.
    pub async fn broken(&self) -> Fault {
        self.shared.database.health().broken().await
    }

    /// The long-lived tasks of the queue.
    pub fn supervisor(&self) -> &Supervisor {
        self.shared.database.supervisor()
    }

    /// A consistent online copy of the queue's file. SQLite only. Copy the queue before the store.
    pub async fn backup(&self, to: &Path) -> Result<(), Fault> {
        self.shared.database.backup(to, &[]).await
    }

    /// Checks everything: the file, and every batch against its checksum. Returns the first defect.
    pub async fn check(&self) -> Result<(), Fault> {
        self.shared.database.check().await?;
        let doing = "checking the queue";
        let mut after = 0;
        loop {
            let rows = self
                .pool()
                .rows(doing, events::CHECK_BODIES, &[Arg::Int(after)])
                .await?;
            if rows.is_empty() {
                return Ok(());
            }
            for row in rows {
                after = row.get(0).during(doing)?;
                let crc: i64 = row.get(1).during(doing)?;
                let body: Option<Vec<u8>> = row.get(2).during(doing)?;
                if body.is_none_or(|body| crc != checksum(&body)) {
                    return Err(Fault::bare(format!("{doing}: batch {after} is damaged")));
                }
            }
        }
    }

    /// The current duration of a write.
    pub fn write_delay(&self) -> Duration {
        self.shared.writer.delay()
    }

    /// Finishes accepted writes and closes all connections.
    pub async fn close(&self) {
        self.shared.database.close().await;
    }

    async fn write(&self, doing: &str, command: QueueCommand) -> Result<QueueOutcome, QueueError> {
        self.shared.writer.write(doing, command).await
    }

    async fn settle(
        &self,
        doing: &str,
        lease: &Lease,
        settlement: Settlement,
    ) -> Result<(), QueueError> {
        let command = QueueCommand::Settle {
            batch: lease.batch,
            fence: lease.fence,
            settlement,
        };
        self.write(doing, command).await.map(drop)
    }

    async fn count(&self, doing: &str, command: QueueCommand) -> Result<u64, Fault> {
        match self.write(doing, command).await {
            Ok(QueueOutcome::Rows(n)) => Ok(n),
            Ok(_) => Err(Fault::bare(format!(
                "{doing}: the database returned no count"
            ))),
            Err(error) => Err(error.into_fault(doing)),
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.shared.database.pool
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cut_text_is_a_beginning_within_its_limit(text: String, max in 0usize..20) {
            let kept = cut(&text, max);
            prop_assert!(text.starts_with(kept) && kept.len() <= max);
            // At most three bytes are lost: those of a character that did not fit.
            prop_assert!(kept.len() == text.len() || kept.len() + 4 > max);
        }
    }
}
