//! A webhook request as its sender signed it, and why it is not verified.

use culvert_http::fields::only;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};

/// Maximum number of signatures that are checked.
pub(crate) const SIGNATURES_MAX: usize = 32;
/// Maximum number of form fields that are read.
pub(crate) const FORM_FIELDS_MAX: usize = 1000;

/// A request as its sender signed it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// Its method.
    pub method: &'r Method,
    /// The whole URL that the sender used, with the query.
    pub url: &'r str,
    /// Its fields.
    pub headers: &'r HeaderMap,
    /// Its body.
    pub body: &'r [u8],
}

/// Why a request is not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    /// The field with the signature, or a signed part, is missing.
    #[error("the request has no `{0}`")]
    Missing(&'static str),
    /// The signature or a signed part does not have the provider's form.
    #[error("the request does not have the provider's format")]
    Malformed,
    /// Its signature is too old, or from the future.
    #[error("the request was signed too long ago, or in the future")]
    Stale,
    /// Its signature does not match.
    #[error("the signature does not match")]
    Mismatch,
    /// The secret does not have the provider's form.
    #[error("the secret is not a valid secret of the provider")]
    Secret,
    /// The signer's certificate is unavailable or invalid.
    #[error("the signing certificate cannot be fetched")]
    Certificate,
    /// Too many documents are being fetched for the endpoint or its owner.
    #[error("too many signing certificates are being fetched")]
    Busy,
}

impl Request<'_> {
    /// The fields of a form, sorted. Any other body must be empty, because no signature would cover it.
    pub(crate) fn form(&self) -> Result<Vec<(String, String)>, Unverified> {
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

    pub(crate) fn is_form(&self) -> bool {
        // Of two types, the upstream might use the other one.
        let media = only(self.headers, &CONTENT_TYPE).ok();
        let media = media.and_then(|value| value.as_bytes().split(|byte| *byte == b';').next());
        media.is_some_and(|media| {
            media
                .trim_ascii()
                .eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
        })
    }

    /// The path and the query as they occur in the URL.
    pub(crate) fn target(&self) -> &str {
        let behind = self.url.split_once("://").map_or("", |(_, rest)| rest);
        behind.find(['/', '?']).map_or("", |at| &behind[at..])
    }
}

/// The URL with the characters unescaped that HubSpot does not escape.
pub(crate) fn softened(url: &str) -> String {
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
