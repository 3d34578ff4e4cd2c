//! What clients rely on: repeated requests, entity tags and conditions, `HEAD` and `OPTIONS`, hosts, codings, and limits.

use std::collections::BTreeSet;

use tokio::task::JoinSet;

use super::harness::{Harness, TestResponse, Wire};
use super::*;

/// Asks on a new connection.
async fn ask(
    harness: &Harness,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> TestResponse {
    let mut wire = Wire::to(harness).await;
    wire.ask(method, path, Some(&harness.token), headers, body)
        .await
}

/// The path of a new IP policy.
async fn ip_policy(harness: &Harness) -> String {
    let made = ask(harness, "POST", "/ip_policies", &[], "{}").await;
    format!("/ip_policies/{}", made.body["id"].as_str().unwrap())
}

#[tokio::test]
async fn four_hundred_repeated_posts_make_one_key() {
    let settings = Settings {
        limits: Limits {
            connections_per_source: 1_000,
            // The waits of a loaded machine are not the subject.
            waiting: Duration::from_secs(60),
            request: Duration::from_secs(120),
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Arc::new(Harness::start(settings).await);
    let before = ask(&harness, "GET", "/api_keys", &[], NO_BODY).await;
    let mut tasks = JoinSet::new();
    for _ in 0..400 {
        let harness = Arc::clone(&harness);
        tasks.spawn(async move {
            let key = ["Idempotency-Key: 8e03978e-40d5-43e8-bc93-6894a57f9324"];
            let made = ask(&harness, "POST", "/api_keys", &key, "{}").await;
            assert_eq!(made.status, 201, "{made:?}");
            assert_eq!(made.header("cache-control"), Some("no-store"));
            let is_repeated = made.header("idempotent-replayed") == Some("true");
            let token = made.body["token"].as_str().unwrap().to_owned();
            (token, made.header("etag").unwrap().to_owned(), is_repeated)
        });
    }
    let answers = tasks.join_all().await;
    let different: BTreeSet<_> = answers.iter().map(|(token, tag, _)| (token, tag)).collect();
    assert_eq!(different.len(), 1);
    assert_eq!(
        answers
            .iter()
            .filter(|(.., is_repeated)| !is_repeated)
            .count(),
        1
    );
    let n_keys = |answer: &TestResponse| answer.body["keys"].as_array().unwrap().len();
    let after = ask(&harness, "GET", "/api_keys", &[], NO_BODY).await;
    assert_eq!(n_keys(&after), n_keys(&before) + 1);
    let kinds = "/events?type=api_key_created.v0";
    let told = ask(&harness, "GET", kinds, &[], NO_BODY).await;
    assert_eq!(
        told.body["events"].as_array().unwrap().len(),
        2,
        "with the first one"
    );
}

#[tokio::test]
async fn a_key_that_is_none_or_of_another_request_is_refused() {
    let harness = Harness::start(Settings::default()).await;
    for (headers, body, status, code) in [
        (&["Idempotency-Key: a b"][..], "{}", 400, 261),
        (&["Idempotency-Key:"], "{}", 400, 261),
        (
            &["Idempotency-Key: a", "Idempotency-Key: a"],
            "{}",
            400,
            261,
        ),
        (&["Idempotency-Key: a"], "{}", 201, 0),
        (&["Idempotency-Key: a"], r#"{"description":"x"}"#, 422, 262),
    ] {
        let answer = ask(&harness, "POST", "/ip_policies", headers, body).await;
        let found = (answer.status, answer.code().unwrap_or(0));
        assert_eq!(found, (status, code), "{headers:?}");
        answer.check_shape("key");
    }
}

#[tokio::test]
async fn an_object_has_a_tag_that_conditions_compare() {
    let harness = Harness::start(Settings::default()).await;
    let path = ip_policy(&harness).await;
    let seen = ask(&harness, "GET", &path, &[], NO_BODY).await;
    let tag = seen.header("etag").unwrap().to_owned();
    assert!(tag.starts_with('"'), "it is strong: {tag}");
    let written = seen.header("last-modified").unwrap().to_owned();
    assert_eq!(seen.header("cache-control"), Some("private, no-cache"));
    let none_match = format!("If-None-Match: \"x\", W/{tag}");
    let same = ask(&harness, "GET", &path, &[&none_match], NO_BODY).await;
    assert_eq!((same.status, same.body.is_null()), (304, true));
    assert_eq!(same.header("etag"), Some(&*tag));
    assert!(same.header("content-type").is_none());
    let head = ask(&harness, "HEAD", &path, &[], NO_BODY).await;
    assert_eq!((head.status, head.header("etag")), (200, Some(&*tag)));
    assert_eq!(head.header("content-length"), seen.header("content-length"));

    let if_match = format!("If-Match: {tag}");
    let body = r#"{"description":"one"}"#;
    let one = ask(&harness, "PATCH", &path, &[&if_match], body).await;
    assert_eq!(one.status, 200, "{one:?}");
    let next = one.header("etag").unwrap().to_owned();
    assert_ne!(next, tag);
    let seen = ask(&harness, "GET", &path, &[&none_match], NO_BODY).await;
    assert_eq!((seen.status, seen.header("etag")), (200, Some(&*next)));
    let weak = format!("If-Match: W/{next}");
    let never = "If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT";
    let now = format!(
        "If-Unmodified-Since: {}",
        seen.header("last-modified").unwrap()
    );
    assert!(written.ends_with(" GMT"));
    for (method, headers, status, code) in [
        ("PATCH", &*if_match, 412, 266),
        ("DELETE", &if_match, 412, 266),
        ("GET", &if_match, 412, 266),
        ("PATCH", &weak, 412, 266),
        ("PATCH", "If-None-Match: *", 412, 266),
        ("PATCH", never, 412, 266),
        ("PATCH", "If-Match: x", 400, 267),
        ("GET", "If-None-Match: *", 304, 0),
        ("PATCH", "If-Match: *", 200, 0),
        ("PATCH", &now, 200, 0),
    ] {
        let body = if method == "PATCH" { "{}" } else { NO_BODY };
        // A patch without a field is refused last.
        let answer = ask(&harness, method, &path, &[headers], body).await;
        let found = (answer.status, answer.code().unwrap_or(0));
        let expected = match (method, status) {
            ("PATCH", 200) => (400, 1400),
            _ => (status, code),
        };
        assert_eq!(found, expected, "{method} {headers}");
        answer.check_shape(headers);
    }
    let lists = ask(&harness, "GET", "/ip_policies", &[], NO_BODY).await;
    assert_eq!(lists.header("etag"), None);
}

/// So have the rules of API keys, which have no ID.
#[tokio::test]
async fn the_rules_of_keys_have_a_tag_that_conditions_compare() {
    let harness = Harness::start(Settings::default()).await;
    let path = "/api_key_rules";
    let seen = ask(&harness, "GET", path, &[], NO_BODY).await;
    let tag = seen.header("etag").unwrap().to_owned();
    assert!(seen.header("last-modified").unwrap().ends_with(" GMT"));
    let none_match = format!("If-None-Match: {tag}");
    let same = ask(&harness, "GET", path, &[&none_match], NO_BODY).await;
    assert_eq!(same.status, 304);
    let if_match = format!("If-Match: {tag}");
    let body = r#"{"required_end":"warn"}"#;
    let written = ask(&harness, "PATCH", path, &[&if_match], body).await;
    assert_eq!(written.status, 200, "{written:?}");
    let next = written.header("etag").unwrap();
    assert_ne!(next, tag);
    let stale = ask(&harness, "PATCH", path, &[&if_match], body).await;
    assert_eq!((stale.status, stale.code()), (412, Some(266)));
    let if_match = format!("If-Match: {next}");
    let again = ask(&harness, "PATCH", path, &[&if_match], body).await;
    assert_eq!((again.status, again.header("etag")), (200, Some(next)));
}

/// A use is no write: what a key was used for last does not make a condition of a write false, though the bytes with it
/// are others.
#[tokio::test]
async fn a_tag_of_one_representation_guards_the_object() {
    let harness = Harness::start(Settings::default()).await;
    let made = ask(&harness, "POST", "/api_keys", &[], "{}").await;
    let path = format!("/api_keys/{}", made.body["id"].as_str().unwrap());
    let tag = |answer: &TestResponse| answer.header("etag").unwrap().to_owned();
    let plain = tag(&ask(&harness, "GET", &path, &[], NO_BODY).await);
    let whole = format!("{path}/restrictions");
    let whole = tag(&ask(&harness, "GET", &whole, &[], NO_BODY).await);
    assert_ne!(plain, whole);
    let body = r#"{"description":"one"}"#;
    let if_match = format!("If-Match: {whole}");
    let written = ask(&harness, "PATCH", &path, &[&if_match], body).await;
    assert_eq!(written.status, 200, "{written:?}");
    let if_match = format!("If-Match: {plain}");
    let stale = ask(&harness, "PATCH", &path, &[&if_match], body).await;
    assert_eq!((stale.status, stale.code()), (412, Some(266)));
}

#[tokio::test]
async fn options_names_the_methods_of_a_path() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let answer = wire.ask("OPTIONS", "/api_keys", None, &[], NO_BODY).await;
    let mut methods: Vec<&str> = answer.header("allow").unwrap().split(", ").collect();
    methods.sort_unstable();
    assert_eq!(answer.status, 204);
    assert_eq!(methods, ["GET", "HEAD", "OPTIONS", "POST"]);
    let page = ["Origin: https://app.test"];
    let answer = wire.ask("GET", "/nope", None, &page, NO_BODY).await;
    let exposed = answer.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("etag") && exposed.contains("retry-after"));
}

#[tokio::test]
async fn a_request_names_one_host() {
    let harness = Harness::start(Settings::default()).await;
    for (hosts, status) in [
        ("", 400),
        ("Host: a\r\nHost: a\r\n", 400),
        ("Host: a/b\r\n", 400),
        ("Host: a\r\n", 200),
    ] {
        let mut wire = Wire::to(&harness).await;
        wire.send(format!("GET {ALIVE_PATH} HTTP/1.1\r\n{hosts}\r\n"))
            .await;
        let answer = wire.answer().await;
        assert_eq!(answer.status, status, "{hosts}");
        if status == 400 {
            assert_eq!(answer.code(), Some(260), "{hosts}");
            answer.check_shape(hosts);
        }
    }
    let mut wire = Wire::to(&harness).await;
    wire.send(format!("GET {ALIVE_PATH} HTTP/1.0\r\n\r\n"))
        .await;
    assert_eq!(wire.answer().await.status, 200);
}

#[tokio::test]
async fn bodies_have_no_coding_and_long_lists_may_have_one() {
    let harness = Harness::start(Settings::default()).await;
    let packed = ask(
        &harness,
        "POST",
        "/vaults",
        &["Content-Encoding: gzip"],
        "{}",
    )
    .await;
    assert_eq!((packed.status, packed.code()), (415, Some(210)));
    assert_eq!(packed.header("accept-encoding"), Some("identity"));
    let plain = ["Content-Encoding: identity"];
    let made = ask(&harness, "POST", "/ip_policies", &plain, "{}").await;
    assert_eq!(made.status, 201);
    for _ in 0..10 {
        ip_policy(&harness).await;
    }
    let plain = ask(&harness, "GET", "/ip_policies", &[], NO_BODY).await;
    assert_eq!(plain.header("content-encoding"), None);
    assert_eq!(plain.header("vary"), Some("accept-encoding"));
    let mut wire = Wire::to(&harness).await;
    let authorization = format!(
        "Authorization: Bearer {}\r\nAccept-Encoding: gzip",
        harness.token
    );
    let packed = wire.open_with("GET", "/ip_policies", &authorization).await;
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    let length = |answer: &TestResponse| -> usize {
        answer.header("content-length").unwrap().parse().unwrap()
    };
    assert!(length(&packed) < length(&plain) / 2);
}

#[tokio::test]
async fn a_limited_account_sees_its_standing() {
    let settings = Settings {
        limits: Limits {
            account_window: Some(Window {
                requests: 2,
                length: Duration::from_secs(60),
            }),
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    for (status, standing) in [
        (200, "\"account\";r=1;"),
        (200, "\"account\";r=0;"),
        (429, "\"account\";r=0;"),
    ] {
        let answer = ask(&harness, "GET", "/self", &[], NO_BODY).await;
        assert_eq!(answer.status, status);
        assert!(answer.header("ratelimit").unwrap().starts_with(standing));
        let policy = answer.header("ratelimit-policy");
        assert_eq!(policy, Some("\"account\";q=2;w=60"));
    }
    let free = Harness::start(Settings::default()).await;
    let answer = ask(&free, "GET", "/self", &[], NO_BODY).await;
    assert_eq!(answer.header("ratelimit"), None);
}

/// More clients than a source may have connections, each with a few writes: every write has an answer.
#[tokio::test]
async fn every_write_of_a_crowd_is_answered() {
    let settings = Settings {
        limits: Limits {
            connections_per_source: 40,
            waiting: Duration::from_millis(200),
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Arc::new(Harness::start(settings).await);
    let mut tasks = JoinSet::new();
    for n in 0..80 {
        let harness = Arc::clone(&harness);
        tasks.spawn(async move {
            let mut wire = Wire::to(&harness).await;
            let token = Some(harness.token.as_str());
            let mut statuses = Vec::new();
            for _ in 0..4 {
                let body = format!(r#"{{"description":"client {n}"}}"#);
                let answer = wire.ask("POST", "/ip_policies", token, &[], &body).await;
                statuses.push(answer.status);
                if answer.status == 503 {
                    assert_eq!(answer.header("retry-after"), Some("1"));
                    wire = Wire::to(&harness).await;
                }
            }
            statuses
        });
    }
    let statuses: Vec<u16> = tasks.join_all().await.concat();
    assert_eq!(statuses.len(), 320);
    assert!(
        statuses.iter().all(|status| [201, 503].contains(status)),
        "{statuses:?}"
    );
}
