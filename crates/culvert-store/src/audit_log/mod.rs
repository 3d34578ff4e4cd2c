//! The audit log: events in commit order with their hash chain, how they are read, and the index by which they and
//! traffic events are found.

pub(crate) mod audit;
pub(crate) mod beginning;
pub(crate) mod chain;
pub(crate) mod event_index;
pub(crate) mod event_names;
pub(crate) mod follower;
pub(crate) mod outbox;
pub(crate) mod rebuild;
pub(crate) mod record;
pub(crate) mod repair;
pub(crate) mod tree;
