//! The witness of transparency logs as a real process: keys of logs that change, a state that is lost, hostile requests and
//! connections, and TLS. And the output for a proof that a hostile log made.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::{CertificateDer, ServerName};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use crate::harness::{RawAnswer, binary, eventually, raw};

const ORIGIN: &str = "log.test/audit/ac_1";

/// A log that makes what heads it likes.
struct Log {
    /// Its key, as `culvert audit key` prints it.
    key: String,
    /// Makes the signature line of a head.
    signer: Box<dyn Fn(&str) -> String>,
}

impl Log {
    /// With a new key in a file of this name.
    fn new(folder: &TempDir, file: &str) -> Self {
        let (path, entropy) = (folder.path().join(file), culvert_base::OsEntropy);
        let key = culvert_installation::audit_key::make(&path, ORIGIN, &entropy).unwrap();
        Self {
            key: key.verifier().to_string(),
            signer: Box::new(move |text| key.sign(text, 0).to_string()),
        }
    }

    fn sign(&self, text: &str) -> String {
        (self.signer)(text)
    }
}

/// The root of a tree with two leaves, which begins with the tree of one leaf if both have the same first one.
struct Roots {
    one: [u8; 32],
    two: [u8; 32],
    /// The proof that `two` extends `one`.
    second: [u8; 32],
}

fn leaf(bytes: &[u8]) -> [u8; 32] {
    Sha256::new()
        .chain_update([0])
        .chain_update(bytes)
        .finalize()
        .into()
}

fn roots(first: &[u8], second: &[u8]) -> Roots {
    let (one, second) = (leaf(first), leaf(second));
    let two = Sha256::new()
        .chain_update([1])
        .chain_update(one)
        .chain_update(second);
    Roots {
        one,
        two: two.finalize().into(),
        second,
    }
}

/// The text of a head.
fn head(size: u64, root: [u8; 32]) -> String {
    format!("{ORIGIN}\n{size}\n{}\n", STANDARD.encode(root))
}

/// The body of a request to the witness.
fn request(old: u64, proof: &[[u8; 32]], text: &str, lines: &[String]) -> String {
    let proof: String = proof.iter().map(|it| STANDARD.encode(it) + "\n").collect();
    format!("old {old}\n{proof}\n{text}\n{}\n", lines.join("\n"))
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = binary().args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A witness process with its folder.
struct Witness {
    folder: TempDir,
    child: Option<Child>,
    address: SocketAddr,
    key: String,
}

impl Witness {
    fn start(options: &[&str]) -> Self {
        let mut witness = Self {
            folder: tempfile::tempdir().unwrap(),
            child: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            key: String::new(),
        };
        witness.serve(options).unwrap();
        witness
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("witness-state.json")
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = binary();
        command
            .args(["witness", "serve", "--name", "witness.test/1"])
            .args(["--listen", "127.0.0.1:0", "--state", text(&self.state())])
            .args(["--key-file", text(&self.folder.path().join("witness.key"))])
            .args(options);
        command
    }

    /// Starts the process.
    ///
    /// # Errors
    /// Its complaint, if it ends.
    fn serve(&mut self, options: &[&str]) -> Result<(), String> {
        let log = self.folder.path().join("complaints");
        let mut child = self
            .command(options)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let Some(Ok(key)) = lines.next() else {
            assert_eq!(child.wait().unwrap().code(), Some(1));
            return Err(std::fs::read_to_string(&log).unwrap());
        };
        self.key = key.strip_prefix("key of the witness: ").unwrap().to_owned();
        let url = lines.next().unwrap().unwrap();
        let (_, address) = url.split_once("://").unwrap();
        self.address = address.parse().unwrap();
        self.child = Some(child);
        Ok(())
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }

    fn complaints(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("complaints")).unwrap()
    }

    /// Runs `culvert witness` on the state.
    fn change(&self, arguments: &[&str]) -> i32 {
        let state = self.state();
        run(&[&["witness"], arguments, &["--state", text(&state)]].concat()).0
    }

    async fn send(&self, body: &str) -> RawAnswer {
        raw(self.address, posted(body).as_bytes()).await
    }

    /// The latest head that it serves.
    async fn latest(&self) -> String {
        let digest: String = Sha256::digest(ORIGIN)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let request =
            format!("GET /{digest}/checkpoint HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = raw(self.address, request.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop();
    }
}

fn posted(body: &str) -> String {
    format!(
        "POST /add-checkpoint HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_and_a_removed_log_are_trusted_no_more() {
    let witness = Witness::start(&[]);
    let keys = [
        Log::new(&witness.folder, "1"),
        Log::new(&witness.folder, "2"),
        Log::new(&witness.folder, "3"),
    ];
    let names = keys.each_ref().map(|log| log.key.as_str());
    assert_eq!(witness.change(&["add", names[0]]), 0);
    let roots = roots(b"a", b"b");
    let one = head(1, roots.one);
    let signed_by = |n: usize, text: &str| keys[n].sign(text);
    let first = request(0, &[], &one, &[signed_by(0, &one)]);
    assert_eq!(witness.send(&first).await.status, 200);

    // The successor is added before the rotation, which signs the last head with both.
    assert_eq!(witness.change(&["add", names[1]]), 0);
    let by = |n: usize| request(1, &[], &one, &[signed_by(n, &one)]);
    assert_eq!(witness.send(&by(0)).await.status, 200);
    let both = request(1, &[], &one, &[signed_by(0, &one), signed_by(1, &one)]);
    assert_eq!(witness.send(&both).await.status, 200);
    assert_eq!(witness.send(&by(0)).await.status, 403);
    assert_eq!(witness.send(&by(1)).await.status, 200);

    // A stolen key: another one in its place, immediately.
    assert_eq!(witness.change(&["add", names[2], "--replace"]), 0);
    assert_eq!(witness.send(&by(1)).await.status, 403);
    assert_eq!(witness.send(&by(2)).await.status, 200);

    assert_eq!(witness.change(&["remove", ORIGIN]), 0);
    assert_eq!(witness.change(&["remove", ORIGIN]), 1);
    assert_eq!(witness.send(&by(2)).await.status, 404);
    // Added again, it has the history that it had.
    assert_eq!(witness.change(&["add", names[2]]), 0);
    let again = request(0, &[], &one, &[signed_by(2, &one)]);
    let answer = witness.send(&again).await;
    assert_eq!(answer.status, 409, "{}", answer.text);
    assert!(answer.text.ends_with("\r\n\r\n1\n"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_witness_without_its_state_signs_nothing() {
    let mut witness = Witness::start(&[]);
    let log = Log::new(&witness.folder, "1");
    let name = log.key.clone();
    assert_eq!(witness.change(&["add", &name]), 0);
    let body = |root| {
        let text = head(1, root);
        request(0, &[], &text, &[log.sign(&text)])
    };
    let fork = body(leaf(b"b"));
    assert_eq!(witness.send(&body(leaf(b"a"))).await.status, 200);

    // Lost while it runs, and the log added again.
    std::fs::remove_file(witness.state()).unwrap();
    assert_eq!(witness.send(&fork).await.status, 500);
    assert_eq!(witness.change(&["add", &name]), 0);
    assert_eq!(witness.send(&fork).await.status, 500);
    witness.stop();
    for _ in 0..2 {
        let refused = witness.serve(&[]).unwrap_err();
        assert!(refused.contains("--new-state"), "{refused}");
        drop(std::fs::remove_file(witness.state()));
    }

    // The operator knows what they do. Later starts need no option.
    witness.serve(&["--new-state"]).unwrap();
    witness.stop();
    witness.serve(&[]).unwrap();
    assert_eq!(witness.change(&["add", &name]), 0);
    assert_eq!(witness.send(&fork).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_two_heads_of_one_size_accuse_a_log() {
    let witness = Witness::start(&[]);
    let log = Log::new(&witness.folder, "1");
    assert_eq!(witness.change(&["add", &log.key]), 0);
    let (known, other) = (roots(b"a", b"b"), roots(b"c", b"d"));
    let signed = |old, proof: &[[u8; 32]], text: &str| request(old, proof, text, &[log.sign(text)]);
    let first = signed(0, &[], &head(1, known.one));
    assert_eq!(witness.send(&first).await.status, 200);
    // Anyone can send a true head with junk for its proof.
    let junk = signed(1, &[other.second], &head(2, known.two));
    assert_eq!(witness.send(&junk).await.status, 422);
    let unproven = signed(1, &[other.second], &head(2, other.two));
    assert_eq!(witness.send(&unproven).await.status, 422);
    // Nor does another's signature say anything about the log.
    let stranger = Log::new(&witness.folder, "2");
    let text = head(1, other.one);
    let forged = request(1, &[], &text, &[stranger.sign(&text)]);
    assert_eq!(witness.send(&forged).await.status, 403);
    assert_eq!(witness.complaints(), "");

    let fork = signed(1, &[], &text);
    assert_eq!(witness.send(&fork).await.status, 422);
    let complaints = witness.complaints();
    assert_eq!(complaints.lines().count(), 1, "{complaints}");
    for root in [known.one, other.one] {
        assert!(complaints.contains(&STANDARD.encode(root)), "{complaints}");
    }
    // And it goes on with the history that it knows.
    let next = signed(1, &[known.second], &head(2, known.two));
    assert_eq!(witness.send(&next).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn signatures_of_strangers_are_not_kept() {
    let witness = Witness::start(&[]);
    let [log, stranger] = [
        Log::new(&witness.folder, "1"),
        Log::new(&witness.folder, "2"),
    ];
    assert_eq!(witness.change(&["add", &log.key]), 0);
    let one = head(1, leaf(b"a"));
    let lines = [
        stranger.sign(&one),
        format!("\u{2014} witness.big/1 {}", STANDARD.encode([7; 76])),
        log.sign(&one),
    ];
    let answer = witness.send(&request(0, &[], &one, &lines)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let (_, own) = answer.text.split_once("\r\n\r\n").unwrap();
    assert_eq!(
        witness.latest().await,
        format!("{one}\n{}\n{own}", lines[2])
    );
    let state = std::fs::read_to_string(witness.state()).unwrap();
    assert!(!state.contains("witness.big"), "{state}");
}

/// A connection from this address of the machine.
async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(to).await.unwrap()
}

/// Clients that open connections and send nothing, or half a head, delay no other.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_keep_a_log_out() {
    let witness = Witness::start(&[]);
    let log = Log::new(&witness.folder, "1");
    assert_eq!(witness.change(&["add", &log.key]), 0);
    let one = head(1, leaf(b"a"));
    let body = posted(&request(0, &[], &one, &[log.sign(&one)]));
    let (head, rest) = body.split_at(40);
    // The honest client is there first, and slow.
    let mut honest = connect([127, 0, 9, 1], witness.address).await;
    honest.write_all(head.as_bytes()).await.unwrap();
    let mut hostile = Vec::new();
    for n in 0..400_u32 {
        let network = if n % 4 == 0 { 2 } else { 1 };
        let mut stream = connect([127, 0, network, 1], witness.address).await;
        if n % 2 == 0 {
            drop(stream.write_all(b"POST /add-checkpoint HTT").await);
        }
        hostile.push(stream);
    }
    // Sooner than the silent ones are closed for being slow.
    let answered = tokio::time::timeout(Duration::from_secs(8), async {
        honest.write_all(rest.as_bytes()).await.unwrap();
        let mut answer = String::new();
        honest.read_to_string(&mut answer).await.unwrap();
        let second = connect([127, 0, 9, 1], witness.address).await;
        (answer, ask(second, &body).await)
    });
    let (first, second) = answered.await.unwrap();
    assert!(first.starts_with("HTTP/1.1 200 "), "{first}");
    assert!(second.starts_with("HTTP/1.1 409 "), "{second}");
}

async fn ask(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // TLS without its end is as good here.
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Writes a new certificate and its key.
fn renew(folder: &Path) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["witness.test".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    certificate.der().clone()
}

/// The response over TLS; `None` if the certificate is another one.
async fn ask_tls(to: SocketAddr, root: &CertificateDer<'static>, request: &str) -> Option<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("witness.test").unwrap();
    let stream = TcpStream::connect(to).await.unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await;
    Some(ask(stream.ok()?, request).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_witness_serves_over_tls_and_reads_its_certificate_again() {
    let folder = tempfile::tempdir().unwrap();
    let first = renew(folder.path());
    let files = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let options = [
        "--tls-certificate",
        text(&files[0]),
        "--tls-key",
        text(&files[1]),
    ];
    let witness = Witness::start(&options);
    let log = Log::new(&witness.folder, "1");
    assert_eq!(witness.change(&["add", &log.key]), 0);
    let one = head(1, leaf(b"a"));
    let body = posted(&request(0, &[], &one, &[log.sign(&one)]));
    let answer = ask_tls(witness.address, &first, &body).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let name = witness.key.split('+').next().unwrap();
    assert!(answer.contains(&format!("\u{2014} {name} ")), "{answer}");

    // Plain requests have no response.
    let mut stream = TcpStream::connect(witness.address).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut plain = Vec::new();
    drop(stream.read_to_end(&mut plain).await);
    assert!(!plain.starts_with(b"HTTP"));

    let hang_up = || {
        let id = witness.child.as_ref().unwrap().id().to_string();
        let kill = Command::new("kill").args(["-s", "HUP", &id]).status();
        assert!(kill.unwrap().success());
    };
    std::fs::write(&files[0], "no certificate").unwrap();
    hang_up();
    eventually("it says that it keeps the old one", async || {
        witness.complaints().contains("the old certificate stays")
    })
    .await;
    assert!(ask_tls(witness.address, &first, &body).await.is_some());
    let second = renew(folder.path());
    hang_up();
    eventually("the new certificate is presented", async || {
        ask_tls(witness.address, &second, &body).await.is_some()
    })
    .await;
    assert!(ask_tls(witness.address, &first, &body).await.is_none());
    // One file alone is no certificate.
    assert_eq!(run(&["witness", "serve", options[0], options[1]]).0, 2);
}

/// The bytes of a row of the audit log.
fn row(texts: [&str; 5]) -> Vec<u8> {
    let [id, account, kind, audience, body] = texts;
    let mut bytes = vec![0; 32];
    bytes.extend(1_i64.to_be_bytes());
    let text = |text: &str| [&(text.len() as u64).to_be_bytes(), text.as_bytes()].concat();
    for part in [id, account, kind] {
        bytes.extend(text(part));
    }
    bytes.extend(0_i64.to_be_bytes());
    for part in [audience, body] {
        bytes.extend(text(part));
    }
    bytes
}

/// Who makes a log writes what they like into it.
#[test]
fn a_checked_proof_sends_nothing_to_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::new(&folder, "1");
    let body = "{\"a\":\"\u{9b}2J\u{7f}\u{202e}\"}\u{1b}]0;title\u{7}\nthe proof holds: event=ev_2";
    let row = row(["ev_1\u{1b}[2K\r", "ac_1", "kind\nother", "[]", body]);
    let proof = |text: &str, line: String| {
        let row = STANDARD.encode(&row);
        format!("c2sp.org/tlog-proof@v1\nextra {row}\nindex 0\n\n{text}\n{line}\n")
    };
    let file = folder.path().join("proof");
    let check = || {
        run(&[
            "audit",
            "check-proof",
            text(&file),
            "--origin-key",
            &log.key,
        ])
    };
    let one = head(1, leaf(&row));
    std::fs::write(&file, proof(&one, log.sign(&one))).unwrap();
    let (code, out, error) = check();
    assert_eq!(code, 0, "{error}");
    let lines: Vec<&str> = out.lines().collect();
    let [line, event] = lines[..] else {
        panic!("{out:?}");
    };
    assert!(line.starts_with("the proof holds: event=ev_1\\u{1b}[2K\\u{d} type=kind\\u{a}other "));
    assert_eq!(
        event,
        "{\"a\":\"\\u009b2J\\u007f\\u202e\"}\\u001b]0;title\\u0007\\u000athe proof holds: event=ev_2"
    );
    // Also if the proof does not hold.
    let strange = one.replace(ORIGIN, "log\u{9b}2J.test");
    std::fs::write(&file, proof(&strange, log.sign(&strange))).unwrap();
    let (code, out, error) = check();
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(error.contains("log\\u{9b}2J.test"), "{error}");
}
