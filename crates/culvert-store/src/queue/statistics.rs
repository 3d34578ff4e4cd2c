//! Statistics: frames, each of all subjects of a node in one step, and chunks, each of one subject in several steps.
//!
//! A node appends a frame, which is one row, in every step. Later the frames of a period become a chunk for each
//! subject, so that a subject is read without the others.
//!
//! Not here: the content of frames and chunks (`culvert-statistics`), and when they are written (`culvert-control`).

use std::time::Duration;

use culvert_base::Fault;

use super::Queue;
use crate::database::dialect::{Arg, Row, While};
use crate::database::statements::events;
use crate::queue::queue_log::QueueCommand;
use crate::queue::queue_log::statistics::{
    FrameRange, PRUNED_AT_ONCE, StatisticChunk, StatisticFrame,
};

impl Queue {
    /// Writes frames and chunks and deletes a range of frames, all or nothing. Existing rows stay.
    pub async fn put_statistics(
        &self,
        frames: Vec<StatisticFrame>,
        chunks: Vec<StatisticChunk>,
        folded: Option<FrameRange>,
    ) -> Result<(), Fault> {
        let command = QueueCommand::PutStatistics {
            frames,
            chunks,
            folded,
        };
        self.count("writing statistics", command).await.map(drop)
    }

    /// The frames of a step from `from` to before `to`, in order of time, at most `limit`: those of all nodes, or those of
    /// `node`.
    pub async fn statistic_frames(
        &self,
        step: i64,
        (from, to): (i64, i64),
        node: Option<&str>,
        limit: u32,
    ) -> Result<Vec<StatisticFrame>, Fault> {
        let doing = "reading statistics";
        let arguments = [
            Arg::Int(step),
            Arg::Int(from),
            Arg::Int(to),
            Arg::Text(node.unwrap_or_default()),
            Arg::Int(i64::from(limit)),
        ];
        let rows = self
            .pool()
            .rows(doing, events::STATISTIC_FRAMES, &arguments)
            .await?;
        let frame = |row: &Row| {
            Ok::<_, sqlx::Error>(StatisticFrame {
                step,
                at: row.get(0)?,
                node: row.get(1)?,
                body: row.get(2)?,
            })
        };
        rows.iter().map(|row| frame(row).during(doing)).collect()
    }

    /// The chunks of a subject that begin from `from` to before `to`, in order of time, at most `limit`.
    pub async fn statistic_chunks(
        &self,
        step: i64,
        subject: &str,
        (from, to): (i64, i64),
        limit: u32,
    ) -> Result<Vec<StatisticChunk>, Fault> {
        let arguments = [
            Arg::Text(subject),
            Arg::Int(step),
            Arg::Int(from),
            Arg::Int(to),
            Arg::Int(i64::from(limit)),
        ];
        self.chunks(step, events::STATISTIC_CHUNKS_OF, &arguments)
            .await
    }

    /// The chunks of all subjects whose text begins with `prefix` that begin from `from` to before `to`, in order of
    /// time, at most `limit`.
    pub async fn statistic_chunks_with(
        &self,
        step: i64,
        prefix: &str,
        (from, to): (i64, i64),
        limit: u32,
    ) -> Result<Vec<StatisticChunk>, Fault> {
        // No subject has this character.
        let end = format!("{prefix}\u{10ffff}");
        let arguments = [
            Arg::Int(step),
            Arg::Int(from),
            Arg::Int(to),
            Arg::Text(prefix),
            Arg::Text(&end),
            Arg::Int(i64::from(limit)),
        ];
        self.chunks(step, events::STATISTIC_CHUNKS, &arguments)
            .await
    }

    async fn chunks(
        &self,
        step: i64,
        sql: &'static str,
        arguments: &[Arg<'_>],
    ) -> Result<Vec<StatisticChunk>, Fault> {
        let doing = "reading statistics";
        let rows = self.pool().rows(doing, sql, arguments).await?;
        let chunk = |row: &Row| {
            Ok::<_, sqlx::Error>(StatisticChunk {
                step,
                subject: row.get(0)?,
                at: row.get(1)?,
                node: row.get(2)?,
                body: row.get(3)?,
            })
        };
        rows.iter().map(|row| chunk(row).during(doing)).collect()
    }

    /// Bytes of all chunks.
    pub async fn statistic_bytes(&self) -> Result<u64, Fault> {
        let doing = "measuring statistics";
        let row = self.pool().row(doing, events::STATISTIC_BYTES, &[]).await?;
        let bytes: i64 = row.map_or(Ok(0), |row| row.get(0)).during(doing)?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }

    /// Deletes the frames and chunks of a step that begin before `before`, in small transactions. Returns how many.
    pub async fn prune_statistics(&self, step: i64, before: i64) -> Result<u64, Fault> {
        let mut n_pruned = 0;
        loop {
            let command = QueueCommand::PruneStatistics { step, before };
            let n = self.count("deleting old statistics", command).await?;
            n_pruned += n;
            if n == 0 {
                return Ok(n_pruned);
            }
            // Lets other writes proceed.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Deletes the oldest chunks of a step until `bytes` are free or none is left. Returns a lower bound of the bytes
    /// freed, because chunks with the same start are deleted together.
    pub async fn free_statistics(&self, step: i64, bytes: u64) -> Result<u64, Fault> {
        let doing = "looking for statistics to delete";
        let mut freed = 0;
        while freed < bytes {
            let arguments = [Arg::Int(step), Arg::Int(PRUNED_AT_ONCE)];
            let rows = self
                .pool()
                .rows(doing, events::OLDEST_STATISTICS, &arguments)
                .await?;
            let mut last = None;
            for row in &rows {
                if freed >= bytes {
                    break;
                }
                let (at, length): (i64, i64) =
                    (row.get(0).during(doing)?, row.get(1).during(doing)?);
                freed += length.unsigned_abs();
                last = Some(at);
            }
            let Some(last) = last else { break };
            self.prune_statistics(step, last + 1).await?;
        }
        Ok(freed)
    }
}
