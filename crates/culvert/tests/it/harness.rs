//! The test harness: a server with a client, a receiver of webhooks, a sample origin, and waiting for conditions.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert::client::{ApiResponse, Client};
use culvert::config::Settings;
use culvert::server::Server;
use culvert_base::{Entropy, OsEntropy};
use culvert_edge::Inherited;
use culvert_testing::PATIENCE;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The database of a server in a test.
#[derive(Clone, Debug)]
pub enum Backend {
    Sqlite,
    /// The URL of a server on which each test creates its own database.
    Postgres(String),
    /// The same, for a test that runs this number of nodes on its database concurrently.
    Cluster(String, u32),
}

impl Backend {
    /// The same, for a test that runs this number of nodes concurrently. A SQLite file has one.
    pub fn for_nodes(self, nodes: u32) -> Self {
        match self {
            Self::Sqlite => Self::Sqlite,
            Self::Postgres(url) | Self::Cluster(url, _) => Self::Cluster(url, nodes),
        }
    }

    /// A new PostgreSQL database, or `None` for SQLite.
    pub async fn database(&self) -> Option<Database> {
        match self {
            Self::Sqlite => None,
            Self::Postgres(url) => Some(Database::make(url).await),
            Self::Cluster(url, nodes) => Some(Database::make_for(url, *nodes).await),
        }
    }
}

/// All available backends. Reports a missing one as ignored.
pub async fn backends() -> Vec<Backend> {
    let mut backends = vec![Backend::Sqlite];
    match postgres_url().await {
        Some(url) => backends.push(Backend::Postgres(url)),
        None => {
            culvert_testing::ignore("PostgreSQL does not answer; set CULVERT_TEST_POSTGRES_URL")
        }
    }
    backends
}

/// PostgreSQL for a test that runs up to `nodes` nodes concurrently, if there is one; reports a missing one as ignored.
pub async fn cluster(nodes: u32) -> Option<Backend> {
    backends()
        .await
        .into_iter()
        .find(|backend| matches!(backend, Backend::Postgres(_)))
        .map(|backend| backend.for_nodes(nodes))
}

async fn postgres_url() -> Option<String> {
    let variables = culvert::config::environment();
    let url = variables.get("CULVERT_TEST_POSTGRES_URL").cloned();
    let url = url.unwrap_or_else(|| "postgres://postgres@127.0.0.1:5432/postgres".into());
    match tokio::time::timeout(Duration::from_secs(3), PgConnection::connect(&url)).await {
        Ok(Ok(connection)) => connection.close().await.is_ok().then_some(url),
        _ => None,
    }
}

/// Connections that all tests together may hold: those that the PostgreSQL server accepts, without the spare ones.
static CONNECTIONS: OnceCell<Semaphore> = OnceCell::const_new();
/// Connections for what tests do beside their nodes. A server with default settings accepts 100.
const SPARE_CONNECTIONS: u32 = 12;
/// Connections of one node.
const NODE_CONNECTIONS: u32 = 14;
/// Nodes of the largest cluster.
const NODES_MAX: u32 = 4;

async fn connections(server: &str) -> &'static Semaphore {
    let count = async || {
        let mut connection = PgConnection::connect(server).await.unwrap();
        let shown = sqlx::query_scalar::<_, String>("SHOW max_connections");
        let accepted: u32 = shown
            .fetch_one(&mut connection)
            .await
            .unwrap()
            .parse()
            .unwrap();
        connection.close().await.unwrap();
        let count = accepted.saturating_sub(SPARE_CONNECTIONS);
        Semaphore::new(count.max(NODES_MAX * NODE_CONNECTIONS) as usize)
    };
    CONNECTIONS.get_or_init(count).await
}

/// A PostgreSQL database for one test. [`Database::remove`] drops it. If the test fails, it remains for inspection.
#[derive(Debug)]
pub struct Database {
    server: String,
    name: String,
    pub url: String,
    _connections: SemaphorePermit<'static>,
}

impl Database {
    /// A database for one node. Waits until the server has connections for it.
    pub async fn make(server: &str) -> Self {
        Self::make_for(server, 1).await
    }

    async fn make_for(server: &str, nodes: u32) -> Self {
        assert!(nodes <= NODES_MAX, "raise `NODES_MAX`");
        let connections = connections(server).await;
        let permit = connections
            .acquire_many(nodes * NODE_CONNECTIONS)
            .await
            .unwrap();
        let entropy: &dyn Entropy = &OsEntropy;
        let name = format!(
            "culvert_it_{}",
            entropy.text(b"abcdefghijklmnopqrstuvwxyz", 12)
        );
        execute(server, format!("CREATE DATABASE {name}")).await;
        let mut url = url::Url::parse(server).unwrap();
        url.set_path(&name);
        Self {
            server: server.to_owned(),
            name,
            url: url.into(),
            _connections: permit,
        }
    }

    pub async fn remove(self) {
        execute(
            &self.server,
            format!("DROP DATABASE {} WITH (FORCE)", self.name),
        )
        .await;
    }
}

async fn execute(url: &str, statement: String) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    // The name in the statement was generated here.
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// A running server, with a client for its admin, and its data directory.
pub struct Harness {
    pub client: Client,
    pub token: String,
    pub api: String,
    pub api_tls: Option<SocketAddr>,
    pub http: SocketAddr,
    pub https: SocketAddr,
    pub agents: SocketAddr,
    pub ssh: SocketAddr,
    pub nodes: Option<SocketAddr>,
    pub metrics: SocketAddr,
    pub settings: Settings,
    _folder: tempfile::TempDir,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
    database: Option<Database>,
}

impl Harness {
    /// Starts a server with an empty store.
    pub async fn start(backend: &Backend) -> Self {
        Self::start_with(backend, |_| {}).await
    }

    /// Like [`Harness::start`], with changed settings.
    pub async fn start_with(backend: &Backend, change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_on(backend, Inherited::default(), change).await
    }

    /// Like [`Harness::start`], with one TCP address, whose port no other process uses.
    pub async fn start_with_port() -> (Self, u16) {
        Self::start_with_port_on(&Backend::Sqlite).await
    }

    /// Like [`Harness::start_with_port`], on a backend.
    pub async fn start_with_port_on(backend: &Backend) -> (Self, u16) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let sockets = Inherited::new(vec![listener]);
        let culvert = Self::start_on(backend, sockets, |settings| {
            settings.edge.tcp_ports = format!("{port}-{port}");
        });
        (culvert.await, port)
    }

    /// Like [`Harness::start_with`], with inherited sockets.
    pub async fn start_on(
        backend: &Backend,
        sockets: Inherited,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // In a box, because the future keeps it.
        let mut settings = Box::new(Settings {
            data_dir: folder.path().join("data"),
            ..Settings::default()
        });
        settings.api.addr = "127.0.0.1:0".into();
        settings.edge.http_addr = "127.0.0.1:0".into();
        settings.edge.https_addr = "127.0.0.1:0".into();
        // Public ports as behind a load balancer, so that URLs are the same in every run.
        settings.edge.public_http_port = 80;
        settings.edge.public_https_port = 443;
        settings.agents.addr = "127.0.0.1:0".into();
        settings.agents.ssh_addr = "127.0.0.1:0".into();
        settings.nodes.addr = "127.0.0.1:0".into();
        settings.metrics.addr = "127.0.0.1:0".into();
        settings.destinations.allow_networks = vec!["127.0.0.1/32".into()];
        settings.destinations.allow_plain_http = true;
        // Their events would be among those that tests compare.
        settings.alerts.defaults = false;
        settings.log.level = "warn".into();
        let database = backend.database().await;
        if let Some(database) = &database {
            settings.database_url = database.url.clone();
        }
        change(&mut settings);
        culvert::telemetry::start(&settings.log).unwrap();

        let server = Box::pin(Server::start_on((*settings).clone(), sockets))
            .await
            .unwrap();
        let token = match server.first_token() {
            Some(token) => token.reveal().to_owned(),
            None => settings.bootstrap.api_key.clone(),
        };
        let api = server.api_url();
        let api_tls = server.api_tls_addr();
        let (http, https) = (server.http_addr().unwrap(), server.https_addr().unwrap());
        let agents = server.agents_addr().unwrap();
        let ssh = server.ssh_addr().unwrap();
        let nodes = server.nodes_addr();
        let metrics = server.metrics_addr().unwrap();
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let stop = cancel.clone();
        tasks.spawn(async move { server.run(stop).await.unwrap() });
        let client = Client::new(&api, token.clone()).unwrap();
        Self {
            client,
            token,
            api,
            api_tls,
            http,
            https,
            agents,
            ssh,
            nodes,
            metrics,
            settings: *settings,
            _folder: folder,
            cancel,
            tasks,
            database,
        }
    }

    /// A client with another token.
    pub fn client_with(&self, token: &str) -> Client {
        Client::new(&self.api, token.to_owned()).unwrap()
    }

    /// Creates an object. An error response fails the test with its message.
    pub async fn create(&self, collection: &str, body: Value) -> Value {
        self.client
            .expect(Method::POST, &format!("/{collection}"), Some(&body))
            .await
            .unwrap()
    }

    /// Runs `culvert events replay` to a destination. Returns exit code, standard output and standard error.
    pub fn replay(&self, destination: &Value, more: &[&str]) -> (i32, String, String) {
        let output = binary()
            .env("CULVERT_API_URL", &self.api)
            .env("CULVERT_API_KEY", &self.token)
            .args(["events", "replay", "--wait", "--destination"])
            .arg(destination.as_str().unwrap())
            .args(more)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().unwrap();
        (code, text(output.stdout), text(output.stderr))
    }

    /// Sends any request to the API.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> ApiResponse {
        self.client.call(method, path, body.as_ref()).await.unwrap()
    }

    /// Creates an http endpoint for an origin, and waits until it is online at the edge.
    pub async fn endpoint(&self, name: &str, origin: SocketAddr) -> Value {
        let host = format!("{name}.culvert.localhost");
        let body =
            json!({"url": format!("http://{host}"), "upstream_url": format!("http://{origin}")});
        let endpoint = self.create("endpoints", body).await;
        eventually("the endpoint is live", async || {
            let answer = self.get(&host, "/live").await;
            answer.status != 404
        })
        .await;
        endpoint
    }

    /// Sends one plain HTTP request through the edge.
    pub async fn get(&self, host: &str, target: &str) -> RawAnswer {
        let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        raw(self.http, request.as_bytes()).await
    }

    /// Stops the server gracefully and deletes its data.
    pub async fn stop(mut self) {
        self.cancel.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        if let Some(database) = self.database {
            database.remove().await;
        }
    }
}

/// The response on a raw connection.
#[derive(Debug)]
pub struct RawAnswer {
    pub status: u16,
    pub text: String,
}

/// Sends bytes and reads until the peer closes the connection, for at most [`PATIENCE`].
pub async fn raw(address: SocketAddr, bytes: &[u8]) -> RawAnswer {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let text = tokio::time::timeout(PATIENCE, exchange)
        .await
        .expect("the connection closes");
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0);
    RawAnswer { status, text }
}

/// Waits until a condition holds. Fails after [`PATIENCE`] with its description.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A request that a receiver got.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Received {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// An HTTP server that records requests and responds as configured. Its body is the header `x-echo` of the request, if there
/// is one.
pub struct Receiver {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    answer: Arc<Mutex<Answers>>,
    _tasks: JoinSet<()>,
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let answer = Arc::new(Mutex::new(Answers {
            status: StatusCode::OK,
            refused: None,
        }));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, received.clone(), answer.clone()));
        Self {
            address,
            received,
            answer,
            _tasks: tasks,
        }
    }

    /// Responds with this status from now on.
    pub fn answer_with(&self, status: StatusCode) {
        self.answer.lock().unwrap().status = status;
    }

    /// Responds with 403 to requests with this header from now on.
    pub fn refuse(&self, name: &'static str, value: &'static str) {
        self.answer.lock().unwrap().refused = Some((name, value));
    }

    /// All requests so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// All events so far, with batches split.
    pub fn events(&self) -> Vec<Value> {
        self.received()
            .iter()
            .flat_map(|request| match request.json() {
                Value::Array(batch) => batch,
                one => vec![one],
            })
            .collect()
    }

    /// Waits for this number of events of a kind.
    pub async fn wait_for(&self, kind: &str, count: usize) -> Vec<Value> {
        let found = || -> Vec<Value> {
            self.events()
                .into_iter()
                .filter(|event| event["event_type"] == kind)
                .collect()
        };
        eventually(&format!("{count} events {kind}"), async || {
            found().len() >= count
        })
        .await;
        found()
    }
}

/// The configured responses of a receiver.
struct Answers {
    status: StatusCode,
    refused: Option<(&'static str, &'static str)>,
}

impl Answers {
    fn given(&self, headers: &HeaderMap) -> StatusCode {
        match self.refused {
            Some((name, value)) if headers.get(name).is_some_and(|given| given == value) => {
                StatusCode::FORBIDDEN
            }
            _ => self.status,
        }
    }
}

async fn accept(
    listener: TcpListener,
    received: Arc<Mutex<Vec<Received>>>,
    answer: Arc<Mutex<Answers>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (received, answer) = (received.clone(), answer.clone());
        connections.spawn(async move {
            let service =
                service_fn(move |request| take(request, received.clone(), answer.clone()));
            let served = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            drop(served.await);
        });
    }
}

async fn take(
    request: Request<Incoming>,
    received: Arc<Mutex<Vec<Received>>>,
    answer: Arc<Mutex<Answers>>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let status = answer.lock().unwrap().given(&head.headers);
    let echo = head.headers.get("x-echo");
    let echo = echo.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    let text = echo.unwrap_or_else(|| Bytes::from_static(b"received"));
    received.lock().unwrap().push(Received {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: head.headers,
        body,
    });
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    Ok(response)
}

/// The binary under test.
pub fn binary() -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_culvert"));
    // A developer's own settings must not affect the tests.
    for name in culvert::config::environment()
        .into_keys()
        .filter(|name| name.starts_with("CULVERT_"))
    {
        command.env_remove(name);
    }
    // Nor may what `culvert login` saved for them.
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    command
}
