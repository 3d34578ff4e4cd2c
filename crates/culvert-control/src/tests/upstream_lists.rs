//! Endpoints with several upstreams: how they are stored, changed and shown.

use super::*;

fn two() -> Value {
    json!([{"url": "http://127.0.0.1:9"}, {"url": "http://127.0.0.1:10", "weight": 3, "priority": 1, "in_flight_max": 8}])
}

#[tokio::test]
async fn several_upstreams_are_stored_and_shown() {
    let rig = Rig::start().await;
    let body = json!({"url": "https://x.culvert.localhost", "upstreams": two()});
    let made = rig.post("/endpoints", body).await.body();
    let shown = json!([
        {"url": "http://127.0.0.1:9", "weight": null, "priority": null, "in_flight_max": null},
        {"url": "http://127.0.0.1:10", "weight": 3, "priority": 1, "in_flight_max": 8},
    ]);
    assert_eq!(made["upstreams"], shown);
    assert_eq!(made["upstream_url"], "");
    assert_eq!(made["upstream_protocol"], "http1");
    assert_eq!(made["upstream_retries"], Value::Null);

    let one = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let retries = json!({"on": ["connect_failure", "503"], "attempts": 2});
    let health = json!({"passive": {"consecutive_failures": 5, "ejection_time": "30s"}});
    let changed = rig
        .patch(
            &one,
            json!({"upstream_retries": retries, "upstream_health": health}),
        )
        .await
        .body();
    assert_eq!(changed["upstream_retries"]["on"], retries["on"]);
    assert_eq!(changed["upstream_retries"]["attempts"], 2);
    assert_eq!(
        changed["upstream_health"]["passive"]["ejection_time"],
        "30s"
    );
    // Other changes keep them, and so does an empty `upstream_url`.
    for body in [json!({"description": "x"}), json!({"upstream_url": ""})] {
        let kept = rig.patch(&one, body).await.body();
        assert_eq!(kept["upstreams"], shown);
        assert_eq!(kept["upstream_retries"], changed["upstream_retries"]);
    }
    assert_eq!(rig.get(&one).await.body()["upstreams"], shown);

    // A URL replaces the list and its options, and a list the URL.
    let single = json!({"upstream_url": "http://127.0.0.1:9"});
    let changed = rig.patch(&one, single).await.body();
    assert_eq!(changed["upstreams"], json!([]));
    assert_eq!(changed["upstream_retries"], Value::Null);
    let changed = rig.patch(&one, json!({"upstreams": two()})).await.body();
    assert_eq!(
        (&changed["upstreams"], &changed["upstream_url"]),
        (&shown, &json!(""))
    );
    let none = rig.patch(&one, json!({"upstreams": []})).await;
    assert_eq!(none.code(), Some(18015));
    // With a policy, an empty list removes the list and its options, and leaves a URL as it is.
    let policy = json!({"on_http_request": [{"actions": [{"type": "deny"}]}]});
    let body = json!({"traffic_policy": policy, "upstream_retries": retries});
    rig.patch(&one, body).await.body();
    let changed = rig.patch(&one, json!({"upstreams": []})).await.body();
    assert_eq!(
        (&changed["upstreams"], &changed["upstream_retries"]),
        (&json!([]), &Value::Null)
    );
    let body = json!({"upstreams": [], "upstream_url": "http://127.0.0.1:9"});
    rig.patch(&one, body).await.body();
    let kept = rig.patch(&one, json!({"upstreams": []})).await.body();
    assert_eq!(kept["upstream_url"], "http://127.0.0.1:9");
    // An empty URL beside a list is none.
    let body = json!({"upstreams": two(), "upstream_url": ""});
    assert_eq!(rig.patch(&one, body).await.body()["upstreams"], shown);
}

#[tokio::test]
async fn limits_are_stored_and_shown_for_one_upstream_too() {
    let rig = Rig::start().await;
    let limits = json!({"in_flight_max": 20, "queue_max": 0, "wait_max": "2s"});
    let body = json!({
        "url": "https://x.culvert.localhost", "upstream_url": "http://127.0.0.1:9",
        "upstream_limits": limits,
    });
    let made = rig.post("/endpoints", body).await.body();
    assert_eq!(made["upstream_limits"], limits);
    let one = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let kept = rig.patch(&one, json!({"upstreams": two()})).await.body();
    assert_eq!(kept["upstream_limits"], limits);
    // All values are replaced.
    let fewer = json!({"upstream_limits": {"in_flight_max": 5}});
    let changed = rig.patch(&one, fewer).await.body();
    assert_eq!(
        changed["upstream_limits"],
        json!({"in_flight_max": 5, "queue_max": null, "wait_max": null})
    );
    let none = rig.patch(&one, json!({"upstream_limits": {}})).await.body();
    assert_eq!(none["upstream_limits"], Value::Null);
}

#[tokio::test]
async fn the_version_of_proxy_headers_is_stored_and_shown() {
    let rig = Rig::start().await;
    for (url, upstream) in [
        ("https://x.culvert.localhost", "http://127.0.0.1:9"),
        ("tls://y.culvert.localhost", "tcp://127.0.0.1:9"),
    ] {
        let body = json!({"url": url, "upstream_url": upstream, "upstream_proxy_protocol": "2"});
        let made = rig.post("/endpoints", body).await.body();
        assert_eq!(made["upstream_proxy_protocol"], "2");
        let one = format!("/endpoints/{}", made["id"].as_str().unwrap());
        let kept = rig.patch(&one, json!({"description": "x"})).await.body();
        assert_eq!(kept["upstream_proxy_protocol"], "2");
        for version in ["1", ""] {
            let body = json!({"upstream_proxy_protocol": version});
            let changed = rig.patch(&one, body).await.body();
            assert_eq!(changed["upstream_proxy_protocol"], version);
        }
        let refused = rig
            .patch(&one, json!({"upstream_proxy_protocol": "3"}))
            .await;
        assert_eq!(refused.code(), Some(18014));
    }
}

#[tokio::test]
async fn conditions_that_are_empty_are_the_default() {
    let rig = Rig::start().await;
    let with =
        |on: Value| json!({"upstreams": two(), "upstream_retries": {"on": on, "attempts": 2}});
    let made = rig.post("/endpoints", with(json!([]))).await.body();
    assert_eq!(made["upstream_retries"]["on"], Value::Null);
    assert_eq!(made["upstream_retries"]["attempts"], 2);
    let one = format!("/endpoints/{}", made["id"].as_str().unwrap());
    for (on, place) in [
        (json!(["502", "502"]), "`upstream_retries.on[1]`"),
        (json!(["reset", "503", "reset"]), "`upstream_retries.on[2]`"),
    ] {
        let answered = rig.patch(&one, with(on)).await;
        assert_eq!(answered.code(), Some(18014));
        let message = format!("{answered:?}");
        assert!(
            message.contains(place) && message.contains("twice"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn wrong_lists_of_upstreams_are_refused() {
    let rig = Rig::start().await;
    let with = |more: Value| {
        let mut body = json!({"url": "https://x.culvert.localhost", "upstreams": two()});
        for (field, value) in more.as_object().unwrap() {
            body[field] = value.clone();
        }
        body
    };
    let listed = |entry: Value| with(json!({"upstreams": [entry]}));
    let many: Vec<_> = (1..=65)
        .map(|n| json!({"url": format!("http://a:{n}")}))
        .collect();
    for (body, code, why) in [
        (
            with(json!({"upstream_url": "http://a:1"})),
            18014,
            "not both",
        ),
        (
            listed(json!({"url": "ftp://a:1"})),
            18014,
            "`upstreams[0].url`",
        ),
        (
            listed(json!({"url": "tcp://a:1"})),
            18014,
            "`upstreams[0].url`",
        ),
        (
            listed(json!({"weight": 1})),
            18014,
            "`upstreams[0].url` is required",
        ),
        (
            listed(json!({"url": "http://a:1", "weight": 1001})),
            18014,
            "at most 1000",
        ),
        (
            listed(json!({"url": "http://a:1", "weight": 0})),
            18014,
            "above 0",
        ),
        (
            listed(json!({"url": "http://a:1", "priority": 8})),
            18014,
            "at most 7",
        ),
        (
            listed(json!({"url": "http://a:1", "in_flight_max": 0})),
            18014,
            "`upstreams[0].in_flight_max` must be from 1 to",
        ),
        (
            with(json!({"upstream_limits": {"in_flight_max": 0}})),
            18014,
            "`upstream_limits.in_flight_max` must be from 1 to",
        ),
        (
            with(json!({"upstream_limits": {"queue_max": 10_001}})),
            18014,
            "`upstream_limits.queue_max` must be at most 10000",
        ),
        (
            with(json!({"upstream_limits": {"wait_max": "11m"}})),
            18014,
            "from 100ms to 10m",
        ),
        (listed(json!({"url": "http://a:1", "tags": 8})), 214, ""),
        (listed(json!({"url": "http://a:1", "weight": -1})), 215, ""),
        (
            with(json!({"upstreams": [{"url": "http://a:80"}, {"url": "http://A"}]})),
            18014,
            "twice",
        ),
        (with(json!({"upstreams": many})), 18014, "at most 64"),
        (
            with(json!({"upstream_balancing": {"policy": "random"}})),
            18014,
            "round_robin",
        ),
        (
            with(json!({"upstream_balancing": {"policy": "hash", "hash_by": "ip"}})),
            18014,
            "client_address",
        ),
        (
            with(json!({"upstream_balancing": {"hash_by": "cookie", "hash_name": "a"}})),
            18014,
            "only for the policy",
        ),
        (
            with(json!({"upstream_balancing": {"policy": "hash", "hash_by": "cookie"}})),
            18014,
            "hash_name` is required",
        ),
        (
            with(json!({"upstream_balancing": {"policy": "hash", "hash_name": "a"}})),
            18014,
            "hash_name` is only",
        ),
        (
            with(
                json!({"upstream_balancing": {"policy": "hash", "hash_by": "header", "hash_name": "a b"}}),
            ),
            18014,
            "must be a name",
        ),
        (
            json!({
                "url": "tls://x.culvert.localhost", "upstreams": [{"url": "tcp://a:1"}],
                "upstream_balancing": {"sticky": true},
            }),
            18014,
            "needs an HTTP endpoint",
        ),
        (
            with(json!({"upstream_health": {"slow_start": "2h"}})),
            18014,
            "from 1s to 1h",
        ),
        (
            with(json!({"upstream_health": {"active": {"type": "ftp"}}})),
            18014,
            "`http`, `tcp` or `grpc`",
        ),
        (
            with(json!({"upstream_health": {"active": {"path": "x"}}})),
            18014,
            "must begin with",
        ),
        (
            with(json!({"upstream_health": {"active": {"timeout": "20s"}}})),
            18014,
            "not be longer than",
        ),
        (
            with(json!({"upstream_health": {"panic_below_percent": 101}})),
            18014,
            "0 to 100",
        ),
        (
            with(json!({"upstream_health": {"passive": {"ejection_time": "2h"}}})),
            18014,
            "from 1s to 1h",
        ),
        (
            with(
                json!({"upstream_health": {"passive": {"ejection_time": "9m", "ejection_time_max": "5m"}}}),
            ),
            18014,
            "must not be shorter",
        ),
        (
            with(json!({"upstream_retries": {"on": ["reset", "500"]}})),
            18014,
            "`upstream_retries.on[1]` must be one of",
        ),
        (
            with(json!({"upstream_retries": {"attempts": 0}})),
            18014,
            "from 1 to 10",
        ),
        (
            with(json!({"upstream_retries": {"per_try_timeout": "1ms"}})),
            18014,
            "100ms",
        ),
        (
            with(json!({"upstream_retries": {"budget_percent": 200}})),
            18014,
            "0 to 100",
        ),
        (
            json!({
                "url": "https://x.culvert.localhost", "upstream_url": "http://a:1",
                "upstream_retries": {"attempts": 2},
            }),
            18014,
            "need `upstreams`",
        ),
    ] {
        let answered = rig.post("/endpoints", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
        let message = format!("{answered:?}");
        assert!(message.contains(why), "{body}: {message}");
    }
}
