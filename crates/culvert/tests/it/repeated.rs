//! Requests that are repeated with their `Idempotency-Key`: on another node, and after a kill. And lists with more than one
//! page on the command line.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Backend, Harness, backends, binary, cluster, raw};
use crate::kill::Process;
use crate::nodes::beside;

/// Creates an API key with this `Idempotency-Key`. Returns the response, and whether it is that of an earlier request.
async fn create(api: &str, token: &str, key: &str) -> (Value, bool) {
    let address = api.strip_prefix("http://").unwrap();
    let request = format!(
        "POST /api_keys HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nidempotency-key: {key}\r\n\
         connection: close\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    let answer = raw(address.parse().unwrap(), request.as_bytes()).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    let (head, body) = answer.text.split_once("\r\n\r\n").unwrap();
    let is_repeated = head.contains("idempotent-replayed: true");
    let mut body: Value = serde_json::from_str(body).unwrap();
    // The nodes have different addresses.
    body["uri"].take();
    (body, is_repeated)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_has_its_answer_on_another_node() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let other = beside(&one).await;
    let (first, is_repeated) = create(&one.api, &one.token, "k").await;
    assert!(!is_repeated && first["token"].is_string());
    let (again, is_repeated) = create(&other.api, &one.token, "k").await;
    assert!(is_repeated);
    assert_eq!(again, first);
    other.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_has_its_answer_after_a_kill() {
    for backend in backends().await {
        let database = backend.database().await;
        let url = database
            .as_ref()
            .map_or("", |database| database.url.as_str());
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let process = Process::start(&data, url);
        let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
        let (first, is_repeated) = create(&process.api, &token, "k").await;
        assert!(!is_repeated);
        process.kill();
        let process = Process::start(&data, url);
        let (again, is_repeated) = create(&process.api, &token, "k").await;
        assert!(is_repeated);
        assert_eq!(again, first);
        process.kill();
        if let Some(database) = database {
            database.remove().await;
        }
    }
}

fn admin(data: &Path, arguments: &[&str]) {
    let mut command = binary();
    command
        .arg("admin")
        .args(arguments)
        .arg("--data-dir")
        .arg(data);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// With another master key, an answer is given again without its secret, and the request has no second effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_has_its_answer_under_another_master_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let (first, _) = create(&server.api, &token, "k").await;
    assert_eq!(server.terminate(), 0);
    admin(&data, &["rotate-master-key"]);
    let server = Process::start(&data, "");
    let (again, is_repeated) = create(&server.api, &token, "k").await;
    assert!(is_repeated);
    assert_eq!(again["id"], first["id"]);
    assert!(first["token"].is_string() && again["token"].is_null());
    assert_eq!(server.terminate(), 0);
}

/// A restored backup has the answer to each request whose effect it has, and to no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_has_the_answers_of_its_requests() {
    let folder = tempfile::tempdir().unwrap();
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let key = folder.path().join("keys/master.key");
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let (before, _) = create(&server.api, &token, "before").await;
    let (to, key_to) = (copy.to_str().unwrap(), key.to_str().unwrap());
    admin(&data, &["backup", to, "--master-key-to", key_to]);
    let (after, _) = create(&server.api, &token, "after").await;
    assert_eq!(server.terminate(), 0);
    std::fs::copy(&key, copy.join("master.key")).unwrap();
    let server = Process::start(&copy, "");
    let (again, is_repeated) = create(&server.api, &token, "before").await;
    assert!(is_repeated);
    assert_eq!(again["id"], before["id"]);
    let (again, is_repeated) = create(&server.api, &token, "after").await;
    assert!(!is_repeated && again["token"].is_string());
    assert_ne!(again["id"], after["id"]);
    assert_eq!(server.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_says_that_it_has_more_and_is_shown_whole() {
    let server = Harness::start(&Backend::Sqlite).await;
    for n in 0..5 {
        let body = json!({"description": format!("policy {n}")});
        server.create("ip_policies", body).await;
    }
    let list = |more: &[&str]| {
        let output = binary()
            .env("CULVERT_API_URL", &server.api)
            .env("CULVERT_API_KEY", &server.token)
            .args(["api", "ip_policies", "list", "--limit", "2"])
            .args(more)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (page, error)
    };
    let (page, error) = list(&[]);
    assert_eq!(page["ip_policies"].as_array().unwrap().len(), 2);
    assert_eq!(
        error,
        "culvert: the list has more; `--all-pages` gets all of it\n"
    );
    let (page, error) = list(&["--all-pages"]);
    let all = page["ip_policies"].as_array().unwrap();
    let names: Vec<_> = all
        .iter()
        .map(|one| one["description"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["policy 4", "policy 3", "policy 2", "policy 1", "policy 0"]
    );
    assert_eq!(
        (page["next_page_uri"].is_null(), error.as_str()),
        (true, "")
    );
    server.stop().await;
}
