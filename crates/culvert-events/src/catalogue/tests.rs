use super::*;
use crate::{HTTP_REQUEST_COMPLETE, TCP_CONNECTION_CLOSED};

fn catalogue() -> Catalogue {
    Catalogue::new(vec![
        AuditKind {
            name: "api_key_updated.v0".to_owned(),
            doc: "An API key was changed.".to_owned(),
            schema: json!({
                "type": "object",
                "required": ["id", "token", "owner", "sources"],
                "properties": {
                    "id": {"type": "string", "description": "Its id: a|b.\nUnique."},
                    "owner": {"anyOf": [{"$ref": "#/$defs/Reference"}, {"type": "null"}]},
                    "sources": {"type": "array", "items": {"$ref": "#/$defs/Reference"}},
                    "token": {"type": ["string", "null"], "description": "Null."},
                },
                "$defs": {"Reference": {
                    "type": "object",
                    "description": "Another object.",
                    "properties": {"id": {"type": "string"}, "self": {"$ref": "#/$defs/Reference"}},
                }},
            }),
        },
        AuditKind {
            name: "agent_session_start.v0".to_owned(),
            doc: "An agent came.".to_owned(),
            schema: json!({"type": "object"}),
        },
    ])
}

#[test]
fn the_contracts_tables_are_the_catalogues() {
    let names = |kind: &EventKind| {
        let fields = kind.fields.iter().filter(|field| !field.by_name);
        fields.map(|field| field.path).collect::<Vec<_>>()
    };
    assert_eq!(names(&HTTP_REQUEST_COMPLETE).len(), 34);
    assert_eq!(
        names(&TCP_CONNECTION_CLOSED),
        [
            "conn.bytes_in",
            "conn.bytes_out",
            "conn.client_ip",
            "conn.end_ts",
            "conn.server_ip",
            "conn.server_name",
            "conn.server_port",
            "conn.start_ts",
            "ip_policy.decision",
            "traffic_policy.logs",
        ]
    );
    for kind in kinds::ALL {
        let filterable: Vec<&FieldDef> = kind
            .fields
            .iter()
            .filter(|field| field.filterable)
            .collect();
        let paths: Vec<&str> = filterable.iter().map(|field| field.path).collect();
        assert_eq!(
            paths,
            [
                "conn.client_ip",
                "conn.server_ip",
                "conn.server_name",
                "conn.server_port",
                "culvert.reason",
            ]
        );
        // Our own fields are apart from those of the contract, and no subscription gets them unasked.
        for field in kind.fields {
            assert_eq!(field.by_name, field.path.starts_with("culvert."));
        }
        for field in filterable {
            assert!(matches!(field.ty, Type::Text | Type::Int32) && !field.nullable());
        }
    }
}

#[test]
fn every_row_is_whole() {
    for kind in kinds::ALL {
        assert!(kind.name.ends_with(".v0") && kind.doc.ends_with('.'));
        for field in kind.fields {
            assert!(field.doc.ends_with('.'), "{}", field.path);
            let unset: Value = serde_json::from_str(field.unset).unwrap();
            let schema = schema_of_field(field);
            let validator = jsonschema::validator_for(&schema).unwrap();
            assert!(validator.is_valid(&unset), "{} is not {schema}", field.path);
            assert_eq!(unset.is_null(), field.nullable(), "{}", field.path);
            assert!(field.values.is_sorted(), "{}", field.path);
        }
    }
}

#[test]
fn kinds_are_found_by_name() {
    let catalogue = catalogue();
    let names: Vec<&str> = catalogue
        .entries()
        .map(|entry| entry.name().to_owned().leak() as &str)
        .collect();
    assert_eq!(
        names,
        [
            "http_request_complete.v0",
            "tcp_connection_closed.v0",
            "agent_session_start.v0",
            "api_key_updated.v0",
        ]
    );
    let family = |name: &str| catalogue.find(name).map(|entry| entry.family());
    assert_eq!(family("tcp_connection_closed.v0"), Some(Family::Traffic));
    assert_eq!(family("agent_session_start.v0"), Some(Family::Agent));
    assert_eq!(family("api_key_updated.v0"), Some(Family::Audit));
    assert_eq!(family("api_key_updated"), None);
    assert_eq!(family("test"), None);
    assert!(kinds::find("http_request_complete.v0") == Some(&HTTP_REQUEST_COMPLETE));
    assert!(kinds::find("api_key_updated.v0").is_none());
}

#[test]
fn schemas_are_schemas_and_tell_good_from_bad() {
    for entry in catalogue().entries() {
        let schema = entry.json_schema();
        jsonschema::meta::validate(&schema).unwrap();
        assert_eq!(
            schema["properties"]["event_type"]["const"],
            json!(entry.name())
        );
    }
    let schema = CatalogueEntry::Table(&TCP_CONNECTION_CLOSED).json_schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let good = json!({
        "event_id": "ev_3MNwake7NlaYWxjRh9bXOmHaq4T",
        "event_type": "tcp_connection_closed.v0",
        "event_timestamp": "2026-11-20T19:53:18.737Z",
        "account_id": "ac_1",
        "principal": null,
        "object": {"conn": {"server_port": 443}, "ip_policy": {"decision": "allow"}},
    });
    assert!(validator.is_valid(&good));
    for (pointer, wrong) in [
        ("/event_id", json!("ev_1")),
        ("/event_type", json!("test")),
        ("/event_timestamp", json!("2026-11-20T19:53:18Z")),
        ("/principal", json!({})),
        ("/object", json!({})),
        ("/object/conn", json!({})),
        ("/object/conn/server_port", json!("443")),
        ("/object/conn/server_port", json!(1i64 << 40)),
        ("/object/conn/server_port", Value::Null),
        ("/object/ip_policy/decision", json!("maybe")),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = wrong.clone();
        assert!(!validator.is_valid(&bad), "{pointer} {wrong}");
    }
}

#[test]
fn definitions_of_an_audit_object_are_found_from_the_events_schema() {
    let catalogue = catalogue();
    let schema = catalogue.find("api_key_updated.v0").unwrap().json_schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let event = |owner: Value, principal: Value| {
        json!({
            "event_id": "ev_3MNwake7NlaYWxjRh9bXOmHaq4T",
            "event_type": "api_key_updated.v0",
            "event_timestamp": "2026-11-20T19:53:18.737Z",
            "account_id": "ac_1",
            "principal": principal,
            "object": {"id": "ak_1", "token": null, "owner": owner, "sources": [{"id": "x"}]},
        })
    };
    let principal = json!({"id": "usr_1", "subject": "a", "source": "API", "credential": null});
    assert!(validator.is_valid(&event(json!({"id": "usr_1"}), principal.clone())));
    assert!(validator.is_valid(&event(Value::Null, Value::Null)));
    assert!(!validator.is_valid(&event(json!({"id": 1}), principal.clone())));
    assert!(!validator.is_valid(&event(Value::Null, json!({"id": "usr_1"}))));
}

#[test]
fn the_reference_page_lists_every_field() {
    let page = catalogue().markdown();
    for kind in kinds::ALL {
        assert!(page.contains(&format!("\n## {}\n", kind.name)));
        for field in kind.fields {
            assert!(page.contains(&format!("| `{}` | `{}` |", field.path, field.ty.name())));
        }
    }
    assert!(page.contains(
        "| `conn.server_port` | `int32` | yes | never | Server port that the connection arrived on. |\n"
    ));
    assert!(page.contains("| `http.request.user_agent` | `string` |  | the header is absent | "));
    let section = page.split_once("## api_key_updated.v0").unwrap().1;
    let lines: Vec<&str> = section.lines().take(9).collect();
    assert_eq!(
        lines[..6],
        [
            "",
            "",
            "An API key was changed.",
            "",
            "| field | type | meaning |",
            "|---|---|---|"
        ]
    );
    assert_eq!(lines[6], r"| `id` | string | Its id: a\|b. Unique. |");
    assert_eq!(lines[7], "| `owner` | object or null | Another object. |");
    assert!(section.contains("| `owner.id` | string |  |\n"));
    assert!(section.contains("| `sources` | list of object |  |\n"));
    assert!(section.contains("| `token` | string or null | Null. |\n"));
    // A recursive schema is listed to a limited depth.
    assert!(!section.contains(&".self".repeat(DEPTH_MAX + 1)));
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let bars = |line: &str| line.replace(r"\|", "").matches('|').count();
    assert!(rows.map(bars).all(|bars| [3, 4, 6, 7].contains(&bars)));
    for reason in Reason::ALL {
        assert!(page.contains(&format!("| `{}` | {} |\n", reason.name(), reason.doc())));
    }
}
