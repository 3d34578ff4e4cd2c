//! A stream: two directions that end independently.
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

use crate::chunks::Chunks;
use crate::code::ErrorCode;
use crate::window::{ReceiveWindow, SendWindow, WINDOW_BYTES};

/// Who a stream is for, such as a network address. The default stands for no particular one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(pub u64);

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The next bytes; never empty.
    Data(Bytes),
    /// None yet. [`crate::connection::Event::Readable`] will tell.
    Wait,
    /// The peer has finished, and all data was read.
    End,
}

/// Why a stream cannot be used in a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The peer reset the stream.
    ByPeer(ErrorCode),
    /// This side reset it, by its user or because the peer violated the protocol.
    Here(ErrorCode),
    /// This side has finished it.
    Finished,
    /// The connection has ended, or the stream does not exist.
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
    pub(crate) source: Source,
    /// When payload last moved in either direction.
    pub(crate) moved_at: Instant,
    /// Whether it serves the connection itself, and no user waits for it.
    pub(crate) is_background: bool,
    /// Whether the peer has sent payload.
    pub(crate) is_answered: bool,
    pub(crate) sending: Sending,
    /// Whether the next frame opens the stream.
    pub(crate) syn: bool,
    pub(crate) send_window: SendWindow,
    /// Written bytes that are not in a frame yet. They are already deducted from the window.
    pub(crate) queue: Chunks,
    /// Whether it is in the connection's list of senders.
    pub(crate) scheduled: bool,
    /// Whether a writer is waiting.
    pub(crate) writer_waits: bool,
    /// Whether it waits for the shared queue, and is in the connection's list of waiting streams.
    pub(crate) waits_for_all: bool,
    /// Whether it waited for the shared queue and was notified of capacity.
    pub(crate) has_turn: bool,

    pub(crate) receiving: Receiving,
    pub(crate) receive_window: ReceiveWindow,
    /// The window that it has grown to.
    pub(crate) window: u32,
    /// Received unread bytes.
    pub(crate) unread: Chunks,
    /// No unread byte arrived before this time.
    pub(crate) since: Instant,
    /// When the last of the next `mark_bytes` unread bytes arrived.
    pub(crate) mark_at: Instant,
    /// Unread bytes up to the mark. The bytes after it arrived after `mark_at`.
    pub(crate) mark_bytes: usize,
    /// Whether a reader is waiting.
    pub(crate) reader_waits: bool,
    /// Credit to send. If it is not zero, the stream is in the connection's list.
    pub(crate) increment: u32,

    /// Whether it was reset and its user has not released it.
    pub(crate) is_left: bool,
    /// Whether its user released it. It remains until its written data is sent.
    pub(crate) released: bool,
    /// Whether it was released in order. It also remains until the peer has finished.
    pub(crate) lingers: bool,
    /// Its place among the idle streams.
    pub(crate) rests: Option<u64>,
    /// Its place among the streams that are not accepted yet.
    pub(crate) unaccepted: Option<u64>,
}

impl Stream {
    pub(crate) fn new(syn: bool, now: Instant) -> Self {
        Self {
            source: Source::default(),
            moved_at: now,
            is_background: false,
            is_answered: false,
            sending: Sending::Open,
            syn,
            send_window: SendWindow::new(),
            queue: Chunks::default(),
            scheduled: false,
            writer_waits: false,
            waits_for_all: false,
            has_turn: false,
            receiving: Receiving::Open,
            receive_window: ReceiveWindow::new(now),
            window: WINDOW_BYTES,
            unread: Chunks::default(),
            since: now,
            mark_at: now,
            mark_bytes: 0,
            reader_waits: false,
            increment: 0,
            is_left: false,
            released: false,
            lingers: false,
            rests: None,
            unaccepted: None,
        }
    }

    /// Stores received bytes for the reader.
    pub(crate) fn keep(&mut self, bytes: Bytes, now: Instant) {
        (self.moved_at, self.is_answered) = (now, true);
        if self.unread.is_empty() {
            (self.since, self.mark_at) = (now, now);
            self.mark_bytes = bytes.len();
        }
        self.unread.push(bytes);
    }

    /// Records that the reader took `length` bytes.
    pub(crate) fn taken(&mut self, length: usize, now: Instant) {
        self.moved_at = now;
        self.mark_bytes = self.mark_bytes.saturating_sub(length);
        if self.mark_bytes == 0 {
            self.since = self.mark_at;
            self.mark_at = now;
            self.mark_bytes = self.unread.len();
        }
    }

    /// Whether the peer may still consider it open.
    pub(crate) fn is_open_on_the_wire(&self) -> bool {
        matches!(self.sending, Sending::Open | Sending::Finishing)
            || self.receiving == Receiving::Open
    }

    /// Whether there is data or an end to send.
    pub(crate) fn has_output(&self) -> bool {
        match self.sending {
            Sending::Open => !self.queue.is_empty(),
            Sending::Finishing => true,
            Sending::Finished | Sending::Broken(_) => false,
        }
    }
}
