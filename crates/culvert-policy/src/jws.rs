//! Signed tokens (RFC 7515, 7519): the keys of an issuer, and whether a token is signed with one.
//!
//! Keys are public ones, from key sets that are fetched (RFC 7517). Whether a token is expired is
//! judged by the edge's own clock.
//!
//! Not here: where a token was found, and what is made of its claims.

use std::fmt;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use culvert_base::Timestamp;
use culvert_base::sync::lock;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode};
use serde_json::Value as Json;
use url::Url;

use crate::documents::NotFetched;
use crate::services::{FetchScope, PolicyServices};

/// Bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Keys of a set that are looked at.
const KEYS_MAX: usize = 64;
/// Seconds by which the clocks of an issuer and of the edge may differ.
const LEEWAY: i64 = 60;

/// What can be checked by a key that everyone may see.
pub(crate) const ALGORITHMS: [&str; 9] = [
    "ES256", "ES384", "EdDSA", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512",
];

/// The algorithm of that name, if its keys are public.
pub fn algorithm(name: &str) -> Option<Algorithm> {
    name.parse().ok().filter(|_| ALGORITHMS.contains(&name))
}

/// Why a token is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbelieved {
    /// It is not signed with a key that is known.
    Signature,
    /// It is another issuer's.
    Issuer,
    /// It is for somebody else.
    Audience,
    /// It is expired, or says not when it does.
    Expired,
    /// It is not valid yet.
    Early,
    /// The keys cannot be had.
    NoKeys,
}

/// Issuers and audiences that are believed.
pub fn validation(issuers: &[String], audiences: &[String]) -> Validation {
    let mut validation = Validation::new(Algorithm::RS256);
    validation.set_issuer(issuers);
    validation.set_audience(audiences);
    validation.set_required_spec_claims(&["iss", "aud"]);
    // By the edge's own clock, below.
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation
}

/// What a token says that is signed with a key of these sets. Its algorithm, from its `header`, was
/// judged before.
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
        match claims_by(&keys, header, token, &validation, now) {
            Err(Unbelieved::Signature) => why = Unbelieved::Signature,
            judged => return judged,
        }
    }
    Err(why)
}

/// The same by the keys of one set.
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

/// Whether a token is neither expired nor of the future.
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

/// A set of keys at an address, and what was made of it when it was last looked at.
#[derive(Debug)]
pub struct KeySet {
    url: Url,
    last: Mutex<Option<(Bytes, Arc<[PublicKey]>)>>,
}

/// A key that tokens may be signed with.
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
    /// Keys of the document at this URL.
    pub fn at(url: Url) -> Self {
        Self {
            url,
            last: Mutex::default(),
        }
    }

    /// The keys, fetched if need be; `None` if they cannot be had.
    pub async fn keys(&self, services: &PolicyServices) -> Option<Arc<[PublicKey]>> {
        self.read(services.document(FetchScope::Upstreams, &self.url).await)
    }

    /// The keys as they are now, unless they were fetched just before: for a token whose key is not
    /// among those that are here.
    pub async fn fresh_keys(&self, services: &PolicyServices) -> Option<Arc<[PublicKey]>> {
        services.documents.expire(self.url.as_str()).await;
        self.keys(services).await
    }

    fn read(&self, fetched: Result<Bytes, Arc<NotFetched>>) -> Option<Arc<[PublicKey]>> {
        let document = match fetched {
            Ok(document) => document,
            Err(error) => {
                tracing::warn!(%error, "cannot fetch the keys of an issuer");
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
    /// The key, unless it is for something else or of a kind that is not known.
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
