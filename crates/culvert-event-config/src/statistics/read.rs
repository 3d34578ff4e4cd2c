//! Reads points of all nodes, from frames and chunks.

use std::collections::{BTreeMap, HashMap, HashSet};

use culvert_base::Fault;
use culvert_statistics::{Chunk, Frame, Key, Point, SubjectKind};

use super::{Resolution, Statistics, floor};

/// Maximum number of rows of one read.
const ROWS_MAX: u32 = 20_000;
/// Chunks of each operation of one API key in one read, for each node.
const CHUNKS_OF_KEY: i64 = 24;
/// Chunks of one subject in one read, for each node.
const CHUNKS_OF_ONE: i64 = 288;

/// The subjects that are read.
#[derive(Clone, Debug)]
pub(super) enum Selection {
    /// One subject.
    One(Key),
    /// All subjects of a kind in an account.
    All(SubjectKind, String),
    /// All operations of one API key.
    OfKey(Key),
}

impl Selection {
    /// The prefix that only keys of the selection have, or the text of its single key.
    fn text(&self) -> String {
        match self {
            Self::One(key) => key.to_string(),
            Self::All(kind, account) => Key::prefix(*kind, account),
            Self::OfKey(key) => format!("{key}/"),
        }
    }

    fn wants(&self, text: &str, subject: &str) -> bool {
        match self {
            Self::One(_) => subject == text,
            Self::All(..) | Self::OfKey(_) => subject.starts_with(text),
        }
    }
}

/// A range of time, in seconds: from its start to before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from: i64,
    pub(super) to: i64,
}

/// Points of subjects by the start of their step, for each node.
type ByNode = HashMap<Key, BTreeMap<i64, HashMap<String, Point>>>;

/// Collects points of one resolution into steps.
struct Collected {
    range: Range,
    /// Length of the wanted steps; all of the range is one step if this is 0.
    step: i64,
    points: ByNode,
}

impl Collected {
    fn add(&mut self, key: &Key, node: &str, at: i64, point: &Point) {
        if !(self.range.from..self.range.to).contains(&at) {
            return;
        }
        let step = match self.step {
            0 => self.range.from,
            step => floor(at, step),
        };
        let steps = self.points.entry(key.clone()).or_default();
        let nodes = steps.entry(step).or_default();
        match nodes.get_mut(node) {
            Some(sum) => sum.merge_step(point),
            None => {
                nodes.insert(node.to_owned(), point.clone());
            }
        }
    }

    /// The points of all nodes together.
    fn merged(self) -> BTreeMap<Key, BTreeMap<i64, Point>> {
        let merge = |nodes: HashMap<String, Point>| {
            let mut nodes = nodes.into_values();
            let first = nodes.next().unwrap_or_default();
            nodes.fold(first, |mut sum, point| {
                sum.merge_node(&point);
                sum
            })
        };
        let subjects = self.points.into_iter();
        subjects
            .map(|(key, steps)| {
                let steps = steps.into_iter();
                (key, steps.map(|(at, nodes)| (at, merge(nodes))).collect())
            })
            .collect()
    }
}

/// Frames as read from the store: node, start of the step, points.
type Frames = Vec<(String, i64, Frame)>;

impl Statistics {
    /// The points of the endpoints of an account, in steps of ten seconds from `from` to before `to`, by ID and the start
    /// of the step, both in seconds. Steps that have not ended are not in it.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn endpoint_points(
        &self,
        account: &str,
        (from, to): (i64, i64),
    ) -> Result<BTreeMap<String, BTreeMap<i64, Point>>, Fault> {
        let selection = Selection::All(SubjectKind::Endpoint, account.to_owned());
        let range = Range { from, to };
        let fine = Resolution::FINE;
        let points = self.points(&selection, fine, range, fine.step).await?;
        let by_id = |(key, steps): (Key, _)| (key.id().to_owned(), steps);
        Ok(points.into_iter().map(by_id).collect())
    }

    /// The points of subjects in steps of this many seconds; 0 for one step.
    pub(super) async fn points(
        &self,
        selection: &Selection,
        resolution: Resolution,
        range: Range,
        step: i64,
    ) -> Result<BTreeMap<Key, BTreeMap<i64, Point>>, Fault> {
        let mut collected = Collected {
            range,
            step,
            points: HashMap::new(),
        };
        // The frames are read first. Those that are folded in between are found twice, but counted once.
        let mut fine = self.frames(Resolution::FINE, selection, range).await?;
        if resolution == Resolution::FINE {
            self.add(Resolution::FINE, selection, fine, &mut collected)
                .await?;
            return Ok(collected.merged());
        }
        let mut frames = self.frames(resolution, selection, range).await?;
        let folded: HashSet<(&str, i64)> =
            frames.iter().map(|(node, at, _)| (&**node, *at)).collect();
        fine.retain(|(node, at, _)| !folded.contains(&(&**node, Resolution::FINE.chunk_of(*at))));
        for (_, at, _) in &mut fine {
            *at = Resolution::FINE.chunk_of(*at);
        }
        frames.extend(fine);
        self.add(resolution, selection, frames, &mut collected)
            .await?;
        Ok(collected.merged())
    }

    /// Adds all chunks, and the points of frames that are in none of them.
    async fn add(
        &self,
        resolution: Resolution,
        selection: &Selection,
        frames: Frames,
        collected: &mut Collected,
    ) -> Result<(), Fault> {
        // Earlier points are only in chunks.
        let first = frames.iter().map(|(_, at, _)| *at).min();
        let mut folded: HashSet<(Key, String, i64)> = HashSet::new();
        let end = collected.range.to;
        // All subjects are read chunk by chunk, which limits the memory.
        let span = match selection {
            Selection::One(_) => CHUNKS_OF_ONE * resolution.chunk,
            Selection::All(..) => resolution.chunk,
            Selection::OfKey(_) => CHUNKS_OF_KEY * resolution.chunk,
        };
        let mut at = resolution.chunk_of(collected.range.from);
        while at < end {
            let next = end.min(at + span);
            for chunk in self.chunks(resolution, selection, (at, next)).await? {
                let key = Key::parse(&chunk.subject);
                let (Some(key), Ok(points)) = (key, Chunk::decode(&chunk.body)) else {
                    tracing::warn!(chunk.node, chunk.at, "a chunk of statistics is damaged");
                    continue;
                };
                for (step, point) in points.points() {
                    let at = chunk.at + i64::from(step) * resolution.step;
                    collected.add(&key, &chunk.node, at, point);
                }
                if first.is_some_and(|first| chunk.at + resolution.chunk > first) {
                    folded.insert((key, chunk.node, chunk.at));
                }
            }
            at = next;
        }
        for (node, at, frame) in frames {
            let chunk = resolution.chunk_of(at);
            for (key, point) in frame.points() {
                if folded.is_empty() || !folded.contains(&(key.clone(), node.clone(), chunk)) {
                    collected.add(key, &node, at, point);
                }
            }
        }
        Ok(())
    }

    async fn chunks(
        &self,
        resolution: Resolution,
        selection: &Selection,
        range: (i64, i64),
    ) -> Result<Vec<culvert_store::StatisticChunk>, Fault> {
        let (step, text) = (resolution.step, selection.text());
        match selection {
            Selection::One(_) => {
                self.queue
                    .statistic_chunks(step, &text, range, ROWS_MAX)
                    .await
            }
            Selection::All(..) | Selection::OfKey(_) => {
                self.queue
                    .statistic_chunks_with(step, &text, range, ROWS_MAX)
                    .await
            }
        }
    }

    /// The frames of a range, with the selected subjects.
    async fn frames(
        &self,
        resolution: Resolution,
        selection: &Selection,
        range: Range,
    ) -> Result<Frames, Fault> {
        let from = floor(range.from, resolution.step);
        let stored = self
            .queue
            .statistic_frames(resolution.step, (from, range.to), None, ROWS_MAX)
            .await?;
        let text = selection.text();
        let read = |frame: culvert_store::StatisticFrame| {
            let points = Frame::decode(&frame.body, |subject| selection.wants(&text, subject));
            match points {
                Ok(points) => Some((frame.node, frame.at, points)),
                Err(_) => {
                    tracing::warn!(frame.node, frame.at, "a frame of statistics is damaged");
                    None
                }
            }
        };
        Ok(stored.into_iter().filter_map(read).collect())
    }
}
