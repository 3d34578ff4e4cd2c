//! Drives one HTTP/1 connection, from its first request to its close. A connection in the clear may turn out to be one of
//! HTTP/2.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use culvert_http::fields::has_token;
use culvert_http::http1::head::write_response;
use culvert_http::http1::{BodyWriter, RequestHead, Violation, WriteBuffer, refused};
use culvert_io::{Pipe, RelayClient, yield_turn};
use culvert_policy::problem::Problem;
use http::header::{CONNECTION, HeaderValue, TE};
use http::{Method, Version, response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::connection::conn_state::{ConnState, HeldBytes};
use crate::connection::downstream::Downstream;
use crate::connection::socket::Wire;
use crate::edge::edge_state::Phase;
use crate::http::plain::ClientResponse;
use crate::http::request_body::Upload;
use crate::http::response::Abandoned;
use crate::http::response_body::ResponseBody;
use crate::http::routing::RefusedRecord;
use crate::http::started_request::StartedRequest;
use crate::http::streams;
use crate::http::upgrade::Tunnel;
use crate::http1::server::{Http1Body, Http1Server, Next};
use crate::tcp;

/// How much of an unread request is read, and for how long, so that the response is not lost.
const DISCARDED_BYTES_MAX: usize = 64 << 10;
pub(super) const CLOSES_WITHIN: Duration = Duration::from_secs(2);
/// Fewest bytes of a body that the kernel moves: for less, a pipe is not worth its calls.
const MOVED_BYTES_MIN: u64 = 128 << 10;
/// Most bytes to move before other tasks get their turn.
const TURN_BYTES_MAX: u64 = 2 << 20;

/// Serves HTTP/1 until the connection ends, or HTTP/2 if it is not encrypted and its client begins with that (RFC 9113 3.3).
///
/// An idle connection has no buffers: it consists of its socket, its state and this task.
pub(crate) async fn http1(wire: Wire, down: Arc<Downstream>) {
    let mut client = Http1Server::new(wire, Arc::clone(&down.conn));
    loop {
        match Box::pin(session(&client, &down)).await {
            After::Next if doze(&client, &down).await => {}
            After::Next | After::Close => return Box::pin(finish(&mut client, &down)).await,
            After::Tunnel(tunnel) => {
                let early = client.take_early();
                return Box::pin(tcp::tunnel(client, early, *tunnel, &down)).await;
            }
            After::Http2 => {
                let (wire, ahead) = client.into_wire();
                return Box::pin(streams::http2(wire, ahead, down)).await;
            }
            After::Cut => {
                if down.conn.is_hung_up() {
                    client.reset();
                }
                return;
            }
        }
    }
}

/// What follows an exchange, or a series of them.
enum After {
    /// The next request.
    Next,
    /// The end of the connection.
    Close,
    /// Another protocol than HTTP.
    Tunnel(Box<Tunnel>),
    /// HTTP/2.
    Http2,
    /// Nothing: the edge cuts the connection.
    Cut,
}

/// Serves requests until the connection ends, changes its protocol, or is idle.
async fn session(client: &Http1Server, down: &Arc<Downstream>) -> After {
    let mut out = WriteBuffer::default();
    loop {
        let next = poll_fn(|cx| {
            // Requests that have arrived are served before the connection closes.
            if let Poll::Ready(next) = client.poll_request(cx) {
                return Poll::Ready(Some(next));
            }
            down.conn.driver.register(cx.waker());
            match down.edge.state.phase() {
                _ if down.conn.is_cut() => Poll::Ready(None),
                Phase::Draining if client.is_idle() => Poll::Ready(Some(Next::Over)),
                _ if down.conn.is_shed() && client.is_idle() => Poll::Ready(Some(Next::Over)),
                _ => Poll::Pending,
            }
        });
        let (head, body) = match next.await {
            Some(Next::Request(head, body)) => (head, body),
            Some(Next::Http2) => return After::Http2,
            Some(Next::Rest) => return After::Next,
            Some(Next::Over) => return After::Close,
            None => return After::Cut,
        };
        match answer(client, down, &mut out, head, body).await {
            After::Next => {}
            after => return after,
        }
    }
}

/// Serves one request.
async fn answer(
    client: &Http1Server,
    down: &Arc<Downstream>,
    out: &mut WriteBuffer,
    head: RequestHead,
    body: Option<Http1Body>,
) -> After {
    let is_head = *head.method() == Method::HEAD;
    let (mut version, mut with_trailers) = (Version::HTTP_11, false);
    let begun = match begin(client, down, head) {
        Ok(begun) => begun,
        Err((violation, head)) => {
            client.refuse(violation, head);
            return After::Close;
        }
    };
    if let Some(head) = begun.parts() {
        version = head.version;
        // RFC 9110 6.5.1: other clients may drop trailers, so they get none.
        with_trailers = has_token(&head.headers, &TE, b"trailers");
    }
    let body = body.map_or(Upload::None, |body| Upload::Http1(Box::new(body)));
    let mut exchange = pin!(begun.serve(down, body));
    let answered = poll_fn(|cx| {
        let answered = exchange.as_mut().poll(cx);
        for interim in down.conn.take_interim() {
            // RFC 9110 15.2: HTTP/1.0 has no interim responses.
            if version == Version::HTTP_11 {
                client.inform(cx, &interim);
            }
        }
        if answered.is_ready() {
            return answered.map(Some);
        }
        down.conn.driver.register(cx.waker());
        if client.poll_left(cx).is_ready() || down.conn.is_cut() {
            return Poll::Ready(None);
        }
        Poll::Pending
    });
    let ClientResponse { head, mut body } = match answered.await {
        Some(Ok(answer)) => answer,
        // The client has gone, or gets no response.
        Some(Err(Abandoned)) => return After::Close,
        None if down.conn.is_cut() => return After::Cut,
        None => return After::Close,
    };
    let tunnel = body.take_tunnel();
    client.allow(body.write_limit());
    let closes = head.closes();
    let before = out.len();
    let with_trailers = with_trailers && version == Version::HTTP_11;
    let mut sending = head.write(out.front(), version, is_head, with_trailers);
    if let Some(exchange) = body.exchange() {
        exchange.recording.head(out.len() - before);
    }
    drop(head);
    let (mut body, mut splice) = (Some(body), Splice::new(&down.conn));
    let sent = poll_fn(|cx| {
        match poll_send(cx, client, out, &mut sending, &mut body, &mut splice) {
            Poll::Ready(Ok(())) => return Poll::Ready(After::Next),
            Poll::Ready(Err(Unsent)) => return Poll::Ready(After::Close),
            Poll::Pending => down.conn.driver.register(cx.waker()),
        }
        if down.conn.is_cut() {
            Poll::Ready(After::Cut)
        } else if client.poll_left(cx).is_ready() {
            Poll::Ready(After::Close)
        } else {
            Poll::Pending
        }
    });
    match (sent.await, tunnel) {
        (After::Next, Some(tunnel)) => return After::Tunnel(tunnel),
        (After::Next, None) => client.answered(),
        (after, _) => return after,
    }
    let goes_on = poll_fn(|cx| {
        if let Poll::Ready(goes_on) = client.poll_past(cx) {
            return Poll::Ready(goes_on);
        }
        down.conn.driver.register(cx.waker());
        match client.poll_past(cx) {
            Poll::Pending if down.conn.is_cut() => Poll::Ready(false),
            // The reader of the body may have stopped before this task was registered.
            goes_on => goes_on,
        }
    });
    if !closes && goes_on.await {
        After::Next
    } else {
        After::Close
    }
}

/// Begins to serve a request. If its head is refused, returns the bytes of it.
fn begin(
    client: &Http1Server,
    down: &Arc<Downstream>,
    head: RequestHead,
) -> Result<StartedRequest, (Violation, Bytes)> {
    let head = match head {
        RequestHead::Raw(raw) => {
            match StartedRequest::plain(down, raw, Version::HTTP_11, || client.read_maps()) {
                Ok(begun) => return Ok(begun),
                Err(raw) => RequestHead::Raw(raw),
            }
        }
        head => head,
    };
    match head {
        RequestHead::Raw(raw) => match raw.parts() {
            Ok(parts) => Ok(StartedRequest::General(parts)),
            Err(what) => Err((Violation::Malformed(what), raw.bytes().clone())),
        },
        RequestHead::Parts(parts) => Ok(StartedRequest::General(parts)),
    }
}

/// A response was not sent completely.
#[derive(Debug)]
struct Unsent;

/// The pipe through which the kernel moves the body of a response.
#[derive(Debug)]
struct Splice<'a> {
    conn: &'a Arc<ConnState>,
    pipe: Option<Pipe>,
    /// Counts the bytes that moved from the pipe to memory because the client stopped reading.
    held: Option<HeldBytes>,
}

impl<'a> Splice<'a> {
    fn new(conn: &'a Arc<ConnState>) -> Self {
        Self {
            conn,
            pipe: None,
            held: None,
        }
    }

    /// The client has read nothing for a while: keeps the bytes of the pipe in memory, and gives the pipe back.
    fn drain(&mut self, out: &mut WriteBuffer) -> io::Result<()> {
        if let Some(pipe) = self.pipe.take() {
            let bytes = pipe.drain()?;
            self.held = Some(self.conn.hold(bytes.len()));
            out.push(bytes, b"");
        }
        Ok(())
    }
}

/// Sends a response to the client. Its body is dropped when all of it is buffered. This ends the exchange before
/// the last byte has left.
fn poll_send(
    cx: &mut Context<'_>,
    client: &Http1Server,
    out: &mut WriteBuffer,
    sending: &mut BodyWriter,
    body: &mut Option<ResponseBody>,
    splice: &mut Splice<'_>,
) -> Poll<Result<(), Unsent>> {
    while let Some(source) = body {
        ready!(poll_move(cx, client, out, sending, source, splice))?;
        if source.is_end_stream() {
            *body = None;
            sending.end(None, out).map_err(|_| Unsent)?;
            break;
        }
        ready!(client.poll_capacity(cx, out)).map_err(|_| Unsent)?;
        match Pin::new(source).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => sending.data(data, out).map_err(|_| Unsent)?,
                Err(frame) => {
                    let trailers = frame.into_trailers().ok();
                    sending.end(trailers.as_ref(), out).map_err(|_| Unsent)?;
                }
            },
            Poll::Ready(None) => {
                *body = None;
                sending.end(None, out).map_err(|_| Unsent)?;
            }
            Poll::Ready(Some(Err(_))) => {
                // The data before the error is sent first, as far as the client reads it.
                drop(client.poll_write(cx, out));
                return Poll::Ready(Err(Unsent));
            }
            Poll::Pending => {
                ready!(client.poll_write(cx, out)).map_err(|_| Unsent)?;
                return Poll::Pending;
            }
        }
    }
    client.poll_write(cx, out).map_err(|_| Unsent)
}

/// Lets the kernel move what has arrived of a long body to the client. Afterwards the pipe is empty, or the client is
/// awaited.
fn poll_move(
    cx: &mut Context<'_>,
    client: &Http1Server,
    out: &mut WriteBuffer,
    sending: &mut BodyWriter,
    source: &mut ResponseBody,
    splice: &mut Splice<'_>,
) -> Poll<Result<(), Unsent>> {
    if splice.pipe.is_none() {
        let has_length = matches!(sending, BodyWriter::Length(_));
        if !has_length || source.movable() < MOVED_BYTES_MIN || !client.is_socket() {
            return Poll::Ready(Ok(()));
        }
        // The head, and what was read with it.
        ready!(client.poll_write(cx, out)).map_err(|_| Unsent)?;
        splice.held = None;
        splice.pipe = Pipe::take(splice.conn.source());
    }
    let mut moved = 0;
    while let Some(open) = &mut splice.pipe {
        if let Poll::Ready(emptied) = client.poll_empty(cx, open) {
            emptied.map_err(|_| Unsent)?;
        } else if open.is_stalled(cx) {
            splice.drain(out).map_err(|_| Unsent)?;
            break;
        } else {
            return Poll::Pending;
        }
        if moved >= TURN_BYTES_MAX {
            return yield_turn(cx);
        }
        let bytes = match source.movable() {
            0 => 0,
            _ => source.poll_move(cx, open),
        };
        if bytes > 0 {
            moved += bytes as u64;
            sending.passed(bytes as u64).map_err(|_| Unsent)?;
        } else if let Some(open) = splice.pipe.take() {
            open.give_back();
            client.caught_up();
        }
    }
    Poll::Ready(Ok(()))
}

/// Waits without buffers until the next request begins. False if there is none.
async fn doze(client: &Http1Server, down: &Downstream) -> bool {
    poll_fn(|cx| {
        down.conn.driver.register(cx.waker());
        match client.poll_wake(cx) {
            Poll::Pending if down.edge.state.phase() >= Phase::Draining => Poll::Ready(false),
            Poll::Pending if down.conn.is_shed() => Poll::Ready(false),
            other => other,
        }
    })
    .await
}

/// Sends the reason if the last message was rejected, and closes in a way that the last response arrives.
async fn finish(client: &mut Http1Server, down: &Arc<Downstream>) {
    // If a body was rejected, its exchange has sent the response.
    let refusal = client
        .refused()
        .filter(|_| down.conn.http1.broken().is_none());
    let is_drained = client.is_drained();
    let refusal = refusal.map(|violation| {
        let (head, body) = last_answer(Problem::Violation(violation), down);
        let refused = refused::read(&client.take_refused_head());
        let mut record = RefusedRecord::begin(down, violation, refused, Some(head.status));
        record.answer(&head, &body);
        let mut bytes = Vec::new();
        write_response(&mut bytes, Version::HTTP_11, &head);
        bytes.extend_from_slice(&body);
        (bytes, record)
    });
    let close = async {
        if let Some((bytes, mut record)) = refusal {
            client.write_all(&bytes).await?;
            client.flush().await?;
            record.sent();
        }
        client.shutdown().await?;
        if is_drained {
            return Ok(());
        }
        discard_input(client).await
    };
    // Errors do not matter: the connection ends in any case.
    drop(tokio::time::timeout(CLOSES_WITHIN, close).await);
}

/// Reads and discards some input. Closing with unread input could lose the last response.
pub(super) async fn discard_input(client: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut room = [0; 4096];
    let mut read = 0;
    while read < DISCARDED_BYTES_MAX {
        match client.read(&mut room).await? {
            0 => break,
            bytes => read += bytes,
        }
    }
    Ok(())
}

/// The response to a problem, for a connection that closes after it.
fn last_answer(problem: Problem, down: &Downstream) -> (response::Parts, Bytes) {
    let to = down.conn.reply_context(None, "");
    let (mut head, body) = problem.answer(&to).into_parts();
    let close = HeaderValue::from_static("close");
    head.headers.insert(CONNECTION, close);
    (head, body)
}
