//! What all connections of an edge share: its tables, its limits, its policies' services and its upstreams.
//!
//! Not here: listeners, startup and shutdown ([`Edge`](crate::edge::Edge)).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use culvert_base::{Clock, Supervisor};
use culvert_io::ConnectionThreads;
use culvert_overload::{
    Census, Decision, Demand, HandshakeLimiter, IdleConnection, Level, Shares, Waited, WriteDelay,
    open_files, victims,
};
use culvert_policy::ipdata::IpFields;
use culvert_policy::services::PolicyServices;
use culvert_tls::server_certificate::ServerCertificate;
use culvert_upstream::{Dial, Network};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::balance::checks::Checks;
use crate::connection::conn_state::ConnState;
use crate::edge::edge_state::{EdgeState, Phase};
use crate::http::request_body::RequestBody;
use crate::settings::rules::Rules;
use crate::settings::tracing::Tracing;
use crate::snapshot::freshness::Freshness;
use crate::snapshot::live_snapshot::LiveSnapshot;
use crate::snapshot::route::Hosts;

/// What all connections of an edge share.
pub(crate) struct EdgeContext {
    pub(crate) state: Arc<EdgeState>,
    pub(crate) live: ArcSwap<LiveSnapshot>,
    /// The age of `live`.
    pub(crate) freshness: Freshness,
    pub(crate) clock: Arc<dyn Clock>,
    /// The rules of new connections.
    pub(crate) rules: ArcSwap<Rules>,
    /// Connects to upstreams, and to hosts that policies name.
    pub(crate) network: Arc<Network>,
    /// What all policies share.
    pub(crate) policy: Arc<PolicyServices>,
    /// Measures the write latency of the store, if there is one.
    pub(crate) write_delay: Option<WriteDelay>,
    /// Opens streams to agents, if there are any.
    pub(crate) agents: Option<Arc<dyn Dial>>,
    /// Certificates of the operator's files.
    pub(crate) files: ArcSwap<Hosts<Arc<ServerCertificate>>>,
    /// The host whose certificate Kubernetes operators see that name none.
    pub(crate) kubernetes_host: String,
    /// How requests are traced, if they are.
    pub(crate) tracing: Option<Tracing>,
    /// Turns of TLS handshakes.
    pub(crate) handshakes: HandshakeLimiter,
    /// Connections whose PROXY header is being read.
    pub(crate) announcements: Semaphore,
    /// What [`Self::tell_missing_data`] logged last.
    pub(crate) missing_data: AtomicU64,
    /// The upstreams of endpoints that have several.
    pub(crate) checks: Arc<Checks<RequestBody>>,
    pub(crate) supervisor: Supervisor,
    pub(crate) threads: ConnectionThreads,
    /// Cancelled when accepting ends.
    pub(crate) accepting: CancellationToken,
    pub(crate) census: Arc<Census<ConnState>>,
}

impl EdgeContext {
    /// Opens streams to agents, if there are any.
    pub(crate) fn agents(&self) -> Option<&dyn Dial> {
        self.agents.as_deref()
    }

    /// Whether an expression decides which requests are traced.
    pub(crate) fn judges_traces(&self) -> bool {
        let tracing = self.tracing.as_ref();
        tracing.is_some_and(|tracing| tracing.tracer.has_condition())
    }

    /// IP data that policies read and no file has, the number of endpoints that need it, and the ID of one.
    pub(crate) fn missing_data<'l>(&self, live: &'l LiveSnapshot) -> (IpFields, u32, &'l str) {
        let data = self.policy.ip_data.now();
        let (mut all, mut count, mut first) = (IpFields::default(), 0_u32, "");
        for (fields, n_endpoints, id) in live.data_readers.iter() {
            let missing = data.missing(fields);
            if !missing.is_empty() {
                all = all.and(missing);
                count = count.saturating_add(u32::try_from(n_endpoints).unwrap_or(u32::MAX));
                first = if first.is_empty() { id } else { first };
            }
        }
        (all, count, first)
    }

    /// Logs the missing data, if it has changed.
    pub(crate) fn tell_missing_data(&self, live: &LiveSnapshot) {
        let (missing, endpoints, first) = self.missing_data(live);
        let said = u64::from(missing.bits()) << 32 | u64::from(endpoints);
        if self.missing_data.swap(said, Ordering::Relaxed) == said {
            return;
        }
        if missing.is_empty() {
            tracing::info!("all policy data is loaded");
            return;
        }
        tracing::error!(
            endpoints,
            endpoint.id = first,
            settings = missing.settings().join(", "),
            "endpoints reject traffic: their traffic policies use data that is not loaded"
        );
    }

    /// Applies a decision, and wakes all connections if the level changes. Whether it changes.
    pub(crate) fn press(&self, decision: Decision, shares: Shares) -> bool {
        let level = decision.level;
        let pressure = &self.state.meters.pressure;
        pressure.memory.set(shares.memory);
        pressure.files.set(shares.files);
        pressure.run_queue.set(shares.run_queue);
        pressure.store.set(shares.store);
        let before = self.state.set_level(level);
        if before != level as u8 {
            tracing::warn!(
                from = before,
                to = level as u8,
                %shares,
                "overload level changed"
            );
            self.policy.documents.freeze(level >= Level::Busy);
            self.wake_connections();
        }
        self.state.set_drops_events(decision.drops_events);
        if decision.ends_one {
            self.end_largest();
        }
        before != level as u8
    }

    /// Closes as many idle connections as necessary.
    pub(crate) fn shed_idle(&self, memory: u64, files_max: u64) {
        let connections_max = self.rules.load().limits.connections;
        let open = usize::try_from(self.state.meters.connections.get()).unwrap_or(usize::MAX);
        let demand = Demand {
            files: (open_files().unwrap_or_default(), files_max),
            memory,
            is_tight: self.state.level() >= Level::Tight,
            connections: (open, connections_max),
        };
        let excess = demand.excess();
        if excess == 0 {
            return;
        }
        let (mut idle, mut conns, mut closing) = (Vec::new(), Vec::new(), 0);
        for conn in self.census.open() {
            if conn.is_shed() {
                closing += 1;
            } else if let Some(since) = conn.idle_since() {
                let source = conn.info.source();
                idle.push(IdleConnection { source, since });
                conns.push(conn);
            }
        }
        let held = self.census.by_source();
        for at in victims(&idle, &held, excess.saturating_sub(closing)) {
            if let Some(conn) = conns.get(at) {
                self.state.meters.shed_idle.up();
                conn.shed();
            }
        }
    }

    /// Ends the exchange that holds most memory, with its connection.
    fn end_largest(&self) {
        let held = |conn: &Arc<ConnState>| conn.counters.held_bytes.load(Ordering::Relaxed);
        let largest = self.census.open().into_iter().max_by_key(held);
        if let Some(conn) = largest.filter(|conn| held(conn) > 0) {
            self.state.meters.shed_exchanges.up();
            conn.hang_up();
        }
    }

    /// Measures how long a task waits on a thread, or on the shared runtime if there are none.
    pub(crate) fn probe(&self, thread: usize, waited: Waited) {
        let sent = Instant::now();
        let probe = async move { waited.ran(sent.elapsed()) };
        match self.threads.get(thread) {
            Some(thread) => self.state.tasks.spawn_on(probe, thread),
            None => self.state.tasks.spawn(probe),
        };
    }

    /// Decides whether the configuration is too old to serve.
    pub(crate) fn judge_freshness(&self) {
        let limit = self.rules.load().limits.copy_age_max;
        let now = Instant::now().into_std();
        let seconds = self.freshness.age(now).as_secs();
        self.state.meters.configuration_age.set(seconds);
        match self.freshness.judge(now, limit) {
            Some(true) => tracing::error!(
                seconds,
                "the configuration is older than `edge.copy_age_max`; refusing all traffic until the database is back"
            ),
            Some(false) => tracing::info!("the configuration is current; serving traffic again"),
            None => {}
        }
    }

    /// Whether the configuration is too old to serve. A request or connection that asks is refused, and counted.
    pub(crate) fn refuses_outdated(&self) -> bool {
        let is_outdated = self.freshness.is_outdated();
        if is_outdated {
            self.state.meters.outdated_refused.up();
        }
        is_outdated
    }

    /// Enters a phase and wakes all connections.
    pub(crate) fn enter(&self, phase: Phase) {
        self.state.set_phase(phase);
        self.wake_connections();
    }

    /// Wakes every connection.
    pub(crate) fn wake_connections(&self) {
        for conn in self.census.open() {
            conn.driver.wake();
        }
    }

    /// Waits until no connection is open.
    pub(crate) async fn drained(&self) {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while self.state.meters.connections.get() > 0 {
            look.tick().await;
        }
    }

    /// The server certificate for a name: its owner's, else one of the operator's files, else the installation's.
    pub(crate) fn certificate(
        &self,
        live: &LiveSnapshot,
        name: &str,
    ) -> Option<Arc<ServerCertificate>> {
        let files = self.files.load();
        live.certificates
            .find(name)
            .or_else(|| files.find(name))
            .or_else(|| live.fallback.find(name))
            .map(Arc::clone)
    }
}

impl fmt::Debug for EdgeContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeContext")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
