//! Reads the known parts of a refused head of HTTP/1.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Method, Version};
use memchr::memchr;

use crate::http1::framing::EMPTY_LINES_MAX;
use crate::http1::head;
use crate::http1::limits::FIELDS_MAX;
use crate::refused_head::{Hosts, RefusedHead};
use crate::target;

/// Reads the beginning of a head of HTTP/1. A line without its end is not read.
pub fn read(bytes: &Bytes) -> RefusedHead {
    let mut refused = RefusedHead::unknown(Version::HTTP_11);
    let mut lines = Lines { bytes, at: 0 };
    let mut first = lines.next();
    for _ in 0..EMPTY_LINES_MAX {
        if first == Some(Some(&[])) {
            first = lines.next();
        }
    }
    let Some(Some(first)) = first else {
        return refused;
    };
    let of_target = request_line(&mut refused, bytes, first);
    // Without a request line, these are no fields, but may be the body of another request.
    let (mut hosts, mut is_whole) = (Hosts::default(), refused.has_method);
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
            add(&mut refused, name, bytes.slice_ref(value));
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
fn request_line(refused: &mut RefusedHead, bytes: &Bytes, line: &[u8]) -> Option<Bytes> {
    let line = head::request_line(line).ok()?;
    refused.parts.method = Method::from_bytes(line.method).ok()?;
    refused.parts.version = line.version;
    refused.has_method = true;
    let target = bytes.slice_ref(line.target);
    let target = target::read(&target, line.method == b"OPTIONS").ok()?;
    refused.has_target = true;
    let host = target.uri.authority();
    let host = host.map(|host| Bytes::copy_from_slice(host.as_str().as_bytes()));
    refused.parts.uri = target.uri;
    if let Some(received) = target.received {
        refused.parts.extensions.insert(received);
    }
    host
}

fn add(refused: &mut RefusedHead, name: &[u8], value: Bytes) {
    if let Ok(name) = HeaderName::from_bytes(name)
        && let Ok(value) = HeaderValue::from_maybe_shared(value)
    {
        // Beyond the limits of a map there is no room for more.
        drop(refused.parts.headers.try_append(name, value));
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
    use crate::target::Received;

    fn read(text: &str) -> RefusedHead {
        super::read(&Bytes::copy_from_slice(text.as_bytes()))
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
            ("\r\n\r\n\r\nHost: a\r\n", Some("a")),
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
