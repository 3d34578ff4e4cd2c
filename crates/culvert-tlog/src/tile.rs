//! Tiles of 256 hashes (C2SP `tlog-tiles`): their addresses, the hashes that follow from them, and the growth of a tree.
//!
//! A tile of level 0 has the hashes of leaves. A tile above has the hash of a full tile below for each of its places. So
//! the hash of a complete subtree of height `h` follows from `2^(h mod 8)` hashes of one tile of level `h / 8`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::hash::{HASH_BYTES, TreeHash, decimal};

/// Hashes of a full tile.
pub const TILE_WIDTH: usize = 256;
/// Levels of subtrees in a tile.
const TILE_HEIGHT: u8 = 8;
/// The highest level of a tile in an address.
const LEVEL_MAX: u8 = 63;
/// Limit of an address, in bytes. The longest number has seven elements.
const PATH_BYTES_MAX: usize = 48;

/// The place of a tile. Displayed as the address of the full tile, such as `0/x001/x234/067`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileId {
    /// Its level, from 0.
    pub level: u8,
    /// Its number within the level, from 0.
    pub n: u64,
}

impl TileId {
    /// How many hashes the tile has in a tree of this size, 0 to 256.
    pub fn width_in(self, size: u64) -> usize {
        let shift = u32::from(self.level) * u32::from(TILE_HEIGHT);
        let hashes = size.checked_shr(shift).unwrap_or(0);
        let before = self.n.saturating_mul(TILE_WIDTH as u64);
        usize::try_from(hashes.saturating_sub(before))
            .unwrap_or(TILE_WIDTH)
            .min(TILE_WIDTH)
    }
}

impl fmt::Display for TileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut elements = vec![self.n % 1_000];
        let mut rest = self.n / 1_000;
        while rest > 0 {
            elements.push(rest % 1_000);
            rest /= 1_000;
        }
        write!(f, "{}", self.level)?;
        for (place, element) in elements.iter().enumerate().rev() {
            let mark = if place > 0 { "x" } else { "" };
            write!(f, "/{mark}{element:03}")?;
        }
        Ok(())
    }
}

/// The address of a tile with this number of its hashes, below `tile/`: `0/x001/067`, `0/x001/067.p/112`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TilePath {
    /// The tile.
    pub id: TileId,
    /// The number of its hashes, 1 to 256.
    pub width: usize,
}

impl fmt::Display for TilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.id, f)?;
        match self.width {
            TILE_WIDTH => Ok(()),
            width => write!(f, ".p/{width}"),
        }
    }
}

/// The text is not the address of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a tile")]
pub struct NotATile;

impl FromStr for TilePath {
    type Err = NotATile;

    fn from_str(text: &str) -> Result<Self, NotATile> {
        if text.len() > PATH_BYTES_MAX {
            return Err(NotATile);
        }
        let (full, width) = match text.split_once(".p/") {
            None => (text, TILE_WIDTH),
            Some((full, width)) => {
                let width = decimal(width).and_then(|width| usize::try_from(width).ok());
                let partial = width.filter(|width| (1..TILE_WIDTH).contains(width));
                (full, partial.ok_or(NotATile)?)
            }
        };
        let (level, number) = full.split_once('/').ok_or(NotATile)?;
        let level = decimal(level)
            .and_then(|level| u8::try_from(level).ok())
            .filter(|level| *level <= LEVEL_MAX)
            .ok_or(NotATile)?;
        let mut n: u64 = 0;
        let mut elements = number.split('/').peekable();
        while let Some(element) = elements.next() {
            let digits = match elements.peek() {
                Some(_) => element.strip_prefix('x').ok_or(NotATile)?,
                None => element,
            };
            if digits.len() != 3 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(NotATile);
            }
            let digits = digits.parse::<u64>().map_err(|_| NotATile)?;
            n = n
                .checked_mul(1_000)
                .and_then(|n| n.checked_add(digits))
                .ok_or(NotATile)?;
        }
        let path = Self {
            id: TileId { level, n },
            width,
        };
        // Leading elements of zeros would be a second address of the same tile.
        (path.to_string() == text).then_some(path).ok_or(NotATile)
    }
}

/// The hash of a complete subtree: the leaves from `index · 2^height` on.
#[derive(Clone, Copy, Debug)]
struct Node {
    height: u8,
    index: u64,
}

impl Node {
    fn tile(self) -> TileId {
        let within = self.height % TILE_HEIGHT;
        TileId {
            level: self.height / TILE_HEIGHT,
            n: self.index >> (TILE_HEIGHT - within),
        }
    }

    /// The places of its hashes in the tile.
    fn places(self) -> Range<usize> {
        let within = self.height % TILE_HEIGHT;
        let first = usize::try_from((self.index << within) % TILE_WIDTH as u64).unwrap_or(0);
        first..first + (1 << within)
    }
}

/// The complete subtrees that a range of leaves consists of, from left to right.
fn nodes(range: &Range<u64>) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut low = range.start;
    while low < range.end {
        let largest = (range.end - low).ilog2().min(low.trailing_zeros());
        let height = u8::try_from(largest).unwrap_or(LEVEL_MAX);
        nodes.push(Node {
            height,
            index: low >> height,
        });
        low += 1 << height;
    }
    nodes
}

/// The hash of a complete subtree whose leaves have these hashes.
fn complete(hashes: &[TreeHash]) -> Option<TreeHash> {
    let mut row = hashes.to_vec();
    while row.len() > 1 {
        row = row
            .chunks_exact(2)
            .map(|pair| TreeHash::node(pair[0], pair[1]))
            .collect();
    }
    row.first().copied()
}

/// The hash of a tree that consists of these complete subtrees, the smallest (the last) first.
fn fold(subtrees: impl IntoIterator<Item = TreeHash>) -> Option<TreeHash> {
    let mut subtrees = subtrees.into_iter();
    let last = subtrees.next()?;
    Some(subtrees.fold(last, |right, left| TreeHash::node(left, right)))
}

/// The tiles from which the hashes of these ranges of leaves follow.
pub fn tiles_of(ranges: &[Range<u64>]) -> BTreeSet<TileId> {
    ranges.iter().flat_map(nodes).map(Node::tile).collect()
}

/// A tile has no whole number of hashes, none, or more than 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tile must have 1 to 256 hashes of 32 bytes")]
pub struct BadTile;

/// Some tiles of a tree.
#[derive(Clone, Debug, Default)]
pub struct Tiles(BTreeMap<TileId, Vec<TreeHash>>);

impl Tiles {
    /// Adds a tile: its hashes one after the other, as a tile is served.
    ///
    /// # Errors
    /// If the bytes are no tile.
    pub fn insert(&mut self, id: TileId, bytes: &[u8]) -> Result<(), BadTile> {
        let (hashes, rest) = bytes.as_chunks::<HASH_BYTES>();
        if !rest.is_empty() || !(1..=TILE_WIDTH).contains(&hashes.len()) {
            return Err(BadTile);
        }
        self.0
            .insert(id, hashes.iter().copied().map(TreeHash).collect());
        Ok(())
    }

    /// The hash of a leaf; `None` if its tile is not here.
    pub fn leaf(&self, index: u64) -> Option<TreeHash> {
        self.hash(&(index..index.checked_add(1)?))
    }

    /// The hash of a range of leaves that a proof or a tree consists of. `None` if a tile of [`tiles_of`] is missing or
    /// too short.
    pub fn hash(&self, range: &Range<u64>) -> Option<TreeHash> {
        let subtrees = nodes(range)
            .into_iter()
            .map(|node| complete(self.0.get(&node.tile())?.get(node.places())?))
            .collect::<Option<Vec<_>>>()?;
        fold(subtrees.into_iter().rev())
    }

    /// The hashes of these ranges.
    pub fn hashes(&self, ranges: &[Range<u64>]) -> Option<Vec<TreeHash>> {
        ranges.iter().map(|range| self.hash(range)).collect()
    }

    /// The root of the tree of the first `size` leaves. Its tiles are those of the range `0..size`.
    pub fn root(&self, size: u64) -> Option<TreeHash> {
        match size {
            0 => Some(TreeHash::empty()),
            _ => self.hash(&(0..size)),
        }
    }
}

/// The right edge of a tree: all that is needed to add leaves and to compute the root.
#[derive(Clone, Debug, Default)]
pub struct Edge {
    size: u64,
    /// The hashes of the last, partial tile of each level.
    partial: Vec<Vec<TreeHash>>,
    /// Full tiles that were completed.
    full: BTreeMap<TileId, Vec<TreeHash>>,
    /// The levels whose partial tile grew.
    grown: BTreeSet<u8>,
}

impl Edge {
    /// The partial tiles of a tree of this size.
    pub fn tiles(size: u64) -> Vec<TileId> {
        let mut hashes = size;
        let mut tiles = Vec::new();
        for level in 0.. {
            if hashes == 0 {
                break;
            }
            if !hashes.is_multiple_of(TILE_WIDTH as u64) {
                tiles.push(TileId {
                    level,
                    n: hashes / TILE_WIDTH as u64,
                });
            }
            hashes /= TILE_WIDTH as u64;
        }
        tiles
    }

    /// The edge of a tree of this size; `None` if one of [`Self::tiles`] is missing or too short.
    pub fn at(size: u64, tiles: &Tiles) -> Option<Self> {
        let mut edge = Self {
            size,
            ..Self::default()
        };
        for id in Self::tiles(size) {
            let hashes = tiles.0.get(&id)?.get(..id.width_in(size))?;
            edge.level(id.level).extend_from_slice(hashes);
        }
        Some(edge)
    }

    fn level(&mut self, level: u8) -> &mut Vec<TreeHash> {
        let place = usize::from(level);
        if self.partial.len() <= place {
            self.partial.resize_with(place + 1, Vec::new);
        }
        &mut self.partial[place]
    }

    /// The number of leaves.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf.
    pub fn push(&mut self, leaf: TreeHash) {
        self.size += 1;
        let mut hashes = self.size;
        let mut hash = leaf;
        for level in 0..=LEVEL_MAX {
            let partial = self.level(level);
            partial.push(hash);
            if partial.len() < TILE_WIDTH {
                self.grown.insert(level);
                return;
            }
            let tile = std::mem::take(partial);
            hashes /= TILE_WIDTH as u64;
            self.grown.remove(&level);
            let root = complete(&tile);
            let n = hashes.saturating_sub(1);
            self.full.insert(TileId { level, n }, tile);
            let Some(root) = root else { return };
            hash = root;
        }
    }

    /// The root of the tree.
    pub fn root(&self) -> TreeHash {
        let mut subtrees = Vec::new();
        for partial in &self.partial {
            let mut end = partial.len();
            for bit in 0..TILE_HEIGHT {
                let width = 1 << bit;
                if partial.len() & width > 0 {
                    subtrees.extend(complete(&partial[end - width..end]));
                    end -= width;
                }
            }
        }
        fold(subtrees).unwrap_or_else(TreeHash::empty)
    }

    /// The tiles that were completed or grew since the last call, as they are served.
    pub fn take_changed(&mut self) -> BTreeMap<TileId, Vec<u8>> {
        let bytes = |hashes: &[TreeHash]| hashes.iter().flat_map(|hash| hash.0).collect();
        let mut changed: BTreeMap<TileId, Vec<u8>> = std::mem::take(&mut self.full)
            .into_iter()
            .map(|(id, hashes)| (id, bytes(&hashes)))
            .collect();
        for id in Self::tiles(self.size) {
            if self.grown.contains(&id.level)
                && let Some(partial) = self.partial.get(usize::from(id.level))
            {
                changed.insert(id, bytes(partial));
            }
        }
        self.grown.clear();
        changed
    }
}
