//! A partner that reports leaked tokens: verifies the signatures of its reports, in the form of GitHub's secret scanning.
//!
//! The document at its URL is `{"public_keys": [{"key_identifier": …, "key": PEM}]}`. A report names the key, and its body
//! is signed with ECDSA on P-256 over SHA-256; the signature is DER in base64.

use std::sync::Arc;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::Share;
use culvert_policy::services::{FetchScope, PolicyServices};
use serde::Deserialize;
use url::Url;

use crate::provider::is_secure;

/// Limit of keys of a partner.
const KEYS_MAX: usize = 64;

/// A partner that reports leaked tokens.
#[derive(Debug)]
pub struct LeakPartner {
    url: Url,
    services: Arc<PolicyServices>,
}

/// Why a report of a partner is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    /// The partner has no such key, or the signature is wrong.
    #[error("the report is not signed by the partner")]
    Invalid,
    /// The keys of the partner cannot be fetched.
    #[error("the keys of the partner are not available")]
    Unavailable,
}

#[derive(Deserialize)]
struct Document {
    public_keys: Vec<PartnerKey>,
}

#[derive(Deserialize)]
struct PartnerKey {
    key_identifier: String,
    key: String,
}

impl PartnerKey {
    /// The key as DER.
    fn der(&self) -> Option<Vec<u8>> {
        let lines = self.key.lines().map(str::trim);
        let text: String = lines.filter(|line| !line.starts_with("-----")).collect();
        STANDARD.decode(text).ok()
    }

    fn has_signed(&self, body: &[u8], signature: &[u8]) -> bool {
        self.der().is_some_and(|der| {
            let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, der);
            key.verify(body, signature).is_ok()
        })
    }
}

impl LeakPartner {
    /// Whether the keys of a partner may be at this URL: with `https`, or on this host if that is allowed, and without a
    /// user.
    pub fn accepts(url: &Url, allows_loopback: bool) -> bool {
        is_secure(url, allows_loopback)
    }

    /// The partner whose keys are at this URL. `None` if it may not be there.
    pub fn new(url: Url, allows_loopback: bool, services: Arc<PolicyServices>) -> Option<Self> {
        Self::accepts(&url, allows_loopback).then_some(Self { url, services })
    }

    /// Checks that the partner signed this body with the key of this name. An unknown name fetches the keys again, unless
    /// that was done recently. If that fails, the name may be that of a new key.
    ///
    /// # Errors
    ///
    /// It did not, or its keys are not available.
    pub async fn verify(&self, key: &str, signature: &str, body: &[u8]) -> Result<(), NotSigned> {
        let signature = STANDARD
            .decode(signature.trim())
            .map_err(|_| NotSigned::Invalid)?;
        let share = Share::of_owner("");
        let scope = FetchScope::Upstreams;
        let fetched = self.services.document(share, scope, &self.url).await;
        let mut found = fetched.ok().and_then(|bytes| named(&bytes, key));
        if found.is_none() {
            let fetched = self.services.newer_document(share, scope, &self.url).await;
            let bytes = fetched.map_err(|_| NotSigned::Unavailable)?;
            found = named(&bytes, key);
        }
        let has_failed = || self.services.documents.has_failed(share, scope, &self.url);
        judged(found, body, &signature, has_failed)
    }
}

/// Whether the key signed this body. Without the key, whether its document is as new as it may be.
fn judged(
    found: Option<PartnerKey>,
    body: &[u8],
    signature: &[u8],
    has_failed: impl FnOnce() -> bool,
) -> Result<(), NotSigned> {
    match found {
        Some(found) if found.has_signed(body, signature) => Ok(()),
        None if has_failed() => Err(NotSigned::Unavailable),
        _ => Err(NotSigned::Invalid),
    }
}

/// The key of this name.
fn named(document: &[u8], name: &str) -> Option<PartnerKey> {
    let document: Document = serde_json::from_slice(document).ok()?;
    let mut keys = document.public_keys.into_iter().take(KEYS_MAX);
    keys.find(|key| key.key_identifier == name)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_named_key_verifies_the_whole_body() {
        let key = || EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let (ours, other) = (key(), key());
        let pem = |key: &EcdsaKeyPair| {
            // The head of a SubjectPublicKeyInfo with a point on P-256.
            let head = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgA=";
            let mut der = STANDARD.decode(head).unwrap();
            der.extend(key.public_key().as_ref());
            let text = STANDARD.encode(der);
            let (first, second) = text.split_at(64);
            format!("-----BEGIN PUBLIC KEY-----\n{first}\n{second}\n-----END PUBLIC KEY-----\n")
        };
        let document = json!({"public_keys": [
            {"key_identifier": "a", "key": pem(&ours), "is_current": true},
            {"key_identifier": "b", "key": pem(&other), "is_current": false},
            {"key_identifier": "c", "key": "nonsense", "is_current": false},
        ]});
        let document = document.to_string().into_bytes();
        let body = br#"[{"token":"x","type":"t","url":"u","source":"commit"}]"#;
        let signed = ours.sign(&SystemRandom::new(), body).unwrap();
        let verifies = |name: &str, body: &[u8], signature: &[u8]| {
            named(&document, name).is_some_and(|key| key.has_signed(body, signature))
        };
        assert!(verifies("a", body, signed.as_ref()));
        assert!(!verifies("b", body, signed.as_ref()));
        assert!(!verifies("c", body, signed.as_ref()));
        assert!(!verifies("d", body, signed.as_ref()));
        assert!(!verifies("a", &body[1..], signed.as_ref()));
        assert!(!verifies("a", body, &signed.as_ref()[1..]));
        assert!(!verifies("a", body, b""));
        assert!(named(b"{}", "a").is_none());
        // An unknown key may be a new one while the keys cannot be fetched; a wrong signature stays wrong.
        for (name, has_failed, expected) in [
            ("a", true, Ok(())),
            ("b", true, Err(NotSigned::Invalid)),
            ("d", true, Err(NotSigned::Unavailable)),
            ("d", false, Err(NotSigned::Invalid)),
        ] {
            let judged = judged(named(&document, name), body, signed.as_ref(), || has_failed);
            assert_eq!(judged, expected, "{name} {has_failed}");
        }
    }
}
