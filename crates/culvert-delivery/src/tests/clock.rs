//! Delivery while the clock is set back and forward.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Clock, Ksuid, RetryAfter, Timestamp};
use culvert_store::BatchClass;
use culvert_target::Verdict;
use culvert_target::failure::{Failure, FailureClass};
use culvert_testing::until;

use super::audit::replay;
use super::bench::{AUDIT_KIND, Bench, Scripted, failure, record, source};
use crate::dispatch::replayer::Replayer;
use crate::retry::CIRCUIT_FAILURES;
use crate::worker::{Step, Worker};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// A plane with one destination and one batch.
async fn one_batch() -> (Bench, Arc<Scripted>, Worker) {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    bench.append("ed_1", BatchClass::Audit, &["ev_1"]).await;
    let worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    (bench, target, worker)
}

fn busy(seconds: u64) -> Verdict {
    Verdict::Failed(Failure {
        after: Some(RetryAfter::new(Duration::from_secs(seconds))),
        ..failure(FailureClass::Retryable, "429")
    })
}

/// Waits until the batch of a destination waits for its time, and not for the end of a lease.
async fn put_off(bench: &Bench) {
    let latest = bench.clock.now().plus(bench.delivery.plane.settings.lease);
    let is_put_off = async || {
        let due = bench.queue.next_due("ed_1").await.unwrap();
        due.is_some_and(|due| due > latest)
    };
    let waiting = async {
        while !is_put_off().await {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(culvert_testing::PATIENCE, waiting);
    waited.await.expect("the batch is put off");
}

/// Sets the clock back by `by`.
fn set_back(bench: &Bench, by: Duration) {
    bench.clock.set(bench.clock.now().minus(by));
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_delay_a_retry() {
    let (bench, target, mut worker) = one_batch().await;
    target.script([busy(300)]);
    assert_eq!(worker.step().await.unwrap(), Step::Failed);
    assert!(matches!(worker.step().await.unwrap(), Step::Idle(Some(_))));
    set_back(&bench, HOUR);
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    assert_eq!(target.taken(), ["ev_1:esb_1"]);
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_keep_a_circuit_open() {
    let (bench, target, mut worker) = one_batch().await;
    target.script((0..CIRCUIT_FAILURES).map(|_| busy(0)));
    loop {
        match worker.step().await.unwrap() {
            Step::Idle(Some(at)) if target.keys().len() < CIRCUIT_FAILURES as usize => {
                bench.clock.advance(at.since(bench.clock.now()));
            }
            Step::Idle(_) => break,
            _ => {}
        }
    }
    set_back(&bench, HOUR);
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
}

#[tokio::test]
async fn a_clock_that_is_set_forward_delays_nothing() {
    let (bench, target, mut worker) = one_batch().await;
    target.script([busy(300)]);
    assert_eq!(worker.step().await.unwrap(), Step::Failed);
    bench.clock.set(bench.clock.now().plus(HOUR));
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    assert_eq!(target.taken(), ["ev_1:esb_1"]);
}

#[tokio::test]
async fn a_batch_of_a_clock_that_was_far_ahead_is_sent_after_a_restart() {
    let (bench, target, mut worker) = one_batch().await;
    let true_time = bench.clock.now();
    bench.clock.set(true_time.plus(DAY));
    target.script([busy(300)]);
    assert_eq!(worker.step().await.unwrap(), Step::Failed);
    bench.clock.set(true_time);
    // The next run knows of no wrong clock.
    let mut next = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    assert_eq!(next.step().await.unwrap(), Step::Moved);
    assert_eq!(target.taken(), ["ev_1:esb_1"]);
}

#[tokio::test]
async fn a_lease_of_a_clock_that_was_far_ahead_ends_like_others() {
    let (bench, target, mut worker) = one_batch().await;
    let ahead = bench.clock.now().plus(DAY);
    let lease = bench.queue.lease("ed_1", "another", HOUR, ahead);
    assert!(lease.await.unwrap().is_some());
    let plane = bench.delivery.plane.clone();
    assert!(matches!(worker.step().await.unwrap(), Step::Idle(Some(_))));
    let latest = bench.clock.now().plus(plane.settings.lease);
    assert_eq!(plane.queue.bound_leases(latest).await.unwrap(), 1);
    assert_eq!(plane.queue.bound_leases(latest).await.unwrap(), 0);
    bench.clock.advance(plane.settings.lease);
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    assert_eq!(target.taken(), ["ev_1:esb_1"]);
}

/// Workers that wait for a time are woken when the clock was set.
#[tokio::test]
async fn the_whole_plane_delivers_while_the_clock_jumps_both_ways() {
    let bench = Bench::with(|settings| settings.direct_for = Duration::from_millis(20)).await;
    let target = Scripted::new(1);
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    let start = bench.clock.now();
    let jumps: [fn(Timestamp) -> Timestamp; 4] = [
        |now| now.minus(HOUR),
        |now| now.plus(DAY),
        |now| now.minus(DAY),
        |now| now.plus(HOUR),
    ];
    for (port, jump) in (0..).zip(jumps) {
        target.script([busy(300)]);
        bench.delivery.recorder().offer(record(&bench, port));
        let sent = usize::try_from(2 * port + 1).unwrap();
        until("a failed send", || target.keys().len() >= sent).await;
        put_off(&bench).await;
        bench.clock.set(jump(start));
        // As the supervisor does when it looks at the clock.
        bench.delivery.plane.notifier.wake("ed_1");
        let taken = usize::try_from(port + 1).unwrap();
        until("the retry", || target.taken().len() >= taken).await;
    }
    running.stop().await;
    assert_eq!(bench.meters().dropped.total(), 0);
}

const JUMPS: [fn(Timestamp) -> Timestamp; 4] = [
    |now| now.minus(HOUR),
    |now| now.plus(400 * DAY),
    |now| now.minus(400 * DAY),
    |now| now.plus(HOUR),
];

#[tokio::test]
async fn audit_events_are_dispatched_once_and_in_order_while_the_clock_jumps_both_ways() {
    let bench = Bench::new().await;
    bench.subscribe("esb_1", "ed_1").await;
    let target = Scripted::new(500);
    bench.publish_replays(&target, &[]);
    let running = bench.run();
    let start = bench.clock.now();
    let mut told = 0;
    for jump in JUMPS {
        bench.tell(told).await;
        bench.clock.set(jump(start));
        bench.tell(told + 1).await;
        told += 2;
        let wanted = usize::try_from(told).unwrap();
        until("both events", || target.keys().len() >= wanted).await;
    }
    running.stop().await;
    let wanted: Vec<String> = (0..told).map(|n| format!("ev_audit{n}:esb_1")).collect();
    assert_eq!(target.keys(), wanted);
}

#[tokio::test]
async fn a_replay_is_complete_while_the_clock_jumps_both_ways() {
    const EVENTS: u32 = 1200;
    let bench = Bench::new().await;
    let told = (0..EVENTS).map(|n| ("ac_1", AUDIT_KIND, n));
    bench.tell_all(told).await;
    let mut dispatcher = bench.dispatcher();
    while dispatcher.pass().await.unwrap() {}
    let target = Scripted::new(100);
    bench.publish_replays(&target, &[replay("1", 1, EVENTS.into())]);
    let running = bench.run();
    let start = bench.clock.now();
    for (round, jump) in (1..).zip(JUMPS) {
        let wanted = round * EVENTS as usize / 5;
        until("some of the events", || target.keys().len() >= wanted).await;
        bench.clock.set(jump(start));
    }
    until("all events", || target.keys().len() >= EVENTS as usize).await;
    running.stop().await;
    let wanted: Vec<String> = (0..EVENTS)
        .map(|n| format!("ev_audit{n}:esb_now"))
        .collect();
    assert_eq!(target.keys(), wanted);
}

/// Without its cursor, a replay that this node's table does not have yet would begin again.
#[tokio::test]
async fn a_clock_that_is_set_forward_makes_no_replay_old() {
    let bench = Bench::new().await;
    bench.tell(1).await;
    let id = Ksuid::new(bench.clock.now(), [7; 16]).to_string();
    let target = Scripted::new(500);
    bench.publish_replays(&target, &[replay(&id, 1, 1)]);
    let plane = bench.delivery.plane.clone();
    let mut replayer = Replayer::new(plane.clone());
    while replayer.pass().await.unwrap() == Duration::ZERO {}
    bench.publish_replays(&target, &[]);
    bench.clock.set(bench.clock.now().plus(DAY));
    Replayer::new(plane).pass().await.unwrap();
    assert_eq!(bench.queue.cursors("replay:").await.unwrap().len(), 1);
}
