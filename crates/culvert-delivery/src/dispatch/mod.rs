//! Copies events from the logs to the queue: new audit events, and replays.

pub(crate) mod copies;
pub(crate) mod dispatcher;
pub(crate) mod replay;
pub(crate) mod replayer;
