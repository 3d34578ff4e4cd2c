//! `firehose`: events as lines into an Amazon Data Firehose stream (contract: destinations 3.2).

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use culvert_base::{BoxFuture, Entropy, Refusal};

use super::kinesis::{RecordResult, unclear};
use crate::aws::Aws;
use crate::aws::arn::{Arn, Wanted};
use crate::aws::auth::{self, Auth};
use crate::batch::{Batch, BatchLimits};
use crate::config::{Checked, parse, stored};
use crate::destination_ids::Whose;
use crate::failure::Failure;
use crate::target::context::TargetContext;
use crate::target::settings::TargetSettings;
use crate::target::target_type::{Target, TargetType};
use crate::target::verdict::{Outcome, Verdict, verdict};

const NAME: &str = "firehose";
const STREAM: Wanted = Wanted {
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
    auth: Option<Auth>,
    /// ARN of the delivery stream: `arn:aws:firehose:<region>:<account>:deliverystream/<name>`.
    #[serde(default)]
    delivery_stream_arn: Option<String>,
}

fn check(given: &Value, _: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, given)?;
    Auth::check(config.auth.as_ref(), NAME)?;
    Arn::check(config.delivery_stream_arn.as_deref(), STREAM)?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    whose: Whose<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let arn = Arn::check(config.delivery_stream_arn.as_deref(), STREAM)?;
    let auth = config.auth.unwrap_or_default();
    Ok(Arc::new(Firehose {
        aws: Aws::open(
            "firehose",
            &arn,
            &auth,
            context.net(),
            &context.settings().aws,
            whose,
        )?,
        stream: arn.name(STREAM).to_owned(),
    }))
}

#[derive(Debug)]
struct Firehose {
    aws: Aws,
    /// Its name: the service takes no ARN here.
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

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Put {
    failed_put_count: u64,
    #[serde(default)]
    request_responses: Vec<RecordResult>,
}

impl Target for Firehose {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.put(batch).await {
                Ok(outcomes) => verdict(outcomes),
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Firehose {
    async fn put(&self, batch: &Batch) -> Result<Vec<Outcome>, Failure> {
        let request = PutRecordBatch {
            delivery_stream_name: &self.stream,
            records: batch
                .deliveries()
                .map(|delivery| Record {
                    // Records are joined as they are: the line feed keeps them apart.
                    data: STANDARD.encode([delivery.envelope, b"\n"].concat()),
                })
                .collect(),
        };
        let body = serde_json::to_vec(&request).expect("a request is plain JSON");
        let operation = "Firehose_20150804.PutRecordBatch";
        let answer = self.aws.json(operation, body.into()).await?;
        let put: Put = serde_json::from_str(&answer.text).map_err(|_| unclear())?;
        if put.failed_put_count == 0 {
            return Ok(vec![Outcome::Delivered; batch.len()]);
        }
        if put.request_responses.len() != batch.len() {
            return Err(unclear());
        }
        let entries = put.request_responses.into_iter();
        Ok(entries.map(RecordResult::outcome).collect())
    }
}

#[cfg(test)]
mod tests;
