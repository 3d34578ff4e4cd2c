use culvert_base::OsEntropy;
use culvert_base::batch::BatchClass;
use culvert_target::failure::FailureClass::*;
use serde_json::json;

use super::*;
use crate::tests::fake::{
    Fake, Reply, batch, classes, envelope, failure, local_settings, pair, stored_and_shown, target,
};

const ARN: &str = "arn:aws:events:eu-central-1:123456789012:event-bus/events";

fn config(more: &Value) -> Value {
    let creds = json!({"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "s3cr3t-key"});
    let mut config = json!({"auth": {"creds": creds}, "event_bus_arn": ARN});
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    config
}

fn eventbridge(fake: &Fake, more: &Value) -> Arc<dyn Target> {
    let url: url::Url = fake.url("/").parse().unwrap();
    target(&TYPE, &config(more), |settings| {
        settings.aws.endpoints.insert("events".into(), url);
    })
}

#[tokio::test]
async fn an_entry_has_the_event_as_detail_and_its_type_as_detail_type() {
    let fake = Fake::start().await;
    let accepted = r#"{"FailedEntryCount":0,"Entries":[{"EventId":"1"},{"EventId":"2"}]}"#;
    fake.otherwise(Reply::with(200, accepted));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for more in [json!({}), json!({"source": "com.example/edge"})] {
        let sent = eventbridge(&fake, &more).send(&batch).await;
        assert_eq!(sent, Verdict::Delivered);
    }
    let seen = fake.seen();
    assert_eq!(seen[0].header("x-amz-target"), Some("AWSEvents.PutEvents"));
    let signature = seen[0].header("authorization").unwrap();
    assert!(
        signature.contains("/eu-central-1/events/aws4_request"),
        "{signature}"
    );
    let entry = json!({
        "EventBusName": ARN, "Source": "culvert", "DetailType": "test", "Time": 1_800_000_000, "Detail": two,
    });
    assert_eq!(seen[0].json()["Entries"][1], entry);
    assert_eq!(seen[1].json()["Entries"][0]["Source"], "com.example/edge");
}

#[tokio::test]
async fn each_entry_has_its_own_outcome_and_errors_of_calls_are_classified() {
    let fake = Fake::start().await;
    let eventbridge = eventbridge(&fake, &json!({}));
    let events: Vec<String> = (0..6)
        .map(|id| envelope(id, "2027-01-15T08:00:00.000Z"))
        .collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let batch = batch(BatchClass::Traffic, &events);
    let error = |code: &str| json!({"ErrorCode": code, "ErrorMessage": "m"});
    let entries = json!([
        {"EventId": "1"},
        error("ThrottlingException"),
        error("InternalFailure"),
        error("MalformedDetail"),
        error("NotAuthorizedForSourceException"),
        error("InvalidArgument"),
    ]);
    let body = json!({"FailedEntryCount": 5, "Entries": entries});
    fake.script([Reply::with(200, body.to_string())]);
    let (retry, bad) = (Some(Retryable), Some(Permanent));
    let expected = [None, retry, retry, bad, Some(Auth), bad];
    assert_eq!(classes(eventbridge.send(&batch).await), expected);
    for (status, code, class) in [
        (400, "ResourceNotFoundException", Config),
        (400, "ThrottlingException", Retryable),
        (400, "AccessDeniedException", Auth),
        (400, "ValidationException", Permanent),
        (500, "InternalException", Retryable),
        (413, "", Split),
    ] {
        let body = match code {
            "" => String::new(),
            code => json!({"__type": code, "message": "s3cr3t-key"}).to_string(),
        };
        fake.script([Reply::with(status, body)]);
        let failure = failure(eventbridge.send(&batch).await);
        assert_eq!(failure.class, class, "{code}");
        assert!(!failure.text.contains("s3cr3t"));
    }
}

#[test]
fn invalid_buses_and_sources_are_refused_and_the_secret_is_kept_and_hidden() {
    let check = |more: Value| (TYPE.check)(&config(&more), &local_settings(), &OsEntropy);
    for (more, code) in [
        (
            json!({"event_bus_arn": ARN.replace("event-bus", "rule")}),
            5130,
        ),
        (json!({"event_bus_arn": "default"}), 5120),
        (json!({"source": "aws.ec2"}), 5140),
        (json!({"source": "a b"}), 5140),
        (json!({"region": "s3cr3t"}), 5140),
    ] {
        let refusal = check(more.clone()).unwrap_err();
        assert_eq!(
            refusal.code.map(culvert_base::Code::number),
            Some(code),
            "{more}"
        );
    }
    let (stored, shown) = stored_and_shown(&TYPE, &config(&json!({})));
    assert_eq!((TYPE.merge)(&stored, shown)["auth"], stored["auth"]);
}
