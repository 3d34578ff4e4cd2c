//! What a crash took: how many records had been offered and never reached the queue.
//!
//! Two counts of this node are kept in the queue and moved beside every append, or 200 ms after the last
//! time where nothing is appended: records offered, and records that are done with (written to the
//! queue, delivered, or wanted by nobody). They meet at every clean stop; where they do not, the
//! difference is what the life before lost. It may count records that a filter would have kept back or
//! that were delivered since, and misses those offered since: of 200 ms at most.

use culvert_base::Fault;
use culvert_store::{CursorMove, Queue, QueueError};

/// The two counts, as last written.
#[derive(Debug)]
pub(crate) struct Losses {
    offered: Count,
    done: Count,
    /// Where this life's own counting began.
    base: i64,
}

#[derive(Debug)]
struct Count {
    name: String,
    at: i64,
}

impl Losses {
    /// Reads the counts of `node`, and how many records its life before lost.
    pub(crate) async fn read(queue: &Queue, node: &str) -> Result<(Self, u64), Fault> {
        let count = async |what: &str| -> Result<Count, Fault> {
            let name = format!("{what}:{node}");
            let at = queue.cursor(&name).await?;
            Ok(Count { name, at })
        };
        let (offered, done) = (count("offered").await?, count("done").await?);
        let lost = u64::try_from(offered.at.saturating_sub(done.at)).unwrap_or(0);
        let losses = Self {
            base: offered.at.max(done.at),
            offered,
            done,
        };
        Ok((losses, lost))
    }

    /// Writes this life's counts, together with whatever else the queue commits at the moment.
    pub(crate) async fn write(&mut self, queue: &Queue, offered: u64, done: u64) {
        let at = |count: u64| {
            self.base
                .saturating_add(i64::try_from(count).unwrap_or(i64::MAX))
        };
        let (offered, done) = (at(offered), at(done));
        tokio::join!(
            self.offered.move_to(queue, offered),
            self.done.move_to(queue, done)
        );
    }
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
