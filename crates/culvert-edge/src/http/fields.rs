//! Header fields that the edge changes: hop-by-hop fields, forwarding fields, and fields that are banned in trailers.

use culvert_http::fields::{
    folded, has_token, is_banned_in_trailers, is_of_one_hop, is_plain, plain_number, strip,
};
use culvert_policy::conn::ConnInfo;
use culvert_policy::own_cookies;
use culvert_policy::problem::{MAINTENANCE_NAME, is_edges_own, is_edges_request};
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TE};

/// The beginning of the names that gRPC gives to fields and trailers.
pub(crate) const GRPC_PREFIX: &str = "grpc-";
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// Added to the size of each field (RFC 9113 6.5.2).
pub(crate) const FIELD_OVERHEAD: usize = 32;
/// The expectation that RFC 9110 defines.
pub(crate) const CONTINUE: &str = "100-continue";
pub(crate) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Whether it is a forwarding field.
pub(crate) fn says_who_calls(name: &str) -> bool {
    name == "forwarded" || name == "x-real-ip" || name.starts_with("x-forwarded-")
}

/// Turns a client's fields into those of the edge's request: removes hop-by-hop fields and adds forwarding fields.
///
/// `authority` is the client's authority in normal form.
pub(crate) fn to_upstream(headers: &mut HeaderMap, info: &ConnInfo, authority: HeaderValue) {
    let takes_trailers = has_token(headers, &TE, b"trailers");
    let trusted = info.is_trusted;
    // No trailers follow, or such that need no announcement.
    strip(headers, |name| {
        matches!(name, "expect" | "trailer") || (!trusted && says_who_calls(name))
    });
    if let Some(length) = headers.get_mut(CONTENT_LENGTH) {
        plain_number(length);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // Those of untrusted peers were removed.
    let has = |headers: &HeaderMap, name: HeaderName| trusted && headers.contains_key(name);
    let mut client = info.client_value();
    if has(headers, X_FORWARDED_FOR) {
        client = joined(headers, &client);
    }
    headers.insert(X_FORWARDED_FOR, client);
    if !has(headers, X_FORWARDED_PROTO) {
        let scheme = if info.tls.get().is_some() {
            "https"
        } else {
            "http"
        };
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    }
    if !has(headers, X_FORWARDED_HOST) {
        headers.insert(X_FORWARDED_HOST, authority.clone());
    }
    headers.insert(HOST, authority);
}

/// The chain of a trusted proxy, with the proxy itself.
fn joined(headers: &HeaderMap, client: &HeaderValue) -> HeaderValue {
    let mut all = Vec::new();
    for value in headers.get_all(X_FORWARDED_FOR) {
        all.extend_from_slice(value.as_bytes());
        all.extend_from_slice(b", ");
    }
    all.extend_from_slice(client.as_bytes());
    HeaderValue::from_bytes(&all).unwrap_or_else(|_| client.clone())
}

/// The beginning of the names that the edge gives to fields of requests.
const EDGE_PREFIX: &str = "culvert-";

/// Whether the edge sets or interprets a field.
fn is_ours(name: &str) -> bool {
    let is_other = matches!(name, "content-length" | "expect" | "host" | "trailer");
    is_other
        || is_edges_own(name)
        || name.starts_with(EDGE_PREFIX)
        || is_edges_request(name)
        || is_of_one_hop(name)
        || says_who_calls(name)
        || name.starts_with("sec-websocket-")
}

/// Removes a client's fields that only the edge sends to upstreams, in any spelling.
pub(crate) fn strip_edges_own(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let is_own = |name: &&HeaderName| is_edges_request(name.as_str());
    let names: Vec<HeaderName> = headers.keys().filter(is_own).cloned().collect();
    let mut said = None;
    for name in names {
        let is_said = name == MAINTENANCE_NAME;
        let removed = headers.remove(name);
        said = said.or(removed.filter(|_| is_said));
    }
    said
}

/// Removes a client's fields that servers may confuse with others: names with an underscore, unless those are kept and
/// not spellings of the edge's names, and names with other characters that fold to a field of the edge or to another
/// field of the message.
pub(crate) fn strip_mixed_up(headers: &mut HeaderMap, keeps_underscores: bool) {
    if headers.keys().all(is_plain) {
        return;
    }
    let is_mixed_up = |name: &&HeaderName| {
        if is_plain(name) {
            return false;
        }
        let text = name.as_str();
        let is_odd = |byte: u8| byte != b'_' && byte != b'-' && !byte.is_ascii_alphanumeric();
        let read = folded(name);
        if !text.bytes().any(is_odd) {
            return !keeps_underscores || read.starts_with(EDGE_PREFIX);
        }
        let is_other = |other: &HeaderName| other != *name && folded(other) == read;
        text.contains('_') && !keeps_underscores || is_ours(&read) || headers.keys().any(is_other)
    };
    let names: Vec<HeaderName> = headers.keys().filter(is_mixed_up).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Turns an upstream's fields into those of the edge's response. It cannot set cookies of the edge.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    own_cookies::drop_set_cookies(headers);
    to_client_hop(headers);
}

/// Like [`to_client`], for a response to which the edge has added its cookies.
pub(crate) fn to_client_hop(headers: &mut HeaderMap) {
    strip(headers, is_edges_own);
    if let Some(length) = headers.get_mut(CONTENT_LENGTH) {
        plain_number(length);
    }
}

/// Removes from the trailers of a request all that gRPC does not define: no policy has seen them, and a server may read a
/// trailer as a field of the head.
pub(crate) fn strip_request_trailers(trailers: &mut HeaderMap) {
    let is_grpc = |name: &str| {
        let rest = name.strip_prefix(GRPC_PREFIX);
        rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
    };
    strip(trailers, |name| !is_grpc(name));
}

/// Removes fields that trailers of a response must not have: framing, routing, credentials, and fields that change how the
/// body is read.
pub(crate) fn strip_trailers(trailers: &mut HeaderMap) {
    strip(trailers, |name| {
        is_banned_in_trailers(name)
            || says_who_calls(name)
            || is_edges_own(name)
            || is_edges_request(name)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn hop_by_hop_fields_are_not_forwarded() {
        let mut headers = fields(&[
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
            ("ngrok-error-code", "ERR_NGROK_1"),
            ("ngrok_error_code", "ERR_NGROK_1"),
            ("ngrok.error-code", "ERR_NGROK_1"),
            ("culvert-request-id", "1"),
            ("culvert_request-id", "1"),
            ("ngrok-error-codes", "3"),
            ("x-else", "2"),
        ]);
        to_client(&mut headers);
        let stays = [("ngrok-error-codes", "3"), ("x-else", "2")];
        assert_eq!(headers, fields(&stays));
    }

    #[test]
    fn fields_that_belong_in_a_head_are_removed_from_trailers() {
        let mut trailers = fields(&[
            ("content-length", "1"),
            ("set-cookie", "a=b"),
            ("grpc-status", "0"),
            ("ngrok_error_code", "ERR_NGROK_1"),
            ("culvert-assertion", "forged"),
            ("culvert.assertion", "forged"),
            ("culvert_replay-of", "forged"),
        ]);
        strip_trailers(&mut trailers);
        assert_eq!(trailers, fields(&[("grpc-status", "0")]));
    }

    #[test]
    fn trailers_of_requests_have_names_of_grpc_only() {
        let mut trailers = fields(&[
            ("authorization", "a"),
            ("connection", "grpc-status"),
            ("culvert.replay.of", "ev_1"),
            ("grpc-message", "m"),
            ("grpc-status", "0"),
            ("grpc-status.a", "0"),
            ("grpc_status", "0"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-user", "anna"),
        ]);
        strip_request_trailers(&mut trailers);
        assert_eq!(trailers, fields(&[("grpc-message", "m")]));
    }
}
