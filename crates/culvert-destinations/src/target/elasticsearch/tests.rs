use culvert_base::batch::BatchClass;
use culvert_events::EventFormat;
use culvert_target::failure::FailureClass::*;
use culvert_target::formatted;

use super::*;
use crate::tests::fake::{
    Fake, Reply, assert_refused, batch, classes, failure, pair, stored_and_shown, target,
};

fn config(url: String) -> Value {
    json!({"url": url, "index": "events-culvert"})
}

fn elasticsearch(fake: &Fake, more: Value) -> Arc<dyn Target> {
    let mut config = config(fake.url("/search"));
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    target(&TYPE, &config, |_| {})
}

/// A response with a status and an error type for each item.
fn items(results: &[(u16, &str)]) -> Reply {
    let items: Vec<Value> = results
        .iter()
        .map(|(status, kind)| match *kind {
            "" => json!({"create": {"status": status}}),
            kind => {
                json!({"create": {"status": status, "error": {"type": kind, "reason": "said"}}})
            }
        })
        .collect();
    let errors = results.iter().any(|(status, _)| *status > 299);
    Reply::with(200, json!({"errors": errors, "items": items}).to_string())
}

#[tokio::test]
async fn a_batch_creates_documents_with_the_idempotency_key_as_id() {
    let fake = Fake::start().await;
    fake.otherwise(items(&[(201, ""), (201, "")]));
    let [one, two] = pair();
    let batch = batch(BatchClass::Traffic, &[&one, &two]);
    let with_key = elasticsearch(&fake, json!({"api_key": "s3cr3t-key"}));
    assert_eq!(with_key.send(&batch).await, Verdict::Delivered);
    let with_user = elasticsearch(&fake, json!({"user": "é", "password": "s3cr3t"}));
    let ecs = formatted(with_user, EventFormat::Ecs);
    assert_eq!(ecs.send(&batch).await, Verdict::Delivered);
    let seen = fake.seen();
    assert_eq!(
        seen[0].line,
        format!("POST /search/events-culvert/_bulk?filter_path={FILTER} HTTP/1.1")
    );
    assert_eq!(seen[0].header("content-type"), Some("application/x-ndjson"));
    assert_eq!(seen[0].header("authorization"), Some("ApiKey s3cr3t-key"));
    assert_eq!(seen[1].header("authorization"), Some("Basic w6k6czNjcjN0"));
    assert!(seen[0].unpacked_text().ends_with("}\n"));
    let lines = seen[0].unpacked_lines();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[2], json!({"create": {"_id": "ev_2:esb_1"}}));
    let mut document: Value = serde_json::from_str(&two).unwrap();
    document["@timestamp"] = json!("2027-01-15T08:00:00.000Z");
    assert_eq!(lines[3], document);
    // ECS has the time already.
    let text = seen[1].unpacked_text();
    assert_eq!(text.matches("\"@timestamp\":").count(), 2);
}

#[tokio::test]
async fn each_document_has_its_own_outcome_and_a_conflict_is_a_repetition() {
    let fake = Fake::start().await;
    let elasticsearch = elasticsearch(&fake, json!({}));
    let events = pair();
    let many: Vec<&str> = (0..8).map(|at| events[at % 2].as_str()).collect();
    fake.script([items(&[
        (201, ""),
        (409, "version_conflict_engine_exception"),
        (429, "es_rejected_execution_exception"),
        (503, "unavailable_shards_exception"),
        (400, "document_parsing_exception"),
        (403, "cluster_block_exception"),
        (403, "security_exception"),
        (413, ""),
    ])]);
    let sent = elasticsearch.send(&batch(BatchClass::Audit, &many)).await;
    let (retry, bad) = (Some(Retryable), Some(Permanent));
    let expected = [None, None, retry, retry, bad, retry, Some(Auth), bad];
    assert_eq!(classes(sent), expected);
    // All conflict: the whole batch was stored before.
    let two = batch(BatchClass::Audit, &many[..2]);
    let conflict = (409, "version_conflict_engine_exception");
    fake.script([items(&[conflict, conflict])]);
    assert_eq!(elasticsearch.send(&two).await, Verdict::Delivered);
    // A failure that all documents share is one of the destination.
    for (result, class) in [
        ((404, "index_not_found_exception"), Config),
        ((403, "security_exception"), Auth),
        ((429, "rejected_execution_exception"), Retryable),
    ] {
        fake.script([items(&[result, result])]);
        let failure = failure(elasticsearch.send(&two).await);
        assert_eq!((failure.class, &*failure.code), (class, result.1));
    }
    // Results that are missing are unknown: some documents may be stored.
    for answer in ["", "{\"errors\":true,\"items\":[]}", "{\"errors\":tr"] {
        fake.script([Reply::with(200, answer)]);
        assert_eq!(failure(elasticsearch.send(&two).await).class, Unknown);
    }
}

#[tokio::test]
async fn codes_of_the_receiver_are_scrubbed() {
    let fake = Fake::start().await;
    let elasticsearch = elasticsearch(&fake, json!({"api_key": "s3cr3t-key"}));
    let [one, two] = pair();
    let both = batch(BatchClass::Audit, &[&one, &two]);
    for kind in ["s3cr3t-key", "x\u{1b}[31m\ny"] {
        let error = json!({"type": kind, "reason": ""});
        let body = json!({"error": error, "status": 400}).to_string();
        fake.script([Reply::with(400, body)]);
        let whole = failure(elasticsearch.send(&both).await);
        assert_eq!((&*whole.code, whole.status), ("400", Some(400)));
        fake.script([items(&[(400, kind), (400, kind)])]);
        let Verdict::Partial(outcomes) = elasticsearch.send(&both).await else {
            panic!("not partial");
        };
        for outcome in outcomes {
            let failed = failure(verdict(vec![outcome]));
            assert_eq!((&*failed.code, failed.status), ("400", Some(400)));
        }
    }
}

#[tokio::test]
async fn faults_of_the_index_are_not_those_of_a_document() {
    let fake = Fake::start().await;
    let elasticsearch = elasticsearch(&fake, json!({}));
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    const ARGUMENT: &str = "illegal_argument_exception";
    for (kind, reason, class) in [
        (
            "validation_exception",
            "Validation Failed: 1: this action would add [2] shards, but this cluster currently has [1000]/[1000] maximum normal shards open;",
            Config,
        ),
        (
            ARGUMENT,
            "Validation Failed: 1: this action would add [2] total shards, but this cluster currently has [1000]/[1000] maximum shards open;",
            Config,
        ),
        (
            ARGUMENT,
            "no write index is defined for alias [events]. The write index may be explicitly disabled",
            Config,
        ),
        (
            ARGUMENT,
            "Limit of total fields [1000] has been exceeded while adding new fields [1]",
            Config,
        ),
        // A document's own words.
        (
            ARGUMENT,
            "mapper [object.Limit of total fields] cannot be changed from type [long] to [text]",
            Permanent,
        ),
    ] {
        let error = json!({"type": kind, "reason": reason});
        let body = json!({"errors": true, "items": [{"create": {"status": 400, "error": error}}]});
        fake.script([Reply::with(200, body.to_string())]);
        let failure = failure(elasticsearch.send(&one).await);
        assert_eq!((failure.class, &*failure.code), (class, kind), "{reason}");
    }
}

#[tokio::test]
async fn a_response_beyond_the_limit_splits_the_batch() {
    let fake = Fake::start().await;
    let elasticsearch = elasticsearch(&fake, json!({}));
    let [one, two] = pair();
    let long = format!(
        "{{\"errors\":true,\"items\":[\"{}",
        "x".repeat(ANSWER_BYTES_MAX)
    );
    fake.otherwise(Reply::with(200, long));
    let both = batch(BatchClass::Audit, &[&one, &two]);
    assert_eq!(failure(elasticsearch.send(&both).await).class, Split);
    let alone = batch(BatchClass::Audit, &[&one]);
    assert_eq!(failure(elasticsearch.send(&alone).await).class, Permanent);
}

#[tokio::test]
async fn requests_that_fail_as_a_whole_are_classified() {
    let fake = Fake::start().await;
    let elasticsearch = elasticsearch(&fake, json!({"api_key": "s3cr3t-key"}));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for (status, kind, class) in [
        (401, "security_exception", Auth),
        (403, "security_exception", Auth),
        (404, "index_not_found_exception", Config),
        (413, "", Split),
        (429, "circuit_breaking_exception", Retryable),
        (429, "es_rejected_execution_exception", Retryable),
        (503, "cluster_block_exception", Retryable),
        (400, "illegal_argument_exception", Permanent),
        (502, "", Retryable),
    ] {
        let error = json!({"type": kind, "reason": "the key s3cr3t-key"});
        let body = json!({"error": error, "status": status}).to_string();
        fake.script([Reply::with(
            status,
            if kind.is_empty() { "" } else { &*body },
        )]);
        let failure = failure(elasticsearch.send(&batch).await);
        assert_eq!(failure.class, class, "{status} {kind}");
        assert!(!failure.text.contains("s3cr3t"), "{failure}");
        if !kind.is_empty() {
            assert_eq!(
                (&*failure.code, &*failure.text),
                (kind, "the key [redacted]")
            );
        }
    }
    assert!(!format!("{elasticsearch:?}").contains("s3cr3t"));
}

#[test]
fn invalid_fields_are_refused_and_a_patch_keeps_the_secret_of_its_choice() {
    let valid = config("https://search.example:9200".to_owned());
    assert_refused(
        &TYPE,
        &valid,
        &[
            json!({"url": "https://search.example/?s3cr3t=1"}),
            json!({"index": null}),
            json!({"index": ""}),
            json!({"index": "Events"}),
            json!({"index": "_bulk"}),
            json!({"index": ".."}),
            json!({"index": "a/b"}),
            json!({"index": "x".repeat(256)}),
            json!({"user": "u", "api_key": "s3cr3t"}),
            json!({"password": "s3cr3t"}),
            json!({"user": "a:b", "password": "s3cr3t"}),
            json!({"api_key": "s3cr3t\n"}),
            json!({"cloud_id": "s3cr3t"}),
        ],
    );
    let mut config = valid.clone();
    config["api_key"] = "s3cr3t".into();
    let (stored, shown) = stored_and_shown(&TYPE, &config);
    assert_eq!(shown["api_key"], Value::Null);
    assert_eq!((TYPE.merge)(&stored, valid.clone())["api_key"], "s3cr3t");
    // Another choice does not keep the stored secret.
    let mut with_user = valid;
    with_user["user"] = "u".into();
    let merged = (TYPE.merge)(&stored, with_user.clone());
    assert_eq!(merged.get("api_key"), None);
    with_user["password"] = "s3cr3t".into();
    let (stored, _) = stored_and_shown(&TYPE, &with_user);
    with_user["password"] = "".into();
    assert_eq!((TYPE.merge)(&stored, with_user)["password"], "s3cr3t");
}
