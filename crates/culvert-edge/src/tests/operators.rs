//! Kubernetes operators: what reaches the endpoints that they bind, and that nothing else does (contract: agent
//! protocol, Kubernetes bindings).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{IpSet, Prefix, Verdict};
use culvert_policy::Scheme;
use culvert_tls::peer;
use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::harness::*;
use super::mutual::{BOTH, Ca, Leaf, shake_over};
use crate::{
    Endpoint, EndpointBinding, Limits, Operator, Operators, Restriction, Settings, Snapshot,
    SnapshotBuilder,
};

const INGRESS: &str = "ingress.example";

/// An edge with a listener for operators, and the authority of their certificates.
struct Installation {
    rig: Rig,
    ca: Ca,
    /// The certificate that the listener presents.
    names: Vec<HostName>,
    key: Arc<rustls::sign::CertifiedKey>,
    root: CertificateDer<'static>,
}

impl Installation {
    async fn start(limits: Limits) -> Self {
        let (names, key, root) = certificate(&[INGRESS]);
        let rig = Rig::with(Settings {
            kubernetes_addr: Some((Ipv4Addr::LOCALHOST, 0).into()),
            kubernetes_host: INGRESS.to_owned(),
            limits,
            ..settings()
        });
        Self {
            rig: rig.await,
            ca: Ca::new("operators"),
            names,
            key,
            root,
        }
    }

    fn snapshot(&self, operators: Vec<Operator>) -> SnapshotBuilder {
        Snapshot::builder()
            .certificate(self.names.clone(), Arc::clone(&self.key))
            .operators(Operators {
                authority: Some(self.ca.root().clone()),
                operators,
            })
    }

    fn address(&self) -> SocketAddr {
        self.rig.edge.kubernetes_addr().unwrap()
    }

    async fn dial(&self, leaf: Option<&Leaf>) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.address()).await?;
        shake_over(tcp, &self.root, INGRESS, leaf, &BOTH).await
    }

    /// Names an address. Returns the connection and the response.
    async fn bind(
        &self,
        leaf: &Leaf,
        host: &str,
        port: i64,
    ) -> std::io::Result<(TlsStream<TcpStream>, Response)> {
        let mut stream = self.dial(Some(leaf)).await?;
        stream.write_all(&request(host, port)).await?;
        let response = Response::read(&mut stream).await?;
        Ok((stream, response))
    }
}

fn limits() -> Limits {
    settings().limits
}

fn operator(id: &str, account: &str, leaf: &Leaf) -> Operator {
    Operator {
        id: id.to_owned(),
        account: account.into(),
        key: peer::name_and_key(&leaf.der).unwrap().1,
    }
}

fn bound(id: &str, scheme: Scheme, host: &str, port: u16, upstream: &str, by: &[&str]) -> Endpoint {
    let mut endpoint = endpoint(scheme, host, port, upstream, "");
    endpoint.id = id.to_owned();
    endpoint.binding = EndpointBinding::Kubernetes(by.iter().map(|id| (*id).to_owned()).collect());
    endpoint
}

/// A request message, built by hand: host, port, and a pod identity.
fn request(host: &str, port: i64) -> Vec<u8> {
    let mut message = vec![0x0A, u8::try_from(host.len()).unwrap()];
    message.extend(host.as_bytes());
    message.push(0x10);
    let mut rest = port.cast_unsigned();
    loop {
        let low = u8::try_from(rest & 0x7F).unwrap();
        rest >>= 7;
        message.push(if rest == 0 { low } else { low | 0x80 });
        if rest == 0 {
            break;
        }
    }
    message.extend(b"\x1A\x08\x12\x01p\x1A\x03web");
    let mut framed = u16::try_from(message.len()).unwrap().to_le_bytes().to_vec();
    framed.extend(message);
    framed
}

/// A response message: its text fields.
#[derive(Debug, Default, PartialEq)]
struct Response {
    endpoint_id: String,
    proto: String,
    error_code: String,
    error_message: String,
}

impl Response {
    async fn read(stream: &mut TlsStream<TcpStream>) -> std::io::Result<Self> {
        let mut message = vec![0; stream.read_u16_le().await?.into()];
        stream.read_exact(&mut message).await?;
        let mut response = Self::default();
        let mut rest = &*message;
        while let [tag, length, more @ ..] = rest {
            let (text, after) = more.split_at(usize::from(*length));
            let text = String::from_utf8(text.to_vec()).unwrap();
            match tag {
                0x0A => response.endpoint_id = text,
                0x12 => response.proto = text,
                0x1A => response.error_code = text,
                0x22 => response.error_message = text,
                other => panic!("field {other}"),
            }
            rest = after;
        }
        Ok(response)
    }
}

#[tokio::test]
async fn an_operator_reaches_its_bound_endpoints() {
    let mut installation = Installation::start(limits()).await;
    let http = hello(&mut installation.rig.tasks).await;
    let echo = origin(&mut installation.rig.tasks, |mut client| async move {
        while client.more().await {
            let read = std::mem::take(&mut client.read);
            client.send(read).await;
        }
    })
    .await;
    let leaf = installation.ca.client("k8sop_1");
    let tcp = format!("tcp://{echo}");
    let snapshot = installation.snapshot(vec![operator("k8sop_1", "ac_1", &leaf)]);
    let url = format!("http://{http}");
    let by = ["k8sop_1"];
    let snapshot = snapshot
        .endpoint(bound("ep_h", Scheme::Http, "shop.web", 80, &url, &by))
        .endpoint(bound("ep_t", Scheme::Tcp, "db.web", 5432, &tcp, &by))
        .endpoint(bound("ep_s", Scheme::Tls, "safe.web", 443, &tcp, &by));
    installation.rig.edge.publish(snapshot.build()).await;

    let (stream, response) = installation.bind(&leaf, "Shop.Web", 80).await.unwrap();
    let (id, proto) = (&*response.endpoint_id, &*response.proto);
    assert_eq!((id, proto, &*response.error_code), ("ep_h", "http", ""));
    let mut client = Client::new(stream);
    // Clients in the cluster have several names for a service.
    for host in ["shop.web", "shop", "shop.web.svc.cluster.local:80"] {
        client
            .send(format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .await;
        assert_eq!(client.answer("GET").await.text(), "hello", "{host}");
    }
    drop(client);
    let events = installation.rig.recorder.events(4).await;
    let reported = of(&events, HTTP);
    let object = &reported[0]["object"];
    let raw = "/http/request/url/raw";
    assert_eq!(object.pointer(raw).unwrap(), "http://shop.web/a");
    assert_eq!(object["conn"]["client_ip"], "127.0.0.1");
    assert_eq!(object["conn"]["server_name"], "shop.web");
    assert!(object["conn"]["server_port"].as_u64().unwrap() > 0);
    assert_eq!(
        object["conn"]["tls"]["cipher_suite"],
        serde_json::Value::Null
    );
    assert_eq!(
        reported[2]["object"].pointer(raw).unwrap(),
        "http://shop.web.svc.cluster.local:80/a"
    );

    let (mut stream, response) = installation.bind(&leaf, "db.web", 5432).await.unwrap();
    assert_eq!((&*response.endpoint_id, &*response.proto), ("ep_t", "tcp"));
    stream.write_all(b"select 1").await.unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"select 1");
    drop(stream);
    let events = installation.rig.recorder.events(5).await;
    let reported = of(&events, TCP);
    let object = &reported.last().unwrap()["object"];
    assert_eq!(object["conn"]["bytes_in"], 8, "{object}");
    assert_eq!(object["conn"]["bytes_out"], 8);
    assert_eq!(object["conn"]["server_name"], "db.web");

    // The TLS of the client goes through.
    let (mut stream, response) = installation.bind(&leaf, "safe.web", 443).await.unwrap();
    assert_eq!((&*response.endpoint_id, &*response.proto), ("ep_s", "tls"));
    let hello = client_hello("safe.web");
    stream.write_all(&hello).await.unwrap();
    let mut back = vec![0; hello.len()];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(back, hello);
}

/// The kernel must not move bytes past the TLS of an operator.
#[tokio::test]
async fn long_bodies_to_an_operator_are_encrypted() {
    const BYTES: usize = 4 << 20;
    let mut installation = Installation::start(limits()).await;
    let body: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    let upstream = origin(&mut installation.rig.tasks, {
        let body = body.clone();
        move |mut client| {
            let body = body.clone();
            async move {
                while client.more().await {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n");
                    client.read.clear();
                    client
                        .send([head.into_bytes(), body.clone()].concat())
                        .await;
                }
            }
        }
    })
    .await;
    let leaf = installation.ca.client("k8sop_1");
    let (http, tcp) = (format!("http://{upstream}"), format!("tcp://{upstream}"));
    let by = ["k8sop_1"];
    let snapshot = installation
        .snapshot(vec![operator("k8sop_1", "ac_1", &leaf)])
        .endpoint(bound("ep_h", Scheme::Http, "shop.web", 80, &http, &by))
        .endpoint(bound("ep_t", Scheme::Tcp, "db.web", 5432, &tcp, &by));
    installation.rig.edge.publish(snapshot.build()).await;
    for (host, port) in [("shop.web", 80), ("db.web", 5432)] {
        let (mut stream, _) = installation.bind(&leaf, host, port).await.unwrap();
        let ask = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let mut got = vec![0; BYTES];
        stream.read_exact(&mut got).await.unwrap();
        assert!(got == body, "{host}");
    }
}

/// The first bytes of a TLS client.
fn client_hello(name: &str) -> Vec<u8> {
    let (_, _, root) = certificate(&[name]);
    let name = rustls_pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let config = Arc::new(tls_config(&root, "http/1.1"));
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

#[tokio::test]
async fn only_operators_reach_a_bound_endpoint() {
    let mut installation = Installation::start(limits()).await;
    let url = format!("http://{}", hello(&mut installation.rig.tasks).await);
    let ours = installation.ca.client("k8sop_1");
    let other = installation.ca.client("k8sop_2");
    let foreign = installation.ca.client("k8sop_3");
    let ca = &installation.ca;
    let expired = ca.client_with("k8sop_5", |it| it.not_after = date_time_ymd(2025, 1, 1));
    let early = ca.client_with("k8sop_6", |it| it.not_before = date_time_ymd(2100, 1, 1));
    let of_server = ca.client_with("k8sop_7", |it| {
        it.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let snapshot = installation.snapshot(vec![
        operator("k8sop_1", "ac_1", &ours),
        operator("k8sop_2", "ac_1", &other),
        operator("k8sop_3", "ac_2", &foreign),
        operator("k8sop_5", "ac_1", &expired),
        operator("k8sop_6", "ac_1", &early),
        operator("k8sop_7", "ac_1", &of_server),
    ]);
    let mut internal = endpoint(Scheme::Http, "a.internal", 80, &url, "");
    internal.id = "ep_i".into();
    let mut public = endpoint(Scheme::Http, "app.example", 80, &url, "");
    public.id = "ep_p".into();
    let all = ["k8sop_1", "k8sop_3", "k8sop_5", "k8sop_6", "k8sop_7"];
    let snapshot = snapshot
        .endpoint(bound("ep_h", Scheme::Http, "shop.web", 80, &url, &all))
        .endpoint(bound("ep_n", Scheme::Http, "none.web", 80, &url, &[]))
        .endpoint(internal)
        .endpoint(public);
    installation.rig.edge.publish(snapshot.build()).await;

    // Certificates that are not those of an operator fail the handshake: in TLS 1.3 its client learns that with its
    // first read.
    let stranger = Ca::new("operators").client("k8sop_1");
    let deleted = installation.ca.client("k8sop_4");
    let replaced = installation.ca.client("k8sop_1");
    for (leaf, alert) in [
        // The same name, another key.
        (&stranger, "DecryptError"),
        (&deleted, "CertificateRevoked"),
        (&replaced, "CertificateRevoked"),
    ] {
        let error = installation.bind(leaf, "shop.web", 80).await.unwrap_err();
        assert!(error.to_string().contains(alert), "{alert}: {error}");
    }
    let unnamed = match installation.dial(None).await {
        Ok(mut stream) => Response::read(&mut stream).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(
        unnamed.to_string().contains("CertificateRequired"),
        "{unnamed}"
    );

    // Those of an operator itself, out of their time or for another purpose.
    for (leaf, alert) in [
        (&expired, "CertificateExpired"),
        (&early, "CertificateExpired"),
        (&of_server, "UnsupportedCertificate"),
    ] {
        let error = installation.bind(leaf, "shop.web", 80).await.unwrap_err();
        assert!(error.to_string().contains(alert), "{alert}: {error}");
    }

    // All others get one response.
    let refused = Response {
        error_code: "ERR_NGROK_3200".into(),
        error_message:
            "No endpoint that this Kubernetes operator binds is online at this host and port."
                .into(),
        ..Response::default()
    };
    for (leaf, host, port) in [
        // It does not select the endpoint, is of another account, or no operator selects it.
        (&other, "shop.web", 80),
        (&foreign, "shop.web", 80),
        (&ours, "none.web", 80),
        (&ours, "shop.web", 81),
        (&ours, "shop.web", 0),
        (&ours, "shop.web", -1),
        (&ours, "shop.web", 65_536 + 80),
        (&ours, "shop.web", i64::MAX),
        (&ours, "", 80),
        (&ours, "*.web", 80),
        (&ours, "shop.web.", 8080),
        (&ours, "a\r\nb", 80),
        (&ours, "app.example", 80),
        (&ours, "a.internal", 80),
    ] {
        let (mut stream, response) = installation.bind(leaf, host, port).await.unwrap();
        assert_eq!(response, refused, "{host}:{port}");
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
    assert_eq!(installation.rig.edge.meters().refused_bindings.get(), 14);
    assert_eq!(installation.rig.edge.meters().handshakes_failed.get(), 7);

    // The public edge does not know the host.
    let ask = "GET / HTTP/1.1\r\nHost: shop.web\r\nConnection: close\r\n\r\n";
    assert_eq!(installation.rig.ask(ask).await.status, 404);
    let (_, response) = installation.bind(&ours, "shop.web", 80).await.unwrap();
    assert_eq!(response.endpoint_id, "ep_h");
}

#[tokio::test]
async fn a_removed_operator_loses_its_next_request() {
    let mut installation = Installation::start(limits()).await;
    let url = format!("http://{}", hello(&mut installation.rig.tasks).await);
    let leaf = installation.ca.client("k8sop_1");
    let bound = bound("ep_h", Scheme::Http, "shop.web", 80, &url, &["k8sop_1"]);
    let operators = vec![operator("k8sop_1", "ac_1", &leaf)];
    let whole = installation.snapshot(operators.clone());
    let whole = whole.endpoint(bound.clone()).build();
    let unselected = Endpoint {
        binding: EndpointBinding::Kubernetes(Arc::new([])),
        ..bound.clone()
    };
    // Its key was replaced, as after a loss.
    let replaced = vec![operator(
        "k8sop_1",
        "ac_1",
        &installation.ca.client("k8sop_1"),
    )];
    for after in [
        installation.snapshot(Vec::new()).endpoint(bound.clone()),
        installation.snapshot(operators).endpoint(unselected),
        installation.snapshot(replaced).endpoint(bound),
    ] {
        installation.rig.edge.publish(whole.clone()).await;
        let (stream, _) = installation.bind(&leaf, "shop.web", 80).await.unwrap();
        let mut client = Client::new(stream);
        let ask = "GET / HTTP/1.1\r\nHost: shop.web\r\n\r\n";
        client.send(ask).await;
        assert_eq!(client.answer("GET").await.status, 200);
        installation.rig.edge.publish(after.build()).await;
        client.send(ask).await;
        let answer = client.answer("GET").await;
        assert_eq!(
            (answer.status, answer.header("ngrok-error-code")),
            (404, Some("ERR_NGROK_3200"))
        );
    }
}

/// The same for the bytes of a TCP endpoint and of a WebSocket, in both directions.
#[tokio::test]
async fn a_removed_operator_loses_its_open_relays() {
    let mut installation = Installation::start(limits()).await;
    let (send, mut upstreams) = tokio::sync::mpsc::channel(8);
    let origin = origin(&mut installation.rig.tasks, move |client| {
        let send = send.clone();
        async move { send.send(client).await.unwrap() }
    })
    .await;
    let leaf = installation.ca.client("k8sop_1");
    let (tcp, http) = (format!("tcp://{origin}"), format!("http://{origin}"));
    let of = |by: &[&str]| {
        [
            bound("ep_t", Scheme::Tcp, "db.web", 5432, &tcp, by),
            bound("ep_h", Scheme::Http, "shop.web", 80, &http, by),
        ]
    };
    let operators = vec![operator("k8sop_1", "ac_1", &leaf)];
    let replaced = vec![operator(
        "k8sop_1",
        "ac_1",
        &installation.ca.client("k8sop_1"),
    )];
    let whole = installation.snapshot(operators.clone());
    let whole = of(&["k8sop_1"])
        .into_iter()
        .fold(whole, SnapshotBuilder::endpoint);
    let whole = whole.build();
    // Without the operator, with another key, unselected, and without the endpoints.
    let with = |operators: &Vec<Operator>, by: Option<&[&str]>| {
        let snapshot = installation.snapshot(operators.clone());
        let endpoints = by.map(of).into_iter().flatten();
        endpoints.fold(snapshot, SnapshotBuilder::endpoint).build()
    };
    let after = [
        with(&Vec::new(), Some(&["k8sop_1"])),
        with(&replaced, Some(&["k8sop_1"])),
        with(&operators, Some(&[])),
        with(&operators, None),
    ];
    for after in after {
        for (host, port, from_client) in [
            ("db.web", 5432, Some(true)),
            ("db.web", 5432, Some(false)),
            ("db.web", 5432, None),
            ("shop.web", 80, Some(true)),
            ("shop.web", 80, None),
        ] {
            installation.rig.edge.publish(whole.clone()).await;
            let (stream, _) = installation.bind(&leaf, host, port).await.unwrap();
            let mut client = Client::new(stream);
            if port == 80 {
                client.send("GET / HTTP/1.1\r\nHost: shop.web\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").await;
            } else {
                client.send("a").await;
            }
            let mut upstream = soon("a connection", upstreams.recv()).await.unwrap();
            if port == 80 {
                upstream.request().await.unwrap();
                upstream.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n").await;
                assert!(client.head().await.unwrap().starts_with("HTTP/1.1 101"));
                client.send("a").await;
            }
            assert_eq!(upstream.take(1).await.unwrap(), b"a");
            installation.rig.edge.publish(after.clone()).await;
            match from_client {
                Some(true) => client.send("b").await,
                Some(false) => upstream.send("b").await,
                None => {}
            }
            assert_eq!(upstream.rest().await, b"", "{host}");
            assert_eq!(client.rest().await, b"", "{host}");
        }
    }
}

#[tokio::test]
async fn only_selected_members_of_a_pool_serve_an_operator() {
    let mut installation = Installation::start(limits()).await;
    let url = format!("http://{}", hello(&mut installation.rig.tasks).await);
    let leaf = installation.ca.client("k8sop_1");
    let mut snapshot = installation.snapshot(vec![operator("k8sop_1", "ac_1", &leaf)]);
    for (id, by) in [
        ("ep_a", "k8sop_2"),
        ("ep_b", "k8sop_1"),
        ("ep_c", "k8sop_1"),
    ] {
        snapshot = snapshot.endpoint(bound(id, Scheme::Http, "shop.web", 80, &url, &[by]));
    }
    installation.rig.edge.publish(snapshot.build()).await;
    let mut seen = Vec::new();
    for _ in 0..6 {
        let (_, response) = installation.bind(&leaf, "shop.web", 80).await.unwrap();
        seen.push(response.endpoint_id);
    }
    seen.sort();
    assert_eq!(seen, ["ep_b", "ep_b", "ep_b", "ep_c", "ep_c", "ep_c"]);
}

#[tokio::test]
async fn an_ip_restriction_refuses_an_operator_and_is_recorded() {
    let installation = Installation::start(limits()).await;
    let leaf = installation.ca.client("k8sop_1");
    let snapshot = installation.snapshot(vec![operator("k8sop_1", "ac_1", &leaf)]);
    let restriction = Restriction {
        id: "ipx_1".into(),
        account: "ac_1".into(),
        enforced: true,
        admitted: Arc::new(IpSet::of([(
            Verdict::Allow,
            Prefix::parse("192.0.2.0/24").unwrap(),
        )])),
    };
    let upstream = "http://127.0.0.1:1";
    let bound = bound("ep_h", Scheme::Http, "shop.web", 80, upstream, &["k8sop_1"]);
    let snapshot = snapshot.endpoint(bound).restriction(restriction);
    installation.rig.edge.publish(snapshot.build()).await;
    let (_, response) = installation.bind(&leaf, "shop.web", 80).await.unwrap();
    assert_eq!(response.error_code, "ERR_NGROK_3205");
    let events = installation.rig.recorder.events(1).await;
    assert_eq!(
        of(&events, TCP)[0]["object"]["ip_policy"]["decision"],
        "block"
    );
}

#[tokio::test]
async fn hostile_connections_to_the_operator_listener_are_closed_and_others_served() {
    let mut installation = Installation::start(Limits {
        handshake: Duration::from_secs(3),
        connections_per_source: 64,
        ..limits()
    })
    .await;
    let url = format!("http://{}", hello(&mut installation.rig.tasks).await);
    let leaf = installation.ca.client("k8sop_1");
    let snapshot = installation.snapshot(vec![operator("k8sop_1", "ac_1", &leaf)]);
    let bound = bound("ep_h", Scheme::Http, "shop.web", 80, &url, &["k8sop_1"]);
    installation
        .rig
        .edge
        .publish(snapshot.endpoint(bound).build())
        .await;
    let (stream, _) = installation.bind(&leaf, "shop.web", 80).await.unwrap();
    let mut honest = Client::new(stream);

    // Another source opens more connections than it may, and says nothing, or no TLS.
    // All at a time, so that the first ones have not timed out when the last ones arrive.
    let address = installation.address();
    let mut connecting = JoinSet::new();
    for n in 0..200 {
        connecting.spawn(async move {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
            let mut tcp = socket.connect(address).await.unwrap();
            if n % 2 == 1 {
                drop(tcp.write_all(&[n; 512]).await);
            }
            tcp
        });
    }
    let silent = connecting.join_all().await;
    // With a good certificate: messages that never end, that are none, and that are too long for what follows.
    let mut inside = Vec::new();
    for begin in [
        &b""[..],
        b"\x01",
        b"\xff\xff",
        b"\x05\x00\x0a\xff\xff\xff\xff",
    ] {
        let mut stream = installation.dial(Some(&leaf)).await.unwrap();
        stream.write_all(begin).await.unwrap();
        inside.push(stream);
    }
    for _ in 0..4 {
        honest
            .send("GET / HTTP/1.1\r\nHost: shop.web\r\n\r\n")
            .await;
        assert_eq!(honest.answer("GET").await.status, 200);
        let (_, response) = installation.bind(&leaf, "shop.web", 80).await.unwrap();
        assert_eq!(response.endpoint_id, "ep_h");
    }
    let mut rest = Vec::new();
    for mut tcp in silent {
        let read = tcp.read_to_end(&mut rest);
        drop(soon("the end of a silent connection", read).await);
    }
    for mut stream in inside {
        let read = stream.read_to_end(&mut rest);
        drop(soon("the end of a slow message", read).await);
    }
    assert!(installation.rig.edge.meters().refused_source.get() > 0);
    let open = &installation.rig.edge.meters().connections;
    eventually("one open connection", || open.get() <= 1).await;
}
