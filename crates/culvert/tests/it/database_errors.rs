//! What a person reads when the database fails: each cause once.

use std::net::SocketAddr;
use std::path::Path;

use culvert::client::Client;
use http::Method;
use serde_json::json;
use sqlx::{ConnectOptions, Connection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::agents::{Proxy, ProxyMode};
use crate::harness::{binary, cluster, eventually};
use crate::kill::Process;

/// Commands that open the database.
const COMMANDS: [&[&str]; 4] = [
    &["serve", "--api-addr", "127.0.0.1:0"],
    &["admin", "create-key"],
    &["admin", "check"],
    &["audit", "verify"],
];

/// The request for TLS that comes before the startup message of a PostgreSQL client.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A database that responds to every connection with this error: severity, code and message.
async fn rejecting(
    tasks: &mut JoinSet<()>,
    code: &'static str,
    message: &'static str,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut start = [0; 8];
            if stream.read_exact(&mut start).await.is_err() {
                continue;
            }
            if start == SSL_REQUEST {
                drop(stream.write_all(b"N").await);
                drop(stream.read(&mut [0; 1024]).await);
            }
            let fields =
                format!("SFATAL\0VFATAL\0C{code}\0M{message}\0Fauth.c\0L321\0Rauth_failed\0\0");
            let length = u32::try_from(fields.len() + 4).unwrap();
            let mut error = vec![b'E'];
            error.extend(length.to_be_bytes());
            error.extend(fields.as_bytes());
            drop(stream.write_all(&error).await);
            drop(stream.shutdown().await);
            drop(stream.read_to_end(&mut Vec::new()).await);
        }
    });
    address
}

/// Checks that no part of a message is in another part.
fn check_causes(line: &str) {
    let parts: Vec<&str> = line.split(": ").map(str::trim).collect();
    for (nth, part) in parts.iter().enumerate() {
        let is_elsewhere = parts
            .iter()
            .enumerate()
            .any(|(other, text)| other != nth && part.len() > 3 && text.contains(part));
        assert!(!is_elsewhere, "`{part}` is there twice: {line}");
    }
}

async fn output(folder: &Path, url: &str, arguments: &[&str]) -> String {
    let mut command = tokio::process::Command::from(binary());
    command.args(arguments).env("CULVERT_DATABASE_URL", url);
    command.env("CULVERT_DATA_DIR", folder.join("data"));
    let output = tokio::time::timeout(culvert_testing::PATIENCE, command.output());
    let output = output.await.expect("the command ends").unwrap();
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_name_each_cause_once_when_the_database_cannot_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let mut tasks = JoinSet::new();
    let password = "password authentication failed for user \"culvert\"";
    let wrong_password = rejecting(&mut tasks, "28P01", password).await;
    let no_database = rejecting(&mut tasks, "3D000", "database \"culvert\" does not exist").await;
    let full = rejecting(&mut tasks, "53300", "sorry, too many clients already").await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = unused.local_addr().unwrap();
    drop(unused);
    let cases = [
        (wrong_password, format!("{password} (code 28P01)")),
        (
            no_database,
            "database \"culvert\" does not exist (code 3D000)".to_owned(),
        ),
        (
            full,
            "sorry, too many clients already (code 53300)".to_owned(),
        ),
        (closed, "Connection refused".to_owned()),
    ];
    for (address, expected) in cases {
        let url = format!("postgres://culvert:secret@{address}/culvert");
        // A server waits for a database that is away or has no free connection.
        let waits = [full, closed].contains(&address);
        for arguments in COMMANDS.iter().skip(usize::from(waits)) {
            let said = output(folder.path(), &url, arguments).await;
            let error = said.lines().find(|line| line.starts_with("culvert: "));
            let error = error.unwrap_or_else(|| panic!("{arguments:?}: {said}"));
            assert!(error.contains(&expected), "{arguments:?}: {said}");
            let place = format!("opening the database at {address} (setting `database_url`): ");
            assert!(error.contains(&place), "{arguments:?}: {said}");
            assert_eq!(said.matches(&expected).count(), 1, "{arguments:?}: {said}");
            assert!(
                !said.contains("secret") && !error.contains(" at line "),
                "{said}"
            );
            check_causes(error.trim_start_matches("culvert: "));
        }
    }
}

/// A file that is no database, one that another program locks, and a disk without room.
#[tokio::test(flavor = "multi_thread")]
async fn commands_name_the_file_that_cannot_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let check = async |commands: &[&[&str]], file: &Path, expected: &str| {
        for arguments in commands {
            let said = output(folder.path(), "", arguments).await;
            let error = said.lines().find(|line| line.starts_with("culvert: "));
            let error = error.unwrap_or_else(|| panic!("{arguments:?}: {said}"));
            let place = format!("culvert: opening the database `{}`", file.display());
            assert!(error.starts_with(&place), "{arguments:?}: {said}");
            assert!(error.ends_with(expected), "{arguments:?}: {said}");
            check_causes(error.trim_start_matches("culvert: "));
        }
    };
    let state = data.join("state.db");
    Process::start(&data, "").terminate();
    let mut locked = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&state)
        .locking_mode(sqlx::sqlite::SqliteLockingMode::Exclusive)
        .connect()
        .await
        .unwrap();
    sqlx::raw_sql("BEGIN EXCLUSIVE")
        .execute(&mut locked)
        .await
        .unwrap();
    check(&COMMANDS, &state, ": database is locked (code 5)").await;
    locked.close().await.unwrap();

    let queue = data.join("events.db");
    std::fs::write(&queue, "no database at all").unwrap();
    // A server sets it aside, and the others do not open it.
    let checks = [COMMANDS[2]];
    check(&checks, &queue, ": file is not a database (code 26)").await;
    std::fs::write(&state, "no database at all").unwrap();
    check(&COMMANDS, &state, ": file is not a database (code 26)").await;
}

/// The caller of the API gets one sentence, and the log has each cause once.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_during_a_call_is_logged_with_each_cause_once() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let own = backend.database().await.unwrap();
    let mut url = url::Url::parse(&own.url).unwrap();
    let host = url.host_str().unwrap().to_owned();
    let database = (host, url.port().unwrap_or(5432));
    let database = tokio::net::lookup_host(database).await.unwrap().next();
    let proxy = Proxy::to(database.unwrap()).await;
    url.set_ip_host(proxy.address.ip()).unwrap();
    url.set_port(Some(proxy.address.port())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (log, data) = (folder.path().join("log"), folder.path().join("data"));
    let mut command = binary();
    command.stderr(std::fs::File::create(&log).unwrap());
    let culvert = Process::start_as(command, &data, url.as_str(), &[]);
    let token = std::fs::read_to_string(data.join("bootstrap-key")).unwrap();
    let client = Client::new(&culvert.api, token.trim().to_owned()).unwrap();
    let call = async || {
        let body = json!({"name": "v"});
        let called = client.call(Method::POST, "/vaults", Some(&body)).await;
        called.unwrap()
    };
    assert_eq!(call().await.status, 201);
    proxy.becomes(ProxyMode::Reset);
    eventually("a call fails", async || {
        let answer = call().await;
        let text = answer.body["msg"].as_str().unwrap_or_default().to_owned();
        for cause in ["os error", "database:", "postgres", "sqlx"] {
            assert!(!text.contains(cause), "{text}");
        }
        answer.status == 503
    })
    .await;
    let caused = || {
        let said = std::fs::read_to_string(&log).unwrap();
        let lines = said.lines().filter(|line| line.contains("cause"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("the log has a cause", async || !caused().is_empty()).await;
    for line in caused() {
        let (_, cause) = line.split_once("cause").unwrap();
        check_causes(cause.trim_start_matches(['=', '"', ':', ' ']));
    }
    proxy.becomes(ProxyMode::Open);
    culvert.terminate();
    own.remove().await;
}
