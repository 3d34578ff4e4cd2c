use proptest::prelude::*;
use serde_json::json;

use super::*;

fn code(text: impl AsRef<[u8]>) -> u16 {
    match parse(text.as_ref()) {
        Ok(_) => 0,
        Err(refusal) => refusal.code.unwrap().number(),
    }
}

#[test]
fn one_object_and_nothing_else() {
    for (text, expected) in [
        (r#"{}"#, 0),
        (" \t\r\n{\"a\":[1,-2,3.5,null,true,\"\\u00e9\"]}\n", 0),
        (r#"{"$serde_json::private::RawValue":"1"}"#, 0),
        (r#"{"$serde_json::private::Number":"1"}"#, 0),
        ("", 213),
        (" ", 213),
        ("[]", 213),
        ("1", 213),
        ("null", 213),
        (r#""text""#, 213),
        (r#"{} {}"#, 213),
        (r#"{},"#, 213),
        ("{}\0", 213),
        (r#"{"a":1,}"#, 213),
        (r#"{"a":01}"#, 213),
        (r#"{"a":NaN}"#, 213),
        (r#"{"a":Infinity}"#, 213),
        (r#"{"a":1e999}"#, 213),
        (r#"{'a':1}"#, 213),
        (r#"{a:1}"#, 213),
        ("{\"a\":\"\n\"}", 213),
        (r#"{"a":"\ud800"}"#, 213),
        (r#"{"a":1,"a":1}"#, 213),
        (r#"{"a":{"b":1,"c":2,"b":3}}"#, 213),
        (r#"{"a":1,"\u0061":1}"#, 213),
        ("\u{feff}{}", 213),
        ("{\"a\":1/*no*/}", 213),
    ] {
        assert_eq!(code(text), expected, "{text}");
    }
    assert_eq!(code(b"{\"a\":\"\xff\"}"), 212);
    assert_eq!(code(b"{\"\xc0\x80\":1}"), 212);
}

#[test]
fn limits_hold_at_their_edge() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(code(nested(31)), 0);
    assert_eq!(code(nested(32)), 212);
    assert_eq!(code(nested(100_000)), 212);
    assert_eq!(code(r#"{"a":"#.repeat(100_000)), 212);

    let listed = |n: usize| json!({"a": vec![0; n]}).to_string();
    assert_eq!(code(listed(9_999)), 0);
    assert_eq!(code(listed(10_000)), 212);
}

#[test]
fn a_repeated_name_is_reported_cut_short() {
    let name = "x".repeat(5000);
    let refusal = parse(format!("{{\"{name}\":1,\"{name}\":2}}").as_bytes()).unwrap_err();
    assert!(refusal.message.len() < 200, "{}", refusal.message);
    assert!(refusal.message.contains("duplicate key"));
}

#[test]
fn content_types() {
    let reported = |value: &'static [u8]| {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_bytes(value).unwrap());
        is_json(&headers)
    };
    assert!(is_json(&HeaderMap::new()));
    assert!(
        reported(b"application/json")
            && reported(b"Application/JSON ; charset=utf-8")
            && reported(b"")
    );
    assert!(!reported(b"text/plain") && !reported(b"application/jsonx") && !reported(b"\xff"));
    assert!(!reported(b"application/x-www-form-urlencoded"));
}

fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("JSON has no NaN", |n| n.is_finite())
            .prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(5, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(".{0,8}", inner, 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    prop::collection::btree_map(".{0,8}", value, 0..8)
        .prop_map(|members| Value::Object(members.into_iter().collect()))
}

proptest! {
    #[test]
    fn what_is_accepted_reads_as_the_plain_parser_reads_it(document in document(), pretty: bool) {
        let text = if pretty {
            serde_json::to_string_pretty(&document).unwrap()
        } else {
            document.to_string()
        };
        let plain: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(parse(text.as_bytes()).unwrap(), plain);
    }

    #[test]
    fn what_is_cut_or_changed_never_passes_where_the_plain_parser_refuses(
        document in document(), at: prop::sample::Index, byte: u8,
    ) {
        let mut bytes = document.to_string().into_bytes();
        let index = at.index(bytes.len());
        bytes[index] = byte;
        if serde_json::from_slice::<Value>(&bytes).is_err() {
            prop_assert!(parse(&bytes).is_err());
        }
        prop_assert!(parse(&bytes[..index]).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        prop_assert!(parse(&bytes).map_or(true, |value| value.is_object()));
    }
}
