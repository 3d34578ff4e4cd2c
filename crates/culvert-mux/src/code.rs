//! Why a stream or a connection ended: the codes of the protocol and our own words for them.

use std::fmt;

/// A reason as it travels in RST and GOAWAY frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// Nothing went wrong.
    pub const NONE: Self = Self(0);
    /// A frame that the protocol does not allow.
    pub const PROTOCOL: Self = Self(1);
    /// The sender of the code failed.
    pub const INTERNAL: Self = Self(2);
    /// More data than the window allowed.
    pub const FLOW_CONTROL: Self = Self(3);
    /// Data for a stream that takes none any more.
    pub const STREAM_CLOSED: Self = Self(4);
    /// A new stream is not taken.
    pub const STREAM_REFUSED: Self = Self(5);
    /// Nobody wants the stream any more.
    pub const STREAM_CANCELLED: Self = Self(6);
    /// The stream broke.
    pub const STREAM_RESET: Self = Self(7);
    /// A frame of a length that its type does not have.
    pub const FRAME_SIZE: Self = Self(8);
    /// Too many new streams wait to be taken.
    pub const ACCEPT_QUEUE_FULL: Self = Self(9);
    /// The peer asks too much.
    pub const ENHANCE_YOUR_CALM: Self = Self(10);

    /// The name that people use for it.
    pub const fn name(self) -> &'static str {
        const NAMES: [&str; 16] = [
            "no error",
            "protocol error",
            "internal error",
            "flow control error",
            "stream closed",
            "stream refused",
            "stream cancelled",
            "stream reset",
            "frame size error",
            "accept queue full",
            "enhance your calm",
            "remote gone away",
            "streams exhausted",
            "write timeout",
            "session closed",
            "peer end of file",
        ];
        if self.0 < 16 {
            NAMES[self.0 as usize]
        } else {
            "unknown error"
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a peer did that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What the peer is told.
    pub code: ErrorCode,
    /// What the log is told.
    pub why: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why)
    }
}

impl std::error::Error for Violation {}

/// How a connection ended. The first reason stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer said goodbye.
    GoneAway {
        /// Its reason.
        code: ErrorCode,
        /// The beginning of its text, which can be anything.
        text: String,
    },
    /// The peer broke the protocol.
    Violated(Violation),
    /// This side closed it.
    Closed(ErrorCode),
    /// The bytes below it stopped.
    Lost,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GoneAway { code, text } => {
                write!(f, "the peer closed the session: {code}: {text:?}")
            }
            Self::Violated(violation) => write!(f, "the peer violated the protocol: {violation}"),
            Self::Closed(code) => write!(f, "closed: {code}"),
            Self::Lost => f.write_str("connection lost"),
        }
    }
}
