//! Stopping: nothing new, everything begun is finished, the rest is cut with its events.

use std::time::Duration;

use super::harness::*;
use crate::{Limits, Settings};

#[tokio::test]
async fn draining_finishes_exchanges_and_closes_idle_connections() {
    let mut rig = Rig::start().await;
    let (ask, mut asked) = tokio::sync::mpsc::channel(1);
    let go = tokio_util::sync::CancellationToken::new();
    let gate = go.clone();
    let origin = origin(&mut rig.tasks, move |mut client| {
        let (ask, gate) = (ask.clone(), gate.clone());
        async move {
            while let Some((head, _)) = client.request().await {
                if head.starts_with("GET /slow") {
                    ask.send(()).await.unwrap();
                    gate.cancelled().await;
                }
                client
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    .await;
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut idle = rig.connect().await;
    idle.send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    assert_eq!(idle.answer("GET").await.status, 200);
    let mut busy = rig.connect().await;
    busy.send("GET /slow HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    asked.recv().await.unwrap();

    rig.cancel.cancel();
    assert_eq!(idle.rest().await, b"", "an idle connection closes at once");
    go.cancel();
    let answer = busy.answer("GET").await;
    assert_eq!(
        (answer.status, answer.header("connection")),
        (200, Some("close"))
    );
    assert!(!busy.more().await);
    assert_eq!(rig.recorder.events(4).await.len(), 4);
    let address = rig.edge.http_addr().unwrap();
    soon("the listener to be gone", async {
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn unfinished_exchanges_are_cut_and_recorded_at_the_end_of_draining() {
    let mut rig = Rig::with(Settings {
        limits: Limits {
            drain: Duration::from_millis(100),
            ..Limits::default()
        },
        ..settings()
    })
    .await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.request().await;
        client
            .send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n01234")
            .await;
        client.rest().await;
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client
        .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    while find(&client.read, b"01234").is_none() {
        client.more().await;
    }
    let mut run = tokio::task::JoinSet::new();
    std::mem::swap(&mut run, &mut rig.tasks);
    rig.cancel.cancel();
    client.rest().await;
    let events = rig.recorder.events(2).await;
    assert_eq!(events[0]["object"]["http"]["response"]["body_length"], 5);
    assert_eq!(events[0]["object"]["http"]["response"]["status_code"], 200);
    assert_eq!(events[1]["event_type"], TCP);
    assert_eq!(rig.edge.meters().connections.get(), 0);
}

#[tokio::test]
async fn a_request_in_flight_when_draining_begins_gets_its_response() {
    let mut rig = Rig::with(Settings {
        // Longer than the test may take: it ends because every connection does.
        limits: Limits {
            parting: Duration::from_secs(20),
            ..Limits::default()
        },
        ..settings()
    })
    .await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    let ask = "GET / HTTP/1.1\r\nHost: app.example\r\n\r\n";
    client.send(ask).await;
    assert_eq!(client.answer("GET").await.header("connection"), None);
    rig.cancel.cancel();
    let address = rig.edge.http_addr().unwrap();
    soon("the listener to be gone", async {
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    client.send(ask).await;
    let answer = client.answer("GET").await;
    assert_eq!(
        (answer.status, answer.header("connection")),
        (200, Some("close"))
    );
    assert!(!client.more().await);
    soon("the edge to end", rig.tasks.join_next()).await;
}
