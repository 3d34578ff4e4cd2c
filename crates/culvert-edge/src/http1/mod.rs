//! HTTP/1 connections: a client's ([`Inbound`]) and one to an upstream ([`Outbound`]). What passes on them
//! is read and written by [`culvert_http::http1`].
//!
//! Neither has a task or a queue of its own. Whoever serves an exchange polls both ends, so a request and
//! its answer are moved by one task from the first byte to the last, and a body is read only as fast as
//! the other end takes it.
//!
//! Not here: what a request means, where it goes and what becomes of it (`http`).

mod inbound;
mod inbox;
mod outbound;
pub(crate) mod write;

pub(crate) use inbound::{Inbound, InboundBody, Next};
pub(crate) use outbound::{Outbound, OutboundError};
