//! SendGrid: signs with a private key. The secret is the public key.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey};
use culvert_base::Timestamp;

use crate::request::{Request, Unverified};
use crate::signature::{check_stamp, from_base64};
use crate::value_location::ValueLocation::Header;

const TOLERANCE: u32 = 300;

pub(crate) fn verify(
    secret: &str,
    request: &Request<'_>,
    now: Timestamp,
) -> Result<(), Unverified> {
    let given = Header("x-twilio-email-event-webhook-signature").values(request)?;
    let stamp = Header("x-twilio-email-event-webhook-timestamp").one(request)?;
    check_stamp(&stamp, TOLERANCE, now)?;
    let key = key(secret).ok_or(Unverified::Secret)?;
    let mut signed = stamp.into_owned().into_bytes();
    signed.extend_from_slice(request.body);
    let mut given = given.iter().filter_map(|text| from_base64(text));
    if given.any(|given| key.verify_sig(&signed, &given).is_ok()) {
        Ok(())
    } else {
        Err(Unverified::Mismatch)
    }
}

/// Whether a secret is such a public key.
pub(crate) fn is_key(secret: &str) -> bool {
    key(secret).is_some()
}

fn key(secret: &str) -> Option<ParsedPublicKey> {
    let der = from_base64(secret.trim())?;
    ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &der).ok()
}
