//! Retained events: the traffic log and captured messages, searches of both logs, and retention.

pub(crate) mod body_queue;
pub(crate) mod event_query;
pub(crate) mod open_pieces;
pub(crate) mod pruning_notice;
pub(crate) mod retained;
pub(crate) mod retained_bodies;
pub(crate) mod retained_pieces;
pub(crate) mod retention;
pub(crate) mod search_turns;
pub(crate) mod stored_piece;
