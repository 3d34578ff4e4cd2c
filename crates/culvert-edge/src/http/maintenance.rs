//! The response of an endpoint in maintenance, in place of its traffic policy and its upstream.
//!
//! It comes before the policy: a visitor need not sign in to learn that there is nothing, and no rule calls a service that
//! may be in maintenance too. Requests that get past it are judged by the policy as always.
//!
//! What a client says to get past it is in a field and a cookie of the edge. Only the client itself can send them: requests lose
//! them where the edge begins to serve them, so no upstream, event or policy has them, and responses of upstreams cannot set
//! the cookie.

use bytes::Bytes;
use culvert_events::Reason;
use culvert_policy::own_cookies::{EdgeCookies, HOST_PREFIX, MAINTENANCE};
use culvert_policy::problem::Problem;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use http::{Extensions, HeaderValue, Response, StatusCode, request};

use crate::http::exchange::HttpExchange;
use crate::http::fields;
use crate::http::response::{PendingResponse, RequestTraits};
use crate::snapshot::group::Member;

/// What the field of a request says.
#[derive(Clone)]
struct Said(HeaderValue);

/// Removes what only the edge may say, and keeps what the client says to get past a page.
pub(super) fn strip_edges_own(parts: &mut request::Parts) {
    if let Some(said) = fields::strip_edges_own(&mut parts.headers) {
        parts.extensions.insert(Said(said));
    }
}

/// The response to a request that has reached an endpoint in maintenance; `None` if the request goes on.
pub(super) fn answer(
    exchange: &HttpExchange,
    member: &Member,
    request: &Extensions,
    traits: &RequestTraits,
) -> Option<PendingResponse> {
    let maintenance = member.endpoint.maintenance.as_deref()?;
    let conn = &exchange.down().conn;
    let cookie = match conn.info.tls.get() {
        Some(_) => [HOST_PREFIX, "maintenance"].concat(),
        None => MAINTENANCE.to_owned(),
    };
    let field = request.get::<Said>().and_then(|said| said.0.to_str().ok());
    let cookies = request.get::<EdgeCookies>().into_iter();
    let said = cookies.flat_map(|cookies| cookies.values(&cookie));
    if maintenance.lets_pass(conn.info.client.ip(), field.into_iter().chain(said)) {
        return None;
    }
    let mut response = match &maintenance.page {
        Some((text, media)) => page(text, media),
        None => PendingResponse::of(Problem::Maintenance, traits, conn),
    };
    response.head.status = StatusCode::from_u16(maintenance.status).unwrap_or(response.head.status);
    let seconds = HeaderValue::from(maintenance.retry_after.as_secs());
    response.head.headers.insert(RETRY_AFTER, seconds);
    response.reason = Some(Reason::Maintenance);
    Some(response)
}

fn page(text: &str, media: &str) -> PendingResponse {
    let body = Bytes::copy_from_slice(text.as_bytes());
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    if let Ok(media) = HeaderValue::try_from(media) {
        headers.insert(CONTENT_TYPE, media);
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    PendingResponse::whole(response)
}
