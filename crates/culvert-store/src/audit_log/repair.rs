//! Repairs the tree: its tiles are computed again, from retained rows and from the leaf hashes of removed ones.

use std::collections::BTreeMap;

use culvert_base::Fault;
use culvert_tlog::{Edge, HASH_BYTES, TILE_WIDTH, TileId, TreeHash};

use crate::audit_log::audit::AuditLog;
use crate::audit_log::rebuild::{Rows, TreeDamage};
use crate::audit_log::tree::{AuditTree, TileRepair};
use crate::commit::state_log::StateCommand;
use crate::store::Store;

/// Tiles written in one transaction, of at most 8 KiB each.
const TILES_AT_ONCE: usize = 64;

/// What a repair did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The number of leaves.
    pub leaves: u64,
    /// How many of them were computed from their rows.
    pub from_rows: u64,
    /// How many tiles were missing or wrong.
    pub tiles: u64,
}

/// Why a tree cannot be repaired. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum Unrepairable {
    /// A row was removed, and its leaf hash is missing.
    #[error(
        "event {0} was removed by the retention, and the tile with its hash is missing: the tree cannot be computed without it; restore the table `audit_tile` from a backup"
    )]
    LeafLost(i64),
    /// The rows and leaf hashes do not make the tree that was signed.
    #[error(
        "rows and hashes of leaves do not make the tree of the signed head of {0} leaves: a row or the hash of a removed one was changed"
    )]
    OtherTree(u64),
    /// The rows are damaged.
    #[error(transparent)]
    Damage(#[from] TreeDamage),
    /// The tree grew meanwhile.
    #[error("the tree grew meanwhile; try again")]
    Grew,
}

impl From<Fault> for Unrepairable {
    fn from(fault: Fault) -> Self {
        Self::Damage(fault.into())
    }
}

impl AuditLog {
    /// Whether a tile is missing or too short that the next leaves need. Then the log is neither signed nor pruned.
    pub async fn is_tree_damaged(&self) -> Result<bool, Fault> {
        let size = self.tree().await?.size;
        let tiles = self.tiles(Edge::tiles(size)).await?;
        Ok(Edge::at(size, &tiles).is_none())
    }
}

impl Store {
    /// Computes all tiles again and writes those that are missing or wrong, if they lead to the signed head.
    ///
    /// # Errors
    /// If a leaf is lost, or the tree is not the signed one.
    pub async fn repair_audit_tree(&self) -> Result<Repaired, Unrepairable> {
        let tree = self.audit_log().tree().await?;
        // Nothing is written before the whole tree is known to be right.
        self.recompute(&tree, false).await?;
        self.recompute(&tree, true).await
    }

    async fn recompute(&self, tree: &AuditTree, writes: bool) -> Result<Repaired, Unrepairable> {
        let log = self.audit_log();
        let mut rows = Rows::of(&log, tree).await?;
        let head = tree.signed.as_ref();
        let head = head.map(|head| head.checkpoint.checkpoint());
        let mut repaired = Repaired::default();
        let mut wrong = BTreeMap::new();
        let mut edge = Edge::default();
        while edge.size() < tree.size {
            let id = TileId {
                level: 0,
                n: edge.size() / TILE_WIDTH as u64,
            };
            let stored = log.tile(id).await?.unwrap_or_default();
            let (stored, _) = stored.as_chunks::<HASH_BYTES>();
            for place in 0..id.width_in(tree.size) {
                let seq = tree.base.saturating_add_unsigned(edge.size() + 1);
                let leaf = rows.leaf(seq).await?;
                repaired.from_rows += u64::from(leaf.is_some());
                let kept = stored.get(place).copied().map(TreeHash);
                edge.push(leaf.or(kept).ok_or(Unrepairable::LeafLost(seq))?);
                if let Some(head) = head
                    && head.size == edge.size()
                    && head.root != edge.root()
                {
                    return Err(Unrepairable::OtherTree(head.size));
                }
            }
            for (id, bytes) in edge.take_changed() {
                let stored = log.tile(id).await?.unwrap_or_default();
                if !stored.starts_with(&bytes) {
                    repaired.tiles += u64::from(!wrong.contains_key(&id));
                    wrong.insert(id, bytes);
                }
            }
            let is_over = edge.size() == tree.size;
            if writes && !wrong.is_empty() && (is_over || wrong.len() >= TILES_AT_ONCE) {
                let command = StateCommand::RepairTree(TileRepair {
                    size: tree.size,
                    tiles: std::mem::take(&mut wrong),
                });
                let doing = "repairing the tree of the audit log";
                if self.write(doing, command).await? == 0 {
                    return Err(Unrepairable::Grew);
                }
            } else if !writes && wrong.len() >= TILES_AT_ONCE {
                wrong.clear();
            }
        }
        repaired.leaves = edge.size();
        Ok(repaired)
    }
}
