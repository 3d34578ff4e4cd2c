use culvert_base::batch::BatchClass;
use culvert_target::failure::FailureClass::*;

use super::*;
use crate::tests::fake::{
    Fake, Reply, assert_refused, batch, failure, pair, stored_and_shown, target,
};

fn config(url: String) -> Value {
    json!({"url": url, "token": "hec-s3cr3t"})
}

fn splunk(fake: &Fake, more: Value) -> Arc<dyn Target> {
    let mut config = config(fake.url("/base/"));
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    target(&TYPE, &config, |_| {})
}

/// The collector's own answer.
fn answer(status: u16, code: u64, more: &str) -> Reply {
    Reply::with(status, format!(r#"{{"text":"said","code":{code}{more}}}"#))
}

#[tokio::test]
async fn a_batch_is_one_object_after_the_other_with_time_and_metadata() {
    let fake = Fake::start().await;
    fake.otherwise(answer(200, 0, ""));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    let plain = splunk(&fake, json!({}));
    assert_eq!(plain.send(&batch).await, Verdict::Delivered);
    let more = json!({"index": "main", "sourcetype": "a \"b\"", "source": "s", "host": "h"});
    assert_eq!(splunk(&fake, more).send(&batch).await, Verdict::Delivered);
    let seen = fake.seen();
    assert_eq!(seen[0].line, "POST /base/services/collector/event HTTP/1.1");
    assert_eq!(seen[0].header("authorization"), Some("Splunk hec-s3cr3t"));
    let events = seen[0].unpacked_lines();
    let event: Value = serde_json::from_str(&two).unwrap();
    let expected = json!({
        "event": event, "time": 1_800_000_000.0, "host": "node-1", "source": "culvert", "sourcetype": "_json",
    });
    assert_eq!((events.len(), &events[1]), (2, &expected));
    let first = &seen[1].unpacked_lines()[0];
    assert_eq!(first["index"], "main");
    assert_eq!(first["sourcetype"], "a \"b\"");
    assert_eq!(
        (&first["source"], &first["host"]),
        (&json!("s"), &json!("h"))
    );
}

#[tokio::test]
async fn the_code_of_the_collector_decides_before_the_status() {
    let fake = Fake::start().await;
    let splunk = splunk(&fake, json!({}));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for (status, code, class) in [
        (403, 1, Auth),
        (401, 2, Auth),
        (401, 3, Auth),
        (403, 4, Auth),
        (400, 6, Permanent),
        (400, 7, Config),
        (500, 8, Retryable),
        (503, 9, Retryable),
        (400, 10, Config),
        (400, 14, Config),
        (503, 18, Retryable),
        (503, 23, Retryable),
        // A code that the table lacks goes by the status.
        (429, 26, Retryable),
        (413, 27, Split),
        (400, 99, Permanent),
        // Nothing was taken, although the status says so.
        (200, 9, Retryable),
    ] {
        fake.script([answer(status, code, "")]);
        let failure = failure(splunk.send(&batch).await);
        assert_eq!((failure.class, failure.code), (class, code.to_string()));
        assert_eq!(failure.text, "said");
    }
    // A response that is not the collector's.
    for page in ["<html>sign in</html>", "", "{}"] {
        fake.script([Reply::with(200, page)]);
        let failure = failure(splunk.send(&batch).await);
        assert_eq!((failure.class, failure.status), (Config, Some(200)));
    }
    // A proxy on the way has no code, and may quote the request.
    fake.script([Reply::with(502, "upstream of Splunk hec-s3cr3t")]);
    let failure = failure(splunk.send(&batch).await);
    assert_eq!((failure.class, &*failure.code), (Retryable, "502"));
    assert_eq!(failure.text, "upstream of Splunk [redacted]");
    assert!(!format!("{splunk:?}").contains("s3cr3t"));
}

#[tokio::test]
async fn only_the_event_that_the_collector_names_is_rejected() {
    let fake = Fake::start().await;
    let splunk = splunk(&fake, json!({}));
    let [one, two] = pair();
    let both = batch(BatchClass::Traffic, &[&one, &two]);
    fake.script([answer(400, 6, ",\"invalid-event-number\":1")]);
    match splunk.send(&both).await {
        Verdict::Partial(outcomes) => {
            assert_eq!(outcomes[0], Outcome::NotTried);
            assert!(matches!(&outcomes[1], Outcome::Failed(failure) if failure.class == Permanent));
        }
        other => panic!("not partial: {other:?}"),
    }
    // An index that is not allowed is no fault of the event, and a position outside the batch is none.
    for (code, at, class) in [(7, 1, Config), (6, 2, Permanent)] {
        fake.script([answer(
            400,
            code,
            &format!(",\"invalid-event-number\":{at}"),
        )]);
        assert_eq!(failure(splunk.send(&both).await).class, class);
    }
    fake.script([answer(400, 13, ",\"invalid-event-number\":0")]);
    let alone = splunk.send(&batch(BatchClass::Traffic, &[&one])).await;
    assert_eq!(failure(alone).class, Permanent);
}

#[test]
fn invalid_fields_are_refused_and_the_token_is_kept_and_hidden() {
    let valid = config("https://splunk.example:8088".to_owned());
    assert_refused(
        &TYPE,
        &valid,
        &[
            json!({"url": "https://user:s3cr3t@splunk.example"}),
            json!({"url": "https://splunk.example?token=s3cr3t"}),
            json!({"url": "ftp://splunk.example"}),
            json!({"token": null}),
            json!({"token": ""}),
            json!({"token": "s3cr3t with spaces"}),
            json!({"index": "a b"}),
            json!({"index": "x".repeat(81)}),
            json!({"host": "a\nb"}),
            json!({"source": "x".repeat(201)}),
            json!({"ack": true}),
        ],
    );
    let (stored, shown) = stored_and_shown(&TYPE, &valid);
    assert_eq!(shown["token"], Value::Null);
    let merged = (TYPE.merge)(&stored, json!({"url": "https://splunk.example:8088"}));
    assert_eq!(merged["token"], "hec-s3cr3t");
}

#[test]
fn the_largest_batch_is_below_a_megabyte() {
    // Three texts of 200 bytes, each escaped to at most twice its size, an index, the names and the time.
    let metadata = 3 * 2 * TEXT_BYTES_MAX + 80 + 120;
    let events = TYPE.limits.events_max as usize;
    assert!(TYPE.limits.bytes_max + events * metadata <= 1_000_000);
}
