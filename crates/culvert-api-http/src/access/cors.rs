//! Cross-origin resource sharing (contract: management API 1.12).
//!
//! Any origin may call the API with a key in a header. Only pages of the API's own origin may send credentials that
//! browsers add automatically. The API reads no cookie, and pages cannot use `Basic` (see `auth`).

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ALLOW, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};

use crate::response::answer::Body;

const TRUE: HeaderValue = HeaderValue::from_static("true");
/// Fields of responses that pages may read, beside those that they always may.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "allow, culvert-applied, etag, idempotent-replayed, ngrok-operation-id, ratelimit, ratelimit-policy, retry-after",
);
const VARY_ORIGIN: HeaderValue = HeaderValue::from_static("origin");

/// Whether the request is a preflight request: `OPTIONS` with `Origin` and `Access-Control-Request-Method`.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The response to a preflight request. `methods` are those of the path; `None` if the path is unknown.
pub fn preflight(headers: &HeaderMap, methods: Option<HeaderValue>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    if let Some(methods) = methods {
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
    if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// The response to `OPTIONS` that is no preflight request: the methods of the path.
pub fn options(methods: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(ALLOW, methods);
    response
}

/// Whether `origin` equals the scheme, host and port of the URL `base`.
pub fn is_of(origin: &HeaderValue, base: &str) -> bool {
    let start = base.find("://").map_or(0, |at| at + 3);
    let rest = base.get(start..).unwrap_or_default();
    let end = rest.find('/').map_or(base.len(), |at| start + at);
    let own = base.get(..end).unwrap_or_default();
    !own.is_empty() && origin.as_bytes().eq_ignore_ascii_case(own.as_bytes())
}

/// Allows the page at `origin` to read this response. Pages of the API's own origin may send credentials.
pub fn admit(headers: &mut HeaderMap, origin: HeaderValue, is_own: bool) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if is_own {
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE);
    }
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.append(VARY, VARY_ORIGIN);
}
