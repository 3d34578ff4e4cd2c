//! What the frames of a client mean, each by itself (RFC 9113 6).

use std::collections::VecDeque;
use std::task::Waker;

use bytes::{Buf, Bytes, BytesMut};
use http::header::EXPECT;
use tokio::time::Instant;

use super::stream::Stream;
use super::{
    Asked, End, GATHERED_BYTES_MAX, LEAVING, Leaving, STREAM_WINDOW, Session, Step, WINDOW_MAX,
};
use crate::http2::frame::{self, Head, Reason};
use crate::http2::head::{self, Fields};

/// A field section that has not come whole.
#[derive(Debug)]
pub(super) struct Section {
    stream: u32,
    purpose: Purpose,
    ends_stream: bool,
    block: BytesMut,
    pub(super) since: Instant,
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
impl Session {
    /// Deals with one frame.
    pub(super) fn frame(&mut self, head: &Head, payload: Bytes, now: Instant) -> Result<Step, End> {
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
        if ends && stream.is_sent {
            self.took(length);
            self.remove(head.stream);
            return Ok(());
        }
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
            if matches!(self.leaving, Leaving::After(last) if id > last) {
                Purpose::Nothing
            } else if self.has_place(now) {
                Purpose::Request
            } else {
                Purpose::Refusal(Reason::REFUSED_STREAM)
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

    /// Whether one more stream may be open. One that only lingers makes place for it.
    fn has_place(&mut self, now: Instant) -> bool {
        if self.streams.len() >= self.streams_max
            && let Some(until) = self.linger_deadline()
        {
            self.end_lingering(until.max(now));
        }
        self.streams.len() < self.streams_max
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
                    if stream.is_sent {
                        self.remove(id);
                    }
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
            lingers_until: None,
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
