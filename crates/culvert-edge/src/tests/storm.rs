//! Many concurrent clients, some of them hostile: every request still makes one event, and every
//! connection one, after those of its requests.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::JoinSet;

use super::harness::*;
use crate::{Limits, Settings};

const CLIENTS: usize = 24;
const REQUESTS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_request_and_connection_is_recorded_once() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        let mut turn = 0;
        while let Some((head, _)) = client.request().await {
            turn += 1;
            if head.contains("/chunks") {
                client
                    .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
                    .await;
                tokio::task::yield_now().await;
                client.send("0\r\n\r\n").await;
            } else {
                client
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
                    .await;
            }
            if turn % 7 == 0 {
                return;
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;

    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = rig.connect().await;
        clients.spawn(async move {
            for turn in 0..REQUESTS {
                let request = match (number + turn) % 3 {
                    0 => "GET /chunks HTTP/1.1\r\nHost: app.example\r\n\r\n",
                    1 => "GET /a HTTP/1.1\r\nHost: app.example\r\n\r\n",
                    _ => "POST /b HTTP/1.1\r\nHost: app.example\r\nContent-Length: 3\r\n\r\nabc",
                };
                client.send(request).await;
                // The last answer is not waited for by every second client.
                if turn + 1 < REQUESTS || number % 2 == 0 {
                    client.answer("GET").await;
                }
            }
            // A client that leaves without its answer may do so before its request is read.
            number % 2 == 0
        });
    }
    let mut polite = 0;
    while let Some(is_polite) = clients.join_next().await {
        polite += usize::from(is_polite.unwrap());
    }
    assert_eq!(polite, CLIENTS / 2);
    soon("all connections to close", async {
        while rig.edge.meters().connections.get() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let requests = usize::try_from(rig.edge.meters().requests.get()).unwrap();
    assert!(requests >= CLIENTS * REQUESTS - CLIENTS / 2);
    let events = rig.recorder.events(requests + CLIENTS).await;
    assert_eq!(events.len(), requests + CLIENTS);
    assert_eq!(of(&events, TCP).len(), CLIENTS);

    // By the moment of accept, which tells connections apart here: nothing after a close.
    let mut open: HashMap<String, bool> = HashMap::new();
    for event in &events {
        let start = event["object"]["conn"]["start_ts"]
            .as_str()
            .unwrap()
            .to_owned();
        let is_close = event["event_type"] == TCP;
        let is_closed = open.entry(start).or_default();
        assert!(!*is_closed, "an event after its connection's close");
        *is_closed = is_close;
    }
    assert_eq!(rig.edge.meters().panics.get(), 0);
}

#[tokio::test]
async fn an_idle_connection_frees_its_buffers_and_serves_again() {
    let mut rig = Rig::with(Settings {
        limits: Limits {
            rest: Duration::from_millis(20),
            idle: Duration::from_secs(2),
            ..settings().limits
        },
        ..settings()
    })
    .await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    for _ in 0..2 {
        client
            .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
            .await;
        assert_eq!(client.answer("GET").await.text(), "hello");
        let waited = tokio::time::timeout(Duration::from_millis(100), client.more()).await;
        assert!(waited.is_err(), "it stays open");
    }
    // In the middle of a request, and at the end of the idle time.
    client.send("GET / HT").await;
    tokio::task::yield_now().await;
    client.send("TP/1.1\r\nHost: app.example\r\n\r\n").await;
    assert_eq!(client.answer("GET").await.text(), "hello");
    assert_eq!(client.rest().await, b"");
    assert_eq!(rig.edge.meters().accepted.get(), 1);
    let events = rig.recorder.events(4).await;
    assert_eq!(of(&events, HTTP).len(), 3);
}
