//! What the frames of one connection mean: streams, windows, settings, and the end.
//!
//! A machine over bytes: it reads frames from one buffer, says which requests they bring, and leaves what
//! is to be sent in another. Time is an argument; whoever waits for something leaves a waker.
//!
//! A client's data waits in its stream until it is taken, and only then is the client told that more may
//! come: what a stream holds is never more than its window, and what all hold never more than the
//! connection's.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::EXPECT;
use http::{HeaderMap, StatusCode, request, response};
use http_body::Frame;
use tokio::time::Instant;

use crate::http1::Outbox;
use crate::http2::frame::{self, Head, Reason};
use crate::http2::head::{self, Fields, LIST_BYTES_MAX};
use crate::http2::hpack::{self, Decoder};
use crate::http2::ledger::{Flood, Ledger};

/// What a client may send on a stream, and on the connection, before any of it was taken.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Windows before anything else was said (RFC 9113 6.9.2), and the largest.
const FIRST_WINDOW: u32 = 65_535;
const WINDOW_MAX: i64 = 0x7FFF_FFFF;
/// Bytes of DATA in one frame: with its head, a record of TLS.
const DATA_BYTES_MAX: usize = frame::PAYLOAD_BYTES_MAX - frame::HEAD_BYTES;
/// Data up to so many bytes is gathered, so that what is small does not hold what is large in memory.
const GATHERED_BYTES_MAX: usize = 4 << 10;
/// Streams that we ended first and whose last frames may still come.
const LET_GO_MAX: usize = 256;
/// What the PING says that asks whether a client has heard of the end.
const LEAVING: [u8; 8] = *b"leaving!";

/// A request that a stream begins with.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) stream: u32,
    pub(crate) head: request::Parts,
    /// The length it says its body has.
    pub(crate) length: Option<u64>,
    /// Whether it has no body.
    pub(crate) is_ended: bool,
}

/// What comes of looking for a frame.
#[derive(Debug)]
pub(crate) enum Step {
    /// It has not come whole.
    More,
    /// It was dealt with.
    Done,
    /// It brought a request.
    Asked(Box<Asked>),
}

/// Why a connection goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client broke the protocol.
    Wrong(Reason),
    /// It costs too much.
    Flood(Flood),
}

impl End {
    /// What the client is told.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Wrong(reason) => reason,
            Self::Flood(_) => Reason::ENHANCE_YOUR_CALM,
        }
    }
}

impl From<Flood> for End {
    fn from(flood: Flood) -> Self {
        Self::Flood(flood)
    }
}

/// A stream is no more: its client or we have reset it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is closed")]
pub(crate) struct Gone;

/// How far the connection is in coming to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    /// The client was told, and asked whether it heard: what it sent before may still come.
    Told,
    /// No stream above this one is served.
    After(u32),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Session {
    /// Bytes of the client's preface that are to come.
    preface: &'static [u8],
    has_settings: bool,
    /// In the order of their ids.
    streams: Vec<Stream>,
    streams_max: usize,
    /// The last stream that the client began.
    last: u32,
    /// Streams that ended before their client ended them, and what may still come on them.
    let_go: VecDeque<(u32, u32)>,
    section: Option<Section>,
    decoder: Decoder,
    ledger: Ledger,
    /// What is to be sent.
    pub(super) out: Outbox,
    /// Streams that wait for room in it.
    waiting: VecDeque<Waker>,
    written: Vec<u8>,
    is_table_told: bool,
    /// What we may send: on the connection, and at first on a stream.
    window: i64,
    first_window: u32,
    /// What the client may send, and what was taken of it that it was not told of.
    room: u32,
    taken: u32,
    leaving: Leaving,
    is_client_leaving: bool,
    ended: Option<End>,
}

/// A field section that has not come whole.
#[derive(Debug)]
struct Section {
    stream: u32,
    purpose: Purpose,
    ends_stream: bool,
    block: BytesMut,
    since: Instant,
}

/// What a field section is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Request,
    Trailers,
    /// Nothing any more, but the table depends on it.
    Nothing,
    /// The same, and its stream is reset.
    Refusal(Reason),
}

#[derive(Debug)]
struct Stream {
    id: u32,
    /// What has come and was not taken: in front what came in large pieces, behind it what is gathered.
    data: VecDeque<Bytes>,
    gathered: BytesMut,
    held: u32,
    trailers: Option<HeaderMap>,
    /// Whether all of it has come, and how much of it has to.
    is_received: bool,
    length_left: Option<u64>,
    has_reader: bool,
    /// Whether the client waits for a word before it sends any of it (RFC 9110 10.1.1).
    owes_continue: bool,
    room: u32,
    taken: u32,
    reader: Option<Waker>,
    /// What we may send.
    window: i64,
    is_sent: bool,
    /// Whether somebody waits for the window.
    is_blocked: bool,
    writer: Option<Waker>,
    /// The task that answers.
    task: Option<Waker>,
}

impl Stream {
    fn take(&mut self) -> Option<Bytes> {
        let gathered = &mut self.gathered;
        let gathered = || (!gathered.is_empty()).then(|| gathered.split().freeze());
        let data = self.data.pop_front().or_else(gathered)?;
        self.held -= data.len() as u32;
        Some(data)
    }

    fn put(&mut self, data: Bytes) {
        self.held += data.len() as u32;
        if data.len() <= GATHERED_BYTES_MAX {
            self.gathered.extend_from_slice(&data);
            return;
        }
        if !self.gathered.is_empty() {
            self.data.push_back(self.gathered.split().freeze());
        }
        self.data.push_back(data);
    }

    fn wake_all(&mut self) {
        let all = [self.reader.take(), self.writer.take(), self.task.take()];
        all.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Keeps the waker of the task that waits.
fn keep(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

impl Session {
    /// One on which nothing was said, with at most so many streams at once.
    pub(crate) fn new(streams_max: u32, now: Instant) -> Self {
        let mut session = Self {
            preface: frame::PREFACE,
            has_settings: false,
            streams: Vec::new(),
            streams_max: streams_max as usize,
            last: 0,
            let_go: VecDeque::new(),
            section: None,
            decoder: Decoder::default(),
            ledger: Ledger::new(now),
            out: Outbox::default(),
            waiting: VecDeque::new(),
            written: Vec::new(),
            is_table_told: false,
            window: i64::from(FIRST_WINDOW),
            first_window: FIRST_WINDOW,
            room: CONNECTION_WINDOW,
            taken: 0,
            leaving: Leaving::No,
            is_client_leaving: false,
            ended: None,
        };
        session.greet(streams_max);
        session
    }

    fn greet(&mut self, streams_max: u32) {
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
        self.tell_window(0, CONNECTION_WINDOW - FIRST_WINDOW);
    }

    // What the client sends.

    /// Deals with the next frame of `inbox`.
    ///
    /// # Errors
    ///
    /// When the connection ends; it is then to be [told](Self::fail).
    pub(crate) fn step(&mut self, inbox: &mut BytesMut, now: Instant) -> Result<Step, End> {
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

    fn try_step(&mut self, inbox: &mut BytesMut, now: Instant) -> Result<Step, End> {
        if !self.preface.is_empty() {
            let length = self.preface.len().min(inbox.len());
            let (expected, rest) = self.preface.split_at(length);
            if inbox.get(..length) != Some(expected) {
                return Err(End::Wrong(Reason::PROTOCOL_ERROR));
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
            return Err(End::Wrong(Reason::FRAME_SIZE_ERROR));
        }
        if inbox.len() < frame::HEAD_BYTES + head.length {
            return Ok(Step::More);
        }
        inbox.advance(frame::HEAD_BYTES);
        let payload = inbox.split_to(head.length).freeze();
        self.frame(&head, payload, now)
    }

    /// Bytes that are missing of the frame that `inbox` begins with, as far as is known.
    pub(crate) fn missing(inbox: &[u8]) -> usize {
        let length = Head::read(inbox).map_or(0, |head| head.length);
        (frame::HEAD_BYTES + length.min(frame::PAYLOAD_BYTES_MAX)).saturating_sub(inbox.len())
    }

    fn frame(&mut self, head: &Head, payload: Bytes, now: Instant) -> Result<Step, End> {
        const WRONG: End = End::Wrong(Reason::PROTOCOL_ERROR);
        let is_new = head.stream > self.last;
        let padding = match payload.first() {
            Some(padding) if head.kind == frame::DATA && head.has(frame::PADDED) => {
                usize::from(*padding) + 1
            }
            _ => 0,
        };
        let carried = head.length.saturating_sub(padding);
        self.ledger.received(head, carried, is_new, now)?;
        if !self.has_settings && (head.kind != frame::SETTINGS || head.has(frame::ACK)) {
            return Err(WRONG);
        }
        // Nothing comes between the pieces of a section.
        let begun = self.section.as_ref().map(|section| section.stream);
        if begun.is_some() != (head.kind == frame::CONTINUATION)
            || begun.is_some_and(|stream| stream != head.stream)
        {
            return Err(WRONG);
        }
        let is_of_stream = match head.kind {
            frame::DATA | frame::HEADERS | frame::PRIORITY | frame::RST_STREAM => Some(true),
            frame::SETTINGS | frame::PING | frame::GOAWAY => Some(false),
            _ => None,
        };
        if is_of_stream.is_some_and(|is_of_stream| is_of_stream != (head.stream != 0)) {
            return Err(WRONG);
        }
        match head.kind {
            frame::DATA => self.data(head, payload, now)?,
            frame::HEADERS => return self.headers(head, payload, now),
            frame::CONTINUATION => return self.continuation(head, &payload, now),
            frame::PRIORITY if payload.len() != 5 => {
                self.reset_at(head.stream, Reason::FRAME_SIZE_ERROR, now);
            }
            frame::RST_STREAM => self.their_reset(head, &payload)?,
            frame::SETTINGS => self.settings(head, &payload)?,
            frame::PUSH_PROMISE => return Err(WRONG),
            frame::PING => self.ping(head, &payload)?,
            frame::GOAWAY => self.is_client_leaving = true,
            frame::WINDOW_UPDATE => self.window_update(head, &payload, now)?,
            // Priorities count for nothing here, and what we do not know says nothing (RFC 9113 4.1).
            _ => {}
        }
        Ok(Step::Done)
    }

    fn data(&mut self, head: &Head, payload: Bytes, now: Instant) -> Result<(), End> {
        // Padding counts as what it pads.
        let length = payload.len() as u32;
        let data = unpadded(head, payload).ok_or(End::Wrong(Reason::PROTOCOL_ERROR))?;
        self.room = self
            .room
            .checked_sub(length)
            .ok_or(End::Wrong(Reason::FLOW_CONTROL_ERROR))?;
        let Some(stream) = self.stream(head.stream) else {
            self.untimely(head.stream, length)?;
            self.took(length);
            return Ok(());
        };
        if stream.is_received {
            self.took(length);
            self.reset_at(head.stream, Reason::STREAM_CLOSED, now);
            return Ok(());
        }
        let Some(room) = stream.room.checked_sub(length) else {
            self.took(length);
            self.reset_at(head.stream, Reason::FLOW_CONTROL_ERROR, now);
            return Ok(());
        };
        stream.room = room;
        let bytes = data.len() as u32;
        let ends = head.has(frame::END_STREAM);
        if let Some(left) = stream.length_left {
            let left = left.checked_sub(u64::from(bytes));
            stream.length_left = left;
            if left.is_none_or(|left| ends && left > 0) {
                self.took(length);
                self.reset_at(head.stream, Reason::PROTOCOL_ERROR, now);
                return Ok(());
            }
        }
        stream.is_received = ends;
        let mut unheld = length - bytes;
        stream.taken += unheld;
        if stream.has_reader {
            stream.put(data);
            stream.reader.take().into_iter().for_each(Waker::wake);
        } else {
            // Its client is told nothing, and stops at the end of the window.
            unheld = length;
        }
        self.took(unheld);
        Ok(())
    }

    fn headers(&mut self, head: &Head, payload: Bytes, now: Instant) -> Result<Step, End> {
        const WRONG: End = End::Wrong(Reason::PROTOCOL_ERROR);
        let mut payload = unpadded(head, payload).ok_or(WRONG)?;
        if head.has(frame::WITH_PRIORITY) {
            if payload.len() < 5 {
                return Err(WRONG);
            }
            payload.advance(5);
        }
        let id = head.stream;
        let purpose = if id > self.last {
            if id.is_multiple_of(2) {
                return Err(WRONG);
            }
            self.last = id;
            match self.leaving {
                Leaving::After(last) if id > last => Purpose::Nothing,
                _ if self.streams.len() >= self.streams_max => {
                    Purpose::Refusal(Reason::REFUSED_STREAM)
                }
                _ => Purpose::Request,
            }
        } else {
            match self.stream(id) {
                Some(stream) if stream.is_received => Purpose::Refusal(Reason::STREAM_CLOSED),
                Some(_) if !head.has(frame::END_STREAM) => Purpose::Refusal(Reason::PROTOCOL_ERROR),
                Some(_) => Purpose::Trailers,
                None => {
                    self.untimely(id, 0)?;
                    Purpose::Nothing
                }
            }
        };
        let section = Section {
            stream: id,
            purpose,
            ends_stream: head.has(frame::END_STREAM),
            block: BytesMut::new(),
            since: now,
        };
        if head.has(frame::END_HEADERS) {
            return self.whole(&section, &payload, now);
        }
        let mut block = BytesMut::from(payload);
        block.reserve(GATHERED_BYTES_MAX);
        self.section = Some(Section { block, ..section });
        Ok(Step::Done)
    }

    fn continuation(&mut self, head: &Head, payload: &[u8], now: Instant) -> Result<Step, End> {
        let Some(mut section) = self.section.take() else {
            return Err(End::Wrong(Reason::PROTOCOL_ERROR));
        };
        section.block.extend_from_slice(payload);
        if head.has(frame::END_HEADERS) {
            let block = std::mem::take(&mut section.block).freeze();
            return self.whole(&section, &block, now);
        }
        self.section = Some(section);
        Ok(Step::Done)
    }

    /// A field section has come whole.
    fn whole(&mut self, section: &Section, block: &Bytes, now: Instant) -> Result<Step, End> {
        let mut fields = Fields::default();
        let is_wanted = matches!(section.purpose, Purpose::Request | Purpose::Trailers);
        let read = self.decoder.read(block, |field, bytes| {
            if is_wanted {
                fields.add(field, bytes);
            }
        });
        read.map_err(|_| End::Wrong(Reason::COMPRESSION_ERROR))?;
        let id = section.stream;
        match section.purpose {
            Purpose::Nothing => {}
            Purpose::Refusal(reason) => self.refuse(section, reason, now),
            Purpose::Request => match self.request(section, fields) {
                Ok(asked) => return Ok(Step::Asked(Box::new(asked))),
                Err(reason) => self.refuse(section, reason, now),
            },
            Purpose::Trailers => {
                let trailers = fields.trailers();
                if let (Ok(trailers), Some(stream)) = (trailers, self.stream(id))
                    && stream.length_left.is_none_or(|left| left == 0)
                {
                    stream.trailers = Some(trailers);
                    stream.is_received = true;
                    stream.reader.take().into_iter().for_each(Waker::wake);
                } else {
                    self.reset_at(id, Reason::PROTOCOL_ERROR, now);
                }
            }
        }
        Ok(Step::Done)
    }

    fn request(&mut self, section: &Section, fields: Fields) -> Result<Asked, Reason> {
        let reason = |verdict| match verdict {
            head::Verdict::TooLarge => Reason::ENHANCE_YOUR_CALM,
            head::Verdict::Malformed | head::Verdict::Good => Reason::PROTOCOL_ERROR,
        };
        let head = fields.request().map_err(reason)?;
        let length = head::content_length(&head.headers).map_err(reason)?;
        let is_ended = section.ends_stream;
        if is_ended && length.is_some_and(|length| length > 0) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let owes_continue = !is_ended && head.headers.contains_key(EXPECT);
        self.streams.push(Stream {
            id: section.stream,
            data: VecDeque::new(),
            gathered: BytesMut::new(),
            held: 0,
            trailers: None,
            is_received: is_ended,
            length_left: length,
            has_reader: !is_ended,
            owes_continue,
            room: STREAM_WINDOW,
            taken: 0,
            reader: None,
            window: i64::from(self.first_window),
            is_sent: false,
            is_blocked: false,
            writer: None,
            task: None,
        });
        Ok(Asked {
            stream: section.stream,
            head,
            length,
            is_ended,
        })
    }

    /// Resets a stream for the section that came on it, whether it was open before or not.
    fn refuse(&mut self, section: &Section, reason: Reason, now: Instant) {
        if self.stream(section.stream).is_none() {
            self.let_go(section.stream, section.ends_stream, STREAM_WINDOW);
        }
        self.tell_reset(section.stream, reason, now);
        self.remove(section.stream);
    }

    fn their_reset(&mut self, head: &Head, payload: &[u8]) -> Result<(), End> {
        if payload.len() != 4 {
            return Err(End::Wrong(Reason::FRAME_SIZE_ERROR));
        }
        if head.stream > self.last {
            return Err(End::Wrong(Reason::PROTOCOL_ERROR));
        }
        self.remove(head.stream);
        Ok(())
    }

    fn settings(&mut self, head: &Head, payload: &[u8]) -> Result<(), End> {
        const WRONG: End = End::Wrong(Reason::PROTOCOL_ERROR);
        if head.has(frame::ACK) {
            return match payload {
                [] => Ok(()),
                _ => Err(End::Wrong(Reason::FRAME_SIZE_ERROR)),
            };
        }
        if !payload.len().is_multiple_of(6) {
            return Err(End::Wrong(Reason::FRAME_SIZE_ERROR));
        }
        for setting in payload.chunks_exact(6) {
            let (name, value) = setting.split_at(2);
            let name = name
                .first_chunk()
                .map_or(0, |name| u16::from_be_bytes(*name));
            let value = frame::number(value).unwrap_or(0);
            match name {
                frame::ENABLE_PUSH if value > 1 => return Err(WRONG),
                frame::INITIAL_WINDOW_SIZE => self.set_first_window(value)?,
                frame::MAX_FRAME_SIZE if !(0x4000..=0xFF_FFFF).contains(&value) => {
                    return Err(WRONG);
                }
                // We remember nothing of what we sent, send no larger frames than everybody takes, and
                // begin no streams.
                _ => {}
            }
        }
        self.has_settings = true;
        frame::begin(self.out.front(), 0, frame::SETTINGS, frame::ACK, 0);
        Ok(())
    }

    fn set_first_window(&mut self, value: u32) -> Result<(), End> {
        const WRONG: End = End::Wrong(Reason::FLOW_CONTROL_ERROR);
        if i64::from(value) > WINDOW_MAX {
            return Err(WRONG);
        }
        let change = i64::from(value) - i64::from(self.first_window);
        self.first_window = value;
        for stream in &mut self.streams {
            stream.window += change;
            if stream.window > WINDOW_MAX {
                return Err(WRONG);
            }
            stream.writer.take().into_iter().for_each(Waker::wake);
        }
        Ok(())
    }

    fn ping(&mut self, head: &Head, payload: &[u8]) -> Result<(), End> {
        if payload.len() != LEAVING.len() {
            return Err(End::Wrong(Reason::FRAME_SIZE_ERROR));
        }
        if !head.has(frame::ACK) {
            let out = self.out.front();
            frame::begin(out, payload.len(), frame::PING, frame::ACK, 0);
            out.extend_from_slice(payload);
        } else if payload == LEAVING {
            self.leave_now();
        }
        Ok(())
    }

    fn window_update(&mut self, head: &Head, payload: &[u8], now: Instant) -> Result<(), End> {
        if payload.len() != 4 {
            return Err(End::Wrong(Reason::FRAME_SIZE_ERROR));
        }
        let more = i64::from(frame::number(payload).unwrap_or(0) & 0x7FFF_FFFF);
        if head.stream == 0 {
            self.window += more;
            if more == 0 {
                return Err(End::Wrong(Reason::PROTOCOL_ERROR));
            }
            if self.window > WINDOW_MAX {
                return Err(End::Wrong(Reason::FLOW_CONTROL_ERROR));
            }
            for stream in &mut self.streams {
                stream.writer.take().into_iter().for_each(Waker::wake);
            }
            return Ok(());
        }
        if head.stream > self.last {
            return Err(End::Wrong(Reason::PROTOCOL_ERROR));
        }
        let Some(stream) = self.stream(head.stream) else {
            return Ok(());
        };
        stream.window += more;
        if more == 0 {
            self.reset_at(head.stream, Reason::PROTOCOL_ERROR, now);
        } else if stream.window > WINDOW_MAX {
            self.reset_at(head.stream, Reason::FLOW_CONTROL_ERROR, now);
        } else {
            stream.writer.take().into_iter().for_each(Waker::wake);
        }
        Ok(())
    }

    /// A frame of a stream that is not open, with so many bytes of data: one that we ended may still hear
    /// of its client; any other is a mistake (RFC 9113 5.1).
    fn untimely(&mut self, id: u32, bytes: u32) -> Result<(), End> {
        if let Some((_, room)) = self.let_go.iter_mut().find(|(of, _)| *of == id) {
            *room = room
                .checked_sub(bytes)
                .ok_or(End::Wrong(Reason::FLOW_CONTROL_ERROR))?;
            return Ok(());
        }
        match self.leaving {
            Leaving::After(last) if id > last => Ok(()),
            _ if id > self.last => Err(End::Wrong(Reason::PROTOCOL_ERROR)),
            _ => Err(End::Wrong(Reason::STREAM_CLOSED)),
        }
    }

    // What a stream's request brings.

    /// The next part of a request's body.
    pub(super) fn poll_data(
        &mut self,
        id: u32,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Gone>>> {
        let Some(stream) = self.stream(id) else {
            return Poll::Ready(Some(Err(Gone)));
        };
        if let Some(data) = stream.take() {
            let bytes = data.len() as u32;
            stream.taken += bytes;
            self.took(bytes);
            self.widen(id);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(trailers) = stream.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if stream.is_received {
            return Poll::Ready(None);
        }
        keep(&mut stream.reader, cx);
        if std::mem::take(&mut stream.owes_continue) {
            self.begin_section();
            hpack::write_status(&mut self.written, StatusCode::CONTINUE);
            self.send_section(id, false);
        }
        Poll::Pending
    }

    /// Whether all of a request's body was taken.
    pub(super) fn is_taken(&mut self, id: u32) -> bool {
        let stream = self.stream(id);
        stream.is_some_and(|it| it.is_received && it.held == 0 && it.trailers.is_none())
    }

    /// Nobody reads a request's body any more.
    pub(super) fn leave_unread(&mut self, id: u32) {
        if let Some(stream) = self.stream(id) {
            stream.has_reader = false;
            stream.reader = None;
            let held = self.drop_held(id);
            self.took(held);
        }
    }

    fn drop_held(&mut self, id: u32) -> u32 {
        let Some(stream) = self.stream(id) else {
            return 0;
        };
        stream.data.clear();
        stream.gathered = BytesMut::new();
        std::mem::take(&mut stream.held)
    }

    /// So many bytes are no longer held: the client may send more, and hears of it now and then.
    fn took(&mut self, bytes: u32) {
        self.taken += bytes;
        if self.taken >= CONNECTION_WINDOW / 2 {
            let taken = std::mem::take(&mut self.taken);
            self.room += taken;
            self.tell_window(0, taken);
        }
    }

    fn widen(&mut self, id: u32) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        if !stream.is_received && stream.taken >= STREAM_WINDOW / 2 {
            let taken = std::mem::take(&mut stream.taken);
            stream.room += taken;
            self.tell_window(id, taken);
        }
    }

    // What a stream is answered.

    /// Keeps the task that answers on a stream, to be woken when the stream is no more.
    pub(super) fn poll_gone(&mut self, id: u32, cx: &Context<'_>) -> Poll<Gone> {
        match self.stream(id) {
            Some(stream) => {
                keep(&mut stream.task, cx);
                Poll::Pending
            }
            None => Poll::Ready(Gone),
        }
    }

    /// Waits until something can be sent on a stream.
    pub(super) fn poll_room(&mut self, id: u32, cx: &Context<'_>) -> Poll<Result<(), Gone>> {
        if self.stream(id).is_none() {
            return Poll::Ready(Err(Gone));
        }
        if self.out.has_room() {
            return Poll::Ready(Ok(()));
        }
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push_back(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until data can be sent on a stream: so many bytes.
    pub(super) fn poll_window(&mut self, id: u32, cx: &Context<'_>) -> Poll<Result<usize, Gone>> {
        let window = self.window;
        let Some(stream) = self.stream(id) else {
            return Poll::Ready(Err(Gone));
        };
        let window = usize::try_from(window.min(stream.window)).unwrap_or(0);
        stream.is_blocked = window == 0;
        if window == 0 {
            keep(&mut stream.writer, cx);
            return Poll::Pending;
        }
        let room = self.poll_room(id, cx);
        room.map_ok(|()| window.min(DATA_BYTES_MAX))
    }

    /// Sends an answer before the answer (RFC 9110 15.2), unless the client takes nothing.
    pub(super) fn send_interim(&mut self, id: u32, answer: &response::Parts) {
        if self.out.has_room() {
            self.begin_section();
            head::write_answer(&mut self.written, answer);
            self.send_section(id, false);
        }
    }

    /// Sends the head of an answer.
    pub(super) fn send_head(&mut self, id: u32, answer: &response::Parts, is_last: bool) {
        if let Some(stream) = self.stream(id) {
            stream.owes_continue = false;
        }
        self.begin_section();
        head::write_answer(&mut self.written, answer);
        self.send_section(id, is_last);
    }

    /// Sends the fields behind an answer.
    pub(super) fn send_trailers(&mut self, id: u32, trailers: &HeaderMap) {
        self.begin_section();
        head::write_fields(&mut self.written, trailers);
        self.send_section(id, true);
    }

    fn begin_section(&mut self) {
        self.written.clear();
        if !std::mem::replace(&mut self.is_table_told, true) {
            // The client need keep no table for us (RFC 7541 6.3).
            self.written.push(0x20);
        }
    }

    fn send_section(&mut self, id: u32, is_last: bool) {
        if self.stream(id).is_none() {
            return;
        }
        let out = self.out.front();
        let mut pieces = self.written.chunks(frame::PAYLOAD_BYTES_MAX).peekable();
        let mut kind = frame::HEADERS;
        let mut flags = if is_last { frame::END_STREAM } else { 0 };
        // A section is never empty, but for trailers none of whose fields may be sent.
        let nothing: &[u8] = &[];
        let mut piece = Some(pieces.next().unwrap_or(nothing));
        while let Some(bytes) = piece {
            piece = pieces.next();
            if piece.is_none() {
                flags |= frame::END_HEADERS;
            }
            frame::begin(out, bytes.len(), kind, flags, id);
            out.extend_from_slice(bytes);
            (kind, flags) = (frame::CONTINUATION, 0);
        }
        if is_last {
            self.sent_all(id);
        }
    }

    /// Sends data, not more than there is a window for.
    pub(super) fn send_data(&mut self, id: u32, data: Bytes, is_last: bool) {
        let bytes = data.len();
        let Some(stream) = self.stream(id) else {
            return;
        };
        stream.window -= bytes as i64;
        self.window -= bytes as i64;
        self.ledger.sent(bytes);
        let flags = if is_last { frame::END_STREAM } else { 0 };
        frame::begin(self.out.front(), bytes, frame::DATA, flags, id);
        self.out.push(data, b"");
        if is_last {
            self.sent_all(id);
        }
    }

    /// An answer was sent to its end.
    fn sent_all(&mut self, id: u32) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        stream.is_sent = true;
        if stream.is_received {
            self.remove(id);
        }
    }

    /// Whoever answered on a stream is done with it: what was not sent never will be, and what the client
    /// still sends nobody wants.
    pub(super) fn close(&mut self, id: u32, now: Instant) {
        if let Some(stream) = self.stream(id) {
            let reason = match stream.is_sent {
                true => Reason::NO_ERROR,
                false => Reason::INTERNAL_ERROR,
            };
            self.reset_at(id, reason, now);
        }
    }

    // Streams, and what is said of them.

    fn stream(&mut self, id: u32) -> Option<&mut Stream> {
        let at = self.streams.binary_search_by_key(&id, |stream| stream.id);
        at.ok().and_then(|at| self.streams.get_mut(at))
    }

    /// Resets a stream, if it is open.
    fn reset_at(&mut self, id: u32, reason: Reason, now: Instant) {
        if self.stream(id).is_some() {
            self.tell_reset(id, reason, now);
            self.remove(id);
        }
    }

    fn tell_reset(&mut self, id: u32, reason: Reason, now: Instant) {
        let out = self.out.front();
        frame::begin(out, 4, frame::RST_STREAM, 0, id);
        out.extend_from_slice(&reason.0.to_be_bytes());
        if let Err(flood) = self.ledger.reset(reason, now) {
            self.ended = Some(flood.into());
        }
    }

    fn remove(&mut self, id: u32) {
        let Ok(at) = self.streams.binary_search_by_key(&id, |stream| stream.id) else {
            return;
        };
        let mut stream = self.streams.remove(at);
        stream.wake_all();
        self.took(stream.held);
        self.let_go(id, stream.is_received, stream.room);
    }

    /// Remembers a stream that ended before its client did.
    fn let_go(&mut self, id: u32, is_received: bool, room: u32) {
        if is_received {
            return;
        }
        if self.let_go.len() == LET_GO_MAX {
            self.let_go.pop_front();
        }
        self.let_go.push_back((id, room));
    }

    fn tell_window(&mut self, id: u32, more: u32) {
        let out = self.out.front();
        frame::begin(out, 4, frame::WINDOW_UPDATE, 0, id);
        out.extend_from_slice(&more.to_be_bytes());
    }

    // The end.

    /// Tells the client to begin no more streams here. Those that it began are served.
    pub(super) fn leave(&mut self) {
        if self.leaving != Leaving::No {
            return;
        }
        self.leaving = Leaving::Told;
        self.tell_end(0x7FFF_FFFF, Reason::NO_ERROR);
        let out = self.out.front();
        frame::begin(out, LEAVING.len(), frame::PING, 0, 0);
        out.extend_from_slice(&LEAVING);
    }

    /// The same, for a client that has heard or was given the time to: what it begins now is not served.
    pub(super) fn leave_now(&mut self) {
        if self.leaving == Leaving::Told {
            self.leaving = Leaving::After(self.last);
            self.tell_end(self.last, Reason::NO_ERROR);
        }
    }

    /// Tells the client why this is the end.
    pub(super) fn fail(&mut self, reason: Reason) {
        self.tell_end(self.last, reason);
    }

    fn tell_end(&mut self, last: u32, reason: Reason) {
        let out = self.out.front();
        frame::begin(out, 8, frame::GOAWAY, 0, 0);
        out.extend_from_slice(&last.to_be_bytes());
        out.extend_from_slice(&reason.0.to_be_bytes());
    }

    /// Whether nothing is left to do for a connection that comes to its end.
    pub(super) fn is_done(&self) -> bool {
        let is_leaving = matches!(self.leaving, Leaving::After(_)) || self.is_client_leaving;
        is_leaving && self.streams.is_empty()
    }

    // What a driver looks at.

    /// Whether the client has said what it is.
    pub(super) fn is_greeted(&self) -> bool {
        self.has_settings
    }

    /// Since when a field section is incomplete, if one is.
    pub(super) fn section_since(&self) -> Option<Instant> {
        self.section.as_ref().map(|section| section.since)
    }

    /// Whether the client could take what waits for it, and does not.
    pub(super) fn is_waiting(&self) -> bool {
        !self.out.is_empty() || self.streams.iter().any(|stream| stream.is_blocked)
    }

    /// Bytes that are to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.out.len()
    }

    /// Wakes the next of those that wait for room, if there is any. False when nobody waits.
    pub(super) fn wake_next(&mut self) -> bool {
        if !self.out.has_room() {
            return false;
        }
        let next = self.waiting.pop_front();
        let is_any = next.is_some();
        next.into_iter().for_each(Waker::wake);
        is_any
    }
}

/// A payload without its padding; `None` when there is more of it than of the payload.
fn unpadded(head: &Head, mut payload: Bytes) -> Option<Bytes> {
    if !head.has(frame::PADDED) {
        return Some(payload);
    }
    let padding = usize::from(*payload.first()?);
    payload.advance(1);
    let length = payload.len().checked_sub(padding)?;
    payload.truncate(length);
    Some(payload)
}

/// How long a client has to hear of the end.
pub(super) const HEARS_WITHIN: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
