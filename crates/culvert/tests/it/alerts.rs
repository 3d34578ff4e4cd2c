//! Alerts of a whole server: an upstream that fails at a known share, and the default rules.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Harness, Receiver, backends, eventually, raw};

async fn call(culvert: &Harness, method: Method, path: &str, body: Option<Value>) -> Value {
    let answer = culvert.call(method, path, body).await;
    assert!(answer.status < 300, "{path}: {answer:?}");
    answer.body
}

async fn rule(culvert: &Harness, body: Value) -> String {
    let made = call(culvert, Method::POST, "/alert_rules", Some(body)).await;
    made["id"].as_str().unwrap().to_owned()
}

/// The states of the alerts about an object, the newest first.
async fn states(culvert: &Harness, subject: &str) -> Vec<String> {
    let list = call(culvert, Method::GET, "/alerts", None).await;
    let alerts = list["alerts"].as_array().unwrap().iter();
    let about = alerts.filter(|alert| alert["subject"]["id"] == subject);
    about
        .map(|alert| alert["state"].as_str().unwrap().to_owned())
        .collect()
}

/// A third of the responses of the upstream are errors: a rule above a quarter is true, one above a half is not. The
/// destination of the rule gets the alert and its end, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_fails_is_alerted_to_the_destination_of_the_rule() {
    for backend in backends().await {
        let culvert = Harness::start_with(&backend, |settings| {
            settings.alerts.interval = "1s".to_owned().try_into().unwrap();
        })
        .await;
        let receiver = Receiver::start().await;
        let url = format!("http://{}/alerts", receiver.address);
        let destination = json!({"format": "json", "target": {"webhook": {"url": url}}});
        let path = "/event_destinations";
        let destination = call(&culvert, Method::POST, path, Some(destination)).await;
        let origin = Receiver::start().await;
        let endpoint = culvert.endpoint("failing", origin.address).await;
        let id = endpoint["id"].as_str().unwrap();
        let condition = |above: f64| json!({"type": "error_rate", "above": above, "over": "1h", "min_requests": 30});
        let quarter = rule(
            &culvert,
            json!({"name": "A quarter fails", "condition": condition(0.25), "destination_ids": [destination["id"]]}),
        )
        .await;
        rule(
            &culvert,
            json!({"name": "Half fails", "condition": condition(0.5)}),
        )
        .await;
        for n in 0..36 {
            origin.answer_with(match n % 3 {
                0 => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::OK,
            });
            culvert.get("failing.culvert.localhost", "/").await;
        }
        eventually("one alert", async || {
            states(&culvert, id).await == ["firing"]
        })
        .await;
        eventually("it arrives", async || !receiver.events().is_empty()).await;
        eventually("it is counted", async || {
            let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
            let metrics = raw(culvert.metrics, request).await.text;
            metrics.contains("culvert_alerts_open{severity=\"warning\"} 1")
        })
        .await;
        let path = format!("/alert_rules/{quarter}");
        call(&culvert, Method::DELETE, &path, None).await;
        eventually("it ends", async || {
            states(&culvert, id).await == ["resolved"]
        })
        .await;
        eventually("the end arrives", async || receiver.events().len() == 2).await;
        let events = receiver.events();
        for (event, kind, state) in [
            (&events[0], "alert_fired.v0", "firing"),
            (&events[1], "alert_resolved.v0", "resolved"),
        ] {
            assert_eq!(event["event_type"], kind);
            let object = &event["object"];
            assert_eq!(object["id"], events[0]["object"]["id"]);
            assert_eq!(object["state"], state);
            assert_eq!(object["rule_name"], "A quarter fails");
            let share = object["value"].as_f64().unwrap();
            assert!((0.25..=0.34).contains(&share), "{share}");
        }
        culvert.stop().await;
    }
}

/// The defaults of a new installation.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_installation_has_the_default_rules() {
    let backend = &backends().await[0];
    let culvert = Harness::start_with(backend, |settings| {
        settings.alerts.defaults = true;
        settings.alerts.interval = "1s".to_owned().try_into().unwrap();
    })
    .await;
    eventually("seven rules", async || {
        let list = call(&culvert, Method::GET, "/alert_rules", None).await;
        let rules = list["alert_rules"].as_array().unwrap();
        rules.len() == 7 && rules.iter().all(|rule| rule["is_default"] == true)
    })
    .await;
    culvert.stop().await;
}
