//! An outage of the database under traffic: the test stops its PostgreSQL server and starts it again.
//! Traffic continues, the API reports the outage, and everything catches up afterwards.

use std::time::{Duration, Instant};

use culvert_testing::Postgres;
use http::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, RawAnswer, Receiver, binary, eventually};
use crate::kill::Process;

#[tokio::test(flavor = "multi_thread")]
async fn a_database_outage_stops_no_traffic_and_loses_no_event() {
    const HOST: &str = "steady.culvert.localhost";
    let folder = tempfile::tempdir().unwrap();
    let Some(postgres) = tokio::task::block_in_place(|| Postgres::start(folder.path())) else {
        return;
    };
    let culvert = Harness::start(&Backend::Postgres(postgres.url())).await;
    let hook = Receiver::start().await;
    let sources = json!([
        {"type": "http_request_complete.v0", "fields": ["http.request.url.path"]},
        {"type": "api_key_created.v0"},
    ]);
    subscribe_debug(&culvert, &hook, sources).await;
    let origin = Receiver::start().await;
    culvert.endpoint("steady", origin.address).await;
    eventually("requests are reported of", async || {
        culvert.get(HOST, "/before").await;
        !hook.events().is_empty()
    })
    .await;

    assert!(postgres.stop());
    let called = culvert.call(Method::POST, "/api_keys", Some(json!({})));
    let refused = called.await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(refused.body["error_code"], "ERR_NGROK_10000");
    let mut requests = JoinSet::new();
    for worker in 0..4 {
        let at = culvert.http;
        requests.spawn(async move {
            for nth in 0..100 {
                let head = format!("GET /away/{worker}/{nth} HTTP/1.1\r\nhost: {HOST}\r\n");
                let request = format!("{head}connection: close\r\n\r\n");
                let RawAnswer { status, .. } = crate::harness::raw(at, request.as_bytes()).await;
                assert_eq!(status, 200, "traffic needs no database");
                // Spread over some of the recorder's tries to write.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    requests.join_all().await;
    let refused = culvert.call(Method::GET, "/api_keys", None).await;
    assert_eq!(refused.status, 503, "{}", refused.body);

    postgres.resume();
    eventually("the API answers again", async || {
        let answer = culvert
            .call(Method::POST, "/api_keys", Some(json!({})))
            .await;
        answer.status == 201
    })
    .await;
    hook.wait_for("api_key_created.v0", 1).await;
    let reported = || {
        let events = hook.events();
        let paths = events
            .iter()
            .filter_map(|event| event["object"]["http"]["request"]["url"]["path"].as_str());
        let mut paths: Vec<String> = paths
            .filter(|path| path.starts_with("/away/"))
            .map(str::to_owned)
            .collect();
        paths.sort_unstable();
        paths.dedup();
        paths.len()
    };
    // A batch that was on its way when the database went is free again when its lease is over.
    let deadline = Instant::now() + Duration::from_secs(180);
    while reported() < 400 {
        assert!(
            Instant::now() < deadline,
            "{} of 400 were reported of",
            reported()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("database away: 400 requests answered, 400 reported of, lost 0");
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_waits_for_a_database_that_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let Some(postgres) = tokio::task::block_in_place(|| Postgres::start(folder.path())) else {
        return;
    };
    assert!(postgres.stop());
    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let (url, folder, stderr) = (
        postgres.url(),
        data.path().to_owned(),
        std::fs::File::create(&log).unwrap(),
    );
    let starting = tokio::task::spawn_blocking(move || {
        let mut command = binary();
        command.stderr(stderr);
        Process::start_as(command, &folder.join("data"), &url, &[])
    });
    eventually("the server waits", async || {
        let log = std::fs::read_to_string(&log).unwrap();
        log.contains("waiting for the database")
    })
    .await;
    assert!(!starting.is_finished());
    tokio::task::block_in_place(|| postgres.resume());
    let culvert = starting.await.unwrap();
    assert_eq!(culvert.terminate(), 0);
}
