//! Node heartbeats: detects crashed runs to end their sessions, and stores where other nodes reach the agents
//! of a run. A run is one start of a server process. Each run writes a heartbeat. When a run stops doing so,
//! the process that detects it ends the sessions that the run left behind.
//!
//! A run counts as failed when this process has seen no heartbeat for long enough on its monotonic clock. So
//! nodes need not agree on the time, and an unavailable database makes no run fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::{Fault, Timestamp, id};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::agents::state::Agents;
use crate::control::Control;
use crate::resource::model::Model;
use crate::resource::model::tunnel_session::TunnelSession;
use crate::stored::{self, Format};

pub(crate) const KIND: &str = "agent_run";

const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "runs are bookkeeping of the installation",
};

/// Interval of heartbeats and of checks for failed runs.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The interval of a node without a cluster.
const LOOK_EVERY_ALONE: Duration = Duration::from_secs(20);
/// Interval of checks whether agents have reconnected to another node.
const RETURN_LOOK_EVERY: Duration = Duration::from_millis(50);

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
pub(crate) fn address(document: &Document) -> Result<Option<String>, Fault> {
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
    pub(crate) fn over(&self, documents: Vec<Document>) -> Result<Vec<Document>, Fault> {
        let now = Instant::now();
        let mut failure_detector = self.failure_detector();
        failure_detector.begin(now);
        let mut over = Vec::new();
        let mut there = BTreeSet::new();
        for document in documents {
            let head = &document.head;
            if head.id == self.run {
                continue;
            }
            let run: NodeInstance = stored::read(&document)?;
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
        Ok(over)
    }
}

impl Control {
    /// Registers this run.
    pub(crate) async fn register_instance(&self, agents: &Agents) -> Result<(), Fault> {
        let now = self.clock.now();
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
        if !agents.settings.is_alone || self.store.get(KIND, &agents.run).await?.is_some() {
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
        let mut heartbeat = self.store.heartbeat(KIND, &agents.run);
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = cancel.cancelled() => break,
            }
            match heartbeat.beat(self.clock.now()).await {
                Ok(true) => {}
                // The shutdown of this process removes the run.
                Ok(false) if cancel.is_cancelled() => break,
                Ok(false) => self.begin_again(agents).await,
                Err(fault) => {
                    warn!(cause = %fault.chain(), "node heartbeat failed");
                }
            }
        }
        heartbeat.close().await;
    }

    /// Registers this run again after another node declared it dead and ended its sessions. Its agents
    /// reconnect immediately and resume their sessions.
    async fn begin_again(&self, agents: &Agents) {
        warn!("this node was declared dead; asking its agents to reconnect");
        if let Err(fault) = self.register_instance(agents).await {
            warn!(cause = %fault.chain(), "registering this node instance failed; retrying later");
            return;
        }
        let ended = std::mem::take(&mut *agents.lock());
        for id in ended.keys() {
            agents.bindings.hang_up(id, LEFT_BEHIND);
        }
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
        if let Some(mut document) = self.store.get(KIND, &agents.run).await? {
            let run: NodeInstance = stored::read(&document)?;
            document.body = stored::write(&NodeInstance {
                is_draining: true,
                ..run
            })?;
            self.write_run(Changes::replace(document, NOTHING)).await?;
        }
        let documents = self.store.all(KIND).await?;
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
                let session = self.store.get(TunnelSession::KIND, &id).await;
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
        match self.store.get(KIND, &agents.run).await? {
            Some(document) => {
                self.write_run(Changes::remove(document.head, NOTHING))
                    .await
            }
            None => Ok(()),
        }
    }

    async fn write_run(&self, changes: Changes) -> Result<(), Fault> {
        match self.store.commit(changes).await {
            Err(CommitError::Fault(fault)) => Err(fault),
            // Another run changed it concurrently; the next check reads it again.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Ends the sessions of runs that are over.
    pub(crate) async fn check_instances(&self, agents: &Agents) -> Result<(), Fault> {
        let over = agents.over(self.store.all(KIND).await?)?;
        self.end_sessions_of(agents, over).await
    }

    /// Ends the sessions of runs that were found to be over. Because that result may be stale, reads the runs
    /// again after the sessions and ends only the sessions of runs that are still over.
    pub(crate) async fn end_sessions_of(
        &self,
        agents: &Agents,
        over: Vec<Document>,
    ) -> Result<(), Fault> {
        // A run is removed only after its sessions, so there is nothing to end while no run is over.
        if over.is_empty() {
            return Ok(());
        }
        // Read the sessions first: the run of each was registered before it.
        let sessions = self.store.all(TunnelSession::KIND).await?;
        let mut there = BTreeSet::from([agents.run.clone()]);
        let mut still_over = Vec::new();
        for document in self.store.all(KIND).await? {
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
            let stopped_at = seen_at.unwrap_or_else(|| self.clock.now());
            let id = &document.head.id;
            self.remove_session(id, &session.run, LEFT_BEHIND, stopped_at)
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
            self.write_run(Changes::remove(document.head, NOTHING))
                .await?;
        }
        Ok(())
    }
}
