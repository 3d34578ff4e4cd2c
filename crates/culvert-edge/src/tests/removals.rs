//! Open connections end when their endpoint is removed, and go on when it is updated.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_policy::Scheme;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::harness::*;
use super::internal::named;
use super::limits::free_port;
use super::mutual::client_hello;
use super::streams::{Frames, connect, nothing, websocket};
use crate::{Change, Endpoint, Snapshot, SnapshotBuilder};

const HANDSHAKE: &str = "GET / HTTP/1.1\r\nHost: app.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// What a relay carries.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Carried {
    Tcp,
    Tls,
    WebSocket,
    /// A WebSocket in a stream of HTTP/2.
    WebSocketStream,
}

/// How it reaches its upstream.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// From the public endpoint to an internal one.
    is_forwarded: bool,
    /// Instead of an endpoint whose upstream is unreachable.
    stands_in: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Edit {
    /// A whole snapshot without the endpoint.
    Snapshot,
    Removal,
    /// An endpoint with the same ID.
    Update,
}

/// What follows the edit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    Silence,
    ClientSends,
    UpstreamSends,
}

impl Carried {
    fn scheme(self) -> Scheme {
        match self {
            Self::Tcp => Scheme::Tcp,
            Self::Tls => Scheme::Tls,
            Self::WebSocket => Scheme::Http,
            Self::WebSocketStream => Scheme::Https,
        }
    }

    /// The endpoints of a connection, whose upstream is at `origin`.
    fn endpoints(self, path: Path, port: u16, origin: u16, unreachable: u16) -> Vec<Endpoint> {
        let (phase, upstream, internal) = match self {
            Self::Tcp => ("on_tcp_connect", "tcp", Scheme::Tcp),
            Self::Tls => ("on_tcp_connect", "tcp", Scheme::Tls),
            Self::WebSocket | Self::WebSocketStream => ("on_http_request", "http", Scheme::Http),
        };
        let last = |id: &str, upstream_port: u16| {
            let upstream = format!("{upstream}://127.0.0.1:{upstream_port}");
            let mut endpoint = match path.is_forwarded {
                true => named(internal, "x.internal", 5432, &upstream, ""),
                false => named(self.scheme(), "app.example", port, &upstream, ""),
            };
            endpoint.id = id.into();
            endpoint
        };
        let mut all = vec![last("ep_1", origin)];
        if path.stands_in {
            // The endpoint with the last id has the first turn.
            all.push(last("ep_2", unreachable));
        }
        if path.is_forwarded {
            let url = format!("{}://x.internal:5432", internal.name());
            let policy = format!(
                "{phase}: [{{actions: [{{type: forward-internal, config: {{url: '{url}'}}}}]}}]"
            );
            all.push(named(self.scheme(), "app.example", port, "", &policy));
            all.last_mut().unwrap().id = "ep_0".into();
        }
        all
    }
}

/// Accepts a WebSocket, after any other requests. `None` if there is none.
async fn accept(mut client: Client<TcpStream>) -> Option<Client<TcpStream>> {
    loop {
        let (head, _) = client.request().await?;
        let key = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("sec-websocket-key")
                .then_some(value)
        });
        let Some(key) = key else {
            let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            client.send(ok).await;
            continue;
        };
        let input = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
        let sha1 = &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY;
        let proof = STANDARD.encode(aws_lc_rs::digest::digest(sha1, input.as_bytes()));
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {proof}\r\n\r\n"
        );
        client.send(head).await;
        return Some(client);
    }
}

/// Opens a connection through the edge; a stream in one of `streams`.
async fn open(
    rig: &Rig,
    carried: Carried,
    port: u16,
    streams: Option<&mut SendRequest<Frames>>,
) -> Client<Box<dyn Stream>> {
    let to = match carried {
        Carried::Tcp => ([127, 0, 0, 1], port).into(),
        Carried::Tls | Carried::WebSocketStream => rig.edge.https_addr().unwrap(),
        Carried::WebSocket => rig.edge.http_addr().unwrap(),
    };
    if let Some(sender) = streams {
        let request = websocket("/").body(nothing()).unwrap();
        let response = soon("a response", sender.send_request(request)).await;
        let upgraded = hyper::upgrade::on(response.unwrap()).await.unwrap();
        return Client::new(Box::new(TokioIo::new(upgraded)));
    }
    let tcp = TcpStream::connect(to).await.unwrap();
    let mut client: Client<Box<dyn Stream>> = Client::new(Box::new(tcp));
    match carried {
        Carried::Tls => client.send(client_hello("app.example")).await,
        Carried::WebSocket => {
            client.send(HANDSHAKE).await;
            assert_eq!(client.answer("GET").await.status, 101);
        }
        Carried::Tcp | Carried::WebSocketStream => {}
    }
    client
}

#[tokio::test]
async fn removed_endpoints_lose_their_open_connections() {
    let mut rig = Rig::start().await;
    let (names, key, root) = certificate(&["app.example"]);
    let whole = |endpoints: &[Endpoint]| {
        let builder = Snapshot::builder().certificate(names.clone(), key.clone());
        let endpoints = endpoints.iter().cloned();
        endpoints.fold(builder, SnapshotBuilder::endpoint).build()
    };
    let (send, mut upstreams) = mpsc::channel(8);
    let raw = send.clone();
    let raw = origin(&mut rig.tasks, move |client| {
        let send = raw.clone();
        async move { send.send(client).await.unwrap() }
    })
    .await;
    let http = origin(&mut rig.tasks, move |client| {
        let send = send.clone();
        async move {
            if let Some(client) = accept(client).await {
                send.send(client).await.unwrap();
            }
        }
    })
    .await;
    let unreachable = 1;
    let carried = [
        Carried::Tcp,
        Carried::Tls,
        Carried::WebSocket,
        Carried::WebSocketStream,
    ];
    let paths = [(false, false), (false, true), (true, false), (true, true)];
    let edits = [
        (Edit::Snapshot, Next::Silence),
        (Edit::Removal, Next::Silence),
        (Edit::Removal, Next::ClientSends),
        (Edit::Removal, Next::UpstreamSends),
        (Edit::Update, Next::ClientSends),
    ];
    for carried in carried {
        for (is_forwarded, stands_in) in paths {
            let path = Path {
                is_forwarded,
                stands_in,
            };
            let origin = match carried {
                Carried::Tcp | Carried::Tls => raw,
                Carried::WebSocket | Carried::WebSocketStream => http,
            };
            let n_endpoints = 1 + usize::from(is_forwarded) + usize::from(stands_in);
            for removed in 0..n_endpoints {
                for (edit, next) in edits {
                    // A listener that closes may still accept connections.
                    let port = free_port().await;
                    let all = carried.endpoints(path, port, origin.port(), unreachable);
                    let mut others = all.clone();
                    let one = others.remove(removed);
                    let case = format!("{carried:?}, {path:?}, {} {edit:?}, {next:?}", one.id);
                    let mut streams = None;
                    if carried == Carried::WebSocketStream {
                        let direct = Path {
                            is_forwarded: false,
                            stands_in: false,
                        };
                        let direct = carried.endpoints(direct, port, origin.port(), unreachable);
                        rig.edge.publish(whole(&direct)).await;
                        streams = Some(connect(&mut rig, &root).await);
                    }
                    // Without the earlier pools, whose upstreams may count as unreachable.
                    rig.edge.publish(whole(&[])).await;
                    rig.edge.publish(whole(&all)).await;
                    let failed = rig.edge.meters().upstream_connects_failed.get();
                    let mut client = open(&rig, carried, port, streams.as_mut()).await;
                    let mut upstream = soon("a connection", upstreams.recv()).await.unwrap();
                    client.send("first").await;
                    while find(&upstream.read, b"first").is_none() {
                        assert!(upstream.more().await, "{case}");
                    }
                    upstream.read.clear();
                    let has_failed = rig.edge.meters().upstream_connects_failed.get() > failed;
                    assert_eq!(has_failed, stands_in, "{case}");
                    let mut change = Change::default();
                    match edit {
                        Edit::Snapshot => rig.edge.publish(whole(&others)).await,
                        Edit::Removal => {
                            change.remove(one.id);
                            rig.edge.apply(change).await;
                        }
                        Edit::Update => {
                            change.put(one);
                            rig.edge.apply(change).await;
                        }
                    }
                    if edit == Edit::Update {
                        upstream.send("further").await;
                        assert_eq!(client.take(7).await.unwrap(), b"further", "{case}");
                        client.send("further").await;
                        assert_eq!(upstream.take(7).await.unwrap(), b"further", "{case}");
                        continue;
                    }
                    match next {
                        Next::Silence => {}
                        Next::ClientSends => client.send("late").await,
                        Next::UpstreamSends => upstream.send("late").await,
                    }
                    // No further byte passes.
                    assert_eq!(upstream.rest().await, b"", "{case}");
                    assert_eq!(client.rest().await, b"", "{case}");
                }
            }
        }
    }
}
