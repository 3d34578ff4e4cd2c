use culvert_base::batch::BatchClass;
use culvert_target::failure::FailureClass::*;

use super::*;
use crate::target::message::tests::{HOSTILE, alert, alerts, event};
use crate::tests::fake::{
    Fake, Reply, assert_refused, batch, classes, failure, pair, stored_and_shown, target,
};

const PATH: &str = "/api/webhooks/1/s3cr3tXXXXXXXXXXXXXXXXXX";

fn discord(fake: &Fake) -> Arc<dyn Target> {
    let url = fake.url(&format!("{PATH}?thread_id=5"));
    target(&TYPE, &json!({"webhook_url": url}), |_| {})
}

fn taken() -> Reply {
    Reply::with(200, r#"{"id":"9","channel_id":"8","type":0}"#)
}

#[tokio::test]
async fn events_are_embeds_of_one_message_that_mentions_no_one() {
    let fake = Fake::start().await;
    fake.otherwise(taken());
    let [fired, resolved] = alerts();
    let hostile = event(
        3,
        "api_key_created.v0",
        &json!({"id": HOSTILE, "name": HOSTILE}),
    );
    let all = batch(BatchClass::Audit, &[&fired, &resolved, &hostile]);
    assert_eq!(discord(&fake).send(&all).await, Verdict::Delivered);
    let seen = fake.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].line,
        format!("POST {PATH}?thread_id=5&wait=true HTTP/1.1")
    );
    let body = seen[0].json();
    assert_eq!(body["allowed_mentions"], json!({"parse": []}));
    let embeds = body["embeds"].as_array().unwrap();
    assert_eq!(embeds.len(), 3);
    assert_eq!(
        embeds[0]["title"],
        r"\[critical\] 25 % of the requests failed"
    );
    assert_eq!(
        embeds[0]["url"],
        "https://culvert.example/console/events/ev_1"
    );
    assert_eq!(embeds[0]["timestamp"], "2027-01-15T08:00:00.000Z");
    assert_ne!(embeds[0]["color"], embeds[1]["color"]);
    let description = embeds[2]["description"].as_str().unwrap();
    assert!(!description.contains("@everyone") && !description.contains("](http"));
    assert!(description.contains(r"\*\*b\*\* \`c\`"), "{description}");
}

#[tokio::test]
async fn messages_stay_below_the_limits_of_discord() {
    let fake = Fake::start().await;
    fake.otherwise(taken());
    let long = "*".repeat(3000);
    let events: Vec<_> = (0..10)
        .map(|id| event(id, "alert_fired.v0", &alert("warning", false, &long)))
        .collect();
    let events: Vec<_> = events.iter().map(String::as_str).collect();
    let sent = discord(&fake)
        .send(&batch(BatchClass::Audit, &events))
        .await;
    assert_eq!(sent, Verdict::Delivered);
    let mut n_embeds = 0;
    let length = |value: &Value| value.as_str().unwrap().encode_utf16().count();
    for request in fake.seen() {
        let body = request.json();
        let mut total = 0;
        for embed in body["embeds"].as_array().unwrap() {
            n_embeds += 1;
            assert!(length(&embed["title"]) <= 256 && length(&embed["description"]) <= 4096);
            total += length(&embed["title"]) + length(&embed["description"]);
            let fields = embed["fields"].as_array().unwrap();
            assert!(fields.len() <= 25);
            for field in fields {
                assert!((1..=1024).contains(&length(&field["value"])));
                total += length(&field["name"]) + length(&field["value"]);
            }
        }
        assert!(total <= 6000, "{total}");
    }
    assert_eq!(n_embeds, 10);
}

#[tokio::test]
async fn a_rate_limit_in_the_body_is_followed_and_codes_decide() {
    let fake = Fake::start().await;
    let discord = discord(&fake);
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    let limited = r#"{"message":"You are being rate limited.","retry_after":64.57,"global":false}"#;
    fake.script([Reply::with(429, limited)]);
    let limit = failure(discord.send(&one).await);
    assert_eq!(limit.class, Retryable);
    assert_eq!(limit.text, "You are being rate limited.");
    let asked = RetryAfter::new(Duration::from_secs_f64(64.57));
    assert_eq!(limit.after, Some(asked));
    // Nonsense is no wait, and neither is a wait without a limit.
    for (status, body) in [
        (429, r#"{"retry_after":-1}"#),
        (429, r#"{"retry_after":1e300}"#),
        (429, r#"{"retry_after":"soon"}"#),
        (500, r#"{"retry_after":5.0}"#),
    ] {
        fake.script([Reply::with(status, body)]);
        let failure = failure(discord.send(&one).await);
        assert_eq!((failure.class, failure.after), (Retryable, None), "{body}");
    }
    for (status, code, class) in [
        (404, 10_015, Config),
        (401, 50_027, Auth),
        (400, 50_035, Permanent),
        (400, 220_001, Config),
    ] {
        let body = format!(r#"{{"message":"said","code":{code}}}"#);
        fake.script([Reply::with(status, body)]);
        let failure = failure(discord.send(&one).await);
        assert_eq!((failure.class, failure.code), (class, code.to_string()));
    }
    fake.script([Reply::with(403, format!("no {PATH}"))]);
    let refused = failure(discord.send(&one).await);
    assert!(!refused.text.contains("s3cr3t"), "{}", refused.text);
}

/// It may have the message, which is not posted again and again, and no part of it alone.
#[tokio::test]
async fn a_message_without_a_known_response_is_posted_eight_times() {
    let fake = Fake::start().await;
    let [one, two] = pair();
    let both = batch(BatchClass::Audit, &[&one, &two]);
    for (reply, class) in [
        (Reply::with(200, ""), Config),
        (Reply::with(200, "{}"), Config),
        (Reply::with(504, "timeout"), Retryable),
    ] {
        let discord = discord(&fake);
        let n_before = fake.seen().len();
        fake.otherwise(reply);
        for _ in 0..7 {
            let failure = failure(discord.send(&both).await);
            assert!(failure.class == class && failure.after.is_some());
        }
        let last = discord.send(&both).await;
        assert_eq!(classes(last), [Some(Permanent), Some(Permanent)]);
        assert_eq!(fake.seen().len() - n_before, 8);
    }
    // A proxy that did not reach it.
    fake.otherwise(Reply::with(502, "bad gateway"));
    assert_eq!(failure(discord(&fake).send(&both).await).after, None);
    // The page of something else, which did not pass it on.
    fake.otherwise(Reply::with(200, " <html>"));
    let page = failure(discord(&fake).send(&both).await);
    assert_eq!((page.class, page.after), (Config, None));
    // The response of a webhook without `wait`.
    fake.otherwise(Reply::with(204, ""));
    assert_eq!(discord(&fake).send(&both).await, Verdict::Delivered);
}

#[tokio::test]
async fn a_rejected_embed_is_found_by_halves() {
    let fake = Fake::start().await;
    let discord = discord(&fake);
    let [one, two] = pair();
    let both = batch(BatchClass::Audit, &[&one, &two]);
    // The worker divides a batch that is one message.
    fake.script([Reply::with(
        400,
        r#"{"message":"Invalid Form Body","code":50035}"#,
    )]);
    assert_eq!(failure(discord.send(&both).await).class, Permanent);
    assert_eq!(fake.seen().len(), 1);
}

#[test]
fn the_url_is_checked_kept_and_hidden() {
    let valid = json!({"webhook_url": format!("https://discord.example{PATH}")});
    assert_refused(
        &TYPE,
        &valid,
        &[
            json!({"webhook_url": null}),
            json!({"webhook_url": "s3cr3t"}),
            json!({"webhook_url": "https://[::1]/s3cr3t"}),
            json!({"username": "s3cr3t"}),
        ],
    );
    let (stored, shown) = stored_and_shown(&TYPE, &valid);
    assert_eq!(shown["webhook_url"], Value::Null);
    assert_eq!(
        (TYPE.merge)(&stored, json!({}))["webhook_url"],
        valid["webhook_url"]
    );
}
