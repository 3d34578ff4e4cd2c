//! What the server holds for an idle connection of a client through an agent, in bytes that are allocated. A separate
//! test binary, because its allocator counts all of the process: the server, and sockets of the test that allocate
//! nothing. The agent is another process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use culvert::client::Client;
use culvert::config::Settings;
use culvert::server::Server;
use culvert_edge::Inherited;
use http::Method;
use peak_alloc::PeakAlloc;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Enough that all else of the server does not matter, and not more than the usual limit of open files allows.
const CONNECTIONS: usize = 256;
/// The most that the server may hold for each.
const BYTES_MAX: usize = 10 << 10;
const HOST: &str = "idle.culvert.localhost";
const BODY: &str = "a response that is long enough";

/// A service that responds to each request, and keeps all connections open.
fn service() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            std::thread::spawn(move || {
                let mut client = client.unwrap();
                let response = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{BODY}",
                    BODY.len()
                );
                while read_to(&mut client, b"\r\n\r\n") {
                    client.write_all(response.as_bytes()).unwrap();
                }
            });
        }
    });
    address
}

/// Reads until the bytes end with `end`. `false` if the connection ends first.
fn read_to(stream: &mut TcpStream, end: &[u8]) -> bool {
    let (mut room, mut length) = ([0; 1024], 0);
    while !room[..length].ends_with(end) {
        match stream.read(&mut room[length..]) {
            Ok(read) if read > 0 => length += read,
            _ => return false,
        }
    }
    true
}

/// A client whose request was answered.
fn client(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(culvert_testing::PATIENCE))
        .unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    assert!(read_to(&mut stream, BODY.as_bytes()), "no response");
    stream
}

/// An agent that ends with the test.
struct Agent(Child);

impl Agent {
    /// Starts an agent, and returns it with the URL of its endpoint.
    fn start(
        settings: &Settings,
        at: SocketAddr,
        token: &str,
        arguments: &[&str],
    ) -> (Self, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_culvert"));
        for name in culvert::config::environment().into_keys() {
            if name.starts_with("CULVERT_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(arguments)
            .env("XDG_CONFIG_HOME", "/nonexistent")
            .env("CULVERT_SERVER", format!("localhost:{}", at.port()))
            .env("CULVERT_AUTHTOKEN", token)
            .env("CULVERT_CA_FILE", settings.data_dir.join("ca.pem"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut url).unwrap();
        (Self(child), url.trim().to_owned())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Waits until the server holds little enough for each connection, and returns how much that is.
fn held_of_each(address: SocketAddr) -> usize {
    // What the first connections leave behind is not theirs.
    let first: Vec<TcpStream> = (0..8).map(|_| client(address)).collect();
    let before = HEAP.current_usage();
    let clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| client(address)).collect();
    let deadline = Instant::now() + culvert_testing::PATIENCE;
    loop {
        let each = HEAP.current_usage().saturating_sub(before) / CONNECTIONS;
        if each <= BYTES_MAX || Instant::now() >= deadline {
            drop((first, clients));
            return each;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_idle_connection_through_an_agent_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let public = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    public.set_nonblocking(true).unwrap();
    let tcp = public.local_addr().unwrap();
    let mut settings = Settings {
        data_dir: folder.path().join("data"),
        ..Settings::default()
    };
    settings.api.addr = "127.0.0.1:0".into();
    settings.edge.http_addr = "127.0.0.1:0".into();
    settings.edge.https_addr = String::new();
    settings.edge.tcp_ports = format!("{port}-{port}", port = tcp.port());
    settings.edge.connections_per_source_max = 4 * CONNECTIONS as u32;
    settings.agents.addr = "127.0.0.1:0".into();
    settings.agents.ssh_addr = String::new();
    settings.metrics.addr = "127.0.0.1:0".into();
    settings.log.level = "warn".into();

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let (server, token) = runtime.block_on(async {
        let sockets = Inherited::new(vec![public]);
        let server = Box::pin(Server::start_on(settings.clone(), sockets))
            .await
            .unwrap();
        let key = server.first_token().unwrap().reveal().to_owned();
        let api = Client::new(&server.api_url(), key).unwrap();
        let none = json!({});
        let stopping = stop.clone();
        let (http, agents) = (server.http_addr().unwrap(), server.agents_addr().unwrap());
        tasks.spawn(async move { server.run(stopping).await.unwrap() });
        let made = api
            .expect(Method::POST, "/credentials", Some(&none))
            .await
            .unwrap();
        ((http, agents), made["token"].as_str().unwrap().to_owned())
    });
    let (http, agents) = server;
    let service = service().to_string();
    let url = format!("http://{HOST}");
    let start = |arguments: &[&str]| Agent::start(&settings, agents, &token, arguments);
    let (http_agent, its_url) = start(&["http", "--url", &url, &service]);
    assert!(its_url.starts_with("http://"), "{its_url}");
    let (tcp_agent, its_url) = start(&["tcp", &service]);
    assert!(its_url.starts_with("tcp://"), "{its_url}");

    let (http, tcp) = (held_of_each(http), held_of_each(tcp));
    assert!(
        http <= BYTES_MAX && tcp <= BYTES_MAX,
        "http {http}, tcp {tcp}"
    );
    drop((http_agent, tcp_agent));
    stop.cancel();
    drop(runtime);
}
