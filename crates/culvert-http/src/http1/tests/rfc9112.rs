//! The rules of RFC 9112, a row each: section, message, verdict. Each is fed whole and byte by byte.
//!
//! Where the RFC gives a choice, the stricter way is taken. In one place we are stricter than it: a response with whitespace
//! before a colon is refused and not mended (5.1). In one we are more lenient: lines of a response's head may end in LF alone, as old servers write them.

use super::*;

/// The verdict that a rule requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// One whole message with this body.
    Whole(&'static str),
    /// The message is not complete.
    Partial,
    /// The message is refused.
    Refused,
}

use Verdict::{Partial, Refused, Whole};

/// Rules for requests: section, request, verdict. `|` stands for CR LF.
#[rustfmt::skip]
const REQUEST_RULES: &[(&str, &str, Verdict)] = &[
    ("2.1", "GET / HTTP/1.1|Host: a||", Whole("")),
    ("2.2", "|GET / HTTP/1.1|Host: a||", Whole("")),
    ("2.2", "||GET / HTTP/1.1|Host: a||", Whole("")),
    ("2.2", "|||GET / HTTP/1.1|Host: a||", Refused),
    ("2.2", "GET / HTTP/1.1\nHost: a\n\n", Refused),
    ("2.2", "GET / HTTP/1.1|Host: a\n|", Refused),
    ("2.2", "GET / HTTP/1.1\rHost: a||", Refused),
    ("2.2", "GET / HTTP/1.1| Host: a||", Refused),
    ("2.2", "GET / HTTP/1.1|Host: a|x: a\rb||", Refused),
    ("2.2", "GET / HTTP/1.1|Host: a|x: a\r||", Refused),
    ("2.2", "GET / HTTP/1.1|Host: a|x: é||", Whole("")),
    ("2.2", "\0\0|", Refused),
    ("2.2", "{\"a\": 1}|", Refused),
    ("2.3", "GET / HTTP/1.0||", Whole("")),
    ("2.3", "GET / HTTP/1.2|Host: a||", Refused),
    ("2.3", "GET / HTTP/2.0|Host: a||", Refused),
    ("2.3", "GET / http/1.1|Host: a||", Refused),
    ("2.3", "GET / HTTP/1.10|Host: a||", Refused),
    ("2.3", "GET / HTTP/11|Host: a||", Refused),
    ("2.3", "GET / HTTP/1,1|Host: a||", Refused),
    ("2.3", "GET / HTTP/0.9|Host: a||", Refused),
    ("3", "GET  / HTTP/1.1|Host: a||", Refused),
    ("3", "GET\t/ HTTP/1.1|Host: a||", Refused),
    ("3", "GET / HTTP/1.1 |Host: a||", Refused),
    ("3", " GET / HTTP/1.1|Host: a||", Refused),
    ("3", "GET /|Host: a||", Refused),
    ("3", "GET / |Host: a||", Refused),
    ("3", "GET /a b HTTP/1.1|Host: a||", Refused),
    ("3", "GET /\u{b} HTTP/1.1|Host: a||", Refused),
    ("3", " / HTTP/1.1|Host: a||", Refused),
    ("3.1", "get / HTTP/1.1|Host: a||", Whole("")),
    ("3.1", "M-SEARCH / HTTP/1.1|Host: a||", Whole("")),
    ("3.1", "G(T / HTTP/1.1|Host: a||", Refused),
    ("3.2", "GET / HTTP/1.1||", Refused),
    ("3.2", "GET / HTTP/1.1|Host: a|Host: a||", Refused),
    ("3.2", "GET / HTTP/1.1|Host: a|host: b||", Refused),
    ("3.2.1", "GET a HTTP/1.1|Host: a||", Refused),
    ("3.2.1", "GET ?q HTTP/1.1|Host: a||", Refused),
    ("3.2.1", "GET /a?b?c HTTP/1.1|Host: a||", Whole("")),
    ("3.2.1", "GET /a#b HTTP/1.1|Host: a||", Refused),
    ("3.2.1", "GET /é HTTP/1.1|Host: a||", Whole("")),
    ("3.2.2", "GET http://a/b HTTP/1.1|Host: a||", Whole("")),
    ("3.2.2", "GET ftp://a/b HTTP/1.1|Host: a||", Refused),
    ("3.2.2", "GET HTTP://A HTTP/1.1|Host: a||", Whole("")),
    ("3.2.2", "GET http:// HTTP/1.1|Host: a||", Refused),
    ("3.2.2", "GET http://u@a/ HTTP/1.1|Host: a||", Refused),
    ("3.2.2", "GET http://a/b HTTP/1.1||", Refused),
    ("3.2.3", "CONNECT a:1 HTTP/1.1|Host: a||", Refused),
    ("3.2.3", "GET a:1 HTTP/1.1|Host: a||", Refused),
    ("3.2.4", "OPTIONS * HTTP/1.1|Host: a||", Whole("")),
    ("3.2.4", "GET * HTTP/1.1|Host: a||", Refused),
    ("3.2.4", "OPTIONS *a HTTP/1.1|Host: a||", Refused),
    ("3.2.4", "OPTIONS http://a HTTP/1.1|Host: a||", Whole("")),
    ("5", "GET / HTTP/1.1|Host:a|x:||", Whole("")),
    ("5", "GET / HTTP/1.1|Host: \t a \t |x:\t||", Whole("")),
    ("5.1", "GET / HTTP/1.1|Host : a||", Refused),
    ("5.1", "GET / HTTP/1.1|Host: a|: b||", Refused),
    ("5.1", "GET / HTTP/1.1|Host: a|b||", Refused),
    ("5.1", "GET / HTTP/1.1|Host: a|x y: b||", Refused),
    ("5.1", "GET / HTTP/1.1|Host: a|x: \0||", Refused),
    ("5.1", "GET / HTTP/1.1|Host: a|x: \u{1}||", Refused),
    ("5.1", "GET / HTTP/1.1|Host: a|x: \u{7f}||", Refused),
    ("5.1", "GET / HTTP/1.1|Host: a|é: x||", Refused),
    ("5.1", "GET / HTTP/1.1|Host: a|x\t: y||", Refused),
    ("5.2", "GET / HTTP/1.1|Host: a|x: b| c||", Refused),
    ("5.2", "GET / HTTP/1.1|Host: a|x: b|\tc||", Refused),
    ("5.2", "GET / HTTP/1.1|Host: a|x: b| ||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0||", Whole("hello")),
    ("6.1", "POST / HTTP/1.1|Host: a|transfer-encoding: CHUNKED||0||", Whole("")),
    ("6.1", "POST / HTTP/1.0|Host: a|Transfer-Encoding: chunked||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: gzip||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: identity||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: gzip, chunked||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: xchunked||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked, chunked||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked, gzip||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked;a||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding:||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: \u{b}chunked||0||", Refused),
    ("6.1", "GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked||1|a|0||", Whole("a")),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Transfer-Encoding: chunked||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Content-Length: 5||0||", Refused),
    ("6.1", "POST / HTTP/1.1|Host: a|Content-Length: 5|Transfer-Encoding: chunked||0||", Refused),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: 5||hello", Whole("hello")),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: 005||hello", Whole("hello")),
    ("6.2", "GET / HTTP/1.1|Host: a|Content-Length: 5||hello", Whole("hello")),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: 0||", Whole("")),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: 9223372036854775807||x", Partial),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: 5.0||hello", Refused),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: ٥||hello", Refused),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: +5||hello", Refused),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: -5||hello", Refused),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: 0x5||hello", Refused),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: 5 5||hello", Refused),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length:||", Refused),
    ("6.2", "POST / HTTP/1.1|Host: a|Content-Length: 9223372036854775808||", Refused),
    ("6.3", "POST / HTTP/1.1|Host: a|Content-Length: 5, 5||hello", Refused),
    ("6.3", "POST / HTTP/1.1|Host: a|Content-Length: 5|Content-Length: 5||hello", Refused),
    ("6.3", "POST / HTTP/1.1|Host: a||", Whole("")),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||A|0123456789|00||", Whole("0123456789")),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5 |hello|0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0x5|hello|0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||-5|hello|0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|||hello|0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5\nhello|0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello\n0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hell|0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||ffffffffffffffff|hello", Partial),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0000000000000005|hello|0||", Whole("hello")),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|| 5|hello|0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5\r\rhello|0||", Refused),
    ("7.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||00000000000000005|hello|0||", Refused),
    ("7.1.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;a=\"b\"|hello|0;c||", Whole("hello")),
    ("7.1.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;\0|hello|0||", Refused),
    ("7.1.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;a\n|hello|0||", Refused),
    ("7.1.1", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;a\rb|hello|0||", Refused),
    ("7.1.2", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0|x: y||", Whole("")),
    ("7.1.2", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0|x: y| z||", Refused),
    ("7.1.2", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0|x y: z||", Refused),
    ("7.1.2", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0|x: y\n\n", Refused),
    ("7.1.2", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0|x: \0||", Refused),
    ("8", "GET / HTTP/1.1|Host: a|", Partial),
    ("8", "POST / HTTP/1.1|Host: a|Content-Length: 5||hell", Partial),
    ("8", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hell", Partial),
    ("8", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0|", Partial),
    ("8", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|", Partial),
];

/// Rules for responses to GET, followed by the end of the connection.
#[rustfmt::skip]
const RESPONSE_RULES: &[(&str, &str, Verdict)] = &[
    ("2.2", "HTTP/1.1 200 OK\ncontent-length: 0\n\n", Whole("")),
    ("2.3", "HTTP/1.0 200 OK||hello", Whole("hello")),
    ("2.3", "HTTP/2.0 200 OK||", Refused),
    ("2.3", "ICY 200 OK||", Refused),
    ("2.3", "http/1.1 200 OK||", Refused),
    ("2.3", "HTTP/1.2 200 OK||", Refused),
    ("2.2", "HTTP/1.1 200 OK| a: b||", Refused),
    ("2.2", "|HTTP/1.1 200 OK||", Refused),
    ("2.2", "HTTP/1.1 200 OK|a: b\rc||", Refused),
    ("4", "HTTP/1.1 200|content-length: 0||", Whole("")),
    ("4", "HTTP/1.1 200 |content-length: 0||", Whole("")),
    ("4", "HTTP/1.1  200 OK||", Refused),
    ("4", "HTTP/1.1 20 OK||", Refused),
    ("4", "HTTP/1.1 099 OK||", Refused),
    ("4", "HTTP/1.1 2000 OK||", Refused),
    ("4", "HTTP/1.1 2x0 OK||", Refused),
    ("4", "HTTP/1.1 200\tOK||", Refused),
    ("4", "HTTP/1.1 200 a\tb é|content-length: 0||", Whole("")),
    ("4", "HTTP/1.1 200 a\0||", Refused),
    ("5.1", "HTTP/1.1 200 OK|a : b||", Refused),
    ("5.1", "HTTP/1.1 200 OK|a b: c||", Refused),
    ("5.1", "HTTP/1.1 200 OK|a||", Refused),
    ("5.1", "HTTP/1.1 200 OK|: a||", Refused),
    ("5.1", "HTTP/1.1 200 OK|a: \0||", Refused),
    ("5.2", "HTTP/1.1 200 OK|a: b| c||", Refused),
    ("6.1", "HTTP/1.1 200 OK|transfer-encoding: chunked|content-length: 5||0||", Refused),
    ("6.1", "HTTP/1.1 200 OK|transfer-encoding: gzip||hello", Refused),
    ("6.1", "HTTP/1.1 200 OK|transfer-encoding: gzip, chunked||0||", Refused),
    ("6.1", "HTTP/1.1 200 OK|transfer-encoding: chunked|transfer-encoding: chunked||0||", Refused),
    ("6.1", "HTTP/1.1 200 OK|transfer-encoding: Chunked||5|hello|0||", Whole("hello")),
    ("6.1", "HTTP/1.1 204 No Content|transfer-encoding: chunked||", Whole("")),
    ("6.1", "HTTP/1.1 304 Not Modified|transfer-encoding: chunked||", Whole("")),
    ("6.2", "HTTP/1.1 200 OK|content-length: 5||hello", Whole("hello")),
    ("6.2", "HTTP/1.1 200 OK|content-length: 5|content-length: 5||hello", Refused),
    ("6.2", "HTTP/1.1 200 OK|content-length: 5, 5||hello", Refused),
    ("6.2", "HTTP/1.1 200 OK|content-length: -1||", Refused),
    ("6.2", "HTTP/1.1 200 OK|content-length:||", Refused),
    ("6.3", "HTTP/1.1 204 No Content|content-length: 5||", Whole("")),
    ("6.3", "HTTP/1.1 304 Not Modified|content-length: 5||", Whole("")),
    ("6.3", "HTTP/1.1 200 OK||hello", Whole("hello")),
    ("6.3", "HTTP/1.1 200 OK||", Whole("")),
    ("7.1", "HTTP/1.1 200 OK|transfer-encoding: chunked||5 |hello|0||", Whole("hello")),
    ("7.1", "HTTP/1.1 200 OK|transfer-encoding: chunked||5|hello!|0||", Refused),
    ("7.1", "HTTP/1.1 200 OK|transfer-encoding: chunked||5\n", Refused),
    ("7.1.2", "HTTP/1.1 200 OK|transfer-encoding: chunked||0|a: b||", Whole("")),
    ("8", "HTTP/1.1 200 OK|content-length: 5||hell", Partial),
    ("8", "HTTP/1.1 200 OK|transfer-encoding: chunked||5|hello|", Partial),
    ("8", "HTTP/1.1 200 OK|transfer-encoding: chunked||5|hello|0|", Partial),
];

/// Rules for responses to HEAD.
#[rustfmt::skip]
const HEAD_RULES: &[(&str, &str, Verdict)] = &[
    ("6.3", "HTTP/1.1 200 OK|content-length: 5||", Whole("")),
    ("6.3", "HTTP/1.1 200 OK|transfer-encoding: chunked||", Whole("")),
    ("6.3", "HTTP/1.1 200 OK||", Whole("")),
    ("6.3", "HTTP/1.1 200 OK|content-length: 5|transfer-encoding: chunked||", Refused),
    ("6.3", "HTTP/1.1 200 OK|content-length: a||", Refused),
];

/// Whether another request may follow: section, response, verdict.
#[rustfmt::skip]
const PERSISTENCE_RULES: &[(&str, &str, bool)] = &[
    ("9.3", "HTTP/1.1 200 OK|content-length: 0||", true),
    ("9.3", "HTTP/1.1 200 OK|content-length: 0|connection: close||", false),
    ("9.3", "HTTP/1.1 200 OK|content-length: 0|connection: x, CLOSE||", false),
    ("9.3", "HTTP/1.1 200 OK|content-length: 0|connection: x|connection: close||", false),
    ("9.3", "HTTP/1.1 200 OK|content-length: 0|connection: closed||", true),
    ("9.3", "HTTP/1.0 200 OK|content-length: 0||", false),
    ("9.3", "HTTP/1.0 200 OK|content-length: 0|connection: Keep-Alive||", true),
    ("9.3", "HTTP/1.0 200 OK|content-length: 0|connection: keep-alive, close||", false),
    ("9.3", "HTTP/1.1 200 OK||", false),
    ("6.1", "HTTP/1.0 200 OK|transfer-encoding: chunked|connection: keep-alive||0||", false),
];

/// The result of bytes that must be one message.
fn seen<T>((messages, wrong): (Vec<Message>, Option<T>)) -> Option<(Vec<u8>, bool)> {
    match (messages.into_iter().next(), wrong) {
        (_, Some(_)) => None,
        (Some(one), None) => Some((one.body, one.is_whole)),
        (None, None) => Some((Vec::new(), false)),
    }
}

fn check(rule: &str, verdict: Verdict, seen: Option<(Vec<u8>, bool)>) {
    match (verdict, seen) {
        (Refused, None) | (Partial, Some((_, false))) => {}
        (Whole(body), Some((seen, true))) if seen == body.as_bytes() => {}
        (_, seen) => panic!("{rule}: {verdict:?}, but {seen:?}"),
    }
}

#[test]
fn rules_hold_for_messages_that_arrive_whole_and_byte_by_byte() {
    for cuts in [&[usize::MAX][..], &[1]] {
        for (section, request, verdict) in REQUEST_RULES {
            let bytes = request.replace('|', "\r\n");
            let seen = seen(requests(bytes.as_bytes(), cuts));
            check(&format!("{section} {request:?}"), *verdict, seen);
        }
        for (rules, is_head) in [(RESPONSE_RULES, false), (HEAD_RULES, true)] {
            for (section, response, verdict) in rules {
                let bytes = response.replace('|', "\r\n");
                let seen = seen(responses(bytes.as_bytes(), &[is_head], cuts));
                check(&format!("{section} {response:?}"), *verdict, seen);
            }
        }
    }
}

#[test]
fn rules_for_what_follows_a_response() {
    for (section, response, expected) in PERSISTENCE_RULES {
        let bytes = response.replace('|', "\r\n");
        let mut reader = ResponseReader::default();
        reader.expect(false);
        let mut buffer = BytesMut::from(bytes.as_bytes());
        let head = reader.head(&mut buffer).unwrap();
        assert!(matches!(head, Some(ResponseHead::Final(_))));
        while let BodyPart::Data(_) | BodyPart::Trailers(_) = reader.body(&mut buffer).unwrap() {}
        let follows = reader.keeps_alive() && reader.is_spent();
        assert_eq!(follows, *expected, "{section} {response:?}");
    }
}
