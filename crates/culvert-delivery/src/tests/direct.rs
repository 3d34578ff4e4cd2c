//! Batches that are sent without being written to the queue first.

use std::collections::HashSet;
use std::time::Duration;

use culvert_store::BatchClass;
use culvert_target::Verdict;
use culvert_target::failure::FailureClass;
use culvert_testing::until;

use super::bench::{Bench, Scripted, failure, record, source};

#[tokio::test]
async fn immediately_delivered_events_are_never_queued() {
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
async fn slow_deliveries_are_queued_and_sent_once() {
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
    // A batch that is being sent has a lease.
    let now = culvert_base::Clock::now(&*bench.clock);
    let leased = bench
        .queue
        .lease("ed_1", "another", Duration::from_secs(1), now);
    assert_eq!(leased.await.unwrap(), None);
    // Later batches wait behind it.
    bench.delivery.recorder().offer(record(&bench, 5));
    until("the later one too", || bench.meters().queued.get() == 6).await;
    target.open_gate();
    until("six deliveries", || bench.meters().delivered.get() == 6).await;
    assert_eq!(target.ports(), (0..6).collect::<Vec<i64>>());
    assert_eq!(bench.queue.backlog().await.unwrap(), []);
    // Later batches are sent from memory again.
    bench.delivery.recorder().offer(record(&bench, 6));
    until("a seventh", || bench.meters().delivered.get() == 7).await;
    assert_eq!(bench.meters().queued.get(), 6);
    running.stop().await;
}

#[tokio::test]
async fn events_that_arrive_while_the_queue_drains_are_not_queued() {
    let bench = Bench::with(|settings| settings.direct_for = Duration::from_secs(600)).await;
    let target = Scripted::new(2);
    target.gate();
    let before = ["ev_0", "ev_1"];
    bench.append("ed_1", BatchClass::Traffic, &before).await;
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    until("the queued batch is being sent", || target.sizes() == [2]).await;
    for port in 0..5 {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    until("five more wait", || bench.health("ed_1").queued == 7).await;
    target.open_gate();
    until("all are taken", || target.taken().len() == 7).await;
    let of_queue = before.map(|id| format!("{id}:esb_1"));
    assert_eq!(target.taken()[..2], of_queue, "nothing overtakes it");
    assert_eq!(bench.meters().queued.get(), 0);
    running.stop().await;
}

#[tokio::test]
async fn failed_batches_are_queued_with_later_ones() {
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
async fn a_stop_spills_all_batches_from_memory() {
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

#[tokio::test]
async fn a_healthy_destination_is_independent_of_other_queues() {
    // The buffer of the other destination is limited by a number of events, or by its share of the memory.
    for (events_max, held_bytes_max) in [(100, u64::MAX), (10_000, 128 << 10)] {
        let bench = Bench::with(|settings| {
            settings.destination_events_max = events_max;
            settings.held_bytes_max = held_bytes_max;
            settings.flush_after = Duration::from_millis(5);
        })
        .await;
        let (up, down) = (Scripted::new(500), Scripted::new(500));
        down.otherwise(Verdict::Failed(failure(FailureClass::Retryable, "503")));
        bench.publish(
            vec![source("esb_1", &["ed_up"]), source("esb_2", &["ed_down"])],
            &[("ed_up", &up), ("ed_down", &down)],
        );
        let running = bench.run();
        bench.delivery.recorder().offer(record(&bench, 0));
        until("one is queued", || bench.meters().queued.get() == 1).await;
        until("one is taken", || bench.health("ed_up").sent == 1).await;

        // From here on, the queue can be neither read nor written.
        bench.queue.close().await;
        for round in 1..=20i32 {
            for n in 0..20 {
                let port = (round - 1) * 20 + n + 1;
                bench.delivery.recorder().offer(record(&bench, port));
            }
            let wanted = u64::try_from(round * 20 + 1).unwrap();
            until("the healthy one is served", || {
                bench.health("ed_up").sent == wanted
            })
            .await;
        }
        assert_eq!(up.ports(), (0..=400).collect::<Vec<i64>>());
        assert_eq!(bench.health("ed_up").dropped, 0);
        let down = || bench.health("ed_down");
        until("the others are counted", || {
            down().queued + down().dropped == 401
        })
        .await;
        let dropped = bench.meters().dropped.each();
        let dropped: Vec<_> = dropped.filter(|(_, n)| *n > 0).collect();
        assert_eq!(dropped, [("queue_full", down().dropped)]);
        let n_held = down().queued;
        match held_bytes_max {
            u64::MAX => assert_eq!(n_held, 100),
            _ => assert!((1..401).contains(&n_held), "{n_held}"),
        }
        running.abandon();
    }
}
