//! `pagerduty`: alerts that trigger and resolve incidents of PagerDuty, and all other events as changes.
//!
//! Facts of the protocol: PagerDuty's developer documentation, "Events API v2": "Send an Alert Event", "Send a Change Event"
//! and the table of their responses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use url::Url;

use culvert_base::sync::lock;
use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::HttpResponse;
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::config::{hide, invalid, keep_secret, parse, stored};
use crate::target::http_intake::{HttpIntake, VendorError, checked_base, given};
use crate::target::message::{Alert, Message, cut};
use crate::target::message_pieces::{Posts, post_messages};
use crate::target::troubles::Troubles;

const NAME: &str = "pagerduty";
const BASE: &str = "https://events.pagerduty.com";
const KEY_LENGTH: usize = 32;
const SUMMARY_MAX: usize = 1024;
/// Resolved alerts that are remembered, until a restart.
const RESOLVED_MAX: usize = 1_024;
const DEDUP_KEY_MAX: usize = 255;

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Triggers and resolves incidents of PagerDuty by alerts, and sends all other events as change events.",
    limits: BatchLimits {
        events_max: 10,
        bytes_max: 512 << 10,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        keep_secret(stored, &mut given, "", "routing_key");
        given
    },
    redact: |stored| hide(stored, "/routing_key", Value::Null),
    open,
};

/// Configuration of the `pagerduty` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PagerdutyTarget")]
struct Config {
    /// Integration key of the service, of the type Events API v2: 32 letters and digits. Required, write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true, "x-culvert-required" = true))]
    routing_key: Option<String>,
    /// Base URL of the Events API. Default: `https://events.pagerduty.com`; accounts in the EU have
    /// `https://events.eu.pagerduty.com`.
    #[serde(default)]
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    url: Option<String>,
}

fn check(value: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, value)?;
    let key = given(&config.routing_key).unwrap_or_default();
    let is_key = key.len() == KEY_LENGTH && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_key {
        return Err(invalid(NAME, "`routing_key` must be 32 letters and digits"));
    }
    checked_base(NAME, given(&config.url).unwrap_or(BASE), &settings.rules)?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let base = given(&config.url).unwrap_or(BASE);
    let base = checked_base(NAME, base, &context.settings().rules)?;
    let at = |path: &str| {
        let mut url = base.clone();
        url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
        url
    };
    let routing_key = config.routing_key.unwrap_or_default();
    let source = Url::parse(&context.settings().public_base).ok();
    let source = source.as_ref().and_then(Url::host_str);
    Ok(Arc::new(Pagerduty {
        changes: at("/v2/change/enqueue"),
        intake: HttpIntake::of_json(at("/v2/enqueue"), context).hiding(&routing_key),
        routing_key: culvert_base::Secret::new(routing_key),
        source: source.unwrap_or("culvert").to_owned(),
        public_base: context.settings().public_base.clone(),
        resolved: Mutex::default(),
    }))
}

#[derive(Debug)]
struct Pagerduty {
    intake: HttpIntake,
    changes: Url,
    routing_key: culvert_base::Secret,
    /// The system that has the problem: the host of this server's API.
    source: String,
    public_base: String,
    /// IDs of the last resolved alerts, oldest first. An event about the beginning of one that is sent again must not open
    /// its incident: no end follows.
    resolved: Mutex<VecDeque<String>>,
}

impl Target for Pagerduty {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(post_messages(self, batch, &self.public_base))
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

/// The body of a response.
#[derive(Default, Deserialize)]
struct Report {
    #[serde(default)]
    status: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    errors: Vec<String>,
}

impl Posts for Pagerduty {
    fn intake(&self) -> &HttpIntake {
        &self.intake
    }

    fn written(&self, messages: &[&Message]) -> Result<(Url, Value), Failure> {
        let Some(message) = messages.first() else {
            return Ok((self.changes.clone(), Value::Null));
        };
        match &message.alert {
            Some(alert) => Ok((self.intake.url.clone(), self.alert(alert, message)?)),
            None => Ok((self.changes.clone(), self.change(message))),
        }
    }

    fn troubles(&self) -> Option<&Mutex<Troubles>> {
        // It has one incident for each `dedup_key`.
        None
    }

    fn judge(&self, response: &HttpResponse) -> Result<(), Failure> {
        let report: Report = serde_json::from_slice(&response.body).unwrap_or_default();
        if (200..300).contains(&response.status) {
            return match report.status == "success" {
                true => Ok(()),
                false => Err(HttpIntake::foreign(response)),
            };
        }
        let is_about_key = |text: &String| {
            let text = text.to_ascii_lowercase();
            text.contains("routing_key") || text.contains("routing key")
        };
        // A wrong key has the status of wrong content.
        let is_key = response.status == 400 && report.errors.iter().any(is_about_key);
        let mut text = report.message;
        for error in &report.errors {
            text.push_str(": ");
            text.push_str(error);
        }
        let error = VendorError {
            class: is_key.then_some(FailureClass::Auth),
            code: String::new(),
            text,
        };
        Err(self.intake.failure(response, error))
    }
}

impl Pagerduty {
    /// Whether an alert is resolved, by this event or an earlier one.
    fn is_resolved(&self, alert: &Alert) -> bool {
        let mut resolved = lock(&self.resolved);
        let is_known = resolved.contains(&alert.id);
        if alert.is_resolved && !is_known {
            if resolved.len() >= RESOLVED_MAX {
                resolved.pop_front();
            }
            resolved.push_back(alert.id.clone());
        }
        alert.is_resolved || is_known
    }

    fn alert(&self, alert: &Alert, message: &Message) -> Result<Value, Failure> {
        if alert.id.is_empty() {
            let text = "the alert has no ID, so it cannot be resolved later";
            return Err(Failure::new(FailureClass::Permanent, "alert", text));
        }
        let is_resolved = self.is_resolved(alert);
        let mut event = json!({
            "routing_key": self.routing_key.reveal(),
            "event_action": if is_resolved { "resolve" } else { "trigger" },
            "dedup_key": cut(&alert.id, DEDUP_KEY_MAX),
        });
        if !is_resolved {
            let mut payload = self.payload(message);
            payload["severity"] = message.severity.name().into();
            payload["class"] = message.kind.as_str().into();
            event["payload"] = payload;
            event["client"] = "culvert".into();
            event["links"] = links(message);
            if let Some(link) = &message.link {
                event["client_url"] = link.as_str().into();
            }
        }
        Ok(event)
    }

    fn change(&self, message: &Message) -> Value {
        json!({
            "routing_key": self.routing_key.reveal(),
            "payload": self.payload(message),
            "links": links(message),
        })
    }

    fn payload(&self, message: &Message) -> Value {
        let fields = message.fields.iter();
        let details = fields.map(|(name, value)| ((*name).to_owned(), value.as_str().into()));
        let mut payload = json!({
            "summary": cut(&message.text, SUMMARY_MAX),
            "source": self.source,
            "custom_details": details.collect::<Map<_, _>>(),
        });
        if let Some(at) = message.at {
            payload["timestamp"] = at.to_millis_text().into();
        }
        payload
    }
}

fn links(message: &Message) -> Value {
    let links = message.link.iter();
    links
        .map(|link| json!({"href": link, "text": "Open the event in the console"}))
        .collect()
}

#[cfg(test)]
mod tests;
