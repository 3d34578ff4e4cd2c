//! Every limit on connections, times and HTTP/2: a request at a limit passes, and one that exceeds it gets its
//! response or is closed. Fixed sizes are in [`bounds`](super::bounds), the cost of floods in
//! [`floods`](super::floods).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_policy::Scheme;
use http_body_util::Full;
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::floods::{
    DATA, END_STREAM, GOAWAY, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, request, stream,
};
use super::harness::*;
use super::secure::http2;
use super::webhooks::held_bytes;
use crate::{Limits, Settings, Snapshot};

/// A timeout that tests wait for.
const SHORT: Duration = Duration::from_millis(150);

const GET: &str = "GET / HTTP/1.1\r\nHost: app.example\r\n\r\n";
const URL: &str = "https://app.example/";

type Case = Pin<Box<dyn Future<Output = ()>>>;

/// The tests of all limits. A limit without a test does not compile.
fn cases() -> Vec<(&'static str, Case)> {
    macro_rules! cases {
        ($($name:ident),* $(,)?) => {{
            // Names every field, so that a new one without a test fails to compile.
            let Limits { $($name: _),* } = Limits::default();
            vec![$((stringify!($name), Box::pin($name()) as Case)),*]
        }};
    }
    cases![
        memory_bytes,
        run_queue,
        store_write,
        connections,
        connections_per_source,
        body_bytes,
        held_bytes,
        handshake,
        first_byte,
        head,
        idle,
        rest,
        http2_idle,
        body_stall,
        body_rate_over,
        write_stall,
        connect,
        answer,
        tunnel_idle,
        http2_streams,
        http2_requests,
        parting,
        drain,
        copy_age_max,
        refused_whole,
        refused_events,
    ]
}

/// Sends 40 requests that are refused, on one connection. Returns how many have an event, and how many have none.
async fn refused(limits: Limits) -> (u64, u64) {
    const REFUSED: u32 = 40;
    let settings = Settings {
        limits,
        ..settings()
    };
    let (rig, root) = super::streams::rig("http://127.0.0.1:1", "", settings).await;
    let mut client = super::http2_streams::raw(&rig, &root, 65_535).await;
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "nobody.example"),
        (":path", "/"),
    ];
    let heads: Vec<u8> = (0..REFUSED)
        .flat_map(|turn| super::refused::head2(turn, &fields))
        .collect();
    client.send(heads).await;
    let meters = rig.edge.meters();
    let refused = || -> u64 { meters.refused.iter().map(|meter| meter.get()).sum() };
    eventually("all are refused", || refused() == u64::from(REFUSED)).await;
    let left_out = meters.refusals_sampled.get();
    let with_event = u64::from(REFUSED) - left_out;
    rig.recorder
        .events(usize::try_from(with_event).unwrap())
        .await;
    (with_event, left_out)
}

/// Beyond this rate, refusals of a network have no event each.
async fn refused_whole() {
    let limits = |refused_whole| Limits {
        refused_whole,
        refused_events: u64::MAX,
        ..settings().limits
    };
    assert_eq!(refused(limits(u64::MAX)).await, (40, 0));
    let (with_event, left_out) = refused(limits(0)).await;
    assert!(with_event > 0 && left_out > 0, "{with_event} {left_out}");
}

/// Beyond this rate, refusals of all networks have no event.
async fn refused_events() {
    let limits = Limits {
        refused_events: 0,
        ..settings().limits
    };
    assert_eq!(refused(limits).await, (0, 40));
}

/// A body of the maximum length passes, one more byte gets 413: with a content length, in chunks, and when a
/// policy reads it.
async fn body_bytes() {
    let mut rig = Rig::with(Settings {
        limits: Limits {
            body_bytes: 8,
            ..settings().limits
        },
        ..settings()
    })
    .await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((_, body)) = client.request().await {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            client.send([head.into_bytes(), body].concat()).await;
        }
    })
    .await;
    let upstream = format!("http://{origin}");
    let replaced = "on_http_request: [{actions: [{type: request-body-find-replace, config: {replacements: [{from: x, to: y}]}}]}]";
    let plain = http("app.example", origin).build();
    let governed = super::policies::governed(Scheme::Http, &upstream, replaced);
    let governed = Snapshot::builder().endpoint(governed).build();
    for (snapshot, is_plain) in [(plain, true), (governed, false)] {
        rig.edge.publish(snapshot).await;
        for (length, status) in [(8, 200), (9, 413)] {
            let body = "x".repeat(length);
            let reported = format!("content-length: {length}\r\n\r\n{body}");
            let chunks =
                format!("transfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n");
            for framed in [reported, chunks] {
                let ask = format!("POST / HTTP/1.1\r\nHost: app.example\r\n{framed}");
                let answer = rig.ask(&ask).await;
                assert_eq!(answer.status, status, "{ask}");
                if status == 413 && is_plain {
                    assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3616"));
                }
            }
        }
    }
}

#[allow(
    clippy::print_stdout,
    reason = "beside a failure it is reported which limit"
)]
#[tokio::test]
async fn each_request_limit_is_enforced() {
    for (limit, case) in cases() {
        println!("{limit}");
        case.await;
    }
}

/// An edge with these limits. The load of the machine is no pressure on it.
async fn rig(limits: Limits) -> Rig {
    Rig::with(Settings {
        limits: Limits {
            run_queue: Duration::MAX,
            ..limits
        },
        ..settings()
    })
    .await
}

/// An edge that forwards `app.example`, over plain HTTP and TLS, to an origin that responds.
async fn serving(limits: Limits) -> (Rig, CertificateDer<'static>) {
    let mut rig = rig(limits).await;
    let origin = hello(&mut rig.tasks).await;
    let root = publish(&rig, &format!("http://{origin}")).await;
    (rig, root)
}

async fn publish(rig: &Rig, upstream: &str) -> CertificateDer<'static> {
    let (names, key, root) = certificate(&["app.example"]);
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(Scheme::Http, "app.example", 80, upstream, ""))
        .endpoint(endpoint(Scheme::Https, "app.example", 443, upstream, ""))
        .certificate(names, key)
        .build();
    rig.edge.publish(snapshot).await;
    root
}

/// An edge before an origin that accepts everything and never responds.
async fn before_silence(limits: Limits) -> (Rig, CertificateDer<'static>) {
    let mut rig = rig(limits).await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.rest().await;
    })
    .await;
    let root = publish(&rig, &format!("http://{origin}")).await;
    (rig, root)
}

/// Waits until this number of connections is open.
async fn open(rig: &Rig, connections: u64) {
    soon("connections to open or close", async {
        while rig.edge.meters().connections.get() != connections {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Waits until this number of requests has begun.
async fn asked(rig: &Rig, requests: u64) {
    soon("requests", async {
        while rig.edge.meters().requests.get() < requests {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn is_served(client: &mut Client<TcpStream>) -> bool {
    client.send(GET).await;
    let answer = client.try_answer("GET").await;
    answer.is_some_and(|answer| answer.status == 200)
}

async fn memory_bytes() {
    super::overloaded::sheds().await;
}

async fn run_queue() {
    super::overloaded::sheds_when_tasks_wait().await;
}

async fn store_write() {
    super::overloaded::sheds_when_the_store_is_slow().await;
}

async fn connections() {
    let (rig, _) = serving(Limits {
        connections: 2,
        ..Limits::default()
    })
    .await;
    let (mut one, mut two) = (rig.connect().await, rig.connect().await);
    assert!(is_served(&mut one).await && is_served(&mut two).await);
    assert!(!is_served(&mut rig.connect().await).await);
    assert_eq!(rig.edge.meters().refused_full.get(), 1);
    drop(one);
    open(&rig, 1).await;
    assert!(is_served(&mut rig.connect().await).await);
}

async fn connections_per_source() {
    let (rig, _) = serving(Limits {
        connections_per_source: 2,
        ..Limits::default()
    })
    .await;
    let (mut one, mut two) = (rig.connect().await, rig.connect().await);
    assert!(is_served(&mut one).await && is_served(&mut two).await);
    assert!(!is_served(&mut rig.connect().await).await);
    assert_eq!(rig.edge.meters().refused_source.get(), 1);
    drop(one);
    open(&rig, 1).await;
    assert!(is_served(&mut rig.connect().await).await);
}

/// Clients that never finish their handshakes delay no others, not even at their own address.
#[tokio::test]
async fn unfinished_handshakes_delay_no_other_client() {
    let (rig, root) = serving(Limits {
        handshake: Duration::from_secs(3_600),
        ..settings().limits
    })
    .await;
    let address = rig.edge.https_addr().unwrap();
    let mut begun = Vec::new();
    for _ in 0..400 {
        let mut client = Client::new(TcpStream::connect(address).await.unwrap());
        client.send(hello_of(&root)).await;
        assert!(client.more().await, "the server says its part");
        begun.push(client);
    }
    assert!(tls(address, &root, "app.example", "http/1.1").await.is_ok());
    drop(begun);

    // A handshake that gets no turn before the deadline is closed.
    let short = Settings {
        limits: Limits {
            handshake: SHORT,
            ..settings().limits
        },
        ..settings()
    };
    rig.edge.reload(&short).expect("the limits are good");
    let shared = rig.edge.shared();
    let _all = shared.handshakes.hold_all().await;
    let late = tls(address, &root, "app.example", "http/1.1").await;
    assert!(late.is_err());
}

/// A ClientHello.
fn hello_of(root: &CertificateDer<'static>) -> Vec<u8> {
    let name = "app.example".try_into().unwrap();
    let config = tls_config(root, "http/1.1");
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

async fn handshake() {
    let (rig, _) = serving(Limits {
        handshake: SHORT,
        ..Limits::default()
    })
    .await;
    let address = rig.edge.https_addr().unwrap();
    for begun in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut client = Client::new(TcpStream::connect(address).await.unwrap());
        client.send(begun).await;
        assert_eq!(client.rest().await, b"");
    }
    assert_eq!(rig.edge.meters().handshakes_failed.get(), 2);
}

async fn first_byte() {
    let (rig, _) = serving(Limits {
        first_byte: SHORT,
        ..Limits::default()
    })
    .await;
    assert_eq!(rig.connect().await.rest().await, b"");
}

async fn head() {
    let (rig, _) = serving(Limits {
        head: SHORT,
        ..Limits::default()
    })
    .await;
    let mut client = rig.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: app.ex").await;
    assert_eq!(client.answer("GET").await.status, 408);
    assert!(!client.more().await);
    // Occasional bytes do not extend the timeout.
    let mut client = rig.connect().await;
    let (mut reads, mut writes) = tokio::io::split(&mut client.stream);
    let dripping = async {
        let mut tick = tokio::time::interval(SHORT / 10);
        for byte in GET.trim_end().bytes().cycle() {
            tick.tick().await;
            if tokio::io::AsyncWriteExt::write_all(&mut writes, &[byte])
                .await
                .is_err()
            {
                break;
            }
        }
    };
    let mut answer = Vec::new();
    tokio::select! {
        () = dripping => {}
        _ = tokio::io::AsyncReadExt::read_to_end(&mut reads, &mut answer) => {}
    }
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"));
}

async fn idle() {
    let (rig, _) = serving(Limits {
        idle: SHORT,
        ..Limits::default()
    })
    .await;
    let mut client = rig.connect().await;
    assert!(is_served(&mut client).await);
    assert_eq!(client.rest().await, b"");
}

async fn rest() {
    let (rig, _) = serving(Limits {
        rest: SHORT,
        idle: 4 * SHORT,
        ..Limits::default()
    })
    .await;
    // After its buffers are freed, the connection still closes at the end of the idle time.
    let mut client = rig.connect().await;
    assert!(is_served(&mut client).await);
    assert_eq!(client.rest().await, b"");
}

async fn http2_idle() {
    let (mut rig, root) = serving(Limits {
        http2_idle: SHORT,
        ..Limits::default()
    })
    .await;
    let sender = http2(&mut rig, &root, "app.example").await;
    open(&rig, 0).await;
    drop(sender);
}

async fn body_stall() {
    let limits = Limits {
        body_stall: SHORT,
        ..Limits::default()
    };
    let (rig, _) = serving(limits.clone()).await;
    let mut client = rig.connect().await;
    client
        .send("POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 9\r\n\r\nabc")
        .await;
    assert_eq!(client.answer("POST").await.status, 408);
    assert!(!client.more().await);

    // The same on HTTP/2.
    let (mut rig, root) = serving(limits).await;
    let mut sender = super::streams::connect(&mut rig, &root).await;
    let (send, body) = super::streams::frames();
    let request = http::Request::post(URL).body(body).unwrap();
    send.send(hyper::body::Frame::data(Bytes::from("abc")))
        .await
        .unwrap();
    let answer = soon("an answer", sender.send_request(request)).await;
    assert_eq!(answer.unwrap().status(), 408);
}

async fn body_rate_over() {
    let (rig, _) = serving(Limits {
        body_rate_over: SHORT,
        ..Limits::default()
    })
    .await;
    // A byte every 20 ms is progress, but 50 bytes a second are too few.
    let mut client = rig.connect().await;
    client
        .send("POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 9000\r\n\r\n")
        .await;
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let answer = loop {
        tokio::select! {
            answer = client.try_answer("POST") => break answer,
            _ = tick.tick() => {}
        }
        client.send("x").await;
    };
    assert_eq!(answer.map(|answer| answer.status), Some(408));

    // The same on HTTP/2.
    let limits = Limits {
        body_rate_over: SHORT,
        ..Limits::default()
    };
    let (mut rig, root) = serving(limits).await;
    let mut sender = super::streams::connect(&mut rig, &root).await;
    let (send, body) = super::streams::frames();
    let request = http::Request::post(URL).body(body).unwrap();
    let answer = sender.send_request(request);
    let mut answer = std::pin::pin!(answer);
    let status = loop {
        tokio::select! {
            answer = &mut answer => break answer.unwrap().status(),
            _ = tick.tick() => {}
        }
        drop(send.send(hyper::body::Frame::data(Bytes::from("x"))).await);
    };
    assert_eq!(status, 408);
}

async fn write_stall() {
    let mut rig = rig(Limits {
        write_stall: 2 * SHORT,
        ..Limits::default()
    })
    .await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.request().await;
        client.send("HTTP/1.1 200 OK\r\n\r\n").await;
        let part = vec![b'x'; 64 << 10];
        loop {
            if tokio::io::AsyncWriteExt::write_all(&mut client.stream, &part)
                .await
                .is_err()
            {
                return;
            }
        }
    })
    .await;
    let root = publish(&rig, &format!("http://{origin}")).await;
    // Readers of an endless response that read nothing.
    let mut client = rig.connect().await;
    client.send(GET).await;
    asked(&rig, 1).await;
    open(&rig, 0).await;
    // The windows are large enough, so that the socket is the bottleneck.
    let mut raw = raw(&rig, &root).await;
    let most = [0x7F, 0xFF, 0xFF, 0xFF];
    raw.send(frame(SETTINGS, 0, 0, &[&[0, 4][..], &most].concat()))
        .await;
    raw.send(frame(WINDOW_UPDATE, 0, 0, &[0x7F, 0, 0, 0])).await;
    raw.send(request(0, END_STREAM)).await;
    asked(&rig, 2).await;
    open(&rig, 0).await;
}

async fn connect() {
    let mut rig = rig(Limits {
        connect: SHORT,
        ..Limits::default()
    })
    .await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.rest().await;
    })
    .await;
    // The upstream accepts the connection, but not the TLS handshake.
    publish(&rig, &format!("https://{origin}")).await;
    assert_eq!(rig.ask(GET).await.status, 504);
}

async fn answer() {
    let (rig, _) = before_silence(Limits {
        answer: SHORT,
        ..Limits::default()
    })
    .await;
    assert_eq!(rig.ask(GET).await.status, 504);
}

async fn tunnel_idle() {
    idle_answer().await;
    let mut rig = rig(Limits {
        tunnel_idle: SHORT,
        ..Limits::default()
    })
    .await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.rest().await;
    })
    .await;
    let port = free_port().await;
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Tcp,
            "app.example",
            port,
            &format!("tcp://{origin}"),
            "",
        ))
        .build();
    rig.edge.publish(snapshot).await;
    let mut client = Client::new(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    client.send("x").await;
    assert_eq!(client.rest().await, b"");
}

/// A response that stalls is cut, and never looks complete.
async fn idle_answer() {
    let mut rig = rig(Limits {
        tunnel_idle: SHORT,
        ..Limits::default()
    })
    .await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.request().await;
        client
            .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
            .await;
        client.rest().await;
    })
    .await;
    publish(&rig, &format!("http://{origin}")).await;
    let mut client = rig.connect().await;
    client.send(GET).await;
    let answer = client.rest().await;
    assert!(find(&answer, b"3\r\nabc\r\n").is_some());
    assert!(find(&answer, b"\r\n0\r\n").is_none());
}

pub(super) async fn free_port() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

async fn http2_streams() {
    let (rig, root) = before_silence(Limits {
        http2_streams: 3,
        ..Limits::default()
    })
    .await;
    let mut client = raw(&rig, &root).await;
    for turn in 0..4 {
        client.send(request(turn, END_STREAM)).await;
    }
    let (_, of, payload) = next(&mut client, RST_STREAM).await;
    assert_eq!((of, code(&payload)), (stream(3), 7));
    asked(&rig, 3).await;
    assert_eq!(rig.edge.meters().requests.get(), 3);
}

async fn http2_requests() {
    let (rig, root) = serving(Limits {
        http2_requests: 3,
        ..Limits::default()
    })
    .await;
    let mut client = raw(&rig, &root).await;
    for turn in 0..3 {
        client.send(request(turn, END_STREAM)).await;
        while next(&mut client, DATA).await.0 & END_STREAM == 0 {}
    }
    let (_, _, payload) = next(&mut client, GOAWAY).await;
    assert_eq!(code(&payload[4..]), 0);
}

async fn parting() {
    let (rig, _) = serving(Limits {
        parting: SHORT,
        ..Limits::default()
    })
    .await;
    let mut client = rig.connect().await;
    assert!(is_served(&mut client).await);
    rig.cancel.cancel();
    assert_eq!(client.rest().await, b"");
}

async fn drain() {
    let (rig, _) = before_silence(Limits {
        drain: SHORT,
        ..Limits::default()
    })
    .await;
    let mut client = rig.connect().await;
    client.send(GET).await;
    asked(&rig, 1).await;
    rig.cancel.cancel();
    assert_eq!(client.rest().await, b"");
}

/// With a configuration that was current too long ago, no host is served, until it is current again.
async fn copy_age_max() {
    const UNKNOWN: &str = "GET / HTTP/1.1\r\nHost: unknown.example\r\n\r\n";
    let (rig, _) = serving(Limits {
        copy_age_max: Some(SHORT),
        ..Limits::default()
    })
    .await;
    let becomes = async |status: u16| {
        soon("the status", async {
            while rig.ask(GET).await.status != status {
                tokio::task::yield_now().await;
            }
        })
        .await;
    };
    // Without another process that could change it, it is never too old.
    assert_eq!(rig.edge.outdated_for(), None);
    assert_eq!(rig.ask(GET).await.status, 200);
    let began = std::time::Instant::now();
    rig.edge.confirm(began);
    becomes(503).await;
    assert!(began.elapsed() > SHORT);
    assert!(rig.edge.outdated_for().is_some_and(|age| age > SHORT));
    for request in [GET, UNKNOWN] {
        let refused = rig.ask(request).await;
        assert_eq!(refused.status, 503);
        assert_eq!(refused.header("ngrok-error-code"), Some("ERR_NGROK_3624"));
        assert_eq!(refused.header("retry-after"), Some("30"));
    }
    assert!(rig.edge.meters().outdated_refused.get() >= 3);
    rig.edge.confirm(began + Duration::from_secs(3_600));
    becomes(200).await;
    assert_eq!(rig.ask(UNKNOWN).await.status, 404);
    assert_eq!(rig.edge.outdated_for(), None);
}

/// An HTTP/2 connection with hand-made frames.
async fn raw(rig: &Rig, root: &CertificateDer<'static>) -> Client<TlsStream<TcpStream>> {
    let address = rig.edge.https_addr().unwrap();
    let mut client = Client::new(tls(address, root, "app.example", "h2").await.unwrap());
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    client.send(frame(SETTINGS, 0, 0, &[])).await;
    client
}

/// The next frame of a type: flags, stream, payload.
async fn next(client: &mut Client<TlsStream<TcpStream>>, kind: u8) -> (u8, u32, Vec<u8>) {
    loop {
        let head = client.take(9).await.expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = client.take(usize::try_from(length).unwrap()).await.unwrap();
        if head[3] == kind {
            return (head[4], code(&head[5..]), payload);
        }
    }
}

fn code(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

#[tokio::test]
async fn http2_settings_announce_the_limits() {
    let (rig, root) = serving(Limits::default()).await;
    let mut client = raw(&rig, &root).await;
    let (_, _, payload) = next(&mut client, SETTINGS).await;
    let mut announced: Vec<(u16, u32)> = payload
        .chunks(6)
        .map(|it| (u16::from_be_bytes([it[0], it[1]]), code(&it[2..])))
        .collect();
    announced.sort_unstable();
    for (setting, value) in [
        (1, 4 << 10),
        (3, 100),
        (4, 64 << 10),
        (5, 16 << 10),
        (6, 64 << 10),
    ] {
        assert!(
            announced.contains(&(setting, value)),
            "{setting}: {announced:?}"
        );
    }
    let (_, of, payload) = next(&mut client, WINDOW_UPDATE).await;
    assert_eq!((of, code(&payload)), (0, (1 << 20) - 65_535));
}

#[tokio::test]
async fn http2_heads_share_the_header_memory_of_their_connection() {
    let (mut rig, root) = before_silence(Limits::default()).await;
    let mut sender = http2(&mut rig, &root, "app.example").await;
    let large = |bytes: usize| {
        http::Request::get(URL)
            .header("x", "y".repeat(bytes))
            .body(Full::new(Bytes::new()))
            .unwrap()
    };
    // One alone is too large.
    let answer = soon("an answer", sender.send_request(large(66 << 10))).await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status() == 431));
    // Eight fit at the same time, a ninth does not; after they are cancelled, it does.
    let mut held = tokio::task::JoinSet::new();
    for number in 1..=8 {
        held.spawn(sender.send_request(large(60_000)));
        asked(&rig, number).await;
    }
    let ninth = soon("an answer", sender.send_request(large(60_000))).await;
    assert_eq!(ninth.unwrap().status(), 431);
    held.shutdown().await;
    // A refused one has no event.
    rig.recorder.events(8).await;
    let again = sender.send_request(large(60_000));
    tokio::select! {
        answer = again => panic!("nobody answers here: {answer:?}"),
        () = soon("the request", async {
            while rig.edge.meters().upstream_connects.get() < 9 {
                tokio::task::yield_now().await;
            }
        }) => {}
    }
}

/// Eight interim responses pass, a ninth makes the response invalid.
#[tokio::test]
async fn interim_responses_are_limited() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let count = head.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
            let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(count);
            client
                .send(format!("{hints}HTTP/1.1 204 No Content\r\n\r\n"))
                .await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for (count, status) in [(8, 204), (9, 502)] {
        let request = format!("GET /{count} HTTP/1.1\r\nHost: app.example\r\n\r\n");
        assert_eq!(rig.ask(&request).await.status, status, "{count}");
    }
}
