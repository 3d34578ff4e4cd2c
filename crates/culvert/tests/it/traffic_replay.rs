//! Retained traffic events, and their replay to a new destination.

use std::collections::BTreeSet;
use std::time::Duration;

use culvert::config::{Settings, Span};
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Backend, Harness, Receiver, backends, eventually};

const KIND: &str = "http_request_complete.v0";

fn keeps(settings: &mut Settings) {
    settings.events.traffic_retention = Span(Duration::from_secs(24 * 60 * 60));
}

async fn destination(culvert: &Harness, hook: &Receiver) -> Value {
    let url = format!("http://{}/hook", hook.address);
    let target = json!({"webhook": {"url": url, "mode": "batch"}});
    let body = json!({"format": "json", "target": target});
    culvert.create("event_destinations", body).await["id"].clone()
}

fn ids(events: &[Value]) -> BTreeSet<String> {
    let id = |event: &Value| event["event_id"].as_str().unwrap().to_owned();
    events.iter().map(id).collect()
}

/// Waits until all events are retained.
async fn kept(culvert: &Harness, n_events: u64) {
    eventually("the events are kept", async || {
        let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let text = crate::harness::raw(culvert.metrics, request.as_bytes())
            .await
            .text;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("culvert_events_kept_total "));
        line.is_some_and(|number| number.parse::<u64>().unwrap() >= n_events)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_destination_receives_retained_traffic_with_its_ids() {
    for backend in backends().await {
        let culvert = Harness::start_with(&backend, keeps).await;
        let (first, late) = (Receiver::start().await, Receiver::start().await);
        let origin = Receiver::start().await;
        let there = destination(&culvert, &first).await;
        let source =
            json!([{"type": KIND, "fields": ["conn.server_name", "http.request.url.path"]}]);
        let body = json!({"destination_ids": [there], "sources": source});
        culvert.create("event_subscriptions", body).await;
        culvert.endpoint("wanted", origin.address).await;
        culvert.endpoint("other", origin.address).await;
        for path in ["/1", "/2", "/3"] {
            culvert.get("wanted.culvert.localhost", path).await;
            culvert.get("other.culvert.localhost", path).await;
        }
        let of = |events: &[Value], host: &str| -> Vec<Value> {
            let is_of = |event: &&Value| {
                event["object"]["conn"]["server_name"] == format!("{host}.culvert.localhost")
                    && event["object"]["http"]["request"]["url"]["path"] != "/live"
            };
            events.iter().filter(is_of).cloned().collect()
        };
        eventually("six requests are reported of", async || {
            let events = first.events();
            of(&events, "wanted").len() + of(&events, "other").len() == 6
        })
        .await;
        let sent = first.events();
        // Each request causes a connection event too.
        kept(&culvert, 2 * u64::try_from(sent.len()).unwrap()).await;

        // With the fields and the filter of the subscription, starting at the event of the first request.
        let made = destination(&culvert, &late).await;
        let source = json!([{
            "type": KIND,
            "fields": ["http.request.url.path", "conn.server_name", "http.request.method"],
            "filter": "ev.conn.server_name == 'wanted.culvert.localhost'",
        }]);
        let body = json!({"destination_ids": [made], "sources": source});
        culvert.create("event_subscriptions", body).await;
        let wanted = of(&sent, "wanted");
        let from = wanted[0]["event_id"].as_str().unwrap();
        let (code, _, said) = culvert.replay(&made, &["--from", from]);
        assert_eq!(code, 0, "{said}");
        eventually("they arrive", async || {
            of(&late.events(), "wanted").len() == 3
        })
        .await;
        let again = late.events();
        assert_eq!(ids(&of(&again, "wanted")), ids(&wanted));
        assert_eq!(of(&again, "other"), Vec::<Value>::new());
        let expected = json!({
            "conn": {"server_name": "wanted.culvert.localhost"},
            "http": {"request": {"method": "get", "url": {"path": "/1"}}},
        });
        let one = again
            .iter()
            .find(|event| event["event_id"] == from)
            .unwrap();
        assert_eq!(one["object"], expected);

        // Kinds without a subscription are sent with all fields, selected by name or by family.
        let (code, _, said) = culvert.replay(
            &made,
            &["--from", "2020-01-01T00:00:00Z", "--kinds", "traffic"],
        );
        assert_eq!(code, 0, "{said}");
        let closed = late.wait_for("tcp_connection_closed.v0", 6).await;
        assert!(closed[0]["object"]["conn"]["bytes_in"].as_i64().unwrap() > 0);

        // A missing event and an event of another account have the same result.
        let absent = format!("ev_{}", "0".repeat(27));
        let (code, _, said) = culvert.replay(&made, &["--from", &absent]);
        assert_eq!((code, said.contains("ERR_NGROK_5140")), (1, true), "{said}");
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_traffic_and_its_replay_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        keeps(settings);
        settings.data_dir = data.clone();
    })
    .await;
    let (origin, hook) = (Receiver::start().await, Receiver::start().await);
    culvert.endpoint("wanted", origin.address).await;
    for n in 0..20 {
        culvert
            .get("wanted.culvert.localhost", &format!("/{n}"))
            .await;
    }
    kept(&culvert, 40).await;
    // Nothing is accepted before the restart.
    hook.answer_with(http::StatusCode::SERVICE_UNAVAILABLE);
    let made = destination(&culvert, &hook).await;
    let path = format!("/event_destinations/{}/replay", made.as_str().unwrap());
    let body = json!({"from": "2020-01-01T00:00:00Z", "event_types": [KIND]});
    let started = culvert.call(Method::POST, &path, Some(body.clone())).await;
    assert_eq!(started.status, 201, "{}", started.body);
    let token = culvert.token.clone();
    culvert.stop().await;

    hook.answer_with(http::StatusCode::OK);
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        keeps(settings);
        settings.data_dir = data.clone();
        settings.bootstrap.api_key = token;
    })
    .await;
    eventually("the replay is done", async || {
        culvert.call(Method::GET, &path, None).await.body["state"] == "done"
    })
    .await;
    let paths = || -> BTreeSet<String> {
        let events = hook.events().into_iter();
        let path = |event: Value| event["object"]["http"]["request"]["url"]["path"].to_string();
        events.map(path).collect()
    };
    eventually("every request is reported of", async || {
        (0..20).all(|n| paths().contains(&format!("\"/{n}\"")))
    })
    .await;
    culvert.stop().await;

    // A server without retention rejects the replay.
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.events.traffic_retention = Span(Duration::ZERO);
    })
    .await;
    let made = destination(&culvert, &hook).await;
    let path = format!("/event_destinations/{}/replay", made.as_str().unwrap());
    let refused = culvert.call(Method::POST, &path, Some(body)).await;
    assert_eq!(
        (refused.status, &refused.body["error_code"]),
        (400, &json!("ERR_NGROK_5140"))
    );
    culvert.stop().await;
}
