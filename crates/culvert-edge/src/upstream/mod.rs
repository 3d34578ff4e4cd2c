//! Where traffic goes: upstream addresses, connections to them, and the pools that keep those.

mod agent;
mod guard;
mod pool;
mod url;

pub use agent::{AgentCall, AgentIo, AgentRefused, AgentStream, Dial, ProxyVersion};
pub(crate) use guard::Reach;
pub(crate) use pool::{Failure, Heard, Lease, Pool, Sent};
pub(crate) use url::{DialError, Dialer, UpWire};
pub use url::{Protocol, Upstream};
