//! What a browser keeps for the edge and cannot read: sealed with AES-256-GCM-SIV (RFC 8452), which
//! forgives a nonce that comes twice.
//!
//! A sealed text opens for the purpose and the context it was sealed for, and nowhere else.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::Entropy;

/// What is sealed. A text of one kind is never taken for one of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A session cookie.
    Session,
    /// The cookie that ties a log-in to the browser it began in.
    Nonce,
    /// The `state` parameter on its way through the provider.
    State,
}

impl Purpose {
    fn label(self) -> &'static str {
        match self {
            Self::Session => "culvert session 1\n",
            Self::Nonce => "culvert nonce 1\n",
            Self::State => "culvert state 1\n",
        }
    }
}

/// The keys that cookies are sealed with: all nodes of an installation have the same.
pub struct LoginKeys(Vec<LessSafeKey>);

impl fmt::Debug for LoginKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginKeys")
    }
}

impl LoginKeys {
    /// Seals with the first key, and opens with each. Without a key nothing is sealed or opened.
    pub fn new(keys: impl IntoIterator<Item = [u8; 32]>) -> Self {
        let keys = keys.into_iter();
        let keys = keys.filter_map(|key| UnboundKey::new(&AES_256_GCM_SIV, &key).ok());
        Self(keys.map(LessSafeKey::new).collect())
    }

    /// Seals bytes; the text is made of characters that URLs and cookies take as they are.
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

    /// The bytes that were sealed for this purpose and context.
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
        // Keys change: what was sealed before still opens, and the new key seals.
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
