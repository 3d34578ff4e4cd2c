//! Connections: accepted within limits, served and drained, with the addresses of their two ends.

pub(crate) mod connection_state;
pub(crate) mod peer;
pub(crate) mod serve;
