//! Webhooks of providers, from the management API to the upstream and the event.

use http::Method;
use serde_json::{Value, json};

use crate::events_arrive::subscribe_debug;
use crate::harness::{Harness, RawAnswer, Receiver, backends, eventually, raw};

/// The signature that GitHub documents for the secret below and the body `Hello, World!`.
const SIGNATURE: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

const POLICY: &str = "on_http_request: # from GitHub\n- actions:\n  - type: verify-webhook\n    config: {provider: github, secret: \"It's a Secret to Everybody\"}\n";

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_verified_and_updates_keep_the_secret() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let (hook, origin) = (Receiver::start().await, Receiver::start().await);
        let source = json!([{"type": "http_request_complete.v0"}]);
        subscribe_debug(&culvert, &hook, source).await;
        let host = "hooked.culvert.localhost";
        let body = json!({
            "url": format!("http://{host}"), "traffic_policy": POLICY,
            "upstream_url": format!("http://{}", origin.address),
        });
        let made = culvert.create("endpoints", body).await;
        assert_eq!(made["traffic_policy"], POLICY);
        let listed = culvert.call(Method::GET, "/endpoints", None).await.body;
        assert_eq!(listed["endpoints"][0]["traffic_policy"], POLICY);
        let shown = POLICY.replace("\"It's a Secret to Everybody\"", "\"[redacted]\"");
        let kept =
            crate::secrets::files_with(&culvert.settings.data_dir, b"It's a Secret to Everybody");
        assert_eq!(kept, Vec::<String>::new());

        let send = async |body: &str| -> RawAnswer {
            let request = format!(
                "POST /in HTTP/1.1\r\nhost: {host}\r\nx-hub-signature-256: {SIGNATURE}\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            raw(culvert.http, request.as_bytes()).await
        };
        eventually("the signed one passes", async || {
            send("Hello, World!").await.status == 200
        })
        .await;
        let received = origin.received();
        assert_eq!(received.last().unwrap().body, "Hello, World!");
        let forged = send("Hello, World?").await;
        assert_eq!(forged.status, 403);
        assert!(forged.text.contains("ERR_NGROK_3204"));
        assert_eq!(origin.received().len(), received.len());
        for decision in ["allow", "block"] {
            let reported =
                |event: &Value| event["object"]["webhook_verification"]["decision"] == decision;
            eventually("the event tells it", async || {
                hook.events().iter().any(reported)
            })
            .await;
        }

        // The returned text can be written back with another name.
        let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
        let changed = shown.replace("- actions", "- name: github\n  actions");
        let patch = json!({"traffic_policy": changed, "description": "renamed"});
        let patched = culvert.call(Method::PATCH, &path, Some(patch)).await;
        let whole = changed.replace("\"[redacted]\"", "\"It's a Secret to Everybody\"");
        assert_eq!(patched.body["traffic_policy"], whole);
        assert_eq!(send("Hello, World!").await.status, 200);
        assert_eq!(send("Hello, World?").await.status, 403);
        culvert.stop().await;
    }
}
