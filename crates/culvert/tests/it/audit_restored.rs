//! Restored databases and removed rows: when the log is signed, how it is verified, and how an administrator continues it.

use std::path::Path;

use culvert::config::Settings;
use culvert_tlog::{KeyType, SigningKey};
use serde_json::{Value, json};

use crate::audit_log::{execute, offline};
use crate::audit_proofs::{WitnessProcess, alone, copy_folder, create_keys, once, path};
use crate::harness::{Harness, backends, binary, eventually, raw};
use crate::kill::Process;

pub fn settings_of(data: &Path) -> Settings {
    Settings {
        data_dir: data.to_owned(),
        ..Settings::default()
    }
}

pub async fn readyz(server: &Process) -> String {
    let address = server.api.strip_prefix("http://").unwrap().parse().unwrap();
    let request = b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    raw(address, request).await.text
}

pub fn checkpoint(settings: &Settings) -> String {
    let (code, head, error) = offline(settings, &["audit", "checkpoint"]);
    assert_eq!(code, 0, "{error}");
    head
}

/// The text without signatures.
fn text_of(head: &str) -> &str {
    head.split_once("\n\n").unwrap().0
}

pub fn size_of(head: &str) -> u64 {
    head.lines().nth(1).unwrap().parse().unwrap()
}

/// The events of a kind in the log, oldest first.
pub fn events(settings: &Settings, kind: &str) -> Vec<Value> {
    let (_, lines, _) = offline(settings, &["audit", "export"]);
    let events = lines.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line["event"].take()
    });
    events.filter(|event| event["event_type"] == kind).collect()
}

/// An older copy of the database, with the key and the last head of this node.
fn restore_database(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(to).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("state.db") || name.starts_with("events.db") {
            std::fs::remove_file(&path).unwrap();
        }
    }
    for name in ["state.db", "events.db"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

/// Restored, the log is not signed, through restarts and however long it grows, until an administrator acknowledges it. Then
/// it has another origin, which is accepted by name only.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_is_signed_only_as_a_continuation() {
    let folder = tempfile::tempdir().unwrap();
    let (data, older) = (folder.path().join("data"), folder.path().join("older"));
    let settings = settings_of(&data);
    assert_eq!(Process::start(&data, "").terminate(), 0);
    let early = checkpoint(&settings);
    copy_folder(&data, &older);
    let server = Process::start(&data, "");
    create_keys(&server, &data, 3).await;
    assert_eq!(server.terminate(), 0);
    let late = checkpoint(&settings);
    assert!(size_of(&late) > size_of(&early));
    let key = once(&settings, &["audit", "key"]).await.trim().to_owned();
    let origin = late.lines().next().unwrap().to_owned();
    let next = format!("{origin}+1");

    restore_database(&older, &data);
    for _ in 0..2 {
        let server = Process::start(&data, "");
        create_keys(&server, &data, 6).await;
        eventually("the restore is noticed", async || {
            readyz(&server).await.contains("acknowledge-restore")
        })
        .await;
        assert!(readyz(&server).await.contains("\"restored\""));
        assert_eq!(server.terminate(), 0);
        assert_eq!(text_of(&checkpoint(&settings)), text_of(&early));
        let restored = events(&settings, "restored.v0");
        assert_eq!(restored.len(), 1, "{restored:?}");
        assert_eq!(restored[0]["object"]["known_by"], "signed_head");
        assert_eq!(restored[0]["object"]["ended_origin"], origin);
    }

    let server = Process::start(&data, "");
    eventually("the restore is noticed again", async || {
        readyz(&server).await.contains("acknowledge-restore")
    })
    .await;
    let (code, out, error) = offline(&settings, &["admin", "acknowledge-restore"]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains(&format!("it goes on as `{next}`")), "{out}");
    eventually("the notice is gone", async || {
        !readyz(&server).await.contains("restored")
    })
    .await;
    create_keys(&server, &data, 1).await;
    assert_eq!(server.terminate(), 0);
    let continued = checkpoint(&settings);
    assert_eq!(continued.lines().next(), Some(next.as_str()));
    assert!(size_of(&continued) > size_of(&late));
    let commands = events(&settings, "admin_command.v0");
    assert_eq!(commands.len(), 1);
    assert_eq!(commands[0]["object"]["command"], "acknowledge-restore");
    let (code, _, error) = offline(&settings, &["admin", "acknowledge-restore"]);
    assert_eq!((code, error.contains("did not end")), (1, true), "{error}");

    let file = folder.path().join("head");
    let verify = |head: &str, more: &[&str]| {
        std::fs::write(&file, head).unwrap();
        let arguments = ["audit", "verify", "--checkpoint", path(&file)];
        offline(&settings, &[&arguments[..], more].concat())
    };
    let with_key = ["--origin-key", &key];
    let with_origin = [&with_key[..], &["--origin", &next]].concat();
    for more in [&[][..], &with_key] {
        let (code, _, error) = verify(&early, more);
        assert_eq!((code, error.contains(&next)), (1, true), "{error}");
    }
    let (code, out, error) = verify(&early, &with_origin);
    assert_eq!(
        (code, out.contains("the same history")),
        (0, true),
        "{error}"
    );
    let (code, out, _) = verify(&continued, &with_origin);
    assert_eq!((code, out.contains("warning:")), (0, false), "{out}");
    let (code, out, _) = offline(&settings, &["audit", "verify"]);
    assert_eq!(code, 0);
    let warning = format!("warning: the signed log is `{next}`, which continues `{origin}`");
    assert!(out.contains(&warning), "{out}");
    let (code, _, error) = verify(&late, &with_origin);
    assert_eq!((code, error.contains("rewritten")), (1, true), "{error}");

    let id = commands[0]["event_id"].as_str().unwrap().to_owned();
    let (code, proof, error) = offline(&settings, &["audit", "prove", &id]);
    assert_eq!((code, error.contains(&next)), (0, true), "{error}");
    std::fs::write(&file, proof).unwrap();
    let check = |more: &[&str]| alone(&[&["audit", "check-proof", path(&file)], more].concat());
    let (code, out, error) = check(&with_key);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(error.contains("ended") && error.contains(&next), "{error}");
    assert_eq!(check(&with_origin).0, 0);
}

/// Everything is restored, also the last head of the node. The witness alone knows of later events.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_witness_knows_is_not_forked() {
    let folder = tempfile::tempdir().unwrap();
    let witness = WitnessProcess::start(folder.path());
    let (data, older) = (folder.path().join("data"), folder.path().join("older"));
    let key = witness.add_log(&data);
    let settings = settings_of(&data);
    let flag = format!("{} {}", witness.url, witness.key);
    let start = || Process::start_as(binary(), &data, "", &["--audit-witnesses", &flag]);
    let witnessed = async || {
        eventually("the witness signed the latest head", async || {
            let (code, out, _) = offline(&settings, &["audit", "checkpoint"]);
            let head = std::fs::read_to_string(data.join("audit.head")).unwrap_or_default();
            let is_latest = code == 0 && !head.is_empty() && size_of(&out) == size_of(&head);
            is_latest && out.contains("\u{2014} witness.test/1 ")
        })
        .await;
    };
    let server = start();
    witnessed().await;
    assert_eq!(server.terminate(), 0);
    copy_folder(&data, &older);
    let server = start();
    create_keys(&server, &data, 3).await;
    let n = size_of(&std::fs::read_to_string(older.join("audit.head")).unwrap());
    eventually("the witness knows a later head", async || {
        let (_, out, _) = offline(&settings, &["audit", "checkpoint"]);
        size_of(&out) > n && out.contains("\u{2014} witness.test/1 ")
    })
    .await;
    assert_eq!(server.terminate(), 0);

    std::fs::remove_dir_all(&data).unwrap();
    copy_folder(&older, &data);
    let signed = std::fs::read_to_string(data.join("audit.head")).unwrap();
    let server = start();
    create_keys(&server, &data, 9).await;
    eventually("the restore is noticed", async || {
        readyz(&server).await.contains("acknowledge-restore")
    })
    .await;
    assert_eq!(server.terminate(), 0);
    // Not one head was signed.
    let head = std::fs::read_to_string(data.join("audit.head")).unwrap();
    assert_eq!(text_of(&head), text_of(&signed));
    let restored = events(&settings, "restored.v0");
    assert_eq!(restored.len(), 1, "{restored:?}");
    assert_eq!(restored[0]["object"]["known_by"], "witness");

    let (code, out, error) = offline(&settings, &["admin", "acknowledge-restore"]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("+1"), "{out}");
    // The witness knows the continuation when its operator says so.
    let origin = signed.lines().next().unwrap();
    let state = path(&witness.state);
    for (continuation, expected) in [(format!("{origin}+1"), 0), ("other.test+1".to_owned(), 2)] {
        let arguments = [
            "witness",
            "add",
            &key,
            "--origin",
            &continuation,
            "--state",
            state,
        ];
        let (code, _, error) = alone(&arguments);
        assert_eq!(code, expected, "{error}");
    }
    let server = start();
    witnessed().await;
    let head = checkpoint(&settings);
    assert_eq!(head.lines().next(), Some(format!("{origin}+1").as_str()));
    assert_eq!(server.terminate(), 0);
}

/// The witness is away. The last head that it signed stays published, and proves what it has.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_cosigned_head_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let witness = WitnessProcess::start(folder.path());
    let data = folder.path().join("data");
    let key = witness.add_log(&data);
    let settings = settings_of(&data);
    let flag = format!("{} {}", witness.url, witness.key);
    let server = Process::start_as(binary(), &data, "", &["--audit-witnesses", &flag]);
    eventually("the witness signs", async || {
        let (code, out, _) = offline(&settings, &["audit", "checkpoint"]);
        code == 0 && out.contains("\u{2014} witness.test/1 ")
    })
    .await;
    let witness_key = witness.key.clone();
    drop(witness);
    create_keys(&server, &data, 1).await;
    let (_, export, _) = offline(&settings, &["audit", "export"]);
    let first: Value = serde_json::from_str(export.lines().next().unwrap()).unwrap();
    let first = first["event"]["event_id"].clone();
    let last = events(&settings, "api_key_created.v0").pop().unwrap()["event_id"].clone();
    let prove = |id: &Value| ["audit", "prove", id.as_str().unwrap()].map(str::to_owned);
    let prove = async |id: &Value| {
        let arguments = prove(id);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        once(&settings, &arguments).await
    };
    let file = folder.path().join("proof");
    let check = |proof: &str| {
        std::fs::write(&file, proof).unwrap();
        let arguments = ["audit", "check-proof", path(&file), "--origin-key", &key];
        let with = [&arguments[..], &["--witness-key", &witness_key]].concat();
        (alone(&arguments).0, alone(&with).0)
    };
    // Without a checkpoint of the auditor, the head that witnesses signed has to be there.
    let keys = ["--origin-key", &key, "--witness-key", &witness_key];
    let (code, out, error) = offline(&settings, &[&["audit", "verify"][..], &keys].concat());
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("witnesses signed the first "), "{out}");
    let other = SigningKey::new("other.test/1", KeyType::Cosignature, [3; 32]).unwrap();
    let other = other.verifier().to_string();
    let keys = ["--origin-key", &key, "--witness-key", &other];
    let (code, _, error) = offline(&settings, &[&["audit", "verify"][..], &keys].concat());
    assert_eq!(
        (code, error.contains("0 of the known witnesses")),
        (1, true),
        "{error}"
    );
    // A later head has it, without the witness.
    assert_eq!(check(&prove(&last).await), (0, 1));
    assert_eq!(check(&prove(&first).await), (0, 0));
    assert!(checkpoint(&settings).contains("\u{2014} witness.test/1 "));
    assert_eq!(server.terminate(), 0);
}

/// The stop is the last event, and proven.
#[tokio::test(flavor = "multi_thread")]
async fn the_stop_is_in_a_signed_head() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    assert_eq!(Process::start(&data, "").terminate(), 0);
    let settings = settings_of(&data);
    let stopped = events(&settings, "server_stopped.v0").pop().unwrap();
    let id = stopped["event_id"].as_str().unwrap();
    let (code, _, error) = offline(&settings, &["audit", "prove", id]);
    assert_eq!(code, 0, "{error}");
}

/// With access to the database alone, the oldest events are removed.
#[tokio::test(flavor = "multi_thread")]
async fn removed_oldest_events_are_found() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let settings = culvert.settings.clone();
        for _ in 0..4 {
            culvert.create("api_keys", json!({})).await;
        }
        let (code, out, error) = offline(&settings, &["audit", "verify"]);
        assert_eq!(code, 0, "{error}");
        assert!(out.contains("the audit log is intact"), "{out}");
        let (_, export, _) = offline(&settings, &["audit", "export"]);
        let third: Value = serde_json::from_str(export.lines().nth(2).unwrap()).unwrap();
        let hash = third["hash"].as_str().unwrap();
        let removal = format!(
            "DELETE FROM outbox WHERE seq <= 3; UPDATE ledger SET anchor = 3, anchor_hash = '{hash}'"
        );
        execute(&settings, &removal).await;
        for command in [["audit", "verify"], ["admin", "check"]] {
            let (code, out, error) = offline(&settings, &command);
            assert_eq!(code, 1, "{out}");
            assert!(error.contains("events 1 to 3 are missing"), "{error}");
        }
        culvert.stop().await;
    }
}

/// A witness cannot have the name of the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_witness_with_the_name_of_the_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let witness = WitnessProcess::start_as(folder.path(), "log.test/audit/ac_1");
    let data = folder.path().join("data");
    witness.add_log(&data);
    let mut settings = settings_of(&data);
    settings.api.addr = "127.0.0.1:0".into();
    settings.edge.http_addr = "127.0.0.1:0".into();
    settings.edge.https_addr = "127.0.0.1:0".into();
    let flag = format!("{} {}", witness.url, witness.key);
    settings.audit.witnesses = vec![serde_json::from_value(json!(flag)).unwrap()];
    let started = Box::pin(culvert::server::Server::start(settings)).await;
    let refused = started.map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("has the name of the audit log"),
        "{refused}"
    );
}

/// A fail-over loses commits that one of two nodes signed. The other one signs no fork either.
#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_that_lost_commits_ends_the_log_on_all_nodes() {
    let Some(backend) = crate::harness::cluster(2).await else {
        return;
    };
    let database = backend.database().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = ["a", "b"].map(|name| folder.path().join(name));
    let settings = Settings {
        database_url: database.url.clone(),
        ..settings_of(&data[0])
    };
    let first = Process::start(&data[0], &database.url);
    once(&settings, &["audit", "checkpoint"]).await;
    culvert::keys::make_data_dir(&data[1]).unwrap();
    for name in ["master.key", "audit.key", "bootstrap-key"] {
        std::fs::copy(data[0].join(name), data[1].join(name)).unwrap();
    }
    create_keys(&first, &data[0], 3).await;
    assert_eq!(first.terminate(), 0);
    let head = checkpoint(&settings);
    let (_, export, _) = offline(&settings, &["audit", "export"]);
    let line: Value = serde_json::from_str(export.lines().nth(1).unwrap()).unwrap();
    // The database has the state of the second event.
    let lost = format!(
        "DELETE FROM outbox WHERE seq > 2; UPDATE ledger SET outbox = 2, chained = 2, head = '{}'; \
         DELETE FROM audit_tile; UPDATE audit_tree SET size = 0, signed = 0, checkpoint = '', cosigned = ''",
        line["hash"].as_str().unwrap()
    );
    execute(&settings, &lost).await;
    // The node that signed notices it, and the other one follows.
    let first = Process::start(&data[0], &database.url);
    eventually("the first node notices", async || {
        readyz(&first).await.contains("acknowledge-restore")
    })
    .await;
    assert_eq!(offline(&settings, &["audit", "checkpoint"]).0, 1);
    let (code, out, error) = offline(&settings, &["admin", "acknowledge-restore"]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("+1"), "{out}");
    let second = Process::start_as(
        binary(),
        &data[1],
        &database.url,
        &["--node-name", "second"],
    );
    first.kill();
    create_keys(&second, &data[1], 1).await;
    eventually("the second node continues", async || {
        let head = std::fs::read_to_string(data[1].join("audit.head")).unwrap_or_default();
        head.lines().next().is_some_and(|line| line.ends_with("+1"))
    })
    .await;
    assert_eq!(second.terminate(), 0);
    let continued = checkpoint(&settings);
    let origin = head.lines().next().unwrap();
    assert_eq!(
        continued.lines().next(),
        Some(format!("{origin}+1").as_str())
    );
    let commands = events(&settings, "restored.v0");
    assert!(
        commands
            .iter()
            .any(|event| event["object"]["ended_origin"] == origin),
        "{commands:?}"
    );
    database.remove().await;
}

/// A tile is lost. The operator learns of it, and repairs it from the rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_tree_is_reported_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = settings_of(&data);
    assert_eq!(Process::start(&data, "").terminate(), 0);
    let before = checkpoint(&settings);
    execute(&settings, "DELETE FROM audit_tile").await;
    let server = Process::start(&data, "");
    eventually("the damage is noticed", async || {
        readyz(&server).await.contains("rebuild-audit-tree")
    })
    .await;
    assert_eq!(events(&settings, "audit_tree_damaged.v0").len(), 1);
    assert_eq!(text_of(&checkpoint(&settings)), text_of(&before));
    let (code, out, error) = offline(&settings, &["admin", "rebuild-audit-tree"]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("repaired_tiles=1"), "{out}");
    eventually("the log is signed again", async || {
        size_of(&checkpoint(&settings)) > size_of(&before)
    })
    .await;
    assert!(!readyz(&server).await.contains("rebuild-audit-tree"));
    assert_eq!(server.terminate(), 0);
    let (code, _, error) = offline(&settings, &["audit", "verify", "--rebuild"]);
    assert_eq!(code, 0, "{error}");

    // The hash of a removed event is lost too. Nothing is written.
    execute(
        &settings,
        "DELETE FROM audit_tile; DELETE FROM outbox WHERE seq = 1; UPDATE ledger SET anchor = 1",
    )
    .await;
    let (code, _, error) = offline(&settings, &["admin", "rebuild-audit-tree"]);
    assert_eq!(
        (code, error.contains("event 1 was removed")),
        (1, true),
        "{error}"
    );
}

/// The stored hashes need not fit together: those of the old tree, and another one above them that only the new root needs.
/// Nothing is signed by them.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_does_not_prove_its_growth_is_not_signed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = settings_of(&data);
    assert_eq!(Process::start(&data, "").terminate(), 0);
    let early = std::fs::read_to_string(data.join("audit.head")).unwrap();
    let server = Process::start(&data, "");
    create_keys(&server, &data, 260).await;
    assert_eq!(server.terminate(), 0);
    let size = size_of(&early);
    assert!(size < 256 && size_of(&checkpoint(&settings)) > 256);
    // As if the server had stopped after the first head, and another program had written the rest.
    std::fs::write(data.join("audit.head"), &early).unwrap();
    execute(
        &settings,
        &format!(
            "UPDATE audit_tile SET hashes = zeroblob(32) WHERE level = 1 AND n = 0; \
             UPDATE audit_tree SET checkpoint = '{early}', signed = {size}, cosigned = ''"
        ),
    )
    .await;
    let server = Process::start(&data, "");
    eventually("the other tree is noticed", async || {
        readyz(&server).await.contains("acknowledge-restore")
    })
    .await;
    assert_eq!(server.terminate(), 0);
    assert_eq!(text_of(&checkpoint(&settings)), text_of(&early));
    assert_eq!(events(&settings, "restored.v0").len(), 1);
}
