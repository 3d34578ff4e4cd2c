//! A head that is kept as text is read as one whose fields go into a map, and a head as lines is sent as one with a map.

use super::*;
use crate::http2::Refused;
use crate::http2::head::IncomingHead;
use crate::http2::hpack::{Decoder, Field};
use crate::random::Random;
use crate::target::Received;

const METHODS: [&str; 7] = ["GET", "GET", "POST", "OPTIONS", "CONNECT", "Odd", "a b"];
const SCHEMES: [&str; 4] = ["https", "https", "HTTPS", "http"];
const AUTHORITIES: [&str; 13] = [
    "a.example",
    "a.example:443",
    "A-1.example",
    "127.0.0.1:8",
    "[::1]",
    "[::1]:8",
    "a_b",
    "a:",
    "a:b",
    "a:123456",
    "u@a",
    "a/b",
    "",
];
const PATHS: [&str; 10] = [
    "/", "/a/b?c=d", "/a//b", "/%61", "/a/../b", "/a.b?", "*", "", "a", "/a b",
];
const NAMES: [&str; 16] = [
    "accept",
    "user-agent",
    "x-custom",
    "x_custom",
    "cookie",
    "cookie",
    "content-length",
    "expect",
    "te",
    "host",
    "connection",
    "authorization",
    "X-Upper",
    "",
    "a b",
    "a\"b",
];
const VALUES: [&str; 12] = [
    "",
    "a",
    "*/*",
    "a=b",
    "5",
    "05",
    "100-continue",
    "trailers",
    " a",
    "a\t",
    "a\u{1}",
    "\u{e9}",
];

/// A literal field that is not indexed, perhaps never.
fn field(block: &mut Vec<u8>, name: &str, value: &str, is_sensitive: bool) {
    let start = block.len();
    literal(block, name, value);
    if is_sensitive {
        block[start] = 0x10;
    }
}

fn any<'x>(random: &mut Random, of: &[&'x str]) -> &'x str {
    of[random.below(of.len())]
}

/// A field section that is usual in most of its parts.
fn any_section(random: &mut Random) -> Vec<u8> {
    let mut block = Vec::new();
    let pseudo: [(&str, &[&str]); 4] = [
        (":method", &METHODS),
        (":scheme", &SCHEMES),
        (":authority", &AUTHORITIES),
        (":path", &PATHS),
    ];
    for (name, values) in pseudo {
        if !random.one_in(30) {
            let value = if random.one_in(4) {
                any(random, values)
            } else {
                values[0]
            };
            field(&mut block, name, value, false);
        }
    }
    if random.one_in(40) {
        field(&mut block, ":protocol", "websocket", false);
    }
    let count = if random.one_in(12) {
        28 + random.below(80)
    } else {
        random.below(6)
    };
    let usual = if count > 6 { 1 } else { NAMES.len() };
    for _ in 0..count {
        let name = if random.one_in(3) {
            NAMES[random.below(usual)]
        } else {
            "x-a"
        };
        let value = if random.one_in(3) {
            any(random, &VALUES)
        } else {
            "value"
        };
        field(&mut block, name, value, random.one_in(20));
    }
    if random.one_in(60) {
        field(&mut block, ":path", "/", false);
    }
    block
}

/// The meaning of a head.
fn meaning(incoming: IncomingRequest) -> String {
    let parts = incoming.head.into_parts(http::uri::Scheme::HTTPS);
    let fields: Vec<_> = parts
        .headers
        .iter()
        .map(|(name, value)| (name, value.as_bytes(), value.is_sensitive()))
        .collect();
    format!(
        "{} {} {} {:?} {fields:?} {:?} {:?} {:?}",
        incoming.stream,
        parts.method,
        parts.uri,
        parts.version,
        (incoming.length, incoming.is_ended),
        parts.extensions.get::<Refused>(),
        parts.extensions.get::<Received>(),
    )
}

#[test]
fn heads_as_text_mean_the_same_as_maps() {
    let mut random = Random::new(1);
    let (mut as_text, mut requests) = (0, 0);
    for _ in 0..20_000 {
        let block = any_section(&mut random);
        let flags = if random.one_in(2) { WHOLE } else { OPENING };
        let [text, map] = [false, true].map(|reads_maps| {
            let mut talk = Talk::new();
            if reads_maps {
                talk.session.read_maps();
            }
            let ended = talk.hears(&frame(frame::HEADERS, flags, 1, &block));
            let kept = talk
                .asked
                .iter()
                .filter(|it| matches!(it.head, IncomingHead::Raw(_)))
                .count();
            let sent = talk.said();
            let asked: Vec<_> = talk.asked.into_iter().map(meaning).collect();
            (kept, (ended, sent, asked))
        });
        assert_eq!(text.1, map.1, "{block:?}");
        assert_eq!(map.0, 0);
        as_text += text.0;
        requests += text.1.2.len();
    }
    assert!(as_text > 4_000, "{as_text}");
    assert!(requests > as_text + 2_000, "{requests} {as_text}");
}

#[test]
fn heads_share_memory_until_the_connection_rests() {
    let mut talk = Talk::with(100);
    let fields = [("x-long", "a".repeat(120))];
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    for stream in (1..200).step_by(2) {
        let headers = frame(frame::HEADERS, WHOLE, stream, &section(&fields));
        talk.hears(&headers).unwrap();
    }
    let targets = talk.asked.iter().map(|it| match &it.head {
        IncomingHead::Raw(raw) => (raw.target(), raw.fields().get(0).unwrap().value),
        IncomingHead::Parts(_) => panic!("a usual head has a map"),
    });
    assert!(targets.clone().all(|it| it == ("/", &b"a.example"[..])));
    assert_eq!(targets.count(), 100);
    talk.session.read_maps();
    talk.asks(201, WHOLE);
    assert_eq!(talk.asked.len(), 100, "the streams are used up");
}

/// A literal field `x-a` whose value has at least 127 bytes.
fn long_field(block: &mut Vec<u8>, bytes: usize) {
    block.extend(b"\0\x03x-a\x7F");
    let mut rest = bytes - 127;
    while rest >= 128 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
    block.resize(block.len() + bytes, b'a');
}

/// A long head would keep all of its memory as long as a short one beside it lives.
#[test]
fn a_long_head_takes_none_of_the_shared_memory() {
    let mut talk = Talk::with(100);
    let lengths = [200, 3_000, 4_000, 4_100, 5_000, 60_000, 200];
    for (stream, length) in (1..).step_by(2).zip(lengths) {
        let mut block = section(&[]);
        long_field(&mut block, length);
        let mut pieces = block.chunks(16_000).peekable();
        let mut kind = frame::HEADERS;
        while let Some(piece) = pieces.next() {
            let is_last = pieces.peek().is_none();
            let flags = if is_last { frame::END_HEADERS } else { 0 };
            talk.hears(&frame(kind, flags, stream, piece)).unwrap();
            kind = frame::CONTINUATION;
        }
        let incoming = talk.asked.last().unwrap();
        let is_text = matches!(incoming.head, IncomingHead::Raw(_));
        assert_eq!(is_text, length <= 4_000, "{length}");
        assert!(talk.session.heads.capacity() <= 2 * HEADS_BYTES, "{length}");
    }
    assert_eq!(talk.asked.len(), lengths.len());
}

/// A head, and trailers, keep the memory of their own fields, and not that of the read that they arrived with: a client
/// could make each of many short heads keep a long one.
#[test]
fn no_head_keeps_the_memory_of_its_read() {
    const READ_BYTES: usize = 8 << 10;
    for (name, value, is_text) in [
        ("x-a", "a value", true),
        // These are read into a map.
        ("host", "a.example", false),
    ] {
        for reads_maps in [false, true] {
            let mut talk = Talk::new();
            if reads_maps {
                talk.session.read_maps();
            }
            let block = section(&[(name, value), ("x-b", "another value")]);
            let request = frame(frame::HEADERS, frame::END_HEADERS, 1, &block);
            let mut trailers = Vec::new();
            literal(&mut trailers, "x-c", "a value of a trailer");
            let trailers = frame(frame::HEADERS, WHOLE, 1, &trailers);
            for frame in [request, trailers] {
                talk.inbox = BytesMut::with_capacity(READ_BYTES);
                talk.hears(&frame).unwrap();
                assert!(talk.inbox.try_reclaim(READ_BYTES), "{name} {reads_maps}");
            }
            let is_raw = matches!(talk.asked[0].head, IncomingHead::Raw(_));
            assert_eq!(is_raw, is_text && !reads_maps, "{name}");
        }
    }
}

#[test]
fn heads_as_lines_are_sent_as_those_with_maps() {
    let mut random = Random::new(2);
    for _ in 0..500 {
        let names = [
            "Content-Type",
            "x-A",
            "DATE",
            "set-cookie",
            "x-a-name-that-is-longer-than-sixty-four-bytes-and-so-is-allocated-0",
        ];
        let fields: Vec<(&str, &str)> = (0..random.below(8))
            .map(|_| {
                (
                    any(&mut random, &names),
                    any(&mut random, &["", "a", "text/plain; charset=utf-8"]),
                )
            })
            .collect();
        let status = [
            StatusCode::OK,
            StatusCode::NOT_FOUND,
            StatusCode::IM_A_TEAPOT,
        ][random.below(3)];
        let mut head = Response::builder().status(status);
        for (name, value) in &fields {
            head = head.header(*name, *value);
        }
        let head = head.body(()).unwrap().into_parts().0;
        let [with_map, with_lines] = [true, false].map(|has_map| {
            let mut talk = Talk::new();
            talk.asks(1, WHOLE);
            if has_map {
                talk.session.send_head(1, &head, true);
            } else {
                let lines = fields
                    .iter()
                    .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
                talk.session.send_lines(1, status, lines, true);
            }
            let sent = talk.said();
            let mut read = Vec::new();
            let block = Bytes::from(sent[0].3.clone());
            let show = |field: &Field, _, _: Option<&[u8]>| read.push(format!("{field:?}"));
            Decoder::default().read(&block, show).unwrap();
            // A map groups the fields of one name.
            read.sort();
            (sent.len(), sent[0].0, sent[0].1, read)
        });
        assert_eq!(with_map, with_lines);
    }
}
