use culvert_base::batch::BatchClass;
use culvert_target::failure::FailureClass;
use serde_json::json;

use super::*;
use crate::tests::fake::{Fake, Reply, batch, classes, pair, target};

#[tokio::test]
async fn records_are_lines_and_failed_records_are_identified() {
    let fake = Fake::start().await;
    fake.script([
        Reply::with(200, r#"{"FailedPutCount":0,"RequestResponses":[{"RecordId":"1"},{"RecordId":"2"}]}"#),
        Reply::with(200, r#"{"FailedPutCount":1,"RequestResponses":[{"ErrorCode":"ServiceUnavailableException","ErrorMessage":"m"},{"RecordId":"2"}]}"#),
    ]);
    let creds = json!({"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "s3cr3t-key"});
    let config = json!({
        "auth": {"role": null, "creds": creds},
        "delivery_stream_arn": "arn:aws:firehose:us-east-1:123456789012:deliverystream/events",
    });
    let url: url::Url = fake.url("/").parse().unwrap();
    let firehose = target(&TYPE, &config, |settings| {
        settings.aws.endpoints.insert("firehose".into(), url);
    });
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    assert_eq!(firehose.send(&batch).await, Verdict::Delivered);
    let outcomes = classes(firehose.send(&batch).await);
    assert_eq!(outcomes, [Some(FailureClass::Retryable), None]);
    let seen = &fake.seen()[0];
    assert_eq!(
        seen.header("x-amz-target"),
        Some("Firehose_20150804.PutRecordBatch")
    );
    let body = seen.json();
    assert_eq!(body["DeliveryStreamName"], "events");
    assert_eq!(
        body["Records"][1]["Data"],
        STANDARD.encode(format!("{two}\n"))
    );
}
