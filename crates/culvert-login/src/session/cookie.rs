//! The cookies of a sign-in. Their names begin with `__Host-culvert.`, so that no other host can set them, and with
//! `__Secure-culvert.` if the hosts of a domain share the session. Behind the prefix they are `session`, `nonce` and
//! `person`, or with an `auth_id`, `<auth_id>.session` and so on. The nonce and the person are always of one host.
//!
//! A session that exceeds one cookie is split into several (`….session.1` and so on); the first contains their
//! number, the others the beginning of the session that they belong to. The amount that is read of a request is
//! limited, whatever its header contains.

use std::fmt::Write;
use std::time::Duration;

use culvert_policy::own_cookies::{EdgeCookies, HOST_PREFIX, SECURE_PREFIX};
use http::header::HeaderValue;

/// Maximum length of a cookie value. Browsers accept 4096 bytes including name and attributes.
const PART_BYTES_MAX: usize = 3600;
/// Length of the beginning of a session in its further cookies. It is random, so others cannot guess it.
const TAG_BYTES: usize = 8;
/// Maximum number of cookies for one session.
pub(crate) const PARTS_MAX: usize = 4;
/// Maximum length of an encrypted session.
pub(crate) const SEALED_BYTES_MAX: usize =
    PART_BYTES_MAX - 2 + (PART_BYTES_MAX - TAG_BYTES - 1) * (PARTS_MAX - 1);
/// Maximum number of cookies with one name that are tried. A browser also sends those that other hosts of a cookie domain
/// have set, for any path.
const SAME_NAME_MAX: usize = 64;

/// The cookies of one sign-in action.
#[derive(Debug)]
pub(crate) struct Cookies {
    session: String,
    nonce: String,
    person: String,
    /// `; Domain=…`, or nothing.
    domain: String,
}

impl Cookies {
    pub(crate) fn new(auth_id: &str, domain: Option<&str>) -> Self {
        let id = match auth_id {
            "" => String::new(),
            id => format!("{id}."),
        };
        let shared = domain.map_or(HOST_PREFIX, |_| SECURE_PREFIX);
        Self {
            session: format!("{shared}{id}session"),
            nonce: format!("{HOST_PREFIX}{id}nonce"),
            person: format!("{HOST_PREFIX}{id}person"),
            domain: domain.map_or(String::new(), |domain| format!("; Domain={domain}")),
        }
    }

    /// The name of the session cookie.
    pub(crate) fn session_name(&self) -> &str {
        &self.session
    }

    /// The encrypted sessions in a request, usually one.
    pub(crate) fn sessions(&self, cookies: &EdgeCookies) -> Vec<String> {
        let whole = |first: &str| {
            let (count, text) = first.split_once('.')?;
            let count: usize = count.parse().ok()?;
            if !(1..=PARTS_MAX).contains(&count) || first.len() > PART_BYTES_MAX {
                return None;
            }
            let mut sealed = text.to_owned();
            for part in 1..count {
                let tag = text.get(..TAG_BYTES)?;
                let name = format!("{}.{part}", self.session);
                // Another host of the cookie domain may have set others with this name.
                let part = cookies.values(&name).find_map(|part| {
                    let behind = part.strip_prefix(tag)?.strip_prefix('.')?;
                    (part.len() <= PART_BYTES_MAX).then_some(behind)
                })?;
                sealed.push_str(part);
            }
            Some(sealed)
        };
        let firsts = cookies.values(&self.session).take(SAME_NAME_MAX);
        firsts.filter_map(whole).collect()
    }

    /// The encrypted nonces in a request.
    pub(crate) fn nonces<'c>(&self, cookies: &'c EdgeCookies) -> impl Iterator<Item = &'c str> {
        few(cookies, &self.nonce)
    }

    /// The encrypted ids of the user whose sessions this host accepts.
    pub(crate) fn persons<'c>(&self, cookies: &'c EdgeCookies) -> impl Iterator<Item = &'c str> {
        few(cookies, &self.person)
    }

    /// Sets the cookies of an encrypted session, and deletes surplus parts of the previous one.
    pub(crate) fn keep_session(
        &self,
        sealed: &str,
        keep_for: Duration,
        before: Option<&EdgeCookies>,
    ) -> Vec<HeaderValue> {
        let (mut rest, mut cookies) = (sealed, Vec::new());
        let tag = sealed.get(..TAG_BYTES).unwrap_or_default();
        let count = match sealed.len().saturating_sub(PART_BYTES_MAX - 2) {
            0 => 1,
            more => 1 + more.div_ceil(PART_BYTES_MAX - TAG_BYTES - 1),
        };
        for part in 0..count {
            let (name, head) = match part {
                0 => (self.session.clone(), format!("{count}.")),
                part => (format!("{}.{part}", self.session), format!("{tag}.")),
            };
            let room = PART_BYTES_MAX - head.len();
            let (here, behind) = rest.split_at_checked(room).unwrap_or((rest, ""));
            rest = behind;
            let value = format!("{head}{here}");
            cookies.extend(cookie(&name, &value, keep_for, &self.domain));
        }
        cookies.extend(self.forget_parts(count, before));
        cookies
    }

    /// Deletes the cookies of the session.
    pub(crate) fn forget_session(&self, before: Option<&EdgeCookies>) -> Vec<HeaderValue> {
        let first = cookie(&self.session, "", Duration::ZERO, &self.domain);
        first
            .into_iter()
            .chain(self.forget_parts(1, before))
            .collect()
    }

    fn forget_parts(&self, from: usize, before: Option<&EdgeCookies>) -> Vec<HeaderValue> {
        let Some(before) = before else {
            return Vec::new();
        };
        let parts = (from.max(1)..PARTS_MAX).map(|part| format!("{}.{part}", self.session));
        parts
            .filter(|name| before.values(name).next().is_some())
            .filter_map(|name| cookie(&name, "", Duration::ZERO, &self.domain))
            .collect()
    }

    /// Sets the cookie of an encrypted nonce.
    pub(crate) fn keep_nonce(&self, sealed: &str, keep_for: Duration) -> Option<HeaderValue> {
        cookie(&self.nonce, sealed, keep_for, "")
    }

    /// Deletes the nonce.
    pub(crate) fn forget_nonce(&self) -> Option<HeaderValue> {
        cookie(&self.nonce, "", Duration::ZERO, "")
    }

    /// Sets the cookie of the encrypted id of a user; an empty one deletes it.
    pub(crate) fn keep_person(&self, sealed: &str, keep_for: Duration) -> Option<HeaderValue> {
        cookie(&self.person, sealed, keep_for, "")
    }
}

fn few<'c>(cookies: &'c EdgeCookies, name: &str) -> impl Iterator<Item = &'c str> {
    let values: Vec<&str> = cookies
        .values(name)
        .take(SAME_NAME_MAX)
        .filter(|value| value.len() <= PART_BYTES_MAX)
        .collect();
    values.into_iter()
}

/// A cookie of all paths. Events and captures show sensitive values as redacted.
fn cookie(name: &str, value: &str, keep_for: Duration, domain: &str) -> Option<HeaderValue> {
    let mut text = format!("{name}={value}; Path=/; Max-Age={}", keep_for.as_secs());
    // Writing to a string cannot fail.
    let _ok = write!(text, "{domain}; Secure; HttpOnly; SameSite=Lax");
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use culvert_policy::own_cookies::{is_own, sets_own, take};
    use http::HeaderMap;
    use http::header::COOKIE;
    use proptest::prelude::*;

    use super::*;

    fn request(lines: &[String]) -> Option<EdgeCookies> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, line.parse().unwrap());
        }
        take(&mut headers)
    }

    /// The request of a browser that stored these cookies.
    fn back(cookies: &[HeaderValue]) -> EdgeCookies {
        let pairs = cookies.iter().map(|cookie| {
            let text = cookie.to_str().unwrap();
            text.split(';').next().unwrap().to_owned()
        });
        request(&[pairs.collect::<Vec<_>>().join("; ")]).unwrap()
    }

    fn sessions(cookies: &Cookies, lines: &[String]) -> Vec<String> {
        request(lines).map_or(Vec::new(), |own| cookies.sessions(&own))
    }

    #[test]
    fn attributes() {
        let cookies = Cookies::new("", None);
        let hour = Duration::from_secs(3600);
        assert_eq!(
            cookies.keep_session("abc", hour, None),
            ["__Host-culvert.session=1.abc; Path=/; Max-Age=3600; Secure; HttpOnly; SameSite=Lax"]
        );
        let cookies = Cookies::new("staff", Some("x.example"));
        // No host of the domain can set the nonce of another.
        assert_eq!(
            cookies.keep_nonce("n", hour).unwrap(),
            "__Host-culvert.staff.nonce=n; Path=/; Max-Age=3600; Secure; HttpOnly; SameSite=Lax"
        );
        assert_eq!(
            cookies.forget_session(None),
            [
                "__Secure-culvert.staff.session=; Path=/; Max-Age=0; Domain=x.example; Secure; HttpOnly; SameSite=Lax"
            ]
        );
    }

    #[test]
    fn every_cookie_is_known_as_the_edges() {
        for cookies in [Cookies::new("", None), Cookies::new("a", Some("x.example"))] {
            for name in [&cookies.session, &cookies.nonce, &cookies.person] {
                assert!(is_own(name.as_bytes()), "{name}");
            }
            let kept = cookies.keep_session(&"x".repeat(9000), Duration::ZERO, None);
            assert!(kept.iter().all(|cookie| sets_own(cookie.as_bytes())));
            assert!(kept.iter().all(HeaderValue::is_sensitive));
        }
    }

    #[test]
    fn a_long_session_is_cut_and_put_together() {
        let cookies = Cookies::new("", None);
        let hour = Duration::from_secs(3600);
        for length in [1, 3598, 3599, 7189, 7190, SEALED_BYTES_MAX] {
            let sealed = "x".repeat(length);
            let kept = cookies.keep_session(&sealed, hour, None);
            assert!(kept.len() <= PARTS_MAX, "{length}: {}", kept.len());
            assert!(kept.iter().all(|cookie| cookie.len() < 4096), "{length}");
            assert_eq!(cookies.sessions(&back(&kept)), [sealed], "{length}");
        }
        // A shorter session deletes the surplus parts of the longer one.
        let kept = cookies.keep_session(&"x".repeat(9000), hour, None);
        let long = back(&kept);
        let short = cookies.keep_session("y", hour, Some(&long));
        assert_eq!(short.len(), 3);
        assert!(
            short[1]
                .to_str()
                .unwrap()
                .starts_with("__Host-culvert.session.1=; Path=/; Max-Age=0")
        );
        assert_eq!(cookies.forget_session(Some(&long)).len(), 3);
        // A missing part makes the session invalid.
        assert_eq!(cookies.sessions(&back(&kept[..1])), [""; 0]);
    }

    #[test]
    fn cookies_of_others_do_not_displace_a_session() {
        let cookies = Cookies::new("", Some("x.example"));
        let sealed = format!("abcdefgh{}", "x".repeat(9000));
        let kept = cookies.keep_session(&sealed, Duration::ZERO, None);
        let pairs = kept.iter().map(|cookie| {
            let text = cookie.to_str().unwrap();
            text.split(';').next().unwrap().to_owned()
        });
        let junk = (0..50).map(|number| {
            format!("__Secure-culvert.session=3.junk{number}; __Secure-culvert.session.1=z; __Secure-culvert.session.2=abcdefgz.z")
        });
        let lines: Vec<String> = junk.chain(pairs).collect();
        assert_eq!(sessions(&cookies, &lines), [sealed]);
    }

    #[test]
    fn too_many_are_not_looked_at() {
        let cookies = Cookies::new("", None);
        let bomb = request(&vec![
            "__Host-culvert.session=1.x; __Host-culvert.nonce=y"
                .to_owned();
            1000
        ])
        .unwrap();
        assert_eq!(cookies.sessions(&bomb).len(), SAME_NAME_MAX);
        assert_eq!(cookies.nonces(&bomb).count(), SAME_NAME_MAX);
        let large = format!("__Host-culvert.session=1.{}", "x".repeat(PART_BYTES_MAX));
        assert_eq!(sessions(&cookies, &[large]), [""; 0]);
        for wrong in [
            "",
            "x",
            "0.x",
            "5.x",
            "99999999999999999999.x",
            "-1.x",
            "2.x",
        ] {
            let line = format!("__Host-culvert.session={wrong}");
            assert_eq!(sessions(&cookies, &[line]), [""; 0], "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read(line in "[ -~]{0,200}|(__Host-culvert\\.session(\\.[0-9])?=[0-9]\\.[a-z]*;? ?){0,9}") {
            let cookies = Cookies::new("", None);
            if let Some(own) = request(&[line]) {
                drop((cookies.sessions(&own), cookies.nonces(&own).count()));
            }
        }
    }
}
