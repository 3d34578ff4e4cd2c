//! Backup and restore as the guide has them (`docs/how-to/backup.md`): the copy of a running installation, started
//! elsewhere with its key, is the installation with all encrypted secrets and queued events.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use culvert::client::Client;
use http::{Method, StatusCode};
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use crate::custom_domain;
use crate::events_arrive::verify;
use crate::harness::{Backend, Database, Receiver, backends, binary, eventually, raw};
use crate::kill::Process;

const NAME: &str = "restored.custom.example";
const HOST: &str = "restored.culvert.localhost";
/// What events are signed with.
const SIGNING: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// Runs a command that must succeed; what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, error) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{error}");
    out
}

fn culvert(arguments: &[&str], data: &Path) -> String {
    run(binary().args(arguments).arg("--data-dir").arg(data))
}

/// A program of PostgreSQL. `None` if it is not installed; the test is then reported as ignored.
fn program(name: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
    let versions = versions.into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(name));
    let found = found.filter(|path| path.exists()).max();
    if found.is_none() {
        culvert_testing::ignore("PostgreSQL's own programs are not here");
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_has_the_whole_installation() {
    for backend in backends().await {
        match backend {
            Backend::Sqlite => check(None).await,
            Backend::Postgres(server) | Backend::Cluster(server, _) => {
                let (Some(dump), Some(restore)) = (program("pg_dump"), program("pg_restore"))
                else {
                    return;
                };
                check(Some((server, dump, restore))).await;
            }
        }
    }
}

async fn check(postgres: Option<(String, PathBuf, PathBuf)>) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (data, restored, key) = (at("data"), at("restored"), at("keys/master.key"));
    let database = match &postgres {
        Some((server, ..)) => Some(Database::make(server).await),
        None => None,
    };
    let url = |database: &Option<Database>| match database {
        Some(database) => database.url.clone(),
        None => String::new(),
    };
    let server = Process::start(&data, &url(&database));
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token.clone()).unwrap();
    let create = async |collection: &str, body: Value| {
        let path = format!("/{collection}");
        let made = client.expect(Method::POST, &path, Some(&body));
        made.await.unwrap()
    };
    let (origin, hook) = (Receiver::start().await, Receiver::start().await);

    // A key of a domain, a secret of a vault, and the secret that events are signed with.
    let domain_key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let certificate = params.self_signed(&domain_key).unwrap();
    let pems = json!({"certificate_pem": certificate.pem(), "private_key_pem": domain_key.serialize_pem()});
    let uploaded = create("tls_certificates", pems).await;
    let domain = json!({"domain": NAME, "certificate_id": uploaded["id"]});
    create("reserved_domains", domain).await;
    let upstream = format!("http://{}", origin.address);
    let body = json!({"url": format!("https://{NAME}"), "upstream_url": upstream});
    create("endpoints", body).await;
    let vault = create("vaults", json!({"name": "keys"})).await;
    let body = json!({"name": "door", "value": "open sesame", "vault_id": vault["id"]});
    create("vault_secrets", body).await;
    let policy = json!({"on_http_request": [{"actions": [
        {"type": "basic-auth", "config": {"credentials": ["${\"me:\" + secrets.get(\"keys\", \"door\")}"]}},
        {"type": "custom-response", "config": {"body": "in"}},
    ]}]});
    let body = json!({"url": format!("http://{HOST}"), "traffic_policy": policy.to_string()});
    create("endpoints", body).await;
    hook.answer_with(StatusCode::SERVICE_UNAVAILABLE);
    let target =
        json!({"webhook": {"url": format!("http://{}/hook", hook.address), "secrets": [SIGNING]}});
    let destination = create(
        "event_destinations",
        json!({"format": "json", "target": target}),
    )
    .await;
    let sources = json!([{"type": "api_key_created.v0"}, {"type": "http_request_complete.v0"}]);
    let body = json!({"destination_ids": [destination["id"]], "sources": sources});
    create("event_subscriptions", body).await;
    let other_key = create("api_keys", json!({"description": "another"})).await;
    works(&server, certificate.der()).await;
    eventually(
        "an event of each kind waits for the destination",
        async || {
            let kinds = |kind: &str| hook.events().iter().any(|it| it["event_type"] == kind);
            kinds("api_key_created.v0") && kinds("http_request_complete.v0")
        },
    )
    .await;
    let waiting: Vec<String> = ids(&hook.events());

    // While it runs.
    let copied_url = match &postgres {
        None => {
            let copy = at("copy");
            let out = run(binary()
                .args(["admin", "backup"])
                .arg(&copy)
                .arg("--master-key-to")
                .arg(&key)
                .arg("--data-dir")
                .arg(&data));
            assert!(out.contains("copied the master key"), "{out}");
            assert!(!copy.join("master.key").exists(), "the key is kept apart");
            culvert::keys::make_data_dir(&restored).unwrap();
            for file in ["state.db", "events.db"] {
                std::fs::copy(copy.join(file), restored.join(file)).unwrap();
            }
            None
        }
        Some((server, dump, restore)) => {
            let file = at("culvert.dump");
            run(Command::new(dump)
                .args(["-Fc", "-f"])
                .arg(&file)
                .arg(url(&database)));
            culvert::keys::make_data_dir(&at("keys")).unwrap();
            std::fs::copy(data.join("master.key"), &key).unwrap();
            let copy = Database::make(server).await;
            run(Command::new(restore)
                .args(["--exit-on-error", "--no-owner", "-d", &copy.url])
                .arg(&file));
            culvert::keys::make_data_dir(&restored).unwrap();
            Some(copy)
        }
    };
    let verified = run(binary()
        .args(["audit", "verify", "--data-dir"])
        .arg(&data)
        .args(["--database-url", &url(&database)]));
    let head = verified.lines().find_map(|line| line.split_once("head="));
    let head = head.unwrap().1.trim().to_owned();
    server.kill();
    std::fs::remove_dir_all(&data).unwrap();
    if let Some(database) = database {
        database.remove().await;
    }

    std::fs::copy(&key, restored.join("master.key")).unwrap();
    let copied = url(&copied_url);
    let checked = culvert(&["admin", "check", "--database-url", &copied], &restored);
    assert!(checked.contains("are intact"), "{checked}");
    let arguments = [
        "audit",
        "verify",
        "--head",
        &head,
        "--database-url",
        &copied,
    ];
    culvert(&arguments, &restored);

    hook.answer_with(StatusCode::OK);
    let n_before = hook.received().len();
    let server = Process::start(&restored, &copied);
    let other_key = other_key["token"].as_str().unwrap();
    for token in [&token, other_key] {
        let client = Client::new(&server.api, token.to_owned()).unwrap();
        let answer = client.call(Method::GET, "/self", None).await.unwrap();
        assert_eq!(answer.status, 200, "an old token is valid");
    }
    works(&server, certificate.der()).await;
    eventually("what waited is delivered, signed", async || {
        let since = hook.received().split_off(n_before);
        let delivered: Vec<Value> = since.iter().map(|request| request.json()).collect();
        let delivered = ids(&delivered);
        waiting.iter().all(|id| delivered.contains(id))
    })
    .await;
    for request in hook.received().split_off(n_before) {
        verify(SIGNING, &request.headers, &request.body);
    }
    assert_eq!(server.terminate(), 0);
    if let Some(database) = copied_url {
        database.remove().await;
    }
}

/// The certificate is presented and the secret opens.
async fn works(server: &Process, certificate: &CertificateDer<'static>) {
    eventually("the domain is served under its certificate", async || {
        custom_domain::request(server.https, NAME, certificate).await == Some(200)
    })
    .await;
    eventually("the secret opens", async || {
        enter(server.http, "bWU6b3BlbiBzZXNhbWU=").await == 200
    })
    .await;
    assert_eq!(enter(server.http, "bWU6YW5vdGhlciB3b3Jk").await, 401);
}

async fn enter(at: SocketAddr, credentials: &str) -> u16 {
    let ask = format!(
        "GET / HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Basic {credentials}\r\nconnection: close\r\n\r\n"
    );
    raw(at, ask.as_bytes()).await.status
}

fn ids(events: &[Value]) -> Vec<String> {
    let id = |event: &Value| event["event_id"].as_str().unwrap().to_owned();
    events.iter().map(id).collect()
}
