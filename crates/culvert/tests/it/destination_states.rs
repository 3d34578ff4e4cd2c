//! Events about a destination that fails and recovers, and about certificates that expire, of a real server.

use std::time::Duration;

use culvert::client::Client;
use culvert_base::{Clock, SystemClock};
use http::{Method, StatusCode};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Backend, Harness, Receiver, eventually};
use crate::kill::Process;

const HOST: &str = "full.culvert.localhost";
/// More events than nine tenths of the queue of a destination, and less than all of it.
const N_EVENTS: usize = 9_300;

/// Seconds.
const DAY: u64 = 24 * 3_600;

/// The events of a kind in the log.
pub async fn logged(client: &Client, kind: &str) -> Vec<Value> {
    let path = format!("/events?type={kind}");
    let page = client.expect(Method::GET, &path, None).await.unwrap();
    let entries = page["events"].as_array().unwrap().iter();
    entries.map(|entry| entry["event"].clone()).collect()
}

/// Sends requests on one connection, and waits for their responses.
async fn request(culvert: &Harness, count: usize) {
    let stream = TcpStream::connect(culvert.http).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let sending = async {
        let request = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
        for _ in 1..count {
            writer.write_all(request.as_bytes()).await.unwrap();
        }
        let last = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
        writer.write_all(last.as_bytes()).await.unwrap();
    };
    let reading = async {
        let mut answers = String::new();
        reader.read_to_string(&mut answers).await.unwrap();
        answers
    };
    let ((), answers) = tokio::join!(sending, reading);
    assert_eq!(answers.matches("HTTP/1.1 204 ").count(), count);
}

/// Its queue fills while it fails. When it accepts events again, both are in the log, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_accepts_events_again_has_recovered() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let receiver = Receiver::start().await;
    receiver.answer_with(StatusCode::SERVICE_UNAVAILABLE);
    let target = json!({"webhook": {"url": format!("http://{}/", receiver.address)}});
    let body = json!({"format": "json", "target": target});
    let destination = culvert.create("event_destinations", body).await;
    let sources = json!([{"type": "http_request_complete.v0"}]);
    let body = json!({"destination_ids": [destination["id"]], "sources": sources});
    culvert.create("event_subscriptions", body).await;
    let policy = json!({"on_http_request": [{"actions": [{"type": "custom-response", "config": {"status_code": 204}}]}]});
    let body = json!({"url": format!("http://{HOST}"), "traffic_policy": policy.to_string()});
    culvert.create("endpoints", body).await;
    eventually("the endpoint is live", async || {
        culvert.get(HOST, "/").await.status == 204
    })
    .await;

    for _ in 0..N_EVENTS / 100 {
        request(&culvert, 100).await;
    }
    eventually("it is reported as failing", async || {
        !logged(&culvert.client, "destination_failing.v0")
            .await
            .is_empty()
    })
    .await;
    let failing = logged(&culvert.client, "destination_failing.v0").await;
    assert_eq!(failing.len(), 1, "{failing:?}");
    let object = &failing[0]["object"];
    assert_eq!(object["id"], destination["id"]);
    assert_eq!(object["reason"], "queue_full");
    assert_eq!(object["last_error"]["code"], "503");
    assert!(
        logged(&culvert.client, "destination_recovered.v0")
            .await
            .is_empty()
    );

    receiver.answer_with(StatusCode::OK);
    // A change of a destination makes the next attempt immediate.
    let path = format!(
        "/event_destinations/{}",
        destination["id"].as_str().unwrap()
    );
    let body = json!({"description": "repaired"});
    let patched = culvert.call(Method::PATCH, &path, Some(body)).await;
    assert_eq!(patched.status, 200, "{patched:?}");
    eventually("it is reported as recovered", async || {
        !logged(&culvert.client, "destination_recovered.v0")
            .await
            .is_empty()
    })
    .await;
    let recovered = logged(&culvert.client, "destination_recovered.v0").await;
    assert_eq!(recovered.len(), 1, "{recovered:?}");
    assert_eq!(recovered[0]["object"]["id"], destination["id"]);
    assert_ne!(recovered[0]["object"]["last_success_at"], Value::Null);
    assert_eq!(
        logged(&culvert.client, "destination_failing.v0")
            .await
            .len(),
        1
    );
    culvert.stop().await;
}

/// A certificate of the operator that ends in five days.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_expires_soon_is_reported_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token.clone()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["soon.example".to_owned()]).unwrap();
    let now = u64::try_from(SystemClock.now().unix_seconds()).unwrap();
    let at = |seconds| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = at(now - 60 * DAY);
    params.not_after = at(now + 5 * DAY);
    let certificate = params.self_signed(&key).unwrap();
    let body = json!({
        "certificate_pem": certificate.pem(),
        "private_key_pem": key.serialize_pem(),
    });
    let made = client.expect(Method::POST, "/tls_certificates", Some(&body));
    let made = made.await.unwrap();
    assert_eq!(server.terminate(), 0);

    let server = Process::start(&data, "");
    let client = Client::new(&server.api, token).unwrap();
    eventually("it is reported", async || {
        !logged(&client, "certificate_expiring.v0").await.is_empty()
    })
    .await;
    let expiring = logged(&client, "certificate_expiring.v0").await;
    assert_eq!(expiring.len(), 1, "{expiring:?}");
    let object = &expiring[0]["object"];
    assert_eq!(object["id"], made["id"]);
    assert_eq!(object["within_days"], 7);
    assert_eq!(object["names"], json!(["soon.example"]));
    assert_eq!(server.terminate(), 0);
}
