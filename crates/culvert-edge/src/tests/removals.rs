//! Open connections end when their endpoint is removed, and go on when it is updated.

use culvert_policy::Scheme;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::harness::*;
use super::internal::named;
use super::limits::free_port;
use crate::{Change, Endpoint, Snapshot};

const HANDSHAKE: &str = "GET / HTTP/1.1\r\nHost: app.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// The endpoints that a connection passes: one, or a public one and an internal one that it forwards to.
fn endpoints(scheme: Scheme, port: u16, origin: &str, is_forwarded: bool) -> Vec<Endpoint> {
    let scheme_name = if scheme == Scheme::Tcp { "tcp" } else { "http" };
    let upstream = format!("{scheme_name}://{origin}");
    if !is_forwarded {
        return vec![named(scheme, "app.example", port, &upstream, "")];
    }
    let phase = match scheme {
        Scheme::Tcp => "on_tcp_connect",
        _ => "on_http_request",
    };
    let forward = format!(
        "{phase}: [{{actions: [{{type: forward-internal, config: {{url: '{scheme_name}://x.internal:5432'}}}}]}}]"
    );
    let mut internal = named(scheme, "x.internal", 5432, &upstream, "");
    internal.id = "ep_internal".into();
    vec![named(scheme, "app.example", port, "", &forward), internal]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Edit {
    /// A whole snapshot without the endpoint.
    Snapshot,
    Removal,
    /// An endpoint with the same ID.
    Update,
}

#[tokio::test]
async fn removed_endpoints_lose_their_open_connections() {
    let mut rig = Rig::start().await;
    let (send, mut upstreams) = mpsc::channel(8);
    let origin = origin(&mut rig.tasks, move |client| {
        let send = send.clone();
        async move { send.send(client).await.unwrap() }
    })
    .await
    .to_string();
    let port = free_port().await;
    for scheme in [Scheme::Tcp, Scheme::Http] {
        for is_forwarded in [false, true] {
            let all = endpoints(scheme, port, &origin, is_forwarded);
            for removed in 0..all.len() {
                for (edit, from_client) in [
                    (Edit::Snapshot, true),
                    (Edit::Removal, true),
                    (Edit::Removal, false),
                    (Edit::Update, true),
                ] {
                    let case = format!("{scheme:?}, endpoint {removed} of {}, {edit:?}", all.len());
                    let of = |endpoints: &[Endpoint]| {
                        let builder = endpoints.iter().cloned();
                        builder
                            .fold(Snapshot::builder(), |all, one| all.endpoint(one))
                            .build()
                    };
                    rig.edge.publish(of(&all)).await;
                    let mut client = match scheme {
                        Scheme::Tcp => {
                            Client::new(TcpStream::connect(("127.0.0.1", port)).await.unwrap())
                        }
                        _ => rig.connect().await,
                    };
                    let first = if scheme == Scheme::Tcp {
                        "a"
                    } else {
                        HANDSHAKE
                    };
                    client.send(first).await;
                    let mut upstream = soon("a connection", upstreams.recv()).await.unwrap();
                    if scheme == Scheme::Tcp {
                        assert_eq!(upstream.take(1).await.unwrap(), b"a", "{case}");
                    } else {
                        upstream.request().await.unwrap();
                        upstream.send(ACCEPTED).await;
                        assert_eq!(client.answer("GET").await.status, 101, "{case}");
                    }
                    let mut others = all.clone();
                    let one = others.remove(removed);
                    let mut change = Change::default();
                    match edit {
                        Edit::Snapshot => rig.edge.publish(of(&others)).await,
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
                    // No further byte passes.
                    let (from, to) = match from_client {
                        true => (&mut client, &mut upstream),
                        false => (&mut upstream, &mut client),
                    };
                    from.send("late").await;
                    assert_eq!(to.rest().await, b"", "{case}");
                    assert_eq!(from.rest().await, b"", "{case}");
                }
            }
        }
    }
}
