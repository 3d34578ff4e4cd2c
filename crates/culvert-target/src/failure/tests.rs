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

#[test]
fn a_code_of_a_receiver_is_shown_only_if_it_is_a_code() {
    let shown = |code: &str| vendor_code(code, &["whsec_abcdef"]);
    for code in ["241", "AWS.SimpleQueueService.A", "a_b-c:d"] {
        assert_eq!(shown(code).as_deref(), Some(code));
    }
    let long = "x".repeat(65);
    for code in [
        "",
        "a b",
        "a\n",
        "\u{1b}[31m",
        "é",
        "<b>",
        &long,
        "whsec_abcdef",
        "x:whsec_abcdef",
    ] {
        assert_eq!(shown(code), None, "{code:?}");
    }
    // The class is shown in place of a text that is no code.
    let failure = Failure::new(FailureClass::Auth, "a\nb", "no");
    assert_eq!(failure.code, "auth");
}

proptest! {
    #[test]
    fn any_foreign_error_can_be_shown(text in "\\PC*", secret in "[a-z]{4,8}") {
        let shown = scrub(&text, &[&secret]);
        prop_assert!(shown.chars().count() <= FAILURE_TEXT_MAX);
        prop_assert!(!shown.contains(&*secret) || "[redacted]".contains(&*secret));
    }
}
