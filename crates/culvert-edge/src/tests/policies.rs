//! Traffic policies on live traffic: what the client gets, what the upstream gets, and the whole
//! event (contract: traffic policy, events 7).

use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_base::{Prefix, Verdict};
use culvert_edge_config::ACTIONS;
use culvert_policy::{IpPolicy, OnExpressionError, Scheme};
use culvert_policy::{Resources, Secrets, Source};
use serde_json::{Value, json};

use super::harness::*;
use crate::{Endpoint, Settings, Snapshot};

/// An endpoint with a policy, in front of an origin or of none.
pub(crate) fn governed(scheme: Scheme, upstream: &str, policy: &str) -> Endpoint {
    governed_with(scheme, upstream, policy, &Resources::default())
}

pub(crate) fn governed_with(
    scheme: Scheme,
    upstream: &str,
    policy: &str,
    resources: &Resources,
) -> Endpoint {
    let source = Source::read(policy, ACTIONS).unwrap();
    let policy = source.compile(scheme, !upstream.is_empty(), resources);
    let mut endpoint = endpoint(scheme, "app.example", 443, "http://127.0.0.1:1", "");
    endpoint.policy = Some(Arc::new(policy.unwrap()));
    endpoint.upstream = match upstream {
        "" => None,
        url => Some(crate::Upstream::parse(url, "").unwrap()),
    };
    endpoint
}

pub(crate) async fn publish(rig: &Rig, upstream: &str, policy: &str) {
    let endpoint = governed(Scheme::Http, upstream, policy);
    rig.edge
        .publish(Snapshot::builder().endpoint(endpoint).build())
        .await;
}

const ASK: &str = "GET /a?b=c HTTP/1.1\r\nHost: app.example\r\nX-Who: me\r\n\r\n";

/// An origin that returns the head of each request.
async fn echo(rig: &mut Rig) -> String {
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nx-origin: yes\r\nx-secret: s\r\ncontent-length: {}\r\n\r\n{head}",
                head.len()
            );
            client.send(answer).await;
        }
    })
    .await;
    format!("http://{origin}")
}

/// The last exchange's event without what changes from run to run.
pub(crate) async fn last_event(rig: &Rig, count: usize) -> Value {
    let events = rig.recorder.events(count).await;
    let mut object = of(&events, HTTP).last().unwrap()["object"].clone();
    for field in ["server_port", "start_ts"] {
        object["conn"].as_object_mut().unwrap().remove(field);
    }
    let headers = &mut object["http"]["response"]["headers"];
    if let Some(headers) = headers.as_object_mut() {
        headers.remove("Date");
        headers.remove("Culvert-Request-Id");
    }
    object
}

/// The event of `ASK`, blocked or answered by the edge, before what the case changes.
pub(crate) fn event(status: Value, headers: Value, body_length: usize) -> Value {
    json!({
        "backend": {"connection_reused": false},
        "basic_auth": {"decision": "invalid", "username": null},
        "circuit_breaker": {"decision": "invalid"},
        "compression": {"algorithm": "none", "bytes_saved": 0},
        "conn": {"client_ip": "127.0.0.1", "server_ip": "127.0.0.1", "server_name": "app.example"},
        "http": {
            "request": {
                "body_length": 0, "headers": {"Host": ["app.example"], "X-Who": ["me"]}, "method": "get",
                "url": {"host": "app.example", "path": "/a", "query": "b=c", "raw": "http://app.example/a?b=c", "scheme": "http"},
                "user_agent": null,
            },
            "response": {"body_length": body_length, "headers": headers, "status_code": status},
        },
        "ip_policy": {"decision": "invalid"},
        "oauth": {"app_client_id": null, "decision": "invalid", "user": {"id": null, "name": null}},
        "tls": {"cipher_suite": null, "client_cert": {"serial_number": null, "subject": {"cn": null}}, "version": null},
        "traffic_policy": {"logs": []},
        "webhook_verification": {"decision": "invalid"},
    })
}

#[tokio::test]
async fn a_policy_answers_without_an_upstream() {
    let rig = Rig::with(Settings {
        on_expression_error: OnExpressionError::Skip,
        ..settings()
    })
    .await;
    publish(
        &rig,
        "",
        r#"
on_http_request:
- expressions: ["req.headers['x-who'][0] == 'me'", "conn.client_ip == '127.0.0.1'"]
  actions:
  - type: log
    config: {metadata: {who: "${req.headers['x-who'][0]}", n: "${1 + 1}", list: [true, "${req.url.query_params}"]}}
- expressions: ["'b' in req.url.query_params && vars.nothing == 1"]
  actions: [{type: deny}]
- actions:
  - type: custom-response
    config: {status_code: 201, body: '{"path": "${req.url.path}"}', headers: {x-id: "${endpoint.id}"}}
on_http_response:
- expressions: ["res.status_code == 201"]
  actions:
  - {type: log, config: {metadata: {type: "${res.content_type}"}}}
  - {type: add-headers, config: {headers: {x-late: yes it is}}}
"#,
    )
    .await;
    let answer = rig.ask(ASK).await;
    assert_eq!((answer.status, answer.text()), (201, r#"{"path": "/a"}"#));
    assert_eq!(answer.header("x-id"), Some("ep_1"));
    assert_eq!(answer.header("x-late"), Some("yes it is"));
    let headers = json!({
        "Content-Type": ["application/json"], "X-Content-Type-Options": ["nosniff"], "Content-Length": ["14"], "X-Id": ["ep_1"], "X-Late": ["yes it is"],
    });
    let mut expected = event(json!(201), headers, 14);
    expected["traffic_policy"]["logs"] = json!([
        {"metadata": {"who": "me", "n": 2, "list": [true, {"b": ["c"]}]}},
        {"metadata": {"type": "application/json"}},
    ]);
    assert_eq!(last_event(&rig, 1).await, expected);
    // The rule whose expression failed was passed over, and counted.
    assert_eq!(rig.edge.meters().policy.failures.get(), 1);
}

#[tokio::test]
async fn actions_change_requests_and_responses() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    publish(
        &rig,
        &origin,
        r#"
on_http_request:
- actions:
  - {type: set-vars, config: {vars: [{who: "${req.headers['x-who'][0]}"}, {twice: "${vars.who + vars.who}"}]}}
  - {type: add-headers, config: {headers: {x-twice: "${vars.twice}", host: inner.example, x-broken: "a${'\\n'}b"}}}
  - {type: remove-headers, config: {headers: [x-who, x-forwarded-for]}}
  - {type: url-rewrite, config: {from: "/a\\?(.*)", to: "/v2/$1?was=${req.url.uri}"}}
on_http_response:
- actions:
  - {type: remove-headers, config: {headers: [x-secret]}}
  - {type: add-headers, config: {headers: {x-vars: "${size(vars)}", x-removed: "${actions.ngrok.remove_headers.headers_removed[0]}"}}}
"#,
    )
    .await;
    let answer = rig.ask(ASK).await;
    let sent = answer.text().to_ascii_lowercase();
    assert!(
        sent.starts_with("get /v2/b=c?was=/a?b=c http/1.1\r\n"),
        "{sent}"
    );
    assert!(
        sent.contains("\r\nhost: inner.example\r\n") && sent.contains("\r\nx-twice: meme\r\n"),
        "{sent}"
    );
    for gone in [
        "x-who:",
        "x-forwarded-for:",
        "x-broken:",
        "app.example\r\nhost",
    ] {
        assert!(!sent.contains(gone), "{gone}: {sent}");
    }
    assert_eq!(answer.header("x-secret"), None);
    // Variables last for a phase; a later action's own result is what it reads.
    assert_eq!(answer.header("x-vars"), Some("0"));
    assert_eq!(answer.header("x-removed"), Some("x-secret"));
    assert_eq!(answer.header("x-origin"), Some("yes"));
    let reported = last_event(&rig, 1).await;
    assert_eq!(
        reported["http"]["request"]["headers"],
        json!({"Host": ["app.example"], "X-Who": ["me"]})
    );
    assert_eq!(reported["http"]["request"]["url"]["path"], "/a");
    assert_eq!(
        reported["http"]["response"]["headers"]["X-Vars"],
        json!(["0"])
    );
}

#[tokio::test]
async fn deny_redirect_and_custom_response_end_a_request() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    for (n, (rules, status, location)) in [
        ("{type: deny}", Some(403), None),
        ("{type: deny, config: {status_code: 451}}", Some(451), None),
        (
            "{type: redirect, config: {to: 'https://other/${req.method}'}}",
            Some(302),
            Some("https://other/GET"),
        ),
        (
            "{type: redirect, config: {from: '^http:(.*)', to: 'https:$1', status_code: 308}}",
            Some(308),
            Some("https://app.example/a?b=c"),
        ),
        (
            "{type: redirect, config: {from: '^ftp:', to: 'x'}}",
            Some(200),
            None,
        ),
        (
            "{type: redirect, config: {from: '/a', to: '/a'}}",
            Some(200),
            None,
        ),
        (
            "{type: redirect, config: {to: \"${req.headers['absent'][0]}\"}}",
            Some(500),
            None,
        ),
        (
            "{type: restrict-ips, config: {allow: [127.0.0.0/8], deny: [127.0.0.1]}}",
            Some(403),
            None,
        ),
        (
            "{type: restrict-ips, config: {enforce: false, deny: ['::/0']}}",
            Some(200),
            None,
        ),
        (
            "{type: restrict-ips, config: {allow: ['${conn.client_ip}/8']}}",
            Some(200),
            None,
        ),
        (
            "{type: restrict-ips, config: {allow: ['${req.host}']}}",
            Some(403),
            None,
        ),
        ("{type: close-connection}", None, None),
    ]
    .into_iter()
    .enumerate()
    {
        publish(&rig, &origin, &format!("on_http_request: [{{actions: [{rules}]}}]\non_http_response: [{{actions: [{{type: log, config: {{metadata: {{s: '${{res.status_code}}'}}}}}}]}}]")).await;
        let mut client = rig.connect().await;
        client.send(ASK).await;
        let answer = client.try_answer("GET").await;
        assert_eq!(
            answer.as_ref().map(|answer| answer.status),
            status,
            "{rules}"
        );
        let found = answer.as_ref().and_then(|answer| answer.header("location"));
        assert_eq!(found, location, "{rules}");
        drop(client);
        let events = rig.recorder.events(2 * n + 2).await;
        let reported = &of(&events, HTTP)[n]["object"];
        assert_eq!(
            reported["http"]["response"]["status_code"],
            json!(status),
            "{rules}"
        );
        // The response phase runs on what the edge made too, unless there is no response.
        let logs = status.map_or(json!([]), |status| json!([{"metadata": {"s": status}}]));
        assert_eq!(reported["traffic_policy"]["logs"], logs, "{rules}");
        let decision = match (rules.contains("restrict"), status) {
            (false, _) => "invalid",
            (true, Some(403)) => "block",
            _ => "allow",
        };
        assert_eq!(reported["ip_policy"]["decision"], decision, "{rules}");
    }
}

#[tokio::test]
async fn errors_of_the_edge_run_the_response_phase() {
    let rig = Rig::start().await;
    let policy = "on_http_response: [{expressions: ['res.status_code == 502'], actions: [{type: custom-response, config: {status_code: 503, body: back soon}}]}]";
    publish(&rig, "http://127.0.0.1:1", policy).await;
    let answer = rig.ask(ASK).await;
    assert_eq!((answer.status, answer.text()), (503, "back soon"));
    let headers = json!({"Content-Type": ["text/plain; charset=utf-8"], "X-Content-Type-Options": ["nosniff"], "Content-Length": ["9"]});
    assert_eq!(last_event(&rig, 1).await, event(json!(503), headers, 9));
}

#[tokio::test]
async fn changes_of_ip_policies_apply_immediately() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let cell = Arc::new(IpPolicy::default());
    let mut resources = Resources::default();
    resources
        .ip_policies
        .insert("ipp_1".into(), Arc::clone(&cell));
    let policy = "on_http_request: [{actions: [{type: restrict-ips, config: {ip_policies: [ipp_1]}}, {type: log, config: {metadata: {m: '${actions.culvert.restrict_ips.matched_cidr}'}}}]}]";
    let endpoint = governed_with(Scheme::Http, &origin, policy, &resources);
    rig.edge
        .publish(Snapshot::builder().endpoint(endpoint).build())
        .await;
    let mut client = rig.connect().await;
    client.send(ASK).await;
    let answer = client.answer("GET").await;
    assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3203"));
    cell.replace(vec![(
        Verdict::Allow,
        Prefix::parse("127.0.0.0/8").unwrap(),
    )]);
    client.send(ASK).await;
    assert_eq!(client.answer("GET").await.status, 200);
    let reported = last_event(&rig, 2).await;
    assert_eq!(reported["ip_policy"]["decision"], "allow");
    assert_eq!(
        reported["traffic_policy"]["logs"],
        json!([{"metadata": {"m": "127.0.0.0/8"}}])
    );
}

#[tokio::test]
async fn connection_rules_run_before_request_rules() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let policy = |allow: &str| {
        format!(
            "on_tcp_connect: [{{actions: [{{type: log, config: {{metadata: {{ip: '${{conn.client_ip}}'}}}}}}, {{type: restrict-ips, config: {{allow: [{allow}]}}}}]}}]"
        )
    };
    publish(&rig, &origin, &policy("127.0.0.1")).await;
    let mut client = rig.connect().await;
    for _ in 0..2 {
        client.send(ASK).await;
        assert_eq!(client.answer("GET").await.status, 200);
    }
    // A change counts for the next request of an open connection.
    publish(&rig, &origin, &policy("192.0.2.1")).await;
    client.send(ASK).await;
    assert!(client.try_answer("GET").await.is_none());
    let events = rig.recorder.events(3).await;
    assert_eq!(of(&events, HTTP).len(), 2);
    for event in of(&events, HTTP) {
        assert_eq!(event["object"]["ip_policy"]["decision"], "allow");
        assert_eq!(event["object"]["traffic_policy"]["logs"], json!([]));
    }
    let tcp = &of(&events, TCP)[0]["object"];
    assert_eq!(tcp["ip_policy"]["decision"], "invalid");
    let entry = json!({"metadata": {"ip": "127.0.0.1"}});
    assert_eq!(tcp["traffic_policy"]["logs"], json!([entry, entry]));
}

#[tokio::test]
async fn tcp_and_tls_connections_obey_their_policy() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.send("from the origin").await;
    })
    .await;
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let upstream = format!("tcp://{origin}");
    for (n, (rule, is_in, decision)) in [
        (
            "{type: restrict-ips, config: {allow: [127.0.0.1]}}",
            true,
            "allow",
        ),
        (
            "{type: restrict-ips, config: {allow: [192.0.2.1]}}",
            false,
            "block",
        ),
        ("{type: deny}", false, "invalid"),
        (
            "{type: set-vars, config: {vars: [{a: '${endpoint.url}'}]}}",
            true,
            "invalid",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let policy = format!("on_tcp_connect: [{{actions: [{rule}]}}]");
        let mut tcp = governed(Scheme::Tcp, &upstream, &policy);
        tcp.port = free.port();
        let tls_endpoint = governed(Scheme::Tls, &upstream, &policy);
        let snapshot = Snapshot::builder().endpoint(tcp).endpoint(tls_endpoint);
        rig.edge.publish(snapshot.build()).await;
        let mut client = Client::new(tokio::net::TcpStream::connect(free).await.unwrap());
        let expected: &[u8] = if is_in { b"from the origin" } else { b"" };
        assert_eq!(client.rest().await, expected, "{rule}");
        drop(client);
        let (_, _, root) = certificate(&["app.example"]);
        // The origin does not support TLS, so an admitted connection fails too.
        assert!(
            tls(rig.edge.https_addr().unwrap(), &root, "app.example", "x")
                .await
                .is_err()
        );
        let events = rig.recorder.events(2 * n + 2).await;
        for event in &events[2 * n..] {
            assert_eq!(event["object"]["ip_policy"]["decision"], decision, "{rule}");
        }
    }
}

#[tokio::test]
async fn basic_auth_accepts_only_its_credentials() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let policy = |more: &str| {
        format!(
            "on_http_request: [{{actions: [{{type: basic-auth, config: {{credentials: ['me:correct horse', 'who:${{req.host}}']{more}}}}}, {{type: log, config: {{metadata: {{auth: '${{actions.ngrok.basic_auth.credentials}}'}}}}}}]}}]"
        )
    };
    publish(&rig, &origin, &policy(", realm: the \"door\"")).await;
    let ask = |header: &str| format!("GET / HTTP/1.1\r\nHost: app.example\r\n{header}\r\n");
    for (n, (header, status, decision, user)) in [
        ("", 401, "block", json!(null)),
        ("Authorization: Bearer x\r\n", 401, "block", json!(null)),
        ("Authorization: Basic ???\r\n", 401, "block", json!(null)),
        // me:wrong
        (
            "Authorization: Basic bWU6d3Jvbmc=\r\n",
            401,
            "block",
            json!("me"),
        ),
        // me:correct horse
        (
            "Authorization: basic bWU6Y29ycmVjdCBob3JzZQ==\r\n",
            200,
            "allow",
            json!("me"),
        ),
        // who:app.example
        (
            "Authorization: Basic d2hvOmFwcC5leGFtcGxl\r\n",
            200,
            "allow",
            json!("who"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = rig.ask(&ask(header)).await;
        assert_eq!(answer.status, status, "{header}");
        let challenge = (status == 401).then_some(r#"Basic realm="the \"door\"", charset="UTF-8""#);
        assert_eq!(answer.header("www-authenticate"), challenge);
        assert_eq!(
            answer.text().contains("authorization: basic"),
            status == 200 && header.contains("basic")
        );
        let events = rig.recorder.events(2 * n + 2).await;
        let reported = &of(&events, HTTP)[n]["object"];
        assert_eq!(
            reported["basic_auth"],
            json!({"decision": decision, "username": user}),
            "{header}"
        );
        if status == 200 {
            let auth = json!({"presented": true, "username": user, "authorized": true});
            assert_eq!(
                reported["traffic_policy"]["logs"],
                json!([{"metadata": {"auth": auth}}])
            );
        }
    }
    publish(&rig, &origin, &policy(", enforce: false")).await;
    assert_eq!(rig.ask(&ask("")).await.status, 200);
}

#[tokio::test]
async fn requests_beyond_a_rate_limit_are_refused() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let policy = "on_http_request: [{actions: [{type: rate-limit, config: {capacity: 2, rate: 24h, bucket_key: [\"req.headers['x-who'][0]\"]}}]}]";
    publish(&rig, &origin, policy).await;
    let ask = |who: &str| format!("GET / HTTP/1.1\r\nHost: app.example\r\nX-Who: {who}\r\n\r\n");
    for (who, status) in [("a", 200), ("a", 200), ("a", 429), ("b", 200), ("a", 429)] {
        let answer = rig.ask(&ask(who)).await;
        assert_eq!(answer.status, status, "{who}");
        let wait = answer
            .header("retry-after")
            .map(|wait| wait.parse::<u64>().unwrap());
        assert_eq!(
            wait.is_some_and(|wait| (1..=86_400).contains(&wait)),
            status == 429
        );
    }
}

#[tokio::test]
async fn the_circuit_breaker_skips_a_failing_upstream() {
    let mut rig = Rig::start().await;
    let served = Arc::new(Turns::default());
    let turns = Arc::clone(&served);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let turns = Arc::clone(&turns);
        async move {
            while client.request().await.is_some() {
                let status = if turns.next() < 3 {
                    "500 Broken"
                } else {
                    "200 OK"
                };
                client
                    .send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))
                    .await;
            }
        }
    })
    .await;
    let policy = "on_http_request: [{actions: [{type: circuit-breaker, config: {volume_threshold: 3, tripped_duration: 1s}}]}]";
    publish(&rig, &format!("http://{origin}"), policy).await;
    let mut decisions = Vec::new();
    let mut asked = 0;
    let mut ask = async || {
        let answer = rig.ask(ASK).await;
        asked += 1;
        let events = rig.recorder.events(2 * asked).await;
        let reported =
            of(&events, HTTP).last().unwrap()["object"]["circuit_breaker"]["decision"].clone();
        (
            answer.status,
            reported,
            answer.header("retry-after").map(str::to_owned),
        )
    };
    for _ in 0..3 {
        assert_eq!(ask().await, (500, json!("allow"), None));
    }
    // Open: until the next probe the upstream gets no request.
    soon("a probe", async {
        loop {
            let (status, decision, wait) = ask().await;
            decisions.push(decision);
            if status == 200 {
                return;
            }
            assert_eq!((status, served.get()), (503, 3));
            assert_eq!(wait.as_deref(), Some("1"));
        }
    })
    .await;
    assert_eq!(decisions.pop(), Some(json!("allow_while_open")));
    assert!(
        decisions.iter().all(|decision| decision == "block"),
        "{decisions:?}"
    );
    assert_eq!(ask().await, (200, json!("allow"), None));
}

/// Pairs of actions that configure one thing, in each order.
#[tokio::test]
async fn two_actions_with_one_subject_both_apply() {
    let mut rig = Rig::start().await;
    let upstream = echo(&mut rig).await;
    let compress =
        |coding: &str| json!({"type": "compress-response", "config": {"algorithms": [coding]}});
    for (first, second, accepted, expected) in [
        ("gzip", "br", "gzip", Some("gzip")),
        ("gzip", "br", "br", Some("br")),
        ("br", "gzip", "gzip", Some("gzip")),
        ("br", "gzip", "br", Some("br")),
        ("gzip", "br", "gzip, br", Some("br")),
        ("gzip", "br", "deflate", None),
    ] {
        let policy =
            json!({"on_http_response": [{"actions": [compress(first), compress(second)]}]});
        publish(&rig, &upstream, &policy.to_string()).await;
        let ask =
            format!("GET / HTTP/1.1\r\nHost: app.example\r\nAccept-Encoding: {accepted}\r\n\r\n");
        let answer = rig.ask(&ask).await;
        let coding = answer
            .headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("content-encoding"));
        let coding = coding.map(|(_, value)| value.as_str());
        assert_eq!(coding, expected, "{first}, {second}, {accepted}");
    }
    let allow = json!({"type": "restrict-ips", "config": {"allow": ["127.0.0.0/8"]}});
    let others = json!({"type": "restrict-ips", "config": {"allow": ["192.0.2.0/24"]}});
    let rewrite =
        |from: &str, to: &str| json!({"type": "url-rewrite", "config": {"from": from, "to": to}});
    for (first, second, status, target) in [
        (allow.clone(), others.clone(), 403, ""),
        (others, allow.clone(), 403, ""),
        (allow.clone(), allow, 200, "GET /a?b=c "),
        (rewrite("/a", "/x"), rewrite("b=c", "d"), 200, "GET /x?d "),
        (rewrite("b=c", "d"), rewrite("/a", "/x"), 200, "GET /x?d "),
    ] {
        let policy = json!({"on_http_request": [{"actions": [first]}, {"actions": [second]}]});
        publish(&rig, &upstream, &policy.to_string()).await;
        let answer = rig.ask(ASK).await;
        assert_eq!(answer.status, status, "{policy}");
        assert!(
            answer.text().starts_with(target) || status != 200,
            "{policy} {}",
            answer.text()
        );
    }
}

/// An IP policy that a policy names and that does not exist: the addresses that it denied are unknown, so every address is
/// denied, whatever else the policy allows.
#[tokio::test]
async fn a_missing_ip_policy_denies_every_client() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let prefix = |text| Prefix::parse(text).unwrap();
    for phase in ["on_tcp_connect", "on_http_request", "on_http_response"] {
        let cell = Arc::new(IpPolicy::default());
        let mut resources = Resources::default();
        let named = Arc::clone(&cell);
        resources.ip_policies.insert("ipp_1".into(), named);
        let policy = format!(
            "{phase}: [{{actions: [{{type: restrict-ips, config: {{allow: [0.0.0.0/0], ip_policies: [ipp_1]}}}}]}}]"
        );
        let endpoint = governed_with(Scheme::Http, &origin, &policy, &resources);
        rig.edge
            .publish(Snapshot::builder().endpoint(endpoint).build())
            .await;
        let enters = async || {
            let mut client = rig.connect().await;
            client.send(ASK).await;
            let answer = client.try_answer("GET").await;
            answer.is_some_and(|answer| answer.status == 200)
        };
        assert!(!enters().await, "{phase}: its rules are not known yet");
        cell.replace(vec![(Verdict::Deny, prefix("192.0.2.0/24"))]);
        assert!(enters().await, "{phase}");
        cell.replace(vec![(Verdict::Deny, prefix("127.0.0.0/8"))]);
        assert!(!enters().await, "{phase}");
        cell.vanish();
        assert!(!enters().await, "{phase}: it is gone");
    }
}

/// A secret that a policy reads and that does not exist: the rule is not skipped and nothing is made of
/// its absence, wherever the expression stands.
#[tokio::test]
async fn a_missing_secret_refuses_the_exchange() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let secrets = Arc::new(Secrets::default());
    let resources = Resources {
        secrets: Arc::clone(&secrets),
        ..Resources::default()
    };
    let get = "secrets.get('v', 'n')";
    for policy in [
        json!({"on_http_request": [{
            "expressions": [format!("req.headers['x-who'][0] != {get}")],
            "actions": [{"type": "deny"}],
        }]}),
        json!({"on_http_request": [
            {"actions": [{"type": "set-vars", "config": {"vars": [{"k": format!("${{{get}}}")}]}}]},
            {"expressions": ["hasReqHeader('x-none') && req.headers['x-none'][0] != vars.k"], "actions": [{"type": "deny"}]},
        ]}),
        json!({"on_http_request": [{"actions": [{"type": "add-headers", "config": {
            "headers": {"x-key": format!("${{{get}}}")},
        }}]}]}),
        json!({"on_http_response": [{"actions": [{"type": "add-headers", "config": {
            "headers": {"x-key": format!("${{{get}}}")},
        }}]}]}),
        json!({"on_http_response": [{
            "expressions": [format!("{get} == 'nobody'")],
            "actions": [{"type": "remove-headers", "config": {"headers": ["x-secret"]}}],
        }]}),
        json!({"on_tcp_connect": [{
            "expressions": [format!("conn.client_ip == {get}")],
            "actions": [{"type": "close-connection"}],
        }]}),
    ] {
        let policy = policy.to_string();
        let endpoint = governed_with(Scheme::Http, &origin, &policy, &resources);
        rig.edge
            .publish(Snapshot::builder().endpoint(endpoint).build())
            .await;
        let status = async || {
            let mut client = rig.connect().await;
            client.send(ASK).await;
            client.try_answer("GET").await.map(|answer| answer.status)
        };
        secrets.replace([("v", "n", "me")]);
        assert_eq!(status().await, Some(200), "{policy}");
        for others in [vec![], vec![("v", "m", "me")], vec![("w", "n", "me")]] {
            secrets.replace(others);
            let status = status().await;
            assert!(matches!(status, None | Some(500)), "{status:?} {policy}");
        }
    }
}

/// Rules on a host apply to every spelling of it that requests are routed by: none is skipped because the
/// host has no value, and none passes under another spelling.
#[tokio::test]
async fn host_rules_match_every_spelling_of_the_host() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let spellings = [
        "no.v.example",
        "NO.v.example",
        "no.v.example.",
        "NO.V.example.:443",
        "no.v.example:",
        "xn--a.v.example",
        "xn--0.v.example",
        "xn--zzzzzz99999999.v.example",
        "_no.v.example",
        "-no.v.example",
        "127.v.example",
    ];
    for (rule, denied, allowed) in [
        (
            "req.url.host != 'ok.v.example'",
            &spellings[..],
            "ok.v.example",
        ),
        (
            "!req.url.startsWith('http://ok.v.example')",
            &spellings[..],
            "OK.v.example.",
        ),
        (
            "req.url.contains('/admin') && req.url.host != 'ok.v.example'",
            &spellings[..],
            "ok.v.example:443",
        ),
        (
            "req.url.host == 'no.v.example'",
            &spellings[..5],
            "yes.v.example",
        ),
    ] {
        let policy = json!({"on_http_request": [
            {"expressions": [rule], "actions": [{"type": "deny"}]},
        ]});
        let mut endpoint = governed(Scheme::Http, &origin, &policy.to_string());
        endpoint.host = HostName::parse("*.v.example").unwrap();
        rig.edge
            .publish(Snapshot::builder().endpoint(endpoint).build())
            .await;
        let ask = async |host: &str| {
            let request = format!("GET /admin HTTP/1.1\r\nHost: {host}\r\n\r\n");
            rig.ask(&request).await.status
        };
        for host in denied {
            // An invalid host is refused before any rule.
            let status = ask(host).await;
            assert!([400, 403, 404].contains(&status), "{rule} {host}: {status}");
        }
        assert_eq!(ask(allowed).await, 200, "{rule}");
    }
}

/// When the request's body had arrived is known to the response phase, where there was one and it is whole.
#[tokio::test]
async fn the_response_phase_has_the_time_when_the_request_body_ended() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while client.request().await.is_some() {
            client
                .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await;
        }
    })
    .await;
    publish(
        &rig,
        &format!("http://{origin}"),
        r#"
on_http_response:
- expressions: ["has(req.ts.body_received) && req.ts.body_received >= req.ts.header_received && req.ts.body_received <= timestamp(time.now) + duration('1s')"]
  actions: [{type: add-headers, config: {headers: {x-body: arrived}}}]
"#,
    )
    .await;
    for (request, expected) in [
        ("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n", None),
        (
            "POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 3\r\n\r\nabc",
            Some("arrived"),
        ),
        (
            "POST / HTTP/1.1\r\nHost: app.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            Some("arrived"),
        ),
    ] {
        let answer = rig.ask(request).await;
        assert_eq!(answer.header("x-body"), expected, "{request}");
    }
}
