//! What each frame does in each state of its stream, and what it costs the client that sent it (RFC 9113 5.1 and 6).
//!
//! [`rule`] is the whole table for frames of a valid size, and [`wrong_size`] that for all others. Every cell has a
//! [cost](Cost), so no frame can be repeated for free: the [`Session`](super::Session) charges the cost and then acts. The
//! tests send a flood for each cell.
//!
//! A server that does not push has no reserved streams. The closed state of the RFC is four states here, because what a
//! frame on a closed stream means depends on how the stream ended.
//!
#![doc = include_str!("states.md")]

use crate::http2::frame::{self, Reason};

/// The type of a frame (RFC 9113 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// Content (6.1).
    Data,
    /// A field section, or its beginning (6.2).
    Headers,
    /// A priority, which has no effect (6.3).
    Priority,
    /// The end of a stream by an error (6.4).
    RstStream,
    /// Settings, or their acknowledgement (6.5).
    Settings,
    /// A promise, which only servers may send (6.6).
    PushPromise,
    /// A ping, or its acknowledgement (6.7).
    Ping,
    /// The end of the connection (6.8).
    GoAway,
    /// More room in a window (6.9).
    WindowUpdate,
    /// A CONTINUATION outside a field section (6.10). Those within one are not in the table: their number is limited.
    Continuation,
    /// An extension frame (RFC 9113 5.5).
    Unknown,
}

impl FrameType {
    /// The type with this code.
    pub fn of(code: u8) -> Self {
        match code {
            frame::DATA => Self::Data,
            frame::HEADERS => Self::Headers,
            frame::PRIORITY => Self::Priority,
            frame::RST_STREAM => Self::RstStream,
            frame::SETTINGS => Self::Settings,
            frame::PUSH_PROMISE => Self::PushPromise,
            frame::PING => Self::Ping,
            frame::GOAWAY => Self::GoAway,
            frame::WINDOW_UPDATE => Self::WindowUpdate,
            frame::CONTINUATION => Self::Continuation,
            _ => Self::Unknown,
        }
    }

    /// Whether a payload of `length` bytes has room for the frame's mandatory fields (RFC 9113 4.2).
    pub fn fits(self, length: usize, flags: u8) -> bool {
        let padded = usize::from(flags & frame::PADDED != 0);
        match self {
            Self::Data => length >= padded,
            Self::Headers if flags & frame::WITH_PRIORITY != 0 => length >= padded + 5,
            Self::Headers => length >= padded,
            Self::Priority => length == 5,
            Self::RstStream | Self::WindowUpdate => length == 4,
            Self::Settings if flags & frame::ACK != 0 => length == 0,
            Self::Settings => length.is_multiple_of(6),
            Self::Ping => length == 8,
            Self::GoAway => length >= 8,
            Self::PushPromise | Self::Continuation | Self::Unknown => true,
        }
    }
}

/// The state of a stream, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// Stream 0, the connection.
    Connection,
    /// Not opened yet.
    Idle,
    /// Open in both directions.
    Open,
    /// Ended by the client only.
    HalfClosedRemote,
    /// Ended by the server only.
    HalfClosedLocal,
    /// Closed: ended by both sides, or reset so long ago that it was forgotten.
    Closed,
    /// Closed: reset by the client.
    ResetByPeer,
    /// Closed: reset by the server. Frames that the client sent before it knew may still arrive.
    ResetByUs,
    /// Closed: above the stream of the server's final GOAWAY, so not served.
    Unserved,
}

/// The effect of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The one that its section of RFC 9113 defines.
    Process,
    /// None, except on the state of the connection: flow control counts its data, and its field section is decoded.
    Ignore,
    /// The stream is reset.
    StreamError(Reason),
    /// The connection ends.
    ConnectionError(Reason),
}

/// The cost of a frame for the client that sent it, in proportion to the server's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Flow control: windows open only as the application reads. An empty frame that does not end its stream costs
    /// `Control(1)`.
    Window,
    /// One of the concurrent streams.
    Stream,
    /// Nothing beyond the stream: each stream can have one such frame.
    Once,
    /// This many control frames, plus one for each 256 bytes of payload. A control frame is a small frame that is read, and
    /// at most one that is sent in reply. Data, and frames that the application sends, earn them back.
    Control(u32),
    /// One reset: work is thrown away, or an error is handled. Complete responses earn resets back.
    Reset,
    /// The connection ends.
    End,
}

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What happens.
    pub action: Action,
    /// What it costs the client.
    pub cost: Cost,
}

const fn process(cost: Cost) -> Rule {
    Rule {
        action: Action::Process,
        cost,
    }
}

const IGNORE: Rule = Rule {
    action: Action::Ignore,
    cost: Cost::Control(1),
};

const fn stream_error(reason: Reason) -> Rule {
    Rule {
        action: Action::StreamError(reason),
        cost: Cost::Reset,
    }
}

const fn connection_error(reason: Reason) -> Rule {
    Rule {
        action: Action::ConnectionError(reason),
        cost: Cost::End,
    }
}

/// The rule for a frame of a valid size.
pub const fn rule(kind: FrameType, state: StreamState) -> Rule {
    use FrameType::{
        Continuation, Data, GoAway, Headers, Ping, Priority, PushPromise, RstStream, Settings,
        Unknown, WindowUpdate,
    };
    use StreamState::{
        Closed, Connection, HalfClosedLocal, HalfClosedRemote, Idle, Open, ResetByPeer, ResetByUs,
        Unserved,
    };
    match (kind, state) {
        // 6.1: DATA belongs to a stream. 5.1: on an idle one it is a connection error.
        (Data, Connection | Idle) => connection_error(Reason::PROTOCOL_ERROR),
        (Data, Open | HalfClosedLocal) => process(Cost::Window),
        (Data, HalfClosedRemote | Closed | ResetByPeer) => stream_error(Reason::STREAM_CLOSED),
        // 5.1, closed: data sent before our reset arrived is counted and dropped. What was left of the stream's window
        // limits it.
        (Data, ResetByUs) => Rule {
            action: Action::Ignore,
            cost: Cost::Window,
        },
        // 6.8: the same for streams above our GOAWAY, for which no window is kept.
        (Data, Unserved) => IGNORE,

        // 6.2: a field section opens a stream (5.1.1) or is its trailers (8.1).
        (Headers, Connection) => connection_error(Reason::PROTOCOL_ERROR),
        (Headers, Idle) => process(Cost::Stream),
        (Headers, Open | HalfClosedLocal) => process(Cost::Once),
        (Headers, HalfClosedRemote | ResetByPeer) => stream_error(Reason::STREAM_CLOSED),
        (Headers, Closed) => connection_error(Reason::STREAM_CLOSED),
        (Headers, ResetByUs | Unserved) => IGNORE,

        // 6.3: allowed in any state, without effect (5.3).
        (Priority, Connection) => connection_error(Reason::PROTOCOL_ERROR),
        (
            Priority,
            Idle | Open | HalfClosedRemote | HalfClosedLocal | Closed | ResetByPeer | ResetByUs
            | Unserved,
        ) => process(Cost::Control(1)),

        // 6.4: a reset before the response is complete throws work away; later ones have no effect.
        (RstStream, Connection | Idle) => connection_error(Reason::PROTOCOL_ERROR),
        (RstStream, Open | HalfClosedRemote) => process(Cost::Reset),
        (RstStream, HalfClosedLocal | ResetByUs) => process(Cost::Control(1)),
        (RstStream, Closed | ResetByPeer | Unserved) => IGNORE,

        // 6.5, 6.7, 6.8: for the connection only. SETTINGS and PING require a reply.
        (Settings | Ping | GoAway, Connection) => process(Cost::Control(1)),
        (
            Settings | Ping | GoAway,
            Idle | Open | HalfClosedRemote | HalfClosedLocal | Closed | ResetByPeer | ResetByUs
            | Unserved,
        ) => connection_error(Reason::PROTOCOL_ERROR),

        // 6.9: ignored on streams that have ended.
        (WindowUpdate, Connection | Open | HalfClosedRemote | HalfClosedLocal) => {
            process(Cost::Control(1))
        }
        (WindowUpdate, Idle) => connection_error(Reason::PROTOCOL_ERROR),
        (WindowUpdate, Closed | ResetByPeer | ResetByUs | Unserved) => IGNORE,

        // 6.6: clients must not push. 6.10: CONTINUATION follows only an incomplete field section.
        (
            PushPromise | Continuation,
            Connection | Idle | Open | HalfClosedRemote | HalfClosedLocal | Closed | ResetByPeer
            | ResetByUs | Unserved,
        ) => connection_error(Reason::PROTOCOL_ERROR),

        // 4.1, 5.5.
        (
            Unknown,
            Connection | Idle | Open | HalfClosedRemote | HalfClosedLocal | Closed | ResetByPeer
            | ResetByUs | Unserved,
        ) => IGNORE,
    }
}

/// The rule for a frame of an invalid size (RFC 9113 4.2). PRIORITY affects only its stream (6.3), if that is open to be
/// reset; every other frame changes state of the connection.
pub const fn wrong_size(kind: FrameType, state: StreamState) -> Rule {
    let rule = rule(kind, state);
    match (kind, state, rule.action) {
        (_, _, Action::ConnectionError(_)) => rule,
        (
            FrameType::Priority,
            StreamState::Open | StreamState::HalfClosedRemote | StreamState::HalfClosedLocal,
            _,
        ) => stream_error(Reason::FRAME_SIZE_ERROR),
        _ => connection_error(Reason::FRAME_SIZE_ERROR),
    }
}

#[cfg(test)]
pub(crate) mod tests;
