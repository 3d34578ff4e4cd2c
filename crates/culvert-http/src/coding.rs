//! Content codings (RFC 9110 8.4): negotiation, streaming encoders, and decoding of complete bodies.

use std::io::{self, Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, ETAG,
    HeaderMap, HeaderName, HeaderValue, VARY,
};
use http::{StatusCode, response};

use crate::fields::{has_token, is_event_stream, is_grpc};

/// Compresses text to within a few percent of the best level, at a tenth of its cost.
const DEFLATE_LEVEL: u32 = 5;
const BROTLI_QUALITY: u32 = 4;
const BROTLI_WINDOW_BITS: u32 = 18;
const BROTLI_BUFFER_BYTES: usize = 4 << 10;

/// Fields with a digest of the body, which encoding makes wrong.
const DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// gzip (RFC 9110 8.4.1.3).
    Gzip,
    /// DEFLATE in the zlib format (RFC 9110 8.4.1.2).
    Deflate,
    /// Brotli (RFC 7932).
    Brotli,
}

impl Coding {
    /// All codings.
    pub const ALL: [Self; 3] = [Self::Gzip, Self::Deflate, Self::Brotli];

    /// The registered name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
        }
    }

    /// The coding with this name, in any case. `x-gzip` is gzip.
    pub fn find(name: &str) -> Option<Self> {
        let is_named = |coding: &Self| coding.name().eq_ignore_ascii_case(name);
        if name.eq_ignore_ascii_case("x-gzip") {
            return Some(Self::Gzip);
        }
        Self::ALL.into_iter().find(is_named)
    }

    /// Memory of one encoder, in KiB: window, tables and output.
    pub const fn kib(self) -> u32 {
        match self {
            Self::Gzip | Self::Deflate => 320,
            Self::Brotli => 1_536,
        }
    }
}

/// The offered coding that the client prefers; among equals the first. `None` if it accepts none of them, or prefers
/// the response unencoded (RFC 9110 12.5.3).
pub fn negotiate(headers: &HeaderMap, offered: &[Coding]) -> Option<Coding> {
    let mut named: [Option<u16>; 3] = [None; 3];
    let (mut any, mut plain) = (None, None);
    for value in headers.get_all(ACCEPT_ENCODING) {
        let Ok(text) = value.to_str() else { continue };
        for item in text.split(',') {
            let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
            let (name, Some(weight)) = (name.trim(), weight(parameters)) else {
                continue;
            };
            match (name, Coding::find(name)) {
                ("*", _) => any = Some(weight),
                (_, Some(coding)) => {
                    if let Some(slot) = named.get_mut(coding as usize) {
                        *slot = Some(weight);
                    }
                }
                _ if name.eq_ignore_ascii_case("identity") => plain = Some(weight),
                _ => {}
            }
        }
    }
    let mut best: Option<(Coding, u16)> = None;
    for coding in offered {
        let own = named.get(*coding as usize).copied().flatten();
        let weight = own.or(any).unwrap_or(0);
        if weight > best.map_or(0, |(_, weight)| weight) {
            best = Some((*coding, weight));
        }
    }
    best.filter(|(_, weight)| plain.is_none_or(|plain| plain <= *weight))
        .map(|(coding, _)| coding)
}

/// As [`negotiate`], by names: the name of the coding that the client prefers.
pub fn negotiate_named(headers: &HeaderMap, offered: &[&'static str]) -> Option<&'static str> {
    let offered: Vec<Coding> = offered
        .iter()
        .filter_map(|name| Coding::find(name))
        .collect();
    negotiate(headers, &offered).map(Coding::name)
}

/// The weight in thousandths, 1000 if absent; `None` if malformed (RFC 9110 12.4.2).
fn weight(parameters: &str) -> Option<u16> {
    let parameters = parameters.trim();
    if parameters.is_empty() {
        return Some(1000);
    }
    let (name, value) = parameters.split_once('=')?;
    if !name.trim().eq_ignore_ascii_case("q") {
        return None;
    }
    let (whole, decimals) = match value.trim().as_bytes() {
        [whole] => (*whole, &[][..]),
        [whole, b'.', decimals @ ..] => (*whole, decimals),
        _ => return None,
    };
    if decimals.len() > 3 || !decimals.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = decimals.iter().chain(b"000").take(3);
    let thousandths = digits.fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    match (whole, thousandths) {
        (b'0', _) => Some(thousandths),
        (b'1', 0) => Some(1000),
        _ => None,
    }
}

/// Whether a message is encoded.
pub fn is_encoded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Whether a response may be encoded: it has a complete, unencoded body, allows transformation, and is no stream.
pub fn may_encode(head: &response::Parts) -> bool {
    has_body(head) && may_change(&head.headers)
}

/// Whether a response with these fields may have a coding: it has none, allows transformation, and is no stream.
pub fn may_change(headers: &HeaderMap) -> bool {
    !is_encoded(headers)
        && !has_token(headers, &CACHE_CONTROL, b"no-transform")
        && !is_event_stream(headers)
        // Its messages are encoded by themselves.
        && !is_grpc(headers)
}

/// Whether a response, also one to HEAD, has a complete body.
pub fn has_body(head: &response::Parts) -> bool {
    !head.status.is_informational()
        && ![
            StatusCode::NO_CONTENT,
            StatusCode::RESET_CONTENT,
            StatusCode::PARTIAL_CONTENT,
            StatusCode::NOT_MODIFIED,
        ]
        .contains(&head.status)
        && head
            .headers
            .get(CONTENT_LENGTH)
            .is_none_or(|length| length != "0")
}

/// Updates the fields of a response that will be encoded.
pub fn set_fields(headers: &mut HeaderMap, coding: Coding) {
    headers.remove(CONTENT_LENGTH);
    headers.remove(ACCEPT_RANGES);
    forget_digests(headers);
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    vary(headers);
    weaken(headers);
}

/// Says that the coding depends on the request (RFC 9110 12.5.5). Otherwise a cache may send a response without a coding to
/// other clients.
pub fn vary(headers: &mut HeaderMap) {
    if !has_token(headers, &VARY, b"*") && !has_token(headers, &VARY, b"accept-encoding") {
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

/// Removes digests of the body.
pub fn forget_digests(headers: &mut HeaderMap) {
    for digest in &DIGESTS {
        headers.remove(digest);
    }
}

/// Makes a strong entity tag weak, because the bytes differ from those it identifies.
pub fn weaken(headers: &mut HeaderMap) {
    if let Some(tag) = headers.get(ETAG)
        && tag.as_bytes().starts_with(b"\"")
    {
        match HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat()) {
            Ok(weak) => headers.insert(ETAG, weak),
            Err(_) => headers.remove(ETAG),
        };
    }
}

/// A streaming encoder. Its output waits in memory until it is [taken](Self::take).
pub struct Encoder(Kind);

enum Kind {
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encoder")
    }
}

impl Encoder {
    /// An encoder of `coding` that has not written anything.
    pub fn new(coding: Coding) -> Self {
        let level = Compression::new(DEFLATE_LEVEL);
        Self(match coding {
            Coding::Gzip => Kind::Gzip(GzEncoder::new(Vec::new(), level)),
            Coding::Deflate => Kind::Deflate(ZlibEncoder::new(Vec::new(), level)),
            Coding::Brotli => Kind::Brotli(Box::new(brotli::CompressorWriter::new(
                Vec::new(),
                BROTLI_BUFFER_BYTES,
                BROTLI_QUALITY,
                BROTLI_WINDOW_BITS,
            ))),
        })
    }

    /// Encodes a part of the body. The output may come later.
    ///
    /// # Errors
    ///
    /// When the encoder fails.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            Kind::Gzip(encoder) => encoder.write_all(bytes),
            Kind::Deflate(encoder) => encoder.write_all(bytes),
            Kind::Brotli(encoder) => encoder.write_all(bytes),
        }
    }

    /// Puts out everything that was written, so that the receiver can decode it.
    ///
    /// # Errors
    ///
    /// When the encoder fails.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Kind::Gzip(encoder) => encoder.flush(),
            Kind::Deflate(encoder) => encoder.flush(),
            Kind::Brotli(encoder) => encoder.flush(),
        }
    }

    /// Takes the output since the last call.
    pub fn take(&mut self) -> Bytes {
        let output = match &mut self.0 {
            Kind::Gzip(encoder) => encoder.get_mut(),
            Kind::Deflate(encoder) => encoder.get_mut(),
            Kind::Brotli(encoder) => encoder.get_mut(),
        };
        std::mem::take(output).into()
    }

    /// Ends the body and returns the rest of the output.
    ///
    /// # Errors
    ///
    /// When the encoder fails.
    pub fn finish(self) -> io::Result<Bytes> {
        let output = match self.0 {
            Kind::Gzip(encoder) => encoder.finish()?,
            Kind::Deflate(encoder) => encoder.finish()?,
            Kind::Brotli(encoder) => encoder.into_inner(),
        };
        Ok(output.into())
    }
}

/// An error in decoding a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDecoded {
    /// The coding is not supported.
    #[error("the content coding of the body is not supported")]
    Unknown,
    /// The body is not valid in its coding.
    #[error("the body does not match its content coding")]
    Broken,
    /// The decoded body exceeds the limit.
    #[error("the decoded body is too long")]
    TooLong,
}

/// Decodes a body according to the `content-encoding` of its fields. Returns at most `bytes_max` bytes.
///
/// # Errors
///
/// When a coding is not supported, the body is not valid in its coding, or the decoded body is longer than `bytes_max`.
pub fn decode(headers: &HeaderMap, body: Bytes, bytes_max: usize) -> Result<Bytes, NotDecoded> {
    let mut codings = Vec::new();
    for value in headers.get_all(CONTENT_ENCODING) {
        let text = value.to_str().map_err(|_| NotDecoded::Unknown)?;
        for name in text.split(',').map(str::trim) {
            if !name.is_empty() && !name.eq_ignore_ascii_case("identity") {
                codings.push(Coding::find(name).ok_or(NotDecoded::Unknown)?);
            }
        }
    }
    // The last coding in the list was applied last (RFC 9110 8.4).
    codings.into_iter().rev().try_fold(body, |body, coding| {
        let limit = bytes_max as u64 + 1;
        let mut plain = Vec::new();
        let read = match coding {
            Coding::Gzip => flate2::read::MultiGzDecoder::new(&*body)
                .take(limit)
                .read_to_end(&mut plain),
            Coding::Deflate => flate2::read::ZlibDecoder::new(&*body)
                .take(limit)
                .read_to_end(&mut plain),
            Coding::Brotli => brotli::Decompressor::new(&*body, 4 << 10)
                .take(limit)
                .read_to_end(&mut plain),
        };
        read.map_err(|_| NotDecoded::Broken)?;
        if plain.len() > bytes_max {
            return Err(NotDecoded::TooLong);
        }
        Ok(plain.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let text = "body ".repeat(20_000);
        for coding in Coding::ALL {
            let mut encoder = Encoder::new(coding);
            let mut wire = Vec::new();
            for part in text.as_bytes().chunks(7_777) {
                encoder.write(part).unwrap();
                encoder.flush().unwrap();
                wire.extend(encoder.take());
            }
            wire.extend(encoder.finish().unwrap());
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
            let wire = Bytes::from(wire);
            assert!(wire.len() * 20 < text.len(), "{coding:?}: {}", wire.len());
            let plain = decode(&headers, wire.clone(), text.len()).unwrap();
            assert!(plain == text, "{coding:?}");
            let bomb = decode(&headers, wire.clone(), text.len() - 1);
            assert_eq!(bomb, Err(NotDecoded::TooLong));
            let half = wire.slice(..wire.len() / 2);
            let broken = decode(&headers, half, text.len());
            assert_eq!(broken, Err(NotDecoded::Broken), "{coding:?}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
        let unknown = decode(&headers, Bytes::new(), 10);
        assert_eq!(unknown, Err(NotDecoded::Unknown));
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("identity, "));
        assert_eq!(decode(&headers, "x".into(), 1).unwrap(), "x");
    }
}
