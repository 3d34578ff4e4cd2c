//! Traces of requests: the fields that the upstream gets, and the spans.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use culvert_base::OsEntropy;
use culvert_policy::{Scheme, single_condition};
use culvert_traces::{AttributeValue, FinishedTrace, Sample, Span, Tracer, TracerSettings, hex};
use http::Request;
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::balanced::{list, several};
use super::harness::*;
use super::internal::named;
use super::policies::governed;
use super::streams::{connect, nothing, rig};
use crate::{Settings, Snapshot, Tracing};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn traced(sample: Sample, change: impl FnOnce(&mut TracerSettings)) -> (Settings, Arc<Tracer>) {
    let mut tracer = TracerSettings {
        sample,
        is_parent_based: true,
        parents_per_second: 100,
        queue_spans: 10_000,
        queue_bytes: 16 << 20,
    };
    change(&mut tracer);
    let tracer = Tracer::new(tracer, Arc::new(OsEntropy));
    let settings = Settings {
        tracing: Some(Tracing {
            tracer: Arc::clone(&tracer),
            condition: None,
        }),
        ..settings()
    };
    (settings, tracer)
}

pub(super) fn all() -> (Settings, Arc<Tracer>) {
    traced(Sample::Share(1.0), |_| {})
}

/// An origin that responds with the head of each request.
async fn echo(tasks: &mut JoinSet<()>) -> SocketAddr {
    origin(tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let length = head.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{head}");
            client.send(answer).await;
        }
    })
    .await
}

/// An endpoint whose requests take the plain path, and one whose requests do not.
async fn start(settings: Settings) -> Rig {
    let mut rig = Rig::with(settings).await;
    let upstream = format!("http://{}", echo(&mut rig.tasks).await);
    let policy = "on_http_request: [{actions: [{type: add-headers, config: {headers: {x-a: b}}}]}]";
    let snapshot = Snapshot::builder()
        .endpoint(named(Scheme::Http, "plain.example", 80, &upstream, ""))
        .endpoint(named(
            Scheme::Http,
            "general.example",
            80,
            &upstream,
            policy,
        ));
    rig.edge.publish(snapshot.build()).await;
    rig
}

const HOSTS: [&str; 2] = ["plain.example", "general.example"];

/// The head that the upstream got for a request with these fields.
async fn sent(rig: &Rig, host: &str, fields: &str) -> String {
    let request = format!("GET /a/b?secret=c HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    let answer = rig.ask(&request).await;
    assert_eq!(answer.status, 200);
    answer.text().to_ascii_lowercase()
}

/// The values of a field.
fn values<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    let lines = head.split("\r\n").filter_map(|line| line.split_once(": "));
    lines
        .filter_map(|(it, value)| (it == name).then_some(value))
        .collect()
}

/// Waits for traces.
pub(super) async fn taken(tracer: &Arc<Tracer>, count: usize) -> Vec<FinishedTrace> {
    let mut traces = Vec::new();
    soon("traces", async {
        while traces.len() < count {
            tracer.filled(1).await;
            traces.extend(tracer.take(usize::MAX));
        }
    })
    .await;
    assert_eq!(traces.len(), count);
    traces
}

pub(super) fn text(span: &Span, name: &str) -> String {
    let value = span.attributes.iter().find(|(it, _)| *it == name);
    match value.map(|(_, value)| value) {
        Some(AttributeValue::Text(text)) => text.clone(),
        Some(AttributeValue::Number(number)) => number.to_string(),
        Some(AttributeValue::Flag(flag)) => flag.to_string(),
        Some(AttributeValue::Texts(texts)) => texts.join(", "),
        None => String::new(),
    }
}

fn span<'t>(trace: &'t FinishedTrace, name: &str) -> &'t Span {
    let found = trace.spans.iter().find(|span| span.name == name);
    found.unwrap_or_else(|| panic!("{name}: {trace:#?}"))
}

/// An address where nothing listens.
fn gone() -> SocketAddr {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

pub(super) fn clients(trace: &FinishedTrace) -> Vec<&Span> {
    let spans = trace.spans.iter();
    spans
        .filter(|span| span.kind == culvert_traces::SpanKind::Client)
        .collect()
}

#[tokio::test]
async fn without_tracing_the_fields_pass_as_they_are() {
    let rig = start(settings()).await;
    for host in HOSTS {
        for value in [&*format!("00-{TRACE}-{CALLER}-01"), "nonsense"] {
            let fields = format!("traceparent: {value}\r\ntracestate: a=1\r\n");
            let head = sent(&rig, host, &fields).await;
            assert_eq!(values(&head, "traceparent"), [value]);
            assert_eq!(values(&head, "tracestate"), ["a=1"]);
        }
        assert!(values(&sent(&rig, host, "").await, "traceparent").is_empty());
    }
}

#[tokio::test]
async fn a_trace_is_continued_with_the_span_of_the_attempt() {
    let (settings, tracer) = all();
    let rig = start(settings).await;
    for host in HOSTS {
        let fields =
            format!("TraceParent: 00-{TRACE}-{CALLER}-01\r\nTraceState: a=1\r\nX-B: c\r\n");
        let head = sent(&rig, host, &fields).await;
        let trace = taken(&tracer, 1).await.remove(0);
        assert_eq!(hex(&trace.trace_id), TRACE);
        assert_eq!(values(&head, "tracestate"), ["a=1"]);
        assert_eq!(values(&head, "x-b"), ["c"]);
        let attempt = clients(&trace)[0];
        let parent = format!("00-{TRACE}-{}-01", hex(&attempt.span_id));
        assert_eq!(values(&head, "traceparent"), [parent]);
        let server = trace.spans.last().unwrap();
        assert_eq!(hex(&server.parent.unwrap()), CALLER);
        assert_eq!(attempt.parent, Some(server.span_id));
        assert_eq!(server.name, "GET");
        for (name, value) in [
            ("http.request.method", "GET"),
            ("url.path", "/a/b"),
            ("url.scheme", "http"),
            ("server.address", host),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
            ("culvert.endpoint.id", "ep_1"),
            ("error.type", ""),
        ] {
            assert_eq!(text(server, name), value, "{name}");
        }
        assert!(!server.has_failed);
        assert!(!format!("{trace:?}").contains("secret=c"));
        assert_eq!(text(attempt, "http.response.status_code"), "200");
        assert!(text(attempt, "culvert.upstream").starts_with("http://127.0.0.1:"));
        assert!(attempt.began >= server.began && attempt.ended <= server.ended);
        // The second request uses the connection of the first.
        let is_reused = text(attempt, "culvert.connection_reused");
        let connect = trace.spans.iter().find(|span| span.name == "connect");
        assert_eq!(connect.is_none(), is_reused == "true");
        assert!(connect.is_none_or(|span| span.parent == Some(attempt.span_id)));
        assert_eq!(is_reused == "true", host == HOSTS[1]);
    }
    // With those of their connections.
    for event in of(&rig.recorder.events(4).await, HTTP) {
        assert_eq!(event["culvert"]["trace_id"], TRACE);
    }
}

#[tokio::test]
async fn a_trace_is_begun_if_there_is_no_valid_one() {
    let (settings, tracer) = all();
    let rig = start(settings).await;
    let mut ids = BTreeSet::new();
    let valid = format!("00-{TRACE}-{CALLER}-01");
    let twice = format!("traceparent: {valid}\r\ntraceparent: {valid}\r\n");
    for (host, fields) in HOSTS.into_iter().flat_map(|host| {
        let upper = format!("traceparent: {}\r\n", valid.to_uppercase());
        let malformed = "traceparent: nonsense\r\ntracestate: a=1\r\n".to_owned();
        [String::new(), malformed, upper, twice.clone()].map(|fields| (host, fields))
    }) {
        let head = sent(&rig, host, &fields).await;
        let trace = taken(&tracer, 1).await.remove(0);
        let id = hex(&trace.trace_id);
        let parent = format!("00-{id}-{}-01", hex(&clients(&trace)[0].span_id));
        assert_eq!(values(&head, "traceparent"), [parent], "{fields}");
        // Without a valid parent it means nothing.
        assert!(values(&head, "tracestate").is_empty());
        assert_eq!(trace.spans.last().unwrap().parent, None);
        ids.insert(id);
    }
    assert_eq!(ids.len(), 8);
    for event in of(&rig.recorder.events(16).await, HTTP) {
        let id = event["culvert"]["trace_id"].as_str();
        assert!(id.is_some_and(|id| ids.contains(id)), "{event:#}");
    }
}

#[tokio::test]
async fn a_bad_state_is_discarded_alone() {
    let (settings, tracer) = all();
    let rig = start(settings).await;
    let parent = format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n");
    let many: Vec<String> = (0..33).map(|n| format!("k{n}=1")).collect();
    for host in HOSTS {
        for bad in ["no member", &many.join(",")] {
            let head = sent(&rig, host, &format!("{parent}tracestate: {bad}\r\n")).await;
            assert!(values(&head, "traceparent")[0].contains(TRACE));
            assert!(values(&head, "tracestate").is_empty());
        }
        let two = format!("{parent}tracestate: a=1\r\ntracestate: b=2\r\n");
        let head = sent(&rig, host, &two).await;
        assert_eq!(values(&head, "tracestate"), ["a=1,b=2"]);
    }
    drop(taken(&tracer, 6).await);
}

#[tokio::test]
async fn callers_that_do_not_record_are_followed() {
    let (settings, tracer) = all();
    let rig = start(settings).await;
    let value = format!("00-{TRACE}-{CALLER}-00");
    for host in HOSTS {
        let head = sent(&rig, host, &format!("traceparent: {value}\r\n")).await;
        assert_eq!(values(&head, "traceparent"), [&*value]);
    }
    // Those without a caller are not recorded either, and the upstream gets to know that.
    let (settings, none) = traced(Sample::Share(0.0), |_| {});
    let rig = start(settings).await;
    for host in HOSTS {
        let head = sent(&rig, host, "").await;
        let [parent] = values(&head, "traceparent")[..] else {
            panic!("{head}");
        };
        assert!(parent.starts_with("00-") && parent.ends_with("-00"));
    }
    assert_eq!((tracer.waiting(), none.waiting()), (0, 0));
}

#[tokio::test]
async fn strangers_cannot_force_more_records_than_their_allowance() {
    let (settings, tracer) = traced(Sample::Share(0.0), |tracer| tracer.parents_per_second = 2);
    let rig = start(settings).await;
    let value = format!("00-{TRACE}-{CALLER}-01");
    let request = format!("GET / HTTP/1.1\r\nHost: plain.example\r\ntraceparent: {value}\r\n\r\n");
    let mut client = rig.connect().await;
    let (began, mut passed) = (std::time::Instant::now(), 0);
    for _ in 0..100 {
        client.send(&request).await;
        let answer = client.answer("GET").await;
        let head = answer.text().to_ascii_lowercase();
        let parent = values(&head, "traceparent")[0].to_owned();
        // The flag is passed on in any case.
        assert!(parent.starts_with(&format!("00-{TRACE}-")) && parent.ends_with("-01"));
        passed += u64::from(parent == value);
    }
    let allowed = 2 * (began.elapsed().as_secs() + 2);
    assert!(tracer.meters().recorded.get() <= allowed);
    assert_eq!(tracer.meters().parents_refused.get(), passed);
    assert_eq!(tracer.meters().recorded.get() + passed, 100);
}

#[tokio::test]
async fn an_expression_decides_what_is_recorded() {
    let (mut settings, tracer) = traced(Sample::Condition, |_| {});
    let condition = single_condition("req.url.path == '/slow' && req.headers['x-a'][0] == 'b'");
    settings.tracing.as_mut().unwrap().condition = Some(Arc::new(condition.unwrap()));
    let rig = start(settings).await;
    for (path, field) in [("/slow", "X-A: b"), ("/slow", "X-B: b"), ("/", "X-A: b")] {
        for host in HOSTS {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{field}\r\n\r\n");
            assert_eq!(rig.ask(&request).await.status, 200);
        }
    }
    assert_eq!(taken(&tracer, 2).await.len(), 2);
    // It could not be evaluated for the second one.
    assert_eq!(tracer.meters().undecided.get(), 2);
}

#[tokio::test]
async fn each_attempt_has_its_own_span() {
    let (settings, tracer) = all();
    let mut rig = Rig::with(settings).await;
    let closing = origin(&mut rig.tasks, |mut client| async move {
        drop(client.request().await);
    })
    .await;
    let refusing = gone();
    let echo = echo(&mut rig.tasks).await;
    let mut list = list(
        "http",
        &[(closing, 1, 0), (refusing, 1, 1), (echo, 1, 2)],
        "",
    );
    list.retries.attempts = 3;
    rig.edge
        .publish(Snapshot::builder().endpoint(several(list)).build())
        .await;
    let head = sent(&rig, "app.example", "").await;
    let trace = taken(&tracer, 1).await.remove(0);
    let attempts = clients(&trace);
    let errors: Vec<String> = attempts.iter().map(|it| text(it, "error.type")).collect();
    assert_eq!(errors, ["upstream_aborted", "upstream_connect_failed", ""]);
    let failed: Vec<bool> = attempts.iter().map(|it| it.has_failed).collect();
    assert_eq!(failed, [true, true, false]);
    assert_eq!(
        text(attempts[2], "culvert.upstream"),
        format!("http://{echo}")
    );
    assert_eq!(text(attempts[0], "http.request.resend_count"), "");
    assert_eq!(text(attempts[2], "http.request.resend_count"), "1");
    let parent = values(&head, "traceparent")[0].to_owned();
    assert_eq!(&parent[36..52], hex(&attempts[2].span_id));
    // The client got a good response.
    assert!(!trace.spans.last().unwrap().has_failed);
}

#[tokio::test]
async fn failures_are_those_of_events() {
    let (settings, tracer) = all();
    let rig = Rig::with(settings).await;
    rig.edge.publish(http("app.example", gone()).build()).await;
    let request = "GET / HTTP/1.1\r\nHost: app.example\r\n\r\n";
    assert_eq!(rig.ask(request).await.status, 502);
    let trace = taken(&tracer, 1).await.remove(0);
    let server = trace.spans.last().unwrap();
    assert!(server.has_failed);
    assert_eq!(text(server, "error.type"), "upstream_connect_failed");
    assert_eq!(text(server, "http.response.status_code"), "502");
    let attempt = clients(&trace)[0];
    assert_eq!(text(attempt, "error.type"), "upstream_connect_failed");
    assert_eq!(span(&trace, "connect").parent, Some(attempt.span_id));
}

#[tokio::test]
async fn policies_and_their_actions_have_spans() {
    let (settings, tracer) = all();
    let mut rig = Rig::with(settings).await;
    let upstream = format!("http://{}", echo(&mut rig.tasks).await);
    let policy = "on_http_request:\n- name: ask\n  actions:\n  - {type: set-vars, config: {vars: [{a: b}]}}\n  - {type: http-request, config: {url: 'http://a.internal/x'}}\non_http_response:\n- actions: [{type: add-headers, config: {headers: {x-a: b}}}]";
    let snapshot = Snapshot::builder()
        .endpoint(governed(Scheme::Http, &upstream, policy))
        .endpoint(named(Scheme::Http, "a.internal", 80, &upstream, ""));
    rig.edge.publish(snapshot.build()).await;
    let request = "GET / HTTP/1.1\r\nHost: app.example\r\n\r\n";
    // The port of `governed` is that of https.
    let answer = rig.ask(request).await;
    assert_eq!(answer.status, 200);
    let trace = taken(&tracer, 1).await.remove(0);
    let server = trace.spans.last().unwrap();
    let (asked, answered) = (
        span(&trace, "on_http_request"),
        span(&trace, "on_http_response"),
    );
    assert_eq!(asked.parent, Some(server.span_id));
    assert_eq!(
        text(asked, "culvert.policy.actions"),
        "set-vars: continue, http-request: continue"
    );
    assert_eq!(
        text(answered, "culvert.policy.actions"),
        "add-headers: continue"
    );
    let call = span(&trace, "http-request");
    assert_eq!(call.parent, Some(asked.span_id));
    assert_eq!(text(call, "culvert.policy.rule"), "ask");
    // The request of the policy is not the client's.
    assert_eq!(clients(&trace).len(), 1);
}

#[tokio::test]
async fn http2_and_upgrades_are_traced() {
    let (settings, tracer) = all();
    let mut tasks = JoinSet::new();
    let origin = origin(&mut tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let head = head.to_ascii_lowercase();
            if head.contains("upgrade: websocket") {
                // The proof is that of the key of RFC 6455 1.3 for a client of HTTP/1.
                client.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n").await;
                client.send(values(&head, "traceparent")[0]).await;
                client.rest().await;
                return;
            }
            let length = head.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{head}");
            client.send(answer).await;
        }
    })
    .await;
    let (mut rig, root) = rig(&format!("http://{origin}"), "", settings).await;
    let mut sender = connect(&mut rig, &root).await;
    drop(taken(&tracer, 1).await);
    let request = Request::get("https://app.example/x")
        .header("traceparent", format!("00-{TRACE}-{CALLER}-01"))
        .header("tracestate", "a=1")
        .body(nothing())
        .unwrap();
    let answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    let head = answer.into_body().collect().await.unwrap().to_bytes();
    let head = String::from_utf8(head.to_vec()).unwrap();
    let trace = taken(&tracer, 1).await.remove(0);
    let server = trace.spans.last().unwrap();
    assert_eq!(text(server, "network.protocol.version"), "2");
    assert_eq!(text(server, "url.scheme"), "https");
    let parent = format!("00-{TRACE}-{}-01", hex(&clients(&trace)[0].span_id));
    assert_eq!(values(&head, "traceparent"), [parent]);
    assert_eq!(values(&head, "tracestate"), ["a=1"]);

    let mut client = rig.connect().await;
    client
        .send("GET /chat HTTP/1.1\r\nHost: app.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        .await;
    assert_eq!(client.answer("GET").await.status, 101);
    let parent = String::from_utf8(client.take(55).await.unwrap()).unwrap();
    // Its trace ends with the connection.
    assert_eq!(tracer.waiting(), 0);
    client.stream.shutdown().await.unwrap();
    client.rest().await;
    let trace = taken(&tracer, 1).await.remove(0);
    let server = trace.spans.last().unwrap();
    assert_eq!(text(server, "http.response.status_code"), "101");
    assert!(!server.has_failed, "{server:?}");
    assert_eq!(parent[36..52], hex(&clients(&trace)[0].span_id));
}

#[tokio::test]
async fn http2_upstreams_get_the_span_of_their_attempt() {
    let (settings, tracer) = all();
    let mut rig = Rig::with(settings).await;
    let origin = origin(&mut rig.tasks, |client| async move {
        let service =
            hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
                let parent = request.headers()["traceparent"].clone();
                let body =
                    http_body_util::Full::new(bytes::Bytes::copy_from_slice(parent.as_bytes()));
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            });
        let server = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
        let stream = hyper_util::rt::TokioIo::new(client.stream);
        drop(server.serve_connection(stream, service).await);
    })
    .await;
    let upstream = format!("http://{origin}");
    let endpoint = endpoint(Scheme::Http, "app.example", 80, &upstream, "http2");
    rig.edge
        .publish(Snapshot::builder().endpoint(endpoint).build())
        .await;
    for is_reused in ["false", "true"] {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: app.example\r\ntraceparent: 00-{TRACE}-{CALLER}-01\r\n\r\n"
        );
        let answer = rig.ask(&request).await;
        let trace = taken(&tracer, 1).await.remove(0);
        let attempt = clients(&trace)[0];
        let parent = format!("00-{TRACE}-{}-01", hex(&attempt.span_id));
        assert_eq!(answer.text(), parent);
        assert_eq!(text(attempt, "culvert.connection_reused"), is_reused);
    }
}

#[tokio::test]
async fn a_full_queue_drops_spans_and_serves_requests() {
    let (settings, tracer) = traced(Sample::Share(1.0), |tracer| tracer.queue_spans = 4);
    let rig = start(settings).await;
    for _ in 0..20 {
        sent(&rig, "plain.example", "").await;
    }
    eventually("they are counted", || tracer.meters().dropped.get() >= 50).await;
    assert!(tracer.waiting() <= 4);
}

#[tokio::test]
async fn a_response_that_is_cut_has_failed() {
    let (settings, tracer) = all();
    let mut rig = Rig::with(settings).await;
    let cut = origin(&mut rig.tasks, |mut client| async move {
        if client.request().await.is_some() {
            client
                .send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
                .await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", cut).build()).await;
    let mut client = rig.connect().await;
    client
        .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    client.rest().await;
    let trace = taken(&tracer, 1).await.remove(0);
    let server = trace.spans.last().unwrap();
    assert!(server.has_failed);
    assert_eq!(text(server, "error.type"), "incomplete");
    assert_eq!(text(server, "http.response.status_code"), "200");
}
