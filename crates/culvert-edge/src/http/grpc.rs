//! Errors that the edge makes, in the form that gRPC clients read: `grpc-status` and `grpc-message` in a head without a
//! body ("Trailers-Only", <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).
//!
//! The HTTP status stays, for events and for programs that know no gRPC: clients prefer `grpc-status`
//! (<https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>, which has the table below).

use std::fmt::Write;

use bytes::Bytes;
use culvert_http::fields::is_grpc_type;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, StatusCode, Version, response};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Most bytes of a body that become the message.
const MESSAGE_BYTES_MAX: usize = 1 << 10;

/// The content type of a request, if that makes it a call: of gRPC, which needs HTTP/2, or of gRPC-Web. All calls use POST: a
/// cache, which does not know the content type of a request, must not keep an error in this form for other clients.
pub(crate) fn call_type(
    version: Version,
    method: &Method,
    content_type: Option<&[u8]>,
) -> Option<HeaderValue> {
    const WEB: &[u8] = b"application/grpc-web";
    let value = content_type.filter(|_| *method == Method::POST)?;
    let begins = value.get(..WEB.len());
    let is_web = begins.is_some_and(|start| start.eq_ignore_ascii_case(WEB));
    let is_call = is_grpc_type(value) && (is_web || version == Version::HTTP_2);
    is_call.then(|| HeaderValue::from_bytes(value).ok())?
}

/// Turns an error with this body into the end of a call. Its body is not sent. Leaves one that a policy wrote for gRPC
/// clients as it is, and responses that are no errors.
pub(crate) fn end_call(
    head: &mut response::Parts,
    body: &Bytes,
    content_type: HeaderValue,
) -> bool {
    let is_error = head.status.is_client_error() || head.status.is_server_error();
    if !is_error || head.headers.contains_key(GRPC_STATUS) {
        return false;
    }
    let is_text = head
        .headers
        .get(CONTENT_TYPE)
        .is_none_or(|kind| !kind.as_bytes().starts_with(b"text/html"));
    let message = match is_text && !body.is_empty() {
        true => encoded(body.get(..MESSAGE_BYTES_MAX).unwrap_or(body)),
        false => encoded(
            head.status
                .canonical_reason()
                .unwrap_or_default()
                .as_bytes(),
        ),
    };
    let headers = &mut head.headers;
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(GRPC_STATUS, HeaderValue::from(status_of(head.status)));
    // A policy may have added a message without a status.
    if !headers.contains_key(GRPC_MESSAGE)
        && let Ok(message) = HeaderValue::try_from(message)
    {
        headers.insert(GRPC_MESSAGE, message);
    }
    true
}

/// The status of gRPC for one of HTTP.
fn status_of(status: StatusCode) -> u16 {
    match status {
        // INTERNAL
        StatusCode::BAD_REQUEST => 13,
        // UNAUTHENTICATED
        StatusCode::UNAUTHORIZED => 16,
        // PERMISSION_DENIED
        StatusCode::FORBIDDEN => 7,
        // UNIMPLEMENTED
        StatusCode::NOT_FOUND => 12,
        // UNAVAILABLE
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => 14,
        // UNKNOWN
        _ => 2,
    }
}

/// A text as a `grpc-message`: everything but visible ASCII and blanks is escaped, and `%`.
fn encoded(text: &[u8]) -> String {
    let text = text.trim_ascii();
    let mut out = String::with_capacity(text.len());
    for &byte in text {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                // Writing to a string cannot fail.
                let _ok = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Response};

    use super::*;

    fn ended(status: u16, kind: &str, body: &'static str) -> (bool, HeaderMap) {
        let response = Response::builder()
            .status(status)
            .header(CONTENT_TYPE, kind)
            .header(CONTENT_LENGTH, body.len());
        let (mut head, ()) = response.body(()).unwrap().into_parts();
        let call = HeaderValue::from_static("application/grpc+proto");
        let is_ended = end_call(&mut head, &Bytes::from_static(body.as_bytes()), call);
        assert_eq!(head.status, status);
        (is_ended, head.headers)
    }

    #[test]
    fn errors_have_the_status_of_the_table_and_their_text() {
        for (status, expected) in [
            (400, "13"),
            (401, "16"),
            (403, "7"),
            (404, "12"),
            (413, "2"),
            (429, "14"),
            (500, "2"),
            (502, "14"),
            (503, "14"),
            (504, "14"),
        ] {
            let (is_ended, headers) = ended(status, "text/plain", "50% é\n");
            assert!(is_ended);
            assert_eq!(headers[GRPC_STATUS], expected);
            assert_eq!(headers[GRPC_MESSAGE], "50%25 %C3%A9");
            assert_eq!(headers[CONTENT_TYPE], "application/grpc+proto");
            assert!(!headers.contains_key(CONTENT_LENGTH));
        }
        assert_eq!(ended(403, "text/html", "<p>").1[GRPC_MESSAGE], "Forbidden");
        assert_eq!(ended(502, "text/plain", "").1[GRPC_MESSAGE], "Bad Gateway");
        for status in [200, 204, 302, 304] {
            assert!(!ended(status, "text/plain", "x").0, "{status}");
        }
    }
}
