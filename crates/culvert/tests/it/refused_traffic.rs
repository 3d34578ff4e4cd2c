//! Refused traffic, as users see it: delivered as selected, retained and found, counted, and there after a kill.

use culvert::client::Client;
use http::Method;
use serde_json::{Value, json};

use crate::events_arrive::subscribe;
use crate::harness::{Receiver, binary, eventually, raw};
use crate::kill::Process;

const HOST: &str = "refusing.culvert.localhost";
const KIND: &str = "http_request_complete.v0";

/// Refused requests that name the endpoint: the bytes, the status and the reason.
const NAMED: [(&str, u16, &str); 3] = [
    (
        "GET /a HTTP/1.1\r\nhost: refusing.culvert.localhost\r\nbad line\r\n\r\n",
        400,
        "malformed",
    ),
    (
        "CONNECT x:1 HTTP/1.1\r\nhost: refusing.culvert.localhost\r\n\r\n",
        405,
        "method_not_supported",
    ),
    (
        "POST /a HTTP/1.1\r\nhost: refusing.culvert.localhost\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\nzz\r\n",
        400,
        "malformed",
    ),
];

async fn get(client: &Client, path: &str) -> Value {
    client.expect(Method::GET, path, None).await.unwrap()
}

fn reasons(page: &Value) -> Vec<(u64, String)> {
    let events = page["events"].as_array().unwrap().iter();
    let reason = |entry: &Value| {
        let object = &entry["event"]["object"];
        let status = object["http"]["response"]["status_code"]
            .as_u64()
            .unwrap_or(0);
        (
            status,
            object["culvert"]["reason"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    events.map(reason).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_are_delivered_retained_and_counted_and_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let allow = ["--edge-allow-private-upstreams", "true"];
    let (origin, whole, refused_only) = (
        Receiver::start().await,
        Receiver::start().await,
        Receiver::start().await,
    );
    let server = Process::start_as(binary(), &data, "", &allow);
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token.clone()).unwrap();
    let endpoint = json!({
        "url": format!("http://{HOST}"),
        "upstream_url": format!("http://{}", origin.address),
    });
    let made = client
        .expect(Method::POST, "/endpoints", Some(&endpoint))
        .await
        .unwrap();
    let endpoint = made["id"].as_str().unwrap().to_owned();
    subscribe(&client, &whole, json!([{"type": KIND}])).await;
    let source = json!([
        {"type": KIND, "filter": "ev.culvert.reason != \"\"", "fields": ["culvert.reason", "culvert.sampled", "http.response.status_code"]},
        {"type": "traffic_refused.v0"},
    ]);
    subscribe(&client, &refused_only, source).await;
    let good = format!("GET /good HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    eventually("the endpoint is live", async || {
        raw(server.http, good.as_bytes()).await.status == 200
    })
    .await;
    for (bytes, status, _) in NAMED {
        assert_eq!(
            raw(server.http, bytes.as_bytes()).await.status,
            status,
            "{bytes}"
        );
    }
    let nobody = b"GET / HTTP/1.1\r\nhost: nobody.culvert.localhost\r\nuser-agent: scan/1\r\nconnection: close\r\n\r\n";
    assert_eq!(raw(server.http, nobody).await.status, 404);

    // Exactly the selected fields of exactly the refused requests.
    let events = refused_only.wait_for(KIND, NAMED.len()).await;
    let mut seen: Vec<Value> = events.iter().map(|event| event["object"].clone()).collect();
    seen.sort_by_key(Value::to_string);
    let mut expected: Vec<Value> = NAMED
        .iter()
        .map(|(_, status, reason)| json!({"culvert": {"reason": reason, "sampled": 1}, "http": {"response": {"status_code": status}}}))
        .collect();
    expected.sort_by_key(Value::to_string);
    assert_eq!(seen, expected);
    // Without a selection an event has the fields of the contract.
    let events = whole.wait_for(KIND, NAMED.len() + 1).await;
    assert!(
        events
            .iter()
            .all(|event| event["object"].get("culvert").is_none())
    );
    let told = refused_only.wait_for("traffic_refused.v0", 1).await;
    let object = &told[0]["object"];
    assert_eq!(object["reason"], "unknown_host");
    assert_eq!(object["network"], "127.0.0.0/24");
    assert_eq!(
        (object["count"].as_u64(), object["sampled"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(object["sample"]["host"], "nobody.culvert.localhost");
    assert_eq!(object["sample"]["user_agent"], "scan/1");
    assert_eq!(told[0]["principal"], Value::Null);

    // Retained, and found by reason.
    let query = "/events?type=http_request_complete.v0&filter=ev.culvert.reason%20!%3D%20''";
    let mut wanted: Vec<(u64, String)> = NAMED
        .iter()
        .map(|(_, status, reason)| (u64::from(*status), (*reason).to_owned()))
        .collect();
    wanted.sort();
    let found = async |client: &Client| {
        let mut found = reasons(&get(client, query).await);
        found.sort();
        found == wanted
    };
    eventually("the refused requests are retained", async || {
        found(&client).await
    })
    .await;

    // Counted by endpoint and reason, and by node.
    let statistics = format!("/statistics?subject=endpoint&id={endpoint}");
    eventually("the statistics", async || {
        get(&client, &statistics).await["total"]["traffic"]["refused_by_reason"]
            == json!({"malformed": 2, "method_not_supported": 1})
    })
    .await;
    let top = get(&client, "/statistics/top?order=refused").await;
    assert_eq!(top["top"][0]["id"], *endpoint);
    assert_eq!(top["top"][0]["traffic"]["refused"], 3);
    let node = get(&client, "/statistics?subject=node").await;
    assert_eq!(
        node["total"]["node"]["refused_by_reason"]["unknown_host"],
        1
    );
    let metrics = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let metrics = raw(server.metrics, metrics).await.text;
    for line in [
        "culvert_edge_refused_total{reason=\"malformed\"} 2".to_owned(),
        "culvert_edge_refused_total{reason=\"unknown_host\"} 1".to_owned(),
        "culvert_edge_refused_sampled_total 0".to_owned(),
        format!("culvert_endpoint_refused_total{{endpoint=\"{endpoint}\",reason=\"malformed\"}} 2"),
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}: {metrics}"
        );
    }

    // The retained and the reported events are there after a kill.
    server.kill();
    let server = Process::start_as(binary(), &data, "", &allow);
    let client = Client::new(&server.api, token).unwrap();
    assert!(found(&client).await);
    let told = get(&client, "/events?type=traffic_refused.v0").await;
    assert_eq!(told["events"].as_array().unwrap().len(), 1);
    assert_eq!(server.terminate(), 0);
}
