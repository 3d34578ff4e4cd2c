//! The exporter of spans, with a receiver that reads its requests.

use culvert_base::{OsEntropy, Share, SystemClock};
use culvert_traces::{Begun, Parent, Sample, TracerSettings, hex};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::*;
use crate::tests::fake::{Fake, RecordedRequest, Reply, local_settings, until};

/// An exporter that runs, and what stops it.
struct Running {
    tracer: Arc<Tracer>,
    stop: Option<oneshot::Sender<()>>,
    tasks: JoinSet<()>,
}

impl Running {
    fn start(endpoint: &str) -> Self {
        let settings = TracerSettings {
            sample: Sample::Share(1.0),
            is_parent_based: true,
            parents_per_second: 100,
            queue_spans: 20,
            queue_bytes: 1 << 20,
        };
        let tracer = Tracer::new(settings, Arc::new(OsEntropy));
        let net = Net::new(
            local_settings().net(),
            Arc::new(SystemClock),
            Arc::new(OsEntropy),
        );
        let receiver = SpanReceiver {
            endpoint: endpoint.parse().unwrap(),
            headers: vec![(
                HeaderName::from_static("x-api-key"),
                Secret::new("s3cr3t".to_owned()),
            )],
            node: "node-1".to_owned(),
            version: "1.2.3",
        };
        let exporter = SpanExporter::new(Arc::clone(&tracer), receiver, &net);
        assert!(!format!("{exporter:?}").contains("s3cr3t"));
        let (stop, stopped) = oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(exporter.run(async {
            stopped.await.ok();
        }));
        Self {
            tracer,
            stop: Some(stop),
            tasks,
        }
    }

    /// A request with one attempt. Returns the ID of its trace.
    fn request(&self) -> String {
        let begun = Begun {
            at: Instant::now(),
            unix_nanos: 1_800_000_000_000_000_000,
            share: Share::new("usr_1", "ep_1"),
        };
        let trace = self.tracer.begin(Parent::default(), begun, || None);
        let mut trace = trace.unwrap();
        let server = trace.server().unwrap();
        server.name = "GET".to_owned();
        server.set("url.path", "/a");
        server.set("http.response.status_code", 200_i64);
        trace
            .begin_attempt("GET", begun.at)
            .unwrap()
            .set("culvert.connection_reused", true);
        trace.end_attempt("connect_failed", begun.at + Duration::from_millis(3));
        let id = trace.id();
        trace.finish(begun.at + Duration::from_millis(5));
        id
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        self.tasks.join_next().await.unwrap().unwrap();
    }
}

fn read(request: &RecordedRequest) -> ExportTraceServiceRequest {
    let mut body = Vec::new();
    let mut packed = flate2::read::GzDecoder::new(&request.body[..]);
    std::io::Read::read_to_end(&mut packed, &mut body).unwrap();
    ExportTraceServiceRequest::decode(&body[..]).unwrap()
}

fn said(attributes: &[KeyValue], key: &str) -> Option<Any> {
    let pair = attributes.iter().find(|pair| pair.key == key)?;
    pair.value.clone()?.value
}

#[tokio::test]
async fn spans_arrive_as_the_specification_says() {
    let fake = Fake::start().await;
    let running = Running::start(&fake.url("/base/"));
    let id = running.request();
    until("an export", || !fake.seen().is_empty()).await;
    let request = fake.seen().remove(0);
    assert_eq!(request.line, "POST /base/v1/traces HTTP/1.1");
    assert_eq!(
        request.header("content-type"),
        Some("application/x-protobuf")
    );
    assert_eq!(request.header("x-api-key"), Some("s3cr3t"));
    let message = read(&request);
    let resource = &message.resource_spans[0];
    let attributes = &resource.resource.as_ref().unwrap().attributes;
    for (name, value) in [
        ("service.name", "culvert"),
        ("service.version", "1.2.3"),
        ("service.instance.id", "node-1"),
    ] {
        assert_eq!(said(attributes, name), Some(text(value)), "{name}");
    }
    let [attempt, server] = &resource.scope_spans[0].spans[..] else {
        panic!("{message:?}");
    };
    assert_eq!(hex(&server.trace_id), id);
    assert_eq!(server.trace_id, attempt.trace_id);
    assert_eq!(attempt.parent_span_id, server.span_id);
    assert!(server.parent_span_id.is_empty());
    assert_eq!(
        (server.kind(), attempt.kind()),
        (Kind::Server, Kind::Client)
    );
    let took = |span: &Span| span.end_time_unix_nano - span.start_time_unix_nano;
    assert_eq!((took(server), took(attempt)), (5_000_000, 3_000_000));
    assert_eq!(server.start_time_unix_nano, 1_800_000_000_000_000_000);
    assert_eq!(said(&server.attributes, "url.path"), Some(text("/a")));
    assert_eq!(
        said(&server.attributes, "http.response.status_code"),
        Some(Any::IntValue(200))
    );
    assert_eq!(
        said(&attempt.attributes, "culvert.connection_reused"),
        Some(Any::BoolValue(true))
    );
    assert_eq!(
        said(&attempt.attributes, "error.type"),
        Some(text("connect_failed"))
    );
    let failed = attempt.status.as_ref().unwrap();
    assert_eq!(failed.code(), StatusCode::Error);
    assert_eq!(server.status, None);
    let tracer = Arc::clone(&running.tracer);
    until("they are counted", || tracer.meters().exported.get() == 2).await;
    running.stop().await;
}

#[tokio::test]
async fn a_receiver_that_is_away_gets_the_spans_later() {
    let fake = Fake::start().await;
    fake.script([Reply::status(503), Reply::Close, Reply::status(429)]);
    let running = Running::start(&fake.url(""));
    let id = running.request();
    let meters = Arc::clone(&running.tracer);
    until("they are exported", || meters.meters().exported.get() == 2).await;
    assert_eq!(meters.meters().retries.get(), 3);
    let last = read(fake.seen().last().unwrap());
    assert_eq!(
        hex(&last.resource_spans[0].scope_spans[0].spans[0].trace_id),
        id
    );
    running.stop().await;
}

#[tokio::test]
async fn what_a_receiver_refuses_is_counted_and_not_sent_again() {
    let fake = Fake::start().await;
    fake.script([Reply::status(400)]);
    let running = Running::start(&fake.url(""));
    running.request();
    let tracer = Arc::clone(&running.tracer);
    until("they are counted", || tracer.meters().failed.get() == 2).await;
    assert_eq!((fake.seen().len(), tracer.meters().exported.get()), (1, 0));
    running.stop().await;
}

#[tokio::test]
async fn a_partial_success_is_counted() {
    let fake = Fake::start().await;
    // `partial_success` with `rejected_spans` 1 and a message: ASCII, as it happens.
    fake.script([Reply::with(200, "\n\u{5}\u{8}\u{1}\u{12}\u{1}x")]);
    let running = Running::start(&fake.url(""));
    running.request();
    let tracer = Arc::clone(&running.tracer);
    until("they are counted", || tracer.meters().rejected.get() == 1).await;
    assert_eq!(tracer.meters().exported.get(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_dead_receiver_costs_spans_and_nothing_else() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let running = Running::start(&url);
    let tracer = Arc::clone(&running.tracer);
    running.request();
    until("it is tried again", || tracer.meters().retries.get() > 0).await;
    for _ in 0..50 {
        running.request();
    }
    // The queue keeps what it may, and the rest is dropped.
    assert!(tracer.waiting() <= 20);
    assert!(tracer.meters().dropped.get() >= 80);
    running.stop().await;
}

#[tokio::test]
async fn spans_that_are_left_are_sent_at_the_stop() {
    let fake = Fake::start().await;
    let running = Running::start(&fake.url(""));
    let id = running.request();
    running.stop().await;
    let last = read(fake.seen().last().unwrap());
    assert_eq!(
        hex(&last.resource_spans[0].scope_spans[0].spans[0].trace_id),
        id
    );
}
