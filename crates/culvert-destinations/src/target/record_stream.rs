//! Services that take records and return a result for each, by position: EventBridge, Firehose and Kinesis.

use serde::{Deserialize, Serialize};

use culvert_target::failure::{Failure, FailureClass};
use culvert_target::{Outcome, Verdict};

use crate::client::aws::{Aws, answer};
use crate::target::verdict::verdict;

/// Sends one call with the records of a batch.
pub(super) async fn put(
    aws: &Aws,
    operation: &'static str,
    request: &impl Serialize,
    n_records: usize,
) -> Verdict {
    let body = serde_json::to_vec(request).expect("a request is plain JSON");
    let outcomes = match aws.json(operation, body.into()).await {
        Ok(answer) => outcomes(&answer.text, n_records),
        Err(failure) => Err(failure),
    };
    outcomes.map_or_else(Verdict::Failed, verdict)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PutResponse {
    #[serde(alias = "FailedEntryCount", alias = "FailedPutCount")]
    failed_record_count: u64,
    #[serde(default, alias = "Entries", alias = "RequestResponses")]
    records: Vec<RecordResult>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RecordResult {
    error_code: Option<String>,
    error_message: Option<String>,
}

fn outcomes(response: &str, n_records: usize) -> Result<Vec<Outcome>, Failure> {
    let incomplete = || {
        Failure::new(
            FailureClass::Unknown,
            "answer",
            "the response lacks the results of the records",
        )
    };
    let response: PutResponse = serde_json::from_str(response).map_err(|_| incomplete())?;
    if response.failed_record_count == 0 {
        return Ok(vec![Outcome::Delivered; n_records]);
    }
    if response.records.len() != n_records {
        return Err(incomplete());
    }
    let results = response.records.into_iter();
    Ok(results.map(RecordResult::outcome).collect())
}

impl RecordResult {
    fn outcome(self) -> Outcome {
        let Some(code) = self.error_code.filter(|code| !code.is_empty()) else {
            return Outcome::Delivered;
        };
        // A single record fails because of load or a fault of the service: the batch was valid.
        let class = answer::class_of(&code).unwrap_or(FailureClass::Retryable);
        let text = self.error_message.unwrap_or_default();
        Outcome::Failed(Failure::new(class, code, text))
    }
}
