//! Metrics, and the memory that the process gives back.

use std::sync::Arc;

use anyhow::Result;
use culvert_api::Api;
use culvert_audit_tree::witnesses::{STANDINGS, WitnessClient};
use culvert_base::BoxFuture;
use culvert_command::memory;
use culvert_control::{Control, ServerWatch};
use culvert_delivery::Delivery;
use culvert_edge::{Edge, Inherited};
use culvert_metrics::samples::{counter, gauge};
use culvert_metrics::{Sample, Value, samples, statistics};
use culvert_policy::SharedCounts;
use culvert_tunnel::nodes::Nodes;
use culvert_tunnel::server::Server;

use crate::server::foundation::Foundation;
use crate::server::listeners::Listener;
use crate::server::listening::listen;
use crate::server::part::{self, Name, Reason, Start};

/// What the metrics are read from.
#[derive(Clone)]
struct Measured {
    delivery: Arc<Delivery>,
    nodes: Option<Arc<Nodes>>,
    /// The counts of rate limits, if nodes share them.
    counts: Option<SharedCounts>,
    edge: Option<Edge>,
    control: Arc<Control>,
    watch: Arc<ServerWatch>,
    witnesses: Vec<Arc<WitnessClient>>,
    server: Option<Arc<Server>>,
    api: Option<Arc<Api>>,
}

impl Measured {
    fn samples(&self) -> Vec<Sample> {
        let edge = self.edge.as_ref();
        let mut rows = samples::delivery(&self.delivery);
        let nodes = self.nodes.iter();
        rows.extend(nodes.flat_map(|nodes| samples::nodes(nodes, &self.control)));
        rows.extend(self.counts.iter().flat_map(samples::rate_limits));
        rows.extend(edge.into_iter().flat_map(samples::edge));
        rows.extend(edge.into_iter().flat_map(statistics::endpoints));
        rows.extend(statistics::destinations(&self.delivery));
        rows.extend(statistics::process(&self.control));
        rows.extend(samples::certificate(&self.control));
        rows.extend(witnesses(&self.witnesses));
        rows.push(gauge(
            "traffic_log_behind_seconds",
            "Time by which the records of the traffic log in the audit log are behind; 0 if none is missing",
            self.watch.traffic_behind().as_secs(),
        ));
        let agents = self.server.iter();
        rows.extend(agents.flat_map(|server| samples::agent(server, &self.control)));
        rows.extend(self.api.iter().flat_map(|api| of_api(api.meters())));
        rows.push(counter(
            "panics",
            "Panics, each ending one task",
            culvert_metrics::panics(),
        ));
        rows
    }
}

pub(super) struct Part {
    /// The address of the listener; empty for none.
    addr: String,
    inherited: Inherited,
    measured: Measured,
}

impl Part {
    pub(super) fn new(
        foundation: &Foundation,
        server: Option<Arc<Server>>,
        api: Option<Arc<Api>>,
    ) -> Self {
        let opened = &foundation.opened;
        Self {
            addr: opened.settings.metrics.addr.clone(),
            inherited: opened.inherited.clone(),
            measured: Measured {
                delivery: foundation.delivery.clone(),
                nodes: foundation.membership.nodes.clone(),
                counts: foundation
                    .shares_counts()
                    .then(|| foundation.counts.clone()),
                edge: foundation.edge.clone(),
                control: foundation.control.clone(),
                watch: foundation.watch.clone(),
                witnesses: foundation.witnesses.clone(),
                server,
                api,
            },
        }
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Metrics
    }

    fn depends_on(&self) -> &'static [Name] {
        &[]
    }

    /// A stop can be watched to its end. They start last, because a node without the API is ready when they are
    /// served.
    fn outlives(&self, _: Reason) -> &'static [Name] {
        &[Name::Delivery, Name::Statistics]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if !self.addr.is_empty() {
                let listener = listen("metrics.addr", &self.addr, &self.inherited).await?;
                start
                    .addresses
                    .insert(Listener::Metrics, listener.local_addr()?);
                let measured = self.measured.clone();
                let read = Box::new(move || measured.samples());
                let serve = |stop| culvert_metrics::serve(listener, read, stop);
                start.tasks.start("metrics", serve);
            }
            start.tasks.start("memory", memory::give_back);
            Ok(())
        })
    }
}

/// The state of each witness, of which one is 1.
fn witnesses(witnesses: &[Arc<WitnessClient>]) -> Vec<Sample> {
    let of_witness = |client: &Arc<WitnessClient>| {
        let (witness, now) = client.standing();
        STANDINGS.map(|state| Sample {
            name: "audit_witness",
            help: "State of a witness of the audit log, 1 for the current one",
            labels: vec![("witness", witness.to_owned()), ("state", state.to_owned())],
            value: Value::Gauge(u64::from(state == now)),
        })
    };
    witnesses.iter().flat_map(of_witness).collect()
}

/// The management API.
fn of_api(m: &culvert_api::Meters) -> Vec<Sample> {
    use std::sync::atomic::Ordering::Relaxed;
    vec![
        counter(
            "api_requests",
            "Requests answered",
            m.requests.load(Relaxed),
        ),
        counter(
            "api_refused",
            "Responses with status 4xx",
            m.refused.load(Relaxed),
        ),
        counter(
            "api_failed",
            "Responses with status 5xx",
            m.failed.load(Relaxed),
        ),
        counter(
            "api_unauthenticated",
            "Requests rejected for their credential",
            m.unauthenticated.load(Relaxed),
        ),
        counter(
            "api_shed",
            "Requests rejected with 503 because of overload",
            m.shed.load(Relaxed),
        ),
        gauge(
            "api_connections",
            "Open connections",
            m.connections.load(Relaxed),
        ),
        gauge("api_tails", "Open live tails", m.tails.load(Relaxed)),
    ]
}
