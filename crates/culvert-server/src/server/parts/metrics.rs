//! Metrics, and the memory that the process gives back.

use std::sync::Arc;

use anyhow::Result;
use culvert_api::Api;
use culvert_base::BoxFuture;
use culvert_command::memory;
use culvert_control::{Control, ServerWatch};
use culvert_delivery::Delivery;
use culvert_edge::{Edge, Inherited};
use culvert_policy::SharedCounts;
use culvert_tunnel::nodes::Nodes;
use culvert_tunnel::server::Server;

use crate::audit_tree::witnesses::{self, WitnessClient};
use crate::metrics::{self, Sample, samples, statistics};
use crate::nodes::{cluster, rate_exchange};
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
        rows.extend(nodes.flat_map(|nodes| cluster::samples(nodes, &self.control)));
        rows.extend(self.counts.iter().flat_map(rate_exchange::samples));
        rows.extend(edge.into_iter().flat_map(samples::edge));
        rows.extend(edge.into_iter().flat_map(statistics::endpoints));
        rows.extend(statistics::destinations(&self.delivery));
        rows.extend(statistics::process(&self.control));
        rows.extend(samples::certificate(&self.control));
        rows.extend(witnesses::samples(&self.witnesses));
        rows.push(samples::gauge(
            "traffic_log_behind_seconds",
            "Time by which the records of the traffic log in the audit log are behind; 0 if none is missing",
            self.watch.traffic_behind().as_secs(),
        ));
        let agents = self.server.iter();
        rows.extend(agents.flat_map(|server| samples::agent(server, &self.control)));
        rows.extend(self.api.iter().flat_map(|api| samples::api(api.meters())));
        rows.push(samples::counter(
            "panics",
            "Panics, each ending one task",
            metrics::panics(),
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
                let serve = |stop| metrics::serve(listener, read, stop);
                start.tasks.start("metrics", serve);
            }
            start.tasks.start("memory", memory::give_back);
            Ok(())
        })
    }
}
