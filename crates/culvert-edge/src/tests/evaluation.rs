//! Limits of evaluation on live traffic: over a limit, a request is rejected before it reaches the origin, whatever the
//! rule does and whatever `policy.on_expression_error` says.

use std::sync::Arc;

use culvert_edge_config::ACTIONS;
use culvert_policy::{OnExpressionError, Phase, Resources, Scheme};
use serde_json::{Value, json};

use super::harness::*;
use super::internal::{named, publish};
use crate::{Endpoint, Settings};

const LIMIT: Option<&str> = Some("ERR_NGROK_2301");
const UNDECIDED: Option<&str> = Some("ERR_NGROK_2300");

/// An expression that costs too much, in every phase and for every visitor.
const COSTLY: &str = "lists.range(400).exists(a, lists.range(400).exists(b, a + b == -1))";

/// The limits that a visitor can reach, with an expression of a rule that denies, and the header lines and the path that
/// reach it.
fn limits() -> Vec<(&'static str, String, String, String)> {
    let row = |name, expression: &str, path: &str, lines: String| {
        (name, expression.to_owned(), path.to_owned(), lines)
    };
    vec![
        row(
            "items of a list",
            "req.url.path.split('/').exists(part, part == 'admin')",
            &format!("{}/admin", "/a".repeat(1_500)),
            String::new(),
        ),
        row(
            "steps",
            "req.headers['x-a'][0].split(',').exists(a, req.headers['x-a'][0].split(',').exists(b, a == b && a == 'z'))",
            "/admin",
            format!("X-A: {}z\r\n", "a,".repeat(300)),
        ),
        row(
            "bytes of a text",
            "getReqHeader('x-a').map(a, a + a + a + a + a + a + a)[0].size() > 0",
            "/admin",
            format!("X-A: {}\r\n", "a".repeat(10_000)),
        ),
        row(
            "memory",
            "lists.range(150).map(n, req.headers['x-a'][0] + string(n)).size() > 0",
            "/admin",
            format!("X-A: {}\r\n", "a".repeat(10_000)),
        ),
        row(
            "depth of JSON",
            "!req.headers['x-a'][0].isJson() || json.decode(req.headers['x-a'][0]) == []",
            "/admin",
            format!("X-A: {}{}\r\n", "[".repeat(200), "]".repeat(200)),
        ),
        row(
            "size of a pattern",
            "req.url.path.matches(req.headers['x-a'][0])",
            "/admin",
            "X-A: a{1001}|admin\r\n".to_owned(),
        ),
        row(
            "steps of a search",
            "lists.range(90).exists(n, req.headers['x-a'][0].matches('(a|b|ab|ba){0,40}!' + string(n)))",
            "/admin",
            format!("X-A: {}\r\n", "ab".repeat(5_000)),
        ),
    ]
}

/// An origin that counts its requests.
pub(super) async fn counting(rig: &mut Rig) -> (String, Arc<Turns>) {
    let turns = Arc::new(Turns::default());
    let asked = Arc::clone(&turns);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let turns = Arc::clone(&turns);
        async move {
            while client.request().await.is_some() {
                turns.next();
                let answer = "HTTP/1.1 200 OK\r\nx-secret: s\r\ncontent-length: 5\r\n\r\nhello";
                client.send(answer).await;
            }
        }
    })
    .await;
    (format!("http://{origin}"), asked)
}

async fn with(on_expression_error: OnExpressionError) -> Rig {
    Rig::with(Settings {
        on_expression_error,
        ..settings()
    })
    .await
}

const SETTINGS: [OnExpressionError; 3] = [
    OnExpressionError::Auto,
    OnExpressionError::Deny,
    OnExpressionError::Skip,
];

fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: app.example\r\n{lines}\r\n")
}

async fn publish_policy(rig: &Rig, upstream: &str, policy: &str) {
    publish(
        rig,
        [named(Scheme::Http, "app.example", 80, upstream, policy)],
    )
    .await;
}

/// The two attacks: a path and headers that made a rule too expensive were once passed to the origin.
#[tokio::test]
async fn expensive_requests_do_not_pass_a_rule_that_denies() {
    let mut rig = Rig::start().await;
    let (origin, asked) = counting(&mut rig).await;
    let by_path = r#"
on_http_request:
- expressions: ["req.url.path.split('/').exists(part, part == 'admin')"]
  actions: [{type: deny}]
"#;
    publish_policy(&rig, &origin, by_path).await;
    assert_eq!(rig.ask(&get("/a/admin", "")).await.status, 403);
    assert_eq!(rig.ask(&get("/a/b", "")).await.status, 200);
    let path = format!("{}/admin", "/a".repeat(1_500));
    let answer = rig.ask(&get(&path, "")).await;
    assert_eq!(
        (answer.status, answer.header("ngrok-error-code")),
        (500, LIMIT)
    );
    assert_eq!(asked.get(), 1);

    let by_variable = r#"
on_http_request:
- actions:
  - {type: set-vars, config: {vars: [{all: "${req.headers}"}, {copy: "${vars.all}"}]}}
- expressions: ["!('x-key' in vars.copy) || vars.copy['x-key'][0] != 'right'"]
  actions: [{type: deny}]
"#;
    publish_policy(&rig, &origin, by_variable).await;
    assert_eq!(rig.ask(&get("/", "X-Key: wrong\r\n")).await.status, 403);
    assert_eq!(rig.ask(&get("/", "X-Key: right\r\n")).await.status, 200);
    let mut lines = String::new();
    for number in 0..60 {
        lines.push_str(&format!("X-{number}: {}\r\n", "a".repeat(1_000)));
    }

    let answer = rig.ask(&get("/", &lines)).await;
    assert_eq!(
        (answer.status, answer.header("ngrok-error-code")),
        (500, LIMIT)
    );
    assert_eq!(asked.get(), 2);
    assert_eq!(rig.edge.meters().policy.refusals.get(), 2);
}

/// Each limit that a visitor can reach, for each setting: the origin gets no request.
#[tokio::test]
async fn each_limit_rejects_whatever_the_setting() {
    for setting in SETTINGS {
        let mut rig = with(setting).await;
        let (origin, asked) = counting(&mut rig).await;
        for (name, expression, path, lines) in limits() {
            // An action that denies, one that does not, and a limit that `||` must not absorb.
            for (expression, action) in [
                (expression.clone(), json!({"type": "deny"})),
                (format!("({expression}) || 1 == 1"), json!({"type": "deny"})),
                (
                    format!("!({expression})"),
                    json!({"type": "add-headers", "config": {"headers": {"x-b": "c"}}}),
                ),
            ] {
                let policy = json!({
                    "on_http_request": [{"expressions": [expression], "actions": [action]}],
                });
                publish_policy(&rig, &origin, &policy.to_string()).await;
                let answer = rig.ask(&get(&path, &lines)).await;
                let code = answer.header("ngrok-error-code");
                assert_eq!((answer.status, code), (500, LIMIT), "{name}: {expression}");
                assert_eq!(asked.get(), 0, "{name}: {expression}");
            }
        }
    }
}

/// A configuration of each action. `LIMIT` stands where a value is computed.
fn configurations() -> Vec<(&'static str, Vec<Value>)> {
    let name = "${LIMIT}";
    let on_error = "continue";
    vec![
        ("add-headers", vec![json!({"headers": {"x-a": name}})]),
        (
            "basic-auth",
            vec![json!({"credentials": [name], "enforce": false})],
        ),
        ("capture", vec![json!({})]),
        ("circuit-breaker", vec![json!({})]),
        ("close-connection", vec![json!({})]),
        ("compress-response", vec![json!({})]),
        (
            "custom-response",
            vec![
                json!({"status_code": 201, "body": name}),
                json!({"status_code": 201, "headers": {"x-a": name}}),
            ],
        ),
        ("deny", vec![json!({})]),
        (
            "forward-internal",
            vec![json!({"url": name, "on_error": on_error})],
        ),
        (
            "http-request",
            vec![
                json!({"url": "http://a.internal/${LIMIT}", "on_error": on_error}),
                json!({"url": "http://a.internal/", "body": name, "on_error": on_error}),
                json!({"url": "http://a.internal/", "headers": {"x-a": name}, "on_error": on_error}),
                json!({"url": "http://a.internal/", "query_params": [{"key": "a", "value": name}], "on_error": on_error}),
                json!({"url": "http://a.internal/", "retry_condition": "LIMIT", "on_error": on_error}),
            ],
        ),
        (
            "jwt-validation",
            vec![json!({
                "issuer": {"allow_list": [{"value": "a"}]},
                "audience": {"allow_list": [{"value": "a"}]},
                "http": {"tokens": [{"type": "jwt", "method": "header", "name": "authorization"}]},
                "jws": {"allowed_algorithms": ["ES256"], "keys": {"sources": {"additional_jkus": ["https://127.0.0.1:1/"]}}},
            })],
        ),
        (
            "log",
            vec![
                json!({"metadata": {"a": name}}),
                json!({"metadata": {"a": [{"b": "c ${LIMIT}"}]}}),
            ],
        ),
        (
            "rate-limit",
            vec![json!({"capacity": 9, "rate": "60s", "bucket_key": ["LIMIT"], "enforce": false})],
        ),
        (
            "redirect",
            vec![
                json!({"to": "https://a.example/${LIMIT}"}),
                json!({"from": name, "to": "b"}),
                json!({"to": "https://a.example/", "headers": {"x-a": name}}),
            ],
        ),
        ("remove-headers", vec![json!({"headers": ["x-a"]})]),
        (
            "request-body-find-replace",
            vec![
                json!({"replacements": [{"from": name, "to": "b"}]}),
                json!({"replacements": [{"from": "a", "to": name}]}),
            ],
        ),
        (
            "response-body-find-replace",
            vec![
                json!({"replacements": [{"from": name, "to": "b"}]}),
                json!({"replacements": [{"from": "a", "to": name}]}),
            ],
        ),
        (
            "restrict-ips",
            vec![
                json!({"allow": ["0.0.0.0/0", name], "enforce": false}),
                json!({"allow": ["0.0.0.0/0"], "deny": [name], "enforce": false}),
            ],
        ),
        ("set-headers", vec![json!({"headers": {"x-a": name}})]),
        ("set-vars", vec![json!({"vars": [{"a": [name]}]})]),
        (
            "url-rewrite",
            vec![json!({"to": "/${LIMIT}"}), json!({"from": name, "to": "b"})],
        ),
        (
            "verify-webhook",
            vec![json!({"provider": "github", "secret": name, "enforce": false})],
        ),
    ]
}

/// Actions that need more than a policy: a provider, or a TLS connection. Rules with them have tests of their own.
const ELSEWHERE: [&str; 3] = ["oauth", "openid-connect", "terminate-tls"];

#[test]
fn every_action_is_in_the_table() {
    let known: Vec<&str> = configurations().iter().map(|(name, _)| *name).collect();
    for ty in ACTIONS.sorted() {
        let is_known = known.contains(&ty.name) || ELSEWHERE.contains(&ty.name);
        assert!(is_known, "`{}` is not in the table", ty.name);
    }
    // The actions whose rules a failed expression must not skip (contract: traffic policy 4.4).
    let guards = ACTIONS.sorted().into_iter().filter(|ty| ty.guards);
    let guards: Vec<&str> = guards.map(|ty| ty.name).collect();
    let expected = [
        "basic-auth",
        "deny",
        "jwt-validation",
        "oauth",
        "openid-connect",
        "rate-limit",
        "restrict-ips",
        "terminate-tls",
        "verify-webhook",
    ];
    assert_eq!(guards, expected);
}

/// A limit in the condition of each action and in each of its computed values, in each phase that has the action.
#[tokio::test]
async fn a_limit_rejects_in_each_action_and_phase() {
    let mut rig = with(OnExpressionError::Skip).await;
    let (origin, asked) = counting(&mut rig).await;
    let mut n_tried = 0;
    for (name, configs) in configurations() {
        let ty = ACTIONS.find(name).unwrap();
        for phase in ty.phases {
            if name == "forward-internal" && *phase == Phase::Connect {
                // Only endpoints without HTTP have it there.
                continue;
            }
            for config in &configs {
                let text = config.to_string();
                let plain = text.replace("LIMIT", "'a'");
                let mut cases = vec![(json!([COSTLY]), plain.clone())];
                if text.contains("LIMIT") {
                    let costly = format!("string({COSTLY})");
                    cases.push((
                        json!([]),
                        text.replace("${LIMIT}", &format!("${{{costly}}}")),
                    ));
                    // A bare one is an expression.
                    if let Some((_, costly)) = cases.last_mut() {
                        *costly = costly.replace("LIMIT", COSTLY);
                    }
                }
                for (expressions, config) in cases {
                    let config: Value = serde_json::from_str(&config).unwrap();
                    let takes_config = !matches!(name, "close-connection");
                    let config = if takes_config { config } else { json!({}) };
                    let rule = json!({
                        "expressions": expressions,
                        "actions": [{"type": name, "config": config}],
                    });
                    let policy = json!({ phase.name(): [rule] }).to_string();
                    let policy = made_valid(&policy);
                    publish(
                        &rig,
                        [
                            named(Scheme::Http, "app.example", 80, &origin, &policy),
                            named(Scheme::Http, "a.internal", 80, &origin, ""),
                        ],
                    )
                    .await;
                    let (before, what) = (asked.get(), format!("{name} {phase:?}: {policy}"));
                    let mut client = rig.connect().await;
                    client.send(get("/a", "X-A: b\r\n")).await;
                    if *phase == Phase::Connect {
                        assert!(client.rest().await.is_empty(), "{what}");
                        assert_eq!(asked.get(), before, "{what}");
                    } else {
                        let answer = client.answer("GET").await;
                        let code = answer.header("ngrok-error-code");
                        assert_eq!((answer.status, code), (500, LIMIT), "{what}");
                        assert_eq!(answer.header("x-secret"), None, "{what}");
                        // Only a response phase and the condition of a retry come after a request.
                        let may_ask =
                            *phase == Phase::Response || policy.contains("retry_condition");
                        assert!(may_ask || asked.get() == before, "{what}");
                    }
                    n_tried += 1;
                }
            }
        }
    }
    assert!(n_tried > 60, "{n_tried}");
}

/// Values that are checked when a policy is written.
fn made_valid(policy: &str) -> String {
    policy
        .replace("\"url\":\"${'a'}\"", "\"url\":\"http://a.internal\"")
        .replace("\"secret\":\"${'a'}\"", "\"secret\":\"s3cret\"")
        .replace(
            "\"retry_condition\":\"'a'\"",
            "\"retry_condition\":\"true\"",
        )
}

/// Other errors: rules that restrict access reject, others do not apply.
#[tokio::test]
async fn an_error_rejects_if_the_rule_restricts_access() {
    let missing = "req.headers['x-none'][0] == 'a'";
    let never = "req.url.path == '/never'";
    let deny = json!({"type": "deny"});
    let add = json!({"type": "add-headers", "config": {"headers": {"x-b": "c"}}});
    for setting in SETTINGS {
        let mut rig = with(setting).await;
        let (origin, asked) = counting(&mut rig).await;
        for (expressions, action, expected) in [
            (json!([missing]), &deny, [500, 500, 200]),
            (json!([missing]), &add, [200, 500, 200]),
            // Another condition is false, so the rule does not apply whatever the first is.
            (json!([missing, never]), &deny, [200; 3]),
            (json!([never, missing]), &deny, [200; 3]),
            (json!([missing, "true"]), &deny, [500, 500, 200]),
            (json!(["true", missing]), &deny, [500, 500, 200]),
            (json!([COSTLY, never]), &deny, [500; 3]),
            (json!([never, COSTLY]), &deny, [200; 3]),
            (json!([missing, COSTLY]), &add, [500; 3]),
        ] {
            let policy = json!({
                "on_http_request": [{"expressions": expressions, "actions": [action]}],
            });
            publish_policy(&rig, &origin, &policy.to_string()).await;
            let before = asked.get();
            let answer = rig.ask(&get("/", "")).await;
            let [auto, deny, skip] = expected;
            let expected = match setting {
                OnExpressionError::Auto => auto,
                OnExpressionError::Deny => deny,
                OnExpressionError::Skip => skip,
            };
            assert_eq!(answer.status, expected, "{setting:?}: {policy}");
            let is_limit = policy.to_string().contains("lists.range");
            let code = match (expected, is_limit) {
                (200, _) => None,
                (_, true) => LIMIT,
                (_, false) => UNDECIDED,
            };
            assert_eq!(
                answer.header("ngrok-error-code"),
                code,
                "{setting:?}: {policy}"
            );
            assert_eq!(asked.get() - before, usize::from(expected == 200));
        }
    }
}

/// Values of variables, results and texts grow with each action, so they have limits too.
#[tokio::test]
async fn values_that_contain_each_other_have_limits() {
    let mut rig = Rig::start().await;
    let (origin, asked) = counting(&mut rig).await;
    let deeper = json!({"a": ["${vars.a}"]});
    let deeper: Vec<_> = std::iter::repeat_n(deeper, 400).collect();
    let wider = json!({"metadata": {"a": "${actions.ngrok.log.metadata}", "b": "${actions.ngrok.log.metadata}"}});
    let wider = json!({"type": "log", "config": wider});
    let wider: Vec<_> = std::iter::repeat_n(wider, 19).collect();
    let wider = json!([{"actions": wider}, {"actions": wider}]);
    let first = json!({"type": "log", "config": {"metadata": {"a": "b"}}});
    let doubled = (0..30).fold("[1]".to_owned(), |list, n| {
        format!("{list}.map(x{n}, [x{n}, x{n}])")
    });
    let body = "${vars.a}".repeat(200);
    for (what, rules) in [
        (
            "depth",
            json!([{"actions": [{"type": "set-vars", "config": {"vars": deeper}}]}]),
        ),
        ("results", json!([{"actions": [first]}, wider[0], wider[1]])),
        (
            "text of a value",
            json!([{"actions": [{"type": "add-headers", "config": {"headers": {"x-a": format!("${{{doubled}}}")}}}]}]),
        ),
        (
            "JSON of a value",
            json!([{"expressions": [format!("json.encode({doubled}) == ''")], "actions": [{"type": "deny"}]}]),
        ),
        (
            "text of a template",
            json!([{"actions": [
                {"type": "set-vars", "config": {"vars": [{"a": "${req.headers['x-a'][0]}"}]}},
                {"type": "custom-response", "config": {"body": body}},
            ]}]),
        ),
    ] {
        let policy = json!({ "on_http_request": rules }).to_string();
        publish_policy(&rig, &origin, &policy).await;
        let lines = format!("X-A: {}\r\n", "a".repeat(30_000));
        let answer = rig.ask(&get("/", &lines)).await;
        let code = answer.header("ngrok-error-code");
        assert_eq!((answer.status, code), (500, LIMIT), "{what}");
        assert_eq!(asked.get(), 0, "{what}");
    }
}

/// An endpoint of this owner.
fn owned(owner: &str, id: &str, host: &str, policy: &str) -> Endpoint {
    let resources = Resources {
        owner: owner.to_owned(),
        ..Resources::default()
    };
    let mut endpoint = super::policies::governed_with(Scheme::Http, "", policy, &resources);
    endpoint.id = id.to_owned();
    endpoint.host = culvert_base::net::HostName::parse(host).unwrap();
    endpoint.port = 80;
    endpoint
}

/// More anonymous requests to one endpoint than there are calls leave other endpoints working, of the same owner and of
/// others.
#[tokio::test]
async fn one_endpoint_cannot_use_all_calls() {
    const REQUESTS: usize = 300;
    let mut rig = Rig::start().await;
    let waiting = Arc::new(Turns::default());
    let turns = Arc::clone(&waiting);
    let slow = origin(&mut rig.tasks, move |mut client| {
        let turns = Arc::clone(&turns);
        async move {
            let _head = client.request().await;
            turns.next();
            std::future::pending::<()>().await;
        }
    })
    .await;
    let (fast, _) = counting(&mut rig).await;
    let asks = |host: &str| {
        let call = json!({"type": "http-request", "config": {"url": format!("http://{host}/"), "timeout": "30s"}});
        let answer = json!({"type": "custom-response", "config": {"body": "ok"}});
        json!({"on_http_request": [{"actions": [call, answer]}]}).to_string()
    };
    publish(
        &rig,
        [
            owned("usr_1", "ep_slow", "slow.example", &asks("slow.internal")),
            owned("usr_1", "ep_fast", "fast.example", &asks("fast.internal")),
            owned("usr_2", "ep_other", "other.example", &asks("fast.internal")),
            named(
                Scheme::Http,
                "slow.internal",
                80,
                &format!("http://{slow}"),
                "",
            ),
            named(Scheme::Http, "fast.internal", 80, &fast, ""),
        ],
    )
    .await;
    let ask = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        let mut client = rig.connect().await;
        client.send(ask("slow.example")).await;
        clients.push(client);
    }
    // Half of all calls wait for the slow service; the rest is refused.
    let refused = || rig.edge.meters().policy.refusals.get();
    eventually("all calls of the endpoint", || {
        waiting.get() + usize::try_from(refused()).unwrap() == REQUESTS
    })
    .await;
    assert_eq!(waiting.get(), culvert_policy::services::CALLS_MAX / 2);
    for host in ["fast.example", "other.example"] {
        for _ in 0..3 {
            assert_eq!(rig.ask(&ask(host)).await.status, 200, "{host}");
        }
    }
    let answer = rig.ask(&ask("slow.example")).await;
    assert_eq!(
        (answer.status, answer.header("ngrok-error-code")),
        (500, LIMIT)
    );
}
