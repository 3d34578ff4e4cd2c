//! Signed assertions, and the keys that verify them.
//!
//! A key is derived from a secret and the number of a period of 30 days. The keys of the previous, the current and the next
//! period are published, so clocks of nodes may differ, and services may keep a key set for long.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use aws_lc_rs::agreement::{ECDH_P256, PrivateKey};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use culvert_base::sync::lock;
use culvert_base::{Digest, Entropy, Timestamp};
use hashlink::LruCache;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Response, StatusCode};
use serde_json::{Map, Value as Json, json};
use sha2::Sha256;

/// How long a key signs, in seconds.
const PERIOD: i64 = 30 * 24 * 3600;
/// How long an assertion is valid.
const VALID_FOR: Duration = Duration::from_secs(60);
/// How long the same assertion is sent for the same claims, in seconds.
const SENT_FOR: i64 = 20;
/// How long a service may keep the key set.
const KEY_SET_CACHING: HeaderValue = HeaderValue::from_static("public, max-age=3600");
/// Parts of the table of recent assertions, each with a lock, and most assertions of a part.
const PARTS: usize = 16;
const RECENT_MAX: usize = 256;
/// Most attempts to derive a key. A digest is no key with a probability of 2^-32.
const ATTEMPTS_MAX: u8 = 8;

/// The keys of an installation, which all of its nodes derive.
pub struct AssertionKeys {
    /// The installation's base URL.
    issuer: String,
    /// The first one signs.
    secrets: Vec<[u8; 32]>,
    ring: ArcSwapOption<Ring>,
    recent: [Mutex<LruCache<[u8; 32], Recent>>; PARTS],
}

/// An assertion that was made lately.
struct Recent {
    at: i64,
    text: HeaderValue,
}

/// The keys of a period.
struct Ring {
    period: i64,
    /// Signs in this period.
    signer: Option<Key>,
    key_set: Bytes,
}

struct Key {
    id: String,
    pair: EcdsaKeyPair,
    jwk: Json,
}

impl fmt::Debug for AssertionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AssertionKeys")
            .field("issuer", &self.issuer)
            .finish_non_exhaustive()
    }
}

impl Key {
    fn derive(secret: &[u8; 32], period: i64) -> Option<Self> {
        (0..ATTEMPTS_MAX).find_map(|attempt| {
            let purpose = format!("culvert assertion key 1\n{period}\n{attempt}");
            let private = Digest::of(secret, &purpose).to_bytes();
            let public = PrivateKey::from_private_key(&ECDH_P256, &private).ok()?;
            let public = public.compute_public_key().ok()?;
            let pair = EcdsaKeyPair::from_private_key_and_public_key(
                &ECDSA_P256_SHA256_FIXED_SIGNING,
                &private,
                public.as_ref(),
            )
            .ok()?;
            // The uncompressed point: a byte, and two coordinates.
            let (x, y) = (public.as_ref().get(1..33)?, public.as_ref().get(33..65)?);
            let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
            let id = thumbprint(&x, &y);
            let jwk = json!({
                "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": id, "use": "sig", "alg": "ES256",
            });
            Some(Self { id, pair, jwk })
        })
    }
}

/// RFC 7638.
fn thumbprint(x: &str, y: &str) -> String {
    use sha2::Digest as _;
    let members = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
    URL_SAFE_NO_PAD.encode(Sha256::digest(members))
}

impl Ring {
    fn of(secrets: &[[u8; 32]], period: i64) -> Self {
        let keys: Vec<Key> = secrets
            .iter()
            .flat_map(|secret| {
                [period, period - 1, period + 1].map(|period| Key::derive(secret, period))
            })
            .flatten()
            .collect();
        let published: Vec<&Json> = keys.iter().map(|key| &key.jwk).collect();
        let key_set = json!({ "keys": published }).to_string().into();
        Self {
            period,
            key_set,
            signer: keys.into_iter().next(),
        }
    }
}

impl AssertionKeys {
    /// Keys that derive from these secrets. Assertions are signed with the key of the first one, and the keys of all are
    /// published.
    pub fn new(issuer: &str, secrets: impl IntoIterator<Item = [u8; 32]>) -> Self {
        Self {
            issuer: issuer.to_owned(),
            secrets: secrets.into_iter().collect(),
            ring: ArcSwapOption::empty(),
            recent: std::array::from_fn(|_| Mutex::new(LruCache::new(RECENT_MAX))),
        }
    }

    fn ring(&self, now: Timestamp) -> Arc<Ring> {
        let period = now.unix_seconds().div_euclid(PERIOD);
        if let Some(ring) = &*self.ring.load()
            && ring.period == period
        {
            return Arc::clone(ring);
        }
        let ring = Arc::new(Ring::of(&self.secrets, period));
        self.ring.store(Some(Arc::clone(&ring)));
        ring
    }

    /// An assertion with these claims, which contain `sub` and `aud`. The same one is returned for the same claims for some
    /// seconds. `None` if there is no key.
    pub(super) fn assertion(
        &self,
        mut claims: Map<String, Json>,
        now: Timestamp,
        entropy: &dyn Entropy,
    ) -> Option<HeaderValue> {
        use sha2::Digest as _;
        let at = now.unix_seconds();
        let asserted = serde_json::to_vec(&claims).ok()?;
        let key: [u8; 32] = Sha256::digest(&asserted).into();
        let part = self.recent.get(usize::from(key[0]) % PARTS)?;
        if let Some(recent) = lock(part).get(&key)
            && (recent.at..recent.at + SENT_FOR).contains(&at)
        {
            return Some(recent.text.clone());
        }
        let ring = self.ring(now);
        let signer = ring.signer.as_ref()?;
        claims.insert("iss".to_owned(), self.issuer.as_str().into());
        claims.insert("iat".to_owned(), at.into());
        let ends = now.plus(VALID_FOR).unix_seconds();
        claims.insert("exp".to_owned(), ends.into());
        let id: [u8; 16] = entropy.bytes();
        claims.insert("jti".to_owned(), URL_SAFE_NO_PAD.encode(id).into());
        let header = json!({ "alg": "ES256", "kid": signer.id, "typ": "JWT" }).to_string();
        let payload = serde_json::to_vec(&claims).ok()?;
        let mut text = URL_SAFE_NO_PAD.encode(header);
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(payload, &mut text);
        let signature = signer.pair.sign(&SystemRandom::new(), text.as_bytes());
        let signature = signature.ok()?;
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut text);
        let mut text = HeaderValue::try_from(text).ok()?;
        text.set_sensitive(true);
        let recent = Recent {
            at,
            text: text.clone(),
        };
        lock(part).insert(key, recent);
        Some(text)
    }

    /// The public keys as a JSON Web Key Set (RFC 7517).
    pub fn key_set(&self, now: Timestamp) -> Bytes {
        self.ring(now).key_set.clone()
    }

    /// The response to a request for the key set.
    pub fn respond(&self, method: &Method, now: Timestamp) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        if ![Method::GET, Method::HEAD].contains(method) {
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            let headers = response.headers_mut();
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
            return response;
        }
        let key_set = self.key_set(now);
        let headers = response.headers_mut();
        let media = HeaderValue::from_static("application/jwk-set+json");
        headers.insert(CONTENT_TYPE, media);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(key_set.len()));
        headers.insert(CACHE_CONTROL, KEY_SET_CACHING);
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        *response.body_mut() = key_set;
        response
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::SeededEntropy;
    use jsonwebtoken::jwk::JwkSet;
    use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    fn make(keys: &AssertionKeys, sub: &str, now: i64) -> String {
        let claims = json!({ "sub": sub, "aud": "https://app.example", "email": "a@x.example" });
        let claims = claims.as_object().unwrap().clone();
        let entropy = SeededEntropy::new(now.cast_unsigned());
        let made = keys.assertion(claims, at(now), &entropy).unwrap();
        made.to_str().unwrap().to_owned()
    }

    /// The claims, if a key of the set that `keys` publishes at that time has signed them.
    fn verified(keys: &AssertionKeys, now: i64, token: &str) -> Option<Json> {
        let set: JwkSet = serde_json::from_slice(&keys.key_set(at(now))).unwrap();
        let id = decode_header(token).unwrap().kid.unwrap();
        let key = DecodingKey::from_jwk(set.find(&id)?).unwrap();
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_audience(&["https://app.example"]);
        validation.set_issuer(&["https://culvert.example"]);
        validation.validate_exp = false;
        Some(decode(token, &key, &validation).ok()?.claims)
    }

    #[test]
    fn assertions_verify_with_the_published_keys() {
        let keys = AssertionKeys::new("https://culvert.example", [[1; 32]]);
        let token = make(&keys, "anna", NOW);
        let claims = verified(&keys, NOW, &token).unwrap();
        assert_eq!(claims["sub"], "anna");
        assert_eq!(claims["email"], "a@x.example");
        assert_eq!(claims["iat"], NOW);
        assert_eq!(claims["exp"], NOW + 60);
        // Services keep the key set for an hour, and nodes' clocks differ: keys of neighbouring periods are known.
        for (when, is_known) in [(-PERIOD, true), (PERIOD, true), (2 * PERIOD, false)] {
            let found = verified(&keys, NOW + when, &token);
            assert_eq!(found.is_some(), is_known, "{when}");
        }
        // Another node of the installation has the same keys, another installation has not.
        let node = AssertionKeys::new("https://culvert.example", [[1; 32]]);
        assert_eq!(node.key_set(at(NOW)), keys.key_set(at(NOW)));
        let other = AssertionKeys::new("https://culvert.example", [[2; 32]]);
        assert!(verified(&other, NOW, &token).is_none());
    }

    #[test]
    fn a_new_master_key_signs_and_the_old_one_still_verifies() {
        let old = AssertionKeys::new("https://culvert.example", [[1; 32]]);
        let both = AssertionKeys::new("https://culvert.example", [[2; 32], [1; 32]]);
        let new = AssertionKeys::new("https://culvert.example", [[2; 32]]);
        assert!(verified(&both, NOW, &make(&old, "anna", NOW)).is_some());
        assert!(verified(&new, NOW, &make(&both, "anna", NOW)).is_some());
        assert!(verified(&new, NOW, &make(&old, "anna", NOW)).is_none());
    }

    #[test]
    fn an_assertion_is_sent_again_for_some_seconds_only() {
        let keys = AssertionKeys::new("https://culvert.example", [[1; 32]]);
        let first = make(&keys, "anna", NOW);
        assert_eq!(make(&keys, "anna", NOW + SENT_FOR - 1), first);
        assert_ne!(make(&keys, "anna", NOW + SENT_FOR), first);
        assert_ne!(make(&keys, "anna", NOW - 1), first);
        assert_ne!(make(&keys, "bert", NOW), first);
        for user in 0..2 * PARTS * RECENT_MAX {
            make(&keys, &user.to_string(), NOW);
        }
        let kept: usize = keys.recent.iter().map(|part| lock(part).len()).sum();
        assert!(kept <= PARTS * RECENT_MAX);
        let none = AssertionKeys::new("https://culvert.example", []);
        let claims = Map::new();
        assert!(
            none.assertion(claims, at(NOW), &SeededEntropy::new(1))
                .is_none()
        );
        assert_eq!(none.key_set(at(NOW)), r#"{"keys":[]}"#);
    }
}
