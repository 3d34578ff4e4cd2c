//! `sqs`: events as messages of an Amazon SQS queue.
//!
//! A call has up to ten messages, and its response the result of each. A FIFO queue gets the account as the message group,
//! which keeps the order of its events, and the idempotency key of each event for its deduplication.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::{
    Checked, DestinationIds, Outcome, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::aws::arn::{Arn, ResourceType};
use crate::client::aws::auth::{self, Auth};
use crate::client::aws::{Aws, answer};
use crate::config::{invalid, parse, stored};
use crate::target::aws_resource;
use crate::target::envelope::event_type;
use crate::target::verdict::verdict;

const NAME: &str = "sqs";
const QUEUE: ResourceType = ResourceType {
    field: "queue_arn",
    service: "sqs",
    resource: "",
    is_regional: true,
};
const FIFO: &str = ".fifo";

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to an Amazon SQS queue as a message.",
    // A call takes 10 messages and 1 MiB with their attributes (model of the service, 2012-11-05).
    limits: BatchLimits {
        events_max: 10,
        bytes_max: (1 << 20) - 10 * 256,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: auth::merge,
    redact: auth::redact,
    open,
};

/// Configuration of the `sqs` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SqsTarget")]
struct Config {
    /// AWS authentication.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    auth: Option<Auth>,
    /// ARN of the queue: `arn:aws:sqs:<region>:<account>:<name>`. The name of a FIFO queue ends with `.fifo`.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    #[schemars(extend("pattern" = crate::config::ARN))]
    queue_arn: Option<String>,
}

fn check(given: &Value, _: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, given)?;
    let (auth, arn) = (config.auth.as_ref(), config.queue_arn.as_deref());
    aws_resource::check(NAME, QUEUE, auth, arn)?;
    queue_name(arn)?;
    Ok(stored(&config))
}

/// The account and the name of the queue, which are in its URL.
fn queue_name(arn: Option<&str>) -> Result<(&str, &str), Refusal> {
    let arn = Arn::check(arn, QUEUE)?;
    let name = arn.resource;
    let bare = name.strip_suffix(FIFO).unwrap_or(name);
    let is_name = |c: u8| c.is_ascii_alphanumeric() || b"-_".contains(&c);
    match (1..=80).contains(&name.len()) && !bare.is_empty() && bare.bytes().all(is_name) {
        true => Ok((arn.account, name)),
        false => Err(invalid(
            NAME,
            "`queue_arn` must end with the name of a queue",
        )),
    }
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let (auth, arn) = (config.auth.as_ref(), config.queue_arn.as_deref());
    let (account, name) = queue_name(arn)?;
    let (aws, _) = aws_resource::open(QUEUE, auth, arn, context, ids)?;
    let url = aws.endpoint().join(&format!("{account}/{name}"));
    let url = url.map_err(|_| invalid(NAME, "the endpoint of the service is not a base URL"))?;
    Ok(Arc::new(Sqs {
        aws,
        queue_url: url.into(),
        group: name.ends_with(FIFO).then(|| ids.account.to_owned()),
    }))
}

#[derive(Debug)]
struct Sqs {
    aws: Aws,
    queue_url: String,
    /// The message group; `None` for queues that are not FIFO.
    group: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SendMessageBatch<'a> {
    queue_url: &'a str,
    entries: Vec<Entry<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Entry<'a> {
    /// The position in the batch.
    id: String,
    message_body: Cow<'a, str>,
    message_attributes: Attributes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_deduplication_id: Option<String>,
}

#[derive(Serialize)]
struct Attributes<'a> {
    event_type: Attribute<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Attribute<'a> {
    data_type: &'static str,
    string_value: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BatchResponse {
    #[serde(default)]
    successful: Vec<Successful>,
    #[serde(default)]
    failed: Vec<Failed>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Successful {
    id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    id: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
    /// Whether the message is at fault, and not the service.
    #[serde(default)]
    sender_fault: bool,
}

impl Target for Sqs {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move { self.put(batch).await.map_or_else(Verdict::Failed, verdict) })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Sqs {
    async fn put(&self, batch: &Batch) -> Result<Vec<Outcome>, Failure> {
        let entries = batch.deliveries().enumerate();
        let entries: Option<Vec<Entry<'_>>> = entries
            .map(|(index, delivery)| self.entry(index, delivery))
            .collect();
        let not_text = || {
            let text = "an event is not valid UTF-8";
            Failure::new(FailureClass::Permanent, "text", text)
        };
        let request = SendMessageBatch {
            queue_url: &self.queue_url,
            entries: entries.ok_or_else(not_text)?,
        };
        let body = serde_json::to_vec(&request).expect("a request is plain JSON");
        let response = self.aws.json("AmazonSQS.SendMessageBatch", body.into());
        outcomes(&response.await?.text, batch.len())
    }

    fn entry<'a>(&'a self, index: usize, delivery: Delivery<'a>) -> Option<Entry<'a>> {
        let event_type = Attribute {
            data_type: "String",
            string_value: event_type(delivery.envelope).unwrap_or("event"),
        };
        Some(Entry {
            id: index.to_string(),
            message_body: body(std::str::from_utf8(delivery.payload()).ok()?),
            message_attributes: Attributes { event_type },
            message_group_id: self.group.as_deref(),
            message_deduplication_id: self.group.as_ref().map(|_| delivery.idempotency_key()),
        })
    }
}

/// An event as the body of a message. SQS refuses two characters (guide of `SendMessage`), which JSON has only in strings, where
/// an escape means the same.
fn body(event: &str) -> Cow<'_, str> {
    match event.contains(['\u{fffe}', '\u{ffff}']) {
        false => event.into(),
        true => {
            let event = event.replace('\u{fffe}', "\\ufffe");
            event.replace('\u{ffff}', "\\uffff").into()
        }
    }
}

/// The result of each message. One that the response does not mention may have been accepted.
fn outcomes(response: &str, n_messages: usize) -> Result<Vec<Outcome>, Failure> {
    let incomplete = || {
        let text = "the response lacks the results of the messages";
        Failure::new(FailureClass::Unknown, "answer", text)
    };
    let response: BatchResponse = serde_json::from_str(response).map_err(|_| incomplete())?;
    let mut outcomes = vec![Outcome::Failed(incomplete()); n_messages];
    let accepted = response.successful.into_iter();
    let accepted = accepted.map(|message| (message.id, Outcome::Delivered));
    let failed = response.failed.into_iter().map(Failed::outcome);
    for (id, outcome) in accepted.chain(failed) {
        let index = id.parse().ok();
        let place = index.and_then(|index: usize| outcomes.get_mut(index));
        *place.ok_or_else(incomplete)? = outcome;
    }
    Ok(outcomes)
}

impl Failed {
    fn outcome(self) -> (String, Outcome) {
        let by_fault = match self.sender_fault {
            true => FailureClass::Permanent,
            false => FailureClass::Retryable,
        };
        let class = answer::class_of(&self.code).unwrap_or(by_fault);
        let failure = Failure::new(class, self.code, self.message);
        (self.id, Outcome::Failed(failure))
    }
}

#[cfg(test)]
mod tests;
