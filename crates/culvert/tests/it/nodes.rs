//! Several servers on one PostgreSQL database: what one knows the others know, agents are reached through
//! all of them, and one that dies takes nothing along.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use culvert::client::Client;
use culvert::config::Role;
use culvert::server::Server;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ngrok::prelude::*;
use ngrok::session::{ConnectError, IoStream, default_connect};
use ngrok::tunnel::AcceptError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::agent_clients::{Kind, Order, Running, start};
use crate::agent_options::{connector, made, repeating, secure, talk};
use crate::agents::{self, Passage, Service, builder, credential, get, list, pattern, soon};
use crate::events_arrive::{subscribe, subscribe_debug};
use crate::harness::{Backend, Harness, Receiver, binary, cluster, eventually, raw};
use crate::kill::Process;
use crate::tail::Tail;

/// Another server on the database of `first`, in this process.
pub async fn beside(first: &Harness) -> Harness {
    beside_at(first, &first.settings.database_url).await
}

/// The same, with another way to the database.
async fn beside_at(first: &Harness, database_url: &str) -> Harness {
    let of_first = first.settings.clone();
    Harness::start_with(&Backend::Sqlite, move |settings| {
        settings.database_url = database_url.to_owned();
        settings.secrets.key_file = of_first.key_file().display().to_string();
        // Ports of TCP endpoints are listened on by every node.
        settings.edge.http_addr = "127.0.0.2:0".into();
        settings.edge.tcp_ports = of_first.edge.tcp_ports.clone();
    })
    .await
}

/// The same as a process of its own, that can be killed.
pub fn process_beside(first: &Harness, folder: &Path) -> Process {
    let key = first.settings.key_file().display().to_string();
    let arguments = ["--secrets-key-file", &key];
    Process::start_as(binary(), folder, &first.settings.database_url, &arguments)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_knows_the_others_know() {
    let Some(backend) = cluster().await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let other = beside(&one).await;
    let admin = other.client_with(&one.token);
    let hook = Receiver::start().await;
    subscribe_debug(&one, &hook, json!([{"type": "api_key_created.v0"}])).await;

    // A key counts everywhere from its answer on, and nowhere from its end on.
    let mut made = BTreeSet::new();
    for nth in 0..30 {
        let (here, there) = match nth % 2 {
            0 => (&one.client, &other),
            _ => (&admin, &one),
        };
        let body = json!({});
        let key = here.expect(Method::POST, "/api_keys", Some(&body));
        let key = key.await.unwrap();
        let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
        let bearer = there.client_with(key["token"].as_str().unwrap());
        let shown = bearer.call(Method::GET, &path, None).await.unwrap();
        assert_eq!(shown.status, 200);
        let gone = here.call(Method::DELETE, &path, None).await.unwrap();
        assert_eq!(gone.status, 204);
        let refused = bearer.call(Method::GET, &path, None).await.unwrap();
        assert_eq!(refused.status, 401);
        made.insert(key["id"].as_str().unwrap().to_owned());
    }

    // Configuration made at one is soon what the edge of the other does.
    let origin = Receiver::start().await;
    let mut slowest = Duration::ZERO;
    for nth in 0..5 {
        let host = format!("n{nth}.culvert.localhost");
        let upstream = format!("http://{}", origin.address);
        let body = json!({"url": format!("http://{host}"), "upstream_url": upstream});
        let began = Instant::now();
        one.create("endpoints", body).await;
        eventually("the other edge has it", async || {
            other.get(&host, "/").await.status == 200
        })
        .await;
        slowest = slowest.max(began.elapsed());
    }
    println!("an endpoint was at the other edge within {slowest:?}, request and all");

    // Both were delivering all the time, and nothing was told twice.
    hook.wait_for("api_key_created.v0", made.len()).await;
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    for event in hook.events() {
        let id = event["object"]["id"].as_str().unwrap().to_owned();
        *told.entry(id).or_default() += 1;
    }
    assert_eq!(told.keys().cloned().collect::<BTreeSet<_>>(), made);
    assert!(told.values().all(|times| *times == 1), "{told:?}");
    other.stop().await;
    one.stop().await;
}

/// Events of one node's traffic are seen, and counted, by a person who asks another.
#[tokio::test(flavor = "multi_thread")]
async fn health_and_tails_are_those_of_all_nodes_whichever_is_asked() {
    const HOST: &str = "watched.culvert.localhost";
    const KIND: &str = "http_request_complete.v0";
    let Some(backend) = cluster().await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let other = beside(&one).await;
    let admin = other.client_with(&one.token);
    let (up, down) = (Receiver::start().await, Receiver::start().await);
    down.answer_with(http::StatusCode::NOT_FOUND);
    let subscription = subscribe_debug(&one, &up, json!([{"type": KIND}])).await;
    let well = subscription["destinations"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let subscription = subscribe_debug(&one, &down, json!([{"type": KIND}])).await;
    let ill = subscription["destinations"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let origin = Receiver::start().await;
    one.endpoint("watched", origin.address).await;
    let tail = Tail::start(&one, &["--type", KIND]).await;

    // All traffic is the other node's.
    let mut seen = None;
    eventually("the tail shows what the other node served", async || {
        other.get(HOST, "/there").await;
        while let Some(event) = tail.try_next() {
            if event["object"]["http"]["request"]["url"]["path"] == "/there" {
                seen = Some(event);
            }
        }
        seen.is_some()
    })
    .await;
    assert_eq!(
        seen.unwrap()["object"]["http"]["response"]["status_code"],
        200
    );
    for client in [&one.client, &admin] {
        let health = async |id: &str| {
            let path = format!("/event_destinations/{id}/health");
            client.expect(Method::GET, &path, None).await.unwrap()
        };
        eventually("the health of both", async || {
            let (well, ill) = (health(&well).await, health(&ill).await);
            let nodes = well["nodes"].as_array().unwrap();
            well["state"] == "ok"
                && well["sent"].as_u64().unwrap() > 0
                && nodes.len() == 2
                && ill["state"] == "unhealthy"
                && ill["last_error"]["class"] == "config"
                && ill["dead_lettered"] == 0
        })
        .await;
    }
    drop(tail);
    other.stop().await;
    one.stop().await;
}

/// A way to one server or another.
struct Road {
    address: SocketAddr,
    leads_to: Arc<Mutex<SocketAddr>>,
    _tasks: JoinSet<()>,
}

impl Road {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let leads_to = Arc::new(Mutex::new(target));
        let mut tasks = JoinSet::new();
        let to = Arc::clone(&leads_to);
        tasks.spawn(async move {
            let mut travelled = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let target = *to.lock().unwrap();
                travelled.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(target).await {
                        drop(copy_bidirectional(&mut near, &mut far).await);
                    }
                });
            }
        });
        Self {
            address,
            leads_to,
            _tasks: tasks,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_reached_through_every_node_and_survives_its_own() {
    const HOST: &str = "carried.culvert.localhost";
    let Some(backend) = cluster().await else {
        return;
    };
    let stays = Harness::start(&backend).await;
    let folder = tempfile::tempdir().unwrap();
    let dies = process_beside(&stays, folder.path());
    let (_, token) = credential(&stays, json!([])).await;
    let road = Road::to(dies.agents.unwrap()).await;
    let service = Service::named("one").await;
    let session = builder(&stays, road.address, &token);
    let session = soon("a session", session.connect()).await.unwrap();
    let mut endpoint = session.http_endpoint();
    endpoint.scheme(Scheme::HTTP).domain(HOST);
    let endpoint = endpoint.listen_and_forward(service.url());
    let _tunnel = soon("an endpoint", endpoint).await.unwrap();

    let (status, _) = get(dies.http, HOST, "/").await;
    assert_eq!(status, 200, "at the node it is connected to");
    eventually("the other node carries requests to it", async || {
        get(stays.http, HOST, "/").await.0 == 200
    })
    .await;
    let (status, body) = get(stays.http, HOST, "/down/3000000").await;
    assert_eq!(status, 200);
    assert!(body == pattern(3_000_000), "no byte is lost on the way");
    let mut requests = JoinSet::new();
    for _ in 0..40 {
        requests.spawn(get(stays.http, HOST, "/down/20000"));
    }
    for (status, body) in requests.join_all().await {
        assert_eq!(status, 200);
        assert!(body == pattern(20_000));
    }
    let sessions = list(&stays, "tunnel_sessions").await;
    assert_eq!(sessions.len(), 1);

    *road.leads_to.lock().unwrap() = stays.agents;
    dies.kill();
    eventually("the agent is back, at the node that is left", async || {
        get(stays.http, HOST, "/").await.0 == 200
    })
    .await;
    let after = list(&stays, "tunnel_sessions").await;
    assert_eq!(after.len(), 1);
    assert_eq!(after[0]["id"], sessions[0]["id"], "the session goes on");
    stays.stop().await;
}

/// What a load balancer does for agents: passes each connection on to a server that takes it.
async fn balanced(nodes: Arc<RwLock<Vec<Harness>>>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut passed_on = JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let targets: Vec<SocketAddr> = nodes.read().await.iter().map(|it| it.agents).collect();
            passed_on.spawn(async move {
                for target in targets {
                    if let Ok(mut far) = TcpStream::connect(target).await {
                        drop(copy_bidirectional(&mut near, &mut far).await);
                        return;
                    }
                }
            });
        }
    });
    (address, tasks)
}

/// The status of one request, or why there is none.
async fn status_of(at: SocketAddr, host: &str) -> Result<u16, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(at).await?;
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(Duration::from_secs(20), exchange).await;
    let answer = answer.map_err(|_| "no answer in 20 s".to_owned())?;
    let answer = answer.map_err(|error| error.to_string())?;
    let status = answer.split(' ').nth(1).and_then(|text| text.parse().ok());
    status.ok_or_else(|| format!("no answer: {answer:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_three_nodes_fails_no_request() {
    Box::pin(rolling_restart(Kind::Own)).await;
}

/// It knows no command to connect elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_three_nodes_fails_no_request_of_a_published_agent() {
    if Kind::Python.is_here() {
        Box::pin(rolling_restart(Kind::Python)).await;
    }
}

/// Tests with several nodes run one after the other: together they need more connections than PostgreSQL accepts.
static MANY_NODES: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What an agent is kept by for as long as it serves.
enum Kept {
    Own(Ended),
    Published(Running),
}

async fn rolling_restart(kind: Kind) {
    let _turn = MANY_NODES.lock().await;
    const HOSTS: [&str; 2] = ["behind.culvert.localhost", "cloud.culvert.localhost"];
    const CLIENTS: usize = 4;
    let Some(backend) = cluster().await else {
        return;
    };
    // It keeps the database and takes no traffic.
    let one = Harness::start(&backend).await;
    let (_, token) = credential(&one, json!([])).await;
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(beside(&one).await);
    }
    let nodes = Arc::new(RwLock::new(first));
    let (road, _passed_on) = balanced(Arc::clone(&nodes)).await;
    let service = Service::named("one").await;
    let mut agent = match kind {
        // It keeps nothing of requests, and so does not know when a stream is idle.
        Kind::Own => {
            let agent = binary()
                .args(["http", &service.address.to_string(), "--inspect=false"])
                .args(["--url", &format!("http://{}", HOSTS[0])])
                .env("CULVERT_SERVER", format!("localhost:{}", road.port()))
                .env("CULVERT_AUTHTOKEN", &token)
                .env("CULVERT_DATA_DIR", &one.settings.data_dir)
                .stdout(std::process::Stdio::null())
                .spawn();
            Kept::Own(Ended(agent.unwrap()))
        }
        _ => {
            let order = Order {
                proto: "http",
                name: HOSTS[0],
                upstream: service.address,
                at: road,
                token: &token,
                folder: &one.settings.data_dir,
                files: None,
            };
            Kept::Published(start(kind, &one, order).await.unwrap())
        }
    };
    let body = json!({
        "url": format!("http://{}", HOSTS[1]),
        "upstream_url": format!("http://{}", service.address),
    });
    one.create("endpoints", body).await;
    eventually("every node serves both", async || {
        let mut served = true;
        for node in nodes.read().await.iter() {
            for host in HOSTS {
                served &= status_of(node.http, host).await == Ok(200);
            }
        }
        served
    })
    .await;

    let over = CancellationToken::new();
    let mut clients = JoinSet::new();
    for nth in 0..CLIENTS {
        let (nodes, over) = (Arc::clone(&nodes), over.clone());
        clients.spawn(async move {
            let (mut count, mut failed) = (0_usize, Vec::new());
            let began = Instant::now();
            while !over.is_cancelled() {
                // A server is taken out of service before it is stopped.
                let nodes = nodes.read().await;
                let at = nodes[(count + nth) % nodes.len()].http;
                let host = HOSTS[count % 2];
                let asked_at = began.elapsed();
                match status_of(at, host).await {
                    Ok(200) => {}
                    other => {
                        let took = began.elapsed() - asked_at;
                        failed.push(format!(
                            "{asked_at:?} {host} at {at}: {other:?} after {took:?}"
                        ));
                    }
                }
                drop(nodes);
                count += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (count, failed)
        });
    }
    for _ in 0..3 {
        let old = nodes.write().await.remove(0);
        let began = Instant::now();
        old.stop().await;
        println!("a node stopped in {:?}", began.elapsed());
        let new = beside(&one).await;
        eventually("the new one serves both", async || {
            status_of(new.http, HOSTS[0]).await == Ok(200)
                && status_of(new.http, HOSTS[1]).await == Ok(200)
        })
        .await;
        nodes.write().await.push(new);
    }
    over.cancel();
    let (mut count, mut failed) = (0, Vec::new());
    for (of_client, failures) in clients.join_all().await {
        count += of_client;
        failed.extend(failures);
    }
    println!("3 restarts, {count} requests, {} failed", failed.len());
    assert!(
        failed.is_empty(),
        "{} of {count}: {failed:#?}",
        failed.len()
    );
    if let Kept::Own(agent) = &mut agent {
        assert!(agent.0.try_wait().unwrap().is_none(), "the agent goes on");
    }
    let sessions = list(&one, "tunnel_sessions").await;
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    match agent {
        Kept::Own(agent) => drop(agent),
        Kept::Published(agent) => agent.kill().await,
    }
    for node in std::mem::take(&mut *nodes.write().await) {
        node.stop().await;
    }
    one.stop().await;
}

/// Clients spread over three nodes: a limit of the cluster holds but for what was under way, and other buckets are
/// not touched. A limit without a scope is each node's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_of_the_cluster_is_that_of_all_nodes() {
    const CAPACITY: usize = 100;
    // How long a count may take to be known elsewhere, on a machine with other work.
    const KNOWN_WITHIN: Duration = Duration::from_secs(6);
    let Some(backend) = cluster().await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let (two, three) = (beside(&one).await, beside(&one).await);
    let nodes = [&one, &two, &three];
    let policy = |capacity: usize, scope: &str| {
        json!({"on_http_request": [{"actions": [
            {"type": "rate-limit", "config": {"capacity": capacity, "rate": "1h", "bucket_key": ["req.url.path"], "scope": scope}},
            {"type": "custom-response", "config": {"body": "in"}},
        ]}]})
        .to_string()
    };
    for (host, capacity, scope) in [
        ("cluster.culvert.localhost", CAPACITY, "cluster"),
        ("node.culvert.localhost", 3, "node"),
    ] {
        let url = format!("http://{host}");
        let body = json!({"url": url, "traffic_policy": policy(capacity, scope)});
        one.create("endpoints", body).await;
    }
    let ask = async |at: SocketAddr, host: &str, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = text_of(at, &request).await;
        let status = answer.split(' ').nth(1).and_then(|text| text.parse().ok());
        status.unwrap_or_else(|| panic!("{at}: {answer:?}"))
    };
    for node in nodes {
        eventually("every node serves both and shares counts", async || {
            let metrics = text_of(node.metrics, "GET /metrics HTTP/1.0\r\n\r\n").await;
            ask(node.http, "cluster.culvert.localhost", "/warm").await == 200_u16
                && ask(
                    node.http,
                    "node.culvert.localhost",
                    &format!("/{}", node.http),
                )
                .await
                    != 404
                && metrics.contains("\nculvert_rate_limit_exchange 1\n")
        })
        .await;
    }

    let began = Instant::now();
    let mut clients = JoinSet::new();
    for nth in 0..6 {
        let at = nodes[nth % 3].http;
        clients.spawn(async move {
            let (mut passed, mut refused) = (Vec::new(), 0);
            while refused < 20 {
                let request = "GET /shared HTTP/1.1\r\nhost: cluster.culvert.localhost\r\nconnection: close\r\n\r\n";
                let answer = text_of(at, request).await;
                if answer.starts_with("HTTP/1.1 200 ") {
                    passed.push((began.elapsed(), at));
                    refused = 0;
                } else {
                    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer:?}");
                    assert!(answer.contains("retry-after: "), "{answer:?}");
                    refused += 1;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            passed
        });
    }
    let mut passed: Vec<(Duration, SocketAddr)> = clients.join_all().await.concat();
    passed.sort_unstable();
    println!(
        "{} of {CAPACITY} passed in {:?}",
        passed.len(),
        began.elapsed()
    );
    assert!(passed.len() >= CAPACITY, "{}", passed.len());
    for (before, (at, node)) in passed.iter().enumerate() {
        let since = at.saturating_sub(KNOWN_WITHIN);
        let is_unheard = |(when, by): &&(Duration, SocketAddr)| *when >= since && by != node;
        let unheard = passed[..before].iter().filter(is_unheard).count();
        assert!(
            before < CAPACITY + unheard,
            "{before} before {at:?}, {unheard} unheard"
        );
    }
    // When all is known, no node lets one more pass.
    for node in nodes {
        eventually("each node knows", async || {
            ask(node.http, "cluster.culvert.localhost", "/shared").await == 429_u16
        })
        .await;
        for _ in 0..10 {
            let status: u16 = ask(node.http, "cluster.culvert.localhost", "/other").await;
            assert_eq!(status, 200);
        }
        for expected in [200, 200, 200, 429] {
            let status: u16 = ask(node.http, "node.culvert.localhost", "/shared").await;
            assert_eq!(status, expected, "each node's own");
        }
    }
    three.stop().await;
    two.stop().await;
    one.stop().await;
}

/// A node that loses the database limits by its own counts and those that it has received, and is one of all again
/// when the database is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_of_the_cluster_holds_at_each_node_that_loses_the_database() {
    const HOST: &str = "apart.culvert.localhost";
    const CAPACITY: usize = 10;
    let Some(backend) = cluster().await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let mut url = url::Url::parse(&one.settings.database_url).unwrap();
    let host = url.host_str().unwrap().to_owned();
    let database = (host, url.port().unwrap_or(5432));
    let database = tokio::net::lookup_host(database).await.unwrap().next();
    let road = agents::Road::to(database.unwrap()).await;
    url.set_ip_host(road.address.ip()).unwrap();
    url.set_port(Some(road.address.port())).unwrap();
    let other = beside_at(&one, url.as_str()).await;
    let policy = json!({"on_http_request": [{"actions": [
        {"type": "rate-limit", "config": {"capacity": CAPACITY, "rate": "1h", "bucket_key": ["req.url.path"], "scope": "cluster"}},
        {"type": "custom-response", "config": {"body": "in"}},
    ]}]});
    let body = json!({"url": format!("http://{HOST}"), "traffic_policy": policy.to_string()});
    one.create("endpoints", body).await;
    let passes = async |node: &Harness, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
        let answer = text_of(node.http, &request).await;
        match answer.split(' ').nth(1) {
            Some("200") => true,
            Some("429") => false,
            _ => panic!("{answer:?}"),
        }
    };
    // How many pass until one does not.
    let exhaust = async |node: &Harness, path: &str| {
        let mut n_passed = 0;
        while passes(node, path).await {
            n_passed += 1;
        }
        n_passed
    };
    let shares = async |node: &Harness, shares: bool| {
        let metrics = text_of(node.metrics, "GET /metrics HTTP/1.0\r\n\r\n").await;
        let line = format!("\nculvert_rate_limit_exchange {}\n", u8::from(shares));
        metrics.contains(&line)
    };
    for node in [&one, &other] {
        eventually("it serves and shares counts", async || {
            status_of(node.http, HOST).await != Ok(404) && shares(node, true).await
        })
        .await;
    }
    assert_eq!(exhaust(&one, "/before").await, CAPACITY);
    eventually("the other node knows", async || {
        !passes(&other, "/before").await
    })
    .await;

    for lost in [Passage::Reset, Passage::Still] {
        let path = |name: &str| format!("/{name}/{lost:?}");
        road.becomes(lost);
        eventually("it finds itself alone", async || {
            shares(&other, false).await
        })
        .await;
        assert!(shares(&one, true).await);
        for node in [&one, &other] {
            let n_passed = exhaust(node, &path("apart")).await;
            assert_eq!(n_passed, CAPACITY, "the limit of each node by itself");
        }
        assert!(
            !passes(&other, "/before").await,
            "what it has heard counts on"
        );
        road.becomes(Passage::Open);
        road.cut();
        eventually("it is one of them again", async || {
            shares(&other, true).await
        })
        .await;
        for node in [&one, &other] {
            assert!(!passes(node, &path("apart")).await);
        }
        assert_eq!(exhaust(&other, &path("after")).await, CAPACITY);
        eventually("the first node knows", async || {
            !passes(&one, &path("after")).await
        })
        .await;
    }
    other.stop().await;
    one.stop().await;
}

/// All that is answered to one request.
async fn text_of(at: SocketAddr, request: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(Duration::from_secs(30), exchange).await;
    answer.unwrap().unwrap()
}

/// What became of requests to one node.
#[derive(Default)]
struct Asked {
    count: usize,
    failed: Vec<(Instant, String)>,
    slowest: Duration,
}

async fn ask_on(at: SocketAddr, host: &'static str, over: CancellationToken) -> Asked {
    let mut asked = Asked::default();
    while !over.is_cancelled() {
        let began = Instant::now();
        let status = status_of(at, host).await;
        asked.slowest = asked.slowest.max(began.elapsed());
        if status != Ok(200) {
            asked
                .failed
                .push((Instant::now(), format!("{status:?} at {at}")));
        }
        asked.count += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_of_three_breaks_no_request_of_its_agents() {
    let _turn = MANY_NODES.lock().await;
    const HOST: &str = "killed.culvert.localhost";
    const CLIENTS: usize = 4;
    let Some(backend) = cluster().await else {
        return;
    };
    for kind in [Kind::Own, Kind::Python] {
        if !kind.is_here() {
            continue;
        }
        let one = Harness::start(&backend).await;
        let two = beside(&one).await;
        let folder = tempfile::tempdir().unwrap();
        let dies = process_beside(&one, folder.path());
        let (_, token) = credential(&one, json!([])).await;
        let road = Road::to(dies.agents.unwrap()).await;
        let service = Service::named("one").await;
        let order = Order {
            proto: "http",
            name: HOST,
            upstream: service.address,
            at: road.address,
            token: &token,
            folder: &one.settings.data_dir,
            files: None,
        };
        let agent = start(kind, &one, order).await.unwrap();
        let nodes = [one.http, two.http];
        eventually("every node serves it", async || {
            let mut served = true;
            for at in nodes {
                served &= status_of(at, HOST).await == Ok(200);
            }
            served
        })
        .await;
        *road.leads_to.lock().unwrap() = one.agents;
        let over = CancellationToken::new();
        let mut clients = JoinSet::new();
        for nth in 0..CLIENTS {
            clients.spawn(ask_on(nodes[nth % 2], HOST, over.clone()));
        }
        // Requests are on their way when it dies.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let killed_at = Instant::now();
        dies.kill();
        eventually("the agent is back", async || {
            let is_elsewhere = list(&one, "endpoints").await;
            is_elsewhere.len() == 1 && status_of(one.http, HOST).await == Ok(200)
        })
        .await;
        // Whatever would fail late has the time for it.
        tokio::time::sleep(Duration::from_secs(5)).await;
        over.cancel();
        let (mut count, mut failed, mut slowest) = (0, Vec::new(), Duration::ZERO);
        for asked in clients.join_all().await {
            count += asked.count;
            failed.extend(asked.failed);
            slowest = slowest.max(asked.slowest);
        }
        let last = failed.iter().map(|(at, _)| *at - killed_at).max();
        println!(
            "{kind:?}: 1 kill, {count} requests, {} failed, the last {last:?} after the kill, the slowest took {slowest:?}",
            failed.len()
        );
        // Requests that were on their way are repeated, and later ones wait for two seconds. Only where the
        // agent takes longer to be back, and known everywhere, are clients told that it is away.
        let is_told = |(_, why): &(Instant, String)| why.starts_with("Ok(404)");
        assert!(failed.iter().all(is_told), "{failed:#?}");
        assert!(last.is_none_or(|last| last < Duration::from_secs(20)));
        agent.kill().await;
        two.stop().await;
        one.stop().await;
    }
}

/// An agent with the addresses of two nodes has a session with each: when one node dies, requests go through the
/// other.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_costs_an_agent_of_two_nodes_nothing() {
    let _turn = MANY_NODES.lock().await;
    const HOST: &str = "two.culvert.localhost";
    const CLIENTS: usize = 4;
    const FAILURES_END_WITHIN: Duration = Duration::from_millis(100);
    let Some(backend) = cluster().await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let two = beside(&one).await;
    let folder = tempfile::tempdir().unwrap();
    let dies = process_beside(&one, folder.path());
    let (_, token) = credential(&one, json!([])).await;
    let service = Service::named("one").await;
    let [first, second] = [dies.agents.unwrap(), two.agents].map(|it| it.port());
    let agent = binary()
        .args(["http", &service.address.to_string(), "--inspect=false"])
        .args(["--url", &format!("http://{HOST}")])
        .env(
            "CULVERT_SERVER",
            format!("localhost:{first}, localhost:{second}"),
        )
        .env("CULVERT_AUTHTOKEN", &token)
        .env("CULVERT_DATA_DIR", &one.settings.data_dir)
        .stdout(std::process::Stdio::null())
        .spawn();
    let mut agent = Ended(agent.unwrap());
    let nodes = [one.http, two.http];
    eventually("both sessions serve it at every node", async || {
        let mut served = list(&one, "endpoints").await.len() == 2;
        for at in nodes {
            // As often as to have been served by either session.
            for _ in 0..4 {
                served &= status_of(at, HOST).await == Ok(200);
            }
        }
        served
    })
    .await;
    let over = CancellationToken::new();
    let mut clients = JoinSet::new();
    for nth in 0..CLIENTS {
        clients.spawn(ask_on(nodes[nth % 2], HOST, over.clone()));
    }
    // Requests are on their way when it dies.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let killed_at = Instant::now();
    dies.kill();
    // Whatever would fail late has the time for it, until the run of the dead node is over.
    eventually("the session with the dead node is gone", async || {
        list(&one, "tunnel_sessions").await.len() == 1
    })
    .await;
    over.cancel();
    let (mut count, mut failed, mut slowest) = (0, Vec::new(), Duration::ZERO);
    for asked in clients.join_all().await {
        count += asked.count;
        failed.extend(asked.failed);
        slowest = slowest.max(asked.slowest);
    }
    let last = failed.iter().map(|(at, _)| *at - killed_at).max();
    println!(
        "1 kill, two sessions, {count} requests, {} failed, the last {last:?} after the kill, the slowest took {slowest:?}",
        failed.len()
    );
    assert!(
        last.is_none_or(|last| last < FAILURES_END_WITHIN),
        "{failed:#?}"
    );
    assert!(agent.0.try_wait().unwrap().is_none(), "the agent goes on");
    drop(agent);
    two.stop().await;
    one.stop().await;
}

/// A process that ends with its test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A way to the server for an agent that does not come back when it was cut off.
async fn once(
    host: String,
    port: u16,
    tls: Arc<rustls::ClientConfig>,
    cut: Option<AcceptError>,
) -> Result<Box<dyn IoStream>, ConnectError> {
    match cut {
        None => default_connect(host, port, tls, None).await,
        Some(_) => Err(ConnectError::Canceled),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_endpoint_is_reached_through_another_node_and_its_agent_is_asked_from_there()
{
    const HOST: &str = "tls.culvert.localhost";
    let Some(backend) = cluster().await else {
        return;
    };
    let (one, port) = Harness::start_with_port_on(&backend).await;
    let other = beside(&one).await;
    let admin = other.client_with(&one.token);
    let (_, token) = credential(&one, json!([])).await;
    let mut tasks = JoinSet::new();
    let repeating = repeating(&mut tasks).await;
    let plain: url::Url = format!("tcp://{repeating}").parse().unwrap();
    let theirs = made(&[HOST]);
    let secure = secure(&mut tasks, &theirs).await;
    let mut builder = builder(&one, one.agents, &token);
    builder
        .connector(once)
        .handle_stop_command(|_| async { Ok(()) })
        .handle_restart_command(|_| async { Ok(()) })
        .handle_update_command(|_| async { Err("it is stuck".to_owned()) });
    let session = soon("a session", builder.connect()).await.unwrap();
    let said = "hello\r\n\r\n";

    // Bytes, at the port of the other node.
    let endpoint = session.tcp_endpoint();
    let endpoint = endpoint.listen_and_forward(plain.clone());
    let mut tunnel = soon("an endpoint", endpoint).await.unwrap();
    assert_eq!(
        tunnel.url(),
        format!("tcp://1.tcp.culvert.localhost:{port}")
    );
    let at = SocketAddr::from(([127, 0, 0, 2], port));
    eventually("the other node has the port", async || {
        TcpStream::connect(at).await.is_ok()
    })
    .await;
    for _ in 0..10 {
        let answer = raw(at, said.as_bytes()).await;
        assert!(answer.text.ends_with(said), "{}", answer.text);
    }
    soon("a clean end", tunnel.close()).await.unwrap();

    // TLS that ends at the other node with the agent's certificate, and TLS that ends at the service.
    let by_theirs = connector(theirs.0.as_bytes(), None);
    for is_secure in [false, true] {
        let mut endpoint = session.tls_endpoint();
        endpoint.domain(HOST);
        let upstream = match is_secure {
            true => secure.clone(),
            false => {
                let [certificate, key] = [&theirs.0, &theirs.1].map(|pem| Bytes::from(pem.clone()));
                endpoint.termination(certificate, key);
                plain.clone()
            }
        };
        let tunnel = endpoint.listen_and_forward(upstream);
        let mut tunnel = soon("an endpoint", tunnel).await.unwrap();
        eventually("the other node carries it", async || {
            let answer = talk(&by_theirs, other.https, HOST, said).await;
            answer.is_some_and(|answer| answer.ends_with(said))
        })
        .await;
        soon("a clean end", tunnel.close()).await.unwrap();
    }

    // What an agent is asked for travels to the node that has it, and its answer comes back. It has no
    // endpoint there by now.
    let ask = async |session: &ngrok::Session, what: &str| {
        let path = format!("/tunnel_sessions/{}/{what}", session.id());
        let body = json!({});
        let answer = admin.call(Method::POST, &path, Some(&body)).await.unwrap();
        (answer.status, answer.body)
    };
    let (status, failed) = ask(&session, "update").await;
    assert_eq!(
        (status, &failed["error_code"]),
        (502, &json!("ERR_NGROK_809"))
    );
    assert!(
        failed["msg"].as_str().unwrap().contains("it is stuck"),
        "{failed}"
    );
    assert_eq!(ask(&session, "stop").await.0, 204);
    eventually("it has ended", async || {
        list(&one, "tunnel_sessions").await.is_empty()
    })
    .await;
    // Asked to begin anew it may come back at any moment, so nothing follows that.
    let session = soon("a session", builder.connect()).await.unwrap();
    assert_eq!(ask(&session, "restart").await.0, 204);
    drop(session);
    other.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_the_api_alone_asks_agents_of_others() {
    let Some(backend) = cluster().await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let folder = tempfile::tempdir().unwrap();
    let mut settings = one.settings.clone();
    settings.roles = vec![Role::Api];
    settings.data_dir = folder.path().to_owned();
    settings.secrets.key_file = one.settings.key_file().display().to_string();
    let alone = Box::pin(Server::start(settings)).await.unwrap();
    assert_eq!(alone.agents_addr(), None);
    let admin = Client::new(&alone.api_url(), one.token.clone()).unwrap();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(alone.run(stop.clone()));

    let (_, token) = credential(&one, json!([])).await;
    let mut builder = builder(&one, one.agents, &token);
    builder
        .connector(once)
        .handle_stop_command(|_| async { Ok(()) })
        .handle_update_command(|_| async { Err("it is stuck".to_owned()) });
    let session = soon("a session", builder.connect()).await.unwrap();
    let ask = async |what: &str| {
        let path = format!("/tunnel_sessions/{}/{what}", session.id());
        let body = json!({});
        let answer = admin.call(Method::POST, &path, Some(&body)).await.unwrap();
        (answer.status, answer.body["error_code"].clone())
    };
    let refused = |status: u16, code: u16| (status, json!(format!("ERR_NGROK_{code}")));
    assert_eq!(ask("restart").await, refused(400, 804));
    assert_eq!(ask("update").await, refused(502, 809));
    assert_eq!(ask("stop").await, (204, Value::Null));
    eventually("it has ended", async || {
        list(&one, "tunnel_sessions").await.is_empty()
    })
    .await;
    assert_eq!(ask("stop").await.0, 404);
    stop.cancel();
    soon("an end", tasks.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    one.stop().await;
}

/// Takes batches slowly, and sees whether one is delivered twice at the same time.
#[derive(Default)]
struct Watch {
    /// Ids by request, in the order of their ends.
    batches: Vec<BTreeSet<String>>,
    in_flight: BTreeMap<String, usize>,
    at_once: usize,
}

/// Ids that a request carries, for as long as it lasts.
struct Carried(Arc<Mutex<Watch>>, BTreeSet<String>);

impl Carried {
    fn of(watch: &Arc<Mutex<Watch>>, ids: BTreeSet<String>) -> Self {
        let mut seen = watch.lock().unwrap();
        for id in &ids {
            let n = seen.in_flight.entry(id.clone()).or_default();
            *n += 1;
            if *n > 1 {
                seen.at_once += 1;
            }
        }
        drop(seen);
        Self(Arc::clone(watch), ids)
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let mut seen = self.0.lock().unwrap();
        for id in &self.1 {
            if let Some(n) = seen.in_flight.get_mut(id) {
                *n -= 1;
            }
        }
        seen.batches.push(std::mem::take(&mut self.1));
    }
}

async fn take(
    request: Request<Incoming>,
    watch: Arc<Mutex<Watch>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let Ok(body) = request.into_body().collect().await else {
        return Ok(Response::new(Full::new(Bytes::new())));
    };
    let events = match serde_json::from_slice(&body.to_bytes()).unwrap() {
        Value::Array(batch) => batch,
        one => vec![one],
    };
    let id = |event: &Value| event["object"]["id"].as_str().unwrap().to_owned();
    let carried = Carried::of(&watch, events.iter().map(id).collect());
    // Long enough for a kill to find one of them on its way.
    tokio::time::sleep(Duration::from_millis(40)).await;
    drop(carried);
    Ok(Response::new(Full::new(Bytes::new())))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_repeats_one_batch_at_most_and_none_is_with_two_at_once() {
    let Some(backend) = cluster().await else {
        return;
    };
    let stays = Harness::start(&backend).await;
    let folder = tempfile::tempdir().unwrap();
    let dies = process_beside(&stays, folder.path());
    let watch: Arc<Mutex<Watch>> = Arc::default();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut hook = Receiver::start().await;
    hook.address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    let seen = Arc::clone(&watch);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            connections.spawn(async move {
                let service = service_fn(move |request| take(request, Arc::clone(&seen)));
                let served = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                drop(served.await);
            });
        }
    });
    let doomed = Client::new(&dies.api, stays.token.clone()).unwrap();
    subscribe(&doomed, &hook, json!([{"type": "api_key_created.v0"}])).await;

    let mut writers = JoinSet::new();
    for client in [doomed, stays.client.clone()] {
        for _ in 0..2 {
            writers.spawn(make_keys(client.clone(), 120));
        }
    }
    let n_taken = || watch.lock().unwrap().batches.len();
    eventually("batches are under way", async || n_taken() > 8).await;
    dies.kill();
    let made: BTreeSet<String> = writers.join_all().await.into_iter().flatten().collect();
    // A batch that the dead one held is free again when its lease is over.
    let deadline = Instant::now() + Duration::from_secs(180);
    let missing = || {
        let seen = watch.lock().unwrap();
        let told: BTreeSet<&String> = seen.batches.iter().flatten().collect();
        made.iter().filter(|id| !told.contains(id)).count()
    };
    while missing() > 0 {
        assert!(Instant::now() < deadline, "{} were never told", missing());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (batches, at_once) = {
        let seen = watch.lock().unwrap();
        (seen.batches.clone(), seen.at_once)
    };
    assert_eq!(at_once, 0, "no batch was with two nodes at once");
    let mut times: BTreeMap<&String, usize> = BTreeMap::new();
    for id in batches.iter().flatten() {
        *times.entry(id).or_default() += 1;
    }
    let repeated: BTreeSet<String> = times
        .into_iter()
        .filter(|(_, times)| *times > 1)
        .map(|(id, _)| id.clone())
        .collect();
    let is_of_one = |batch: &BTreeSet<String>| repeated.is_subset(batch);
    assert!(batches.iter().any(is_of_one), "{repeated:?}");
    println!(
        "1 kill, {} acknowledged changes, lost 0, repeated {} of one batch, with two at once 0",
        made.len(),
        repeated.len()
    );
    stays.stop().await;
}

/// Ids of the keys that were acknowledged.
async fn make_keys(client: Client, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        match client
            .call(Method::POST, "/api_keys", Some(&json!({})))
            .await
        {
            Ok(answer) if answer.status == 201 => {
                ids.push(answer.body["id"].as_str().unwrap().to_owned());
            }
            // Its server is gone.
            Ok(_) => {}
            Err(_) => return ids,
        }
    }
    ids
}

/// Believes any server, so that what the server thinks of its client is all that counts.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_nodes_are_let_in_by_the_listener_of_nodes() {
    let Some(backend) = cluster().await else {
        return;
    };
    let culvert = Harness::start(&backend).await;
    let nodes = culvert.nodes.expect("it listens for other nodes");
    let made = rcgen::generate_simple_self_signed(["node.culvert.internal".into()]).unwrap();
    let key = || rustls_pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = || {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone))
    };
    let nobody = config().with_no_client_auth();
    let impostor = config().with_client_auth_cert(vec![made.cert.der().clone()], key());
    for config in [nobody, impostor.unwrap()] {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("node.culvert.internal").unwrap();
        let exchange = async {
            let socket = TcpStream::connect(nodes).await?;
            // The client is done before the server has judged it.
            let mut socket = connector.connect(name, socket).await?;
            let mut bytes = [0; 16];
            socket.read_exact(&mut bytes).await
        };
        let ended = soon("an end", exchange).await;
        assert!(ended.is_err(), "a stranger was let in");
    }
    culvert.stop().await;
}
