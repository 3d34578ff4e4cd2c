//! Leaked tokens that a partner reports, with the signatures of GitHub's secret scanning.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use rcgen::{KeyPair, SigningKey};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{Backend, Harness, cluster};
use crate::nodes::beside;

/// A partner: the server of its public keys, and a key.
struct Partner {
    key: KeyPair,
    address: SocketAddr,
    _task: tokio::task::JoinSet<()>,
}

impl Partner {
    async fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let document = json!({"public_keys": [
            {"key_identifier": "current", "key": key.public_key_pem(), "is_current": true},
        ]});
        let document = document.to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => break,
                    }
                }
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{document}",
                    document.len()
                );
                stream.write_all(answer.as_bytes()).await.ok();
            }
        });
        Self {
            key,
            address,
            _task: task,
        }
    }

    fn url(&self) -> String {
        format!("http://{}/keys", self.address)
    }

    /// Reports tokens; the status and the body of the response.
    fn report(&self, api: &str, tokens: &[&str]) -> (u16, String) {
        let found = |token: &&str| json!({"token": token, "type": "culvert", "url": "https://git.example/x", "source": "commit"});
        let body: Value = tokens.iter().map(found).collect();
        let body = body.to_string();
        let signature = STANDARD.encode(self.key.sign(body.as_bytes()).unwrap());
        send(api, &body, ("current", &signature))
    }
}

fn send(api: &str, body: &str, (key, signature): (&str, &str)) -> (u16, String) {
    let sent = std::process::Command::new("curl")
        .args([
            "--silent",
            "--write-out",
            "\n%{http_code}",
            "--data-binary",
            body,
        ])
        .args(["--header", "content-type: application/json"])
        .args(["--header", &format!("Github-Public-Key-Identifier: {key}")])
        .args([
            "--header",
            &format!("Github-Public-Key-Signature: {signature}"),
        ])
        .arg(format!("{api}/leaked_tokens"))
        .output()
        .unwrap();
    let text = String::from_utf8(sent.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

async fn start(backend: &Backend, partner: &Partner) -> Harness {
    Harness::start_with(backend, |settings| {
        settings.keys.leak_partner_url = partner.url();
        settings.edge.allow_private_upstreams = true;
    })
    .await
}

/// The code with which a node refuses a token.
async fn code(node: &Harness, token: &str) -> String {
    let client = node.client_with(token);
    let answer = client.call(Method::GET, "/self", None).await.unwrap();
    answer.body["error_code"].as_str().unwrap_or("").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_a_partner_reports_is_refused_on_three_nodes_by_the_next_request() {
    let Some(backend) = cluster(3).await else {
        return;
    };
    let partner = Partner::start().await;
    let one = start(&backend, &partner).await;
    let (two, three) = (beside(&one).await, beside(&one).await);
    let nodes = [&one, &two, &three];
    let mut tokens = Vec::new();
    for number in 0..100 {
        let body = json!({"description": format!("key {number}")});
        let key = one.create("api_keys", body).await;
        tokens.push(key["token"].as_str().unwrap().to_owned());
    }
    for token in &tokens {
        // Each node knows the token.
        for node in nodes {
            assert_eq!(code(node, token).await, "");
        }
    }
    let mut accepted = Vec::new();
    for (report, reported) in tokens.chunks(10).enumerate() {
        let reported: Vec<&str> = reported.iter().map(String::as_str).collect();
        assert_eq!(partner.report(&one.api, &reported), (204, String::new()));
        for (place, token) in reported.into_iter().enumerate() {
            for (node, harness) in nodes.into_iter().enumerate() {
                let code = code(harness, token).await;
                // Beyond a rate, invalid tokens are refused with 226.
                if !["ERR_NGROK_203", "ERR_NGROK_226"].contains(&&*code) {
                    accepted.push((report, place, node, code));
                }
            }
        }
    }
    assert!(accepted.is_empty(), "{accepted:?}");
    // A network may send ten reports a minute.
    let mut again = (0..=10).map(|_| partner.report(&one.api, &[&tokens[0]]).0);
    assert!(again.any(|status| status == 429));
    three.stop().await;
    two.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_without_a_key_must_be_signed_by_the_partner() {
    let partner = Partner::start().await;
    let culvert = start(&Backend::Sqlite, &partner).await;
    let key = culvert.create("api_keys", json!({})).await;
    let token = key["token"].as_str().unwrap();
    let body = json!([{"token": token, "type": "x", "url": "", "source": ""}]).to_string();
    let sign = |key: &KeyPair, body: &str| STANDARD.encode(key.sign(body.as_bytes()).unwrap());
    let signature = sign(&partner.key, &body);
    let stranger = KeyPair::generate().unwrap();
    for (name, body, signature) in [
        ("current", &*body, "nonsense"),
        ("current", &body, &sign(&stranger, &body)),
        ("another", &body, &signature),
        ("current", "[]", &signature),
    ] {
        let (status, answer) = send(&culvert.api, body, (name, signature));
        assert_eq!(status, 401, "{answer}");
        assert!(!answer.contains(token));
    }
    assert_eq!(code(&culvert, token).await, "");
    // Nothing that says whether a token works.
    let unknown = "culvert_key_2h0bXHdzY5W9r3oLUMHCLCbPRUc_7tQw3ZkPzY1rLbN8vXcJd000000";
    let answers = [
        partner.report(&culvert.api, &[unknown]),
        partner.report(&culvert.api, &[token]),
        partner.report(&culvert.api, &[token]),
    ];
    assert!(answers.iter().all(|answer| *answer == (204, String::new())));
    assert_eq!(code(&culvert, token).await, "ERR_NGROK_203");
    culvert.stop().await;
}
