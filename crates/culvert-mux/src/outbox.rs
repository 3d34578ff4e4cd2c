//! Output as slices for vectored writes.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Shorter payloads are copied after their head: a separate slice would cost more.
const COPY_BYTES_MAX: usize = 1 << 10;
/// Growth of the buffer for heads and short payloads.
const RUN_BYTES: usize = 2 << 10;

/// Encoded frames to be written. Read it as a [`Buf`], preferably with [`Buf::chunks_vectored`].
#[derive(Debug, Default)]
pub struct Outbox {
    slices: VecDeque<Bytes>,
    /// Heads, short frames and short payloads. They come after `slices`.
    run: BytesMut,
    length: usize,
}

impl Outbox {
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if self.run.capacity() - self.run.len() < bytes.len() {
            self.run.reserve(bytes.len().max(RUN_BYTES));
        }
        self.run.extend_from_slice(bytes);
        self.length += bytes.len();
    }

    pub(crate) fn put_payload(&mut self, payload: Bytes) {
        if payload.len() < COPY_BYTES_MAX {
            return self.put(&payload);
        }
        if !self.run.is_empty() {
            self.slices.push_back(self.run.split().freeze());
        }
        self.length += payload.len();
        self.slices.push_back(payload);
    }
}

impl Buf for Outbox {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        self.slices.front().map_or(&self.run[..], |first| first)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.length, "advanced past the end");
        self.length -= count;
        while count > 0 {
            match self.slices.front_mut() {
                Some(first) if first.len() <= count => {
                    count -= first.len();
                    self.slices.pop_front();
                }
                Some(first) => {
                    first.advance(count);
                    count = 0;
                }
                None => {
                    self.run.advance(count);
                    count = 0;
                }
            }
        }
        if self.length == 0 && self.run.capacity() > RUN_BYTES {
            // An idle connection keeps no large buffer.
            self.run = BytesMut::new();
        }
    }

    fn chunks_vectored<'a>(&'a self, to: &mut [IoSlice<'a>]) -> usize {
        let run = Some(&self.run[..]).filter(|run| !run.is_empty());
        let slices = self.slices.iter().map(|slice| &slice[..]).chain(run);
        let mut filled = 0;
        for (place, slice) in to.iter_mut().zip(slices) {
            *place = IoSlice::new(slice);
            filled += 1;
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_copies_come_out_in_order_and_long_payloads_are_not_copied() {
        let mut out = Outbox::default();
        let long = Bytes::from(vec![7; 5000]);
        out.put(b"head1");
        out.put_payload(Bytes::from_static(b"short"));
        out.put(b"head2");
        out.put_payload(long.clone());
        out.put(b"tail");

        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(out.chunks_vectored(&mut slices), 3);
        assert_eq!(&slices[0][..], b"head1shorthead2");
        assert_eq!(slices[1].as_ptr(), long.as_ptr());
        assert_eq!(&slices[2][..], b"tail");

        let total = out.remaining();
        let mut bytes = Vec::new();
        while out.has_remaining() {
            let length = out.chunk().len().min(7);
            bytes.extend_from_slice(&out.chunk()[..length]);
            out.advance(length);
        }
        assert_eq!(bytes.len(), total);
        assert!(bytes.starts_with(b"head1shorthead2\x07") && bytes.ends_with(b"\x07tail"));
    }
}
