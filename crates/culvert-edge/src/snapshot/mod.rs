//! Which endpoints there are, and which certificates.
//!
//! Control builds a [`Snapshot`](culvert_edge_config::Snapshot) or a [`Change`](culvert_edge_config::Change). The
//! [`compiler`] turns it into [`LiveSnapshot`](live_snapshot::LiveSnapshot): tables that a request reads without a lock.

pub(crate) mod address;
pub(crate) mod compiler;
mod data_readers;
pub(crate) mod freshness;
pub(crate) mod group;
pub(crate) mod live_snapshot;
pub(crate) mod operators;
pub(crate) mod removal;
pub(crate) mod route;
