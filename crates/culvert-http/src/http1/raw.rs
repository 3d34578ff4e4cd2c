//! Heads as received: the bytes, and where the fields are in them. Such a head is forwarded by copying its lines, without
//! a map of its fields.
//!
//! Only heads in the usual form are kept so: HTTP/1.1, at most [`RAW_FIELDS_MAX`] fields and 16 KiB, one space behind each
//! colon and none at the end of a line, no tabs, and a target that needs no normalisation. They are read in one pass. All
//! others are read into maps.

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode, Version, request, response};
use memchr::memchr;

use crate::http1::body::{BodyLength, BodyReader};
use crate::http1::head;
use crate::target;

/// Most fields of a head that is kept as received.
pub const RAW_FIELDS_MAX: usize = 32;
/// Most bytes of a head of HTTP/2 that is kept as text. Heads share memory, so a long one would keep more of it than its own
/// bytes, which are all that counts against the allowance of its connection.
pub(crate) const DRAFT_BYTES_MAX: usize = 4 << 10;

/// Most bytes of a head of HTTP/1 that is kept as received. It is below the limits of a line and of all lines.
const HEAD_BYTES_MAX: usize = 16 << 10;

const END: &[u8] = b"\r\n";
/// Bytes of a line of HTTP/1.1 besides those of name and value.
pub(crate) const LINE_OVERHEAD: usize = 4;

/// Where a field line is in a head.
#[derive(Clone, Copy, Debug, Default)]
struct LinePosition {
    start: u16,
    colon: u16,
    /// The end of the value.
    end: u16,
}

/// The front of a buffer, as far as a head in the usual form reaches.
fn usual(buffer: &[u8]) -> &[u8] {
    buffer.get(..HEAD_BYTES_MAX).unwrap_or(buffer)
}

/// Reads the field lines of a head from `start` on, in one pass that also checks their characters. Returns where the empty
/// line begins; `None` if a line is not in the usual form, or the head is incomplete. `each` gets each field, where its line
/// begins, and whether its name consists of letters, digits and `-`; it may refuse the field.
#[inline]
pub(crate) fn read_lines<'h>(
    bytes: &'h [u8],
    start: usize,
    mut each: impl FnMut(RawField<'h>, usize, bool) -> bool,
) -> Option<usize> {
    let mut at = start;
    loop {
        let line = bytes.get(at..)?;
        if line.starts_with(END) {
            return Some(at);
        }
        let (name_bytes, is_plain) = head::token(line);
        let (name, rest) = line.split_at_checked(name_bytes)?;
        let rest = rest.strip_prefix(b": ")?;
        let (value, rest) = rest.split_at_checked(head::text_length(rest))?;
        let is_usual = !name.is_empty()
            && value.first() != Some(&b' ')
            && value.last() != Some(&b' ')
            && rest.starts_with(END);
        if !is_usual || !each(RawField { name, value }, at, is_plain) {
            return None;
        }
        at += name.len() + LINE_OVERHEAD + value.len();
    }
}

/// The parts of a request line in the usual form: the method, the target, and where the line ends.
pub(crate) fn read_request_line(bytes: &[u8]) -> Option<(&[u8], &[u8], usize)> {
    const VERSION: &[u8] = b" HTTP/1.1\r\n";
    let (method, rest) = bytes.split_at_checked(head::token(bytes).0)?;
    let rest = rest.strip_prefix(b" ")?;
    let (target, rest) = rest.split_at_checked(memchr(b' ', rest)?)?;
    let rest = rest.strip_prefix(VERSION)?;
    (!method.is_empty()).then_some((method, target, bytes.len() - rest.len()))
}

/// The status of a response of HTTP/1.1 in the usual form, and where the status line ends. `None` also for an interim
/// response.
pub(crate) fn read_status_line(bytes: &[u8]) -> Option<(StatusCode, usize)> {
    let end = memchr(b'\n', bytes)?;
    let line = head::status_line(bytes.get(..end)?.strip_suffix(b"\r")?).ok()?;
    let is_usual = line.version == Version::HTTP_11 && !line.status.is_informational();
    is_usual.then_some((line.status, end + 1))
}

/// A field of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawField<'h> {
    /// In the case as received.
    pub name: &'h [u8],
    /// Without surrounding whitespace.
    pub value: &'h [u8],
}

impl RawField<'_> {
    /// Whether it has this name, which is in lower case.
    // With a constant name it is a few comparisons of words; called, it is a loop over the bytes.
    #[inline(always)]
    pub fn is(&self, name: &str) -> bool {
        self.name.len() == name.len() && self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// A set of fields of a head, by their position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(u32);

impl FieldSet {
    /// Adds the field at a position.
    #[inline]
    pub fn add(&mut self, position: usize) {
        self.0 |= 1 << (position % RAW_FIELDS_MAX);
    }

    /// Whether it has the field at a position.
    #[inline]
    pub fn has(self, position: usize) -> bool {
        self.0 >> (position % RAW_FIELDS_MAX) & 1 == 1
    }
}

/// The field lines of a head.
#[derive(Clone, Debug)]
pub struct RawFields {
    bytes: Bytes,
    places: [LinePosition; RAW_FIELDS_MAX],
    count: usize,
    /// Whether all names consist of letters, digits and `-`.
    has_plain_names: bool,
    /// Where the first line begins, and where the last ends.
    start: usize,
    end: usize,
}

impl RawFields {
    /// Reads the field lines from `start` on, in one pass that also checks their characters; `None` if one is not in the
    /// usual form, or the head is incomplete. `accept` gets each field, and may refuse it. Sets all but the memory.
    fn read(
        bytes: &[u8],
        start: usize,
        mut accept: impl FnMut(RawField<'_>) -> bool,
    ) -> Option<Self> {
        let mut places = [LinePosition::default(); RAW_FIELDS_MAX];
        let (mut count, mut has_plain_names) = (0, true);
        let end = read_lines(bytes, start, |field, at, is_plain| {
            has_plain_names &= is_plain;
            let colon = at + field.name.len();
            let Some(place) = places.get_mut(count).filter(|_| accept(field)) else {
                return false;
            };
            *place = LinePosition {
                start: at as u16,
                colon: colon as u16,
                end: (colon + 2 + field.value.len()) as u16,
            };
            count += 1;
            true
        })?;
        Some(Self {
            bytes: Bytes::new(),
            places,
            count,
            has_plain_names,
            start,
            end,
        })
    }

    /// Takes the memory of the head off the front of `buffer`, from which it was read.
    fn take_memory(&mut self, buffer: &mut BytesMut) {
        self.bytes = buffer.split_to(self.end + END.len()).freeze();
    }

    fn places(&self) -> &[LinePosition] {
        self.places.get(..self.count).unwrap_or_default()
    }

    /// The fields in their order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RawField<'_>> {
        let part = |start: usize, end: usize| self.bytes.get(start..end).unwrap_or_default();
        self.places().iter().map(move |place| RawField {
            name: part(usize::from(place.start), usize::from(place.colon)),
            value: part(usize::from(place.colon) + 2, usize::from(place.end)),
        })
    }

    /// Whether all names consist of letters, digits and `-`.
    pub fn have_plain_names(&self) -> bool {
        self.has_plain_names
    }

    /// The field at a position.
    pub fn get(&self, position: usize) -> Option<RawField<'_>> {
        self.iter().nth(position)
    }

    /// Writes the field lines except for those in `without`, with names in lower case.
    pub fn write(&self, out: &mut Vec<u8>, without: FieldSet) {
        // Lines that follow each other are copied together.
        let (mut start, mut first) = (self.start, 0);
        for (position, place) in self.places().iter().enumerate() {
            if without.has(position) {
                self.write_lines(out, start..usize::from(place.start), first..position);
                (start, first) = (usize::from(place.end) + END.len(), position + 1);
            }
        }
        self.write_lines(out, start..self.end, first..self.count);
    }

    fn write_lines(
        &self,
        out: &mut Vec<u8>,
        bytes: std::ops::Range<usize>,
        lines: std::ops::Range<usize>,
    ) {
        let start = bytes.start;
        let before = out.len();
        out.extend_from_slice(self.bytes.get(bytes).unwrap_or_default());
        let copied = out.get_mut(before..).unwrap_or_default();
        for place in self.places().get(lines).unwrap_or_default() {
            let name = usize::from(place.start) - start..usize::from(place.colon) - start;
            if let Some(name) = copied.get_mut(name) {
                make_lower(name);
            }
        }
    }
}

/// Makes the letters of a name lower case, eight bytes at a time.
pub(crate) fn make_lower(name: &mut [u8]) {
    let length = name.len();
    if length < 8 {
        name.make_ascii_lowercase();
        return;
    }
    let mut at = 0;
    while at < length {
        // The last eight bytes may have been in the step before, which changes nothing.
        let start = at.min(length - 8);
        if let Some(bytes) = name.get_mut(start..).and_then(<[u8]>::first_chunk_mut::<8>) {
            *bytes = lower(u64::from_le_bytes(*bytes)).to_le_bytes();
        }
        at += 8;
    }
}

/// Eight bytes with their letters in lower case.
fn lower(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    // Without their high bits, so that no sum reaches the next byte.
    let low = word & !HIGH;
    let from_a = low + ONES * (0x80 - b'A' as u64);
    let beyond_z = low + ONES * (0x7F - b'Z' as u64);
    let letters = from_a & !beyond_z & !word & HIGH;
    word | (letters >> 2)
}

/// The head of a request as received. One of HTTP/2 is written as one of HTTP/1.1 is received, with its `:authority` in
/// `host`, the first field.
#[derive(Debug)]
pub struct RawRequest {
    method: Method,
    /// Where the target is.
    target: (usize, usize),
    fields: RawFields,
    /// HTTP/2: the fields that must not enter a table on the way (RFC 7541 7.1.3).
    sensitive: FieldSet,
}

impl RawRequest {
    /// Takes a head off the front of `buffer`, with the reader of its body. `None` if it is incomplete, not in the usual
    /// form, or refused, which [`Framing`](super::Framing) decides. All that this accepts, `Framing` accepts too.
    pub(crate) fn take(buffer: &mut BytesMut) -> Option<(Box<Self>, BodyReader)> {
        let bytes = usual(buffer);
        let (method, target, line_end) = read_request_line(bytes)?;
        let from = method.len() + 1;
        let to = from + target.len();
        let method = Method::from_bytes(method).ok()?;
        if target::check(target, false) != Ok(true) || method == Method::CONNECT {
            return None;
        }
        let (mut hosts, mut body) = (0_usize, BodyLength::default());
        let fields = RawFields::read(bytes, line_end, |field| {
            hosts += usize::from(field.is("host"));
            body.note(field.name, field.value).is_ok()
        })?;
        if hosts != 1 {
            return None;
        }
        let body = body.of_request().ok()?;
        let mut raw = Box::new(Self {
            method,
            target: (from, to),
            fields,
            sensitive: FieldSet::default(),
        });
        raw.fields.take_memory(buffer);
        Some((raw, body))
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Path and query, in normal form.
    pub fn target(&self) -> &str {
        let (start, end) = self.target;
        let target = self.fields.bytes.get(start..end).unwrap_or_default();
        // A checked target is ASCII.
        std::str::from_utf8(target).unwrap_or_default()
    }

    /// The fields.
    pub fn fields(&self) -> &RawFields {
        &self.fields
    }

    /// Whether the field at a position must not enter a table on the way.
    pub(crate) fn is_sensitive(&self, position: usize) -> bool {
        self.sensitive.has(position)
    }

    /// The memory that target and fields share.
    pub fn bytes(&self) -> &Bytes {
        &self.fields.bytes
    }

    /// The head with a map of its fields, if it was received on HTTP/1.
    ///
    /// # Errors
    ///
    /// When the head is malformed.
    pub fn parts(&self) -> Result<Box<request::Parts>, &'static str> {
        head::request(&self.fields.bytes, self.fields.count)
    }

    /// Writes the request line.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        let line = self.fields.start;
        out.extend_from_slice(self.fields.bytes.get(..line).unwrap_or_default());
    }
}

/// A [`RawRequest`] whose fields arrive one by one.
#[derive(Debug)]
pub(crate) struct RawDraft<'r> {
    room: &'r mut BytesMut,
    method: Method,
    target: (usize, usize),
    places: [LinePosition; RAW_FIELDS_MAX],
    sensitive: FieldSet,
    count: usize,
    has_plain_names: bool,
    start: usize,
}

impl<'r> RawDraft<'r> {
    /// Begins a head with the field `host`. It takes the memory of `room`. The target is in normal form, and both are
    /// visible ASCII.
    pub(crate) fn new(
        room: &'r mut BytesMut,
        method: Method,
        target: &[u8],
        host: &[u8],
    ) -> Option<Self> {
        if method.as_str().len() + target.len() + host.len() > DRAFT_BYTES_MAX {
            return None;
        }
        room.clear();
        room.extend_from_slice(method.as_str().as_bytes());
        room.extend_from_slice(b" ");
        let before = room.len();
        room.extend_from_slice(target);
        let target = (before, room.len());
        room.extend_from_slice(b" HTTP/1.1\r\n");
        let mut draft = Self {
            start: room.len(),
            room,
            method,
            target,
            places: [LinePosition::default(); RAW_FIELDS_MAX],
            sensitive: FieldSet::default(),
            count: 0,
            has_plain_names: true,
        };
        draft.add(b"host", host, false).then_some(draft)
    }

    /// Adds a field, which was checked. False if there is no space for it.
    pub(crate) fn add(&mut self, name: &[u8], value: &[u8], is_sensitive: bool) -> bool {
        if !self.reserve_field(name, value.len()) {
            return false;
        }
        if is_sensitive {
            self.sensitive.add(self.count - 1);
        }
        for part in [name, b": ", value, END] {
            self.room.extend_from_slice(part);
        }
        true
    }

    /// Adds a field, which was checked, from a line that ends in `value_bytes` and CRLF. False if there is no space for it.
    pub(crate) fn add_line(&mut self, line: &[u8], value_bytes: usize) -> bool {
        let name_bytes = line.len().saturating_sub(value_bytes + LINE_OVERHEAD);
        let has_place = self.reserve_field(line.get(..name_bytes).unwrap_or_default(), value_bytes);
        if has_place {
            self.room.extend_from_slice(line);
        }
        has_place
    }

    /// Takes the place of the next field. False if there is no space for it.
    fn reserve_field(&mut self, name: &[u8], value_bytes: usize) -> bool {
        let start = self.room.len();
        let colon = start + name.len();
        let end = colon + 2 + value_bytes;
        let Some(place) = self.places.get_mut(self.count) else {
            return false;
        };
        if end > DRAFT_BYTES_MAX {
            return false;
        }
        *place = LinePosition {
            start: start as u16,
            colon: colon as u16,
            end: end as u16,
        };
        self.count += 1;
        self.has_plain_names &= head::token(name) == (name.len(), true);
        self.room.reserve(end + END.len() - start);
        true
    }

    /// The head.
    pub(crate) fn finish(self) -> RawRequest {
        let end = self.room.len();
        RawRequest {
            method: self.method,
            target: self.target,
            fields: RawFields {
                bytes: self.room.split().freeze(),
                places: self.places,
                count: self.count,
                has_plain_names: self.has_plain_names,
                start: self.start,
                end,
            },
            sensitive: self.sensitive,
        }
    }
}

/// The head of a final response as received.
#[derive(Debug)]
pub struct RawResponse {
    status: StatusCode,
    length: BodyLength,
    closes: bool,
    fields: RawFields,
}

impl RawResponse {
    /// Takes a head off the front of `buffer`; `None` if it is incomplete, not in the usual form, or malformed.
    pub(crate) fn take(buffer: &mut BytesMut) -> Option<Box<Self>> {
        let bytes = usual(buffer);
        let (status, line_end) = read_status_line(bytes)?;
        let (mut length, mut closes) = (BodyLength::default(), false);
        let fields = RawFields::read(bytes, line_end, |field| {
            if field.is("connection") {
                let is_close = field.value.eq_ignore_ascii_case(b"close");
                closes |= is_close;
                // Other options name fields that do not pass.
                return is_close || field.value.eq_ignore_ascii_case(b"keep-alive");
            }
            length.note(field.name, field.value).is_ok()
        })?;
        let mut raw = Box::new(Self {
            status,
            length,
            closes,
            fields,
        });
        raw.fields.take_memory(buffer);
        Some(raw)
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The fields.
    pub fn fields(&self) -> &RawFields {
        &self.fields
    }

    /// The length of the body that the fields say.
    pub fn length(&self) -> BodyLength {
        self.length
    }

    /// Whether the server closes the connection after it.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// The reader of the body. `is_head` if the request's method was HEAD.
    pub(crate) fn body(&self, is_head: bool) -> Result<BodyReader, &'static str> {
        self.length.of_response(self.status, is_head)
    }

    /// The head with a map of its fields.
    ///
    /// # Errors
    ///
    /// When the head is malformed.
    pub fn parts(&self) -> Result<response::Parts, &'static str> {
        let count = self.fields.count;
        head::response(&self.fields.bytes, count, count)
    }

    /// Writes the status line.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        head::write_status_line(out, Version::HTTP_11, self.status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_become_lower_case_wherever_they_stand() {
        for length in 0..20 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut name = vec![b'Q'; length];
                    name[at] = byte;
                    let expected = name.to_ascii_lowercase();
                    make_lower(&mut name);
                    assert_eq!(name, expected, "{byte} at {at} of {length}");
                }
            }
        }
    }
}
