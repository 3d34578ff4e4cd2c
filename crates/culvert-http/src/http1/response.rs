//! The responses of a connection: read in the order of their requests, and written.

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{StatusCode, Version, response};
use http_body::SizeHint;

use crate::fields::has_token;
use crate::http1::body::{BodyLength, BodyReader, BodyWriter, Part};
use crate::http1::head;

/// Most bytes of a response's head, and most of its lines.
pub const HEAD_BYTES_MAX: usize = 96 << 10;
pub const FIELDS_MAX: usize = 128;
/// Most interim responses to a request (RFC 9110 15.2).
pub const INTERIMS_MAX: u32 = 8;

const TOO_LONG: &str = "the head is too long";

/// Reads the responses of one connection from a buffer, one request at a time.
#[derive(Debug)]
pub struct ResponseReader {
    /// How far the end of a head was looked for.
    end: head::End,
    /// Of the response whose head was given out; `None` while that is awaited.
    payload: Option<BodyReader>,
    is_head: bool,
    interims: u32,
    keeps_alive: bool,
}

/// The head of a response.
#[derive(Debug)]
pub enum ResponseHead {
    /// An interim response (RFC 9110 15.2): another head follows.
    Interim(response::Parts),
    /// The response itself.
    Final(response::Parts),
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self {
            end: head::End::default(),
            payload: Some(BodyReader::none()),
            is_head: false,
            interims: 0,
            keeps_alive: true,
        }
    }
}

impl ResponseReader {
    /// A request was sent, of HEAD or of another method: its response is awaited.
    pub fn expect(&mut self, is_head: bool) {
        self.is_head = is_head;
        self.payload = None;
        self.interims = 0;
    }

    /// Takes the next head off the front of `buffer`, once it is whole.
    ///
    /// # Errors
    ///
    /// When the bytes are no response, or more than one.
    pub fn head(&mut self, buffer: &mut BytesMut) -> Result<Option<ResponseHead>, &'static str> {
        let Some(end) = self.end.find(buffer) else {
            if buffer.len() > HEAD_BYTES_MAX {
                return Err(TOO_LONG);
            }
            return Ok(None);
        };
        let lines = std::mem::take(&mut self.end).fields();
        if end > HEAD_BYTES_MAX {
            return Err(TOO_LONG);
        }
        let head = buffer.split_to(end).freeze();
        let parts = head::response(&head, lines, FIELDS_MAX)?;
        if parts.status.is_informational() && parts.status != StatusCode::SWITCHING_PROTOCOLS {
            self.interims += 1;
            if self.interims > INTERIMS_MAX {
                return Err("too many interim responses");
            }
            return Ok(Some(ResponseHead::Interim(parts)));
        }
        let length = BodyLength::of(&parts.headers)?;
        self.payload = Some(length.of_response(parts.status, self.is_head)?);
        self.keeps_alive &= keeps_alive(&parts);
        Ok(Some(ResponseHead::Final(parts)))
    }

    /// Takes the next part of the body off the front of `buffer`.
    ///
    /// # Errors
    ///
    /// When it cannot be read in one way only.
    pub fn body(&mut self, buffer: &mut BytesMut) -> Result<Part, &'static str> {
        match &mut self.payload {
            Some(payload) => payload.take(buffer),
            None => Ok(Part::End),
        }
    }

    /// The server closed the connection. Whether the response is complete with that.
    pub fn close(&mut self) -> bool {
        self.keeps_alive = false;
        self.payload
            .as_mut()
            .is_some_and(BodyReader::finish_at_close)
    }

    /// Whether another request may follow (RFC 9112 9.3).
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Has no other request follow.
    pub fn break_off(&mut self) {
        self.keeps_alive = false;
    }

    /// Whether nothing of the response is left to be had.
    pub fn is_spent(&self) -> bool {
        self.payload.as_ref().is_some_and(BodyReader::is_spent)
    }

    /// Bytes of the body that are to come.
    pub fn size_hint(&self) -> SizeHint {
        let payload = self.payload.as_ref();
        payload.map_or_else(SizeHint::default, BodyReader::size_hint)
    }
}

/// Whether the server accepts another request on the connection (RFC 9112 9.3). A server of HTTP/1.0 that sends chunks does
/// not know where its messages end (RFC 9112 6.1).
fn keeps_alive(head: &response::Parts) -> bool {
    let has_option = |option: &[u8]| has_token(&head.headers, &CONNECTION, option);
    let persists = head.version != Version::HTTP_10
        || (has_option(b"keep-alive") && !head.headers.contains_key(TRANSFER_ENCODING));
    persists && !has_option(b"close")
}

/// How the body of a response with this head is written, in answer to HEAD or to another method.
/// `with_trailers` where the client takes fields behind the body.
pub fn sending(head: &response::Parts, is_head: bool, with_trailers: bool) -> BodyWriter {
    let has_none = is_head
        || head.status.is_informational()
        || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
    if has_none {
        return BodyWriter::None;
    }
    if head.headers.contains_key(TRANSFER_ENCODING) {
        return BodyWriter::Chunks { with_trailers };
    }
    let length = head.headers.get(CONTENT_LENGTH);
    match length.and_then(|length| length.to_str().ok()?.parse().ok()) {
        Some(length) => BodyWriter::Length(length),
        None => BodyWriter::Close,
    }
}
