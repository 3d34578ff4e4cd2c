use std::io::Read;

use culvert_base::OsEntropy;
use culvert_base::batch::BatchClass;
use flate2::read::GzDecoder;
use serde_json::json;

use super::*;
use crate::tests::fake::{Fake, RecordedRequest, Reply, batch, failure, pair, target};

fn config(more: Value) -> Value {
    let creds = json!({"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "s3cr3t-key"});
    let mut config = json!({
        "auth": {"creds": creds},
        "bucket_arn": "arn:aws:s3:::event.bucket",
    });
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

fn s3(fake: &Fake, more: Value) -> Arc<dyn Target> {
    let url = fake.url("/").parse().unwrap();
    target(&TYPE, &config(more), |settings| {
        settings.aws.endpoint = Some(url)
    })
}

/// Several batches that are not in the queue.
struct Several(Vec<Batch>);

impl Run for Several {
    fn batches(&self) -> usize {
        self.0.len()
    }

    fn batch(&self, index: usize) -> BoxFuture<'_, Result<Batch, Failure>> {
        Box::pin(std::future::ready(Ok(self.0[index].clone())))
    }
}

fn unpacked(seen: &RecordedRequest) -> String {
    let mut text = String::new();
    let mut reader = GzDecoder::new(&seen.body[..]);
    reader.read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn an_object_has_the_lines_of_all_batches_and_the_name_of_the_first() {
    let fake = Fake::start().await;
    let s3 = s3(&fake, json!({"object_prefix": "a=b/", "compression": true}));
    let [one, two] = pair();
    let batches = [&one, &two].map(|event| batch(BatchClass::Traffic, &[event]));
    let put = s3.gathers().unwrap().put(&Several(batches.into())).await;
    assert_eq!(put, Ok(()));
    let seen = &fake.seen()[0];
    assert_eq!(
        seen.line,
        "PUT /event.bucket/a%3Db/2027/01/15/08/ed_1-node-1-ev_1.json.gz HTTP/1.1"
    );
    assert_eq!(unpacked(seen), format!("{one}\n{two}\n"));
    let digest = Sha256::digest(&seen.body);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(seen.header("x-amz-content-sha256"), Some(&*hex));
    assert_eq!(seen.header(DIGEST), Some(&*hex));
    assert_eq!(
        seen.header("x-amz-checksum-sha256"),
        Some(&*STANDARD.encode(digest))
    );
    assert_eq!(seen.header("if-none-match"), Some("*"));
    assert_eq!(seen.header("content-type"), Some("application/x-ndjson"));
    let signed = seen.header("authorization").unwrap();
    assert!(signed.contains("/us-east-1/s3/aws4_request"), "{signed}");
}

/// A batch whose events its reader may not get any more is empty.
#[tokio::test]
async fn batches_without_events_take_no_part_in_an_object() {
    let fake = Fake::start().await;
    let s3 = s3(&fake, json!({}));
    let [one, two] = pair();
    let events: [&[&str]; 4] = [&[], &[&one], &[], &[&two]];
    let batches = |events: &[&[&str]]| {
        let batches = events.iter().map(|one| batch(BatchClass::Audit, one));
        Several(batches.collect())
    };
    for (run, named) in [(&events[..], "ev_1"), (&events[2..], "ev_2")] {
        let put = s3.gathers().unwrap().put(&batches(run)).await;
        assert_eq!(put, Ok(()));
        let line = fake.seen().last().unwrap().line.clone();
        assert!(line.contains(named), "{line}");
    }
    let before = fake.seen().len();
    let put = s3.gathers().unwrap().put(&batches(&events[..1])).await;
    assert_eq!((put, fake.seen().len()), (Ok(()), before));
}

#[tokio::test]
async fn lines_are_uncompressed_if_configured() {
    let fake = Fake::start().await;
    let s3 = s3(&fake, json!({}));
    let [one, two] = pair();
    let sent = s3.send(&batch(BatchClass::Audit, &[&one, &two])).await;
    assert_eq!(sent, Verdict::Delivered);
    let seen = &fake.seen()[0];
    assert_eq!(
        seen.line,
        "PUT /event.bucket/2027/01/15/08/ed_1-node-1-ev_1.json HTTP/1.1"
    );
    assert_eq!(seen.text(), format!("{one}\n{two}\n"));
}

/// An object of that name exists, with the same content or with other content.
#[tokio::test]
async fn an_existing_object_is_not_overwritten() {
    let fake = Fake::start().await;
    let s3 = s3(&fake, json!({}));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    assert_eq!(s3.send(&batch).await, Verdict::Delivered);
    let digest = fake.seen()[0].header(DIGEST).unwrap().to_owned();
    let there = || {
        Reply::with(
            412,
            "<Error><Code>PreconditionFailed</Code><Message>m</Message></Error>",
        )
    };

    // Stored by an attempt whose response was lost.
    let ours = Reply::Status(200, vec![format!("{DIGEST}: {digest}")], String::new());
    fake.script([there(), ours]);
    assert_eq!(s3.send(&batch).await, Verdict::Delivered);
    assert_eq!(fake.seen().len(), 3);
    assert!(fake.seen()[2].line.starts_with("HEAD /event.bucket/2027/"));

    // Stored by an attempt with fewer batches, or not readable.
    for looked in [Reply::status(200), Reply::status(403)] {
        let before = fake.seen().len();
        fake.script([there(), looked]);
        assert_eq!(s3.send(&batch).await, Verdict::Delivered);
        let seen = fake.seen();
        assert_eq!(seen.len(), before + 3);
        let short = &digest[..16];
        let line = format!("/ed_1-node-1-ev_1-{short}.json HTTP/1.1");
        assert!(
            seen[before + 2].line.ends_with(&line),
            "{:?}",
            seen[before + 2]
        );
    }
    fake.script([there(), Reply::status(404), there()]);
    assert_eq!(s3.send(&batch).await, Verdict::Delivered);
}

#[tokio::test]
async fn the_region_of_the_bucket_is_followed_and_errors_are_classified() {
    use FailureClass::*;
    let fake = Fake::start().await;
    let s3 = s3(&fake, json!({}));
    let [one, _] = pair();
    let batch = batch(BatchClass::Audit, &[&one]);
    let region = vec!["x-amz-bucket-region: eu-west-3".to_owned()];
    fake.script([Reply::Status(301, region, String::new())]);
    for _ in 0..2 {
        assert_eq!(s3.send(&batch).await, Verdict::Delivered);
    }
    let regions: Vec<bool> = fake
        .seen()
        .iter()
        .map(|seen| {
            let signed = seen.header("authorization").unwrap();
            signed.contains("/eu-west-3/s3/")
        })
        .collect();
    assert_eq!(regions, [false, true, true]);
    let says =
        |code: &str| format!("<Error><Code>{code}</Code><Message>s3cr3t-key</Message></Error>");
    for (status, code, class) in [
        (404, "NoSuchBucket", Config),
        (403, "AccessDenied", Auth),
        (403, "InvalidAccessKeyId", Auth),
        (503, "SlowDown", Retryable),
        (409, "ConditionalRequestConflict", Retryable),
        (400, "InvalidRequest", Config),
        (500, "InternalError", Retryable),
    ] {
        fake.script([Reply::with(status, says(code))]);
        let failure = failure(s3.send(&batch).await);
        assert_eq!((failure.class, &*failure.code), (class, code), "{failure}");
        assert_eq!(failure.text, "[redacted]");
    }
    fake.script([Reply::Close]);
    assert_eq!(failure(s3.send(&batch).await).class, Unknown);
}

#[test]
fn buckets_are_in_the_host_name_if_possible() {
    let context = crate::tests::fake::Named::context(&TargetSettings::default());
    let url = |bucket: &str, settings: &TargetSettings| {
        let mut config = config(json!({}));
        config["bucket_arn"] = format!("arn:aws:s3:::{bucket}").into();
        let config = check(&config, settings, &OsEntropy).unwrap().stored;
        let config: Config = parse(NAME, &config).unwrap();
        let arn = Arn::check(config.bucket_arn.as_deref(), BUCKET).unwrap();
        let arn = Arn {
            region: "us-east-1",
            ..arn
        };
        let auth = config.auth.clone().unwrap();
        let aws = Aws::open(
            NAME,
            &arn,
            &auth,
            context.net(),
            &settings.aws,
            crate::tests::fake::DESTINATION_IDS,
        )
        .unwrap();
        let s3 = S3 {
            is_in_path: bucket.contains('.'),
            bucket: bucket.to_owned(),
            aws: ArcSwap::from_pointee(aws),
            partition: "aws".to_owned(),
            auth,
            prefix: String::new(),
            packs: false,
            gathering: Gathering {
                bytes_max: 0,
                age_max: Duration::ZERO,
            },
            destination: String::new(),
            account: String::new(),
            context: context.clone(),
        };
        let aws = s3.aws.load_full();
        s3.url(&aws, "k").to_string()
    };
    let settings = TargetSettings::default();
    assert_eq!(
        url("events", &settings),
        "https://events.s3.us-east-1.amazonaws.com/k"
    );
    assert_eq!(
        url("a.b", &settings),
        "https://s3.us-east-1.amazonaws.com/a.b/k"
    );
}

#[test]
fn invalid_configurations_are_refused() {
    let settings = TargetSettings::default();
    let stored = check(&config(json!({})), &settings, &OsEntropy)
        .unwrap()
        .stored;
    assert_eq!(stored["max_file_size"], 67_108_864);
    assert_eq!(stored["max_file_age"], 300);
    assert_eq!(stored["compression"], false);
    assert_eq!(
        (TYPE.redact)(&stored)["auth"]["creds"]["aws_secret_access_key"],
        Value::Null
    );
    for (field, value, code) in [
        ("auth", json!(null), 5106),
        ("auth", json!({}), 5107),
        ("bucket_arn", json!("bucket"), 5120),
        ("bucket_arn", json!("arn:gcp:s3:::events"), 5118),
        ("bucket_arn", json!("arn:aws:sqs:::events"), 5119),
        ("bucket_arn", json!("arn:aws:s3:::events/key"), 5140),
        ("bucket_arn", json!("arn:aws:s3:::Events"), 5140),
        ("object_prefix", json!("a/../b"), 5140),
        ("object_prefix", json!("/a"), 5140),
        ("object_prefix", json!("a?b"), 5140),
        ("max_file_size", json!(1024), 5140),
        ("max_file_age", json!(5), 5140),
        ("region", json!("x"), 5140),
    ] {
        let refusal = check(&config(json!({field: value})), &settings, &OsEntropy).unwrap_err();
        let number = refusal.code.map(|code| code.number());
        assert_eq!(number, Some(code), "{field} {value}: {}", refusal.message);
    }
}
