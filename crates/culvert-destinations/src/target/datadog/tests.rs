use culvert_base::batch::BatchClass;
use culvert_events::EventFormat;
use culvert_target::formatted;

use super::*;
use crate::tests::fake::{Fake, Reply, batch, failure, pair, target};

fn datadog(fake: &Fake, more: Value) -> Arc<dyn Target> {
    let mut config = json!({"api_key": "dd-s3cr3t"});
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let url = fake.url("/").parse().unwrap();
    target(&TYPE, &config, |settings| settings.datadog_base = Some(url))
}

#[tokio::test]
async fn a_batch_is_an_array_of_flat_logs_under_gzip() {
    let fake = Fake::start().await;
    fake.otherwise(Reply::status(202));
    let [one, two] = pair();
    let batch = batch(BatchClass::Traffic, &[&one, &two]);
    let more = json!({"service": "edge \"1\"", "ddtags": "env:test,team:x"});
    assert_eq!(datadog(&fake, more).send(&batch).await, Verdict::Delivered);
    let empty = json!({"service": "", "ddtags": null});
    assert_eq!(datadog(&fake, empty).send(&batch).await, Verdict::Delivered);
    let seen = fake.seen();
    assert_eq!(seen[0].line, "POST /api/v2/logs HTTP/1.1");
    assert_eq!(seen[0].header("dd-api-key"), Some("dd-s3cr3t"));
    assert_eq!(seen[0].header("content-type"), Some("application/json"));
    let log = |id: &str| {
        json!({
            "event_id": id, "event_type": "test", "event_timestamp": "2027-01-15T08:00:00.000Z",
            "account_id": "ac_1", "principal": null, "object": {}, "ddsource": "culvert",
            "timestamp": 1_800_000_000_000i64,
        })
    };
    let mut full = log("ev_1");
    full["service"] = json!("edge \"1\"");
    full["ddtags"] = json!("env:test,team:x");
    assert_eq!(seen[0].unpacked()[0], full);
    assert_eq!(seen[1].unpacked(), json!([log("ev_1"), log("ev_2")]));
}

#[tokio::test]
async fn a_member_of_the_format_is_not_written_twice() {
    let fake = Fake::start().await;
    fake.otherwise(Reply::status(202));
    let sign_in = r#"{"event_id":"ev_1","event_type":"sign_in.v0","event_timestamp":"2027-01-15T08:00:00.000Z","account_id":"ac_1","principal":null,"object":{"id":"usr_1"}}"#;
    let batch = batch(BatchClass::Audit, &[sign_in]);
    for (more, service) in [
        (json!({"service": "edge"}), json!("edge")),
        (json!({}), json!({"name": "culvert"})),
    ] {
        let ocsf = formatted(datadog(&fake, more), EventFormat::Ocsf);
        assert_eq!(ocsf.send(&batch).await, Verdict::Delivered);
        let seen = fake.seen().pop().unwrap();
        let text = seen.unpacked_text();
        assert_eq!(text.matches("\"service\":").count(), 1, "{text}");
        let log = &seen.unpacked()[0];
        assert_eq!(
            (&log["service"], &log["ddsource"]),
            (&service, &json!("culvert"))
        );
        assert_eq!(log["timestamp"], 1_800_000_000_000i64);
        assert_eq!(log["class_uid"], 3002);
    }
}

#[tokio::test]
async fn responses_are_classified() {
    use culvert_target::failure::FailureClass::*;
    let fake = Fake::start().await;
    let datadog = datadog(&fake, json!({}));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for (status, class) in [
        (400, Permanent),
        (401, Auth),
        (403, Auth),
        (404, Config),
        (408, Retryable),
        (413, Split),
        (429, Retryable),
        (500, Retryable),
        (503, Retryable),
    ] {
        let headers = vec!["retry-after: 9".to_owned()];
        fake.script([Reply::Status(status, headers, "the key dd-s3cr3t".into())]);
        let failure = failure(datadog.send(&batch).await);
        assert_eq!(
            (failure.class, failure.text.as_str()),
            (class, "the key [redacted]")
        );
        assert_eq!(
            failure.after,
            Some(culvert_base::RetryAfter::new(Duration::from_secs(9)))
        );
    }
    assert!(!format!("{datadog:?}").contains("s3cr3t"));
}

#[test]
fn the_largest_batch_is_within_the_limits_of_the_service() {
    // 2000 bytes of tags and a service name of 200 bytes, escaped to at most six times their size,
    // in each of 500 events.
    let limits = TYPE.limits;
    assert!(limits.events_max <= 1000);
    assert!(limits.bytes_max <= 4_000_000);
}
