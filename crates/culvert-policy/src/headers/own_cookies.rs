//! The cookies of the edge, which no service may see or set: the one place that knows their names.
//!
//! A request loses them where the edge begins to serve it ([`take`]). From there on only the edge's own actions have
//! them, so whatever is made of the request lacks them: what goes to an upstream, what expressions see, events,
//! captures and replays.
//!
//! Browsers compare the prefixes `__Host-` and `__Secure-` without regard to case, and some services compare whole
//! names so. So do the functions here.

use std::fmt;
use std::sync::Arc;

use http::header::{COOKIE, HeaderMap, HeaderName, HeaderValue, LOCATION, SET_COOKIE};
use memchr::{memchr2, memchr2_iter};

/// The prefix of cookies that only the host itself can set (RFC 6265bis 4.1.3.2).
pub const HOST_PREFIX: &str = "__Host-culvert.";
/// The prefix of cookies that several hosts of a domain share (RFC 6265bis 4.1.3.1).
pub const SECURE_PREFIX: &str = "__Secure-culvert.";
/// The prefix of cookies of hosts without TLS, where browsers refuse the others. They are no credentials.
pub const PLAIN_PREFIX: &str = "culvert.upstream.";
/// The cookie with the secret that gets past the page of an endpoint in maintenance, of hosts without TLS. Over TLS it has the
/// first prefix.
pub const MAINTENANCE: &str = "culvert.maintenance";
/// The cookies of the console. Browsers send cookies to all ports of a host, so an endpoint at the host of the API gets them.
const OF_CONSOLE: [&str; 2] = ["__Host-culvert", "__Host-culvert-sign-in"];
/// The prefix of the cookies of former versions, which outlive an upgrade: `culvert.session`, `culvert.nonce`, and with an
/// `auth_id` between the two parts.
const FORMER_PREFIX: &str = "culvert.";

/// The edge's cookies of a request. A request has them as an extension.
#[derive(Clone)]
pub struct EdgeCookies(Arc<[(String, String)]>);

impl fmt::Debug for EdgeCookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values are credentials.
        let names = self.0.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}

impl EdgeCookies {
    /// The values of the cookies with this name, in the order of the request.
    pub fn values<'c>(&'c self, name: &str) -> impl Iterator<Item = &'c str> {
        let cookies = self.0.iter();
        cookies
            .filter(move |(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Whether a cookie of this name is the edge's.
pub fn is_own(name: &[u8]) -> bool {
    if !matches!(name.first(), Some(b'_' | b'c' | b'C')) {
        return false;
    }
    after(name, HOST_PREFIX).is_some()
        || OF_CONSOLE
            .iter()
            .any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
        || name.eq_ignore_ascii_case(MAINTENANCE.as_bytes())
        || after(name, SECURE_PREFIX).is_some()
        || after(name, PLAIN_PREFIX).is_some()
        || after(name, FORMER_PREFIX).is_some_and(is_former)
}

/// The rest of a name after a prefix, in any case.
fn after<'n>(name: &'n [u8], prefix: &str) -> Option<&'n [u8]> {
    let (start, rest) = name.split_at_checked(prefix.len())?;
    start
        .eq_ignore_ascii_case(prefix.as_bytes())
        .then_some(rest)
}

/// Whether the rest of a name after the former prefix is that of a session or nonce.
fn is_former(rest: &[u8]) -> bool {
    let is_one = |rest: &[u8]| after(rest, "session").is_some() || after(rest, "nonce").is_some();
    let is_of_id = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    let dot = rest.iter().position(|byte| *byte == b'.');
    let behind_id = dot.and_then(|dot| {
        let (id, behind) = rest.split_at_checked(dot)?;
        (!id.is_empty() && id.iter().all(is_of_id)).then_some(behind.get(1..)?)
    });
    is_one(rest) || behind_id.is_some_and(is_one)
}

/// The name of a cookie in a `cookie` or `set-cookie` field. Browsers send a cookie without a name as its value alone, so
/// the name may be behind a `=`.
fn name_of(pair: &[u8]) -> &[u8] {
    let begin = pair
        .iter()
        .position(|byte| !matches!(byte, b' ' | b'\t' | b'='));
    let pair = begin
        .and_then(|begin| pair.get(begin..))
        .unwrap_or_default();
    let end = pair.iter().position(|byte| *byte == b'=');
    let name = end.and_then(|end| pair.get(..end)).unwrap_or(pair);
    name.trim_ascii_end()
}

/// The parts of a `cookie` line between `;` and `,`, each with the separator before it: proxies join lines with a comma.
fn parts(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut start = 0;
    let ends = memchr2_iter(b';', b',', line).chain(std::iter::once(line.len()));
    ends.filter_map(move |end| {
        let whole = line.get(start..end)?;
        let separator = usize::from(start != 0 || matches!(whole.first(), Some(b';' | b',')));
        start = end;
        Some(whole.split_at(separator.min(whole.len())))
    })
}

/// Whether a `cookie` line has a cookie of the edge.
pub fn has_own(line: &[u8]) -> bool {
    let mut rest = line;
    loop {
        let end = memchr2(b';', b',', rest);
        let pair = rest.get(..end.unwrap_or(rest.len()));
        if is_own(name_of(pair.unwrap_or_default())) {
            return true;
        }
        match end.and_then(|end| rest.get(end + 1..)) {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
}

/// Removes the edge's cookies from the fields of a request, and returns them.
pub fn take(headers: &mut HeaderMap) -> Option<EdgeCookies> {
    let mut lines = headers.get_all(COOKIE).iter();
    if !lines.any(|line| has_own(line.as_bytes())) {
        return None;
    }
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for line in headers.get_all(COOKIE) {
        if let Some(rest) = split(line, &mut own) {
            others.push(rest);
        }
    }
    headers.remove(COOKIE);
    for line in others {
        headers.append(COOKIE, line);
    }
    Some(EdgeCookies(own.into()))
}

/// The rest of a line without the edge's cookies, which are added to `own`. `None` if nothing is left.
fn split(line: &HeaderValue, own: &mut Vec<(String, String)>) -> Option<HeaderValue> {
    let mut rest = Vec::with_capacity(line.len());
    let mut is_cut = false;
    for (separator, pair) in parts(line.as_bytes()) {
        if !is_own(name_of(pair)) {
            // The separator of the first one that stays has nothing before it.
            if !(is_cut && rest.is_empty()) {
                rest.extend_from_slice(separator);
                rest.extend_from_slice(pair);
            } else {
                rest.extend_from_slice(pair.trim_ascii_start());
            }
            continue;
        }
        is_cut = true;
        let text = std::str::from_utf8(pair).unwrap_or_default().trim();
        if let Some((name, value)) = text.split_once('=') {
            own.push((name.to_owned(), value.to_owned()));
        }
    }
    if !is_cut {
        return Some(line.clone());
    }
    if rest.trim_ascii().is_empty() {
        return None;
    }
    let mut value = HeaderValue::from_bytes(&rest).ok()?;
    value.set_sensitive(line.is_sensitive());
    Some(value)
}

/// Whether a `set-cookie` value sets a cookie of the edge.
pub fn sets_own(value: &[u8]) -> bool {
    let end = value.iter().position(|byte| *byte == b';');
    let pair = end.and_then(|end| value.get(..end)).unwrap_or(value);
    is_own(name_of(pair))
}

/// The value of a field as events and captures have it, whatever their rules are. Secrets of sign-ins are redacted: the
/// cookies that the edge sets, and its redirects with such a secret. Both are marked as sensitive.
pub fn recorded_value<'v>(name: &HeaderName, value: &'v HeaderValue) -> &'v [u8] {
    let is_secret = value.is_sensitive() && (*name == SET_COOKIE || *name == LOCATION);
    if is_secret {
        b"[redacted]"
    } else {
        value.as_bytes()
    }
}

/// Removes the `set-cookie` lines of a response that set a cookie of the edge.
pub fn drop_set_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(SET_COOKIE).iter();
    if !lines.any(|line| sets_own(line.as_bytes())) {
        return;
    }
    let others = headers.get_all(SET_COOKIE).iter();
    let others: Vec<HeaderValue> = others
        .filter(|line| !sets_own(line.as_bytes()))
        .cloned()
        .collect();
    headers.remove(SET_COOKIE);
    for line in others {
        headers.append(SET_COOKIE, line);
    }
}

/// For fuzzing: upstreams get no cookie of the edge, and the others unchanged.
///
/// # Panics
///
/// When that is not so.
pub fn check(bytes: &[u8]) {
    let lines = bytes.split(|byte| *byte == b'\n');
    let mut headers = HeaderMap::new();
    for value in lines.filter_map(|line| HeaderValue::from_bytes(line).ok()) {
        headers.append(COOKIE, value);
    }
    let before = headers.clone();
    match take(&mut headers) {
        None => assert_eq!(headers, before),
        Some(_) => {
            let mut lines = headers.get_all(COOKIE).iter();
            assert!(!lines.any(|line| has_own(line.as_bytes())), "{headers:?}");
            assert!(take(&mut headers).is_none());
        }
    }
    let others = |headers: &HeaderMap| -> Vec<Vec<u8>> {
        let lines = headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| parts(line.as_bytes()).map(|(_, pair)| pair));
        let pairs = pairs
            .map(<[u8]>::trim_ascii)
            .filter(|pair| !pair.is_empty());
        let pairs = pairs.filter(|pair| !is_own(name_of(pair)));
        pairs.map(<[u8]>::to_vec).collect()
    };
    assert_eq!(others(&headers), others(&before));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: [&str; 18] = [
        "__Host-culvert",
        "__host-culvert-Sign-In",
        "__Host-culvert.session",
        "__Host-culvert.session.1",
        "__Host-culvert.staff.nonce",
        "__host-culvert.session",
        "__HOST-CULVERT.x",
        "__Secure-culvert.session",
        "__sEcure-Culvert.staff.session.3",
        "culvert.session",
        "culvert.session.2",
        "culvert.sessionx",
        "Culvert.Nonce",
        "culvert.nonce",
        "culvert.staff.session",
        "culvert.staff.nonce",
        "culvert.session.session",
        "culvert.a-b_C.session.1",
    ];
    const OTHERS: [&str; 13] = [
        "__Host-culvert-theme",
        "session",
        "culvert",
        "culvert.",
        "culvert.theme",
        "culvertly",
        "culvert.a b.session",
        "culvert..session",
        "__Host-session",
        "__Secure-culvertx",
        "__Host-culver",
        "x__Host-culvert.session",
        "a.culvert.session",
    ];

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, line.parse().unwrap());
        }
        headers
    }

    #[test]
    fn names_of_the_edge_are_known_in_every_spelling() {
        for name in OWN {
            assert!(is_own(name.as_bytes()), "{name}");
        }
        for name in OTHERS {
            assert!(!is_own(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn requests_lose_the_edges_cookies_alone() {
        for (before, after) in [
            (
                &[
                    "a=1; __Host-culvert.session=2.x;b=2",
                    "culvert.other.nonce=n; culvertly=3",
                ][..],
                &["a=1;b=2", "culvertly=3"][..],
            ),
            (&["__Host-culvert.session=1.x"], &[]),
            (&["__Host-culvert.session"], &[]),
            (&["__host-CULVERT.session=1.x; a=1"], &["a=1"]),
            (&["a=1, __Secure-culvert.session=1.x; b=2"], &["a=1; b=2"]),
            (&["a=1;__Host-culvert.session =x;;b=2;"], &["a=1;;b=2;"]),
            (&["=__Host-culvert.session=x; a=1"], &["a=1"]),
            (&[" \t= culvert.nonce=x"], &[]),
            (&["a=1;\t__Host-culvert.session=x"], &["a=1"]),
            (&["a=\"x; __Host-culvert.session=y\"; b=1"], &["a=\"x; b=1"]),
            (
                &["a=__Host-culvert.session=1"],
                &["a=__Host-culvert.session=1"],
            ),
        ] {
            let mut map = headers(before);
            let had = take(&mut map).is_some();
            assert_eq!(had, before != after, "{before:?}");
            assert_eq!(map, headers(after), "{before:?}");
        }
        let mut map = headers(&["__Host-culvert.session=a; x=1; __Host-culvert.session=b=c"]);
        let own = take(&mut map).unwrap();
        let values: Vec<_> = own.values("__Host-culvert.session").collect();
        assert_eq!(values, ["a", "b=c"]);
        assert_eq!(own.values("__host-culvert.session").count(), 0);
        assert!(!format!("{own:?}").contains("b=c"));
    }

    #[test]
    fn services_cannot_set_the_edges_cookies() {
        for name in OWN {
            for line in [
                format!("{name}=x; Path=/"),
                format!(" \t{name} = x"),
                format!("={name}=x; Secure"),
                format!("= {name}"),
                name.to_owned(),
            ] {
                assert!(sets_own(line.as_bytes()), "{line}");
            }
        }
        for name in OTHERS {
            assert!(!sets_own(format!("{name}=x; Path=/").as_bytes()), "{name}");
        }
        assert!(!sets_own(b"a=__Host-culvert.session=x"));
        assert!(!sets_own(b"a=1; __Host-culvert.session=x"));
        let mut map = HeaderMap::new();
        for line in ["a=1; Path=/", "__HOST-culvert.session=x", "b=2"] {
            map.append(SET_COOKIE, line.parse().unwrap());
        }
        drop_set_cookies(&mut map);
        let left: Vec<_> = map.get_all(SET_COOKIE).iter().collect();
        assert_eq!(left, ["a=1; Path=/", "b=2"]);
    }

    proptest! {
        #[test]
        fn cookies_of_the_edge_are_removed(lines in proptest::collection::vec("(( |;|,|=|__Host-culvert\\.[a-z]*|culvert\\.(x\\.)?(session|nonce|theme)|[a-z]=|[ -~]){0,9})", 0..4)) {
            check(lines.join("\n").as_bytes());
        }
    }
}
