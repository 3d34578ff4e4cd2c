//! The notice before events of the audit log are removed.

use std::fmt;

use culvert_base::{BoxFuture, Fault};

/// Writes the event of audit events that will be removed.
pub trait PruningNotice: fmt::Debug + Send + Sync {
    /// Writes it for the positions from `first`, the first retained one, to `last`. Returns the last position that an
    /// event names, which is an earlier one if there was an event a short while ago.
    fn announce(&self, first: i64, last: i64) -> BoxFuture<'_, Result<i64, Fault>>;
}
