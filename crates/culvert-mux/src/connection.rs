//! The state of a connection: all its streams and their flow control.

mod receiving;
mod relief;
mod sending;
mod shares;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;

use crate::code::{Ending, ErrorCode};
use crate::codec::Decoder;
use crate::frame::{STREAM_ID_MAX, Side, StreamId};
use crate::limits::Limits;
use crate::retired::Retired;
use crate::stream::{Broken, Read, Receiving, Sending, Source, Stream};
use crate::window::WINDOW_BYTES;

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
    unaccepted: BTreeMap<u64, StreamId>,
    /// Number of streams that the peer opened.
    opened: u64,
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
    /// Number of streams that were reset and that their users have not released. They have no place: a user that
    /// waits for something else would keep it.
    left: usize,
    /// Number of streams that were reset for unread data, or to make room.
    cut: u64,
    /// When streams may be visited again to make room.
    make_room_at: Option<Instant>,

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
            unaccepted: BTreeMap::new(),
            opened: 0,
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
            left: 0,
            cut: 0,
            make_room_at: None,
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
        self.streams.len().saturating_sub(self.left)
    }

    /// Number of streams in use, opened by either side.
    pub fn busy_count(&self) -> usize {
        self.stream_count().saturating_sub(self.resting.len())
    }

    /// Streams that this side opened and that are in use.
    pub fn busy(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.in_use().map(|(id, _)| id)
    }

    fn in_use(&self) -> impl Iterator<Item = (StreamId, &Stream)> {
        let own = self.streams.iter().filter(|(id, _)| self.side.opens(**id));
        own.filter(|(_, stream)| {
            let is_kept = !stream.released && !stream.lingers && stream.rests.is_none();
            is_kept && !stream.is_background && stream.is_open_on_the_wire()
        })
        .map(|(id, stream)| (*id, &**stream))
    }

    /// Number of received bytes that are not read yet.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Number of written bytes that are not in a frame yet.
    pub fn queued_bytes(&self) -> usize {
        self.queued
    }

    /// Number of streams that were reset because their readers left too much data unread, or because others needed
    /// their places.
    pub fn cut_streams(&self) -> u64 {
        self.cut
    }

    /// The next notification.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [`Connection::open`] would find room.
    pub fn has_capacity(&mut self, now: Instant) -> bool {
        self.room(now) > 0
    }

    /// The number of streams that [`Connection::open`] has capacity for.
    pub fn room(&mut self, now: Instant) -> usize {
        self.cool_down(now);
        if self.ending.is_some() || self.resets.len() >= self.limits.answers_max {
            return 0;
        }
        let used = self.stream_count() + self.cooling.len() + self.settling.len();
        self.limits.streams_max.saturating_sub(used)
    }

    /// When [`Connection::room`] may increase without further input, if ever.
    pub fn room_grows_at(&self) -> Option<Instant> {
        let first = [self.cooling.front(), self.settling.front()];
        first.into_iter().flatten().min().copied()
    }

    /// Opens a stream without a source: see [`Connection::open_for`].
    pub fn open(&mut self, first: Bytes, now: Instant) -> Result<StreamId, OpenRefused> {
        self.open_for(Source::default(), first, now)
    }

    /// Opens a stream for `source`. All of `first` goes into the frame that opens it, because agents expect the type
    /// and the header of a stream there.
    pub fn open_for(
        &mut self,
        source: Source,
        first: Bytes,
        now: Instant,
    ) -> Result<StreamId, OpenRefused> {
        if self.ending.is_some() {
            return Err(OpenRefused::Ended);
        }
        if first.len() > self.limits.frame_bytes_max.min(WINDOW_BYTES as usize) {
            return Err(OpenRefused::TooLong);
        }
        if !self.has_capacity(now) {
            // The place of the stream that ends for this one becomes available when the peer has finished it too.
            if !self.take_back(now) {
                self.make_room(source, now);
            }
            return Err(OpenRefused::Full);
        }
        self.begin(source, first, now)
    }

    /// Opens a stream of the connection itself, such as for heartbeats. It is never in use, and may exceed the limit
    /// of open streams; so there is at most one.
    pub fn open_background(&mut self, first: Bytes, now: Instant) -> Result<StreamId, OpenRefused> {
        debug_assert!(
            !self.streams.values().any(|stream| stream.is_background),
            "a second background stream"
        );
        if self.ending.is_some() {
            return Err(OpenRefused::Ended);
        }
        let id = self.begin(Source::default(), first, now)?;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_background = true;
        }
        Ok(id)
    }

    fn begin(
        &mut self,
        source: Source,
        first: Bytes,
        now: Instant,
    ) -> Result<StreamId, OpenRefused> {
        let id = StreamId::new(self.next_id).ok_or(OpenRefused::Exhausted)?;
        // One more than the last id is not a valid id, so the next call returns `Exhausted`.
        self.next_id = self.next_id.saturating_add(2).min(STREAM_ID_MAX + 1);
        let mut stream = Stream::new(true, now);
        stream.source = source;
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
        let (_, id) = self.unaccepted.pop_first()?;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.unaccepted = None;
        }
        Some(id)
    }

    /// Reads at most `max` bytes of a stream, but at least one, as far as they are in one piece.
    pub fn read(&mut self, id: StreamId, max: usize, now: Instant) -> Result<Read, Broken> {
        self.read_pieces(id, max, now, None)
    }

    /// As [`Connection::read`]. Pieces after the first go into `more`.
    pub fn read_all(
        &mut self,
        id: StreamId,
        max: usize,
        now: Instant,
        more: &mut Vec<Bytes>,
    ) -> Result<Read, Broken> {
        self.read_pieces(id, max, now, Some(more))
    }

    fn read_pieces(
        &mut self,
        id: StreamId,
        max: usize,
        now: Instant,
        more: Option<&mut Vec<Bytes>>,
    ) -> Result<Read, Broken> {
        let stream = self.streams.get_mut(&id).ok_or(Broken::Gone)?;
        // An empty piece would look like the end.
        let Some(first) = stream.unread.pop(max.max(1)) else {
            return nothing_to_read(stream, self.ending.is_some());
        };
        let mut length = first.len();
        if let Some(more) = more {
            while length < max
                && let Some(piece) = stream.unread.pop(max - length)
            {
                length += piece.len();
                more.push(piece);
            }
        }
        stream.taken(length, now);
        self.held -= length;
        self.credit(id, now);
        Ok(Read::Data(first))
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
        self.credit(id, now);
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

    /// Breaks both directions off, and drops what was not read. Nothing if the stream was over.
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
        if !std::mem::replace(&mut stream.is_left, true) {
            self.left += 1;
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
    pub fn set_idle(&mut self, id: StreamId) -> bool {
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
            self.left -= usize::from(stream.is_left);
            if let Some(place) = stream.rests {
                self.resting.remove(&place);
            }
            if let Some(place) = stream.unaccepted {
                self.unaccepted.remove(&place);
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

    /// Ends the connection from this side. `why` is for people; the frame that carries it is the last.
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
        while let Some(id) = self.accept() {
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
        self.left = self.streams.values().filter(|it| it.is_left).count();
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
                "{id:?} has credit that is never sent"
            );
            assert!(
                stream.unread.len() <= self.limits.window_bytes_max.max(stream.window) as usize,
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
                "{id:?} lingers without an end"
            );
        }
        let left = self.streams.values().filter(|it| it.is_left).count();
        assert_eq!(left, self.left, "streams without a place are miscounted");
        assert_eq!(held, self.held, "held bytes are miscounted");
        assert_eq!(queued, self.queued, "queued bytes are miscounted");
        for (place, id) in &self.unaccepted {
            let waits = self.streams.get(id).and_then(|stream| stream.unaccepted);
            assert_eq!(waits, Some(*place), "{id:?} waits nowhere");
        }
        assert!(self.unaccepted.len() <= self.limits.accept_max.max(self.streams.len()));
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

#[cfg(test)]
mod tests;
