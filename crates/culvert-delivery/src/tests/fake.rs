//! A small HTTP/1.1 server for tests: it responds from a script and records the requests.

pub(crate) mod nats;
pub(crate) mod rsyslog;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::{BoxFuture, ManualClock, OsEntropy, SystemClock, Timestamp};
use culvert_store::BatchClass;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::client::guard::Rules;
use crate::client::kept::LIFE;
use crate::client::net::{Net, Resolve};
use crate::config::destination_ids::DestinationIds;
use crate::failure::{Failure, FailureClass};
use crate::queue::batch::{Batch, OpenBatch};
use crate::target::context::TargetContext;
use crate::target::settings::TargetSettings;
use crate::target::target_type::{Target, TargetType};
use crate::target::verdict::{Outcome, Verdict};

/// The response to a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Status, further header lines, body.
    Status(u16, Vec<String>, String),
    /// Close the connection without a response.
    Close,
    /// A response with that status whose body is truncated.
    Torn(u16),
    /// A response with that status whose body arrives a byte at a time and does not end.
    Drips(u16),
    /// No response.
    Hang,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self::Status(status, Vec::new(), String::new())
    }

    pub(crate) fn with(status: u16, body: impl Into<String>) -> Self {
        Self::Status(status, Vec::new(), body.into())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl RecordedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The gzip-compressed body as JSON.
    pub(crate) fn unpacked(&self) -> Value {
        serde_json::from_str(&self.unpacked_text()).unwrap()
    }

    /// The gzip-compressed body.
    pub(crate) fn unpacked_text(&self) -> String {
        assert_eq!(self.header("content-encoding"), Some("gzip"));
        let mut text = String::new();
        let mut packed = flate2::read::GzDecoder::new(&self.body[..]);
        std::io::Read::read_to_string(&mut packed, &mut text).unwrap();
        text
    }

    /// The lines of the gzip-compressed body, each as JSON.
    pub(crate) fn unpacked_lines(&self) -> Vec<Value> {
        let text = self.unpacked_text();
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Vec<RecordedRequest>>,
    script: Mutex<VecDeque<Reply>>,
    otherwise: Mutex<Option<Reply>>,
    accepts: AtomicUsize,
}

impl Fake {
    /// Listens on a free port, and responds with 200 after the end of the script.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let mut task = JoinSet::new();
        let own = shared.clone();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                own.accepts.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(stream, own.clone()));
            }
        });
        Self {
            addr,
            shared,
            _task: task,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// Sets the responses to the next requests, in order.
    pub(crate) fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.script.lock().unwrap().extend(replies);
    }

    /// Sets the response to requests after the script.
    pub(crate) fn otherwise(&self, reply: Reply) {
        *self.shared.otherwise.lock().unwrap() = Some(reply);
    }

    pub(crate) fn seen(&self) -> Vec<RecordedRequest> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn accepts(&self) -> usize {
        self.shared.accepts.load(Ordering::SeqCst)
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let mut buffer = Vec::new();
    loop {
        let Some(seen) = read_request(&mut stream, &mut buffer).await else {
            return;
        };
        shared.seen.lock().unwrap().push(seen);
        let scripted = shared.script.lock().unwrap().pop_front();
        let otherwise = shared.otherwise.lock().unwrap().clone();
        let reply = scripted.or(otherwise).unwrap_or(Reply::status(200));
        let text = match reply {
            Reply::Close => return,
            Reply::Hang => std::future::pending().await,
            Reply::Torn(status) => {
                let torn = format!("HTTP/1.1 {status} X\r\ncontent-length: 100\r\n\r\nhalf");
                stream.write_all(torn.as_bytes()).await.ok();
                return;
            }
            Reply::Drips(status) => {
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 100000\r\n\r\n");
                stream.write_all(head.as_bytes()).await.ok();
                while stream.write_all(b"x").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                return;
            }
            Reply::Status(status, headers, body) => {
                let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
                format!(
                    "HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
        };
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<RecordedRequest> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or(0, |(_, value)| value.parse().unwrap());
    while buffer.len() < head_end + 4 + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let rest = buffer.split_off(head_end + 4 + length);
    let body = buffer.split_off(head_end + 4);
    *buffer = rest;
    Some(RecordedRequest {
        line,
        headers,
        body,
    })
}

/// Waits until `condition` holds, and fails after [`culvert_testing::PATIENCE`].
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(
            began.elapsed() < culvert_testing::PATIENCE,
            "never came: {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A batch of these envelopes.
pub(crate) fn batch(class: BatchClass, envelopes: &[&str]) -> Batch {
    let mut open = OpenBatch::default();
    for envelope in envelopes {
        open.push(&"esb_1".into(), envelope.as_bytes());
    }
    Batch::read("ed_1".into(), class, open.finish().stored).unwrap()
}

/// An envelope in the form of the recorder.
pub(crate) fn envelope(id: u32, at: &str) -> String {
    format!(
        r#"{{"event_id":"ev_{id}","event_type":"test","event_timestamp":"{at}","account_id":"ac_1","principal":null,"object":{{}}}}"#
    )
}

/// Two events of the same second.
pub(crate) fn pair() -> [String; 2] {
    [1, 2].map(|id| envelope(id, "2027-01-15T08:00:00.000Z"))
}

/// A target of `ty` with a clock at 2027-01-15T08:00:00Z, allowed to reach this machine.
pub(crate) fn target(
    ty: &TargetType,
    config: &Value,
    change: impl FnOnce(&mut TargetSettings),
) -> Arc<dyn Target> {
    let mut settings = local_settings();
    change(&mut settings);
    let stored = (ty.check)(config, &settings, &OsEntropy).unwrap().stored;
    let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
    let context = TargetContext::new(settings, Arc::new(clock), Arc::new(OsEntropy));
    (ty.open)(&stored, &context, DESTINATION_IDS).unwrap()
}

/// Asserts that each of these changes to a valid configuration is refused with the code 5140, without the value in the
/// message. `null` removes a field.
pub(crate) fn assert_refused(ty: &TargetType, valid: &Value, changes: &[Value]) {
    let settings = local_settings();
    let check = |config: &Value| (ty.check)(config, &settings, &OsEntropy);
    check(valid).unwrap();
    for change in changes {
        let mut config = valid.clone();
        for (name, value) in change.as_object().unwrap() {
            config[name] = value.clone();
        }
        config
            .as_object_mut()
            .unwrap()
            .retain(|_, value| !value.is_null());
        let refusal = check(&config).expect_err(&change.to_string());
        let code = refusal.code.map(culvert_base::Code::number);
        assert_eq!(code, Some(5140), "{change}: {}", refusal.message);
        assert!(!refusal.message.contains("s3cr3t"), "{}", refusal.message);
    }
}

/// The stored form of a configuration, and the form that the API shows.
pub(crate) fn stored_and_shown(ty: &TargetType, config: &Value) -> (Value, Value) {
    let stored = (ty.check)(config, &local_settings(), &OsEntropy)
        .unwrap()
        .stored;
    let shown = (ty.redact)(&stored);
    assert!(!shown.to_string().contains("s3cr3t"), "{shown}");
    (stored, shown)
}

/// The destination of tests.
pub(crate) const DESTINATION_IDS: DestinationIds<'static> = DestinationIds {
    destination: "ed_1",
    account: "ac_1",
};

/// Settings that allow this machine, over plain HTTP.
pub(crate) fn local_settings() -> TargetSettings {
    TargetSettings {
        rules: Rules {
            allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
            allow_plain_http: true,
            deny_ports: Vec::new(),
        },
        public_base: "https://culvert.example".to_owned(),
        node: "node-1".to_owned(),
        ..TargetSettings::default()
    }
}

/// The failure of a whole batch.
pub(crate) fn failure(verdict: Verdict) -> Failure {
    match verdict {
        Verdict::Failed(failure) => failure,
        other => panic!("not failed: {other:?}"),
    }
}

/// The class of each outcome, `None` for accepted events.
pub(crate) fn classes(verdict: Verdict) -> Vec<Option<FailureClass>> {
    match verdict {
        Verdict::Partial(outcomes) => outcomes
            .into_iter()
            .map(|outcome| match outcome {
                Outcome::Delivered => None,
                Outcome::NotTried => panic!("not tried"),
                Outcome::Failed(failure) => Some(failure.class),
            })
            .collect(),
        other => panic!("not partial: {other:?}"),
    }
}

/// A resolver for tests: every name in `.example` except `gone.example` is this machine.
#[derive(Debug)]
pub(crate) struct Named;

impl Resolve for Named {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        Box::pin(async move {
            match host.strip_suffix(".example") {
                Some("gone") | None => Err("the host name does not resolve".into()),
                Some(_) => Ok(vec![[127, 0, 0, 1].into()]),
            }
        })
    }
}

/// A resolver that counts. Every name is this machine.
#[derive(Debug, Default)]
struct Counted(AtomicUsize);

impl Resolve for Counted {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Ok(vec![[127, 0, 0, 1].into()]) })
    }
}

/// Sends batches to a host with a name, and asserts that each gets through and that the name is resolved again after
/// the life of a connection, and not before.
pub(crate) async fn assert_connections_have_a_life(ty: &TargetType, config: &Value) {
    let settings = local_settings();
    let stored = (ty.check)(config, &settings, &OsEntropy).unwrap().stored;
    let names = Arc::new(Counted::default());
    let clock = Arc::new(SystemClock);
    let net = Net::with_resolver(settings.net(), clock, Arc::new(OsEntropy), names.clone());
    let context = TargetContext::with_net(settings, net);
    let target = (ty.open)(&stored, &context, DESTINATION_IDS).unwrap();
    let mut last = 0;
    let mut send = async || {
        last += 1;
        let event = envelope(last, "2027-01-15T08:00:00.000Z");
        let sent = target.send(&batch(BatchClass::Traffic, &[&event])).await;
        assert_eq!(sent, Verdict::Delivered);
        names.0.load(Ordering::SeqCst)
    };
    let first = send().await;
    let second = send().await;
    assert_eq!(second, first, "the connection is used again");
    tokio::time::pause();
    tokio::time::advance(LIFE).await;
    tokio::time::resume();
    let third = send().await;
    assert!(third > second, "the name was not resolved again");
    assert_eq!(send().await, third, "the new connection is used again");
}

impl Named {
    pub(crate) fn net(settings: &TargetSettings) -> Net {
        let clock = Arc::new(SystemClock);
        Net::with_resolver(settings.net(), clock, Arc::new(OsEntropy), Arc::new(Self))
    }

    pub(crate) fn context(settings: &TargetSettings) -> TargetContext {
        TargetContext::with_net(settings.clone(), Self::net(settings))
    }
}

/// Writes a certificate for one name to `cert.pem` and `key.pem` in `folder`.
pub(crate) fn certificate(
    folder: &tempfile::TempDir,
    name: &str,
) -> rcgen::CertifiedKey<rcgen::KeyPair> {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made
}

/// A proxy that terminates TLS for a server without TLS.
pub(crate) struct TlsFront {
    pub(crate) port: u16,
    _task: JoinSet<()>,
}

/// Starts one with a certificate for `name`, which is in `cert.pem` in `folder`.
pub(crate) async fn tls_front(folder: &tempfile::TempDir, name: &str, behind: String) -> TlsFront {
    let made = certificate(folder, name);
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut links = JoinSet::new();
        while let Ok((near, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            links.spawn(async move {
                let mut near = acceptor.accept(near).await?;
                let mut far = TcpStream::connect(behind).await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    TlsFront { port, _task: task }
}
