//! Deadlines of a connection: for the head of a request, for idle time between requests, and for a peer that does not
//! read.
//!
//! The HTTP library's own header timeout also runs while a connection is idle, and starts a timer for each request.
//! Here, the socket and the requests update a small shared state, which the connection's task checks at intervals
//! ([`ConnectionState::overdue`]). A deadline starts when its phase begins, and further bytes do not restart it. Only the
//! deadline for a peer that does not read restarts with each write that makes progress.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Time limits for the phases of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// From the first byte of a request, or from the accept, to the end of its head.
    pub head: Duration,
    /// Idle time without a request, HTTP/1.1.
    pub idle: Duration,
    /// Idle time without a request, HTTP/2.
    pub idle_h2: Duration,
    /// Data waits for a peer that does not read.
    pub stalled: Duration,
}

/// The state of one connection, which its socket, requests and task share.
#[derive(Clone, Debug)]
pub struct ConnectionState(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    phase: Phase,
    since: Instant,
    in_flight: u32,
    stalled_since: Option<Instant>,
    fresh: bool,
    h2: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Head,
    Idle,
}

impl ConnectionState {
    /// The state of a newly accepted connection, which waits for its first head.
    pub fn begin() -> Self {
        Self(Arc::new(Mutex::new(State {
            phase: Phase::Head,
            since: Instant::now(),
            in_flight: 0,
            stalled_since: None,
            fresh: true,
            h2: false,
        })))
    }

    /// Records the arrival of a request's head. The connection is busy until the guard is dropped.
    pub fn request(&self) -> Busy {
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_add(1);
        Busy(self.clone())
    }

    /// The deadline that has passed, if any.
    pub fn overdue(&self, now: Instant, timeouts: &ConnectionTimeouts) -> Option<&'static str> {
        let state = self.lock();
        if let Some(since) = state.stalled_since
            && now >= since + timeouts.stalled
        {
            return Some("the peer does not read");
        }
        if state.in_flight > 0 {
            return None;
        }
        let (allowed, why) = match state.phase {
            Phase::Head => (timeouts.head, "the request head did not arrive in time"),
            Phase::Idle if state.h2 => (timeouts.idle_h2, "idle"),
            Phase::Idle => (timeouts.idle, "idle"),
        };
        (now >= state.since + allowed).then_some(why)
    }

    fn took(&self, bytes: &[u8]) {
        let mut state = self.lock();
        if std::mem::take(&mut state.fresh) {
            // The first head of HTTP/2 is its preface. Frames follow, not heads; the first request is due as soon as a head,
            // because a connection without one holds a place.
            state.h2 = bytes.starts_with(b"PRI ");
        } else if !state.h2 && state.phase == Phase::Idle && state.in_flight == 0 {
            state.phase = Phase::Head;
            state.since = Instant::now();
        }
    }

    fn wrote(&self, pending: bool) {
        let mut state = self.lock();
        if !pending {
            state.stalled_since = None;
        } else if state.stalled_since.is_none() {
            state.stalled_since = Some(Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A guard for a request in flight.
#[derive(Debug)]
pub struct Busy(ConnectionState);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        if state.in_flight == 0 {
            state.phase = Phase::Idle;
            state.since = Instant::now();
        }
    }
}

/// A socket that updates the [`ConnectionState`] of its connection.
#[derive(Debug)]
pub struct TimedSocket<S> {
    socket: S,
    state: ConnectionState,
}

impl<S> TimedSocket<S> {
    /// A socket that ends when `state` says so.
    pub fn new(socket: S, state: ConnectionState) -> Self {
        Self { socket, state }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(context, buffer);
        if let Some(bytes) = buffer
            .filled()
            .get(before..)
            .filter(|bytes| !bytes.is_empty())
        {
            self.state.took(bytes);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.state.wrote(polled.is_pending());
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.state.wrote(polled.is_pending());
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
        head: Duration::from_secs(5),
        idle: Duration::from_secs(75),
        idle_h2: Duration::from_secs(120),
        stalled: Duration::from_secs(30),
    };

    fn late(state: &ConnectionState, after_s: u64) -> bool {
        let now = Instant::now() + Duration::from_secs(after_s);
        state.overdue(now, &TIMEOUTS).is_some()
    }

    #[tokio::test]
    async fn a_head_is_due_soon_an_idle_connection_later_and_a_request_is_left_alone() {
        let state = ConnectionState::begin();
        assert!(!late(&state, 4) && late(&state, 6));
        state.took(b"GET / HT");
        state.took(b"TP/1.1");
        assert!(late(&state, 6), "a byte restarts nothing");
        let busy = state.request();
        assert!(!late(&state, 1000));
        drop(busy);
        assert!(!late(&state, 74) && late(&state, 76));
        state.took(b"G");
        assert!(!late(&state, 4) && late(&state, 6));
    }

    #[tokio::test]
    async fn http2_has_no_heads_after_its_preface() {
        let state = ConnectionState::begin();
        state.took(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        assert!(late(&state, 6), "a preface alone is not enough");
        state.took(b"\0\0\0\x04");
        assert!(late(&state, 6), "nor are settings");
        drop(state.request());
        state.took(b"\0\0\0\x04");
        assert!(!late(&state, 119) && late(&state, 121));
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_late_even_during_a_request() {
        let state = ConnectionState::begin();
        let _busy = state.request();
        state.wrote(true);
        assert!(!late(&state, 29) && late(&state, 31));
        state.wrote(false);
        assert!(!late(&state, 31));
    }
}
