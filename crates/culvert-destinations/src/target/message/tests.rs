use culvert_base::batch::BatchClass;
use serde_json::json;

use super::*;
use crate::tests::fake::batch;

pub(crate) const BASE: &str = "https://culvert.example";
/// What a stranger writes into a name.
pub(crate) const HOSTILE: &str =
    "@everyone <!channel> <@U1> [x](https://evil.example) **b** `c`\r\nBcc: a@evil.example\u{202e}";

/// An event of this kind.
pub(crate) fn event(id: u32, kind: &str, object: &Value) -> String {
    format!(
        r#"{{"event_id":"ev_{id}","event_type":"{kind}","event_timestamp":"2027-01-15T08:00:00.000Z","account_id":"ac_1","principal":{{"id":"usr_1","subject":"anna@example.com","source":"API"}},"object":{object}}}"#
    )
}

/// The object of an alert.
pub(crate) fn alert(severity: &str, is_resolved: bool, summary: &str) -> Value {
    json!({
        "id": "alr_1", "rule_id": "alrule_1", "rule_name": "Errors of the shop", "condition": "error_rate",
        "severity": severity, "state": if is_resolved { "resolved" } else { "firing" }, "summary": summary,
        "subject": {"kind": "endpoint", "id": "ep_1", "name": "shop.example"}, "value": 0.25, "threshold": 0.1,
        "fired_at": "2027-01-15T08:00:00Z", "resolved_at": null, "repetition": 0,
    })
}

/// The events `alert_fired` and `alert_resolved` of one alert.
pub(crate) fn alerts() -> [String; 2] {
    [
        event(
            1,
            "alert_fired.v0",
            &alert("critical", false, "25 % of the requests failed"),
        ),
        event(
            2,
            "alert_resolved.v0",
            &alert("critical", true, "25 % of the requests failed"),
        ),
    ]
}

/// The message of an envelope.
pub(crate) fn message(envelope: &str) -> Message {
    let batch = batch(BatchClass::Audit, &[envelope]);
    Message::of(batch.deliveries().next().unwrap(), BASE)
}

#[test]
fn an_alert_has_its_severity_summary_and_subject() {
    let [fired, resolved] = alerts().map(|event| message(&event));
    assert_eq!(fired.title, "[critical] 25 % of the requests failed");
    assert_eq!(fired.severity, Severity::Critical);
    let id = "alr_1".to_owned();
    assert_eq!(
        fired.alert,
        Some(Alert {
            id,
            is_resolved: false
        })
    );
    for field in [
        ("Rule", "Errors of the shop"),
        ("Subject", "shop.example"),
        ("Value", "0.25"),
    ] {
        assert!(
            fired.fields.contains(&(field.0, field.1.to_owned())),
            "{field:?}"
        );
    }
    let link = "https://culvert.example/console/events/ev_1";
    assert_eq!(fired.link.as_deref(), Some(link));
    assert_eq!(resolved.title, "[resolved] 25 % of the requests failed");
    assert!(resolved.alert.unwrap().is_resolved);
    for (name, severity) in [
        ("info", Severity::Info),
        ("warning", Severity::Warning),
        ("unheard of", Severity::Critical),
    ] {
        let event = event(1, "alert_fired.v0", &alert(name, false, "s"));
        assert_eq!(message(&event).severity, severity);
    }
    // Without a summary, the name of the rule.
    let event = event(1, "alert_fired.v0", &alert("info", false, ""));
    assert_eq!(message(&event).title, "[info] Errors of the shop");
}

#[test]
fn other_events_are_a_sentence() {
    let key = message(&event(
        1,
        "api_key_created.v0",
        &json!({"id": "ak_1", "description": "d"}),
    ));
    assert_eq!(key.title, "API key created");
    assert_eq!(key.text, "API key created: ak_1 by anna@example.com.");
    assert_eq!((key.severity, key.alert), (Severity::Info, None));
    let request = json!({
        "conn": {"client_ip": "203.0.113.9", "server_name": "shop.example"},
        "http": {"request": {"method": "GET", "url": {"path": "/a"}}, "response": {"status_code": 503}},
    });
    let request = message(&event(1, "http_request_complete.v0", &request));
    assert_eq!(
        request.text,
        "HTTP request complete GET /a on shop.example with status 503 from 203.0.113.9 by anna@example.com."
    );
    let failed = message(&event(1, "sign_in_failed.v0", &json!({})));
    assert_eq!(failed.severity, Severity::Warning);
    // A test event, and one whose ID cannot be in a path.
    assert_eq!(message(&crate::tests::fake::pair()[0]).title, "Test");
    let odd = event(1, "test", &json!({})).replace("ev_1", "ev/../1");
    assert_eq!(message(&odd).link, None);
}

#[test]
fn text_of_strangers_is_one_line_without_links_and_bounded() {
    let named = event(
        1,
        "api_key_created.v0",
        &json!({"id": HOSTILE, "name": "x".repeat(5000)}),
    );
    let alarming = event(
        2,
        "alert_fired.v0",
        &alert("info", false, &HOSTILE.repeat(200)),
    );
    for message in [message(&named), message(&alarming)] {
        let values = message.fields.iter().map(|(_, value)| value);
        for text in [&message.title, &message.text].into_iter().chain(values) {
            assert!(!text.chars().any(char::is_control), "{text:?}");
            assert!(
                !text.contains("://") && !text.contains('\u{202e}'),
                "{text:?}"
            );
            assert!(text.chars().count() <= 1000);
        }
    }
}

#[test]
fn texts_are_cut_between_characters_and_escapes() {
    assert_eq!(cut("abc", 3), "abc");
    assert_eq!(cut("abcd", 3), "ab…");
    // Two UTF-16 units each.
    assert_eq!(cut("😀😀", 4), "😀😀");
    assert_eq!(cut("😀😀", 3), "😀…");
    let doubled = |text, max| escaped(text, max, |c, out| out.extend([c, c]));
    assert_eq!(doubled("ab", 4), "aabb");
    assert_eq!(doubled("abc", 5), "aabb…");
    assert_eq!(doubled("abc", 4), "aa…");
    assert_eq!(cut_bytes("éé", 4), "éé");
    assert_eq!(cut_bytes("ééé", 5), "é…");
}

proptest::proptest! {
    #[test]
    fn no_text_of_an_event_breaks_a_message(text in "\\PC{0,300}", max in 1usize..300) {
        let object = json!({"id": text, "name": text});
        let made = message(&event(1, "api_key_created.v0", &object));
        proptest::prop_assert!(!made.text.contains('\n'));
        proptest::prop_assert!(cut(&text, max).encode_utf16().count() <= max);
        proptest::prop_assert!(cut_bytes(&text, max + 3).len() <= max + 3);
    }
}
