//! Starts and stops of server processes.
//!
//! A process that runs has a mark with its name. It removes the mark when it stops, so a start that finds one knows that
//! an earlier process did not stop in order.

use std::time::Duration;

use culvert_base::{Event, Fault, Timestamp};
use culvert_resources::stored::Format;
use culvert_store::{AuditEvent, Changes, Document};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ServerLog;
use super::mark::{Mark, MarkKind};
use super::members::{LeftBecause, NodeJoined, NodeLeft, is_member};
use super::names::{NODE_JOINED, NODE_LEFT, SERVER_STARTED, SERVER_STOPPED};

/// The marks of running processes, about their names.
pub(super) const RUNNING: MarkKind = MarkKind {
    kind: "running_server",
    prefix: "run",
};

/// Attempts of a commit that others overtake.
pub(super) const ATTEMPTS: usize = 6;
/// Time limit of the event of a stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(5);

/// What a process says of itself.
#[derive(Clone, Debug)]
pub struct RunFacts {
    /// The name of the node.
    pub node: String,
    /// The version of the program.
    pub version: String,
    /// `api`, `edge`, `agents`, `delivery`.
    pub roles: Vec<String>,
    /// The region; empty if none is configured.
    pub region: String,
    /// Whether other nodes may use the database.
    pub is_shared: bool,
    /// When the process started.
    pub started_at: Timestamp,
}

/// The mark of a running process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Running {
    pub(super) format: Format<1>,
    pub(super) version: String,
    pub(super) started_at: Timestamp,
    /// Whether the other nodes count it as one of them.
    pub(super) is_member: bool,
}

/// Why a process stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It was asked to, by a signal.
    Asked,
    /// One of its tasks ended unexpectedly.
    TaskFailed,
    /// The master key was rotated, and it has the earlier one.
    MasterKeyRotated,
    /// It was killed, it crashed, or it could not write the event of its stop. Noticed at the next start.
    Killed,
}

/// The object of the event of a start.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Started<'a> {
    /// Name of the node.
    node: &'a str,
    /// Version of the program.
    version: &'a str,
    /// Roles of the process: `api`, `edge`, `agents`, `delivery`.
    roles: &'a [String],
    /// Region; empty if none is configured.
    region: &'a str,
    /// `sqlite` or `postgres`.
    database: &'a str,
    /// Start of the process.
    #[schemars(with = "String", extend("format" = "date-time"))]
    started_at: Timestamp,
    /// The revision of the database that it found.
    revision: i64,
}

/// The object of the event of a stop.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Stopped<'a> {
    /// Name of the node.
    node: &'a str,
    /// Version of the program that stopped.
    version: &'a str,
    /// Why.
    reason: StopReason,
    /// The task that ended; null for another reason.
    task: Option<&'a str>,
    /// Start of the process that stopped.
    #[schemars(with = "String", extend("format" = "date-time"))]
    started_at: Timestamp,
}

impl ServerLog {
    /// Reports that this process started, that the one before it was killed, if it was, and that the database was
    /// restored. `copied_to` is the last position of the audit log that the event queue has.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn started(&self, facts: &RunFacts, copied_to: i64) -> Result<(), Fault> {
        for _ in 0..ATTEMPTS {
            let Some(account) = self.account().await? else {
                return Ok(());
            };
            let mut own = None;
            let mut changes = Changes::default();
            for mark in self.left_behind(facts).await? {
                let was_member = facts.is_shared && is_member(&mark);
                let killed = match &mark.state {
                    Some(state) => {
                        AuditEvent::Emit(self.event_of_killed(&account, mark.of(), state)?)
                    }
                    None => AuditEvent::Suppress {
                        reason: "nothing is known of the process",
                    },
                };
                if mark.of() != facts.node {
                    changes = changes.and(mark.removal(killed));
                } else {
                    if let AuditEvent::Emit(killed) = killed {
                        changes = changes.and(Changes::event(killed));
                    }
                    own = Some(mark.document);
                }
                if was_member {
                    let (node, why) = (&facts.node, LeftBecause::Killed);
                    let left = self.event_of_left(&account, node, why, None)?;
                    changes = changes.and(Changes::event(left));
                }
            }
            changes = changes.and(self.restored(&account, &facts.node, copied_to).await?);
            let started = self.event_of_start(&account, facts).await?;
            changes = changes.and(self.running(facts, own, AuditEvent::Emit(started))?);
            if facts.is_shared {
                let joined = self.event_of_joined(&account, facts)?;
                changes = changes.and(Changes::event(joined));
            }
            if self.commit_once("recording the start", changes).await? {
                return Ok(());
            }
        }
        Err(Fault::bare(
            "recording the start: other nodes were faster again and again",
        ))
    }

    /// The marks of processes that do not run any more: of this name, and in a database that has one process, of all.
    async fn left_behind(&self, facts: &RunFacts) -> Result<Vec<Mark<Running>>, Fault> {
        if facts.is_shared {
            let own = self.mark(RUNNING, &facts.node).await?;
            return Ok(own.into_iter().collect());
        }
        self.marks(RUNNING).await
    }

    /// The mark of this process.
    pub(super) fn running(
        &self,
        facts: &RunFacts,
        known: Option<Document>,
        event: AuditEvent,
    ) -> Result<Changes, Fault> {
        let state = Running {
            format: Format,
            version: facts.version.clone(),
            started_at: facts.started_at,
            is_member: facts.is_shared,
        };
        self.marking(RUNNING, &facts.node, known, &state, event)
    }

    /// Reports that this process stopped, unless the store does not respond. `task` ended unexpectedly.
    pub async fn stopped(&self, facts: &RunFacts, reason: StopReason, task: Option<&str>) {
        let reporting = self.report_stop(facts, reason, task);
        match tokio::time::timeout(STOPPED_WITHIN, reporting).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => {
                tracing::warn!(cause = %fault.chain(), "the stop is not in the audit log; the next start reports it");
            }
            Err(_) => {
                tracing::warn!(
                    "the stop is not in the audit log: no response; the next start reports it"
                );
            }
        }
    }

    async fn report_stop(
        &self,
        facts: &RunFacts,
        reason: StopReason,
        task: Option<&str>,
    ) -> Result<(), Fault> {
        for _ in 0..ATTEMPTS {
            let Some(account) = self.account().await? else {
                return Ok(());
            };
            let Some(mark) = self.mark::<Running>(RUNNING, &facts.node).await? else {
                // Its start is not in the log either.
                return Ok(());
            };
            let object = Stopped {
                node: &facts.node,
                version: &facts.version,
                reason,
                task,
                started_at: facts.started_at,
            };
            let stopped = self.event(&account, SERVER_STOPPED, None, &object)?;
            let is_member = is_member(&mark);
            let mut changes = mark.removal(AuditEvent::Emit(stopped));
            if facts.is_shared && is_member {
                let left = self.event_of_left(&account, &facts.node, LeftBecause::Stopped, None)?;
                changes = changes.and(Changes::event(left));
            }
            if self.commit_once("recording the stop", changes).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn event_of_start(&self, account: &str, facts: &RunFacts) -> Result<Event, Fault> {
        let object = Started {
            node: &facts.node,
            version: &facts.version,
            roles: &facts.roles,
            region: &facts.region,
            database: if facts.is_shared {
                "postgres"
            } else {
                "sqlite"
            },
            started_at: facts.started_at,
            revision: self.store.revision().await?.number,
        };
        self.event(account, SERVER_STARTED, None, &object)
    }

    fn event_of_killed(
        &self,
        account: &str,
        node: &str,
        running: &Running,
    ) -> Result<Event, Fault> {
        let object = Stopped {
            node,
            version: &running.version,
            reason: StopReason::Killed,
            task: None,
            started_at: running.started_at,
        };
        self.event(account, SERVER_STOPPED, None, &object)
    }

    pub(super) fn event_of_joined(&self, account: &str, facts: &RunFacts) -> Result<Event, Fault> {
        let object = NodeJoined {
            node: &facts.node,
            version: &facts.version,
        };
        self.event(account, NODE_JOINED, None, &object)
    }

    pub(super) fn event_of_left(
        &self,
        account: &str,
        node: &str,
        reason: LeftBecause,
        noticed_by: Option<&str>,
    ) -> Result<Event, Fault> {
        let object = NodeLeft {
            node,
            reason,
            noticed_by,
        };
        self.event(account, NODE_LEFT, None, &object)
    }
}
