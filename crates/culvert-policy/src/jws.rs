//! Signed tokens (RFC 7515, 7519): the keys of an issuer, and the verification of a token with them.
//!
//! Keys are public keys from key sets that are fetched (RFC 7517). The edge's own clock decides whether a token
//! is expired.
//!
//! Not here: finding tokens in requests, and the use of their claims.

use std::fmt;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use culvert_base::sync::lock;
use culvert_base::{Share, Timestamp};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode};
use serde_json::Value as Json;
use url::Url;

use crate::documents::NotFetched;
use crate::services::{FetchScope, PolicyServices};

/// Largest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Most keys of a set that are used.
const KEYS_MAX: usize = 64;
/// Seconds by which the clocks of an issuer and of the edge may differ.
const LEEWAY: i64 = 60;

/// Algorithms whose keys are public.
pub(crate) const ALGORITHMS: [&str; 9] = [
    "ES256", "ES384", "EdDSA", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512",
];

/// The algorithm of that name, if its keys are public.
pub fn algorithm(name: &str) -> Option<Algorithm> {
    name.parse().ok().filter(|_| ALGORITHMS.contains(&name))
}

/// Why a token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbelieved {
    /// It is not signed with a known key.
    Signature,
    /// It has another issuer.
    Issuer,
    /// It has another audience.
    Audience,
    /// It is expired, or has no expiry.
    Expired,
    /// It is not valid yet.
    Early,
    /// The keys are unavailable.
    NoKeys,
}

/// The issuers and audiences that are accepted.
pub fn validation(issuers: &[String], audiences: &[String]) -> Validation {
    let mut validation = Validation::new(Algorithm::RS256);
    validation.set_issuer(issuers);
    validation.set_audience(audiences);
    validation.set_required_spec_claims(&["iss", "aud"]);
    // Checked below with the edge's clock.
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation
}

/// Returns the claims of a token that is signed with a key of these sets. The caller has checked the algorithm in its
/// `header`.
pub async fn claims(
    services: &PolicyServices,
    sources: &[KeySet],
    header: &Header,
    token: &str,
    validation: &Validation,
    now: Timestamp,
) -> Result<Json, Unbelieved> {
    let mut validation = validation.clone();
    validation.algorithms = vec![header.alg];
    let mut why = Unbelieved::Signature;
    for source in sources {
        let Some(keys) = source.keys(services).await else {
            if why == Unbelieved::Signature {
                why = Unbelieved::NoKeys;
            }
            continue;
        };
        let mut judged = claims_by(&keys, header, token, &validation, now);
        // The issuer may have added the key since the keys were fetched.
        if judged == Err(Unbelieved::Signature)
            && is_unknown(&keys, header)
            && let Some(fresh) = source.fresh_keys(services).await
            && !Arc::ptr_eq(&fresh, &keys)
        {
            judged = claims_by(&fresh, header, token, &validation, now);
        }
        match judged {
            Err(Unbelieved::Signature) => why = Unbelieved::Signature,
            judged => return judged,
        }
    }
    Err(why)
}

/// Whether no key of a set is the one that a header names.
fn is_unknown(keys: &[PublicKey], header: &Header) -> bool {
    let named = keys
        .iter()
        .filter(|key| key.id.is_some() && key.id == header.kid);
    header.kid.is_none() || named.count() == 0
}

/// Like [`claims`], with the keys of one set.
pub fn claims_by(
    keys: &[PublicKey],
    header: &Header,
    token: &str,
    validation: &Validation,
    now: Timestamp,
) -> Result<Json, Unbelieved> {
    for key in keys.iter().filter(|key| key.may_have_signed(header)) {
        match decode::<Json>(token, &key.key, validation) {
            Ok(decoded) => {
                in_time(&decoded.claims, now)?;
                return Ok(decoded.claims);
            }
            Err(error) => match error.kind() {
                ErrorKind::InvalidIssuer => return Err(Unbelieved::Issuer),
                ErrorKind::InvalidAudience => return Err(Unbelieved::Audience),
                ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => {
                    return Err(Unbelieved::Issuer);
                }
                ErrorKind::MissingRequiredClaim(_) => return Err(Unbelieved::Audience),
                _ => {}
            },
        }
    }
    Err(Unbelieved::Signature)
}

/// Whether a token is valid now.
fn in_time(claims: &Json, now: Timestamp) -> Result<(), Unbelieved> {
    let now = now.unix_seconds() as f64;
    let leeway = LEEWAY as f64;
    let at = |name: &str| claims.get(name).map(Json::as_f64);
    match at("exp") {
        Some(Some(exp)) if exp + leeway > now => {}
        _ => return Err(Unbelieved::Expired),
    }
    match at("nbf") {
        None => Ok(()),
        Some(Some(nbf)) if nbf - leeway <= now => Ok(()),
        Some(_) => Err(Unbelieved::Early),
    }
}

/// A set of keys at a URL, and its parsed form as of the last fetch.
#[derive(Debug)]
pub struct KeySet {
    url: Url,
    /// Who fetches it.
    share: Share,
    last: Mutex<Option<(Bytes, Arc<[PublicKey]>)>>,
}

/// A key that signs tokens.
pub struct PublicKey {
    id: Option<String>,
    algorithm: Option<KeyAlgorithm>,
    key: DecodingKey,
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl KeySet {
    /// Keys of the document at this URL, for the installation itself.
    pub fn at(url: Url) -> Self {
        Self {
            url,
            share: Share::of_owner(""),
            last: Mutex::default(),
        }
    }

    /// The same keys, for a policy with this share of fetches and of the cache.
    #[must_use]
    pub fn used_by(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// The keys, fetched if necessary; `None` if they are unavailable.
    pub async fn keys(&self, services: &PolicyServices) -> Option<Arc<[PublicKey]>> {
        let fetched = services.document(self.share, FetchScope::Upstreams, &self.url);
        self.read(fetched.await)
    }

    /// The keys, fetched again unless that was done or tried a moment ago: for a token whose key is unknown.
    pub async fn fresh_keys(&self, services: &PolicyServices) -> Option<Arc<[PublicKey]>> {
        let fetched = services.newer_document(self.share, FetchScope::Upstreams, &self.url);
        self.read(fetched.await)
    }

    fn read(&self, fetched: Result<Bytes, Arc<NotFetched>>) -> Option<Arc<[PublicKey]>> {
        let document = match fetched {
            Ok(document) => document,
            Err(error) => {
                tracing::debug!(%error, "there are no keys of an issuer");
                return None;
            }
        };
        let mut last = lock(&self.last);
        if let Some((seen, keys)) = &*last
            && seen.as_ptr() == document.as_ptr()
        {
            return Some(Arc::clone(keys));
        }
        let set: JwkSet = serde_json::from_slice(&document).ok()?;
        let keys: Arc<[PublicKey]> = set
            .keys
            .iter()
            .take(KEYS_MAX)
            .filter_map(PublicKey::of)
            .collect();
        *last = Some((document, Arc::clone(&keys)));
        Some(keys)
    }
}

impl PublicKey {
    /// The key, unless its use or kind is not supported.
    fn of(jwk: &Jwk) -> Option<Self> {
        let signs = matches!(
            jwk.common.public_key_use,
            None | Some(PublicKeyUse::Signature)
        );
        Some(Self {
            id: jwk.common.key_id.clone(),
            algorithm: jwk.common.key_algorithm,
            key: DecodingKey::from_jwk(jwk).ok().filter(|_| signs)?,
        })
    }

    fn may_have_signed(&self, header: &Header) -> bool {
        let is_named = match (&self.id, &header.kid) {
            (Some(id), Some(kid)) => id == kid,
            (None, Some(_)) | (_, None) => true,
        };
        let is_meant = self
            .algorithm
            .is_none_or(|algorithm| algorithm == KeyAlgorithm::from(header.alg));
        is_named && is_meant && self.key.family() == header.alg.family()
    }
}
