//! Measures the nanoseconds to fill, filter and encode one `http_request_complete.v0` with all 34
//! fields.
//!
//! `cargo bench -p culvert-events --bench record`. For comparison, it also writes the same event
//! from a `serde_json::json!` value, with header maps that are already normalised. Each result is
//! the best of many short rounds.

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use culvert_base::{SeededEntropy, Timestamp};
use culvert_events::{
    Bool, Capture, Cookies, EventIds, Filter, HTTP_REQUEST_COMPLETE as HTTP, HeaderRules, Headers,
    Int32, Int64, Packer, Record, Selection, Slot, Text, Time, encode,
};
use serde_json::json;

const REUSED: Slot<Bool> = HTTP.slot("backend.connection_reused");
const AUTH_DECISION: Slot<Text> = HTTP.slot("basic_auth.decision");
const AUTH_USER: Slot<Text> = HTTP.slot("basic_auth.username");
const BREAKER: Slot<Text> = HTTP.slot("circuit_breaker.decision");
const ALGORITHM: Slot<Text> = HTTP.slot("compression.algorithm");
const SAVED: Slot<Int64> = HTTP.slot("compression.bytes_saved");
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
const IP_POLICY: Slot<Text> = HTTP.slot("ip_policy.decision");
const OAUTH_CLIENT: Slot<Text> = HTTP.slot("oauth.app_client_id");
const OAUTH: Slot<Text> = HTTP.slot("oauth.decision");
const OAUTH_ID: Slot<Text> = HTTP.slot("oauth.user.id");
const OAUTH_NAME: Slot<Text> = HTTP.slot("oauth.user.name");
const SUITE: Slot<Text> = HTTP.slot("tls.cipher_suite");
const SERIAL: Slot<Text> = HTTP.slot("tls.client_cert.serial_number");
const SUBJECT: Slot<Text> = HTTP.slot("tls.client_cert.subject.cn");
const TLS: Slot<Text> = HTTP.slot("tls.version");
const WEBHOOK: Slot<Text> = HTTP.slot("webhook_verification.decision");

const ACCOUNT: &str = "ac_2OtNvAlhso10Gx6s7eupzX3F98q";
const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

const REQUEST: &[(&str, &str)] = &[
    ("host", "app.example.test"),
    ("user-agent", BROWSER),
    (
        "accept",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    ),
    ("accept-language", "en-US,en;q=0.5"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("referer", "https://app.example.test/docs/"),
    ("connection", "keep-alive"),
    (
        "cookie",
        "session=0123456789abcdef0123456789abcdef; theme=dark",
    ),
    ("sec-fetch-dest", "document"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-site", "same-origin"),
    ("cache-control", "max-age=0"),
];

const RESPONSE: &[(&str, &str)] = &[
    ("content-type", "text/html; charset=UTF-8"),
    ("content-length", "4058"),
    ("date", "Fri, 20 Nov 2026 19:53:18 GMT"),
    ("cache-control", "public, max-age=3600"),
    ("etag", "\"5f3a-1b2c3d4e5f\""),
    ("last-modified", "Thu, 19 Nov 2026 08:00:00 GMT"),
    ("server", "nginx/1.28.0"),
    ("vary", "Accept-Encoding"),
];

fn main() {
    let account: Arc<str> = ACCOUNT.into();
    let rules = HeaderRules::default();
    let selection = Selection::usual(&HTTP);
    let filter = Filter::compile(&HTTP, "ev.conn.server_port == 443").expect("it is a condition");
    let capture = selection.capture().union(filter.capture());
    let mut ids = EventIds::new(Arc::new(SeededEntropy::new(1)));
    let mut out = Vec::with_capacity(16 << 10);
    let now = Timestamp::from_unix_millis(1_800_000_000_737);

    let mut record = Record::new(&HTTP, capture, account.clone());
    fill(&mut record, &rules, now);
    let whole = encode::Truncated::default();
    assert_eq!(
        encode::event(&record, &selection, &ids.next(now), &mut out),
        whole
    );
    print("bytes of the event", out.len() as f64);

    print(
        "fill, new record",
        best(|| {
            let mut record = Record::new(&HTTP, capture, account.clone());
            fill(&mut record, &rules, now);
            black_box(&record);
        }),
    );
    print(
        "fill, record reset",
        best(|| {
            record.reset(capture, account.clone());
            fill(&mut record, &rules, now);
            black_box(&record);
        }),
    );
    print(
        "  its headers alone",
        best(|| {
            record.reset(capture, account.clone());
            set_headers(&mut record, &rules);
            black_box(&record);
        }),
    );
    record.reset(capture, account.clone());
    fill(&mut record, &rules, now);
    print("fill, nothing captured", {
        let mut record = Record::new(&HTTP, Capture::NONE, account.clone());
        best(|| {
            fill(&mut record, &rules, now);
            black_box(&record);
        })
    });
    print(
        "filter",
        best(|| {
            black_box(
                filter
                    .matches(black_box(&record))
                    .expect("it is a comparison"),
            );
        }),
    );
    print(
        "id",
        best(|| {
            black_box(ids.next(now));
        }),
    );
    let id = ids.next(now);
    print(
        "encode, 34 fields",
        best(|| {
            out.clear();
            assert_eq!(
                encode::event(black_box(&record), &selection, &id, &mut out),
                whole
            );
        }),
    );
    let three = [
        "conn.client_ip",
        "http.request.url.path",
        "http.response.status_code",
    ];
    let three = Selection::parse(&HTTP, &three).expect("fields of the kind");
    print(
        "encode, 3 fields",
        best(|| {
            out.clear();
            assert_eq!(
                encode::event(black_box(&record), &three, &id, &mut out),
                whole
            );
        }),
    );
    print(
        "whole: fill + filter + id + encode",
        best(|| {
            let mut record = Record::new(&HTTP, capture, account.clone());
            fill(&mut record, &rules, now);
            if filter.matches(&record).expect("it is a comparison") {
                out.clear();
                assert_eq!(
                    encode::event(&record, &selection, &ids.next(now), &mut out),
                    whole
                );
            }
        }),
    );
    print("pack, with the drop of the record", {
        let (endpoint, none): (Arc<str>, Arc<str>) = ("ep_1".into(), "".into());
        const RECORDS: usize = 240;
        let records = || -> Vec<Record> {
            let record = |n: usize| {
                let mut record = Record::new(&HTTP, capture, account.clone());
                fill(&mut record, &rules, now);
                record.set(PATH, &format!("/items/{}", n * 37 % 1000));
                record.set(CLIENT_IP, &format!("203.0.113.{}", n * 7 % 64));
                record.set_endpoint(endpoint.clone());
                record
            };
            (0..RECORDS).map(record).collect()
        };
        let mut best = f64::MAX;
        for _ in 0..400 {
            let records = records();
            let start = Instant::now();
            let mut packer = Packer::default();
            for record in records {
                packer.push(id.as_bytes(), record, &none);
            }
            black_box(&packer);
            best = best.min(start.elapsed().as_nanos() as f64 / RECORDS as f64);
        }
        best
    });
    print(
        "floor: serde_json::json!, headers done",
        best(|| {
            out.clear();
            serde_json::to_writer(&mut out, &floor(&id, now)).expect("it is a value");
            black_box(&out);
        }),
    );
}

fn fill(record: &mut Record, rules: &HeaderRules, now: Timestamp) {
    record.set(REUSED, true);
    record.set(AUTH_DECISION, "allow");
    record.set(AUTH_USER, "someone");
    record.set(BREAKER, "allow");
    record.set(ALGORITHM, "gzip");
    record.set(SAVED, 9021);
    record.set(CLIENT_IP, black_box("2001:db8::7823"));
    record.set(SERVER_IP, "192.0.2.10");
    record.set(SERVER_NAME, black_box("app.example.test"));
    record.set(SERVER_PORT, black_box(443));
    record.set(START, now);
    record.set(REQUEST_LENGTH, 0);
    set_headers(record, rules);
    record.set(METHOD, "get");
    record.set(HOST, "app.example.test");
    record.set(PATH, black_box("/docs/obs/very/long/path"));
    record.set(QUERY, "page=2&size=50");
    record.set(
        RAW,
        "https://app.example.test/docs/obs/very/long/path?page=2&size=50",
    );
    record.set(SCHEME, "https");
    record.set(AGENT, BROWSER);
    record.set(RESPONSE_LENGTH, 4058);
    record.set(STATUS, 200);
    record.set(IP_POLICY, "allow");
    record.set(OAUTH_CLIENT, "client.apps.example.test");
    record.set(OAUTH, "allow");
    record.set(OAUTH_ID, "104829571048295710482");
    record.set(OAUTH_NAME, "Some One");
    record.set(SUITE, "TLS_AES_128_GCM_SHA256");
    record.set(SERIAL, "5f3a1b2c3d4e5f60718293a4b5c6d7e8");
    record.set(SUBJECT, "client.example.test");
    record.set(TLS, "1.3");
    record.set(WEBHOOK, "invalid");
    record.complete(now);
}

fn set_headers(record: &mut Record, rules: &HeaderRules) {
    record.set_headers(
        REQUEST_HEADERS,
        rules,
        Cookies::AsReceived,
        lines(black_box(REQUEST)),
    );
    record.set_headers(
        RESPONSE_HEADERS,
        rules,
        Cookies::AsReceived,
        lines(black_box(RESPONSE)),
    );
}

fn lines<'a>(lines: &'a [(&str, &str)]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    lines
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
}

fn floor(id: &str, now: Timestamp) -> serde_json::Value {
    let map = |lines: &[(&str, &str)]| {
        lines
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!([value])))
            .collect::<serde_json::Map<_, _>>()
    };
    json!({
        "event_id": id, "event_type": "http_request_complete.v0", "event_timestamp": now.to_millis_text(),
        "account_id": ACCOUNT, "principal": null, "object": {
            "backend": {"connection_reused": true},
            "basic_auth": {"decision": "allow", "username": "someone"},
            "circuit_breaker": {"decision": "allow"},
            "compression": {"algorithm": "gzip", "bytes_saved": 9021},
            "conn": {
                "client_ip": "2001:db8::7823", "server_ip": "192.0.2.10", "server_name": "app.example.test",
                "server_port": 443, "start_ts": now.to_nanos_text(),
            },
            "http": {
                "request": {
                    "body_length": 0, "headers": map(black_box(REQUEST)), "method": "get",
                    "url": {
                        "host": "app.example.test", "path": "/docs/obs/very/long/path",
                        "query": "page=2&size=50",
                        "raw": "https://app.example.test/docs/obs/very/long/path?page=2&size=50",
                        "scheme": "https",
                    },
                    "user_agent": BROWSER,
                },
                "response": {"body_length": 4058, "headers": map(black_box(RESPONSE)), "status_code": 200},
            },
            "ip_policy": {"decision": "allow"},
            "oauth": {
                "app_client_id": "client.apps.example.test", "decision": "allow",
                "user": {"id": "104829571048295710482", "name": "Some One"},
            },
            "tls": {
                "cipher_suite": "TLS_AES_128_GCM_SHA256",
                "client_cert": {
                    "serial_number": "5f3a1b2c3d4e5f60718293a4b5c6d7e8",
                    "subject": {"cn": "client.example.test"},
                },
                "version": "1.3",
            },
            "traffic_policy": {"logs": []},
            "webhook_verification": {"decision": "invalid"},
        },
    })
}

/// Nanoseconds of one run, the best of many short rounds.
fn best(mut run: impl FnMut()) -> f64 {
    const RUNS: u32 = 500;
    let mut best = f64::MAX;
    for _ in 0..400 {
        let start = Instant::now();
        for _ in 0..RUNS {
            run();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(RUNS));
    }
    best
}

fn print(what: &str, figure: f64) {
    writeln!(std::io::stdout(), "{what:40}{figure:9.0}").expect("standard output is open");
}
