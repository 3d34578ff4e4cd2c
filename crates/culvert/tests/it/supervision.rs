//! Supervision: if any long-lived task ends unexpectedly, the server becomes unready and stops.

use std::collections::BTreeSet;
use std::time::Duration;

use culvert::client::Client;
use culvert::config::Settings;
use culvert::server::Server;
use http::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::harness::{Backend, Database, backends, eventually};

/// All long-lived tasks of a server on SQLite.
pub const TASKS: [&str; 40] = [
    "agent_sessions",
    "agents",
    "alerts",
    "api",
    "audit_tree",
    "certificates",
    "clock",
    "configuration",
    "delivery",
    "delivery.appender",
    "delivery.bodies",
    "delivery.dispatcher",
    "delivery.event_log",
    "delivery.flusher",
    "delivery.replayer",
    "delivery.retention",
    "delivery.traffic_log",
    "delivery.workers",
    "edge",
    "edge.checks",
    "edge.http",
    "edge.https",
    "heartbeat",
    "key_uses",
    "logins",
    "memory",
    "metrics",
    "node_note",
    "queue.checkpoint",
    "queue.writer",
    "refusals",
    "refused_traffic",
    "server_events",
    "ssh",
    "statistics",
    "store.checkpoint",
    "store.ledger",
    "store.lookup",
    "store.writer",
    "upstream_health",
];

/// Additional tasks on PostgreSQL.
pub const TASKS_AMONG_NODES: [&str; 8] = [
    "delivery.cluster",
    "edge_copy",
    "node_identity",
    "node_listener",
    "nodes",
    "rate_limits",
    "store.node_name",
    "store.notifications",
];

fn settings(folder: &tempfile::TempDir) -> Settings {
    let mut settings = Settings {
        data_dir: folder.path().join("data"),
        ..Settings::default()
    };
    for address in [
        &mut settings.api.addr,
        &mut settings.edge.http_addr,
        &mut settings.edge.https_addr,
        &mut settings.agents.addr,
        &mut settings.agents.ssh_addr,
        &mut settings.nodes.addr,
        &mut settings.metrics.addr,
    ] {
        *address = "127.0.0.1:0".into();
    }
    settings.shutdown.drain.0 = Duration::from_secs(5);
    settings
}

async fn start(folder: &tempfile::TempDir, database: Option<&Database>) -> Server {
    let mut settings = settings(folder);
    if let Some(database) = database {
        settings.database_url = database.url.clone();
    }
    Box::pin(Server::start(settings)).await.unwrap()
}

/// Ends one task of a busy server, and checks that the server stops.
async fn kill(task: &str, database: Option<&Database>) {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder, database).await;
    let token = server.first_token().unwrap().reveal().to_owned();
    let client = Client::new(&server.api_url(), token).unwrap();
    let http = server.http_addr().unwrap();
    let kill = server.task_killer();
    let mut running = JoinSet::new();
    running.spawn(server.run(CancellationToken::new()));

    // A request that is in flight until the test has finished its checks.
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", origin.local_addr().unwrap());
    let body = json!({"url": "http://app.culvert.localhost", "upstream_url": upstream});
    let made = client.expect(Method::POST, "/endpoints", Some(&body));
    made.await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: app.culvert.localhost\r\n\r\n";
    let (socket, held) = loop {
        let mut socket = TcpStream::connect(http).await.unwrap();
        socket.write_all(request).await.unwrap();
        let accepted = tokio::time::timeout(Duration::from_millis(500), origin.accept());
        if let Ok(accepted) = accepted.await {
            break (socket, accepted.unwrap());
        }
    };

    // Some tasks start after the server does.
    eventually(&format!("{task} runs"), async || kill(task)).await;
    // Without the edge no request is in flight, and without the API there is no response.
    if !["api", "edge"].contains(&task) {
        eventually(&format!("it is not ready without {task}"), async || {
            let answer = client.call(Method::GET, "/readyz", None).await;
            let answer = answer.unwrap_or_else(|error| panic!("{task}: {error}"));
            answer.status == 503 && answer.body["parts"][task] == "ended"
        })
        .await;
    }
    drop((socket, held));
    let ended = tokio::time::timeout(culvert_testing::PATIENCE, running.join_next());
    let ended = ended
        .await
        .unwrap_or_else(|_| panic!("{task}: it does not stop"));
    let error = ended.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains(&format!("`{task}`")), "{error}");
    // Exit code 1.
    let failure = culvert::cli::Failure::from(error);
    assert!(matches!(failure, culvert::cli::Failure::Failed(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_stops_if_any_task_ends() {
    for backend in backends().await {
        let database = backend.database().await;
        let folder = tempfile::tempdir().unwrap();
        let server = start(&folder, database.as_ref()).await;
        let is_of_sqlite = |task: &&str| task.ends_with("checkpoint");
        let expected: BTreeSet<&str> = match &database {
            None => TASKS.into(),
            Some(_) => TASKS
                .into_iter()
                .filter(|task| !is_of_sqlite(task))
                .chain(TASKS_AMONG_NODES)
                .collect(),
        };
        let running = || server.tasks().into_iter().collect::<BTreeSet<&str>>();
        // Delivery starts its tasks after it has read the queue.
        let started = async || running().is_superset(&expected);
        eventually("every task runs", started).await;
        assert_eq!(running(), expected, "a new task needs a row here");
        let stop = CancellationToken::new();
        stop.cancel();
        server.run(stop).await.unwrap();
        if let Some(database) = database {
            database.remove().await;
        }
        match &backend {
            Backend::Sqlite => {
                for task in TASKS {
                    kill(task, None).await;
                }
            }
            Backend::Postgres(_) | Backend::Cluster(..) => {
                for task in TASKS_AMONG_NODES {
                    let database = backend.database().await.unwrap();
                    kill(task, Some(&database)).await;
                    database.remove().await;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_leaves_nothing_running() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&folder);
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    settings.metrics.addr = taken.local_addr().unwrap().to_string();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http = free.local_addr().unwrap();
    settings.edge.http_addr = http.to_string();
    drop(free);
    // Everything before the metrics runs already.
    let error = Box::pin(Server::start(settings.clone())).await.unwrap_err();
    assert!(format!("{error:#}").contains("`metrics.addr`"), "{error:#}");
    assert!(TcpStream::connect(http).await.is_err());

    settings.metrics.addr = "127.0.0.1:0".into();
    let server = Box::pin(Server::start(settings)).await.unwrap();
    assert_eq!(server.http_addr(), Some(http));
    let stop = CancellationToken::new();
    stop.cancel();
    server.run(stop).await.unwrap();
}
