//! Input: frames from the peer, and the flow-control credit that this side grants.

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use crate::code::{Ending, ErrorCode, Violation};
use crate::codec::Piece;
use crate::connection::{Connection, Current, Event};
use crate::frame::StreamId;
use crate::stream::{Broken, Receiving, Sending, Stream};

/// The minimum receive window of a stream while the connection holds much unread data.
const SQUEEZED_WINDOW_BYTES: u32 = 16 << 10;

impl Connection {
    /// Whether the caller should read more input from the transport. `false` while too many RST frames wait
    /// to be sent, and while unread data is at [`Limits::burst_bytes_max`](crate::Limits::burst_bytes_max).
    /// Reads, [`Connection::transmit`] and [`Connection::expire`] can change this.
    pub fn wants_input(&self) -> bool {
        self.ending.is_none()
            && self.held < self.limits.burst_bytes_max
            && self.resets.len() < self.limits.answers_max
    }

    /// Processes received bytes. An incomplete frame remains in `input`, except for DATA, whose payload is
    /// processed as it arrives. Long payloads are kept as slices of `input`: with 16 KiB buffers, unread data
    /// uses at most twice its length.
    pub fn receive(&mut self, input: &mut BytesMut, now: Instant) {
        while self.ending.is_none() {
            let taken = match self.decoder.next(input) {
                Ok(Some(piece)) => self.take(piece, now),
                Ok(None) => return,
                Err(violation) => Err(violation),
            };
            if let Err(violation) = taken {
                self.goodbye = Some((violation.code, violation.why));
                self.end(Ending::Violated(violation));
            }
        }
        input.clear();
    }

    pub(super) fn take(&mut self, piece: Piece, now: Instant) -> Result<(), Violation> {
        match piece {
            Piece::Data {
                id,
                syn,
                fin,
                length,
            } => self.take_data(id, syn, fin, length, now),
            Piece::Payload(bytes) => {
                self.take_payload(bytes, now);
                Ok(())
            }
            Piece::WndInc { id, increment } => {
                self.take_increment(id, increment, now);
                Ok(())
            }
            Piece::Rst { id, code } => {
                self.take_rst(id, code);
                Ok(())
            }
            Piece::GoAway { code, text } => {
                let text = String::from_utf8_lossy(&text).into_owned();
                self.end(Ending::GoneAway { code, text });
                Ok(())
            }
            Piece::Unknown => {
                self.unknown_frames += 1;
                if self.unknown_frames > self.limits.unknown_frames_max {
                    return Err(Violation {
                        code: ErrorCode::PROTOCOL,
                        why: "too many frames of unknown types",
                    });
                }
                Ok(())
            }
        }
    }

    pub(super) fn take_data(
        &mut self,
        id: StreamId,
        syn: bool,
        fin: bool,
        length: usize,
        now: Instant,
    ) -> Result<(), Violation> {
        // Without a current frame, the payload that follows is dropped.
        self.current = None;
        if syn && !self.admit(id, now)? {
            return Ok(());
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            // An empty FIN ends a stream that a side never used. Other data gets one RST per frame, unless
            // the stream was closed recently and the peer may not know yet.
            if length > 0 && !self.retired.contains(id) {
                self.answer_rst(id, ErrorCode::STREAM_CLOSED);
            }
            return Ok(());
        };
        match stream.receiving {
            Receiving::Open if stream.receive_window.charge(length) => {
                if stream.receive_window.was_too_small(length, now) {
                    let window = stream.window.max(self.limits.window_bytes_max);
                    let most = self.limits.window_grows_to.max(window);
                    stream.window = window.saturating_mul(2).min(most);
                }
                self.current = Some(Current {
                    id,
                    left: length,
                    fin,
                });
                if length == 0 {
                    self.end_frame(now);
                }
            }
            Receiving::Open => self.reset(id, ErrorCode::FLOW_CONTROL, now),
            Receiving::Finished if length > 0 => self.reset(id, ErrorCode::STREAM_CLOSED, now),
            Receiving::Finished | Receiving::Broken(_) => {}
        }
        Ok(())
    }

    /// Accepts or refuses a stream that the peer opens. `false` if it is refused.
    ///
    /// Stream ids need not increase: agents allocate the id when they open a stream and send it with the
    /// first write, so two streams opened concurrently can arrive in either order.
    pub(super) fn admit(&mut self, id: StreamId, now: Instant) -> Result<bool, Violation> {
        if self.side.opens(id) {
            return Err(Violation {
                code: ErrorCode::PROTOCOL,
                why: "a stream was opened with a number of the other side",
            });
        }
        if self.streams.contains_key(&id) {
            return Err(Violation {
                code: ErrorCode::PROTOCOL,
                why: "a stream was opened twice",
            });
        }
        if self.stream_count() >= self.limits.streams_max {
            self.answer_rst(id, ErrorCode::STREAM_REFUSED);
            self.retired.insert(id);
            return Ok(false);
        }
        if self.unaccepted.len() >= self.limits.accept_max {
            self.answer_rst(id, ErrorCode::ACCEPT_QUEUE_FULL);
            self.retired.insert(id);
            return Ok(false);
        }
        self.retired.remove(id);
        self.last_accepted = self.last_accepted.max(id.get());
        self.opened += 1;
        let mut stream = Box::new(Stream::new(false, now));
        stream.unaccepted = Some(self.opened);
        self.streams.insert(id, stream);
        self.unaccepted.insert(self.opened, id);
        self.events.push_back(Event::Opened);
        Ok(true)
    }

    pub(super) fn take_payload(&mut self, bytes: Bytes, now: Instant) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.left -= bytes.len();
        let whole = current.left == 0;
        let Some(stream) = self
            .streams
            .get_mut(&current.id)
            .filter(|stream| stream.receiving == Receiving::Open)
        else {
            self.current = None;
            return;
        };
        stream.receive_window.arrived(bytes.len());
        // A released stream has no reader: its data is dropped and its credit is not returned.
        if !stream.released {
            self.held += bytes.len();
            stream.keep(bytes, now);
            if std::mem::take(&mut stream.reader_waits) {
                self.events.push_back(Event::Readable(current.id));
            }
        }
        let id = current.id;
        if whole {
            self.end_frame(now);
        }
        self.credit(id, now);
        self.watch_held(now);
    }

    /// Completes the current frame.
    pub(super) fn end_frame(&mut self, now: Instant) {
        let Some(Current { id, fin: true, .. }) = self.current.take() else {
            return;
        };
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.receiving = Receiving::Finished;
        if stream.sending == Sending::Finished && !self.limits.settling.is_zero() {
            self.settling.push_back(now + self.limits.settling);
        }
        if std::mem::take(&mut stream.reader_waits) {
            self.events.push_back(Event::Readable(id));
        }
        self.remove_if_done(id);
    }

    pub(super) fn take_increment(&mut self, id: StreamId, increment: u32, now: Instant) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if !matches!(stream.sending, Sending::Open | Sending::Finishing) {
            return;
        }
        if !stream.send_window.grow(increment) {
            return self.reset(id, ErrorCode::FLOW_CONTROL, now);
        }
        self.wake_writer(id);
    }

    pub(super) fn take_rst(&mut self, id: StreamId, code: ErrorCode) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let why = Broken::ByPeer(code);
        if !matches!(stream.sending, Sending::Finished | Sending::Broken(_)) {
            stream.sending = Sending::Broken(why);
            self.queued -= stream.queue.clear();
        }
        // After a FIN, STREAM_CLOSED only rejects late data, and what the peer sent is complete. Any other
        // code after a FIN means that the peer aborted the stream.
        let stays_whole =
            stream.receiving == Receiving::Finished && code == ErrorCode::STREAM_CLOSED;
        if !stays_whole && !matches!(stream.receiving, Receiving::Broken(_)) {
            // After a FIN all data has arrived. The reader reads it and then gets the error.
            if stream.receiving != Receiving::Finished {
                self.held -= stream.unread.clear();
            }
            stream.receiving = Receiving::Broken(why);
        }
        stream.increment = 0;
        if std::mem::take(&mut stream.reader_waits) {
            self.events.push_back(Event::Readable(id));
        }
        if std::mem::take(&mut stream.writer_waits) {
            self.events.push_back(Event::Writable(id));
        }
        if stream.unaccepted.is_some() {
            // No user holds it.
            self.remove(id);
            return;
        }
        self.remove_if_done(id);
    }

    /// Schedules the credit that is due to the peer after data arrived or was read.
    pub(super) fn credit(&mut self, id: StreamId, now: Instant) {
        if self.ending.is_some() {
            return;
        }
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let target = self.window_target(stream.window);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.receiving != Receiving::Open || stream.released || stream.syn {
            return;
        }
        if let Some(increment) = stream.receive_window.due(stream.unread.len(), target, now) {
            if stream.increment == 0 {
                self.credits.push_back(id);
            }
            stream.increment += increment;
        }
    }

    /// The target receive window of a stream: the full window up to a quarter of the limit of unread data,
    /// then shrinking linearly. This way many slow readers slow down their own senders, and not those of fast
    /// readers.
    pub(super) fn window_target(&self, grown: u32) -> u32 {
        let most = self.limits.window_bytes_max.max(grown);
        let whole = most.max(SQUEEZED_WINDOW_BYTES);
        let limit = self.limits.held_bytes_max;
        let easy = limit / 4;
        if self.held <= easy {
            return whole;
        }
        let left = limit.saturating_sub(self.held) as u64;
        let squeezed = u64::from(whole) * left / (limit - easy).max(1) as u64;
        u32::try_from(squeezed)
            .unwrap_or(whole)
            .max(SQUEEZED_WINDOW_BYTES)
    }
}
