//! A server that starts on a disk that takes no writes, or whose disk fails while it runs, serves what it served before,
//! says that nothing can be written, and writes again when the disk does.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use culvert::client::Client;
use http::Method;
use serde_json::json;

use crate::events_arrive::subscribe;
use crate::harness::{Receiver, binary, eventually, raw};
use crate::kill::Process;
use crate::layers::root;

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

/// What makes the writes of a process fail; `tests/faults/shim.c` has the layout.
struct FailingDisk {
    library: PathBuf,
    control: PathBuf,
}

impl FailingDisk {
    /// `None` without a compiler; the test is then reported as ignored.
    fn build(folder: &Path) -> Option<Self> {
        let library = folder.join("shim.so");
        let built = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(root().join("tests/faults/shim.c"))
            .arg("-ldl")
            .status();
        if !built.is_ok_and(|status| status.success()) {
            culvert_testing::ignore("a failing disk: there is no C compiler");
            return None;
        }
        let control = folder.join("control");
        std::fs::write(&control, [0; 4096]).unwrap();
        Some(Self { library, control })
    }

    fn server(&self) -> Command {
        let mut command = binary();
        command.env("LD_PRELOAD", &self.library);
        command.env("FAULTS_SHIM", &self.control);
        command
    }

    /// From here on these operations fail below a folder.
    fn fail(&self, error: i32, operations: i32, below: &Path) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.control);
        let file = file.unwrap();
        let mut path = below.to_str().unwrap().as_bytes().to_vec();
        path.push(0);
        file.write_all_at(&path, 24).unwrap();
        file.write_all_at(&operations.to_ne_bytes(), 12).unwrap();
        file.write_all_at(&error.to_ne_bytes(), 8).unwrap();
    }

    fn heal(&self) {
        self.fail(0, 0, Path::new(""));
    }
}

/// A change is refused with a code, and the edge serves.
async fn serves_and_refuses(server: &Process, client: &Client) {
    let body = json!({});
    eventually("a change is refused", async || {
        let began = std::time::Instant::now();
        let made = client.call(Method::POST, "/api_keys", Some(&body));
        let made = made.await.unwrap();
        assert!(began.elapsed() < std::time::Duration::from_secs(5));
        assert!(made.status == 503 || made.status == 201, "{}", made.body);
        assert!(made.status == 201 || made.body["error_code"].is_string());
        made.status == 503
    })
    .await;
    assert_eq!(status_of_edge(server).await, 200);
    for (path, status) in [("/readyz", 503), ("/readyz?role=edge", 200)] {
        let ready = client.call(Method::GET, path, None).await.unwrap();
        assert_eq!(ready.status, status, "{path}: {}", ready.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_disk_fails_serves_refuses_writes_and_starts_again() {
    /// Errors of Linux, and the bits of the shim.
    const EIO: i32 = 5;
    const EDQUOT: i32 = 122;
    const WRITE_SYNC_CREATE: i32 = 7;
    const WRITE_CREATE: i32 = 5;
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = FailingDisk::build(folder.path()) else {
        return;
    };
    let origin = Receiver::start().await;
    // After a failed sync the content of the disk is unknown, so the server ends once the disk takes writes.
    for (error, operations, ends) in [
        (EDQUOT, WRITE_CREATE, false),
        (EIO, WRITE_SYNC_CREATE, true),
    ] {
        let data = folder.path().join(format!("data{error}"));
        let allow = ["--edge-allow-private-upstreams", "true"];
        let start = || Process::start_as(disk.server(), &data, "", &allow);
        let mut server = start();
        let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
        let mut client = Client::new(&server.api, token.clone()).unwrap();
        let endpoint = json!({
            "url": format!("http://{HOST}"),
            "upstream_url": format!("http://{}", origin.address),
        });
        let made = client.expect(Method::POST, "/endpoints", Some(&endpoint));
        made.await.unwrap();
        eventually("the endpoint is live", async || {
            status_of_edge(&server).await == 200
        })
        .await;

        disk.fail(error, operations, &data);
        serves_and_refuses(&server, &client).await;
        disk.heal();
        if ends {
            assert_eq!(server.ended(), 70);
            server = start();
            client = Client::new(&server.api, token.clone()).unwrap();
        }
        eventually("changes are taken again", async || {
            let body = json!({});
            let made = client.call(Method::POST, "/api_keys", Some(&body));
            made.await.unwrap().status == 201
        })
        .await;

        // It is killed, and starts while the disk still fails.
        disk.fail(error, operations, &data);
        serves_and_refuses(&server, &client).await;
        server.kill();
        let server = start();
        let client = Client::new(&server.api, token).unwrap();
        eventually("the edge serves", async || {
            status_of_edge(&server).await == 200
        })
        .await;
        serves_and_refuses(&server, &client).await;
        disk.heal();
        eventually("changes are taken again", async || {
            let body = json!({});
            let made = client.call(Method::POST, "/api_keys", Some(&body));
            made.await.unwrap().status == 201
        })
        .await;
        assert_eq!(server.terminate(), 0);
    }
}

/// A disk with room for the check at the start and for nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_although_its_first_commit_finds_no_room() {
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
    let client = Client::new(&server.api, token).unwrap();
    let endpoint = json!({
        "url": format!("http://{HOST}"),
        "upstream_url": format!("http://{}", origin.address),
    });
    let made = client.expect(Method::POST, "/endpoints", Some(&endpoint));
    made.await.unwrap();
    eventually("the endpoint is live", async || {
        status_of_edge(&server).await == 200
    })
    .await;
    server.kill();

    // Each size of the rest: somewhere among them the check passes and a commit does not.
    for pages in [8, 10, 12, 16, 20, 24, 32] {
        let filler = disk.0.join("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        let length = file.metadata().unwrap().len();
        file.set_len(length - pages * 4096).unwrap();
        drop(file);
        let server = start();
        eventually("the edge serves", async || {
            status_of_edge(&server).await == 200
        })
        .await;
        server.kill();
        std::fs::remove_file(filler).unwrap();
    }
}
