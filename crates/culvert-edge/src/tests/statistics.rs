//! What the edge counts of the traffic of each endpoint.

use bytes::Bytes;
use culvert_policy::Scheme;
use culvert_statistics::{Field, Frame, Point};
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Frame as BodyFrame;
use tokio::task::JoinSet;

use super::harness::*;
use super::internal::{named, publish};
use super::limits::free_port;
use super::streams;
use crate::Snapshot;

/// Waits until the endpoint has points for which `is_whole` holds, added up, and returns their sum.
async fn counted(rig: &Rig, endpoint: &str, is_whole: impl Fn(&Point) -> bool) -> Point {
    let mut sum = Point::default();
    soon("statistics", async {
        loop {
            let mut frame = Frame::default();
            rig.edge.traffic().read(&mut frame);
            for (key, point) in frame.points() {
                if key.as_str() == format!("e/ac_1/{endpoint}") {
                    sum.merge_step(point);
                }
            }
            if is_whole(&sum) {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    sum
}

fn values(point: &Point, fields: &[Field]) -> Vec<u64> {
    fields.iter().map(|field| point.get(*field)).collect()
}

const OUTCOMES: [Field; 6] = [
    Field::Status1xx,
    Field::Status2xx,
    Field::Status3xx,
    Field::Status4xx,
    Field::Status5xx,
    Field::Aborted,
];

#[tokio::test]
async fn requests_count_by_status_with_bytes_and_latency() {
    let mut rig = Rig::start().await;
    // Without a subscription to events, too.
    rig.recorder
        .is_off
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let status = head.split(' ').nth(1).unwrap().trim_start_matches('/');
            if status == "cut" {
                return;
            }
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 5\r\n\r\nhello");
            client.send(answer).await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    for status in ["200", "201", "302", "404", "503", "cut"] {
        let head = format!("POST /{status} HTTP/1.1\r\nHost: app.example\r\n");
        client.send(head + "Content-Length: 3\r\n\r\nabc").await;
        client.answer("POST").await;
    }
    let point = counted(&rig, "ep_1", |point| point.get(Field::BytesIn) >= 18).await;
    // An upstream that closes is answered by the edge with 502.
    assert_eq!(values(&point, &OUTCOMES), [0, 2, 1, 1, 2, 0]);
    assert_eq!(point.get(Field::BytesIn), 18);
    assert!(point.get(Field::BytesOut) >= 25);
    assert_eq!(point.latency.count(), 6);
    assert_eq!(point.get(Field::Connections), 0);

    // A host without an endpoint counts for none.
    rig.ask("GET / HTTP/1.1\r\nHost: other.example\r\n\r\n")
        .await;
    let mut frame = Frame::default();
    rig.edge.traffic().read(&mut frame);
    assert!(frame.is_empty(), "{frame:?}");
}

#[tokio::test]
async fn a_request_whose_client_leaves_counts_as_aborted() {
    let mut rig = Rig::start().await;
    let (reported, mut heard) = tokio::sync::mpsc::channel(1);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let reported = reported.clone();
        async move {
            client.request().await;
            reported.send(()).await.unwrap();
            while client.more().await {}
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client
        .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    heard.recv().await.unwrap();
    drop(client);
    let point = counted(&rig, "ep_1", |point| point.requests() > 0).await;
    assert_eq!(values(&point, &OUTCOMES), [0, 0, 0, 0, 0, 1]);
    assert!(point.latency.is_empty());
}

#[tokio::test]
async fn a_long_download_counts_while_it_runs() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.request().await;
        client
            .send("HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
            .await;
        client.send(vec![b'x'; 2 << 20]).await;
        while client.more().await {}
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client
        .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    client.head().await.unwrap();
    client.take(2 << 20).await.unwrap();
    let point = counted(&rig, "ep_1", |point| point.get(Field::BytesOut) >= 1 << 20).await;
    assert_eq!(point.get(Field::Status2xx), 1);
}

#[tokio::test]
async fn tcp_connections_and_their_bytes_count_while_they_are_open() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while client.more().await {
            let echo = std::mem::take(&mut client.read);
            client.send(echo).await;
        }
    })
    .await;
    let port = free_port().await;
    let tcp = endpoint(Scheme::Tcp, "x", port, &format!("tcp://{origin}"), "");
    let snapshot = Snapshot::builder().endpoint(tcp).build();
    rig.edge.publish(snapshot).await;
    let address = (std::net::Ipv4Addr::LOCALHOST, port);
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut client = Client::new(stream);
    client.send("12345").await;
    assert_eq!(client.take(5).await.unwrap(), b"12345");
    let fields = [Field::Connections, Field::BytesIn, Field::BytesOut];
    let point = counted(&rig, "ep_1", |point| point.get(Field::BytesOut) >= 5).await;
    assert_eq!(values(&point, &fields), [1, 5, 5]);
    assert_eq!(point.requests(), 0);
    client.send("67").await;
    drop(client);
    let point = counted(&rig, "ep_1", |point| point.get(Field::BytesIn) > 0).await;
    assert_eq!(values(&point, &fields)[..2], [0, 2]);
}

#[tokio::test]
async fn http2_and_internal_endpoints_count() {
    let mut tasks = JoinSet::new();
    let origin = hello(&mut tasks).await;
    let (mut rig, root) = streams::rig(&format!("http://{origin}"), "", settings()).await;
    let mut sender = streams::connect(&mut rig, &root).await;
    let (send, body) = streams::frames();
    send.send(BodyFrame::data(Bytes::from_static(b"four")))
        .await
        .unwrap();
    drop(send);
    let request = Request::post("https://app.example/").body(body).unwrap();
    let answer = soon("an answer", sender.send_request(request)).await;
    answer.unwrap().into_body().collect().await.unwrap();
    let point = counted(&rig, "ep_1", |point| point.get(Field::BytesIn) > 0).await;
    assert_eq!(point.get(Field::BytesIn), 4);
    // One request more opened the connection.
    assert_eq!(point.get(Field::Status2xx), 2);
    assert_eq!(point.get(Field::BytesOut), 10);

    let policy = "on_http_request: [{actions: [{type: forward-internal, config: {url: http://inner.internal}}]}]";
    let mut outer = named(Scheme::Http, "app.example", 80, "", policy);
    let mut inner = named(
        Scheme::Http,
        "inner.internal",
        80,
        &format!("http://{origin}"),
        "",
    );
    (outer.id, inner.id) = ("ep_outer".into(), "ep_inner".into());
    publish(&rig, [outer, inner]).await;
    let answer = rig.ask("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n").await;
    assert_eq!(answer.status, 200);
    let mut frame = Frame::default();
    rig.edge.traffic().read(&mut frame);
    for endpoint in ["e/ac_1/ep_outer", "e/ac_1/ep_inner"] {
        let mut points = frame.points();
        let found = points.find(|(key, _)| key.as_str() == endpoint);
        assert_eq!(found.unwrap().1.get(Field::Status2xx), 1, "{endpoint}");
    }
}

/// Counted apart from the status, and without events too.
#[tokio::test]
async fn requests_count_by_whether_they_reach_an_upstream() {
    let mut rig = Rig::start().await;
    rig.recorder
        .is_off
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let origin = hello(&mut rig.tasks).await;
    let deny = "on_http_request: [{expressions: [\"req.url.path == '/denied'\"], actions: [{type: deny}]}]";
    let to_internal = "on_http_request: [{actions: [{type: forward-internal, config: {url: http://gone.internal}}]}]";
    let refused = "http://127.0.0.1:1";
    let up = format!("http://{origin}");
    let port = free_port().await;
    let all = [
        ("up", Scheme::Http, up.as_str(), deny, 80),
        ("down", Scheme::Http, refused, deny, 80),
        ("internal", Scheme::Http, "", to_internal, 80),
        ("tcp", Scheme::Tcp, "tcp://127.0.0.1:1", "", port),
    ];
    let endpoints = all.map(|(name, scheme, upstream, policy, port)| {
        let mut endpoint = named(scheme, &format!("{name}.example"), port, upstream, policy);
        endpoint.id = format!("ep_{name}");
        endpoint
    });
    publish(&rig, endpoints).await;
    for (name, reached, unreached) in [("up", 1, 0), ("down", 0, 1), ("internal", 0, 0)] {
        for path in ["/denied", "/"] {
            rig.ask(&format!(
                "GET {path} HTTP/1.1\r\nHost: {name}.example\r\n\r\n"
            ))
            .await;
        }
        let is_whole = |point: &Point| point.requests() == 2;
        let point = counted(&rig, &format!("ep_{name}"), is_whole).await;
        let fields = [Field::Reached, Field::Unreached];
        assert_eq!(values(&point, &fields), [reached, unreached], "{name}");
    }
    let address = (std::net::Ipv4Addr::LOCALHOST, port);
    let _client = tokio::net::TcpStream::connect(address).await.unwrap();
    let point = counted(&rig, "ep_tcp", |point| point.get(Field::Unreached) > 0).await;
    assert_eq!(point.get(Field::Connections), 0);
}
