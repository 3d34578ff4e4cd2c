//! Many clients of one agent: those that stay connected, those that come and go, and those that wait for
//! a stream.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::agent_clients::{Kind, Order, Running, all_gone, start};
use crate::agents::{Service, soon};
use crate::harness::{Backend, Harness};

const HOST: &str = "crowd.culvert.localhost";
/// What a Rust-based agent stands, with its heartbeat.
const STREAMS: usize = 480;

async fn harness() -> Harness {
    Harness::start_with(&Backend::Sqlite, |settings| {
        // All clients of these tests have one address.
        settings.edge.connections_per_source_max = 16_000;
    })
    .await
}

async fn agent(kind: Kind, culvert: &Harness, proto: &str, upstream: SocketAddr) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let (_, token) = kind.credential(culvert, folder.path(), json!([])).await;
    let order = Order {
        proto,
        name: HOST,
        upstream,
        at: kind.ingress(culvert),
        token: &token,
        folder: folder.path(),
    };
    start(kind, culvert, order).await.unwrap()
}

/// A client that stays connected.
struct Client(TcpStream);

impl Client {
    async fn new(at: SocketAddr) -> Self {
        Self(TcpStream::connect(at).await.unwrap())
    }

    async fn send(&mut self, target: &str) {
        let request = format!("GET {target} HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
        self.0.write_all(request.as_bytes()).await.unwrap();
    }

    /// The head of the next answer, whose body is read as well.
    async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse::<usize>().unwrap())
        });
        let mut body = vec![0; length.unwrap()];
        self.0.read_exact(&mut body).await.unwrap();
        head
    }

    async fn ask(&mut self, target: &str) -> String {
        self.send(target).await;
        let mut head = self.head().await;
        head.truncate("HTTP/1.1 200".len());
        head
    }
}

/// Each client asks once, so many at a time: what was not answered with 200. One that is not connected
/// connects first, for the edge does not wait long for the first byte of a connection.
async fn ask_all(
    at: SocketAddr,
    clients: Vec<Option<Client>>,
    at_once: usize,
) -> (Vec<Option<Client>>, Vec<String>) {
    let places = Arc::new(Semaphore::new(at_once));
    let mut asking = JoinSet::new();
    for client in clients {
        let places = Arc::clone(&places);
        asking.spawn(async move {
            let _place = places.acquire().await.unwrap();
            let mut client = match client {
                Some(client) => client,
                None => Client::new(at).await,
            };
            let status = client.ask("/down/10").await;
            (client, status)
        });
    }
    let (mut clients, mut refused) = (Vec::new(), Vec::new());
    while let Some(asked) = asking.join_next().await {
        let (client, status) = asked.unwrap();
        clients.push(Some(client));
        if status != "HTTP/1.1 200" {
            refused.push(status);
        }
    }
    (clients, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_kept_clients_of_one_agent_are_all_served() {
    const KEPT: usize = 2_000;
    let culvert = harness().await;
    let service = Service::named("one").await;
    for kind in [Kind::Python, Kind::Own] {
        if !kind.is_here() {
            continue;
        }
        let agent = agent(kind, &culvert, "http", service.address).await;
        let mut kept: Vec<Option<Client>> = (0..KEPT).map(|_| None).collect();
        for round in 0..2 {
            let refused;
            (kept, refused) = soon("answers", ask_all(culvert.http, kept, 200)).await;
            assert_eq!(refused, Vec::<String>::new(), "{kind:?} in round {round}");
        }
        // Beside them, more clients come and go in a second than an agent has streams.
        let fresh = (0..3 * STREAMS).map(|_| None).collect();
        let (_, refused) = soon("answers", ask_all(culvert.http, fresh, 200)).await;
        assert_eq!(refused, Vec::<String>::new(), "{kind:?}");
        drop(kept);
        agent.close().await;
        all_gone(&culvert).await;
    }
    culvert.stop().await;
}

/// A service that answers when it is let, with how many requests it holds.
async fn held(
    tasks: &mut JoinSet<()>,
    is_let: watch::Receiver<bool>,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let holding = Arc::new(AtomicUsize::new(0));
    let held = Arc::clone(&holding);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut is_let, held) = (is_let.clone(), Arc::clone(&held));
            connections.spawn(async move {
                let mut read = Vec::new();
                while let Ok(byte) = stream.read_u8().await {
                    read.push(byte);
                    if !read.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    read.clear();
                    held.fetch_add(1, Ordering::Relaxed);
                    drop(is_let.wait_for(|is_let| *is_let).await);
                    held.fetch_sub(1, Ordering::Relaxed);
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    drop(stream.write_all(answer).await);
                }
            });
        }
    });
    (address, holding)
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_stream_of_an_agent_waits_a_little_and_may_try_again() {
    let culvert = harness().await;
    let mut tasks = JoinSet::new();
    let (open, is_let) = watch::channel(false);
    let (service, holding) = held(&mut tasks, is_let).await;
    let agent = agent(Kind::Crate, &culvert, "http", service).await;
    let mut clients = Vec::new();
    // One stream is the agent's heartbeat.
    for _ in 0..STREAMS - 1 {
        let mut client = Client::new(culvert.http).await;
        client.send("/").await;
        clients.push(client);
    }
    until("all streams are in use", || {
        holding.load(Ordering::Relaxed) == STREAMS - 1
    })
    .await;
    // Nobody lets go of a stream in time.
    let mut late = Client::new(culvert.http).await;
    late.send("/").await;
    let head = soon("an answer", late.head()).await;
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(head.contains("\r\nretry-after: 1\r\n"), "{head}");
    assert!(head.contains("ERR_NGROK_3621"), "{head}");
    // These wait, and then there are streams for them.
    let mut waiting = Vec::new();
    for _ in 0..100 {
        let mut client = Client::new(culvert.http).await;
        client.send("/").await;
        waiting.push(client);
    }
    open.send_replace(true);
    for client in clients.iter_mut().chain(&mut waiting) {
        let head = soon("an answer", client.head()).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    drop((clients, waiting));
    agent.close().await;
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_clients_beyond_the_streams_of_an_agent_wait_for_one() {
    let (culvert, port) = Harness::start_with_port().await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let service = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut reader, mut writer) = stream.split();
                drop(tokio::io::copy(&mut reader, &mut writer).await);
            });
        }
    });
    let agent = agent(Kind::Crate, &culvert, "tcp", service).await;
    let served = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for _ in 0..STREAMS + 20 {
        let served = Arc::clone(&served);
        let (close, mut is_closed) = watch::channel(false);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .unwrap();
            stream.write_all(b"x").await.unwrap();
            stream.read_u8().await?;
            served.fetch_add(1, Ordering::Relaxed);
            drop(is_closed.wait_for(|is| *is).await);
            std::io::Result::Ok(())
        });
        clients.push((close, task));
    }
    until("the streams are in use", || {
        served.load(Ordering::Relaxed) >= STREAMS - 1
    })
    .await;
    for (close, mut task) in clients {
        close.send_replace(true);
        let ended = soon("the end of a client", task.join_next()).await;
        ended.unwrap().unwrap().unwrap();
    }
    assert_eq!(served.load(Ordering::Relaxed), STREAMS + 20);
    agent.close().await;
    culvert.stop().await;
}
