//! An HTTP/2 connection to a client ([`Inbound`]), and a stream's two ends ([`Receiver`], [`Sender`]). What
//! its frames mean is decided by [`culvert_http::http2`]. One task drives a connection and all its exchanges.
//!
//! Not here: HTTP/2 to upstreams, which a library speaks, and what a request means (`http`).

mod inbound;
mod stream;

pub(crate) use inbound::{Inbound, Over};
pub(crate) use stream::{Receiver, Sender, Tunnelled};
