//! `slack`: a message for each event to an incoming webhook of Slack.
//!
//! Facts of the protocol: Slack's "Sending messages using incoming webhooks" (requests, errors), "Block Kit" (lengths) and
//! "Formatting text for app surfaces" (`&`, `<` and `>` are markup, also that of mentions). The texts of events are in
//! objects of type `plain_text`, which have neither formatting nor links.

use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::HttpResponse;
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::config::{hide, keep_secret, parse, stored};
use crate::target::http_intake::{Classes, HttpIntake, VendorError, checked_webhook, class_of};
use crate::target::message::{Message, escaped};
use crate::target::message_pieces::{Posts, post_messages};
use crate::target::troubles::Troubles;

const NAME: &str = "slack";
/// Maximum characters of a header, of the text of a section, and of one of its fields.
const HEADER_MAX: usize = 150;
const SECTION_MAX: usize = 3000;
const FIELD_MAX: usize = 2000;
const FIELDS_MAX: usize = 10;

/// Errors in responses, which are a single word.
const CODES: Classes<&str> = &[
    (FailureClass::Auth, &["invalid_token", "token_revoked"]),
    (
        FailureClass::Config,
        &[
            "action_prohibited",
            "channel_is_archived",
            "channel_not_found",
            "no_active_hooks",
            "no_service",
            "no_service_id",
            "no_team",
            "posting_to_general_channel_denied",
            "team_disabled",
            "user_not_found",
        ],
    ),
    (
        FailureClass::Permanent,
        &[
            "invalid_blocks",
            "invalid_payload",
            "no_text",
            "too_many_attachments",
        ],
    ),
    (FailureClass::Retryable, &["rate_limited", "rollup_error"]),
];

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends a message for each event to an incoming webhook of Slack.",
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

/// Configuration of the `slack` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SlackTarget")]
struct Config {
    /// URL of the incoming webhook. Everyone who has it can post, so it is write-only. Required.
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
    let url = checked_webhook(NAME, &config.webhook_url, &context.settings().rules)?;
    Ok(Arc::new(Slack {
        intake: HttpIntake::of_json(url, context).with_secret_url(),
        public_base: context.settings().public_base.clone(),
        troubles: Mutex::default(),
    }))
}

#[derive(Debug)]
struct Slack {
    intake: HttpIntake,
    public_base: String,
    troubles: Mutex<Troubles>,
}

impl Target for Slack {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(post_messages(self, batch, &self.public_base))
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Posts for Slack {
    fn intake(&self) -> &HttpIntake {
        &self.intake
    }

    fn written(&self, messages: &[&Message]) -> Result<(Url, Value), Failure> {
        let body = messages
            .first()
            .map_or(Value::Null, |message| body(message));
        Ok((self.intake.url.clone(), body))
    }

    fn troubles(&self) -> Option<&Mutex<Troubles>> {
        Some(&self.troubles)
    }

    fn judge(&self, response: &HttpResponse) -> Result<(), Failure> {
        let said = response.text.trim();
        match (response.status, said) {
            (200, "ok") => return Ok(()),
            (200..300, _) => return Err(HttpIntake::foreign(response)),
            _ => {}
        }
        let error = VendorError {
            class: class_of(CODES, &said),
            code: said.to_owned(),
            text: String::new(),
        };
        Err(self.intake.failure(response, error))
    }
}

fn body(message: &Message) -> Value {
    let plain =
        |text: &str, max| json!({"type": "plain_text", "text": safe(text, max), "emoji": false});
    let mut blocks = vec![
        json!({"type": "header", "text": plain(&message.title, HEADER_MAX)}),
        json!({"type": "section", "text": plain(&message.text, SECTION_MAX)}),
    ];
    let fields = message.fields.iter().take(FIELDS_MAX);
    let fields = fields.map(|(name, value)| plain(&format!("{name}: {value}"), FIELD_MAX));
    let fields: Vec<_> = fields.collect();
    if !fields.is_empty() {
        blocks.push(json!({"type": "section", "fields": fields}));
    }
    if let Some(link) = &message.link {
        let link = format!("<{link}|Open the event in the console>");
        let link = json!({"type": "mrkdwn", "text": link, "verbatim": true});
        blocks.push(json!({"type": "context", "elements": [link]}));
    }
    json!({
        // For notifications, and for receivers that do not know blocks.
        "text": safe(&message.title, SECTION_MAX),
        "mrkdwn": false,
        "unfurl_links": false,
        "unfurl_media": false,
        "blocks": blocks,
    })
}

/// Text without markup.
fn safe(text: &str, max: usize) -> String {
    escaped(text, max, |c, out| match c {
        '&' => out.push_str("&amp;"),
        '<' => out.push_str("&lt;"),
        '>' => out.push_str("&gt;"),
        other => out.push(other),
    })
}

#[cfg(test)]
mod tests;
