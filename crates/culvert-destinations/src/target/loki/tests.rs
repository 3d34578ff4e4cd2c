use serde_json::json;

use culvert_target::failure::FailureClass::*;

use super::*;
use crate::tests::fake::{
    Fake, Reply, assert_refused, batch, envelope, failure, pair, stored_and_shown, target,
};

fn config(url: String) -> Value {
    json!({"url": url})
}

fn loki(fake: &Fake, more: Value) -> Arc<dyn Target> {
    let mut config = config(fake.url("/"));
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    target(&TYPE, &config, |_| {})
}

#[tokio::test]
async fn events_with_equal_labels_are_a_stream_in_order_of_time() {
    let fake = Fake::start().await;
    fake.otherwise(Reply::status(204));
    let late = envelope(1, "2027-01-15T08:00:00.002Z");
    let early = envelope(2, "2027-01-15T08:00:00.001Z");
    let other = late.replace("\"test\"", "\"other.v0\"");
    let batch = batch(BatchClass::Traffic, &[&late, &other, &early]);
    assert_eq!(
        loki(&fake, json!({})).send(&batch).await,
        Verdict::Delivered
    );
    let more = json!({
        "tenant": "team-1", "token": "s3cr3t-token", "labels": {"job": "edge"},
        "event_labels": ["class", "account_id"],
    });
    assert_eq!(loki(&fake, more).send(&batch).await, Verdict::Delivered);
    let seen = fake.seen();
    assert_eq!(seen[0].line, "POST /loki/api/v1/push HTTP/1.1");
    assert_eq!(seen[0].header("content-type"), Some("application/json"));
    assert_eq!(seen[0].header("authorization"), None);
    let stream = |kind: &str, values: Value| {
        let labels = json!({"service_name": "culvert", "event_type": kind});
        json!({"stream": labels, "values": values})
    };
    let expected = [
        stream("other.v0", json!([["1800000000002000000", other]])),
        stream(
            "test",
            json!([
                ["1800000000001000000", early],
                ["1800000000002000000", late]
            ]),
        ),
    ];
    assert_eq!(seen[0].unpacked(), json!({"streams": expected}));
    assert_eq!(seen[1].header("x-scope-orgid"), Some("team-1"));
    assert_eq!(seen[1].header("authorization"), Some("Bearer s3cr3t-token"));
    let streams = &seen[1].unpacked()["streams"];
    assert_eq!(streams.as_array().unwrap().len(), 1);
    assert_eq!(
        streams[0]["stream"],
        json!({"job": "edge", "class": "traffic", "account_id": "ac_1"})
    );
}

/// The texts are those of Loki 2.9 and 3.
#[tokio::test]
async fn responses_are_classified() {
    let fake = Fake::start().await;
    let loki = loki(&fake, json!({"user": "u", "password": "s3cr3t"}));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for (status, text, class) in [
        (
            400,
            "entry for stream '{}' has timestamp too old: 2026-01-15T08:00:00Z, oldest acceptable timestamp is: 2026-02-15T08:00:00Z",
            Permanent,
        ),
        (
            400,
            "entry with timestamp 2026-01-15 08:00:00 +0000 UTC ignored, reason: 'entry too far behind'",
            Permanent,
        ),
        (
            400,
            "Max entry size '262144' bytes exceeded for stream '{}'",
            Permanent,
        ),
        (401, "no org id", Auth),
        (400, "no org id", Auth),
        (403, "", Auth),
        (404, "404 page not found", Config),
        (413, "", Split),
        (
            429,
            "Ingestion rate limit exceeded for user fake (limit: 4194304 bytes/sec)",
            Retryable,
        ),
        (
            500,
            "at least 2 live replicas required, could only find 1",
            Retryable,
        ),
        (
            500,
            "rpc error: code = ResourceExhausted desc = grpc: received message larger than max (5 vs. 4)",
            Split,
        ),
        (503, "", Retryable),
    ] {
        fake.script([Reply::with(status, text)]);
        let failure = failure(loki.send(&batch).await);
        assert_eq!(
            (failure.class, failure.code),
            (class, status.to_string()),
            "{text}"
        );
    }
    for (status, text, class) in [
        (204, "", None),
        (200, "", None),
        (200, "<html>", Some(Config)),
    ] {
        fake.script([Reply::with(status, text)]);
        let sent = loki.send(&batch).await;
        assert_eq!(sent.failure().map(|failure| failure.class), class);
    }
    // The password, and the header that has it.
    fake.script([Reply::with(400, "s3cr3t dTpzM2NyM3Q=")]);
    let failure = failure(loki.send(&batch).await);
    assert_eq!(failure.text, "[redacted] [redacted]");
}

#[test]
fn invalid_fields_are_refused_and_secrets_are_kept_and_hidden() {
    let valid = config("https://loki.example:3100".to_owned());
    assert_refused(
        &TYPE,
        &valid,
        &[
            json!({"tenant": "a b"}),
            json!({"labels": {"a-b": "x"}}),
            json!({"labels": {"1a": "x"}}),
            json!({"labels": {"__a": "x"}}),
            json!({"labels": {"a": ""}}),
            json!({"labels": {"a": 1}}),
            json!({"labels": {"event_type": "x"}}),
            json!({"labels": {}, "event_labels": []}),
            json!({"event_labels": ["event_id"]}),
            json!({"event_labels": ["class", "class"]}),
            json!({"labels": (0..11).map(|at| (format!("l{at}"), json!("x"))).collect::<serde_json::Map<_, _>>()}),
            json!({"user": "u", "token": "s3cr3t"}),
            json!({"password": "s3cr3t"}),
            json!({"streams": "s3cr3t"}),
        ],
    );
    let mut config = valid.clone();
    config["token"] = "s3cr3t".into();
    let (stored, shown) = stored_and_shown(&TYPE, &config);
    assert_eq!(shown["token"], Value::Null);
    assert_eq!(shown["labels"], json!({"service_name": "culvert"}));
    assert_eq!((TYPE.merge)(&stored, valid)["token"], "s3cr3t");
}
