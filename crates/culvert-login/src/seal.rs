//! Encryption of data that the browser stores for the edge: AES-256-GCM-SIV (RFC 8452), which remains safe if a nonce
//! is repeated.
//!
//! An encrypted text decrypts only for the purpose and context for which it was encrypted.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::{Digest, Entropy};

/// The purpose of an encrypted text. A text does not decrypt for another purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A session cookie.
    Session,
    /// The cookie that binds a sign-in to the browser in which it began.
    Nonce,
    /// The `state` parameter.
    State,
    /// A sign-in that was completed at the common callback address, on its way to the endpoint.
    Ticket,
    /// The user whose sessions a host accepts.
    Person,
}

impl Purpose {
    fn label(self) -> &'static str {
        match self {
            Self::Session => "culvert session 1\n",
            Self::Nonce => "culvert nonce 1\n",
            Self::State => "culvert state 2\n",
            Self::Ticket => "culvert ticket 1\n",
            Self::Person => "culvert person 1\n",
        }
    }
}

/// The keys that encrypt cookies. All nodes of an installation have the same keys.
pub struct LoginKeys(Vec<LessSafeKey>, Vec<[u8; 32]>);

impl fmt::Debug for LoginKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginKeys")
    }
}

impl LoginKeys {
    /// Encrypts with the first key and decrypts with any of them. Without keys, both fail.
    pub fn new(keys: impl IntoIterator<Item = [u8; 32]>) -> Self {
        let keys: Vec<[u8; 32]> = keys.into_iter().collect();
        let secret = |key: &[u8; 32]| Digest::of(key, "culvert assertion secret 1").to_bytes();
        let secrets = keys.iter().map(secret).collect();
        let keys = keys.iter();
        let keys = keys.filter_map(|key| UnboundKey::new(&AES_256_GCM_SIV, key).ok());
        Self(keys.map(LessSafeKey::new).collect(), secrets)
    }

    /// The secrets that keys of assertions derive from, in the order of the keys.
    pub(crate) fn assertion_secrets(&self) -> &[[u8; 32]] {
        &self.1
    }

    /// Encrypts bytes. The text contains only characters that URLs and cookies allow.
    pub(crate) fn seal(
        &self,
        entropy: &dyn Entropy,
        purpose: Purpose,
        context: &str,
        plain: &[u8],
    ) -> Option<String> {
        let nonce: [u8; NONCE_LEN] = entropy.bytes();
        let mut sealed = plain.to_vec();
        self.0
            .first()?
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                associated(purpose, context),
                &mut sealed,
            )
            .ok()?;
        let mut bytes = nonce.to_vec();
        bytes.append(&mut sealed);
        Some(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Decrypts a text of this purpose and context.
    pub(crate) fn open(&self, purpose: Purpose, context: &str, text: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        self.0.iter().find_map(|key| {
            let mut sealed = sealed.to_vec();
            let opened = key.open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                associated(purpose, context),
                &mut sealed,
            );
            let length = opened.ok()?.len();
            sealed.truncate(length);
            Some(sealed)
        })
    }
}

fn associated(purpose: Purpose, context: &str) -> Aad<String> {
    Aad::from(format!("{}{context}", purpose.label()))
}

#[cfg(test)]
mod tests {
    use culvert_base::SeededEntropy;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sealed_text_opens_for_its_purpose_and_context_alone() {
        let entropy = SeededEntropy::new(1);
        let (old, new) = (
            LoginKeys::new([[1; 32]]),
            LoginKeys::new([[2; 32], [1; 32]]),
        );
        let seal = |keys: &LoginKeys| {
            let sealed = keys.seal(&entropy, Purpose::Session, "here", b"hush");
            sealed.unwrap()
        };
        let sealed = seal(&old);
        let open = |keys: &LoginKeys, purpose, context, text: &str| {
            keys.open(purpose, context, text)
                .map(|bytes| String::from_utf8(bytes).unwrap())
        };
        let hush = Some("hush".to_owned());
        assert_eq!(open(&old, Purpose::Session, "here", &sealed), hush);
        // After a change of keys, old texts still decrypt, and the new key encrypts.
        assert_eq!(open(&new, Purpose::Session, "here", &sealed), hush);
        assert_eq!(open(&old, Purpose::Session, "here", &seal(&new)), None);
        assert_eq!(open(&old, Purpose::State, "here", &sealed), None);
        assert_eq!(open(&old, Purpose::Session, "there", &sealed), None);
        assert_ne!(seal(&old), sealed);
        for at in 0..sealed.len() {
            let mut tampered = sealed.clone().into_bytes();
            tampered[at] = if tampered[at] == b'A' { b'B' } else { b'A' };
            let tampered = String::from_utf8(tampered).unwrap();
            assert_eq!(open(&old, Purpose::Session, "here", &tampered), None);
        }
        assert_eq!(
            LoginKeys::new([]).seal(&entropy, Purpose::Nonce, "", b""),
            None
        );
    }

    proptest! {
        #[test]
        fn any_text_is_refused(text in "[A-Za-z0-9_-]{0,80}|.{0,40}") {
            let keys = LoginKeys::new([[1; 32]]);
            prop_assert_eq!(keys.open(Purpose::State, "", &text), None);
        }
    }
}
