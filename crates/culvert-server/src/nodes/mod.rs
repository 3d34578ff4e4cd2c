//! The adapters between this process and the other nodes of its installation, and the agents that are connected to any of them.

pub(crate) mod cluster;
pub(crate) mod rate_exchange;
pub(crate) mod to_agents;
