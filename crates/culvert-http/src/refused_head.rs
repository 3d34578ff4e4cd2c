//! The head of a refused request, as far as it is known.
//!
//! It is for records, and to find the host that is meant; a request is never served by it. Fields end before the
//! first malformed line, because what follows may continue the value of a credential. The host may be in any whole line;
//! if lines disagree there is none.

use bytes::Bytes;
use http::header::{HOST, HeaderMap};
use http::{Method, Request, Version, request};

/// The head of a refused request, as far as it is known.
#[derive(Debug)]
pub struct RefusedHead {
    /// Its method, target and well-formed fields. Unknown parts have a default.
    pub parts: Box<request::Parts>,
    /// Whether the method is known.
    pub has_method: bool,
    /// Whether the target is known.
    pub has_target: bool,
    pub(crate) host: Option<Bytes>,
}

impl RefusedHead {
    /// Nothing is known.
    pub(crate) fn unknown(version: Version) -> Self {
        let mut parts = Box::new(Request::new(()).into_parts().0);
        parts.version = version;
        Self {
            parts,
            has_method: false,
            has_target: false,
            host: None,
        }
    }

    /// The host and port that it names, as received; `None` if it names none or several.
    pub fn host(&self) -> Option<&str> {
        std::str::from_utf8(self.host.as_ref()?).ok()
    }

    /// The head of a request of HTTP/2, from its pseudo-header fields and the fields that were kept. Its target is
    /// not known yet.
    pub(crate) fn http2(
        method: Option<&Bytes>,
        authority: Option<&Bytes>,
        headers: HeaderMap,
    ) -> Self {
        let mut refused = Self::unknown(Version::HTTP_2);
        if let Some(Ok(method)) = method.map(|method| Method::from_bytes(method)) {
            refused.parts.method = method;
            refused.has_method = true;
        }
        let field = headers
            .get(HOST)
            .map(|host| Bytes::copy_from_slice(host.as_bytes()));
        let mut hosts = Hosts::default();
        authority
            .cloned()
            .into_iter()
            .chain(field)
            .for_each(|host| hosts.add(host));
        refused.host = hosts.one();
        refused.parts.headers = headers;
        refused
    }

    /// The head of a request that was read whole.
    pub fn of_parts(parts: Box<request::Parts>) -> Self {
        let mut hosts = Hosts::default();
        let copy = |host: &[u8]| Bytes::copy_from_slice(host);
        let text = |host: &http::uri::Authority| Bytes::from(host.to_string());
        let target = parts.uri.authority().map(text);
        let fields = parts.headers.get_all(HOST).into_iter();
        let fields = fields.map(|host| copy(host.as_bytes()));
        target
            .into_iter()
            .chain(fields)
            .for_each(|host| hosts.add(host));
        Self {
            host: hosts.one(),
            parts,
            has_method: true,
            has_target: true,
        }
    }
}

/// The hosts that a head names.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    first: Option<Bytes>,
    has_more: bool,
}

impl Hosts {
    /// Adds a host. The same text again changes nothing.
    pub(crate) fn add(&mut self, host: Bytes) {
        match &self.first {
            Some(first) if first.eq_ignore_ascii_case(&host) => {}
            Some(_) => self.has_more = true,
            None => self.first = Some(host),
        }
    }

    /// Whether no other host was added.
    pub(crate) fn are_only(&self, host: &[u8]) -> bool {
        let is_it = |first: &Bytes| first.eq_ignore_ascii_case(host);
        !self.has_more && self.first.as_ref().is_none_or(is_it)
    }

    pub(crate) fn one(self) -> Option<Bytes> {
        self.first.filter(|_| !self.has_more)
    }
}
