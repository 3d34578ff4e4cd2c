//! The hash chain of the audit log: each hash covers a row and all rows before it.
//!
//! A row's hash is SHA-256 over these bytes. Numbers are 8 bytes, big-endian.
//!
//! ```text
//! hash of the row before (32 bytes)
//! position in the log
//! length, id          length, account       length, kind
//! time in nanoseconds since 1970
//! length, audience    length, body
//! ```
//!
//! The hash before the first row is 32 zero bytes. Texts are UTF-8, exactly as stored, and each
//! follows its length, so different rows never have the same bytes. There is no key: with a head
//! that was noted once, anyone can verify later, without a secret, that no row before it was
//! changed.

use std::fmt;
use std::str::FromStr;

use culvert_base::text::hex;
use sha2::{Digest, Sha256};

/// A hash over a row and all rows before it. Displayed as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash([u8; 32]);

/// A position in the audit log and its hash. Displayed as `<position>:<hash>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Position of the row.
    pub seq: i64,
    /// Its hash.
    pub hash: Hash,
}

/// The hashed content of a row besides its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    pub(crate) id: &'a str,
    pub(crate) account: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) happened_at: i64,
    /// As stored, JSON.
    pub(crate) audience: &'a str,
    pub(crate) body: &'a str,
}

impl Link {
    /// The link before the first row.
    pub const START: Self = Self {
        seq: 0,
        hash: Hash([0; 32]),
    };

    /// The link of the next row, which is at `seq`.
    pub(crate) fn next(self, seq: i64, content: Content<'_>) -> Self {
        let mut hasher = Sha256::new();
        content.each_part(self.hash, seq, |part| hasher.update(part));
        Self {
            seq,
            hash: Hash(hasher.finalize().into()),
        }
    }
}

impl Content<'_> {
    /// The bytes of the row at `seq`, which its hash is made of.
    pub(crate) fn bytes(self, previous: Hash, seq: i64) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.each_part(previous, seq, |part| bytes.extend_from_slice(part));
        bytes
    }

    fn each_part(self, previous: Hash, seq: i64, mut take: impl FnMut(&[u8])) {
        let text = |take: &mut dyn FnMut(&[u8]), text: &str| {
            let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
            take(&length.to_be_bytes());
            take(text.as_bytes());
        };
        take(&previous.0);
        take(&seq.to_be_bytes());
        for part in [self.id, self.account, self.kind] {
            text(&mut take, part);
        }
        take(&self.happened_at.to_be_bytes());
        for part in [self.audience, self.body] {
            text(&mut take, part);
        }
    }
}

impl Hash {
    pub(crate) fn of_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash must have 64 hex digits")]
pub struct NotAHash;

impl FromStr for Hash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex {
            return Err(NotAHash);
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| NotAHash)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| NotAHash)?;
        }
        Ok(Self(hash))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONTENT: Content<'static> = Content {
        id: "ev_1",
        account: "ac_1",
        kind: "api_key_created.v0",
        happened_at: 1_800_000_000_123_456_789,
        audience: r#"[["esb_1","ed_1"]]"#,
        body: r#"{"event_id":"ev_1"}"#,
    };

    #[test]
    fn the_bytes_are_those_of_the_guide() {
        // Computed by the program in docs/how-to/audit.md.
        let first = Link::START.next(1, CONTENT);
        assert_eq!(
            first.to_string(),
            "1:8fdba9df245970b69d9bb120ebcd2196966db727a1796b4ef44bec55686ceff3"
        );
    }

    #[test]
    fn every_part_counts_and_none_flows_into_the_next() {
        let base = Link::START.next(1, CONTENT);
        let changed = [
            Content {
                id: "ev_2",
                ..CONTENT
            },
            Content {
                account: "ac_2",
                ..CONTENT
            },
            Content {
                kind: "api_key_deleted.v0",
                ..CONTENT
            },
            Content {
                happened_at: 1,
                ..CONTENT
            },
            Content {
                audience: "[]",
                ..CONTENT
            },
            Content {
                body: "{}",
                ..CONTENT
            },
            Content {
                id: "ev_",
                account: "1ac_1",
                ..CONTENT
            },
            Content {
                id: "ev_1ac_1",
                account: "",
                ..CONTENT
            },
        ];
        for content in changed {
            assert_ne!(Link::START.next(1, content), base, "{content:?}");
        }
        assert_ne!(Link::START.next(2, CONTENT).hash, base.hash);
        assert_ne!(base.next(1, CONTENT).hash, base.hash);
    }

    proptest! {
        #[test]
        fn any_text_is_a_hash_or_refused(text in ".{0,70}|[0-9a-fA-F]{64}") {
            if let Ok(hash) = text.parse::<Hash>() {
                prop_assert_eq!(hash.to_string(), text.to_ascii_lowercase());
            }
        }
    }
}
