//! Endpoints in maintenance: what clients get, and who gets past that.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{IpSet, Prefix, Secret, Verdict};
use culvert_edge_config::Maintenance;
use culvert_policy::Scheme;
use http::Request;
use http_body_util::Empty;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::harness::*;
use super::internal::{named, publish};
use crate::Endpoint;

const SECRET: &str = "let-me-in-please-1";

fn maintenance() -> Maintenance {
    let secret = Secret::new(SECRET.to_owned());
    Maintenance::new(503, Duration::from_secs(60)).with_secret(&secret)
}

fn closed(mut endpoint: Endpoint, maintenance: Maintenance) -> Endpoint {
    endpoint.maintenance = Some(Arc::new(maintenance));
    endpoint
}

/// An origin that says which fields it got.
async fn says(rig: &mut Rig) -> String {
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let length = head.len();
            client
                .send(format!(
                    "HTTP/1.1 200 OK\r\nset-cookie: culvert.maintenance={SECRET}\r\n\
                     content-length: {length}\r\n\r\n{head}"
                ))
                .await;
        }
    });
    format!("http://{}", origin.await)
}

fn ask(fields: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: app.example\r\n{fields}\r\n")
}

#[tokio::test]
async fn clients_get_a_page_before_the_policy_runs() {
    let mut rig = Rig::start().await;
    let url = says(&mut rig).await;
    let policy = r#"
on_http_request: [{actions: [{type: deny, config: {status_code: 401}}]}]
on_http_response: [{actions: [{type: add-headers, config: {headers: {x-seen: "1"}}}]}]
"#;
    let endpoint = named(Scheme::Http, "app.example", 80, &url, policy);
    publish(&rig, [closed(endpoint.clone(), maintenance())]).await;
    let answer = rig.ask(&ask("Accept: text/html\r\n")).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("60"));
    assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3627"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("x-seen"), None);
    assert!(answer.text().contains("<html"), "{}", answer.text());
    // The policy decides about who gets past it.
    let past = rig
        .ask(&ask(&format!("Culvert-Maintenance: {SECRET}\r\n")))
        .await;
    assert_eq!(past.status, 401);
    let events = || of(&rig.recorder.now(), HTTP).len();
    eventually("events", || events() == 2).await;
    let events = rig.recorder.now();
    assert_eq!(of(&events, HTTP)[0]["culvert"]["reason"], "maintenance");
    // A page of the endpoint, with another status.
    let mut own = maintenance();
    own.page = Some((
        "<h1>Back at 5</h1>".into(),
        "text/html; charset=utf-8".into(),
    ));
    own.status = 502;
    publish(&rig, [closed(endpoint.clone(), own)]).await;
    let answer = rig.ask(&ask("")).await;
    assert_eq!((answer.status, answer.text()), (502, "<h1>Back at 5</h1>"));
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(answer.header("ngrok-error-code"), None);
    let mut client = rig.connect().await;
    client
        .send("HEAD /x HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    assert_eq!(client.answer("HEAD").await.status, 502);
    // The connection stays open, also after a body that was not read.
    client
        .send("POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 4\r\n\r\nbody")
        .await;
    assert_eq!(client.answer("POST").await.status, 502);
    publish(&rig, [endpoint]).await;
    assert_eq!(rig.ask(&ask("")).await.status, 401);
}

#[tokio::test]
async fn only_addresses_and_secrets_of_the_endpoint_get_past_it() {
    let mut rig = Rig::start().await;
    let url = says(&mut rig).await;
    let endpoint = named(Scheme::Http, "app.example", 80, &url, "");
    publish(&rig, [closed(endpoint.clone(), maintenance())]).await;
    for fields in [
        format!("Culvert-Maintenance: {SECRET}\r\n"),
        format!("Cookie: a=b; culvert.maintenance={SECRET}; c=d\r\n"),
    ] {
        let answer = rig.ask(&ask(&fields)).await;
        assert_eq!(answer.status, 200, "{fields}");
        // The upstream does not see it, and cannot give it to clients.
        assert!(!answer.text().contains(SECRET), "{}", answer.text());
        assert_eq!(answer.header("set-cookie"), None);
    }
    for fields in [
        "Culvert-Maintenance: let-me-in-please-2\r\n".to_owned(),
        "Culvert-Maintenance: \r\n".to_owned(),
        format!("Culvert_Maintenance: {SECRET}\r\n"),
        format!("Cookie: maintenance={SECRET}\r\n"),
        // Only over TLS.
        format!("Cookie: __Host-culvert.maintenance={SECRET}\r\n"),
        format!("Authorization: {SECRET}\r\n"),
        "X-Forwarded-For: 10.1.2.3\r\n".to_owned(),
    ] {
        assert_eq!(rig.ask(&ask(&fields)).await.status, 503, "{fields}");
    }
    // Also the event has nothing of it.
    let events = || of(&rig.recorder.now(), HTTP).len();
    eventually("events", || events() == 9).await;
    let first = of(&rig.recorder.now(), HTTP)[0].to_string();
    assert!(!first.contains(SECRET), "{first}");
    for (network, status) in [("127.0.0.0/8", 200), ("10.0.0.0/8", 503)] {
        let mut open = maintenance();
        open.admitted = IpSet::of([(Verdict::Allow, Prefix::parse(network).unwrap())]);
        assert_eq!(
            open.lets_pass(IpAddr::from([127, 0, 0, 1]), std::iter::empty()),
            status == 200
        );
        publish(&rig, [closed(endpoint.clone(), open)]).await;
        let answer = rig.ask(&ask("X-Forwarded-For: 10.1.2.3\r\n")).await;
        assert_eq!(answer.status, status, "{network}");
    }
}

#[tokio::test]
async fn an_internal_endpoint_in_maintenance_responds_to_what_is_forwarded_there() {
    let mut rig = Rig::start().await;
    let url = says(&mut rig).await;
    // A policy of another endpoint cannot say the secret.
    let outer = format!(
        r#"on_http_request: [{{actions: [{{type: add-headers, config: {{headers: {{x-other: "{SECRET}"}}}}}}, {{type: forward-internal, config: {{url: "http://in.internal"}}}}]}}]
on_http_response: [{{actions: [{{type: add-headers, config: {{headers: {{x-seen: "1"}}}}}}]}}]"#
    );
    let outer = named(Scheme::Http, "app.example", 80, &url, &outer);
    let mut inner = named(Scheme::Http, "in.internal", 80, &url, "");
    inner.id = "ep_2".into();
    publish(&rig, [outer, closed(inner, maintenance())]).await;
    let answer = rig.ask(&ask("")).await;
    assert_eq!((answer.status, answer.header("x-seen")), (503, Some("1")));
    assert_eq!(answer.header("retry-after"), Some("60"));
    let past = rig
        .ask(&ask(&format!("Culvert-Maintenance: {SECRET}\r\n")))
        .await;
    assert_eq!(past.status, 200);
}

#[tokio::test]
async fn a_call_of_grpc_gets_its_own_status() {
    let mut rig = Rig::start().await;
    let url = says(&mut rig).await;
    let mut own = maintenance();
    own.page = Some(("<p>closed".into(), "text/html".into()));
    let endpoint = named(Scheme::Http, "app.example", 80, &url, "");
    publish(&rig, [closed(endpoint, own)]).await;
    let stream = TcpStream::connect(rig.edge.http_addr().unwrap())
        .await
        .unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let handshake = hyper::client::conn::http2::handshake(executor, io);
    let (mut sender, connection) = handshake.await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let call = Request::post("http://app.example/pkg.Service/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Empty::<bytes::Bytes>::new());
    let answer = soon("an answer", sender.send_request(call.unwrap()))
        .await
        .unwrap();
    assert_eq!(answer.headers()["grpc-status"], "14");
    assert_eq!(answer.headers()["retry-after"], "60");
}
