use culvert_base::batch::BatchClass;
use culvert_base::{ManualClock, OsEntropy, Timestamp};
use culvert_target::batch::OpenBatch;
use culvert_target::failure::FailureClass;
use culvert_target::guard::Rules;
use serde_json::json;

use super::*;
use crate::tests::fake::{DESTINATION_IDS, Fake, Reply};

fn settings() -> TargetSettings {
    TargetSettings {
        rules: Rules {
            allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
            allow_plain_http: true,
            deny_ports: Vec::new(),
        },
        ..TargetSettings::default()
    }
}

#[tokio::test]
async fn a_callback_gets_each_batch_as_an_array() {
    let fake = Fake::start().await;
    let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
    let context = TargetContext::new(settings(), Arc::new(clock), Arc::new(OsEntropy));
    let config = json!({"callback_url": fake.url("/cb"), "log": true});
    let stored = check(&config, &settings(), &OsEntropy).unwrap().stored;
    let debug = open(&stored, &context, DESTINATION_IDS).unwrap();
    let mut filling = OpenBatch::default();
    filling.push(&"esb_1".into(), br#"{"event_id":"ev_1"}"#);
    filling.push(&"esb_1".into(), br#"{"event_id":"ev_2"}"#);
    let batch = Batch::read("ed_1".into(), BatchClass::Audit, filling.finish().stored).unwrap();

    assert_eq!(debug.send(&batch).await, Verdict::Delivered);
    let seen = &fake.seen()[0];
    assert_eq!(seen.text(), r#"[{"event_id":"ev_1"},{"event_id":"ev_2"}]"#);
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("webhook-signature"), None);

    fake.script([Reply::status(503)]);
    let Verdict::Failed(failure) = debug.send(&batch).await else {
        panic!("delivered")
    };
    assert_eq!(failure.class, FailureClass::Retryable);
}

#[test]
fn log_or_callback_url_must_be_set() {
    let strict = TargetSettings::default();
    for (given, passes) in [
        (json!({"log": true}), true),
        (json!({"callback_url": "https://example.com/"}), true),
        (
            json!({"log": false, "callback_url": "https://example.com/"}),
            true,
        ),
        (json!({"log": true, "callback_url": null}), true),
        (json!({}), false),
        (json!({"log": false}), false),
        (json!({"log": null, "callback_url": ""}), false),
        (json!({"log": "yes"}), false),
        (json!({"callback_url": "http://example.com/"}), false),
        (json!({"callback_url": "https://127.0.0.1/"}), false),
    ] {
        assert_eq!(
            check(&given, &strict, &OsEntropy).is_ok(),
            passes,
            "{given}"
        );
    }
}
