//! `eventbridge`: events on an Amazon EventBridge bus.
//!
//! The detail type is the event type, and the detail the event, so rules match on both. A call has up to ten events, and its
//! response the result of each.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::aws::Aws;
use crate::client::aws::arn::ResourceType;
use crate::client::aws::auth::{self, Auth};
use crate::config::{invalid, parse, stored};
use crate::target::envelope::{event_time, event_type};
use crate::target::http_intake::{check_name, given};
use crate::target::{aws_resource, record_stream};

const NAME: &str = "eventbridge";
const SOURCE: &str = "culvert";
const BUS: ResourceType = ResourceType {
    field: "event_bus_arn",
    service: "events",
    resource: "event-bus/",
    is_regional: true,
};

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to an Amazon EventBridge bus.",
    // A call takes 10 entries and less than 1 MB with their source, type and time (model of the service, 2015-10-07).
    limits: BatchLimits {
        events_max: 10,
        bytes_max: 1_000_000 - 10 * 512,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: auth::merge,
    redact: auth::redact,
    open,
};

/// Configuration of the `eventbridge` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EventbridgeTarget")]
struct Config {
    /// AWS authentication.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    auth: Option<Auth>,
    /// ARN of the bus: `arn:aws:events:<region>:<account>:event-bus/<name>`.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    #[schemars(extend("pattern" = crate::config::ARN))]
    event_bus_arn: Option<String>,
    /// Source of the events, which rules match on. Default: `culvert`.
    #[serde(default)]
    source: Option<String>,
}

fn check(value: &Value, _: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, value)?;
    let (auth, arn) = (config.auth.as_ref(), config.event_bus_arn.as_deref());
    aws_resource::check(NAME, BUS, auth, arn)?;
    let source = given(&config.source);
    check_name(NAME, "source", source, 256, "/._-")?;
    // The service keeps these for its own events.
    if source.is_some_and(|source| source.starts_with("aws.")) {
        return Err(invalid(NAME, "`source` must not start with `aws.`"));
    }
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let (auth, arn) = (config.auth.as_ref(), config.event_bus_arn.as_deref());
    let (aws, _) = aws_resource::open(BUS, auth, arn, context, ids)?;
    Ok(Arc::new(Eventbridge {
        aws,
        source: given(&config.source).unwrap_or(SOURCE).to_owned(),
        bus: config.event_bus_arn.unwrap_or_default(),
    }))
}

#[derive(Debug)]
struct Eventbridge {
    aws: Aws,
    bus: String,
    source: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct PutEvents<'a> {
    entries: Vec<Entry<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Entry<'a> {
    event_bus_name: &'a str,
    source: &'a str,
    detail_type: &'a str,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<i64>,
    detail: &'a str,
}

impl Target for Eventbridge {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let entries = batch.deliveries().map(|delivery| self.entry(delivery));
            let Some(entries) = entries.collect() else {
                let text = "an event is not valid UTF-8";
                return Verdict::Failed(Failure::new(FailureClass::Permanent, "text", text));
            };
            let request = PutEvents { entries };
            record_stream::put(&self.aws, "AWSEvents.PutEvents", &request, batch.len()).await
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Eventbridge {
    fn entry<'a>(&'a self, delivery: Delivery<'a>) -> Option<Entry<'a>> {
        Some(Entry {
            event_bus_name: &self.bus,
            source: &self.source,
            detail_type: event_type(delivery.envelope).unwrap_or("event"),
            time: event_time(delivery.envelope).map(|at| at.unix_seconds()),
            detail: std::str::from_utf8(delivery.payload()).ok()?,
        })
    }
}

#[cfg(test)]
mod tests;
