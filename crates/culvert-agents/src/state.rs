//! The agents of this process: their sessions, limits and certificates.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use culvert_base::sync::lock;
use culvert_base::{Ksuid, Timestamp};
use culvert_resources::settings::AgentLimits;
use culvert_statistics::{Field, Frame, Key, Point, SubjectKind};
use culvert_tunnel::driver::SessionTraffic;
use culvert_tunnel::server::{Bindings, EndReason};
use rustls::sign::CertifiedKey;
use tokio::sync::Notify;

use super::failure_detector;
use super::run_lease::RunLease;

/// Limit of the runs that are remembered as dead.
const REMOVED_MAX: usize = 1000;

/// Settings of the agents of this process.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Name of this node.
    pub node: String,
    /// Region shown in the API and in events (`region`).
    pub region: String,
    /// Names and addresses that agents connect to. The server announces the first to agents that name none.
    pub names: Vec<String>,
    /// Whether no other process uses the same store.
    pub is_alone: bool,
    /// `host:port` at which other nodes reach these agents; empty if they cannot.
    pub address: String,
    /// How long the names and TCP addresses of a session that ended are reserved for their owner.
    pub names_kept: Duration,
    /// Limits of sessions and endpoints.
    pub limits: AgentLimits,
}

/// The agents of this process.
#[derive(Debug)]
pub struct Agents {
    /// The connections of agents.
    pub bindings: Arc<Bindings>,
    /// Limits and names.
    pub settings: AgentSettings,
    /// ID of this run of the server.
    pub run: String,
    /// The sessions of this run by ID, including those that may still resume.
    pub sessions: Mutex<BTreeMap<String, LiveSession>>,
    /// Endpoints that were, or may have been, committed for agents that got no response: endpoint ID and
    /// session ID.
    pub(crate) unanswered: Mutex<BTreeMap<String, String>>,
    /// Detects other runs that have failed.
    pub(crate) failure_detector: Mutex<failure_detector::FailureDetector>,
    /// How long this run may serve without the database.
    pub lease: Mutex<RunLease>,
    /// Runs that this one found dead, the latest ones.
    pub(crate) removed: Mutex<VecDeque<String>>,
    /// The addresses of the other runs, as last read.
    pub others: Mutex<BTreeSet<String>>,
    /// Wakes the reconcile loop.
    pub(crate) woken: Notify,
    /// What the agent listener presents.
    pub certificate: Arc<AgentCertificates>,
    /// Streams and bytes of all sessions that were read for the statistics.
    pub(crate) counted: Mutex<SessionTraffic>,
}

/// A session of this run.
#[derive(Debug)]
pub struct LiveSession {
    /// ID of the account of the session.
    pub account: String,
    /// ID of the owner that the agent acts for.
    pub owner_id: String,
    pub(crate) credential_id: String,
    /// When its proof expires. Its connection ends after the time that was left at its beginning anyway; this is for a
    /// clock that was set forward since.
    pub expires_at: Option<Timestamp>,
    /// IDs of the endpoints that the session serves.
    pub endpoints: BTreeSet<String>,
    /// Endpoints that are being bound.
    pub binding: usize,
    /// While it has no connection: when it ends, and why.
    pub(crate) leaving: Option<(Instant, EndReason)>,
    /// When its connection ended, while it has none.
    pub(crate) left_at: Option<Timestamp>,
    /// When to close its connection, if it has not ended by then, and why.
    pub(crate) cut: Option<(Instant, &'static str)>,
    /// The reason for its end, if it ends by then, because its agent was asked to stop.
    pub asked: Option<(Instant, &'static str)>,
    /// Whether it counts against the limits. False for a session that has ended but is still in the store.
    pub(crate) has_place: bool,
}

impl Agents {
    /// No session yet, in a run with this ID.
    pub fn new(bindings: Arc<Bindings>, settings: AgentSettings, run: Ksuid) -> Self {
        let lease = RunLease::new(settings.names_kept, Instant::now());
        Self {
            bindings,
            settings,
            lease: Mutex::new(lease),
            removed: Mutex::default(),
            others: Mutex::default(),
            run: failure_detector::id_of(run),
            sessions: Mutex::default(),
            unanswered: Mutex::default(),
            failure_detector: Mutex::default(),
            woken: Notify::new(),
            certificate: Arc::default(),
            counted: Mutex::default(),
        }
    }

    /// Whether this run found another one dead, which did not register again.
    pub fn has_removed(&self, run: &str) -> bool {
        lock(&self.removed).iter().any(|id| id == run)
    }

    /// Notes that this run found another one dead, and ended its sessions.
    pub fn note_removed(&self, run: String) {
        let mut removed = lock(&self.removed);
        if removed.len() >= REMOVED_MAX {
            removed.pop_front();
        }
        removed.push_back(run);
    }

    /// The sessions of this run by ID, locked.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<String, LiveSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn unanswered(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.unanswered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failure_detector(&self) -> MutexGuard<'_, failure_detector::FailureDetector> {
        self.failure_detector
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The certificates that agents are presented with.
#[derive(Debug, Default)]
pub struct AgentCertificates {
    /// Issued by the installation's authority, for any name.
    pub own: ArcSwapOption<CertifiedKey>,
    /// Issued for ingresses, by name.
    pub issued: ArcSwap<HashMap<String, Arc<CertifiedKey>>>,
}

impl Agents {
    /// Adds the streams and bytes of each session since the last call to `frame`. A session that has ended has no
    /// account here, and its last seconds are not counted.
    pub(super) fn read_statistics(&self, frame: &mut Frame) {
        let traffic = self.bindings.take_traffic();
        let mut counted = lock(&self.counted);
        let sessions = self.lock();
        for (id, traffic) in traffic {
            counted.add(traffic);
            let Some(live) = sessions.get(&id) else {
                continue;
            };
            let mut point = Point::default();
            point.add(Field::Connections, traffic.opened);
            // Directions are those of endpoints: bytes from clients are sent to the agent.
            point.add(Field::BytesIn, traffic.sent);
            point.add(Field::BytesOut, traffic.received);
            frame.add(Key::new(SubjectKind::Agent, &live.account, &id), &point);
        }
    }

    /// IDs of the sessions without a connection that are still kept for their agents.
    pub(crate) fn away(&self) -> Vec<String> {
        let now = Instant::now();
        let is_kept = |live: &LiveSession| live.leaving.as_ref().is_some_and(|(at, _)| *at > now);
        let sessions = self.lock();
        let away = sessions.iter().filter(|(_, live)| is_kept(live));
        away.map(|(id, _)| id.clone()).collect()
    }

    /// Marks a session that has no connection. It ends at `at` unless it is resumed.
    pub fn leave(&self, id: &str, at: Instant, reason: EndReason) {
        if let Some(live) = self.lock().get_mut(id) {
            live.leaving = Some((at, reason));
        }
        self.woken.notify_one();
    }

    /// Why a session ends now, if its agent was recently asked to end it.
    pub fn asked(&self, id: &str) -> Option<&'static str> {
        let asked = self.lock().get(id)?.asked;
        asked.and_then(|(until, why)| (Instant::now() < until).then_some(why))
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        let sessions = self.lock();
        let deadlines = sessions.values().flat_map(|live| {
            let leaving = live.leaving.as_ref().map(|(at, _)| *at);
            leaving.into_iter().chain(live.cut.map(|(at, _)| at))
        });
        let far = Instant::now() + self.look_every();
        deadlines.min().unwrap_or(far)
    }
}
