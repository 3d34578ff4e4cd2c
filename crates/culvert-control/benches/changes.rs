//! What a change of one endpoint costs, with few and with many endpoints: time until the edge runs on it,
//! and CPU of the whole process, from the commit to the tables of the edge.
//!
//! `cargo bench -p culvert-control --bench changes`; numbers of endpoints may be given as arguments.
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
    Call, Control, EdgePort, LoginKeys, LoginSettings, Logins, Method, Parts, Pepper, Reply, Seal,
    Settings, operations, texts,
};
use culvert_delivery::{Delivery, TargetSettings};
use culvert_edge::{Change, Edge, Snapshot};
use culvert_store::{Changes, Document, Queue, Store, StoreUrl, Told};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const CHANGES: u32 = 200;
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
}

/// CPU time of this process. Linux counts it in hundredths of a second.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = |n: usize| fields.get(n).unwrap().parse::<u64>().unwrap();
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

async fn post(control: &Control, caller: &culvert_control::Caller, body: Value) -> Value {
    let found = operations()
        .iter()
        .find(|one| one.method == Method::Post && one.path == "/endpoints");
    let call = Call {
        caller: caller.clone(),
        path: Vec::new(),
        query: Vec::new(),
        body: Some(body),
        base: BASE.to_owned(),
    };
    match (found.unwrap().run)(control, call).await {
        Ok(Reply::Created { body, .. }) => serde_json::from_str(&body).unwrap(),
        _ => panic!("the endpoint was not created"),
    }
}

async fn measure(count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(SystemClock);
    let entropy = Arc::new(OsEntropy);
    let url = StoreUrl::Sqlite(folder.path().join("state.db"));
    let store = Store::open(&url, clock.clone(), texts()).await.unwrap();
    let queue = Queue::open(&url, clock.clone()).await.unwrap();
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
        queue,
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
            agent_minimum: Default::default(),
            ip_data: Default::default(),
            own_names: Vec::new(),
            edge_domain: HostName::parse("culvert.localhost").unwrap(),
            public_ports: Default::default(),
            tcp_ports: 20_000..=20_002,
            allow_private_upstreams: true,
            allow_public_calls: false,
            targets,
            base_url: BASE.to_owned(),
        },
        delivery,
        edge: Some(Arc::new(Port(edge))),
        logins,
        certificates: None,
        agents: None,
        nodes: None,
    });
    let control = control.await.unwrap();
    let token = control.bootstrap(None).await.unwrap().unwrap();
    let header = format!("Bearer {}", token.reveal());
    let Ok(caller) = control.authenticate(Some(&header)).await else {
        panic!("the first key is not known");
    };
    let body =
        json!({"url": "http://first.culvert.localhost", "upstream_url": "http://127.0.0.1:1"});
    let made = post(&control, &caller, body).await;
    let id = made["id"].as_str().unwrap();
    let first = store.get("endpoint", id).await.unwrap().unwrap();
    let nothing = Told::Nothing { why: "a bench" };
    let mut changes = Changes::default();
    for n in 1..count {
        let mut one: Document = first.clone();
        one.head.id = format!("{}{n:06}", &id[..id.len() - 6]);
        one.keys = Vec::new();
        one.body = first.body.replace("first.", &format!("n{n}."));
        changes = changes.and(Changes::insert(one, nothing.clone()));
        if n % 500 == 0 || n + 1 == count {
            store.commit(std::mem::take(&mut changes)).await.unwrap();
        }
    }
    let stop = CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    running.spawn(Arc::clone(&control).run(stop.clone()));
    while !control.is_applied(Duration::from_secs(60)).await {}

    let (mut slowest, mut total) = (Duration::ZERO, Duration::ZERO);
    let cpu_before = cpu();
    for n in 0..CHANGES {
        let mut one = store.get("endpoint", id).await.unwrap().unwrap();
        one.body = first.body.replace("first.", &format!("changed{n}."));
        store
            .commit(Changes::replace(one, nothing.clone()))
            .await
            .unwrap();
        let committed = Instant::now();
        assert!(control.is_applied(Duration::from_secs(10)).await);
        total += committed.elapsed();
        slowest = slowest.max(committed.elapsed());
    }
    let cpu = cpu().saturating_sub(cpu_before) / CHANGES;
    println!(
        "endpoints={count} cpu_per_change={} µs live_after={} µs (slowest {} µs)",
        cpu.as_micros(),
        (total / CHANGES).as_micros(),
        slowest.as_micros()
    );
    stop.cancel();
    running.join_all().await;
}

fn main() {
    let given = std::env::args().skip(1).filter_map(|one| one.parse().ok());
    let mut counts: Vec<usize> = given.collect();
    if counts.is_empty() {
        counts = vec![1_000, 10_000, 100_000];
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for count in counts {
        runtime.block_on(measure(count));
    }
}
