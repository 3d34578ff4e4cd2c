//! The health of upstreams as all nodes see it.

use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::beside;
use crate::harness::{Harness, Receiver, cluster, eventually};

/// Only one node has requests, so only it knows that an upstream refuses them. Each shows what the other sees.
#[tokio::test(flavor = "multi_thread")]
async fn every_node_shows_what_the_others_see_of_an_upstream() {
    const HOST: &str = "seen.culvert.localhost";
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let other = beside(&one).await;
    let admin = other.client_with(&one.token);
    let serves = Receiver::start().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refuses = closed.local_addr().unwrap();
    drop(closed);
    let upstreams = [serves.address, refuses].map(|to| json!({"url": format!("http://{to}")}));
    let body = json!({
        "url": format!("http://{HOST}"), "upstreams": upstreams,
        "upstream_health": {"passive": {"consecutive_failures": 1, "ejection_time": "300s", "ejection_time_max": "300s"}},
    });
    let made = one.create("endpoints", body).await;
    let path = format!("/endpoints/{}/upstreams", made["id"].as_str().unwrap());
    let seen = async |client: &culvert::client::Client| -> Vec<Value> {
        let shown = client.expect(Method::GET, &path, None).await.unwrap();
        shown["upstreams"].as_array().unwrap().clone()
    };
    eventually("the node with requests ejects it", async || {
        one.get(HOST, "/").await;
        let seen = seen(&one.client).await;
        seen.len() == 2 && seen[1]["state"] == "unhealthy"
    })
    .await;
    eventually("the other node shows that", async || {
        let [serves, refuses] = &seen(&admin).await[..] else {
            return false;
        };
        let of = |upstream: &Value| {
            (
                upstream["state"].clone(),
                upstream["nodes"][0]["state"].clone(),
            )
        };
        assert_eq!(refuses["state"], "healthy", "it has met no request here");
        of(serves) == (json!("healthy"), json!("healthy"))
            && of(refuses) == (json!("healthy"), json!("unhealthy"))
            && refuses["nodes"][0]["reason"] != ""
    })
    .await;
    eventually("the first one shows what the other sees", async || {
        let seen = seen(&one.client).await;
        seen[1]["state"] == "unhealthy" && seen[1]["nodes"][0]["state"] == "healthy"
    })
    .await;
    other.stop().await;
    one.stop().await;
}
