//! The key of the audit log from an inherited descriptor: it signs, it is nowhere on disk, and anything else than a key stops the start.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use culvert_tlog::{KeyType, SigningKey};

use crate::audit_log::offline;
use crate::audit_proofs::{create_keys, once, path};
use crate::audit_restored::{checkpoint, events, readyz, settings_of, size_of};
use crate::harness::{binary, eventually};
use crate::kill::Process;

const ORIGIN: &str = "log.test/audit/ac_1";

/// `culvert` with what a shell makes descriptor 3 of, such as `< file`.
fn with_descriptor(redirection: &str, file: &Path) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("exec \"$@\" 3{redirection}"), "bash"]);
    command.arg(binary().get_program()).env("FILE", file);
    command
}

/// From a pipe, as a program that has the key would give it.
const PIPED: &str = "< <(cat \"$FILE\")";

fn start(data: &Path, file: &Path) -> Process {
    let command = with_descriptor(PIPED, file);
    Process::start_as(command, data, "", &["--audit-key-file", "fd:3"])
}

/// A key in a file of this name, apart from the data.
fn key_in(file: &Path, seed: u8) -> SigningKey {
    let key = SigningKey::new(ORIGIN, KeyType::Note, [seed; 32]).unwrap();
    std::fs::write(file, format!("{}\nanother line\n", &*key.secret_text())).unwrap();
    key
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let below = paths.flat_map(|path| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    });
    below.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_from_a_descriptor_signs_and_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("key"));
    let settings = settings_of(&data);
    let key = key_in(&file, 5);
    let server = start(&data, &file);
    once(&settings, &["audit", "checkpoint"]).await;
    assert_eq!(server.terminate(), 0);
    let kept = folder.path().join("kept");
    let head = checkpoint(&settings);
    std::fs::write(&kept, &head).unwrap();
    assert_eq!(head.lines().next(), Some(ORIGIN));
    let verifier = key.verifier().to_string();
    let verify = [
        "audit",
        "verify",
        "--checkpoint",
        path(&kept),
        "--origin-key",
        &verifier,
    ];
    let (code, _, error) = offline(&settings, &verify);
    assert_eq!(code, 0, "{error}");
    assert!(!data.join("audit.key").exists());
    let secret = key.secret_text();
    let secret = secret.rsplit('+').next().unwrap();
    for file in files(&data) {
        let bytes = std::fs::read(&file).unwrap();
        let mut windows = bytes.windows(secret.len());
        assert!(!windows.any(|part| part == secret.as_bytes()), "{file:?}");
    }

    // Commands that need it take it in the same way.
    let run = |name: &[&str]| {
        let output = with_descriptor(PIPED, &file)
            .args(name)
            .args(["--audit-key-file", "fd:3", "--data-dir", path(&data)])
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, out, error) = run(&["audit", "key"]);
    assert_eq!((code, out.trim()), (0, verifier.as_str()), "{error}");
    let (code, _, error) = run(&["admin", "rotate-audit-key"]);
    assert_eq!(
        (code, error.contains("cannot be written")),
        (1, true),
        "{error}"
    );
    assert_eq!(events(&settings, "admin_command.v0").len(), 0);
    let (code, _, error) = run(&["admin", "acknowledge-restore"]);
    assert_eq!((code, error.contains("did not end")), (1, true), "{error}");

    // Another key signs nothing, and the same one goes on.
    let other = folder.path().join("other");
    key_in(&other, 6);
    let server = start(&data, &other);
    create_keys(&server, &data, 1).await;
    eventually("the other key is refused", async || {
        readyz(&server)
            .await
            .contains("its heads are not signed here")
    })
    .await;
    assert_eq!(server.terminate(), 0);
    assert_eq!(checkpoint(&settings), head);
    let server = start(&data, &file);
    eventually("the log is signed again", async || {
        size_of(&checkpoint(&settings)) > size_of(&head)
    })
    .await;
    assert_eq!(server.terminate(), 0);
    assert_eq!(offline(&settings, &verify).0, 0);
    assert!(!data.join("audit.key").exists());
}

/// A file with another name is the key, and is made by the first start, as the default one.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_another_file_signs_and_rotates() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("log.key"));
    let settings = settings_of(&data);
    let flag = ["--audit-key-file", path(&file)];
    let server = Process::start_as(binary(), &data, "", &flag);
    once(&settings, &["audit", "checkpoint"]).await;
    let run = |name: [&str; 2]| {
        let data = ["--data-dir", path(&data)];
        let output = binary().args(name).args(flag).args(data).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let old = run(["audit", "key"]);
    assert!(run(["admin", "rotate-audit-key"]).contains("key: "));
    assert_ne!(run(["audit", "key"]), old);
    assert!(folder.path().join("log.key.old").exists());
    assert!(!data.join("audit.key").exists());
    assert_eq!(server.terminate(), 0);
}

/// Anything else than a key stops the start, and is not repeated in the message.
#[test]
fn a_descriptor_without_a_key_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let file = folder.path().join("file");
    let key = key_in(&file, 5).secret_text().to_string();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let witness = SigningKey::new("w.test", KeyType::Cosignature, [5; 32]).unwrap();
    let start = |setting: &str, redirection: &str, text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = with_descriptor(redirection, &file)
            .args([
                "serve",
                "--audit-key-file",
                setting,
                "--data-dir",
                path(&data),
            ])
            .output()
            .unwrap();
        let code = output.status.code().unwrap();
        (code, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let cut = &key[..key.len() - 3];
    let changed = key.replace("log.test", "log.best");
    let long = "x".repeat(1 << 20);
    let in_file = "< \"$FILE\"";
    for (redirection, text, expected) in [
        ("<&-", "", "descriptor 3"),
        ("< /", "", "descriptor 3"),
        ("< /dev/zero", "", "signing key"),
        (in_file, "", "signing key"),
        (in_file, "\n", "signing key"),
        (in_file, cut, "signing key"),
        (in_file, &changed, "ID of the key"),
        (in_file, &long, "signing key"),
        (in_file, &witness.secret_text(), "key of a witness"),
        ("< <(printf '\\377\\376\\n')", "", "descriptor 3"),
        ("< <(sleep 20)", "", "within 10 s"),
    ] {
        let (code, error) = start("fd:3", redirection, text);
        assert_eq!(code, 1, "{redirection} {error}");
        assert!(error.contains(expected), "{redirection} {error}");
        let secret = key.rsplit('+').next().unwrap();
        assert!(!error.contains(&secret[..12]), "{error}");
        assert!(!data.join("audit.key").exists());
    }
    for setting in [
        "fd:",
        "fd:x",
        "fd:1",
        "fd:2",
        "fd:-3",
        "fd:+3",
        "fd:65536",
        "fd:99999999999",
    ] {
        let (code, error) = start(setting, in_file, &key);
        assert_ne!(code, 0, "{setting}");
        assert!(error.contains("audit.key_file"), "{setting} {error}");
    }
}
