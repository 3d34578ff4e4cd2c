//! The hashes of a tree (RFC 6962, section 2.1) and their text.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Bytes of a hash.
pub const HASH_BYTES: usize = 32;

/// The hash of a leaf, of a node, or of a whole tree. Displayed in base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeHash(pub [u8; HASH_BYTES]);

impl TreeHash {
    /// The hash of a leaf with this content: SHA-256 of a zero byte and the content.
    pub fn leaf(content: &[u8]) -> Self {
        Self::of_parts(&[&[0], content])
    }

    /// The hash of a node with these children: SHA-256 of a byte with the value 1 and both hashes.
    pub fn node(left: Self, right: Self) -> Self {
        Self::of_parts(&[&[1], &left.0, &right.0])
    }

    /// The hash of a tree without leaves: SHA-256 of nothing.
    pub fn empty() -> Self {
        Self::of_parts(&[])
    }

    fn of_parts(parts: &[&[u8]]) -> Self {
        let mut context = Context::new(&SHA256);
        for part in parts {
            context.update(part);
        }
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(context.finish().as_ref());
        Self(hash)
    }
}

impl fmt::Display for TreeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for TreeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not the base64 of 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash must be 32 bytes in base64")]
pub struct NotAHash;

impl FromStr for TreeHash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let bytes = base64_bytes(text).ok_or(NotAHash)?;
        bytes.try_into().map(Self).map_err(|_| NotAHash)
    }
}

/// The bytes of standard base64 with padding; `None` for every other spelling of the same bytes.
pub(crate) fn base64_bytes(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Standard base64 with padding.
pub(crate) fn base64_text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A number in decimal digits without leading zeros, at most 2^63 - 1.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    let is_canonical = text == "0" || !text.starts_with('0');
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_canonical || !is_number {
        return None;
    }
    text.parse::<i64>().ok().map(i64::unsigned_abs)
}
