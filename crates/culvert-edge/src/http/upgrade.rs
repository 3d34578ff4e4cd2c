//! Upgrades to WebSocket, the only supported protocol. Both sides must complete the handshake.
//!
//! A client requests it with an HTTP/1.1 upgrade or an extended CONNECT of HTTP/2 (RFC 8441), and the edge requests it
//! from the upstream in the form of the upstream's protocol. Between the two, request and response have the HTTP/1.1 form:
//! routes, policies and events see one kind of handshake.
//!
//! Bytes of the client wait in [`Http1Server`](crate::http1::server::Http1Server) until the upstream has sent a 101 with a
//! valid `Sec-WebSocket-Accept`. After any other response the connection ends, and these bytes are dropped.

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
    /// None. Upgrades to unknown protocols are ignored.
    Http,
    /// A WebSocket over HTTP/1.1, with the client's `Sec-WebSocket-Key`.
    WebSocket(HeaderValue),
    /// A WebSocket in a stream of HTTP/2, with a new `Sec-WebSocket-Key` for the upstream.
    Stream(HeaderValue),
    /// A WebSocket with an invalid handshake.
    Broken,
}

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
    ask(&mut parts.headers);
    if let Ok(protocol) = HeaderValue::from_str(protocol.as_str()) {
        parts.headers.insert(UPGRADE, protocol);
    }
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
    let is_websocket = parts.version == Version::HTTP_11
        && protocol.as_bytes().eq_ignore_ascii_case(b"websocket")
        && has_token(&parts.headers, &CONNECTION, b"upgrade");
    if !is_websocket {
        return UpgradeRequest::Http;
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

/// A random `Sec-WebSocket-Key`.
fn fresh_key() -> HeaderValue {
    let mut bytes = [0; 16];
    OsEntropy.fill(&mut bytes);
    HeaderValue::try_from(STANDARD.encode(bytes)).expect("base64 is made of header characters")
}

/// Adds the hop-by-hop fields of a handshake again, which were removed with those of the client's hop.
pub(crate) fn ask(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Converts a handshake to an extended CONNECT (RFC 8441) and returns the client's `Sec-WebSocket-Key`. `None` if the
/// request is no handshake.
pub(crate) fn into_stream<B>(request: &mut Request<B>) -> Option<HeaderValue> {
    request.headers_mut().remove(UPGRADE)?;
    request.headers_mut().remove(CONNECTION);
    let key = request.headers_mut().remove(SEC_WEBSOCKET_KEY)?;
    *request.method_mut() = Method::CONNECT;
    let protocol = Protocol::from_static("websocket");
    request.extensions_mut().insert(protocol);
    Some(key)
}

/// Converts the response to an extended CONNECT to that of a handshake.
pub(crate) fn accept(parts: &mut response::Parts, key: &HeaderValue) {
    parts.status = StatusCode::SWITCHING_PROTOCOLS;
    ask(&mut parts.headers);
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
pub(crate) fn is_accepted(headers: &HeaderMap, key: &HeaderValue) -> bool {
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
}
