//! Retained traffic, and replays of it.

use std::collections::HashSet;
use std::time::Duration;

use culvert_base::{Clock, Timestamp};
use culvert_events::{Filter, HTTP_REQUEST_COMPLETE as HTTP, Selection};
use culvert_store::{Bound, Range};
use culvert_testing::until;
use serde_json::{Value, json};

use super::bench::{Bench, Scripted, record, source};
use crate::dispatch::replay::TrafficRange;
use crate::plane::settings::Settings;
use crate::retained_events::retained;
use crate::retained_events::stored_piece::StoredEvent;
use crate::subscription::tests::whole::Table;
use crate::subscription::{Destination, Source};
use crate::{Replay, TailSpec, Tailed};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn keeps(settings: &mut Settings) {
    settings.traffic_retention = DAY;
    settings.flush_after = Duration::from_millis(5);
    settings.keep_after = Duration::from_millis(5);
}

/// A replay of a part of the traffic, and of no audit events.
fn replay(range: TrafficRange) -> Replay {
    Replay {
        id: "replay_1".to_owned(),
        destination: "ed_1".to_owned(),
        account: "ac_1".to_owned(),
        range: Range {
            first: 1,
            last: 0,
            since: None,
            until: None,
        },
        traffic: Some(range),
        kinds: vec![HTTP.name.to_owned()],
        subscriptions: Vec::new(),
    }
}

fn publish(bench: &Bench, sources: Vec<Source>, target: &std::sync::Arc<Scripted>, replay: Replay) {
    bench.delivery.publish(Table {
        sources: sources.into_iter().map(std::sync::Arc::new).collect(),
        destinations: vec![Destination {
            id: "ed_1".to_owned(),
            account: "ac_1".to_owned(),
            revision: 1,
            target: target.clone(),
        }],
        replays: vec![replay],
        ..Table::default()
    });
}

/// Offers requests on these ports, which are retained although no subscription matches.
async fn keep(bench: &Bench, ports: std::ops::Range<i32>) {
    let before = bench.meters().retained.get();
    let wanted = before + u64::try_from(ports.len()).unwrap();
    for port in ports {
        bench.delivery.recorder().offer(record(bench, port));
    }
    until("they are kept", || bench.meters().retained.get() == wanted).await;
}

async fn whole(bench: &Bench) -> TrafficRange {
    let from = Bound::At(bench.started_at);
    let range = bench.delivery.traffic_range(&from, None, "ac_1").await;
    range.unwrap().unwrap()
}

#[tokio::test]
async fn a_replay_applies_current_subscriptions_to_retained_traffic() {
    let bench = Bench::with(keeps).await;
    let running = bench.run();
    bench.delivery.publish(Table::default());
    keep(&bench, 0..10).await;
    running.stop().await;
    let (bench, started_at) = (bench.next_life_with(keeps).await, bench.started_at);
    bench.clock.advance(DAY);

    let target = Scripted::new(500);
    let mut even = source("esb_even", &["ed_1"]);
    even.selection = Selection::parse(&HTTP, &["conn.server_port"]).unwrap();
    even.filter = Some(
        Filter::compile(&HTTP, "ev.conn.server_port % 2 == 0")
            .unwrap()
            .into(),
    );
    let from = Bound::At(started_at);
    let range = bench.delivery.traffic_range(&from, None, "ac_1").await;
    publish(&bench, vec![even], &target, replay(range.unwrap().unwrap()));
    let running = bench.run();
    until("five deliveries", || bench.meters().delivered.get() == 5).await;
    assert_eq!(target.ports(), [0, 2, 4, 6, 8]);
    let event: Value = serde_json::from_str(&target.envelopes()[1]).unwrap();
    assert_eq!(event["object"], json!({"conn": {"server_port": 2}}));
    let key = format!("{}:esb_even", event["event_id"].as_str().unwrap());
    assert_eq!(target.keys()[1], key);
    assert_eq!(bench.meters().replayed.get(), 5);
    running.stop().await;
}

#[tokio::test]
async fn a_replay_between_event_ids_sends_full_events_without_a_subscription() {
    let bench = Bench::with(keeps).await;
    let (live, target) = (Scripted::new(500), Scripted::new(500));
    bench.publish(vec![source("esb_1", &["ed_0"])], &[("ed_0", &live)]);
    let running = bench.run();
    keep(&bench, 0..10).await;
    until("ten deliveries", || bench.meters().delivered.get() == 10).await;
    let keys = live.keys();
    let id = |n: usize| keys[n].split(':').next().unwrap().to_owned();
    let (from, to) = (Bound::Event(id(3)), Bound::Event(id(6)));
    let range = bench.delivery.traffic_range(&from, Some(&to), "ac_1").await;
    let foreign = bench.delivery.traffic_range(&from, None, "ac_2").await;
    assert_eq!(foreign.unwrap(), None);
    let found = bench.delivery.find_traffic(&id(3), "ac_1").await.unwrap();
    assert!(found.is_some());
    let replay = replay(range.unwrap().unwrap());
    publish(&bench, Vec::new(), &target, replay.clone());
    until("four deliveries", || bench.meters().delivered.get() == 14).await;
    // Kept events are whole, with the fields of our own that a subscription does not select by default.
    let as_selected = |text: &String| {
        let mut event: Value = serde_json::from_str(text).unwrap();
        let own = event["object"].as_object_mut().unwrap().remove("culvert");
        assert!(own.is_some());
        event
    };
    let sent: Vec<_> = target.envelopes().iter().map(as_selected).collect();
    let envelopes = live.envelopes();
    let of_live = envelopes[3..7]
        .iter()
        .map(|text| serde_json::from_str(text).unwrap());
    assert_eq!(sent, of_live.collect::<Vec<Value>>());
    assert_eq!(target.keys()[0], format!("{}:replay_1", id(3)));
    let range = replay.traffic.unwrap();
    let position = bench.delivery.replayed_traffic("replay_1", &range).await;
    assert_eq!(position.unwrap(), range.last);
    running.stop().await;
}

/// Several threads fill pieces concurrently, so an event can be in a later piece than a later event.
#[tokio::test]
async fn a_replay_between_event_ids_includes_pieces_that_overlap_in_time() {
    let bench = Bench::with(keeps).await;
    let (live, target) = (Scripted::new(500), Scripted::new(500));
    bench.publish(vec![source("esb_1", &["ed_0"])], &[("ed_0", &live)]);
    let running = bench.run();
    // Three pieces, each with every third moment. The port is the moment.
    for first in 0..3 {
        let moments = (first..12).step_by(3);
        let wanted = bench.meters().retained.get() + moments.clone().count() as u64;
        for moment in moments {
            let mut record = record(&bench, moment);
            let at = bench.started_at.unix_nanos() + i64::from(moment);
            record.complete(Timestamp::from_unix_nanos(at));
            bench.delivery.recorder().offer(record);
        }
        until("they are kept", || bench.meters().retained.get() == wanted).await;
    }
    until("all deliveries", || bench.meters().delivered.get() == 12).await;
    let ids: Vec<(i64, String)> = live
        .ports()
        .into_iter()
        .zip(
            live.keys()
                .iter()
                .map(|key| key.split(':').next().unwrap().to_owned()),
        )
        .collect();
    let id = |port: i64| ids.iter().find(|(at, _)| *at == port).unwrap().1.clone();
    let mut n_delivered = 12;
    // Both ends in one piece, in rising pieces, and in falling ones.
    for (from, to) in [(3, 9), (4, 8), (5, 10), (5, 6), (7, 7)] {
        let (first, last) = (Bound::Event(id(from)), Bound::Event(id(to)));
        let range = bench.delivery.traffic_range(&first, Some(&last), "ac_1");
        let replay = Replay {
            id: format!("replay_{}", n_delivered),
            ..replay(range.await.unwrap().unwrap())
        };
        let before = target.ports().len();
        publish(&bench, Vec::new(), &target, replay);
        let wanted: Vec<i64> = (from..=to).collect();
        n_delivered += wanted.len() as u64;
        until("the replay", || {
            bench.meters().delivered.get() == n_delivered
        })
        .await;
        let mut sent = target.ports().split_off(before);
        sent.sort_unstable();
        assert_eq!(sent, wanted, "{from} to {to}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_replay_between_events_of_one_moment_has_those_between_them_in_the_log() {
    let bench = Bench::with(keeps).await;
    let (live, target) = (Scripted::new(500), Scripted::new(500));
    bench.publish(vec![source("esb_1", &["ed_0"])], &[("ed_0", &live)]);
    let running = bench.run();
    // Two pieces, whose events all have one time. The port is the place in the log.
    for ports in [0..3, 3..6] {
        let wanted = bench.meters().retained.get() + 3;
        for port in ports {
            let mut record = record(&bench, port);
            record.complete(bench.started_at);
            bench.delivery.recorder().offer(record);
        }
        until("they are kept", || bench.meters().retained.get() == wanted).await;
    }
    until("all deliveries", || bench.meters().delivered.get() == 6).await;
    let (ports, keys) = (live.ports(), live.keys());
    let id = |port: i64| {
        let place = ports.iter().position(|other| *other == port).unwrap();
        keys[place].split(':').next().unwrap().to_owned()
    };
    let mut n_delivered = 6;
    for (from, to) in [(0, 5), (1, 4), (1, 1), (2, 3), (4, 5)] {
        let (first, last) = (Bound::Event(id(from)), Bound::Event(id(to)));
        let range = bench.delivery.traffic_range(&first, Some(&last), "ac_1");
        let replay = Replay {
            id: format!("replay_{n_delivered}"),
            ..replay(range.await.unwrap().unwrap())
        };
        let before = target.ports().len();
        publish(&bench, Vec::new(), &target, replay);
        let wanted: Vec<i64> = (from..=to).collect();
        n_delivered += wanted.len() as u64;
        until("the replay", || {
            bench.meters().delivered.get() >= n_delivered
        })
        .await;
        let mut sent = target.ports().split_off(before);
        sent.sort_unstable();
        assert_eq!(sent, wanted, "{from} to {to}");
    }
    running.stop().await;
}

#[tokio::test]
async fn retained_traffic_is_limited_by_age_and_size() {
    let bench = Bench::with(|settings| {
        keeps(settings);
        settings.traffic_retention_bytes = 10_000;
    })
    .await;
    bench.delivery.publish(Table::default());
    let running = bench.run();
    let plane = bench.delivery.plane.clone();
    for n in 0..30 {
        keep(&bench, n..n + 1).await;
    }
    let before = bench.queue.traffic().await.unwrap();
    assert!(before.bytes > 10_000, "{before:?}");
    assert!(retained::prune(&plane).await.unwrap() > 0);
    let after = bench.queue.traffic().await.unwrap();
    assert!(after.bytes <= 10_000 && after.bytes > 0, "{after:?}");
    assert_eq!(after.last, before.last, "the newest stay");
    let range = whole(&bench).await;
    assert_eq!((range.first, range.last), (after.first, after.last));

    bench.clock.advance(DAY + Duration::from_secs(1));
    keep(&bench, 40..41).await;
    retained::prune(&plane).await.unwrap();
    let kept = bench.queue.traffic().await.unwrap();
    assert_eq!(kept.first, kept.last, "the old are gone");
    let now = bench.clock.now();
    assert_eq!(
        bench.queue.traffic_since(now).await.unwrap(),
        Some(kept.last)
    );
    running.stop().await;

    // If retention is disabled, the pieces are removed.
    let next = bench.next_life().await;
    retained::prune(&next.delivery.plane).await.unwrap();
    assert_eq!(next.queue.traffic().await.unwrap().bytes, 0);
    assert!(next.delivery.recorder().capture(&HTTP).is_none());
}

#[tokio::test]
async fn delivery_continues_if_traffic_cannot_be_retained() {
    let bench = Bench::with(keeps).await;
    let target = Scripted::new(500);
    bench.publish(vec![source("esb_1", &["ed_1"])], &[("ed_1", &target)]);
    let running = bench.run();
    keep(&bench, 0..1).await;
    until("one delivery", || bench.meters().delivered.get() == 1).await;
    bench.queue.close().await;
    for round in 1..=10i32 {
        bench.delivery.recorder().offer(record(&bench, round));
        let wanted = u64::try_from(round + 1).unwrap();
        until("it is delivered", || {
            bench.meters().delivered.get() == wanted
        })
        .await;
    }
    running.stop().await;
    assert_eq!(
        (
            bench.meters().retained.get(),
            bench.meters().not_retained.get()
        ),
        (1, 10)
    );
}

/// All retained events, in the order of the log: id and nanoseconds.
async fn retained_events(bench: &Bench) -> Vec<(String, i64)> {
    let queue = &bench.queue;
    let last = queue.settled_traffic().await.unwrap().last;
    let pieces = queue.traffic_pieces(0, last, u32::MAX).await.unwrap();
    let mut events = Vec::new();
    for (_, piece) in pieces
        .into_iter()
        .map(|piece| retained::read(piece).unwrap())
    {
        let of_event = |event: StoredEvent<'_>| {
            let mut parsed = None;
            let record = event.record(&mut parsed).unwrap();
            (event.id().to_owned(), record.at().unix_nanos())
        };
        events.extend(piece.events().map(of_event));
    }
    events
}

#[tokio::test]
async fn a_record_is_handed_to_the_recorder_only_if_it_is_followed() {
    let bench = Bench::with(keeps).await;
    bench.delivery.publish(Table::default());
    let running = bench.run();
    keep(&bench, 0..3).await;
    let handed_over = || bench.delivery.plane.offers.accepted();
    assert_eq!(handed_over(), 0);
    let spec = TailSpec {
        account: "ac_1".to_owned(),
        ..TailSpec::default()
    };
    let mut tail = bench.delivery.tail(spec).unwrap();
    keep(&bench, 3..4).await;
    assert_eq!(handed_over(), 1);
    let Tailed::Event(line) = tail.next().await else {
        panic!("lost")
    };
    let event: Value = serde_json::from_str(&line).unwrap();
    let retained = retained_events(&bench).await;
    assert_eq!(retained.len(), 4);
    assert_eq!(event["event_id"], json!(retained[3].0), "one event, one id");
    drop(tail);
    keep(&bench, 4..6).await;
    assert_eq!(handed_over(), 1);
    running.stop().await;
}

#[tokio::test]
async fn threads_retain_side_by_side_and_a_piece_is_read_in_order() {
    const THREADS: i64 = 4;
    const EACH: i64 = 200;
    let bench = Bench::with(|settings| {
        keeps(settings);
        // All threads end before the first piece is closed and written.
        settings.flush_after = DAY;
    })
    .await;
    bench.delivery.publish(Table::default());
    let recorder = bench.delivery.recorder();
    let begin = bench.started_at.unix_nanos();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let records = (0..EACH).map(|n| {
                let mut record = record(&bench, 443);
                record.complete(Timestamp::from_unix_nanos(begin + n * THREADS + thread));
                record
            });
            let (records, recorder) = (records.collect::<Vec<_>>(), &recorder);
            scope.spawn(move || {
                records
                    .into_iter()
                    .for_each(|record| recorder.offer(record))
            });
        }
    });
    let running = bench.run();
    running.stop().await;
    assert_eq!(bench.meters().not_retained.get(), 0);
    let retained = retained_events(&bench).await;
    let times: Vec<i64> = retained.iter().map(|(_, at)| *at).collect();
    let wanted: Vec<i64> = (begin..begin + THREADS * EACH).collect();
    assert_eq!(times, wanted);
    let ids: HashSet<&String> = retained.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), retained.len());
}
