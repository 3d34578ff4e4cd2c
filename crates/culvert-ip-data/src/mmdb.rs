//! MMDB files (the MaxMind DB file format specification, version 2.0).
//!
//! The lookup library trusts its file: it panics if the tree points outside of the file, and recurses without
//! end if pointers form a cycle. The whole file is therefore validated first: every record of the tree, and
//! every value that a record points to. A validated file is finite, self-contained, and cheap to read.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use maxminddb::Reader;
use serde::de::{Deserialize, Deserializer, Visitor};

use super::flat::{Flat, Found, Networks};
use super::{IpField, IpFields};

/// Maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Number of bytes between the tree and the data.
const SEPARATOR: usize = 16;
const METADATA_MARKER: &[u8] = b"\xab\xcd\xefMaxMind.com";
/// Maximum nesting of values, including pointers.
const DEPTH_MAX: usize = 16;
/// Maximum number of values of a record, each counted once per reference.
const VALUES_MAX: u64 = 4096;

/// A validated database.
#[derive(Debug)]
pub(crate) struct Database {
    reader: Reader<Vec<u8>>,
    /// The fields that at least one record has.
    held: IpFields,
    /// The column of each field in the lookup table, by field number.
    columns: [Option<usize>; IpField::ALL.len()],
    flat: Option<Flat>,
}

/// A value that is not a list or a map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'d> {
    /// Text.
    Text(&'d str),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// A boolean.
    Bool(bool),
}

impl Database {
    /// Reads a file. The error completes a sentence that begins with the path.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("cannot be read: {error}");
        if std::fs::metadata(path).map_err(cannot)?.len() > FILE_BYTES_MAX {
            return Err(format!("is larger than {} MiB", FILE_BYTES_MAX >> 20));
        }
        Self::of(std::fs::read(path).map_err(cannot)?)
    }

    pub(crate) fn of(bytes: Vec<u8>) -> Result<Self, String> {
        let damaged = |why: &str| format!("is not a valid MMDB file: {why}");
        let (records, networks) = check(&bytes).map_err(damaged)?;
        let reader = Reader::from_source(bytes).map_err(|error| damaged(&error.to_string()))?;
        let mut database = Self {
            reader,
            held: IpFields::default(),
            columns: [None; IpField::ALL.len()],
            flat: None,
        };
        database.look_for_fields(&records);
        if let Some(networks) = networks {
            database.lay_out(&records, networks);
        }
        Ok(database)
    }

    /// Records which fields exist, from an address of each record.
    fn look_for_fields(&mut self, records: &[IpAddr]) {
        let has_place = |field: &IpField| field.path().is_some();
        let mut wanted: Vec<_> = IpField::ALL.into_iter().filter(has_place).collect();
        let mut held = IpFields::default();
        for address in records {
            wanted.retain(|field| {
                let has = self.walk(*address, *field).is_some();
                if has {
                    held.insert(*field);
                }
                !has
            });
            if wanted.is_empty() {
                break;
            }
        }
        self.held = held;
    }

    /// Builds the lookup table, unless it would be too large.
    fn lay_out(&mut self, records: &[IpAddr], networks: Networks) {
        let held: Vec<IpField> = self.held.iter().collect();
        for (column, field) in held.iter().enumerate() {
            if let Some(place) = self.columns.get_mut(*field as usize) {
                *place = Some(column);
            }
        }
        let field =
            |record: usize, column: usize| self.walk(*records.get(record)?, *held.get(column)?);
        let flat = Flat::new(networks, records.len(), held.len(), field);
        if flat.is_none() {
            tracing::warn!(
                "a database of addresses is too large for lookup tables; lookups are slower"
            );
        }
        self.flat = flat;
    }

    /// Whether any record has the field.
    pub(crate) fn holds(&self, field: IpField) -> bool {
        self.held.contains(field)
    }

    /// A field of the record of an address. An IPv4 database has none for IPv6 addresses.
    pub(crate) fn get(&self, address: IpAddr, field: IpField) -> Option<Scalar<'_>> {
        let Some(flat) = &self.flat else {
            return self.walk(address, field);
        };
        let column = (*self.columns.get(field as usize)?)?;
        match flat.find(address) {
            Found::Nothing => None,
            Found::Record(record) => flat.get(record, column),
            Found::InTree => self.walk(address, field),
        }
    }

    /// As [`Self::get`], but walks the tree of the file.
    pub(crate) fn walk(&self, address: IpAddr, field: IpField) -> Option<Scalar<'_>> {
        let found = self.reader.lookup(address).ok()?;
        found.decode_path(field.path()?).ok()?
    }

    #[cfg(test)]
    pub(crate) fn flat(&self) -> Option<&Flat> {
        self.flat.as_ref()
    }
}

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfScalar;

        impl<'de> Visitor<'de> for OfScalar {
            type Value = Scalar<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number or a boolean")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(text))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(Scalar::Bool(value))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Scalar::Int(number))
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self::Value, E> {
                i64::try_from(number).map(Scalar::Int).map_err(E::custom)
            }

            fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
                Ok(Scalar::Double(number))
            }
        }

        deserializer.deserialize_any(OfScalar)
    }
}

/// Validates a whole file. Returns an address of each record, to look it up by, and the networks with their
/// record numbers unless there are too many.
fn check(file: &[u8]) -> Result<(Vec<IpAddr>, Option<Networks>), &'static str> {
    let marker = memchr::memmem::rfind(file, METADATA_MARKER).ok_or("it has no metadata")?;
    let (body, metadata) = file.split_at(marker);
    let metadata = metadata.get(METADATA_MARKER.len()..).unwrap_or_default();
    let tree = Tree::of(body, metadata)?;
    let mut records = tree.records()?;
    // Sorts equal values together; the first of each is kept.
    records.sort_unstable_by_key(|(at, _)| *at);
    records.dedup_by_key(|(at, _)| *at);
    let mut values = Values::new(tree.data);
    for (at, _) in &records {
        if values.check(*at, 0)?.1 > VALUES_MAX {
            return Err("a record has too many values");
        }
    }
    let (places, addresses): (Vec<usize>, Vec<IpAddr>) = records.into_iter().unzip();
    Ok((addresses, Networks::of(&tree, &places)))
}

/// The search tree of a file.
pub(crate) struct Tree<'f> {
    nodes: &'f [u8],
    data: &'f [u8],
    node_count: usize,
    /// Bytes per node.
    node_bytes: usize,
    is_v6: bool,
}

impl<'f> Tree<'f> {
    fn of(body: &'f [u8], metadata: &[u8]) -> Result<Self, &'static str> {
        let mut values = Values::new(metadata);
        values.check(0, 0)?;
        let number = |key| values.number(key).ok_or("its metadata is incomplete");
        let (node_count, bits) = (number("node_count")?, number("record_size")?);
        if number("binary_format_major_version")? != 2 {
            return Err("its version is not supported");
        }
        let node_bytes = match bits {
            24 => 6,
            28 => 7,
            32 => 8,
            _ => return Err("the size of its records is not 24, 28 or 32"),
        };
        let is_v6 = match number("ip_version")? {
            4 => false,
            6 => true,
            _ => return Err("its IP version is neither 4 nor 6"),
        };
        let node_count = usize::try_from(node_count).ok().filter(|count| *count > 0);
        let node_count = node_count.ok_or("it has no nodes")?;
        let bytes = node_count.checked_mul(node_bytes);
        let split = bytes.and_then(|bytes| body.split_at_checked(bytes));
        let (nodes, rest) = split.ok_or("its tree is longer than the file")?;
        let data = match rest.split_at_checked(SEPARATOR) {
            Some((zeros, data)) if zeros.iter().all(|byte| *byte == 0) => data,
            _ => return Err("the separator between its tree and its data is missing"),
        };
        Ok(Self {
            nodes,
            data,
            node_count,
            node_bytes,
            is_v6,
        })
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.is_v6
    }

    /// The number of nodes. A record with this number points to nothing, a lower one to a node, a higher one
    /// to data.
    pub(crate) fn node_count(&self) -> usize {
        self.node_count
    }

    /// The offset in the data section that a record points to.
    pub(crate) fn data_offset(&self, record: usize) -> Option<usize> {
        let at = (record.checked_sub(self.node_count)?).checked_sub(SEPARATOR)?;
        (at < self.data.len()).then_some(at)
    }

    /// Both records of a node.
    pub(crate) fn node(&self, index: usize) -> Option<[usize; 2]> {
        let begin = index.checked_mul(self.node_bytes)?;
        let node = self.nodes.get(begin..begin.checked_add(self.node_bytes)?)?;
        let number = |bytes: &[u8], high: u8| {
            let bytes = bytes.iter();
            bytes.fold(usize::from(high), |sum, byte| sum << 8 | usize::from(*byte))
        };
        Some(match node {
            [a @ .., d, e, f] if a.len() == 3 => [number(a, 0), number(&[*d, *e, *f], 0)],
            [a, b, c, middle, d, e, f] => [
                number(&[*a, *b, *c], middle >> 4),
                number(&[*d, *e, *f], middle & 15),
            ],
            [a @ .., e, f, g, h] if a.len() == 4 => [number(a, 0), number(&[*e, *f, *g, *h], 0)],
            _ => return None,
        })
    }

    /// Every value that the tree points to, each with one address, in no order. A node with two parents, such
    /// as an alias of IPv4, is visited once.
    fn records(&self) -> Result<Vec<(usize, IpAddr)>, &'static str> {
        let mut seen = vec![false; self.node_count];
        let mut found = Vec::new();
        // A node, the bits of its path, and the number of these bits.
        let mut open: Vec<(usize, u128, u32)> = vec![(0, 0, 0)];
        let bits = if self.is_v6 { 128 } else { 32 };
        while let Some((index, path, depth)) = open.pop() {
            let seen = seen.get_mut(index);
            if seen.is_none_or(|seen| std::mem::replace(seen, true)) {
                continue;
            }
            if depth >= bits {
                return Err("its tree is deeper than an address has bits");
            }
            let node = self.node(index).ok_or("its tree exceeds the file")?;
            for (bit, record) in node.into_iter().enumerate() {
                let path = path | (bit as u128) << (bits - 1 - depth);
                if record < self.node_count {
                    open.push((record, path, depth + 1));
                } else if record > self.node_count {
                    let at = self.data_offset(record);
                    found.push((
                        at.ok_or("its tree points outside of its data")?,
                        self.address(path),
                    ));
                }
            }
        }
        // Nodes that no address reaches are not checked, because no lookup reads them.
        Ok(found)
    }

    fn address(&self, path: u128) -> IpAddr {
        match (self.is_v6, u32::try_from(path)) {
            (false, Ok(path)) | (true, Ok(path)) => IpAddr::V4(path.into()),
            (_, Err(_)) => IpAddr::V6(path.into()),
        }
    }
}

/// The values of a section. Pointers refer to them by offset.
struct Values<'f> {
    section: &'f [u8],
    /// Values that pointers refer to, with the number of values that each counts for.
    known: HashMap<usize, u64>,
    /// How many more values may be visited, which bounds the time for any file.
    left: u64,
}

/// The head of a value: its type, its length, and the offset of its content.
struct Head {
    kind: u8,
    size: usize,
    behind: usize,
}

const POINTER: u8 = 1;
const TEXT: u8 = 2;
const MAP: u8 = 7;
const ARRAY: u8 = 11;
const BOOL: u8 = 14;

impl<'f> Values<'f> {
    fn new(section: &'f [u8]) -> Self {
        Self {
            section,
            known: HashMap::new(),
            left: 16 * section.len() as u64 + 4096,
        }
    }

    fn byte(&self, at: usize) -> Result<usize, &'static str> {
        let byte = self.section.get(at).ok_or("a value exceeds the file")?;
        Ok(usize::from(*byte))
    }

    /// Reads the head of a value. For a pointer, `size` is its target.
    fn head(&self, at: usize) -> Result<Head, &'static str> {
        let control = self.byte(at)?;
        let mut behind = at + 1;
        let mut kind = control >> 5;
        if kind == usize::from(POINTER) {
            let length = (control >> 3 & 3) + 1;
            let high = control & 7;
            let base = [0, 2048, 526_336, 0];
            let base = base.get(length - 1).copied().unwrap_or_default();
            // In the longest form, the bits are all in the bytes that follow. The library reads other forms
            // differently.
            if length == 4 && high != 0 {
                return Err("the encoding of a pointer is invalid");
            }
            let mut to = high;
            for _ in 0..length {
                to = to << 8 | self.byte(behind)?;
                behind += 1;
            }
            return Ok(Head {
                kind: POINTER,
                size: to + base,
                behind,
            });
        }
        if kind == 0 {
            kind = self.byte(behind)? + 7;
            behind += 1;
        }
        let mut size = control & 31;
        let (more, base) = match size {
            29 => (1, 29),
            30 => (2, 285),
            31 => (3, 65_821),
            _ => (0, size),
        };
        if more > 0 {
            size = 0;
            for _ in 0..more {
                size = size << 8 | self.byte(behind)?;
                behind += 1;
            }
            size += base;
        }
        Ok(Head {
            kind: u8::try_from(kind).map_err(|_| "a value has an unknown type")?,
            size,
            behind,
        })
    }

    /// Validates a value and everything in it. Returns where it ends, and how many values it counts for.
    fn check(&mut self, at: usize, depth: usize) -> Result<(usize, u64), &'static str> {
        if depth > DEPTH_MAX {
            return Err("its values are nested too deeply, or form a cycle");
        }
        self.left = self
            .left
            .checked_sub(1)
            .ok_or("its values take too long to read")?;
        let head = self.head(at)?;
        let (size, behind) = (head.size, head.behind);
        let is_fit = match head.kind {
            POINTER => {
                if let Some(count) = self.known.get(&size) {
                    return Ok((behind, *count));
                }
                if self.head(size)?.kind == POINTER {
                    return Err("a pointer points to a pointer");
                }
                let (_, count) = self.check(size, depth + 1)?;
                self.known.insert(size, count);
                return Ok((behind, count));
            }
            MAP | ARRAY => return self.members(&head, depth),
            BOOL if size <= 1 => return Ok((behind, 1)),
            TEXT => {
                let text = self.section.get(behind..behind.saturating_add(size));
                let text = text.ok_or("a text exceeds the file")?;
                std::str::from_utf8(text).map_err(|_| "a text is not UTF-8")?;
                true
            }
            // Doubles, bytes, integers of 16, 32, 64 and 128 bits, floats.
            3 => size == 8,
            4 => true,
            5 => size <= 2,
            6 | 8 => size <= 4,
            9 => size <= 8,
            10 => size <= 16,
            15 => size == 4,
            _ => return Err("a value has an unknown type"),
        };
        let end = behind
            .checked_add(size)
            .filter(|end| *end <= self.section.len());
        match end {
            Some(end) if is_fit => Ok((end, 1)),
            Some(_) => Err("a value has a wrong length"),
            None => Err("a value exceeds the file"),
        }
    }

    fn members(&mut self, head: &Head, depth: usize) -> Result<(usize, u64), &'static str> {
        let (mut at, mut count) = (head.behind, 1_u64);
        for _ in 0..head.size {
            if head.kind == MAP {
                let key = self.head(at)?;
                let kind = match key.kind {
                    POINTER => self.head(key.size)?.kind,
                    kind => kind,
                };
                if kind != TEXT {
                    return Err("a key is not a text");
                }
                at = self.check(at, depth + 1)?.0;
                count += 1;
            }
            let (end, more) = self.check(at, depth + 1)?;
            at = end;
            count += more;
            if count > VALUES_MAX {
                return Err("a record has too many values");
            }
        }
        Ok((at, count))
    }

    /// An integer in the map at the start of the section, which has been validated.
    fn number(&self, wanted: &str) -> Option<u64> {
        let map = self.head(0).ok().filter(|head| head.kind == MAP)?;
        let (mut at, mut found) = (map.behind, None);
        for _ in 0..map.size {
            let key = self.text(at)?;
            at = self.end(at)?;
            if key == wanted.as_bytes() {
                let value = self.head(at).ok()?;
                let is_number = matches!(value.kind, 5 | 6 | 9);
                let bytes = self.section.get(value.behind..value.behind + value.size)?;
                let bytes = bytes.iter();
                let number = bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                // Duplicates are rejected, because the library might use the other one.
                if !is_number || found.replace(number).is_some() {
                    return None;
                }
            }
            at = self.end(at)?;
        }
        found
    }

    fn text(&self, at: usize) -> Option<&'f [u8]> {
        let mut head = self.head(at).ok()?;
        if head.kind == POINTER {
            head = self.head(head.size).ok()?;
        }
        self.section
            .get(head.behind..head.behind.checked_add(head.size)?)
    }

    /// The end of a validated value.
    fn end(&self, at: usize) -> Option<usize> {
        let head = self.head(at).ok()?;
        match head.kind {
            POINTER | BOOL => Some(head.behind),
            MAP | ARRAY => {
                let members = head.size * if head.kind == MAP { 2 } else { 1 };
                (0..members).try_fold(head.behind, |at, _| self.end(at))
            }
            _ => head.behind.checked_add(head.size),
        }
    }
}
