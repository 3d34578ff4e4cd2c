//! Webhooks: whether a request is from the provider it says it is from.
//!
//! Most providers sign alike, with a keyed hash over parts of the request, and are rows of a table
//! (`provider`). The odd ones have a file each. A request may carry several signatures, as it does
//! while a secret is being replaced: one that matches is enough.
//!
//! Pure: no socket and no clock. Secrets are compared in constant time, and what a request says of
//! its own time is believed only where it is signed.

mod challenge;
mod contentful;
mod json;
mod place;
mod plivo;
mod provider;
mod sendgrid;
pub mod sns;
mod twilio;

use std::time::Duration;

use aws_lc_rs::{constant_time, digest, hmac};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use culvert_base::Timestamp;
use http::{HeaderMap, Method};

pub use crate::webhook::challenge::answer;
use crate::webhook::provider::{Encoding, Hash, Key, Part, Row, Way};

/// Most signatures of one request that are looked at.
const SIGNATURES_MAX: usize = 32;
/// Most fields of a form that are looked at.
const FORM_FIELDS_MAX: usize = 1000;

/// Someone who sends webhooks.
#[derive(Clone, Copy, Debug)]
pub struct Provider {
    /// The ways in which it signs; at least one.
    rows: &'static [Row],
}

/// Every provider, sorted by name.
pub fn all() -> impl Iterator<Item = Provider> {
    provider::TABLE
        .chunk_by(|a, b| a.provider == b.provider)
        .map(|rows| Provider { rows })
}

/// The provider of that name.
pub fn find(name: &str) -> Option<Provider> {
    all().find(|provider| provider.name() == name)
}

impl Provider {
    /// Its name in a policy.
    pub fn name(self) -> &'static str {
        self.rows.first().map_or("", |row| row.provider)
    }

    /// Whether it signs with a key of its own, whose certificate a message names, instead of a
    /// secret: see [`sns`].
    pub fn has_certificate(self) -> bool {
        self.rows
            .iter()
            .any(|row| matches!(row.way, Way::Certificate))
    }

    /// Whether its way of signing is not documented well enough to be relied on.
    pub fn is_unconfirmed(self) -> bool {
        provider::UNCONFIRMED.contains(&self.name())
    }

    /// Whether a secret can be one of this provider's.
    ///
    /// # Errors
    /// What it must be, as the end of a sentence.
    pub fn check_secret(self, secret: &str) -> Result<(), &'static str> {
        if self.has_certificate() {
            return Ok(());
        }
        if secret.is_empty() {
            return Err("must not be empty");
        }
        self.rows.iter().try_for_each(|row| match row.way {
            Way::PublicKey(is_key, _) if !is_key(secret) => {
                Err("must be the Base64 public key of the provider")
            }
            Way::Mac if row.key.of(secret).is_empty() => {
                Err("must be a Base64 key, as shown by the provider")
            }
            _ => Ok(()),
        })
    }
}

/// A request, as its sender made it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// Its method.
    pub method: &'r Method,
    /// The whole URL under which the sender knows this place, query and all.
    pub url: &'r str,
    /// Its fields.
    pub headers: &'r HeaderMap,
    /// Its body.
    pub body: &'r [u8],
}

/// Why a request is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    /// The field that should carry the signature, or what is signed, is not there.
    #[error("the request has no `{0}`")]
    Missing(&'static str),
    /// What should carry the signature is not in the form of the provider.
    #[error("the request does not have the provider's format")]
    Malformed,
    /// It was signed too long ago, or will be.
    #[error("the request was signed too long ago, or in the future")]
    Stale,
    /// It was signed with something else, or for something else.
    #[error("the signature does not match")]
    Mismatch,
    /// The secret is none of this provider.
    #[error("the secret is not a valid secret of the provider")]
    Secret,
    /// The certificate of the signer could not be had, or is not one.
    #[error("the signing certificate cannot be fetched")]
    Certificate,
}

/// Whether the request is signed as the provider signs, with this secret.
///
/// # Errors
/// Why it is not.
pub fn verify(
    provider: Provider,
    secret: &str,
    request: &Request<'_>,
    now: Timestamp,
) -> Result<(), Unverified> {
    let mut why = None;
    if secret.is_empty() {
        return Err(Unverified::Secret);
    }
    for row in provider.rows {
        match row.verify(secret, request, now) {
            Ok(()) => return Ok(()),
            // A way that was tried says more than one that was not.
            Err(Unverified::Missing(_)) if why.is_some() => {}
            Err(error) => {
                if matches!(why, None | Some(Unverified::Missing(_))) {
                    why = Some(error);
                }
            }
        }
    }
    Err(why.unwrap_or(Unverified::Malformed))
}

impl Row {
    fn verify(
        &self,
        secret: &str,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<(), Unverified> {
        match self.way {
            Way::Mac => self.verify_mac(secret, request, now),
            Way::Token => {
                let tokens = self.signature.values(request)?;
                let is_same = |token: &[u8]| is_equal(token, secret.as_bytes());
                if tokens.iter().any(|token| is_same(token.as_bytes())) {
                    Ok(())
                } else {
                    Err(Unverified::Mismatch)
                }
            }
            Way::Code(check) | Way::PublicKey(_, check) => check(secret, request, now),
            Way::Certificate => Err(Unverified::Certificate),
        }
    }

    fn verify_mac(
        &self,
        secret: &str,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<(), Unverified> {
        let given: Vec<Vec<u8>> = self
            .signature
            .values(request)?
            .iter()
            .filter_map(|text| self.encoding.decode(text))
            .collect();
        if given.is_empty() {
            return Err(Unverified::Malformed);
        }
        let stamp = match self.stamp {
            Some((place, tolerance)) => {
                let stamp = place.one(request)?;
                check_stamp(&stamp, tolerance, now)?;
                stamp.into_owned()
            }
            None => String::new(),
        };
        let keys = self.key.of(secret);
        if keys.is_empty() {
            return Err(Unverified::Secret);
        }
        for key in keys {
            let mut digester = Digester::new(self.hash, &key);
            for part in self.parts {
                part.feed(request, &stamp, &mut digester)?;
            }
            let tag = digester.finish();
            if given.iter().any(|given| is_equal(given, &tag)) {
                return Ok(());
            }
        }
        Err(Unverified::Mismatch)
    }
}

impl Part {
    fn feed(
        &self,
        request: &Request<'_>,
        stamp: &str,
        digester: &mut Digester,
    ) -> Result<(), Unverified> {
        match self {
            Self::Body => digester.update(request.body),
            Self::JsonOfBody => {
                let body = std::str::from_utf8(request.body).map_err(|_| Unverified::Malformed)?;
                let text = serde_json::to_string(body).map_err(|_| Unverified::Malformed)?;
                digester.update(text.as_bytes());
            }
            Self::Text(text) => digester.update(text.as_bytes()),
            Self::Stamp => digester.update(stamp.as_bytes()),
            Self::Value(place) => digester.update(place.one(request)?.as_bytes()),
            Self::Method => digester.update(request.method.as_str().as_bytes()),
            Self::Url => digester.update(request.url.as_bytes()),
            Self::UrlSoftened => digester.update(softened(request.url).as_bytes()),
            Self::Form => {
                for (name, value) in request.form()? {
                    digester.update(name.as_bytes());
                    digester.update(value.as_bytes());
                }
            }
        }
        Ok(())
    }
}

impl Request<'_> {
    /// The fields of a form, sorted. Another body must be empty, for it would be signed by nobody.
    fn form(&self) -> Result<Vec<(String, String)>, Unverified> {
        if self.body.is_empty() {
            return Ok(Vec::new());
        }
        if !self.is_form() {
            return Err(Unverified::Malformed);
        }
        let mut fields: Vec<(String, String)> = Vec::new();
        for (name, value) in url::form_urlencoded::parse(self.body) {
            if fields.len() == FORM_FIELDS_MAX {
                return Err(Unverified::Malformed);
            }
            fields.push((name.into_owned(), value.into_owned()));
        }
        fields.sort();
        Ok(fields)
    }

    fn is_form(&self) -> bool {
        let media = self.headers.get(http::header::CONTENT_TYPE);
        let media = media.and_then(|value| value.as_bytes().split(|byte| *byte == b';').next());
        media.is_some_and(|media| {
            media
                .trim_ascii()
                .eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
        })
    }

    /// The path and the query, as they stand in the URL.
    fn target(&self) -> &str {
        let behind = self.url.split_once("://").map_or("", |(_, rest)| rest);
        behind.find(['/', '?']).map_or("", |at| &behind[at..])
    }
}

/// The URL with the characters in clear that HubSpot does not escape.
fn softened(url: &str) -> String {
    let mut out = String::with_capacity(url.len());
    let mut rest = url;
    while let Some(at) = rest.find('%') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let plain = match escape.get(1..3).map(str::to_ascii_uppercase).as_deref() {
            Some("3A") => ':',
            Some("2F") => '/',
            Some("3F") => '?',
            Some("40") => '@',
            Some("21") => '!',
            Some("24") => '$',
            Some("27") => '\'',
            Some("28") => '(',
            Some("29") => ')',
            Some("2A") => '*',
            Some("2C") => ',',
            Some("3B") => ';',
            _ => {
                out.push('%');
                rest = &escape[1..];
                continue;
            }
        };
        out.push(plain);
        rest = &escape[3..];
    }
    out.push_str(rest);
    out
}

/// A hash that is being made.
enum Digester {
    Keyed(Box<hmac::Context>),
    Plain(digest::Context),
}

impl Digester {
    fn new(hash: Hash, key: &[u8]) -> Self {
        let keyed = |algorithm| {
            let key = hmac::Key::new(algorithm, key);
            Self::Keyed(Box::new(hmac::Context::with_key(&key)))
        };
        match hash {
            Hash::Sha1 => keyed(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
            Hash::Sha256 => keyed(hmac::HMAC_SHA256),
            Hash::Sha512 => keyed(hmac::HMAC_SHA512),
            Hash::PlainSha256 => {
                let mut context = digest::Context::new(&digest::SHA256);
                context.update(key);
                Self::Plain(context)
            }
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Keyed(context) => context.update(bytes),
            Self::Plain(context) => context.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Keyed(context) => context.sign().as_ref().to_vec(),
            Self::Plain(context) => context.finish().as_ref().to_vec(),
        }
    }
}

impl Encoding {
    fn decode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Hex => from_hex(text),
            Self::Base64 => from_base64(text),
        }
    }
}

impl Key {
    /// The keys that a secret may stand for; none if it cannot be one.
    fn of(self, secret: &str) -> Vec<Vec<u8>> {
        let text = || secret.as_bytes().to_vec();
        let bare = secret.strip_prefix("whsec_").unwrap_or(secret);
        let decoded = || from_base64(bare).filter(|key| !key.is_empty());
        match self {
            Self::Text => vec![text()],
            Self::Base64 => decoded().into_iter().collect(),
            Self::TextOrBase64 => [Some(text()), decoded()].into_iter().flatten().collect(),
            Self::Pair => secret
                .split(',')
                .map(|key| key.trim().as_bytes().to_vec())
                .filter(|key| !key.is_empty())
                .take(2)
                .collect(),
        }
    }
}

/// Whether a request that says when it was signed is recent.
fn check_stamp(text: &str, tolerance: u32, now: Timestamp) -> Result<(), Unverified> {
    let at = moment(text).ok_or(Unverified::Malformed)?;
    let tolerance = Duration::from_secs(tolerance.into());
    if at.since(now) > tolerance || now.since(at) > tolerance {
        return Err(Unverified::Stale);
    }
    Ok(())
}

/// Seconds or milliseconds since 1970, or RFC 3339, in UTC where no offset is given. Which it is does
/// not have to be known: it is signed as it stands.
fn moment(text: &str) -> Option<Timestamp> {
    // As seconds that is the year 5138, as milliseconds 1973.
    const MILLIS_MIN: i64 = 100_000_000_000;
    let text = text.trim();
    if !text.is_empty() && text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let number: i64 = text.parse().ok()?;
        return Some(if number >= MILLIS_MIN {
            Timestamp::from_unix_millis(number)
        } else {
            Timestamp::from_unix_seconds(number)
        });
    }
    if text.len() > 40 {
        return None;
    }
    Timestamp::parse(text).or_else(|| Timestamp::parse(&format!("{text}Z")))
}

fn is_equal(a: &[u8], b: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(a, b).is_ok()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.is_empty() || !digits.len().is_multiple_of(2) || digits.len() > 128 {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16);
    digits
        .chunks_exact(2)
        .map(|pair| {
            let (high, low) = (value(*pair.first()?)?, value(*pair.last()?)?);
            u8::try_from(high * 16 + low).ok()
        })
        .collect()
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    LENIENT.decode(text).ok()
}

#[cfg(test)]
mod tests;
