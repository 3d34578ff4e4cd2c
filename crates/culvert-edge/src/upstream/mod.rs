//! Where traffic goes: upstream addresses, connections to them, and the pools that keep those.

mod agent;
mod fetch;
mod guard;
mod handover;
mod pool;
mod url;

pub(crate) use agent::refusal;
pub use agent::{AgentCall, AgentIo, AgentRefused, Dial, ProxyVersion};
pub(crate) use fetch::Network;
pub use fetch::PublicClient;
pub(crate) use guard::Reach;
pub(crate) use pool::{Failure, Heard, Lease, Pool, Sent};
pub use url::{Clients, Protocol, Upstream};
pub(crate) use url::{DialError, Dialer, UpWire};
