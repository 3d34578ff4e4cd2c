//! Restricted keys and invitations over HTTP.

use culvert_base::{Clock, SystemClock};
use culvert_control::LEAKED_TOKENS_PATH;
use culvert_store::{AuditEvent, Changes, Document};

use super::harness::{Harness, Wire, until};
use super::*;

const HOST: &str = "Host: localhost:8420";
const ORIGIN: &str = "Origin: http://localhost:8420";
const BY_CONSOLE: &str = "x-culvert-console: 1";

/// A new key with these restrictions: its ID and token.
pub(super) async fn restricted(harness: &Harness, restrictions: Value) -> (String, String) {
    let mut wire = Wire::to(harness).await;
    let token = Some(harness.token.as_str());
    let made = wire.ask("POST", "/api_keys", token, &[], "{}").await;
    let text = |field: &str| made.body[field].as_str().unwrap().to_owned();
    let (id, of_key) = (text("id"), text("token"));
    let path = format!("/api_keys/{id}/restrictions");
    let body = restrictions.to_string();
    let set = wire.ask("PATCH", &path, token, &[], &body).await;
    assert_eq!(set.status, 200, "{set:?}");
    (id, of_key)
}

#[tokio::test]
async fn a_restricted_key_is_refused_with_its_codes() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let (id, inside) = restricted(
        &harness,
        json!({"scopes": ["domains.read"], "networks": ["127.0.0.0/8"]}),
    )
    .await;
    let inside = Some(inside.as_str());
    let answer = wire
        .ask("GET", "/reserved_domains", inside, &[], NO_BODY)
        .await;
    assert_eq!(answer.status, 200);
    for (method, path) in [
        ("POST", "/reserved_domains"),
        ("GET", "/vaults"),
        ("GET", "/events"),
        ("GET", "/events?follow=true"),
        ("GET", "/events/tail"),
        ("GET", "/api_keys/ak_0"),
    ] {
        let body = if method == "POST" { "{}" } else { NO_BODY };
        let answer = wire.ask(method, path, inside, &[], body).await;
        assert_eq!((answer.status, answer.code()), (403, Some(642)), "{path}");
        answer.check_shape(path);
    }
    let path = format!("/api_keys/{id}/restrictions");
    let token = Some(harness.token.as_str());
    let shown = wire.ask("GET", &path, token, &[], NO_BODY).await;
    assert_eq!(shown.body["last_used_from"], "127.0.0.1");

    let (_, outside) = restricted(&harness, json!({"networks": ["192.0.2.0/24"]})).await;
    let answer = wire.ask("GET", "/self", Some(&outside), &[], NO_BODY).await;
    assert_eq!((answer.status, answer.code()), (403, Some(641)));
    let body = json!({"token": outside}).to_string();
    let page = [HOST, ORIGIN, BY_CONSOLE];
    let answer = wire
        .ask("POST", "/console/session", None, &page, &body)
        .await;
    assert_eq!((answer.status, answer.code()), (403, Some(641)));
}

/// Streams that nothing happens in end too.
#[tokio::test]
async fn a_stream_ends_when_the_key_of_its_caller_expires() {
    let harness = Harness::start(Settings::default()).await;
    let mut last = String::new();
    for path in ["/events/tail", "/events?follow=true"] {
        let end = SystemClock.now().plus(Duration::from_secs(3)).to_string();
        let (_, token) = restricted(&harness, json!({"expires_at": end})).await;
        let mut wire = Wire::to(&harness).await;
        let opened = wire.open("GET", path, Some(&token)).await;
        assert_eq!(opened.status, 200, "{path}");
        wire.rest().await;
        last = token;
    }
    let mut wire = Wire::to(&harness).await;
    let answer = wire.ask("GET", "/self", Some(&last), &[], NO_BODY).await;
    assert_eq!((answer.status, answer.code()), (401, Some(640)));
}

#[tokio::test]
async fn an_invitation_is_accepted_by_our_own_page_once() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let body = json!({"email": "ada@x.example", "role": "read_only"}).to_string();
    let invited = wire.ask("POST", "/users", token, &[], &body).await;
    assert_eq!(invited.status, 201);
    assert_eq!(invited.header("cache-control"), Some("no-store"));
    let url = invited.body["invitation_url"].as_str().unwrap();
    let (_, invitation) = url.split_once('#').unwrap();
    let body = json!({"token": invitation}).to_string();
    let path = "/console/invitation";
    let foreign = [HOST, "Origin: http://evil.example", BY_CONSOLE];
    for headers in [&foreign[..], &[HOST, BY_CONSOLE], &[HOST, ORIGIN]] {
        let answer = wire.ask("POST", path, None, headers, &body).await;
        assert_eq!(answer.status, 403, "{headers:?}");
    }
    let page = [HOST, ORIGIN, BY_CONSOLE];
    let plain = [
        "Host: culvert.example",
        "Origin: http://culvert.example",
        BY_CONSOLE,
    ];
    let answer = wire.ask("POST", path, None, &plain, &body).await;
    assert_eq!(answer.status, 403, "without TLS");
    let accepted = wire.ask("POST", path, None, &page, &body).await;
    assert_eq!(accepted.status, 201, "{accepted:?}");
    assert_eq!(accepted.header("cache-control"), Some("no-store"));
    assert_eq!(accepted.body["role"], "read_only");
    let set = accepted.header("set-cookie").unwrap();
    let cookie = format!("Cookie: {}", set.split(';').next().unwrap());
    let signed = [HOST, ORIGIN, BY_CONSOLE, &cookie];
    let shown = wire
        .ask("GET", "/console/session", None, &signed, NO_BODY)
        .await;
    assert_eq!(shown.body["subject"], "ada@x.example");
    let key = accepted.body["token"].as_str().unwrap();
    let own = wire.ask("GET", "/self", Some(key), &[], NO_BODY).await;
    assert_eq!(own.body["role"], "read_only");

    let again = wire.ask("POST", path, None, &page, &body).await;
    assert_eq!((again.status, again.code()), (401, Some(645)));
    again.check_shape("again");
    for wrong in [json!({}), json!({"token": 1})] {
        let wrong = wrong.to_string();
        let answer = wire.ask("POST", path, None, &page, &wrong).await;
        assert_eq!((answer.status, answer.code()), (400, Some(215)));
    }
    // Browsers open the console's page there.
    let opened = wire.open("GET", path, None).await;
    assert_eq!(
        opened.header("content-type"),
        Some("text/html; charset=utf-8")
    );
}

/// Guessed invitations count like guessed keys.
#[tokio::test]
async fn guesses_of_invitations_are_limited() {
    let mut settings = Settings::default();
    settings.limits.failed_authentications = Rate {
        per_second: 1,
        burst: 3,
    };
    let harness = Harness::start(settings).await;
    let mut wire = Wire::to(&harness).await;
    let page = [HOST, ORIGIN, BY_CONSOLE];
    let body = json!({"token": "x"}).to_string();
    until(async || {
        let path = "/console/invitation";
        let answer = wire.ask("POST", path, None, &page, &body).await;
        (answer.status == 429).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_a_provider_there_is_no_sign_in_at_one() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let path = "/console/sign-in/methods";
    let methods = wire.ask("GET", path, None, &[HOST], NO_BODY).await;
    assert_eq!(methods.body, json!({"openid": null}));
    for path in ["/console/sign-in", "/console/sign-in/callback"] {
        let answer = wire.ask("POST", path, None, &[HOST], "{}").await;
        assert_eq!(answer.status, 405, "{path}");
    }
    let answer = wire
        .ask("GET", "/console/sign-in", None, &[HOST], NO_BODY)
        .await;
    assert_eq!(answer.status, 404);
}

/// Every operation refuses a key that has expired, and one outside of its networks, before it does anything.
#[tokio::test]
async fn no_operation_runs_for_an_expired_key_or_one_outside_of_its_networks() {
    let settings = Settings {
        limits: Limits {
            // One source fails more often than it may elsewhere.
            failed_authentications: Rate {
                per_second: 10_000,
                burst: 10_000,
            },
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let (_, outside) = restricted(&harness, json!({"networks": ["192.0.2.0/24"]})).await;
    let (id, expired) = restricted(&harness, json!({"expires_at": "2099-01-01T00:00:00Z"})).await;
    let document = harness.store.get("api_key", &id).await.unwrap().unwrap();
    let body = document.body.replace("2099-01-01", "2001-01-01");
    assert_ne!(body, document.body);
    let why = AuditEvent::Suppress { reason: "a test" };
    let changes = Changes::replace(Document { body, ..document }, why);
    harness.store.commit(changes).await.unwrap();
    let before = harness.store.revision().await.unwrap();
    for (token, expected) in [(&outside, (403, Some(641))), (&expired, (401, Some(640)))] {
        for operation in operations() {
            let mut wire = Wire::to(&harness).await;
            let path = operation
                .path
                .replace("{id}", "ak_000000000000000000000000000");
            let path = path.replace("{type}", "api_key_created.v0");
            let body = match operation.body {
                Some(_) => "{}",
                None => NO_BODY,
            };
            let method = operation.method.as_str();
            let answer = wire.ask(method, &path, Some(token), &[], body).await;
            let about = format!("{method} {path} {answer:?}");
            assert_eq!((answer.status, answer.code()), expected, "{about}");
        }
    }
    assert_eq!(harness.store.revision().await.unwrap(), before);
}

#[tokio::test]
async fn audit_events_say_how_the_call_came_and_who_was_refused() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let cli = &["User-Agent: culvert-cli/9.9"][..];
    let made = wire
        .ask("POST", "/vaults", token, cli, r#"{"name": "v"}"#)
        .await;
    assert_eq!(made.status, 201, "{made:?}");
    // Without a key, with a wrong one, and without the right.
    let (_, reader) = restricted(&harness, json!({"role": "read_only"})).await;
    for (caller, status) in [(None, 401), (Some("wrong"), 401), (Some(&*reader), 403)] {
        let refused = wire.ask("POST", "/vaults", caller, &[], "{}").await;
        assert_eq!(refused.status, status);
    }
    let over = CancellationToken::new();
    over.cancel();
    Arc::clone(&harness.api.control).report_refusals(over).await;

    let path = "/events?type=vault_created.v0&type=request_refused.v0";
    let listed = wire.ask("GET", path, token, &[], NO_BODY).await;
    let events = listed.body["events"].as_array().unwrap();
    let events: Vec<&Value> = events.iter().map(|one| &one["event"]).collect();
    let of = |kind: &str, code: Value| {
        let mut events = events.iter();
        events.find(|one| one["event_type"] == kind && one["object"]["code"] == code)
    };
    let context = &of("vault_created.v0", Value::Null).unwrap()["principal"]["context"];
    assert_eq!(context["client_ip"], "127.0.0.1");
    assert!(context["client_port"].is_u64());
    assert_eq!(context["user_agent"], "culvert-cli/9.9");
    assert_eq!(context["via"], "cli");
    assert_eq!(context["node"], harness.api.control.node());
    let operation = made.header("ngrok-operation-id").unwrap();
    assert_eq!(context["operation_id"], operation);
    let forbidden = of("request_refused.v0", json!(635)).unwrap();
    assert_eq!(forbidden["object"]["operation"], "vaults_create");
    assert!(forbidden["principal"]["id"].is_string());
    let unknown = events.iter().filter(|one| one["principal"].is_null());
    let unknown: Vec<_> = unknown.collect();
    assert_eq!(unknown.len(), 2, "{events:?}");
    for one in unknown {
        assert_eq!(one["object"]["network"], "127.0.0.0/24");
        assert_eq!(one["object"]["count"], 1);
    }
}

const SIGNED: &str = "Github-Public-Key-Identifier: a\r\nGithub-Public-Key-Signature: AA==";

#[tokio::test]
async fn strangers_use_up_no_reports_of_callers() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let report = r#"{"tokens": [{"token": "x"}]}"#;
    for _ in 0..20 {
        let answer = wire
            .ask("POST", LEAKED_TOKENS_PATH, None, &[], report)
            .await;
        assert_eq!(answer.status, 401, "{answer:?}");
    }
    let mut statuses = Vec::new();
    for _ in 0..11 {
        let answer = wire
            .ask("POST", LEAKED_TOKENS_PATH, None, &[SIGNED], "[]")
            .await;
        statuses.push(answer.status);
    }
    assert_eq!(statuses, [[401; 10].as_slice(), &[429]].concat());
    let token = Some(harness.token.as_str());
    let mut statuses = Vec::new();
    for _ in 0..11 {
        let answer = wire
            .ask("POST", LEAKED_TOKENS_PATH, token, &[], report)
            .await;
        statuses.push(answer.status);
    }
    assert_eq!(statuses, [[204; 10].as_slice(), &[429]].concat());
}

#[tokio::test]
async fn slow_reports_of_strangers_take_no_capacity_from_callers() {
    let harness = Harness::start(Settings {
        limits: Limits {
            concurrent: 1,
            head: Duration::from_secs(1),
            ..Limits::default()
        },
        ..Settings::default()
    })
    .await;
    let mut slow = Wire::to(&harness).await;
    slow.send(format!(
        "POST {LEAKED_TOKENS_PATH} HTTP/1.1\r\nHost: a\r\n{SIGNED}\r\n\
         Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    ))
    .await;
    // It is served now, and waits for its body.
    assert_eq!(slow.line().await, "HTTP/1.1 100 Continue\r\n");
    assert_eq!(slow.line().await, "\r\n");
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let answer = wire.ask("GET", "/self", token, &[], "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = slow.answer().await;
    assert_eq!(answer.status, 408, "{answer:?}");
}
