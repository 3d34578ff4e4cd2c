//! A start while the database is away: the edge serves from the copy of its configuration, refuses what it cannot decide,
//! and hands its listeners over when the database is back.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use culvert::client::Client;
use culvert::config::Settings;
use culvert::keys;
use culvert::server::{Server, Standby};
use culvert_base::{Clock, Entropy, OsEntropy, SystemClock};
use culvert_edge::Inherited;
use culvert_installation::edge_copy::{CopyFacts, EdgeCopy};
use culvert_testing::Postgres;
use http::Method;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::events_arrive::subscribe;
use crate::harness::{RawAnswer, Receiver, binary, eventually, raw};

const SECRET: &str = "hush-hush-of-the-vault";

/// A node on its own loopback address, with the same ports at each start.
struct Node {
    settings: Settings,
    _folder: tempfile::TempDir,
}

/// A node that runs.
struct Running {
    client: Client,
    server: JoinSet<()>,
    cancel: CancellationToken,
}

impl Node {
    fn new(database_url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let entropy: &dyn Entropy = &OsEntropy;
        let [a, b, c]: [u8; 3] = entropy.bytes();
        let ip = IpAddr::from([127, a | 1, b, c | 1]);
        // The address is its own, and the system chooses none of these ports.
        let tcp = SocketAddr::new(ip, 20_000);
        let [http, https, api, metrics] =
            [1, 2, 3, 4].map(|n| SocketAddr::new(ip, 20_000 + n).to_string());
        let mut settings = Settings {
            data_dir: folder.path().join("data"),
            database_url: database_url.to_owned(),
            ..Settings::default()
        };
        settings.edge.http_addr = http;
        settings.edge.https_addr = https;
        settings.edge.public_http_port = 80;
        settings.edge.public_https_port = 443;
        settings.edge.tcp_ports = format!("{0}-{0}", tcp.port());
        settings.api.addr = api;
        settings.metrics.addr = metrics;
        settings.agents.addr = format!("{ip}:0");
        settings.agents.ssh_addr = String::new();
        settings.nodes.addr = format!("{ip}:0");
        settings.destinations.allow_networks = vec!["127.0.0.0/8".into()];
        settings.destinations.allow_plain_http = true;
        let made = binary().args(["admin", "generate-token"]).output().unwrap();
        settings.bootstrap.api_key = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        settings.log.level = "warn".into();
        Self {
            settings,
            _folder: folder,
        }
    }

    fn http(&self) -> SocketAddr {
        self.settings.edge.http_addr.parse().unwrap()
    }

    fn api(&self) -> SocketAddr {
        self.settings.api.addr.parse().unwrap()
    }

    fn tcp(&self) -> SocketAddr {
        let (port, _) = self.settings.tcp_ports().unwrap();
        SocketAddr::new(self.http().ip(), port)
    }

    fn copy(&self) -> EdgeCopy {
        let master = keys::load(&self.settings.key_file()).unwrap().unwrap();
        EdgeCopy::of(&self.settings, &master)
    }

    /// Starts it, with what serves meanwhile.
    fn begin(&self, standby: &Standby) -> JoinSet<Running> {
        let (settings, standby) = (self.settings.clone(), standby.clone());
        culvert::telemetry::start(&settings.log).unwrap();
        let mut starting = JoinSet::new();
        starting.spawn(async move {
            let token = settings.bootstrap.api_key.clone();
            let start = Server::start_beside(settings, Inherited::default(), &standby);
            let server = Box::pin(start).await.unwrap();
            let client = Client::new(&server.api_url(), token).unwrap();
            let cancel = CancellationToken::new();
            let stop = cancel.clone();
            let mut running = JoinSet::new();
            running.spawn(async move { server.run(stop).await.unwrap() });
            Running {
                client,
                server: running,
                cancel,
            }
        });
        starting
    }

    async fn start(&self) -> Running {
        let mut starting = self.begin(&Standby::default());
        starting.join_next().await.unwrap().unwrap()
    }

    async fn get(&self, host: &str, path: &str) -> RawAnswer {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        raw(self.http(), request.as_bytes()).await
    }

    /// Status and body of a health check.
    async fn ready(&self, query: &str) -> (u16, Value) {
        let request =
            format!("GET /readyz{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = raw(self.api(), request.as_bytes()).await;
        let (_, body) = answer.text.split_once("\r\n\r\n").unwrap();
        (answer.status, serde_json::from_str(body).unwrap())
    }

    /// A request over TLS, under the installation's authority. `None` if there is no connection.
    async fn get_over_tls(&self, host: &str, path: &str) -> Option<RawAnswer> {
        let mut roots = rustls::RootCertStore::empty();
        let pem = self.settings.data_dir.join("ca.pem");
        roots
            .add(CertificateDer::from_pem_file(pem).unwrap())
            .unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(&self.settings.edge.https_addr)
            .await
            .ok()?;
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, stream).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        // The peer may close without a TLS alert.
        drop(stream.read_to_end(&mut answer).await);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split(' ').nth(1)?.parse().ok()?;
        Some(RawAnswer { status, text })
    }
}

impl Running {
    async fn create(&self, collection: &str, body: Value) -> Value {
        let path = format!("/{collection}");
        let made = self.client.expect(Method::POST, &path, Some(&body)).await;
        made.unwrap()
    }

    async fn endpoint(&self, url: &str, origin: &Receiver, policy: Value) -> Value {
        let policy = match policy {
            Value::Null => String::new(),
            policy => policy.to_string(),
        };
        let scheme = if url.starts_with("tcp") {
            "tcp"
        } else {
            "http"
        };
        let body = json!({
            "url": url, "upstream_url": format!("{scheme}://{}", origin.address), "traffic_policy": policy,
        });
        self.create("endpoints", body).await
    }

    /// Stops it, which writes the last copy.
    async fn stop(mut self) {
        self.cancel.cancel();
        while let Some(ended) = self.server.join_next().await {
            ended.unwrap();
        }
    }
}

fn stop(postgres: &Postgres) {
    assert!(tokio::task::block_in_place(|| postgres.stop()));
}

fn resume(postgres: &Postgres) {
    tokio::task::block_in_place(|| postgres.resume());
}

fn action(name: &str, config: Value) -> Value {
    json!({"on_http_request": [{"actions": [{"type": name, "config": config}]}]})
}

/// What each endpoint responded while the database was there.
async fn statuses(node: &Node) -> HashMap<&'static str, u16> {
    let mut found = HashMap::new();
    for name in ["open", "denied", "allowed", "barred", "limited", "gone"] {
        let host = format!("{name}.culvert.localhost");
        found.insert(name, node.get(&host, "/").await.status);
    }
    found
}

async fn make_endpoints(culvert: &Running, origin: &Receiver) {
    let vault = culvert.create("vaults", json!({"name": "v"})).await;
    let secret = json!({"vault_id": vault["id"], "name": "s", "value": SECRET});
    culvert.create("vault_secrets", secret).await;
    let policy = culvert.create("ip_policies", json!({})).await;
    let rule = json!({"ip_policy_id": policy["id"], "action": "allow", "cidr": "127.0.0.0/8"});
    culvert.create("ip_policy_rules", rule).await;
    let none = culvert.create("ip_policies", json!({})).await;
    let rule = json!({"ip_policy_id": none["id"], "action": "deny", "cidr": "127.0.0.0/8"});
    culvert.create("ip_policy_rules", rule).await;
    let header = json!({"headers": {"x-secret": "${secrets.get('v', 's')}"}});
    let provider = json!({
        "issuer_url": "https://issuer.example", "client_id": "a", "client_secret": "b",
    });
    let cluster = json!({
        "capacity": 1000, "rate": "1h", "bucket_key": ["req.url.path"], "scope": "cluster",
    });
    let of_node = json!({"capacity": 1000, "rate": "1h", "bucket_key": ["req.url.path"]});
    for (name, policy) in [
        ("open", action("add-headers", header)),
        ("denied", action("deny", json!({"status_code": 418}))),
        (
            "allowed",
            action("restrict-ips", json!({"ip_policies": [policy["id"]]})),
        ),
        (
            "barred",
            action("restrict-ips", json!({"ip_policies": [none["id"]]})),
        ),
        ("limited", action("rate-limit", of_node)),
        ("shared", action("rate-limit", cluster)),
        ("gone", Value::Null),
    ] {
        let url = format!("http://{name}.culvert.localhost");
        let made = culvert.endpoint(&url, origin, policy).await;
        if name == "gone" {
            let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
            let gone = culvert.client.call(Method::DELETE, &path, None).await;
            assert_eq!(gone.unwrap().status, 204);
        }
    }
    for (name, policy) in [
        ("safe", Value::Null),
        ("visitors", action("openid-connect", provider)),
    ] {
        let url = format!("https://{name}.culvert.localhost");
        culvert.endpoint(&url, origin, policy).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_the_database_serves_as_before_until_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let Some(postgres) = tokio::task::block_in_place(|| Postgres::start(folder.path())) else {
        return;
    };
    let node = Node::new(&postgres.url());
    let culvert = node.start().await;
    let (origin, hook) = (Receiver::start().await, Receiver::start().await);
    let losses = json!([{"type": "events_dropped.v0"}]);
    subscribe(&culvert.client, &hook, losses).await;
    make_endpoints(&culvert, &origin).await;
    culvert.endpoint("tcp://", &origin, Value::Null).await;
    let before = statuses(&node).await;
    let expected = [
        ("open", 200),
        ("denied", 418),
        ("allowed", 200),
        ("barred", 403),
        ("limited", 200),
        ("gone", 404),
    ];
    assert_eq!(before, expected.into());
    culvert.stop().await;
    stop(&postgres);

    let standby = Standby::default();
    let mut starting = node.begin(&standby);
    standby.serves().await;
    assert_eq!(statuses(&node).await, before);
    let told = origin.received();
    let told = told
        .iter()
        .rev()
        .find(|one| one.headers.contains_key("x-secret"));
    assert_eq!(told.unwrap().headers["x-secret"], SECRET);
    let safe = node.get_over_tls("safe.culvert.localhost", "/").await;
    assert_eq!(safe.unwrap().status, 200);
    let over_tcp = raw(
        node.tcp(),
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    );
    assert_eq!(over_tcp.await.status, 200);
    let mut refused = vec![node.get("shared.culvert.localhost", "/").await];
    for path in [
        "/",
        "/culvert/login",
        "/culvert/logout",
        "/oauth2/callback?state=x",
    ] {
        let answer = node.get_over_tls("visitors.culvert.localhost", path).await;
        refused.push(answer.unwrap());
    }
    for answer in refused {
        assert_eq!(answer.status, 503, "{}", answer.text);
        assert!(answer.text.contains("ERR_NGROK_3625"), "{}", answer.text);
        assert!(answer.text.contains("retry-after: "), "{}", answer.text);
    }
    let (status, body) = node.ready("").await;
    assert_eq!(status, 503);
    let why = body["parts"]["store"].as_str().unwrap();
    assert!(why.contains("copy of"), "{body}");
    assert_eq!(node.ready("?role=edge").await.0, 200);
    assert_eq!(node.ready("?role=agents").await.0, 503);
    let key = &node.settings.bootstrap.api_key;
    let request = format!(
        "GET /endpoints HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
    );
    for request in [request.as_str(), "GET /console/ HTTP/1.0\r\n\r\n"] {
        assert_eq!(raw(node.api(), request.as_bytes()).await.status, 503);
    }
    let metrics = node.settings.metrics.addr.parse().unwrap();
    let page = raw(
        metrics,
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    );
    assert!(page.await.text.contains("culvert_edge_copy_age_seconds "));

    // Connections are accepted all the time while the server takes over.
    let (is_over, n_served) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let mut probes = JoinSet::new();
    for at in [node.http(), node.http(), node.tcp()] {
        let (is_over, n_served) = (is_over.clone(), n_served.clone());
        probes.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let request =
                    b"GET / HTTP/1.1\r\nhost: open.culvert.localhost\r\nconnection: close\r\n\r\n";
                assert_eq!(raw(at, request).await.status, 200);
                n_served.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    resume(&postgres);
    let culvert = starting.join_next().await.unwrap().unwrap();
    culvert
        .endpoint("http://new.culvert.localhost", &origin, Value::Null)
        .await;
    eventually("a change is in force", async || {
        node.get("new.culvert.localhost", "/").await.status == 200
    })
    .await;
    eventually("the server is ready", async || {
        node.ready("").await.0 == 200
    })
    .await;
    let served = n_served.load(Ordering::Relaxed);
    eventually("requests are served", async || {
        n_served.load(Ordering::Relaxed) > served + 20
    })
    .await;
    is_over.store(true, Ordering::Relaxed);
    while let Some(probe) = probes.join_next().await {
        probe.unwrap();
    }
    println!(
        "{} requests during the start, 0 failed",
        n_served.load(Ordering::Relaxed)
    );
    let events = hook.wait_for("events_dropped.v0", 1).await;
    let object = &events[0]["object"];
    assert_eq!(object["reason"], "database_away");
    assert!(object["deliveries"].as_u64().unwrap() > 10, "{object}");
    // Sign-ins are redirected to the provider again, or fail to reach it.
    let answer = node
        .get_over_tls("visitors.culvert.localhost", "/")
        .await
        .unwrap();
    assert!(!answer.text.contains("ERR_NGROK_3625"), "{}", answer.text);
    // The port of an endpoint that goes is closed, though its listener was handed over.
    let endpoints = culvert
        .client
        .call(Method::GET, "/endpoints?limit=100", None)
        .await
        .unwrap();
    let endpoints = endpoints.body["endpoints"].as_array().unwrap();
    let of_tcp = endpoints.iter().find(|one| one["proto"] == "tcp").unwrap();
    let path = format!("/endpoints/{}", of_tcp["id"].as_str().unwrap());
    culvert
        .client
        .call(Method::DELETE, &path, None)
        .await
        .unwrap();
    eventually("the port is closed", async || {
        TcpStream::connect(node.tcp()).await.is_err()
    })
    .await;
    culvert.stop().await;
}

/// A server process that may never become ready.
struct Waiting {
    child: Child,
    log: std::path::PathBuf,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Waiting {
    fn start(node: &Node, name: &str) -> Self {
        let settings = &node.settings;
        let log = settings.data_dir.with_file_name(format!("log-{name}"));
        let tcp_ports = &settings.edge.tcp_ports;
        let mut command = binary();
        command
            .arg("serve")
            .arg("--data-dir")
            .arg(&settings.data_dir);
        for (flag, value) in [
            ("--database-url", &settings.database_url),
            ("--edge-http-addr", &settings.edge.http_addr),
            ("--edge-https-addr", &settings.edge.https_addr),
            ("--edge-tcp-ports", tcp_ports),
            ("--edge-public-http-port", &"80".to_owned()),
            ("--edge-public-https-port", &"443".to_owned()),
            ("--api-addr", &settings.api.addr),
            ("--metrics-addr", &settings.metrics.addr),
            ("--agents-addr", &settings.agents.addr),
            ("--agents-ssh-addr", &settings.agents.ssh_addr),
            ("--nodes-addr", &settings.nodes.addr),
            ("--log-level", &"info".to_owned()),
        ] {
            command.args([flag, value]);
        }
        command.stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = std::sync::mpsc::sync_channel(64);
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
        });
        Self { child, log, lines }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    async fn logs(&self, text: &str) {
        eventually(text, async || self.log().contains(text)).await;
    }

    async fn prints(&self, start: &str) {
        eventually(start, async || {
            let mut lines = self.lines.try_iter();
            lines.any(|line| line.starts_with(start))
        })
        .await;
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let kill = std::process::Command::new("kill")
            .args(["-s", name, &id])
            .status();
        assert!(kill.unwrap().success());
    }

    async fn exit_code(&mut self) -> i32 {
        eventually("it ends", async || self.child.try_wait().unwrap().is_some()).await;
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Writes the entries of a copy with other facts.
fn with_facts(copy: &EdgeCopy, change: impl FnOnce(&mut CopyFacts)) {
    let whole = copy.open().unwrap().unwrap();
    let mut facts = whole.facts().clone();
    let mut new = copy.begin().unwrap();
    new.add_all_of(whole).unwrap();
    change(&mut facts);
    new.finish(facts).unwrap();
}

/// A node with one endpoint, its last copy, and a database that is stopped.
async fn stopped_node(folder: &Path) -> Option<(Postgres, Node)> {
    let postgres = tokio::task::block_in_place(|| Postgres::start(folder))?;
    let node = Node::new(&postgres.url());
    let culvert = node.start().await;
    let policy = action(
        "custom-response",
        json!({"status_code": 200, "body": "here"}),
    );
    let body =
        json!({"url": "http://open.culvert.localhost", "traffic_policy": policy.to_string()});
    culvert.create("endpoints", body).await;
    culvert.stop().await;
    assert_eq!(
        crate::secrets::files_with(&node.settings.data_dir, SECRET.as_bytes()),
        [""; 0]
    );
    stop(&postgres);
    Some((postgres, node))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_damaged_foreign_or_too_old_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some((postgres, node)) = stopped_node(folder.path()).await else {
        return;
    };
    let copy = node.copy();
    let good = std::fs::read(copy.path()).unwrap();
    let key = std::fs::read(node.settings.key_file()).unwrap();
    let hours = |n: i64| n * 3_600_000;
    let now = SystemClock.now().unix_millis();
    type Change<'a> = Box<dyn Fn() + 'a>;
    let flipped = |place: usize| -> Change<'_> {
        let (path, mut bytes) = (copy.path(), good.clone());
        bytes[place] ^= 1;
        Box::new(move || std::fs::write(path, &bytes).unwrap())
    };
    let other_key = || {
        let other: String = String::from_utf8(key.clone())
            .unwrap()
            .chars()
            .rev()
            .collect();
        std::fs::write(node.settings.key_file(), other.trim()).unwrap();
    };
    let refused: [(&str, Change<'_>, &str); 6] = [
        ("first", flipped(40), "damaged"),
        ("last", flipped(good.len() - 2), "damaged"),
        (
            "cut",
            Box::new(|| std::fs::write(copy.path(), &good[..good.len() / 2]).unwrap()),
            "damaged",
        ),
        ("key", Box::new(other_key), "master key"),
        (
            "old",
            Box::new(|| with_facts(&copy, |facts| facts.read_at = now - hours(25))),
            "s old",
        ),
        (
            "future",
            Box::new(|| with_facts(&copy, |facts| facts.read_at = now + hours(1))),
            "future",
        ),
    ];
    for (name, change, why) in refused {
        change();
        let waiting = Waiting::start(&node, name);
        waiting.logs("waiting for the database").await;
        waiting
            .logs("the copy of the configuration is refused")
            .await;
        assert!(waiting.log().contains(why), "{name}: {}", waiting.log());
        assert!(
            TcpStream::connect(node.http()).await.is_err(),
            "{name} is served"
        );
        drop(waiting);
        std::fs::write(node.settings.key_file(), &key).unwrap();
        std::fs::write(copy.path(), &good).unwrap();
    }
    // One that is too old in a moment is served until then.
    with_facts(&copy, |facts| {
        facts.read_at = SystemClock.now().unix_millis() - hours(24) + 3_000
    });
    let waiting = Waiting::start(&node, "soon");
    waiting.logs("waiting for the database").await;
    waiting.logs("`edge.copy_age_max` is").await;
    eventually("nothing is served", async || {
        TcpStream::connect(node.http()).await.is_err()
    })
    .await;
    drop(waiting);

    // The database is of another installation than the copy.
    with_facts(&copy, |facts| {
        facts.read_at = now;
        facts.installation = "another".to_owned();
    });
    let mut waiting = Waiting::start(&node, "another");
    waiting.prints("culvert serves from its copy").await;
    assert_eq!(node.get("open.culvert.localhost", "/").await.status, 200);
    resume(&postgres);
    assert_eq!(waiting.exit_code().await, 1);
    assert!(
        waiting.log().contains("other_installation"),
        "{}",
        waiting.log()
    );
    assert!(TcpStream::connect(node.http()).await.is_err());
    let mut again = Waiting::start(&node, "again");
    assert_eq!(again.exit_code().await, 1, "{}", again.log());
    std::fs::remove_file(copy.path()).unwrap();
    node.start().await.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_work_while_the_edge_serves_from_its_copy() {
    let folder = tempfile::tempdir().unwrap();
    let Some((postgres, node)) = stopped_node(folder.path()).await else {
        return;
    };
    let mut waiting = Waiting::start(&node, "signals");
    waiting.prints("culvert serves from its copy").await;
    waiting.signal("HUP");
    waiting.logs("settings reloaded").await;
    assert_eq!(node.get("open.culvert.localhost", "/").await.status, 200);
    waiting.signal("TERM");
    assert_eq!(waiting.exit_code().await, 0, "{}", waiting.log());
    assert!(TcpStream::connect(node.http()).await.is_err());

    let waiting = Waiting::start(&node, "ready");
    waiting.prints("culvert serves from its copy").await;
    resume(&postgres);
    waiting.prints("culvert ready").await;
    assert_eq!(node.get("open.culvert.localhost", "/").await.status, 200);
    let output = binary()
        .args([
            "doctor",
            "--database-url",
            &node.settings.database_url,
            "--data-dir",
        ])
        .arg(&node.settings.data_dir)
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.contains("the copy of the configuration is "),
        "{output}"
    );
}
