//! A server that starts on a full disk serves what it served before, says that nothing can be written, and writes
//! again when there is room.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use culvert::client::Client;
use http::Method;
use serde_json::json;

use crate::events_arrive::subscribe;
use crate::harness::{Receiver, binary, eventually, raw};
use crate::kill::Process;

const HOST: &str = "kept.culvert.localhost";

/// A mounted file system that is small enough to be filled.
struct Small(PathBuf);

impl Small {
    /// `None` if none can be mounted; the test is then reported as ignored.
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs"])
            .arg(at)
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(at.to_owned()));
        }
        culvert_testing::ignore("a start on a full disk: no file system can be mounted here");
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
async fn a_server_on_a_full_disk_serves_traffic_and_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Small::mount(&folder.path().join("disk")) else {
        return;
    };
    let data = disk.0.join("data");
    let origin = Receiver::start().await;
    let allow = ["--edge-allow-private-upstreams", "true"];
    let start = || Process::start_as(binary(), &data, "", &allow);
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
    assert_eq!(why, "read-only: the disk took no writes at startup");
    assert_eq!(status_of_edge(&server).await, 200);

    // With room the same server takes changes, delivers events and lets agents in.
    std::fs::remove_file(filler).unwrap();
    eventually("the server is ready again", async || {
        let ready = client.call(Method::GET, "/readyz", None).await.unwrap();
        ready.status == 200
    })
    .await;
    let other = "other.culvert.localhost";
    let endpoint = json!({
        "url": format!("http://{other}"),
        "upstream_url": format!("http://{}", origin.address),
    });
    let made = client.expect(Method::POST, "/endpoints", Some(&endpoint));
    made.await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: {other}\r\nconnection: close\r\n\r\n");
    eventually("the new endpoint is live", async || {
        raw(server.http, request.as_bytes()).await.status == 200
    })
    .await;
    let receiver = Receiver::start().await;
    let sources = json!([{"type": "http_request_complete.v0"}]);
    subscribe(&client, &receiver, sources).await;
    eventually("an event of the request arrives", async || {
        raw(server.http, request.as_bytes()).await;
        !receiver.events().is_empty()
    })
    .await;
    let body = json!({});
    let credential = client.expect(Method::POST, "/credentials", Some(&body));
    let port = server.agents.unwrap().port();
    let agents_host = "agent.culvert.localhost";
    let agent = tokio::process::Command::from(binary())
        .args(["http", &origin.address.to_string(), "--inspect=false"])
        .args(["--url", &format!("http://{agents_host}")])
        .env("CULVERT_SERVER", format!("localhost:{port}"))
        .env(
            "CULVERT_AUTHTOKEN",
            credential.await.unwrap()["token"].as_str().unwrap(),
        )
        .env("CULVERT_DATA_DIR", &data)
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually("an agent is let in and serves", async || {
        let request = format!("GET / HTTP/1.1\r\nhost: {agents_host}\r\nconnection: close\r\n\r\n");
        raw(server.http, request.as_bytes()).await.status == 200
    })
    .await;
    drop(agent);
    assert_eq!(server.terminate(), 0);

    // Nothing is lost at the next start.
    let server = start();
    let client = Client::new(&server.api, token).unwrap();
    let endpoints = client
        .expect(Method::GET, "/endpoints", None)
        .await
        .unwrap();
    assert_eq!(endpoints["endpoints"].as_array().unwrap().len(), 2);
    assert_eq!(status_of_edge(&server).await, 200);
    assert_eq!(server.terminate(), 0);
}

/// Changes whether a file system can be written to.
fn remount(disk: &Small, mode: &str) {
    let option = format!("remount,{mode}");
    let mut command = Command::new("mount");
    let output = command.args(["-o", &option]).arg(&disk.0).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The last commits of a killed server are still in the WAL.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_a_read_only_file_system_serves_its_last_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Small::mount(&folder.path().join("disk")) else {
        return;
    };
    let data = disk.0.join("data");
    let origin = Receiver::start().await;
    let allow = ["--edge-allow-private-upstreams", "true"];
    let start = || Process::start_as(binary(), &data, "", &allow);
    let server = start();
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token.clone()).unwrap();
    let endpoint = json!({
        "url": format!("http://{HOST}"),
        "upstream_url": format!("http://{}", origin.address),
    });
    let made = client.expect(Method::POST, "/endpoints", Some(&endpoint));
    made.await.unwrap();
    server.kill();
    assert!(std::fs::metadata(data.join("state.db-wal")).unwrap().len() > 0);

    remount(&disk, "ro");
    let server = start();
    eventually("the edge serves", async || {
        status_of_edge(&server).await == 200
    })
    .await;
    let client = Client::new(&server.api, token.clone()).unwrap();
    let key = json!({});
    let made = client.call(Method::POST, "/api_keys", Some(&key));
    assert_eq!(made.await.unwrap().status, 503);
    let ready = client.call(Method::GET, "/readyz", None).await.unwrap();
    let why = ready.body["parts"]["store"].as_str().unwrap();
    assert_eq!(why, "read-only: the disk took no writes at startup");

    remount(&disk, "rw");
    eventually("the server is ready again", async || {
        let ready = client.call(Method::GET, "/readyz", None).await.unwrap();
        ready.status == 200
    })
    .await;
    let made = client.call(Method::POST, "/api_keys", Some(&key));
    assert_eq!(made.await.unwrap().status, 201);
    assert_eq!(status_of_edge(&server).await, 200);
    assert_eq!(server.terminate(), 0);
}
