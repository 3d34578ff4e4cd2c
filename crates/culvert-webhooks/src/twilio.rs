//! Twilio: a hash over the URL and the sorted form. A body that is not a form is covered by a hash
//! in the query.

use std::borrow::Cow;

use aws_lc_rs::digest;
use culvert_base::Timestamp;

use crate::request::{Request, Unverified};
use crate::signature::Hash;
use crate::signature::{Digester, from_base64, from_hex, is_equal};
use crate::value_location::ValueLocation::Header;

pub(crate) fn verify(secret: &str, request: &Request<'_>, _: Timestamp) -> Result<(), Unverified> {
    let given: Vec<Vec<u8>> = Header("x-twilio-signature")
        .values(request)?
        .iter()
        .filter_map(|text| from_base64(text))
        .collect();
    let mut form = if request.body.is_empty() || request.is_form() {
        request.form()?
    } else {
        let query = request.url.split_once('?').map_or("", |(_, query)| query);
        let hash = url::form_urlencoded::parse(query.as_bytes())
            .find_map(|(name, value)| (name == "bodySHA256").then(|| from_hex(&value)))
            .ok_or(Unverified::Missing("bodySHA256"))?
            .ok_or(Unverified::Malformed)?;
        if !is_equal(
            &hash,
            digest::digest(&digest::SHA256, request.body).as_ref(),
        ) {
            return Err(Unverified::Mismatch);
        }
        Vec::new()
    };
    form.dedup();
    for url in urls(request.url) {
        let mut digester = Digester::new(Hash::Sha1, secret.as_bytes());
        digester.update(url.as_bytes());
        for (name, value) in &form {
            digester.update(name.as_bytes());
            digester.update(value.as_bytes());
        }
        let tag = digester.finish();
        if given.iter().any(|given| is_equal(given, &tag)) {
            return Ok(());
        }
    }
    Err(Unverified::Mismatch)
}

/// The URL with and without its default port, because Twilio signs either form.
fn urls(url: &str) -> [Cow<'_, str>; 2] {
    let changed = || {
        let (scheme, rest) = url.split_once("://")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let port = if scheme == "https" { 443 } else { 80 };
        Some(match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("{scheme}://{host}{target}")
            }
            _ => format!("{scheme}://{authority}:{port}{target}"),
        })
    };
    [url.into(), changed().map_or(url.into(), Cow::from)]
}
