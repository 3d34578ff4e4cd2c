//! Captured messages: as the client sent and got them, whatever policies change, and nothing that is not selected.

use culvert_events::bodies::{BodyOmission, CapturedMessages};
use culvert_policy::capture::decoded;
use serde_json::json;

use super::harness::*;
use super::policies::{last_event, publish};

/// An origin that responds to each request with its body.
async fn echo(rig: &mut Rig, fields: &'static str) -> String {
    let origin = origin(&mut rig.tasks, move |mut client| async move {
        while let Some((_, body)) = client.request().await {
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\n{fields}content-length: {length}\r\n\r\n");
            client.send(head).await;
            client.send(body).await;
        }
    })
    .await;
    format!("http://{origin}")
}

fn post(fields: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /a?b=c HTTP/1.1\r\nHost: app.example\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
    )
}

/// The messages of the only exchange, once its event is there.
async fn captured(rig: &Rig) -> Option<CapturedMessages> {
    last_event(rig, 1).await;
    rig.recorder.captured.lock().unwrap().pop()
}

#[tokio::test]
async fn captures_have_the_messages_as_the_client_sent_and_received_them() {
    let mut rig = Rig::start().await;
    let upstream = echo(&mut rig, "content-type: text/plain\r\n").await;
    let policy = json!({
        "on_http_request": [{"actions": [
            {"type": "capture", "config": {}},
            {"type": "request-body-find-replace", "config": {"replacements": [{"from": "one", "to": "two"}]}},
            {"type": "add-headers", "config": {"headers": {"x-added": "1"}}},
        ]}],
        "on_http_response": [{"actions": [
            {"type": "add-headers", "config": {"headers": {"x-sent": "1"}}},
            {"type": "compress-response", "config": {}},
        ]}],
    });
    publish(&rig, &upstream, &policy.to_string()).await;
    let body = "one ".repeat(500);
    let answer = rig
        .ask(&post("Accept-Encoding: gzip\r\nX-Case: AbC\r\n", &body))
        .await;
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    let messages = captured(&rig).await.unwrap();
    let (request, response) = (messages.request.unwrap(), messages.response.unwrap());
    assert_eq!(request.url, "http://app.example/a?b=c");
    assert_eq!(request.body.bytes, body.as_bytes());
    assert!(!request.body.is_truncated);
    let named = |name: &str| request.headers.iter().find(|field| field.name == name);
    assert_eq!(named("x-case").unwrap().value, "AbC");
    assert!(named("x-added").is_none());
    assert!(response.headers.iter().any(|field| field.name == "x-sent"));
    let plain = decoded(&response.headers, &response.body).unwrap();
    assert_eq!(plain, "two ".repeat(500).as_bytes());
    assert!(!response.body.is_truncated && response.body.length < 500);
}

#[tokio::test]
async fn captures_obey_the_content_types_and_the_time_of_the_action() {
    for (config, is_request, is_body) in [
        (json!({"content_types": ["text/*"]}), true, true),
        (json!({"content_types": ["application/json"]}), true, false),
        (json!({"request": false}), false, true),
        (json!({"until": "2020-01-01T00:00:00Z"}), false, false),
        (json!({"until": "2100-01-01T00:00:00Z"}), true, true),
    ] {
        let mut rig = Rig::start().await;
        let upstream = echo(&mut rig, "content-type: text/plain; charset=utf-8\r\n").await;
        let actions = json!([{"type": "capture", "config": config}]);
        let policy = json!({"on_http_request": [{"actions": actions}]});
        publish(&rig, &upstream, &policy.to_string()).await;
        rig.ask(&post("Content-Type: Text/Plain\r\n", "body")).await;
        let messages = captured(&rig).await.unwrap_or_default();
        assert_eq!(messages.request.is_some(), is_request, "{config}");
        let omitted = (!is_body).then_some(BodyOmission::ContentType);
        if let Some(request) = messages.request {
            assert_eq!(
                (request.body.bytes == b"body", request.body.omitted),
                (is_body, omitted)
            );
        }
        if let Some(response) = messages.response {
            assert_eq!(
                (response.body.bytes == b"body", response.body.omitted),
                (is_body, omitted)
            );
        }
    }
}

#[tokio::test]
async fn a_rejected_request_is_captured_without_its_unread_body() {
    let rig = Rig::start().await;
    let policy = json!({"on_http_request": [{"actions": [
        {"type": "capture", "config": {}},
        {"type": "deny", "config": {"status_code": 403}},
    ]}]});
    publish(&rig, "http://127.0.0.1:9", &policy.to_string()).await;
    rig.ask(&post("", "body")).await;
    let messages = captured(&rig).await.unwrap();
    let request = messages.request.unwrap();
    assert!(request.body.bytes.is_empty() && request.body.is_truncated);
    assert_eq!(messages.response.unwrap().status_code, 403);
}

#[tokio::test]
async fn a_client_cannot_mark_its_request_as_a_replay() {
    let mut rig = Rig::start().await;
    let upstream = echo(&mut rig, "").await;
    let policy = json!({"on_http_request": [{
        "expressions": ["'culvert-replay-of' in req.headers"],
        "actions": [{"type": "deny", "config": {"status_code": 418}}],
    }]});
    publish(&rig, &upstream, &policy.to_string()).await;
    let fields =
        "Culvert-Replay-Of: ev_1\r\nCULVERT-REPLAY-OF: ev_2\r\nculvert_replay_of: ev_3\r\n";
    let answer = rig.ask(&post(fields, "")).await;
    assert_eq!(answer.status, 200);
    let event = last_event(&rig, 1).await;
    let headers = &event["http"]["request"]["headers"];
    assert_eq!(headers["Culvert-Replay-Of"], json!(null));
}
