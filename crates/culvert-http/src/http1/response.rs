//! What the head of a response says of its body and of the connection (RFC 9112 6.3 and 9.3).

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use http::{StatusCode, Version, response};

use crate::fields::has_token;
use crate::http1::payload::Payload;

/// Most bytes of an answer's head, and most of its lines.
pub const HEAD_BYTES_MAX: usize = 96 << 10;
pub const FIELDS_MAX: usize = 128;
/// Most answers before the answer.
pub const INTERIMS_MAX: u32 = 8;

/// Where an answer's body ends (RFC 9112 6.3), if that can be read in one way only.
///
/// # Errors
///
/// When it can be read in two.
pub fn answers_payload(head: &response::Parts, is_head: bool) -> Result<Payload, &'static str> {
    let length = content_length(&head.headers)?;
    let is_chunked = is_chunked(&head.headers)?;
    if is_chunked && length.is_some() {
        return Err("both a length and an encoding");
    }
    let has_none = is_head
        || head.status.is_informational()
        || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
    Ok(match length {
        _ if has_none => Payload::none(),
        _ if is_chunked => Payload::chunks_of_an_answer(),
        Some(length) => Payload::length(length),
        None => Payload::close(),
    })
}

/// What an answer says of its length.
///
/// # Errors
///
/// When that is no number, or said twice.
pub fn content_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else {
        return Ok(None);
    };
    if lengths.next().is_some() {
        return Err("more than one content-length");
    }
    let digits = length.to_str().ok();
    let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    length.map(Some).ok_or("content-length is not a number")
}

fn is_chunked(headers: &HeaderMap) -> Result<bool, &'static str> {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(encoding) = encodings.next() else {
        return Ok(false);
    };
    let is_chunked = encoding.as_bytes().eq_ignore_ascii_case(b"chunked");
    if !is_chunked || encodings.next().is_some() {
        return Err("transfer-encoding is not exactly chunked");
    }
    Ok(true)
}

/// Whether the server takes another request on the connection (RFC 9112 9.3).
pub fn stays(head: &response::Parts) -> bool {
    if head.version == Version::HTTP_10 {
        has_token(&head.headers, &CONNECTION, b"keep-alive")
    } else {
        !has_token(&head.headers, &CONNECTION, b"close")
    }
}
