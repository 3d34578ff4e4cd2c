//! HTTP/2 on the wire, as a server speaks it (RFC 9113): one connection ([`Inbound`]), the requests that
//! its streams bring ([`Asked`]), and a stream's two ends ([`Receiver`], [`Sender`]).
//!
//! What frames mean is decided by a machine without sockets or time of its own ([`session`]); field
//! sections are read and written in [`hpack`], and what a client may cost is kept in [`ledger`]. One task
//! drives a connection and all its exchanges.
//!
//! Not here: HTTP/2 to upstreams, which a library speaks, and what a request means (`http`).

pub(crate) mod frame;
pub(crate) mod head;
pub(crate) mod hpack;
mod inbound;
pub(crate) mod ledger;
pub(crate) mod session;
pub(crate) mod states;
mod stream;

pub(crate) use frame::Reason;
pub(crate) use head::Refused;
pub(crate) use inbound::{Inbound, Over};
pub(crate) use session::Asked;
pub(crate) use stream::{Receiver, Sender, Tunnelled};
