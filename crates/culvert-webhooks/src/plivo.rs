//! Plivo: a hash over the URL, the parameters sorted, and a nonce.

use culvert_base::Timestamp;
use http::Method;

use crate::request::FORM_FIELDS_MAX;
use crate::request::{Request, SIGNATURES_MAX, Unverified};
use crate::signature::Hash;
use crate::signature::{Digester, from_base64, is_equal};
use crate::value_location::ValueLocation::Header;

pub(crate) fn verify(secret: &str, request: &Request<'_>, _: Timestamp) -> Result<(), Unverified> {
    let given = Header("x-plivo-signature-v3").values(request)?;
    let nonce = Header("x-plivo-signature-v3-nonce").one(request)?;

    let (url, query) = request.url.split_once('?').unwrap_or((request.url, ""));
    let mut parameters: Vec<(String, String)> = url::form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .take(FORM_FIELDS_MAX + 1)
        .collect();
    if parameters.len() > FORM_FIELDS_MAX {
        return Err(Unverified::Malformed);
    }
    parameters.sort();
    let form = request.form()?;
    if request.method == Method::GET && !form.is_empty() {
        return Err(Unverified::Malformed);
    }

    let mut digester = Digester::new(Hash::Sha256, secret.as_bytes());
    digester.update(url.as_bytes());
    if !parameters.is_empty() || !form.is_empty() {
        digester.update(b"?");
    }
    for (index, (name, value)) in parameters.iter().enumerate() {
        if index > 0 {
            digester.update(b"&");
        }
        digester.update(name.as_bytes());
        digester.update(b"=");
        digester.update(value.as_bytes());
    }
    if !parameters.is_empty() && !form.is_empty() {
        digester.update(b".");
    }
    for (name, value) in form {
        digester.update(name.as_bytes());
        digester.update(value.as_bytes());
    }
    digester.update(b".");
    digester.update(nonce.as_bytes());
    let tag = digester.finish();
    let is_ours = given
        .iter()
        .flat_map(|list| list.split(','))
        .take(SIGNATURES_MAX)
        .filter_map(|text| from_base64(text.trim()))
        .any(|given| is_equal(&given, &tag));
    if is_ours {
        Ok(())
    } else {
        Err(Unverified::Mismatch)
    }
}
