//! Statistics from real traffic: over the API, as metrics, and in the Grafana dashboard.

use std::collections::{BTreeMap, BTreeSet};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Harness, Receiver, backends, eventually, raw};
use crate::layers::root;

/// The metrics of a server.
async fn metrics(culvert: &Harness) -> String {
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    raw(culvert.metrics, request).await.text
}

/// The value of a metric with these labels.
fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    value.parse().unwrap()
}

async fn get(culvert: &Harness, path: &str) -> Value {
    let answer = culvert.call(Method::GET, path, None).await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.body
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_is_in_the_store_and_in_metrics_with_the_same_numbers() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let origin = Receiver::start().await;
        let endpoint = culvert.endpoint("counted", origin.address).await;
        let id = endpoint["id"].as_str().unwrap();
        for _ in 0..7 {
            culvert.get("counted.culvert.localhost", "/").await;
        }
        origin.answer_with(StatusCode::NOT_FOUND);
        culvert.get("counted.culvert.localhost", "/").await;
        let now = metrics(&culvert).await;
        let requests = |status: &str| {
            let name =
                format!("culvert_endpoint_requests_total{{endpoint=\"{id}\",status=\"{status}\"}}");
            value(&now, &name)
        };
        // The endpoint was asked until it was live.
        assert!(requests("2xx") >= 8.0);
        assert_eq!((requests("4xx"), requests("none")), (1.0, 0.0));
        let all = requests("2xx") + 1.0;
        let count = format!("culvert_endpoint_latency_seconds_count{{endpoint=\"{id}\"}}");
        assert_eq!(value(&now, &count), all);

        let path = format!("/statistics?subject=endpoint&id={id}");
        eventually("the step is written", async || {
            get(&culvert, &path).await["total"]["traffic"]["requests"] == all
        })
        .await;
        let statistics = get(&culvert, &path).await;
        let total = &statistics["total"];
        assert_eq!(total["traffic"]["status_4xx"], 1);
        assert_eq!(total["latency"]["count"], all);
        let bytes = format!("culvert_endpoint_bytes_total{{endpoint=\"{id}\",direction=\"out\"}}");
        assert_eq!(total["traffic"]["bytes_out"], value(&now, &bytes));
        let top = get(&culvert, "/statistics/top?order=bytes").await;
        assert_eq!(top["top"][0]["id"], id);
        assert_eq!(top["top"][0]["traffic"]["requests"], all);
        let account = get(&culvert, "/statistics").await;
        assert_eq!(account["total"]["traffic"]["requests"], all);

        let list = get(&culvert, "/nodes").await;
        let node = &list["nodes"][0];
        assert_eq!(list["nodes"].as_array().unwrap().len(), 1);
        assert_eq!(node["is_online"], true);
        assert_eq!(node["addresses"]["http"], culvert.http.to_string());
        let name = node["name"].as_str().unwrap();
        let path = format!("/statistics?subject=node&id={name}");
        let total = get(&culvert, &path).await["total"]["node"].clone();
        assert!(total["memory_bytes"].as_u64().unwrap() > 1 << 20, "{total}");
        culvert.stop().await;
    }
}

/// Metrics by name with the names of their labels.
fn exported(metrics: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut exported: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("culvert_")) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels
            .split(',')
            .filter_map(|label| Some(label.split_once('=')?.0));
        exported.entry(name).or_default().extend(labels);
    }
    exported
}

/// The metrics that a query names, with the labels that it selects them by.
fn queried(expr: &str) -> Vec<(&str, Vec<&str>)> {
    let mut queried = Vec::new();
    for (at, _) in expr.match_indices("culvert_") {
        let rest = &expr[at..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let selector = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let matchers = selector.map_or("", |(matchers, _)| matchers).split(',');
        let labels = matchers.filter_map(|matcher| {
            let end = matcher.find(['=', '!', '~'])?;
            Some(&matcher[..end])
        });
        queried.push((name, labels.collect()));
    }
    queried
}

/// The labels by which a query groups.
fn grouped(expr: &str) -> Vec<&str> {
    let groups = expr.split("by (").skip(1);
    groups
        .flat_map(|rest| rest.split(')').next().unwrap_or_default().split(','))
        .map(str::trim)
        .collect()
}

/// Every query of the dashboard finds its metrics and labels on a server with traffic, and the file has the form that
/// Grafana imports.
#[tokio::test(flavor = "multi_thread")]
async fn the_grafana_dashboard_names_metrics_that_exist() {
    let path = root().join("docs/grafana/culvert.json");
    let text = std::fs::read_to_string(path).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let culvert = Harness::start(&crate::harness::Backend::Sqlite).await;
    let origin = Receiver::start().await;
    let hook = Receiver::start().await;
    let url = format!("http://{}/", hook.address);
    let destination = json!({"format": "json", "target": {"webhook": {"url": url}}});
    let destination = culvert.create("event_destinations", destination).await;
    let subscription = json!({
        "destination_ids": [destination["id"]],
        "sources": [{"type": "http_request_complete.v0"}],
    });
    culvert.create("event_subscriptions", subscription).await;
    culvert.endpoint("counted", origin.address).await;
    hook.wait_for("http_request_complete.v0", 1).await;
    let mut text = String::new();
    eventually("the latency of the destination", async || {
        text = metrics(&culvert).await;
        text.contains("culvert_destination_latency_seconds_count{")
    })
    .await;
    let exported = exported(&text);
    // Labels that Prometheus adds.
    let added = BTreeSet::from(["instance", "job"]);

    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: id");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title}: too wide");
        for y in place("y")..place("y") + place("h") {
            for x in place("x")..place("x") + place("w") {
                assert!(cells.insert((x, y)), "{title}: overlaps another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["type"], "timeseries", "{title}");
        assert_eq!(panel["datasource"]["uid"], "${DS_PROMETHEUS}", "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string());
        let targets = panel["targets"].as_array().unwrap();
        let names: BTreeSet<&str> = targets
            .iter()
            .map(|target| target["refId"].as_str().unwrap())
            .collect();
        assert_eq!(names.len(), targets.len(), "{title}: refId");
        for target in targets {
            let expr = target["expr"].as_str().unwrap();
            let queried = queried(expr);
            assert!(!queried.is_empty(), "{title}: {expr}");
            for (name, labels) in queried {
                let there = exported
                    .get(name)
                    .unwrap_or_else(|| panic!("{title}: no metric {name}"));
                for label in labels.into_iter().chain(grouped(expr)) {
                    assert!(
                        there.contains(label) || added.contains(label),
                        "{title}: {name} has no label {label}"
                    );
                }
            }
        }
    }
    assert!(ids.len() > 10);
    // What an import needs: the data source is asked for, and there is no id of another Grafana.
    assert_eq!(dashboard["__inputs"][0]["name"], "DS_PROMETHEUS");
    assert_eq!(dashboard["__inputs"][0]["type"], "datasource");
    assert_eq!(dashboard["id"], Value::Null);
    assert_eq!(dashboard["uid"], "culvert");
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    let variable = &dashboard["templating"]["list"][0];
    let definition = variable["definition"].as_str().unwrap();
    assert!(
        exported.contains_key(queried(definition)[0].0),
        "{definition}"
    );
    culvert.stop().await;
}
