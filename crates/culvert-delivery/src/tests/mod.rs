//! The plane as a whole, on a real store and queue, with a manual clock.

mod audit;
pub(crate) mod bench;
mod clock;
mod cluster;
mod crashes;
mod direct;
mod drained;
mod event_query;
mod event_search;
mod full;
mod gathered;
mod panics;
mod refused;
mod retained;
mod retries;
mod selection;
mod tails;

use std::time::Duration;

use bench::{Bench, Scripted, failure, record, source};
use culvert_base::Clock;
use culvert_store::BatchClass;
use culvert_target::Verdict;
use culvert_target::failure::{Failure, FailureClass};
use culvert_testing::http_server::{Fake, Reply};
use culvert_testing::until;
use serde_json::{Value, json};

use crate::worker::{Step, Worker};

#[tokio::test]
async fn audit_events_are_copied_once_and_sent_before_traffic() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    bench.subscribe("esb_1", "ed_1").await;
    bench.append("ed_1", BatchClass::Traffic, &["ev_t"]).await;
    for n in 0..5 {
        bench.tell(n).await;
    }
    let mut first = bench.dispatcher();
    let mut second = bench.dispatcher();
    // Two nodes read the same rows; one of them finds the cursor moved.
    let (a, b) = tokio::join!(first.pass(), second.pass());
    a.unwrap();
    b.unwrap();
    while first.pass().await.unwrap() || second.pass().await.unwrap() {}
    let running = bench.run();
    until("all deliveries", || target.keys().len() == 6).await;
    let mut wanted: Vec<String> = (0..5).map(|n| format!("ev_audit{n}:esb_1")).collect();
    wanted.push("ev_t:esb_1".to_owned());
    assert_eq!(target.keys(), wanted);
    running.stop().await;
}

#[tokio::test]
async fn the_queue_of_a_deleted_destination_is_deleted_and_counted() {
    let bench = Bench::new().await;
    let down = Scripted::new(500);
    down.otherwise(Verdict::Failed(failure(FailureClass::Retryable, "503")));
    bench.publish(Vec::new(), &[("ed_1", &down)]);
    let head = bench.destination("ed_1").await;
    bench
        .append("ed_1", BatchClass::Traffic, &["ev_1", "ev_2"])
        .await;
    let running = bench.run();
    until("a try", || !down.keys().is_empty()).await;
    // The destination is stored but not in the table: nothing is dropped.
    bench.publish(Vec::new(), &[]);
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    assert_eq!(worker.step().await.unwrap(), Step::Idle(None));
    bench.remove(head).await;
    bench.publish(Vec::new(), &[]);
    until("the loss", || bench.meters().dropped.total() == 2).await;
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
    assert_eq!(bench.meters().waiting(), 0);
    running.stop().await;
}

#[tokio::test]
async fn a_test_event_reports_its_outcome() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    target.script([
        Verdict::Delivered,
        Verdict::Failed(Failure::new(FailureClass::Auth, "401", "bad key")),
    ]);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    assert_eq!(bench.delivery.send_test("ed_1").await, Ok(()));
    assert_eq!(
        bench.delivery.send_test("ed_1").await,
        Err("auth 401: bad key".to_owned())
    );
    assert!(
        bench
            .delivery
            .send_test("ed_2")
            .await
            .unwrap_err()
            .contains("does not exist")
    );
    let sent: Value = serde_json::from_str(&target.envelopes()[0]).unwrap();
    assert_eq!(
        (&sent["event_type"], &sent["object"]),
        (&json!("test"), &json!({}))
    );
    assert_eq!(bench.meters().offered.get(), 0);
}

#[tokio::test]
async fn dead_letters_and_health_have_no_webhook_secrets() {
    let fake = Fake::start().await;
    let secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let says = format!("cannot verify {secret}");
    fake.otherwise(Reply::Status(400, Vec::new(), says));
    let bench = Bench::with(|settings| {
        settings.targets.rules.allow_networks = vec!["127.0.0.0/8".parse().unwrap()];
        settings.targets.rules.allow_plain_http = true;
    })
    .await;
    let config = json!({"url": fake.url("/"), "secrets": [secret]});
    bench.publish_type(&culvert_destinations::target::webhook::TYPE, config, &[]);
    bench
        .append("ed_1", BatchClass::Traffic, &["ev_1", "ev_2"])
        .await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    while worker.step().await.unwrap() == Step::Moved {}
    let dead = bench.queue.dead_letters("ed_1", None, 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].count), (1, 2));
    assert_eq!(
        fake.seen().len(),
        2,
        "a refused event is not sent again alone"
    );
    let shown = format!("{dead:?} {:?}", bench.health("ed_1"));
    assert!(
        shown.contains("cannot verify [redacted]") && !shown.contains("AAECAwQ"),
        "{shown}"
    );
}

#[tokio::test]
async fn events_reach_a_file_complete() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let bench = Bench::with(|settings| settings.targets.file_root = Some(root)).await;
    bench.publish_type(
        &culvert_destinations::target::file::TYPE,
        json!({"path": "events.ndjson"}),
        &[],
    );
    let running = bench.run();
    for n in 0..3000 {
        bench.delivery.recorder().offer(record(&bench, n));
    }
    until("all deliveries", || bench.meters().delivered.get() == 3000).await;
    let text = std::fs::read_to_string(folder.path().join("events.ndjson")).unwrap();
    assert_eq!(text.lines().count(), 3000);
    assert!(
        text.lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok())
    );
    running.stop().await;
}

#[tokio::test]
async fn events_bypass_the_queue_until_the_target_fails() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    let recorder = bench.delivery.recorder();
    recorder.offer(record(&bench, 1));
    until("the first delivery", || bench.meters().delivered.get() == 1).await;
    assert_eq!(bench.meters().queued.get(), 0);

    target.otherwise(Verdict::Failed(failure(FailureClass::Retryable, "full")));
    recorder.offer(record(&bench, 2));
    until("what was not taken is queued", || {
        bench.meters().queued.get() == 1
    })
    .await;
    // Later events do not overtake it.
    recorder.offer(record(&bench, 3));
    until("the next is queued behind it", || {
        bench.meters().queued.get() == 2
    })
    .await;
    target.otherwise(Verdict::Delivered);
    until("all deliveries", || {
        bench.clock.advance(Duration::from_secs(1));
        bench.delivery.plane.notifier.wake("ed_1");
        bench.meters().delivered.get() == 3
    })
    .await;
    let ports: Vec<i64> = target.ports();
    assert_eq!(ports.last(), Some(&3));
    assert!(ports.windows(2).all(|pair| pair[0] <= pair[1]), "{ports:?}");
    assert_eq!(bench.meters().waiting(), 0);
    running.stop().await;
}

#[tokio::test]
async fn the_backlog_counts_batches_of_every_node() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    let look = async || {
        let all_counters = &bench.delivery.plane.all_counters;
        let look = all_counters.begin_read();
        all_counters.refresh(look, &bench.queue.backlog().await.unwrap());
        bench.delivery.waiting()
    };
    // Another node appends two batches, and leases one of them.
    bench
        .append("ed_1", BatchClass::Traffic, &["ev_1", "ev_2"])
        .await;
    bench.append("ed_1", BatchClass::Traffic, &["ev_3"]).await;
    assert_eq!(look().await, 3);
    let now = bench.clock.now();
    let lease = bench
        .queue
        .lease("ed_1", "another", Duration::from_secs(60), now);
    let lease = lease.await.unwrap().unwrap();
    bench.queue.ack(&lease).await.unwrap();
    assert_eq!(look().await, 1);
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    assert_eq!(bench.delivery.waiting(), 0);
}
