//! Sends and workers that panic.

use std::time::Duration;

use culvert_base::Clock;
use culvert_store::BatchClass;
use culvert_testing::until;

use super::bench::{Bench, Scripted, record, source};
use crate::worker::{Step, Worker};

#[tokio::test]
async fn a_send_that_panics_is_retried_with_back_off() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    target.panic(5);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    bench.append("ed_1", BatchClass::Audit, &["ev_1"]).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    let began = bench.clock.now();
    loop {
        match worker.step().await.unwrap() {
            Step::Idle(None) => break,
            Step::Idle(Some(at)) => bench.clock.advance(at.since(bench.clock.now())),
            _ => {}
        }
    }
    assert_eq!(target.keys().len(), 6);
    assert_eq!(bench.meters().delivered.get(), 1);
    assert!(bench.clock.now().since(began) > Duration::from_millis(500));
    assert_eq!(bench.health("ed_1").last_error.unwrap().code, "panic");
}

#[tokio::test]
async fn a_send_from_memory_that_panics_loses_nothing() {
    let bench = Bench::new().await;
    let target = Scripted::new(2);
    target.panic(1);
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    for port in 0..3 {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    until("the failure", || bench.health("ed_1").last_error.is_some()).await;
    let delivered = || {
        bench.clock.advance(Duration::from_secs(1));
        bench.delivery.plane.notifier.wake("ed_1");
        bench.meters().delivered.get() == 3
    };
    until("three deliveries", delivered).await;
    running.stop().await;
    assert_eq!(bench.meters().dropped.total(), 0);
    assert_eq!(bench.meters().waiting(), 0);
}

/// What a worker had in memory when it panicked is counted by the next one.
#[tokio::test]
async fn what_a_worker_lost_is_counted() {
    let bench = Bench::new().await;
    let target = Scripted::new(3);
    target.gate();
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    for port in 0..3 {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    until("a send", || !target.keys().is_empty()).await;
    let sent = u64::try_from(target.keys().len()).unwrap();
    running.abandon();
    bench.delivery.plane.begin_worker("ed_1");
    assert_eq!(bench.meters().dropped.total(), sent);
    assert_eq!(bench.health("ed_1").dropped, sent);
    // Once.
    bench.delivery.plane.begin_worker("ed_1");
    assert_eq!(bench.meters().dropped.total(), sent);
}
