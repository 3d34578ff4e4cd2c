//! Decodes bytes into frames.
//!
//! A DATA frame may be 16 MiB long, so it is not assembled: the decoder returns its head first, and its payload as it
//! arrives. Other frames are short and returned whole. The text of a GOAWAY is truncated. The payload of an unknown
//! frame is skipped.

use bytes::{Buf, Bytes, BytesMut};

use crate::code::{ErrorCode, Violation};
use crate::frame::StreamId;
use crate::frame::{FIN, FrameType, GOAWAY_FIXED_BYTES, HEAD_BYTES, Head, INCREMENT_MAX, SYN};

/// A decoded part of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The head of a DATA frame. Pieces of its payload follow, with `length` bytes in total.
    Data {
        /// The stream.
        id: StreamId,
        /// Whether the frame opens the stream.
        syn: bool,
        /// Whether the frame is the last one in its direction.
        fin: bool,
        /// Length of the whole payload, of which most may not have arrived.
        length: usize,
    },
    /// Payload of the last DATA frame; never empty.
    Payload(Bytes),
    /// The peer reset a stream.
    Rst {
        /// The stream.
        id: StreamId,
        /// The error code.
        code: ErrorCode,
    },
    /// The peer extended the send window of a stream.
    WndInc {
        /// The stream.
        id: StreamId,
        /// The number of additional bytes; never zero.
        increment: u32,
    },
    /// The peer is closing the connection.
    GoAway {
        /// The error code.
        code: ErrorCode,
        /// The part of its message that has arrived, at most 256 bytes.
        text: Bytes,
    },
    /// A frame of an unknown type. Its payload is skipped.
    Unknown,
}

/// Maximum length of a GOAWAY message that is kept.
const TEXT_BYTES_MAX: usize = 256;

/// Decodes frames from input that may be split anywhere.
#[derive(Debug, Default)]
pub struct Decoder {
    at: At,
}

#[derive(Clone, Copy, Debug, Default)]
enum At {
    /// Before a head.
    #[default]
    Head,
    /// In the payload of a DATA frame.
    Payload { left: usize },
    /// In a payload that is skipped.
    Skip { left: usize },
}

impl Decoder {
    /// The next piece. `None` if `input` contains no complete one. Removes decoded bytes from `input`; fewer than 24
    /// bytes remain.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Piece>, Violation> {
        loop {
            match self.at {
                At::Head => return self.head(input),
                At::Payload { left } => {
                    let length = left.min(input.len());
                    if length == 0 {
                        return Ok(None);
                    }
                    self.at = match left - length {
                        0 => At::Head,
                        left => At::Payload { left },
                    };
                    return Ok(Some(Piece::Payload(input.split_to(length).freeze())));
                }
                At::Skip { left } => {
                    let length = left.min(input.len());
                    if length == 0 {
                        return Ok(None);
                    }
                    input.advance(length);
                    self.at = match left - length {
                        0 => At::Head,
                        left => At::Skip { left },
                    };
                }
            }
        }
    }

    /// Decodes a head, and the payload of a short frame.
    fn head(&mut self, input: &mut BytesMut) -> Result<Option<Piece>, Violation> {
        let Some(bytes) = input.first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let head = Head::decode(*bytes);
        match head.kind {
            FrameType::Data => {
                let id = stream(head)?;
                input.advance(HEAD_BYTES);
                if head.length > 0 {
                    self.at = At::Payload { left: head.length };
                }
                Ok(Some(Piece::Data {
                    id,
                    syn: head.flags & SYN != 0,
                    fin: head.flags & FIN != 0,
                    length: head.length,
                }))
            }
            FrameType::Rst => Ok(word(head, input)?.map(|(id, word)| Piece::Rst {
                id,
                code: ErrorCode(word),
            })),
            FrameType::WndInc => {
                let Some((id, word)) = word(head, input)? else {
                    return Ok(None);
                };
                match word & INCREMENT_MAX {
                    0 => Err(violation(ErrorCode::PROTOCOL, "window increment of zero")),
                    increment => Ok(Some(Piece::WndInc { id, increment })),
                }
            }
            FrameType::GoAway => {
                if head.length < GOAWAY_FIXED_BYTES {
                    return Err(violation(ErrorCode::FRAME_SIZE, "GOAWAY of a wrong length"));
                }
                if head.id != 0 {
                    return Err(violation(ErrorCode::PROTOCOL, "GOAWAY on a stream"));
                }
                if input.len() < HEAD_BYTES + GOAWAY_FIXED_BYTES {
                    return Ok(None);
                }
                input.advance(HEAD_BYTES + 4);
                let code = ErrorCode(input.get_u32());
                let text = (head.length - GOAWAY_FIXED_BYTES)
                    .min(input.len())
                    .min(TEXT_BYTES_MAX);
                let text = Bytes::copy_from_slice(&input.split_to(text));
                // One published agent encodes a wrong length in this frame, and every agent closes the connection
                // after it. So the bytes that follow are not decoded.
                self.at = At::Skip { left: usize::MAX };
                Ok(Some(Piece::GoAway { code, text }))
            }
            // A response of HTTP/1 would be a frame of many megabytes, and never end.
            FrameType::Unknown(_) if input.starts_with(b"HTTP/1.") => {
                Err(violation(ErrorCode::PROTOCOL, "the peer speaks HTTP/1"))
            }
            FrameType::Unknown(_) => {
                input.advance(HEAD_BYTES);
                if head.length > 0 {
                    self.at = At::Skip { left: head.length };
                }
                Ok(Some(Piece::Unknown))
            }
        }
    }
}

/// The stream and payload of a frame with a four-byte payload. `None` while it is incomplete.
fn word(head: Head, input: &mut BytesMut) -> Result<Option<(StreamId, u32)>, Violation> {
    let id = stream(head)?;
    if head.length != 4 {
        return Err(violation(
            ErrorCode::FRAME_SIZE,
            "RST or WNDINC of a wrong length",
        ));
    }
    if input.len() < HEAD_BYTES + 4 {
        return Ok(None);
    }
    input.advance(HEAD_BYTES);
    Ok(Some((id, input.get_u32())))
}

fn stream(head: Head) -> Result<StreamId, Violation> {
    StreamId::new(head.id).ok_or(violation(
        ErrorCode::PROTOCOL,
        "a frame that needs a stream has none",
    ))
}

const fn violation(code: ErrorCode, why: &'static str) -> Violation {
    Violation { code, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;

    fn id(id: u32) -> StreamId {
        StreamId::new(id).unwrap()
    }

    fn pieces(bytes: &[u8], cut: usize) -> Result<Vec<Piece>, Violation> {
        let mut decoder = Decoder::default();
        let mut input = BytesMut::new();
        let mut pieces = Vec::new();
        for part in bytes.chunks(cut) {
            input.extend_from_slice(part);
            while let Some(piece) = decoder.next(&mut input)? {
                pieces.push(piece);
            }
        }
        Ok(pieces)
    }

    /// Frames as encoded by the Go implementation, with its values.
    #[test]
    fn frames_have_the_bytes_of_the_reference_implementation() {
        let cases: &[(Frame, &[u8])] = &[
            (
                Frame::Rst {
                    id: id(0x49a1_bb00),
                    code: ErrorCode::STREAM_REFUSED,
                },
                &[0, 0, 4, 0x00, 0x49, 0xa1, 0xbb, 0, 0, 0, 0, 5],
            ),
            (
                Frame::Data {
                    id: id(0x49a1_bb00),
                    syn: false,
                    fin: false,
                    payload: Bytes::from_static(&[0, 1, 2, 3, 4]),
                },
                &[0, 0, 5, 0x10, 0x49, 0xa1, 0xbb, 0, 0, 1, 2, 3, 4],
            ),
            (
                Frame::Data {
                    id: id(0x7FFF_FFFF),
                    syn: false,
                    fin: true,
                    payload: Bytes::from_static(&[0xFF, 0xEE]),
                },
                &[0, 0, 2, 0x11, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xEE],
            ),
            (
                Frame::Data {
                    id: id(3),
                    syn: true,
                    fin: false,
                    payload: Bytes::from_static(&[0xFF; 4]),
                },
                &[0, 0, 4, 0x12, 0, 0, 0, 3, 0xFF, 0xFF, 0xFF, 0xFF],
            ),
            (
                Frame::Data {
                    id: id(1),
                    syn: false,
                    fin: false,
                    payload: Bytes::new(),
                },
                &[0, 0, 0, 0x10, 0, 0, 0, 1],
            ),
            (
                Frame::WndInc {
                    id: id(1),
                    increment: 0x0012_c498,
                },
                &[0, 0, 4, 0x20, 0, 0, 0, 1, 0x00, 0x12, 0xc4, 0x98],
            ),
            (
                Frame::WndInc {
                    id: id(1),
                    increment: 0x7FFF_FFFF,
                },
                &[0, 0, 4, 0x20, 0, 0, 0, 1, 0x7F, 0xFF, 0xFF, 0xFF],
            ),
            (
                Frame::GoAway {
                    last: 6,
                    code: ErrorCode::NONE,
                    text: Bytes::from_static(b"no error"),
                },
                b"\0\0\x10\x30\0\0\0\0\0\0\0\x06\0\0\0\0no error",
            ),
        ];
        for (frame, bytes) in cases {
            let mut out = BytesMut::new();
            frame.encode(&mut out);
            assert_eq!(out, bytes, "{frame:?}");
        }
    }

    #[test]
    fn a_captured_exchange_reads_the_same_however_it_is_cut() {
        // The first bytes of an agent: heartbeat stream, Auth stream, a heartbeat, credit, end.
        let mut wire = Vec::new();
        wire.extend([0, 0, 4, 0x12, 0, 0, 0, 3, 0xff, 0xff, 0xff, 0xff]);
        wire.extend([0, 0, 4, 0x12, 0, 0, 0, 5, 0, 0, 0, 0]);
        wire.extend([0, 0, 4, 0x10, 0, 0, 0, 3, 0xe0, 0x09, 0xb2, 0x35]);
        wire.extend([0, 0, 4, 0x20, 0, 0, 0, 5, 0, 0, 0, 0x20]);
        wire.extend([0, 0, 0, 0x11, 0, 0, 0, 5]);
        let data = |stream, syn, fin, length| Piece::Data {
            id: id(stream),
            syn,
            fin,
            length,
        };
        let expected = vec![
            data(3, true, false, 4),
            Piece::Payload(Bytes::from_static(&[0xff; 4])),
            data(5, true, false, 4),
            Piece::Payload(Bytes::from_static(&[0; 4])),
            data(3, false, false, 4),
            Piece::Payload(Bytes::from_static(&[0xe0, 0x09, 0xb2, 0x35])),
            Piece::WndInc {
                id: id(5),
                increment: 32,
            },
            data(5, false, true, 0),
        ];
        assert_eq!(pieces(&wire, wire.len()).unwrap(), expected);
        for cut in 1..wire.len() {
            let mut joined: Vec<Piece> = Vec::new();
            for piece in pieces(&wire, cut).unwrap() {
                match (joined.last_mut(), piece) {
                    (Some(Piece::Payload(whole)), Piece::Payload(part)) => {
                        *whole = Bytes::from([&whole[..], &part[..]].concat());
                    }
                    (_, piece) => joined.push(piece),
                }
            }
            assert_eq!(joined, expected, "cut every {cut}");
        }
    }

    #[test]
    fn what_no_implementation_sends_is_a_violation() {
        let cases: &[(&[u8], ErrorCode)] = &[
            (&[0, 0, 3, 0x00, 0, 0, 0, 2, 0, 0, 0], ErrorCode::FRAME_SIZE),
            (
                &[0, 0, 5, 0x20, 0, 0, 0, 2, 0, 0, 0, 1, 0],
                ErrorCode::FRAME_SIZE,
            ),
            (
                &[0, 0, 4, 0x20, 0, 0, 0, 2, 0, 0, 0, 0],
                ErrorCode::PROTOCOL,
            ),
            (
                // An increment in which only the masked bit is set.
                &[0, 0, 4, 0x20, 0, 0, 0, 2, 0x80, 0, 0, 0],
                ErrorCode::PROTOCOL,
            ),
            (
                &[0, 0, 4, 0x00, 0, 0, 0, 0, 0, 0, 0, 1],
                ErrorCode::PROTOCOL,
            ),
            (b"HTTP/1.1 400 Bad Request\r\n", ErrorCode::PROTOCOL),
            (&[0, 0, 1, 0x12, 0, 0, 0, 0, 7], ErrorCode::PROTOCOL),
            (&[0, 0, 1, 0x12, 0x80, 0, 0, 0, 7], ErrorCode::PROTOCOL),
            (&[0, 0, 7, 0x30, 0, 0, 0, 0], ErrorCode::FRAME_SIZE),
            (&[0, 0, 8, 0x30, 0, 0, 0, 1], ErrorCode::PROTOCOL),
        ];
        for (bytes, code) in cases {
            for cut in 1..=bytes.len() {
                assert_eq!(pieces(bytes, cut).unwrap_err().code, *code, "{bytes:?}");
            }
        }
    }

    #[test]
    fn unknown_frames_are_passed_over_and_nothing_is_read_behind_a_goaway() {
        let mut wire = vec![0, 0, 5, 0xF3, 1, 2, 3, 4, 9, 9, 9, 9, 9];
        wire.extend([0, 0, 0, 0x4F, 0, 0, 0, 0]);
        wire.extend([0, 0, 4, 0x00, 0, 0, 0, 2, 0, 0, 0, 7]);
        // The length as the published crate encodes it, without the eight fixed bytes.
        wire.extend(*b"\0\0\x0d\x30\0\0\0\0\0\0\0\x06\0\0\0\x01invalid frame");
        wire.extend([0, 0, 3, 0x00, 0, 0, 0, 0]);
        let read = pieces(&wire, wire.len()).unwrap();
        assert_eq!(read[..2], [Piece::Unknown, Piece::Unknown]);
        assert_eq!(
            read[2],
            Piece::Rst {
                id: id(2),
                code: ErrorCode::STREAM_RESET
            }
        );
        assert_eq!(
            read[3],
            Piece::GoAway {
                code: ErrorCode::PROTOCOL,
                text: Bytes::from_static(b"inval")
            }
        );
        assert_eq!(read.len(), 4);
        for cut in 1..wire.len() {
            assert_eq!(pieces(&wire, cut).unwrap().len(), 4, "cut every {cut}");
        }
    }

    #[test]
    fn a_frame_of_the_greatest_length_is_reported_by_its_head() {
        let mut decoder = Decoder::default();
        let mut input = BytesMut::from(&[0xFF, 0xFF, 0xFF, 0x10, 0, 0, 0, 2, 1, 2][..]);
        assert_eq!(
            decoder.next(&mut input).unwrap(),
            Some(Piece::Data {
                id: id(2),
                syn: false,
                fin: false,
                length: crate::frame::PAYLOAD_BYTES_MAX
            })
        );
        assert_eq!(
            decoder.next(&mut input).unwrap(),
            Some(Piece::Payload(Bytes::from_static(&[1, 2])))
        );
        assert_eq!(decoder.next(&mut input).unwrap(), None);
    }
}
