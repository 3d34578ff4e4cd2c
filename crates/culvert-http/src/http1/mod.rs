//! HTTP/1 on the wire (RFC 9112).
//!
//! A server reads with a [`RequestReader`], a client with a [`ResponseReader`]. Both take heads and bodies off the front
//! of a buffer, which the caller fills. Both write into a [`WriteBuffer`], which the caller empties: the head with
//! [`write_request`] or [`head::write_response`], then the body with the [`BodyWriter`] that belongs to that head.
//! A [`Follower`](follow::Follower) finds the messages in bytes that only pass by.

mod body;
pub mod follow;
mod framing;
pub mod head;
mod raw;
pub mod refused;
mod request;
mod response;
mod write_buffer;

pub use body::{BodyLength, BodyPart, BodyReader, BodyWriter, WrongLength};
pub use framing::Violation;
pub use raw::{FieldSet, RAW_FIELDS_MAX, RawField, RawFields, RawRequest, RawResponse};
pub use request::{RequestHead, RequestReader, end_request, write_request};
pub use response::{FinalHead, ResponseHead, ResponseReader, body_writer};
pub use write_buffer::WriteBuffer;

pub(crate) use {
    body::Piece,
    framing::{Framing, Progress},
    raw::{
        DRAFT_BYTES_MAX, LINE_OVERHEAD, RawDraft, make_lower, read_lines, read_request_line,
        read_status_line,
    },
};

/// Limits of what a peer may send. Lengths are in bytes, other values are counts.
pub mod limits {
    pub use super::body::{
        CHUNK_DIGITS_MAX, CHUNK_EXTENSION_BYTES_MAX, TRAILER_BYTES_MAX, TRAILERS_MAX,
    };
    pub use super::framing::{
        FIELD_LINE_BYTES_MAX, FIELD_SECTION_BYTES_MAX, FIELDS_MAX, REQUEST_LINE_BYTES_MAX,
    };
    pub use super::response::{INTERIMS_MAX, RESPONSE_FIELDS_MAX, RESPONSE_HEAD_BYTES_MAX};
}

#[cfg(test)]
pub(crate) mod tests;
