//! Text with a maximum length in its type. Beside it, the characters that names must not have, and how far two names
//! are apart.

pub mod names;
pub mod similar;

use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|half| DIGITS[usize::from(half)]);
    let mut text = String::with_capacity(bytes.len() * 2);
    text.extend(bytes.iter().flat_map(digits));
    text
}

/// Text of at most `MAX` bytes of UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bounded<const MAX: usize>(String);

/// A description for people: at most 255 bytes (contract: management API 1.14).
pub type Description = Bounded<255>;

/// Data that a user stores with an object: at most 4096 bytes (contract: management API 1.14).
pub type Metadata = Bounded<4096>;

/// The text exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is longer than {max} bytes")]
pub struct TooLong {
    /// The limit, in bytes.
    pub max: usize,
}

impl<const MAX: usize> TryFrom<String> for Bounded<MAX> {
    type Error = TooLong;

    fn try_from(text: String) -> Result<Self, TooLong> {
        if text.len() <= MAX {
            Ok(Self(text))
        } else {
            Err(TooLong { max: MAX })
        }
    }
}

impl<const MAX: usize> From<Bounded<MAX>> for String {
    fn from(text: Bounded<MAX>) -> Self {
        text.0
    }
}

impl<const MAX: usize> Deref for Bounded<MAX> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_bytes_and_is_inclusive() {
        assert!(Description::try_from("é".repeat(127) + "x").is_ok());
        assert_eq!(
            Description::try_from("é".repeat(128)),
            Err(TooLong { max: 255 })
        );
    }
}
