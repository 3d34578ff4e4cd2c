//! The bytes of a row, as its hash in the chain and its leaf in the tree are made of them, read back: see `chain`.

use crate::audit_log::chain::Hash;

/// A row of the audit log, read from the bytes that a proof has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// Hash of the row before it in the chain.
    pub previous: Hash,
    /// Position in commit order, from 1.
    pub seq: i64,
    /// Id of the event, `ev_…`.
    pub id: String,
    /// Id of the account, `ac_…`.
    pub account: String,
    /// Event kind, such as `api_key_created.v0`.
    pub kind: String,
    /// Nanoseconds since the Unix epoch.
    pub happened_at: i64,
    /// The audience, as JSON: pairs of subscription and destination.
    pub audience: String,
    /// The event, JSON.
    pub body: String,
}

impl AuditRecord {
    /// Reads the bytes of a row; `None` if they are none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        let record = Self {
            previous: Hash::of_bytes(rest.array()?),
            seq: i64::from_be_bytes(rest.array()?),
            id: rest.text()?,
            account: rest.text()?,
            kind: rest.text()?,
            happened_at: i64::from_be_bytes(rest.array()?),
            audience: rest.text()?,
            body: rest.text()?,
        };
        rest.0.is_empty().then_some(record)
    }
}

struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(u64::from_be_bytes(self.array()?)).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::audit_log::chain::{Content, Link};

    proptest! {
        #[test]
        fn what_is_hashed_is_read_back(
            seq: i64, happened_at: i64, texts in proptest::collection::vec(".{0,9}", 5), cut: usize,
        ) {
            let [id, account, kind, audience, body] = <[String; 5]>::try_from(texts).unwrap();
            let content = Content {
                id: &id, account: &account, kind: &kind, happened_at, audience: &audience, body: &body,
            };
            let previous = Link::START.next(1, content).hash;
            let bytes = content.bytes(previous, seq);
            let cut = cut % bytes.len();
            prop_assert_eq!(AuditRecord::parse(&bytes[..cut]), None);
            prop_assert_eq!(AuditRecord::parse(&[bytes.as_slice(), b"x"].concat()), None);
            let expected = AuditRecord {
                previous, seq, id: id.clone(), account: account.clone(), kind: kind.clone(),
                happened_at, audience: audience.clone(), body: body.clone(),
            };
            prop_assert_eq!(AuditRecord::parse(&bytes), Some(expected));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(AuditRecord::parse(&bytes).is_none_or(|record| record.body.len() < 200));
        }
    }
}
