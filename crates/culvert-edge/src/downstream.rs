//! One accepted connection: what is known about it from accept to close.
//!
//! It is shared by the socket, the protocol driver and every exchange on the connection, and its
//! drop is the connection's end: by then each of those is gone, so `tcp_connection_closed` comes
//! after every `http_request_complete` of the connection, whatever ended them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::net::plain_address;
use culvert_base::sync::lock;
use culvert_policy::conn::{ConnCounters, ConnInfo};
use culvert_policy::host::ConnContext;
use culvert_policy::policy::conn_state::PolicyConnState;
use culvert_policy::problem::Problem;
use futures_util::task::AtomicWaker;
use http::header::HeaderValue;
use http::{Response, response};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::edge_context::{EdgeContext, Phase};
use crate::http1_state::Http1State;
use crate::recording;
use crate::rules::Rules;
use crate::snapshot::group::Group;
use crate::upstream::agent::AgentRefused;
use crate::upstream::pool::Pool;
use crate::upstream::url::{DialError, UpWire, Upstream};

/// Endpoints of agents for which one connection keeps streams.
const POOLS_TO_AGENTS_MAX: usize = 8;

/// A connection accepted by the edge.
#[derive(Debug)]
pub(crate) struct Downstream {
    /// Itself, for what outlives a borrow.
    pub(crate) this: Weak<Self>,
    pub(crate) edge: Arc<EdgeContext>,
    /// The rules of the moment it was accepted.
    pub(crate) rules: Arc<Rules>,
    pub(crate) info: ConnInfo,
    pub(crate) counters: ConnCounters,
    pub(crate) http1: Http1State,
    /// What policies made of it.
    pub(crate) policy: PolicyConnState,
    /// Endpoints of the name that its TLS was terminated for, if there are any.
    pub(crate) tls_group: OnceLock<Arc<Group>>,
    attribution: OnceLock<Attribution>,
    /// Nanoseconds from accept to the socket's close; 0 while open.
    closed_after: AtomicU64,
    /// Answers before the answer, until they are sent.
    interim: Mutex<Vec<response::Parts>>,
    has_interim: AtomicBool,
    /// A timer for the next exchange.
    alarm: Mutex<Option<Alarm>>,
    /// Wakes the task that drives the connection when the edge drains.
    pub(crate) driver: AtomicWaker,
    /// HTTP/2: the longest that an endpoint's answer waits for the client to take it, in milliseconds.
    write_ms: AtomicU64,
    /// Since when no request is open and none begins, in milliseconds from its start and one; 0 while that
    /// is not so, and before the first.
    idle_since: AtomicU64,
    /// Whether its socket closes without a farewell.
    is_reset: AtomicBool,
    /// Whether it is to close for want of room, if it is still idle.
    is_shed: AtomicBool,
    /// Whether an IP restriction closed it.
    is_blocked: AtomicBool,
    /// Whether a policy closes it.
    is_hung_up: AtomicBool,
    /// Streams to agents that rest between this client's requests: an agent is told whose a stream is,
    /// so no other client's request may travel on it.
    to_agents: Mutex<Vec<Arc<Pool>>>,
    slot: AtomicUsize,
    is_listed: AtomicBool,
}

/// Whose connection it is.
#[derive(Debug)]
struct Attribution {
    account: Arc<str>,
    server_name: String,
}

impl Downstream {
    pub(crate) fn new(edge: Arc<EdgeContext>, client: SocketAddr, server: SocketAddr) -> Arc<Self> {
        let rules = edge.rules.load_full();
        let is_trusted = rules.trusts(plain_address(client.ip()));
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            info: ConnInfo::new(client, server, is_trusted, edge.clock.now()),
            edge,
            rules,
            counters: ConnCounters::default(),
            http1: Http1State::default(),
            policy: PolicyConnState::default(),
            tls_group: OnceLock::new(),
            attribution: OnceLock::new(),
            closed_after: AtomicU64::new(0),
            interim: Mutex::new(Vec::new()),
            has_interim: AtomicBool::new(false),
            alarm: Mutex::new(None),
            driver: AtomicWaker::new(),
            write_ms: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            is_reset: AtomicBool::new(false),
            is_shed: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            is_hung_up: AtomicBool::new(false),
            to_agents: Mutex::new(Vec::new()),
            slot: AtomicUsize::new(0),
            is_listed: AtomicBool::new(false),
        })
    }

    /// The connection as policies see it.
    pub(crate) fn context(&self) -> ConnContext<'_> {
        ConnContext {
            info: &self.info,
            counters: &self.counters,
            state: &self.policy,
            services: &self.edge.policy,
            host: self,
            refuses_undecided: self.rules.refuses_undecided,
            allows_public_calls: self.rules.allows_public_calls,
        }
    }

    /// An answer of the edge to a request on it.
    pub(crate) fn answer(&self, problem: Problem, accept: Option<&HeaderValue>) -> Response<Bytes> {
        problem.answer(accept, &self.info, &self.counters)
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
                let dialer = self.edge.network.dialer.load_full();
                dialer.dial_within(limit, to).await
            }
            (Some(_), None) => Err(DialError::Agent(AgentRefused::Away)),
            (Some(_), Some(agents)) => {
                let ends = (self.info.client, self.info.server);
                let is_tls_ended = self.info.tls.get().is_some();
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

    /// Notes that the socket is gone.
    pub(crate) fn closed(&self) {
        let nanos = u64::try_from(self.info.started().elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.closed_after.store(nanos.max(1), Ordering::Relaxed);
    }

    /// The answer has left the process: its record is complete.
    pub(crate) fn flushed(&self) {
        let record = self.http1.take_kept();
        if let Some(record) = record {
            record.complete(self);
        }
    }

    /// The connection ended before the answer had left: its record says how far it came.
    pub(crate) fn cut(&self) {
        let record = self.http1.take_kept();
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

    /// Notes that the connection is closed because its address is not admitted.
    pub(crate) fn block(&self) {
        self.is_blocked.store(true, Ordering::Relaxed);
    }

    /// What IP policies and restrictions decided, for the connection's own event.
    pub(crate) fn decision(&self) -> Option<&'static str> {
        if self.is_blocked.load(Ordering::Relaxed) {
            return Some("block");
        }
        self.policy.decision_for_connection()
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
            let millis =
                u64::try_from(self.info.started().elapsed().as_millis()).unwrap_or(u64::MAX);
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
        Some(self.info.started() + Duration::from_millis(millis))
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
}

impl Drop for Downstream {
    fn drop(&mut self) {
        if let Some(Attribution {
            account,
            server_name,
        }) = self.attribution.get()
        {
            let ended_at = match *self.closed_after.get_mut() {
                0 => self.info.now(),
                nanos => self.info.started_at().plus(Duration::from_nanos(nanos)),
            };
            recording::connection_closed(self, account, server_name, ended_at);
        }
        let (bytes_in, bytes_out) = self.counters.bytes();
        self.edge.meters.bytes_in.add(bytes_in);
        self.edge.meters.bytes_out.add(bytes_out);
        if *self.is_listed.get_mut() {
            self.edge.forget(*self.slot.get_mut(), self.info.source());
        }
    }
}
