//! Responses: read in the order of their requests, and written.

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{StatusCode, Version, response};
use http_body::SizeHint;

use crate::fields::has_token;
use crate::http1::body::{BodyLength, BodyPart, BodyReader, BodyWriter};
use crate::http1::head;
use crate::http1::raw::RawResponse;

/// Longest head of a response, in bytes.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 96 << 10;
/// Most field lines of a response.
pub const RESPONSE_FIELDS_MAX: usize = 128;
/// Most interim responses to a request (RFC 9110 15.2).
pub const INTERIMS_MAX: u32 = 8;

const TOO_LONG: &str = "the head is too long";

/// Reads the responses of one connection from a buffer, one request at a time.
#[derive(Debug)]
pub struct ResponseReader {
    /// How much of a head has been scanned for its end.
    end: head::End,
    /// The body of the response whose head was returned; `None` before that.
    payload: Option<BodyReader>,
    is_head: bool,
    interims: u32,
    keeps_alive: bool,
    keeps_raw: bool,
}

/// The head of a response.
#[derive(Debug)]
pub enum ResponseHead {
    /// An interim response (RFC 9110 15.2). Another head follows.
    Interim(response::Parts),
    /// The final response, or 101 (Switching Protocols).
    Final(FinalHead),
}

/// The head of a final response.
#[derive(Debug)]
pub enum FinalHead {
    /// As received.
    Raw(Box<RawResponse>),
    /// With a map of its fields.
    Parts(response::Parts),
}

impl FinalHead {
    /// The status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Raw(raw) => raw.status(),
            Self::Parts(parts) => parts.status,
        }
    }

    /// The head with a map of its fields.
    ///
    /// # Errors
    ///
    /// When the head is malformed. The text names the defect.
    pub fn into_parts(self) -> Result<response::Parts, &'static str> {
        match self {
            Self::Raw(raw) => raw.parts(),
            Self::Parts(parts) => Ok(parts),
        }
    }
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self {
            end: head::End::default(),
            payload: Some(BodyReader::none()),
            is_head: false,
            interims: 0,
            keeps_alive: true,
            keeps_raw: false,
        }
    }
}

impl ResponseReader {
    /// Starts to read the response to a request that was sent. `is_head` if the request's method is HEAD.
    pub fn expect(&mut self, is_head: bool) {
        self.is_head = is_head;
        self.payload = None;
        self.interims = 0;
        self.keeps_raw = false;
    }

    /// Keeps the head of this response as received, if it is in the usual form. Reading its fields into a map later costs
    /// more than doing so at first.
    pub fn keep_raw(&mut self) {
        self.keeps_raw = true;
    }

    /// Takes the next head off the front of `buffer`; `None` while it is incomplete.
    ///
    /// # Errors
    ///
    /// When the head is malformed, exceeds a limit, or leaves the length of the body ambiguous. The text names the defect.
    pub fn head(&mut self, buffer: &mut BytesMut) -> Result<Option<ResponseHead>, &'static str> {
        let is_first = self.end.is_untouched();
        if is_first && let Some(raw) = self.take_raw(buffer) {
            return self.raw(raw);
        }
        let Some(end) = self.end.find(buffer) else {
            if buffer.len() > RESPONSE_HEAD_BYTES_MAX {
                return Err(TOO_LONG);
            }
            return Ok(None);
        };
        let lines = std::mem::take(&mut self.end).fields();
        if end > RESPONSE_HEAD_BYTES_MAX {
            return Err(TOO_LONG);
        }
        // It has arrived in pieces.
        if !is_first && let Some(raw) = self.take_raw(buffer) {
            return self.raw(raw);
        }
        let head = buffer.split_to(end).freeze();
        let parts = head::response(&head, lines, RESPONSE_FIELDS_MAX)?;
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
        Ok(Some(ResponseHead::Final(FinalHead::Parts(parts))))
    }

    fn take_raw(&self, buffer: &mut BytesMut) -> Option<Box<RawResponse>> {
        self.keeps_raw.then(|| RawResponse::take(buffer)).flatten()
    }

    fn raw(&mut self, raw: Box<RawResponse>) -> Result<Option<ResponseHead>, &'static str> {
        self.payload = Some(raw.body(self.is_head)?);
        self.keeps_alive &= !raw.closes();
        Ok(Some(ResponseHead::Final(FinalHead::Raw(raw))))
    }

    /// Takes the next part of the body off the front of `buffer`.
    ///
    /// # Errors
    ///
    /// When the body is ambiguous. The text names the defect.
    pub fn body(&mut self, buffer: &mut BytesMut) -> Result<BodyPart, &'static str> {
        match &mut self.payload {
            Some(payload) => payload.take(buffer),
            None => Ok(BodyPart::End),
        }
    }

    /// Bytes that are missing of a body with a length.
    pub fn missing(&self) -> Option<u64> {
        self.payload.as_ref().and_then(BodyReader::missing)
    }

    /// The next bytes of a body with a length went another way than through a buffer.
    pub fn passed(&mut self, bytes: u64) {
        if let Some(payload) = &mut self.payload {
            payload.passed(bytes);
        }
    }

    /// The server has closed the connection. Returns whether the response is complete.
    pub fn close(&mut self) -> bool {
        self.keeps_alive = false;
        self.payload
            .as_mut()
            .is_some_and(BodyReader::finish_at_close)
    }

    /// Whether another request may follow on the connection (RFC 9112 9.3).
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Allows no further request on the connection.
    pub fn break_off(&mut self) {
        self.keeps_alive = false;
    }

    /// Whether the response is complete and all of it was returned.
    pub fn is_spent(&self) -> bool {
        self.payload.as_ref().is_some_and(BodyReader::is_spent)
    }

    /// The number of bytes of the body that are missing, if known.
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

/// Returns the writer for the body of a response with this head. `is_head` if the request's method was HEAD,
/// `with_trailers` if the client accepts trailers.
pub fn body_writer(head: &response::Parts, is_head: bool, with_trailers: bool) -> BodyWriter {
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
