//! Where batches wait for their destinations: in memory, then in the event log.

pub(crate) mod buffer;
pub(crate) mod buffer_pool;
pub(crate) mod event_log;
pub(crate) mod spill;
pub(crate) mod spill_writer;
