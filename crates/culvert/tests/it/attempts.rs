//! The last attempts of an event destination, as the API shows them.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Harness, Receiver, backends, eventually};

async fn attempts(culvert: &Harness, destination: &Value) -> Vec<Value> {
    let id = destination["id"].as_str().unwrap();
    let path = format!("/event_destinations/{id}/attempts");
    let answer = culvert.call(Method::GET, &path, None).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.body["attempts"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_and_accepted_attempts_are_shown_without_secrets() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let hook = Receiver::start().await;
        hook.answer_with(StatusCode::SERVICE_UNAVAILABLE);
        let url = format!("http://{}/hook?token=canary-in-the-query", hook.address);
        // The receiver responds with this header.
        let webhook = json!({"url": url, "headers": {"x-echo": "you sent canary-in-a-header"}});
        let body = json!({"format": "json", "target": {"webhook": webhook}});
        let destination = culvert.create("event_destinations", body).await;
        assert_eq!(attempts(&culvert, &destination).await, Vec::<Value>::new());
        let sources = json!([{"type": "api_key_created.v0"}]);
        let body = json!({"destination_ids": [destination["id"]], "sources": sources});
        culvert.create("event_subscriptions", body).await;
        culvert.create("api_keys", json!({})).await;
        eventually("a failed attempt is shown", async || {
            !attempts(&culvert, &destination).await.is_empty()
        })
        .await;
        hook.answer_with(StatusCode::ACCEPTED);
        let mut shown = Vec::new();
        eventually("the accepted one is shown", async || {
            shown = attempts(&culvert, &destination).await;
            shown[0]["outcome"] == "delivered"
        })
        .await;
        let (first, last) = (shown.last().unwrap(), &shown[0]);
        assert_eq!(first["outcome"], "retryable");
        assert_eq!(first["status"], 503);
        assert_eq!(first["attempt"], 1);
        assert_eq!(first["text"], "[redacted]");
        assert_eq!(last["status"], 202);
        assert_eq!(last["text"], "");
        assert!(last["attempt"].as_u64().unwrap() > 1);
        let event = hook.events()[0]["event_id"].clone();
        for one in &shown {
            assert_eq!(one["event_id"], event);
            assert_eq!(one["events"], 1);
            assert_eq!(one["class"], "audit");
            assert!(one["duration_ms"].is_u64());
            assert!(!one["node"].as_str().unwrap().is_empty());
        }
        let text = json!(shown).to_string();
        assert!(!text.contains("canary"), "{text}");
        // A reader does not see those of others.
        let body = json!({"name": "reader"});
        let bot = culvert.create("bot_users", body).await;
        let body = json!({"owner_id": bot["id"]});
        let key = culvert.create("api_keys", body).await;
        let reader = culvert.client_with(key["token"].as_str().unwrap());
        let path = format!(
            "/event_destinations/{}/attempts",
            destination["id"].as_str().unwrap()
        );
        let refused = reader.call(Method::GET, &path, None).await.unwrap();
        assert!([403, 404].contains(&refused.status), "{}", refused.status);
        culvert.stop().await;
    }
}
