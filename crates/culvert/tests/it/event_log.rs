//! The event log in NATS: nodes share it, and traffic continues without it. Each test starts a NATS server;
//! without `nats-server` it is reported as ignored.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::harness::{Backend, Harness, Receiver, binary, cluster, eventually, raw};
use crate::kill::Process;

const HOST: &str = "logged.culvert.localhost";
const PASSWORD: &str = "l0g-s3cr3t";

/// A NATS server with JetStream and a password.
struct Nats {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Nats {
    async fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let Ok(child) = Self::spawn(folder.path(), -1) else {
            culvert_testing::ignore("`nats-server` is not here");
            return None;
        };
        let mut server = Self {
            child,
            port: 0,
            folder,
        };
        server.port = server.listening().await;
        Some(server)
    }

    fn spawn(folder: &Path, port: i32) -> std::io::Result<Child> {
        Command::new("nats-server")
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
            .arg(folder.join("js"))
            .args(["--user", "culvert", "--pass", PASSWORD])
            .arg("--ports_file_dir")
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    /// The port, once it listens: the server writes it into a file.
    async fn listening(&self) -> u16 {
        let name = format!("nats-server_{}.ports", self.child.id());
        let file = self.folder.path().join(name);
        let mut port = None;
        eventually("NATS listens", async || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let ports: Value = serde_json::from_str(&text).unwrap_or_default();
            let url = ports["nats"][0].as_str().unwrap_or_default();
            port = url.rsplit(':').next().and_then(|port| port.parse().ok());
            port.is_some()
        })
        .await;
        port.unwrap()
    }

    fn url(&self) -> String {
        format!("nats://culvert:{PASSWORD}@127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    async fn restart(&mut self) {
        self.child = Self::spawn(self.folder.path(), self.port.into()).unwrap();
        self.listening().await;
    }

    /// Deletes all that it stored.
    fn wipe(&self) {
        std::fs::remove_dir_all(self.folder.path().join("js")).unwrap();
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A receiver of events that can be down; what it took, batch by batch.
struct Sink {
    address: SocketAddr,
    is_up: Arc<AtomicBool>,
    batches: Arc<Mutex<Vec<Vec<String>>>>,
    _tasks: JoinSet<()>,
}

impl Sink {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let is_up = Arc::new(AtomicBool::new(true));
        let batches: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
        let mut tasks = JoinSet::new();
        let shared = (is_up.clone(), batches.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (is_up, batches) = shared.clone();
                connections.spawn(async move {
                    let service =
                        service_fn(move |request| take(request, is_up.clone(), batches.clone()));
                    let served = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    drop(served.await);
                });
            }
        });
        Self {
            address,
            is_up,
            batches,
            _tasks: tasks,
        }
    }

    fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::SeqCst);
    }

    fn batches(&self) -> Vec<Vec<String>> {
        self.batches.lock().unwrap().clone()
    }

    /// The number of events of each path with this prefix.
    fn reported(&self, prefix: &str) -> BTreeMap<String, usize> {
        let mut reported = BTreeMap::new();
        for path in self.batches().into_iter().flatten() {
            if path.starts_with(prefix) {
                *reported.entry(path).or_default() += 1;
            }
        }
        reported
    }

    async fn wait_for(&self, prefix: &str, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(180);
        while self.reported(prefix).len() < count {
            let n_reported = self.reported(prefix).len();
            assert!(
                Instant::now() < deadline,
                "{n_reported} of {count} were reported of"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn take(
    request: Request<Incoming>,
    is_up: Arc<AtomicBool>,
    batches: Arc<Mutex<Vec<Vec<String>>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut answer = Response::new(Full::new(Bytes::new()));
    let body = request.into_body().collect().await;
    let (true, Ok(body)) = (is_up.load(Ordering::SeqCst), body) else {
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        return Ok(answer);
    };
    let events = match serde_json::from_slice(&body.to_bytes()).unwrap() {
        Value::Array(batch) => batch,
        one => vec![one],
    };
    let path = |event: &Value| {
        let path = &event["object"]["http"]["request"]["url"]["path"];
        path.as_str().unwrap().to_owned()
    };
    batches
        .lock()
        .unwrap()
        .push(events.iter().map(path).collect());
    Ok(answer)
}

/// An endpoint at `culvert` whose events go to `sink`.
async fn tell(culvert: &Harness, sink: &Sink) -> Receiver {
    let target = json!({"debug": {"callback_url": format!("http://{}/", sink.address)}});
    let body = json!({"format": "json", "target": target});
    let destination = culvert.create("event_destinations", body).await;
    let sources =
        json!([{"type": "http_request_complete.v0", "fields": ["http.request.url.path"]}]);
    let body = json!({"destination_ids": [destination["id"]], "sources": sources});
    culvert.create("event_subscriptions", body).await;
    let origin = Receiver::start().await;
    culvert.endpoint("logged", origin.address).await;
    origin
}

/// Requests at an edge, one after the other: `<prefix>/0`, `<prefix>/1` and so on.
async fn ask(edge: SocketAddr, prefix: &str, count: usize) {
    for nth in 0..count {
        let head = format!("GET {prefix}/{nth} HTTP/1.1\r\nhost: {HOST}\r\n");
        let request = format!("{head}connection: close\r\n\r\n");
        let answer = raw(edge, request.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
}

/// Waits until an edge tells of its requests.
async fn until_reported(edge: SocketAddr, sink: &Sink, prefix: &str) {
    eventually("requests are reported of", async || {
        let head = format!("GET {prefix} HTTP/1.1\r\nhost: {HOST}\r\n");
        let request = format!("{head}connection: close\r\n\r\n");
        raw(edge, request.as_bytes()).await.status == 200 && !sink.reported(prefix).is_empty()
    })
    .await;
}

async fn metric(culvert: &Harness, name: &str) -> u64 {
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let answer = raw(culvert.metrics, request).await;
    let lines = answer.text.lines();
    let values = lines.filter(|line| line.starts_with(name));
    values
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// The status of `/readyz` and whether it names the event log.
async fn ready(culvert: &Harness) -> (u16, bool) {
    let address = culvert.api.trim_start_matches("http://").parse().unwrap();
    let request = b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = raw(address, request).await;
    (answer.status, answer.text.contains("event_log"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remaining_node_delivers_the_queued_events_of_both() {
    const EACH: usize = 150;
    let Some(backend) = cluster(2).await else {
        return;
    };
    let Some(nats) = Nats::start().await else {
        return;
    };
    let url = nats.url();
    let stays = Harness::start_with(&backend, |settings| settings.event_log = url.clone()).await;
    let folder = tempfile::tempdir().unwrap();
    let key = stays.settings.key_file().display().to_string();
    let arguments = ["--secrets-key-file", &key, "--event-log", &url];
    let dies = Process::start_as(
        binary(),
        folder.path(),
        &stays.settings.database_url,
        &arguments,
    );
    let sink = Sink::start().await;
    let _origin = tell(&stays, &sink).await;
    until_reported(stays.http, &sink, "/live/stays").await;
    until_reported(dies.http, &sink, "/live/dies").await;

    sink.set_up(false);
    tokio::join!(
        ask(stays.http, "/logged/stays", EACH),
        ask(dies.http, "/logged/dies", EACH)
    );
    // Both have queued the undelivered events, and each sees those of the other.
    let wanted = u64::try_from(2 * EACH).unwrap();
    eventually("all wait in the log", async || {
        metric(&stays, "culvert_destination_queued").await >= wanted
    })
    .await;
    assert_eq!(metric(&stays, "culvert_event_log_fallbacks").await, 0);
    dies.kill();
    sink.set_up(true);
    sink.wait_for("/logged/", 2 * EACH).await;

    let reported = sink.reported("/logged/");
    let repeated: Vec<&String> = reported
        .iter()
        .filter(|(_, times)| **times > 1)
        .map(|(path, _)| path)
        .collect();
    let is_of_one = |batch: &Vec<String>| repeated.iter().all(|path| batch.contains(path));
    assert!(sink.batches().iter().any(is_of_one), "{repeated:?}");
    assert_eq!(metric(&stays, "culvert_events_lost").await, 0);
    assert_eq!(metric(&stays, "culvert_events_dropped").await, 0);
    println!(
        "1 kill, {} requests answered, lost 0, repeated {} of one batch",
        2 * EACH,
        repeated.len()
    );
    stays.stop().await;
}

/// Events wait in the stream when the server loses its disks. Each is delivered or counted.
#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_a_lost_stream_are_counted() {
    const EACH: usize = 100;
    let Some(mut nats) = Nats::start().await else {
        return;
    };
    let url = nats.url();
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| settings.event_log = url).await;
    let sink = Sink::start().await;
    let _origin = tell(&culvert, &sink).await;
    until_reported(culvert.http, &sink, "/live").await;
    // Reported after all before it.
    ask(culvert.http, "/mark", 1).await;
    sink.wait_for("/mark/", 1).await;
    sink.set_up(false);
    ask(culvert.http, "/before", EACH).await;
    eventually("all wait in the log", async || {
        metric(&culvert, "culvert_destination_queued").await >= EACH.try_into().unwrap()
    })
    .await;
    nats.kill();
    nats.wipe();
    nats.restart().await;
    // On a busy machine, those that were on their way to the log go to the database or to the new log, and are delivered.
    eventually("it is ready again", async || ready(&culvert).await.0 == 200).await;
    ask(culvert.http, "/after", EACH).await;
    sink.set_up(true);
    sink.wait_for("/after/", EACH).await;
    for name in ["culvert_events_dropped", "culvert_destination_dropped"] {
        let mut seen = (0, 0);
        eventually("each is delivered or counted", async || {
            let dropped = usize::try_from(metric(&culvert, name).await).unwrap();
            let now = (sink.reported("/before/").len(), dropped);
            if std::mem::replace(&mut seen, now) != now {
                println!("{} delivered, {dropped} in {name}", now.0);
            }
            // One whose acknowledgement was lost with the log is both.
            now.0 + dropped >= EACH
        })
        .await;
    }
    let delivered = sink.reported("/before/").len();
    assert_eq!(metric(&culvert, "culvert_events_lost").await, 0);
    println!("{EACH} events in the stream, {delivered} delivered, the others counted");
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_and_deliveries_continue_without_nats() {
    const EACH: usize = 100;
    let Some(mut nats) = Nats::start().await else {
        return;
    };
    let url = nats.url();
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| settings.event_log = url).await;
    let sink = Sink::start().await;
    let _origin = tell(&culvert, &sink).await;
    until_reported(culvert.http, &sink, "/live").await;
    eventually("it is ready", async || ready(&culvert).await.0 == 200).await;

    // Some wait in the log when it goes.
    sink.set_up(false);
    ask(culvert.http, "/before", EACH).await;
    eventually("all wait in the log", async || {
        metric(&culvert, "culvert_destination_queued").await >= EACH.try_into().unwrap()
    })
    .await;
    nats.kill();
    eventually("it says what is not usable", async || {
        ready(&culvert).await == (503, true)
    })
    .await;
    ask(culvert.http, "/away", EACH).await;
    eventually("the database has what the log does not take", async || {
        metric(&culvert, "culvert_event_log_fallbacks").await >= EACH.try_into().unwrap()
    })
    .await;
    sink.set_up(true);
    sink.wait_for("/away/", EACH).await;

    nats.restart().await;
    eventually("it is ready again", async || ready(&culvert).await.0 == 200).await;
    sink.wait_for("/before/", EACH).await;
    for name in ["culvert_events_lost", "culvert_events_dropped"] {
        assert_eq!(metric(&culvert, name).await, 0, "{name}");
    }
    println!(
        "NATS away: {} requests answered, {} reported of, lost 0",
        2 * EACH,
        sink.reported("/before/").len() + sink.reported("/away/").len()
    );
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_started_without_nats_serves_and_is_not_ready() {
    let Some(mut nats) = Nats::start().await else {
        return;
    };
    let url = nats.url();
    nats.kill();
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| settings.event_log = url).await;
    let sink = Sink::start().await;
    let _origin = tell(&culvert, &sink).await;
    until_reported(culvert.http, &sink, "/early").await;
    assert_eq!(ready(&culvert).await, (503, true));
    assert_eq!(
        culvert.call(Method::GET, "/api_keys", None).await.status,
        200,
        "everything else is usable"
    );
    nats.restart().await;
    eventually("it is ready", async || ready(&culvert).await.0 == 200).await;
    culvert.stop().await;
}
