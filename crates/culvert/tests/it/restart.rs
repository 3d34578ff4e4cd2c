//! Restarts under load: with sockets that a supervisor keeps open, no request is lost.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use culvert::client::Client;
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::harness::{Receiver, binary, eventually};

/// A small supervisor: it opens two sockets, starts the given program with them, and replaces the
/// program for each line that it reads.
const SUPERVISOR: &str = r#"
import os, signal, socket, sys

sockets = []
for _ in range(2):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    s.listen(1024)
    sockets.append(s)
api, http = ["%s:%d" % s.getsockname() for s in sockets]

def start():
    child = os.fork()
    if child:
        return child
    high = [os.dup(s.fileno()) for s in sockets]
    high = [os.dup2(fd, 100 + at, inheritable=False) for at, fd in enumerate(high)]
    for at, fd in enumerate(high):
        os.dup2(fd, 3 + at, inheritable=True)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2")
    os.execv(sys.argv[1], sys.argv[1:] + ["--api-addr", api, "--edge-http-addr", http])

child = start()
for line in sys.stdin:
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
    child = start() if line.strip() == "restart" else None
if child:
    os.kill(child, signal.SIGKILL)
"#;

const RESTARTS: usize = 3;
const CLIENTS: usize = 8;
/// Responses between two restarts.
const ANSWERS: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn restarts_under_load_lose_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let culvert = binary();
    let mut python = std::process::Command::new("python3");
    for (name, value) in culvert.get_envs() {
        if value.is_none() {
            python.env_remove(name);
        }
    }
    python.args(["-c", SUPERVISOR]).arg(culvert.get_program());
    python.args(["serve", "--log-level", "warn", "--edge-https-addr", ""]);
    python.args([
        "--agents-addr",
        "",
        "--agents-ssh-addr",
        "",
        "--metrics-addr",
        "",
        "--data-dir",
    ]);
    python.arg(&data);
    let started = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut supervisor) = started else {
        culvert_testing::ignore("python3 is not here; no restart is tried");
        return;
    };
    let mut orders = supervisor.stdin.take().unwrap();
    let mut lines = BufReader::new(supervisor.stdout.take().unwrap()).lines();
    let mut next = |begin: &str| {
        let line = lines
            .by_ref()
            .map(Result::unwrap)
            .find(|line| line.starts_with(begin));
        line.unwrap_or_else(|| panic!("it ended without saying `{begin}`"))
    };

    let ready = next("culvert ready");
    let part = |name: &str| {
        let found = ready.split(' ').find_map(|part| part.strip_prefix(name));
        found.unwrap().to_owned()
    };
    let http: SocketAddr = part("http=").parse().unwrap();
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&part("api="), token).unwrap();
    let origin = Receiver::start().await;
    let body = json!({
        "url": "http://app.culvert.localhost",
        "upstream_url": format!("http://{}", origin.address),
    });
    let made = client.expect(Method::POST, "/endpoints", Some(&body));
    made.await.unwrap();
    eventually("the endpoint is live", async || {
        let mut connection = Connection::open(http).await;
        connection.ask().await == Some(200)
    })
    .await;

    let (answers, is_over) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (answers, is_over) = (answers.clone(), is_over.clone());
        clients.spawn(async move {
            let mut connection = Connection::open(http).await;
            while !is_over.load(Ordering::Relaxed) {
                if connection.is_closed {
                    connection = Connection::open(http).await;
                }
                assert_eq!(connection.ask().await, Some(200), "a request was lost");
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for _ in 0..RESTARTS {
        let enough = answers.load(Ordering::Relaxed) + ANSWERS;
        eventually("requests are answered", async || {
            answers.load(Ordering::Relaxed) >= enough
        })
        .await;
        orders.write_all(b"restart\n").unwrap();
        orders.flush().unwrap();
        assert_eq!(next("ended"), "ended 0");
        next("culvert ready");
    }
    is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    orders.write_all(b"stop\n").unwrap();
    drop(orders);
    assert_eq!(next("ended"), "ended 0");
    assert!(supervisor.wait().unwrap().success());
    println!(
        "{} requests over {RESTARTS} restarts, none lost",
        answers.load(Ordering::Relaxed)
    );
}

/// A client's connection, reused as long as the responses allow it.
struct Connection {
    stream: TcpStream,
    is_closed: bool,
}

impl Connection {
    async fn open(http: SocketAddr) -> Self {
        Self {
            stream: TcpStream::connect(http).await.unwrap(),
            is_closed: false,
        }
    }

    /// One request; the status of its answer, or `None` when none came.
    async fn ask(&mut self) -> Option<u16> {
        let exchange = async {
            let ask = b"GET / HTTP/1.1\r\nhost: app.culvert.localhost\r\n\r\n";
            self.stream.write_all(ask).await.ok()?;
            let mut answer = Vec::new();
            let end = b"\r\n\r\n";
            let head = loop {
                if let Some(at) = answer.windows(4).position(|part| part == end) {
                    break at + end.len();
                }
                if self.stream.read_buf(&mut answer).await.ok()? == 0 {
                    return None;
                }
            };
            let text = String::from_utf8(answer[..head].to_vec()).unwrap();
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().unwrap());
            while answer.len() < head + length {
                if self.stream.read_buf(&mut answer).await.ok()? == 0 {
                    return None;
                }
            }
            self.is_closed = text.contains("connection: close");
            text.split(' ').nth(1)?.parse().ok()
        };
        let answered = tokio::time::timeout(culvert_testing::PATIENCE, exchange).await;
        answered.expect("an answer comes")
    }
}
