//! The edge: its listeners, its configuration, and its lifecycle from bind to drain. Beside it, its counters and the state
//! that its connections share.

pub(crate) mod edge_context;
pub(crate) mod edge_state;
pub(crate) mod meters;
pub(crate) mod sampled_log;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use culvert_base::sync::lock;
use culvert_base::{BoxFuture, Clock, FairPermits, Fault, Share};
use culvert_edge_config::{
    Change, NotReplayed, ReplayRequest, Replayed, Snapshot, UnhealthyUpstream, UpstreamStatus,
};
use culvert_events::{Recorder, RefusedTraffic};
use culvert_io::{ConnectionThreads, Inherited, splice};
use culvert_overload::{
    HandshakeLimiter, LOOK_EVERY, Level, Pressure, RunQueue, Shares, files_max, memory_max,
};
use culvert_policy::documents::{Documents, DocumentsState};
use culvert_policy::ipdata::IpFields;
use culvert_policy::services::{CALLS_MAX, PolicyServices, Spawn};
use culvert_policy::shared_counts::SharedCounts;
use culvert_statistics::Traffic;
use culvert_traces::Tracer;
use culvert_upstream::Network;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::balance::checks::{Checker, Checks};
use crate::connection::listener;
use crate::edge::edge_context::EdgeContext;
use crate::edge::edge_state::{EdgeState, Phase};
use crate::edge::meters::Meters;
use crate::http::encoded::ENCODERS_KIB_MAX;
use crate::http::replay;
use crate::settings::Settings;
use crate::settings::rules::ListenerKind;
use crate::snapshot::compiler::SnapshotCompiler;
use crate::snapshot::freshness::Freshness;

/// How long tasks may take to end after the cut.
const CUT_WITHIN: Duration = Duration::from_secs(5);
/// Most connections with an incomplete PROXY header. They have no source yet.
const ANNOUNCEMENTS_MAX: usize = 1_024;
/// How often pools close idle connections.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// A listener, with what its connections are for.
type Bound = (Arc<TcpListener>, ListenerKind);

/// The traffic plane. Clones are handles to the same edge.
#[derive(Clone, Debug)]
pub struct Edge {
    shared: Arc<EdgeContext>,
    ports: Arc<tokio::sync::Mutex<Ports>>,
    listeners: Arc<Mutex<Vec<Bound>>>,
    http_addr: Option<SocketAddr>,
    https_addr: Option<SocketAddr>,
    kubernetes_addr: Option<SocketAddr>,
}

/// State that only configuration changes use.
#[derive(Debug)]
struct Ports {
    compiler: SnapshotCompiler,
    tcp_bind_ip: IpAddr,
    inherited: Inherited,
    open: HashMap<u16, OpenPort>,
    /// Ports that could not be bound; each change tries again.
    failed: BTreeSet<u16>,
}

/// The port of TCP endpoints.
#[derive(Debug)]
struct OpenPort {
    listener: Arc<TcpListener>,
    stop: CancellationToken,
}

impl Drop for OpenPort {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Edge {
    /// Binds the listeners of HTTP and TLS. Connections wait in them until [`Edge::run`].
    ///
    /// # Errors
    ///
    /// When an address cannot be listened on, or a root certificate is invalid.
    pub async fn bind(
        settings: Settings,
        recorder: Arc<dyn Recorder>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Fault> {
        let mut listeners = Vec::new();
        let mut bound = [None, None, None];
        let wanted = [
            ("edge.http_addr", settings.http_addr, ListenerKind::Http),
            ("edge.https_addr", settings.https_addr, ListenerKind::Tls),
            (
                "kubernetes.addr",
                settings.kubernetes_addr,
                ListenerKind::Kubernetes,
            ),
        ];
        for ((setting, address, kind), bound) in wanted.into_iter().zip(&mut bound) {
            let Some(address) = address else { continue };
            let doing = || format!("listening on {address} (setting `{setting}`)");
            let listener = listener::bind(address, &settings.inherited)
                .map_err(|error| Fault::new(doing(), error))?;
            *bound = Some(
                listener
                    .local_addr()
                    .map_err(|error| Fault::new(doing(), error))?,
            );
            listeners.push((Arc::new(listener), kind));
        }
        let [http_addr, https_addr, kubernetes_addr] = bound;
        let dialer = settings.dialer()?;
        let files = settings.files()?;
        let alone = || SharedCounts::new(Arc::clone(&clock), &*settings.entropy);
        let counts = settings.counts.clone().unwrap_or_else(alone);
        let own = bound.into_iter().flatten().collect();
        let network = Arc::new(Network::new(dialer, own));
        let threads = ConnectionThreads::start(settings.threads)?;
        let rules = ArcSwap::from_pointee(settings.rules());
        let Settings {
            entropy,
            ip_data,
            region,
            limits,
            ..
        } = settings;
        let state = EdgeState::new(recorder, settings.traffic, &limits, ENCODERS_KIB_MAX);
        // Policies start tasks on the threads of this context, which owns the policies' services: so theirs is weak.
        let shared = Arc::new_cyclic(|shared| EdgeContext {
            policy: Arc::new(PolicyServices {
                clock: Arc::clone(&clock),
                entropy,
                ip_data,
                counts,
                documents: Documents::new(),
                region,
                calls: FairPermits::new(CALLS_MAX),
                meters: Arc::clone(&state.meters.policy),
                bodies: state.recorder.bodies(),
                network: network.clone(),
                tasks: Box::new(Tasks(Weak::clone(shared))),
                is_from_copy: settings.is_from_copy,
            }),
            state: Arc::new(state),
            network,
            live: ArcSwap::default(),
            freshness: Freshness::new(Instant::now().into_std()),
            clock,
            handshakes: HandshakeLimiter::new(settings.threads),
            announcements: Semaphore::new(ANNOUNCEMENTS_MAX),
            rules,
            write_delay: settings.write_delay,
            agents: settings.agents,
            missing_data: AtomicU64::new(0),
            checks: Arc::new(Checks::default()),
            files: ArcSwap::from_pointee(files),
            kubernetes_host: settings.kubernetes_host,
            tracing: settings.tracing,
            supervisor: settings.supervisor,
            threads,
            accepting: CancellationToken::new(),
            census: Arc::default(),
        });
        Ok(Self {
            shared,
            ports: Arc::new(tokio::sync::Mutex::new(Ports {
                compiler: SnapshotCompiler::default(),
                tcp_bind_ip: settings.tcp_bind_ip,
                inherited: settings.inherited,
                open: HashMap::new(),
                failed: BTreeSet::new(),
            })),
            listeners: Arc::new(Mutex::new(listeners)),
            http_addr,
            https_addr,
            kubernetes_addr,
        })
    }

    /// The address of the plain HTTP listener.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http_addr
    }

    /// The address of the TLS listener.
    pub fn https_addr(&self) -> Option<SocketAddr> {
        self.https_addr
    }

    /// The address of the listener for Kubernetes operators.
    pub fn kubernetes_addr(&self) -> Option<SocketAddr> {
        self.kubernetes_addr
    }

    /// The connections to its upstreams.
    #[cfg(test)]
    pub(crate) async fn pools(&self) -> Vec<Arc<crate::pools::Pool>> {
        let ports = self.ports.lock().await;
        let pools = ports.compiler.pools();
        pools.map(|(_, pool)| Arc::clone(pool)).collect()
    }

    /// The state that its connections share.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<EdgeContext> {
        Arc::clone(&self.shared)
    }

    /// Counts the traffic of its endpoints.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.shared.state.traffic
    }

    /// Traces requests, if they are traced.
    pub fn tracer(&self) -> Option<&Arc<Tracer>> {
        let tracing = self.shared.tracing.as_ref();
        tracing.map(|tracing| &tracing.tracer)
    }

    /// Takes what was refused without an endpoint since the last call.
    pub fn take_refused(&self) -> Vec<RefusedTraffic> {
        self.shared.state.refusals.take(self.shared.clock.now())
    }

    /// The upstreams of all endpoints that are unhealthy; `None` from the begin of the drain on.
    pub fn unhealthy_upstreams(&self) -> Option<Vec<UnhealthyUpstream>> {
        let is_serving = self.shared.state.phase() == Phase::Serving;
        is_serving.then(|| self.shared.checks.unhealthy())
    }

    /// The health of the upstreams of an endpoint, in the order of its list; `None` if it has no list.
    pub fn upstream_statuses(&self, endpoint_id: &str) -> Option<Vec<UpstreamStatus>> {
        self.shared.checks.statuses(endpoint_id)
    }

    /// The counters of the edge.
    pub fn meters(&self) -> &Meters {
        &self.shared.state.meters
    }

    /// Applies new settings, except for addresses and the number of concurrent handshakes: to new connections, and for
    /// certificates and roots from the next handshake on.
    ///
    /// # Errors
    ///
    /// When a certificate cannot be used; then nothing has changed.
    pub fn reload(&self, settings: &Settings) -> Result<(), Fault> {
        let (dialer, files) = (settings.dialer()?, settings.files()?);
        // Those that hang keep their places.
        let dialer = dialer.with_lookups_of(&self.shared.network.dialer.load());
        self.shared.rules.store(Arc::new(settings.rules()));
        self.shared.network.dialer.store(Arc::new(dialer));
        self.shared.files.store(Arc::new(files));
        Ok(())
    }

    /// The state of the key sets and other documents that policies use.
    pub fn documents(&self) -> DocumentsState {
        self.shared.policy.documents.state()
    }

    /// IP data that policies in use read and no file has. Their endpoints reject traffic.
    pub fn missing_data(&self) -> IpFields {
        self.shared.missing_data(&self.shared.live.load()).0
    }

    /// Logs the endpoints whose policies lack IP data, after the data has changed.
    pub fn tell_missing_data(&self) {
        self.shared.tell_missing_data(&self.shared.live.load());
    }

    /// Notes that the configuration was current at this time. From the first call on, the edge refuses all traffic while
    /// the configuration is older than [`Limits::copy_age_max`](crate::Limits::copy_age_max).
    pub fn confirm(&self, at: std::time::Instant) {
        self.shared.freshness.confirm(at);
    }

    /// How old the configuration is, if it is too old to serve.
    pub fn outdated_for(&self) -> Option<Duration> {
        let freshness = &self.shared.freshness;
        let age = freshness.age(Instant::now().into_std());
        freshness.is_outdated().then_some(age)
    }

    /// Applies a snapshot. When this returns, new requests and connections use it, and the ports of TCP endpoints are
    /// open or closed accordingly. Running exchanges keep the snapshot that they began with.
    ///
    /// A port that cannot be bound is logged and counted, and tried again with the next snapshot.
    pub async fn publish(&self, snapshot: Snapshot) {
        let mut ports = self.ports.lock().await;
        let live = match ports.compiler.compile(snapshot) {
            Ok(live) => Arc::new(live),
            Err(error) => {
                tracing::error!(%error, "invalid snapshot; keeping the previous one");
                return;
            }
        };
        ports.open.retain(|port, open| {
            let stays = live.tcp.get(port).is_some();
            if !stays {
                open.stop.cancel();
            }
            stays
        });
        let wanted: Vec<u16> = live.tcp.keys().copied().collect();
        ports.failed.clear();
        self.shared.checks.replace(ports.compiler.all_targets());
        self.shared.tell_missing_data(&live);
        let has_operators = live.operators.has_authority();
        self.shared.live.store(live);
        if has_operators {
            self.shared.wake_connections();
        }
        for port in wanted {
            self.open_port(&mut ports, port);
        }
        self.shared.state.meters.snapshots.up();
    }

    /// Applies a change, as [`Edge::publish`] does a snapshot. The time depends on the size of the change, not of the
    /// snapshot.
    pub async fn apply(&self, change: Change) {
        let mut ports = self.ports.lock().await;
        let ids: Vec<String> = change.ids().cloned().collect();
        let mut touched = ports.compiler.ports_of(ids.iter());
        let mut is_rebound = change.has_operators() || ports.compiler.is_bound(ids.iter());
        let live = match ports.compiler.apply(&self.shared.live.load(), change) {
            Ok(live) => Arc::new(live),
            Err(error) => {
                tracing::error!(%error, "invalid configuration change; keeping the snapshot");
                return;
            }
        };
        touched.extend(ports.compiler.ports_of(ids.iter()));
        is_rebound |= ports.compiler.is_bound(ids.iter());
        touched.extend(std::mem::take(&mut ports.failed));
        for id in &ids {
            let targets = ports.compiler.targets(id);
            self.shared.checks.set(id, targets.cloned());
        }
        self.shared.tell_missing_data(&live);
        self.shared.live.store(Arc::clone(&live));
        if is_rebound {
            // Relays of operators look whether they still bind their endpoints.
            self.shared.wake_connections();
        }
        for port in touched {
            if live.tcp.get(&port).is_some() {
                self.open_port(&mut ports, port);
            } else if let Some(open) = ports.open.remove(&port) {
                open.stop.cancel();
            }
        }
        self.shared.state.meters.snapshots.up();
    }

    /// Opens the port of a TCP endpoint, unless it is open.
    fn open_port(&self, ports: &mut Ports, port: u16) {
        if ports.open.contains_key(&port) {
            return;
        }
        let address = SocketAddr::new(ports.tcp_bind_ip, port);
        match listener::bind(address, &ports.inherited) {
            Ok(listener) => {
                let listener = Arc::new(listener);
                let stop = self.shared.accepting.child_token();
                let open = OpenPort {
                    listener: Arc::clone(&listener),
                    stop: stop.clone(),
                };
                ports.open.insert(port, open);
                listen(&self.shared, listener, ListenerKind::Tcp(port), stop);
            }
            Err(error) => {
                ports.failed.insert(port);
                self.shared.state.meters.ports_failed.up();
                tracing::warn!(%error, port, "cannot listen on the port of a TCP endpoint");
            }
        }
    }

    /// Further handles of all its listening sockets, for an edge that takes its place. Both may accept connections.
    ///
    /// # Errors
    ///
    /// If the process has no free file descriptor.
    pub async fn sockets(&self) -> std::io::Result<Vec<std::net::TcpListener>> {
        let ports = self.ports.lock().await;
        let open = ports.open.values().map(|open| Arc::clone(&open.listener));
        let mut listeners: Vec<Arc<TcpListener>> = open.collect();
        let bound = lock(&self.listeners);
        listeners.extend(bound.iter().map(|(listener, _)| Arc::clone(listener)));
        let handle = |listener: Arc<TcpListener>| {
            let handle = listener.as_fd().try_clone_to_owned()?;
            Ok(std::net::TcpListener::from(handle))
        };
        listeners.into_iter().map(handle).collect()
    }

    /// Sends a request to an endpoint of this edge as a replay of an earlier one.
    ///
    /// # Errors
    ///
    /// When the request cannot be sent. A response of the endpoint is never an error.
    pub async fn replay(&self, request: ReplayRequest) -> Result<Replayed, NotReplayed> {
        replay::replay(&self.shared, request).await
    }

    /// The runtime of one of its threads, of each in turn: for a connection whose streams it uses. `None` if it has no
    /// threads. They end with the last clone of the edge.
    pub fn next_thread(&self) -> Option<Handle> {
        self.shared.threads.next().cloned()
    }

    /// Waits while the overload level holds new agents back (reliability 5).
    pub async fn takes_agents(&self) {
        self.shared.state.takes_agents().await;
    }

    /// Serves until `cancel`, then drains: stops accepting, lets open exchanges finish within the drain time, and cuts
    /// the rest. When this returns, every connection is closed and its events are offered.
    pub async fn run(self, cancel: CancellationToken) {
        let shared = &self.shared;
        // Also if this task is aborted, or dropped: nothing may go on to serve a configuration that no longer changes.
        let _accepting = shared.accepting.clone().drop_guard();
        let listeners = lock(&self.listeners).clone();
        for (listener, kind) in listeners {
            let stop = shared.accepting.child_token();
            listen(shared, listener, kind, stop);
        }
        // Apart, so that many checks delay nothing. They end with this.
        let mut checking = JoinSet::new();
        let (checks, checker) = (Arc::clone(&shared.checks), self.checker());
        let stopping = shared.accepting.clone();
        checking.spawn(shared.supervisor.supervise(
            "edge.checks",
            move || stopping.is_cancelled(),
            async move { checks.run(checker).await },
        ));
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = self.regulate() => {}
        }
        shared.accepting.cancel();
        checking.abort_all();
        // Connections are refused from here on, unless another edge has handles of the sockets.
        lock(&self.listeners).clear();
        self.ports.lock().await.open.clear();
        self.drain().await;
        self.cut().await;
    }

    /// What health checks of upstreams need.
    fn checker(&self) -> Checker {
        let shared = &self.shared;
        Checker {
            state: Arc::clone(&shared.state),
            network: Arc::clone(&shared.network),
            clock: Arc::clone(&shared.clock),
            entropy: Arc::clone(&shared.policy.entropy),
        }
    }

    /// Measures the load at an interval and sheds what exceeds it. Closes idle upstream connections. Never returns.
    async fn regulate(&self) {
        let shared = &self.shared;
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut pressure, files, memory) = (Pressure::default(), files_max(), memory_max());
        let mut run_queue = RunQueue::new(shared.threads.count().max(1), Instant::now());
        loop {
            tokio::select! {
                biased;
                _ = look.tick() => {
                    shared.judge_freshness();
                    let (now, rules) = (Instant::now(), shared.rules.load());
                    let limits = &rules.limits;
                    let waits = run_queue.measure(now, |thread, waited| shared.probe(thread, waited));
                    let writes = shared.write_delay.as_ref().map_or(Duration::ZERO, |delay| delay());
                    let memory = limits.memory_bytes.min(memory);
                    let shares = Shares::of_process(memory, splice::held_bytes(), files)
                        .and_waits((waits, limits.run_queue), (writes, limits.store_write));
                    let decision = pressure.observe(shares, now);
                    if shared.press(decision, shares) {
                        self.sweep().await;
                    }
                    shared.shed_idle(shares.memory, files);
                }
                _ = sweep.tick() => self.sweep().await,
            }
        }
    }

    /// Lets open exchanges finish within the drain time.
    async fn drain(&self) {
        let shared = &self.shared;
        let (parting, drain) = {
            let rules = shared.rules.load();
            let limits = &rules.limits;
            (limits.parting.min(limits.drain), limits.drain)
        };
        let until = Instant::now() + drain;
        shared.enter(Phase::Parting);
        // Requests that are on their way are still served.
        drop(tokio::time::timeout(parting, shared.drained()).await);
        shared.enter(Phase::Draining);
        shared.state.tasks.close();
        let drained = tokio::time::timeout_at(until, shared.drained()).await;
        if drained.is_err() {
            tracing::info!(
                connections = shared.state.meters.connections.get(),
                "drain timeout reached; closing the remaining connections"
            );
        }
    }

    /// Closes the remaining connections, and upstream connections with their pools.
    async fn cut(&self) {
        let shared = &self.shared;
        shared.enter(Phase::Cut);
        shared.live.store(Arc::default());
        self.shared.checks.replace(std::iter::empty());
        self.ports.lock().await.compiler = SnapshotCompiler::default();
        let stopped = tokio::time::timeout(CUT_WITHIN, shared.state.tasks.wait()).await;
        if stopped.is_err() {
            tracing::error!("edge tasks did not stop after cancellation");
        }
    }

    /// Closes upstream connections that are idle for too long, or too many.
    async fn sweep(&self) {
        let level = self.shared.state.level();
        for (account, pool) in self.ports.lock().await.compiler.pools() {
            pool.sweep(level > Level::Calm);
            let shared = &self.shared;
            pool.follow_name(&shared.state, &shared.network, Share::of_owner(account));
        }
    }
}

/// Accepts connections until `stop`.
fn listen(
    shared: &Arc<EdgeContext>,
    listener: Arc<TcpListener>,
    kind: ListenerKind,
    stop: CancellationToken,
) {
    let name = match kind {
        ListenerKind::Http => "edge.http",
        ListenerKind::Tls => "edge.https",
        ListenerKind::Tcp(_) => "edge.tcp",
        ListenerKind::Kubernetes => "edge.kubernetes",
    };
    let accepting = listener::accept(Arc::clone(shared), listener, kind, stop.clone());
    let is_stopping = move || stop.is_cancelled();
    shared
        .state
        .track(shared.supervisor.supervise(name, is_stopping, accepting));
}

/// Runs tasks of policies.
#[derive(Debug)]
struct Tasks(Weak<EdgeContext>);

impl Spawn for Tasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        if let Some(shared) = self.0.upgrade() {
            shared.state.track(task);
        }
    }
}
