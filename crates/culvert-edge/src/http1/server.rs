//! An HTTP/1 connection to a client: reads its requests in order and writes the responses.
//!
//! A [`RequestReader`] frames the messages; this file moves the bytes and keeps the deadlines. Bytes after a message are
//! not read before that message was answered, so early bytes of an upgrade stay here until the 101.
//!
//! The body of a request ([`Http1Body`]) reads from the same connection, possibly in another task. Until it ends or is
//! dropped, nothing else reads.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use culvert_base::sync::lock;
use culvert_http::http1::{BodyPart, RequestHead, RequestReader, Violation, WriteBuffer, head};
use culvert_http::http2;
use culvert_http::slow_reader::SlowReader;
use culvert_io::{Alarm, Pipe, ReadBuffer, RelayClient, RelayEnd, write};
use http::{Version, response};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use crate::connection::conn_state::ConnState;
use crate::connection::http1_state::{Broken, Http1Turn};
use crate::connection::socket::Wire;

/// Initial size of a read.
const READ_BYTES_MIN: usize = 4 << 10;
/// Most bytes to read ahead while the previous request is being answered.
const AHEAD_BYTES_MAX: usize = 16 << 10;
/// Most bytes of an unread body to skip so that the connection can be reused.
const UNWANTED_BYTES_MAX: usize = 64 << 10;

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Http1Server(Arc<Mutex<Conn>>);

/// The result of waiting for a request.
#[derive(Debug)]
pub(crate) enum Next {
    /// A head, and a body if there is one.
    Request(RequestHead, Option<Http1Body>),
    /// The preface of HTTP/2: the connection is no longer one of HTTP/1.
    Http2,
    /// Nothing yet: the connection is idle.
    Rest,
    /// The connection ends: the client has closed it, timed out, or is refused.
    Over,
}

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Http1Body {
    conn: Arc<Mutex<Conn>>,
    hint: SizeHint,
    is_ended: bool,
}

/// The body is incomplete. [`Http1State::broken`](crate::connection::http1_state::Http1State::broken) has the reason.
#[derive(Debug, thiserror::Error)]
#[error("the client aborted the request")]
pub(crate) struct BodyAborted;

#[derive(Debug)]
struct Conn {
    wire: Wire,
    state: Arc<ConnState>,
    reading: RequestReader,
    inbox: ReadBuffer,
    /// The bytes of a refused head.
    refused_head: Bytes,
    /// Whether the body is being read.
    has_reader: bool,
    /// Whether its reader has begun: it notices a close.
    is_body_begun: bool,
    /// Whether the client waits for 100 (Continue) before it sends the body (RFC 9110 10.1.1).
    owes_continue: bool,
    /// Interim responses to write.
    interim: WriteBuffer,
    alarm: Alarm,
    /// When the current wait began: for a request, or for the rest of a head.
    since: Instant,
    has_served: bool,
    reader: SlowReader,
    /// How long the client may read nothing of the current response.
    write_limit: Duration,
    handed_out: u64,
    /// Since when the read-ahead buffer is full, and how many bytes had been read by the client then.
    ahead: Option<(Instant, u64)>,
}

impl Http1Server {
    /// Bytes of memory of an idle connection.
    #[cfg(test)]
    pub(crate) const SIZE: usize = size_of::<Conn>();

    pub(crate) fn new(wire: Wire, state: Arc<ConnState>) -> Self {
        Self(Arc::new(Mutex::new(Conn {
            wire,
            write_limit: state.rules.limits.write_stall,
            state,
            reading: RequestReader::default(),
            inbox: ReadBuffer::new(READ_BYTES_MIN),
            refused_head: Bytes::new(),
            has_reader: false,
            is_body_begun: false,
            owes_continue: false,
            interim: WriteBuffer::default(),
            alarm: Alarm::default(),
            since: Instant::now(),
            has_served: false,
            reader: SlowReader::default(),
            handed_out: 0,
            ahead: None,
        })))
    }

    /// Waits for the next request.
    pub(crate) fn poll_request(&self, cx: &mut Context<'_>) -> Poll<Next> {
        let mut conn = lock(&self.0);
        let head = match ready!(conn.poll_head(cx)) {
            Ok(head) => head,
            Err(next) => return Poll::Ready(next),
        };
        let body = (!conn.reading.is_ended()).then(|| {
            conn.has_reader = true;
            conn.is_body_begun = false;
            conn.set_owes_continue(head.expects_continue());
            Http1Body {
                hint: conn.reading.payload().size_hint(),
                conn: Arc::clone(&self.0),
                is_ended: false,
            }
        });
        Poll::Ready(Next::Request(head, body))
    }

    /// Sets the write timeout of the endpoint, or that of the settings.
    pub(crate) fn allow(&self, write_limit: Option<Duration>) {
        let mut conn = lock(&self.0);
        conn.write_limit = write_limit.unwrap_or(conn.state.rules.limits.write_stall);
    }

    /// Whether a connection that has served a request has received nothing of the next.
    pub(crate) fn is_idle(&self) -> bool {
        let conn = lock(&self.0);
        conn.has_served && conn.reading.is_untouched() && conn.inbox.is_empty()
    }

    /// Waits for the client to close the connection while its request is being answered. Bytes it sends are kept up to a
    /// limit. With a full buffer a close cannot be seen; then the client counts as gone if it also reads nothing.
    pub(crate) fn poll_left(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut conn = lock(&self.0);
        let is_unread = conn.has_reader && !conn.is_body_begun && conn.state.http1.is_queued();
        if !is_unread && (conn.has_reader || !conn.reading.is_ended()) {
            return Poll::Pending;
        }
        while conn.inbox.len() < AHEAD_BYTES_MAX {
            match ready!(conn.poll_fill(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
        if is_unread {
            return Poll::Pending;
        }
        let (_, moved) = conn.state.counters.bytes();
        let (since, before) = *conn.ahead.get_or_insert((Instant::now(), moved));
        if moved != before {
            conn.ahead = Some((Instant::now(), moved));
        }
        let until = since + conn.idle();
        if moved == before && conn.alarm.is_due(cx, until) {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Writes an interim response (RFC 9110 15.2), unless the client reads nothing.
    pub(crate) fn inform(&self, cx: &mut Context<'_>, head: &response::Parts) {
        let mut conn = lock(&self.0);
        if conn.interim.has_capacity() {
            head::write_response(conn.interim.front(), Version::HTTP_11, head);
            conn.send_interim(cx);
        }
    }

    /// Writes until `out` has space.
    pub(crate) fn poll_capacity(
        &self,
        cx: &mut Context<'_>,
        out: &mut WriteBuffer,
    ) -> Poll<io::Result<()>> {
        if out.has_capacity() {
            return Poll::Ready(Ok(()));
        }
        lock(&self.0).poll_out(cx, |wire, cx, written| {
            write::poll_capacity(out, wire, cx, written)
        })
    }

    /// Writes all of `out`.
    pub(crate) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        out: &mut WriteBuffer,
    ) -> Poll<io::Result<()>> {
        if out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut conn = lock(&self.0);
        let wrote = conn.poll_out(cx, |wire, cx, written| {
            write::poll_empty(out, wire, cx, written)
        });
        if wrote.is_ready() {
            conn.caught_up();
        }
        wrote
    }

    /// Nothing waits for the client to read any more.
    pub(crate) fn caught_up(&self) {
        lock(&self.0).caught_up();
    }

    /// Whether the kernel may move bytes to its socket.
    pub(crate) fn is_socket(&self) -> bool {
        lock(&self.0).wire.is_socket()
    }

    /// Writes all bytes of a pipe.
    pub(crate) fn poll_empty(&self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<()>> {
        if pipe.is_empty() {
            return Poll::Ready(Ok(()));
        }
        lock(&self.0).poll_out(cx, |wire, cx, written| {
            while !pipe.is_empty() {
                let bytes = ready!(wire.poll_empty(cx, pipe))?;
                *written = written.saturating_add(bytes as u64);
            }
            Poll::Ready(Ok(()))
        })
    }

    /// The response is written.
    pub(crate) fn answered(&self) {
        let mut conn = lock(&self.0);
        conn.state.flushed();
        conn.has_served = true;
        let now = Instant::now();
        conn.since = now;
        conn.ahead = None;
        conn.state.http1.set_turn(Http1Turn::Client);
        conn.state.idles(now);
    }

    /// Skips the rest of an answered request. False if no other request can follow.
    pub(crate) fn poll_past(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut conn = lock(&self.0);
        if conn.has_reader {
            let until = conn.since + conn.state.rules.limits.body_stall;
            return if conn.alarm.is_due(cx, until) {
                Poll::Ready(false)
            } else {
                Poll::Pending
            };
        }
        let mut unwanted = 0;
        while !conn.reading.is_ended() {
            if conn.owes_continue || unwanted > UNWANTED_BYTES_MAX {
                return Poll::Ready(false);
            }
            match conn.poll_body(cx) {
                Poll::Ready(Some(Ok(frame))) => unwanted += frame.data_ref().map_or(0, Bytes::len),
                Poll::Ready(None) => {}
                Poll::Ready(Some(Err(_))) => {
                    // The request has its response and its record: the bytes after it are no other request.
                    conn.state.http1.set_broken(Broken::Left);
                    return Poll::Ready(false);
                }
                Poll::Pending => return Poll::Ready(false),
            }
        }
        conn.reading.next_message();
        Poll::Ready(true)
    }

    /// Waits for the next request without a buffer. False if none comes: the client has closed the connection or timed out.
    pub(crate) fn poll_wake(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut conn = lock(&self.0);
        conn.inbox.free();
        // On the stack, only during the call.
        let mut room = [0; 1024];
        let mut buf = ReadBuf::new(&mut room);
        match Pin::new(&mut conn.wire).poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                conn.inbox.put(buf.filled());
                Poll::Ready(true)
            }
            Poll::Ready(_) => Poll::Ready(false),
            Poll::Pending => {
                let deadline = conn.since + conn.idle();
                if conn.alarm.is_due(cx, deadline) {
                    Poll::Ready(false)
                } else {
                    Poll::Pending
                }
            }
        }
    }

    /// Reads the fields of later heads into maps.
    pub(crate) fn read_maps(&self) {
        lock(&self.0).reading.read_maps();
    }

    /// Refuses the current request, whose exchange has not begun, and which has this head.
    pub(crate) fn refuse(&self, violation: Violation, head: Bytes) {
        let mut conn = lock(&self.0);
        conn.state.http1.set_turn(Http1Turn::Client);
        conn.refused_head = head;
        conn.refuse(violation);
    }

    /// Takes the bytes of the refused head, as far as they have arrived.
    pub(crate) fn take_refused_head(&self) -> Bytes {
        std::mem::take(&mut lock(&self.0).refused_head)
    }

    /// Why the current request is refused, if it is.
    pub(crate) fn refused(&self) -> Option<Violation> {
        lock(&self.0).reading.refused()
    }

    /// Whether the last request was read completely, and nothing follows.
    pub(crate) fn is_drained(&self) -> bool {
        let conn = lock(&self.0);
        conn.inbox.is_empty() && (conn.reading.is_ended() || conn.reading.is_untouched())
    }

    /// Ends the connection with a TCP reset.
    pub(crate) fn reset(&self) {
        lock(&self.0).wire.reset();
    }

    /// The socket and the bytes that were read from it, for another protocol.
    pub(crate) fn into_wire(self) -> (Wire, BytesMut) {
        let mut conn = lock(&self.0);
        let ahead = std::mem::take(conn.inbox.bytes());
        (conn.wire.take(), ahead)
    }

    /// Takes the bytes that were read ahead.
    pub(crate) fn take_early(&self) -> Bytes {
        lock(&self.0).inbox.take_all()
    }
}

impl Conn {
    /// Nothing waits for the client to read any more.
    fn caught_up(&mut self) {
        if self.reader.is_waiting() {
            let (_, taken) = self.state.counters.bytes();
            let now = Instant::now().into_std();
            self.reader.caught_up(taken, self.write_limit, now);
        }
    }

    fn set_owes_continue(&mut self, owes: bool) {
        self.owes_continue = owes;
        self.state.http1.set_awaits_continue(owes);
    }

    /// The idle timeout.
    fn idle(&self) -> Duration {
        self.state.rules.limits.idle
    }

    /// Waits for the head of the next request.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<RequestHead, Next>> {
        loop {
            if self.reading.refused().is_some() {
                return Poll::Ready(Err(Next::Over));
            }
            if self.reading.has_unread(&self.inbox) {
                if self.reading.is_untouched() {
                    self.since = Instant::now();
                    self.state.works();
                }
                match self.reading.head(self.inbox.bytes()) {
                    Ok(Some(head)) => {
                        self.state.http1.set_turn(Http1Turn::Edge);
                        self.state.http1.set_payload(0);
                        return Poll::Ready(Ok(head));
                    }
                    Ok(None) => {}
                    // Only as the first bytes of the connection, and over TLS only if ALPN has agreed on it (RFC 9113 3.2).
                    Err(_)
                        if !self.has_served
                            && self.wire.is_plain()
                            && http2::is_prior_knowledge(&self.inbox) =>
                    {
                        return Poll::Ready(Err(Next::Http2));
                    }
                    Err(violation) => {
                        self.refuse(violation);
                        continue;
                    }
                }
            }
            match self.poll_fill(cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Next::Over)),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => {
                    let deadline = self.head_deadline();
                    if !self.alarm.is_due(cx, deadline) {
                        return Poll::Pending;
                    }
                    if self.reading.is_untouched() {
                        // Between requests: close without a response, or become idle.
                        let rests = self.has_served && self.since.elapsed() < self.idle();
                        return Poll::Ready(Err(if rests { Next::Rest } else { Next::Over }));
                    }
                    self.refuse(Violation::TooSlow);
                }
            }
        }
    }

    /// The deadline for the next byte of a head.
    fn head_deadline(&self) -> Instant {
        let limits = &self.state.rules.limits;
        self.since
            + if !self.reading.is_untouched() {
                limits.head
            } else if self.has_served {
                self.idle().min(limits.rest)
            } else {
                limits.first_byte
            }
    }

    /// Waits for the next part of the body.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        loop {
            if self.reading.refused().is_some() || self.state.http1.broken().is_some() {
                return Poll::Ready(Some(Err(BodyAborted)));
            }
            match self.reading.body(self.inbox.bytes()) {
                Ok(BodyPart::Data(data)) => {
                    self.state.http1.set_payload(self.reading.payload().bytes());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Ok(BodyPart::Trailers(trailers)) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Ok(BodyPart::End) => return Poll::Ready(None),
                Ok(BodyPart::More) => {}
                Err(violation) => {
                    self.refuse(violation);
                    continue;
                }
            }
            if self.owes_continue {
                self.set_owes_continue(false);
                let say = b"HTTP/1.1 100 Continue\r\n\r\n";
                self.interim.front().extend_from_slice(say);
            }
            self.send_interim(cx);
            match self.poll_fill(cx) {
                Poll::Ready(Ok(0) | Err(_)) => self.state.http1.set_broken(Broken::Left),
                Poll::Ready(Ok(_)) => {}
                // The task that waits for the response has the timeout.
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The body is no longer read.
    fn stop_reading(&mut self) {
        self.has_reader = false;
        self.state.driver.wake();
    }

    fn refuse(&mut self, violation: Violation) {
        self.state.edge.meters.requests_refused.up();
        self.reading.refuse(violation);
        if self.state.http1.turn() != Http1Turn::Client {
            self.state.http1.set_broken(Broken::Refused(violation));
        } else if self.refused_head.is_empty() {
            self.refused_head = self.inbox.take_all();
        }
        self.inbox.free();
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.inbox.poll_fill(&mut self.wire, cx)
    }

    /// Writes interim responses as far as the client reads them. Errors appear again when the response is written.
    fn send_interim(&mut self, cx: &mut Context<'_>) {
        if !self.interim.is_empty() {
            drop(write::poll_empty(
                &mut self.interim,
                &mut self.wire,
                cx,
                &mut 0,
            ));
        }
    }

    fn poll_out(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&mut Wire, &mut Context<'_>, &mut u64) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let before = self.handed_out;
        let wrote = match write::poll_empty(&mut self.interim, &mut self.wire, cx, &mut 0) {
            Poll::Ready(Ok(())) => write(&mut self.wire, cx, &mut self.handed_out),
            other => other,
        };
        if self.handed_out != before {
            self.state.counters.set_handed_out(self.handed_out);
        }
        if wrote.is_pending() {
            let (_, taken) = self.state.counters.bytes();
            let now = Instant::now().into_std();
            let waits = self.reader.waits(taken, self.write_limit, now);
            if waits.map_or(true, |deadline| self.alarm.is_due(cx, deadline.into())) {
                self.state.too_slow();
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        wrote
    }
}

// Raw bytes: for the last response, and for upgraded connections.
culvert_io::delegate_io!(AsyncRead, AsyncWrite for Http1Server { Self(conn) => &mut lock(conn).wire });

/// An upgraded connection.
impl RelayEnd for Http1Server {}

impl Drop for Conn {
    fn drop(&mut self) {
        self.state.http1.set_turn(Http1Turn::Over);
        self.state.cut();
    }
}

impl Http1Body {
    /// The next part.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let mut conn = lock(&self.conn);
        conn.is_body_begun = true;
        let frame = ready!(conn.poll_body(cx));
        self.hint = conn.reading.payload().size_hint();
        if conn.reading.payload().is_spent() || frame.as_ref().is_none_or(Result::is_err) {
            self.is_ended = true;
            // It has sent the body without waiting.
            conn.set_owes_continue(false);
            conn.stop_reading();
        }
        Poll::Ready(frame)
    }

    /// Whether some of it has arrived: its client does not wait for 100 (Continue).
    pub(crate) fn has_arrived(&self) -> bool {
        !lock(&self.conn).inbox.is_empty()
    }

    /// Whether the body is complete.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Bytes that are missing.
    pub(crate) fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

impl Drop for Http1Body {
    fn drop(&mut self) {
        if !self.is_ended {
            lock(&self.conn).stop_reading();
        }
    }
}
