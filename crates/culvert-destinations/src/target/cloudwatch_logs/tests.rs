use culvert_base::batch::BatchClass;

use super::*;
use crate::tests::fake::{Fake, Reply, batch, classes, envelope, failure, pair, target};

fn logs(fake: &Fake) -> Arc<dyn Target> {
    let creds = json!({"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "s3cr3t-key"});
    let config = json!({
        "auth": {"creds": creds},
        "log_group_arn": "arn:aws:logs:us-east-1:123456789012:log-group:/edge/events:*",
    });
    let url = fake.url("/").parse().unwrap();
    target(&TYPE, &config, |settings| {
        settings.aws.endpoint = Some(url);
        settings.node = "a:b*c".into();
    })
}

const MISSING_STREAM: &str = r#"{"__type":"ResourceNotFoundException","message":"m"}"#;

#[tokio::test]
async fn a_missing_log_stream_is_created_and_a_missing_group_is_reported() {
    let fake = Fake::start().await;
    fake.script([
        Reply::with(400, MISSING_STREAM),
        Reply::with(400, r#"{"__type":"ResourceAlreadyExistsException"}"#),
        Reply::with(200, "{}"),
        Reply::with(400, MISSING_STREAM),
        Reply::with(400, MISSING_STREAM),
    ]);
    let logs = logs(&fake);
    let [one, two] = pair();
    let batch = batch(BatchClass::Traffic, &[&one, &two]);
    assert_eq!(logs.send(&batch).await, Verdict::Delivered);
    let seen = fake.seen();
    let operations: Vec<_> = seen
        .iter()
        .map(|seen| seen.header("x-amz-target").unwrap())
        .collect();
    assert_eq!(
        operations,
        [
            "Logs_20140328.PutLogEvents",
            "Logs_20140328.CreateLogStream",
            "Logs_20140328.PutLogEvents"
        ]
    );
    let body = seen[2].json();
    assert_eq!(body["logGroupName"], "/edge/events");
    assert_eq!(body["logStreamName"], "culvert/ed_1/a-b-c/2027-01-15");
    assert_eq!(
        body["logEvents"],
        json!([
            {"timestamp": 1_800_000_000_000i64, "message": one},
            {"timestamp": 1_800_000_000_000i64, "message": two},
        ])
    );
    assert_eq!(failure(logs.send(&batch).await).class, FailureClass::Config);
}

#[tokio::test]
async fn calls_are_sorted_by_time_and_span_less_than_a_day() {
    let fake = Fake::start().await;
    let logs = logs(&fake);
    let events = [
        envelope(1, "2027-01-15T08:00:00.000Z"),
        envelope(2, "2027-01-14T07:59:59.000Z"),
        envelope(3, "2027-01-14T08:00:01.000Z"),
    ];
    fake.script([
        Reply::with(200, "{}"),
        Reply::with(
            200,
            r#"{"rejectedLogEventsInfo":{"tooNewLogEventStartIndex":0}}"#,
        ),
    ]);
    let batch = batch(BatchClass::Traffic, &[&events[0], &events[1], &events[2]]);
    let outcomes = classes(logs.send(&batch).await);
    assert_eq!(outcomes, [Some(FailureClass::Permanent), None, None]);
    let texts = |at: usize| -> Vec<String> {
        let body = fake.seen()[at].json();
        let events = body["logEvents"].as_array().unwrap();
        events
            .iter()
            .map(|event| event["message"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(texts(0), [events[1].clone(), events[2].clone()]);
    assert_eq!(texts(1), [events[0].clone()]);
}

#[tokio::test]
async fn rejected_entries_are_reported_by_position() {
    let fake = Fake::start().await;
    let logs = logs(&fake);
    let events: Vec<String> = (0..5)
        .map(|id| envelope(id, &format!("2027-01-15T08:00:0{id}.000Z")))
        .collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    fake.script([Reply::with(200, r#"{"rejectedLogEventsInfo":{"expiredLogEventEndIndex":1,"tooOldLogEventEndIndex":2,"tooNewLogEventStartIndex":4}}"#)]);
    let Verdict::Partial(outcomes) = logs.send(&batch(BatchClass::Traffic, &events)).await else {
        panic!("not partial")
    };
    let codes: Vec<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Outcome::Failed(failure) => failure.code.as_str(),
            _ => "",
        })
        .collect();
    assert_eq!(codes, ["expired", "too_old", "", "", "too_new"]);
}

#[test]
fn the_largest_batch_is_within_the_limits_of_the_service() {
    let limits = TYPE.limits;
    assert!(limits.bytes_max + limits.events_max as usize * EVENT_OVERHEAD <= 1_048_576);
    assert!(limits.events_max <= 10_000);
}
