//! The state of one accepted connection: its facts, and the state that its socket, its protocol driver and its
//! exchanges share.
//!
//! All of them share it, and its drop is the connection's end: by then each of them is gone, so
//! `tcp_connection_closed` comes after every `http_request_complete` of the connection, whatever ended them.
//! It knows no endpoints and no upstreams; those are in [`Downstream`](crate::connection::downstream::Downstream).

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use culvert_base::Timestamp;
use culvert_base::net::plain_address;
use culvert_base::sync::lock;
use culvert_events::{Reason, TCP_CONNECTION_CLOSED};
use culvert_io::{Alarm, RelayClient};
use culvert_overload::CensusEntry;
use culvert_policy::conn::{ConnCounters, ConnInfo, source};
use culvert_policy::policy::conn_state::PolicyConnState;
use culvert_policy::reply::ReplyContext;
use futures_util::task::AtomicWaker;
use http::header::HeaderValue;
use http::response;
use tokio::time::Instant;

use crate::connection::http1_state::Http1State;
use crate::connection::replay_state::ReplayState;
use crate::edge::edge_state::{EdgeState, Phase};
use crate::recording::{ClosedConnection, ConnEnd, ReachedUpstream, Unflushed};
use crate::settings::rules::Rules;

/// The state of an accepted connection.
#[derive(Debug)]
pub(crate) struct ConnState {
    pub(crate) edge: Arc<EdgeState>,
    /// The rules at the time it was accepted.
    pub(crate) rules: Arc<Rules>,
    pub(crate) info: ConnInfo,
    pub(crate) counters: ConnCounters,
    pub(crate) http1: Http1State,
    /// The results of its policies' connection phases.
    pub(crate) policy: PolicyConnState,
    /// The id of the endpoint that serves a connection without requests.
    served_by: OnceLock<Arc<str>>,
    attribution: OnceLock<Attribution>,
    /// Why the edge ended or refused it, if it did.
    end: OnceLock<ConnEnd>,
    /// The upstream of a connection without HTTP, if its event has that.
    reached: OnceLock<Box<ReachedUpstream>>,
    /// Nanoseconds from accept to the socket's close; 0 while open.
    closed_after: AtomicU64,
    /// Interim responses that are not sent yet.
    interim: Mutex<Vec<response::Parts>>,
    has_interim: AtomicBool,
    /// A timer for the next exchange.
    alarm: Mutex<Option<Alarm>>,
    /// Wakes the task that drives the connection, for example when the edge drains.
    pub(crate) driver: AtomicWaker,
    /// HTTP/2: the longest write timeout of its endpoints, in milliseconds.
    write_ms: AtomicU64,
    /// When its last request ended, in milliseconds since its start plus one; 0 while a request is open and
    /// before the first.
    idle_since: AtomicU64,
    /// Whether its socket closes with a reset.
    is_reset: AtomicBool,
    /// Whether it closes to free memory, if it is still idle.
    is_shed: AtomicBool,
    /// Whether an IP restriction closed it.
    is_blocked: AtomicBool,
    /// Whether a policy closes it.
    is_hung_up: AtomicBool,
    entry: Option<CensusEntry<Self>>,
    /// Set if it is a replay of the server and no connection of a client.
    pub(crate) replay: OnceLock<ReplayState>,
}

/// Memory that bytes of a connection take.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    conn: Arc<ConnState>,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let held = &self.conn.counters.held_bytes;
        held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The owner of a connection.
#[derive(Debug)]
struct Attribution {
    account: Arc<str>,
    endpoint: Arc<str>,
    server_name: String,
}

impl ConnState {
    /// The state of a connection that begins now. Without an `entry` it is not in the census.
    pub(crate) fn new(
        edge: Arc<EdgeState>,
        rules: Arc<Rules>,
        entry: Option<CensusEntry<Self>>,
        (client, server): (SocketAddr, SocketAddr),
        started_at: Timestamp,
    ) -> Arc<Self> {
        let is_trusted = rules.trusts(plain_address(client.ip()));
        let conn = Arc::new(Self {
            edge,
            rules,
            info: ConnInfo::new(client, server, is_trusted, started_at),
            counters: ConnCounters::default(),
            http1: Http1State::default(),
            policy: PolicyConnState::default(),
            served_by: OnceLock::new(),
            attribution: OnceLock::new(),
            end: OnceLock::new(),
            reached: OnceLock::new(),
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
            entry,
            replay: OnceLock::new(),
        });
        if let Some(entry) = &conn.entry {
            entry.show(&conn);
        }
        conn
    }

    /// Attributes the connection to an account and an endpoint at its address. The first call counts.
    pub(crate) fn attribute(&self, account: &Arc<str>, endpoint: &Arc<str>, server_name: &str) {
        if self.attribution.get().is_none() {
            // Two exchanges of an HTTP/2 connection may race; either is the first.
            drop(self.attribution.set(Attribution {
                account: Arc::clone(account),
                endpoint: Arc::clone(endpoint),
                server_name: server_name.to_owned(),
            }));
        }
    }

    /// Records the ID of the endpoint that serves the connection. The first call counts.
    pub(crate) fn served_by(&self, endpoint: &Arc<str>) {
        self.served_by.get_or_init(|| Arc::clone(endpoint));
    }

    /// Records why the edge refuses the connection. The first call counts.
    pub(crate) fn end(&self, end: ConnEnd) {
        self.end.get_or_init(|| end);
    }

    /// Records why the edge ends the connection, which has an event in any case. The first call counts.
    pub(crate) fn end_for(&self, reason: Reason) {
        self.end(ConnEnd {
            reason,
            sampled: 1,
            is_refused: false,
        });
    }

    /// Records the upstream that was reached. The first call counts.
    pub(crate) fn reached(&self, reached: impl FnOnce() -> ReachedUpstream) {
        if !self.edge.recorder.capture(&TCP_CONNECTION_CLOSED).is_none() {
            self.reached.get_or_init(|| Box::new(reached()));
        }
    }

    /// Records when the socket closed.
    pub(crate) fn closed(&self) {
        let nanos = u64::try_from(self.info.started().elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.closed_after.store(nanos.max(1), Ordering::Relaxed);
    }

    /// The response has left the process: its record is complete.
    pub(crate) fn flushed(&self) {
        if let Some(record) = self.http1.take_kept() {
            record.complete(&self.edge, self.http1.payload(), self.info.now());
        }
    }

    /// The connection ended before the response had left: its record says how much of it did.
    pub(crate) fn cut(&self) {
        if let Some(record) = self.http1.take_kept() {
            self.record_cut(record);
        }
    }

    /// Completes the record of a response of which only some bytes left.
    pub(crate) fn record_cut(&self, record: Unflushed) {
        let handed_out = self.counters.handed_out();
        record.cut(
            &self.edge,
            self.http1.payload(),
            handed_out,
            self.info.now(),
        );
    }

    /// Passes an interim response to the driver, which sends it.
    pub(crate) fn inform(&self, head: response::Parts) {
        lock(&self.interim).push(head);
        self.has_interim.store(true, Ordering::Release);
    }

    /// Takes the interim responses that wait.
    pub(crate) fn take_interim(&self) -> Vec<response::Parts> {
        // A load first: a swap costs more, and is rarely needed.
        if self.has_interim.load(Ordering::Acquire)
            && self.has_interim.swap(false, Ordering::AcqRel)
        {
            std::mem::take(&mut lock(&self.interim))
        } else {
            Vec::new()
        }
    }

    /// Takes the timer of the last exchange, or a new one.
    pub(crate) fn borrow_alarm(&self) -> Alarm {
        lock(&self.alarm).take().unwrap_or_default()
    }

    /// Keeps a timer for the next exchange.
    pub(crate) fn return_alarm(&self, alarm: Alarm) {
        *lock(&self.alarm) = Some(alarm);
    }

    /// Records that an IP restriction closed the connection.
    pub(crate) fn block(&self) {
        self.end_for(Reason::Restricted);
        self.is_blocked.store(true, Ordering::Relaxed);
    }

    /// The decision of IP policies and restrictions, for the connection's event.
    pub(crate) fn decision(&self) -> Option<&'static str> {
        if self.is_blocked.load(Ordering::Relaxed) {
            return Some("block");
        }
        self.policy.decision_for_connection()
    }

    /// Records the write timeout of an endpoint.
    pub(crate) fn allow_write(&self, limit: Duration) {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.write_ms.fetch_max(millis, Ordering::Relaxed);
    }

    /// The longest write timeout of its exchanges.
    pub(crate) fn write_max(&self) -> Duration {
        let noted = Duration::from_millis(self.write_ms.load(Ordering::Relaxed));
        self.rules.limits.write_stall.max(noted)
    }

    /// Whether its socket closes with a reset.
    pub(crate) fn is_reset(&self) -> bool {
        self.is_reset.load(Ordering::Relaxed)
    }

    /// No request is open any more.
    pub(crate) fn idles(&self, now: Instant) {
        if self.idle_since.load(Ordering::Relaxed) == 0 {
            let since = now.saturating_duration_since(self.info.started());
            let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            self.idle_since
                .store(millis.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// A request begins.
    pub(crate) fn works(&self) {
        if self.idle_since.swap(0, Ordering::Relaxed) != 0 {
            self.is_shed.store(false, Ordering::Relaxed);
        }
    }

    /// When it became idle, if it is.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let millis = self.idle_since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.info.started() + Duration::from_millis(millis))
    }

    /// Closes it, if it is still idle by then.
    pub(crate) fn shed(&self) {
        self.is_shed.store(true, Ordering::Relaxed);
        self.driver.wake();
    }

    /// Whether it closes if it is idle.
    pub(crate) fn is_shed(&self) -> bool {
        self.is_shed.load(Ordering::Relaxed)
    }

    /// Ends the connection with all its exchanges.
    pub(crate) fn hang_up(&self) {
        self.is_hung_up.store(true, Ordering::Release);
        self.driver.wake();
    }

    /// Whether it ends.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.is_hung_up.load(Ordering::Acquire)
    }

    /// Whether it ends immediately, alone or with the edge.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_hung_up() || self.edge.phase() == Phase::Cut
    }

    /// What the edge's responses depend on, for a request with this `accept` field to this host.
    pub(crate) fn reply_context<'x>(
        &'x self,
        accept: Option<&'x HeaderValue>,
        host: &'x str,
    ) -> ReplyContext<'x> {
        ReplyContext {
            info: &self.info,
            counters: &self.counters,
            pages: &self.rules.error_pages,
            accept,
            host,
            cause: None,
        }
    }
}

impl RelayClient for ConnState {
    type HeldMemory = HeldBytes;

    fn source(&self) -> IpAddr {
        source(plain_address(self.info.client.ip()))
    }

    fn hold(self: &Arc<Self>, bytes: usize) -> HeldBytes {
        let held = &self.counters.held_bytes;
        held.fetch_add(bytes, Ordering::Relaxed);
        HeldBytes {
            conn: Arc::clone(self),
            bytes,
        }
    }

    /// The socket closes with a reset, because sending the kernel's buffer would take as long again.
    fn too_slow(&self) {
        self.edge.meters.slow_readers.up();
        self.is_reset.store(true, Ordering::Relaxed);
    }
}

impl Drop for ConnState {
    fn drop(&mut self) {
        if let Some(Attribution {
            account,
            endpoint,
            server_name,
        }) = self.attribution.get()
            && self.replay.get().is_none()
            && self.end.get().is_none_or(|end| end.sampled > 0)
        {
            let ended_at = match *self.closed_after.get_mut() {
                0 => self.info.now(),
                nanos => self.info.started_at().plus(Duration::from_nanos(nanos)),
            };
            let closed = ClosedConnection {
                info: &self.info,
                bytes: self.counters.bytes(),
                policy: &self.policy,
                decision: self.decision(),
                ended_at,
                end: self.end.get(),
                reached: self.reached.get().map(|reached| &**reached),
            };
            let endpoint = self.served_by.get().unwrap_or(endpoint);
            closed.record(&self.edge, account, endpoint, server_name);
        }
        let (bytes_in, bytes_out) = self.counters.bytes();
        self.edge.meters.bytes_in.add(bytes_in);
        self.edge.meters.bytes_out.add(bytes_out);
        if let Some(entry) = self.entry.take() {
            drop(entry);
            self.edge.meters.connections.down();
        }
    }
}
