//! `webhook`: events to a URL, signed by the rules of Standard Webhooks.
//!
//! With `body_template`, an expression writes the body of each event, and the signature covers it. An event for which it
//! has no result is not sent.
//!
//! In mode `single`, the events of a batch are posted in sequence, each with its own id and
//! signature. After a failure, the rest of the batch waits for the next attempt. In mode `batch`,
//! the events form one JSON array. Ids are equal in all attempts; the timestamp is that of the
//! attempt.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderValue, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::Sha256;

use culvert_base::{BoxFuture, Entropy, Refusal, Secret};
use culvert_events::{BodyTemplate, TemplateBody};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::guard::CheckedUrl;
use culvert_target::net::{Http, Net};
use culvert_target::{
    Checked, DestinationIds, Outcome, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::http_failure::judge;
use crate::config::headers;
use crate::config::{ConfigDuration, checked_url, invalid, parse};
use crate::target::http_intake::given;

const NAME: &str = "webhook";

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Posts events to a URL with Standard Webhooks signatures.",
    limits: BatchLimits {
        events_max: 100,
        bytes_max: 512 << 10,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge,
    redact,
    open,
};

/// Configuration of the `webhook` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WebhookTarget")]
struct Config {
    /// URL for POST requests; `https` unless the server allows plain `http`. Private networks must
    /// be allowed by the server.
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    url: String,
    /// Signing secrets: `whsec_` and the Base64 of 24 to 64 bytes. Up to 3 during rotation; all of
    /// them sign. If none is given, one is generated and returned only in the response to the
    /// creation. Otherwise write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    secrets: Option<Vec<String>>,
    /// Up to 10 additional request headers. Their values are write-only.
    #[serde(default)]
    headers: Option<Map<String, Value>>,
    /// `single`: one request per event. `batch`: JSON arrays of up to 100 events or 512 KiB.
    #[serde(default)]
    mode: Option<Mode>,
    /// `envelope`: events in the format of the destination. `cloudevents`: CloudEvents 1.0 in JSON, whose `data` is the
    /// `object` of the event, or the whole event in a format other than `json`.
    #[serde(default)]
    encoding: Option<Encoding>,
    /// Expression in CEL that writes the body of an event from `event`, such as `{"text": event.event_type}`. A map or a list
    /// becomes JSON, a string is sent as it is. In mode `batch`, the results are the elements of an array. `formatted` is
    /// the whole event in the format of the destination. An event without a result becomes a dead letter. Excludes `cloudevents`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    body_template: Option<String>,
    /// Media type of bodies that `body_template` writes as a string. Default: `text/plain; charset=utf-8`. Not in mode `batch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    /// Request timeout: `1s` to `30s`, default `15s`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    #[schemars(extend("pattern" = crate::config::DURATION))]
    timeout: Option<ConfigDuration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "WebhookTargetMode")]
enum Mode {
    Single,
    Batch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "WebhookTargetEncoding")]
enum Encoding {
    Envelope,
    Cloudevents,
}

const SECRET_PREFIX: &str = "whsec_";
const SECRETS_MAX: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(15);
const TEXT: &str = "text/plain; charset=utf-8";
const CONTENT_TYPE_BYTES_MAX: usize = 128;
/// Maximum bytes of the bodies of several events that a template writes into one array.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum time to send the events of a batch in mode `single`; the rest waits for the next
/// attempt. With one more request timeout it is still below the worker's time limit and lease.
const SINGLES_FOR: Duration = Duration::from_secs(25);

/// Accepts Base64 with or without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

fn check(
    given: &Value,
    settings: &TargetSettings,
    entropy: &dyn Entropy,
) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, given)?;
    checked_url(NAME, "url", &config.url, &settings.rules)?;
    let secrets = config.secrets.get_or_insert_default();
    let mut shown_once = None;
    if secrets.is_empty() {
        let made = format!("{SECRET_PREFIX}{}", STANDARD.encode(entropy.bytes::<32>()));
        shown_once = Some(json!({ "secrets": [made] }));
        secrets.push(made);
    }
    if secrets.len() > SECRETS_MAX {
        return Err(invalid(NAME, "`secrets` has more than 3 entries"));
    }
    for secret in secrets {
        key_of(secret).ok_or_else(|| {
            invalid(
                NAME,
                "an entry of `secrets` must be `whsec_` and the Base64 of 24 to 64 bytes",
            )
        })?;
    }
    headers::read(NAME, config.headers.get_or_insert_default())?;
    config.mode.get_or_insert(Mode::Single);
    config.encoding.get_or_insert(Encoding::Envelope);
    template(&config)?;
    let timeout = config.timeout.get_or_insert(ConfigDuration(TIMEOUT)).0;
    if !(Duration::from_secs(1)..=Duration::from_secs(30)).contains(&timeout) {
        return Err(invalid(NAME, "`timeout` must be between `1s` and `30s`"));
    }
    Ok(Checked {
        stored: serde_json::to_value(&config).expect("a configuration is plain JSON"),
        shown_once,
    })
}

/// Checks and compiles the template, and its media type.
fn template(config: &Config) -> Result<Option<Template>, Refusal> {
    let Some(source) = given(&config.body_template) else {
        return match given(&config.content_type) {
            None => Ok(None),
            Some(_) => Err(invalid(NAME, "`content_type` requires `body_template`")),
        };
    };
    if config.encoding == Some(Encoding::Cloudevents) {
        let why = "`body_template` and the encoding `cloudevents` exclude each other";
        return Err(invalid(NAME, why));
    }
    if config.mode == Some(Mode::Batch) && given(&config.content_type).is_some() {
        return Err(invalid(
            NAME,
            "`content_type` has no effect in mode `batch`",
        ));
    }
    let text = given(&config.content_type).unwrap_or(TEXT);
    let content_type = HeaderValue::from_str(text).ok();
    let content_type = content_type.filter(|_| is_media_type(text));
    let Some(content_type) = content_type else {
        return Err(invalid(NAME, "`content_type` must be a media type"));
    };
    match BodyTemplate::compile(source) {
        Ok(body) => Ok(Some(Template { body, content_type })),
        Err(error) => Err(invalid(NAME, format_args!("`body_template`, {error}"))),
    }
}

/// Whether a text is a media type, with parameters or without (RFC 9110, section 8.3.1).
fn is_media_type(text: &str) -> bool {
    let is_token = |part: &str| {
        let is_part = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
        !part.is_empty() && part.bytes().all(is_part)
    };
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let is_visible = |c: char| c == ' ' || c.is_ascii_graphic();
    text.len() <= CONTENT_TYPE_BYTES_MAX
        && parameters.chars().all(is_visible)
        && essence
            .trim_end()
            .split_once('/')
            .is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype))
}

/// Writes the bodies of events.
struct Template {
    body: BodyTemplate,
    /// The media type of texts.
    content_type: HeaderValue,
}

/// A body and its media type.
struct Shaped {
    body: Bytes,
    content_type: HeaderValue,
}

/// Decodes the signing key of a secret.
fn key_of(secret: &str) -> Option<Vec<u8>> {
    let text = secret.strip_prefix(SECRET_PREFIX)?;
    if text.len() > 100 {
        return None;
    }
    let key = LENIENT.decode(text).ok()?;
    (24..=64).contains(&key.len()).then_some(key)
}

fn merge(stored: &Value, mut given: Value) -> Value {
    let Some(fields) = given.as_object_mut() else {
        return given;
    };
    let absent = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    };
    if absent(fields.get("secrets"))
        && let Some(secrets) = stored.get("secrets")
    {
        fields.insert("secrets".to_owned(), secrets.clone());
    }
    headers::merge(stored, given)
}

fn redact(stored: &Value) -> Value {
    let mut shown = headers::redact(stored);
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("secrets".to_owned(), Value::Null);
    }
    shown
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let url = checked_url(NAME, "url", &config.url, &context.settings().rules)?;
    let template = template(&config)?;
    let secrets = config.secrets.unwrap_or_default();
    let keys = secrets
        .iter()
        .map(|secret| key_of(secret))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| invalid(NAME, "a stored secret is invalid"))?;
    let headers = config.headers.unwrap_or_default();
    let mut to_scrub: Vec<Secret> = secrets.into_iter().map(Secret::new).collect();
    to_scrub.extend(headers::secrets(&headers));
    let macs = keys
        .iter()
        .map(|key| Hmac::new_from_slice(key).expect("HMAC takes keys of every length"))
        .collect();
    Ok(Arc::new(Webhook {
        url,
        macs,
        headers: headers::read(NAME, &headers)?,
        to_scrub,
        mode: config.mode.unwrap_or(Mode::Single),
        encoding: config.encoding.unwrap_or(Encoding::Envelope),
        template,
        timeout: config.timeout.map_or(TIMEOUT, |span| span.0),
        http: context.net().http(),
        public_base: context.settings().public_base.clone(),
        net: context.net().clone(),
    }))
}

struct Webhook {
    url: CheckedUrl,
    macs: Vec<Hmac<Sha256>>,
    headers: HeaderMap,
    to_scrub: Vec<Secret>,
    mode: Mode,
    encoding: Encoding,
    template: Option<Template>,
    timeout: Duration,
    http: Http,
    /// Base URL of the API, for the `source` of CloudEvents.
    public_base: String,
    net: Net,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook")
            .field("mode", &self.mode)
            .field("encoding", &self.encoding)
            .finish_non_exhaustive()
    }
}

impl Target for Webhook {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.mode {
                Mode::Batch => match self.send_batch(batch).await {
                    Ok(()) => Verdict::Delivered,
                    Err(failure) => Verdict::Failed(failure),
                },
                Mode::Single => self.send_singles(batch).await,
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Template {
    /// The body of an event. A repetition has the same result, so the failure is permanent.
    fn body_of(&self, delivery: Delivery<'_>) -> Result<TemplateBody, Failure> {
        let body = self.body.body(delivery.envelope, delivery.payload());
        body.map_err(|fault| {
            let text = format!("the template has no body for this event: {fault}");
            Failure::new(FailureClass::Permanent, "template", text)
        })
    }
}

impl Webhook {
    async fn send_batch(&self, batch: &Batch) -> Result<(), Failure> {
        let Some(first) = batch.deliveries().next() else {
            return Ok(());
        };
        let id = format!("{}+{}", first.idempotency_key(), batch.len());
        let body = match (self.encoding, &self.template) {
            (Encoding::Envelope, None) => batch.json_array(),
            _ => {
                let mut array = vec![b'['];
                for (index, delivery) in batch.deliveries().enumerate() {
                    // Templates take time, and other tasks have theirs between them.
                    tokio::task::yield_now().await;
                    if index > 0 {
                        array.push(b',');
                    }
                    array.extend(self.element_of(delivery)?);
                    if batch.len() > 1 && array.len() > BATCH_BYTES_MAX {
                        let text = "the bodies of the batch are too long together";
                        return Err(Failure::new(FailureClass::Split, "template", text));
                    }
                }
                array.push(b']');
                array
            }
        };
        let content_type = HeaderValue::from_static(self.content_type());
        let shaped = Shaped {
            body: body.into(),
            content_type,
        };
        self.post(&id, shaped, self.timeout).await
    }

    /// An element of the array in mode `batch`.
    fn element_of(&self, delivery: Delivery<'_>) -> Result<Vec<u8>, Failure> {
        match &self.template {
            None => self.cloud_event(delivery),
            Some(template) => Ok(match template.body_of(delivery)? {
                TemplateBody::Json(json) => json,
                TemplateBody::Text(text) => json!(text).to_string().into_bytes(),
            }),
        }
    }

    async fn send_singles(&self, batch: &Batch) -> Verdict {
        let began = tokio::time::Instant::now();
        let mut outcomes = Vec::with_capacity(batch.len());
        for delivery in batch.deliveries() {
            let left = SINGLES_FOR.saturating_sub(began.elapsed());
            if !outcomes.is_empty() && left < Duration::from_millis(500) {
                break;
            }
            tokio::task::yield_now().await;
            let sent = match self.body_of(delivery) {
                Ok(body) => {
                    // Only the first request has its full timeout, so a slow receiver gets fewer
                    // events per batch.
                    let timeout = if outcomes.is_empty() {
                        self.timeout
                    } else {
                        self.timeout.min(left)
                    };
                    self.post(&delivery.idempotency_key(), body, timeout).await
                }
                Err(failure) => Err(failure),
            };
            match sent {
                Ok(()) => outcomes.push(Outcome::Delivered),
                Err(mut failure) => {
                    // A single event cannot be split.
                    if failure.class == FailureClass::Split {
                        failure.class = FailureClass::Permanent;
                    }
                    let goes_on = failure.class == FailureClass::Permanent;
                    outcomes.push(Outcome::Failed(failure));
                    if !goes_on {
                        break;
                    }
                }
            }
        }
        if outcomes.len() == batch.len() && outcomes.iter().all(|o| *o == Outcome::Delivered) {
            return Verdict::Delivered;
        }
        if let [Outcome::Failed(failure)] = &outcomes[..]
            && failure.class != FailureClass::Permanent
        {
            return Verdict::Failed(failure.clone());
        }
        outcomes.resize(batch.len(), Outcome::NotTried);
        Verdict::Partial(outcomes)
    }

    fn body_of(&self, delivery: Delivery<'_>) -> Result<Shaped, Failure> {
        let content_type = HeaderValue::from_static(self.content_type());
        let (body, content_type) = match (self.encoding, &self.template) {
            (_, Some(template)) => match template.body_of(delivery)? {
                TemplateBody::Json(json) => (json.into(), content_type),
                TemplateBody::Text(text) => (text.into(), template.content_type.clone()),
            },
            (Encoding::Envelope, None) => {
                (Bytes::copy_from_slice(delivery.payload()), content_type)
            }
            (Encoding::Cloudevents, None) => (self.cloud_event(delivery)?.into(), content_type),
        };
        Ok(Shaped { body, content_type })
    }

    fn content_type(&self) -> &'static str {
        match (self.encoding, self.mode) {
            (Encoding::Envelope, _) => "application/json",
            (Encoding::Cloudevents, Mode::Single) => "application/cloudevents+json",
            (Encoding::Cloudevents, Mode::Batch) => "application/cloudevents-batch+json",
        }
    }

    async fn post(&self, id: &str, shaped: Shaped, timeout: Duration) -> Result<(), Failure> {
        let Shaped { body, content_type } = shaped;
        let seconds = self.net.now().unix_seconds().to_string();
        let unfit = |_| {
            Failure::new(
                FailureClass::Permanent,
                "id",
                "the event ID contains invalid characters",
            )
        };
        let mut headers = self.headers.clone();
        headers.insert(header::CONTENT_TYPE, content_type);
        headers.insert("webhook-id", HeaderValue::from_str(id).map_err(unfit)?);
        headers.insert(
            "webhook-timestamp",
            HeaderValue::from_str(&seconds).map_err(unfit)?,
        );
        headers.insert(
            "webhook-signature",
            HeaderValue::from_str(&self.signature(id, &seconds, &body)).map_err(unfit)?,
        );
        let answer = self.http.post(&self.url, headers, body, timeout).await?;
        let secrets: Vec<&str> = self.to_scrub.iter().map(Secret::reveal).collect();
        judge(&answer, &secrets)
    }

    fn signature(&self, id: &str, seconds: &str, body: &[u8]) -> String {
        let mut text = String::new();
        for mac in &self.macs {
            let mut mac = mac.clone();
            for part in [id.as_bytes(), b".", seconds.as_bytes(), b".", body] {
                mac.update(part);
            }
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str("v1,");
            STANDARD.encode_string(mac.finalize().into_bytes(), &mut text);
        }
        text
    }

    /// The event as a CloudEvent 1.0 (contract: destinations 9.1).
    fn cloud_event(&self, delivery: Delivery<'_>) -> Result<Vec<u8>, Failure> {
        let unreadable = |_| {
            Failure::new(
                FailureClass::Permanent,
                "encoding",
                "the event cannot be encoded as a CloudEvent",
            )
        };
        let event: Envelope<'_> = serde_json::from_slice(delivery.envelope).map_err(unreadable)?;
        let about: About = serde_json::from_str(event.object.get()).map_err(unreadable)?;
        let subject = about
            .id
            .or(about.conn.and_then(|conn| conn.server_name))
            .filter(|subject| !subject.is_empty());
        let principal = event.principal.as_ref();
        let formatted = delivery.formatted.map(serde_json::from_slice);
        let formatted: Option<&RawValue> = formatted.transpose().map_err(unreadable)?;
        serde_json::to_vec(&CloudEvent {
            specversion: "1.0",
            id: event.event_id,
            source: format!("{}/accounts/{}", self.public_base, event.account_id),
            kind: event.event_type,
            time: event.event_timestamp,
            subject,
            datacontenttype: "application/json",
            accountid: event.account_id,
            principalid: principal.map(|principal| &*principal.id),
            principalsubject: principal.map(|principal| &*principal.subject),
            principalsource: principal.map(|principal| &*principal.source),
            data: formatted.unwrap_or(event.object),
        })
        .map_err(unreadable)
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    event_id: &'a str,
    event_type: &'a str,
    event_timestamp: &'a str,
    account_id: &'a str,
    principal: Option<Principal>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Principal {
    id: String,
    subject: String,
    source: String,
}

#[derive(Deserialize)]
struct About {
    id: Option<String>,
    conn: Option<Conn>,
}

#[derive(Deserialize)]
struct Conn {
    server_name: Option<String>,
}

#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'a str,
    id: &'a str,
    source: String,
    #[serde(rename = "type")]
    kind: &'a str,
    time: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    datacontenttype: &'a str,
    accountid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    principalid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principalsubject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principalsource: Option<&'a str>,
    data: &'a RawValue,
}

#[cfg(test)]
mod tests;
