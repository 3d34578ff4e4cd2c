//! The notice before events of the audit log are removed, and the holds that keep them.

use std::fmt;

use culvert_base::{BoxFuture, Fault};
use culvert_store::Deciding;

/// Events of the audit log that no hold keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The last position of them, in one piece from the first retained one; the position before that one for none.
    pub up_to: i64,
    /// Whether a hold keeps the next one. Else there are no more, or they are not evaluated yet.
    pub is_held: bool,
    /// The holds that decided.
    pub deciding: Deciding,
}

/// Knows which events are kept beyond their retention.
pub trait PruningHolds: fmt::Debug + Send + Sync {
    /// Evaluates the holds on the events from `first`, the first retained one, to `last`.
    fn released(&self, first: i64, last: i64) -> BoxFuture<'_, Result<Released, Fault>>;
}

/// Writes the event of audit events that will be removed.
pub trait PruningNotice: fmt::Debug + Send + Sync {
    /// Writes it for the positions from `first`, the first retained one, to `last`. Returns the last position that an
    /// event names, which is an earlier one if there was an event a short while ago.
    fn announce(&self, first: i64, last: i64) -> BoxFuture<'_, Result<i64, Fault>>;
}
