use super::*;
use crate::encode;

fn ocsf(envelope: &Value) -> Value {
    written(EventFormat::Ocsf, envelope)
}

fn ecs(envelope: &Value) -> Value {
    written(EventFormat::Ecs, envelope)
}

fn written(format: EventFormat, envelope: &Value) -> Value {
    let mut out = b"before".to_vec();
    format.encode(&envelope.to_string(), &mut out).unwrap();
    serde_json::from_slice(out.strip_prefix(b"before").unwrap()).unwrap()
}

fn event(kind: &str, principal: Value, object: Value) -> Value {
    serde_json::json!({
        "event_id": "ev_1", "event_type": kind, "event_timestamp": "2026-01-02T03:04:05.678Z",
        "account_id": "ac_1", "principal": principal, "object": object,
    })
}

fn assert_fields<const N: usize>(event: &Value, expected: [(&str, Value); N]) {
    for (pointer, expected) in expected {
        let found = event.pointer(pointer).cloned().unwrap_or_default();
        assert_eq!(found, expected, "{pointer}");
    }
}

fn request() -> Value {
    serde_json::json!({
        "conn": {"client_ip": "2001:db8::1", "server_ip": "192.0.2.1", "server_port": 443, "server_name": "a.example"},
        "http": {
            "request": {"method": "get", "body_length": 3, "user_agent": "curl", "url": {
                "scheme": "https", "host": "a.example", "path": "/x", "query": "y=1", "raw": "https://a.example/x?y=1",
            }},
            "response": {"status_code": 503, "body_length": 5_000_000_000_u64},
        },
        "culvert": {"reason": "upstream_unreachable", "duration_ms": 12},
        "oauth": {"user": {"id": "u", "name": null}},
    })
}

#[test]
fn a_request_has_its_class_method_and_status() {
    let given = event("http_request_complete.v0", Value::Null, request());
    let event = ocsf(&given);
    assert_fields(
        &event,
        [
            ("/class_uid", 4002.into()),
            ("/category_uid", 4.into()),
            ("/activity_id", 3.into()),
            ("/activity_name", "Get".into()),
            ("/type_uid", 400_203.into()),
            ("/type_name", "HTTP Activity: Get".into()),
            ("/time", 1_767_323_045_678_i64.into()),
            ("/severity_id", 1.into()),
            ("/status_id", 2.into()),
            ("/status_detail", "upstream_unreachable".into()),
            ("/duration", 12.into()),
            ("/src_endpoint/ip", "2001:db8::1".into()),
            ("/dst_endpoint/port", 443.into()),
            ("/http_request/http_method", "GET".into()),
            (
                "/http_request/url/url_string",
                "https://a.example/x?y=1".into(),
            ),
            ("/http_response/code", 503.into()),
            ("/http_response/body_length", Value::Null),
            ("/actor", Value::Null),
            ("/metadata/version", ocsf::VERSION.into()),
            ("/metadata/uid", "ev_1".into()),
            ("/metadata/tenant_uid", "ac_1".into()),
            ("/unmapped/culvert", given.clone()),
        ],
    );
    let event = ecs(&given);
    assert_fields(
        &event,
        [
            ("/@timestamp", "2026-01-02T03:04:05.678Z".into()),
            ("/ecs/version", ecs::VERSION.into()),
            ("/event/kind", "event".into()),
            ("/event/category/0", "web".into()),
            ("/event/type/0", "access".into()),
            ("/event/outcome", "failure".into()),
            ("/event/duration", 12_000_000.into()),
            ("/source/ip", "2001:db8::1".into()),
            ("/url/path", "/x".into()),
            ("/http/request/method", "get".into()),
            ("/http/response/status_code", 503.into()),
            ("/user/id", "u".into()),
            ("/organization/id", "ac_1".into()),
            ("/event/original", given.to_string().into()),
        ],
    );
}

#[test]
fn a_change_has_its_caller_and_object() {
    let principal = serde_json::json!({
        "id": "usr_1", "subject": "a@x.example", "source": "API",
        "credential": {"id": "ak_1", "uri": ""},
        "context": {"client_ip": "::ffff:192.0.2.7", "client_port": 70_000, "user_agent": "",
            "operation_id": "op_1", "node": "n", "via": null},
    });
    let given = event(
        "vault_updated.v0",
        principal.clone(),
        serde_json::json!({"id": "vault_1", "name": "v"}),
    );
    let event_of = ocsf(&given);
    assert_eq!(event_of["type_uid"], 300_403);
    assert_eq!(event_of["entity"]["uid"], "vault_1");
    assert_eq!(event_of["entity"]["type"], "vault");
    assert_eq!(event_of["actor"]["user"]["credential_uid"], "ak_1");
    assert_eq!(
        event_of["src_endpoint"],
        serde_json::json!({"ip": "192.0.2.7"})
    );
    let document = ecs(&given);
    assert_eq!(document["user"]["name"], "a@x.example");
    assert_eq!(document["event"]["type"][0], "change");
    assert_eq!(document["http"]["request"]["id"], "op_1");

    let grant = serde_json::json!({"id": "gr_1", "grantee": "usr_2", "object_id": "vault_1", "right": "use"});
    let event_of = ocsf(&event("grant_deleted.v0", principal, grant));
    assert_eq!(event_of["type_uid"], 300_502);
    assert_eq!(event_of["privileges"][0], "use");
    assert_eq!(event_of["user"]["uid"], "usr_2");
}

#[test]
fn an_alert_is_a_finding_until_it_is_resolved() {
    for (kind, severity, activity, status, level) in [
        ("alert_fired.v0", "critical", 1, 1, 4),
        ("alert_fired.v0", "info", 1, 1, 1),
        ("alert_resolved.v0", "warning", 3, 4, 3),
    ] {
        let object = serde_json::json!({
            "id": "alr_1", "rule_name": "Errors", "condition": "error_rate", "severity": severity,
            "summary": "Many requests fail.", "fired_at": "2026-01-02T03:04:05Z", "resolved_at": null,
            "subject": {"kind": "endpoint", "id": "ep_1", "name": "https://a.example"},
        });
        let given = event(kind, Value::Null, object);
        assert_fields(
            &ocsf(&given),
            [
                ("/class_uid", 2004.into()),
                ("/category_uid", 2.into()),
                ("/type_uid", (200_400 + activity).into()),
                ("/status_id", status.into()),
                ("/severity_id", level.into()),
                ("/finding_info/uid", "alr_1".into()),
                ("/finding_info/title", "Errors".into()),
                ("/finding_info/created_time", 1_767_323_045_000_i64.into()),
                ("/resources/0/uid", "ep_1".into()),
            ],
        );
        let of_ecs = ecs(&given);
        assert_eq!(of_ecs["event"]["kind"], "alert");
        assert_eq!(of_ecs["event"]["severity"], level);
    }
}

#[test]
fn an_agent_fails_if_its_session_has_an_error() {
    for (error, status) in [("", 1), ("refused", 2)] {
        let object = serde_json::json!({"session": {"id": "ts_1"}, "error": error});
        let event = ocsf(&event("agent_session_start.v0", Value::Null, object));
        assert_eq!(event["status_id"], status);
        assert_eq!(event["session"]["uid"], "ts_1");
    }
}

#[test]
fn a_kind_of_a_newer_node_is_written_too() {
    let given = event("invented.v0", Value::Null, serde_json::json!({}));
    let event = ocsf(&given);
    assert_eq!(event["activity_name"], "invented");
    assert_eq!(ecs(&given)["event"]["action"], "invented");
    let test = encode::test("ev_1", Timestamp::from_unix_millis(0), "ac_1");
    let mut out = Vec::new();
    EventFormat::Ecs.encode(&test.body, &mut out).unwrap();
}

#[test]
fn what_is_no_event_is_not_written() {
    for text in [
        "",
        "{}",
        "[]",
        r#"{"event_timestamp":"x","event_type":"y"}"#,
    ] {
        let mut out = Vec::new();
        assert_eq!(EventFormat::Ocsf.encode(text, &mut out), None, "{text}");
        assert!(out.is_empty());
    }
}

#[test]
fn names_of_formats_are_read_in_any_case() {
    assert_eq!(EventFormat::find("OCSF"), Some(EventFormat::Ocsf));
    assert_eq!(EventFormat::find("ecs"), Some(EventFormat::Ecs));
    assert_eq!(EventFormat::find("json "), None);
}

/// A client chooses the query parameters that a policy logs, so it must not choose whether the event is delivered.
#[test]
fn a_key_with_a_meaning_for_the_parser_is_only_a_key() {
    for key in [
        "$serde_json::private::RawValue",
        "$serde_json::private::Number",
    ] {
        let mut given = event("http_request_complete.v0", Value::Null, request());
        given["object"]["traffic_policy"] = serde_json::json!({"logs": [{"q": {key: "x"}}]});
        assert_fields(
            &read_json(written_text(EventFormat::Ocsf, &given).as_bytes()).unwrap(),
            [("/metadata/uid", "ev_1".into())],
        );
        assert_fields(
            &read_json(written_text(EventFormat::Ecs, &given).as_bytes()).unwrap(),
            [("/event/id", "ev_1".into())],
        );
    }
}

fn written_text(format: EventFormat, envelope: &Value) -> String {
    let mut out = Vec::new();
    format.encode(&envelope.to_string(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}
