//! Batches that are gathered in the queue and become one object.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Clock};
use culvert_destinations::target::s3;
use culvert_store::{BatchClass, Gathering, NewBatch};
use culvert_target::batch::{Batch, BatchLimits, OpenBatch};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::{Gathers, Run, Target, Verdict};
use culvert_testing::http_server::{Fake, Reply};
use culvert_testing::until;
use serde_json::{Value, json};

use super::bench::{Bench, envelope, local_settings, record};
use crate::worker::{Step, Worker};

/// A plane with one destination, a bucket at `fake`.
async fn bench(fake: &Fake) -> Bench {
    let url = fake.url("/").parse().unwrap();
    let bench = Bench::with(|settings| {
        settings.targets = local_settings();
        settings.targets.aws.endpoint = Some(url);
        settings.destination_events_max = 3;
    })
    .await;
    publish(&bench);
    bench
}

fn publish(bench: &Bench) {
    publish_without(bench, &[]);
}

fn publish_without(bench: &Bench, private: &[&str]) {
    let creds = json!({"aws_access_key_id": "a", "aws_secret_access_key": "s"});
    let config = json!({
        "auth": {"creds": creds},
        "bucket_arn": "arn:aws:s3:::events",
        "max_file_size": 1 << 20,
        "max_file_age": 60,
    });
    bench.publish_type(&s3::TYPE, config, private);
}

async fn append(bench: &Bench, id: u32, filling: usize) {
    let mut open = OpenBatch::default();
    let envelope = envelope(id, "2027-01-15T08:00:00.000Z");
    let envelope = envelope.replace("{}", &format!("{{\"x\":\"{}\"}}", "x".repeat(filling)));
    open.push(&"esb_1".into(), envelope.as_bytes());
    let batch = NewBatch {
        destination: "ed_1".to_owned(),
        class: BatchClass::Traffic,
        count: open.len(),
        body: open.finish(),
    };
    bench.queue.append(vec![batch], None).await.unwrap();
}

/// Ids of the events in each object that was put.
fn objects(fake: &Fake) -> Vec<Vec<String>> {
    let puts = fake.seen().into_iter();
    puts.filter(|seen| seen.line.starts_with("PUT"))
        .map(|seen| {
            seen.text()
                .lines()
                .map(|line| {
                    let event: Value = serde_json::from_str(line).unwrap();
                    event["event_id"].as_str().unwrap().to_owned()
                })
                .collect()
        })
        .collect()
}

#[tokio::test]
async fn an_object_is_written_at_its_age_or_size_limit() {
    let fake = Fake::start().await;
    let bench = bench(&fake).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    append(&bench, 1, 0).await;
    append(&bench, 2, 0).await;
    let gather_due_at = bench.clock.now().plus(Duration::from_secs(60));
    assert_eq!(
        worker.step().await.unwrap(),
        Step::Idle(Some(gather_due_at))
    );
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    assert_eq!(worker.step().await.unwrap(), Step::Idle(None));
    assert_eq!(objects(&fake), [["ev_1", "ev_2"]]);

    // Four batches exceed a mebibyte; three do not.
    for id in 3..7 {
        append(&bench, id, 300 << 10).await;
    }
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    assert_eq!(objects(&fake)[1], ["ev_3", "ev_4", "ev_5"]);
    assert!(matches!(worker.step().await.unwrap(), Step::Idle(Some(_))));
    let health = bench.health("ed_1");
    assert_eq!((health.sent, health.batches), (5, 2));
}

/// Events that their reader may not get any more keep no others from the object, and are not sent.
#[tokio::test]
async fn withheld_events_keep_no_others_from_the_object() {
    let fake = Fake::start().await;
    let bench = bench(&fake).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    publish_without(&bench, &["private"]);
    for (kinds, sent, dropped) in [
        (&["private", "public", "private"][..], 1, 2),
        (&["private"], 1, 3),
        (&["public"], 2, 3),
    ] {
        for kind in kinds {
            let envelope = envelope(1, "2027-01-15T08:00:00.000Z");
            let envelope = envelope.replace(r#""test""#, &format!(r#""{kind}""#));
            let mut open = OpenBatch::default();
            open.push(&"esb_1".into(), envelope.as_bytes());
            let batch = NewBatch {
                destination: "ed_1".to_owned(),
                class: BatchClass::Audit,
                count: open.len(),
                body: open.finish(),
            };
            bench.queue.append(vec![batch], None).await.unwrap();
        }
        bench.clock.advance(Duration::from_secs(60));
        while worker.step().await.unwrap() == Step::Moved {}
        assert_eq!(bench.queue.backlog().await.unwrap(), []);
        let health = bench.health("ed_1");
        assert_eq!((health.sent, health.dropped), (sent, dropped), "{kinds:?}");
        assert_eq!(objects(&fake).len(), usize::try_from(sent).unwrap());
    }
}

#[tokio::test]
async fn failed_events_are_resent_with_newer_ones() {
    let fake = Fake::start().await;
    let bench = bench(&fake).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    append(&bench, 1, 0).await;
    bench.clock.advance(Duration::from_secs(60));
    fake.script([Reply::status(503)]);
    assert_eq!(worker.step().await.unwrap(), Step::Failed);
    let Step::Idle(Some(at)) = worker.step().await.unwrap() else {
        panic!("sent early")
    };
    append(&bench, 2, 0).await;
    bench.clock.advance(at.since(bench.clock.now()));
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    assert_eq!(objects(&fake), [vec!["ev_1"], vec!["ev_1", "ev_2"]]);

    // Permanent failure: dead letters, after the age of the object and that of traffic.
    append(&bench, 3, 0).await;
    fake.otherwise(Reply::status(404));
    let began = bench.clock.now();
    bench.clock.advance(Duration::from_secs(60));
    loop {
        match worker.step().await.unwrap() {
            Step::Idle(Some(at)) => bench.clock.advance(at.since(bench.clock.now())),
            Step::Idle(None) => break,
            _ => {}
        }
    }
    let letters = bench.queue.dead_letters("ed_1", None, 9).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].why.class, FailureClass::Config.name());
    let waited = bench.clock.now().since(began);
    assert_eq!(waited, Duration::from_secs(3660));
}

/// A process that dies during or after an upload: the events are sent again, and none is lost.
#[tokio::test]
async fn a_crash_repeats_at_most_one_object() {
    let fake = Fake::start().await;
    let bench = bench(&fake).await;
    append(&bench, 1, 0).await;
    append(&bench, 2, 0).await;
    bench.clock.advance(Duration::from_secs(60));
    fake.script([Reply::Hang]);
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    {
        let mut step = std::pin::pin!(worker.step());
        let putting = until("a put", || !fake.seen().is_empty());
        tokio::select! {
            _ = &mut step => panic!("it hangs"),
            () = putting => {}
        }
    }
    drop(worker);
    let plane = bench.delivery.plane.clone();
    let mut worker = Worker::new(plane.clone(), "ed_1".into());
    assert!(
        matches!(worker.step().await.unwrap(), Step::Idle(Some(_))),
        "leased by the life before"
    );
    plane
        .queue
        .release_owner(&plane.settings.node)
        .await
        .unwrap();
    let mut worker = Worker::new(plane, "ed_1".into());
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    assert_eq!(worker.step().await.unwrap(), Step::Idle(None));
    assert_eq!(objects(&fake), [["ev_1", "ev_2"]; 2]);
}

#[tokio::test]
async fn gathering_destinations_have_a_larger_queue_limit() {
    let fake = Fake::start().await;
    let bench = bench(&fake).await;
    let running = bench.run();
    for port in 0..10 {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    until("ten events in the queue", || {
        bench.health("ed_1").queued == 10
    })
    .await;
    assert_eq!(bench.health("ed_1").dropped, 0);
    running.stop().await;
    assert_eq!(objects(&fake).len(), 0, "it waits for its age");
}

/// A store that writes only small objects in time.
#[derive(Debug)]
struct SlowStore {
    batches_max: usize,
    objects: std::sync::Mutex<Vec<usize>>,
}

impl Target for SlowStore {
    fn send<'a>(&'a self, _: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async { Verdict::Delivered })
    }

    fn limits(&self) -> BatchLimits {
        BatchLimits::DEFAULT
    }

    fn gathers(&self) -> Option<&dyn Gathers> {
        Some(self)
    }
}

impl Gathers for SlowStore {
    fn gathering(&self) -> Gathering {
        Gathering {
            bytes_max: 64 << 20,
            age_max: Duration::from_secs(60),
        }
    }

    fn put<'a>(&'a self, run: &'a dyn Run) -> BoxFuture<'a, Result<(), Failure>> {
        self.objects.lock().unwrap().push(run.batches());
        let is_late = run.batches() > self.batches_max;
        Box::pin(async move {
            match is_late {
                true => Err(Failure::new(FailureClass::Unknown, "timeout", "too late")),
                false => Ok(()),
            }
        })
    }
}

#[tokio::test]
async fn an_object_that_cannot_be_written_in_time_is_written_in_parts() {
    let bench = Bench::new().await;
    let store = Arc::new(SlowStore {
        batches_max: 3,
        objects: Default::default(),
    });
    bench.publish_target(store.clone());
    for id in 0..10 {
        append(&bench, id, 700 << 10).await;
    }
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    for _ in 0..200 {
        match worker.step().await.unwrap() {
            Step::Idle(None) => break,
            Step::Idle(Some(at)) => bench.clock.advance(at.since(bench.clock.now())),
            _ => {}
        }
    }
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
    assert_eq!(bench.meters().delivered.get(), 10);
    let objects = store.objects.lock().unwrap().clone();
    let late = objects.iter().filter(|batches| **batches > 3).count();
    assert_eq!(objects[0], 10);
    assert!(late <= 8, "{objects:?}");
}
