//! The rules of RFC 9110 that concern the forwarding of messages, a row each: section, rule, bytes,
//! outcome. Messages are fed whole and byte by byte, in both versions if both have the rule.
//!
//! Not here: dates (5.6.7), validators in conditional requests (13) and ranges (14.1, 14.2), which pass as they are; and
//! `Max-Forwards`, `Via` (7.6) and upgrades (7.8), which the caller handles.

use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING,
};
use http::{Response, StatusCode, request};

use crate::coding::{self, Coding, NotDecoded};
use crate::fields;
use crate::http1::limits::INTERIMS_MAX;
use crate::http1::tests::{request_parts, requests, responses};
use crate::http1::{BodyWriter, RequestReader, body_writer};
use crate::http2::session::{Session, Step};
use crate::http2::{Schemes, frame, hpack};

/// A request over HTTP/1; `None` if it is refused.
fn over_http1(method: &str, fields: &[u8], step: usize) -> Option<request::Parts> {
    let start = format!("{method} / HTTP/1.1\r\nHost: a\r\n");
    let message = [start.as_bytes(), fields, b"\r\n"].concat();
    let (mut reader, mut buffer) = (RequestReader::default(), BytesMut::new());
    for piece in message.chunks(step) {
        buffer.extend_from_slice(piece);
        match reader.head(&mut buffer) {
            Ok(Some(head)) => return Some(*request_parts(head)),
            Ok(None) => {}
            Err(_) => return None,
        }
    }
    panic!("neither accepted nor refused: {}", message.escape_ascii())
}

/// A request over HTTP/2; `None` if it is refused.
fn over_http2(method: &str, field: Option<(&[u8], &[u8])>, step: usize) -> Option<request::Parts> {
    let mut block = vec![0x87, 0x84, 0x01, 1, b'a'];
    hpack::write_literal(&mut block, b":method", method.as_bytes());
    if let Some((name, value)) = field {
        hpack::write_literal(&mut block, name, value);
    }
    let mut wire = frame::PREFACE.to_vec();
    frame::begin(&mut wire, 0, frame::SETTINGS, 0, 0);
    let flags = frame::END_STREAM | frame::END_HEADERS;
    frame::begin(&mut wire, block.len(), frame::HEADERS, flags, 1);
    wire.extend(block);
    let now = std::time::Instant::now();
    let (mut session, mut inbox) = (Session::new(9, Schemes::Https, now), BytesMut::new());
    for piece in wire.chunks(step) {
        inbox.extend_from_slice(piece);
        loop {
            match session.step(&mut inbox, now) {
                Ok(Step::More) => break,
                Ok(Step::Done | Step::Refused(..)) => {}
                Ok(Step::Request(it)) => {
                    return Some(*it.head.into_parts(http::uri::Scheme::HTTPS));
                }
                Err(end) => panic!("{end:?}"),
            }
        }
    }
    None
}

const STEPS: [usize; 2] = [usize::MAX, 1];

/// Section, rule, name, value, and whether it is accepted.
type FieldRow = (
    &'static str,
    &'static str,
    &'static [u8],
    &'static [u8],
    bool,
);

#[rustfmt::skip]
const FIELDS: &[FieldRow] = &[
    ("5.1", "a name of letters", b"x-a", b"b", true),
    ("5.1", "a name of every other character of a token", b"!#$%&'*+-.^_`|~09", b"b", true),
    ("5.1", "an empty name", b"", b"b", false),
    ("5.1", "a space in a name", b"x a", b"b", false),
    ("5.1", "a delimiter in a name", b"x(a", b"b", false),
    ("5.1", "a slash in a name", b"x/a", b"b", false),
    ("5.1", "a quote in a name", b"x\"a", b"b", false),
    ("5.1", "a control character in a name", b"x\x01", b"b", false),
    ("5.1", "a byte above 0x7F in a name", b"x\xE9", b"b", false),
    ("5.5", "an empty value", b"x", b"", true),
    ("5.5", "a space within a value", b"x", b"a b", true),
    ("5.5", "a tab within a value", b"x", b"a\tb", true),
    ("5.5", "bytes above 0x7F", b"x", b"\x80\xFF", true),
    ("5.5", "NUL", b"x", b"a\0b", false),
    ("5.5", "CR", b"x", b"a\rb", false),
    ("5.5", "LF", b"x", b"a\nb", false),
    ("5.5", "another control character", b"x", b"a\x01b", false),
    ("5.5", "DEL", b"x", b"a\x7Fb", false),
    ("5.6.4", "a quoted string", b"x", b"\"a, \\\" ;\"", true),
    ("5.6.4", "an open quoted string", b"x", b"\"a", true),
    ("5.6.5", "a comment", b"x", b"a (b (c))", true),
];

#[test]
fn fields_are_accepted_or_refused() {
    for (section, rule, name, value, is_good) in FIELDS {
        for step in STEPS {
            let line = [name, &b": "[..], value, b"\r\n"].concat();
            let one = over_http1("GET", &line, step);
            let two = over_http2("GET", Some((name, value)), step);
            for (version, head) in [(1, one), (2, two)] {
                let seen = head.map(|head| {
                    let mut own = head
                        .headers
                        .iter()
                        .filter(|(name, _)| *name != http::header::HOST);
                    let (seen, value) = own.next().unwrap();
                    let seen = seen.as_str().as_bytes();
                    assert_eq!(seen, *name, "{section}: {rule}, HTTP/{version}");
                    value.as_bytes().to_vec()
                });
                let expected = is_good.then(|| value.to_vec());
                assert_eq!(seen, expected, "{section}: {rule}, HTTP/{version}");
            }
        }
    }
}

/// Section, rule, field lines with `|` for CR LF, and the values of `x` in their order.
#[rustfmt::skip]
const LINES: &[(&str, &str, &str, &[&str])] = &[
    ("5.1", "names have no case", "x: a|X: b|", &["a", "b"]),
    ("5.3", "lines of one name keep their order", "x: a|y: c|x: b|", &["a", "b"]),
    ("5.5", "whitespace around a value is not part of it", "x: \t a b\t |", &["a b"]),
    ("5.5", "no whitespace is needed", "x:a|", &["a"]),
    ("5.5", "a value of whitespace is empty", "x: \t |", &[""]),
];

#[test]
fn lines_become_values() {
    for (section, rule, lines, expected) in LINES {
        for step in STEPS {
            let head = over_http1("GET", lines.replace('|', "\r\n").as_bytes(), step).unwrap();
            let values: Vec<_> = head.headers.get_all("x").iter().collect();
            assert_eq!(values, *expected, "{section}: {rule}");
        }
    }
}

/// Section, rule, method, and whether each version accepts it.
#[rustfmt::skip]
const METHODS: &[(&str, &str, &str, [bool; 2])] = &[
    ("9.1", "a method", "GET", [true; 2]),
    ("9.1", "methods have a case", "get", [true; 2]),
    ("9.1", "an unknown method", "M-SEARCH", [true; 2]),
    ("9.1", "every other character of a token", "!#$%&'*+.^_`|~9", [true; 2]),
    ("9.1", "an empty method", "", [false; 2]),
    ("9.1", "a delimiter in a method", "G(T", [false; 2]),
    ("9.1", "a control character in a method", "G\u{1}T", [false; 2]),
    ("9.1", "a byte above 0x7F in a method", "G\u{e9}T", [false; 2]),
    // In HTTP/2 it has neither scheme nor path (RFC 9113 8.5).
    ("9.3.6", "CONNECT of an origin's path", "CONNECT", [false; 2]),
    ("9.3.8", "TRACE", "TRACE", [true; 2]),
];

#[test]
fn methods_are_tokens() {
    for (section, rule, method, expected) in METHODS {
        for step in STEPS {
            let heads = [
                over_http1(method, b"", step),
                over_http2(method, None, step),
            ];
            let seen = heads.map(|head| head.map(|it| it.method.to_string()));
            let expected = expected.map(|is_good| is_good.then(|| (*method).to_owned()));
            assert_eq!(seen, expected, "{section}: {rule}");
        }
    }
}

/// The bytes after the head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// None: the next byte belongs to another response.
    Nothing,
    Hello,
}

use Content::{Hello, Nothing};

/// Section, rule, response with `|` for CR LF, whether the request was HEAD, its content.
#[rustfmt::skip]
const CONTENT: &[(&str, &str, &str, bool, Content)] = &[
    ("6.4.1", "a response with content", "HTTP/1.1 200 OK|content-length: 5||hello", false, Hello),
    ("9.3.2", "HEAD has none, whatever its length", "HTTP/1.1 200 OK|content-length: 5||", true, Nothing),
    ("9.3.2", "HEAD has none, chunked or not", "HTTP/1.1 200 OK|transfer-encoding: chunked||", true, Nothing),
    ("15.2", "interim responses come before it", "HTTP/1.1 100 Continue||HTTP/1.1 102 x||HTTP/1.1 103 Early Hints|link: a||HTTP/1.1 200 OK|content-length: 5||hello", false, Hello),
    ("15.2", "an unknown one is skipped", "HTTP/1.1 199 x||HTTP/1.1 200 OK|content-length: 5||hello", false, Hello),
    ("15.2", "a length of an interim response means nothing", "HTTP/1.1 103 x|content-length: 9||HTTP/1.1 200 OK|content-length: 5||hello", false, Hello),
    ("15.2.2", "101 is the last", "HTTP/1.1 101 Switching Protocols|upgrade: x||", false, Nothing),
    ("15.3.5", "204 has none", "HTTP/1.1 204 No Content||", false, Nothing),
    ("15.3.5", "204 has none, whatever its length", "HTTP/1.1 204 No Content|content-length: 5||", false, Nothing),
    ("15.3.6", "205 is framed like others", "HTTP/1.1 205 Reset Content|content-length: 5||hello", false, Hello),
    ("15.3.7", "206 is framed like others", "HTTP/1.1 206 Partial Content|content-range: bytes 0-4/9|content-length: 5||hello", false, Hello),
    ("15.4.5", "304 has none, whatever its length", "HTTP/1.1 304 Not Modified|content-length: 5||", false, Nothing),
    ("15.5", "an error has content", "HTTP/1.1 404 Not Found|content-length: 5||hello", false, Hello),
    ("15", "an unknown status of a known class", "HTTP/1.1 299 x|content-length: 5||hello", false, Hello),
    ("15", "the last status of the last class", "HTTP/1.1 599 x|content-length: 5||hello", false, Hello),
];

#[test]
fn content_of_responses() {
    for (section, rule, response, is_head, content) in CONTENT {
        for step in STEPS {
            let bytes = response.replace('|', "\r\n");
            let (messages, wrong) = responses(bytes.as_bytes(), &[*is_head], &[step]);
            assert_eq!(wrong, None, "{section}: {rule}");
            let last = messages.last().unwrap();
            assert!(last.is_whole, "{section}: {rule}");
            let expected: &[u8] = if *content == Hello { b"hello" } else { b"" };
            assert_eq!(last.body, expected, "{section}: {rule}");
        }
        // Responses that we write have content in the same cases as those that we read.
        let head = bytes_head(response);
        let writes = body_writer(&head, *is_head, false) != BodyWriter::None;
        assert_eq!(writes, *content == Hello, "{section}: {rule}");
    }
}

/// The head of the last response.
fn bytes_head(response: &str) -> http::response::Parts {
    let start = response.rfind("HTTP/1.1 ").unwrap();
    let status = response[start + 9..start + 12].parse().unwrap();
    let head = Response::builder().status(StatusCode::from_u16(status).unwrap());
    let head = match response[start..].contains("chunked") {
        true => head.header(TRANSFER_ENCODING, "chunked"),
        false => head.header(CONTENT_LENGTH, "5"),
    };
    head.body(()).unwrap().into_parts().0
}

/// Section 15.2: we limit the number of interim responses.
#[test]
fn interim_responses_have_a_limit() {
    for (count, is_good) in [(INTERIMS_MAX, true), (INTERIMS_MAX + 1, false)] {
        let interim = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(count as usize);
        let bytes = interim + "HTTP/1.1 204 No Content\r\n\r\n";
        for step in STEPS {
            let (_, wrong) = responses(bytes.as_bytes(), &[false], &[step]);
            assert_eq!(wrong.is_none(), is_good, "{count}");
        }
    }
}

/// Section 6.5: fields after the content are kept apart from those before it.
#[test]
fn trailers_stay_apart() {
    let message = "POST / HTTP/1.1\r\nHost: a\r\nx: head\r\nTransfer-Encoding: chunked\r\n\r\n\
                   0\r\nx: trailer\r\ncontent-length: 9\r\n\r\n";
    for step in STEPS {
        let (messages, violation) = requests(message.as_bytes(), &[step]);
        assert_eq!(violation, None);
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let trailers = [own(("x", "trailer")), own(("content-length", "9"))];
        assert_eq!(messages[0].trailers, trailers);
        assert!(messages[0].head.contains("head") && !messages[0].head.contains("trailer\""));
    }
    // 6.5.1: fields that change framing, routing, authentication or the content are not forwarded.
    for name in [
        "authorization",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "cookie",
        "expect",
        "host",
        "set-cookie",
        "trailer",
    ] {
        assert!(fields::is_banned_in_trailers(name), "{name}");
    }
    for name in ["grpc-status", "server-timing", "digest", "x-checksum"] {
        assert!(!fields::is_banned_in_trailers(name), "{name}");
    }
}

/// Section, rule, fields that arrive, names of those that are forwarded.
#[rustfmt::skip]
const HOPS: &[(&str, &str, &str, &[&str])] = &[
    ("7.6.1", "Connection is of one hop", "connection: x|a: b", &["a"]),
    ("7.6.1", "and so are the fields that it names", "connection: x, Y|x: 1|y: 2|a: b", &["a"]),
    ("7.6.1", "in all its lines", "connection: x|connection: y|x: 1|y: 2|a: b", &["a"]),
    ("7.6.1", "beside an option", "connection: close, x|x: 1|a: b", &["a"]),
    ("7.6.1", "empty elements name nothing", "connection: , ,x,|x: 1|a: b", &["a"]),
    ("7.6.1", "invalid names are skipped", "connection: (, x y|x: 1|a: b", &["a", "x"]),
    ("7.6.1", "close is never a field", "close: 1|a: b", &["a"]),
    ("7.6.1", "Keep-Alive", "keep-alive: timeout=5|a: b", &["a"]),
    ("7.6.1", "Proxy-Connection", "proxy-connection: close|a: b", &["a"]),
    ("7.6.1", "TE", "te: trailers|a: b", &["a"]),
    ("7.6.1", "Transfer-Encoding", "transfer-encoding: chunked|a: b", &["a"]),
    ("7.8", "Upgrade", "upgrade: h2c|connection: upgrade|a: b", &["a"]),
    ("11.7.1", "Proxy-Authenticate", "proxy-authenticate: Basic|a: b", &["a"]),
    ("11.7.2", "Proxy-Authorization", "proxy-authorization: Basic x|a: b", &["a"]),
    ("7.6.1", "others pass", "trailer: x|expires: 0|warning: x|a: b", &["a", "expires", "trailer", "warning"]),
];

fn headers(lines: &str) -> HeaderMap {
    let fields = lines
        .split('|')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        });
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(name, value);
    }
    headers
}

#[test]
fn fields_of_one_hop_are_not_forwarded() {
    for (section, rule, lines, expected) in HOPS {
        let mut headers = headers(lines);
        fields::strip(&mut headers, |_| false);
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, *expected, "{section}: {rule}");
    }
}

/// Section, rule, field lines of `x`, token, whether it is in the list.
#[rustfmt::skip]
const LISTS: &[(&str, &str, &str, &str, bool)] = &[
    ("5.6.1", "an element", "x: close", "close", true),
    ("5.6.1", "one of more", "x: a, close ,b", "close", true),
    ("5.6.1", "in another line", "x: a|x: close", "close", true),
    ("5.6.1", "empty elements are skipped", "x: , ,,close,", "close", true),
    ("5.6.1", "a tab is whitespace", "x: a,\tclose", "close", true),
    ("5.6.2", "in any case", "x: CLOSE", "close", true),
    ("5.6.2", "a longer token", "x: closed", "close", false),
    ("5.6.2", "a part of an element", "x: not close", "close", false),
    ("5.6.6", "an element with parameters is another", "x: close;q=1", "close", false),
    ("5.6.1", "an empty list", "x: ,", "close", false),
    ("5.6.1", "no field", "", "close", false),
];

#[test]
fn lists_have_elements() {
    let x = HeaderName::from_static("x");
    for (section, rule, lines, token, expected) in LISTS {
        let seen = fields::has_token(&headers(lines), &x, token.as_bytes());
        assert_eq!(seen, *expected, "{section}: {rule}");
    }
}

/// Section, rule, `accept-encoding`, codings in the order of our preference, the one that is used.
type Negotiation = (
    &'static str,
    &'static str,
    &'static str,
    &'static [Coding],
    Option<Coding>,
);

#[rustfmt::skip]
fn negotiations() -> Vec<Negotiation> {
    use Coding::{Brotli, Deflate, Gzip};
    vec![
        ("8.4.1", "a coding", "gzip", &[Gzip, Deflate], Some(Gzip)),
        ("8.4.1", "names have no case", "deflate, GZIP", &[Gzip, Deflate], Some(Gzip)),
        ("8.4.1", "an unknown coding", "zstd", &[Gzip], None),
        ("8.4.1.3", "x-gzip is gzip", "x-gzip", &[Gzip], Some(Gzip)),
        ("12.4.2", "the greatest weight wins", "gzip;q=0.5, deflate", &[Gzip, Deflate], Some(Deflate)),
        ("12.4.2", "weights have three decimals", "gzip;q=0.5, br; q=0.501", &[Gzip, Brotli], Some(Brotli)),
        ("12.4.2", "a weight of 0 is not acceptable", "gzip;q=0.000", &[Gzip], None),
        ("12.4.2", "a weight of 1", "gzip;q=1.000", &[Gzip], Some(Gzip)),
        ("12.4.2", "a dot without decimals", "gzip;q=1.", &[Gzip], Some(Gzip)),
        ("12.4.2", "a weight above 1", "gzip;q=1.001", &[Gzip], None),
        ("12.4.2", "a weight of 2", "gzip;q=2", &[Gzip], None),
        ("12.4.2", "four decimals", "gzip;q=0.5000", &[Gzip], None),
        ("12.4.2", "a sign", "gzip;q=+1", &[Gzip], None),
        ("12.4.2", "an exponent", "gzip;q=1e0", &[Gzip], None),
        ("12.4.2", "no digit before the dot", "gzip;q=.5", &[Gzip], None),
        ("12.4.2", "no digits", "gzip;q=", &[Gzip], None),
        ("12.4.2", "Q", "gzip;Q=0.5", &[Gzip], Some(Gzip)),
        ("12.4.2", "another parameter", "gzip;x=1", &[Gzip], None),
        ("12.5.3", "* is any coding that is not named", "br;q=0, *", &[Brotli, Gzip], Some(Gzip)),
        ("12.5.3", "* alone", "*", &[Brotli, Gzip], Some(Brotli)),
        ("12.5.3", "none is acceptable", "*;q=0", &[Gzip], None),
        ("12.5.3", "identity is preferred", "identity, gzip;q=0.9", &[Gzip], None),
        ("12.5.3", "identity is less preferred", "identity;q=0.9, gzip", &[Gzip], Some(Gzip)),
        ("12.5.3", "identity is equal", "identity, gzip", &[Gzip], Some(Gzip)),
        ("12.5.3", "an empty field", "", &[Gzip], None),
    ]
}

#[test]
fn codings_are_negotiated() {
    for (section, rule, accept, offered, expected) in negotiations() {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accept));
        let chosen = coding::negotiate(&headers, offered);
        assert_eq!(chosen, expected, "{section}: {rule}");
    }
    assert_eq!(coding::negotiate(&HeaderMap::new(), &Coding::ALL), None);
}

const GZIP: &[u8] =
    b"\x1f\x8b\x08\0\0\0\0\0\x02\x03\xcb\x48\xcd\xc9\xc9\x07\0\x86\xa6\x10\x36\x05\0\0\0";
const ZLIB: &[u8] = b"\x78\x9c\xcb\x48\xcd\xc9\xc9\x07\0\x06\x2c\x02\x15";
const BROTLI: &[u8] = b"\x0b\x02\x80hello\x03";
const GZIP_OF_ZLIB: &[u8] =
    b"\x1f\x8b\x08\0\0\0\0\0\x02\x03\xab\x98\x73\xda\xe3\xec\xc9\x93\xec\x0c\x6c\x3a\x4c\xa2\0\x44\xfe\x85\xaa\x0d\0\0\0";

/// Section, rule, field lines, bytes, what they decode to.
type Decoding = (
    &'static str,
    &'static str,
    &'static str,
    Bytes,
    Result<&'static str, NotDecoded>,
);

#[rustfmt::skip]
fn decodings() -> Vec<Decoding> {
    let of = Bytes::from_static;
    let two: Bytes = [GZIP, GZIP].concat().into();
    let garbage: Bytes = [GZIP, b"x"].concat().into();
    vec![
        ("8.4", "no coding", "", of(b"hello"), Ok("hello")),
        ("8.4", "identity", "content-encoding: identity", of(b"hello"), Ok("hello")),
        ("8.4", "an empty list", "content-encoding: ,", of(b"hello"), Ok("hello")),
        ("8.4.1.3", "gzip", "content-encoding: gzip", of(GZIP), Ok("hello")),
        ("8.4.1.3", "x-gzip", "content-encoding: x-gzip", of(GZIP), Ok("hello")),
        ("8.4.1", "names have no case", "content-encoding: GZip", of(GZIP), Ok("hello")),
        ("8.4.1.3", "two members", "content-encoding: gzip", two, Ok("hellohello")),
        ("8.4.1.3", "bytes behind the last member", "content-encoding: gzip", garbage, Err(NotDecoded::Broken)),
        ("8.4.1.3", "an end that is missing", "content-encoding: gzip", of(&GZIP[..20]), Err(NotDecoded::Broken)),
        ("8.4.1.2", "deflate is zlib", "content-encoding: deflate", of(ZLIB), Ok("hello")),
        ("8.4.1.2", "and not without its header", "content-encoding: deflate", of(&ZLIB[2..9]), Err(NotDecoded::Broken)),
        ("RFC 7932", "br", "content-encoding: br", of(BROTLI), Ok("hello")),
        ("8.4", "the last coding was applied last", "content-encoding: deflate, gzip", of(GZIP_OF_ZLIB), Ok("hello")),
        ("8.4", "the same in two lines", "content-encoding: deflate|content-encoding: gzip", of(GZIP_OF_ZLIB), Ok("hello")),
        ("8.4", "another order", "content-encoding: gzip, deflate", of(GZIP_OF_ZLIB), Err(NotDecoded::Broken)),
        ("8.4.1", "an unknown coding", "content-encoding: gzip, zstd", of(GZIP), Err(NotDecoded::Unknown)),
    ]
}

#[test]
fn codings_are_decoded() {
    for (section, rule, lines, bytes, expected) in decodings() {
        let seen = coding::decode(&headers(lines), bytes, 100);
        let expected = expected.map(|text| Bytes::from_static(text.as_bytes()));
        assert_eq!(seen, expected, "{section}: {rule}");
    }
}

/// Section, rule, status, fields of a response, the fields after encoding; `None` if it must not be
/// encoded.
#[rustfmt::skip]
const ENCODED: &[(&str, &str, u16, &str, Option<&str>)] = &[
    ("8.4", "it says how it is encoded", 200, "a: b", Some("a: b|content-encoding: br|vary: Accept-Encoding")),
    ("8.4", "an encoded response is not encoded again", 200, "content-encoding: gzip", None),
    ("8.4", "identity is no coding", 200, "content-encoding: identity", Some("content-encoding: br|vary: Accept-Encoding")),
    ("8.6", "the length was that of other bytes", 200, "content-length: 9", Some("content-encoding: br|vary: Accept-Encoding")),
    ("8.6", "an empty response", 200, "content-length: 0", None),
    ("8.8.1", "a strong validator becomes weak", 200, "etag: \"a\"", Some("content-encoding: br|etag: W/\"a\"|vary: Accept-Encoding")),
    ("8.8.1", "a weak one stays", 200, "etag: W/\"a\"", Some("content-encoding: br|etag: W/\"a\"|vary: Accept-Encoding")),
    ("12.5.5", "Vary names it once", 200, "vary: a, accept-encoding", Some("content-encoding: br|vary: a, accept-encoding")),
    ("12.5.5", "Vary of everything", 200, "vary: *", Some("content-encoding: br|vary: *")),
    ("14.3", "ranges were of other bytes", 200, "accept-ranges: bytes", Some("content-encoding: br|vary: Accept-Encoding")),
    ("RFC 9530", "a digest was of other bytes", 200, "content-digest: sha-256=:x:|repr-digest: x", Some("content-encoding: br|vary: Accept-Encoding")),
    ("7.7", "no-transform", 200, "cache-control: max-age=1, No-Transform", None),
    ("15.3.5", "no content", 204, "", None),
    ("15.3.6", "reset content", 205, "", None),
    ("15.3.7", "a part of other bytes", 206, "content-range: bytes 0-4/9", None),
    ("15.4.5", "not modified", 304, "", None),
    ("15.2", "an interim response", 103, "", None),
    ("15.5", "an error", 404, "a: b", Some("a: b|content-encoding: br|vary: Accept-Encoding")),
];

#[test]
fn responses_are_encoded() {
    for (section, rule, status, lines, expected) in ENCODED {
        let mut head = Response::new(()).into_parts().0;
        head.status = StatusCode::from_u16(*status).unwrap();
        head.headers = headers(lines);
        let seen = coding::may_encode(&head).then(|| {
            coding::set_fields(&mut head.headers, Coding::Brotli);
            head.headers
        });
        assert_eq!(seen, expected.map(headers), "{section}: {rule}");
        assert!(seen.is_none_or(|it| it[CONTENT_ENCODING] == "br"));
    }
}

/// Section 10.1.1 for HTTP/2: when 100 (Continue) is sent.
#[test]
fn a_body_that_is_expected_is_asked_for() {
    use std::task::{Context, Waker};

    let now = std::time::Instant::now();
    for (rule, expects, has_body, responds, continues) in [
        ("the body is read", true, true, false, 1),
        ("no expectation", false, true, false, 0),
        ("no body", true, false, false, 0),
        ("the response comes first", true, true, true, 0),
    ] {
        let mut block = vec![0x83, 0x87, 0x84, 0x01, 1, b'a'];
        if expects {
            hpack::write_literal(&mut block, b"expect", b"100-continue");
        }
        let end = if has_body { 0 } else { frame::END_STREAM };
        let mut inbox = BytesMut::from(frame::PREFACE);
        let mut frames = Vec::new();
        frame::begin(&mut frames, 0, frame::SETTINGS, 0, 0);
        frame::begin(
            &mut frames,
            block.len(),
            frame::HEADERS,
            frame::END_HEADERS | end,
            1,
        );
        inbox.extend_from_slice(&frames);
        inbox.extend_from_slice(&block);
        let mut session = Session::new(9, Schemes::Https, now);
        while !matches!(session.step(&mut inbox, now).unwrap(), Step::More) {}
        session.outbox().take_all();
        if responds {
            let head = Response::new(()).into_parts().0;
            session.send_head(1, &head, false);
            session.outbox().take_all();
        }
        for _ in 0..3 {
            let _part = session.poll_data(1, &Context::from_waker(Waker::noop()));
        }
        // The table size, and the status as a literal: 20 08 03 "100".
        let sent = session.outbox().take_all();
        let count = sent.windows(3).filter(|it| it == b"100").count();
        let coded = sent.windows(2).filter(|it| it == b"\x08\x82").count();
        assert_eq!(count + coded, continues, "{rule}: {}", sent.escape_ascii());
    }
}
