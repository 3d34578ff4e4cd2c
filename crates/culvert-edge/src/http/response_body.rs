//! The body of a response on its way to the client. It passes frame by frame, only as fast as the client
//! reads it, unless an action has to see the whole of it first ([`Source::hold`]).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use culvert_base::Share;
use culvert_io::Pipe;
use culvert_upstream::Http1ClientError;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::connection::conn_state::ConnState;
use crate::http::body_memory::{BUFFERED_WITHIN, BodyReservation, NotBuffered};
use crate::http::encoded::Encoded;
use crate::http::exchange::HttpExchange;
use crate::http::fields;
use crate::http::upgrade::Tunnel;
use crate::pools::{Http2Stream, Lease, PendingStream};

/// Why a response's body is incomplete. The client sees a reset, never a clean end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the upstream aborted the response: {0}")]
    Http1(#[from] Http1ClientError),
    #[error("the upstream aborted the response: {0}")]
    Http2(#[from] hyper::Error),
    #[error("idle timeout")]
    Stalled,
    #[error("the body cannot be encoded: {0}")]
    Encoding(#[from] std::io::Error),
}

/// The body of a response, as the client's connection reads it. Dropping it ends the exchange.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    source: Source,
    is_chunked: bool,
    /// The start of the upstream's silence, and the bytes received from the client until then.
    silent: Option<(Instant, u64)>,
    /// `None` after an upgrade, whose tunnel has the exchange.
    exchange: Option<Box<HttpExchange>>,
    /// The tunnel that the connection or stream becomes after this response.
    tunnel: Option<Box<Tunnel>>,
}

/// The source of a response's body.
#[derive(Debug)]
pub(crate) enum Source {
    /// None: there is no body, or it has ended.
    None,
    /// A body of the edge.
    Edge(Bytes),
    /// A buffered body, with its share of the memory for buffered bodies.
    Held {
        bytes: Bytes,
        _room: BodyReservation,
    },
    /// An HTTP/1 upstream, with its connection.
    Http1(Lease),
    /// An HTTP/2 upstream, with its stream.
    Http2 { body: Incoming, stream: Http2Stream },
    /// An HTTP/2 upstream whose stream becomes a tunnel: no data before that.
    Stream(PendingStream),
    /// One of these, with a content coding that the edge applies.
    Encoded(Box<Encoded>),
}

impl ResponseBody {
    pub(crate) fn new(source: Source, exchange: Box<HttpExchange>) -> Self {
        Self {
            source,
            is_chunked: false,
            silent: None,
            exchange: Some(exchange),
            tunnel: None,
        }
    }

    /// The empty body of a response after which a tunnel begins.
    pub(crate) fn of_upgrade(tunnel: Box<Tunnel>) -> Self {
        Self {
            tunnel: Some(tunnel),
            source: Source::None,
            is_chunked: false,
            silent: None,
            exchange: None,
        }
    }

    /// The tunnel that the connection or stream becomes after this response, if any.
    pub(crate) fn take_tunnel(&mut self) -> Option<Box<Tunnel>> {
        self.tunnel.take()
    }

    /// The endpoint's limit for a client that reads nothing; `None` for that of the settings.
    pub(crate) fn write_limit(&self) -> Option<Duration> {
        self.exchange.as_ref()?.timeouts().write
    }

    /// Whether the idle timeout of the exchange has expired.
    fn is_idle(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(exchange) = &mut self.exchange else {
            return false;
        };
        let limit = exchange.idle_limit();
        loop {
            let (bytes_in, _) = exchange.down().conn.counters.bytes();
            let (since, before) = *self.silent.get_or_insert((Instant::now(), bytes_in));
            if !exchange.alarm.is_due(cx, since + limit) {
                return false;
            }
            if bytes_in == before {
                return true;
            }
            // The client has sent something meanwhile.
            self.silent = None;
        }
    }

    /// The remaining bytes, if the kernel can move them from the upstream's socket. 0 if an event or a policy needs them.
    pub(crate) fn movable(&self) -> u64 {
        let is_seen = self
            .exchange
            .as_ref()
            .is_none_or(|exchange| exchange.recording.has_capture());
        match &self.source {
            Source::Http1(lease) if !is_seen => lease.movable(),
            _ => 0,
        }
    }

    /// Moves some of these bytes into an empty pipe. If it moves none, [polling](Body::poll_frame) the body says why.
    pub(crate) fn poll_move(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> usize {
        let Source::Http1(lease) = &mut self.source else {
            return 0;
        };
        let Poll::Ready(Ok(bytes)) = lease.poll_move(cx, pipe) else {
            return 0;
        };
        if bytes > 0 {
            self.silent = None;
            if let Some(exchange) = &mut self.exchange {
                exchange.sent(bytes, false);
            }
        }
        if self.source.is_ended() {
            self.source.end();
        }
        bytes
    }

    /// The exchange; `None` if a tunnel has it.
    pub(crate) fn exchange(&mut self) -> Option<&mut HttpExchange> {
        self.exchange.as_deref_mut()
    }

    /// Sets that it is sent in chunks.
    pub(crate) fn chunked(mut self) -> Self {
        self.is_chunked = true;
        self
    }
}

impl Source {
    /// Reads the upstream's connection until the next frame.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            Self::None | Self::Stream(_) => Poll::Ready(None),
            Self::Edge(bytes) | Self::Held { bytes, .. } => {
                let bytes = std::mem::take(bytes);
                *self = Self::None;
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Self::Http1(lease) => lease.poll_frame(cx).map_err(BodyError::from),
            Self::Http2 { body, stream } => {
                let polled = Pin::new(&mut *body).poll_frame(cx);
                if body.is_end_stream() {
                    stream.complete();
                }
                polled.map_err(BodyError::from)
            }
            Self::Encoded(encoded) => encoded.poll(cx),
        }
    }

    /// Buffers the whole body without its trailers, and returns it with its share of the memory limit.
    pub(crate) async fn hold(
        &mut self,
        share: Share,
        bytes_max: usize,
        conn: &Arc<ConnState>,
    ) -> Result<(Bytes, BodyReservation), NotBuffered> {
        if self.size_hint().lower() > bytes_max as u64 {
            return Err(NotBuffered::TooLong);
        }
        let reading = async {
            let (mut whole, mut room) = (BytesMut::new(), BodyReservation::new(conn, share));
            while let Some(frame) = poll_fn(|cx| self.poll(cx)).await {
                let Ok(data) = frame.map_err(|_| NotBuffered::Broken)?.into_data() else {
                    continue;
                };
                if whole.len() + data.len() > bytes_max {
                    return Err(NotBuffered::TooLong);
                }
                room.grow(data.len())?;
                whole.extend_from_slice(&data);
            }
            self.end();
            Ok((whole.freeze(), room))
        };
        let held = tokio::time::timeout(BUFFERED_WITHIN, reading).await;
        held.unwrap_or(Err(NotBuffered::TooSlow))
    }

    /// The upstream has sent everything.
    pub(crate) fn end(&mut self) {
        match std::mem::replace(self, Self::None) {
            Self::Http1(lease) => lease.give_back(),
            Self::Encoded(mut encoded) => encoded.end(),
            _ => {}
        }
    }

    /// Whether it has ended.
    pub(crate) fn is_ended(&self) -> bool {
        match self {
            Self::None | Self::Stream(_) => true,
            Self::Edge(bytes) | Self::Held { bytes, .. } => bytes.is_empty(),
            Self::Http1(lease) => lease.is_spent(),
            Self::Http2 { body, .. } => body.is_end_stream(),
            Self::Encoded(encoded) => encoded.is_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None | Self::Stream(_) => SizeHint::with_exact(0),
            Self::Edge(bytes) | Self::Held { bytes, .. } => {
                SizeHint::with_exact(bytes.len() as u64)
            }
            Self::Http1(lease) => lease.size_hint(),
            Self::Http2 { body, .. } => body.size_hint(),
            Self::Encoded(_) => SizeHint::default(),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        match this.source.poll(cx) {
            Poll::Ready(Some(Ok(mut frame))) => {
                this.silent = None;
                if let Some(exchange) = &mut this.exchange {
                    if let Source::Encoded(encoded) = &this.source {
                        exchange.recording.encoded(encoded.raw());
                    }
                    if let Some(data) = frame.data_ref() {
                        exchange.sent(data.len(), this.is_chunked);
                    }
                }
                let trailers = frame.trailers_mut();
                let is_last = trailers.is_some();
                if let Some(trailers) = trailers {
                    fields::strip_trailers(trailers);
                    if let Some(exchange) = &this.exchange {
                        exchange.strip_set(trailers);
                    }
                }
                if let Some(exchange) = &mut this.exchange {
                    exchange.recording.copy_sent(&frame);
                }
                if is_last || this.source.is_ended() {
                    this.source.end();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Poll::Ready(None) => {
                this.source.end();
                Poll::Ready(None)
            }
            Poll::Pending if this.is_idle(cx) => Poll::Ready(Some(Err(BodyError::Stalled))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_ended()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let (true, Some(exchange)) = (self.source.is_ended(), &mut self.exchange) {
            exchange.answered();
        }
    }
}
