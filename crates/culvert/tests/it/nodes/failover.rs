//! Rolling restarts and killed nodes, as clients of an agent see them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Proxy, beside, process_beside, status_of};
use crate::agent_clients::{Kind, Order, Running, start};
use crate::agents::{Service, credential, list};
use crate::harness::{Harness, binary, cluster, eventually};

/// A load balancer for agents: forwards each connection to a server that accepts it.
async fn balanced(nodes: Arc<RwLock<Vec<Harness>>>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut passed_on = JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let targets: Vec<SocketAddr> = nodes.read().await.iter().map(|it| it.agents).collect();
            passed_on.spawn(async move {
                for target in targets {
                    if let Ok(mut far) = TcpStream::connect(target).await {
                        drop(copy_bidirectional(&mut near, &mut far).await);
                        return;
                    }
                }
            });
        }
    });
    (address, tasks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_three_nodes_fails_no_request() {
    Box::pin(rolling_restart(Kind::Own)).await;
}

/// This agent has no command to move to another node.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_three_nodes_fails_no_request_of_a_published_agent() {
    if Kind::Python.is_here() {
        Box::pin(rolling_restart(Kind::Python)).await;
    }
}

/// A running agent.
enum RunningAgent {
    Own(Ended),
    Published(Running),
}

async fn rolling_restart(kind: Kind) {
    const HOSTS: [&str; 2] = ["behind.culvert.localhost", "cloud.culvert.localhost"];
    const CLIENTS: usize = 4;
    let Some(backend) = cluster(4).await else {
        return;
    };
    // It keeps the database and takes no traffic.
    let one = Harness::start(&backend).await;
    let (_, token) = credential(&one, json!([])).await;
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(beside(&one).await);
    }
    let nodes = Arc::new(RwLock::new(first));
    let (proxy, _passed_on) = balanced(Arc::clone(&nodes)).await;
    let service = Service::named("one").await;
    let mut agent = match kind {
        // It keeps nothing of requests, and so does not know when a stream is idle.
        Kind::Own => {
            let agent = binary()
                .args(["http", &service.address.to_string(), "--inspect=false"])
                .args(["--url", &format!("http://{}", HOSTS[0])])
                .env("CULVERT_SERVER", format!("localhost:{}", proxy.port()))
                .env("CULVERT_AUTHTOKEN", &token)
                .env("CULVERT_DATA_DIR", &one.settings.data_dir)
                .stdout(std::process::Stdio::null())
                .spawn();
            RunningAgent::Own(Ended(agent.unwrap()))
        }
        _ => {
            let order = Order {
                proto: "http",
                name: HOSTS[0],
                upstream: service.address,
                at: proxy,
                token: &token,
                folder: &one.settings.data_dir,
                files: None,
            };
            RunningAgent::Published(start(kind, &one, order).await.unwrap())
        }
    };
    let body = json!({
        "url": format!("http://{}", HOSTS[1]),
        "upstream_url": format!("http://{}", service.address),
    });
    one.create("endpoints", body).await;
    eventually("every node serves both", async || {
        let mut served = true;
        for node in nodes.read().await.iter() {
            for host in HOSTS {
                served &= status_of(node.http, host).await == Ok(200);
            }
        }
        served
    })
    .await;

    let over = CancellationToken::new();
    let mut clients = JoinSet::new();
    for nth in 0..CLIENTS {
        let (nodes, over) = (Arc::clone(&nodes), over.clone());
        clients.spawn(async move {
            let (mut count, mut failed) = (0_usize, Vec::new());
            let began = Instant::now();
            while !over.is_cancelled() {
                // A server is taken out of service before it is stopped.
                let nodes = nodes.read().await;
                let at = nodes[(count + nth) % nodes.len()].http;
                let host = HOSTS[count % 2];
                let asked_at = began.elapsed();
                match status_of(at, host).await {
                    Ok(200) => {}
                    other => {
                        let took = began.elapsed() - asked_at;
                        failed.push(format!(
                            "{asked_at:?} {host} at {at}: {other:?} after {took:?}"
                        ));
                    }
                }
                drop(nodes);
                count += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (count, failed)
        });
    }
    for _ in 0..3 {
        let old = nodes.write().await.remove(0);
        let began = Instant::now();
        old.stop().await;
        println!("a node stopped in {:?}", began.elapsed());
        let new = beside(&one).await;
        eventually("the new one serves both", async || {
            status_of(new.http, HOSTS[0]).await == Ok(200)
                && status_of(new.http, HOSTS[1]).await == Ok(200)
        })
        .await;
        nodes.write().await.push(new);
    }
    over.cancel();
    let (mut count, mut failed) = (0, Vec::new());
    for (of_client, failures) in clients.join_all().await {
        count += of_client;
        failed.extend(failures);
    }
    println!("3 restarts, {count} requests, {} failed", failed.len());
    assert!(
        failed.is_empty(),
        "{} of {count}: {failed:#?}",
        failed.len()
    );
    if let RunningAgent::Own(agent) = &mut agent {
        assert!(agent.0.try_wait().unwrap().is_none(), "the agent goes on");
    }
    let sessions = list(&one, "tunnel_sessions").await;
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    match agent {
        RunningAgent::Own(agent) => drop(agent),
        RunningAgent::Published(agent) => agent.kill().await,
    }
    for node in std::mem::take(&mut *nodes.write().await) {
        node.stop().await;
    }
    one.stop().await;
}

/// Clients that send requests to two nodes until they are stopped.
struct Clients {
    over: CancellationToken,
    running: JoinSet<RequestResults>,
}

/// What became of requests.
#[derive(Default)]
struct RequestResults {
    count: usize,
    failed: Vec<(Instant, String)>,
    slowest: Duration,
}

impl Clients {
    const COUNT: usize = 4;

    fn start(nodes: [SocketAddr; 2], host: &'static str) -> Self {
        let over = CancellationToken::new();
        let mut running = JoinSet::new();
        for nth in 0..Self::COUNT {
            running.spawn(ask_on(nodes[nth % 2], host, over.clone()));
        }
        Self { over, running }
    }

    async fn stop(self) -> RequestResults {
        self.over.cancel();
        let mut all = RequestResults::default();
        for asked in self.running.join_all().await {
            all.count += asked.count;
            all.failed.extend(asked.failed);
            all.slowest = all.slowest.max(asked.slowest);
        }
        all
    }
}

async fn ask_on(at: SocketAddr, host: &'static str, over: CancellationToken) -> RequestResults {
    let mut asked = RequestResults::default();
    while !over.is_cancelled() {
        let began = Instant::now();
        let status = status_of(at, host).await;
        asked.slowest = asked.slowest.max(began.elapsed());
        if status != Ok(200) {
            asked
                .failed
                .push((Instant::now(), format!("{status:?} at {at}")));
        }
        asked.count += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_of_three_fails_no_request_of_its_agents() {
    Box::pin(killed_node(Kind::Own)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_of_three_fails_no_request_of_its_published_agents() {
    if Kind::Python.is_here() {
        Box::pin(killed_node(Kind::Python)).await;
    }
}

async fn killed_node(kind: Kind) {
    const HOST: &str = "killed.culvert.localhost";
    let Some(backend) = cluster(3).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let two = beside(&one).await;
    let folder = tempfile::tempdir().unwrap();
    let dies = process_beside(&one, folder.path());
    let (_, token) = credential(&one, json!([])).await;
    let proxy = Proxy::to(dies.agents.unwrap()).await;
    let service = Service::named("one").await;
    let order = Order {
        proto: "http",
        name: HOST,
        upstream: service.address,
        at: proxy.address,
        token: &token,
        folder: &one.settings.data_dir,
        files: None,
    };
    let agent = start(kind, &one, order).await.unwrap();
    let nodes = [one.http, two.http];
    eventually("every node serves it", async || {
        let mut served = true;
        for at in nodes {
            served &= status_of(at, HOST).await == Ok(200);
        }
        served
    })
    .await;
    *proxy.target.lock().unwrap() = one.agents;
    let clients = Clients::start(nodes, HOST);
    // Requests are on their way when it dies.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let killed_at = Instant::now();
    dies.kill();
    eventually("the agent is back", async || {
        let is_elsewhere = list(&one, "endpoints").await;
        is_elsewhere.len() == 1 && status_of(one.http, HOST).await == Ok(200)
    })
    .await;
    // Whatever would fail late has the time for it.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let RequestResults {
        count,
        failed,
        slowest,
    } = clients.stop().await;
    let last = failed.iter().map(|(at, _)| *at - killed_at).max();
    println!(
        "{kind:?}: 1 kill, {count} requests, {} failed, the last {last:?} after the kill, the slowest took {slowest:?}",
        failed.len()
    );
    // Requests that were on their way are repeated, and later ones wait for two seconds. Only where the
    // agent takes longer to reconnect, or a node to learn of it, do clients get 404.
    let is_reported = |(_, why): &(Instant, String)| why.starts_with("Ok(404)");
    assert!(failed.iter().all(is_reported), "{failed:#?}");
    assert!(last.is_none_or(|last| last < Duration::from_secs(20)));
    agent.kill().await;
    two.stop().await;
    one.stop().await;
}

/// An agent with the addresses of two nodes has a session with each: when one node dies, requests go through the
/// other.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_two_nodes_survives_a_killed_node() {
    const HOST: &str = "two.culvert.localhost";
    // Requests on their way may fail; none waits until the node is known as lost, which takes longer.
    const FAILURES_END_WITHIN: Duration = Duration::from_secs(2);
    let Some(backend) = cluster(3).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let two = beside(&one).await;
    let folder = tempfile::tempdir().unwrap();
    let dies = process_beside(&one, folder.path());
    let (_, token) = credential(&one, json!([])).await;
    let service = Service::named("one").await;
    let [first, second] = [dies.agents.unwrap(), two.agents].map(|it| it.port());
    let agent = binary()
        .args(["http", &service.address.to_string(), "--inspect=false"])
        .args(["--url", &format!("http://{HOST}")])
        .env(
            "CULVERT_SERVER",
            format!("localhost:{first}, localhost:{second}"),
        )
        .env("CULVERT_AUTHTOKEN", &token)
        .env("CULVERT_DATA_DIR", &one.settings.data_dir)
        .stdout(std::process::Stdio::null())
        .spawn();
    let mut agent = Ended(agent.unwrap());
    let nodes = [one.http, two.http];
    eventually("both sessions serve it at every node", async || {
        let mut served = list(&one, "endpoints").await.len() == 2;
        for at in nodes {
            // As often as to have been served by either session.
            for _ in 0..4 {
                served &= status_of(at, HOST).await == Ok(200);
            }
        }
        served
    })
    .await;
    let clients = Clients::start(nodes, HOST);
    // Requests are on their way when it dies.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let killed_at = Instant::now();
    dies.kill();
    // Whatever would fail late has the time for it, until the run of the dead node is over.
    eventually("the session with the dead node is gone", async || {
        list(&one, "tunnel_sessions").await.len() == 1
    })
    .await;
    let RequestResults {
        count,
        failed,
        slowest,
    } = clients.stop().await;
    let last = failed.iter().map(|(at, _)| *at - killed_at).max();
    println!(
        "1 kill, two sessions, {count} requests, {} failed, the last {last:?} after the kill, the slowest took {slowest:?}",
        failed.len()
    );
    assert!(
        last.is_none_or(|last| last < FAILURES_END_WITHIN),
        "{failed:#?}"
    );
    assert!(agent.0.try_wait().unwrap().is_none(), "the agent goes on");
    drop(agent);
    two.stop().await;
    one.stop().await;
}

/// A process that ends with its test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
