//! The events of real server processes: starts, stops, kills, reloads, commands of the operator, restored backups; and the
//! way back to a version.

use std::path::Path;

use culvert::client::Client;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{backends, binary, eventually};
use crate::kill::Process;

/// Runs a command on a data directory and its database. Returns its output.
fn run(data: &Path, url: &str, arguments: &[&str]) -> String {
    let output = binary()
        .args(arguments)
        .arg("--data-dir")
        .arg(data)
        .args(["--database-url", url])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// The events of these kinds in the log, oldest first.
fn logged(data: &Path, url: &str, kinds: &[&str]) -> Vec<Value> {
    let lines = run(data, url, &["audit", "export"]);
    let events = lines.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["event"].clone()
    });
    let is_asked = |event: &Value| {
        let kind = event["event_type"].as_str().unwrap();
        kinds.iter().any(|asked| kind == format!("{asked}.v0"))
    };
    events.filter(is_asked).collect()
}

/// Kinds without version, with the reason.
fn named(events: &[Value]) -> Vec<String> {
    let name = |event: &Value| {
        let kind = event["event_type"].as_str().unwrap();
        let kind = kind.trim_end_matches(".v0");
        match event["object"]["reason"].as_str() {
            Some(reason) => format!("{kind} {reason}"),
            None => kind.to_owned(),
        }
    };
    events.iter().map(name).collect()
}

const RUNS: [&str; 4] = [
    "server_started",
    "server_stopped",
    "node_joined",
    "node_left",
];

#[tokio::test(flavor = "multi_thread")]
async fn starts_stops_and_kills_are_in_the_log() {
    for backend in backends().await {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let database = backend.database().await;
        let url = database
            .as_ref()
            .map(|database| database.url.clone())
            .unwrap_or_default();
        Process::start(&data, &url).kill();
        assert_eq!(Process::start(&data, &url).terminate(), 0);
        let server = Process::start(&data, &url);
        let events = named(&logged(&data, &url, &RUNS));
        let is_shared = !url.is_empty();
        let runs: Vec<_> = events
            .iter()
            .filter(|name| name.starts_with("server_"))
            .map(String::as_str)
            .collect();
        assert_eq!(
            runs,
            [
                "server_started",
                "server_stopped killed",
                "server_started",
                "server_stopped asked",
                "server_started"
            ]
        );
        let nodes: Vec<_> = events
            .iter()
            .filter(|name| name.starts_with("node_"))
            .map(String::as_str)
            .collect();
        let expected: &[&str] = match is_shared {
            false => &[],
            true => &[
                "node_joined",
                "node_left killed",
                "node_joined",
                "node_left stopped",
                "node_joined",
            ],
        };
        assert_eq!(nodes, expected);
        // Commands of the operator are the cause of their changes.
        run(&data, &url, &["admin", "create-key"]);
        let made = logged(&data, &url, &["admin_command", "api_key_created"]);
        let [.., command, key] = &made[..] else {
            panic!("{made:?}")
        };
        assert_eq!(command["object"]["command"], "create-key");
        assert_eq!(command["principal"]["source"], "CLI");
        assert_eq!(key["cause"], command["event_id"]);
        assert_eq!(server.terminate(), 0);
        run(&data, &url, &["audit", "verify"]);
        run(&data, &url, &["admin", "rotate-master-key"]);
        let rotated = logged(&data, &url, &["admin_command", "master_key_rotated"]);
        let [.., command, rotated] = &rotated[..] else {
            panic!("{rotated:?}")
        };
        assert_eq!(command["object"]["command"], "rotate-master-key");
        assert_eq!(rotated["cause"], command["event_id"]);
        run(&data, &url, &["audit", "verify"]);
        if let Some(database) = database {
            database.remove().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let key = folder.path().join("keys/master.key");
    let server = Process::start(&data, "");
    let to = copy.to_str().unwrap();
    let key_to = ["--master-key-to", key.to_str().unwrap()];
    run(&data, "", &["admin", "backup", to, key_to[0], key_to[1]]);
    assert_eq!(server.terminate(), 0);
    let made = logged(&data, "", &["backup_made"]);
    assert_eq!(made.len(), 1);
    assert_eq!(made[0]["object"]["folder"], to);
    assert_eq!(logged(&copy, "", &["backup_made", "restored"]).len(), 1);
    std::fs::copy(&key, copy.join("master.key")).unwrap();
    for _ in 0..2 {
        assert_eq!(Process::start(&copy, "").terminate(), 0);
        let restored = logged(&copy, "", &["restored"]);
        assert_eq!(restored.len(), 1);
        assert_eq!(restored[0]["object"]["known_by"], "backup");
    }
    // The process that ran when the copy was made did not stop in this history.
    let runs = named(&logged(&copy, "", &RUNS));
    assert_eq!(
        runs[..3],
        ["server_started", "server_stopped killed", "server_started"]
    );
    run(&copy, "", &["audit", "verify"]);
    assert!(logged(&data, "", &["restored"]).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_names_the_changed_settings() {
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (
        folder.path().join("data"),
        folder.path().join("culvert.toml"),
    );
    std::fs::write(&config, "log.level = \"error\"\n").unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let server = Process::start_as(binary(), &data, "", &arguments);
    std::fs::write(&config, "log.level = \"warn\"\nregion = \"eu\"\n").unwrap();
    server.signal("HUP");
    let reloads = || logged(&data, "", &["settings_reloaded"]);
    eventually("the reload is in the log", async || reloads().len() == 1).await;
    let object = &reloads()[0]["object"];
    assert_eq!(object["changed"], json!(["log.level", "region"]));
    assert_eq!(object["waiting"], json!(["region"]));
    assert_eq!(object["file_sha256"].as_str().unwrap().len(), 64);
    // Invalid settings change nothing, and have no event.
    std::fs::write(&config, "log.volume = 5\n").unwrap();
    server.signal("HUP");
    assert_eq!(server.terminate(), 0);
    assert_eq!(reloads().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_goes_back_to_a_version() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token.clone()).unwrap();
    let cli = |arguments: &[&str]| {
        let output = binary()
            .arg("api")
            .args(arguments)
            .args(["--api-url", &server.api])
            .env("CULVERT_API_KEY", &token)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let policy = |status: u16| {
        json!({"on_http_request": [{"actions": [{"type": "custom-response", "config": {"status_code": status}}]}]})
            .to_string()
    };
    let body = json!({"url": "https://back.culvert.localhost", "traffic_policy": policy(200), "description": "first"});
    let made = client.expect(Method::POST, "/endpoints", Some(&body)).await;
    let made = made.unwrap();
    let id = made["id"].as_str().unwrap();
    let path = format!("/endpoints/{id}");
    for body in [
        json!({"traffic_policy": policy(404)}),
        json!({"description": "second", "traffic_policy": policy(500)}),
    ] {
        let changed = client.expect(Method::PATCH, &path, Some(&body)).await;
        changed.unwrap();
    }
    let (code, history, error) = cli(&["endpoints", "history", id]);
    assert_eq!(code, 0, "{error}");
    let versions: Vec<&str> = history
        .lines()
        .filter(|line| line.contains("endpoint_"))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(versions.len(), 3, "{history}");
    let (code, _, error) = cli(&["endpoints", "restore", id, versions[2]]);
    assert_eq!(code, 0, "{error}");
    let now = client.expect(Method::GET, &path, None).await.unwrap();
    assert_eq!(now["description"], "first");
    assert_eq!(now["traffic_policy"], made["traffic_policy"]);
    let (_, history, _) = cli(&["endpoints", "history", id]);
    let last = history.lines().next().unwrap();
    assert!(last.contains("endpoint_updated.v0 by admin@"), "{last}");
    assert!(last.ends_with(&format!("after {}", versions[2])), "{last}");
    // Nothing has changed since the last version, and others are no events about the object.
    let newest = last.split(' ').next().unwrap();
    for event in [newest, "ev_000000000000000000000000000"] {
        let (code, _, error) = cli(&["endpoints", "restore", id, event]);
        assert_eq!(code, 1, "{error}");
    }

    // A secret that was changed since would be lost.
    let target = |key: &str| json!({"webhook": {"url": "https://example.com/hook", "headers": {"authorization": key}}});
    let body = json!({"format": "json", "target": target("one"), "description": "a"});
    let made = client.expect(Method::POST, "/event_destinations", Some(&body));
    let made = made.await.unwrap();
    let id = made["id"].as_str().unwrap();
    let path = format!("/event_destinations/{id}");
    let body = json!({"target": target("two"), "description": "b"});
    client
        .expect(Method::PATCH, &path, Some(&body))
        .await
        .unwrap();
    let (_, history, _) = cli(&["event-destinations", "history", id]);
    let created = history.lines().last().unwrap().split(' ').next().unwrap();
    let (code, _, error) = cli(&["event-destinations", "restore", id, created]);
    assert_eq!(code, 1, "{history}");
    assert!(error.contains("the secret `"), "{error}");
    let now = client.expect(Method::GET, &path, None).await.unwrap();
    assert_eq!(now["description"], "b");
    assert_eq!(server.terminate(), 0);
}
