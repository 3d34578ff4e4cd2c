//! Moves the bytes of connections: relays between two of them, read and write buffers, timers, and threads that serve them.
//!
//! - [`run_relay`] moves bytes between a client and an upstream in both directions, under time limits. An idle relay holds
//!   no buffer, and the kernel moves the bytes of a fast one ([`Pipe`]).
//! - [`proxy`] reads and writes the header that a load balancer sends before the bytes of its client.
//! - [`ReadBuffer`] and [`write`](mod@write) are the two sides of an HTTP/1 connection, whose messages
//!   [`culvert_http::http1`] reads and writes.
//! - [`ConnectionThreads`] serve connections that stay on one thread from their first byte to their last.
//!
//! Nothing here knows routes, policies or upstreams.

mod alarm;
mod counted_upstream;
mod delegate;
pub mod fuzz;
mod inherited;
pub mod proxy;
mod read_buffer;
mod relay;
pub mod splice;
pub mod tcp_options;
pub mod threads;
mod timed_relay;
mod turn;
mod upload_progress;
pub mod write;

pub use alarm::Alarm;
pub use counted_upstream::{CountedUpstream, MovedBytes};
pub use delegate::Prefixed;
pub use inherited::Inherited;
pub use read_buffer::ReadBuffer;
pub use relay::{Relay, RelayClient, RelayEnd};
pub use splice::Pipe;
pub use threads::ConnectionThreads;
pub use timed_relay::{RelayLimits, run_relay};
pub use turn::yield_turn;
pub use upload_progress::{Awaited, UploadMeter, UploadProgress};
