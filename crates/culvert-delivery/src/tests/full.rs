//! Full queues: which events are dropped, and which a crash loses.

use std::path::Path;
use std::time::Duration;

use super::bench::{Bench, Scripted, failure, record, source};
use culvert_store::BatchClass;
use culvert_target::Verdict;
use culvert_target::failure::FailureClass;
use culvert_testing::until;

use crate::recorder::losses::{Losses, Lost};

#[tokio::test]
async fn a_full_queue_drops_the_newest_events_without_delaying_traffic() {
    let bench = Bench::with(|settings| {
        settings.destination_events_max = 100;
        settings.flush_after = Duration::from_millis(5);
    })
    .await;
    let (down, up) = (Scripted::new(500), Scripted::new(500));
    down.hang();
    bench.publish(
        vec![source("esb_1", &["ed_down"]), source("esb_2", &["ed_up"])],
        &[("ed_down", &down), ("ed_up", &up)],
    );
    let running = bench.run();
    let recorder = bench.delivery.recorder();
    let began = std::time::Instant::now();
    for round in 0..20i32 {
        for n in 0..50 {
            recorder.offer(record(&bench, round * 50 + n));
        }
        // The healthy destination keeps up and gets everything.
        let wanted = u64::try_from((round + 1) * 50).unwrap();
        until("the healthy destination", || {
            bench.health("ed_up").sent == wanted
        })
        .await;
    }
    assert!(began.elapsed() < culvert_testing::PATIENCE);
    assert_eq!(bench.health("ed_up").dropped, 0);
    // Dropped events are counted after those that are sent.
    until("all others are counted", || {
        bench.health("ed_down").dropped == 900
    })
    .await;
    assert_eq!(bench.health("ed_down").queued, 100);
    assert_eq!(up.ports(), (0..1000).collect::<Vec<_>>());
    let meters = bench.meters();
    assert_eq!(meters.waiting(), 100);
    assert_eq!(
        meters.offered.get(),
        meters.delivered.get() + meters.dropped.total() + 100
    );
    running.abandon();
}

#[tokio::test]
async fn queued_audit_and_traffic_events_have_separate_limits() {
    let bench = Bench::with(|settings| {
        settings.destination_events_max = 10;
        // Traffic is queued, too.
        settings.direct_for = Duration::ZERO;
    })
    .await;
    let down = Scripted::new(500);
    down.otherwise(Verdict::Failed(failure(FailureClass::Retryable, "503")));
    let ids: Vec<String> = (0..40).map(|n| format!("ev_audit{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    bench.append("ed_1", BatchClass::Audit, &ids).await;
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &down)]);
    let running = bench.run();
    until("the audit events are seen", || {
        bench.health("ed_1").queued == 40
    })
    .await;
    for n in 0..25 {
        bench.delivery.recorder().offer(record(&bench, n));
    }
    until("the traffic is counted", || {
        let health = bench.health("ed_1");
        health.queued == 50 && health.dropped == 15
    })
    .await;
    // It is being written to the queue.
    let began = std::time::Instant::now();
    loop {
        let backlog = bench.queue.backlog().await.unwrap();
        if (backlog[0].events, backlog[0].traffic_events) == (50, 10) {
            break;
        }
        assert!(began.elapsed() < culvert_testing::PATIENCE, "{backlog:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Further audit events are accepted while traffic is full.
    bench.append("ed_1", BatchClass::Audit, &["ev_more"]).await;
    let backlog = bench.queue.backlog().await.unwrap();
    assert_eq!((backlog[0].events, backlog[0].traffic_events), (51, 10));
    running.abandon();
}

#[tokio::test]
async fn a_full_recorder_queue_drops_and_counts_the_newest_records() {
    let bench = Bench::with(|settings| settings.offer_records_max = 10).await;
    let target = Scripted::new(500);
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let recorder = bench.delivery.recorder();
    for n in 0..25 {
        recorder.offer(record(&bench, n));
    }
    assert_eq!(bench.meters().dropped.total(), 15);
    let running = bench.run();
    until("ten deliveries", || bench.meters().delivered.get() == 10).await;
    assert_eq!(target.ports(), (0..10).collect::<Vec<_>>());
    assert_eq!(bench.meters().waiting(), 0);
    running.stop().await;
}

#[tokio::test]
async fn records_offered_before_a_stop_are_queued() {
    let bench = Bench::with(|settings| settings.flush_after = Duration::from_secs(3600)).await;
    let down = Scripted::new(500);
    down.otherwise(Verdict::Failed(failure(FailureClass::Retryable, "503")));
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &down)]);
    let running = bench.run();
    for n in 0..7 {
        bench.delivery.recorder().offer(record(&bench, n));
    }
    running.stop().await;
    let backlog = bench.queue.backlog().await.unwrap();
    assert_eq!((backlog.len(), backlog[0].events), (1, 7));

    // The next run delivers them.
    let next = bench.next_life().await;
    let up = Scripted::new(500);
    next.publish(Vec::new(), &[("ed_1", &up)]);
    next.clock.advance(Duration::from_secs(60));
    let running = next.run();
    until("seven deliveries", || next.meters().delivered.get() == 7).await;
    assert_eq!(next.meters().recovered.get(), 7);
    assert_eq!(next.meters().waiting(), 0);
    running.stop().await;
}

#[tokio::test]
async fn events_lost_in_a_crash_are_counted_after_the_restart() {
    let bench = Bench::with(|settings| {
        settings.flush_events = 4;
        settings.flush_after = Duration::from_secs(3600);
        settings.direct_for = Duration::ZERO;
    })
    .await;
    let target = Scripted::new(500);
    bench.destination("ed_1").await;
    target.hang();
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    for n in 0..4 {
        bench.delivery.recorder().offer(record(&bench, n));
    }
    until("a flush", || bench.meters().flushes.get() == 1).await;
    // Three records wait for their flush after the last count was written, when the process dies.
    for n in 4..7 {
        bench.delivery.recorder().offer(record(&bench, n));
    }
    running.abandon();
    let read = Losses::read(&bench.queue, "culvert", None, None).await;
    let (mut losses, lost) = read.unwrap();
    assert_eq!(lost.counted, 0);
    losses.counts.write(&bench.queue, 3, 0).await;

    let next = bench.next_life().await;
    let running = next.run();
    until("the count", || next.meters().lost.get() == 3).await;
    next.publish(
        vec![source("esb_1", &["ed_1"])],
        &[("ed_1", &Scripted::new(500))],
    );
    next.delivery.recorder().offer(record(&next, 9));
    until("all deliveries", || next.meters().delivered.get() == 5).await;
    running.stop().await;
    // A clean stop loses nothing.
    let read = Losses::read(&next.queue, "culvert", None, None).await;
    assert_eq!(read.unwrap().1, Lost::default());

    // The file has the records that were offered after the last commit.
    let file = next.folder.path().join("offered");
    let (mut losses, _) = Losses::read(&next.queue, "culvert", Some(&file), None)
        .await
        .unwrap();
    losses.counts.write(&next.queue, 2, 2).await;
    losses.note.unwrap().write(7);
    loop {
        let read = Losses::read(&next.queue, "culvert", Some(&file), None).await;
        // No task waits for the file.
        if read.unwrap().1.counted == 5 {
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn events_possibly_lost_in_a_power_cut_are_reported_after_the_restart() {
    let bench = Bench::new().await;
    let file = bench.folder.path().join("offered");
    let read = async |file: Option<&Path>, boot: &str| {
        Losses::read(&bench.queue, "culvert", file, Some(boot))
            .await
            .unwrap()
    };
    let (mut losses, lost) = read(Some(&file), "first").await;
    assert_eq!(lost, Lost::default());
    // At most five between two counts, which is less than eight.
    for (offered, done) in [(3, 3), (8, 6), (12, 10)] {
        losses.counts.write(&bench.queue, offered, done).await;
    }
    losses.note.unwrap().write(14);
    let noted = async || std::fs::read(&file).is_ok_and(|bytes| bytes.starts_with(&[14]));
    while !noted().await {
        tokio::task::yield_now().await;
    }
    let lost = |counted, maybe| Lost { counted, maybe };
    // Only the process died, so the file is complete and nothing else is missing.
    assert_eq!(read(Some(&file), "first").await.1, lost(4, 0));
    // The machine failed, so the file has a lower bound.
    assert_eq!(read(Some(&file), "second").await.1, lost(4, 14));
    // The file was lost, or the database is used on another machine.
    let empty = bench.folder.path().join("empty");
    for (file, boot) in [
        (Some(&*empty), "second"),
        (Some(&*empty), "first"),
        (None, "second"),
    ] {
        assert_eq!(read(file, boot).await.1, lost(2, 16), "{file:?} {boot}");
    }
    // The loss is reported once: the run that reports it counts from there.
    let (mut losses, _) = read(Some(&empty), "second").await;
    losses.counts.write(&bench.queue, 0, 0).await;
    assert_eq!(read(Some(&empty), "second").await.1.counted, 0);
    // After a clean stop, no loss is reported, even after a reboot or with an unreadable file.
    losses.counts.end(&bench.queue).await;
    assert_eq!(read(None, "third").await.1, Lost::default());
}
