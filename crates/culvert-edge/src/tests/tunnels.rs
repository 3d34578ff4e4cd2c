//! Bytes without meaning: upgraded connections, TCP endpoints.

use culvert_policy::Scheme;

use super::harness::*;
use crate::Snapshot;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const PROOF: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

fn handshake() -> String {
    format!(
        "GET /chat HTTP/1.1\r\nHost: app.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    )
}

#[tokio::test]
async fn a_websocket_is_recorded_as_one_exchange() {
    let mut rig = Rig::start().await;
    let (reported, mut heard) = tokio::sync::mpsc::channel(8);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let reported = reported.clone();
        async move {
            let head = client.head().await.unwrap();
            reported.send((head, client.read.clone())).await.unwrap();
            client
                .send(format!(
                    "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                     sec-websocket-accept: {PROOF}\r\n\r\nhi"
                ))
                .await;
            while client.more().await {
                let echo = std::mem::take(&mut client.read);
                client.send(echo).await;
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    // With bytes that must not be visible before the 101.
    client.send(handshake() + "early").await;
    let (head, ahead) = heard.recv().await.unwrap();
    assert!(
        head.contains("upgrade: websocket\r\n") && head.contains("connection: upgrade\r\n"),
        "{head}"
    );
    assert!(ahead.is_empty());
    let answer = client.answer("GET").await;
    assert_eq!(answer.status, 101);
    assert_eq!(answer.header("sec-websocket-accept"), Some(PROOF));
    assert_eq!(client.take(7).await.unwrap(), b"hiearly");
    client.send("more").await;
    assert_eq!(client.take(4).await.unwrap(), b"more");
    assert_eq!(rig.recorder.count(), 0);
    drop(client);
    let events = rig.recorder.events(2).await;
    let exchange = &events[0]["object"]["http"];
    assert_eq!(exchange["response"]["status_code"], 101);
    assert_eq!(exchange["request"]["body_length"], 0);
    assert_eq!(exchange["response"]["body_length"], 0);
    assert_eq!(events[1]["event_type"], TCP);
    let sent = handshake().len() as i64 + 9;
    assert_eq!(events[1]["object"]["conn"]["bytes_in"], sent);
}

#[tokio::test]
async fn a_refused_upgrade_ends_the_connection() {
    let mut rig = Rig::start().await;
    let (reported, mut heard) = tokio::sync::mpsc::channel(8);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let reported = reported.clone();
        async move {
            client.head().await.unwrap();
            client
                .send("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")
                .await;
            reported.send(client.rest().await).await.unwrap();
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client
        .send(handshake() + "GET /smuggled HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    let answer = client.answer("GET").await;
    assert_eq!(
        (answer.status, answer.header("connection")),
        (403, Some("close"))
    );
    assert!(!client.more().await);
    drop(client);
    rig.edge.publish(Snapshot::default()).await;
    assert_eq!(heard.recv().await.unwrap(), b"");
    assert_eq!(
        rig.recorder.events(2).await[0]["object"]["http"]["response"]["status_code"],
        403
    );
}

#[tokio::test]
async fn a_client_learns_which_upgrade_its_upstream_requires() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some(head) = client.head().await {
            let status = match head.starts_with("GET /old") {
                true => "426 Upgrade Required",
                false => "200 OK",
            };
            client
                .send(format!(
                    "HTTP/1.1 {status}\r\nupgrade: websocket\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nno"
                ))
                .await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    for (fields, connection) in [("", "upgrade"), ("Connection: close\r\n", "upgrade, close")] {
        // A response of another status says nothing about this connection.
        client
            .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
            .await;
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.header("upgrade")), (200, None));
        client
            .send(format!(
                "GET /old HTTP/1.1\r\nHost: app.example\r\n{fields}\r\n"
            ))
            .await;
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.text()), (426, "no"));
        assert_eq!(answer.header("upgrade"), Some("websocket"));
        assert_eq!(answer.header("connection"), Some(connection));
    }
    assert!(!client.more().await);
}

#[tokio::test]
async fn invalid_websocket_handshakes_are_refused() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.head().await;
        client.send("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: wrong\r\n\r\n").await;
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for (request, status) in [
        (handshake().replace("13", "12"), 400),
        (handshake().replace(KEY, "c2hvcnQ="), 400),
        (handshake().replace("GET", "POST"), 400),
        (handshake(), 502),
    ] {
        assert_eq!(rig.ask(&request).await.status, status, "{request}");
    }
}

/// The protocols of programs that people put behind a proxy, and methods that they use.
const UPGRADES: [(&str, &str); 6] = [
    ("POST", "tcp"),
    ("POST", "SPDY/3.1"),
    ("GET", "DERP"),
    ("POST", "tailscale-control-protocol"),
    ("GET", "WebSocketX/13"),
    ("OPTIONS", "foo, bar/2"),
];

#[tokio::test]
async fn any_upgrade_that_the_upstream_accepts_passes() {
    let mut rig = Rig::start().await;
    let (reported, mut heard) = tokio::sync::mpsc::channel(8);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let reported = reported.clone();
        async move {
            let head = client.head().await.unwrap();
            let asked = head
                .lines()
                .find_map(|line| line.strip_prefix("upgrade: "))
                .unwrap();
            let chosen = asked.split(", ").last().unwrap();
            let answer = format!(
                "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: {chosen}\r\n\
                 Content-Type: application/vnd.docker.raw-stream\r\n\r\nhi"
            );
            reported.send((head, client.read.clone())).await.unwrap();
            client.send(answer).await;
            while client.more().await {
                let echo = std::mem::take(&mut client.read);
                client.send(echo).await;
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for (method, protocol) in UPGRADES {
        // Clients of Go send the length of a body that there is not.
        for length in ["", "Content-Length: 0\r\n"] {
            let mut client = rig.connect().await;
            client
                .send(format!(
                    "{method} /attach HTTP/1.1\r\nHost: app.example\r\nConnection: Upgrade\r\n\
                     Upgrade: h2c, {protocol}\r\n{length}\r\nearly"
                ))
                .await;
            let (head, ahead) = heard.recv().await.unwrap();
            assert!(head.contains(&format!("upgrade: {protocol}\r\n")), "{head}");
            assert!(head.contains("connection: upgrade\r\n"), "{head}");
            // What waits for the 101 is not seen before it.
            assert!(ahead.is_empty());
            let answer = client.answer(method).await;
            assert_eq!(answer.status, 101);
            let chosen = protocol.split(", ").last();
            assert_eq!(answer.header("upgrade"), chosen);
            assert_eq!(answer.header("connection"), Some("upgrade"));
            assert_eq!(client.take(7).await.unwrap(), b"hiearly");
            client.send("more").await;
            assert_eq!(client.take(4).await.unwrap(), b"more");
        }
    }
    let events = rig.recorder.events(UPGRADES.len() * 4).await;
    let exchanges = events.iter().filter(|event| event["event_type"] != TCP);
    for exchange in exchanges {
        let exchange = &exchange["object"]["http"];
        assert_eq!(exchange["response"]["status_code"], 101);
        assert_eq!(exchange["request"]["body_length"], 0);
        assert_eq!(exchange["response"]["body_length"], 0);
    }
}

#[tokio::test]
async fn an_upgrade_to_what_was_not_asked_for_is_no_answer() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        let head = client.head().await.unwrap();
        let answer = head.split(' ').nth(1).unwrap().trim_start_matches('/');
        let answer = match answer {
            "none" => "",
            other => &format!("Upgrade: {other}\r\n"),
        };
        client
            .send(format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n{answer}\r\nGET / HTTP/1.1\r\n\r\n"
            ))
            .await;
        client.rest().await;
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for (path, upgrade, status) in [
        ("none", "Connection: upgrade\r\nUpgrade: tcp\r\n", 502),
        ("h2c", "Connection: upgrade\r\nUpgrade: tcp, h2c\r\n", 502),
        (
            "websocket",
            "Connection: upgrade\r\nUpgrade: tcp, websocket\r\n",
            502,
        ),
        ("tcp", "Connection: upgrade\r\nUpgrade: h2c\r\n", 502),
        ("tcp", "Upgrade: tcp\r\n", 502),
        ("tcp", "Connection: upgrade\r\nUpgrade: tcp\r\n", 101),
    ] {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: app.example\r\n{upgrade}\r\n");
        assert_eq!(rig.ask(&request).await.status, status, "{request}");
    }
}

/// Nor behind one with a body, which is an ordinary request.
#[tokio::test]
async fn nothing_behind_an_ignored_upgrade_is_served() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            assert!(!head.contains("/early"), "{head}");
            client
                .send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for (upgrade, closes) in [
        ("tcp\r\nContent-Length: 3\r\n\r\nabc", true),
        ("tcp, \"x\"\r\n\r\n", true),
        ("1, 2, 3, 4, 5, 6, 7, 8, 9\r\n\r\n", true),
        ("h2c\r\nContent-Length: 3\r\n\r\nabc", false),
        ("TLS/1.0\r\n\r\n", false),
    ] {
        let mut client = rig.connect().await;
        let path = if closes { "early" } else { "next" };
        client
            .send(format!(
                "POST / HTTP/1.1\r\nHost: app.example\r\nConnection: upgrade\r\nUpgrade: {upgrade}\
                 GET /{path} HTTP/1.1\r\nHost: app.example\r\n\r\n"
            ))
            .await;
        let answer = client.answer("POST").await;
        assert_eq!(answer.status, 200, "{upgrade}");
        assert_eq!(answer.header("connection") == Some("close"), closes);
        if closes {
            assert!(!client.more().await, "{upgrade}");
        } else {
            assert_eq!(client.answer("GET").await.status, 200, "{upgrade}");
        }
    }
}

/// Bytes behind a request for an upgrade are no request, whether the edge or the upstream refuses it.
#[tokio::test]
async fn nothing_behind_a_refused_upgrade_is_served() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some(head) = client.head().await {
            assert!(!head.contains("/early"), "{head}");
            client
                .send("HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n")
                .await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for (host, status) in [("app.example", 502), ("no.example", 404)] {
        for upgrade in [
            "Upgrade: tcp\r\n",
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        ] {
            let mut client = rig.connect().await;
            client
                .send(format!(
                    "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: upgrade\r\n{upgrade}\r\n\
                     GET /early HTTP/1.1\r\nHost: {host}\r\n\r\n"
                ))
                .await;
            let answer = client.answer("GET").await;
            assert_eq!(answer.status, status, "{upgrade}");
            assert_eq!(answer.header("connection"), Some("close"));
            assert!(!client.more().await, "{host} {upgrade}");
        }
    }
}

#[tokio::test]
async fn tcp_endpoints_open_and_close_with_the_snapshot() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while client.more().await {
            let echo = std::mem::take(&mut client.read);
            client.send(echo).await;
        }
    })
    .await;
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let snapshot = || {
        Snapshot::builder()
            .endpoint(endpoint(
                Scheme::Tcp,
                "tcp.example",
                free.port(),
                &format!("tcp://{origin}"),
                "",
            ))
            .build()
    };
    rig.edge.publish(snapshot()).await;
    let mut client = Client::new(tokio::net::TcpStream::connect(free).await.unwrap());
    client.send("ping").await;
    assert_eq!(client.take(4).await.unwrap(), b"ping");

    // Publishing the same again leaves the connection alone.
    rig.edge.publish(snapshot()).await;
    client.send("pong").await;
    assert_eq!(client.take(4).await.unwrap(), b"pong");
    rig.edge.publish(Snapshot::default()).await;
    soon("the port to close", async {
        while tokio::net::TcpStream::connect(free).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(client);
    let events = rig.recorder.events(1).await;
    let conn = &events[0]["object"]["conn"];
    assert_eq!(events[0]["event_type"], TCP);
    assert_eq!(
        (&conn["bytes_in"], &conn["bytes_out"]),
        (&8.into(), &8.into())
    );
    assert_eq!(rig.edge.meters().bytes_in.get(), 8);
    assert_eq!(conn["server_name"], "tcp.example");
    assert_eq!(conn["server_port"], free.port());
}

#[tokio::test]
async fn each_direction_may_close_first() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        let all = client.rest().await;
        client.send(format!("got {}", all.len())).await;
    })
    .await;
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Tcp,
            "tcp.example",
            free.port(),
            &format!("tcp://{origin}"),
            "",
        ))
        .build();
    rig.edge.publish(snapshot).await;
    let mut client = Client::new(tokio::net::TcpStream::connect(free).await.unwrap());
    client.send("12345").await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream)
        .await
        .unwrap();
    assert_eq!(client.rest().await, b"got 5");
}
