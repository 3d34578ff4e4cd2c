//! Deadlines of a connection: for the head of a request, for idle time between requests, and for a peer that does not
//! read.
//!
//! The HTTP library's own header timeout also runs while a connection is idle, and starts a timer for each request.
//! Here, the socket and the requests update a small shared state, which the connection's task checks at intervals
//! ([`ConnectionState::overdue`]). A deadline starts when its phase begins, and further bytes do not restart it. Only the
//! deadline for a peer that does not read restarts with progress: of a write, and of each response, because a peer of HTTP/2
//! may take nothing of a body while the socket writes.

use std::collections::BTreeMap;
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
    /// Requests so far.
    requests: u64,
    stalled_since: Option<Instant>,
    /// Responses of which something waits for the peer, and since when.
    unsent: BTreeMap<u64, Instant>,
    /// How much of the preface of HTTP/2 has arrived; `None` once it is complete, or other bytes came.
    preface: Option<usize>,
    h2: bool,
}

/// Limit of requests in flight of a connection: of streams of HTTP/2.
pub const STREAMS_MAX: u32 = 100;
/// The first bytes of a client that speaks HTTP/2 (RFC 9113 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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
            requests: 0,
            stalled_since: None,
            unsent: BTreeMap::new(),
            preface: Some(0),
            h2: false,
        })))
    }

    /// Records the arrival of a request's head. The connection is busy until the guard is dropped.
    pub fn request(&self) -> Busy {
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_add(1);
        state.requests = state.requests.wrapping_add(1);
        Busy {
            connection: self.clone(),
            request: state.requests,
        }
    }

    /// The deadline that has passed, if any.
    pub fn overdue(&self, now: Instant, timeouts: &ConnectionTimeouts) -> Option<&'static str> {
        let state = self.lock();
        let stalled_since = state.unsent.values().copied().chain(state.stalled_since);
        if let Some(since) = stalled_since.min()
            && now >= since + timeouts.stalled
        {
            return Some("the peer does not read");
        }
        if state.in_flight > 0 || state.stalled_since.is_some() {
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
        if let Some(arrived) = state.preface {
            // The first head of HTTP/2 is its preface. Frames follow, not heads; the first request is due as soon as a head,
            // because a connection without one holds a place.
            let due = &PREFACE[arrived..];
            let n = due.len().min(bytes.len());
            let is_preface = bytes[..n] == due[..n];
            state.h2 = is_preface && n == due.len();
            state.preface = (is_preface && !state.h2).then_some(arrived + n);
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

/// A guard for a request in flight, which its response keeps until the body is sent.
#[derive(Debug)]
pub struct Busy {
    connection: ConnectionState,
    request: u64,
}

impl Busy {
    /// Records that the peer has to take something of the response next.
    pub fn offered(&self) {
        let mut state = self.connection.lock();
        state.unsent.insert(self.request, Instant::now());
    }

    /// Records that the peer has taken a part of what was offered.
    pub fn progressed(&self) {
        let mut state = self.connection.lock();
        if let Some(since) = state.unsent.get_mut(&self.request) {
            *since = Instant::now();
        }
    }

    /// Records that the peer has taken what was offered.
    pub fn taken(&self) {
        self.connection.lock().unsent.remove(&self.request);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.connection.lock();
        state.unsent.remove(&self.request);
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
        // TLS holds what the socket does not take.
        let polled = Pin::new(&mut self.socket).poll_flush(context);
        self.state.wrote(polled.is_pending());
        polled
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
    async fn only_the_whole_preface_is_http2() {
        for pieces in [
            &[&b"PRI /x HTTP/1.1\r\n"[..]][..],
            &[b"P", b"OST / HTTP/1.1\r\n"],
            &[b"PRI * HTTP/2.0\r\n\r\nSM", b"\r\n\rX"],
        ] {
            let state = ConnectionState::begin();
            pieces.iter().for_each(|piece| state.took(piece));
            drop(state.request());
            state.took(b"G");
            assert!(!late(&state, 4) && late(&state, 6), "{pieces:?}");
        }
        let state = ConnectionState::begin();
        state.took(b"P");
        state.took(b"RI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0");
        drop(state.request());
        state.took(b"\0");
        assert!(!late(&state, 119));
    }

    #[tokio::test(start_paused = true)]
    async fn data_that_waits_in_a_buffer_is_not_idle() {
        let state = ConnectionState::begin();
        state.took(b"GET / HTTP/1.1\r\n\r\n");
        drop(state.request());
        tokio::time::advance(Duration::from_secs(70)).await;
        state.wrote(true);
        assert!(!late(&state, 29) && late(&state, 31));
        state.wrote(false);
        assert!(late(&state, 6));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_of_which_the_peer_takes_nothing_is_late() {
        let state = ConnectionState::begin();
        state.took(PREFACE);
        let (taken, waiting) = (state.request(), state.request());
        taken.offered();
        waiting.offered();
        assert!(!late(&state, 29) && late(&state, 31));
        waiting.taken();
        taken.taken();
        assert!(!late(&state, 1000), "what it waits for is not here yet");
        waiting.offered();
        tokio::time::advance(Duration::from_secs(20)).await;
        state.wrote(false);
        assert!(late(&state, 11), "the write may be of another response");
        waiting.progressed();
        assert!(!late(&state, 29) && late(&state, 31));
        drop(waiting);
        assert!(!late(&state, 1000));
        // Over HTTP/1.1, written bytes are of this response.
        let state = ConnectionState::begin();
        let only = state.request();
        only.offered();
        state.wrote(true);
        assert!(late(&state, 31));
        state.wrote(false);
        only.progressed();
        assert!(!late(&state, 29));
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
