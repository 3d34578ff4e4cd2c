//! The audit log on the command line and over the API: verification, export, replay.

use culvert::config::Settings;
use culvert_base::{Clock, SystemClock, Timestamp};
use culvert_store::{NewPiece, Queue, StoreUrl};
use http::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::harness::{Harness, Receiver, backends, binary, eventually};
use crate::kill::Process;

/// Runs the binary on the installation's data directory or database.
pub fn offline(settings: &Settings, arguments: &[&str]) -> (i32, String, String) {
    let output = binary()
        .args(arguments)
        .arg("--data-dir")
        .arg(&settings.data_dir)
        .args(["--database-url", &settings.database_url])
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Executes SQL, like an attacker with access to the database.
pub async fn execute(settings: &Settings, sql: &str) {
    if settings.database_url.is_empty() {
        let path = settings.data_dir.join("state.db");
        let url = format!("sqlite://{}", path.display());
        let mut database = SqliteConnection::connect(&url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut database)
            .await
            .unwrap();
        database.close().await.unwrap();
    } else {
        let mut database = PgConnection::connect(&settings.database_url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("SET search_path = culvert; {sql}")))
            .execute(&mut database)
            .await
            .unwrap();
        database.close().await.unwrap();
    }
}

/// The hash of an exported line, computed as the guide describes: from the texts as they are in the line.
fn hash_of(line: &Value, whole: &str) -> String {
    let (_, rest) = whole.split_once(r#","audience":"#).unwrap();
    let (audience, body) = rest.split_once(r#","event":"#).unwrap();
    let body = body.strip_suffix('}').unwrap();
    let text = |hasher: &mut Sha256, text: &str| {
        hasher.update(u64::try_from(text.len()).unwrap().to_be_bytes());
        hasher.update(text);
    };
    let previous = line["previous"].as_str().unwrap();
    let bytes = previous
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
    let event = &line["event"];
    let mut hasher = Sha256::new();
    hasher.update(bytes.collect::<Vec<u8>>());
    hasher.update(line["seq"].as_i64().unwrap().to_be_bytes());
    for name in ["event_id", "account_id", "event_type"] {
        text(&mut hasher, event[name].as_str().unwrap());
    }
    hasher.update(line["happened_at_ns"].as_i64().unwrap().to_be_bytes());
    text(&mut hasher, audience);
    text(&mut hasher, body);
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_verified_and_exported_beside_a_running_server() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let settings = culvert.settings.clone();
        // The user and key of the first start, the start, in a cluster the node, and five keys.
        let n = 8 + usize::from(!settings.database_url.is_empty());
        let (code, out, error) = offline(&settings, &["audit", "verify"]);
        assert_eq!(code, 0, "{error}");
        let noted = out.trim().rsplit_once("head=").unwrap().1.to_owned();
        for n in 0..5 {
            let body = json!({"description": format!("key {n}"), "metadata": "ünï \\ \"☃\""});
            culvert.create("api_keys", body).await;
        }

        let (code, out, _) = offline(&settings, &["audit", "verify", "--head", &noted]);
        assert_eq!(code, 0);
        let expected = format!(" events={n} first=1 last={n} head={n}:");
        assert!(out.contains(&expected), "{out}");
        let head = out.trim().rsplit_once(':').unwrap().1.to_owned();
        let (code, checked, _) = offline(&settings, &["admin", "check"]);
        assert_eq!((code, checked.contains(out.trim())), (0, true), "{checked}");
        eventually("the head is in the metrics", async || {
            metrics_of(culvert.metrics)
                .await
                .contains(&format!("culvert_audit_head {n}"))
        })
        .await;

        let (code, out, error) = offline(&settings, &["audit", "export"]);
        assert_eq!(code, 0, "{error}");
        let lines: Vec<Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), n);
        assert_eq!(lines[0]["previous"], "0".repeat(64));
        assert_eq!(lines[n - 1]["hash"], head);
        for (line, text) in lines.iter().zip(out.lines()) {
            assert_eq!(line["hash"], hash_of(line, text), "{text}");
        }
        for pair in lines.windows(2) {
            assert_eq!(pair[1]["previous"], pair[0]["hash"]);
            assert_eq!(
                pair[1]["seq"].as_i64(),
                pair[0]["seq"].as_i64().map(|seq| seq + 1)
            );
        }
        let id = |n: usize| lines[n]["event"]["event_id"].as_str().unwrap().to_owned();
        let (_, part, _) = offline(
            &settings,
            &["audit", "export", "--from", &id(2), "--to", &id(3)],
        );
        let wanted: Vec<&str> = out.lines().skip(2).take(2).collect();
        assert_eq!(part.lines().collect::<Vec<_>>(), wanted);
        let (_, none, _) = offline(
            &settings,
            &["audit", "export", "--from", "2199-01-01T00:00:00Z"],
        );
        assert_eq!(none, "");
        let (_, all, _) = offline(
            &settings,
            &[
                "audit",
                "export",
                "--from",
                "2020-01-01T00:00:00+02:00",
                "--to",
                "2199-01-01T00:00:00Z",
            ],
        );
        assert_eq!(all, out);

        for (arguments, expected) in [
            (&["audit", "verify", "--head", "x"][..], 2),
            (&["audit", "export", "--from", "yesterday"], 2),
            (&["audit", "export", "--format", "xml"], 2),
            (
                &[
                    "audit",
                    "export",
                    "--from",
                    "ev_000000000000000000000000000",
                ],
                1,
            ),
        ] {
            let (code, out, _) = offline(&settings, arguments);
            assert_eq!((code, out.as_str()), (expected, ""), "{arguments:?}");
        }

        // An attacker modifies and then deletes an event.
        let changed = n - 3;
        execute(
            &settings,
            &format!(
                "UPDATE outbox SET body = replace(body, 'key 1', 'key X') WHERE seq = {changed}"
            ),
        )
        .await;
        let (code, out, error) = offline(&settings, &["audit", "verify"]);
        assert_eq!((code, out.as_str()), (1, ""));
        let expected = format!("event {changed} does not match");
        assert!(error.contains(&expected), "{error}");
        assert_eq!(offline(&settings, &["admin", "check"]).0, 1);
        execute(
            &settings,
            &format!(
                "UPDATE outbox SET body = replace(body, 'key X', 'key 1') WHERE seq = {changed}"
            ),
        )
        .await;
        assert_eq!(offline(&settings, &["audit", "verify"]).0, 0);
        let sql = format!("DELETE FROM outbox WHERE seq = {n}");
        execute(&settings, &sql).await;
        let (code, _, error) = offline(&settings, &["audit", "verify"]);
        assert_eq!(code, 1);
        let expected = format!("event {n} is missing");
        assert!(error.contains(&expected), "{error}");
        // With the ledger adjusted, the rest verifies. The head noted before is missing from it.
        let last_kept = lines[n - 2]["hash"].as_str().unwrap();
        let kept = n - 1;
        let sql =
            format!("UPDATE ledger SET outbox = {kept}, chained = {kept}, head = '{last_kept}'");
        execute(&settings, &sql).await;
        assert_eq!(offline(&settings, &["audit", "verify"]).0, 0);
        let (code, _, error) = offline(&settings, &["audit", "verify", "--head", &head]);
        assert_eq!(code, 1);
        assert!(error.contains("does not contain the head"), "{error}");
        culvert.stop().await;
    }
    // Without an installation, none is created.
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        data_dir: folder.path().join("none"),
        ..Settings::default()
    };
    let (code, _, error) = offline(&settings, &["audit", "verify"]);
    assert_eq!((code, error.contains("no installation in")), (1, true));
    assert!(!settings.data_dir.exists());
}

/// A data directory, whose events a test changes.
struct TrafficData {
    data: std::path::PathBuf,
    settings: Settings,
    now: Timestamp,
}

impl TrafficData {
    fn new(folder: &tempfile::TempDir) -> Self {
        let data = folder.path().join("data");
        let settings = Settings {
            data_dir: data.clone(),
            ..Settings::default()
        };
        Self {
            data,
            settings,
            now: SystemClock.now(),
        }
    }

    /// Keeps pieces, beside the server, each with the number of minutes before now.
    async fn keep(&self, pieces: &[(&str, i64)]) {
        let clock: std::sync::Arc<dyn Clock> = std::sync::Arc::new(SystemClock);
        let url = StoreUrl::Sqlite(self.data.join("state.db"));
        let queue = Queue::open(&url, clock).await.unwrap();
        let pieces = pieces.iter().map(|(body, minutes)| {
            let at = self.now.unix_nanos() - minutes * 60_000_000_000;
            let at = Timestamp::from_unix_nanos(at);
            NewPiece {
                first_at: at,
                last_at: at,
                endpoints: Vec::new(),
                summary: Vec::new(),
                body: body.as_bytes().to_vec(),
            }
        });
        queue.keep_traffic(pieces.collect()).await.unwrap();
        queue.close().await;
    }

    /// A start and a stop, which records all pieces.
    fn run(&self) {
        let server = Process::start(&self.data, "");
        assert_eq!(server.terminate(), 0);
    }

    async fn change(&self, sql: &'static str) {
        let events = format!("sqlite://{}", self.data.join("events.db").display());
        let mut database = SqliteConnection::connect(&events).await.unwrap();
        sqlx::raw_sql(sql).execute(&mut database).await.unwrap();
        database.close().await.unwrap();
    }

    fn verify(&self, further: &[&str]) -> (i32, String, String) {
        let arguments = [&["audit", "verify", "--traffic"], further].concat();
        offline(&self.settings, &arguments)
    }

    fn fails(&self, with: &str) {
        let (code, _, error) = self.verify(&[]);
        assert_eq!(code, 1, "{with}");
        assert!(error.contains(with), "{error}");
    }

    fn succeeds(&self, further: &[&str], with: &str) {
        let (code, out, error) = self.verify(further);
        assert_eq!(code, 0, "{error}");
        assert!(out.contains(with), "{out}");
    }
}

/// The hourly record of the traffic log finds a forged piece.
#[tokio::test(flavor = "multi_thread")]
async fn the_traffic_log_is_that_of_its_records() {
    let folder = tempfile::tempdir().unwrap();
    let traffic = TrafficData::new(&folder);
    let server = Process::start(&traffic.data, "");
    traffic.keep(&[("one", 110), ("two", 100)]).await;
    server.kill();
    traffic.succeeds(&[], "pieces_without_record=2");
    assert!(traffic.verify(&[]).1.contains("2 pieces have no record"));

    // The next start finds pieces without a record that are older than an hour.
    let server = Process::start(&traffic.data, "");
    eventually("the record is made", async || {
        traffic.verify(&[]).1.contains("verified=1 removed=0")
    })
    .await;
    assert_eq!(server.terminate(), 0);
    for (forge, undo, with) in [
        (
            "UPDATE traffic SET body = CAST('own' AS BLOB) WHERE id = 2",
            "UPDATE traffic SET body = CAST('two' AS BLOB) WHERE id = 2",
            "its pieces 1 to 2",
        ),
        (
            "INSERT INTO traffic SELECT -5, first_at, last_at, bytes, crc, body, 1 FROM traffic WHERE id = 1",
            "DELETE FROM traffic WHERE id = -5",
            "it has a piece -5",
        ),
    ] {
        traffic.change(forge).await;
        traffic.fails(with);
        assert_eq!(offline(&traffic.settings, &["audit", "verify"]).0, 0);
        traffic.change(undo).await;
        assert_eq!(traffic.verify(&[]).0, 0);
    }

    // Without the file nothing can be compared, and a new one is said to be another.
    for ending in ["", "-wal", "-shm"] {
        let file = traffic.data.join(format!("events.db{ending}"));
        drop(std::fs::remove_file(file));
    }
    traffic.fails("the traffic log is missing");
    let server = Process::start(&traffic.data, "");
    traffic.keep(&[("three", 100)]).await;
    assert_eq!(server.terminate(), 0);
    traffic.fails("add `--accept-former`");
    let expected = "verified=1 removed=0 removed_early=0 former=1";
    traffic.succeeds(&["--accept-former"], expected);
}

/// Records that are not made are missed, and so are pieces that were changed before theirs.
#[tokio::test(flavor = "multi_thread")]
async fn missing_records_of_the_traffic_log_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let traffic = TrafficData::new(&folder);
    let server = Process::start(&traffic.data, "");
    traffic.keep(&[("one", 300), ("two", 200)]).await;
    server.kill();
    traffic.fails("has no record of its events since");
    // Times that say otherwise are not those of the hashes.
    traffic
        .change("UPDATE traffic SET first_at = 4000000000000000000")
        .await;
    traffic.fails("its piece 1, which has no record yet, is not the one of its hash");
    traffic
        .change("DELETE FROM traffic; DELETE FROM traffic_hash")
        .await;
    traffic.keep(&[("three", -60)]).await;
    traffic.fails("which is in the future");

    // A hash that was changed neither stops the records nor hides that.
    let folder = tempfile::tempdir().unwrap();
    let traffic = TrafficData::new(&folder);
    traffic.run();
    traffic.keep(&[("one", 70), ("two", 65)]).await;
    traffic.run();
    traffic.succeeds(&[], "verified=1 removed=0");
    traffic
        .change("UPDATE traffic_hash SET hash = 'x' WHERE piece = 2")
        .await;
    traffic.keep(&[("three", 5)]).await;
    traffic.run();
    traffic.fails("add `--accept-former`");
    traffic.succeeds(&["--accept-former"], "former=1 pieces_without_record=0");

    // A lost mark is accepted too.
    let state = format!("sqlite://{}", traffic.data.join("state.db").display());
    let mut database = SqliteConnection::connect(&state).await.unwrap();
    let forget = "DELETE FROM document_key WHERE kind = 'hashed_traffic'; \
         DELETE FROM document WHERE kind = 'hashed_traffic'";
    sqlx::raw_sql(forget).execute(&mut database).await.unwrap();
    database.close().await.unwrap();
    traffic.run();
    traffic.fails("add `--accept-former`");
    traffic.succeeds(&["--accept-former"], "former=3 pieces_without_record=0");
}

/// A removal by retention hides no change, and an earlier one is said.
#[tokio::test(flavor = "multi_thread")]
async fn retention_hides_no_change_of_the_traffic_log() {
    let folder = tempfile::tempdir().unwrap();
    let traffic = TrafficData::new(&folder);
    traffic.run();
    let pieces = [("a", 70), ("b", 69), ("c", 68), ("d", 67), ("e", 66)];
    traffic.keep(&pieces).await;
    traffic.run();
    traffic.keep(&[("f", 5)]).await;
    traffic.run();
    traffic.succeeds(&[], "verified=2 removed=0 removed_early=0 former=0");
    traffic
        .change("CREATE TABLE kept AS SELECT * FROM traffic; CREATE TABLE hashes AS SELECT * FROM traffic_hash")
        .await;
    traffic
        .change(
            "DELETE FROM traffic WHERE id < 5; DELETE FROM traffic_hash WHERE piece < 5; \
             UPDATE traffic SET body = CAST('own' AS BLOB) WHERE id = 5",
        )
        .await;
    traffic.fails("which retention keeps");
    // Removed with all of its pieces, which retention would not have removed yet.
    traffic
        .change("DELETE FROM traffic WHERE id < 6; DELETE FROM traffic_hash WHERE piece < 6")
        .await;
    traffic.fails("before `events.traffic_retention` of the settings ended");
    // Sizes that are only written down need no space.
    traffic
        .change(
            "UPDATE traffic SET bytes = 4000000000000; \
             INSERT INTO traffic_body (event, happened_at, bytes, crc, body) VALUES ('ev_x', 1, 4000000000000, 0, x'00')",
        )
        .await;
    traffic.fails("before `events.traffic_retention` of the settings ended");
    let accepted = ["--accept-removed"];
    traffic.succeeds(&accepted, "verified=1 removed=1 removed_early=1 former=0");
    // The oldest pieces only.
    traffic
        .change(
            "DELETE FROM traffic; INSERT INTO traffic SELECT * FROM kept WHERE id > 2; \
             DELETE FROM traffic_hash; INSERT INTO traffic_hash SELECT * FROM hashes",
        )
        .await;
    traffic.fails("before `events.traffic_retention` of the settings ended");
    traffic.succeeds(&accepted, "verified=2 removed=0 removed_early=1 former=0");
}

async fn metrics_of(address: std::net::SocketAddr) -> String {
    let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    crate::harness::raw(address, request.as_bytes()).await.text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_sends_the_same_events_again() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let (first, late) = (Receiver::start().await, Receiver::start().await);
        let destination = |hook: &Receiver| {
            let url = format!("http://{}/hook", hook.address);
            json!({"format": "json", "target": {"webhook": {"url": url}}})
        };
        let made = culvert
            .create("event_destinations", destination(&first))
            .await;
        let sources = json!([{"type": "api_key_created.v0"}]);
        let body = json!({"destination_ids": [made["id"]], "sources": sources});
        culvert.create("event_subscriptions", body).await;
        for n in 0..3 {
            culvert
                .create("api_keys", json!({"description": format!("{n}")}))
                .await;
        }
        let sent = first.wait_for("api_key_created.v0", 3).await;

        let from = sent[0]["event_id"].as_str().unwrap();
        let (code, out, error) = culvert.replay(&made["id"], &["--from", from]);
        assert_eq!(code, 0, "{error}");
        let done: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (&done["state"], &done["percent"]),
            (&json!("done"), &json!(100))
        );
        let again = first.wait_for("api_key_created.v0", 6).await;
        assert_eq!(
            again[3..],
            sent,
            "the same events, to the letter and in order"
        );
        // A destination that was created later, and kinds without a subscription.
        let made = culvert
            .create("event_destinations", destination(&late))
            .await;
        let (code, _, error) = culvert.replay(&made["id"], &["--from", "2020-01-01T00:00:00Z"]);
        assert_eq!(
            (code, error.contains("ERR_NGROK_5140")),
            (1, true),
            "{error}"
        );
        let kinds = "api_key_created.v0,event_subscription_created.v0";
        let (code, _, error) = culvert.replay(
            &made["id"],
            &["--from", "2020-01-01T00:00:00Z", "--kinds", kinds],
        );
        assert_eq!(code, 0, "{error}");
        late.wait_for("event_subscription_created.v0", 1).await;
        // The API key of the first start is among them.
        let keys = late.wait_for("api_key_created.v0", 4).await;
        assert_eq!(keys[1..], sent);
        let absent = json!(format!("ed_{}", "0".repeat(27)));
        let (code, _, error) = culvert.replay(&absent, &["--from", from]);
        assert_eq!((code, error.contains("HTTP 404")), (1, true), "{error}");
        assert_eq!(culvert.replay(&made["id"], &[]).0, 2);

        // A bot user is not an admin.
        let bot = culvert.create("bot_users", json!({"name": "bot"})).await;
        let key = culvert
            .create("api_keys", json!({"owner_id": bot["id"]}))
            .await;
        let client = culvert.client_with(key["token"].as_str().unwrap());
        let path = format!(
            "/event_destinations/{}/replay",
            made["id"].as_str().unwrap()
        );
        let body = json!({"from": "2020-01-01T00:00:00Z", "event_types": ["api_key_created.v0"]});
        let refused = client.call(Method::POST, &path, Some(&body)).await.unwrap();
        assert_eq!(
            (refused.status, &refused.body["error_code"]),
            (403, &json!("ERR_NGROK_630"))
        );
        let (code, _, error) = offline(&culvert.settings, &["audit", "verify"]);
        assert_eq!(code, 0, "{error}");
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_under_way_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let hook = Receiver::start().await;
    hook.answer_with(http::StatusCode::SERVICE_UNAVAILABLE);
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = culvert::client::Client::new(&server.api, token.clone()).unwrap();
    for _ in 0..20 {
        client
            .expect(Method::POST, "/api_keys", Some(&json!({})))
            .await
            .unwrap();
    }
    let url = format!("http://{}/hook", hook.address);
    let body = json!({"format": "json", "target": {"webhook": {"url": url}}});
    let made = client
        .expect(Method::POST, "/event_destinations", Some(&body))
        .await
        .unwrap();
    let path = format!(
        "/event_destinations/{}/replay",
        made["id"].as_str().unwrap()
    );
    let body = json!({"from": "2020-01-01T00:00:00Z", "event_types": ["api_key_created.v0"]});
    client
        .expect(Method::POST, &path, Some(&body))
        .await
        .unwrap();
    // Kills the server immediately: the replay may not have begun, be in progress, or wait in the queue.
    server.kill();
    let server = Process::start(&data, "");
    let client = culvert::client::Client::new(&server.api, token).unwrap();
    hook.answer_with(http::StatusCode::OK);
    eventually("the replay is done", async || {
        client.expect(Method::GET, &path, None).await.unwrap()["state"] == "done"
    })
    .await;
    let taken = || -> std::collections::BTreeSet<String> {
        let events = hook.events().into_iter();
        events
            .map(|event| event["object"]["id"].to_string())
            .collect()
    };
    eventually("every key is reported of", async || taken().len() == 21).await;
    assert_eq!(server.terminate(), 0);
}

/// A stranger, and an owner without the right, are in the log; `culvert audit who` shows what happened to an object.
#[tokio::test(flavor = "multi_thread")]
async fn refused_calls_are_in_the_audit_log() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let bot = culvert.create("bot_users", json!({"name": "b"})).await;
        let key = culvert
            .create("api_keys", json!({"owner_id": bot["id"]}))
            .await;
        let vault = culvert.create("vaults", json!({"name": "v"})).await;
        let vault = vault["id"].as_str().unwrap();
        let path = format!("/vaults/{vault}");
        for token in ["a-wrong-token", key["token"].as_str().unwrap()] {
            let client = culvert.client_with(token);
            let refused = client.call(Method::DELETE, &path, None).await.unwrap();
            assert!([401, 403].contains(&refused.status), "{refused:?}");
        }
        let changed = Some(json!({"name": "w"}));
        assert_eq!(
            culvert.call(Method::PATCH, &path, changed).await.status,
            200
        );
        eventually("both refusals are in the log", async || {
            let found = "/events?type=request_refused.v0";
            let page = culvert.call(Method::GET, found, None).await.body;
            page["events"].as_array().unwrap().len() == 2
        })
        .await;

        let (code, out, error) = offline(&culvert.settings, &["audit", "who", vault]);
        assert_eq!(code, 0, "{error}");
        let lines: Vec<&str> = out.lines().collect();
        let has = |texts: &[&str]| {
            let mut lines = lines.iter();
            lines.any(|line| texts.iter().all(|text| line.contains(text)))
        };
        assert!(
            has(&["vault_created.v0 by admin@", " from 127.", " via cli"]),
            "{out}"
        );
        assert!(has(&["vault_updated.v0 by admin@", ": name"]), "{out}");
        assert!(has(&["request_refused.v0 by b (API, ak_"]), "{out}");
        let (code, _, error) = offline(&culvert.settings, &["audit", "who", "vault_1"]);
        assert_eq!(code, 1, "{error}");
        assert!(error.contains("no event about `vault_1`"), "{error}");
        culvert.stop().await;
    }
}
