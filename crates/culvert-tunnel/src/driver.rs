//! Runs a multiplexed connection over a socket: one task moves the bytes, any number of tasks hold
//! streams.
//!
//! The state machine stands behind a lock that is held for as long as it takes to note a few bytes,
//! never across a wait and never while payload is copied to a reader. A stream that has something
//! to send wakes the driver, which gathers what all streams have ready into one write. Reading goes
//! on while writing waits: published agents stop reading when they cannot write, so two sides that
//! both did it would wait for each other.
//!
//! Back-pressure runs through: a slow reader of a stream withholds its credit, a full socket stops
//! the writers of its streams. Who wants a stream where there is no room can [queue](Session::queue). A peer that takes nothing for [`STALL`] is given up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use culvert_mux::{
    Broken, Connection, Ending, ErrorCode, Event, Limits, OpenRefused, Outbox, Read, Side, StreamId,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Sleep;

/// A peer that takes none of what waits for it for so long is gone.
pub const STALL: Duration = Duration::from_secs(30);

/// What is gathered before it is written. Enough for four records of TLS.
const GATHER_BYTES: usize = 64 << 10;
/// What one read asks for while there is traffic: a record of TLS. Kept payload costs at most twice
/// its length with it.
const READ_BYTES: usize = 16 << 10;
/// The same for a connection that rests, of which there are many.
const IDLE_READ_BYTES: usize = 1 << 10;
/// An agent that rests has its heartbeats, perhaps one in each direction.
const IDLE_STREAMS: usize = 2;
/// Half of what may wait to be sent: see [`Limits::queue_bytes_max`].
const CONGESTED_BYTES: usize = 512 << 10;
/// Slices of one gathering write.
const SLICES: usize = 64;
/// Turns of the driver before other tasks get theirs.
const TURNS: usize = 32;
/// For the last frame to leave.
const GOODBYE: Duration = Duration::from_secs(2);

/// Starts a connection over `socket`. Nothing moves until the driver runs.
pub fn connect<S>(socket: S, side: Side, limits: Limits) -> (Session, Driver<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            mux: Connection::new(side, limits),
            streams: BTreeMap::new(),
            acceptor: None,
            watchers: Vec::new(),
            driver: None,
            reading: true,
            failure: None,
            room: Arc::default(),
            queued: 0,
            granted: 0,
            rests_none: false,
        }),
    });
    let driver = Driver {
        shared: Arc::clone(&shared),
        socket,
        out: Outbox::default(),
        input: BytesMut::new(),
        wants_flush: false,
        had_much: false,
        lets_others: false,
        has_ended: false,
        stall: STALL,
    };
    (Session { shared }, driver)
}

/// A handle to a running connection.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Session")
            .field("streams", &state.mux.stream_count())
            .field("ending", &state.mux.ending())
            .finish()
    }
}

impl Session {
    /// Opens a stream whose first bytes travel in one frame.
    pub fn open(&self, first: Bytes) -> Result<Stream, OpenRefused> {
        let mut state = self.shared.lock();
        let id = state.mux.open(first, Instant::now())?;
        state.streams.insert(id, Wakers::default());
        state.release_and_wake_driver();
        Ok(Stream {
            shared: Arc::clone(&self.shared),
            id,
        })
    }

    /// The same, unless somebody waits for a stream of this connection: then it is full.
    pub fn open_behind(&self, first: Bytes) -> Result<Stream, OpenRefused> {
        let mut state = self.shared.lock();
        if state.queued > 0 && state.mux.ending().is_none() {
            // One that rests makes room for somebody in the queue.
            if !state.mux.has_room(Instant::now()) {
                state.mux.take_back(Instant::now());
            }
            state.release_and_wake_driver();
            return Err(OpenRefused::Full);
        }
        drop(state);
        let opened = self.open(first);
        if matches!(opened, Err(OpenRefused::Full)) {
            // A stream that rested may have been ended for it.
            self.shared.lock().release_and_wake_driver();
        }
        opened
    }

    /// A place in the queue of those that wait for a stream. It is ready when there may be room, or
    /// when the connection has ended. It is held until [`Session::open`] has returned, or the stream
    /// is another's.
    pub fn queue(&self) -> Queued {
        let mut state = self.shared.lock();
        let mut notified = Box::pin(Arc::clone(&state.room).notified_owned());
        notified.as_mut().enable();
        state.queued += 1;
        state.grant();
        let driver = state.driver.take();
        drop(state);
        wake(driver.into_iter().collect());
        Queued {
            shared: Arc::clone(&self.shared),
            notified,
            is_granted: false,
        }
    }

    /// Ends the streams that rest, and lets no other rest: the connection is about to end.
    pub fn rest_none(&self) {
        let mut state = self.shared.lock();
        state.rests_none = true;
        let now = Instant::now();
        while state.mux.take_back(now) {}
        state.release_and_wake_driver();
    }

    /// Streams opened here on which something is under way.
    pub fn busy(&self) -> BTreeSet<StreamId> {
        self.shared.lock().mux.busy().collect()
    }

    /// Streams that were reset because their readers left too much unread.
    pub fn cut_streams(&self) -> u64 {
        self.shared.lock().mux.cut_streams()
    }

    /// Whether [`Session::open`] would find room.
    pub fn has_room(&self) -> bool {
        self.shared.lock().mux.has_room(Instant::now())
    }

    /// The next stream that the peer opens; `None` when the connection has ended. One task accepts.
    pub async fn accept(&self) -> Option<Stream> {
        std::future::poll_fn(|cx| {
            let mut state = self.shared.lock();
            if let Some(id) = state.mux.accept() {
                state.streams.insert(id, Wakers::default());
                return Poll::Ready(Some(Stream {
                    shared: Arc::clone(&self.shared),
                    id,
                }));
            }
            if state.mux.ending().is_some() {
                return Poll::Ready(None);
            }
            state.acceptor = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether the connection has ended.
    pub fn is_over(&self) -> bool {
        self.shared.lock().mux.ending().is_some()
    }

    /// Waits for the end of the connection.
    pub async fn ended(&self) -> Ending {
        std::future::poll_fn(|cx| {
            let mut state = self.shared.lock();
            if let Some(ending) = state.mux.ending() {
                return Poll::Ready(ending.clone());
            }
            let waker = cx.waker();
            if !state.watchers.iter().any(|other| other.will_wake(waker)) {
                state.watchers.push(waker.clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Ends the connection and tells the peer why.
    pub fn close(&self, code: ErrorCode, why: &'static str) {
        let mut state = self.shared.lock();
        state.mux.close(code, why);
        let wakers = state.told();
        state.release_and_wake_driver();
        wake(wakers);
    }

    /// Ends the connection without a word: agents take the end of the socket for what it is.
    pub fn hang_up(&self) {
        let mut state = self.shared.lock();
        state.mux.lost();
        let wakers = state.told();
        let driver = state.driver.take();
        drop(state);
        wake(wakers);
        wake(driver.into_iter().collect());
    }

    /// How the socket failed, if that ended the connection; not if it was closed.
    pub fn failure(&self) -> Option<String> {
        self.shared.lock().failure.clone()
    }

    /// Puts other limits in place: a stranger has said who it is.
    pub fn set_limits(&self, limits: Limits) {
        let mut state = self.shared.lock();
        state.mux.set_limits(limits);
        state.release_and_wake_driver();
    }

    /// Whether so much waits to be sent that writers wait their turn.
    pub fn is_congested(&self) -> bool {
        self.shared.lock().mux.queued_bytes() > CONGESTED_BYTES
    }

    /// Bytes that its streams hold in either direction: received and not read, written and not sent.
    pub fn held_bytes(&self) -> usize {
        let state = self.shared.lock();
        state.mux.held_bytes() + state.mux.queued_bytes()
    }

    /// Streams that exist, whoever opened them.
    pub fn stream_count(&self) -> usize {
        self.shared.lock().mux.stream_count()
    }
}

/// See [`Session::queue`].
pub struct Queued {
    shared: Arc<Shared>,
    notified: Pin<Box<OwnedNotified>>,
    is_granted: bool,
}

impl fmt::Debug for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queued").finish_non_exhaustive()
    }
}

impl Future for Queued {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_granted {
            ready!(self.notified.as_mut().poll(cx));
            self.is_granted = true;
        }
        Poll::Ready(())
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.queued -= 1;
        if self.is_granted {
            state.granted = state.granted.saturating_sub(1);
        }
        if state.queued == 0 {
            state.granted = 0;
        }
        state.grant();
    }
}

struct Shared {
    state: Mutex<State>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

struct State {
    mux: Connection,
    /// Who waits for which stream.
    streams: BTreeMap<StreamId, Wakers>,
    acceptor: Option<Waker>,
    /// Who waits for the end.
    watchers: Vec<Waker>,
    /// The driver, while it sleeps.
    driver: Option<Waker>,
    /// Whether the driver takes input.
    reading: bool,
    /// How the socket failed, if it did.
    failure: Option<String>,
    /// Wakes those that wait for a stream, one for each that there is room for.
    room: Arc<Notify>,
    /// How many wait.
    queued: usize,
    /// Of them, those that were woken and have not opened a stream yet.
    granted: usize,
    /// Whether streams are kept for later no more.
    rests_none: bool,
}

#[derive(Default)]
struct Wakers {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl State {
    /// The wakers of everybody who has been told something.
    fn told(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.tell(&mut wakers);
        wakers
    }

    fn tell(&mut self, wakers: &mut Vec<Waker>) {
        while let Some(event) = self.mux.next_event() {
            match event {
                Event::Readable(id) => {
                    wakers.extend(self.streams.get_mut(&id).and_then(|to| to.reader.take()));
                }
                Event::Writable(id) => {
                    wakers.extend(self.streams.get_mut(&id).and_then(|to| to.writer.take()));
                }
                Event::Opened => wakers.extend(self.acceptor.take()),
                Event::Ended => {
                    wakers.extend(self.acceptor.take());
                    wakers.append(&mut self.watchers);
                    self.room.notify_waiters();
                }
            }
        }
    }

    /// Wakes as many of those that wait for a stream as there is room for.
    fn grant(&mut self) {
        if self.queued <= self.granted {
            return;
        }
        let room = self.mux.room(Instant::now());
        while self.granted < room.min(self.queued) {
            self.granted += 1;
            self.room.notify_one();
        }
    }

    fn driver_has_work(&self) -> bool {
        self.mux.has_output() || self.mux.wants_input() != self.reading
    }
}

/// Lets go of the lock and then wakes the driver if there is something for it to do.
trait ReleaseAndWakeDriver {
    fn release_and_wake_driver(self);
}

impl ReleaseAndWakeDriver for MutexGuard<'_, State> {
    fn release_and_wake_driver(mut self) {
        let driver = if self.driver_has_work() {
            self.driver.take()
        } else {
            None
        };
        drop(self);
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

/// Moves the bytes of one connection.
#[must_use = "nothing moves unless it runs"]
pub struct Driver<S> {
    shared: Arc<Shared>,
    socket: S,
    out: Outbox,
    input: BytesMut,
    /// Something was written since the last flush.
    wants_flush: bool,
    /// The last read filled its buffer.
    had_much: bool,
    /// Other tasks were let ahead of the next write.
    lets_others: bool,
    /// The peer ended the connection in good order: over TLS, with `close_notify`.
    has_ended: bool,
    stall: Duration,
}

impl<S> fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// Whoever stops driving leaves nobody waiting.
impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.mux.lost();
        let wakers = state.told();
        drop(state);
        wake(wakers);
    }
}

/// When the driver must act although nothing happens on the socket.
struct Timer {
    sleep: Pin<Box<Sleep>>,
    at: Option<Instant>,
}

impl Timer {
    fn new() -> Self {
        Self {
            sleep: Box::pin(tokio::time::sleep(STALL)),
            at: None,
        }
    }

    fn set(&mut self, at: Option<Instant>) {
        if self.at != at
            && let Some(at) = at
        {
            self.sleep.as_mut().reset(at.into());
        }
        self.at = at;
    }

    /// Whether the time has come.
    fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        self.at.is_some() && self.sleep.as_mut().poll(cx).is_ready()
    }
}

impl<S> Driver<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// With another patience than [`STALL`].
    pub fn with_stall(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }

    /// Runs until the connection ends, from whichever side, and says why. The socket is closed then.
    pub async fn run(mut self) -> Ending {
        let mut timer = Timer::new();
        let mut stalled_since = None;
        std::future::poll_fn(|cx| self.poll(cx, &mut timer, &mut stalled_since)).await;
        let ending = self.shared.lock().mux.ending().cloned();
        // The last frame, and the end of TLS; a peer that does not take them has none of it.
        let goodbye = std::future::poll_fn(|cx| self.poll_goodbye(cx));
        if tokio::time::timeout(GOODBYE, goodbye).await.is_err() {
            self.out = Outbox::default();
        }
        ending.unwrap_or(Ending::Lost)
    }

    /// Ready when the connection has ended.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        timer: &mut Timer,
        stalled_since: &mut Option<Instant>,
    ) -> Poll<()> {
        for _ in 0..TURNS {
            let now = Instant::now();
            let mut state = self.shared.lock();
            let idle = state.mux.stream_count() <= IDLE_STREAMS;
            if !idle && !self.lets_others && !self.out.has_remaining() && state.mux.has_output() {
                // One stream woke this task; others are about to write as well, and one write
                // carries what all of them have.
                self.lets_others = true;
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.lets_others = false;
            if self.out.remaining() < GATHER_BYTES {
                state.mux.transmit(&mut self.out, GATHER_BYTES, now);
            }
            state.reading = state.mux.wants_input();
            let (reading, ended) = (state.reading, state.mux.ending().is_some());
            let mut due = state.mux.deadline();
            if state.queued > state.granted {
                state.grant();
                due = due.into_iter().chain(state.mux.room_grows_at()).min();
            }
            state.driver = Some(cx.waker().clone());
            let wakers = state.told();
            drop(state);
            wake(wakers);
            if ended {
                return Poll::Ready(());
            }

            let written = self.poll_write(cx);
            let read = if reading {
                self.poll_read(cx, idle)
            } else {
                Poll::Pending
            };
            if let (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) = (&written, &read) {
                self.lose((!self.has_ended).then(|| why_lost(error)));
                return Poll::Ready(());
            }
            if written.is_ready() || !self.out.has_remaining() {
                *stalled_since = None;
            } else {
                stalled_since.get_or_insert(now);
            }
            let stalled = stalled_since.map(|since| since + self.stall);
            if stalled.is_some_and(|at| at <= now) {
                self.lose(Some("the peer did not read in time".to_owned()));
                return Poll::Ready(());
            }
            if written.is_ready() || read.is_ready() {
                continue;
            }
            timer.set(stalled.into_iter().chain(due).min());
            if !timer.is_due(cx) {
                return Poll::Pending;
            }
            timer.set(None);
            self.shared.lock().mux.expire(Instant::now());
        }
        // Others want to run as well.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when something was written.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.out.has_remaining() {
            if self.wants_flush {
                ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
                self.wants_flush = false;
            }
            return Poll::Pending;
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = self.out.chunks_vectored(&mut slices);
        let written = if self.socket.is_write_vectored() {
            ready!(Pin::new(&mut self.socket).poll_write_vectored(cx, &slices[..count]))?
        } else {
            ready!(Pin::new(&mut self.socket).poll_write(cx, self.out.chunk()))?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.out.advance(written);
        self.wants_flush = true;
        Poll::Ready(Ok(()))
    }

    /// Ready when something was read, and taken. Who waits for it is woken once for all that was there:
    /// a reader may be on another thread, where each time costs a system call.
    fn poll_read(&mut self, cx: &mut Context<'_>, idle: bool) -> Poll<io::Result<()>> {
        let (mut wakers, mut taken) = (Vec::new(), 0);
        let read = loop {
            match self.poll_read_once(cx, idle, &mut wakers) {
                Poll::Ready(Ok((length, is_wanted))) => {
                    taken += length;
                    if !is_wanted || taken >= GATHER_BYTES {
                        break Poll::Ready(Ok(()));
                    }
                }
                Poll::Pending if taken > 0 => break Poll::Ready(Ok(())),
                Poll::Pending => break Poll::Pending,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
            }
        };
        wake(wakers);
        read
    }

    /// What one read took, and whether more is wanted.
    fn poll_read_once(
        &mut self,
        cx: &mut Context<'_>,
        idle: bool,
        wakers: &mut Vec<Waker>,
    ) -> Poll<io::Result<(usize, bool)>> {
        let want = if idle && !self.had_much {
            if self.input.is_empty() && self.input.capacity() > IDLE_READ_BYTES {
                self.input = BytesMut::new();
            }
            IDLE_READ_BYTES
        } else {
            READ_BYTES
        };
        if self.input.capacity() - self.input.len() < want / 2 {
            self.input.reserve(want);
        }
        let room = self.input.capacity() - self.input.len();
        let read = {
            let reading = tokio::io::AsyncReadExt::read_buf(&mut self.socket, &mut self.input);
            ready!(pin!(reading).poll(cx))?
        };
        self.had_much = read == room;
        if read == 0 {
            self.has_ended = true;
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        let mut state = self.shared.lock();
        state.mux.receive(&mut self.input, Instant::now());
        state.tell(wakers);
        let is_wanted = state.mux.wants_input() && state.mux.ending().is_none();
        Poll::Ready(Ok((read, is_wanted)))
    }

    fn poll_goodbye(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.out.has_remaining() {
            if ready!(self.poll_write(cx)).is_err() {
                return Poll::Ready(());
            }
        }
        match ready!(Pin::new(&mut self.socket).poll_shutdown(cx)) {
            Ok(()) | Err(_) => Poll::Ready(()),
        }
    }

    fn lose(&mut self, failure: Option<String>) {
        let mut state = self.shared.lock();
        state.failure = failure;
        state.mux.lost();
        let wakers = state.told();
        drop(state);
        self.out = Outbox::default();
        wake(wakers);
    }
}

/// One stream of a connection. Dropping it in mid-stream breaks it off; after a shutdown, what was
/// written still leaves.
pub struct Stream {
    shared: Arc<Shared>,
    id: StreamId,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.id).finish()
    }
}

impl Stream {
    /// Its number, for logs.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Streams of its connection, this one among them.
    pub fn siblings(&self) -> usize {
        self.shared.lock().mux.stream_count()
    }

    /// The next bytes, at most `max`, without a copy where they came in one piece. Empty at the end.
    pub fn poll_read_bytes(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>> {
        let mut state = self.shared.lock();
        match state.mux.read(self.id, max.max(1), Instant::now()) {
            Ok(Read::Data(bytes)) => {
                state.release_and_wake_driver();
                Poll::Ready(Ok(bytes))
            }
            Ok(Read::End) => Poll::Ready(Ok(Bytes::new())),
            Ok(Read::Wait) => {
                state.streams.entry(self.id).or_default().reader = Some(cx.waker().clone());
                Poll::Pending
            }
            Err(broken) => Poll::Ready(Err(error(broken))),
        }
    }

    /// Takes as much of the front of `data` as there is room for, without a copy where it is long.
    pub fn poll_write_bytes(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut Bytes,
    ) -> Poll<io::Result<usize>> {
        self.poll_enqueue(cx, data.is_empty(), |mux, id| mux.write(id, data))
    }

    /// Wakes its user for the next bytes or the end of the stream, though it reads nothing now.
    pub fn watch(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.mux.watch(self.id).map_err(error)?;
        state.streams.entry(self.id).or_default().reader = Some(cx.waker().clone());
        Ok(())
    }

    /// How many bytes a write would take now, once there are any.
    pub fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        match state.mux.capacity(self.id) {
            Ok(0) => {
                state.streams.entry(self.id).or_default().writer = Some(cx.waker().clone());
                // Others may be in front of it, with room for them.
                state.release_and_wake_driver();
                Poll::Pending
            }
            Ok(room) => Poll::Ready(Ok(room)),
            Err(broken) => Poll::Ready(Err(error(broken))),
        }
    }

    fn poll_enqueue(
        &mut self,
        cx: &mut Context<'_>,
        is_empty: bool,
        enqueue: impl FnOnce(&mut Connection, StreamId) -> Result<usize, Broken>,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        match enqueue(&mut state.mux, self.id) {
            Ok(0) if !is_empty => {
                state.streams.entry(self.id).or_default().writer = Some(cx.waker().clone());
                Poll::Pending
            }
            Ok(written) => {
                state.release_and_wake_driver();
                Poll::Ready(Ok(written))
            }
            Err(broken) => Poll::Ready(Err(error(broken))),
        }
    }

    /// Keeps the stream for later: nothing is on its way in either direction. It may be ended
    /// meanwhile, if streams run short. `false` if it cannot serve again.
    pub fn rest(&mut self) -> bool {
        let mut state = self.shared.lock();
        let is_wanted = state.queued > state.granted || state.rests_none;
        let rests = !is_wanted && state.mux.rest(self.id);
        if !rests {
            state.mux.end_in_order(self.id, Instant::now());
        }
        state.release_and_wake_driver();
        rests
    }

    /// Takes the stream into use again. `false` if it was ended meanwhile.
    pub fn resume(&mut self) -> bool {
        self.shared.lock().mux.resume(self.id)
    }

    /// Ends the stream behind a conversation that is complete in both directions. The peer is given
    /// time to finish it too, so that it costs less than a reset.
    pub fn end_in_order(&mut self) {
        let mut state = self.shared.lock();
        state.mux.end_in_order(self.id, Instant::now());
        state.release_and_wake_driver();
    }

    /// Breaks the stream off and tells the peer why.
    pub fn reset(&mut self, code: ErrorCode) {
        let mut state = self.shared.lock();
        state.mux.reset(self.id, code, Instant::now());
        let wakers = state.told();
        state.release_and_wake_driver();
        wake(wakers);
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // Copied after the lock is let go of.
        let bytes = ready!(self.poll_read_bytes(cx, buf.remaining()))?;
        buf.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_enqueue(cx, buf.is_empty(), |mux, id| mux.write_copy(id, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let is_empty = bufs.iter().all(|buf| buf.is_empty());
        self.poll_enqueue(cx, is_empty, |mux, id| {
            let mut written = 0;
            for buf in bufs.iter().filter(|buf| !buf.is_empty()) {
                let length = mux.write_copy(id, buf)?;
                written += length;
                if length < buf.len() {
                    break;
                }
            }
            Ok(written)
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What is written is on its way already.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        let finished = state.mux.finish(self.id).map_err(error);
        state.release_and_wake_driver();
        Poll::Ready(finished)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.streams.remove(&self.id);
        state.mux.release(self.id, Instant::now());
        // Towards an end of ours there is room at once.
        state.grant();
        state.release_and_wake_driver();
    }
}

fn error(broken: Broken) -> io::Error {
    let kind = match broken {
        Broken::ByPeer(_) => io::ErrorKind::ConnectionReset,
        Broken::Here(_) | Broken::Gone => io::ErrorKind::ConnectionAborted,
        Broken::Finished => io::ErrorKind::BrokenPipe,
    };
    io::Error::new(kind, broken)
}

/// How a socket failed. An end of TCP without the end of TLS is told by its kind alone, for the text
/// of the library is about itself.
fn why_lost(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection ended without close_notify".to_owned(),
        _ => error.to_string(),
    }
}

/// Whether the peer refused a stream: it used nothing of it (codes 5 and 9).
pub fn is_refused(error: &io::Error) -> bool {
    matches!(
        reset_code(error),
        Some(ErrorCode::STREAM_REFUSED | ErrorCode::ACCEPT_QUEUE_FULL)
    )
}

/// Why the peer broke a stream off, if it did.
pub fn reset_code(error: &io::Error) -> Option<ErrorCode> {
    match error.get_ref()?.downcast_ref()? {
        Broken::ByPeer(code) => Some(*code),
        Broken::Here(_) | Broken::Gone | Broken::Finished => None,
    }
}
