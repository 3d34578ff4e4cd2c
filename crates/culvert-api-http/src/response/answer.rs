//! The body of a response, and header values that all responses share.
//!
//! A body is either whole, which is the usual case and needs one buffer, or a live tail. It also holds values that
//! must live until its last byte is sent, such as the mark that its connection is busy: the HTTP library keeps pieces after
//! the body has ended, so each piece holds them too. A whole body leaves in pieces, so that the library buffers little.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};

use crate::access::limits::OwnerShare;
use crate::connection::connection_state::Busy;

/// The content type of JSON.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The cache control of what no cache may keep.
pub const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Limit of a piece of a whole body. HTTP/2 buffers one for each response whose peer does not read.
const PIECE_BYTES_MAX: usize = 16 << 10;

type Stream = Pin<Box<dyn http_body::Body<Data = Bytes, Error = Infallible> + Send>>;

/// The body of a response.
pub struct Body {
    content: Content,
    held: Arc<Held>,
}

/// What a response holds until its last byte is sent.
#[derive(Debug, Default)]
struct Held {
    busy: Option<Busy>,
    share: Option<OwnerShare>,
}

/// A piece of a body.
#[derive(Debug)]
pub struct Piece {
    bytes: Bytes,
    held: Arc<Held>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, n_bytes: usize) {
        self.bytes.advance(n_bytes);
        if let Some(busy) = &self.held.busy {
            busy.progressed();
        }
    }
}

enum Content {
    Whole(Option<Bytes>),
    Stream(Stream),
}

impl Body {
    /// A body of no bytes.
    pub fn empty() -> Self {
        Self {
            content: Content::Whole(None),
            held: Arc::default(),
        }
    }

    /// A body of these bytes.
    pub fn whole(bytes: Bytes) -> Self {
        Self {
            content: Content::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())),
            held: Arc::default(),
        }
    }

    /// A body whose length is not known.
    pub fn stream(
        stream: impl http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
    ) -> Self {
        Self {
            content: Content::Stream(Box::pin(stream)),
            held: Arc::default(),
        }
    }

    /// Marks the connection as busy until this body is sent or dropped.
    pub fn hold(&mut self, busy: Busy) {
        busy.offered();
        let held = Arc::get_mut(&mut self.held);
        debug_assert!(held.is_some(), "no piece of the body has left");
        if let Some(held) = held {
            held.busy = Some(busy);
        }
    }

    /// Keeps the share of the request's owner until a whole body is sent or dropped: it takes memory until then. Streams
    /// have another limit.
    pub fn keep(&mut self, share: OwnerShare) {
        if !matches!(self.content, Content::Whole(Some(_))) {
            return;
        }
        let held = Arc::get_mut(&mut self.held);
        debug_assert!(held.is_some(), "no piece of the body has left");
        if let Some(held) = held {
            held.share = Some(share);
        }
    }
}

/// Takes the next piece; nothing is left after the last one.
fn next_piece(whole: &mut Option<Bytes>) -> Option<Bytes> {
    let mut rest = whole.take()?;
    let piece = rest.split_to(rest.len().min(PIECE_BYTES_MAX));
    *whole = Some(rest).filter(|rest| !rest.is_empty());
    Some(piece)
}

/// The response to `HEAD`: that to `GET` with the length of its body instead of the body.
pub fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let length = body.size_hint().exact();
    if let Some(length) = length.filter(|_| parts.status != StatusCode::NOT_MODIFIED) {
        parts.headers.insert(CONTENT_LENGTH, length.into());
    }
    Response::from_parts(parts, Body::empty())
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content {
            Content::Whole(bytes) => f.debug_tuple("Whole").field(bytes).finish(),
            Content::Stream(_) => f.write_str("Stream"),
        }
    }
}

impl http_body::Body for Body {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Infallible>>> {
        let body = &mut *self;
        if let Some(busy) = &body.held.busy {
            busy.taken();
        }
        let polled = match &mut body.content {
            Content::Whole(whole) => {
                Poll::Ready(next_piece(whole).map(|piece| Ok(Frame::data(piece))))
            }
            Content::Stream(stream) => stream.as_mut().poll_frame(context),
        };
        if let (Some(busy), Poll::Ready(Some(_))) = (&body.held.busy, &polled) {
            busy.offered();
        }
        let held = &body.held;
        let piece = |bytes| Piece {
            bytes,
            held: Arc::clone(held),
        };
        polled.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_none(),
            Content::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Stream(stream) => stream.size_hint(),
        }
    }
}
