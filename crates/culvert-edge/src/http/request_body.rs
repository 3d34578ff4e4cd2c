//! The body of a request on its way to the upstream. It passes frame by frame, only as fast as the upstream
//! reads it, unless an action has to see the whole of it first ([`Upload`]).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use culvert_base::Share;
use culvert_io::UploadMeter;
use culvert_policy::capture::RequestTap;
use culvert_upstream::UploadError;
use http_body::{Body, Frame, SizeHint};

use crate::connection::conn_state::ConnState;
use crate::http::body_memory::{BUFFERED_WITHIN, BodyReservation, NotBuffered};
use crate::http::fields;
use crate::http1::server::Http1Body;
use crate::http2::stream::Receiver;

/// A request's body, as the upstream's connection reads it. Most requests have none, so it is small.
#[derive(Debug)]
pub(crate) struct RequestBody(Option<Box<ReadBody>>);

/// A body that is read.
#[derive(Debug)]
struct ReadBody {
    source: Upload,
    received: Option<Arc<AtomicU64>>,
    limit: Option<BodyLimit>,
    /// Set when the client aborts it.
    is_cut: Option<Arc<AtomicBool>>,
    /// Whether its protocol has trailers. Those of other requests are removed.
    has_trailers: bool,
    /// Measures how fast the client sends it.
    meter: Option<UploadMeter>,
    /// Copies it, if the request is captured.
    tap: Option<Arc<RequestTap>>,
}

/// The bytes that a body may still have.
#[derive(Debug)]
pub(crate) struct BodyLimit {
    pub(crate) left: u64,
    /// Set when the body has more.
    pub(crate) is_over: Arc<AtomicBool>,
}

/// The source of a request's body.
#[derive(Debug)]
pub(crate) enum Upload {
    /// None: there is no body, or it has ended.
    None,
    /// A client that speaks HTTP/1.
    Http1(Box<Http1Body>),
    /// A client that speaks HTTP/2.
    Http2(Receiver),
    /// A buffer.
    Held(Box<BufferedBody>),
}

/// A buffered body.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    bytes: Bytes,
    room: Option<BodyReservation>,
}

impl Upload {
    /// The next frame.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match self {
            Self::None => Poll::Ready(None),
            Self::Http1(inbound) => inbound.poll_frame(cx).map_err(|_| UploadError::Client),
            Self::Http2(stream) => stream.poll_frame(cx).map_err(|_| UploadError::Client),
            Self::Held(held) => {
                let data = std::mem::take(&mut held.bytes);
                Poll::Ready((!data.is_empty()).then(|| Ok(Frame::data(data))))
            }
        }
    }

    /// Whether it has ended.
    pub(crate) fn is_ended(&self) -> bool {
        match self {
            Self::None => true,
            Self::Http1(inbound) => inbound.is_ended(),
            Self::Http2(stream) => stream.is_ended(),
            Self::Held(held) => held.bytes.is_empty(),
        }
    }

    /// The bytes that are left.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::Http1(inbound) => inbound.size_hint(),
            Self::Http2(stream) => stream.size_hint(),
            Self::Held(held) => SizeHint::with_exact(held.bytes.len() as u64),
        }
    }

    /// Copies it as far as it is known: an empty or a buffered body.
    pub(crate) fn copy_to(&self, tap: &RequestTap) {
        match self {
            Self::Held(held) => tap.whole(&held.bytes),
            other if other.is_ended() => tap.whole(&[]),
            _ => {}
        }
    }

    /// A buffered body with these bytes.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            return Self::None;
        }
        Self::Held(Box::new(BufferedBody { bytes, room: None }))
    }

    /// Buffers the whole body without trailers, until it is forwarded.
    pub(crate) async fn hold(
        &mut self,
        share: Share,
        bytes_max: usize,
        conn: &Arc<ConnState>,
        received: impl FnOnce() -> Option<Arc<AtomicU64>>,
    ) -> Result<Bytes, NotBuffered> {
        let mut incoming = match std::mem::replace(self, Self::None) {
            Self::None => return Ok(Bytes::new()),
            Self::Held(held) => {
                let bytes = held.bytes.clone();
                *self = Self::Held(held);
                return if bytes.len() > bytes_max {
                    Err(NotBuffered::TooLong)
                } else {
                    Ok(bytes)
                };
            }
            incoming => incoming,
        };
        if incoming.size_hint().lower() > bytes_max as u64 {
            return Err(NotBuffered::TooLong);
        }
        let received = received();
        let mut held = BufferedBody {
            bytes: Bytes::new(),
            room: None,
        };
        held.room = Some(BodyReservation::new(conn, share));
        let reading = held.read(&mut incoming, bytes_max, received.as_deref());
        match tokio::time::timeout(BUFFERED_WITHIN, reading).await {
            Ok(read) => read?,
            Err(_) => return Err(NotBuffered::TooSlow),
        }
        let bytes = held.bytes.clone();
        *self = Self::Held(Box::new(held));
        Ok(bytes)
    }

    /// Replaces the buffered bytes.
    pub(crate) fn put(&mut self, bytes: Bytes) {
        if let Self::Held(held) = self {
            held.bytes = bytes;
        }
    }
}

impl BufferedBody {
    async fn read(
        &mut self,
        incoming: &mut Upload,
        bytes_max: usize,
        received: Option<&AtomicU64>,
    ) -> Result<(), NotBuffered> {
        let mut whole = BytesMut::new();
        while let Some(frame) = poll_fn(|cx| incoming.poll_frame(cx)).await {
            let frame = frame.map_err(|_| NotBuffered::Broken)?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if whole.len() + data.len() > bytes_max {
                return Err(NotBuffered::TooLong);
            }
            if let Some(room) = &mut self.room {
                room.grow(data.len())?;
            }
            if let Some(received) = received {
                received.fetch_add(data.len() as u64, Ordering::Relaxed);
            }
            whole.extend_from_slice(&data);
        }
        self.bytes = whole.freeze();
        Ok(())
    }
}

impl RequestBody {
    pub(crate) fn empty() -> Self {
        Self(None)
    }

    /// Counts the bytes of the client in `received`, and limits them to `limit`.
    pub(crate) fn new(
        source: Upload,
        received: Option<Arc<AtomicU64>>,
        limit: Option<BodyLimit>,
    ) -> Self {
        Self(Some(Box::new(ReadBody {
            source,
            received,
            limit,
            is_cut: None,
            has_trailers: false,
            meter: None,
            tap: None,
        })))
    }

    fn with(mut self, set: impl FnOnce(&mut ReadBody)) -> Self {
        if let Some(body) = &mut self.0 {
            set(body);
        }
        self
    }

    /// Sets whether its protocol has trailers.
    pub(crate) fn with_trailers(self, has_trailers: bool) -> Self {
        self.with(|body| body.has_trailers = has_trailers)
    }

    /// Sets `is_cut` when the client aborts it.
    pub(crate) fn cut(self, is_cut: Option<Arc<AtomicBool>>) -> Self {
        self.with(|body| body.is_cut = is_cut)
    }

    /// Judges how fast the client sends it.
    pub(crate) fn metered(self, meter: Option<UploadMeter>) -> Self {
        self.with(|body| body.meter = meter)
    }

    /// Copies it.
    pub(crate) fn tapped(self, tap: Option<Arc<RequestTap>>) -> Self {
        self.with(|body| body.tap = tap)
    }
}

/// Copies a frame of a captured request.
fn copy(tap: &RequestTap, frame: &Frame<Bytes>, is_last: bool) {
    if let Some(data) = frame.data_ref() {
        tap.push(data);
    }
    if let Some(trailers) = frame.trailers_ref() {
        tap.trailers(trailers);
    }
    if is_last {
        tap.complete();
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Some(this) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let polled = loop {
            match this.source.poll_frame(cx) {
                // The end follows.
                Poll::Ready(Some(Ok(frame))) if frame.is_trailers() && !this.has_trailers => {}
                polled => break polled,
            }
        };
        match polled {
            Poll::Ready(Some(Ok(mut frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if let Some(meter) = &mut this.meter
                    && !meter.receive(bytes)
                {
                    return Poll::Ready(Some(Err(UploadError::TooSlow)));
                }
                if let (Some(data), Some(received)) = (frame.data_ref(), &this.received) {
                    received.fetch_add(data.len() as u64, Ordering::Relaxed);
                }
                if let (Some(data), Some(limit)) = (frame.data_ref(), &mut this.limit) {
                    match limit.left.checked_sub(data.len() as u64) {
                        Some(left) => limit.left = left,
                        None => {
                            limit.is_over.store(true, Ordering::Release);
                            return Poll::Ready(Some(Err(UploadError::TooLong)));
                        }
                    }
                }
                if let Some(trailers) = frame.trailers_mut() {
                    fields::strip_request_trailers(trailers);
                }
                if let Some(tap) = &this.tap {
                    copy(tap, &frame, this.source.is_ended());
                }
                // The reader may not poll again after the end.
                if let (Some(meter), true) = (&this.meter, this.source.is_ended()) {
                    meter.complete();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(is_cut) = &this.is_cut {
                    is_cut.store(true, Ordering::Release);
                }
                Poll::Ready(Some(Err(error)))
            }
            Poll::Pending => {
                if let Some(meter) = &mut this.meter {
                    meter.wait();
                }
                Poll::Pending
            }
            Poll::Ready(None) => {
                if let Some(meter) = this.meter.take() {
                    meter.complete();
                }
                if let Some(tap) = &this.tap {
                    tap.complete();
                }
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|body| body.source.is_ended())
    }

    fn size_hint(&self) -> SizeHint {
        let none = || SizeHint::with_exact(0);
        self.0
            .as_ref()
            .map_or_else(none, |body| body.source.size_hint())
    }
}
