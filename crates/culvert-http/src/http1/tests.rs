//! Whole connections, read in one piece, byte by byte, and cut at any position, with the same
//! result. What one side writes, the other side can read.

use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use proptest::prelude::*;

use super::*;

mod differential;
mod rfc9112;

/// A message: its head as text, its body, its trailers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    pub(crate) is_whole: bool,
}

fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let texts = headers.iter();
    texts
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}

/// Lengths of the pieces in which bytes arrive, repeated as needed.
pub(crate) type Cuts<'a> = &'a [usize];

fn pieces<'a>(bytes: &'a [u8], cuts: Cuts<'a>) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = bytes;
    let mut cuts = cuts.iter().cycle();
    std::iter::from_fn(move || {
        let length = (*cuts.next()?).clamp(1, rest.len().max(1));
        let (piece, behind) = rest.split_at_checked(length)?;
        rest = behind;
        Some(piece)
    })
}

/// A head as it is written, with its lines in order: several fields of a name stay in theirs.
fn sorted_lines(write: impl FnOnce(&mut Vec<u8>)) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    write(&mut out);
    let mut lines: Vec<Vec<u8>> = out.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    lines.sort_by(|a, b| {
        let name = |line: &[u8]| line.split(|b| *b == b':').next().unwrap().to_vec();
        name(a).cmp(&name(b))
    });
    lines
}

/// The head with its map. A head that was kept as received is written as its map is.
pub(crate) fn request_parts(head: RequestHead) -> Box<http::request::Parts> {
    if let RequestHead::Raw(raw) = &head {
        let parts = raw.parts().unwrap();
        assert_eq!(raw.target(), parts.uri.to_string());
        assert_eq!(
            (raw.method(), Version::HTTP_11),
            (&parts.method, parts.version)
        );
        let as_received = sorted_lines(|out| {
            raw.write_line(out);
            raw.fields().write(out, FieldSet::default());
        });
        assert_eq!(
            as_received,
            sorted_lines(|out| head::write_request(out, &parts))
        );
    }
    head.into_parts().unwrap()
}

/// The same of a response.
fn response_parts(head: FinalHead) -> http::response::Parts {
    if let FinalHead::Raw(raw) = &head {
        let parts = raw.parts().unwrap();
        assert_eq!(raw.status(), parts.status);
        assert_eq!(Ok(raw.length()), BodyLength::of(&parts.headers));
        let as_received = sorted_lines(|out| {
            raw.write_line(out);
            raw.fields().write(out, FieldSet::default());
            out.extend_from_slice(b"\r\n");
        });
        let of_map = sorted_lines(|out| head::write_response(out, Version::HTTP_11, &parts));
        assert_eq!(as_received, of_map);
    }
    head.into_parts().unwrap()
}

/// The requests of a connection, and the violation that ended it.
pub(crate) fn requests(bytes: &[u8], cuts: Cuts<'_>) -> (Vec<Message>, Option<Violation>) {
    let (mut reader, mut buffer) = (RequestReader::default(), BytesMut::new());
    let mut messages: Vec<Message> = Vec::new();
    let mut is_in_body = false;
    for piece in pieces(bytes, cuts) {
        buffer.extend_from_slice(piece);
        loop {
            if !is_in_body {
                match reader.head(&mut buffer) {
                    Ok(Some(head)) => {
                        let parts = request_parts(head);
                        let fields = texts(&parts.headers);
                        messages.push(Message {
                            head: format!("{} {} {fields:?}", parts.method, parts.uri),
                            ..Message::default()
                        });
                        is_in_body = true;
                    }
                    Ok(None) => break,
                    Err(violation) => return (messages, Some(violation)),
                }
            }
            let message = messages.last_mut().unwrap();
            match reader.body(&mut buffer) {
                Ok(BodyPart::More) => break,
                Ok(BodyPart::Data(data)) => message.body.extend_from_slice(&data),
                Ok(BodyPart::Trailers(trailers)) => message.trailers = texts(&trailers),
                Ok(BodyPart::End) => {
                    assert!(reader.is_ended());
                    message.is_whole = true;
                    reader.next_message();
                    is_in_body = false;
                }
                Err(violation) => return (messages, Some(violation)),
            }
        }
    }
    (messages, None)
}

/// The responses of a connection until it closes. Each flag says whether the request's method was
/// HEAD.
pub(crate) fn responses(
    bytes: &[u8],
    heads: &[bool],
    cuts: Cuts<'_>,
) -> (Vec<Message>, Option<&'static str>) {
    let (mut reader, mut buffer) = (ResponseReader::default(), BytesMut::new());
    let mut messages: Vec<Message> = Vec::new();
    let mut heads = heads.iter();
    let mut is_open = false;
    let mut is_in_body = false;
    for piece in pieces(bytes, cuts) {
        buffer.extend_from_slice(piece);
        loop {
            if !is_open {
                let Some(&is_head) = heads.next() else {
                    return (messages, Some("behind the last"));
                };
                reader.expect(is_head);
                reader.keep_raw();
                is_open = true;
            }
            if !is_in_body {
                let (parts, is_final) = match reader.head(&mut buffer) {
                    Ok(Some(ResponseHead::Interim(parts))) => (parts, false),
                    Ok(Some(ResponseHead::Final(head))) => (response_parts(head), true),
                    Ok(None) => break,
                    Err(what) => return (messages, Some(what)),
                };
                let fields = texts(&parts.headers);
                messages.push(Message {
                    head: format!("{} {fields:?}", parts.status),
                    is_whole: !is_final,
                    ..Message::default()
                });
                is_in_body = is_final;
                continue;
            }
            let message = messages.last_mut().unwrap();
            match reader.body(&mut buffer) {
                Ok(BodyPart::More) => break,
                Ok(BodyPart::Data(data)) => message.body.extend_from_slice(&data),
                Ok(BodyPart::Trailers(trailers)) => message.trailers = texts(&trailers),
                Ok(BodyPart::End) => {
                    assert!(reader.is_spent());
                    message.is_whole = true;
                    (is_open, is_in_body) = (false, false);
                    if buffer.is_empty() {
                        break;
                    }
                }
                Err(what) => return (messages, Some(what)),
            }
        }
    }
    let is_complete = reader.close();
    if let Some(message) = messages.last_mut().filter(|_| is_in_body) {
        message.is_whole = is_complete;
    }
    (messages, None)
}

const REQUESTS: &str = "\r\nPOST /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello\
    GET http://h/ HTTP/1.1\r\nHost: h\r\nX:\t y \r\n\r\n\
    PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0A\r\n0123456789\r\n0\r\na: b\r\n\r\n\
    GET / HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n";

#[test]
fn requests_are_read_alike_however_they_arrive() {
    let bytes = REQUESTS.as_bytes();
    let whole = requests(bytes, &[usize::MAX]);
    let (messages, violation) = &whole;
    let bodies: Vec<&[u8]> = messages.iter().map(|it| &it.body[..]).collect();
    assert_eq!(bodies, [&b"hello"[..], b"", b"hello0123456789", b""]);
    assert!(messages.iter().all(|it| it.is_whole));
    assert_eq!(messages[2].trailers, [("a".into(), "b".into())]);
    assert_eq!(*violation, Some(Violation::Malformed("more than one host")));
    for size in 1..bytes.len() {
        assert_eq!(requests(bytes, &[size]), whole, "in pieces of {size}");
        assert_eq!(requests(bytes, &[size, usize::MAX]), whole, "cut at {size}");
    }
}

const RESPONSES: &str = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n\
    HTTP/1.1 200 OK\r\ncontent-length: 005\r\n\r\nhello\
    HTTP/1.1 200 OK\ncontent-length: 9\n\n\
    HTTP/1.1 304 x\r\ncontent-length: 9\r\n\r\n\
    HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5 ;x\r\nhello\r\n0\r\na: b\r\n\r\n\
    HTTP/1.0 404\r\n\r\nuntil the end";

#[test]
fn responses_are_read_alike_however_they_arrive() {
    let bytes = RESPONSES.as_bytes();
    let heads = [false, true, false, false, false];
    let whole = responses(bytes, &heads, &[usize::MAX]);
    let (messages, wrong) = &whole;
    assert_eq!(*wrong, None);
    let bodies: Vec<&[u8]> = messages.iter().map(|it| &it.body[..]).collect();
    let expected = [
        &b""[..],
        b"",
        b"hello",
        b"",
        b"",
        b"hello",
        b"until the end",
    ];
    assert_eq!(bodies, expected);
    assert!(messages.iter().all(|it| it.is_whole));
    assert_eq!(messages[5].trailers, [("a".into(), "b".into())]);
    for size in 1..bytes.len() {
        assert_eq!(
            responses(bytes, &heads, &[size]),
            whole,
            "in pieces of {size}"
        );
        assert_eq!(
            responses(bytes, &heads, &[size, usize::MAX]),
            whole,
            "cut at {size}"
        );
    }
}

/// All bytes that wait in a write buffer, taken in pieces.
fn written(out: &mut WriteBuffer, cuts: Cuts<'_>) -> Vec<u8> {
    let mut all = Vec::new();
    for length in cuts.iter().cycle() {
        let next: Vec<u8> = out.unwritten().concat();
        if next.is_empty() {
            break;
        }
        let length = (*length).clamp(1, next.len());
        all.extend_from_slice(&next[..length]);
        out.wrote(length);
    }
    all
}

/// The body of a message, in parts.
fn body() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let part = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..20),
        (0..12_000_usize).prop_map(|length| vec![b'x'; length]),
    ];
    proptest::collection::vec(part, 0..4)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(prop_oneof![1..4_usize, 1..9_000_usize], 1..6)
}

/// Writes a body as `sending` says.
fn write_body(
    out: &mut WriteBuffer,
    mut sending: BodyWriter,
    parts: &[Vec<u8>],
    trailers: Option<&HeaderMap>,
    cuts: Cuts<'_>,
) -> Vec<u8> {
    let mut all = written(out, cuts);
    for part in parts {
        sending
            .data(Bytes::copy_from_slice(part), out)
            .expect("as long as announced");
        all.extend(written(out, cuts));
    }
    sending.end(trailers, out).expect("as long as announced");
    all.extend(written(out, cuts));
    all
}

fn trailer() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(
        HeaderName::from_static("x-sum"),
        HeaderValue::from_static("1"),
    );
    trailers
}

proptest! {
    #[test]
    fn a_server_reads_the_requests_that_a_client_writes(
        all in proptest::collection::vec((body(), any::<bool>(), any::<bool>()), 1..4),
        write_cuts in cuts(),
        read_cuts in cuts(),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (parts, is_known, has_trailers) in &all {
            let head = Request::builder().method(Method::POST).uri("/a?b").header("host", "h").header("x", "y");
            let head = head.body(()).unwrap().into_parts().0;
            let length: usize = parts.iter().map(Vec::len).sum();
            let mut out = WriteBuffer::default();
            let sending = write_request(&mut out, &head, is_known.then_some(length as u64));
            let trailers = has_trailers.then(trailer);
            bytes.extend(write_body(&mut out, sending, parts, trailers.as_ref(), &write_cuts));
            expected.push((parts.concat(), trailers.filter(|_| !is_known).map(|it| texts(&it)).unwrap_or_default()));
        }
        let (read, violation) = requests(&bytes, &read_cuts);
        prop_assert_eq!(violation, None);
        prop_assert!(read.iter().all(|it| it.is_whole && it.head.starts_with("POST /a?b ")));
        let read: Vec<_> = read.into_iter().map(|it| (it.body, it.trailers)).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn a_client_reads_the_responses_that_a_server_writes(
        all in proptest::collection::vec((body(), any::<bool>(), any::<bool>(), any::<bool>()), 1..4),
        write_cuts in cuts(),
        read_cuts in cuts(),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (parts, is_known, has_trailers, is_head) in &all {
            let length: usize = parts.iter().map(Vec::len).sum();
            let head = Response::builder().status(StatusCode::OK);
            let head = match is_known {
                true => head.header("content-length", length),
                false => head.header("transfer-encoding", "chunked"),
            };
            let head = head.body(()).unwrap().into_parts().0;
            let mut out = WriteBuffer::default();
            head::write_response(out.front(), Version::HTTP_11, &head);
            let trailers = has_trailers.then(trailer);
            let parts: &[Vec<u8>] = if *is_head { &[] } else { parts };
            let sending = body_writer(&head, *is_head, true);
            bytes.extend(write_body(&mut out, sending, parts, trailers.as_ref(), &write_cuts));
            let trailers = trailers.filter(|_| !is_known && !is_head);
            expected.push((parts.concat(), trailers.map(|it| texts(&it)).unwrap_or_default()));
        }
        let heads: Vec<bool> = all.iter().map(|it| it.3).collect();
        let (read, wrong) = responses(&bytes, &heads, &read_cuts);
        prop_assert_eq!(wrong, None);
        prop_assert!(read.iter().all(|it| it.is_whole));
        let read: Vec<_> = read.into_iter().map(|it| (it.body, it.trailers)).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn changed_requests_are_read_alike_however_they_arrive(
        at in 0..REQUESTS.len(), cut in 0..6_usize, put in "[ -~\r\n]{0,6}", read_cuts in cuts(),
    ) {
        let mut bytes = REQUESTS.as_bytes().to_vec();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, put.bytes());
        let whole = requests(&bytes, &[usize::MAX]);
        prop_assert_eq!(&requests(&bytes, &[1]), &whole);
        prop_assert_eq!(&requests(&bytes, &read_cuts), &whole);
    }

    #[test]
    fn changed_responses_are_read_alike_however_they_arrive(
        at in 0..RESPONSES.len(), cut in 0..6_usize, put in "[ -~\r\n]{0,6}", read_cuts in cuts(),
    ) {
        let mut bytes = RESPONSES.as_bytes().to_vec();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, put.bytes());
        let heads = [false, true, false, false, false, false];
        let whole = responses(&bytes, &heads, &[usize::MAX]);
        prop_assert_eq!(&responses(&bytes, &heads, &[1]), &whole);
        prop_assert_eq!(&responses(&bytes, &heads, &read_cuts), &whole);
    }
}

/// What follows a message of unknown length could be its body.
#[test]
fn nothing_is_read_behind_a_refused_message() {
    let body = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nx\r\n";
    let next = b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut buffer = BytesMut::from(&[&body[..], next].concat()[..]);
    let mut reader = RequestReader::default();
    assert!(reader.head(&mut buffer).unwrap().is_some());
    let violation = reader.body(&mut buffer).unwrap_err();
    assert_eq!(reader.refused(), Some(violation));
    let mut next = BytesMut::from(&next[..]);
    assert_eq!(reader.body(&mut next).unwrap_err(), violation);
    assert_eq!(reader.head(&mut next).unwrap_err(), violation);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "incomplete")]
fn no_message_begins_inside_another() {
    let mut buffer = BytesMut::from("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nGET");
    let mut reader = RequestReader::default();
    reader.head(&mut buffer).unwrap();
    reader.next_message();
}
