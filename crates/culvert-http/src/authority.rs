//! The authority of a request (RFC 3986 3.2): the host that it is for, and the port.

use std::borrow::Cow;

use http::Uri;
use http::header::HeaderValue;

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
    /// Lower case, without port, trailing dot and brackets.
    pub host: Cow<'a, str>,
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
        let (host, after, has_upper) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or(AuthorityError::Malformed)?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(AuthorityError::Malformed);
                }
                (host, after, host.bytes().any(|b| b.is_ascii_uppercase()))
            }
            None => {
                let (length, has_upper) = host_length(text);
                let (host, after) = text.split_at(length);
                (host, after, has_upper)
            }
        };
        // An empty port is allowed by the grammar (`host:`), a number out of range is not.
        let is_port = |port: &str| {
            port.is_empty()
                || (port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok())
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        let is_authority = (1..=253).contains(&host.len())
            && (after.is_empty() || after.strip_prefix(':').is_some_and(is_port));
        if !is_authority {
            return Err(AuthorityError::Malformed);
        }
        let host = if has_upper {
            Cow::Owned(host.to_ascii_lowercase())
        } else {
            Cow::Borrowed(host)
        };
        Ok(Self { text, host })
    }

    /// The authority of a request: that of an absolute target, or else of the `Host` field. If there are both, they must
    /// agree.
    ///
    /// # Errors
    ///
    /// When there is none, one is malformed, or the two differ.
    pub fn of(target: &'a Uri, host: Option<&'a HeaderValue>) -> Result<Self, AuthorityError> {
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
                if target.host == field.host && target.port() == field.port() {
                    Ok(target)
                } else {
                    Err(AuthorityError::Conflicting)
                }
            }
            (Some(one), None) | (None, Some(one)) => Ok(one),
            (None, None) => Err(AuthorityError::Missing),
        }
    }

    /// The port in the text, if it has one.
    fn port(&self) -> Option<u16> {
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
            "", ":80", "a:b", "a:99999", "a:1:2", "u@a", "a,b", "a b", "[::1", "[::1]x", "[x]",
            "a/b", ".", "é", "aé:1", "a:1.", ":", "a..:x",
        ] {
            assert_eq!(
                Authority::parse(wrong),
                Err(AuthorityError::Malformed),
                "{wrong}"
            );
        }
    }

    #[test]
    fn target_and_field_must_agree() {
        let absolute = "http://A.example:80/x".parse::<Uri>().unwrap();
        let same = HeaderValue::from_static("a.EXAMPLE:80");
        let other = HeaderValue::from_static("b.example:80");
        assert_eq!(
            Authority::of(&absolute, Some(&same)).unwrap().host,
            "a.example"
        );
        assert_eq!(
            Authority::of(&absolute, Some(&other)),
            Err(AuthorityError::Conflicting)
        );
        assert_eq!(
            Authority::of(&"/".parse().unwrap(), None),
            Err(AuthorityError::Missing)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC{0,40}") {
            if let Ok(authority) = Authority::parse(&text) {
                prop_assert!(!authority.host.is_empty());
            }
        }
    }
}
