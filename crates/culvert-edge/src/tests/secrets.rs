//! A canary in a secret: it reaches no event, no capture and no log, wherever a policy uses the secret, and no client
//! where it is confined.

use std::sync::Arc;

use culvert_policy::{Resources, Scheme, Secrets};
use serde_json::{Value, json};

use super::evaluation::counting;
use super::harness::*;
use super::internal::{named, publish};
use super::policies::{governed_with, last_event};

const CANARY: &str = "canary-0123456789";
const ASK: &str =
    "POST /a?b=c HTTP/1.1\r\nHost: app.example\r\nX-Who: me\r\nContent-Length: 3\r\n\r\nabc";

/// The phase and type of an action, its configuration, and whether clients never see the secret in it.
fn uses() -> Vec<(&'static str, &'static str, Value, bool)> {
    let get = "${secrets.get('v', 'n')}";
    let (request, response) = ("on_http_request", "on_http_response");
    let call = |field: &str, value: Value| {
        let mut config = json!({"url": "http://inner.internal/", "method": "POST"});
        config[field] = value;
        config
    };
    vec![
        (
            request,
            "add-headers",
            json!({"headers": {"x-key": get}}),
            true,
        ),
        (
            request,
            "set-headers",
            json!({"headers": {"x-key": get}}),
            true,
        ),
        (
            request,
            "add-headers",
            json!({"headers": {"x-key": format!("Bearer {get}")}}),
            true,
        ),
        (
            request,
            "basic-auth",
            json!({"credentials": [format!("u:{get}")]}),
            true,
        ),
        (
            request,
            "basic-auth",
            json!({"credentials": [format!("u:{get}")], "enforce": false}),
            true,
        ),
        (
            request,
            "verify-webhook",
            json!({"provider": "github", "secret": get}),
            true,
        ),
        (
            request,
            "http-request",
            call("headers", json!({"x-key": get})),
            true,
        ),
        (request, "http-request", call("body", json!(get)), true),
        (
            response,
            "http-request",
            call("headers", json!({"x-key": get})),
            true,
        ),
        (
            request,
            "http-request",
            json!({"url": format!("http://inner.internal/{get}")}),
            false,
        ),
        (
            request,
            "http-request",
            json!({"url": format!("http://{get}.internal/"), "on_error": "continue"}),
            false,
        ),
        (request, "custom-response", json!({"body": get}), false),
        (
            request,
            "custom-response",
            json!({"headers": {"x-key": get}}),
            false,
        ),
        (
            request,
            "redirect",
            json!({"to": format!("https://x.example/{get}")}),
            false,
        ),
        (
            request,
            "redirect",
            json!({"to": "https://x.example/", "headers": {"x-key": get}}),
            false,
        ),
        (
            request,
            "url-rewrite",
            json!({"to": format!("/{get}?{get}")}),
            false,
        ),
        (
            request,
            "request-body-find-replace",
            json!({"replacements": [{"from": "b", "to": get}]}),
            false,
        ),
        (
            request,
            "log",
            json!({"metadata": {"a": [{"b": get}], "c": format!("x{get}")}}),
            false,
        ),
        (request, "set-vars", json!({"vars": [{"k": get}]}), false),
        (
            request,
            "rate-limit",
            json!({"capacity": 9, "rate": "60s", "bucket_key": ["secrets.get('v', 'n')"]}),
            false,
        ),
        (
            request,
            "forward-internal",
            json!({"url": format!("http://{get}.internal/"), "on_error": "continue"}),
            false,
        ),
        (
            response,
            "add-headers",
            json!({"headers": {"x-key": get}}),
            false,
        ),
        (
            response,
            "set-headers",
            json!({"headers": {"x-key": get}}),
            false,
        ),
        (
            response,
            "custom-response",
            json!({"body": get, "headers": {"x-key": get}}),
            false,
        ),
        (
            response,
            "response-body-find-replace",
            json!({"replacements": [{"from": "hello", "to": get}]}),
            false,
        ),
        (response, "log", json!({"metadata": {"a": get}}), false),
    ]
}

/// Logs everything that later expressions can read.
fn log_all(is_response: bool) -> Value {
    let mut metadata = json!({
        "vars": "${vars}", "results": "${actions.culvert}", "one": "${'k' in vars ? vars.k : ''}",
        "headers": "${req.headers}",
    });
    if is_response {
        metadata["response"] = json!("${res.headers}");
    }
    json!({"type": "log", "config": {"metadata": metadata}})
}

#[tokio::test]
async fn a_secret_reaches_no_event_and_no_capture() {
    for forwards in [false, true] {
        for (phase, action, config, is_confined) in uses() {
            let mut rig = Rig::start().await;
            // A service that says what it was sent, as many do.
            let origin = origin(&mut rig.tasks, move |mut client| async move {
                while let Some((head, body)) = client.request().await {
                    let said = match head.contains("app.example") {
                        true => "hello".to_owned(),
                        false => format!("{head}{}", String::from_utf8_lossy(&body)),
                    };
                    let length = said.len();
                    client
                        .send(format!(
                            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{said}"
                        ))
                        .await;
                }
            })
            .await;
            let upstream = format!("http://{origin}");
            let secrets = Arc::new(Secrets::default());
            secrets.replace([("v", "n", CANARY)]);
            let resources = Resources {
                secrets,
                ..Resources::default()
            };
            let capture = json!({"type": "capture", "config": {}});
            let is_last = action == "custom-response";
            let hands_on = forwards && !is_last;
            // If the request goes on, the endpoint that gets the secret captures it.
            let mut actions = match hands_on {
                true => [vec![], vec![]],
                false => [vec![capture], vec![]],
            };
            let own = json!({"type": action, "config": config});
            let at = usize::from(phase == "on_http_response");
            actions[at].push(own);
            if !is_last {
                actions[at].push(log_all(at == 1));
            }
            if at == 0 {
                actions[1].push(log_all(true));
            }
            if hands_on {
                let forward = json!({"type": "forward-internal", "config": {"url": "http://inner.internal/"}});
                actions[0].push(forward);
            }
            let policy = json!({
                "on_http_request": [{"actions": actions[0]}],
                "on_http_response": [{"actions": actions[1]}],
            });
            let inner = json!({
                "on_http_request": [{"actions": [{"type": "capture", "config": {"max_bytes": 1000}}]}],
            });
            let outer = governed_with(Scheme::Http, &upstream, &policy.to_string(), &resources);
            let mut outer_named = named(Scheme::Http, "app.example", 80, &upstream, "");
            outer_named.policy = outer.policy;
            let inner = named(
                Scheme::Http,
                "inner.internal",
                80,
                &upstream,
                &inner.to_string(),
            );
            publish(&rig, [outer_named, inner]).await;
            let answer = rig.ask(ASK).await;
            let sent = format!(
                "{:?}{:?}",
                answer.headers,
                String::from_utf8_lossy(&answer.body)
            );
            assert!(!is_confined || !sent.contains(CANARY), "{policy} {sent}");
            let reported = last_event(&rig, 1).await;
            let said = format!("{reported}{:?}", rig.recorder.events(1).await);
            assert!(!said.contains(CANARY), "{policy} {said}");
            let captured = rig.recorder.captured.lock().unwrap().pop();
            // An action that responds or rejects comes before the endpoint that would capture.
            let Some(captured) = captured else {
                assert!(hands_on, "{policy}");
                continue;
            };
            let (request, response) = (&captured.request, &captured.response);
            let bodies = [
                request
                    .as_ref()
                    .map(|it| String::from_utf8_lossy(&it.body.bytes)),
                response
                    .as_ref()
                    .map(|it| String::from_utf8_lossy(&it.body.bytes)),
            ];
            let kept = format!("{captured:?}{bodies:?}");
            assert!(!kept.contains(CANARY), "{policy} {kept}");
        }
    }
}

/// A policy whose secrets were withdrawn refuses everything, with its code, before its upstream gets the request.
#[tokio::test]
async fn a_policy_without_the_right_to_its_secrets_refuses() {
    let mut rig = Rig::start().await;
    let (origin, asked) = counting(&mut rig).await;
    let secrets = Arc::new(Secrets::default());
    secrets.replace([("v", "n", CANARY)]);
    let resources = Resources {
        secrets,
        ..Resources::default()
    };
    for (phase, action, config, _) in uses() {
        let policy =
            json!({phase: [{"actions": [{"type": action, "config": config}]}]}).to_string();
        let endpoint = governed_with(Scheme::Http, &origin, &policy, &resources);
        let right = Arc::clone(endpoint.policy.as_ref().unwrap().secret_right().unwrap());
        let snapshot = crate::Snapshot::builder().endpoint(endpoint).build();
        rig.edge.publish(snapshot).await;
        right.withdraw(true);
        let before = asked.get();
        let answer = rig.ask(ASK).await;
        assert_eq!(
            (answer.status, answer.header("ngrok-error-code")),
            (500, Some("ERR_NGROK_2270")),
            "{policy}"
        );
        assert_eq!(asked.get(), before, "{policy}");
        right.withdraw(false);
        assert_ne!(
            rig.ask(ASK).await.header("ngrok-error-code"),
            Some("ERR_NGROK_2270"),
            "{policy}"
        );
    }
}
