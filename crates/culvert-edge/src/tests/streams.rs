//! What flows for longer than one answer: WebSocket in streams of HTTP/2, gRPC, server-sent events.

use std::convert::Infallible;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use culvert_policy::Scheme;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::ext::Protocol;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::harness::*;
use crate::{Limits, Settings, Snapshot};

const URL: &str = "https://app.example/chat";

/// A body whose frames are sent one by one; dropping the sender ends it.
pub(super) type Frames = StreamBody<Channel>;
pub(super) type Sends = mpsc::Sender<Frame<Bytes>>;

/// Frames from a channel.
pub(super) struct Channel(mpsc::Receiver<Frame<Bytes>>);

impl futures_util::Stream for Channel {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

pub(super) fn frames() -> (Sends, Frames) {
    let (send, receive) = mpsc::channel(8);
    (send, StreamBody::new(Channel(receive)))
}

pub(super) fn nothing() -> Frames {
    frames().1
}

pub(super) async fn rig(
    upstream: &str,
    protocol: &str,
    settings: Settings,
) -> (Rig, CertificateDer<'static>) {
    let rig = Rig::with(settings).await;
    let (names, key, root) = certificate(&["app.example"]);
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Https,
            "app.example",
            443,
            upstream,
            protocol,
        ))
        .endpoint(endpoint(
            Scheme::Http,
            "app.example",
            80,
            upstream,
            protocol,
        ))
        .certificate(names, key)
        .build();
    rig.edge.publish(snapshot).await;
    (rig, root)
}

pub(super) async fn connect(rig: &mut Rig, root: &CertificateDer<'static>) -> SendRequest<Frames> {
    let (sender, answer) = connect_with(rig, root, None).await;
    answer.into_body().collect().await.unwrap();
    sender
}

/// A client that grants its streams a window of `window` bytes, and the response to its first request.
async fn connect_with(
    rig: &mut Rig,
    root: &CertificateDer<'static>,
    window: Option<u32>,
) -> (SendRequest<Frames>, Response<Incoming>) {
    let address = rig.edge.https_addr().unwrap();
    let stream = tls(address, root, "app.example", "h2").await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    rig.tasks.spawn(async move {
        drop(connection.await);
    });
    // After an answer the client knows what the edge takes.
    let request = Request::get("https://app.example/settings")
        .body(nothing())
        .unwrap();
    let answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    (sender, answer)
}

/// An origin of WebSockets on HTTP/1.1: echoes behind a 101 whose proof is right, and behaves by path.
pub(super) async fn echo(tasks: &mut JoinSet<()>) -> std::net::SocketAddr {
    origin(tasks, |mut client| async move {
        while let Some(head) = client.head().await {
            let line = |name: &str| {
                let mut lines = head.split("\r\n");
                lines
                    .find_map(|line| line.strip_prefix(name))
                    .unwrap_or_default()
            };
            let answer = match head.split(' ').nth(1).unwrap() {
                "/chat" => {
                    assert!(head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
                    assert_eq!(line("upgrade: "), "websocket");
                    assert_eq!(line("connection: "), "upgrade");
                    assert_eq!(line("sec-websocket-protocol: "), "chat");
                    let input = line("sec-websocket-key: ").to_owned()
                        + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
                    let digest = aws_lc_rs::digest::digest(
                        &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY,
                        input.as_bytes(),
                    );
                    let proof = STANDARD.encode(digest);
                    client
                        .send(format!(
                            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\
                             connection: upgrade\r\nsec-websocket-protocol: chat\r\n\
                             sec-websocket-accept: {proof}\r\n\r\nhi"
                        ))
                        .await;
                    while client.more().await {
                        let echo = std::mem::take(&mut client.read);
                        client.send(echo).await;
                    }
                    return;
                }
                "/wrong" => {
                    "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\
                     connection: upgrade\r\nsec-websocket-accept: x\r\n\r\n"
                }
                "/no" => "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno",
                _ => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            };
            client.send(answer).await;
        }
    })
    .await
}

pub(super) fn websocket(path: &str) -> http::request::Builder {
    websocket_at(&format!("https://app.example{path}"))
}

pub(super) fn websocket_at(url: &str) -> http::request::Builder {
    Request::builder()
        .method(Method::CONNECT)
        .uri(url)
        .extension(Protocol::from_static("websocket"))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat")
}

#[tokio::test]
async fn a_websocket_over_http2_is_one_of_many_streams() {
    let mut tasks = JoinSet::new();
    let origin = echo(&mut tasks).await;
    let (mut rig, root) = rig(&format!("http://{origin}"), "", settings()).await;
    let mut sender = connect(&mut rig, &root).await;

    let request = websocket("/chat").body(nothing()).unwrap();
    let answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["sec-websocket-protocol"], "chat");
    for name in [
        "sec-websocket-accept",
        "upgrade",
        "connection",
        "content-length",
    ] {
        assert!(!answer.headers().contains_key(name), "{name}");
    }
    let stream = hyper::upgrade::on(answer).await.unwrap();
    let mut stream = Client::new(TokioIo::new(stream));
    assert_eq!(stream.take(2).await.unwrap(), b"hi");
    for turn in 0..3 {
        stream.send(format!("message {turn}")).await;
        assert_eq!(
            stream.take(9).await.unwrap(),
            format!("message {turn}").as_bytes()
        );
        // Beside it, the connection serves.
        let request = Request::get("https://app.example/x")
            .body(nothing())
            .unwrap();
        let answer = soon("an answer", sender.send_request(request))
            .await
            .unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
    let large = vec![b'x'; 300_000];
    let (mut read, mut write) = tokio::io::split(stream.stream);
    let mut back = vec![0; large.len()];
    let (sent, _) = tokio::join!(
        tokio::io::AsyncWriteExt::write_all(&mut write, &large),
        soon(
            "all of it",
            tokio::io::AsyncReadExt::read_exact(&mut read, &mut back)
        ),
    );
    sent.unwrap();
    assert!(back == large);
    assert_eq!(
        rig.recorder.count(),
        4,
        "the stream is no exchange that has ended"
    );
    tokio::io::AsyncWriteExt::shutdown(&mut write)
        .await
        .unwrap();
    assert_eq!(
        soon(
            "the end",
            tokio::io::AsyncReadExt::read(&mut read, &mut back)
        )
        .await
        .unwrap(),
        0
    );

    let events = rig.recorder.events(5).await;
    let exchange = &events[4]["object"]["http"];
    assert_eq!(exchange["request"]["method"], "get");
    assert_eq!(exchange["response"]["status_code"], 101);
    assert_eq!(exchange["response"]["body_length"], 0);
    drop((read, write, sender));
    assert_eq!(rig.recorder.events(6).await[5]["event_type"], TCP);
}

#[tokio::test]
async fn refused_extended_connects_get_a_response() {
    let mut tasks = JoinSet::new();
    let origin = echo(&mut tasks).await;
    let (mut rig, root) = rig(&format!("http://{origin}"), "", settings()).await;
    let mut sender = connect(&mut rig, &root).await;
    let plain = |protocol: &'static str| {
        Request::builder()
            .method(Method::CONNECT)
            .uri(URL)
            .extension(Protocol::from_static(protocol))
    };
    for (request, status) in [
        (websocket("/no"), 403),
        (websocket("/wrong"), 502),
        // A plain answer would look like an open stream.
        (websocket("/plain"), 502),
        (websocket("/chat").header("sec-websocket-version", "8"), 400),
        (plain("websocket"), 400),
        (
            plain("connect-udp").header("sec-websocket-version", "13"),
            400,
        ),
    ] {
        let request = request.body(nothing()).unwrap();
        let answer = soon("an answer", sender.send_request(request))
            .await
            .unwrap();
        assert_eq!(answer.status(), status);
        answer.into_body().collect().await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_stream_is_closed_on_a_busy_connection() {
    let mut tasks = JoinSet::new();
    let origin = echo(&mut tasks).await;
    let settings = Settings {
        limits: Limits {
            tunnel_idle: std::time::Duration::from_millis(200),
            ..Limits::default()
        },
        ..settings()
    };
    let (mut rig, root) = rig(&format!("http://{origin}"), "", settings).await;
    let mut sender = connect(&mut rig, &root).await;
    let request = websocket("/chat").body(nothing()).unwrap();
    let answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    let mut stream = Client::new(TokioIo::new(hyper::upgrade::on(answer).await.unwrap()));
    soon("the end", async {
        tokio::select! {
            rest = stream.rest() => assert_eq!(rest, b"hi"),
            () = async {
                loop {
                    let request = Request::get("https://app.example/x").body(nothing()).unwrap();
                    let answer = sender.send_request(request).await.unwrap();
                    answer.into_body().collect().await.unwrap();
                }
            } => {}
        }
    })
    .await;
}

/// The origin sends bytes with its 101, for which the client grants no window: the stream has the limits of any other.
#[tokio::test]
async fn a_stream_whose_first_bytes_are_not_read_ends_like_any_other() {
    let short = std::time::Duration::from_millis(200);
    let idle = Limits {
        tunnel_idle: short,
        ..Limits::default()
    };
    let write = Limits {
        write_stall: short,
        ..Limits::default()
    };
    for (limits, is_removed) in [(idle, false), (write, false), (Limits::default(), true)] {
        let mut tasks = JoinSet::new();
        let origin = echo(&mut tasks).await;
        let settings = Settings {
            limits,
            ..settings()
        };
        let (mut rig, root) = rig(&format!("http://{origin}"), "", settings).await;
        let (mut sender, first) = connect_with(&mut rig, &root, Some(0)).await;
        drop(first);
        let request = websocket("/chat").body(nothing()).unwrap();
        let answer = soon("an answer", sender.send_request(request)).await;
        let stream = hyper::upgrade::on(answer.unwrap()).await.unwrap();
        let mut stream = TokioIo::new(stream);
        if is_removed {
            rig.edge.publish(Snapshot::builder().build()).await;
        }
        let mut room = [0; 8];
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut room);
        let read = soon("the end", read).await;
        assert!(read.map_or(true, |bytes| bytes == 0));
    }
}

/// An HTTP/2 origin that echoes bodies as they come, with trailers, as gRPC does.
async fn grpc2(tasks: &mut JoinSet<()>) -> std::net::SocketAddr {
    origin(tasks, |client| async move {
        let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
            let (send, body) = frames();
            if request.uri().path() == "/settings" {
                return Ok::<_, Infallible>(Response::new(body));
            }
            assert_eq!(request.headers()["te"], "trailers");
            assert_eq!(request.headers()["content-type"], "application/grpc");
            if request.uri().path() == "/denied" {
                drop(send);
                let response = Response::builder().header("grpc-status", "7");
                return Ok(response.body(body).unwrap());
            }
            // The task lives as long as the body is wanted.
            let mut incoming = request.into_body();
            let mut tasks = JoinSet::new();
            tasks.spawn(async move {
                while let Some(Ok(frame)) = incoming.frame().await {
                    if frame.is_data() && send.send(frame).await.is_err() {
                        return;
                    }
                }
                let status = [("grpc-status", "0"), ("grpc-message", "fine")];
                drop(send.send(Frame::trailers(fields(&status))).await);
            });
            tasks.detach_all();
            let response = Response::builder().header("content-type", "application/grpc");
            Ok(response.body(body).unwrap())
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        drop(
            server
                .serve_connection(TokioIo::new(client.stream), service)
                .await,
        );
    })
    .await
}

/// The same with HTTP/1.1 and chunks, made by hand.
async fn grpc1(tasks: &mut JoinSet<()>) -> std::net::SocketAddr {
    origin(tasks, |mut client| async move {
        while let Some(head) = client.head().await {
            if head.starts_with("GET /settings") {
                client
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    .await;
                continue;
            }
            assert!(head.contains("\r\nte: trailers\r\n"), "{head}");
            if head.starts_with("POST /denied") {
                client
                    .send("HTTP/1.1 200 OK\r\ngrpc-status: 7\r\ncontent-length: 0\r\n\r\n")
                    .await;
                client.body(&head).await;
                continue;
            }
            client
                .send(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\n\
                     trailer: grpc-status, grpc-message\r\ntransfer-encoding: chunked\r\n\r\n",
                )
                .await;
            loop {
                while find(&client.read, b"\r\n").is_none() {
                    assert!(client.more().await);
                }
                let at = find(&client.read, b"\r\n").unwrap();
                let size = String::from_utf8(client.take(at + 2).await.unwrap()).unwrap();
                let size = usize::from_str_radix(size.trim(), 16).unwrap();
                let chunk = client.take(size + 2).await.unwrap();
                if size == 0 {
                    break;
                }
                client
                    .send([format!("{size:x}\r\n").as_bytes(), &chunk].concat())
                    .await;
            }
            client
                .send("0\r\ngrpc-status: 0\r\ngrpc-message: fine\r\n\r\n")
                .await;
        }
    })
    .await
}

fn fields(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    fields
        .iter()
        .map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, http::HeaderValue::from_static(value))
        })
        .collect()
}

#[tokio::test]
async fn grpc_streams_in_both_directions_and_ends_with_trailers() {
    let mut tasks = JoinSet::new();
    let two = (grpc2(&mut tasks).await, "http2");
    let one = (grpc1(&mut tasks).await, "");
    for (origin, protocol) in [two, one] {
        let (mut rig, root) = rig(&format!("http://{origin}"), protocol, settings()).await;
        let mut sender = connect(&mut rig, &root).await;
        let call = |path: &str| {
            Request::post(format!("https://app.example{path}"))
                .header("te", "trailers")
                .header("content-type", "application/grpc")
        };
        let (send, body) = frames();
        let answer = sender.send_request(call("/echo").body(body).unwrap());
        // The response begins before the request ends, and each message returns separately.
        let mut answer = soon("an answer", answer).await.unwrap();
        assert_eq!(answer.status(), 200);
        for turn in 0..5u8 {
            let message = Bytes::from(vec![turn; 7]);
            send.send(Frame::data(message.clone())).await.unwrap();
            let frame = soon("a message", answer.body_mut().frame())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(frame.into_data().unwrap(), message, "{protocol}");
        }
        drop(send);
        let last = soon("trailers", answer.body_mut().frame())
            .await
            .unwrap()
            .unwrap();
        let trailers = last.into_trailers().unwrap();
        assert_eq!(
            trailers,
            fields(&[("grpc-status", "0"), ("grpc-message", "fine")])
        );
        assert!(answer.body_mut().frame().await.is_none());

        // A status without a message is all head.
        let answer = sender.send_request(call("/denied").body(nothing()).unwrap());
        let answer = soon("an answer", answer).await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "7", "{protocol}");
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "");

        let events = rig.recorder.events(3).await;
        let http = &events[1]["object"]["http"];
        assert_eq!(http["request"]["body_length"], 35, "{protocol}");
        assert_eq!(http["response"]["body_length"], 35, "{protocol}");
    }
}

#[tokio::test]
async fn server_sent_events_are_forwarded_immediately() {
    let (go, gate) = mpsc::channel::<()>(1);
    let gate = std::sync::Arc::new(tokio::sync::Mutex::new(gate));
    let mut tasks = JoinSet::new();
    let origin = origin(&mut tasks, move |mut client| {
        let gate = std::sync::Arc::clone(&gate);
        async move {
            while let Some((head, _)) = client.request().await {
                if head.starts_with("GET /settings") {
                    client
                        .send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                        .await;
                    continue;
                }
                client
                    .send(
                        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                         transfer-encoding: chunked\r\n\r\n",
                    )
                    .await;
                for _ in 0..3 {
                    client.send("9\r\ndata: x\n\n\r\n").await;
                    // The next comes only when this one has arrived.
                    gate.lock().await.recv().await;
                }
                client.send("0\r\n\r\n").await;
            }
        }
    })
    .await;
    let (mut rig, root) = rig(&format!("http://{origin}"), "", settings()).await;

    let mut client = rig.connect().await;
    client
        .send("GET /events HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    client.head().await.unwrap();
    for _ in 0..3 {
        assert_eq!(client.take(14).await.unwrap(), b"9\r\ndata: x\n\n\r\n");
        go.send(()).await.unwrap();
    }
    assert_eq!(client.take(5).await.unwrap(), b"0\r\n\r\n");

    let mut sender = connect(&mut rig, &root).await;
    let request = Request::get("https://app.example/events")
        .body(nothing())
        .unwrap();
    let mut answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    for _ in 0..3 {
        let frame = soon("an event", answer.body_mut().frame())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(frame.into_data().unwrap(), "data: x\n\n");
        go.send(()).await.unwrap();
    }
    let rest = soon("the end", answer.into_body().collect()).await.unwrap();
    assert_eq!(rest.to_bytes(), "");
}
