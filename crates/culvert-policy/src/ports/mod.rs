//! Ports to everything outside a policy: the network, the runtime, endpoints and bodies.

pub(crate) mod forward_target;
pub mod host;
pub mod services;
