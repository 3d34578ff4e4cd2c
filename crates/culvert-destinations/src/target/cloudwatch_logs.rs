//! `cloudwatch_logs`: events as entries of an Amazon CloudWatch log group (contract: destinations
//! 3.3).
//!
//! Each node writes to its own log stream for each day, and creates missing streams. The service
//! requires that the entries of one call are sorted by time and span at most 24 hours, so a batch
//! that spans more is sent in several calls.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use culvert_base::{BoxFuture, Entropy, Refusal, Timestamp};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::Net;
use culvert_target::{
    Checked, DestinationIds, Outcome, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::aws::Aws;
use crate::client::aws::arn::ResourceType;
use crate::client::aws::auth::{self, Auth};
use crate::config::{parse, stored};
use crate::target::aws_resource;
use crate::target::envelope::event_time;
use crate::target::verdict::verdict;

const NAME: &str = "cloudwatch_logs";
const GROUP: ResourceType = ResourceType {
    field: "log_group_arn",
    service: "logs",
    resource: "log-group:",
    is_regional: true,
};
/// Bytes that the service counts for each entry besides its text.
const EVENT_OVERHEAD: usize = 26;
const EVENTS_MAX: u32 = 8_000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MISSING: &str = "ResourceNotFoundException";

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Writes each event to an Amazon CloudWatch log group, with one log stream per node and day.",
    // Together with the overhead of the entries below 1,048,576 bytes.
    limits: BatchLimits {
        events_max: EVENTS_MAX,
        bytes_max: (1 << 20) - EVENTS_MAX as usize * EVENT_OVERHEAD,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: auth::merge,
    redact: auth::redact,
    open,
};

/// Configuration of the `cloudwatch_logs` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CloudwatchLogsTarget")]
struct Config {
    /// AWS authentication.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    auth: Option<Auth>,
    /// ARN of the log group: `arn:aws:logs:<region>:<account>:log-group:<name>`. The group must
    /// exist; log streams are created in it.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    #[schemars(extend("pattern" = crate::config::ARN))]
    log_group_arn: Option<String>,
}

fn check(given: &Value, _: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, given)?;
    let (auth, arn) = (config.auth.as_ref(), config.log_group_arn.as_deref());
    aws_resource::check(NAME, GROUP, auth, arn)?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let (auth, arn) = (config.auth.as_ref(), config.log_group_arn.as_deref());
    let (aws, group) = aws_resource::open(GROUP, auth, arn, context, ids)?;
    let node: String = context
        .settings()
        .node
        .chars()
        .map(|c| {
            if matches!(c, ':' | '*') || c.is_control() {
                '-'
            } else {
                c
            }
        })
        .take(200)
        .collect();
    Ok(Arc::new(CloudwatchLogs {
        aws,
        group,
        streams: format!("culvert/{}/{node}", ids.destination),
        net: context.net().clone(),
    }))
}

#[derive(Debug)]
struct CloudwatchLogs {
    aws: Aws,
    group: String,
    /// Prefix of the names of our log streams.
    streams: String,
    net: Net,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PutLogEvents<'a> {
    log_group_name: &'a str,
    log_stream_name: &'a str,
    log_events: Vec<LogEvent<'a>>,
}

#[derive(Serialize)]
struct LogEvent<'a> {
    timestamp: i64,
    message: &'a str,
}

/// An event of the batch, with its position.
#[derive(Clone, Copy)]
struct DatedEvent<'a> {
    index: usize,
    at: Timestamp,
    text: &'a str,
}

/// The service's report on rejected entries of an accepted call, by position.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rejected {
    too_new_log_event_start_index: Option<usize>,
    too_old_log_event_end_index: Option<usize>,
    expired_log_event_end_index: Option<usize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Put {
    rejected_log_events_info: Option<Rejected>,
}

impl Target for CloudwatchLogs {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let now = self.net.now();
            let mut events: Vec<DatedEvent<'_>> = batch
                .deliveries()
                .enumerate()
                .filter_map(|(index, delivery)| {
                    Some(DatedEvent {
                        index,
                        at: event_time(delivery.envelope).unwrap_or(now),
                        text: std::str::from_utf8(delivery.payload()).ok()?,
                    })
                })
                .collect();
            events.sort_by_key(|event| event.at);
            let not_text = Failure::new(
                FailureClass::Permanent,
                "text",
                "the event is not valid UTF-8",
            );
            let mut outcomes = vec![Outcome::Failed(not_text); batch.len()];
            for event in &events {
                outcomes[event.index] = Outcome::NotTried;
            }
            for call in within_a_day(&events) {
                match self.put(call).await {
                    Ok(rejected) => {
                        for (position, event) in call.iter().enumerate() {
                            outcomes[event.index] = rejected.outcome(position);
                        }
                    }
                    // Nothing was accepted yet, so the failure applies to the whole batch, which
                    // may be split.
                    Err(failure) if call.len() == batch.len() => return Verdict::Failed(failure),
                    Err(failure) => {
                        for event in call {
                            outcomes[event.index] = Outcome::Failed(failure.clone());
                        }
                        break;
                    }
                }
            }
            verdict(outcomes)
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

/// Splits entries into calls that span less than a day each.
fn within_a_day<'e, 'a>(mut events: &'e [DatedEvent<'a>]) -> Vec<&'e [DatedEvent<'a>]> {
    let mut calls = Vec::new();
    while let Some(first) = events.first() {
        let end = events.partition_point(|event| event.at.since(first.at) < DAY);
        let (call, rest) = events.split_at(end.max(1));
        calls.push(call);
        events = rest;
    }
    calls
}

impl CloudwatchLogs {
    async fn put(&self, events: &[DatedEvent<'_>]) -> Result<Rejected, Failure> {
        let day: String = self.net.now().to_millis_text().chars().take(10).collect();
        let stream = format!("{}/{day}", self.streams);
        let request = PutLogEvents {
            log_group_name: &self.group,
            log_stream_name: &stream,
            log_events: events
                .iter()
                .map(|event| LogEvent {
                    timestamp: event.at.unix_millis(),
                    message: event.text,
                })
                .collect(),
        };
        let body: bytes::Bytes = serde_json::to_vec(&request)
            .expect("a request is plain JSON")
            .into();
        let operation = "Logs_20140328.PutLogEvents";
        let answer = match self.aws.json(operation, body.clone()).await {
            Err(failure) if failure.code == MISSING => {
                self.make(&stream).await?;
                self.aws.json(operation, body).await?
            }
            other => other?,
        };
        // An empty body means that all entries were accepted.
        let put = serde_json::from_str::<Put>(&answer.text);
        Ok(put
            .ok()
            .and_then(|put| put.rejected_log_events_info)
            .unwrap_or_default())
    }

    /// Creates the log stream. Succeeds if it exists.
    async fn make(&self, stream: &str) -> Result<(), Failure> {
        let request = json!({"logGroupName": self.group, "logStreamName": stream});
        let body = request.to_string().into();
        match self.aws.json("Logs_20140328.CreateLogStream", body).await {
            Err(failure) if failure.code != "ResourceAlreadyExistsException" => Err(failure),
            _ => Ok(()),
        }
    }
}

impl Rejected {
    /// The outcome of the entry at `position`.
    fn outcome(&self, position: usize) -> Outcome {
        let before = |end: Option<usize>| end.is_some_and(|end| position < end);
        let (code, text) = if before(self.expired_log_event_end_index) {
            (
                "expired",
                "the event is older than the retention of the log group",
            )
        } else if before(self.too_old_log_event_end_index) {
            ("too_old", "the event is more than 14 days old")
        } else if self
            .too_new_log_event_start_index
            .is_some_and(|start| position >= start)
        {
            ("too_new", "the event is more than 2 hours in the future")
        } else {
            return Outcome::Delivered;
        };
        Outcome::Failed(Failure::new(FailureClass::Permanent, code, text))
    }
}

#[cfg(test)]
mod tests;
