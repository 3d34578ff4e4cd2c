//! The rules of RFC 7541, a row each: section, rule, the field sections of a connection, outcome of the last one.
//! Each row is decoded, and sent through a [`Session`] whole, byte by byte, and cut into two frames at each byte.

use std::time::Instant;

use super::*;
use crate::http2::frame::{self, Reason};
use crate::http2::head::Schemes;
use crate::http2::session::{ConnectionError, Session, Step};

/// The required outcome of the last section of a row. The sections before it are valid.
enum Outcome {
    /// These fields, and a dynamic table of this size. `wrong` is a field that no request may have.
    Fields(&'static [(&'static str, &'static str)], usize),
    /// It cannot be decoded.
    Error,
}

use Outcome::{Error, Fields};

type Row = (&'static str, &'static str, Vec<Vec<u8>>, Outcome);

fn hex(text: &str) -> Vec<u8> {
    let digits = text.chars().filter(|it| !it.is_whitespace());
    let digits: Vec<u32> = digits.map(|it| it.to_digit(16).unwrap()).collect();
    digits
        .chunks(2)
        .map(|it| (it[0] * 16 + it[1]) as u8)
        .collect()
}

fn bytes(sections: &[&[u8]]) -> Vec<Vec<u8>> {
    sections.iter().map(|it| it.to_vec()).collect()
}

/// The first sections of an example of the appendix.
fn example(sections: &[&str], count: usize) -> Vec<Vec<u8>> {
    sections[..count].iter().map(|it| hex(it)).collect()
}

/// A literal with a name of one letter and a value of this length, which enters the table.
fn indexed(name: u8, value: usize) -> Vec<u8> {
    let mut section = vec![0x40, 1, name];
    write_number(&mut section, 0, 7, value);
    section.resize(section.len() + value, b'v');
    section
}

/// The sections of example C.5 and C.6 have a table of 256 bytes.
const SMALL: &str = "3fe1 01";

const C3: [&str; 3] = [
    "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "8286 84be 5808 6e6f 2d63 6163 6865",
    "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
];
const C4: [&str; 3] = [
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
];
const C5: [&str; 4] = [
    SMALL,
    "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e \
     1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "4803 3330 37c1 c0bf",
    "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d \
     4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 \
     7369 6f6e 3d31",
];
const C6: [&str; 4] = [
    SMALL,
    "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b \
     97c8 e9ae 82ae 43d3",
    "4883 640e ffc1 c0bf",
    "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf \
     cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
];
const FIRST: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
];
const SECOND: [(&str, &str); 5] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
    ("cache-control", "no-cache"),
];
const THIRD: [(&str, &str); 5] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
];
/// `:status` is not a field of requests.
const MOVED: [(&str, &str); 4] = [
    ("wrong", ""),
    ("cache-control", "private"),
    ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
    ("location", "https://www.example.com"),
];
const FOUND: [(&str, &str); 6] = [
    ("wrong", ""),
    ("cache-control", "private"),
    ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
    ("location", "https://www.example.com"),
    ("content-encoding", "gzip"),
    (
        "set-cookie",
        "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    ),
];

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    let full = |count: usize| vec![indexed(b'a', 95); count].concat();
    vec![
        ("2.3.1", "the first entry of the static table", bytes(&[b"\x81"]), Fields(&[(":authority", "")], 0)),
        ("2.3.1", "the last one", bytes(&[b"\xBD"]), Fields(&[("www-authenticate", "")], 0)),
        ("2.3.2", "an entry may be repeated", bytes(&[b"\x40\x01a\x01b\x40\x01a\x01b", b"\xBE\xBF"]), Fields(&[("a", "b"), ("a", "b")], 68)),
        ("2.3.3", "the newest entry has the lowest index", bytes(&[b"\x40\x01a\x01b", b"\x40\x01c\x01d", b"\xBE\xBF"]), Fields(&[("c", "d"), ("a", "b")], 68)),
        ("2.3.3", "an index behind both tables", bytes(&[b"\xBE"]), Error),
        ("2.3.3", "an index behind the last entry", bytes(&[b"\x40\x01a\x01b", b"\xBF"]), Error),
        ("2.3.3", "the same as a name", bytes(&[b"\x7F\x00\x01b"]), Error),
        ("2.3.3", "the same as a name that is not indexed", bytes(&[b"\x0F\x2F\x01b"]), Error),
        ("3.1", "no fields", bytes(&[b""]), Fields(&[], 0)),
        ("3.2", "fields keep their order", bytes(&[b"\x00\x01b\x01x\x00\x01a\x01y\x82"]), Fields(&[("b", "x"), ("a", "y"), (":method", "GET")], 0)),
        ("4.1", "an entry has the size of name, value and 32", bytes(&[b"\x40\x01a\x02bc"]), Fields(&[("a", "bc")], 35)),
        ("4.1", "Huffman coding does not change the size", example(&C4, 1), Fields(&FIRST, 57)),
        ("4.2", "a smaller table", vec![indexed(b'a', 95), hex("20")], Fields(&[], 0)),
        ("4.2", "two updates: the smaller evicts", vec![indexed(b'a', 95), hex("20 3fe11f 82")], Fields(&[(":method", "GET")], 0)),
        ("4.2", "an update behind a field", bytes(&[b"\x82\x20"]), Error),
        ("4.3", "a smaller table evicts the oldest entry", vec![full(2), [&hex("3f61")[..], b"\xBE"].concat()], Fields(&[("a", "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv")], 128)),
        ("4.3", "an evicted entry cannot be named", vec![full(2), [&hex("3f61")[..], b"\xBF"].concat()], Error),
        ("4.3", "a table of 0 keeps nothing", bytes(&[b"\x20", b"\x40\x01a\x01b"]), Fields(&[("a", "b")], 0)),
        ("4.4", "a full table holds 4,096 bytes", vec![full(32), hex("82")], Fields(&[(":method", "GET")], 4_096)),
        ("4.4", "an entry more evicts the oldest", vec![full(32), hex("4001620163")], Fields(&[("b", "c")], 31 * 128 + 34)),
        ("4.4", "an entry as large as the table replaces all", vec![full(32), [indexed(b'a', 4_063), hex("82")].concat(), hex("82")], Fields(&[(":method", "GET")], 4_096)),
        ("4.4", "a larger one empties it, and is no error", vec![full(32), indexed(b'a', 4_064), hex("82")], Fields(&[(":method", "GET")], 0)),
        ("4.4", "the name of an entry that the new one evicts", bytes(&[b"\x3F\x03\x40\x01a\x01b", b"\x7E\x01c"]), Fields(&[("a", "c")], 34)),
        ("5.1", "an integer that fills its prefix and adds 0", bytes(&[b"\x40\x01a\x01b", b"\x0F\x2F\x01c"]), Fields(&[("a", "c")], 34)),
        ("5.1", "an integer that ends early", bytes(&[b"\xFF"]), Error),
        ("5.1", "an integer with zeros behind it", bytes(&[b"\x00\x7F\x82\x80\x80\x00"]), Error),
        ("5.1", "an integer of more bytes than any index needs", bytes(&[b"\xFF\x80\x80\x80\x80\x00"]), Error),
        ("5.1", "an integer that would overflow", bytes(&[b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"]), Error),
        ("5.2", "an empty value", bytes(&[b"\x00\x01a\x00"]), Fields(&[("a", "")], 0)),
        ("5.2", "an empty value in Huffman coding", bytes(&[b"\x00\x01a\x80"]), Fields(&[("a", "")], 0)),
        ("5.2", "a name that ends early", bytes(&[b"\x00\x05a"]), Error),
        ("5.2", "a value that ends early", bytes(&[b"\x00\x01a\x02b"]), Error),
        ("5.2", "no value", bytes(&[b"\x00\x01a"]), Error),
        // The code of `0` is 00000.
        ("5.2", "padding of ones", bytes(&[b"\x00\x01a\x81\x07"]), Fields(&[("a", "0")], 0)),
        ("5.2", "padding that is not ones", bytes(&[b"\x00\x01a\x81\x06"]), Error),
        ("5.2", "padding of 8 bits", bytes(&[b"\x00\x01a\x82\x07\xFF"]), Error),
        ("5.2", "padding without a symbol", bytes(&[b"\x00\x01a\x81\xFF"]), Error),
        ("5.2", "EOS in a string", bytes(&[b"\x00\x01a\x84\xFF\xFF\xFF\xFF"]), Error),
        ("5.2", "EOS behind a symbol", bytes(&[b"\x00\x01a\x85\x07\xFF\xFF\xFF\xFF"]), Error),
        ("6.1", "index 0", bytes(&[b"\x80"]), Error),
        ("6.2.1", "a literal that is indexed, with a name of the table", bytes(&[b"\x44\x02/a", b"\xBE"]), Fields(&[(":path", "/a")], 39)),
        ("6.2.1", "a literal that is indexed, with a new name", bytes(&[b"\x40\x01a\x01b", b"\xBE"]), Fields(&[("a", "b")], 34)),
        ("6.2.2", "a literal that is not indexed", bytes(&[b"\x04\x02/a", b"\x82"]), Fields(&[(":method", "GET")], 0)),
        ("6.2.3", "a literal that is never indexed", bytes(&[b"\x14\x02/a", b"\x82"]), Fields(&[(":method", "GET")], 0)),
        ("6.3", "an update to the limit", vec![hex("3fe11f")], Fields(&[], 0)),
        ("6.3", "an update above the limit", vec![hex("3fe21f")], Error),
        ("7.3", "a table that is asked to be huge", bytes(&[b"\x3F\xFF\xFF\xFF\x7F"]), Error),
        ("C.2.1", "a literal that is indexed", vec![hex("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572")], Fields(&[("custom-key", "custom-header")], 55)),
        ("C.2.2", "a literal that is not indexed", vec![hex("040c 2f73 616d 706c 652f 7061 7468")], Fields(&[(":path", "/sample/path")], 0)),
        ("C.2.3", "a literal that is never indexed", vec![hex("1008 7061 7373 776f 7264 0673 6563 7265 74")], Fields(&[("password", "secret")], 0)),
        ("C.2.4", "an indexed field", vec![hex("82")], Fields(&[(":method", "GET")], 0)),
        ("C.3.1", "the first request", example(&C3, 1), Fields(&FIRST, 57)),
        ("C.3.2", "the second request", example(&C3, 2), Fields(&SECOND, 110)),
        ("C.3.3", "the third request", example(&C3, 3), Fields(&THIRD, 164)),
        ("C.4.1", "the first request, coded", example(&C4, 1), Fields(&FIRST, 57)),
        ("C.4.2", "the second request, coded", example(&C4, 2), Fields(&SECOND, 110)),
        ("C.4.3", "the third request, coded", example(&C4, 3), Fields(&THIRD, 164)),
        ("C.5.1", "the first response", example(&C5, 2), Fields(&MOVED, 222)),
        ("C.5.2", "the second response", example(&C5, 3), Fields(&MOVED, 222)),
        ("C.5.3", "the third response", example(&C5, 4), Fields(&FOUND, 215)),
        ("C.6.1", "the first response, coded", example(&C6, 2), Fields(&MOVED, 222)),
        ("C.6.2", "the second response, coded", example(&C6, 3), Fields(&MOVED, 222)),
        ("C.6.3", "the third response, coded", example(&C6, 4), Fields(&FOUND, 215)),
    ]
}

/// Sends each section as the head of a request, its frame cut at `cut`, in pieces of `step` bytes.
fn converse(sections: &[Vec<u8>], cut: usize, step: usize) -> Option<ConnectionError> {
    let mut wire = frame::PREFACE.to_vec();
    frame::begin(&mut wire, 0, frame::SETTINGS, 0, 0);
    for (stream, section) in (1..).step_by(2).zip(sections) {
        let (first, rest) = section.split_at(cut.min(section.len()));
        let ends = if rest.is_empty() {
            frame::END_HEADERS
        } else {
            0
        };
        frame::begin(
            &mut wire,
            first.len(),
            frame::HEADERS,
            frame::END_STREAM | ends,
            stream,
        );
        wire.extend_from_slice(first);
        if !rest.is_empty() {
            frame::begin(
                &mut wire,
                rest.len(),
                frame::CONTINUATION,
                frame::END_HEADERS,
                stream,
            );
            wire.extend_from_slice(rest);
        }
    }
    let now = Instant::now();
    let (mut session, mut inbox) = (Session::new(100, Schemes::Https, now), BytesMut::new());
    for piece in wire.chunks(step) {
        inbox.extend_from_slice(piece);
        loop {
            match session.step(&mut inbox, now) {
                Ok(Step::More) => break,
                Ok(_) => {}
                Err(end) => return Some(end),
            }
        }
    }
    None
}

#[test]
fn each_rule_holds() {
    for (section, rule, sections, outcome) in rows() {
        let name = format!("{section}: {rule}");
        let mut decoder = Decoder::default();
        let (last, before) = sections.split_last().unwrap();
        for section in before {
            read(&mut decoder, section).unwrap_or_else(|Unreadable| panic!("{name}"));
        }
        let seen = read(&mut decoder, last);
        let end = match outcome {
            Fields(expected, table) => {
                let seen = seen.unwrap_or_else(|Unreadable| panic!("{name}"));
                let seen: Vec<_> = seen
                    .iter()
                    .map(|(name, value)| (&name[..], &value[..]))
                    .collect();
                assert_eq!(seen, expected, "{name}");
                assert_eq!(decoder.table_bytes, table, "{name}");
                None
            }
            Error => {
                assert_eq!(seen, Err(Unreadable), "{name}");
                Some(ConnectionError::Protocol(Reason::COMPRESSION_ERROR))
            }
        };
        decoder.check();
        let longest = sections.iter().map(Vec::len).max().unwrap_or(0);
        for step in [usize::MAX, 1] {
            assert_eq!(converse(&sections, usize::MAX, step), end, "{name}");
        }
        for cut in 0..longest.min(200) {
            assert_eq!(
                converse(&sections, cut, usize::MAX),
                end,
                "{name}, cut at {cut}"
            );
        }
    }
}

/// Sections 5.1 and C.1: prefix, number, bytes.
#[test]
fn integers() {
    for (bits, value, bytes) in [
        (5, 10, &[0x0A][..]),
        (5, 30, &[0x1E]),
        (5, 31, &[0x1F, 0]),
        (5, 1_337, &[0x1F, 0x9A, 0x0A]),
        (8, 42, &[0x2A]),
        (7, 127, &[0x7F, 0]),
        (7, 255, &[0x7F, 0x80, 0x01]),
        (4, NUMBER_MAX, &[0x0F, 0xF1, 0xFF, 0x3F]),
    ] {
        let mut written = Vec::new();
        write_number(&mut written, 0, bits, value);
        assert_eq!(written, bytes, "{value}");
        let mut at = 0;
        assert_eq!(number(bytes, &mut at, bits), Ok(value));
        assert_eq!(at, bytes.len());
    }
    // The shortest form is not required.
    let mut at = 0;
    assert_eq!(number(&[0x1F, 0x80, 0x80, 0x00], &mut at, 5), Ok(31));
    assert_eq!(
        number(&[0x0F, 0xF2, 0xFF, 0x3F], &mut 0, 4),
        Err(Unreadable)
    );
}

/// Section 6.2.3: a field that is never indexed is forwarded as such, so its value is marked.
#[test]
fn a_field_that_is_never_indexed_stays_so() {
    for (first, is_sensitive) in [(0x10, true), (0x00, false), (0x40, false)] {
        let section = Bytes::from(vec![first, 1, b'a', 1, b'b']);
        let mut again = Vec::new();
        let mut decoder = Decoder::default();
        let read = decoder.read(&section, |field, _, _| {
            let Field::Plain(name, value) = field else {
                panic!("{field:?}")
            };
            assert_eq!(value.is_sensitive(), is_sensitive);
            write_field(&mut again, name, value);
        });
        assert_eq!(read, Ok(()));
        assert_eq!(again[0] & 0x10 != 0, is_sensitive);
    }
}

/// Section 6 for the encoder: the representation of each field.
#[test]
fn no_field_that_is_written_enters_a_table() {
    let written = |name: &'static str, value: &'static str, is_sensitive: bool| {
        let mut value = HeaderValue::from_static(value);
        value.set_sensitive(is_sensitive);
        let mut out = Vec::new();
        write_field(&mut out, &HeaderName::from_static(name), &value);
        out
    };
    assert_eq!(written("age", "", false), hex("0f06 00"));
    assert_eq!(written("age", "", true), hex("1f06 00"));
    assert_eq!(written("password", "", true)[..1], hex("10"));
    assert_eq!(
        written("cache-control", "no-cache", false),
        hex("0f09 86a8 eb10 649c bf")
    );
    let status = |status: u16| {
        let mut out = Vec::new();
        write_status(&mut out, http::StatusCode::from_u16(status).unwrap());
        out
    };
    assert_eq!(status(200), hex("88"));
    assert_eq!(status(500), hex("8e"));
    assert_eq!(status(302), hex("0882 6402"));
}
