//! Calls to Amazon's services: endpoints, signatures, credentials.
//!
//! `culvert-aws` computes signatures; requests use our client behind the address guard. A call that fails
//! because of its credentials is repeated once with fresh ones, and a call that fails because of clock skew once with
//! the service's time (contract: destinations 3).
//!
//! Not here: the operations (`target`), retries (`worker`).

pub(crate) mod answer;
pub(crate) mod arn;
pub(crate) mod auth;
mod keys;

use std::fmt;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use culvert_aws::{Keys, SignableBody};
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::channel::{Channel, Sender};
use http_body_util::{Either, Full};
use url::Url;

use culvert_base::{BoxFuture, Refusal, Timestamp};
use culvert_target::DestinationIds;
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::{
    ANSWER_BYTES_MAX, EMPTY_BODY_FOR, Http, HttpRequest, HttpResponse, Net, Success,
};
use culvert_target::settings::aws::AwsSettings;

use arn::Arn;
use auth::Auth;
use keys::Assumed;

/// Time limit of a call.
const DEADLINE: Duration = Duration::from_secs(13);

/// One service in one region, for one destination.
pub(crate) struct Aws {
    net: Net,
    http: Http,
    service: &'static str,
    region: String,
    endpoint: Url,
    credentials: Credentials,
    /// Difference between the service's clock and ours, in milliseconds.
    skew_ms: AtomicI64,
    /// Another region that a response named.
    elsewhere: Mutex<Option<String>>,
}

impl fmt::Debug for Aws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aws")
            .field("service", &self.service)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

enum Credentials {
    Static(Keys),
    Role(Box<Assumed>),
}

/// One request to a service.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Payload<'a>,
    pub(crate) deadline: Duration,
    pub(crate) answer_bytes_max: usize,
}

/// The body of a request.
pub(crate) enum Payload<'a> {
    Whole(Bytes),
    /// In pieces, because it may not fit into memory.
    Fed(&'a dyn Feed),
}

/// A body that can be produced again for each attempt.
pub(crate) trait Feed: Sync {
    /// Its SHA-256 in hexadecimal digits.
    fn sha256(&self) -> &str;

    /// Its length in bytes.
    fn length(&self) -> u64;

    /// Produces it.
    fn feed(&self, to: Sender<Bytes, io::Error>) -> BoxFuture<'_, ()>;
}

impl Aws {
    /// Opens the service that `arn` belongs to.
    pub(crate) fn open(
        service: &'static str,
        arn: &Arn<'_>,
        auth: &Auth,
        net: &Net,
        settings: &AwsSettings,
        ids: DestinationIds<'_>,
    ) -> Result<Self, Refusal> {
        let (endpoint, http) = endpoint(settings, service, arn.partition, arn.region, net);
        let credentials = match auth.keys() {
            Some(keys) => Credentials::Static(keys),
            None => Credentials::Role(Box::new(Assumed::new(
                auth.role_arn().unwrap_or_default(),
                arn,
                net,
                settings,
                ids,
            ))),
        };
        Ok(Self {
            net: net.clone(),
            http,
            service,
            region: arn.region.to_owned(),
            endpoint,
            credentials,
            skew_ms: AtomicI64::new(0),
            elsewhere: Mutex::new(None),
        })
    }

    /// The endpoint of the service.
    pub(crate) fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    /// Another region that a response named.
    pub(crate) fn elsewhere(&self) -> Option<String> {
        let elsewhere = self.elsewhere.lock();
        elsewhere
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .clone()
    }

    /// Makes a call of the JSON protocol.
    ///
    /// # Errors
    /// The failure's code is the service's own where it gave one.
    pub(crate) async fn json(
        &self,
        operation: &'static str,
        body: Bytes,
    ) -> Result<HttpResponse, Failure> {
        let mut headers = HeaderMap::new();
        // The version of the protocol in the model of the service.
        let content_type = match self.service {
            "sqs" => "application/x-amz-json-1.0",
            _ => "application/x-amz-json-1.1",
        };
        let content_type = HeaderValue::from_static(content_type);
        headers.insert(header::CONTENT_TYPE, content_type);
        headers.insert("x-amz-target", HeaderValue::from_static(operation));
        self.call(Call {
            method: Method::POST,
            url: self.endpoint.clone(),
            headers,
            body: Payload::Whole(body),
            deadline: DEADLINE,
            // Responses to batches have a few hundred bytes for each of 500 records.
            answer_bytes_max: 8 * ANSWER_BYTES_MAX,
        })
        .await
    }

    /// Makes a signed call.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<HttpResponse, Failure> {
        let keys = self.keys(None).await?;
        match self.attempt(&call, &keys).await {
            Err((failure, Some(server_time))) => {
                let ahead = server_time.unix_millis() - self.net.now().unix_millis();
                self.skew_ms.store(ahead, Ordering::Relaxed);
                tracing::warn!(
                    ahead_ms = ahead,
                    "clock skew with {}: {failure}",
                    self.service
                );
                let again = self.attempt(&call, &keys).await;
                again.map_err(|(failure, _)| failure)
            }
            Err((failure, None)) if failure.class == FailureClass::Auth => {
                if let Credentials::Static(_) = self.credentials {
                    return Err(failure);
                }
                let keys = self.keys(Some(&keys)).await?;
                let again = self.attempt(&call, &keys).await;
                again.map_err(|(failure, _)| failure)
            }
            other => other.map_err(|(failure, _)| failure),
        }
    }

    /// The keys to sign with; other keys than `refused`, if possible.
    async fn keys(&self, refused: Option<&Keys>) -> Result<Keys, Failure> {
        match &self.credentials {
            Credentials::Static(keys) => Ok(keys.clone()),
            Credentials::Role(role) => role.keys(refused).await,
        }
    }

    /// Makes one attempt. If it fails because of clock skew, the error has the service's time.
    async fn attempt(
        &self,
        call: &Call<'_>,
        keys: &Keys,
    ) -> Result<HttpResponse, (Failure, Option<Timestamp>)> {
        let skew = self.skew_ms.load(Ordering::Relaxed);
        let now = Timestamp::from_unix_millis(self.net.now().unix_millis().saturating_add(skew));
        let mut order = signed(call, keys, self.service, &self.region, now)
            .map_err(|failure| (failure, None))?;
        let sent = match call.body {
            Payload::Whole(_) => self.http.send(order).await,
            Payload::Fed(feed) => {
                let (sender, pieces) = Channel::new(1);
                order.body = Either::Right(pieces);
                order
                    .headers
                    .insert(header::CONTENT_LENGTH, feed.length().into());
                let fed = async {
                    feed.feed(sender).await;
                    std::future::pending().await
                };
                // A response may come before the whole body was sent.
                tokio::select! {
                    sent = self.http.send(order) => sent,
                    never = fed => never,
                }
            }
        };
        let answer = sent.map_err(|failure| (failure, None))?;
        answer::judge(&answer, &keys.secrets()).map_err(|failure| {
            let region = answer.headers.get("x-amz-bucket-region");
            if let Some(region) = region.and_then(|region| region.to_str().ok())
                && region != self.region
                && arn::is_region(region)
            {
                let elsewhere = self.elsewhere.lock();
                *elsewhere.unwrap_or_else(|poisoned| poisoned.into_inner()) =
                    Some(region.to_owned());
            }
            let date = answer.headers.get(header::DATE);
            let time = date
                .and_then(|value| Timestamp::parse_http_date(value.to_str().ok()?))
                .filter(|_| answer::is_about_the_clock(&failure));
            (failure, time)
        })?;
        Ok(answer)
    }
}

/// The endpoint of a service, and a client for it.
fn endpoint(
    settings: &AwsSettings,
    service: &str,
    partition: &str,
    region: &str,
    net: &Net,
) -> (Url, Http) {
    match settings
        .endpoints
        .get(service)
        .or(settings.endpoint.as_ref())
    {
        Some(elsewhere) => (elsewhere.clone(), net.http_to_named_by_operator()),
        None => {
            let suffix = match partition {
                "aws-cn" => "amazonaws.com.cn",
                _ => "amazonaws.com",
            };
            let derived = Url::parse(&format!("https://{service}.{region}.{suffix}/"))
                .expect("regions were checked to be letters, digits and dashes");
            (derived, net.http())
        }
    }
}

/// The request with its signature (Signature Version 4).
fn signed(
    call: &Call<'_>,
    keys: &Keys,
    service: &str,
    region: &str,
    now: Timestamp,
) -> Result<HttpRequest, Failure> {
    let body = match &call.body {
        Payload::Whole(body) => SignableBody::Bytes(body),
        Payload::Fed(feed) => SignableBody::Precomputed(feed.sha256().to_owned()),
    };
    let (method, url) = (&call.method, call.url.as_str());
    let place = (service, region);
    let headers = culvert_aws::sign(keys, place, now, method, url, &call.headers, body)
        .map_err(|error| Failure::new(FailureClass::Config, "signature", error.to_string()))?;
    Ok(HttpRequest {
        method: call.method.clone(),
        url: call.url.clone(),
        headers,
        body: Either::Left(match &call.body {
            Payload::Whole(body) => Full::new(body.clone()),
            Payload::Fed(_) => Full::default(),
        }),
        deadline: call.deadline,
        answer_bytes_max: call.answer_bytes_max,
        // The status alone tells whether an object is stored; other bodies have the result of each record.
        success: match call.method {
            Method::PUT => Success::Head(EMPTY_BODY_FOR),
            _ => Success::Whole,
        },
    })
}

#[cfg(test)]
mod tests;
