//! The authority of a request (RFC 3986 3.2): the host that it is for, and the port.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::header::HeaderValue;
use http::{Uri, Version};

/// How many characters at the front are those of a host name, and whether one of them is an upper-case letter.
fn host_length(text: &str) -> (usize, bool) {
    /// 0 for characters of no host name, 3 for upper-case letters, 1 for others.
    const CLASSES: [u8; 256] = {
        let mut table = [0; 256];
        let mut byte = 0u8;
        while byte < 128 {
            table[byte as usize] = match byte {
                b'A'..=b'Z' => 3,
                b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => 1,
                _ => 0,
            };
            byte += 1;
        }
        table
    };
    let mut seen = 0;
    let end = text.bytes().position(|byte| {
        let class = CLASSES[usize::from(byte)];
        seen |= class;
        class == 0
    });
    (end.unwrap_or(text.len()), seen == 3)
}

/// An authority without user information.
#[derive(Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    /// As received, with the port.
    pub text: &'a str,
    /// In normal form: in lower case, without port, trailing dot and brackets, IPv6 addresses as RFC 5952 writes them.
    pub host: Cow<'a, str>,
}

/// Host and port as received, kept if they were not in [normal form](Authority::normal). Request heads carry it as an
/// extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedAuthority(Box<str>);

impl ReceivedAuthority {
    /// Keeps a text as received.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// A request without a usable authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorityError {
    /// Neither the target nor the `Host` field names a host.
    Missing,
    /// The target and the `Host` field name different hosts or ports.
    Conflicting,
    /// The text is not a host with an optional port.
    Malformed,
}

impl<'a> Authority<'a> {
    /// Parses `host[:port]`.
    ///
    /// # Errors
    ///
    /// When the text is malformed.
    pub fn parse(text: &'a str) -> Result<Self, AuthorityError> {
        let (host, after) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or(AuthorityError::Malformed)?;
                let address: Ipv6Addr = host.parse().map_err(|_| AuthorityError::Malformed)?;
                let normal = address.to_string();
                let is_normal = normal == host;
                let host = if is_normal {
                    host.into()
                } else {
                    normal.into()
                };
                (host, after)
            }
            None => {
                let (length, has_upper) = host_length(text);
                let (host, after) = text.split_at(length);
                let host = host.strip_suffix('.').unwrap_or(host);
                // Servers may read empty labels at either end in different ways.
                if host.starts_with('.') || host.ends_with('.') {
                    return Err(AuthorityError::Malformed);
                }
                let host = match has_upper {
                    true => Cow::Owned(host.to_ascii_lowercase()),
                    false => Cow::Borrowed(host),
                };
                (host, after)
            }
        };
        // An empty port is allowed by the grammar (`host:`), a number out of range is not.
        let is_port = |port: &str| {
            port.is_empty()
                || (port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok())
        };
        let is_authority = (1..=253).contains(&host.len())
            && (after.is_empty() || after.strip_prefix(':').is_some_and(is_port));
        if !is_authority {
            return Err(AuthorityError::Malformed);
        }
        Ok(Self { text, host })
    }

    /// Whether the text is in normal form.
    pub fn is_normal(&self) -> bool {
        let Cow::Borrowed(host) = &self.host else {
            return false;
        };
        let brackets = if self.text.starts_with('[') { 2 } else { 0 };
        match self.text.as_bytes().get(host.len() + brackets..) {
            Some([] | [b':', b'0']) => true,
            Some([b':', first, ..]) => *first != b'0',
            // A trailing dot, or a colon without a port.
            _ => false,
        }
    }

    /// The text in normal form: the host in lower case and without trailing dot, and the port without leading zeros, if
    /// there is one.
    pub fn normal(&self) -> Cow<'a, str> {
        if self.is_normal() {
            return Cow::Borrowed(self.text);
        }
        let (open, close) = match self.host.contains(':') {
            true => ("[", "]"),
            false => ("", ""),
        };
        let port = self.port().map(|port| format!(":{port}"));
        let port = port.unwrap_or_default();
        Cow::Owned(format!("{open}{}{close}{port}", self.host))
    }

    /// The authority of a request: that of an absolute target, or else of the `Host` field. In HTTP/1 the target replaces
    /// the field (RFC 9112 3.2.2), which must be valid nevertheless; in HTTP/2 the two must agree (RFC 9113 8.3.1).
    ///
    /// # Errors
    ///
    /// When there is none, one is malformed, or the two differ.
    pub fn of(
        version: Version,
        target: &'a Uri,
        host: Option<&'a HeaderValue>,
    ) -> Result<Self, AuthorityError> {
        let field = match host {
            Some(value) => {
                let text = value.to_str().map_err(|_| AuthorityError::Malformed)?;
                Some(Self::parse(text)?)
            }
            None => None,
        };
        let target = match target.authority() {
            Some(authority) => Some(Self::parse(authority.as_str())?),
            None => None,
        };
        match (target, field) {
            (Some(target), Some(field)) => {
                let agrees = target.host == field.host && target.port() == field.port();
                if version == Version::HTTP_2 && !agrees {
                    return Err(AuthorityError::Conflicting);
                }
                Ok(target)
            }
            (Some(one), None) | (None, Some(one)) => Ok(one),
            (None, None) => Err(AuthorityError::Missing),
        }
    }

    /// The port in the text, if it has one.
    pub fn port(&self) -> Option<u16> {
        self.text
            .rsplit_once(':')
            .filter(|(_, port)| !port.contains(']'))
            .and_then(|(_, port)| port.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn authorities() {
        for (text, host) in [
            ("App.Example.:8080", "app.example"),
            ("a", "a"),
            ("a:", "a"),
            ("127.0.0.1:1", "127.0.0.1"),
            ("[::1]:80", "::1"),
            ("[::AB]", "::ab"),
            ("A_b-9.", "a_b-9"),
        ] {
            assert_eq!(Authority::parse(text).unwrap().host, host, "{text}");
        }
        for wrong in [
            "",
            ":80",
            "a:b",
            "a:99999",
            "a:1:2",
            "u@a",
            "a,b",
            "a b",
            "[::1",
            "[::1]x",
            "[x]",
            "a/b",
            ".",
            "é",
            "aé:1",
            "a:1.",
            ":",
            "a..:x",
            "a..",
            ".a",
            "a%2eb",
            "[::1%25lo]",
        ] {
            assert_eq!(
                Authority::parse(wrong),
                Err(AuthorityError::Malformed),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_host_has_one_normal_form() {
        for (text, normal) in [
            ("a.example", "a.example"),
            ("A.Example", "a.example"),
            ("a.example.", "a.example"),
            ("a.example:", "a.example"),
            ("a.example:80", "a.example:80"),
            ("a.example.:080", "a.example:80"),
            ("a.example:0", "a.example:0"),
            ("a.example:00", "a.example:0"),
            ("[::1]", "[::1]"),
            ("[::1]:8443", "[::1]:8443"),
            ("[0:0:0:0:0:0:0:1]:0443", "[::1]:443"),
            ("[FD00::A]", "[fd00::a]"),
        ] {
            let authority = Authority::parse(text).unwrap();
            assert_eq!(authority.normal(), normal, "{text}");
            assert_eq!(authority.is_normal(), text == normal, "{text}");
        }
    }

    #[test]
    fn a_target_replaces_the_field_in_http1_and_must_agree_in_http2() {
        let absolute = "http://A.example:80/x".parse::<Uri>().unwrap();
        let same = HeaderValue::from_static("a.EXAMPLE:80");
        let other = HeaderValue::from_static("b.example:80");
        let malformed = HeaderValue::from_static("b example");
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            let of = |host| Authority::of(version, &absolute, host).map(|it| it.normal());
            let target = Ok("a.example:80".into());
            assert_eq!(of(Some(&same)), target);
            assert_eq!(of(Some(&malformed)), Err(AuthorityError::Malformed));
            let replaced = match version {
                Version::HTTP_2 => Err(AuthorityError::Conflicting),
                _ => target,
            };
            assert_eq!(of(Some(&other)), replaced);
            assert_eq!(
                Authority::of(version, &"/".parse().unwrap(), None),
                Err(AuthorityError::Missing)
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC{0,40}") {
            if let Ok(authority) = Authority::parse(&text) {
                prop_assert!(!authority.host.is_empty());
            }
        }

        #[test]
        fn the_normal_form_is_read_as_the_text(
            text in "([aA0._-]{1,5}|\\[[0aA:]{2,9}\\])(|:|:0{0,2}[0-9]{0,5})",
        ) {
            if let Ok(authority) = Authority::parse(&text) {
                let normal = authority.normal();
                let again = Authority::parse(&normal).unwrap();
                prop_assert!(again.is_normal(), "{} {}", text, normal);
                prop_assert_eq!(&again.host, &authority.host);
                prop_assert_eq!(again.port(), authority.port());
            }
        }
    }
}
