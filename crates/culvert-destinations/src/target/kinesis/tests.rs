use serde_json::json;

use culvert_target::failure::FailureClass;

use super::*;
use crate::tests::fake::{Fake, Reply, batch, classes, failure, pair, target};

fn kinesis(fake: &Fake) -> Arc<dyn Target> {
    let creds = json!({"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "s3cr3t-key"});
    let config = json!({
        "auth": {"creds": creds},
        "stream_arn": "arn:aws:kinesis:eu-central-1:123456789012:stream/events",
    });
    let url = fake.url("/").parse().unwrap();
    target(&TYPE, &config, |settings| settings.aws.endpoint = Some(url))
}

#[tokio::test]
async fn records_are_envelopes_with_an_ordering_or_spreading_key() {
    let fake = Fake::start().await;
    fake.otherwise(Reply::with(
        200,
        r#"{"FailedRecordCount":0,"Records":[{},{}]}"#,
    ));
    let kinesis = kinesis(&fake);
    let [one, two] = pair();
    for class in [BatchClass::Audit, BatchClass::Traffic] {
        let sent = kinesis.send(&batch(class, &[&one, &two])).await;
        assert_eq!(sent, Verdict::Delivered);
    }
    let seen = fake.seen();
    assert_eq!(seen[0].line, "POST / HTTP/1.1");
    assert_eq!(
        seen[0].header("x-amz-target"),
        Some("Kinesis_20131202.PutRecords")
    );
    assert_eq!(
        seen[0].header("content-type"),
        Some("application/x-amz-json-1.1")
    );
    let signature = seen[0].header("authorization").unwrap();
    assert!(
        signature.starts_with(
            "AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/20270115/eu-central-1/kinesis/aws4_request, \
         SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature="
        ),
        "{signature}"
    );
    let body = seen[0].json();
    assert_eq!(
        body["StreamARN"],
        "arn:aws:kinesis:eu-central-1:123456789012:stream/events"
    );
    assert_eq!(body["Records"][0]["Data"], STANDARD.encode(&one));
    let keys = |at: usize| -> Vec<Value> {
        let body = seen[at].json();
        let records = body["Records"].as_array().unwrap();
        records
            .iter()
            .map(|record| record["PartitionKey"].clone())
            .collect()
    };
    assert_eq!(keys(0), ["ac_1", "ac_1"]);
    assert_eq!(keys(1), ["ev_1", "ev_2"]);
}

#[tokio::test]
async fn failed_records_are_identified() {
    let fake = Fake::start().await;
    fake.script([
        Reply::with(200, r#"{"FailedRecordCount":1,"Records":[{"SequenceNumber":"1","ShardId":"s"},{"ErrorCode":"ProvisionedThroughputExceededException","ErrorMessage":"slow down"}]}"#),
        Reply::with(200, r#"{"FailedRecordCount":1,"Records":[]}"#),
        Reply::with(200, "never JSON"),
    ]);
    let kinesis = kinesis(&fake);
    let [one, two] = pair();
    let batch = batch(BatchClass::Traffic, &[&one, &two]);
    let outcomes = classes(kinesis.send(&batch).await);
    assert_eq!(outcomes, [None, Some(FailureClass::Retryable)]);
    for _ in 0..2 {
        assert_eq!(
            failure(kinesis.send(&batch).await).class,
            FailureClass::Unknown
        );
    }
}

#[tokio::test]
async fn errors_in_json_headers_and_xml_are_classified() {
    use FailureClass::*;
    let fake = Fake::start().await;
    let kinesis = kinesis(&fake);
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for (status, header, body, code, class) in [
        (
            400,
            "",
            r#"{"__type":"com.amazonaws.kinesis#ProvisionedThroughputExceededException","message":"m"}"#,
            "ProvisionedThroughputExceededException",
            Retryable,
        ),
        (
            400,
            "",
            r#"{"__type":"ResourceNotFoundException","message":"m"}"#,
            "ResourceNotFoundException",
            Config,
        ),
        (
            400,
            "",
            r#"{"__type":"UnrecognizedClientException","message":"m"}"#,
            "UnrecognizedClientException",
            Auth,
        ),
        (
            400,
            "x-amzn-errortype: AccessDeniedException:http://x/",
            "{}",
            "AccessDeniedException",
            Auth,
        ),
        (
            403,
            "",
            "<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code><Message>m</Message></Error></ErrorResponse>",
            "SignatureDoesNotMatch",
            Auth,
        ),
        (
            400,
            "",
            r#"{"__type":"ValidationException","message":"m"}"#,
            "ValidationException",
            Permanent,
        ),
        (
            400,
            "",
            r#"{"__type":"InvalidArgumentException","message":"Stream arn is wrong"}"#,
            "InvalidArgumentException",
            Config,
        ),
        (
            500,
            "",
            r#"{"__type":"InternalFailure","Message":"m"}"#,
            "InternalFailure",
            Retryable,
        ),
        (413, "", "", "413", Split),
        (502, "", "<html>bad gateway</html>", "502", Retryable),
    ] {
        let headers = Some(header.to_owned()).filter(|line| !line.is_empty());
        fake.script([Reply::Status(
            status,
            headers.into_iter().collect(),
            body.to_owned(),
        )]);
        let failure = failure(kinesis.send(&batch).await);
        assert_eq!(
            (failure.code.as_str(), failure.class),
            (code, class),
            "{body}"
        );
    }
    fake.script([Reply::with(
        400,
        r#"{"__type":"ValidationException","message":"s3cr3t-key is wrong"}"#,
    )]);
    let failure = failure(kinesis.send(&batch).await);
    assert_eq!(failure.text, "[redacted] is wrong");
    assert!(!format!("{kinesis:?}").contains("s3cr3t"));
}
