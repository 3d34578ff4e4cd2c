//! Hashes, times and encodings of signatures.

use std::time::Duration;

use aws_lc_rs::{constant_time, digest, hmac};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use culvert_base::Timestamp;

use crate::request::Unverified;

/// How a signature is hashed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hash {
    Sha1,
    Sha256,
    Sha512,
    /// Without a key: the secret is hashed before the content.
    PlainSha256,
}

/// A hash in progress.
pub(crate) enum Digester {
    Keyed(Box<hmac::Context>),
    Plain(digest::Context),
}

impl Digester {
    pub(crate) fn new(hash: Hash, key: &[u8]) -> Self {
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

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Keyed(context) => context.update(bytes),
            Self::Plain(context) => context.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        match self {
            Self::Keyed(context) => context.sign().as_ref().to_vec(),
            Self::Plain(context) => context.finish().as_ref().to_vec(),
        }
    }
}

/// Checks that the time of a signature is recent.
pub(crate) fn check_stamp(text: &str, tolerance: u32, now: Timestamp) -> Result<(), Unverified> {
    let at = moment(text).ok_or(Unverified::Malformed)?;
    let tolerance = Duration::from_secs(tolerance.into());
    if at.since(now) > tolerance || now.since(at) > tolerance {
        return Err(Unverified::Stale);
    }
    Ok(())
}

/// Parses seconds or milliseconds since 1970, or RFC 3339; UTC if there is no offset. The text as received is signed,
/// so guessing the form is safe.
pub(crate) fn moment(text: &str) -> Option<Timestamp> {
    // In seconds the year 5138, in milliseconds 1973.
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

pub(crate) fn is_equal(a: &[u8], b: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(a, b).is_ok()
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
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

pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    LENIENT.decode(text).ok()
}
