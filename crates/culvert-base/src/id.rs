//! Identifiers: a prefix for the type of object, and a KSUID, which sorts by the second of its creation (contract:
//! management API 1.5).

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Duration;

use crate::{Clock, Entropy, Timestamp};

/// Length of an identifier body, in characters.
pub const BODY_LENGTH: usize = 27;

/// The base62 digits in ASCII order, so that texts sort like the bytes they encode.
pub const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Seconds between the Unix epoch and the epoch of a KSUID.
const EPOCH_SECONDS: i64 = 1_400_000_000;

/// A KSUID: 4 bytes of seconds and 16 random bytes. Displays as 27 base62 characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ksuid([u8; 20]);

impl Ksuid {
    /// Combines a time with 16 random bytes. Clamps times outside of the 136 years that a KSUID can represent.
    pub fn new(at: Timestamp, random: [u8; 16]) -> Self {
        let seconds = at
            .unix_seconds()
            .saturating_sub(EPOCH_SECONDS)
            .clamp(0, i64::from(u32::MAX));
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&u32::try_from(seconds).unwrap_or(u32::MAX).to_be_bytes());
        bytes[4..].copy_from_slice(&random);
        Self(bytes)
    }

    /// The second in which it was created.
    pub fn at(&self) -> Timestamp {
        let [a, b, c, d, ..] = self.0;
        Timestamp::from_unix_seconds(i64::from(u32::from_be_bytes([a, b, c, d])) + EPOCH_SECONDS)
    }

    /// The next larger KSUID, or the same one if it is the largest.
    fn successor(self) -> Self {
        let mut bytes = self.0;
        for byte in bytes.iter_mut().rev() {
            let (next, overflowed) = byte.overflowing_add(1);
            *byte = next;
            if !overflowed {
                return Self(bytes);
            }
        }
        self
    }
}

impl Ksuid {
    /// The 27 base62 characters, which are ASCII.
    pub fn text(&self) -> [u8; BODY_LENGTH] {
        // Each division by 62^10 gives ten characters.
        let [a, b, c, d, random @ ..] = self.0;
        let seconds = u64::from(u32::from_be_bytes([a, b, c, d]));
        let (high, low) = halves(u128::from_be_bytes(random));
        let (high, rest) = divided(seconds, high);
        let (low, last) = divided(rest, low);
        let (first, middle) = divided(high, low);
        let mut text = [b'0'; BODY_LENGTH];
        for (place, mut value) in [(0..7, first), (7..17, middle), (17..27, last)] {
            // Two characters with each division.
            let (first, pairs) = text[place].as_rchunks_mut();
            for pair in pairs.iter_mut().rev() {
                *pair = PAIRS[(value % PAIRS.len() as u64) as usize];
                value /= PAIRS.len() as u64;
            }
            for character in first {
                *character = BASE62[(value % 62) as usize];
            }
        }
        text
    }
}

/// All pairs of base62 characters, in the order of their values.
static PAIRS: [[u8; 2]; 62 * 62] = {
    let mut pairs = [[0; 2]; 62 * 62];
    let mut value = 0;
    while value < pairs.len() {
        pairs[value] = [BASE62[value / 62], BASE62[value % 62]];
        value += 1;
    }
    pairs
};

/// The high and the low half of a number.
fn halves(number: u128) -> (u64, u64) {
    let half = |bits| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0);
    (half(number >> 64), half(number))
}

/// Quotient and remainder of a number and 62^10. The quotient has 64 bits, because the high half is below the divisor.
fn divided(high: u64, low: u64) -> (u64, u64) {
    const DIVISOR: u64 = 62u64.pow(10);
    debug_assert!(high < DIVISOR, "the quotient has more than 64 bits");
    let number = u128::from(high) << 64 | u128::from(low);
    let (_, quotient) = halves(number / u128::from(DIVISOR));
    // The remainder has 64 bits, so the upper bits of the product do not matter.
    let remainder = low.wrapping_sub(quotient.wrapping_mul(DIVISOR));
    (quotient, remainder)
}

impl fmt::Display for Ksuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).map_err(|_| fmt::Error)?)
    }
}

/// The text is not an identifier of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an identifier of this type")]
pub struct NotAnId;

impl FromStr for Ksuid {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        if text.len() != BODY_LENGTH {
            return Err(NotAnId);
        }
        let mut words = [0u32; 5];
        for byte in text.bytes() {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'A'..=b'Z' => byte - b'A' + 10,
                b'a'..=b'z' => byte - b'a' + 36,
                _ => return Err(NotAnId),
            };
            let mut carry = u64::from(digit);
            for word in words.iter_mut().rev() {
                let value = u64::from(*word) * 62 + carry;
                *word = u32::try_from(value & 0xFFFF_FFFF).unwrap_or(0);
                carry = value >> 32;
            }
            if carry != 0 {
                return Err(NotAnId);
            }
        }
        let mut bytes = [0; 20];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        Ok(Self(bytes))
    }
}

/// A type of object, identified by the prefix of its ids.
pub trait IdKind {
    /// The prefix without the underscore, such as `ak`.
    const PREFIX: &'static str;
}

/// An identifier of type `K`: `<prefix>_<body>`.
///
/// Clients also have identifiers with bodies of other lengths, so parsing accepts 1 to 64 letters and digits.
pub struct Id<K> {
    text: String,
    kind: PhantomData<fn() -> K>,
}

impl<K: IdKind> Id<K> {
    /// Prepends the prefix to a body.
    pub fn new(body: Ksuid) -> Self {
        Self {
            text: format!("{}_{body}", K::PREFIX),
            kind: PhantomData,
        }
    }

    /// The text: `<prefix>_<body>`.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<K: IdKind> FromStr for Id<K> {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        match split(text) {
            Some((prefix, _)) if prefix == K::PREFIX => Ok(Self {
                text: text.to_owned(),
                kind: PhantomData,
            }),
            _ => Err(NotAnId),
        }
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        Self {
            text: self.text.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<K> Eq for Id<K> {}

impl<K> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<K> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Splits `<prefix>_<body>`. `None` unless the prefix has 1 to 16 lower-case letters and digits and the body has 1 to
/// 64 letters and digits.
pub fn split(text: &str) -> Option<(&str, &str)> {
    let (prefix, body) = text.rsplit_once('_')?;
    let prefix_fits = (1..=16).contains(&prefix.len())
        && prefix
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let body_fits =
        (1..=64).contains(&body.len()) && body.bytes().all(|b| b.is_ascii_alphanumeric());
    (prefix_fits && body_fits).then_some((prefix, body))
}

/// Generates identifier bodies. Each is larger than the previous one, even within one second, unless the clock was set
/// back.
#[derive(Debug, Default)]
pub struct IdMaker {
    last: Mutex<Option<Ksuid>>,
}

/// How far bodies may be ahead of the clock.
const AHEAD_MAX: Duration = Duration::from_secs(2);

impl IdMaker {
    /// A generator without a previous body.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next body.
    pub fn next(&self, clock: &dyn Clock, entropy: &dyn Entropy) -> Ksuid {
        let fresh = Ksuid::new(clock.now(), entropy.bytes());
        let mut last = self
            .last
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let next = match *last {
            // A body has its time, so after the clock was far ahead, its bodies do not go on from there.
            Some(last) if fresh <= last && last.at().since(fresh.at()) <= AHEAD_MAX => {
                last.successor()
            }
            _ => fresh,
        };
        *last = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ManualClock, SeededEntropy};

    #[test]
    fn a_body_carries_its_second() {
        // The example of the contract, events 9.4.
        let body: Ksuid = "3MNwake7NlaYWxjRh9bXOmHaq4T".parse().unwrap();
        assert_eq!(body.to_string(), "3MNwake7NlaYWxjRh9bXOmHaq4T");
        let at = Timestamp::parse("2025-09-04T10:11:14Z").unwrap();
        assert_eq!(Ksuid::new(at, [7; 16]).at(), at);
    }

    #[test]
    fn bodies_follow_a_clock_that_was_set_back() {
        let start = Timestamp::from_unix_seconds(1_800_000_000);
        let clock = ManualClock::at(start);
        let entropy = SeededEntropy::new(1);
        let maker = IdMaker::new();
        clock.set(start.plus(Duration::from_secs(3600)));
        maker.next(&clock, &entropy);
        clock.set(start);
        let next = maker.next(&clock, &entropy);
        assert_eq!(next.at(), start);
        assert!(maker.next(&clock, &entropy) > next);
    }

    #[test]
    fn a_maker_never_steps_back() {
        let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
        let entropy = SeededEntropy::new(1);
        let maker = IdMaker::new();
        let mut last = maker.next(&clock, &entropy);
        for _ in 0..1000 {
            let next = maker.next(&clock, &entropy);
            assert!(next > last && next.to_string() > last.to_string());
            last = next;
        }
    }

    #[test]
    fn shapes() {
        assert_eq!(split("ak_0abcXYZ"), Some(("ak", "0abcXYZ")));
        for wrong in [
            "",
            "ak",
            "ak_",
            "_x",
            "AK_x",
            "ak_x-y",
            "ak_é",
            &"a_".repeat(40),
        ] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn text_and_bytes_are_one(bytes: [u8; 20]) {
            let ksuid = Ksuid(bytes);
            prop_assert_eq!(ksuid.to_string().parse::<Ksuid>(), Ok(ksuid));
        }

        #[test]
        fn any_text_parses_or_refuses(text in ".{0,80}") {
            if let Ok(ksuid) = text.parse::<Ksuid>() {
                prop_assert_eq!(ksuid.to_string(), text.clone());
            }
            let _ = split(&text);
        }
    }
}
