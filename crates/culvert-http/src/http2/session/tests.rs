use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, response};

use super::*;
use crate::http2::states::StreamState;

mod differential;
mod floods;
mod h2spec;
use crate::http1::Violation;
use crate::http2::Refused;

const OPENING: u8 = frame::END_HEADERS;
const WHOLE: u8 = frame::END_HEADERS | frame::END_STREAM;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::begin(&mut bytes, payload.len(), kind, flags, stream);
    bytes.extend_from_slice(payload);
    bytes
}

/// `GET https://a.example/`, and more fields.
fn section(more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x82, 0x87, 0x84, 0x01, 9];
    block.extend_from_slice(b"a.example");
    for (name, value) in more {
        literal(&mut block, name, value);
    }
    block
}

fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        block.push(u8::try_from(text.len()).unwrap());
        block.extend_from_slice(text.as_bytes());
    }
}

fn of(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        literal(&mut block, name, value);
    }
    block
}

/// A connection whose client has greeted.
struct Talk {
    session: Session,
    inbox: BytesMut,
    now: Instant,
    asked: Vec<IncomingRequest>,
}

impl Talk {
    fn new() -> Self {
        Self::with(3)
    }

    /// With so many streams at once.
    fn with(streams: u32) -> Self {
        let now = Instant::now();
        let mut talk = Self {
            session: Session::new(streams, now),
            inbox: BytesMut::new(),
            now,
            asked: Vec::new(),
        };
        let settings = frame(frame::SETTINGS, 0, 0, &[]);
        talk.hears(&[frame::PREFACE, &settings].concat()).unwrap();
        talk.said();
        talk
    }

    fn hears(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.inbox.extend_from_slice(bytes);
        loop {
            match self.session.step(&mut self.inbox, self.now)? {
                Step::More => return Ok(()),
                Step::Done => {}
                Step::Request(asked) => self.asked.push(*asked),
            }
        }
    }

    fn asks(&mut self, stream: u32, flags: u8) {
        self.hears(&frame(frame::HEADERS, flags, stream, &section(&[])))
            .unwrap();
    }

    /// Frames that were sent since it was last asked: kind, flags, stream, payload.
    fn said(&mut self) -> Vec<(u8, u8, u32, Vec<u8>)> {
        let bytes = self.session.out.take_all();
        let mut rest = &bytes[..];
        let mut frames = Vec::new();
        while let Some(head) = Head::read(rest) {
            let (whole, behind) = rest.split_at(frame::HEAD_BYTES + head.length);
            let payload = whole[frame::HEAD_BYTES..].to_vec();
            frames.push((head.kind, head.flags, head.stream, payload));
            rest = behind;
        }
        assert!(rest.is_empty());
        frames
    }

    /// The streams that were reset, and why.
    fn resets(&mut self) -> Vec<(u32, Reason)> {
        let resets = self
            .said()
            .into_iter()
            .filter(|it| it.0 == frame::RST_STREAM);
        resets
            .map(|(_, _, stream, payload)| (stream, Reason(frame::number(&payload).unwrap())))
            .collect()
    }

    fn data(&mut self, stream: u32) -> Poll<Option<Result<Bytes, StreamClosed>>> {
        let cx = Context::from_waker(Waker::noop());
        let frame = self.session.poll_data(stream, &cx);
        frame.map_ok(|frame| frame.into_data().unwrap_or_default())
    }

    fn window(&mut self, stream: u32) -> Poll<Result<usize, StreamClosed>> {
        let cx = Context::from_waker(Waker::noop());
        self.session.poll_window(stream, &cx)
    }
}

fn ok() -> response::Parts {
    Response::builder()
        .header("server", "x")
        .header("connection", "close")
        .body(())
        .unwrap()
        .into_parts()
        .0
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    const PROTOCOL: Reason = Reason::PROTOCOL_ERROR;
    const SIZE: Reason = Reason::FRAME_SIZE_ERROR;
    const FLOW: Reason = Reason::FLOW_CONTROL_ERROR;
    let request = frame(frame::HEADERS, OPENING, 1, &section(&[]));
    let unfinished = frame(frame::HEADERS, frame::END_STREAM, 1, &section(&[]));
    let with = |first: &[u8], second: Vec<u8>| [first, &second].concat();
    for (name, bytes, reason) in [
        (
            "data of no stream",
            frame(frame::DATA, 0, 0, b"x"),
            PROTOCOL,
        ),
        (
            "data of a stream that is to come",
            frame(frame::DATA, 0, 1, b"x"),
            PROTOCOL,
        ),
        (
            "more padding than payload",
            with(&request, frame(frame::DATA, frame::PADDED, 1, &[2, 0])),
            PROTOCOL,
        ),
        (
            "padding without a length",
            with(&request, frame(frame::DATA, frame::PADDED, 1, &[])),
            SIZE,
        ),
        (
            "a request of no stream",
            frame(frame::HEADERS, WHOLE, 0, &section(&[])),
            PROTOCOL,
        ),
        (
            "a request of a stream of ours",
            frame(frame::HEADERS, WHOLE, 2, &section(&[])),
            PROTOCOL,
        ),
        (
            "a priority cut short",
            frame(frame::HEADERS, WHOLE | frame::WITH_PRIORITY, 1, &[0; 4]),
            SIZE,
        ),
        (
            "a section of no stream",
            frame(frame::CONTINUATION, 0, 0, &[]),
            PROTOCOL,
        ),
        (
            "a section that nobody began",
            frame(frame::CONTINUATION, 0, 1, &[]),
            PROTOCOL,
        ),
        (
            "a frame between the pieces",
            with(&unfinished, frame(frame::PING, 0, 0, &[0; 8])),
            PROTOCOL,
        ),
        (
            "a piece of another stream",
            with(
                &unfinished,
                frame(frame::CONTINUATION, frame::END_HEADERS, 3, &[]),
            ),
            PROTOCOL,
        ),
        (
            "a section that cannot be read",
            frame(frame::HEADERS, WHOLE, 1, &[0x80]),
            Reason::COMPRESSION_ERROR,
        ),
        (
            "the same where nobody wants it",
            with(
                &request,
                [
                    frame(frame::RST_STREAM, 0, 1, &[0; 4]),
                    frame(frame::HEADERS, WHOLE, 3, &[0xFF; 9]),
                ]
                .concat(),
            ),
            Reason::COMPRESSION_ERROR,
        ),
        (
            "a priority of no stream",
            frame(frame::PRIORITY, 0, 0, &[0; 5]),
            PROTOCOL,
        ),
        (
            "a reset of no stream",
            frame(frame::RST_STREAM, 0, 0, &[0; 4]),
            PROTOCOL,
        ),
        (
            "a reset of a stream that is to come",
            frame(frame::RST_STREAM, 0, 1, &[0; 4]),
            PROTOCOL,
        ),
        (
            "a reset of another size",
            with(&request, frame(frame::RST_STREAM, 0, 1, &[0; 5])),
            SIZE,
        ),
        (
            "settings of a stream",
            frame(frame::SETTINGS, 0, 1, &[]),
            PROTOCOL,
        ),
        (
            "settings of another size",
            frame(frame::SETTINGS, 0, 0, &[0; 5]),
            SIZE,
        ),
        (
            "settings heard with more",
            frame(frame::SETTINGS, frame::ACK, 0, &[0; 6]),
            SIZE,
        ),
        (
            "a push that is neither on nor off",
            frame(frame::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]),
            PROTOCOL,
        ),
        (
            "a first window that is too large",
            frame(frame::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]),
            FLOW,
        ),
        (
            "frames that are too small",
            frame(frame::SETTINGS, 0, 0, &[0, 5, 0, 0, 0x3F, 0xFF]),
            PROTOCOL,
        ),
        (
            "frames that are too large",
            frame(frame::SETTINGS, 0, 0, &[0, 5, 1, 0, 0, 0]),
            PROTOCOL,
        ),
        (
            "a push",
            frame(frame::PUSH_PROMISE, frame::END_HEADERS, 1, &[0, 0, 0, 2]),
            PROTOCOL,
        ),
        (
            "a ping of a stream",
            frame(frame::PING, 0, 1, &[0; 8]),
            PROTOCOL,
        ),
        (
            "a ping of another size",
            frame(frame::PING, 0, 0, &[0; 7]),
            SIZE,
        ),
        (
            "an end of a stream alone",
            frame(frame::GOAWAY, 0, 1, &[0; 8]),
            PROTOCOL,
        ),
        (
            "an end cut short",
            frame(frame::GOAWAY, 0, 0, &[0; 7]),
            SIZE,
        ),
        (
            "a window of another size",
            frame(frame::WINDOW_UPDATE, 0, 0, &[0; 3]),
            SIZE,
        ),
        (
            "a window that does not grow",
            frame(frame::WINDOW_UPDATE, 0, 0, &[0; 4]),
            PROTOCOL,
        ),
        (
            "a window that grows too much",
            frame(frame::WINDOW_UPDATE, 0, 0, &[0x7F, 0xFF, 0xFF, 0xFF]),
            FLOW,
        ),
        (
            "a window of a stream that is to come",
            frame(frame::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
            PROTOCOL,
        ),
        (
            "a frame that is too long",
            vec![0, 0x40, 1, frame::DATA, 0, 0, 0, 0, 1],
            SIZE,
        ),
    ] {
        let mut talk = Talk::new();
        assert_eq!(
            talk.hears(&bytes),
            Err(ConnectionError::Protocol(reason)),
            "{name}"
        );
    }
}

#[test]
fn a_connection_begins_with_the_preface_and_settings() {
    for (bytes, is_good) in [
        (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], true),
        (b"GET / HTTP/1.1\r\n", false),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x08\x06\0\0\0\0\0\0\0\0\0\0\0\0\0",
            false,
        ),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\x01\0\0\0\0",
            false,
        ),
    ] {
        let mut talk = Talk::new();
        talk.session = Session::new(3, talk.now);
        let wrong = Err(ConnectionError::Protocol(Reason::PROTOCOL_ERROR));
        assert_eq!(talk.hears(bytes), if is_good { Ok(()) } else { wrong });
    }
}

#[test]
fn requests_that_are_none_reset_their_stream() {
    let long = "x".repeat(120);
    let many = vec![("x", &long[..]); 64 * 1024 / (32 + 121) + 1];
    let host = [(":method", "GET"), (":scheme", "https"), (":path", "/")];
    let calm = Reason::ENHANCE_YOUR_CALM;
    let wrong = Reason::PROTOCOL_ERROR;
    for (name, block, reason) in [
        ("an upper case name", section(&[("X", "y")]), Some(wrong)),
        (
            "a field of the connection",
            section(&[("connection", "close")]),
            Some(wrong),
        ),
        ("keep-alive", section(&[("keep-alive", "1")]), Some(wrong)),
        (
            "chunks",
            section(&[("transfer-encoding", "chunked")]),
            Some(wrong),
        ),
        ("an upgrade", section(&[("upgrade", "h2c")]), Some(wrong)),
        ("te", section(&[("te", "gzip")]), Some(wrong)),
        ("te that may be", section(&[("te", "trailers")]), None),
        (
            "a line end in a value",
            section(&[("x", "a\r\nb: c")]),
            Some(wrong),
        ),
        ("a zero in a value", section(&[("x", "a\0")]), Some(wrong)),
        (
            "a blank before a value",
            section(&[("x", " a")]),
            Some(wrong),
        ),
        (
            "a pseudo field twice",
            section(&[(":path", "/")]),
            Some(wrong),
        ),
        (
            "a pseudo field behind others",
            [of(&host[..2]), of(&[("x", "y"), (":path", "/")])].concat(),
            Some(wrong),
        ),
        (
            "a pseudo field that is none",
            section(&[(":x", "y")]),
            Some(wrong),
        ),
        ("an answer's", section(&[(":status", "200")]), Some(wrong)),
        ("no method", of(&host[1..]), Some(wrong)),
        ("no scheme", of(&[host[0], host[2]]), Some(wrong)),
        ("no path", of(&host[..2]), Some(wrong)),
        (
            "an empty path",
            of(&[host[0], host[1], (":path", "")]),
            Some(wrong),
        ),
        ("no authority", of(&host), None),
        (
            "a path with a blank",
            of(&[host[0], host[1], (":path", "/a b")]),
            None,
        ),
        (
            "an authority with a path",
            of(&[host[0], host[1], host[2], (":authority", "a/b")]),
            Some(wrong),
        ),
        (
            "connect with a path",
            of(&[
                (":method", "CONNECT"),
                (":authority", "a:1"),
                (":path", "/"),
            ]),
            Some(wrong),
        ),
        (
            "connect",
            of(&[(":method", "CONNECT"), (":authority", "a:1")]),
            None,
        ),
        (
            "a protocol without connect",
            section(&[(":protocol", "websocket")]),
            Some(wrong),
        ),
        (
            "two lengths",
            section(&[("content-length", "0"), ("content-length", "0")]),
            Some(wrong),
        ),
        (
            "a length in words",
            section(&[("content-length", "+1")]),
            Some(wrong),
        ),
        (
            "a length and no body",
            section(&[("content-length", "1")]),
            Some(wrong),
        ),
        ("more than there may be", section(&many), Some(calm)),
    ] {
        let mut talk = Talk::new();
        let pieces: Vec<&[u8]> = block.chunks(frame::PAYLOAD_BYTES_MAX).collect();
        for (nth, piece) in pieces.iter().enumerate() {
            let is_last = nth + 1 == pieces.len();
            let end = if is_last { frame::END_HEADERS } else { 0 };
            let bytes = match nth {
                0 => frame(frame::HEADERS, frame::END_STREAM | end, 1, piece),
                _ => frame(frame::CONTINUATION, end, 1, piece),
            };
            talk.hears(&bytes).unwrap();
        }
        let expected: Vec<_> = reason.map(|reason| (1, reason)).into_iter().collect();
        assert_eq!(talk.resets(), expected, "{name}");
        assert_eq!(talk.asked.len(), usize::from(reason.is_none()), "{name}");
        // The connection goes on.
        talk.asks(3, WHOLE);
        assert_eq!(talk.asked.last().unwrap().stream, 3, "{name}");
    }
}

#[test]
fn a_field_section_may_count_so_much_and_no_more() {
    // Names, values and 32 for each field: 175 for the four that say what is asked, 133 for each of these.
    let value = "x".repeat(100);
    let (count, rest) = ((LIST_BYTES_MAX - 175) / 133, (LIST_BYTES_MAX - 175) % 133);
    for (last, is_good) in [(rest - 33, true), (rest - 32, false)] {
        let last = "x".repeat(last);
        let mut fields = vec![("x", &value[..]); count];
        fields.push(("x", &last));
        let block = section(&fields);
        let mut talk = Talk::new();
        let (first, others) = block.split_at(frame::PAYLOAD_BYTES_MAX);
        talk.hears(&frame(frame::HEADERS, frame::END_STREAM, 1, first))
            .unwrap();
        let mut pieces = others.chunks(frame::PAYLOAD_BYTES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() {
                frame::END_HEADERS
            } else {
                0
            };
            talk.hears(&frame(frame::CONTINUATION, flags, 1, piece))
                .unwrap();
        }
        assert_eq!(talk.asked.len(), usize::from(is_good));
    }
}

#[test]
fn bodies_that_are_wrong_reset_their_stream() {
    const PROTOCOL: Reason = Reason::PROTOCOL_ERROR;
    let data = |bytes: usize, flags: u8| frame(frame::DATA, flags, 1, &vec![b'x'; bytes]);
    let ends = frame::END_STREAM;
    let trailers =
        |flags: u8, fields: &[(&str, &str)]| frame(frame::HEADERS, flags, 1, &of(fields));
    for (name, length, bytes, reason) in [
        (
            "as long as it says",
            "5",
            [data(2, 0), data(3, ends)].concat(),
            None,
        ),
        ("longer", "5", data(6, 0), Some(PROTOCOL)),
        ("shorter", "5", data(4, ends), Some(PROTOCOL)),
        (
            "shorter, with trailers",
            "5",
            [data(4, 0), trailers(WHOLE, &[("x", "y")])].concat(),
            Some(PROTOCOL),
        ),
        (
            "with trailers",
            "5",
            [data(5, 0), trailers(WHOLE, &[("x", "y")])].concat(),
            None,
        ),
        (
            "with a pseudo field behind it",
            "0",
            trailers(WHOLE, &[(":path", "/")]),
            Some(PROTOCOL),
        ),
        (
            "with fields that do not end it",
            "0",
            trailers(OPENING, &[("x", "y")]),
            Some(PROTOCOL),
        ),
        (
            "with data behind its end",
            "9",
            [data(9, ends), data(0, 0)].concat(),
            Some(Reason::STREAM_CLOSED),
        ),
        (
            "with a window that does not grow",
            "0",
            frame(frame::WINDOW_UPDATE, 0, 1, &[0; 4]),
            Some(PROTOCOL),
        ),
        (
            "with a window that grows too much",
            "0",
            frame(frame::WINDOW_UPDATE, 0, 1, &[0x7F, 0xFF, 0xFF, 0xFF]),
            Some(Reason::FLOW_CONTROL_ERROR),
        ),
        (
            "with a priority cut short",
            "0",
            frame(frame::PRIORITY, 0, 1, &[0; 4]),
            Some(Reason::FRAME_SIZE_ERROR),
        ),
    ] {
        let mut talk = Talk::new();
        let block = section(&[("content-length", length)]);
        talk.hears(&frame(frame::HEADERS, OPENING, 1, &block))
            .unwrap();
        talk.hears(&bytes).unwrap();
        let expected: Vec<_> = reason.map(|reason| (1, reason)).into_iter().collect();
        assert_eq!(talk.resets(), expected, "{name}");
    }
}

#[test]
fn a_body_is_held_to_its_windows_and_they_open_as_it_is_taken() {
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    let full = vec![7; frame::PAYLOAD_BYTES_MAX];
    for _ in 0..4 {
        talk.hears(&frame(frame::DATA, 0, 1, &full)).unwrap();
    }
    assert!(talk.said().is_empty(), "nothing was taken");
    // One byte more than the stream's window.
    talk.hears(&frame(frame::DATA, 0, 1, &[7])).unwrap();
    assert_eq!(talk.resets(), [(1, Reason::FLOW_CONTROL_ERROR)]);
    assert_eq!(talk.data(1), Poll::Ready(Some(Err(StreamClosed))));

    talk.asks(3, OPENING);
    for _ in 0..4 {
        talk.hears(&frame(frame::DATA, 0, 3, &full)).unwrap();
    }
    let mut taken = 0;
    while let Poll::Ready(Some(Ok(data))) = talk.data(3) {
        taken += data.len();
    }
    assert_eq!(taken, 4 * full.len());
    let opened: u32 = talk
        .said()
        .iter()
        .filter(|it| (it.0, it.2) == (frame::WINDOW_UPDATE, 3))
        .map(|it| frame::number(&it.3).unwrap())
        .sum();
    assert_eq!(opened as usize, taken);
    // The connection's window opens too, when half of it was taken.
    let mut opened = 0;
    for _ in 0..64 {
        talk.hears(&frame(frame::DATA, 0, 3, &full)).unwrap();
        assert!(talk.data(3).is_ready());
        let said = talk.said();
        let of_all = said
            .iter()
            .filter(|it| (it.0, it.2) == (frame::WINDOW_UPDATE, 0));
        opened += of_all.map(|it| frame::number(&it.3).unwrap()).sum::<u32>();
    }
    assert!(opened >= 1 << 20, "{opened}");
}

#[test]
fn small_pieces_of_a_body_are_gathered() {
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    let large = vec![b'l'; COPIED_BYTES_MAX + 1];
    let mut sent = Vec::new();
    for turn in 0..300u16 {
        let piece = match turn % 100 {
            50 => large.clone(),
            _ => turn.to_be_bytes().to_vec(),
        };
        talk.hears(&frame(frame::DATA, 0, 1, &piece)).unwrap();
        sent.extend(piece);
    }
    let (mut received, mut pieces) = (Vec::new(), 0);
    while let Poll::Ready(Some(Ok(data))) = talk.data(1) {
        received.extend_from_slice(&data);
        pieces += 1;
    }
    assert!(received == sent);
    assert_eq!(pieces, 7);
}

#[test]
fn a_body_nobody_reads_takes_no_more_than_its_window() {
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    let full = vec![7; frame::PAYLOAD_BYTES_MAX];
    talk.hears(&frame(frame::DATA, 0, 1, &full)).unwrap();
    talk.session.stop_reading(1);
    for _ in 0..3 {
        talk.hears(&frame(frame::DATA, 0, 1, &full)).unwrap();
    }
    // The same for one that was answered before it ended, and reset when it went on too long.
    talk.asks(3, OPENING);
    talk.session.send_head(3, &ok(), true);
    talk.session.close(3, Reason::INTERNAL_ERROR, talk.now);
    assert!(talk.resets().is_empty());
    talk.hears(&frame(frame::DATA, 0, 3, &full)).unwrap();
    let deadline = talk.session.closing_deadline().unwrap();
    talk.session.reset_closing(deadline);
    assert_eq!(talk.resets(), [(3, Reason::NO_ERROR)]);
    for _ in 0..3 {
        talk.hears(&frame(frame::DATA, 0, 3, &full)).unwrap();
    }
    let more = talk.hears(&frame(frame::DATA, 0, 3, &[7]));
    assert_eq!(
        more,
        Err(ConnectionError::Protocol(Reason::FLOW_CONTROL_ERROR))
    );
}

#[test]
fn answers_keep_to_the_windows_of_the_client() {
    let mut talk = Talk::new();
    let settings = frame(frame::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 10]);
    talk.hears(&settings).unwrap();
    talk.asks(1, WHOLE);
    talk.session.send_head(1, &ok(), false);
    assert_eq!(talk.window(1), Poll::Ready(Ok(10)));
    talk.session
        .send_data(1, Bytes::from_static(&[1; 10]), false);
    assert_eq!(talk.window(1), Poll::Pending);
    // What is taken back is owed first.
    talk.hears(&frame(frame::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 4]))
        .unwrap();
    talk.hears(&frame(frame::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 6]))
        .unwrap();
    assert_eq!(talk.window(1), Poll::Pending);
    talk.hears(&frame(frame::WINDOW_UPDATE, 0, 1, &[0, 1, 0, 0]))
        .unwrap();
    // The connection's own window is what is left of the first.
    talk.said();
    let mut sent = 10;
    while let Poll::Ready(Ok(room)) = talk.window(1) {
        talk.session.send_data(1, Bytes::from(vec![1; room]), false);
        sent += room;
        talk.said();
    }
    assert_eq!(sent, 65_535);
    talk.hears(&frame(frame::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))
        .unwrap();
    assert_eq!(talk.window(1), Poll::Ready(Ok(1)));
}

#[test]
fn an_answer_is_its_head_its_data_and_its_end() {
    let mut talk = Talk::new();
    talk.asks(1, WHOLE);
    talk.session.send_head(1, &ok(), false);
    talk.session
        .send_data(1, Bytes::from_static(b"hello"), false);
    let mut trailers = HeaderMap::new();
    trailers.insert("x", http::HeaderValue::from_static("y"));
    talk.session.send_trailers(1, &trailers);
    let said = talk.said();
    let shape: Vec<_> = said.iter().map(|it| (it.0, it.1, it.2)).collect();
    assert_eq!(
        shape,
        [
            (frame::HEADERS, frame::END_HEADERS, 1),
            (frame::DATA, 0, 1),
            (frame::HEADERS, frame::END_HEADERS | frame::END_STREAM, 1),
        ]
    );
    // That no table is used is told once; what is of HTTP/1 alone is not sent.
    assert_eq!(said[0].3[..2], [0x20, 0x88]);
    let mut names = Vec::new();
    let block = Bytes::from(said[0].3.clone());
    Decoder::default()
        .read(&block, |field, _| {
            if let hpack::Field::Plain(name, _) = field {
                names.push(name.to_string());
            }
        })
        .unwrap();
    assert_eq!(names, ["server"]);
    assert!(talk.session.streams.is_empty());
    // What is longer than a frame goes on in others.
    talk.asks(3, WHOLE);
    let mut long = ok();
    let value = http::HeaderValue::from_str(&"\u{20ac}".repeat(12_000)).unwrap();
    long.headers.insert("long", value);
    long.status = StatusCode::NOT_FOUND;
    talk.session.send_head(3, &long, true);
    let shape: Vec<_> = talk.said().iter().map(|it| (it.0, it.1, it.2)).collect();
    assert_eq!(
        shape,
        [
            (frame::HEADERS, frame::END_STREAM, 3),
            (frame::CONTINUATION, 0, 3),
            (frame::CONTINUATION, frame::END_HEADERS, 3),
        ]
    );
}

#[test]
fn streams_have_a_number_and_those_that_are_over_make_room() {
    let mut talk = Talk::new();
    for stream in [1, 3, 5, 7] {
        talk.asks(stream, WHOLE);
    }
    assert_eq!(talk.resets(), [(7, Reason::REFUSED_STREAM)]);
    talk.hears(&frame(frame::RST_STREAM, 0, 1, &[0, 0, 0, 8]))
        .unwrap();
    talk.asks(9, WHOLE);
    assert_eq!(talk.asked.len(), 4);
    let cx = Context::from_waker(Waker::noop());
    assert_eq!(talk.session.poll_closed(1, &cx), Poll::Ready(StreamClosed));
    assert_eq!(talk.session.poll_closed(9, &cx), Poll::Pending);
}

#[test]
fn a_stream_that_was_answered_waits_for_its_request_to_end() {
    let ends = [
        frame(frame::DATA, frame::END_STREAM, 1, b"x"),
        frame(frame::HEADERS, WHOLE, 1, &of(&[("x", "y")])),
        frame(frame::RST_STREAM, 0, 1, &[0; 4]),
    ];
    for end in ends {
        let mut talk = Talk::new();
        talk.asks(1, OPENING);
        talk.session.send_head(1, &ok(), true);
        talk.session.close(1, Reason::INTERNAL_ERROR, talk.now);
        talk.hears(&end).unwrap();
        assert!(talk.session.streams.is_empty());
        assert!(talk.resets().is_empty());
    }
    // Others need not wait for that.
    let mut talk = Talk::new();
    for stream in [1, 3, 5] {
        talk.asks(stream, OPENING);
    }
    talk.session.send_head(3, &ok(), true);
    talk.session.close(3, Reason::INTERNAL_ERROR, talk.now);
    talk.said();
    talk.asks(7, WHOLE);
    assert_eq!(talk.resets(), [(3, Reason::NO_ERROR)]);
    assert_eq!(talk.asked.len(), 4);
}

#[test]
fn a_connection_parts_when_its_client_has_heard() {
    let mut talk = Talk::new();
    talk.asks(1, WHOLE);
    talk.session.send_graceful_goaway();
    let said = talk.said();
    assert_eq!(
        (said[0].0, said[0].3[..8].to_vec()),
        (frame::GOAWAY, vec![0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0])
    );
    assert_eq!(said[1].0, frame::PING);
    // What it had begun meanwhile is served.
    talk.asks(3, WHOLE);
    talk.hears(&frame(frame::PING, frame::ACK, 0, &said[1].3))
        .unwrap();
    let said = talk.said();
    assert_eq!(
        (said[0].0, said[0].3[..8].to_vec()),
        (frame::GOAWAY, vec![0, 0, 0, 3, 0, 0, 0, 0])
    );
    // What it begins now is not, and says nothing.
    talk.asks(5, OPENING);
    talk.hears(&frame(frame::DATA, frame::END_STREAM, 5, b"x"))
        .unwrap();
    assert!(talk.said().is_empty());
    assert_eq!(talk.asked.len(), 2);
    for stream in [1, 3] {
        assert!(!talk.session.is_done());
        talk.session.send_head(stream, &ok(), true);
    }
    assert!(talk.session.is_done());
}

#[test]
fn those_that_wait_for_room_have_it_in_turn() {
    let mut talk = Talk::new();
    talk.hears(&frame(frame::WINDOW_UPDATE, 0, 0, &[0, 0x10, 0, 0]))
        .unwrap();
    for stream in [1, 3] {
        talk.asks(stream, WHOLE);
        talk.session.send_head(stream, &ok(), false);
    }
    let room = |window| match window {
        Poll::Ready(Ok(room)) => room,
        other => panic!("there is room: {other:?}"),
    };
    let first = room(talk.window(1));
    talk.session
        .send_data(1, Bytes::from(vec![1; first]), false);
    assert_eq!(talk.window(3), Poll::Pending);
    assert!(!talk.session.wake_next(), "nothing was sent yet");
    talk.said();
    assert!(talk.session.wake_next());
    assert!(!talk.session.wake_next());
    assert!(room(talk.window(3)) > 0);
}

/// What a gRPC client answers a message with.
fn grpc_says(stream: u32, bytes: u32) -> Vec<u8> {
    [
        frame(frame::WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes()),
        frame(frame::PING, 0, 0, &[2, 4, 16, 16, 9, 14, 7, 7]),
        frame(frame::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()),
    ]
    .concat()
}

#[test]
fn a_stream_of_small_messages_runs_on() {
    // grpc-go and grpcio answer each message with frames that widen windows and measure the way.
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    talk.session.send_head(1, &ok(), false);
    for turn in 0..100_000_u32 {
        let bytes = Bytes::from(vec![7; 25]);
        assert!(talk.window(1).is_ready(), "{turn}");
        talk.session.send_data(1, bytes, false);
        talk.hears(&grpc_says(1, 25)).unwrap();
        // Its own messages beside it.
        talk.hears(&frame(frame::DATA, 0, 1, &[7; 25])).unwrap();
        assert!(talk.data(1).is_ready());
        talk.said();
    }
    // What comes late, for as many messages as fit into the windows, is no flood either.
    for _ in 0..2_000 {
        talk.session
            .send_data(1, Bytes::from_static(&[7; 25]), false);
        talk.said();
    }
    for _ in 0..2_000 {
        talk.hears(&grpc_says(1, 25)).unwrap();
    }
}

#[test]
fn sequential_calls_run_on() {
    let mut talk = Talk::new();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    for turn in 0..50_000_u32 {
        let stream = turn * 2 + 1;
        talk.asks(stream, OPENING);
        let message = frame(frame::DATA, frame::END_STREAM, stream, &[7; 25]);
        talk.hears(&message).unwrap();
        assert!(talk.data(stream).is_ready());
        talk.session.send_head(stream, &ok(), false);
        talk.session
            .send_data(stream, Bytes::from_static(&[7; 25]), false);
        talk.session.send_trailers(stream, &trailers);
        talk.hears(&grpc_says(stream, 25)).unwrap();
        // Some clients end with this what is over.
        let reset = frame(frame::RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        talk.hears(&reset).unwrap();
        if turn % 10 == 0 {
            let window = frame(frame::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
            talk.hears(&window).unwrap();
        }
        talk.said();
    }
}

#[test]
fn a_client_may_cancel_as_many_calls_as_it_lets_end() {
    let mut talk = Talk::new();
    for turn in 0..10_000_u32 {
        let (taken, cancelled) = (turn * 4 + 1, turn * 4 + 3);
        talk.asks(taken, WHOLE);
        talk.asks(cancelled, WHOLE);
        talk.session.send_head(taken, &ok(), true);
        let reset = frame(frame::RST_STREAM, 0, cancelled, &[0, 0, 0, 8]);
        talk.hears(&reset).unwrap();
        talk.said();
    }
}

#[test]
fn a_later_goaway_names_no_higher_stream() {
    let last = |said: &[(u8, u8, u32, Vec<u8>)]| -> Vec<(u32, u32)> {
        let ends = said.iter().filter(|it| it.0 == frame::GOAWAY);
        let number = |bytes: &[u8]| frame::number(bytes).unwrap();
        ends.map(|it| (number(&it.3), number(&it.3[4..]))).collect()
    };
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    talk.session.send_graceful_goaway();
    talk.session.send_final_goaway();
    assert_eq!(last(&talk.said()), [(LAST_STREAM, 0), (1, 0)]);
    // What came in between is not served, whatever comes after it.
    talk.asks(3, WHOLE);
    talk.asks(9, WHOLE);
    talk.session.close_connection(Reason::PROTOCOL_ERROR);
    talk.session.close_connection(Reason::INTERNAL_ERROR);
    assert_eq!(last(&talk.said()), [(1, 1)]);
}

#[test]
fn streams_end_for_the_reason_of_their_connection() {
    for (reason, expected) in [
        (Reason::PROTOCOL_ERROR, Reason::PROTOCOL_ERROR),
        (Reason::ENHANCE_YOUR_CALM, Reason::ENHANCE_YOUR_CALM),
        (Reason::NO_ERROR, Reason::CANCEL),
    ] {
        let mut talk = Talk::new();
        talk.asks(1, OPENING);
        talk.asks(3, WHOLE);
        talk.session.close_connection(reason);
        for stream in [1, 3] {
            let internal = Reason::INTERNAL_ERROR;
            talk.session.close(stream, internal, talk.now);
        }
        let said = talk.said();
        assert_eq!(said[0].0, frame::GOAWAY);
        let resets = said[1..].iter().map(|it| (it.2, it.3.clone()));
        let code = expected.0.to_be_bytes().to_vec();
        assert_eq!(
            resets.collect::<Vec<_>>(),
            [(1, code.clone()), (3, code)],
            "{reason:?}"
        );
    }
}

/// Requests that are well-formed and yet not to be served carry the reason with them.
#[test]
fn targets_that_are_refused() {
    let malformed = |what: Option<&Refused>| {
        let violation = what.map(|refused| refused.0);
        matches!(violation, Some(Violation::Malformed(_)))
    };
    let long = format!("/{}", "x".repeat(100));
    for (scheme, path, is_refused) in [
        ("https", "/", false),
        ("HTTPS", &long, false),
        ("http", "/", true),
        ("ftp", "/", true),
        ("", "/", true),
        ("https", "?q", true),
        ("https", "a", true),
        ("https", "*", true),
        ("https", "/a#b", true),
        ("https", "/a b", true),
        ("https", "/a\u{1}", true),
        ("https", "/\u{e9}", true),
        ("https", "/?\u{e9}", true),
        ("https", "/%zz", true),
        ("https", "/..%2fa", true),
        ("https", "http://a.example/", true),
    ] {
        let block = of(&[
            (":method", "GET"),
            (":scheme", scheme),
            (":path", path),
            (":authority", "a.example"),
        ]);
        let mut talk = Talk::new();
        talk.hears(&frame(frame::HEADERS, WHOLE, 1, &block))
            .unwrap();
        let asked = talk.asked.first().unwrap();
        let refused = asked.head.extensions.get::<Refused>();
        assert_eq!(malformed(refused), is_refused, "{scheme} {path}");
    }
}
