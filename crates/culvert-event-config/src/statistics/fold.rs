//! Folds the frames of a period into a chunk for each subject.
//!
//! A node folds its own frames, and those of nodes that no longer run. An interrupted fold is repeated: frames are
//! deleted only after all their chunks are written, and existing chunks are not replaced.

use std::collections::BTreeMap;

use culvert_base::Fault;
use culvert_statistics::{Chunk, Frame, Key};
use culvert_store::{FrameRange, StatisticChunk, StatisticFrame};

use super::{Resolution, Statistics};

/// How long a node may delay folding its frames until another node folds them, in seconds.
const ABANDONED_AFTER: i64 = 3_600;
/// Frames in one read; more than the steps of a chunk.
const FRAMES_MAX: u32 = 64;
/// Chunks written in one transaction.
const CHUNKS_AT_ONCE: usize = 64;

impl Statistics {
    /// Folds all frames of a resolution whose chunks have ended.
    pub(super) async fn fold(&self, resolution: Resolution, now: i64) -> Result<(), Fault> {
        let ended = resolution.chunk_of(now);
        self.fold_before(resolution, ended, Some(&self.node))
            .await?;
        let abandoned = resolution.chunk_of(now - ABANDONED_AFTER);
        self.fold_before(resolution, abandoned, None).await
    }

    /// Folds the frames before a time: those of `node`, or of all nodes.
    async fn fold_before(
        &self,
        resolution: Resolution,
        end: i64,
        node: Option<&str>,
    ) -> Result<(), Fault> {
        loop {
            let range = (0, end);
            let frames = self
                .queue
                .statistic_frames(resolution.step, range, node, FRAMES_MAX)
                .await?;
            let Some(first) = frames.first() else {
                return Ok(());
            };
            let (at, node) = (resolution.chunk_of(first.at), first.node.clone());
            let range = (at, at + resolution.chunk);
            let frames = self
                .queue
                .statistic_frames(resolution.step, range, Some(&node), FRAMES_MAX)
                .await?;
            self.fold_chunk(resolution, at, node, &frames).await?;
        }
    }

    /// Folds the frames of one node in one chunk.
    async fn fold_chunk(
        &self,
        resolution: Resolution,
        at: i64,
        node: String,
        frames: &[StatisticFrame],
    ) -> Result<(), Fault> {
        let mut chunks: BTreeMap<Key, Chunk> = BTreeMap::new();
        let mut sum = Frame::default();
        for frame in frames {
            let step = u32::try_from((frame.at - at) / resolution.step).unwrap_or(0);
            let Ok(frame) = Frame::decode(&frame.body, |_| true) else {
                tracing::warn!(node, at = frame.at, "a frame of statistics is damaged");
                continue;
            };
            for (key, point) in frame.points() {
                chunks.entry(key.clone()).or_default().add(step, point);
            }
            sum.merge_step(frame);
        }
        let chunks: Vec<_> = chunks
            .into_iter()
            .map(|(key, chunk)| StatisticChunk {
                step: resolution.step,
                subject: key.to_string(),
                at,
                node: node.clone(),
                body: chunk.encode(),
            })
            .collect();
        for chunks in chunks.chunks(CHUNKS_AT_ONCE) {
            self.queue
                .put_statistics(Vec::new(), chunks.to_vec(), None)
                .await?;
        }
        let sums = (resolution == Resolution::FINE).then(|| StatisticFrame {
            step: Resolution::COARSE.step,
            at,
            node: node.clone(),
            body: sum.encode(),
        });
        let folded = FrameRange {
            step: resolution.step,
            node,
            from: at,
            to: at + resolution.chunk,
        };
        self.queue
            .put_statistics(sums.into_iter().collect(), Vec::new(), Some(folded))
            .await
    }
}
