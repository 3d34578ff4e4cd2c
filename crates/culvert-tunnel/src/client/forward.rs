//! Forwards one proxied connection between a stream of the session and a socket of the service.
//!
//! Bytes from the session go to the socket as the slices they arrived in, and bytes from the socket go to the
//! session in the buffer they were read into. Each direction ends independently.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use culvert_http::http1::head::{field_line, request_line};
use culvert_http::http2::Follower;
use culvert_io::Prefixed;
use culvert_io::upstream_tls::explained;
use culvert_mux::ErrorCode;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::endpoint::{Endpoint, TlsEnd};
use super::exchanges::{Exchanges, ReplayError};
use super::tap::{About, Tap};
use super::upstream::{CONNECT_TIME, ServiceSocket};
use crate::driver::{self, Stream};
use crate::wire::{self, ProxyHeader};

/// The initial size of reads from a service. It doubles after each read that fills the buffer.
const READ_BYTES: usize = 8 << 10;
/// The maximum size of reads from a service. A stream queues no more.
const READ_BYTES_MAX: usize = 64 << 10;
/// The most bytes that are read from the session before they are written.
const GATHER_BYTES: usize = 128 << 10;
/// The initial value of that limit. It doubles whenever the service accepts everything in one write.
const GATHER_BYTES_FIRST: usize = 16 << 10;
/// The value for a service that does not read, and for all services while [`HELD_BYTES_MAX`] is reached.
const GATHER_BYTES_MIN: usize = 4 << 10;
/// The most bytes that all connections of an agent hold outside the session. Further bytes stay in the
/// session, under its own limits.
const HELD_BYTES_MAX: usize = 8 << 20;
/// Maximum number of slices in a vectored write.
const SLICES: usize = 16;
/// Maximum length of a PROXY protocol header before TLS.
const PROXY_BYTES_MAX: usize = 4 << 10;
/// Time for the server to close its side of a connection that the agent ends between two requests.
const GOODBYE_TIME: std::time::Duration = std::time::Duration::from_secs(1);
/// Time for the client's request to arrive if the service is unreachable, so that the request can be shown.
const UNREACHED_REQUEST_TIME: std::time::Duration = std::time::Duration::from_secs(1);
/// Timeout for the response to a replayed request.
const REPLAY_TIME: std::time::Duration = std::time::Duration::from_secs(60);

/// Reads the header after the type of a proxied stream. `None` if it is invalid.
pub(crate) async fn header(stream: &mut Stream) -> Option<ProxyHeader> {
    let mut length = [0; 8];
    stream.read_exact(&mut length).await.ok()?;
    let mut header = vec![0; ProxyHeader::length(length)?];
    stream.read_exact(&mut header).await.ok()?;
    wire::parse(serde_json::from_slice(&header).ok()?).ok()
}

/// Bytes that connections have read from one side and not yet written to the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct BytesInFlight(Arc<AtomicUsize>);

impl BytesInFlight {
    /// Number of bytes of all connections.
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The bytes that one connection holds.
struct Share {
    all: BytesInFlight,
    bytes: usize,
}

impl Share {
    fn set(&mut self, bytes: usize) {
        let all = &self.all.0;
        if bytes > self.bytes {
            all.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else if bytes < self.bytes {
            all.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// How a connection of HTTP ends when the agent stops.
#[derive(Debug)]
pub(crate) struct Draining {
    begins: CancellationToken,
    /// For HTTP/2. Other connections have a tap.
    follower: Option<Box<Follower>>,
}

/// A connection that did not reach its service: the error, and the stream, which still has to be closed.
#[derive(Debug)]
pub(crate) struct Unreached(pub(crate) io::Error, pub(crate) Option<Stream>);

/// Forwards one connection to its end. If the service is unreachable, the request is recorded with the error.
pub(crate) async fn forward(
    stream: Stream,
    endpoint: &Endpoint,
    mut tap: Option<Tap>,
    draining: CancellationToken,
    held: &BytesInFlight,
) -> Result<(), Unreached> {
    let mut forwarded = forward_to(stream, endpoint, &mut tap, draining, held).await;
    if let (Err(Unreached(error, Some(stream))), Some(tap)) = (&mut forwarded, &mut tap) {
        let reading = async {
            while !tap.has_request() {
                match std::future::poll_fn(|cx| stream.poll_read_bytes(cx, READ_BYTES)).await {
                    Ok(piece) if !piece.is_empty() => tap.request(&piece),
                    Ok(_) | Err(_) => break,
                }
            }
        };
        // A client that sends no request leaves nothing to show.
        tokio::time::timeout(UNREACHED_REQUEST_TIME, reading)
            .await
            .ok();
        tap.fail(&format!("the service is unreachable: {error}"));
    }
    forwarded
}

async fn forward_to(
    stream: Stream,
    endpoint: &Endpoint,
    tap: &mut Option<Tap>,
    draining: CancellationToken,
    held: &BytesInFlight,
) -> Result<(), Unreached> {
    // Only HTTP connections have a point at which no request is open.
    let is_http2 = endpoint.protocol.is_http() && endpoint.http2;
    let draining = endpoint.protocol.is_http().then_some(Draining {
        begins: draining,
        follower: is_http2.then(Box::default),
    });
    let socket = match endpoint.upstream.connect().await {
        Ok(socket) => socket,
        Err(error) => return Err(Unreached(error, Some(stream))),
    };
    match (&endpoint.tls_end, endpoint.upstream.tls()) {
        (None, None) => carry(stream, Bytes::new(), socket, tap.take(), draining, held).await,
        // In boxes, so that other connections keep no room for TLS.
        (None, Some(tls)) => {
            let forwarding = encrypted(stream, endpoint, socket, tls, tap, draining, held);
            Box::pin(forwarding).await
        }
        (Some(end), tls) => Box::pin(decrypted(stream, endpoint, socket, end, tls)).await,
    }
}

/// Forwards to a service with TLS.
async fn encrypted(
    mut stream: Stream,
    endpoint: &Endpoint,
    mut socket: ServiceSocket,
    (connector, name): &(TlsConnector, ServerName<'static>),
    tap: &mut Option<Tap>,
    draining: Option<Draining>,
    held: &BytesInFlight,
) -> Result<(), Unreached> {
    let mut first = Bytes::new();
    if endpoint.proxied {
        // The service reads the PROXY header before its TLS handshake.
        match take_proxy_header(&mut stream, &mut first).await {
            Ok(header) => {
                if let Err(error) = socket.write_all(&header).await {
                    return Err(Unreached(error, Some(stream)));
                }
            }
            Err(error) => return Err(Unreached(error, Some(stream))),
        }
    }
    let handshake = connector.connect(name.clone(), socket);
    let greeted = tokio::time::timeout(CONNECT_TIME, handshake).await;
    match greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(socket) => carry(stream, first, socket, tap.take(), draining, held).await,
        Err(error) => Err(Unreached(explained(error), Some(stream))),
    }
}

/// Terminates the client's TLS, and forwards to a service with TLS or without.
async fn decrypted(
    mut stream: Stream,
    endpoint: &Endpoint,
    mut socket: ServiceSocket,
    end: &TlsEnd,
    tls: Option<&(TlsConnector, ServerName<'static>)>,
) -> Result<(), Unreached> {
    let (mut first, mut ahead) = (Bytes::new(), Bytes::new());
    if endpoint.proxied {
        ahead = match take_proxy_header(&mut stream, &mut first).await {
            Ok(header) => header,
            Err(error) => return Err(Unreached(error, Some(stream))),
        };
    }
    let clear = end.acceptor().accept(Prefixed::new(first, stream));
    let Ok(Ok(mut clear)) = tokio::time::timeout(CONNECT_TIME, clear).await else {
        // A client that does not speak TLS is not an error of the agent.
        return Ok(());
    };
    if let Err(error) = socket.write_all(&ahead).await {
        return Err(Unreached(error, None));
    }
    let copied = match tls {
        None => tokio::io::copy_bidirectional(&mut clear, &mut socket).await,
        Some((connector, name)) => match connector.connect(name.clone(), socket).await {
            Ok(mut socket) => tokio::io::copy_bidirectional(&mut clear, &mut socket).await,
            Err(error) => return Err(Unreached(explained(error), None)),
        },
    };
    // Both ends notice that a connection broke.
    copied.map(drop).or(Ok(()))
}

/// Removes the PROXY protocol header from the front of a connection: version 1 is a line, version 2 has a
/// length field (HAProxy's specification, sections 2.1 and 2.2).
async fn take_proxy_header(stream: &mut Stream, first: &mut Bytes) -> io::Result<Bytes> {
    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    loop {
        let length = if first.starts_with(b"PROXY ") {
            first
                .iter()
                .take(PROXY_BYTES_MAX)
                .position(|byte| *byte == b'\n')
                .map(|at| at + 1)
        } else if first.starts_with(SIGNATURE) && first.len() >= 16 {
            Some(16 + usize::from(u16::from_be_bytes([first[14], first[15]])))
        } else {
            None
        };
        match length {
            Some(length) if length <= first.len() => return Ok(first.split_to(length)),
            _ if first.len() > PROXY_BYTES_MAX => return Err(io::ErrorKind::InvalidData.into()),
            _ => {}
        }
        let piece = std::future::poll_fn(|cx| stream.poll_read_bytes(cx, READ_BYTES)).await?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut joined = BytesMut::from(&first[..]);
        joined.extend_from_slice(&piece);
        *first = joined.freeze();
    }
}

/// Copies bytes both ways until both directions have ended, or one fails. If the service's connection fails,
/// all that was read from it is still sent before the stream is reset, so a complete response arrives.
///
/// Many services end a TLS connection without `close_notify` (RFC 8446, 6.1). This counts as a normal end, as
/// in nginx and the published agents; the length of an HTTP message tells whether it is complete.
///
/// When `draining` begins, the connection ends as soon as every request has its complete response. A
/// connection that carries another protocol continues until its client closes it.
pub(crate) async fn relay<S>(
    stream: Stream,
    first: Bytes,
    socket: S,
    tap: Option<Tap>,
    draining: Option<Draining>,
) -> Result<(), Unreached>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    carry(
        stream,
        first,
        socket,
        tap,
        draining,
        &BytesInFlight::default(),
    )
    .await
}

/// As [`relay`], but counts held bytes in `held`.
async fn carry<S>(
    stream: Stream,
    first: Bytes,
    socket: S,
    mut tap: Option<Tap>,
    draining: Option<Draining>,
    held: &BytesInFlight,
) -> Result<(), Unreached>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (draining, mut follower) = match draining {
        Some(draining) => (Some(draining.begins), draining.follower),
        None => (None, None),
    };
    if let Some(tap) = &mut tap {
        tap.request(&first);
    }
    if let Some(follower) = &mut follower {
        follower.client_sent(&first);
    }
    let mut relay = Relay {
        stream,
        socket,
        tap,
        follower,
        to_socket: ToSocket {
            pieces: VecDeque::new(),
            bytes: first.len(),
            gather: GATHER_BYTES_FIRST,
            ..ToSocket::default()
        },
        to_stream: ToStream {
            buffer: BytesMut::new(),
            want: READ_BYTES,
            pending: Bytes::new(),
            ended: false,
            done: false,
        },
        share: Share {
            all: held.clone(),
            bytes: 0,
        },
    };
    if !first.is_empty() {
        relay.to_socket.pieces.push_back(first);
    }
    let relaying = std::future::poll_fn(|cx| relay.poll(cx));
    let relayed = match draining {
        None => relaying.await,
        Some(draining) => {
            let stopping = tokio::select! {
                relayed = relaying => Some(relayed),
                () = draining.cancelled() => None,
            };
            match stopping {
                Some(relayed) => relayed,
                None => relay.finish().await,
            }
        }
    };
    match relayed {
        Ok(()) => {}
        // Dropping a finished stream sends the written data, and then resets the stream.
        Err(Broke::Service) => {
            relay.stream.shutdown().await.ok();
        }
        Err(Broke::Silent) => relay.stream.reset(driver::SILENT),
        Err(Broke::Refused) => relay.stream.reset(ErrorCode::STREAM_REFUSED),
        Err(Broke::Stream) => relay.stream.reset(ErrorCode::STREAM_RESET),
    }
    Ok(())
}

/// Which side of a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broke {
    Service,
    /// The service is an agent of this node, which refused the stream unused.
    Refused,
    /// The service is an agent of this node, which does not respond.
    Silent,
    Stream,
}

struct Relay<S> {
    stream: Stream,
    socket: S,
    tap: Option<Tap>,
    follower: Option<Box<Follower>>,
    to_socket: ToSocket,
    to_stream: ToStream,
    share: Share,
}

/// The bytes in transit to the service.
#[derive(Default)]
struct ToSocket {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    /// How many bytes to take from the stream before writing.
    gather: usize,
    /// Whether the stream has ended.
    ended: bool,
    /// Whether data was written since the last flush.
    dirty: bool,
    /// Whether the service accepts no more data. Further data of the client is read and dropped, because a
    /// response may still be in transit.
    refused: bool,
    done: bool,
}

/// The bytes in transit to the client.
struct ToStream {
    buffer: BytesMut,
    /// The size of the next read.
    want: usize,
    pending: Bytes,
    /// Whether the socket has ended.
    ended: bool,
    done: bool,
}

impl<S> Relay<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broke>> {
        let relayed = self.poll_both(cx);
        self.share
            .set(self.to_socket.bytes + self.to_stream.pending.len());
        relayed
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broke>> {
        if !self.to_socket.done
            && let Poll::Ready(Err(broke)) = self.poll_to_socket(cx)
        {
            return Poll::Ready(Err(broke));
        }
        if !self.to_stream.done
            && let Poll::Ready(Err(broke)) = self.poll_to_stream(cx)
        {
            return Poll::Ready(Err(broke));
        }
        if self.to_stream.done && (self.to_socket.done || self.to_socket.refused) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Continues until every request has its complete response and all of it is written.
    async fn finish(&mut self) -> Result<(), Broke> {
        let relaying = std::future::poll_fn(|cx| match self.poll(cx) {
            Poll::Pending if self.is_idle() => Poll::Ready(Ok(true)),
            Poll::Pending => Poll::Pending,
            Poll::Ready(relayed) => Poll::Ready(relayed.map(|()| false)),
        });
        if relaying.await? {
            if let Some(follower) = &self.follower {
                // The server's next request is then safe to send again.
                let goodbye = follower.goodbye();
                let sent = self.stream.write_all(&goodbye).await;
                sent.map_err(|_| Broke::Stream)?;
            }
            self.stream.shutdown().await.map_err(|_| Broke::Stream)?;
            // The server should see the end of the stream before it learns that its next request was not
            // read. A server that does not close its side loses nothing through the reset, because no request
            // is open.
            let reading = async {
                let mut rest = [0; 64];
                while self.stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
            };
            tokio::time::timeout(GOODBYE_TIME, reading).await.ok();
        }
        Ok(())
    }

    /// Whether no request waits for its response, and no bytes are in transit.
    fn is_idle(&self) -> bool {
        let is_idle = match (&self.tap, &self.follower) {
            (Some(tap), _) => tap.is_idle(),
            (None, Some(follower)) => follower.is_idle(),
            (None, None) => None,
        };
        self.to_socket.pieces.is_empty()
            && self.to_stream.pending.is_empty()
            && is_idle == Some(true)
    }

    fn poll_to_socket(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broke>> {
        let it = &mut self.to_socket;
        loop {
            let most = match self.share.all.bytes() {
                all if all < HELD_BYTES_MAX => it.gather,
                _ => GATHER_BYTES_MIN,
            };
            // Takes all available data, so that one write sends it.
            while !it.ended && it.bytes < most && it.pieces.len() < SLICES {
                let room = most - it.bytes;
                let Poll::Ready(piece) = self.stream.poll_read_bytes(cx, room) else {
                    break;
                };
                let piece = piece.map_err(|_| Broke::Stream)?;
                if piece.is_empty() {
                    it.ended = true;
                    break;
                }
                if it.refused {
                    continue;
                }
                if let Some(tap) = &mut self.tap {
                    tap.request(&piece);
                }
                if let Some(follower) = &mut self.follower {
                    follower.client_sent(&piece);
                }
                it.bytes += piece.len();
                it.pieces.push_back(piece);
            }
            if it.refused && !it.ended {
                return Poll::Pending;
            }
            if it.pieces.is_empty() {
                if it.ended {
                    // Ignores errors: if the service is gone, its response tells how it ended.
                    ready!(Pin::new(&mut self.socket).poll_shutdown(cx)).ok();
                    it.done = true;
                    return Poll::Ready(Ok(()));
                }
                if it.dirty {
                    it.refused |= ready!(Pin::new(&mut self.socket).poll_flush(cx)).is_err();
                    it.dirty = false;
                    if it.refused {
                        continue;
                    }
                }
                return Poll::Pending;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = it.pieces.len().min(SLICES);
            for (slice, piece) in slices.iter_mut().zip(&it.pieces) {
                *slice = IoSlice::new(piece);
            }
            let written = Pin::new(&mut self.socket).poll_write_vectored(cx, &slices[..count]);
            let mut written = match written {
                Poll::Ready(Ok(written)) if written > 0 => written,
                Poll::Pending => {
                    it.gather = GATHER_BYTES_MIN;
                    // Notices that the client has left even while the service does not read.
                    return match self.stream.watch(cx) {
                        Ok(()) => Poll::Pending,
                        Err(_) => Poll::Ready(Err(Broke::Stream)),
                    };
                }
                Poll::Ready(_) => {
                    it.refused = true;
                    it.bytes = 0;
                    it.pieces.clear();
                    continue;
                }
            };
            it.dirty = true;
            it.bytes -= written;
            if it.bytes == 0 && written >= it.gather {
                it.gather = (2 * it.gather).min(GATHER_BYTES);
            }
            while let Some(piece) = it.pieces.front_mut() {
                if written < piece.len() {
                    piece.advance(written);
                    break;
                }
                written -= piece.len();
                it.pieces.pop_front();
            }
        }
    }

    fn poll_to_stream(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broke>> {
        let it = &mut self.to_stream;
        loop {
            while !it.pending.is_empty() {
                let written = self.stream.poll_write_bytes(cx, &mut it.pending);
                ready!(written).map_err(|_| Broke::Stream)?;
            }
            if it.ended {
                let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
                ready!(shut).map_err(|_| Broke::Stream)?;
                it.done = true;
                return Poll::Ready(Ok(()));
            }
            // Releases the buffer of a short read for reuse.
            it.pending = Bytes::new();
            // Reads no more than the stream accepts, so that data which its client does not read stays at the
            // service.
            let room = ready!(self.stream.poll_capacity(cx)).map_err(|_| Broke::Stream)?;
            let want = it.want.min(room);
            it.buffer.reserve(want);
            let mut buffer = (&mut it.buffer).limit(want);
            let reading = pin!(self.socket.read_buf(&mut buffer)).poll(cx);
            let read = match reading {
                Poll::Pending => {
                    // A waiting connection holds no buffer.
                    it.buffer = BytesMut::new();
                    return Poll::Pending;
                }
                Poll::Ready(Ok(read)) => read,
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                Poll::Ready(Err(error)) if driver::is_refused(&error) => {
                    return Poll::Ready(Err(Broke::Refused));
                }
                Poll::Ready(Err(error)) if driver::is_silent(&error) => {
                    return Poll::Ready(Err(Broke::Silent));
                }
                Poll::Ready(Err(error)) => {
                    if let Some(tap) = &mut self.tap {
                        tap.fail(&format!("the connection to the service broke: {error}"));
                    }
                    return Poll::Ready(Err(Broke::Service));
                }
            };
            if read == it.want {
                it.want = (2 * it.want).min(READ_BYTES_MAX);
            } else if read < READ_BYTES {
                it.want = READ_BYTES;
            }
            if read == 0 {
                it.ended = true;
                if let Some(tap) = &mut self.tap {
                    tap.response_ended();
                }
                continue;
            }
            if let Some(tap) = &mut self.tap {
                tap.response(&it.buffer);
            }
            if let Some(follower) = &mut self.follower {
                follower.server_sent(&it.buffer);
            }
            it.pending = it.buffer.split().freeze();
        }
    }
}

/// Changes to a recorded request: all that is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// The method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Names and values, in order. `content-length` and `transfer-encoding` are replaced according to the body.
    pub fields: Vec<(String, String)>,
    /// The body, without chunk lines.
    pub body: Vec<u8>,
}

impl Edit {
    /// The request in wire format.
    fn request(&self) -> Result<Vec<u8>, &'static str> {
        let mut request = format!("{} {} HTTP/1.1", self.method, self.path).into_bytes();
        let line = request_line(&request)?;
        if line.method != self.method.as_bytes() || line.target != self.path.as_bytes() {
            return Err("the method and the path must not contain spaces");
        }
        if self.method == "CONNECT" {
            return Err("CONNECT requests cannot be sent");
        }
        request.extend_from_slice(b"\r\n");
        for (name, value) in &self.fields {
            if ["content-length", "transfer-encoding"]
                .into_iter()
                .any(|framing| name.eq_ignore_ascii_case(framing))
            {
                continue;
            }
            let field = format!("{name}: {value}");
            if field.contains(['\r', '\n']) || field_line(field.as_bytes())?.0 != name.as_bytes() {
                return Err("a header is invalid");
            }
            request.extend_from_slice(field.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        if !self.body.is_empty() || ["POST", "PUT", "PATCH"].contains(&&self.method[..]) {
            request
                .extend_from_slice(format!("content-length: {}\r\n", self.body.len()).as_bytes());
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(&self.body);
        Ok(request)
    }
}

/// Sends a recorded request to its service again, on a new connection and perhaps with changes, and records the
/// response. Returns the id of the new exchange. A service that does not respond leaves an exchange with the error.
pub(crate) async fn replay(
    all: &Arc<Exchanges>,
    id: u64,
    edit: Option<&Edit>,
) -> Result<u64, ReplayError> {
    let exchange = all.get(id).ok_or(ReplayError::Unknown)?;
    let request = match edit {
        Some(edit) => edit.request().map_err(ReplayError::Invalid)?,
        None if exchange.status == Some(101) => return Err(ReplayError::Upgraded),
        None if !exchange.request.is_whole() => return Err(ReplayError::Cut),
        None => [&exchange.request.head[..], &exchange.request.body[..]].concat(),
    };
    let about = About {
        endpoint: Arc::clone(&exchange.endpoint),
        url: exchange.url.clone(),
        client: exchange.client.clone(),
        replay_of: Some(id),
    };
    let upstream = &exchange.endpoint.upstream;
    let mut tap = Tap::new(Arc::clone(all), about);
    tap.request(&request);
    let talking = async {
        let socket = upstream.connect().await?;
        match upstream.tls() {
            None => answer(socket, &request, &mut tap).await,
            Some((connector, name)) => {
                let socket: tokio_rustls::client::TlsStream<ServiceSocket> = connector
                    .connect(name.clone(), socket)
                    .await
                    .map_err(explained)?;
                answer(socket, &request, &mut tap).await
            }
        }
    };
    let answered = tokio::time::timeout(REPLAY_TIME, talking)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    if let Err(error) = &answered {
        tap.fail(&format!("the service did not respond: {error}"));
    }
    match (answered, tap.kept()) {
        (Ok(()), Some(kept)) => Ok(kept),
        (Ok(()), None) => Err(ReplayError::Away("it closed the connection".into())),
        (Err(error), _) => Err(ReplayError::Away(error.to_string())),
    }
}

/// Writes the request and reads until the tap has seen the complete response.
async fn answer<S>(socket: S, request: &[u8], tap: &mut Tap) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut reader, mut writer) = tokio::io::split(socket);
    let writing = async {
        writer.write_all(request).await?;
        writer.flush().await
    };
    let reading = async {
        let mut buffer = BytesMut::new();
        while tap.kept().is_none() {
            buffer.clear();
            let read = match reader.read_buf(&mut buffer).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                read => read?,
            };
            if read == 0 {
                tap.response_ended();
                break;
            }
            tap.response(&buffer);
        }
        Ok(())
    };
    // The service may respond before it has read the whole request, or without reading it.
    tokio::pin!(writing, reading);
    tokio::select! {
        written = &mut writing => {
            if written.is_ok() {
                return reading.await;
            }
            written
        }
        read = &mut reading => read,
    }
}
