//! Tests of the listener with the stock OpenSSH client and a minimal authorizer. Without the client, the tests are reported
//! as ignored.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on should stop, and what is skipped is said"
)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Refusal, code};
use culvert_ssh::{ClientKeyType, HostKey, HostKeyType, SshIngress, SshKeys};
use culvert_tunnel::driver::Stream;
use culvert_tunnel::server::{
    AgentAuthRequest, AgentAuthorizer, Binding, Bindings, Command, CommandError, ConnectionLimits,
    EndReason, EndpointRequest, Proof, Server, SessionEnd, SessionGrant, Transport,
};
use culvert_tunnel::wire::{LabelledRequest, PatchRequest, ProxyHeader, UpdateRequest};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, split};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::process::{Child, ChildStdout};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Fails instead of hanging.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(culvert_testing::PATIENCE, future)
        .await
        .expect("the operation completes in time")
}

/// An authorizer that accepts one key, grants every name, and records its calls.
#[derive(Debug)]
struct TestGate {
    key: String,
    seen: watch::Sender<Seen>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    agents: Vec<String>,
    wanted: Vec<EndpointRequest>,
    ends: Vec<EndReason>,
}

impl AgentAuthorizer for TestGate {
    fn authorize(&self, hello: AgentAuthRequest) -> BoxFuture<'_, Result<SessionGrant, Refusal>> {
        Box::pin(async move {
            assert_eq!(hello.transport, Transport::Ssh);
            let (Proof::PublicKey(key) | Proof::Certificate { authority: key, .. }) = &hello.proof
            else {
                panic!("SSH clients authenticate with keys");
            };
            if *key != self.key {
                return Err(Refusal::of(code::SSH_KEY_NOT_REGISTERED));
            }
            let count = self.seen.borrow().agents.len();
            self.seen
                .send_modify(|seen| seen.agents.push(hello.about.user_agent));
            Ok(SessionGrant {
                session_id: format!("ts_{count}"),
                account_name: "ann".into(),
                plan_name: "whole".into(),
                ..SessionGrant::default()
            })
        })
    }

    fn next_tcp_port<'a>(&'a self, _: &'a SessionGrant) -> BoxFuture<'a, Option<u16>> {
        Box::pin(async { None })
    }

    fn bind<'a>(
        &'a self,
        _: &'a SessionGrant,
        want: &'a EndpointRequest,
    ) -> BoxFuture<'a, Result<Binding, Refusal>> {
        Box::pin(async move {
            self.seen.send_modify(|seen| seen.wanted.push(want.clone()));
            let name = want.options.requested().unwrap_or("random.test").to_owned();
            Ok(Binding {
                id: format!("ep_{name}"),
                url: format!("{}://{name}", want.proto),
                name,
                token: String::new(),
            })
        })
    }

    fn bind_labels<'a>(
        &'a self,
        _: &'a SessionGrant,
        _: &'a LabelledRequest,
    ) -> BoxFuture<'a, Result<String, Refusal>> {
        Box::pin(async { panic!("SSH clients have no labels") })
    }

    fn patch<'a>(
        &'a self,
        _: &'a SessionGrant,
        _: &'a PatchRequest,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { panic!("SSH clients update no endpoint") })
    }

    fn unbind<'a>(&'a self, _: &'a SessionGrant, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async { panic!("SSH clients release no endpoint") })
    }

    fn ended(&self, end: SessionEnd) -> BoxFuture<'_, ()> {
        Box::pin(async { self.seen.send_modify(|seen| seen.ends.push(end.reason)) })
    }
}

/// A running listener, a directory with a known and an unknown key, and an echo service.
struct Stage {
    address: SocketAddr,
    service: SocketAddr,
    bindings: Arc<Bindings>,
    seen: watch::Receiver<Seen>,
    folder: tempfile::TempDir,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// Starts the listener. `None`, reported as ignored, if the client is not installed.
async fn start() -> Option<Stage> {
    let key = HostKey::from_seed(&[7; 32]);
    start_with(SshKeys {
        host: vec![key],
        client: ClientKeyType::ALL.to_vec(),
    })
    .await
}

/// The same with these keys. Clients know the first host key.
async fn start_with(keys: SshKeys) -> Option<Stage> {
    let folder = tempfile::tempdir().unwrap();
    for name in ["known", "unknown"] {
        if !generate("ed25519", &folder.path().join(name)) {
            culvert_testing::ignore("the OpenSSH client is not installed");
            return None;
        }
    }
    let shown = std::process::Command::new("ssh-keygen")
        .args(["-l", "-f"])
        .arg(folder.path().join("known.pub"))
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let fingerprint = shown.split(' ').nth(1).unwrap().to_owned();

    let (seen, receiver) = watch::channel(Seen::default());
    let bindings = Arc::new(Bindings::default());
    let authorizer = TestGate {
        key: fingerprint,
        seen,
    };
    let server = Server::new(Arc::new(authorizer), Arc::clone(&bindings), "here".into());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let key = keys.host.first().unwrap().public_line();
    let known = format!("[127.0.0.1]:{} {key}\n", address.port());
    std::fs::write(folder.path().join("known_hosts"), known).unwrap();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let room = ConnectionLimits {
        connections: 100,
        unauthenticated: 32,
        unauthenticated_per_source: 16,
    };
    let ingress = SshIngress::new(listener, &keys, Arc::new(server), room);
    tasks.spawn(ingress.run(stop.clone()));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut echoes = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            echoes.spawn(async move {
                let (mut reader, mut writer) = split(socket);
                if tokio::io::copy(&mut reader, &mut writer).await.is_ok() {
                    writer.shutdown().await.ok();
                }
            });
        }
    });
    Some(Stage {
        address,
        service,
        bindings,
        seen: receiver,
        folder,
        stop,
        tasks,
    })
}

/// Generates a key. `false` if `ssh-keygen` is not installed.
fn generate(kind: &str, path: &Path) -> bool {
    std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", kind, "-N", "", "-f"])
        .arg(path)
        .status()
        .is_ok_and(|status| status.success())
}

impl Stage {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The client's command line for a forward and a command.
    fn ssh(&self, key: &str, forward: &str, rest: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("ssh");
        let known = self.path("known_hosts");
        command
            .args(["-F", "/dev/null", "-o", "IdentitiesOnly=yes"])
            .args([
                "-o",
                "IdentityAgent=none",
                "-o",
                "StrictHostKeyChecking=yes",
            ])
            .arg("-o")
            .arg(format!("UserKnownHostsFile={}", known.display()))
            .arg("-i")
            .arg(self.path(key))
            .args(["-p", &self.address.port().to_string()])
            .args(match forward {
                "" => Vec::new(),
                place => vec!["-R".to_owned(), format!("{place}:{}", self.service)],
            })
            .args(rest)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Starts a client and waits until it has an endpoint. Returns the client and its output.
    async fn online(&self, forward: &str, rest: &[&str]) -> (Child, Vec<String>) {
        let mut child = self.ssh("known", forward, rest).spawn().unwrap();
        let out: ChildStdout = child.stdout.take().unwrap();
        let mut lines = BufReader::new(out).lines();
        let mut reported = Vec::new();
        loop {
            let Some(line) = soon(lines.next_line()).await.unwrap() else {
                let mut error = String::new();
                child
                    .stderr
                    .take()
                    .unwrap()
                    .read_to_string(&mut error)
                    .await
                    .unwrap();
                panic!("the client exited: {error}");
            };
            let is_last = line.starts_with("Forwarding");
            reported.push(line);
            if is_last {
                return (child, reported);
            }
        }
    }

    /// The exit code and error output of a client that is rejected.
    async fn refused(&self, key: &str, forward: &str, rest: &[&str]) -> (Option<i32>, String) {
        let output = soon(self.ssh(key, forward, rest).output()).await.unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    fn dial(&self, id: &str) -> Stream {
        let header = ProxyHeader {
            id: id.into(),
            client_addr: "192.0.2.7:1234".into(),
            proto: "https".into(),
            edge_type: "3".into(),
            passthrough_tls: false,
        };
        self.bindings.dial(&header).unwrap()
    }

    async fn until(&mut self, enough: impl FnMut(&Seen) -> bool) -> Seen {
        soon(self.seen.wait_for(enough)).await.unwrap().clone()
    }
}

async fn expect_echo(stream: Stream, length: usize) {
    let sent: Vec<u8> = (0..length).map(|at| (at * 31 + at / 977) as u8).collect();
    let (mut reader, mut writer) = split(stream);
    let writing = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let reading = async { reader.read_to_end(&mut back).await.unwrap() };
    soon(async { tokio::join!(writing, reading) }).await;
    assert!(back == sent, "{} of {length} bytes came back", back.len());
}

/// Dropbear, the client of routers and embedded systems, supports neither AES-GCM nor encrypt-then-MAC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropbear_brings_a_service_online() {
    let Some(mut stage) = start().await else {
        return;
    };
    let key = stage.path("known.dropbear");
    let converted = std::process::Command::new("dropbearconvert")
        .args(["openssh", "dropbear"])
        .args([&stage.path("known"), &key])
        .output();
    if !converted.is_ok_and(|done| done.status.success()) {
        culvert_testing::ignore("the Dropbear client is not installed");
        return;
    }
    let mut child = tokio::process::Command::new("dbclient")
        .env("HOME", stage.folder.path())
        .arg("-y")
        .arg("-i")
        .arg(&key)
        .args(["-p", &stage.address.port().to_string()])
        .args(["-R", &format!("443:{}", stage.service)])
        .args(["v2@127.0.0.1", "http"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    loop {
        match soon(lines.next_line()).await.unwrap() {
            Some(line) if line.starts_with("Forwarding") => break,
            Some(_) => {}
            None => {
                let mut error = String::new();
                let mut stderr = child.stderr.take().unwrap();
                stderr.read_to_string(&mut error).await.unwrap();
                panic!("the client exited: {error}");
            }
        }
    }
    let seen = stage.until(|seen| seen.wanted.len() == 1).await;
    assert!(
        seen.agents[0].starts_with("SSH-2.0-dropbear"),
        "{:?}",
        seen.agents
    );
    expect_echo(stage.dial("ep_random.test"), 300_000).await;
}

#[tokio::test]
async fn each_host_key_is_offered_and_types_of_client_keys_are_chosen() {
    let keys = [HostKeyType::EcdsaP256, HostKeyType::Ed25519];
    let host = keys.map(|kind| HostKey::derive(kind, &[7; 32]));
    for (algorithm, host) in [
        ("ecdsa-sha2-nistp256", host.to_vec()),
        ("ssh-ed25519", host.iter().rev().cloned().collect()),
    ] {
        let keys = SshKeys {
            host,
            client: vec![ClientKeyType::Ecdsa, ClientKeyType::Ed25519],
        };
        let Some(stage) = start_with(keys).await else {
            return;
        };
        let wanted = format!("HostKeyAlgorithms={algorithm}");
        let rest = ["-o", &wanted, TO, "http"];
        let (mut child, _) = stage.online("0", &rest).await;
        child.kill().await.unwrap();
        stage.stop.cancel();
    }
    let keys = SshKeys {
        host: host.to_vec(),
        client: vec![ClientKeyType::Ecdsa],
    };
    let Some(stage) = start_with(keys).await else {
        return;
    };
    let (code, text) = stage.refused("known", "0", &[TO, "http"]).await;
    assert_eq!(code, Some(1), "{text}");
    let why = "Keys of type `ssh-ed25519` are not accepted here";
    assert!(text.contains(why), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_client_brings_a_service_online() {
    let Some(mut stage) = start().await else {
        return;
    };
    let (mut child, reported) = stage
        .online(
            "app.example.test:443",
            &["v2@127.0.0.1", "http", "--metadata", "'a b'"],
        )
        .await;
    assert_eq!(
        reported,
        [
            "",
            "culvert (via SSH) (Ctrl+C to quit)",
            "",
            "Account     ann (Plan: whole)",
            "Region      here",
            "Forwarding  https://app.example.test",
        ]
    );
    let seen = stage.until(|seen| seen.wanted.len() == 1).await;
    assert!(
        seen.agents[0].starts_with("SSH-2.0-OpenSSH"),
        "{:?}",
        seen.agents
    );
    assert_eq!(
        (&seen.wanted[0].proto[..], &seen.wanted[0].metadata[..]),
        ("https", "a b")
    );

    expect_echo(stage.dial("ep_app.example.test"), 2_000_000).await;
    let mut talks = JoinSet::new();
    for nth in 0..40 {
        talks.spawn(expect_echo(stage.dial("ep_app.example.test"), 20_000 + nth));
    }
    soon(talks.join_all()).await;

    child.kill().await.unwrap();
    let seen = stage.until(|seen| seen.ends.len() == 1).await;
    // If the client had unread data when it was killed, its system resets the connection.
    assert!(
        matches!(&seen.ends[..], [EndReason::Closed | EndReason::Lost(_)]),
        "{:?}",
        seen.ends
    );
    assert_eq!(stage.bindings.connections(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_a_forward_reaches_the_client() {
    let Some(stage) = start().await else { return };
    for (forward, user, command, id) in [
        ("0", "v2@127.0.0.1", &["tcp"][..], "ep_random.test"),
        ("443", "127.0.0.1", &["http"], "ep_random.test"),
        (":443", "v2@127.0.0.1", &["tls"], "ep_random.test"),
        (
            "*.example.test:443",
            "v2@127.0.0.1",
            &["tls"],
            "ep_*.example.test",
        ),
        (
            "tcp.test:7000",
            "v2@127.0.0.1",
            &["tcp"],
            "ep_tcp.test:7000",
        ),
    ] {
        let (mut child, _) = stage.online(forward, &[&[user], command].concat()).await;
        expect_echo(stage.dial(id), 1000).await;
        child.kill().await.unwrap();
        // Afterwards the next client has the endpoint alone.
        soon(async {
            while stage.bindings.count(id) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

/// The user and the server, for a client with a command.
const TO: &str = "v2@127.0.0.1";

/// Each error that a client can cause: key, forward, further arguments, code.
const REFUSED: &[(&str, &str, &[&str], u16)] = &[
    (
        "known",
        "0",
        &["-o", "PubkeyAuthentication=no", TO, "http"],
        1100,
    ),
    ("unknown", "0", &[TO, "http"], 1102),
    ("rsa", "0", &[TO, "http"], 1100),
    ("known", "0", &["-R", "444:127.0.0.1:1", TO, "http"], 1105),
    ("known", "0", &["v9@127.0.0.1", "http"], 1106),
    ("known", "0", &[TO], 1107),
    ("known", "0", &[TO, "bash"], 1108),
    ("known", "0", &[TO, "http", "--no-such"], 1109),
    ("known", "0", &["-N", TO], 1111),
    ("known", "", &[TO, "http"], 1112),
    (
        "known",
        "a.test:7",
        &[TO, "tcp", "--remote-addr", "b.test:8"],
        1114,
    ),
    (
        "known",
        "7000",
        &[TO, "tcp", "--remote-addr", "b.test:8"],
        1115,
    ),
    ("known", "7000", &[TO, "tcp"], 1116),
    ("known", "a.test:0", &[TO, "tcp"], 1117),
    (
        "known",
        "a.test:443",
        &[TO, "http", "--hostname", "b.test"],
        1118,
    ),
    (
        "known",
        "a.test:443",
        &[TO, "http", "--subdomain", "b"],
        1119,
    ),
    (
        "known",
        "0",
        &[TO, "http", "--hostname", "a.test", "--subdomain", "b"],
        1120,
    ),
    ("known", "0", &[TO, "http", "--proxy-proto", "1"], 1123),
];

/// Error codes that need more than one command line. The tests below and those of the API cover them.
const ELSEWHERE: [u16; 4] = [1101, 1104, 1121, 1122];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_code_of_ssh_is_answered() {
    let listed: BTreeSet<u16> = REFUSED.iter().map(|row| row.3).chain(ELSEWHERE).collect();
    let rows = culvert_base::refusal::CODES.iter().map(|row| row.number);
    let of_ssh: BTreeSet<u16> = rows
        .filter(|number| (1100..1200).contains(number))
        .collect();
    assert_eq!(listed, of_ssh);
    let Some(stage) = start().await else { return };
    assert!(generate("rsa", &stage.path("rsa")));
    for (key, forward, rest, number) in REFUSED {
        let (code, text) = stage.refused(key, forward, rest).await;
        // A client without a command receives the error when the connection ends.
        let expected = if *number == 1111 { 255 } else { 1 };
        assert_eq!(code, Some(expected), "{number}: {text}");
        let said = format!("ERR_NGROK_{number}");
        assert!(text.contains(&said), "{number}: {text}");
    }
    // A client without keyboard-interactive authentication receives no explanation.
    let silent = ["-o", "KbdInteractiveAuthentication=no", TO, "http"];
    let (code, text) = stage.refused("unknown", "0", &silent).await;
    assert_eq!(code, Some(255));
    assert!(text.contains("Permission denied"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ninth_key_is_one_too_many() {
    let Some(stage) = start().await else { return };
    let names: Vec<String> = (0..8).map(|nth| format!("other{nth}")).collect();
    let mut keys = Vec::new();
    for name in &names {
        assert!(generate("ed25519", &stage.path(name)));
        keys.extend(["-i".to_owned(), stage.path(name).display().to_string()]);
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let rest = [&keys[..], &[TO, "http"]].concat();
    let (code, text) = stage.refused("unknown", "0", &rest).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("ERR_NGROK_1101"), "{text}");
    // The eighth key may be the right one.
    let known = stage.path("known").display().to_string();
    let rest = [&keys[4..], &["-i", &known, TO, "http", "--help"]].concat();
    let output = soon(stage.ssh("unknown", "0", &rest).output()).await;
    assert_eq!(output.unwrap().status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_connection_serves_one_command() {
    let Some(mut stage) = start().await else {
        return;
    };
    let socket = stage.path("shared").display().to_string();
    let (mut child, _) = stage
        .online("a.test:443", &["-M", "-S", &socket, TO, "http"])
        .await;
    for _ in 0..3 {
        let (code, text) = stage
            .refused("known", "", &["-S", &socket, TO, "http"])
            .await;
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("ERR_NGROK_1104"), "{text}");
    }
    expect_echo(stage.dial("ep_a.test"), 1000).await;
    assert_eq!(stage.until(|_| true).await.wanted.len(), 1);
    child.kill().await.unwrap();
}

/// Options of a certificate, and the expected outcome: a line of output, or of the error.
const CERTIFICATES: &[(&[&str], Result<&str, &str>)] = &[
    (&["-O", "permit-port-forwarding"], Ok("https://random.test")),
    (&["-n", "v2,ann"], Ok("https://random.test")),
    (
        &["-O", "source-address=127.0.0.0/8"],
        Ok("https://random.test"),
    ),
    (
        &["-O", "force-command=tls --metadata forced"],
        Ok("tls://random.test"),
    ),
    (&["-V", "+1h"], Ok("https://random.test")),
    (&["-n", "ann"], Err("as a principal")),
    (
        &["-O", "source-address=192.0.2.0/24"],
        Err("source address"),
    ),
    (&["-O", "clear"], Err("permit-port-forwarding")),
    (
        &["-O", "critical:other@example.test=1"],
        Err("critical option"),
    ),
    (&["-V", "-2h:-1h"], Err("ERR_NGROK_1102")),
    (&["-h"], Err("ERR_NGROK_1102")),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_log_in_as_far_as_they_say() {
    let Some(stage) = start().await else { return };
    for (nth, (options, expected)) in CERTIFICATES.iter().enumerate() {
        let name = format!("guest{nth}");
        assert!(generate("ed25519", &stage.path(&name)));
        let signed = std::process::Command::new("ssh-keygen")
            .args(["-q", "-I", "test", "-s"])
            .arg(stage.path("known"))
            .args(*options)
            .arg(stage.path(&name).with_extension("pub"))
            .status();
        assert!(signed.unwrap().success(), "{options:?}");
        let mut client = stage.ssh(&name, "0", &[TO, "http"]);
        match expected {
            Ok(url) => {
                let mut child = client.spawn().unwrap();
                let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
                let mut said = String::new();
                while !said.starts_with("Forwarding") {
                    let line = soon(lines.next_line()).await.unwrap();
                    said = line.unwrap_or_else(|| panic!("{options:?} is refused"));
                }
                assert!(said.ends_with(url), "{options:?}: {said}");
                child.kill().await.unwrap();
            }
            Err(why) => {
                let output = soon(client.output()).await.unwrap();
                let text = String::from_utf8(output.stderr).unwrap();
                assert_eq!(output.status.code(), Some(1), "{options:?}: {text}");
                assert!(text.contains(why), "{options:?}: {text}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn help_lists_what_a_client_may_ask_for() {
    let Some(stage) = start().await else { return };
    let help = stage
        .ssh("known", "0", &["v2@127.0.0.1", "http", "--help"])
        .output();
    let help = soon(help).await.unwrap();
    assert_eq!(help.status.code(), Some(0));
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("--basic-auth")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_ends_sessions() {
    let Some(mut stage) = start().await else {
        return;
    };
    let (child, _) = stage.online("0", &["v2@127.0.0.1", "http"]).await;
    let update = Command::Update(UpdateRequest::default());
    for (command, number) in [(Command::Restart, 1122), (update, 1121)] {
        let said = stage.bindings.command("ts_0", &command).await;
        let Err(CommandError::Unsupported(why)) = said else {
            panic!("{said:?}");
        };
        assert!(why.contains(&number.to_string()), "{why}");
    }
    assert_eq!(
        soon(stage.bindings.command("ts_0", &Command::Stop)).await,
        Ok(())
    );
    let output = soon(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255));

    let (child, _) = stage.online("0", &["v2@127.0.0.1", "http"]).await;
    assert!(stage.bindings.hang_up("ts_1", "credential deleted"));
    let output = soon(child.wait_with_output()).await.unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("credential deleted"), "{text}");

    let (child, _) = stage.online("0", &["v2@127.0.0.1", "http"]).await;
    stage.stop.cancel();
    soon(child.wait_with_output()).await.unwrap();
    soon(stage.tasks.join_next()).await;
    let seen = stage.until(|seen| seen.ends.len() == 3).await;
    assert_eq!(seen.ends[0], EndReason::Closed);
    assert_eq!(
        seen.ends[1],
        EndReason::Stopped("credential deleted".into())
    );
    assert_eq!(seen.ends[2], EndReason::shutdown());
}

/// Algorithms that the audit warns about but that are kept, for the reasons in `docs/how-to/ssh.md`.
const ACCEPTED: [&str; 2] = ["curve25519-sha256", "curve25519-sha256@libssh.org"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_finds_nothing_beyond_what_is_accepted() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/python-clients/ssh_audit/bin/ssh-audit");
    let Some(stage) = start().await else { return };
    if !program.exists() {
        culvert_testing::ignore(
            "no Python environment for `ssh_audit`; scripts/python-clients makes it",
        );
        return;
    }
    let audit = tokio::process::Command::new(program)
        .args([
            "--level",
            "warn",
            "--skip-rate-test",
            "--no-colors",
            "--batch",
        ])
        .arg(stage.address.to_string())
        .stdin(Stdio::null())
        .output();
    let said = String::from_utf8(soon(audit).await.unwrap().stdout).unwrap();
    println!("{said}");
    for line in said.lines() {
        let is_accepted = ACCEPTED
            .iter()
            .any(|name| line.starts_with(&format!("(kex) {name} ")));
        // Warnings are accepted only on the line that names an accepted algorithm.
        assert!(!line.contains("[fail]"), "{line}");
        assert!(!line.contains("[warn]") || is_accepted, "{line}");
    }
}

/// The answer to a client comes after 15 seconds, and the client's connection to its service succeeds later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_opens_too_late_is_closed() {
    let Some(mut stage) = start().await else {
        return;
    };
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    stage.service = listener.local_addr().unwrap();
    // The kernel takes one more than asked for, and lets further ones wait.
    let mut first = Vec::new();
    for _ in 0..2 {
        first.push(soon(TcpStream::connect(stage.service)).await.unwrap());
    }
    let (_child, _) = stage.online("0", &[TO, "tcp"]).await;
    let mut stream = stage.dial("ep_random.test");
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.is_empty());

    let mut late = loop {
        let (socket, from) = soon(listener.accept()).await.unwrap();
        if first.iter().all(|it| it.local_addr().unwrap() != from) {
            break socket;
        }
    };
    soon(late.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.is_empty());
}

/// A service that sends bytes without end after `b`, and a word after anything else.
async fn large_and_small(tasks: &mut JoinSet<()>) -> (SocketAddr, watch::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let sent = watch::Sender::new(0);
    let count = sent.subscribe();
    tasks.spawn(async move {
        let mut answers = JoinSet::new();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let sent = sent.clone();
            answers.spawn(async move {
                if socket.read_u8().await.is_ok_and(|it| it == b'b') {
                    while socket.write_all(&[7; 10_000]).await.is_ok() {
                        sent.send_modify(|it| *it += 10_000);
                    }
                } else {
                    socket.write_all(b"small").await.ok();
                }
            });
        }
    });
    (address, count)
}

/// A client that reads 100 kB in each second.
async fn read_steadily(mut stream: Stream, read: watch::Sender<usize>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    let mut bytes = [0; 5_000];
    loop {
        ticks.tick().await;
        stream.read_exact(&mut bytes).await.unwrap();
        read.send_modify(|it| *it += bytes.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_stays_and_others_are_answered() {
    let Some(mut stage) = start().await else {
        return;
    };
    let (service, mut sent) = large_and_small(&mut stage.tasks).await;
    stage.service = service;
    let (_child, _) = stage.online("0", &[TO, "tcp"]).await;
    let mut large = stage.dial("ep_random.test");
    large.write_all(b"b").await.unwrap();
    let read = watch::Sender::new(0);
    let mut progress = read.subscribe();
    stage.tasks.spawn(read_steadily(large, read));
    // Until everything between the service and the reader is full.
    soon(sent.wait_for(|it| *it > 8 << 20)).await.unwrap();
    loop {
        let before = *sent.borrow();
        tokio::time::sleep(Duration::from_millis(500)).await;
        if *sent.borrow() < before + 1_000_000 {
            break;
        }
    }
    let (mut took, mut slowest) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..12 {
        let began = Instant::now();
        let mut small = stage.dial("ep_random.test");
        let mut answer = Vec::new();
        soon(async {
            small.write_all(b"s").await.unwrap();
            small.read_to_end(&mut answer).await.unwrap();
        })
        .await;
        assert_eq!(answer, b"small");
        took += began.elapsed();
        slowest = slowest.max(began.elapsed());
        // The reader goes on meanwhile, for longer than it takes to be seen as stalled.
        let before = *progress.borrow();
        soon(progress.wait_for(|it| *it > before + 100_000))
            .await
            .unwrap();
    }
    assert!(
        took < Duration::from_secs(18),
        "{took:?}, at most {slowest:?}"
    );
}
