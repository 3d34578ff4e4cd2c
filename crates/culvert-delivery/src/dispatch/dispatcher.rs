//! Copies audit events from the outbox to the queue, exactly once, in commit order.
//!
//! The store selects the subscriptions of an event at the commit. Subscriptions whose owner has lost the right since
//! are skipped here: a private event waits for a table with the rights of its commit or later. The cursor is in the
//! queue. It moves in the transaction that appends the copies, from the position at which they were read, so of several
//! nodes only the first copies. Live tails have a cursor in memory, so a tail on this node gets events that another
//! node copied.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use culvert_base::Fault;
use culvert_store::{BatchClass, CursorMove, OutboxRow, Revision};

use crate::dispatch::copies::{Copies, Copy};
use crate::plane::Plane;

/// The cursor's name in the queue.
pub(crate) const CURSOR: &str = "outbox";
/// Rows copied together; each has at most 256 KiB.
const ROWS: u32 = 128;
/// Longest delay after a missed wake-up.
const TIMER: Duration = Duration::from_secs(5);
const AFTER_FAULT: Duration = Duration::from_secs(1);

pub(crate) struct Dispatcher {
    plane: Arc<Plane>,
    /// Position of the queue's cursor at the last read; `None` before the first.
    copied: Option<i64>,
    /// The last row shown to this node's tails.
    tailed: i64,
    /// Whether a table was published. Nothing is copied before: the table names the withheld events.
    has_table: bool,
    /// The epoch of these positions. After a loss of commits they are read again.
    epoch: u64,
    /// Rows up to this one wait for the rights of this revision.
    waits_for: Option<(i64, Revision)>,
}

impl Dispatcher {
    pub(crate) fn new(plane: Arc<Plane>) -> Self {
        Self {
            epoch: plane.store.epoch(),
            plane,
            copied: None,
            tailed: 0,
            has_table: true,
            waits_for: None,
        }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let mut tables = self.plane.tables.subscribe();
        let mut commits = self.plane.store.watch();
        let mut rights = self.plane.rights.subscribe();
        let mut watching = true;
        self.has_table = *tables.borrow_and_update() > 0;
        let mut is_faulted = false;
        while !cancel.is_cancelled() {
            let passed = self.pass().await;
            if passed.is_ok() && std::mem::take(&mut is_faulted) {
                tracing::info!("audit events are dispatched again");
            }
            let pause = match passed {
                Ok(true) => continue,
                Ok(false) => TIMER,
                Err(fault) => {
                    if !std::mem::replace(&mut is_faulted, true) {
                        tracing::error!(cause = %fault.chain(), "cannot dispatch audit events");
                    }
                    AFTER_FAULT
                }
            };
            let changed = async {
                if watching {
                    commits.changed().await.is_ok()
                } else {
                    std::future::pending().await
                }
            };
            tokio::select! {
                alive = changed => watching = alive,
                // The sender is in the plane.
                _ = tables.changed(), if !self.has_table => self.has_table = true,
                // Its sender is in the plane, too.
                _ = rights.changed(), if self.waits_for.is_some() => {}
                () = self.plane.tails.changed() => {}
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
        }
    }

    /// Copies some rows. Returns whether there may be more.
    pub(crate) async fn pass(&mut self) -> Result<bool, Fault> {
        let epoch = self.plane.store.epoch();
        if self.epoch != epoch {
            self.copied = None;
            self.tailed = 0;
            self.waits_for = None;
            self.epoch = epoch;
        }
        let copied = match self.copied {
            Some(copied) => copied,
            None => {
                let copied = self.plane.queue.cursor(CURSOR).await?;
                // Rows copied before this node started are not new to tails.
                self.tailed = self.tailed.max(copied);
                self.copied = Some(copied);
                copied
            }
        };
        if !self.plane.tails.wants_audit() {
            self.tailed = self.tailed.max(copied);
        }
        let from = copied.min(self.tailed);
        let rows = self.plane.store.outbox_after(from, ROWS).await?;
        let Some(last) = rows.last().map(|row| row.seq) else {
            return Ok(false);
        };
        for row in rows.iter().filter(|row| row.seq > self.tailed) {
            self.plane.tails.event(&row.event, &self.plane.meters);
        }
        self.tailed = self.tailed.max(last);
        if last > copied {
            if !self.has_table {
                return Ok(false);
            }
            let fresh = rows.iter().filter(|row| row.seq > copied);
            let Some(until) = self.copied_until(fresh.clone(), last).await? else {
                return Ok(false);
            };
            let fresh = fresh.filter(|row| row.seq <= until);
            self.copy(fresh, copied, until).await?;
        }
        Ok(true)
    }

    /// The last of these rows that may be copied now; `None` if the first must wait for the rights of its commit.
    async fn copied_until<'a>(
        &mut self,
        mut rows: impl Iterator<Item = &'a OutboxRow>,
        last: i64,
    ) -> Result<Option<i64>, Fault> {
        let plane = &self.plane;
        let table = plane.table.load_full();
        let is_private =
            |row: &&OutboxRow| !row.audience.is_empty() && table.is_private(&row.event.kind);
        let Some(first) = rows.find(is_private) else {
            return Ok(Some(last));
        };
        let (until, revision) = match self.waits_for.filter(|(until, _)| *until >= first.seq) {
            Some(waiting) => waiting,
            None => (last, plane.store.revision().await?),
        };
        if *plane.rights.borrow() >= revision {
            self.waits_for = None;
            return Ok(Some(until.min(last)));
        }
        self.waits_for = Some((until, revision));
        Ok(None)
    }

    async fn copy<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a OutboxRow> + Clone,
        from: i64,
        to: i64,
    ) -> Result<(), Fault> {
        let plane = &self.plane;
        let table = plane.table.load();
        let copies = Copies::lay_out(
            plane,
            BatchClass::Audit,
            rows.clone().flat_map(|row| {
                let is_due = |(subscription, destination): &&(String, String)| {
                    let event = &row.event;
                    !table.is_withheld(
                        subscription,
                        destination,
                        &event.kind,
                        event.body.as_bytes(),
                    )
                };
                let readers = row.audience.iter().filter(is_due);
                readers.map(|(subscription, destination)| Copy {
                    subscription,
                    destination,
                    envelope: &row.event.body,
                })
            }),
        );
        let cursor = CursorMove {
            name: CURSOR.to_owned(),
            from,
            to,
        };
        // The cursor is read again unless this append moved it.
        self.copied = None;
        if copies.append(plane, cursor).await? {
            self.copied = Some(to);
            let n_rows = u64::try_from(rows.count()).unwrap_or(0);
            plane.meters.outbox_copied.add(n_rows);
        }
        Ok(())
    }
}
