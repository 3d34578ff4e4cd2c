use culvert_base::Code;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const FIELDS: &[Field] = &[
    ID,
    CREATED_AT,
    DESCRIPTION,
    METADATA,
    field("owner_id", Shape::Id),
    field("principal", Shape::Reference),
    field("pooling_enabled", Shape::Flag),
    field("bindings", Shape::List),
    field("binding", Shape::First("bindings")),
    field("type", Shape::EndpointType),
    field("acl", Shape::List),
];

fn now() -> Timestamp {
    Timestamp::parse("2026-11-20T12:00:00Z").unwrap()
}

fn object() -> Json {
    json!({
        "id": "ep_1", "created_at": "2026-11-19T12:00:00Z", "description": "a é b", "metadata": "",
        "owner_id": "usr_1", "principal": {"id": "usr_1", "uri": ""}, "pooling_enabled": true,
        "bindings": ["public"], "type": "ephemeral", "acl": [],
    })
}

#[test]
fn list_filters_match_or_reject_objects() {
    for (source, expected) in [
        ("true", true),
        ("!true || false", false),
        ("obj.id == 'ep_1'", true),
        (r#"obj.id != "ep_1""#, false),
        ("obj.description == 'a é b' && obj.metadata == ''", true),
        ("obj.metadata == null && obj.metadata == \"\"", true),
        ("obj.description == null", false),
        ("obj.acl == [] && obj.acl == null && obj.acl == ''", true),
        ("obj.acl != null", false),
        ("obj.bindings == ['public']", true),
        ("obj.binding == 'public'", true),
        ("'public' in obj.bindings", true),
        ("obj.owner_id in ['usr_2', 'usr_1']", true),
        (
            "obj.principal == 'usr_1' && obj.principal.id == 'usr_1'",
            true,
        ),
        ("obj.pooling_enabled", true),
        ("!obj.pooling_enabled", false),
        ("obj.pooling_enabled == false", false),
        ("obj.type == 'agent' && obj.type == 'ephemeral'", true),
        ("'agent' == obj.type && obj.type in ['agent']", true),
        ("obj.type == 'cloud'", false),
        ("size(obj.description) == 5", true),
        ("size(obj.bindings) >= 1 && size(obj.acl) < 1", true),
        (
            "obj.description.startsWith('a') && obj.description.endsWith(' b')",
            true,
        ),
        ("obj.description.contains('é')", true),
        ("obj.created_at < timestamp('2026-11-20T00:00:00Z')", true),
        ("obj.created_at > timestamp(time.now).subtract('2d')", true),
        (
            "obj.created_at > timestamp(time.now).subtract('1h30m').add('1s')",
            false,
        ),
        (
            "obj.created_at == timestamp('2026-11-19T13:00:00+01:00')",
            true,
        ),
        (
            "(obj.id == 'x' || obj.id == 'ep_1') && !(obj.metadata == 'x')",
            true,
        ),
        ("obj.id == 'x' || obj.id == 'ep_1' && false", false),
        ("-1 < 2", true),
        // What CEL has and the former parser of this crate refused.
        ("0x10 == 16 && 'a' in [r'a',] // comment", true),
        ("(size('\\u00e9') == 1) == true == true", true),
        // What the former parser had and CEL refuses.
        ("'line\nbreak' == 'line\\nbreak'", true),
    ] {
        let filter = ListFilter::compile(source, FIELDS, now()).expect(source);
        assert_eq!(filter.matches(&object()), expected, "{source}");
    }
}

/// Every text and list has a size, and no other field has.
#[test]
fn exactly_strings_and_lists_have_a_size() {
    for field in FIELDS {
        let name = field.name;
        let compiled = ListFilter::compile(&format!("size(obj.{name}) >= 0"), FIELDS, now());
        match type_of(field.shape) {
            Type::Text | Type::Id | Type::List => {
                assert!(compiled.expect(name).matches(&object()), "{name}");
            }
            _ => assert!(compiled.is_err(), "{name}"),
        }
    }
    for source in [
        "size(obj.id) == 4",
        "size(obj.principal) == 5",
        "size(obj.principal.id) == 5",
    ] {
        let filter = ListFilter::compile(source, FIELDS, now()).expect(source);
        assert!(filter.matches(&object()), "{source}");
    }
}

#[test]
fn invalid_list_filters_are_refused_with_code_250() {
    let long = format!("obj.description == '{}'", "x".repeat(4096));
    let many = vec!["obj.id == 'x'"; 65].join(" || ");
    let deep = format!("{}true{}", "(".repeat(33), ")".repeat(33));
    let negated = format!("{}true", "!".repeat(40));
    for source in [
        "",
        " ",
        "obj",
        "obj.",
        "obj.nope == 'x'",
        "obj.id.startsWith('x')",
        "obj.owner_id.contains('x')",
        "obj.principal.uri == ''",
        "obj.description",
        "'a'",
        "1 + 1 == 2",
        "obj.id == 'a' ? true : false",
        "obj.bindings[0] == 'public'",
        "type(obj.id) == string",
        "obj.description.matches('x')",
        "obj.bindings.exists(b, b == 'x')",
        "obj.created_at > '2026-01-01T00:00:00Z'",
        "obj.created_at > timestamp('yesterday')",
        "obj.created_at > timestamp(time.now).add('1w')",
        "obj.created_at > timestamp(time.now).add('')",
        "obj.pooling_enabled == 'true'",
        "obj.pooling_enabled < true",
        "obj.description == 1",
        "obj.id in 'ep_1'",
        "null in obj.acl",
        "obj.id == 'x",
        "obj.id == 'x' &&",
        "obj.id = 'x'",
        "obj.id == 'x' and true",
        "99999999999999999999 == 1",
        "obj.id == '\\q'",
        "principal == 'x'",
        "é == 1",
        &long,
        &many,
        &deep,
        &negated,
    ] {
        let refused = ListFilter::compile(source, FIELDS, now()).expect_err(source);
        assert_eq!(refused.code.map(Code::number), Some(250), "{source}");
    }
}

/// Generated filters and their results for `object`, as the former parser of this crate gave them; `null` where it refused
/// the filter.
#[test]
fn filters_mean_what_they_meant_to_the_former_parser() {
    let cases = include_str!("../../../tests/data/list_filters.jsonl");
    let mut n_cases = 0;
    for line in cases.lines() {
        let (source, expected): (String, Option<bool>) = serde_json::from_str(line).unwrap();
        let result = match ListFilter::compile(&source, FIELDS, now()) {
            Ok(filter) => Some(filter.matches(&object())),
            Err(refused) => {
                assert_eq!(refused.code.map(Code::number), Some(250), "{source:?}");
                None
            }
        };
        assert_eq!(result, expected, "{source:?}");
        n_cases += 1;
    }
    assert_eq!(n_cases, 200);
}

proptest! {
    #[test]
    fn any_text_compiles_or_is_refused(source in "\\PC{0,60}|([a-z().!=<>&| '\\[\\],]|obj\\.id|obj\\.acl|timestamp|size|in|true){0,40}") {
        if let Ok(filter) = ListFilter::compile(&source, FIELDS, now()) {
            filter.matches(&object());
            filter.matches(&Json::Null);
        }
    }
}
