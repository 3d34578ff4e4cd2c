//! One stream: two directions that end apart from each other.
//!
//! ```text
//! sending    Open ──finish──▶ Finishing ──last frame out──▶ Finished
//!              └──────────────────┴─── RST of either side ──▶ Broken
//! receiving  Open ──FIN──▶ Finished          (what came before it can still be read)
//!              └── RST of either side ──▶ Broken
//! ```

use std::fmt;
use std::time::Instant;

use bytes::Bytes;

use crate::ErrorCode;
use crate::chunks::Chunks;
use crate::window::{ReceiveWindow, SendWindow};

/// What a read gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The next bytes; never empty.
    Data(Bytes),
    /// None yet. [`crate::Event::Readable`] will tell.
    Wait,
    /// The peer has finished, and all of it was read.
    End,
}

/// Why a stream carries nothing any more in the direction asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The peer reset it.
    ByPeer(ErrorCode),
    /// This side reset it: its user, or because the peer broke a rule.
    Here(ErrorCode),
    /// This side had finished it.
    Finished,
    /// The connection ended, or never had such a stream.
    Gone,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByPeer(code) => write!(f, "stream reset by the peer: {code}"),
            Self::Here(code) => write!(f, "stream reset: {code}"),
            Self::Finished => f.write_str("stream already finished"),
            Self::Gone => f.write_str("the connection ended"),
        }
    }
}

impl std::error::Error for Broken {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Open,
    Finishing,
    Finished,
    Broken(Broken),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    Open,
    Finished,
    Broken(Broken),
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) sending: Sending,
    /// The next frame opens the stream.
    pub(crate) syn: bool,
    pub(crate) send_window: SendWindow,
    /// Written, not yet in a frame. Already paid for out of the window.
    pub(crate) queue: Chunks,
    /// In the connection's round of senders.
    pub(crate) scheduled: bool,
    /// A writer was told to wait.
    pub(crate) writer_waits: bool,
    /// It waits for the queues of all streams together, and is in the connection's list of those.
    pub(crate) waits_for_all: bool,
    /// It has waited for them, and was told that there is room.
    pub(crate) has_turn: bool,

    pub(crate) receiving: Receiving,
    pub(crate) receive_window: ReceiveWindow,
    /// Received, not yet read.
    pub(crate) unread: Chunks,
    /// No unread byte arrived before this moment.
    pub(crate) since: Instant,
    /// When the last of the next `mark_bytes` unread bytes had arrived.
    pub(crate) mark_at: Instant,
    /// Unread bytes up to the mark; behind it, bytes arrived after `mark_at`.
    pub(crate) mark_bytes: usize,
    /// A reader was told to wait.
    pub(crate) reader_waits: bool,
    /// Credit to be sent; the stream is in the connection's list when it is not zero.
    pub(crate) increment: u32,

    /// Its user has let go of it; it stays until what was written is out.
    pub(crate) released: bool,
    /// Released in good order: it also stays until the peer has finished.
    pub(crate) lingers: bool,
    /// Its place among the streams at rest.
    pub(crate) rests: Option<u64>,
}

impl Stream {
    pub(crate) fn new(syn: bool, now: Instant) -> Self {
        Self {
            sending: Sending::Open,
            syn,
            send_window: SendWindow::new(),
            queue: Chunks::default(),
            scheduled: false,
            writer_waits: false,
            waits_for_all: false,
            has_turn: false,
            receiving: Receiving::Open,
            receive_window: ReceiveWindow::new(),
            unread: Chunks::default(),
            since: now,
            mark_at: now,
            mark_bytes: 0,
            reader_waits: false,
            increment: 0,
            released: false,
            lingers: false,
            rests: None,
        }
    }

    /// Keeps bytes that arrived for the reader.
    pub(crate) fn keep(&mut self, bytes: Bytes, now: Instant) {
        if self.unread.is_empty() {
            (self.since, self.mark_at) = (now, now);
            self.mark_bytes = bytes.len();
        }
        self.unread.push(bytes);
    }

    /// The reader took `length` bytes.
    pub(crate) fn taken(&mut self, length: usize, now: Instant) {
        self.mark_bytes = self.mark_bytes.saturating_sub(length);
        if self.mark_bytes == 0 {
            self.since = self.mark_at;
            self.mark_at = now;
            self.mark_bytes = self.unread.len();
        }
    }

    /// Whether the peer may still think of it as open.
    pub(crate) fn is_open_on_the_wire(&self) -> bool {
        matches!(self.sending, Sending::Open | Sending::Finishing)
            || self.receiving == Receiving::Open
    }

    /// Whether there is something to put into a frame.
    pub(crate) fn has_output(&self) -> bool {
        match self.sending {
            Sending::Open => !self.queue.is_empty(),
            Sending::Finishing => true,
            Sending::Finished | Sending::Broken(_) => false,
        }
    }
}
