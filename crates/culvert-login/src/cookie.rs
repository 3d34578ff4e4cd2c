//! The cookies of a sign-in: `culvert.session` and `culvert.nonce`, or with an `auth_id`, `culvert.<auth_id>.session`
//! and `culvert.<auth_id>.nonce`.
//!
//! A session that exceeds one cookie is split into several (`….session.1` and so on); the first contains their
//! number. The amount that is read of a request is limited, whatever its header contains.

use std::fmt::Write;
use std::time::Duration;

use http::HeaderMap;
use http::header::{COOKIE, HeaderValue};

/// Prefix of all cookies of the edge.
const PREFIX: &str = "culvert.";
/// Maximum length of a cookie value. Browsers accept 4096 bytes including name and attributes.
const PART_BYTES_MAX: usize = 3600;
/// Maximum number of cookies for one session.
pub(crate) const PARTS_MAX: usize = 4;
/// Maximum length of an encrypted session.
pub(crate) const SEALED_BYTES_MAX: usize = PART_BYTES_MAX * PARTS_MAX - 2;
/// Maximum number of cookies with one name that are tried. A browser also sends those of parent domains and paths.
const SAME_NAME_MAX: usize = 4;

/// The cookies of one sign-in action.
#[derive(Debug)]
pub(crate) struct Cookies {
    session: String,
    nonce: String,
    /// `; Domain=…`, or nothing.
    domain: String,
}

impl Cookies {
    pub(crate) fn new(auth_id: &str, domain: Option<&str>) -> Self {
        let prefix = match auth_id {
            "" => PREFIX.to_owned(),
            id => format!("{PREFIX}{id}."),
        };
        Self {
            session: format!("{prefix}session"),
            nonce: format!("{prefix}nonce"),
            domain: domain.map_or(String::new(), |domain| format!("; Domain={domain}")),
        }
    }

    /// The name of the session cookie.
    pub(crate) fn session_name(&self) -> &str {
        &self.session
    }

    /// The encrypted sessions in a request, usually one.
    pub(crate) fn sessions(&self, headers: &HeaderMap) -> Vec<String> {
        let whole = |first: &str| {
            let (count, text) = first.split_once('.')?;
            let count: usize = count.parse().ok()?;
            if !(1..=PARTS_MAX).contains(&count) || first.len() > PART_BYTES_MAX {
                return None;
            }
            let mut text = text.to_owned();
            for part in 1..count {
                let name = format!("{}.{part}", self.session);
                let part = values(headers, &name).next()?;
                if part.len() > PART_BYTES_MAX {
                    return None;
                }
                text.push_str(part);
            }
            Some(text)
        };
        let firsts = values(headers, &self.session).take(SAME_NAME_MAX);
        firsts.filter_map(whole).collect()
    }

    /// The encrypted nonces in a request.
    pub(crate) fn nonces<'h>(&'h self, headers: &'h HeaderMap) -> impl Iterator<Item = &'h str> {
        values(headers, &self.nonce)
            .take(SAME_NAME_MAX)
            .filter(|value| value.len() <= PART_BYTES_MAX)
    }

    /// Sets the cookies of an encrypted session, and deletes surplus parts of the previous one.
    pub(crate) fn keep_session(
        &self,
        sealed: &str,
        keep_for: Duration,
        before: &HeaderMap,
    ) -> Vec<HeaderValue> {
        let mut rest = sealed;
        let count = (sealed.len() + 2).div_ceil(PART_BYTES_MAX);
        let mut cookies = Vec::with_capacity(count);
        for part in 0..count {
            let (name, head) = match part {
                0 => (self.session.clone(), format!("{count}.")),
                part => (format!("{}.{part}", self.session), String::new()),
            };
            let room = PART_BYTES_MAX - head.len();
            let (here, behind) = rest.split_at_checked(room).unwrap_or((rest, ""));
            rest = behind;
            cookies.extend(self.cookie(&name, &format!("{head}{here}"), keep_for));
        }
        cookies.extend(self.forget_parts(count, before));
        cookies
    }

    /// Deletes the cookies of the session.
    pub(crate) fn forget_session(&self, before: &HeaderMap) -> Vec<HeaderValue> {
        let first = self.cookie(&self.session, "", Duration::ZERO);
        first
            .into_iter()
            .chain(self.forget_parts(1, before))
            .collect()
    }

    fn forget_parts(&self, from: usize, before: &HeaderMap) -> Vec<HeaderValue> {
        let parts = (from.max(1)..PARTS_MAX).map(|part| format!("{}.{part}", self.session));
        parts
            .filter(|name| values(before, name).next().is_some())
            .filter_map(|name| self.cookie(&name, "", Duration::ZERO))
            .collect()
    }

    /// Sets the cookie of an encrypted nonce.
    pub(crate) fn keep_nonce(&self, sealed: &str, keep_for: Duration) -> Option<HeaderValue> {
        self.cookie(&self.nonce, sealed, keep_for)
    }

    fn cookie(&self, name: &str, value: &str, keep_for: Duration) -> Option<HeaderValue> {
        let mut text = format!("{name}={value}; Path=/; Max-Age={}", keep_for.as_secs());
        // Writing to a string cannot fail.
        let _ok = write!(
            text,
            "{}; Secure; HttpOnly; SameSite=Lax",
            self.domain.as_str()
        );
        HeaderValue::try_from(text).ok()
    }
}

/// The cookies of a request without those of the edge, which upstreams must not see. `None` if the request has no
/// cookies of the edge.
pub(crate) fn without_ours(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_ours = |pair: &&str| pair.trim_start().starts_with(PREFIX);
    pairs(headers).find(|pair| is_ours(pair))?;
    let others: Vec<&str> = pairs(headers)
        .filter(|pair| !is_ours(pair))
        .map(str::trim)
        .collect();
    // If the rest is not a valid header value, drops it.
    Some(HeaderValue::try_from(others.join("; ")).unwrap_or(HeaderValue::from_static("")))
}

fn pairs(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(COOKIE).iter();
    lines
        .filter_map(|line| std::str::from_utf8(line.as_bytes()).ok())
        .flat_map(|line| line.split(';'))
}

/// The values of the cookies with this name.
fn values<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> {
    pairs(headers).filter_map(move |pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(lines: &[String]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, line.parse().unwrap());
        }
        headers
    }

    /// The request of a browser that stored these cookies.
    fn back(cookies: &[HeaderValue]) -> HeaderMap {
        let pairs = cookies.iter().map(|cookie| {
            let text = cookie.to_str().unwrap();
            text.split(';').next().unwrap().to_owned()
        });
        headers(&[pairs.collect::<Vec<_>>().join("; ")])
    }

    #[test]
    fn attributes() {
        let cookies = Cookies::new("", None);
        let hour = Duration::from_secs(3600);
        assert_eq!(
            cookies.keep_session("abc", hour, &HeaderMap::new()),
            ["culvert.session=1.abc; Path=/; Max-Age=3600; Secure; HttpOnly; SameSite=Lax"]
        );
        let cookies = Cookies::new("staff", Some("x.example"));
        assert_eq!(
            cookies.keep_nonce("n", hour).unwrap(),
            "culvert.staff.nonce=n; Path=/; Max-Age=3600; Domain=x.example; Secure; HttpOnly; SameSite=Lax"
        );
        assert_eq!(
            cookies.forget_session(&HeaderMap::new()),
            [
                "culvert.staff.session=; Path=/; Max-Age=0; Domain=x.example; Secure; HttpOnly; SameSite=Lax"
            ]
        );
    }

    #[test]
    fn a_long_session_is_cut_and_put_together() {
        let cookies = Cookies::new("", None);
        let hour = Duration::from_secs(3600);
        for length in [1, 3598, 3599, 7198, 7199, SEALED_BYTES_MAX] {
            let sealed = "x".repeat(length);
            let kept = cookies.keep_session(&sealed, hour, &HeaderMap::new());
            assert!(kept.len() <= PARTS_MAX, "{length}: {}", kept.len());
            assert!(kept.iter().all(|cookie| cookie.len() < 4096), "{length}");
            assert_eq!(cookies.sessions(&back(&kept)), [sealed], "{length}");
        }
        // A shorter session deletes the surplus parts of the longer one.
        let long = back(&cookies.keep_session(&"x".repeat(9000), hour, &HeaderMap::new()));
        let short = cookies.keep_session("y", hour, &long);
        assert_eq!(short.len(), 3);
        assert!(
            short[1]
                .to_str()
                .unwrap()
                .starts_with("culvert.session.1=; Path=/; Max-Age=0")
        );
        assert_eq!(cookies.forget_session(&long).len(), 3);
        // A missing part makes the session invalid.
        let part = long[COOKIE].to_str().unwrap().split("; ").next().unwrap();
        assert_eq!(cookies.sessions(&headers(&[part.to_owned()])), [""; 0]);
    }

    #[test]
    fn too_many_are_not_looked_at() {
        let cookies = Cookies::new("", None);
        let bomb = headers(&vec![
            "culvert.session=1.x; culvert.nonce=y".to_owned();
            1000
        ]);
        assert_eq!(cookies.sessions(&bomb).len(), SAME_NAME_MAX);
        assert_eq!(cookies.nonces(&bomb).count(), SAME_NAME_MAX);
        let large = format!("culvert.session=1.{}", "x".repeat(PART_BYTES_MAX));
        assert_eq!(cookies.sessions(&headers(&[large])), [""; 0]);
        for wrong in [
            "",
            "x",
            "0.x",
            "5.x",
            "99999999999999999999.x",
            "-1.x",
            "2.x",
        ] {
            let line = format!("culvert.session={wrong}");
            assert_eq!(cookies.sessions(&headers(&[line])), [""; 0], "{wrong}");
        }
    }

    #[test]
    fn upstreams_see_the_others() {
        let mixed = headers(&[
            "a=1; culvert.session=2.x;b=2".to_owned(),
            "culvert.other.nonce=n; culvertly=3".to_owned(),
        ]);
        assert_eq!(without_ours(&mixed).unwrap(), "a=1; b=2; culvertly=3");
        assert_eq!(without_ours(&headers(&["a=1".to_owned()])), None);
        let ours = headers(&["culvert.session=1.x".to_owned()]);
        assert_eq!(without_ours(&ours).unwrap(), "");
    }

    proptest! {
        #[test]
        fn any_header_is_read(line in "[ -~]{0,200}|(culvert\\.session(\\.[0-9])?=[0-9]\\.[a-z]*;? ?){0,9}") {
            let headers = headers(&[line]);
            let cookies = Cookies::new("", None);
            drop((cookies.sessions(&headers), cookies.nonces(&headers).count(), without_ours(&headers)));
        }
    }
}
