//! An overloaded edge: it reports its level, rejects new work, and recovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use culvert_policy::Scheme;
use serde_json::json;
use tokio::sync::Barrier;

use super::harness::*;
use super::policies::governed;
use super::streams::{connect, frames};
use crate::{Limits, Settings, Snapshot};

const GET: &str = "GET / HTTP/1.1\r\nHost: app.example\r\n\r\n";

fn with(memory_bytes: u64) -> Settings {
    Settings {
        limits: Limits {
            memory_bytes,
            ..settings().limits
        },
        ..settings()
    }
}

async fn level(rig: &Rig, level: u64) {
    soon("the level", async {
        while rig.edge.meters().overload_level.get() != level {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The course of an overload: before, within and after.
pub(super) async fn sheds() {
    let mut rig = Rig::with(with(u64::MAX)).await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut open = rig.connect().await;
    open.send(GET).await;
    assert_eq!(open.answer("GET").await.status, 200);
    let mut begun = rig.connect().await;
    begun.send("GET / HTTP/1.1\r\n").await;
    soon("both connections", async {
        while rig.edge.meters().connections.get() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;

    // A budget of one byte is used up by any process.
    rig.edge.reload(&with(1)).unwrap();
    level(&rig, 3).await;
    begun.send("Host: app.example\r\n\r\n").await;
    let answer = begun.answer("GET").await;
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (503, Some("1"))
    );
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(open.rest().await, b"", "idle connections are closed");
    assert_eq!(rig.connect().await.rest().await, b"");
    let meters = rig.edge.meters();
    assert_eq!(meters.shed_requests.get(), 1);
    assert!(meters.shed_connections.get() >= 1);
    assert!(meters.shed_idle.get() >= 1);

    rig.edge.reload(&with(u64::MAX)).unwrap();
    level(&rig, 0).await;
    assert_eq!(rig.ask(GET).await.status, 200);
}

/// Tasks that wait for too long, all the time.
pub(super) async fn sheds_when_tasks_wait() {
    for threads in [0, 2] {
        let within = |run_queue| {
            let limits = Limits {
                run_queue,
                ..settings().limits
            };
            Settings {
                limits,
                threads,
                ..settings()
            }
        };
        let mut rig = Rig::with(within(Duration::MAX)).await;
        let origin = hello(&mut rig.tasks).await;
        rig.edge.publish(http("app.example", origin).build()).await;
        let mut open = rig.connect().await;
        open.send(GET).await;
        assert_eq!(open.answer("GET").await.status, 200);

        // No task runs in less than a nanosecond.
        rig.edge
            .reload(&within(Duration::from_nanos(1)))
            .expect("the limits are good");
        level(&rig, 3).await;
        assert!(rig.edge.meters().pressure.run_queue.get() >= 95);
        assert_eq!(rig.connect().await.rest().await, b"");

        rig.edge
            .reload(&within(Duration::MAX))
            .expect("the limits are good");
        level(&rig, 0).await;
        // Closing idle connections would have saved no time.
        assert_eq!(rig.edge.meters().shed_idle.get(), 0);
        open.send(GET).await;
        assert_eq!(open.answer("GET").await.status, 200);
        assert_eq!(rig.ask(GET).await.status, 200);
    }
}

/// A store that does not come to an end of its writes: traffic is served, with smaller events.
pub(super) async fn sheds_when_the_store_is_slow() {
    let millis = Arc::new(AtomicU64::new(0));
    let reported = Arc::clone(&millis);
    let delay = move || Duration::from_millis(reported.load(Ordering::SeqCst));
    let mut rig = Rig::with(Settings {
        write_delay: Some(Arc::new(delay)),
        limits: Limits {
            run_queue: Duration::MAX,
            ..settings().limits
        },
        ..settings()
    })
    .await;
    let origin = hello(&mut rig.tasks).await;
    let logs = "on_http_request: [{actions: [{type: log, config: {metadata: {a: b}}}]}]";
    let endpoint = |scheme| governed(scheme, &format!("http://{origin}"), logs);
    let (names, key, root) = certificate(&["app.example"]);
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(Scheme::Http))
        .endpoint(endpoint(Scheme::Https))
        .certificate(names, key);
    rig.edge.publish(snapshot.build()).await;

    for (delay, reached, is_whole) in [
        (6_999, 0, true),
        (7_000, 1, true),
        (8_500, 2, false),
        (3_600_000, 2, false),
        (0, 0, true),
    ] {
        let (before, trimmed) = (rig.recorder.count(), trimmed(&rig));
        millis.store(delay, Ordering::SeqCst);
        soon("the next look", async {
            while rig.edge.meters().pressure.store.get() != (delay / 100).min(94) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        level(&rig, reached).await;
        let answer = rig.ask(GET).await;
        assert_eq!(answer.status, 200, "{delay}");
        assert_eq!(answer.header("connection"), None, "{delay}");

        let events = rig.recorder.events(before + 2).await;
        let event = of(&events[before..], HTTP)[0]["object"].clone();
        let (host, length) = match is_whole {
            true => (json!(["app.example"]), json!(["5"])),
            false => (json!(null), json!(null)),
        };
        assert_eq!(event["http"]["request"]["headers"]["Host"], host);
        assert_eq!(
            event["http"]["response"]["headers"]["Content-Length"],
            length
        );
        let (maps, logs) = match is_whole {
            true => (None, json!([{"metadata": {"a": "b"}}])),
            false => (Some(json!({})), json!([])),
        };
        if let Some(empty) = maps {
            assert_eq!(event["http"]["request"]["headers"], empty);
            assert_eq!(event["http"]["response"]["headers"], empty);
        }
        assert_eq!(event["traffic_policy"]["logs"], logs);
        // The rest is there.
        assert_eq!(event["http"]["response"]["status_code"], 200);
        assert_eq!(self::trimmed(&rig) - trimmed, u64::from(!is_whole));

        if delay == 8_500 {
            // A handshake waits for its turn for a moment only.
            let shared = rig.edge.shared();
            let _all = shared.handshakes.hold_all().await;
            let address = rig.edge.https_addr().unwrap();
            assert!(
                tls(address, &root, "app.example", "http/1.1")
                    .await
                    .is_err()
            );
            assert_eq!(rig.edge.meters().shed_handshakes.get(), 1);
        }
    }
}

fn trimmed(rig: &Rig) -> u64 {
    rig.edge.meters().events_trimmed.get()
}

/// An edge whose store has a configurable write delay in milliseconds, which alone sets the level.
async fn rig_with_store(millis: &Arc<AtomicU64>) -> Rig {
    let reported = Arc::clone(millis);
    let delay = move || Duration::from_millis(reported.load(Ordering::SeqCst));
    Rig::with(Settings {
        write_delay: Some(Arc::new(delay)),
        limits: Limits {
            run_queue: Duration::MAX,
            ..settings().limits
        },
        ..settings()
    })
    .await
}

#[tokio::test]
async fn under_pressure_fewer_upstream_connections_are_pooled() {
    const CONNECTIONS: usize = 140;
    let millis = Arc::new(AtomicU64::new(0));
    let mut rig = rig_with_store(&millis).await;
    let (open, all) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(Barrier::new(CONNECTIONS)),
    );
    let counter = Arc::clone(&open);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let (open, all) = (Arc::clone(&counter), Arc::clone(&all));
        async move {
            open.fetch_add(1, Ordering::SeqCst);
            if client.request().await.is_some() {
                // So that none is used twice.
                all.wait().await;
                client.send("HTTP/1.1 204 \r\n\r\n").await;
                client.rest().await;
            }
            open.fetch_sub(1, Ordering::SeqCst);
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = rig.connect().await;
        client.send(GET).await;
        clients.push(client);
    }
    for client in &mut clients {
        assert_eq!(client.answer("GET").await.status, 204);
    }
    assert_eq!(open.load(Ordering::SeqCst), CONNECTIONS as u64);

    millis.store(7_000, Ordering::SeqCst);
    soon("the half of 256", async {
        while open.load(Ordering::SeqCst) != 128 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(rig.edge.meters().overload_level.get(), 1);
}

#[tokio::test]
async fn new_agents_wait_under_pressure() {
    let millis = Arc::new(AtomicU64::new(0));
    let rig = rig_with_store(&millis).await;
    let held = || rig.edge.meters().held_agents.get();
    soon("an agent", rig.edge.takes_agents()).await;
    millis.store(7_000, Ordering::SeqCst);
    level(&rig, 1).await;
    soon("an agent", rig.edge.takes_agents()).await;
    assert_eq!(held(), 0);

    millis.store(8_500, Ordering::SeqCst);
    level(&rig, 2).await;
    let waiting = rig.edge.takes_agents();
    tokio::pin!(waiting);
    assert!(futures_util::poll!(&mut waiting).is_pending());
    assert_eq!(held(), 1);
    millis.store(0, Ordering::SeqCst);
    soon("its turn", waiting).await;
    assert!(rig.edge.meters().overload_level.get() < 2);
    assert_eq!(held(), 1);
}

/// While the memory stays full, events are dropped, and exchanges end: first the one that holds most.
#[tokio::test]
async fn exchanges_with_the_most_memory_end_first() {
    let mut rig = Rig::with(with(u64::MAX)).await;
    let origin = hello(&mut rig.tasks).await;
    let (names, key, root) = certificate(&["app.example"]);
    let policy = "on_http_request: [{expressions: [req.method == 'POST'], actions: [{type: verify-webhook, config: {provider: github, secret: s3cret}}]}]";
    let governed = |scheme| governed(scheme, &format!("http://{origin}"), policy);
    let snapshot = Snapshot::builder()
        .endpoint(governed(Scheme::Http))
        .endpoint(governed(Scheme::Https))
        .certificate(names, key);
    rig.edge.publish(snapshot.build()).await;
    let shared = rig.edge.shared();
    let room = shared.state.bodies.available();

    // Three that send a part of their body: one over HTTP/2, two over HTTP/1, of which one is small.
    let mut sender = connect(&mut rig, &root).await;
    let (send, body) = frames();
    let request = http::Request::post("https://app.example/").body(body);
    let answer = sender.send_request(request.unwrap());
    let part = bytes::Bytes::from(vec![b'x'; 16 << 10]);
    for _ in 0..3 {
        let frame = hyper::body::Frame::data(part.clone());
        send.send(frame).await.unwrap();
    }
    let head = "POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 99999\r\n\r\n";
    let mut large = rig.connect().await;
    large.send([head.as_bytes(), &part[..]].concat()).await;
    let mut small = rig.connect().await;
    small.send([head.as_bytes(), b"x"].concat()).await;
    soon("what they send", async {
        while room - shared.state.bodies.available() < 4 * part.len() + 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let before = rig.recorder.count();
    rig.edge.reload(&with(1)).unwrap();
    let ended = || rig.edge.meters().shed_exchanges.get();
    assert!(soon("the end of the largest", answer).await.is_err());
    assert!(ended() >= 1);
    assert!(large.rest().await.is_empty(), "a reset is no answer");
    assert!(ended() >= 2);
    assert!(small.rest().await.is_empty(), "a reset is no answer");
    assert_eq!(ended(), 3);
    soon("the end of all events", async {
        while rig.edge.meters().connections.get() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(shared.state.bodies.available(), room);
    assert!(rig.edge.meters().shed_events.get() >= 6);
    assert_eq!(rig.recorder.count(), before);
}
