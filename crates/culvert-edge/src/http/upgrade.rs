//! Upgrades: to WebSocket, whose handshake both sides must complete, and to any other protocol that the upstream accepts
//! with a 101 (RFC 9110 7.8), except for those that carry further HTTP requests, which no rule would see.
//!
//! A client requests a WebSocket with an HTTP/1.1 upgrade or an extended CONNECT of HTTP/2 (RFC 8441), and the edge requests it
//! from the upstream in the form of the upstream's protocol. Between the two, request and response have the HTTP/1.1 form:
//! routes, policies and events see one kind of handshake.
//!
//! Bytes of the client wait in [`Http1Server`](crate::http1::server::Http1Server) until the upstream has sent a 101 to a
//! protocol that was asked for, of WebSocket with a valid `Sec-WebSocket-Accept`. After any other response the connection
//! ends, and these bytes are dropped.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use culvert_base::{Entropy, OsEntropy};
use culvert_http::fields::has_token;
use culvert_http::http2;
use culvert_upstream::UpstreamStream;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Method, Request, StatusCode, Version, request, response};
use hyper::ext::Protocol;

use crate::http::exchange::HttpExchange;

/// The upgrade that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UpgradeRequest {
    /// None, or only to protocols that are not passed on.
    Http,
    /// A WebSocket over HTTP/1.1, with the client's `Sec-WebSocket-Key`.
    WebSocket(HeaderValue),
    /// A WebSocket in a stream of HTTP/2, with a new `Sec-WebSocket-Key` for the upstream.
    Stream(HeaderValue),
    /// Another protocol: the value of `Upgrade` for the upstream, a list of protocols.
    Other(HeaderValue),
    /// A WebSocket with an invalid handshake.
    Broken,
}

impl UpgradeRequest {
    /// Adds the hop-by-hop fields of a handshake again, which were removed with those of the client's hop.
    pub(crate) fn ask(&self, headers: &mut HeaderMap) {
        match self {
            Self::Http => {}
            Self::Other(protocols) => set_upgrade(headers, protocols.clone()),
            Self::WebSocket(_) | Self::Stream(_) | Self::Broken => {
                set_upgrade(headers, HeaderValue::from_static(WEBSOCKET));
            }
        }
    }

    /// The protocol to which an upstream's 101 switches, as the value of `Upgrade`. `None` if it does not accept what was
    /// asked for.
    pub(crate) fn accepted(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        match self {
            Self::Http | Self::Broken => None,
            Self::WebSocket(key) | Self::Stream(key) => {
                is_accepted(headers, key).then(|| HeaderValue::from_static(WEBSOCKET))
            }
            Self::Other(asked) => {
                let chosen = one(headers, &UPGRADE)?;
                let is_chosen = |protocol: &[u8]| protocol.eq_ignore_ascii_case(chosen.as_bytes());
                list(asked).any(is_chosen).then(|| chosen.clone())
            }
        }
    }
}

const WEBSOCKET: &str = "websocket";
/// Most protocols that a request asks for.
const PROTOCOLS_MAX: usize = 8;

/// The upstream's side of an upgraded connection, and the exchange, which ends with it.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) upstream: UpstreamStream,
    /// Bytes that the upstream sent after its 101.
    pub(crate) early: Bytes,
    pub(crate) exchange: Box<HttpExchange>,
}

/// Converts an extended CONNECT to an HTTP/1.1 handshake, and returns what it asks for. `None` if the request is none.
pub(crate) fn translate(parts: &mut request::Parts) -> Option<UpgradeRequest> {
    let protocol = parts.extensions.remove::<http2::Protocol>()?;
    let is_sound = protocol.as_str() == "websocket"
        && has_version(parts)
        && !parts.headers.contains_key(CONTENT_LENGTH);
    parts.method = Method::GET;
    let key = fresh_key();
    parts.headers.insert(SEC_WEBSOCKET_KEY, key.clone());
    let protocol = HeaderValue::from_str(protocol.as_str());
    let protocol = protocol.unwrap_or(HeaderValue::from_static(WEBSOCKET));
    set_upgrade(&mut parts.headers, protocol);
    Some(match is_sound {
        true => UpgradeRequest::Stream(key),
        false => UpgradeRequest::Broken,
    })
}

/// Converts the response to a handshake to that of an extended CONNECT.
pub(crate) fn translate_back(parts: &mut response::Parts) {
    parts.status = StatusCode::OK;
    for name in [CONNECTION, UPGRADE, SEC_WEBSOCKET_ACCEPT] {
        parts.headers.remove(name);
    }
}

/// Whether it asks for the only version of the protocol.
fn has_version(parts: &request::Parts) -> bool {
    one(&parts.headers, &SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13")
}

/// Determines the upgrade that a request of HTTP/1 asks for.
pub(crate) fn requested(parts: &request::Parts, has_body: bool) -> UpgradeRequest {
    let Some(protocol) = parts.headers.get(UPGRADE) else {
        return UpgradeRequest::Http;
    };
    if parts.version != Version::HTTP_11 || !has_token(&parts.headers, &CONNECTION, b"upgrade") {
        return UpgradeRequest::Http;
    }
    if !protocol
        .as_bytes()
        .eq_ignore_ascii_case(WEBSOCKET.as_bytes())
    {
        return other(&parts.headers, has_body);
    }
    let is_sound = parts.method == Method::GET
        && !has_body
        && one(&parts.headers, &UPGRADE).is_some()
        && has_version(parts);
    match one(&parts.headers, &SEC_WEBSOCKET_KEY) {
        Some(key)
            if is_sound
                && STANDARD
                    .decode(key.as_bytes())
                    .is_ok_and(|key| key.len() == 16) =>
        {
            UpgradeRequest::WebSocket(key.clone())
        }
        _ => UpgradeRequest::Broken,
    }
}

/// Whether an ordinary request asks for a protocol that is passed on otherwise: it is malformed or has a body. Clients that
/// ask for others, such as `h2c`, take the response for one of HTTP/1.1.
pub(crate) fn is_ignored(parts: &request::Parts) -> bool {
    if parts.version != Version::HTTP_11 || !parts.headers.contains_key(UPGRADE) {
        return false;
    }
    let mut protocols = parts.headers.get_all(UPGRADE).iter().flat_map(list);
    has_token(&parts.headers, &CONNECTION, b"upgrade")
        && protocols.any(|protocol| !is_withheld(protocol))
}

/// The request for protocols other than a WebSocket. One that is malformed, or has a body, is an ordinary request, as
/// RFC 9110 7.8 allows.
fn other(headers: &HeaderMap, has_body: bool) -> UpgradeRequest {
    // Where the body ends and the protocol begins would depend on the reader.
    if has_body {
        return UpgradeRequest::Http;
    }
    let mut passed = Vec::new();
    for (before, protocol) in headers.get_all(UPGRADE).iter().flat_map(list).enumerate() {
        if before == PROTOCOLS_MAX || !is_protocol(protocol) {
            return UpgradeRequest::Http;
        }
        if !is_withheld(protocol) {
            passed.push(protocol);
        }
    }
    if passed.is_empty() {
        return UpgradeRequest::Http;
    }
    let passed = HeaderValue::from_bytes(&passed.join(&b", "[..]));
    passed.map_or(UpgradeRequest::Http, UpgradeRequest::Other)
}

/// The members of a list (RFC 9110 5.6.1), without the empty ones.
fn list(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let members = value.as_bytes().split(|&byte| byte == b',');
    members
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

/// Whether it is a `protocol` of RFC 9110 7.8: a name, and perhaps a version.
fn is_protocol(protocol: &[u8]) -> bool {
    let mut parts = protocol.split(|&byte| byte == b'/');
    // The name of a field is a token too (RFC 9110 5.1).
    let is_token = |part: &[u8]| HeaderName::from_bytes(part).is_ok();
    parts.next().is_some_and(is_token)
        && parts.next().is_none_or(is_token)
        && parts.next().is_none()
}

/// Whether a protocol is not offered to the upstream: what follows would be further requests, which no rule sees. Drafts
/// have names such as `h2c-17`. A WebSocket is asked for alone, since its handshake is verified.
fn is_withheld(protocol: &[u8]) -> bool {
    let begins = |start: &[u8]| {
        let first = protocol.get(..start.len());
        first.is_some_and(|first| first.eq_ignore_ascii_case(start))
    };
    let name = protocol.split(|&byte| byte == b'/').next();
    let carries_requests: [&[u8]; 4] = [b"h2", b"h3", b"http", b"tls"];
    carries_requests.into_iter().any(begins)
        || name.is_some_and(|name| name.eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
}

/// A random `Sec-WebSocket-Key`.
fn fresh_key() -> HeaderValue {
    let mut bytes = [0; 16];
    OsEntropy.fill(&mut bytes);
    HeaderValue::try_from(STANDARD.encode(bytes)).expect("base64 is made of header characters")
}

pub(crate) fn set_upgrade(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocols);
}

/// Converts a handshake to an extended CONNECT (RFC 8441) and returns the client's `Sec-WebSocket-Key`. `None` if the
/// request is no handshake of WebSocket: HTTP/2 has no other upgrades (RFC 9113 8.6), so it becomes an ordinary one.
pub(crate) fn into_stream<B>(request: &mut Request<B>) -> Option<HeaderValue> {
    let protocols = request.headers_mut().remove(UPGRADE)?;
    request.headers_mut().remove(CONNECTION);
    if protocols != WEBSOCKET {
        return None;
    }
    let key = request.headers_mut().remove(SEC_WEBSOCKET_KEY)?;
    *request.method_mut() = Method::CONNECT;
    let protocol = Protocol::from_static(WEBSOCKET);
    request.extensions_mut().insert(protocol);
    Some(key)
}

/// Converts the response to an extended CONNECT to that of a handshake.
pub(crate) fn accept(parts: &mut response::Parts, key: &HeaderValue) {
    parts.status = StatusCode::SWITCHING_PROTOCOLS;
    set_upgrade(&mut parts.headers, HeaderValue::from_static(WEBSOCKET));
    let proof = HeaderValue::try_from(proof(key)).expect("base64 is made of header characters");
    parts.headers.insert(SEC_WEBSOCKET_ACCEPT, proof);
}

/// The value of `Sec-WebSocket-Accept` for a key (RFC 6455 4.2.2).
fn proof(key: &HeaderValue) -> String {
    const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let input = [key.as_bytes(), MAGIC].concat();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &input);
    STANDARD.encode(digest.as_ref())
}

/// Whether an upstream's 101 has the right `Sec-WebSocket-Accept` for `key`.
fn is_accepted(headers: &HeaderMap, key: &HeaderValue) -> bool {
    let proof = proof(key);
    one(headers, &SEC_WEBSOCKET_ACCEPT).is_some_and(|accept| accept == proof.as_str())
        && one(headers, &UPGRADE).is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// The value of a field that occurs exactly once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_key_of_rfc_6455_is_accepted() {
        // RFC 6455 1.3.
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("WebSocket"));
        headers.insert(
            SEC_WEBSOCKET_ACCEPT,
            HeaderValue::from_static("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        );
        assert!(is_accepted(&headers, &key));
        assert!(!is_accepted(&headers, &HeaderValue::from_static("x")));
    }

    #[test]
    fn incomplete_websocket_handshakes_are_refused() {
        let ask = |change: &dyn Fn(&mut request::Builder)| {
            let mut builder = Request::get("/")
                .header(CONNECTION, "keep-alive, Upgrade")
                .header(UPGRADE, "websocket")
                .header(SEC_WEBSOCKET_VERSION, "13")
                .header(SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==");
            change(&mut builder);
            builder.body(()).unwrap().into_parts().0
        };
        let set = |name: HeaderName, value: &'static str| {
            move |builder: &mut request::Builder| {
                builder
                    .headers_mut()
                    .unwrap()
                    .insert(&name, HeaderValue::from_static(value));
            }
        };
        assert!(matches!(
            requested(&ask(&|_| {}), false),
            UpgradeRequest::WebSocket(_)
        ));
        assert_eq!(requested(&ask(&|_| {}), true), UpgradeRequest::Broken);
        assert_eq!(
            requested(&ask(&set(SEC_WEBSOCKET_VERSION, "8")), false),
            UpgradeRequest::Broken
        );
        assert_eq!(
            requested(&ask(&set(SEC_WEBSOCKET_KEY, "short")), false),
            UpgradeRequest::Broken
        );
        assert_eq!(
            requested(&ask(&set(UPGRADE, "h2c")), false),
            UpgradeRequest::Http
        );
        assert_eq!(
            requested(&ask(&set(CONNECTION, "close")), false),
            UpgradeRequest::Http
        );
    }

    #[test]
    fn other_protocols_are_asked_for_except_those_that_carry_requests() {
        let ask = |lines: &[&str], has_body| {
            let mut builder = Request::post("/").header(CONNECTION, "upgrade");
            for line in lines {
                builder = builder.header(UPGRADE, *line);
            }
            requested(&builder.body(()).unwrap().into_parts().0, has_body)
        };
        let other = |text| UpgradeRequest::Other(HeaderValue::from_static(text));
        for (lines, passed) in [
            (&["tcp"][..], "tcp"),
            (&["SPDY/3.1"], "SPDY/3.1"),
            (&["h2c, DERP"], "DERP"),
            (&["a/1 ,, b", "H2C", "tls/1.2", "c"], "a/1, b, c"),
            (&["foo, websocket"], "foo"),
            (&["websocketx"], "websocketx"),
        ] {
            assert_eq!(ask(lines, false), other(passed), "{lines:?}");
            assert_eq!(ask(lines, true), UpgradeRequest::Http, "{lines:?}");
        }
        for line in [
            "h2c",
            "H2C-17, h2-14",
            "HTTP/2.0, h2",
            "TLS/1.0, HTTP/1.1",
            "",
            ", ,",
            "a b",
            "a/",
            "/1",
            "a/1/2",
            "tcp, \"x\"",
            "1, 2, 3, 4, 5, 6, 7, 8, 9",
        ] {
            assert_eq!(ask(&[line], false), UpgradeRequest::Http, "{line}");
        }
    }

    #[test]
    fn an_upstream_switches_only_to_what_was_asked_for() {
        let asked = UpgradeRequest::Other(HeaderValue::from_static("SPDY/3.1, tcp"));
        let switch = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(UPGRADE, HeaderValue::from_static(line));
            }
            asked.accepted(&headers).is_some()
        };
        for lines in [&["tcp"][..], &["spdy/3.1"]] {
            assert!(switch(lines), "{lines:?}");
        }
        for lines in [
            &[][..],
            &["h2c"],
            &["tcp, h2c"],
            &["tcp, SPDY/3.1"],
            &[""],
            &["tcp", "tcp"],
        ] {
            assert!(!switch(lines), "{lines:?}");
        }
    }
}
