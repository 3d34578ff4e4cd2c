//! Commits: changes and their conditions, the task that writes them, and the history in which they stand.

pub(crate) mod answers;
pub(crate) mod changes;
pub(crate) mod commit_error;
pub(crate) mod condition;
pub(crate) mod history;
pub(crate) mod revision;
pub(crate) mod state_log;
pub(crate) mod write_latency;
pub(crate) mod writer;
