//! Pages of retained events.

use std::collections::BTreeSet;
use std::time::Duration;

use culvert_events::{HTTP_REQUEST_COMPLETE, LogFilter, Slot, Text, catalogue::Catalogue};
use culvert_store::Order;
use culvert_testing::until;
use serde_json::Value;

use super::bench::{Bench, record};
use crate::Settings;
use crate::retained_events::event_query::{EventQuery, LoggedEvent, page_within};
use crate::subscription::tests::whole::Table;

const PATH: Slot<Text> = HTTP_REQUEST_COMPLETE.slot("http.request.url.path");

fn keeps(settings: &mut Settings) {
    settings.traffic_retention = Duration::from_secs(24 * 60 * 60);
    settings.flush_after = Duration::from_millis(5);
    settings.keep_after = Duration::from_millis(5);
}

pub(super) fn query(order: Order, filter: Option<&str>) -> EventQuery {
    let catalogue = Catalogue::new(Vec::new());
    EventQuery {
        owner: "usr_1".to_owned(),
        account: "ac_1".to_owned(),
        kinds: None,
        filter: filter.map(|source| LogFilter::compile(&catalogue, source).unwrap()),
        since: None,
        until: None,
        object: None,
        actor: None,
        order,
        from: None,
        limit: 3,
        is_followed: false,
    }
}

/// Retains requests, of two endpoints in turn, in pieces of four, and commits audit events between them.
async fn fill(bench: &Bench) {
    bench.delivery.publish(Table::default());
    let running = bench.run();
    let mut n_kept = 0;
    for round in 0..5 {
        for port in 4 * round..4 * round + 4 {
            let mut record = record(bench, port);
            record.begin(format!("ep_{}", port % 2).into(), bench.started_at);
            bench.delivery.recorder().offer(record);
        }
        n_kept += 4;
        until("they are kept", || bench.meters().retained.get() == n_kept).await;
        let n = round.unsigned_abs();
        let reported = [
            ("ac_1", "vault_created.v0", n),
            ("ac_2", "vault_created.v0", 100 + n),
        ];
        bench.tell_all(reported).await;
    }
    running.stop().await;
}

/// All events of all pages, and the number of pages.
pub(super) async fn walk(
    bench: &Bench,
    mut query: EventQuery,
    work_max: u64,
) -> (Vec<LoggedEvent>, usize) {
    let (mut events, mut n_pages) = (Vec::new(), 0);
    loop {
        let page = page_within(&bench.delivery.plane, &query, work_max)
            .await
            .unwrap();
        assert!(page.events.len() <= query.limit);
        n_pages += 1;
        assert!(n_pages < 1000, "a page makes progress");
        events.extend(page.events);
        if page.is_end {
            return (events, n_pages);
        }
        query.from = Some(page.next.to_string().parse().unwrap());
    }
}

fn ids(events: &[LoggedEvent]) -> BTreeSet<String> {
    let ids: BTreeSet<String> = events.iter().map(|one| one.envelope.clone()).collect();
    assert_eq!(ids.len(), events.len(), "no event is repeated");
    ids
}

#[tokio::test]
async fn pages_are_complete_under_any_work_limit() {
    let bench = Bench::with(keeps).await;
    fill(&bench).await;
    let none = "ev.conn.server_port > 100000";
    let some = "ev.conn.server_port == 7 || ev.conn.server_port == 16";
    for order in [Order::NewestFirst, Order::OldestFirst] {
        for work_max in [1, 100_000, u64::MAX] {
            let (events, _) = walk(&bench, query(order, None), work_max).await;
            assert_eq!(ids(&events).len(), 25, "{order:?} {work_max}");
            assert_eq!(events.iter().filter(|one| one.audit.is_some()).count(), 5);
            let (events, _) = walk(&bench, query(order, Some(some)), work_max).await;
            assert_eq!(ids(&events).len(), 2);
            let (events, n_pages) = walk(&bench, query(order, Some(none)), work_max).await;
            assert!(events.is_empty());
            assert!(work_max == u64::MAX || n_pages >= 1);
        }
        // A search without results ends early, with a cursor to continue.
        let (_, n_pages) = walk(&bench, query(order, Some(none)), 1).await;
        assert!(n_pages > 2, "{n_pages}");
    }
}

#[tokio::test]
async fn traffic_is_found_by_endpoint() {
    let bench = Bench::with(keeps).await;
    fill(&bench).await;
    let wanted = EventQuery {
        object: Some("ep_1".to_owned()),
        ..query(Order::NewestFirst, None)
    };
    let (events, _) = walk(&bench, wanted, u64::MAX).await;
    assert_eq!(ids(&events).len(), 10);
    assert!(
        events
            .iter()
            .all(|one| one.endpoint.as_deref() == Some("ep_1"))
    );
    let absent = EventQuery {
        object: Some("ep_9".to_owned()),
        ..query(Order::NewestFirst, None)
    };
    assert!(walk(&bench, absent, u64::MAX).await.0.is_empty());
}

/// Retains pieces of requests that ended at these seconds.
async fn keep_at(bench: &Bench, pieces: &[&[u64]], path: &str) {
    bench.delivery.publish(Table::default());
    let running = bench.run();
    let mut n_kept = 0;
    for seconds in pieces {
        for (port, second) in (0..).zip(*seconds) {
            let mut record = record(bench, port);
            record.set(PATH, path);
            record.complete(bench.started_at.plus(Duration::from_secs(*second)));
            bench.delivery.recorder().offer(record);
        }
        n_kept += u64::try_from(seconds.len()).unwrap();
        until("they are kept", || bench.meters().retained.get() == n_kept).await;
    }
    running.stop().await;
}

#[tokio::test]
async fn pages_sort_traffic_by_time_and_streams_do_not() {
    let bench = Bench::with(keeps).await;
    keep_at(&bench, &[&[3, 4], &[1, 2]], "/").await;
    let times = |events: &[LoggedEvent]| -> Vec<String> {
        let of = |one: &LoggedEvent| serde_json::from_str::<Value>(&one.envelope).unwrap();
        let times = events
            .iter()
            .map(|one| of(one)["event_timestamp"].to_string());
        times.collect()
    };
    let page = async |order, is_followed| {
        let query = EventQuery {
            limit: 9,
            is_followed,
            ..query(order, None)
        };
        let page = page_within(&bench.delivery.plane, &query, u64::MAX).await;
        times(&page.unwrap().events)
    };
    let rising = page(Order::OldestFirst, false).await;
    assert!(rising.is_sorted() && rising.len() == 4, "{rising:?}");
    let mut falling = page(Order::NewestFirst, false).await;
    falling.reverse();
    assert_eq!(falling, rising);
    let followed = page(Order::OldestFirst, true).await;
    assert!(!followed.is_sorted(), "the order of the log: {followed:?}");
}

#[tokio::test]
async fn a_page_of_large_events_ends_early() {
    const EVENTS: usize = 30;
    let bench = Bench::with(keeps).await;
    keep_at(&bench, &[&[0; EVENTS]], &"x".repeat(60_000)).await;
    for order in [Order::NewestFirst, Order::OldestFirst] {
        let many = EventQuery {
            limit: 100,
            ..query(order, None)
        };
        let (events, n_pages) = walk(&bench, many, u64::MAX).await;
        assert_eq!(ids(&events).len(), EVENTS);
        let bytes: usize = events.iter().map(|one| one.envelope.len()).sum();
        assert!(
            n_pages >= bytes / (1 << 20),
            "{bytes} bytes in {n_pages} pages"
        );
        assert!(n_pages > 1, "{bytes}");
    }
}

/// An event that is expensive to examine does not prevent a page with the other events of its piece.
#[tokio::test]
async fn a_page_may_end_within_a_stored_piece() {
    let bench = Bench::with(keeps).await;
    keep_at(&bench, &[&[0; 400]], "/").await;
    let none = "ev.conn.server_port > 100000";
    for order in [Order::NewestFirst, Order::OldestFirst] {
        let (events, n_pages) = walk(&bench, query(order, Some(none)), 100_000).await;
        assert!(events.is_empty());
        assert!(n_pages > 5, "{n_pages}");
    }
}

/// As after a fail-over to a standby without the last events, or after a backup was restored.
#[tokio::test]
async fn a_cursor_behind_a_shortened_log_continues_at_its_end() {
    let bench = Bench::with(keeps).await;
    fill(&bench).await;
    let read = async |from: &str| {
        let query = EventQuery {
            from: Some(from.parse().unwrap()),
            limit: 100,
            is_followed: true,
            ..query(Order::OldestFirst, None)
        };
        let page = page_within(&bench.delivery.plane, &query, u64::MAX).await;
        page.unwrap()
    };
    let end = bench.delivery.events_end().await.unwrap().to_string();
    let end = read(&end).await.next.to_string();
    let mut cursors = Vec::new();
    for cursor in ["o1000-1000-0", "o9223372036854775807-9223372036854775807-7"] {
        let page = read(cursor).await;
        assert!(page.events.is_empty() && page.is_end);
        assert_eq!(page.next.to_string(), end, "{cursor}");
        cursors.push(page.next.to_string());
    }
    // A plane runs once, so another node writes on.
    let other = bench.beside(keeps).await;
    other.delivery.publish(Table::default());
    let running = other.run();
    other.delivery.recorder().offer(record(&other, 77));
    until("it is kept", || other.meters().retained.get() == 1).await;
    other.tell_all([("ac_1", "vault_created.v0", 7)]).await;
    running.stop().await;
    for cursor in &cursors {
        assert_eq!(ids(&read(cursor).await.events).len(), 2, "{cursor}");
    }
}
