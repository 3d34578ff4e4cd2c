//! The counts of rate limits: on one node, and shared by all nodes.

pub mod fair_table;
pub mod shared_counts;
