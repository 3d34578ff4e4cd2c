//! Which events a destination gets, and with which fields.

use super::bench::{Bench, Scripted, record, source};
use culvert_events::{Capture, Filter, HTTP_REQUEST_COMPLETE, Selection, TCP_CONNECTION_CLOSED};
use culvert_testing::until;
use serde_json::{Value, json};

use crate::TailSpec;

#[tokio::test]
async fn each_subscription_gets_matching_events_with_its_fields() {
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
async fn a_failing_filter_is_counted_and_delivers_nothing() {
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
async fn batches_keep_event_order_and_their_limits() {
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
async fn only_fields_of_sources_and_open_tails_are_captured() {
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
async fn unselected_records_are_completed() {
    let bench = Bench::new().await;
    let running = bench.run();
    // Exactly the number of records that wakes the recorder.
    for n in 0..200 {
        bench.delivery.recorder().offer(record(&bench, n));
    }
    while bench.queue.cursor("done:culvert").await.unwrap() < 200 {
        tokio::task::yield_now().await;
    }
    running.stop().await;
}
