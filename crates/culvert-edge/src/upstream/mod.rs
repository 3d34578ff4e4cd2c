//! Where traffic goes: upstream addresses, connections to them, and the pools that keep those.

mod pool;
mod url;

pub(crate) use pool::{Failure, Lease, Pool, Sent};
pub(crate) use url::{DialError, Dialer, UpWire, trusted_roots};
pub use url::{Protocol, Upstream};
