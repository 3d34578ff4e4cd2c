//! A client's bytes and the server's replies, without sockets. The modules below use [`Talk`].

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, response};

use super::*;
use crate::http2::states::StreamState;

mod bodies;
mod busy;
mod cases;
mod differential;
mod floods;
mod h2spec;
mod heads;
mod peers;
mod responses;
mod rfc9113;
mod shutdown;
mod streams;

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

/// A connection whose client has sent its preface.
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

    /// With this limit of concurrent streams.
    fn with(streams: u32) -> Self {
        let now = Instant::now();
        let mut talk = Self {
            session: Session::new(streams, Schemes::Https, now),
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
                Step::Done | Step::Refused(..) => {}
                Step::Request(asked) => self.asked.push(asked),
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
