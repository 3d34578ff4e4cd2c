//! Bodies on their way: a request's towards the upstream, an answer's towards the client. Both pass
//! frame by frame, only as fast as the receiver takes them, unless an action has to see the whole of
//! it first ([`Upload`]).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use culvert_base::BoxFuture;
use culvert_http::http1::Violation;
use culvert_policy::host::{BodyReader, Unread};
use culvert_policy::problem::Problem;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;

use crate::downstream::Downstream;
use crate::http::encoded::Encoded;
use crate::http::fields;
use crate::http::room::{NoRoom, Room};
use crate::http::upgrade::Tunnel;
use crate::http::upload::{Cap, UploadWatch};
use crate::http1::inbound::InboundBody;
use crate::http1::outbound::OutboundError;
use crate::http2::stream::Receiver;
use crate::recording::{ReceivedCounter, Recording};
use crate::upstream::pool::Lease;

/// From the first look at a body that is held to its last byte.
const HELD_WITHIN: Duration = Duration::from_secs(60);

/// A request's body, as the upstream's connection reads it.
#[derive(Debug)]
pub(crate) struct RequestBody {
    source: Upload,
    received: Option<Arc<AtomicU64>>,
    cap: Option<Cap>,
    /// Set when the client breaks it off.
    is_cut: Option<Arc<AtomicBool>>,
    /// Whether trailers may have underscores in their names; `None` where they are not looked at.
    keeps_underscores: Option<bool>,
    /// Judges how fast the client sends it.
    watch: Option<UploadWatch>,
}

/// Why a request's body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the client aborted the request")]
    Client,
    #[error("the request body is too long")]
    TooLong,
    #[error("the client sends too slowly")]
    TooSlow,
}

/// Where a request's body comes from.
#[derive(Debug)]
pub(crate) enum Upload {
    /// Nowhere: there is none, or it has ended.
    None,
    /// A client that speaks HTTP/1.
    Http1(Box<InboundBody>),
    /// A client that speaks HTTP/2.
    Http2(Receiver),
    /// Here: it was read before.
    Held(Box<Held>),
}

/// A body that was read before it is sent on.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: Bytes,
    trailers: Option<HeaderMap>,
    room: Option<Room>,
}

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHeld {
    /// It is longer than its reader takes.
    TooLong,
    /// Too many are held already.
    NoRoom,
    /// It did not come in time.
    TooSlow,
    /// Its sender broke off.
    Broken,
}

impl NotHeld {
    /// What the client is told of its request's body. `None` where it broke off: it is not there.
    pub(crate) fn problem(self) -> Option<Problem> {
        match self {
            Self::TooLong => Some(Problem::BodyTooLong),
            Self::NoRoom => Some(Problem::NoRoom),
            Self::TooSlow => Some(Problem::Violation(Violation::TooSlow)),
            Self::Broken => None,
        }
    }
}

/// The body of a request as policies read it.
#[derive(Debug)]
pub(crate) struct BufferedUpload<'x> {
    pub(crate) upload: &'x mut Upload,
    pub(crate) down: &'x Arc<Downstream>,
    pub(crate) received: ReceivedCounter<'x>,
}

impl BodyReader for BufferedUpload<'_> {
    fn read(&mut self, bytes_max: usize) -> BoxFuture<'_, Result<Bytes, Unread>> {
        let most = self.down.rules.limits.body_bytes;
        let bytes_max = bytes_max.min(usize::try_from(most).unwrap_or(usize::MAX));
        let received = || self.received.start();
        let held = self.upload.hold(bytes_max, self.down, received);
        Box::pin(async move {
            held.await
                .map_err(|why| why.problem().map_or(Unread::Broken, Unread::Problem))
        })
    }
}

impl From<NoRoom> for NotHeld {
    fn from(_: NoRoom) -> Self {
        Self::NoRoom
    }
}

impl Upload {
    /// The next part.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match self {
            Self::None => Poll::Ready(None),
            Self::Http1(inbound) => inbound.poll_frame(cx).map_err(|_| UploadError::Client),
            Self::Http2(stream) => stream.poll_frame(cx).map_err(|_| UploadError::Client),
            Self::Held(held) => {
                if !held.bytes.is_empty() {
                    let data = std::mem::take(&mut held.bytes);
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                let trailers = held.trailers.take();
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
        }
    }

    /// Whether nothing more is to come.
    pub(crate) fn is_ended(&self) -> bool {
        match self {
            Self::None => true,
            Self::Http1(inbound) => inbound.is_ended(),
            Self::Http2(stream) => stream.is_ended(),
            Self::Held(held) => held.bytes.is_empty() && held.trailers.is_none(),
        }
    }

    /// Bytes that are to come.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::Http1(inbound) => inbound.size_hint(),
            Self::Http2(stream) => stream.size_hint(),
            // Before trailers a length could not be told.
            Self::Held(held) if held.trailers.is_some() => SizeHint::default(),
            Self::Held(held) => SizeHint::with_exact(held.bytes.len() as u64),
        }
    }

    /// One that nobody has to send first.
    pub(crate) fn made(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            return Self::None;
        }
        Self::Held(Box::new(Held {
            bytes,
            trailers: None,
            room: None,
        }))
    }

    /// The whole body, read once and kept until it is sent on.
    pub(crate) async fn hold(
        &mut self,
        bytes_max: usize,
        down: &Arc<Downstream>,
        received: impl FnOnce() -> Option<Arc<AtomicU64>>,
    ) -> Result<Bytes, NotHeld> {
        let mut incoming = match std::mem::replace(self, Self::None) {
            Self::None => return Ok(Bytes::new()),
            Self::Held(held) => {
                let bytes = held.bytes.clone();
                *self = Self::Held(held);
                return if bytes.len() > bytes_max {
                    Err(NotHeld::TooLong)
                } else {
                    Ok(bytes)
                };
            }
            incoming => incoming,
        };
        if incoming.size_hint().lower() > bytes_max as u64 {
            return Err(NotHeld::TooLong);
        }
        let received = received();
        let mut held = Held {
            bytes: Bytes::new(),
            trailers: None,
            room: None,
        };
        let reading = held.read(&mut incoming, bytes_max, down, received.as_deref());
        match tokio::time::timeout(HELD_WITHIN, reading).await {
            Ok(read) => read?,
            Err(_) => return Err(NotHeld::TooSlow),
        }
        let bytes = held.bytes.clone();
        *self = Self::Held(Box::new(held));
        Ok(bytes)
    }

    /// Has other bytes in the place of those that are held.
    pub(crate) fn put(&mut self, bytes: Bytes) {
        if let Self::Held(held) = self {
            held.bytes = bytes;
        }
    }
}

impl Held {
    async fn read(
        &mut self,
        incoming: &mut Upload,
        bytes_max: usize,
        down: &Arc<Downstream>,
        received: Option<&AtomicU64>,
    ) -> Result<(), NotHeld> {
        let room = self.room.get_or_insert_with(|| Room::new(down));
        let mut whole = BytesMut::new();
        while let Some(frame) = poll_fn(|cx| incoming.poll_frame(cx)).await {
            let frame = frame.map_err(|_| NotHeld::Broken)?;
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(frame) => {
                    self.trailers = frame.into_trailers().ok();
                    continue;
                }
            };
            if whole.len() + data.len() > bytes_max {
                return Err(NotHeld::TooLong);
            }
            room.grow(data.len())?;
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
        Self {
            source: Upload::None,
            received: None,
            cap: None,
            is_cut: None,
            keeps_underscores: Some(false),
            watch: None,
        }
    }

    /// What comes from the client is counted in `received`, and may not be more than `cap` says.
    pub(crate) fn new(source: Upload, received: Option<Arc<AtomicU64>>, cap: Option<Cap>) -> Self {
        Self {
            source,
            received,
            cap,
            is_cut: None,
            keeps_underscores: Some(false),
            watch: None,
        }
    }

    /// Whether trailers may have underscores in their names; with `None` they are not looked at.
    pub(crate) fn underscores(self, keeps_underscores: Option<bool>) -> Self {
        Self {
            keeps_underscores,
            ..self
        }
    }

    /// Says in `is_cut` when the client breaks it off.
    pub(crate) fn cut(self, is_cut: Option<Arc<AtomicBool>>) -> Self {
        Self { is_cut, ..self }
    }

    /// Judges how fast the client sends it.
    pub(crate) fn watched(self, watch: Option<UploadWatch>) -> Self {
        Self { watch, ..self }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = &mut *self;
        match this.source.poll_frame(cx) {
            Poll::Ready(Some(Ok(mut frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if let Some(watch) = &mut this.watch
                    && !watch.came(bytes)
                {
                    return Poll::Ready(Some(Err(UploadError::TooSlow)));
                }
                if let (Some(data), Some(received)) = (frame.data_ref(), &this.received) {
                    received.fetch_add(data.len() as u64, Ordering::Relaxed);
                }
                if let (Some(data), Some(cap)) = (frame.data_ref(), &mut this.cap) {
                    match cap.left.checked_sub(data.len() as u64) {
                        Some(left) => cap.left = left,
                        None => {
                            cap.is_over.store(true, Ordering::Release);
                            return Poll::Ready(Some(Err(UploadError::TooLong)));
                        }
                    }
                }
                if let Some(trailers) = frame.trailers_mut() {
                    fields::strip_trailers(trailers);
                    if let Some(keeps_underscores) = this.keeps_underscores {
                        fields::strip_mixed_up(trailers, keeps_underscores);
                    }
                }
                // Its reader may not ask for what comes behind the end.
                if let (Some(watch), true) = (&this.watch, this.source.is_ended()) {
                    watch.is_whole();
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
                if let Some(watch) = &mut this.watch {
                    watch.waits();
                }
                Poll::Pending
            }
            Poll::Ready(None) => {
                if let Some(watch) = this.watch.take() {
                    watch.is_whole();
                }
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_ended()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

/// Why an answer's body broke off. The client sees a reset, never a clean end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the upstream aborted the response: {0}")]
    Http1(#[from] OutboundError),
    #[error("the upstream aborted the response: {0}")]
    Http2(#[from] hyper::Error),
    #[error("idle timeout")]
    Stalled,
    #[error("the body cannot be encoded: {0}")]
    Encoding(#[from] std::io::Error),
}

/// An answer's body, as the client's connection reads it. With it lives the exchange: when it is
/// dropped, the exchange is over.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    source: Source,
    is_chunked: bool,
    /// Since when the upstream is silent, and the bytes that had come from the client then.
    silent: Option<(Instant, u64)>,
    /// `None` when the exchange goes on elsewhere: after an upgrade.
    recording: Option<Recording>,
    /// What the connection, or the stream of it, becomes with this answer.
    tunnel: Option<Box<Tunnel>>,
}

/// Where an answer's body comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Nowhere: it has none, or had one that has ended.
    None,
    /// The edge itself.
    Edge(Bytes),
    /// The same, with its share of the memory for bodies that are held.
    Held { bytes: Bytes, _room: Room },
    /// An HTTP/1 upstream, with the connection that carries it.
    Http1(Lease),
    /// An HTTP/2 upstream.
    Http2(Incoming),
    /// The same, with a stream that is to become something else: nothing before that.
    Stream(OnUpgrade),
    /// One of these, encoded on the way.
    Encoded(Box<Encoded>),
}

impl ResponseBody {
    pub(crate) fn new(source: Source, recording: Recording) -> Self {
        Self {
            source,
            is_chunked: false,
            silent: None,
            recording: Some(recording),
            tunnel: None,
        }
    }

    /// The body of an answer whose exchange goes on as a tunnel.
    pub(crate) fn of_upgrade(tunnel: Box<Tunnel>) -> Self {
        Self {
            tunnel: Some(tunnel),
            source: Source::None,
            is_chunked: false,
            silent: None,
            recording: None,
        }
    }

    /// What the connection, or the stream of it, becomes behind this answer, if it does.
    pub(crate) fn take_tunnel(&mut self) -> Option<Box<Tunnel>> {
        self.tunnel.take()
    }

    /// The longest that the client may take nothing of it, if that is not as the settings say.
    pub(crate) fn write_limit(&self) -> Option<Duration> {
        self.recording.as_ref()?.timeouts().write
    }

    /// Whether the exchange ends now because nothing moved either way for too long.
    fn is_idle(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(recording) = &mut self.recording else {
            return false;
        };
        let limit = recording.idle_limit();
        loop {
            let (bytes_in, _) = recording.down().counters.bytes();
            let (since, before) = *self.silent.get_or_insert((Instant::now(), bytes_in));
            if !recording.alarm.is_due(cx, since + limit) {
                return false;
            }
            if bytes_in == before {
                return true;
            }
            // The client has sent something meanwhile.
            self.silent = None;
        }
    }

    /// Speaks to the exchange's recording, if it is here.
    pub(crate) fn recorded(&mut self, say: impl FnOnce(&mut Recording)) {
        if let Some(recording) = &mut self.recording {
            say(recording);
        }
    }

    /// Says that it will be sent in chunks.
    pub(crate) fn chunked(mut self) -> Self {
        self.is_chunked = true;
        self
    }
}

impl Source {
    /// The next frame, moving the bytes of the upstream's connection.
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
            Self::Http2(incoming) => Pin::new(incoming).poll_frame(cx).map_err(BodyError::from),
            Self::Encoded(encoded) => encoded.poll(cx),
        }
    }

    /// The whole body, without trailers, and the room it takes.
    pub(crate) async fn hold(
        &mut self,
        bytes_max: usize,
        down: &Arc<Downstream>,
    ) -> Result<(Bytes, Room), NotHeld> {
        if self.size_hint().lower() > bytes_max as u64 {
            return Err(NotHeld::TooLong);
        }
        let reading = async {
            let (mut whole, mut room) = (BytesMut::new(), Room::new(down));
            while let Some(frame) = poll_fn(|cx| self.poll(cx)).await {
                let Ok(data) = frame.map_err(|_| NotHeld::Broken)?.into_data() else {
                    continue;
                };
                if whole.len() + data.len() > bytes_max {
                    return Err(NotHeld::TooLong);
                }
                room.grow(data.len())?;
                whole.extend_from_slice(&data);
            }
            self.end();
            Ok((whole.freeze(), room))
        };
        let held = tokio::time::timeout(HELD_WITHIN, reading).await;
        held.unwrap_or(Err(NotHeld::TooSlow))
    }

    /// The upstream's part is complete.
    pub(crate) fn end(&mut self) {
        match std::mem::replace(self, Self::None) {
            Self::Http1(lease) => lease.give_back(),
            Self::Encoded(mut encoded) => encoded.end(),
            _ => {}
        }
    }

    /// Whether nothing is left to come.
    pub(crate) fn is_ended(&self) -> bool {
        match self {
            Self::None | Self::Stream(_) => true,
            Self::Edge(bytes) | Self::Held { bytes, .. } => bytes.is_empty(),
            Self::Http1(lease) => lease.is_spent(),
            Self::Http2(incoming) => incoming.is_end_stream(),
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
            Self::Http2(incoming) => incoming.size_hint(),
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
                if let (Source::Encoded(encoded), Some(recording)) =
                    (&this.source, &mut this.recording)
                {
                    recording.encoded(encoded.raw());
                }
                if let (Some(data), Some(recording)) = (frame.data_ref(), &mut this.recording) {
                    recording.sent(data.len(), this.is_chunked);
                }
                let trailers = frame.trailers_mut();
                let is_last = trailers.is_some();
                if let Some(trailers) = trailers {
                    fields::strip_trailers(trailers);
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
        if self.source.is_ended() {
            self.recorded(Recording::answered);
        }
    }
}
