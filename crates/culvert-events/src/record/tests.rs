use culvert_base::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::{
    Bool, HTTP_REQUEST_COMPLETE, Int32, Logs, Selection, TCP_CONNECTION_CLOSED, Time, encode,
};

const REUSED: Slot<Bool> = HTTP_REQUEST_COMPLETE.slot("backend.connection_reused");
const USER: Slot<Text> = HTTP_REQUEST_COMPLETE.slot("basic_auth.username");
const START: Slot<Time> = HTTP_REQUEST_COMPLETE.slot("conn.start_ts");
const AGENT: Slot<Text> = HTTP_REQUEST_COMPLETE.slot("http.request.user_agent");
const HEADERS: Slot<Headers> = HTTP_REQUEST_COMPLETE.slot("http.request.headers");
const STATUS: Slot<Int32> = HTTP_REQUEST_COMPLETE.slot("http.response.status_code");
const POLICY: Slot<Text> = HTTP_REQUEST_COMPLETE.slot("ip_policy.decision");
const LOGS: Slot<Logs> = HTTP_REQUEST_COMPLETE.slot("traffic_policy.logs");

fn whole() -> Record {
    Record::new(
        &HTTP_REQUEST_COMPLETE,
        Capture::all(&HTTP_REQUEST_COMPLETE),
        "ac_x".into(),
    )
}

/// The value of one field of the event.
fn reported<T>(record: &Record, slot: Slot<T>) -> Value {
    let selection = Selection::parse(record.kind(), &[slot.field().path]).unwrap();
    let mut out = Vec::new();
    let truncated = encode::event(record, &selection, "ev_x", &mut out);
    assert_eq!(truncated, encode::Truncated::default());
    let event: Value = serde_json::from_slice(&out).unwrap();
    let pointer = format!("/object/{}", slot.field().path.replace('.', "/"));
    event.pointer(&pointer).unwrap().clone()
}

#[test]
fn the_last_value_wins_and_null_is_for_those_that_can_be() {
    let mut record = whole();
    record.set(POLICY, "allow");
    record.set(POLICY, "block");
    assert_eq!(reported(&record, POLICY), json!("block"));
    record.set_null(POLICY);
    assert_eq!(reported(&record, POLICY), json!("invalid"));
    record.set(STATUS, 200);
    assert_eq!(reported(&record, STATUS), json!(200));
    record.set_null(STATUS);
    assert_eq!(reported(&record, STATUS), Value::Null);
}

#[test]
fn what_is_not_captured_is_not_kept() {
    let capture = Selection::parse(&HTTP_REQUEST_COMPLETE, &["ip_policy.decision"])
        .unwrap()
        .capture();
    let mut record = Record::new(&HTTP_REQUEST_COMPLETE, capture, "ac_x".into());
    assert!(record.wants(POLICY) && !record.wants(USER) && !record.wants(HEADERS));
    record.set(USER, "someone");
    record.set(REUSED, true);
    record.set_headers(
        HEADERS,
        &HeaderRules::default(),
        Cookies::AsReceived,
        [(&b"a"[..], &b"b"[..])],
    );
    record.set(LOGS, &[Map::new()]);
    assert!(record.arena.is_empty());
    assert_eq!(reported(&record, USER), Value::Null);
    assert_eq!(reported(&record, REUSED), json!(false));
    record.set(POLICY, "allow");
    assert_eq!(reported(&record, POLICY), json!("allow"));
}

#[test]
fn a_reset_record_remembers_nothing_and_keeps_its_memory() {
    let mut record = whole();
    record.set(USER, &"u".repeat(10_000));
    record.set(STATUS, 404);
    record.complete(Timestamp::from_unix_seconds(1_800_000_000));
    let bytes = record.bytes();
    assert!(bytes > 10_000);
    record.reset(Capture::all(&HTTP_REQUEST_COMPLETE), "ac_y".into());
    assert_eq!(record.bytes(), bytes);
    assert_eq!(
        (&**record.account(), record.at()),
        ("ac_y", Timestamp::default())
    );
    assert_eq!(
        (reported(&record, USER), reported(&record, STATUS)),
        (Value::Null, Value::Null)
    );
}

#[test]
fn a_record_with_the_memory_of_another_has_none_of_its_values() {
    let begin = |record: &Record| record.arena.as_ptr();
    let mut first = whole();
    let memory = begin(&first);
    first.set(USER, "ann");
    first.set(STATUS, 200);
    drop(first);
    let second = whole();
    assert_eq!(begin(&second), memory);
    assert_eq!(reported(&second, USER), Value::Null);
    assert_eq!(reported(&second, STATUS), Value::Null);
    assert_eq!(second.value_bytes(), 0);
    // A record of a kind with fewer fields.
    drop(second);
    let capture = Capture::all(&TCP_CONNECTION_CLOSED);
    let third = Record::new(&TCP_CONNECTION_CLOSED, capture, "ac_x".into());
    assert_eq!(third.cells.len(), TCP_CONNECTION_CLOSED.fields.len());
}

#[test]
fn a_thread_keeps_the_memory_of_few_records_and_of_none_that_is_large() {
    let spare = || SPARE.with_borrow(Vec::len);
    SPARE.take();
    let mut records: Vec<Record> = (0..2 * SPARE_MAX).map(|_| whole()).collect();
    let mut large = whole();
    large.push_bytes(&[b'x'; 2 * SPARE_ARENA_BYTES_MAX]);
    assert_eq!(spare(), 0);
    drop(large);
    assert_eq!(spare(), 0);
    drop(records.pop());
    assert_eq!(spare(), 1);
    drop(records);
    assert_eq!(spare(), SPARE_MAX);
}

#[test]
fn text_from_bytes_is_utf8_or_latin1_and_cut_between_characters() {
    let mut record = whole();
    record.set_bytes(USER, "jürgen".as_bytes());
    assert_eq!(reported(&record, USER), json!("jürgen"));
    record.set_bytes(USER, b"j\xFCrgen");
    assert_eq!(reported(&record, USER), json!("jürgen"));
    record.set_bytes(USER, b"");
    assert_eq!(reported(&record, USER), json!(""));

    record.set(AGENT, &"x".repeat(1024));
    assert_eq!(reported(&record, AGENT), json!("x".repeat(1024)));
    record.set(AGENT, &("x".to_owned() + &"é".repeat(600)));
    assert_eq!(
        reported(&record, AGENT),
        json!("x".to_owned() + &"é".repeat(511))
    );
    let (long, tail) = ("x".repeat(1000), "é".repeat(20));
    record.set_parts(AGENT, &[&long, "", &tail, "y"]);
    assert_eq!(reported(&record, AGENT), json!(long + &"é".repeat(12)));
    record.set_parts(AGENT, &["a", "b/", "c"]);
    assert_eq!(reported(&record, AGENT), json!("ab/c"));
    record.set_bytes(AGENT, &[0xFF; 600]);
    assert_eq!(reported(&record, AGENT), json!("ÿ".repeat(512)));
}

#[test]
fn moments_have_nine_digits() {
    let mut record = whole();
    record.set(START, Timestamp::parse("2026-11-20T19:53:18.5Z").unwrap());
    assert_eq!(
        reported(&record, START),
        json!("2026-11-20T19:53:18.500000000Z")
    );
}

#[test]
fn logs_have_caps_and_what_is_dropped_is_counted() {
    let entry = |value: Value| Map::from_iter([("a".to_owned(), value)]);
    let mut record = whole();
    assert_eq!(reported(&record, LOGS), json!([]));
    let kept = [
        entry(json!(true)),
        entry(json!(1.5)),
        entry(json!(["x", {"y": null}])),
    ];
    record.set(LOGS, &kept);
    assert_eq!(
        reported(&record, LOGS),
        json!([
            {"metadata": {"a": true}},
            {"metadata": {"a": 1.5}},
            {"metadata": {"a": ["x", {"y": null}]}},
        ])
    );
    assert_eq!(record.logs_dropped(), 0);

    record.set(LOGS, &vec![entry(json!(1)); LOGS_MAX + 3]);
    assert_eq!(reported(&record, LOGS).as_array().unwrap().len(), LOGS_MAX);
    assert_eq!(record.logs_dropped(), 3);

    let frame = r#"{"metadata":{"a":""}}"#.len();
    let fitting = entry(json!("x".repeat(LOG_BYTES_MAX - frame)));
    let too_long = entry(json!("x".repeat(LOG_BYTES_MAX - frame + 1)));
    record.set(LOGS, &[too_long, fitting.clone()]);
    assert_eq!(reported(&record, LOGS).as_array().unwrap().len(), 1);
    assert_eq!(record.logs_dropped(), 1);

    record.set(LOGS, &vec![fitting; 5]);
    assert_eq!(
        reported(&record, LOGS).as_array().unwrap().len(),
        LOGS_BYTES_MAX / LOG_BYTES_MAX
    );
    assert_eq!(record.logs_dropped(), 1);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "set on a http_request_complete.v0")]
fn a_slot_of_another_kind_is_a_mistake() {
    const OTHER: Slot<Text> = TCP_CONNECTION_CLOSED.slot("conn.client_ip");
    whole().set(OTHER, "x");
}
