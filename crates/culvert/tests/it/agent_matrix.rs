//! Each kind of client in each scenario: whatever a client can do, it does here.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::agent_clients::{KINDS, Kind, Order, all_gone, start};
use crate::agent_options::versioned;
use crate::agents::{Proxy, Service, get, list, pattern, post, soon, sum};
use crate::harness::{Harness, eventually};

const HOST: &str = "matrix.culvert.localhost";

/// A server, the services of its agents, and one client after another.
struct Stage<'a> {
    culvert: &'a Harness,
    /// The port of the only TCP address.
    port: u16,
    service: &'a Service,
    echo: SocketAddr,
    /// Speaks HTTP/2 only.
    versioned: SocketAddr,
    kind: Kind,
    folder: &'a Path,
}

impl Stage<'_> {
    fn order<'a>(&'a self, proto: &'a str, token: &'a str) -> Order<'a> {
        Order {
            proto,
            name: HOST,
            upstream: match proto {
                "http" => self.service.address,
                "http2" => self.versioned,
                _ => self.echo,
            },
            at: self.kind.ingress(self.culvert),
            token,
            folder: self.folder,
            files: None,
        }
    }

    async fn token(&self, acl: serde_json::Value) -> String {
        let made = self.kind.credential(self.culvert, self.folder, acl).await;
        made.1
    }

    fn url(&self, proto: &str) -> String {
        match proto {
            "http" => format!("http://{HOST}"),
            _ => format!("tcp://1.tcp.culvert.localhost:{}", self.port),
        }
    }

    /// Whether the endpoint carries a little.
    async fn is_reached(&self, proto: &str) -> bool {
        match proto {
            "http" => get(self.culvert.http, HOST, "/down/10").await == (200, pattern(10)),
            // A port that is free again may still take connections, for its socket is the test's.
            _ => {
                let talking = timeout(Duration::from_secs(5), talk(self.port, 10));
                matches!(talking.await, Ok(Ok(())))
            }
        }
    }
}

/// Sends `length` bytes to a service that echoes them.
async fn talk(port: u16, length: usize) -> std::io::Result<()> {
    let sent = pattern(length);
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (mut reader, mut writer) = stream.into_split();
    let writing = async {
        writer.write_all(&sent).await?;
        writer.shutdown().await
    };
    let mut back = Vec::new();
    let reading = reader.read_to_end(&mut back);
    tokio::try_join!(writing, reading)?;
    match back == sent {
        true => Ok(()),
        false => Err(std::io::Error::other("other bytes came back")),
    }
}

/// 5 MB down, 4 MB up, forty concurrent requests; then the client ends, and nothing is left of it.
async fn http(stage: &Stage<'_>) {
    let token = stage.token(json!([])).await;
    let client = start(stage.kind, stage.culvert, stage.order("http", &token));
    let client = client.await.unwrap();
    assert_eq!(client.url, stage.url("http"));
    let at = stage.culvert.http;
    assert!(get(at, HOST, "/down/5000000").await == (200, pattern(5_000_000)));
    let up = pattern(4_000_000);
    let (status, body) = post(at, HOST, &up).await;
    let body = String::from_utf8(body).unwrap();
    let expected = format!("4000000 {} ", sum(&up));
    assert!(status == 200 && body.starts_with(&expected), "{body}");
    let mut requests = JoinSet::new();
    for _ in 0..40 {
        requests.spawn(get(at, HOST, "/down/20000"));
    }
    for answer in requests.join_all().await {
        assert!(answer == (200, pattern(20_000)));
    }
    client.close().await;
    all_gone(stage.culvert).await;
    assert_eq!(get(at, HOST, "/").await.0, 404);
}

/// A service that speaks HTTP/2 only gets HTTP/2. SSH has no such option.
async fn http2(stage: &Stage<'_>) {
    if stage.kind == Kind::Ssh {
        return;
    }
    let token = stage.token(json!([])).await;
    let client = start(stage.kind, stage.culvert, stage.order("http2", &token));
    let client = client.await.unwrap();
    let answer = get(stage.culvert.http, HOST, "/").await;
    assert_eq!(answer, (200, b"HTTP/2.0".to_vec()));
    client.close().await;
    all_gone(stage.culvert).await;
}

/// 5 MB there and back, forty concurrent connections, and the end.
async fn tcp(stage: &Stage<'_>) {
    let token = stage.token(json!([])).await;
    let client = start(stage.kind, stage.culvert, stage.order("tcp", &token));
    let client = client.await.unwrap();
    assert_eq!(client.url, stage.url("tcp"));
    soon("five megabytes", talk(stage.port, 5_000_000))
        .await
        .unwrap();
    let mut talks = JoinSet::new();
    for nth in 0..40 {
        talks.spawn(talk(stage.port, 10_000 + nth));
    }
    for done in soon("forty at once", talks.join_all()).await {
        done.unwrap();
    }
    client.close().await;
    all_gone(stage.culvert).await;
}

/// The network fails for a moment: the client is who it was, at the URL that it had.
async fn comes_back(stage: &Stage<'_>) {
    for proto in ["http", "tcp"] {
        let token = stage.token(json!([])).await;
        let proxy = Proxy::to(stage.kind.ingress(stage.culvert)).await;
        let order = Order {
            at: proxy.address,
            ..stage.order(proto, &token)
        };
        let client = start(stage.kind, stage.culvert, order).await.unwrap();
        assert_eq!(client.url, stage.url(proto));
        let before = (
            list(stage.culvert, "tunnel_sessions").await,
            list(stage.culvert, "endpoints").await,
        );
        assert_eq!((before.0.len(), before.1.len()), (1, 1));
        proxy.cut();
        eventually("the client is back", async || stage.is_reached(proto).await).await;
        let after = (
            list(stage.culvert, "tunnel_sessions").await,
            list(stage.culvert, "endpoints").await,
        );
        assert_eq!(after, before);
        client.close().await;
        proxy.cut();
        all_gone(stage.culvert).await;
    }
}

/// A client with an unknown credential gets the code for it.
async fn a_wrong_token(stage: &Stage<'_>) {
    let code = match stage.kind {
        Kind::Ssh => {
            // A key that is registered nowhere.
            crate::ssh_reverse::key(stage.folder).unwrap();
            "ERR_NGROK_1102"
        }
        _ => "ERR_NGROK_105",
    };
    let refused = start(stage.kind, stage.culvert, stage.order("http", "wrong")).await;
    assert_eq!(refused.err().as_deref(), Some(code));
}

/// What the credential does not allow is refused by code, and what it does is not.
async fn an_acl(stage: &Stage<'_>) {
    for (rule, expected) in [
        ("bind:only.culvert.localhost", Some("ERR_NGROK_316")),
        (&*format!("bind:{HOST}"), None),
    ] {
        let token = stage.token(json!([rule])).await;
        let client = start(stage.kind, stage.culvert, stage.order("http", &token)).await;
        match (client, expected) {
            (Ok(client), None) => client.close().await,
            (Err(code), Some(expected)) => assert_eq!(code, expected),
            (client, _) => panic!("{rule}: {:?}", client.map(|client| client.url)),
        }
        all_gone(stage.culvert).await;
    }
}

type Scenario = for<'a> fn(&'a Stage<'a>) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

const SCENARIOS: [(&str, Scenario); 6] = [
    ("http", |stage| Box::pin(http(stage))),
    ("http2", |stage| Box::pin(http2(stage))),
    ("tcp", |stage| Box::pin(tcp(stage))),
    ("comes back", |stage| Box::pin(comes_back(stage))),
    ("wrong token", |stage| Box::pin(a_wrong_token(stage))),
    ("acl", |stage| Box::pin(an_acl(stage))),
];

/// A test for each kind of client, so that kinds run side by side.
macro_rules! each_kind {
    ($($name:ident: $kind:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                Box::pin(does_what_it_can(Kind::$kind)).await;
            }
        )*

        #[test]
        fn every_kind_has_a_test() {
            assert_eq!([$(Kind::$kind),*], KINDS);
        }
    };
}
each_kind!(
    the_published_crate_does_what_it_can: Crate,
    the_published_python_agent_does_what_it_can: Python,
    the_published_node_agent_does_what_it_can: Node,
    our_agent_does_what_it_can: Own,
    a_stock_ssh_client_does_what_it_can: Ssh,
);

/// Runs a client through each scenario.
async fn does_what_it_can(kind: Kind) {
    if !kind.is_here() {
        return;
    }
    let (culvert, port) = Harness::start_with_port().await;
    let service = Service::named("one").await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let echo = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    let versioned = versioned(&mut tasks).await;
    tasks.spawn(async move {
        let mut echoes = JoinSet::new();
        while let Ok((socket, _)) = listener.accept().await {
            echoes.spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(socket);
                drop(tokio::io::copy(&mut reader, &mut writer).await);
                drop(writer.shutdown().await);
            });
        }
    });
    for (name, scenario) in SCENARIOS {
        // The stock client of SSH ends with its connection.
        if (kind, name) == (Kind::Ssh, "comes back") {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        println!("{kind:?}, {name}");
        scenario(&Stage {
            culvert: &culvert,
            port,
            service: &service,
            echo,
            versioned,
            kind,
            folder: folder.path(),
        })
        .await;
    }
    culvert.stop().await;
}
