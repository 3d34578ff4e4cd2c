//! `culvert events tail`: what happens is printed as it happens, and only what was asked for.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Backend, Harness, Receiver, binary, eventually, raw};

const KIND: &str = "http_request_complete.v0";

fn tail(culvert: &Harness, arguments: &[&str]) -> Command {
    let mut command = binary();
    command
        .env("CULVERT_API_URL", &culvert.api)
        .env("CULVERT_API_KEY", &culvert.token)
        .args(["events", "tail"])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A running tail whose lines can be waited for.
pub struct Tail {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Tail {
    pub async fn start(culvert: &Harness, arguments: &[&str]) -> Self {
        Self::start_as(culvert, &culvert.token, arguments).await
    }

    /// The same with another key.
    async fn start_as(culvert: &Harness, token: &str, arguments: &[&str]) -> Self {
        let mut command = tail(culvert, arguments);
        let mut child = command.env("CULVERT_API_KEY", token).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = std::sync::mpsc::sync_channel(100);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                drop(send.send(line));
            }
        });
        eventually("the tail follows", async || {
            let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            let metrics = raw(culvert.metrics, request).await.text;
            metrics.contains("culvert_api_tails 1")
        })
        .await;
        Self { child, lines }
    }

    /// The next line, if there is one.
    pub fn try_next(&self) -> Option<Value> {
        let line = self.lines.try_recv().ok()?;
        Some(serde_json::from_str(&line).unwrap())
    }

    pub fn next(&self) -> Value {
        let line = self.lines.recv_timeout(culvert_testing::PATIENCE).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        // It may have ended already; either way it is waited for.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Keys and credentials exist for their owner and for admins alone, in events too.
#[tokio::test(flavor = "multi_thread")]
async fn the_tail_of_a_bot_has_no_events_about_keys() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let bot = culvert.create("bot_users", json!({"name": "bot"})).await;
    let key = culvert
        .create("api_keys", json!({"owner_id": bot["id"]}))
        .await;
    let token = key["token"].as_str().unwrap();
    let tail = Tail::start_as(&culvert, token, &[]).await;
    culvert.create("api_keys", json!({})).await;
    culvert.create("credentials", json!({})).await;
    culvert.create("vaults", json!({"name": "v"})).await;
    assert_eq!(tail.next()["event_type"], "vault_created.v0");
    drop(tail);
    let output = tail_as(&culvert, token, &["--type", "api_key_created.v0"]);
    assert!(!output.status.success());
    let reported = String::from_utf8(output.stderr).unwrap();
    assert!(reported.contains("ERR_NGROK_630"), "{reported}");
    culvert.stop().await;
}

fn tail_as(culvert: &Harness, token: &str, arguments: &[&str]) -> std::process::Output {
    let mut command = tail(culvert, arguments);
    command.env("CULVERT_API_KEY", token).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_prints_matching_events_with_the_selected_fields() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let origin = Receiver::start().await;
    culvert.endpoint("wanted", origin.address).await;
    culvert.endpoint("other", origin.address).await;
    let arguments = [
        "--type",
        KIND,
        "--filter",
        "ev.conn.server_name == \"wanted.culvert.localhost\"",
        "--fields",
        "http.request.url.path,conn.server_name",
    ];
    let mut tail = Tail::start(&culvert, &arguments).await;

    for n in 0..3 {
        culvert.create("api_keys", json!({})).await;
        assert_eq!(
            culvert.get("other.culvert.localhost", "/no").await.status,
            200
        );
        let path = format!("/{n}");
        assert_eq!(
            culvert.get("wanted.culvert.localhost", &path).await.status,
            200
        );
        // The requests that waited for the endpoint may still arrive.
        let is_live = |event: &Value| event["object"]["http"]["request"]["url"]["path"] == "/live";
        let event = std::iter::repeat_with(|| tail.next()).find(|event| !is_live(event));
        let event = event.unwrap();
        assert_eq!(event["event_type"], KIND);
        let expected = json!({
            "conn": {"server_name": "wanted.culvert.localhost"},
            "http": {"request": {"url": {"path": path}}},
        });
        assert_eq!(event["object"], expected);
    }

    // The server's stop ends it, and it reports that.
    culvert.stop().await;
    assert_eq!(tail.child.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    let stderr = tail.child.stderr.take();
    stderr.unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "culvert: the server ended the stream\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_of_everything_prints_audit_events_too() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let mut tail = Tail::start(&culvert, &[]).await;
    let key = culvert.create("api_keys", json!({})).await;
    // The tail itself is an event too.
    let is_own = |event: &Value| event["event_type"] == "events_exported.v0";
    let event = std::iter::repeat_with(|| tail.next()).find(|event| !is_own(event));
    let event = event.unwrap();
    assert_eq!(event["event_type"], "api_key_created.v0");
    assert_eq!(event["object"]["id"], key["id"]);
    assert_eq!(event["object"]["token"], Value::Null);
    tail.child.kill().unwrap();
    tail.child.wait().unwrap();
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_tail_is_refused_with_a_reason() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    for (arguments, code) in [
        (["--type", "nothing.v0"], "ERR_NGROK_238"),
        (["--filter", "ev.conn.nope == 1"], "ERR_NGROK_5405"),
        (["--fields", "conn"], "ERR_NGROK_5403"),
    ] {
        let output = tail(&culvert, &arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(code) && said.lines().count() == 1, "{said}");
    }
    culvert.stop().await;
}
