//! `loki`: events as lines of Grafana Loki, by its push interface.
//!
//! Events with equal labels form a stream, sorted by time. Loki stores a line with the time and text of a stored one once,
//! so repetitions have no effect. It rejects lines that are too old or too far behind, and takes the others of the request.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use culvert_base::batch::BatchClass;
use culvert_base::{BoxFuture, Entropy, Refusal, Timestamp};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::{HttpResponse, Net};
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::http_failure::class_of_status;
use crate::config::{invalid, parse, stored};
use crate::target::envelope::{event_time, event_type};
use crate::target::http_intake::{
    HttpIntake, UserOrToken, VendorError, check_name, check_text, checked_base, given,
};

const NAME: &str = "loki";
const PATH: &str = "/loki/api/v1/push";
/// Loki's default limit is 15 labels of a stream; some come from events.
const LABELS_MAX: usize = 10;
const LABEL_BYTES_MAX: usize = 200;

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to Grafana Loki as a log line.",
    // Escaped in JSON, below the 4 MB that Loki takes by default.
    limits: BatchLimits {
        events_max: 1000,
        bytes_max: 1 << 20,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, given| UserOrToken::merge(stored, given, "token"),
    redact: |stored| UserOrToken::redact(stored, "token"),
    open,
};

/// Configuration of the `loki` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LokiTarget")]
struct Config {
    /// Base URL, such as `https://loki.example:3100`; `/loki/api/v1/push` is appended.
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    url: String,
    /// Tenant, sent as `X-Scope-OrgID`.
    #[serde(default)]
    tenant: Option<String>,
    /// Up to 10 labels of all lines. Default: `service_name` with the value `culvert`.
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    /// Labels with a value from each event: `event_type`, `class` (`audit` or `traffic`) and `account_id`. Default: `event_type`.
    #[serde(default)]
    event_labels: Option<Vec<EventLabel>>,
    /// User for HTTP Basic authentication.
    #[serde(default)]
    user: Option<String>,
    /// Password of the user. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    password: Option<String>,
    /// Bearer token, in place of a user. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    token: Option<String>,
}

/// A label with few values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LokiTargetEventLabel")]
enum EventLabel {
    EventType,
    Class,
    AccountId,
}

impl EventLabel {
    fn name(self) -> &'static str {
        match self {
            Self::EventType => "event_type",
            Self::Class => "class",
            Self::AccountId => "account_id",
        }
    }
}

impl Config {
    fn choice(&self) -> UserOrToken<'_> {
        UserOrToken {
            user: given(&self.user),
            password: given(&self.password),
            token: given(&self.token),
            field: "token",
            scheme: "Bearer",
        }
    }

    /// Checks the labels of all lines.
    fn check_labels(&self) -> Result<(), Refusal> {
        let labels = self.labels.iter().flatten();
        let of_events = self.event_labels.as_deref().unwrap_or_default();
        let n_labels = labels.clone().count();
        if n_labels > LABELS_MAX || n_labels + of_events.len() == 0 {
            return Err(invalid(
                NAME,
                "`labels` and `event_labels` must have 1 to 10 entries",
            ));
        }
        for (name, value) in labels {
            check_name(NAME, "labels", Some(name), LABEL_BYTES_MAX, "_")?;
            check_text(NAME, "labels", Some(value), LABEL_BYTES_MAX)?;
            // Loki itself uses names that start with two underscores.
            let is_name =
                !name.starts_with("__") && !name.starts_with(|c: char| c.is_ascii_digit());
            if !is_name || of_events.iter().any(|label| label.name() == name) {
                return Err(invalid(
                    NAME,
                    "a name in `labels` must not start with a digit or `__`, or be in `event_labels`",
                ));
            }
        }
        for (index, label) in of_events.iter().enumerate() {
            if of_events[..index].contains(label) {
                return Err(invalid(NAME, "an entry of `event_labels` is repeated"));
            }
        }
        Ok(())
    }
}

fn check(value: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, value)?;
    checked_base(NAME, &config.url, &settings.rules)?;
    check_name(NAME, "tenant", given(&config.tenant), 150, "!-_.*'()|")?;
    config.labels.get_or_insert_with(|| {
        let label = ("service_name".to_owned(), "culvert".into());
        [label].into_iter().collect()
    });
    let of_events = &mut config.event_labels;
    of_events.get_or_insert_with(|| vec![EventLabel::EventType]);
    config.check_labels()?;
    config.choice().credentials(NAME)?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let credentials = config.choice().credentials(NAME)?;
    let mut intake = HttpIntake::open(NAME, &config.url, PATH, "application/json", context)?
        .authenticated(NAME, credentials)?;
    if let Some(tenant) = given(&config.tenant) {
        intake = intake.with(NAME, "x-scope-orgid", tenant)?;
    }
    Ok(Arc::new(Loki {
        intake,
        labels: config.labels.unwrap_or_default(),
        event_labels: config.event_labels.unwrap_or_default(),
        account: ids.account.to_owned(),
        net: context.net().clone(),
    }))
}

#[derive(Debug)]
struct Loki {
    intake: HttpIntake,
    labels: BTreeMap<String, String>,
    event_labels: Vec<EventLabel>,
    account: String,
    net: Net,
}

/// The body of a request.
#[derive(Serialize)]
struct Push<'a> {
    streams: Vec<Stream<'a>>,
}

/// Lines with equal labels.
#[derive(Serialize)]
struct Stream<'a> {
    stream: BTreeMap<&'a str, &'a str>,
    /// Nanoseconds as text, and the line.
    values: Vec<(String, &'a str)>,
}

impl Target for Loki {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.push(batch).await {
                Ok(()) => Verdict::Delivered,
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Loki {
    async fn push(&self, batch: &Batch) -> Result<(), Failure> {
        let not_text = |_| {
            let text = "an event is not valid UTF-8";
            Failure::new(FailureClass::Permanent, "text", text)
        };
        let mut streams = BTreeMap::<_, Vec<(Timestamp, &str)>>::new();
        for delivery in batch.deliveries() {
            let line = std::str::from_utf8(delivery.payload()).map_err(not_text)?;
            let at = event_time(delivery.envelope).unwrap_or_else(|| self.net.now());
            let lines = streams.entry(self.labels_of(batch.class(), delivery));
            lines.or_default().push((at, line));
        }
        let streams = streams.into_iter().map(|(stream, mut lines)| {
            // A stable sort keeps the order of lines of one moment.
            lines.sort_by_key(|(at, _)| *at);
            let values = lines
                .into_iter()
                .map(|(at, line)| (at.unix_nanos().to_string(), line));
            Stream {
                stream,
                values: values.collect(),
            }
        });
        let push = Push {
            streams: streams.collect(),
        };
        let body = serde_json::to_vec(&push).expect("a request is plain JSON");
        let response = self.intake.send(self.intake.batch_request(&body)).await?;
        match class_of_status(response.status) {
            Ok(()) if is_page(&response) => Err(HttpIntake::foreign(&response)),
            Ok(()) => Ok(()),
            Err(by_status) => {
                let class = Some(class_of(by_status, &response.text));
                let error = VendorError {
                    class,
                    ..VendorError::default()
                };
                Err(self.intake.failure(&response, error))
            }
        }
    }

    fn labels_of<'a>(
        &'a self,
        class: BatchClass,
        delivery: Delivery<'a>,
    ) -> BTreeMap<&'a str, &'a str> {
        let of_all = self.labels.iter();
        let of_all = of_all.map(|(name, value)| (name.as_str(), value.as_str()));
        let of_event = self.event_labels.iter().map(|label| {
            let value = match label {
                EventLabel::EventType => event_type(delivery.envelope).unwrap_or("event"),
                EventLabel::Class => class.name(),
                EventLabel::AccountId => &self.account,
            };
            (label.name(), value)
        });
        of_all.chain(of_event).collect()
    }
}

/// Whether a response is a page for people, as of a proxy. Loki itself responds with status 204.
fn is_page(response: &HttpResponse) -> bool {
    let content_type = response.headers.get(header::CONTENT_TYPE);
    let is_html = content_type.is_some_and(|ty| ty.as_bytes().starts_with(b"text/html"));
    is_html || response.text.trim_start().starts_with('<')
}

/// Loki reports some faults that are not of the content with status 400 or 500, and only its text tells them apart.
fn class_of(by_status: FailureClass, text: &str) -> FailureClass {
    let says = |word: &str| text.contains(word);
    match by_status {
        FailureClass::Permanent if says("no org id") => FailureClass::Auth,
        FailureClass::Retryable if says("message larger than max") => FailureClass::Split,
        other => other,
    }
}

#[cfg(test)]
mod tests;
