//! The response of an endpoint in maintenance, in place of its traffic policy and its upstream.
//!
//! It comes before the policy: a visitor need not sign in to learn that there is nothing, and no rule calls a service that
//! may be in maintenance too. The policy decides about requests
//! that get past it, as always.
//!
//! What a client says to get past it is in a field and a cookie of the edge. Only the client itself can send them: requests lose
//! them where the edge begins to serve them, so no upstream, event or policy has them, and responses of upstreams cannot set
//! the cookie.

use std::net::IpAddr;

use bytes::Bytes;
use culvert_edge_config::Maintenance;
use culvert_policy::own_cookies::{EdgeCookies, HOST_PREFIX, MAINTENANCE};
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{Extensions, HeaderValue, Response, request};

use crate::http::fields;

/// What the field of a request says.
#[derive(Clone)]
struct Said(HeaderValue);

/// Removes what only the edge may say, and keeps what the client says to get past a page.
pub(super) fn strip_edges_own(parts: &mut request::Parts) {
    if let Some(said) = fields::strip_edges_own(&mut parts.headers) {
        parts.extensions.insert(Said(said));
    }
}

/// Whether a request of the client at this address gets past it.
pub(super) fn lets_pass(
    maintenance: &Maintenance,
    request: &Extensions,
    client: IpAddr,
    is_tls: bool,
) -> bool {
    let cookie = match is_tls {
        true => [HOST_PREFIX, "maintenance"].concat(),
        false => MAINTENANCE.to_owned(),
    };
    let field = request.get::<Said>().and_then(|said| said.0.to_str().ok());
    let cookies = request.get::<EdgeCookies>().into_iter();
    let said = cookies.flat_map(|cookies| cookies.values(&cookie));
    maintenance.lets_pass(client, field.into_iter().chain(said))
}

/// The page of an endpoint, with its media type.
pub(super) fn page(text: &str, media: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::copy_from_slice(text.as_bytes()));
    let headers = response.headers_mut();
    if let Ok(media) = HeaderValue::try_from(media) {
        headers.insert(CONTENT_TYPE, media);
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
