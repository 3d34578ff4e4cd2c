use proptest::prelude::*;

use super::*;

#[test]
fn shown_errors_have_no_secrets_queries_or_control_characters() {
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

proptest! {
    #[test]
    fn any_foreign_error_can_be_shown(text in "\\PC*", secret in "[a-z]{4,8}") {
        let shown = scrub(&text, &[&secret]);
        prop_assert!(shown.chars().count() <= FAILURE_TEXT_MAX);
        prop_assert!(!shown.contains(&*secret) || "[redacted]".contains(&*secret));
    }
}
