//! Header fields (RFC 9110 5 and 7.6.1): hop-by-hop fields, token lists, and names that servers may confuse.

use http::header::{CONNECTION, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue};

/// Whether a field is hop-by-hop (RFC 9110 7.6.1). `close` is an option of `connection`; a field of that name is removed.
pub fn is_of_one_hop(name: &str) -> bool {
    matches!(
        name,
        "close"
            | "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Removes hop-by-hop fields, those that `connection` names, and those for which `also` returns true.
pub fn strip(headers: &mut HeaderMap, also: impl Fn(&str) -> bool) {
    let mut stripped: Vec<HeaderName> = Vec::new();
    let mut has_connection = false;
    for (name, value) in headers.iter() {
        if *name == CONNECTION {
            has_connection = true;
            let value = value.as_bytes();
            // The usual options name no other field.
            if !value.eq_ignore_ascii_case(b"keep-alive") && !value.eq_ignore_ascii_case(b"close") {
                let named = value.split(|&b| b == b',').map(<[u8]>::trim_ascii);
                stripped.extend(named.filter_map(|named| HeaderName::from_bytes(named).ok()));
            }
        } else if is_of_one_hop(name.as_str()) || also(name.as_str()) {
            stripped.push(name.clone());
        }
    }
    if has_connection {
        headers.remove(CONNECTION);
    }
    for name in stripped {
        headers.remove(name);
    }
}

/// Removes leading zeros of a number, which some servers read as octal.
pub fn plain_number(value: &mut HeaderValue) {
    let digits = value.as_bytes();
    if digits.len() > 1 && digits.first() == Some(&b'0') {
        let zeros = digits.iter().take_while(|&&b| b == b'0').count();
        let plain = digits.get(zeros.min(digits.len() - 1)..);
        if let Some(Ok(plain)) = plain.map(HeaderValue::from_bytes) {
            *value = plain;
        }
    }
}

/// Joins the `cookie` fields that HTTP/2 may split (RFC 9113 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let mut all = Vec::new();
    for value in headers.get_all(COOKIE) {
        if !all.is_empty() {
            all.extend_from_slice(b"; ");
        }
        all.extend_from_slice(value.as_bytes());
    }
    if let Ok(value) = HeaderValue::from_bytes(&all) {
        headers.insert(COOKIE, value);
    }
}

/// Whether a name consists of letters, digits and `-` only.
pub fn is_plain(name: &HeaderName) -> bool {
    let mut bytes = name.as_str().bytes();
    bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// A name as CGI, WSGI and similar servers see it. They keep fields in variables, where all characters except letters
/// and digits are equal; here they become `-`.
pub fn folded(name: &HeaderName) -> String {
    let fold = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte),
        false => '-',
    };
    name.as_str().bytes().map(fold).collect()
}

/// Removes fields that a server may confuse with one of `of`, but not those of exactly these names.
pub fn strip_spellings<'n>(
    headers: &mut HeaderMap,
    of: impl Iterator<Item = &'n HeaderName> + Clone,
) {
    if headers.keys().all(is_plain) && of.clone().all(is_plain) {
        return;
    }
    let is_one = |name: &&HeaderName| {
        let (read, is_plain_name) = (folded(name), is_plain(name));
        let mut others = of.clone().filter(|own| *own != *name);
        others.any(|own| !(is_plain_name && is_plain(own)) && folded(own) == read)
    };
    let names: Vec<HeaderName> = headers.keys().filter(is_one).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Whether credentials or challenges have a scheme that authenticates a connection, and not only the request that carries
/// it: NTLM and Negotiate (RFC 4559), and those that other software has in the same way. True also where the name of
/// another scheme begins like that, or a parameter does.
pub fn authenticates_connection(value: &[u8]) -> bool {
    // `Nego2` is a variant of Negotiate. Kerberos and CredSSP are those of Windows Remote Management.
    const SCHEMES: [&[u8]; 4] = [b"ntlm", b"nego", b"kerberos", b"credssp"];
    let is_one = |part: &[u8]| {
        let part = part.trim_ascii_start();
        SCHEMES.iter().any(|scheme| {
            let start = part.get(..scheme.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
    };
    let after = |at: usize| value.get(at + 1..).unwrap_or_default();
    is_one(value) || memchr::memchr_iter(b',', value).any(|at| is_one(after(at)))
}

/// Whether one of the fields has such [credentials or challenges](authenticates_connection).
pub fn has_connection_authentication(headers: &HeaderMap, names: [HeaderName; 2]) -> bool {
    names.iter().any(|name| {
        let mut values = headers.get_all(name).iter();
        values.any(|value| authenticates_connection(value.as_bytes()))
    })
}

/// Removes all fields of these names, and those that a server may confuse with them.
pub fn strip_named<'n>(
    headers: &mut HeaderMap,
    names: impl Iterator<Item = &'n HeaderName> + Clone,
) {
    strip_spellings(headers, names.clone());
    for name in names {
        headers.remove(name);
    }
}

/// Why a field does not have exactly one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOne {
    /// There is no such field.
    None,
    /// There are several lines, or another field that a server may confuse with it. A recipient may read any of them.
    Several,
}

/// The only line of a field that a recipient can read.
///
/// # Errors
///
/// When there is none, or more than one.
pub fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h HeaderValue, NotOne> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().ok_or(NotOne::None)?;
    let read = folded(name);
    let mut odd = headers.keys().filter(|other| *other != name);
    let is_confused =
        odd.any(|other| !(is_plain(other) && is_plain(name)) && folded(other) == read);
    match lines.next() {
        None if !is_confused => Ok(line),
        _ => Err(NotOne::Several),
    }
}

/// Whether a list field contains a token, in any case.
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &[u8]) -> bool {
    headers.get_all(name).iter().any(|value| {
        value
            .as_bytes()
            .split(|&b| b == b',')
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
    })
}

/// Whether a response is an event stream, which may be silent for long.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        value
            .as_bytes()
            .get(..17)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
    })
}

/// Whether a message belongs to a gRPC call, where both sides may send at any time.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| is_grpc_type(value.as_bytes()))
}

/// Whether a content type is one of gRPC or gRPC-Web.
pub fn is_grpc_type(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let begins = content_type.get(..GRPC.len());
    begins.is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
        && matches!(
            content_type.get(GRPC.len()),
            None | Some(b'+' | b'-' | b';' | b' ')
        )
}

/// Whether a field is forbidden in trailers (RFC 9110 6.5.1): framing, routing, credentials, and content format.
pub fn is_banned_in_trailers(name: &str) -> bool {
    matches!(
        name,
        "authorization"
            | "content-encoding"
            | "content-length"
            | "content-range"
            | "content-type"
            | "cookie"
            | "expect"
            | "host"
            | "set-cookie"
            | "trailer"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(names: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for name in names {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        headers
    }

    #[test]
    fn other_spellings_are_removed_in_both_directions() {
        for (own, given, left) in [
            (
                "x-user",
                &["x-user", "x_user", "x.user", "x-users"][..],
                &["x-user", "x-users"][..],
            ),
            ("x_user", &["x-user", "x_user", "x.user"], &["x_user"]),
            ("x.user", &["x-user"], &[]),
            ("accept", &["accept", "x-user"], &["accept", "x-user"]),
        ] {
            let (mut headers, own) = (fields(given), HeaderName::from_static(own));
            strip_spellings(&mut headers, [&own].into_iter());
            assert_eq!(headers, fields(left), "{own}");
            strip_named(&mut headers, [&own].into_iter());
            assert!(!headers.contains_key(&own));
        }
    }

    #[test]
    fn one_of_several_values_is_none() {
        for (name, given, found) in [
            ("x-token", &["x-token", "x-other"][..], Ok(())),
            ("x-token", &["x-other"], Err(NotOne::None)),
            ("x-token", &["x_token"], Err(NotOne::None)),
            ("x-token", &["x-token", "x-token"], Err(NotOne::Several)),
            ("x-token", &["x-token", "x_token"], Err(NotOne::Several)),
            ("x_token", &["x-token", "x_token"], Err(NotOne::Several)),
        ] {
            let name = HeaderName::from_static(name);
            assert_eq!(only(&fields(given), &name).map(drop), found, "{given:?}");
        }
    }

    #[test]
    fn schemes_that_authenticate_a_connection_are_found() {
        for value in [
            "NTLM",
            "ntlm TlRMTVNTUAAB",
            "NEGOTIATE\tYII=",
            "Negotiate,NTLM",
            "Basic realm=\"a\", Negotiate",
            "Basic dXNlcg==,\tNTLM TlRM",
            "Nego2",
            "Kerberos YII=",
            "CredSSP TlRM",
            "  ntlm",
        ] {
            assert!(authenticates_connection(value.as_bytes()), "{value}");
        }
        for value in [
            "",
            "Basic dXNlcjpwYXNz",
            "Bearer ntlm.negotiate.kerberos",
            "Digest username=\"a\", realm=\"ntlm\", uri=\"/negotiate\"",
            "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c",
            "N",
        ] {
            assert!(!authenticates_connection(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn split_cookies_become_one() {
        let mut headers = HeaderMap::new();
        for cookie in ["a=1", "b=2"] {
            headers.append(COOKIE, HeaderValue::from_static(cookie));
        }
        join_cookies(&mut headers);
        let values: Vec<_> = headers.get_all(COOKIE).iter().collect();
        assert_eq!(values, ["a=1; b=2"]);
    }
}
