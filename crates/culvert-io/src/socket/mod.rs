//! Sockets: their options, those that another process passes on, and the addresses of this machine.

pub(crate) mod inherited;
pub(crate) mod own_address;
pub mod tcp_options;
pub mod unix;
