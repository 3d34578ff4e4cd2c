//! verify-webhook on live traffic: what passes, what the upstream gets, and the whole event.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use culvert_base::{ManualClock, Timestamp};
use culvert_edge_config::ACTIONS;
use culvert_policy::Scheme;
use culvert_policy::{Resources, Source};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use super::harness::*;
use super::policies::{event, governed, last_event, publish};
use crate::{Limits, Settings, Snapshot};

const MAX: usize = 5 << 20;

/// What GitHub publishes for `Hello, World!` and the secret below.
const SIGNATURE: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

const GITHUB: &str = "
on_http_request:
- actions:
  - {type: verify-webhook, config: {provider: github, secret: \"It's a Secret to Everybody\"}}
";

/// An origin that returns the length and the framing of each body.
async fn measure(rig: &mut Rig) -> String {
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, body)) = client.request().await {
            let is_chunked = head.contains("transfer-encoding: chunked");
            let short = String::from_utf8_lossy(&body[..body.len().min(20)]).into_owned();
            let text = format!("{} {is_chunked} {short}", body.len());
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            );
            client.send(answer).await;
        }
    })
    .await;
    format!("http://{origin}")
}

fn post(signature: &str, body: &str) -> String {
    format!(
        "POST /a?b=c HTTP/1.1\r\nHost: app.example\r\nX-Hub-Signature-256: {signature}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The event of `post`.
fn posted(status: u16, decision: &str, signature: &str, length: usize, answer: usize) -> Value {
    let headers = json!({"Content-Length": [answer.to_string()]});
    let mut expected = event(json!(status), headers, answer);
    expected["http"]["request"]["method"] = json!("post");
    expected["http"]["request"]["body_length"] = json!(length);
    expected["http"]["request"]["headers"] = json!({
        "Host": ["app.example"], "X-Hub-Signature-256": [signature], "Content-Length": [length.to_string()],
    });
    expected["webhook_verification"]["decision"] = json!(decision);
    expected
}

#[tokio::test]
async fn verified_webhooks_pass_unchanged_and_forged_ones_are_refused() {
    let mut rig = Rig::start().await;
    let origin = measure(&mut rig).await;
    publish(&rig, &origin, GITHUB).await;

    let answer = rig.ask(&post(SIGNATURE, "Hello, World!")).await;
    assert_eq!(
        (answer.status, answer.text()),
        (200, "13 false Hello, World!")
    );
    let expected = posted(200, "allow", SIGNATURE, 13, answer.body.len());
    assert_eq!(last_event(&rig, 1).await, expected);

    let answer = rig.ask(&post(SIGNATURE, "Hello, World?")).await;
    assert_eq!(answer.status, 403);
    assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3204"));
    let mut expected = posted(403, "block", SIGNATURE, 13, answer.body.len());
    let mut reported = last_event(&rig, 3).await;
    for event in [&mut expected, &mut reported] {
        event["http"]["response"]["headers"] = Value::Null;
    }
    assert_eq!(reported, expected);

    // In chunks, with a trailer, which is not sent.
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: app.example\r\nX-Hub-Signature-256: {SIGNATURE}\r\n\
         Transfer-Encoding: chunked\r\n\r\n7\r\nHello, \r\n6\r\nWorld!\r\n0\r\nx-late: 1\r\n\r\n"
    );
    let answer = rig.ask(&chunked).await;
    assert_eq!(
        (answer.status, answer.text()),
        (200, "13 false Hello, World!")
    );
}

#[tokio::test]
async fn unenforced_verifications_are_recorded() {
    let mut rig = Rig::start().await;
    let origin = measure(&mut rig).await;
    let policy = "
on_http_request:
- actions:
  - {type: verify-webhook, config: {provider: github, secret: \"${'It' + vars_secret}\", enforce: false}}
  - type: log
    config: {metadata: {verified: \"${actions.culvert.verify_webhook.verified}\", error: \"${actions.ngrok.verify_webhook.error}\"}}
"
    .replace("vars_secret", "\\\"'s a Secret to Everybody\\\"");
    publish(&rig, &origin, &policy).await;
    for (count, body, verified, code, message) in [
        (1, "Hello, World!", true, "", ""),
        (
            3,
            "Hello",
            false,
            "ERR_NGROK_3204",
            "the signature does not match",
        ),
    ] {
        let answer = rig.ask(&post(SIGNATURE, body)).await;
        assert_eq!(answer.status, 200);
        let event = last_event(&rig, count).await;
        assert_eq!(event["webhook_verification"]["decision"], "allow");
        let error = json!({"code": code, "message": message});
        let log = json!([{"metadata": {"verified": verified, "error": error}}]);
        assert_eq!(event["traffic_policy"]["logs"], log);
    }
}

#[tokio::test]
async fn bodies_are_read_up_to_a_limit() {
    let mut rig = Rig::start().await;
    let origin = measure(&mut rig).await;
    let policy = GITHUB.replace("github,", "github, enforce: false,");
    publish(&rig, &origin, &policy).await;
    let longest = "x".repeat(MAX);
    let answer = rig.ask(&post("sha256=00", &longest)).await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().starts_with("5242880 false xxx"));

    // One byte more: said ahead, and found out.
    let said = "POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 5242881\r\n\r\n";
    let found = format!(
        "POST / HTTP/1.1\r\nHost: app.example\r\nTransfer-Encoding: chunked\r\n\r\n500000\r\n{longest}\r\n1\r\nx\r\n0\r\n\r\n"
    );
    for request in [said, &found] {
        let answer = rig.ask(request).await;
        assert_eq!(answer.status, 413);
        assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3612"));
    }
    let event = last_event(&rig, 5).await;
    assert_eq!(event["webhook_verification"]["decision"], "block");
}

/// Bodies that are held share a limit.
pub(super) async fn held_bytes() {
    let limits = Limits {
        held_bytes: 13,
        ..Limits::default()
    };
    let mut rig = Rig::with(Settings {
        limits,
        ..settings()
    })
    .await;
    let origin = measure(&mut rig).await;
    publish(&rig, &origin, GITHUB).await;
    let answer = rig.ask(&post(SIGNATURE, "Hello, World!!")).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3613"));

    // Room that was taken is given back.
    for _ in 0..3 {
        let answer = rig.ask(&post(SIGNATURE, "Hello, World!")).await;
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn challenges_of_webhook_providers_are_answered() {
    let rig = Rig::start().await;
    let policy = "
on_http_request:
- actions:
  - {type: verify-webhook, config: {provider: twitter, secret: whose-secret-is-it}}
  - {type: deny, config: {status_code: 418}}
";
    publish(&rig, "", policy).await;
    let ask = |query: &str| format!("GET /in?{query} HTTP/1.1\r\nHost: app.example\r\n\r\n");
    let answer = rig.ask(&ask("crc_token=NGEz-X_1&nonce=2")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(answer.text().starts_with("{\"response_token\":\"sha256="));
    let event = last_event(&rig, 1).await;
    assert_eq!(event["webhook_verification"]["decision"], "allow");
    let answer = rig.ask(&ask("crc_token=%7B%7D")).await;
    assert_eq!(answer.status, 403);
    let event = last_event(&rig, 3).await;
    assert_eq!(event["webhook_verification"]["decision"], "block");
}

#[tokio::test]
async fn sns_messages_are_verified_by_their_certificate() {
    let vectors: Value = serde_json::from_str(include_str!(
        "../../../culvert-webhooks/tests/data/webhooks.json"
    ))
    .unwrap();
    let now = Timestamp::from_unix_seconds(vectors["now"].as_i64().unwrap());
    let mut rig = Rig::at(settings(), Arc::new(ManualClock::at(now))).await;
    let origin = measure(&mut rig).await;
    let policy = "on_http_request: [{actions: [{type: verify-webhook, config: {provider: sns}}]}]";
    publish(&rig, &origin, policy).await;
    let cases = vectors["cases"].as_array().unwrap();
    let case = |name: &str| {
        let mut cases = cases
            .iter()
            .filter(|case| case["provider"] == "sns" && case["case"] == name);
        cases.next().unwrap()
    };
    let pem = case("good")["certificate"].as_str().unwrap().to_owned();
    let url = "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-f3.pem";
    rig.edge
        .shared()
        .policy
        .documents
        .put(url, pem.into())
        .await;
    for (name, status) in [("good", 200), ("tampered body", 403), ("stale", 403)] {
        let body = STANDARD
            .decode(case(name)["body"].as_str().unwrap())
            .unwrap();
        let answer = rig
            .ask(&post("none", std::str::from_utf8(&body).unwrap()))
            .await;
        assert_eq!(answer.status, status, "{name}");
    }
}

#[tokio::test]
async fn an_http2_body_is_held_and_counted() {
    let mut rig = Rig::start().await;
    let origin = measure(&mut rig).await;
    let (names, key, root) = certificate(&["app.example"]);
    let snapshot = Snapshot::builder()
        .certificate(names, key)
        .endpoint(governed(Scheme::Https, &origin, GITHUB));
    rig.edge.publish(snapshot.build()).await;
    let mut sender = super::secure::http2(&mut rig, &root, "app.example").await;
    let request = http::Request::post("https://app.example/")
        .header("x-hub-signature-256", SIGNATURE)
        .body(Full::new(Bytes::from("Hello, World!")))
        .unwrap();
    let answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "13 false Hello, World!");
    drop(sender);
    let events = rig.recorder.events(2).await;
    let object = &of(&events, HTTP)[0]["object"];
    assert_eq!(object["http"]["request"]["body_length"], 13);
    assert_eq!(object["webhook_verification"]["decision"], "allow");
}

#[test]
fn invalid_verify_webhook_configurations_are_refused() {
    for (config, code, hint) in [
        ("{secret: s}", "ERR_NGROK_2234", "provider"),
        (
            "{provider: github}",
            "ERR_NGROK_2234",
            "`secret` is missing",
        ),
        (
            "{provider: nobody, secret: s}",
            "ERR_NGROK_2204",
            "github, gitlab",
        ),
        (
            "{provider: github, secret: ''}",
            "ERR_NGROK_2204",
            "must not be empty",
        ),
        (
            "{provider: svix, secret: whsec_!}",
            "ERR_NGROK_2204",
            "Base64",
        ),
        (
            "{provider: sendgrid, secret: s}",
            "ERR_NGROK_2204",
            "public key",
        ),
        (
            "{provider: sns, secret: s}",
            "ERR_NGROK_2204",
            "does not use a `secret`",
        ),
        (
            "{provider: github, secret: '${'}",
            "ERR_NGROK_2224",
            "secret",
        ),
        (
            "{provider: github, secret: s, header: x}",
            "ERR_NGROK_2203",
            "header",
        ),
    ] {
        let text =
            format!("on_http_request: [{{actions: [{{type: verify-webhook, config: {config}}}]}}]");
        let source = Source::read(&text, ACTIONS).unwrap();
        let refused = source
            .compile(Scheme::Http, true, &Resources::default())
            .unwrap_err();
        assert_eq!(refused.code.unwrap().to_string(), code, "{config}");
        assert!(
            refused.message.contains(hint),
            "{config}: {}",
            refused.message
        );
        assert!(!refused.message.contains("whsec_!"));
    }
}
