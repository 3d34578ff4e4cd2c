//! One model of a request: what policies see, what the event says and what the upstream gets are equal, on HTTP/1 and
//! HTTP/2, for handshakes of WebSocket, through a chain of endpoints, and in replays, however odd the request is.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use culvert_base::{Entropy, SeededEntropy};
use culvert_http::authority::Authority;
use culvert_policy::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Frame;
use hyper::client::conn::http2::SendRequest;
use hyper::ext::Protocol;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use serde_json::Value;
use tokio::sync::mpsc;

use super::harness::*;
use super::internal::named;
use super::streams::{Frames, connect, frames, nothing};
use crate::{ReplayRequest, Snapshot, SnapshotBuilder};

/// Writes down what a policy sees.
const LOG: &str = r#"{type: log, config: {metadata: {method: "${req.method}", host: "${req.host}", uri: "${req.url.uri}", cookies: "${json.encode(req.cookies)}", headers: "${json.encode(req.headers)}"}}}"#;

/// Header fields, with names in lower case.
type Fields = BTreeMap<String, Vec<String>>;

/// A request that reached the upstream.
#[derive(Debug)]
struct Sent {
    method: String,
    target: String,
    fields: Fields,
    trailers: String,
}

impl Sent {
    fn of(head: &str, trailers: String) -> Self {
        let mut lines = head.trim_end().split("\r\n");
        let mut line = lines.next().unwrap().split(' ');
        let mut word = || line.next().unwrap().to_owned();
        let (method, target) = (word(), word());
        let mut fields = Fields::new();
        for line in lines {
            let (name, value) = line
                .split_once(": ")
                .unwrap_or((line.trim_end_matches(':'), ""));
            fields
                .entry(name.to_owned())
                .or_default()
                .push(value.to_owned());
        }
        Self {
            method,
            target,
            fields,
            trailers,
        }
    }

    fn host(&self) -> String {
        let [host] = &self.fields["host"][..] else {
            panic!("{self:?}");
        };
        Authority::parse(host).unwrap().host.into_owned()
    }

    fn cookies(&self) -> Vec<(String, String)> {
        let lines = self.fields.get("cookie").into_iter().flatten();
        let pairs = lines.flat_map(|line| line.split("; "));
        let mut pairs: Vec<(String, String)> = pairs
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        pairs.sort();
        pairs
    }
}

/// An edge with two endpoints for HTTP and HTTPS: `app.example`, and `hop.example`, which forwards to an internal one. All
/// have a policy that logs.
struct Stage {
    rig: Rig,
    root: CertificateDer<'static>,
    upstream: mpsc::Receiver<Sent>,
    http2: Option<SendRequest<Frames>>,
    count: usize,
}

impl Stage {
    async fn start() -> Self {
        let mut rig = Rig::start().await;
        let (send, upstream) = mpsc::channel(64);
        let origin = origin(&mut rig.tasks, move |mut client| {
            let send = send.clone();
            async move {
                while let Some(head) = client.head().await {
                    let Some((_, trailers)) = client.body(&head).await else {
                        return;
                    };
                    let is_settings = head.starts_with("GET /settings ");
                    if !is_settings {
                        send.send(Sent::of(&head, trailers)).await.unwrap();
                    }
                    let status = if head.contains("\r\nupgrade: ") {
                        403
                    } else {
                        200
                    };
                    let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
                    client.send(answer).await;
                }
            }
        })
        .await;
        let (names, key, root) = certificate(&["app.example", "hop.example"]);
        let upstream_url = format!("http://{origin}");
        let logs = format!("on_http_request: [{{actions: [{LOG}]}}]");
        let hops = format!(
            "on_http_request: [{{actions: [{LOG}, {{type: forward-internal, config: {{url: 'http://inner.internal'}}}}]}}]"
        );
        let mut snapshot = Snapshot::builder().certificate(names, key);
        for (scheme, port) in [(Scheme::Http, 80), (Scheme::Https, 443)] {
            snapshot = snapshot
                .endpoint(named(scheme, "app.example", port, &upstream_url, &logs))
                .endpoint(named(scheme, "hop.example", port, "", &hops));
        }
        let inner = named(Scheme::Http, "inner.internal", 80, &upstream_url, &logs);
        rig.edge.publish(snapshot.endpoint(inner).build()).await;
        Self {
            rig,
            root,
            upstream,
            http2: None,
            count: 0,
        }
    }

    async fn http2(&mut self) -> SendRequest<Frames> {
        if self.http2.is_none() {
            self.http2 = Some(connect(&mut self.rig, &self.root).await);
            self.count += 1;
        }
        self.http2.clone().unwrap()
    }

    /// The event of the next exchange.
    async fn event(&mut self) -> Value {
        self.count += 1;
        let mut wanted = self.count;
        loop {
            let events = self.rig.recorder.events(wanted).await;
            if let Some(event) = of(&events, HTTP).get(self.count - 1) {
                return event["object"].clone();
            }
            wanted = events.len() + 1;
        }
    }

    /// Compares what the policies saw, what the event says and what the upstream got.
    async fn compare(&mut self, case: &str, n_policies: usize) {
        let event = self.event().await;
        let sent = self
            .upstream
            .try_recv()
            .unwrap_or_else(|_| panic!("nothing sent: {case}"));
        assert!(self.upstream.try_recv().is_err(), "{case}");
        assert_eq!(sent.trailers, "", "{case}");
        let logs = event["traffic_policy"]["logs"].as_array().unwrap();
        assert_eq!(logs.len(), n_policies, "{case} {event}");
        let framing = ["content-length", "transfer-encoding"];
        for log in logs {
            let seen = match &log["metadata"] {
                Value::Null => log,
                metadata => metadata,
            };
            assert_eq!(seen["method"], sent.method, "{case}");
            assert_eq!(seen["uri"], sent.target, "{case}");
            assert_eq!(seen["host"], sent.host(), "{case}");
            let mut fields: Fields =
                serde_json::from_str(seen["headers"].as_str().unwrap()).unwrap();
            let mut others = sent.fields.clone();
            for name in framing {
                fields.remove(name);
                others.remove(name);
            }
            assert_eq!(fields, others, "{case}");
            let cookies: BTreeMap<String, Vec<BTreeMap<String, String>>> =
                serde_json::from_str(seen["cookies"].as_str().unwrap()).unwrap();
            let mut cookies: Vec<(String, String)> = cookies
                .into_values()
                .flatten()
                .map(|cookie| (cookie["name"].clone(), cookie["value"].clone()))
                .collect();
            cookies.sort();
            assert_eq!(cookies, sent.cookies(), "{case}");
        }
        let request = &event["http"]["request"];
        assert_eq!(
            request["method"],
            sent.method.to_ascii_lowercase(),
            "{case}"
        );
        assert_eq!(request["url"]["host"], sent.host(), "{case}");
        let path = sent.target.split('?').next().unwrap();
        assert_eq!(request["url"]["path"], path, "{case}");
        // The event has all fields as received.
        let recorded = request["headers"].as_object().unwrap();
        let recorded: BTreeMap<String, &Value> = recorded
            .iter()
            .map(|(name, values)| (name.to_ascii_lowercase(), values))
            .collect();
        for (name, values) in &sent.fields {
            if name.starts_with("x-forwarded-") || framing.contains(&name.as_str()) {
                continue;
            }
            let Some(said) = recorded.get(name) else {
                // Those of replays are the edge's.
                assert_eq!(name, "culvert-replay-of", "{case}");
                continue;
            };
            let said: Vec<&str> = said
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it.as_str().unwrap())
                .collect();
            let is_hidden = said.contains(&"[redacted]");
            match name.as_str() {
                "host" => {
                    let [host] = said[..] else { panic!("{case}") };
                    assert_eq!(Authority::parse(host).unwrap().host, sent.host(), "{case}");
                }
                _ if is_hidden => {}
                // Its options of the hop are the edge's.
                "connection" | "te" => {}
                _ => {
                    let values: Vec<String> = values.iter().map(|it| it.to_lowercase()).collect();
                    assert_eq!(said, values, "{name} of {case}");
                }
            }
        }
    }
}

/// A random sequence.
struct Choices(SeededEntropy);

impl Choices {
    fn below(&self, count: usize) -> usize {
        let entropy: &dyn Entropy = &self.0;
        let [first, second] = entropy.bytes();
        usize::from(u16::from_be_bytes([first, second])) % count
    }

    fn of<T: Copy>(&self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A spelling of the host, and its policies.
    fn host(&self) -> (String, usize) {
        let (name, n_policies) = self.of(&[("app.example", 1), ("hop.example", 2)]);
        let name = match self.below(3) {
            0 => name.to_ascii_uppercase(),
            1 => name.replace("example", "Example"),
            _ => name.to_owned(),
        };
        let rest = self.of(&["", "", "", ".", ":80", ":080", ".:8443", ":00443", ".:0"]);
        (name + rest, n_policies)
    }

    /// Fields that both protocols may have.
    fn fields(&self) -> Vec<(&'static str, &'static str)> {
        const FIELDS: [(&str, &str); 30] = [
            ("accept", "text/html"),
            ("authorization", "Basic dTpw"),
            ("authorization", "NTLM TlRM"),
            ("authorization", "Negotiate YII="),
            ("content-type", "application/grpc"),
            ("content-type", "text/plain"),
            ("cookie", "a=1"),
            ("cookie", "b=2; c=3"),
            ("cookie", "a=4"),
            ("culvert-replay-of", "ev_1"),
            ("culvert.replay.of", "ev_2"),
            ("culvert_replay_of", "ev_3"),
            ("culvert.assertion", "e30."),
            ("forwarded", "for=192.0.2.1"),
            ("sec-websocket-protocol", "chat"),
            ("te", "trailers"),
            ("trailer", "x-t"),
            ("user-agent", "Test/1"),
            ("via", "1.1 x"),
            ("x-a", "1"),
            ("x-a", "Two"),
            ("x.a", "3"),
            ("x_a", "4"),
            ("x!b", "5"),
            ("x-empty", ""),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-proto", "gopher"),
            ("x.forwarded.for", "192.0.2.2"),
            ("x-real-ip", "192.0.2.3"),
        ];
        (0..self.below(7)).map(|_| self.of(&FIELDS)).collect()
    }

    fn target(&self) -> &'static str {
        self.of(&["/", "/a", "/a?b=c", "/a/b%2Fc?d", "/chat"])
    }

    fn method(&self) -> &'static str {
        self.of(&[
            "GET", "POST", "PUT", "OPTIONS", "DELETE", "PATCH", "get", "SEARCH",
        ])
    }
}

/// Fields that a policy sets and the edge owns, or that change the meaning of a request.
const TRAILERS: [(&str, &str); 11] = [
    ("authorization", "Basic dTpw"),
    ("cookie", "a=b"),
    ("culvert-assertion", "e30."),
    ("culvert-replay-of", "ev_1"),
    ("culvert.replay.of", "ev_1"),
    ("grpc-status", "0"),
    ("host", "evil.example"),
    ("x-forwarded-for", "192.0.2.1"),
    ("x-t", "1"),
    ("x-user", "anna"),
    ("x_user", "anna"),
];

#[tokio::test]
async fn policies_events_and_upstreams_see_the_same_request() {
    let mut stage = Stage::start().await;
    let choices = Choices(SeededEntropy::new(7));
    for turn in 0..600 {
        let ((host, n_policies), target) = (choices.host(), choices.target());
        let mut fields = choices.fields();
        let method = choices.method();
        let has_body = ["POST", "PUT", "PATCH"].contains(&method);
        let case = format!("{turn}: {method} {host} {target} {fields:?}");
        match turn % 4 {
            // HTTP/1, at times with an absolute target and fields of the hop.
            0 => {
                let is_absolute = choices.below(3) == 0;
                let target = match is_absolute {
                    true => format!("http://{host}{target}"),
                    false => target.to_owned(),
                };
                let option = choices.of(&["", "x-a", "keep-alive, Authorization", "cookie"]);
                if !option.is_empty() {
                    fields.push(("connection", option));
                }
                if choices.below(4) == 0 {
                    fields.push(("upgrade", "h2c"));
                }
                let mut request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n");
                for (name, value) in &fields {
                    request += &format!("{name}: {value}\r\n");
                }
                if has_body {
                    request += "transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n";
                    for (name, value) in TRAILERS {
                        request += &format!("{name}: {value}\r\n");
                    }
                }
                request += "\r\n";
                let mut client = stage.rig.connect().await;
                client.send(request).await;
                let answer = client.answer(method).await;
                assert_eq!(answer.status, 200, "{case} {option}");
                stage.compare(&format!("{case} {option}"), n_policies).await;
            }
            1 => {
                let (host, n_policies) = app(&host, n_policies);
                let mut request = Request::builder()
                    .method(Method::from_bytes(method.as_bytes()).unwrap())
                    .uri(format!("https://{host}{target}"));
                for (name, value) in &fields {
                    request = request.header(*name, *value);
                }
                let (send, body) = frames();
                let request = request.body(body).unwrap();
                let mut sender = stage.http2().await;
                let asked = sender.send_request(request);
                if has_body {
                    send.send(Frame::data("hi".into())).await.unwrap();
                    let trailers = TRAILERS.map(|(name, value)| {
                        let name = HeaderName::from_static(name);
                        (name, HeaderValue::from_static(value))
                    });
                    let trailers = HeaderMap::from_iter(trailers);
                    send.send(Frame::trailers(trailers)).await.unwrap();
                }
                drop(send);
                let answer = soon("an answer", asked).await.unwrap();
                assert_eq!(answer.status(), 200, "{case}");
                drop(answer.into_body().collect().await.unwrap());
                stage.compare(&case, n_policies).await;
            }
            // Handshakes of WebSocket, which the upstream refuses.
            2 => {
                let mut request = format!(
                    "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                );
                for (name, value) in &fields {
                    request += &format!("{name}: {value}\r\n");
                }
                let mut client = stage.rig.connect().await;
                client.send(request + "\r\n").await;
                assert_eq!(client.answer("GET").await.status, 403, "{case}");
                stage.compare(&case, n_policies).await;
            }
            _ => {
                let (host, n_policies) = app(&host, n_policies);
                let mut request = Request::builder()
                    .method(Method::CONNECT)
                    .uri(format!("https://{host}{target}"))
                    .extension(Protocol::from_static("websocket"))
                    .header("sec-websocket-version", "13");
                for (name, value) in &fields {
                    request = request.header(*name, *value);
                }
                let request = request.body(nothing()).unwrap();
                let mut sender = stage.http2().await;
                let answer = soon("an answer", sender.send_request(request)).await;
                assert_eq!(answer.unwrap().status(), 403, "{case}");
                stage.compare(&case, n_policies).await;
            }
        }
    }
}

/// The connections of HTTP/2 are for one name.
fn app(host: &str, n_policies: usize) -> (String, usize) {
    match n_policies {
        1 => (host.to_owned(), 1),
        _ => (host.replace("hop", "app").replace("HOP", "APP"), 1),
    }
}

#[tokio::test]
async fn a_replay_is_judged_and_sent_like_a_request() {
    let mut stage = Stage::start().await;
    for (authority, n_policies) in [
        ("App.Example.:080", 1),
        ("hop.example", 2),
        ("APP.EXAMPLE", 1),
    ] {
        for method in ["GET", "POST"] {
            let fields = [
                ("cookie", "a=1"),
                ("x-a", "1"),
                ("x-a", "2"),
                ("x.a", "3"),
                ("connection", "x-b"),
                ("x-b", "1"),
                ("upgrade", "websocket"),
                ("trailer", "x-t"),
                ("x-forwarded-for", "192.0.2.1"),
                ("culvert.replay.of", "ev_0"),
            ];
            let request = ReplayRequest {
                event: "ev_1".to_owned(),
                endpoint: "ep_1".to_owned(),
                skips_policy: false,
                is_https: false,
                authority: authority.to_owned(),
                method: method.to_owned(),
                target: "/a/../b?c".to_owned(),
                headers: fields
                    .map(|(name, value)| (name.into(), value.into()))
                    .into(),
                body: if method == "POST" {
                    b"hi".to_vec()
                } else {
                    Vec::new()
                },
            };
            let replayed = stage.rig.edge.replay(request).await.unwrap();
            assert_eq!(replayed.status, Some(200));
            stage
                .compare(&format!("{method} {authority}"), n_policies)
                .await;
        }
    }
}

/// An endpoint for all names below `w.example`, with a policy.
fn wildcard(snapshot: SnapshotBuilder, upstream: &str, policy: &str) -> SnapshotBuilder {
    let http = named(Scheme::Http, "*.w.example", 80, upstream, policy);
    let https = named(Scheme::Https, "*.w.example", 443, upstream, policy);
    snapshot.endpoint(http).endpoint(https)
}

#[tokio::test]
async fn no_spelling_of_a_host_bypasses_a_rule() {
    const SPELLINGS: [&str; 9] = [
        "admin.w.example",
        "ADMIN.w.example",
        "admin.w.example.",
        "admin.w.example:80",
        "admin.w.example:443",
        "admin.w.example:0080",
        "Admin.W.Example.:8443",
        "admin.w.example:0",
        "admin.W.example.:",
    ];
    const RULES: [&str; 6] = [
        "req.host == 'admin.w.example'",
        "req.url.host == 'admin.w.example'",
        "req.headers['host'][0].split(':')[0] == 'admin.w.example'",
        "getReqHeader('Host')[0].startsWith('admin.w.example')",
        "req.url.startsWith(req.url.scheme + '://admin.w.example')",
        "req.host in ['admin.w.example', 'root.w.example']",
    ];
    for rule in RULES {
        let policy = format!(
            "on_http_request: [{{expressions: [\"{rule}\"], actions: [{{type: deny, config: {{status_code: 451}}}}]}}]"
        );
        let mut rig = Rig::start().await;
        let origin = hello(&mut rig.tasks).await;
        let (names, key, root) = certificate(&["*.w.example"]);
        let snapshot = Snapshot::builder().certificate(names, key);
        let snapshot = wildcard(snapshot, &format!("http://{origin}"), &policy);
        rig.edge.publish(snapshot.build()).await;
        let mut sender = super::secure::http2(&mut rig, &root, "admin.w.example").await;
        for spelling in SPELLINGS {
            for target in ["/a".to_owned(), format!("http://{spelling}/a")] {
                let request = format!("GET {target} HTTP/1.1\r\nHost: {spelling}\r\n\r\n");
                let status = rig.ask(&request).await.status;
                assert_eq!(status, 451, "{rule} {request}");
            }
            if let Ok(uri) = format!("https://{spelling}/a").parse::<http::Uri>() {
                let request = Request::get(uri).body(Full::<Bytes>::default()).unwrap();
                let answer = soon("an answer", sender.send_request(request)).await;
                assert_eq!(answer.unwrap().status(), 451, "{rule} {spelling}");
            }
        }
        let other = "GET / HTTP/1.1\r\nHost: other.w.example\r\n\r\n";
        assert_eq!(rig.ask(other).await.status, 200, "{rule}");
        // An invalid host gets no answer of an upstream.
        for odd in [
            "admin.w.example..",
            ".admin.w.example",
            "me@admin.w.example",
            "admin%2ew.example",
            "admin.w.example:99999",
            "admin.w.example:80:80",
            "[admin.w.example]",
            "adm\u{131}n.w.example",
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: {odd}\r\n\r\n");
            assert_eq!(rig.ask(&request).await.status, 400, "{odd}");
        }
    }
}

#[tokio::test]
async fn the_host_is_sent_in_normal_form_and_shown_as_received() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let length = head.len();
            client
                .send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{head}"
                ))
                .await;
        }
    })
    .await;
    let policy = r#"on_http_request: [{actions: [{type: add-headers, config: {headers: {x-authority: "${req.url.authority}", x-raw: "${req.url.raw}", x-url: "${req.url}"}}}]}]"#;
    let upstream = format!("http://{origin}");
    for policy in ["", policy] {
        let snapshot = wildcard(Snapshot::builder(), &upstream, policy);
        rig.edge.publish(snapshot.build()).await;
        for (received, sent) in [
            ("a.w.example", "a.w.example"),
            ("a.w.example:8080", "a.w.example:8080"),
            ("A.w.Example.:08080", "a.w.example:8080"),
            ("a.w.example.", "a.w.example"),
            ("a.w.example:", "a.w.example"),
        ] {
            let request = format!("GET /a HTTP/1.1\r\nHost: {received}\r\n\r\n");
            let head = rig.ask(&request).await.text().to_owned();
            for line in [format!("host: {sent}"), format!("x-forwarded-host: {sent}")] {
                assert!(
                    head.contains(&format!("\r\n{line}\r\n")),
                    "{line} in {head}"
                );
            }
            if !policy.is_empty() {
                for line in [
                    format!("x-authority: {received}"),
                    format!("x-raw: http://{received}/a"),
                    format!("x-url: http://{sent}/a"),
                ] {
                    assert!(
                        head.contains(&format!("\r\n{line}\r\n")),
                        "{line} in {head}"
                    );
                }
            }
        }
    }
}

/// An origin that speaks HTTP/2, and sends the names of the trailers that it got.
async fn trailing(rig: &mut Rig) -> SocketAddr {
    origin(&mut rig.tasks, |client| async move {
        let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async {
            let body = request.into_body().collect().await.unwrap();
            let names = body.trailers().into_iter().flat_map(HeaderMap::keys);
            let mut names: Vec<&str> = names.map(HeaderName::as_str).collect();
            names.sort_unstable();
            let names = Bytes::from(names.join(" "));
            Ok::<_, Infallible>(Response::new(Full::new(names)))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let served = server.serve_connection(TokioIo::new(client.stream), service);
        drop(served.await);
    })
    .await
}

#[tokio::test]
async fn trailers_of_responses_bring_back_nothing_that_a_policy_removed() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while client.request().await.is_some() {
            client
                .send(
                    "HTTP/1.1 200 OK\r\nx-secret: s\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\
                     x-secret: s\r\nx_secret: s\r\nx-level: 9\r\nx-sum: 7\r\nculvert-request-id: 1\r\n\
                     ngrok-error-code: E\r\nset-cookie: a=b\r\n\r\n",
                )
                .await;
        }
    })
    .await;
    let policy = r#"on_http_response: [{actions: [{type: remove-headers, config: {headers: [x-secret]}}, {type: add-headers, config: {headers: {x-level: "1"}}}]}]"#;
    super::policies::publish(&rig, &format!("http://{origin}"), policy).await;
    let answer = rig
        .ask("GET / HTTP/1.1\r\nHost: app.example\r\nTE: trailers\r\n\r\n")
        .await;
    assert_eq!(answer.header("x-secret"), None);
    assert_eq!(answer.trailers, "x-sum: 7\n");
}

#[tokio::test]
async fn errors_of_the_edge_end_a_call_of_grpc() {
    let mut rig = Rig::start().await;
    let upstream = format!("http://127.0.0.1:{}", super::limits::free_port().await);
    let (names, key, root) = certificate(&["app.example"]);
    let policy = "on_http_request: [{expressions: [\"req.url.path == '/deny'\"], actions: [{type: deny, config: {status_code: 403}}]}, {expressions: [\"req.url.path == '/own'\"], actions: [{type: custom-response, config: {status_code: 503, body: 'closed 100%', headers: {content-type: text/plain}}}]}]\non_http_response: [{actions: [{type: response-body-find-replace, config: {replacements: [{from: nothing, to: x}]}}, {type: compress-response}]}, {expressions: [\"req.url.path == '/said'\"], actions: [{type: add-headers, config: {headers: {grpc-message: said}}}]}]";
    let endpoint = named(Scheme::Https, "app.example", 443, &upstream, policy);
    let snapshot = Snapshot::builder().endpoint(endpoint);
    rig.edge
        .publish(snapshot.certificate(names, key).build())
        .await;
    let mut sender = connect(&mut rig, &root).await;
    for (path, media, status, expected) in [
        (
            "/",
            "application/grpc",
            502,
            Some(("14", "ERR_NGROK_8012: ")),
        ),
        (
            "/",
            "application/grpc+proto",
            502,
            Some(("14", "ERR_NGROK_8012: ")),
        ),
        (
            "/",
            "application/grpc-web+proto",
            502,
            Some(("14", "ERR_NGROK_8012: ")),
        ),
        ("/deny", "application/grpc", 403, Some(("7", "Forbidden"))),
        (
            "/own",
            "application/grpc",
            503,
            Some(("14", "closed 100%25")),
        ),
        // A message of a policy stays.
        ("/said", "application/grpc", 502, Some(("14", "said"))),
        ("/deny", "application/json", 403, None),
        ("/own", "application/grpcx", 503, None),
    ] {
        let request = Request::post(format!("https://app.example{path}"))
            .header("content-type", media)
            .header("accept-encoding", "gzip");
        let asked = sender.send_request(request.body(nothing()).unwrap());
        let answer = soon("an answer", asked).await.unwrap();
        assert_eq!(answer.status(), status, "{path} {media}");
        let text = |name: &str| Some(answer.headers().get(name)?.to_str().unwrap().to_owned());
        let (grpc, message) = (text("grpc-status"), text("grpc-message"));
        assert_eq!(
            grpc.as_deref(),
            expected.map(|(status, _)| status),
            "{path} {media}"
        );
        if let Some((_, start)) = expected {
            assert!(message.unwrap().starts_with(start));
            assert_eq!(text("content-type").as_deref(), Some(media));
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(body.is_empty());
        }
    }
    // No call: a cache may give the response to others, who did not ask for this form.
    let request =
        Request::get("https://app.example/own").header("content-type", "application/grpc");
    let asked = sender.send_request(request.body(nothing()).unwrap());
    let answer = soon("an answer", asked).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/plain");
    assert!(!answer.headers().contains_key("grpc-status"));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "closed 100%");
}

/// gRPC-Web also runs on HTTP/1, where a response without a body needs a length.
#[tokio::test]
async fn errors_of_the_edge_end_a_call_of_grpc_web_on_http1() {
    let rig = Rig::start().await;
    let upstream = format!("http://127.0.0.1:{}", super::limits::free_port().await);
    let endpoint = named(Scheme::Http, "app.example", 80, &upstream, "");
    rig.edge
        .publish(Snapshot::builder().endpoint(endpoint).build())
        .await;
    let mut client = rig.connect().await;
    for host in ["app.example", "no.example", "app.example"] {
        for media in ["application/grpc-web+proto", "application/grpc"] {
            client
                .send(format!(
                    "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: {media}\r\nContent-Length: 1\r\n\r\nx"
                ))
                .await;
            let answer = client.answer("POST").await;
            assert!(matches!(answer.status, 404 | 502));
            // gRPC itself needs HTTP/2.
            let is_call = media.contains("web");
            assert_eq!(answer.header("grpc-status").is_some(), is_call, "{media}");
            assert_eq!(answer.body.is_empty(), is_call, "{media}");
            assert!(answer.header("content-length").is_some());
        }
    }
}

#[tokio::test]
async fn only_calls_of_grpc_have_request_trailers_and_only_those_of_grpc() {
    let set = "on_http_request: [{actions: [{type: add-headers, config: {headers: {grpc-timeout: 1S}}}]}]";
    let other =
        "on_http_request: [{actions: [{type: add-headers, config: {headers: {x-t: '1'}}}]}]";
    let buffers = "on_http_request: [{actions: [{type: request-body-find-replace, config: {replacements: [{from: a, to: b}]}}]}]";
    for (policy, media, te, expected) in [
        ("", "application/grpc", "trailers", "grpc-status"),
        (other, "application/grpc+proto", "trailers", "grpc-status"),
        (set, "application/grpc", "trailers", ""),
        (buffers, "application/grpc", "trailers", ""),
        ("", "application/grpc", "", ""),
        ("", "text/plain", "trailers", ""),
    ] {
        let mut rig = Rig::start().await;
        let upstream = format!("http://{}", trailing(&mut rig).await);
        let (names, key, root) = certificate(&["app.example"]);
        let mut endpoint = named(Scheme::Https, "app.example", 443, &upstream, policy);
        endpoint.upstream = Some(crate::Upstream::parse(&upstream, "http2").unwrap());
        let snapshot = Snapshot::builder().endpoint(endpoint);
        rig.edge
            .publish(snapshot.certificate(names, key).build())
            .await;
        let mut sender = connect(&mut rig, &root).await;
        let (send, body) = frames();
        let mut request = Request::post("https://app.example/").header("content-type", media);
        if !te.is_empty() {
            request = request.header("te", te);
        }
        let asked = sender.send_request(request.body(body).unwrap());
        send.send(Frame::data("hi".into())).await.unwrap();
        let trailers = TRAILERS.map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        let trailers = HeaderMap::from_iter(trailers);
        send.send(Frame::trailers(trailers)).await.unwrap();
        drop(send);
        let answer = soon("an answer", asked).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, expected, "{policy} {media} {te}");
    }
}
