//! What the frames of one connection mean: streams, windows, settings, and the end.
//!
//! A machine over bytes: it reads frames from one buffer, says which requests they bring, and leaves what
//! is to be sent in another. Time is an argument; whoever waits for something leaves a waker.
//!
//! A client's data waits in its stream until it is taken, and only then is the client told that more may
//! come: what a stream holds is never more than its window, and what all hold never more than the
//! connection's.

mod arriving;
mod stream;

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use http::request;

use self::arriving::Section;
use self::stream::Stream;
use crate::http1::WriteBuffer;
use crate::http2::abuse::{AbuseLimiter, Flood};
use crate::http2::frame::{self, Head, Reason};
use crate::http2::head::LIST_BYTES_MAX;
use crate::http2::hpack::{self, Decoder};

/// What a client may send on a stream, and on the connection, before any of it was taken.
pub const STREAM_WINDOW: u32 = 64 << 10;
pub const CONNECTION_WINDOW: u32 = 1 << 20;
/// Windows before anything else was said (RFC 9113 6.9.2), and the largest.
const FIRST_WINDOW: u32 = 65_535;
const WINDOW_MAX: i64 = 0x7FFF_FFFF;
/// The last stream there can be.
const LAST_STREAM: u32 = 0x7FFF_FFFF;
/// Bytes of DATA in one frame: with its head, a record of TLS.
const DATA_BYTES_MAX: usize = frame::PAYLOAD_BYTES_MAX - frame::HEAD_BYTES;
/// Data up to so many bytes is gathered, so that what is small does not hold what is large in memory.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// Streams that we ended first and whose last frames may still come.
const RECENTLY_RESET_MAX: usize = 256;
/// How long a client has to hear of the end.
pub const GOAWAY_ACK_WITHIN: Duration = Duration::from_secs(2);
/// How long a stream whose answer was sent waits for its request to end: some clients lose an answer that
/// a reset follows at once.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);
/// What the PING says that asks whether a client has heard of the end.
const GOAWAY_PING: [u8; 8] = *b"leaving!";

/// A request that a stream begins with.
#[derive(Debug)]
pub struct IncomingRequest {
    pub stream: u32,
    pub head: request::Parts,
    /// The length it says its body has.
    pub length: Option<u64>,
    /// Whether it has no body.
    pub is_ended: bool,
}

/// What comes of looking for a frame.
#[derive(Debug)]
pub enum Step {
    /// It has not come whole.
    More,
    /// It was dealt with.
    Done,
    /// It brought a request.
    Request(Box<IncomingRequest>),
}

/// Why a connection goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionError {
    /// The client broke the protocol.
    Protocol(Reason),
    /// It costs too much.
    Flood(Flood),
}

impl ConnectionError {
    /// What the client is told.
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

/// A stream is no more: its client or we have reset it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is closed")]
pub struct StreamClosed;

impl From<StreamClosed> for std::io::Error {
    fn from(closed: StreamClosed) -> Self {
        Self::new(std::io::ErrorKind::ConnectionReset, closed)
    }
}

/// How far the connection is in coming to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    No,
    /// The client was told, and asked whether it heard: what it sent before may still come.
    Announced,
    /// No stream above this one is served.
    Final(u32),
}

/// Who reset a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Peer,
    Us,
}

/// A stream that ended before its client ended it.
#[derive(Clone, Copy, Debug)]
struct ResetStream {
    id: u32,
    by: By,
    /// Bytes that its window had left.
    receive_window: u32,
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    /// Bytes of the client's preface that are to come.
    preface: &'static [u8],
    has_settings: bool,
    /// In the order of their ids.
    streams: Vec<Stream>,
    streams_max: usize,
    /// The last stream that the client began.
    last: u32,
    /// Streams that ended before their client ended them, and what may still come on them.
    recently_reset: VecDeque<ResetStream>,
    section: Option<Section>,
    decoder: Decoder,
    abuse: AbuseLimiter,
    /// What is to be sent.
    out: WriteBuffer,
    /// Streams that wait for room in it.
    waiting: VecDeque<Waker>,
    section_out: Vec<u8>,
    has_sent_table_size: bool,
    /// What we may send: on the connection, and at first on a stream.
    send_window: i64,
    initial_send_window: u32,
    /// What the client may send, and what was taken of it that it was not told of.
    receive_window: u32,
    unacked: u32,
    shutdown: Shutdown,
    has_peer_goaway: bool,
    /// The last stream of the GOAWAY frames that were sent: a later one never names a higher (RFC 9113 6.8).
    last_named: u32,
    /// Why streams are reset from now on that nobody answers any more: the connection closes.
    closing: Option<Reason>,
    ended: Option<ConnectionError>,
}
impl Session {
    /// One on which nothing was said, with at most so many streams at once.
    pub fn new(streams_max: u32, now: Instant) -> Self {
        let mut session = Self {
            preface: frame::PREFACE,
            has_settings: false,
            streams: Vec::new(),
            streams_max: streams_max as usize,
            last: 0,
            recently_reset: VecDeque::new(),
            section: None,
            decoder: Decoder::default(),
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

    // What the client sends.

    /// Deals with the next frame of `inbox`.
    ///
    /// # Errors
    ///
    /// When the connection ends; it is then to be [told](Self::close_connection).
    pub fn step(&mut self, inbox: &mut BytesMut, now: Instant) -> Result<Step, ConnectionError> {
        if let Some(end) = self.ended {
            return Err(end);
        }
        let stepped = self.try_step(inbox, now);
        // What was sent meanwhile may have been too much.
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

    /// Bytes that are missing of the frame that `inbox` begins with, as far as is known.
    pub fn missing(inbox: &[u8]) -> usize {
        let length = Head::read(inbox).map_or(0, |head| head.length);
        (frame::HEAD_BYTES + length.min(frame::PAYLOAD_BYTES_MAX)).saturating_sub(inbox.len())
    }

    // Streams, and what is said of them.

    fn stream(&mut self, id: u32) -> Option<&mut Stream> {
        let at = self.streams.binary_search_by_key(&id, |stream| stream.id);
        at.ok().and_then(|at| self.streams.get_mut(at))
    }

    /// Resets a stream, if it is open.
    fn reset_at(&mut self, id: u32, reason: Reason, now: Instant) {
        if self.stream(id).is_some() {
            self.send_reset(id, reason, now);
            self.remove(id, By::Us);
        }
    }

    /// Resets a stream for a frame that came on it, whether it is open or not.
    fn reset_any(&mut self, id: u32, reason: Reason, now: Instant) {
        if self.stream(id).is_some() {
            return self.reset_at(id, reason, now);
        }
        self.send_reset(id, reason, now);
        match self.recently_reset.iter_mut().find(|it| it.id == id) {
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

    /// A stream is over. Of one that its client has not ended, it is remembered who reset it.
    fn remove(&mut self, id: u32, by: By) {
        let Ok(at) = self.streams.binary_search_by_key(&id, |stream| stream.id) else {
            if let Some(it) = self.recently_reset.iter_mut().find(|it| it.id == id) {
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
        if self.recently_reset.len() == RECENTLY_RESET_MAX {
            self.recently_reset.pop_front();
        }
        self.recently_reset.push_back(ResetStream {
            id,
            by,
            receive_window,
        });
    }

    /// The client has ended a stream that was let go.
    fn forget(&mut self, id: u32) {
        self.recently_reset.retain(|it| it.id != id);
    }

    fn send_window_update(&mut self, id: u32, more: u32) {
        let out = self.out.front();
        frame::begin(out, 4, frame::WINDOW_UPDATE, 0, id);
        out.extend_from_slice(&more.to_be_bytes());
    }

    // The end.

    /// Tells the client to begin no more streams here. Those that it began are served.
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

    /// The same, for a client that has heard or was given the time to: what it begins now is not served.
    pub fn send_final_goaway(&mut self) {
        if self.shutdown == Shutdown::Announced {
            self.shutdown = Shutdown::Final(self.last);
            self.send_goaway(self.last, Reason::NO_ERROR);
        }
    }

    /// Tells the client why this is the end. Streams that are not answered by now are reset for the same
    /// reason.
    pub fn close_connection(&mut self, reason: Reason) {
        if self.closing.is_some() {
            return;
        }
        self.send_goaway(self.last, reason);
        self.closing = Some(match reason {
            // A stream that breaks off has no such end.
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

    /// Whether nothing is left to do for a connection that comes to its end.
    pub fn is_done(&self) -> bool {
        let is_leaving = matches!(self.shutdown, Shutdown::Final(_)) || self.has_peer_goaway;
        is_leaving && self.streams.is_empty()
    }

    // What a driver looks at.

    /// Whether the client has said what it is.
    pub fn has_peer_settings(&self) -> bool {
        self.has_settings
    }

    /// Since when a field section is incomplete, if one is.
    pub fn section_since(&self) -> Option<Instant> {
        self.section.as_ref().map(|section| section.since)
    }

    /// What is to be sent.
    pub fn outbox(&mut self) -> &mut WriteBuffer {
        &mut self.out
    }

    /// Whether something waits for the client's socket to take it.
    pub fn is_waiting(&self) -> bool {
        !self.out.is_empty()
    }

    /// Bytes that are to be sent.
    pub fn unsent(&self) -> usize {
        self.out.len()
    }

    /// The moment at which the first of the streams that only wait for their request to end is reset.
    pub fn closing_deadline(&self) -> Option<Instant> {
        let lingering = self.streams.iter().filter_map(|stream| stream.closes_at);
        lingering.min()
    }

    /// Resets the streams that waited long enough for their request to end.
    pub fn reset_closing(&mut self, now: Instant) {
        let is_due = |stream: &Stream| stream.closes_at.is_some_and(|until| until <= now);
        while let Some(id) = self.streams.iter().find(|it| is_due(it)).map(|it| it.id) {
            self.reset_at(id, Reason::NO_ERROR, now);
        }
    }

    /// Gives up the room for what was sent, if no stream is open.
    pub fn rest(&mut self) {
        if self.streams.is_empty() && self.out.is_empty() {
            self.out.clear();
            self.section_out = Vec::new();
        }
    }

    /// Wakes the next of those that wait for room, if there is any. False when nobody waits.
    pub fn wake_next(&mut self) -> bool {
        if !self.out.has_room() {
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
