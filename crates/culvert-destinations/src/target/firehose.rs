//! `firehose`: events as lines into an Amazon Data Firehose stream (contract: destinations 3.2).

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::aws::Aws;
use crate::client::aws::arn::ResourceType;
use crate::client::aws::auth::{self, Auth};
use crate::config::{parse, stored};
use crate::target::{aws_resource, record_stream};

const NAME: &str = "firehose";
const STREAM: ResourceType = ResourceType {
    field: "delivery_stream_arn",
    service: "firehose",
    resource: "deliverystream/",
    is_regional: true,
};

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to an Amazon Data Firehose stream as a JSON line.",
    limits: BatchLimits {
        events_max: 500,
        bytes_max: 7 << 19,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: auth::merge,
    redact: auth::redact,
    open,
};

/// Configuration of the `firehose` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FirehoseTarget")]
struct Config {
    /// AWS authentication.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    auth: Option<Auth>,
    /// ARN of the delivery stream: `arn:aws:firehose:<region>:<account>:deliverystream/<name>`.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    #[schemars(extend("pattern" = crate::config::ARN))]
    delivery_stream_arn: Option<String>,
}

fn check(given: &Value, _: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, given)?;
    let (auth, arn) = (config.auth.as_ref(), config.delivery_stream_arn.as_deref());
    aws_resource::check(NAME, STREAM, auth, arn)?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let (auth, arn) = (config.auth.as_ref(), config.delivery_stream_arn.as_deref());
    let (aws, stream) = aws_resource::open(STREAM, auth, arn, context, ids)?;
    Ok(Arc::new(Firehose { aws, stream }))
}

#[derive(Debug)]
struct Firehose {
    aws: Aws,
    /// The stream's name, because the service does not accept ARNs here.
    stream: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct PutRecordBatch<'a> {
    delivery_stream_name: &'a str,
    records: Vec<Record>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Record {
    data: String,
}

impl Target for Firehose {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let request = PutRecordBatch {
                delivery_stream_name: &self.stream,
                records: batch
                    .deliveries()
                    .map(|delivery| Record {
                        // The service concatenates records, so a line feed separates them.
                        data: STANDARD.encode([delivery.payload(), b"\n"].concat()),
                    })
                    .collect(),
            };
            let operation = "Firehose_20150804.PutRecordBatch";
            record_stream::put(&self.aws, operation, &request, batch.len()).await
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

#[cfg(test)]
mod tests;
