//! Connections: their deadlines, and the addresses of their two ends.

pub mod connection_state;
pub mod peer;
