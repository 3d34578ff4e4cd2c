//! HTTP: one connection ([`server`]), one request ([`exchange`]), and what passes between.

pub(crate) mod body;
pub(crate) mod call;
pub(crate) mod coding;
pub(crate) mod exchange;
pub(crate) mod fields;
pub(crate) mod flood;
pub(crate) mod forward;
mod governed;
pub(crate) mod problem;
pub(crate) mod reply;
pub(crate) mod server;
pub(crate) mod unsent;
pub(crate) mod upgrade;
pub(crate) mod watch;
