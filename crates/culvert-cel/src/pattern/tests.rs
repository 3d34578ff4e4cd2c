//! Differences between RE2 and the engine's own dialect.

use proptest::prelude::*;

use super::{Pattern, PatternBudget, PatternCache, PatternError};
use crate::limits::Limits;

fn compile(pattern: &str) -> Result<Pattern, PatternError> {
    Pattern::new(pattern, &Limits::FILTER, &PatternBudget::unlimited())
}

#[track_caller]
fn found(pattern: &str, text: &str) {
    assert!(
        compile(pattern).expect(pattern).is_found_in(text),
        "{pattern} in {text:?}"
    );
}

#[track_caller]
fn not_found(pattern: &str, text: &str) {
    assert!(
        !compile(pattern).expect(pattern).is_found_in(text),
        "{pattern} in {text:?}"
    );
}

#[track_caller]
fn refused(pattern: &str, why: &str) {
    assert_eq!(
        compile(pattern).expect_err(pattern).to_string(),
        why,
        "{pattern}"
    );
}

#[test]
fn the_patterns_of_an_expression_share_a_budget() {
    let env = crate::Env::new(Limits::FILTER).with_slot("a", 0, crate::Type::String);
    let of = |pattern: &str, count| vec![format!("a.matches('{pattern}')"); count].join(" || ");
    assert!(env.compile(&of("[a-z]+[.]example", 100)).is_ok());
    assert!(env.compile(&of("[^a]{900}", 2)).is_ok());
    let error = env.compile(&of("[^a]{900}", 100)).unwrap_err();
    let said = "compiled, the patterns are larger than 4194304 bytes together";
    assert!(error.message.ends_with(said), "{error}");
    // Large classes cost as much if nothing of them is compiled.
    for class in [r"\\pL", r"[\\x{0}-\\x{10FFFF}]", r"\\P{Greek}"] {
        let many = |count| format!("(?i){}", format!("{class}{{0}}").repeat(count));
        assert!(env.compile(&of(&many(16), 1)).is_ok(), "{class}");
        let error = env.compile(&of(&many(17), 1)).unwrap_err();
        let said = "the pattern has more than 16 large classes";
        assert!(error.message.ends_with(said), "{error}");
    }
    let error = env.compile(&of(&r"\\pL{0}".repeat(16), 9)).unwrap_err();
    assert!(error.message.ends_with("bytes together"), "{error}");
    // One that is too large is tried five times, which counts as well.
    let budget = PatternBudget::new(1_500_000);
    let limits = Limits::FILTER;
    let too_large = Pattern::new("[^a]{1000}[^b]{1000}[^c]{1000}", &limits, &budget);
    assert!(too_large.unwrap_err().is_too_large());
    let next = Pattern::new("[^a]{200}", &limits, &budget).unwrap_err();
    assert!(next.to_string().contains("together"), "{next}");
}

#[test]
fn searches_are_unanchored_and_mind_case() {
    found("docs", "ngrok-docs");
    not_found("^docs", "ngrok-docs");
    found("dev$", "ngrok.dev");
    not_found("NGROK", "ngrok");
    found("(?i)NGROK", "ngrok");
    found("", "");
    not_found("a$", "a\n");
    found("(?m)a$", "a\nb");
    not_found("a.b", "a\nb");
    found("(?s)a.b", "a\nb");
}

#[test]
fn perl_classes_are_ascii() {
    not_found(r"\d", "٣");
    not_found(r"\w", "é");
    not_found(r"\s", "\u{a0}");
    not_found(r"\s", "\u{b}");
    found(r"\D", "٣");
    found(r"\W", "é");
    found(r"[\D]", "٣");
    not_found(r"[^\D]", "٣");
    not_found(r"[^\W\d]", "1");
    found(r"^[\w.-]+$", "a_b.c-9");
    // `\b` is a boundary between an ASCII letter and any other character.
    found(r"a\b", "aé");
    not_found(r"\bé", "é");
    found(r"\Bé", "é");
    not_found(r"a\B", "a");
}

#[test]
fn classes_have_no_set_operations() {
    found("^[a&&b]+$", "a&b");
    // `+--` is a range from plus to minus.
    found("^[+--]+$", "+,-");
    found("^[a~~b]+$", "~ab");
    found("^[[a]+$", "[[a");
    found("^[]a]+$", "]a");
    found("^[^]a]+$", "bc");
    found("^[a-]+$", "-a");
    found("^[a-c-z]+$", "b-z");
    found(r"^[\]\\^]+$", r"]\^");
    found("^[[:alpha:][:digit:]]+$", "a1");
    not_found("[[:^alpha:]]", "abc");
    refused(
        "[[:nope:]]",
        "invalid character class at character 2 of the pattern",
    );
    refused(
        "[z-a]",
        "invalid range in a character class at character 2 of the pattern",
    );
    refused(
        "[a",
        "the bracket `[` is not closed at character 1 of the pattern",
    );
    refused(r"[\b]", "invalid escape at character 2 of the pattern");
}

#[test]
fn quoting_and_escapes() {
    found(r"^\Qa.b\E$", "a.b");
    not_found(r"^\Qa.b\E$", "axb");
    found(r"^\Qa.b", "a.b");
    found(r"^\Qab\E+$", "abbb");
    found(r"\x{61}\x62\141", "aba");
    found(r"\a\f\t\n\r\v", "\x07\x0c\t\n\r\x0b");
    found(r"\pL", "é");
    found(r"^\p{Greek}+$", "αβ");
    found(r"\p{^Greek}", "a");
    not_found(r"\P{Greek}", "α");
    found(r"^[\pL\d]+$", "é1");
    found(r"\z", "");
    found(r"\<a\>\_", "<a>_");
    found(r"\-\.\/", "-./");
    refused(
        r"\C",
        "`\\C` is not supported at character 1 of the pattern",
    );
    refused(
        r"é\1",
        "back-references are not supported at character 2 of the pattern",
    );
    refused(
        r"\k<x>",
        "back-references are not supported at character 1 of the pattern",
    );
    refused(r"\q", "invalid escape at character 1 of the pattern");
    refused(r"\Z", "invalid escape at character 1 of the pattern");
    refused(
        "a\\",
        "the pattern ends in a backslash at character 2 of the pattern",
    );
    refused(
        r"\x{110000}",
        "invalid escape at character 1 of the pattern",
    );
    refused(
        r"\pq",
        "invalid character class at character 1 of the pattern",
    );
}

#[test]
fn groups_and_flags() {
    found("(?i)é", "É");
    found("(?P<x>a)(?<y>b)", "ab");
    found("(?i:a)b", "Ab");
    found("(?i-s:a)b", "Ab");
    found("(?ii)a", "A");
    found("(?U)a+", "a");
    found("()|a", "");
    refused(
        "(?P<x>a)(?P<x>b)",
        "the name of the group is invalid or taken at character 9 of the pattern",
    );
    refused(
        "(?x) a",
        "unknown group or flag at character 1 of the pattern",
    );
    refused(
        "(?u)a",
        "unknown group or flag at character 1 of the pattern",
    );
    refused(
        "(?-)a",
        "unknown group or flag at character 1 of the pattern",
    );
    for look_around in ["(?=a)", "(?!a)", "(?<=a)", "(?<!a)"] {
        refused(
            look_around,
            "look-around is not supported at character 1 of the pattern",
        );
    }
    refused(
        "(",
        "the bracket `(` is not closed at character 1 of the pattern",
    );
    refused("a)", "unexpected `)` at character 2 of the pattern");
    refused("a(?", "unknown group or flag at character 2 of the pattern");
    let deep = format!("{}a{}", "(".repeat(200), ")".repeat(200));
    assert!(compile(&deep).is_err());
}

#[test]
fn repetitions() {
    found("^a{2}$", "aa");
    found("^a{2,}$", "aaa");
    found("^a{1,2}?$", "aa");
    found("^a{1000}$", &"a".repeat(1000));
    found("^a{,2}$", "a{,2}");
    found("^a{$", "a{");
    found("^{a}$", "{a}");
    found(r"^a\b{start}$", "a{start}");
}

#[test]
fn bad_repetitions() {
    refused(
        "a**",
        "repetitions cannot be stacked at character 3 of the pattern",
    );
    refused(
        "a*+",
        "repetitions cannot be stacked at character 3 of the pattern",
    );
    refused(
        "a{2}{3}",
        "repetitions cannot be stacked at character 5 of the pattern",
    );
    refused("*a", "nothing to repeat at character 1 of the pattern");
    refused("(+)", "nothing to repeat at character 2 of the pattern");
    refused(
        "a{1001}",
        "repeated more than 1000 times at character 2 of the pattern",
    );
    refused(
        "a{99999999999}",
        "repeated more than 1000 times at character 2 of the pattern",
    );
    refused("a{2,1}", "invalid repetition at character 2 of the pattern");
    let nested = r"(?:\w{100}){100}";
    refused(
        nested,
        "repeated more than 1000 times at character 12 of the pattern",
    );
}

#[test]
fn size_is_limited() {
    let long = "a".repeat(1025);
    refused(&long, "the pattern is longer than 1024 bytes");
    let large = r"[\pL\pN\pS]{900}";
    refused(large, "the compiled pattern is larger than 1048576 bytes");
    assert_eq!(compile("^docs$").expect("valid").weight(), 1);
    assert!(compile(r"\pL{5}").expect("valid").weight() > 1);
}

#[test]
fn the_cache_keeps_the_latest() {
    let cache = PatternCache::default();
    for n in 0..20 {
        let text = format!("a{n}");
        cache.put(&text, compile(&text).expect("valid"));
        assert!(cache.get("a0").is_some(), "asked for each time, so kept");
    }
    assert!(cache.get("a5").is_none());
    assert!(cache.get("a19").is_some());
    assert!(cache.entries.lock().expect("not poisoned").len() <= 8);
}

proptest! {
    #[test]
    fn no_pattern_panics_or_means_something_else_than_it_says(
        pattern in r"([a-c]|[\[\](){}|*+?.^$&~:<>=!-]|\\[a-zA-Z0-9.\\]|[éK٣]|\[\[:|:\]|\(\?|\{[0-9],?[0-9]?\}){0,12}",
        text in "[a-cK٣é&{}~.-]{0,8}",
    ) {
        if let Ok(compiled) = compile(&pattern) {
            let _ = compiled.is_found_in(&text);
        }
    }

    #[test]
    fn a_quoted_text_is_found_as_itself(text in r"\PC{0,20}") {
        prop_assume!(!text.contains("\\E"));
        let pattern = compile(&format!("^\\Q{text}\\E$"));
        prop_assert!(pattern.expect("quoted").is_found_in(&text));
    }
}
