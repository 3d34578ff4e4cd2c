//! Several servers on one PostgreSQL database: what one knows the others know, agents are reached through
//! all of them, and one that dies takes nothing along.

mod agents;
mod cut_off;
mod deliveries;
mod failover;
mod identity;
mod rate_limits;
mod upstreams;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, Receiver, binary, cluster, eventually};
use crate::kill::Process;
use crate::tail::Tail;

/// Another server on the database of `first`, in this process.
pub async fn beside(first: &Harness) -> Harness {
    beside_at(first, &first.settings.database_url).await
}

/// The same, with another way to the database.
async fn beside_at(first: &Harness, database_url: &str) -> Harness {
    let of_first = first.settings.clone();
    Harness::start_with(&Backend::Sqlite, move |settings| {
        settings.database_url = database_url.to_owned();
        settings.secrets.key_file = of_first.key_file().display().to_string();
        // Ports of TCP endpoints are listened on by every node.
        settings.edge.http_addr = "127.0.0.2:0".into();
        settings.edge.tcp_ports = of_first.edge.tcp_ports.clone();
    })
    .await
}

/// A further node in a separate process, which can be killed.
pub fn process_beside(first: &Harness, folder: &Path) -> Process {
    let key = first.settings.key_file().display().to_string();
    let arguments = ["--secrets-key-file", &key];
    Process::start_as(binary(), folder, &first.settings.database_url, &arguments)
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_on_one_node_reach_the_others() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let other = beside(&one).await;
    let admin = other.client_with(&one.token);
    let hook = Receiver::start().await;
    subscribe_debug(&one, &hook, json!([{"type": "api_key_created.v0"}])).await;

    // A key is valid on every node from the response on, and on none after its deletion.
    let mut made = BTreeSet::new();
    for nth in 0..30 {
        let (here, there) = match nth % 2 {
            0 => (&one.client, &other),
            _ => (&admin, &one),
        };
        let body = json!({});
        let key = here.expect(Method::POST, "/api_keys", Some(&body));
        let key = key.await.unwrap();
        let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
        let bearer = there.client_with(key["token"].as_str().unwrap());
        let shown = bearer.call(Method::GET, &path, None).await.unwrap();
        assert_eq!(shown.status, 200);
        let gone = here.call(Method::DELETE, &path, None).await.unwrap();
        assert_eq!(gone.status, 204);
        let refused = bearer.call(Method::GET, &path, None).await.unwrap();
        assert_eq!(refused.status, 401);
        made.insert(key["id"].as_str().unwrap().to_owned());
    }

    // The edge of one node soon applies a change made at another.
    let origin = Receiver::start().await;
    let mut slowest = Duration::ZERO;
    for nth in 0..5 {
        let host = format!("n{nth}.culvert.localhost");
        let upstream = format!("http://{}", origin.address);
        let body = json!({"url": format!("http://{host}"), "upstream_url": upstream});
        let began = Instant::now();
        one.create("endpoints", body).await;
        eventually("the other edge has it", async || {
            other.get(&host, "/").await.status == 200
        })
        .await;
        slowest = slowest.max(began.elapsed());
    }
    println!("an endpoint was at the other edge within {slowest:?}, request and all");

    // Both delivered all the time, and no event was sent twice.
    hook.wait_for("api_key_created.v0", made.len()).await;
    let mut reported: BTreeMap<String, usize> = BTreeMap::new();
    for event in hook.events() {
        let id = event["object"]["id"].as_str().unwrap().to_owned();
        *reported.entry(id).or_default() += 1;
    }
    assert_eq!(reported.keys().cloned().collect::<BTreeSet<_>>(), made);
    assert!(reported.values().all(|times| *times == 1), "{reported:?}");
    other.stop().await;
    one.stop().await;
}

/// A tail and health of one node include the traffic of another.
#[tokio::test(flavor = "multi_thread")]
async fn every_node_shows_health_and_tails_of_all() {
    const HOST: &str = "watched.culvert.localhost";
    const KIND: &str = "http_request_complete.v0";
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let other = beside(&one).await;
    let admin = other.client_with(&one.token);
    let (up, down) = (Receiver::start().await, Receiver::start().await);
    down.answer_with(http::StatusCode::NOT_FOUND);
    let subscription = subscribe_debug(&one, &up, json!([{"type": KIND}])).await;
    let well = subscription["destinations"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let subscription = subscribe_debug(&one, &down, json!([{"type": KIND}])).await;
    let ill = subscription["destinations"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let origin = Receiver::start().await;
    one.endpoint("watched", origin.address).await;
    let tail = Tail::start(&one, &["--type", KIND]).await;

    // All traffic is the other node's.
    let mut seen = None;
    eventually("the tail shows what the other node served", async || {
        other.get(HOST, "/there").await;
        while let Some(event) = tail.try_next() {
            if event["object"]["http"]["request"]["url"]["path"] == "/there" {
                seen = Some(event);
            }
        }
        seen.is_some()
    })
    .await;
    assert_eq!(
        seen.unwrap()["object"]["http"]["response"]["status_code"],
        200
    );
    for client in [&one.client, &admin] {
        let health = async |id: &str| {
            let path = format!("/event_destinations/{id}/health");
            client.expect(Method::GET, &path, None).await.unwrap()
        };
        eventually("the health of both", async || {
            let (well, ill) = (health(&well).await, health(&ill).await);
            let nodes = well["nodes"].as_array().unwrap();
            well["state"] == "ok"
                && well["sent"].as_u64().unwrap() > 0
                && nodes.len() == 2
                && ill["state"] == "unhealthy"
                && ill["last_error"]["class"] == "config"
                && ill["dead_lettered"] == 0
        })
        .await;
    }
    drop(tail);
    other.stop().await;
    one.stop().await;
}

/// A proxy whose target can change.
struct Proxy {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(target));
        let mut tasks = JoinSet::new();
        let to = Arc::clone(&target);
        tasks.spawn(async move {
            let mut travelled = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let target = *to.lock().unwrap();
                travelled.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(target).await {
                        drop(copy_bidirectional(&mut near, &mut far).await);
                    }
                });
            }
        });
        Self {
            address,
            target,
            _tasks: tasks,
        }
    }
}

/// The status of one request, or why there is none.
async fn status_of(at: SocketAddr, host: &str) -> Result<u16, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(at).await?;
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(culvert_testing::PATIENCE, exchange).await;
    let answer = answer.map_err(|_| "no answer in 20 s".to_owned())?;
    let answer = answer.map_err(|error| error.to_string())?;
    let status = answer.split(' ').nth(1).and_then(|text| text.parse().ok());
    status.ok_or_else(|| format!("no answer: {answer:?}"))
}
