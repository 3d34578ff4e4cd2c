//! Bytes on their way into a connection: small ones gathered, large ones written from where they lie.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// Data up to so many bytes is copied behind what waits already.
const COPIED_MAX: usize = 4 << 10;
/// With so many bytes gathered they are written before more is asked for.
const GATHERED_MAX: usize = 16 << 10;

/// What is to be written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Gathered; of it the first `at` bytes are written.
    front: Vec<u8>,
    at: usize,
    /// What comes behind it, and behind that.
    data: Bytes,
    back: &'static [u8],
    /// Whether something was written since the connection was flushed.
    is_unflushed: bool,
}

impl Outbox {
    /// Where small things are gathered. To be asked for only while there [is room](Self::has_room).
    pub(crate) fn front(&mut self) -> &mut Vec<u8> {
        self.settle();
        &mut self.front
    }

    /// Adds data, and what closes it.
    pub(crate) fn push(&mut self, data: Bytes, back: &'static [u8]) {
        self.settle();
        if data.len() <= COPIED_MAX {
            self.front.extend_from_slice(&data);
            self.front.extend_from_slice(back);
        } else {
            self.data = data;
            self.back = back;
        }
    }

    /// Whether it takes more before it is written.
    pub(crate) fn has_room(&self) -> bool {
        self.data.is_empty() && self.front.len() - self.at < GATHERED_MAX
    }

    /// Whether everything was written and has left.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_unflushed && self.is_written()
    }

    /// Everything that is not written.
    #[cfg(test)]
    pub(crate) fn take_all(&mut self) -> Vec<u8> {
        self.settle();
        let all = self.front.split_off(self.at);
        self.clear();
        all
    }

    /// Bytes that are not written.
    pub(crate) fn len(&self) -> usize {
        self.front.len() - self.at + self.data.len() + self.back.len()
    }

    fn is_written(&self) -> bool {
        self.at == self.front.len() && self.data.is_empty() && self.back.is_empty()
    }

    /// Forgets what was not written.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gathers what is left behind large data, so that more can follow it.
    fn settle(&mut self) {
        if !self.data.is_empty() {
            // Nobody adds to it then; if one did, this keeps the order.
            let data = std::mem::take(&mut self.data);
            self.front.extend_from_slice(&data);
        }
        let back = std::mem::take(&mut self.back);
        self.front.extend_from_slice(back);
    }

    /// Writes until there is room again. Bytes that were written are added to `written`.
    pub(crate) fn poll_room<W: AsyncWrite + Unpin>(
        &mut self,
        io: &mut W,
        cx: &mut Context<'_>,
        written: &mut u64,
    ) -> Poll<io::Result<()>> {
        while !self.has_room() {
            ready!(self.poll_write(io, cx, written))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes everything, and has it leave.
    pub(crate) fn poll_empty<W: AsyncWrite + Unpin>(
        &mut self,
        io: &mut W,
        cx: &mut Context<'_>,
        written: &mut u64,
    ) -> Poll<io::Result<()>> {
        while !self.is_written() {
            ready!(self.poll_write(io, cx, written))?;
        }
        if self.is_unflushed {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        io: &mut W,
        cx: &mut Context<'_>,
        written: &mut u64,
    ) -> Poll<io::Result<()>> {
        let front = self.front.get(self.at..).unwrap_or_default();
        let io = Pin::new(io);
        let result = if self.data.is_empty() && self.back.is_empty() {
            io.poll_write(cx, front)
        } else if front.is_empty() && self.back.is_empty() {
            io.poll_write(cx, &self.data)
        } else {
            let slices = [
                IoSlice::new(front),
                IoSlice::new(&self.data),
                IoSlice::new(self.back),
            ];
            // An empty slice in front would be all that some streams write.
            let skip = usize::from(front.is_empty());
            io.poll_write_vectored(cx, slices.get(skip..).unwrap_or_default())
        };
        let bytes = ready!(result)?;
        if bytes == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        *written = written.saturating_add(bytes as u64);
        self.is_unflushed = true;
        self.wrote(bytes);
        Poll::Ready(Ok(()))
    }

    fn wrote(&mut self, bytes: usize) {
        let of_front = bytes.min(self.front.len() - self.at);
        self.at += of_front;
        let of_data = (bytes - of_front).min(self.data.len());
        self.data.advance(of_data);
        let of_back = bytes - of_front - of_data;
        self.back = self.back.get(of_back..).unwrap_or_default();
        if self.at == self.front.len() {
            self.front.clear();
            self.at = 0;
        }
        if self.data.is_empty() {
            // What held it may be used again.
            self.data = Bytes::new();
        }
    }
}
