//! The end of a log of signed heads: the database does not continue the last one, so it was restored, or written again.
//!
//! The end has a mark with the origin of the heads. All nodes stop signing under it, and the event is written once. A tree
//! that is damaged has a mark too, until it is repaired.

use culvert_base::Fault;
use culvert_resources::stored::Format;
use culvert_store::AuditEvent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ServerLog;
use super::backup::{KnownBy, Restored};
use super::mark::MarkKind;
use super::names::{AUDIT_TREE_DAMAGED, RESTORED};

const ENDED: MarkKind = MarkKind {
    kind: "ended_audit_log",
    prefix: "ended",
};

const DAMAGED: MarkKind = MarkKind {
    kind: "damaged_audit_tree",
    prefix: "damaged",
};
const TREE: &str = "tree";

/// The object of the event of a damaged tree.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TreeDamaged<'a> {
    /// The node that noticed it.
    node: &'a str,
    /// The position of the last event that is in the tree.
    last: i64,
}

/// The state of both marks.
#[derive(Debug, Deserialize, Serialize)]
struct Ended {
    format: Format<1>,
}

/// A signed head of the audit log that the database does not continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostHead {
    /// The origin of the head.
    pub origin: String,
    /// The position of its last event.
    pub position: i64,
    /// Whether a witness knows it; else a node does.
    pub is_of_witness: bool,
}

impl ServerLog {
    /// The origins of signed heads that ended.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn ended_origins(&self) -> Result<Vec<String>, Fault> {
        let marks = self.marks::<Ended>(ENDED).await?;
        Ok(marks.iter().map(|mark| mark.of().to_owned()).collect())
    }

    /// Ends the heads of an origin, with the event, unless another node did.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn end_origin(&self, node: &str, lost: &LostHead) -> Result<(), Fault> {
        let Some(account) = self.account().await? else {
            return Ok(());
        };
        if self.mark::<Ended>(ENDED, &lost.origin).await?.is_some() {
            return Ok(());
        }
        let object = Restored {
            node,
            known_by: match lost.is_of_witness {
                true => KnownBy::Witness,
                false => KnownBy::SignedHead,
            },
            found_revision: self.store.revision().await?.number,
            known_revision: None,
            found_position: self.store.audit_log().extent().await?.last,
            known_position: Some(lost.position),
            made_at: None,
            ended_origin: Some(lost.origin.clone()),
        };
        let event = AuditEvent::Emit(self.event(&account, RESTORED, None, &object)?);
        let state = Ended { format: Format };
        let changes = self.marking(ENDED, &lost.origin, None, &state, event)?;
        let doing = "recording the end of the signed heads";
        self.commit_once(doing, changes).await.map(drop)
    }

    /// Reports that the tree over the audit log is damaged, unless that is known.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn tree_damaged(&self, node: &str) -> Result<(), Fault> {
        let Some(account) = self.account().await? else {
            return Ok(());
        };
        if self.mark::<Ended>(DAMAGED, TREE).await?.is_some() {
            return Ok(());
        }
        let last = self.store.audit_log().tree().await?.last();
        let object = TreeDamaged { node, last };
        let event = self.event(&account, AUDIT_TREE_DAMAGED, None, &object)?;
        let state = Ended { format: Format };
        let changes = self.marking(DAMAGED, TREE, None, &state, AuditEvent::Emit(event))?;
        let doing = "recording the damage of the tree";
        self.commit_once(doing, changes).await.map(drop)
    }

    /// Notes that the tree is repaired: its next damage is reported again.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn tree_repaired(&self) -> Result<(), Fault> {
        let Some(mark) = self.mark::<Ended>(DAMAGED, TREE).await? else {
            return Ok(());
        };
        let reason = "the event of the command says it";
        let changes = mark.removal(AuditEvent::Suppress { reason });
        let doing = "recording the repair of the tree";
        self.commit_once(doing, changes).await.map(drop)
    }
}
