//! Protects stored secrets: values that must be readable later are encrypted, and tokens that only need to be
//! recognised are digested.
//!
//! An encrypted value is bound to the ID of its document as associated data. Copied to another document in
//! the database, it does not decrypt. Each value names the key it was encrypted with. `reencrypt` relies on
//! this binding to find the values of a document.
//!
//! The composition root supplies the keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use culvert_base::{Digest, DigestKey, Entropy, Fault, Secret};
use zeroize::Zeroizing;

/// Bytes of an XChaCha20 nonce, large enough for random nonces.
const NONCE_BYTES: usize = 24;

/// Encrypts with the installation's master key. Decrypts values of the current and of older master keys.
pub struct Seal {
    current: SealKey,
    /// Older keys, needed until all secrets are re-encrypted.
    older: Vec<SealKey>,
    upstream_tokens: DigestKey,
}

struct SealKey {
    id: String,
    cipher: XChaCha20Poly1305,
}

impl SealKey {
    fn new(master: &Secret) -> Self {
        let key = derived(master, "culvert seal key 1");
        Self {
            id: key_id(master),
            cipher: XChaCha20Poly1305::new(&(*key).into()),
        }
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal")
            .field("key_id", &self.current.id)
            .finish_non_exhaustive()
    }
}

impl Seal {
    /// Creates a seal from `master`: secret text with at least 32 random bytes in any encoding.
    pub fn new(master: &Secret) -> Self {
        Self {
            current: SealKey::new(master),
            older: Vec::new(),
            upstream_tokens: DigestKey::new(&*derived(master, "culvert upstream tokens 1")),
        }
    }

    /// Adds `older` keys for decryption.
    pub fn with_older<'a>(self, older: impl IntoIterator<Item = &'a Secret>) -> Self {
        Self {
            older: older.into_iter().map(SealKey::new).collect(),
            ..self
        }
    }

    /// The key of the tokens that clients name an upstream with. They end with the master key.
    pub fn upstream_tokens(&self) -> &DigestKey {
        &self.upstream_tokens
    }

    /// Whether `text` looks like a value encrypted with an older key. False for the digest of a token, which
    /// may name the same key.
    pub fn is_under_older(&self, text: &str) -> bool {
        text.split_once('.').is_some_and(|(key_id, rest)| {
            self.older.iter().any(|key| key.id == key_id) && Digest::from_hex(rest).is_none()
        })
    }

    /// Encrypts `text` for the document ID `place`. Returns `<key id>.<base64>`.
    pub fn seal(&self, entropy: &dyn Entropy, place: &str, text: &str) -> Result<String, Fault> {
        let nonce: [u8; NONCE_BYTES] = entropy.bytes();
        let payload = Payload {
            msg: text.as_bytes(),
            aad: place.as_bytes(),
        };
        let sealed = self
            .current
            .cipher
            .encrypt(&XNonce::from(nonce), payload)
            .map_err(|_| Fault::bare("encrypting a secret: it is too long"))?;
        let mut bytes = nonce.to_vec();
        bytes.extend(sealed);
        let text = STANDARD_NO_PAD.encode(bytes);
        Ok(format!("{}.{text}", self.current.id))
    }

    /// Decrypts a value that was encrypted for `place`.
    pub fn open(&self, place: &str, sealed: &str) -> Result<Secret, Fault> {
        let (key_id, text) = sealed
            .split_once('.')
            .ok_or_else(|| Fault::bare("decrypting a secret: the stored value is malformed"))?;
        let mut keys = std::iter::once(&self.current).chain(&self.older);
        let key = keys.find(|key| key.id == key_id).ok_or_else(|| {
            Fault::bare(format!(
                "decrypting a secret that was encrypted with master key {key_id}; the server has {}",
                self.current.id
            ))
        })?;
        let bytes = STANDARD_NO_PAD
            .decode(text)
            .map_err(|error| Fault::new("decrypting a secret", error))?;
        let (nonce, sealed) = bytes
            .split_first_chunk::<NONCE_BYTES>()
            .ok_or_else(|| Fault::bare("decrypting a secret: the stored value is truncated"))?;
        let payload = Payload {
            msg: sealed,
            aad: place.as_bytes(),
        };
        let opened = key
            .cipher
            .decrypt(&XNonce::from(*nonce), payload)
            .map_err(|_| {
                Fault::bare("decrypting a secret: the stored value was modified or moved")
            })?;
        String::from_utf8(opened)
            .map(Secret::new)
            .map_err(|_| Fault::bare("decrypting a secret: it is not valid UTF-8"))
    }
}

/// Digests tokens and compares tokens with stored digests.
pub struct Pepper {
    key_id: String,
    key: Zeroizing<[u8; 32]>,
}

impl std::fmt::Debug for Pepper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pepper")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

impl Pepper {
    /// Creates a pepper from secret text with at least 32 random bytes in any encoding.
    pub fn new(pepper: &Secret) -> Self {
        Self {
            key_id: key_id(pepper),
            key: derived(pepper, "culvert pepper 1"),
        }
    }

    /// Encrypts the pepper itself. The pepper outlives the master key that it was derived from, because
    /// existing digests cannot be recomputed.
    pub fn sealed(&self, seal: &Seal, entropy: &dyn Entropy) -> Result<String, Fault> {
        let key: Zeroizing<String> = Zeroizing::new(STANDARD_NO_PAD.encode(*self.key));
        let text = Zeroizing::new(format!("{}.{}", self.key_id, *key));
        seal.seal(entropy, Self::PLACE, &text)
    }

    /// Decrypts a stored pepper.
    pub fn unsealed(seal: &Seal, sealed: &str) -> Result<Self, Fault> {
        let damaged = || Fault::bare("reading the encrypted pepper: the stored value is malformed");
        let text = seal.open(Self::PLACE, sealed)?;
        let (key_id, key) = text.reveal().split_once('.').ok_or_else(damaged)?;
        let key = Zeroizing::new(STANDARD_NO_PAD.decode(key).map_err(|_| damaged())?);
        let key: [u8; 32] = key.as_slice().try_into().map_err(|_| damaged())?;
        Ok(Self {
            key_id: key_id.to_owned(),
            key: Zeroizing::new(key),
        })
    }

    const PLACE: &str = "pepper";

    /// The stored form of a token: `<pepper id>.<hex>`.
    pub fn digest(&self, token: &str) -> String {
        format!("{}.{}", self.key_id, Digest::of(&*self.key, token).to_hex())
    }

    /// Whether `stored` is the digest of `token`. Takes the same time whether or not a digest is stored and
    /// wherever the two differ.
    pub fn recognises(&self, stored: Option<&str>, token: &str) -> bool {
        const NOBODY: &str = "0000000000000000000000000000000000000000000000000000000000000000";
        let known = stored
            .and_then(|stored| stored.split_once('.'))
            .filter(|(key_id, _)| *key_id == self.key_id)
            .and_then(|(_, hex)| Digest::from_hex(hex));
        let given = Digest::of(&*self.key, token);
        match known {
            Some(known) => known == given,
            None => {
                // Do the same work for an unknown token.
                let nobody = Digest::from_hex(NOBODY);
                std::hint::black_box(nobody == Some(given));
                false
            }
        }
    }
}

/// The key that the edge encrypts sign-in cookies with.
pub fn login_key(master: &Secret) -> [u8; 32] {
    *derived(master, "culvert login key 1")
}

/// Derives a key for one purpose. The derivation is one-way, so one secret serves several purposes and no
/// derived key reveals another.
fn derived(secret: &Secret, purpose: &str) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(Digest::of(secret.reveal().as_bytes(), purpose).to_bytes())
}

/// A short public ID of a secret key.
fn key_id(key: &Secret) -> String {
    let mut id = Digest::of(key.reveal().as_bytes(), "culvert key id").to_hex();
    id.truncate(8);
    id
}

#[cfg(test)]
mod tests {
    use culvert_base::SeededEntropy;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encrypted_text_decrypts_only_in_its_place_with_its_key() {
        let seal = Seal::new(&Secret::new("master".into()));
        let entropy = SeededEntropy::new(1);
        let sealed = seal.seal(&entropy, "ed_1", "hush").unwrap();
        assert!(!sealed.contains("hush"));
        assert_eq!(seal.open("ed_1", &sealed).unwrap().reveal(), "hush");
        assert!(seal.open("ed_2", &sealed).is_err());
        assert_ne!(sealed, seal.seal(&entropy, "ed_1", "hush").unwrap());
        let other = Seal::new(&Secret::new("other".into()));
        assert!(
            other
                .open("ed_1", &sealed)
                .unwrap_err()
                .doing()
                .contains("master key")
        );
        assert!(!format!("{seal:?}").contains("master"));
    }

    #[test]
    fn an_older_key_decrypts_and_does_not_encrypt() {
        let entropy = SeededEntropy::new(1);
        let (old, new) = (Secret::new("old".into()), Secret::new("new".into()));
        let sealed = Seal::new(&old).seal(&entropy, "ed_1", "hush").unwrap();
        let both = Seal::new(&new).with_older([&old]);
        assert_eq!(both.open("ed_1", &sealed).unwrap().reveal(), "hush");
        assert!(both.is_under_older(&sealed));
        assert!(!both.is_under_older(&Pepper::new(&old).digest("token")));
        let again = both.seal(&entropy, "ed_1", "hush").unwrap();
        assert!(!both.is_under_older(&again));
        assert!(Seal::new(&old).open("ed_1", &again).is_err());
        assert_eq!(
            Seal::new(&new).open("ed_1", &again).unwrap().reveal(),
            "hush"
        );
    }

    #[test]
    fn the_pepper_survives_a_new_master_key() {
        let entropy = SeededEntropy::new(1);
        let (old, new) = (Secret::new("old".into()), Secret::new("new".into()));
        let stored = Pepper::new(&old).digest("token");
        let seal = Seal::new(&new);
        let sealed = Pepper::new(&old).sealed(&seal, &entropy).unwrap();
        let pepper = Pepper::unsealed(&seal, &sealed).unwrap();
        assert!(pepper.recognises(Some(&stored), "token"));
        assert_eq!(pepper.digest("token"), stored);
        assert!(Pepper::unsealed(&Seal::new(&old), &sealed).is_err());
        for damaged in ["", "x", "a.b"] {
            let sealed = seal.seal(&entropy, "pepper", damaged).unwrap();
            assert!(Pepper::unsealed(&seal, &sealed).is_err());
        }
    }

    #[test]
    fn a_token_is_recognised_by_its_digest() {
        let pepper = Pepper::new(&Secret::new("pepper".into()));
        let stored = pepper.digest("token");
        assert!(pepper.recognises(Some(&stored), "token"));
        assert!(!pepper.recognises(Some(&stored), "tokem"));
        assert!(!pepper.recognises(None, "token"));
        assert!(!Pepper::new(&Secret::new("p".into())).recognises(Some(&stored), "token"));
    }

    proptest! {
        #[test]
        fn any_stored_text_decrypts_or_is_a_fault(text in ".{0,120}") {
            let seal = Seal::new(&Secret::new("master".into()));
            prop_assert!(seal.open("x", &text).is_err());
            let pepper = Pepper::new(&Secret::new("pepper".into()));
            prop_assert!(!pepper.recognises(Some(&text), "token"));
        }
    }
}
