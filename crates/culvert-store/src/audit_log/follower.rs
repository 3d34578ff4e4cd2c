//! The follower of the audit log: adds the leaves of committed rows to the tree, so no commit waits for it.
//!
//! One node does it at a time, as long as it does so again within [`HELD_FOR`]; another one would write the same bytes, and a
//! transaction is applied only if the tree and the chain are still those that it was made for.

use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use culvert_tlog::{Edge, TreeHash};

use crate::audit_log::audit::{AuditRow, Deciding, Expired};
use crate::audit_log::chain::Link;
use crate::audit_log::tree::{AuditTree, Growth, Signature, SignedHead, missing_tile};
use crate::commit::state_log::StateCommand;
use crate::store::Store;

/// Rows per read, of at most 256 KiB each.
const ROWS: u32 = 128;
/// Leaves added in one transaction.
const LEAVES_AT_ONCE: u64 = 4_096;
/// How long other nodes wait for the one that adds leaves.
const HELD_FOR: Duration = Duration::from_secs(10);

/// Computes the leaves of rows that follow each other.
pub(crate) struct Leaves {
    /// The link of the row before the next one.
    pub(crate) link: Link,
}

impl Leaves {
    /// The leaf of the next row.
    ///
    /// # Errors
    /// If the row does not follow the last one, or has no hash.
    pub(crate) fn next(&mut self, row: &AuditRow) -> Result<TreeHash, Fault> {
        let doing = "adding leaves to the tree of the audit log";
        let expected = self.link.seq.saturating_add(1);
        if row.seq != expected {
            return Err(Fault::bare(format!("{doing}: event {expected} is missing")));
        }
        let leaf = TreeHash::leaf(&row.content().bytes(self.link.hash, row.seq));
        let hash = row.hash.as_deref();
        let hash =
            hash.ok_or_else(|| Fault::bare(format!("{doing}: event {expected} has no hash")))?;
        self.link = Link {
            seq: row.seq,
            hash: hash.parse().map_err(|error| Fault::new(doing, error))?,
        };
        Ok(leaf)
    }
}

impl Store {
    /// Removes outbox rows, which are the audit log, and returns how many. The link of the last
    /// removed row becomes the anchor of the rest, and the tree keeps the hashes of the rows. Removes none if one of the
    /// documents was written since that decide about it.
    pub async fn prune_outbox(
        &self,
        Expired(seq): Expired,
        deciding: Deciding,
    ) -> Result<u64, Fault> {
        self.grow_audit_tree().await?;
        let command = StateCommand::PruneOutbox {
            up_to: seq,
            deciding,
        };
        self.write("pruning the outbox", command).await
    }

    /// Adds all committed rows of the audit log to its tree, whichever node usually does it. Returns how many leaves were
    /// added.
    pub async fn grow_audit_tree(&self) -> Result<u64, Fault> {
        let mut n_added = 0;
        loop {
            let tree = self.audit_log().tree().await?;
            match self.grow(tree, "", Timestamp::from_unix_nanos(0)).await? {
                0 => return Ok(n_added),
                n => n_added += n,
            }
        }
    }

    /// Adds all committed rows as [`Self::grow_audit_tree`], unless another node did so within the last ten seconds. `holder` names this
    /// node.
    pub async fn follow_audit_log(&self, holder: &str, now: Timestamp) -> Result<u64, Fault> {
        let mut n_added = 0;
        loop {
            let tree = self.audit_log().tree().await?;
            let is_held = tree.held_until > now.unix_nanos() && tree.holder != holder;
            // A wrong clock holds it for no longer than a right one.
            let is_soon = tree.held_until <= now.plus(HELD_FOR).unix_nanos();
            if is_held && is_soon {
                return Ok(n_added);
            }
            match self.grow(tree, holder, now.plus(HELD_FOR)).await? {
                0 => return Ok(n_added),
                n => n_added += n,
            }
        }
    }

    async fn grow(&self, tree: AuditTree, holder: &str, until: Timestamp) -> Result<u64, Fault> {
        let log = self.audit_log();
        let extent = log.extent().await?;
        let mut base = tree.base;
        if tree.size == 0 && extent.anchor.seq > base {
            // A program without the tree pruned rows.
            base = extent.anchor.seq;
        }
        let last = base.saturating_add_unsigned(tree.size);
        if extent.head.seq <= last {
            return Ok(0);
        }
        let tiles = log.tiles(Edge::tiles(tree.size)).await?;
        let mut edge = Edge::at(tree.size, &tiles).ok_or_else(missing_tile)?;
        let mut leaves = Leaves {
            link: Link {
                seq: last,
                hash: log.link_hash(last).await?,
            },
        };
        while edge.size() - tree.size < LEAVES_AT_ONCE {
            let rows = log.rows(leaves.link.seq, extent.head.seq, ROWS).await?;
            if rows.is_empty() {
                break;
            }
            for row in &rows {
                edge.push(leaves.next(row)?);
            }
        }
        let growth = Growth {
            base_before: tree.base,
            size_before: tree.size,
            base,
            size: edge.size(),
            link: leaves.link,
            tiles: edge.take_changed(),
            holder: holder.to_owned(),
            held_until: until.unix_nanos(),
        };
        let command = StateCommand::GrowTree(growth);
        self.write("growing the tree of the audit log", command)
            .await
    }

    /// Replaces the signed head `before` with another one, of the same or a larger tree. False if another node was faster,
    /// or the tree is smaller.
    pub async fn sign_audit_tree(
        &self,
        before: Option<&SignedHead>,
        after: SignedHead,
    ) -> Result<bool, Fault> {
        self.replace_head(before, after, false).await
    }

    /// As [`Self::sign_audit_tree`], with a head that enough witnesses signed: it stays published until a newer one has as
    /// many signatures.
    pub async fn cosign_audit_tree(
        &self,
        before: &SignedHead,
        after: SignedHead,
    ) -> Result<bool, Fault> {
        self.replace_head(Some(before), after, true).await
    }

    async fn replace_head(
        &self,
        before: Option<&SignedHead>,
        after: SignedHead,
        is_cosigned: bool,
    ) -> Result<bool, Fault> {
        let before = before.map(|head| head.checkpoint.to_string());
        let command = StateCommand::SignTree(Signature {
            before: before.unwrap_or_default(),
            after,
            is_cosigned,
        });
        let doing = "signing the tree of the audit log";
        self.write(doing, command).await.map(|n| n > 0)
    }
}
