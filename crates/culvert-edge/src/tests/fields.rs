//! Every field of both traffic events, with a value that its module produced.

use std::collections::BTreeMap;

use culvert_events::{EventKind, HTTP_REQUEST_COMPLETE, TCP_CONNECTION_CLOSED};
use culvert_policy::Scheme;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use super::harness::*;
use super::logins::Scene;
use super::mutual::{BOTH, Ca, client_hello, shake};
use super::policies::governed;
use crate::Snapshot;

/// Each field of the catalogue, the module that fills it, and what it says below; `null` where that
/// differs from run to run.
fn http_fields() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("backend.connection_reused", "pool", json!(true)),
        ("basic_auth.decision", "action/basic_auth", json!("allow")),
        ("basic_auth.username", "action/basic_auth", json!("me")),
        (
            "circuit_breaker.decision",
            "action/circuit_breaker",
            json!("allow"),
        ),
        (
            "compression.algorithm",
            "action/compress_response",
            json!("gzip"),
        ),
        ("compression.bytes_saved", "http/encoded", Value::Null),
        ("conn.client_ip", "conn", json!("127.0.0.1")),
        ("conn.server_ip", "conn", json!("127.0.0.1")),
        ("conn.server_name", "peek", json!("app.example")),
        ("conn.server_port", "conn", Value::Null),
        ("conn.start_ts", "conn", Value::Null),
        ("http.request.body_length", "http1/server", json!(2000)),
        ("http.request.headers", "recording", Value::Null),
        ("http.request.method", "recording", json!("post")),
        ("http.request.url.host", "authority", json!("app.example")),
        ("http.request.url.path", "recording", json!("/a/b")),
        ("http.request.url.query", "recording", json!("c=d")),
        (
            "http.request.url.raw",
            "recording",
            json!("https://app.example/a/b?c=d"),
        ),
        ("http.request.url.scheme", "recording", json!("https")),
        ("http.request.user_agent", "recording", json!("Probe/1")),
        (
            "http.response.body_length",
            "http/response_body",
            Value::Null,
        ),
        ("http.response.headers", "recording", Value::Null),
        ("http.response.status_code", "recording", json!(200)),
        ("ip_policy.decision", "action/restrict_ips", json!("allow")),
        (
            "oauth.app_client_id",
            "action/session_middleware",
            json!("app"),
        ),
        (
            "oauth.decision",
            "action/session_middleware",
            json!("allow"),
        ),
        ("oauth.user.id", "action/session_middleware", json!("u7")),
        ("oauth.user.name", "action/session_middleware", json!("Ann")),
        (
            "tls.cipher_suite",
            "handshake",
            json!("TLS_AES_256_GCM_SHA384"),
        ),
        ("tls.client_cert.serial_number", "peer", json!("0abc")),
        ("tls.client_cert.subject.cn", "peer", json!("Me")),
        ("tls.version", "handshake", json!("1.3")),
        (
            "traffic_policy.logs",
            "action/log",
            json!([{"metadata": {"who": "me", "n": 2000, "list": [true, null]}}]),
        ),
        (
            "webhook_verification.decision",
            "action/verify_webhook",
            json!("allow"),
        ),
    ]
}

fn tcp_fields() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("conn.bytes_in", "connection/socket", Value::Null),
        ("conn.bytes_out", "connection/socket", json!(15)),
        ("conn.client_ip", "conn", json!("127.0.0.1")),
        ("conn.end_ts", "conn", Value::Null),
        ("conn.server_ip", "conn", json!("127.0.0.1")),
        ("conn.server_name", "peek", json!("app.example")),
        ("conn.server_port", "conn", Value::Null),
        ("conn.start_ts", "conn", Value::Null),
        ("ip_policy.decision", "action/restrict_ips", json!("allow")),
        (
            "traffic_policy.logs",
            "action/log",
            json!([{"metadata": {"sni": "app.example"}}]),
        ),
    ]
}

const POLICY: &str = r#"
on_tcp_connect:
- actions:
  - type: terminate-tls
    config: {mutual_tls_certificate_authorities: [CA]}
on_http_request:
- actions:
  - {type: restrict-ips, config: {allow: [127.0.0.1]}}
  - {type: basic-auth, config: {credentials: ["me:password"]}}
  - {type: verify-webhook, config: {provider: github, secret: s3cret}}
  - {type: circuit-breaker, config: {}}
  - {type: log, config: {metadata: {who: "${actions.ngrok.basic_auth.credentials.username}", n: "${req.content_length}", list: [true, null]}}}
on_http_response:
- actions: [{type: compress-response}]
"#;

/// What the events of one kind say, by path; of two that say something the later one counts.
fn said(kind: &'static EventKind, events: &[Value], into: &mut BTreeMap<&'static str, Value>) {
    for event in of(events, kind.name) {
        // Our own fields are apart, and have tests of their own.
        for field in kind.fields.iter().filter(|field| !field.by_name) {
            let path = format!("/object/{}", field.path.replace('.', "/"));
            let value = event.pointer(&path).unwrap();
            let unset: Value = serde_json::from_str(field.unset).unwrap();
            if *value != unset {
                into.insert(field.path, value.clone());
            }
        }
    }
}

/// Two requests over mutual TLS, through every module except sign-ins.
async fn governed_request(said_by: &mut BTreeMap<&'static str, Value>) {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((_, body)) = client.request().await {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            client.send([head.as_bytes(), &body].concat()).await;
        }
    })
    .await;
    let (names, key, root): (_, _, CertificateDer<'static>) = certificate(&["app.example"]);
    let authority = Ca::new("ours");
    let policy = POLICY.replace("CA", &json!(authority.pem).to_string());
    let endpoint = governed(Scheme::Https, &format!("http://{origin}"), &policy);
    let snapshot = Snapshot::builder().endpoint(endpoint);
    let snapshot = snapshot.certificate(names, key);
    rig.edge.publish(snapshot.build()).await;

    let leaf = authority.leaf("member.example");
    let stream = shake(&rig, &root, "app.example", Some(&leaf), &BOTH).await;
    let mut client = Client::new(stream.unwrap());
    let body = "x".repeat(2000);
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, b"s3cret");
    let signature: String = aws_lc_rs::hmac::sign(&key, body.as_bytes())
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    for _ in 0..2 {
        // `me:password`.
        client
            .send(format!(
                "POST /a/b?c=d HTTP/1.1\r\nHost: app.example\r\nUser-Agent: Probe/1\r\nAccept-Encoding: gzip\r\n\
                 Authorization: Basic bWU6cGFzc3dvcmQ=\r\nX-Hub-Signature-256: sha256={signature}\r\n\
                 Content-Length: 2000\r\n\r\n{body}"
            ))
            .await;
        let answer = client.answer("POST").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("content-encoding"), Some("gzip"));
    }
    drop(client);
    said(
        &HTTP_REQUEST_COMPLETE,
        &rig.recorder.events(3).await,
        said_by,
    );
}

#[tokio::test]
async fn every_field_of_a_request_event_is_filled() {
    let mut said_by = BTreeMap::new();
    let scene = Scene::start("").await;
    let mut browser = scene.logged_in().await;
    let before = scene.rig.recorder.count();
    assert_eq!(browser.get(&scene.rig, "/").await.status, 200);
    let events = scene.rig.recorder.events(before + 1).await;
    said(&HTTP_REQUEST_COMPLETE, &events, &mut said_by);
    governed_request(&mut said_by).await;
    compare(&HTTP_REQUEST_COMPLETE, http_fields(), &said_by);
}

#[tokio::test]
async fn every_field_of_a_connection_event_is_filled() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.more().await;
        client.send("from the origin").await;
    })
    .await;
    let policy = "
on_tcp_connect:
- actions:
  - {type: restrict-ips, config: {allow: [127.0.0.1]}}
  - {type: log, config: {metadata: {sni: '${conn.tls.sni}'}}}
";
    let endpoint = governed(Scheme::Tls, &format!("tcp://{origin}"), policy);
    rig.edge
        .publish(Snapshot::builder().endpoint(endpoint).build())
        .await;
    let address = rig.edge.https_addr().unwrap();
    let mut client = Client::new(tokio::net::TcpStream::connect(address).await.unwrap());
    client.send(client_hello("app.example")).await;
    assert_eq!(client.rest().await, b"from the origin");
    drop(client);
    let mut said_by = BTreeMap::new();
    let events = rig.recorder.events(1).await;
    said(&TCP_CONNECTION_CLOSED, &events, &mut said_by);
    compare(&TCP_CONNECTION_CLOSED, tcp_fields(), &said_by);
}

/// Holds what was said against the table, and the table against the catalogue: a field without a row
/// fails, and so does one that said nothing.
fn compare(
    kind: &EventKind,
    table: Vec<(&'static str, &'static str, Value)>,
    said_by: &BTreeMap<&'static str, Value>,
) {
    let known = kind.fields.iter().filter(|field| !field.by_name);
    let known: Vec<&str> = known.map(|field| field.path).collect();
    let listed: Vec<&str> = table.iter().map(|(path, ..)| *path).collect();
    assert_eq!(listed, known);
    for (path, module, expected) in table {
        let value = said_by.get(path);
        let value = value.unwrap_or_else(|| panic!("{path}: {module} says nothing"));
        if !expected.is_null() {
            assert_eq!(*value, expected, "{path}: {module}");
        }
        let crates = [
            "actions", "edge", "http", "login", "policy", "tls", "upstream",
        ];
        let is_there = crates.iter().any(|name| {
            let source = format!("{}/../culvert-{name}/src", env!("CARGO_MANIFEST_DIR"));
            let files = [format!("{module}.rs"), format!("{module}/mod.rs")];
            files
                .iter()
                .any(|file| std::path::Path::new(&source).join(file).exists())
        });
        assert!(is_there, "{module}");
    }
}
