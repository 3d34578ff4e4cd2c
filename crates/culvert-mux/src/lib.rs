//! muxado, the protocol that carries many streams over one connection to an agent, as a state
//! machine without I/O.
//!
//! A [`Connection`] is told what arrived ([`Connection::receive`]) and asked what to send
//! ([`Connection::transmit`]); it owns neither socket nor clock nor task. Whoever drives it moves
//! bytes, passes the time in, and turns [`Event`]s into wake-ups. So everything of interest is a
//! plain unit test, a simulation with a seed, and a fuzz target.
//!
//! What holds for any bytes a peer may send: nothing panics; memory stays under what [`Limits`]
//! allows; a fault of one stream ends that stream, a fault of the framing ends the connection, and
//! nothing else.
//!
//! Payload is [`bytes::Bytes`] throughout. Large pieces are handed on as slices of the buffer they
//! arrived in; small ones are copied, so that a few bytes never keep a large buffer alive.
//!
//! Not here: stream types, heartbeats and calls, which are conversations on streams.

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
pub use stream::{Broken, Read};
pub use window::WINDOW_BYTES;
