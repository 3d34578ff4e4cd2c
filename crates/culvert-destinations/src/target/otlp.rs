//! `otlp`: events as log records of OpenTelemetry, over HTTP or gRPC (contract: destinations 9.2).

mod grpc;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use culvert_base::{BoxFuture, Entropy, Refusal, Secret, Timestamp};
use culvert_events::read_json;
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::{Http, HttpRequest, HttpResponse, Net};
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::http_failure::failed;
use crate::client::request_body::gzipped;
use crate::config::headers;
use crate::config::{checked_url, invalid, parse, stored};

const NAME: &str = "otlp";
const DEADLINE: Duration = Duration::from_secs(25);
/// How long to wait for the body of a successful response, which may report rejected records.
const MESSAGE_FOR: Duration = Duration::from_secs(2);

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Exports each event as an OpenTelemetry log record over HTTP or gRPC.",
    limits: BatchLimits {
        events_max: 512,
        bytes_max: 3 << 20,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: headers::merge,
    redact: headers::redact,
    open,
};

/// Configuration of the `otlp` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OtlpTarget")]
struct Config {
    /// Base URL of the receiver. With HTTP, `/v1/logs` is appended; with gRPC it must have no path.
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    endpoint: String,
    /// `http/protobuf`, the default, `http/json` or `grpc`.
    #[serde(default)]
    protocol: Option<Protocol>,
    /// Up to 10 additional request headers. Their values are write-only.
    #[serde(default)]
    headers: Option<Map<String, Value>>,
    /// `gzip`, the default, or `none`.
    #[serde(default)]
    compression: Option<Compression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "OtlpTargetProtocol")]
enum Protocol {
    #[serde(rename = "http/protobuf")]
    Protobuf,
    #[serde(rename = "http/json")]
    Json,
    #[serde(rename = "grpc")]
    Grpc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "OtlpTargetCompression")]
enum Compression {
    Gzip,
    None,
}

fn check(given: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, given)?;
    let url = checked_url(NAME, "endpoint", &config.endpoint, &settings.rules)?.url;
    headers::read(NAME, config.headers.get_or_insert_default())?;
    let protocol = *config.protocol.get_or_insert(Protocol::Protobuf);
    if protocol == Protocol::Grpc && (url.path() != "/" || url.query().is_some()) {
        return Err(invalid(NAME, "`endpoint` must have no path for `grpc`"));
    }
    config.compression.get_or_insert(Compression::Gzip);
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let mut url = checked_url(
        NAME,
        "endpoint",
        &config.endpoint,
        &context.settings().rules,
    )?
    .url;
    let given = config.headers.unwrap_or_default();
    let protocol = config.protocol.unwrap_or(Protocol::Protobuf);
    let packs = config.compression != Some(Compression::None);
    let mut all = headers::read(NAME, &given)?;
    let content_type = match protocol {
        Protocol::Protobuf => Some("application/x-protobuf"),
        Protocol::Json => Some("application/json"),
        Protocol::Grpc => None,
    };
    match content_type {
        Some(content_type) => {
            let path = format!("{}/v1/logs", url.path().trim_end_matches('/'));
            url.set_path(&path);
            let content_type = HeaderValue::from_static(content_type);
            all.insert(header::CONTENT_TYPE, content_type);
            if packs {
                all.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
        }
        None => {
            url.set_path(grpc::PATH);
            all.extend(grpc::headers(packs));
        }
    }
    let resource = Resource {
        attributes: vec![
            text("service.name", "culvert"),
            text("service.instance.id", &context.settings().node),
        ],
        ..Resource::default()
    };
    Ok(Arc::new(Otlp {
        url,
        headers: all,
        secrets: headers::secrets(&given),
        protocol,
        packs,
        resource,
        http: match protocol {
            Protocol::Grpc => context.net().http2(),
            Protocol::Protobuf | Protocol::Json => context.net().http(),
        },
        net: context.net().clone(),
    }))
}

struct Otlp {
    url: Url,
    headers: HeaderMap,
    secrets: Vec<Secret>,
    protocol: Protocol,
    packs: bool,
    resource: Resource,
    http: Http,
    net: Net,
}

impl std::fmt::Debug for Otlp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Otlp")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

impl Target for Otlp {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.export(batch).await {
                Ok(()) => Verdict::Delivered,
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Otlp {
    async fn export(&self, batch: &Batch) -> Result<(), Failure> {
        let now = self.net.now();
        let records: Option<Vec<LogRecord>> = batch
            .deliveries()
            .map(|delivery| record(delivery, now))
            .collect();
        let unfit = || Failure::new(FailureClass::Permanent, "encoding", "an event is malformed");
        let request = ExportLogsServiceRequest {
            resource_logs: vec![ResourceLogs {
                resource: Some(self.resource.clone()),
                scope_logs: vec![ScopeLogs {
                    scope: Some(InstrumentationScope {
                        name: "culvert.events".to_owned(),
                        ..InstrumentationScope::default()
                    }),
                    log_records: records.ok_or_else(unfit)?,
                    ..ScopeLogs::default()
                }],
                ..ResourceLogs::default()
            }],
        };
        let body = match self.protocol {
            Protocol::Protobuf | Protocol::Grpc => request.encode_to_vec(),
            Protocol::Json => serde_json::to_vec(&request).map_err(|_| unfit())?,
        };
        let body = if self.packs { gzipped(&body) } else { body };
        let body = match self.protocol {
            Protocol::Grpc => grpc::framed(&body, self.packs),
            Protocol::Protobuf | Protocol::Json => body,
        };
        let order = HttpRequest::post(
            self.url.clone(),
            self.headers.clone(),
            body.into(),
            DEADLINE,
        );
        // In gRPC the status is in the trailers, after the body.
        let order = match self.protocol {
            Protocol::Grpc => order,
            Protocol::Protobuf | Protocol::Json => order.succeeds_by_head_within(MESSAGE_FOR),
        };
        let answer = self.http.send(order).await?;
        self.judge(&answer)
    }

    /// Classifies a response by the table of the specification. Rejected credentials are an
    /// authentication failure, not a failure of the content.
    fn judge(&self, answer: &HttpResponse) -> Result<(), Failure> {
        let secrets: Vec<&str> = self.secrets.iter().map(Secret::reveal).collect();
        if self.protocol == Protocol::Grpc {
            let message = grpc::judge(answer, &secrets)?;
            self.look_at_rejected(&message);
            return Ok(());
        }
        let class = match answer.status {
            200..=299 => {
                self.look_at_rejected(&answer.body);
                return Ok(());
            }
            429 | 502 | 503 | 504 => FailureClass::Retryable,
            401 | 403 => FailureClass::Auth,
            300..=399 | 404 | 405 => FailureClass::Config,
            413 => FailureClass::Split,
            _ => FailureClass::Permanent,
        };
        Err(failed(answer, class, &secrets))
    }

    /// Logs that the receiver rejected some records of an accepted request. It does not say which,
    /// and the specification forbids a retry.
    fn look_at_rejected(&self, message: &[u8]) {
        let said = match self.protocol {
            Protocol::Protobuf | Protocol::Grpc => ExportLogsServiceResponse::decode(message).ok(),
            Protocol::Json => serde_json::from_slice(message).ok(),
        };
        let partial = said.and_then(|said| said.partial_success);
        if let Some(partial) = partial.filter(|partial| partial.rejected_log_records > 0) {
            let secrets: Vec<&str> = self.secrets.iter().map(Secret::reveal).collect();
            tracing::warn!(
                rejected = partial.rejected_log_records,
                "an OpenTelemetry receiver rejected events: {}",
                culvert_target::failure::scrub(&partial.error_message, &secrets)
            );
        }
    }
}

fn record(delivery: Delivery<'_>, now: Timestamp) -> Option<LogRecord> {
    let Value::Object(mut event) = read_json(delivery.envelope)? else {
        return None;
    };
    let said = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default();
    let at = Timestamp::parse(said("event_timestamp"))?;
    let mut attributes = vec![
        text("event_id", said("event_id")),
        text("account_id", said("account_id")),
    ];
    for name in ["id", "subject", "source"] {
        let value = event
            .get("principal")
            .and_then(|principal| principal.get(name)?.as_str());
        attributes.extend(value.map(|value| text(&format!("principal.{name}"), value)));
    }
    let event_name = said("event_type").to_owned();
    let body = match delivery.formatted {
        Some(formatted) => read_json(formatted)?,
        None => event.remove("object")?,
    };
    Some(LogRecord {
        time_unix_nano: nanos(at),
        observed_time_unix_nano: nanos(now),
        severity_number: SeverityNumber::Info.into(),
        severity_text: "INFO".to_owned(),
        body: Some(any(body)),
        attributes,
        event_name,
        ..LogRecord::default()
    })
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.unix_nanos()).unwrap_or(0)
}

fn text(key: &str, value: &str) -> KeyValue {
    pair(key.to_owned(), Value::String(value.to_owned()))
}

fn pair(key: String, value: Value) -> KeyValue {
    KeyValue {
        key,
        value: Some(any(value)),
        ..KeyValue::default()
    }
}

fn any(value: Value) -> AnyValue {
    let value = match value {
        Value::Null => None,
        Value::Bool(flag) => Some(Any::BoolValue(flag)),
        Value::Number(number) => Some(match number.as_i64() {
            Some(whole) => Any::IntValue(whole),
            None => Any::DoubleValue(number.as_f64().unwrap_or_default()),
        }),
        Value::String(text) => Some(Any::StringValue(text)),
        Value::Array(values) => Some(Any::ArrayValue(ArrayValue {
            values: values.into_iter().map(any).collect(),
        })),
        Value::Object(fields) => Some(Any::KvlistValue(KeyValueList {
            values: fields
                .into_iter()
                .map(|(key, value)| pair(key, value))
                .collect(),
        })),
    };
    AnyValue { value }
}

#[cfg(test)]
mod tests;
