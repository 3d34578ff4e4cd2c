//! Statistics: counters that many threads write without locks, and the points of time that they become.
//!
//! - [`Histogram`] holds durations in log-linear buckets; histograms of several nodes or moments add up.
//! - [`Point`] is what was counted of one subject in one step of time; [`Frame`] is a step of all subjects of a node;
//!   [`Chunk`] is several steps of one subject.
//! - [`Traffic`] counts the traffic of endpoints.
//!
//! Not here: storage, clocks, and who may read what.
//!
//! # Statistics
//!
//! The edge counts an exchange when its response begins (`crates/culvert-edge/src/recording/counting.rs`), in
//! counters that the endpoint gets with its first traffic; each thread writes its own part
//! (`crates/culvert-statistics/src/traffic.rs`). Every ten seconds a task collects what all parts counted
//! (`crates/culvert-metrics/src/node_source.rs`) into one frame, which is one row in the store
//! (`crates/culvert-event-config/src/statistics/keeper.rs`). Each five minutes the frames become a chunk for each
//! subject, and a frame with their sums; after two hours these frames become chunks too
//! (`crates/culvert-event-config/src/statistics/fold.rs`). A reader adds the nodes up, and counts steps that are in
//! a chunk and in a frame once (`crates/culvert-event-config/src/statistics/read.rs`). Metrics read the same
//! counters. An unavailable store delays frames, and never traffic.

mod codec;
mod frame;
mod histogram;
mod point;
mod traffic;

pub use codec::Malformed;
pub use frame::{Chunk, Frame, Key, SubjectKind};
pub use histogram::{AtomicHistogram, BUCKETS, Histogram, upper_bound};
pub use point::{Field, Merge, Point, REFUSED};
pub use traffic::{EndpointCounters, Slot, Traffic, TrafficTotals, UpstreamUse};
