//! Batches that go to their destination without lying in the queue first.

use std::collections::HashSet;
use std::time::Duration;

use super::bench::{Bench, Scripted, failure, record, source};
use crate::fake::until;
use crate::retry::FailureClass;
use crate::target::Verdict;

#[tokio::test]
async fn what_is_taken_at_once_is_never_queued() {
    let bench = Bench::new().await;
    let target = Scripted::new(2);
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    for port in 0..7 {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    until("seven deliveries", || bench.meters().delivered.get() == 7).await;
    assert_eq!(target.ports(), (0..7).collect::<Vec<i64>>());
    assert_eq!(bench.meters().queued.get(), 0);
    assert_eq!(bench.meters().waiting(), 0);
    assert_eq!(bench.health("ed_1").queued, 0);
    running.stop().await;
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
    let next = bench.next_life().await;
    let running = next.run();
    next.publish(Vec::new(), &[]);
    running.stop().await;
    assert_eq!(next.meters().lost.get(), 0, "a clean stop loses nothing");
}

#[tokio::test]
async fn what_is_not_taken_soon_is_queued_and_still_sent_once() {
    let bench = Bench::with(|settings| settings.direct_for = Duration::from_millis(30)).await;
    let target = Scripted::new(2);
    target.gate();
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    for port in 0..5 {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    until("all are queued", || bench.meters().queued.get() == 5).await;
    let backlog = bench.queue.backlog().await.unwrap();
    assert_eq!((backlog[0].batches, backlog[0].events), (3, 5));
    // What is being sent is held.
    let now = culvert_base::Clock::now(&*bench.clock);
    let leased = bench
        .queue
        .lease("ed_1", "another", Duration::from_secs(1), now);
    assert_eq!(leased.await.unwrap(), None);
    // What comes later waits behind it.
    bench.delivery.recorder().offer(record(&bench, 5));
    until("the later one too", || bench.meters().queued.get() == 6).await;
    target.open_gate();
    until("six deliveries", || bench.meters().delivered.get() == 6).await;
    assert_eq!(target.ports(), (0..6).collect::<Vec<i64>>());
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
    // And then the short way again.
    bench.delivery.recorder().offer(record(&bench, 6));
    until("a seventh", || bench.meters().delivered.get() == 7).await;
    assert_eq!(bench.meters().queued.get(), 6);
    running.stop().await;
}

#[tokio::test]
async fn what_fails_is_queued_with_what_is_behind_it() {
    let bench = Bench::new().await;
    let target = Scripted::new(2);
    target.script([Verdict::Failed(failure(FailureClass::Retryable, "503"))]);
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    for port in 0..5 {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    until("all are queued", || bench.meters().queued.get() == 5).await;
    until("all deliveries", || {
        bench.clock.advance(Duration::from_millis(100));
        bench.meters().delivered.get() == 5
    })
    .await;
    let distinct: HashSet<String> = target.taken().into_iter().collect();
    assert_eq!(distinct.len(), 5);
    assert_eq!(target.taken().len(), 5, "none is taken twice");
    assert_eq!(bench.meters().waiting(), 0);
    running.stop().await;
}

#[tokio::test]
async fn a_stop_leaves_nothing_behind_in_memory() {
    let bench = Bench::with(|settings| settings.direct_for = Duration::from_millis(30)).await;
    let target = Scripted::new(2);
    target.gate();
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    for port in 0..5 {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    until("a send began", || !target.sizes().is_empty()).await;
    tokio::join!(running.stop(), async {
        until("all are queued", || bench.meters().queued.get() == 5).await;
        target.open_gate();
    });
    assert_eq!(bench.meters().dropped.total(), 0);
    let next = bench.next_life().await;
    let backlog = next.queue.backlog().await.unwrap();
    let n_queued: u64 = backlog.iter().map(|waiting| waiting.events).sum();
    assert_eq!(bench.meters().delivered.get() + n_queued, 5);
    let running = next.run();
    next.publish(Vec::new(), &[]);
    running.stop().await;
    assert_eq!(next.meters().lost.get(), 0);
}
