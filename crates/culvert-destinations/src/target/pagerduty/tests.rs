use culvert_base::batch::BatchClass;
use culvert_target::failure::FailureClass::*;

use super::*;
use crate::target::message::tests::{HOSTILE, alert, alerts, event};
use crate::tests::fake::{
    Fake, Reply, assert_refused, batch, failure, pair, stored_and_shown, target,
};

const KEY: &str = "s3cr3tkeyXXXXXXXXXXXXXXXXXXXXXXX";

fn pagerduty(fake: &Fake) -> Arc<dyn Target> {
    let config = json!({"routing_key": KEY, "url": fake.url("/")});
    target(&TYPE, &config, |_| {})
}

fn taken() -> Reply {
    let body = r#"{"status":"success","message":"Event processed","dedup_key":"alr_1"}"#;
    Reply::with(202, body)
}

#[tokio::test]
async fn alerts_trigger_and_resolve_and_others_are_changes() {
    let fake = Fake::start().await;
    fake.otherwise(taken());
    let [fired, resolved] = alerts();
    let key = event(
        3,
        "api_key_created.v0",
        &json!({"id": HOSTILE, "name": "n"}),
    );
    let all = batch(BatchClass::Audit, &[&fired, &resolved, &key]);
    assert_eq!(pagerduty(&fake).send(&all).await, Verdict::Delivered);
    let seen = fake.seen();
    let lines: Vec<_> = seen.iter().map(|request| request.line.as_str()).collect();
    let alert = "POST /v2/enqueue HTTP/1.1";
    assert_eq!(lines, [alert, alert, "POST /v2/change/enqueue HTTP/1.1"]);
    let trigger = seen[0].json();
    assert_eq!(
        (&trigger["event_action"], &trigger["dedup_key"]),
        (&json!("trigger"), &json!("alr_1"))
    );
    assert_eq!(trigger["routing_key"], KEY);
    let payload = &trigger["payload"];
    assert_eq!(payload["summary"], "25 % of the requests failed");
    assert_eq!(
        (&payload["severity"], &payload["source"]),
        (&json!("critical"), &json!("culvert.example"))
    );
    assert_eq!(payload["timestamp"], "2027-01-15T08:00:00.000Z");
    assert_eq!(payload["custom_details"]["Rule"], "Errors of the shop");
    let resolve = json!({"routing_key": KEY, "event_action": "resolve", "dedup_key": "alr_1"});
    assert_eq!(seen[1].json(), resolve);
    let change = seen[2].json();
    assert!(
        change["payload"]["summary"]
            .as_str()
            .unwrap()
            .starts_with("API key created: ")
    );
    assert!(change["payload"].get("severity").is_none() && change.get("dedup_key").is_none());
}

/// A dead letter that is sent again after the end of its alert opens no incident.
#[tokio::test]
async fn the_beginning_of_a_resolved_alert_resolves_again() {
    let fake = Fake::start().await;
    fake.otherwise(taken());
    let pagerduty = pagerduty(&fake);
    let [fired, resolved] = alerts();
    for event in [&resolved, &fired] {
        let sent = pagerduty.send(&batch(BatchClass::Audit, &[event])).await;
        assert_eq!(sent, Verdict::Delivered);
    }
    for request in fake.seen() {
        assert_eq!(request.json()["event_action"], "resolve");
    }
}

#[tokio::test]
async fn a_long_summary_is_cut_and_an_alert_without_id_is_refused_here() {
    let fake = Fake::start().await;
    fake.otherwise(taken());
    let long = event(
        1,
        "alert_fired.v0",
        &alert("info", false, &"x".repeat(5000)),
    );
    let sent = pagerduty(&fake)
        .send(&batch(BatchClass::Audit, &[&long]))
        .await;
    assert_eq!(sent, Verdict::Delivered);
    let summary = fake.seen()[0].json()["payload"]["summary"].clone();
    assert!(summary.as_str().unwrap().chars().count() <= 1024);
    let mut without = alert("info", false, "s");
    without["id"] = Value::Null;
    let without = event(1, "alert_fired.v0", &without);
    let sent = pagerduty(&fake)
        .send(&batch(BatchClass::Audit, &[&without]))
        .await;
    assert_eq!(failure(sent).class, Permanent);
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn a_wrong_key_is_no_wrong_event() {
    let fake = Fake::start().await;
    let pagerduty = pagerduty(&fake);
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    let invalid = |error: &str| {
        format!(
            r#"{{"status":"invalid event","message":"Event object is invalid","errors":["{error}"]}}"#
        )
    };
    for (status, body, class) in [
        (
            400,
            invalid("'payload.summary' is missing or blank"),
            Permanent,
        ),
        (400, invalid("Invalid routing key"), Auth),
        (400, invalid("'routing_key' is missing or blank"), Auth),
        (403, "{}".to_owned(), Auth),
        (429, "{}".to_owned(), Retryable),
        (500, "{}".to_owned(), Retryable),
        (200, "<html>".to_owned(), Config),
    ] {
        fake.script([Reply::with(status, body)]);
        assert_eq!(failure(pagerduty.send(&one).await).class, class, "{status}");
    }
    fake.script([Reply::with(400, invalid(KEY))]);
    let refused = failure(pagerduty.send(&one).await);
    assert_eq!(refused.text, "Event object is invalid: [redacted]");
    assert!(!format!("{pagerduty:?}").contains("s3cr3t"));
}

#[test]
fn the_key_is_checked_kept_and_hidden() {
    let valid = json!({"routing_key": KEY});
    assert_refused(
        &TYPE,
        &valid,
        &[
            json!({"routing_key": null}),
            json!({"routing_key": "s3cr3t"}),
            json!({"routing_key": format!("{}-", &KEY[1..])}),
            json!({"url": "https://127.0.0.1:1/s3cr3t?x"}),
            json!({"severity": "info"}),
        ],
    );
    let (stored, shown) = stored_and_shown(&TYPE, &valid);
    assert_eq!(shown["routing_key"], Value::Null);
    assert_eq!((TYPE.merge)(&stored, json!({}))["routing_key"], KEY);
}
