//! What targets reach the outside with: the network behind the address guard, and local files.

pub(crate) mod certificate_verifier;
pub mod guard;
pub(crate) mod nats_servers;
pub mod net;
pub mod rotating_file;
