//! Requests to HTTP services: recorded, sent again, and finished before the agent ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_tunnel::client::{AgentError, Protocol, ReplayError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::super::{soon, start};
use super::{endpoint, run, run_with, trusted, trusting};

/// Responds to requests: to `/large` with 5 MB, to `POST` with the number of received bytes, to others with
/// their path. `hold` delays a response until it is released.
async fn http_server(tasks: &mut JoinSet<()>, hold: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            connections.spawn(answer_requests(socket, hold.clone()));
        }
    });
    address
}

pub(super) async fn answer_requests(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    mut hold: watch::Receiver<bool>,
) {
    let mut bytes = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if socket.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
        let path = text.split(' ').nth(1).unwrap().to_owned();
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        while bytes.len() < head + length {
            assert!(socket.read_buf(&mut bytes).await.unwrap() > 0);
        }
        let sent = bytes[head..head + length]
            .iter()
            .filter(|byte| **byte == b'u')
            .count();
        bytes.drain(..head + length);
        let body = match &path[..] {
            "/large" => vec![b'd'; 5_000_000],
            _ if length > 0 => sent.to_string().into_bytes(),
            path => path.as_bytes().to_vec(),
        };
        if path == "/held" {
            hold.wait_for(|held| !held).await.unwrap();
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        if socket
            .write_all(&[head.as_bytes(), &body].concat())
            .await
            .is_err()
        {
            return;
        }
    }
}

/// One request and the body of its response.
pub(super) async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    method: &str,
    path: &str,
    body: usize,
) -> Vec<u8> {
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: a.test\r\ncontent-length: {body}\r\n\r\n");
    let request = [head.as_bytes(), &vec![b'u'; body]].concat();
    soon(stream.write_all(&request)).await.unwrap();
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
            let length: usize = head
                .split("content-length: ")
                .nth(1)
                .unwrap()
                .parse()
                .unwrap();
            let mut body = bytes.split_off(at + 4);
            while body.len() < length {
                assert!(soon(stream.read_buf(&mut body)).await.unwrap() > 0);
            }
            return body;
        }
        assert!(soon(stream.read_buf(&mut bytes)).await.unwrap() > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_arrive_whole_are_kept_and_can_be_sent_again() {
    let mut running = start().await;
    let (_hold, held) = watch::channel(false);
    let upstream = http_server(&mut running.tasks, held).await;
    let flags = [("url", "https://app.example.test")];
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &upstream.to_string(), &flags)],
    );
    let status = own.online().await;
    assert_eq!(status.endpoints[0].url, "https://app.example.test");
    let id = &status.endpoints[0].id;

    let mut stream = running.dial(id).await;
    assert!(ask(&mut stream, "GET", "/large", 0).await == vec![b'd'; 5_000_000]);
    assert_eq!(ask(&mut stream, "POST", "/up", 4_000_000).await, b"4000000");
    assert_eq!(ask(&mut stream, "POST", "/small", 3).await, b"3");
    let mut talks = JoinSet::new();
    for nth in 0..40 {
        let mut stream = running.dial(id).await;
        talks.spawn(async move {
            let path = format!("/{nth}");
            assert_eq!(ask(&mut stream, "GET", &path, 0).await, path.as_bytes());
        });
    }
    soon(talks.join_all()).await;

    let all = Arc::clone(own.agent.exchanges().unwrap());
    let find = |path: &str| {
        all.recent()
            .into_iter()
            .find(|exchange| exchange.path == path)
    };
    let small = find("/small").unwrap();
    assert_eq!((&small.method[..], small.status), ("POST", Some(200)));
    assert_eq!(
        (&small.request.body[..], &small.response.body[..]),
        (&b"uuu"[..], &b"3"[..])
    );
    assert_eq!(small.client, "192.0.2.7:1234");
    assert_eq!(find("/large").unwrap().response.body_bytes, 5_000_000);
    assert_eq!(all.recent().len(), 43);

    let again = soon(own.agent.replay(small.id)).await.unwrap();
    let replayed = all.get(again).unwrap();
    assert_eq!(replayed.replay_of, Some(small.id));
    assert_eq!(
        (&replayed.request.body[..], &replayed.response.body[..]),
        (&b"uuu"[..], &b"3"[..])
    );
    let cut = find("/up").unwrap().id;
    assert_eq!(soon(own.agent.replay(cut)).await, Err(ReplayError::Cut));
    assert_eq!(
        soon(own.agent.replay(9999)).await,
        Err(ReplayError::Unknown)
    );
}

#[tokio::test]
async fn what_is_on_its_way_is_finished_before_the_agent_ends() {
    let mut running = start().await;
    let (hold, held) = watch::channel(true);
    let upstream = http_server(&mut running.tasks, held).await;
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &upstream.to_string(), &[])],
    );
    let status = own.online().await;
    let id = status.endpoints[0].id.clone();
    let mut idle = running.dial(&id).await;
    assert_eq!(ask(&mut idle, "GET", "/idle", 0).await, b"/idle");
    let mut busy = running.dial(&id).await;
    let asking = async {
        assert_eq!(ask(&mut busy, "GET", "/held", 0).await, b"/held");
    };
    let stopping = async {
        own.stop.cancel();
        // It stops serving before it closes its open connections.
        running.until(|seen| seen.unbinds.len() == 1).await;
        soon(idle.read_to_end(&mut Vec::new())).await.unwrap();
        hold.send_replace(false);
    };
    tokio::join!(asking, stopping);
    drop((busy, idle));
    assert_eq!(own.ended().await, Ok(()));
}

#[tokio::test]
async fn a_response_that_pauses_is_finished_before_the_agent_ends() {
    let mut running = start().await;
    let (go_on, paused) = watch::channel(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap().to_string();
    running.tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut paused = paused.clone();
            connections.spawn(async move {
                let mut request = Vec::new();
                socket.read_buf(&mut request).await.unwrap();
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n";
                socket.write_all(head).await.unwrap();
                if !request.starts_with(b"GET /idle") {
                    socket.write_all(b"half").await.unwrap();
                    paused.wait_for(|go_on| *go_on).await.unwrap();
                    socket.write_all(b"half").await.unwrap();
                } else {
                    socket.write_all(b"halfhalf").await.unwrap();
                }
                // The service keeps its connection.
                socket.read_buf(&mut request).await.ok();
            });
        }
    });
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &upstream, &[])],
    );
    let id = own.online().await.endpoints[0].id.clone();
    let mut idle = running.dial(&id).await;
    assert_eq!(ask(&mut idle, "GET", "/idle", 0).await, b"halfhalf");
    let mut busy = running.dial(&id).await;
    let request = b"GET /pauses HTTP/1.1\r\nhost: a.test\r\n\r\n";
    soon(busy.write_all(request)).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nhalf") {
        assert!(soon(busy.read_buf(&mut answer)).await.unwrap() > 0);
    }
    own.stop.cancel();
    // The idle connection is closed immediately, the busy one with its response.
    soon(idle.read_to_end(&mut Vec::new())).await.unwrap();
    go_on.send_replace(true);
    soon(busy.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.ends_with(b"\r\n\r\nhalfhalf"), "{answer:?}");
    drop((idle, busy));
    assert_eq!(own.ended().await, Ok(()));
}

#[tokio::test]
async fn connections_that_outlast_the_drain_time_are_cut_and_counted() {
    let mut running = start().await;
    let (_hold, held) = watch::channel(true);
    let upstream = http_server(&mut running.tasks, held).await.to_string();
    let mut own = run_with(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &upstream, &[])],
        Duration::from_millis(50),
    );
    let id = own.online().await.endpoints[0].id.clone();
    let mut busy = running.dial(&id).await;
    let request = b"GET /held HTTP/1.1\r\nhost: a.test\r\n\r\n";
    soon(busy.write_all(request)).await.unwrap();
    own.stop.cancel();
    let ended = own.ended().await;
    assert_eq!(ended, Err(AgentError::Cut(1)));
    assert_eq!(
        ended.unwrap_err().to_string(),
        "1 connection was closed at the end of the drain time"
    );
}

/// An HTTP/2 frame with a payload of zeros.
fn frame(length: u8, kind: u8, flags: u8, stream: u8) -> Vec<u8> {
    let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
    frame.resize(9 + usize::from(length), 0);
    frame
}

/// A connection of HTTP/2 to the service is an open request only while a stream is open on it.
#[tokio::test]
async fn an_idle_http2_connection_is_no_open_request() {
    const REQUEST: usize = 24 + 9 + 9 + 5;
    for is_answered in [true, false] {
        let mut running = start().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = listener.local_addr().unwrap().to_string();
        running.tasks.spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.read_exact(&mut [0; REQUEST]).await.unwrap();
            let mut answer = frame(0, 4, 0, 0);
            if is_answered {
                answer.extend(frame(7, 1, 5, 1));
            }
            socket.write_all(&answer).await.unwrap();
            std::future::pending::<()>().await;
        });
        let flags = [("upstream-protocol", "http2")];
        let endpoints = vec![endpoint(Protocol::Http, &upstream, &flags)];
        let drain_time = Duration::from_millis(if is_answered { 60_000 } else { 1 });
        let mut own = run_with(&running, "right", endpoints, drain_time);
        let id = own.online().await.endpoints[0].id.clone();
        let mut stream = running.dial(&id).await;
        let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        request.extend(frame(0, 4, 0, 0));
        request.extend(frame(5, 1, 5, 1));
        soon(stream.write_all(&request)).await.unwrap();
        let mut answer = vec![0; if is_answered { 9 + 16 } else { 9 }];
        soon(stream.read_exact(&mut answer)).await.unwrap();
        own.stop.cancel();
        if is_answered {
            let mut rest = Vec::new();
            soon(stream.read_to_end(&mut rest)).await.unwrap();
            assert_eq!(rest[..9], [0, 0, 8, 7, 0, 0, 0, 0, 0], "GOAWAY");
            assert_eq!(rest[9..], [0, 0, 0, 1, 0, 0, 0, 0]);
            drop(stream);
            assert_eq!(own.ended().await, Ok(()));
        } else {
            assert_eq!(own.ended().await, Err(AgentError::Cut(1)));
        }
    }
}

/// How a service ends a connection after its response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaves {
    /// TLS without `close_notify`.
    WithoutGoodbye,
    /// With a TCP reset.
    WithReset,
    /// While the client still sends its request.
    BeforeTheRequest,
}

/// A response that the service sent completely arrives completely, for each framing and each way of ending
/// the connection, with and without TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_response_arrives_however_the_service_leaves() {
    // Fits into the window of a stream.
    const BODY: usize = 200_000;
    let mut running = start().await;
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = Arc::new(
        rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![made.cert.der().clone()],
                rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
            )
            .unwrap(),
    );
    let trust = trusted(made.cert.pem());
    let framings = [
        format!("content-length: {BODY}\r\n"),
        "transfer-encoding: chunked\r\n".to_owned(),
        "connection: close\r\n".to_owned(),
    ];
    for leaves in [
        Leaves::WithoutGoodbye,
        Leaves::WithReset,
        Leaves::BeforeTheRequest,
    ] {
        for framing in &framings {
            // A body that is delimited by the close is incomplete after a reset.
            if leaves != Leaves::WithoutGoodbye && framing.starts_with("connection") {
                continue;
            }
            for tls in [true, false] {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let port = listener.local_addr().unwrap().port();
                let mut answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n").into_bytes();
                if framing.starts_with("transfer") {
                    answer.extend_from_slice(format!("{BODY:x}\r\n").as_bytes());
                }
                answer.extend_from_slice(&vec![b'd'; BODY]);
                if framing.starts_with("transfer") {
                    answer.extend_from_slice(b"\r\n0\r\n\r\n");
                }
                let (whole, config) = (answer.clone(), Arc::clone(&config));
                let (left, has_left) = oneshot::channel();
                running.tasks.spawn(async move {
                    let (socket, agent) = listener.accept().await.unwrap();
                    if leaves == Leaves::WithReset {
                        socket.set_zero_linger().unwrap();
                    }
                    if tls {
                        let mut socket = TlsAcceptor::from(config).accept(socket).await.unwrap();
                        respond(&mut socket, &answer, leaves).await;
                        taken_by_kernel(port, agent.port()).await;
                        // The connection closes without the shutdown that sends `close_notify`.
                        drop(socket);
                    } else {
                        let mut socket = socket;
                        respond(&mut socket, &answer, leaves).await;
                        taken_by_kernel(port, agent.port()).await;
                        drop(socket);
                    }
                    left.send(()).ok();
                });
                let scheme = if tls { "https" } else { "http" };
                let upstream = format!("{scheme}://localhost:{port}");
                let mut own = run(
                    &running,
                    "right",
                    vec![trusting(Protocol::Http, &upstream, &[], &trust)],
                );
                let id = own.online().await.endpoints[0].id.clone();
                let mut stream = running.dial(&id).await;
                let request = b"POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 3000000\r\n\r\n";
                soon(stream.write_all(request)).await.unwrap();
                let body = vec![b'u'; 3_000_000];
                let (mut reader, mut writer) = tokio::io::split(stream);
                let (_, came) = tokio::join!(writer.write_all(&body), async {
                    let mut came = Vec::new();
                    soon(has_left).await.unwrap();
                    while came.len() < whole.len() {
                        match soon(reader.read_buf(&mut came)).await {
                            Ok(read) if read > 0 => {}
                            Ok(_) | Err(_) => break,
                        }
                    }
                    came
                });
                assert!(
                    came == whole,
                    "{leaves:?} {framing:?} tls={tls}: {} of {} bytes",
                    came.len(),
                    whole.len()
                );
                own.stop.cancel();
            }
        }
    }
}

async fn respond(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    answer: &[u8],
    leaves: Leaves,
) {
    let mut request = Vec::new();
    let wanted = match leaves {
        Leaves::BeforeTheRequest => 1,
        Leaves::WithoutGoodbye | Leaves::WithReset => 3_000_000,
    };
    while request.len() < wanted {
        socket.read_buf(&mut request).await.unwrap();
    }
    socket.write_all(answer).await.unwrap();
    socket.flush().await.unwrap();
    if leaves == Leaves::BeforeTheRequest {
        // Reads on for a moment as servers do, so that the kernel does not discard the response.
        let mut rest = vec![0; 64 << 10];
        while socket.read(&mut rest).await.unwrap_or(0) > 0 && request.len() < 2_000_000 {
            request.extend_from_slice(&rest);
        }
    }
}

/// Waits until the peer's kernel has received everything sent on the connection between two local ports.
async fn taken_by_kernel(from: u16, to: u16) {
    let is_sent = |table: &str| {
        table.lines().skip(1).all(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            !columns[1].ends_with(&format!(":{from:04X}"))
                || !columns[2].ends_with(&format!(":{to:04X}"))
                || columns[4].starts_with("00000000:")
        })
    };
    while !["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .all(|table| is_sent(&std::fs::read_to_string(table).unwrap_or_default()))
    {
        tokio::task::yield_now().await;
    }
}

/// A request to an unreachable service is recorded with the error.
#[tokio::test]
async fn a_request_to_a_service_that_is_down_is_kept_with_the_reason() {
    let running = start().await;
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &gone.to_string(), &[])],
    );
    let id = own.online().await.endpoints[0].id.clone();
    let mut stream = running.dial(&id).await;
    let request = b"GET /down HTTP/1.1\r\nhost: a.test\r\n\r\n";
    soon(stream.write_all(request)).await.unwrap();
    soon(stream.read_to_end(&mut Vec::new())).await.unwrap();
    let kept = own.agent.exchanges().unwrap().recent();
    assert_eq!(kept.len(), 1);
    assert_eq!((&kept[0].path[..], kept[0].status), ("/down", None));
    let error = kept[0].error.as_deref().unwrap();
    assert!(error.starts_with("the service is unreachable: "), "{error}");
}
