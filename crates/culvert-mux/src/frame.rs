//! Frames. Every frame has a head of eight bytes and a payload; integers are big-endian.
//!
//! ```text
//! byte  0      1      2      3                     4      5      6      7
//!      +------+------+------+----------+----------+------+------+------+------+
//!      |  payload length    | type (4) | flags (4)|  0 |   stream id, 31 bits |
//!      +------+------+------+----------+----------+------+------+------+------+
//! ```

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::code::ErrorCode;

/// Length of the head of a frame.
pub const HEAD_BYTES: usize = 8;
/// The maximum payload length that a head can encode.
pub const PAYLOAD_BYTES_MAX: usize = 0x00FF_FFFF;

pub(crate) const STREAM_ID_MAX: u32 = 0x7FFF_FFFF;
pub(crate) const INCREMENT_MAX: u32 = 0x7FFF_FFFF;
/// Length of the last stream id and code before the text of a GOAWAY.
pub(crate) const GOAWAY_FIXED_BYTES: usize = 8;

/// The side of a connection. The side that connects opens streams with odd ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that connects: the agent.
    Client,
    /// The side that accepts the connection.
    Server,
}

impl Side {
    /// The id of the first stream that this side opens, as in both published implementations.
    pub(crate) const fn first_id(self) -> u32 {
        match self {
            Self::Client => 3,
            Self::Server => 2,
        }
    }

    /// Whether `id` is an id for streams that this side opens.
    pub(crate) const fn opens(self, id: StreamId) -> bool {
        match self {
            Self::Client => id.0 & 1 == 1,
            Self::Server => id.0 & 1 == 0,
        }
    }
}

/// The id of a stream: 1 to 2³¹ − 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u32);

impl StreamId {
    /// `None` for zero, which denotes the connection, and for ids with the top bit set.
    pub const fn new(id: u32) -> Option<Self> {
        if id == 0 || id > STREAM_ID_MAX {
            None
        } else {
            Some(Self(id))
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The type of a frame; the upper half of the head's fourth byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameType {
    Rst,
    Data,
    WndInc,
    GoAway,
    Unknown(u8),
}

impl FrameType {
    const fn bits(self) -> u8 {
        match self {
            Self::Rst => 0,
            Self::Data => 1,
            Self::WndInc => 2,
            Self::GoAway => 3,
            Self::Unknown(bits) => bits & 0xF,
        }
    }

    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Rst,
            1 => Self::Data,
            2 => Self::WndInc,
            3 => Self::GoAway,
            other => Self::Unknown(other),
        }
    }
}

/// The sender will send no more data on the stream.
pub(crate) const FIN: u8 = 0x1;
/// The frame opens the stream.
pub(crate) const SYN: u8 = 0x2;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Length of the payload, at most [`PAYLOAD_BYTES_MAX`].
    pub(crate) length: usize,
    pub(crate) kind: FrameType,
    pub(crate) flags: u8,
    /// Zero for GOAWAY, a stream id for other types.
    pub(crate) id: u32,
}

impl Head {
    pub(crate) const fn encode(self) -> [u8; HEAD_BYTES] {
        debug_assert!(self.length <= PAYLOAD_BYTES_MAX);
        let length = (self.length as u32).to_be_bytes();
        let id = self.id.to_be_bytes();
        [
            length[1],
            length[2],
            length[3],
            self.kind.bits() << 4 | self.flags & 0xF,
            id[0],
            id[1],
            id[2],
            id[3],
        ]
    }

    /// Any eight bytes are a valid head. The top bit of the id is ignored, as in one of the published
    /// implementations.
    pub(crate) const fn decode(bytes: [u8; HEAD_BYTES]) -> Self {
        let [l0, l1, l2, bits, i0, i1, i2, i3] = bytes;
        Self {
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind: FrameType::from_bits(bits >> 4),
            flags: bits & 0xF,
            id: u32::from_be_bytes([i0, i1, i2, i3]) & STREAM_ID_MAX,
        }
    }
}

/// A whole frame. [`crate::connection::Connection`] never builds one: it writes heads and payloads
/// into its [`crate::outbox::Outbox`]. Tests and tools use frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Ends both directions of a stream.
    Rst {
        /// The stream.
        id: StreamId,
        /// The error code.
        code: ErrorCode,
    },
    /// Bytes of a stream.
    Data {
        /// The stream.
        id: StreamId,
        /// Whether the frame opens the stream.
        syn: bool,
        /// Whether the frame is the last one in this direction.
        fin: bool,
        /// At most [`PAYLOAD_BYTES_MAX`], and at most the peer's window.
        payload: Bytes,
    },
    /// Extends the send window of a stream.
    WndInc {
        /// The stream.
        id: StreamId,
        /// The number of additional bytes: 1 to 2³¹ − 1.
        increment: u32,
    },
    /// Ends the connection.
    GoAway {
        /// The last stream of the peer that was processed; 0 for none.
        last: u32,
        /// The error code.
        code: ErrorCode,
        /// A message for people.
        text: Bytes,
    },
}

impl Frame {
    /// Appends the encoded frame.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Rst { id, code } => out.put_slice(&rst(*id, *code)),
            Self::Data {
                id,
                syn,
                fin,
                payload,
            } => {
                let flags = if *syn { SYN } else { 0 } | if *fin { FIN } else { 0 };
                out.put_slice(&data_head(*id, flags, payload.len()));
                out.put_slice(payload);
            }
            Self::WndInc { id, increment } => out.put_slice(&window_increment(*id, *increment)),
            Self::GoAway { last, code, text } => {
                out.put_slice(&goaway_head(*last, *code, text.len()));
                out.put_slice(text);
            }
        }
    }
}

pub(crate) fn data_head(id: StreamId, flags: u8, length: usize) -> [u8; HEAD_BYTES] {
    Head {
        length,
        kind: FrameType::Data,
        flags,
        id: id.get(),
    }
    .encode()
}

pub(crate) fn rst(id: StreamId, code: ErrorCode) -> [u8; HEAD_BYTES + 4] {
    with_word(FrameType::Rst, id, code.0)
}

pub(crate) fn window_increment(id: StreamId, increment: u32) -> [u8; HEAD_BYTES + 4] {
    with_word(FrameType::WndInc, id, increment & INCREMENT_MAX)
}

pub(crate) fn goaway_head(
    last: u32,
    code: ErrorCode,
    text: usize,
) -> [u8; HEAD_BYTES + GOAWAY_FIXED_BYTES] {
    let head = Head {
        length: GOAWAY_FIXED_BYTES + text,
        kind: FrameType::GoAway,
        flags: 0,
        id: 0,
    };
    let mut bytes = [0; HEAD_BYTES + GOAWAY_FIXED_BYTES];
    bytes[..8].copy_from_slice(&head.encode());
    bytes[8..12].copy_from_slice(&last.to_be_bytes());
    bytes[12..].copy_from_slice(&code.0.to_be_bytes());
    bytes
}

fn with_word(kind: FrameType, id: StreamId, word: u32) -> [u8; HEAD_BYTES + 4] {
    let head = Head {
        length: 4,
        kind,
        flags: 0,
        id: id.get(),
    };
    let mut bytes = [0; HEAD_BYTES + 4];
    bytes[..8].copy_from_slice(&head.encode());
    bytes[8..].copy_from_slice(&word.to_be_bytes());
    bytes
}
