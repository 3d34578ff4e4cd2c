//! From endpoint to endpoint, and pools of endpoints (contract: traffic policy 8.9, events 6).

use culvert_base::net::HostName;
use culvert_edge_config::ACTIONS;
use culvert_policy::Scheme;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::harness::*;
use super::policies::{governed, last_event};
use crate::{Endpoint, Inherited, Settings, Snapshot};

pub(super) fn named(
    scheme: Scheme,
    host: &str,
    port: u16,
    upstream: &str,
    policy: &str,
) -> Endpoint {
    let mut endpoint = match policy {
        "" => endpoint(scheme, host, port, upstream, ""),
        policy => governed(scheme, upstream, policy),
    };
    endpoint.host = HostName::parse(host).unwrap();
    endpoint.binding = binding(host);
    endpoint.port = port;
    endpoint
}

pub(super) async fn publish(rig: &Rig, endpoints: impl IntoIterator<Item = Endpoint>) {
    let mut snapshot = Snapshot::builder();
    for endpoint in endpoints {
        snapshot = snapshot.endpoint(endpoint);
    }
    rig.edge.publish(snapshot.build()).await;
}

/// An origin that says its name, and the head it got.
async fn says(rig: &mut Rig, name: &'static str) -> String {
    let origin = origin(&mut rig.tasks, move |mut client| async move {
        while let Some((head, body)) = client.request().await {
            let body = String::from_utf8(body).unwrap();
            let text = format!("{name}\n{head}{body}");
            client
                .send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                    text.len()
                ))
                .await;
        }
    })
    .await;
    format!("http://{origin}")
}

const ASK: &str = "GET /a?b=c HTTP/1.1\r\nHost: app.example\r\nX-Who: me\r\n\r\n";

#[tokio::test]
async fn forward_internal_runs_each_policy_in_both_phases() {
    let mut rig = Rig::start().await;
    let origin = says(&mut rig, "inner").await;
    let outer = r#"
on_http_request:
- actions:
  - {type: log, config: {metadata: {at: outer}}}
  - {type: restrict-ips, config: {allow: [127.0.0.1]}}
  - {type: add-headers, config: {headers: {x-outer: "1"}}}
  - {type: url-rewrite, config: {from: example/a, to: example/v2/a}}
  - {type: forward-internal, config: {url: "http://${req.method.lowerAscii()}.internal:8080"}}
on_http_response:
- actions:
  - {type: log, config: {metadata: {status: "${res.status_code}", inner: "${res.headers['x-inner'][0]}", mine: "${size(actions.culvert)}"}}}
  - {type: add-headers, config: {headers: {x-late: outer}}}
"#;
    let inner = r#"
on_http_request:
- expressions: ["req.headers['x-outer'][0] == '1' && req.host == 'app.example' && req.headers['x-forwarded-for'][0] == '127.0.0.1'"]
  actions:
  - {type: log, config: {metadata: {at: "${endpoint.url}", path: "${req.url.path}"}}}
  - {type: basic-auth, config: {credentials: ["me:password"], enforce: false}}
on_http_response:
- actions: [{type: add-headers, config: {headers: {x-inner: "yes"}}}]
"#;
    publish(
        &rig,
        [
            named(Scheme::Http, "app.example", 80, "", outer),
            named(Scheme::Http, "get.internal", 8080, &origin, inner),
        ],
    )
    .await;
    let answer = rig.ask(ASK).await;
    let text = answer.text();
    assert!(
        text.starts_with("inner\nGET /v2/a?b=c HTTP/1.1\r\n"),
        "{text}"
    );
    let lower = text.to_ascii_lowercase();
    assert!(
        lower.contains("\r\nhost: app.example\r\n") && lower.contains("\r\nx-outer: 1\r\n"),
        "{text}"
    );
    assert_eq!(lower.matches("x-forwarded-for").count(), 1, "{text}");
    assert!(
        lower.contains("\r\nx-forwarded-host: app.example\r\n"),
        "{text}"
    );
    assert_eq!(answer.header("x-inner"), Some("yes"));
    assert_eq!(answer.header("x-late"), Some("outer"));
    // One event, of the endpoint that was asked, with what both decided and logged.
    let reported = last_event(&rig, 1).await;
    assert_eq!(
        reported["traffic_policy"]["logs"],
        json!([
            {"metadata": {"at": "outer"}},
            {"metadata": {"at": "http://get.internal:8080", "path": "/v2/a"}},
            {"metadata": {"status": 200, "inner": "yes", "mine": 4}},
        ])
    );
    assert_eq!(reported["ip_policy"]["decision"], "allow");
    assert_eq!(reported["basic_auth"]["decision"], "allow");
    assert_eq!(
        reported["http"]["request"]["url"]["raw"],
        "http://app.example/a?b=c"
    );
    let events = rig.recorder.events(2).await;
    assert_eq!((of(&events, HTTP).len(), of(&events, TCP).len()), (1, 1));
    assert_eq!(
        of(&events, TCP)[0]["object"]["conn"]["server_name"],
        "app.example"
    );
}

#[tokio::test]
async fn a_block_is_not_undone_by_a_later_allow() {
    let rig = Rig::start().await;
    let forward = "
on_http_request: [{actions: [{type: forward-internal, config: {url: http://a.internal}}]}]
on_http_response: [{actions: [{type: restrict-ips, config: {allow: [0.0.0.0/0]}}]}]";
    let block = "on_http_request: [{actions: [{type: restrict-ips, config: {deny: [0.0.0.0/0]}}, {type: deny}]}]";
    publish(
        &rig,
        [
            named(Scheme::Http, "app.example", 80, "", forward),
            named(Scheme::Http, "a.internal", 80, "", block),
        ],
    )
    .await;
    assert_eq!(rig.ask(ASK).await.status, 403);
    assert_eq!(last_event(&rig, 1).await["ip_policy"]["decision"], "block");
}

/// The rights of a moment.
#[derive(Debug)]
struct Rights(bool);

impl crate::ForwardRights for Rights {
    fn may_forward(
        &self,
        from: culvert_policy::host::EndpointInfo<'_>,
        _: &str,
        to: culvert_policy::host::EndpointInfo<'_>,
    ) -> bool {
        assert_eq!((from.owner, to.owner), ("usr_2", "usr_1"));
        self.0
    }
}

/// A policy forwards to, and calls, an internal endpoint of another owner only while it has the right.
#[tokio::test]
async fn internal_endpoints_of_other_owners_need_a_right() {
    let mut rig = Rig::start().await;
    let origin = says(&mut rig, "theirs").await;
    let forward = "on_http_request: [{actions: [{type: forward-internal, config: {url: 'http://theirs.internal'}}]}]";
    let computed = "on_http_request: [{actions: [{type: forward-internal, config: {url: 'http://${\"theirs\"}.internal'}}]}]";
    let call = "on_http_request: [{actions: [{type: http-request, config: {url: 'http://theirs.internal'}}]}]";
    for policy in [forward, computed, call] {
        let mut from = named(Scheme::Http, "app.example", 80, &origin, policy);
        from.owner = "usr_2".into();
        from.id = "ep_2".into();
        let to = named(Scheme::Http, "theirs.internal", 80, &origin, "");
        let whole = Snapshot::builder().endpoint(from).endpoint(to);
        rig.edge.publish(whole.build()).await;
        for (rights, code) in [
            (None, Some("ERR_NGROK_3618")),
            (Some(true), None),
            (Some(false), Some("ERR_NGROK_3618")),
            (Some(true), None),
        ] {
            if let Some(rights) = rights {
                let mut change = crate::Change::default();
                change.forward_rights(std::sync::Arc::new(Rights(rights)));
                rig.edge.apply(change).await;
            }
            let answer = rig.ask(ASK).await;
            let status = if code.is_some() { 502 } else { 200 };
            assert_eq!(
                (answer.status, answer.header("ngrok-error-code")),
                (status, code),
                "{policy} {rights:?}"
            );
        }
    }
}

#[tokio::test]
async fn loops_and_unknown_targets_of_forward_internal_are_refused() {
    let mut rig = Rig::start().await;
    let origin = says(&mut rig, "own").await;
    let to = |url: &str, on_error: &str| {
        format!(
            "on_http_request: [{{actions: [{{type: forward-internal, config: {{url: '{url}', on_error: {on_error}}}}}]}}]"
        )
    };
    let mut foreign = named(Scheme::Http, "foreign.internal", 80, &origin, "");
    foreign.account = "ac_2".into();
    for (n, (url, on_error, status, code)) in [
        ("http://none.internal", "halt", 502, Some("ERR_NGROK_3615")),
        ("http://none.internal", "continue", 200, None),
        ("https://loop.internal", "halt", 502, Some("ERR_NGROK_3615")),
        (
            "http://foreign.internal",
            "halt",
            502,
            Some("ERR_NGROK_3615"),
        ),
        ("http://loop.internal", "halt", 502, Some("ERR_NGROK_3501")),
        (
            "${req.headers[\"none\"][0]}",
            "halt",
            500,
            Some("ERR_NGROK_2300"),
        ),
        ("http://${req.host}", "continue", 200, None),
        ("http://below.wild.internal", "halt", 200, None),
    ]
    .into_iter()
    .enumerate()
    {
        publish(
            &rig,
            [
                named(Scheme::Http, "app.example", 80, &origin, &to(url, on_error)),
                named(
                    Scheme::Http,
                    "loop.internal",
                    80,
                    &origin,
                    &to("http://loop.internal", "halt"),
                ),
                named(Scheme::Http, "*.wild.internal", 80, &origin, ""),
                foreign.clone(),
            ],
        )
        .await;
        let answer = rig.ask(ASK).await;
        assert_eq!(
            (answer.status, answer.header("ngrok-error-code")),
            (status, code),
            "{url}"
        );
        rig.recorder.events(2 * n + 2).await;
    }
    // An internal endpoint is not reachable from outside.
    let outside = ASK.replace("app.example", "below.wild.internal");
    assert_eq!(rig.ask(&outside).await.status, 404);
    // What went wrong is there to be read.
    let reported = "
on_http_request:
- actions: [{type: forward-internal, config: {url: http://none.internal, on_error: continue}}]
- actions: [{type: custom-response, config: {body: '${actions.ngrok.forward_internal.url} ${actions.ngrok.forward_internal.error.code}'}}]";
    publish(&rig, [named(Scheme::Http, "app.example", 80, "", reported)]).await;
    assert_eq!(
        rig.ask(ASK).await.text(),
        "http://none.internal ERR_NGROK_3615"
    );
}

#[tokio::test]
async fn a_body_is_forwarded_to_the_internal_endpoint() {
    let mut rig = Rig::start().await;
    let origin = says(&mut rig, "inner").await;
    let forward = "on_http_request: [{actions: [{type: forward-internal, config: {url: http://a.internal}}]}]";
    let replace = "on_http_request: [{actions: [{type: request-body-find-replace, config: {replacements: [{from: l+, to: L}]}}]}]";
    publish(
        &rig,
        [
            named(Scheme::Http, "app.example", 80, "", forward),
            named(Scheme::Http, "a.internal", 80, &origin, replace),
        ],
    )
    .await;
    let post = "POST / HTTP/1.1\r\nHost: app.example\r\ncontent-length: 5\r\n\r\nhello";
    assert!(rig.ask(post).await.text().ends_with("\r\n\r\nheLo"));
    assert_eq!(
        last_event(&rig, 1).await["http"]["request"]["body_length"],
        5
    );
}

/// A port without a listener, reserved by a bound socket.
fn closed() -> (socket2::Socket, u16) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, port)
}

#[tokio::test]
async fn an_internal_pool_shares_load_and_skips_failed_members() {
    let mut rig = Rig::start().await;
    let (first, second) = (
        says(&mut rig, "first").await,
        says(&mut rig, "second").await,
    );
    let (_kept, port) = closed();
    let down = format!("http://127.0.0.1:{port}");
    let forward = "on_http_request: [{actions: [{type: forward-internal, config: {url: http://pool.internal}}]}]";
    let pooled = |upstream: &str| named(Scheme::Http, "pool.internal", 80, upstream, "");
    publish(
        &rig,
        [
            named(Scheme::Http, "app.example", 80, "", forward),
            pooled(&first),
            pooled(&down),
            pooled(&second),
        ],
    )
    .await;
    let mut by = std::collections::HashMap::<String, usize>::new();
    for _ in 0..12 {
        let answer = rig.ask(ASK).await;
        // Clients do not notice that one of them is down.
        assert_eq!(answer.status, 200);
        let name = answer.text().split('\n').next().unwrap().to_owned();
        *by.entry(name).or_default() += 1;
    }
    assert!(by["first"] >= 3 && by["second"] >= 3, "{by:?}");
    assert!(rig.edge.meters().upstream_connects_failed.get() >= 1);
    // Without an alternative, the error names the cause.
    let only = [
        pooled(&down),
        named(Scheme::Http, "app.example", 80, "", forward),
    ];
    publish(&rig, only).await;
    assert_eq!(rig.ask(ASK).await.status, 502);
}

#[tokio::test]
async fn connections_are_forwarded_to_internal_endpoints() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut rig = Rig::with(Settings {
        inherited: Inherited::new(vec![listener]),
        ..settings()
    })
    .await;
    let echo = origin(&mut rig.tasks, |mut client| async move {
        while client.more().await {
            let bytes = std::mem::take(&mut client.read);
            client.send(bytes).await;
        }
    })
    .await;
    let to = |url: &str| {
        format!(
            "on_tcp_connect: [{{actions: [{{type: log, config: {{metadata: {{to: {url}}}}}}}, {{type: forward-internal, config: {{url: '{url}'}}}}]}}]"
        )
    };
    let inner = "on_tcp_connect: [{actions: [{type: log, config: {metadata: {at: '${endpoint.host}'}}}, {type: restrict-ips, config: {allow: [127.0.0.1]}}]}]";
    publish(
        &rig,
        [
            named(
                Scheme::Tcp,
                "tcp.example",
                port,
                "",
                &to("tcp://db.internal:5432"),
            ),
            named(
                Scheme::Tcp,
                "db.internal",
                5432,
                &format!("tcp://{echo}"),
                inner,
            ),
        ],
    )
    .await;
    let mut client = Client::new(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    client.send("ping").await;
    assert_eq!(client.take(4).await.unwrap(), b"ping");
    drop(client);
    let event = rig.recorder.events(1).await.remove(0);
    let object = &event["object"];
    assert_eq!(object["conn"]["server_name"], "tcp.example");
    assert_eq!(object["ip_policy"]["decision"], "allow");
    assert_eq!(
        object["traffic_policy"]["logs"],
        json!([{"metadata": {"to": "tcp://db.internal:5432"}}, {"metadata": {"at": "db.internal"}}])
    );
    // A circle is closed at its fourth turn.
    publish(
        &rig,
        [
            named(
                Scheme::Tcp,
                "tcp.example",
                port,
                "",
                &to("tcp://db.internal:5432"),
            ),
            named(
                Scheme::Tcp,
                "db.internal",
                5432,
                "",
                &to("tcp://db.internal:5432"),
            ),
        ],
    )
    .await;
    let mut client = Client::new(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    assert_eq!(client.rest().await, b"");
    let events = rig.recorder.events(2).await;
    let logs = &events[1]["object"]["traffic_policy"]["logs"];
    assert_eq!(logs.as_array().map(Vec::len), Some(4), "{logs}");
}

#[test]
fn invalid_forward_internal_configurations_are_refused() {
    for (scheme, phase, url, code) in [
        (Scheme::Http, "on_http_request", "tcp://a.internal:1", 2204),
        (Scheme::Tcp, "on_tcp_connect", "http://a.internal", 2204),
        (Scheme::Http, "on_http_request", "http://a.example", 2204),
        (Scheme::Https, "on_tcp_connect", "tls://a.internal", 2202),
        (Scheme::Http, "on_http_response", "http://a.internal", 2202),
        (Scheme::Http, "on_http_request", "${nope}", 2224),
    ] {
        let text = format!(
            "{phase}: [{{actions: [{{type: forward-internal, config: {{url: '{url}'}}}}]}}]"
        );
        let source = culvert_policy::Source::read(&text, ACTIONS).unwrap();
        let refused = source
            .compile(scheme, true, &culvert_policy::Resources::default())
            .unwrap_err();
        assert_eq!(refused.code.unwrap().number(), code, "{url}");
    }
    // Behind one that may go on, more may follow; behind one that may not, nothing.
    for (on_error, code) in [("continue", Value::Null), ("halt", json!(2207))] {
        let text = format!(
            "on_http_request: [{{actions: [{{type: forward-internal, config: {{url: http://a.internal, on_error: {on_error}}}}}, {{type: deny}}]}}]"
        );
        let made = culvert_policy::Source::read(&text, ACTIONS)
            .unwrap()
            .compile(Scheme::Http, false, &culvert_policy::Resources::default());
        let found = made.err().map(|refused| refused.code.unwrap().number());
        assert_eq!(json!(found), code);
    }
}
