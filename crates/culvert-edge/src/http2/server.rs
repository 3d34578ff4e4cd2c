//! An HTTP/2 connection to a client: a socket, and the [`Session`] that decides which frames are sent.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use culvert_base::sync::lock;
use culvert_http::http1::Violation;
use culvert_http::http2::{
    ConnectionError, GOAWAY_ACK_WITHIN, IncomingRequest, Reason, Schemes, Session, Step,
};
use culvert_http::refused_head::RefusedHead;
use culvert_io::{write, yield_turn};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use crate::connection::conn_state::ConnState;
use crate::connection::socket::Wire;
use crate::http2::stream::{Receiver, Sender};

/// Size of a read, unless the next frame needs more.
const READ_BYTES: usize = 8 << 10;
/// How long frames without a request are read before other connections have their turn.
const TURN: Duration = Duration::from_millis(1);
/// With more unsent bytes than this nothing is read, because frames may require replies.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// A client's connection.
#[derive(Clone, Debug)]
pub(crate) struct Http2Server(Arc<Mutex<Conn>>);

/// A request that arrives.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// One to be served.
    Request(IncomingRequest),
    /// One whose head is refused. Its stream is reset.
    Refused(Violation, Box<RefusedHead>),
}

/// Why no more requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The client has closed the connection.
    Left,
    /// The connection was shut down.
    Done,
    /// The connection must be closed with this error.
    Ended(ConnectionError),
}

#[derive(Debug)]
pub(super) struct Conn {
    wire: Wire,
    pub(super) state: Arc<ConnState>,
    pub(super) session: Session,
    inbox: BytesMut,
    begun: Instant,
    goaway_sent_at: Option<Instant>,
    handed_out: u64,
}

impl Http2Server {
    /// A connection whose first bytes, `ahead`, have been read.
    pub(crate) fn new(wire: Wire, ahead: BytesMut, state: Arc<ConnState>) -> Self {
        let now = Instant::now();
        let schemes = match state.info.tls.get() {
            Some(_) => Schemes::Https,
            None if state.info.is_trusted => Schemes::HttpOrHttps,
            None => Schemes::Http,
        };
        let streams_max = state.rules.limits.http2_streams;
        Self(Arc::new(Mutex::new(Conn {
            wire,
            session: Session::new(streams_max, schemes, now.into_std()),
            state,
            inbox: ahead,
            begun: now,
            goaway_sent_at: None,
            handed_out: 0,
        })))
    }

    /// Waits for the next request.
    pub(crate) fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Over>> {
        let mut conn = lock(&self.0);
        let conn = &mut *conn;
        let began = Instant::now();
        let mut now = began;
        loop {
            match conn.session.step(&mut conn.inbox, now.into_std()) {
                Ok(Step::Request(incoming)) => {
                    return Poll::Ready(Ok(Incoming::Request(incoming)));
                }
                Ok(Step::Refused(violation, head)) => {
                    return Poll::Ready(Ok(Incoming::Refused(violation, head)));
                }
                Ok(Step::Done) => {}
                Ok(Step::More) => {
                    match ready!(conn.poll_fill(cx)) {
                        Ok(0) | Err(_) => return Poll::Ready(Err(Over::Left)),
                        Ok(_) => {}
                    }
                    // A client chooses how much work its bytes are.
                    now = Instant::now();
                    if now - began >= TURN {
                        return yield_turn(cx);
                    }
                }
                Err(end) => return Poll::Ready(Err(Over::Ended(end))),
            }
            if conn.session.is_done() {
                return Poll::Ready(Err(Over::Done));
            }
            if conn.is_full() {
                // The driver writes first and then calls again.
                return Poll::Pending;
            }
        }
    }

    /// The reader and the writer of a stream. There is no reader if the request has no body.
    pub(crate) fn stream(&self, incoming: &IncomingRequest) -> (Option<Receiver>, Sender) {
        let conn = &self.0;
        let receiver = (!incoming.is_ended).then(|| Receiver::new(conn, incoming));
        (receiver, Sender::new(conn, incoming.stream))
    }

    /// Reads the fields of later heads into maps.
    pub(crate) fn read_maps(&self) {
        lock(&self.0).session.read_maps();
    }

    /// Writes what the machine has to send. Ready when all of it is written and flushed.
    pub(crate) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut conn = lock(&self.0);
        let conn = &mut *conn;
        let before = conn.handed_out;
        let out = conn.session.outbox();
        let sent = write::poll_empty(out, &mut conn.wire, cx, &mut conn.handed_out);
        if sent.is_ready() {
            conn.session.free_buffers();
        }
        if conn.handed_out != before {
            conn.state.counters.set_handed_out(conn.handed_out);
        }
        sent
    }

    /// Whether so much is unsent that nothing is read.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.0).is_full()
    }

    /// Wakes the next task that waits for space. False if there is none.
    pub(crate) fn wake_next(&self) -> bool {
        lock(&self.0).session.wake_next()
    }

    /// Whether bytes wait for the socket.
    pub(crate) fn is_waiting(&self) -> bool {
        lock(&self.0).session.is_waiting()
    }

    /// The deadline for the client's SETTINGS, or for the rest of a field section.
    pub(crate) fn head_deadline(&self) -> Option<Instant> {
        let conn = lock(&self.0);
        let limits = &conn.state.rules.limits;
        if !conn.session.has_peer_settings() {
            return Some(conn.begun + limits.first_byte);
        }
        conn.session
            .section_since()
            .map(|since| Instant::from_std(since) + limits.head)
    }

    /// When closing streams are to be [reset](Self::reset_closing).
    pub(crate) fn closing_deadline(&self) -> Option<Instant> {
        lock(&self.0)
            .session
            .closing_deadline()
            .map(Instant::from_std)
    }

    /// Resets the closing streams whose time is over.
    pub(crate) fn reset_closing(&self) {
        lock(&self.0)
            .session
            .reset_closing(Instant::now().into_std());
    }

    /// Starts a graceful shutdown.
    pub(crate) fn send_graceful_goaway(&self) {
        let mut conn = lock(&self.0);
        if conn.goaway_sent_at.is_none() {
            conn.goaway_sent_at = Some(Instant::now());
            conn.session.send_graceful_goaway();
        }
    }

    /// When the graceful shutdown ends without an acknowledgement.
    pub(crate) fn goaway_ack_deadline(&self) -> Option<Instant> {
        lock(&self.0)
            .goaway_sent_at
            .map(|goaway_sent_at| goaway_sent_at + GOAWAY_ACK_WITHIN)
    }

    /// Ends the graceful period.
    pub(crate) fn send_final_goaway(&self) {
        lock(&self.0).session.send_final_goaway();
    }

    /// Whether a connection that shuts down has no work left.
    pub(crate) fn is_done(&self) -> bool {
        lock(&self.0).session.is_done()
    }

    /// Sends the reason for which the connection closes.
    pub(crate) fn close_connection(&self, reason: Reason) {
        lock(&self.0).session.close_connection(reason);
    }
}

impl Conn {
    /// Wakes the driver to write: a stream may be read in another task.
    pub(super) fn wake_driver(&self) {
        if self.session.unsent() > 0 {
            self.state.driver.wake();
        }
    }

    fn is_full(&self) -> bool {
        self.session.unsent() > UNSENT_BYTES_MAX
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let wanted = Session::missing(&self.inbox).max(READ_BYTES);
        if self.inbox.capacity() - self.inbox.len() < wanted {
            self.inbox.reserve(wanted);
        }
        let read = pin!(self.wire.read_buf(&mut self.inbox)).poll(cx);
        if read.is_pending() && self.inbox.is_empty() {
            // An idle connection keeps no buffer.
            self.inbox = BytesMut::new();
        }
        read
    }
}

// Raw bytes, to close the connection.
culvert_io::delegate_io!(AsyncRead, AsyncWrite for Http2Server { Self(conn) => &mut lock(conn).wire });
