//! A reserved address from its reservation to its release, with traffic in between.

use std::net::{Ipv4Addr, SocketAddr};

use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::events_arrive::subscribe_debug;
use crate::harness::{Harness, Receiver, backends, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn bytes_flow_through_a_reserved_address_and_its_changes_are_reported() {
    for backend in backends().await {
        let port = unused_port().await;
        let culvert = Harness::start_with(&backend, |settings| {
            settings.edge.tcp_ports = format!("{port}-{port}");
        })
        .await;
        let hook = Receiver::start().await;
        subscribe_debug(
            &culvert,
            &hook,
            json!([
                {"type": "tcp_address_created.v0"},
                {"type": "tcp_address_updated.v0"},
                {"type": "tcp_address_deleted.v0"},
                {"type": "tcp_connection_closed.v0"},
            ]),
        )
        .await;
        let made = culvert
            .create("reserved_addrs", json!({"description": "echo"}))
            .await;
        assert_eq!(made["addr"], *format!("1.tcp.culvert.localhost:{port}"));
        let (origin, _echo) = echo().await;
        let url = format!("tcp://{}", made["addr"].as_str().unwrap());
        let body = json!({"url": url, "upstream_url": format!("tcp://{origin}")});
        let endpoint = culvert.create("endpoints", body).await;
        assert_eq!(endpoint["tcp_addr"]["id"], made["id"]);

        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        eventually("the address is open", async || {
            TcpStream::connect(address).await.is_ok()
        })
        .await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"there and back").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "there and back");
        eventually("the connection is reported", async || {
            hook.events().iter().any(|event| {
                let conn = &event["object"]["conn"];
                conn["server_port"] == port && conn["bytes_out"] == answer.len()
            })
        })
        .await;

        let one = format!("/reserved_addrs/{}", made["id"].as_str().unwrap());
        let refused = culvert.call(Method::DELETE, &one, None).await;
        assert_eq!(refused.body["error_code"], "ERR_NGROK_446");
        let body = json!({"description": "", "metadata": "{}"});
        let changed = culvert.call(Method::PATCH, &one, Some(body)).await.body;
        let of_it = format!("/endpoints/{}", endpoint["id"].as_str().unwrap());
        for path in [&of_it, &one] {
            assert_eq!(culvert.call(Method::DELETE, path, None).await.status, 204);
        }
        let kinds = ["created", "updated", "deleted"];
        for (verb, shown) in kinds.into_iter().zip([&made, &changed, &changed]) {
            let kind = format!("tcp_address_{verb}.v0");
            let reported = hook.wait_for(&kind, 1).await;
            assert_eq!(
                (reported.len(), &reported[0]["object"]),
                (1, shown),
                "{kind}"
            );
        }
        eventually("the address is closed", async || {
            TcpStream::connect(address).await.is_err()
        })
        .await;
        culvert.stop().await;
    }
}

/// A currently unused port.
async fn unused_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    listener.local_addr().unwrap().port()
}

/// An origin that echoes data until its tasks are dropped.
async fn echo() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut read, mut write) = stream.split();
                drop(tokio::io::copy(&mut read, &mut write).await);
            });
        }
    });
    (address, tasks)
}
