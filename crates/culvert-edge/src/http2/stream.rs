//! The reader ([`Receiver`]) and the writer ([`Sender`]) of a stream. Together they can carry the bytes of an extended
//! CONNECT ([`Tunnelled`]).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use culvert_base::sync::lock;
use culvert_http::http2::{IncomingRequest, Reason, StreamClosed};
use http::{HeaderMap, StatusCode, response};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::http2::server::Conn;

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Receiver {
    conn: Arc<Mutex<Conn>>,
    stream: u32,
    /// Bytes that are missing, if `content-length` says.
    left: Option<u64>,
    is_ended: bool,
}

impl Receiver {
    pub(super) fn new(conn: &Arc<Mutex<Conn>>, incoming: &IncomingRequest) -> Self {
        Self {
            conn: Arc::clone(conn),
            stream: incoming.stream,
            left: incoming.length,
            is_ended: false,
        }
    }

    /// Waits for the next part.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamClosed>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let mut conn = lock(&self.conn);
        let polled = conn.session.poll_data(self.stream, cx);
        conn.wake_driver();
        let frame = ready!(polled);
        if let (Some(Ok(frame)), Some(left)) = (&frame, &mut self.left) {
            *left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len) as u64);
        }
        self.is_ended = match &frame {
            Some(Ok(_)) => conn.session.is_read(self.stream),
            Some(Err(_)) | None => true,
        };
        Poll::Ready(frame)
    }

    /// Whether the body is complete.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Bytes that are missing.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.left {
            Some(left) => SizeHint::with_exact(left),
            None if self.is_ended => SizeHint::with_exact(0),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if !self.is_ended {
            let mut conn = lock(&self.conn);
            conn.session.stop_reading(self.stream);
            conn.wake_driver();
        }
    }
}

/// Writes a response. Resets the stream if it is dropped before the end.
#[derive(Debug)]
pub(crate) struct Sender {
    conn: Arc<Mutex<Conn>>,
    stream: u32,
}

impl Sender {
    pub(super) fn new(conn: &Arc<Mutex<Conn>>, stream: u32) -> Self {
        Self {
            conn: Arc::clone(conn),
            stream,
        }
    }

    /// Runs a future unless the stream closes before.
    pub(crate) async fn unless_closed<F: Future>(
        &self,
        future: F,
    ) -> Result<F::Output, StreamClosed> {
        let mut future = std::pin::pin!(future);
        poll_fn(|cx| {
            let closed = lock(&self.conn).session.poll_closed(self.stream, cx);
            if let Poll::Ready(closed) = closed {
                return Poll::Ready(Err(closed));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Ready when the stream is closed.
    pub(crate) fn poll_closed(&self, cx: &Context<'_>) -> Poll<StreamClosed> {
        lock(&self.conn).session.poll_closed(self.stream, cx)
    }

    /// Sends an interim response, unless the client reads nothing.
    pub(crate) fn inform(&self, head: &response::Parts) {
        lock(&self.conn).session.send_interim(self.stream, head);
    }

    /// Sends the head of a response. `is_last` if it has no body.
    pub(crate) fn head(&self, head: &response::Parts, is_last: bool) {
        let mut conn = lock(&self.conn);
        conn.session.send_head(self.stream, head, is_last);
    }

    /// Sends the head of a response from its fields, whose names may be in upper case. None is one that HTTP/2 does not
    /// allow. `is_last` if it has no body.
    pub(crate) fn lines<'x>(
        &self,
        status: StatusCode,
        fields: impl Iterator<Item = (&'x [u8], &'x [u8])>,
        is_last: bool,
    ) {
        let mut conn = lock(&self.conn);
        conn.session
            .send_lines(self.stream, status, fields, is_last);
    }

    /// Waits for space for a frame without flow control.
    pub(crate) fn poll_capacity(&self, cx: &Context<'_>) -> Poll<Result<(), StreamClosed>> {
        lock(&self.conn).session.poll_capacity(self.stream, cx)
    }

    /// Waits until data can be sent, and returns how many bytes.
    pub(crate) fn poll_window(&self, cx: &Context<'_>) -> Poll<Result<usize, StreamClosed>> {
        lock(&self.conn).session.poll_window(self.stream, cx)
    }

    /// Sends at most as much data as [`poll_window`](Self::poll_window) returned.
    pub(crate) fn data(&self, data: Bytes, is_last: bool) {
        let mut conn = lock(&self.conn);
        conn.session.send_data(self.stream, data, is_last);
    }

    /// Sends trailers.
    pub(crate) fn trailers(&self, trailers: &HeaderMap) {
        let mut conn = lock(&self.conn);
        conn.session.send_trailers(self.stream, trailers);
    }
}

impl Sender {
    /// Resets the stream with CANCEL (RFC 9113 7): its client does not read the response.
    pub(crate) fn cancel(&self) {
        let mut conn = lock(&self.conn);
        conn.session
            .close(self.stream, Reason::CANCEL, Instant::now().into_std());
        conn.wake_driver();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut conn = lock(&self.conn);
        let reason = if conn.state.is_hung_up() {
            Reason::CANCEL
        } else {
            Reason::INTERNAL_ERROR
        };
        let now = Instant::now().into_std();
        conn.session.close(self.stream, reason, now);
    }
}

/// The byte stream of an extended CONNECT (RFC 8441).
#[derive(Debug)]
pub(crate) struct Tunnelled {
    receiver: Option<Receiver>,
    /// Data that was received and not read.
    ahead: Bytes,
    sender: Sender,
    is_shut: bool,
}

impl Tunnelled {
    pub(crate) fn new(receiver: Option<Receiver>, sender: Sender) -> Self {
        Self {
            receiver,
            ahead: Bytes::new(),
            sender,
            is_shut: false,
        }
    }
}

impl AsyncRead for Tunnelled {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ahead.is_empty() {
            let Some(receiver) = &mut this.receiver else {
                return Poll::Ready(Ok(()));
            };
            match ready!(receiver.poll_frame(cx)) {
                Some(frame) => this.ahead = frame?.into_data().unwrap_or_default(),
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = this.ahead.len().min(buf.remaining());
        buf.put_slice(this.ahead.get(..length).unwrap_or_default());
        this.ahead.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnelled {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_shut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = ready!(self.sender.poll_window(cx))?.min(bytes.len());
        let data = bytes.get(..room).unwrap_or_default();
        self.sender.data(Bytes::copy_from_slice(data), false);
        Poll::Ready(Ok(room))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's driver, which polls this, writes.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !std::mem::replace(&mut this.is_shut, true) {
            this.sender.data(Bytes::new(), true);
        }
        Poll::Ready(Ok(()))
    }
}
