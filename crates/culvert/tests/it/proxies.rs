//! Requests of the server through the proxies that its environment names.

use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::harness::binary;
use crate::kill::Process;

const PASSWORD: &str = "a-long-password";

async fn head(tcp: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tcp.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// A proxy that is also the destination behind it.
async fn proxy(tasks: &mut JoinSet<()>) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://user:{PASSWORD}@{}", listener.local_addr().unwrap());
    let (heads, seen) = mpsc::channel(64);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut tcp, _)) = listener.accept().await {
            let heads = heads.clone();
            connections.spawn(async move {
                while let Some(head) = head(&mut tcp).await {
                    let answer = match head.starts_with("CONNECT ") {
                        true => "HTTP/1.1 200 Connected\r\n\r\n",
                        false => "HTTP/1.1 204 OK\r\nconnection: close\r\n\r\n",
                    };
                    heads.try_send(head).unwrap();
                    tcp.write_all(answer.as_bytes()).await.unwrap();
                    if answer.contains("close") {
                        // Unread bytes would reset the connection before the response is read.
                        tcp.shutdown().await.unwrap();
                        tokio::io::copy(&mut tcp, &mut tokio::io::sink()).await.ok();
                        return;
                    }
                }
            });
        }
    });
    (url, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn destinations_are_reached_through_the_proxy_of_the_environment() {
    let mut tasks = JoinSet::new();
    let (url, mut seen) = proxy(&mut tasks).await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut command = binary();
    command.env("http_proxy", url).env("no_proxy", "other.test");
    let flags = [
        "--destinations-proxy-from-environment",
        "true",
        "--destinations-allow-networks",
        "192.0.2.0/24",
    ];
    let server = Process::start_as(command, &data, "", &flags);
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = culvert::client::Client::new(&server.api, token).unwrap();
    let target = json!({"webhook": {"url": "http://192.0.2.7:8080/hook"}});
    let destination = json!({"format": "json", "target": target});
    let made = client.expect(Method::POST, "/event_destinations", Some(&destination));
    let id = made.await.unwrap()["id"].as_str().unwrap().to_owned();
    let path = format!("/event_destinations/{id}/test");
    let tested = client.expect(Method::POST, &path, Some(&json!({}))).await;
    assert_eq!(tested.unwrap()["delivered"], true);
    let connect = seen.recv().await.unwrap();
    assert!(
        connect.starts_with("CONNECT 192.0.2.7:8080 HTTP/1.1\r\n"),
        "{connect}"
    );
    assert!(connect.contains("proxy-authorization: Basic "), "{connect}");
    let post = seen.recv().await.unwrap();
    assert!(post.starts_with("POST /hook HTTP/1.1\r\n"), "{post}");
    assert!(post.contains("host: 192.0.2.7:8080\r\n"), "{post}");
    assert!(!post.contains("proxy-authorization"), "{post}");
    assert_eq!(server.terminate(), 0);
}

#[test]
fn an_invalid_proxy_is_an_invalid_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |is_on: &str| {
        let mut command = binary();
        command.env("HTTPS_PROXY", format!("ftp://user:{PASSWORD}@proxy.test"));
        command.args(["serve", "--destinations-proxy-from-environment", is_on]);
        // Without the setting, only this is invalid.
        command.args(["--edge-extra-ca-file", "/nonexistent"]);
        command.arg("--data-dir").arg(folder.path());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{text}");
        assert!(!text.contains(PASSWORD), "{text}");
        text
    };
    let text = serve("true");
    assert!(text.contains("`HTTPS_PROXY` is invalid"), "{text}");
    let text = serve("false");
    assert!(text.contains("`edge.extra_ca_file`"), "{text}");
}
