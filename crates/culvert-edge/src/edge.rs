//! The edge as a whole: its listeners, what all connections share, and its life from bind to drain.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use culvert_base::net::plain_address;
use culvert_base::sync::lock;
use culvert_base::{BoxFuture, Clock, Fault, Supervisor};
use culvert_events::Recorder;
use culvert_policy::conn::source;
use culvert_policy::documents::Documents;
use culvert_policy::ipdata::IpFields;
use culvert_policy::services::{CALLS_MAX, PolicyServices, Spawn};
use culvert_policy::shared_counts::SharedCounts;
use culvert_tls::server_certificate::ServerCertificate;
use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::downstream::Downstream;
use crate::handshake_turns::HandshakeTurns;
use crate::http::encoded::ENCODERS_KIB_MAX;
use crate::inherited::Inherited;
use crate::lanes::Lanes;
use crate::listener::{self, Kind};
use crate::meters::Meters;
use crate::overload::{
    self, Decision, Demand, Idle, Level, Pressure, RunQueue, Shares, Waited, WriteDelay,
};
use crate::route::Hosts;
use crate::settings::{Rules, Settings};
use crate::snapshot::{Change, Kept, Live, Snapshot};
use crate::upstream::{Dial, Network};

/// How long tasks may take to end once everything is cut.
const CUT_WITHIN: Duration = Duration::from_secs(5);
/// Connections at once whose PROXY header is not whole. They count among no source yet.
const ANNOUNCEMENTS_MAX: usize = 1_024;
/// How often pools are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// The traffic plane. Clones are handles to the same edge.
#[derive(Clone, Debug)]
pub struct Edge {
    shared: Arc<Shared>,
    ports: Arc<tokio::sync::Mutex<Ports>>,
    listeners: Arc<Mutex<Vec<(TcpListener, Kind)>>>,
    http_addr: Option<SocketAddr>,
    https_addr: Option<SocketAddr>,
}

/// What only a change of snapshot touches.
#[derive(Debug)]
struct Ports {
    kept: Kept,
    tcp_bind_ip: IpAddr,
    inherited: Inherited,
    open: HashMap<u16, CancellationToken>,
    /// Those that could not be listened on; each change tries again.
    failed: BTreeSet<u16>,
}

/// What all connections of an edge share.
pub(crate) struct Shared {
    pub(crate) live: ArcSwap<Live>,
    pub(crate) recorder: Arc<dyn Recorder>,
    pub(crate) clock: Arc<dyn Clock>,
    /// What new connections are held to.
    pub(crate) rules: ArcSwap<Rules>,
    pub(crate) meters: Meters,
    /// The way to upstreams, and to hosts that policies name.
    pub(crate) network: Arc<Network>,
    /// What all policies share.
    pub(crate) policy: Arc<PolicyServices>,
    /// Tells how long the store takes to write, if there is one.
    write_delay: Option<WriteDelay>,
    /// Opens streams to agents, if there are any.
    pub(crate) agents: Option<Arc<dyn Dial>>,
    /// Bytes that request bodies may take while actions look at them.
    pub(crate) bodies: Arc<Semaphore>,
    /// KiB that encoders of responses may take.
    pub(crate) encoders: Arc<Semaphore>,
    /// Certificates of the operator's files.
    files: ArcSwap<Hosts<Arc<ServerCertificate>>>,
    /// Turns of TLS handshakes.
    pub(crate) handshakes: HandshakeTurns,
    /// Connections whose PROXY header is being read.
    pub(crate) announcements: Semaphore,
    phase: AtomicU8,
    level: AtomicU8,
    /// Told of every change of the level.
    changed: Notify,
    drops_events: AtomicBool,
    /// What [`Self::tell_missing_data`] said last.
    missing_data: AtomicU64,
    tasks: TaskTracker,
    supervisor: Supervisor,
    lanes: Lanes,
    /// Cancelled when accepting ends.
    pub(crate) accepting: CancellationToken,
    census: Mutex<Census>,
}

/// Which connections there are, and where from. Touched when one begins or ends.
#[derive(Debug, Default)]
struct Census {
    open: Vec<Option<Weak<Downstream>>>,
    free: Vec<usize>,
    by_source: HashMap<IpAddr, usize>,
}

/// How far the edge is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything is served.
    Serving = 0,
    /// Nothing new is accepted, and every answer says that it is the last of its connection.
    Parting = 1,
    /// What has begun is finished; idle connections close.
    Draining = 2,
    /// Everything ends now.
    Cut = 3,
}

impl Edge {
    /// Binds the listeners of HTTP and TLS. Connections wait in them until [`Edge::run`].
    ///
    /// # Errors
    ///
    /// When an address cannot be listened on, or a root certificate is none.
    pub async fn bind(
        settings: Settings,
        recorder: Arc<dyn Recorder>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Fault> {
        let mut listeners = Vec::new();
        let mut bound = [None, None];
        let wanted = [
            ("edge.http_addr", settings.http_addr, Kind::Http),
            ("edge.https_addr", settings.https_addr, Kind::Tls),
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
            listeners.push((listener, kind));
        }
        let [http_addr, https_addr] = bound;
        let dialer = settings.dialer()?;
        let files = settings.files()?;
        let alone = || SharedCounts::new(Arc::clone(&clock), &*settings.entropy);
        let counts = settings.counts.clone().unwrap_or_else(alone);
        let own = [http_addr, https_addr].into_iter().flatten().collect();
        let network = Arc::new(Network::new(dialer, own));
        let meters = Meters::default();
        let lanes = Lanes::start(settings.threads)?;
        let rules = ArcSwap::from_pointee(settings.rules());
        let Settings {
            entropy,
            ip_data,
            region,
            limits,
            ..
        } = settings;
        let shared = Arc::new_cyclic(|shared| Shared {
            policy: Arc::new(PolicyServices {
                clock: Arc::clone(&clock),
                entropy,
                ip_data,
                counts,
                documents: Documents::new(),
                region,
                calls: Semaphore::new(CALLS_MAX),
                meters: Arc::clone(&meters.policy),
                network: network.clone(),
                tasks: Box::new(Tasks(Weak::clone(shared))),
            }),
            network,
            live: ArcSwap::default(),
            recorder,
            clock,
            handshakes: HandshakeTurns::new(settings.threads),
            announcements: Semaphore::new(ANNOUNCEMENTS_MAX),
            bodies: Arc::new(Semaphore::new(limits.held_bytes)),
            encoders: Arc::new(Semaphore::new(ENCODERS_KIB_MAX)),
            rules,
            meters,
            write_delay: settings.write_delay,
            agents: settings.agents,
            missing_data: AtomicU64::new(0),
            files: ArcSwap::from_pointee(files),
            phase: AtomicU8::new(Phase::Serving as u8),
            level: AtomicU8::new(Level::Calm as u8),
            changed: Notify::new(),
            drops_events: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            supervisor: settings.supervisor,
            lanes,
            accepting: CancellationToken::new(),
            census: Mutex::default(),
        });
        Ok(Self {
            shared,
            ports: Arc::new(tokio::sync::Mutex::new(Ports {
                kept: Kept::default(),
                tcp_bind_ip: settings.tcp_bind_ip,
                inherited: settings.inherited,
                open: HashMap::new(),
                failed: BTreeSet::new(),
            })),
            listeners: Arc::new(Mutex::new(listeners)),
            http_addr,
            https_addr,
        })
    }

    /// Where plain HTTP is accepted.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http_addr
    }

    /// Where TLS is accepted.
    pub fn https_addr(&self) -> Option<SocketAddr> {
        self.https_addr
    }

    /// What its connections share.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// What the edge counts.
    pub fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    /// Takes other settings into use, all but the addresses: for new connections, and for
    /// certificates and roots from the next handshake on. How many handshakes run at once stays.
    ///
    /// # Errors
    ///
    /// When a certificate cannot be used; then nothing has changed.
    pub fn reload(&self, settings: &Settings) -> Result<(), Fault> {
        let (dialer, files) = (settings.dialer()?, settings.files()?);
        self.shared.rules.store(Arc::new(settings.rules()));
        self.shared.network.dialer.store(Arc::new(dialer));
        self.shared.files.store(Arc::new(files));
        Ok(())
    }

    /// The data of the operator that policies in use read and no file has. Their endpoints refuse traffic.
    pub fn missing_data(&self) -> IpFields {
        self.shared.missing_data(&self.shared.live.load()).0
    }

    /// Logs the endpoints whose policies read data that no file has, after the data has changed.
    pub fn tell_missing_data(&self) {
        self.shared.tell_missing_data(&self.shared.live.load());
    }

    /// Takes a snapshot into use: when this returns, new requests and connections see it, ports of
    /// new TCP endpoints accept and those of removed ones do not. What is under way goes on with
    /// what it began with.
    ///
    /// A port that cannot be listened on is logged and counted, and tried again with the next
    /// snapshot.
    pub async fn publish(&self, snapshot: Snapshot) {
        let mut ports = self.ports.lock().await;
        let live = match ports.kept.compile(snapshot) {
            Ok(live) => Arc::new(live),
            Err(error) => {
                tracing::error!(%error, "invalid snapshot; keeping the previous one");
                return;
            }
        };
        ports.open.retain(|port, stop| {
            let stays = live.tcp.get(port).is_some();
            if !stays {
                stop.cancel();
            }
            stays
        });
        let wanted: Vec<u16> = live.tcp.keys().copied().collect();
        ports.failed.clear();
        self.shared.tell_missing_data(&live);
        self.shared.live.store(live);
        for port in wanted {
            self.open_port(&mut ports, port);
        }
        self.shared.meters.snapshots.up();
    }

    /// Takes a change of the snapshot into use, as [`Edge::publish`] does with a whole one. Takes time
    /// with the change and not with the snapshot.
    pub async fn apply(&self, change: Change) {
        let mut ports = self.ports.lock().await;
        let ids: Vec<String> = change.ids().cloned().collect();
        let mut touched = ports.kept.ports_of(ids.iter());
        let live = match ports.kept.apply(&self.shared.live.load(), change) {
            Ok(live) => Arc::new(live),
            Err(error) => {
                tracing::error!(%error, "invalid configuration change; keeping the snapshot");
                return;
            }
        };
        touched.extend(ports.kept.ports_of(ids.iter()));
        touched.extend(std::mem::take(&mut ports.failed));
        self.shared.tell_missing_data(&live);
        self.shared.live.store(Arc::clone(&live));
        for port in touched {
            if live.tcp.get(&port).is_some() {
                self.open_port(&mut ports, port);
            } else if let Some(stop) = ports.open.remove(&port) {
                stop.cancel();
            }
        }
        self.shared.meters.snapshots.up();
    }

    /// Accepts at the port of a TCP endpoint, if that is not done already.
    fn open_port(&self, ports: &mut Ports, port: u16) {
        if ports.open.contains_key(&port) {
            return;
        }
        let address = SocketAddr::new(ports.tcp_bind_ip, port);
        match listener::bind(address, &ports.inherited) {
            Ok(listener) => {
                let stop = self.shared.accepting.child_token();
                ports.open.insert(port, stop.clone());
                self.shared.listen(listener, Kind::Tcp(port), stop);
            }
            Err(error) => {
                ports.failed.insert(port);
                self.shared.meters.ports_failed.up();
                tracing::warn!(%error, port, "cannot listen on the port of a TCP endpoint");
            }
        }
    }

    /// Waits while the edge is too tight for new agents, which are to be held meanwhile (reliability 5).
    pub async fn takes_agents(&self) {
        self.shared.takes_agents().await;
    }

    /// Serves until `cancel`, then drains: stops accepting, lets what has begun finish within the
    /// drain time, and cuts the rest. When this returns every connection is closed and its events
    /// are offered.
    pub async fn run(self, cancel: CancellationToken) {
        let shared = &self.shared;
        let listeners = std::mem::take(&mut *lock(&self.listeners));
        for (listener, kind) in listeners {
            let stop = shared.accepting.child_token();
            shared.listen(listener, kind, stop);
        }
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        let mut look = tokio::time::interval(overload::LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut pressure, files) = (Pressure::default(), overload::files_max());
        let half = overload::memory_max();
        let mut run_queue = RunQueue::new(shared.lanes.count().max(1), Instant::now());
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                _ = look.tick() => {
                    let (now, rules) = (Instant::now(), shared.rules.load());
                    let limits = &rules.limits;
                    let waits = run_queue.look(now, |lane, waited| shared.probe(lane, waited));
                    let writes = shared.write_delay.as_ref().map_or(Duration::ZERO, |tell| tell());
                    let shares = Shares::of_process(limits.memory_bytes.min(half), files)
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
        shared.accepting.cancel();
        let (parting, drain) = {
            let rules = shared.rules.load();
            (
                rules.limits.parting.min(rules.limits.drain),
                rules.limits.drain,
            )
        };
        let until = Instant::now() + drain;
        shared.enter(Phase::Parting);
        // A request that was on its way when the end began is still answered.
        drop(tokio::time::timeout(parting, shared.drained()).await);
        shared.enter(Phase::Draining);
        shared.tasks.close();
        if tokio::time::timeout_at(until, shared.drained())
            .await
            .is_err()
        {
            tracing::info!(
                connections = shared.meters.connections.get(),
                "drain timeout reached; closing the remaining connections"
            );
        }
        shared.enter(Phase::Cut);
        // Connections to upstreams end with the pools that share them.
        shared.live.store(Arc::default());
        self.ports.lock().await.kept = Kept::default();
        if tokio::time::timeout(CUT_WITHIN, shared.tasks.wait())
            .await
            .is_err()
        {
            tracing::error!("edge tasks did not stop after cancellation");
        }
    }
}

impl Edge {
    /// Closes connections to upstreams that rest for too long, or are too many.
    async fn sweep(&self) {
        let level = self.shared.level();
        for pool in self.ports.lock().await.kept.pools() {
            pool.sweep(level);
        }
    }
}

impl Shared {
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Serving,
            1 => Phase::Parting,
            2 => Phase::Draining,
            _ => Phase::Cut,
        }
    }

    /// Data that policies read and no file has, how many endpoints need it, and the id of one.
    fn missing_data<'l>(&self, live: &'l Live) -> (IpFields, u32, &'l str) {
        let data = self.policy.ip_data.now();
        let (mut all, mut count, mut first) = (IpFields::default(), 0, "");
        for (id, fields) in live.data_readers.iter() {
            let missing = data.missing(*fields);
            if !missing.is_empty() {
                all = all.and(missing);
                count += 1;
                first = if first.is_empty() { id } else { first };
            }
        }
        (all, count, first)
    }

    /// Logs what is missing, if that is not what it was.
    fn tell_missing_data(&self, live: &Live) {
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

    /// Whether the edge is on its way to its end.
    pub(crate) fn is_parting(&self) -> bool {
        self.phase() != Phase::Serving
    }

    /// How far the edge is under pressure.
    pub(crate) fn level(&self) -> Level {
        Level::of(self.level.load(Ordering::Relaxed))
    }

    /// Waits while it is too much for new agents.
    async fn takes_agents(&self) {
        let mut is_held = false;
        loop {
            // Asked for before the look, so that no change is missed.
            let changed = self.changed.notified();
            if self.level() < Level::Tight {
                return;
            }
            if !std::mem::replace(&mut is_held, true) {
                self.meters.held_agents.up();
            }
            changed.await;
        }
    }

    /// Whether connections end with what they are doing.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_parting() || self.level() == Level::Full
    }

    /// Takes note of a decision, and tells every connection when the level changes. Whether it does.
    fn press(&self, decision: Decision, shares: Shares) -> bool {
        let level = decision.level;
        let pressure = &self.meters.pressure;
        pressure.memory.set(shares.memory);
        pressure.files.set(shares.files);
        pressure.run_queue.set(shares.run_queue);
        pressure.store.set(shares.store);
        let before = self.level.swap(level as u8, Ordering::Relaxed);
        if before != level as u8 {
            tracing::warn!(
                from = before,
                to = level as u8,
                %shares,
                "overload level changed"
            );
            self.meters.overload_level.set(u64::from(level as u8));
            self.policy.documents.freeze(level >= Level::Busy);
            self.tell();
            self.changed.notify_waiters();
        }
        self.drops_events
            .store(decision.drops_events, Ordering::Relaxed);
        if decision.ends_one {
            self.end_largest();
        }
        before != level as u8
    }

    /// Has idle connections close, as many as it takes.
    fn shed_idle(&self, memory: u64, files_max: u64) {
        let connections_max = self.rules.load().limits.connections;
        let open = usize::try_from(self.meters.connections.get()).unwrap_or(usize::MAX);
        let demand = Demand {
            files: (overload::open_files().unwrap_or_default(), files_max),
            memory,
            is_tight: self.level() >= Level::Tight,
            connections: (open, connections_max),
        };
        let excess = demand.excess();
        if excess == 0 {
            return;
        }
        let (mut idle, mut downs, mut closing) = (Vec::new(), Vec::new(), 0);
        for down in self.open() {
            if down.is_shed() {
                closing += 1;
            } else if let Some(since) = down.idle_since() {
                let source = down.info.source();
                idle.push(Idle { source, since });
                downs.push(down);
            }
        }
        let held = lock(&self.census).by_source.clone();
        for at in overload::victims(&idle, &held, excess.saturating_sub(closing)) {
            if let Some(down) = downs.get(at) {
                self.meters.shed_idle.up();
                down.shed();
            }
        }
    }

    /// Ends the exchange that holds most, with its connection.
    fn end_largest(&self) {
        let held = |down: &Arc<Downstream>| down.counters.held_bytes.load(Ordering::Relaxed);
        let largest = self.open().into_iter().max_by_key(held);
        if let Some(down) = largest.filter(|down| held(down) > 0) {
            self.meters.shed_exchanges.up();
            down.hang_up();
        }
    }

    /// Whether events are dropped, for want of room.
    pub(crate) fn drops_events(&self) -> bool {
        self.drops_events.load(Ordering::Relaxed)
    }

    /// Sees how long a task waits on a lane, or on the runtime that all share if there are none.
    fn probe(&self, lane: usize, waited: Waited) {
        let sent = Instant::now();
        let probe = async move { waited.ran(sent.elapsed()) };
        match self.lanes.get(lane) {
            Some(lane) => self.tasks.spawn_on(probe, lane),
            None => self.tasks.spawn(probe),
        };
    }

    /// Enters a phase and tells every connection.
    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
        self.tell();
    }

    /// Wakes every connection.
    fn tell(&self) {
        for down in self.open() {
            down.driver.wake();
        }
    }

    /// The connections that are open now.
    pub(crate) fn open(&self) -> Vec<Arc<Downstream>> {
        let census = lock(&self.census);
        let open = census.open.iter().flatten();
        open.filter_map(Weak::upgrade).collect()
    }

    /// Waits until no connection is open.
    async fn drained(&self) {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while self.meters.connections.get() > 0 {
            look.tick().await;
        }
    }

    /// The settings that TLS is served with for a name: its owner's certificate, else one of the
    /// operator's files, else the installation's own.
    pub(crate) fn certificate(&self, live: &Live, name: &str) -> Option<Arc<ServerCertificate>> {
        let files = self.files.load();
        live.certificates
            .find(name)
            .or_else(|| files.find(name))
            .or_else(|| live.fallback.find(name))
            .map(Arc::clone)
    }

    /// Accepts connections until `stop`.
    fn listen(self: &Arc<Self>, listener: TcpListener, kind: Kind, stop: CancellationToken) {
        let name = match kind {
            Kind::Http => "edge.http",
            Kind::Tls => "edge.https",
            Kind::Tcp(_) => "edge.tcp",
        };
        let accepting = listener::accept(Arc::clone(self), listener, kind, stop.clone());
        let is_stopping = move || stop.is_cancelled();
        self.track(self.supervisor.supervise(name, is_stopping, accepting));
    }

    /// Runs a task of the edge.
    pub(crate) fn track(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.contain(task));
    }

    /// Makes a panic in a task end it alone, and counts it.
    ///
    /// Combinators, because an `async` block that awaits what it captured holds it twice.
    pub(crate) fn contain<T: Future<Output = ()>>(
        self: &Arc<Self>,
        task: T,
    ) -> impl Future<Output = ()> + use<T> {
        let shared = Arc::clone(self);
        AssertUnwindSafe(task).catch_unwind().map(move |ended| {
            if ended.is_err() {
                shared.meters.panics.up();
                tracing::error!("an edge task panicked");
            }
        })
    }

    /// Hands a connection that was accepted to the lane that serves it.
    pub(crate) fn hand_over(self: &Arc<Self>, tcp: TcpStream, client: SocketAddr, kind: Kind) {
        let Some(lane) = self.lanes.next() else {
            return listener::admit(self, tcp, client, kind);
        };
        // What the one runtime watched, the other is to watch.
        let Ok(tcp) = tcp.into_std() else { return };
        let shared = Arc::clone(self);
        let admit = async move {
            match TcpStream::from_std(tcp) {
                Ok(tcp) => listener::admit(&shared, tcp, client, kind),
                Err(error) => tracing::warn!(%error, "cannot watch a connection"),
            }
        };
        self.tasks.spawn_on(admit, lane);
    }

    /// Takes a connection into the census, if there is room for it.
    pub(crate) fn enlist(
        self: &Arc<Self>,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<Arc<Downstream>> {
        let source = source(plain_address(client.ip()));
        let slot = {
            let rules = self.rules.load();
            let limits = &rules.limits;
            let mut census = lock(&self.census);
            if census.open.len() - census.free.len() >= limits.connections {
                self.meters.refused_full.up();
                return None;
            }
            let count = census.by_source.entry(source).or_default();
            if *count >= limits.connections_per_source {
                self.meters.refused_source.up();
                return None;
            }
            *count += 1;
            census.free.pop().unwrap_or_else(|| {
                census.open.push(None);
                census.open.len() - 1
            })
        };
        self.meters.connections.up();
        let down = Downstream::new(Arc::clone(self), client, server);
        down.listed(slot);
        if let Some(place) = lock(&self.census).open.get_mut(slot) {
            *place = Some(Arc::downgrade(&down));
        }
        Some(down)
    }

    /// A connection has ended.
    pub(crate) fn forget(&self, slot: usize, source: IpAddr) {
        let mut census = lock(&self.census);
        if let Some(place) = census.open.get_mut(slot) {
            *place = None;
            census.free.push(slot);
        }
        if let Some(count) = census.by_source.get_mut(&source) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                census.by_source.remove(&source);
            }
        }
        drop(census);
        self.meters.connections.down();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edge")
            .field("meters", &self.meters)
            .finish_non_exhaustive()
    }
}

/// Runs tasks of policies.
#[derive(Debug)]
struct Tasks(Weak<Shared>);

impl Spawn for Tasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        if let Some(shared) = self.0.upgrade() {
            shared.track(task);
        }
    }
}

/// Runs what the library of HTTP/2 to upstreams gives out.
#[derive(Clone, Debug)]
pub(crate) struct Streams(pub(crate) Arc<Shared>);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.track(stream.map(drop));
    }
}
