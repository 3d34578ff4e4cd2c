use std::sync::Arc;
use std::time::Duration;

use culvert_base::batch::BatchClass;
use culvert_base::{ManualClock, OsEntropy, Secret, Timestamp};
use culvert_target::settings::aws::OwnKeys;
use culvert_target::{Target, TargetContext, TargetType, Verdict};
use serde_json::{Value, json};

use super::arn::{Arn, ResourceType, check_role};
use super::*;
use crate::target::TYPES;
use crate::tests::fake::{
    DESTINATION_IDS, Fake, Reply, batch, failure, local_settings, pair, target,
};

const STREAM: ResourceType = ResourceType {
    field: "stream_arn",
    service: "kinesis",
    resource: "stream/",
    is_regional: true,
};

#[test]
fn each_part_of_an_arn_is_validated() {
    for (text, code) in [
        ("arn:aws:kinesis:us-east-1:123456789012:stream/a", 0),
        (
            "arn:aws-cn:kinesis:cn-north-1:123456789012:stream/a.b_c-d",
            0,
        ),
        ("arn:ngrok-local:kinesis:us-east-1:123456789012:stream/a", 0),
        ("", 5120),
        ("stream/a", 5120),
        ("arn:aws:kinesis:us-east-1:123456789012", 5120),
        ("arn:aws:kinesis:us-east-1:12345678901x:stream/a", 5120),
        ("arn:aws:kinesis:us-east-1:1234:stream/a", 5120),
        ("arn:aws:kinesis:evil.example/:123456789012:stream/a", 5120),
        ("arn:aws:kinesis::123456789012:stream/a", 5120),
        ("arn:aws:kinesis:us-east-1::stream/a", 5120),
        ("arn:aws:kinesis:us-east-1:123456789012:stream/", 5120),
        ("arn:aws:kinesis:us-east-1:123456789012:stream/a b", 5120),
        ("ARN:aws:kinesis:us-east-1:123456789012:stream/a", 5120),
        ("arn:azure:kinesis:us-east-1:123456789012:stream/a", 5118),
        ("arn:aws:firehose:us-east-1:123456789012:stream/a", 5119),
        (
            "arn:aws:kinesis:us-east-1:123456789012:deliverystream/a",
            5130,
        ),
    ] {
        let refused = Arn::check(Some(text), STREAM).err();
        let number = refused
            .and_then(|refusal| refusal.code)
            .map_or(0, |code| code.number());
        assert_eq!(number, code, "{text}");
    }
    for (text, fits) in [
        ("arn:aws:iam::123456789012:role/x", true),
        ("arn:aws:iam::123456789012:role/path/to/x", true),
        ("arn:aws:iam::123456789012:user/x", false),
        ("arn:aws:iam:::role/x", false),
        ("arn:aws:s3::123456789012:role/x", false),
        ("role/x", false),
    ] {
        assert_eq!(check_role(Some(text)).is_ok(), fits, "{text}");
    }
}

#[test]
fn a_patch_without_a_secret_keeps_it() {
    let creds = |secret: Value| json!({"auth": {"creds": {"aws_access_key_id": "a", "aws_secret_access_key": secret}}});
    let stored = creds(json!("old"));
    for absent in [json!(null), json!("")] {
        assert_eq!(auth::merge(&stored, creds(absent)), stored);
    }
    let without = json!({"auth": {"creds": {"aws_access_key_id": "a"}}});
    assert_eq!(auth::merge(&stored, without), stored);
    assert_eq!(
        auth::merge(&stored, creds(json!("new"))),
        creds(json!("new"))
    );
    let role = json!({"auth": {"role": {"role_arn": "r"}}});
    assert_eq!(auth::merge(&stored, role.clone()), role);
    assert_eq!(auth::redact(&stored), creds(json!(null)));
}

/// A target whose role is assumed with the server's keys, under a clock that the test moves.
fn with_role(fake: &Fake, clock: Arc<ManualClock>) -> Arc<dyn Target> {
    let ty: &TargetType = TYPES.find("kinesis").unwrap();
    let mut settings = local_settings();
    settings.aws.endpoint = Some(fake.url("/").parse().unwrap());
    settings.aws.own_keys = OwnKeys::Given {
        id: "AKIAOWN".into(),
        secret: Secret::new("own-s3cr3t".into()),
        session: None,
    };
    let config = json!({
        "auth": {"role": {"role_arn": "arn:aws:iam::123456789012:role/events"}},
        "stream_arn": "arn:aws:kinesis:us-east-1:123456789012:stream/events",
    });
    let stored = (ty.check)(&config, &settings, &OsEntropy).unwrap().stored;
    let context = TargetContext::new(settings, clock, Arc::new(OsEntropy));
    (ty.open)(&stored, &context, DESTINATION_IDS).unwrap()
}

fn assumed(id: &str, expiration: &str) -> Reply {
    Reply::with(
        200,
        format!(
            "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>{id}</AccessKeyId>\
         <SecretAccessKey>role-s3cr3t</SecretAccessKey><SessionToken>t0k3n</SessionToken>\
         <Expiration>{expiration}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ),
    )
}

const TAKEN: &str = r#"{"FailedRecordCount":0,"Records":[{},{}]}"#;
const NOW: i64 = 1_800_000_000;

#[tokio::test]
async fn a_role_is_assumed_with_the_account_id_and_renewed_before_expiry() {
    let fake = Fake::start().await;
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(NOW)));
    let kinesis = with_role(&fake, clock.clone());
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    let taken = || Reply::with(200, TAKEN);
    fake.script([
        assumed("ASIA1", "2027-01-15T09:00:00Z"),
        taken(),
        taken(),
        assumed("ASIA2", "2027-01-15T10:00:00Z"),
        taken(),
    ]);
    assert_eq!(kinesis.send(&batch).await, Verdict::Delivered);
    clock.advance(Duration::from_secs(3000));
    assert_eq!(kinesis.send(&batch).await, Verdict::Delivered);
    clock.advance(Duration::from_secs(301));
    assert_eq!(kinesis.send(&batch).await, Verdict::Delivered);
    let seen = fake.seen();
    assert_eq!(
        seen[0].text(),
        "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fevents\
         &RoleSessionName=culvert-ed_1&ExternalId=ac_1&DurationSeconds=3600"
    );
    assert!(
        seen[0]
            .header("authorization")
            .unwrap()
            .contains("AKIAOWN/20270115/us-east-1/sts/")
    );
    assert!(
        seen[1]
            .header("authorization")
            .unwrap()
            .contains("ASIA1/20270115/us-east-1/kinesis/")
    );
    assert_eq!(seen[1].header("x-amz-security-token"), Some("t0k3n"));
    assert!(
        seen[1]
            .header("authorization")
            .unwrap()
            .contains("x-amz-security-token")
    );
    assert!(seen[4].header("authorization").unwrap().contains("ASIA2/"));
}

#[tokio::test]
async fn refused_role_credentials_are_renewed_once_and_a_refused_role_is_reported() {
    let fake = Fake::start().await;
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(NOW)));
    let kinesis = with_role(&fake, clock);
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    let expired = || Reply::with(400, r#"{"__type":"ExpiredTokenException","message":"m"}"#);
    fake.script([
        assumed("ASIA1", "2027-01-15T09:00:00Z"),
        expired(),
        assumed("ASIA2", "2027-01-15T09:00:00Z"),
        Reply::with(200, TAKEN),
        expired(),
        Reply::with(
            403,
            "<E><Code>AccessDenied</Code><Message>own-s3cr3t may not</Message></E>",
        ),
    ]);
    assert_eq!(kinesis.send(&batch).await, Verdict::Delivered);
    let failure = failure(kinesis.send(&batch).await);
    assert_eq!(
        (failure.class, failure.code.as_str()),
        (FailureClass::Auth, "AccessDenied")
    );
    assert_eq!(
        failure.text,
        "the role cannot be assumed: [redacted] may not"
    );
    assert_eq!(fake.seen().len(), 6);
}

#[tokio::test]
async fn a_clock_skew_is_corrected_from_the_response() {
    let fake = Fake::start().await;
    let creds = json!({"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "s"});
    let config = json!({
        "auth": {"creds": creds},
        "stream_arn": "arn:aws:kinesis:us-east-1:123456789012:stream/events",
    });
    let url = fake.url("/").parse().unwrap();
    let kinesis = target(TYPES.find("kinesis").unwrap(), &config, |settings| {
        settings.aws.endpoint = Some(url)
    });
    let body = r#"{"__type":"InvalidSignatureException","message":"Signature expired: 20270115T080000Z is now earlier than 20270116"}"#;
    let date = vec!["date: Sat, 16 Jan 2027 08:30:00 GMT".to_owned()];
    fake.script([Reply::Status(400, date, body.into())]);
    fake.otherwise(Reply::with(200, TAKEN));
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for _ in 0..2 {
        assert_eq!(kinesis.send(&batch).await, Verdict::Delivered);
    }
    let dates: Vec<_> = fake
        .seen()
        .iter()
        .map(|seen| seen.header("x-amz-date").unwrap().to_owned())
        .collect();
    assert_eq!(
        dates,
        ["20270115T080000Z", "20270116T083000Z", "20270116T083000Z"]
    );
}

/// The server's own keys from each source, recognised by the signature of the request to assume the role.
#[tokio::test]
async fn credentials_of_the_server_are_fetched_from_their_source() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "web-t0k3n\n").unwrap();
    let document = r#"{"AccessKeyId":"ASIAOWN","SecretAccessKey":"s","Token":"t","Expiration":"2027-01-15T09:00:00Z"}"#;
    let (keys, sts) = (Fake::start().await, Fake::start().await);
    let at = |path: &str| -> Url { keys.url(path).parse().unwrap() };
    let role_arn = "arn:aws:iam::123456789012:role/web".to_owned();
    for (own_keys, script, asked) in [
        (
            OwnKeys::Container {
                url: at("/keys"),
                token: Some(Secret::new("t0k3n".into())),
                token_file: None,
            },
            vec![Reply::with(200, document)],
            vec!["GET /keys HTTP/1.1"],
        ),
        (
            OwnKeys::Instance { endpoint: at("/") },
            vec![
                Reply::with(200, "imds-t0k3n"),
                Reply::with(200, "profile\n"),
                Reply::with(200, document),
            ],
            vec![
                "PUT /latest/api/token HTTP/1.1",
                "GET /latest/meta-data/iam/security-credentials/ HTTP/1.1",
                "GET /latest/meta-data/iam/security-credentials/profile HTTP/1.1",
            ],
        ),
        (
            OwnKeys::WebIdentity {
                token_file,
                role_arn,
            },
            vec![],
            vec![],
        ),
    ] {
        let before = keys.seen().len();
        keys.script(script);
        let is_web = matches!(own_keys, OwnKeys::WebIdentity { .. });
        if is_web {
            sts.script([assumed("ASIAOWN", "2027-01-15T09:00:00Z")]);
        }
        sts.script([
            assumed("ASIA1", "2027-01-15T09:00:00Z"),
            Reply::with(200, TAKEN),
        ]);
        let config = json!({
            "auth": {"role": {"role_arn": "arn:aws:iam::123456789012:role/events"}},
            "stream_arn": "arn:aws:kinesis:us-east-1:123456789012:stream/events",
        });
        let url = sts.url("/").parse().unwrap();
        let kinesis = target(TYPES.find("kinesis").unwrap(), &config, |settings| {
            settings.aws.endpoint = Some(url);
            settings.aws.own_keys = own_keys;
        });
        let [one, two] = pair();
        let sent = kinesis.send(&batch(BatchClass::Audit, &[&one, &two])).await;
        assert_eq!(sent, Verdict::Delivered);
        let lines: Vec<_> = keys.seen()[before..]
            .iter()
            .map(|seen| seen.line.clone())
            .collect();
        assert_eq!(lines, asked);
        let seen = sts.seen();
        let assume = &seen[seen.len() - 2];
        assert!(assume.header("authorization").unwrap().contains("ASIAOWN/"));
        if is_web {
            let web = &seen[seen.len() - 3];
            assert!(web.header("authorization").is_none());
            assert!(web.text().contains("Action=AssumeRoleWithWebIdentity"));
            assert!(web.text().ends_with("WebIdentityToken=web-t0k3n"));
        }
    }
    let last = keys.seen().pop().unwrap();
    assert_eq!(last.header("x-aws-ec2-metadata-token"), Some("imds-t0k3n"));
}
