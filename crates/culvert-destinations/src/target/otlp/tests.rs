use culvert_base::batch::BatchClass;
use serde_json::json;

use super::*;
use crate::tests::fake::{Fake, Reply, batch, failure, target};

const EVENT: &str = r#"{"event_id":"ev_1","event_type":"api_key_created.v0","event_timestamp":"2027-01-15T07:59:59.123Z","account_id":"ac_1","principal":{"id":"usr_1","subject":"a@example.com","source":"API"},"object":{"id":"ak_1","n":3,"big":9007199254740993,"f":0.5,"none":null,"list":[true,"x"]}}"#;

fn otlp(fake: &Fake, more: Value) -> Arc<dyn Target> {
    let mut config =
        json!({"endpoint": fake.url("/base/"), "headers": {"x-token": "s3cr3t-token"}});
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    target(&TYPE, &config, |_| {})
}

#[tokio::test]
async fn an_event_becomes_a_log_record_with_time_and_object() {
    let fake = Fake::start().await;
    let otlp = otlp(&fake, json!({}));
    let sent = otlp.send(&batch(BatchClass::Audit, &[EVENT])).await;
    assert_eq!(sent, Verdict::Delivered);
    let seen = &fake.seen()[0];
    assert_eq!(seen.line, "POST /base/v1/logs HTTP/1.1");
    assert_eq!(seen.header("content-type"), Some("application/x-protobuf"));
    assert_eq!(seen.header("content-encoding"), Some("gzip"));
    assert_eq!(seen.header("x-token"), Some("s3cr3t-token"));
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(
        &mut flate2::read::GzDecoder::new(&seen.body[..]),
        &mut bytes,
    )
    .unwrap();
    let request = ExportLogsServiceRequest::decode(&bytes[..]).unwrap();
    let logs = &request.resource_logs[0];
    let record = &logs.scope_logs[0].log_records[0];
    assert_eq!(record.event_name, "api_key_created.v0");
    assert_eq!(record.time_unix_nano, 1_799_999_999_123_000_000);
    assert_eq!(record.observed_time_unix_nano, 1_800_000_000_000_000_000);
    assert_eq!(record.severity_number, 9);
    let keys: Vec<_> = record
        .attributes
        .iter()
        .map(|pair| pair.key.as_str())
        .collect();
    assert_eq!(
        keys,
        [
            "event_id",
            "account_id",
            "principal.id",
            "principal.subject",
            "principal.source"
        ]
    );
    let Some(Any::KvlistValue(object)) = record.body.clone().unwrap().value else {
        panic!("not an object")
    };
    let value = |key: &str| {
        object
            .values
            .iter()
            .find(|pair| pair.key == key)
            .unwrap()
            .value
            .clone()
            .unwrap()
            .value
    };
    assert_eq!(value("big"), Some(Any::IntValue(9_007_199_254_740_993)));
    assert_eq!(value("f"), Some(Any::DoubleValue(0.5)));
    assert_eq!(value("none"), None);
}

#[tokio::test]
async fn json_follows_the_otlp_specification() {
    let fake = Fake::start().await;
    fake.script([Reply::with(
        200,
        r#"{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"no"}}"#,
    )]);
    let otlp = otlp(
        &fake,
        json!({"protocol": "http/json", "compression": "none"}),
    );
    let sent = otlp.send(&batch(BatchClass::Audit, &[EVENT])).await;
    assert_eq!(
        sent,
        Verdict::Delivered,
        "what was left out is not sent again"
    );
    let seen = &fake.seen()[0];
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("content-encoding"), None);
    let body = seen.json();
    let record = &body["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
    assert_eq!(record["timeUnixNano"], "1799999999123000000");
    assert_eq!(record["eventName"], "api_key_created.v0");
    let values = record["body"]["kvlistValue"]["values"].as_array().unwrap();
    let n = values.iter().find(|pair| pair["key"] == "n").unwrap();
    assert_eq!(n["value"]["intValue"], "3");
}

#[tokio::test]
async fn responses_are_classified() {
    use FailureClass::*;
    let fake = Fake::start().await;
    let otlp = otlp(&fake, json!({}));
    let batch = batch(BatchClass::Audit, &[EVENT]);
    for (status, class) in [
        (400, Permanent),
        (401, Auth),
        (403, Auth),
        (404, Config),
        (413, Split),
        (429, Retryable),
        (500, Permanent),
        (502, Retryable),
        (503, Retryable),
        (504, Retryable),
    ] {
        fake.script([Reply::with(status, "the token s3cr3t-token")]);
        let failure = failure(otlp.send(&batch).await);
        assert_eq!(
            (failure.class, failure.text.as_str()),
            (class, "the token [redacted]"),
            "{status}"
        );
    }
    assert!(!format!("{otlp:?}").contains("s3cr3t"));
}
