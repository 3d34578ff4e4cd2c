//! HTTPS requests to a certificate authority: one request per connection, with limits on time and size.
//!
//! The operator configures the directory, which contains all other URLs. Requests to non-public addresses are
//! rejected unless the operator allows them.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::BoxFuture;
use culvert_base::sync::lock;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

/// Time limit of a request, from the first packet to the last byte of the response.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// Maximum size of a response. Those of authorities are much smaller.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum of the waiting time that an authority may request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Why a request has no response.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Sends one request to a certificate authority, on a new connection.
pub trait Fetch: Send + Sync + fmt::Debug {
    /// The complete response, with a body of at most `bytes_max` bytes. The request's URI is an absolute `https` URL.
    fn fetch(
        &self,
        request: Request<Bytes>,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Response<Bytes>, Cause>>;
}

/// Sends requests. Clones share the last `Retry-After` value.
#[derive(Clone, Debug)]
pub(super) struct Https {
    fetch: Arc<dyn Fetch>,
    /// The `Retry-After` value of the last error response.
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Https {
    pub(super) fn new(fetch: Arc<dyn Fetch>) -> Self {
        Self {
            fetch,
            retry_after: Arc::default(),
        }
    }

    /// Takes the waiting time that the last error response requested.
    pub(super) fn take_retry_after(&self) -> Option<Duration> {
        lock(&self.retry_after).take()
    }

    fn heard(&self, answer: &Response<Bytes>) {
        if answer.status().is_success() {
            return;
        }
        let seconds = answer.headers().get(RETRY_AFTER);
        let seconds = seconds.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let wait = seconds.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
        *lock(&self.retry_after) = wait;
    }
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            let host = request.uri().host().unwrap_or_default().to_owned();
            let answered = tokio::time::timeout(REQUEST_WITHIN, exchange(&*this.fetch, request));
            let answer = match answered.await {
                Ok(answer) => answer.map_err(|cause| format!("request to {host}: {cause}")),
                Err(_) => Err(format!("request to {host}: timed out")),
            };
            let answer = answer.map_err(|why| Error::Other(why.into()))?;
            this.heard(&answer);
            Ok(BytesResponse::from(answer.map(Full::new)))
        })
    }
}

async fn exchange(
    fetch: &dyn Fetch,
    request: Request<BodyWrapper<Bytes>>,
) -> Result<Response<Bytes>, Cause> {
    if request.uri().scheme_str() != Some("https") {
        return Err("a certificate authority requires https".into());
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let request = Request::from_parts(head, body);
    fetch.fetch(request, ANSWER_BYTES_MAX).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl Fetch for Nothing {
        fn fetch(
            &self,
            _: Request<Bytes>,
            _: usize,
        ) -> BoxFuture<'_, Result<Response<Bytes>, Cause>> {
            Box::pin(async { Err("it was asked".into()) })
        }
    }

    #[tokio::test]
    async fn an_authority_is_asked_over_https_alone() {
        for (url, why) in [
            ("http://authority.example/", "requires https"),
            ("https://authority.example/", "it was asked"),
        ] {
            let request = Request::get(url).body(BodyWrapper::from(Vec::new()));
            let asked = Https::new(Arc::new(Nothing))
                .request(request.unwrap())
                .await;
            let error = asked.err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
