//! Connections of clients: accepted, with their endpoint and their TLS handshake, and the state of each.

pub(crate) mod conn_state;
pub(crate) mod connection_phase;
pub(crate) mod downstream;
pub(crate) mod http1_state;
pub(crate) mod listener;
pub(crate) mod replay_state;
pub(crate) mod socket;
