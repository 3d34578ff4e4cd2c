//! Moves the bytes of connections: relays between two of them, read and write buffers, timers, and threads that
//! serve them.
//!
//! - [`run_relay`] moves bytes between a client and an upstream in both directions, under time limits. An idle relay holds
//!   no buffer, and the kernel moves the bytes of a fast one ([`Pipe`]).
//! - [`proxy`] reads and writes the header that a load balancer sends before the bytes of its client.
//! - [`upstream_tls`] sets up TLS to services, for the edge and for the agent.
//! - [`forward_proxy`] connects through the proxies that the variables of the environment name.
//! - [`ReadBuffer`] and [`write`](mod@write) are the two sides of an HTTP/1 connection, whose messages
//!   [`culvert_http::http1`] reads and writes.
//! - [`ConnectionThreads`] serve connections that stay on one thread from their first byte to their last.
//!
//! Nothing here knows routes, policies or upstreams.

mod alarm;
mod delegate;
pub mod file_calls;
pub mod forward_proxy;
pub mod fuzz;
pub mod proxy;
mod read_buffer;
mod relay;
mod socket;
pub mod threads;
mod turn;
mod upload_progress;
pub mod upstream_tls;
pub mod write;

pub use alarm::Alarm;
pub use delegate::Prefixed;
pub use read_buffer::ReadBuffer;
pub use relay::counted_upstream::{CountedUpstream, MovedBytes};
pub use relay::splice;
pub use relay::splice::Pipe;
pub use relay::timed_relay::{RelayLimits, run_relay};
pub use relay::{Relay, RelayClient, RelayEnd};
pub use socket::inherited::Inherited;
pub use socket::own_address::is_own_address;
pub use socket::{tcp_options, unix};
pub use threads::ConnectionThreads;
pub use turn::yield_turn;
pub use upload_progress::{Awaited, UploadMeter, UploadProgress};
