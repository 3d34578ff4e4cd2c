//! Searches of traffic by the summaries of its pieces.

use std::time::Duration;

use culvert_events::{
    Capture, EventIds, HTTP_REQUEST_COMPLETE as HTTP, Int32, Int64, LogFilter, Logged, Record,
    Slot, TCP_CONNECTION_CLOSED as TCP, Text, catalogue::Catalogue,
};
use culvert_store::{NewPiece, Order};
use tokio::time::Instant;

use super::bench::Bench;
use super::event_query::{query, walk};
use crate::retained_events::event_query::{EventQuery, page_within};
use crate::retained_events::retained_pieces::{OpenPiece, PieceQueue};

const STATUS: Slot<Int32> = HTTP.slot("http.response.status_code");
const METHOD: Slot<Text> = HTTP.slot("http.request.method");
const HOST: Slot<Text> = HTTP.slot("http.request.url.host");
const PATH: Slot<Text> = HTTP.slot("http.request.url.path");
const RAW: Slot<Text> = HTTP.slot("http.request.url.raw");
const CLIENT: Slot<Text> = HTTP.slot("conn.client_ip");
const DURATION: Slot<Int64> = HTTP.slot("culvert.duration_ms");
const TCP_NAME: Slot<Text> = TCP.slot("conn.server_name");

/// A request whose values follow from its number. One of 5,000 fails.
fn request(bench: &Bench, n: u64) -> Record {
    let mut record = Record::new(&HTTP, Capture::all(&HTTP), "ac_1".into());
    let host = ["shop.example.com", "api.example.com", "blog.example.org"][(n / 7 % 3) as usize];
    let path = format!(
        "/{}/{n}",
        ["checkout", "orders", "img"][(n / 11 % 3) as usize]
    );
    record.set(
        STATUS,
        if n % 5_000 == 4_321 {
            502
        } else {
            200 + i32::from(n.is_multiple_of(9)) * 104
        },
    );
    record.set(METHOD, ["get", "post"][usize::from(n.is_multiple_of(13))]);
    record.set(HOST, host);
    record.set(PATH, &path);
    record.set(RAW, &format!("https://{host}{path}"));
    record.set(CLIENT, &format!("203.0.113.{}", n % 50));
    record.set(
        DURATION,
        i64::try_from(n % 97).unwrap() + 3_000 * i64::from(n % 4_000 == 99),
    );
    record.begin(format!("ep_{}", n % 3).into(), bench.started_at);
    record.complete(bench.started_at.plus(Duration::from_millis(n)));
    record
}

fn connection(bench: &Bench, n: u64) -> Record {
    let mut record = Record::new(&TCP, Capture::all(&TCP), "ac_2".into());
    record.set(TCP_NAME, "db.example.com");
    record.complete(bench.started_at.plus(Duration::from_millis(n)));
    record
}

/// The piece of these events.
fn piece(bench: &Bench, ids: &mut EventIds, records: impl IntoIterator<Item = Record>) -> NewPiece {
    let pieces = PieceQueue::default();
    let mut open = OpenPiece::new(bench.started_at);
    for record in records {
        let id = ids.next(record.at());
        open.push(&id, record);
    }
    pieces.put(bench.meters(), open);
    pieces.take().0.pop().unwrap()
}

fn ids() -> EventIds {
    EventIds::new(std::sync::Arc::new(culvert_base::SeededEntropy::new(7)))
}

/// Writes `n_pieces` of `n_events` each, of which every fifth has no summary, as of a node of an older version.
async fn fill(bench: &Bench, n_pieces: u64, n_events: u64, has_old: bool) -> (u64, u64) {
    let (mut ids, mut pieces, mut summaries, mut bytes) = (ids(), Vec::new(), 0, 0);
    for n in 0..n_pieces {
        let first = n * n_events;
        let requests = (first..first + n_events).map(|n| request(bench, n));
        let others = (n % 4 == 1).then(|| connection(bench, first));
        let mut piece = piece(bench, &mut ids, requests.chain(others));
        if has_old && n % 5 == 2 {
            piece.summary.clear();
        }
        summaries += piece.summary.len() as u64;
        bytes += piece.body.len() as u64;
        pieces.push(piece);
        if pieces.len() == 64 {
            bench
                .queue
                .keep_traffic(std::mem::take(&mut pieces))
                .await
                .unwrap();
        }
    }
    bench.queue.keep_traffic(pieces).await.unwrap();
    (summaries, bytes)
}

fn retains(settings: &mut crate::Settings) {
    settings.traffic_retention = Duration::from_secs(24 * 60 * 60);
}

#[tokio::test]
async fn a_search_by_summaries_finds_what_a_scan_finds() {
    let bench = Bench::with(retains).await;
    fill(&bench, 60, 100, true).await;
    let all = EventQuery {
        limit: 100,
        ..query(Order::OldestFirst, None)
    };
    let (all, _) = walk(&bench, all, u64::MAX).await;
    assert_eq!(all.len(), 6_000);
    let catalogue = Catalogue::new(Vec::new());
    for source in [
        "ev.http.response.status_code == 502",
        "ev.http.response.status_code >= 500 || ev.culvert.duration_ms > 2000",
        "ev.http.request.method == \"post\" && ev.http.request.url.path.startsWith(\"/checkout\")",
        "ev.http.request.url.host.endsWith(\".example.org\") && !(ev.http.response.status_code == 200)",
        "ev.http.request.url.raw.matches(\"(?i)/ORDERS/59\")",
        "ev.conn.client_ip.startsWith(\"203.0.113.4\") && ev.http.response.status_code == 304",
        "event_type == \"tcp_connection_closed.v0\"",
        "account_id == \"ac_2\"",
        "endpoint_id == \"ep_2\" && ev.http.response.status_code == 502",
        "ev.http.response.status_code == 503",
    ] {
        let filter = LogFilter::compile(&catalogue, source).unwrap();
        let matches =
            |envelope: &str, endpoint: &str| filter.matches(Logged { envelope, endpoint }).0;
        let scanned: Vec<&str> = all
            .iter()
            .filter(|one| matches(&one.envelope, one.endpoint.as_deref().unwrap_or_default()))
            .map(|one| one.envelope.as_str())
            .collect();
        for order in [Order::OldestFirst, Order::NewestFirst] {
            for work_max in [200_000, u64::MAX] {
                let asked = EventQuery {
                    limit: 50,
                    ..query(order, Some(source))
                };
                let (found, _) = walk(&bench, asked, work_max).await;
                let mut found: Vec<&str> = found.iter().map(|one| one.envelope.as_str()).collect();
                if order == Order::NewestFirst {
                    found.reverse();
                }
                let (mut found, mut scanned) = (found, scanned.clone());
                found.sort_unstable();
                scanned.sort_unstable();
                assert_eq!(found, scanned, "{source} {order:?} {work_max}");
            }
        }
    }
}

#[tokio::test]
async fn a_page_says_how_far_the_search_came() {
    let bench = Bench::with(retains).await;
    fill(&bench, 40, 50, false).await;
    for order in [Order::NewestFirst, Order::OldestFirst] {
        let mut asked = query(
            order,
            Some("ev.http.request.url.raw.contains(\"/nowhere\")"),
        );
        let (mut share, mut n_pages, mut to) = (0.0, 0, None);
        loop {
            let page = page_within(&bench.delivery.plane, &asked, 1).await.unwrap();
            assert!(
                page.searched.share >= share,
                "{:?} after {share}",
                page.searched
            );
            share = page.searched.share;
            n_pages += 1;
            if page.is_end {
                break;
            }
            assert!(share < 1.0, "{:?}", page.searched);
            let reached = page.searched.to.unwrap();
            let is_further = match order {
                Order::NewestFirst => to.is_none_or(|to| reached <= to),
                Order::OldestFirst => to.is_none_or(|to| reached >= to),
            };
            assert!(is_further, "{reached} after {to:?}");
            to = Some(reached);
            asked.from = Some(page.next);
        }
        assert_eq!(share, 1.0);
        assert!(n_pages > 40, "{n_pages}");
    }
}

/// Times a search for few errors, as pages of the usual cost, and shows the bytes of summaries.
async fn measure(name: &str, n_pieces: u64, n_events: u64) {
    let bench = Bench::with(retains).await;
    let (summaries, bodies) = fill(&bench, n_pieces, n_events, false).await;
    let n_all = n_pieces * n_events;
    eprintln!(
        "{name}: {n_all} events; bytes an event: {:.2} of summaries, {:.1} of pieces",
        summaries as f64 / n_all as f64,
        bodies as f64 / n_all as f64
    );
    for source in [
        "ev.http.response.status_code == 502",
        "ev.http.response.status_code == 503",
        "ev.http.request.url.raw.contains(\"/nowhere\")",
    ] {
        let (mut n_pages, mut n_found, begun) = (0, 0, Instant::now());
        let mut asked = EventQuery {
            limit: 100,
            ..query(Order::NewestFirst, Some(source))
        };
        loop {
            let page = bench.delivery.events(&asked).await.unwrap();
            (n_pages, n_found) = (n_pages + 1, n_found + page.events.len());
            if page.is_end {
                break;
            }
            asked.from = Some(page.next);
        }
        eprintln!(
            "{name}: {source}: {n_found} found in {:?}, {n_pages} pages",
            begun.elapsed()
        );
    }
}

#[tokio::test]
#[ignore = "a measurement"]
async fn few_errors_are_found_among_many_events() {
    measure("full pieces", 320, 2_048).await;
    measure("a piece a second", 8_640, 20).await;
}
