//! Requests: read one after another, and written.

use bytes::BytesMut;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{Method, Version, request};

use crate::http1::body::{BodyPart, BodyReader, BodyWriter};
use crate::http1::framing::{Framing, Violation};
use crate::http1::head;
use crate::http1::raw::RawRequest;
use crate::http1::write_buffer::WriteBuffer;

/// The head of a request.
#[derive(Debug)]
pub enum RequestHead {
    /// As received.
    Raw(Box<RawRequest>),
    /// With a map of its fields, and its target in normal form.
    Parts(Box<request::Parts>),
}

impl RequestHead {
    /// The head with a map of its fields.
    ///
    /// # Errors
    ///
    /// When the head is malformed.
    pub fn into_parts(self) -> Result<Box<request::Parts>, Violation> {
        match self {
            Self::Raw(raw) => raw.parts().map_err(Violation::Malformed),
            Self::Parts(parts) => Ok(parts),
        }
    }

    /// Whether the client waits for 100 (Continue) (RFC 9110 10.1.1).
    pub fn expects_continue(&self) -> bool {
        match self {
            Self::Raw(raw) => raw.fields().iter().any(|field| field.is("expect")),
            Self::Parts(parts) => {
                parts.version == Version::HTTP_11 && parts.headers.contains_key(EXPECT)
            }
        }
    }

    /// The method.
    pub fn method(&self) -> &Method {
        match self {
            Self::Raw(raw) => raw.method(),
            Self::Parts(parts) => &parts.method,
        }
    }
}

/// Reads the requests of one connection from a buffer.
///
/// A head is returned only once all of it has been checked. No byte behind a message is read before
/// [`next_message`](Self::next_message). After a refused message nothing more is read.
#[derive(Debug, Default)]
pub struct RequestReader {
    framing: Framing,
    /// How many bytes at the front of the buffer were scanned and belong to an incomplete head.
    fed: usize,
    /// Whether no head is kept as received.
    reads_maps: bool,
}

impl RequestReader {
    /// Takes the next head off the front of `buffer`; `None` while it is incomplete. Up to two empty lines before it are
    /// skipped (RFC 9112 2.2).
    ///
    /// # Errors
    ///
    /// When the request is refused: then no other request follows on the connection. The buffer begins with the head.
    pub fn head(&mut self, buffer: &mut BytesMut) -> Result<Option<RequestHead>, Violation> {
        let is_first = self.framing.is_untouched();
        if is_first
            && !self.reads_maps
            && let Some((raw, body)) = RawRequest::take(buffer)
        {
            self.framing.skip_head(body);
            return Ok(Some(RequestHead::Raw(raw)));
        }
        let rest = buffer.get(self.fed..).unwrap_or_default();
        self.fed += self.framing.feed_head(rest);
        if let Some(violation) = self.framing.refused() {
            return Err(violation);
        }
        if !self.framing.has_head() {
            return Ok(None);
        }
        let mut head = buffer.split_to(std::mem::take(&mut self.fed));
        // It has arrived in pieces.
        if !is_first
            && !self.reads_maps
            && let Some((raw, _)) = RawRequest::take(&mut head)
        {
            return Ok(Some(RequestHead::Raw(raw)));
        }
        let head = head.freeze();
        match head::request(&head, self.framing.lines()) {
            Ok(parts) => Ok(Some(RequestHead::Parts(parts))),
            Err(what) => {
                // A refused head stays in the buffer.
                *buffer = BytesMut::from(head);
                let violation = Violation::of(what);
                self.refuse(violation);
                Err(violation)
            }
        }
    }

    /// Takes the next part of the body off the front of `buffer`.
    ///
    /// # Errors
    ///
    /// When the request is refused.
    pub fn body(&mut self, buffer: &mut BytesMut) -> Result<BodyPart, Violation> {
        self.framing.take_body(buffer)
    }

    /// Starts the next message, if the last one is complete. Otherwise the bytes of a body, or those behind a refused
    /// message, could be read as a request.
    pub fn next_message(&mut self) {
        debug_assert!(self.is_ended(), "the last message is incomplete");
        if self.is_ended() {
            *self = Self {
                reads_maps: self.reads_maps,
                ..Self::default()
            };
        }
    }

    /// Reads the fields of all later heads into maps, because those of this one are needed so.
    pub fn read_maps(&mut self) {
        self.reads_maps = true;
    }

    /// Whether `buffer` has bytes that were not scanned for a head.
    pub fn has_unread(&self, buffer: &[u8]) -> bool {
        self.fed < buffer.len()
    }

    /// Whether no byte of the message has been read.
    pub fn is_untouched(&self) -> bool {
        self.framing.is_untouched()
    }

    /// Whether the message is complete.
    pub fn is_ended(&self) -> bool {
        self.framing.is_ended()
    }

    /// The body.
    pub fn payload(&self) -> &BodyReader {
        self.framing.payload()
    }

    /// The reason for which the message is refused, if it is.
    pub fn refused(&self) -> Option<Violation> {
        self.framing.refused()
    }

    /// Refuses the message, for example because it took too long. What the buffer holds is not read.
    pub fn refuse(&mut self, violation: Violation) {
        self.framing.refuse(violation);
        self.fed = 0;
    }
}

/// Writes the head of a request with the field that frames its body, and returns the writer for the body. `body_bytes` is
/// the length of the body, if known, unless `parts` has a `content-length`.
pub fn write_request(
    out: &mut WriteBuffer,
    parts: &request::Parts,
    body_bytes: Option<u64>,
) -> BodyWriter {
    let out = out.front();
    head::write_request(out, parts);
    let announced = parts.headers.get(CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    end_request(out, &parts.method, announced, body_bytes)
}

/// Writes the field that frames the body of a request, unless its length was `announced`, and the end of the head.
pub fn end_request(
    out: &mut Vec<u8>,
    method: &Method,
    announced: Option<u64>,
    body_bytes: Option<u64>,
) -> BodyWriter {
    let sending = match announced.or(body_bytes) {
        // RFC 9110 8.6: the length of an empty body is sent only if the method usually has one.
        Some(0) if announced.is_none() => {
            if [Method::POST, Method::PUT, Method::PATCH].contains(method) {
                out.extend_from_slice(b"content-length: 0\r\n");
            }
            BodyWriter::None
        }
        Some(length) => {
            if announced.is_none() {
                out.extend_from_slice(format!("content-length: {length}\r\n").as_bytes());
            }
            BodyWriter::Length(length)
        }
        None => {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n");
            BodyWriter::Chunks {
                with_trailers: true,
            }
        }
    };
    out.extend_from_slice(b"\r\n");
    sending
}
