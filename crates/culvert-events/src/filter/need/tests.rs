//! No event that a filter selects is missed by its need, whatever the events and the filter.

use std::sync::Arc;

use culvert_base::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use crate::catalogue::{AuditKind, Catalogue};
use crate::record::summary::{PieceSummary, Summary};
use crate::{
    Capture, HTTP_REQUEST_COMPLETE as HTTP, Int32, Int64, LogFilter, Logged, Packer, Record,
    Selection, Slot, TCP_CONNECTION_CLOSED as TCP, Text, encode,
};

const STATUS: Slot<Int32> = HTTP.slot("http.response.status_code");
const METHOD: Slot<Text> = HTTP.slot("http.request.method");
const HOST: Slot<Text> = HTTP.slot("http.request.url.host");
const PATH: Slot<Text> = HTTP.slot("http.request.url.path");
const RAW: Slot<Text> = HTTP.slot("http.request.url.raw");
const AGENT: Slot<Text> = HTTP.slot("http.request.user_agent");
const CLIENT: Slot<Text> = HTTP.slot("conn.client_ip");
const NAME: Slot<Text> = HTTP.slot("conn.server_name");
const REASON: Slot<Text> = HTTP.slot("culvert.reason");
const DURATION: Slot<Int64> = HTTP.slot("culvert.duration_ms");
const TCP_CLIENT: Slot<Text> = TCP.slot("conn.client_ip");
const TCP_NAME: Slot<Text> = TCP.slot("conn.server_name");
const TCP_DURATION: Slot<Int64> = TCP.slot("culvert.duration_ms");

fn catalogue() -> Catalogue {
    Catalogue::new(vec![AuditKind {
        name: "vault_created.v0".to_owned(),
        doc: String::new(),
        schema: json!({"properties": {"id": {}, "name": {}, "conn": {}}}),
    }])
}

const TEXTS: [&str; 14] = [
    "",
    "get",
    "a.example.com",
    "b.example.com",
    "example.com",
    "/",
    "/api",
    "/api/v1/orders/17",
    "/api/v1/users",
    "10.1.2.3",
    "10.1.7.9",
    "2001:db8::7",
    "malformed",
    "Éa",
];
const NUMBERS: [i64; 7] = [0, 101, 200, 204, 500, 502, 70_000];

/// What an event has: an index for each field, of which some are null or unset.
type Sample = (bool, [u8; 10]);

fn record((is_http, picks): &Sample, account: &Arc<str>, endpoint: Option<&Arc<str>>) -> Record {
    let kind = if *is_http { &HTTP } else { &TCP };
    let mut record = Record::new(kind, Capture::all(kind), Arc::clone(account));
    let mut texts = picks.iter().map(|pick| TEXTS.get(usize::from(*pick)));
    let numbers: Vec<_> = picks
        .iter()
        .map(|pick| NUMBERS.get(usize::from(*pick)))
        .collect();
    if *is_http {
        for slot in [METHOD, HOST, PATH, RAW, CLIENT, NAME, REASON] {
            if let Some(text) = texts.next().flatten() {
                record.set(slot, text);
            }
        }
        match texts.next().flatten() {
            Some(text) => record.set(AGENT, text),
            None => record.set_null(AGENT),
        }
        match numbers[8] {
            Some(code) => record.set(STATUS, i32::try_from(*code).unwrap()),
            None => record.set_null(STATUS),
        }
        if let Some(ms) = numbers[9] {
            record.set(DURATION, *ms);
        }
    } else {
        for slot in [TCP_CLIENT, TCP_NAME] {
            if let Some(text) = texts.next().flatten() {
                record.set(slot, text);
            }
        }
        if let Some(ms) = numbers[9] {
            record.set(TCP_DURATION, *ms);
        }
    }
    if let Some(endpoint) = endpoint {
        record.set_endpoint(Arc::clone(endpoint));
    }
    record.complete(Timestamp::from_unix_seconds(1_800_000_000));
    record
}

fn literal() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(&TEXTS[..]).prop_map(|text| format!("{text:?}")),
        prop::sample::select(&NUMBERS[..]).prop_map(|number| number.to_string()),
        prop::sample::select(vec![
            "null",
            "true",
            "502.0",
            "\".example.com\"",
            "\"10.1.\"",
            "\"/api/v1/\"",
            "\"EXAMPLE\"",
            "\"http_request_complete.v0\"",
            "\"tcp_connection_closed.v0\"",
            "\"ac_1\"",
            "\"ac_2\"",
            "\"ep_1\""
        ])
        .prop_map(str::to_owned),
    ]
}

fn variable() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "ev.http.response.status_code",
        "ev.http.request.method",
        "ev.http.request.url.host",
        "ev.http.request.url.path",
        "ev.http.request.url.raw",
        "ev.http.request.user_agent",
        "ev.conn.client_ip",
        "ev.conn.server_name",
        "ev[\"conn\"].server_name",
        "ev.culvert.reason",
        "ev.culvert.duration_ms",
        "ev.backend.connection_reused",
        "ev.http.request.headers",
        "event_type",
        "account_id",
        "endpoint_id",
        "event_id",
        "principal",
        "principal.id",
        "ev.name",
        "ev.id",
    ])
    .prop_map(str::to_owned)
}

fn condition() -> impl Strategy<Value = String> {
    let operator = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
    let function = prop::sample::select(vec!["startsWith", "endsWith", "contains", "matches"]);
    let leaf = prop_oneof![
        4 => (variable(), operator.clone(), literal()).prop_map(|(a, op, b)| format!("{a} {op} {b}")),
        1 => (literal(), operator, variable()).prop_map(|(a, op, b)| format!("{a} {op} {b}")),
        4 => (variable(), function, literal()).prop_map(|(a, f, b)| format!("{a}.{f}({b})")),
        1 => (variable(), literal()).prop_map(|(a, b)| format!("{a}.matches(\"(?i)\" + {b})")),
        1 => variable().prop_map(|a| format!("{a}.matches(\"(?i)\\\\.example\")")),
        2 => (variable(), prop::collection::vec(literal(), 0..3))
            .prop_map(|(a, items)| format!("{a} in [{}]", items.join(", "))),
        1 => variable().prop_map(|a| format!("has({a})")),
        1 => Just("ev.backend.connection_reused".to_owned()),
        1 => Just("[1, 2].exists(ev, ev == 2)".to_owned()),
        1 => Just("size(ev.http.request.url.path) > 4".to_owned()),
    ];
    leaf.prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} && {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} || {b})")),
            inner.clone().prop_map(|a| format!("!({a})")),
            (inner.clone(), inner.clone(), inner)
                .prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
        ]
    })
}

fn sample() -> impl Strategy<Value = Sample> {
    (prop::bool::weighted(0.8), prop::array::uniform10(0u8..16))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_piece_with_a_selected_event_is_read(
        samples in prop::collection::vec(sample(), 1..12),
        sources in prop::collection::vec(condition(), 8),
    ) {
        let (account, endpoint, none): (Arc<str>, Arc<str>, Arc<str>) = ("ac_1".into(), "ep_1".into(), "".into());
        let mut packer = Packer::default();
        let records = samples.iter().enumerate().map(|(index, sample)| {
            record(sample, &account, index.is_multiple_of(2).then_some(&endpoint))
        });
        let records: Vec<Record> = records.collect();
        for record in &records {
            packer.push_copy(b"ev_1", record, &none);
        }
        let mut summary = PieceSummary::default();
        summary.add(&packer.finish().0);
        let stored = summary.finish();
        let summary = Summary::read(&stored);
        prop_assert!(summary.may_have_account("ac_1") && !summary.may_have_account("ac_9"));
        let catalogue = catalogue();
        for source in sources {
            let Ok(filter) = LogFilter::compile(&catalogue, &source) else { continue };
            for record in &records {
                let endpoint = record.endpoint().map_or("", |endpoint| endpoint);
                let mut line = Vec::new();
                let all = Selection::all(record.kind());
                let _whole = encode::event(record, &all, "ev_1", &mut line);
                let envelope = std::str::from_utf8(&line).unwrap();
                if filter.matches(Logged { envelope, endpoint }).0 {
                    prop_assert!(filter.may_match_record(record, endpoint), "{} {}", source, envelope);
                    prop_assert!(filter.may_match_piece(&summary), "{} {}", source, envelope);
                    prop_assert!(filter.may_match_piece(&Summary::default()), "{}", source);
                }
            }
        }
    }

    #[test]
    fn a_selected_audit_event_is_read(source in condition()) {
        let catalogue = catalogue();
        if let Ok(filter) = LogFilter::compile(&catalogue, &source) {
            for principal in ["null", r#"{"id":"get"}"#] {
                for name in ["null", "\"get\"", "502"] {
                    let envelope = format!(
                        r#"{{"event_id":"ev_1","event_type":"vault_created.v0","event_timestamp":"2026-11-20T19:53:18.737Z","account_id":"ac_1","principal":{principal},"object":{{"id":{name},"name":{name}}}}}"#
                    );
                    let logged = Logged { envelope: &envelope, endpoint: "" };
                    if filter.matches(logged).0 {
                        prop_assert!(filter.may_match_audit(), "{}", source);
                    }
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_a_summary(bytes in prop::collection::vec(any::<u8>(), 0..64), source in condition()) {
        let summary = Summary::read(&bytes);
        summary.may_have_account("ac_1");
        if let Ok(filter) = LogFilter::compile(&catalogue(), &source) {
            filter.may_match_piece(&summary);
        }
        let mut made = PieceSummary::default();
        made.add(&bytes);
        made.finish();
    }
}

/// The searches of people skip the pieces without their events.
#[test]
fn pieces_without_the_wanted_events_are_not_read() {
    let account: Arc<str> = "ac_1".into();
    let mut packer = Packer::default();
    let mut of_http = Record::new(&HTTP, Capture::all(&HTTP), Arc::clone(&account));
    of_http.set(STATUS, 200);
    of_http.set(METHOD, "get");
    of_http.set(HOST, "shop.example.com");
    of_http.set(NAME, "shop.example.com");
    of_http.set(PATH, "/checkout/7");
    of_http.set(CLIENT, "203.0.113.7");
    of_http.set(REASON, "");
    of_http.set(DURATION, 120);
    of_http.complete(Timestamp::from_unix_seconds(1));
    packer.push(b"ev_1", of_http, &"".into());
    let mut summary = PieceSummary::default();
    summary.add(&packer.finish().0);
    let stored = summary.finish();
    assert!(stored.len() < 128, "{}", stored.len());
    let summary = Summary::read(&stored);
    for (source, is_read) in [
        ("ev.http.response.status_code == 200", true),
        ("ev.http.response.status_code == 502", false),
        ("ev.http.response.status_code >= 500", false),
        ("ev.http.response.status_code in [500, 502]", false),
        ("!(ev.http.response.status_code < 500)", false),
        (
            "!(has(ev.http.response.status_code) && ev.http.response.status_code == 502)",
            true,
        ),
        ("ev.http.request.method == \"post\"", false),
        ("ev.http.request.url.path.startsWith(\"/checkout\")", true),
        ("ev.http.request.url.path.startsWith(\"/cart\")", false),
        ("ev.http.request.url.path == \"/checkout/7\"", true),
        ("ev.http.request.url.host == \"shop.example.com\"", true),
        ("ev.http.request.url.host.endsWith(\".example.com\")", true),
        ("ev.http.request.url.host.endsWith(\".example.org\")", false),
        ("ev.conn.client_ip.startsWith(\"203.0.113.\")", true),
        ("ev.conn.client_ip.startsWith(\"203.0.114.\")", false),
        ("ev.culvert.duration_ms > 100", true),
        ("ev.culvert.duration_ms > 500", false),
        ("ev.culvert.reason == \"malformed\"", false),
        ("event_type == \"tcp_connection_closed.v0\"", false),
        ("account_id == \"ac_2\"", false),
        ("principal.subject == \"anna\"", false),
        ("ev.name == \"x\"", false),
        (
            "ev.name == \"x\" || ev.http.response.status_code == 200",
            true,
        ),
        (
            "ev.http.response.status_code == 502 && ev.http.request.url.raw.contains(\"x\")",
            false,
        ),
    ] {
        let filter = LogFilter::compile(&catalogue(), source).unwrap();
        assert_eq!(filter.may_match_piece(&summary), is_read, "{source}");
    }
}
