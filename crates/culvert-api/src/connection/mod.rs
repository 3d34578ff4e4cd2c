//! Connections: accepted within limits, served and drained.

pub(crate) mod serve;
