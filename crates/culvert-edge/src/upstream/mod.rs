//! Where traffic goes: upstream addresses, connections to them, and the pools that keep those.

pub(crate) mod agent;
pub(crate) mod connector;
pub(crate) mod fetch;
pub(crate) mod guard;
mod handover;
pub(crate) mod pool;
pub(crate) mod ports;
pub(crate) mod url;
