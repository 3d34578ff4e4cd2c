//! Traffic events retained for searches and replays: a log of pieces, each of many events, in the order of writing. A piece never
//! changes; the oldest are removed first.
//!
//! Not here: the content of pieces, and who may read it.

use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use tokio::time::Instant;

use super::Queue;
use super::batch::{NewPiece, checksum};
use crate::database::dialect::{Arg, While};
use crate::database::statements::{UNSETTLED, events};
use crate::queue::queue_log::QueueCommand;

/// A retained piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Position; ascending.
    pub id: i64,
    /// `None` if it is damaged.
    pub body: Option<Vec<u8>>,
}

/// The extent of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainedTraffic {
    /// The first position; beyond the last in an empty log.
    pub first: i64,
    /// The last position.
    pub last: i64,
    /// Total bytes of all pieces.
    pub bytes: u64,
}

/// How long a replay waits for pieces that are being written, and how often it checks.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Pieces read or removed in one step.
const STEP: i64 = 256;

impl Queue {
    /// Writes pieces. Durable on return.
    pub async fn keep_traffic(&self, pieces: Vec<NewPiece>) -> Result<(), Fault> {
        self.count(
            "keeping traffic events",
            QueueCommand::KeepTraffic { pieces },
        )
        .await
        .map(drop)
    }

    /// The current extent of the log.
    pub async fn traffic(&self) -> Result<RetainedTraffic, Fault> {
        let doing = "reading the extent of the traffic log";
        let row = self.pool().row(doing, events::TRAFFIC_EXTENT, &[]).await?;
        let read = |row: &crate::database::dialect::Row| {
            let bytes: i64 = row.get(2)?;
            Ok::<_, sqlx::Error>(RetainedTraffic {
                first: row.get(0)?,
                last: row.get(1)?,
                bytes: u64::try_from(bytes).unwrap_or(0),
            })
        };
        row.map_or(Ok(RetainedTraffic::default()), |row| read(&row))
            .during(doing)
    }

    /// Like [`Self::traffic`], but up to an end before which no further piece can appear. Waits at
    /// most a second for the pieces that are being written.
    pub async fn settled_traffic(&self) -> Result<RetainedTraffic, Fault> {
        let mut extent = self.traffic().await?;
        extent.last = self.await_settled(extent.last).await?;
        Ok(extent)
    }

    /// Waits at most a second until no piece up to `last` is being written. Returns the last position before which no
    /// further piece can appear.
    pub(crate) async fn await_settled(&self, last: i64) -> Result<i64, Fault> {
        let until = Instant::now() + SETTLES_WITHIN;
        loop {
            let settled = self.settled(last).await?;
            if settled == last || Instant::now() >= until {
                return Ok(settled);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The last position up to `last` before which no further piece can appear. Positions are
    /// assigned before the commit, so nodes may commit in another order: `last` is read before the
    /// open transactions are. Waits for no other transaction, however long one is open.
    pub(crate) async fn settled(&self, last: i64) -> Result<i64, Fault> {
        let doing = "looking for traffic events that are being written";
        let unsettled = self.shared.database.site.spell(UNSETTLED);
        let row = self.pool().row(doing, unsettled, &[]).await?;
        let behind: Option<i64> = row.map_or(Ok(None), |row| row.get(0)).during(doing)?;
        Ok(behind.map_or(last, |behind| behind.min(last)))
    }

    /// The pieces after `after` up to `last`, at most `limit`.
    pub async fn traffic_pieces(
        &self,
        after: i64,
        last: i64,
        limit: u32,
    ) -> Result<Vec<Piece>, Fault> {
        let doing = "reading the traffic log";
        let arguments = [Arg::Int(after), Arg::Int(last), Arg::Int(i64::from(limit))];
        let rows = self
            .pool()
            .rows(doing, events::TRAFFIC_PIECES, &arguments)
            .await?;
        let piece = |row: &crate::database::dialect::Row| {
            let crc: i64 = row.get(1)?;
            let body: Vec<u8> = row.get(2)?;
            Ok::<_, sqlx::Error>(Piece {
                id: row.get(0)?,
                body: (crc == checksum(&body)).then_some(body),
            })
        };
        rows.iter().map(|row| piece(row).during(doing)).collect()
    }

    /// The first piece with an event at that time or later.
    pub async fn traffic_since(&self, at: Timestamp) -> Result<Option<i64>, Fault> {
        self.traffic_edge(events::TRAFFIC_SINCE, at).await
    }

    /// The last piece with an event at that time or earlier.
    pub async fn traffic_until(&self, at: Timestamp) -> Result<Option<i64>, Fault> {
        self.traffic_edge(events::TRAFFIC_UNTIL, at).await
    }

    async fn traffic_edge(&self, sql: &'static str, at: Timestamp) -> Result<Option<i64>, Fault> {
        let doing = "finding a time in the traffic log";
        let row = self
            .pool()
            .row(doing, sql, &[Arg::Int(at.unix_nanos())])
            .await?;
        row.map_or(Ok(None), |row| row.get(0)).during(doing)
    }

    /// Removes the oldest pieces: those whose events are all older than `cutoff`, and further ones
    /// until `bytes_max` is met. Returns how many.
    pub async fn prune_traffic(&self, cutoff: Timestamp, bytes_max: u64) -> Result<u64, Fault> {
        let doing = "looking for traffic events to prune";
        let mut excess = self.traffic().await?.bytes.saturating_sub(bytes_max);
        let mut n_pruned = 0;
        loop {
            let rows = self
                .pool()
                .rows(doing, events::TRAFFIC_OLDEST, &[Arg::Int(STEP)])
                .await?;
            let mut up_to: Option<i64> = None;
            for row in &rows {
                let (id, last_at, bytes): (i64, i64, i64) = (
                    row.get(0).during(doing)?,
                    row.get(1).during(doing)?,
                    row.get(2).during(doing)?,
                );
                if excess == 0 && last_at >= cutoff.unix_nanos() {
                    break;
                }
                excess = excess.saturating_sub(u64::try_from(bytes).unwrap_or(0));
                up_to = Some(id);
            }
            let Some(up_to) = up_to else {
                return Ok(n_pruned);
            };
            n_pruned += self
                .count(
                    "pruning traffic events",
                    QueueCommand::PruneTraffic { up_to },
                )
                .await?;
            // Lets other writes proceed.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
