//! The head of a refused request, as far as it is known.
//!
//! It is for records, and to find the host that is meant; a request is never served by it. Fields end before the
//! first malformed line, because what follows may continue the value of a credential. The host may be in any whole line;
//! if lines disagree there is none.

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::uri::Uri;
use http::{Method, Request, Version, request};
use memchr::memchr;

use crate::http1::head;
use crate::http1::limits::FIELDS_MAX;
use crate::target::{self, Received};

/// The head of a refused request, as far as it is known.
#[derive(Debug)]
pub struct RefusedHead {
    /// Its method, target and well-formed fields. Unknown parts have a default.
    pub parts: Box<request::Parts>,
    /// Whether the method is known.
    pub has_method: bool,
    /// Whether the target is known.
    pub has_target: bool,
    host: Option<Bytes>,
}

impl RefusedHead {
    /// Nothing is known.
    fn unknown(version: Version) -> Self {
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

    /// Reads the beginning of a head of HTTP/1. A line without its end is not read.
    pub fn http1(bytes: &Bytes) -> Self {
        let mut refused = Self::unknown(Version::HTTP_11);
        let mut lines = Lines { bytes, at: 0 };
        let first = match lines.next() {
            // One empty line may come first (RFC 9112 2.2).
            Some(Some([])) => lines.next(),
            first => first,
        };
        let Some(Some(first)) = first else {
            return refused;
        };
        let of_target = refused.request_line(bytes, first);
        let (mut hosts, mut is_whole) = (Hosts::default(), true);
        for line in lines.take(2 * FIELDS_MAX) {
            if matches!(line, Some([])) {
                break;
            }
            let field = line.and_then(|line| head::field_line(line).ok());
            let Some((name, value)) = field else {
                is_whole = false;
                continue;
            };
            if name.eq_ignore_ascii_case(b"host") {
                hosts.add(bytes.slice_ref(value));
            }
            if is_whole && refused.parts.headers.len() < FIELDS_MAX {
                refused.add(name, bytes.slice_ref(value));
            }
        }
        refused.host = match of_target {
            // It replaces the field (RFC 9112 3.2.2), which must not name another host.
            Some(host) if hosts.are_only(&host) => Some(host),
            Some(_) => None,
            None => hosts.one(),
        };
        refused
    }

    /// Reads a request line. Returns the host of an absolute target.
    fn request_line(&mut self, bytes: &Bytes, line: &[u8]) -> Option<Bytes> {
        let line = head::request_line(line).ok()?;
        self.parts.method = Method::from_bytes(line.method).ok()?;
        self.parts.version = line.version;
        self.has_method = true;
        let target = bytes.slice_ref(line.target);
        let target = target::read(&target, line.method == b"OPTIONS").ok()?;
        self.has_target = true;
        let host = target.uri.authority();
        let host = host.map(|host| Bytes::copy_from_slice(host.as_str().as_bytes()));
        self.parts.uri = target.uri;
        self.parts
            .extensions
            .extend(target.received.map(extension).unwrap_or_default());
        host
    }

    fn add(&mut self, name: &[u8], value: Bytes) {
        if let Ok(name) = HeaderName::from_bytes(name)
            && let Ok(value) = HeaderValue::from_maybe_shared(value)
        {
            // Beyond the limits of a map there is no room for more.
            drop(self.parts.headers.try_append(name, value));
        }
    }

    /// The head of a request of HTTP/2, from its pseudo-header fields and the fields that were kept.
    pub(crate) fn http2(
        method: Option<&Bytes>,
        authority: Option<&Bytes>,
        path: Option<&Bytes>,
        headers: HeaderMap,
    ) -> Self {
        let mut refused = Self::unknown(Version::HTTP_2);
        if let Some(Ok(method)) = method.map(|method| Method::from_bytes(method)) {
            refused.parts.method = method;
            refused.has_method = true;
        }
        let is_options = refused.parts.method == Method::OPTIONS;
        if let Some(Ok((local, received))) = path.map(|path| target::read_path(path, is_options)) {
            refused.parts.uri = Uri::from(local);
            refused
                .parts
                .extensions
                .extend(received.map(extension).unwrap_or_default());
            refused.has_target = true;
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
        let target = parts
            .uri
            .authority()
            .map(|host| copy(host.as_str().as_bytes()));
        let fields = parts.headers.get_all(HOST).iter();
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

/// An extension of a head, alone.
fn extension(received: Received) -> http::Extensions {
    let mut extensions = http::Extensions::new();
    extensions.insert(received);
    extensions
}

/// The hosts that a head names.
#[derive(Debug, Default)]
struct Hosts {
    first: Option<Bytes>,
    has_more: bool,
}

impl Hosts {
    /// Adds a host. The same text again changes nothing.
    fn add(&mut self, host: Bytes) {
        match &self.first {
            Some(first) if first.eq_ignore_ascii_case(&host) => {}
            Some(_) => self.has_more = true,
            None => self.first = Some(host),
        }
    }

    /// Whether no other host was added.
    fn are_only(&self, host: &[u8]) -> bool {
        let is_it = |first: &Bytes| first.eq_ignore_ascii_case(host);
        !self.has_more && self.first.as_ref().is_none_or(is_it)
    }

    fn one(self) -> Option<Bytes> {
        self.first.filter(|_| !self.has_more)
    }
}

/// The whole lines of a text, without their ends. `None` for a line that does not end with CR LF.
struct Lines<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Iterator for Lines<'b> {
    type Item = Option<&'b [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..)?;
        let end = memchr(b'\n', rest)?;
        self.at += end + 1;
        Some(rest.get(..end).and_then(|line| line.strip_suffix(b"\r")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> RefusedHead {
        RefusedHead::http1(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn what_is_whole_is_known() {
        let read = read(
            "\r\nGET /a/../b?q=1 HTTP/1.1\r\nHost: a.example:80\r\nX: 1\r\nbad line\r\nY: 2\r\n",
        );
        assert!(read.has_method && read.has_target);
        assert_eq!(read.host(), Some("a.example:80"));
        assert_eq!(read.parts.uri.path(), "/b");
        let received = read.parts.extensions.get::<Received>().unwrap();
        assert_eq!(received.target(), "/a/../b?q=1");
        let names: Vec<&str> = read.parts.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["host", "x"]);
    }

    #[test]
    fn a_host_behind_the_defect_names_it_and_is_no_field() {
        let read = read("CONNECT x:1 HTTP/1.1\r\n folded\r\nHost: a.example\r\n");
        assert!(read.has_method && !read.has_target);
        assert_eq!(read.host(), Some("a.example"));
        assert!(read.parts.headers.is_empty());
    }

    #[test]
    fn hosts_that_disagree_are_none() {
        for (text, host) in [
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n", None),
            ("GET / HTTP/1.1\r\nHost: a\r\nhost: A\r\n", Some("a")),
            ("GET http://a/ HTTP/1.1\r\nHost: b\r\n", None),
            ("GET http://a/ HTTP/1.1\r\nHost: a\r\n", Some("a")),
            ("GET http://a/ HTTP/1.1\r\n", Some("a")),
            ("GET / HTTP/1.1\r\nHost: a", None),
            ("GET / HTTP/1.1\nHost: a\n", None),
            ("GET / HTTP/1.1\r\nX: 1\nHost: a\r\n", Some("a")),
            ("GET / HTTP/1.1\r\nX: 1\r\n\r\nHost: a\r\n", None),
            ("GET / HTTP/1.1\r\nHost: \u{e9}\r\n", Some("\u{e9}")),
            ("", None),
            ("\r\n\r\nHost: a\r\n", Some("a")),
            ("no request line\r\nHost: a\r\n", Some("a")),
        ] {
            assert_eq!(read(text).host(), host, "{text:?}");
        }
    }

    #[test]
    fn what_follows_a_defect_is_not_read_as_a_value() {
        for text in [
            "GET / HTTP/1.1\r\nAuthorization: Basic\r\n c2VjcmV0\r\nX: 1\r\n",
            "GET / HTTP/1.1\r\nAuthorization : Basic c2VjcmV0\r\nX: c2VjcmV0\r\n",
            "GET / HTTP/1.1\r\nX\0: c2VjcmV0\r\n",
            "GET / HTTP/1.1\r\nCookie: c2VjcmV0",
        ] {
            let fields = format!("{:?}", read(text).parts.headers);
            assert!(!fields.contains("c2VjcmV0"), "{text:?}: {fields}");
        }
    }

    #[test]
    fn a_flood_of_lines_is_read_to_a_limit() {
        let text = format!(
            "GET / HTTP/1.1\r\n{}Host: a\r\n",
            "x: 1\r\n".repeat(100_000)
        );
        let read = read(&text);
        assert_eq!(read.host(), None);
        assert!(read.parts.headers.len() <= FIELDS_MAX);
    }
}
