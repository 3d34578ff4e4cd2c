//! Bytes on their way into a connection: small ones gathered, large ones written from where they lie.

use bytes::{Buf, Bytes};

/// Data up to so many bytes is copied behind what waits already.
const COPIED_MAX: usize = 4 << 10;
/// With so many bytes gathered they are written before more is asked for.
const GATHERED_MAX: usize = 16 << 10;

/// What is to be written.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    /// Gathered; of it the first `at` bytes are written.
    front: Vec<u8>,
    at: usize,
    /// What comes behind it, and behind that.
    data: Bytes,
    back: &'static [u8],
    /// Whether something was written since the connection was flushed.
    is_unflushed: bool,
}

impl WriteBuffer {
    /// Where small things are gathered. To be asked for only while there [is room](Self::has_room).
    pub fn front(&mut self) -> &mut Vec<u8> {
        self.settle();
        &mut self.front
    }

    /// Adds data, and what closes it.
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

    /// Whether it takes more before it is written.
    pub fn has_room(&self) -> bool {
        self.data.is_empty() && self.front.len() - self.at < GATHERED_MAX
    }

    /// Whether everything was written and has left.
    pub fn is_empty(&self) -> bool {
        !self.is_unflushed && self.is_written()
    }

    /// Whether something was written since the connection was [flushed](Self::flushed).
    pub fn is_unflushed(&self) -> bool {
        self.is_unflushed
    }

    /// What was written has left.
    pub fn flushed(&mut self) {
        self.is_unflushed = false;
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
    pub fn len(&self) -> usize {
        self.front.len() - self.at + self.data.len() + self.back.len()
    }

    /// Whether everything was written; it may not have left.
    pub fn is_written(&self) -> bool {
        self.at == self.front.len() && self.data.is_empty() && self.back.is_empty()
    }

    /// Forgets what was not written.
    pub fn clear(&mut self) {
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

    /// What is to be written next, in this order; each of them may be empty.
    #[inline]
    pub fn unwritten(&self) -> [&[u8]; 3] {
        let front = self.front.get(self.at..).unwrap_or_default();
        [front, &self.data, self.back]
    }

    /// The first `bytes` of what was to be written have been.
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
            // What held it may be used again.
            self.data = Bytes::new();
        }
    }
}
