//! The data directory: one process at a time writes to it, and its master key is never replaced.

use std::path::{Path, PathBuf};
use std::process::Output;

use culvert::client::Client;
use http::Method;
use serde_json::{Value, json};

use crate::events_arrive::subscribe;
use crate::harness::{Receiver, backends, binary, eventually};
use crate::kill::{Process, metric};

/// Runs `culvert` on a data directory and waits for its end.
fn run(data: &Path, url: &str, arguments: &[&str]) -> Output {
    let mut command = binary();
    command.args(arguments).arg("--data-dir").arg(data);
    command.args(["--database-url", url]);
    if arguments == ["serve"] {
        for flag in [
            "--api-addr",
            "--edge-http-addr",
            "--edge-https-addr",
            "--agents-addr",
            "--agents-ssh-addr",
            "--nodes-addr",
            "--metrics-addr",
        ] {
            command.args([flag, "127.0.0.1:0"]);
        }
    }
    command.output().unwrap()
}

/// The error of a command that must fail.
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_a_data_directory_is_refused() {
    for backend in backends().await {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let database = backend.database().await;
        let url = database.as_ref().map(|database| database.url.clone());
        let url = url.unwrap_or_default();

        let server = Process::start(&data, &url);
        let said = refusal(&run(&data, &url, &["serve"]));
        let holder = format!("is in use by process {}", server.id());
        assert!(said.contains(&holder), "{said}");
        // Without the file that names the holder the directory is in use all the same.
        std::fs::remove_file(data.join("lock")).unwrap();
        for _ in 0..2 {
            let said = refusal(&run(&data, &url, &["serve"]));
            assert!(said.contains("is in use by another process"), "{said}");
        }
        // The first server is untouched.
        let client = Client::new(&server.api, String::new()).unwrap();
        let ready = client.call(Method::GET, "/readyz", None).await.unwrap();
        assert_eq!(ready.status, 200, "{}", ready.body);

        // A kill leaves no stale lock behind, and neither does an orderly stop.
        server.kill();
        let server = Process::start(&data, &url);
        assert_eq!(server.terminate(), 0);
        assert_eq!(Process::start(&data, &url).terminate(), 0);
        if let Some(database) = database {
            database.remove().await;
        }
    }
}

#[test]
fn admin_commands_work_beside_a_running_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let copy = folder.path().join("copy").display().to_string();
    let server = Process::start(&data, "");
    let holder = format!("is in use by process {}", server.id());
    let to = "postgres://127.0.0.1:1/none";
    // Every subcommand that opens the data directory, and whether it works beside a server.
    let cases: &[(&[&str], bool)] = &[
        (&["admin", "check"], true),
        (&["admin", "backup", &copy], true),
        (&["admin", "create-key"], true),
        (&["admin", "lift-api-restriction"], true),
        (&["audit", "verify"], true),
        (&["admin", "rotate-master-key"], false),
        (&["admin", "move", "--to", to], false),
        (&["admin", "move", "--undo"], false),
    ];
    for (arguments, works) in cases {
        let output = run(&data, "", arguments);
        if *works {
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        } else {
            let said = refusal(&output);
            assert!(said.contains(&holder), "{arguments:?}: {said}");
        }
    }
    assert_eq!(server.terminate(), 0);
    let output = run(&data, "", &["admin", "rotate-master-key"]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn an_incomplete_backup_is_never_visible() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Process::start(&data, "");
    let copy = folder.path().join("copy");
    let backup = |to: &Path, key: &Path| {
        let (to, key) = (to.to_str().unwrap(), key.to_str().unwrap());
        run(&data, "", &["admin", "backup", to, "--master-key-to", key])
    };
    // Its folder cannot be made.
    let said = refusal(&backup(&copy, &data.join("lock/keys/master.key")));
    assert!(said.contains("lock/keys"), "{said}");
    assert!(!copy.exists());
    let outside = |path: &Path| refusal(&backup(&copy, path)).contains("must be stored outside it");
    assert!(outside(&copy.join("master.key")) && outside(&folder.path().join("./copy/key")));
    assert!(!copy.exists());
    // Neither folder is there yet.
    let key = folder.path().join("keys/of/culvert.key");
    let output = backup(&copy, &key);
    assert!(output.status.success(), "{output:?}");
    let kept = std::fs::read_to_string(&key).unwrap();
    assert_eq!(
        kept,
        std::fs::read_to_string(data.join("master.key")).unwrap()
    );
    for file in ["state.db", "events.db"] {
        assert!(copy.join(file).is_file(), "{file}");
    }
    // Existing files are not overwritten.
    let other = folder.path().join("other");
    assert!(refusal(&backup(&other, &key)).contains("exists already"));
    assert!(!other.exists());
    assert_eq!(server.terminate(), 0);
}

/// The one that comes second fails, and removes nothing of the first.
#[test]
fn two_backups_to_one_directory_do_not_remove_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    assert_eq!(Process::start(&data, "").terminate(), 0);
    for n in 0..10 {
        let copy = folder.path().join(n.to_string());
        let backup = || run(&data, "", &["admin", "backup", copy.to_str().unwrap()]);
        let outputs = std::thread::scope(|scope| {
            let both = [scope.spawn(backup), scope.spawn(backup)];
            both.map(|one| one.join().unwrap())
        });
        let n_made = outputs.iter().filter(|one| one.status.success()).count();
        assert_eq!(n_made, 1, "{outputs:?}");
        for file in ["state.db", "events.db"] {
            assert!(copy.join(file).is_file(), "{file}: {outputs:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_master_key_is_never_replaced() {
    for backend in backends().await {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let database = backend.database().await;
        let url = database.as_ref().map(|database| database.url.clone());
        let url = url.unwrap_or_default();
        let server = Process::start(&data, &url);
        let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
        let client = Client::new(&server.api, token).unwrap();
        let body = json!({"name": "v"});
        let vault = client.expect(Method::POST, "/vaults", Some(&body));
        vault.await.unwrap();
        assert_eq!(server.terminate(), 0);

        let key_file = data.join("master.key");
        let key = std::fs::read_to_string(&key_file).unwrap();
        std::fs::remove_file(&key_file).unwrap();
        // An empty directory of a further node is the same case on PostgreSQL.
        let mut directories = vec![data.clone()];
        if database.is_some() {
            directories.push(folder.path().join("other"));
        }
        let copy = folder.path().join("copy").display().to_string();
        for directory in &directories {
            let commands: &[&[&str]] = &[
                &["serve"],
                &["admin", "check"],
                &["admin", "create-key"],
                &["admin", "lift-api-restriction"],
                &["admin", "rotate-master-key"],
                &["admin", "backup", &copy],
            ];
            for arguments in commands {
                let said = refusal(&run(directory, &url, arguments));
                let path = directory.join("master.key");
                let wanted = format!("the master key `{}` is missing", path.display());
                assert!(said.contains(&wanted), "{arguments:?}: {said}");
                assert!(!path.exists(), "{arguments:?} made a key");
            }
        }
        culvert::keys::write_private(&key_file, &key).unwrap();
        assert_eq!(Process::start(&data, &url).terminate(), 0);
        if let Some(database) = database {
            database.remove().await;
        }
    }
}

/// Overwrites pages of a database with garbage.
fn damage(file: &Path) {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    for page in (1..pages).step_by(2) {
        file.seek(SeekFrom::Start(page * 4096)).unwrap();
        file.write_all(&[0xA5; 4096]).unwrap();
    }
}

/// A data directory of a server that ran, as a copy that a test may change.
fn copy_of(data: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in ["state.db", "events.db"] {
        std::fs::copy(data.join(file), copy.path().join(file)).unwrap();
    }
    let key = std::fs::read_to_string(data.join("master.key")).unwrap();
    culvert::keys::write_private(&copy.path().join("master.key"), &key).unwrap();
    copy
}

fn findings(data: &Path, arguments: &[&str]) -> String {
    let output = run(data, "", &[&["doctor", "--json"], arguments].concat());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn no_check_vouches_for_a_file_that_is_missing_foreign_or_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let (data, other) = (folder.path().join("data"), folder.path().join("other"));
    for data in [&data, &other] {
        assert_eq!(Process::start(data, "").terminate(), 0);
    }
    let commands: [&[&str]; 3] = [&["serve"], &["admin", "check"], &["admin", "create-key"]];
    let sound = copy_of(&data);
    let said = run(sound.path(), "", &["admin", "check"]);
    assert!(said.status.success(), "{said:?}");
    for depth in [&[][..], &["--deep"]] {
        let said = findings(sound.path(), depth);
        assert!(
            !said.contains("damage\":") && !said.contains("is damaged"),
            "{said}"
        );
    }

    // The state is missing or empty: no other installation begins beside the key or the events.
    for (is_empty, has_key) in [(false, true), (true, true), (true, false)] {
        let copy = copy_of(&data);
        let state = copy.path().join("state.db");
        std::fs::remove_file(&state).unwrap();
        if is_empty {
            std::fs::write(&state, b"").unwrap();
        }
        if !has_key {
            std::fs::remove_file(copy.path().join("master.key")).unwrap();
        }
        for arguments in commands {
            let said = refusal(&run(copy.path(), "", arguments));
            assert!(
                said.contains("is missing or empty beside"),
                "{arguments:?}: {said}"
            );
            assert!(
                said.contains("`culvert admin backup`"),
                "{arguments:?}: {said}"
            );
        }
        let said = findings(copy.path(), &[]);
        assert!(said.contains("is missing or empty beside"), "{said}");
        assert!(!std::fs::metadata(&state).is_ok_and(|state| state.len() > 0));
    }

    // The state is damaged.
    let copy = copy_of(&data);
    damage(&copy.path().join("state.db"));
    for arguments in commands {
        let said = refusal(&run(copy.path(), "", arguments));
        assert!(
            said.contains("`culvert admin backup`"),
            "{arguments:?}: {said}"
        );
    }
    let said = findings(copy.path(), &[]);
    assert!(said.contains("state.db` is damaged"), "{said}");

    // The events are of another installation.
    let copy = copy_of(&data);
    std::fs::copy(other.join("events.db"), copy.path().join("events.db")).unwrap();
    for arguments in commands {
        let said = refusal(&run(copy.path(), "", arguments));
        assert!(
            said.contains("belongs to another installation"),
            "{arguments:?}: {said}"
        );
    }
    let said = findings(copy.path(), &[]);
    assert!(said.contains("belongs to another installation"), "{said}");
}

/// The object of the only event of lost events.
async fn told_loss(server: &Process, data: &Path) -> Value {
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token).unwrap();
    let mut told = Value::Null;
    eventually("the event of the loss arrives", async || {
        let path = "/events?type=events_dropped.v0";
        let mut found = client.expect(Method::GET, path, None).await.unwrap();
        let events = found["events"].as_array_mut().unwrap();
        assert!(events.len() < 2, "{events:?}");
        told = events.pop().unwrap_or_default()["event"]["object"].take();
        !told.is_null()
    })
    .await;
    told
}

async fn readiness(server: &Process) -> Value {
    let client = Client::new(&server.api, String::new()).unwrap();
    let ready = client.call(Method::GET, "/readyz", None).await.unwrap();
    assert_eq!(ready.status, 200, "{}", ready.body);
    ready.body
}

/// A data directory of a server that stopped while a delivery waited, with its first key.
async fn with_a_waiting_delivery(folder: &Path) -> PathBuf {
    let data = folder.join("data");
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token).unwrap();
    let hook = Receiver::start().await;
    hook.answer_with(http::StatusCode::SERVICE_UNAVAILABLE);
    let kinds = json!([{"type": "api_key_created.v0"}]);
    subscribe(&client, &hook, kinds).await;
    let key = json!({});
    let made = client.expect(Method::POST, "/api_keys", Some(&key));
    made.await.unwrap();
    eventually("a delivery waits", async || {
        metric(&server, "culvert_events_waiting").await == 1
    })
    .await;
    assert_eq!(server.terminate(), 0);
    data
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_or_damaged_events_keep_no_server_down_and_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let data = with_a_waiting_delivery(folder.path()).await;
    let key = std::fs::read_to_string(data.join("bootstrap-key")).unwrap();
    let copy_of = |data: &Path| {
        let copy = copy_of(data);
        culvert::keys::write_private(&copy.path().join("bootstrap-key"), &key).unwrap();
        copy
    };

    let copy = copy_of(&data);
    std::fs::remove_file(copy.path().join("events.db")).unwrap();
    let said = refusal(&run(copy.path(), "", &["admin", "check"]));
    assert!(said.contains("events.db` is missing or empty"), "{said}");
    assert!(findings(copy.path(), &[]).contains("events.db` is missing or empty"));
    let server = Process::start(copy.path(), "");
    let told = told_loss(&server, copy.path()).await;
    assert_eq!(told["reason"], "file_missing", "{told}");
    assert_eq!(told["file"], "events.db", "{told}");
    assert_eq!(server.terminate(), 0);
    let said = run(copy.path(), "", &["admin", "check"]);
    assert!(said.status.success(), "{said:?}");

    let copy = copy_of(&data);
    damage(&copy.path().join("events.db"));
    // Only a server sets the file aside: another process might use it.
    let said = refusal(&run(copy.path(), "", &["admin", "check"]));
    assert!(said.contains("`culvert admin backup`"), "{said}");
    assert!(findings(copy.path(), &["--deep"]).contains("events.db` is damaged"));
    let server = Process::start(copy.path(), "");
    let told = told_loss(&server, copy.path()).await;
    assert_eq!(told["reason"], "file_damaged", "{told}");
    let file = told["file"].as_str().unwrap().to_owned();
    assert!(file.starts_with("events.db.damaged-"), "{told}");
    let set_aside = "culvert_event_files_set_aside";
    assert_eq!(metric(&server, set_aside).await, 1);
    assert!(readiness(&server).await["notices"]["events"].is_string());
    assert_eq!(server.terminate(), 0);
    let said = findings(copy.path(), &[]);
    assert!(said.contains(&file), "{said}");
    let said = run(copy.path(), "", &["admin", "check"]);
    assert!(said.status.success(), "{said:?}");

    // The next start tells nothing again, and nothing is shown once the file is removed.
    let server = Process::start(copy.path(), "");
    assert_eq!(metric(&server, set_aside).await, 1);
    std::fs::remove_file(copy.path().join(&file)).unwrap();
    eventually("the file is forgotten", async || {
        readiness(&server).await["notices"]["events"].is_null()
    })
    .await;
    assert_eq!(metric(&server, set_aside).await, 0);
    told_loss(&server, copy.path()).await;
    assert_eq!(server.terminate(), 0);
}

/// What can still be read of a damaged file is counted, and a new installation reports no loss.
#[tokio::test(flavor = "multi_thread")]
async fn deliveries_in_a_damaged_file_are_counted_if_they_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let data = with_a_waiting_delivery(folder.path()).await;
    let aside = data.join("events.db.damaged-1700000000");
    std::fs::copy(data.join("events.db"), &aside).unwrap();
    let server = Process::start(&data, "");
    let told = told_loss(&server, &data).await;
    assert_eq!(told["deliveries"], 1, "{told}");
    let lost = "culvert_events_dropped_total{reason=\"file_damaged\"}";
    assert_eq!(metric(&server, lost).await, 1);
    assert_eq!(server.terminate(), 0);

    let new = folder.path().join("new");
    let server = run_for_its_log(&new);
    assert!(!server.contains("events that waited"), "{server}");
}

/// What a server logs until it is ready.
fn run_for_its_log(data: &Path) -> String {
    let log = data.with_extension("log");
    let mut command = binary();
    command.stderr(std::fs::File::create(&log).unwrap());
    assert_eq!(Process::start_as(command, data, "", &[]).terminate(), 0);
    std::fs::read_to_string(log).unwrap()
}

/// A destination at a port that the operator denies afterwards fails, and its events wait for its return.
#[tokio::test(flavor = "multi_thread")]
async fn a_destination_whose_settings_are_denied_later_says_so_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let hook = Receiver::start().await;
    let client = |server: &Process| {
        let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
        Client::new(&server.api, token).unwrap()
    };
    let make_key = async |server: &Process| {
        let key = json!({});
        let client = client(server);
        let made = client.expect(Method::POST, "/api_keys", Some(&key));
        made.await.unwrap();
    };
    let server = Process::start(&data, "");
    let kinds = json!([{"type": "api_key_created.v0"}]);
    let subscription = subscribe(&client(&server), &hook, kinds).await;
    assert_eq!(server.terminate(), 0);
    let port = hook.address.port().to_string();
    let denied = ["--destinations-deny-ports", &port];
    let server = Process::start_as(binary(), &data, "", &denied);
    make_key(&server).await;
    let id = subscription["destinations"][0]["id"].as_str().unwrap();
    let path = format!("/event_destinations/{id}/health");
    eventually("the destination says what is wrong", async || {
        let health = client(&server)
            .expect(Method::GET, &path, None)
            .await
            .unwrap();
        let error = &health["last_error"];
        health["state"] == "unhealthy" && error["code"] == "settings"
    })
    .await;
    assert_eq!(server.terminate(), 0);
    let server = Process::start(&data, "");
    make_key(&server).await;
    assert_eq!(hook.wait_for("api_key_created.v0", 2).await.len(), 2);
    assert_eq!(server.terminate(), 0);
}
