//! Proofs of audit events, on the command line, over the API and without a server; and histories that were written again.

use std::path::Path;

use culvert::config::Settings;
use culvert_tlog::{SignedCheckpoint, VerifierKey};
use http::Method;
use serde_json::{Value, json};

use crate::audit_log::{execute, offline};
use crate::harness::{Harness, backends, binary, eventually, raw};
use crate::kill::Process;

/// Runs a command that needs no data.
pub fn alone(arguments: &[&str]) -> (i32, String, String) {
    let output = binary().args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

/// The output of a command on the installation, once it succeeds.
pub async fn once(settings: &Settings, arguments: &[&str]) -> String {
    let mut found = String::new();
    eventually("the command succeeds", async || {
        let (code, out, _) = offline(settings, arguments);
        found = out;
        code == 0
    })
    .await;
    found
}

pub fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_proven_without_the_server() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let settings = culvert.settings.clone();
        culvert
            .create("api_keys", json!({"description": "d"}))
            .await;
        let found = culvert
            .call(Method::GET, "/events?type=api_key_created.v0", None)
            .await;
        let id = found.body["events"][0]["event"]["event_id"]
            .as_str()
            .unwrap()
            .to_owned();

        let proof = once(&settings, &["audit", "prove", &id]).await;
        let key = once(&settings, &["audit", "key"]).await;
        let key = key.trim();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("event.tlog-proof");
        std::fs::write(&file, &proof).unwrap();
        let check = |file: &Path, key: &str| {
            alone(&["audit", "check-proof", path(file), "--origin-key", key])
        };
        let (code, out, error) = check(&file, key);
        assert_eq!(code, 0, "{error}");
        let (line, event) = out.split_once('\n').unwrap();
        assert!(
            line.starts_with(&format!(
                "the proof holds: event={id} type=api_key_created.v0 position="
            )),
            "{out}"
        );
        let event: Value = serde_json::from_str(event).unwrap();
        assert_eq!(event, found.body["events"][0]["event"]);

        // With a changed bit, another key, or a witness that did not sign.
        let changed = folder.path().join("changed");
        for at in (0..proof.len()).step_by(97) {
            let mut bytes = proof.clone().into_bytes();
            bytes[at] ^= 1;
            std::fs::write(&changed, bytes).unwrap();
            let (code, out, _) = check(&changed, key);
            assert_eq!((code, out.as_str()), (1, ""), "byte {at}");
        }
        let other = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";
        assert_eq!(check(&file, other).0, 1);
        assert_eq!(alone(&["audit", "check-proof", path(&file)]).0, 2);
        let arguments = [
            "audit",
            "check-proof",
            path(&file),
            "--origin-key",
            key,
            "--quorum",
            "1",
        ];
        assert_eq!(alone(&arguments).0, 2);

        // Over the API: the same event in the same tree or a later one.
        let served = culvert
            .call(Method::GET, &format!("/events/{id}/proof"), None)
            .await;
        assert_eq!(served.status, 200, "{served:?}");
        std::fs::write(&changed, served.body["proof"].as_str().unwrap()).unwrap();
        assert_eq!(check(&changed, key).0, 0);
        assert!(key.starts_with(served.body["origin"].as_str().unwrap()));
        let absent = format!("/events/ev_{}/proof", "0".repeat(27));
        assert_eq!(culvert.call(Method::GET, &absent, None).await.status, 404);
        tree_is_served(&culvert).await;
        culvert.stop().await;
    }
}

/// Checkpoint and tiles, for a key only.
async fn tree_is_served(culvert: &Harness) {
    let address = culvert
        .api
        .strip_prefix("http://")
        .unwrap()
        .parse()
        .unwrap();
    let ask = async |path: &str, token: &str| {
        let authorization = match token {
            "" => String::new(),
            token => format!("authorization: Bearer {token}\r\n"),
        };
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\n{authorization}connection: close\r\n\r\n");
        raw(address, request.as_bytes()).await
    };
    let token = culvert.token.as_str();
    let checkpoint = ask("/audit/log/checkpoint", token).await;
    assert_eq!(checkpoint.status, 200, "{}", checkpoint.text);
    assert!(
        checkpoint.text.contains("text/plain"),
        "{}",
        checkpoint.text
    );
    let (_, body) = checkpoint.text.split_once("\r\n\r\n").unwrap();
    let size: usize = body.lines().nth(1).unwrap().parse().unwrap();
    let tile = ask(&format!("/audit/log/tile/0/000.p/{size}"), token).await;
    assert_eq!(tile.status, 200);
    assert!(
        tile.text
            .contains(&format!("content-length: {}\r\n", 32 * size)),
        "{}",
        tile.text
    );
    // It grows.
    assert!(tile.text.contains("no-store"), "{}", tile.text);
    for path in [
        "tile/0/000",
        "tile/0/001",
        "tile/9/000",
        "tile/entries/000",
        "tile/0/0",
        "key",
        "tile/../checkpoint",
    ] {
        assert_eq!(
            ask(&format!("/audit/log/{path}"), token).await.status,
            404,
            "{path}"
        );
    }
    for path in ["checkpoint", "tile/0/000.p/1"] {
        assert_eq!(
            ask(&format!("/audit/log/{path}"), "").await.status,
            401,
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tree_is_public_if_the_settings_say_so() {
    let backend = crate::harness::Backend::Sqlite;
    let culvert = Harness::start_with(&backend, |settings| settings.audit.public_log = true).await;
    let address = culvert
        .api
        .strip_prefix("http://")
        .unwrap()
        .parse()
        .unwrap();
    let request = b"GET /audit/log/checkpoint HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    eventually("the first head is there", async || {
        raw(address, request).await.status == 200
    })
    .await;
    let request = b"GET /audit/log/tile/0/000.p/1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(raw(address, request).await.status, 200);
    // An address without a key reads at a rate. A caller with a key is not concerned.
    let one = "GET /audit/log/checkpoint HTTP/1.1\r\nhost: x\r\n";
    let many = format!("{one}\r\n").repeat(200) + one + "connection: close\r\n\r\n";
    eventually("the address reads too often", async || {
        let text = raw(address, many.as_bytes()).await.text;
        text.contains("HTTP/1.1 429 ") && text.to_lowercase().contains("retry-after: ")
    })
    .await;
    let with_key = format!(
        "{one}authorization: Bearer {}\r\nngrok-version: 2\r\nconnection: close\r\n\r\n",
        culvert.token
    );
    assert_eq!(raw(address, with_key.as_bytes()).await.status, 200);
    culvert.stop().await;
}

/// An auditor keeps a head. An attacker with database and keys writes the history again, with a tree that fits.
#[tokio::test(flavor = "multi_thread")]
async fn an_auditor_with_a_head_finds_a_history_that_was_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = Settings {
        data_dir: data.clone(),
        ..Settings::default()
    };
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = culvert::client::Client::new(&server.api, token).unwrap();
    for n in 0..5 {
        let body = json!({"description": format!("key {n}")});
        client
            .expect(Method::POST, "/api_keys", Some(&body))
            .await
            .unwrap();
    }
    // The last head has everything.
    assert_eq!(server.terminate(), 0);
    let kept = folder.path().join("kept");
    let head = once(&settings, &["audit", "checkpoint"]).await;
    std::fs::write(&kept, &head).unwrap();
    let verify = |more: &[&str]| {
        offline(
            &settings,
            &[&["audit", "verify", "--checkpoint", path(&kept)][..], more].concat(),
        )
    };
    let (code, out, error) = verify(&[]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("the same history"), "{out}");
    let (_, audit, _) = offline(&settings, &["audit", "verify", "--rebuild"]);
    assert!(
        audit.contains("the tree is that of the log: leaves="),
        "{audit}"
    );

    // A later head extends it.
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = culvert::client::Client::new(&server.api, token).unwrap();
    client
        .expect(Method::POST, "/api_keys", Some(&json!({})))
        .await
        .unwrap();
    assert_eq!(server.terminate(), 0);
    let key = once(&settings, &["audit", "key"]).await;
    let (code, out, error) = verify(&["--origin-key", key.trim()]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("were added"), "{out}");

    // A changed row alone is found with its position.
    execute(
        &settings,
        "UPDATE outbox SET body = body || ' ' WHERE seq = 3",
    )
    .await;
    let (code, _, error) = verify(&[]);
    assert_eq!((code, error.contains("event 3")), (1, true), "{error}");
    execute(
        &settings,
        "UPDATE outbox SET body = trim(body) WHERE seq = 3",
    )
    .await;
    assert_eq!(verify(&[]).0, 0);

    // Without the last rows, the server itself makes another chain and tree and are perfect.
    let export = once(&settings, &["audit", "export"]).await;
    let line: Value = serde_json::from_str(export.lines().nth(3).unwrap()).unwrap();
    let forged = format!(
        "DELETE FROM outbox WHERE seq > 4; UPDATE ledger SET outbox = 4, chained = 4, head = '{}'; \
         DELETE FROM audit_tile; UPDATE audit_tree SET size = 0, signed = 0, checkpoint = ''",
        line["hash"].as_str().unwrap()
    );
    execute(&settings, &forged).await;
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = culvert::client::Client::new(&server.api, token).unwrap();
    assert!(offline(&settings, &["audit", "verify"]).0 == 0);
    for _ in 0..9 {
        client
            .expect(Method::POST, "/api_keys", Some(&json!({})))
            .await
            .unwrap();
    }
    assert_eq!(server.terminate(), 0);
    let (code, out, error) = offline(&settings, &["audit", "verify", "--rebuild"]);
    assert_eq!(code, 0, "{out} {error}");
    let (code, _, error) = verify(&[]);
    assert_eq!(
        (code, error.contains("was rewritten")),
        (1, true),
        "{error}"
    );
}

/// A real witness process.
pub struct WitnessProcess {
    child: std::process::Child,
    pub url: String,
    pub key: String,
    pub state: std::path::PathBuf,
}

impl WitnessProcess {
    pub fn start(folder: &Path) -> Self {
        Self::start_as(folder, "witness.test/1")
    }

    pub fn start_as(folder: &Path, name: &str) -> Self {
        let state = folder.join("witness-state.json");
        let mut child = binary()
            .args([
                "witness",
                "serve",
                "--name",
                name,
                "--listen",
                "127.0.0.1:0",
            ])
            .args([
                "--state",
                path(&state),
                "--key-file",
                path(&folder.join("witness.key")),
            ])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut lines = std::io::BufRead::lines(stdout).map(Result::unwrap);
        let key = lines.next().unwrap();
        let url = lines.next().unwrap();
        Self {
            child,
            url: url
                .strip_prefix("the witness listens on ")
                .unwrap()
                .to_owned(),
            key: key.strip_prefix("key of the witness: ").unwrap().to_owned(),
            state,
        }
    }

    /// Makes the log's key, so that the witness knows it before the server starts.
    pub fn add_log(&self, data: &Path) -> String {
        culvert::keys::make_data_dir(data).unwrap();
        let file = data.join("audit.key");
        let entropy = culvert_base::OsEntropy;
        let key = culvert_installation::audit_key::make(&file, "log.test/audit/ac_1", &entropy);
        let key = key.unwrap().verifier().to_string();
        let (code, _, error) = alone(&["witness", "add", &key, "--state", path(&self.state)]);
        assert_eq!(code, 0, "{error}");
        key
    }
}

impl Drop for WitnessProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

pub async fn create_keys(server: &Process, data: &Path, n: usize) {
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = culvert::client::Client::new(&server.api, token).unwrap();
    for _ in 0..n {
        client
            .expect(Method::POST, "/api_keys", Some(&json!({})))
            .await
            .unwrap();
    }
}

/// A witness signs the heads of a server. When an older copy of the data is restored, it refuses, and the server says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_witness_refuses_a_restored_copy() {
    let folder = tempfile::tempdir().unwrap();
    let witness = WitnessProcess::start(folder.path());
    let data = folder.path().join("data");
    let origin_key = witness.add_log(&data);
    let settings = Settings {
        data_dir: data.clone(),
        ..Settings::default()
    };
    let flag = format!("{} {}", witness.url, witness.key);
    let start = || Process::start_as(binary(), &data, "", &["--audit-witnesses", &flag]);
    // A head with these events at least.
    let is_witnessed = |n_events: usize| {
        let (code, out, _) = offline(&settings, &["audit", "checkpoint"]);
        let size = out.lines().nth(1).and_then(|line| line.parse().ok());
        let has_all = size.is_some_and(|size: usize| size >= n_events);
        code == 0 && has_all && out.contains("\u{2014} witness.test/1 ")
    };

    let server = start();
    eventually("the witness signs", async || is_witnessed(1)).await;
    let export = once(&settings, &["audit", "export"]).await;
    let first: Value = serde_json::from_str(export.lines().next().unwrap()).unwrap();
    let id = first["event"]["event_id"].as_str().unwrap();
    let proof = once(&settings, &["audit", "prove", id]).await;
    let file = folder.path().join("event.tlog-proof");
    std::fs::write(&file, proof).unwrap();
    let check = [
        "audit",
        "check-proof",
        path(&file),
        "--origin-key",
        &origin_key,
    ];
    let with = [&check[..], &["--witness-key", &witness.key]].concat();
    let (code, out, error) = alone(&with);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains(" witness=witness.test/1@"), "{out}");
    assert_eq!(server.terminate(), 0);

    let older = folder.path().join("older");
    copy_folder(&data, &older);
    let server = start();
    create_keys(&server, &data, 3).await;
    assert_eq!(server.terminate(), 0);
    let export = once(&settings, &["audit", "export"]).await;
    let n_events = export.lines().count();
    let server = start();
    // A stop before the witness answered makes no head; then a later one has these events.
    eventually("the witness signs the events until the stop", async || {
        is_witnessed(n_events)
    })
    .await;
    let kept = folder.path().join("kept");
    std::fs::write(&kept, once(&settings, &["audit", "checkpoint"]).await).unwrap();
    assert_eq!(server.terminate(), 0);

    std::fs::remove_dir_all(&data).unwrap();
    copy_folder(&older, &data);
    let server = start();
    let notices = async || {
        let address = server.api.strip_prefix("http://").unwrap().parse().unwrap();
        let request = b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        raw(address, request).await.text
    };
    // The restored head was signed once; the next one is another history.
    create_keys(&server, &data, 1).await;
    eventually("the witness refuses", async || {
        notices().await.contains("knows another history")
    })
    .await;
    assert_eq!(server.terminate(), 0);
    let verify = [
        "audit",
        "verify",
        "--checkpoint",
        path(&kept),
        "--witness-key",
        &witness.key,
        "--origin-key",
        &origin_key,
    ];
    let (code, _, error) = offline(&settings, &verify);
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("restored") || error.contains("rewritten"),
        "{error}"
    );
}

/// Without its witness, a server signs as before, and says that the witness is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_witness_that_is_away_delays_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let witness = WitnessProcess::start(folder.path());
    let data = folder.path().join("data");
    witness.add_log(&data);
    let flag = format!("{} {}", witness.url, witness.key);
    drop(witness);
    let server = Process::start_as(binary(), &data, "", &["--audit-witnesses", &flag]);
    let settings = Settings {
        data_dir: data.clone(),
        ..Settings::default()
    };
    once(&settings, &["audit", "checkpoint"]).await;
    let address = server.api.strip_prefix("http://").unwrap().parse().unwrap();
    let request = b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    eventually("the notice is there", async || {
        let answer = raw(address, request).await;
        answer.status == 200 && answer.text.contains("a witness does not answer")
    })
    .await;
    assert_eq!(server.terminate(), 0);
}

/// Two nodes write, follow and sign; one is killed; all heads that were ever served are of one history.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_sign_one_tree() {
    let Some(backend) = crate::harness::cluster(2).await else {
        return;
    };
    let database = backend.database().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = ["a", "b"].map(|name| folder.path().join(name));
    let first = Process::start(&data[0], &database.url);
    let settings = Settings {
        data_dir: data[0].clone(),
        database_url: database.url.clone(),
        ..Settings::default()
    };
    once(&settings, &["audit", "checkpoint"]).await;
    culvert::keys::make_data_dir(&data[1]).unwrap();
    for name in ["master.key", "audit.key", "bootstrap-key"] {
        std::fs::copy(data[0].join(name), data[1].join(name)).unwrap();
    }
    let second = Process::start_as(
        binary(),
        &data[1],
        &database.url,
        &["--node-name", "second"],
    );
    let mut kept: Vec<String> = Vec::new();
    let mut keep = async |n_more: usize| {
        let n = kept.len() + n_more;
        eventually("there are more heads", async || {
            let (_, head, _) = offline(&settings, &["audit", "checkpoint"]);
            if !kept.contains(&head) {
                kept.push(head);
            }
            kept.len() >= n
        })
        .await;
        kept.clone()
    };
    keep(1).await;
    tokio::join!(
        create_keys(&first, &data[0], 20),
        create_keys(&second, &data[1], 20)
    );
    keep(1).await;
    first.kill();
    create_keys(&second, &data[1], 5).await;
    let kept = keep(1).await;
    assert_eq!(second.terminate(), 0);
    let mut arguments = vec![
        "audit".to_owned(),
        "verify".to_owned(),
        "--rebuild".to_owned(),
    ];
    for (n, head) in kept.iter().enumerate() {
        let file = folder.path().join(format!("head-{n}"));
        std::fs::write(&file, head).unwrap();
        arguments.extend(["--checkpoint".to_owned(), path(&file).to_owned()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (code, out, error) = offline(&settings, &arguments);
    assert_eq!(code, 0, "{error}");
    assert_eq!(out.matches("the same history").count(), kept.len(), "{out}");
    database.remove().await;
}

/// The last head of the old key is signed with both, and a running server goes on with the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_is_the_successor_of_the_old_one() {
    let culvert = Harness::start(&crate::harness::Backend::Sqlite).await;
    let settings = culvert.settings.clone();
    let kept = once(&settings, &["audit", "checkpoint"]).await;
    let old = once(&settings, &["audit", "key"]).await.trim().to_owned();
    let (code, out, error) = offline(&settings, &["admin", "rotate-audit-key"]);
    assert_eq!(code, 0, "{error}");
    let new = once(&settings, &["audit", "key"]).await.trim().to_owned();
    assert_ne!(old, new);
    assert!(out.contains(&format!("key: {new}")), "{out}");
    let (_, both) = out.split_once("\n\n").unwrap();
    assert_eq!(
        both.lines()
            .filter(|line| line.starts_with('\u{2014}'))
            .count(),
        2,
        "{out}"
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("head");
    // The running server signs with the new key as soon as there is a new event, so these are checked without its log.
    let is_by = |head: &str, key: &str| {
        let head = SignedCheckpoint::parse(head.trim_start().as_bytes()).unwrap();
        matches!(
            head.note().signed_by(&key.parse::<VerifierKey>().unwrap()),
            Ok(Some(_))
        )
    };
    assert_eq!((is_by(both, &old), is_by(both, &new)), (true, true));
    assert_eq!((is_by(&kept, &old), is_by(&kept, &new)), (true, false));
    let verify = |head: &str, keys: &[&str]| {
        std::fs::write(&file, head.trim_start()).unwrap();
        let mut arguments = vec!["audit", "verify", "--checkpoint", path(&file)];
        arguments.extend(keys.iter().flat_map(|key| ["--origin-key", key]));
        offline(&settings, &arguments).0
    };
    culvert.create("api_keys", json!({})).await;
    eventually("the new key signs alone", async || {
        let (_, head, _) = offline(&settings, &["audit", "checkpoint"]);
        verify(&head, &[&new]) == 0 && verify(&head, &[&old]) == 1
    })
    .await;
    // What the auditor kept of the old key is still the beginning of the log.
    for head in [&*kept, both] {
        assert_eq!(verify(head, &[&old, &new]), 0);
        assert_eq!(verify(head, &[&old]), 1);
    }
    assert!(!settings.data_dir.join("audit.key.next").exists());
    culvert.stop().await;
}
