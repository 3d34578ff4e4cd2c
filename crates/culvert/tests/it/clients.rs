//! Foreign clients against the real server: the suites in `tests/clients`, each in the environment that
//! `scripts/python-clients` or `scripts/node-clients` made for it. Without that environment a test says
//! that it is skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use culvert_edge::Inherited;

use crate::harness::{Backend, Harness};

/// The published Python client drives every operation that it has.
#[tokio::test(flavor = "multi_thread")]
async fn the_published_python_client_works_unchanged() {
    drive("ngrok_api").await;
}

/// Generated requests, allowed and not, get the answers that the OpenAPI document promises.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_what_the_openapi_document_promises() {
    drive("openapi").await;
}

/// TLS of the edge is what Mozilla's intermediate profile asks for, to the eyes of sslyze.
#[tokio::test(flavor = "multi_thread")]
async fn tls_complies_with_a_public_profile() {
    drive("sslyze").await;
}

/// The published Python agent serves HTTP and bytes, comes back after a cut, and is refused by code.
#[tokio::test(flavor = "multi_thread")]
async fn the_published_python_agent_works_unchanged() {
    drive("ngrok").await;
}

/// The same of the published agent for JavaScript.
#[tokio::test(flavor = "multi_thread")]
async fn the_published_javascript_agent_works_unchanged() {
    let root = root();
    let place = root.join("target/node-clients/ngrok");
    if !place.join("made").exists() {
        println!("skipped: the agent for JavaScript is not here; scripts/node-clients gets it");
        return;
    }
    let mut command = Command::new("node");
    command
        .arg("--test")
        .arg(root.join("tests/clients/node/agent.test.mjs"))
        .env(
            "CULVERT_AGENT_PACKAGE",
            place.join("node_modules/@ngrok/ngrok/index.js"),
        );
    run("node", command).await;
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs one suite in Python and prints its totals.
async fn drive(suite: &str) {
    let root = root();
    let place = root.join("target/python-clients").join(suite);
    // The script writes this copy last.
    if !place.join("requirements.txt").exists() {
        println!("skipped: no Python environment for `{suite}`; scripts/python-clients makes it");
        return;
    }
    let mut command = Command::new(place.join("bin/python"));
    command
        .args(["-B", "-m", "unittest", "discover", "-s"])
        .arg(root.join("tests/clients").join(suite));
    run(suite, command).await;
}

/// Runs a suite against a server of its own, whose one TCP address is a port that nobody else has.
async fn run(suite: &str, mut command: Command) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let is_agent = matches!(suite, "ngrok" | "node");
    let sockets = Inherited::new(vec![listener]);
    let culvert = Harness::start_on(&Backend::Sqlite, sockets, |settings| {
        if is_agent {
            settings.edge.tcp_ports = format!("{port}-{port}");
        }
    })
    .await;
    let done = command
        .env("CULVERT_API_URL", &culvert.api)
        .env("CULVERT_API_KEY", &culvert.token)
        .env("CULVERT_HTTP", culvert.http.to_string())
        .env("CULVERT_HTTPS", culvert.https.to_string())
        .env(
            "CULVERT_AGENTS",
            format!("localhost:{}", culvert.agents.port()),
        )
        .env("CULVERT_CA", culvert.settings.data_dir.join("ca.pem"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let totals = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{suite}:\n{said}\n{totals}");
    if suite != "node" {
        for line in said
            .lines()
            .chain(totals.lines().filter(|line| line.starts_with("Ran ")))
        {
            println!("{suite}: {line}");
        }
    }
    culvert.stop().await;
}
