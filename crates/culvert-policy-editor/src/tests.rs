//! Texts as they are typed, and hostile ones.

use culvert_policy::Scheme;
use proptest::prelude::*;

use crate::check::{Diagnostic, PROBLEMS_MAX, Place, Severity, check};
use crate::complete::{Completions, Kind, complete};
use crate::hover::hover;
use crate::{LineIndex, Unit, templates};

fn problems(text: &str) -> Vec<Diagnostic> {
    check(text, &Place::offline(Scheme::Https, true))
}

/// A text with `|` at the cursor.
fn cursor(text: &str) -> (String, usize) {
    let at = text.find('|').unwrap();
    (text.replacen('|', "", 1), at)
}

fn completed(text: &str) -> (String, Completions) {
    let (text, at) = cursor(text);
    let completions = complete(&text, at);
    (text, completions)
}

fn labels(text: &str) -> Vec<String> {
    let items = completed(text).1.items.into_iter();
    items.map(|item| item.label).collect()
}

/// The text after the completion of this label was taken.
fn taken(text: &str, label: &str) -> String {
    let (mut text, completions) = completed(text);
    let mut items = completions.items.iter();
    let item = items.find(|item| item.label == label);
    let item = item.unwrap_or_else(|| panic!("{text}: no {label}: {completions:?}"));
    text.replace_range(completions.at, &item.insert);
    text
}

#[test]
fn every_template_is_valid() {
    assert_eq!(templates::all().len(), 20);
    for template in templates::all() {
        assert_eq!(problems(&template.text), [], "{}", template.title);
        assert!(template.title.len() < 60, "{}", template.title);
    }
}

#[test]
fn a_problem_has_its_place_and_what_was_meant() {
    for (text, wrong, message) in [
        (
            "on_http_requets: []",
            "on_http_requets",
            "did you mean `on_http_request`?",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: dney",
            "dney",
            "did you mean `deny`?",
        ),
        (
            "on_http_request:\n  - action:\n      - type: deny",
            "action",
            "did you mean `actions`?",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: deny\n        conifg: {}",
            "conifg",
            "did you mean `config`?",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: deny\n        config: {status: 403}",
            "status",
            "unknown field `status`",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: deny\n        config: {status_cod: 403}",
            "status_cod",
            "did you mean `status_code`?",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: deny\n        config: {status_code: many}",
            "many",
            "`status_code`: it must be",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: rate-limit\n        config:\n          capacity: 1\n          rate: 1s\n          bucket_key: [conn.client_ip]",
            "1s",
            "`rate` must be from",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: rate-limit\n        config:\n          capacity: 1\n          rate: 60s\n          bucket_key: [conn.client_ip, conn.clinet_ip]",
            "conn.clinet_ip",
            "did you mean `conn.client_ip`?",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: rate-limit\n        config: {capacity: 1, rate: 60s}",
            "rate-limit",
            "Missing field `bucket_key`",
        ),
        (
            "on_http_request:\n  - expressions:\n      - req.url.paht == '/'\n    actions: [{type: deny}]",
            "req.url.paht",
            "did you mean `req.url.path`?",
        ),
        (
            "on_http_request:\n  - expressions:\n      - \"'é😀' == req.hots\"\n    actions: [{type: deny}]",
            "req.hots",
            "did you mean `req.host`?",
        ),
        (
            "on_http_request:\n  - expressions:\n      - >-\n        true &&\n        path == 'x'\n    actions: [{type: deny}]",
            "path",
            "did you mean `req.url.path`?",
        ),
        (
            "on_http_request:\n  - expressions: ['hasReqHeadr(''x'')']\n    actions: [{type: deny}]",
            "hasReqHeadr",
            "did you mean `hasReqHeader`?",
        ),
        (
            "on_http_request:\n  - expressions: [res.status_code == 200]\n    actions: [{type: deny}]",
            "res.status_code",
            "it exists from `on_http_response` on",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: log\n        config:\n          metadata: {z: '${req.host}', a: [1, 'x ${req.host} ${ req.hots }']}",
            "req.hots",
            "did you mean `req.host`?",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: deny\n      - type: log\n        config: {metadata: {}}",
            "log",
            "can never run",
        ),
        (
            "on_http_request:\n  - actions: []",
            "actions: []",
            "It has no actions",
        ),
        (
            "on_http_request: 5",
            "on_http_request",
            "It must be a list of rules",
        ),
        ("on_http_request:\n  - x", "x", "A rule must be an object"),
        (
            "on_tcp_connect:\n  - actions: [{type: redirect, config: {to: 'https://x'}}]",
            "redirect",
            "only in on_http_request",
        ),
        ("a: 1\na: 2", "a: 2", "Duplicate key `a`"),
        ("é: 'ü\n", "", ""),
        (
            "{\"on_http_request\":\t[{\"actions\": [{\"type\": \"dney\"}]}]}",
            "\"dney\"",
            "did you mean `deny`?",
        ),
        (
            "on_http_request:\r\n  - actions:\r\n      - type: dney\r\n",
            "dney",
            "did you mean `deny`?",
        ),
        ("[]", "[]", "A policy is an object"),
    ] {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        let found = &found[0];
        assert_eq!(found.severity, Severity::Error);
        assert!(found.code.is_some());
        assert!(found.message.contains(message), "{text}: {}", found.message);
        if !wrong.is_empty() {
            // A field of an object stands behind its dot.
            let at = &text[found.at.clone()];
            let is_there = !at.is_empty() && wrong.ends_with(at);
            assert!(is_there, "{text}: {at}: {}", found.message);
        }
    }
}

#[test]
fn all_problems_are_found_at_once() {
    let text = "on_http_request:\n  - expressions: [nope, 'true', nada]\n    actions:\n      - type: dney\n      - type: log\n        config: {metadta: {}}\n  - actions: []\non_http_respnse: []\n";
    let found = problems(text);
    let places: Vec<_> = found.iter().map(|one| &text[one.at.clone()]).collect();
    assert_eq!(
        places,
        [
            "nope",
            "nada",
            "dney",
            "metadta",
            "actions: []",
            "on_http_respnse"
        ]
    );
    // The number of them is limited.
    let rules = "  - actions: [{type: dney}]\n".repeat(100);
    let many = problems(&format!("on_http_request:\n{rules}"));
    assert_eq!(many.len(), PROBLEMS_MAX);
    // A warning is at its action.
    let text = "on_http_request:\n  - name: 'a, action 7 (b): c'\n    actions:\n      - type: add-headers\n        config: {headers: {x-user: '${req.host}'}}";
    let [warning] = problems(text).try_into().unwrap();
    assert_eq!(warning.severity, Severity::Warning);
    assert_eq!(&text[warning.at], "add-headers");
}

#[test]
fn the_endpoint_decides_what_is_valid() {
    let deny = "on_http_request: [{actions: [{type: deny}]}]";
    let of = |scheme, has_upstream, text| check(text, &Place::offline(scheme, has_upstream));
    assert_eq!(of(Scheme::Https, false, deny), []);
    assert!(
        of(Scheme::Tcp, true, deny)[0]
            .message
            .contains("endpoints do not support")
    );
    let log = "on_http_request: [{actions: [{type: log, config: {metadata: {}}}]}]";
    assert!(
        of(Scheme::Https, false, log)[0]
            .message
            .contains("upstream_url")
    );
    // Objects of an account are not known, and count as there.
    for text in [
        "on_tcp_connect: [{actions: [{type: restrict-ips, config: {ip_policies: [ipp_x]}}]}]",
        "on_http_request: [{actions: [{type: basic-auth, config: {credentials: ['${secrets.get(\"v\", \"n\")}']}}]}]",
        "on_http_request: [{actions: [{type: openid-connect, config: {issuer_url: 'https://id.example.com', client_id: a, client_secret: b}}]}]",
    ] {
        assert_eq!(of(Scheme::Https, true, text), [], "{text}");
    }
    let computed = "on_http_request: [{actions: [{type: basic-auth, config: {credentials: ['${secrets.get(req.host, \"n\")}']}}]}]";
    assert!(
        of(Scheme::Https, true, computed)[0]
            .message
            .contains("both names as literals")
    );
}

#[test]
fn what_may_stand_at_a_position_is_completed() {
    assert_eq!(
        taken("on_http_requ|", "on_http_request"),
        "on_http_request:"
    );
    assert_eq!(
        labels("on_http_request: []\n|"),
        ["on_tcp_connect", "on_http_response"]
    );
    assert_eq!(
        taken("on_http_request:\n  |", "actions"),
        "on_http_request:\n  - actions:"
    );
    assert_eq!(
        labels("on_http_request:\n  - name: x\n    |"),
        ["expressions", "actions"]
    );
    assert_eq!(
        taken("on_http_request:\n  - actions:\n      - ty|\n", "type"),
        "on_http_request:\n  - actions:\n      - type: \n"
    );
    let types = labels("on_http_request:\n  - actions:\n      - type: |\n        config: {}");
    assert!(types.contains(&"deny".to_owned()) && !types.contains(&"terminate-tls".to_owned()));
    assert_eq!(
        taken(
            "on_http_request:\n  - actions:\n      - type: rate|",
            "rate-limit"
        ),
        "on_http_request:\n  - actions:\n      - type: rate-limit"
    );
    for text in [
        "on_http_request:\n  - actions:\n      - type: rate-limit\n        config:\n          capacity: 1\n          |",
        "on_http_request:\n  - actions:\n      - config:\n          capacity: 1\n          |\n        type: rate-limit",
        "on_http_request: [{actions: [{type: rate-limit, config: {capacity: 1, |}}]}]",
        "{\"on_http_request\": [{\"actions\": [{\"type\": \"rate-limit\", \"config\": {\"capacity\": 1, \"|",
        "{\"on_http_request\": [{\"actions\": [{\"type\": \"rate-limit\", \"config\": {\"capacity\": 1, \"|\"}}]}]}",
    ] {
        let labels = labels(text);
        assert!(
            labels.starts_with(&["bucket_key".to_owned(), "rate".to_owned()]),
            "{text} {labels:?}"
        );
        assert!(!labels.contains(&"capacity".to_owned()), "{text}");
    }
    assert_eq!(
        labels(
            "on_http_request:\n  - actions:\n      - type: rate-limit\n        config: {scope: |}"
        ),
        ["node", "cluster"]
    );
    assert_eq!(
        labels(
            "on_http_request:\n  - actions:\n      - type: rate-limit\n        config: {enforce: |}"
        ),
        ["true", "false"]
    );
    // Nothing is known below a misspelled name, in a name, or in a comment.
    for text in [
        "on_http_request:\n  - actions:\n      - type: nope\n        config:\n          |",
        "on_http_request:\n  - name: |",
        "on_http_request: [] # |",
        "nope:\n  - |",
    ] {
        assert_eq!(labels(text), <[&str; 0]>::default(), "{text}");
    }
}

#[test]
fn names_in_expressions_are_completed() {
    for (text, label, after) in [
        (
            "on_http_request:\n  - expressions:\n      - req.url.pa|",
            "path",
            "req.url.path",
        ),
        (
            "on_http_request:\n  - expressions: [\"'é' == req.ho|\"]",
            "host",
            "req.host",
        ),
        (
            "on_http_request:\n  - expressions:\n      - \"!conn.|",
            "client_ip",
            "conn.client_ip",
        ),
        (
            "on_http_request:\n  - expressions:\n      - hasReq|",
            "hasReqHeader",
            "hasReqHeader",
        ),
        (
            "on_http_request:\n  - expressions:\n      - req.url.path.starts|('x')",
            "startsWith",
            "req.url.path.startsWith('x')",
        ),
        (
            "on_http_request:\n  - expressions:\n      - hash.sha|",
            "sha256",
            "hash.sha256",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: log\n        config:\n          metadata: {a: \"x ${req.us|}\"}",
            "user_agent",
            "${req.user_agent}",
        ),
        (
            "on_http_request:\n  - actions:\n      - type: rate-limit\n        config:\n          bucket_key:\n            - conn.|",
            "client_ip",
            "conn.client_ip",
        ),
        (
            "{\"on_http_request\": [{\"expressions\": [\"req.|",
            "method",
            "\"req.method",
        ),
    ] {
        let text = taken(text, label);
        assert!(text.contains(after), "{text}");
    }
    let request = labels("on_http_request:\n  - expressions:\n      - |x");
    assert!(request.contains(&"req".to_owned()) && !request.contains(&"res".to_owned()));
    assert!(request.contains(&"secrets".to_owned()));
    // Not in a literal, and not outside of `${…}`.
    for text in [
        "on_http_request:\n  - expressions:\n      - req.host == 're|'",
        "on_http_request:\n  - actions:\n      - type: log\n        config: {metadata: {a: \"x req.|\"}}",
        "on_http_request:\n  - actions:\n      - type: log\n        config: {metadata: {a: \"${req.host} req.|\"}}",
    ] {
        assert_eq!(labels(text), <[&str; 0]>::default(), "{text}");
    }
}

#[test]
fn an_empty_text_offers_the_templates() {
    let (_, completions) = completed(" |\n");
    let templates = completions
        .items
        .iter()
        .filter(|item| item.kind == Kind::Template);
    assert_eq!(templates.count(), 20);
    assert_eq!(completions.at, 0..2);
}

#[test]
fn a_position_is_explained() {
    for (text, shown, doc) in [
        (
            "on_http_|request: []",
            "on_http_request",
            "once per request",
        ),
        ("on_http_request: [{act|ions: []}]", "actions", "in order"),
        (
            "on_http_request: [{actions: [{type: den|y}]}]",
            "deny",
            "on_http_request",
        ),
        (
            "on_http_request: [{actions: [{type: rate-limit, config: {ca|pacity: 1}}]}]",
            "capacity",
            "required",
        ),
        (
            "on_http_request: [{expressions: [req.url.pa|th == 'x']}]",
            "path",
            "**req.url.path**: string",
        ),
        (
            "on_http_request: [{expressions: [\"'😀' == r|eq.host\"]}]",
            "req",
            "**req**: object",
        ),
        (
            "on_http_request: [{expressions: [req.host.starts|With('x')]}]",
            "startsWith",
            "begins with",
        ),
        (
            "on_http_request: [{expressions: [hasReq|Header('x')]}]",
            "hasReqHeader",
            "hasReqHeader(",
        ),
        (
            "on_http_request: [{actions: [{type: log, config: {metadata: {a: \"${req.ho|st}\"}}}]}]",
            "host",
            "**req.host**",
        ),
        (
            "{\"on_http_request\": [{\"actions\": [{\"type\": \"de|ny\"}]}]}",
            "deny",
            "**deny**",
        ),
    ] {
        let (text, at) = cursor(text);
        let found = hover(&text, at).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(&text[found.at.clone()], shown, "{text}");
        assert!(found.doc.contains(doc), "{text}: {}", found.doc);
    }
    for text in [
        "no|pe: []",
        "# on_http_|request",
        "|",
        "on_http_request: [{name: de|ny}]",
    ] {
        let (text, at) = cursor(text);
        assert_eq!(hover(&text, at), None, "{text}");
    }
}

#[test]
fn hostile_texts_have_one_problem() {
    let bomb = (1..20).fold(
        "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(),
        |bomb, level| {
            let below = vec![format!("*a{}", level - 1); 10].join(",");
            format!("{bomb}a{level}: &a{level} [{below}]\n")
        },
    );
    for text in [
        bomb,
        "on_http_request: &a [*a]".to_owned(),
        "[".repeat(100_000),
        "{\"a\":".repeat(40_000),
        "x".repeat(1 << 20),
        "é".repeat(1 << 19),
        "on_http_request: \0".to_owned(),
        "on_http_request:\n\t- actions: []".to_owned(),
        "on_http_request: []\n---\non_http_request: []".to_owned(),
        "on_http_request: !!set {}".to_owned(),
        "\u{feff}\u{feff}{".to_owned(),
        "on_http_request: [{expressions: [\"".to_owned(),
    ] {
        let found = problems(&text);
        let shown: String = text.chars().take(40).collect();
        assert_eq!(found.len(), 1, "{shown}: {found:?}");
        assert!(text.get(found[0].at.clone()).is_some(), "{shown}");
        for at in [0, 5, text.len() / 2, text.len(), usize::MAX] {
            let _none = complete(&text, at);
            let _none = hover(&text, at);
        }
    }
}

proptest! {
    /// Whatever is typed: no panic, and every position is in the text.
    #[test]
    fn changed_templates_are_read(which in 0..20_usize, at in 0..400_usize, cut in 0..40_usize, put in "[ -~é😀\n\t\r\u{0}]{0,8}") {
        let mut text: Vec<char> = templates::all()[which].text.chars().collect();
        let at = at.min(text.len());
        let end = (at + cut).min(text.len());
        text.splice(at..end, put.chars());
        let text: String = text.into_iter().collect();
        let index = LineIndex::new(&text);
        for problem in problems(&text) {
            prop_assert!(text.get(problem.at.clone()).is_some(), "{text:?} {problem:?}");
            let start = index.position(problem.at.start, Unit::Utf16);
            prop_assert!(start <= index.position(problem.at.end, Unit::Utf16));
        }
        for at in [at, end, text.len()] {
            let completions = complete(&text, at);
            prop_assert!(text.get(completions.at).is_some());
            if let Some(hover) = hover(&text, at) {
                prop_assert!(text.get(hover.at).is_some());
            }
        }
    }
}
