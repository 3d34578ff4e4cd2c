//! Error codes of the protocol, and how a connection ended.

use std::fmt;

/// An error code in RST and GOAWAY frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error.
    pub const NONE: Self = Self(0);
    /// The peer sent a frame that the protocol does not allow.
    pub const PROTOCOL: Self = Self(1);
    /// The sender of the code had an internal error.
    pub const INTERNAL: Self = Self(2);
    /// The peer sent more data than the window allowed.
    pub const FLOW_CONTROL: Self = Self(3);
    /// The stream does not accept data any more.
    pub const STREAM_CLOSED: Self = Self(4);
    /// The new stream is rejected.
    pub const STREAM_REFUSED: Self = Self(5);
    /// The stream is not needed any more.
    pub const STREAM_CANCELLED: Self = Self(6);
    /// The stream was aborted.
    pub const STREAM_RESET: Self = Self(7);
    /// The length of a frame is invalid for its type.
    pub const FRAME_SIZE: Self = Self(8);
    /// Too many new streams wait to be accepted.
    pub const ACCEPT_QUEUE_FULL: Self = Self(9);
    /// The peer causes too much load.
    pub const ENHANCE_YOUR_CALM: Self = Self(10);

    /// A readable name.
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

/// A violation of the protocol that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The code for the peer.
    pub code: ErrorCode,
    /// The reason for the log.
    pub why: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why)
    }
}

impl std::error::Error for Violation {}

/// How a connection ended. The first cause remains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer closed it.
    GoneAway {
        /// The peer's code.
        code: ErrorCode,
        /// The beginning of the peer's message, which may contain anything.
        text: String,
    },
    /// The peer violated the protocol.
    Violated(Violation),
    /// This side closed it.
    Closed(ErrorCode),
    /// The underlying transport ended.
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
