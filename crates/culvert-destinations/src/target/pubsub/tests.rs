use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use culvert_base::OsEntropy;
use culvert_base::batch::BatchClass;

use super::*;
use crate::tests::fake::{Fake, Reply, batch, failure, pair, target};

const TOPIC: &str = "projects/p-1/topics/events";
const LINE: &str = "POST /v1/projects/p-1/topics/events:publish HTTP/1.1";

/// A key, and its file with tokens of this server.
fn key_file(tokens: &Fake) -> (KeyPair, String) {
    let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let der: aws_lc_rs::encoding::Pkcs8V1Der<'_> = key.as_der().unwrap();
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        STANDARD.encode(der.as_ref())
    );
    let file = json!({
        "type": "service_account", "project_id": "p-1", "private_key_id": "k1", "private_key": pem,
        "client_email": "culvert@p-1.iam.gserviceaccount.com", "client_id": "1", "token_uri": tokens.url("/token"),
    });
    (key, file.to_string())
}

fn token(text: &str) -> Reply {
    let body = json!({"access_token": text, "expires_in": 3599, "token_type": "Bearer"});
    Reply::with(200, body.to_string())
}

fn published(n: usize) -> Reply {
    let ids: Vec<_> = (0..n).map(|id| id.to_string()).collect();
    Reply::with(200, json!({"messageIds": ids}).to_string())
}

/// A token that no request can carry is asked for again, and so is one that is older than a day.
#[tokio::test]
async fn a_useless_token_is_not_kept() {
    let (tokens, topic) = (Fake::start().await, Fake::start().await);
    topic.otherwise(published(1));
    let (_, file) = key_file(&tokens);
    let config = json!({"topic": TOPIC, "service_account_key": file, "url": topic.url("")});
    let pubsub = target(&TYPE, &config, |_| {});
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    let with = |more: &str| Reply::with(200, format!(r#"{{"token_type":"Bearer",{more}}}"#));
    for useless in [
        r#""access_token":"bad\ntoken","expires_in":999999999999999999"#,
        r#""access_token":"","expires_in":60"#,
        r#""expires_in":60"#,
        r#""access_token":"a","expires_in":-1"#,
    ] {
        tokens.script([with(useless)]);
        let failure = failure(pubsub.send(&one).await);
        assert_eq!(
            (failure.class, &*failure.code),
            (FailureClass::Retryable, "token")
        );
    }
    // The endpoint need not say how long it is valid, and a long time is a number too.
    for useful in [
        r#""access_token":"a""#,
        r#""access_token":"a","expires_in":3599.5"#,
        r#""access_token":"a","expires_in":1e300"#,
        r#""access_token":"a","expires_in":"3599""#,
    ] {
        let pubsub = target(&TYPE, &config, |_| {});
        tokens.script([with(useful)]);
        for _ in 0..2 {
            assert_eq!(pubsub.send(&one).await, Verdict::Delivered, "{useful}");
        }
    }
}

#[tokio::test]
async fn events_are_messages_and_the_key_signs_the_request_for_a_token() {
    let (tokens, topic) = (Fake::start().await, Fake::start().await);
    tokens.script([token("one"), token("two")]);
    topic.script([published(2), Reply::status(401), published(2)]);
    let (key, file) = key_file(&tokens);
    let config = json!({
        "topic": TOPIC, "service_account_key": file, "url": topic.url(""), "ordered": true,
    });
    let pubsub = target(&TYPE, &config, |_| {});
    let [one, two] = pair();
    let both = batch(BatchClass::Audit, &[&one, &two]);
    for _ in 0..2 {
        assert_eq!(pubsub.send(&both).await, Verdict::Delivered);
    }
    let seen = topic.seen();
    let bearers: Vec<_> = seen.iter().map(|one| one.header("authorization")).collect();
    let [one, two] = ["Bearer one", "Bearer two"].map(Some);
    assert_eq!(bearers, [one, one, two]);
    assert_eq!(seen[0].line, LINE);
    let message = &seen[0].json()["messages"][1];
    let data = STANDARD.decode(message["data"].as_str().unwrap()).unwrap();
    let data: Value = serde_json::from_slice(&data).unwrap();
    assert_eq!(data["event_id"], "ev_2");
    assert_eq!(message["attributes"]["event_type"], data["event_type"]);
    assert_eq!(message["attributes"]["idempotency_key"], "ev_2:esb_1");
    assert!(message["orderingKey"].is_string());

    // The assertion, verified by another library.
    let asked = tokens.seen()[0].text();
    let asked: std::collections::HashMap<_, _> = url::form_urlencoded::parse(asked.as_bytes())
        .into_owned()
        .collect();
    assert_eq!(
        asked["grant_type"],
        "urn:ietf:params:oauth:grant-type:jwt-bearer"
    );
    let public = jsonwebtoken::DecodingKey::from_rsa_der(key.public_key().as_ref());
    let mut rules = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::RS256);
    rules.set_audience(&[tokens.url("/token")]);
    rules.validate_exp = false;
    let verified = jsonwebtoken::decode::<Value>(&asked["assertion"], &public, &rules).unwrap();
    assert_eq!(verified.header.kid.as_deref(), Some("k1"));
    let verified = verified.claims;
    assert_eq!(verified["iss"], "culvert@p-1.iam.gserviceaccount.com");
    assert_eq!(verified["scope"], SCOPE);
    let [from, to] = ["iat", "exp"].map(|name| verified[name].as_i64().unwrap());
    assert_eq!(to - from, 600);
}

#[tokio::test]
async fn responses_are_classified() {
    use FailureClass::*;
    let (tokens, topic) = (Fake::start().await, Fake::start().await);
    tokens.otherwise(token("t0k3n-t0k3n"));
    let (_, file) = key_file(&tokens);
    let config = json!({"topic": TOPIC, "service_account_key": file, "url": topic.url("")});
    let pubsub = target(&TYPE, &config, |_| {});
    let [one, two] = pair();
    let both = batch(BatchClass::Audit, &[&one, &two]);
    for (http, status, class) in [
        (400, "INVALID_ARGUMENT", Permanent),
        (400, "FAILED_PRECONDITION", Config),
        (403, "PERMISSION_DENIED", Auth),
        (404, "NOT_FOUND", Config),
        (429, "RESOURCE_EXHAUSTED", Retryable),
        (503, "UNAVAILABLE", Retryable),
    ] {
        let error = json!({"error": {"code": http, "message": "t0k3n-t0k3n", "status": status}});
        topic.script([Reply::with(http, error.to_string())]);
        let failure = failure(pubsub.send(&both).await);
        assert_eq!(failure.class, class, "{status}");
        assert!(!failure.text.contains("t0k3n"), "{}", failure.text);
    }
    // A good status without an ID for each message.
    for reply in [published(1), Reply::with(200, "<html>")] {
        topic.script([reply]);
        assert_eq!(failure(pubsub.send(&both).await).class, Config);
    }
    // The endpoint of tokens repeats what it got.
    let refusing = Fake::start().await;
    refusing.otherwise(Reply::with(400, r#"{"error":"invalid_grant"}"#));
    let (_, file) = key_file(&refusing);
    let config = json!({"topic": TOPIC, "service_account_key": file, "url": topic.url("")});
    let refused = target(&TYPE, &config, |_| {});
    assert_eq!(failure(refused.send(&both).await).class, Auth);
}

#[tokio::test]
async fn an_emulator_needs_no_key() {
    let emulator = Fake::start().await;
    emulator.otherwise(published(2));
    let config = json!({"topic": TOPIC, "url": emulator.url("")});
    let pubsub = target(&TYPE, &config, |_| {});
    let [one, two] = pair();
    let both = batch(BatchClass::Traffic, &[&one, &two]);
    assert_eq!(pubsub.send(&both).await, Verdict::Delivered);
    let seen = &emulator.seen()[0];
    assert_eq!((&*seen.line, seen.header("authorization")), (LINE, None));
    assert_eq!(seen.json()["messages"][0]["orderingKey"], Value::Null);
}

#[tokio::test]
async fn senseless_settings_are_refused_without_the_key() {
    let settings = TargetSettings::default();
    let tokens = Fake::start().await;
    let (_, file) = key_file(&tokens);
    let mut file: Value = serde_json::from_str(&file).unwrap();
    file["token_uri"] = "https://oauth2.googleapis.com/token".into();
    let with = |topic: &str, more: Value| {
        let mut config = json!({"topic": topic, "service_account_key": file.to_string()});
        let more = more.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(more);
        check(&config, &settings, &OsEntropy)
    };
    assert!(with(TOPIC, json!({})).is_ok());
    for topic in [
        "",
        "events",
        "projects/p/topics/",
        "projects/../topics/t",
        "projects/p/topics/t/x",
        "projects/p/topics/t?x",
        "projects/p/topics/t x",
    ] {
        assert!(with(topic, json!({})).is_err(), "{topic}");
    }
    let key = |field: &str, value: &str| {
        let mut file = file.clone();
        file[field] = value.into();
        json!({"service_account_key": file.to_string()})
    };
    for more in [
        json!({"service_account_key": null}),
        json!({"service_account_key": "hidden"}),
        json!({"url": "https://pubsub.googleapis.com/hidden"}),
        json!({"url": "https://10.0.0.1"}),
        key("type", "authorized_user"),
        key("private_key", "-----BEGIN hidden"),
        key("token_uri", "https://169.254.169.254/token"),
        key("token_uri", "http://oauth2.googleapis.com/token"),
    ] {
        let refusal = with(TOPIC, more.clone()).unwrap_err();
        assert!(
            !refusal.message.contains("hidden"),
            "{more}: {}",
            refusal.message
        );
    }
    let shown = (TYPE.redact)(&with(TOPIC, json!({})).unwrap().stored);
    assert_eq!(shown["service_account_key"], Value::Null);
}
