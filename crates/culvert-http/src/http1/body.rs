//! Message bodies: framing, reading and writing (RFC 9112 6 and 7).
//!
//! State machines over bytes. The result does not depend on how the bytes are split. They buffer at most one
//! incomplete line and the trailers.

use std::borrow::Cow;
use std::io::Write as _;

use bytes::{Buf, Bytes, BytesMut};
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http_body::SizeHint;
use memchr::memchr;

use crate::http1::head::{self, are_field_bytes, field_line};
use crate::http1::write_buffer::WriteBuffer;

/// Longest trailer section, in bytes.
pub const TRAILER_BYTES_MAX: usize = 8 << 10;
/// Most trailer lines.
pub const TRAILERS_MAX: usize = 32;
/// Longest chunk extension, in bytes.
pub const CHUNK_EXTENSION_BYTES_MAX: usize = 256;
/// Most hexadecimal digits of a chunk size.
pub const CHUNK_DIGITS_MAX: usize = 16;

/// Reads the body of one message.
#[derive(Debug)]
pub struct BodyReader {
    form: Form,
    bytes: u64,
}

#[derive(Debug)]
enum Form {
    Ended,
    /// Bytes that are missing.
    Length(u64),
    /// Until the connection closes; responses only.
    Close,
    Chunks(Box<Chunks>),
}

/// The kind of some bytes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Content.
    Data,
    /// Chunk framing.
    Frame,
}

/// The next part of a body.
#[derive(Debug)]
pub enum BodyPart {
    /// More bytes are needed.
    More,
    /// Data. It shares the memory of the buffer.
    Data(Bytes),
    /// The trailers (RFC 9112 7.1.2).
    Trailers(HeaderMap),
    /// The body is complete.
    End,
}

/// The length of a body according to the fields of its head (RFC 9112 6.2 and 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyLength {
    length: Option<u64>,
    is_chunked: bool,
}

impl BodyLength {
    /// Adds a field of the head. Other fields than `content-length` and `transfer-encoding` have no effect.
    ///
    /// # Errors
    ///
    /// When the length becomes ambiguous.
    pub fn note(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match name.len() {
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                if self.length.is_some() {
                    return Err("more than one content-length");
                }
                self.length = Some(decimal(value).ok_or("content-length is not a number")?);
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err("transfer-encoding is not exactly chunked");
                }
                self.is_chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// The length according to the fields of a message.
    ///
    /// # Errors
    ///
    /// When the length is ambiguous.
    pub fn of(headers: &HeaderMap) -> Result<Self, &'static str> {
        let mut said = Self::default();
        for name in [CONTENT_LENGTH, TRANSFER_ENCODING] {
            for value in headers.get_all(&name) {
                said.note(name.as_str().as_bytes(), value.as_bytes())?;
            }
        }
        Ok(said)
    }

    /// The value of `content-length` in the fields of a message.
    ///
    /// # Errors
    ///
    /// When it is repeated or not a number.
    pub fn content_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
        let mut said = Self::default();
        for value in headers.get_all(CONTENT_LENGTH) {
            said.note(CONTENT_LENGTH.as_str().as_bytes(), value.as_bytes())?;
        }
        Ok(said.length)
    }

    /// Whether the body is chunked.
    pub fn is_chunked(&self) -> bool {
        self.is_chunked
    }

    /// The value of `content-length`.
    pub fn bytes(&self) -> Option<u64> {
        self.length
    }

    /// The body of a request.
    ///
    /// # Errors
    ///
    /// When the length is ambiguous.
    pub fn of_request(&self) -> Result<BodyReader, &'static str> {
        match (self.is_chunked, self.length) {
            (true, Some(_)) => Err("both a length and an encoding"),
            (true, None) => Ok(BodyReader::chunks()),
            (false, length) => Ok(BodyReader::length(length.unwrap_or(0))),
        }
    }

    /// The body of a response with this status. `is_head` if the request's method was HEAD.
    ///
    /// # Errors
    ///
    /// When the length is ambiguous.
    pub fn of_response(
        &self,
        status: StatusCode,
        is_head: bool,
    ) -> Result<BodyReader, &'static str> {
        if self.is_chunked && self.length.is_some() {
            return Err("both a length and an encoding");
        }
        let has_none = is_head
            || status.is_informational()
            || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
        Ok(match self.length {
            _ if has_none => BodyReader::none(),
            _ if self.is_chunked => BodyReader::padded_chunks(),
            Some(length) => BodyReader::length(length),
            None => BodyReader::close(),
        })
    }
}

/// Decimal digits, at most 2^63 - 1.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    let mut number = 0u64;
    for &byte in value {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number
            .checked_mul(10)?
            .checked_add(u64::from(byte - b'0'))
            .filter(|number| i64::try_from(*number).is_ok())?;
    }
    Some(number)
}

impl BodyReader {
    /// No body.
    pub const fn none() -> Self {
        Self::of(Form::Ended)
    }

    /// A body of this many bytes.
    pub const fn length(bytes: u64) -> Self {
        Self::of(match bytes {
            0 => Form::Ended,
            bytes => Form::Length(bytes),
        })
    }

    /// A body that the close of the connection ends. For responses only.
    pub const fn close() -> Self {
        Self::of(Form::Close)
    }

    /// A chunked body (RFC 9112 7.1).
    pub fn chunks() -> Self {
        Self::of(Form::Chunks(Box::default()))
    }

    /// Like [`chunks`](Self::chunks), but accepts whitespace after a chunk size, as old servers write it.
    pub fn padded_chunks() -> Self {
        Self::of(Form::Chunks(Box::new(Chunks {
            may_pad: true,
            ..Chunks::default()
        })))
    }

    const fn of(form: Form) -> Self {
        Self { form, bytes: 0 }
    }

    /// Consumes the next piece: its length, and its kind.
    ///
    /// # Errors
    ///
    /// When the bytes are ambiguous.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> Result<(usize, Piece), &'static str> {
        let (taken, piece) = match &mut self.form {
            Form::Ended => (0, Piece::Frame),
            Form::Close => (bytes.len(), Piece::Data),
            Form::Length(left) => (upto(bytes, left), Piece::Data),
            Form::Chunks(chunks) => chunks.step(bytes)?,
        };
        if piece == Piece::Data {
            self.bytes = self.bytes.saturating_add(taken as u64);
        }
        if matches!(self.form, Form::Length(0)) {
            self.form = Form::Ended;
        }
        Ok((taken, piece))
    }

    /// Takes the next part from the front of `buffer`.
    ///
    /// # Errors
    ///
    /// When the bytes are ambiguous.
    pub fn take(&mut self, buffer: &mut BytesMut) -> Result<BodyPart, &'static str> {
        while !self.is_ended() {
            if buffer.is_empty() {
                return Ok(BodyPart::More);
            }
            let (taken, piece) = self.step(buffer)?;
            match piece {
                Piece::Data => return Ok(BodyPart::Data(buffer.split_to(taken).freeze())),
                Piece::Frame => buffer.advance(taken),
            }
        }
        Ok(self
            .take_trailers()
            .map_or(BodyPart::End, BodyPart::Trailers))
    }

    /// Whether the body is complete.
    pub fn is_ended(&self) -> bool {
        match &self.form {
            Form::Ended => true,
            Form::Length(_) | Form::Close => false,
            Form::Chunks(chunks) => chunks.at == At::Over,
        }
    }

    /// Whether the close of the connection ends the body.
    pub fn ends_with_connection(&self) -> bool {
        matches!(self.form, Form::Close)
    }

    /// The connection has closed. Returns whether the body is complete.
    pub fn finish_at_close(&mut self) -> bool {
        if matches!(self.form, Form::Close) {
            self.form = Form::Ended;
        }
        self.is_ended()
    }

    /// Takes the trailers.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        match &mut self.form {
            Form::Chunks(chunks) if !chunks.trailers.is_empty() => {
                Some(std::mem::take(&mut chunks.trailers))
            }
            _ => None,
        }
    }

    /// Whether the body is complete and its trailers were taken.
    pub fn is_spent(&self) -> bool {
        match &self.form {
            Form::Chunks(chunks) => chunks.at == At::Over && chunks.trailers.is_empty(),
            _ => self.is_ended(),
        }
    }

    /// Bytes that are missing of a body with a length.
    pub fn missing(&self) -> Option<u64> {
        match &self.form {
            Form::Length(left) => Some(*left),
            Form::Ended | Form::Close | Form::Chunks(_) => None,
        }
    }

    /// The next bytes of a body with a length went another way than through a buffer.
    pub fn passed(&mut self, bytes: u64) {
        if let Form::Length(left) = &mut self.form {
            let bytes = bytes.min(*left);
            self.bytes = self.bytes.saturating_add(bytes);
            *left -= bytes;
            if *left == 0 {
                self.form = Form::Ended;
            }
        }
    }

    /// Bytes of content so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that are missing.
    pub fn size_hint(&self) -> SizeHint {
        match &self.form {
            Form::Ended => SizeHint::with_exact(0),
            Form::Length(left) => SizeHint::with_exact(*left),
            Form::Close | Form::Chunks(_) => SizeHint::default(),
        }
    }
}

/// How many of `bytes` belong to the next `left`, which is reduced by them.
fn upto(bytes: &[u8], left: &mut u64) -> usize {
    let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left = left.saturating_sub(taken as u64);
    taken
}

/// A chunked body (RFC 9112 7.1).
#[derive(Debug, Default)]
struct Chunks {
    at: At,
    line: LineBuffer,
    /// Bytes of the trailers.
    section_bytes: usize,
    trailers: HeaderMap,
    may_pad: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Size,
    Data(u64),
    /// Before this byte of the CRLF after a chunk.
    End(u8),
    Trailers,
    Over,
}

impl Chunks {
    fn step(&mut self, bytes: &[u8]) -> Result<(usize, Piece), &'static str> {
        match &mut self.at {
            At::Over => Ok((0, Piece::Frame)),
            At::Data(left) => {
                let taken = upto(bytes, left);
                if *left == 0 {
                    self.at = At::End(b'\r');
                }
                Ok((taken, Piece::Data))
            }
            At::End(expected) => match (bytes.first(), *expected) {
                (None, _) => Ok((0, Piece::Frame)),
                (Some(b'\r'), b'\r') => {
                    self.at = At::End(b'\n');
                    Ok((1, Piece::Frame))
                }
                (Some(b'\n'), b'\n') => {
                    self.at = At::Size;
                    Ok((1, Piece::Frame))
                }
                _ => Err("a chunk does not end where it says"),
            },
            At::Size | At::Trailers => {
                let (taken, line) = self.line.take(bytes);
                let length = line.as_ref().map_or(self.line.len(), |line| line.len());
                self.check_length(length)?;
                if let Some(line) = line {
                    self.whole_line(&line)?;
                }
                Ok((taken, Piece::Frame))
            }
        }
    }

    /// Checks the length of a line, its end included.
    fn check_length(&self, bytes: usize) -> Result<(), &'static str> {
        let is_size = self.at == At::Size;
        if is_size && bytes > CHUNK_DIGITS_MAX + CHUNK_EXTENSION_BYTES_MAX + 2 {
            return Err("a chunk extension is too long");
        }
        if !is_size && self.section_bytes + bytes > TRAILER_BYTES_MAX + 2 {
            return Err("the trailers are too long");
        }
        Ok(())
    }

    fn whole_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let content = line
            .strip_suffix(b"\r\n")
            .ok_or("a line ends without CR LF")?;
        if self.at == At::Size {
            self.at = match chunk_size(content, self.may_pad)? {
                0 => At::Trailers,
                size => At::Data(size),
            };
            return Ok(());
        }
        if content.is_empty() {
            self.at = At::Over;
            return Ok(());
        }
        self.section_bytes += line.len();
        if self.trailers.len() >= TRAILERS_MAX {
            return Err("too many trailers");
        }
        let (name, value) = field_line(content)?;
        let name = HeaderName::from_bytes(name).map_err(|_| head::NO_NAME)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| head::NO_VALUE)?;
        self.trailers.append(name, value);
        Ok(())
    }
}

/// Parses 1 to 16 hexadecimal digits and an optional extension.
fn chunk_size(line: &[u8], may_pad: bool) -> Result<u64, &'static str> {
    let (mut digits, extension) = match memchr(b';', line) {
        Some(at) => line.split_at(at),
        None => (line, &[][..]),
    };
    while may_pad && let Some((b' ' | b'\t', rest)) = digits.split_last() {
        digits = rest;
    }
    if digits.is_empty() || digits.len() > CHUNK_DIGITS_MAX {
        return Err("a chunk size has not 1 to 16 digits");
    }
    if extension.len() > CHUNK_EXTENSION_BYTES_MAX || !are_field_bytes(extension) {
        return Err("a chunk extension is not acceptable");
    }
    let mut size = 0u64;
    for &byte in digits {
        let digit = char::from(byte)
            .to_digit(16)
            .ok_or("a chunk size is not hexadecimal")?;
        size = (size << 4) | u64::from(digit);
    }
    Ok(size)
}

/// A line that may arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer(Vec<u8>);

impl LineBuffer {
    /// Consumes bytes up to the end of the line. Returns how many, and the line with its end once it is complete.
    pub(crate) fn take<'a>(&mut self, bytes: &'a [u8]) -> (usize, Option<Cow<'a, [u8]>>) {
        let Some(end) = memchr(b'\n', bytes) else {
            self.0.extend_from_slice(bytes);
            return (bytes.len(), None);
        };
        let piece = bytes.get(..=end).unwrap_or_default();
        let line = if self.0.is_empty() {
            Cow::Borrowed(piece)
        } else {
            let mut line = std::mem::take(&mut self.0);
            line.extend_from_slice(piece);
            Cow::Owned(line)
        };
        (piece.len(), Some(line))
    }

    /// Bytes of the incomplete line.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn forget(&mut self) {
        self.0 = Vec::new();
    }
}

/// Writes the body of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyWriter {
    /// There is none.
    None,
    /// This many bytes are missing.
    Length(u64),
    /// In chunks.
    Chunks {
        /// Whether the receiver accepts trailers.
        with_trailers: bool,
    },
    /// Until the connection closes.
    Close,
}

/// A body is longer or shorter than its declared length.
#[derive(Debug, thiserror::Error)]
#[error("the body length does not match its declaration")]
pub struct WrongLength;

impl BodyWriter {
    /// Writes some content.
    ///
    /// # Errors
    ///
    /// When it exceeds the declared length.
    pub fn data(&mut self, data: Bytes, out: &mut WriteBuffer) -> Result<(), WrongLength> {
        if data.is_empty() {
            return Ok(());
        }
        match self {
            Self::None => return Err(WrongLength),
            Self::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(WrongLength)?;
                out.push(data, b"");
            }
            Self::Chunks { .. } => {
                // Writing to memory cannot fail.
                drop(write!(out.front(), "{:x}\r\n", data.len()));
                out.push(data, b"\r\n");
            }
            Self::Close => out.push(data, b""),
        }
        Ok(())
    }

    /// The next bytes of a body with a length went another way than through a buffer.
    ///
    /// # Errors
    ///
    /// When they exceed the declared length, or the body has none.
    pub fn passed(&mut self, bytes: u64) -> Result<(), WrongLength> {
        match self {
            Self::Length(left) => {
                *left = left.checked_sub(bytes).ok_or(WrongLength)?;
                Ok(())
            }
            Self::None | Self::Chunks { .. } | Self::Close => Err(WrongLength),
        }
    }

    /// Writes the end of the body.
    ///
    /// # Errors
    ///
    /// When the body is shorter than its declared length.
    pub fn end(
        &mut self,
        trailers: Option<&HeaderMap>,
        out: &mut WriteBuffer,
    ) -> Result<(), WrongLength> {
        let ended = std::mem::replace(self, Self::None);
        match ended {
            Self::Length(left) if left > 0 => Err(WrongLength),
            Self::Chunks { with_trailers } => {
                let front = out.front();
                front.extend_from_slice(b"0\r\n");
                if let Some(trailers) = trailers.filter(|_| with_trailers) {
                    head::write_fields(front, trailers);
                }
                front.extend_from_slice(b"\r\n");
                Ok(())
            }
            Self::None | Self::Length(_) | Self::Close => Ok(()),
        }
    }
}
