//! HTTPS requests to the API of a provider: one at a time, with limits on time and size.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_base::{Clock, RetryAfter, Secret, Timestamp};
use culvert_tls::acme::Fetch;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use serde_json::Value;

use crate::error::DnsError;

/// Time limit of a request.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// Maximum size of a response.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Sends requests to the API of a provider.
#[derive(Debug)]
pub(crate) struct Api {
    fetch: Arc<dyn Fetch>,
    clock: Arc<dyn Clock>,
}

/// The JSON API of a provider.
#[derive(Debug)]
pub(crate) struct JsonApi<'a> {
    api: &'a Api,
    /// The base of all URLs, without a slash at the end.
    base: &'a str,
    /// The fields that authenticate each request.
    credentials: HeaderMap,
}

/// A response.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    retry_after: Option<RetryAfter>,
    body: Bytes,
}

impl ApiResponse {
    /// The error for a response that reports one.
    pub(crate) fn error(&self, provider: &str, message: &str) -> DnsError {
        let status = self.status;
        DnsError::new(format_args!(
            "{provider} returned status {status}: {message}"
        ))
        .with_retry_after(self.retry_after)
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as JSON; `null` if it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Api {
    pub(crate) fn new(fetch: Arc<dyn Fetch>, clock: Arc<dyn Clock>) -> Self {
        Self { fetch, clock }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Sends a request. Error responses are `Ok`.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<ApiResponse, DnsError> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = url
            .parse()
            .map_err(|_| DnsError::new("the URL of the provider is not valid"))?;
        *request.headers_mut() = headers;
        let host = request.uri().host().unwrap_or_default().to_owned();
        if request.uri().scheme_str() != Some("https") {
            return Err(DnsError::new("a DNS provider requires https"));
        }
        let sent = self.fetch.fetch(request, ANSWER_BYTES_MAX);
        match tokio::time::timeout(REQUEST_WITHIN, sent).await {
            Ok(Ok(answer)) => Ok(ApiResponse {
                status: answer.status().as_u16(),
                retry_after: answer
                    .headers()
                    .get(RETRY_AFTER)
                    .and_then(|value| RetryAfter::parse(value.to_str().ok()?, self.clock.now())),
                body: answer.into_body(),
            }),
            Ok(Err(cause)) => Err(DnsError::new(format_args!("request to {host}: {cause}"))),
            Err(_) => Err(DnsError::new(format_args!("request to {host}: timed out"))),
        }
    }

    pub(crate) fn json<'a>(&'a self, base: &'a str, credentials: HeaderMap) -> JsonApi<'a> {
        JsonApi {
            api: self,
            base,
            credentials,
        }
    }
}

impl JsonApi<'_> {
    /// Sends JSON, or nothing. Error responses are `Ok`.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<ApiResponse, DnsError> {
        let url = format!("{}{path}", self.base);
        let mut headers = self.credentials.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = body.map(|body| Bytes::from(body.to_string()));
        let body = body.unwrap_or_default();
        self.api.send(method, &url, headers, body).await
    }
}

/// The header `Authorization` with this scheme.
pub(crate) fn authorized(scheme: &str, secret: &Secret) -> Result<HeaderMap, DnsError> {
    let mut headers = HeaderMap::new();
    let value = format!("{scheme} {}", secret.reveal());
    headers.insert(AUTHORIZATION, sensitive(&value)?);
    Ok(headers)
}

/// A header with a secret.
pub(crate) fn header(
    headers: &mut HeaderMap,
    name: &'static str,
    value: &str,
) -> Result<(), DnsError> {
    headers.insert(HeaderName::from_static(name), sensitive(value)?);
    Ok(())
}

fn sensitive(value: &str) -> Result<HeaderValue, DnsError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        DnsError::new("the credentials contain characters that HTTP does not allow")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// A query parameter, encoded.
pub(crate) fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
