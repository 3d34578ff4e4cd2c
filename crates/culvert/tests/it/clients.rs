//! Third-party clients against the real server: the suites in `tests/clients`, each in the environment that
//! `scripts/python-clients` or `scripts/node-clients` creates. Without the environment, a test is reported as
//! ignored.

use std::path::{Path, PathBuf};
use std::process::Command;

use culvert::config::ProxiedListener;

use crate::harness::{Backend, Harness, binary};

/// The published Python client uses all operations that it supports.
#[tokio::test(flavor = "multi_thread")]
async fn the_published_python_client_works_unchanged() {
    drive("ngrok_api").await;
}

/// The responses to generated requests, valid and invalid, match the OpenAPI document.
#[tokio::test(flavor = "multi_thread")]
async fn responses_conform_to_the_openapi_document() {
    drive("openapi").await;
}

/// The client that openapi-python-client makes of the OpenAPI document, without a warning, works.
#[tokio::test(flavor = "multi_thread")]
async fn a_generated_python_client_works() {
    drive("generated_python").await;
}

/// The client that openapi-generator makes for Go of the OpenAPI 3.0 document works.
#[tokio::test(flavor = "multi_thread")]
async fn a_generated_go_client_works() {
    drive("generated_go").await;
}

/// Redocly and spectral find no errors in the OpenAPI documents, and the types that openapi-typescript makes of them
/// fit what openapi-fetch gets.
#[tokio::test(flavor = "multi_thread")]
async fn linters_accept_the_documents_and_generated_types_fit() {
    const SUITE: &str = "generated_node";
    let packages = root().join("target/node-clients").join(SUITE);
    // The script writes this copy last.
    if !packages.join("made").exists() {
        culvert_testing::ignore(format_args!(
            "no packages of Node for `{SUITE}`; scripts/node-clients gets them"
        ));
        return;
    }
    let mut command = Command::new("node");
    let script = root().join("tests/clients").join(SUITE).join("check.mjs");
    command.arg(script).arg(packages);
    run(SUITE, command).await;
}

/// The client that progenitor makes of the OpenAPI 3.0 document works.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "compiles 200 crates, which takes two minutes"]
async fn a_generated_rust_client_works() {
    const SUITE: &str = "generated_rust";
    let folder = tempfile::tempdir().unwrap();
    let sources = root().join("tests/clients").join(SUITE);
    std::fs::create_dir(folder.path().join("src")).unwrap();
    for name in ["Cargo.toml", "Cargo.lock", "src/main.rs"] {
        std::fs::copy(sources.join(name), folder.path().join(name)).unwrap();
    }
    let document = culvert_api::openapi(culvert_control::operation_specs(), |generator| {
        culvert_destinations::TYPES.schema(generator)
    });
    let document = culvert_api::openapi_3_0(document).to_string();
    std::fs::write(folder.path().join("openapi-3.0.json"), document).unwrap();
    let mut command = Command::new("cargo");
    command
        .args(["run", "--quiet", "--locked"])
        .current_dir(folder.path())
        .env("CARGO_TARGET_DIR", root().join("target/rust-clients"));
    run(SUITE, command).await;
}

/// According to sslyze, the edge's TLS complies with Mozilla's intermediate profile. OpenSSL and GnuTLS send client
/// certificates.
#[tokio::test(flavor = "multi_thread")]
async fn tls_conforms_to_a_public_profile() {
    drive("sslyze").await;
}

/// gRPC calls of all kinds continue at a thousand small messages per second each, with grpcio as client and as
/// upstream.
#[tokio::test(flavor = "multi_thread")]
async fn grpcio_calls_of_all_kinds_continue() {
    drive("grpc").await;
}

/// Our agent as its users see it: its screen on a terminal that pyte shows, and its API under pyngrok, which starts the
/// program itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_agent_has_a_screen_and_an_api_for_pyngrok() {
    drive("agent").await;
}

/// The same with grpc-go.
#[tokio::test(flavor = "multi_thread")]
async fn grpc_go_calls_of_all_kinds_continue() {
    let program = root().join("target/go-clients/grpc-go");
    if !program.exists() {
        culvert_testing::ignore("no Go client for gRPC; scripts/go-clients makes it");
        return;
    }
    run("grpc-go", Command::new(program)).await;
}

/// Busy but well-behaved HTTP/2 clients are served: Python's `h2`, curl and h2load.
#[tokio::test(flavor = "multi_thread")]
async fn busy_clients_of_http2_are_served() {
    drive("http2").await;
}

/// Messages, handshakes and ends of WebSockets arrive unchanged between published libraries, also over HTTP/2.
#[tokio::test(flavor = "multi_thread")]
async fn websockets_of_published_libraries_work() {
    drive("websockets").await;
}

/// The metrics are valid in both of Prometheus' formats, and a real Prometheus finds numbers for each query of the
/// Grafana dashboard.
#[tokio::test(flavor = "multi_thread")]
async fn prometheus_answers_every_query_of_the_dashboard() {
    drive("metrics").await;
}

/// Server-sent events of the API continue where a published reader left off.
#[tokio::test(flavor = "multi_thread")]
async fn server_sent_events_continue_after_a_reconnect() {
    drive("sse").await;
}

/// Webhooks signed by the libraries of their providers are verified.
#[tokio::test(flavor = "multi_thread")]
async fn webhooks_of_providers_libraries_are_verified() {
    drive("webhooks").await;
}

/// Tokens and key sets of PyJWT are validated.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_published_library_are_validated() {
    drive_with_issuer("jwt").await;
}

/// The services of the guide verify the edge's assertions about users with golang-jwt, jose and PyJWT.
#[tokio::test(flavor = "multi_thread")]
async fn services_verify_assertions_with_published_libraries() {
    drive_with_issuer("identity").await;
}

/// Runs one Python suite, which has a certificate that the edge trusts.
async fn drive_with_issuer(suite: &str) {
    let Some(mut command) = python(suite) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("issuer.pem");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".into()]).unwrap();
    let pem = made.cert.pem() + &made.signing_key.serialize_pem();
    std::fs::write(&file, pem).unwrap();
    command.env("CULVERT_ISSUER", &file);
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.api.base_url = "https://culvert.example.com".into();
        settings.edge.extra_ca_file = file.to_str().unwrap().into();
    });
    Box::pin(run_against(culvert.await, suite, command)).await;
}

/// What the edge makes of targets, framing, upgrades and responses, beside nginx and HAProxy, is what the documents say.
#[tokio::test(flavor = "multi_thread")]
async fn the_edge_treats_bytes_as_the_table_beside_its_peers_says() {
    drive("peers").await;
}

/// HAProxy in front of the edge, behind an agent, and as upstream.
#[tokio::test(flavor = "multi_thread")]
async fn haproxy_and_the_edge_know_each_others_clients() {
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.edge.proxy_protocol = vec![ProxiedListener::Http, ProxiedListener::Https];
        settings.edge.proxy_protocol_from = vec!["127.0.0.1/32".into()];
    });
    if let Some(command) = python("haproxy") {
        Box::pin(run_against(culvert.await, "haproxy", command)).await;
    }
}

/// Services at Unix sockets, behind the edge and behind agents; others than the allowed are refused.
#[tokio::test(flavor = "multi_thread")]
async fn services_at_unix_sockets_are_reached_if_they_are_allowed() {
    let sockets = tempfile::tempdir().unwrap();
    let folder = sockets.path().canonicalize().unwrap();
    let folder = folder.to_str().unwrap();
    let Some(mut command) = python("sockets") else {
        return;
    };
    command.env("CULVERT_SOCKETS", folder);
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.edge.allow_unix_upstreams = vec![folder.into()];
    });
    Box::pin(run_against(culvert.await, "sockets", command)).await;
}

/// Files are served as nginx serves them, by the edge and by an agent, and nothing outside of the allowed folders.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_served_as_by_nginx_if_their_folder_is_allowed() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().canonicalize().unwrap();
    let folder = folder.to_str().unwrap();
    let Some(mut command) = python("files") else {
        return;
    };
    command.env("CULVERT_FOLDER", folder);
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.edge.allow_file_upstreams = vec![folder.into()];
    });
    Box::pin(run_against(culvert.await, "files", command)).await;
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs one Python suite against a new server.
async fn drive(suite: &str) {
    if let Some(command) = python(suite) {
        run(suite, command).await;
    }
}

/// The command of a Python suite. `None`, reported as ignored, if there is no environment for it.
fn python(suite: &str) -> Option<Command> {
    let root = root();
    let place = root.join("target/python-clients").join(suite);
    // The script writes this copy last.
    if !place.join("requirements.txt").exists() {
        culvert_testing::ignore(format_args!(
            "no Python environment for `{suite}`; scripts/python-clients makes it"
        ));
        return None;
    }
    let mut command = Command::new(place.join("bin/python"));
    command
        .args(["-B", "-m", "unittest", "discover", "-s"])
        .arg(root.join("tests/clients").join(suite));
    Some(command)
}

/// Runs a suite against a new server.
async fn run(suite: &str, command: Command) {
    Box::pin(run_against(
        Harness::start(&Backend::Sqlite).await,
        suite,
        command,
    ))
    .await;
}

/// Runs a suite against a server, stops the server and prints the totals.
async fn run_against(culvert: Harness, suite: &str, mut command: Command) {
    let done = command
        .env("CULVERT_API_URL", &culvert.api)
        .env("CULVERT_API_KEY", &culvert.token)
        .env("CULVERT_HTTP", culvert.http.to_string())
        .env("CULVERT_HTTPS", culvert.https.to_string())
        .env("CULVERT_METRICS", culvert.metrics.to_string())
        .env("CULVERT_PROGRAM", binary().get_program())
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
    for missing in said
        .lines()
        .filter_map(|line| line.strip_prefix("skipped: "))
    {
        culvert_testing::ignore(format_args!("{suite}: {missing}"));
    }
    for line in said
        .lines()
        .chain(totals.lines().filter(|line| line.starts_with("Ran ")))
    {
        println!("{suite}: {line}");
    }
    culvert.stop().await;
}
