//! What all connections of an edge share: its tables, its limits, its counters, and how far it is in its life.
//!
//! Not here: listeners and the life of the edge ([`Edge`](crate::Edge)).

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use culvert_base::net::plain_address;
use culvert_base::sync::lock;
use culvert_base::{Clock, Supervisor};
use culvert_events::Recorder;
use culvert_policy::conn::source;
use culvert_policy::ipdata::IpFields;
use culvert_policy::services::PolicyServices;
use culvert_tls::server_certificate::ServerCertificate;
use futures_util::FutureExt;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::downstream::Downstream;
use crate::handshake_turns::HandshakeTurns;
use crate::lanes::Lanes;
use crate::meters::Meters;
use crate::overload::{self, Decision, Demand, Idle, Level, Shares, Waited, WriteDelay};
use crate::route::Hosts;
use crate::rules::Rules;
use crate::snapshot::live::Live;
use crate::upstream::agent::Dial;
use crate::upstream::fetch::Network;

/// What all connections of an edge share.
pub(crate) struct EdgeContext {
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
    pub(crate) write_delay: Option<WriteDelay>,
    /// Opens streams to agents, if there are any.
    pub(crate) agents: Option<Arc<dyn Dial>>,
    /// Bytes that request bodies may take while actions look at them.
    pub(crate) bodies: Arc<Semaphore>,
    /// KiB that encoders of responses may take.
    pub(crate) encoders: Arc<Semaphore>,
    /// Certificates of the operator's files.
    pub(crate) files: ArcSwap<Hosts<Arc<ServerCertificate>>>,
    /// Turns of TLS handshakes.
    pub(crate) handshakes: HandshakeTurns,
    /// Connections whose PROXY header is being read.
    pub(crate) announcements: Semaphore,
    pub(crate) phase: AtomicU8,
    pub(crate) level: AtomicU8,
    /// Told of every change of the level.
    pub(crate) changed: Notify,
    pub(crate) drops_events: AtomicBool,
    /// What [`Self::tell_missing_data`] said last.
    pub(crate) missing_data: AtomicU64,
    pub(crate) tasks: TaskTracker,
    pub(crate) supervisor: Supervisor,
    pub(crate) lanes: Lanes,
    /// Cancelled when accepting ends.
    pub(crate) accepting: CancellationToken,
    pub(crate) census: Mutex<Census>,
}

/// Which connections there are, and where from. Touched when one begins or ends.
#[derive(Debug, Default)]
pub(crate) struct Census {
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

impl EdgeContext {
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Serving,
            1 => Phase::Parting,
            2 => Phase::Draining,
            _ => Phase::Cut,
        }
    }

    /// Data that policies read and no file has, how many endpoints need it, and the id of one.
    pub(crate) fn missing_data<'l>(&self, live: &'l Live) -> (IpFields, u32, &'l str) {
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
    pub(crate) fn tell_missing_data(&self, live: &Live) {
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
    pub(crate) async fn takes_agents(&self) {
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
    pub(crate) fn press(&self, decision: Decision, shares: Shares) -> bool {
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
    pub(crate) fn shed_idle(&self, memory: u64, files_max: u64) {
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
    pub(crate) fn probe(&self, lane: usize, waited: Waited) {
        let sent = Instant::now();
        let probe = async move { waited.ran(sent.elapsed()) };
        match self.lanes.get(lane) {
            Some(lane) => self.tasks.spawn_on(probe, lane),
            None => self.tasks.spawn(probe),
        };
    }

    /// Enters a phase and tells every connection.
    pub(crate) fn enter(&self, phase: Phase) {
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
    pub(crate) async fn drained(&self) {
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

impl fmt::Debug for EdgeContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edge")
            .field("meters", &self.meters)
            .finish_non_exhaustive()
    }
}

/// Runs what the library of HTTP/2 to upstreams gives out.
#[derive(Clone, Debug)]
pub(crate) struct Streams(pub(crate) Arc<EdgeContext>);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.track(stream.map(drop));
    }
}
