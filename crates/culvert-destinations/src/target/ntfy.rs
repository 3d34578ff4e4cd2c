//! `ntfy`: a notification for each event to a topic of an ntfy server.
//!
//! Facts of the protocol: ntfy's documentation, "Publishing", sections "Publish as JSON", "Message priority", "Access
//! tokens" and "Limitations".

use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::Failure;
use culvert_target::net::HttpResponse;
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::config::{hide, keep_secret, parse, stored};
use crate::target::http_intake::{
    Credentials, HttpIntake, VendorError, check_name, check_secret, checked_base, given,
};
use crate::target::message::{Message, Severity, cut, cut_bytes};
use crate::target::message_pieces::{Posts, post_messages};
use crate::target::troubles::Troubles;

const NAME: &str = "ntfy";
const TOPIC_BYTES_MAX: usize = 64;
const TITLE_MAX: usize = 250;
/// A longer message becomes an attached file: the server's limit is 4096.
const MESSAGE_BYTES_MAX: usize = 4000;

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends a notification for each event to a topic of an ntfy server.",
    limits: BatchLimits {
        events_max: 10,
        bytes_max: 512 << 10,
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

/// Configuration of the `ntfy` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NtfyTarget")]
struct Config {
    /// URL of the server, such as `https://ntfy.sh`.
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    url: String,
    /// Topic: 1 to 64 letters, digits, `_` and `-`. On a server without access control, everyone who knows it can read it.
    topic: String,
    /// Access token, such as `tk_…`, if the server requires one. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    token: Option<String>,
}

fn check(value: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, value)?;
    checked_base(NAME, &config.url, &settings.rules)?;
    check_name(NAME, "topic", Some(&config.topic), TOPIC_BYTES_MAX, "_-")?;
    check_secret(NAME, "token", given(&config.token))?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let url = checked_base(NAME, &config.url, &context.settings().rules)?;
    let credentials = match given(&config.token) {
        Some(token) => Credentials::Token("Bearer", token),
        None => Credentials::None,
    };
    Ok(Arc::new(Ntfy {
        intake: HttpIntake::of_json(url, context).authenticated(NAME, credentials)?,
        topic: config.topic,
        public_base: context.settings().public_base.clone(),
        troubles: Mutex::default(),
    }))
}

#[derive(Debug)]
struct Ntfy {
    intake: HttpIntake,
    topic: String,
    public_base: String,
    troubles: Mutex<Troubles>,
}

impl Target for Ntfy {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(post_messages(self, batch, &self.public_base))
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Posts for Ntfy {
    fn intake(&self) -> &HttpIntake {
        &self.intake
    }

    fn written(&self, messages: &[&Message]) -> Result<(Url, Value), Failure> {
        let body = messages
            .first()
            .map_or(Value::Null, |message| self.body(message));
        Ok((self.intake.url.clone(), body))
    }

    fn troubles(&self) -> Option<&Mutex<Troubles>> {
        Some(&self.troubles)
    }

    fn judge(&self, response: &HttpResponse) -> Result<(), Failure> {
        let said: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        if (200..300).contains(&response.status) {
            return match said["event"] == "message" && said["id"].is_string() {
                true => Ok(()),
                false => Err(HttpIntake::foreign(response)),
            };
        }
        let code = said["code"].as_u64();
        let error = VendorError {
            class: None,
            code: code.map_or_else(String::new, |code| code.to_string()),
            text: said["error"].as_str().unwrap_or_default().to_owned(),
        };
        Err(self.intake.failure(response, error))
    }
}

impl Ntfy {
    fn body(&self, message: &Message) -> Value {
        let is_resolved = message
            .alert
            .as_ref()
            .is_some_and(|alert| alert.is_resolved);
        // 5 is the maximum, 3 the default.
        let (priority, tag) = match (is_resolved, message.severity) {
            (true, _) => (3, "white_check_mark"),
            (false, Severity::Critical) => (5, "rotating_light"),
            (false, Severity::Warning) => (4, "warning"),
            (false, Severity::Info) => (3, "information_source"),
        };
        let mut text = message.text.clone();
        for (name, value) in &message.fields {
            text.push_str(&format!("\n{name}: {value}"));
        }
        let mut body = json!({
            "topic": self.topic,
            "title": cut(&message.title, TITLE_MAX),
            "message": cut_bytes(&text, MESSAGE_BYTES_MAX),
            "priority": priority,
            "tags": [tag],
        });
        if let Some(link) = &message.link {
            body["click"] = link.as_str().into();
        }
        body
    }
}

#[cfg(test)]
mod tests;
