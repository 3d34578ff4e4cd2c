//! HTTP/2 connections to clients ([`Inbound`]) and their streams ([`Receiver`], [`Sender`]). [`culvert_http::http2`] decides
//! what frames mean. One task drives a connection and all its exchanges.
//!
//! HTTP/2 to upstreams uses a library. The meaning of requests is in [`http`](crate::http).

mod inbound;
mod stream;

pub(crate) use inbound::{Inbound, Over};
pub(crate) use stream::{Receiver, Sender, Tunnelled};
