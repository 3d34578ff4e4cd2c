//! A graceful stop: requests in flight complete, and their events are not lost.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use culvert::client::Client;
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::command_login::on_a_terminal;
use crate::events_arrive::subscribe;
use crate::harness::{Receiver, binary, eventually, raw};
use crate::kill::Process;

/// An origin that responds immediately, except for requests for `/slow`, which wait for `let_go`.
struct Origin {
    address: SocketAddr,
    asked: Arc<Notify>,
    let_go: Arc<Notify>,
    _tasks: JoinSet<()>,
}

impl Origin {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, let_go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let mut tasks = JoinSet::new();
        let (arrived, leave) = (asked.clone(), let_go.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(answer(stream, arrived.clone(), leave.clone()));
            }
        });
        Self {
            address,
            asked,
            let_go,
            _tasks: tasks,
        }
    }
}

async fn answer(mut stream: TcpStream, asked: Arc<Notify>, let_go: Arc<Notify>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    if head.starts_with(b"GET /slow") {
        asked.notify_one();
        let_go.notified().await;
    }
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone";
    stream.write_all(answer).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_a_slow_request_and_keeps_its_event() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (origin, hook) = (Origin::start().await, Receiver::start().await);
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token).unwrap();
    let wanted = json!([{"type": "http_request_complete.v0"}]);
    subscribe(&client, &hook, wanted).await;
    let body = json!({
        "url": "http://slow.culvert.localhost",
        "upstream_url": format!("http://{}", origin.address),
    });
    let made = client.expect(Method::POST, "/endpoints", Some(&body));
    made.await.unwrap();
    let http = server.http;
    let get = async move |path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nhost: slow.culvert.localhost\r\n");
        raw(http, format!("{head}connection: close\r\n\r\n").as_bytes()).await
    };
    eventually("the endpoint is live", async || {
        get("/live").await.status == 200
    })
    .await;

    let mut request = JoinSet::new();
    request.spawn(async move { get("/slow").await });
    origin.asked.notified().await;
    server.ask_to_stop();
    eventually("nothing new is accepted", async || {
        TcpStream::connect(http).await.is_err()
    })
    .await;
    origin.let_go.notify_one();
    let answer = request.join_next().await.unwrap().unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.text.ends_with("done"), "{}", answer.text);
    assert_eq!(server.ended(), 0);

    // The event is sent before the stop, or stored and sent after the next start.
    let server = Process::start(&data, "");
    eventually("the event of the slow request arrives", async || {
        hook.events().iter().any(|event| {
            let http = &event["object"]["http"];
            http["request"]["url"]["path"] == "/slow" && http["response"]["status_code"] == 200
        })
    })
    .await;
    assert_eq!(server.terminate(), 0);
}

/// SIGHUP of a closed terminal is the end of a server in the foreground, and no reload.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_with_its_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = binary();
    serve.current_dir(folder.path());
    serve
        .arg("serve")
        .arg("--data-dir")
        .arg(folder.path().join("data"));
    for listener in [
        "api",
        "edge-http",
        "edge-https",
        "agents",
        "agents-ssh",
        "metrics",
    ] {
        serve.arg(format!("--{listener}-addr")).arg("127.0.0.1:0");
    }
    let Some(mut terminal) = on_a_terminal(&serve) else {
        return;
    };
    let lock = folder.path().join("data/lock");
    let mut server = None;
    eventually("the server has its data directory", async || {
        let text = std::fs::read_to_string(&lock).unwrap_or_default();
        server = text
            .split_whitespace()
            .find_map(|word| word.parse::<u32>().ok());
        server.is_some() && folder.path().join("data/bootstrap-key").is_file()
    })
    .await;
    let server = format!("/proc/{}", server.unwrap());
    assert!(std::path::Path::new(&server).exists());
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    eventually("the server has ended", async || {
        !std::path::Path::new(&server).exists()
    })
    .await;
}
