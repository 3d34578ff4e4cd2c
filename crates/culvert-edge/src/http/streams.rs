//! Drives one HTTP/2 connection and the exchanges of its streams, from the preface to the close.
//!
//! One task does all of it: it reads frames, polls the exchanges that they concern, and sends their output
//! together.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use culvert_events::Reason as EndReason;
use culvert_http::http2::{ConnectionError, Flood, IncomingHead, Protocol, Reason, StreamClosed};
use culvert_http::slow_reader::SlowReader;
use culvert_io::{Alarm, RelayClient};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::uri::Scheme;
use http::{HeaderMap, Version};
use http_body::Body;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::connection::downstream::Downstream;
use crate::connection::socket::Wire;
use crate::edge::edge_state::Phase;
use crate::http::plain::{ClientHead, ClientResponse};
use crate::http::request_body::Upload;
use crate::http::response_body::ResponseBody;
use crate::http::routing::RefusedRecord;
use crate::http::server::{CLOSES_WITHIN, discard_input};
use crate::http::started_request::StartedRequest;
use crate::http2::server::{Http2Server, Incoming, Over};
use crate::http2::stream::{Receiver, Sender, Tunnelled};
use crate::tcp;

/// Streams of a connection that may be reset because their client does not read them. With one more the
/// connection ends.
const SLOW_STREAMS_MAX: usize = 16;

/// Bytes of heads that are read before their exchanges begin, and with that count against the allowance of the connection.
const UNCOUNTED_BYTES_MAX: usize = 64 << 10;

/// What a refused head counts as, so that many of them do not hold back the streams that are served.
const REFUSED_BYTES: usize = 4 << 10;

/// Serves HTTP/2 until the connection ends. `ahead` was read from it.
pub(crate) async fn http2(wire: Wire, ahead: BytesMut, down: Arc<Downstream>) {
    let client = Http2Server::new(wire, ahead, Arc::clone(&down.conn));
    let last = drive(&client, &down).await;
    match last {
        Last::Silence => {}
        Last::Close | Last::Word(_) => Box::pin(part(client)).await,
    }
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum Last {
    /// Without a message: the client has gone, or the edge cuts the connection.
    Silence,
    /// With a close.
    Close,
    /// With a GOAWAY for this reason, and a close.
    Word(Reason),
}

/// Serves the streams of a connection until there are no more.
async fn drive(client: &Http2Server, down: &Arc<Downstream>) -> Last {
    let mut exchanges = FuturesUnordered::new();
    let mut watch = Watch::new(Instant::now());
    let last = poll_fn(|cx| {
        down.conn.driver.register(cx.waker());
        loop {
            let mut uncounted = 0;
            while uncounted < UNCOUNTED_BYTES_MAX
                && let Poll::Ready(incoming) = client.poll_incoming(cx)
            {
                match incoming {
                    Ok(Incoming::Refused(violation, head)) => {
                        uncounted += REFUSED_BYTES;
                        drop(RefusedRecord::begin(down, violation, *head, None));
                    }
                    Ok(Incoming::Request(incoming)) => {
                        uncounted += incoming.head_bytes;
                        let (receiver, sender) = client.stream(&incoming);
                        let (client, state) = (client.clone(), &down.edge.state);
                        let head = incoming.head;
                        let exchange = exchange(client, Arc::clone(down), head, receiver, sender);
                        exchanges.push(state.contain(exchange));
                    }
                    Err(over) => return Poll::Ready(last(over, down)),
                }
            }
            while let Poll::Ready(Some(())) = exchanges.poll_next_unpin(cx) {}
            let is_held_back = client.is_full();
            match client.poll_send(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Last::Silence),
                Poll::Pending => break,
            }
            // In turn, so that each stream gets its share of the bandwidth.
            let has_more = uncounted >= UNCOUNTED_BYTES_MAX;
            if !client.wake_next() && !is_held_back && !has_more {
                break;
            }
        }
        if client.is_done() {
            return Poll::Ready(Last::Close);
        }
        watch.check(cx, client, down)
    })
    .await;
    if let Last::Word(reason) = last {
        // Before the exchanges are dropped, so that their streams are reset for this reason.
        client.close_connection(reason);
    }
    last
}

/// Counts why a connection accepts no more requests, and decides how it ends.
fn last(over: Over, down: &Downstream) -> Last {
    let meters = &down.edge.state.meters;
    let reason = match over {
        Over::Ended(ConnectionError::Protocol(_)) => Some(EndReason::Http2Error),
        Over::Ended(ConnectionError::Flood(_)) => Some(EndReason::Http2Flood),
        Over::Left | Over::Done => None,
    };
    if let Some(reason) = reason {
        down.cut_for(reason);
    }
    match over {
        Over::Left => return Last::Silence,
        Over::Done => return Last::Close,
        Over::Ended(ConnectionError::Protocol(_)) => meters.http2_errors.up(),
        Over::Ended(ConnectionError::Flood(Flood::Resets)) => meters.floods_resets.up(),
        Over::Ended(ConnectionError::Flood(Flood::IdleFrames)) => meters.floods_idle_frames.up(),
        Over::Ended(ConnectionError::Flood(Flood::Continuations)) => {
            meters.floods_continuations.up()
        }
    }
    let Over::Ended(end) = over else {
        return Last::Close;
    };
    tracing::debug!(?end, client = %down.conn.info.client, "an HTTP/2 client is cut");
    Last::Word(end.reason())
}

/// The deadlines of a connection, and the reasons of the edge to end it.
#[derive(Debug)]
struct Watch {
    alarm: Alarm,
    idle_since: Instant,
    reader: SlowReader,
    has_sent_goaway: bool,
}

impl Watch {
    fn new(now: Instant) -> Self {
        Self {
            alarm: Alarm::default(),
            idle_since: now,
            reader: SlowReader::default(),
            has_sent_goaway: false,
        }
    }

    fn check(
        &mut self,
        cx: &mut Context<'_>,
        client: &Http2Server,
        down: &Downstream,
    ) -> Poll<Last> {
        let limits = &down.conn.rules.limits;
        if down.conn.is_hung_up() {
            return Poll::Ready(Last::Word(Reason::NO_ERROR));
        }
        if down.edge.state.phase() == Phase::Cut {
            return Poll::Ready(Last::Silence);
        }
        // A client that reads nothing, or too slowly. If it neglects a single stream, that stream is reset.
        let (_, taken) = down.conn.counters.bytes();
        let write_max = down.conn.write_max();
        if client.is_waiting() {
            let waits = self
                .reader
                .waits(taken, write_max, Instant::now().into_std());
            if waits.map_or(true, |deadline| self.alarm.is_due(cx, deadline.into())) {
                down.conn.too_slow();
                return Poll::Ready(Last::Silence);
            }
        } else if self.reader.is_waiting() {
            let now = Instant::now().into_std();
            self.reader.caught_up(taken, write_max, now);
        }
        if let Some(deadline) = client.head_deadline()
            && self.alarm.is_due(cx, deadline)
        {
            return Poll::Ready(Last::Word(Reason::ENHANCE_YOUR_CALM));
        }
        if let Some(deadline) = client.closing_deadline()
            && self.alarm.is_due(cx, deadline)
        {
            client.reset_closing();
            cx.waker().wake_by_ref();
        }
        let is_idle = down.conn.counters.open.load(Ordering::Acquire) == 0;
        if is_idle {
            down.conn.idles(Instant::now());
        } else {
            self.idle_since = Instant::now();
            down.conn.works();
        }
        let is_due = is_idle && self.alarm.is_due(cx, self.idle_since + limits.http2_idle);
        let is_unwelcome = is_idle && down.conn.is_shed();
        let is_parting = down.edge.state.phase() >= Phase::Parting;
        let is_used_up = down.conn.counters.begun.load(Ordering::Relaxed) >= limits.http2_requests;
        if !self.has_sent_goaway && (is_due || is_unwelcome || is_parting || is_used_up) {
            self.has_sent_goaway = true;
            client.send_graceful_goaway();
            // The next poll sends the GOAWAY.
            cx.waker().wake_by_ref();
        }
        if let Some(goaway_ack_deadline) = client.goaway_ack_deadline()
            && self.alarm.is_due(cx, goaway_ack_deadline)
        {
            client.send_final_goaway();
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Sends the remaining output, and closes in a way that the last responses arrive.
async fn part(mut client: Http2Server) {
    let close = async {
        poll_fn(|cx| client.poll_send(cx)).await?;
        client.shutdown().await?;
        discard_input(&mut client).await
    };
    // Errors do not matter: the connection ends in any case.
    drop(tokio::time::timeout(CLOSES_WITHIN, close).await);
}

/// Begins to serve a request.
fn begin(client: &Http2Server, down: &Arc<Downstream>, head: IncomingHead) -> StartedRequest {
    let head = match head {
        IncomingHead::Raw(raw) => {
            match StartedRequest::plain(down, raw, Version::HTTP_2, || client.read_maps()) {
                Ok(begun) => return begun,
                Err(raw) => IncomingHead::Raw(raw),
            }
        }
        head => head,
    };
    let scheme = match down.conn.info.tls.get() {
        Some(_) => Scheme::HTTPS,
        None => Scheme::HTTP,
    };
    StartedRequest::General(head.into_parts(scheme))
}

/// Serves one request.
async fn exchange(
    client: Http2Server,
    down: Arc<Downstream>,
    head: IncomingHead,
    receiver: Option<Receiver>,
    sender: Sender,
) {
    let begun = begin(&client, &down, head);
    // The data of an extended CONNECT is for the tunnel and no body.
    let is_tunnel = begun
        .parts()
        .is_some_and(|head| head.extensions.get::<Protocol>().is_some());
    let (upload, carried) = match receiver {
        Some(receiver) if !is_tunnel => (Upload::Http2(receiver), None),
        receiver => (Upload::None, receiver),
    };
    let mut exchange = pin!(begun.serve(&down, upload));
    let answered = poll_fn(|cx| {
        let answered = exchange.as_mut().poll(cx);
        // All interim responses that are present come from this exchange.
        for interim in down.conn.take_interim() {
            sender.inform(&interim);
        }
        answered
    });
    let answered = sender.unless_closed(answered).await;
    // Without a response the stream is reset.
    let Ok(Ok(ClientResponse { head, mut body })) = answered else {
        return;
    };
    let tunnel = body.take_tunnel();
    let is_last = tunnel.is_none() && body.is_end_stream();
    if poll_fn(|cx| sender.poll_capacity(cx)).await.is_err() {
        return;
    }
    match &head {
        ClientHead::Plain(head) => sender.lines(head.status(), head.fields(), is_last),
        ClientHead::Parts(head) => sender.head(head, is_last),
    }
    drop(head);
    if is_last {
        return;
    }
    match tunnel {
        Some(tunnel) => Box::pin(tcp::stream(Tunnelled::new(carried, sender), *tunnel)).await,
        // An incomplete body resets the stream, which the client sees.
        None => drop(send(&sender, body, &down).await),
    }
}

/// The body of a response is incomplete, or its stream was reset.
#[derive(Debug)]
struct StreamAborted;

impl From<StreamClosed> for StreamAborted {
    fn from(_: StreamClosed) -> Self {
        Self
    }
}

/// Sends a body as fast as the client reads it.
async fn send(sender: &Sender, body: ResponseBody, down: &Downstream) -> Result<(), StreamAborted> {
    let write_limit = body.write_limit();
    let mut sending = Sending {
        body,
        rest: Bytes::new(),
        last: None,
        taken: 0,
        reader: SlowReader::default(),
        write_limit,
        alarm: Alarm::default(),
    };
    poll_fn(|cx| sending.poll(cx, sender, down)).await
}

/// A body on its way. When it is dropped, the bytes that it produced and did not send are subtracted from the
/// record.
struct Sending {
    body: ResponseBody,
    rest: Bytes,
    /// The end of the body, which needs no window.
    last: Option<Ending>,
    /// Bytes that fit into the client's window, and how the client enlarges it.
    taken: u64,
    reader: SlowReader,
    write_limit: Option<Duration>,
    alarm: Alarm,
}

/// How a body ends.
enum Ending {
    Plain,
    Trailers(HeaderMap),
}

impl Sending {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        sender: &Sender,
        down: &Downstream,
    ) -> Poll<Result<(), StreamAborted>> {
        // A body that waits for data would not notice.
        if let Poll::Ready(closed) = sender.poll_closed(cx) {
            return Poll::Ready(Err(closed.into()));
        }
        loop {
            // The body is polled only after all its data was sent.
            if self.rest.is_empty() && self.last.is_none() {
                match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                    None => self.last = Some(Ending::Plain),
                    Some(Err(_)) => return Poll::Ready(Err(StreamAborted)),
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => self.rest = data,
                        Err(frame) => {
                            let trailers = frame.into_trailers().unwrap_or_default();
                            self.last = Some(Ending::Trailers(trailers));
                        }
                    },
                }
            }
            if let (true, Some(last)) = (self.rest.is_empty(), &self.last) {
                std::task::ready!(sender.poll_capacity(cx))?;
                match last {
                    Ending::Plain => sender.data(Bytes::new(), true),
                    Ending::Trailers(trailers) => sender.trailers(trailers),
                }
                return Poll::Ready(Ok(()));
            }
            if self.rest.is_empty() {
                if self.body.is_end_stream() {
                    self.last = Some(Ending::Plain);
                }
                continue;
            }
            let window = match sender.poll_window(cx) {
                Poll::Ready(window) => window?,
                Poll::Pending => return self.waits(cx, sender, down).map(Err),
            };
            let data = self.rest.split_to(window.min(self.rest.len()));
            let is_last = self.rest.is_empty() && self.body.is_end_stream();
            self.note_sent(data.len(), down);
            if !data.is_empty() || is_last {
                sender.data(data, is_last);
            }
            if is_last {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl Sending {
    fn limit(&self, down: &Downstream) -> Duration {
        self.write_limit
            .unwrap_or(down.conn.rules.limits.write_stall)
    }

    /// The client gives no window for waiting data. Ready when it is too slow.
    fn waits(
        &mut self,
        cx: &mut Context<'_>,
        sender: &Sender,
        down: &Downstream,
    ) -> Poll<StreamAborted> {
        let limit = self.limit(down);
        let now = Instant::now().into_std();
        let waits = self.reader.waits(self.taken, limit, now);
        if waits.map_or(true, |deadline| self.alarm.is_due(cx, deadline.into())) {
            down.edge.state.meters.slow_readers.up();
            if down
                .conn
                .counters
                .slow_streams
                .fetch_add(1, Ordering::Relaxed)
                + 1
                >= SLOW_STREAMS_MAX
            {
                down.conn.hang_up();
            }
            sender.cancel();
            return Poll::Ready(StreamAborted);
        }
        Poll::Pending
    }

    /// Records that bytes were sent to the client.
    fn note_sent(&mut self, bytes: usize, down: &Downstream) {
        self.taken = self.taken.saturating_add(bytes as u64);
        if self.rest.is_empty() && self.reader.is_waiting() {
            let limit = self.limit(down);
            let now = Instant::now().into_std();
            self.reader.caught_up(self.taken, limit, now);
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(exchange) = self.body.exchange() {
            exchange.unsent(self.rest.len());
        }
    }
}
