//! The host that a request names (RFC 9112 3.2, RFC 9113 8.3.1).

use culvert_base::{Refusal, code};
use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Version};

/// Refuses a request without a host, with two, or with one that is none (260). HTTP/1.0 has none.
pub fn check(parts: &Parts) -> Result<(), Refusal> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (named, second) = (hosts.next(), hosts.next());
    let in_target = parts.uri.authority();
    let is_old = parts.version < Version::HTTP_11;
    let is_fine = match (named, second, in_target) {
        (_, Some(_), _) => false,
        (None, None, None) => is_old,
        // With HTTP/1.1 the field is needed beside an absolute target too.
        (None, None, Some(_)) => is_old || parts.version >= Version::HTTP_2,
        (Some(host), None, Some(target)) if parts.version >= Version::HTTP_2 => host
            .as_bytes()
            .eq_ignore_ascii_case(target.as_str().as_bytes()),
        (Some(host), None, _) => is_authority(host),
    };
    match is_fine {
        true => Ok(()),
        false => Err(Refusal::of(code::HOST_INVALID)),
    }
}

/// Whether a value is empty, or a host with an optional port.
fn is_authority(host: &HeaderValue) -> bool {
    let bytes = host.as_bytes();
    let parsed = Authority::try_from(bytes);
    bytes.is_empty() || parsed.is_ok_and(|authority| !authority.as_str().contains('@'))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn a_request_names_one_host() {
        let of = |version, target: &str, hosts: &[&str]| {
            let request = Request::builder().version(version).uri(target);
            let request = hosts
                .iter()
                .fold(request, |request, host| request.header(HOST, *host));
            check(&request.body(()).unwrap().into_parts().0).is_ok()
        };
        for (version, target, hosts, expected) in [
            (Version::HTTP_10, "/x", &[][..], true),
            (Version::HTTP_10, "/x", &["a", "a"], false),
            (Version::HTTP_11, "/x", &[], false),
            (Version::HTTP_11, "http://a/x", &[], false),
            (Version::HTTP_11, "/x", &["a"], true),
            (Version::HTTP_11, "/x", &[""], true),
            (Version::HTTP_11, "/x", &["[::1]:8420"], true),
            (Version::HTTP_11, "/x", &["a", "a"], false),
            (Version::HTTP_11, "/x", &["a/b"], false),
            (Version::HTTP_11, "/x", &["u@a"], false),
            (Version::HTTP_11, "/x", &["a b"], false),
            (Version::HTTP_2, "http://a/x", &[], true),
            (Version::HTTP_2, "http://a/x", &["A"], true),
            (Version::HTTP_2, "http://a/x", &["b"], false),
            (Version::HTTP_2, "/x", &["b"], true),
            (Version::HTTP_2, "/x", &[], false),
        ] {
            assert_eq!(
                of(version, target, hosts),
                expected,
                "{version:?} {target} {hosts:?}"
            );
        }
    }
}
