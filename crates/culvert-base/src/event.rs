//! A finished event: what is stored and sent.

use crate::Timestamp;

/// One event with its envelope already rendered (contract: events 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `ev_…`; the same for every destination and every attempt.
    pub id: String,
    /// Kind name with version suffix, such as `api_key_created.v0`.
    pub kind: String,
    /// When it happened; also inside `body`.
    pub at: Timestamp,
    /// `ac_…` of the account it belongs to.
    pub account: String,
    /// The whole envelope as one JSON object on one line, without a trailing newline.
    pub body: String,
}
