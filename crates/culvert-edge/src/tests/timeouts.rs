//! Timeouts of each side: silent upstreams are tolerated, clients that do not read or send are disconnected,
//! and endpoints have their own timeouts. Timeouts of minutes are tested with a fake clock in their own
//! modules (`slow_reader`).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use culvert_policy::Scheme;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Frame;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::harness::*;
use super::policies::governed;
use super::streams::{connect, frames, nothing, rig};
use crate::{Limits, Settings, Snapshot, Timeouts};

const GET: &str = "GET / HTTP/1.1\r\nHost: app.example\r\n\r\n";
/// Shorter than any silence in these tests.
const SHORT: Duration = Duration::from_millis(100);
const SILENCE: Duration = Duration::from_millis(600);
const LONG: Duration = Duration::from_secs(3600);

fn within(limits: Limits) -> Settings {
    Settings {
        limits: Limits {
            parting: Duration::ZERO,
            memory_bytes: u64::MAX,
            ..limits
        },
        ..settings()
    }
}

/// An origin that sends the head and a first part, pauses until it is released, and sends the rest.
async fn quiet(tasks: &mut JoinSet<()>, is_http2: bool, go: watch::Receiver<bool>) -> SocketAddr {
    origin(tasks, move |client| {
        let go = go.clone();
        async move {
            if is_http2 {
                quiet2(client, go).await;
            } else {
                quiet1(client, go).await;
            }
        }
    })
    .await
}

async fn quiet1(mut client: Client<tokio::net::TcpStream>, mut go: watch::Receiver<bool>) {
    while let Some(head) = client.head().await {
        let kind = head.split(' ').nth(1).unwrap().trim_start_matches('/');
        let (framing, first, rest) = match kind.strip_prefix("length/") {
            Some(_) => ("content-length: 4", "ab", "cd"),
            None => (
                "transfer-encoding: chunked",
                "2\r\nab\r\n",
                "2\r\ncd\r\n0\r\n\r\n",
            ),
        };
        let kind = kind.trim_start_matches("length/");
        client
            .send(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{framing}\r\n\r\n{first}"
            ))
            .await;
        if kind != "settings" {
            go.wait_for(|go| *go).await.unwrap();
        }
        client.send(rest).await;
    }
}

async fn quiet2(client: Client<tokio::net::TcpStream>, go: watch::Receiver<bool>) {
    let sends = std::sync::Arc::new(std::sync::Mutex::new(JoinSet::new()));
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let (mut go, sends) = (go.clone(), std::sync::Arc::clone(&sends));
        async move {
            let kind = request.uri().path().trim_start_matches('/').to_owned();
            let (send, body) = frames();
            let answer = http::Response::builder().header("content-type", &kind);
            let sending = async move {
                // Held as long as the response, because its client may send.
                let _request = request;
                drop(send.send(Frame::data(Bytes::from("ab"))).await);
                if kind != "settings" {
                    go.wait_for(|go| *go).await.unwrap();
                }
                drop(send.send(Frame::data(Bytes::from("cd"))).await);
            };
            sends.lock().unwrap().spawn(sending);
            Ok::<_, std::convert::Infallible>(answer.body(body).unwrap())
        }
    });
    let io = hyper_util::rt::TokioIo::new(client.stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let server = hyper::server::conn::http2::Builder::new(executor);
    drop(server.serve_connection(io, service).await);
}

const KINDS: [&str; 6] = [
    "text/event-stream",
    "application/grpc",
    "application/x-ndjson",
    "application/json;stream=watch",
    "video/mp4",
    "length/application/octet-stream",
];

/// A pause within any kind of response is tolerated, over both protocols on both sides, with and without TLS.
#[tokio::test]
async fn a_pause_within_a_response_is_tolerated() {
    for is_http2 in [false, true] {
        let (go, gate) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let origin = quiet(&mut tasks, is_http2, gate).await;
        // The client's timeouts are short, those of the upstream are not.
        let limits = Limits {
            body_stall: SHORT,
            body_rate_over: SHORT,
            write_stall: SHORT,
            ..Limits::default()
        };
        let protocol = if is_http2 { "http2" } else { "" };
        let (mut rig, root) = rig(&format!("http://{origin}"), protocol, within(limits)).await;
        let mut sender = connect(&mut rig, &root).await;
        let (mut ones, mut twos) = (Vec::new(), Vec::new());
        for kind in KINDS {
            let ask = format!("GET /{kind} HTTP/1.1\r\nHost: app.example\r\n\r\n");
            let mut client = rig.connect().await;
            client.send(&ask).await;
            assert!(
                client.head().await.unwrap().starts_with("HTTP/1.1 200"),
                "{kind}"
            );
            ones.push((kind, client));
            // One client may still send, and one has sent its complete request.
            for (send, body) in [(None, nothing()), {
                let (send, body) = frames();
                (Some(send), body)
            }] {
                let request = Request::post(format!("https://app.example/{kind}"));
                let request = request.header("content-type", kind).body(body).unwrap();
                let mut answer = soon("an answer", sender.send_request(request))
                    .await
                    .unwrap();
                let first = soon("a frame", answer.body_mut().frame()).await.unwrap();
                assert_eq!(first.unwrap().into_data().unwrap(), "ab", "{kind}");
                twos.push((kind, send, answer));
            }
        }
        // There is no condition to wait for: nothing may happen in this time.
        tokio::time::sleep(SILENCE).await;
        go.send(true).unwrap();
        for (kind, mut client) in ones {
            let body = if kind.starts_with("length") {
                client.take(4).await.map(|_| true)
            } else {
                client
                    .take(19)
                    .await
                    .map(|body| body.ends_with(b"0\r\n\r\n"))
            };
            assert_eq!(body, Some(true), "{kind}");
        }
        for (kind, send, answer) in twos {
            let rest = soon("the rest", answer.into_body().collect()).await;
            let rest = rest.unwrap_or_else(|error| panic!("{kind}: {error}"));
            assert_eq!(rest.to_bytes(), "cd", "{kind}");
            drop(send);
        }
    }
}

/// An origin that responds only when it is released.
async fn waits(tasks: &mut JoinSet<()>, is_http2: bool, go: watch::Receiver<bool>) -> SocketAddr {
    origin(tasks, move |mut client| {
        let mut go = go.clone();
        async move {
            if is_http2 {
                let service = hyper::service::service_fn(move |request: Request<_>| {
                    let mut go = go.clone();
                    async move {
                        let _: &Request<hyper::body::Incoming> = &request;
                        if request.uri().path() != "/settings" {
                            go.wait_for(|go| *go).await.unwrap();
                        }
                        http::Response::builder().status(204).body(nothing())
                    }
                });
                let io = hyper_util::rt::TokioIo::new(client.stream);
                let executor = hyper_util::rt::TokioExecutor::new();
                let server = hyper::server::conn::http2::Builder::new(executor);
                drop(server.serve_connection(io, service).await);
                return;
            }
            while let Some(head) = client.head().await {
                if !head.starts_with("GET /settings") {
                    go.wait_for(|go| *go).await.unwrap();
                }
                client.send("HTTP/1.1 204 No Content\r\n\r\n").await;
            }
        }
    })
    .await
}

/// A gRPC server may send nothing before its first message, and its client may be as silent. On HTTP/1, where
/// a request uses a whole upstream connection, the content type alone does not extend the timeout; nor does
/// it on HTTP/2 without the `te: trailers` that every gRPC client sends.
#[tokio::test]
async fn a_grpc_call_may_be_silent_from_the_start() {
    const CALLS: [&str; 3] = [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc; x=y",
    ];
    for is_http2 in [true, false] {
        let (go, gate) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let origin = waits(&mut tasks, is_http2, gate).await;
        let limits = Limits {
            body_stall: SHORT,
            answer: SHORT,
            ..Limits::default()
        };
        let protocol = if is_http2 { "http2" } else { "" };
        let (mut rig, root) = rig(&format!("http://{origin}"), protocol, within(limits)).await;
        let mut sender = connect(&mut rig, &root).await;
        let mut ask = |kind: &'static str, te: &'static str| {
            let (send, body) = frames();
            let request = Request::post("https://app.example/").header("content-type", kind);
            let request = match te {
                "" => request,
                te => request.header("te", te),
            };
            let answer = sender.send_request(request.body(body).unwrap());
            async move { (answer.await.unwrap().status(), send) }
        };
        let mut calls = Box::pin(futures_util::future::join_all(
            CALLS.map(|kind| ask(kind, "trailers")),
        ));
        let others = [
            ("application/grpcx", "trailers"),
            ("text/plain", "trailers"),
            ("application/grpc", ""),
        ];
        let others = others.map(|(kind, te)| ask(kind, te));
        for (status, _) in soon("answers", futures_util::future::join_all(others)).await {
            assert_eq!(status, 408);
        }
        let expected = if is_http2 {
            let silence = tokio::time::timeout(SILENCE, &mut calls).await;
            assert!(silence.is_err(), "calls wait");
            204
        } else {
            408
        };
        go.send(true).unwrap();
        for (status, _) in soon("answers", calls).await {
            assert_eq!(status, expected);
        }
    }
}

/// If clients leave during a silent response, its exchange ends, on HTTP/2 and HTTP/1, even if they have sent
/// more data than is buffered.
#[tokio::test]
async fn a_silent_response_ends_with_its_client() {
    let mut tasks = JoinSet::new();
    let (_go, gate) = watch::channel(false);
    let origin = quiet(&mut tasks, false, gate).await;
    let limits = Limits {
        idle: 2 * SHORT,
        ..Limits::default()
    };
    let (mut rig, root) = rig(&format!("http://{origin}"), "", within(limits)).await;
    let mut sender = connect(&mut rig, &root).await;
    let request = Request::get("https://app.example/text/plain").body(nothing());
    let mut answer = soon("an answer", sender.send_request(request.unwrap()))
        .await
        .unwrap();
    assert!(
        soon("a frame", answer.body_mut().frame())
            .await
            .unwrap()
            .is_ok()
    );
    drop(answer);
    let exchanges = |rig: &Rig| {
        let open = rig.edge.shared().census.open();
        let each = open
            .iter()
            .map(|down| down.counters.open.load(std::sync::atomic::Ordering::SeqCst));
        each.sum::<usize>()
    };
    soon("the stream's end", async {
        while exchanges(&rig) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for ahead in [0, 100, 15 << 10, 200 << 10] {
        let mut client = rig.connect().await;
        client
            .send("GET /text/plain HTTP/1.1\r\nHost: app.example\r\n\r\n")
            .await;
        assert!(client.head().await.is_some());
        client.send(vec![b'x'; ahead]).await;
        client.stream.shutdown().await.unwrap();
        soon("the connection's end", async {
            while exchanges(&rig) > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// An origin of endless responses.
async fn endless(tasks: &mut JoinSet<()>) -> SocketAddr {
    origin(tasks, |mut client| async move {
        while let Some(head) = client.head().await {
            if head.starts_with("GET /settings") || head.starts_with("GET /short") {
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                client.send(answer).await;
                continue;
            }
            client.send("HTTP/1.1 200 OK\r\n\r\n").await;
            let part = vec![b'x'; 64 << 10];
            while client.stream.write_all(&part).await.is_ok() {}
            return;
        }
    })
    .await
}

/// An edge before that origin, with this write timeout.
async fn endless_rig(write_stall: Duration) -> (Rig, CertificateDer<'static>, JoinSet<()>) {
    let mut tasks = JoinSet::new();
    let origin = endless(&mut tasks).await;
    let limits = Limits {
        write_stall,
        ..Limits::default()
    };
    let (rig, root) = rig(&format!("http://{origin}"), "", within(limits)).await;
    (rig, root, tasks)
}

#[tokio::test]
async fn slow_readers_are_disconnected_and_others_continue() {
    let write = Duration::from_secs(1);
    let (rig, root, _tasks) = endless_rig(write).await;
    let meters = rig.edge.meters();
    let mut attackers = JoinSet::new();
    for number in 0..10 {
        let (to, tls_to) = (
            rig.edge.http_addr().unwrap(),
            rig.edge.https_addr().unwrap(),
        );
        let root = root.clone();
        attackers.spawn(async move {
            async fn drip(mut client: impl tokio::io::AsyncRead + Unpin) {
                // 177 bytes per second.
                let mut tick = tokio::time::interval(Duration::from_millis(100));
                let mut room = [0; 17];
                loop {
                    tick.tick().await;
                    match client.read(&mut room).await {
                        Ok(0) | Err(_) => return,
                        Ok(_) => {}
                    }
                }
            }
            if number % 2 == 0 {
                let mut client = Client::new(slow_reader(to).await);
                client.send(GET).await;
                drip(client.stream).await;
            } else {
                let tcp = slow_reader(tls_to).await;
                let stream = tls_over(tcp, &root, "app.example", "http/1.1")
                    .await
                    .unwrap();
                let mut client = Client::new(stream);
                client.send(GET).await;
                drip(client.stream).await;
            }
        });
    }
    // Another client reads slowly, but pauses for less than the timeout.
    let mut honest = rig.connect().await;
    honest.send(GET).await;
    let begun = Instant::now();
    let mut read = 0;
    let mut room = vec![0; 256 << 10];
    while meters.slow_readers.get() < 10 || begun.elapsed() < 3 * write {
        assert!(
            begun.elapsed() < PATIENCE,
            "{} cut",
            meters.slow_readers.get()
        );
        read += soon("bytes", honest.stream.read(&mut room)).await.unwrap();
        tokio::time::sleep(write / 3).await;
    }
    assert!(read > 0);
    assert_eq!(meters.slow_readers.get(), 10);
    // They may read what their own kernels hold at any speed.
    attackers.shutdown().await;
}

/// A stream whose client grants no window is reset alone, while another stream continues.
#[tokio::test]
async fn only_the_stream_that_is_not_read_is_reset() {
    let write = Duration::from_millis(800);
    let (mut rig, root, _tasks) = endless_rig(write).await;
    let mut sender = connect(&mut rig, &root).await;
    let mut ask = |path: &str| {
        let request = Request::get(format!("https://app.example{path}"));
        sender.send_request(request.body(nothing()).unwrap())
    };
    let paused = soon("an answer", ask("/paused")).await.unwrap();
    let mut read = soon("an answer", ask("/read")).await.unwrap();
    let begun = Instant::now();
    while rig.edge.meters().slow_readers.get() == 0 || begun.elapsed() < 2 * write {
        assert!(begun.elapsed() < PATIENCE);
        let frame = soon("a frame", read.body_mut().frame()).await;
        assert!(frame.unwrap().is_ok());
    }
    assert_eq!(rig.edge.meters().slow_readers.get(), 1);
    let rest = soon("the end", paused.into_body().collect()).await;
    assert!(rest.is_err(), "it was reset");
    let short = soon("an answer", ask("/short")).await.unwrap();
    assert_eq!(short.into_body().collect().await.unwrap().to_bytes(), "ok");
}

/// A WebSocket and a TCP endpoint with a client that does not read.
#[tokio::test]
async fn upgraded_connections_that_are_not_read_are_closed() {
    let mut tasks = JoinSet::new();
    let origin = origin(&mut tasks, |mut client| async move {
        client.more().await;
        let part = vec![b'x'; 64 << 10];
        while client.stream.write_all(&part).await.is_ok() {}
    })
    .await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::with(Settings {
        inherited: crate::Inherited::new(vec![listener]),
        ..settings()
    })
    .await;
    let mut tcp = endpoint(
        Scheme::Tcp,
        "app.example",
        port,
        &format!("tcp://{origin}"),
        "",
    );
    tcp.timeouts.write = Some(SHORT);
    rig.edge
        .publish(Snapshot::builder().endpoint(tcp).build())
        .await;
    let mut client = Client::new(slow_reader(([127, 0, 0, 1], port).into()).await);
    client.send("x").await;
    soon("the cut", async {
        while rig.edge.meters().connections.get() > 0 || rig.edge.meters().accepted.get() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(client);
}

/// Requests over HTTP/2 that wait for the same connection wait no longer than for one of their own.
#[tokio::test]
async fn requests_behind_a_connection_that_hangs_end_together() {
    const REQUESTS: usize = 30;
    let mut tasks = JoinSet::new();
    let silent = origin(&mut tasks, |mut client| async move {
        client.rest().await;
    })
    .await;
    let limit = Duration::from_millis(500);
    let rig = Rig::with(within(Limits {
        connect: limit,
        ..Limits::default()
    }))
    .await;
    let upstream = crate::Upstream::parse(&format!("https://{silent}"), "http2").unwrap();
    let endpoint = crate::Endpoint {
        upstream: Some(upstream),
        ..endpoint(Scheme::Http, "app.example", 80, "http://127.0.0.1:1", "")
    };
    let snapshot = Snapshot::builder().endpoint(endpoint);
    rig.edge.publish(snapshot.build()).await;
    let began = Instant::now();
    let mut requests = Vec::new();
    for _ in 0..REQUESTS {
        let mut client = rig.connect().await;
        client.send(GET).await;
        requests.push(client);
    }
    for mut client in requests {
        assert_eq!(client.answer("GET").await.status, 504);
    }
    // One after another they would take 15 seconds.
    assert!(began.elapsed() < 20 * limit, "{:?}", began.elapsed());
}

/// Each timeout of an endpoint overrides the settings: a shorter one ends the exchange, a longer one keeps
/// it.
#[tokio::test]
async fn timeouts_of_an_endpoint_override_the_settings() {
    let mut tasks = JoinSet::new();
    let silent = origin(&mut tasks, |mut client| async move {
        client.rest().await;
    })
    .await;
    let (_go, gate) = watch::channel(false);
    let quiet = quiet(&mut tasks, false, gate).await;
    let endless = endless(&mut tasks).await;
    let upload = "POST / HTTP/1.1\r\nHost: app.example\r\ncontent-length: 9\r\n\r\nabc";
    type Set = fn(&mut Timeouts, Duration);
    let rows: [(&str, String, &str, Set); 5] = [
        (
            "connect",
            format!("https://{silent}"),
            GET,
            |times, time| times.connect = Some(time),
        ),
        (
            "first_byte",
            format!("http://{silent}"),
            GET,
            |times, time| times.first_byte = Some(time),
        ),
        ("idle", format!("http://{quiet}"), GET, |times, time| {
            times.idle = Some(time)
        }),
        ("write", format!("http://{endless}"), GET, |times, time| {
            times.write = Some(time)
        }),
        (
            "request",
            format!("http://{silent}"),
            upload,
            |times, time| times.request = Some(time),
        ),
    ];
    for is_internal in [false, true] {
        for (name, upstream, ask, set) in &rows {
            for (of_settings, own, ends) in [(LONG, SHORT, true), (SHORT, LONG, false)] {
                let mut all = Timeouts::default();
                set(&mut all, of_settings);
                let limits = Limits::default();
                let rig = Rig::with(within(Limits {
                    connect: all.connect.unwrap_or(limits.connect),
                    answer: all.first_byte.unwrap_or(limits.answer),
                    tunnel_idle: all.idle.unwrap_or(limits.tunnel_idle),
                    write_stall: all.write.unwrap_or(limits.write_stall),
                    body_stall: all.request.unwrap_or(limits.body_stall),
                    ..limits
                }))
                .await;
                let mut endpoints = vec![endpoint(Scheme::Http, "app.example", 80, upstream, "")];
                if is_internal {
                    let forwards = "on_http_request: [{actions: [{type: forward-internal, config: {url: 'http://a.internal'}}]}]";
                    endpoints = vec![
                        governed(Scheme::Http, "", forwards),
                        endpoint(Scheme::Http, "a.internal", 80, upstream, ""),
                    ];
                    // If both set one, the endpoint that receives the forwarded request decides.
                    set(&mut endpoints[0].timeouts, of_settings);
                }
                set(&mut endpoints.last_mut().unwrap().timeouts, own);
                let snapshot = endpoints
                    .into_iter()
                    .fold(Snapshot::builder(), |all, one| all.endpoint(one));
                rig.edge.publish(snapshot.build()).await;
                let mut client = rig.connect_slow_reader().await;
                client.send(ask).await;
                let case = format!("{name}, internal: {is_internal}, ends: {ends}");
                if ends {
                    let status = match *name {
                        "connect" | "first_byte" => Some(504),
                        "request" => Some(408),
                        _ => None,
                    };
                    if let Some(status) = status {
                        let answer = soon(&case, client.try_answer("GET")).await;
                        assert_eq!(answer.map(|answer| answer.status), Some(status), "{case}");
                    } else {
                        soon(&case, async {
                            while rig.edge.meters().connections.get() > 0
                                || rig.edge.meters().requests.get() == 0
                            {
                                tokio::task::yield_now().await;
                            }
                        })
                        .await;
                    }
                } else {
                    let ended = tokio::time::timeout(SILENCE, async {
                        while rig.edge.meters().connections.get() > 0
                            || rig.edge.meters().requests.get() == 0
                        {
                            tokio::task::yield_now().await;
                        }
                    });
                    assert!(ended.await.is_err(), "{case}");
                }
            }
        }
    }
}

/// A connection table that is nearly full closes the oldest idle connections of the source with the most:
/// those that it needs, and no others.
#[tokio::test]
async fn a_full_connection_table_closes_idle_connections_of_the_largest_source() {
    let mut rig = Rig::with(within(Limits {
        connections: 64,
        connections_per_source: 64,
        rest: SHORT,
        ..Limits::default()
    }))
    .await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let to = rig.edge.http_addr().unwrap();
    let served = async |from: [u8; 4]| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let mut client = Client::new(socket.connect(to).await.unwrap());
        client.send(GET).await;
        assert_eq!(client.answer("GET").await.status, 200);
        client
    };
    let (modest, greedy) = ([127, 0, 0, 2], [127, 0, 0, 3]);
    let mut modest_ones = [served(modest).await, served(modest).await];
    let mut greedy_ones = Vec::new();
    for _ in 0..59 {
        greedy_ones.push(served(greedy).await);
    }
    assert_eq!(
        rig.edge.meters().shed_idle.get(),
        0,
        "61 of 64 are not too many"
    );
    greedy_ones.push(served(greedy).await);
    // The last one to begin has been served when it is counted.
    soon("room", async {
        while rig.edge.meters().connections.get() > 60 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(rig.edge.meters().shed_idle.get(), 2);
    for mut oldest in greedy_ones.drain(..2) {
        assert_eq!(oldest.rest().await, b"");
    }
    for client in modest_ones.iter_mut().chain(&mut greedy_ones) {
        client.send(GET).await;
        assert_eq!(client.answer("GET").await.status, 200);
    }
}
