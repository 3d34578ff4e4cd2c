//! HTTP/1.1 and HTTP/2 as state machines over bytes, with what both share: request targets, header fields and
//! content codings.
//!
//! Nothing here does I/O. Machines take bytes and the present moment, say what the bytes mean, and leave what is to
//! be sent in an [`WriteBuffer`](http1::WriteBuffer). Whoever owns a socket moves bytes between the two.
//!
//! What holds for any bytes of a peer: nothing panics, memory stays within fixed limits, and what a message means
//! does not depend on how its bytes arrive. A message that two parsers could read differently is refused.

pub mod authority;
pub mod coding;
pub mod fields;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod http1;
pub mod http2;
#[cfg(test)]
mod random;
#[cfg(test)]
mod rfc9110;
pub mod slow_reader;
pub mod target;
