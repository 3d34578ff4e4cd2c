//! `ssh -R` at the real server: the stock client, a key of `/ssh_credentials`, and what the API and
//! events tell of it; and our own agent beside it, as a program against a server.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert::config::Span;
use culvert_base::{Clock, SystemClock, Timestamp};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::agents::own_agent;
use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, Receiver, eventually};

const HOST: &str = "ssh.culvert.localhost";

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(culvert_testing::PATIENCE, future)
        .await
        .expect("it comes to an end")
}

/// A service that responds to every request with `ok`.
pub async fn service(tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            connections.spawn(async move {
                let mut bytes = Vec::new();
                while socket.read_buf(&mut bytes).await.unwrap_or(0) > 0 {
                    if bytes.ends_with(b"\r\n\r\n") {
                        bytes.clear();
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                        drop(socket.write_all(answer).await);
                    }
                }
            });
        }
    });
    address
}

/// The line of a program's output that begins with `what`.
pub async fn line(child: &mut Child, what: &str) -> String {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    soon(async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.starts_with(what) {
                return line;
            }
        }
        panic!("it ended before `{what}`");
    })
    .await
}

/// Makes a key and returns its public part. `None` without the client; the test is then reported as ignored.
pub fn key(folder: &Path) -> Option<String> {
    // One that was there before is another's.
    for old in ["key", "key.pub"] {
        std::fs::remove_file(folder.join(old)).ok();
    }
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(folder.join("key"))
        .status();
    if made.is_err() {
        culvert_testing::ignore("the OpenSSH client is not installed");
        return None;
    }
    Some(std::fs::read_to_string(folder.join("key.pub")).unwrap())
}

/// The stock client with that key, as far as where it dials.
pub fn stock_client(folder: &Path, at: SocketAddr) -> Command {
    let known = folder.join("known").display().to_string();
    let mut command = Command::new("ssh");
    command
        .args(["-F", "/dev/null", "-o", "IdentitiesOnly=yes"])
        .args(["-o", "IdentityAgent=none", "-o", "StrictHostKeyChecking=no"])
        .args(["-o", &format!("UserKnownHostsFile={known}"), "-i"])
        .arg(folder.join("key"))
        .args(["-p", &at.port().to_string()]);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_ssh_client_serves_http_until_its_key_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let Some(public) = key(folder.path()) else {
        return;
    };
    let culvert = Harness::start(&Backend::Sqlite).await;
    let hook = Receiver::start().await;
    let kinds = json!([{"type": "agent_session_start.v0"}, {"type": "agent_session_stop.v0"}]);
    subscribe_debug(&culvert, &hook, kinds).await;
    let credential = culvert
        .create("ssh_credentials", json!({"public_key": public}))
        .await;
    let mut tasks = JoinSet::new();
    let service = service(&mut tasks).await;

    let mut child = stock_client(folder.path(), culvert.ssh)
        .args(["-R", &format!("{HOST}:80:{service}")])
        .args(["v2@127.0.0.1", "http", "--scheme", "http"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let forwarding = line(&mut child, "Forwarding").await;
    assert!(
        forwarding.contains(&format!("http://{HOST}")),
        "{forwarding}"
    );
    let answer = culvert.get(HOST, "/").await;
    assert_eq!(answer.status, 200);

    let sessions = culvert
        .call(Method::GET, "/tunnel_sessions", None)
        .await
        .body;
    let session = &sessions["tunnel_sessions"][0];
    assert_eq!(session["credential"]["id"], credential["id"]);
    let path = format!(
        "/tunnel_sessions/{}/restart",
        session["id"].as_str().unwrap()
    );
    let refused = culvert.call(Method::POST, &path, Some(json!({}))).await;
    assert_eq!(refused.body["error_code"], "ERR_NGROK_1122");

    let path = format!("/ssh_credentials/{}", credential["id"].as_str().unwrap());
    culvert.call(Method::DELETE, &path, None).await;
    let output = soon(child.wait_with_output()).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("credential deleted"), "{said}");
    let start = hook.wait_for("agent_session_start.v0", 1).await.remove(0);
    let stop = hook.wait_for("agent_session_stop.v0", 1).await.remove(0);
    for (event, error) in [(&start, ""), (&stop, "credential deleted")] {
        let object: &Value = &event["object"];
        assert_eq!(object["transport"], "ssh");
        assert_eq!(object["credential"]["id"], credential["id"]);
        assert_eq!(object["error"], error);
        let agent = object["user_agent"].as_str().unwrap();
        assert!(agent.starts_with("SSH-2.0-OpenSSH"), "{agent}");
    }
    eventually("the endpoint is gone", async || {
        culvert.get(HOST, "/").await.status == 404
    })
    .await;
    culvert.stop().await;
}

/// OpenSSH and Dropbear print the port of the reply, and then the server prints that of the endpoint.
#[tokio::test(flavor = "multi_thread")]
async fn stock_ssh_clients_get_the_allocated_port() {
    let folder = tempfile::tempdir().unwrap();
    let Some(public) = key(folder.path()) else {
        return;
    };
    let (culvert, port) = Harness::start_with_port().await;
    let body = json!({"public_key": public});
    culvert.create("ssh_credentials", body).await;
    let mut tasks = JoinSet::new();
    let service = service(&mut tasks).await;
    let forward = format!("0:{service}");
    // Endpoints that have no port of their own have that of their URL, whatever the reply said.
    for (command, expected) in [
        (&["http"][..], "443"),
        (&["http", "--scheme", "http"], "80"),
        (&["tls"], "443"),
    ] {
        let mut openssh = stock_client(folder.path(), culvert.ssh);
        openssh
            .args(["-R", &forward, "v2@127.0.0.1"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = openssh.spawn().unwrap();
        let reported = line(&mut child, "Port").await;
        assert_eq!(reported.trim(), format!("{:<12}{expected}", "Port"));
        child.kill().await.unwrap();
    }
    let mut openssh = stock_client(folder.path(), culvert.ssh);
    openssh.args(["-R", &forward, "v2@127.0.0.1", "tcp"]);
    let mut clients = vec![openssh];
    let converted = std::process::Command::new("dropbearconvert")
        .args(["openssh", "dropbear"])
        .args([folder.path().join("key"), folder.path().join("dropbear")])
        .output();
    if converted.is_ok_and(|done| done.status.success()) {
        let mut dropbear = Command::new("dbclient");
        dropbear.env("HOME", folder.path()).args(["-y", "-i"]);
        dropbear.arg(folder.path().join("dropbear"));
        dropbear.args(["-p", &culvert.ssh.port().to_string()]);
        dropbear.args(["-R", &forward, "v2@127.0.0.1", "tcp"]);
        clients.push(dropbear);
    } else {
        culvert_testing::ignore("the Dropbear client is not installed");
    }
    let errors = folder.path().join("errors");
    for mut client in clients {
        client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = client
            .stderr(std::fs::File::create(&errors).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let reported = line(&mut child, "Port").await;
        assert_eq!(reported.trim(), format!("{:<12}{port}", "Port"));
        let printed = std::fs::read_to_string(&errors).unwrap();
        let allocated = format!("Allocated port {port} for remote forward to");
        assert!(printed.contains(&allocated), "{printed}");
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let mut socket = tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .unwrap();
        socket.write_all(request).await.unwrap();
        let mut answer = [0; 15];
        soon(socket.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        drop(socket);
        child.kill().await.unwrap();
        eventually("its port is free", async || {
            let sessions = culvert.call(Method::GET, "/tunnel_sessions", None).await;
            sessions.body["tunnel_sessions"] == json!([])
        })
        .await;
    }
    culvert.stop().await;
}

/// Listeners of Go's SSH library have the addresses of RFC 4254 7.1, and take only connections of the address that they
/// asked for.
#[tokio::test(flavor = "multi_thread")]
async fn listeners_of_a_go_client_serve_at_any_address() {
    let program = crate::layers::root().join("target/go-clients/ssh-go");
    if !program.exists() {
        culvert_testing::ignore("no Go client for SSH; scripts/go-clients makes it");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(public) = key(folder.path()) else {
        return;
    };
    let (culvert, port) = Harness::start_with_port().await;
    culvert
        .create("ssh_credentials", json!({"public_key": public}))
        .await;
    let output = Command::new(program)
        .env("CULVERT_SSH", culvert.ssh.to_string())
        .env("CULVERT_SSH_KEY", folder.path().join("key"))
        .env("CULVERT_HTTP", culvert.http.to_string())
        .env("CULVERT_TCP_PORT", port.to_string())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_agent_serves_http_at_a_real_server() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let credential = culvert.create("credentials", json!({})).await;
    let mut tasks = JoinSet::new();
    let service = service(&mut tasks).await;
    let arguments = ["http", &service, "--url", "http://own.culvert.localhost"];
    let mut child = own_agent(&culvert, &credential, &arguments);
    let url = line(&mut child, "http").await;
    assert_eq!(url, "http://own.culvert.localhost");
    assert_eq!(culvert.get("own.culvert.localhost", "/").await.status, 200);

    let sessions = culvert
        .call(Method::GET, "/tunnel_sessions", None)
        .await
        .body;
    let id = sessions["tunnel_sessions"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let restart = format!("/tunnel_sessions/{id}/restart");
    let answer = culvert.call(Method::POST, &restart, Some(json!({}))).await;
    assert!(answer.status < 300, "{:?}", answer.body);
    eventually("the agent is back", async || {
        culvert.get("own.culvert.localhost", "/").await.status == 200
    })
    .await;
    let stop = format!("/tunnel_sessions/{id}/stop");
    // The connection before the restart may still be on its way out.
    eventually("the agent is reported to end", async || {
        let answer = culvert.call(Method::POST, &stop, Some(json!({}))).await;
        answer.status < 300
    })
    .await;
    assert_eq!(soon(child.wait()).await.unwrap().code(), Some(0));
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_a_registered_authority_authenticate_until_they_expire() {
    let folder = tempfile::tempdir().unwrap();
    let Some(public) = key(folder.path()) else {
        return;
    };
    let culvert = Harness::start(&Backend::Sqlite).await;
    let hook = Receiver::start().await;
    let kinds = json!([{"type": "agent_session_start.v0"}, {"type": "agent_session_stop.v0"}]);
    subscribe_debug(&culvert, &hook, kinds).await;
    let mut tasks = JoinSet::new();
    let service = service(&mut tasks).await;
    let authority = culvert
        .create("ssh_certificate_authorities", json!({}))
        .await;
    let sign = async |end: &str| {
        let body = json!({
            "ssh_certificate_authority_id": authority["id"],
            "public_key": public,
            "extensions": {"permit-port-forwarding": ""},
            "valid_until": end,
        });
        let made = culvert.create("ssh_user_certificates", body).await;
        let certificate = made["certificate"].as_str().unwrap();
        std::fs::write(folder.path().join("key-cert.pub"), certificate).unwrap();
    };
    let client = || {
        let mut command = stock_client(folder.path(), culvert.ssh);
        command
            .args(["-R", &format!("{HOST}:80:{service}")])
            .args(["v2@127.0.0.1", "http", "--scheme", "http"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    };
    sign("").await;
    // An authority of the account signs for whatever it is used for; what it may open here is said by
    // registering its key.
    let refused = soon(client().output()).await.unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("ERR_NGROK_1102"), "{said}");
    let line_of = authority["public_key"].as_str().unwrap();
    let credential = culvert
        .create(
            "ssh_credentials",
            json!({"public_key": format!("cert-authority {line_of}"), "acl": [format!("bind:{HOST}")]}),
        )
        .await;
    // This one ends while the client is connected.
    let now = SystemClock.now().plus(Duration::from_secs(25));
    let end = now.whole_seconds();
    sign(&end.to_string()).await;
    let mut child = client().spawn().unwrap();
    line(&mut child, "Forwarding").await;
    assert_eq!(culvert.get(HOST, "/").await.status, 200);
    let said = soon(child.wait_with_output()).await.unwrap();
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("session expired"), "{said}");
    let stop = hook.wait_for("agent_session_stop.v0", 1).await.remove(0);
    let start = hook.wait_for("agent_session_start.v0", 1).await.remove(0);
    for (event, error) in [(&start, ""), (&stop, "session expired")] {
        let object = &event["object"];
        assert_eq!(object["credential"]["id"], credential["id"]);
        let expires_at = object["expires_at"].as_str().unwrap();
        assert_eq!(Timestamp::parse(expires_at), Some(end));
        assert_eq!(object["error"], error);
    }
    culvert.stop().await;
}

/// A service with an endless response at `/endless` and `ok` for everything else, and the bytes that it has written.
async fn endless(tasks: &mut JoinSet<()>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            connections.spawn(async move {
                let mut bytes = Vec::new();
                while socket.read_buf(&mut bytes).await.unwrap_or(0) > 0 {
                    if !bytes.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    if !bytes.starts_with(b"GET /endless ") {
                        bytes.clear();
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                        drop(socket.write_all(answer).await);
                        continue;
                    }
                    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n";
                    drop(socket.write_all(head).await);
                    let piece = vec![7; 64 << 10];
                    while socket.write_all(&piece).await.is_ok() {
                        count.fetch_add(piece.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    (address, written)
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_downloads_do_not_delay_others_of_the_client() {
    Box::pin(others_are_not_delayed_by(20)).await;
}

/// The answer to the next connection is behind data that its client does not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_download_alone_does_not_delay_others_of_the_client() {
    Box::pin(others_are_not_delayed_by(1)).await;
}

async fn others_are_not_delayed_by(stalled_downloads: usize) {
    let folder = tempfile::tempdir().unwrap();
    let Some(public) = key(folder.path()) else {
        return;
    };
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        // Only the tested limit ends a stalled download.
        settings.edge.timeouts.write = Span(Duration::from_secs(600));
        // On a busy machine the client takes long to connect to the service.
        settings.edge.timeouts.connect = Span(Duration::from_secs(25));
    })
    .await;
    culvert
        .create("ssh_credentials", json!({"public_key": public}))
        .await;
    let mut tasks = JoinSet::new();
    let (service, written) = endless(&mut tasks).await;
    let mut child = stock_client(folder.path(), culvert.ssh)
        .args(["-R", &format!("{HOST}:80:{service}")])
        .args(["v2@127.0.0.1", "http", "--scheme", "http"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    line(&mut child, "Forwarding").await;
    let mut stalled = Vec::new();
    for _ in 0..stalled_downloads {
        let mut client = tokio::net::TcpStream::connect(culvert.http).await.unwrap();
        let request = format!("GET /endless HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        stalled.push(client);
    }
    // All that can be on its way is. On a busy machine, much of it arrives only after a pause.
    eventually("the downloads stall, or are cut", async || {
        let before = written.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(5)).await;
        before > 0 && written.load(Ordering::Relaxed) == before
    })
    .await;
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let began = std::time::Instant::now();
        // It fails after thirty seconds.
        let answer = culvert.get(HOST, "/").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        slowest = slowest.max(began.elapsed());
    }
    println!("beside {stalled_downloads} stalled downloads the slowest request took {slowest:?}");
    drop((stalled, child));
    culvert.stop().await;
}
