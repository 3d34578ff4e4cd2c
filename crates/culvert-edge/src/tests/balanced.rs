//! Endpoints with several upstreams: turns, failures and repeated requests.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert_edge_config::{
    Balancing, HashKey, ListedUpstream, PassiveHealth, RetriedStatuses, Retries, Sticky,
    UpstreamList,
};
use culvert_policy::Scheme;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::harness::*;
use super::limits::free_port;
use super::secure::http2_origin;
use crate::{Endpoint, Snapshot, Upstream};

const GET: &str = "GET /x HTTP/1.1\r\nHost: app.example\r\n\r\n";

/// An origin that can be killed with all its connections, and started again at the same address.
struct Server {
    name: &'static str,
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

/// How an origin responds, as a whole message; it closes the connection without one if this is empty.
type Respond = fn(name: &str, count: usize) -> String;

fn named(name: &str, _count: usize) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}",
        name.len()
    )
}

impl Server {
    async fn start(name: &'static str) -> Self {
        Self::with(name, named).await
    }

    async fn with(name: &'static str, respond: Respond) -> Self {
        let mut server = Self {
            name,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            requests: Arc::default(),
            tasks: JoinSet::new(),
        };
        server.serve(respond).await;
        server
    }

    async fn serve(&mut self, respond: Respond) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let (name, requests) = (self.name, Arc::clone(&self.requests));
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let requests = Arc::clone(&requests);
                connections.spawn(async move {
                    let mut client = Client::new(stream);
                    while client.request().await.is_some() {
                        let count = requests.fetch_add(1, Ordering::SeqCst);
                        let response = respond(name, count);
                        if response.is_empty() {
                            return;
                        }
                        client.send(response).await;
                    }
                });
            }
        });
    }

    async fn kill(&mut self) {
        self.tasks.shutdown().await;
    }

    fn count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

pub(super) fn list(
    scheme: &str,
    upstreams: &[(SocketAddr, u16, u8)],
    protocol: &str,
) -> UpstreamList {
    let listed = |&(address, weight, priority): &(SocketAddr, u16, u8)| ListedUpstream {
        upstream: Upstream::parse(&format!("{scheme}://{address}"), protocol).unwrap(),
        weight,
        priority,
        in_flight_max: None,
    };
    UpstreamList {
        upstreams: upstreams.iter().map(listed).collect(),
        balancing: Balancing::RoundRobin,
        sticky: None,
        health: PassiveHealth::default(),
        slow_start: Duration::ZERO,
        checks: None,
        retries: Retries::default(),
    }
}

pub(super) fn several(list: UpstreamList) -> Endpoint {
    Endpoint {
        upstream: list.upstreams.first().map(|one| one.upstream.clone()),
        upstreams: Some(Arc::new(list)),
        ..endpoint(Scheme::Http, "app.example", 80, "http://127.0.0.1:1", "")
    }
}

pub(super) async fn publish(rig: &Rig, endpoint: Endpoint) {
    let snapshot = Snapshot::builder().endpoint(endpoint);
    rig.edge.publish(snapshot.build()).await;
}

/// An edge with one endpoint that divides its traffic evenly among these.
async fn evenly(servers: &[&Server], change: impl Fn(&mut UpstreamList)) -> Rig {
    let rig = Rig::start().await;
    let upstreams: Vec<_> = servers.iter().map(|one| (one.address, 1, 0)).collect();
    let mut list = list("http", &upstreams, "");
    change(&mut list);
    publish(&rig, several(list)).await;
    rig
}

/// How often each body and status came.
async fn asked(rig: &Rig, requests: usize) -> BTreeMap<(u16, String), usize> {
    let mut client = rig.connect().await;
    let mut counts = BTreeMap::new();
    for _ in 0..requests {
        client.send(GET).await;
        let answer = client.answer("GET").await;
        let text = match answer.status {
            200 => answer.text().to_owned(),
            _ => String::new(),
        };
        *counts.entry((answer.status, text)).or_insert(0) += 1;
    }
    counts
}

fn counted(counts: &[(&str, usize)]) -> BTreeMap<(u16, String), usize> {
    let counts = counts.iter();
    counts
        .map(|&(name, count)| ((200, name.to_owned()), count))
        .collect()
}

#[tokio::test]
async fn each_upstream_gets_as_many_requests_as_its_weight_says() {
    let (a, b) = (Server::start("a").await, Server::start("b").await);
    let (c, spare) = (Server::start("c").await, Server::start("spare").await);
    let rig = Rig::start().await;
    let upstreams = [
        (a.address, 500, 0),
        (b.address, 300, 0),
        (c.address, 200, 0),
        (spare.address, 1, 1),
    ];
    publish(&rig, several(list("http", &upstreams, ""))).await;
    let expected = counted(&[("a", 50), ("b", 30), ("c", 20)]);
    assert_eq!(asked(&rig, 100).await, expected);
    let events = rig.recorder.events(100).await;
    let of_a = format!("http://{}", a.address);
    let to_a = events
        .iter()
        .filter(|event| event["culvert"]["upstream"] == of_a.as_str());
    assert_eq!(to_a.count(), 50);
}

#[tokio::test]
async fn no_repeatable_request_fails_when_one_of_three_upstreams_dies_under_load() {
    let mut a = Server::start("a").await;
    let (b, c) = (Server::start("b").await, Server::start("c").await);
    let rig = Arc::new(evenly(&[&a, &b, &c], |_| {}).await);
    let mut clients = JoinSet::new();
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..16 {
        let (rig, done) = (Arc::clone(&rig), Arc::clone(&done));
        clients.spawn(async move {
            let mut client = rig.connect().await;
            let mut failed = Vec::new();
            for _ in 0..200 {
                client.send(GET).await;
                let answer = client.answer("GET").await;
                done.fetch_add(1, Ordering::SeqCst);
                if answer.status != 200 {
                    failed.push((answer.status, String::from_utf8(answer.body).unwrap()));
                }
            }
            failed
        });
    }
    eventually("half of the requests", || {
        done.load(Ordering::SeqCst) > 1_000
    })
    .await;
    a.kill().await;
    let failed: Vec<_> = clients.join_all().await.concat();
    assert_eq!(failed, []);
    assert_eq!(rig.edge.meters().upstreams_ejected.get(), 1);
    // It gets no traffic until its time is over.
    let before = rig.edge.meters().upstream_connects_failed.get();
    assert_eq!(asked(&rig, 20).await, counted(&[("b", 10), ("c", 10)]));
    assert_eq!(rig.edge.meters().upstream_connects_failed.get(), before);
}

#[tokio::test]
async fn if_all_are_down_the_first_to_return_serves_the_next_request() {
    let (mut a, mut b) = (Server::start("a").await, Server::start("b").await);
    let rig = evenly(&[&a, &b], |_| {}).await;
    asked(&rig, 2).await;
    a.kill().await;
    b.kill().await;
    let none = asked(&rig, 10).await;
    assert_eq!(none, BTreeMap::from([((502, String::new()), 10)]));
    assert_eq!(rig.edge.meters().upstreams_ejected.get(), 2);
    b.serve(named).await;
    assert_eq!(asked(&rig, 10).await, counted(&[("b", 10)]));
    assert_eq!(rig.edge.meters().upstreams_returned.get(), 1);
}

#[tokio::test]
async fn a_request_with_a_body_goes_on_if_its_upstream_cannot_be_connected_to() {
    let (mut a, b) = (Server::start("a").await, Server::start("b").await);
    a.kill().await;
    let rig = evenly(&[&a, &b], |list| list.health.consecutive_failures = 0).await;
    let mut client = rig.connect().await;
    for _ in 0..4 {
        client
            .send("POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 4\r\n\r\nbody")
            .await;
        let answer = client.answer("POST").await;
        assert_eq!((answer.status, answer.text()), (200, "b"));
    }
    assert_eq!(rig.edge.meters().upstream_moves.get(), 2);
    assert_eq!(b.count(), 4);
}

#[tokio::test]
async fn only_requests_that_can_be_repeated_are_sent_again_after_they_were_received() {
    let a = Server::with("a", |_, _| String::new()).await;
    let b = Server::start("b").await;
    let rig = evenly(&[&a, &b], |list| list.health.consecutive_failures = 0).await;
    assert_eq!(asked(&rig, 4).await, counted(&[("b", 4)]));
    assert_eq!((a.count(), b.count()), (2, 4));
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let post = "POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 0\r\n\r\n";
        statuses.push(rig.ask(post).await.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 502, 502]);
    assert_eq!((a.count(), b.count()), (4, 6));
}

#[tokio::test]
async fn chosen_statuses_count_as_failures() {
    const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy";
    let a = Server::with("a", |_, _| BUSY.to_owned()).await;
    let b = Server::start("b").await;
    let rig = evenly(&[&a, &b], |list| {
        list.retries.statuses = RetriedStatuses {
            unavailable: true,
            ..RetriedStatuses::default()
        };
    })
    .await;
    assert_eq!(asked(&rig, 20).await, counted(&[("b", 20)]));
    // Ejected after three.
    assert_eq!(a.count(), 3);
    // Without the choice the response is the client's.
    let rig = evenly(&[&a, &b], |_| {}).await;
    let counts = asked(&rig, 20).await;
    assert_eq!(counts.get(&(503, String::new())), Some(&10));
}

#[tokio::test]
async fn the_last_response_stands_if_no_upstream_is_better() {
    const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy";
    let a = Server::with("a", |_, _| BUSY.to_owned()).await;
    let b = Server::with("b", |_, _| BUSY.to_owned()).await;
    let rig = evenly(&[&a, &b], |list| list.retries.statuses.unavailable = true).await;
    let answer = rig.ask(GET).await;
    assert_eq!((answer.status, answer.text()), (503, "busy"));
    assert_eq!((a.count(), b.count()), (1, 1));
}

#[tokio::test]
async fn a_budget_limits_what_is_sent_again() {
    let a = Server::with("a", |_, _| String::new()).await;
    let b = Server::with("b", |_, _| String::new()).await;
    let rig = evenly(&[&a, &b], |list| list.retries.budget_percent = 10).await;
    let reserve = usize::try_from(Retries::RESERVE).unwrap();
    asked(&rig, 2 * reserve).await;
    let again = a.count() + b.count() - 2 * reserve;
    assert!((reserve..=reserve * 13 / 10).contains(&again), "{again}");
    assert!(rig.edge.meters().upstream_moves_refused.get() > 0);
}

#[tokio::test]
async fn nothing_is_sent_again_once_a_response_has_begun() {
    let cut = |_: &str, _| "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_owned();
    let mut a = Server::with("a", cut).await;
    let b = Server::start("b").await;
    let rig = evenly(&[&a, &b], |_| {}).await;
    let mut client = rig.connect().await;
    client.send(GET).await;
    let first = client.head().await.unwrap();
    assert!(first.starts_with("HTTP/1.1 200"));
    a.kill().await;
    assert_eq!(client.rest().await, b"half");
    assert_eq!((a.count(), b.count()), (1, 0));
}

#[tokio::test]
async fn a_slow_try_ends_and_the_request_goes_on() {
    let mut tasks = JoinSet::new();
    let slow = origin(&mut tasks, |mut client| async move {
        client.request().await;
        std::future::pending::<()>().await;
    })
    .await;
    let b = Server::start("b").await;
    let rig = Rig::start().await;
    let mut list = list("http", &[(slow, 1, 0), (b.address, 1, 0)], "");
    list.retries.per_try_timeout = Some(Duration::from_millis(100));
    publish(&rig, several(list)).await;
    assert_eq!(asked(&rig, 8).await, counted(&[("b", 8)]));
    assert_eq!(rig.edge.meters().upstreams_ejected.get(), 1);
}

#[tokio::test]
async fn http2_upstreams_are_a_list_too() {
    let mut rig = Rig::start().await;
    let good = http2_origin(&mut rig.tasks).await;
    let mut dead = Server::start("dead").await;
    dead.kill().await;
    let upstreams = [(dead.address, 1, 0), (good, 1, 0)];
    publish(&rig, several(list("http", &upstreams, "http2"))).await;
    for _ in 0..6 {
        assert_eq!(rig.ask(GET).await.status, 200);
    }
    assert_eq!(rig.edge.meters().upstreams_ejected.get(), 1);
}

#[tokio::test]
async fn a_change_of_the_list_keeps_turns_and_failures() {
    let mut a = Server::start("a").await;
    let (b, c) = (Server::start("b").await, Server::start("c").await);
    let rig = evenly(&[&a, &b], |_| {}).await;
    a.kill().await;
    asked(&rig, 12).await;
    assert_eq!(rig.edge.meters().upstreams_ejected.get(), 1);
    let failed = rig.edge.meters().upstream_connects_failed.get();
    let upstreams = [(a.address, 1, 0), (b.address, 1, 0), (c.address, 1, 0)];
    publish(&rig, several(list("http", &upstreams, ""))).await;
    assert_eq!(asked(&rig, 10).await, counted(&[("b", 5), ("c", 5)]));
    assert_eq!(rig.edge.meters().upstream_connects_failed.get(), failed);
    // Back to one upstream, and forth.
    publish(
        &rig,
        endpoint(
            Scheme::Http,
            "app.example",
            80,
            &format!("http://{}", c.address),
            "",
        ),
    )
    .await;
    assert_eq!(asked(&rig, 3).await, counted(&[("c", 3)]));
}

#[tokio::test]
async fn connections_of_tcp_endpoints_are_divided_too() {
    let mut a = Server::start("a").await;
    let b = Server::start("b").await;
    let rig = Rig::start().await;
    let port = free_port().await;
    let list = list("tcp", &[(a.address, 1, 0), (b.address, 1, 0)], "");
    let tcp = Endpoint {
        scheme: Scheme::Tcp,
        port,
        ..several(list)
    };
    publish(&rig, tcp).await;
    let ask = || async {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let mut client = Client::new(stream.await.unwrap());
        client.send(GET).await;
        client.answer("GET").await.text().to_owned()
    };
    let mut served = [ask().await, ask().await];
    served.sort();
    assert_eq!(served, ["a", "b"]);
    a.kill().await;
    for _ in 0..8 {
        assert_eq!(ask().await, "b");
    }
    assert_eq!(rig.edge.meters().upstreams_ejected.get(), 1);
}

/// Publishes two endpoints of one address that share it: one with a single upstream, and one with a list.
async fn publish_pooled(rig: &Rig, alone: Endpoint, mut listed: Endpoint) {
    listed.id = "ep_2".into();
    let snapshot = Snapshot::builder().endpoint(alone).endpoint(listed);
    rig.edge.publish(snapshot.build()).await;
}

#[tokio::test]
async fn a_list_shares_an_address_with_another_endpoint() {
    let mut a = Server::start("a").await;
    let (mut b, mut c) = (Server::start("b").await, Server::start("c").await);
    let rig = Rig::start().await;
    let url = format!("http://{}", a.address);
    let alone = endpoint(Scheme::Http, "app.example", 80, &url, "");
    let upstreams = [(b.address, 1, 0), (c.address, 1, 0)];
    publish_pooled(&rig, alone, several(list("http", &upstreams, ""))).await;
    let ask = async |count| {
        let mut served = BTreeMap::new();
        for _ in 0..count {
            let mut client = rig.connect().await;
            client.send(GET).await;
            let answer = client.answer("GET").await;
            let text = (answer.status == 200).then(|| answer.text().to_owned());
            *served
                .entry((answer.status, text.unwrap_or_default()))
                .or_insert(0) += 1;
        }
        served
    };
    assert_eq!(ask(8).await, counted(&[("a", 4), ("b", 2), ("c", 2)]));
    // The list stands in for the other endpoint, and the other for the list.
    a.kill().await;
    let served = ask(8).await;
    let of_list: usize = served.values().sum();
    assert_eq!(of_list, 8);
    assert!(
        served.keys().all(|(status, _)| *status == 200),
        "{served:?}"
    );
    b.kill().await;
    c.kill().await;
    a.serve(named).await;
    assert_eq!(ask(8).await, counted(&[("a", 8)]));
}

/// An upstream that accepts one connection, and keeps it.
async fn kept(listener: TcpListener, release: Arc<Notify>) {
    let (stream, _) = listener.accept().await.unwrap();
    drop(listener);
    let mut client = Client::new(stream);
    while let Some((head, _)) = client.request().await {
        if head.contains("/held") {
            release.notified().await;
        }
        client.send(named("kept", 0)).await;
    }
}

/// Whether a connection can be opened says nothing about a response over another one.
#[tokio::test]
async fn a_response_over_a_kept_connection_is_no_failure() {
    let alone = Server::start("alone").await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (release, mut tasks) = (Arc::new(Notify::new()), JoinSet::new());
    tasks.spawn(kept(listener, Arc::clone(&release)));
    let rig = Rig::start().await;
    let url = format!("http://{}", alone.address);
    let one = endpoint(Scheme::Http, "app.example", 80, &url, "");
    publish_pooled(&rig, one, several(list("http", &[(address, 1, 0)], ""))).await;
    let state = || rig.edge.upstream_statuses("ep_2").unwrap()[0].clone();
    let ask = async |count| {
        let mut kept = 0;
        for _ in 0..count {
            let answer = rig.ask(GET).await;
            assert_eq!(answer.status, 200);
            kept += usize::from(answer.text() == "kept");
        }
        kept
    };
    // In turn with the other endpoint.
    assert_eq!(ask(2).await, 1);
    let mut held = [rig.connect().await, rig.connect().await];
    for client in &mut held {
        client.send(GET.replace("/x", "/held")).await;
    }
    eventually("one is held", || state().open_requests == 1).await;
    assert_eq!(ask(2).await, 0, "no other connection can be opened");
    assert_eq!(state().failures, 1);
    release.notify_one();
    for client in &mut held {
        assert_eq!(client.answer("GET").await.status, 200);
    }
    assert_eq!(ask(8).await, 4);
    assert_eq!((state().failures, state().is_healthy), (0, true));
}

#[tokio::test]
async fn a_list_loses_no_turns_as_a_stand_in_of_a_tcp_endpoint() {
    let a = Server::start("a").await;
    let (b, c) = (Server::start("b").await, Server::start("c").await);
    let rig = Rig::start().await;
    let port = free_port().await;
    let url = format!("tcp://{}", a.address);
    let alone = endpoint(Scheme::Tcp, "app.example", port, &url, "");
    let listed = Endpoint {
        scheme: Scheme::Tcp,
        port,
        ..several(list("tcp", &[(b.address, 1, 0), (c.address, 1, 0)], ""))
    };
    publish_pooled(&rig, alone, listed).await;
    for _ in 0..8 {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        let mut client = Client::new(stream.unwrap());
        client.send(GET).await;
        assert_eq!(client.answer("GET").await.status, 200);
    }
    assert_eq!((a.count(), b.count(), c.count()), (4, 2, 2));
}

#[tokio::test]
async fn an_upgrade_goes_to_one_upstream() {
    let a = Server::with("a", |_, _| String::new()).await;
    let b = Server::start("b").await;
    let rig = evenly(&[&a, &b], |list| list.health.consecutive_failures = 0).await;
    let websocket = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (turn, fields) in [websocket, "Upgrade: tcp\r\n"].into_iter().enumerate() {
        let mut statuses = Vec::new();
        for _ in 0..4 {
            let asked = GET.replace("\r\n\r\n", "\r\nConnection: upgrade\r\n");
            let answer = rig.ask(&(asked + fields + "\r\n")).await;
            statuses.push(answer.status);
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 502, 502], "{fields}");
        assert_eq!((a.count(), b.count()), (2 * turn + 2, 2 * turn + 2));
    }
}

/// Keeps a connection, and says nothing.
async fn silent(client: Client<TcpStream>) {
    std::future::pending::<()>().await;
    drop(client);
}

#[tokio::test]
async fn an_upstream_that_accepts_no_connection_is_ejected_though_no_client_waits() {
    let mut tasks = JoinSet::new();
    let reached = Arc::new(AtomicUsize::new(0));
    let mut holes = Vec::new();
    for _ in 0..2 {
        let reached = Arc::clone(&reached);
        // It never begins the handshake of TLS.
        let hole = origin(&mut tasks, move |client| {
            reached.fetch_add(1, Ordering::SeqCst);
            silent(client)
        });
        holes.push((hole.await, 1, 0));
    }
    let rig = Rig::start().await;
    let mut endpoint = several(list("https", &holes, ""));
    endpoint.timeouts.connect = Some(Duration::from_secs(3));
    publish(&rig, endpoint).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut client = rig.connect().await;
        client.send(GET).await;
        clients.push(client);
    }
    eventually("all connections", || reached.load(Ordering::SeqCst) == 6).await;
    // They leave early.
    drop(clients);
    eventually("their ends", || rig.edge.meters().connections.get() == 0).await;
    assert_eq!(rig.edge.meters().upstreams_ejected.get(), 0);
    let mut clients = JoinSet::new();
    for _ in 0..6 {
        let mut client = rig.connect().await;
        clients.spawn(async move {
            client.send(GET).await;
            // Nearly all of the limit.
            let waited = tokio::time::timeout(Duration::from_millis(2_800), client.more());
            drop(waited.await);
        });
    }
    clients.join_all().await;
    let ejected = || rig.edge.meters().upstreams_ejected.get();
    eventually("both are ejected", || ejected() == 2).await;
}

#[tokio::test]
async fn a_slow_try_on_http2_ends_and_the_request_goes_on() {
    let mut rig = Rig::start().await;
    let good = http2_origin(&mut rig.tasks).await;
    let slow = origin(&mut rig.tasks, silent).await;
    let mut list = list("http", &[(slow, 1, 0), (good, 1, 0)], "http2");
    list.retries.per_try_timeout = Some(Duration::from_millis(100));
    publish(&rig, several(list)).await;
    for _ in 0..8 {
        assert_eq!(rig.ask(GET).await.status, 200);
    }
    assert_eq!(rig.edge.meters().upstreams_ejected.get(), 1);
}

/// An origin with one connection, which it closes when the second request has arrived. Others are refused.
async fn dies_at_the_second_request(tasks: &mut JoinSet<()>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    tasks.spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        drop(listener);
        let mut client = Client::new(stream);
        for response in [named("a", 0), String::new()] {
            client.request().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            client.send(response).await;
        }
    });
    (address, requests)
}

#[tokio::test]
async fn a_request_on_an_open_connection_that_closes_was_sent() {
    for resets in [false, true] {
        let mut rig = Rig::start().await;
        let (a, requests) = dies_at_the_second_request(&mut rig.tasks).await;
        let b = Server::start("b").await;
        let mut list = list("http", &[(a, 1, 0), (b.address, 1, 0)], "");
        list.retries.reset = resets;
        publish(&rig, several(list)).await;
        assert_eq!(asked(&rig, 2).await, counted(&[("a", 1), ("b", 1)]));
        // The upstream cannot be connected to any more, but it has received this request.
        let served = asked(&rig, 1).await;
        let expected = match resets {
            true => counted(&[("b", 1)]),
            false => BTreeMap::from([((502, String::new()), 1)]),
        };
        assert_eq!((served, requests.load(Ordering::SeqCst)), (expected, 2));
    }
}

/// The same cookie, field or client has the same upstream, and goes to another one only while that does not serve.
#[tokio::test]
async fn requests_with_the_same_key_go_to_the_same_upstream() {
    let mut servers = [
        Server::start("a").await,
        Server::start("b").await,
        Server::start("c").await,
    ];
    let by = async |key: HashKey| {
        let [a, b, c] = &servers;
        evenly(&[a, b, c], |list| {
            list.balancing = Balancing::Hash(key.clone());
        })
        .await
    };
    let of_cookie = by(HashKey::Cookie("sid".to_owned())).await;
    let of_field = by(HashKey::Header("x-user".to_owned())).await;
    let of_client = by(HashKey::ClientAddress).await;
    let ask = async |rig: &Rig, field: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: app.example\r\n{field}\r\n\r\n");
        let answer = rig.ask(&request).await;
        assert_eq!(answer.status, 200);
        answer.text().to_owned()
    };
    let mut names = BTreeMap::<String, usize>::new();
    for user in 0..30 {
        let cookie = format!("Cookie: x=1; sid={user}; sid2=7");
        let first = ask(&of_cookie, &cookie).await;
        assert_eq!(ask(&of_cookie, &cookie).await, first, "{user}");
        // A head that is not plain takes the other path.
        let unusual = format!("{cookie}\r\nTE: trailers");
        assert_eq!(ask(&of_cookie, &unusual).await, first, "{user}");
        let field = format!("X-User: {user}");
        assert_eq!(ask(&of_field, &field).await, ask(&of_field, &field).await);
        *names.entry(first).or_default() += 1;
    }
    assert_eq!(names.len(), 3, "{names:?}");
    let of_one = asked(&of_client, 12).await;
    assert_eq!(of_one.values().collect::<Vec<_>>(), [&12]);
    assert_eq!(asked(&of_field, 12).await.len(), 3, "without a key in turn");

    let cookie = "Cookie: sid=1";
    let first = ask(&of_cookie, cookie).await;
    let index = ["a", "b", "c"].iter().position(|name| *name == first);
    let server = &mut servers[index.unwrap()];
    server.kill().await;
    let second = ask(&of_cookie, cookie).await;
    assert_ne!(second, first);
    assert_eq!(ask(&of_cookie, cookie).await, second);
}

fn make_sticky(list: &mut UpstreamList) {
    let key = culvert_base::DigestKey::new(b"key");
    let upstreams = list.upstreams.iter().map(|one| &one.upstream);
    list.sticky = Some(Sticky::of(&key, "ep_1", upstreams));
}

/// The body of a response, and the cookie it sets.
async fn with_cookie(rig: &Rig, cookie: &str) -> (String, String) {
    let field = match cookie.is_empty() {
        true => String::new(),
        false => format!("Cookie: a=1; {cookie}; b=2\r\n"),
    };
    let request = format!("GET / HTTP/1.1\r\nHost: app.example\r\n{field}\r\n");
    let answer = rig.ask(&request).await;
    assert_eq!(answer.status, 200);
    let set = answer.header("set-cookie").unwrap_or_default();
    let pair = set.split(';').next().unwrap_or_default().to_owned();
    if !pair.is_empty() {
        assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set}");
    }
    (answer.text().to_owned(), pair)
}

/// The cookie decides while its upstream serves, and no client can make one.
#[tokio::test]
async fn a_client_stays_at_the_upstream_that_served_it() {
    let mut servers = [
        Server::start("a").await,
        Server::start("b").await,
        Server::start("c").await,
    ];
    let [a, b, c] = &servers;
    let rig = evenly(&[a, b, c], make_sticky).await;
    let mut cookies = BTreeMap::new();
    for _ in 0..6 {
        let (name, cookie) = with_cookie(&rig, "").await;
        assert!(cookie.starts_with("culvert.upstream."), "{cookie}");
        let known = cookies.entry(name).or_insert_with(|| cookie.clone());
        assert_eq!(*known, cookie);
    }
    assert_eq!(cookies.len(), 3);
    for (name, cookie) in &cookies {
        for _ in 0..5 {
            let again = with_cookie(&rig, cookie).await;
            assert_eq!(again, (name.clone(), String::new()));
        }
    }
    // One that no edge made chooses nothing: all are served in turn, with the true cookies.
    let name = cookies["a"].split_once('=').unwrap().0;
    let mut forged = BTreeMap::new();
    for _ in 0..3 {
        let (by, cookie) = with_cookie(&rig, &format!("{name}=0123456789abcdef")).await;
        forged.insert(by, cookie);
    }
    assert_eq!(forged, cookies);

    let cookie = cookies["b"].clone();
    servers[1].kill().await;
    let (next, new) = with_cookie(&rig, &cookie).await;
    assert_ne!(next, "b");
    assert_eq!(new, cookies[&next]);
    servers[1].serve(named).await;
    assert_eq!(with_cookie(&rig, &new).await, (next, String::new()));
}

/// What came in the `cookie` fields of a request, in the body of its response.
async fn cookies_seen(tasks: &mut JoinSet<()>) -> SocketAddr {
    origin(tasks, async |mut client| {
        while let Some((head, _)) = client.request().await {
            let lines = head.lines();
            let lines = lines.filter(|line| line.to_ascii_lowercase().starts_with("cookie: "));
            let seen: Vec<&str> = lines.map(|line| &line[8..]).collect();
            let seen = seen.join("|");
            let length = seen.len();
            client
                .send(format!(
                    "HTTP/1.1 200 OK\r\nset-cookie: culvert.upstream.x=1\r\nset-cookie: sid=2\r\n\
                     content-length: {length}\r\n\r\n{seen}"
                ))
                .await;
        }
    })
    .await
}

#[tokio::test]
async fn upstreams_neither_see_nor_set_the_cookie_of_the_edge() {
    let mut tasks = JoinSet::new();
    let (one, other) = (
        cookies_seen(&mut tasks).await,
        cookies_seen(&mut tasks).await,
    );
    let rig = Rig::start().await;
    let mut list = list("http", &[(one, 1, 0), (other, 1, 0)], "");
    make_sticky(&mut list);
    let sticky = list.sticky.clone().unwrap();
    let name = format!("culvert.{}", sticky.cookie);
    publish(&rig, several(list)).await;
    let ask = async |cookie: &str| {
        rig.ask(&format!(
            "GET /x HTTP/1.1\r\nHost: app.example\r\nCookie: a=1; {cookie}; b=2\r\n\r\n"
        ))
        .await
    };
    let kept = ask(&format!("{name}={}", sticky.tokens[1])).await;
    assert_eq!(kept.text(), "a=1; b=2");
    let set = |answer: &Answer| -> Vec<String> {
        let fields = answer.headers.iter();
        let set = fields.filter(|(name, _)| name == "set-cookie");
        set.map(|(_, value)| value.clone()).collect()
    };
    assert_eq!(set(&kept), ["sid=2"]);
    let new = set(&ask("c=3").await);
    assert_eq!((new.len(), new[0].as_str()), (2, "sid=2"), "{new:?}");
    assert!(new[1].starts_with(&format!("{name}=")), "{new:?}");
    // The value is no secret, but who reads events has no use for it.
    let events = rig.recorder.events(2).await;
    assert!(!format!("{events:?}").contains(&sticky.tokens[0]));
}
