//! The state of one stream: what its request brings, and what it is answered.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, response};
use http_body::Frame;

use super::{
    By, CONNECTION_WINDOW, DATA_BYTES_MAX, GATHERED_BYTES_MAX, Gone, LINGERS_FOR, STREAM_WINDOW,
    Session,
};
use crate::http2::frame::{self, Reason};
use crate::http2::{head, hpack};

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// What has come and was not taken: in front what came in large pieces, behind it what is gathered.
    pub(super) data: VecDeque<Bytes>,
    pub(super) gathered: BytesMut,
    pub(super) held: u32,
    pub(super) trailers: Option<HeaderMap>,
    /// Whether all of it has come, and how much of it has to.
    pub(super) is_received: bool,
    pub(super) length_left: Option<u64>,
    pub(super) has_reader: bool,
    /// Whether the client waits for a word before it sends any of it (RFC 9110 10.1.1).
    pub(super) owes_continue: bool,
    pub(super) room: u32,
    pub(super) taken: u32,
    pub(super) reader: Option<Waker>,
    /// What we may send.
    pub(super) window: i64,
    pub(super) is_sent: bool,
    /// When it is reset, if nothing but its request's end is awaited.
    pub(super) lingers_until: Option<Instant>,
    pub(super) writer: Option<Waker>,
    /// The task that answers.
    pub(super) task: Option<Waker>,
}

impl Stream {
    fn take(&mut self) -> Option<Bytes> {
        let gathered = &mut self.gathered;
        let gathered = || (!gathered.is_empty()).then(|| gathered.split().freeze());
        let data = self.data.pop_front().or_else(gathered)?;
        self.held -= data.len() as u32;
        Some(data)
    }

    pub(super) fn put(&mut self, data: Bytes) {
        self.held += data.len() as u32;
        if data.len() <= GATHERED_BYTES_MAX {
            self.gathered.extend_from_slice(&data);
            return;
        }
        if !self.gathered.is_empty() {
            self.data.push_back(self.gathered.split().freeze());
        }
        self.data.push_back(data);
    }

    pub(super) fn wake_all(&mut self) {
        let all = [self.reader.take(), self.writer.take(), self.task.take()];
        all.into_iter().flatten().for_each(Waker::wake);
    }
}
/// Keeps the waker of the task that waits.
fn keep(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}
impl Session {
    // What a stream's request brings.

    /// The next part of a request's body.
    pub fn poll_data(
        &mut self,
        id: u32,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Gone>>> {
        let Some(stream) = self.stream(id) else {
            return Poll::Ready(Some(Err(Gone)));
        };
        if let Some(data) = stream.take() {
            let bytes = data.len() as u32;
            stream.taken += bytes;
            self.took(bytes);
            self.widen(id);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(trailers) = stream.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if stream.is_received {
            return Poll::Ready(None);
        }
        keep(&mut stream.reader, cx);
        if std::mem::take(&mut stream.owes_continue) {
            self.begin_section();
            hpack::write_status(&mut self.written, StatusCode::CONTINUE);
            self.send_section(id, false);
        }
        Poll::Pending
    }

    /// Whether all of a request's body was taken.
    pub fn is_taken(&mut self, id: u32) -> bool {
        let stream = self.stream(id);
        stream.is_some_and(|it| it.is_received && it.held == 0 && it.trailers.is_none())
    }

    /// Nobody reads a request's body any more.
    pub fn leave_unread(&mut self, id: u32) {
        if let Some(stream) = self.stream(id) {
            stream.has_reader = false;
            stream.reader = None;
            let held = self.drop_held(id);
            self.took(held);
        }
    }

    fn drop_held(&mut self, id: u32) -> u32 {
        let Some(stream) = self.stream(id) else {
            return 0;
        };
        stream.data.clear();
        stream.gathered = BytesMut::new();
        std::mem::take(&mut stream.held)
    }

    /// So many bytes are no longer held: the client may send more, and hears of it now and then.
    pub(super) fn took(&mut self, bytes: u32) {
        self.taken += bytes;
        if self.taken >= CONNECTION_WINDOW / 2 {
            let taken = std::mem::take(&mut self.taken);
            self.room += taken;
            self.tell_window(0, taken);
        }
    }

    fn widen(&mut self, id: u32) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        if !stream.is_received && stream.taken >= STREAM_WINDOW / 2 {
            let taken = std::mem::take(&mut stream.taken);
            stream.room += taken;
            self.tell_window(id, taken);
        }
    }

    // What a stream is answered.

    /// Keeps the task that answers on a stream, to be woken when the stream is no more.
    pub fn poll_gone(&mut self, id: u32, cx: &Context<'_>) -> Poll<Gone> {
        match self.stream(id) {
            Some(stream) => {
                keep(&mut stream.task, cx);
                Poll::Pending
            }
            None => Poll::Ready(Gone),
        }
    }

    /// Waits until something can be sent on a stream.
    pub fn poll_room(&mut self, id: u32, cx: &Context<'_>) -> Poll<Result<(), Gone>> {
        if self.stream(id).is_none() {
            return Poll::Ready(Err(Gone));
        }
        if self.out.has_room() {
            return Poll::Ready(Ok(()));
        }
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push_back(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until data can be sent on a stream: so many bytes. To be asked only for data that is there.
    pub fn poll_window(&mut self, id: u32, cx: &Context<'_>) -> Poll<Result<usize, Gone>> {
        let window = self.window;
        let Some(stream) = self.stream(id) else {
            return Poll::Ready(Err(Gone));
        };
        let window = usize::try_from(window.min(stream.window)).unwrap_or(0);
        if window == 0 {
            keep(&mut stream.writer, cx);
            return Poll::Pending;
        }
        let room = self.poll_room(id, cx);
        room.map_ok(|()| window.min(DATA_BYTES_MAX))
    }

    /// Sends an answer before the answer (RFC 9110 15.2), unless the client takes nothing.
    pub fn send_interim(&mut self, id: u32, answer: &response::Parts) {
        if self.out.has_room() {
            self.begin_section();
            head::write_answer(&mut self.written, answer);
            self.send_section(id, false);
        }
    }

    /// Sends the head of an answer.
    pub fn send_head(&mut self, id: u32, answer: &response::Parts, is_last: bool) {
        if let Some(stream) = self.stream(id) {
            stream.owes_continue = false;
        }
        self.begin_section();
        head::write_answer(&mut self.written, answer);
        self.send_section(id, is_last);
    }

    /// Sends the fields behind an answer.
    pub fn send_trailers(&mut self, id: u32, trailers: &HeaderMap) {
        self.begin_section();
        head::write_fields(&mut self.written, trailers);
        self.send_section(id, true);
    }

    fn begin_section(&mut self) {
        self.written.clear();
        if !std::mem::replace(&mut self.is_table_told, true) {
            // The client need keep no table for us (RFC 7541 6.3).
            self.written.push(0x20);
        }
    }

    fn send_section(&mut self, id: u32, is_last: bool) {
        if self.stream(id).is_none() {
            return;
        }
        let out = self.out.front();
        let mut pieces = self.written.chunks(frame::PAYLOAD_BYTES_MAX).peekable();
        let mut kind = frame::HEADERS;
        let mut flags = if is_last { frame::END_STREAM } else { 0 };
        // A section is never empty, but for trailers none of whose fields may be sent.
        let nothing: &[u8] = &[];
        let mut piece = Some(pieces.next().unwrap_or(nothing));
        while let Some(bytes) = piece {
            piece = pieces.next();
            if piece.is_none() {
                flags |= frame::END_HEADERS;
            }
            frame::begin(out, bytes.len(), kind, flags, id);
            out.extend_from_slice(bytes);
            (kind, flags) = (frame::CONTINUATION, 0);
        }
        self.ledger.sent_section();
        if is_last {
            self.sent_all(id);
        }
    }

    /// Sends data, not more than there is a window for.
    pub fn send_data(&mut self, id: u32, data: Bytes, is_last: bool) {
        let bytes = data.len();
        let window = self.window;
        let Some(stream) = self.stream(id) else {
            return;
        };
        let fills = stream.window.min(window) <= bytes as i64;
        stream.window -= bytes as i64;
        self.window -= bytes as i64;
        self.ledger.sent_data(bytes, fills);
        let flags = if is_last { frame::END_STREAM } else { 0 };
        frame::begin(self.out.front(), bytes, frame::DATA, flags, id);
        self.out.push(data, b"");
        if is_last {
            self.sent_all(id);
        }
    }

    /// An answer was sent to its end.
    fn sent_all(&mut self, id: u32) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        stream.is_sent = true;
        let is_received = stream.is_received;
        self.ledger.answered();
        if is_received {
            self.remove(id, By::Us);
        }
    }

    /// Whoever answered on a stream is done with it: what was not sent never will be, and what the client
    /// still sends nobody wants. A stream without its end is reset for `reason`, or for that of the
    /// connection's end.
    pub fn close(&mut self, id: u32, reason: Reason, now: Instant) {
        let reason = self.closing.unwrap_or(reason);
        match self.stream(id) {
            Some(stream) if stream.is_sent => stream.lingers_until = Some(now + LINGERS_FOR),
            Some(_) => self.reset_at(id, reason, now),
            None => {}
        }
    }
}
