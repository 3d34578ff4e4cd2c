//! The http-request action on live traffic: its requests, the handling of responses, and unreachable targets.

use std::sync::Arc;

use culvert_base::Share;
use culvert_edge_config::ACTIONS;
use culvert_policy::Scheme;
use culvert_policy::services::CALLS_MAX;
use culvert_policy::{Resources, Source};
use serde_json::json;

use super::harness::*;
use super::internal::{named, publish};
use super::policies::{governed_with, last_event};
use crate::{Settings, Snapshot};

const ASK: &str = "GET /a?b=c HTTP/1.1\r\nHost: app.example\r\nX-Who: me\r\n\r\n";

/// An origin that responds to each request with the result of `answer` for its number, head and body.
async fn service(
    rig: &mut Rig,
    answer: impl Fn(usize, &str, &str) -> String + Send + Sync + 'static,
) -> (String, Arc<Turns>) {
    let asked = Arc::new(Turns::default());
    let (turns, answer) = (Arc::clone(&asked), Arc::new(answer));
    let origin = origin(&mut rig.tasks, move |mut client| {
        let (turns, answer) = (Arc::clone(&turns), Arc::clone(&answer));
        async move {
            while let Some((head, body)) = client.request().await {
                let body = String::from_utf8(body).unwrap();
                let text = answer(turns.next(), &head, &body);
                client.send(text).await;
            }
        }
    })
    .await;
    (format!("http://{origin}"), asked)
}

fn ok(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nx-made: yes\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// A policy that sends a request with this configuration and responds with the result.
fn asks(config: &str) -> String {
    format!(
        r#"
on_http_request:
- actions:
  - {{type: http-request, config: {config}}}
  - type: custom-response
    config:
      headers:
        x-attempts: "${{actions.ngrok.http_request.attempts}}"
        x-status: "${{actions.ngrok.http_request.res.status_code}}"
        x-code: "${{actions.culvert.http_request.error.code}}"
        x-message: "${{actions.ngrok.http_request.error.message}}"
      body: "${{actions.ngrok.http_request.res.body}}"
"#
    )
}

#[tokio::test]
async fn a_policy_calls_a_service_and_uses_its_response() {
    let mut rig = Rig::start().await;
    let (authority, asked) = service(&mut rig, |_, head, body| ok(&format!("{head}{body}"))).await;
    let (upstream, _) = service(&mut rig, |_, head, _| ok(head)).await;
    let policy = r#"
on_http_request:
- actions:
  - type: http-request
    config:
      url: "http://check.internal:8080/${req.method.lowerAscii()}?x=1"
      method: POST
      query_params: [{key: who, value: "${req.headers['x-who'][0]} & co"}]
      headers: {x-from: "${req.host}", authorization: "Bearer t"}
      body: '{"path": "${req.url.path}"}'
- expressions: ["actions.ngrok.http_request.res.status_code == 200 && actions.culvert.http_request.res.headers['x-made'][0] == 'yes'"]
  actions:
  - {type: add-headers, config: {headers: {x-asked: "${actions.ngrok.http_request.res.body.size() > 0}"}}}
  - {type: log, config: {metadata: {said: "${actions.ngrok.http_request.res.body}", code: "${actions.ngrok.http_request.error.code}"}}}
"#;
    // The internal endpoint's policy handles the request, and its denial is a response.
    let inner = "
on_http_request:
- expressions: [\"req.headers['x-from'][0] != 'app.example'\"]
  actions: [{type: deny}]
- actions: [{type: log, config: {metadata: {inner: yes}}}, {type: add-headers, config: {headers: {x-inner: '1'}}}]
";
    publish(
        &rig,
        [
            named(Scheme::Http, "app.example", 80, &upstream, policy),
            named(Scheme::Http, "check.internal", 8080, &authority, inner),
        ],
    )
    .await;
    let answer = rig.ask(ASK).await;
    assert_eq!(answer.status, 200);
    let forwarded = answer.text().to_ascii_lowercase();
    assert!(
        forwarded.starts_with("get /a?b=c ") && forwarded.contains("\r\nx-asked: true\r\n"),
        "{forwarded}"
    );
    assert_eq!(asked.get(), 1);
    // One event: requests of a policy have no event and no log entry of their own.
    let reported = last_event(&rig, 1).await;
    let logs = reported["traffic_policy"]["logs"].as_array().unwrap();
    assert_eq!(logs.len(), 1);
    assert_eq!(logs[0]["metadata"]["code"], "");
    let said = logs[0]["metadata"]["said"].as_str().unwrap();
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    assert!(
        head.starts_with("post /get?x=1&who=me+%26+co http/1.1\r\n"),
        "{head}"
    );
    for line in [
        "host: check.internal:8080",
        "x-from: app.example",
        "authorization: bearer t",
        "content-type: text/plain; charset=utf-8",
        "content-length: 14",
        "x-inner: 1",
    ] {
        assert!(head.lines().any(|known| known == line), "{line}: {head}");
    }
    assert!(!head.contains("x-forwarded"), "{head}");
    assert_eq!(body, r#"{"path": "/a"}"#);
    let events = rig.recorder.events(2).await;
    assert_eq!((of(&events, HTTP).len(), of(&events, TCP).len()), (1, 1));
}

#[tokio::test]
async fn responses_of_any_status_are_results_and_no_response_is_an_error() {
    let mut rig = Rig::start().await;
    let (made, _) = service(&mut rig, |_, head, _| {
        match head.split(' ').nth(1).unwrap() {
            "/longest" => ok(&"x".repeat(256 << 10)),
            "/longer" => ok(&"x".repeat((256 << 10) + 1)),
            "/broken" => "HTTP/1.1 2000 OK\r\n\r\n".to_owned(),
            _ => "HTTP/1.1 418 No\r\ncontent-length: 3\r\n\r\ntea".to_owned(),
        }
    })
    .await;
    let silent = origin(&mut rig.tasks, |mut client| async move {
        drop(client.request().await);
        client.more().await;
    })
    .await;
    let deny = "on_http_request: [{actions: [{type: deny, config: {status_code: 401}}]}]";
    let restrict = "on_http_request: [{actions: [{type: restrict-ips, config: {deny: [0.0.0.0/0]}}, {type: deny}]}]";
    let close = "on_http_request: [{actions: [{type: close-connection}]}]";
    let nested = asks("{url: 'http://made.internal/'}");
    for (config, status, headers, body) in [
        (
            "{url: 'http://made.internal/'}",
            200,
            ["1", "418", "", ""],
            "tea",
        ),
        (
            "{url: 'http://deny.internal/'}",
            200,
            ["1", "401", "", ""],
            "",
        ),
        (
            "{url: 'http://restrict.internal/', headers: {accept: text/plain}}",
            200,
            [
                "1",
                "403",
                "ERR_NGROK_3203",
                "the edge generated the response",
            ],
            "ERR_NGROK_3203: The traffic policy blocks the client's address. (request ",
        ),
        (
            "{url: 'http://close.internal/', on_error: continue}",
            200,
            [
                "1",
                "",
                "ERR_NGROK_3617",
                "the connection closed without a response",
            ],
            "",
        ),
        (
            "{url: 'http://nested.internal/'}",
            200,
            [
                "1",
                "502",
                "ERR_NGROK_3501",
                "the edge generated the response",
            ],
            "ERR_NGROK_3501: ",
        ),
        (
            "{url: 'http://none.internal/', on_error: continue}",
            200,
            [
                "1",
                "",
                "ERR_NGROK_3615",
                "the internal endpoint does not exist",
            ],
            "",
        ),
        (
            "{url: 'https://made.internal/', on_error: continue}",
            200,
            [
                "1",
                "",
                "ERR_NGROK_3615",
                "the internal endpoint does not exist",
            ],
            "",
        ),
        (
            "{url: 'http://foreign.internal/', on_error: continue}",
            200,
            [
                "1",
                "",
                "ERR_NGROK_3615",
                "the internal endpoint does not exist",
            ],
            "",
        ),
        (
            "{url: 'http://${req.host}/', on_error: continue}",
            200,
            [
                "1",
                "",
                "ERR_NGROK_3615",
                "the URL is not the URL of an internal endpoint",
            ],
            "",
        ),
        (
            "{url: \"http://${req.headers['none'][0]}/\", on_error: continue}",
            200,
            [
                "0",
                "",
                "ERR_NGROK_2300",
                "an expression of the request failed",
            ],
            "",
        ),
        (
            "{url: 'http://made.internal/longest', on_error: halt}",
            200,
            ["1", "200", "", ""],
            "xxxx",
        ),
        (
            "{url: 'http://made.internal/longer', on_error: continue}",
            200,
            [
                "1",
                "",
                "ERR_NGROK_3617",
                "the response is longer than 262144 bytes",
            ],
            "",
        ),
        (
            "{url: 'http://silent.internal/', timeout: 1s, on_error: continue}",
            200,
            ["1", "", "ERR_NGROK_3617", "the request timed out"],
            "",
        ),
    ] {
        let mut foreign = named(Scheme::Http, "foreign.internal", 80, &made, "");
        foreign.account = "ac_2".into();
        publish(
            &rig,
            [
                named(Scheme::Http, "app.example", 80, "", &asks(config)),
                named(Scheme::Http, "made.internal", 80, &made, ""),
                named(Scheme::Http, "deny.internal", 80, "", deny),
                named(Scheme::Http, "restrict.internal", 80, "", restrict),
                named(Scheme::Http, "close.internal", 80, "", close),
                named(Scheme::Http, "nested.internal", 80, "", &nested),
                named(
                    Scheme::Http,
                    "silent.internal",
                    80,
                    &format!("http://{silent}"),
                    "",
                ),
                foreign,
            ],
        )
        .await;
        let answer = rig.ask(ASK).await;
        assert_eq!(answer.status, status, "{config}: {}", answer.text());
        let reported = ["x-attempts", "x-status", "x-code", "x-message"]
            .map(|name| answer.header(name).unwrap_or_default());
        assert_eq!(reported, headers, "{config}");
        assert!(
            answer.text().starts_with(body),
            "{config}: {}",
            answer.text()
        );
    }
    for (config, status, code) in [
        (
            "{url: 'http://made.internal/longer'}",
            502,
            "ERR_NGROK_3617",
        ),
        ("{url: 'http://none.internal/'}", 502, "ERR_NGROK_3615"),
        (
            "{url: \"http://${req.headers['none'][0]}/\"}",
            500,
            "ERR_NGROK_2300",
        ),
    ] {
        publish(
            &rig,
            [
                named(Scheme::Http, "app.example", 80, "", &asks(config)),
                named(Scheme::Http, "made.internal", 80, &made, ""),
            ],
        )
        .await;
        let answer = rig.ask(ASK).await;
        assert_eq!(answer.status, status, "{config}");
        assert_eq!(answer.header("ngrok-error-code"), Some(code), "{config}");
    }
}

#[tokio::test]
async fn a_call_is_retried_while_its_condition_is_true() {
    let mut rig = Rig::start().await;
    let (flaky, asked) = service(&mut rig, |turn, _, body| match turn % 3 {
        2 => ok(body),
        _ => "HTTP/1.1 503 Later\r\ncontent-length: 0\r\n\r\n".to_owned(),
    })
    .await;
    for (condition, attempts, status, body) in [
        ("last_attempt.res.status_code >= 500", "3", "200", "again"),
        (
            "attempts < 2 && last_attempt.res.status_code >= 500",
            "2",
            "503",
            "",
        ),
        ("true", "3", "503", ""),
        // An expression that fails is no reason to retry.
        ("last_attempt.nothing == 1", "1", "503", ""),
        ("last_attempt.error.code != ''", "1", "503", ""),
        ("req.host == 'app.example' && attempts == 1", "2", "503", ""),
    ] {
        while asked.get() % 3 != usize::from(condition == "true") {
            asked.next();
        }
        let config = format!(
            "{{url: 'http://a.internal', method: PUT, body: again, retry_condition: \"{condition}\"}}"
        );
        publish(
            &rig,
            [
                named(Scheme::Http, "app.example", 80, "", &asks(&config)),
                named(Scheme::Http, "a.internal", 80, &flaky, ""),
            ],
        )
        .await;
        let answer = rig.ask(ASK).await;
        assert_eq!(answer.header("x-attempts"), Some(attempts), "{condition}");
        assert_eq!(answer.header("x-status"), Some(status), "{condition}");
        assert_eq!(answer.text(), body, "{condition}");
    }
}

#[tokio::test]
async fn redirects_are_followed_up_to_their_limit() {
    let mut rig = Rig::start().await;
    let (made, _) = service(&mut rig, |_, head, body| {
        let place = match head.split(' ').nth(1).unwrap() {
            "/303" => (303, "/end"),
            "/302" => (302, "/end"),
            "/307" => (307, "http://b.internal/end"),
            "/away" => (302, "http://app.example/end"),
            "/loop" => (307, "/loop"),
            _ => return ok(&format!("{head}{body}").to_ascii_lowercase()),
        };
        format!(
            "HTTP/1.1 {} Else\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n",
            place.0, place.1
        )
    })
    .await;
    for (path, redirects, status, parts) in [
        ("/303", 0, "303", [""; 3]),
        (
            "/303",
            1,
            "200",
            ["get /end http/1.1", "authorization: bearer t", ""],
        ),
        (
            "/302",
            5,
            "200",
            ["get /end http/1.1", "host: a.internal", ""],
        ),
        // Elsewhere with the body, but without what was meant for the first.
        (
            "/307",
            1,
            "200",
            ["post /end http/1.1", "host: b.internal", "\r\n\r\nbody"],
        ),
        ("/loop", 5, "307", [""; 3]),
        ("/away", 1, "", [""; 3]),
    ] {
        let config = format!(
            "{{url: 'http://a.internal{path}', method: POST, body: body, headers: {{authorization: Bearer t}}, \
             max_redirects: {redirects}, on_error: continue}}"
        );
        publish(
            &rig,
            [
                named(Scheme::Http, "app.example", 80, "", &asks(&config)),
                named(Scheme::Http, "a.internal", 80, &made, ""),
                named(Scheme::Http, "b.internal", 80, &made, ""),
            ],
        )
        .await;
        let answer = rig.ask(ASK).await;
        assert_eq!(
            answer.header("x-status").unwrap_or_default(),
            status,
            "{path}"
        );
        for part in parts {
            assert!(answer.text().contains(part), "{path}: {}", answer.text());
        }
        assert!(
            path != "/307" || !answer.text().contains("authorization"),
            "{}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn the_response_phase_calls_a_service() {
    let mut rig = Rig::start().await;
    let (made, _) = service(&mut rig, |_, _, body| ok(body)).await;
    let (upstream, _) = service(&mut rig, |_, _, _| ok("mine")).await;
    let policy = r#"
on_http_response:
- actions:
  - {type: http-request, config: {url: "http://a.internal/", method: POST, body: "was ${res.status_code}"}}
  - {type: add-headers, config: {headers: {x-said: "${actions.ngrok.http_request.res.body}"}}}
"#;
    publish(
        &rig,
        [
            named(Scheme::Http, "app.example", 80, &upstream, policy),
            named(Scheme::Http, "a.internal", 80, &made, ""),
        ],
    )
    .await;
    let answer = rig.ask(ASK).await;
    assert_eq!((answer.status, answer.text()), (200, "mine"));
    assert_eq!(answer.header("x-said"), Some("was 200"));
}

#[tokio::test]
async fn calls_to_public_hosts_need_the_operators_permission() {
    let policy = |url: &str| asks(&format!("{{url: '{url}', on_error: continue}}"));
    let anyone = Resources {
        allows_public_calls: true,
        ..Resources::default()
    };
    let written = |resources: &Resources| {
        let source = Source::read(&policy("https://a.example/x"), ACTIONS).unwrap();
        let compiled = source.compile(Scheme::Http, false, resources);
        compiled
            .map(drop)
            .map_err(|refusal| refusal.code.unwrap().number())
    };
    assert_eq!(written(&Resources::default()), Err(2204));
    assert_eq!(written(&anyone), Ok(()));

    for (is_allowed, networks, reaches) in [
        (false, &["127.0.0.0/8"][..], false),
        (true, &[], false),
        (true, &["127.0.0.0/8"], true),
    ] {
        let mut rig = Rig::with(Settings {
            allows_public_calls: is_allowed,
            allow_networks: networks.iter().map(|text| text.parse().unwrap()).collect(),
            ..settings()
        })
        .await;
        let (made, asked) = service(&mut rig, |_, head, _| {
            ok(&format!("connection: x\r\n{head}"))
        })
        .await;
        for (host, works) in [("127.0.0.1", true), ("localhost", true)] {
            let url = made.replace("127.0.0.1", host);
            let endpoint = governed_with(Scheme::Http, "", &policy(&url), &anyone);
            rig.edge
                .publish(Snapshot::builder().endpoint(endpoint).build())
                .await;
            let before = asked.get();
            let answer = rig.ask(ASK).await;
            let status = answer.header("x-status").unwrap_or_default();
            assert_eq!(status, if reaches && works { "200" } else { "" }, "{host}");
            assert_eq!(asked.get() - before, usize::from(reaches), "{host}");
            let code = answer.header("x-code").unwrap_or_default();
            let expected = match (reaches, is_allowed) {
                (true, _) => "",
                (_, true) => "ERR_NGROK_3617",
                (_, false) => "ERR_NGROK_3615",
            };
            assert_eq!(code, expected, "{host}");
        }
        // It must not reach the edge's own listener, or policies could call themselves without end.
        let own = rig.edge.http_addr().unwrap();
        let policy = policy(&format!("http://{own}/"));
        let endpoint = governed_with(Scheme::Http, "", &policy, &anyone);
        rig.edge
            .publish(Snapshot::builder().endpoint(endpoint).build())
            .await;
        let answer = rig.ask(ASK).await;
        assert_eq!(answer.header("x-status"), Some(""), "{networks:?}");
        assert_eq!(answer.text(), "");
    }
}

#[tokio::test]
async fn a_public_host_cannot_redirect_to_an_internal_endpoint() {
    let mut rig = Rig::with(Settings {
        allows_public_calls: true,
        allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
        ..settings()
    })
    .await;
    let (inside, asked_inside) = service(&mut rig, |_, _, _| ok("inside")).await;
    let (outside, asked_outside) = service(&mut rig, |_, _, _| {
        "HTTP/1.1 307 Else\r\nlocation: http://a.internal/\r\ncontent-length: 0\r\n\r\n".to_owned()
    })
    .await;
    let anyone = Resources {
        allows_public_calls: true,
        ..Resources::default()
    };
    let policy = asks(&format!(
        "{{url: '{outside}', max_redirects: 5, on_error: continue}}"
    ));
    rig.edge
        .publish(
            Snapshot::builder()
                .endpoint(governed_with(Scheme::Http, "", &policy, &anyone))
                .endpoint(named(Scheme::Http, "a.internal", 80, &inside, ""))
                .build(),
        )
        .await;
    let answer = rig.ask(ASK).await;
    assert_eq!(answer.header("x-status"), Some("307"));
    assert_eq!((asked_outside.get(), asked_inside.get()), (1, 0));
}

#[test]
fn invalid_call_configurations_are_refused() {
    let many = |count: usize, one: &dyn Fn(usize) -> String| {
        (0..count).map(one).collect::<Vec<_>>().join(", ")
    };
    let parameters = |count| many(count, &|n| format!("{{key: k{n}, value: v}}"));
    let headers = |count| many(count, &|n| format!("x-{n}: v"));
    for (config, code) in [
        (json!({}), Some(2234)),
        (json!({"url": "ftp://a.internal"}), Some(2204)),
        (json!({"url": "http://u:p@a.internal"}), Some(2204)),
        (json!({"url": "http://*.internal"}), Some(2204)),
        (json!({"url": "http://${nope}.internal"}), Some(2224)),
        (json!({"method": "TRACE"}), Some(2203)),
        (json!({"max_redirects": 5}), None),
        (json!({"max_redirects": 6}), Some(2215)),
        (json!({"timeout": "1s"}), None),
        (json!({"timeout": "30s"}), None),
        (json!({"timeout": "999ms"}), Some(2215)),
        (json!({"timeout": "31s"}), Some(2215)),
        (json!({"retry_condition": "attempts < 3"}), None),
        (json!({"retry_condition": "attempts + 1"}), Some(2200)),
        (json!({"retry_condition": "attempt < 3"}), Some(2200)),
        (json!({"on_error": "perhaps"}), Some(2222)),
        (json!({"headers": {"host": "a"}}), Some(2204)),
        (json!({"headers": {"content-length": "1"}}), Some(2204)),
        (json!({"headers": {"x": "a\nb"}}), Some(2204)),
        (json!({"body": "x".repeat(64 << 10)}), None),
        (json!({"body": "x".repeat((64 << 10) + 1)}), Some(2221)),
        (
            json!({"query_params": [{"key": "k".repeat(128), "value": "v".repeat(8 << 10)}]}),
            None,
        ),
        (
            json!({"query_params": [{"key": "k".repeat(129), "value": "v"}]}),
            Some(2221),
        ),
        (
            json!({"query_params": [{"key": "k", "value": "v".repeat((8 << 10) + 1)}]}),
            Some(2221),
        ),
        (json!({"nope": 1}), Some(2203)),
    ] {
        let mut given = json!({"url": "http://a.internal/"});
        if config == json!({}) {
            given = config.clone();
        }
        given
            .as_object_mut()
            .unwrap()
            .extend(config.as_object().unwrap().clone());
        let text =
            json!({"on_http_request": [{"actions": [{"type": "http-request", "config": given}]}]});
        let compiled = Source::read(&text.to_string(), ACTIONS).unwrap().compile(
            Scheme::Http,
            true,
            &Resources::default(),
        );
        let refused = compiled.err().map(|refusal| refusal.code.unwrap().number());
        assert_eq!(refused, code, "{config}");
    }
    for (list, code) in [
        (format!("query_params: [{}]", parameters(32)), None),
        (format!("query_params: [{}]", parameters(33)), Some(2218)),
        (format!("headers: {{{}}}", headers(10)), None),
        (format!("headers: {{{}}}", headers(11)), Some(2218)),
    ] {
        let text = format!(
            "on_http_response: [{{actions: [{{type: http-request, config: {{url: 'http://a.internal', {list}}}}}]}}]"
        );
        let compiled = Source::read(&text, ACTIONS).unwrap().compile(
            Scheme::Https,
            true,
            &Resources::default(),
        );
        let refused = compiled.err().map(|refusal| refusal.code.unwrap().number());
        assert_eq!(refused, code, "{list}");
    }
}

#[tokio::test]
async fn concurrent_calls_are_limited() {
    let mut rig = Rig::start().await;
    let (made, asked) = service(&mut rig, |_, _, _| ok("")).await;
    publish(
        &rig,
        [
            named(
                Scheme::Http,
                "app.example",
                80,
                "",
                &asks("{url: 'http://a.internal'}"),
            ),
            named(Scheme::Http, "a.internal", 80, &made, ""),
        ],
    )
    .await;
    let shared = rig.edge.shared();
    let others = Share::new("usr_2", "ep_2");
    let all = shared.policy.calls.try_acquire_many(others, CALLS_MAX - 1);
    let all = all.unwrap();
    assert_eq!(rig.ask(ASK).await.status, 200);
    let last = shared.policy.calls.try_acquire(Share::new("usr_3", "ep_3"));
    let last = last.unwrap();
    let refused = rig.ask(ASK).await;
    assert_eq!(refused.header("ngrok-error-code"), Some("ERR_NGROK_2301"));
    drop((all, last));
    assert_eq!(rig.ask(ASK).await.status, 200);
    assert_eq!(asked.get(), 2);
    // The memory it used is released.
    let most = crate::Limits::default().held_bytes;
    let is_free = || shared.state.bodies.available() >= most;
    eventually("the memory is free", is_free).await;
}
