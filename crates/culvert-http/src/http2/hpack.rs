//! HPACK, the compression of field sections (RFC 7541).
//!
//! The decoder keeps a dynamic table for each connection. The encoder uses the static table only: it needs no
//! memory, and the length of one response reveals nothing about another.

mod huffman;

use std::collections::VecDeque;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};

/// Most bytes of the decoder's dynamic table: the default of RFC 9113.
pub const TABLE_BYTES_MAX: usize = 4 << 10;
/// Added to the size of each field (RFC 7541 4.1, RFC 9113 6.5.2).
pub(super) const FIELD_OVERHEAD: usize = 32;
/// Largest length or index that is accepted.
const NUMBER_MAX: usize = 1 << 20;

/// A field section that cannot be decoded. The connection must end, because its table is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// A decoded field.
#[derive(Clone, Debug)]
pub(super) enum Field {
    /// A pseudo-header field (RFC 9113 8.3).
    Pseudo(Pseudo, Bytes),
    Plain(HeaderName, HeaderValue),
    /// Its name or value is not allowed.
    Wrong,
}

/// The pseudo-header fields of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pseudo {
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
    size: usize,
    name_size: usize,
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
    let entry = |&(name, value): &(&'static str, &'static str)| Entry {
        field: Name::of(name.as_bytes()).with(Bytes::from_static(value.as_bytes())),
        size: name.len() + value.len() + FIELD_OVERHEAD,
        name_size: name.len(),
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
pub(super) struct Decoder {
    /// The dynamic table, newest first.
    table: VecDeque<Entry>,
    table_bytes: usize,
    /// Size limit set by the client; `None` until it sets one.
    limit: Option<usize>,
    room: BytesMut,
}

impl Decoder {
    /// Passes each field and its size to `show`. Fields share the memory of `section`; those that enter the dynamic
    /// table are copied.
    ///
    /// # Errors
    ///
    /// When `section` violates RFC 7541. The fields passed before are void.
    pub(super) fn read(
        &mut self,
        section: &Bytes,
        mut show: impl FnMut(&Field, usize),
    ) -> Result<(), Unreadable> {
        let mut at = 0;
        let mut is_begun = false;
        while let Some(&first) = section.get(at) {
            if first & 0x80 != 0 {
                let entry = self.entry(number(section, &mut at, 7)?)?;
                show(&entry.field, entry.size);
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
                let value = self.string(section, &mut at)?;
                let size = name_size + value.len() + FIELD_OVERHEAD;
                if is_kept {
                    let field = name.with(Bytes::copy_from_slice(&value));
                    show(&field, size);
                    self.keep(Entry {
                        field,
                        size,
                        name_size,
                    });
                } else {
                    show(&name.with(value), size);
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
        huffman::decode(&bytes, &mut self.room).ok_or(Unreadable)?;
        Ok(self.room.split().freeze())
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
    let coded = huffman::length(text);
    if coded < text.len() {
        write_number(out, 0x80, 7, coded);
        huffman::encode(text, out);
    } else {
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
pub(super) fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    // Sensitive fields must not enter any table on the way (RFC 7541 7.1.3).
    let head = if value.is_sensitive() { 0x10 } else { 0 };
    let name = name.as_str();
    let known = FIXED_NAMES.get(name.len()).into_iter().flatten();
    let known = known.copied().find(|(known, _)| *known == name);
    match known {
        Some((_, index)) => write_number(out, head, 4, usize::from(index)),
        None => {
            out.push(head);
            write_string(out, name.as_bytes());
        }
    }
    write_string(out, value.as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(decoder: &mut Decoder, section: &[u8]) -> Result<Vec<(String, String)>, Unreadable> {
        let mut fields = Vec::new();
        let section = Bytes::copy_from_slice(section);
        decoder.read(&section, |field, size| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (name, value) = match field {
                Field::Pseudo(name, value) => (format!("{name:?}"), text(value)),
                Field::Plain(name, value) => {
                    assert_eq!(size, name.as_str().len() + value.len() + 32);
                    (name.to_string(), text(value.as_bytes()))
                }
                Field::Wrong => ("wrong".into(), String::new()),
            };
            fields.push((name, value));
        })?;
        Ok(fields)
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text
            .chars()
            .filter(|it| !it.is_whitespace())
            .map(|it| it.to_digit(16).unwrap())
            .collect();
        digits
            .chunks(2)
            .map(|it| (it[0] * 16 + it[1]) as u8)
            .collect()
    }

    #[test]
    fn requests_of_the_standard() {
        // RFC 7541 C.3 and C.4: three requests, plain and coded.
        for sections in [
            [
                "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                "8286 84be 5808 6e6f 2d63 6163 6865",
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
            ],
            [
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                "8286 84be 5886 a8eb 1064 9cbf",
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            ],
        ] {
            let mut decoder = Decoder::default();
            let mut all = Vec::new();
            for section in sections {
                all.push(read(&mut decoder, &hex(section)).unwrap());
            }
            let fields = |fields: &[(&str, &str)]| -> Vec<(String, String)> {
                let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
                fields.iter().map(owned).collect()
            };
            assert_eq!(
                all[0],
                fields(&[
                    ("Method", "GET"),
                    ("Scheme", "http"),
                    ("Path", "/"),
                    ("Authority", "www.example.com")
                ])
            );
            assert_eq!(
                all[1][3..],
                fields(&[
                    ("Authority", "www.example.com"),
                    ("cache-control", "no-cache")
                ])
            );
            assert_eq!(
                all[2],
                fields(&[
                    ("Method", "GET"),
                    ("Scheme", "https"),
                    ("Path", "/index.html"),
                    ("Authority", "www.example.com"),
                    ("custom-key", "custom-value")
                ])
            );
            assert_eq!(decoder.table_bytes, 164);
        }
    }

    #[test]
    fn the_table_forgets_the_oldest_and_keeps_its_size() {
        let mut decoder = Decoder::default();
        // A name of 1 byte and a value of 100: 133 each.
        for nth in 0..40u8 {
            let value = [nth + 1; 100];
            let section = [&[0x40, 1, b'a', 100][..], &value].concat();
            read(&mut decoder, &section).unwrap();
            assert!(decoder.table_bytes <= TABLE_BYTES_MAX);
        }
        assert_eq!(decoder.table.len(), TABLE_BYTES_MAX / 133);
        // What is too large for it empties it.
        let section = [&[0x40, 1, b'a', 0x7F, 0xA1, 0x1F][..], &[b'y'; 4_128]].concat();
        assert_eq!(read(&mut decoder, &section).unwrap().len(), 1);
        assert_eq!((decoder.table.len(), decoder.table_bytes), (0, 0));
        // A client makes it smaller, but not larger than we offered, and only first of all.
        assert!(read(&mut decoder, &[0x20, 0x82]).is_ok());
        read(&mut decoder, &[0x40, 1, b'a', 1, b'b']).unwrap();
        assert_eq!(decoder.table.len(), 0);
        assert!(read(&mut decoder, &[0x82, 0x20]).is_err());
        assert!(read(&mut decoder, &[0x3F, 0xE1, 0x1F]).is_ok(), "4096");
        assert!(read(&mut decoder, &[0x3F, 0xE2, 0x1F]).is_err(), "4097");
    }

    #[test]
    fn what_breaks_the_rules_is_unreadable() {
        for section in [
            &[0x80][..],
            &[0xBE],
            &[0xFF],
            &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F],
            &[0x40, 5, b'a'],
            &[0x40, 1, b'a'],
            &[0x00, 0x81, 0x00],
        ] {
            let mut decoder = Decoder::default();
            assert_eq!(read(&mut decoder, section), Err(Unreadable), "{section:?}");
        }
    }

    #[test]
    fn names_and_values_that_may_not_be_are_told() {
        for (name, value) in [
            ("A", "b"),
            (":status", "200"),
            (":x", ""),
            ("a b", ""),
            ("", ""),
            ("a", "b\n"),
            ("a", "b\0"),
            ("a", " b"),
            ("a", "b\t"),
        ] {
            let mut section = vec![0];
            write_string(&mut section, name.as_bytes());
            write_string(&mut section, value.as_bytes());
            let fields = read(&mut Decoder::default(), &section).unwrap();
            assert_eq!(fields[0].0, "wrong", "{name}: {value:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            status in 100u16..1000,
            fields in proptest::collection::vec(("[a-z-]{1,30}", "[!-~]([ -~]{0,60}[!-~])?", any::<bool>()), 0..12),
        ) {
            let mut section = Vec::new();
            write_status(&mut section, http::StatusCode::from_u16(status).unwrap());
            let mut written = vec![("wrong".to_owned(), String::new())];
            for (name, value, is_sensitive) in fields {
                let mut of = HeaderValue::from_str(&value).unwrap();
                of.set_sensitive(is_sensitive);
                write_field(&mut section, &HeaderName::from_bytes(name.as_bytes()).unwrap(), &of);
                written.push((name, value));
            }
            prop_assert_eq!(read(&mut Decoder::default(), &section).unwrap(), written);
        }

        #[test]
        fn any_bytes_are_read_or_not(sections in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..6)) {
            let mut decoder = Decoder::default();
            for section in sections {
                let _verdict = read(&mut decoder, &section);
                prop_assert!(decoder.table_bytes <= TABLE_BYTES_MAX);
                prop_assert_eq!(decoder.table_bytes, decoder.table.iter().map(|entry| entry.size).sum::<usize>());
            }
        }
    }
}
