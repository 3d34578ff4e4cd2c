use std::collections::HashMap;

use culvert_base::batch::BatchClass;
use culvert_events::EventFormat;
use culvert_target::failure::FailureClass::*;
use culvert_target::formatted;
use serde_json::json;
use url::Url;

use super::*;
use crate::tests::fake::{
    Fake, RecordedRequest, Reply, assert_refused, batch, failure, pair, stored_and_shown, target,
};

fn config(url: String) -> Value {
    json!({"url": url, "table": "events"})
}

fn clickhouse(fake: &Fake, more: Value) -> Arc<dyn Target> {
    let mut config = config(fake.url(""));
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    target(&TYPE, &config, |_| {})
}

fn query(seen: &RecordedRequest) -> HashMap<String, String> {
    let path = seen.line.split(' ').nth(1).unwrap();
    let url = Url::parse("http://any").unwrap().join(path).unwrap();
    url.query_pairs().into_owned().collect()
}

#[tokio::test]
async fn a_batch_is_one_insert_with_a_token_of_its_events() {
    let fake = Fake::start().await;
    let [one, two] = pair();
    let (both, first) = (
        batch(BatchClass::Traffic, &[&one, &two]),
        batch(BatchClass::Traffic, &[&one]),
    );
    let plain = clickhouse(&fake, json!({}));
    for batch in [&both, &both, &first] {
        assert_eq!(plain.send(batch).await, Verdict::Delivered);
    }
    let more = json!({"database": "a`b", "table": "c\\d", "user": "u", "password": "s3cr3t"});
    let ocsf = formatted(clickhouse(&fake, more), EventFormat::Ocsf);
    assert_eq!(ocsf.send(&first).await, Verdict::Delivered);
    let seen = fake.seen();
    assert!(
        seen[0].line.starts_with("POST /?query="),
        "{}",
        seen[0].line
    );
    assert_eq!(seen[0].header("x-clickhouse-user"), Some("default"));
    assert_eq!(seen[0].header("x-clickhouse-key"), None);
    let queries: Vec<_> = seen.iter().map(query).collect();
    assert_eq!(
        queries[0]["query"],
        "INSERT INTO `default`.`events` FORMAT JSONEachRow"
    );
    assert_eq!(queries[0]["wait_end_of_query"], "1");
    assert_eq!(queries[0]["input_format_allow_errors_num"], "0");
    assert_eq!(queries[0]["input_format_allow_errors_ratio"], "0");
    let token = |at: usize| queries[at]["insert_deduplication_token"].clone();
    assert_eq!((token(0), token(0).len()), (token(1), 64));
    assert_ne!(token(0), token(2));
    let rows = seen[0].unpacked_lines();
    let expected = json!({
        "event_id": "ev_2", "subscription_id": "esb_1", "event_type": "test",
        "event_timestamp": "2027-01-15T08:00:00.000Z", "account_id": "ac_1", "principal": null, "object": {},
    });
    assert_eq!((rows.len(), &rows[1]), (2, &expected));
    assert_eq!(
        queries[3]["query"],
        "INSERT INTO `a\\`b`.`c\\\\d` FORMAT JSONEachRow"
    );
    assert_eq!(seen[3].header("x-clickhouse-user"), Some("u"));
    assert_eq!(seen[3].header("x-clickhouse-key"), Some("s3cr3t"));
    // The event in the other format is the object of its row.
    let row = &seen[3].unpacked_lines()[0];
    assert!(row["object"]["class_uid"].is_number(), "{row}");
    assert_eq!(row["event_id"], "ev_1");
}

#[tokio::test]
async fn the_number_of_an_exception_decides_before_the_status() {
    let fake = Fake::start().await;
    let clickhouse = clickhouse(&fake, json!({"password": "s3cr3t"}));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for (status, code, class) in [
        (400, "27", Permanent),
        (400, "41", Permanent),
        (404, "60", Config),
        (404, "81", Config),
        (403, "516", Auth),
        (500, "497", Auth),
        (500, "241", Retryable),
        (500, "252", Retryable),
        (500, "202", Retryable),
        // The exception came after the status.
        (200, "319", Retryable),
        (400, "36", Permanent),
        (500, "1", Retryable),
    ] {
        let headers = vec![format!("X-ClickHouse-Exception-Code: {code}")];
        let text = format!("Code: {code}. DB::Exception: s3cr3t");
        fake.script([Reply::Status(status, headers, text)]);
        let failure = failure(clickhouse.send(&batch).await);
        assert_eq!((failure.class, &*failure.code), (class, code));
        assert_eq!(
            failure.text,
            format!("Code: {code}. DB::Exception: [redacted]")
        );
    }
    for (status, text, code, class) in [
        (
            500,
            "Code: 60. DB::Exception: Table default.x doesn't exist",
            "60",
            Config,
        ),
        (413, "", "413", Split),
        (502, "bad gateway", "502", Retryable),
    ] {
        fake.script([Reply::with(status, text)]);
        let failure = failure(clickhouse.send(&batch).await);
        assert_eq!((failure.class, &*failure.code), (class, code));
    }
    assert!(!format!("{clickhouse:?}").contains("s3cr3t"));
    // Too many partitions in one insert.
    let headers = vec!["X-ClickHouse-Exception-Code: 252".to_owned()];
    let text =
        "Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 100).";
    fake.script([Reply::Status(500, headers, text.to_owned())]);
    let parts = failure(clickhouse.send(&batch).await);
    assert_eq!(
        (parts.class, &*parts.code, parts.status),
        (Split, "252", Some(500))
    );
    // The header is the receiver's, who may echo the password.
    let headers = vec!["X-ClickHouse-Exception-Code: s3cr3t".to_owned()];
    fake.script([Reply::Status(400, headers, String::new())]);
    assert_eq!(failure(clickhouse.send(&batch).await).code, "400");
    // A page of something else is no success; a body of ClickHouse is.
    fake.script([Reply::with(200, "<html>sign in</html>")]);
    assert_eq!(failure(clickhouse.send(&batch).await).class, Config);
    let headers = vec!["X-ClickHouse-Query-Id: q".to_owned()];
    fake.script([Reply::Status(200, headers, "1".to_owned())]);
    assert_eq!(clickhouse.send(&batch).await, Verdict::Delivered);
}

#[test]
fn invalid_fields_are_refused_and_the_password_is_kept_and_hidden() {
    let mut valid = config("https://clickhouse.example:8443".to_owned());
    valid["password"] = "s3cr3t".into();
    assert_refused(
        &TYPE,
        &valid,
        &[
            json!({"url": "https://clickhouse.example/?password=s3cr3t"}),
            json!({"table": null}),
            json!({"table": ""}),
            json!({"table": "a\nb"}),
            json!({"database": "x".repeat(201)}),
            json!({"user": "a b"}),
            json!({"password": "s3cr3t\n"}),
            json!({"query": "s3cr3t"}),
        ],
    );
    let (stored, shown) = stored_and_shown(&TYPE, &valid);
    assert_eq!(shown["password"], Value::Null);
    valid["password"] = "".into();
    assert_eq!((TYPE.merge)(&stored, valid)["password"], "s3cr3t");
}
