//! The address of the client, and the address at which the client reached the API (contract: management API 1.6).
//!
//! Forwarding headers are used only if the connection comes from a trusted proxy. If `Host` is not a plain authority,
//! a `uri` contains the local address of the connection instead.

use std::net::{IpAddr, SocketAddr};

use http::header::HOST;
use http::{HeaderMap, HeaderName, Uri};
use ipnet::IpNet;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST_BYTES_MAX: usize = 253 + 8;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The address of the peer.
    pub peer: SocketAddr,
    /// The address that it connected to.
    pub local: SocketAddr,
    /// Whether the connection itself has TLS.
    pub is_tls: bool,
}

/// Whether the peer is a trusted proxy.
pub fn is_trusted(peer: IpAddr, proxies: &[IpNet]) -> bool {
    let peer = peer.to_canonical();
    proxies.iter().any(|network| network.contains(&peer))
}

/// The IP address of the client: the peer, or behind trusted proxies the last address in `x-forwarded-for` that is
/// not a trusted proxy.
pub fn client(headers: &HeaderMap, peer: IpAddr, proxies: &[IpNet]) -> IpAddr {
    if proxies.is_empty() || !is_trusted(peer, proxies) {
        return peer;
    }
    let mut client = peer;
    for value in headers.get_all(FORWARDED_FOR).iter().rev() {
        let Ok(list) = value.to_str() else {
            return client;
        };
        for item in list.rsplit(',') {
            let Ok(address) = item.trim().parse() else {
                return client;
            };
            client = address;
            if !is_trusted(client, proxies) {
                return client;
            }
        }
    }
    client
}

/// `scheme://host`, the base of every `uri`, as the caller sees it.
pub fn base(uri: &Uri, headers: &HeaderMap, ends: Ends, proxies: &[IpNet]) -> String {
    let trusted = !proxies.is_empty() && is_trusted(ends.peer.ip(), proxies);
    let forwarded = |name| {
        let value = headers.get(name).filter(|_| trusted)?.to_str().ok()?;
        value.split(',').next().map(str::trim)
    };
    let scheme = match forwarded(FORWARDED_PROTO) {
        Some("https") => "https",
        None if ends.is_tls => "https",
        _ => "http",
    };
    let host = forwarded(FORWARDED_HOST)
        .or_else(|| uri.authority().map(http::uri::Authority::as_str))
        .or_else(|| headers.get(HOST)?.to_str().ok())
        .filter(|host| is_plain(host));
    match host {
        Some(host) => format!("{scheme}://{host}"),
        None => format!("{scheme}://{}", ends.local),
    }
}

fn is_plain(host: &str) -> bool {
    (1..=HOST_BYTES_MAX).contains(&host.len())
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect()
    }

    fn base_of(target: &str, pairs: &[(HeaderName, &'static str)], proxies: &[IpNet]) -> String {
        let ends = Ends {
            peer: "192.0.2.9:4000".parse().unwrap(),
            local: "127.0.0.1:8420".parse().unwrap(),
            is_tls: false,
        };
        base(&target.parse().unwrap(), &headers(pairs), ends, proxies)
    }

    #[test]
    fn the_base_is_what_the_caller_asked_for() {
        let proxy: IpNet = "192.0.2.0/24".parse().unwrap();
        let forwarded = [
            (HOST, "inner:8420"),
            (FORWARDED_HOST, "api.example.com"),
            (FORWARDED_PROTO, "https"),
        ];
        for (target, pairs, proxies, expected) in [
            (
                "/x",
                &[(HOST, "api.test:8420")][..],
                &[][..],
                "http://api.test:8420",
            ),
            ("http://other:1/x", &[], &[], "http://other:1"),
            ("/x", &[], &[], "http://127.0.0.1:8420"),
            ("/x", &[(HOST, "a\"b")], &[], "http://127.0.0.1:8420"),
            ("/x", &[(HOST, "a/b@c")], &[], "http://127.0.0.1:8420"),
            ("/x", &[(HOST, "[::1]:80")], &[], "http://[::1]:80"),
            ("/x", &forwarded, &[], "http://inner:8420"),
            ("/x", &forwarded, &[proxy], "https://api.example.com"),
        ] {
            assert_eq!(base_of(target, pairs, proxies), expected);
        }
    }

    #[test]
    fn the_client_is_the_last_address_that_is_no_proxy() {
        let proxies: [IpNet; 1] = ["10.0.0.0/8".parse().unwrap()];
        let asked = |peer: &str, list: &'static str| {
            let headers = headers(&[(FORWARDED_FOR, list)]);
            client(&headers, peer.parse().unwrap(), &proxies).to_string()
        };
        assert_eq!(asked("192.0.2.1", "203.0.113.5"), "192.0.2.1");
        assert_eq!(
            asked("10.0.0.1", "1.1.1.1, 203.0.113.5, 10.9.9.9"),
            "203.0.113.5"
        );
        assert_eq!(asked("::ffff:10.0.0.1", "203.0.113.5"), "203.0.113.5");
        assert_eq!(asked("10.0.0.1", "junk"), "10.0.0.1");
        assert_eq!(asked("10.0.0.1", "10.0.0.2"), "10.0.0.2");
    }
}
