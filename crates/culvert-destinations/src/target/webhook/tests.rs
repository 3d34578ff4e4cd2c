use std::sync::Arc;

use culvert_base::batch::BatchClass;
use culvert_base::{ManualClock, OsEntropy, RetryAfter, SeededEntropy, Timestamp};
use culvert_target::batch::OpenBatch;
use culvert_target::guard::Rules;
use sha2::Digest;

use super::*;
use crate::tests::fake::{DESTINATION_IDS, Fake, Reply};

const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn settings() -> TargetSettings {
    TargetSettings {
        rules: Rules {
            allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
            allow_plain_http: true,
            deny_ports: Vec::new(),
        },
        public_base: "https://culvert.example".to_owned(),
        ..TargetSettings::default()
    }
}

fn target(config: Value) -> Arc<dyn Target> {
    let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
    let context = TargetContext::new(settings(), Arc::new(clock), Arc::new(OsEntropy));
    let stored = check(&config, &settings(), &OsEntropy).unwrap().stored;
    open(&stored, &context, DESTINATION_IDS).unwrap()
}

fn batch(envelopes: &[&str]) -> Batch {
    let mut open = OpenBatch::default();
    for envelope in envelopes {
        open.push(&"esb_1".into(), envelope.as_bytes());
    }
    Batch::read("ed_1".into(), BatchClass::Traffic, open.finish().stored).unwrap()
}

const ONE: &str = r#"{"event_id":"ev_1","object":{}}"#;
const TWO: &str = r#"{"event_id":"ev_2","object":{}}"#;
const THREE: &str = r#"{"event_id":"ev_3","object":{}}"#;

/// HMAC by its definition, independent of the code under test.
fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let pad = |with: u8| -> Vec<u8> {
        (0..64)
            .map(|at| key.get(at).copied().unwrap_or(0) ^ with)
            .collect()
    };
    let inner = Sha256::digest([pad(0x36), message.to_vec()].concat());
    Sha256::digest([pad(0x5c), inner.to_vec()].concat()).to_vec()
}

#[tokio::test]
async fn signatures_match_an_independent_computation() {
    let fake = Fake::start().await;
    let second = "whsec_HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    let webhook = target(
        json!({"url": fake.url("/h"), "secrets": [SECRET, second], "headers": {"X-Team": "edge"}}),
    );
    assert_eq!(webhook.send(&batch(&[ONE])).await, Verdict::Delivered);
    let seen = &fake.seen()[0];
    assert_eq!(seen.line, "POST /h HTTP/1.1");
    assert_eq!(seen.text(), ONE);
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("x-team"), Some("edge"));
    assert_eq!(seen.header("webhook-id"), Some("ev_1:esb_1"));
    assert_eq!(seen.header("webhook-timestamp"), Some("1800000000"));
    let key: Vec<u8> = (0..32).collect();
    let other: Vec<u8> = [31].into_iter().chain(1..32).collect();
    let message = format!("ev_1:esb_1.1800000000.{ONE}");
    let expected: Vec<String> = [key, other]
        .iter()
        .map(|key| format!("v1,{}", STANDARD.encode(hmac(key, message.as_bytes()))))
        .collect();
    assert_eq!(seen.header("webhook-signature"), Some(&*expected.join(" ")));
    // Computed with a library of another language.
    assert_eq!(
        expected[0],
        "v1,HKmN5kxcgm+TkohtwFnnRPRV2gUQeIkiJcr9t+0aaug="
    );
}

#[tokio::test]
async fn single_mode_skips_refused_events_and_stops_at_retryable_failures() {
    let fake = Fake::start().await;
    let webhook = target(json!({"url": fake.url("/")}));
    fake.script([Reply::status(200), Reply::status(422), Reply::status(200)]);
    let Verdict::Partial(outcomes) = webhook.send(&batch(&[ONE, TWO, THREE])).await else {
        panic!("not partial");
    };
    assert_eq!(
        (&outcomes[0], &outcomes[2]),
        (&Outcome::Delivered, &Outcome::Delivered)
    );
    assert!(
        matches!(&outcomes[1], Outcome::Failed(f) if f.class == FailureClass::Permanent && f.code == "422")
    );

    fake.script([
        Reply::status(200),
        Reply::Status(429, vec!["retry-after: 7".into()], "slow down".into()),
    ]);
    let Verdict::Partial(outcomes) = webhook.send(&batch(&[ONE, TWO, THREE])).await else {
        panic!("not partial");
    };
    assert_eq!(
        (&outcomes[0], &outcomes[2]),
        (&Outcome::Delivered, &Outcome::NotTried)
    );
    let Outcome::Failed(failure) = &outcomes[1] else {
        panic!("not failed")
    };
    assert_eq!(failure.after, Some(RetryAfter::new(Duration::from_secs(7))));
    assert_eq!(failure.to_string(), "retryable 429: slow down");
    assert_eq!(fake.seen().len(), 5);
}

#[tokio::test]
async fn batch_mode_posts_one_array() {
    let fake = Fake::start().await;
    let webhook = target(json!({"url": fake.url("/"), "mode": "batch"}));
    assert_eq!(webhook.send(&batch(&[ONE, TWO])).await, Verdict::Delivered);
    let seen = &fake.seen()[0];
    assert_eq!(seen.text(), format!("[{ONE},{TWO}]"));
    assert_eq!(seen.header("webhook-id"), Some("ev_1:esb_1+2"));
}

#[tokio::test]
async fn cloud_events_have_their_headers() {
    let fake = Fake::start().await;
    let audit = r#"{"event_id":"ev_1","event_type":"api_key_created.v0","event_timestamp":"2026-11-20T19:53:18.737Z","account_id":"ac_1","principal":{"id":"usr_1","subject":"a@x.test","source":"API","credential":null},"object":{"id":"ak_1","z":1,"a":2}}"#;
    let traffic = r#"{"event_id":"ev_2","event_type":"tcp_connection_closed.v0","event_timestamp":"2026-11-20T19:53:18.737Z","account_id":"ac_1","principal":null,"object":{"conn":{"server_name":"app.test"}}}"#;
    let webhook = target(json!({"url": fake.url("/"), "encoding": "cloudevents", "mode": "batch"}));
    assert_eq!(
        webhook.send(&batch(&[audit, traffic])).await,
        Verdict::Delivered
    );
    let seen = &fake.seen()[0];
    assert_eq!(
        seen.header("content-type"),
        Some("application/cloudevents-batch+json")
    );
    assert_eq!(
        seen.text(),
        concat!(
            r#"[{"specversion":"1.0","id":"ev_1","source":"https://culvert.example/accounts/ac_1","#,
            r#""type":"api_key_created.v0","time":"2026-11-20T19:53:18.737Z","subject":"ak_1","#,
            r#""datacontenttype":"application/json","accountid":"ac_1","principalid":"usr_1","#,
            r#""principalsubject":"a@x.test","principalsource":"API","data":{"id":"ak_1","z":1,"a":2}},"#,
            r#"{"specversion":"1.0","id":"ev_2","source":"https://culvert.example/accounts/ac_1","#,
            r#""type":"tcp_connection_closed.v0","time":"2026-11-20T19:53:18.737Z","subject":"app.test","#,
            r#""datacontenttype":"application/json","accountid":"ac_1","data":{"conn":{"server_name":"app.test"}}}]"#,
        )
    );
    let single = target(json!({"url": fake.url("/"), "encoding": "cloudevents"}));
    single.send(&batch(&[traffic])).await;
    assert_eq!(
        fake.seen()[1].header("content-type"),
        Some("application/cloudevents+json")
    );
}

#[tokio::test]
async fn secrets_echoed_by_the_receiver_are_redacted() {
    let fake = Fake::start().await;
    let body = format!("bad signature for {SECRET}, Bearer s3cr3t-value");
    fake.script([Reply::Status(401, Vec::new(), body)]);
    let webhook = target(
        json!({"url": fake.url("/"), "secrets": [SECRET], "headers": {"authorization": "Bearer s3cr3t-value"}}),
    );
    let Verdict::Failed(failure) = webhook.send(&batch(&[ONE])).await else {
        panic!("not failed")
    };
    assert_eq!(failure.class, FailureClass::Auth);
    assert_eq!(failure.text, "bad signature for [redacted], [redacted]");
    assert!(!format!("{webhook:?}").contains("s3cr3t"));
}

#[test]
fn a_generated_secret_is_shown_once() {
    let given = json!({"url": "https://example.com/h"});
    let checked = check(&given, &settings(), &SeededEntropy::new(1)).unwrap();
    let made = checked.shown_once.unwrap()["secrets"][0]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(key_of(&made).unwrap().len(), 32);
    assert_eq!(checked.stored["secrets"], json!([made]));
    assert_eq!(
        redact(&checked.stored),
        json!({"url": "https://example.com/h", "secrets": null, "headers": {}, "mode": "single", "encoding": "envelope", "timeout": "15s"})
    );
    // The stored form passes its own check, and no new secret is generated.
    let again = check(&checked.stored, &settings(), &SeededEntropy::new(2)).unwrap();
    assert_eq!((again.stored, again.shown_once), (checked.stored, None));
}

#[test]
fn a_patch_without_secrets_keeps_them() {
    let stored = json!({"url": "https://a.example", "secrets": [SECRET], "headers": {"x-a": "1", "x-b": "2"}});
    for given in [
        json!({"url": "https://b.example"}),
        json!({"url": "https://b.example", "secrets": null}),
        json!({"url": "https://b.example", "secrets": []}),
    ] {
        assert_eq!(merge(&stored, given)["secrets"], json!([SECRET]));
    }
    let merged = merge(
        &stored,
        json!({"headers": {"X-A": "[redacted]", "x-b": "new"}}),
    );
    assert_eq!(merged["headers"], json!({"X-A": "1", "x-b": "new"}));
    let replaced = merge(&stored, json!({"secrets": ["whsec_x"]}));
    assert_eq!(replaced["secrets"], json!(["whsec_x"]));
}

#[test]
fn invalid_configurations_are_refused() {
    let url = "https://example.com/";
    let eleven: Map<String, Value> = (0..11).map(|n| (format!("x-{n}"), "v".into())).collect();
    for (given, says) in [
        (json!({"url": "http://10.0.0.1/"}), "private addresses"),
        (json!({"url": "ftp://example.com/"}), "scheme"),
        (
            json!({"url": "https://u:p@example.com/"}),
            "user or password",
        ),
        (json!({"url": url, "secrets": ["x"]}), "whsec_"),
        (
            json!({"url": url, "secrets": ["whsec_AAAA"]}),
            "24 to 64 bytes",
        ),
        (
            json!({"url": url, "secrets": [SECRET, SECRET, SECRET, SECRET]}),
            "more than 3",
        ),
        (json!({"url": url, "headers": {"Host": "x"}}), "`host`"),
        (
            json!({"url": url, "headers": {"Webhook-Id": "x"}}),
            "`webhook-id`",
        ),
        (
            json!({"url": url, "headers": {"content-length": "1"}}),
            "`content-length`",
        ),
        (
            json!({"url": url, "headers": {"transfer-encoding": "chunked"}}),
            "`transfer-encoding`",
        ),
        (
            json!({"url": url, "headers": {"x": "a\r\nb: c"}}),
            "is invalid or longer",
        ),
        (
            json!({"url": url, "headers": {"x y": "a"}}),
            "not a valid header name",
        ),
        (
            json!({"url": url, "headers": {"x": 1}}),
            "is invalid or longer",
        ),
        (
            json!({"url": url, "headers": {"x": "[redacted]"}}),
            "is invalid or longer",
        ),
        (
            json!({"url": url, "headers": {"x": "1", "X": "2"}}),
            "repeated",
        ),
        (json!({"url": url, "headers": eleven}), "more than 10"),
        (json!({"url": url, "mode": "stream"}), "expected `single`"),
        (json!({"url": url, "timeout": "31s"}), "timeout"),
        (json!({"url": url, "timeout": "999ms"}), "timeout"),
        (json!({"url": url, "timeout": 5}), "target"),
    ] {
        let refusal = check(&given, &settings(), &OsEntropy).unwrap_err();
        assert_eq!(refusal.code.unwrap().number(), 5140);
        let message = refusal.message.to_lowercase();
        assert!(message.contains(&says.to_lowercase()), "{given}: {message}");
        assert!(
            !message.contains("u:p") && !message.contains("aaecaw"),
            "{message}"
        );
    }
}

const KEY_CREATED: &str = r#"{"event_id":"ev_1","event_type":"api_key_created.v0","event_timestamp":"2027-01-15T08:00:00Z","account_id":"ac_1","principal":null,"object":{"id":"ak_1"}}"#;
const KEY_NAMED: &str = r#"{"event_id":"ev_2","event_type":"api_key_created.v0","event_timestamp":"2027-01-15T08:00:00Z","account_id":"ac_1","principal":null,"object":{"id":"ak_2","name":"n"}}"#;

#[tokio::test]
async fn a_template_writes_the_body_that_is_signed() {
    let fake = Fake::start().await;
    let templated = |template: &str, more: Value| {
        let mut config =
            json!({"url": fake.url("/h"), "secrets": [SECRET], "body_template": template});
        for (name, value) in more.as_object().unwrap() {
            config[name] = value.clone();
        }
        target(config)
    };
    let map = templated("{'text': 'new key ' + event.object.id}", json!({}));
    let text = templated("'key ' + event.object.id", json!({}));
    let typed = templated(
        "'# ' + event.object.id",
        json!({"content_type": "text/markdown"}),
    );
    let array = templated("event.object.id", json!({"mode": "batch"}));
    for webhook in [map, text, typed] {
        assert_eq!(
            webhook.send(&batch(&[KEY_CREATED])).await,
            Verdict::Delivered
        );
    }
    assert_eq!(
        array.send(&batch(&[KEY_CREATED, KEY_NAMED])).await,
        Verdict::Delivered
    );
    let expected = [
        (r#"{"text":"new key ak_1"}"#, "application/json"),
        ("key ak_1", "text/plain; charset=utf-8"),
        ("# ak_1", "text/markdown"),
        (r#"["ak_1","ak_2"]"#, "application/json"),
    ];
    let key: Vec<u8> = (0..32).collect();
    for (seen, (body, content_type)) in fake.seen().iter().zip(expected) {
        assert_eq!(seen.text(), body);
        assert_eq!(seen.header("content-type"), Some(content_type));
        let id = seen.header("webhook-id").unwrap();
        let message = format!("{id}.1800000000.{body}");
        let signature = format!("v1,{}", STANDARD.encode(hmac(&key, message.as_bytes())));
        assert_eq!(seen.header("webhook-signature"), Some(&*signature));
    }
}

#[tokio::test]
async fn an_event_without_a_body_is_rejected_alone_and_not_sent() {
    let fake = Fake::start().await;
    let config = |mode: &str| json!({"url": fake.url("/h"), "secrets": [SECRET], "mode": mode, "body_template": "{'name': event.object.name}"});
    let both = batch(&[KEY_CREATED, KEY_NAMED]);
    match target(config("single")).send(&both).await {
        Verdict::Partial(outcomes) => {
            let Outcome::Failed(failure) = &outcomes[0] else {
                panic!("{outcomes:?}");
            };
            assert_eq!(
                (failure.class, &*failure.code),
                (FailureClass::Permanent, "template")
            );
            assert!(
                failure.text.contains("1:23: no such key"),
                "{}",
                failure.text
            );
            assert_eq!(outcomes[1], Outcome::Delivered);
        }
        other => panic!("not partial: {other:?}"),
    }
    assert_eq!(fake.seen().len(), 1);
    assert_eq!(fake.seen()[0].text(), r#"{"name":"n"}"#);
    // The worker divides the batch; nothing of it is sent before.
    match target(config("batch")).send(&both).await {
        Verdict::Failed(failure) => assert_eq!(failure.class, FailureClass::Permanent),
        other => panic!("not failed: {other:?}"),
    }
    assert_eq!(fake.seen().len(), 1);
}

#[test]
fn a_template_is_checked_when_it_is_written() {
    let refused = |more: Value| {
        let mut config = json!({"url": "https://hooks.example", "secrets": [SECRET]});
        for (name, value) in more.as_object().unwrap() {
            config[name] = value.clone();
        }
        let refusal = check(&config, &settings(), &OsEntropy).unwrap_err();
        assert_eq!(refusal.code.map(culvert_base::Code::number), Some(5140));
        refusal.message
    };
    let unknown = refused(json!({"body_template": "{'a':\n event.nope}"}));
    assert!(unknown.contains("`body_template`, 2:"), "{unknown}");
    for more in [
        json!({"body_template": "{'a': "}),
        json!({"body_template": "1 + 1"}),
        json!({"body_template": "event", "encoding": "cloudevents"}),
        json!({"content_type": "text/plain"}),
        json!({"body_template": "'a'", "content_type": "plain"}),
        json!({"body_template": "'a'", "content_type": "text/plain\r\nx: y"}),
        json!({"body_template": "'a'", "content_type": "text/plain", "mode": "batch"}),
    ] {
        refused(more);
    }
}
