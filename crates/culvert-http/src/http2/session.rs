//! One HTTP/2 connection as a server sees it: streams, flow control, settings and shutdown (RFC 9113).
//!
//! A state machine over bytes. It reads frames from one buffer, reports the requests they start, and writes
//! frames into another. Time is an argument; a task that must wait leaves its waker.
//!
//! Data of a client stays in its stream until the application reads it. Only then does the machine enlarge the
//! window again, so a stream buffers at most its window, and all streams at most the connection's.

mod arriving;
mod recently_reset;
mod stream;

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};

use self::arriving::Section;
use self::recently_reset::{RecentlyReset, ResetStream};
use self::stream::Stream;
use crate::http1::{DRAFT_BYTES_MAX, Violation, WriteBuffer};
use crate::http2::abuse::{AbuseLimiter, Flood};
use crate::http2::frame::{self, Head, Reason};
use crate::http2::head::{IncomingHead, LIST_BYTES_MAX, Schemes};
use crate::http2::hpack::{self, Decoder};
use crate::refused_head::RefusedHead;

/// Receive window of a stream, in bytes.
pub const STREAM_WINDOW: u32 = 64 << 10;
/// Receive window of the connection, in bytes.
pub const CONNECTION_WINDOW: u32 = 1 << 20;
/// Initial window of a connection, and of a stream without SETTINGS (RFC 9113 6.9.2), and the largest.
const FIRST_WINDOW: u32 = 65_535;
const WINDOW_MAX: i64 = 0x7FFF_FFFF;
/// The highest stream identifier.
const LAST_STREAM: u32 = 0x7FFF_FFFF;
/// Bytes of DATA in one frame. With the frame header they fill one TLS record.
const DATA_BYTES_MAX: usize = frame::PAYLOAD_BYTES_MAX - frame::HEAD_BYTES;
/// Payloads up to 4 KiB are copied, so a small slice does not pin a large read buffer.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// How long a client may take to acknowledge a graceful GOAWAY.
pub const GOAWAY_ACK_WITHIN: Duration = Duration::from_secs(2);
/// How long a stream whose response is complete waits for the end of its request before it is reset: some
/// clients lose a response that a reset follows immediately.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of memory that several heads share.
const HEADS_BYTES: usize = DRAFT_BYTES_MAX;
/// Payload of the PING behind a graceful GOAWAY. Its acknowledgement shows that the client has read the GOAWAY.
const GOAWAY_PING: [u8; 8] = *b"leaving!";

/// A request that starts a stream.
#[derive(Debug)]
pub struct IncomingRequest {
    /// The identifier of the stream.
    pub stream: u32,
    /// The head.
    pub head: IncomingHead,
    /// The size of its field section, with 32 bytes for each field (RFC 9113 6.5.2).
    pub head_bytes: usize,
    /// The value of `content-length`, if it has one.
    pub length: Option<u64>,
    /// Whether the request has no body.
    pub is_ended: bool,
}

/// The result of [`Session::step`].
#[derive(Debug)]
pub enum Step {
    /// The next frame is incomplete: read more bytes.
    More,
    /// A frame was processed.
    Done,
    /// A frame started a request.
    Request(IncomingRequest),
    /// A frame started a request that is not valid, or too large. Its stream is reset.
    Refused(Violation, Box<RefusedHead>),
}

/// Why a connection ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionError {
    /// The client violated the protocol.
    Protocol(Reason),
    /// The client exceeded its allowance.
    Flood(Flood),
}

impl ConnectionError {
    /// The error code for GOAWAY.
    pub fn reason(self) -> Reason {
        match self {
            Self::Protocol(reason) => reason,
            Self::Flood(_) => Reason::ENHANCE_YOUR_CALM,
        }
    }
}

impl From<Flood> for ConnectionError {
    fn from(flood: Flood) -> Self {
        Self::Flood(flood)
    }
}

/// The stream no longer exists: the client or the server has reset it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is closed")]
pub struct StreamClosed;

impl From<StreamClosed> for std::io::Error {
    fn from(closed: StreamClosed) -> Self {
        Self::new(std::io::ErrorKind::ConnectionReset, closed)
    }
}

/// Progress of a graceful shutdown (RFC 9113 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    No,
    /// GOAWAY with the highest identifier was sent. New streams are still served.
    Announced,
    /// GOAWAY with this identifier was sent. Streams above it are not served.
    Final(u32),
}

/// The side that reset a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Peer,
    Us,
}

/// One connection of a client.
#[derive(Debug)]
pub struct Session {
    /// The part of the client's preface that has not arrived yet.
    preface: &'static [u8],
    has_settings: bool,
    /// Ordered by identifier.
    streams: Vec<Stream>,
    streams_max: usize,
    schemes: Schemes,
    /// The highest stream that the client has started.
    last: u32,
    /// Streams that ended before their client ended them.
    recently_reset: RecentlyReset,
    section: Option<Section>,
    decoder: Decoder,
    /// Memory for heads that are kept as text.
    heads: BytesMut,
    /// Whether no head is kept so.
    reads_maps: bool,
    abuse: AbuseLimiter,
    /// Frames to send.
    out: WriteBuffer,
    /// Tasks that wait for space in `out`.
    waiting: VecDeque<Waker>,
    section_out: Vec<u8>,
    has_sent_table_size: bool,
    /// Send windows: of the connection, and the initial one of a stream.
    send_window: i64,
    initial_send_window: u32,
    /// Receive window of the connection, and the bytes that were read since the last WINDOW_UPDATE.
    receive_window: u32,
    unacked: u32,
    shutdown: Shutdown,
    has_peer_goaway: bool,
    /// The stream that the last GOAWAY names. A later one must not name a higher stream (RFC 9113 6.8).
    last_named: u32,
    /// The connection closes. Streams without a complete response are reset for this reason.
    closing: Option<Reason>,
    ended: Option<ConnectionError>,
}

impl Session {
    /// A new connection with at most `streams_max` concurrent streams, for requests that name one of these schemes. SETTINGS
    /// are ready to be sent.
    pub fn new(streams_max: u32, schemes: Schemes, now: Instant) -> Self {
        let mut session = Self {
            preface: frame::PREFACE,
            has_settings: false,
            streams: Vec::new(),
            streams_max: streams_max as usize,
            schemes,
            last: 0,
            recently_reset: RecentlyReset::default(),
            section: None,
            decoder: Decoder::default(),
            heads: BytesMut::new(),
            reads_maps: false,
            abuse: AbuseLimiter::new(now),
            out: WriteBuffer::default(),
            waiting: VecDeque::new(),
            section_out: Vec::new(),
            has_sent_table_size: false,
            send_window: i64::from(FIRST_WINDOW),
            initial_send_window: FIRST_WINDOW,
            receive_window: CONNECTION_WINDOW,
            unacked: 0,
            shutdown: Shutdown::No,
            has_peer_goaway: false,
            last_named: LAST_STREAM,
            closing: None,
            ended: None,
        };
        session.send_settings(streams_max);
        session
    }

    fn send_settings(&mut self, streams_max: u32) {
        let settings = [
            (frame::HEADER_TABLE_SIZE, hpack::TABLE_BYTES_MAX as u32),
            (frame::MAX_CONCURRENT_STREAMS, streams_max),
            (frame::INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (frame::MAX_FRAME_SIZE, frame::PAYLOAD_BYTES_MAX as u32),
            (frame::MAX_HEADER_LIST_SIZE, LIST_BYTES_MAX as u32),
            (frame::ENABLE_CONNECT_PROTOCOL, 1),
        ];
        let out = self.out.front();
        frame::begin(out, settings.len() * 6, frame::SETTINGS, 0, 0);
        for (name, value) in settings {
            out.extend_from_slice(&name.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        self.send_window_update(0, CONNECTION_WINDOW - FIRST_WINDOW);
    }

    // Receiving.

    /// Processes the next frame of `inbox`.
    ///
    /// # Errors
    ///
    /// When the connection must end. Report it with [`close_connection`](Self::close_connection).
    pub fn step(&mut self, inbox: &mut BytesMut, now: Instant) -> Result<Step, ConnectionError> {
        if let Some(end) = self.ended {
            return Err(end);
        }
        let stepped = self.try_step(inbox, now);
        // A frame that was sent meanwhile may have exceeded a limit.
        match (self.ended, stepped) {
            (Some(end), _) => Err(end),
            (None, stepped) => stepped,
        }
    }

    fn try_step(&mut self, inbox: &mut BytesMut, now: Instant) -> Result<Step, ConnectionError> {
        if !self.preface.is_empty() {
            let length = self.preface.len().min(inbox.len());
            let (expected, rest) = self.preface.split_at(length);
            if inbox.get(..length) != Some(expected) {
                return Err(ConnectionError::Protocol(Reason::PROTOCOL_ERROR));
            }
            inbox.advance(length);
            self.preface = rest;
            return Ok(if rest.is_empty() {
                Step::Done
            } else {
                Step::More
            });
        }
        let Some(head) = Head::read(inbox) else {
            return Ok(Step::More);
        };
        if head.length > frame::PAYLOAD_BYTES_MAX {
            return Err(ConnectionError::Protocol(Reason::FRAME_SIZE_ERROR));
        }
        if inbox.len() < frame::HEAD_BYTES + head.length {
            return Ok(Step::More);
        }
        inbox.advance(frame::HEAD_BYTES);
        let payload = inbox.split_to(head.length).freeze();
        self.frame(&head, payload, now)
    }

    /// How many bytes the next frame of `inbox` lacks, as far as is known.
    pub fn missing(inbox: &[u8]) -> usize {
        let length = Head::read(inbox).map_or(0, |head| head.length);
        (frame::HEAD_BYTES + length.min(frame::PAYLOAD_BYTES_MAX)).saturating_sub(inbox.len())
    }

    // Streams and control frames.

    fn stream(&mut self, id: u32) -> Option<&mut Stream> {
        let at = self.streams.binary_search_by_key(&id, |stream| stream.id);
        at.ok().and_then(|at| self.streams.get_mut(at))
    }

    /// Resets a stream if it is open.
    fn reset_at(&mut self, id: u32, reason: Reason, now: Instant) {
        if self.stream(id).is_some() {
            self.send_reset(id, reason, now);
            self.remove(id, By::Us);
        }
    }

    /// Resets a stream because of a frame on it, open or not.
    fn reset_any(&mut self, id: u32, reason: Reason, now: Instant) {
        if self.stream(id).is_some() {
            return self.reset_at(id, reason, now);
        }
        self.send_reset(id, reason, now);
        match self.recently_reset.get_mut(id) {
            Some(it) => it.by = By::Us,
            None => self.remember_reset(id, By::Us, STREAM_WINDOW),
        }
    }

    fn send_reset(&mut self, id: u32, reason: Reason, now: Instant) {
        let out = self.out.front();
        frame::begin(out, 4, frame::RST_STREAM, 0, id);
        out.extend_from_slice(&reason.0.to_be_bytes());
        if let Err(flood) = self.abuse.reset_by_us(reason, now) {
            self.ended = Some(flood.into());
        }
    }

    /// Removes a stream. If its client has not ended it, remembers which side reset it.
    fn remove(&mut self, id: u32, by: By) {
        let Ok(at) = self.streams.binary_search_by_key(&id, |stream| stream.id) else {
            if let Some(it) = self.recently_reset.get_mut(id) {
                it.by = by;
            }
            return;
        };
        let mut stream = self.streams.remove(at);
        stream.wake_all();
        self.release(stream.buffered);
        if by == By::Peer || !stream.is_received {
            self.remember_reset(id, by, stream.receive_window);
        }
    }

    fn remember_reset(&mut self, id: u32, by: By, receive_window: u32) {
        self.recently_reset.insert(ResetStream {
            id,
            by,
            receive_window,
        });
    }

    /// The client has ended a stream that was reset.
    fn forget(&mut self, id: u32) {
        self.recently_reset.remove(id);
    }

    fn send_window_update(&mut self, id: u32, more: u32) {
        let out = self.out.front();
        frame::begin(out, 4, frame::WINDOW_UPDATE, 0, id);
        out.extend_from_slice(&more.to_be_bytes());
    }

    // Shutdown.

    /// Starts a graceful shutdown: asks the client to open no more streams. Those that it opened are served.
    pub fn send_graceful_goaway(&mut self) {
        if self.shutdown != Shutdown::No {
            return;
        }
        self.shutdown = Shutdown::Announced;
        self.send_goaway(LAST_STREAM, Reason::NO_ERROR);
        let out = self.out.front();
        frame::begin(out, GOAWAY_PING.len(), frame::PING, 0, 0);
        out.extend_from_slice(&GOAWAY_PING);
    }

    /// Ends the graceful period, after the client's acknowledgement or the timeout. Later streams are not served.
    pub fn send_final_goaway(&mut self) {
        if self.shutdown == Shutdown::Announced {
            self.shutdown = Shutdown::Final(self.last);
            self.send_goaway(self.last, Reason::NO_ERROR);
        }
    }

    /// Sends the reason for which the connection closes. Streams without a complete response are reset for it.
    pub fn close_connection(&mut self, reason: Reason) {
        if self.closing.is_some() {
            return;
        }
        self.send_goaway(self.last, reason);
        self.closing = Some(match reason {
            // NO_ERROR would announce a complete response.
            Reason::NO_ERROR => Reason::CANCEL,
            reason => reason,
        });
    }

    fn send_goaway(&mut self, last: u32, reason: Reason) {
        let last = last.min(self.last_named);
        self.last_named = last;
        let out = self.out.front();
        frame::begin(out, 8, frame::GOAWAY, 0, 0);
        out.extend_from_slice(&last.to_be_bytes());
        out.extend_from_slice(&reason.0.to_be_bytes());
    }

    /// Whether a connection that shuts down has no work left.
    pub fn is_done(&self) -> bool {
        let is_leaving = matches!(self.shutdown, Shutdown::Final(_)) || self.has_peer_goaway;
        is_leaving && self.streams.is_empty()
    }

    /// Reads the fields of all later heads into maps, because those of this one are needed so.
    pub fn read_maps(&mut self) {
        self.reads_maps = true;
    }

    // State for the driver.

    /// Whether the client's SETTINGS have arrived.
    pub fn has_peer_settings(&self) -> bool {
        self.has_settings
    }

    /// When the field section that is incomplete began.
    pub fn section_since(&self) -> Option<Instant> {
        self.section.as_ref().map(|section| section.since)
    }

    /// Frames to send.
    pub fn outbox(&mut self) -> &mut WriteBuffer {
        &mut self.out
    }

    /// Whether bytes wait to be sent.
    pub fn is_waiting(&self) -> bool {
        !self.out.is_empty()
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.out.len()
    }

    /// When the first closing stream is to be reset.
    pub fn closing_deadline(&self) -> Option<Instant> {
        let lingering = self.streams.iter().filter_map(|stream| stream.closes_at);
        lingering.min()
    }

    /// Resets the closing streams whose time is over.
    pub fn reset_closing(&mut self, now: Instant) {
        let is_due = |stream: &Stream| stream.closes_at.is_some_and(|until| until <= now);
        while let Some(id) = self.streams.iter().find(|it| is_due(it)).map(|it| it.id) {
            self.reset_at(id, Reason::NO_ERROR, now);
        }
    }

    /// Frees buffers if no stream is open.
    pub fn free_buffers(&mut self) {
        if self.streams.is_empty() && self.out.is_empty() {
            self.out.clear();
            self.section_out = Vec::new();
            self.heads = BytesMut::new();
        }
    }

    /// Wakes the next task that waits for space. False if there is none.
    pub fn wake_next(&mut self) -> bool {
        if !self.out.has_capacity() {
            return false;
        }
        let next = self.waiting.pop_front();
        let is_any = next.is_some();
        next.into_iter().for_each(Waker::wake);
        is_any
    }
}

#[cfg(test)]
mod tests;
