//! Signatures of requests to Amazon's services (Signature Version 4). The vendor's small crates compute them.
//!
//! Not here: the requests themselves, and where keys come from.

use std::fmt;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials as Identity;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableRequest, SigningSettings,
    UriPathNormalizationMode,
};
use aws_sigv4::sign::v4;
use culvert_base::{Secret, Timestamp};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

pub use aws_sigv4::http_request::SignableBody;

/// A pair of keys, with a token if they are temporary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The access key ID, such as `AKIA…`.
    pub id: String,
    /// The secret access key.
    pub secret: Secret,
    /// The session token of temporary keys.
    pub session: Option<Secret>,
}

impl Keys {
    /// The secrets, which must not be displayed.
    pub fn secrets(&self) -> Vec<&str> {
        let session = self.session.as_ref().map(Secret::reveal);
        [self.secret.reveal()].into_iter().chain(session).collect()
    }
}

/// A request cannot be signed: a header or the URL is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsignable;

impl fmt::Display for Unsignable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot sign the request")
    }
}

impl std::error::Error for Unsignable {}

/// The headers of a request with its signature.
///
/// # Errors
/// A header or the URL is not valid.
pub fn sign(
    keys: &Keys,
    (service, region): (&str, &str),
    now: Timestamp,
    method: &Method,
    url: &str,
    headers: &HeaderMap,
    body: SignableBody<'_>,
) -> Result<HeaderMap, Unsignable> {
    let mut settings = SigningSettings::default();
    if service == "s3" {
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    }
    let identity = Identity::new(
        keys.id.as_str(),
        keys.secret.reveal(),
        keys.session.as_ref().map(|token| token.reveal().to_owned()),
        None,
        "culvert",
    )
    .into();
    let millis = u64::try_from(now.unix_millis()).unwrap_or(0);
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(service)
        .time(SystemTime::UNIX_EPOCH + Duration::from_millis(millis))
        .settings(settings)
        .build()
        .map_err(|_| Unsignable)?
        .into();
    let named: Vec<(&str, &str)> = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
        .collect();
    let signable = SignableRequest::new(method.as_str(), url, named.into_iter(), body)
        .map_err(|_| Unsignable)?;
    let (made, _) = aws_sigv4::http_request::sign(signable, &parameters)
        .map_err(|_| Unsignable)?
        .into_parts();
    let mut headers = headers.clone();
    for (name, value) in made.headers() {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Unsignable)?;
        let mut value = HeaderValue::from_str(value).map_err(|_| Unsignable)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}
