//! HTTP/1 on the wire (RFC 9112): heads and bodies as bytes.
//!
//! A server reads with a [`RequestReader`], a client with a [`ResponseReader`]; both write into an [`Outbox`].

pub mod follow;
pub mod framing;
pub mod head;
mod outbox;
pub mod payload;
pub mod request;
pub mod response;

pub use follow::Follower;
pub use framing::{FIELDS_MAX, Framing, Progress, Violation};
pub use outbox::Outbox;
pub use payload::{BodyLength, Part, Payload, Piece, Sending, WrongLength};
pub use request::RequestReader;
pub use response::{ResponseHead, ResponseReader};

#[cfg(test)]
mod tests;
