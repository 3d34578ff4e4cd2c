//! Statistics of endpoints, destinations, agents, nodes and API keys: the counts of this node, in the store.
//!
//! Every ten seconds a node writes one frame with its counts of all subjects. After five minutes the frames become a
//! chunk for each subject, and one frame with their sums; after two hours those frames become chunks too. So a write
//! costs one row regardless of the number of subjects, the history of one subject is read without the others, and two
//! resolutions are kept.
//!
//! Not here: counting (the planes), the layout of points (`culvert-statistics`), tables (`culvert-store`).

pub mod fold;
pub mod keeper;
pub mod query;
pub mod read;
pub mod view;

use std::fmt::Debug;
use std::sync::Arc;

use culvert_base::Meter;
use culvert_resources::settings::StatisticsSettings;
use culvert_statistics::Frame;
use culvert_store::Queue;

pub use self::keeper::Keeper;

/// A resolution: the length of its steps, and of its chunks, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resolution {
    step: i64,
    chunk: i64,
}

impl Resolution {
    /// Ten seconds. Its chunks are the steps of the coarse one.
    const FINE: Self = Self {
        step: 10,
        chunk: 300,
    };
    /// Five minutes.
    const COARSE: Self = Self {
        step: 300,
        chunk: 7_200,
    };

    /// The start of the chunk that contains a time.
    fn chunk_of(self, at: i64) -> i64 {
        floor(at, self.chunk)
    }
}

/// The last multiple of `step` at or before `at`.
fn floor(at: i64, step: i64) -> i64 {
    at - at.rem_euclid(step)
}

/// The counters of this node.
pub trait StatisticsSource: Debug + Send + Sync {
    /// Adds the counts since the last call to `frame`.
    fn read(&self, frame: &mut Frame);
}

/// Metrics of statistics.
#[derive(Debug, Default)]
pub struct StatisticsMeters {
    /// Frames written.
    pub written: Meter,
    /// Frames lost because the store was unavailable for too long.
    pub lost: Meter,
    /// Bytes of chunks in the store.
    pub bytes: Meter,
}

/// The statistics of an installation, and the name of this node in them.
#[derive(Debug)]
pub struct Statistics {
    queue: Queue,
    node: String,
    settings: StatisticsSettings,
    meters: Arc<StatisticsMeters>,
}

impl Statistics {
    /// Statistics in `queue`.
    pub fn new(queue: Queue, node: String, settings: StatisticsSettings) -> Self {
        Self {
            queue,
            node,
            settings,
            meters: Arc::default(),
        }
    }

    /// Where they are stored.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The name of this node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The metrics.
    pub fn meters(&self) -> &Arc<StatisticsMeters> {
        &self.meters
    }
}
