//! Signed tokens (RFC 7515, 7519): the keys of an issuer, and the verification of a token with them.
//!
//! Keys are public keys from key sets that are fetched (RFC 7517). The edge's own clock decides whether a token
//! is expired.
//!
//! A token that two readers may read differently is none: names in its header and claims are unique, and claims have the
//! types of RFC 7519.
//!
//! Not here: finding tokens in requests, and the use of their claims.

use std::fmt;
use std::sync::{Arc, Mutex};

use aws_lc_rs::signature::{ECDSA_P521_SHA512_FIXED, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use culvert_base::sync::lock;
use culvert_base::{Share, Timestamp};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{AlgorithmFamily, DecodingKey, crypto};
use serde_json::Value as Json;
use url::Url;

use crate::ports::services::{FetchScope, PolicyServices};
use crate::token::documents::NotFetched;
use crate::token::unique_json;

/// Largest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Most keys of a set that are used.
const KEYS_MAX: usize = 64;
/// Seconds by which the clocks of an issuer and of the edge may differ.
const LEEWAY: i64 = 60;

/// An algorithm whose keys are public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm(&'static Row);

#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: &'static str,
    /// `None` for ECDSA with P-521, which the library lacks.
    known: Option<jsonwebtoken::Algorithm>,
}

const fn row(name: &'static str, known: jsonwebtoken::Algorithm) -> Row {
    Row {
        name,
        known: Some(known),
    }
}

static ROWS: [Row; 10] = [
    row("ES256", jsonwebtoken::Algorithm::ES256),
    row("ES384", jsonwebtoken::Algorithm::ES384),
    Row {
        name: "ES512",
        known: None,
    },
    row("EdDSA", jsonwebtoken::Algorithm::EdDSA),
    row("PS256", jsonwebtoken::Algorithm::PS256),
    row("PS384", jsonwebtoken::Algorithm::PS384),
    row("PS512", jsonwebtoken::Algorithm::PS512),
    row("RS256", jsonwebtoken::Algorithm::RS256),
    row("RS384", jsonwebtoken::Algorithm::RS384),
    row("RS512", jsonwebtoken::Algorithm::RS512),
];

impl Algorithm {
    /// The algorithm of that name; `None` if it is unknown, or its keys are not public.
    pub fn find(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(Self)
    }

    /// The names of all algorithms.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ROWS.iter().map(|row| row.name)
    }
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

/// A token that was read and not verified.
#[derive(Debug)]
pub struct Token<'t> {
    /// Its header.
    pub header: Json,
    /// The algorithm that its header names; `None` if it is not supported.
    pub algorithm: Option<Algorithm>,
    /// Whether it has a critical extension (RFC 7515 4.1.11). None is supported, so no key verifies it.
    pub is_extended: bool,
    claims: Json,
    signed: &'t str,
    /// The signature as written.
    pub signature: &'t str,
}

impl<'t> Token<'t> {
    /// Reads a token in the compact form. `None` if it has another form.
    pub fn read(text: &'t str) -> Option<Self> {
        if text.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let object = |part: &str| {
            let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
            unique_json::read(&bytes).filter(Json::is_object)
        };
        let header = object(header)?;
        let has_texts = ["alg", "kid", "typ"]
            .iter()
            .all(|name| header.get(name).is_none_or(Json::is_string));
        if !has_texts {
            return None;
        }
        let algorithm = header.get("alg").and_then(Json::as_str)?;
        Some(Self {
            algorithm: Algorithm::find(algorithm),
            is_extended: header.get("crit").is_some(),
            claims: object(claims)?,
            header,
            signed,
            signature,
        })
    }

    /// A text in its header; empty if there is none.
    pub fn header_text(&self, name: &str) -> &str {
        let value = self.header.get(name).and_then(Json::as_str);
        value.unwrap_or_default()
    }
}

/// The issuers and audiences that are accepted.
#[derive(Clone, Debug)]
pub struct Expected {
    /// One of them is the issuer.
    pub issuers: Vec<String>,
    /// One of them is an audience.
    pub audiences: Vec<String>,
}

impl Expected {
    /// Judges the claims of a token whose signature is valid.
    fn judge(&self, claims: &Json, now: Timestamp) -> Result<(), Unbelieved> {
        let is_issuer = |name: &str| self.issuers.iter().any(|issuer| issuer == name);
        if !claims
            .get("iss")
            .and_then(Json::as_str)
            .is_some_and(is_issuer)
        {
            return Err(Unbelieved::Issuer);
        }
        let is_ours = |name: &str| self.audiences.iter().any(|audience| audience == name);
        let is_meant = match claims.get("aud") {
            Some(Json::String(name)) => is_ours(name),
            Some(Json::Array(names)) => {
                let names: Option<Vec<&str>> = names.iter().map(Json::as_str).collect();
                names.is_some_and(|names| names.into_iter().any(is_ours))
            }
            _ => false,
        };
        if !is_meant {
            return Err(Unbelieved::Audience);
        }
        in_time(claims, now)
    }
}

/// Returns the claims of a token that is signed with a key of these sets, with any [`Algorithm`] that fits the key.
pub async fn claims(
    services: &PolicyServices,
    sources: &[KeySet],
    token: &Token<'_>,
    expected: &Expected,
    now: Timestamp,
) -> Result<Json, Unbelieved> {
    let mut why = Unbelieved::Signature;
    for source in sources {
        let Some(keys) = source.keys(services).await else {
            if why == Unbelieved::Signature {
                why = Unbelieved::NoKeys;
            }
            continue;
        };
        let mut judged = claims_by(&keys, token, expected, now);
        // The issuer may have added the key since the keys were fetched.
        if judged == Err(Unbelieved::Signature)
            && is_unknown(&keys, token)
            && let Some(fresh) = source.fresh_keys(services).await
            && !Arc::ptr_eq(&fresh, &keys)
        {
            judged = claims_by(&fresh, token, expected, now);
        }
        match judged {
            Err(Unbelieved::Signature) => why = Unbelieved::Signature,
            judged => return judged,
        }
    }
    Err(why)
}

/// Whether no key of a set is the one that a header names.
fn is_unknown(keys: &[PublicKey], token: &Token<'_>) -> bool {
    let kid = token.header_text("kid");
    kid.is_empty() || keys.iter().all(|key| key.id.as_deref() != Some(kid))
}

/// Like [`claims`], with the keys of one set.
pub fn claims_by(
    keys: &[PublicKey],
    token: &Token<'_>,
    expected: &Expected,
    now: Timestamp,
) -> Result<Json, Unbelieved> {
    if !is_signed(keys, token) {
        return Err(Unbelieved::Signature);
    }
    expected.judge(&token.claims, now)?;
    Ok(token.claims.clone())
}

/// Whether one of the keys has signed a token.
pub fn is_signed(keys: &[PublicKey], token: &Token<'_>) -> bool {
    keys.iter().any(|key| key.has_signed(token))
}

/// The claims of a signed user info response (OpenID Connect Core 5.3.2): a token whose issuer and audience, if it names
/// them, are those of the caller. It need not expire.
pub fn user_info_by(
    keys: &[PublicKey],
    token: &Token<'_>,
    expected: &Expected,
    now: Timestamp,
) -> Result<Json, Unbelieved> {
    if !is_signed(keys, token) {
        return Err(Unbelieved::Signature);
    }
    let mut claims = token.claims.clone();
    let Some(named) = claims.as_object_mut() else {
        return Err(Unbelieved::Signature);
    };
    // Claims that are absent count as those that are expected.
    let first = |texts: &[String]| texts.first().cloned().unwrap_or_default();
    named
        .entry("iss")
        .or_insert_with(|| first(&expected.issuers).into());
    named
        .entry("aud")
        .or_insert_with(|| first(&expected.audiences).into());
    named
        .entry("exp")
        .or_insert_with(|| now.unix_seconds().into());
    expected.judge(&claims, now)?;
    Ok(token.claims.clone())
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
    /// The name of the only algorithm that it is for.
    algorithm: Option<String>,
    key: Key,
}

enum Key {
    Known(DecodingKey),
    /// A point on P-521, uncompressed.
    P521(Vec<u8>),
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

    /// The keys, fetched again unless that was done or tried recently: for a token whose key is unknown.
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
        let set: Json = serde_json::from_slice(&document).ok()?;
        let keys: Arc<[PublicKey]> = set
            .get("keys")?
            .as_array()?
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
    fn of(json: &Json) -> Option<Self> {
        let text = |name: &str| match json.get(name) {
            None | Some(Json::Null) => Some(None),
            Some(Json::String(text)) => Some(Some(text.clone())),
            Some(_) => None,
        };
        let jwk: Jwk = serde_json::from_value(json.clone()).ok()?;
        let signs = matches!(
            jwk.common.public_key_use,
            None | Some(PublicKeyUse::Signature)
        );
        let key = match &jwk.algorithm {
            AlgorithmParameters::EllipticCurve(point) if point.curve == EllipticCurve::P521 => {
                Key::P521(p521(&point.x, &point.y)?)
            }
            _ => Key::Known(DecodingKey::from_jwk(&jwk).ok()?),
        };
        let (id, algorithm) = (text("kid")?, text("alg")?);
        signs.then_some(Self { id, algorithm, key })
    }

    fn has_signed(&self, token: &Token<'_>) -> bool {
        let Some(Algorithm(row)) = token.algorithm else {
            return false;
        };
        let is_named = match (&self.id, token.header.get("kid").and_then(Json::as_str)) {
            (Some(id), Some(kid)) => id == kid,
            (None, Some(_)) | (_, None) => true,
        };
        let is_meant = self
            .algorithm
            .as_deref()
            .is_none_or(|name| name == row.name);
        if !is_named || !is_meant || token.is_extended {
            return false;
        }
        match (&self.key, row.known) {
            (Key::Known(key), Some(algorithm)) if fits(key.family(), algorithm) => {
                let message = token.signed.as_bytes();
                crypto::verify(token.signature, message, key, algorithm).unwrap_or(false)
            }
            (Key::P521(point), None) => {
                let key = UnparsedPublicKey::new(&ECDSA_P521_SHA512_FIXED, point);
                let signature = URL_SAFE_NO_PAD.decode(token.signature);
                signature
                    .is_ok_and(|signature| key.verify(token.signed.as_bytes(), &signature).is_ok())
            }
            _ => false,
        }
    }
}

fn fits(family: AlgorithmFamily, algorithm: jsonwebtoken::Algorithm) -> bool {
    family == algorithm.family()
}

/// A point on P-521, uncompressed (SEC 1 2.3.3). Some issuers omit leading zeros of coordinates.
fn p521(x: &str, y: &str) -> Option<Vec<u8>> {
    const COORDINATE_BYTES: usize = 66;
    let mut point = vec![4];
    for coordinate in [x, y] {
        let bytes = URL_SAFE_NO_PAD.decode(coordinate).ok()?;
        let zeros = COORDINATE_BYTES.checked_sub(bytes.len())?;
        point.resize(point.len() + zeros, 0);
        point.extend(bytes);
    }
    Some(point)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn now() -> Timestamp {
        Timestamp::from_unix_seconds(NOW)
    }

    fn expected() -> Expected {
        Expected {
            issuers: vec!["issuer".to_owned()],
            audiences: vec!["ours".to_owned(), "theirs".to_owned()],
        }
    }

    /// A key of P-521, and a signer with it.
    fn p521_key() -> (PublicKey, impl Fn(&str, &str) -> String) {
        let pair = EcdsaKeyPair::generate(&ECDSA_P521_SHA512_FIXED_SIGNING).unwrap();
        let point = pair.public_key().as_ref().to_vec();
        let (x, y) = point[1..].split_at(66);
        let key = PublicKey::of(&json!({
            "kty": "EC", "crv": "P-521", "kid": "a", "alg": "ES512", "use": "sig",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        }))
        .unwrap();
        let sign = move |header: &str, claims: &str| {
            let signed = format!(
                "{}.{}",
                URL_SAFE_NO_PAD.encode(header),
                URL_SAFE_NO_PAD.encode(claims)
            );
            let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
        };
        (key, sign)
    }

    const HEADER: &str = r#"{"alg":"ES512","kid":"a"}"#;

    #[test]
    fn claims_have_the_types_of_the_standard() {
        let (key, sign) = p521_key();
        let keys = [key];
        for (claims, judged) in [
            (r#""iss":"issuer","aud":"ours","exp":1800000010"#, Ok(())),
            (
                r#""iss":"issuer","aud":["x","theirs"],"exp":1800000010.5,"nbf":1800000000"#,
                Ok(()),
            ),
            (
                r#""iss":["issuer"],"aud":"ours","exp":1800000010"#,
                Err(Unbelieved::Issuer),
            ),
            (
                r#""iss":["issuer","evil"],"aud":"ours","exp":1800000010"#,
                Err(Unbelieved::Issuer),
            ),
            (
                r#""iss":null,"aud":"ours","exp":1800000010"#,
                Err(Unbelieved::Issuer),
            ),
            (r#""aud":"ours","exp":1800000010"#, Err(Unbelieved::Issuer)),
            (
                r#""iss":"issuer","exp":1800000010"#,
                Err(Unbelieved::Audience),
            ),
            (
                r#""iss":"issuer","aud":[],"exp":1800000010"#,
                Err(Unbelieved::Audience),
            ),
            (
                r#""iss":"issuer","aud":["ours",1],"exp":1800000010"#,
                Err(Unbelieved::Audience),
            ),
            (
                r#""iss":"issuer","aud":{"ours":1},"exp":1800000010"#,
                Err(Unbelieved::Audience),
            ),
            (r#""iss":"issuer","aud":"ours""#, Err(Unbelieved::Expired)),
            (
                r#""iss":"issuer","aud":"ours","exp":"1800000010""#,
                Err(Unbelieved::Expired),
            ),
            (
                r#""iss":"issuer","aud":"ours","exp":1799999940"#,
                Err(Unbelieved::Expired),
            ),
            (
                r#""iss":"issuer","aud":"ours","exp":null"#,
                Err(Unbelieved::Expired),
            ),
            (
                r#""iss":"issuer","aud":"ours","exp":1800000010,"nbf":"1""#,
                Err(Unbelieved::Early),
            ),
            (
                r#""iss":"issuer","aud":"ours","exp":1800000010,"nbf":null"#,
                Err(Unbelieved::Early),
            ),
            (
                r#""iss":"issuer","aud":"ours","exp":1800000010,"nbf":1800000061"#,
                Err(Unbelieved::Early),
            ),
        ] {
            let text = sign(HEADER, &format!("{{{claims}}}"));
            let token = Token::read(&text).unwrap();
            let found = claims_by(&keys, &token, &expected(), now());
            assert_eq!(found.map(drop), judged, "{claims}");
        }
    }

    #[test]
    fn what_two_readers_may_read_differently_is_no_token() {
        let claims = r#"{"iss":"issuer","aud":"ours","exp":1800000010}"#;
        let text = |header: &str, claims: &str| {
            let [header, claims] = [header, claims].map(|text| URL_SAFE_NO_PAD.encode(text));
            format!("{header}.{claims}.AAAA")
        };
        assert!(Token::read(&text(HEADER, claims)).is_some());
        for (header, claims) in [
            (r#"{"alg":"ES512","alg":"ES512"}"#, claims),
            (r#"{"alg":"ES512","kid":"a","kid":"b"}"#, claims),
            (r#"{"alg":"ES512","\u006bid":"a","kid":"b"}"#, claims),
            (r#"{"alg":"ES512","kid":1}"#, claims),
            (r#"{"alg":["ES512"]}"#, claims),
            (r#"{"alg":"ES512","typ":null}"#, claims),
            (r#"{"kid":"a"}"#, claims),
            (r#"["ES512"]"#, claims),
            (HEADER, r#"{"sub":"me","sub":"you"}"#),
            (HEADER, r#"{"a":{"b":1,"b":2}}"#),
            (HEADER, r#"{"a":[{"b":1,"b":2}]}"#),
            (HEADER, "[1]"),
            (HEADER, "{} {}"),
            (HEADER, ""),
        ] {
            assert!(
                Token::read(&text(header, claims)).is_none(),
                "{header} {claims}"
            );
        }
        let good = text(HEADER, claims);
        for wrong in [
            format!("{good}.A"),
            format!(".{good}"),
            good.replace('.', "=."),
        ] {
            assert!(Token::read(&wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn tokens_of_p521_keys_are_verified() {
        let ((key, sign), (other, _)) = (p521_key(), p521_key());
        let text = sign(HEADER, r#"{"iss":"issuer","aud":"ours","exp":1800000010}"#);
        let token = Token::read(&text).unwrap();
        assert_eq!(token.algorithm, Algorithm::find("ES512"));
        let keys = [other, key];
        assert!(claims_by(&keys, &token, &expected(), now()).is_ok());
        for header in [
            r#"{"alg":"ES512","kid":"a","crit":[]}"#,
            r#"{"alg":"ES512","crit":["b64"],"b64":false}"#,
        ] {
            let extended = sign(header, "{}");
            assert!(
                !is_signed(&keys, &Token::read(&extended).unwrap()),
                "{header}"
            );
        }
        // Its claims, under the signature of other claims.
        let changed = URL_SAFE_NO_PAD.encode(r#"{"iss":"issuer","aud":"ours","exp":1900000010}"#);
        let forged = format!(
            "{}.{changed}.{}",
            text.split('.').next().unwrap(),
            token.signature
        );
        assert!(!is_signed(&keys, &Token::read(&forged).unwrap()));
        let [other, _] = keys;
        assert!(!is_signed(&[other], &token));
    }

    #[test]
    fn signed_user_info_is_for_the_application() {
        let (key, sign) = p521_key();
        let keys = [key];
        for (claims, is_believed) in [
            (r#"{"sub":"me"}"#, true),
            (r#"{"sub":"me","iss":"issuer","aud":["ours"]}"#, true),
            (r#"{"sub":"me","iss":"evil"}"#, false),
            (r#"{"sub":"me","aud":"others"}"#, false),
            (r#"{"sub":"me","iss":["issuer"]}"#, false),
            (r#"{"sub":"me","exp":1799999000}"#, false),
        ] {
            let text = sign(HEADER, claims);
            let token = Token::read(&text).unwrap();
            let found = user_info_by(&keys, &token, &expected(), now());
            assert_eq!(found.is_ok(), is_believed, "{claims}");
            assert!(user_info_by(&[], &token, &expected(), now()).is_err());
        }
    }
}
