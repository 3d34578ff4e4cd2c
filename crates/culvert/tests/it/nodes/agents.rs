//! Agents are reached through every node, also when the node they are connected to dies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert::client::Client;
use culvert::config::Role;
use culvert::server::Server;
use http::Method;
use hyper::body::Bytes;
use ngrok::prelude::*;
use ngrok::session::{ConnectError, IoStream, default_connect};
use ngrok::tunnel::AcceptError;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Proxy, beside, process_beside};
use crate::agent_options::{connector, made, repeating, secure, talk};
use crate::agents::{Service, builder, credential, get, list, own_agent, pattern, soon};
use crate::harness::{Harness, cluster, eventually, raw};

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_reachable_through_every_node_and_survives_its_own() {
    const HOST: &str = "carried.culvert.localhost";
    let Some(backend) = cluster(2).await else {
        return;
    };
    let stays = Harness::start(&backend).await;
    let folder = tempfile::tempdir().unwrap();
    let dies = process_beside(&stays, folder.path());
    let (_, token) = credential(&stays, json!([])).await;
    let proxy = Proxy::to(dies.agents.unwrap()).await;
    let service = Service::named("one").await;
    let session = builder(&stays, proxy.address, &token);
    let session = soon("a session", session.connect()).await.unwrap();
    let mut endpoint = session.http_endpoint();
    endpoint.scheme(Scheme::HTTP).domain(HOST);
    let endpoint = endpoint.listen_and_forward(service.url());
    let _tunnel = soon("an endpoint", endpoint).await.unwrap();

    let (status, _) = get(dies.http, HOST, "/").await;
    assert_eq!(status, 200, "at the node it is connected to");
    eventually("the other node carries requests to it", async || {
        get(stays.http, HOST, "/").await.0 == 200
    })
    .await;
    let (status, body) = get(stays.http, HOST, "/down/3000000").await;
    assert_eq!(status, 200);
    assert!(body == pattern(3_000_000), "no byte is lost on the way");
    let mut requests = JoinSet::new();
    for _ in 0..40 {
        requests.spawn(get(stays.http, HOST, "/down/20000"));
    }
    for (status, body) in requests.join_all().await {
        assert_eq!(status, 200);
        assert!(body == pattern(20_000));
    }
    let sessions = list(&stays, "tunnel_sessions").await;
    assert_eq!(sessions.len(), 1);

    *proxy.target.lock().unwrap() = stays.agents;
    dies.kill();
    eventually("the agent is back, at the node that is left", async || {
        get(stays.http, HOST, "/").await.0 == 200
    })
    .await;
    let after = list(&stays, "tunnel_sessions").await;
    assert_eq!(after.len(), 1);
    assert_eq!(after[0]["id"], sessions[0]["id"], "the session goes on");
    stays.stop().await;
}

/// A way to the server for an agent that does not come back when it was cut off.
async fn once(
    host: String,
    port: u16,
    tls: Arc<rustls::ClientConfig>,
    cut: Option<AcceptError>,
) -> Result<Box<dyn IoStream>, ConnectError> {
    match cut {
        None => default_connect(host, port, tls, None).await,
        Some(_) => Err(ConnectError::Canceled),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_endpoint_is_reachable_through_another_node() {
    const HOST: &str = "tls.culvert.localhost";
    let Some(backend) = cluster(2).await else {
        return;
    };
    let (one, port) = Harness::start_with_port_on(&backend).await;
    let other = beside(&one).await;
    let admin = other.client_with(&one.token);
    let (_, token) = credential(&one, json!([])).await;
    let mut tasks = JoinSet::new();
    let repeating = repeating(&mut tasks).await;
    let plain: url::Url = format!("tcp://{repeating}").parse().unwrap();
    let theirs = made(&[HOST]);
    let secure = secure(&mut tasks, &theirs).await;
    let mut builder = builder(&one, one.agents, &token);
    builder
        .connector(once)
        .handle_stop_command(|_| async { Ok(()) })
        .handle_restart_command(|_| async { Ok(()) })
        .handle_update_command(|_| async { Err("it is stuck".to_owned()) });
    let session = soon("a session", builder.connect()).await.unwrap();
    let said = "hello\r\n\r\n";

    // Bytes, at the port of the other node.
    let endpoint = session.tcp_endpoint();
    let endpoint = endpoint.listen_and_forward(plain.clone());
    let mut tunnel = soon("an endpoint", endpoint).await.unwrap();
    assert_eq!(
        tunnel.url(),
        format!("tcp://1.tcp.culvert.localhost:{port}")
    );
    let at = SocketAddr::from(([127, 0, 0, 2], port));
    eventually("the other node has the port", async || {
        TcpStream::connect(at).await.is_ok()
    })
    .await;
    for _ in 0..10 {
        let answer = raw(at, said.as_bytes()).await;
        assert!(answer.text.ends_with(said), "{}", answer.text);
    }
    soon("a clean end", tunnel.close()).await.unwrap();

    // TLS that ends at the other node with the agent's certificate, and TLS that ends at the service.
    let by_theirs = connector(theirs.0.as_bytes(), None);
    for is_secure in [false, true] {
        let mut endpoint = session.tls_endpoint();
        endpoint.domain(HOST);
        let upstream = match is_secure {
            true => secure.clone(),
            false => {
                let [certificate, key] = [&theirs.0, &theirs.1].map(|pem| Bytes::from(pem.clone()));
                endpoint.termination(certificate, key);
                plain.clone()
            }
        };
        let tunnel = endpoint.listen_and_forward(upstream);
        let mut tunnel = soon("an endpoint", tunnel).await.unwrap();
        eventually("the other node carries it", async || {
            let answer = talk(&by_theirs, other.https, HOST, said).await;
            answer.is_some_and(|answer| answer.ends_with(said))
        })
        .await;
        soon("a clean end", tunnel.close()).await.unwrap();
    }

    // A command travels to the node that has the agent, and its response returns. The agent has no
    // endpoint there by now.
    let ask = async |session: &ngrok::Session, what: &str| {
        let path = format!("/tunnel_sessions/{}/{what}", session.id());
        let body = json!({});
        let answer = admin.call(Method::POST, &path, Some(&body)).await.unwrap();
        (answer.status, answer.body)
    };
    let (status, failed) = ask(&session, "update").await;
    assert_eq!(
        (status, &failed["error_code"]),
        (502, &json!("ERR_NGROK_809"))
    );
    assert!(
        failed["msg"].as_str().unwrap().contains("it is stuck"),
        "{failed}"
    );
    assert_eq!(ask(&session, "stop").await.0, 204);
    eventually("it has ended", async || {
        list(&one, "tunnel_sessions").await.is_empty()
    })
    .await;
    // After a restart command, it may reconnect at any time, so this is last.
    let session = soon("a session", builder.connect()).await.unwrap();
    assert_eq!(ask(&session, "restart").await.0, 204);
    drop(session);
    other.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_node_sends_commands_to_agents_of_other_nodes() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let folder = tempfile::tempdir().unwrap();
    let mut settings = one.settings.clone();
    settings.roles = vec![Role::Api];
    settings.data_dir = folder.path().to_owned();
    settings.secrets.key_file = one.settings.key_file().display().to_string();
    let alone = Box::pin(Server::start(settings)).await.unwrap();
    assert_eq!(alone.agents_addr(), None);
    let admin = Client::new(&alone.api_url(), one.token.clone()).unwrap();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(alone.run(stop.clone()));

    let (_, token) = credential(&one, json!([])).await;
    let mut builder = builder(&one, one.agents, &token);
    builder
        .connector(once)
        .handle_stop_command(|_| async { Ok(()) })
        .handle_update_command(|_| async { Err("it is stuck".to_owned()) });
    let session = soon("a session", builder.connect()).await.unwrap();
    let ask = async |what: &str| {
        let path = format!("/tunnel_sessions/{}/{what}", session.id());
        let body = json!({});
        let answer = admin.call(Method::POST, &path, Some(&body)).await.unwrap();
        (answer.status, answer.body["error_code"].clone())
    };
    let refused = |status: u16, code: u16| (status, json!(format!("ERR_NGROK_{code}")));
    assert_eq!(ask("restart").await, refused(400, 804));
    assert_eq!(ask("update").await, refused(502, 809));
    assert_eq!(ask("stop").await, (204, Value::Null));
    eventually("it has ended", async || {
        list(&one, "tunnel_sessions").await.is_empty()
    })
    .await;
    assert_eq!(ask("stop").await.0, 404);
    stop.cancel();
    soon("an end", tasks.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_node_does_not_wait_for_a_dead_agent() {
    // A node that waits does so every time. On a loaded machine any stop may take as long.
    const ATTEMPTS: usize = 5;
    let mut took = Vec::new();
    for _ in 0..ATTEMPTS {
        let Some((with, without)) = Box::pin(stops()).await else {
            return;
        };
        if with < without + Duration::from_millis(2_500) {
            return;
        }
        took.push((with, without));
    }
    panic!("with a dead agent, and without one: {took:?}");
}

/// How long a node needs to stop whose agent died, and how long the next one without an agent.
async fn stops() -> Option<(Duration, Duration)> {
    const HOST: &str = "died.culvert.localhost";
    let backend = cluster(2).await?;
    let leaves = Harness::start(&backend).await;
    let stays = beside(&leaves).await;
    let made = leaves.create("credentials", json!({"acl": []})).await;
    let service = Service::named("one").await;
    let (url, upstream) = (format!("http://{HOST}"), service.address.to_string());
    let arguments = ["http", &upstream, "--url", &url];
    let mut agent = own_agent(&leaves, &made, &arguments);
    eventually("the agent serves", async || {
        get(leaves.http, HOST, "/").await.0 == 200
    })
    .await;
    agent.kill().await.unwrap();
    eventually("its connection is gone", async || {
        get(leaves.http, HOST, "/").await.0 != 200
    })
    .await;
    assert_eq!(
        list(&leaves, "tunnel_sessions").await.len(),
        1,
        "it may resume"
    );
    let began = Instant::now();
    leaves.stop().await;
    let took = began.elapsed();
    let began = Instant::now();
    stays.stop().await;
    Some((took, began.elapsed()))
}
