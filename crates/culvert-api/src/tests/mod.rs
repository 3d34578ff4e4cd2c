//! Tests of the whole API over real sockets, with a real control and a temporary store.

mod access;
mod console;
mod harness;
mod hostile;
mod semantics;
mod traces;

use std::time::Duration;

use serde_json::{Value, json};

use self::harness::{Harness, Wire};
use super::*;

const NO_BODY: &str = "";

/// A row of a table: the request besides the token, and the expected response.
struct Row {
    method: &'static str,
    path: &'static str,
    headers: &'static [&'static str],
    body: &'static str,
    expected: (u16, Option<u16>),
}

fn row(
    method: &'static str,
    path: &'static str,
    headers: &'static [&'static str],
    body: &'static str,
    status: u16,
    code: impl Into<Option<u16>>,
) -> Row {
    Row {
        method,
        path,
        headers,
        body,
        expected: (status, code.into()),
    }
}

async fn check(harness: &Harness, token: Option<&str>, rows: &[Row]) {
    for row in rows {
        // Sends two requests on one connection: after any error, the next request is served.
        let mut wire = Wire::to(harness).await;
        for _ in 0..2 {
            let answer = wire
                .ask(row.method, row.path, token, row.headers, row.body)
                .await;
            let about = format!("{} {} {:?} {}", row.method, row.path, row.headers, row.body);
            assert_eq!(
                (answer.status, answer.code()),
                row.expected,
                "{about}: {answer:?}"
            );
            answer.check_shape(&about);
        }
    }
}

#[tokio::test]
async fn checks_come_in_their_order() {
    let harness = Harness::start(Settings::default()).await;
    let preflight: &[&str] = &[
        "Origin: http://a.test",
        "Access-Control-Request-Method: POST",
    ];
    // Each row violates its own rule and all later ones. The response reports the first violation.
    check(
        &harness,
        None,
        &[
            row("OPTIONS", "/nope", preflight, NO_BODY, 204, None),
            row("OPTIONS", "/api_keys", preflight, NO_BODY, 204, None),
            row("OPTIONS", "/api_keys", &[], NO_BODY, 204, None),
            row(
                "OPTIONS",
                "/api_keys",
                &["Origin: http://a.test"],
                NO_BODY,
                204,
                None,
            ),
            row("OPTIONS", "/nope", &[], NO_BODY, 404, None),
            row("GET", "/nope", &["ngrok-version: 1"], "x", 404, None),
            row("GET", "/api_keys/", &[], NO_BODY, 404, None),
            row("PUT", "/api_keys", &["ngrok-version: 1"], "x", 405, None),
            row("HEAD", "/api_keys", &[], NO_BODY, 401, None),
            row("HEAD", TAIL_PATH, &[], NO_BODY, 405, None),
            row("HEAD", "/events/follow", &[], NO_BODY, 405, None),
            row("HEAD", "/events?follow=true", &[], NO_BODY, 405, None),
            row(
                "HEAD",
                "//events?limit=1&follow=true",
                &[],
                NO_BODY,
                405,
                None,
            ),
            row("HEAD", "/events?follow=false", &[], NO_BODY, 401, None),
            row("POST", "/api_keys", &["ngrok-version: 1"], "x", 401, 200),
            row("GET", "/api_keys/nope?limit=x", &[], "x", 401, 200),
            row("GET", TAIL_PATH, &[], NO_BODY, 401, 200),
            row("GET", ALIVE_PATH, &[], NO_BODY, 200, None),
            row("GET", READY_PATH, &[], NO_BODY, 200, None),
            row("GET", OPENAPI_PATH, &[], NO_BODY, 200, None),
            row("POST", ALIVE_PATH, &[], NO_BODY, 405, None),
        ],
    )
    .await;
    check(
        &harness,
        Some(&harness.token),
        &[
            row(
                "POST",
                "/api_keys",
                &["ngrok-version: 1", "content-type: a/b"],
                "x",
                400,
                217,
            ),
            row(
                "POST",
                "/api_keys",
                &["ngrok-version: 3"],
                NO_BODY,
                400,
                217,
            ),
            row("POST", "/event_destinations", &[], NO_BODY, 400, 235),
            row(
                "POST",
                "/api_keys?limit=%zz",
                &["content-type: text/plain"],
                "x",
                415,
                210,
            ),
            row("GET", "/api_keys/nope?limit=%zz", &[], "{}", 400, 211),
            row(
                "DELETE",
                "/api_keys/nope",
                &["content-type: a/b"],
                "{}",
                400,
                211,
            ),
            row("PATCH", "/api_keys/nope", &[], "[]", 400, 213),
            row("PATCH", "/api_keys/nope", &[], "{", 400, 213),
            row("PATCH", "/api_keys/nope", &[], r#"{"nope":1}"#, 400, 214),
            row(
                "PATCH",
                "/api_keys/nope",
                &[],
                r#"{"metadata":1}"#,
                400,
                215,
            ),
            row("POST", "/api_keys", &[], r#"{"a":1,"a":1}"#, 400, 213),
            row("POST", "/api_keys", &[], "NaN", 400, 213),
            row("GET", "/api_keys?limit=%zz", &[], NO_BODY, 400, 230),
            row("GET", "/api_keys?order=asc", &[], NO_BODY, 400, 231),
            row("GET", "/api_keys?limit=1&limit=2", &[], NO_BODY, 400, 232),
            row("GET", "/api_keys?limit=101", &[], NO_BODY, 400, 233),
            row("GET", "/api_keys?limit=x", &[], NO_BODY, 400, 244),
            row("GET", "/api_keys/nope", &[], NO_BODY, 404, None),
            row(
                "PATCH",
                "/api_keys/nope",
                &[],
                r#"{"metadata":"m"}"#,
                404,
                None,
            ),
            row("DELETE", "/api_keys/nope", &[], NO_BODY, 404, None),
        ],
    )
    .await;
}

#[tokio::test]
async fn what_is_right_is_done() {
    let harness = Harness::start(Settings::default()).await;
    check(
        &harness,
        Some(&harness.token),
        &[
            row("GET", "/", &[], NO_BODY, 200, None),
            row("GET", "//", &[], NO_BODY, 200, None),
            row("GET", "/self", &["ngrok-version: 2"], NO_BODY, 200, None),
            row(
                "GET",
                "//api_keys?limit=1",
                &["ngrok-version:"],
                NO_BODY,
                200,
                None,
            ),
            row(
                "POST",
                "/api_keys",
                &[],
                r#"{"description":"d"}"#,
                201,
                None,
            ),
            row(
                "POST",
                "/api_keys",
                &["Content-Type: Application/JSON; charset=utf-8"],
                "{}",
                201,
                None,
            ),
            row(
                "POST",
                "/api_keys",
                &["Expect: 100-continue"],
                "{}",
                201,
                None,
            ),
            row("POST", "/api_keys", &[], NO_BODY, 201, None),
        ],
    )
    .await;
}

#[tokio::test]
async fn credentials() {
    let harness = Harness::start(Settings::default()).await;
    let token = harness.token.clone();
    let id = harness.key_id().await;
    let (_, secret) = token.rsplit_once('_').unwrap();
    let unknown = format!("{}_{}", "0".repeat(27), "a".repeat(21));
    let basic = |text: &str| format!("Authorization: Basic {}", harness::base64(text));
    let cases: Vec<(Vec<String>, u16, Option<u16>)> = vec![
        (vec![], 401, Some(200)),
        (
            vec!["Cookie: authorization=x; token=x".into()],
            401,
            Some(200),
        ),
        (vec!["Authorization:".into()], 401, Some(201)),
        (vec!["Authorization: Bearer".into()], 401, Some(201)),
        (
            vec![format!("Authorization: Digest {token}")],
            401,
            Some(201),
        ),
        (vec!["Authorization: Bearer \u{e9}".into()], 401, Some(201)),
        (vec!["Authorization: Basic !!!".into()], 401, Some(201)),
        (
            vec![format!("Authorization: Bearer {token}"); 2],
            401,
            Some(201),
        ),
        (vec!["Authorization: Bearer junk".into()], 401, Some(202)),
        (
            vec![format!("Authorization: Bearer {unknown}")],
            401,
            Some(203),
        ),
        (vec![format!("Authorization: Bearer {id}")], 401, Some(208)),
        (vec![format!("Authorization: Bearer {token}")], 200, None),
        (vec![format!("authorization: bearer {token}")], 200, None),
        (vec![basic(&format!("{token}:"))], 200, None),
        (vec![basic(&format!("any:{token}"))], 200, None),
        (
            vec![basic(&format!("{token}:")), "Origin: http://a.test".into()],
            401,
            Some(201),
        ),
        (
            vec![
                basic(&format!("{token}:")),
                "Sec-Fetch-Site: cross-site".into(),
            ],
            401,
            Some(201),
        ),
        (
            vec![
                basic(&format!("{token}:")),
                "Sec-Fetch-Site: same-site".into(),
            ],
            401,
            Some(201),
        ),
        (
            vec![
                basic(&format!("{token}:")),
                "Sec-Fetch-Site: same-origin".into(),
            ],
            200,
            None,
        ),
    ];
    for (headers, status, code) in cases {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let mut wire = Wire::to(&harness).await;
        let answer = wire
            .ask("GET", "/api_keys?limit=1", None, &headers, NO_BODY)
            .await;
        assert_eq!(
            (answer.status, answer.code()),
            (status, code),
            "{headers:?}: {answer:?}"
        );
        answer.check_shape("credentials");
        let shown = format!("{answer:?}");
        assert!(
            status == 200
                || (!shown.contains(secret)
                    && !shown.contains(&unknown)
                    && !shown.contains("junk")),
            "{shown}"
        );
    }
}

/// No operation, nor the tail, is for callers without a key or with one that was revoked, and nothing is done.
#[tokio::test]
async fn every_operation_needs_a_key_that_is_there() {
    let off = Rate {
        per_second: 0,
        burst: 0,
    };
    let settings = Settings {
        limits: Limits {
            failed_authentications: off,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let mut wire = Wire::to(&harness).await;
    let admin = Some(harness.token.as_str());
    let made = wire.ask("POST", "/api_keys", admin, &[], "{}").await;
    let revoked = made.body["token"].as_str().unwrap().to_owned();
    let path = format!("/api_keys/{}", made.body["id"].as_str().unwrap());
    let gone = wire.ask("DELETE", &path, admin, &[], NO_BODY).await;
    assert_eq!(gone.status, 204);
    let key_id = harness.key_id().await;
    let before = harness.store.revision().await.unwrap();
    let calls = operations().iter().map(|operation| {
        let path = operation.path.replace("{id}", &key_id);
        let path = path.replace("{type}", "api_key_created.v0");
        (operation.method.as_str(), path)
    });
    for (method, path) in calls.chain([("GET", TAIL_PATH.to_owned())]) {
        for (token, code) in [(None, 200), (Some(revoked.as_str()), 203)] {
            let answer = wire.ask(method, &path, token, &[], NO_BODY).await;
            let found = (answer.status, answer.code());
            assert_eq!(found, (401, Some(code)), "{method} {path}");
        }
    }
    assert_eq!(harness.store.revision().await.unwrap(), before);
}

#[tokio::test]
async fn a_path_or_method_that_is_not_there_is_distinguished() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let answer = wire.ask("GET", "/a%20b/c", None, &[], NO_BODY).await;
    assert_eq!(answer.body["msg"], "Not Found");
    assert_eq!(answer.body["details"]["path"], "/a%20b/c");
    assert!(answer.body.get("error_code").is_none());

    let answer = wire.ask("PUT", "/api_keys/x", None, &[], NO_BODY).await;
    let mut allowed: Vec<&str> = answer.header("allow").unwrap().split(", ").collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH"]);
    let details = &answer.body["details"];
    assert_eq!(details["allow"], answer.header("allow").unwrap());
    // Text that is no ID is not repeated.
    assert_eq!(
        (&details["kind"], &details["id"]),
        (&json!("api_key"), &Value::Null)
    );

    let answer = wire.ask("HEAD", "/api_keys/x", None, &[], NO_BODY).await;
    assert_eq!((answer.status, answer.body.is_null()), (401, true));

    let answer = wire
        .ask(
            "GET",
            "/api_keys/ak_2h0bXHdzY5W9r3oLUMHCLCbPRUc",
            Some(&harness.token),
            &[],
            NO_BODY,
        )
        .await;
    assert_eq!(answer.body["msg"], "Resource not found");
    let details = &answer.body["details"];
    assert!(details.get("path").is_none());
    assert_eq!(details["kind"], "api_key");
    assert_eq!(details["id"], "ak_2h0bXHdzY5W9r3oLUMHCLCbPRUc");
}

#[tokio::test]
async fn retired_paths_say_so_to_known_callers_whatever_the_method() {
    let harness = Harness::start(Settings::default()).await;
    for (path, status, code) in [
        ("/abuse_reports", 403, 221),
        ("/abuse_reports/abrp_1", 403, 221),
        ("/edges", 400, 7008),
        ("/edges/https/edghts_1/routes/edghtsrt_1/oauth", 400, 7008),
        ("//backends/http_response", 400, 7008),
        ("/endpoint_configurations", 400, 1608),
        ("/endpoint_configurations/ec_1/", 400, 1608),
    ] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            check(
                &harness,
                Some(&harness.token),
                &[row(method, path, &[], NO_BODY, status, code)],
            )
            .await;
            check(&harness, None, &[row(method, path, &[], NO_BODY, 401, 200)]).await;
        }
        check(
            &harness,
            Some(&harness.token),
            &[
                row("POST", path, &[], r#"{"description":"x"}"#, status, code),
                row("GET", path, &["ngrok-version: 1"], NO_BODY, 400, 217),
                row("OPTIONS", path, &[], NO_BODY, 404, None),
            ],
        )
        .await;
    }
    let strange = [row("GET", "/edgesx", &[], NO_BODY, 404, None)];
    check(&harness, Some(&harness.token), &strange).await;
}

#[tokio::test]
async fn a_new_key_is_shown_once_and_not_kept_by_caches() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let made = wire
        .ask("POST", "/api_keys", token, &["Host: api.test:1"], "{}")
        .await;
    assert_eq!(made.status, 201);
    assert_eq!(made.header("cache-control"), Some("no-store"));
    let key = made.body["token"].as_str().unwrap();
    let uri = made.body["uri"].as_str().unwrap();
    let path = uri.strip_prefix("http://api.test:1").unwrap();

    let seen = wire.ask("GET", path, Some(key), &[], NO_BODY).await;
    assert_eq!((seen.status, &seen.body["token"]), (200, &Value::Null));
    assert_eq!(seen.header("cache-control"), Some("private, no-cache"));

    let gone = wire.ask("DELETE", path, Some(key), &[], NO_BODY).await;
    assert_eq!((gone.status, gone.body.is_null()), (204, true));
    assert!(gone.header("content-type").is_none() && gone.header("ngrok-operation-id").is_some());
    let after = wire.ask("GET", path, Some(key), &[], NO_BODY).await;
    assert_eq!((after.status, after.code()), (401, Some(203)));
}

#[tokio::test]
async fn the_base_of_uris_is_configured_or_asked_for() {
    let settings = Settings {
        base_url: Some("https://api.example.com/".into()),
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let root = wire.ask("GET", "/", token, &["Host: other"], NO_BODY).await;
    assert_eq!(root.body["uri"], "https://api.example.com/");

    let settings = Settings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let forwarded = [
        "Host: inner",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: outer.test",
    ];
    let root = wire.ask("GET", "/", token, &forwarded, NO_BODY).await;
    assert_eq!(root.body["uri"], "https://outer.test/");
}

#[tokio::test]
async fn pages_of_other_origins_may_read_answers() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let asked = [
        "Origin: https://app.test",
        "Access-Control-Request-Method: PATCH",
        "Access-Control-Request-Headers: authorization, x-anything",
    ];
    let answer = wire
        .ask("OPTIONS", "/api_keys/x", None, &asked, NO_BODY)
        .await;
    assert_eq!((answer.status, answer.body.is_null()), (204, true));
    let mut methods: Vec<&str> = answer
        .header("access-control-allow-methods")
        .unwrap()
        .split(", ")
        .collect();
    methods.sort_unstable();
    assert_eq!(methods, ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH"]);
    for (name, expected) in [
        ("access-control-allow-origin", "https://app.test"),
        ("access-control-allow-headers", "authorization, x-anything"),
        ("access-control-max-age", "600"),
        ("vary", "origin"),
    ] {
        assert_eq!(answer.header(name), Some(expected), "{name}");
    }
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    for (token, path, status) in [
        (Some(harness.token.as_str()), "/api_keys", 200),
        (None, "/api_keys", 401),
        (None, "/nope", 404),
    ] {
        let answer = wire
            .ask("GET", path, token, &["Origin: null"], NO_BODY)
            .await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), Some("null"));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
    }
    // Only pages of the API's own origin may send credentials automatically.
    for (origin, expected) in [
        ("http://api.test:8420", Some("true")),
        ("https://api.test:8420", None),
        ("http://api.test", None),
        ("http://evil.test", None),
        ("http://api.test:8420.evil.test", None),
    ] {
        let headers = [&*format!("Origin: {origin}"), "Host: api.test:8420"];
        let answer = wire.ask("GET", "/nope", None, &headers, NO_BODY).await;
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
        let credentials = answer.header("access-control-allow-credentials");
        assert_eq!(credentials, expected, "{origin}");
    }
    let answer = wire.ask("GET", "/nope", None, &[], NO_BODY).await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn bad_keys_are_slowed_down_and_good_keys_pass() {
    let settings = Settings {
        limits: Limits {
            failed_authentications: Rate {
                per_second: 1,
                burst: 3,
            },
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let mut wire = Wire::to(&harness).await;
    let mut codes = Vec::new();
    for _ in 0..5 {
        let answer = wire.ask("GET", "/self", Some("junk"), &[], NO_BODY).await;
        codes.push(answer.code());
        if answer.status == 429 {
            let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=2).contains(&wait));
        }
    }
    assert_eq!(
        codes,
        [Some(202), Some(202), Some(202), Some(226), Some(226)]
    );
    let answer = wire
        .ask("GET", "/self", Some(&harness.token), &[], NO_BODY)
        .await;
    assert_eq!(answer.status, 200);
    let answer = wire.ask("GET", "/self", None, &[], NO_BODY).await;
    assert_eq!(answer.code(), Some(200), "nothing was tried");
}

#[tokio::test]
async fn an_account_has_so_many_requests_when_that_is_configured() {
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
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    for expected in [200, 200, 429] {
        let answer = wire.ask("GET", "/self", token, &[], NO_BODY).await;
        assert_eq!(answer.status, expected);
        answer.check_shape("window");
    }
    let answer = wire
        .ask("GET", "/self", token, &["ngrok-version: 9"], "x")
        .await;
    assert_eq!(answer.code(), Some(217), "the version comes first");
    let answer = wire.ask("GET", "/self", token, &[], "x").await;
    assert_eq!(answer.code(), Some(226), "the body comes after");
    assert_eq!(
        answer
            .header("retry-after")
            .map(|s| s.parse::<u64>().unwrap() > 50),
        Some(true)
    );
}

#[tokio::test]
async fn who_finds_no_room_is_asked_to_come_again() {
    let settings = Settings {
        limits: Limits {
            concurrent: 1,
            waiting: Duration::from_millis(50),
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let mut slow = Wire::to(&harness).await;
    slow.send(&format!(
        "POST /api_keys HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\
         Content-Length: 2\r\n\r\n{{",
        harness.token
    ))
    .await;
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let busy = harness::until(async || {
        let answer = wire.ask("GET", "/self", token, &[], NO_BODY).await;
        (answer.status == 503).then_some(answer)
    })
    .await;
    assert_eq!(busy.code(), Some(10_000));
    assert_eq!(busy.header("retry-after"), Some("1"));
    busy.check_shape("busy");
    assert_eq!(
        wire.ask("GET", ALIVE_PATH, None, &[], NO_BODY).await.status,
        200
    );
    slow.send("}").await;
    assert_eq!(slow.answer().await.status, 201);
    assert_eq!(
        wire.ask("GET", "/self", token, &[], NO_BODY).await.status,
        200
    );
}

#[tokio::test]
async fn readiness_names_the_part_that_is_not() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let answer = wire.ask("GET", READY_PATH, None, &[], NO_BODY).await;
    assert_eq!(
        (answer.status, answer.body),
        (200, json!({"ready": true, "parts": {"store": "ok"}}))
    );
    harness.health.break_it("the disk is full");
    let answer = harness::until(async || {
        let answer = wire.ask("GET", READY_PATH, None, &[], NO_BODY).await;
        (answer.status == 503).then_some(answer)
    })
    .await;
    assert_eq!(
        answer.body,
        json!({"ready": false, "parts": {"store": "the disk is full"}})
    );
    for (role, status, part) in [
        ("edge", 200, json!({"edge": "ok"})),
        ("agents", 503, json!({"agents": "not a role of this node"})),
    ] {
        let path = format!("{READY_PATH}?role={role}");
        let answer = wire.ask("GET", &path, None, &[], NO_BODY).await;
        let body = json!({"ready": status == 200, "parts": part});
        assert_eq!((answer.status, answer.body), (status, body));
    }
    let path = format!("{READY_PATH}?role=store");
    let answer = wire.ask("GET", &path, None, &[], NO_BODY).await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        wire.ask("GET", ALIVE_PATH, None, &[], NO_BODY).await.status,
        200
    );
}

#[tokio::test]
async fn the_stop_lets_a_request_finish_and_takes_no_new_connection() {
    let mut harness = Harness::start(Settings::default()).await;
    let mut idle = Wire::to(&harness).await;
    assert_eq!(
        idle.ask("GET", ALIVE_PATH, None, &[], NO_BODY).await.status,
        200
    );
    let mut busy = Wire::to(&harness).await;
    busy.send(&format!(
        "POST /api_keys HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\
         Content-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        harness.token
    ))
    .await;
    assert_eq!(busy.line().await, "HTTP/1.1 100 Continue\r\n");
    assert_eq!(busy.line().await, "\r\n");
    harness.stop.cancel();
    assert!(idle.closed().await);
    busy.send("{}").await;
    let answer = busy.answer().await;
    assert_eq!(answer.status, 201);
    assert!(busy.closed().await);
    harness.stopped().await;
}

#[tokio::test]
async fn http2_by_prior_knowledge_is_the_same_api() {
    let harness = Harness::start(Settings::default()).await;
    let mut client = harness::Http2::to(&harness).await;
    let token = Some(harness.token.as_str());
    for _ in 0..3 {
        let (status, body) = client.ask("GET", "/api_keys?limit=1", token, "").await;
        assert_eq!(status, 200);
        assert!(
            body["uri"]
                .as_str()
                .unwrap()
                .starts_with("http://api.test/"),
            "{body}"
        );
    }
    let (status, body) = client.ask("POST", "/api_keys", token, "[]").await;
    assert_eq!(
        (status, &body["error_code"]),
        (400, &json!("ERR_NGROK_213"))
    );
    let (status, _) = client
        .ask("POST", "/api_keys", token, r#"{"metadata":"m"}"#)
        .await;
    assert_eq!(status, 201);
}

/// After its caller has lost the permission, in whatever way, a tail shows no later events.
#[tokio::test]
async fn a_tail_ends_with_the_rights_of_its_caller() {
    let settings = Settings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let admin = Some(harness.token.as_str());
    for way in ["key", "owner", "session", "address"] {
        let mut writer = Wire::to(&harness).await;
        let mut write = async |method: &str, path: &str, body: Value| {
            let from = ["X-Forwarded-For: 192.0.2.1"];
            let text = if body.is_null() {
                String::new()
            } else {
                body.to_string()
            };
            let answer = writer.ask(method, path, admin, &from, &text).await;
            assert!(answer.status < 300, "{way}: {answer:?}");
            answer.body
        };
        let mut reader = Wire::to(&harness).await;
        let kind = "type=ip_policy_created.v0";
        let ending = match way {
            "session" => {
                let page = [
                    "Host: localhost:8420",
                    "Origin: http://localhost:8420",
                    "x-culvert-console: 1",
                    "X-Forwarded-For: 192.0.2.1",
                ];
                let body = json!({"token": admin}).to_string();
                let answer = reader
                    .ask("POST", "/console/session", None, &page, &body)
                    .await;
                let set = answer.header("set-cookie").unwrap();
                let cookie = format!("Cookie: {}", set.split(';').next().unwrap());
                let headers: Vec<&str> = page.iter().copied().chain([&*cookie]).collect();
                let text = headers.join("\r\n");
                let path = format!("/console/api{TAIL_PATH}?{kind}");
                reader
                    .send(format!("GET {path} HTTP/1.1\r\n{text}\r\n\r\n"))
                    .await;
                Some((headers.iter().map(|one| (*one).to_owned()).collect(), None))
            }
            _ => {
                let made = write("POST", "/bot_users", json!({"name": way})).await;
                let key = json!({"owner_id": made["id"]});
                let key = write("POST", "/api_keys", key).await;
                let token = key["token"].as_str().unwrap();
                let path = format!("{TAIL_PATH}?{kind}");
                let head = format!(
                    "GET {path} HTTP/1.1\r\nHost: api.test\r\nAuthorization: Bearer {token}\r\n\
                     X-Forwarded-For: 198.51.100.1\r\n\r\n"
                );
                reader.send(head).await;
                match way {
                    "key" => Some((Vec::<String>::new(), Some(("DELETE", key["id"].clone())))),
                    "owner" => Some((Vec::new(), Some(("PATCH", made["id"].clone())))),
                    _ => None,
                }
            }
        };
        reader.until_line(": following").await;
        write("POST", "/ip_policies", json!({"description": "before"})).await;
        let line = reader.until_line("data: ").await;
        assert!(line.contains("before"), "{way}: {line}");
        match ending {
            Some((_, Some((method, id)))) if method == "DELETE" => {
                let path = format!("/api_keys/{}", id.as_str().unwrap());
                write(method, &path, Value::Null).await;
            }
            Some((_, Some((method, id)))) => {
                let path = format!("/bot_users/{}", id.as_str().unwrap());
                write(method, &path, json!({"active": false})).await;
            }
            Some((headers, None)) => {
                let mut page = Wire::to(&harness).await;
                let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
                let out = page
                    .ask("DELETE", "/console/session", None, &headers, NO_BODY)
                    .await;
                assert_eq!(out.status, 204);
            }
            None => harness.restrict_api("192.0.2.0/24").await,
        }
        write("POST", "/ip_policies", json!({"description": "after"})).await;
        let rest = reader.rest().await;
        assert!(!rest.contains("after"), "{way}: {rest}");
    }
}

#[tokio::test]
async fn a_tail_shows_what_happens_and_ends_with_the_server() {
    let mut harness = Harness::start(Settings::default()).await;
    let token = Some(harness.token.as_str());
    let mut refused = Wire::to(&harness).await;
    for (query, code) in [
        ("types=x", 231),
        ("filter=a&filter=b", 232),
        ("type=%zz", 230),
        ("type=nope.v0", 238),
    ] {
        let path = format!("{TAIL_PATH}?{query}");
        let answer = refused.ask("GET", &path, token, &[], NO_BODY).await;
        assert_eq!((answer.status, answer.code()), (400, Some(code)), "{query}");
        answer.check_shape(query);
    }

    let mut wire = Wire::to(&harness).await;
    let head = wire
        .open(
            "GET",
            &format!("{TAIL_PATH}?type=api_key_created.v0"),
            token,
        )
        .await;
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(head.header("cache-control"), Some("no-store"));
    assert!(head.header("ngrok-operation-id").is_some());
    wire.until_line(": following").await;

    let mut writer = Wire::to(&harness).await;
    let made = writer.ask("POST", "/api_keys", token, &[], NO_BODY).await;
    // The first key's event may still arrive after the tail is opened.
    let line = loop {
        let line = wire.until_line("data: ").await;
        let event: Value = serde_json::from_str(line.trim_start_matches("data: ")).unwrap();
        assert_eq!(event["event_type"], "api_key_created.v0");
        if event["object"]["id"] == made.body["id"] {
            break line;
        }
    };
    assert!(!line.contains(made.body["token"].as_str().unwrap()));
    assert_eq!(harness.meters.tails.load(Ordering::Relaxed), 1);

    harness.stop.cancel();
    wire.until_closed().await;
    harness.stopped().await;
    assert_eq!(harness.meters.tails.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_fails_is_ours_and_passes_when_a_part_is_away() {
    let harness = Harness::start(Settings::default()).await;
    let token = Some(harness.token.as_str());
    let mut wire = Wire::to(&harness).await;
    assert_eq!(
        wire.ask("GET", "/self", token, &[], NO_BODY).await.status,
        200
    );
    harness.store.close().await;
    for status in [500, 503] {
        let answer = wire.ask("POST", "/api_keys", token, &[], "{}").await;
        assert_eq!((answer.status, answer.code()), (status, Some(10_000)));
        answer.check_shape("fault");
        harness.health.break_it("the store is closed");
    }
    assert_eq!(harness.meters.failed.load(Ordering::Relaxed), 2);
    assert_eq!(harness.meters.panics.load(Ordering::Relaxed), 0);
}
