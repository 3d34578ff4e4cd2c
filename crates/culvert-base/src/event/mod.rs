//! A complete event, as it is stored and sent.

pub mod batch;

use crate::Timestamp;

/// One event with its rendered envelope (contract: events 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `ev_…`; identical for all destinations and attempts.
    pub id: String,
    /// Kind name with version suffix, such as `api_key_created.v0`.
    pub kind: String,
    /// When the event occurred. `body` contains this time too.
    pub at: Timestamp,
    /// `ac_…` of the account that the event belongs to.
    pub account: String,
    /// The whole envelope as one JSON object on one line, without a trailing newline.
    pub body: String,
}
