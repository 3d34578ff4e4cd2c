//! HTTPS requests to a certificate authority: one request per connection, with limits on time and size.
//!
//! The operator configures the directory, which contains all other URLs. Requests to non-public addresses are
//! rejected unless the operator allows them.

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_base::{BoxFuture, Clock, RetryAfter};
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

/// Time limit of a request, from the first packet to the last byte of the response.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// Maximum size of a response. Those of authorities are much smaller.
const ANSWER_BYTES_MAX: usize = 1 << 20;

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

tokio::task_local! {
    /// The longest wait that a response to the current step has requested.
    static ASKED: Cell<Option<RetryAfter>>;
}

/// Performs a step. Returns also the longest wait that the authority requested in it.
pub(super) async fn noting_waits<T>(step: impl Future<Output = T>) -> (T, Option<RetryAfter>) {
    let noting = async {
        let outcome = step.await;
        (outcome, ASKED.with(Cell::take))
    };
    ASKED.scope(Cell::new(None), noting).await
}

/// Sends requests.
#[derive(Clone, Debug)]
pub(super) struct Https {
    fetch: Arc<dyn Fetch>,
    clock: Arc<dyn Clock>,
}

impl Https {
    pub(super) fn new(fetch: Arc<dyn Fetch>, clock: Arc<dyn Clock>) -> Self {
        Self { fetch, clock }
    }

    fn note_retry_after(&self, answer: &Response<Bytes>) {
        let asked = answer.headers().get(RETRY_AFTER);
        let asked = asked.and_then(|value| value.to_str().ok());
        let asked = asked.and_then(|value| RetryAfter::parse(value, self.clock.now()));
        // Only requests within a step have a place for it.
        let noted = ASKED.try_with(|longest| longest.set(longest.get().max(asked)));
        noted.unwrap_or_default();
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
            this.note_retry_after(&answer);
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
    use culvert_base::{ManualClock, SystemClock, Timestamp};

    use super::*;

    #[derive(Debug)]
    struct Busy(&'static str);

    impl Fetch for Busy {
        fn fetch(
            &self,
            _: Request<Bytes>,
            _: usize,
        ) -> BoxFuture<'_, Result<Response<Bytes>, Cause>> {
            let response = Response::builder().status(503).header(RETRY_AFTER, self.0);
            Box::pin(async { Ok(response.body(Bytes::new())?) })
        }
    }

    #[tokio::test]
    async fn a_step_returns_the_longest_wait_that_it_was_asked_for() {
        let now = Timestamp::parse("2026-11-20T19:53:18Z").unwrap();
        for (values, expected) in [
            (["7", "3"], Some(7)),
            (["Fri, 20 Nov 2026 20:53:18 GMT", "soon"], Some(3600)),
            (["Fri, 20 Nov 2020 20:53:18 GMT", "soon"], Some(0)),
            (["soon", "later"], None),
        ] {
            let step = async {
                for value in values {
                    let https = Https::new(Arc::new(Busy(value)), Arc::new(ManualClock::at(now)));
                    let request = Request::get("https://authority.example/");
                    let request = request.body(BodyWrapper::from(Vec::new())).unwrap();
                    assert!(https.request(request).await.is_ok());
                }
            };
            let ((), asked) = noting_waits(step).await;
            let expected = expected.map(|seconds| RetryAfter::new(Duration::from_secs(seconds)));
            assert_eq!(asked, expected, "{values:?}");
        }
    }

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
            let asked = Https::new(Arc::new(Nothing), Arc::new(SystemClock))
                .request(request.unwrap())
                .await;
            let error = asked.err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
