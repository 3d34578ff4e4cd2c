//! Lookup tables of a database: its networks as sorted ranges, and the fields of its records as a table.
//!
//! In the file, a lookup takes a step per bit of the address, and its value is found by comparing names. That
//! is too slow for requests, so both are converted when the file is read. A lookup then takes a few steps
//! through an index over the bits of the address, a binary search among at most 32 ranges, and two table
//! reads.
//!
//! A range takes 8 bytes for IPv4 and 12 for IPv6, and up to 8 bytes of index. A record takes 4 bytes for
//! each field that any record has; each distinct text or number is stored once. The time of a lookup is that of
//! its reads from memory, so tables are small, and a cell refers to its text without a table between them.
//! Databases above [`RANGES_MAX`] or [`CELLS_MAX`] are not converted: their lookups walk the tree.

use std::collections::HashMap;
use std::net::IpAddr;

use super::mmdb::{Scalar, Tree};

/// Maximum number of ranges per IP version: 64 and 96 MiB, and at most 64 MiB of index.
pub(crate) const RANGES_MAX: usize = 8 << 20;
/// Maximum number of fields in all records: 128 MiB.
pub(crate) const CELLS_MAX: usize = 32 << 20;
/// Maximum number of visited nodes per range, which bounds the time for any file.
const STEPS_PER_RANGE: usize = 8;
/// The contents of a range: nothing, a record number plus one, or a reference to the tree.
const NOTHING: u32 = 0;
const IN_TREE: u32 = u32::MAX;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Record(usize),
    /// The record must be read from the tree.
    InTree,
}

/// The first 64 bits of an IPv6 address. Two words, so that a range has no padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix([u32; 2]);

impl From<u64> for Prefix {
    fn from(bits: u64) -> Self {
        Self([(bits >> 32) as u32, bits as u32])
    }
}

impl From<Prefix> for u64 {
    fn from(Prefix([high, low]): Prefix) -> Self {
        Self::from(high) << 32 | Self::from(low)
    }
}

/// Ranges of addresses, each up to the start of the next one. The first starts at zero.
#[derive(Debug)]
struct Ranges<K> {
    /// The start and the contents of each range.
    ranges: Vec<(K, u32)>,
    index: Index,
}

impl<K: Copy + Ord + Into<u64>> Ranges<K> {
    fn new(ranges: Vec<(K, u32)>) -> Self {
        let index = Index::new(&ranges);
        Self { ranges, index }
    }

    /// The contents of the range of an address.
    fn find(&self, address: K) -> u32 {
        let among = match self.index.find(address.into()) {
            SearchRange::Among { from, count } => {
                let behind = self.ranges.get(from..).unwrap_or_default();
                behind.get(..count).unwrap_or(behind)
            }
            SearchRange::Anywhere => &self.ranges,
        };
        let behind = among.partition_point(|(start, _)| *start <= address);
        let range = among.get(behind.wrapping_sub(1));
        range.map_or(NOTHING, |(_, found)| *found)
    }
}

/// Number of ranges that are searched without an index node; a few memory reads fetch them.
const NEAR_MAX: usize = 32;
/// Binary logarithm of the maximum number of parts of a node.
const PARTS_BITS_MAX: u32 = 20;
/// Number of words that the index of a small table may have beyond two for each range.
const SPARE_WORDS: usize = 2 << 16;
/// Number of words in a node before its slots.
const HEAD: usize = 4;
/// Flags of a slot in the index.
const IS_NODE: u32 = 1 << 31;
const IS_ANYWHERE: u32 = 1 << 30;

/// Where to search for the range of an address.
enum SearchRange {
    /// Among ranges from this number on, at most [`NEAR_MAX`].
    Among { from: usize, count: usize },
    /// Among all ranges, because the index was full.
    Anywhere,
}

/// An index of the starts of ranges. It is a tree whose nodes divide the span of their starts, except for a
/// few at either end, into more parts where there are more ranges. Dense networks therefore take as few reads
/// as others.
///
/// A node consists of four words (its shift, its number of parts, and the start of its first part), a slot
/// for each part, and the number of its last range. Addresses below the first part count as in the first, and
/// those above the last part as in the last.
#[derive(Debug)]
struct Index(Vec<u32>);

impl Index {
    fn new<K: Copy + Into<u64>>(ranges: &[(K, u32)]) -> Self {
        let starts: Vec<u64> = ranges.iter().map(|(start, _)| (*start).into()).collect();
        let mut index = Self(Vec::new());
        index.divide(&starts, 0, 2 * starts.len() + SPARE_WORDS);
        index.0.shrink_to_fit();
        index
    }

    /// Builds the slot for ranges with these starts, the first of which has the number `from`. Many ranges
    /// get a node.
    fn divide(&mut self, starts: &[u64], from: usize, words_max: usize) -> u32 {
        // Ignores the few at either end, which may be far from the others.
        let few = (starts.len() / 64).max(1);
        let (base, last) = (starts.get(few), starts.iter().nth_back(few));
        let (Some(&base), Some(&last), NEAR_MAX..) = (base, last, starts.len() - 1) else {
            return from as u32;
        };
        let span = last - base;
        let parts_bits = usize::BITS - (starts.len() / 4).leading_zeros();
        let span_bits = u64::BITS - span.leading_zeros();
        let shift = span_bits.saturating_sub(parts_bits.min(PARTS_BITS_MAX));
        let parts = (span >> shift) as usize + 1;
        let node = self.0.len();
        if node + HEAD + parts + 1 > words_max {
            return IS_ANYWHERE;
        }
        self.0
            .extend([shift, parts as u32, (base >> 32) as u32, base as u32]);
        self.0.resize(node + HEAD + parts, 0);
        self.0.push((from + starts.len() - 1) as u32);
        for part in 0..parts {
            // From the last range that starts at or before the part, to the last one that starts in it.
            let begin = base + ((part as u64) << shift);
            let first = match part {
                0 => 0,
                _ => starts.partition_point(|start| *start <= begin) - 1,
            };
            let part_of = |start: u64| {
                let part = (start.saturating_sub(base) >> shift) as usize;
                part.min(parts - 1)
            };
            let behind = starts.partition_point(|start| part_of(*start) <= part);
            let place = self.divide(&starts[first..behind], from + first, words_max);
            self.0[node + HEAD + part] = place;
        }
        node as u32 | IS_NODE
    }

    /// Where to search for an address. Terminates, because child nodes have higher offsets than their
    /// parents.
    fn find(&self, address: u64) -> SearchRange {
        let mut node = 0;
        loop {
            let head = self.0.get(node..).and_then(<[u32]>::first_chunk);
            let Some(&[shift, parts, high, low]) = head else {
                return SearchRange::Anywhere;
            };
            let base = u64::from(high) << 32 | u64::from(low);
            let part = (address.saturating_sub(base) >> shift).min(u64::from(parts) - 1);
            let place = self.0.get(node + HEAD + part as usize..);
            let Some(&[place, next]) = place.and_then(<[u32]>::first_chunk) else {
                return SearchRange::Anywhere;
            };
            if place & IS_NODE > 0 {
                node = (place & !IS_NODE) as usize;
                continue;
            }
            if place & IS_ANYWHERE > 0 {
                return SearchRange::Anywhere;
            }
            // Up to the first range of the next part, if this node has it.
            let count = next.saturating_sub(place).saturating_add(1);
            return SearchRange::Among {
                from: place as usize,
                count: NEAR_MAX.min(count as usize),
            };
        }
    }
}

/// The flag of a cell with the place of a text in [`Flat::texts`].
const IS_TEXT: u32 = 1 << 31;
/// A text in [`Flat::texts`] follows two characters with seven bits of its length each. Longer ones are in
/// [`Flat::kept`].
const SHORT_MAX: usize = (1 << 14) - 1;

/// A number or a long text of a record.
#[derive(Clone, Copy, Debug)]
enum StoredValue {
    Text(u32, u32),
    Int(i64),
    Double(f64),
    Bool(bool),
}

/// The lookup tables of a database.
#[derive(Debug)]
pub(crate) struct Flat {
    v4: Ranges<u32>,
    v6: Option<Ranges<Prefix>>,
    columns: usize,
    /// By record and field: the place of a text with [`IS_TEXT`], the index of another value plus one, or 0 for
    /// none.
    cells: Vec<u32>,
    kept: Vec<StoredValue>,
    texts: String,
}

impl Flat {
    /// Builds the tables of the networks, and of the fields of their records. `field` takes the number of a
    /// record and of a field. Records are offsets in the file, ascending. `None` if the tables would be too
    /// large.
    pub(crate) fn new<'d>(
        networks: Networks,
        records: usize,
        columns: usize,
        mut field: impl FnMut(usize, usize) -> Option<Scalar<'d>>,
    ) -> Option<Self> {
        let mut flat = Self {
            v4: Ranges::new(networks.v4),
            v6: networks.v6.map(Ranges::new),
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
                let (key, value) = match scalar {
                    Scalar::Text(text) => {
                        let cell = match known_texts.get(text) {
                            Some(cell) => *cell,
                            None => flat.keep_text(text)?,
                        };
                        known_texts.insert(text, cell);
                        flat.cells.push(cell);
                        continue;
                    }
                    Scalar::Int(number) => ((0, number as u64), StoredValue::Int(number)),
                    Scalar::Double(number) => ((1, number.to_bits()), StoredValue::Double(number)),
                    Scalar::Bool(value) => ((2, value.into()), StoredValue::Bool(value)),
                };
                let cell = match known_numbers.get(&key) {
                    Some(cell) => *cell,
                    None => flat.keep(value)?,
                };
                known_numbers.insert(key, cell);
                flat.cells.push(cell);
            }
        }
        flat.kept.shrink_to_fit();
        flat.texts.shrink_to_fit();
        Some(flat)
    }

    /// Stores a value and returns its cell. `None` if there are too many.
    fn keep(&mut self, value: StoredValue) -> Option<u32> {
        self.kept.push(value);
        let cell = u32::try_from(self.kept.len()).ok()?;
        (cell & IS_TEXT == 0).then_some(cell)
    }

    /// Stores a text and returns its cell. `None` if there are too many.
    fn keep_text(&mut self, text: &str) -> Option<u32> {
        let from = u32::try_from(self.texts.len()).ok()?;
        if text.len() > SHORT_MAX || from & IS_TEXT > 0 {
            self.texts.push_str(text);
            let to = u32::try_from(self.texts.len()).ok()?;
            return self.keep(StoredValue::Text(from, to));
        }
        for bits in [text.len() & 0x7f, text.len() >> 7] {
            self.texts.push(char::from(bits as u8));
        }
        self.texts.push_str(text);
        Some(from | IS_TEXT)
    }

    /// The starts of the ranges.
    #[cfg(test)]
    pub(crate) fn starts(&self) -> Vec<IpAddr> {
        let v4 = self.v4.ranges.iter();
        let v4 = v4.map(|(start, _)| IpAddr::V4((*start).into()));
        let v6 = self.v6.iter().flat_map(|v6| &v6.ranges);
        let v6 = v6.map(|(start, _)| IpAddr::V6((u128::from(u64::from(*start)) << 64).into()));
        v4.chain(v6).collect()
    }

    /// Looks an address up. An IPv4 database has nothing for IPv6 addresses.
    pub(crate) fn find(&self, address: IpAddr) -> Found {
        let found = match (address, &self.v6) {
            (IpAddr::V4(address), _) => self.v4.find(address.into()),
            (IpAddr::V6(address), Some(v6)) => v6.find(((u128::from(address) >> 64) as u64).into()),
            (IpAddr::V6(_), None) => NOTHING,
        };
        match found {
            NOTHING => Found::Nothing,
            IN_TREE => Found::InTree,
            record => Found::Record(record as usize - 1),
        }
    }

    /// A field of a record.
    pub(crate) fn get(&self, record: usize, column: usize) -> Option<Scalar<'_>> {
        let cell = *self.cells.get(record * self.columns + column)?;
        if cell & IS_TEXT > 0 {
            let from = (cell & !IS_TEXT) as usize;
            let &[low, high] = self.texts.as_bytes().get(from..)?.first_chunk()?;
            let from = from + 2;
            let length = usize::from(low) | usize::from(high) << 7;
            return Some(Scalar::Text(self.texts.get(from..from + length)?));
        }
        let kept = self.kept.get((cell as usize).checked_sub(1)?)?;
        Some(match *kept {
            StoredValue::Text(from, to) => {
                Scalar::Text(self.texts.get(from as usize..to as usize)?)
            }
            StoredValue::Int(number) => Scalar::Int(number),
            StoredValue::Double(number) => Scalar::Double(number),
            StoredValue::Bool(value) => Scalar::Bool(value),
        })
    }
}

/// The networks of a tree, in ascending order.
#[derive(Debug)]
pub(crate) struct Networks {
    v4: Vec<(u32, u32)>,
    v6: Option<Vec<(Prefix, u32)>>,
}

impl Networks {
    /// The networks of a tree whose records have these offsets in its data, ascending. `None` if there are
    /// too many.
    pub(crate) fn of(tree: &Tree<'_>, places: &[usize]) -> Option<Self> {
        let number = |record: usize| -> Option<u32> {
            let at = tree.data_offset(record)?;
            u32::try_from(places.binary_search(&at).ok()? + 1).ok()
        };
        if !tree.is_v6() {
            return Some(Self {
                v4: walk(tree, 0, 32, None, number)?,
                v6: None,
            });
        }
        // IPv4 is below 96 zero bits. Other paths to it are aliases, which are not converted again.
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

/// The ranges below a node, by the first `bits` bits of the address. Longer networks, and the subtree
/// `alias`, are left to the tree.
fn walk<K: TryFrom<u64>>(
    tree: &Tree<'_>,
    root: usize,
    bits: u32,
    alias: Option<usize>,
    number: impl Fn(usize) -> Option<u32>,
) -> Option<Vec<(K, u32)>> {
    let mut ranges: Vec<(K, u32)> = Vec::new();
    let mut steps = 0;
    // The contents, the bits of the path, and the number of these bits. The next one in order is on top.
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

#[cfg(test)]
mod tests {
    use culvert_base::{Entropy, SeededEntropy};

    use super::*;

    /// For any starts, the index finds the same range as a search of all ranges.
    #[test]
    fn the_index_finds_the_results_of_a_linear_search() {
        let entropy = SeededEntropy::new(3);
        let entropy: &dyn Entropy = &entropy;
        let random = || u64::from_le_bytes(entropy.bytes());
        let spread = (0..5_000).map(|_| random());
        let networks = (0..5_000).map(|_| 0x2a << 56 | (random() >> 32) << 24);
        // Groups of fifty neighbours, far from all others.
        let clusters = (0..1_000).map(|_| random() >> 8 << 8);
        let clusters = clusters.flat_map(|base| (0..50).map(move |nth| base | nth));
        // Each divides the rest in half, so that each node splits off one or two ranges and the index becomes
        // full.
        let halves = (0..2_000).flat_map(|_| {
            let base = random() >> 48 << 48;
            (0..48).map(move |bits| base | 1 << bits)
        });
        let ends = [1, 2, u64::MAX - 1, u64::MAX].into_iter();
        let shapes: [(&str, Vec<u64>); 6] = [
            ("nothing", Vec::new()),
            ("ends", ends.collect()),
            ("spread", spread.collect()),
            ("networks", networks.collect()),
            ("clusters", clusters.collect()),
            ("halves", halves.collect()),
        ];
        for (name, mut starts) in shapes {
            starts.push(0);
            starts.sort_unstable();
            starts.dedup();
            let numbered = starts.iter().zip(1..);
            let numbered = numbered.map(|(start, nth)| (Prefix::from(*start), nth));
            let ranges: Ranges<Prefix> = Ranges::new(numbered.collect());
            let words = ranges.index.0.len();
            assert!(words <= 2 * starts.len() + SPARE_WORDS, "{name}");
            let near = |start: &u64| [start.wrapping_sub(1), *start, start.wrapping_add(1)];
            let known = starts.iter().flat_map(near);
            for address in known.chain((0..20_000).map(|_| random())) {
                let expected = starts.partition_point(|start| *start <= address);
                let found = ranges.find(address.into());
                assert_eq!(found, expected as u32, "{name}: {address}");
            }
        }
    }

    #[test]
    fn strings_of_any_length_and_numbers_are_found() {
        assert_eq!(size_of::<(Prefix, u32)>(), 12);
        let lengths = [0, 1, 126, 127, 128, 129, SHORT_MAX - 1, SHORT_MAX];
        let lengths = lengths.into_iter().chain([SHORT_MAX + 1, 70_000]);
        let texts: Vec<String> = lengths
            .map(|length| "é".repeat(length / 2) + if length % 2 == 1 { "x" } else { "" })
            .collect();
        let networks = Networks {
            v4: vec![(0, 1)],
            v6: None,
        };
        let field = |record: usize, column: usize| match column {
            // Each text twice: it is stored once.
            0 => Some(Scalar::Text(&texts[record / 2])),
            1 => Some(Scalar::Int(-(record as i64))),
            2 => Some(Scalar::Double(0.5)),
            3 => Some(Scalar::Bool(record.is_multiple_of(2))),
            _ => None,
        };
        let records = 2 * texts.len();
        let flat = Flat::new(networks, records, 5, field).unwrap();
        let bytes: usize = texts.iter().map(String::len).sum();
        assert!(flat.texts.len() <= bytes + 2 * texts.len());
        for record in 0..records {
            for column in 0..5 {
                let (found, expected) = (flat.get(record, column), field(record, column));
                assert_eq!(found, expected, "{record} {column}");
            }
        }
    }
}
