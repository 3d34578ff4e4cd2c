//! Agents at the real server: a whole session of an unmodified published agent, and its representation in the API and
//! in events.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ngrok::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, Receiver, backends, binary, eventually};

/// Fails instead of hanging.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(culvert_testing::PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// A service behind an agent. `/down/<n>` returns `n` bytes. Other paths return the number and the checksum of the
/// received bytes.
pub struct Service {
    pub address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Service {
    /// A service that returns its name in a header.
    pub async fn named(name: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(request, name));
                    let served = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    drop(served.await);
                });
            }
        });
        Self {
            address,
            _tasks: tasks,
        }
    }

    pub fn url(&self) -> url::Url {
        format!("http://{}", self.address).parse().unwrap()
    }
}

async fn answer(
    request: Request<Incoming>,
    name: &'static str,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    // The requested status.
    let status = request.headers().get("x-answer");
    let status = status
        .map_or("200", |status| status.to_str().unwrap())
        .to_owned();
    let body = match path.strip_prefix("/down/") {
        Some(length) => pattern(length.parse().unwrap()),
        None => {
            let headers = format!("{:?}", request.headers());
            match request.into_body().collect().await {
                Ok(body) => {
                    let body = body.to_bytes();
                    format!("{} {} {headers}", body.len(), sum(&body)).into()
                }
                Err(_) => b"cut short".to_vec(),
            }
        }
    };
    let response = Response::builder().header("x-service", name);
    let response = response.header("content-type", "text/plain");
    Ok(response
        .status(&*status)
        .body(Full::new(body.into()))
        .unwrap())
}

/// Bytes from which their position can be verified.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 977) as u8).collect()
}

pub fn sum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
    bytes.iter().fold(0, step)
}

/// A proxy to the server that can simulate network failures.
pub struct Proxy {
    pub address: SocketAddr,
    travelled: Arc<Mutex<JoinSet<()>>>,
    state: watch::Sender<ProxyMode>,
    _tasks: JoinSet<()>,
}

/// What the proxy does with traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    Open,
    Still,
    /// Closes the connection to the server regularly. Nothing that the server sent is left unread, which would cause
    /// a reset.
    Closed,
    Reset,
}

impl Proxy {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let travelled: Arc<Mutex<JoinSet<()>>> = Arc::default();
        let connections = Arc::clone(&travelled);
        let mut tasks = JoinSet::new();
        let (state, seen) = watch::channel(ProxyMode::Open);
        tasks.spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut seen = seen.clone();
                connections.lock().unwrap().spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else {
                        return;
                    };
                    let changed = tokio::select! {
                        copied = copy_bidirectional(&mut near, &mut far) => {
                            drop(copied);
                            return;
                        }
                        changed = seen.wait_for(|seen| *seen != ProxyMode::Open) => {
                            changed.map(|seen| *seen)
                        }
                    };
                    match changed {
                        // Stops forwarding without closing anything.
                        Ok(ProxyMode::Still) => std::future::pending().await,
                        Ok(ProxyMode::Closed) => {
                            drop(near);
                            drop(far.shutdown().await);
                            drop(tokio::io::copy(&mut far, &mut tokio::io::sink()).await);
                        }
                        _ => far.set_zero_linger().unwrap(),
                    }
                });
            }
        });
        Self {
            address,
            travelled,
            state,
            _tasks: tasks,
        }
    }

    /// Changes the behaviour for all connections.
    pub fn becomes(&self, passage: ProxyMode) {
        self.state.send_replace(passage);
    }

    /// Drops all connections.
    pub fn cut(&self) {
        self.travelled.lock().unwrap().abort_all();
    }
}

/// Creates a tunnel credential; returns its id and its token.
pub async fn credential(culvert: &Harness, acl: Value) -> (String, String) {
    let made = culvert.create("credentials", json!({"acl": acl})).await;
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (text("id"), text("token"))
}

pub fn builder(culvert: &Harness, at: SocketAddr, token: &str) -> ngrok::session::SessionBuilder {
    builder_of(&culvert.settings.data_dir, at, token)
}

/// Like [`builder`], for a server with this data directory.
pub fn builder_of(folder: &Path, at: SocketAddr, token: &str) -> ngrok::session::SessionBuilder {
    // The agent's library needs one cryptography provider for the whole process.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let authority = std::fs::read(folder.join("ca.pem")).unwrap();
    let mut builder = ngrok::Session::builder();
    builder
        .server_addr(format!("localhost:{}", at.port()))
        .unwrap()
        .ca_cert(Bytes::from(authority))
        .metadata("of the test");
    if !token.is_empty() {
        builder.authtoken(token);
    }
    builder
}

/// Our own agent as a process, which prints its URL on standard output.
pub fn own_agent(culvert: &Harness, credential: &Value, arguments: &[&str]) -> Child {
    Command::from(binary())
        .args(arguments)
        .args(["--server", &format!("localhost:{}", culvert.agents.port())])
        .args(["--inspect-addr", "127.0.0.1:0"])
        .env("CULVERT_DATA_DIR", &culvert.settings.data_dir)
        .env("CULVERT_AUTHTOKEN", credential["token"].as_str().unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// A session of a published agent.
pub async fn connect(culvert: &Harness, token: &str) -> ngrok::Session {
    let builder = builder(culvert, culvert.agents, token);
    soon("a session", builder.connect()).await.unwrap()
}

/// Sends one request on a new connection; returns status and body.
async fn fetch(at: SocketAddr, request: String, body: &[u8]) -> (u16, Vec<u8>) {
    let exchange = async {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let answer = soon("an answer", exchange).await;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.expect("the response has a head") + 4;
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer[end..].to_vec())
}

pub async fn get(at: SocketAddr, host: &str, target: &str) -> (u16, Vec<u8>) {
    let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    fetch(at, request, b"").await
}

pub async fn post(at: SocketAddr, host: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let length = body.len();
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    fetch(at, request, body).await
}

pub async fn list(culvert: &Harness, collection: &str) -> Vec<Value> {
    let answer = culvert
        .call(Method::GET, &format!("/{collection}"), None)
        .await;
    answer.body[collection].as_array().unwrap().clone()
}

const HOST: &str = "app.culvert.localhost";

#[tokio::test(flavor = "multi_thread")]
async fn a_published_agent_serves_http_and_resumes_its_session() {
    for backend in backends().await {
        let culvert = Harness::start_with(&backend, |settings| {
            settings.region = "here".into();
        })
        .await;
        let hook = Receiver::start().await;
        let kinds = [
            json!({"type": "agent_session_start.v0"}),
            json!({"type": "agent_session_stop.v0"}),
        ];
        subscribe_debug(&culvert, &hook, json!(kinds)).await;
        let (credential_id, token) = credential(&culvert, json!([])).await;
        let proxy = Proxy::to(culvert.agents).await;
        let service = Service::named("one").await;
        let builder = builder(&culvert, proxy.address, &token);
        let session = soon("a session", builder.connect()).await.unwrap();
        let mut tunnel = soon(
            "an endpoint",
            session
                .http_endpoint()
                .scheme(Scheme::HTTP)
                .domain(HOST)
                .metadata("of the endpoint")
                .listen_and_forward(service.url()),
        )
        .await
        .unwrap();
        assert_eq!(tunnel.url(), format!("http://{HOST}"));

        // The endpoint is online as soon as the agent has its URL.
        assert_eq!(get(culvert.http, HOST, "/down/10").await.0, 200);

        // The API shows the session, the endpoint and the tunnel, and their references.
        let sessions = list(&culvert, "tunnel_sessions").await;
        let [shown] = &sessions[..] else {
            panic!("{sessions:?}")
        };
        assert_eq!(shown["id"], session.id());
        assert_eq!(shown["credential"]["id"], *credential_id);
        assert_eq!(shown["metadata"], "of the test");
        assert_eq!(shown["transport"], "ngrok/2");
        assert_eq!(shown["ip"], "127.0.0.1");
        assert_eq!(shown["region"], "here");
        let endpoints = list(&culvert, "endpoints").await;
        let [endpoint] = &endpoints[..] else {
            panic!("{endpoints:?}")
        };
        assert_eq!(endpoint["type"], "ephemeral");
        assert_eq!(endpoint["url"], format!("http://{HOST}"));
        assert_eq!(endpoint["metadata"], "of the endpoint");
        assert_eq!(endpoint["bindings"], json!(["public"]));
        assert_eq!(endpoint["tunnel_session"]["id"], shown["id"]);
        assert_eq!(endpoint["region"], "here");
        assert_eq!(
            endpoint["upstream_url"]
                .as_str()
                .unwrap()
                .trim_end_matches('/'),
            service.url().as_str().trim_end_matches('/')
        );
        let tunnels = list(&culvert, "tunnels").await;
        assert_eq!(tunnels[0]["id"], endpoint["tunnel"]["id"]);
        assert_eq!(tunnels[0]["endpoint"]["id"], endpoint["id"]);
        assert_eq!(tunnels[0]["public_url"], endpoint["url"]);
        // Only its agent can change it.
        let path = format!("/endpoints/{}", endpoint["id"].as_str().unwrap());
        for (method, body) in [
            (Method::DELETE, None),
            (Method::PATCH, Some(json!({"metadata": "x"}))),
        ] {
            let refused = culvert.call(method, &path, body).await;
            assert_eq!(refused.body["error_code"], "ERR_NGROK_18014");
        }

        // After a short network failure, there are no events and nothing has changed.
        proxy.cut();
        eventually("the agent is back", async || {
            get(culvert.http, HOST, "/down/10").await.0 == 200
        })
        .await;
        assert_eq!(tunnel.url(), format!("http://{HOST}"));
        assert_eq!(list(&culvert, "tunnel_sessions").await, sessions);
        assert_eq!(list(&culvert, "endpoints").await, endpoints);

        soon("a clean end", tunnel.close()).await.unwrap();
        eventually("the endpoint is gone", async || {
            list(&culvert, "endpoints").await.is_empty()
                && list(&culvert, "tunnels").await.is_empty()
        })
        .await;
        assert_eq!(get(culvert.http, HOST, "/").await.0, 404);
        drop((tunnel, session));
        proxy.cut();
        drop(proxy);
        eventually("the session is gone", async || {
            list(&culvert, "tunnel_sessions").await.is_empty()
        })
        .await;
        let stop = hook.wait_for("agent_session_stop.v0", 1).await.remove(0);
        let start = hook.wait_for("agent_session_start.v0", 1).await.remove(0);
        // Its connection was aborted.
        for (event, error) in [(&start, ""), (&stop, "transport error: ")] {
            let object = &event["object"];
            assert_eq!(object["session"]["id"], shown["id"]);
            let uri = object["session"]["uri"].as_str().unwrap();
            assert_eq!(shown["uri"], uri, "it can be followed");
            assert_eq!(object["credential"]["id"], *credential_id);
            assert_eq!(object["agent_ip"], "127.0.0.1");
            assert_eq!(object["ingress_server_ip"], "127.0.0.1");
            assert_eq!(object["ingress_hostname"], "localhost");
            assert_eq!(object["region"], "here");
            assert_eq!(object["metadata"], "of the test");
            assert_eq!(object["os"], "linux");
            assert_eq!(object["arch"], std::env::consts::ARCH);
            assert_eq!(object["transport"], "muxado");
            assert_eq!(object["started_at"], shown["started_at"]);
            assert_eq!(object["expires_at"], Value::Null);
            assert_eq!(object["deprecated"], Value::Null);
            let reported = object["error"].as_str().unwrap();
            assert!(reported.starts_with(error), "{reported}");
            assert_eq!(reported.is_empty(), error.is_empty());
            let agent = object["user_agent"].as_str().unwrap();
            assert!(agent.starts_with("ngrok-rust/0.19"), "{agent}");
            let principal = &event["principal"];
            assert_eq!(principal["source"], "Agent");
            assert_eq!(principal["credential"], object["credential"]);
        }
        assert_eq!(start["object"]["stopped_at"], Value::Null);
        assert!(stop["object"]["stopped_at"].is_string());
        assert_eq!(hook.events().len(), 2);
        culvert.stop().await;
    }
}

/// The error code in an error of the agent's library.
fn code<T>(result: Result<T, impl Error>) -> Option<String> {
    let error = result.err().expect("it is refused");
    error.error_code().map(str::to_owned)
}

fn coded(number: u16) -> Option<String> {
    Some(format!("ERR_NGROK_{number}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_published_agent_gets_the_error_code() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let admit = async |token: &str| {
        let builder = builder(&culvert, culvert.agents, token);
        soon("an answer", builder.connect()).await
    };
    assert_eq!(code(admit("").await), coded(4018));
    assert_eq!(code(admit("wrong").await), coded(105));
    assert_eq!(code(admit(&culvert.token).await), coded(107));

    let service = Service::named("one").await;
    let (_, token) = credential(&culvert, json!(["bind:app.culvert.localhost"])).await;
    let few = admit(&token).await.unwrap();
    let bind = async |session: &ngrok::Session, domain: &str| {
        let mut endpoint = session.http_endpoint();
        if !domain.is_empty() {
            endpoint.domain(domain);
        }
        soon("an answer", endpoint.listen_and_forward(service.url())).await
    };
    assert_eq!(
        code(bind(&few, "other.culvert.localhost").await),
        coded(316)
    );
    assert_eq!(code(bind(&few, "").await), coded(316));
    let tunnel = bind(&few, HOST).await.unwrap();
    assert_eq!(tunnel.url(), format!("https://{HOST}"));
    let (_, token) = credential(&culvert, json!([])).await;
    let all = admit(&token).await.unwrap();
    assert_eq!(code(bind(&all, HOST).await), coded(334));
    assert_eq!(code(bind(&all, "foreign.example").await), coded(319));
    let mut labelled = all.labeled_tunnel();
    labelled.label("team", "red");
    let labelled = labelled.listen_and_forward(service.url());
    // The library includes the code only in the text of this error.
    assert!(soon("an answer", labelled).await.is_err());
    culvert.stop().await;
}

/// Sends requests until stopped. Counts the responses of each service, and other results.
async fn ask_until(
    at: SocketAddr,
    is_over: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    keeps: bool,
) -> (BTreeMap<String, usize>, Vec<String>) {
    let (mut by, mut failed) = (BTreeMap::new(), Vec::new());
    let close = if keeps { "" } else { "connection: close\r\n" };
    let request = format!("GET /down/100 HTTP/1.1\r\nhost: {HOST}\r\n{close}\r\n");
    let mut stream = None;
    while !is_over.load(Ordering::Relaxed) {
        let mut open = match stream.take() {
            Some(open) => open,
            None => TcpStream::connect(at).await.unwrap(),
        };
        open.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let is_whole = |answer: &[u8]| {
            let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
            head.is_some_and(|head| answer.len() >= head + 4 + 100)
        };
        while !is_whole(&answer) && open.read_buf(&mut answer).await.unwrap_or(0) > 0 {}
        let text = String::from_utf8_lossy(&answer).into_owned();
        let service = text
            .lines()
            .find_map(|line| line.strip_prefix("x-service: "));
        match service {
            Some(name) if is_whole(&answer) => *by.entry(name.to_owned()).or_default() += 1,
            _ => failed.push(text),
        }
        answers.fetch_add(1, Ordering::Relaxed);
        if keeps && is_whole(&answer) {
            stream = Some(open);
        }
    }
    (by, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_at_one_url_share_load_and_one_that_stops_fails_no_request() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let (_, token) = credential(&culvert, json!([])).await;
    let mut pool = Vec::new();
    for name in ["one", "two", "three"] {
        let proxy = Proxy::to(culvert.agents).await;
        let service = Service::named(name).await;
        let builder = builder(&culvert, proxy.address, &token);
        let session = soon("a session", builder.connect()).await.unwrap();
        let mut endpoint = session.http_endpoint();
        endpoint
            .scheme(Scheme::HTTP)
            .domain(HOST)
            .pooling_enabled(true);
        let tunnel = endpoint.listen_and_forward(service.url());
        let tunnel = soon("an endpoint", tunnel).await.unwrap();
        pool.push((proxy, service, session, tunnel));
    }
    let answers = Arc::new(AtomicUsize::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for nth in 0..16 {
        let (is_over, answers) = (Arc::clone(&is_over), Arc::clone(&answers));
        clients.spawn(ask_until(culvert.http, is_over, answers, nth % 2 == 0));
    }
    let more = async || {
        let enough = answers.load(Ordering::Relaxed) + 300;
        eventually("the clients are served", async || {
            answers.load(Ordering::Relaxed) >= enough
        })
        .await;
    };
    more().await;
    // The network of one agent fails and does not recover.
    let (proxy, one, its_session, its_tunnel) = pool.remove(0);
    proxy.cut();
    drop(proxy);
    more().await;
    // Another agent disconnects regularly.
    let (_road, service, session, mut tunnel) = pool.remove(0);
    soon("a clean end", tunnel.close()).await.unwrap();
    more().await;
    drop((one, its_session, its_tunnel, service, session, tunnel));
    more().await;
    is_over.store(true, Ordering::Relaxed);
    let mut by = BTreeMap::<String, usize>::new();
    for (of_one, failed) in soon("all clients", clients.join_all()).await {
        assert_eq!(failed, Vec::<String>::new());
        for (name, count) in of_one {
            *by.entry(name).or_default() += count;
        }
    }
    // All services had a share of the requests; the last one had the most.
    assert!(
        ["one", "two", "three"].iter().all(|name| by[*name] > 20),
        "{by:?}"
    );
    assert!(by["three"] > by["one"], "{by:?}");
    println!("a pool of three that shrinks to one: {by:?}");
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_stopped_over_the_api_and_ends_with_its_credential() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let hook = Receiver::start().await;
    let kinds = json!([{"type": "agent_session_stop.v0"}]);
    subscribe_debug(&culvert, &hook, kinds).await;
    let (id, token) = credential(&culvert, json!([])).await;
    let ask = async |session: &ngrok::Session, what: &str| {
        let path = format!("/tunnel_sessions/{}/{what}", session.id());
        let answer = culvert.call(Method::POST, &path, Some(json!({}))).await;
        (answer.status, answer.body["error_code"].clone())
    };
    let refused = |status: u16, number: u16| (status, json!(format!("ERR_NGROK_{number}")));

    let plain = connect(&culvert, &token).await;
    assert_eq!(ask(&plain, "restart").await, refused(400, 804));
    assert_eq!(ask(&plain, "stop").await, refused(400, 805));
    assert_eq!(ask(&plain, "update").await, refused(400, 806));

    let mut failing = builder(&culvert, culvert.agents, &token);
    failing
        .handle_stop_command(|_| async { Err("it is stuck".to_owned()) })
        .handle_restart_command(|_| async { Err("it is stuck".to_owned()) })
        .handle_update_command(|_| async { Err("it is stuck".to_owned()) });
    let failing = soon("a session", failing.connect()).await.unwrap();
    assert_eq!(ask(&failing, "stop").await, refused(502, 807));
    assert_eq!(ask(&failing, "restart").await, refused(502, 808));
    assert_eq!(ask(&failing, "update").await, refused(502, 809));

    let mut willing = builder(&culvert, culvert.agents, &token);
    willing
        .handle_stop_command(|_| async { Ok(()) })
        .handle_restart_command(|_| async { Ok(()) })
        .handle_update_command(|_| async { Ok(()) });
    let willing = soon("a session", willing.connect()).await.unwrap();
    assert_eq!(ask(&willing, "update").await, (204, Value::Null));
    assert_eq!(ask(&willing, "restart").await, (204, Value::Null));
    assert_eq!(ask(&willing, "stop").await, (204, Value::Null));
    // Its application does not end the session, so the server does.
    let stop = hook.wait_for("agent_session_stop.v0", 1).await.remove(0);
    assert_eq!(stop["object"]["session"]["id"], willing.id());
    assert_eq!(stop["object"]["error"], "stopped by a call of the API");

    let path = format!("/credentials/{id}");
    assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
    let stops = hook.wait_for("agent_session_stop.v0", 3).await;
    let deleted = |stop: &&Value| stop["object"]["error"] == "credential deleted";
    assert!(stops.iter().filter(deleted).count() >= 2, "{stops:?}");
    eventually("no session is left", async || {
        list(&culvert, "tunnel_sessions").await.is_empty()
    })
    .await;
    culvert.stop().await;
}
