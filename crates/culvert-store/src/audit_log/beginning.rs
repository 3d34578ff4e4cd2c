//! Where the log begins. Rows before the first retained one were removed, and events of the log say so: each has the range
//! and the hash of the last removed row, so a row that a signed head has vouches for the beginning of the chain.
//!
//! An event that announces a removal is after the rows that it is about, so the one that covers the last removed row is
//! always retained.

use culvert_base::Fault;
use serde::Deserialize;

use crate::audit_log::audit::{AuditError, AuditLog, Damage, Extent};
use crate::database::dialect::{Arg, Row, While};
use crate::database::statements::state;

/// The kind of the events that announce removals.
const PRUNED: &str = "event_log_pruned.v0";
/// Events per read, each of a few hundred bytes.
const ROWS: i64 = 128;

/// The knowledge of the rows before the first retained one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// There are none.
    Whole,
    /// Events of the log account for all of them, with the hash of the last one.
    Announced,
    /// Events of the log account for all of them. The hash of the last one is not known: a server of an earlier version
    /// announced it.
    Unbound,
    /// Nothing: a server removed them that announced nothing, before there was a tree over the log.
    Unknown,
}

/// The object of an event that announces a removal.
#[derive(Debug, Deserialize)]
struct Pruned {
    first: i64,
    last: i64,
    #[serde(default)]
    last_hash: Option<String>,
    #[serde(default)]
    unannounced_from: Option<i64>,
}

#[derive(Deserialize)]
struct Envelope {
    object: Pruned,
}

/// Rows that are missing although no event says so.
fn unannounced(first: i64, last: i64) -> AuditError {
    AuditError::Unannounced { first, last }
}

impl AuditLog {
    /// Verifies that events of the log account for all rows that were removed before the first retained one.
    ///
    /// # Errors
    /// If none accounts for a removed row, or another row was removed.
    pub async fn verify_beginning(&self) -> Result<Beginning, AuditError> {
        loop {
            let extent = self.extent().await?;
            let found = self.beginning(&extent).await;
            // Rows that were pruned meanwhile are no defect.
            if self.extent().await?.anchor == extent.anchor {
                return found;
            }
        }
    }

    async fn beginning(&self, extent: &Extent) -> Result<Beginning, AuditError> {
        let anchor = extent.anchor;
        if anchor.seq == 0 {
            return Ok(Beginning::Whole);
        }
        let (mut after, mut announced_to) = (anchor.seq, None);
        let mut covering: Option<Pruned> = None;
        loop {
            let rows = self.prunings(after).await?;
            if rows.is_empty() {
                break;
            }
            for (seq, pruned) in rows {
                after = seq;
                let what = "announces a removal and cannot be read";
                let pruned = pruned.ok_or(AuditError::Damaged(Damage { seq, what }))?;
                let before = pruned.first.saturating_sub(1);
                if let Some(first) = pruned.unannounced_from {
                    return Err(unannounced(first, before));
                }
                if let Some(last) = announced_to.replace(pruned.last)
                    && last < before
                {
                    return Err(unannounced(last.saturating_add(1), before));
                }
                if (pruned.first..=pruned.last).contains(&anchor.seq) {
                    covering = Some(pruned);
                }
            }
        }
        let Some(Pruned {
            last, last_hash, ..
        }) = covering
        else {
            return match self.is_older_than_tree(anchor.seq).await? {
                true if announced_to.is_none() => Ok(Beginning::Unknown),
                _ => Err(unannounced(1, anchor.seq)),
            };
        };
        let Some(expected) = last_hash else {
            return Ok(Beginning::Unbound);
        };
        // Rows that are announced and still there lead from the anchor to the last of them.
        if self.hash_at(last).await?.as_ref() != Some(&expected) {
            let what = "is not the one whose removal is announced";
            return Err(AuditError::Damaged(Damage { seq: last, what }));
        }
        Ok(Beginning::Announced)
    }

    /// The first row that was removed although no event says so; `None` if there is none. The rest of them reaches to the
    /// first retained row. Reads the latest event about a removal only.
    pub async fn unannounced_from(&self) -> Result<Option<i64>, Fault> {
        let doing = "looking for the latest removal of audit events";
        let anchor = self.extent().await?.anchor.seq;
        let row = self
            .pool
            .row(doing, state::LATEST_OF_KIND, &[Arg::Text(PRUNED)])
            .await?;
        let latest = row.as_ref().map(pruned).transpose().during(doing)?;
        let announced_to = match latest {
            Some((_, Some(pruned))) => pruned.last,
            _ if self.is_older_than_tree(anchor).await? => anchor,
            _ => 0,
        };
        Ok((announced_to < anchor).then(|| announced_to.saturating_add(1)))
    }

    /// Whether the row at a position was removed before there was a tree, by a version that announced nothing.
    async fn is_older_than_tree(&self, seq: i64) -> Result<bool, Fault> {
        Ok(!self.has_tree || seq <= self.tree().await?.base)
    }

    async fn prunings(&self, after: i64) -> Result<Vec<(i64, Option<Pruned>)>, Fault> {
        let doing = "reading the removals of audit events";
        let arguments = [Arg::Text(PRUNED), Arg::Int(after), Arg::Int(ROWS)];
        let rows = self.pool.rows(doing, state::OF_KIND, &arguments).await?;
        rows.iter()
            .map(pruned)
            .collect::<Result<_, sqlx::Error>>()
            .during(doing)
    }
}

/// The position and the object of an event; no object if it cannot be read.
fn pruned(row: &Row) -> Result<(i64, Option<Pruned>), sqlx::Error> {
    let body: String = row.get(1)?;
    let envelope = serde_json::from_str::<Envelope>(&body);
    Ok((row.get(0)?, envelope.ok().map(|it| it.object)))
}
