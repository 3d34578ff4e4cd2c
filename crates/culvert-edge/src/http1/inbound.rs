//! An HTTP/1 connection to a client: its requests, one after another, and the way for answers.
//!
//! It promises: no byte of a head is believed before the whole head was found good; no byte behind a
//! message is looked at before that message was answered, so an upgrade's early bytes never move before
//! the 101; a refused message is the last that is read. It keeps the deadlines of reading and writing.
//!
//! A request's body ([`InboundBody`]) reads from the same connection, perhaps from another task, and is
//! the only one who reads until it ends or is dropped.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::sync::lock;
use culvert_http::http1::{Part, RequestReader, Violation, WriteBuffer, head};
use culvert_http::slow_reader::SlowReader;
use http::header::EXPECT;
use http::{Version, request, response};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::downstream::Downstream;
use crate::http1::inbox::Inbox;
use crate::http1::write;
use crate::http1_state::{Broken, Turn};
use crate::socket::Wire;

/// Bytes asked for at once, at first.
const READ_BYTES_MIN: usize = 4 << 10;
/// How much is read ahead of the answer to the request before.
const AHEAD_BYTES_MAX: usize = 16 << 10;
/// How much of a body that nobody wanted is read so that the connection can stay.
const UNWANTED_BYTES_MAX: usize = 64 << 10;

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Inbound(Arc<Mutex<Conn>>);

/// What comes of waiting for a request.
#[derive(Debug)]
pub(crate) enum Next {
    /// Its head, and its body if it has one.
    Request(Box<request::Parts>, Option<InboundBody>),
    /// Nothing for now: the connection only rests.
    Rest,
    /// Nothing more: the client left, was silent too long, or is refused.
    Over,
}

/// The body of a request.
#[derive(Debug)]
pub(crate) struct InboundBody {
    conn: Arc<Mutex<Conn>>,
    hint: SizeHint,
    is_ended: bool,
}

/// Why a body has no more: the connection knows ([`Downstream::broken`]).
#[derive(Debug, thiserror::Error)]
#[error("the client aborted the request")]
pub(crate) struct BrokeOff;

#[derive(Debug)]
struct Conn {
    wire: Wire,
    down: Arc<Downstream>,
    reading: RequestReader,
    inbox: Inbox,
    /// Whether somebody has the body, and reads.
    has_reader: bool,
    /// Whether the client waits for a word before it sends the body (RFC 9110 10.1.1).
    owes_continue: bool,
    /// Answers before the answer.
    interim: WriteBuffer,
    alarm: Alarm,
    /// When the present state began: waiting for a request, or the first byte of a head.
    since: Instant,
    has_served: bool,
    reader: SlowReader,
    /// The longest that the client may take nothing of the present answer.
    write_limit: Duration,
    handed_out: u64,
    /// Since when the client is too far ahead to be seen to leave, and what had moved by then.
    ahead: Option<(Instant, u64)>,
}

impl Inbound {
    /// What one takes while it is idle, in bytes.
    #[cfg(test)]
    pub(crate) const SIZE: usize = size_of::<Conn>();

    pub(crate) fn new(wire: Wire, down: Arc<Downstream>) -> Self {
        Self(Arc::new(Mutex::new(Conn {
            wire,
            write_limit: down.rules.limits.write_stall,
            down,
            reading: RequestReader::default(),
            inbox: Inbox::new(READ_BYTES_MIN),
            has_reader: false,
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

    /// The next request.
    pub(crate) fn poll_request(&self, cx: &mut Context<'_>) -> Poll<Next> {
        let mut conn = lock(&self.0);
        let parts = match ready!(conn.poll_head(cx)) {
            Ok(parts) => parts,
            Err(next) => return Poll::Ready(next),
        };
        let body = (!conn.reading.is_ended()).then(|| {
            conn.has_reader = true;
            conn.owes_continue =
                parts.version == Version::HTTP_11 && parts.headers.contains_key(EXPECT);
            InboundBody {
                hint: conn.reading.payload().size_hint(),
                conn: Arc::clone(&self.0),
                is_ended: false,
            }
        });
        Poll::Ready(Next::Request(parts, body))
    }

    /// Holds the client to a limit of the endpoint that answers, or to that of the settings.
    pub(crate) fn allow(&self, write_limit: Option<Duration>) {
        let mut conn = lock(&self.0);
        conn.write_limit = write_limit.unwrap_or(conn.down.rules.limits.write_stall);
    }

    /// Whether nothing of a request has come, on a connection that has served.
    pub(crate) fn is_idle(&self) -> bool {
        let conn = lock(&self.0);
        conn.has_served && conn.reading.is_untouched() && conn.inbox.is_empty()
    }

    /// Waits for the client to leave while its request is being answered. What it sends ahead is kept, up
    /// to a limit: behind that it could not be seen to leave, and counts as gone if the answer does not
    /// move either.
    pub(crate) fn poll_left(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut conn = lock(&self.0);
        if conn.has_reader || !conn.reading.is_ended() {
            return Poll::Pending;
        }
        while conn.inbox.len() < AHEAD_BYTES_MAX {
            match ready!(conn.poll_fill(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
        let (_, moved) = conn.down.counters.bytes();
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

    /// Sends an answer before the answer (RFC 9110 15.2), unless the client takes nothing.
    pub(crate) fn inform(&self, cx: &mut Context<'_>, head: &response::Parts) {
        let mut conn = lock(&self.0);
        if conn.interim.has_room() {
            head::write_response(conn.interim.front(), Version::HTTP_11, head);
            conn.send_interim(cx);
        }
    }

    /// Writes until `out` has room.
    pub(crate) fn poll_room(
        &self,
        cx: &mut Context<'_>,
        out: &mut WriteBuffer,
    ) -> Poll<io::Result<()>> {
        if out.has_room() {
            return Poll::Ready(Ok(()));
        }
        lock(&self.0).poll_out(cx, |wire, cx, written| {
            write::poll_room(out, wire, cx, written)
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
        if wrote.is_ready() && conn.reader.is_waiting() {
            let (_, taken) = conn.down.counters.bytes();
            let write_limit = conn.write_limit;
            let now = Instant::now().into_std();
            conn.reader.caught_up(taken, write_limit, now);
        }
        wrote
    }

    /// The answer has left.
    pub(crate) fn answered(&self) {
        let mut conn = lock(&self.0);
        conn.down.flushed();
        conn.has_served = true;
        conn.since = Instant::now();
        conn.ahead = None;
        conn.down.http1.set_turn(Turn::Client);
        conn.down.idles();
    }

    /// Goes past what is left of an answered request, whose body's reader may still want it. False when
    /// another request cannot follow.
    pub(crate) fn poll_past(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut conn = lock(&self.0);
        if conn.has_reader {
            let until = conn.since + conn.down.rules.limits.body_stall;
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
                Poll::Ready(Some(Err(_))) | Poll::Pending => return Poll::Ready(false),
            }
        }
        conn.reading.next_message();
        Poll::Ready(true)
    }

    /// Waits for the next request without a buffer. False when none comes: the client left, or the
    /// idle time is over.
    pub(crate) fn poll_wake(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut conn = lock(&self.0);
        conn.inbox.rest();
        // On the stack, and only while polled.
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

    /// Why the message being read is refused, if it is.
    pub(crate) fn refused(&self) -> Option<Violation> {
        lock(&self.0).reading.refused()
    }

    /// Whether the last request was read to its end, with nothing behind it.
    pub(crate) fn is_drained(&self) -> bool {
        let conn = lock(&self.0);
        conn.inbox.is_empty() && (conn.reading.is_ended() || conn.reading.is_untouched())
    }

    /// Has the connection end without a farewell.
    pub(crate) fn reset(&self) {
        lock(&self.0).wire.reset();
    }

    /// What the client sent ahead.
    pub(crate) fn take_early(&self) -> Bytes {
        lock(&self.0).inbox.take_all()
    }
}

impl Conn {
    /// How long the connection may be idle.
    fn idle(&self) -> Duration {
        self.down.rules.limits.idle
    }

    /// The head of the next request, or what there is instead.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<request::Parts>, Next>> {
        loop {
            if self.reading.refused().is_some() {
                return Poll::Ready(Err(Next::Over));
            }
            if self.reading.has_unread(&self.inbox) {
                if self.reading.is_untouched() {
                    self.since = Instant::now();
                    self.down.works();
                }
                match self.reading.head(self.inbox.bytes()) {
                    Ok(Some(parts)) => {
                        self.down.http1.set_turn(Turn::Edge);
                        self.down.http1.set_payload(0);
                        return Poll::Ready(Ok(parts));
                    }
                    Ok(None) => {}
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
                        // Nobody is asking anything: the end, without a word, or a rest.
                        let rests = self.has_served && self.since.elapsed() < self.idle();
                        return Poll::Ready(Err(if rests { Next::Rest } else { Next::Over }));
                    }
                    self.refuse(Violation::TooSlow);
                }
            }
        }
    }

    /// The moment until which the next byte of a head must come.
    fn head_deadline(&self) -> Instant {
        let limits = &self.down.rules.limits;
        self.since
            + if !self.reading.is_untouched() {
                limits.head
            } else if self.has_served {
                self.idle().min(limits.rest)
            } else {
                limits.first_byte
            }
    }

    /// The next part of the body.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        loop {
            if self.reading.refused().is_some() || self.down.http1.broken().is_some() {
                return Poll::Ready(Some(Err(BrokeOff)));
            }
            match self.reading.body(self.inbox.bytes()) {
                Ok(Part::Data(data)) => {
                    self.down.http1.set_payload(self.reading.payload().bytes());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Ok(Part::Trailers(trailers)) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Ok(Part::End) => return Poll::Ready(None),
                Ok(Part::More) => {}
                Err(violation) => {
                    self.refuse(violation);
                    continue;
                }
            }
            if std::mem::take(&mut self.owes_continue) {
                let say = b"HTTP/1.1 100 Continue\r\n\r\n";
                self.interim.front().extend_from_slice(say);
            }
            self.send_interim(cx);
            match self.poll_fill(cx) {
                Poll::Ready(Ok(0) | Err(_)) => self.down.http1.broke(Broken::Left),
                Poll::Ready(Ok(_)) => {}
                // Whoever waits for the answer knows how long the client may be waited for.
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Nobody reads the body any more.
    fn let_go(&mut self) {
        self.has_reader = false;
        self.down.driver.wake();
    }

    fn refuse(&mut self, violation: Violation) {
        self.down.edge.meters.requests_refused.up();
        self.reading.refuse(violation);
        if self.down.http1.turn() != Turn::Client {
            self.down.http1.broke(Broken::Refused(violation));
        }
        self.inbox.rest();
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.inbox.poll_fill(&mut self.wire, cx)
    }

    /// Writes what goes before the answer, as far as the client takes it. What goes wrong shows again
    /// when the answer is written.
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
            self.down.counters.set_handed_out(self.handed_out);
        }
        if wrote.is_pending() {
            let (_, taken) = self.down.counters.bytes();
            let now = Instant::now().into_std();
            let waits = self.reader.waits(taken, self.write_limit, now);
            if waits.map_or(true, |deadline| self.alarm.is_due(cx, deadline.into())) {
                self.down.too_slow();
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        wrote
    }
}

/// Without its protocol: to say why it ends, and for what it was upgraded to.
impl AsyncRead for Inbound {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).wire).poll_read(cx, buf)
    }
}

impl AsyncWrite for Inbound {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut lock(&self.0).wire).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).wire).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).wire).poll_shutdown(cx)
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.down.http1.set_turn(Turn::Over);
        self.down.cut();
    }
}

impl InboundBody {
    /// The next part.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let mut conn = lock(&self.conn);
        let frame = ready!(conn.poll_body(cx));
        self.hint = conn.reading.payload().size_hint();
        if conn.reading.payload().is_spent() || frame.as_ref().is_none_or(Result::is_err) {
            self.is_ended = true;
            conn.let_go();
        }
        Poll::Ready(frame)
    }

    /// Whether nothing more is to come.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Bytes that are to come.
    pub(crate) fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

impl Drop for InboundBody {
    fn drop(&mut self) {
        if !self.is_ended {
            lock(&self.conn).let_go();
        }
    }
}
