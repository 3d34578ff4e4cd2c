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
pub use head::{IncomingHead, Protocol, Refused};
pub use session::{
    ConnectionError, GOAWAY_ACK_WITHIN, IncomingRequest, Session, Step, StreamClosed,
};

/// Limits of what a client may send. Lengths are in bytes, other values are counts.
pub mod limits {
    pub use super::abuse::{CONTINUATIONS_MAX, EARNED_FRAMES_MAX, IDLE_FRAMES, RESETS};
    pub use super::frame::PAYLOAD_BYTES_MAX;
    pub use super::head::LIST_BYTES_MAX;
    pub use super::hpack::TABLE_BYTES_MAX;
    pub use super::session::{CONNECTION_WINDOW, STREAM_WINDOW};
}
