//! Runs a multiplexed connection over a socket: one task moves the bytes, and any number of tasks use its
//! streams.
//!
//! The state machine is behind a lock that is held briefly, never across an await and never while payload is
//! copied to a reader. A stream with data to send wakes the driver, which gathers the data of all streams
//! into one write. Reading continues while a write waits: published agents stop reading when they cannot
//! write, so if both sides did so, they would deadlock.
//!
//! Back-pressure is end to end: a slow reader of a stream withholds its credit, and a full socket stops the
//! writers of its streams. Callers that need a stream when none is free can [queue](Session::queue). A peer
//! that reads nothing for [`STALL`] is disconnected.

mod session;
mod shared;
mod stream;

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use culvert_io::yield_turn;
use culvert_mux::{Connection, Ending, Limits, Outbox, Side};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;

pub use session::{Queued, Session};
pub use shared::SessionTraffic;
use shared::{Shared, wake};
pub use stream::{SILENT, Stream, is_refused, is_silent, reset_code};

/// How long a peer may leave waiting data unread before it is disconnected.
pub const STALL: Duration = Duration::from_secs(30);

/// The most bytes gathered for one write: enough for four TLS records.
const GATHER_BYTES: usize = 64 << 10;
/// The size of a read while there is traffic: one TLS record. Payload that is kept then uses at most twice
/// its length.
const READ_BYTES: usize = 16 << 10;
/// The size of a read on an idle connection, of which there are many.
const IDLE_READ_BYTES: usize = 1 << 10;
/// The streams of an idle agent: heartbeats, perhaps one in each direction.
const IDLE_STREAMS: usize = 2;
/// Maximum number of slices in a vectored write.
const SLICES: usize = 64;
/// How long the driver works before other tasks have their turn. A time, and no number of bytes: the peer chooses how
/// much work a byte is.
const TURN: Duration = Duration::from_millis(1);
/// Timeout for sending the last frame.
const GOODBYE: Duration = Duration::from_secs(2);

/// Starts a connection over `socket`. No data moves until the driver runs.
pub fn connect<S>(socket: S, side: Side, limits: Limits) -> (Session, Driver<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let shared = Arc::new(Shared::new(Connection::new(side, limits)));
    let driver = Driver {
        shared: Arc::clone(&shared),
        socket,
        out: Outbox::default(),
        input: BytesMut::new(),
        wants_flush: false,
        had_much: false,
        lets_others: false,
        worked: Duration::ZERO,
        has_ended: false,
        stall: STALL,
    };
    (Session { shared }, driver)
}

/// Moves the bytes of one connection.
#[must_use = "nothing moves unless it runs"]
pub struct Driver<S> {
    shared: Arc<Shared>,
    socket: S,
    out: Outbox,
    input: BytesMut,
    /// Whether data was written since the last flush.
    wants_flush: bool,
    /// Whether the last read filled its buffer.
    had_much: bool,
    /// Whether the driver yielded to other tasks before its next write.
    lets_others: bool,
    /// How long it has worked since it last waited, or since other sockets had their turn.
    worked: Duration,
    /// Whether the peer ended the connection in order: over TLS, with `close_notify`.
    has_ended: bool,
    stall: Duration,
}

impl<S> fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// Dropping the driver wakes all waiting tasks.
impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.mux.lost();
        let wakers = state.take_wakers();
        drop(state);
        wake(wakers);
    }
}

/// When the driver must act without an event on the socket.
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

    /// Whether the deadline has passed.
    fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        self.at.is_some() && self.sleep.as_mut().poll(cx).is_ready()
    }
}

impl<S> Driver<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// Sets another timeout than [`STALL`].
    pub fn with_stall(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }

    /// Runs until either side ends the connection, closes the socket, and returns why it ended.
    pub async fn run(mut self) -> Ending {
        let mut timer = Timer::new();
        let mut stalled_since = None;
        std::future::poll_fn(|cx| self.poll(cx, &mut timer, &mut stalled_since)).await;
        let ending = self.shared.lock().mux.ending().cloned();
        // Sends the last frame and the end of TLS; a peer that does not read them does not get them.
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
        let began = Instant::now();
        let turn_ends = began + TURN.saturating_sub(self.worked);
        let mut now = began;
        loop {
            let mut state = self.shared.lock();
            if state.mux.deadline().is_some_and(|at| at <= now) {
                state.mux.expire(now);
            }
            let idle = state.mux.stream_count() <= IDLE_STREAMS;
            if !idle && !self.lets_others && !self.out.has_remaining() && state.mux.has_output() {
                // One stream woke this task. Others are probably about to write, so one write can send the
                // data of all.
                self.lets_others = true;
                self.worked += now - began;
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
            let has_more = state.mux.has_output();
            let mut due = state.mux.deadline();
            if state.queued > state.granted {
                state.wake_queued();
                due = due.into_iter().chain(state.mux.room_grows_at()).min();
            }
            // What happens from here on wakes this task.
            state.set_driver(cx.waker());
            let wakers = state.take_wakers();
            drop(state);
            wake(wakers);
            if ended {
                return Poll::Ready(());
            }

            let waiting = self.out.remaining();
            let written = self.poll_write(cx);
            let read = if reading {
                self.poll_read(cx, idle, turn_ends)
            } else {
                Poll::Pending
            };
            if let (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) = (&written, &read) {
                self.lose((!self.has_ended).then(|| why_lost(error)));
                return Poll::Ready(());
            }
            if !self.out.has_remaining() {
                *stalled_since = None;
            } else if self.out.remaining() < waiting || stalled_since.is_none() {
                *stalled_since = Some(now);
            }
            let stalled = stalled_since.map(|since| since + self.stall);
            if stalled.is_some_and(|at| at <= now) {
                self.lose(Some("the peer did not read in time".to_owned()));
                return Poll::Ready(());
            }
            if !(read.is_ready() || written.is_ready() && has_more) {
                timer.set(stalled.into_iter().chain(due).min());
                if !timer.is_due(cx) {
                    self.worked = Duration::ZERO;
                    return Poll::Pending;
                }
                timer.set(None);
            }
            now = Instant::now();
            if now >= turn_ends {
                self.worked = Duration::ZERO;
                return yield_turn(cx);
            }
        }
    }

    /// Ready when everything was written and flushed.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.out.has_remaining() {
            ready!(self.poll_write_once(cx))?;
        }
        if self.wants_flush {
            ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
            self.wants_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_once(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = if self.socket.is_write_vectored() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.out.chunks_vectored(&mut slices);
            ready!(Pin::new(&mut self.socket).poll_write_vectored(cx, &slices[..count]))?
        } else {
            ready!(Pin::new(&mut self.socket).poll_write(cx, self.out.chunk()))?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.out.advance(written);
        let counts = &self.shared.counts;
        counts.sent.fetch_add(written as u64, Ordering::Relaxed);
        self.wants_flush = true;
        Poll::Ready(Ok(()))
    }

    /// Ready when data was read and processed. Each waiting reader is woken once for all available data: it
    /// may be on another thread, where each wake-up costs a system call.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        idle: bool,
        turn_ends: Instant,
    ) -> Poll<io::Result<()>> {
        let (mut wakers, mut taken) = (Vec::new(), 0);
        let read = loop {
            match self.poll_read_once(cx, idle, &mut wakers) {
                Poll::Ready(Ok((length, at, is_wanted))) => {
                    taken += length;
                    let counts = &self.shared.counts;
                    counts.received.fetch_add(length as u64, Ordering::Relaxed);
                    counts.reads.fetch_add(1, Ordering::Relaxed);
                    if !is_wanted || taken >= GATHER_BYTES || at >= turn_ends {
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

    /// Processes one read. Returns the number of bytes, when they were read, and whether to read again.
    fn poll_read_once(
        &mut self,
        cx: &mut Context<'_>,
        idle: bool,
        wakers: &mut Vec<Waker>,
    ) -> Poll<io::Result<(usize, Instant, bool)>> {
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
        let now = Instant::now();
        let mut state = self.shared.lock();
        state.mux.receive(&mut self.input, now);
        state.collect_wakers(wakers);
        let is_wanted = state.mux.wants_input() && state.mux.ending().is_none();
        Poll::Ready(Ok((read, now, is_wanted)))
    }

    fn poll_goodbye(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if ready!(self.poll_write(cx)).is_err() {
            return Poll::Ready(());
        }
        match ready!(Pin::new(&mut self.socket).poll_shutdown(cx)) {
            Ok(()) | Err(_) => Poll::Ready(()),
        }
    }

    fn lose(&mut self, failure: Option<String>) {
        let mut state = self.shared.lock();
        state.failure = failure;
        state.mux.lost();
        let wakers = state.take_wakers();
        drop(state);
        self.out = Outbox::default();
        wake(wakers);
    }
}

/// Why a socket failed. For a TCP end without a TLS end only the kind of the error is used, because the
/// library's text describes the library.
fn why_lost(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection ended without close_notify".to_owned(),
        _ => error.to_string(),
    }
}
