//! The kept events over the API: searched, proven complete, and followed.

use std::collections::BTreeSet;
use std::time::Duration;

use culvert::client::Client;
use culvert::config::Span;
use http::Method;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::harness::{Backend, Harness, Receiver, backends, eventually, raw};
use crate::kill::Process;

const KIND: &str = "http_request_complete.v0";

/// A page, with its texts as they were sent.
#[derive(Deserialize)]
struct Page {
    events: Vec<Entry>,
    next_page_uri: Option<String>,
}

#[derive(Deserialize)]
pub struct Entry {
    event: Box<RawValue>,
    endpoint_id: Option<String>,
    pub audit: Option<Place>,
}

#[derive(Deserialize)]
pub struct Place {
    pub position: i64,
    hash: String,
    previous_hash: String,
    happened_at_ns: i64,
    audience: Box<RawValue>,
}

impl Entry {
    pub fn event(&self) -> Value {
        serde_json::from_str(self.event.get()).unwrap()
    }

    pub fn id(&self) -> String {
        self.event()["event_id"].as_str().unwrap().to_owned()
    }

    /// The hash, computed from what was sent.
    fn hash(&self) -> String {
        let (event, place) = (self.event(), self.audit.as_ref().unwrap());
        let mut hasher = Sha256::new();
        let previous = place.previous_hash.as_bytes().chunks(2);
        let previous = previous.map(|pair| std::str::from_utf8(pair).unwrap());
        let previous: Vec<u8> = previous
            .map(|pair| u8::from_str_radix(pair, 16).unwrap())
            .collect();
        hasher.update(previous);
        hasher.update(place.position.to_be_bytes());
        let text = |hasher: &mut Sha256, text: &str| {
            hasher.update(u64::try_from(text.len()).unwrap().to_be_bytes());
            hasher.update(text);
        };
        for name in ["event_id", "account_id", "event_type"] {
            text(&mut hasher, event[name].as_str().unwrap());
        }
        hasher.update(place.happened_at_ns.to_be_bytes());
        text(&mut hasher, place.audience.get());
        text(&mut hasher, self.event.get());
        let hash = hasher.finalize();
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// `GET /events` with this query, and the text of the response.
pub async fn ask(culvert: &Harness, token: &str, query: &str) -> (u16, String) {
    let address = culvert.api.strip_prefix("http://").unwrap();
    let request = format!(
        "GET /events{query} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    );
    let answer = raw(address.parse().unwrap(), request.as_bytes()).await;
    let (head, body) = answer.text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

async fn page(culvert: &Harness, query: &str) -> Page {
    let (status, body) = ask(culvert, &culvert.token, query).await;
    assert_eq!(status, 200, "{query}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Every event of all pages.
pub async fn all(culvert: &Harness, query: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut query = query.to_owned();
    loop {
        let page = page(culvert, &query).await;
        entries.extend(page.events);
        match page.next_page_uri {
            Some(next) => query = next[next.find('?').unwrap()..].to_owned(),
            None => return entries,
        }
    }
}

fn ids(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(Entry::id).collect()
}

/// Waits until this number of requests is kept.
async fn requests_are_kept(culvert: &Harness, n_requests: usize) {
    eventually("the requests are kept", async || {
        all(culvert, &format!("?type={KIND}")).await.len() == n_requests
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_auditor_proves_over_http_that_the_log_is_complete() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        for n in 0..7 {
            culvert
                .create("vaults", json!({"name": format!("v{n}")}))
                .await;
        }
        let entries = all(&culvert, "?order=oldest&limit=3").await;
        let places: Vec<&Place> = entries
            .iter()
            .filter_map(|one| one.audit.as_ref())
            .collect();
        assert!(places.len() >= 7);
        assert_eq!(places[0].position, 1);
        assert_eq!(places[0].previous_hash, "0".repeat(64));
        for pair in places.windows(2) {
            assert_eq!(pair[1].position, pair[0].position + 1);
            assert_eq!(pair[1].previous_hash, pair[0].hash);
        }
        for entry in entries.iter().filter(|one| one.audit.is_some()) {
            assert_eq!(entry.hash(), entry.audit.as_ref().unwrap().hash);
        }
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_events_are_found_by_every_property() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let origin = Receiver::start().await;
        let wanted = culvert.endpoint("wanted", origin.address).await;
        culvert.endpoint("other", origin.address).await;
        // To reach an endpoint, the harness may have made requests to it.
        let key = culvert
            .create("api_keys", json!({"description": "one"}))
            .await;
        let before = all(&culvert, &format!("?type={KIND}")).await.len();
        for n in 0..5 {
            for host in ["wanted", "other"] {
                let host = format!("{host}.culvert.localhost");
                culvert.get(&host, &format!("/{n}")).await;
            }
        }
        eventually("the requests are kept", async || {
            all(&culvert, &format!("?type={KIND}")).await.len() >= before + 10
        })
        .await;
        let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
        culvert
            .call(Method::PATCH, &path, Some(json!({"description": "two"})))
            .await;

        let newest = all(&culvert, "?limit=4").await;
        let mut oldest = ids(&all(&culvert, "?order=oldest&limit=4").await);
        let unique: BTreeSet<String> = oldest.iter().cloned().collect();
        assert_eq!(unique.len(), oldest.len());
        oldest.sort();
        let mut backwards = ids(&newest);
        backwards.sort();
        assert_eq!(backwards, oldest);

        let id = key["id"].as_str().unwrap();
        let of_key = all(&culvert, &format!("?object_id={id}")).await;
        let kinds: Vec<Value> = of_key
            .iter()
            .map(|one| one.event()["event_type"].clone())
            .collect();
        assert_eq!(kinds, ["api_key_updated.v0", "api_key_created.v0"]);
        let actor = of_key[0].event()["principal"]["id"].clone();
        let of_actor = all(&culvert, &format!("?actor_id={}", actor.as_str().unwrap())).await;
        assert!(of_actor.len() >= 2);
        assert!(
            of_actor
                .iter()
                .all(|one| one.event()["principal"]["id"] == actor)
        );
        let updated = all(
            &culvert,
            &format!("?object_id={id}&type=api_key_updated.v0"),
        )
        .await;
        assert_eq!(ids(&updated), ids(&of_key[..1]));

        let endpoint = wanted["id"].as_str().unwrap();
        let of_endpoint = all(
            &culvert,
            &format!("?object_id={endpoint}&type={KIND}&limit=2"),
        )
        .await;
        assert!(of_endpoint.len() >= 5);
        for entry in &of_endpoint {
            assert_eq!(entry.endpoint_id.as_deref(), Some(endpoint));
            assert_eq!(
                entry.event()["object"]["conn"]["server_name"],
                "wanted.culvert.localhost"
            );
        }
        let filter =
            "ev.http.request.url.path%20%3D%3D%20%22%2F3%22%20%26%26%20endpoint_id%20%3D%3D%20%22";
        let third = all(&culvert, &format!("?filter={filter}{endpoint}%22")).await;
        assert_eq!(third.len(), 1);
        let at = third[0].event()["event_timestamp"]
            .as_str()
            .unwrap()
            .to_owned();
        let then = all(&culvert, &format!("?from={at}&to={at}")).await;
        assert!(ids(&then).contains(&third[0].id()));
        assert!(then.iter().all(|one| one.event()["event_timestamp"] == at));
        assert!(all(&culvert, "?to=2020-01-01T00:00:00Z").await.is_empty());
        assert!(all(&culvert, "?from=2100-01-01T00:00:00Z").await.is_empty());

        // In words, the two searches above and others.
        let in_words = async |words: &str| {
            let words: String = url::form_urlencoded::byte_serialize(words.as_bytes()).collect();
            all(&culvert, &format!("?q={words}")).await
        };
        let same = in_words(&format!("/3 {endpoint}")).await;
        assert_eq!(ids(&same), ids(&third));
        assert_eq!(ids(&in_words(id).await), ids(&of_key));
        let of_host = in_words("GET wanted.culvert.localhost 200 last 1h not /3").await;
        assert!(of_host.len() >= 4);
        for entry in &of_host {
            let request = &entry.event()["object"]["http"]["request"];
            assert_eq!(request["url"]["host"], "wanted.culvert.localhost");
            assert_ne!(request["url"]["path"], "/3");
        }
        assert!(in_words("599").await.is_empty());
        assert!(in_words("before 2020-01-01").await.is_empty());

        for (query, code) in [
            ("?q=sttus:502", 5407),
            ("?q=today&utc_offset=x", 5407),
            ("?filter=status%20%3D%3D%20502", 5404),
            ("?filter=ev.nothing", 5405),
            ("?filter=1", 5404),
            ("?type=nothing.v0", 238),
            ("?cursor=x", 5407),
            ("?follow=true&order=newest", 5407),
            ("?limit=0", 233),
            ("?from=x", 241),
            ("?unknown=1", 231),
        ] {
            let (status, body) = ask(&culvert, &culvert.token, query).await;
            assert_eq!(status, 400, "{query}: {body}");
            assert!(
                body.contains(&format!("ERR_NGROK_{code}\"")),
                "{query}: {body}"
            );
        }
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_meaning_of_words_is_shown() {
    let culvert = Harness::start(&backends().await[0]).await;
    let terms = culvert
        .call(
            Method::GET,
            "/events/terms?q=502%20-ep_7%20last%2024h%20stat",
            None,
        )
        .await
        .body;
    assert_eq!(
        terms["terms"][0],
        json!({
            "start": 0, "end": 3, "text": "502", "facet": "status", "label": "status 502", "is_negated": false,
        })
    );
    assert_eq!(terms["terms"][1]["facet"], "object");
    assert_eq!(terms["terms"][2]["facet"], "time");
    assert_eq!(terms["error"], Value::Null);
    assert!(terms["from"].is_string() && terms["to"].is_null());
    let completions = terms["completions"].as_array().unwrap();
    assert!(completions.iter().any(|one| one["text"] == "status:"));
    // The condition is one of `filter`.
    let filter = terms["filter"].as_str().unwrap();
    let filter: String = url::form_urlencoded::byte_serialize(filter.as_bytes()).collect();
    assert!(all(&culvert, &format!("?filter={filter}")).await.is_empty());
    let wrong = culvert
        .call(Method::GET, "/events/terms?q=GET%20sttus:502", None)
        .await
        .body;
    assert_eq!(wrong["error"]["start"], 4);
    assert!(
        wrong["error"]["message"]
            .as_str()
            .unwrap()
            .contains("`status:`")
    );
    let page = culvert
        .call(Method::GET, "/events?q=no-such-text", None)
        .await
        .body;
    assert_eq!(page["searched"], json!({"to": null, "share": 1.0}));
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_finds_no_events_about_keys() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let bot = culvert.create("bot_users", json!({"name": "bot"})).await;
    let key = culvert
        .create("api_keys", json!({"owner_id": bot["id"]}))
        .await;
    let token = key["token"].as_str().unwrap();
    culvert.create("vaults", json!({"name": "v"})).await;
    let (status, body) = ask(&culvert, token, "").await;
    assert_eq!(status, 200, "{body}");
    let found: Page = serde_json::from_str(&body).unwrap();
    let types: Vec<Value> = found
        .events
        .iter()
        .map(|one| one.event()["event_type"].clone())
        .collect();
    let public = ["vault_created.v0", "bot_user_created.v0", "user_created.v0"];
    assert_eq!(types, public, "{body}");
    let id = key["id"].as_str().unwrap();
    let (_, body) = ask(&culvert, token, &format!("?object_id={id}")).await;
    assert!(body.contains(r#""events":[]"#), "{body}");
    for query in [
        "?type=api_key_created.v0",
        "?follow=true&type=api_key_created.v0",
    ] {
        let (status, body) = ask(&culvert, token, query).await;
        assert_eq!(status, 403, "{body}");
        assert!(body.contains("ERR_NGROK_630"), "{body}");
    }
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_retention_reports_that_traffic_is_not_stored() {
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.events.traffic_retention = Span(Duration::ZERO);
    })
    .await;
    let (status, body) = ask(&culvert, &culvert.token, &format!("?type={KIND}")).await;
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("ERR_NGROK_5408"), "{body}");
    assert!(!page(&culvert, "").await.events.is_empty());
    culvert.stop().await;
}

/// A stream of events that is read line by line.
pub struct Stream {
    socket: BufReader<TcpStream>,
    /// The ID behind which it resumes before its first message.
    start: String,
}

impl Stream {
    pub async fn open(culvert: &Harness, query: &str, last: Option<&str>) -> Self {
        Self::open_as(culvert, &culvert.token, query, last).await
    }

    /// The same with another key.
    pub async fn open_as(culvert: &Harness, token: &str, query: &str, last: Option<&str>) -> Self {
        let address = culvert.api.strip_prefix("http://").unwrap();
        let mut socket = TcpStream::connect(address).await.unwrap();
        let last = last.map(|id| format!("last-event-id: {id}\r\n"));
        let last = last.unwrap_or_default();
        let request = format!(
            "GET /events?follow=true{query} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n{last}\r\n"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut stream = Self {
            socket: BufReader::new(socket),
            start: String::new(),
        };
        loop {
            let line = stream.line().await;
            if line == ": following" {
                return stream;
            }
            if let Some(id) = line.strip_prefix("id: ") {
                stream.start = id.to_owned();
            }
        }
    }

    async fn line(&mut self) -> String {
        self.try_line().await.expect("the stream ended")
    }

    /// The next line; `None` after the end of the stream.
    pub async fn try_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let reading = self.socket.read_line(&mut line);
        let read = tokio::time::timeout(culvert_testing::PATIENCE, reading);
        let n_bytes = read.await.unwrap().unwrap();
        // The last chunk of a response is empty.
        (n_bytes > 0 && line != "0\r\n").then(|| line.trim_end().to_owned())
    }

    /// The id of the next message, and its event.
    pub async fn next(&mut self) -> (String, Value) {
        let mut id = String::new();
        loop {
            let line = self.line().await;
            if let Some(found) = line.strip_prefix("id: ") {
                id = found.to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return (id, serde_json::from_str(data).unwrap());
            }
        }
    }
}

/// A reader whose stream broke before its first message misses nothing: the opening has an ID.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_messages_resumes_where_it_began() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let types = "&type=vault_created.v0";
    let stream = Stream::open(&culvert, types, None).await;
    let start = stream.start.clone();
    drop(stream);
    culvert.create("vaults", json!({"name": "between"})).await;
    let mut stream = Stream::open(&culvert, types, Some(&start)).await;
    let (_, message) = stream.next().await;
    assert_eq!(message["event"]["object"]["name"], "between");
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_retained_events_resumes_after_its_last_message() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let origin = Receiver::start().await;
        culvert.endpoint("wanted", origin.address).await;
        let vault = async |name: &str| culvert.create("vaults", json!({"name": name})).await;
        vault("before").await;
        let types = format!("&type=vault_created.v0,{KIND}");
        let mut stream = Stream::open(&culvert, &types, None).await;
        vault("one").await;
        let next_vault = async |stream: &mut Stream| {
            loop {
                let (id, message) = stream.next().await;
                let event = &message["event"];
                if event["event_type"] == "vault_created.v0" {
                    assert!(message["audit"]["position"].as_i64().unwrap() > 0);
                    return (id, event["object"]["name"].clone());
                }
            }
        };
        let (last, name) = next_vault(&mut stream).await;
        assert_eq!(name, "one");
        drop(stream);
        vault("two").await;
        culvert.get("wanted.culvert.localhost", "/followed").await;
        let mut stream = Stream::open(&culvert, &types, Some(&last)).await;
        assert_eq!(next_vault(&mut stream).await.1, "two");
        let path =
            |message: &Value| message["event"]["object"]["http"]["request"]["url"]["path"].clone();
        while path(&stream.next().await.1) != "/followed" {}
        drop(stream);

        // From a time on it begins with the kept events.
        let mut stream = Stream::open(
            &culvert,
            "&type=vault_created.v0&from=2020-01-01T00:00:00Z",
            None,
        )
        .await;
        for name in ["before", "one", "two"] {
            assert_eq!(stream.next().await.1["event"]["object"]["name"], name);
        }
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_is_retained_by_default_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.data_dir = data.clone();
    })
    .await;
    let origin = Receiver::start().await;
    culvert.endpoint("wanted", origin.address).await;
    for n in 0..20 {
        culvert
            .get("wanted.culvert.localhost", &format!("/{n}"))
            .await;
    }
    // A stop writes what waits.
    let token = culvert.token.clone();
    culvert.stop().await;
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.data_dir = data.clone();
        settings.bootstrap.api_key = token;
    })
    .await;
    let entries = all(&culvert, &format!("?type={KIND}")).await;
    let paths: BTreeSet<String> = entries
        .iter()
        .map(|one| one.event()["object"]["http"]["request"]["url"]["path"].to_string())
        .collect();
    for n in 0..20 {
        assert!(paths.contains(&format!("\"/{n}\"")), "{n}: {paths:?}");
    }
    requests_are_kept(&culvert, entries.len()).await;
    culvert.stop().await;
}

/// The ids of the kept events of a type, newest first, at most a page of them.
async fn kept_ids(client: &Client, kind: &str) -> BTreeSet<String> {
    let path = format!("/events?type={kind}");
    let page = client.expect(Method::GET, &path, None).await.unwrap();
    let events = page["events"].as_array().unwrap().iter();
    events
        .map(|entry| entry["event"]["event_id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_loses_no_audit_event_and_no_visible_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Receiver::start().await;
    let process = Process::start(folder.path(), "");
    let token = std::fs::read_to_string(folder.path().join("bootstrap-key")).unwrap();
    let token = token.trim().to_owned();
    let client = Client::new(&process.api, token.clone()).unwrap();
    let upstream = format!("http://{}", origin.address);
    let endpoint = json!({"url": "http://kept.culvert.localhost", "upstream_url": upstream});
    let made = client.expect(Method::POST, "/endpoints", Some(&endpoint));
    made.await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: kept.culvert.localhost\r\nconnection: close\r\n\r\n";
    for _ in 0..10 {
        raw(process.http, request).await;
    }
    eventually("the requests are found", async || {
        kept_ids(&client, KIND).await.len() >= 10
    })
    .await;
    let traffic = kept_ids(&client, KIND).await;
    let vault = json!({"name": "last"});
    let made = client.expect(Method::POST, "/vaults", Some(&vault));
    made.await.unwrap();
    process.kill();

    let process = Process::start(folder.path(), "");
    let client = Client::new(&process.api, token).unwrap();
    assert!(kept_ids(&client, KIND).await.is_superset(&traffic));
    assert_eq!(kept_ids(&client, "vault_created.v0").await.len(), 1);
    assert_eq!(process.terminate(), 0);
}
