//! The networks of a database as sorted ranges, and the fields of its records as a table: what a look-up reads.
//!
//! The tree of a file costs a step for each bit of an address, and a value in it is found by walking through names. A
//! request has no time for that, so both are laid out when the file is read: a look-up is one step by the first
//! sixteen bits, a binary search among the ranges that share them, and two places of tables.
//!
//! Ranges take 8 bytes for IPv4 and 16 for IPv6; a record takes 4 bytes for each field that some record has, and each
//! text or number is kept once. A GeoLite2-City with 4.5 million ranges and 200,000 records takes about 80 MB beside
//! its file. What would be larger than [`RANGES_MAX`] or [`CELLS_MAX`] is not laid out: look-ups then walk the tree.

use std::collections::HashMap;
use std::net::IpAddr;

use super::mmdb::{Scalar, Tree};

/// Ranges of one protocol: 64 and 128 MiB.
pub(super) const RANGES_MAX: usize = 8 << 20;
/// Fields of all records: 128 MiB.
pub(super) const CELLS_MAX: usize = 32 << 20;
/// Nodes that are looked at for each range at most, so that no file takes for ever.
const STEPS_PER_RANGE: usize = 8;
/// The first bits of an address, by which the search begins.
const FIRST_BITS: u32 = 16;
/// Fewer ranges have no table of first bits.
const SEARCHED_WHOLE: usize = 256;

/// What there is of a range: nothing, a record and one, or what the tree alone knows.
const NOTHING: u32 = 0;
const IN_TREE: u32 = u32::MAX;

/// What a range leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Record(usize),
    /// The tree has to be asked.
    InTree,
}

/// Ranges of addresses, each from its start to the next one's. The first one starts at zero.
#[derive(Debug)]
struct Ranges<K> {
    ranges: Vec<(K, u32)>,
    /// By the first bits of an address: the last range that starts at them or before.
    first: Vec<u32>,
    /// How far these bits are from the last ones.
    shift: u32,
}

impl<K: Copy + Ord + Into<u64>> Ranges<K> {
    /// `bits` is how many a start has.
    fn new(ranges: Vec<(K, u32)>, bits: u32) -> Self {
        // A small table is searched whole.
        let first_bits = match ranges.len() {
            0..SEARCHED_WHOLE => 0,
            _ => FIRST_BITS,
        };
        let shift = bits - first_bits;
        let mut first = Vec::with_capacity((1 << first_bits) + 1);
        let mut at = 0;
        for prefix in 0..1_u64 << first_bits {
            let start = prefix.checked_shl(shift).unwrap_or(0);
            let is_before = |(next, _): &(K, u32)| (*next).into() <= start;
            while ranges.get(at + 1).is_some_and(is_before) {
                at += 1;
            }
            first.push(at as u32);
        }
        first.push(ranges.len().saturating_sub(1) as u32);
        Self {
            ranges,
            first,
            shift,
        }
    }

    /// What the range of an address leads to.
    fn find(&self, address: K) -> u32 {
        let prefix = address.into().checked_shr(self.shift).unwrap_or(0) as usize;
        let bounds = self.first.get(prefix..).and_then(<[u32]>::first_chunk);
        let Some(&[from, to]) = bounds else {
            return NOTHING;
        };
        let among = self.ranges.get(from as usize..=to as usize);
        let among = among.unwrap_or_default();
        let behind = among.partition_point(|(start, _)| *start <= address);
        let range = among.get(behind.wrapping_sub(1));
        range.map_or(NOTHING, |(_, found)| *found)
    }
}

/// A text or number of a record.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Text(u32, u32),
    Int(i64),
    Double(f64),
    Bool(bool),
}

/// A database laid out.
#[derive(Debug)]
pub(super) struct Flat {
    v4: Ranges<u32>,
    v6: Option<Ranges<u64>>,
    columns: usize,
    /// By record and field: the place of what is kept, and one; 0 for nothing.
    cells: Vec<u32>,
    kept: Vec<Kept>,
    texts: String,
}

impl Flat {
    /// Lays the networks out, and the fields of the records by `field`, which takes the number of a record and of a
    /// field. Records are places in the file, ascending. `None` where that takes too much.
    pub(super) fn new<'d>(
        networks: Networks,
        records: usize,
        columns: usize,
        mut field: impl FnMut(usize, usize) -> Option<Scalar<'d>>,
    ) -> Option<Self> {
        let mut flat = Self {
            v4: Ranges::new(networks.v4, 32),
            v6: networks.v6.map(|ranges| Ranges::new(ranges, 64)),
            columns,
            cells: Vec::with_capacity(records.checked_mul(columns).filter(|it| *it <= CELLS_MAX)?),
            kept: Vec::new(),
            texts: String::new(),
        };
        let mut known_texts: HashMap<&str, u32> = HashMap::new();
        let mut known_numbers: HashMap<(u8, u64), u32> = HashMap::new();
        for record in 0..records {
            for column in 0..columns {
                let Some(scalar) = field(record, column) else {
                    flat.cells.push(0);
                    continue;
                };
                let next = u32::try_from(flat.kept.len() + 1).ok()?;
                let place = match scalar {
                    Scalar::Text(text) => known_texts.entry(text).or_insert(next),
                    Scalar::Int(number) => known_numbers.entry((0, number as u64)).or_insert(next),
                    Scalar::Double(number) => {
                        known_numbers.entry((1, number.to_bits())).or_insert(next)
                    }
                    Scalar::Bool(value) => known_numbers.entry((2, value.into())).or_insert(next),
                };
                flat.cells.push(*place);
                if *place == next {
                    flat.kept.push(match scalar {
                        Scalar::Text(text) => {
                            let from = u32::try_from(flat.texts.len()).ok()?;
                            flat.texts.push_str(text);
                            Kept::Text(from, u32::try_from(flat.texts.len()).ok()?)
                        }
                        Scalar::Int(number) => Kept::Int(number),
                        Scalar::Double(number) => Kept::Double(number),
                        Scalar::Bool(value) => Kept::Bool(value),
                    });
                }
            }
        }
        flat.kept.shrink_to_fit();
        flat.texts.shrink_to_fit();
        Some(flat)
    }

    /// The starts of its ranges.
    #[cfg(test)]
    pub(super) fn starts(&self) -> Vec<IpAddr> {
        let v4 = self
            .v4
            .ranges
            .iter()
            .map(|(start, _)| IpAddr::V4((*start).into()));
        let v6 = self.v6.iter().flat_map(|v6| &v6.ranges);
        let v6 = v6.map(|(start, _)| IpAddr::V6((u128::from(*start) << 64).into()));
        v4.chain(v6).collect()
    }

    /// What there is of an address. A database of IPv4 has nothing of IPv6.
    pub(super) fn find(&self, address: IpAddr) -> Found {
        let found = match (address, &self.v6) {
            (IpAddr::V4(address), _) => self.v4.find(address.into()),
            (IpAddr::V6(address), Some(v6)) => v6.find((u128::from(address) >> 64) as u64),
            (IpAddr::V6(_), None) => NOTHING,
        };
        match found {
            NOTHING => Found::Nothing,
            IN_TREE => Found::InTree,
            record => Found::Record(record as usize - 1),
        }
    }

    /// A field of a record.
    pub(super) fn get(&self, record: usize, column: usize) -> Option<Scalar<'_>> {
        let place = *self.cells.get(record * self.columns + column)?;
        let kept = self.kept.get((place as usize).checked_sub(1)?)?;
        Some(match *kept {
            Kept::Text(from, to) => Scalar::Text(self.texts.get(from as usize..to as usize)?),
            Kept::Int(number) => Scalar::Int(number),
            Kept::Double(number) => Scalar::Double(number),
            Kept::Bool(value) => Scalar::Bool(value),
        })
    }
}

/// The networks of a tree, in order.
#[derive(Debug)]
pub(super) struct Networks {
    v4: Vec<(u32, u32)>,
    v6: Option<Vec<(u64, u32)>>,
}

impl Networks {
    /// Those of a tree whose records are at these places of its data, ascending. `None` where they are too many.
    pub(super) fn of(tree: &Tree<'_>, places: &[usize]) -> Option<Self> {
        let number = |record: usize| -> Option<u32> {
            let at = tree.place(record)?;
            u32::try_from(places.binary_search(&at).ok()? + 1).ok()
        };
        if !tree.is_v6() {
            return Some(Self {
                v4: walk(tree, 0, 32, None, number)?,
                v6: None,
            });
        }
        // IPv4 is below 96 zeros. What leads there from elsewhere is an alias, and is not laid out again.
        let below = (0..96).try_fold(0, |index, _| match tree.node(index) {
            Some([zero, _]) if zero < tree.node_count() => Ok(zero),
            Some([zero, _]) => Err(Some(zero)),
            None => Err(None),
        });
        let (v4, root) = match below {
            Ok(root) => (walk(tree, root, 32, None, number)?, Some(root)),
            Err(Some(record)) if record == tree.node_count() => (vec![(0, NOTHING)], None),
            Err(Some(record)) => (vec![(0, number(record)?)], None),
            Err(None) => return None,
        };
        Some(Self {
            v4,
            v6: Some(walk(tree, 0, 64, root, number)?),
        })
    }
}

/// The ranges below a node, by the first `bits` bits of addresses. What is longer than those, and what leads to
/// `alias`, is for the tree to tell.
fn walk<K: TryFrom<u64>>(
    tree: &Tree<'_>,
    root: usize,
    bits: u32,
    alias: Option<usize>,
    number: impl Fn(usize) -> Option<u32>,
) -> Option<Vec<(K, u32)>> {
    let mut ranges: Vec<(K, u32)> = Vec::new();
    let mut steps = 0;
    // What there is, the bits that lead to it, and how many they are; what comes first is on top.
    let mut open: Vec<(usize, u64, u32)> = vec![(root, 0, 0)];
    while let Some((record, path, depth)) = open.pop() {
        steps += 1;
        if ranges.len() > RANGES_MAX || steps > STEPS_PER_RANGE * RANGES_MAX {
            return None;
        }
        let found = if record == tree.node_count() {
            NOTHING
        } else if record > tree.node_count() {
            number(record)?
        } else if depth == bits || Some(record) == alias {
            IN_TREE
        } else {
            let [zero, one] = tree.node(record)?;
            open.push((one, path | 1 << (bits - 1 - depth), depth + 1));
            open.push((zero, path, depth + 1));
            continue;
        };
        if ranges.last().is_none_or(|(_, last)| *last != found) {
            ranges.push((K::try_from(path).ok()?, found));
        }
    }
    ranges.shrink_to_fit();
    Some(ranges)
}
