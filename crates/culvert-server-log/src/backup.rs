//! Backups, and databases that have an earlier state than something else knows of.
//!
//! A backup of a SQLite database has a mark, so the first start on it knows that it was restored. A database whose file
//! was replaced otherwise is recognised by the event queue, which has copied events that are not in the audit log any
//! more, and by running nodes, which know of commits that are missing.

use std::path::Path;
use std::time::Duration;

use culvert_base::{BoxFuture, Event, Fault, Timestamp};
use culvert_events::Principal;
use culvert_resources::stored::Format;
use culvert_store::{AuditEvent, Changes, LostCommits, Queue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ServerLog;
use super::command::AdminCommand;
use super::mark::MarkKind;
use super::names::{BACKUP_MADE, RESTORED};
use super::run::ATTEMPTS;

/// Name of the stored value that a backup has and its source has not: when it was made.
const IS_BACKUP: &str = "is_backup_of";
/// Name of the stored value with the last position of the event queue that was reported as missing.
const MISSING_TO: &str = "restored_before";
/// The marks of losses that running nodes noticed.
const LOSS: MarkKind = MarkKind {
    kind: "reported_loss",
    prefix: "loss",
};
/// Nodes that notice a loss within this time may have noticed the same one.
const ONE_LOSS: Duration = Duration::from_secs(600);
/// How often a backup is made until no record of the traffic log was made meanwhile. The server makes one each hour.
const COPIES_MAX: u32 = 3;
/// Limit of the nodes in a mark.
const NODES_MAX: usize = 256;

/// The object of the event of a backup.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BackupMade<'a> {
    /// The directory with the copy.
    folder: &'a str,
    /// Whether the master key was copied too, to another file.
    has_key: bool,
    /// The revision of the database before this event.
    revision: i64,
    /// The head of the audit log before this event: `<position>:<hash>`.
    head: String,
}

/// What knows of a later state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum KnownBy {
    /// The database is a copy that `culvert admin backup` made.
    Backup,
    /// The event queue has copied later events of the audit log.
    EventQueue,
    /// A running node knows of later commits.
    Node,
    /// The last head of the audit log that a node knows to be signed, in `audit.head`, has other or later events.
    SignedHead,
    /// A witness of the audit log signed a head with other or later events.
    Witness,
}

/// The object of the event of a database that was restored.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Restored<'a> {
    /// The node that noticed it.
    pub(super) node: &'a str,
    /// What knows of a later state.
    pub(super) known_by: KnownBy,
    /// The revision of the database.
    pub(super) found_revision: i64,
    /// The latest revision that is known; null if only a position or a time is.
    pub(super) known_revision: Option<i64>,
    /// The last position of the audit log.
    pub(super) found_position: i64,
    /// The last position that is known; null if it is not.
    pub(super) known_position: Option<i64>,
    /// When the backup was made; null if the database is not one.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub(super) made_at: Option<Timestamp>,
    /// The origin of the signed heads of the audit log that end here; null if they are not known to. `culvert admin
    /// acknowledge-restore` continues them with another one.
    pub(super) ended_origin: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct ReportedLoss {
    format: Format<1>,
    known: i64,
    found: i64,
    /// The nodes that have noticed it.
    #[serde(default)]
    nodes: Vec<String>,
}

impl ReportedLoss {
    /// A loss that this node noticed soon after a report, if there was one. Also returns whether that report covers it: it
    /// is of the same loss, and no more commits are known.
    fn after(reported: Option<&Self>, node: &str, loss: &LostCommits) -> (Self, bool) {
        let of_node = |nodes: Vec<String>| {
            let own = std::iter::once(node.to_owned());
            nodes.into_iter().take(NODES_MAX - 1).chain(own).collect()
        };
        let new = Self {
            format: Format,
            known: loss.known.number,
            found: loss.found.number,
            nodes: of_node(Vec::new()),
        };
        // A node notices each loss once.
        let is_same = |reported: &&Self| !reported.nodes.iter().any(|noticed| noticed == node);
        match reported.filter(is_same) {
            None => (new, false),
            Some(reported) => {
                let is_covered = loss.known.number <= reported.known;
                let mut both = Self {
                    nodes: of_node(reported.nodes.clone()),
                    ..new
                };
                if is_covered {
                    (both.known, both.found) = (reported.known, reported.found);
                }
                (both, is_covered)
            }
        }
    }
}

impl ServerLog {
    /// Copies queue and state to these files. The state then knows that it is a backup.
    ///
    /// The queue is copied first: an event in both copies is delivered twice, but an event in neither would be lost. A record
    /// of the traffic log between both would be of pieces that the copy has not, so both are copied again then. Returns
    /// `false` if that happened each time.
    ///
    /// # Errors
    /// If a database is not in a file, or the copy fails.
    pub async fn back_up(
        &self,
        queue: &Queue,
        (events, state): (&Path, &Path),
    ) -> Result<bool, Fault> {
        let doing = "removing an earlier copy";
        self.between_traffic_records(|n_before| {
            Box::pin(async move {
                // Only what an earlier turn wrote.
                for file in [events, state].iter().filter(|_| n_before > 0) {
                    std::fs::remove_file(file).map_err(|error| Fault::new(doing, error))?;
                }
                queue.backup(events).await?;
                self.back_up_state(state).await
            })
        })
        .await
    }

    /// Copies the state to this file.
    ///
    /// # Errors
    /// If the database is not in a file, or the copy fails.
    pub async fn back_up_state(&self, to: &Path) -> Result<(), Fault> {
        let made_at = self.clock.now().unix_millis().to_string();
        self.store.backup(to, &[(IS_BACKUP, &made_at)]).await
    }

    /// Runs `copy`, with the number of copies before, and again if a record of the traffic log was made meanwhile. Returns
    /// `false` if one was made each time.
    ///
    /// # Errors
    /// If `copy` fails, or the store.
    pub async fn between_traffic_records<'a>(
        &self,
        mut copy: impl FnMut(u32) -> BoxFuture<'a, Result<(), Fault>>,
    ) -> Result<bool, Fault> {
        for n_before in 0..COPIES_MAX {
            let before = self.traffic_record().await?;
            copy(n_before).await?;
            if self.traffic_record().await? == before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The event of a backup in this directory. It is written before the copy, which has it too.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn backup_made(
        &self,
        by: &AdminCommand,
        folder: &str,
        has_key: bool,
    ) -> Result<(), Fault> {
        let Some(account) = self.account().await? else {
            return Ok(());
        };
        let object = BackupMade {
            folder,
            has_key,
            revision: self.store.revision().await?.number,
            head: self.store.audit_log().extent().await?.head.to_string(),
        };
        let principal: Principal = by.principal();
        let event = self.event(&account, BACKUP_MADE, Some(&principal), &object)?;
        let written = self.store.commit(Changes::event(event)).await;
        written.map_err(|error| Fault::new("recording the backup", error))?;
        Ok(())
    }

    /// The event of a database that was restored while no server ran, if it was.
    pub(super) async fn restored(
        &self,
        account: &str,
        node: &str,
        copied_to: i64,
    ) -> Result<Changes, Fault> {
        let made_at = self.store.meta_get(IS_BACKUP).await?.unwrap_or_default();
        let missing_to = self.store.meta_get(MISSING_TO).await?.unwrap_or_default();
        let found_position = self.store.audit_log().extent().await?.last;
        let is_behind = copied_to > found_position && missing_to != copied_to.to_string();
        if made_at.is_empty() && !is_behind {
            return Ok(Changes::default());
        }
        let object = Restored {
            node,
            known_by: match made_at.is_empty() {
                true => KnownBy::EventQueue,
                false => KnownBy::Backup,
            },
            found_revision: self.store.revision().await?.number,
            known_revision: None,
            found_position,
            known_position: is_behind.then_some(copied_to),
            made_at: made_at
                .parse()
                .ok()
                .map(|millis: i64| Timestamp::from_unix_nanos(millis.saturating_mul(1_000_000))),
            ended_origin: None,
        };
        let event = self.event(account, RESTORED, None, &object)?;
        let told = Changes::meta(IS_BACKUP, String::new());
        let told = told.and(Changes::meta(MISSING_TO, copied_to.to_string()));
        Ok(told.and(Changes::event(event)))
    }

    /// The event of a loss that this running node noticed, together with `more`. Of several nodes one reports it, unless a
    /// later one knows of more lost commits.
    pub async fn report_loss(
        &self,
        account: &str,
        node: &str,
        loss: &LostCommits,
        more: Event,
    ) -> Result<(), Fault> {
        let own = Changes::event(more);
        let doing = "recording lost commits";
        for _ in 0..ATTEMPTS {
            let mark = self.mark::<ReportedLoss>(LOSS, "database").await?;
            let now = self.clock.now();
            // The clock may have been set back since the report, for longer than that.
            let is_recent = |at: Timestamp| now.since(at).max(at.since(now)) < ONE_LOSS;
            let reported = mark
                .as_ref()
                .filter(|mark| is_recent(mark.document.head.updated_at));
            let reported = reported.and_then(|mark| mark.state.as_ref());
            let (state, is_covered) = ReportedLoss::after(reported, node, loss);
            let event = if is_covered {
                let reason = "another node reported it";
                AuditEvent::Suppress { reason }
            } else {
                AuditEvent::Emit(self.event_of_lost_commits(account, node, loss).await?)
            };
            let document = mark.map(|mark| mark.document);
            let both = self.marking(LOSS, "database", document, &state, event)?;
            if self.commit_once(doing, own.clone().and(both)).await? {
                return Ok(());
            }
        }
        let written = self.store.commit(own).await;
        written.map_err(|error| Fault::new(doing, error))?;
        Ok(())
    }

    async fn event_of_lost_commits(
        &self,
        account: &str,
        node: &str,
        loss: &LostCommits,
    ) -> Result<Event, Fault> {
        let object = Restored {
            node,
            known_by: KnownBy::Node,
            found_revision: loss.found.number,
            known_revision: Some(loss.known.number),
            found_position: self.store.audit_log().extent().await?.last,
            known_position: None,
            made_at: None,
            ended_origin: None,
        };
        self.event(account, RESTORED, None, &object)
    }
}
