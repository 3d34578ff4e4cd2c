//! Heads of responses: what an origin or a policy says never reads as the edge's own, nor differently at the client.

use culvert_base::net::HostName;
use culvert_policy::Scheme;

use super::harness::*;
use super::policies::{governed, publish};
use crate::{Endpoint, Snapshot};

/// A policy with which responses take the general path.
const GENERAL: &str =
    "on_http_response: [{actions: [{type: add-headers, config: {headers: {x-policy: a}}}]}]";

/// The responses to GET and HEAD of an origin that sends these lines, without a policy and with one.
async fn responses(lines: &'static str) -> Vec<Answer> {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, move |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let body = if head.starts_with("HEAD") { "" } else { "ok" };
            client
                .send(format!("HTTP/1.1 200 OK\r\n{lines}\r\n{body}"))
                .await;
        }
    })
    .await;
    let url = format!("http://{origin}");
    let endpoints = Snapshot::builder()
        .endpoint(endpoint(Scheme::Http, "plain.example", 80, &url, ""))
        .endpoint(Endpoint {
            host: HostName::parse("policy.example").unwrap(),
            ..governed(Scheme::Http, &url, GENERAL)
        });
    rig.edge.publish(endpoints.build()).await;
    let mut all = Vec::new();
    for host in ["plain.example", "policy.example"] {
        let mut client = rig.connect().await;
        for method in ["GET", "HEAD"] {
            client
                .send(format!("{method} / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .await;
            all.push(client.answer(method).await);
        }
    }
    all
}

#[tokio::test]
async fn lengths_have_no_leading_zeros() {
    for answer in responses("Content-Length: 0002\r\n").await {
        assert_eq!(answer.header("content-length"), Some("2"));
    }
}

#[tokio::test]
async fn an_origin_cannot_send_the_edges_code_or_request_id() {
    const LINES: &str = "Content-Length: 2\r\nngrok-error-code: ERR_NGROK_3200\r\nNgrok_Error_Code: ERR_NGROK_3200\r\nngrok.error.code: x\r\nCulvert-Request-Id: 1\r\nculvert_request_id: 1\r\nx-error-code: 5\r\n";
    for answer in responses(LINES).await {
        let names: Vec<&str> = answer.headers.iter().map(|(name, _)| &name[..]).collect();
        assert!(
            !names
                .iter()
                .any(|name| name.starts_with("ngrok") || name.starts_with("culvert")),
            "{names:?}"
        );
        assert_eq!(answer.header("x-error-code"), Some("5"));
    }
}

#[tokio::test]
async fn a_policy_cannot_frame_its_response_or_send_the_edges_code() {
    const FIELDS: [&str; 8] = [
        "transfer-encoding: chunked",
        "Transfer-Encoding: gzip",
        "connection: close",
        "ngrok-error-code: ERR_NGROK_3200",
        "ngrok_error_code: ERR_NGROK_3200",
        "content-length: '9'",
        "trailer: x",
        "upgrade: h2c",
    ];
    for action in [
        "custom-response, config: {body: hello",
        "redirect, config: {to: 'http://app.example/b'",
    ] {
        for field in FIELDS {
            let policy = format!(
                "on_http_request: [{{actions: [{{type: {action}, headers: {{x-a: b, {field}}}}}}}]}}]"
            );
            let rig = Rig::start().await;
            publish(&rig, "http://127.0.0.1:1", &policy).await;
            let mut client = rig.connect().await;
            for _ in 0..2 {
                client
                    .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
                    .await;
                let answer = client.answer("GET").await;
                let body = if answer.status == 200 { "hello" } else { "" };
                let length = body.len().to_string();
                assert_eq!(answer.text(), body, "{field}");
                assert_eq!(answer.header("content-length"), Some(&length[..]));
                assert_eq!(answer.header("x-a"), Some("b"));
                let name = field.split(':').next().unwrap().to_lowercase();
                if name != "content-length" {
                    assert_eq!(answer.header(&name), None, "{field}");
                }
            }
        }
    }
}
