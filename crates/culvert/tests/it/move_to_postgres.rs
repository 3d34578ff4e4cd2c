//! `culvert admin move`: an installation with one of everything moves from SQLite to PostgreSQL without
//! a visible difference.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::every_kind::Witness;
use crate::harness::{Backend, Database, Harness, Receiver, backends, binary, eventually, raw};
use crate::kill::Process;

/// The beginning of links in responses, whatever the port.
const BASE: &str = "http://api.culvert.test";
/// The published addresses of the server, which do not depend on where it listens.
const SHOWN: [&str; 6] = [
    "--api-base-url",
    BASE,
    "--edge-public-http-port",
    "80",
    "--edge-public-https-port",
    "443",
];

fn admin(data: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = binary();
    command.arg("admin").args(arguments);
    command.arg("--data-dir").arg(data);
    command
}

/// Exit code, standard output, standard error.
fn said(mut command: std::process::Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn refused(command: std::process::Command, code: &str) {
    let (exit, _, error) = said(command);
    assert_eq!(exit, Some(1), "{error}");
    assert!(error.contains(&format!("({code})")), "{error}");
}

/// The bodies of every list, and of the responses that are not lists.
async fn lists(api: &str, token: &str, destinations: &[&str]) -> BTreeMap<String, String> {
    let address: SocketAddr = api.strip_prefix("http://").unwrap().parse().unwrap();
    let lists = culvert_control::operations()
        .iter()
        .filter(|operation| {
            operation.name == "list"
                && operation.collection != "nodes"
                && !operation.path.contains('{')
        })
        .map(|operation| match operation.collection {
            // Each process reports that the events were read.
            "events" => {
                "/events?limit=100&filter=event_type%20!%3D%20%22events_exported.v0%22".to_owned()
            }
            _ => format!("{}?limit=100", operation.path),
        });
    let dead_letters = destinations
        .iter()
        .map(|id| format!("/event_destinations/{id}/dead_letters"));
    let mut found = BTreeMap::new();
    for path in lists.chain(dead_letters).chain(["/self".to_owned()]) {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: api\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        );
        let answer = raw(address, request.as_bytes()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let (_, body) = answer.text.split_once("\r\n\r\n").unwrap();
        found.insert(path, body.to_owned());
    }
    // A domain's certificate is requested again and again in the background.
    for (path, body) in &mut found {
        if path.starts_with("/reserved_domains") {
            *body = without_attempts(body);
        }
    }
    found
}

/// The lists, and apart from them the events.
fn without_events(
    mut lists: BTreeMap<String, String>,
) -> (BTreeMap<String, String>, BTreeSet<String>) {
    let path = lists.keys().find(|path| path.starts_with("/events?"));
    let path = path.unwrap().clone();
    let page: Value = serde_json::from_str(&lists.remove(&path).unwrap()).unwrap();
    let events = page["events"].as_array().unwrap();
    let events = events.iter().map(|logged| logged["event"].to_string());
    (lists, events.collect())
}

fn without_attempts(domains: &str) -> String {
    let mut domains: Value = serde_json::from_str(domains).unwrap();
    for domain in domains["reserved_domains"].as_array_mut().unwrap() {
        let status = &mut domain["certificate_management_status"];
        if let Some(job) = status.get_mut("provisioning_job") {
            *job = Value::Null;
        }
    }
    domains.to_string()
}

fn head_of(line: &str) -> &str {
    let line = line.lines().find(|line| line.contains("head=")).unwrap();
    line.split_once("head=").unwrap().1.trim()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_with_one_of_everything_moves_to_postgres() {
    let Some(Backend::Postgres(server)) = backends().await.into_iter().nth(1) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (sick, picky) = (Receiver::start().await, Receiver::start().await);
    sick.answer_with(StatusCode::SERVICE_UNAVAILABLE);
    picky.answer_with(StatusCode::BAD_REQUEST);

    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.data_dir = data.clone();
        settings.api.base_url = BASE.to_owned();
        (
            settings.edge.public_http_port,
            settings.edge.public_https_port,
        ) = (80, 443);
    })
    .await;
    let token = culvert.token.clone();
    let mut destinations = Vec::new();
    for hook in [&sick, &picky] {
        let target = json!({"webhook": {"url": format!("http://{}/hook", hook.address)}});
        let body = json!({"format": "json", "target": target, "metadata": "tab\t, line\nand \\N: \u{1F980}"});
        let made = culvert.create("event_destinations", body).await;
        let sources = json!([{"type": "api_key_created.v0"}, {"type": "http_request_complete.v0"}]);
        let body = json!({"destination_ids": [made["id"]], "sources": sources});
        culvert.create("event_subscriptions", body).await;
        destinations.push(made["id"].as_str().unwrap().to_owned());
    }
    let mut witness = Witness::of(culvert);
    let collections = culvert_control::operations()
        .iter()
        .filter(|operation| operation.name == "create")
        .map(|operation| operation.collection);
    let mut key = Value::Null;
    for collection in collections {
        let sample = witness.sample(collection).await;
        let made = witness.create(collection, sample).await;
        if collection == "api_keys" {
            key = made;
        }
    }
    let culvert = witness.culvert;
    // A request without an endpoint makes an event too.
    culvert.get("nowhere.culvert.localhost", "/before").await;
    let origin = Receiver::start().await;
    culvert.endpoint("here", origin.address).await;
    let buried = format!("/event_destinations/{}/dead_letters", destinations[1]);
    eventually("dead letters", async || {
        let answer = culvert.call(Method::GET, &buried, None).await;
        let letters = answer.body["dead_letters"].as_array();
        letters.is_some_and(|letters| letters.len() >= 2)
    })
    .await;
    eventually("events of both kinds wait", async || {
        let kinds: BTreeSet<String> = sick
            .events()
            .iter()
            .map(|event| event["event_type"].as_str().unwrap().to_owned())
            .collect();
        kinds.len() == 2
    })
    .await;

    let database = Database::make(&server).await;
    let used = Database::make(&server).await;
    refused(
        admin(&data, &["move", "--to", &database.url]),
        "source_in_use",
    );
    let before_stop = lists(&culvert.api, &token, &[]).await;
    assert!(before_stop.len() >= 20, "{}", before_stop.len());
    culvert.stop().await;

    // The compared state must not change any more, so no event may be sent.
    let server = Process::start_as(binary(), &data, "", &SHOWN);
    let destinations: Vec<&str> = destinations.iter().map(String::as_str).collect();
    let before = lists(&server.api, &token, &destinations).await;
    assert_eq!(server.terminate(), 0);
    let (exit, verified, error) = {
        let mut command = binary();
        command.args(["audit", "verify", "--data-dir"]).arg(&data);
        said(command)
    };
    assert_eq!(exit, Some(0), "{error}");

    let other = folder.path().join("other");
    assert_eq!(Process::start(&other, &used.url).terminate(), 0);
    refused(
        admin(&data, &["move", "--to", &used.url]),
        "target_not_empty",
    );
    refused(
        admin(&folder.path().join("none"), &["move", "--to", &used.url]),
        "no_master_key",
    );
    let (exit, ..) = said(admin(&data, &["move", "--to", "mysql://x"]));
    assert_eq!(exit, Some(2));
    let key_file = data.join("master.key");
    let master = std::fs::read_to_string(&key_file).unwrap();
    culvert::keys::write_private(&key_file, &"0".repeat(64)).unwrap();
    refused(
        admin(&data, &["move", "--to", &database.url]),
        "other_master_key",
    );
    culvert::keys::write_private(&key_file, &master).unwrap();

    // Cut off wherever, it can be run again: where that was is chance, that nothing is half is not.
    for alive in [20, 60, 90, 120, 150, 200] {
        let mut moving = admin(&data, &["move", "--to", &database.url]);
        let mut moving = moving
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(alive)).await;
        moving.kill().unwrap();
        moving.wait().unwrap();
    }
    let (exit, out, error) = said(admin(&data, &["move", "--to", &database.url]));
    assert_eq!(exit, Some(0), "{error}");
    assert_eq!(head_of(&out), head_of(&verified));
    // Once more is no harm.
    let (exit, out, error) = said(admin(&data, &["move", "--to", &database.url]));
    assert_eq!(exit, Some(0), "{error}");
    assert!(out.contains("was already migrated"), "{out}");
    let elsewhere = Database::make(&server_of(&used)).await;
    refused(
        admin(&data, &["move", "--to", &elsewhere.url]),
        "already_moved",
    );
    // The old files are not picked up by accident.
    let (exit, _, error) = said(admin(&data, &["check"]));
    assert_eq!(exit, Some(1));
    assert!(error.contains("its data was migrated to"), "{error}");

    let server = Process::start_as(binary(), &data, &database.url, &SHOWN);
    let after = lists(&server.api, &token, &destinations).await;
    // The new server writes more events.
    let (after, events_after) = without_events(after);
    let (before, events_before) = without_events(before);
    assert_eq!(after, before, "all lists are equal, byte for byte");
    let missing: Vec<_> = events_before.difference(&events_after).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(server.terminate(), 0);

    let known: BTreeSet<String> = ids(&sick.events());
    let n_before = sick.received().len();
    sick.answer_with(StatusCode::OK);
    let server = Process::start_as(binary(), &data, &database.url, &SHOWN);
    for token in [&token, key["token"].as_str().unwrap()] {
        let client = culvert::client::Client::new(&server.api, token.to_owned()).unwrap();
        let answer = client.call(Method::GET, "/self", None).await.unwrap();
        assert_eq!(answer.status, 200, "an old token is valid");
    }
    // The longer the destination failed before, the later it is tried again.
    eventually("what waited is delivered", async || {
        let since = sick.received().split_off(n_before);
        let events: Vec<Value> = since.iter().map(|request| request.json()).collect();
        known.is_subset(&ids(&events))
    })
    .await;
    assert_eq!(server.terminate(), 0);
    let (exit, verified, error) = {
        let mut command = binary();
        command.args(["audit", "verify", "--database-url", &database.url]);
        command.args(["--head", head_of(&verified)]);
        said(command)
    };
    assert_eq!(exit, Some(0), "{error}: {verified}");
    // The files have an event of the command that takes the mark away, which the copy lacks.
    let (exit, _, error) = said(admin(&data, &["move", "--undo"]));
    assert_eq!(exit, Some(0), "{error}");
    refused(
        admin(&data, &["move", "--to", &database.url]),
        "target_not_empty",
    );
    for database in [database, used, elsewhere] {
        database.remove().await;
    }
}

fn ids(events: &[Value]) -> BTreeSet<String> {
    let id = |event: &Value| event["event_id"].as_str().unwrap().to_owned();
    events.iter().map(id).collect()
}

/// The server that a database is on.
fn server_of(database: &Database) -> String {
    let mut url = url::Url::parse(&database.url).unwrap();
    url.set_path("postgres");
    url.into()
}
