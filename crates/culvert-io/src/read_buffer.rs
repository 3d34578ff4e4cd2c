//! The read buffer of a connection.

use std::io;
use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Largest read.
const READ_BYTES_MAX: usize = 64 << 10;

/// Bytes that were read and not consumed.
#[derive(Debug)]
pub struct ReadBuffer {
    bytes: BytesMut,
    /// Size of the first reads, and of the next: it grows while the buffer fills.
    read_bytes_min: usize,
    read_bytes: usize,
}

impl ReadBuffer {
    /// An empty buffer without memory.
    #[inline]
    pub fn new(read_bytes_min: usize) -> Self {
        Self {
            bytes: BytesMut::new(),
            read_bytes_min,
            read_bytes: read_bytes_min,
        }
    }

    /// Reads more. 0 means the end.
    pub fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        io: &mut R,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.capacity() - self.bytes.len() < self.read_bytes / 2 {
            self.bytes.reserve(self.read_bytes);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let read = ready!(pin!(io.read_buf(&mut self.bytes)).poll(cx));
        if read.as_ref().is_ok_and(|&bytes| bytes == room) {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        }
        Poll::Ready(read)
    }

    /// Appends bytes.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The bytes, for a reader that consumes from the front.
    #[inline]
    pub fn bytes(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// Takes all bytes.
    #[inline]
    pub fn take_all(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).freeze()
    }

    /// Drops all bytes and their memory.
    #[inline]
    pub fn free(&mut self) {
        *self = Self::new(self.read_bytes_min);
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
