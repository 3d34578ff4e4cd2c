use proptest::prelude::*;

use super::*;

#[test]
fn durations_are_parsed() {
    for (text, millis, shown) in [
        ("15s", 15_000, "15s"),
        ("24h", 86_400_000, "24h"),
        ("1h30m", 5_400_000, "90m"),
        ("500ms", 500, "500ms"),
        ("1d", 86_400_000, "24h"),
        ("90s", 90_000, "90s"),
    ] {
        let span = ConfigDuration::parse(text).unwrap();
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
        assert_eq!(ConfigDuration::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn only_a_secret_that_is_set_is_kept() {
    let kept = |stored: Value| {
        let mut given = serde_json::json!({"url": "u"});
        keep_secret(&stored, &mut given, "", "password");
        given.get("password").cloned()
    };
    assert_eq!(kept(serde_json::json!({"password": null})), None);
    assert_eq!(
        kept(serde_json::json!({"password": "s3cr3t"})),
        Some("s3cr3t".into())
    );
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in "[0-9a-zé ]{0,34}") {
        if let Some(span) = ConfigDuration::parse(&text) {
            prop_assert_eq!(ConfigDuration::parse(&span.to_string()), Some(span));
        }
    }
}
