//! The state of a connection: all its streams and their flow control.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};

use crate::codec::{Decoder, Piece};
use crate::frame::{self, FIN, PAYLOAD_BYTES_MAX, STREAM_ID_MAX, SYN};
use crate::retired::Retired;
use crate::stream::{Broken, Read, Receiving, Sending, Stream};
use crate::window::WINDOW_BYTES;
use crate::{Ending, ErrorCode, Limits, Outbox, Side, StreamId, Violation};

/// A notification for a user of the connection. Each wait gets one notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A read that had to wait can proceed.
    Readable(StreamId),
    /// A write that had to wait can proceed or fails.
    Writable(StreamId),
    /// The peer opened a stream: see [`Connection::accept`].
    Opened,
    /// The connection has ended: see [`Connection::ending`].
    Ended,
}

/// Why a stream could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenRefused {
    /// The limit of open streams is reached. Another connection may have capacity.
    Full,
    /// All stream ids are used. Only a new connection helps.
    Exhausted,
    /// The first bytes do not fit into one frame.
    TooLong,
    /// The connection has ended.
    Ended,
}

impl std::fmt::Display for OpenRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full => "too many streams are open",
            Self::Exhausted => "all stream numbers are used",
            Self::TooLong => "the first bytes do not fit into a frame",
            Self::Ended => "the connection ended",
        })
    }
}

impl std::error::Error for OpenRefused {}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    side: Side,
    limits: Limits,
    ending: Option<Ending>,
    events: VecDeque<Event>,

    streams: BTreeMap<StreamId, Box<Stream>>,
    next_id: u32,
    /// Streams that the peer opened and that are not accepted yet, oldest first.
    accepted: VecDeque<StreamId>,
    /// The highest stream id that the peer opened, for a GOAWAY.
    last_accepted: u32,
    retired: Retired,
    /// When recently reset streams stop counting as open.
    cooling: VecDeque<Instant>,
    /// When streams stop counting as open whose last frame was the FIN of this side.
    settling: VecDeque<Instant>,
    /// Streams that wait for the peer's FIN, with their deadlines, oldest first. Some may already be removed.
    lingering: VecDeque<(Instant, StreamId)>,
    /// Idle streams that their users keep for reuse, oldest first.
    resting: BTreeMap<u64, StreamId>,
    rests: u64,

    decoder: Decoder,
    /// The DATA frame whose payload is arriving.
    current: Option<Current>,
    unknown_frames: u32,
    /// Received unread bytes of all streams.
    held: usize,
    /// The next check for streams with too much unread data, while the limit is exceeded.
    relieve_at: Option<Instant>,
    /// Number of streams that were reset for unread data.
    cut: u64,

    /// Written bytes of all streams that are not in a frame yet.
    queued: usize,
    /// Streams with data to send, in round-robin order.
    round: VecDeque<StreamId>,
    /// Streams whose writers wait for `queued` to fall.
    waiting: VecDeque<StreamId>,
    /// Streams with credit to send.
    credits: VecDeque<StreamId>,
    /// Streams to reset at the peer.
    resets: VecDeque<Reset>,
    /// The GOAWAY frame to send, if any.
    goodbye: Option<(ErrorCode, &'static str)>,
}

/// The DATA frame whose payload is arriving.
#[derive(Clone, Copy, Debug)]
struct Current {
    id: StreamId,
    left: usize,
    fin: bool,
}

#[derive(Clone, Copy, Debug)]
struct Reset {
    id: StreamId,
    code: ErrorCode,
    /// See [`Limits::fin_before_rst`].
    fin: bool,
}

/// The minimum window of a stream while much data is unread.
const SQUEEZED_WINDOW_BYTES: u32 = 16 << 10;
/// Interval of checks while too much data is unread. A check visits each stream.
const RELIEVE_EVERY: Duration = Duration::from_millis(100);
/// The minimum queue of each stream, however many others send: see [`Connection::share`].
const SHARE_BYTES_MIN: usize = 4 << 10;
/// At the burst limit, streams whose data has waited for less time are not reset: their readers may not have run yet.
const FRESH: Duration = Duration::from_millis(100);

impl Connection {
    /// A connection that has not sent or received anything.
    pub fn new(side: Side, limits: Limits) -> Self {
        Self {
            side,
            limits,
            ending: None,
            events: VecDeque::new(),
            streams: BTreeMap::new(),
            next_id: side.first_id(),
            accepted: VecDeque::new(),
            last_accepted: 0,
            retired: Retired::default(),
            cooling: VecDeque::new(),
            settling: VecDeque::new(),
            lingering: VecDeque::new(),
            resting: BTreeMap::new(),
            rests: 0,
            decoder: Decoder::default(),
            current: None,
            unknown_frames: 0,
            held: 0,
            relieve_at: None,
            cut: 0,
            queued: 0,
            round: VecDeque::new(),
            waiting: VecDeque::new(),
            credits: VecDeque::new(),
            resets: VecDeque::new(),
            goodbye: None,
        }
    }

    /// Replaces the limits. Streams and data above the new limits remain.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// How the connection ended, if it has.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// Number of streams, opened by either side.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Streams that this side opened and that are in use.
    pub fn busy(&self) -> impl Iterator<Item = StreamId> + '_ {
        let own = self.streams.iter().filter(|(id, _)| self.side.opens(**id));
        own.filter(|(_, stream)| {
            let is_kept = !stream.released && !stream.lingers && stream.rests.is_none();
            is_kept && stream.is_open_on_the_wire()
        })
        .map(|(id, _)| *id)
    }

    /// Number of received bytes that are not read yet.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Number of written bytes that are not in a frame yet.
    pub fn queued_bytes(&self) -> usize {
        self.queued
    }

    /// Number of streams that were reset because their readers left too much data unread.
    pub fn cut_streams(&self) -> u64 {
        self.cut
    }

    /// The next notification.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // Receiving.

    /// Whether to read more input. False while the peer has not read too many of our control frames, and briefly
    /// after a burst of new data above the limit. Reads, [`Connection::transmit`] and [`Connection::expire`] change
    /// this.
    pub fn wants_input(&self) -> bool {
        self.ending.is_none()
            && self.held < self.limits.burst_bytes_max
            && self.resets.len() < self.limits.answers_max
    }

    /// Processes received bytes. An incomplete frame stays in `input`, except for DATA, whose payload is processed as
    /// it arrives. Long payloads are kept as slices of `input`: with buffers of 16 KiB, unread data occupies at most
    /// twice its length.
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

    fn take(&mut self, piece: Piece, now: Instant) -> Result<(), Violation> {
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

    fn take_data(
        &mut self,
        id: StreamId,
        syn: bool,
        fin: bool,
        length: usize,
        now: Instant,
    ) -> Result<(), Violation> {
        // Without a current frame, the payload is dropped.
        self.current = None;
        if syn && !self.admit(id, now)? {
            return Ok(());
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            // An empty FIN closes a stream that the peer never used. For other frames, sends one RST per frame,
            // unless the peer could not know of the reset.
            if length > 0 && !self.retired.contains(id) {
                self.answer_rst(id, ErrorCode::STREAM_CLOSED);
            }
            return Ok(());
        };
        match stream.receiving {
            Receiving::Open if stream.receive_window.charge(length) => {
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

    /// Decides whether to accept a stream of the peer. `false` if it was rejected.
    ///
    /// Stream ids need not increase: agents assign an id when they open a stream and send it with their first write,
    /// so two streams opened concurrently may arrive in either order.
    fn admit(&mut self, id: StreamId, now: Instant) -> Result<bool, Violation> {
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
        if self.streams.len() >= self.limits.streams_max {
            self.answer_rst(id, ErrorCode::STREAM_REFUSED);
            self.retired.insert(id);
            return Ok(false);
        }
        if self.accepted.len() >= self.limits.accept_max {
            self.answer_rst(id, ErrorCode::ACCEPT_QUEUE_FULL);
            self.retired.insert(id);
            return Ok(false);
        }
        self.retired.remove(id);
        self.last_accepted = self.last_accepted.max(id.get());
        self.streams.insert(id, Box::new(Stream::new(false, now)));
        self.accepted.push_back(id);
        self.events.push_back(Event::Opened);
        Ok(true)
    }

    fn take_payload(&mut self, bytes: Bytes, now: Instant) {
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
        // Data of a released stream is dropped, and its credit is never returned.
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
        self.credit(id);
        self.watch_held(now);
    }

    /// Handles the end of the current frame.
    fn end_frame(&mut self, now: Instant) {
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

    fn take_increment(&mut self, id: StreamId, increment: u32, now: Instant) {
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

    fn take_rst(&mut self, id: StreamId, code: ErrorCode) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let why = Broken::ByPeer(code);
        if !matches!(stream.sending, Sending::Finished | Sending::Broken(_)) {
            stream.sending = Sending::Broken(why);
            self.queued -= stream.queue.clear();
        }
        // A peer that has finished responds with this code to late data; the data that it sent before is complete.
        // With any other code, its FIN was only the first part of a reset.
        let stays_whole =
            stream.receiving == Receiving::Finished && code == ErrorCode::STREAM_CLOSED;
        if !stays_whole && !matches!(stream.receiving, Receiving::Broken(_)) {
            // All data arrived before the FIN. The reader gets this data first, and then the error.
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
        if let Some(at) = self.accepted.iter().position(|waiting| *waiting == id) {
            // A stream that was not accepted yet is removed without notice.
            self.accepted.remove(at);
            self.remove(id);
            return;
        }
        self.remove_if_done(id);
    }

    /// Computes the credit for the peer after data arrived or was read.
    fn credit(&mut self, id: StreamId) {
        if self.ending.is_some() {
            return;
        }
        let target = self.window_target();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.receiving != Receiving::Open || stream.released || stream.syn {
            return;
        }
        if let Some(increment) = stream.receive_window.due(stream.unread.len(), target) {
            if stream.increment == 0 {
                self.credits.push_back(id);
            }
            stream.increment += increment;
        }
    }

    /// The target for the window of each stream: the whole window while little data is unread, and less from a
    /// quarter of the limit on. Slow readers then slow down their own senders, but not those of fast readers.
    fn window_target(&self) -> u32 {
        let whole = self.limits.window_bytes_max.max(SQUEEZED_WINDOW_BYTES);
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

    // Time.

    /// When to call [`Connection::expire`], if ever.
    pub fn deadline(&self) -> Option<Instant> {
        if self.ending.is_some() {
            return None;
        }
        let lingering = self.lingering.front().map(|(until, _)| *until);
        self.relieve_at.into_iter().chain(lingering).min()
    }

    /// Resets streams with too much unread data for too long, and those whose peer does not finish.
    pub fn expire(&mut self, now: Instant) {
        if self.relieve_at.is_some_and(|at| at <= now) {
            self.relieve_at = None;
            self.relieve(now);
        }
        while self.ending.is_none()
            && let Some((until, id)) = self.lingering.front().copied()
            && until <= now
        {
            self.lingering.pop_front();
            if self.streams.get(&id).is_some_and(|stream| stream.lingers) {
                self.reset(id, ErrorCode::STREAM_CANCELLED, now);
                self.remove(id);
            }
        }
    }

    /// Schedules a check if too much data is unread. Checks immediately if the burst limit is reached.
    fn watch_held(&mut self, now: Instant) {
        if self.held < self.limits.held_bytes_max || self.ending.is_some() {
            return;
        }
        match self.relieve_at {
            None if self.held >= self.limits.burst_bytes_max => self.relieve(now),
            None => self.relieve_at = Some(now + RELIEVE_EVERY),
            Some(_) => {}
        }
    }

    /// Resets the streams with the most and oldest unread data until a quarter of the limit is free. A check frees
    /// that much or is not repeated for a while, so a peer with many streams cannot trigger it more often.
    fn relieve(&mut self, now: Instant) {
        let is_full = self.held >= self.limits.burst_bytes_max;
        let patience = if is_full {
            FRESH.min(self.limits.unread_after)
        } else {
            self.limits.unread_after
        };
        if self.held >= self.limits.held_bytes_max {
            let holding = self.streams.values().filter(|it| !it.unread.is_empty());
            // Skips streams with less than half of the average. The others together contain more than half of the
            // unread data.
            let little = self.held / holding.count().max(1) / 2;
            let mut holding: Vec<(u128, StreamId)> = self
                .streams
                .iter()
                .filter(|(_, stream)| stream.unread.len() > little)
                .filter_map(|(id, stream)| {
                    let waits = now.saturating_duration_since(stream.since);
                    let weight = stream.unread.len() as u128 * waits.as_micros();
                    (waits >= patience).then_some((weight, *id))
                })
                .collect();
            holding.sort_unstable();
            let enough = self.limits.held_bytes_max - self.limits.held_bytes_max / 4;
            while self.held > enough
                && let Some((_, id)) = holding.pop()
            {
                self.cut += 1;
                self.reset(id, ErrorCode::ENHANCE_YOUR_CALM, now);
            }
        }
        if self.held >= self.limits.held_bytes_max {
            self.relieve_at = Some(now + RELIEVE_EVERY);
        }
    }

    // Streams.

    /// Whether [`Connection::open`] would find capacity.
    pub fn has_room(&mut self, now: Instant) -> bool {
        self.room(now) > 0
    }

    /// The number of streams that [`Connection::open`] has capacity for.
    pub fn room(&mut self, now: Instant) -> usize {
        self.cool_down(now);
        if self.ending.is_some() || self.resets.len() >= self.limits.answers_max {
            return 0;
        }
        let used = self.streams.len() + self.cooling.len() + self.settling.len();
        self.limits.streams_max.saturating_sub(used)
    }

    /// When [`Connection::room`] may increase without further input, if ever.
    pub fn room_grows_at(&self) -> Option<Instant> {
        let first = [self.cooling.front(), self.settling.front()];
        first.into_iter().flatten().min().copied()
    }

    /// Opens a stream. All of `first` goes into the frame that opens it, because agents expect the type and the
    /// header of a stream there.
    pub fn open(&mut self, first: Bytes, now: Instant) -> Result<StreamId, OpenRefused> {
        if self.ending.is_some() {
            return Err(OpenRefused::Ended);
        }
        if first.len() > self.limits.frame_bytes_max.min(WINDOW_BYTES as usize) {
            return Err(OpenRefused::TooLong);
        }
        if !self.has_room(now) {
            // Ends the least recently used idle stream. Its place becomes available when the peer has finished it
            // too.
            self.take_back(now);
            return Err(OpenRefused::Full);
        }
        let id = StreamId::new(self.next_id).ok_or(OpenRefused::Exhausted)?;
        // One more than the last id is not a valid id, so the next call returns `Exhausted`.
        self.next_id = self.next_id.saturating_add(2).min(STREAM_ID_MAX + 1);
        let mut stream = Stream::new(true, now);
        stream.send_window.spend(first.len());
        self.queued += first.len();
        stream.queue.push(first);
        stream.scheduled = true;
        self.streams.insert(id, Box::new(stream));
        self.round.push_back(id);
        Ok(id)
    }

    /// Accepts the oldest stream that the peer opened.
    pub fn accept(&mut self) -> Option<StreamId> {
        self.accepted.pop_front()
    }

    /// Reads at most `max` bytes of a stream. `max` must not be zero.
    pub fn read(&mut self, id: StreamId, max: usize, now: Instant) -> Result<Read, Broken> {
        let stream = self.streams.get_mut(&id).ok_or(Broken::Gone)?;
        let Some(bytes) = stream.unread.pop(max) else {
            return nothing_to_read(stream, self.ending.is_some());
        };
        stream.taken(bytes.len(), now);
        self.held -= bytes.len();
        self.credit(id);
        Ok(Read::Data(bytes))
    }

    /// Reads into a buffer. Returns the number of bytes, which is zero at the end, or `None` to wait.
    pub fn read_into(
        &mut self,
        id: StreamId,
        to: &mut [u8],
        now: Instant,
    ) -> Result<Option<usize>, Broken> {
        let stream = self.streams.get_mut(&id).ok_or(Broken::Gone)?;
        let copied = stream.unread.copy_out(to);
        if copied == 0 && !to.is_empty() {
            return nothing_to_read(stream, self.ending.is_some()).map(|read| match read {
                Read::End => Some(0),
                _ => None,
            });
        }
        stream.taken(copied, now);
        self.held -= copied;
        self.credit(id);
        Ok(Some(copied))
    }

    /// Requests an [`Event::Readable`] for the next bytes or the end of a stream, without reading. An error if the
    /// stream is broken.
    pub fn watch(&mut self, id: StreamId) -> Result<(), Broken> {
        let ended = self.ending.is_some();
        let stream = self.streams.get_mut(&id).ok_or(Broken::Gone)?;
        match stream.receiving {
            Receiving::Broken(why) if stream.unread.is_empty() => return Err(why),
            Receiving::Open if ended => return Err(Broken::Gone),
            _ => {}
        }
        stream.reader_waits = true;
        Ok(())
    }

    /// Number of bytes that a write would accept. If it is zero, an [`Event::Writable`] follows.
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
        // A stream that writes continuously must not take capacity from those that wait.
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

    /// The part of the queue that each stream may use: an equal share, so that a new stream soon finds capacity,
    /// however much data the others have.
    fn share(&self) -> usize {
        let most = self.limits.stream_queue_bytes_max;
        let senders = self.round.len() + self.waiting.len();
        let equal = self.limits.queue_bytes_max / senders.max(1);
        equal.clamp(SHARE_BYTES_MIN.min(most), most)
    }

    /// Queues as much of the front of `data` as there is capacity for, and returns the length.
    pub fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, Broken> {
        let length = self.capacity(id)?.min(data.len());
        let piece = data.split_to(length);
        Ok(self.enqueue(id, length, |queue| queue.push(piece)))
    }

    /// Like [`Connection::write`], with a copy of the data.
    pub fn write_copy(&mut self, id: StreamId, data: &[u8]) -> Result<usize, Broken> {
        let length = self.capacity(id)?.min(data.len());
        Ok(self.enqueue(id, length, |queue| queue.push_copy(&data[..length])))
    }

    fn enqueue(
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

    /// Ends the sending direction after the data written so far.
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

    /// Whether all written data of a stream, including its end, is in frames.
    pub fn is_flushed(&self, id: StreamId) -> bool {
        self.streams
            .get(&id)
            .is_none_or(|stream| !stream.has_output())
    }

    /// Aborts both directions and drops unread data. No effect if the stream has ended.
    pub fn reset(&mut self, id: StreamId, code: ErrorCode, now: Instant) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let is_open = stream.is_open_on_the_wire();
        if !is_open && stream.unread.is_empty() {
            return;
        }
        let at_peer = is_open && !stream.syn && self.ending.is_none();
        if at_peer {
            self.resets.push_back(Reset {
                id,
                code,
                fin: self.limits.fin_before_rst
                    && matches!(stream.sending, Sending::Open | Sending::Finishing),
            });
        }
        let why = Broken::Here(code);
        stream.sending = Sending::Broken(why);
        stream.receiving = Receiving::Broken(why);
        stream.increment = 0;
        self.queued -= stream.queue.clear();
        self.held -= stream.unread.clear();
        if std::mem::take(&mut stream.reader_waits) {
            self.events.push_back(Event::Readable(id));
        }
        if std::mem::take(&mut stream.writer_waits) {
            self.events.push_back(Event::Writable(id));
        }
        if at_peer {
            self.retired.insert(id);
            self.cool_down(now);
            if !self.limits.cooling.is_zero() {
                self.cooling.push_back(now + self.limits.cooling);
            }
        }
        self.remove_if_done(id);
    }

    /// Removes expired entries, so that these streams no longer count as open.
    fn cool_down(&mut self, now: Instant) {
        for places in [&mut self.cooling, &mut self.settling] {
            while places.front().is_some_and(|until| *until <= now) {
                places.pop_front();
            }
        }
    }

    /// Marks a stream as idle and reusable: no data is in transit in either direction. When streams run short, the
    /// least recently used idle stream is ended. `false` if the stream cannot be reused.
    pub fn rest(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        let serves = stream.sending == Sending::Open
            && stream.receiving == Receiving::Open
            && stream.unread.is_empty();
        if serves && stream.rests.is_none() && self.ending.is_none() {
            self.rests += 1;
            stream.rests = Some(self.rests);
            self.resting.insert(self.rests, id);
        }
        serves
    }

    /// Takes an idle stream back into use. `false` if it was ended meanwhile.
    pub fn resume(&mut self, id: StreamId) -> bool {
        self.rouse(id);
        self.ending.is_none()
            && self.streams.get(&id).is_some_and(|stream| {
                stream.sending == Sending::Open && stream.receiving == Receiving::Open
            })
    }

    fn rouse(&mut self, id: StreamId) -> bool {
        let place = self
            .streams
            .get_mut(&id)
            .and_then(|stream| stream.rests.take());
        place.is_some_and(|place| self.resting.remove(&place).is_some())
    }

    /// Ends the least recently used idle stream. `false` if there is none.
    pub fn take_back(&mut self, now: Instant) -> bool {
        match self.resting.pop_first() {
            Some((_, id)) => {
                self.end_in_order(id, now);
                true
            }
            None => false,
        }
    }

    /// Releases a stream after both directions have sent all their data, such as after a completed request. Its place
    /// becomes available when the peer has finished it too, without the delay of a reset.
    pub fn end_in_order(&mut self, id: StreamId, now: Instant) {
        self.rouse(id);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.syn || !matches!(stream.sending, Sending::Open | Sending::Finishing) {
            return self.release(id, now);
        }
        if stream.receiving == Receiving::Open {
            stream.lingers = true;
            while let Some((_, first)) = self.lingering.front()
                && !self.streams.contains_key(first)
            {
                self.lingering.pop_front();
            }
            self.lingering.push_back((now + self.limits.linger, id));
        }
        // Fails only if the connection has ended.
        self.finish(id).ok();
        self.release(id, now);
    }

    /// Releases a stream. Data written before [`Connection::finish`] is still sent. If by then the peer or this side
    /// has not finished, the stream is reset. An idle stream is [ended in order](Connection::end_in_order).
    pub fn release(&mut self, id: StreamId, now: Instant) {
        if self.rouse(id) {
            return self.end_in_order(id, now);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.released = true;
        stream.reader_waits = false;
        stream.writer_waits = false;
        let waits = stream.sending == Sending::Finishing
            || stream.lingers && stream.receiving == Receiving::Open;
        if waits && self.ending.is_none() {
            self.held -= stream.unread.clear();
            return;
        }
        if self.ending.is_none() {
            self.reset(id, ErrorCode::STREAM_CANCELLED, now);
        }
        self.remove(id);
    }

    fn remove_if_done(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get(&id)
            && stream.released
            && !stream.is_open_on_the_wire()
        {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: StreamId) {
        if let Some(mut stream) = self.streams.remove(&id) {
            if let Some(place) = stream.rests {
                self.resting.remove(&place);
            }
            self.held -= stream.unread.clear();
            self.queued -= stream.queue.clear();
        }
    }

    fn answer_rst(&mut self, id: StreamId, code: ErrorCode) {
        self.resets.push_back(Reset {
            id,
            code,
            fin: false,
        });
    }

    fn wake_writer(&mut self, id: StreamId) {
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

    // Sending.

    /// Whether [`Connection::transmit`] has data to send.
    pub fn has_output(&self) -> bool {
        self.goodbye.is_some()
            || !self.round.is_empty()
            || !self.credits.is_empty()
            || !self.resets.is_empty()
            || !self.waiting.is_empty() && self.has_room_for_waiting()
    }

    /// Writes frames to `out` until there is nothing more to send or `out` contains `enough` bytes. Credit and resets
    /// come first; then each stream in turn sends one frame.
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

    fn has_room_for_waiting(&self) -> bool {
        self.queued <= self.limits.queue_bytes_max / 2
    }

    /// Notifies waiting writers in order, but no more than the shared queue has capacity for.
    fn wake_waiting(&mut self) {
        if !self.has_room_for_waiting() {
            return;
        }
        let free = self.limits.queue_bytes_max - self.queued;
        let mut turns = match self.queued {
            // The queue is empty, so nothing would trigger the next notification.
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

    /// Writes one frame of one stream.
    fn transmit_data(&mut self, id: StreamId, out: &mut Outbox, now: Instant) {
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
        // One published agent misinterprets both flags on one frame as the end of its sending direction.
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

    // Ending.

    /// Closes the connection. `why` is a message for people. The frame with it is the last one; the transport must be
    /// closed after it.
    pub fn close(&mut self, code: ErrorCode, why: &'static str) {
        if self.ending.is_none() {
            self.goodbye = Some((code, why));
            self.end(Ending::Closed(code));
        }
    }

    /// The transport has ended.
    pub fn lost(&mut self) {
        self.goodbye = None;
        self.end(Ending::Lost);
    }

    /// Keeps received data for readers, drops data to be sent, and wakes all waiting users.
    fn end(&mut self, ending: Ending) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(ending);
        self.round.clear();
        self.waiting.clear();
        self.credits.clear();
        self.resets.clear();
        self.cooling.clear();
        self.settling.clear();
        self.lingering.clear();
        self.resting.clear();
        self.relieve_at = None;
        self.current = None;
        while let Some(id) = self.accepted.pop_front() {
            self.remove(id);
        }
        for (id, stream) in &mut self.streams {
            self.queued -= stream.queue.clear();
            stream.scheduled = false;
            stream.rests = None;
            if std::mem::take(&mut stream.reader_waits) {
                self.events.push_back(Event::Readable(*id));
            }
            if std::mem::take(&mut stream.writer_waits) {
                self.events.push_back(Event::Writable(*id));
            }
        }
        // Released streams only waited for their data to be sent.
        self.streams.retain(|_, stream| !stream.released);
        self.events.push_back(Event::Ended);
    }

    /// Asserts the invariants that hold between any two calls. For tests, simulations and fuzzing, because it visits
    /// every stream.
    ///
    /// # Panics
    ///
    /// If an invariant is violated.
    pub fn check(&self) {
        let (mut held, mut queued) = (0, 0);
        for (id, stream) in &self.streams {
            held += stream.unread.len();
            queued += stream.queue.len();
            assert!(
                !stream.has_output() || stream.scheduled || self.ending.is_some(),
                "{id:?} has output and no turn"
            );
            assert_eq!(
                stream.scheduled,
                self.round.contains(id),
                "{id:?} and the round disagree"
            );
            assert!(
                stream.increment == 0 || self.credits.contains(id),
                "{id:?} has credit that nobody sends"
            );
            assert!(
                stream.unread.len() <= self.limits.window_bytes_max.max(WINDOW_BYTES) as usize,
                "{id:?} holds more than its window"
            );
        }
        for (place, id) in &self.resting {
            let rests = self.streams.get(id).and_then(|stream| stream.rests);
            assert_eq!(rests, Some(*place), "{id:?} rests nowhere");
        }
        for id in self
            .streams
            .iter()
            .filter(|(_, it)| it.lingers)
            .map(|(id, _)| id)
        {
            assert!(
                self.lingering.iter().any(|(_, other)| other == id),
                "{id:?} lingers for ever"
            );
        }
        assert_eq!(held, self.held, "held bytes are miscounted");
        assert_eq!(queued, self.queued, "queued bytes are miscounted");
        assert!(self.accepted.len() <= self.limits.accept_max.max(self.streams.len()));
    }
}

/// The result of a read if there are no bytes.
fn nothing_to_read(stream: &mut Stream, ended: bool) -> Result<Read, Broken> {
    match stream.receiving {
        Receiving::Finished => Ok(Read::End),
        Receiving::Broken(why) => Err(why),
        Receiving::Open if ended => Err(Broken::Gone),
        Receiving::Open => {
            stream.reader_waits = true;
            Ok(Read::Wait)
        }
    }
}

/// The number of bytes that the stream's window and its share of the queue allow.
fn stream_room(stream: &Stream, share: usize) -> usize {
    share
        .saturating_sub(stream.queue.len())
        .min(stream.send_window.available())
}

/// Whether to wake a waiting writer: half of its share is free.
fn stream_is_low(stream: &Stream, share: usize) -> bool {
    stream.queue.len() <= share / 2
}

#[cfg(test)]
mod tests;
