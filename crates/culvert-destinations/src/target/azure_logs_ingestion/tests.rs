use culvert_base::RetryAfter;
use culvert_base::batch::BatchClass;
use serde_json::json;

use super::*;
use crate::tests::fake::{Fake, Reply, batch, failure, pair, target};

const PATH: &str = "/dataCollectionRules/dcr-0123456789abcdef0123456789abcdef/streams/Custom-Events?api-version=2023-01-01";

fn azure(authority: &Fake, ingestion: &Fake) -> Arc<dyn Target> {
    let config = json!({
        "tenant_id": "tenant-1",
        "client_id": "client-1",
        "client_secret": "az&s3cr3t",
        "logs_ingestion_uri": ingestion.url(""),
        "data_collection_rule_id": "dcr-0123456789abcdef0123456789abcdef",
        "data_collection_stream_name": "Custom-Events",
    });
    let url = authority.url("/").parse().unwrap();
    target(&TYPE, &config, |settings| {
        settings.azure_authority = Some(url)
    })
}

fn token(text: &str, seconds: u32) -> Reply {
    let body = json!({"access_token": text, "expires_in": seconds, "token_type": "Bearer"});
    Reply::with(200, body.to_string())
}

#[tokio::test]
async fn a_token_is_fetched_once_and_batches_are_arrays_under_gzip() {
    let (authority, ingestion) = (Fake::start().await, Fake::start().await);
    authority.script([token("t0k3n", 3600)]);
    ingestion.otherwise(Reply::status(204));
    let azure = azure(&authority, &ingestion);
    let [one, two] = pair();
    let batch = batch(BatchClass::Traffic, &[&one, &two]);
    for _ in 0..2 {
        assert_eq!(azure.send(&batch).await, Verdict::Delivered);
    }
    let asked = authority.seen();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].line, "POST /tenant-1/oauth2/v2.0/token HTTP/1.1");
    assert_eq!(
        asked[0].header("content-type"),
        Some("application/x-www-form-urlencoded")
    );
    assert_eq!(
        asked[0].text(),
        "grant_type=client_credentials&client_id=client-1&client_secret=az%26s3cr3t&scope=https%3A%2F%2Fmonitor.azure.com%2F.default"
    );
    let seen = &ingestion.seen()[0];
    assert_eq!(seen.line, format!("POST {PATH} HTTP/1.1"));
    assert_eq!(seen.header("authorization"), Some("Bearer t0k3n"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("x-ms-client-request-id"), Some("ev_1:esb_1+2"));
    assert_eq!(seen.unpacked()[1]["event_id"], "ev_2");
}

#[tokio::test]
async fn a_token_is_renewed_before_expiry_and_once_after_a_refusal() {
    let (authority, ingestion) = (Fake::start().await, Fake::start().await);
    authority.script([token("one", 299), token("two", 3600), token("three", 3600)]);
    ingestion.script([Reply::status(204), Reply::status(401), Reply::status(204)]);
    let azure = azure(&authority, &ingestion);
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for _ in 0..2 {
        assert_eq!(azure.send(&batch).await, Verdict::Delivered);
    }
    let bearers: Vec<_> = ingestion
        .seen()
        .iter()
        .map(|seen| seen.header("authorization").unwrap().to_owned())
        .collect();
    assert_eq!(bearers, ["Bearer one", "Bearer two", "Bearer three"]);

    authority.otherwise(token("four", 3600));
    ingestion.otherwise(Reply::with(401, "token three and az&s3cr3t"));
    let failure = failure(azure.send(&batch).await);
    assert_eq!(failure.class, FailureClass::Auth);
    assert!(!failure.text.contains("s3cr3t"), "{}", failure.text);
}

#[tokio::test]
async fn responses_are_classified() {
    use FailureClass::*;
    let (authority, ingestion) = (Fake::start().await, Fake::start().await);
    authority.otherwise(token("t0k3n", 3600));
    let azure = azure(&authority, &ingestion);
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for (status, body, class) in [
        (
            400,
            r#"{"error":{"code":"InvalidStream","message":"m"}}"#,
            Config,
        ),
        (
            400,
            r#"{"error":{"code":"InvalidJson","message":"m"}}"#,
            Permanent,
        ),
        (403, "", Auth),
        (404, "", Config),
        (413, "", Split),
        (429, "", Retryable),
        (503, "", Retryable),
    ] {
        ingestion.script([Reply::Status(
            status,
            vec!["retry-after: 4".into()],
            body.into(),
        )]);
        let failure = failure(azure.send(&batch).await);
        assert_eq!(
            (failure.class, failure.after),
            (class, Some(RetryAfter::new(Duration::from_secs(4)))),
            "{status}"
        );
    }
    let refused = Fake::start().await;
    refused.script([
        Reply::with(
            400,
            r#"{"error":"invalid_client","error_description":"az&s3cr3t"}"#,
        ),
        Reply::status(503),
    ]);
    let unknown = self::azure(&refused, &ingestion);
    assert_eq!(failure(unknown.send(&batch).await).class, Auth);
    assert_eq!(failure(unknown.send(&batch).await).class, Retryable);
    assert!(!format!("{unknown:?}").contains("s3cr3t"));
}

#[test]
fn an_endpoint_in_a_private_network_is_refused() {
    let config = json!({
        "tenant_id": "t", "client_id": "c", "client_secret": "s", "data_collection_rule_id": "dcr-1",
        "data_collection_stream_name": "Custom-E", "logs_ingestion_uri": "https://10.0.0.1",
    });
    let refusal = check(
        &config,
        &TargetSettings::default(),
        &culvert_base::OsEntropy,
    )
    .unwrap_err();
    assert_eq!(refusal.code, Some(code::AZURE_URI_MALFORMED));
    assert!(refusal.message.contains("private"), "{}", refusal.message);
}
