use culvert_base::OsEntropy;
use culvert_base::batch::BatchClass;
use culvert_target::failure::FailureClass::*;
use serde_json::json;

use super::*;
use crate::tests::fake::{
    Fake, Reply, batch, classes, envelope, failure, local_settings, pair, stored_and_shown, target,
};

const ARN: &str = "arn:aws:sqs:eu-central-1:123456789012:events";

fn config(arn: &str) -> Value {
    let creds = json!({"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "s3cr3t-key"});
    json!({"auth": {"creds": creds}, "queue_arn": arn})
}

fn sqs(fake: &Fake, arn: &str) -> Arc<dyn Target> {
    let url: url::Url = fake.url("/").parse().unwrap();
    target(&TYPE, &config(arn), |settings| {
        settings.aws.endpoints.insert("sqs".into(), url);
    })
}

#[tokio::test]
async fn a_call_has_messages_with_ids_and_fifo_queues_get_group_and_deduplication() {
    let fake = Fake::start().await;
    fake.otherwise(Reply::with(
        200,
        r#"{"Successful":[{"Id":"0"},{"Id":"1"}]}"#,
    ));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for arn in [ARN.to_owned(), format!("{ARN}.fifo")] {
        assert_eq!(sqs(&fake, &arn).send(&batch).await, Verdict::Delivered);
    }
    let seen = fake.seen();
    assert_eq!(seen[0].line, "POST / HTTP/1.1");
    assert_eq!(
        seen[0].header("content-type"),
        Some("application/x-amz-json-1.0")
    );
    assert_eq!(
        seen[0].header("x-amz-target"),
        Some("AmazonSQS.SendMessageBatch")
    );
    let signature = seen[0].header("authorization").unwrap();
    assert!(
        signature.contains("/eu-central-1/sqs/aws4_request"),
        "{signature}"
    );
    let message = json!({
        "Id": "1", "MessageBody": two,
        "MessageAttributes": {"event_type": {"DataType": "String", "StringValue": "test"}},
    });
    let body = seen[0].json();
    assert_eq!(body["QueueUrl"], fake.url("/123456789012/events"));
    assert_eq!(body["Entries"][1], message);
    let body = seen[1].json();
    assert_eq!(body["QueueUrl"], fake.url("/123456789012/events.fifo"));
    assert_eq!(body["Entries"][1]["MessageGroupId"], "ac_1");
    assert_eq!(body["Entries"][1]["MessageDeduplicationId"], "ev_2:esb_1");
}

#[tokio::test]
async fn characters_that_the_service_refuses_are_escaped() {
    let fake = Fake::start().await;
    fake.otherwise(Reply::with(200, r#"{"Successful":[{"Id":"0"}]}"#));
    let text = json!({"name": "a\u{fffe}\u{ffff}\u{fffd}\u{1ffff}"});
    let event = envelope(1, "2027-01-15T08:00:00.000Z").replace("{}", &text.to_string());
    let batch = batch(BatchClass::Audit, &[&event]);
    assert_eq!(sqs(&fake, ARN).send(&batch).await, Verdict::Delivered);
    let body = fake.seen()[0].json();
    let message = body["Entries"][0]["MessageBody"].as_str().unwrap();
    assert!(!message.contains(['\u{fffe}', '\u{ffff}']), "{message}");
    let (got, sent): (Value, Value) = (
        serde_json::from_str(message).unwrap(),
        serde_json::from_str(&event).unwrap(),
    );
    assert_eq!(got, sent);
    assert_eq!(got["object"], text);
}

#[tokio::test]
async fn each_message_has_its_own_outcome() {
    let fake = Fake::start().await;
    let sqs = sqs(&fake, ARN);
    let events: Vec<String> = (0..6)
        .map(|id| envelope(id, "2027-01-15T08:00:00.000Z"))
        .collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let batch = batch(BatchClass::Traffic, &events);
    // In no order, and without the last one.
    fake.script([Reply::with(
        200,
        json!({
            "Successful": [{"Id": "2", "MessageId": "m"}],
            "Failed": [
                {"Id": "1", "Code": "InternalError", "Message": "m", "SenderFault": false},
                {"Id": "0", "Code": "InvalidMessageContents", "Message": "m", "SenderFault": true},
                {"Id": "3", "Code": "KmsThrottled", "Message": "m", "SenderFault": true},
                {"Id": "4", "Code": "Unheard", "Message": "m", "SenderFault": false},
            ],
        })
        .to_string(),
    )]);
    let (retry, lost) = (Some(Retryable), Some(Unknown));
    let expected = [Some(Permanent), retry, None, retry, retry, lost];
    assert_eq!(classes(sqs.send(&batch).await), expected);
    for answer in ["", "never JSON", r#"{"Successful":[{"Id":"9"}]}"#] {
        fake.script([Reply::with(200, answer)]);
        assert_eq!(failure(sqs.send(&batch).await).class, Unknown, "{answer}");
    }
}

#[tokio::test]
async fn errors_of_calls_are_classified() {
    let fake = Fake::start().await;
    let sqs = sqs(&fake, ARN);
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for (status, code, class) in [
        (400, "QueueDoesNotExist", Config),
        (400, "BatchRequestTooLong", Split),
        (400, "InvalidMessageContents", Permanent),
        (400, "RequestThrottled", Retryable),
        (400, "OverLimit", Retryable),
        (400, "KmsAccessDenied", Auth),
        (400, "KmsDisabled", Config),
        (403, "InvalidSecurity", Auth),
        (403, "AccessDeniedException", Auth),
        (500, "InternalFailure", Retryable),
    ] {
        let body = json!({"__type": format!("com.amazonaws.sqs#{code}"), "message": "s3cr3t-key"});
        fake.script([Reply::with(status, body.to_string())]);
        let failure = failure(sqs.send(&batch).await);
        assert_eq!((failure.class, &*failure.code), (class, code));
        assert_eq!(failure.text, "[redacted]");
    }
}

#[test]
fn invalid_queues_are_refused_and_the_secret_is_kept_and_hidden() {
    let check = |arn: &str| (TYPE.check)(&config(arn), &local_settings(), &OsEntropy);
    for (arn, code) in [
        ("arn:aws:sns:eu-central-1:123456789012:events", 5119),
        ("arn:aws:sqs::123456789012:events", 5120),
        ("arn:aws:sqs:eu-central-1:123456789012:a/b", 5140),
        ("arn:aws:sqs:eu-central-1:123456789012:.fifo", 5140),
        (
            "https://sqs.eu-central-1.amazonaws.com/123456789012/events",
            5120,
        ),
    ] {
        let refusal = check(arn).unwrap_err();
        assert_eq!(
            refusal.code.map(culvert_base::Code::number),
            Some(code),
            "{arn}"
        );
    }
    let (stored, shown) = stored_and_shown(&TYPE, &config(ARN));
    let mut given = shown;
    given["queue_arn"] = format!("{ARN}.fifo").into();
    let merged = (TYPE.merge)(&stored, given);
    assert_eq!(merged["auth"], stored["auth"]);
}

#[test]
fn the_largest_batch_is_within_the_limits_of_the_service() {
    assert_eq!(TYPE.limits.events_max, 10);
    // The name, type and value of an attribute.
    assert!(TYPE.limits.bytes_max + 10 * 100 <= 1 << 20);
}
