//! Writes the counts of this node, and deletes old ones.
//!
//! Counters are not reset, so a step that gets no frame is counted in a later one. When the clock was set back, steps that
//! have a frame already get none. When it was set forward, nothing is folded or deleted by it for a day.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Clock, Fault, RetentionClock, Timestamp};
use culvert_statistics::{Frame, Key, SubjectKind};
use culvert_store::StatisticFrame;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Resolution, Statistics, StatisticsSource, floor};
use crate::EventConfig;

/// Interval of checks whether a step has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of frames that wait for an unavailable store: ten minutes. Beyond it, the oldest is lost.
const WAITING_MAX: usize = 60;
/// Most rows of one chunk of the node: those of nodes that had its name.
const CHUNKS_MAX: u32 = 8;

/// Writes the statistics of this node.
#[derive(Debug)]
pub struct Keeper {
    source: Arc<dyn StatisticsSource>,
    /// Start of the last step that ended; `None` before the first call of [`Keeper::step`].
    last: Option<i64>,
    /// Frames that are not written yet.
    waiting: VecDeque<StatisticFrame>,
    /// Start of the chunk up to which frames were folded and old rows were deleted.
    folded: Option<i64>,
    /// By which steps have ended long enough ago to be folded, and rows are old.
    aging: RetentionClock,
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
            folded: None,
            aging: RetentionClock::default(),
            is_failing: false,
        }
    }

    /// Writes a frame if a step has ended. Every five minutes, also folds frames and deletes old rows. Frames that
    /// cannot be written are kept for the next call, up to a limit.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn step(&mut self, statistics: &Statistics, clock: &dyn Clock) -> Result<(), Fault> {
        let now = clock.now().unix_seconds();
        let aged = self.aging.now(clock, Instant::now().into_std());
        let ended = floor(now, Resolution::FINE.step);
        self.collect(statistics, ended - Resolution::FINE.step)
            .await;
        self.write(statistics).await?;
        let aged = aged.unix_seconds();
        let folded = Some(Resolution::FINE.chunk_of(aged));
        if folded != self.folded {
            statistics.fold(Resolution::FINE, aged).await?;
            statistics.fold(Resolution::COARSE, aged).await?;
            statistics.prune(aged).await?;
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
        let mut at = floor(now, Resolution::FINE.step);
        // No later step of this process can have the counts.
        while at < now + Resolution::FINE.chunk && statistics.has_step(at).await? {
            at += Resolution::FINE.step;
        }
        self.collect(statistics, at).await;
        self.write(statistics).await
    }

    /// Reads the counters into the frame of the step that begins at `at`, unless it has one.
    async fn collect(&mut self, statistics: &Statistics, at: i64) {
        if self.last == Some(at) {
            return;
        }
        self.last = Some(at);
        let is_waiting = self.waiting.iter().any(|frame| frame.at == at);
        // While the store is unavailable, frames wait. In the usual case the step has none.
        if is_waiting || statistics.has_step(at).await.unwrap_or(false) {
            return;
        }
        let mut frame = Frame::default();
        self.source.read(&mut frame);
        if frame.is_empty() {
            return;
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
    /// Whether a step of ten seconds has counts of this node, of this process or of an earlier one.
    async fn has_step(&self, at: i64) -> Result<bool, Fault> {
        let (fine, chunk) = (Resolution::FINE.step, Resolution::FINE.chunk_of(at));
        let frames = self
            .queue
            .statistic_frames(fine, (at, at + 1), Some(&self.node), 1)
            .await?;
        if !frames.is_empty() {
            return Ok(true);
        }
        // Every frame counts the node itself, so a chunk that was folded has a row of it.
        let node = Key::new(SubjectKind::Node, "", &self.node).to_string();
        let chunks = self
            .queue
            .statistic_chunks(fine, &node, (chunk, chunk + 1), CHUNKS_MAX)
            .await?;
        Ok(chunks.iter().any(|chunk| chunk.node == self.node))
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

impl EventConfig {
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
            let looked = keeper.step(&self.statistics, &*self.kernel.clock).await;
            keeper.note(looked);
        }
        let finished = keeper
            .finish(&self.statistics, self.kernel.clock.now())
            .await;
        keeper.note(finished);
    }

    /// The metrics of statistics.
    pub fn statistics_meters(&self) -> &super::StatisticsMeters {
        &self.statistics.meters
    }
}
