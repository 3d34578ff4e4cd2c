//! HPACK, the compression of field sections (RFC 7541).
//!
//! The decoder keeps a dynamic table for each connection. The encoder uses the static table only: it needs no
//! memory, and the length of one response reveals nothing about another.

mod huffman;

use std::collections::VecDeque;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use memchr::memchr;

use crate::http1::{LINE_OVERHEAD, make_lower};

/// Most bytes of the decoder's dynamic table: the default of RFC 9113.
pub const TABLE_BYTES_MAX: usize = 4 << 10;
/// Added to the size of each field (RFC 7541 4.1, RFC 9113 6.5.2).
pub(super) const FIELD_OVERHEAD: usize = 32;
/// Longest name that is made lower case without an allocation.
const LOWER_BYTES_MAX: usize = 64;
/// Largest length or index that is accepted.
const NUMBER_MAX: usize = 1 << 20;

/// A field section that cannot be decoded. The connection must end, because its table is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// A decoded field.
#[derive(Clone, Debug)]
pub(crate) enum Field {
    /// A pseudo-header field (RFC 9113 8.3).
    Pseudo(Pseudo, Bytes),
    Plain(HeaderName, HeaderValue),
    /// Its name or value is not allowed.
    Wrong,
}

/// The pseudo-header fields of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pseudo {
    Authority,
    Method,
    Path,
    Protocol,
    Scheme,
}

/// The name of a field.
#[derive(Clone, Debug)]
enum Name {
    Pseudo(Pseudo),
    Plain(HeaderName),
    Wrong,
}

impl Name {
    fn of(name: &[u8]) -> Self {
        match name {
            b":authority" => Self::Pseudo(Pseudo::Authority),
            b":method" => Self::Pseudo(Pseudo::Method),
            b":path" => Self::Pseudo(Pseudo::Path),
            b":protocol" => Self::Pseudo(Pseudo::Protocol),
            b":scheme" => Self::Pseudo(Pseudo::Scheme),
            // `from_lowercase` accepts a quotation mark, which no token has (RFC 9110 5.6.2).
            name if memchr(b'"', name).is_some() => Self::Wrong,
            name => HeaderName::from_lowercase(name).map_or(Self::Wrong, Self::Plain),
        }
    }

    fn with(self, value: Bytes) -> Field {
        match self {
            Self::Pseudo(name) => Field::Pseudo(name, value),
            Self::Plain(name) => {
                // Whitespace around a value is part of it, and not allowed (RFC 9113 8.2.1).
                let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
                if is_blank(value.first()) || is_blank(value.last()) {
                    return Field::Wrong;
                }
                HeaderValue::from_maybe_shared(value)
                    .map_or(Field::Wrong, |value| Field::Plain(name, value))
            }
            Self::Wrong => Field::Wrong,
        }
    }
}

impl Field {
    fn name(&self) -> Name {
        match self {
            Self::Pseudo(name, _) => Name::Pseudo(*name),
            Self::Plain(name, _) => Name::Plain(name.clone()),
            Self::Wrong => Name::Wrong,
        }
    }
}

/// A field of a table, with its size and the size of its name.
#[derive(Clone, Debug)]
struct Entry {
    field: Field,
    /// A plain field as a line of HTTP/1.1, which shares the memory of its value.
    line: Bytes,
    size: usize,
    name_size: usize,
}

impl Entry {
    /// A field, whose value is copied.
    fn new(name: Name, name_size: usize, value: &[u8]) -> Self {
        let mut line = BytesMut::new();
        if let Name::Plain(name) = &name {
            line.reserve(name_size + LINE_OVERHEAD + value.len());
            line.extend_from_slice(name.as_str().as_bytes());
            line.extend_from_slice(b": ");
        }
        let begin = line.len();
        line.extend_from_slice(value);
        let end = line.len();
        if begin > 0 {
            line.extend_from_slice(b"\r\n");
        }
        let line = line.freeze();
        Self {
            field: name.with(line.slice(begin..end)),
            line,
            size: name_size + value.len() + FIELD_OVERHEAD,
            name_size,
        }
    }
}

/// The static table (RFC 7541 appendix A).
const FIXED: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
/// Index of the first status in the static table.
const STATUS: u8 = 8;

static FIXED_ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let entry = |&(name, value): &(&str, &str)| {
        Entry::new(Name::of(name.as_bytes()), name.len(), value.as_bytes())
    };
    FIXED.iter().map(entry).collect()
});

/// Indices of names in the static table, by length of the name.
static FIXED_NAMES: LazyLock<Vec<Vec<(&'static str, u8)>>> = LazyLock::new(|| {
    let longest = FIXED.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut names = vec![Vec::new(); longest + 1];
    for (index, (name, _)) in (1..).zip(FIXED) {
        let of_length: &mut Vec<(&str, u8)> = &mut names[name.len()];
        if of_length.iter().all(|(other, _)| *other != name) {
            of_length.push((name, index));
        }
    }
    names
});

/// Decodes the field sections of one connection, in order.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// The dynamic table, newest first.
    table: VecDeque<Entry>,
    table_bytes: usize,
    /// Size limit set by the client; `None` until it sets one.
    limit: Option<usize>,
    /// Memory for short strings.
    room: BytesMut,
}

impl Decoder {
    /// Passes each field and its size to `show`, and a field of a table also as a line of HTTP/1.1. Fields share the
    /// memory of `section`; those that enter the dynamic table are copied. The value of a field that is never indexed is
    /// marked as sensitive, so that it stays so when it is sent on (RFC 7541 6.2.3).
    ///
    /// # Errors
    ///
    /// When `section` violates RFC 7541. The fields passed before are void.
    pub(crate) fn read(
        &mut self,
        section: &Bytes,
        mut show: impl FnMut(&Field, usize, Option<&[u8]>),
    ) -> Result<(), Unreadable> {
        let mut at = 0;
        let mut is_begun = false;
        while let Some(&first) = section.get(at) {
            if first & 0x80 != 0 {
                let entry = self.entry(number(section, &mut at, 7)?)?;
                show(&entry.field, entry.size, Some(&entry.line));
            } else if first & 0xE0 == 0x20 {
                let limit = number(section, &mut at, 5)?;
                if is_begun || limit > TABLE_BYTES_MAX {
                    return Err(Unreadable);
                }
                self.limit = Some(limit);
                self.shrink(limit);
                continue;
            } else {
                let is_kept = first & 0x40 != 0;
                let index = number(section, &mut at, if is_kept { 6 } else { 4 })?;
                let (name, name_size) = match index {
                    0 => {
                        let name = self.string(section, &mut at)?;
                        (Name::of(&name), name.len())
                    }
                    index => {
                        let entry = self.entry(index)?;
                        (entry.field.name(), entry.name_size)
                    }
                };
                let is_sensitive = !is_kept && first & 0x10 != 0;
                let value = self.string(section, &mut at)?;
                if is_kept {
                    let entry = Entry::new(name, name_size, &value);
                    show(&entry.field, entry.size, Some(&entry.line));
                    self.keep(entry);
                } else {
                    let size = name_size + value.len() + FIELD_OVERHEAD;
                    let mut field = name.with(value);
                    if let Field::Plain(_, value) = &mut field {
                        value.set_sensitive(is_sensitive);
                    }
                    show(&field, size, None);
                }
            }
            is_begun = true;
        }
        Ok(())
    }

    fn entry(&self, index: usize) -> Result<&Entry, Unreadable> {
        let index = index.checked_sub(1).ok_or(Unreadable)?;
        let entry = match index.checked_sub(FIXED.len()) {
            None => FIXED_ENTRIES.get(index),
            Some(index) => self.table.get(index),
        };
        entry.ok_or(Unreadable)
    }

    fn keep(&mut self, entry: Entry) {
        let limit = self.limit.unwrap_or(TABLE_BYTES_MAX);
        self.shrink(limit.saturating_sub(entry.size));
        if entry.size <= limit {
            self.table_bytes += entry.size;
            self.table.push_front(entry);
        }
    }

    fn shrink(&mut self, bytes: usize) {
        while self.table_bytes > bytes {
            let oldest = self.table.pop_back();
            self.table_bytes -= oldest.map_or(self.table_bytes, |entry| entry.size);
        }
    }

    /// Asserts that the table has the size that was counted, within its limit.
    pub(crate) fn check(&self) {
        let bytes: usize = self.table.iter().map(|entry| entry.size).sum();
        assert_eq!(bytes, self.table_bytes);
        assert!(bytes <= self.limit.unwrap_or(TABLE_BYTES_MAX));
    }

    fn string(&mut self, section: &Bytes, at: &mut usize) -> Result<Bytes, Unreadable> {
        let is_coded = section.get(*at).ok_or(Unreadable)? & 0x80 != 0;
        let length = number(section, at, 7)?;
        let end = *at + length;
        if end > section.len() {
            return Err(Unreadable);
        }
        let bytes = section.slice(*at..end);
        *at = end;
        if !is_coded {
            return Ok(bytes);
        }
        huffman::decode(&bytes, &mut self.room).ok_or(Unreadable)
    }
}

/// Reads an integer with a prefix of `bits` bits (RFC 7541 5.1).
fn number(section: &[u8], at: &mut usize, bits: u32) -> Result<usize, Unreadable> {
    let mut next = || {
        let byte = section.get(*at).copied().ok_or(Unreadable);
        *at += 1;
        byte
    };
    let all = (1 << bits) - 1;
    let mut number = usize::from(next()?) & all;
    if number < all {
        return Ok(number);
    }
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(next()?);
        number += (byte & 0x7F) << shift;
        if number > NUMBER_MAX {
            return Err(Unreadable);
        }
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Unreadable)
}

fn write_number(out: &mut Vec<u8>, head: u8, bits: u32, number: usize) {
    let all = (1 << bits) - 1;
    if number < all {
        out.push(head | number as u8);
        return;
    }
    out.push(head | all as u8);
    let mut rest = number - all;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    let before = out.len();
    // The length of most codes takes one byte, so it can be written after the code.
    out.push(0);
    if huffman::encode_shorter(text, out) {
        let coded = out.len() - before - 1;
        match out.get_mut(before) {
            Some(head) if coded < 0x7F => *head = 0x80 | coded as u8,
            _ => {
                let code = out.split_off(before + 1);
                out.truncate(before);
                write_number(out, 0x80, 7, coded);
                out.extend_from_slice(&code);
            }
        }
    } else {
        out.truncate(before);
        write_number(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
}

/// Writes the status of a response.
pub(super) fn write_status(out: &mut Vec<u8>, status: http::StatusCode) {
    let known = match status.as_u16() {
        200 => 0,
        204 => 1,
        206 => 2,
        304 => 3,
        400 => 4,
        404 => 5,
        500 => 6,
        _ => {
            write_number(out, 0, 4, usize::from(STATUS));
            write_string(out, status.as_str().as_bytes());
            return;
        }
    };
    out.push(0x80 | (STATUS + known));
}

/// Writes a field.
pub(crate) fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    // Sensitive fields must not enter any table on the way (RFC 7541 7.1.3).
    let head = if value.is_sensitive() { 0x10 } else { 0 };
    write_literal_field(out, head, name.as_str().as_bytes(), value.as_bytes());
}

/// Writes a field whose name may be in upper case.
pub(super) fn write_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let mut room = [0; LOWER_BYTES_MAX];
    match room.get_mut(..name.len()) {
        Some(lower) => {
            lower.copy_from_slice(name);
            make_lower(lower);
            write_literal_field(out, 0, lower, value);
        }
        None => write_literal_field(out, 0, &name.to_ascii_lowercase(), value),
    }
}

fn write_literal_field(out: &mut Vec<u8>, head: u8, name: &[u8], value: &[u8]) {
    let known = FIXED_NAMES.get(name.len()).into_iter().flatten();
    // Most names of a length differ in their first letter.
    let is_it = |known: &[u8]| known.first() == name.first() && known == name;
    let known = known.copied().find(|(known, _)| is_it(known.as_bytes()));
    match known {
        Some((_, index)) => write_number(out, head, 4, usize::from(index)),
        None => {
            out.push(head);
            write_string(out, name);
        }
    }
    write_string(out, value);
}

/// Writes a literal that is not indexed, whatever its name.
#[cfg(test)]
pub(crate) fn write_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(0);
    write_string(out, name);
    write_string(out, value);
}

#[cfg(test)]
mod tests;
