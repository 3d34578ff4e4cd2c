//! Limits of requests in flight, and the queue of those that wait.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_edge_config::{InFlightLimits, Sticky};
use culvert_policy::Scheme;
use http::{Request, StatusCode};
use http_body_util::Empty;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::balanced::{list, publish, several};
use super::harness::*;
use super::internal;
use super::limits::free_port;
use crate::{Endpoint, Snapshot};

/// An origin that notes each request, and responds when the test says so.
struct Held {
    address: SocketAddr,
    paths: Arc<Mutex<Vec<String>>>,
    responses: Arc<Semaphore>,
    _tasks: JoinSet<()>,
}

impl Held {
    async fn start() -> Self {
        let mut tasks = JoinSet::new();
        let (paths, responses) = (Arc::<Mutex<Vec<_>>>::default(), Arc::new(Semaphore::new(0)));
        let seen = (Arc::clone(&paths), Arc::clone(&responses));
        let serve = move |mut client: Client<TcpStream>| {
            let (paths, responses) = seen.clone();
            async move {
                while let Some((head, _)) = client.request().await {
                    let path = head.split(' ').nth(1).unwrap().to_owned();
                    paths.lock().unwrap().push(path);
                    responses.acquire().await.unwrap().forget();
                    client
                        .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                        .await;
                }
            }
        };
        Self {
            address: origin(&mut tasks, serve).await,
            paths,
            responses,
            _tasks: tasks,
        }
    }

    fn paths(&self) -> Vec<String> {
        self.paths.lock().unwrap().clone()
    }

    /// Waits until it has had this many requests.
    async fn has(&self, count: usize) {
        eventually("requests at the origin", || self.paths().len() >= count).await;
        assert_eq!(self.paths().len(), count);
    }

    fn respond(&self, count: usize) {
        self.responses.add_permits(count);
    }
}

fn limits(in_flight_max: u32, queue_max: u32) -> InFlightLimits {
    InFlightLimits {
        in_flight_max: Some(in_flight_max),
        queue_max,
        wait_max: Duration::from_secs(600),
    }
}

fn limited(origin: SocketAddr, limits: InFlightLimits) -> Endpoint {
    Endpoint {
        in_flight: Some(limits),
        ..endpoint(
            Scheme::Http,
            "app.example",
            80,
            &format!("http://{origin}"),
            "",
        )
    }
}

/// Asks for a path on a new connection.
async fn asks(rig: &Rig, path: &str) -> JoinHandle<Answer> {
    asks_with(rig, path, "").await
}

/// The same, with further lines of the head.
async fn asks_with(rig: &Rig, path: &str, more: &str) -> JoinHandle<Answer> {
    let mut client = rig.connect().await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: app.example\r\n{more}\r\n");
    #[allow(clippy::disallowed_methods, reason = "the test awaits it")]
    tokio::spawn(async move {
        client.send(request).await;
        client.answer("GET").await
    })
}

async fn waiting(rig: &Rig, count: u64) {
    let waits = || rig.edge.meters().upstream_waiting.get() == count;
    eventually(&format!("{count} that wait"), waits).await;
}

/// The events of requests, beside those of connections.
async fn http_events(rig: &Rig, count: usize) -> Vec<Value> {
    let events = || {
        of(&rig.recorder.now(), HTTP)
            .into_iter()
            .cloned()
            .collect::<Vec<_>>()
    };
    eventually("events", || events().len() >= count).await;
    events()
}

async fn status(answer: JoinHandle<Answer>) -> u16 {
    soon("an answer", answer).await.unwrap().status
}

#[tokio::test]
async fn requests_over_the_limit_wait_in_turn_and_too_many_are_refused() {
    let held = Held::start().await;
    let rig = Rig::start().await;
    publish(&rig, limited(held.address, limits(2, 2))).await;
    let mut answers = Vec::new();
    for (count, path) in ["/1", "/2"].into_iter().enumerate() {
        answers.push(asks(&rig, path).await);
        held.has(count + 1).await;
    }
    for (count, path) in ["/3", "/4"].into_iter().enumerate() {
        answers.push(asks(&rig, path).await);
        waiting(&rig, count as u64 + 1).await;
    }
    let refused = asks(&rig, "/5").await.await.unwrap();
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.header("ngrok-error-code"), Some("ERR_NGROK_3626"));
    held.has(2).await;
    held.respond(1);
    held.has(3).await;
    held.respond(1);
    held.has(4).await;
    held.respond(2);
    for answer in answers {
        assert_eq!(status(answer).await, 200);
    }
    assert_eq!(held.paths(), ["/1", "/2", "/3", "/4"]);
    let meters = rig.edge.meters();
    assert_eq!(meters.upstream_waits.get(), 2);
    assert_eq!(meters.upstream_waits_refused.get(), 1);
    waiting(&rig, 0).await;
    for event in http_events(&rig, 5).await {
        let path = event["object"]["http"]["request"]["url"]["path"].as_str();
        let own = &event["culvert"];
        match path.unwrap() {
            "/1" | "/2" => assert_eq!(
                (&own["queue_ms"], &own["reason"]),
                (&Value::Null, &Value::from(""))
            ),
            "/5" => assert_eq!(
                (&own["queue_ms"], own["reason"].as_str()),
                (&Value::Null, Some("upstream_full"))
            ),
            _ => assert!(own["queue_ms"].is_u64(), "{own}"),
        }
    }
}

#[tokio::test]
async fn a_wait_that_is_over_is_a_refusal() {
    let held = Held::start().await;
    let rig = Rig::start().await;
    let short = InFlightLimits {
        wait_max: Duration::from_millis(100),
        ..limits(1, 10)
    };
    publish(&rig, limited(held.address, short)).await;
    let first = asks(&rig, "/1").await;
    held.has(1).await;
    let late = asks(&rig, "/2").await.await.unwrap();
    assert_eq!((late.status, late.header("retry-after")), (503, Some("1")));
    held.respond(1);
    assert_eq!(status(first).await, 200);
    held.respond(1);
    assert_eq!(status(asks(&rig, "/3").await).await, 200);
    let events = http_events(&rig, 3).await;
    assert!(events[0]["culvert"]["queue_ms"].as_u64() >= Some(100));
}

#[tokio::test]
async fn who_leaves_gives_back_its_turn_and_its_place() {
    let held = Held::start().await;
    let rig = Rig::start().await;
    publish(&rig, limited(held.address, limits(1, 10))).await;
    let mut first = rig.connect().await;
    first
        .send("GET /1 HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    held.has(1).await;
    let mut leaving = rig.connect().await;
    leaving
        .send("GET /2 HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    waiting(&rig, 1).await;
    let mut posting = rig.connect().await;
    posting
        .send("POST /3 HTTP/1.1\r\nHost: app.example\r\nContent-Length: 4\r\n\r\nbody")
        .await;
    waiting(&rig, 2).await;
    let last = asks(&rig, "/4").await;
    waiting(&rig, 3).await;
    drop(leaving);
    waiting(&rig, 2).await;
    drop(posting);
    waiting(&rig, 1).await;
    drop(first);
    held.has(2).await;
    held.respond(2);
    assert_eq!(status(last).await, 200);
    assert_eq!(held.paths(), ["/1", "/4"]);
}

#[tokio::test]
async fn a_place_is_taken_until_the_client_has_read_the_response() {
    const BYTES: usize = 16 << 20;
    let mut rig = Rig::start().await;
    let long = origin(&mut rig.tasks, |mut client| async move {
        while client.request().await.is_some() {
            client
                .send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {BYTES}\r\n\r\n"
                ))
                .await;
            client.send(vec![b'x'; BYTES]).await;
        }
    })
    .await;
    publish(&rig, limited(long, limits(1, 10))).await;
    let mut slow = rig.connect_slow_reader().await;
    slow.send("GET /1 HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    slow.head().await.unwrap();
    let next = asks(&rig, "/2").await;
    waiting(&rig, 1).await;
    assert_eq!(slow.take(BYTES).await.unwrap().len(), BYTES);
    assert_eq!(status(next).await, 200);
}

#[tokio::test]
async fn a_websocket_has_its_place_to_its_end() {
    let mut rig = Rig::start().await;
    let echo = origin(&mut rig.tasks, |mut client| async move {
        let (head, _) = client.request().await.unwrap();
        if !head.contains("pgrade") {
            client
                .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await;
            return;
        }
        client
            .send(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            )
            .await;
        client.rest().await;
    })
    .await;
    publish(&rig, limited(echo, limits(1, 10))).await;
    let mut socket = rig.connect().await;
    socket
        .send(
            "GET /1 HTTP/1.1\r\nHost: app.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .await;
    assert!(socket.head().await.unwrap().contains(" 101 "));
    let next = asks(&rig, "/2").await;
    waiting(&rig, 1).await;
    drop(socket);
    assert_eq!(status(next).await, 200);
}

#[tokio::test]
async fn a_call_of_grpc_gets_its_own_status() {
    let held = Held::start().await;
    let rig = Rig::start().await;
    publish(&rig, limited(held.address, limits(1, 0))).await;
    let first = asks(&rig, "/1").await;
    held.has(1).await;
    let stream = TcpStream::connect(rig.edge.http_addr().unwrap())
        .await
        .unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io)
        .await
        .unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let call = Request::post("http://app.example/pkg.Service/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Empty::<bytes::Bytes>::new());
    let answer = soon("an answer", sender.send_request(call.unwrap()))
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["grpc-status"], "14");
    assert_eq!(answer.headers()["retry-after"], "1");
    held.respond(1);
    assert_eq!(status(first).await, 200);
}

/// An endpoint with these upstreams, with priorities, of which each may have one request in flight.
fn one_each(upstreams: &[(&Held, u8)]) -> Endpoint {
    let addresses: Vec<_> = upstreams
        .iter()
        .map(|(held, priority)| (held.address, 1, *priority))
        .collect();
    let mut list = list("http", &addresses, "");
    for listed in &mut list.upstreams {
        listed.in_flight_max = Some(1);
    }
    let in_flight = InFlightLimits {
        in_flight_max: None,
        ..limits(1, 10)
    };
    Endpoint {
        in_flight: Some(in_flight),
        ..several(list)
    }
}

#[tokio::test]
async fn an_upstream_that_is_full_is_passed_over() {
    let (a, b, spare) = (
        Held::start().await,
        Held::start().await,
        Held::start().await,
    );
    let rig = Rig::start().await;
    publish(&rig, one_each(&[(&a, 0), (&b, 0), (&spare, 1)])).await;
    let mut answers = Vec::new();
    for path in ["/1", "/2"] {
        answers.push(asks(&rig, path).await);
    }
    a.has(1).await;
    b.has(1).await;
    // The next priority serves what the first cannot.
    answers.push(asks(&rig, "/3").await);
    spare.has(1).await;
    for (count, path) in ["/4", "/5"].into_iter().enumerate() {
        answers.push(asks(&rig, path).await);
        waiting(&rig, count as u64 + 1).await;
    }
    // Any place will do.
    b.respond(1);
    b.has(2).await;
    assert_eq!(b.paths()[1], "/4");
    spare.respond(1);
    spare.has(2).await;
    assert_eq!(spare.paths()[1], "/5");
    for held in [&a, &b, &spare] {
        held.respond(1);
    }
    for answer in answers {
        assert_eq!(status(answer).await, 200);
    }
}

#[tokio::test]
async fn a_client_with_a_cookie_waits_for_its_upstream() {
    let (a, b) = (Held::start().await, Held::start().await);
    let rig = Rig::start().await;
    let mut endpoint = one_each(&[(&a, 0), (&b, 0)]);
    let list = Arc::make_mut(endpoint.upstreams.as_mut().unwrap());
    list.sticky = Some(Sticky {
        cookie: "upstream.x".into(),
        tokens: ["aaaa".into(), "bbbb".into()].into(),
    });
    publish(&rig, endpoint).await;
    const COOKIE: &str = "Cookie: culvert.upstream.x=aaaa\r\n";
    let first = asks_with(&rig, "/1", COOKIE).await;
    a.has(1).await;
    let second = asks_with(&rig, "/2", COOKIE).await;
    waiting(&rig, 1).await;
    // One without passes it: it waits for another place.
    let other = asks(&rig, "/3").await;
    b.has(1).await;
    b.respond(1);
    assert_eq!(status(other).await, 200);
    a.respond(2);
    assert_eq!((status(first).await, status(second).await), (200, 200));
    assert_eq!(a.paths(), ["/1", "/2"]);
}

#[tokio::test]
async fn a_request_whose_upstream_is_down_waits_for_another() {
    let held = Held::start().await;
    let rig = Rig::start().await;
    let closed = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().await));
    let mut endpoint = one_each(&[(&held, 0), (&held, 0)]);
    let list = Arc::make_mut(endpoint.upstreams.as_mut().unwrap());
    list.upstreams[1].upstream = crate::Upstream::parse(&format!("http://{closed}"), "").unwrap();
    list.health.consecutive_failures = 0;
    publish(&rig, endpoint).await;
    let first = asks(&rig, "/1").await;
    held.has(1).await;
    let second = asks(&rig, "/2").await;
    waiting(&rig, 1).await;
    held.respond(2);
    assert_eq!((status(first).await, status(second).await), (200, 200));
    assert_eq!(held.paths(), ["/1", "/2"]);
}

#[tokio::test]
async fn changes_apply_to_those_that_wait() {
    let (a, b) = (Held::start().await, Held::start().await);
    let rig = Rig::start().await;
    publish(&rig, limited(a.address, limits(1, 10))).await;
    let mut answers = Vec::new();
    answers.push(asks(&rig, "/1").await);
    a.has(1).await;
    for count in 1..=3 {
        answers.push(asks(&rig, "/n").await);
        waiting(&rig, count).await;
    }
    publish(&rig, limited(a.address, limits(2, 10))).await;
    a.has(2).await;
    waiting(&rig, 2).await;
    // Without a limit, none waits.
    publish(
        &rig,
        Endpoint {
            in_flight: None,
            ..limited(a.address, limits(1, 1))
        },
    )
    .await;
    a.has(4).await;
    a.respond(4);
    for answer in answers.drain(..) {
        assert_eq!(status(answer).await, 200);
    }
    // The same for a list: whose requests wait goes on with the upstreams that it began with.
    publish(&rig, one_each(&[(&a, 0)])).await;
    answers.push(asks(&rig, "/5").await);
    a.has(5).await;
    answers.push(asks(&rig, "/6").await);
    waiting(&rig, 1).await;
    publish(&rig, one_each(&[(&b, 0), (&a, 0)])).await;
    answers.push(asks(&rig, "/7").await);
    b.has(1).await;
    a.respond(1);
    a.has(6).await;
    a.respond(1);
    b.respond(1);
    for answer in answers {
        assert_eq!(status(answer).await, 200);
    }
}

#[tokio::test]
async fn each_endpoint_that_a_request_passes_counts_it() {
    let held = Held::start().await;
    let rig = Rig::start().await;
    let url = format!("http://{}", held.address);
    let forward = r#"on_http_request: [{actions: [{type: forward-internal, config: {url: "http://in.internal:8080"}}]}]"#;
    let mut outer = internal::named(Scheme::Http, "app.example", 80, &url, forward);
    outer.in_flight = Some(limits(1, 10));
    let mut inner = internal::named(Scheme::Http, "in.internal", 8080, &url, "");
    inner.id = "ep_2".into();
    inner.in_flight = Some(limits(1, 10));
    let mut direct = internal::named(Scheme::Http, "other.example", 80, &url, forward);
    direct.id = "ep_3".into();
    internal::publish(&rig, [outer, inner, direct]).await;
    let first = asks(&rig, "/1").await;
    held.has(1).await;
    // It waits for the outer one.
    let second = asks(&rig, "/2").await;
    waiting(&rig, 1).await;
    // It waits for the inner one.
    let mut client = rig.connect().await;
    client
        .send("GET /3 HTTP/1.1\r\nHost: other.example\r\n\r\n")
        .await;
    waiting(&rig, 2).await;
    held.respond(1);
    assert_eq!(status(first).await, 200);
    held.has(2).await;
    held.respond(2);
    assert_eq!(client.answer("GET").await.status, 200);
    assert_eq!(status(second).await, 200);
    assert_eq!(held.paths(), ["/1", "/3", "/2"]);
}

#[tokio::test]
async fn endpoints_that_share_an_address_serve_for_each_other() {
    let (a, b) = (Held::start().await, Held::start().await);
    let rig = Rig::start().await;
    let mut second = limited(b.address, limits(1, 10));
    second.id = "ep_2".into();
    let snapshot = Snapshot::builder()
        .endpoint(limited(a.address, limits(1, 10)))
        .endpoint(second);
    rig.edge.publish(snapshot.build()).await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(asks(&rig, "/1").await);
        let served = || a.paths().len() + b.paths().len() == answers.len();
        eventually("a request", served).await;
    }
    assert_eq!((a.paths().len(), b.paths().len()), (1, 1));
    answers.push(asks(&rig, "/3").await);
    waiting(&rig, 1).await;
    for held in [&a, &b] {
        held.respond(2);
    }
    for answer in answers {
        assert_eq!(status(answer).await, 200);
    }
}

#[tokio::test]
async fn connections_of_tcp_endpoints_wait_too() {
    let held = Held::start().await;
    let rig = Rig::start().await;
    let port = free_port().await;
    let mut tcp = one_each(&[(&held, 0)]);
    let list = list("tcp", &[(held.address, 1, 0)], "");
    tcp.upstream = list.upstreams.first().map(|one| one.upstream.clone());
    tcp.upstreams = Some(Arc::new(list));
    tcp.scheme = Scheme::Tcp;
    tcp.port = port;
    for per_upstream in [None, Some(1)] {
        let before = held.paths().len();
        let mut changed = tcp.clone();
        changed.in_flight = Some(InFlightLimits {
            in_flight_max: per_upstream.is_none().then_some(1),
            ..limits(1, 1)
        });
        let list = Arc::make_mut(changed.upstreams.as_mut().unwrap());
        list.upstreams[0].in_flight_max = per_upstream;
        publish(&rig, changed).await;
        let connect = async |path: &str| {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .unwrap();
            let mut client = Client::new(stream);
            client
                .send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
                .await;
            client
        };
        let mut first = connect("/1").await;
        held.has(before + 1).await;
        let mut second = connect("/2").await;
        waiting(&rig, 1).await;
        let mut third = connect("/3").await;
        assert_eq!(third.rest().await, b"");
        held.respond(1);
        assert_eq!(first.answer("GET").await.status, 200);
        drop(first);
        held.has(before + 2).await;
        held.respond(1);
        assert_eq!(second.answer("GET").await.status, 200);
        drop(second);
        eventually("the end", || rig.edge.meters().connections.get() == 0).await;
    }
}
