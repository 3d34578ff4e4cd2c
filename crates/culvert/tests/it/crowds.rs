//! Many clients of one agent: those that stay connected, those that come and go, and those that wait for
//! a stream.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::agent_clients::{Kind, Order, Running, all_gone, start};
use crate::agents::{Service, credential, soon};
use crate::harness::{Backend, Harness, binary, eventually};

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
    agent_with(kind, culvert, proto, upstream, None).await
}

async fn agent_with(
    kind: Kind,
    culvert: &Harness,
    proto: &str,
    upstream: SocketAddr,
    files: Option<(u64, u64)>,
) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let (_, token) = kind.credential(culvert, folder.path(), json!([])).await;
    let order = Order {
        proto,
        name: HOST,
        upstream,
        at: kind.ingress(culvert),
        token: &token,
        folder: folder.path(),
        files,
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
        let head = self.only_head().await;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse::<usize>().unwrap())
        });
        let mut body = vec![0; length.unwrap()];
        self.0.read_exact(&mut body).await.unwrap();
        head
    }

    /// The head of the next answer.
    async fn only_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    /// Whether a request gets an answer with 200, on a connection that is not used again.
    async fn ask_any(&mut self, target: &str) -> bool {
        self.send(target).await;
        self.only_head().await.starts_with("HTTP/1.1 200")
    }

    async fn ask(&mut self, target: &str) -> String {
        self.send(target).await;
        let mut head = self.head().await;
        head.truncate("HTTP/1.1 200".len());
        head
    }
}

/// Each client sends one request, `at_a_time` concurrently. Returns the responses other than 200. One that is not connected
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
async fn two_thousand_idle_clients_of_one_agent_are_served() {
    const KEPT: usize = 2_000;
    const FRESH: usize = 2_000;
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
        // Beside them, more clients come and go than an agent has streams, as fast as the machine lets them.
        let fresh = (0..FRESH).map(|_| None).collect();
        let begun = Instant::now();
        let (_, refused) = soon("answers", ask_all(culvert.http, fresh, 200)).await;
        assert_eq!(refused, Vec::<String>::new(), "{kind:?}");
        let rate = FRESH as f64 / begun.elapsed().as_secs_f64();
        println!(
            "{kind:?}: {KEPT} clients stay, {rate:.0} more a second come and go, none is refused"
        );
        drop(kept);
        agent.close().await;
        all_gone(&culvert).await;
    }
    culvert.stop().await;
}

/// A service that responds when it is released, and the number of requests that it holds.
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
async fn a_request_without_a_free_stream_waits_then_gets_503() {
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
    // No stream becomes free in time.
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
    for nth in 0..STREAMS + 20 {
        // A client waits for a few seconds at most, so the last ones come when the streams are in use.
        if nth == STREAMS {
            until("the streams are in use", || {
                served.load(Ordering::Relaxed) >= STREAMS - 1
            })
            .await;
        }
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
    for (close, mut task) in clients {
        close.send_replace(true);
        let ended = soon("the end of a client", task.join_next()).await;
        ended.unwrap().unwrap().unwrap();
    }
    assert_eq!(served.load(Ordering::Relaxed), STREAMS + 20);
    agent.close().await;
    culvert.stop().await;
}

/// 1,000 concurrent clients of an HTTP/2 upstream, without and with an agent: its connections are as few as its limit of
/// streams allows, and no request waits for another to end.
#[tokio::test(flavor = "multi_thread")]
async fn clients_share_the_connections_of_an_http2_upstream() {
    const CLIENTS: usize = 1_000;
    // What the edge uses; the upstream takes 100.
    const STREAMS_EACH: usize = 64;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/http2_upstream.js");
    let culvert = harness().await;
    for has_agent in [false, true] {
        let server = tokio::process::Command::new("node")
            .args([script, &CLIENTS.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let Ok(mut server) = server else {
            return culvert_testing::ignore("Node.js is missing");
        };
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let mut line = async || soon("a line", lines.next_line()).await.unwrap().unwrap();
        let port: u16 = line().await.parse().unwrap();
        let upstream = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let agent = match has_agent {
            true => Some(own_agent(&culvert, upstream, &["--upstream-protocol", "http2"]).await),
            false => {
                let body = json!({
                    "url": format!("http://{HOST}"),
                    "upstream_url": format!("http://{upstream}"),
                    "upstream_protocol": "http2",
                });
                culvert.create("endpoints", body).await;
                None
            }
        };
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let at = culvert.http;
            clients.spawn(async move {
                let mut client = Client::new(at).await;
                client.send("/held").await;
                let mut head = client.only_head().await;
                head.truncate("HTTP/1.1 200".len());
                head
            });
        }
        let heads = soon("answers", clients.join_all()).await;
        assert!(heads.iter().all(|head| head == "HTTP/1.1 200"), "{heads:?}");
        let counted = line().await;
        println!("with an agent: {has_agent}; requests and connections: {counted}");
        let connections: usize = counted.split_once(' ').unwrap().1.parse().unwrap();
        assert!(
            connections <= CLIENTS.div_ceil(STREAMS_EACH) + 1,
            "{connections}"
        );
        match agent {
            Some(agent) => drop(agent),
            None => {
                let all = crate::agents::list(&culvert, "endpoints").await;
                let path = format!("/endpoints/{}", all[0]["id"].as_str().unwrap());
                let gone = culvert.client.call(Method::DELETE, &path, None).await;
                assert_eq!(gone.unwrap().status, 204);
            }
        }
    }
    culvert.stop().await;
}

/// `culvert http` as a process, which ends with this.
struct OwnAgent(std::process::Child);

impl OwnAgent {
    /// Its memory that is no file's, in KiB.
    fn anonymous_kib(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.0.id())).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Anonymous:"));
        let number = line.unwrap().trim().trim_end_matches(" kB");
        number.parse().unwrap()
    }
}

impl Drop for OwnAgent {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn own_agent(culvert: &Harness, upstream: SocketAddr, flags: &[&str]) -> OwnAgent {
    let (_, token) = credential(culvert, json!([])).await;
    let agent = binary()
        .args(["http", &format!("http://{upstream}")])
        .args(["--url", &format!("http://{HOST}")])
        .args(flags)
        .env(
            "CULVERT_SERVER",
            format!("localhost:{}", culvert.agents.port()),
        )
        .env("CULVERT_AUTHTOKEN", &token)
        .env("CULVERT_DATA_DIR", &culvert.settings.data_dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let agent = OwnAgent(agent.unwrap());
    eventually("the endpoint is online", async || {
        Client::new(culvert.http).await.ask_any("/").await
    })
    .await;
    agent
}

/// What the agent holds for 480 clients that ask for 8 MiB each and read nothing goes back to the system with them.
#[tokio::test(flavor = "multi_thread")]
async fn the_agent_frees_memory_after_many_clients() {
    const MORE_KIB_MAX: u64 = 16 << 10;
    const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(100);
    let culvert = harness().await;
    let mut tasks = JoinSet::new();
    let service = long_answers(&mut tasks).await;
    let agent = own_agent(&culvert, service, &[]).await;
    let before = agent.anonymous_kib();
    let begun = Arc::new(AtomicUsize::new(0));
    let mut stalled = JoinSet::new();
    for _ in 0..STREAMS {
        stalled.spawn(stall(culvert.http, Stall::ReadsNothing, Arc::clone(&begun)));
    }
    until("all clients stall", || {
        begun.load(Ordering::Relaxed) == STREAMS
    })
    .await;
    // The agent has filled its buffers for them when its memory grows no more.
    let mut held = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = agent.anonymous_kib();
        if now <= held {
            break;
        }
        held = now;
    }
    drop(stalled);
    let gone = Instant::now();
    let mut after = agent.anonymous_kib();
    while after > before + MORE_KIB_MAX && gone.elapsed() < GIVEN_BACK_WITHIN {
        tokio::time::sleep(Duration::from_millis(500)).await;
        // The allocator looks for memory to give back when it is used, on each thread.
        for _ in 0..8 {
            Client::new(culvert.http).await.ask_any("/").await;
        }
        after = agent.anonymous_kib();
    }
    let took = gone.elapsed();
    println!("{before} KiB before, {held} KiB with the crowd, {after} KiB {took:?} after it");
    assert!(after <= before + MORE_KIB_MAX, "{after} KiB are kept");
    drop(agent);
    culvert.stop().await;
}

/// Clients that stall, all of one kind.
#[derive(Clone, Copy, Debug)]
enum Stall {
    /// They ask for 8 MiB and read nothing.
    ReadsNothing,
    /// They ask for as much and read 100 bytes a second.
    ReadsSlowly,
    /// They send 8 MiB to a service that reads nothing.
    Uploads,
}

const STALLED: usize = 300;
const LONG: usize = 8 << 20;

/// A service with 8 MiB at `/long` that reads no upload and responds to everything else with `ok`.
async fn long_answers(tasks: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(async move { drop(answer_at_length(stream).await) });
        }
    });
    address
}

async fn answer_at_length(mut stream: TcpStream) -> std::io::Result<()> {
    static PIECE: [u8; 64 << 10] = [7; 64 << 10];
    let mut head = Vec::new();
    loop {
        head.push(stream.read_u8().await?);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        if head.starts_with(b"POST") {
            std::future::pending::<()>().await;
        } else if head.starts_with(b"GET /long") {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LONG}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            for _ in 0..LONG / PIECE.len() {
                stream.write_all(&PIECE).await?;
            }
        } else {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer).await?;
        }
        head.clear();
    }
}

/// A client that stalls for as long as its connection lasts: one that holds too much may be cut.
async fn stall(at: SocketAddr, how: Stall, begun: Arc<AtomicUsize>) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(16 << 10)?;
    let mut client = Client(socket.connect(at).await?);
    match how {
        Stall::ReadsNothing | Stall::ReadsSlowly => client.send("/long").await,
        Stall::Uploads => {
            let head =
                format!("POST /up HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {LONG}\r\n\r\n");
            client.0.write_all(head.as_bytes()).await?;
        }
    }
    begun.fetch_add(1, Ordering::Relaxed);
    match how {
        Stall::ReadsNothing => std::future::pending().await,
        Stall::ReadsSlowly => loop {
            client.0.read_exact(&mut [0; 100]).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        },
        Stall::Uploads => loop {
            client.0.write_all(&[7; 16 << 10]).await?;
        },
    }
}

/// Small requests on one connection, one after another: what each took.
async fn small_requests(client: &mut Client, enough: impl Fn(usize) -> bool) -> Vec<Duration> {
    let mut took = Vec::new();
    while !enough(took.len()) {
        let begun = Instant::now();
        let status = soon("a small answer", client.ask("/small")).await;
        assert_eq!(status, "HTTP/1.1 200");
        took.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    took.sort();
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_clients_do_not_delay_others_of_their_agent() {
    const REQUESTS: usize = 100;
    let culvert = harness().await;
    let mut tasks = JoinSet::new();
    let service = long_answers(&mut tasks).await;
    let all = [Stall::ReadsNothing, Stall::ReadsSlowly, Stall::Uploads];
    for (kind, ways) in [
        (Kind::Own, &all[..]),
        (Kind::Python, &all[..1]),
        (Kind::Node, &all[..1]),
    ] {
        if !kind.is_here() {
            continue;
        }
        let agent = agent(kind, &culvert, "http", service).await;
        let mut client = Client::new(culvert.http).await;
        for how in ways {
            let alone = small_requests(&mut client, |count| count == REQUESTS).await;
            let begun = Arc::new(AtomicUsize::new(0));
            let mut stalled = JoinSet::new();
            for _ in 0..STALLED {
                stalled.spawn(stall(culvert.http, *how, Arc::clone(&begun)));
            }
            // While they arrive, and then as many again.
            let all_since = std::sync::OnceLock::new();
            let beside = small_requests(&mut client, |count| {
                begun.load(Ordering::Relaxed) == STALLED
                    && count >= *all_since.get_or_init(|| count) + REQUESTS
            })
            .await;
            let middle = |took: &[Duration]| took[took.len() / 2];
            let (most_alone, most) = (alone[alone.len() - 1], beside[beside.len() - 1]);
            println!(
                "{kind:?} {how:?}: median {:?} and at most {most_alone:?} alone; beside {STALLED} \
                 that stall {:?} and {most:?}",
                middle(&alone),
                middle(&beside)
            );
            stalled.shutdown().await;
        }
        drop(client);
        agent.close().await;
        all_gone(&culvert).await;
    }
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_few_file_descriptors_refuses_surplus_streams_as_busy() {
    // It may raise the first limit to the second; 32 files are not for streams.
    const FILES: (u64, u64) = (64, 96);
    const SHARE: usize = 64;
    const CLIENTS: usize = 2 * SHARE;
    let culvert = harness().await;
    let mut tasks = JoinSet::new();
    let (let_go, is_let) = watch::channel(false);
    let (service, holding) = held(&mut tasks, is_let).await;
    let agent = agent_with(Kind::Own, &culvert, "http", service, Some(FILES)).await;
    let mut clients = JoinSet::new();
    let refused = Arc::new(AtomicUsize::new(0));
    for _ in 0..CLIENTS {
        let (at, refused) = (culvert.http, Arc::clone(&refused));
        clients.spawn(async move {
            let mut client = Client::new(at).await;
            client.send("/").await;
            let head = client.head().await;
            refused.fetch_add(
                usize::from(!head.starts_with("HTTP/1.1 200 ")),
                Ordering::Relaxed,
            );
            head
        });
    }
    until("each is served or refused", || {
        holding.load(Ordering::Relaxed) + refused.load(Ordering::Relaxed) == CLIENTS
    })
    .await;
    let served = holding.load(Ordering::Relaxed);
    // One stream is the agent's heartbeat, and a request may be refused while another is counted still.
    assert!((SHARE - 4..SHARE).contains(&served), "{served}");
    let_go.send_replace(true);
    let mut good = 0;
    while let Some(head) = soon("an answer", clients.join_next()).await {
        let head = head.unwrap();
        if head.starts_with("HTTP/1.1 200 ") {
            good += 1;
        } else {
            assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
            assert!(head.contains("ERR_NGROK_3621"), "{head}");
        }
    }
    assert_eq!(good, served);
    // It serves on.
    let fresh = (0..CLIENTS).map(|_| None).collect();
    let (_, refused) = soon("answers", ask_all(culvert.http, fresh, SHARE / 2)).await;
    assert_eq!(refused, Vec::<String>::new());
    agent.close().await;
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_reuses_a_name_while_its_previous_agent_finishes() {
    let culvert = harness().await;
    let mut tasks = JoinSet::new();
    let (let_go, is_let) = watch::channel(false);
    let (service, holding) = held(&mut tasks, is_let).await;
    let folder = tempfile::tempdir().unwrap();
    let (_, token) = Kind::Own
        .credential(&culvert, folder.path(), json!([]))
        .await;
    let order = Order {
        proto: "http",
        name: HOST,
        upstream: service,
        at: Kind::Own.ingress(&culvert),
        token: &token,
        folder: folder.path(),
        files: None,
    };
    let first = start(Kind::Own, &culvert, order).await.unwrap();
    let mut held = Client::new(culvert.http).await;
    held.send("/").await;
    until("the request arrives", || {
        holding.load(Ordering::Relaxed) == 1
    })
    .await;
    first.tell_to_end();
    // The first may not have said so yet.
    let second = soon("the name", async {
        loop {
            match Box::pin(start(Kind::Own, &culvert, order)).await {
                Ok(second) => return second,
                Err(code) => assert_eq!(code, "ERR_NGROK_334"),
            }
        }
    })
    .await;
    let mut next = Client::new(culvert.http).await;
    next.send("/").await;
    until("a request reaches the second", || {
        holding.load(Ordering::Relaxed) == 2
    })
    .await;
    let_go.send_replace(true);
    for client in [&mut held, &mut next] {
        let head = soon("an answer", client.head()).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    drop((held, next));
    first.exits_well().await;
    second.close().await;
    all_gone(&culvert).await;
    // Right after one that has ended, too.
    for _ in 0..3 {
        let agent = start(Kind::Own, &culvert, order).await.unwrap();
        assert!(agent.url.ends_with(HOST), "{}", agent.url);
        agent.close().await;
    }
    culvert.stop().await;
}
