//! The plane as a whole, on a real store and queue, with time that moves when told.

mod audit;
mod bench;
mod cluster;
mod crashes;
mod direct;
mod drained;
mod event_query;
mod gathered;
mod refused;
mod retained;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use culvert_base::{Clock, Timestamp};
use culvert_events::{Capture, Filter, HTTP_REQUEST_COMPLETE, Selection, TCP_CONNECTION_CLOSED};
use culvert_store::BatchClass;
use serde_json::{Value, json};

use crate::failure::{Failure, FailureClass};
use crate::fake::{Fake, Reply, until};
use crate::losses::{Losses, Lost};
use crate::target::verdict::{Outcome, Verdict};
use crate::worker::{Step, Worker};
use crate::{State, TAIL_LINES_MAX, TailSpec, Tailed};
use bench::{Bench, Scripted, failure, record, source};

#[tokio::test]
async fn each_subscription_receives_what_matches_with_its_fields() {
    let bench = Bench::new().await;
    let (all, web) = (Scripted::new(500), Scripted::new(500));
    let mut filtered = source("esb_web", &["ed_web"]);
    filtered.selection = Selection::parse(
        &HTTP_REQUEST_COMPLETE,
        &["conn.server_port", "http.request.method"],
    )
    .unwrap();
    filtered.filter = Some(
        Filter::compile(&HTTP_REQUEST_COMPLETE, "ev.conn.server_port == 443")
            .unwrap()
            .into(),
    );
    let mut foreign = source("esb_foreign", &["ed_all"]);
    foreign.account = "ac_other".into();
    bench.publish(
        vec![source("esb_all", &["ed_all"]), filtered, foreign],
        &[("ed_all", &all), ("ed_web", &web)],
    );
    let running = bench.run();
    let recorder = bench.delivery.recorder();
    for port in [443, 80, 443] {
        recorder.offer(record(&bench, port));
    }
    until("five deliveries", || bench.meters().delivered.get() == 5).await;

    let bodies: Vec<Value> = web
        .envelopes()
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(bodies.len(), 2);
    for body in &bodies {
        assert_eq!(
            body["object"],
            json!({"conn": {"server_port": 443}, "http": {"request": {"method": "get"}}})
        );
        assert_eq!(body["account_id"], "ac_1");
    }
    assert_eq!(
        web.keys()[0],
        format!("{}:esb_web", bodies[0]["event_id"].as_str().unwrap())
    );
    assert_eq!(all.envelopes().len(), 3);
    assert_eq!(bench.meters().filtered.get(), 1);
    assert_eq!(bench.meters().waiting(), 0);
    running.stop().await;
}

#[tokio::test]
async fn a_filter_that_fails_is_counted_and_nothing_is_delivered() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    let mut failing = source("esb_1", &["ed_1"]);
    failing.filter = Some(
        Filter::compile(
            &HTTP_REQUEST_COMPLETE,
            "1 / (ev.conn.server_port - 443) == 1",
        )
        .unwrap()
        .into(),
    );
    bench.publish(vec![failing], &[("ed_1", &target)]);
    let running = bench.run();
    let recorder = bench.delivery.recorder();
    recorder.offer(record(&bench, 443));
    recorder.offer(record(&bench, 444));
    until("one delivery", || bench.meters().delivered.get() == 1).await;
    assert_eq!(bench.meters().filter_errors.get(), 1);
    assert_eq!(bench.meters().filtered.get(), 1);
    assert_eq!(target.envelopes().len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_thousand_and_one_events_keep_their_order_and_their_caps() {
    let bench = Bench::new().await;
    let target = Scripted::new(100);
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let recorder = bench.delivery.recorder();
    for n in 0..1001 {
        recorder.offer(record(&bench, n));
    }
    let running = bench.run();
    until("all deliveries", || bench.meters().delivered.get() == 1001).await;
    let ports: Vec<i64> = target.ports();
    assert_eq!(ports, (0..1001).collect::<Vec<_>>());
    assert!(target.sizes().iter().all(|size| *size <= 100));
    assert!(target.sizes().len() <= 12, "{:?}", target.sizes());
    running.stop().await;
}

#[tokio::test]
async fn capture_follows_sources_and_open_tails() {
    let bench = Bench::new().await;
    let recorder = bench.delivery.recorder();
    let captured = |kind| recorder.capture(kind);
    assert!(captured(&HTTP_REQUEST_COMPLETE).is_none());

    let mut narrow = source("esb_1", &["ed_1"]);
    narrow.selection = Selection::parse(&HTTP_REQUEST_COMPLETE, &["http.request.method"]).unwrap();
    narrow.filter = Some(
        Filter::compile(&HTTP_REQUEST_COMPLETE, "ev.conn.server_port == 443")
            .unwrap()
            .into(),
    );
    let wanted = narrow
        .selection
        .capture()
        .union(narrow.filter.as_ref().unwrap().capture());
    let nowhere = source("esb_2", &["ed_unknown"]);
    bench.publish(vec![narrow, nowhere], &[("ed_1", &Scripted::new(1))]);
    assert_eq!(captured(&HTTP_REQUEST_COMPLETE), wanted);
    assert!(captured(&TCP_CONNECTION_CLOSED).is_none());

    let tail = bench
        .delivery
        .tail(TailSpec {
            account: "ac_1".into(),
            ..TailSpec::default()
        })
        .unwrap();
    assert_eq!(
        captured(&TCP_CONNECTION_CLOSED),
        Capture::all(&TCP_CONNECTION_CLOSED)
    );
    drop(tail);
    assert!(captured(&TCP_CONNECTION_CLOSED).is_none());
    assert_eq!(captured(&HTTP_REQUEST_COMPLETE), wanted);
}

#[tokio::test]
async fn a_failed_batch_waits_its_time_and_then_goes() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    target.script([
        Verdict::Failed(failure(FailureClass::Retryable, "503")),
        Verdict::Failed(Failure {
            after: Some(Duration::from_secs(120)),
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
        State::Retrying
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
        (State::Ok, 1, 3)
    );
    assert_eq!(health.last_error.unwrap().code, "429");
}

#[tokio::test]
async fn only_the_failed_events_of_a_batch_are_sent_again_and_one_is_dead_lettered() {
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
async fn one_bad_event_of_many_is_found_by_halving_and_the_others_are_delivered() {
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
async fn refused_credentials_make_it_unhealthy_and_an_edit_sends_at_once_what_waited() {
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
    // Let it wait a long time, then edit.
    worker.step().await.unwrap();
    assert_eq!(
        bench.delivery.health("ed_1").unwrap().state,
        State::Unhealthy
    );
    assert!(
        wrong.keys().iter().all(|key| key == "ev_1:esb_1"),
        "the second is held back"
    );

    let right = Scripted::new(500);
    bench.publish_revision(2, &[("ed_1", &right)]);
    while worker.step().await.unwrap() == Step::Moved {}
    assert_eq!(right.keys(), ["ev_1:esb_1", "ev_2:esb_1"]);
    assert_eq!(bench.delivery.health("ed_1").unwrap().state, State::Ok);
}

#[tokio::test]
async fn a_destination_that_is_gone_is_not_bothered_until_it_is_edited() {
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
async fn traffic_is_given_up_after_an_hour_and_audit_after_three_days() {
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
    // Audit went first as long as it could.
    assert_eq!(down.keys()[0], "ev_a:esb_1");
}

/// Steps until there is nothing to send; until when.
async fn idle(worker: &mut Worker) -> Timestamp {
    loop {
        if let Step::Idle(Some(at)) = worker.step().await.unwrap() {
            return at;
        }
    }
}

#[tokio::test]
async fn after_twenty_failures_one_probe_goes_per_step() {
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
    // Both classes are due again, and still one send per step of the clock.
    for _ in 0..5 {
        let at = idle(&mut worker).await;
        bench.clock.advance(at.since(bench.clock.now()));
        let before = down.keys().len();
        idle(&mut worker).await;
        assert!(down.keys().len() <= before + 1);
    }
    assert_eq!(
        bench.delivery.health("ed_1").unwrap().state,
        State::Unhealthy
    );
}

#[tokio::test]
async fn a_full_destination_drops_the_newest_and_traffic_is_never_slowed() {
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
        // The healthy one keeps up and gets everything, whatever the other does.
        let wanted = u64::try_from((round + 1) * 50).unwrap();
        until("the healthy destination", || {
            bench.health("ed_up").sent == wanted
        })
        .await;
    }
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(bench.health("ed_up").dropped, 0);
    // What is dropped is counted after what is sent.
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
async fn audit_events_that_wait_take_no_room_from_traffic_nor_traffic_from_them() {
    let bench = Bench::with(|settings| {
        settings.destination_events_max = 10;
        // So that traffic waits in the queue, too.
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
    // It is on its way into the queue.
    let began = std::time::Instant::now();
    loop {
        let backlog = bench.queue.backlog().await.unwrap();
        if (backlog[0].events, backlog[0].traffic_events) == (50, 10) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{backlog:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // More audit events come in beside the full traffic.
    bench.append("ed_1", BatchClass::Audit, &["ev_more"]).await;
    let backlog = bench.queue.backlog().await.unwrap();
    assert_eq!((backlog[0].events, backlog[0].traffic_events), (51, 10));
    running.abandon();
}

#[tokio::test]
async fn a_full_offer_queue_drops_the_newest_and_counts() {
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
async fn what_was_offered_before_the_stop_is_in_the_queue_after_it() {
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

    // The next life delivers them.
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
async fn what_a_crash_took_is_counted_by_the_next_life() {
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
    // Three wait for their flush while a count of all is written; then the process dies.
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

    // What was offered after the last commit is known from the file.
    let file = next.folder.path().join("offered");
    let (mut losses, _) = Losses::read(&next.queue, "culvert", Some(&file), None)
        .await
        .unwrap();
    losses.counts.write(&next.queue, 2, 2).await;
    losses.note.unwrap().write(7);
    loop {
        let read = Losses::read(&next.queue, "culvert", Some(&file), None).await;
        // Nobody waits for the file.
        if read.unwrap().1.counted == 5 {
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_a_power_cut_may_have_taken_besides_is_said_by_the_next_life() {
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
    // The process alone died: the file has all but nothing is missing.
    assert_eq!(read(Some(&file), "first").await.1, lost(4, 0));
    // The machine went down, and what the file says is known at least.
    assert_eq!(read(Some(&file), "second").await.1, lost(4, 14));
    // It went down with the file, or the database is used elsewhere.
    let empty = bench.folder.path().join("empty");
    for (file, boot) in [
        (Some(&*empty), "second"),
        (Some(&*empty), "first"),
        (None, "second"),
    ] {
        assert_eq!(read(file, boot).await.1, lost(2, 16), "{file:?} {boot}");
    }
    // It is said once: the life that says it counts from there.
    let (mut losses, _) = read(Some(&empty), "second").await;
    losses.counts.write(&bench.queue, 0, 0).await;
    assert_eq!(read(Some(&empty), "second").await.1.counted, 0);
    // After a clean stop nothing is missing, whatever became of machine and file.
    losses.counts.end(&bench.queue).await;
    assert_eq!(read(None, "third").await.1, Lost::default());
}

#[tokio::test]
async fn records_that_nobody_wants_are_done_with() {
    let bench = Bench::new().await;
    let running = bench.run();
    // As many as wake the recorder, and no more afterwards.
    for n in 0..200 {
        bench.delivery.recorder().offer(record(&bench, n));
    }
    while bench.queue.cursor("done:culvert").await.unwrap() < 200 {
        tokio::task::yield_now().await;
    }
    running.stop().await;
}

#[tokio::test]
async fn audit_events_are_copied_once_and_go_before_traffic() {
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
async fn a_deleted_destination_loses_its_queue_and_the_loss_is_counted() {
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
    // Left out of a table but stored: nothing is dropped.
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
async fn a_tail_sees_traffic_and_audit_of_its_account_as_it_asked() {
    let bench = Bench::new().await;
    let spec = |account: &str, kinds: &[&str], filter: &str, fields: &[&str]| TailSpec {
        owner: "usr_1".to_owned(),
        account: account.to_owned(),
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        filter: filter.to_owned(),
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
    };
    let running = bench.run();
    let mut all = bench.delivery.tail(spec("ac_1", &[], "", &[])).unwrap();
    let mut shaped = bench
        .delivery
        .tail(spec(
            "ac_1",
            &[],
            "ev.conn.server_port == 443",
            &["http.request.method"],
        ))
        .unwrap();
    let mut other = bench.delivery.tail(spec("ac_2", &[], "", &[])).unwrap();
    bench.delivery.recorder().offer(record(&bench, 80));
    bench.delivery.recorder().offer(record(&bench, 443));
    let Tailed::Event(first) = all.next().await else {
        panic!("lost")
    };
    assert!(first.contains(r#""server_port":80"#), "{first}");
    all.next().await;
    let Tailed::Event(line) = shaped.next().await else {
        panic!("lost")
    };
    assert!(
        line.ends_with(r#""object":{"http":{"request":{"method":"get"}}}}"#),
        "{line}"
    );
    bench.tell(7).await;
    let Tailed::Event(line) = all.next().await else {
        panic!("lost")
    };
    assert!(line.contains("ev_audit7"), "{line}");
    let nothing = tokio::time::timeout(Duration::from_millis(20), other.next()).await;
    assert!(nothing.is_err());

    for (wrong, code) in [
        (spec("ac_1", &[], "", &["nope"]), 5403),
        (spec("ac_1", &[], "ev.conn.nope == 1", &[]), 5405),
        (
            spec("ac_1", &["api_key_created.v0"], "", &["conn.client_ip"]),
            5401,
        ),
        (spec("ac_1", &["api_key_created.v0"], "true", &[]), 5402),
        (spec("ac_1", &[""], "", &[]), 238),
    ] {
        let refusal = bench.delivery.tail(wrong).unwrap_err();
        assert_eq!(refusal.code.unwrap().number(), code);
    }
    running.stop().await;
}

#[tokio::test]
async fn a_slow_reader_of_a_tail_is_told_what_it_missed() {
    let bench = Bench::new().await;
    let spec = TailSpec {
        account: "ac_1".into(),
        fields: vec!["conn.server_port".into()],
        ..TailSpec::default()
    };
    let mut tail = bench.delivery.tail(spec).unwrap();
    let n = i32::try_from(TAIL_LINES_MAX).unwrap() + 40;
    for port in 0..n {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    let running = bench.run();
    until("the loss", || bench.meters().tail_lost.get() == 40).await;
    for port in 0..TAIL_LINES_MAX {
        let Tailed::Event(line) = tail.next().await else {
            panic!("lost early")
        };
        assert!(
            line.contains(&format!(r#""server_port":{port}}}"#)),
            "{line}"
        );
    }
    assert_eq!(tail.next().await, Tailed::Lost(40));
    bench.delivery.recorder().offer(record(&bench, 1));
    assert!(matches!(tail.next().await, Tailed::Event(_)));
    running.stop().await;
}

#[tokio::test]
async fn tails_are_few() {
    let bench = Bench::with(|settings| settings.tails_max = 8).await;
    let open = |owner: &str| {
        bench.delivery.tail(TailSpec {
            account: "ac_1".into(),
            owner: owner.into(),
            ..TailSpec::default()
        })
    };
    let (first, _second) = (open("usr_1").unwrap(), open("usr_1").unwrap());
    let refused = open("usr_1").unwrap_err();
    assert!(refused.message.contains("of one owner"), "{refused}");
    // One owner leaves tails to others.
    let others = ["usr_2", "usr_3", "bot_4"].map(|owner| [open(owner), open(owner)]);
    assert!(others.iter().flatten().all(Result::is_ok));
    assert!(open("bot_5").is_err());
    drop(first);
    open("bot_5").unwrap();
}

#[tokio::test]
async fn a_test_event_says_what_became_of_it() {
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
async fn secrets_of_a_webhook_are_in_no_dead_letter_and_no_health() {
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
    bench.publish_type(&crate::target::webhook::TYPE, config);
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
async fn events_reach_a_file_whole() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let bench = Bench::with(|settings| settings.targets.file_root = Some(root)).await;
    bench.publish_type(&crate::target::file::TYPE, json!({"path": "events.ndjson"}));
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
async fn a_target_is_served_past_the_queue_until_it_fails() {
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
    // What comes later does not overtake it.
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
async fn a_send_that_outlives_its_lease_is_not_settled_by_its_first_holder() {
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

#[tokio::test]
async fn what_waits_is_known_whichever_node_put_it_there_or_took_it() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    let look = async || {
        let all_counters = &bench.delivery.plane.all_counters;
        let look = all_counters.look();
        all_counters.refresh(look, &bench.queue.backlog().await.unwrap());
        bench.delivery.waiting()
    };
    // Another node puts two batches there, and takes one of them.
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
