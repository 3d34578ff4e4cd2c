//! Events as OCSF and ECS: every kind, from a real server and with hostile values, against the published schemas. OCSF by
//! the JSON Schemas that a Python package makes of the released schema; ECS by the fields, types and allowed values of
//! the published JavaScript package. Without them, as `scripts/python-clients` and `scripts/node-clients` get them, that
//! half is reported as ignored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use culvert_events::EventFormat;
use http::Method;
use serde_json::{Value, json};

use crate::every_kind::Witness;
use crate::harness::{Backend, Harness, Receiver, eventually};

const SUITE: &str = "formats";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The command that validates a file of events in this format. `None`, reported as ignored, if it is not there.
fn validator(format: EventFormat) -> Option<Command> {
    let programs = root().join("tests/clients").join(SUITE);
    let (place, script) = match format {
        EventFormat::Ocsf => ("python-clients", "requirements.txt"),
        EventFormat::Ecs | EventFormat::Json => ("node-clients", "made"),
    };
    let place_of_suite = root().join("target").join(place).join(SUITE);
    // The script writes this copy last.
    if !place_of_suite.join(script).exists() {
        culvert_testing::ignore(format_args!(
            "no {place} for `{SUITE}`; scripts/{place} makes them"
        ));
        return None;
    }
    if format == EventFormat::Ocsf {
        let mut command = Command::new(place_of_suite.join("bin/python"));
        command.arg("-B").arg(programs.join("ocsf.py"));
        return Some(command);
    }
    let mut command = Command::new("node");
    command.arg(programs.join("ecs.cjs")).arg(place_of_suite);
    Some(command)
}

/// Whether the validator accepts all of these lines, and what it prints.
fn validate(mut validator: Command, lines: &[String]) -> (bool, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    let done = validator.arg(file.path()).output().unwrap();
    let printed = [&done.stdout, &done.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    (done.status.success(), printed.concat())
}

fn assert_valid(format: EventFormat, lines: &[String]) {
    if let Some(validator) = validator(format) {
        let (is_valid, printed) = validate(validator, lines);
        assert!(is_valid, "{printed}");
        assert_eq!(printed.trim(), format!("valid: {}", lines.len()));
    }
}

fn written(format: EventFormat, event: &Value) -> String {
    let mut out = Vec::new();
    format.encode(&event.to_string(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// An event with every field that a format reads, each with this value.
fn filled(kind: &str, value: &Value) -> Value {
    let fields = |names: &str| -> Value {
        let names = names.split(' ');
        names
            .map(|name| (name.to_owned(), value.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let mut object = fields(
        "id name email domain url addr subject operation count reason error agent_ip ingress_server_ip ingress_hostname \
         user_agent grantee object_id right",
    );
    object["session"] = fields("id uri");
    object["sample"] =
        fields("client_ip client_port server_port host user_agent object_id operation_id");
    object["conn"] =
        fields("client_ip server_ip server_port server_name start_ts end_ts bytes_in bytes_out");
    object["http"] = json!({"request": fields("method body_length user_agent"), "response": fields("status_code body_length")});
    object["http"]["request"]["url"] = fields("scheme host path query raw");
    object["culvert"] = fields("reason duration_ms trace_id upstream");
    object["tls"] = fields("version cipher_suite");
    object["oauth"] = json!({"user": fields("id name")});
    object["basic_auth"] = fields("username");
    let mut principal = fields("id subject source");
    principal["credential"] = fields("id uri");
    principal["context"] = fields("client_ip client_port user_agent operation_id node via");
    json!({
        "event_id": "ev_1", "event_type": kind, "event_timestamp": "2026-01-02T03:04:05.678Z",
        "account_id": "ac_1", "principal": principal, "object": object,
    })
}

/// Every kind with hostile values in every field, and with none.
fn hostile() -> Vec<Value> {
    let values = [
        Value::Null,
        json!(""),
        json!("x".repeat(2_000)),
        json!("\u{0}\u{202e}é\u{1f600}\"\\\n"),
        json!("192.0.2.1"),
        json!("fe80::1%eth0"),
        json!("::ffff:255.255.255.255"),
        json!("PROPFIND"),
        json!("2026-01-02T03:04:05.678901234Z"),
        json!(-1),
        json!(0),
        json!(65_536),
        json!(u64::MAX),
        json!(1.5),
        json!(true),
        json!([]),
        json!([null, ""]),
        json!({}),
    ];
    let kinds = culvert_control::catalogue().entries();
    let kinds = kinds.map(|entry| entry.name().to_owned());
    let kinds = kinds.chain(["test".to_owned(), "of_a_newer_node.v7".to_owned()]);
    let mut events = Vec::new();
    for kind in kinds {
        events.extend(values.iter().map(|value| filled(&kind, value)));
        for object in [json!({}), json!(null)] {
            let mut bare = filled(&kind, &Value::Null);
            bare["principal"] = Value::Null;
            bare["object"] = object;
            events.push(bare);
        }
    }
    events
}

#[test]
fn hostile_values_of_every_kind_are_valid_ocsf_and_ecs() {
    let events = hostile();
    for format in [EventFormat::Ocsf, EventFormat::Ecs] {
        let lines: Vec<String> = events.iter().map(|event| written(format, event)).collect();
        assert_valid(format, &lines);
    }
}

/// The validators reject broken events.
#[test]
fn the_validators_find_what_is_wrong() {
    let event = filled("vault_updated.v0", &json!("192.0.2.1"));
    let broken = |format: EventFormat, pointer: &str, value: Value| {
        let mut event: Value = serde_json::from_str(&written(format, &event)).unwrap();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        event.pointer_mut(parent).unwrap()[name] = value;
        event.to_string()
    };
    for (format, pointer, value) in [
        (EventFormat::Ocsf, "/entity/no_such_field", json!("x")),
        (EventFormat::Ocsf, "/time", json!("now")),
        (EventFormat::Ocsf, "/class_uid", json!(3001)),
        (EventFormat::Ocsf, "/severity", json!("High")),
        (EventFormat::Ocsf, "/src_endpoint/ip", json!("no address")),
        (EventFormat::Ecs, "/event/no_such_field", json!("x")),
        (EventFormat::Ecs, "/source/ip", json!("no address")),
        (EventFormat::Ecs, "/event/category", json!(["invented"])),
        (EventFormat::Ecs, "/event/type", json!(["denied"])),
        (EventFormat::Ecs, "/ecs/version", json!("1.0.0")),
    ] {
        let Some(validator) = validator(format) else {
            continue;
        };
        let (is_valid, printed) = validate(validator, &[broken(format, pointer, value)]);
        assert!(
            !is_valid && printed.contains("invalid: "),
            "{pointer}: {printed}"
        );
    }
}

/// A webhook that gets all events in a format.
async fn subscribe(culvert: &Harness, format: &str) -> Receiver {
    let hook = Receiver::start().await;
    let target = json!({"webhook": {"url": format!("http://{}/hook", hook.address)}});
    let body = json!({"format": format, "target": target});
    let destination = culvert.create("event_destinations", body).await;
    let sources = json!([{"type": "audit"}, {"type": "traffic"}]);
    let body = json!({"destination_ids": [destination["id"]], "sources": sources});
    culvert.create("event_subscriptions", body).await;
    hook
}

/// The events that a destination got, as they were before they got its format, by their IDs.
fn originals(hook: &Receiver) -> BTreeMap<String, Value> {
    let events = hook.events().into_iter();
    let originals = events.map(|event| match event["event"]["original"].as_str() {
        Some(text) => serde_json::from_str(text).unwrap(),
        None if event["unmapped"].is_object() => event["unmapped"]["culvert"].clone(),
        None => event,
    });
    originals
        .map(|event: Value| (event["event_id"].as_str().unwrap().to_owned(), event))
        .collect()
}

/// The same real events arrive in three formats, whole, and are valid in theirs.
#[tokio::test(flavor = "multi_thread")]
async fn real_events_arrive_as_valid_ocsf_and_ecs() {
    let mut witness = Witness::of(Harness::start(&Backend::Sqlite).await);
    let hooks = [
        subscribe(&witness.culvert, "json").await,
        subscribe(&witness.culvert, "OCSF").await,
        subscribe(&witness.culvert, "ecs").await,
    ];
    let culvert = &witness.culvert;
    let origin = Receiver::start().await;
    culvert.endpoint("formats", origin.address).await;
    let answer = culvert
        .get("formats.culvert.localhost", "/a%20b?c=%22d%22")
        .await;
    assert_eq!(answer.status, 200);
    culvert.get("unknown.culvert.localhost", "/").await;
    let stranger = culvert.client_with("not a token");
    let refused = stranger.call(Method::GET, "/vaults", None).await.unwrap();
    assert_eq!(refused.status, 401);
    let collections = culvert_control::operations()
        .iter()
        .filter(|operation| operation.name == "create")
        .map(|operation| operation.collection);
    for collection in collections {
        let sample = witness.sample(collection).await;
        let object = witness.create(collection, sample).await;
        witness.update(collection, &object).await;
        witness.delete(collection, &object).await;
    }
    witness.agent(&hooks[0]).await;
    let description = "the last one: \u{1f600}\u{202e}\"\\\n";
    let last = witness
        .create("api_keys", json!({"description": description}))
        .await;
    const KINDS: [&str; 5] = [
        "http_request_complete.v0",
        "tcp_connection_closed.v0",
        "request_refused.v0",
        "agent_session_start.v0",
        "grant_created.v0",
    ];
    let [json, ocsf, ecs] = hooks.each_ref();
    let mut events = BTreeMap::new();
    eventually("all events arrive in every format", async || {
        events = originals(json);
        // The first destination also got the events about the others.
        let arrived = [originals(ocsf), originals(ecs)];
        let has =
            |all: &BTreeMap<String, Value>, is_it: &dyn Fn(&Value) -> bool| all.values().any(is_it);
        let is_whole = |all: &BTreeMap<String, Value>| {
            let is_last = |event: &Value| event["object"]["id"] == last["id"];
            let is_of = |kind: &str| has(all, &|event| event["event_type"] == kind);
            has(all, &is_last) && KINDS.iter().all(|kind| is_of(kind))
        };
        is_whole(&events)
            && arrived.iter().all(&is_whole)
            && arrived[0].keys().all(|id| events.contains_key(id))
            && arrived[1].keys().all(|id| arrived[0].contains_key(id))
    })
    .await;
    let kinds: std::collections::BTreeSet<&str> = events
        .values()
        .map(|event| event["event_type"].as_str().unwrap())
        .collect();
    assert!(kinds.len() >= 75, "{kinds:?}");
    let as_lines = |hook: &Receiver| -> Vec<String> {
        let events = hook.events();
        events.iter().map(Value::to_string).collect()
    };
    assert_valid(EventFormat::Ocsf, &as_lines(ocsf));
    assert_valid(EventFormat::Ecs, &as_lines(ecs));
    for event in ocsf.events() {
        let original = &event["unmapped"]["culvert"];
        let id = original["event_id"].as_str().unwrap();
        assert_eq!(event["metadata"]["uid"], id);
        if let Some(same) = events.get(id) {
            assert_eq!(original, same);
        }
    }
    for event in ecs.events() {
        let original = event["event"]["original"].as_str().unwrap();
        let original: Value = serde_json::from_str(original).unwrap();
        let id = event["event"]["id"].as_str().unwrap();
        assert_eq!(original["event_id"], id);
        if let Some(same) = events.get(id) {
            assert_eq!(&original, same);
        }
    }
    witness.culvert.stop().await;
}

/// A destination that is set to another format sends even what waits in the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_format_applies_to_events_that_wait() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let hook = Receiver::start().await;
    hook.answer_with(http::StatusCode::SERVICE_UNAVAILABLE);
    let target =
        json!({"webhook": {"url": format!("http://{}/hook", hook.address), "mode": "batch"}});
    let body = json!({"format": "json", "target": target});
    let made = culvert.create("event_destinations", body).await;
    let sources = json!([{"type": "api_key_created.v0"}]);
    let body = json!({"destination_ids": [made["id"]], "sources": sources});
    culvert.create("event_subscriptions", body).await;
    let key = culvert.create("api_keys", json!({})).await;
    eventually("a first attempt", async || !hook.received().is_empty()).await;
    assert_eq!(hook.events()[0]["event_type"], "api_key_created.v0");
    let path = format!("/event_destinations/{}", made["id"].as_str().unwrap());
    for (format, status) in [("xml", 400), ("ocsf", 200)] {
        let answer = culvert
            .call(Method::PATCH, &path, Some(json!({"format": format})))
            .await;
        assert_eq!(answer.status, status, "{:?}", answer.body);
    }
    hook.answer_with(http::StatusCode::OK);
    eventually("it arrives as OCSF", async || {
        let events = hook.events();
        let last = events.last().unwrap();
        last["unmapped"]["culvert"]["object"]["id"] == key["id"]
    })
    .await;
    culvert.stop().await;
}
