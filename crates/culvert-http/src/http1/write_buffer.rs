//! Bytes to write to a connection. Small pieces are copied together, large ones are written in place.

use bytes::{Buf, Bytes};

/// Data up to this size is copied.
const COPIED_MAX: usize = 4 << 10;
/// When this many bytes wait, writers wait until they are written.
const GATHERED_MAX: usize = 16 << 10;

/// Bytes to write.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    /// Copied bytes; the first `at` of them are written.
    front: Vec<u8>,
    at: usize,
    /// Large data behind `front`, and what follows it.
    data: Bytes,
    back: &'static [u8],
    /// Whether bytes were written since the last flush.
    is_unflushed: bool,
}

impl WriteBuffer {
    /// The buffer for small pieces. Large data that was pushed before is copied to it, unless it was written.
    pub fn front(&mut self) -> &mut Vec<u8> {
        self.settle();
        &mut self.front
    }

    /// Adds `data`, and `back` behind it. Large data that was pushed before is copied, unless it was written.
    pub fn push(&mut self, data: Bytes, back: &'static [u8]) {
        self.settle();
        if data.len() <= COPIED_MAX {
            self.front.extend_from_slice(&data);
            self.front.extend_from_slice(back);
        } else {
            self.data = data;
            self.back = back;
        }
    }

    /// Whether more can be added.
    pub fn has_capacity(&self) -> bool {
        self.data.is_empty() && self.front.len() - self.at < GATHERED_MAX
    }

    /// Whether everything is written and flushed.
    pub fn is_empty(&self) -> bool {
        !self.is_unflushed && self.is_written()
    }

    /// Whether bytes were written since the last [flush](Self::flushed).
    pub fn is_unflushed(&self) -> bool {
        self.is_unflushed
    }

    /// The connection was flushed.
    pub fn flushed(&mut self) {
        self.is_unflushed = false;
    }

    /// Takes everything that is not written.
    #[cfg(test)]
    pub(crate) fn take_all(&mut self) -> Vec<u8> {
        self.settle();
        let all = self.front.split_off(self.at);
        self.clear();
        all
    }

    /// Number of bytes that are not written.
    pub fn len(&self) -> usize {
        self.front.len() - self.at + self.data.len() + self.back.len()
    }

    /// Whether everything is written, flushed or not.
    pub fn is_written(&self) -> bool {
        self.at == self.front.len() && self.data.is_empty() && self.back.is_empty()
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Appends the large data to `front`, so that more can follow it.
    fn settle(&mut self) {
        if !self.data.is_empty() {
            // Rare, because writers wait for `has_capacity`.
            let data = std::mem::take(&mut self.data);
            self.front.extend_from_slice(&data);
        }
        let back = std::mem::take(&mut self.back);
        self.front.extend_from_slice(back);
    }

    /// The next bytes to write, in order. Each slice may be empty.
    #[inline]
    pub fn unwritten(&self) -> [&[u8]; 3] {
        let front = self.front.get(self.at..).unwrap_or_default();
        [front, &self.data, self.back]
    }

    /// The first `bytes` of [`unwritten`](Self::unwritten) were written.
    #[inline]
    pub fn wrote(&mut self, bytes: usize) {
        self.is_unflushed = true;
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
            // The buffer it shares may be reused.
            self.data = Bytes::new();
        }
    }
}
