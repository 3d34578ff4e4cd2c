//! Connections of HTTP/2 to upstreams, which clients share: what some of them do ends no requests of others.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use culvert_policy::Scheme;
use h2::Reason;
use h2::server::SendResponse;
use http::Response;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::harness::*;
use crate::Snapshot;

/// What an upstream does with a request, by the numbers of its connection and its stream, from 0.
type Serve = Arc<dyn Fn(usize, usize, &str, SendResponse<Bytes>) + Send + Sync>;

async fn upstream(tasks: &mut JoinSet<()>, serve: Serve) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        for number in 0.. {
            let (tcp, _) = listener.accept().await.unwrap();
            let serve = Arc::clone(&serve);
            connections.spawn(async move {
                let mut connection = h2::server::handshake(tcp).await.unwrap();
                let mut streams = 0;
                while let Some(Ok((request, respond))) = connection.accept().await {
                    serve(number, streams, request.uri().path(), respond);
                    streams += 1;
                }
            });
        }
    });
    address
}

async fn publish(rig: &Rig, upstream: SocketAddr) {
    let to = format!("http://{upstream}");
    let endpoint = endpoint(Scheme::Http, "app.example", 80, &to, "http2");
    let snapshot = Snapshot::builder().endpoint(endpoint).build();
    rig.edge.publish(snapshot).await;
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: app.example\r\n\r\n")
}

/// As Node.js does while the responses that clients do not read take its memory.
#[tokio::test]
async fn a_connection_that_refuses_streams_is_used_no_more() {
    let mut rig = Rig::start().await;
    let serve: Serve = Arc::new(|connection, stream, _, mut respond| {
        if connection == 0 && stream > 0 {
            return respond.send_reset(Reason::ENHANCE_YOUR_CALM);
        }
        respond.send_response(Response::new(()), true).unwrap();
    });
    let address = upstream(&mut rig.tasks, serve).await;
    publish(&rig, address).await;
    assert_eq!(rig.ask(&get("/")).await.status, 200);
    assert_eq!(rig.ask(&get("/")).await.status, 502);
    for _ in 0..3 {
        assert_eq!(rig.ask(&get("/")).await.status, 200);
    }
}

/// Servers end connections whose streams are reset too often. That of a download outlasts the clients that leave.
#[tokio::test]
async fn clients_that_leave_end_no_response_of_others() {
    const LEAVING: usize = 200;
    let mut rig = Rig::start().await;
    let seen = Arc::new(Mutex::new(Vec::<usize>::new()));
    let (hanging, ends) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
    let serve: Serve = Arc::new({
        let (seen, ends) = (Arc::clone(&seen), Arc::clone(&ends));
        move |connection, stream, path, mut respond| {
            let mut seen = seen.lock().unwrap();
            if seen.len() <= connection {
                seen.resize(connection + 1, 0);
            }
            seen[connection] = stream + 1;
            if path != "/download" {
                return hanging.lock().unwrap().push(respond);
            }
            let mut body = respond.send_response(Response::new(()), false).unwrap();
            let ends = Arc::clone(&ends);
            #[allow(clippy::disallowed_methods, reason = "it ends with the test")]
            tokio::spawn(async move {
                ends.notified().await;
                body.send_data("the end".into(), true).unwrap();
            });
        }
    });
    let address = upstream(&mut rig.tasks, serve).await;
    publish(&rig, address).await;
    let mut download = rig.connect().await;
    let closing = get("/download").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    download.send(closing).await;
    assert!(download.head().await.unwrap().starts_with("HTTP/1.1 200"));
    let all = || -> usize { seen.lock().unwrap().iter().sum() };
    for nth in 0..LEAVING {
        let mut client = rig.connect().await;
        client.send(get("/hang")).await;
        eventually("the upstream has the request", || all() == nth + 2).await;
    }
    let streams = seen.lock().unwrap().clone();
    // Servers take 100 resets in a row.
    assert!(streams.iter().all(|streams| *streams < 100), "{streams:?}");
    ends.notify_one();
    let rest = String::from_utf8(download.rest().await).unwrap();
    assert!(rest.contains("the end"), "{rest}");
}
