//! A node that loses the database, and its agents.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use culvert::config::Span;
use http::Method;
use ngrok::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::beside_at;
use crate::agents::{self, ProxyMode, Service, builder, credential, list, soon};
use crate::harness::{Backend, Harness, cluster, eventually, raw};

/// Longer than until a node without heartbeats is found dead.
const FOUND_DEAD: Duration = Duration::from_secs(40);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A way to the database of `culvert` that can be cut, and its URL.
async fn way_to_database(culvert: &Harness) -> (agents::Proxy, String) {
    let mut url = url::Url::parse(&culvert.settings.database_url).unwrap();
    let host = url.host_str().unwrap().to_owned();
    let at = (host, url.port().unwrap_or(5432));
    let database = tokio::net::lookup_host(at).await.unwrap().next();
    let proxy = agents::Proxy::to(database.unwrap()).await;
    url.set_ip_host(proxy.address.ip()).unwrap();
    url.set_port(Some(proxy.address.port())).unwrap();
    (proxy, url.into())
}

/// The status, and the name of the service that responded.
async fn ask(at: SocketAddr, host: &str) -> (u16, String) {
    let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    let answer = raw(at, request.as_bytes()).await;
    let service = answer.text.split("\r\nx-service: ").nth(1);
    let service = service.and_then(|rest| rest.split("\r\n").next());
    (answer.status, service.unwrap_or_default().to_owned())
}

async fn online(
    culvert: &Harness,
    token: &str,
    host: &str,
    service: &Service,
) -> Option<(ngrok::Session, Box<dyn std::any::Any>)> {
    let builder = builder(culvert, culvert.agents, token);
    let session = soon("a session", builder.connect()).await.unwrap();
    let endpoint = serve(&session, host, service).await?;
    Some((session, endpoint))
}

/// The endpoint; `None` if it is refused.
async fn serve(
    session: &ngrok::Session,
    host: &str,
    service: &Service,
) -> Option<Box<dyn std::any::Any>> {
    let mut endpoint = session.http_endpoint();
    endpoint.scheme(Scheme::HTTP).domain(host);
    let endpoint = soon("an endpoint", endpoint.listen_and_forward(service.url())).await;
    Some(Box::new(endpoint.ok()?))
}

/// The other nodes reach its agents for as long as it is without the database, and nothing has changed when that is
/// back.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_database_keeps_its_agents() {
    const HOST: &str = "kept.culvert.localhost";
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let (database, url) = way_to_database(&one).await;
    let other = beside_at(&one, &url).await;
    let (_, token) = credential(&one, json!([])).await;
    let service = Service::named("one").await;
    let _agent = online(&other, &token, HOST, &service).await.unwrap();
    eventually("both serve it", async || {
        ask(one.http, HOST).await.0 == 200 && ask(other.http, HOST).await.0 == 200
    })
    .await;
    let sessions = list(&one, "tunnel_sessions").await;
    knows_a_helper(&other).await;

    for lost in [ProxyMode::Reset, ProxyMode::Still] {
        database.becomes(lost);
        let (began, mut asked) = (Instant::now(), 0);
        while began.elapsed() < FOUND_DEAD {
            for node in [&one, &other] {
                let (status, _) = ask(node.http, HOST).await;
                assert_eq!(status, 200, "{lost:?}, after {:?}", began.elapsed());
                asked += 1;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        println!("{lost:?}: {asked} requests, 0 failed");
        assert_eq!(list(&one, "tunnel_sessions").await, sessions);
        assert_eq!(ready(&other, "agents").await.0, 200);
        database.becomes(ProxyMode::Open);
        database.cut();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            for node in [&one, &other] {
                assert_eq!(ask(node.http, HOST).await.0, 200, "{lost:?}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        assert_eq!(list(&one, "tunnel_sessions").await, sessions);
    }
    other.stop().await;
    one.stop().await;
}

/// A node that reaches neither the database nor another node stops serving the names of its agents before another
/// owner can take them.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_never_served_for_two_owners() {
    const HOST: &str = "taken.culvert.localhost";
    let Some(backend) = cluster(2).await else {
        return;
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let peers = agents::Proxy::to(address).await;
    let one = Harness::start_with(&backend, |settings| {
        settings.nodes.addr = address.to_string();
        settings.nodes.advertised_addr = peers.address.to_string();
        settings.agents.name_reservation.0 = Duration::ZERO;
    })
    .await;
    let (database, url) = way_to_database(&one).await;
    let of_one = one.settings.clone();
    let other = Harness::start_with(&Backend::Sqlite, move |settings| {
        settings.database_url = url;
        settings.secrets.key_file = of_one.key_file().display().to_string();
        settings.edge.http_addr = "127.0.0.2:0".into();
        settings.edge.tcp_ports = of_one.edge.tcp_ports.clone();
        settings.agents.name_reservation.0 = Duration::ZERO;
    })
    .await;
    let (_, token) = credential(&one, json!([])).await;
    let bot = one.create("bot_users", json!({"name": "second"})).await;
    let second = json!({"acl": [], "owner_id": bot["id"]});
    let second: Value = one.create("credentials", second).await;
    let second = second["token"].as_str().unwrap();
    let (first_service, second_service) = (
        Service::named("first").await,
        Service::named("second").await,
    );
    let _first = online(&other, &token, HOST, &first_service).await.unwrap();
    eventually("both serve it", async || {
        ask(one.http, HOST).await.1 == "first" && ask(other.http, HOST).await.1 == "first"
    })
    .await;
    knows_a_helper(&other).await;

    peers.becomes(ProxyMode::Reset);
    database.becomes(ProxyMode::Reset);
    let cut_at = Instant::now();
    assert_eq!(ask(other.http, HOST).await.1, "first", "not immediately");
    // One session for all tries, because those that end keep their place for a while.
    let builder = builder(&one, one.agents, second);
    let session = soon("a session", builder.connect()).await.unwrap();
    let mut taken = None;
    eventually("another owner takes the name", async || {
        taken = serve(&session, HOST, &second_service).await;
        taken.is_some()
    })
    .await;
    let ended = ask(other.http, HOST).await;
    println!(
        "taken after {:?}; the other node: {ended:?}",
        cut_at.elapsed()
    );
    assert_ne!(ended.1, "first", "two owners");
    assert_eq!(ready(&other, "agents").await.0, 503);
    eventually("the name is served for its new owner", async || {
        ask(one.http, HOST).await.1 == "second"
    })
    .await;
    database.becomes(ProxyMode::Open);
    database.cut();
    peers.becomes(ProxyMode::Open);
    peers.cut();
    eventually("so does the node that is back", async || {
        let answer = ask(other.http, HOST).await;
        assert_ne!(answer.1, "first");
        answer.1 == "second"
    })
    .await;
    other.stop().await;
    one.stop().await;
}

/// A node without the database refuses all traffic once its configuration is too old, so a name that another owner has
/// meanwhile is served by one side only.
#[tokio::test(flavor = "multi_thread")]
async fn an_edge_serves_no_outdated_configuration() {
    const HOST: &str = "moved.culvert.localhost";
    let Some(backend) = cluster(2).await else {
        return;
    };
    let (one, port) = Harness::start_with_port_on(&backend).await;
    let (database, url) = way_to_database(&one).await;
    let of_one = one.settings.clone();
    let other = Harness::start_with(&Backend::Sqlite, move |settings| {
        settings.database_url = url;
        settings.secrets.key_file = of_one.key_file().display().to_string();
        settings.edge.http_addr = "127.0.0.2:0".into();
        settings.edge.tcp_ports = of_one.edge.tcp_ports.clone();
        settings.edge.copy_age_max = Span(Duration::from_secs(10));
    })
    .await;
    let bot = one.create("bot_users", json!({"name": "second"})).await;
    let second: Value = one.create("api_keys", json!({"owner_id": bot["id"]})).await;
    let second = one.client_with(second["token"].as_str().unwrap());
    let before = Service::named("before").await;
    let after = Service::named("after").await;
    let endpoint = |upstream: url::Url| json!({"url": format!("http://{HOST}"), "upstream_url": upstream.as_str()});
    let made = one.create("endpoints", endpoint(before.url())).await;
    let address = before.url().authority().to_owned();
    let tcp = json!({"url": "tcp://", "upstream_url": format!("tcp://{address}")});
    one.create("endpoints", tcp).await;
    let raw_port = SocketAddr::from(([127, 0, 0, 2], port));
    eventually("both serve it", async || {
        ask(one.http, HOST).await.1 == "before"
            && ask(other.http, HOST).await.1 == "before"
            && status_of(raw_port).await == Some(200)
    })
    .await;

    database.becomes(ProxyMode::Reset);
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let gone = one.call(Method::DELETE, &path, None).await;
    assert_eq!(gone.status, 204);
    let body = endpoint(after.url());
    let taken = second.expect(Method::POST, "/endpoints", Some(&body)).await;
    taken.unwrap();
    assert_eq!(ask(other.http, HOST).await.1, "before", "not immediately");
    assert_eq!(ready(&other, "edge").await.0, 200);
    eventually("the configuration is too old", async || {
        ask(other.http, HOST).await.0 == 503
    })
    .await;
    assert_eq!(ask(one.http, HOST).await.1, "after");
    for host in [HOST, "unknown.culvert.localhost"] {
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let refused = raw(other.http, request.as_bytes()).await.text;
        assert!(
            refused.contains("ngrok-error-code: ERR_NGROK_3624\r\n"),
            "{refused}"
        );
        assert!(refused.contains("retry-after: 30\r\n"), "{refused}");
    }
    assert_eq!(status_of(raw_port).await, None, "closed without a response");
    for role in ["edge", ""] {
        let (status, text) = ready(&other, role).await;
        assert_eq!(status, 503);
        assert!(text.contains("more than `edge.copy_age_max`"), "{text}");
    }
    let refused = metric(&other, "culvert_edge_outdated_refused_total").await;
    assert!(refused.is_some_and(|refused| refused >= 3.0), "{refused:?}");
    let age = metric(&other, "culvert_edge_configuration_age_seconds").await;
    assert!(age.is_some_and(|age| age >= 10.0), "{age:?}");

    database.becomes(ProxyMode::Open);
    eventually("it serves the new owner", async || {
        ask(other.http, HOST).await.1 == "after" && status_of(raw_port).await == Some(200)
    })
    .await;
    eventually("it is ready", async || ready(&other, "edge").await.0 == 200).await;
    other.stop().await;
    one.stop().await;
}

/// Status and text of a readiness check for a role, or for all without one.
async fn ready(culvert: &Harness, role: &str) -> (u16, String) {
    let query = match role {
        "" => String::new(),
        role => format!("?role={role}"),
    };
    let request = format!("GET /readyz{query} HTTP/1.0\r\n\r\n");
    let answer = raw(api_of(culvert), request.as_bytes()).await;
    (answer.status, answer.text)
}

/// The status of a response through the port of a TCP endpoint; `None` if the connection ends without one.
async fn status_of(address: SocketAddr) -> Option<u16> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.ok()?;
    std::str::from_utf8(&head[9..]).ok()?.parse().ok()
}

/// The value of a metric without labels.
async fn metric(culvert: &Harness, name: &str) -> Option<f64> {
    let metrics = raw(culvert.metrics, b"GET /metrics HTTP/1.0\r\n\r\n")
        .await
        .text;
    let mut lines = metrics.lines();
    lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Waits until a node knows another that can write its heartbeat.
async fn knows_a_helper(culvert: &Harness) {
    eventually("it knows another node", async || {
        metric(culvert, "culvert_node_helpers").await == Some(1.0)
    })
    .await;
}

/// The address of the API.
fn api_of(culvert: &Harness) -> SocketAddr {
    let address = culvert.api.trim_start_matches("http://");
    address.trim_end_matches('/').parse().unwrap()
}
