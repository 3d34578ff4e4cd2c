//! `discord`: events as embeds of messages to a webhook of Discord, up to ten in one.
//!
//! Facts of the protocol: Discord's reference, "Execute Webhook", "Embed Limits", "Allowed Mentions Object" and "Rate
//! Limits". No mention notifies anyone, because `allowed_mentions` is empty; the texts of events are escaped too.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use culvert_base::{BoxFuture, Entropy, Refusal, RetryAfter};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::HttpResponse;
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::config::{hide, keep_secret, parse, stored};
use crate::target::http_intake::{Classes, HttpIntake, VendorError, checked_webhook, class_of};
use crate::target::message::{Message, Severity, escaped};
use crate::target::message_pieces::{Posts, post_messages};
use crate::target::troubles::Troubles;

const NAME: &str = "discord";
/// Maximum embeds of a message, and characters of all their texts.
const EMBEDS_MAX: usize = 10;
const MESSAGE_MAX: usize = 6000;
/// Maximum characters of a title. Descriptions and values may have 4096 and 1024, but then one embed could exceed the
/// limit of the message.
const TITLE_MAX: usize = 256;
const DESCRIPTION_MAX: usize = 2000;
const VALUE_MAX: usize = 256;

/// JSON error codes. Others go by the HTTP status.
const CODES: Classes<u64> = &[
    // Unauthorized; invalid webhook token.
    (FailureClass::Auth, &[40_001, 50_027]),
    // Unknown channel; unknown webhook; a thread is required.
    (FailureClass::Config, &[10_003, 10_015, 220_001]),
];

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends events as messages to a webhook of Discord.",
    limits: BatchLimits {
        events_max: 10,
        bytes_max: 512 << 10,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        keep_secret(stored, &mut given, "", "webhook_url");
        given
    },
    redact: |stored| hide(stored, "/webhook_url", Value::Null),
    open,
};

/// Configuration of the `discord` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DiscordTarget")]
struct Config {
    /// URL of the webhook, which may name a thread by `?thread_id=`. Everyone who has it can post, so it is write-only. Required.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true, "x-culvert-required" = true))]
    webhook_url: Option<String>,
}

fn check(value: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, value)?;
    checked_webhook(NAME, &config.webhook_url, &settings.rules)?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let mut url = checked_webhook(NAME, &config.webhook_url, &context.settings().rules)?;
    // The response then comes when the message is stored, and has its ID.
    let others = url.query_pairs().filter(|(name, _)| name != "wait");
    let others: Vec<_> = others
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    url.query_pairs_mut()
        .clear()
        .extend_pairs(others)
        .append_pair("wait", "true");
    Ok(Arc::new(Discord {
        intake: HttpIntake::of_json(url, context).with_secret_url(),
        public_base: context.settings().public_base.clone(),
        troubles: Mutex::default(),
    }))
}

#[derive(Debug)]
struct Discord {
    intake: HttpIntake,
    public_base: String,
    troubles: Mutex<Troubles>,
}

impl Target for Discord {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(post_messages(self, batch, &self.public_base))
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

/// The body of an error.
#[derive(Default, Deserialize)]
struct Report {
    #[serde(default)]
    message: String,
    code: Option<u64>,
    /// Seconds.
    retry_after: Option<f64>,
}

impl Posts for Discord {
    fn intake(&self) -> &HttpIntake {
        &self.intake
    }

    fn written(&self, messages: &[&Message]) -> Result<(Url, Value), Failure> {
        let embeds: Vec<_> = messages
            .iter()
            .map(|message| Embed::of(message).json)
            .collect();
        let body = json!({"embeds": embeds, "allowed_mentions": {"parse": []}});
        Ok((self.intake.url.clone(), body))
    }

    fn fits(&self, before: &[&Message], next: &Message) -> bool {
        let size = |message: &&Message| Embed::of(message).chars;
        let used: usize = before.iter().map(size).sum();
        before.len() < EMBEDS_MAX && used + size(&next) <= MESSAGE_MAX
    }

    fn troubles(&self) -> Option<&Mutex<Troubles>> {
        Some(&self.troubles)
    }

    fn judge(&self, response: &HttpResponse) -> Result<(), Failure> {
        if response.status == 204 {
            // A receiver that does not know `wait`.
            return Ok(());
        }
        if (200..300).contains(&response.status) {
            let said: Value = serde_json::from_slice(&response.body).unwrap_or_default();
            let is_message = said["id"].is_string() && said["channel_id"].is_string();
            return match is_message {
                true => Ok(()),
                false => Err(HttpIntake::foreign(response)),
            };
        }
        let report: Report = serde_json::from_slice(&response.body).unwrap_or_default();
        // Rate limits have the code 0.
        let code = report.code.filter(|code| *code != 0);
        let error = VendorError {
            class: code.and_then(|code| class_of(CODES, &code)),
            code: code.map_or_else(String::new, |code| code.to_string()),
            text: report.message,
        };
        let mut failure = self.intake.failure(response, error);
        let asked = report.retry_after.map(Duration::try_from_secs_f64);
        if let Some(Ok(asked)) = asked.filter(|_| response.status == 429) {
            // More exact than the header, which has whole seconds.
            failure.after = Some(RetryAfter::new(asked));
        }
        Err(failure)
    }
}

/// An embed, and the characters that count towards the limit of the message.
struct Embed {
    json: Value,
    chars: usize,
}

impl Embed {
    fn of(message: &Message) -> Self {
        let mut chars = 0;
        let mut counted = |text: String| {
            chars += text.encode_utf16().count();
            text
        };
        let color = match (message.severity, &message.alert) {
            (_, Some(alert)) if alert.is_resolved => 0x002e_a043,
            (Severity::Critical, _) => 0x00d1_242f,
            (Severity::Warning, _) => 0x00d2_9922,
            (Severity::Info, _) => 0x0057_606a,
        };
        let mut json = json!({
            "title": counted(safe(&message.title, TITLE_MAX)),
            "description": counted(safe(&message.text, DESCRIPTION_MAX)),
            "color": color,
        });
        let fields = message.fields.iter().map(|(name, value)| {
            let (name, value) = (counted((*name).to_owned()), counted(safe(value, VALUE_MAX)));
            json!({"name": name, "value": value, "inline": true})
        });
        json["fields"] = fields.collect();
        if let Some(link) = &message.link {
            json["url"] = link.as_str().into();
        }
        if let Some(at) = message.at {
            json["timestamp"] = at.to_millis_text().into();
        }
        Self { json, chars }
    }
}

/// Text without Markdown and without mentions.
fn safe(text: &str, max: usize) -> String {
    escaped(text, max, |c, out| match c {
        // A character without width, because no escape prevents this mention.
        '@' => out.push_str("@\u{200b}"),
        '\\' | '*' | '_' | '~' | '`' | '|' | '>' | '<' | '#' | '[' | ']' | '(' | ')' | '-' => {
            out.push('\\');
            out.push(c);
        }
        other => out.push(other),
    })
}

#[cfg(test)]
mod tests;
