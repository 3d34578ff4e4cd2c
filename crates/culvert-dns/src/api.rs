//! HTTPS requests to the API of a provider: one at a time, with limits on time and size.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_base::{Clock, Secret, Timestamp};
use culvert_tls::acme::Fetch;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
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

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl Answer {
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
    ) -> Result<Answer, DnsError> {
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
            Ok(Ok(answer)) => Ok(Answer {
                status: answer.status().as_u16(),
                body: answer.into_body(),
            }),
            Ok(Err(cause)) => Err(DnsError::new(format_args!("request to {host}: {cause}"))),
            Err(_) => Err(DnsError::new(format_args!("request to {host}: timed out"))),
        }
    }

    /// Sends JSON, or nothing.
    pub(crate) async fn json(
        &self,
        method: Method,
        url: &str,
        mut headers: HeaderMap,
        body: Option<&Value>,
    ) -> Result<Answer, DnsError> {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = body.map(|body| Bytes::from(body.to_string()));
        self.send(method, url, headers, body.unwrap_or_default())
            .await
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
