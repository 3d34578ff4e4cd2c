//! Processes the frames of a client (RFC 9113 6).

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};

use super::stream::Stream;
use super::{
    By, COPIED_BYTES_MAX, ConnectionError, GOAWAY_PING, HEADS_BYTES, IncomingRequest,
    STREAM_WINDOW, Session, Shutdown, Step, WINDOW_MAX,
};
use crate::http1::Violation;
use crate::http2::frame::{self, Head, Reason};
use crate::http2::head::{Fields, IncomingHead, Verdict};
use crate::http2::states::{self, Action, Cost, FrameType, StreamState};
use crate::refused_head::RefusedHead;

/// A field section whose last CONTINUATION has not arrived.
#[derive(Debug)]
pub(super) struct Section {
    stream: u32,
    purpose: Purpose,
    ends_stream: bool,
    block: BytesMut,
    pub(super) since: Instant,
}

/// The purpose of a field section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Request,
    Trailers,
    /// It is dropped. It must be decoded all the same, because the decoder's table depends on it.
    Nothing,
    /// It is dropped in the same way, and the stream is reset.
    Refusal(Reason),
}

impl Session {
    /// Processes one frame.
    pub(super) fn frame(
        &mut self,
        head: &Head,
        payload: Bytes,
        now: Instant,
    ) -> Result<Step, ConnectionError> {
        const WRONG: ConnectionError = ConnectionError::Protocol(Reason::PROTOCOL_ERROR);
        if !self.has_settings && (head.kind != frame::SETTINGS || head.has(frame::ACK)) {
            return Err(WRONG);
        }
        // Only CONTINUATION may follow within a field section (RFC 9113 6.10).
        if let Some(section) = &self.section {
            if head.kind != frame::CONTINUATION || head.stream != section.stream {
                return Err(WRONG);
            }
            self.abuse.continuation(payload.len(), now)?;
            return self.continuation(head, &payload, now);
        }
        let kind = FrameType::of(head.kind);
        let state = self.state_of(kind, head.stream);
        let rule = if kind.fits(head.length, head.flags) {
            states::rule(kind, state)
        } else {
            states::wrong_size(kind, state)
        };
        let padding = match payload.first() {
            Some(padding) if kind == FrameType::Data && head.has(frame::PADDED) => {
                usize::from(*padding) + 1
            }
            _ => 0,
        };
        let carried = head.length.saturating_sub(padding);
        let ends = kind == FrameType::Data && head.has(frame::END_STREAM);
        self.abuse.charge(rule.cost, carried, ends, now)?;
        match (rule.action, kind) {
            (Action::ConnectionError(reason), _) => return Err(ConnectionError::Protocol(reason)),
            (Action::Process, FrameType::Data) => self.data(head, payload, now)?,
            (Action::Process | Action::Ignore | Action::StreamError(_), FrameType::Headers) => {
                return self.headers(head, payload, rule.action, now);
            }
            (Action::Ignore | Action::StreamError(_), FrameType::Data) => {
                self.unwanted_data(head, payload, rule.action, now)?;
            }
            (Action::StreamError(reason), _) => self.reset_at(head.stream, reason, now),
            (Action::Process, FrameType::Priority) => self.priority(head, &payload, now)?,
            (Action::Process, FrameType::RstStream) => {
                if rule.cost == Cost::Reset {
                    self.abuse.reset_by_peer(now)?;
                }
                self.remove(head.stream, By::Peer);
            }
            (Action::Process, FrameType::Settings) => self.settings(head, &payload)?,
            (Action::Process, FrameType::Ping) => self.ping(head, &payload),
            (Action::Process, FrameType::GoAway) => self.has_peer_goaway = true,
            (Action::Process, FrameType::WindowUpdate) => {
                self.window_update(head, &payload, now)?
            }
            (Action::Process | Action::Ignore, _) => {}
        }
        Ok(Step::Done)
    }

    /// The state of the stream that a frame is for.
    pub(super) fn state_of(&self, kind: FrameType, id: u32) -> StreamState {
        if id == 0 {
            return StreamState::Connection;
        }
        let unserved = match self.shutdown {
            Shutdown::Final(last) => id > last,
            Shutdown::No | Shutdown::Announced => false,
        };
        if id > self.last {
            // After the final GOAWAY new streams are not served.
            return match kind {
                FrameType::Headers if unserved => StreamState::Unserved,
                _ => StreamState::Idle,
            };
        }
        if let Ok(at) = self.streams.binary_search_by_key(&id, |stream| stream.id)
            && let Some(stream) = self.streams.get(at)
        {
            return match (stream.is_received, stream.is_sent) {
                (true, _) => StreamState::HalfClosedRemote,
                (false, true) => StreamState::HalfClosedLocal,
                (false, false) => StreamState::Open,
            };
        }
        match self.recently_reset.get(id) {
            Some(it) if it.by == By::Peer => StreamState::ResetByPeer,
            Some(_) => StreamState::ResetByUs,
            None if unserved => StreamState::Unserved,
            None => StreamState::Closed,
        }
    }

    /// Charges `length` bytes to the connection's receive window.
    fn received(&mut self, length: u32) -> Result<(), ConnectionError> {
        self.receive_window = self
            .receive_window
            .checked_sub(length)
            .ok_or(ConnectionError::Protocol(Reason::FLOW_CONTROL_ERROR))?;
        Ok(())
    }

    fn data(&mut self, head: &Head, payload: Bytes, now: Instant) -> Result<(), ConnectionError> {
        // Padding counts like data (RFC 9113 6.1).
        let length = payload.len() as u32;
        let data =
            unpadded(head, payload).ok_or(ConnectionError::Protocol(Reason::PROTOCOL_ERROR))?;
        self.received(length)?;
        let Some(stream) = self.stream(head.stream) else {
            self.release(length);
            return Ok(());
        };
        let Some(receive_window) = stream.receive_window.checked_sub(length) else {
            self.release(length);
            self.reset_at(head.stream, Reason::FLOW_CONTROL_ERROR, now);
            return Ok(());
        };
        stream.receive_window = receive_window;
        let bytes = data.len() as u32;
        let ends = head.has(frame::END_STREAM);
        if let Some(left) = stream.length_left {
            let left = left.checked_sub(u64::from(bytes));
            stream.length_left = left;
            if left.is_none_or(|left| ends && left > 0) {
                // The request is malformed (RFC 9113 8.1.1). Bodies are read while they arrive, so the application may
                // have forwarded its head, but it gets no byte beyond the `content-length`.
                self.release(length);
                self.reset_at(head.stream, Reason::PROTOCOL_ERROR, now);
                return Ok(());
            }
        }
        stream.is_received = ends;
        if ends && stream.is_sent {
            self.release(length);
            self.remove(head.stream, By::Us);
            return Ok(());
        }
        let mut unheld = length - bytes;
        stream.unacked += unheld;
        if stream.has_reader {
            stream.put(data);
            stream.reader.take().into_iter().for_each(Waker::wake);
        } else {
            // Without a WINDOW_UPDATE the client stops when the window is empty.
            unheld = length;
        }
        self.release(unheld);
        Ok(())
    }

    /// Data for a stream that has ended. It counts for flow control and is dropped.
    fn unwanted_data(
        &mut self,
        head: &Head,
        payload: Bytes,
        action: Action,
        now: Instant,
    ) -> Result<(), ConnectionError> {
        let length = payload.len() as u32;
        unpadded(head, payload).ok_or(ConnectionError::Protocol(Reason::PROTOCOL_ERROR))?;
        self.received(length)?;
        self.release(length);
        if let Action::StreamError(reason) = action {
            self.reset_any(head.stream, reason, now);
            return Ok(());
        }
        if let Some(it) = self.recently_reset.get_mut(head.stream) {
            it.receive_window = it
                .receive_window
                .checked_sub(length)
                .ok_or(ConnectionError::Protocol(Reason::FLOW_CONTROL_ERROR))?;
            if head.has(frame::END_STREAM) {
                self.forget(head.stream);
            }
        }
        Ok(())
    }

    /// Priorities have no effect, but a stream must not depend on itself (RFC 7540 5.3.1).
    fn priority(
        &mut self,
        head: &Head,
        payload: &[u8],
        now: Instant,
    ) -> Result<(), ConnectionError> {
        if !depends_on_itself(head, payload) {
            return Ok(());
        }
        if self.stream(head.stream).is_none() {
            // No open stream to reset.
            return Err(ConnectionError::Protocol(Reason::PROTOCOL_ERROR));
        }
        self.reset_at(head.stream, Reason::PROTOCOL_ERROR, now);
        Ok(())
    }

    fn headers(
        &mut self,
        head: &Head,
        payload: Bytes,
        action: Action,
        now: Instant,
    ) -> Result<Step, ConnectionError> {
        const WRONG: ConnectionError = ConnectionError::Protocol(Reason::PROTOCOL_ERROR);
        let mut payload = unpadded(head, payload).ok_or(WRONG)?;
        let mut is_good = true;
        if head.has(frame::WITH_PRIORITY) {
            if payload.len() < 5 {
                return Err(WRONG);
            }
            is_good = !depends_on_itself(head, &payload);
            payload.advance(5);
        }
        let id = head.stream;
        let is_new = id > self.last;
        if is_new {
            if id.is_multiple_of(2) {
                return Err(WRONG);
            }
            self.last = id;
        }
        let purpose = match action {
            Action::Ignore | Action::ConnectionError(_) => Purpose::Nothing,
            Action::StreamError(reason) => Purpose::Refusal(reason),
            Action::Process if !is_good => Purpose::Refusal(Reason::PROTOCOL_ERROR),
            Action::Process if is_new && self.has_free_slot(now) => Purpose::Request,
            Action::Process if is_new => Purpose::Refusal(Reason::REFUSED_STREAM),
            Action::Process if head.has(frame::END_STREAM) => Purpose::Trailers,
            Action::Process => Purpose::Refusal(Reason::PROTOCOL_ERROR),
        };
        let section = Section {
            stream: id,
            purpose,
            ends_stream: head.has(frame::END_STREAM),
            block: BytesMut::new(),
            since: now,
        };
        if head.has(frame::END_HEADERS) {
            let is_kept = matches!(purpose, Purpose::Request | Purpose::Trailers);
            if is_kept && payload.len() <= COPIED_BYTES_MAX {
                payload = self.copied(&payload);
            }
            return self.whole(&section, &payload, now);
        }
        let mut block = BytesMut::from(payload);
        block.reserve(COPIED_BYTES_MAX);
        self.section = Some(Section { block, ..section });
        Ok(Step::Done)
    }

    /// A copy in the memory of heads. Fields share the memory of their section, and must not keep that of a whole read.
    fn copied(&mut self, section: &[u8]) -> Bytes {
        self.heads.clear();
        if self.heads.capacity() < section.len() {
            self.heads.reserve(HEADS_BYTES);
        }
        self.heads.extend_from_slice(section);
        self.heads.split().freeze()
    }

    /// Whether another stream may open. A closing stream is reset early to make space.
    fn has_free_slot(&mut self, now: Instant) -> bool {
        if self.streams.len() >= self.streams_max
            && let Some(until) = self.closing_deadline()
        {
            self.reset_closing(until.max(now));
        }
        self.streams.len() < self.streams_max
    }

    fn continuation(
        &mut self,
        head: &Head,
        payload: &[u8],
        now: Instant,
    ) -> Result<Step, ConnectionError> {
        let Some(mut section) = self.section.take() else {
            return Err(ConnectionError::Protocol(Reason::PROTOCOL_ERROR));
        };
        section.block.extend_from_slice(payload);
        if head.has(frame::END_HEADERS) {
            let block = std::mem::take(&mut section.block).freeze();
            return self.whole(&section, &block, now);
        }
        self.section = Some(section);
        Ok(Step::Done)
    }

    /// Processes a complete field section.
    fn whole(
        &mut self,
        section: &Section,
        block: &Bytes,
        now: Instant,
    ) -> Result<Step, ConnectionError> {
        let mut fields = match section.purpose {
            Purpose::Request if self.reads_maps => Fields::of_request(self.schemes, None),
            Purpose::Request => {
                if self.heads.capacity() < HEADS_BYTES / 4 {
                    self.heads.reserve(HEADS_BYTES);
                }
                Fields::of_request(self.schemes, Some(&mut self.heads))
            }
            _ => Fields::default(),
        };
        let is_wanted = matches!(section.purpose, Purpose::Request | Purpose::Trailers);
        let read = self.decoder.read(block, |field, bytes, line| {
            if is_wanted {
                fields.add(field, bytes, line);
            }
        });
        read.map_err(|_| ConnectionError::Protocol(Reason::COMPRESSION_ERROR))?;
        let (id, head_bytes) = (section.stream, fields.bytes());
        match section.purpose {
            Purpose::Nothing => {
                self.abuse.refused(block.len(), now)?;
                if section.ends_stream {
                    self.forget(id);
                }
            }
            Purpose::Refusal(reason) => {
                self.abuse.refused(block.len(), now)?;
                self.refuse(section, reason, now);
            }
            Purpose::Request => match fields
                .request()
                .and_then(|head| self.open(section, head, head_bytes))
            {
                Ok(incoming) => return Ok(Step::Request(incoming)),
                Err((verdict, head)) => {
                    self.abuse.refused(block.len(), now)?;
                    let (reason, violation) = match verdict {
                        Verdict::TooLarge => (Reason::ENHANCE_YOUR_CALM, Violation::FieldsTooLarge),
                        Verdict::Malformed | Verdict::Good => {
                            let why = Violation::Malformed("the field section is malformed");
                            (Reason::PROTOCOL_ERROR, why)
                        }
                    };
                    self.refuse(section, reason, now);
                    return Ok(Step::Refused(violation, head));
                }
            },
            Purpose::Trailers => {
                let trailers = fields.trailers();
                if let (Ok(trailers), Some(stream)) = (trailers, self.stream(id))
                    && stream.length_left.is_none_or(|left| left == 0)
                {
                    stream.trailers = Some(trailers);
                    stream.is_received = true;
                    stream.reader.take().into_iter().for_each(Waker::wake);
                    if stream.is_sent {
                        self.remove(id, By::Us);
                    }
                } else {
                    self.reset_at(id, Reason::PROTOCOL_ERROR, now);
                }
            }
        }
        Ok(Step::Done)
    }

    /// Opens the stream of a request.
    fn open(
        &mut self,
        section: &Section,
        head: IncomingHead,
        head_bytes: usize,
    ) -> Result<IncomingRequest, (Verdict, Box<RefusedHead>)> {
        let is_ended = section.ends_stream;
        let length = match head.content_length() {
            Ok(Some(1..)) if is_ended => Err(Verdict::Malformed),
            length => length,
        };
        let length = match length {
            Ok(length) => length,
            Err(verdict) => {
                let head = RefusedHead::of_parts(head.into_parts(self.schemes.own()));
                return Err((verdict, Box::new(head)));
            }
        };
        let owes_continue = !is_ended && head.expects_continue();
        self.streams.push(Stream {
            id: section.stream,
            data: VecDeque::new(),
            copied: BytesMut::new(),
            buffered: 0,
            trailers: None,
            is_received: is_ended,
            length_left: length,
            has_reader: !is_ended,
            owes_continue,
            receive_window: STREAM_WINDOW,
            unacked: 0,
            reader: None,
            send_window: i64::from(self.initial_send_window),
            is_sent: false,
            closes_at: None,
            writer: None,
            task: None,
        });
        Ok(IncomingRequest {
            stream: section.stream,
            head,
            head_bytes,
            length,
            is_ended,
        })
    }

    /// Resets a stream because of its field section, open or not.
    fn refuse(&mut self, section: &Section, reason: Reason, now: Instant) {
        self.reset_any(section.stream, reason, now);
        if section.ends_stream {
            self.forget(section.stream);
        }
    }

    fn settings(&mut self, head: &Head, payload: &[u8]) -> Result<(), ConnectionError> {
        const WRONG: ConnectionError = ConnectionError::Protocol(Reason::PROTOCOL_ERROR);
        if head.has(frame::ACK) {
            return Ok(());
        }
        let mut initial_window = None;
        for setting in payload.chunks_exact(6) {
            let (name, value) = setting.split_at(2);
            let name = name
                .first_chunk()
                .map_or(0, |name| u16::from_be_bytes(*name));
            let value = frame::number(value).unwrap_or(0);
            match name {
                frame::ENABLE_PUSH if value > 1 => return Err(WRONG),
                frame::INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => {
                    return Err(ConnectionError::Protocol(Reason::FLOW_CONTROL_ERROR));
                }
                frame::INITIAL_WINDOW_SIZE => initial_window = Some(value),
                frame::MAX_FRAME_SIZE if !(0x4000..=0xFF_FFFF).contains(&value) => {
                    return Err(WRONG);
                }
                // We use no dynamic table, send no frame above the smallest limit, and open no streams.
                _ => {}
            }
        }
        // Once, however often the frame sets it: it changes each stream.
        if let Some(value) = initial_window {
            self.set_initial_send_window(value)?;
        }
        self.has_settings = true;
        frame::begin(self.out.front(), 0, frame::SETTINGS, frame::ACK, 0);
        Ok(())
    }

    fn set_initial_send_window(&mut self, value: u32) -> Result<(), ConnectionError> {
        const WRONG: ConnectionError = ConnectionError::Protocol(Reason::FLOW_CONTROL_ERROR);
        let change = i64::from(value) - i64::from(self.initial_send_window);
        self.initial_send_window = value;
        for stream in &mut self.streams {
            stream.send_window += change;
            if stream.send_window > WINDOW_MAX {
                return Err(WRONG);
            }
            if change > 0 && stream.send_window > 0 {
                stream.writer.take().into_iter().for_each(Waker::wake);
            }
        }
        Ok(())
    }

    fn ping(&mut self, head: &Head, payload: &[u8]) {
        if !head.has(frame::ACK) {
            let out = self.out.front();
            frame::begin(out, payload.len(), frame::PING, frame::ACK, 0);
            out.extend_from_slice(payload);
        } else if payload == GOAWAY_PING {
            self.send_final_goaway();
        }
    }

    fn window_update(
        &mut self,
        head: &Head,
        payload: &[u8],
        now: Instant,
    ) -> Result<(), ConnectionError> {
        let more = i64::from(frame::number(payload).unwrap_or(0) & 0x7FFF_FFFF);
        if head.stream == 0 {
            let was_empty = self.send_window <= 0;
            self.send_window += more;
            if more == 0 {
                return Err(ConnectionError::Protocol(Reason::PROTOCOL_ERROR));
            }
            if self.send_window > WINDOW_MAX {
                return Err(ConnectionError::Protocol(Reason::FLOW_CONTROL_ERROR));
            }
            if was_empty && self.send_window > 0 {
                // Streams with a window of their own waited for that of the connection.
                let streams = self
                    .streams
                    .iter_mut()
                    .filter(|stream| stream.send_window > 0);
                let writers = streams.filter_map(|stream| stream.writer.take());
                writers.for_each(Waker::wake);
            }
            return Ok(());
        }
        let Some(stream) = self.stream(head.stream) else {
            return Ok(());
        };
        stream.send_window += more;
        if more == 0 {
            self.reset_at(head.stream, Reason::PROTOCOL_ERROR, now);
        } else if stream.send_window > WINDOW_MAX {
            self.reset_at(head.stream, Reason::FLOW_CONTROL_ERROR, now);
        } else if stream.send_window > 0 {
            stream.writer.take().into_iter().for_each(Waker::wake);
        }
        Ok(())
    }
}

/// Whether a priority makes a stream depend on itself.
fn depends_on_itself(head: &Head, payload: &[u8]) -> bool {
    frame::number(payload).is_some_and(|on| on & 0x7FFF_FFFF == head.stream)
}

/// The payload without padding; `None` if the padding is longer than the payload.
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
