//! HTTP/2 on the wire, as a server speaks it (RFC 9113).
//!
//! A [`Session`] is one connection. It reads frames from a buffer that the caller fills, reports each
//! [`IncomingRequest`], and writes frames into a [`WriteBuffer`](crate::http1::WriteBuffer) that the caller empties.
//! [`states`] is the table of what each frame does in each state of its stream, and of what it costs the client.

pub(crate) mod abuse;
mod follow;
pub(crate) mod frame;
pub(crate) mod head;
pub(crate) mod hpack;
pub(crate) mod session;
pub mod states;

pub use abuse::Flood;
pub use follow::Follower;
pub use frame::Reason;
pub use head::{IncomingHead, Protocol, Refused, Schemes};
pub use session::{
    ConnectionError, GOAWAY_ACK_WITHIN, IncomingRequest, Session, Step, StreamClosed,
};

/// Whether a client that begins with these bytes, which are no request of HTTP/1, speaks HTTP/2 with prior knowledge
/// (RFC 9113 3.3). At least the first line of the preface must have arrived.
pub fn is_prior_knowledge(bytes: &[u8]) -> bool {
    const LINE: &[u8] = b"PRI * HTTP/2.0\r\n";
    let both = bytes.len().min(frame::PREFACE.len());
    bytes.starts_with(LINE) && bytes.get(..both) == frame::PREFACE.get(..both)
}

/// Limits of what a client may send. Lengths are in bytes, other values are counts.
pub mod limits {
    pub use super::abuse::{CONTINUATIONS_MAX, EARNED_FRAMES_MAX, IDLE_FRAMES, RESETS};
    pub use super::frame::PAYLOAD_BYTES_MAX;
    pub use super::head::LIST_BYTES_MAX;
    pub use super::hpack::TABLE_BYTES_MAX;
    pub use super::session::{CONNECTION_WINDOW, STREAM_WINDOW};
}
