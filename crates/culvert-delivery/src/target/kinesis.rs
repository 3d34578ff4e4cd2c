//! `kinesis`: events as records of a Kinesis data stream (contract: destinations 3.1).

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_store::BatchClass;

use crate::aws::arn::{Arn, Wanted};
use crate::aws::auth::{self, Auth};
use crate::aws::{Aws, answer};
use crate::batch::{Batch, BatchLimits};
use crate::config::{Checked, parse, stored};
use crate::destination_ids::Whose;
use crate::failure::{Failure, FailureClass};
use crate::target::context::TargetContext;
use crate::target::settings::TargetSettings;
use crate::target::target_type::{Target, TargetType};
use crate::target::verdict::{Outcome, Verdict, verdict};

const NAME: &str = "kinesis";
const STREAM: Wanted = Wanted {
    field: "stream_arn",
    service: "kinesis",
    resource: "stream/",
    is_regional: true,
};

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to an Amazon Kinesis data stream as a record.",
    // 4 MiB with the partition keys, which are ids.
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
    auth: Option<Auth>,
    /// ARN of the data stream: `arn:aws:kinesis:<region>:<account>:stream/<name>`.
    #[serde(default)]
    stream_arn: Option<String>,
}

fn check(given: &Value, _: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, given)?;
    Auth::check(config.auth.as_ref(), NAME)?;
    Arn::check(config.stream_arn.as_deref(), STREAM)?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    whose: Whose<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let arn = Arn::check(config.stream_arn.as_deref(), STREAM)?;
    let auth = config.auth.unwrap_or_default();
    Ok(Arc::new(Kinesis {
        aws: Aws::open(
            "kinesis",
            &arn,
            &auth,
            context.net(),
            &context.settings().aws,
            whose,
        )?,
        stream_arn: config.stream_arn.unwrap_or_default(),
        account: whose.account.to_owned(),
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

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Put {
    failed_record_count: u64,
    #[serde(default)]
    records: Vec<RecordResult>,
}

/// What became of one record of a batch, at Kinesis and at Firehose.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct RecordResult {
    error_code: Option<String>,
    error_message: Option<String>,
}

impl RecordResult {
    pub(super) fn outcome(self) -> Outcome {
        let Some(code) = self.error_code.filter(|code| !code.is_empty()) else {
            return Outcome::Delivered;
        };
        // What fails record by record is load or their fault; the batch as a whole was good.
        let class = answer::class_of(&code).unwrap_or(FailureClass::Retryable);
        Outcome::Failed(Failure::new(
            class,
            code,
            self.error_message.unwrap_or_default(),
        ))
    }
}

impl Target for Kinesis {
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

impl Kinesis {
    async fn put(&self, batch: &Batch) -> Result<Vec<Outcome>, Failure> {
        let request = PutRecords {
            stream_arn: &self.stream_arn,
            records: batch
                .deliveries()
                .map(|delivery| Record {
                    data: STANDARD.encode(delivery.envelope),
                    // One account's audit events stay in one shard, in order; traffic spreads.
                    partition_key: match batch.class() {
                        BatchClass::Audit => &self.account,
                        BatchClass::Traffic => delivery.event_id,
                    },
                })
                .collect(),
        };
        let body = serde_json::to_vec(&request).expect("a request is plain JSON");
        let answer = self
            .aws
            .json("Kinesis_20131202.PutRecords", body.into())
            .await?;
        let put: Put = serde_json::from_str(&answer.text).map_err(|_| unclear())?;
        if put.failed_record_count == 0 {
            return Ok(vec![Outcome::Delivered; batch.len()]);
        }
        if put.records.len() != batch.len() {
            return Err(unclear());
        }
        Ok(put.records.into_iter().map(RecordResult::outcome).collect())
    }
}

/// The answer does not say what became of the records.
pub(super) fn unclear() -> Failure {
    Failure::new(
        FailureClass::Unknown,
        "answer",
        "the response lacks the results of the records",
    )
}

#[cfg(test)]
mod tests;
