//! `kill -9` at any time loses no acknowledged change and no audit event.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use culvert::client::Client;
use culvert_base::{Entropy, SeededEntropy};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::events_arrive::subscribe;
use crate::harness::{Receiver, backends, binary, eventually, raw};

const ROUNDS: usize = 4;
const WRITERS: usize = 8;

/// A real server process.
pub struct Process {
    child: Child,
    pub api: String,
    pub http: SocketAddr,
    pub https: SocketAddr,
    /// The address for agents, if enabled.
    pub agents: Option<SocketAddr>,
    pub metrics: SocketAddr,
}

impl Process {
    /// Starts it and waits for its ready line.
    pub fn start(folder: &Path, database_url: &str) -> Self {
        Self::start_as(binary(), folder, database_url, &[])
    }

    /// Like [`Process::start`], with a prepared command and further arguments.
    pub fn start_as(
        mut command: Command,
        folder: &Path,
        database_url: &str,
        arguments: &[&str],
    ) -> Self {
        command.args(["serve", "--destinations-allow-plain-http", "true"]);
        command.args(["--database-url", database_url]);
        if !arguments.contains(&"--destinations-allow-networks") {
            command.args(["--destinations-allow-networks", "127.0.0.1/32"]);
        }
        for flag in [
            "--api-addr",
            "--edge-http-addr",
            "--edge-https-addr",
            "--agents-addr",
            "--agents-ssh-addr",
            "--nodes-addr",
            "--metrics-addr",
        ]
        .into_iter()
        .filter(|flag| !arguments.contains(flag))
        {
            command.args([flag, "127.0.0.1:0"]);
        }
        command.arg("--data-dir").arg(folder).args(arguments);
        if !arguments.contains(&"--config") {
            command.args(["--log-level", "warn"]);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let line = stdout
            .lines()
            .map(Result::unwrap)
            .find(|line| line.starts_with("culvert ready "));
        let line = line.expect("the server prints its ready line");
        let found = |name: &str| {
            let start = format!("{name}=");
            let mut parts = line.split(' ');
            parts.find_map(|part| part.strip_prefix(&start))
        };
        let part = |name: &str| found(name).unwrap().to_owned();
        Self {
            child,
            api: part("api"),
            http: part("http").parse().unwrap(),
            https: part("https").parse().unwrap(),
            agents: found("agents").map(|address| address.parse().unwrap()),
            metrics: part("metrics").parse().unwrap(),
        }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL, which ends it immediately.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM; returns the exit code.
    pub fn terminate(self) -> i32 {
        self.ask_to_stop();
        self.ended()
    }

    /// Sends SIGTERM.
    pub fn ask_to_stop(&self) {
        self.signal("TERM");
    }

    /// Sends a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let kill = Command::new("kill").args(["-s", name, &id]).status();
        assert!(kill.unwrap().success());
    }

    /// Waits until it exits; returns the exit code.
    pub fn ended(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }
}

/// After a failed test, no process remains that would keep its output open.
impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already, and must be waited for either way.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A value of `/metrics`.
pub async fn metric(server: &Process, name: &str) -> usize {
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let page = raw(server.metrics, request).await.text;
    let value = page.lines().find_map(|line| line.strip_prefix(name));
    let value = value.unwrap_or_else(|| panic!("{name}: {page}"));
    value.trim().parse().unwrap()
}

const LOST: &str = "culvert_events_lost_total";
const MAYBE_LOST: &str = "culvert_events_maybe_lost_total";

#[tokio::test(flavor = "multi_thread")]
async fn events_possibly_lost_in_a_power_cut_are_counted() {
    const REQUESTS: usize = 60;
    let folder = tempfile::tempdir().unwrap();
    let (data, cut) = (folder.path().join("data"), folder.path().join("cut"));
    let (origin, hook) = (Receiver::start().await, Receiver::start().await);
    // Rejected batches wait on the disk.
    hook.answer_with(StatusCode::SERVICE_UNAVAILABLE);
    let allow = ["--edge-allow-private-upstreams", "true"];
    let server = Process::start_as(binary(), &data, "", &allow);
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token).unwrap();
    let endpoint = json!({
        "url": "http://cut.culvert.localhost",
        "upstream_url": format!("http://{}", origin.address),
    });
    let made = client.expect(Method::POST, "/endpoints", Some(&endpoint));
    made.await.unwrap();
    let sources = json!([{"type": "http_request_complete.v0"}]);
    subscribe(&client, &hook, sources).await;
    let request = b"GET / HTTP/1.1\r\nhost: cut.culvert.localhost\r\nconnection: close\r\n\r\n";
    for n in 0..REQUESTS {
        assert_eq!(raw(server.http, request).await.status, 200);
        if n == REQUESTS / 2 {
            eventually("some events wait on the disk", async || {
                metric(&server, "culvert_events_queued_total").await > 0
            })
            .await;
        }
    }
    // The estimate of the loss is from the rate so far, which a machine under load may exceed.
    eventually("the events wait on the disk", async || {
        metric(&server, "culvert_events_queued_total").await >= REQUESTS
    })
    .await;
    // Simulates a power failure: copies the files, and empties the one with the latest count, which is never synced.
    server.signal("STOP");
    std::fs::create_dir(&cut).unwrap();
    for entry in std::fs::read_dir(&data).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), cut.join(entry.file_name())).unwrap();
        }
    }
    server.kill();
    let n_refused = hook.received().len();
    std::fs::write(cut.join("offered"), []).unwrap();

    hook.answer_with(StatusCode::OK);
    let server = Process::start_as(binary(), &cut, "", &allow);
    eventually("all that is not counted as lost arrives", async || {
        let taken = hook.received().split_off(n_refused);
        let events = taken.iter().flat_map(|request| match request.json() {
            Value::Array(batch) => batch,
            one => vec![one],
        });
        let ids: BTreeSet<String> = events.map(|one| one["event_id"].to_string()).collect();
        let lost = metric(&server, LOST).await + metric(&server, MAYBE_LOST).await;
        ids.len() + lost >= REQUESTS
    })
    .await;
    let maybe = metric(&server, MAYBE_LOST).await;
    assert!((1..=4 * REQUESTS).contains(&maybe), "{maybe}");
    // The loss is counted once. A clean stop leaves nothing to count.
    assert_eq!(server.terminate(), 0);
    std::fs::write(cut.join("offered"), []).unwrap();
    let server = Process::start_as(binary(), &cut, "", &allow);
    for name in [LOST, MAYBE_LOST] {
        assert_eq!(metric(&server, name).await, 0, "{name}");
    }
    assert_eq!(server.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_change_and_no_audit_event_is_lost() {
    for backend in backends().await {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let database = backend.database().await;
        let url = database
            .as_ref()
            .map(|database| database.url.clone())
            .unwrap_or_default();
        let hook = Receiver::start().await;
        let entropy = SeededEntropy::new(7);
        let entropy: &dyn Entropy = &entropy;
        let mut acknowledged: BTreeSet<String> = BTreeSet::new();

        for round in 0..ROUNDS {
            let server = Process::start(&data, &url);
            let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
            let client = Client::new(&server.api, token).unwrap();
            if round == 0 {
                let wanted = json!([{"type": "api_key_created.v0"}]);
                subscribe(&client, &hook, wanted).await;
            }
            let acknowledgements = Arc::new(Semaphore::new(0));
            let mut writers = JoinSet::new();
            for _ in 0..WRITERS {
                let counted = Arc::clone(&acknowledgements);
                writers.spawn(write_until_it_dies(client.clone(), counted));
            }
            // The change that the kill interrupts, and its stage, are random. Some changes are acknowledged before.
            let [extra] = entropy.bytes::<1>();
            let wanted = WRITERS + usize::from(extra % 64);
            let written = acknowledgements.acquire_many(u32::try_from(wanted).unwrap());
            let written = tokio::time::timeout(culvert_testing::PATIENCE, written).await;
            written.expect("writers are active").unwrap().forget();
            server.kill();
            for ids in writers.join_all().await {
                acknowledged.extend(ids);
            }
        }
        assert!(acknowledged.len() >= ROUNDS * WRITERS);

        let server = Process::start(&data, &url);
        let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
        let client = Client::new(&server.api, token).unwrap();
        for id in &acknowledged {
            let answer = client
                .call(Method::GET, &format!("/api_keys/{id}"), None)
                .await
                .unwrap();
            assert_eq!(answer.status, 200, "{id} was acknowledged and is gone");
        }
        eventually("every acknowledged change was reported of", async || {
            let reported: BTreeSet<String> = hook
                .events()
                .iter()
                .map(|event| event["object"]["id"].as_str().unwrap().to_owned())
                .collect();
            acknowledged.is_subset(&reported)
        })
        .await;
        println!(
            "{backend:?}: {ROUNDS} kills, {} acknowledged changes, lost 0",
            acknowledged.len()
        );
        assert_eq!(server.terminate(), 0);
        if let Some(database) = database {
            database.remove().await;
        }
    }
}

/// Ids whose creation was acknowledged before the server was killed.
async fn write_until_it_dies(client: Client, acknowledged: Arc<Semaphore>) -> Vec<String> {
    let mut ids = Vec::new();
    while let Ok(answer) = client
        .call(Method::POST, "/api_keys", Some(&json!({})))
        .await
    {
        if answer.status == 201 {
            ids.push(answer.body["id"].as_str().unwrap().to_owned());
            acknowledged.add_permits(1);
        }
    }
    ids
}
