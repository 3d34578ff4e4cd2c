//! A real API on an unused port, and clients that send exact bytes.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;

use culvert_base::net::HostName;
use culvert_base::{BoxFuture, OsEntropy, Secret, SystemClock};
use culvert_control::{Pepper, Seal};
use culvert_delivery::Delivery;
use culvert_store::{Queue, Store, StoreUrl};
use culvert_target::TargetSettings;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Harness {
    pub(super) address: SocketAddr,
    pub(super) token: String,
    pub(super) stop: CancellationToken,
    pub(super) health: Arc<Fragile>,
    pub(super) meters: Arc<Meters>,
    pub(super) store: Store,
    pub(super) api: Arc<Api>,
    serving: JoinSet<()>,
    _delivering: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Harness {
    pub(super) async fn start(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (control, token, delivery, store) = control(folder.path()).await;
        let health = Arc::new(Fragile::default());
        let compiling = control.clone();
        let api = Api::new(
            control,
            health.clone(),
            settings,
            Arc::new(SystemClock),
            Arc::new(OsEntropy),
        )
        .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let meters = api.meters().clone();
        let mut serving = JoinSet::new();
        serving.spawn(api.clone().serve(listener, stop.clone()));
        let mut delivering = JoinSet::new();
        delivering.spawn(delivery.run(CancellationToken::new()));
        delivering.spawn(compiling.run(CancellationToken::new()));
        Self {
            address,
            token,
            stop,
            health,
            meters,
            store,
            api,
            serving,
            _delivering: delivering,
            _folder: folder,
        }
    }

    /// The id of the key whose token the harness uses.
    pub(super) async fn key_id(&self) -> String {
        let mut wire = Wire::to(self).await;
        let answer = wire.ask("GET", "/self", Some(&self.token), &[], "").await;
        answer.body["api_key"]["id"].as_str().unwrap().to_owned()
    }

    /// Restricts the API to these addresses.
    pub(super) async fn restrict_api(&self, cidr: &str) {
        let mut wire = Wire::to(self).await;
        let token = Some(self.token.as_str());
        let mut made = async |path: &str, body: Value| {
            let answer = wire.ask("POST", path, token, &[], &body.to_string()).await;
            assert_eq!(answer.status, 201, "{answer:?}");
            answer.body["id"].clone()
        };
        let policy = made("/ip_policies", json!({})).await;
        let rule = json!({"ip_policy_id": policy, "cidr": cidr, "action": "allow"});
        made("/ip_policy_rules", rule).await;
        let body = json!({"type": "api", "ip_policy_ids": [policy], "enforced": true});
        // The restriction blocks this caller too.
        made("/ip_restrictions?force=true", body).await;
        until(async || {
            let answer = wire.ask("GET", "/api_keys", token, &[], "").await;
            (answer.status == 403).then_some(())
        })
        .await;
    }

    /// Serves the API at another address too.
    pub(super) async fn listen_again(&mut self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = self.api.clone().serve(listener, self.stop.clone());
        self.serving.spawn(serving);
        address
    }

    /// Waits until the server has stopped.
    pub(super) async fn stopped(&mut self) {
        let ended = tokio::time::timeout(PATIENCE, self.serving.join_next()).await;
        ended.unwrap().unwrap().unwrap();
    }
}

/// A health source whose state a test can change.
#[derive(Debug, Default)]
pub(super) struct Fragile(Mutex<Option<String>>);

impl Fragile {
    pub(super) fn break_it(&self, why: &str) {
        *self.0.lock().unwrap() = Some(why.to_owned());
    }
}

impl Health for Fragile {
    fn ready(&self, serves: Serves) -> BoxFuture<'_, Vec<(&'static str, Result<(), String>)>> {
        let why = self.0.lock().unwrap().clone();
        let part = match serves {
            Serves::All => ("store", why.map_or(Ok(()), Err)),
            Serves::Edge => ("edge", Ok(())),
            Serves::Agents => ("agents", Err("not a role of this node".to_owned())),
        };
        Box::pin(std::future::ready(vec![part]))
    }
}

/// Repeats a request until it returns a value or the deadline passes.
pub(super) async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap()
}

/// An HTTP/1.1 connection.
pub(super) struct Wire(BufReader<TcpStream>);

impl Wire {
    pub(super) async fn to(harness: &Harness) -> Self {
        Self::at(harness.address).await
    }

    pub(super) async fn at(address: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    pub(super) async fn send(&mut self, text: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(text.as_ref()).await.unwrap();
    }

    /// Sends data. Returns whether it succeeded, because the peer may have closed the connection.
    pub(super) async fn push(&mut self, text: impl AsRef<[u8]>) -> bool {
        self.0.get_mut().write_all(text.as_ref()).await.is_ok()
    }

    pub(super) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        token: Option<&str>,
        headers: &[&str],
        body: &str,
    ) -> TestResponse {
        let mut text = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|header| header.starts_with("Host:")) {
            text.push_str("Host: api.test\r\n");
        }
        if let Some(token) = token {
            text.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        for header in headers {
            text.push_str(&format!("{header}\r\n"));
        }
        if !body.is_empty() {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        self.send(format!("{text}\r\n{body}")).await;
        if method == "HEAD" {
            let reading = self.read_head();
            return tokio::time::timeout(PATIENCE, reading)
                .await
                .unwrap()
                .unwrap();
        }
        let answer = self.answer().await;
        if answer.status != 100 {
            return answer;
        }
        self.answer().await
    }

    /// Sends a request and reads only the head of its response.
    pub(super) async fn open(
        &mut self,
        method: &str,
        path: &str,
        token: Option<&str>,
    ) -> TestResponse {
        let token = token.unwrap_or_default();
        let header = format!("Authorization: Bearer {token}");
        self.open_with(method, path, &header).await
    }

    /// The same with another header.
    pub(super) async fn open_with(
        &mut self,
        method: &str,
        path: &str,
        header: &str,
    ) -> TestResponse {
        let text = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n");
        self.send(text).await;
        tokio::time::timeout(PATIENCE, self.read_head())
            .await
            .unwrap()
            .unwrap()
    }

    /// Reads lines until one begins with `start`.
    pub(super) async fn until_line(&mut self, start: &str) -> String {
        loop {
            let line = self.line().await;
            assert!(!line.is_empty(), "the connection was closed");
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Reads until the peer closes the connection.
    pub(super) async fn until_closed(&mut self) {
        let mut rest = Vec::new();
        let reading = self.0.read_to_end(&mut rest);
        tokio::time::timeout(PATIENCE, reading)
            .await
            .unwrap()
            .unwrap();
    }

    /// The data until the end of a chunked response or of the connection.
    pub(super) async fn rest(&mut self) -> String {
        let mut rest = String::new();
        loop {
            let line = self.line().await;
            if line.is_empty() || line == "0\r\n" {
                return rest;
            }
            rest += &line;
        }
    }

    pub(super) async fn line(&mut self) -> String {
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, self.0.read_line(&mut line))
            .await
            .unwrap()
            .unwrap();
        line
    }

    /// Reads a response.
    pub(super) async fn answer(&mut self) -> TestResponse {
        self.try_answer()
            .await
            .expect("the connection was closed without a response")
    }

    /// Reads a response; `None` if the connection is closed.
    pub(super) async fn try_answer(&mut self) -> Option<TestResponse> {
        tokio::time::timeout(PATIENCE, self.read_answer())
            .await
            .unwrap()
    }

    async fn read_answer(&mut self) -> Option<TestResponse> {
        let mut answer = self.read_head().await?;
        let length: usize = answer
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        if length > 0 {
            let mut body = vec![0; length];
            self.0.read_exact(&mut body).await.ok()?;
            answer.body = serde_json::from_slice(&body).unwrap();
        }
        Some(answer)
    }

    async fn read_head(&mut self) -> Option<TestResponse> {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            head.push(line.trim_end().to_owned());
        }
        let status = head.first()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, String)> = head
            .iter()
            .skip(1)
            .map(|line| {
                let (name, value) = line.split_once(": ").unwrap_or((line, ""));
                (name.to_owned(), value.to_owned())
            })
            .collect();
        Some(TestResponse {
            status,
            headers,
            body: Value::Null,
        })
    }

    /// Whether the peer closes the connection in time, without further data.
    pub(super) async fn closed(&mut self) -> bool {
        let mut rest = Vec::new();
        tokio::time::timeout(PATIENCE, self.0.read_to_end(&mut rest))
            .await
            .is_ok_and(|_| rest.is_empty())
    }
}

#[derive(Debug)]
pub(super) struct TestResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Value,
}

impl TestResponse {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(other, _)| other == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is there twice");
        value
    }

    pub(super) fn code(&self) -> Option<u16> {
        let code = self.body.get("error_code")?.as_str().unwrap();
        Some(code.strip_prefix("ERR_NGROK_").unwrap().parse().unwrap())
    }

    /// Checks the properties of every response (contract 1.4 and 1.14).
    pub(super) fn check_shape(&self, about: &str) {
        let operation = self.header("ngrok-operation-id").expect(about);
        assert!(
            operation.starts_with("op_") && operation.len() == 30,
            "{about}"
        );
        if self.status < 400 {
            return;
        }
        assert_eq!(
            self.header("content-type"),
            Some("application/json"),
            "{about}"
        );
        assert_eq!(self.header("cache-control"), Some("no-store"), "{about}");
        let bearer = (self.status == 401).then_some("Bearer");
        assert_eq!(self.header("www-authenticate"), bearer, "{about}");
        assert_eq!(
            self.header("allow").is_some(),
            self.status == 405,
            "{about}"
        );
        if self.body.is_null() {
            return;
        }
        assert_eq!(self.body["status_code"], self.status, "{about}");
        assert!(self.body["msg"].is_string(), "{about}");
        assert_eq!(self.body["details"]["operation_id"], operation, "{about}");
        let details = self.body["details"].as_object().unwrap();
        assert!(details.values().all(Value::is_string), "{about}");
    }
}

/// An HTTP/2 connection without TLS.
pub(super) struct Http2(
    hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    #[expect(dead_code, reason = "drives the connection until it is dropped")] JoinSet<()>,
);

impl Http2 {
    pub(super) async fn to(harness: &Harness) -> Self {
        Self::with_window(harness, 64 << 10).await
    }

    /// A connection whose server may send this much of each body before the client takes it.
    pub(super) async fn with_window(harness: &Harness, window: u32) -> Self {
        let socket = TcpStream::connect(harness.address).await.unwrap();
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window);
        let (sender, connection) = builder.handshake(TokioIo::new(socket)).await.unwrap();
        let mut driving = JoinSet::new();
        driving.spawn(async move { connection.await.unwrap_or(()) });
        Self(sender, driving)
    }

    pub(super) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &'static str,
    ) -> (u16, Value) {
        let response = self.begin(method, path, token, body).await;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (
            status,
            serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        )
    }

    /// The head of the response to a request, before its body.
    pub(super) async fn begin(
        &mut self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &'static str,
    ) -> Response<Incoming> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://api.test{path}"));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::from(body)).unwrap();
        let response = self.0.send_request(request).await.unwrap();
        assert!(response.headers().contains_key("ngrok-operation-id"));
        response
    }
}

/// Base64 with padding, for `Basic` credentials.
pub(super) fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    text.as_bytes()
        .chunks(3)
        .flat_map(|chunk| {
            let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
            let bits = at(0) << 16 | at(1) << 8 | at(2);
            (0..4).map(move |digit| {
                if digit > chunk.len() {
                    '='
                } else {
                    char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize])
                }
            })
        })
        .collect()
}

/// A real control with a new store in `folder`, and the tasks that deliver its events.
async fn control(folder: &Path) -> (Arc<Control>, String, Arc<Delivery>, Store) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let entropy: Arc<dyn Entropy> = Arc::new(OsEntropy);
    let url = StoreUrl::Sqlite(folder.join("state.db"));
    let store = Store::open(&url, clock.clone(), culvert_control::texts())
        .await
        .unwrap();
    let queue = Queue::open(&url, clock.clone()).await.unwrap();
    let delivery = Delivery::new(
        culvert_delivery::Settings::default(),
        queue.clone(),
        store.clone(),
        clock.clone(),
        entropy.clone(),
    );
    let master = Secret::new("a master key of a test".to_owned());
    let keys = culvert_control::LoginKeys::new([culvert_control::login_key(&master)]);
    let (logins, _) = culvert_control::Logins::new(keys, Default::default());
    let statistics =
        culvert_control::Statistics::new(queue, "a node".to_owned(), Default::default());
    let control = Control::open(culvert_control::Parts {
        ids: Arc::default(),
        store: store.clone(),
        clock,
        entropy,
        seal: Seal::new(&master),
        pepper: Pepper::new(&master),
        settings: culvert_control::Settings {
            own_names: Vec::new(),
            kubernetes_ingress: String::new(),
            edge_domain: HostName::parse("culvert.localhost").unwrap(),
            reserved_names: [
                "admin", "api", "auth", "connect", "console", "login", "metrics",
            ]
            .map(str::to_owned)
            .to_vec(),
            public_ports: Default::default(),
            tcp_ports: 20_000..=20_099,
            allow_private_upstreams: true,
            allow_unix_upstreams: culvert_base::net::AllowedPaths::default(),
            allow_file_upstreams: culvert_base::net::AllowedPaths::default(),
            has_tls_before_edge: false,
            domains_of_owner: false,
            allow_public_calls: false,
            strict_rights: false,
            targets: Arc::new(culvert_control::Targets {
                types: culvert_destinations::TYPES,
                settings: TargetSettings::default(),
            }),
            base_url: "http://127.0.0.1:8420".to_owned(),
            token_form: Default::default(),
            leaked: Default::default(),
            agent_minimum: None,
        },
        delivery: delivery.clone(),
        target_types: culvert_destinations::TYPES,
        edge: None,
        policies: culvert_control::PolicyRuntime {
            logins,
            ip_data: Default::default(),
            on_expression_error: Default::default(),
        },
        agents: None,
        nodes: None,
        console_sign_in: None,
        leak_partner: None,
        certificates: None,
        checks: None,
        statistics,
    })
    .await
    .unwrap();
    let token = control.bootstrap(None).await.unwrap().unwrap();
    (control, token.reveal().to_owned(), delivery, store)
}
