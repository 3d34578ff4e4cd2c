//! Node heartbeats: detects crashed runs to end their sessions, and stores where other nodes reach the agents
//! of a run. A run is one start of a server process. Each run writes a heartbeat. When a run stops doing so,
//! the process that detects it ends the sessions that the run left behind.
//!
//! A run that cannot reach the database asks the other nodes to write its heartbeat (module `run_lease`).
//!
//! A run counts as failed when this process has seen no heartbeat for long enough on its monotonic clock. So
//! nodes need not agree on the time, and an unavailable database makes no run fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::sync::lock;
use culvert_base::{Fault, Timestamp, id};
use culvert_resources::resource::model::Model;
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head};
use culvert_tunnel::nodes::RunState;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::AgentControl;
use crate::run_lease::Change;
use crate::session::model::TunnelSession;
use crate::state::Agents;

/// Kind of the documents of runs.
pub const KIND: &str = "agent_run";

const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "runs are bookkeeping of the installation",
};

/// Interval of heartbeats and of checks for failed runs.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The interval of a node without a cluster.
const LOOK_EVERY_ALONE: Duration = Duration::from_secs(20);
/// Interval of checks whether agents have reconnected to another node.
const RETURN_LOOK_EVERY: Duration = Duration::from_millis(50);

/// Interval of checks whether this run may still serve.
const LEASE_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time limit of a heartbeat for another node, which waits for four seconds.
const BEAT_FOR_WITHIN: Duration = Duration::from_secs(3);

/// The error of the sessions of a run that stops serving.
const CUT_OFF: &str = "transport error: the server lost the database and the other servers";
/// The error of a session that a crashed run left behind.
const LEFT_BEHIND: &str = "transport error: the server stopped unexpectedly";

#[derive(Debug, Deserialize, Serialize)]
struct NodeInstance {
    format: Format<1>,
    node: String,
    /// `host:port` at which other nodes reach its agents; empty if they cannot.
    #[serde(default)]
    address: String,
    /// Whether it is draining and accepts no more agents.
    #[serde(default)]
    is_draining: bool,
}

/// The address at which other nodes reach the agents of a run.
pub fn address(document: &Document) -> Result<Option<String>, Fault> {
    let run: NodeInstance = stored::read(document)?;
    Ok(Some(run.address).filter(|address| !address.is_empty()))
}

impl Agents {
    /// The interval of heartbeats and checks.
    pub(crate) fn look_every(&self) -> Duration {
        if self.settings.is_alone {
            LOOK_EVERY_ALONE
        } else {
            LOOK_EVERY
        }
    }

    /// Filters the runs that are over.
    pub fn over(&self, documents: Vec<Document>) -> Result<Vec<Document>, Fault> {
        let now = Instant::now();
        let mut failure_detector = self.failure_detector();
        failure_detector.begin(now);
        let mut addresses = BTreeSet::new();
        let mut over = Vec::new();
        let mut there = BTreeSet::new();
        for document in documents {
            let head = &document.head;
            if head.id == self.run {
                continue;
            }
            let run: NodeInstance = stored::read(&document)?;
            // Without an address it does not respond, but may have the database.
            addresses.insert(run.address.clone());
            // A node has one run at a time, so an older run of this node has ended.
            let is_before =
                run.node == self.settings.node && id::split(&head.id) < id::split(&self.run);
            let has_failed = failure_detector.has_failed(&head.id, head.updated_at, now);
            if self.settings.is_alone || is_before || has_failed {
                over.push(document);
            } else {
                there.insert(head.id.clone());
            }
        }
        failure_detector.forget_all_but(&there);
        *lock(&self.others) = addresses;
        Ok(over)
    }
}

fn report(change: Option<Change>) {
    match change {
        Some(Change::Helped) => {
            warn!("this node does not reach the database; another node writes its heartbeat");
        }
        Some(Change::Back) => info!("this node writes its heartbeat again"),
        None => {}
    }
}

/// Ends the connections of all agents, whose sessions another node ended. They reconnect immediately.
fn end_all(agents: &Agents) {
    let ended = std::mem::take(&mut *agents.lock());
    for id in ended.keys() {
        agents.bindings.hang_up(id, LEFT_BEHIND);
    }
}

impl AgentControl {
    /// Registers this run.
    pub(crate) async fn register_instance(&self, agents: &Agents) -> Result<(), Fault> {
        let now = self.kernel.clock.now();
        let document = Document {
            head: Head {
                id: agents.run.clone(),
                kind: KIND.to_owned(),
                account: String::new(),
                revision: 0,
                created_at: now,
                updated_at: now,
            },
            body: stored::write(&NodeInstance {
                format: Format,
                node: agents.settings.node.clone(),
                address: agents.settings.address.clone(),
                is_draining: false,
            })?,
            keys: Vec::new(),
            refs: Vec::new(),
            topics: Vec::new(),
        };
        self.write_run(Changes::insert(document, NOTHING)).await
    }

    /// Registers this run if that failed at the start because the disk was full.
    pub(crate) async fn register_late(&self, agents: &Agents) -> Result<(), Fault> {
        // The nodes of a cluster use another database, which is never read-only.
        if !agents.settings.is_alone || self.kernel.store.get(KIND, &agents.run).await?.is_some() {
            return Ok(());
        }
        self.register_instance(agents).await?;
        self.check_instances(agents).await?;
        info!("accepting agents: the database is writable again");
        Ok(())
    }

    /// Writes the heartbeat of this run until cancelled, one statement at a time. Runs in its own task, so
    /// that other work of this process cannot delay it.
    pub async fn keep_heartbeat(self: Arc<Self>, cancel: CancellationToken) {
        let agents = match &self.agents {
            // A single node needs no heartbeat.
            Some(agents) if !agents.settings.is_alone => agents,
            _ => return cancel.cancelled().await,
        };
        let stop = cancel.clone();
        tokio::join!(
            self.write_heartbeat(agents, cancel),
            self.watch_lease(agents, stop)
        );
    }

    async fn write_heartbeat(&self, agents: &Agents, cancel: CancellationToken) {
        let mut heartbeat = self.kernel.store.heartbeat(KIND, &agents.run);
        // Whether another node ended the sessions of this run, and its agents do not know yet.
        let mut was_removed = false;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = cancel.cancelled() => break,
            }
            let asked_at = Instant::now();
            match heartbeat.beat(self.kernel.clock.now()).await {
                Ok(true) => {
                    let change = lock(&agents.lease).beat(asked_at);
                    report(change);
                    if std::mem::take(&mut was_removed) {
                        end_all(agents);
                    }
                }
                // The shutdown of this process removes the run.
                Ok(false) if cancel.is_cancelled() => break,
                Ok(false) => {
                    was_removed = true;
                    // If its answer is lost, the next heartbeat shows whether it happened.
                    if self.begin_again(agents).await {
                        was_removed = false;
                        end_all(agents);
                    }
                }
                Err(fault) => {
                    warn!(cause = %fault.chain(), "node heartbeat failed");
                    lock(&agents.lease).missed();
                    tokio::select! {
                        () = self.ask_others(agents) => {}
                        () = cancel.cancelled() => break,
                    }
                }
            }
        }
        heartbeat.close().await;
    }

    /// Asks the other nodes to write the heartbeat of this run.
    async fn ask_others(&self, agents: &Agents) {
        let Some(nodes) = &self.nodes else { return };
        let asked_at = Instant::now();
        let mut asking = JoinSet::new();
        for address in lock(&agents.others).clone() {
            let (nodes, run) = (Arc::clone(nodes), agents.run.clone());
            asking.spawn(async move { nodes.ask_heartbeat(&address, &run).await });
        }
        let states = asking.join_all().await;
        let (is_removed, change) = lock(&agents.lease).asked(asked_at, &states);
        if is_removed {
            warn!("another node ended the sessions of this node");
        }
        report(change);
    }

    /// Writes the heartbeat of a run of another node, which cannot reach the database. `None` if it is not known whether
    /// that run is still registered.
    pub(crate) async fn beat_for(&self, run: &str) -> Option<RunState> {
        let agents = self.agents.as_ref()?;
        let mut heartbeat = self.kernel.store.heartbeat(KIND, run);
        let beaten =
            tokio::time::timeout(BEAT_FOR_WITHIN, heartbeat.beat(self.kernel.clock.now())).await;
        heartbeat.close().await;
        match beaten {
            Ok(Ok(true)) => Some(RunState::Registered),
            Ok(Ok(false)) => Some(RunState::Removed),
            // Its names may be taken already.
            Ok(Err(_)) | Err(_) if agents.has_removed(run) => Some(RunState::Removed),
            // This node has the database, so it may find that run dead.
            Ok(Err(_)) | Err(_) if lock(&agents.lease).has_database() => None,
            Ok(Err(_)) | Err(_) => {
                // The answer lets that run serve on, so its silence counts from now.
                agents.failure_detector().forget(run);
                Some(RunState::NoDatabase)
            }
        }
    }

    /// Ends the connections of all agents when this run may not serve any more, so that they connect to another node.
    async fn watch_lease(&self, agents: &Agents, cancel: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LEASE_LOOK_EVERY) => {}
                () = cancel.cancelled() => return,
            }
            let (ends, is_over) = {
                let mut lease = lock(&agents.lease);
                (lease.ends(Instant::now()), lease.is_over())
            };
            if ends {
                error!(
                    "this node reaches neither the database nor a node that does; ending the connections of its agents, because their names may be taken"
                );
            }
            if !is_over {
                continue;
            }
            // At each look: an agent may have been admitted just before.
            let sessions: Vec<String> = agents.lock().keys().cloned().collect();
            for id in sessions {
                agents.bindings.hang_up(&id, CUT_OFF);
            }
        }
    }

    /// The number of other nodes that may write the heartbeat of this run; 0 if it accepts no agents.
    pub fn helpers(&self) -> usize {
        let agents = self.agents.as_ref();
        agents.map_or(0, |agents| lock(&agents.others).len())
    }

    /// Whether this run serves no agents because it may not be registered any more.
    pub fn is_cut_off(&self) -> bool {
        let agents = self.agents.as_ref();
        agents.is_some_and(|agents| lock(&agents.lease).is_over())
    }

    /// Registers this run again after another node declared it dead and ended its sessions. Returns whether that is known
    /// to have happened.
    async fn begin_again(&self, agents: &Agents) -> bool {
        warn!("this node was declared dead; asking its agents to reconnect");
        if let Err(fault) = self.register_instance(agents).await {
            warn!(cause = %fault.chain(), "registering this node instance failed; retrying later");
            return false;
        }
        report(lock(&agents.lease).beat(Instant::now()));
        true
    }

    /// Records that this run accepts no more agents. Returns whether another node does.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn begin_drain(&self) -> Result<bool, Fault> {
        let agents = match &self.agents {
            Some(agents) if !agents.settings.is_alone => agents,
            _ => return Ok(false),
        };
        if let Some(mut document) = self.kernel.store.get(KIND, &agents.run).await? {
            let run: NodeInstance = stored::read(&document)?;
            document.body = stored::write(&NodeInstance {
                is_draining: true,
                ..run
            })?;
            self.write_run(Changes::replace(document, NOTHING)).await?;
        }
        let documents = self.kernel.store.all(KIND).await?;
        let over = agents.over(documents.clone())?;
        for document in documents {
            let is_over = over.iter().any(|run| run.head.id == document.head.id);
            if document.head.id == agents.run || is_over {
                continue;
            }
            let run: NodeInstance = stored::read(&document)?;
            if !run.is_draining {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The sessions without a connection that are still kept for their agents.
    pub fn agents_away(&self) -> Vec<String> {
        self.agents
            .as_ref()
            .map(|agents| agents.away())
            .unwrap_or_default()
    }

    /// Waits until the agents whose connections ended here have connected to another node or need not be
    /// waited for. Returns how many are missing after `patience`. Sessions in `lost` are not waited for: their
    /// agents left before this node stopped and may never return.
    pub async fn wait_for_agents_elsewhere(&self, lost: &[String], patience: Duration) -> usize {
        let Some(agents) = &self.agents else { return 0 };
        let deadline = Instant::now() + patience;
        loop {
            // Sleep first: the end of a connection that was just closed may not be recorded yet.
            tokio::time::sleep(RETURN_LOOK_EVERY).await;
            let mut away = 0;
            for id in agents.away().into_iter().filter(|id| !lost.contains(id)) {
                let session = self.kernel.store.get(TunnelSession::KIND, &id).await;
                let is_here = session.ok().flatten().is_some_and(|document| {
                    stored::read::<TunnelSession>(&document)
                        .is_ok_and(|session| session.run == agents.run)
                });
                away += usize::from(is_here);
            }
            if away == 0 || Instant::now() >= deadline {
                return away;
            }
        }
    }

    /// Removes this run.
    pub(crate) async fn unregister_instance(&self, agents: &Agents) -> Result<(), Fault> {
        match self.kernel.store.get(KIND, &agents.run).await? {
            Some(document) => {
                self.write_run(Changes::remove(document.head, NOTHING))
                    .await
            }
            None => Ok(()),
        }
    }

    async fn write_run(&self, changes: Changes) -> Result<(), Fault> {
        match self.kernel.store.commit(changes).await {
            Err(CommitError::Fault(fault)) => Err(fault),
            // Another run changed it concurrently; the next check reads it again.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Ends the sessions of runs that are over.
    pub async fn check_instances(&self, agents: &Agents) -> Result<(), Fault> {
        let runs = self.kernel.store.all(KIND).await?;
        // A run that was removed may have registered again.
        lock(&agents.removed).retain(|id| runs.iter().all(|run| run.head.id != *id));
        let over = agents.over(runs)?;
        self.end_sessions_of(agents, over).await
    }

    /// Ends the sessions of runs that were found to be over. Because that result may be stale, reads the runs
    /// again after the sessions and ends only the sessions of runs that are still over.
    pub async fn end_sessions_of(&self, agents: &Agents, over: Vec<Document>) -> Result<(), Fault> {
        // A run is removed only after its sessions, so there is nothing to end while no run is over.
        if over.is_empty() {
            return Ok(());
        }
        // Read the sessions first: the run of each was registered before it.
        let sessions = self.kernel.store.all(TunnelSession::KIND).await?;
        let mut there = BTreeSet::from([agents.run.clone()]);
        let mut still_over = Vec::new();
        for document in self.kernel.store.all(KIND).await? {
            let head = &document.head;
            let is_over = over
                .iter()
                .any(|found| found.head.id == head.id && found.head.updated_at == head.updated_at);
            if is_over {
                still_over.push(document);
            } else {
                there.insert(head.id.clone());
            }
        }
        // A run existed at least until its last heartbeat.
        let last_seen: BTreeMap<&str, Timestamp> = over
            .iter()
            .map(|run| (run.head.id.as_str(), run.head.updated_at))
            .collect();
        let mut n_ended = 0;
        for document in sessions {
            let session: TunnelSession = stored::read(&document)?;
            if there.contains(&session.run) {
                continue;
            }
            let seen_at = last_seen.get(session.run.as_str()).copied();
            let stopped_at = seen_at.unwrap_or_else(|| self.kernel.clock.now());
            let id = &document.head.id;
            self.remove_session(id, &session.run, (LEFT_BEHIND, true), stopped_at)
                .await?;
            n_ended += 1;
        }
        if n_ended > 0 {
            warn!(
                sessions = n_ended,
                "closing agent sessions of a server that stopped unexpectedly"
            );
        }
        for document in still_over {
            info!(run = document.head.id, "node instance ended");
            // Before the removal, whose answer may be lost.
            agents.note_removed(document.head.id.clone());
            self.write_run(Changes::remove(document.head, NOTHING))
                .await?;
        }
        Ok(())
    }
}
