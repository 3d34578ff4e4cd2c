//! HTTP/1 on the wire (RFC 9112): heads and bodies as bytes, a client's connection ([`Inbound`]) and a
//! connection to an upstream ([`Outbound`]).
//!
//! Neither has a task or a queue of its own. Whoever serves an exchange polls both ends, so a request and
//! its answer are moved by one task from the first byte to the last, and a body is read only as fast as
//! the other end takes it.
//!
//! Not here: what a request means, where it goes and what becomes of it (`http`).

pub(crate) mod framing;
mod head;
mod inbound;
mod inbox;
pub(crate) mod outbound;
mod outbox;
pub(crate) mod payload;

pub(crate) use framing::{FIELDS_MAX, Framing, Progress, Violation};
pub(crate) use head::{End, answer, write_answer};
pub(crate) use inbound::{Inbound, InboundBody, Next};
pub(crate) use outbound::{Outbound, OutboundError, answers_payload, content_length};
pub(crate) use outbox::Outbox;
pub(crate) use payload::{Piece, Sending};
