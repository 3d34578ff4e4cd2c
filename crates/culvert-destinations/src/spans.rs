//! Exports spans by OTLP over HTTP, in protobuf (specification 1.5), with the client and the messages that the `otlp`
//! destination uses too.
//!
//! One task takes spans from the queue of a [`Tracer`] and sends them in batches. While the receiver is away, a batch is
//! sent again with pauses that grow, the queue fills, and what has no room is dropped and counted there. No request waits.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{RetryAfter, Secret};
use culvert_target::failure::{Failure, FailureClass, scrub};
use culvert_target::net::{Http, HttpRequest, Net};
use culvert_traces::{AttributeValue, FinishedTrace, SpanKind, Tracer};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use crate::client::http_failure::failed;
use crate::client::request_body::gzipped;

/// A batch is sent when it has this many spans, or after this time.
const BATCH_SPANS: usize = 512;
const BATCH_FOR: Duration = Duration::from_secs(1);
/// Time limit of a request.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long to wait for the body of a successful response, which may report rejected spans.
const MESSAGE_FOR: Duration = Duration::from_secs(2);
/// The first pause before a batch is sent again, which doubles each time, the longest, and how long it is tried.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
const RETRY_WITHIN: Duration = Duration::from_secs(300);
/// How long the spans that are left may take when the server stops.
const REST_WITHIN: Duration = Duration::from_secs(3);

/// Where spans are sent, and the description of their source.
#[derive(Clone, Debug)]
pub struct SpanReceiver {
    /// The base URL; `/v1/traces` is appended.
    pub endpoint: Url,
    /// Further headers.
    pub headers: Vec<(HeaderName, Secret)>,
    /// The name of this node.
    pub node: String,
    /// The version of the server.
    pub version: &'static str,
}

/// Sends the spans of a tracer.
#[derive(Debug)]
pub struct SpanExporter {
    tracer: Arc<Tracer>,
    url: Url,
    headers: HeaderMap,
    secrets: Vec<Secret>,
    resource: Resource,
    http: Http,
    net: Net,
}

impl SpanExporter {
    /// An exporter to a receiver that the operator named, so no rule about addresses applies.
    pub fn new(tracer: Arc<Tracer>, receiver: SpanReceiver, net: &Net) -> Self {
        let mut url = receiver.endpoint;
        url.set_path(&format!("{}/v1/traces", url.path().trim_end_matches('/')));
        let mut headers = HeaderMap::new();
        for (name, value) in &receiver.headers {
            if let Ok(mut value) = HeaderValue::from_str(value.reveal()) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        headers.insert(header::CONTENT_TYPE, protobuf);
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        Self {
            tracer,
            url,
            headers,
            secrets: receiver
                .headers
                .into_iter()
                .map(|(_, value)| value)
                .collect(),
            resource: Resource {
                attributes: vec![
                    pair("service.name", text("culvert")),
                    pair("service.version", text(receiver.version)),
                    pair("service.instance.id", text(&receiver.node)),
                ],
                ..Resource::default()
            },
            http: net.http_to_named_by_operator(),
            net: net.clone(),
        }
    }

    /// Sends spans until `stop`, and then those that are left, for a few seconds at most.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let (mut is_stopping, mut is_failing) = (false, false);
        while !is_stopping {
            let due = async {
                self.tracer.filled(1).await;
                timeout(BATCH_FOR, self.tracer.filled(BATCH_SPANS))
                    .await
                    .ok();
            };
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = due => {}
            }
            let batch = self.tracer.take(BATCH_SPANS);
            let mut sending = pin!(self.send(&batch, &mut is_failing));
            tokio::select! {
                biased;
                () = &mut sending => {}
                () = &mut stop => {
                    is_stopping = true;
                    if timeout(REST_WITHIN, sending).await.is_err() {
                        self.tracer.meters().failed.add(spans(&batch));
                    }
                }
            }
        }
        let rest = async {
            loop {
                let batch = self.tracer.take(BATCH_SPANS);
                if batch.is_empty() {
                    return;
                }
                self.send(&batch, &mut is_failing).await;
            }
        };
        if timeout(REST_WITHIN, rest).await.is_err() {
            tracing::warn!(
                spans = self.tracer.waiting(),
                "the receiver of traces did not take all spans before the stop"
            );
        }
    }

    /// Sends a batch, if necessary several times, and counts what became of it.
    async fn send(&self, batch: &[FinishedTrace], is_failing: &mut bool) {
        let (count, meters) = (spans(batch), self.tracer.meters());
        if count == 0 {
            return;
        }
        let message = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(InstrumentationScope {
                        name: "culvert.edge".to_owned(),
                        ..InstrumentationScope::default()
                    }),
                    spans: batch.iter().flat_map(encoded).collect(),
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            }],
        };
        let body = gzipped(&message.encode_to_vec());
        drop(message);
        let (until, mut pause) = (Instant::now() + RETRY_WITHIN, PAUSE);
        loop {
            let failure = match self.post(&body).await {
                Ok(rejected) => {
                    meters.exported.add(count.saturating_sub(rejected));
                    meters.rejected.add(rejected);
                    if std::mem::replace(is_failing, false) {
                        tracing::info!("the receiver of traces takes spans again");
                    }
                    return;
                }
                Err(failure) => failure,
            };
            if !std::mem::replace(is_failing, true) {
                tracing::warn!(%failure, "the receiver of traces does not take spans; further failures are only counted");
            }
            let may_pass = [FailureClass::Retryable, FailureClass::Unknown];
            // Half of the pause is random, so that nodes do not send together.
            let random = f64::from(self.net.entropy().bytes::<1>()[0]) / 512.0;
            let own = pause / 2 + pause.mul_f64(random);
            let wait = RetryAfter::wait(failure.after, own, PAUSE_MAX);
            if !may_pass.contains(&failure.class) || Instant::now() + wait > until {
                meters.failed.add(count);
                return;
            }
            meters.retries.up();
            sleep(wait).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends a request. Returns how many spans the receiver rejected. It does not say which, and the specification
    /// forbids a retry.
    async fn post(&self, body: &[u8]) -> Result<u64, Failure> {
        let (url, headers) = (self.url.clone(), self.headers.clone());
        let order = HttpRequest::post(url, headers, body.to_vec().into(), DEADLINE);
        let answer = self
            .http
            .send(order.succeeds_by_head_within(MESSAGE_FOR))
            .await?;
        let secrets: Vec<&str> = self.secrets.iter().map(Secret::reveal).collect();
        let class = match answer.status {
            200..=299 => {
                let said = ExportTraceServiceResponse::decode(&answer.body[..]).ok();
                let partial = said.and_then(|said| said.partial_success);
                let rejected = partial.as_ref().map_or(0, |partial| partial.rejected_spans);
                let rejected = u64::try_from(rejected).unwrap_or(0);
                if let Some(partial) = partial.filter(|_| rejected > 0) {
                    let why = scrub(&partial.error_message, &secrets);
                    tracing::warn!(rejected, "the receiver of traces rejected spans: {why}");
                }
                return Ok(rejected);
            }
            // The table of the specification (OTLP 1.5, "Failures").
            429 | 502 | 503 | 504 => FailureClass::Retryable,
            401 | 403 => FailureClass::Auth,
            300..=399 | 404 | 405 => FailureClass::Config,
            _ => FailureClass::Permanent,
        };
        Err(failed(&answer, class, &secrets))
    }
}

fn spans(batch: &[FinishedTrace]) -> u64 {
    batch.iter().map(|trace| trace.spans.len() as u64).sum()
}

/// The spans of a trace as messages.
fn encoded(trace: &FinishedTrace) -> impl Iterator<Item = Span> {
    trace.spans.iter().map(|span| Span {
        trace_id: trace.trace_id.to_vec(),
        span_id: span.span_id.to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |parent| parent.to_vec()),
        trace_state: match &trace.state {
            Some(state) => state.to_str().unwrap_or_default().to_owned(),
            None => String::new(),
        },
        flags: trace.flags.into(),
        name: span.name.clone(),
        kind: match span.kind {
            SpanKind::Server => Kind::Server,
            SpanKind::Client => Kind::Client,
            SpanKind::Internal => Kind::Internal,
        }
        .into(),
        start_time_unix_nano: trace.nanos(span.began),
        end_time_unix_nano: trace.nanos(span.ended.max(span.began)),
        attributes: span.attributes.iter().map(attribute).collect(),
        status: span.has_failed.then(|| Status {
            code: StatusCode::Error.into(),
            ..Status::default()
        }),
        ..Span::default()
    })
}

fn attribute((name, value): &(&'static str, AttributeValue)) -> KeyValue {
    let value = match value {
        AttributeValue::Text(value) => text(value),
        AttributeValue::Number(number) => Any::IntValue(*number),
        AttributeValue::Flag(flag) => Any::BoolValue(*flag),
        AttributeValue::Texts(texts) => {
            let value = |value: &String| AnyValue {
                value: Some(text(value)),
            };
            Any::ArrayValue(ArrayValue {
                values: texts.iter().map(value).collect(),
            })
        }
    };
    pair(name, value)
}

fn text(text: &str) -> Any {
    Any::StringValue(text.to_owned())
}

fn pair(key: &str, value: Any) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests;
