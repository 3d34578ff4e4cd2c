//! The tree over the audit log: one leaf for each row, in order, with the bytes that the row's hash in the chain is made
//! of. Tiles are appended to, and stay when their rows are pruned. `follower` adds leaves.

use std::collections::BTreeMap;

use culvert_base::{Fault, Timestamp};
use culvert_tlog::{
    Checkpoint, Edge, HASH_BYTES, InclusionProof, SignedCheckpoint, TILE_WIDTH, TileId, TilePath,
    Tiles, TreeHash, inclusion_ranges, tiles_of,
};

use crate::audit_log::audit::AuditLog;
use crate::audit_log::chain::{Hash, Link};
use crate::database::dialect::{Arg, Connection, Row, While};
use crate::database::statements::state;

/// The tree over the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditTree {
    /// The position before the first leaf. Above 0 only if rows were pruned before there was a tree.
    pub base: i64,
    /// The number of leaves.
    pub size: u64,
    /// The latest signed head.
    pub signed: Option<SignedHead>,
    /// The newest head that enough witnesses signed; the latest one, or one before it.
    pub(crate) cosigned: Option<SignedCheckpoint>,
    pub(crate) holder: String,
    pub(crate) held_until: i64,
}

/// A signed head of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedHead {
    /// When it was signed, and not when witnesses were asked.
    pub at: Timestamp,
    /// The checkpoint.
    pub checkpoint: SignedCheckpoint,
}

impl SignedHead {
    /// The number of leaves of its tree.
    pub fn size(&self) -> u64 {
        self.checkpoint.checkpoint().size
    }
}

impl AuditTree {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        let size: i64 = row.get(1)?;
        let parse = |text: String| {
            let parsed = Some(text.as_bytes()).filter(|text| !text.is_empty());
            let parsed = parsed.map(SignedCheckpoint::parse).transpose();
            parsed.map_err(|error| sqlx::Error::Decode(Box::new(error)))
        };
        let at = Timestamp::from_unix_nanos(row.get(5)?);
        let signed = parse(row.get(6)?)?.map(|checkpoint| SignedHead { at, checkpoint });
        Ok(Self {
            base: row.get(0)?,
            size: size.unsigned_abs(),
            holder: row.get(2)?,
            held_until: row.get(3)?,
            signed,
            cosigned: parse(row.get(7)?)?,
        })
    }

    /// The head for those who trust witnesses: the newest that enough of them signed, or the latest if there is none of
    /// this origin and key.
    pub fn published(&self) -> Option<&SignedCheckpoint> {
        let latest = &self.signed.as_ref()?.checkpoint;
        let is_same = |it: &&SignedCheckpoint| {
            it.checkpoint().origin == latest.checkpoint().origin && it.has_key_of(latest)
        };
        Some(self.cosigned.as_ref().filter(is_same).unwrap_or(latest))
    }

    pub(crate) async fn read_in(connection: &mut Connection) -> Result<Self, sqlx::Error> {
        let row = connection.row(state::TREE, &[]).await?;
        Self::read(&row.ok_or(sqlx::Error::RowNotFound)?)
    }

    /// The position of the last leaf's row; `base` in an empty tree.
    pub fn last(&self) -> i64 {
        self.base.saturating_add_unsigned(self.size)
    }

    /// The index of the leaf of a row; `None` if it has none.
    pub fn index_of(&self, seq: i64) -> Option<u64> {
        let index = seq.checked_sub(self.base)?.checked_sub(1)?;
        u64::try_from(index).ok().filter(|index| *index < self.size)
    }
}

/// Leaves to add, and the tree and chain for which they were made.
#[derive(Debug)]
pub(crate) struct Growth {
    pub(crate) base_before: i64,
    pub(crate) size_before: u64,
    pub(crate) base: i64,
    pub(crate) size: u64,
    /// The link of the last row.
    pub(crate) link: Link,
    pub(crate) tiles: BTreeMap<TileId, Vec<u8>>,
    pub(crate) holder: String,
    pub(crate) held_until: i64,
}

impl Growth {
    /// Writes the tiles; nothing if the tree or the chain are others. Returns how many leaves were added.
    pub(crate) async fn write(&self, connection: &mut Connection) -> Result<u64, sqlx::Error> {
        let tree = AuditTree::read_in(connection).await?;
        let row = connection
            .row(state::AUDIT_HASH, &[Arg::Int(self.link.seq)])
            .await?;
        // After a loss of commits, another row may have the position.
        let hash: Option<String> = row.map_or(Ok(None), |row| row.get(0))?;
        let is_same_chain = hash.is_some_and(|hash| hash == self.link.hash.to_string());
        if !is_same_chain || (tree.base, tree.size) != (self.base_before, self.size_before) {
            return Ok(0);
        }
        for (id, hashes) in &self.tiles {
            let arguments = [
                Arg::Int(i64::from(id.level)),
                Arg::Int(number(id.n)),
                Arg::Blob(hashes),
            ];
            connection.run(state::PUT_TILE, &arguments).await?;
        }
        let arguments = [
            Arg::Int(self.base),
            Arg::Int(number(self.size)),
            Arg::Text(&self.holder),
            Arg::Int(self.held_until),
        ];
        connection.run(state::TREE_GREW, &arguments).await?;
        Ok(self.size - self.size_before)
    }
}

/// A signed head that replaces another one.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) before: String,
    pub(crate) after: SignedHead,
    /// Whether enough witnesses signed it.
    pub(crate) is_cosigned: bool,
}

impl Signature {
    /// Writes it, if the head before is still the latest.
    pub(crate) async fn write(&self, connection: &mut Connection) -> Result<u64, sqlx::Error> {
        let text = self.after.checkpoint.to_string();
        let cosigned = if self.is_cosigned { text.as_str() } else { "" };
        let arguments = [
            Arg::Int(number(self.after.size())),
            Arg::Int(self.after.at.unix_nanos()),
            Arg::Text(&text),
            Arg::Text(&self.before),
            Arg::Text(cosigned),
        ];
        connection.run(state::TREE_SIGNED, &arguments).await
    }
}

/// Tiles that replace those of a tree of this size.
#[derive(Debug)]
pub(crate) struct TileRepair {
    pub(crate) size: u64,
    pub(crate) tiles: BTreeMap<TileId, Vec<u8>>,
}

impl TileRepair {
    /// Writes the tiles; nothing if the tree has another size. Returns whether it has it, as 1 or 0.
    pub(crate) async fn write(&self, connection: &mut Connection) -> Result<u64, sqlx::Error> {
        if AuditTree::read_in(connection).await?.size != self.size {
            return Ok(0);
        }
        for (id, hashes) in &self.tiles {
            let arguments = [
                Arg::Int(i64::from(id.level)),
                Arg::Int(number(id.n)),
                Arg::Blob(hashes),
            ];
            connection.run(state::PUT_TILE, &arguments).await?;
        }
        Ok(1)
    }
}

/// The files of the log that are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditFile {
    /// The head that is published. It changes.
    Checkpoint(String),
    /// Hashes of the tree.
    Tile {
        /// The hashes, 32 bytes each.
        hashes: Vec<u8>,
        /// Whether a signed head has the whole tile, which thus never changes.
        is_final: bool,
    },
}

/// Why there is no proof of an event.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    /// The log has no such event.
    #[error("the audit log has no event `{0}`")]
    Unknown(String),
    /// The event is older than the tree, whose first row is given.
    #[error("the event is older than the tree, which begins with event {0}")]
    BeforeTree(i64),
    /// No signed head has the event yet.
    #[error("the event is not in a signed head yet; the next one follows within seconds")]
    NotSigned,
    /// The row is not the one that is in the tree.
    #[error("the audit log was changed: event {0} does not match its leaf")]
    Changed(i64),
    /// An internal failure.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl AuditLog {
    /// The tree over the log.
    pub async fn tree(&self) -> Result<AuditTree, Fault> {
        let doing = "reading the tree of the audit log";
        if !self.has_tree {
            return Err(Fault::bare(format!(
                "{doing}: the database has none yet; start `culvert serve` once to create it"
            )));
        }
        let row = self.pool.row(doing, state::TREE, &[]).await?;
        let row = row.ok_or_else(|| Fault::bare(format!("{doing}: its row is missing")))?;
        AuditTree::read(&row).during(doing)
    }

    /// The bytes of a tile with as many hashes as there are; `None` if there is none.
    pub async fn tile(&self, id: TileId) -> Result<Option<Vec<u8>>, Fault> {
        let doing = "reading a tile of the audit log";
        let Ok(n) = i64::try_from(id.n) else {
            return Ok(None);
        };
        let arguments = [Arg::Int(i64::from(id.level)), Arg::Int(n)];
        let row = self.pool.row(doing, state::TILE, &arguments).await?;
        row.map(|row| row.get(0)).transpose().during(doing)
    }

    /// The file of the log at this path below its prefix: `checkpoint`, or `tile/` and the address of a tile
    /// (C2SP `tlog-tiles`). `None` if there is nothing.
    pub async fn file(&self, path: &str) -> Result<Option<AuditFile>, Fault> {
        if path == "checkpoint" {
            let tree = self.tree().await?;
            return Ok(tree
                .published()
                .map(|head| AuditFile::Checkpoint(head.to_string())));
        }
        let tile = path.strip_prefix("tile/").map(str::parse::<TilePath>);
        let Some(Ok(TilePath { id, width })) = tile else {
            return Ok(None);
        };
        let bytes = self.tile(id).await?;
        let hashes = bytes.as_deref().and_then(|it| it.get(..width * HASH_BYTES));
        let Some(hashes) = hashes.map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        let signed = self.tree().await?.signed;
        let n_signed = signed.map_or(0, |head| id.width_in(head.size()));
        let is_final = width == TILE_WIDTH && n_signed == TILE_WIDTH;
        Ok(Some(AuditFile::Tile { hashes, is_final }))
    }

    /// These tiles, as far as they are there.
    pub async fn tiles(&self, ids: impl IntoIterator<Item = TileId>) -> Result<Tiles, Fault> {
        let mut tiles = Tiles::default();
        for id in ids {
            if let Some(bytes) = self.tile(id).await? {
                let damaged = |error| Fault::new("reading a tile of the audit log", error);
                tiles.insert(id, &bytes).map_err(damaged)?;
            }
        }
        Ok(tiles)
    }

    /// The hashes of these ranges of leaves.
    pub async fn range_hashes(
        &self,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<Vec<TreeHash>, Fault> {
        let tiles = self.tiles(tiles_of(ranges)).await?;
        tiles.hashes(ranges).ok_or_else(missing_tile)
    }

    /// The root of the tree of the first `size` leaves.
    pub async fn root(&self, size: u64) -> Result<TreeHash, Fault> {
        let tiles = self.tiles(Edge::tiles(size)).await?;
        Ok(Edge::at(size, &tiles).ok_or_else(missing_tile)?.root())
    }

    /// The unsigned head of the tree.
    pub async fn head(&self, origin: &str, size: u64) -> Result<Checkpoint, Fault> {
        Ok(Checkpoint {
            origin: origin.to_owned(),
            size,
            root: self.root(size).await?,
            extensions: Vec::new(),
        })
    }

    /// The proof that a signed head has an event: the published one, or the latest if that does not have the event yet. Its
    /// extra data are the bytes of the event's row
    /// ([`crate::AuditRecord`]). An event of an account other than `account` counts as missing.
    pub async fn prove(
        &self,
        id: &str,
        account: Option<&str>,
    ) -> Result<InclusionProof, ProveError> {
        let doing = "finding an event in the audit log";
        let found = self
            .pool
            .row(doing, state::AUDIT_EVENT, &[Arg::Text(id)])
            .await?;
        let found: Option<(i64, String)> = found
            .map(|row| Ok((row.get(0)?, row.get(1)?)))
            .transpose()
            .during(doing)?;
        let unknown = || ProveError::Unknown(id.to_owned());
        let (seq, _) = found
            .filter(|(_, owner)| account.is_none_or(|account| account == owner))
            .ok_or_else(unknown)?;
        let tree = self.tree().await?;
        if seq <= tree.base {
            return Err(ProveError::BeforeTree(tree.base.saturating_add(1)));
        }
        let index = tree.index_of(seq).ok_or(ProveError::NotSigned)?;
        let latest = tree.signed.as_ref().map(|head| &head.checkpoint);
        let mut heads = tree.published().into_iter().chain(latest);
        let signed = heads
            .find(|head| index < head.checkpoint().size)
            .ok_or(ProveError::NotSigned)?;
        let mut ranges = inclusion_ranges(index, signed.checkpoint().size)
            .map_err(|error| Fault::new("proving an event", error))?;
        ranges.push(index..index + 1);
        let mut hashes = self.range_hashes(&ranges).await?;
        let leaf = hashes.pop();
        let row = self.rows(seq.saturating_sub(1), seq, 1).await?.pop();
        let row = row.ok_or_else(unknown)?;
        let previous = self.link_hash(seq.saturating_sub(1)).await?;
        let bytes = row.content().bytes(previous, seq);
        if leaf != Some(TreeHash::leaf(&bytes)) {
            return Err(ProveError::Changed(seq));
        }
        Ok(InclusionProof {
            extra: Some(bytes),
            index,
            hashes,
            signed: signed.clone(),
        })
    }

    /// The hash of a retained row or of the last removed one.
    pub(crate) async fn link_hash(&self, seq: i64) -> Result<Hash, Fault> {
        let doing = "reading a hash of the audit log";
        let hash = self.hash_at(seq).await?;
        let hash = hash.ok_or_else(|| Fault::bare(format!("{doing}: event {seq} has none")))?;
        hash.parse().map_err(|error| Fault::new(doing, error))
    }
}

pub(crate) fn missing_tile() -> Fault {
    Fault::bare(
        "reading the tree of the audit log: a tile is missing; run `culvert audit verify --rebuild`",
    )
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
