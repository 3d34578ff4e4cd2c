//! HTTP/1 connections of clients. [`culvert_http::http1`] parses and writes the messages.
//!
//! The server has no task and no queue. The task that serves an exchange polls it, and so moves request and response from the
//! first byte to the last, and reads a body only as fast as the other side accepts it.
//!
//! Routing and the meaning of requests are in [`http`](crate::http).

pub(crate) mod server;
