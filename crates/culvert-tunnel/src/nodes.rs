//! Connections between nodes: forwards a connection to the node that its agent is connected to.
//!
//! ```text
//! client ─▶ edge of A ─▶ Nodes of A ──mutual TLS, multiplexed──▶ NodeIngress of B ─▶ Bindings of B ─▶ agent
//! ```
//!
//! A node keeps connections to every node with agents, so opening a stream never waits for a connection. A
//! stream begins as one to an agent, with the header that names the endpoint. The receiving node passes it to
//! an agent connected to it or refuses it; it never forwards it to a third node. Both sides authenticate with a
//! certificate of the installation's node CA; the handshake fails without one.
//!
//! The list of nodes and the location of endpoints come from the control plane.

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

pub use peer_rpc::{PeerCall, PeerService, RunState};

use crate::client::{header, relay};
use crate::driver::{self, SILENT, Session, Stream};
use crate::server::{
    Bindings, ConnectionLimits, DialError, Meter, UnauthenticatedPermit, accept, call, open_first,
    open_in_turn, source_of,
};
use crate::wire::{ProxyHeader, StreamType};

/// The DNS name in the certificate of every node.
pub const NAME: &str = "node.culvert.internal";

/// Number of connections to each other node. Each has its own task, and streams are spread over them.
const LEGS: usize = 2;
/// Timeout of the TCP connection and the TLS handshake.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Delay between attempts to connect to a node: doubles from the first value to the last.
const RETRY_AFTER: Duration = Duration::from_millis(100);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);
/// How long a new table waits for connections to new nodes.
const REACHED_WITHIN: Duration = Duration::from_secs(1);
/// How long open streams to a node may run on after it lost its last endpoint.
const FINISHED_WITHIN: Duration = Duration::from_secs(30);
/// How long requests wait for an agent whose node was lost.
const RETURNS_WITHIN: Duration = Duration::from_secs(2);
/// Limits for connections of other nodes; all of them may share one address.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 1_024,
    unauthenticated: 64,
    unauthenticated_per_source: 64,
};
/// The reset code for a stream from another node if no agent here serves the endpoint any more. The other
/// node may have a newer table by then.
pub const AWAY: ErrorCode = ErrorCode(0x100);
/// How long until a silent node counts as lost.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Limits for nodes, which are higher than those for agents.
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

/// The certificate of this node and the CA of the others.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Certificate and private key, for [`NAME`].
    pub key: Arc<CertifiedKey>,
    /// The CA that signs the certificates of nodes.
    pub authority: CertificateDer<'static>,
}

/// The location of agents that are connected to other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointLocations {
    /// `host:port` of the node, by the id of an endpoint.
    pub endpoints: BTreeMap<String, String>,
}

/// Counters of streams between nodes.
#[derive(Debug, Default)]
pub struct NodeMeters {
    /// Streams opened to agents of other nodes.
    pub carried: Meter,
    /// Streams among them that could not be opened.
    pub failed: Meter,
    /// Streams that other nodes opened to agents of this one.
    pub brought: Meter,
}

/// The certificate in use, which can be replaced.
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

/// The connections to other nodes.
pub struct Nodes {
    shown: Arc<Shown>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    peers: Mutex<BTreeMap<String, Arc<Peer>>>,
    /// Peers by endpoint id.
    table: RwLock<HashMap<String, Arc<Peer>>>,
    /// Changes when peers are added.
    changed: watch::Sender<u64>,
    /// Whether any peer was lost or added recently. Every request reads this.
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
    /// Number of endpoints of its agents.
    n_endpoints: AtomicUsize,
    legs: Mutex<[Option<Session>; LEGS]>,
    turn: AtomicUsize,
    is_reached: watch::Sender<bool>,
    /// When it became unreachable: when its last connection was lost, or when the peer was added.
    unreached_since: Mutex<Instant>,
    /// Cancelled when it is removed from the peers.
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

    /// Records a connection or its end. Returns whether the last connection was lost.
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

    /// The open connections, in round-robin order.
    fn sessions(&self) -> impl Iterator<Item = Session> + use<> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let legs = self.legs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut legs = legs.clone();
        legs.rotate_left(first % LEGS);
        legs.into_iter().flatten()
    }
}

impl Nodes {
    /// Creates an empty table.
    ///
    /// # Errors
    ///
    /// TLS rejects the identity.
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

    /// Uses another certificate from the next handshake on.
    pub fn show(&self, key: Arc<CertifiedKey>) {
        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// Number of open connections to other nodes.
    pub fn connections(&self) -> usize {
        let standing = |peer: &Arc<Peer>| {
            let legs = peer.legs.lock().unwrap_or_else(PoisonError::into_inner);
            legs.iter().flatten().count()
        };
        self.lock().values().map(standing).sum()
    }

    /// The counters.
    pub fn meters(&self) -> &NodeMeters {
        &self.meters
    }

    /// Replaces the table of endpoints. Waits a short time for connections to new nodes.
    pub async fn publish(&self, locations: EndpointLocations) {
        let wanted: BTreeSet<&String> = locations.endpoints.values().collect();
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
            let table = locations.endpoints.into_iter().filter_map(place);
            *self.table.write().unwrap_or_else(PoisonError::into_inner) = table.collect();
        }
        self.reach(fresh).await;
    }

    /// Updates the table for some endpoints: `host:port` of the node with the agent, or `None` if no other
    /// node has it.
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
            // Peers without endpoints are removed.
            for peer in left {
                if peer.n_endpoints.load(Ordering::Relaxed) == 0 {
                    peer.gone.cancel();
                    peers.remove(&peer.address);
                }
            }
        }
        self.reach(fresh).await;
    }

    /// The peer at an address, which is added if it is new.
    fn peer_at(
        &self,
        peers: &mut BTreeMap<String, Arc<Peer>>,
        address: &str,
        fresh: &mut Vec<Arc<Peer>>,
    ) -> Arc<Peer> {
        if let Some(peer) = peers.get(address) {
            return Arc::clone(peer);
        }
        // Requests that arrive before its first connection is established wait for it.
        self.has_lost.store(true, Ordering::Relaxed);
        let peer = Arc::new(Peer::new(address.to_owned()));
        fresh.push(Arc::clone(&peer));
        peers.insert(address.to_owned(), Arc::clone(&peer));
        peer
    }

    /// Waits a short time for the first connections to new peers.
    async fn reach(&self, fresh: Vec<Arc<Peer>>) {
        if fresh.is_empty() {
            return;
        }
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
        let reached = async {
            for peer in fresh {
                // Cannot fail: the sender lives as long as the peer, which is held here.
                drop(peer.is_reached.subscribe().wait_for(|is| *is).await);
            }
        };
        // Connecting goes on in the background if a peer is unreachable now.
        drop(tokio::time::timeout(REACHED_WITHIN, reached).await);
    }

    /// Opens a stream to an agent of another node. If that agent refuses it, the stream is reset.
    ///
    /// # Errors
    ///
    /// No other node has an agent for the endpoint, or that node is unreachable.
    pub fn dial(&self, header: &ProxyHeader) -> Result<Stream, DialError> {
        let peer = self.peer_of(&header.id).ok_or(DialError::Away)?;
        let source = source_of(header);
        let open = |session: &Session, first| session.open_behind(source, first);
        self.carried(open_first(peer.sessions(), || header.encode(), open))
    }

    /// As [`Nodes::dial`], but if the connections to the node are full, waits until one has capacity, for at
    /// most [`PATIENCE`](crate::server::PATIENCE).
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
        let (sessions, source) = (|| peer.sessions().collect(), source_of(header));
        self.carried(open_in_turn(sessions, || header.encode(), source).await)
    }

    fn carried(&self, opened: Result<Stream, DialError>) -> Result<Stream, DialError> {
        match &opened {
            Ok(_) => self.meters.carried.up(),
            Err(_) => self.meters.failed.up(),
        }
        opened
    }

    /// Whether another node has an agent for the endpoint and is reachable.
    pub fn is_online(&self, endpoint: &str) -> bool {
        self.peer_of(endpoint)
            .is_some_and(|peer| *peer.is_reached.borrow())
    }

    /// The address of the node that has an agent for the endpoint.
    pub fn node_of(&self, endpoint: &str) -> Option<String> {
        Some(self.peer_of(endpoint)?.address.clone())
    }

    /// Whether the node with the endpoint's agent was lost or added less than two seconds ago, so that it or
    /// the agent may reconnect soon.
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

    /// Maintains the connections to other nodes until `stop`.
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
                    // The process restarts when this task ends, and then reconnects.
                    tracing::error!(%error, "maintaining the connections to other nodes failed");
                    return;
                },
                () = stop.cancelled() => break,
            }
        }
        while legs.join_next().await.is_some() {}
    }

    /// Maintains one connection to a node.
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
                            // Under the lock, so that a concurrent update that has read the old peers does
                            // not undo this.
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

/// Disables Nagle's algorithm, and detects connections to silent nodes.
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

/// The agents of this node, and the calls about them.
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

/// The listener for connections of other nodes.
#[derive(Debug)]
pub struct NodeIngress {
    listener: TcpListener,
    nodes: Arc<Nodes>,
    agents: Here,
}

impl NodeIngress {
    /// Passes streams of other nodes to the agents of `bindings`, and calls about agents to `peer_service`.
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

    /// Serves other nodes until `stop`; then open streams may finish within `drain`.
    pub async fn run(self, stop: CancellationToken, drain: Duration) {
        let brought = TaskTracker::new();
        let serving = accept(
            &self.listener,
            CONNECTION_LIMITS,
            None,
            &stop,
            |socket, _, permit| {
                let connection = PeerConnection {
                    nodes: Arc::clone(&self.nodes),
                    agents: self.agents.clone(),
                    brought: brought.clone(),
                };
                connection.serve(socket, permit)
            },
        );
        let _connections = serving.await;
        drop(self.listener);
        brought.close();
        drop(tokio::time::timeout(drain, brought.wait()).await);
    }
}

/// One connection from another node.
struct PeerConnection {
    nodes: Arc<Nodes>,
    agents: Here,
    brought: TaskTracker,
}

impl PeerConnection {
    async fn serve(self, socket: TcpStream, permit: UnauthenticatedPermit) {
        let greeting = async {
            prepare(&socket)?;
            permit.begins(&socket).await?;
            let acceptor = TlsAcceptor::from(Arc::clone(&self.nodes.server));
            acceptor.accept(socket).await
        };
        let greeting = async {
            tokio::select! {
                greeted = greeting => greeted,
                () = permit.displaced() => Err(io::ErrorKind::ConnectionAborted.into()),
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
        drop(permit);
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

/// Connects a stream from another node with an agent of this node.
async fn hand_over(mut stream: Stream, agents: Here, nodes: Arc<Nodes>) {
    match call::kind(&mut stream).await {
        Some(StreamType::PROXY) => {}
        Some(StreamType::PEER_RPC) => return peer_rpc::run(stream, &*agents.peer_service).await,
        Some(_) | None => return,
    }
    let Some(header) = header(&mut stream).await else {
        return;
    };
    let has_moved = || nodes.is_online(&header.id);
    match agents.bindings.dial_soon(&header, has_moved).await {
        // Errors are dropped: the side that aborted knows.
        Ok(agent) => drop(relay(stream, Bytes::new(), agent, None, None).await),
        Err(DialError::Away) => stream.reset(AWAY),
        // The node that opened the stream may know another agent.
        Err(DialError::Busy) => stream.reset(ErrorCode::STREAM_REFUSED),
        Err(DialError::Silent) => stream.reset(SILENT),
    }
}
