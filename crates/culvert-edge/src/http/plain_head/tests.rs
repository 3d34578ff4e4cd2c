//! A plain head is sent as the general path would send it.

use std::time::Instant;

use bytes::BytesMut;
use culvert_base::{Clock, SystemClock};
use culvert_http::fields::join_cookies;
use culvert_http::http1::head::write_response;
use culvert_http::http1::{FinalHead, RequestHead, RequestReader, ResponseHead, ResponseReader};
use culvert_http::http2::{IncomingHead, Refused, Schemes, Session, Step};
use culvert_policy::conn::ConnInfo;
use culvert_policy::problem::{ASSERTION_NAME, ERROR_CODE_NAME, REPLAY_OF_NAME, REQUEST_ID_NAME};
use http::Version;
use http::header::{DATE, HOST};
use proptest::prelude::*;

use super::*;
use crate::http::fields::{strip_mixed_up, to_client, to_upstream};

/// Lines in the order of their names; several of one name stay in theirs.
fn lines(mut out: WriteBuffer) -> Vec<String> {
    let text = String::from_utf8(std::mem::take(out.front())).unwrap();
    let (first, fields) = text.split_once("\r\n").unwrap();
    let mut fields: Vec<String> = fields.split("\r\n").map(String::from).collect();
    fields.sort_by(|a, b| a.split(':').next().cmp(&b.split(':').next()));
    fields.insert(0, first.to_owned());
    fields
}

fn info(trusted: bool) -> ConnInfo {
    let address = "127.0.0.1:1".parse().unwrap();
    ConnInfo::new(address, address, trusted, SystemClock.now())
}

/// The request as sent on the plain path, if it is plain, and on the general path; `None` if it is refused.
fn request(text: &str, trusted: bool) -> Option<(Option<Vec<String>>, Vec<String>)> {
    let head = || {
        let mut buffer = BytesMut::from(text);
        RequestReader::default().head(&mut buffer).ok().flatten()
    };
    let info = info(trusted);
    let plain = match head()? {
        RequestHead::Raw(raw) => PlainRequest::of(raw, trusted).ok().map(|request| {
            let mut out = WriteBuffer::default();
            let head = OutgoingHead::Plain {
                request: &request,
                client: info.client_value(),
                scheme: "http",
                trace: None,
            };
            head.write(&mut out, Some(0));
            lines(out)
        }),
        RequestHead::Parts(_) => None,
    };
    let mut parts = head()?.into_parts().unwrap();
    strip_mixed_up(&mut parts.headers, false);
    let host = parts.headers.get(HOST)?.clone();
    to_upstream(&mut parts.headers, &info, host);
    let mut out = WriteBuffer::default();
    OutgoingHead::Parts(parts).write(&mut out, Some(0));
    Some((plain, lines(out)))
}

/// The same of a request on HTTP/2, from its lines.
fn http2_request(
    method: &str,
    target: &str,
    fields: &str,
    trusted: bool,
) -> Option<(Option<Vec<String>>, Vec<String>)> {
    let pseudo = [
        (":method", method),
        (":scheme", "https"),
        (":authority", "h"),
        (":path", target),
    ];
    let fields = fields.lines().filter_map(|line| line.split_once(':'));
    let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim()));
    let mut block = Vec::new();
    let pseudo = pseudo.map(|(name, value)| (name.to_owned(), value));
    for (name, value) in pseudo.into_iter().chain(fields) {
        block.push(0);
        for text in [name.as_str(), value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    let length = u8::try_from(block.len()).ok()?;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let bytes = [&preface[..], &[0, 0, length, 1, 5, 0, 0, 0, 1], &block].concat();
    let head = || {
        let now = Instant::now();
        let (mut session, mut inbox) = (
            Session::new(1, Schemes::Https, now),
            BytesMut::from(&bytes[..]),
        );
        loop {
            match session.step(&mut inbox, now).ok()? {
                Step::Request(incoming) => return Some(incoming.head),
                Step::Done | Step::Refused(..) => {}
                Step::More => return None,
            }
        }
    };
    let info = info(trusted);
    let plain = match head()? {
        IncomingHead::Raw(raw) => PlainRequest::of(raw, trusted).ok().map(|request| {
            let mut out = WriteBuffer::default();
            let head = OutgoingHead::Plain {
                request: &request,
                client: info.client_value(),
                scheme: "http",
                trace: None,
            };
            head.write(&mut out, Some(0));
            lines(out)
        }),
        IncomingHead::Parts(_) => None,
    };
    let mut parts = head()?.into_parts(http::uri::Scheme::HTTPS);
    if parts.extensions.get::<Refused>().is_some() {
        assert!(plain.is_none());
        return None;
    }
    strip_mixed_up(&mut parts.headers, false);
    to_upstream(&mut parts.headers, &info, HeaderValue::from_static("h"));
    join_cookies(&mut parts.headers);
    let mut out = WriteBuffer::default();
    OutgoingHead::Parts(parts).write(&mut out, Some(0));
    Some((plain, lines(out)))
}

/// The same of a response.
fn response(text: &str) -> Option<(Option<Vec<String>>, Vec<String>)> {
    let head = || {
        let (mut buffer, mut reader) = (BytesMut::from(text), ResponseReader::default());
        reader.expect(false);
        reader.keep_raw();
        match reader.head(&mut buffer) {
            Ok(Some(ResponseHead::Final(head))) => Some(head),
            _ => None,
        }
    };
    let date = || HeaderValue::from_static("now");
    let plain = match head()? {
        FinalHead::Raw(raw) => PlainResponse::of(raw, date).ok().map(|response| {
            let mut out = WriteBuffer::default();
            response.write(out.front());
            let sent = lines(out);
            let mut reported: Vec<String> = response
                .fields()
                .map(|(name, value)| {
                    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
                    format!("{name}: {}", String::from_utf8_lossy(value))
                })
                .collect();
            reported.sort();
            let mut fields: Vec<String> = sent.iter().skip(1).cloned().collect();
            fields.retain(|line| !line.is_empty());
            fields.sort();
            assert_eq!(reported, fields);
            sent
        }),
        FinalHead::Parts(_) => None,
    };
    let mut parts = head()?.into_parts().unwrap();
    to_client(&mut parts.headers);
    if !parts.headers.contains_key(DATE) {
        parts.headers.insert(DATE, date());
    }
    let mut out = WriteBuffer::default();
    write_response(out.front(), Version::HTTP_11, &parts);
    Some((plain, lines(out)))
}

const NAMES: [&str; 44] = [
    "accept",
    "Accept-Encoding",
    "authorization",
    "cache-control",
    "close",
    "Connection",
    "connection",
    "content-length",
    "Content-Type",
    "cookie",
    "Culvert-Replay-Of",
    "Date",
    "expect",
    "forwarded",
    "host2",
    "keep-alive",
    "KEEP-ALIVE",
    "ngrok-error-code",
    "ngrok_error_code",
    "Ngrok.Error_Code",
    "proxy-authenticate",
    "Proxy-Authorization",
    "proxy-connection",
    "set-cookie",
    "te",
    "TE",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x",
    "X-Custom",
    "x-forwarded-for",
    "X-Forwarded-Host",
    "x-forwarded-proto",
    "X-Forwarded-A-Name-That-Is-Longer-Than-Others",
    "x-real-ip",
    "X-Real-IP",
    "x_custom",
    "x.custom",
    "X-Forwarded",
    "close2",
    "a-name-that-is-longer-than-all-others-of-the-edge",
    "Sec-WebSocket-Key",
];
const VALUES: [&str; 14] = [
    "",
    "a",
    "close",
    "Keep-Alive",
    "keep-alive, x-custom",
    "x-custom",
    "trailers",
    "5",
    "0",
    "007",
    "chunked",
    "a  b",
    "websocket",
    "100-continue",
];

fn fields() -> impl Strategy<Value = String> {
    let field = (
        prop::sample::select(&NAMES[..]),
        prop::sample::select(&VALUES[..]),
        prop::sample::select(&[": ", ": ", ": ", ": ", ":", ":  "][..]),
    );
    let fields = prop::collection::vec(field, 0..6);
    fields.prop_map(|fields| {
        let lines = fields
            .iter()
            .map(|(name, value, colon)| format!("{name}{colon}{value}\r\n"));
        lines.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn plain_requests_are_sent_as_on_the_general_path(
        method in prop::sample::select(&["GET", "POST", "OPTIONS", "TRACE", "Odd"][..]),
        target in prop::sample::select(&["/", "/a/b?c=d", "/a//b", "/%61", "/a.b", "*", "http://h/a"][..]),
        before in fields(),
        after in fields(),
        trusted in any::<bool>(),
    ) {
        let text = format!("{method} {target} HTTP/1.1\r\n{before}Host: h\r\n{after}\r\n");
        if let Some((Some(plain), general)) = request(&text, trusted) {
            prop_assert_eq!(plain, general, "{}", text);
        }
    }

    #[test]
    fn plain_requests_on_http2_are_sent_as_on_the_general_path(
        method in prop::sample::select(&["GET", "POST", "OPTIONS", "TRACE", "Odd"][..]),
        target in prop::sample::select(&["/", "/a/b?c=d", "/a//b", "/%61", "/a.b", "*"][..]),
        fields in fields(),
        trusted in any::<bool>(),
    ) {
        if let Some((Some(plain), general)) = http2_request(method, target, &fields, trusted) {
            prop_assert_eq!(plain, general, "{} {} {}", method, target, fields);
        }
    }

    #[test]
    fn plain_responses_are_sent_as_on_the_general_path(
        status in prop::sample::select(&["200 OK", "200", "404 Nothing", "204 A", "304 B", "101 C", "599 D"][..]),
        fields in fields(),
    ) {
        let text = format!("HTTP/1.1 {status}\r\n{fields}\r\n");
        if let Some((Some(plain), general)) = response(&text) {
            prop_assert_eq!(plain, general, "{}", text);
        }
    }
}

/// Several `connection` fields, in every order: each may name fields that do not pass.
#[test]
fn each_connection_field_is_respected() {
    const VALUES: [&str; 7] = [
        "close",
        "keep-alive",
        "x-a",
        "close, x-a",
        "set-cookie",
        "X-A",
        "",
    ];
    for (one, two, three) in VALUES
        .into_iter()
        .flat_map(|one| VALUES.map(|two| (one, two)))
        .flat_map(|(one, two)| VALUES.map(|three| (one, two, three)))
    {
        let fields = format!(
            "Connection: {one}\r\nX-A: 1\r\nConnection: {two}\r\nSet-Cookie: s=1\r\nconnection: {three}\r\n\r\n"
        );
        let sent = request(&format!("GET /a HTTP/1.1\r\nHost: h\r\n{fields}"), false);
        let returned = response(&format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}"));
        for (plain, general) in [sent, returned].into_iter().flatten() {
            assert!(plain.is_none_or(|plain| plain == general), "{fields}");
        }
    }
}

#[test]
fn usual_heads_take_the_plain_path_and_others_do_not() {
    let is_plain = |fields: &str, trusted: bool| {
        let text = format!("GET /a HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        request(&text, trusted).unwrap().0.is_some()
    };
    for fields in [
        "",
        "Accept: */*\r\nUser-Agent: a\r\nCookie: a=b\r\n",
        "Connection: keep-alive\r\n",
        "connection: close\r\n",
        "X-Forwarded-For: 1.2.3.4\r\n",
        "Content-Length: 5\r\n",
    ] {
        assert!(is_plain(fields, false), "{fields}");
    }
    for fields in [
        "Connection: upgrade\r\n",
        "Upgrade: websocket\r\n",
        "TE: trailers\r\n",
        "Expect: 100-continue\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 05\r\n",
        "A_B: c\r\n",
        "A:b\r\n",
        "Culvert-Replay-Of: a\r\n",
    ] {
        assert!(!is_plain(fields, false), "{fields}");
    }
    assert!(!is_plain("X-Forwarded-For: 1.2.3.4\r\n", true));
    for (text, is_plain) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: a\r\n\r\n",
            true,
        ),
        ("HTTP/1.1 200 OK\r\nServer: a\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0002\r\n\r\n", false),
        (
            "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
            false,
        ),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", false),
    ] {
        assert_eq!(response(text).unwrap().0.is_some(), is_plain, "{text}");
    }
}

#[test]
fn usual_heads_of_http2_take_the_plain_path_and_others_do_not() {
    for (fields, is_plain) in [
        ("", true),
        ("accept: */*\nuser-agent: a\ncookie: a=b\n", true),
        ("content-length: 0\nx-forwarded-for: 1.2.3.4\n", true),
        ("cookie: a=b\ncookie: c=d\n", false),
        ("te: trailers\n", false),
        ("expect: 100-continue\n", false),
        ("a_b: c\n", false),
        ("host: h\n", false),
        ("culvert-replay-of: a\n", false),
    ] {
        let request = http2_request("GET", "/a?b", fields, false).unwrap();
        assert_eq!(request.0.is_some(), is_plain, "{fields}");
    }
}

#[test]
fn fields_that_the_edge_interprets_leave_the_plain_path() {
    for name in [
        "close",
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
        "expect",
        "host",
        "accept",
        "user-agent",
        "content-length",
        "forwarded",
        "x-real-ip",
        "x-forwarded-for",
        REPLAY_OF_NAME,
        ASSERTION_NAME,
        ERROR_CODE_NAME,
        REQUEST_ID_NAME,
    ] {
        assert!(may_be_ours(name.as_bytes()), "{name}");
        assert!(name.len() <= NAME_BYTES_MAX, "{name}");
    }
}
