//! muxado, the protocol that multiplexes streams over one connection to an agent, as a state machine without I/O.
//!
//! A [`Connection`] processes received bytes ([`Connection::receive`]) and produces bytes to send
//! ([`Connection::transmit`]). It has no socket, clock or task. The caller moves bytes, passes the time, and turns
//! [`Event`]s into wake-ups. So unit tests, seeded simulations and fuzz targets need no sockets.
//!
//! Guarantees for arbitrary input: no panic; memory stays within [`Limits`]; an error of one stream ends only that
//! stream, and a framing error ends only the connection.
//!
//! Payloads are [`bytes::Bytes`]. Large pieces are passed on as slices of the buffer they arrived in. Small ones are
//! copied, so that a few bytes never keep a large buffer alive.
//!
//! Stream types, heartbeats and calls are protocols on top of streams, and are elsewhere.

mod chunks;
mod code;
mod codec;
mod connection;
mod frame;
pub mod fuzz;
mod limits;
mod outbox;
mod retired;
mod stream;
mod window;

pub use code::{Ending, ErrorCode, Violation};
pub use codec::{Decoder, Piece};
pub use connection::{Connection, Event, OpenRefused};
pub use frame::{Frame, HEAD_BYTES, PAYLOAD_BYTES_MAX, Side, StreamId};
pub use limits::{Limits, OURS_STREAMS_MAX};
pub use outbox::Outbox;
pub use stream::{Broken, Read, Source};
pub use window::WINDOW_BYTES;
