//! HTTP/1 on the wire (RFC 9112): heads and bodies as bytes.
//!
//! A server reads with a [`RequestReader`], a client with a [`ResponseReader`]; both write into an [`WriteBuffer`].

pub mod body;
pub mod follow;
pub mod framing;
pub mod head;
pub mod request;
pub mod response;
mod write_buffer;

pub use body::{BodyLength, BodyReader, BodyWriter, Part, Piece, WrongLength};
pub use follow::Follower;
pub use framing::{FIELDS_MAX, Framing, Progress, Violation};
pub use request::RequestReader;
pub use response::{ResponseHead, ResponseReader};
pub use write_buffer::WriteBuffer;

#[cfg(test)]
pub(crate) mod tests;
