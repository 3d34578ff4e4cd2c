//! A byte queue that keeps large pieces as slices and joins small ones.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Shorter pieces are copied, because a slice keeps the whole buffer alive from which it was cut.
const SHARED_BYTES_MIN: usize = 8 << 10;
/// Maximum length of a run of copied pieces. After that a new run begins.
const RUN_BYTES_MAX: usize = 32 << 10;

/// A queue of bytes.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    whole: VecDeque<Bytes>,
    /// Copied short pieces in one buffer. They come after `whole`.
    run: BytesMut,
    length: usize,
}

impl Chunks {
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends bytes. Long pieces are not copied.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_BYTES_MIN {
            return self.push_copy(&bytes);
        }
        self.end_run();
        self.length += bytes.len();
        self.whole.push_back(bytes);
    }

    /// Appends a copy.
    pub(crate) fn push_copy(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.length == 0 || bytes.len() >= RUN_BYTES_MAX {
            // Usually the piece is removed before the next one arrives.
            self.end_run();
            self.whole.push_back(Bytes::copy_from_slice(bytes));
        } else {
            if self.run.len() + bytes.len() > RUN_BYTES_MAX {
                self.end_run();
            }
            self.run.extend_from_slice(bytes);
        }
        self.length += bytes.len();
    }

    /// Removes the first piece, or its first `max` bytes. `None` only if the queue is empty.
    pub(crate) fn pop(&mut self, max: usize) -> Option<Bytes> {
        if self.whole.is_empty() {
            self.end_run();
        }
        let first = self.whole.front_mut()?;
        let piece = if first.len() <= max {
            self.whole.pop_front()?
        } else {
            first.split_to(max)
        };
        self.length -= piece.len();
        Some(piece)
    }

    /// Moves as many bytes as possible to the front of `to`, and returns their number.
    pub(crate) fn copy_out(&mut self, to: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < to.len() {
            if let Some(first) = self.whole.front_mut() {
                let length = first.len().min(to.len() - copied);
                first.copy_to_slice(&mut to[copied..copied + length]);
                copied += length;
                if first.is_empty() {
                    self.whole.pop_front();
                }
            } else {
                let length = self.run.len().min(to.len() - copied);
                if length == 0 {
                    break;
                }
                self.run.copy_to_slice(&mut to[copied..copied + length]);
                copied += length;
            }
        }
        self.length -= copied;
        copied
    }

    /// Removes all bytes and returns their number.
    pub(crate) fn clear(&mut self) -> usize {
        std::mem::take(self).length
    }

    fn end_run(&mut self) {
        if !self.run.is_empty() {
            self.whole.push_back(std::mem::take(&mut self.run).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_went_in_comes_out(
            steps in prop::collection::vec((0usize..4, 0usize..70_000), 1..60)
        ) {
            let (mut chunks, mut next_in, mut next_out) = (Chunks::default(), 0u64, 0u64);
            let pattern = |from: u64, length: usize| -> Vec<u8> {
                (from..from + length as u64).map(|at| (at % 251) as u8).collect()
            };
            for (step, length) in steps {
                match step {
                    0 => {
                        chunks.push(pattern(next_in, length).into());
                        next_in += length as u64;
                    }
                    1 => {
                        chunks.push_copy(&pattern(next_in, length % 300));
                        next_in += length as u64 % 300;
                    }
                    2 => {
                        if let Some(piece) = chunks.pop(length.max(1)) {
                            prop_assert_eq!(&piece[..], &pattern(next_out, piece.len())[..]);
                            next_out += piece.len() as u64;
                        }
                    }
                    _ => {
                        let mut to = vec![0; length];
                        let copied = chunks.copy_out(&mut to);
                        prop_assert_eq!(&to[..copied], &pattern(next_out, copied)[..]);
                        next_out += copied as u64;
                    }
                }
                prop_assert_eq!(chunks.len() as u64, next_in - next_out);
                prop_assert_eq!(chunks.is_empty(), next_in == next_out);
            }
        }
    }

    #[test]
    fn short_pieces_do_not_pile_up_as_pieces() {
        let mut chunks = Chunks::default();
        for _ in 0..10_000 {
            chunks.push(Bytes::from_static(b"x"));
        }
        assert_eq!(chunks.len(), 10_000);
        assert!(chunks.whole.len() <= 2);
        assert_eq!(chunks.clear(), 10_000);
        assert!(chunks.is_empty());
    }
}
