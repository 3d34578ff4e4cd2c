//! WebSockets to upstreams that speak HTTP/2 (RFC 8441), for clients of either version.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::ext::Protocol;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::harness::*;
use super::streams::{connect, nothing, rig, websocket};

/// An origin that echoes streams which became WebSockets, if it takes any.
async fn echo(tasks: &mut JoinSet<()>, takes: bool) -> SocketAddr {
    origin(tasks, move |client| async move {
        let service =
            hyper::service::service_fn(|mut request: Request<hyper::body::Incoming>| async move {
                let answer = |status: u16, text: &'static str| {
                    let answer = Response::builder().status(status);
                    Ok::<_, Infallible>(answer.body(Full::new(Bytes::from(text))).unwrap())
                };
                if request.method() != Method::CONNECT {
                    return answer(200, "ok");
                }
                let protocol = request.extensions().get::<Protocol>().unwrap();
                assert_eq!(protocol.as_str(), "websocket");
                for name in ["upgrade", "connection", "sec-websocket-key", "host"] {
                    assert!(!request.headers().contains_key(name), "{name}");
                }
                assert_eq!(request.headers()["sec-websocket-version"], "13");
                assert_eq!(request.uri().authority().unwrap(), "app.example");
                assert_eq!(request.uri().scheme_str(), Some("http"));
                if request.uri().path() != "/chat" {
                    return answer(403, "no");
                }
                let upgrade = hyper::upgrade::on(&mut request);
                let mut tasks = JoinSet::new();
                tasks.spawn(async move {
                    let stream = TokioIo::new(upgrade.await.unwrap());
                    let (mut read, mut write) = tokio::io::split(stream);
                    write.write_all(b"hi").await.unwrap();
                    drop(tokio::io::copy(&mut read, &mut write).await);
                    drop(write.shutdown().await);
                });
                tasks.detach_all();
                let answer = Response::builder().header("sec-websocket-protocol", "chat");
                Ok(answer.body(Full::default()).unwrap())
            });
        let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        if takes {
            server.enable_connect_protocol();
        }
        let serving = server.serve_connection(TokioIo::new(client.stream), service);
        drop(serving.await);
    })
    .await
}

fn handshake(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: app.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: chat\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

#[tokio::test]
async fn an_http1_upgrade_becomes_an_extended_connect() {
    let mut tasks = JoinSet::new();
    let origin = echo(&mut tasks, true).await;
    let (rig, _) = rig(&format!("http://{origin}"), "http2", settings()).await;
    // With the first connection, and with one that is there.
    for turn in 0..2 {
        let mut client = rig.connect().await;
        client.send(handshake("/chat") + "early").await;
        let answer = client.answer("GET").await;
        assert_eq!(answer.status, 101);
        // RFC 6455 1.3.
        let proof = Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer.header("sec-websocket-accept"), proof);
        assert_eq!(answer.header("sec-websocket-protocol"), Some("chat"));
        assert_eq!(answer.header("upgrade"), Some("websocket"));
        assert_eq!(client.take(7).await.unwrap(), b"hiearly");
        let large = vec![b'x'; 300_000];
        let (mut read, mut write) = tokio::io::split(client.stream);
        let mut back = vec![0; large.len()];
        let (sent, got) = soon("all of it", async {
            tokio::join!(write.write_all(&large), read.read_exact(&mut back))
        })
        .await;
        sent.unwrap();
        got.unwrap();
        assert!(back == large);
        write.shutdown().await.unwrap();
        assert_eq!(soon("the end", read.read(&mut back)).await.unwrap(), 0);
        drop((read, write));
        let events = rig.recorder.events(2 * turn + 2).await;
        let reported = &events[2 * turn]["object"];
        assert_eq!(reported["http"]["response"]["status_code"], 101);
        assert_eq!(reported["http"]["response"]["body_length"], 0);
        assert_eq!(reported["backend"]["connection_reused"], turn > 0);
        assert_eq!(events[2 * turn + 1]["event_type"], TCP);
    }
}

#[tokio::test]
async fn an_extended_connect_is_forwarded_as_one() {
    let mut tasks = JoinSet::new();
    let origin = echo(&mut tasks, true).await;
    let (mut rig, root) = rig(&format!("http://{origin}"), "http2", settings()).await;
    let mut sender = connect(&mut rig, &root).await;
    let request = websocket("/chat").body(nothing()).unwrap();
    let answer = soon("an answer", sender.send_request(request)).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["sec-websocket-protocol"], "chat");
    for name in ["sec-websocket-accept", "upgrade", "connection"] {
        assert!(!answer.headers().contains_key(name), "{name}");
    }
    let stream = hyper::upgrade::on(answer).await.unwrap();
    let mut stream = Client::new(TokioIo::new(stream));
    assert_eq!(stream.take(2).await.unwrap(), b"hi");
    stream.send("more").await;
    assert_eq!(stream.take(4).await.unwrap(), b"more");
    stream.stream.shutdown().await.unwrap();
    assert!(!stream.more().await);
    let reported = &rig.recorder.events(2).await[1]["object"]["http"];
    assert_eq!(reported["request"]["method"], "get");
    assert_eq!(reported["request"]["headers"]["Upgrade"][0], "websocket");
    assert_eq!(reported["response"]["status_code"], 101);
}

#[tokio::test]
async fn refused_websocket_handshakes_get_a_response() {
    let mut tasks = JoinSet::new();
    for (takes, path, status) in [(true, "/no", 403), (false, "/chat", 503)] {
        let origin = echo(&mut tasks, takes).await;
        let (mut rig, root) = rig(&format!("http://{origin}"), "http2", settings()).await;
        let answer = rig.ask(&handshake(path)).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("connection"), Some("close"));
        let mut sender = connect(&mut rig, &root).await;
        let request = websocket(path).body(nothing()).unwrap();
        let answer = soon("an answer", sender.send_request(request)).await;
        assert_eq!(answer.unwrap().status(), status);
        // Requests are served there all the same.
        let request = Request::get("https://app.example/x");
        let answer = sender.send_request(request.body(nothing()).unwrap());
        let answer = soon("an answer", answer).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
}
