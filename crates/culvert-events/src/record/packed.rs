//! Packs traffic events for retention: each event as its difference from the previous one.
//!
//! Consecutive events share most values. Comparing bytes costs a fraction of writing JSON and
//! compressing it. The JSON of an event is written when it is read.
//!
//! A segment has a number of events. Each is:
//!
//! ```text
//! u8 kind, u16 account, u16 endpoint     places in tables; a place one past the end of its table
//!                                        is followed by a new entry
//! u8 length, bytes                       the event's id
//! i64 nanoseconds
//! u64 fields that changed                since the event before of the same kind
//! { u8 tag, value }*                     for each of them, in the order of the kind's fields
//! ```
//!
//! Numbers are little-endian. An entry is `u16 length, bytes`; that of a kind also has its number of fields and their
//! paths, so that a program with other fields can read those it has. A reader trusts no stored number: each is checked
//! against the bytes that follow.
//!
//! Not here: how segments are stored (delivery).

use std::collections::HashMap;
use std::sync::Arc;

use culvert_base::Timestamp;

use crate::capture::Capture;
use crate::catalogue::kind::{EventKind, FIELDS_MAX};
use crate::kinds;
use crate::record::{Cell, Record};

/// The tags of values.
mod tag {
    pub(super) const UNSET: u8 = 0;
    pub(super) const NULL: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const TRUE: u8 = 3;
    pub(super) const INT: u8 = 4;
    pub(super) const TIME: u8 = 5;
    pub(super) const TEXT: u8 = 6;
    pub(super) const JSON: u8 = 7;
}

/// Maximum number of entries in a table.
const ENTRIES_MAX: usize = u16::MAX as usize;

/// A segment being written.
#[derive(Debug, Default)]
pub struct Packer {
    out: Vec<u8>,
    n_events: u32,
    value_bytes: usize,
    /// The last record of each kind.
    last: Vec<Record>,
    accounts: Names,
    endpoints: Names,
}

/// A table of names. Equal names at different addresses may have several places.
#[derive(Debug, Default)]
struct Names {
    names: Vec<Arc<str>>,
    places: HashMap<usize, u16>,
    last: usize,
}

impl Names {
    /// The place of a name, and whether it is new.
    fn place_of(&mut self, name: &Arc<str>) -> (u16, bool) {
        let is_last = |last: &Arc<str>| Arc::ptr_eq(last, name);
        if self.names.get(self.last).is_some_and(is_last) {
            return (u16::try_from(self.last).unwrap_or(u16::MAX), false);
        }
        // The table keeps the name, so its address remains its own.
        let address = Arc::as_ptr(name).cast::<u8>().addr();
        if let Some(place) = self.places.get(&address) {
            self.last = usize::from(*place);
            return (*place, false);
        }
        let place = u16::try_from(self.names.len()).unwrap_or(u16::MAX);
        self.last = self.names.len();
        self.names.push(Arc::clone(name));
        self.places.insert(address, place);
        (place, true)
    }

    fn is_full(&self) -> bool {
        self.names.len() >= ENTRIES_MAX
    }
}

impl Packer {
    /// Adds an event, unless [`Self::is_full`].
    ///
    /// `id` is UTF-8 of at most 255 bytes; `no_endpoint` stands for a missing endpoint.
    pub fn push(&mut self, id: &[u8], record: Record, no_endpoint: &Arc<str>) {
        let place = self.write(id, &record, no_endpoint);
        match self.last.get_mut(place) {
            Some(last) => *last = record,
            None => self.last.push(record),
        }
    }

    /// Like [`Self::push`], for a record that the caller keeps.
    pub fn push_copy(&mut self, id: &[u8], record: &Record, no_endpoint: &Arc<str>) {
        let place = self.write(id, record, no_endpoint);
        if place == self.last.len() {
            let account = Arc::clone(record.account());
            let last = Record::new(record.kind(), Capture::NONE, account);
            self.last.push(last);
        }
        self.last[place].copy_values(record);
    }

    /// Writes an event. Returns the place of its kind.
    fn write(&mut self, id: &[u8], record: &Record, no_endpoint: &Arc<str>) -> usize {
        let mut known = self.last.iter();
        let place = known
            .position(|last| last.kind() == record.kind())
            .unwrap_or(self.last.len());
        self.out.push(u8::try_from(place).unwrap_or(u8::MAX));
        if place == self.last.len() {
            push_kind(&mut self.out, record.kind());
        }
        push_name(&mut self.out, &mut self.accounts, record.account());
        let endpoint = record.endpoint().unwrap_or(no_endpoint);
        push_name(&mut self.out, &mut self.endpoints, endpoint);
        let id = &id[..id.len().min(usize::from(u8::MAX))];
        self.out.push(u8::try_from(id.len()).unwrap_or(u8::MAX));
        self.out.extend_from_slice(id);
        let nanos = record.at().unix_nanos();
        self.out.extend_from_slice(&nanos.to_le_bytes());
        let before = self.last.get(place);
        let changed = changed_fields(record, before);
        self.out.extend_from_slice(&changed.to_le_bytes());
        let mut left = changed;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            push_value(&mut self.out, record, index);
        }
        self.value_bytes += record.value_bytes();
        self.n_events += 1;
        place
    }

    /// Whether no further event fits, because a table is full.
    pub fn is_full(&self) -> bool {
        self.accounts.is_full() || self.endpoints.is_full()
    }

    /// Events so far.
    pub fn len(&self) -> u32 {
        self.n_events
    }

    /// Whether it has no event.
    pub fn is_empty(&self) -> bool {
        self.n_events == 0
    }

    /// Total bytes of all values before packing. The JSON has about twice as many.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// The segment, and the endpoints of its events.
    pub fn finish(self) -> (Vec<u8>, Vec<Arc<str>>) {
        (self.out, self.endpoints.names)
    }
}

/// One bit for each field whose value is not that of the record before.
fn changed_fields(record: &Record, before: Option<&Record>) -> u64 {
    let bits = record.cells().iter().enumerate();
    match before {
        None => bits.fold(0, |changed, (index, cell)| {
            changed | u64::from(!matches!(cell, Cell::Unset)) << index
        }),
        Some(before) => bits
            .zip(before.cells())
            .fold(0, |changed, ((index, cell), old)| {
                changed | u64::from(!is_same((record, *cell), (before, *old))) << index
            }),
    }
}

fn is_same((record, cell): (&Record, Cell), (before, old): (&Record, Cell)) -> bool {
    match (cell, old) {
        (Cell::Unset, Cell::Unset) | (Cell::Null, Cell::Null) => true,
        (Cell::Bool(a), Cell::Bool(b)) => a == b,
        (Cell::Int(a), Cell::Int(b)) => a == b,
        (Cell::Time(a), Cell::Time(b)) => a == b,
        (Cell::Text(a), Cell::Text(b)) | (Cell::Json(a), Cell::Json(b)) => {
            record.bytes_of(a) == before.bytes_of(b)
        }
        _ => false,
    }
}

fn push_value(out: &mut Vec<u8>, record: &Record, index: usize) {
    let mut push_bytes = |tag, bytes: &[u8]| {
        out.push(tag);
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&bytes[..length as usize]);
    };
    match record.cell(index) {
        Cell::Unset => out.push(tag::UNSET),
        Cell::Null => out.push(tag::NULL),
        Cell::Bool(false) => out.push(tag::FALSE),
        Cell::Bool(true) => out.push(tag::TRUE),
        Cell::Int(value) => {
            out.push(tag::INT);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Cell::Time(at) => {
            out.push(tag::TIME);
            out.extend_from_slice(&at.unix_nanos().to_le_bytes());
        }
        Cell::Text(span) => push_bytes(tag::TEXT, record.bytes_of(span)),
        Cell::Json(span) => push_bytes(tag::JSON, record.bytes_of(span)),
    }
}

fn push_name(out: &mut Vec<u8>, names: &mut Names, name: &Arc<str>) {
    let (place, is_new) = names.place_of(name);
    out.extend_from_slice(&place.to_le_bytes());
    if is_new {
        push_entry(out, name);
    }
}

fn push_entry(out: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(ENTRIES_MAX)];
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn push_kind(out: &mut Vec<u8>, kind: &EventKind) {
    push_entry(out, kind.name);
    out.push(u8::try_from(kind.fields.len()).unwrap_or(u8::MAX));
    for field in kind.fields {
        push_entry(out, field.path);
    }
}

/// An event that was read.
#[derive(Debug)]
pub struct Unpacked {
    /// `ev_…`.
    pub id: String,
    /// Its fields. It has the endpoint that it was packed with, which may be empty.
    pub record: Record,
    /// The endpoint that had the traffic; empty if there is none.
    pub endpoint: Arc<str>,
}

/// A kind of a segment: which field of the current kind each of its fields is.
struct ReadKind {
    /// `None` for a kind that this program does not know.
    kind: Option<&'static EventKind>,
    fields: Vec<Option<usize>>,
    /// The place of its last event.
    last: Option<usize>,
}

/// Reads the events of a segment. An event of an unknown kind is skipped; `None` if the segment is
/// malformed, or its values have more than `value_bytes_max`.
pub fn unpack(segment: &[u8], value_bytes_max: usize) -> Option<Vec<Unpacked>> {
    let mut input = Input(segment);
    let (mut read_kinds, mut accounts, mut endpoints) = (Vec::new(), Vec::new(), Vec::new());
    let mut events = Vec::new();
    let mut value_bytes = 0usize;
    while !input.0.is_empty() {
        let place = usize::from(input.u8()?);
        if place == read_kinds.len() {
            read_kinds.push(input.kind()?);
        }
        let read_kind: &mut ReadKind = read_kinds.get_mut(place)?;
        let account = input.name(&mut accounts)?;
        let endpoint = input.name(&mut endpoints)?;
        let length = usize::from(input.u8()?);
        let id = std::str::from_utf8(input.take(length)?).ok()?.to_owned();
        let at = Timestamp::from_unix_nanos(input.i64()?);
        let changed = input.u64()?;
        let Some(kind) = read_kind.kind else {
            input.skip_values(changed, read_kind.fields.len())?;
            continue;
        };
        let last = read_kind.last.and_then(|last| events.get(last));
        let last = last.map(|last: &Unpacked| &last.record);
        let mut record = Record::new(kind, Capture::all(kind), account);
        input.values(changed, &read_kind.fields, last, &mut record)?;
        if !endpoint.is_empty() {
            record.set_endpoint(endpoint.clone());
        }
        record.complete(at);
        value_bytes = value_bytes.checked_add(record.value_bytes())?;
        if value_bytes > value_bytes_max {
            return None;
        }
        read_kind.last = Some(events.len());
        events.push(Unpacked {
            id,
            record,
            endpoint,
        });
    }
    Some(events)
}

/// A value that a segment writes, in its order.
pub(crate) enum PackedValue<'a> {
    /// A further kind, with the paths of its fields.
    Kind(&'a str, Vec<&'a str>),
    /// A further account.
    Account(&'a str),
    /// A further endpoint; empty for none.
    Endpoint(&'a str),
    /// A number of a field, by the places of its kind and of its field.
    Int(usize, usize, i64),
    /// A text of a field.
    Text(usize, usize, &'a [u8]),
}

/// Visits each value of a segment that was not that of the event before; `None` if the segment is malformed. Cheaper than
/// [`unpack`], because it makes no events.
pub(crate) fn each_change<'a>(
    segment: &'a [u8],
    mut visit: impl FnMut(PackedValue<'a>),
) -> Option<()> {
    let mut input = Input(segment);
    let (mut kinds, mut n_accounts, mut n_endpoints) = (Vec::new(), 0, 0);
    while !input.0.is_empty() {
        let kind = usize::from(input.u8()?);
        if kind == kinds.len() {
            let name = input.entry()?;
            let n_fields = usize::from(input.u8()?);
            let paths: Option<Vec<&str>> = (0..n_fields).map(|_| input.entry()).collect();
            kinds.push(n_fields);
            visit(PackedValue::Kind(name, paths?));
        }
        let n_fields = *kinds.get(kind)?;
        if let Some(name) = input.new_name(&mut n_accounts)? {
            visit(PackedValue::Account(name));
        }
        if let Some(name) = input.new_name(&mut n_endpoints)? {
            visit(PackedValue::Endpoint(name));
        }
        let length = usize::from(input.u8()?);
        input.take(length)?;
        input.i64()?;
        let mut changed = input.u64()?;
        while changed != 0 {
            let field = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            if field >= n_fields {
                return None;
            }
            match input.u8()? {
                tag::UNSET | tag::NULL | tag::FALSE | tag::TRUE => {}
                tag::INT => visit(PackedValue::Int(kind, field, input.i64()?)),
                tag::TIME => drop(input.i64()?),
                found @ (tag::TEXT | tag::JSON) => {
                    let length = u32::from_le_bytes(input.array()?);
                    let bytes = input.take(usize::try_from(length).ok()?)?;
                    if found == tag::TEXT {
                        visit(PackedValue::Text(kind, field, bytes));
                    }
                }
                _ => return None,
            }
        }
    }
    Some(())
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn entry(&mut self) -> Option<&'a str> {
        let length = usize::from(self.u16()?);
        std::str::from_utf8(self.take(length)?).ok()
    }

    /// A name by its place, or a new entry of the table.
    fn name(&mut self, names: &mut Vec<Arc<str>>) -> Option<Arc<str>> {
        let place = usize::from(self.u16()?);
        if place == names.len() {
            names.push(self.entry()?.into());
        }
        names.get(place).cloned()
    }

    /// A new entry of a table of `n_names` names, or none.
    fn new_name(&mut self, n_names: &mut usize) -> Option<Option<&'a str>> {
        let place = usize::from(self.u16()?);
        if place < *n_names {
            return Some(None);
        }
        let entry = (place == *n_names).then(|| self.entry())??;
        *n_names += 1;
        Some(Some(entry))
    }

    fn kind(&mut self) -> Option<ReadKind> {
        let kind = kinds::find(self.entry()?);
        let n_fields = usize::from(self.u8()?);
        if n_fields > FIELDS_MAX {
            return None;
        }
        let mut fields = Vec::with_capacity(n_fields);
        for _ in 0..n_fields {
            let path = self.entry()?;
            fields.push(kind.and_then(|kind| kind.index_of(path)));
        }
        Some(ReadKind {
            kind,
            fields,
            last: None,
        })
    }

    /// Sets all fields: those that changed from the input, the others from the event before.
    fn values(
        &mut self,
        changed: u64,
        fields: &[Option<usize>],
        last: Option<&Record>,
        record: &mut Record,
    ) -> Option<()> {
        if changed
            .checked_shr(u32::try_from(fields.len()).ok()?)
            .unwrap_or(0)
            != 0
        {
            return None;
        }
        for (index, known) in fields.iter().enumerate() {
            let is_changed = changed >> index & 1 == 1;
            match (known, last) {
                (Some(known), _) if is_changed => {
                    let cell = self.value(record)?;
                    record.put_cell(*known, cell);
                }
                (None, _) if is_changed => drop(self.value(record)?),
                (Some(known), Some(last)) => record.copy_cell(last, *known)?,
                (Some(_) | None, _) => {}
            }
        }
        Some(())
    }

    fn value(&mut self, record: &mut Record) -> Option<Cell> {
        Some(match self.u8()? {
            tag::UNSET => Cell::Unset,
            tag::NULL => Cell::Null,
            tag::FALSE => Cell::Bool(false),
            tag::TRUE => Cell::Bool(true),
            tag::INT => Cell::Int(self.i64()?),
            tag::TIME => Cell::Time(Timestamp::from_unix_nanos(self.i64()?)),
            found @ (tag::TEXT | tag::JSON) => {
                let length = u32::from_le_bytes(self.array()?);
                let bytes = self.take(usize::try_from(length).ok()?)?;
                let span = record.push_bytes(std::str::from_utf8(bytes).ok()?.as_bytes())?;
                match found {
                    tag::TEXT => Cell::Text(span),
                    _ => Cell::Json(span),
                }
            }
            _ => return None,
        })
    }

    fn skip_values(&mut self, changed: u64, n_fields: usize) -> Option<()> {
        let kind = *kinds::ALL.first()?;
        let mut none = Record::new(kind, Capture::NONE, Arc::from(""));
        self.values(changed, &vec![None; n_fields], None, &mut none)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Cookies, HeaderRules};
    use crate::{
        HTTP_REQUEST_COMPLETE as HTTP, Headers, Int32, Selection, Slot, TCP_CONNECTION_CLOSED,
        Text, Time, encode,
    };

    const NAME: Slot<Text> = HTTP.slot("conn.server_name");
    const PORT: Slot<Int32> = HTTP.slot("conn.server_port");
    const START: Slot<Time> = HTTP.slot("conn.start_ts");
    const AGENT: Slot<Text> = HTTP.slot("http.request.user_agent");
    const HEADERS: Slot<Headers> = HTTP.slot("http.request.headers");
    const CLIENT: Slot<Text> = TCP_CONNECTION_CLOSED.slot("conn.client_ip");
    const NO_LIMIT: usize = 1 << 30;

    /// An event of values that are often those of another.
    fn record(n: u8, account: &Arc<str>, endpoint: Option<&Arc<str>>) -> Record {
        let kind = if n.is_multiple_of(5) {
            &TCP_CONNECTION_CLOSED
        } else {
            &HTTP
        };
        let mut record = Record::new(kind, Capture::all(kind), Arc::clone(account));
        if n.is_multiple_of(5) {
            record.set(CLIENT, ["192.0.2.1", ""][usize::from(n % 2)]);
        } else {
            record.set(NAME, ["a\"b.example", "é", ""][usize::from(n % 3)]);
            record.set(PORT, i32::from(n % 2));
            record.set(START, Timestamp::from_unix_nanos(i64::from(n)));
            if n % 7 == 1 {
                record.set_null(AGENT);
            }
            let lines = [("accept", "x"), ("n", ["1", "2"][usize::from(n % 2)])];
            let lines = lines
                .iter()
                .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            if !n.is_multiple_of(4) {
                record.set_headers(HEADERS, &HeaderRules::default(), Cookies::AsReceived, lines);
            }
        }
        if let Some(endpoint) = endpoint {
            record.set_endpoint(Arc::clone(endpoint));
        }
        record.complete(Timestamp::from_unix_nanos(
            1_800_000_000_000_000_000 + i64::from(n),
        ));
        record
    }

    fn line(record: &Record, id: &str) -> String {
        let mut out = Vec::new();
        let selection = Selection::all(record.kind());
        assert_eq!(
            encode::event(record, &selection, id, &mut out),
            Default::default()
        );
        String::from_utf8(out).unwrap()
    }

    fn pack(events: &[(u8, u8)]) -> (Vec<u8>, Vec<(String, String)>) {
        let account: Arc<str> = "ac_1".into();
        let none: Arc<str> = "".into();
        let endpoints: Vec<Arc<str>> = (0..3).map(|n| format!("ep_{n}").into()).collect();
        let mut packer = Packer::default();
        let mut written = Vec::new();
        for (index, (n, endpoint)) in events.iter().enumerate() {
            let endpoint = endpoints.get(usize::from(*endpoint));
            let id = format!("ev_{index}");
            let record = record(*n, &account, endpoint);
            written.push((
                line(&record, &id),
                endpoint.map_or(String::new(), |e| e.to_string()),
            ));
            // Both functions write the same bytes.
            match index % 3 {
                0 => packer.push_copy(id.as_bytes(), &record, &none),
                _ => packer.push(id.as_bytes(), record, &none),
            }
        }
        assert_eq!(packer.len() as usize, events.len());
        (packer.finish().0, written)
    }

    proptest! {
        #[test]
        fn what_was_packed_is_read_as_it_was(events in prop::collection::vec((0..32u8, 0..4u8), 0..40)) {
            let (segment, written) = pack(&events);
            let read = unpack(&segment, NO_LIMIT).unwrap();
            let read: Vec<_> = read
                .iter()
                .map(|one| (line(&one.record, &one.id), one.endpoint.to_string()))
                .collect();
            prop_assert_eq!(read, written);
        }

        #[test]
        fn a_damaged_segment_is_read_or_refused(
            events in prop::collection::vec((0..32u8, 0..4u8), 1..8),
            at: prop::sample::Index,
            byte: u8,
        ) {
            let (mut segment, _) = pack(&events);
            let at = at.index(segment.len());
            segment[at] = byte;
            drop(unpack(&segment, NO_LIMIT));
            drop(unpack(&segment[..at], NO_LIMIT));
        }
    }

    #[test]
    fn an_event_like_the_one_before_takes_few_bytes() {
        let (one, _) = pack(&[(1, 1)]);
        let (many, _) = pack(&[(1, 1); 101]);
        let per_event = (many.len() - one.len()) / 100;
        assert!(per_event < 40, "{per_event}");
    }

    #[test]
    fn a_segment_does_not_grow_beyond_the_limit_when_it_is_read() {
        let (segment, _) = pack(&[(1, 1); 100]);
        let read = unpack(&segment, NO_LIMIT).unwrap();
        let bytes: usize = read.iter().map(|one| one.record.value_bytes()).sum();
        assert!(unpack(&segment, bytes).is_some());
        assert!(unpack(&segment, bytes - 1).is_none());
    }

    #[test]
    fn what_this_program_does_not_know_is_left_out() {
        let (segment, written) = pack(&[(1, 1), (5, 1), (2, 0)]);
        let replace = |from: &str, to: &str| {
            let mut other = segment.clone();
            let at = other
                .windows(from.len())
                .position(|part| part == from.as_bytes());
            let at = at.unwrap();
            other[at..at + to.len()].copy_from_slice(to.as_bytes());
            unpack(&other, NO_LIMIT).unwrap()
        };
        let without_kind = replace("tcp_connection_closed.v0", "tcp_connection_closed.v9");
        let lines: Vec<_> = without_kind
            .iter()
            .map(|one| line(&one.record, &one.id))
            .collect();
        assert_eq!(lines, [&*written[0].0, &*written[2].0]);
        let without_field = replace("conn.server_name", "conn.server_nama");
        let text = line(&without_field[0].record, "ev_0");
        assert!(text.contains(r#""server_name":"""#), "{text}");
        assert!(text.contains(r#""server_port":1"#), "{text}");
    }
}
