use culvert_base::{Code, OsEntropy};
use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn targets_are_listed_in_order_and_found_by_name() {
    assert!(ALL.windows(2).all(|pair| pair[0].name < pair[1].name));
    for ty in ALL {
        assert!(std::ptr::eq(*ty, find(ty.name).unwrap()));
        assert!(ty.doc.ends_with('.'));
        assert!(culvert_events::encode::EVENT_BYTES_MAX < ty.limits.bytes_max);
    }
    assert!(find("nowhere").is_none());
}

#[test]
fn every_field_of_every_target_is_documented() {
    for ty in ALL {
        let mut generator = SchemaGenerator::default();
        (ty.schema)(&mut generator);
        let definitions = generator.take_definitions(true);
        let fields: Vec<_> = definitions
            .values()
            .filter_map(|schema| schema.get("properties")?.as_object())
            .flatten()
            .collect();
        assert!(!fields.is_empty(), "{}", ty.name);
        for (name, field) in fields {
            assert!(field.get("description").is_some(), "{}.{name}", ty.name);
        }
    }
}

#[test]
fn nonsense_is_refused_by_every_target_with_its_code() {
    let settings = TargetSettings {
        file_root: Some("/nowhere".into()),
        ..TargetSettings::default()
    };
    for ty in ALL {
        for nonsense in [
            json!({}),
            json!([]),
            json!(null),
            json!("hidden"),
            json!({"nope": 1}),
            json!({"callback_url": ["hidden"], "path": {"hidden": 1}, "url": {"hidden": 1}}),
            json!({"log": "hidden, expected x", "mode": "hidden", "secrets": "hidden"}),
        ] {
            let refusal = (ty.check)(&nonsense, &settings, &OsEntropy).unwrap_err();
            assert!(!refusal.message.contains("hidden"), "{}", refusal.message);
            let code = refusal.code.map(Code::number);
            // A target of the contract may miss a field that has a code of its own.
            let is_missing = nonsense == json!({}) && [5106, 5133, 5136].map(Some).contains(&code);
            assert!(
                is_missing || code == Some(5140),
                "{} {nonsense}: {code:?}",
                ty.name
            );
        }
    }
}

#[test]
fn answers_are_judged_by_the_table() {
    use FailureClass::*;
    for (status, class) in [
        (200, None),
        (204, None),
        (299, None),
        (301, Some(Config)),
        (302, Some(Config)),
        (400, Some(Permanent)),
        (401, Some(Auth)),
        (403, Some(Auth)),
        (404, Some(Config)),
        (405, Some(Config)),
        (408, Some(Retryable)),
        (409, Some(Retryable)),
        (410, Some(Gone)),
        (413, Some(Split)),
        (418, Some(Permanent)),
        (422, Some(Permanent)),
        (425, Some(Retryable)),
        (429, Some(Retryable)),
        (500, Some(Retryable)),
        (503, Some(Retryable)),
        (599, Some(Retryable)),
    ] {
        let answer = HttpResponse {
            status,
            headers: HeaderMap::new(),
            trailers: HeaderMap::new(),
            retry_after: None,
            body: Bytes::new(),
            text: String::new(),
        };
        let got = judge(&answer, &[]).err().map(|failure| failure.class);
        assert_eq!(got, class, "{status}");
    }
}

#[test]
fn shown_texts_have_no_secrets_queries_or_control_characters() {
    for (text, shown) in [
        ("plain", "plain"),
        ("key whsec_abcdef is wrong", "key [redacted] is wrong"),
        (
            "see https://x.test/a?token=1 now",
            "see https://x.test/a now",
        ),
        ("what? no url", "what? no url"),
        (
            "<a href=\"http://x/?k=v\">go</a>",
            "<a href=\"http://x/\">go</a>",
        ),
        ("a\u{1b}[31mb\nc\r\n", "a [31mb c"),
    ] {
        assert_eq!(scrub(text, &["whsec_abcdef"]), shown);
    }
    assert_eq!(
        scrub(&"é".repeat(500), &[]).chars().count(),
        FAILURE_TEXT_MAX
    );
    let across = format!("{}whsec_abcdef", "x".repeat(195));
    assert!(!scrub(&across, &["whsec_abcdef"]).contains("whsec"));
}

#[test]
fn spans() {
    for (text, millis, shown) in [
        ("15s", 15_000, "15s"),
        ("24h", 86_400_000, "24h"),
        ("1h30m", 5_400_000, "90m"),
        ("500ms", 500, "500ms"),
        ("1d", 86_400_000, "24h"),
        ("90s", 90_000, "90s"),
    ] {
        let span = Span::parse(text).unwrap();
        assert_eq!(span.0.as_millis(), millis);
        assert_eq!(span.to_string(), shown);
    }
    for wrong in [
        "",
        "s",
        "15",
        "1.5h",
        "-1s",
        "1 s",
        "1w",
        "99999999999999999999h",
        "1hh",
    ] {
        assert_eq!(Span::parse(wrong), None, "{wrong}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_span_or_not(text in "[0-9a-zé ]{0,34}") {
        if let Some(span) = Span::parse(&text) {
            prop_assert_eq!(Span::parse(&span.to_string()), Some(span));
        }
    }

    #[test]
    fn any_foreign_text_can_be_shown(text in "\\PC*", secret in "[a-z]{4,8}") {
        let shown = scrub(&text, &[&secret]);
        prop_assert!(shown.chars().count() <= FAILURE_TEXT_MAX);
        prop_assert!(!shown.contains(&*secret) || "[redacted]".contains(&*secret));
    }
}
