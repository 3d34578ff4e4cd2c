//! Measures the cost of a change with few and with many objects: the time until the edge runs on it, and the
//! CPU time of the whole process from the commit to the tables of the edge and of delivery. The CPU time of the
//! commit alone is measured first, while nothing compiles. With
//! `CULVERT_BENCH_POSTGRES_URL`, an empty database, also measures the time until another node runs on a
//! change.
//!
//! `cargo bench -p culvert-control --bench changes`; arguments: numbers of endpoints.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints, and stops when it cannot go on"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::net::HostName;
use culvert_base::{BoxFuture, OsEntropy, Secret, SystemClock};
use culvert_control::{
    Call, Caller, Control, EdgePort, LoginKeys, LoginSettings, Logins, Method, Parts, Pepper,
    Reply, Seal, Settings, Statistics, operations, texts,
};
use culvert_delivery::Delivery;
use culvert_edge::{Change, Edge, Snapshot};
use culvert_store::{AuditEvent, Changes, Document, Queue, Revision, Store, StoreUrl};
use culvert_target::TargetSettings;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const CHANGES: u32 = 200;
const NOTHING: AuditEvent = AuditEvent::Suppress { reason: "a bench" };
const BASE: &str = "http://api.example";

#[derive(Debug)]
struct Port(Edge);

impl EdgePort for Port {
    fn publish(&self, snapshot: Snapshot) -> BoxFuture<'_, ()> {
        Box::pin(self.0.publish(snapshot))
    }

    fn apply(&self, change: Change) -> BoxFuture<'_, ()> {
        Box::pin(self.0.apply(change))
    }

    fn confirm(&self, at: Instant) {
        self.0.confirm(at);
    }

    fn take_refused(&self) -> Vec<culvert_events::RefusedTraffic> {
        self.0.take_refused()
    }

    fn unhealthy_upstreams(&self) -> Option<Vec<culvert_edge::UnhealthyUpstream>> {
        self.0.unhealthy_upstreams()
    }

    fn upstream_statuses(&self, endpoint_id: &str) -> Option<Vec<culvert_edge::UpstreamStatus>> {
        self.0.upstream_statuses(endpoint_id)
    }

    fn replay(
        &self,
        _: culvert_edge::ReplayRequest,
    ) -> BoxFuture<'_, Result<culvert_edge::Replayed, culvert_edge::NotReplayed>> {
        Box::pin(async { Err(culvert_edge::NotReplayed::NoEndpoint) })
    }
}

/// CPU time of this process. Linux counts it in hundredths of a second.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = |n: usize| fields.get(n).unwrap().parse::<u64>().unwrap();
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

async fn post(node: &Node, caller: &Caller, path: &str, body: Value) -> Value {
    let found = operations()
        .iter()
        .find(|one| one.method == Method::Post && one.path == path);
    let call = Call {
        caller: caller.clone(),
        path: Vec::new(),
        query: Vec::new(),
        body: Some(body),
        base: BASE.to_owned(),
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        cause: None,
        terms: Arc::default(),
    };
    match found.unwrap().call(&node.control, call).await {
        Ok(Reply::Created { body, .. }) => serde_json::from_str(&body).unwrap(),
        _ => panic!("nothing was created at {path}"),
    }
}

/// A node: its connection to the database, and control with an edge and delivery.
struct Node {
    store: Store,
    control: Arc<Control>,
    stop: CancellationToken,
    running: tokio::task::JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Node {
    /// Starts a node on a new database, or on `shared`.
    async fn start(shared: Option<&StoreUrl>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(SystemClock);
        let entropy = Arc::new(OsEntropy);
        let own = StoreUrl::Sqlite(folder.path().join("state.db"));
        let url = shared.unwrap_or(&own);
        let store = Store::open(url, clock.clone(), texts()).await.unwrap();
        let queue = Queue::open(url, clock.clone()).await.unwrap();
        let targets = TargetSettings {
            file_root: Some(folder.path().join("events")),
            public_base: BASE.to_owned(),
            ..TargetSettings::default()
        };
        let settings = culvert_delivery::Settings {
            targets: targets.clone(),
            ..culvert_delivery::Settings::default()
        };
        let delivery = Delivery::new(
            settings,
            queue.clone(),
            store.clone(),
            clock.clone(),
            entropy.clone(),
        );
        let edge = Edge::bind(
            culvert_edge::Settings::default(),
            delivery.recorder(),
            clock.clone(),
        );
        let edge = edge.await.unwrap();
        let (logins, _entries) = Logins::new(LoginKeys::new([[1; 32]]), LoginSettings::default());
        let control = Control::open(Parts {
            ids: Arc::default(),
            store: store.clone(),
            clock,
            entropy,
            seal: Seal::new(&Secret::new("a master key".into())),
            pepper: Pepper::new(&Secret::new("a pepper".into())),
            settings: Settings {
                token_form: Default::default(),
                leaked: Default::default(),
                agent_minimum: Default::default(),
                own_names: Vec::new(),
                kubernetes_ingress: String::new(),
                edge_domain: HostName::parse("culvert.localhost").unwrap(),
                reserved_names: [
                    "admin", "api", "auth", "connect", "console", "login", "metrics",
                ]
                .map(str::to_owned)
                .to_vec(),
                public_ports: Default::default(),
                tcp_ports: 20_000..=20_002,
                allow_private_upstreams: true,
                allow_unix_upstreams: culvert_base::net::AllowedPaths::default(),
                allow_file_upstreams: culvert_base::net::AllowedPaths::default(),
                has_tls_before_edge: false,
                domains_of_owner: false,
                allow_public_calls: false,
                strict_rights: false,
                targets: Arc::new(culvert_control::Targets {
                    types: culvert_destinations::TYPES,
                    settings: targets,
                }),
                base_url: BASE.to_owned(),
            },
            delivery,
            target_types: culvert_destinations::TYPES,
            edge: Some(Arc::new(Port(edge))),
            policies: culvert_control::PolicyRuntime {
                logins,
                ip_data: Default::default(),
                on_expression_error: Default::default(),
            },
            console_sign_in: None,
            leak_partner: None,
            certificates: None,
            checks: None,
            agents: None,
            nodes: None,
            statistics: Statistics::new(queue, "a node".to_owned(), Default::default()),
        });
        let control = control.await.unwrap();
        Self {
            store,
            control,
            stop: CancellationToken::new(),
            running: tokio::task::JoinSet::new(),
            _folder: folder,
        }
    }

    async fn first_caller(&self) -> Caller {
        let token = self.control.bootstrap(None).await.unwrap().unwrap();
        let header = format!("Bearer {}", token.reveal());
        match self.control.identity.authenticate(Some(&header)).await {
            Ok(caller) => caller,
            Err(_) => panic!("the first key is not known"),
        }
    }

    /// Keeps the planes up to date from here on.
    async fn run(&mut self) {
        let control = Arc::clone(&self.control);
        self.running.spawn(control.run(self.stop.clone()));
        while !self.control.is_applied(Duration::from_secs(60)).await {}
    }

    /// Inserts copies of this document with distinct names.
    async fn fill(&self, like: &Document, count: usize) {
        let id = &like.head.id;
        let mut changes = Changes::default();
        for n in 1..count {
            let mut one: Document = like.clone();
            one.head.id = format!("{}{n:06}", &id[..id.len() - 6]);
            one.keys = Vec::new();
            one.body = like.body.replace("first", &format!("n{n}"));
            changes = changes.and(Changes::insert(one, NOTHING));
            if n % 500 == 0 || n + 1 == count {
                self.store
                    .commit(std::mem::take(&mut changes))
                    .await
                    .unwrap();
            }
        }
    }

    /// Commits a change of that document.
    async fn change(&self, like: &Document, n: u32) -> Revision {
        let head = &like.head;
        let mut one = self.store.get(&head.kind, &head.id).await.unwrap().unwrap();
        one.body = like.body.replace("first", &format!("changed{n}"));
        let changes = Changes::replace(one, NOTHING);
        self.store.commit(changes).await.unwrap()
    }

    async fn document(&self, kind: &str, made: &Value) -> Document {
        let id = made["id"].as_str().unwrap();
        self.store.get(kind, id).await.unwrap().unwrap()
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while self.running.join_next().await.is_some() {}
        self.store.close().await;
    }
}

/// CPU time of a commit while nothing compiles it.
async fn commit_alone(node: &Node, like: &Document) -> Duration {
    let cpu_before = cpu();
    for n in 0..CHANGES {
        node.change(like, n).await;
    }
    cpu().saturating_sub(cpu_before) / CHANGES
}

/// Changes one of these documents repeatedly. Prints the time until each change was live on `seen_at`, and
/// the CPU time.
async fn measure(what: &str, count: usize, made_at: &Node, seen_at: &Node, like: &Document) {
    let (mut slowest, mut total) = (Duration::ZERO, Duration::ZERO);
    let changes = match std::ptr::eq(made_at, seen_at) {
        true => CHANGES,
        // Each wait takes up to half a second.
        false => CHANGES / 10,
    };
    let cpu_before = cpu();
    let mut known = seen_at.store.watch();
    for n in 0..changes {
        let revision = made_at.change(like, n).await;
        let committed = Instant::now();
        known.wait_for(|known| *known >= revision).await.unwrap();
        assert!(seen_at.control.is_applied(Duration::from_secs(10)).await);
        total += committed.elapsed();
        slowest = slowest.max(committed.elapsed());
    }
    let cpu = cpu().saturating_sub(cpu_before) / changes;
    println!(
        "{what}={count} cpu_per_change={} µs live_after={} µs (slowest {} µs)",
        cpu.as_micros(),
        (total / changes).as_micros(),
        slowest.as_micros()
    );
}

async fn endpoints(count: usize) {
    let mut node = Node::start(None).await;
    let caller = node.first_caller().await;
    let body =
        json!({"url": "http://first.culvert.localhost", "upstream_url": "http://127.0.0.1:1"});
    let made = post(&node, &caller, "/endpoints", body).await;
    let first = node.document("endpoint", &made).await;
    node.fill(&first, count).await;
    let alone = commit_alone(&node, &first).await;
    println!("commit_alone={} µs", alone.as_micros());
    node.run().await;
    measure("endpoints", count, &node, &node, &first).await;
    node.stop().await;
}

async fn destinations(count: usize) {
    let mut node = Node::start(None).await;
    let caller = node.first_caller().await;
    let target = json!({"debug": {"callback_url": "https://first.example/"}});
    let body = json!({"format": "json", "target": target});
    let made = post(&node, &caller, "/event_destinations", body).await;
    let sources =
        json!([{"type": "http_request_complete.v0", "filter": "ev.conn.server_port == 443"}]);
    let body = json!({"destination_ids": [made["id"]], "sources": sources});
    let subscribed = post(&node, &caller, "/event_subscriptions", body).await;
    let first = node.document("event_destination", &made).await;
    node.fill(&first, count).await;
    let subscription = node.document("event_subscription", &subscribed).await;
    node.fill(&subscription, count).await;
    node.run().await;
    measure("destinations", count, &node, &node, &first).await;
    node.stop().await;
}

/// Changes endpoints at one node and waits for another node to see them, on an empty database.
async fn among_nodes(count: usize, url: &StoreUrl) {
    let mut one = Node::start(Some(url)).await;
    let caller = one.first_caller().await;
    let body =
        json!({"url": "http://first.culvert.localhost", "upstream_url": "http://127.0.0.1:1"});
    let made = post(&one, &caller, "/endpoints", body).await;
    let first = one.document("endpoint", &made).await;
    one.fill(&first, count).await;
    let mut other = Node::start(Some(url)).await;
    one.run().await;
    other.run().await;
    measure("endpoints_of_two_nodes", count, &one, &other, &first).await;
    one.stop().await;
    other.stop().await;
}

fn main() {
    let given = std::env::args().skip(1).filter_map(|one| one.parse().ok());
    let mut counts: Vec<usize> = given.collect();
    if counts.is_empty() {
        counts = vec![1_000, 10_000, 100_000];
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for count in counts {
        runtime.block_on(endpoints(count));
        // An installation has fewer destinations than endpoints.
        runtime.block_on(destinations(count / 100));
    }
    if let Some(url) = std::env::var_os("CULVERT_BENCH_POSTGRES_URL") {
        let url = url.to_str().unwrap().parse().unwrap();
        runtime.block_on(among_nodes(most, &url));
    }
}
