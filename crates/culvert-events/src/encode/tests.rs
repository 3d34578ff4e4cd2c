use culvert_base::Ksuid;
use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::*;
use crate::catalogue::CatalogueEntry;
use crate::{
    Bool, Capture, Cookies, EventId, EventKind, HTTP_REQUEST_COMPLETE, HeaderRules, Headers, Int32,
    Int64, Logs, Slot, TCP_CONNECTION_CLOSED, Text, Time, kinds,
};

const ID: &str = "ev_3MNwake7NlaYWxjRh9bXOmHaq4T";
const ACCOUNT: &str = "ac_2OtNvAlhso10Gx6s7eupzX3F98q";

const HTTP: &EventKind = &HTTP_REQUEST_COMPLETE;
const REQUEST_HEADERS: Slot<Headers> = HTTP_REQUEST_COMPLETE.slot("http.request.headers");
const RESPONSE_HEADERS: Slot<Headers> = HTTP_REQUEST_COMPLETE.slot("http.response.headers");
const PATH: Slot<Text> = HTTP_REQUEST_COMPLETE.slot("http.request.url.path");
const QUERY: Slot<Text> = HTTP_REQUEST_COMPLETE.slot("http.request.url.query");
const RAW: Slot<Text> = HTTP_REQUEST_COMPLETE.slot("http.request.url.raw");
const LOGS: Slot<Logs> = HTTP_REQUEST_COMPLETE.slot("traffic_policy.logs");

fn empty(kind: &'static EventKind) -> Record {
    let mut record = Record::new(kind, Capture::all(kind), ACCOUNT.into());
    record.complete(Timestamp::parse("2026-11-20T19:53:18.737999Z").unwrap());
    record
}

fn lines<'a>(lines: &'a [(&str, &str)]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    lines
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
}

fn text(slot: &'static str) -> Slot<Text> {
    HTTP_REQUEST_COMPLETE.slot(slot)
}

fn written(record: &Record, selection: &Selection) -> String {
    let mut out = b"before".to_vec();
    assert_eq!(event(record, selection, ID, &mut out), Truncated::default());
    String::from_utf8(out)
        .unwrap()
        .strip_prefix("before")
        .unwrap()
        .to_owned()
}

#[test]
fn the_worked_example_of_the_contract() {
    let mut record = empty(HTTP);
    record.set(
        HTTP_REQUEST_COMPLETE.slot::<Bool>("backend.connection_reused"),
        true,
    );
    record.set(text("compression.algorithm"), "gzip");
    record.set(
        HTTP_REQUEST_COMPLETE.slot::<Int64>("compression.bytes_saved"),
        9021,
    );
    record.set(text("conn.client_ip"), "2001:db8::7823");
    record.set(text("conn.server_ip"), "192.0.2.10");
    record.set(text("conn.server_name"), "app.example.test");
    record.set(HTTP_REQUEST_COMPLETE.slot::<Int32>("conn.server_port"), 443);
    record.set(
        HTTP_REQUEST_COMPLETE.slot::<Time>("conn.start_ts"),
        Timestamp::parse("2026-11-20T19:53:16.528374173Z").unwrap(),
    );
    let rules = HeaderRules::default();
    let request = [("host", "app.example.test"), ("ACCEPT", "text/HTML")];
    record.set_headers(
        REQUEST_HEADERS,
        &rules,
        Cookies::AsReceived,
        lines(&request),
    );
    record.set(text("http.request.method"), "get");
    record.set(text("http.request.url.host"), "app.example.test");
    record.set(PATH, "/docs/obs");
    record.set(RAW, "https://app.example.test/docs/obs");
    record.set(text("http.request.url.scheme"), "https");
    record.set(text("http.request.user_agent"), "curl/8.5.0");
    record.set(
        HTTP_REQUEST_COMPLETE.slot::<Int64>("http.response.body_length"),
        4058,
    );
    let response = [
        ("content-type", "text/html; charset=UTF-8"),
        ("content-encoding", "gzip"),
    ];
    record.set_headers(
        RESPONSE_HEADERS,
        &rules,
        Cookies::AsReceived,
        lines(&response),
    );
    record.set(
        HTTP_REQUEST_COMPLETE.slot::<Int32>("http.response.status_code"),
        200,
    );

    let fields: Vec<&str> = HTTP
        .fields
        .iter()
        .filter(|field| field.path < "ip_policy" && !field.by_name)
        .map(|field| field.path)
        .collect();
    let selection = Selection::parse(HTTP, &fields).unwrap();
    assert_eq!(
        written(&record, &selection),
        r#"{"event_id":"ev_3MNwake7NlaYWxjRh9bXOmHaq4T","event_type":"http_request_complete.v0","event_timestamp":"2026-11-20T19:53:18.737Z","account_id":"ac_2OtNvAlhso10Gx6s7eupzX3F98q","principal":null,"object":{"backend":{"connection_reused":true},"basic_auth":{"decision":"invalid","username":null},"circuit_breaker":{"decision":"invalid"},"compression":{"algorithm":"gzip","bytes_saved":9021},"conn":{"client_ip":"2001:db8::7823","server_ip":"192.0.2.10","server_name":"app.example.test","server_port":443,"start_ts":"2026-11-20T19:53:16.528374173Z"},"http":{"request":{"body_length":0,"headers":{"Host":["app.example.test"],"Accept":["text/html"]},"method":"get","url":{"host":"app.example.test","path":"/docs/obs","query":"","raw":"https://app.example.test/docs/obs","scheme":"https"},"user_agent":"curl/8.5.0"},"response":{"body_length":4058,"headers":{"Content-Type":["text/html; charset=utf-8"],"Content-Encoding":["gzip"]},"status_code":200}}}}"#
    );
}

#[test]
fn an_event_of_which_nothing_is_known() {
    assert_eq!(
        written(&empty(HTTP), &Selection::usual(HTTP)),
        r#"{"event_id":"ev_3MNwake7NlaYWxjRh9bXOmHaq4T","event_type":"http_request_complete.v0","event_timestamp":"2026-11-20T19:53:18.737Z","account_id":"ac_2OtNvAlhso10Gx6s7eupzX3F98q","principal":null,"object":{"backend":{"connection_reused":false},"basic_auth":{"decision":"invalid","username":null},"circuit_breaker":{"decision":"invalid"},"compression":{"algorithm":"none","bytes_saved":0},"conn":{"client_ip":"","server_ip":"","server_name":"","server_port":0,"start_ts":"1970-01-01T00:00:00.000000000Z"},"http":{"request":{"body_length":0,"headers":{},"method":"","url":{"host":"","path":"","query":"","raw":"","scheme":"http"},"user_agent":null},"response":{"body_length":0,"headers":{},"status_code":null}},"ip_policy":{"decision":"invalid"},"oauth":{"app_client_id":null,"decision":"invalid","user":{"id":null,"name":null}},"tls":{"cipher_suite":null,"client_cert":{"serial_number":null,"subject":{"cn":null}},"version":null},"traffic_policy":{"logs":[]},"webhook_verification":{"decision":"invalid"}}}"#
    );
    let kind = &TCP_CONNECTION_CLOSED;
    assert_eq!(
        written(&empty(kind), &Selection::usual(kind)),
        r#"{"event_id":"ev_3MNwake7NlaYWxjRh9bXOmHaq4T","event_type":"tcp_connection_closed.v0","event_timestamp":"2026-11-20T19:53:18.737Z","account_id":"ac_2OtNvAlhso10Gx6s7eupzX3F98q","principal":null,"object":{"conn":{"bytes_in":0,"bytes_out":0,"client_ip":"","end_ts":"1970-01-01T00:00:00.000000000Z","server_ip":"","server_name":"","server_port":0,"start_ts":"1970-01-01T00:00:00.000000000Z"},"ip_policy":{"decision":"invalid"},"traffic_policy":{"logs":[]}}}"#
    );
}

#[test]
fn our_own_fields_of_an_event_of_which_nothing_is_known() {
    for (kind, own) in [
        (
            HTTP,
            r#"{"attempts":0,"connect_ms":null,"duration_ms":0,"first_byte_ms":null,"protocol":"","queue_ms":null,"reason":"","sampled":1,"trace_id":null,"upstream":""}"#,
        ),
        (
            &TCP_CONNECTION_CLOSED,
            r#"{"connect_ms":null,"duration_ms":0,"reason":"","sampled":1,"upstream":""}"#,
        ),
    ] {
        let whole = written(&empty(kind), &Selection::all(kind));
        let without = whole.replace(&format!(r#""culvert":{own},"#), "");
        assert_ne!(whole, without);
        assert_eq!(without, written(&empty(kind), &Selection::usual(kind)));
    }
}

/// An event of all fields with `query` in the URL, 4 entries of logs, and header maps of 32 KiB that take six
/// times as much when written.
fn large(query: &str, path: &str) -> Record {
    let mut record = empty(HTTP);
    let value = "\u{1}".repeat(32_000);
    for slot in [REQUEST_HEADERS, RESPONSE_HEADERS] {
        let rules = HeaderRules::default();
        record.set_headers(
            slot,
            &rules,
            Cookies::AsReceived,
            lines(&[("x", value.as_str())]),
        );
    }
    record.set(
        LOGS,
        &vec![Map::from_iter([("a".to_owned(), json!("l".repeat(3000)))]); 4],
    );
    record.set(QUERY, query);
    record.set(RAW, &format!("http://h/?{query}"));
    record.set(PATH, path);
    record
}

#[track_caller]
fn shrunk(record: &Record, expected: &[&str]) -> Value {
    let mut out = b"before".to_vec();
    let truncated = event(record, &Selection::all(HTTP), ID, &mut out);
    assert_eq!(truncated.reasons().collect::<Vec<_>>(), expected);
    assert!(out.len() - 6 <= EVENT_BYTES_MAX, "{}", out.len());
    let written: Value = serde_json::from_slice(&out[6..]).unwrap();
    let paths = written["truncated"].as_array().unwrap();
    assert_eq!(paths[0], "http.request.headers");
    let has = |path: &str| paths.iter().any(|one| one == path);
    assert_eq!(has("traffic_policy.logs"), truncated.logs);
    assert_eq!(has("http.request.url.raw"), truncated.url);
    serde_json::from_slice(&out[6..]).unwrap()
}

#[test]
fn an_event_too_large_loses_headers_then_logs_then_url() {
    let reported = shrunk(&large("q", "/"), &["headers"]);
    let object = &reported["object"];
    assert_eq!(object["http"]["request"]["headers"], json!({}));
    assert_eq!(object["http"]["response"]["headers"], json!({}));
    assert_eq!(object["http"]["request"]["url"]["query"], json!("q"));
    assert_eq!(
        object["traffic_policy"]["logs"].as_array().unwrap().len(),
        4
    );

    let just_over = "q".repeat((EVENT_BYTES_MAX - 12_000) / 2);
    let reported = shrunk(&large(&just_over, "/"), &["headers", "logs"]);
    assert_eq!(
        reported["object"]["traffic_policy"]["logs"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert_eq!(
        reported["object"]["http"]["request"]["url"]["query"],
        json!(just_over)
    );

    let far_over = "é".repeat(EVENT_BYTES_MAX);
    let reported = shrunk(&large(&far_over, "/p"), &["headers", "logs", "url"]);
    let url = &reported["object"]["http"]["request"]["url"];
    assert_eq!(reported["object"]["traffic_policy"]["logs"], json!([]));
    assert_eq!(url["query"], json!("é".repeat(4096)));
    assert_eq!(url["raw"].as_str().unwrap().len(), 8192);
    assert_eq!(url["path"], json!("/p"));
}

#[test]
fn an_event_at_the_limit_is_whole() {
    let mut record = empty(HTTP);
    let selection = Selection::parse(HTTP, &["http.request.url.path"]).unwrap();
    let frame = written(&record, &selection).len();
    record.set(PATH, &"p".repeat(EVENT_BYTES_MAX - frame));
    assert_eq!(written(&record, &selection).len(), EVENT_BYTES_MAX);
}

#[test]
fn audit_events() {
    #[derive(Serialize)]
    struct View {
        uri: &'static str,
        id: &'static str,
        token: Option<String>,
    }

    let at = Timestamp::parse("2026-11-20T19:53:18Z").unwrap();
    let principal = Principal {
        id: "usr_1".to_owned(),
        subject: "a\"b@example.test".to_owned(),
        source: Source::Api,
        credential: Some(Reference {
            id: "ak_1".to_owned(),
            uri: "https://h/api_keys/ak_1".to_owned(),
        }),
        context: None,
    };
    let view = View {
        uri: "u",
        id: "i",
        token: None,
    };
    let by_a_key = Audit {
        principal: Some(&principal),
        ..Audit::by_server("api_key_created.v0", at, ID, ACCOUNT)
    };
    let event = by_a_key.about(&view).unwrap();
    assert_eq!(
        event.body,
        r#"{"event_id":"ev_3MNwake7NlaYWxjRh9bXOmHaq4T","event_type":"api_key_created.v0","event_timestamp":"2026-11-20T19:53:18.000Z","account_id":"ac_2OtNvAlhso10Gx6s7eupzX3F98q","principal":{"id":"usr_1","subject":"a\"b@example.test","source":"API","credential":{"id":"ak_1","uri":"https://h/api_keys/ak_1"}},"object":{"uri":"u","id":"i","token":null}}"#
    );
    assert_eq!(
        (event.kind.as_str(), event.id.as_str(), event.at),
        ("api_key_created.v0", ID, at)
    );
    assert_eq!(event.account, ACCOUNT);

    let by_server = Audit::by_server("x.v0", at, ID, ACCOUNT);
    let by_the_server = by_server.about(&json!({})).unwrap();
    assert!(
        by_the_server
            .body
            .ends_with(r#""principal":null,"object":{}}"#)
    );

    let unwritable = std::collections::HashMap::from([((1, 2), 3)]);
    let fault = by_server.about(&unwritable).unwrap_err();
    assert!(
        fault.chain().starts_with("writing the object of a x.v0: "),
        "{}",
        fault.chain()
    );
}

#[test]
fn audit_events_say_how_the_call_came_and_how_it_was_before() {
    let at = Timestamp::parse("2026-11-20T19:53:18Z").unwrap();
    let principal = Principal {
        id: "usr_1".to_owned(),
        subject: "a@example.test".to_owned(),
        source: Source::Dashboard,
        credential: None,
        context: Some(CallContext {
            client_ip: Some("192.0.2.1".parse().unwrap()),
            client_port: None,
            user_agent: "x/1".to_owned(),
            operation_id: "op_1".to_owned(),
            node: "n1".to_owned(),
            via: Some(Via::Console),
        }),
    };
    let previous = serde_json::value::to_raw_value(&json!({"name": "old"})).unwrap();
    let event = Audit {
        principal: Some(&principal),
        previous: Some(&previous),
        truncated: &["previous.traffic_policy".to_owned()],
        ..Audit::by_server("x_updated.v0", at, ID, ACCOUNT)
    };
    let event: Value = serde_json::from_str(&event.about(&json!({})).unwrap().body).unwrap();
    assert_eq!(
        event["principal"]["context"],
        json!({
            "client_ip": "192.0.2.1", "client_port": null, "user_agent": "x/1",
            "operation_id": "op_1", "node": "n1", "via": "console",
        })
    );
    assert_eq!(event["previous"], json!({"name": "old"}));
    assert_eq!(event["truncated"], json!(["previous.traffic_policy"]));
}

#[test]
fn an_event_names_the_one_that_it_follows() {
    let at = Timestamp::parse("2026-11-20T19:53:18Z").unwrap();
    let event = Audit::by_server("x_deleted.v0", at, ID, ACCOUNT)
        .about(&json!({}))
        .unwrap();
    // No event follows itself.
    assert_eq!(caused_by(event.clone(), ID), event);
    let caused = caused_by(event, "ev_1");
    let body: Value = serde_json::from_str(&caused.body).unwrap();
    assert_eq!(body["cause"], "ev_1");
    assert_eq!(caused_by(caused.clone(), "ev_2"), caused);
    let named = Audit {
        cause: Some("ev_1"),
        ..Audit::by_server("x_deleted.v0", at, ID, ACCOUNT)
    };
    assert_eq!(named.about(&json!({})).unwrap().body, caused.body);
}

#[test]
fn a_huge_object_loses_its_largest_fields() {
    let at = Timestamp::parse("2026-11-20T19:53:18Z").unwrap();
    let audit = Audit::by_server("x_created.v0", at, ID, ACCOUNT);
    let object = |policy: usize, asked: usize| json!({"id": "ep_1", "policy": "\n".repeat(policy), "asked": vec![0; asked], "url": "u"});
    let whole = audit.about(&object(100, 100)).unwrap().body;
    assert!(!whole.contains("truncated"), "{whole}");
    for (policy, asked, removed) in [
        (1 << 20, 10, json!(["object.policy"])),
        (1 << 20, 1 << 20, json!(["object.policy", "object.asked"])),
    ] {
        let body = audit.about(&object(policy, asked)).unwrap().body;
        assert!(body.len() < 300 << 10, "{}", body.len());
        let event: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(event["truncated"], removed);
        assert_eq!(
            (&event["object"]["id"], &event["object"]["url"]),
            (&json!("ep_1"), &json!("u"))
        );
    }
}

#[test]
fn test_events() {
    let at = Timestamp::parse("2026-11-20T19:53:18.1239Z").unwrap();
    let event = test(ID, at, ACCOUNT);
    assert_eq!(
        event.body,
        r#"{"event_id":"ev_3MNwake7NlaYWxjRh9bXOmHaq4T","event_type":"test","event_timestamp":"2026-11-20T19:53:18.123Z","account_id":"ac_2OtNvAlhso10Gx6s7eupzX3F98q","principal":null,"object":{}}"#
    );
    assert_eq!(event.kind, "test");
}

/// Any value of a field, as `set` takes it.
#[derive(Clone, Debug)]
enum Given {
    Nothing,
    Null,
    Bool(bool),
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
    At(i64),
    Lines(Vec<(Vec<u8>, Vec<u8>)>),
    Entries(Vec<String>),
}

fn given(field: &'static FieldDef) -> impl Strategy<Value = Given> {
    let some = match field.ty {
        Type::Bool => any::<bool>().prop_map(Given::Bool).boxed(),
        Type::Int32 => any::<i32>()
            .prop_map(|value| Given::Int(value.into()))
            .boxed(),
        Type::Int64 => any::<i64>().prop_map(Given::Int).boxed(),
        Type::Text if !field.values.is_empty() => prop::sample::select(field.values)
            .prop_map(|value| Given::Text(value.to_owned()))
            .boxed(),
        Type::Text => prop_oneof![
            any::<String>().prop_map(Given::Text),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Given::Bytes),
        ]
        .boxed(),
        Type::Timestamp => (0..4_000_000_000_000_000_000i64)
            .prop_map(Given::At)
            .boxed(),
        Type::Headers => prop::collection::vec(any::<(Vec<u8>, Vec<u8>)>(), 0..6)
            .prop_map(Given::Lines)
            .boxed(),
        Type::Logs => prop::collection::vec(any::<String>(), 0..4)
            .prop_map(Given::Entries)
            .boxed(),
    };
    prop_oneof![1 => Just(Given::Nothing), 1 => Just(Given::Null), 6 => some]
}

fn fill(record: &mut Record, index: usize, given: &Given) {
    let kind = record.kind();
    let path = kind.fields[index].path;
    match given {
        Given::Nothing => {}
        Given::Null => match kind.fields[index].ty {
            Type::Text => record.set_null(kind.slot::<Text>(path)),
            Type::Int32 => record.set_null(kind.slot::<Int32>(path)),
            _ => {}
        },
        Given::Bool(value) => record.set(kind.slot::<Bool>(path), *value),
        Given::Int(value) if kind.fields[index].ty == Type::Int32 => {
            record.set(kind.slot::<Int32>(path), i32::try_from(*value).unwrap());
        }
        Given::Int(value) => record.set(kind.slot::<Int64>(path), *value),
        Given::Text(value) => record.set(kind.slot::<Text>(path), value),
        Given::Bytes(value) => record.set_bytes(kind.slot::<Text>(path), value),
        Given::At(nanos) => {
            record.set(kind.slot::<Time>(path), Timestamp::from_unix_nanos(*nanos));
        }
        Given::Lines(lines) => record.set_headers(
            kind.slot::<Headers>(path),
            &HeaderRules::default(),
            Cookies::AsReceived,
            lines
                .iter()
                .map(|(name, value)| (name.as_slice(), value.as_slice())),
        ),
        Given::Entries(texts) => {
            let entries: Vec<_> = texts
                .iter()
                .map(|text| Map::from_iter([(text.clone(), json!(text))]))
                .collect();
            record.set(kind.slot::<Logs>(path), &entries);
        }
    }
}

/// Paths of all leaves in the order they are written; header maps are leaves.
fn leaves(kind: &EventKind, text: &str) -> Vec<String> {
    struct Leaves<'k>(&'k EventKind, String, Vec<String>);

    impl<'de> serde::de::DeserializeSeed<'de> for &mut Leaves<'_> {
        type Value = ();

        fn deserialize<D: serde::Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
            if self.0.index_of(&self.1).is_some() {
                self.2.push(self.1.clone());
                serde::Deserialize::deserialize(source).map(|_: serde::de::IgnoredAny| ())
            } else {
                source.deserialize_map(self)
            }
        }
    }

    impl<'de> serde::de::Visitor<'de> for &mut Leaves<'_> {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a parent of fields")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(name) = map.next_key::<String>()? {
                let parent = self.1.len();
                if parent > 0 {
                    self.1.push('.');
                }
                self.1.push_str(&name);
                map.next_value_seed(&mut *self)?;
                self.1.truncate(parent);
            }
            Ok(())
        }
    }

    let mut leaves = Leaves(kind, String::new(), Vec::new());
    let mut source = serde_json::Deserializer::from_str(text);
    serde::de::DeserializeSeed::deserialize(&mut leaves, &mut source).unwrap();
    leaves.2
}

fn any_event() -> impl Strategy<Value = (&'static EventKind, Vec<Given>, Vec<usize>)> {
    prop::sample::select(kinds::ALL).prop_flat_map(|kind| {
        let values: Vec<_> = kind
            .fields
            .iter()
            .map(|field| given(field).boxed())
            .collect();
        (
            Just(kind),
            values,
            prop::collection::vec(0..kind.fields.len(), 0..12),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_event_has_exactly_the_fields_selected_and_fits_its_schema(
        (kind, values, chosen) in any_event(),
        nanos in 1_400_000_000_000_000_000..5_000_000_000_000_000_000i64,
    ) {
        let at = Timestamp::from_unix_nanos(nanos);
        let mut record = Record::new(kind, Capture::all(kind), ACCOUNT.into());
        for (index, value) in values.iter().enumerate() {
            fill(&mut record, index, value);
        }
        record.complete(at);
        let chosen: Vec<&str> = chosen.iter().map(|index| kind.fields[*index].path).collect();
        let selection = Selection::parse(kind, &chosen).unwrap();
        let id = EventId::new(at, [7; 16]);
        let mut out = Vec::new();
        prop_assert_eq!(event(&record, &selection, &id, &mut out), Truncated::default());
        let text = std::str::from_utf8(&out).unwrap();
        prop_assert!(!text.contains('\n'));

        let value: Value = serde_json::from_str(text).unwrap();
        let validator = validator(kind);
        if let Err(error) = validator.validate(&value) {
            panic!("{error} at {} in {text}", error.instance_path());
        }
        let object = text.split_once(r#","object":"#).unwrap().1;
        let object = &object[..object.len() - 1];
        let expected: Vec<&str> = kind
            .fields
            .iter()
            .filter(|field| match chosen.is_empty() {
                true => !field.by_name,
                false => chosen.contains(&field.path),
            })
            .map(|field| field.path)
            .collect();
        prop_assert_eq!(leaves(kind, object), expected);

        // Every value that was set is in the event.
        for (field, given) in kind.fields.iter().zip(&values) {
            let pointer = format!("/object/{}", field.path.replace('.', "/"));
            let Some(reported) = value.pointer(&pointer) else { continue };
            match given {
                Given::Bool(value) => prop_assert_eq!(reported, &json!(value)),
                Given::Int(value) => prop_assert_eq!(reported, &json!(value)),
                Given::Text(value) if field.bytes_max.is_none() => {
                    prop_assert_eq!(reported, &json!(value));
                }
                Given::At(nanos) => {
                    prop_assert_eq!(reported, &json!(Timestamp::from_unix_nanos(*nanos).to_nanos_text()));
                }
                Given::Nothing => prop_assert_eq!(reported.to_string(), field.unset),
                _ => {}
            }
        }
        let body: Ksuid = value["event_id"].as_str().unwrap()[3..].parse().unwrap();
        prop_assert_eq!(body.at(), at.whole_seconds());
    }

    #[test]
    fn any_account_and_id_are_written_as_text(account: String, id: String) {
        let record = Record::new(HTTP, Capture::NONE, account.as_str().into());
        let mut out = Vec::new();
        let truncated = event(&record, &Selection::all(HTTP), &id, &mut out);
        prop_assert_eq!(truncated, Truncated::default());
        let value: Value = serde_json::from_slice(&out).unwrap();
        prop_assert_eq!(&value["account_id"], &json!(account));
        prop_assert_eq!(&value["event_id"], &json!(id));
    }
}

fn validator(kind: &'static EventKind) -> std::sync::Arc<jsonschema::Validator> {
    use std::collections::HashMap;
    use std::sync::{Arc, LazyLock};

    static VALIDATORS: LazyLock<HashMap<&str, Arc<jsonschema::Validator>>> = LazyLock::new(|| {
        let compile = |kind: &&'static EventKind| {
            let schema = CatalogueEntry::Table(kind).json_schema();
            let validator = jsonschema::options()
                .should_validate_formats(true)
                .build(&schema)
                .unwrap();
            (kind.name, Arc::new(validator))
        };
        kinds::ALL.iter().map(compile).collect()
    });
    VALIDATORS[kind.name].clone()
}
