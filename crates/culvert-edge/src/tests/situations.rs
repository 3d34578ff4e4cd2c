//! Whole events of exchanges that end otherwise than by their answer (contract: events 7.5): by a reset,
//! a limit, an upgrade, a retry, another's host. The ordinary ones are in [`events`](super::events).

use std::sync::Arc;
use std::time::Duration;

use culvert_policy::Scheme;
use http::{Request, response};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::events::{reported, whole};
use super::harness::*;
use super::streams::{connect, frames, nothing, websocket};
use crate::{Limits, Settings, Snapshot};

const LENGTH_MAX: u64 = 8;

/// An edge and its origin, which does by path what a situation needs.
struct Scene {
    rig: Rig,
    root: CertificateDer<'static>,
    /// Has the origin go on.
    go: Arc<Notify>,
}

impl Scene {
    async fn start() -> Self {
        let mut tasks = JoinSet::new();
        let go = Arc::<Notify>::default();
        let gate = Arc::clone(&go);
        let served = Arc::<Turns>::default();
        let origin = origin(&mut tasks, move |client| {
            serve(client, Arc::clone(&gate), Arc::clone(&served))
        })
        .await;
        let mut rig = Rig::with(Settings {
            limits: Limits {
                body_bytes: LENGTH_MAX,
                drain: Duration::from_millis(300),
                ..settings().limits
            },
            ..settings()
        })
        .await;
        rig.tasks
            .spawn(async move { while tasks.join_next().await.is_some() {} });
        let (names, key, root) = certificate(&["app.example"]);
        let upstream = format!("http://{origin}");
        let limited = super::policies::governed(
            Scheme::Http,
            &upstream,
            "on_http_request: [{actions: [{type: rate-limit, config: {name: one, algorithm: sliding_window, capacity: 1, rate: 60s, bucket_key: [req.host]}}, {type: custom-response, config: {status_code: 203, body: hello, headers: {content-type: text/plain}}}]}]",
        );
        let limited = crate::Endpoint {
            host: culvert_base::net::HostName::parse("limited.example").unwrap(),
            ..limited
        };
        let mut others = endpoint(Scheme::Https, "other.example", 443, &upstream, "");
        others.account = "ac_2".into();
        let (other_names, other_key, _) = certificate(&["other.example"]);
        let snapshot = Snapshot::builder()
            .endpoint(endpoint(Scheme::Http, "app.example", 80, &upstream, ""))
            .endpoint(endpoint(Scheme::Https, "app.example", 443, &upstream, ""))
            .endpoint(limited)
            .endpoint(others)
            .certificate(names, key)
            .certificate(other_names, other_key);
        rig.edge.publish(snapshot.build()).await;
        Self { rig, root, go }
    }

    /// The next exchange's event, and how many came before it.
    async fn next(&self, before: usize) -> Value {
        let events = self.rig.recorder.events(before + 1).await;
        assert_eq!(events[before]["account_id"], "ac_1");
        reported(&events[before])
    }
}

/// One connection of the origin.
async fn serve(mut client: Client<tokio::net::TcpStream>, go: Arc<Notify>, served: Arc<Turns>) {
    while let Some(head) = client.head().await {
        match head.split(' ').nth(1).unwrap() {
            path @ ("/reset" | "/reset-chunks") => {
                let body = match path {
                    "/reset" => "content-length: 99\r\n\r\nabcdef",
                    _ => "transfer-encoding: chunked\r\n\r\n6\r\nabcdef\r\n",
                };
                client.send(format!("HTTP/1.1 200 OK\r\n{body}")).await;
                go.notified().await;
                let socket = socket2::SockRef::from(&client.stream);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                return;
            }
            "/stream" => {
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nabcdef";
                client.send(answer).await;
                client.rest().await;
                return;
            }
            "/wait" => {
                go.notify_one();
                client.rest().await;
                return;
            }
            "/chat" => {
                // The key is always that of RFC 6455 1.3, or one that the edge made.
                let key = head
                    .split("\r\n")
                    .find_map(|line| line.strip_prefix("sec-websocket-key: "));
                let proof = proof(key.unwrap());
                let answer = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                     sec-websocket-accept: {proof}\r\n\r\n"
                );
                client.send(answer).await;
                while client.more().await {
                    let echo = std::mem::take(&mut client.read);
                    client.send(echo).await;
                }
                return;
            }
            "/once" if served.next() == 1 => return,
            "/no" => {
                let answer =
                    "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
                client.send(answer).await;
                return;
            }
            "/trailers" => {
                client.body(&head).await;
                let answer = "HTTP/1.1 200 OK\r\ntrailer: grpc-status\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\ngrpc-status: 0\r\n\r\n";
                client.send(answer).await;
            }
            _ => {
                let Some(_) = client.body(&head).await else {
                    return;
                };
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                client.send(answer).await;
            }
        }
    }
}

pub(super) fn proof(key: &str) -> String {
    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    use base64::Engine;
    let input = key.to_owned() + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, input.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(digest)
}

/// The whole event of a request over HTTP/2: as over HTTP/1, but for what TLS changes.
fn whole2(rig: &Rig, request: &str, answer: Option<&response::Parts>, lengths: [u64; 2]) -> Value {
    let head = answer.map(|answer| {
        let mut head = format!("HTTP/2 {} \r\n", answer.status.as_u16());
        for (name, value) in &answer.headers {
            head += &format!("{name}: {}\r\n", value.to_str().unwrap());
        }
        head
    });
    let mut object = whole(rig, request, head.as_deref(), lengths);
    let url = &mut object["http"]["request"]["url"];
    url["scheme"] = json!("https");
    url["raw"] = json!(url["raw"].as_str().unwrap().replacen("http", "https", 1));
    object["conn"]["server_port"] = json!(rig.edge.https_addr().unwrap().port());
    object["tls"]["version"] = json!("1.3");
    object["tls"]["cipher_suite"] = json!("TLS_AES_256_GCM_SHA384");
    object
}

fn reused(mut object: Value) -> Value {
    object["backend"]["connection_reused"] = json!(true);
    object
}

#[tokio::test]
async fn a_reset_by_the_upstream_ends_the_exchange() {
    let mut scene = Scene::start().await;
    for path in ["/reset", "/reset-chunks"] {
        let before = scene.rig.recorder.count();
        let request = format!("GET {path} HTTP/1.1\r\nHost: app.example\r\n\r\n");
        let mut client = scene.rig.connect().await;
        client.send(&request).await;
        let head = client.head().await.unwrap();
        while find(&client.read, b"abcdef").is_none() {
            assert!(client.more().await);
        }
        scene.go.notify_one();
        let rest = client.rest().await;
        assert!(find(&rest, b"\r\n0\r\n").is_none(), "no clean end");
        let object = whole(&scene.rig, &request, Some(&head), [0, 6]);
        assert_eq!(scene.next(before).await, object, "{path}");
        // And that of the connection.
        scene.rig.recorder.events(before + 2).await;
    }

    let mut sender = connect(&mut scene.rig, &scene.root).await;
    for path in ["/reset", "/reset-chunks"] {
        let before = scene.rig.recorder.count();
        let request = Request::get(format!("https://app.example{path}"));
        let answer = sender.send_request(request.body(nothing()).unwrap());
        let (head, mut body) = soon("an answer", answer).await.unwrap().into_parts();
        let data = soon("data", body.frame()).await.unwrap().unwrap();
        assert_eq!(data.into_data().unwrap(), "abcdef");
        scene.go.notify_one();
        assert!(soon("a reset", body.frame()).await.unwrap().is_err());
        let request = format!("GET {path} HTTP/2\r\nHost: app.example\r\n\r\n");
        let object = whole2(&scene.rig, &request, Some(&head), [0, 6]);
        let event = scene.next(before).await;
        // Which connection a second exchange gets is not what this is about.
        let is_reused = event["backend"]["connection_reused"] == true;
        assert_eq!(
            event,
            if is_reused { reused(object) } else { object },
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_stream_reset_by_its_client_ends_its_exchange() {
    let mut scene = Scene::start().await;
    let mut sender = connect(&mut scene.rig, &scene.root).await;
    // Before the answer.
    let before = scene.rig.recorder.count();
    let request = Request::get("https://app.example/wait");
    let answer = sender.send_request(request.body(nothing()).unwrap());
    tokio::select! {
        _ = answer => panic!("nobody answers"),
        () = scene.go.notified() => {}
    }
    let object = whole2(
        &scene.rig,
        "GET /wait HTTP/2\r\nHost: app.example\r\n\r\n",
        None,
        [0, 0],
    );
    assert_eq!(scene.next(before).await, reused(object));

    // Within the request's body, of which some came.
    let before = scene.rig.recorder.count();
    let (send, body) = frames();
    let request = Request::post("https://app.example/wait");
    let answer = sender.send_request(request.body(body).unwrap());
    send.send(hyper::body::Frame::data("abc".into()))
        .await
        .unwrap();
    tokio::select! {
        _ = answer => panic!("nobody answers"),
        () = async {
            scene.go.notified().await;
            let meters = scene.rig.edge.meters();
            // What was sent last has arrived when the edge has taken a request sent after it.
            let taken = meters.requests.get();
            let mut other = sender.clone();
            let request = Request::get("https://app.example/").body(nothing()).unwrap();
            other.send_request(request).await.unwrap();
            assert_eq!(meters.requests.get(), taken + 1);
        } => {}
    }
    let events = soon("both events", scene.rig.recorder.events(before + 2)).await;
    let posted = events[before..]
        .iter()
        .find(|event| event["object"]["http"]["request"]["method"] == "post");
    let request = "POST /wait HTTP/2\r\nHost: app.example\r\n\r\n";
    let object = whole2(&scene.rig, request, None, [3, 0]);
    assert_eq!(reported(posted.unwrap()), object);

    // Within the answer.
    let before = scene.rig.recorder.count();
    let request = Request::get("https://app.example/stream");
    let answer = sender.send_request(request.body(nothing()).unwrap());
    let (head, mut body) = soon("an answer", answer).await.unwrap().into_parts();
    let data = soon("data", body.frame()).await.unwrap().unwrap();
    assert_eq!(data.into_data().unwrap(), "abcdef");
    drop(body);
    let request = "GET /stream HTTP/2\r\nHost: app.example\r\n\r\n";
    let object = whole2(&scene.rig, request, Some(&head), [0, 6]);
    assert_eq!(scene.next(before).await, reused(object));
}

#[tokio::test]
async fn a_too_long_body_is_recorded_with_the_bytes_received() {
    let scene = Scene::start().await;
    for (request, length) in [
        // Declared in advance: not read.
        ("Content-Length: 9\r\n\r\n", 0),
        (
            "Transfer-Encoding: chunked\r\n\r\n9\r\n012345678\r\n0\r\n\r\n",
            9,
        ),
    ] {
        let before = scene.rig.recorder.count();
        let request = format!("POST / HTTP/1.1\r\nHost: app.example\r\n{request}");
        let mut client = scene.rig.connect().await;
        client.send(&request).await;
        let head = client.head().await.unwrap();
        assert!(head.starts_with("HTTP/1.1 413"), "{head}");
        let page = client.body(&head).await.unwrap().0.len() as u64;
        drop(client);
        let object = whole(&scene.rig, &request, Some(&head), [length, page]);
        assert_eq!(scene.next(before).await, object);
        scene.rig.recorder.events(before + 2).await;
    }
}

#[tokio::test]
async fn an_upgraded_connection_is_recorded_at_its_end() {
    let mut scene = Scene::start().await;
    let upgrade = |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: app.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
    };
    // Closed by either side, or cut.
    for is_cut in [false, true] {
        let before = scene.rig.recorder.count();
        let request = upgrade("/chat");
        let mut client = scene.rig.connect().await;
        client.send(&request).await;
        let head = client.head().await.unwrap();
        client.send("ping").await;
        assert_eq!(client.take(4).await.unwrap(), b"ping");
        assert_eq!(scene.rig.recorder.count(), before, "nothing has ended");
        if is_cut {
            let socket = socket2::SockRef::from(&client.stream);
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(client);
        let object = whole(&scene.rig, &request, Some(&head), [0, 0]);
        assert_eq!(scene.next(before).await, object);
        let events = scene.rig.recorder.events(before + 2).await;
        let bytes = &events[before + 1]["object"]["conn"]["bytes_in"];
        assert_eq!(*bytes, json!(request.len() + 4));
    }

    let before = scene.rig.recorder.count();
    let request = upgrade("/no");
    let mut client = scene.rig.connect().await;
    client.send(&request).await;
    let head = client.head().await.unwrap();
    let object = whole(&scene.rig, &request, Some(&head), [0, 2]);
    assert_eq!(scene.next(before).await, object);
    drop(client);
    scene.rig.recorder.events(before + 2).await;

    let mut sender = connect(&mut scene.rig, &scene.root).await;
    let before = scene.rig.recorder.count();
    let request = websocket("/chat").body(nothing()).unwrap();
    let answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let mut stream = Client::new(TokioIo::new(hyper::upgrade::on(answer).await.unwrap()));
    stream.send("ping").await;
    assert_eq!(stream.take(4).await.unwrap(), b"ping");
    assert_eq!(scene.rig.recorder.count(), before);
    drop(stream);
    // As the handshake of HTTP/1.1 that it became.
    let request = "GET /chat HTTP/2\r\nHost: app.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: chat\r\n\r\n";
    let mut head = http::Response::new(()).into_parts().0;
    head.status = http::StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [("connection", "upgrade"), ("upgrade", "websocket")] {
        let value = http::HeaderValue::from_static(value);
        head.headers.insert(name, value);
    }
    let object = whole2(&scene.rig, request, Some(&head), [0, 0]);
    let mut event = scene.next(before).await;
    // Both are made of a random key.
    for (part, name) in [("request", "Key"), ("response", "Accept")] {
        let fields = event["http"][part]["headers"].as_object_mut().unwrap();
        let name = format!("Sec-Websocket-{name}");
        assert!(fields.remove(&name).is_some(), "{name}");
    }
    assert_eq!(event, reused(object));
}

#[tokio::test]
async fn each_request_of_a_connection_is_recorded() {
    let mut scene = Scene::start().await;
    // Pipelined, the second on the upstream connection of the first.
    let first = "POST /a HTTP/1.1\r\nHost: app.example\r\nContent-Length: 2\r\n\r\n";
    let second = "GET /b?c HTTP/1.1\r\nHost: app.example\r\n\r\n";
    let mut client = scene.rig.connect().await;
    client.send(format!("{first}xy{second}")).await;
    let mut heads = Vec::new();
    for _ in 0..2 {
        heads.push(client.head().await.unwrap());
        client.take(2).await.unwrap();
    }
    let object = whole(&scene.rig, first, Some(&heads[0]), [2, 2]);
    assert_eq!(scene.next(0).await, object);
    let object = whole(&scene.rig, second, Some(&heads[1]), [0, 2]);
    assert_eq!(scene.next(1).await, reused(object));
    drop(client);
    scene.rig.recorder.events(3).await;

    // Sent again on a new connection, because the idle one was closed: one event, about the last attempt.
    let mut client = scene.rig.connect().await;
    let once = "GET /once HTTP/1.1\r\nHost: app.example\r\n\r\n";
    for turn in 0..2 {
        client.send(once).await;
        let head = client.head().await.unwrap();
        client.take(2).await.unwrap();
        let object = whole(&scene.rig, once, Some(&head), [0, 2]);
        let event = scene.next(3 + turn).await;
        match turn {
            0 => assert_eq!(event, reused(object)),
            _ => assert_eq!(event, object),
        }
    }
    assert_eq!(scene.rig.edge.meters().upstream_retries.get(), 1);
    drop(client);
    scene.rig.recorder.events(6).await;

    // Streams of HTTP/2, in the order they end; trailers and padding count for nothing.
    let mut sender = connect(&mut scene.rig, &scene.root).await;
    let before = scene.rig.recorder.count();
    let (send, body) = frames();
    let request = Request::post("https://app.example/trailers").header("te", "trailers");
    let long = sender.send_request(request.body(body).unwrap());
    send.send(hyper::body::Frame::data("abc".into()))
        .await
        .unwrap();
    let request = Request::get("https://app.example/short");
    let mut other = sender.clone();
    let short = other.send_request(request.body(nothing()).unwrap());
    let short = soon("an answer", short).await.unwrap().into_parts();
    assert_eq!(short.1.collect().await.unwrap().to_bytes(), "ok");
    drop(send);
    let long = soon("an answer", long).await.unwrap().into_parts();
    let body = soon("its body", long.1.collect()).await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    let events = scene.rig.recorder.events(before + 2).await;
    let expected = [
        whole2(
            &scene.rig,
            "GET /short HTTP/2\r\nHost: app.example\r\n\r\n",
            Some(&short.0),
            [0, 2],
        ),
        whole2(
            &scene.rig,
            "POST /trailers HTTP/2\r\nHost: app.example\r\nTE: trailers\r\n\r\n",
            Some(&long.0),
            [3, 5],
        ),
    ];
    for (event, object) in events[before..].iter().zip(expected) {
        let is_reused = event["object"]["backend"]["connection_reused"] == true;
        assert_eq!(
            reported(event),
            if is_reused { reused(object) } else { object }
        );
    }
    drop((sender, other));
    let events = scene.rig.recorder.events(before + 3).await;
    assert_eq!(events[before + 2]["event_type"], TCP);
}

#[tokio::test]
async fn responses_of_the_edge_are_recorded_completely() {
    let mut scene = Scene::start().await;
    // Another account's host on a connection for this one.
    let mut sender = connect(&mut scene.rig, &scene.root).await;
    let before = scene.rig.recorder.count();
    let request = Request::get("https://other.example/x?y");
    let answer = sender.send_request(request.body(nothing()).unwrap());
    let (head, body) = soon("an answer", answer).await.unwrap().into_parts();
    assert_eq!(head.status, 421);
    let page = body.collect().await.unwrap().to_bytes().len() as u64;
    let request = "GET /x?y HTTP/2\r\nHost: other.example\r\n\r\n";
    let mut object = whole2(&scene.rig, request, Some(&head), [0, page]);
    object["conn"]["server_name"] = json!("app.example");
    // The target was for the other account.
    for part in ["path", "query", "raw"] {
        object["http"]["request"]["url"][part] = json!("");
    }
    assert_eq!(scene.next(before).await, object);
    drop(sender);
    scene.rig.recorder.events(before + 2).await;

    // A policy's own words, and its refusal of a second request.
    for status in [203, 429] {
        let before = scene.rig.recorder.count();
        let request = "GET / HTTP/1.1\r\nHost: limited.example\r\n\r\n";
        let mut client = scene.rig.connect().await;
        client.send(request).await;
        let head = client.head().await.unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        let page = client.body(&head).await.unwrap().0.len() as u64;
        drop(client);
        let object = whole(&scene.rig, request, Some(&head), [0, page]);
        assert_eq!(scene.next(before).await, object);
        scene.rig.recorder.events(before + 2).await;
    }
}

#[tokio::test]
async fn exchanges_cut_by_a_stop_are_recorded_as_cut() {
    let scene = Scene::start().await;
    let waiting = "GET /wait HTTP/1.1\r\nHost: app.example\r\n\r\n";
    let mut first = scene.rig.connect().await;
    first.send(waiting).await;
    scene.go.notified().await;
    let streaming = "GET /stream HTTP/1.1\r\nHost: app.example\r\n\r\n";
    let mut second = scene.rig.connect().await;
    second.send(streaming).await;
    let head = second.head().await.unwrap();
    assert_eq!(second.take(6).await.unwrap(), b"abcdef");
    scene.rig.cancel.cancel();
    assert_eq!((first.rest().await, second.rest().await), (vec![], vec![]));
    let events = scene.rig.recorder.events(4).await;
    let event = |path: &str| {
        let mut found = of(&events, HTTP).into_iter();
        reported(
            found
                .find(|event| event["object"]["http"]["request"]["url"]["path"] == path)
                .unwrap(),
        )
    };
    assert_eq!(event("/wait"), whole(&scene.rig, waiting, None, [0, 0]));
    let object = whole(&scene.rig, streaming, Some(&head), [0, 6]);
    assert_eq!(event("/stream"), object);
    assert_eq!(of(&events, TCP).len(), 2);
}

/// A stream whose head never ends is no exchange.
#[tokio::test]
async fn a_stream_reset_within_its_head_makes_no_event() {
    use super::floods::{HEADERS, RST_STREAM, SETTINGS, frame, section, stream};
    let scene = Scene::start().await;
    let address = scene.rig.edge.https_addr().unwrap();
    let mut client = Client::new(
        tls(address, &scene.root, "app.example", "h2")
            .await
            .unwrap(),
    );
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    client.send(frame(SETTINGS, 0, 0, &[])).await;
    // The field section goes on in a frame that never comes.
    client.send(frame(HEADERS, 0, stream(0), &section())).await;
    client.send(frame(RST_STREAM, 0, stream(0), &[0; 4])).await;
    client.rest().await;
    let events = scene.rig.recorder.events(1).await;
    assert_eq!(events[0]["event_type"], TCP);
    assert_eq!(scene.rig.recorder.count(), 1);
}
