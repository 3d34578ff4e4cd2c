//! A running edge with a recorder that collects events, scripted origins, and clients on raw sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{Clock, SystemClock};
use culvert_events::bodies::{BodyBudget, CapturedMessages};
use culvert_events::{Capture, EventKind, Record, Recorder, Selection, encode};
use culvert_policy::Scheme;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    Edge, Endpoint, EndpointBinding, Limits, Settings, Snapshot, SnapshotBuilder, Timeouts,
    Upstream,
};

/// Only a broken test takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for `future`, with a timeout.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, waiting).await;
}

/// Collects every event as JSON.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    pub(crate) is_off: AtomicBool,
    events: Mutex<Vec<Value>>,
    /// Captured messages, as delivery would store them.
    pub(crate) captured: Mutex<Vec<CapturedMessages>>,
    budget: OnceLock<Arc<BodyBudget>>,
    changed: Notify,
}

impl Recorder for Collector {
    fn capture(&self, kind: &'static EventKind) -> Capture {
        if self.is_off.load(Ordering::SeqCst) {
            Capture::NONE
        } else {
            Capture::all(kind)
        }
    }

    fn bodies(&self) -> Option<Arc<BodyBudget>> {
        let budget = self.budget.get_or_init(|| BodyBudget::new(1 << 20));
        Some(Arc::clone(budget))
    }

    fn offer(&self, mut record: Record) {
        if let Some(bodies) = record.take_bodies() {
            self.captured.lock().unwrap().push(bodies.finish().0);
        }
        let mut out = Vec::new();
        let _truncated = encode::event(&record, &Selection::all(record.kind()), "ev_0", &mut out);
        let mut event: Value = serde_json::from_slice(&out).unwrap();
        // Our own fields are beside those of the contract, which most tests compare.
        let own = event["object"].as_object_mut().unwrap().remove("culvert");
        event["culvert"] = own.unwrap();
        self.events.lock().unwrap().push(event);
        self.changed.notify_waiters();
    }
}

impl Collector {
    /// Waits for `count` events and returns them.
    pub(crate) async fn events(&self, count: usize) -> Vec<Value> {
        soon(&format!("{count} events"), async {
            loop {
                let changed = self.changed.notified();
                let events = self.events.lock().unwrap().clone();
                if events.len() >= count {
                    return events;
                }
                // No change between the check and the wait is missed, because the notification was requested
                // before.
                drop(tokio::time::timeout(Duration::from_millis(50), changed).await);
            }
        })
        .await
    }

    /// The events so far.
    pub(crate) fn now(&self) -> Vec<Value> {
        self.events.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.events.lock().unwrap().len()
    }
}

/// A running edge.
pub(crate) struct Rig {
    pub(crate) edge: Edge,
    pub(crate) recorder: Arc<Collector>,
    pub(crate) cancel: CancellationToken,
    pub(crate) tasks: JoinSet<()>,
}

pub(crate) fn settings() -> Settings {
    Settings {
        http_addr: Some((Ipv4Addr::LOCALHOST, 0).into()),
        https_addr: Some((Ipv4Addr::LOCALHOST, 0).into()),
        tcp_bind_ip: Ipv4Addr::LOCALHOST.into(),
        limits: Limits {
            parting: Duration::ZERO,
            // All tests share the memory of one process and the processors.
            memory_bytes: u64::MAX,
            run_queue: Duration::MAX,
            ..Limits::default()
        },
        ..Settings::default()
    }
}

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::with(settings()).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        Self::at(settings, Arc::new(SystemClock)).await
    }

    /// Starts an edge with another clock.
    pub(crate) async fn at(mut settings: Settings, clock: Arc<dyn Clock>) -> Self {
        // The memory of all tests may be more than one edge may use by default.
        let memory_bytes = &mut settings.limits.memory_bytes;
        if *memory_bytes == Limits::default().memory_bytes {
            *memory_bytes = u64::MAX;
        }
        let recorder = Arc::new(Collector::default());
        let edge = Edge::bind(settings, Arc::clone(&recorder) as _, clock)
            .await
            .unwrap();
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(edge.clone().run(cancel.clone()));
        Self {
            edge,
            recorder,
            cancel,
            tasks,
        }
    }

    pub(crate) async fn connect(&self) -> Client<TcpStream> {
        Client::new(
            TcpStream::connect(self.edge.http_addr().unwrap())
                .await
                .unwrap(),
        )
    }

    /// A client whose kernel keeps few bytes that it has not read.
    pub(crate) async fn connect_slow_reader(&self) -> Client<TcpStream> {
        Client::new(slow_reader(self.edge.http_addr().unwrap()).await)
    }

    /// Sends one request on a new connection, which is then closed.
    pub(crate) async fn ask(&self, request: &str) -> Answer {
        let mut client = self.connect().await;
        client.send(request).await;
        client.answer("GET").await
    }
}

/// A connection with a small receive buffer. Without that, the kernel of some systems takes 32 MiB for a client
/// that reads nothing.
pub(crate) async fn slow_reader(to: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(to).await.unwrap()
}

/// Hosts that end in `.internal` are internal.
pub(crate) fn binding(host: &str) -> EndpointBinding {
    match host.ends_with(".internal") {
        true => EndpointBinding::Internal,
        false => EndpointBinding::Public,
    }
}

pub(crate) fn endpoint(
    scheme: Scheme,
    host: &str,
    port: u16,
    upstream: &str,
    protocol: &str,
) -> Endpoint {
    Endpoint {
        id: "ep_1".into(),
        account: "ac_1".into(),
        owner: "usr_1".into(),
        scheme,
        binding: binding(host),
        host: HostName::parse(host).unwrap(),
        port,
        upstream: Some(Upstream::parse(upstream, protocol).unwrap()),
        upstreams: None,
        policy: None,
        merge_slashes: true,
        timeouts: Timeouts::default(),
        in_flight: None,
        maintenance: None,
    }
}

pub(crate) fn http(host: &str, origin: SocketAddr) -> SnapshotBuilder {
    Snapshot::builder().endpoint(endpoint(
        Scheme::Http,
        host,
        80,
        &format!("http://{origin}"),
        "",
    ))
}

/// A listener whose connections each run `serve`.
pub(crate) async fn origin<F, S>(rig_tasks: &mut JoinSet<()>, serve: F) -> SocketAddr
where
    F: Fn(Client<TcpStream>) -> S + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    origin_at((Ipv4Addr::LOCALHOST, 0).into(), rig_tasks, serve).await
}

/// As [`origin`], at this address.
pub(crate) async fn origin_at<F, S>(
    address: SocketAddr,
    rig_tasks: &mut JoinSet<()>,
    serve: F,
) -> SocketAddr
where
    F: Fn(Client<TcpStream>) -> S + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    rig_tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(Client::new(stream)));
        }
    });
    address
}

/// An origin that responds to every request with 200 and `hello`, and keeps connections.
pub(crate) async fn hello(tasks: &mut JoinSet<()>) -> SocketAddr {
    origin(tasks, |mut client| async move {
        while client.request().await.is_some() {
            client
                .send(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello",
                )
                .await;
        }
    })
    .await
}

/// One end of a connection, read message by message.
pub(crate) struct Client<S> {
    pub(crate) stream: S,
    pub(crate) read: Vec<u8>,
}

/// A response as read from the wire.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            read: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The other side may close early; its response is checked anyway.
        drop(self.stream.write_all(bytes.as_ref()).await);
        drop(self.stream.flush().await);
    }

    /// Reads more; `false` at the end.
    pub(crate) async fn more(&mut self) -> bool {
        matches!(
            soon("bytes", self.stream.read_buf(&mut self.read)).await,
            Ok(bytes) if bytes > 0
        )
    }

    /// Reads to the end.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while self.more().await {}
        std::mem::take(&mut self.read)
    }

    /// A head, including the empty line.
    pub(crate) async fn head(&mut self) -> Option<String> {
        loop {
            if let Some(at) = find(&self.read, b"\r\n\r\n") {
                let head = self.read.drain(..at + 4).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            if !self.more().await {
                return None;
            }
        }
    }

    pub(crate) async fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.read.len() < length {
            if !self.more().await {
                return None;
            }
        }
        Some(self.read.drain(..length).collect())
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = find(&self.read, b"\r\n") {
                let line: Vec<u8> = self.read.drain(..at + 2).collect();
                return Some(String::from_utf8(line[..at].to_vec()).unwrap());
            }
            if !self.more().await {
                return None;
            }
        }
    }

    async fn chunks(&mut self) -> Option<(Vec<u8>, String)> {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(self.line().await?.split(';').next()?, 16).unwrap();
            if size == 0 {
                break;
            }
            body.extend(self.take(size).await?);
            self.line().await?;
        }
        let mut trailers = String::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Some((body, trailers));
            }
            trailers.push_str(&line);
            trailers.push('\n');
        }
    }

    /// A complete request: head, and body without framing.
    pub(crate) async fn request(&mut self) -> Option<(String, Vec<u8>)> {
        let head = self.head().await?;
        let body = self.body(&head).await?.0;
        Some((head, body))
    }

    pub(crate) async fn body(&mut self, head: &str) -> Option<(Vec<u8>, String)> {
        let lower = head.to_ascii_lowercase();
        if lower.contains("transfer-encoding: chunked") {
            return self.chunks().await;
        }
        let length = lower.split("content-length:").nth(1).map_or(0, |rest| {
            rest.split("\r\n").next().unwrap().trim().parse().unwrap()
        });
        Some((self.take(length).await?, String::new()))
    }

    /// The next final response to a request of `method`.
    pub(crate) async fn answer(&mut self, method: &str) -> Answer {
        self.try_answer(method).await.expect("an answer")
    }

    pub(crate) async fn try_answer(&mut self, method: &str) -> Option<Answer> {
        loop {
            let head = self.head().await?;
            let mut lines = head.split("\r\n");
            let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
            if (100..200).contains(&status) && status != 101 {
                continue;
            }
            let headers: Vec<(String, String)> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            let framed = headers
                .iter()
                .any(|(name, _)| name == "content-length" || name == "transfer-encoding");
            let (body, trailers) = match (method, status) {
                ("HEAD", _) | (_, 101 | 204 | 304) => (Vec::new(), String::new()),
                _ if framed => self.body(&head).await?,
                _ => (self.rest().await, String::new()),
            };
            return Some(Answer {
                status,
                headers,
                body,
                trailers,
            });
        }
    }
}

pub(crate) fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// A self-signed certificate for names, and the root that trusts it.
pub(crate) fn certificate(
    names: &[&str],
) -> (Vec<HostName>, Arc<CertifiedKey>, CertificateDer<'static>) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names.clone()).unwrap();
    let der = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
    let names = names
        .iter()
        .map(|name| HostName::parse(name).unwrap())
        .collect();
    (
        names,
        Arc::new(CertifiedKey::new(vec![der.clone()], key)),
        der,
    )
}

/// A TLS connection to `address` for `name`, offering `alpn`.
pub(crate) async fn tls(
    address: SocketAddr,
    root: &CertificateDer<'static>,
    name: &str,
    alpn: &str,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    tls_over(TcpStream::connect(address).await?, root, name, alpn).await
}

/// As [`tls`], on an open connection.
pub(crate) async fn tls_over(
    tcp: TcpStream,
    root: &CertificateDer<'static>,
    name: &str,
    alpn: &str,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let config = tls_config(root, alpn);
    let name = rustls_pki_types::ServerName::try_from(name.to_owned()).unwrap();
    soon(
        "a handshake",
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp),
    )
    .await
}

/// The TLS configuration of a client that trusts `root`.
pub(crate) fn tls_config(root: &CertificateDer<'static>, alpn: &str) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    config
}

/// A counter, for origins whose behaviour depends on the turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(AtomicUsize);

impl Turns {
    pub(crate) fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The events of one kind, in order.
pub(crate) fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events
        .iter()
        .filter(|event| event["event_type"] == kind)
        .collect()
}

pub(crate) const HTTP: &str = "http_request_complete.v0";
pub(crate) const TCP: &str = "tcp_connection_closed.v0";
