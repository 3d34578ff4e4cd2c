use culvert_base::batch::BatchClass;
use culvert_target::failure::FailureClass::*;

use super::*;
use crate::target::message::tests::{HOSTILE, alert, alerts, event};
use crate::tests::fake::{
    Fake, Reply, assert_refused, batch, failure, pair, stored_and_shown, target,
};

fn ntfy(fake: &Fake) -> Arc<dyn Target> {
    let config = json!({"url": fake.url("/"), "topic": "culvert-alerts", "token": "tk_s3cr3t"});
    target(&TYPE, &config, |_| {})
}

fn taken() -> Reply {
    let message = r#"{"id":"sPs71M8A2T","time":1800000000,"expires":1800043200,"event":"message","topic":"culvert-alerts"}"#;
    Reply::with(200, message)
}

#[tokio::test]
async fn each_event_is_a_notification_with_the_priority_of_its_severity() {
    let fake = Fake::start().await;
    fake.otherwise(taken());
    let [fired, resolved] = alerts();
    let warning = event(3, "alert_fired.v0", &alert("warning", false, "w"));
    let hostile = event(
        4,
        "api_key_created.v0",
        &json!({"id": HOSTILE, "name": "é".repeat(5000)}),
    );
    let all = batch(BatchClass::Audit, &[&fired, &resolved, &warning, &hostile]);
    assert_eq!(ntfy(&fake).send(&all).await, Verdict::Delivered);
    let seen = fake.seen();
    assert_eq!(seen[0].line, "POST / HTTP/1.1");
    assert_eq!(seen[0].header("authorization"), Some("Bearer tk_s3cr3t"));
    let bodies: Vec<_> = seen.iter().map(|request| request.json()).collect();
    let priorities: Vec<_> = bodies
        .iter()
        .map(|body| body["priority"].as_u64().unwrap())
        .collect();
    assert_eq!(priorities, [5, 3, 4, 3]);
    assert_eq!(bodies[0]["topic"], "culvert-alerts");
    assert_eq!(bodies[0]["title"], "[critical] 25 % of the requests failed");
    assert_eq!(
        bodies[0]["click"],
        "https://culvert.example/console/events/ev_1"
    );
    let text = bodies[3]["message"].as_str().unwrap();
    assert!(text.len() <= 4096 && !text.contains("://"), "{text}");
    // Without `markdown`, a text has no formatting.
    assert!(bodies.iter().all(|body| body.get("markdown").is_none()));
}

#[tokio::test]
async fn errors_have_the_code_of_the_server() {
    let fake = Fake::start().await;
    let ntfy = ntfy(&fake);
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    for (status, code, class) in [
        (401, 40_101, Auth),
        (403, 40_301, Auth),
        (400, 40_024, Permanent),
        (429, 42_908, Retryable),
        (507, 50_701, Retryable),
    ] {
        let body = format!(r#"{{"code":{code},"http":{status},"error":"said of tk_s3cr3t"}}"#);
        fake.script([Reply::with(status, body)]);
        let failure = failure(ntfy.send(&one).await);
        assert_eq!((failure.class, failure.code), (class, code.to_string()));
        assert_eq!(failure.text, "said of [redacted]");
    }
    for page in ["<html>", "{}", r#"{"event":"message"}"#] {
        fake.script([Reply::with(200, page)]);
        assert_eq!(failure(ntfy.send(&one).await).class, Config, "{page}");
    }
}

#[test]
fn invalid_fields_are_refused_and_the_token_is_kept_and_hidden() {
    let valid = json!({"url": "https://ntfy.example", "topic": "alerts", "token": "tk_s3cr3t"});
    assert_refused(
        &TYPE,
        &valid,
        &[
            json!({"url": "https://ntfy.example?auth=s3cr3t"}),
            json!({"url": "https://192.168.0.1"}),
            json!({"topic": ""}),
            json!({"topic": "a/b"}),
            json!({"topic": "x".repeat(65)}),
            json!({"token": "s3cr3t\r\nx"}),
            json!({"priority": 5}),
        ],
    );
    let (stored, shown) = stored_and_shown(&TYPE, &valid);
    assert_eq!(shown["token"], Value::Null);
    let given = json!({"url": "https://ntfy.example", "topic": "alerts"});
    assert_eq!((TYPE.merge)(&stored, given)["token"], "tk_s3cr3t");
}
