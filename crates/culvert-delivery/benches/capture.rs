//! Measures the cost of a captured request, from its record to the file and to the retained events.
//!
//! ```text
//! cargo bench -p culvert-delivery --bench capture -- EVENTS [file] [kept]
//! ```
//!
//! Fills that many records as the edge does, offers them, and waits until they are in a file (`file`) and retained
//! (`kept`); with neither, the records are only filled. It prints the CPU time of an event. To count instructions, run
//! it in callgrind with two numbers of events, and divide the difference.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]
#![allow(clippy::unwrap_used, reason = "a measurement may stop at any failure")]

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Clock, OsEntropy, SystemClock};
use culvert_delivery::{Delivery, Destination, Settings, Source, Subscription, TableChange};
use culvert_destinations::target::file;
use culvert_events::{
    Bool, Capture, Cookies, Filter, HTTP_REQUEST_COMPLETE as HTTP, HeaderRules, Headers, Int32,
    Int64, Record, Selection, Slot, Text, Time,
};
use culvert_store::{Queue, Store, StoreUrl, Texts};
use culvert_target::{DestinationIds, TargetSettings};
use serde_json::json;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const REUSED: Slot<Bool> = HTTP.slot("backend.connection_reused");
const CLIENT_IP: Slot<Text> = HTTP.slot("conn.client_ip");
const SERVER_IP: Slot<Text> = HTTP.slot("conn.server_ip");
const SERVER_NAME: Slot<Text> = HTTP.slot("conn.server_name");
const SERVER_PORT: Slot<Int32> = HTTP.slot("conn.server_port");
const START: Slot<Time> = HTTP.slot("conn.start_ts");
const REQUEST_LENGTH: Slot<Int64> = HTTP.slot("http.request.body_length");
const REQUEST_HEADERS: Slot<Headers> = HTTP.slot("http.request.headers");
const METHOD: Slot<Text> = HTTP.slot("http.request.method");
const HOST: Slot<Text> = HTTP.slot("http.request.url.host");
const PATH: Slot<Text> = HTTP.slot("http.request.url.path");
const QUERY: Slot<Text> = HTTP.slot("http.request.url.query");
const RAW: Slot<Text> = HTTP.slot("http.request.url.raw");
const SCHEME: Slot<Text> = HTTP.slot("http.request.url.scheme");
const AGENT: Slot<Text> = HTTP.slot("http.request.user_agent");
const RESPONSE_LENGTH: Slot<Int64> = HTTP.slot("http.response.body_length");
const RESPONSE_HEADERS: Slot<Headers> = HTTP.slot("http.response.headers");
const STATUS: Slot<Int32> = HTTP.slot("http.response.status_code");

const ACCOUNT: &str = "ac_2OtNvAlhso10Gx6s7eupzX3F98q";

/// The messages of `benches/instructions`.
const REQUEST: &[(&[u8], &[u8])] = &[
    (b"Host", b"bench.culvert.localhost"),
    (b"User-Agent", b"measure/1.0"),
    (b"Accept", b"*/*"),
    (b"Accept-Language", b"en"),
    (b"Accept-Encoding", b"gzip"),
    (b"Cookie", b"a=b"),
];
const RESPONSE: &[(&[u8], &[u8])] = &[
    (b"Server", b"origin"),
    (b"Date", b"Sun, 06 Nov 1994 08:49:37 GMT"),
    (b"Content-Type", b"text/plain"),
    (b"Content-Length", b"1024"),
    (b"Cache-Control", b"no-store"),
];

/// Maximum number of waiting events, so that none is dropped.
const WAITING_MAX: u64 = 2_000;
/// Records offered without a pause, about the number that arrives while the recorder works.
const TOGETHER: u64 = 128;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(events) = arguments.first().and_then(|count| count.parse().ok()) else {
        // Run without arguments, as by `cargo test --benches`.
        return;
    };
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let (is_filed, is_kept) = (has("file"), has("kept"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    match is_filed || is_kept {
        true => runtime.block_on(deliver(events, is_filed, is_kept)),
        false => fill_only(events),
    }
}

fn fill_only(events: u64) {
    let (account, endpoint): (Arc<str>, Arc<str>) = (ACCOUNT.into(), "ep_1".into());
    let rules = HeaderRules::default();
    let before = cpu();
    for n in 0..events {
        black_box(record(n, Capture::all(&HTTP), &rules, &account, &endpoint));
    }
    report(events, cpu() - before);
}

async fn deliver(events: u64, is_filed: bool, is_kept: bool) {
    let folder = tempfile::tempdir().unwrap();
    let delivery = plane(folder.path(), is_filed, is_kept).await;
    let cancel = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(delivery.clone().run(cancel.clone()));
    let (recorder, meters) = (delivery.recorder(), delivery.meters());
    let done = || match (is_filed, is_kept) {
        (true, true) => meters.delivered.get().min(meters.retained.get()),
        (true, false) => meters.delivered.get(),
        (false, _) => meters.retained.get(),
    };
    let (account, endpoint): (Arc<str>, Arc<str>) = (ACCOUNT.into(), "ep_1".into());
    let rules = HeaderRules::default();
    let capture = recorder.capture(&HTTP);
    let before = cpu();
    for n in 0..events {
        recorder.offer(record(n, capture, &rules, &account, &endpoint));
        if n % TOGETHER == 0 {
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        while n.saturating_sub(done()) > WAITING_MAX {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    while done() < events {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    report(events, cpu() - before);
    assert_eq!((meters.dropped.total(), meters.not_retained.get()), (0, 0));
    cancel.cancel();
    tasks.join_all().await;
}

fn report(events: u64, seconds: f64) {
    println!(
        "{}",
        json!({"events": events, "cpu_us_per_event": seconds * 1e6 / events as f64})
    );
}

async fn plane(folder: &Path, is_filed: bool, is_kept: bool) -> Arc<Delivery> {
    let url = StoreUrl::Sqlite(folder.join("state.db"));
    let clock = || Arc::new(SystemClock);
    let store = Store::open(&url, clock(), Texts::default()).await.unwrap();
    let queue = Queue::open(&url, clock()).await.unwrap();
    let mut settings = Settings {
        targets: TargetSettings {
            file_root: Some(folder.to_owned()),
            ..TargetSettings::default()
        },
        // In callgrind a batch takes long, but must not be written to the queue.
        direct_for: Duration::from_secs(600),
        ..Settings::default()
    };
    if is_kept {
        settings.traffic_retention = Duration::from_secs(24 * 3600);
    }
    let delivery = Delivery::new(settings, queue, store, clock(), Arc::new(OsEntropy));
    let context = delivery.targets();
    let config = json!({"path": "events.ndjson", "max_bytes": 1 << 30, "fsync": "batch"});
    let checked = (file::TYPE.check)(&config, context.settings(), &OsEntropy).unwrap();
    let ids = DestinationIds {
        destination: "ed_1",
        account: ACCOUNT,
    };
    let destination = Destination {
        id: "ed_1".to_owned(),
        account: ACCOUNT.to_owned(),
        revision: 1,
        target: (file::TYPE.open)(&checked.stored, context, ids).unwrap(),
    };
    let filter = Filter::compile(&HTTP, "ev.conn.server_port in [80, 443]").unwrap();
    let source = Source {
        subscription: "esb_1".to_owned(),
        account: ACCOUNT.into(),
        kind: &HTTP,
        selection: Selection::usual(&HTTP),
        filter: Some(Arc::new(filter)),
        destinations: vec!["ed_1".to_owned()],
    };
    let subscription = Subscription {
        barred: Default::default(),
        sources: match is_filed {
            true => vec![source.into()],
            false => Vec::new(),
        },
        is_entitled: false,
    };
    delivery.apply(TableChange {
        subscriptions: [("esb_1".to_owned(), Some(subscription))].into(),
        destinations: [("ed_1".to_owned(), Some(destination))].into(),
        ..TableChange::default()
    });
    delivery
}

fn record(
    n: u64,
    capture: Capture,
    rules: &HeaderRules,
    account: &Arc<str>,
    endpoint: &Arc<str>,
) -> Record {
    let now = SystemClock.now();
    let mut record = Record::new(&HTTP, capture, account.clone());
    record.begin(endpoint.clone(), now);
    let client = ["203.0.113.7", "203.0.113.8", "203.0.113.99"][(n % 3) as usize];
    let path = ["/some/path", "/some/other", "/third"][(n % 3) as usize];
    record.set(CLIENT_IP, client);
    record.set(SERVER_IP, "192.0.2.10");
    record.set(SERVER_NAME, "bench.culvert.localhost");
    record.set(SERVER_PORT, 80);
    record.set(START, now);
    record.set(METHOD, "get");
    record.set(SCHEME, "http");
    record.set(HOST, "bench.culvert.localhost");
    record.set(PATH, path);
    let query = rules.query("with=query");
    record.set(QUERY, &query);
    let raw = ["http", "://", "bench.culvert.localhost", path, "?", &query];
    record.set_parts(RAW, &raw);
    record.set_bytes(AGENT, b"measure/1.0");
    record.set_headers(
        REQUEST_HEADERS,
        rules,
        Cookies::AsReceived,
        REQUEST.iter().copied(),
    );
    record.set(REUSED, true);
    record.set(STATUS, 200);
    record.set_headers(
        RESPONSE_HEADERS,
        rules,
        Cookies::AsReceived,
        RESPONSE.iter().copied(),
    );
    record.set(REQUEST_LENGTH, 0);
    record.set(RESPONSE_LENGTH, 1024);
    record.complete(now);
    record
}

/// Processor seconds of this process.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = [11, 12]
        .map(|at| fields[at].parse::<u64>().unwrap())
        .iter()
        .sum();
    // The kernel's USER_HZ is 100 wherever culvert runs.
    ticks as f64 / 100.0
}
