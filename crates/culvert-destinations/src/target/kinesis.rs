//! `kinesis`: events as records of a Kinesis data stream (contract: destinations 3.1).

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use culvert_base::batch::BatchClass;
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

const NAME: &str = "kinesis";
const STREAM: ResourceType = ResourceType {
    field: "stream_arn",
    service: "kinesis",
    resource: "stream/",
    is_regional: true,
};

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to an Amazon Kinesis data stream as a record.",
    // Below the service's 4 MiB, with the partition keys, which are ids.
    limits: BatchLimits {
        events_max: 500,
        bytes_max: (4 << 20) - 500 * 64,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: auth::merge,
    redact: auth::redact,
    open,
};

/// Configuration of the `kinesis` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "KinesisTarget")]
struct Config {
    /// AWS authentication.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    auth: Option<Auth>,
    /// ARN of the data stream: `arn:aws:kinesis:<region>:<account>:stream/<name>`.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    #[schemars(extend("pattern" = crate::config::ARN))]
    stream_arn: Option<String>,
}

fn check(given: &Value, _: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, given)?;
    let (auth, arn) = (config.auth.as_ref(), config.stream_arn.as_deref());
    aws_resource::check(NAME, STREAM, auth, arn)?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let (auth, arn) = (config.auth.as_ref(), config.stream_arn.as_deref());
    let (aws, _) = aws_resource::open(STREAM, auth, arn, context, ids)?;
    Ok(Arc::new(Kinesis {
        aws,
        stream_arn: config.stream_arn.unwrap_or_default(),
        account: ids.account.to_owned(),
    }))
}

#[derive(Debug)]
struct Kinesis {
    aws: Aws,
    stream_arn: String,
    account: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct PutRecords<'a> {
    #[serde(rename = "StreamARN")]
    stream_arn: &'a str,
    records: Vec<Record<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Record<'a> {
    data: String,
    partition_key: &'a str,
}

impl Target for Kinesis {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let request = PutRecords {
                stream_arn: &self.stream_arn,
                records: batch
                    .deliveries()
                    .map(|delivery| Record {
                        data: STANDARD.encode(delivery.payload()),
                        // Audit events of one account go to one shard, which keeps their order.
                        // Traffic events are spread over all shards.
                        partition_key: match batch.class() {
                            BatchClass::Audit => &self.account,
                            BatchClass::Traffic => delivery.event_id,
                        },
                    })
                    .collect(),
            };
            let operation = "Kinesis_20131202.PutRecords";
            record_stream::put(&self.aws, operation, &request, batch.len()).await
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

#[cfg(test)]
mod tests;
