//! `splunk_hec`: events to an HTTP Event Collector of Splunk.
//!
//! A request has the objects of its events one after the other, to `/services/collector/event`. Splunk responds with a code
//! besides the HTTP status, and with the position of the first event that it rejects. Indexer acknowledgement is not
//! used: a batch counts as delivered when the collector has taken it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::HttpResponse;
use culvert_target::{
    Checked, DestinationIds, Outcome, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::config::{hide, invalid, keep_secret, parse, stored};
use crate::target::envelope::event_time;
use crate::target::http_intake::{
    Classes, Credentials, HttpIntake, VendorError, check_name, check_secret, check_text,
    checked_base, class_of, given,
};
use crate::target::verdict::verdict;

const NAME: &str = "splunk_hec";
const PATH: &str = "/services/collector/event";
const TEXT_BYTES_MAX: usize = 200;

/// Codes in responses of the collector (its REST API reference, "Possible error codes"). Others go by the HTTP status.
const CODES: Classes<u64> = &[
    // The token is disabled, missing, malformed or unknown.
    (FailureClass::Auth, &[1, 2, 3, 4]),
    // The index is not one of the token's; or the token demands a channel for acknowledgements.
    (FailureClass::Config, &[7, 10, 11, 14, 16]),
    (FailureClass::Permanent, &[5, 6, 12, 13, 15]),
    // The server is busy, has full queues or shuts down.
    (FailureClass::Retryable, &[8, 9, 18, 19, 20, 23]),
];

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to an HTTP Event Collector of Splunk.",
    // Splunk Cloud advises at most 1 MB. Each event has up to 1.4 KB of metadata.
    limits: BatchLimits {
        events_max: 250,
        bytes_max: 640_000,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        keep_secret(stored, &mut given, "", "token");
        given
    },
    redact: |stored| hide(stored, "/token", Value::Null),
    open,
};

/// Configuration of the `splunk_hec` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SplunkHecTarget")]
struct Config {
    /// Base URL of the collector, such as `https://splunk.example:8088`; `/services/collector/event` is appended.
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    url: String,
    /// Token of the collector. Required, write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true, "x-culvert-required" = true))]
    token: Option<String>,
    /// Index; by default that of the token. The token must allow it.
    #[serde(default)]
    index: Option<String>,
    /// Source type of the events. Default: `_json`.
    #[serde(default)]
    sourcetype: Option<String>,
    /// Source of the events. Default: `culvert`.
    #[serde(default)]
    source: Option<String>,
    /// Host of the events. Default: the name of the node that sends them.
    #[serde(default)]
    host: Option<String>,
}

fn check(
    given_value: &Value,
    settings: &TargetSettings,
    _: &dyn Entropy,
) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, given_value)?;
    checked_base(NAME, &config.url, &settings.rules)?;
    if given(&config.token).is_none() {
        return Err(invalid(NAME, "`token` is required"));
    }
    check_secret(NAME, "token", config.token.as_deref())?;
    check_name(NAME, "index", given(&config.index), 80, "_-")?;
    for (field, text) in [
        ("sourcetype", &config.sourcetype),
        ("source", &config.source),
        ("host", &config.host),
    ] {
        check_text(NAME, field, given(text), TEXT_BYTES_MAX)?;
    }
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let token = config.token.as_deref().unwrap_or_default();
    let intake = HttpIntake::open(NAME, &config.url, PATH, "application/json", context)?
        .authenticated(NAME, Credentials::Token("Splunk", token))?;
    let node = context.settings().node.as_str();
    let mut metadata = String::new();
    for (name, value) in [
        ("host", given(&config.host).or(Some(node))),
        ("source", given(&config.source).or(Some("culvert"))),
        ("sourcetype", given(&config.sourcetype).or(Some("_json"))),
        ("index", given(&config.index)),
    ] {
        if let Some(value) = value {
            metadata.push_str(&format!(",\"{name}\":{}", json!(value)));
        }
    }
    Ok(Arc::new(SplunkHec { intake, metadata }))
}

#[derive(Debug)]
struct SplunkHec {
    intake: HttpIntake,
    /// Members of each event's object, as JSON.
    metadata: String,
}

/// The body of a response.
#[derive(Default, Deserialize)]
struct Report {
    code: Option<u64>,
    text: Option<String>,
    #[serde(rename = "invalid-event-number")]
    invalid_event_number: Option<usize>,
}

impl Target for SplunkHec {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let request = self.intake.batch_request(&self.events(batch));
            match self.intake.send(request).await {
                Ok(response) => self.judge(&response, batch.len()),
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl SplunkHec {
    /// The events as objects of the collector.
    fn events(&self, batch: &Batch) -> Vec<u8> {
        let mut events = Vec::new();
        for delivery in batch.deliveries() {
            events.extend_from_slice(b"{\"event\":");
            events.extend_from_slice(delivery.payload());
            events.extend_from_slice(self.metadata.as_bytes());
            if let Some(at) = event_time(delivery.envelope) {
                let millis = at.unix_millis();
                let time = format!(",\"time\":{}.{:03}", millis / 1000, millis % 1000);
                events.extend_from_slice(time.as_bytes());
            }
            events.extend_from_slice(b"}\n");
        }
        events
    }

    fn judge(&self, response: &HttpResponse, n_events: usize) -> Verdict {
        let report: Report = serde_json::from_slice(&response.body).unwrap_or_default();
        let is_taken = (200..300).contains(&response.status);
        let code = report.code;
        match code {
            Some(0) if is_taken => return Verdict::Delivered,
            None if is_taken => return Verdict::Failed(HttpIntake::foreign(response)),
            _ => {}
        }
        let failure = self.intake.failure(
            response,
            VendorError {
                class: code.and_then(|code| class_of(CODES, &code)),
                code: code.map_or_else(String::new, |code| code.to_string()),
                text: report.text.unwrap_or_default(),
            },
        );
        match report.invalid_event_number {
            Some(rejected) if failure.class == FailureClass::Permanent && rejected < n_events => {
                verdict(only_rejected(rejected, n_events, failure))
            }
            _ => Verdict::Failed(failure),
        }
    }
}

/// One event was rejected. Splunk does not say whether it took those before it, so all others are sent again.
fn only_rejected(rejected: usize, n_events: usize, failure: Failure) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::NotTried; n_events];
    outcomes[rejected] = Outcome::Failed(failure);
    outcomes
}

#[cfg(test)]
mod tests;
