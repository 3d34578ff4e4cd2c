//! Where events go: one file per remote system, each exporting one `static TYPE`.
//!
//! A target sends one batch and says what became of it; it never waits for a better time and never
//! stores anything: retries, splitting and giving up are the worker's. A `TYPE` is what the rest of
//! the house knows of a target: its limits, its fields, and how a configuration is checked, merged,
//! redacted and opened.

pub mod azure_logs_ingestion;
pub mod cloudwatch_logs;
pub mod datadog;
pub mod debug;
pub mod file;
pub mod firehose;
pub mod kafka;
pub mod kinesis;
pub mod nats;
pub mod otlp;
pub mod postgres;
pub mod rabbitmq;
pub mod s3;
pub mod webhook;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use schemars::{Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use culvert_base::{BoxFuture, Entropy, Refusal, Timestamp, code};
use culvert_store::Gathering;

use crate::batch::{Batch, BatchLimits};
use crate::guard::Place;
use crate::net::{HttpResponse, Net, TargetSettings};
use crate::retry::FailureClass;

pub(crate) use file::FileRoots;

/// Every target, sorted by name.
pub static ALL: &[&TargetType] = &[
    &azure_logs_ingestion::TYPE,
    &cloudwatch_logs::TYPE,
    &datadog::TYPE,
    &debug::TYPE,
    &file::TYPE,
    &firehose::TYPE,
    &kafka::TYPE,
    &kinesis::TYPE,
    &nats::TYPE,
    &otlp::TYPE,
    &postgres::TYPE,
    &rabbitmq::TYPE,
    &s3::TYPE,
    &webhook::TYPE,
];

/// The target of that name.
pub fn find(name: &str) -> Option<&'static TargetType> {
    ALL.iter().copied().find(|ty| ty.name == name)
}

/// A configured remote system.
pub trait Target: Send + Sync + fmt::Debug {
    /// Sends a batch, once, and says what became of it. The caller drops the future after 30 s.
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict>;

    /// How large a batch may be.
    fn limits(&self) -> BatchLimits;

    /// Whether it makes one object of many batches; then it is told to put that, and [`Self::send`]
    /// is for tests.
    fn gathers(&self) -> Option<&dyn Gathers> {
        None
    }
}

/// A target that makes one object of many batches, which lie in the queue meanwhile.
pub trait Gathers: Send + Sync {
    /// When an object is made.
    fn gathering(&self) -> Gathering;

    /// Makes an object of a run, once. The caller drops the future after
    /// [`PUT_DEADLINE`](crate::PUT_DEADLINE).
    fn put<'a>(&'a self, run: &'a dyn Run) -> BoxFuture<'a, Result<(), Failure>>;
}

/// Batches of one destination and class, in order, at least one. They are read one by one and as
/// often as wanted: together they may be more than memory should hold.
pub trait Run: Send + Sync {
    /// How many there are.
    fn batches(&self) -> usize;

    /// The batch at `index`.
    fn batch(&self, index: usize) -> BoxFuture<'_, Result<Batch, Failure>>;
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it was taken.
    Delivered,
    /// Some of it was. One outcome per event, in the order of the batch.
    Partial(Vec<Outcome>),
    /// None of it was, or nobody knows.
    Failed(Failure),
}

/// What became of one event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Taken.
    Delivered,
    /// Not sent, because an event before it failed.
    NotTried,
    /// Sent and not taken.
    Failed(Failure),
}

/// Reason of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Decides what is done about it.
    pub class: FailureClass,
    /// The other side's code: an HTTP status or a short word. At most 64 bytes.
    pub code: String,
    /// One sentence for people, already free of secrets. At most 200 characters.
    pub text: String,
    /// When the other side wants to be asked again.
    pub after: Option<Duration>,
}

/// Characters of a failure's text.
pub const FAILURE_TEXT_MAX: usize = 200;

impl Failure {
    /// A failure; `text` must be free of secrets.
    pub fn new(class: FailureClass, code: impl Into<String>, text: impl AsRef<str>) -> Self {
        let mut code = code.into();
        if code.len() > 64 {
            code = code.chars().take(16).collect();
        }
        Self {
            class,
            code,
            text: scrub(text.as_ref(), &[]),
            after: None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.class.name(), self.code, self.text)
    }
}

/// A configuration that passed its checks.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// What is stored: every field present, normalised.
    pub stored: Value,
    /// Fields to be merged over the redacted form in the create answer only: secrets made here.
    pub shown_once: Option<Value>,
}

/// One kind of target.
pub struct TargetType {
    /// Its key in `target`, such as `webhook`.
    pub name: &'static str,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// How large its batches may be.
    pub limits: BatchLimits,
    /// Of what a caller sends.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Checks what a caller sent, without any network, and makes the secrets that are made here.
    pub check: fn(&Value, &TargetSettings, &dyn Entropy) -> Result<Checked, Refusal>,
    /// Puts the stored secrets (first) where the new configuration (second) leaves them out. The
    /// result is checked like any other.
    pub merge: fn(&Value, Value) -> Value,
    /// The stored form without its secrets: what API and events show.
    pub redact: fn(&Value) -> Value,
    /// Makes it ready to send. Opens no connection.
    pub open: Open,
}

/// Makes a stored configuration ready to send.
pub type Open = fn(&Value, &Net, Whose<'_>) -> Result<Arc<dyn Target>, Refusal>;

/// Whose target it is.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    /// Id of the destination.
    pub destination: &'a str,
    /// Id of its account.
    pub account: &'a str,
}

impl fmt::Debug for TargetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetType")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The refusal of a target's field.
pub(crate) fn invalid(target: &str, sentence: impl fmt::Display) -> Refusal {
    Refusal::new(
        code::DELIVERY_VALUE_INVALID,
        format!("The {target} target is invalid: {sentence}."),
    )
}

/// Reads a configuration; an unknown field or a wrong type is refused.
fn parse<C: DeserializeOwned>(target: &str, given: &Value) -> Result<C, Refusal> {
    if !given.is_object() {
        return Err(invalid(target, "it must be an object"));
    }
    C::deserialize(given).map_err(|error| invalid(target, unquoted(&error.to_string())))
}

/// What is wrong, without the value that the reader quotes: it may be a secret in the wrong place.
fn unquoted(message: &str) -> String {
    let said = match message.rsplit_once(", expected ") {
        Some((found, _)) if found.starts_with("unknown field") => message.to_owned(),
        Some((_, "struct Config")) => "it must be an object".to_owned(),
        Some((_, expected)) => {
            format!("a value has the wrong type; expected {expected}")
        }
        None => message.to_owned(),
    };
    said.trim_end_matches('.').chars().take(160).collect()
}

/// What an HTTP status means (contract: destinations 1.3 and 6).
pub(crate) fn class_of_status(status: u16) -> Result<(), FailureClass> {
    Err(match status {
        200..=299 => return Ok(()),
        300..=399 => FailureClass::Config,
        401 | 403 => FailureClass::Auth,
        // What is not there is the place, not what was sent to it.
        404 | 405 => FailureClass::Config,
        408 | 409 | 425 | 429 => FailureClass::Retryable,
        410 => FailureClass::Gone,
        413 => FailureClass::Split,
        400..=499 => FailureClass::Permanent,
        _ => FailureClass::Retryable,
    })
}

/// What an HTTP answer means. `secrets` never appear in the text.
fn judge(answer: &HttpResponse, secrets: &[&str]) -> Result<(), Failure> {
    let Err(class) = class_of_status(answer.status) else {
        return Ok(());
    };
    Err(failed(answer, class, secrets))
}

/// The failure that an HTTP answer tells of.
fn failed(answer: &HttpResponse, class: FailureClass, secrets: &[&str]) -> Failure {
    let text = scrub(&answer.text, secrets);
    Failure {
        class,
        code: answer.status.to_string(),
        text: if text.is_empty() {
            format!("HTTP status {}", answer.status)
        } else {
            text
        },
        after: answer.retry_after,
    }
}

/// What `outcomes` of a whole batch come to.
fn verdict(outcomes: Vec<Outcome>) -> Verdict {
    if outcomes
        .iter()
        .all(|outcome| *outcome == Outcome::Delivered)
    {
        return Verdict::Delivered;
    }
    match &outcomes[..] {
        [Outcome::Failed(only)] => Verdict::Failed(only.clone()),
        _ => Verdict::Partial(outcomes),
    }
}

/// The same where events go one after the other, until one does not: a first that was not taken for
/// no fault of its own speaks for all.
fn verdict_of_line(outcomes: Vec<Outcome>) -> Verdict {
    match outcomes.split_first() {
        Some((Outcome::Failed(failure), rest))
            if failure.class != FailureClass::Permanent
                && rest.iter().all(|outcome| *outcome == Outcome::NotTried) =>
        {
            Verdict::Failed(failure.clone())
        }
        _ => verdict(outcomes),
    }
}

/// Whether an event was not taken for no fault of its own, so that the next ones would not be either.
fn is_stuck(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(failure) if failure.class != FailureClass::Permanent)
}

/// What is stored: every field, the absent ones as `null`.
fn stored<C: Serialize>(config: &C) -> Checked {
    Checked {
        stored: serde_json::to_value(config).expect("a configuration is plain JSON"),
        shown_once: None,
    }
}

/// Puts a stored secret where a new configuration leaves it out: absent, `null` or empty. `object` is
/// the JSON pointer of what holds the field.
pub(crate) fn keep_secret(stored: &Value, given: &mut Value, object: &str, field: &str) {
    let Some(Value::Object(holder)) = given.pointer_mut(object) else {
        return;
    };
    let is_absent = match holder.get(field) {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str() == Some(""),
    };
    let kept = stored.pointer(object).and_then(|holder| holder.get(field));
    if let (true, Some(kept)) = (is_absent, kept) {
        holder.insert(field.to_owned(), kept.clone());
    }
}

/// The stored form with something else in the place of a secret, if it is there. `secret` is a JSON
/// pointer.
pub(crate) fn hide(stored: &Value, secret: &str, with: Value) -> Value {
    let mut shown = stored.clone();
    if let Some(value) = shown.pointer_mut(secret) {
        *value = with;
    }
    shown
}

/// When an event happened, from its envelope.
fn moment(envelope: &[u8]) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Stamped<'a> {
        event_timestamp: &'a str,
    }
    let stamped: Stamped<'_> = serde_json::from_slice(envelope).ok()?;
    Timestamp::parse(stamped.event_timestamp)
}

/// The type in an envelope, if it is one that can stand in names of topics and subjects.
fn kind_of(envelope: &[u8]) -> Option<&str> {
    #[derive(Deserialize)]
    struct Typed<'a> {
        event_type: &'a str,
    }
    let typed: Typed<'_> = serde_json::from_slice(envelope).ok()?;
    let kind = typed.event_type;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (!kind.is_empty()
        && kind.bytes().all(is_name)
        && kind.split('.').all(|token| !token.is_empty()))
    .then_some(kind)
}

/// The body of an HTML form.
pub(crate) fn form(fields: &[(&str, &str)]) -> Bytes {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    form.finish().into()
}

/// The head of a form.
pub(crate) fn form_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-www-form-urlencoded"),
    );
    headers
}

/// A body under gzip, fast rather than small.
fn gzipped(body: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, body)
        .and_then(|()| packed.finish())
        .expect("memory takes every write")
}

/// Makes foreign text fit to be shown: secrets and URL queries taken out, control characters
/// replaced, cut to [`FAILURE_TEXT_MAX`] characters.
pub(crate) fn scrub(text: &str, secrets: &[&str]) -> String {
    // Cut late, so that a secret across the cut is still found; but never work on megabytes.
    let mut clean: String = text.chars().take(8 * FAILURE_TEXT_MAX).collect();
    for secret in secrets.iter().filter(|secret| secret.len() >= 4) {
        if clean.contains(secret) {
            clean = clean.replace(secret, "[redacted]");
        }
    }
    let mut shown = String::new();
    let mut in_url = false;
    let mut in_query = false;
    for (at, c) in clean.char_indices() {
        if clean[at..].starts_with("://") {
            in_url = true;
        }
        if c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | ')') {
            (in_url, in_query) = (false, false);
        }
        if in_url && c == '?' {
            in_query = true;
        }
        if !in_query {
            shown.push(if c.is_control() { ' ' } else { c });
        }
    }
    shown.trim().chars().take(FAILURE_TEXT_MAX).collect()
}

/// Judges a URL that a user configured.
fn place(
    target: &str,
    field: &str,
    url: &str,
    settings: &TargetSettings,
) -> Result<Place, Refusal> {
    settings
        .rules
        .url(url)
        .map_err(|denied| invalid(target, format_args!("`{field}` is invalid: {denied}")))
}

/// A span of time as users write it: whole numbers with `ms`, `s`, `m`, `h` or `d`, such as `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span(Duration);

impl Span {
    fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut total = Duration::ZERO;
        if rest.is_empty() || rest.len() > 32 {
            return None;
        }
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let number: u64 = number.parse().ok()?;
            let letters = tail.bytes().take_while(u8::is_ascii_lowercase).count();
            let (unit, tail) = tail.split_at(letters);
            let millis = match unit {
                "ms" => 1,
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return None,
            };
            total = total.checked_add(Duration::from_millis(number.checked_mul(millis)?))?;
            rest = tail;
        }
        Some(Self(total))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
            if millis > 0 && millis.is_multiple_of(size) {
                return write!(f, "{}{unit}", millis / size);
            }
        }
        write!(f, "{millis}ms")
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(
                "a duration must be a number followed by `ms`, `s`, `m`, `h` or `d`",
            )
        })
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
