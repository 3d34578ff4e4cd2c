//! Failed sends: back-off, partial failures, dead letters and unhealthy destinations.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::bench::{Bench, Scripted, failure};
use culvert_base::{Clock, RetryAfter, Timestamp};
use culvert_store::BatchClass;
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::{Outcome, Verdict};
use culvert_testing::until;

use crate::DestinationState;
use crate::worker::{Step, Worker};

#[tokio::test]
async fn a_failed_batch_is_retried_after_its_delay() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    target.script([
        Verdict::Failed(failure(FailureClass::Retryable, "503")),
        Verdict::Failed(Failure {
            after: Some(RetryAfter::new(Duration::from_secs(120))),
            ..failure(FailureClass::Retryable, "429")
        }),
        Verdict::Delivered,
    ]);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    bench.append("ed_1", BatchClass::Traffic, &["ev_1"]).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());

    assert_eq!(worker.step().await.unwrap(), Step::Failed);
    let Step::Idle(Some(at)) = worker.step().await.unwrap() else {
        panic!("sent early")
    };
    let wait = at.since(bench.clock.now());
    assert!(
        wait > Duration::ZERO && wait <= Duration::from_millis(500),
        "{wait:?}"
    );
    assert_eq!(
        bench.delivery.health("ed_1").unwrap().state,
        DestinationState::Retrying
    );

    bench.clock.advance(wait);
    assert_eq!(worker.step().await.unwrap(), Step::Failed);
    assert_eq!(
        worker.step().await.unwrap(),
        Step::Idle(Some(bench.clock.now().plus(Duration::from_secs(120))))
    );
    bench.clock.advance(Duration::from_secs(120));
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    assert_eq!(worker.step().await.unwrap(), Step::Idle(None));
    assert_eq!(target.keys(), ["ev_1:esb_1"; 3]);
    let health = bench.delivery.health("ed_1").unwrap();
    assert_eq!(
        (health.state, health.sent, health.batches),
        (DestinationState::Ok, 1, 3)
    );
    assert_eq!(health.last_error.unwrap().code, "429");
}

#[tokio::test]
async fn a_destination_that_asks_for_no_wait_does_not_shorten_the_back_off() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    target.otherwise(Verdict::Failed(Failure {
        after: Some(RetryAfter::new(Duration::ZERO)),
        ..failure(FailureClass::Retryable, "429")
    }));
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    bench.append("ed_1", BatchClass::Audit, &["ev_1"]).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    let began = bench.clock.now();
    let hour = Duration::from_secs(3600);
    while bench.clock.now().since(began) < hour {
        match worker.step().await.unwrap() {
            Step::Idle(Some(at)) => bench.clock.advance(at.since(bench.clock.now())),
            Step::Failed => assert!(target.keys().len() < 300, "a loop without waits"),
            other => panic!("{other:?}"),
        }
    }
    // With full jitter, the mean wait is half a minute.
    let tries = target.keys().len();
    assert!((100..300).contains(&tries), "{tries} tries in an hour");
}

#[tokio::test]
async fn only_failed_events_of_a_batch_are_resent_and_refused_ones_dead_lettered() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    target.script([Verdict::Partial(vec![
        Outcome::Delivered,
        Outcome::Failed(failure(FailureClass::Permanent, "422")),
        Outcome::Delivered,
        Outcome::Failed(failure(FailureClass::Retryable, "503")),
        Outcome::NotTried,
    ])]);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    bench
        .append(
            "ed_1",
            BatchClass::Audit,
            &["ev_1", "ev_2", "ev_3", "ev_4", "ev_5"],
        )
        .await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    worker.step().await.unwrap();
    bench.clock.advance(Duration::from_secs(1));
    while worker.step().await.unwrap() == Step::Moved {}
    assert_eq!(target.keys()[5..], ["ev_4:esb_1", "ev_5:esb_1"]);
    let dead = bench.queue.dead_letters("ed_1", None, 10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert!(String::from_utf8_lossy(&dead[0].body).contains("ev_2"));
    assert_eq!(
        (&*dead[0].why.class, &*dead[0].why.code),
        ("permanent", "422")
    );
    assert_eq!(
        (
            bench.meters().delivered.get(),
            bench.meters().dead_lettered.get()
        ),
        (4, 1)
    );
}

#[tokio::test]
async fn one_refused_event_is_found_by_halving_and_the_others_are_delivered() {
    for class in [FailureClass::Permanent, FailureClass::Split] {
        let bench = Bench::new().await;
        let target = Scripted::new(500);
        target.refuse("ev_13", failure(class, "400"));
        bench.publish(Vec::new(), &[("ed_1", &target)]);
        let ids: Vec<String> = (0..20).map(|n| format!("ev_{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        bench.append("ed_1", BatchClass::Traffic, &ids).await;
        let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
        while worker.step().await.unwrap() == Step::Moved {}
        let taken = target.taken();
        let wanted: Vec<String> = (0..20)
            .filter(|n| *n != 13)
            .map(|n| format!("ev_{n}:esb_1"))
            .collect();
        assert_eq!(taken, wanted, "in order, each once");
        assert_eq!(
            bench
                .queue
                .dead_letters("ed_1", None, 10)
                .await
                .unwrap()
                .len(),
            1
        );
        assert_eq!(bench.meters().dead_lettered.get(), 1);
    }
}

#[tokio::test]
async fn refused_credentials_make_a_destination_unhealthy_until_an_edit() {
    let bench = Bench::new().await;
    let wrong = Scripted::new(500);
    wrong.otherwise(Verdict::Failed(failure(FailureClass::Auth, "401")));
    bench.publish(Vec::new(), &[("ed_1", &wrong)]);
    bench.append("ed_1", BatchClass::Audit, &["ev_1"]).await;
    bench.append("ed_1", BatchClass::Audit, &["ev_2"]).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    for _ in 0..30 {
        if let Step::Idle(Some(at)) = worker.step().await.unwrap() {
            bench.clock.advance(at.since(bench.clock.now()));
        }
    }
    // The destination waits a long time, and is then edited.
    worker.step().await.unwrap();
    assert_eq!(
        bench.delivery.health("ed_1").unwrap().state,
        DestinationState::Unhealthy
    );
    assert!(
        wrong.keys().iter().all(|key| key == "ev_1:esb_1"),
        "the second is held back"
    );

    let right = Scripted::new(500);
    bench.publish_revision(2, &[("ed_1", &right)]);
    while worker.step().await.unwrap() == Step::Moved {}
    assert_eq!(right.keys(), ["ev_1:esb_1", "ev_2:esb_1"]);
    assert_eq!(
        bench.delivery.health("ed_1").unwrap().state,
        DestinationState::Ok
    );
}

#[tokio::test]
async fn a_gone_destination_gets_no_requests_until_an_edit() {
    let bench = Bench::new().await;
    let gone = Scripted::new(500);
    gone.otherwise(Verdict::Failed(failure(FailureClass::Gone, "410")));
    bench.publish(Vec::new(), &[("ed_1", &gone)]);
    bench.append("ed_1", BatchClass::Audit, &["ev_1"]).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    for _ in 0..20 {
        worker.step().await.unwrap();
        bench.clock.advance(Duration::from_secs(600));
    }
    assert_eq!(gone.keys().len(), 1);
    let back = Scripted::new(500);
    bench.publish_revision(2, &[("ed_1", &back)]);
    while worker.step().await.unwrap() == Step::Moved {}
    assert_eq!(back.keys(), ["ev_1:esb_1"]);
}

#[tokio::test]
async fn traffic_expires_after_an_hour_and_audit_events_after_three_days() {
    let bench = Bench::new().await;
    let down = Scripted::new(500);
    down.otherwise(Verdict::Failed(failure(FailureClass::Retryable, "503")));
    bench.publish(Vec::new(), &[("ed_1", &down)]);
    bench.append("ed_1", BatchClass::Traffic, &["ev_t"]).await;
    bench.append("ed_1", BatchClass::Audit, &["ev_a"]).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    for (hours, dead_lettered) in [(0, 0), (2, 1), (71, 1), (73, 2)] {
        let at = bench.started_at.plus(Duration::from_secs(hours * 3600));
        bench.clock.advance(at.since(bench.clock.now()));
        for _ in 0..20 {
            worker.step().await.unwrap();
            worker.step().await.unwrap();
            bench.clock.advance(Duration::from_secs(60));
        }
        let dead = bench.queue.dead_letters("ed_1", None, 10).await.unwrap();
        assert_eq!(dead.len(), dead_lettered, "after {hours} h");
    }
    // Audit events were sent first.
    assert_eq!(down.keys()[0], "ev_a:esb_1");
}

/// Steps until there is nothing to send. Returns the time of the next attempt.
async fn idle(worker: &mut Worker) -> Timestamp {
    loop {
        if let Step::Idle(Some(at)) = worker.step().await.unwrap() {
            return at;
        }
    }
}

#[tokio::test]
async fn after_twenty_failures_one_probe_per_step_is_sent() {
    let bench = Bench::new().await;
    let down = Scripted::new(500);
    down.otherwise(Verdict::Failed(failure(FailureClass::Retryable, "503")));
    bench.publish(Vec::new(), &[("ed_1", &down)]);
    bench.append("ed_1", BatchClass::Audit, &["ev_a"]).await;
    bench.append("ed_1", BatchClass::Traffic, &["ev_t"]).await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    while down.keys().len() < 20 {
        worker.step().await.unwrap();
        bench.clock.advance(Duration::from_secs(1));
    }
    // Both classes are due again, but there is one send per step of the clock.
    for _ in 0..5 {
        let at = idle(&mut worker).await;
        bench.clock.advance(at.since(bench.clock.now()));
        let before = down.keys().len();
        idle(&mut worker).await;
        assert!(down.keys().len() <= before + 1);
    }
    assert_eq!(
        bench.delivery.health("ed_1").unwrap().state,
        DestinationState::Unhealthy
    );
}

#[tokio::test]
async fn a_send_that_exceeds_its_lease_is_not_settled_by_the_first_holder() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    target.gate();
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    bench.append("ed_1", BatchClass::Traffic, &["ev_1"]).await;
    let plane = bench.delivery.plane.clone();
    let mut frozen = Worker::new(plane.clone(), "ed_1".into());
    let mut sending = tokio::task::JoinSet::new();
    sending.spawn(async move { frozen.step().await.unwrap() });
    until("the first send", || {
        target.started.load(Ordering::SeqCst) == 1
    })
    .await;
    bench.clock.advance(Duration::from_secs(61));
    let mut other = Worker::new(plane, "ed_1".into());
    sending.spawn(async move { other.step().await.unwrap() });
    until("the second send", || {
        target.started.load(Ordering::SeqCst) == 2
    })
    .await;
    target.open_gate();
    while sending.join_next().await.is_some() {}
    assert_eq!(bench.meters().leases_lost.get(), 1);
    assert_eq!(bench.meters().delivered.get(), 1);
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
}
