//! The kept events of several servers on one database: found at each of them, in order, and complete.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use http::Method;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::harness::{Harness, Receiver, cluster, eventually, raw};
use crate::kept_events::{Entry, Stream, all};
use crate::nodes::process_beside;

const HOST: &str = "wanted.culvert.localhost";
const TYPES: &str = "type=http_request_complete.v0,vault_created.v0";

async fn request(node: SocketAddr, path: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    raw(node, request.as_bytes()).await.status
}

/// What an event is about: the path of a request, or the name of a vault.
fn about(event: &Value) -> String {
    let object = &event["object"];
    let name = match &object["name"] {
        Value::Null => &object["http"]["request"]["url"]["path"],
        name => name,
    };
    name.as_str().unwrap().to_owned()
}

/// Whether a search finds each of these events once.
async fn finds(culvert: &Harness, query: &str, expected: &BTreeSet<String>) -> bool {
    let found = own(&all(culvert, query).await);
    let unique: BTreeSet<String> = found.iter().cloned().collect();
    assert_eq!(unique.len(), found.len(), "no event is found twice");
    unique == *expected
}

/// The events of this test, without those by which the harness looks for the endpoint.
fn own(entries: &[Entry]) -> Vec<String> {
    let all = entries.iter().map(|entry| about(&entry.event()));
    all.filter(|about| about.contains("nth")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_all_nodes_are_found_on_each_and_survive_a_node() {
    const ROUNDS: usize = 12;
    let Some(backend) = cluster(2).await else {
        return;
    };
    let stays = Harness::start(&backend).await;
    let folder = tempfile::tempdir().unwrap();
    let dies = process_beside(&stays, folder.path());
    let origin = Receiver::start().await;
    stays.endpoint("wanted", origin.address).await;
    eventually("the other node serves it", async || {
        request(dies.http, "/live").await == 200
    })
    .await;
    let at_other = culvert::client::Client::new(&dies.api, stays.token.clone()).unwrap();
    let mut stream = Stream::open(&stays, &format!("&{TYPES}"), None).await;
    let mut expected = BTreeSet::new();
    for n in 0..ROUNDS {
        for (node, name) in [(stays.http, "here"), (dies.http, "there")] {
            let path = format!("/nth-{n}-{name}");
            assert_eq!(request(node, &path).await, 200);
            expected.insert(path);
        }
        let name = format!("nth-{n}");
        let body = json!({"name": name});
        match n % 2 {
            0 => drop(stays.create("vaults", body).await),
            _ => drop(
                at_other
                    .expect(Method::POST, "/vaults", Some(&body))
                    .await
                    .unwrap(),
            ),
        }
        expected.insert(name);
    }
    eventually("all events are kept", async || {
        finds(&stays, &format!("?{TYPES}"), &expected).await
    })
    .await;
    for limit in [1, 7, 100] {
        for order in ["newest", "oldest"] {
            let query = format!("?{TYPES}&order={order}&limit={limit}");
            assert!(finds(&stays, &query, &expected).await, "{query}");
        }
    }
    // A page is sorted by time, whichever node wrote its events.
    let entries = all(&stays, &format!("?{TYPES}&order=oldest")).await;
    let times = |is_audit: bool| -> Vec<String> {
        let of = entries.iter().filter(|one| one.audit.is_some() == is_audit);
        of.map(|one| one.event()["event_timestamp"].to_string())
            .collect()
    };
    assert!(times(false).is_sorted(), "{:?}", times(false));
    let positions: Vec<i64> = entries
        .iter()
        .filter_map(|one| Some(one.audit.as_ref()?.position))
        .collect();
    assert!(positions.is_sorted(), "{positions:?}");

    // The stream had each once, and goes on after the other node's death.
    let mut followed = BTreeSet::new();
    while followed.len() < expected.len() {
        let (_, message) = stream.next().await;
        let about = about(&message["event"]);
        if about.contains("nth") {
            assert!(followed.insert(about.clone()), "{about} came twice");
        }
    }
    assert_eq!(followed, expected);
    dies.kill();
    assert_eq!(request(stays.http, "/nth-after").await, 200);
    expected.insert("/nth-after".to_owned());
    while about(&stream.next().await.1["event"]) != "/nth-after" {}
    eventually("all events are still found", async || {
        finds(&stays, &format!("?{TYPES}&limit=5"), &expected).await
    })
    .await;
    stays.stop().await;
}

/// A VACUUM holds this lock, and a node that hangs holds the others.
#[tokio::test(flavor = "multi_thread")]
async fn searches_are_not_blocked_by_locks_of_the_traffic_log() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let culvert = Harness::start(&backend).await;
    let mut other = PgConnection::connect(&culvert.settings.database_url)
        .await
        .unwrap();
    for mode in ["SHARE UPDATE EXCLUSIVE", "ROW EXCLUSIVE"] {
        let mut transaction = other.begin().await.unwrap();
        let lock = format!("LOCK TABLE culvert_events.traffic IN {mode} MODE");
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock))
            .execute(&mut *transaction)
            .await
            .unwrap();
        all(&culvert, "?limit=1").await;
        let mut stream = Stream::open(&culvert, "&type=vault_created.v0", None).await;
        let name = mode.replace(" ", "-");
        culvert.create("vaults", json!({"name": name})).await;
        assert_eq!(about(&stream.next().await.1["event"]), name);
        transaction.rollback().await.unwrap();
    }
    other.close().await.unwrap();
    culvert.stop().await;
}
