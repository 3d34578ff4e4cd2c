//! Computes the tree again and compares it with the stored one.

use std::collections::VecDeque;

use culvert_base::Fault;
use culvert_tlog::{Edge, HASH_BYTES, TILE_WIDTH, TileId, TreeHash};

use crate::audit_log::audit::{AuditLog, AuditRow, Damage};
use crate::audit_log::follower::Leaves;
use crate::audit_log::tree::AuditTree;
use crate::database::dialect::While;
use crate::database::statements::state;

/// Rows per read, of at most 256 KiB each.
const ROWS: u32 = 128;

/// The tree, computed again.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// The stored tree, which is the same.
    pub tree: AuditTree,
    /// How many leaves were computed from their rows. The rows of the others are pruned.
    pub from_rows: u64,
    /// The root.
    pub root: TreeHash,
}

/// A defect of the tree.
#[derive(Debug, thiserror::Error)]
pub enum TreeDamage {
    /// A row is not the one that is in the tree.
    #[error("the audit log was changed: {0}")]
    Row(Damage),
    /// A tile is not the one that follows from the leaves.
    #[error("the tree of the audit log was changed: tile {0} is missing or wrong")]
    Tile(TileId),
    /// There are tiles that no leaf needs.
    #[error("the tree of the audit log was changed: it has {0} tiles more than leaves need")]
    Excess(u64),
    /// The signed head is not that of the tree.
    #[error("the audit log was changed: the signed head of {0} leaves does not match the tree")]
    Head(u64),
    /// An internal failure.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl AuditLog {
    /// Computes all leaves of retained rows and all tiles, and compares them with the stored ones, and the root with the
    /// signed head.
    ///
    /// # Errors
    /// The first defect.
    pub async fn rebuild(&self) -> Result<Rebuilt, TreeDamage> {
        let tree = self.tree().await?;
        let mut rows = Rows::of(self, &tree).await?;
        let head = tree
            .signed
            .as_ref()
            .map(|head| head.checkpoint.checkpoint());
        let mut is_head_right = head.is_none_or(|head| head.size == 0);
        let (mut edge, mut from_rows) = (Edge::default(), 0);
        while edge.size() < tree.size {
            let id = TileId {
                level: 0,
                n: edge.size() / TILE_WIDTH as u64,
            };
            let tile = self.tile(id).await?.unwrap_or_default();
            // The last one may have grown meanwhile.
            let tile = tile.get(..id.width_in(tree.size) * HASH_BYTES);
            let (hashes, _) = tile.ok_or(TreeDamage::Tile(id))?.as_chunks::<HASH_BYTES>();
            for hash in hashes {
                let seq = tree.base.saturating_add_unsigned(edge.size() + 1);
                if let Some(leaf) = rows.leaf(seq).await? {
                    if leaf != TreeHash(*hash) {
                        let what = "does not match its leaf";
                        return Err(TreeDamage::Row(Damage { seq, what }));
                    }
                    from_rows += 1;
                }
                edge.push(TreeHash(*hash));
                if let Some(head) = head
                    && head.size == edge.size()
                {
                    is_head_right = head.root == edge.root();
                }
            }
            // Stored tiles may have more hashes by now, and begin with these.
            for (id, bytes) in edge.take_changed() {
                let stored = self.tile(id).await?.unwrap_or_default();
                if !stored.starts_with(&bytes) {
                    return Err(TreeDamage::Tile(id));
                }
            }
        }
        self.refuse_excess().await?;
        match (is_head_right, head) {
            (false, Some(head)) => Err(TreeDamage::Head(head.size)),
            _ => Ok(Rebuilt {
                root: edge.root(),
                from_rows,
                tree,
            }),
        }
    }

    /// Fails if there are more tiles than leaves need.
    async fn refuse_excess(&self) -> Result<(), TreeDamage> {
        let doing = "counting the tiles of the audit log";
        let row = self.pool.row(doing, state::COUNT_TILES, &[]).await?;
        let n_tiles: i64 = row.map_or(Ok(0), |row| row.get(0)).during(doing)?;
        let mut hashes = self.tree().await?.size;
        let mut n_needed = 0;
        while hashes > 0 {
            n_needed += hashes.div_ceil(TILE_WIDTH as u64);
            hashes /= TILE_WIDTH as u64;
        }
        match n_tiles.unsigned_abs().checked_sub(n_needed) {
            None | Some(0) => Ok(()),
            Some(n) => Err(TreeDamage::Excess(n)),
        }
    }
}

/// The retained rows of the tree, in order.
pub(crate) struct Rows<'a> {
    log: &'a AuditLog,
    leaves: Leaves,
    last: i64,
    read: VecDeque<AuditRow>,
}

impl<'a> Rows<'a> {
    pub(crate) async fn of(log: &'a AuditLog, tree: &AuditTree) -> Result<Self, Fault> {
        let link = log.extent().await?.anchor;
        Ok(Self {
            log,
            leaves: Leaves { link },
            last: tree.last(),
            read: VecDeque::new(),
        })
    }

    /// The leaf of the row at `seq`, which is the one after the last call's; `None` if it is pruned.
    pub(crate) async fn leaf(&mut self, seq: i64) -> Result<Option<TreeHash>, TreeDamage> {
        if seq <= self.leaves.link.seq {
            return Ok(None);
        }
        let missing = TreeDamage::Row(Damage {
            seq,
            what: "is missing",
        });
        if self.read.is_empty() {
            let rows = self.log.rows(self.leaves.link.seq, self.last, ROWS).await?;
            self.read = rows.into();
        }
        match self.read.pop_front() {
            Some(row) if row.seq == seq => Ok(Some(self.leaves.next(&row)?)),
            _ => {
                // It may have been pruned meanwhile.
                let anchor = self.log.extent().await?.anchor;
                if anchor.seq < seq {
                    return Err(missing);
                }
                self.leaves.link = anchor;
                self.read.clear();
                Ok(None)
            }
        }
    }
}
