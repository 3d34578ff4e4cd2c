mod lifecycle;
mod relief;
mod shares;
mod windows;

use std::time::Duration;

use bytes::{Buf, BytesMut};

use super::*;
use crate::codec::Piece;
use crate::frame::{self, Frame, HEAD_BYTES, PAYLOAD_BYTES_MAX};
use crate::outbox::Outbox;

/// A connection whose peer is a test that sends and receives single frames.
struct Pair {
    here: Connection,
    decoder: Decoder,
    now: Instant,
}

fn id(id: u32) -> StreamId {
    StreamId::new(id).unwrap()
}

fn data(stream: u32, payload: &[u8]) -> Frame {
    Frame::Data {
        id: id(stream),
        syn: false,
        fin: false,
        payload: Bytes::copy_from_slice(payload),
    }
}

fn syn(stream: u32, payload: &[u8]) -> Frame {
    Frame::Data {
        id: id(stream),
        syn: true,
        fin: false,
        payload: Bytes::copy_from_slice(payload),
    }
}

fn fin(stream: u32) -> Frame {
    Frame::Data {
        id: id(stream),
        syn: false,
        fin: true,
        payload: Bytes::new(),
    }
}

fn rst(stream: u32, code: ErrorCode) -> Frame {
    Frame::Rst {
        id: id(stream),
        code,
    }
}

impl Pair {
    fn server() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        Self {
            here: Connection::new(Side::Server, limits),
            decoder: Decoder::default(),
            now: Instant::now(),
        }
    }

    /// Sends frames from the peer.
    fn send(&mut self, frames: &[Frame]) -> &mut Self {
        let mut bytes = BytesMut::new();
        for frame in frames {
            frame.encode(&mut bytes);
        }
        self.send_bytes(&bytes)
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let mut input = BytesMut::from(bytes);
        self.here.receive(&mut input, self.now);
        self.here.check();
        self
    }

    /// All pending output as bytes.
    fn bytes(&mut self) -> Vec<u8> {
        let mut out = Outbox::default();
        self.here.transmit(&mut out, usize::MAX, self.now);
        self.here.check();
        let length = out.remaining();
        out.copy_to_bytes(length).to_vec()
    }

    /// All pending output as frames.
    fn frames(&mut self) -> Vec<Frame> {
        let mut input = BytesMut::from(&self.bytes()[..]);
        let mut frames = Vec::new();
        while let Some(piece) = self.decoder.next(&mut input).unwrap() {
            frames.push(match piece {
                Piece::Data { id, syn, fin, .. } => Frame::Data {
                    id,
                    syn,
                    fin,
                    payload: Bytes::new(),
                },
                Piece::Payload(bytes) => {
                    let Some(Frame::Data { payload, .. }) = frames.last_mut() else {
                        panic!("payload without a head");
                    };
                    *payload = bytes;
                    continue;
                }
                Piece::Rst { id, code } => Frame::Rst { id, code },
                Piece::WndInc { id, increment } => Frame::WndInc { id, increment },
                Piece::GoAway { code, text } => Frame::GoAway {
                    last: 0,
                    code,
                    text,
                },
                Piece::Unknown => panic!("an unknown frame was sent"),
            });
        }
        frames
    }

    fn open(&mut self, first: &'static [u8]) -> StreamId {
        let id = self.here.open(Bytes::from_static(first), self.now).unwrap();
        self.frames();
        id
    }

    fn read(&mut self, stream: StreamId) -> Result<Read, Broken> {
        let read = self.here.read(stream, usize::MAX, self.now);
        self.here.check();
        read
    }

    /// All data that can be read without waiting.
    fn drain(&mut self, stream: StreamId) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Ok(Read::Data(piece)) = self.read(stream) {
            bytes.extend_from_slice(&piece);
        }
        bytes
    }

    fn violated(&self) -> Option<ErrorCode> {
        match self.here.ending() {
            Some(Ending::Violated(violation)) => Some(violation.code),
            _ => None,
        }
    }
}

#[test]
fn the_seventeenth_unknown_frame_is_the_last() {
    let unknown = [0, 0, 1, 0x70, 0, 0, 0, 0, 9];
    let mut pair = Pair::server();
    for _ in 0..16 {
        pair.send_bytes(&unknown);
        assert!(pair.here.ending().is_none());
    }
    pair.send_bytes(&unknown);
    assert_eq!(pair.violated(), Some(ErrorCode::PROTOCOL));
}

#[test]
fn a_goodbye_with_any_text_ends_everything_and_leaves_what_was_received() {
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    assert_eq!(pair.read(stream), Ok(Read::Wait));
    let mut garbage = vec![0xFF; 70_000];
    garbage[3] = 0;
    pair.send(&[
        data(2, b"last words"),
        Frame::GoAway {
            last: 0x7FFF_FFFF,
            code: ErrorCode(0xDEAD_BEEF),
            text: garbage.into(),
        },
        data(2, b"behind it"),
    ]);
    let Some(Ending::GoneAway { code, text }) = pair.here.ending() else {
        panic!("{:?}", pair.here.ending());
    };
    assert_eq!(code.name(), "unknown error");
    assert!(text.len() <= 1024);
    assert_eq!(pair.here.next_event(), Some(Event::Readable(stream)));
    assert_eq!(pair.here.next_event(), Some(Event::Ended));
    assert_eq!(pair.drain(stream), b"last words");
    assert_eq!(pair.read(stream), Err(Broken::Gone));
    assert_eq!(pair.here.capacity(stream), Err(Broken::Gone));
    assert_eq!(
        pair.here.open(Bytes::new(), pair.now),
        Err(OpenRefused::Ended)
    );
    pair.here.release(stream, pair.now);
    assert_eq!(pair.here.stream_count(), 0);
    assert_eq!(pair.frames(), []);
}

#[test]
fn a_lost_connection_wakes_everybody_and_keeps_clean_ends_clean() {
    let mut pair = Pair::server();
    let (clean, cut) = (pair.open(b"x"), pair.open(b"x"));
    pair.send(&[data(2, b"all"), fin(2), data(4, b"a part")]);
    pair.here.lost();
    pair.here.lost();
    assert_eq!(pair.here.ending(), Some(&Ending::Lost));
    assert_eq!(pair.drain(clean), b"all");
    assert_eq!(pair.read(clean), Ok(Read::End));
    assert_eq!(pair.drain(cut), b"a part");
    assert_eq!(pair.read(cut), Err(Broken::Gone));
    assert_eq!(pair.frames(), []);
}
