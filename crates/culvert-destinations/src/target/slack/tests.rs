use culvert_base::batch::BatchClass;
use culvert_target::Outcome;
use culvert_target::failure::FailureClass::*;

use super::*;
use crate::target::message::tests::{HOSTILE, alerts, event};
use crate::tests::fake::{
    Fake, Reply, assert_refused, batch, failure, pair, stored_and_shown, target,
};

const TOKEN: &str = "s3cr3tXXXXXXXXXXXXXXXXXX";

fn slack(fake: &Fake) -> Arc<dyn Target> {
    let url = fake.url(&format!("/services/T1/B1/{TOKEN}"));
    target(&TYPE, &json!({"webhook_url": url}), |_| {})
}

#[tokio::test]
async fn each_event_is_a_message_without_markup_of_strangers() {
    let fake = Fake::start().await;
    fake.otherwise(Reply::with(200, "ok"));
    let [fired, _] = alerts();
    let hostile = event(
        3,
        "api_key_created.v0",
        &json!({"id": HOSTILE, "name": HOSTILE}),
    );
    let both = batch(BatchClass::Audit, &[&fired, &hostile]);
    assert_eq!(slack(&fake).send(&both).await, Verdict::Delivered);
    let seen = fake.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        seen[0].line,
        format!("POST /services/T1/B1/{TOKEN} HTTP/1.1")
    );
    assert_eq!(seen[0].header("content-type"), Some("application/json"));
    let body = seen[0].json();
    let blocks = &body["blocks"];
    assert_eq!(
        blocks[0]["text"]["text"],
        "[critical] 25 % of the requests failed"
    );
    assert_eq!(blocks[1]["text"]["text"], "25 % of the requests failed");
    let link = "<https://culvert.example/console/events/ev_1|Open the event in the console>";
    assert_eq!(blocks[3]["elements"][0]["text"], link);
    // The one `<` is that of our link, and no text but that has formatting.
    let text = seen[1].text();
    assert_eq!(text.matches('<').count(), 1, "{text}");
    assert_eq!(text.matches("\"mrkdwn\"").count(), 2, "{text}");
    assert!(text.contains("&lt;!channel&gt;"), "{text}");
}

/// A receiver that repeats what it got shows no part of the URL.
#[tokio::test]
async fn a_secret_in_the_query_is_not_shown() {
    let fake = Fake::start().await;
    let path = "/hook?key=tok3n&team=t3am7";
    let config = json!({"webhook_url": fake.url(path)});
    let slack = target(&TYPE, &config, |_| {});
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    for said in [path, "tok3n", "team=t3am7", "key=tok3n&team=t3am7", "TOK3N"] {
        fake.script([Reply::with(403, format!("no {said}"))]);
        let failure = failure(slack.send(&one).await);
        let shown = format!("{} {}", failure.code, failure.text);
        assert!(
            !shown.to_lowercase().contains("tok3n") && !shown.contains("t3am7"),
            "{said}: {shown}"
        );
    }
}

#[tokio::test]
async fn a_short_secret_and_a_decoded_one_are_not_shown() {
    let fake = Fake::start().await;
    let config = json!({"webhook_url": fake.url("/hooks/abcDEF?key=tok%2Fen%2Bsecret")});
    let slack = target(&TYPE, &config, |_| {});
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    fake.script([Reply::with(
        403,
        "no hook abcDEF, key tok/en+secret of hooks",
    )]);
    let failure = failure(slack.send(&one).await);
    assert_eq!(failure.text, "no hook [redacted], key [redacted] of hooks");
}

#[tokio::test]
async fn the_word_of_a_response_decides_before_the_status() {
    let fake = Fake::start().await;
    let slack = slack(&fake);
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    for (status, word, class) in [
        (400, "invalid_payload", Permanent),
        (403, "invalid_token", Auth),
        (403, "action_prohibited", Config),
        (404, "no_service", Config),
        (404, "channel_not_found", Config),
        // Not gone: it may be taken out of the archive.
        (410, "channel_is_archived", Config),
        (500, "rollup_error", Retryable),
        (400, "something_else", Permanent),
        (429, "rate_limited", Retryable),
    ] {
        fake.script([Reply::with(status, word)]);
        let failure = failure(slack.send(&one).await);
        assert_eq!((failure.class, &*failure.code), (class, word));
    }
    fake.script([Reply::with(200, "<html>sign in</html>")]);
    assert_eq!(failure(slack.send(&one).await).class, Config);
    let header = vec!["retry-after: 7".to_owned()];
    fake.script([Reply::Status(429, header, "rate_limited".to_owned())]);
    assert!(failure(slack.send(&one).await).after.is_some());
    // A redirect is not followed, and the URL is not shown.
    let header = vec![format!("location: {}", fake.url("/elsewhere"))];
    let page = format!("moved from /services/T1/B1/{TOKEN}");
    fake.script([Reply::Status(302, header, page)]);
    let failure = failure(slack.send(&one).await);
    assert_eq!(failure.class, Config);
    assert!(!failure.text.contains("s3cr3t"), "{}", failure.text);
    assert!(!format!("{slack:?}").contains("s3cr3t"));
}

#[tokio::test]
async fn a_rejected_message_does_not_hold_up_the_others_and_a_busy_receiver_does() {
    let fake = Fake::start().await;
    fake.otherwise(Reply::with(200, "ok"));
    let slack = slack(&fake);
    let [one, two] = pair();
    let both = batch(BatchClass::Audit, &[&one, &two]);
    fake.script([Reply::with(400, "invalid_payload")]);
    match slack.send(&both).await {
        Verdict::Partial(outcomes) => {
            assert!(matches!(&outcomes[0], Outcome::Failed(failure) if failure.class == Permanent));
            assert_eq!(outcomes[1], Outcome::Delivered);
        }
        other => panic!("not partial: {other:?}"),
    }
    fake.script([Reply::with(200, "ok"), Reply::with(503, "later")]);
    match slack.send(&both).await {
        Verdict::Partial(outcomes) => assert_eq!(outcomes[0], Outcome::Delivered),
        other => panic!("not partial: {other:?}"),
    }
    fake.script([Reply::with(503, "later")]);
    assert_eq!(failure(slack.send(&both).await).class, Retryable);
    assert_eq!(fake.seen().len(), 5);
}

#[test]
fn invalid_urls_are_refused_and_a_valid_one_is_kept_and_hidden() {
    let valid = json!({"webhook_url": format!("https://hooks.slack.example/services/{TOKEN}")});
    assert_refused(
        &TYPE,
        &valid,
        &[
            json!({"webhook_url": null}),
            json!({"webhook_url": ""}),
            json!({"webhook_url": "ftp://s3cr3t.example"}),
            json!({"webhook_url": "https://user:s3cr3t@hooks.slack.example"}),
            json!({"webhook_url": "https://10.0.0.1/s3cr3t"}),
            json!({"channel": "#s3cr3t"}),
        ],
    );
    let (stored, shown) = stored_and_shown(&TYPE, &valid);
    assert_eq!(shown["webhook_url"], Value::Null);
    assert_eq!(
        (TYPE.merge)(&stored, json!({}))["webhook_url"],
        valid["webhook_url"]
    );
}
