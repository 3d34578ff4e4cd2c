//! Verification of webhooks: whether a request comes from its provider.
//!
//! Most providers sign with a keyed hash over parts of the request, and are rows of a table (`provider`). The others have
//! a file each. A request may have several signatures, for example during a change of the secret: one match is enough.
//!
//! No I/O and no clock. Secrets are compared in constant time, and the time of a request counts only if it is signed.

mod challenge;
mod contentful;
mod json;
mod plivo;
mod provider;
mod request;
mod sendgrid;
mod signature;
pub mod sns;
mod twilio;
mod value_location;

use culvert_base::Timestamp;

pub use crate::challenge::answer;
use crate::provider::{Encoding, Key, Row, SignedPart, Way};
use crate::request::softened;
pub use crate::request::{Request, Unverified};
use crate::signature::{Digester, check_stamp, from_base64, from_hex, is_equal};

/// A sender of webhooks.
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

    /// Whether it signs with a private key, whose certificate a message names, and not with a secret: see [`sns`].
    pub fn has_certificate(self) -> bool {
        self.rows
            .iter()
            .any(|row| matches!(row.way, Way::Certificate))
    }

    /// Whether a secret can be one of this provider's.
    ///
    /// # Errors
    /// The required form, as the end of a sentence.
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
            // The error of a scheme that was tried is more specific.
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

impl SignedPart {
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

#[cfg(test)]
mod tests;
