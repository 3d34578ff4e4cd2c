//! Writes and deletes statistics.

use crate::database::dialect::{Arg, Connection};
use crate::database::statements::events;

/// The counts of a node in one step, for all subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticFrame {
    /// Length of the step in seconds.
    pub step: i64,
    /// Its start, in seconds since 1970.
    pub at: i64,
    /// Name of the node.
    pub node: String,
    /// Opaque to the queue.
    pub body: Vec<u8>,
}

/// The counts of a node for one subject in several steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticChunk {
    /// Length of each step in seconds.
    pub step: i64,
    /// The subject, as text.
    pub subject: String,
    /// Start of the first step, in seconds since 1970.
    pub at: i64,
    /// Name of the node.
    pub node: String,
    /// Opaque to the queue.
    pub body: Vec<u8>,
}

/// Frames of one node and step, from one time to before another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRange {
    /// Length of each step in seconds.
    pub step: i64,
    /// Name of the node.
    pub node: String,
    /// Start of the first step, in seconds since 1970.
    pub from: i64,
    /// Start of the step after the last, in seconds since 1970.
    pub to: i64,
}

/// Rows deleted in one transaction.
pub(in crate::queue) const PRUNED_AT_ONCE: i64 = 512;

/// Writes frames and chunks and deletes folded frames.
pub(super) async fn put(
    connection: &mut Connection,
    frames: &[StatisticFrame],
    chunks: &[StatisticChunk],
    folded: Option<&FrameRange>,
) -> Result<u64, sqlx::Error> {
    let mut n_written = 0;
    for frame in frames {
        let arguments = [
            Arg::Int(frame.step),
            Arg::Int(frame.at),
            Arg::Text(&frame.node),
            Arg::Blob(&frame.body),
        ];
        n_written += connection
            .run(events::PUT_STATISTIC_FRAME, &arguments)
            .await?;
    }
    for chunk in chunks {
        let bytes = i64::try_from(chunk.body.len()).unwrap_or(i64::MAX);
        let arguments = [
            Arg::Int(chunk.step),
            Arg::Text(&chunk.subject),
            Arg::Int(chunk.at),
            Arg::Text(&chunk.node),
            Arg::Int(bytes),
            Arg::Blob(&chunk.body),
        ];
        n_written += connection
            .run(events::PUT_STATISTIC_CHUNK, &arguments)
            .await?;
    }
    if let Some(range) = folded {
        let arguments = [
            Arg::Int(range.step),
            Arg::Text(&range.node),
            Arg::Int(range.from),
            Arg::Int(range.to),
        ];
        n_written += connection
            .run(events::DROP_STATISTIC_FRAMES, &arguments)
            .await?;
    }
    Ok(n_written)
}

/// Deletes some of the frames and chunks of a step that begin before `before`.
pub(super) async fn prune(
    connection: &mut Connection,
    step: i64,
    before: i64,
) -> Result<u64, sqlx::Error> {
    let arguments = [Arg::Int(step), Arg::Int(before), Arg::Int(PRUNED_AT_ONCE)];
    let n_frames = connection
        .run(events::PRUNE_STATISTIC_FRAMES, &arguments)
        .await?;
    let n_chunks = connection
        .run(events::PRUNE_STATISTIC_CHUNKS, &arguments)
        .await?;
    Ok(n_frames + n_chunks)
}
