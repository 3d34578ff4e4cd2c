//! HTTP/2 on the wire, as a server speaks it (RFC 9113).
//!
//! What frames mean is decided by a machine without sockets or time of its own ([`session`]); field
//! sections are read and written in [`hpack`], and what a client may cost is kept in [`abuse`].

pub mod abuse;
pub mod frame;
pub mod head;
pub mod hpack;
pub mod session;
pub mod states;

pub use frame::Reason;
pub use head::{Protocol, Refused};
pub use session::{IncomingRequest, Session, StreamClosed};
