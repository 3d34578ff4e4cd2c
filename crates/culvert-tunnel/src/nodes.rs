//! Connections carried between nodes: what arrives at one whose agent is connected to another.
//!
//! ```text
//! client ─▶ edge of A ─▶ Nodes of A ──mutual TLS, multiplexed──▶ NodeIngress of B ─▶ Bindings of B ─▶ agent
//! ```
//!
//! A node keeps connections to every other that has agents, so that opening a stream never waits. A
//! stream begins like one to an agent, with the header that names the endpoint; the node it arrives at
//! hands it to an agent of its own or refuses it, and never passes it on. Both ends show a
//! certificate of the installation's authority for nodes; who has none gets no further than the handshake.
//!
//! Not here: who is a node and which endpoint is where (control).

mod peer_rpc;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use culvert_mux::{ErrorCode, Limits, Side};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use peer_rpc::{PeerCall, PeerService};

use crate::client::{header, relay};
use crate::driver::{self, Session, Stream};
use crate::server::{
    Bindings, ConnectionLimits, DialError, Meter, UnauthenticatedPermit, accept, call, open_first,
    open_in_turn,
};
use crate::wire::{ProxyHeader, StreamType};

/// The name in the certificate of every node.
pub const NAME: &str = "node.culvert.internal";

/// Connections to each other node: each is a task, and they share the work.
const LEGS: usize = 2;
/// For TCP and TLS.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Between two tries to reach a node: doubled from the first to the last.
const RETRY_AFTER: Duration = Duration::from_millis(100);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);
/// How long a new table waits for nodes it names for the first time.
const REACHED_WITHIN: Duration = Duration::from_secs(1);
/// What is on its way to a node may take so long to end when the node has no more agents.
const FINISHED_WITHIN: Duration = Duration::from_secs(30);
/// An agent whose node was lost is waited for this long.
const RETURNS_WITHIN: Duration = Duration::from_secs(2);
/// For other nodes; all of them may be behind one address.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 1_024,
    strangers: 64,
    strangers_per_source: 64,
};
/// Why a node ends a stream that another brought: no agent of its serves the endpoint now. The other may
/// know better by then.
pub const AWAY: ErrorCode = ErrorCode(0x100);
/// A node that went without a word is noticed in so long.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Nodes trust each other with more than they trust agents.
fn limits() -> Limits {
    Limits {
        queue_bytes_max: 8 << 20,
        held_bytes_max: 64 << 20,
        burst_bytes_max: 128 << 20,
        window_bytes_max: 1 << 20,
        answers_max: 16_384,
        ..Limits::for_ours()
    }
}

/// What a node shows, and whose certificates it takes.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Certificate and key, for [`NAME`].
    pub key: Arc<CertifiedKey>,
    /// The authority of every node's certificate.
    pub authority: CertificateDer<'static>,
}

/// Where the agents of other nodes are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// `host:port` of the node, by the id of an endpoint.
    pub endpoints: BTreeMap<String, String>,
}

/// What was carried.
#[derive(Debug, Default)]
pub struct NodeMeters {
    /// Streams opened to agents of other nodes.
    pub carried: Meter,
    /// Of them, those that found no node.
    pub failed: Meter,
    /// Streams that other nodes opened to agents of this one.
    pub brought: Meter,
}

/// The certificate that is shown; another can take its place.
#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl Shown {
    fn key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The ways to the other nodes.
pub struct Nodes {
    shown: Arc<Shown>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    peers: Mutex<BTreeMap<String, Arc<Peer>>>,
    /// By the id of an endpoint.
    table: RwLock<HashMap<String, Arc<Peer>>>,
    /// Moves when peers come.
    changed: watch::Sender<u64>,
    /// Whether any was lost or became known a moment ago, to be asked by every request.
    has_lost: AtomicBool,
    meters: NodeMeters,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers: Vec<String> = self.lock().keys().cloned().collect();
        f.debug_struct("Nodes").field("peers", &peers).finish()
    }
}

/// Another node.
#[derive(Debug)]
struct Peer {
    address: String,
    /// Endpoints of its agents.
    n_endpoints: AtomicUsize,
    legs: Mutex<[Option<Session>; LEGS]>,
    turn: AtomicUsize,
    is_reached: watch::Sender<bool>,
    /// Since when it has no connection: when the last one was lost, or when it became known.
    unreached_since: Mutex<Instant>,
    /// Cancelled when it is one no more.
    gone: CancellationToken,
}

impl Peer {
    fn new(address: String) -> Self {
        Self {
            address,
            n_endpoints: AtomicUsize::new(0),
            legs: Mutex::default(),
            turn: AtomicUsize::new(0),
            is_reached: watch::Sender::new(false),
            unreached_since: Mutex::new(Instant::now()),
            gone: CancellationToken::new(),
        }
    }

    /// Whether it has been without a connection for less than two seconds.
    fn is_just_lost(&self) -> bool {
        !*self.is_reached.borrow() && self.unreached_since().elapsed() < RETURNS_WITHIN
    }

    fn unreached_since(&self) -> MutexGuard<'_, Instant> {
        let since = self.unreached_since.lock();
        since.unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a connection or its end. Whether the last one was lost.
    fn set(&self, leg: usize, session: Option<Session>) -> bool {
        let mut legs = self.legs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = legs.get_mut(leg) {
            *place = session;
        }
        let is_reached = legs.iter().any(Option::is_some);
        let was_reached = self.is_reached.send_replace(is_reached);
        let is_lost = was_reached && !is_reached;
        if is_lost {
            *self.unreached_since() = Instant::now();
        }
        is_lost
    }

    /// The connections that stand, beginning with the one whose turn it is.
    fn sessions(&self) -> impl Iterator<Item = Session> + use<> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let legs = self.legs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut legs = legs.clone();
        legs.rotate_left(first % LEGS);
        legs.into_iter().flatten()
    }
}

impl Nodes {
    /// Ways to nobody yet.
    ///
    /// # Errors
    ///
    /// An identity that TLS cannot use.
    pub fn new(identity: Identity) -> Result<Self, rustls::Error> {
        let shown = Arc::new(Shown(RwLock::new(identity.key)));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(identity.authority)?;
        let roots = Arc::new(roots);
        let of_nodes =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(of_nodes)
            .with_cert_resolver(Arc::clone(&shown) as _);
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::clone(&shown) as _);
        Ok(Self {
            shown,
            client: Arc::new(client),
            server: Arc::new(server),
            peers: Mutex::default(),
            table: RwLock::default(),
            changed: watch::Sender::new(0),
            has_lost: AtomicBool::new(false),
            meters: NodeMeters::default(),
        })
    }

    /// Shows another certificate from the next handshake on.
    pub fn show(&self, key: Arc<CertifiedKey>) {
        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// Connections to other nodes that stand.
    pub fn connections(&self) -> usize {
        let standing = |peer: &Arc<Peer>| {
            let legs = peer.legs.lock().unwrap_or_else(PoisonError::into_inner);
            legs.iter().flatten().count()
        };
        self.lock().values().map(standing).sum()
    }

    /// What is counted.
    pub fn meters(&self) -> &NodeMeters {
        &self.meters
    }

    /// Takes other whereabouts into use. Nodes that were not known before are waited for, a little.
    pub async fn publish(&self, whereabouts: Whereabouts) {
        let wanted: BTreeSet<&String> = whereabouts.endpoints.values().collect();
        let mut fresh = Vec::new();
        {
            let mut peers = self.lock();
            peers.retain(|address, peer| {
                let stays = wanted.contains(address);
                if !stays {
                    peer.gone.cancel();
                }
                stays
            });
            for address in wanted {
                self.peer_at(&mut peers, address, &mut fresh)
                    .n_endpoints
                    .store(0, Ordering::Relaxed);
            }
            let place = |(endpoint, address): (String, String)| {
                let peer = peers.get(&address)?;
                peer.n_endpoints.fetch_add(1, Ordering::Relaxed);
                Some((endpoint, Arc::clone(peer)))
            };
            let table = whereabouts.endpoints.into_iter().filter_map(place);
            *self.table.write().unwrap_or_else(PoisonError::into_inner) = table.collect();
        }
        self.reach(fresh).await;
    }

    /// Takes other whereabouts of some endpoints into use: `host:port` of the node that has the agent, or
    /// that no other node has it.
    pub async fn apply(&self, moved: Vec<(String, Option<String>)>) {
        let mut fresh = Vec::new();
        {
            let mut peers = self.lock();
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            let mut left = Vec::new();
            for (endpoint, address) in moved {
                left.extend(match address {
                    Some(address) => {
                        let peer = self.peer_at(&mut peers, &address, &mut fresh);
                        peer.n_endpoints.fetch_add(1, Ordering::Relaxed);
                        table.insert(endpoint, peer)
                    }
                    None => table.remove(&endpoint),
                });
            }
            for peer in &left {
                peer.n_endpoints.fetch_sub(1, Ordering::Relaxed);
            }
            // One that has no endpoint any more is no peer any more.
            for peer in left {
                if peer.n_endpoints.load(Ordering::Relaxed) == 0 {
                    peer.gone.cancel();
                    peers.remove(&peer.address);
                }
            }
        }
        self.reach(fresh).await;
    }

    /// The peer at an address, new if it was not known.
    fn peer_at(
        &self,
        peers: &mut BTreeMap<String, Arc<Peer>>,
        address: &str,
        fresh: &mut Vec<Arc<Peer>>,
    ) -> Arc<Peer> {
        if let Some(peer) = peers.get(address) {
            return Arc::clone(peer);
        }
        // Requests that come before its first connection stands wait for it.
        self.has_lost.store(true, Ordering::Relaxed);
        let peer = Arc::new(Peer::new(address.to_owned()));
        fresh.push(Arc::clone(&peer));
        peers.insert(address.to_owned(), Arc::clone(&peer));
        peer
    }

    /// Waits for the first connections to new peers, a little.
    async fn reach(&self, fresh: Vec<Arc<Peer>>) {
        if fresh.is_empty() {
            return;
        }
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
        let reached = async {
            for peer in fresh {
                // The sender goes with the peer, which is held here.
                drop(peer.is_reached.subscribe().wait_for(|is| *is).await);
            }
        };
        // One that cannot be reached now is tried on.
        drop(tokio::time::timeout(REACHED_WITHIN, reached).await);
    }

    /// Opens a stream to an agent of another node. Whether that agent takes it is heard on the stream.
    ///
    /// # Errors
    ///
    /// No other node has an agent for the endpoint, or it cannot be reached now.
    pub fn dial(&self, header: &ProxyHeader) -> Result<Stream, DialError> {
        let peer = self.peer_of(&header.id).ok_or(DialError::Away)?;
        self.carried(open_first(
            peer.sessions(),
            || header.encode(),
            Session::open_behind,
        ))
    }

    /// The same. Where the connections to the node carry all they can, waits until one has room, for
    /// [`PATIENCE`](crate::server::PATIENCE) at most.
    ///
    /// # Errors
    ///
    /// As for [`Nodes::dial`].
    pub async fn dial_in_turn(&self, header: &ProxyHeader) -> Result<Stream, DialError> {
        match self.dial(header) {
            Err(DialError::Busy) => {}
            opened => return opened,
        }
        let peer = self.peer_of(&header.id).ok_or(DialError::Away)?;
        self.carried(open_in_turn(|| peer.sessions().collect(), || header.encode()).await)
    }

    fn carried(&self, opened: Result<Stream, DialError>) -> Result<Stream, DialError> {
        match &opened {
            Ok(_) => self.meters.carried.up(),
            Err(_) => self.meters.failed.up(),
        }
        opened
    }

    /// Whether another node has an agent for the endpoint, and can be reached.
    pub fn is_online(&self, endpoint: &str) -> bool {
        self.peer_of(endpoint)
            .is_some_and(|peer| *peer.is_reached.borrow())
    }

    /// Whether the node that has the agent of the endpoint was lost, or became known, less than two seconds
    /// ago: its connection or the agent's next one is about to stand.
    pub fn has_just_lost(&self, endpoint: &str) -> bool {
        if !self.has_lost.load(Ordering::Relaxed) {
            return false;
        }
        let any_is_lost = {
            let peers = self.lock();
            let any_is_lost = peers.values().any(|peer| peer.is_just_lost());
            self.has_lost.store(any_is_lost, Ordering::Relaxed);
            any_is_lost
        };
        any_is_lost
            && self
                .peer_of(endpoint)
                .is_some_and(|peer| peer.is_just_lost())
    }

    /// Keeps the connections to the other nodes until told to stop.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut changed = self.changed.subscribe();
        let mut running: BTreeMap<String, Arc<Peer>> = BTreeMap::new();
        let mut legs = JoinSet::new();
        loop {
            changed.mark_unchanged();
            let peers: Vec<Arc<Peer>> = self.lock().values().cloned().collect();
            for peer in peers {
                let is_running = running
                    .get(&peer.address)
                    .is_some_and(|known| Arc::ptr_eq(known, &peer));
                if !is_running {
                    running.insert(peer.address.clone(), Arc::clone(&peer));
                    for leg in 0..LEGS {
                        legs.spawn(Arc::clone(&self).keep(Arc::clone(&peer), leg, stop.clone()));
                    }
                }
            }
            running.retain(|_, peer| !peer.gone.is_cancelled());
            tokio::select! {
                _ = changed.changed() => {}
                Some(ended) = legs.join_next() => if let Err(error) = ended {
                    // The end of this task makes the process restart, with all connections.
                    tracing::error!(%error, "maintaining the connections to other nodes failed");
                    return;
                },
                () = stop.cancelled() => break,
            }
        }
        while legs.join_next().await.is_some() {}
    }

    /// Keeps one connection to a node.
    async fn keep(self: Arc<Self>, peer: Arc<Peer>, leg: usize, stop: CancellationToken) {
        let over = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = async {
                    peer.gone.cancelled().await;
                    tokio::time::sleep(FINISHED_WITHIN).await;
                } => {}
            }
        };
        let keeping = async {
            let mut pause = RETRY_AFTER;
            while !peer.gone.is_cancelled() {
                let connected = tokio::time::timeout(CONNECT_TIME, self.connect(&peer.address));
                match connected.await {
                    Ok(Ok((session, driver))) => {
                        pause = RETRY_AFTER;
                        peer.set(leg, Some(session));
                        let ending = driver.run().await;
                        if peer.set(leg, None) {
                            // With the lock, so that a look at the peers from before does not undo it.
                            let _peers = self.lock();
                            self.has_lost.store(true, Ordering::Relaxed);
                        }
                        tracing::debug!(node = peer.address, ?ending, "connection to a node ended");
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(node = peer.address, %error, "node unreachable");
                    }
                    Err(_) => tracing::warn!(node = peer.address, "node does not respond"),
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_AFTER_MAX);
            }
        };
        tokio::select! {
            () = over => {}
            () = keeping => {}
        }
        peer.set(leg, None);
    }

    async fn connect(
        &self,
        address: &str,
    ) -> io::Result<(
        Session,
        driver::Driver<tokio_rustls::client::TlsStream<TcpStream>>,
    )> {
        let socket = TcpStream::connect(address).await?;
        prepare(&socket)?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(&self.client));
        let socket = connector.connect(name, socket).await?;
        Ok(driver::connect(socket, Side::Client, limits()))
    }

    fn peer_of(&self, endpoint: &str) -> Option<Arc<Peer>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(endpoint).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No waiting for company, and an end for whoever went without a word.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let alive = TcpKeepalive::new()
        .with_time(SILENT_AFTER)
        .with_interval(SILENT_AFTER / 5)
        .with_retries(5);
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&alive)?;
    socket.set_tcp_user_timeout(Some(SILENT_AFTER * 2))
}

/// The agents of this node.
#[derive(Clone)]
struct Here {
    bindings: Arc<Bindings>,
    peer_service: Arc<dyn PeerService>,
}

impl fmt::Debug for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Here").finish_non_exhaustive()
    }
}

/// The listener that other nodes dial.
#[derive(Debug)]
pub struct NodeIngress {
    listener: TcpListener,
    nodes: Arc<Nodes>,
    agents: Here,
}

impl NodeIngress {
    /// What other nodes bring goes to the agents of `bindings`, what they ask of agents to `peer_service`.
    pub fn new(
        listener: TcpListener,
        nodes: Arc<Nodes>,
        bindings: Arc<Bindings>,
        peer_service: Arc<dyn PeerService>,
    ) -> Self {
        Self {
            listener,
            nodes,
            agents: Here {
                bindings,
                peer_service,
            },
        }
    }

    /// Serves other nodes until told to stop; then what they brought may end within `drain`.
    pub async fn run(self, stop: CancellationToken, drain: Duration) {
        let brought = TaskTracker::new();
        let serving = accept(
            &self.listener,
            CONNECTION_LIMITS,
            None,
            &stop,
            |socket, _, stranger| {
                let guest = PeerConnection {
                    nodes: Arc::clone(&self.nodes),
                    agents: self.agents.clone(),
                    brought: brought.clone(),
                };
                guest.serve(socket, stranger)
            },
        );
        let _connections = serving.await;
        drop(self.listener);
        brought.close();
        drop(tokio::time::timeout(drain, brought.wait()).await);
    }
}

/// One connection of another node.
struct PeerConnection {
    nodes: Arc<Nodes>,
    agents: Here,
    brought: TaskTracker,
}

impl PeerConnection {
    async fn serve(self, socket: TcpStream, stranger: UnauthenticatedPermit) {
        let greeting = async {
            prepare(&socket)?;
            stranger.begins(&socket).await?;
            let acceptor = TlsAcceptor::from(Arc::clone(&self.nodes.server));
            acceptor.accept(socket).await
        };
        let greeting = async {
            tokio::select! {
                greeted = greeting => greeted,
                () = stranger.displaced() => Err(io::ErrorKind::ConnectionAborted.into()),
            }
        };
        let socket = match tokio::time::timeout(CONNECT_TIME, greeting).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => {
                tracing::debug!(%error, "rejected a connection to the node listener from a client that is not a node");
                return;
            }
            Err(_) => return,
        };
        drop(stranger);
        let (session, driver) = driver::connect(socket, Side::Server, limits());
        let accepting = async {
            while let Some(stream) = session.accept().await {
                self.nodes.meters.brought.up();
                let (agents, nodes) = (self.agents.clone(), Arc::clone(&self.nodes));
                self.brought.spawn(hand_over(stream, agents, nodes));
            }
        };
        tokio::join!(accepting, async { drop(driver.run().await) });
    }
}

/// Carries a stream of another node to an agent of this one.
async fn hand_over(mut stream: Stream, agents: Here, nodes: Arc<Nodes>) {
    match call::kind(&mut stream).await {
        Some(StreamType::PROXY) => {}
        Some(StreamType::ERRAND) => return peer_rpc::run(stream, &*agents.peer_service).await,
        Some(_) | None => return,
    }
    let Some(header) = header(&mut stream).await else {
        return;
    };
    let has_moved = || nodes.is_online(&header.id);
    match agents.bindings.dial_soon(&header, has_moved).await {
        // Who broke off knows it.
        Ok(agent) => drop(relay(stream, Bytes::new(), agent, None, None).await),
        Err(DialError::Away) => stream.reset(AWAY),
        // The node that brought it may know another agent.
        Err(DialError::Busy) => stream.reset(ErrorCode::STREAM_REFUSED),
    }
}
