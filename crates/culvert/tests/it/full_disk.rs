//! A server that starts on a full disk serves what it served before, and says that nothing can be written.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use culvert::client::Client;
use http::Method;
use serde_json::json;

use crate::harness::{Receiver, eventually, raw};
use crate::kill::Process;

const HOST: &str = "kept.culvert.localhost";

/// A file system of its own, small enough to be filled.
struct Small(PathBuf);

impl Small {
    /// `None`, said aloud, where none can be mounted.
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs"])
            .arg(at)
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(at.to_owned()));
        }
        println!("skipped: a start on a full disk: no file system can be mounted here");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).output());
    }
}

async fn status_of_edge(server: &Process) -> u16 {
    let request = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    raw(server.http, request.as_bytes()).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_serves_the_edge_and_refuses_writes_with_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Small::mount(&folder.path().join("disk")) else {
        return;
    };
    let data = disk.0.join("data");
    let origin = Receiver::start().await;
    let allow = ["--edge-allow-private-upstreams", "true"];
    let start = || Process::start_as(crate::harness::binary(), &data, "", &allow);
    let server = start();
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token.clone()).unwrap();
    let endpoint = json!({
        "url": format!("http://{HOST}"),
        "upstream_url": format!("http://{}", origin.address),
    });
    let made = client.expect(Method::POST, "/endpoints", Some(&endpoint));
    let id = made.await.unwrap()["id"].as_str().unwrap().to_owned();
    eventually("the endpoint is live", async || {
        status_of_edge(&server).await == 200
    })
    .await;
    assert_eq!(server.terminate(), 0);

    let filler = disk.0.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    drop(file);
    let server = start();
    assert_eq!(status_of_edge(&server).await, 200);
    let client = Client::new(&server.api, token.clone()).unwrap();
    let path = format!("/endpoints/{id}");
    let shown = client.call(Method::GET, &path, None).await.unwrap();
    assert_eq!(shown.status, 200);
    for (method, path, body) in [
        (Method::POST, "/api_keys", Some(json!({}))),
        (
            Method::PATCH,
            &*path,
            Some(json!({"description": "changed"})),
        ),
        (Method::DELETE, &*path, None),
    ] {
        let began = std::time::Instant::now();
        let answer = client
            .call(method.clone(), path, body.as_ref())
            .await
            .unwrap();
        assert_eq!(answer.status, 503, "{method} {path}");
        assert!(answer.body["error_code"].is_string(), "{}", answer.body);
        assert!(began.elapsed() < std::time::Duration::from_secs(5));
    }
    let ready = client.call(Method::GET, "/readyz", None).await.unwrap();
    assert_eq!(ready.status, 503);
    let why = ready.body["parts"]["store"].as_str().unwrap();
    assert_eq!(why, "read-only: the disk was full at the start");
    assert_eq!(status_of_edge(&server).await, 200);
    server.terminate();

    std::fs::remove_file(filler).unwrap();
    let server = start();
    let client = Client::new(&server.api, token).unwrap();
    let empty = json!({});
    let key = client.expect(Method::POST, "/api_keys", Some(&empty));
    key.await.unwrap();
    assert_eq!(status_of_edge(&server).await, 200);
    server.terminate();
}
