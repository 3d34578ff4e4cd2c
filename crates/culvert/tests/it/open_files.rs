//! A server that may open few files: connections up to its share of them are served, beyond it they are
//! closed, and the reserve keeps the API and everything else at work.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use culvert::client::{Client, read_token};
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::harness::{binary, eventually, raw};
use crate::kill::Process;

/// Files that the server may open, and of them the share that the edge goes by: four fifths.
const FILES: u64 = 320;
const SHARE: u64 = 256;

/// An origin that responds to `/live` immediately, and to everything else when it is released.
async fn origin(tasks: &mut JoinSet<()>, is_let: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(answer(stream, is_let.clone()));
        }
    });
    address
}

async fn answer(mut stream: TcpStream, mut is_let: watch::Receiver<bool>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let waits = !head.starts_with(b"GET /live");
    if waits && is_let.wait_for(|is_let| *is_let).await.is_err() {
        return;
    }
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone";
    // The test looks at what arrives.
    drop(stream.write_all(answer).await);
}

/// Whether the response on a connection is complete. A connection that is closed immediately may be reset.
async fn is_good(mut stream: TcpStream) -> bool {
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    answer.starts_with(b"HTTP/1.1 200")
}

/// The value of a series of the metrics, which begins so.
async fn metric(server: &Process, series: &str) -> u64 {
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let page = raw(server.metrics, request).await.text;
    let value = page.lines().find_map(|line| line.strip_prefix(series));
    value
        .unwrap_or_else(|| panic!("{series}: {page}"))
        .trim()
        .parse()
        .unwrap()
}

const FILES_USED: &str = "culvert_edge_pressure_percent{of=\"files\"}";
const CLOSED: &str = "culvert_edge_shed_total{what=\"connections\"}";

#[tokio::test(flavor = "multi_thread")]
async fn connections_use_only_their_share_of_file_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let limited = binary();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {FILES} && exec \"$0\" \"$@\"")]);
    shell.arg(limited.get_program());
    for (name, _) in limited.get_envs() {
        shell.env_remove(name);
    }
    let server = Process::start_as(shell, &data, "", &[]);
    let client = Client::new(
        &server.api,
        read_token(&data.join("bootstrap-key")).unwrap(),
    );
    let client = client.unwrap();
    let (let_go, is_let) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let upstream = format!("http://{}", origin(&mut tasks, is_let).await);
    let host = "few.culvert.localhost";
    let body = json!({"url": format!("http://{host}"), "upstream_url": upstream});
    let made = client.expect(Method::POST, "/endpoints", Some(&body));
    made.await.unwrap();
    let request = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").into_bytes()
    };
    let is_served = async || {
        let mut stream = TcpStream::connect(server.http).await.unwrap();
        // It may be closed by now.
        drop(stream.write_all(&request("/live")).await);
        is_good(stream).await
    };
    eventually("the endpoint is live", &is_served).await;

    // One after the other, each when the edge has seen the files of those before it: two for each.
    let before = metric(&server, FILES_USED).await;
    let mut held = Vec::new();
    while metric(&server, CLOSED).await == 0 {
        let mut stream = TcpStream::connect(server.http).await.unwrap();
        // It may be closed by now.
        drop(stream.write_all(&request("/held")).await);
        held.push(stream);
        assert!(2 * held.len() as u64 <= FILES, "all that there are");
        let seen = (2 * held.len() as u64).saturating_sub(8) * 100 / SHARE;
        eventually("the edge to see them, or to close one", async || {
            metric(&server, FILES_USED).await >= before + seen || metric(&server, CLOSED).await > 0
        })
        .await;
    }
    let used = metric(&server, FILES_USED).await;
    // More than the share, because it is checked at intervals; less than all files.
    assert!(used >= 95 && used * SHARE < 100 * FILES, "{used} percent");

    // The others have what they need of the reserve.
    for (method, path, body) in [
        (Method::GET, "/api_keys", None),
        (
            Method::POST,
            "/api_keys",
            Some(json!({"description": "made with few files"})),
        ),
    ] {
        let answer = client.expect(method, path, body.as_ref());
        answer.await.unwrap();
    }
    let mut closed = TcpStream::connect(server.http).await.unwrap();
    assert_eq!(closed.read(&mut [0]).await.unwrap_or(0), 0);

    // Those that were let in are served, and then there is room again.
    let_go.send(true).unwrap();
    let refused = metric(&server, CLOSED).await;
    let mut served = 0;
    for stream in held.drain(..) {
        served += u64::from(is_good(stream).await);
    }
    // The last one, and those that the edge had not seen when the share was reached: four, by the loop above.
    assert!(
        served >= 50 && refused <= 6,
        "{served} served, {refused} refused"
    );
    eventually("there is room again", &is_served).await;
    assert_eq!(server.terminate(), 0);
}
