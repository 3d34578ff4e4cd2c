//! Output: the queues of streams, and the frames that are sent.

use std::time::Instant;

use bytes::{Buf, Bytes};

use crate::code::ErrorCode;
use crate::connection::{Connection, Event, Reset};
use crate::frame::{self, FIN, PAYLOAD_BYTES_MAX, SYN, StreamId};
use crate::outbox::Outbox;
use crate::stream::{Broken, Receiving, Sending, Stream};

/// The minimum queue share of a stream, in bytes, regardless of the number of senders: see
/// [`Connection::share`].
const SHARE_BYTES_MIN: usize = 4 << 10;

impl Connection {
    /// Number of bytes that a write would accept now. If zero, an [`Event::Writable`] follows.
    pub fn capacity(&mut self, id: StreamId) -> Result<usize, Broken> {
        let share = self.share();
        let stream = self.streams.get_mut(&id).ok_or(Broken::Gone)?;
        match stream.sending {
            Sending::Open => {}
            Sending::Broken(why) => return Err(why),
            Sending::Finishing | Sending::Finished => return Err(Broken::Finished),
        }
        if self.ending.is_some() {
            return Err(Broken::Gone);
        }
        let room = stream_room(stream, share);
        if room == 0 {
            stream.writer_waits = true;
            return Ok(0);
        }
        let room_of_all = self.limits.queue_bytes_max.saturating_sub(self.queued);
        // Streams that wait for the shared queue go first, before a stream that keeps writing.
        let has_turn = stream.has_turn || self.waiting.is_empty();
        if room_of_all == 0 || !has_turn {
            stream.writer_waits = true;
            if !std::mem::replace(&mut stream.waits_for_all, true) {
                self.waiting.push_back(id);
            }
            return Ok(0);
        }
        Ok(room.min(room_of_all))
    }

    /// The most bytes that a stream may have queued: an equal share of the connection's queue, so that new
    /// senders soon find room.
    pub(super) fn share(&self) -> usize {
        let most = self.limits.stream_queue_bytes_max;
        let senders = self.round.len() + self.waiting.len();
        let equal = self.limits.queue_bytes_max / senders.max(1);
        equal.clamp(SHARE_BYTES_MIN.min(most), most)
    }

    /// Writes as much of the front of `data` as there is capacity for. Returns the number of bytes.
    pub fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, Broken> {
        let length = self.capacity(id)?.min(data.len());
        let piece = data.split_to(length);
        Ok(self.enqueue(id, length, |queue| queue.push(piece)))
    }

    /// As [`Connection::write`], but copies the data.
    pub fn write_copy(&mut self, id: StreamId, data: &[u8]) -> Result<usize, Broken> {
        let length = self.capacity(id)?.min(data.len());
        Ok(self.enqueue(id, length, |queue| queue.push_copy(&data[..length])))
    }

    pub(super) fn enqueue(
        &mut self,
        id: StreamId,
        length: usize,
        push: impl FnOnce(&mut crate::chunks::Chunks),
    ) -> usize {
        if length > 0
            && let Some(stream) = self.streams.get_mut(&id)
        {
            stream.has_turn = false;
            push(&mut stream.queue);
            stream.send_window.spend(length);
            self.queued += length;
            if !std::mem::replace(&mut stream.scheduled, true) {
                self.round.push_back(id);
            }
        }
        length
    }

    /// Ends the sending direction after the data already written.
    pub fn finish(&mut self, id: StreamId) -> Result<(), Broken> {
        let stream = self.streams.get_mut(&id).ok_or(Broken::Gone)?;
        match stream.sending {
            Sending::Open if self.ending.is_some() => Err(Broken::Gone),
            Sending::Open => {
                stream.sending = Sending::Finishing;
                if !std::mem::replace(&mut stream.scheduled, true) {
                    self.round.push_back(id);
                }
                Ok(())
            }
            Sending::Finishing | Sending::Finished => Ok(()),
            Sending::Broken(why) => Err(why),
        }
    }

    /// Whether all data written to a stream, and its FIN, has been put into frames.
    pub fn is_flushed(&self, id: StreamId) -> bool {
        self.streams
            .get(&id)
            .is_none_or(|stream| !stream.has_output())
    }

    pub(super) fn wake_writer(&mut self, id: StreamId) {
        let share = self.share();
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.writer_waits
            && !stream.waits_for_all
            && stream_room(stream, share) > 0
        {
            stream.writer_waits = false;
            self.events.push_back(Event::Writable(id));
        }
    }

    /// Whether [`Connection::transmit`] has frames to send.
    pub fn has_output(&self) -> bool {
        self.goodbye.is_some()
            || !self.round.is_empty()
            || !self.credits.is_empty()
            || !self.resets.is_empty()
            || !self.waiting.is_empty() && self.has_capacity_for_waiting()
    }

    /// Puts frames into `out` until there is nothing more to send or `out` holds `enough` bytes. Credit and
    /// resets go first, then one DATA frame per stream in turn.
    pub fn transmit(&mut self, out: &mut Outbox, enough: usize, now: Instant) {
        while let Some(id) = self.credits.pop_front() {
            if let Some(stream) = self.streams.get_mut(&id) {
                let increment = std::mem::take(&mut stream.increment);
                if increment > 0 {
                    out.put(&frame::window_increment(id, increment));
                }
            }
        }
        while let Some(Reset { id, code, fin }) = self.resets.pop_front() {
            if fin {
                out.put(&frame::data_head(id, FIN, 0));
            }
            out.put(&frame::rst(id, code));
            if out.remaining() >= enough {
                break;
            }
        }
        while out.remaining() < enough {
            let Some(id) = self.round.pop_front() else {
                break;
            };
            self.transmit_data(id, out, now);
        }
        self.wake_waiting();
        if let Some((code, why)) = self.goodbye.take() {
            out.put(&frame::goaway_head(self.last_accepted, code, why.len()));
            out.put(why.as_bytes());
        }
    }

    pub(super) fn has_capacity_for_waiting(&self) -> bool {
        self.queued <= self.limits.queue_bytes_max / 2
    }

    /// Wakes writers that wait for the connection's queue, oldest first, and no more than it has room for.
    pub(super) fn wake_waiting(&mut self) {
        if !self.has_capacity_for_waiting() {
            return;
        }
        let free = self.limits.queue_bytes_max - self.queued;
        let mut turns = match self.queued {
            // The queue is empty, so no later transmission would wake the rest.
            0 => usize::MAX,
            _ => free / self.share().max(1),
        };
        while turns > 0
            && let Some(id) = self.waiting.pop_front()
        {
            turns -= 1;
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.waits_for_all = false;
                stream.has_turn = true;
            }
            self.wake_writer(id);
        }
    }

    /// Sends one DATA frame of a stream.
    pub(super) fn transmit_data(&mut self, id: StreamId, out: &mut Outbox, now: Instant) {
        let share = self.share();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.scheduled = false;
        if !stream.has_output() {
            return;
        }
        let length = stream
            .queue
            .len()
            .min(self.limits.frame_bytes_max)
            .min(PAYLOAD_BYTES_MAX);
        let syn = std::mem::take(&mut stream.syn);
        // A published agent that gets SYN and FIN in one frame ends its own direction too.
        let fin = stream.sending == Sending::Finishing && length == stream.queue.len() && !syn;
        let flags = if syn { SYN } else { 0 } | if fin { FIN } else { 0 };
        out.put(&frame::data_head(id, flags, length));
        let mut left = length;
        while left > 0
            && let Some(piece) = stream.queue.pop(left)
        {
            left -= piece.len();
            out.put_payload(piece);
        }
        self.queued -= length;
        if length > 0 {
            stream.moved_at = now;
        }
        if fin {
            stream.sending = Sending::Finished;
            if stream.receiving == Receiving::Finished && !self.limits.settling.is_zero() {
                self.settling.push_back(now + self.limits.settling);
            }
        }
        if stream.has_output() {
            stream.scheduled = true;
            self.round.push_back(id);
        } else if fin && stream.released && !(stream.lingers && stream.receiving == Receiving::Open)
        {
            if stream.receiving == Receiving::Open {
                self.reset(id, ErrorCode::STREAM_CANCELLED, now);
            }
            self.remove(id);
            return;
        }
        if stream_is_low(stream, share) {
            self.wake_writer(id);
        }
    }
}

/// The number of bytes that fit into a stream's send window and its queue share.
fn stream_room(stream: &Stream, share: usize) -> usize {
    share
        .saturating_sub(stream.queue.len())
        .min(stream.send_window.available())
}

/// Whether to wake a waiting writer: at least half of the stream's share is free.
fn stream_is_low(stream: &Stream, share: usize) -> bool {
    stream.queue.len() <= share / 2
}
