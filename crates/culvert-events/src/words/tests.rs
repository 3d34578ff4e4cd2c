use proptest::prelude::*;

use super::*;
use crate::catalogue::{AuditKind, Catalogue};
use crate::{LogFilter, Logged};

const KINDS: [&str; 4] = [
    "http_request_complete.v0",
    "tcp_connection_closed.v0",
    "api_key_created.v0",
    "endpoint_updated.v0",
];

/// Saturday, 14:30 in Berlin.
fn context() -> WordsContext<'static> {
    WordsContext {
        now: Timestamp::parse("2026-11-28T13:30:00Z").unwrap(),
        utc_offset: 60,
        kinds: &KINDS,
    }
}

fn catalogue() -> Catalogue {
    let kind = |name: &str| AuditKind {
        name: name.to_owned(),
        doc: String::new(),
        schema: serde_json::json!({"properties": {"id": {}, "name": {}}}),
    };
    Catalogue::new(vec![
        kind("api_key_created.v0"),
        kind("endpoint_updated.v0"),
    ])
}

fn words(text: &str) -> Words {
    parse(text, &context())
}

fn filter(text: &str) -> String {
    let words = words(text);
    assert_eq!(words.error, None, "{text}");
    words.filter.unwrap_or_default()
}

#[test]
fn each_facet_has_its_condition() {
    for (text, condition) in [
        ("", ""),
        ("502", "ev.http.response.status_code == 502"),
        (
            "5xx",
            "(ev.http.response.status_code >= 500 && ev.http.response.status_code <= 599)",
        ),
        (
            "500-504",
            "(ev.http.response.status_code >= 500 && ev.http.response.status_code <= 504)",
        ),
        ("status:>=400", "ev.http.response.status_code >= 400"),
        ("GET", "ev.http.request.method == \"get\""),
        ("method:get", "ev.http.request.method == \"get\""),
        (
            "/checkout",
            "ev.http.request.url.path.startsWith(\"/checkout\")",
        ),
        (
            "/über",
            "ev.http.request.url.path.matches(\"^/%[Cc]3%[Bb][Cc]ber\")",
        ),
        (
            "/caf%c3%a9*/x.y",
            "ev.http.request.url.path.matches(\"^/caf%[Cc]3%[Aa]9.*/x\\\\.y\")",
        ),
        ("/a%20b", "ev.http.request.url.path.startsWith(\"/a%20b\")"),
        (
            "::ffff:203.0.113.7",
            "(ev.conn.client_ip == \"203.0.113.7\" || principal.context.client_ip == \"203.0.113.7\")",
        ),
        (
            "::ffff:203.0.113.0/120",
            "(ev.conn.client_ip.startsWith(\"203.0.113.\") || principal.context.client_ip.startsWith(\"203.0.113.\"))",
        ),
        (
            "host:ΟΔΟΣ.example.com",
            "(ev.http.request.url.host == \"xn--pxavbq.example.com\" || ev.conn.server_name == \"xn--pxavbq.example.com\")",
        ),
        (
            "host:München.example.com:8443",
            "(ev.http.request.url.host == \"xn--mnchen-3ya.example.com\" || ev.conn.server_name == \"xn--mnchen-3ya.example.com\")",
        ),
        (
            "/ev.php",
            "ev.http.request.url.path.startsWith(\"/ev.php\")",
        ),
        (
            "host:ev.example.com",
            "(ev.http.request.url.host == \"ev.example.com\" || ev.conn.server_name == \"ev.example.com\")",
        ),
        ("/a/*/b", "ev.http.request.url.path.matches(\"^/a/.*/b\")"),
        (
            "shop.example.com",
            "(ev.http.request.url.host == \"shop.example.com\" || ev.conn.server_name == \"shop.example.com\")",
        ),
        (
            "*.example.com",
            "(ev.http.request.url.host.endsWith(\".example.com\") || ev.conn.server_name.endsWith(\".example.com\"))",
        ),
        (">500ms", "ev.culvert.duration_ms > 500"),
        ("> 1.5s", "ev.culvert.duration_ms > 1500"),
        ("duration>=2s", "ev.culvert.duration_ms >= 2000"),
        (
            ">500ms <2s",
            "ev.culvert.duration_ms > 500 && ev.culvert.duration_ms < 2000",
        ),
        (
            "203.0.113.7",
            "(ev.conn.client_ip == \"203.0.113.7\" || principal.context.client_ip == \"203.0.113.7\")",
        ),
        (
            "203.0.113.0/24",
            "(ev.conn.client_ip.startsWith(\"203.0.113.\") || principal.context.client_ip.startsWith(\"203.0.113.\"))",
        ),
        (
            "ak_1",
            "(ev.id == \"ak_1\" || principal.credential.id == \"ak_1\")",
        ),
        ("ev_1", "event_id == \"ev_1\""),
        (
            "by:anna@example.com",
            "principal.subject.matches(\"(?i)^anna@example\\\\.com$\")",
        ),
        (
            "type:api_key_created",
            "event_type == \"api_key_created.v0\"",
        ),
        ("type:endpoint", "event_type in [\"endpoint_updated.v0\"]"),
        (
            "reason:upstream_connect_failed",
            "ev.culvert.reason == \"upstream_connect_failed\"",
        ),
        (
            "upstream_aborted",
            "ev.culvert.reason == \"upstream_aborted\"",
        ),
        (
            "failed",
            "(ev.http.response.status_code >= 500 || ev.culvert.reason != \"\")",
        ),
        (
            "502 503 GET",
            "(ev.http.response.status_code == 502 || ev.http.response.status_code == 503) && ev.http.request.method == \"get\"",
        ),
        (
            "-502",
            "!(has(ev.http.response.status_code) && ev.http.response.status_code == 502)",
        ),
        ("ev.conn.server_port == 443", "ev.conn.server_port == 443"),
    ] {
        let made = filter(text);
        assert_eq!(made, condition, "{text}");
        if !made.is_empty() {
            LogFilter::compile(&catalogue(), &made).unwrap();
        }
    }
}

#[test]
fn times_are_local() {
    let between = |text: &str| {
        let words = words(text);
        assert_eq!(words.error, None, "{text}");
        let text = |at: Option<Timestamp>| at.map_or(String::new(), Timestamp::to_millis_text);
        (text(words.since), text(words.until))
    };
    for (text, since, until) in [
        ("last 24h", "2026-11-27T13:30:00.000Z", ""),
        ("last 7 days", "2026-11-21T13:30:00.000Z", ""),
        ("last hour", "2026-11-28T12:30:00.000Z", ""),
        (
            "today",
            "2026-11-27T23:00:00.000Z",
            "2026-11-28T22:59:59.999Z",
        ),
        (
            "yesterday",
            "2026-11-26T23:00:00.000Z",
            "2026-11-27T22:59:59.999Z",
        ),
        ("since 14:00", "2026-11-28T13:00:00.000Z", ""),
        ("since 15:00", "2026-11-27T14:00:00.000Z", ""),
        ("since:14:00", "2026-11-28T13:00:00.000Z", ""),
        ("before 2026-11-28", "", "2026-11-27T22:59:59.999Z"),
        (
            "2026-11-28",
            "2026-11-27T23:00:00.000Z",
            "2026-11-28T22:59:59.999Z",
        ),
        (
            "2026-11-28 10:00",
            "2026-11-28T09:00:00.000Z",
            "2026-11-28T09:00:00.000Z",
        ),
        (
            "from 2026-11-01 to 2026-11-02",
            "2026-10-31T23:00:00.000Z",
            "2026-11-02T22:59:59.999Z",
        ),
        (
            "from yesterday 10:00 to 2h ago",
            "2026-11-27T09:00:00.000Z",
            "2026-11-28T11:30:00.000Z",
        ),
        ("since 2026-11-28T10:00:00Z", "2026-11-28T10:00:00.000Z", ""),
    ] {
        assert_eq!(
            between(text),
            (since.to_owned(), until.to_owned()),
            "{text}"
        );
    }
}

#[test]
fn one_object_and_one_actor_are_fields_and_more_are_conditions() {
    let one = words("ep_1 usr_2 502");
    assert_eq!(one.object.as_deref(), Some("ep_1"));
    assert_eq!(one.actor.as_deref(), Some("usr_2"));
    assert_eq!(
        one.filter.as_deref(),
        Some("ev.http.response.status_code == 502")
    );
    let two = words("ep_1 ep_2");
    assert_eq!(two.object, None);
    assert_eq!(
        two.filter.as_deref(),
        Some(
            "(endpoint_id == \"ep_1\" || ev.id == \"ep_1\" || endpoint_id == \"ep_2\" || ev.id == \"ep_2\")"
        )
    );
    assert!(
        words("-usr_2")
            .filter
            .unwrap()
            .starts_with("!(principal != null")
    );
}

#[test]
fn terms_have_their_place_and_label() {
    let words = words("502 -\"shop floor\" not GET  last 24h");
    let terms: Vec<_> = words
        .terms
        .iter()
        .map(|term| {
            (
                term.start,
                term.end,
                term.facet,
                term.label.as_str(),
                term.is_negated,
            )
        })
        .collect();
    assert_eq!(
        terms,
        [
            (0, 3, "status", "status 502", false),
            (4, 17, "text", "not text \u{201c}shop floor\u{201d}", true),
            (18, 25, "method", "not method GET", true),
            (27, 35, "time", "last 24h", false),
        ]
    );
}

#[test]
fn a_word_without_a_meaning_is_named() {
    for (text, message, place) in [
        (
            "502 sttus:502",
            "`sttus:` is no facet; did you mean `status:`?",
            (4, 13),
        ),
        ("country:DE", "events have no `country`", (0, 10)),
        (
            "reason:upstream_abortd",
            "did you mean `upstream_aborted`?",
            (0, 22),
        ),
        ("status:", "`status:` needs a value", (0, 7)),
        ("since noon", "`since` needs a time", (0, 5)),
        ("-today -\"x\"", "", (0, 0)),
        ("502 or GET", "`or` joins values of one facet", (4, 6)),
        ("type:nothing", "no event type contains `nothing`", (0, 12)),
        ("2001:db8::/33", "cannot be searched", (0, 13)),
    ] {
        let Some(error) = words(text).error else {
            assert_eq!(message, "", "{text}");
            continue;
        };
        assert!(error.message.contains(message), "{text}: {}", error.message);
        assert_eq!((error.start, error.end), place, "{text}");
    }
    assert_eq!(words("502 or 503").error, None);
}

const HTTP: &str = r#"{"event_id":"ev_1","event_type":"http_request_complete.v0","event_timestamp":"2026-11-28T12:00:00.000Z","account_id":"ac_1","principal":null,"object":{"conn":{"client_ip":"2001:db8::7","server_name":"shop.example.com"},"culvert":{"duration_ms":700,"reason":"","trace_id":null,"upstream":"http://a:1"},"http":{"request":{"method":"get","url":{"host":"shop.example.com","path":"/checkout/1","raw":"https://shop.example.com/checkout/1"},"user_agent":null},"response":{"status_code":502}}}}"#;
const TCP: &str = r#"{"event_id":"ev_2","event_type":"tcp_connection_closed.v0","event_timestamp":"2026-11-28T12:00:00.000Z","account_id":"ac_1","principal":null,"object":{"conn":{"client_ip":"10.1.2.3","server_name":""},"culvert":{"duration_ms":5,"reason":"restricted"}}}"#;
const AUDIT: &str = r#"{"event_id":"ev_3","event_type":"api_key_created.v0","event_timestamp":"2026-11-28T12:00:00.000Z","account_id":"ac_1","principal":{"id":"usr_1","subject":"anna@example.com","source":"API","credential":{"id":"ak_9","uri":""},"context":{"client_ip":"10.1.2.3","operation_id":"op_5"}},"object":{"id":"ak_7","name":"Shop"}}"#;
const SERVER: &str = r#"{"event_id":"ev_4","event_type":"endpoint_updated.v0","event_timestamp":"2026-11-28T12:00:00.000Z","account_id":"ac_1","principal":null,"object":{"name":null}}"#;

/// A negated word selects exactly what the word does not.
#[test]
fn words_select_events_and_negated_words_the_others() {
    for (text, wanted) in [
        ("502", [true, false, false, false]),
        ("4xx", [false; 4]),
        ("GET", [true, false, false, false]),
        ("/checkout", [true, false, false, false]),
        ("host:shop", [true, false, false, false]),
        ("*.example.com", [true, false, false, false]),
        (">500ms", [true, false, false, false]),
        ("<500ms", [false, true, false, false]),
        ("shop", [true, false, true, false]),
        ("SHOP", [true, false, true, false]),
        ("agent:curl", [false; 4]),
        ("10.1.2.3", [false, true, true, false]),
        ("10.1.0.0/20", [false, true, true, false]),
        ("2001:db8::/64", [true, false, false, false]),
        ("2001:db8:1::/48", [false; 4]),
        ("ak_7", [false, false, true, false]),
        ("ak_9", [false, false, true, false]),
        ("op_5", [false, false, true, false]),
        ("by:anna@example.com", [false, false, true, false]),
        ("by:ANNA@Example.com", [false, false, true, false]),
        ("by:anna@example", [false; 4]),
        ("::ffff:10.1.2.3", [false, true, true, false]),
        ("anna", [false, false, true, false]),
        ("failed", [true, true, false, false]),
        ("restricted", [false, true, false, false]),
        ("type:traffic", [true, true, false, false]),
        ("type:audit", [false, false, true, true]),
        ("type:http", [true, false, false, false]),
        ("upstream:a:1", [true, false, false, false]),
        ("trace:0af7651916cd43dd8448eb211c80319c", [false; 4]),
    ] {
        for negated in [false, true] {
            let text = if negated {
                format!("-{text}")
            } else {
                text.to_owned()
            };
            let source = filter(&text);
            let filter = LogFilter::compile(&catalogue(), &source).unwrap();
            for (envelope, wanted) in [HTTP, TCP, AUDIT, SERVER].into_iter().zip(wanted) {
                let logged = Logged {
                    envelope,
                    endpoint: "",
                };
                assert_eq!(
                    filter.matches(logged).0,
                    wanted != negated,
                    "{text}: {source}\n{envelope}"
                );
            }
        }
    }
}

#[test]
fn the_word_at_the_end_is_completed() {
    let texts = |text: &str| -> Vec<String> {
        let endpoint = |id, host, url| KnownEndpoint { id, host, url };
        let known = [
            endpoint("ep_2", "shop.example.com", "https://shop.example.com:8443"),
            endpoint(
                "ep_1",
                "my-shop.example.com",
                "https://my-shop.example.com:8443",
            ),
            endpoint("ep_0", "shop.example.com", "http://shop.example.com"),
        ];
        let known = match endpoint_text(text) {
            Some(part) => known
                .into_iter()
                .filter(|one| one.url.contains(&part))
                .collect(),
            None => Vec::new(),
        };
        let found = completions(text, &context(), &known);
        found.into_iter().map(|one| one.text).collect()
    };
    assert_eq!(texts("502 stat"), ["status:"]);
    assert_eq!(texts("-method:pa"), ["-method:PATCH"]);
    let hosts = ["shop.example.com", "my-shop.example.com"];
    let objects = ["object:ep_2", "object:ep_1", "object:ep_0"];
    assert_eq!(texts("sho"), [&hosts[..], &objects].concat());
    assert_eq!(texts("502 -host:my"), ["-host:my-shop.example.com"]);
    assert_eq!(texts("endpoint:my-"), ["endpoint:ep_1"]);
    assert_eq!(texts("host:").len(), 2);
    assert_eq!(texts("path:sho"), [""; 0]);
    assert_eq!(texts("\"sho"), [""; 0]);
    assert!(texts("type:").contains(&"type:api_key_created.v0".to_owned()));
    assert_eq!(texts("last"), ["last 24h", "last 7 days"]);
    assert!(texts("502 ").is_empty());
}

proptest! {
    /// Every condition compiles, whatever the words.
    #[test]
    fn any_text_has_terms_within_it(text in "\\PC{0,60}") {
        check(&text)?;
    }

    #[test]
    fn any_words_have_terms_within_them(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "502", "5xx", "-GET", "not", "or", "and", "/a", "*.b.de", ">5ms", "<", "last", "24h", "today", "since",
                "14:00", "from", "to", "1.2.3.4", "1.2.3.4/9", "a:b", "status:", "\"x y", "\"", "-\"q\"", "ep_1", "-usr_1",
                "by:x", "error", "type:key", "é", "host:É", "text:\\", "reason:malformed", "url:*a*", "-", "--x",
            ]),
            0..12,
        )
    ) {
        check(&words.join(" "))?;
    }
}

fn check(text: &str) -> Result<(), TestCaseError> {
    parse_any(text.as_bytes());
    let words = parse(text, &context());
    if let Some(error) = &words.error {
        prop_assert!(text.get(error.start..error.end).is_some());
    }
    let is_cel = words.terms.iter().any(|term| term.facet == "filter");
    if let (Some(filter), false) = (&words.filter, is_cel) {
        let compiled = LogFilter::compile(&catalogue(), filter);
        prop_assert!(compiled.is_ok(), "{}: {:?}", filter, compiled.err());
    }
    Ok(())
}
