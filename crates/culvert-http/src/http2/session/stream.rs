//! The state of one stream, and what the application does with it.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, response};
use http_body::Frame;

use super::{
    By, CLOSES_WITHIN, CONNECTION_WINDOW, COPIED_BYTES_MAX, DATA_BYTES_MAX, STREAM_WINDOW, Session,
    StreamClosed,
};
use crate::http2::frame::{self, Reason};
use crate::http2::{head, hpack};

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// Received data that was not read: large payloads first, then small ones that were copied together.
    pub(super) data: VecDeque<Bytes>,
    pub(super) copied: BytesMut,
    /// Bytes in `data` and `copied`.
    pub(super) buffered: u32,
    pub(super) trailers: Option<HeaderMap>,
    /// Whether the client has ended the stream.
    pub(super) is_received: bool,
    /// The bytes of `content-length` that have not arrived; `None` without that field.
    pub(super) length_left: Option<u64>,
    pub(super) has_reader: bool,
    /// Whether the client waits for 100 (Continue) before it sends its body (RFC 9110 10.1.1).
    pub(super) owes_continue: bool,
    /// Bytes that the client may still send.
    pub(super) receive_window: u32,
    /// Bytes read by the application that no WINDOW_UPDATE has returned yet.
    pub(super) unacked: u32,
    pub(super) reader: Option<Waker>,
    /// Bytes that may be sent on the stream; negative after the client has reduced its initial window.
    pub(super) send_window: i64,
    /// Whether the response is complete.
    pub(super) is_sent: bool,
    /// When the stream is reset unless the request ends before; set once the response is complete.
    pub(super) closes_at: Option<Instant>,
    pub(super) writer: Option<Waker>,
    /// The task that serves the request.
    pub(super) task: Option<Waker>,
}

impl Stream {
    fn take(&mut self) -> Option<Bytes> {
        let copied = &mut self.copied;
        let copied = || (!copied.is_empty()).then(|| copied.split().freeze());
        let data = self.data.pop_front().or_else(copied)?;
        self.buffered -= data.len() as u32;
        Some(data)
    }

    pub(super) fn put(&mut self, data: Bytes) {
        self.buffered += data.len() as u32;
        if data.len() <= COPIED_BYTES_MAX {
            self.copied.extend_from_slice(&data);
            return;
        }
        if !self.copied.is_empty() {
            self.data.push_back(self.copied.split().freeze());
        }
        self.data.push_back(data);
    }

    pub(super) fn wake_all(&mut self) {
        let all = [self.reader.take(), self.writer.take(), self.task.take()];
        all.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Stores the waker of the current task in `slot`.
fn store_waker(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

impl Session {
    // Reading a request's body.

    /// The next part of the body.
    pub fn poll_data(
        &mut self,
        id: u32,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamClosed>>> {
        let Some(stream) = self.stream(id) else {
            return Poll::Ready(Some(Err(StreamClosed)));
        };
        if let Some(data) = stream.take() {
            let bytes = data.len() as u32;
            stream.unacked += bytes;
            self.release(bytes);
            self.update_stream_window(id);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(trailers) = stream.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if stream.is_received {
            return Poll::Ready(None);
        }
        store_waker(&mut stream.reader, cx);
        if std::mem::take(&mut stream.owes_continue) {
            self.begin_section();
            hpack::write_status(&mut self.section_out, StatusCode::CONTINUE);
            self.send_section(id, false);
        }
        Poll::Pending
    }

    /// Whether the application has read the whole body.
    pub fn is_read(&mut self, id: u32) -> bool {
        let stream = self.stream(id);
        stream.is_some_and(|it| it.is_received && it.buffered == 0 && it.trailers.is_none())
    }

    /// The application reads no more of the body.
    pub fn stop_reading(&mut self, id: u32) {
        if let Some(stream) = self.stream(id) {
            stream.has_reader = false;
            stream.reader = None;
            let buffered = self.drop_buffered(id);
            self.release(buffered);
        }
    }

    fn drop_buffered(&mut self, id: u32) -> u32 {
        let Some(stream) = self.stream(id) else {
            return 0;
        };
        stream.data.clear();
        stream.copied = BytesMut::new();
        std::mem::take(&mut stream.buffered)
    }

    /// The application has read or dropped `bytes`. A WINDOW_UPDATE follows when half of the window was read.
    pub(super) fn release(&mut self, bytes: u32) {
        self.unacked += bytes;
        if self.unacked >= CONNECTION_WINDOW / 2 {
            let unacked = std::mem::take(&mut self.unacked);
            self.receive_window += unacked;
            self.send_window_update(0, unacked);
        }
    }

    fn update_stream_window(&mut self, id: u32) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        if !stream.is_received && stream.unacked >= STREAM_WINDOW / 2 {
            let unacked = std::mem::take(&mut stream.unacked);
            stream.receive_window += unacked;
            self.send_window_update(id, unacked);
        }
    }

    // Sending a response.

    /// Waits until the stream no longer exists.
    pub fn poll_closed(&mut self, id: u32, cx: &Context<'_>) -> Poll<StreamClosed> {
        match self.stream(id) {
            Some(stream) => {
                store_waker(&mut stream.task, cx);
                Poll::Pending
            }
            None => Poll::Ready(StreamClosed),
        }
    }

    /// Waits for space to send a frame on the stream.
    pub fn poll_capacity(&mut self, id: u32, cx: &Context<'_>) -> Poll<Result<(), StreamClosed>> {
        if self.stream(id).is_none() {
            return Poll::Ready(Err(StreamClosed));
        }
        if self.out.has_capacity() {
            return Poll::Ready(Ok(()));
        }
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push_back(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until data can be sent on the stream, and returns how many bytes. An empty
    /// frame needs no window: see [`Self::poll_capacity`].
    pub fn poll_window(&mut self, id: u32, cx: &Context<'_>) -> Poll<Result<usize, StreamClosed>> {
        let window = self.send_window;
        let Some(stream) = self.stream(id) else {
            return Poll::Ready(Err(StreamClosed));
        };
        let window = usize::try_from(window.min(stream.send_window)).unwrap_or(0);
        if window == 0 {
            store_waker(&mut stream.writer, cx);
            return Poll::Pending;
        }
        let capacity = self.poll_capacity(id, cx);
        capacity.map_ok(|()| window.min(DATA_BYTES_MAX))
    }

    /// Sends an interim response (RFC 9110 15.2), unless the write buffer is full.
    pub fn send_interim(&mut self, id: u32, answer: &response::Parts) {
        if self.out.has_capacity() {
            self.begin_section();
            head::write_response(&mut self.section_out, answer);
            self.send_section(id, false);
        }
    }

    /// Sends the head of a response. `is_last` if it has no body.
    pub fn send_head(&mut self, id: u32, answer: &response::Parts, is_last: bool) {
        if let Some(stream) = self.stream(id) {
            stream.owes_continue = false;
        }
        self.begin_section();
        head::write_response(&mut self.section_out, answer);
        self.send_section(id, is_last);
    }

    /// Sends the head of a response from its fields, whose names may be in upper case. None is one that HTTP/2 does not
    /// allow.
    pub fn send_lines<'x>(
        &mut self,
        id: u32,
        status: StatusCode,
        fields: impl Iterator<Item = (&'x [u8], &'x [u8])>,
        is_last: bool,
    ) {
        if let Some(stream) = self.stream(id) {
            stream.owes_continue = false;
        }
        self.begin_section();
        head::write_lines(&mut self.section_out, status, fields);
        self.send_section(id, is_last);
    }

    /// Sends the trailers of a response.
    pub fn send_trailers(&mut self, id: u32, trailers: &HeaderMap) {
        self.begin_section();
        head::write_fields(&mut self.section_out, trailers);
        self.send_section(id, true);
    }

    fn begin_section(&mut self) {
        self.section_out.clear();
        if !std::mem::replace(&mut self.has_sent_table_size, true) {
            // A table size of zero: the client needs no table for us (RFC 7541 6.3).
            self.section_out.push(0x20);
        }
    }

    fn send_section(&mut self, id: u32, is_last: bool) {
        if self.stream(id).is_none() {
            return;
        }
        let out = self.out.front();
        let mut pieces = self.section_out.chunks(frame::PAYLOAD_BYTES_MAX).peekable();
        let mut kind = frame::HEADERS;
        let mut flags = if is_last { frame::END_STREAM } else { 0 };
        // Only trailers can be empty, if none of their fields may be sent.
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
        self.abuse.sent_section();
        if is_last {
            self.finish_sending(id);
        }
    }

    /// Sends data, at most as much as [`poll_window`](Self::poll_window) returned.
    pub fn send_data(&mut self, id: u32, data: Bytes, is_last: bool) {
        let bytes = data.len();
        let window = self.send_window;
        let Some(stream) = self.stream(id) else {
            return;
        };
        let available = stream.send_window.min(window);
        debug_assert!(bytes == 0 || bytes as i64 <= available, "beyond the window");
        let fills = available <= bytes as i64;
        stream.send_window -= bytes as i64;
        self.send_window -= bytes as i64;
        self.abuse.sent_data(bytes, fills);
        let flags = if is_last { frame::END_STREAM } else { 0 };
        frame::begin(self.out.front(), bytes, frame::DATA, flags, id);
        self.out.push(data, b"");
        if is_last {
            self.finish_sending(id);
        }
    }

    /// The response is complete.
    fn finish_sending(&mut self, id: u32) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        stream.is_sent = true;
        let is_received = stream.is_received;
        self.abuse.answered();
        if is_received {
            self.remove(id, By::Us);
        }
    }

    /// The application has finished the stream. If the response is incomplete, resets the stream for `reason`, or
    /// for the reason for which the connection closes.
    pub fn close(&mut self, id: u32, reason: Reason, now: Instant) {
        let reason = self.closing.unwrap_or(reason);
        match self.stream(id) {
            Some(stream) if stream.is_sent => stream.closes_at = Some(now + CLOSES_WITHIN),
            Some(_) => self.reset_at(id, reason, now),
            None => {}
        }
    }
}
