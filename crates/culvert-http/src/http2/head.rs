//! Field sections as requests, responses and trailers (RFC 9113 8.1 to 8.3).

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::uri::{self, PathAndQuery, Scheme, Uri};
use http::{Method, Request, Version, request, response};

use crate::http1::limits::{FIELDS_MAX, TRAILERS_MAX};
use crate::http1::{BodyLength, Violation};
use crate::http2::hpack::{self, Field, Pseudo};
use crate::target;

/// Most bytes of a decoded field section, with 32 for each field (RFC 9113 6.5.2).
pub const LIST_BYTES_MAX: usize = 64 << 10;

/// A well-formed request that must be refused with a status. Request heads carry it as an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub Violation);

/// The protocol of an extended CONNECT (RFC 8441 4). Request heads carry it as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol(Bytes);

impl Protocol {
    fn new(name: Bytes) -> Option<Self> {
        std::str::from_utf8(&name).is_ok().then_some(Self(name))
    }

    /// Its name, as received.
    pub fn as_str(&self) -> &str {
        // Checked by `new`.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// A field section that is being decoded.
#[derive(Debug, Default)]
pub(super) struct Fields {
    method: Option<Bytes>,
    scheme: Option<Bytes>,
    authority: Option<Bytes>,
    path: Option<Bytes>,
    protocol: Option<Bytes>,
    plain: HeaderMap,
    /// Number of fields. All `cookie` fields count as one, because they will be joined (RFC 9113 8.2.3).
    count: usize,
    bytes: usize,
    verdict: Verdict,
}

/// The verdict on a field section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Verdict {
    #[default]
    Good,
    Malformed,
    TooLarge,
}

impl Fields {
    /// Adds a field of `bytes` bytes. Drops it if a limit is exceeded.
    pub(super) fn add(&mut self, field: &Field, bytes: usize) {
        self.bytes += bytes;
        if self.verdict != Verdict::Good {
            return;
        }
        if self.bytes > LIST_BYTES_MAX {
            self.verdict = Verdict::TooLarge;
            return;
        }
        self.verdict = match field {
            Field::Pseudo(name, value) => self.set(*name, value),
            Field::Plain(name, value) if is_of_a_message(name, value) => {
                self.count += usize::from(*name != COOKIE || !self.plain.contains_key(COOKIE));
                if self.count > FIELDS_MAX {
                    // The refusal does not need them.
                    return;
                }
                match self.plain.try_append(name, value.clone()) {
                    Ok(_) => Verdict::Good,
                    Err(_) => Verdict::TooLarge,
                }
            }
            Field::Plain(..) | Field::Wrong => Verdict::Malformed,
        };
    }

    fn set(&mut self, name: Pseudo, value: &Bytes) -> Verdict {
        let place = match name {
            Pseudo::Authority => &mut self.authority,
            Pseudo::Method => &mut self.method,
            Pseudo::Path => &mut self.path,
            Pseudo::Protocol => &mut self.protocol,
            Pseudo::Scheme => &mut self.scheme,
        };
        // Each occurs once, and before all other fields (RFC 9113 8.3).
        if place.is_some() || !self.plain.is_empty() {
            return Verdict::Malformed;
        }
        *place = Some(value.clone());
        Verdict::Good
    }

    /// Returns the head of a request.
    ///
    /// # Errors
    ///
    /// When the section is not a valid request.
    pub(super) fn request(self) -> Result<request::Parts, Verdict> {
        if self.verdict != Verdict::Good {
            return Err(self.verdict);
        }
        self.into_parts().ok_or(Verdict::Malformed)
    }

    fn into_parts(self) -> Option<request::Parts> {
        let mut parts = Request::new(()).into_parts().0;
        parts.version = Version::HTTP_2;
        parts.method = Method::from_bytes(&self.method?).ok()?;
        let mut target = uri::Parts::default();
        if let Some(authority) = self.authority {
            target.authority = Some(uri::Authority::from_maybe_shared(authority).ok()?);
        }
        if parts.method == Method::CONNECT && self.protocol.is_none() {
            // Its target is an authority (RFC 9113 8.5).
            if self.scheme.is_some() || self.path.is_some() || target.authority.is_none() {
                return None;
            }
        } else {
            let scheme = self.scheme?;
            let path = self.path.filter(|path| !path.is_empty())?;
            let mut refused = (self.count + usize::from(target.authority.is_some()) > FIELDS_MAX)
                .then_some(Violation::FieldsTooLarge);
            // HTTP/2 is served over TLS only.
            if target::read_scheme(&scheme) != Some(Scheme::HTTPS) {
                refused = Some(Violation::Malformed(
                    "the scheme is not that of the connection",
                ));
            }
            if path.len() > target::TARGET_BYTES_MAX {
                refused = Some(Violation::TargetTooLong);
            }
            let local = match refused {
                Some(_) => Ok((PathAndQuery::from_static("/"), None)),
                None => target::read_path(&path, parts.method == Method::OPTIONS),
            };
            let (local, received) = local.unwrap_or_else(|what| {
                refused = Some(Violation::Malformed(what));
                (PathAndQuery::from_static("/"), None)
            });
            if let Some(violation) = refused {
                parts.extensions.insert(Refused(violation));
            }
            if let Some(received) = received {
                parts.extensions.insert(received);
            }
            target.path_and_query = Some(local);
            // Without `:authority` the host is in a field, and the target has no scheme.
            target.scheme = target.authority.is_some().then_some(Scheme::HTTPS);
        }
        if let Some(protocol) = self.protocol {
            if parts.method != Method::CONNECT || target.authority.is_none() {
                return None;
            }
            parts.extensions.insert(Protocol::new(protocol)?);
        }
        parts.uri = Uri::from_parts(target).ok()?;
        parts.headers = self.plain;
        Some(parts)
    }

    /// Returns the trailers.
    ///
    /// # Errors
    ///
    /// When they are not allowed.
    pub(super) fn trailers(self) -> Result<HeaderMap, Verdict> {
        let pseudo = [
            &self.method,
            &self.scheme,
            &self.authority,
            &self.path,
            &self.protocol,
        ];
        match self.verdict {
            Verdict::Good if pseudo.iter().any(|it| it.is_some()) => Err(Verdict::Malformed),
            Verdict::Good if self.count > TRAILERS_MAX => Err(Verdict::TooLarge),
            Verdict::Good => Ok(self.plain),
            wrong => Err(wrong),
        }
    }
}

/// Whether a field is allowed in HTTP/2 (RFC 9113 8.2.2).
fn is_of_a_message(name: &HeaderName, value: &HeaderValue) -> bool {
    let is_of_the_connection = *name == CONNECTION
        || *name == TRANSFER_ENCODING
        || *name == UPGRADE
        || matches!(name.as_str(), "keep-alive" | "proxy-connection");
    !is_of_the_connection && (*name != TE || value == "trailers")
}

/// The value of `content-length`.
///
/// # Errors
///
/// When it is repeated or not a number.
pub(super) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Verdict> {
    if !headers.contains_key(CONTENT_LENGTH) {
        return Ok(None);
    }
    BodyLength::content_length(headers).map_err(|_| Verdict::Malformed)
}

/// Writes the head of a response.
pub(super) fn write_response(out: &mut Vec<u8>, head: &response::Parts) {
    hpack::write_status(out, head.status);
    write_fields(out, &head.headers);
}

/// Writes fields, except those that HTTP/2 does not allow.
pub(super) fn write_fields(out: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        if is_of_a_message(name, value) {
            hpack::write_field(out, name, value);
        }
    }
}
