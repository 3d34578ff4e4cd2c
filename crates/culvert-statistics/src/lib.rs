//! Statistics: counters that many threads write without locks, and the points of time that they become.
//!
//! - [`Histogram`] holds durations in log-linear buckets; histograms of several nodes or moments add up.
//! - [`Point`] is what was counted of one subject in one step of time; [`Frame`] is a step of all subjects of a node;
//!   [`Chunk`] is several steps of one subject.
//! - [`Traffic`] counts the traffic of endpoints.
//!
//! Not here: storage, clocks, and who may read what.

mod codec;
mod frame;
mod histogram;
mod point;
mod traffic;

pub use codec::Malformed;
pub use frame::{Chunk, Frame, Key, SubjectKind};
pub use histogram::{AtomicHistogram, BUCKETS, Histogram, upper_bound};
pub use point::{Field, Merge, Point};
pub use traffic::{EndpointCounters, Slot, Traffic, TrafficTotals};
