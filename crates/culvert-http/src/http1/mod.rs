//! HTTP/1 on the wire (RFC 9112): heads and bodies as bytes.

pub mod framing;
pub mod head;
mod outbox;
pub mod payload;
pub mod response;

pub use framing::{FIELDS_MAX, Framing, Progress, Violation};
pub use head::End;
pub use outbox::Outbox;
pub use payload::{Payload, Piece, Sending, WrongLength};
