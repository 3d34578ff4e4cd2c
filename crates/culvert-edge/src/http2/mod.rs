//! HTTP/2 connections to clients ([`server`]) and their streams ([`stream`]). [`culvert_http::http2`] decides
//! what frames mean. One task drives a connection and all its exchanges.
//!
//! HTTP/2 to upstreams uses a library. The meaning of requests is in [`http`](crate::http).

pub(crate) mod server;
pub(crate) mod stream;
