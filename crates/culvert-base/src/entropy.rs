//! The source of random bytes. Callers pass it in, so that tests can repeat every id and token.

use std::fmt::Debug;
use std::sync::Mutex;

/// A source of unpredictable bytes.
pub trait Entropy: Debug + Send + Sync {
    /// Fills all of `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

impl dyn Entropy + '_ {
    /// `N` random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }

    /// `length` random characters of `alphabet`, each equally likely. The alphabet has 2 to 256 characters.
    pub fn text(&self, alphabet: &[u8], length: usize) -> String {
        // Rejects bytes above the last multiple of the alphabet's size, which would favour its first characters.
        let fair = 256 - 256 % alphabet.len();
        let mut text = String::with_capacity(length);
        while text.len() < length {
            for byte in self.bytes::<32>() {
                if usize::from(byte) < fair && text.len() < length {
                    text.push(char::from(alphabet[usize::from(byte) % alphabet.len()]));
                }
            }
        }
        text
    }
}

/// The operating system's random source.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        // Without randomness, tokens would be guessable, so a failure ends the process.
        getrandom::fill(bytes).expect("the operating system always has random bytes after boot");
    }
}

/// A repeatable sequence for tests. Not for secrets.
#[derive(Debug)]
pub struct SeededEntropy {
    state: Mutex<u64>,
}

impl SeededEntropy {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self {
            state: Mutex::new(seed),
        }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self
            .state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for chunk in bytes.chunks_mut(8) {
            // SplitMix64.
            *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = *state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^= mixed >> 31;
            chunk.copy_from_slice(&mixed.to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_sequence_and_text_stays_in_its_alphabet() {
        let (a, b) = (SeededEntropy::new(7), SeededEntropy::new(7));
        let (a, b): (&dyn Entropy, &dyn Entropy) = (&a, &b);
        assert_eq!(a.bytes::<20>(), b.bytes::<20>());
        let text = a.text(b"xyz", 100);
        assert_eq!(text.len(), 100);
        assert!(text.bytes().all(|c| b"xyz".contains(&c)));
    }
}
