//! The end of a log of signed heads: the database does not continue the last one, so it was restored, or written again.
//!
//! The end has a mark with the origin of the heads. All nodes stop signing under it, and the event is written once.

use culvert_base::Fault;
use culvert_resources::stored::Format;
use culvert_store::AuditEvent;
use serde::{Deserialize, Serialize};

use super::ServerLog;
use super::backup::{KnownBy, Restored};
use super::mark::MarkKind;
use super::names::RESTORED;

const ENDED: MarkKind = MarkKind {
    kind: "ended_audit_log",
    prefix: "ended",
};

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
}
