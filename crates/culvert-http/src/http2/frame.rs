//! Frame headers, types, flags, settings and error codes of HTTP/2 (RFC 9113 4, 6 and 7).

use std::fmt;

/// The client's connection preface (RFC 9113 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame header, in bytes.
pub(super) const HEAD_BYTES: usize = 9;
/// Longest payload of a frame, in bytes: the default of RFC 9113.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 10;

pub(super) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const ACK: u8 = 0x1;
pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const WITH_PRIORITY: u8 = 0x20;

pub(super) const HEADER_TABLE_SIZE: u16 = 1;
pub(super) const ENABLE_PUSH: u16 = 2;
pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(super) const MAX_FRAME_SIZE: u16 = 5;
pub(super) const MAX_HEADER_LIST_SIZE: u16 = 6;
pub(super) const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// An error code (RFC 9113 7).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    /// No error: a graceful end.
    pub const NO_ERROR: Self = Self(0);
    /// The peer violated the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// An error of this side.
    pub const INTERNAL_ERROR: Self = Self(2);
    /// The peer sent more than a window allows.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// A frame arrived for a stream that is half-closed or closed.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame has an invalid size.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// The stream was refused before any processing.
    pub const REFUSED_STREAM: Self = Self(7);
    /// The stream is not needed any more.
    pub const CANCEL: Self = Self(8);
    /// A field section cannot be decoded.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The peer causes too much load.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}", self.0)
    }
}

/// A frame header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    /// Reads the header at the start of `bytes`, if it is complete.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        let [a, b, c, kind, flags, stream @ ..] = *head;
        Some(Self {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & 0x7FFF_FFFF,
        })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Writes a frame header.
pub(crate) fn begin(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let [_, a, b, c] = (length as u32).to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// Reads a 32-bit number.
pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
