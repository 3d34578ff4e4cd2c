//! Entry points for fuzzing. Each accepts any bytes and asserts an invariant. The test suite runs them on generated
//! bytes.

use crate::http1::{self, BodyLength, FIELDS_MAX, Framing, Progress};
use crate::http2::Reason;
use crate::http2::session::{ConnectionError, Session, Step};

/// A request head that we accept is parsed alike by an ordinary parser, and the verdict does not depend on how the bytes
/// arrive.
///
/// # Panics
///
/// When the promise is broken.
pub fn http_request(bytes: &[u8]) {
    let mut whole = Framing::new();
    let (taken, verdict) = whole.feed(bytes);
    assert!(taken <= bytes.len());

    let mut dripped = Framing::new();
    let mut drip_verdict = Progress::More;
    for byte in bytes {
        drip_verdict = dripped.feed(std::slice::from_ref(byte)).1;
        if drip_verdict != Progress::More {
            break;
        }
    }
    assert_eq!(verdict, drip_verdict, "the verdict depends on the cut");
    assert_eq!(whole.payload().bytes(), dripped.payload().bytes());

    if !whole.has_head() {
        return;
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let parsed = request.parse(bytes.get(..taken).unwrap_or_default());
    let head = match parsed {
        Ok(httparse::Status::Complete(head)) => head,
        other => panic!("a believed head is not one to a parser: {other:?}"),
    };
    let named = |name: &str| {
        request
            .headers
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(name))
            .count()
    };
    assert!(named("host") <= 1 && named("content-length") + named("transfer-encoding") <= 1);
    assert!(bytes.get(..head).unwrap_or_default().ends_with(b"\r\n\r\n"));
}

/// A chunked body ends where an ordinary parser sees its end, and has the same length.
///
/// # Panics
///
/// When the promise is broken.
pub fn http_chunks(bytes: &[u8]) {
    const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let message = [HEAD, bytes].concat();
    http_request(&message);
    let mut framing = Framing::new();
    let (taken, verdict) = framing.feed(&message);
    assert!(framing.payload().bytes() <= bytes.len() as u64);
    if verdict != Progress::End {
        return;
    }
    let (mut at, mut payload) = (HEAD.len(), 0_u64);
    loop {
        let rest = message.get(at..).unwrap_or_default();
        let size = match httparse::parse_chunk_size(rest) {
            Ok(httparse::Status::Complete((line, size))) => {
                at += line;
                size
            }
            other => panic!("a believed chunk is none to a parser: {other:?}"),
        };
        if size == 0 {
            break;
        }
        payload += size;
        at += usize::try_from(size).unwrap_or(usize::MAX) + 2;
        assert_eq!(message.get(at - 2..at), Some(&b"\r\n"[..]));
    }
    assert_eq!(payload, framing.payload().bytes());
    assert!(at <= taken, "the trailers end before they begin");
}

/// A response is read alike however it arrives, and its head as by an ordinary parser.
///
/// # Panics
///
/// When the promise is broken.
pub fn http_answer(bytes: &[u8]) {
    let whole = answer(bytes, bytes.len().max(1));
    let dripped = answer(bytes, 1);
    assert_eq!(whole, dripped, "the answer depends on the cut");
    let Some(Ok((status, ..))) = whole else {
        return;
    };
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => assert_eq!(response.code, Some(status)),
        other => panic!("an answer that is taken is none to a parser: {other:?}"),
    }
}

/// Status and body of a response, and whether it is complete.
type Answer = (u16, Vec<u8>, bool);

/// Reads a response that arrives in pieces of `step` bytes; `None` if its head is incomplete.
fn answer(bytes: &[u8], step: usize) -> Option<Result<Answer, &'static str>> {
    let mut end = http1::head::End::default();
    let arrived = (1..=bytes.len().div_ceil(step)).map(|pieces| bytes.len().min(pieces * step));
    let mut arrived = arrived.filter_map(|length| bytes.get(..length));
    let head = arrived.find_map(|bytes| end.find(bytes))?;
    let (head, rest) = bytes.split_at_checked(head)?;
    Some(read_answer(head, end.fields(), rest.chunks(step)))
}

fn read_answer<'a>(
    head: &[u8],
    lines: usize,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<Answer, &'static str> {
    let head = http1::head::response(&bytes::Bytes::copy_from_slice(head), lines, FIELDS_MAX)?;
    let length = BodyLength::of(&head.headers)?;
    let mut payload = length.of_response(head.status, false)?;
    let mut body = Vec::new();
    for mut piece in pieces {
        while !piece.is_empty() && !payload.is_ended() {
            let (taken, what) = payload.step(piece)?;
            let (read, rest) = piece.split_at(taken);
            if what == http1::Piece::Data {
                body.extend_from_slice(read);
            }
            piece = rest;
        }
    }
    assert_eq!(payload.bytes(), body.len() as u64);
    Ok((head.status.as_u16(), body, payload.is_ended()))
}

/// The meaning of a client's HTTP/2 frames does not depend on how their bytes arrive.
///
/// # Panics
///
/// When the promise is broken.
pub fn http2_frames(bytes: &[u8]) {
    const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let received = [GREETING, bytes].concat();
    let whole = conversation(std::iter::once(&received[..]));
    let dripped = conversation(received.chunks(1));
    assert_eq!(whole, dripped, "what is read depends on the cut");
}

/// The requests in a client's bytes, how the connection ends, and what the client is sent.
fn conversation<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<String>, Option<ConnectionError>, Vec<u8>) {
    let now = std::time::Instant::now();
    let mut session = Session::new(100, now);
    let mut inbox = bytes::BytesMut::new();
    let mut asked = Vec::new();
    for piece in pieces {
        inbox.extend_from_slice(piece);
        loop {
            match session.step(&mut inbox, now) {
                Ok(Step::More) => break,
                Ok(Step::Done) => {}
                Ok(Step::Request(it)) => {
                    // Some are served and some reset, to reach every stream state.
                    let id = it.stream;
                    let head = http::Response::new(()).into_parts().0;
                    match id % 8 {
                        1 => session.send_head(id, &head, true),
                        3 => session.close(id, Reason::INTERNAL_ERROR, now),
                        _ => {}
                    }
                    asked.push(format!("{it:?}"));
                }
                Err(end) => {
                    let sent = session.outbox().unwritten().concat();
                    return (asked, Some(end), sent);
                }
            }
        }
    }
    let sent = session.outbox().unwritten().concat();
    (asked, None, sent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    const CHUNKS: &str = "5;a=b\r\nhello\r\n1\r\n \r\n00A\r\n0123456789\r\n0\r\nx: y\r\n\r\n";

    #[test]
    fn seeds_of_messages_hold() {
        super::http_chunks(CHUNKS.as_bytes());
        super::http_chunks(b"0\r\n\r\n");
        let frames = [
            &[0, 0, 0, 4, 0, 0, 0, 0, 0][..],
            &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8],
            &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 11],
        ];
        super::http2_frames(&frames.concat());
        super::http2_frames(&frames.concat().repeat(60));
    }

    const ANSWERS: [&str; 4] = [
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5 ;a\r\nhello\r\n0\r\nx: y\r\n\r\n",
        "HTTP/1.1 201 \r\na:b\r\nContent-Length: 005\r\n\r\nhello, and more",
        "HTTP/1.0 404\nserver: old\n\nuntil the end",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
    ];

    #[test]
    fn seeds_of_answers_hold() {
        for answer in ANSWERS {
            super::http_answer(answer.as_bytes());
            assert!(
                super::answer(answer.as_bytes(), 3).unwrap().is_ok(),
                "{answer}"
            );
        }
    }

    /// Payloads that frames have, and any.
    fn payload() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            Just(b"\x82\x87\x84\x01\x01a".to_vec()),
            Just(vec![0, 0, 0, 1]),
            Just(vec![0; 8]),
            Just(vec![]),
            proptest::collection::vec(any::<u8>(), 0..20),
        ]
    }

    proptest! {
        #[test]
        fn changed_answers_hold(which in 0..ANSWERS.len(), at in 0..70_usize, cut in 0..6_usize, put in "[ -~\r\n]{0,6}") {
            let mut bytes = ANSWERS[which].as_bytes().to_vec();
            let end = (at + cut).min(bytes.len());
            bytes.splice(at.min(end)..end, put.bytes());
            super::http_answer(&bytes);
        }

        #[test]
        fn changed_chunks_hold(at in 0..CHUNKS.len(), cut in 0..6_usize, put in "[ -~\r\n]{0,6}") {
            let mut bytes = CHUNKS.as_bytes().to_vec();
            let end = (at + cut).min(bytes.len());
            bytes.splice(at..end, put.bytes());
            super::http_chunks(&bytes);
        }

        #[test]
        fn any_frames_hold(frames in proptest::collection::vec((0..11_u8, any::<u8>(), 0..14_u8, payload()), 0..40)) {
            let bytes: Vec<u8> = frames
                .iter()
                .flat_map(|(kind, flags, stream, payload)| {
                    let length = u8::try_from(payload.len()).unwrap();
                    [&[0, 0, length, *kind, *flags, 0, 0, 0, *stream][..], payload].concat()
                })
                .collect();
            super::http2_frames(&bytes);
        }
    }
}
