//! Nodes that join and leave an installation on PostgreSQL.
//!
//! Each node describes itself every few seconds (`crates/culvert-control/src/operations/node_list.rs`). A node whose
//! description does not change for a minute, as seen by the monotonic clock of another one, has left; one of the others
//! reports it. If it is there again, it reports that it joined.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use culvert_base::{Fault, Timestamp};
use culvert_store::{AuditEvent, Changes, NodeNote};
use schemars::JsonSchema;
use serde::Serialize;

use super::ServerLog;
use super::mark::Mark;
use super::run::{RUNNING, RunFacts, Running};

/// Silence after which a node has left.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// If two looks are further apart, each node has the whole time again: this node may have been without the database.
const GAP_MAX: Duration = Duration::from_secs(15);
/// How long the mark of a node is kept that does not return.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Why a node left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum LeftBecause {
    /// It stopped.
    Stopped,
    /// The other nodes did not see it for a minute.
    Unreachable,
    /// It was killed or crashed, and started again before the others noticed.
    Killed,
}

/// The object of the event of a node that joined.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NodeJoined<'a> {
    /// Name of the node.
    pub(super) node: &'a str,
    /// Version of its program.
    pub(super) version: &'a str,
}

/// The object of the event of a node that left.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NodeLeft<'a> {
    /// Name of the node.
    pub(super) node: &'a str,
    /// Why.
    pub(super) reason: LeftBecause,
    /// The node that noticed it; null if the node itself reports it.
    pub(super) noticed_by: Option<&'a str>,
}

/// When each other node was last seen to describe itself.
#[derive(Debug, Default)]
pub struct Members {
    looked_at: Option<Instant>,
    seen: BTreeMap<String, (Option<Timestamp>, Instant)>,
}

impl Members {
    /// The names of those that are silent for too long, of nodes that are marked as members.
    fn silent(
        &mut self,
        members: &BTreeSet<String>,
        notes: &[NodeNote],
        now: Instant,
    ) -> Vec<String> {
        let is_gap = self
            .looked_at
            .is_some_and(|at| now.duration_since(at) > GAP_MAX);
        if is_gap {
            self.seen.clear();
        }
        self.looked_at = Some(now);
        self.seen.retain(|node, _| members.contains(node));
        let mut silent = Vec::new();
        for node in members {
            let note = notes.iter().find(|note| note.node == *node);
            let at = note.map(|note| note.at);
            let seen = self.seen.entry(node.clone()).or_insert((at, now));
            if seen.0 != at {
                *seen = (at, now);
            }
            if now.duration_since(seen.1) > SILENCE_MAX {
                silent.push(node.clone());
            }
        }
        silent
    }
}

/// Whether the node of a mark is one of the installation, as far as it can be read.
pub(super) fn is_member(mark: &Mark<Running>) -> bool {
    mark.state.as_ref().is_some_and(|state| state.is_member)
}

impl ServerLog {
    /// Reports nodes that left, and this one if it is there again.
    pub async fn watch_members(
        &self,
        facts: &RunFacts,
        members: &mut Members,
        notes: &[NodeNote],
        now: Instant,
    ) -> Result<(), Fault> {
        let Some(account) = self.account().await? else {
            return Ok(());
        };
        let marks = self.marks::<Running>(RUNNING).await?;
        let others = marks
            .iter()
            .filter(|mark| is_member(mark) && mark.of() != facts.node);
        let others: BTreeSet<String> = others.map(|mark| mark.of().to_owned()).collect();
        let silent = members.silent(&others, notes, now);
        let own = marks.iter().find(|mark| mark.of() == facts.node);
        if own.is_none_or(|mark| !is_member(mark)) {
            let joined = self.event_of_joined(&account, facts)?;
            let known = own.map(|mark| mark.document.clone());
            let changes = self.running(facts, known, AuditEvent::Emit(joined))?;
            self.commit_once("recording a node", changes).await?;
        }
        let forgotten = self.clock.now().minus(FORGOTTEN_AFTER);
        for mark in marks {
            let node = mark.of().to_owned();
            let is_member = is_member(&mark);
            if let Some(state) = mark.state.filter(|_| silent.contains(&node)) {
                let by = Some(facts.node.as_str());
                let left = self.event_of_left(&account, &node, LeftBecause::Unreachable, by)?;
                let state = Running {
                    is_member: false,
                    ..state
                };
                let (known, event) = (Some(mark.document), AuditEvent::Emit(left));
                let changes = self.marking(RUNNING, &node, known, &state, event)?;
                self.commit_once("recording a node", changes).await?;
            } else if !is_member && node != facts.node && mark.document.head.updated_at < forgotten
            {
                let reason = "its end was reported when it left";
                let event = AuditEvent::Suppress { reason };
                let changes = Changes::remove(mark.document.head, event);
                self.commit_once("forgetting a node", changes).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_describe_itself_for_a_minute_is_silent() {
        let began = Instant::now();
        let members = BTreeSet::from(["n2".to_owned()]);
        let note = |at| NodeNote {
            node: "n2".to_owned(),
            at: Timestamp::from_unix_seconds(at),
            body: String::new(),
        };
        let mut watched = Members::default();
        let mut look = |seconds: u64, notes: &[NodeNote]| {
            watched.silent(&members, notes, began + Duration::from_secs(seconds))
        };
        for seconds in (0..=60).step_by(10) {
            assert!(look(seconds, &[note(1)]).is_empty(), "{seconds}");
        }
        assert_eq!(look(70, &[note(1)]), ["n2"]);
        // What it wrote does not matter, only that it is new.
        assert!(look(75, &[note(-5)]).is_empty());
        // This node did not look for a while.
        assert!(look(175, &[note(-5)]).is_empty());
        for seconds in (180..=230).step_by(10) {
            assert!(look(seconds, &[]).is_empty(), "{seconds}");
        }
        assert!(look(240, &[]).is_empty());
        assert_eq!(look(250, &[]), ["n2"]);
    }
}
