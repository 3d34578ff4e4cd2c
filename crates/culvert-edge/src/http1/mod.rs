//! HTTP/1 connections: to clients ([`server`]) and to upstreams ([`client`]). [`culvert_http::http1`] parses and writes
//! the messages.
//!
//! Neither has a task or a queue. The task that serves an exchange polls both, so it moves request and response from the
//! first byte to the last, and reads a body only as fast as the other side accepts it.
//!
//! Routing and the meaning of requests are in [`http`](crate::http).

pub(crate) mod client;
pub(crate) mod server;
