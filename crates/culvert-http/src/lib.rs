//! HTTP/1.1 and HTTP/2 as state machines over bytes, with what both share: request targets, header fields and
//! content codings.
//!
//! Nothing here does I/O, reads a clock or starts a task. A machine takes bytes and the current time, reports messages,
//! and writes its output to a [`WriteBuffer`](http1::WriteBuffer). The caller owns the socket and moves the bytes.
//!
//! For any bytes of a peer, nothing panics, memory stays within fixed limits, and the meaning of a message does not depend
//! on how its bytes arrive. A message that two parsers could read differently is refused. Errors that are texts name the
//! defect, for logs.
//!
//! - [`http1`]: HTTP/1.1 for servers and clients. [`http2`]: HTTP/2 for servers.
//! - [`target`], [`authority`] and [`fields`]: parts of messages of both versions. [`coding`]: content codings.
//! - [`refused_head`]: the known parts of a refused request.
//! - [`slow_reader`]: whether a client reads too slowly.

pub mod authority;
pub mod coding;
pub mod fields;
#[doc(hidden)]
pub mod fuzz;
pub mod http1;
pub mod http2;
#[cfg(test)]
mod random;
pub mod refused_head;
#[cfg(test)]
mod rfc9110;
pub mod slow_reader;
pub mod target;
