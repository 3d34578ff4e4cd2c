//! The edge, as the settings describe it, and as control sees it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use culvert_base::BoxFuture;
use culvert_command::{Invalid, with_causes};
use culvert_control::{Control, EdgePort};
use culvert_delivery::Delivery;
use culvert_edge::{
    Change, Dial, Edge, NotReplayed, ReplayRequest, Replayed, Snapshot, Tracing, UnhealthyUpstream,
    UpstreamStatus,
};
use culvert_events::RefusedTraffic;
use culvert_installation::config::{Role, Settings, TraceSample};
use culvert_policy::{IpData, IpDatabases, SharedCounts};
use culvert_traces::{Sample, Tracer, TracerSettings};
use tokio::sync::watch;

use crate::server::opened::Opened;
use crate::server::plane_settings::{edge_settings, ip_data_files};

/// How long loading the stored configuration may fail before the server ends, and how often it logs that it is loading.
const FIRST_SNAPSHOT: Duration = Duration::from_secs(30);

/// The plane of the settings, if this process has the role. Its listeners are bound; connections wait in the backlog of
/// the sockets until it runs.
pub(crate) async fn plane(
    opened: &Opened,
    delivery: &Arc<Delivery>,
    dial: Option<Arc<dyn Dial>>,
    ip_data: &IpDatabases,
    counts: &SharedCounts,
) -> Result<Option<Edge>> {
    if !opened.has(Role::Edge) {
        return Ok(None);
    }
    let settings = &opened.settings;
    let (store, queue) = (opened.store.clone(), opened.queue.clone());
    let delay = move || store.write_delay().max(queue.write_delay());
    let around = culvert_edge::Settings {
        inherited: opened.inherited.clone(),
        write_delay: Some(Arc::new(delay)),
        kubernetes_host: settings.kubernetes.host(&opened.domain),
        agents: dial,
        supervisor: opened.supervisor.clone(),
        ip_data: ip_data.clone(),
        counts: Some(counts.clone()),
        tracing: tracing(settings, opened)?,
        ..edge_settings(settings)?
    };
    let edge = Edge::bind(around, delivery.recorder(), opened.clock.clone()).await;
    Ok(Some(edge.map_err(with_causes)?))
}

/// How requests are traced, if a receiver of spans is set.
fn tracing(settings: &Settings, opened: &Opened) -> Result<Option<Tracing>, Invalid> {
    let given = &settings.tracing;
    if given.receiver()?.is_none() {
        return Ok(None);
    }
    let (sample, condition) = match given.sample()? {
        TraceSample::Share(share) => (Sample::Share(share), None),
        TraceSample::Condition(condition) => (Sample::Condition, Some(condition)),
    };
    let tracer = TracerSettings {
        sample,
        is_parent_based: given.parent_based,
        parents_per_second: given.parents_per_second,
        queue_spans: given.queue_spans as usize,
        queue_bytes: usize::try_from(given.queue_bytes).unwrap_or(usize::MAX),
    };
    Ok(Some(Tracing {
        tracer: Tracer::new(tracer, opened.entropy.clone()),
        condition,
    }))
}

/// Loads the operator's address data. The server starts even if a file cannot be read. Policies that need the file
/// then reject traffic; all others run.
pub(crate) fn ip_data(settings: &Settings) -> Result<IpDatabases, Invalid> {
    let mut faults = Vec::new();
    let data = IpData::read_some(&ip_data_files(settings)?, &mut faults);
    for fault in faults {
        tracing::error!(cause = %fault.chain(), "address data is not loaded");
    }
    Ok(IpDatabases::new(data))
}

/// The edge as a port of control, and whether it has its first snapshot.
#[derive(Debug)]
pub(crate) struct Published {
    edge: Edge,
    first: watch::Sender<bool>,
}

impl Published {
    pub(crate) fn new(edge: Edge) -> Self {
        Self {
            edge,
            first: watch::Sender::new(false),
        }
    }

    /// Waits as long as it takes to load the stored configuration, if loading does not fail.
    pub(crate) async fn wait_for_first(&self, control: &Control) -> Result<()> {
        let mut first = self.first.subscribe();
        loop {
            let published = first.wait_for(|published| *published);
            match tokio::time::timeout(FIRST_SNAPSHOT, published).await {
                Ok(Ok(_)) => return Ok(()),
                Err(_) if !control.has_failed_to_load() => {
                    tracing::info!("still loading the stored configuration");
                }
                _ => bail!("the edge did not load the stored configuration; see the log"),
            }
        }
    }
}

impl EdgePort for Published {
    fn publish(&self, snapshot: Snapshot) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.edge.publish(snapshot).await;
            self.first.send_replace(true);
        })
    }

    fn apply(&self, change: Change) -> BoxFuture<'_, ()> {
        Box::pin(self.edge.apply(change))
    }

    fn confirm(&self, at: Instant) {
        self.edge.confirm(at);
    }

    fn take_refused(&self) -> Vec<RefusedTraffic> {
        self.edge.take_refused()
    }

    fn unhealthy_upstreams(&self) -> Option<Vec<UnhealthyUpstream>> {
        self.edge.unhealthy_upstreams()
    }

    fn upstream_statuses(&self, endpoint_id: &str) -> Option<Vec<UpstreamStatus>> {
        self.edge.upstream_statuses(endpoint_id)
    }

    fn replay(&self, request: ReplayRequest) -> BoxFuture<'_, Result<Replayed, NotReplayed>> {
        Box::pin(self.edge.replay(request))
    }
}
