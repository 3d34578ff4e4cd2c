//! Host names. Beside them, sets of IP addresses, the addresses of metadata services, and paths of upstreams of this machine.

pub mod ipset;
mod local_path;
pub mod metadata_address;

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;

pub use local_path::{AllowedPaths, NotAFolder, NotASocketPath, SocketPath, folder_of_url};

/// A normalised host name: trimmed, lower case, without a trailing dot, internationalised labels in punycode, at most
/// 253 bytes. Labels consist of letters, digits, `-` and `_`; the first may be `*`. It is never an IP address or a
/// name that resolvers interpret as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

/// Why a text is not a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAHostName {
    /// The text is empty after trimming.
    #[error("a host name must not be empty")]
    Empty,
    /// More than 253 bytes, or a label of more than 63.
    #[error("a host name may have at most 253 characters, and each label at most 63")]
    TooLong,
    /// Two dots in a row, or a label that begins or ends with `-`.
    #[error("a label of a host name must not be empty or start or end with `-`")]
    Label,
    /// A character other than letters, digits, `-` and `_`, or a `*` that is not the whole first label.
    #[error(
        "a host name may contain letters, digits, `-`, `_` and dots, and `*` as its first label"
    )]
    Character,
    /// The text has no valid punycode form.
    #[error("an internationalised host name must be valid (IDNA)")]
    Idna,
    /// An IP address.
    #[error("an IP address is not a host name")]
    Address,
}

/// A URL or a similar text without the parts that may have a secret: user and password, query, and fragment. For error
/// messages; the text need not be valid.
pub fn without_secrets(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    // An invalid password may have any character.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => ("…@", rest),
        None => ("", rest),
    };
    let end = rest.find(['?', '#']);
    let (rest, more) = match end {
        Some(end) => (&rest[..end], "…"),
        None => (rest, ""),
    };
    format!("{scheme}{user}{rest}{more}")
}

impl HostName {
    /// Normalises and validates a name.
    pub fn parse(text: &str) -> Result<Self, NotAHostName> {
        let text = text.trim();
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(NotAHostName::Empty);
        }
        // Limits the input of the IDNA conversion, whose cost grows with the length.
        if text.len() > 1024 {
            return Err(NotAHostName::TooLong);
        }
        let name = if text.is_ascii() && !text.to_ascii_lowercase().contains("xn--") {
            text.to_ascii_lowercase()
        } else {
            let (star, rest) = match text.strip_prefix("*.") {
                Some(rest) => ("*.", rest),
                None => ("", text),
            };
            let ascii = idna::domain_to_ascii(rest).map_err(|_| NotAHostName::Idna)?;
            format!("{star}{ascii}")
        };
        let last = name.rsplit('.').next().unwrap_or(&name);
        if is_number(last) || name.parse::<IpAddr>().is_ok() {
            return Err(NotAHostName::Address);
        }
        if name.len() > 253 {
            return Err(NotAHostName::TooLong);
        }
        for (index, label) in name.split('.').enumerate() {
            if label.is_empty() || label.starts_with('-') || label.ends_with('-') {
                return Err(NotAHostName::Label);
            }
            if label.len() > 63 {
                return Err(NotAHostName::TooLong);
            }
            let star = index == 0 && label == "*";
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
            if !star && !label.bytes().all(plain) {
                return Err(NotAHostName::Character);
            }
        }
        Ok(Self(name))
    }

    /// Whether the first label is `*`.
    pub fn is_wildcard(&self) -> bool {
        self.0.starts_with("*.")
    }

    /// Whether this name is `base` or a subdomain of it.
    pub fn is_within(&self, base: &str) -> bool {
        self.0
            .strip_suffix(base)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }
}

/// Whether a name with this last label is an IPv4 address to resolvers. `127.1` is one.
fn is_number(label: &str) -> bool {
    let digits = label.strip_prefix("0x");
    let is_hexadecimal = digits.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
    is_hexadecimal || !label.is_empty() && label.bytes().all(|b| b.is_ascii_digit())
}

impl Deref for HostName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The address as events show it: IPv4-mapped IPv6 addresses become IPv4 (contract: events 9.1). Displays as in RFC
/// 5952.
pub fn plain_address(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Whether an authority (`host` or `host:port`) is `localhost` or an IP address. Another name may be one that a web page
/// has pointed to this machine (DNS rebinding).
pub fn is_safe_on_loopback(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let address = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost") || address.unwrap_or(host).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_other_than_localhost_are_not_safe_on_loopback() {
        for safe in [
            "localhost",
            "LOCALHOST:9420",
            "127.0.0.1",
            "127.0.0.1:9420",
            "[::1]:9420",
            "10.0.0.1:80",
        ] {
            assert!(is_safe_on_loopback(safe), "{safe}");
        }
        for unsafe_name in [
            "",
            "x",
            "evil.example:9420",
            "localhost.evil.example",
            "1.2.3.4.evil.example",
        ] {
            assert!(!is_safe_on_loopback(unsafe_name), "{unsafe_name}");
        }
    }

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        for (url, shown) in [
            ("http://a.example:80/x", "http://a.example:80/x"),
            ("http://user:pass@a.example", "http://…@a.example"),
            (
                "http://user:p@ss/w:rd@a.example/x?t=s#f",
                "http://…@a.example/x…",
            ),
            ("user:pass@a.example:80", "…@a.example:80"),
            ("8080", "8080"),
            ("https://a.example/#token", "https://a.example/…"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }

    #[test]
    fn names() {
        for (text, name) in [
            (" App.Example.COM. ", "app.example.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("*.culvert.localhost", "*.culvert.localhost"),
            ("a_b.example", "a_b.example"),
        ] {
            assert_eq!(HostName::parse(text).as_deref(), Ok(name), "{text}");
        }
        let label = "x".repeat(64);
        for (text, why) in [
            ("", NotAHostName::Empty),
            ("a..b", NotAHostName::Label),
            ("-a.b", NotAHostName::Label),
            ("a.*.b", NotAHostName::Character),
            ("a b", NotAHostName::Character),
            ("127.0.0.1", NotAHostName::Address),
            ("127.1", NotAHostName::Address),
            ("0x7f.1", NotAHostName::Address),
            ("2130706433", NotAHostName::Address),
            ("a.0x7F", NotAHostName::Address),
            (label.as_str(), NotAHostName::TooLong),
        ] {
            assert_eq!(HostName::parse(text), Err(why), "{text}");
        }
    }

    #[test]
    fn within() {
        let name = HostName::parse("a.b.example").unwrap();
        assert!(name.is_within("b.example") && name.is_within("a.b.example"));
        assert!(!name.is_within("xb.example") && !name.is_within(".example."));
    }

    proptest! {
        #[test]
        fn a_parsed_name_parses_to_itself(text in "\\PC{0,80}") {
            if let Ok(name) = HostName::parse(&text) {
                prop_assert_eq!(HostName::parse(&name), Ok(name));
            }
        }
    }
}
