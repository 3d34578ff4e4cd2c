//! The main path: after an API key is created and a request passes, exactly the subscribed events arrive.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert::client::Client;
use hmac::{Hmac, KeyInit, Mac};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Harness, Receiver, backends};

#[tokio::test(flavor = "multi_thread")]
async fn matching_requests_arrive_with_exactly_the_selected_fields() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let (webhook, origin) = (Receiver::start().await, Receiver::start().await);
        let destination = culvert
            .create(
                "event_destinations",
                json!({"format": "json", "target": {"webhook": {"url": format!("http://{}/hook", webhook.address)}}}),
            )
            .await;
        let secret = destination["target"]["webhook"]["secrets"][0]
            .as_str()
            .unwrap()
            .to_owned();
        culvert
            .create(
                "event_subscriptions",
                json!({
                    "destination_ids": [destination["id"]],
                    "sources": [
                        {"type": "api_key_created.v0"},
                        {
                            "type": "http_request_complete.v0",
                            "fields": ["http.response.status_code", "http.request.method", "conn.server_name"],
                            "filter": "ev.conn.server_name == \"wanted.culvert.localhost\"",
                        },
                    ],
                }),
            )
            .await;
        culvert.endpoint("wanted", origin.address).await;
        culvert.endpoint("other", origin.address).await;
        let probes = webhook.wait_for("http_request_complete.v0", 1).await.len();

        for _ in 0..3 {
            assert_eq!(
                culvert
                    .get("wanted.culvert.localhost", "/a?b=c")
                    .await
                    .status,
                200
            );
            assert_eq!(
                culvert.get("other.culvert.localhost", "/a").await.status,
                200
            );
        }
        let key = culvert
            .create(
                "api_keys",
                json!({"description": "second", "metadata": "{}"}),
            )
            .await;

        let audit = webhook.wait_for("api_key_created.v0", 1).await;
        let traffic = webhook
            .wait_for("http_request_complete.v0", probes + 3)
            .await;
        // No other event was in the queue: an event of a later change arrives after it.
        culvert.create("api_keys", json!({})).await;
        webhook.wait_for("api_key_created.v0", 2).await;
        assert_eq!(
            webhook.wait_for("http_request_complete.v0", 0).await.len(),
            traffic.len()
        );

        for event in &traffic {
            assert_eq!(
                event["object"],
                json!({
                    "conn": {"server_name": "wanted.culvert.localhost"},
                    "http": {"request": {"method": "get"}, "response": {"status_code": 200}},
                })
            );
            assert_eq!(event["principal"], Value::Null);
        }
        let expected = json!({
            "id": key["id"],
            "uri": key["uri"],
            "description": "second",
            "metadata": "{}",
            "created_at": key["created_at"],
            "token": null,
        });
        assert_eq!(audit[0]["object"], expected);
        assert_eq!(audit[0]["principal"]["source"], "API");
        assert_eq!(audit[0]["principal"]["id"], key["owner_id"]);

        for request in webhook.received() {
            assert_eq!(
                (request.method.as_str(), request.path.as_str()),
                ("POST", "/hook")
            );
            verify(&secret, &request.headers, &request.body);
        }
        let order: Vec<&str> = audit[0]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            [
                "account_id",
                "event_id",
                "event_timestamp",
                "event_type",
                "object",
                "principal"
            ]
        );
        culvert.stop().await;
    }
}

/// Verifies a signature of Standard Webhooks, as implemented from its specification.
pub fn verify(secret: &str, headers: &http::HeaderMap, body: &[u8]) {
    let key = STANDARD
        .decode(secret.strip_prefix("whsec_").unwrap())
        .unwrap();
    let header = |name: &str| headers.get(name).unwrap().to_str().unwrap().to_owned();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes());
    mac.update(body);
    let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    assert!(
        header("webhook-signature")
            .split(' ')
            .any(|signature| signature == expected)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_destination_gets_its_audit_events_after_recovery() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let hook = Receiver::start().await;
        hook.answer_with(StatusCode::SERVICE_UNAVAILABLE);
        subscribe_debug(
            &culvert,
            &hook,
            json!([{"type": "api_key_created.v0"}, {"type": "api_key_deleted.v0"}]),
        )
        .await;
        let key = culvert.create("api_keys", json!({})).await;
        let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
        assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
        hook.wait_for("api_key_created.v0", 1).await;

        hook.answer_with(StatusCode::OK);
        let deleted = hook.wait_for("api_key_deleted.v0", 1).await;
        assert_eq!(deleted[0]["object"]["id"], key["id"]);
        let ids: std::collections::BTreeSet<String> = hook
            .events()
            .iter()
            .map(|event| event["event_id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(ids.len(), 2, "an event keeps its id over attempts");
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_gets_the_events_about_itself() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let hook = Receiver::start().await;
        let kinds = ["created", "updated", "deleted"]
            .map(|what| json!({"type": format!("event_subscription_{what}.v0")}));
        let subscription = subscribe_debug(&culvert, &hook, json!(kinds)).await;
        let path = format!(
            "/event_subscriptions/{}",
            subscription["id"].as_str().unwrap()
        );
        assert_eq!(
            culvert
                .call(Method::PATCH, &path, Some(json!({"metadata": "m"})))
                .await
                .status,
            200
        );
        assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
        let deleted = hook.wait_for("event_subscription_deleted.v0", 1).await;
        let kinds: Vec<Value> = hook
            .events()
            .iter()
            .map(|event| event["event_type"].clone())
            .collect();
        assert_eq!(
            kinds,
            [
                "event_subscription_created.v0",
                "event_subscription_updated.v0",
                "event_subscription_deleted.v0"
            ]
        );
        assert_eq!(deleted[0]["object"]["metadata"], "m");
        culvert.stop().await;
    }
}

/// Creates a `debug` destination for a receiver, and a subscription to it.
pub async fn subscribe_debug(culvert: &Harness, hook: &Receiver, sources: Value) -> Value {
    subscribe(&culvert.client, hook, sources).await
}

/// Like [`subscribe_debug`], at any server.
pub async fn subscribe(client: &Client, hook: &Receiver, sources: Value) -> Value {
    let target = json!({"debug": {"callback_url": format!("http://{}/", hook.address)}});
    let body = json!({"format": "json", "target": target});
    let made = client.expect(Method::POST, "/event_destinations", Some(&body));
    let body = json!({"destination_ids": [made.await.unwrap()["id"]], "sources": sources});
    let made = client.expect(Method::POST, "/event_subscriptions", Some(&body));
    made.await.unwrap()
}
