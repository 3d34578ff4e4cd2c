//! Connections that a load balancer forwards with a PROXY header: its client address counts everywhere, and
//! headers from other sources are not trusted.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{IpSet, Prefix, Verdict};
use culvert_policy::Scheme;
use tokio::net::TcpStream;

use super::harness::*;
use crate::{Limits, ProxyProtocol, Restriction, Settings, Snapshot};

const GET: &str = "GET / HTTP/1.1\r\nHost: app.example\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n";
const LINE: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.9 4711 443\r\n";

/// The same in version 2, with a record behind.
fn binary() -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x10".to_vec();
    bytes.extend([192, 0, 2, 7, 198, 51, 100, 9]);
    bytes.extend(4711u16.to_be_bytes());
    bytes.extend(443u16.to_be_bytes());
    bytes.extend([4, 0, 1, 0]);
    bytes
}

pub(super) fn behind(from: &str) -> Settings {
    Settings {
        proxy_protocol: ProxyProtocol {
            from: vec![from.parse().unwrap()],
            http: true,
            https: true,
            tcp: true,
            kubernetes: true,
        },
        ..settings()
    }
}

/// A client whose balancer says this first.
async fn announced(address: std::net::SocketAddr, header: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, header)
        .await
        .unwrap();
    stream
}

/// What the edge knows of the ends of a connection, in an event.
fn ends(event: &serde_json::Value) -> (&str, &str, u64) {
    let conn = &event["object"]["conn"];
    (
        conn["client_ip"].as_str().unwrap(),
        conn["server_ip"].as_str().unwrap(),
        conn["server_port"].as_u64().unwrap(),
    )
}

const TOLD: (&str, &str, u64) = ("192.0.2.7", "198.51.100.9", 443);

#[tokio::test]
async fn the_proxy_header_sets_the_client_address() {
    let mut rig = Rig::with(behind("127.0.0.0/8")).await;
    let (reported, mut heard) = tokio::sync::mpsc::channel(8);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let reported = reported.clone();
        async move {
            while let Some((head, _)) = client.request().await {
                reported.send(head).await.unwrap();
                client.send("HTTP/1.1 204 No Content\r\n\r\n").await;
            }
        }
    })
    .await;
    let (names, key, root) = certificate(&["app.example"]);
    let url = format!("http://{origin}");
    let snapshot = http("app.example", origin)
        .endpoint(endpoint(Scheme::Https, "app.example", 443, &url, ""))
        .certificate(names, key);
    rig.edge.publish(snapshot.build()).await;

    for (turn, header) in [LINE.to_vec(), binary()].into_iter().enumerate() {
        let address = rig.edge.http_addr().unwrap();
        let mut client = Client::new(announced(address, &header).await);
        client.send(GET).await;
        assert_eq!(client.answer("GET").await.status, 204);
        drop(client);

        let address = rig.edge.https_addr().unwrap();
        let stream = announced(address, &header).await;
        let mut client = Client::new(
            tls_over(stream, &root, "app.example", "http/1.1")
                .await
                .unwrap(),
        );
        client.send(GET).await;
        assert_eq!(client.answer("GET").await.status, 204);
        drop(client);

        for _ in 0..2 {
            let head = heard.recv().await.unwrap();
            assert!(head.contains("x-forwarded-for: 192.0.2.7\r\n"), "{head}");
        }
        let events = rig.recorder.events(4 * turn + 4).await;
        assert!(events.iter().all(|event| ends(event) == TOLD), "{events:?}");
    }
    // A connection of the balancer's own has the ends it has.
    for header in [&b"PROXY UNKNOWN\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"] {
        let mut client = Client::new(announced(rig.edge.http_addr().unwrap(), header).await);
        client.send(GET).await;
        assert_eq!(client.answer("GET").await.status, 204);
        assert!(
            heard
                .recv()
                .await
                .unwrap()
                .contains("x-forwarded-for: 127.0.0.1\r\n")
        );
    }
}

#[tokio::test]
async fn a_proxy_header_may_arrive_in_any_pieces() {
    let mut rig = Rig::with(behind("127.0.0.0/8")).await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for header in [LINE.to_vec(), binary()] {
        let address = rig.edge.http_addr().unwrap();
        let mut client = Client::new(announced(address, &[]).await);
        for byte in &header {
            client.send([*byte]).await;
            tokio::task::yield_now().await;
        }
        client.send(GET).await;
        assert_eq!(client.answer("GET").await.text(), "hello");
        let mut client = Client::new(announced(address, &[]).await);
        client.send([&header, GET.as_bytes()].concat()).await;
        assert_eq!(client.answer("GET").await.text(), "hello");
    }
}

#[tokio::test]
async fn ip_restrictions_and_tcp_endpoints_use_the_address_of_the_proxy_header() {
    let mut rig = Rig::with(behind("127.0.0.0/8")).await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.send("hello").await;
        client.rest().await;
    })
    .await;
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let publish = |prefix: &str| {
        let admitted = IpSet::of([(Verdict::Allow, Prefix::parse(prefix).unwrap())]);
        Snapshot::builder()
            .endpoint(endpoint(
                Scheme::Tcp,
                "app.example",
                port,
                &format!("tcp://{origin}"),
                "",
            ))
            .restriction(Restriction {
                id: "ipx_1".into(),
                account: "ac_1".into(),
                enforced: true,
                admitted: Arc::new(admitted),
            })
            .build()
    };
    let address = ([127, 0, 0, 1], port).into();
    rig.edge.publish(publish("192.0.2.0/24")).await;
    let mut client = Client::new(announced(address, LINE).await);
    assert_eq!(client.take(5).await.unwrap(), b"hello");
    drop(client);
    rig.recorder.events(1).await;
    rig.edge.publish(publish("127.0.0.0/8")).await;
    assert_eq!(
        Client::new(announced(address, LINE).await).rest().await,
        b""
    );
    let events = rig.recorder.events(2).await;
    assert!(events.iter().all(|event| ends(event) == TOLD));
    let decisions: Vec<_> = events
        .iter()
        .map(|event| &event["object"]["ip_policy"]["decision"])
        .collect();
    assert_eq!(decisions, ["invalid", "block"]);
}

#[tokio::test]
async fn proxy_headers_of_untrusted_peers_are_refused() {
    // A peer outside the networks, and a listener that is not configured.
    let plain = Settings {
        proxy_protocol: ProxyProtocol {
            http: false,
            ..behind("127.0.0.0/8").proxy_protocol
        },
        ..settings()
    };
    for settings in [behind("192.0.2.0/24"), plain] {
        let mut rig = Rig::with(settings).await;
        let origin = hello(&mut rig.tasks).await;
        rig.edge.publish(http("app.example", origin).build()).await;
        for header in [LINE.to_vec(), binary()] {
            let address = rig.edge.http_addr().unwrap();
            let mut client = Client::new(announced(address, &header).await);
            client.send(GET).await;
            assert_eq!(client.answer("GET").await.status, 400);
        }
        assert_eq!(rig.ask(GET).await.text(), "hello");
    }
}

#[tokio::test]
async fn connections_without_a_valid_proxy_header_are_closed() {
    let settings = Settings {
        limits: Limits {
            first_byte: Duration::from_millis(150),
            ..Limits::default()
        },
        ..behind("127.0.0.0/8")
    };
    let mut rig = Rig::with(settings).await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut version = binary();
    version[12] = 0x31;
    let mut short = binary();
    short[15] = 3;
    let cases = [
        &b""[..],
        b"PROX",
        b"PROXY TCP4 192.0.2.7",
        &LINE[..LINE.len() - 1],
        &binary()[..20],
        b"\r\n\r\n\0",
        GET.as_bytes(),
        b"PROXY TCP4 192.0.2.7 198.51.100.9 4711 443\n\n",
        b"PROXY TCP4 localhost 198.51.100.9 4711 443\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\x00\x00\x00",
        &version,
        &short,
    ];
    for case in cases {
        let mut client = Client::new(announced(rig.edge.http_addr().unwrap(), case).await);
        assert_eq!(client.rest().await, b"", "{case:?}");
    }
    assert_eq!(
        rig.edge.meters().refused_announcements.get(),
        cases.len() as u64
    );
    assert_eq!(rig.edge.meters().connections.get(), 0);
    assert_eq!(rig.recorder.count(), 0);
}

#[tokio::test]
async fn source_limits_use_the_address_of_the_proxy_header() {
    let settings = Settings {
        limits: Limits {
            connections_per_source: 1,
            ..Limits::default()
        },
        ..behind("127.0.0.0/8")
    };
    let mut rig = Rig::with(settings).await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut clients = Vec::new();
    for (last, is_served) in [(1, true), (2, true), (1, false)] {
        let header = format!("PROXY TCP4 192.0.2.{last} 198.51.100.9 4711 443\r\n{GET}");
        let address = rig.edge.http_addr().unwrap();
        let mut client = Client::new(announced(address, header.as_bytes()).await);
        assert_eq!(client.try_answer("GET").await.is_some(), is_served);
        clients.push(client);
    }
    assert_eq!(rig.edge.meters().refused_source.get(), 1);
}
