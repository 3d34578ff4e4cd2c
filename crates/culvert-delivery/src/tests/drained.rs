//! Backlogs: several batches leased and sent together.

use std::time::Duration;

use culvert_base::Clock;
use culvert_store::BatchClass;
use culvert_target::failure::FailureClass;
use culvert_target::{Outcome, Verdict};

use super::bench::{Bench, Scripted, failure};
use crate::worker::{Step, Worker};

const EVENTS: u32 = 6;

/// A destination with twenty batches of two events in line, `ev_0` to `ev_39`.
async fn backlog() -> (Bench, std::sync::Arc<Scripted>, Worker) {
    let bench = Bench::new().await;
    let target = Scripted::new(EVENTS);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    for n in 0..20 {
        let ids = [format!("ev_{}", 2 * n), format!("ev_{}", 2 * n + 1)];
        let ids = ids.each_ref().map(String::as_str);
        bench.append("ed_1", BatchClass::Traffic, &ids).await;
    }
    let worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    (bench, target, worker)
}

/// Steps until nothing waits.
async fn drain(bench: &Bench, worker: &mut Worker) {
    loop {
        match worker.step().await.unwrap() {
            Step::Idle(None) => return,
            Step::Idle(Some(at)) => bench.clock.advance(at.since(bench.clock.now())),
            _ => {}
        }
    }
}

fn keys(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    let key = |n| format!("ev_{n}:esb_1");
    numbers.into_iter().map(key).collect()
}

#[tokio::test]
async fn small_batches_are_merged_in_order() {
    let (bench, target, mut worker) = backlog().await;
    drain(&bench, &mut worker).await;
    assert_eq!(target.keys(), keys(0..40));
    assert_eq!(target.sizes(), [2, 6, 6, 6, 6, 6, 6, 2]);
    assert_eq!(bench.meters().delivered.get(), 40);
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
}

#[tokio::test]
async fn a_failure_repeats_exactly_the_merged_batches() {
    let (bench, target, mut worker) = backlog().await;
    target.script([
        Verdict::Delivered,
        Verdict::Delivered,
        Verdict::Failed(failure(FailureClass::Retryable, "503")),
    ]);
    drain(&bench, &mut worker).await;
    assert_eq!(target.taken(), keys(0..40));
    assert_eq!(target.keys().len(), 46);
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
}

#[tokio::test]
async fn one_refused_event_is_found_and_the_others_are_sent_once() {
    for class in [FailureClass::Permanent, FailureClass::Split] {
        let (bench, target, mut worker) = backlog().await;
        target.refuse("ev_13", failure(class, "400"));
        drain(&bench, &mut worker).await;
        assert_eq!(target.taken(), keys((0..40).filter(|n| *n != 13)));
        let dead = bench.queue.dead_letters("ed_1", None, 10).await.unwrap();
        assert_eq!((dead.len(), dead[0].count), (1, 1));
        assert_eq!(bench.queue.backlog().await.unwrap()[0].batches, 0);
    }
}

#[tokio::test]
async fn each_merged_batch_is_settled_by_its_own_events() {
    let (bench, target, mut worker) = backlog().await;
    let refused = || Outcome::Failed(failure(FailureClass::Permanent, "422"));
    target.script([
        Verdict::Delivered,
        // Of ev_2 to ev_7: one batch whole, one in part, one not tried.
        Verdict::Partial(vec![
            Outcome::Delivered,
            Outcome::Delivered,
            Outcome::Delivered,
            refused(),
            Outcome::NotTried,
            Outcome::NotTried,
        ]),
    ]);
    drain(&bench, &mut worker).await;
    let mut sent = target.keys()[8..].to_vec();
    sent.sort();
    let mut wanted = keys(6..40);
    wanted.sort();
    assert_eq!(sent, wanted, "nothing that was taken goes again");
    let meters = bench.meters();
    assert_eq!(
        (meters.delivered.get(), meters.dead_lettered.get()),
        (39, 1)
    );
    assert_eq!(bench.queue.backlog().await.unwrap()[0].batches, 0);
}

#[tokio::test]
async fn a_crash_repeats_the_batches_being_sent() {
    let (bench, target, mut worker) = backlog().await;
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    target.gate();
    {
        let mut step = Box::pin(worker.step());
        while target.sizes().len() == 1 {
            tokio::select! {
                biased;
                _ = &mut step => panic!("the target holds it"),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
    }
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    bench.queue.release_owner("culvert").await.unwrap();
    target.open_gate();
    drain(&bench, &mut worker).await;
    let sent = target.keys();
    assert_eq!(sent[..8], keys(0..8));
    assert_eq!(sent[8..], keys(2..40));
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
}

#[tokio::test]
async fn batches_whose_leases_were_kept_are_counted_though_others_were_lost() {
    let (bench, target, mut worker) = backlog().await;
    assert_eq!(worker.step().await.unwrap(), Step::Moved);
    target.gate();
    let plane = bench.delivery.plane.clone();
    let stolen = async {
        culvert_testing::until("a joined send", || target.sizes().len() == 2).await;
        bench.clock.advance(plane.settings.lease);
        let now = bench.clock.now();
        let lease = bench
            .queue
            .lease("ed_1", "another", plane.settings.lease, now);
        let lease = lease.await.unwrap().unwrap();
        target.open_gate();
        lease
    };
    let (step, lease) = tokio::join!(worker.step(), stolen);
    assert_eq!(step.unwrap(), Step::Moved);
    // One of the batches is settled by its new holder.
    assert_eq!(bench.meters().leases_lost.get(), 1);
    assert_eq!(bench.meters().delivered.get(), 38);
    bench.queue.ack(&lease).await.unwrap();
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
}
