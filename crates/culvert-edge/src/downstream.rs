//! One accepted connection: what is known about it from accept to close.
//!
//! It is shared by the socket, the protocol driver and every exchange on the connection, and its
//! drop is the connection's end: by then each of those is gone, so `tcp_connection_closed` comes
//! after every `http_request_complete` of the connection, whatever ended them.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use culvert_base::Timestamp;
use culvert_base::net::plain_address;
use culvert_base::sync::lock;
use culvert_http::http1::Violation;
use culvert_tls::handshake::Agreed;
use culvert_tls::server_certificate::Presented;
use culvert_tls::terms::Terms;
use futures_util::task::AtomicWaker;
use http::{HeaderValue, response};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::edge::{Phase, Shared};
use crate::policy::Policy;
use crate::recording::{self, Unflushed};
use crate::settings::Rules;
use crate::snapshot::Group;
use crate::upstream::{AgentRefused, DialError, Pool, UpWire, Upstream};

/// Endpoints of agents for which one connection keeps streams.
const POOLS_TO_AGENTS_MAX: usize = 8;

/// Whose turn it is on an HTTP/1 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The client's: no request is open.
    Client = 0,
    /// Ours: a request is open.
    Edge = 1,
    /// Ours: the answer is complete but may not have left the process.
    Flush = 2,
    /// Nobody's: the connection is being taken down.
    Over = 3,
}

/// Why a request's body broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The client went away.
    Left,
    /// What came is refused.
    Refused(Violation),
}

/// A connection accepted by the edge.
#[derive(Debug)]
pub(crate) struct Downstream {
    pub(crate) edge: Arc<Shared>,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// The rules of the moment it was accepted.
    pub(crate) rules: Arc<Rules>,
    /// Whether the peer may speak for others in forwarding headers.
    pub(crate) is_trusted: bool,
    started_at: Timestamp,
    started: Instant,
    /// The name that the client asked for in its ClientHello (RFC 6066 section 3), in lower case. Set before any
    /// rule of a policy runs; empty without TLS or without a name.
    sni: OnceLock<String>,
    /// What the TLS handshake settled; empty in clear.
    pub(crate) tls: OnceLock<Tls>,
    attribution: OnceLock<Attribution>,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// Nanoseconds from accept to the socket's close; 0 while open.
    closed_after: AtomicU64,
    /// HTTP/1 only: whose turn it is, payload bytes of the open request, bytes handed to the socket
    /// or to TLS.
    turn: AtomicU8,
    payload: AtomicU64,
    handed_out: AtomicU64,
    /// HTTP/1 only: the record of an answered exchange, until its last byte left.
    unflushed: Mutex<Option<Unflushed>>,
    /// Answers before the answer, until they are sent.
    interim: Mutex<Vec<response::Parts>>,
    has_interim: AtomicBool,
    /// A timer for the next exchange.
    alarm: Mutex<Option<Alarm>>,
    /// Exchanges open now, and begun so far.
    pub(crate) open: AtomicUsize,
    pub(crate) begun: AtomicU64,
    /// HTTP/2 only: header bytes of the requests that are open.
    pub(crate) header_bytes: AtomicUsize,
    /// Bytes of bodies that its exchanges hold whole.
    pub(crate) held_bytes: AtomicUsize,
    /// Wakes the task that drives the connection when the edge drains.
    pub(crate) driver: AtomicWaker,
    client_value: OnceLock<HeaderValue>,
    addresses: OnceLock<(String, String)>,
    /// HTTP/1 only: why the body of the open request broke off.
    broken: OnceLock<Broken>,
    /// HTTP/2: the longest that an endpoint's answer waits for the client to take it, in milliseconds.
    write_ms: AtomicU64,
    /// Since when no request is open and none begins, in milliseconds from its start and one; 0 while that
    /// is not so, and before the first.
    idle_since: AtomicU64,
    /// Whether its socket closes without a farewell.
    is_reset: AtomicBool,
    /// Whether it is to close for want of room, if it is still idle.
    is_shed: AtomicBool,
    /// HTTP/2: streams that were reset because the client did not read them.
    pub(crate) slow_streams: AtomicUsize,
    /// Whether an IP restriction closed it.
    is_blocked: AtomicBool,
    /// Whether a policy closes it.
    is_hung_up: AtomicBool,
    /// Streams to agents that rest between this client's requests: an agent is told whose a stream is,
    /// so no other client's request may travel on it.
    to_agents: Mutex<Vec<Arc<Pool>>>,
    /// What the policy of its endpoint made of it.
    entry: Mutex<Option<Box<Entry>>>,
    slot: AtomicUsize,
    is_listed: AtomicBool,
}

/// What the TLS handshake settled.
#[derive(Debug)]
pub(crate) struct Tls {
    /// Endpoints of that name, if there are any.
    pub(crate) group: Option<Arc<Group>>,
    /// What was presented: one per certificate, and per terms of a policy.
    pub(crate) presented: Arc<Presented>,
    /// The terms of a policy that the handshake ran under.
    pub(crate) terms: Option<Arc<Terms>>,
    /// Known when the handshake is complete.
    pub(crate) agreed: OnceLock<Agreed>,
}

/// Policies whose connection phase is remembered: those of an endpoint and of the internal ones that
/// it forwards to.
const VISITS_MAX: usize = 4;

/// What the connection phase of a policy made of a connection.
#[derive(Debug, Default)]
struct Entry {
    /// Of HTTP endpoints, the last ones.
    visits: Vec<Visit>,
    is_http: bool,
    /// What IP policies decided.
    decision: Option<&'static str>,
    logs: Vec<Map<String, Value>>,
}

/// A policy whose connection phase ran.
#[derive(Debug)]
struct Visit {
    policy: Arc<Policy>,
    /// Whether it let the connection in.
    is_in: bool,
    decision: Option<&'static str>,
}

/// Whose connection it is.
#[derive(Debug)]
struct Attribution {
    account: Arc<str>,
    server_name: String,
}

impl Downstream {
    pub(crate) fn new(edge: Arc<Shared>, client: SocketAddr, server: SocketAddr) -> Self {
        let client = SocketAddr::new(plain_address(client.ip()), client.port());
        let server = SocketAddr::new(plain_address(server.ip()), server.port());
        let rules = edge.rules.load_full();
        let is_trusted = rules.trusts(client.ip());
        Self {
            started_at: edge.clock.now(),
            started: Instant::now(),
            edge,
            client,
            server,
            rules,
            is_trusted,
            sni: OnceLock::new(),
            tls: OnceLock::new(),
            attribution: OnceLock::new(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            closed_after: AtomicU64::new(0),
            turn: AtomicU8::new(Turn::Client as u8),
            payload: AtomicU64::new(0),
            handed_out: AtomicU64::new(0),
            unflushed: Mutex::new(None),
            interim: Mutex::new(Vec::new()),
            has_interim: AtomicBool::new(false),
            alarm: Mutex::new(None),
            open: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            header_bytes: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            driver: AtomicWaker::new(),
            client_value: OnceLock::new(),
            addresses: OnceLock::new(),
            broken: OnceLock::new(),
            write_ms: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            is_reset: AtomicBool::new(false),
            is_shed: AtomicBool::new(false),
            slow_streams: AtomicUsize::new(0),
            is_blocked: AtomicBool::new(false),
            is_hung_up: AtomicBool::new(false),
            to_agents: Mutex::new(Vec::new()),
            entry: Mutex::new(None),
            slot: AtomicUsize::new(0),
            is_listed: AtomicBool::new(false),
        }
    }

    /// A new connection to an upstream, within `limit`. With `in_turn`, waits where agents have no room.
    pub(crate) async fn dial(
        &self,
        to: &Upstream,
        limit: Duration,
        in_turn: bool,
    ) -> Result<UpWire, DialError> {
        let meters = &self.edge.meters;
        meters.upstream_connects.up();
        let dialled = match (to.agents_endpoint(), &self.edge.agents) {
            (None, _) => {
                let dialer = self.edge.dialer.load_full();
                dialer.dial_within(limit, to).await
            }
            (Some(_), None) => Err(DialError::Agent(AgentRefused::Away)),
            (Some(_), Some(agents)) => {
                let ends = (self.client, self.server);
                let is_tls_ended = self.tls.get().is_some();
                UpWire::to_agent(&**agents, to, ends, is_tls_ended, in_turn).await
            }
        };
        if dialled.is_err() {
            meters.upstream_connects_failed.up();
        }
        dialled
    }

    /// The pool for this client's requests: its own where an agent is told of each client, else the one
    /// that is shared.
    pub(crate) fn pool(&self, shared: &Arc<Pool>) -> Arc<Pool> {
        if !shared.upstream().keeps_clients_apart() {
            return Arc::clone(shared);
        }
        let mut pools = lock(&self.to_agents);
        if let Some(own) = pools.iter().find(|own| own.upstream() == shared.upstream()) {
            return Arc::clone(own);
        }
        if pools.len() >= POOLS_TO_AGENTS_MAX {
            pools.remove(0);
        }
        let own = Arc::new(Pool::new(shared.upstream().clone()));
        pools.push(Arc::clone(&own));
        own
    }

    /// Notes the place in the edge's census that its end gives back.
    pub(crate) fn listed(&self, slot: usize) {
        self.slot.store(slot, Ordering::Relaxed);
        self.is_listed.store(true, Ordering::Relaxed);
    }

    /// When the connection was accepted.
    pub(crate) fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// The present moment, never before the accept.
    pub(crate) fn now(&self) -> Timestamp {
        self.started_at.plus(self.started.elapsed())
    }

    /// Says whose connection it is. The first word counts.
    pub(crate) fn attribute(&self, account: &Arc<str>, server_name: &str) {
        if self.attribution.get().is_none() {
            // Two exchanges of an HTTP/2 connection may race; either is the first.
            drop(self.attribution.set(Attribution {
                account: Arc::clone(account),
                server_name: server_name.to_owned(),
            }));
        }
    }

    pub(crate) fn set_bytes_in(&self, bytes: u64) {
        self.bytes_in.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_bytes_out(&self, bytes: u64) {
        self.bytes_out.store(bytes, Ordering::Relaxed);
    }

    /// Bytes read from and written to the client's socket.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (
            self.bytes_in.load(Ordering::Relaxed),
            self.bytes_out.load(Ordering::Relaxed),
        )
    }

    /// Notes that the socket is gone.
    pub(crate) fn closed(&self) {
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.closed_after.store(nanos.max(1), Ordering::Relaxed);
    }

    pub(crate) fn turn(&self) -> Turn {
        match self.turn.load(Ordering::Acquire) {
            0 => Turn::Client,
            1 => Turn::Edge,
            2 => Turn::Flush,
            _ => Turn::Over,
        }
    }

    pub(crate) fn set_turn(&self, turn: Turn) {
        self.turn.store(turn as u8, Ordering::Release);
    }

    pub(crate) fn payload(&self) -> u64 {
        self.payload.load(Ordering::Relaxed)
    }

    pub(crate) fn set_payload(&self, bytes: u64) {
        self.payload.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn handed_out(&self) -> u64 {
        self.handed_out.load(Ordering::Relaxed)
    }

    pub(crate) fn set_handed_out(&self, bytes: u64) {
        self.handed_out.store(bytes, Ordering::Relaxed);
    }

    /// Keeps the record of an answered exchange until [`Self::flushed`].
    pub(crate) fn keep(&self, record: Unflushed) {
        *lock(&self.unflushed) = Some(record);
    }

    /// The answer has left the process: its record is complete.
    pub(crate) fn flushed(&self) {
        let record = lock(&self.unflushed).take();
        if let Some(record) = record {
            record.complete(self);
        }
    }

    /// The connection ended before the answer had left: its record says how far it came.
    pub(crate) fn cut(&self) {
        let record = lock(&self.unflushed).take();
        if let Some(record) = record {
            record.cut(self);
        }
    }

    /// Has an answer before the answer sent, by the driver of the exchange that brings it.
    pub(crate) fn inform(&self, head: response::Parts) {
        lock(&self.interim).push(head);
        self.has_interim.store(true, Ordering::Release);
    }

    /// What is to be sent before the answer.
    pub(crate) fn take_interim(&self) -> Vec<response::Parts> {
        // Read first: to swap is dearer, and hardly ever needed.
        if self.has_interim.load(Ordering::Acquire)
            && self.has_interim.swap(false, Ordering::AcqRel)
        {
            std::mem::take(&mut lock(&self.interim))
        } else {
            Vec::new()
        }
    }

    /// A timer, armed or not.
    pub(crate) fn borrow_alarm(&self) -> Alarm {
        lock(&self.alarm).take().unwrap_or_default()
    }

    /// Gives a timer to the next exchange.
    pub(crate) fn return_alarm(&self, alarm: Alarm) {
        *lock(&self.alarm) = Some(alarm);
    }

    /// The client's address as a header value.
    pub(crate) fn client_value(&self) -> HeaderValue {
        self.client_value
            .get_or_init(|| {
                HeaderValue::try_from(self.client.ip().to_string())
                    .expect("an address is made of header characters")
            })
            .clone()
    }

    /// The client's and the server's address as events show them.
    pub(crate) fn addresses(&self) -> (&str, &str) {
        let (client, server) = self
            .addresses
            .get_or_init(|| (self.client.ip().to_string(), self.server.ip().to_string()));
        (client, server)
    }

    /// Notes why the open request's body broke off. The first word counts.
    pub(crate) fn broke(&self, why: Broken) {
        self.broken.get_or_init(|| why);
    }

    /// Why the open request's body broke off, if it did.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.broken.get().copied()
    }

    /// Notes that the connection is closed because its address is not admitted.
    pub(crate) fn block(&self) {
        self.is_blocked.store(true, Ordering::Relaxed);
    }

    /// Whether a policy's connection phase let the connection in, if that is one of those that ran
    /// last: what IP policies decided then counts again. If not it is about to run, and what the one
    /// before decided is forgotten.
    pub(crate) fn entered(&self, policy: &Arc<Policy>) -> Option<bool> {
        let mut entry = lock(&self.entry);
        let entry = entry.get_or_insert_default();
        let mut known = entry.visits.iter();
        let known = known.find(|visit| Arc::ptr_eq(&visit.policy, policy));
        entry.decision = known.and_then(|visit| visit.decision);
        known.map(|visit| visit.is_in)
    }

    /// Notes whether a policy's connection phase let the connection in.
    pub(crate) fn enter(&self, policy: &Arc<Policy>, is_in: bool) {
        let mut entry = lock(&self.entry);
        let entry = entry.get_or_insert_default();
        if entry.visits.len() == VISITS_MAX {
            entry.visits.remove(0);
        }
        entry.visits.push(Visit {
            policy: Arc::clone(policy),
            is_in,
            decision: entry.decision,
        });
    }

    /// Notes whether requests tell what policies decide about the connection.
    pub(crate) fn speaks_http(&self, is_http: bool) {
        lock(&self.entry).get_or_insert_default().is_http = is_http;
    }

    /// Notes what IP policies decided about the connection.
    pub(crate) fn decide(&self, decision: &'static str) {
        lock(&self.entry).get_or_insert_default().decision = Some(decision);
    }

    /// Keeps an entry of the connection's log.
    pub(crate) fn log(&self, entry: Map<String, Value>) {
        recording::push_log(&mut lock(&self.entry).get_or_insert_default().logs, entry);
    }

    /// What IP policies decided, for each request on the connection.
    pub(crate) fn decision_for_requests(&self) -> Option<&'static str> {
        lock(&self.entry).as_ref()?.decision
    }

    /// The same for the connection's own event, which leaves it to those of requests where there are
    /// some.
    pub(crate) fn decision(&self) -> Option<&'static str> {
        if self.is_blocked.load(Ordering::Relaxed) {
            return Some("block");
        }
        let entry = lock(&self.entry);
        let entry = entry.as_ref().filter(|entry| !entry.is_http);
        entry.and_then(|entry| entry.decision)
    }

    /// Shows the connection's log, if it has one.
    pub(crate) fn with_logs(&self, show: impl FnOnce(&[Map<String, Value>])) {
        if let Some(entry) = &*lock(&self.entry)
            && !entry.logs.is_empty()
        {
            show(&entry.logs);
        }
    }

    /// Notes an endpoint's limit for a client that takes nothing.
    pub(crate) fn allow_write(&self, limit: Duration) {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.write_ms.fetch_max(millis, Ordering::Relaxed);
    }

    /// The longest that its client may take nothing, whatever the exchange.
    pub(crate) fn write_max(&self) -> Duration {
        let noted = Duration::from_millis(self.write_ms.load(Ordering::Relaxed));
        self.rules.limits.write_stall.max(noted)
    }

    /// The client is too slow to take what waits for it. What the system still has for it is not sent: that
    /// would go on for as long.
    pub(crate) fn too_slow(&self) {
        self.edge.meters.slow_readers.up();
        self.is_reset.store(true, Ordering::Relaxed);
    }

    /// Whether its socket closes without a farewell.
    pub(crate) fn is_reset(&self) -> bool {
        self.is_reset.load(Ordering::Relaxed)
    }

    /// Nothing is asked of it any more.
    pub(crate) fn idles(&self) {
        if self.idle_since.load(Ordering::Relaxed) == 0 {
            let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.idle_since
                .store(millis.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Something is asked of it.
    pub(crate) fn works(&self) {
        if self.idle_since.swap(0, Ordering::Relaxed) != 0 {
            self.is_shed.store(false, Ordering::Relaxed);
        }
    }

    /// Since when it is idle, if it is.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let millis = self.idle_since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.started + Duration::from_millis(millis))
    }

    /// Has it close, if it is still idle when it hears of it.
    pub(crate) fn shed(&self) {
        self.is_shed.store(true, Ordering::Relaxed);
        self.driver.wake();
    }

    /// Whether it is to close if it is idle.
    pub(crate) fn is_shed(&self) -> bool {
        self.is_shed.load(Ordering::Relaxed)
    }

    /// Ends the connection with all that is open on it.
    pub(crate) fn hang_up(&self) {
        self.is_hung_up.store(true, Ordering::Release);
        self.driver.wake();
    }

    /// Whether it is to end.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.is_hung_up.load(Ordering::Acquire)
    }

    /// Whether it is to end at once: for itself, or with the edge.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_hung_up() || self.edge.phase() == Phase::Cut
    }

    /// Notes the name that the ClientHello asks for. The first one counts.
    pub(crate) fn set_sni(&self, name: String) -> &str {
        self.sni.get_or_init(|| name)
    }

    /// The name that the ClientHello asks for; empty without TLS or without a name.
    pub(crate) fn sni(&self) -> &str {
        self.sni.get().map_or("", String::as_str)
    }

    /// The address block connections are counted by: the address itself, or the /64 of IPv6.
    pub(crate) fn source(&self) -> IpAddr {
        crate::edge::source(self.client.ip())
    }
}

impl Drop for Downstream {
    fn drop(&mut self) {
        if let Some(Attribution {
            account,
            server_name,
        }) = self.attribution.get()
        {
            let ended_at = match *self.closed_after.get_mut() {
                0 => self.now(),
                nanos => self.started_at.plus(Duration::from_nanos(nanos)),
            };
            recording::connection_closed(self, account, server_name, ended_at);
        }
        let (bytes_in, bytes_out) = self.bytes();
        self.edge.meters.bytes_in.add(bytes_in);
        self.edge.meters.bytes_out.add(bytes_out);
        if *self.is_listed.get_mut() {
            self.edge.forget(*self.slot.get_mut(), self.source());
        }
    }
}
