//! Writes the counts of this node, and deletes old ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use culvert_statistics::Frame;
use culvert_store::StatisticFrame;
use tokio_util::sync::CancellationToken;

use super::{Resolution, Statistics, StatisticsSource, floor};
use crate::control::Control;

/// Interval of checks whether a step has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of frames that wait for an unavailable store: ten minutes. Beyond it, the oldest is lost.
const WAITING_MAX: usize = 60;

/// Writes the statistics of this node.
#[derive(Debug)]
pub struct Keeper {
    source: Arc<dyn StatisticsSource>,
    /// Start of the last step that has a frame; `None` before the first call of [`Keeper::look`].
    last: Option<i64>,
    /// Frames that are not written yet.
    waiting: VecDeque<StatisticFrame>,
    /// Start of the chunk up to which frames were folded and old rows were deleted.
    folded: i64,
    /// Whether the last write failed.
    is_failing: bool,
}

impl Keeper {
    /// A keeper that writes the counts of `source`.
    pub fn new(source: Arc<dyn StatisticsSource>) -> Self {
        Self {
            source,
            last: None,
            waiting: VecDeque::new(),
            folded: 0,
            is_failing: false,
        }
    }

    /// Writes a frame if a step has ended. Every five minutes, also folds frames and deletes old rows. Frames that
    /// cannot be written are kept for the next call, up to a limit.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn look(&mut self, statistics: &Statistics, now: Timestamp) -> Result<(), Fault> {
        let now = now.unix_seconds();
        self.collect(statistics, floor(now, Resolution::FINE.step), now)
            .await?;
        self.write(statistics).await?;
        let folded = Resolution::FINE.chunk_of(now);
        if folded > self.folded {
            statistics.fold(Resolution::FINE, now).await?;
            statistics.fold(Resolution::COARSE, now).await?;
            statistics.prune(now).await?;
            self.folded = folded;
        }
        Ok(())
    }

    /// Writes the counts of the step that has not ended, at the end of the process.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn finish(&mut self, statistics: &Statistics, now: Timestamp) -> Result<(), Fault> {
        let now = now.unix_seconds();
        let end = floor(now, Resolution::FINE.step) + Resolution::FINE.step;
        self.collect(statistics, end, now).await?;
        self.write(statistics).await
    }

    /// Reads the counters into the frame of the step that ends at `end`, unless it has one.
    async fn collect(&mut self, statistics: &Statistics, end: i64, now: i64) -> Result<(), Fault> {
        let at = end - Resolution::FINE.step;
        let last = match self.last {
            Some(last) => last,
            None => statistics.last_step(now).await?,
        };
        self.last = Some(last);
        // Counters are not reset, so after a clock was set back, one step gets the counts of several.
        if at <= last {
            return Ok(());
        }
        self.last = Some(at);
        let mut frame = Frame::default();
        self.source.read(&mut frame);
        if frame.is_empty() {
            return Ok(());
        }
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            statistics.meters.lost.up();
        }
        self.waiting.push_back(StatisticFrame {
            step: Resolution::FINE.step,
            at,
            node: statistics.node.clone(),
            body: frame.encode(),
        });
        Ok(())
    }

    async fn write(&mut self, statistics: &Statistics) -> Result<(), Fault> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let frames: Vec<_> = self.waiting.iter().cloned().collect();
        let count = frames.len() as u64;
        statistics
            .queue
            .put_statistics(frames, Vec::new(), None)
            .await?;
        self.waiting.clear();
        statistics.meters.written.add(count);
        Ok(())
    }

    /// Logs the first of several failures, and the recovery.
    fn note(&mut self, looked: Result<(), Fault>) {
        match looked {
            Ok(()) if self.is_failing => tracing::info!("statistics are written again"),
            Err(fault) if !self.is_failing => {
                tracing::warn!(cause = %fault.chain(), "writing statistics failed; retrying");
                self.is_failing = true;
                return;
            }
            Ok(()) => {}
            Err(_) => return,
        }
        self.is_failing = false;
    }
}

impl Statistics {
    /// The last step that has a frame of this node, of this process or of an earlier one.
    async fn last_step(&self, now: i64) -> Result<i64, Fault> {
        let fine = Resolution::FINE.step;
        let last = self.queue.last_statistic_frame(fine, &self.node).await?;
        // A clock that was wrong must not stop statistics.
        Ok(last.unwrap_or(0).min(floor(now, fine)))
    }

    /// Deletes statistics older than their retention or beyond the size limit.
    async fn prune(&self, now: i64) -> Result<(), Fault> {
        let seconds = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
        let spans = [
            (Resolution::FINE, self.settings.detail_retention),
            (Resolution::COARSE, self.settings.retention),
        ];
        for (resolution, span) in spans {
            let before = now.saturating_sub(seconds(span)) - resolution.chunk;
            self.queue.prune_statistics(resolution.step, before).await?;
        }
        let mut bytes = self.queue.statistic_bytes().await?;
        for (resolution, _) in spans {
            let excess = bytes.saturating_sub(self.settings.bytes_max);
            if excess > 0 {
                let freed = self.queue.free_statistics(resolution.step, excess).await?;
                bytes = bytes.saturating_sub(freed);
            }
        }
        self.meters.bytes.set(bytes);
        Ok(())
    }
}

impl Control {
    /// Writes the statistics of this node until cancelled.
    pub async fn keep_statistics(
        self: Arc<Self>,
        source: Arc<dyn StatisticsSource>,
        cancel: CancellationToken,
    ) {
        let mut keeper = Keeper::new(source);
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = cancel.cancelled() => break,
            }
            let looked = keeper.look(&self.statistics, self.clock.now()).await;
            keeper.note(looked);
        }
        let finished = keeper.finish(&self.statistics, self.clock.now()).await;
        keeper.note(finished);
    }

    /// The metrics of statistics.
    pub fn statistics_meters(&self) -> &super::StatisticsMeters {
        &self.statistics.meters
    }
}
