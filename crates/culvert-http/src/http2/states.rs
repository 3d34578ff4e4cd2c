//! What each frame does in each state of its stream, and what it costs the peer that sent it
//! (RFC 9113, sections 5.1 and 6).
//!
//! [`rule`] is the whole table. Every cell has a cost, so no frame can be repeated for free. The
//! [abuse limiter](super::abuse) charges it; the machine acts on it.

use crate::http2::frame::{self, Reason};

/// The type of a frame (RFC 9113 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Data,
    Headers,
    Priority,
    RstStream,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    /// A CONTINUATION that continues nothing. One within a field section does not reach the table: its
    /// section has a limit of pieces.
    Continuation,
    /// An extension we do not speak (RFC 9113 5.5).
    Unknown,
}

impl Kind {
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

    /// Whether a payload of `length` bytes can hold the fields that the frame must have (RFC 9113 4.2).
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

/// The state of the stream that a frame is for, as the server of the connection sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// Stream 0: the connection itself.
    Connection,
    /// Not begun.
    Idle,
    /// Neither side has ended it.
    Open,
    /// The peer has ended it, we have not.
    HalfClosedRemote,
    /// We have ended it, the peer has not.
    HalfClosedLocal,
    /// Both sides have ended it, or it ended too long ago to know how.
    Closed,
    /// The peer has reset it.
    ResetByPeer,
    /// We have reset it. Frames that the peer sent before it knew may still arrive.
    ResetByUs,
    /// The peer begins it, or has begun it, after our final GOAWAY: it is not served.
    Unserved,
}

/// What a frame does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// What its section of RFC 9113 says.
    Process,
    /// Nothing. Flow control counts its data, and the decoder reads its field section: both are state of
    /// the connection.
    Ignore,
    /// The stream is reset.
    StreamError(Reason),
    /// The connection ends.
    ConnectionError(Reason),
}

/// What a frame costs the peer that sent it, measured by the work it makes for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Its bytes come out of the flow-control windows, which open only as somebody reads. A frame without
    /// bytes that does not end its stream costs `Control(1)`.
    Window,
    /// One of the streams that may be open at once.
    Stream,
    /// Nothing more than its stream has cost: a stream can bring it once.
    Once,
    /// So many control frames, and one more for each 256 bytes of payload: something small is read, and
    /// at most one small frame is owed for it. Frames that we send for the application and data earn it
    /// back.
    Control(u32),
    /// One reset: work that was begun is thrown away, or an error is answered. Streams that are answered to
    /// their end earn it back.
    Reset,
    /// Everything: the connection ends.
    End,
}

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub action: Action,
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

/// What a frame of the right size does and costs.
pub const fn rule(kind: Kind, state: StreamState) -> Rule {
    use Kind::{
        Continuation, Data, GoAway, Headers, Ping, Priority, PushPromise, RstStream, Settings,
        Unknown, WindowUpdate,
    };
    use StreamState::{
        Closed, Connection, HalfClosedLocal, HalfClosedRemote, Idle, Open, ResetByPeer, ResetByUs,
        Unserved,
    };
    match (kind, state) {
        // 6.1. A DATA frame is for a stream; 5.1: on an idle one it ends the connection.
        (Data, Connection | Idle) => connection_error(Reason::PROTOCOL_ERROR),
        (Data, Open | HalfClosedLocal) => process(Cost::Window),
        (Data, HalfClosedRemote | Closed | ResetByPeer) => stream_error(Reason::STREAM_CLOSED),
        // 5.1, closed: what was sent before our reset arrived is counted and dropped. The window that the
        // stream had left bounds it.
        (Data, ResetByUs) => Rule {
            action: Action::Ignore,
            cost: Cost::Window,
        },
        // 6.8. The same for streams above the last one of our GOAWAY, of which we keep no window.
        (Data, Unserved) => IGNORE,

        // 6.2. A field section begins a stream (5.1.1) or is its trailers (8.1).
        (Headers, Connection) => connection_error(Reason::PROTOCOL_ERROR),
        (Headers, Idle) => process(Cost::Stream),
        (Headers, Open | HalfClosedLocal) => process(Cost::Once),
        (Headers, HalfClosedRemote | ResetByPeer) => stream_error(Reason::STREAM_CLOSED),
        (Headers, Closed) => connection_error(Reason::STREAM_CLOSED),
        (Headers, ResetByUs | Unserved) => IGNORE,

        // 6.3. May come in any state. RFC 9113 5.3 gives priorities no meaning.
        (Priority, Connection) => connection_error(Reason::PROTOCOL_ERROR),
        (
            Priority,
            Idle | Open | HalfClosedRemote | HalfClosedLocal | Closed | ResetByPeer | ResetByUs
            | Unserved,
        ) => process(Cost::Control(1)),

        // 6.4. A reset before the answer is complete throws work away; later ones do nothing.
        (RstStream, Connection | Idle) => connection_error(Reason::PROTOCOL_ERROR),
        (RstStream, Open | HalfClosedRemote) => process(Cost::Reset),
        (RstStream, HalfClosedLocal | ResetByUs) => process(Cost::Control(1)),
        (RstStream, Closed | ResetByPeer | Unserved) => IGNORE,

        // 6.5, 6.7, 6.8. Of the connection alone. SETTINGS and PING make us answer.
        (Settings | Ping | GoAway, Connection) => process(Cost::Control(1)),
        (
            Settings | Ping | GoAway,
            Idle | Open | HalfClosedRemote | HalfClosedLocal | Closed | ResetByPeer | ResetByUs
            | Unserved,
        ) => connection_error(Reason::PROTOCOL_ERROR),

        // 6.9. On streams that are over it is ignored.
        (WindowUpdate, Connection | Open | HalfClosedRemote | HalfClosedLocal) => {
            process(Cost::Control(1))
        }
        (WindowUpdate, Idle) => connection_error(Reason::PROTOCOL_ERROR),
        (WindowUpdate, Closed | ResetByPeer | ResetByUs | Unserved) => IGNORE,

        // 6.6: clients do not push. 6.10: a CONTINUATION follows the frame that it continues.
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

/// What a frame does whose payload cannot be its own (RFC 9113 4.2). For a PRIORITY that is an error of its
/// stream (6.3), where one is open to be reset; every other frame changes what the connection relies on.
pub const fn wrong_size(kind: Kind, state: StreamState) -> Rule {
    let rule = rule(kind, state);
    match (kind, state, rule.action) {
        (_, _, Action::ConnectionError(_)) => rule,
        (
            Kind::Priority,
            StreamState::Open | StreamState::HalfClosedRemote | StreamState::HalfClosedLocal,
            _,
        ) => stream_error(Reason::FRAME_SIZE_ERROR),
        _ => connection_error(Reason::FRAME_SIZE_ERROR),
    }
}

#[cfg(test)]
pub(crate) mod all {
    use super::{Kind, StreamState};

    pub(crate) const KINDS: [Kind; 11] = [
        Kind::Data,
        Kind::Headers,
        Kind::Priority,
        Kind::RstStream,
        Kind::Settings,
        Kind::PushPromise,
        Kind::Ping,
        Kind::GoAway,
        Kind::WindowUpdate,
        Kind::Continuation,
        Kind::Unknown,
    ];
    pub(crate) const STATES: [StreamState; 9] = [
        StreamState::Connection,
        StreamState::Idle,
        StreamState::Open,
        StreamState::HalfClosedRemote,
        StreamState::HalfClosedLocal,
        StreamState::Closed,
        StreamState::ResetByPeer,
        StreamState::ResetByUs,
        StreamState::Unserved,
    ];
}
