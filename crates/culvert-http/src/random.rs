//! Random numbers for tests that can be repeated by their seed.

/// Random numbers from a seed (xorshift64*).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D);
        usize::try_from(number >> 33).unwrap() % limit
    }

    pub(crate) fn one_in(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }

    /// Lengths of the parts of a body, each of at most `most` bytes.
    pub(crate) fn parts(&mut self, most: usize) -> Vec<usize> {
        let count = self.below(5);
        let most = most / [1, 4, 30, 1_000][self.below(4)];
        (0..count).map(|_| self.below(most + 1)).collect()
    }
}
