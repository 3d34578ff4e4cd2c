//! Handles to a running connection.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use culvert_mux::{Ending, ErrorCode, Limits, OpenRefused, Source, StreamId};
use tokio::sync::futures::OwnedNotified;

use super::shared::{ReleaseAndWakeDriver, SessionTraffic, Shared, Wakers, wake};
use super::stream::{SILENT, Stream};
use crate::path::Candidate;

/// Half of the limit of queued bytes: see [`Limits::queue_bytes_max`].
const CONGESTED_BYTES: usize = 512 << 10;
/// More than the driver takes for one write.
const WAITING_BYTES: usize = 64 << 10;

/// A handle to a running connection.
#[derive(Clone)]
pub struct Session {
    pub(super) shared: Arc<Shared>,
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
    /// Opens a stream without a source. `first` is sent in one frame.
    pub fn open(&self, first: Bytes) -> Result<Stream, OpenRefused> {
        self.open_for(Source::default(), first)
    }

    /// Opens a stream for `source`. If none is free, one of the sources with the most may end for it.
    pub fn open_for(&self, source: Source, first: Bytes) -> Result<Stream, OpenRefused> {
        let mut state = self.shared.lock();
        let opened = state.mux.open_for(source, first, Instant::now());
        let id = match opened {
            Ok(id) => id,
            Err(refused) => {
                let wakers = state.take_wakers();
                state.release_and_wake_driver();
                wake(wakers);
                return Err(refused);
            }
        };
        state.streams.insert(id, Wakers::default());
        state.release_and_wake_driver();
        self.shared.counts.opened.fetch_add(1, Ordering::Relaxed);
        self.shared.opened.notify_one();
        Ok(Stream {
            shared: Arc::clone(&self.shared),
            id,
        })
    }

    /// As [`Self::open_for`], but counts the connection as full while callers queue for a stream.
    pub fn open_behind(&self, source: Source, first: Bytes) -> Result<Stream, OpenRefused> {
        let mut state = self.shared.lock();
        if state.queued > 0 && state.mux.ending().is_none() {
            // Ends an idle stream to make room for the callers in the queue.
            if !state.mux.has_capacity(Instant::now()) {
                state.mux.take_back(Instant::now());
            }
            state.release_and_wake_driver();
            return Err(OpenRefused::Full);
        }
        drop(state);
        self.open_for(source, first)
    }

    /// Waits until a stream has been opened since the last call.
    pub(crate) async fn opened(&self) {
        self.shared.opened.notified().await;
    }

    /// Number of reads from the peer.
    pub(crate) fn reads(&self) -> u64 {
        self.shared.counts.reads.load(Ordering::Relaxed)
    }

    /// Opens a stream of the connection itself: see [`culvert_mux::Connection::open_background`].
    pub(crate) fn open_background(&self, first: Bytes) -> Result<Stream, OpenRefused> {
        let mut state = self.shared.lock();
        let id = state.mux.open_background(first, Instant::now())?;
        state.streams.insert(id, Wakers::default());
        state.release_and_wake_driver();
        Ok(Stream {
            shared: Arc::clone(&self.shared),
            id,
        })
    }

    /// Whether the peer is known not to respond.
    pub fn is_silent(&self) -> bool {
        self.shared.lock().is_silent
    }

    /// Records whether the peer responds. If it does not, streams that wait for its first byte end with [`SILENT`].
    pub(crate) fn set_silent(&self, is_silent: bool) {
        let mut state = self.shared.lock();
        state.is_silent = is_silent;
        if is_silent {
            state.mux.reset_unanswered(SILENT, Instant::now());
        }
        let wakers = state.take_wakers();
        state.release_and_wake_driver();
        wake(wakers);
    }

    /// Queues for a stream. The result is ready when there may be capacity, or when the connection has ended.
    /// It holds the place in the queue until it is dropped, so it outlives the call of [`Session::open`].
    pub fn queue(&self) -> Queued {
        let mut state = self.shared.lock();
        let mut notified = Box::pin(Arc::clone(&state.room).notified_owned());
        notified.as_mut().enable();
        state.queued += 1;
        state.wake_queued();
        let driver = state.driver.take();
        drop(state);
        wake(driver.into_iter().collect());
        Queued {
            shared: Arc::clone(&self.shared),
            notified,
            is_granted: false,
        }
    }

    /// Ends idle streams and keeps no others, because the connection is about to end.
    pub fn rest_none(&self) {
        let mut state = self.shared.lock();
        state.rests_none = true;
        let now = Instant::now();
        while state.mux.take_back(now) {}
        state.release_and_wake_driver();
    }

    /// Keeps idle streams again, after [`Self::rest_none`].
    pub fn rest_again(&self) {
        self.shared.lock().rests_none = false;
    }

    /// Streams that this side opened and that are in use.
    pub fn busy(&self) -> BTreeSet<StreamId> {
        self.shared.lock().mux.busy().collect()
    }

    /// Number of streams that were reset because their readers left too much data unread.
    pub fn cut_streams(&self) -> u64 {
        self.shared.lock().mux.cut_streams()
    }

    /// Whether [`Session::open`] would find capacity.
    pub fn has_capacity(&self) -> bool {
        self.shared.lock().mux.has_capacity(Instant::now())
    }

    /// The next stream that the peer opens; `None` when the connection has ended. Only one task may accept.
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

    /// Ends the connection and sends the peer the reason.
    pub fn close(&self, code: ErrorCode, why: &'static str) {
        let mut state = self.shared.lock();
        state.mux.close(code, why);
        let wakers = state.take_wakers();
        state.release_and_wake_driver();
        wake(wakers);
    }

    /// Ends the connection without GOAWAY: agents handle the end of the socket correctly.
    pub fn hang_up(&self) {
        let mut state = self.shared.lock();
        state.mux.lost();
        let wakers = state.take_wakers();
        let driver = state.driver.take();
        drop(state);
        wake(wakers);
        wake(driver.into_iter().collect());
    }

    /// The error of the socket, if that ended the connection.
    pub fn failure(&self) -> Option<String> {
        self.shared.lock().failure.clone()
    }

    /// Whether the peer ended the connection with bytes that are not of the protocol.
    pub(crate) fn is_violated(&self) -> bool {
        matches!(self.shared.lock().mux.ending(), Some(Ending::Violated(_)))
    }

    /// Replaces the limits, such as after authentication.
    pub fn set_limits(&self, limits: Limits) {
        let mut state = self.shared.lock();
        state.mux.set_limits(limits);
        state.release_and_wake_driver();
    }

    /// Whether the queue is so long that writers must wait.
    pub fn is_congested(&self) -> bool {
        self.shared.lock().mux.queued_bytes() > CONGESTED_BYTES
    }

    /// Has the kernel say what it knows of the TCP connection between these addresses.
    pub(crate) fn watch_path(&self, own: SocketAddr, peer: SocketAddr) {
        self.shared.path.begin(own, peer);
    }

    /// Whether bytes wait because packets are lost on a path that is not full.
    pub(crate) fn is_held_back(&self) -> bool {
        let waiting = self.shared.lock().mux.queued_bytes();
        waiting > WAITING_BYTES && self.shared.path.now(Instant::now()).loses
    }

    /// Its room for a new stream.
    pub(crate) fn room(&self) -> Candidate {
        let state = self.shared.lock();
        let (streams, waiting) = (state.mux.busy_count(), state.mux.queued_bytes());
        drop(state);
        Candidate {
            streams,
            waiting,
            path: self.shared.path.now(Instant::now()),
        }
    }

    /// Number of bytes that its streams hold: received and not read, or written and not sent.
    pub fn held_bytes(&self) -> usize {
        let state = self.shared.lock();
        state.mux.held_bytes() + state.mux.queued_bytes()
    }

    /// Number of bytes that arrived since the last call of [`Self::take_traffic`], or ever.
    pub fn received(&self) -> u64 {
        self.shared.counts.received.load(Ordering::Relaxed)
    }

    /// Streams and bytes since the last call.
    pub fn take_traffic(&self) -> SessionTraffic {
        self.shared.counts.take()
    }

    /// Number of streams, opened by either side.
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
        state.wake_queued();
    }
}
