//! Secret text, and digests that may be stored.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Deserializer};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Secret text. It has no `Display` and no `Serialize`, and `Debug` prints `[secret]`. Dropping it wipes the memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text. Each call is a place where the secret can leak, so keep calls few.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

/// A 32-byte digest that is stored instead of a secret: HMAC-SHA-256 under a key of the installation.
#[derive(Clone, Copy, Debug)]
pub struct Digest([u8; 32]);

/// A key that makes digests of many texts. It costs as much as one digest, and makes each cheaper.
#[derive(Clone)]
pub struct DigestKey(Hmac<Sha256>);

impl DigestKey {
    /// Prepares a key of any length.
    pub fn new(key: &[u8]) -> Self {
        Self(Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length"))
    }

    /// The digest of `text` under this key.
    pub fn digest(&self, text: &str) -> Digest {
        let mac = self.0.clone().chain_update(text.as_bytes());
        Digest(mac.finalize().into_bytes().into())
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Digest {
    /// The digest of `text` under `pepper`.
    pub fn of(pepper: &[u8], text: &str) -> Self {
        DigestKey::new(pepper).digest(text)
    }

    /// The bytes, for deriving a key from a secret.
    pub fn to_bytes(self) -> [u8; 32] {
        self.0
    }

    /// The stored form: 64 lower-case hex digits.
    pub fn to_hex(&self) -> String {
        crate::text::hex(&self.0)
    }

    /// Parses the stored form.
    pub fn from_hex(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 64 {
            return None;
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(bytes.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(digest))
    }
}

impl PartialEq for Digest {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Digest {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_survives_its_hex_form_and_a_secret_stays_hidden() {
        let digest = Digest::of(b"pepper", "token");
        assert_eq!(Digest::from_hex(&digest.to_hex()), Some(digest));
        assert_ne!(digest, Digest::of(b"other", "token"));
        assert_eq!(digest, DigestKey::new(b"pepper").digest("token"));
        assert_eq!(format!("{:?}", DigestKey::new(b"pepper")), "[secret]");
        assert_eq!(Digest::from_hex("zz"), None);
        assert_eq!(format!("{:?}", Secret::new("x".into())), "[secret]");
    }
}
