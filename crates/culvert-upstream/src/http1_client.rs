//! An HTTP/1 connection to an upstream: one request at a time.
//!
//! While it waits for the response it also sends the body of the request, so a response may arrive before the request is
//! complete. The body of a request that expects 100 (Continue) waits for it, but not for long, because old servers do not
//! send it (RFC 9110 10.1.1). A connection is not reused if the body was not sent, if its framing was ambiguous or if more arrived than was requested.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use culvert_http::http1::{
    BodyPart, BodyWriter, FinalHead, ResponseHead, ResponseReader, WriteBuffer, WrongLength,
};
use culvert_io::{Alarm, Pipe, ReadBuffer, RelayEnd, write};
use http::{Method, StatusCode, response};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use crate::ports::{UploadBody, UploadError, UpstreamHead};
use crate::stream::{Excess, UpstreamStream};

/// How long the body of a request waits for 100 (Continue). As long as that of curl.
const CONTINUES_WITHIN: Duration = Duration::from_secs(1);
/// Initial size of a read.
const READ_BYTES_MIN: usize = 8 << 10;

/// A connection to an upstream.
#[derive(Debug)]
pub(crate) struct Http1Client<B> {
    wire: UpstreamStream,
    inbox: ReadBuffer,
    reader: ResponseReader,
    outbox: WriteBuffer,
    /// The body of the request, until all of it is in the write buffer.
    upload: Option<B>,
    sending: BodyWriter,
    /// While the body waits for 100 (Continue).
    held: Option<Box<HeldBody>>,
    /// Why the request is incomplete. A response may arrive all the same.
    failed: Option<io::Error>,
}

/// A body that waits for 100 (Continue).
#[derive(Debug)]
struct HeldBody {
    until: Instant,
    alarm: Alarm,
}

/// What a connection between two exchanges is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReuseState {
    /// The last exchange is complete, and nothing has arrived since.
    Free,
    /// It can carry no other exchange.
    Over,
    /// The upstream has sent more than was requested.
    Excess,
}

/// Number of bytes of unrequested data that are compared.
const EXCESS_BYTES: usize = 12;

impl ReuseState {
    /// For a connection on which these bytes arrived without a request. Some servers send a 408 when they close an idle
    /// connection, which is no excess.
    fn after(bytes: &[u8]) -> Self {
        let timeouts: [&[u8; EXCESS_BYTES]; 2] = [b"HTTP/1.1 408", b"HTTP/1.0 408"];
        match timeouts.iter().any(|head| bytes.starts_with(*head)) {
            true => Self::Over,
            false => Self::Excess,
        }
    }
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum Http1ClientError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// It ended before the response was complete.
    #[error("the connection ended before the response was complete")]
    Ended,
    /// The response is invalid.
    #[error("the response is invalid: {0}")]
    Malformed(&'static str),
    /// The body of the request is incomplete.
    #[error("{0}")]
    Upload(#[from] UploadError),
    /// The body of the request has another length than its head says.
    #[error("{0}")]
    WrongLength(#[from] WrongLength),
}

impl<B: UploadBody> Http1Client<B> {
    pub(crate) fn new(wire: UpstreamStream) -> Self {
        Self {
            wire,
            inbox: ReadBuffer::new(READ_BYTES_MIN),
            reader: ResponseReader::default(),
            outbox: WriteBuffer::default(),
            upload: None,
            sending: BodyWriter::None,
            held: None,
            failed: None,
        }
    }

    /// Starts a request on a connection that is new or [free](Self::idle).
    pub(crate) fn start(&mut self, head: &impl UpstreamHead, body: B) {
        debug_assert!(self.is_over(), "another exchange has not ended");
        self.reader.expect(*head.method() == Method::HEAD);
        if head.wants_raw_response() {
            self.reader.keep_raw();
        }
        self.sending = head.write(&mut self.outbox, body.size_hint().exact());
        self.upload = (!body.is_end_stream() || self.sending != BodyWriter::None).then_some(body);
        let is_held = self.upload.is_some() && head.awaits_continue();
        self.held = is_held.then(|| {
            Box::new(HeldBody {
                until: Instant::now() + CONTINUES_WITHIN,
                alarm: Alarm::default(),
            })
        });
    }

    /// Waits for the head of the response while sending the request. Passes interim responses to `inform`.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        mut inform: impl FnMut(response::Parts),
    ) -> Poll<Result<FinalHead, Http1ClientError>> {
        self.poll_upload(cx)?;
        loop {
            let head = self.reader.head(self.inbox.bytes());
            match head.map_err(Http1ClientError::Malformed)? {
                Some(ResponseHead::Final(head)) => {
                    if self.held.take().is_some() {
                        // The upstream does not know that no body follows.
                        self.upload = None;
                        self.reader.break_off();
                    }
                    return Poll::Ready(Ok(head));
                }
                Some(ResponseHead::Interim(parts)) => {
                    if parts.status == StatusCode::CONTINUE && self.held.take().is_some() {
                        self.poll_upload(cx)?;
                    }
                    inform(parts);
                    continue;
                }
                None => {}
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(match self.failed.take() {
                    Some(error) => Http1ClientError::Io(error),
                    None => Http1ClientError::Ended,
                }));
            }
        }
    }

    /// Waits for the next part of the response's body while sending the request.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1ClientError>>> {
        self.poll_upload(cx)?;
        loop {
            let part = self.reader.body(self.inbox.bytes());
            match part.map_err(Http1ClientError::Malformed)? {
                BodyPart::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                BodyPart::Trailers(trailers) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                BodyPart::End => return Poll::Ready(None),
                BodyPart::More => {}
            }
            if ready!(self.poll_fill(cx))? == 0 && !self.reader.close() {
                return Poll::Ready(Some(Err(Http1ClientError::Ended)));
            }
        }
    }

    /// Bytes of the response's body that the kernel can move to another socket: all that are missing, if nothing else is
    /// to be done with this connection meanwhile. 0 if there are none.
    pub(crate) fn movable(&self) -> u64 {
        let is_free = self.wire.is_socket()
            && self.upload.is_none()
            && self.outbox.is_empty()
            && self.inbox.is_empty();
        match is_free {
            true => self.reader.missing().unwrap_or(0),
            false => 0,
        }
    }

    /// Moves some of these bytes into an empty pipe. 0 means that the connection has ended.
    pub(crate) fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
    ) -> Poll<io::Result<usize>> {
        let bytes_max = usize::try_from(self.movable()).unwrap_or(usize::MAX);
        let bytes = ready!(self.wire.poll_fill(cx, pipe, bytes_max))?;
        self.reader.passed(bytes as u64);
        Poll::Ready(Ok(bytes))
    }

    /// Whether the response was read completely.
    pub(crate) fn is_spent(&self) -> bool {
        self.reader.is_spent()
    }

    /// Bytes of the body that are missing.
    pub(crate) fn size_hint(&self) -> SizeHint {
        self.reader.size_hint()
    }

    /// Whether the exchange is complete and the connection can be reused.
    pub(crate) fn is_complete(&self) -> bool {
        self.reader.keeps_alive()
            && self.failed.is_none()
            && self.is_spent()
            && self.upload.is_none()
            && self.outbox.is_empty()
            && self.inbox.is_empty()
    }

    /// Whether the connection can be used for a request. Asks the kernel, because the runtime learns of what arrives only
    /// between the turns of tasks.
    pub(crate) fn idle(&mut self, cx: &mut Context<'_>) -> ReuseState {
        let known = self.known_idle();
        if known != ReuseState::Free {
            return known;
        }
        // Buffers of the last read may still be in use, so none is allocated here.
        let mut room = [0; EXCESS_BYTES];
        if !self.wire.is_plain() {
            let mut buf = ReadBuf::new(&mut room);
            match Pin::new(&mut self.wire).poll_read(cx, &mut buf) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    return ReuseState::after(buf.filled());
                }
                Poll::Ready(_) => return ReuseState::Over,
            }
        }
        match self.wire.read_excess(&mut room) {
            Excess::None => ReuseState::Free,
            Excess::End => ReuseState::Over,
            Excess::Bytes(bytes) => ReuseState::after(bytes),
        }
    }

    /// As [`Self::idle`], as far as it has been read.
    pub(crate) fn known_idle(&mut self) -> ReuseState {
        if self.is_complete() {
            ReuseState::Free
        } else if self.is_spent() && !self.inbox.is_empty() {
            ReuseState::after(self.inbox.bytes())
        } else {
            ReuseState::Over
        }
    }

    /// Whether the exchange is complete.
    pub(crate) fn is_over(&self) -> bool {
        self.failed.is_none() && self.is_spent() && self.upload.is_none() && self.outbox.is_empty()
    }

    /// The transport.
    pub(crate) fn wire(&mut self) -> &mut UpstreamStream {
        &mut self.wire
    }

    /// Frees the buffers.
    pub(crate) fn free_buffers(&mut self) {
        self.inbox.free();
        self.outbox.clear();
    }

    /// The transport, and the bytes behind the last head.
    pub(crate) fn into_wire(mut self) -> (UpstreamStream, Bytes) {
        let early = self.inbox.take_all();
        (self.wire, early)
    }

    /// Reads more. 0 is the end, also of a TLS connection without `close_notify`: many servers leave it
    /// out, and the length of a message says whether it is whole (RFC 9112, 9.8). A body that only the
    /// close delimits is taken as whole, as nginx does.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match ready!(self.inbox.poll_fill(&mut self.wire, cx)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(0)),
            read => Poll::Ready(read),
        }
    }

    /// Sends the request as far as possible.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), Http1ClientError> {
        if let Some(held) = &mut self.held {
            if !held.alarm.is_due(cx, held.until) {
                self.poll_outbox(cx);
                return Ok(());
            }
            self.held = None;
        }
        while let Some(upload) = &mut self.upload {
            let out = &mut self.outbox;
            match write::poll_capacity(out, &mut self.wire, cx, &mut 0) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.give_up(error);
                    return Ok(());
                }
                Poll::Pending => return Ok(()),
            }
            match Pin::new(upload).poll_frame(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => {
                    self.sending.end(None, out)?;
                    self.upload = None;
                }
                Poll::Ready(Some(frame)) => match frame?.into_data() {
                    Ok(data) => self.sending.data(data, out)?,
                    Err(frame) => {
                        let trailers = frame.into_trailers().ok();
                        self.sending.end(trailers.as_ref(), out)?;
                        self.upload = None;
                    }
                },
            }
        }
        self.poll_outbox(cx);
        Ok(())
    }

    /// Writes the write buffer as far as possible.
    fn poll_outbox(&mut self, cx: &mut Context<'_>) {
        if !self.outbox.is_empty()
            && let Poll::Ready(Err(error)) =
                write::poll_empty(&mut self.outbox, &mut self.wire, cx, &mut 0)
        {
            self.give_up(error);
        }
    }

    /// The request cannot be completed.
    fn give_up(&mut self, error: io::Error) {
        self.upload = None;
        self.held = None;
        self.outbox.clear();
        self.reader.break_off();
        self.failed = Some(error);
    }
}
