//! HTTPS towards an authority: one request on a connection of its own, with a limit on everything.
//!
//! The operator names the directory, and the directory names everything else: no request goes to an
//! address that is not public unless the operator allows it.

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

/// From the first packet to the last byte of the answer.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// No answer of an authority is nearly as long.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest wait an authority may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Why a request has no response.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Sends one request to an authority, on a new connection.
pub trait Fetch: Send + Sync + fmt::Debug {
    /// The whole response, whose body may have at most `bytes_max` bytes. The request's URI is an absolute
    /// URL with the scheme `https`.
    fn fetch(
        &self,
        request: Request<Bytes>,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Response<Bytes>, Cause>>;
}

/// Sends requests. Clones share what was last heard of waiting.
#[derive(Clone, Debug)]
pub(super) struct Https {
    fetch: Arc<dyn Fetch>,
    /// What the last answer that was a refusal asked for.
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Https {
    pub(super) fn new(fetch: Arc<dyn Fetch>) -> Self {
        Self {
            fetch,
            retry_after: Arc::default(),
        }
    }

    /// How long the last refusal asked us to wait.
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
