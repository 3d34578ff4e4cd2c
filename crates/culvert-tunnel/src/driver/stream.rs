//! Streams of a connection.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use culvert_mux::{Broken, Connection, ErrorCode, Read, StreamId};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::shared::{ReleaseAndWakeDriver, Shared, wake};

/// A stream of a connection. Dropping it resets it, except after a shutdown: then written data is still sent.
pub struct Stream {
    pub(super) shared: Arc<Shared>,
    pub(super) id: StreamId,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.id).finish()
    }
}

impl Stream {
    /// The id, for logs.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Number of streams of its connection, including this one.
    pub fn siblings(&self) -> usize {
        self.shared.lock().mux.stream_count()
    }

    /// Reads at most `max` bytes, but at least one, without a copy if they arrived in one piece. Empty at the end.
    pub fn poll_read_bytes(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>> {
        let read = |mux: &mut Connection, id| mux.read(id, max, Instant::now());
        self.poll_dequeue(cx, read)
    }

    fn poll_dequeue(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Connection, StreamId) -> Result<Read, Broken>,
    ) -> Poll<io::Result<Bytes>> {
        let mut state = self.shared.lock();
        match read(&mut state.mux, self.id) {
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

    /// Writes as much of the front of `data` as there is capacity for, without a copy if it is long.
    pub fn poll_write_bytes(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut Bytes,
    ) -> Poll<io::Result<usize>> {
        self.poll_enqueue(cx, data.is_empty(), |mux, id| mux.write(id, data))
    }

    /// Requests a wake-up for the next bytes or the end of the stream, without reading.
    pub fn watch(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.mux.watch(self.id).map_err(error)?;
        state.streams.entry(self.id).or_default().reader = Some(cx.waker().clone());
        Ok(())
    }

    /// Number of bytes that a write would accept now. Pending while this is zero.
    pub fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        match state.mux.capacity(self.id) {
            Ok(0) => {
                state.streams.entry(self.id).or_default().writer = Some(cx.waker().clone());
                // Other callers may be ahead in the queue, with capacity for them.
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

    /// Keeps the stream for reuse: no data is in transit in either direction. It may be ended meanwhile if
    /// streams run short. `false` if it cannot be reused.
    pub fn set_idle(&mut self) -> bool {
        let mut state = self.shared.lock();
        let is_wanted = state.queued > state.granted || state.rests_none;
        let rests = !is_wanted && state.mux.set_idle(self.id);
        if !rests {
            state.mux.end_in_order(self.id, Instant::now());
        }
        state.release_and_wake_driver();
        rests
    }

    /// Takes the stream back into use. `false` if it was ended meanwhile.
    pub fn resume(&mut self) -> bool {
        self.shared.lock().mux.resume(self.id)
    }

    /// Ends the stream after both directions have sent all their data. The peer gets time to finish it too,
    /// which costs less than a reset.
    pub fn end_in_order(&mut self) {
        let mut state = self.shared.lock();
        state.mux.end_in_order(self.id, Instant::now());
        state.release_and_wake_driver();
    }

    /// Resets the stream and sends the peer the code.
    pub fn reset(&mut self, code: ErrorCode) {
        let mut state = self.shared.lock();
        state.mux.reset(self.id, code, Instant::now());
        let wakers = state.take_wakers();
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
        // Copied after the lock is released.
        let mut more = Vec::new();
        let max = buf.remaining();
        let read = |mux: &mut Connection, id| mux.read_all(id, max, Instant::now(), &mut more);
        buf.put_slice(&ready!(self.poll_dequeue(cx, read))?);
        for piece in more {
            buf.put_slice(&piece);
        }
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

    /// Written data is already on its way to the peer.
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
        // If the peer is culvert, the place is available immediately.
        state.wake_queued();
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

/// Whether the peer refused a stream without using it (codes 5 and 9).
pub fn is_refused(error: &io::Error) -> bool {
    matches!(
        reset_code(error),
        Some(ErrorCode::STREAM_REFUSED | ErrorCode::ACCEPT_QUEUE_FULL)
    )
}

/// The code of streams that ended because the peer did not respond. Nodes send it to each other.
pub const SILENT: ErrorCode = ErrorCode(0x101);

/// Whether a stream ended because the peer did not respond.
pub fn is_silent(error: &io::Error) -> bool {
    let broken = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(broken, Some(Broken::Here(code) | Broken::ByPeer(code)) if *code == SILENT)
}

/// The peer's reset code, if it reset the stream.
pub fn reset_code(error: &io::Error) -> Option<ErrorCode> {
    match error.get_ref()?.downcast_ref()? {
        Broken::ByPeer(code) => Some(*code),
        Broken::Here(_) | Broken::Gone | Broken::Finished => None,
    }
}
