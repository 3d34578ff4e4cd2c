//! A traffic event that is being filled.
//!
//! A record has two allocations, which [`Record::reset`] keeps: a cell for each field, and an arena
//! for all bytes. A thread keeps those of some records that it dropped, and uses them for new ones. Setting a field
//! that no subscription captures costs one bit test.
//!
//! Not here: the JSON of the whole event ([`crate::encode`]).

pub(crate) mod packed;
pub(crate) mod retained;
pub(crate) mod summary;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::Timestamp;
use serde_json::{Map, Value};

use crate::bodies::CapturedExchange;
use crate::capture::Capture;
use crate::catalogue::field::{FieldDef, Headers, Settable, Slot, Text};
use crate::catalogue::kind::EventKind;
use crate::encode::json;
use crate::headers::{self, Cookies, HeaderRules};
use crate::id::EventId;

/// Maximum number of log entries in an event.
pub(crate) const LOGS_MAX: usize = 32;
/// Maximum size of a log entry in bytes.
pub(crate) const LOG_BYTES_MAX: usize = 4 << 10;
/// Maximum size of all log entries of an event in bytes.
pub(crate) const LOGS_BYTES_MAX: usize = 16 << 10;

/// Initial size of the arena, enough for an ordinary event.
const ARENA_BYTES: usize = 2 << 10;

/// Maximum number of dropped records whose memory a thread keeps, and maximum size of their arenas.
const SPARE_MAX: usize = 32;
const SPARE_ARENA_BYTES_MAX: usize = 4 * ARENA_BYTES;

thread_local! {
    /// The cells and the arenas of dropped records.
    static SPARE: RefCell<Vec<(Vec<Cell>, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// A traffic event in progress, with the fields captured so far.
#[derive(Debug)]
pub struct Record {
    kind: &'static EventKind,
    capture: Capture,
    account: Arc<str>,
    endpoint: Option<Arc<str>>,
    begun_at: Timestamp,
    at: Timestamp,
    cells: Vec<Cell>,
    arena: Vec<u8>,
    /// The parts of the arena that are JSON, in order; all others are text.
    json: JsonSpans,
    logs_dropped: usize,
    /// Captured messages of the exchange.
    bodies: Option<Box<CapturedExchange>>,
    /// Set if the event's id was assigned in advance.
    id: Option<EventId>,
    is_refused: bool,
}

/// The value of one field.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub enum Cell {
    /// Not set: the event has the field's default.
    Unset,
    /// Set to null.
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer of 32 or 64 bits.
    Int(i64),
    /// A point in time.
    Time(Timestamp),
    /// UTF-8 text in the arena.
    Text(Span),
    /// Encoded JSON in the arena.
    Json(Span),
}

/// A range of the arena.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Span {
    start: u32,
    end: u32,
}

/// Up to three spans: those of the requests' and the responses' headers, and of the logs.
#[derive(Debug, Default)]
struct JsonSpans {
    spans: [Option<Span>; 3],
    /// Whether a further span did not fit.
    is_full: bool,
}

impl JsonSpans {
    fn push(&mut self, span: Span) {
        match self.spans.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(span),
            None => self.is_full = true,
        }
    }
}

impl Record {
    /// An event of `kind` in `account`, for which `capture` is recorded.
    pub fn new(kind: &'static EventKind, capture: Capture, account: Arc<str>) -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        let (mut cells, mut arena) = spare.ok().flatten().unwrap_or_default();
        cells.clear();
        cells.resize(kind.fields.len(), Cell::Unset);
        arena.clear();
        arena.reserve(ARENA_BYTES);
        Self {
            kind,
            capture,
            account,
            endpoint: None,
            begun_at: Timestamp::default(),
            at: Timestamp::default(),
            cells,
            arena,
            json: JsonSpans::default(),
            logs_dropped: 0,
            bodies: None,
            id: None,
            is_refused: false,
        }
    }

    /// Clears the record for another event of the same kind, and keeps its memory.
    pub fn reset(&mut self, capture: Capture, account: Arc<str>) {
        self.capture = capture;
        self.account = account;
        self.endpoint = None;
        self.begun_at = Timestamp::default();
        self.at = Timestamp::default();
        self.cells.fill(Cell::Unset);
        self.arena.clear();
        self.json = JsonSpans::default();
        self.logs_dropped = 0;
        self.bodies = None;
        self.id = None;
        self.is_refused = false;
    }

    /// Attaches captured messages, which are stored beside the event.
    pub fn attach_bodies(&mut self, bodies: Box<CapturedExchange>) {
        self.bodies = Some(bodies);
    }

    /// Whether captured messages are attached.
    pub fn has_bodies(&self) -> bool {
        self.bodies.is_some()
    }

    /// Takes the captured messages.
    pub fn take_bodies(&mut self) -> Option<Box<CapturedExchange>> {
        self.bodies.take()
    }

    /// Assigns the event's id, whose second is that of [`Record::at`].
    pub fn assign_id(&mut self, id: EventId) {
        self.id = Some(id);
    }

    /// The event's id, if one was assigned.
    pub fn id(&self) -> Option<EventId> {
        self.id
    }

    /// Marks it as the event of traffic that was refused before it reached its endpoint. Such events have only a share of
    /// what may wait.
    pub fn mark_refused(&mut self) {
        self.is_refused = true;
    }

    /// Whether it is the event of traffic that was refused before it reached its endpoint.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Its kind.
    pub fn kind(&self) -> &'static EventKind {
        self.kind
    }

    /// `ac_…` of the account it belongs to.
    pub fn account(&self) -> &Arc<str> {
        &self.account
    }

    /// `ep_…` of the endpoint that had the traffic, if known. No field of the event contains it.
    pub fn endpoint(&self) -> Option<&Arc<str>> {
        self.endpoint.as_ref()
    }

    /// The duration; zero if the start is not known.
    pub fn took(&self) -> Duration {
        let nanos = self.at.unix_nanos() - self.begun_at.unix_nanos();
        match self.begun_at == Timestamp::default() {
            true => Duration::ZERO,
            false => Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)),
        }
    }

    /// The time of completion; the Unix epoch before [`Record::complete`].
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Bytes of memory in use, for limits on waiting records.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.cells.capacity() * size_of::<Cell>() + self.arena.capacity()
    }

    /// Log entries that were discarded because they were too many or too long.
    pub fn logs_dropped(&self) -> usize {
        self.logs_dropped
    }

    /// Whether any subscription captures the field. Check this before computing an expensive value.
    pub fn wants<T>(&self, slot: Slot<T>) -> bool {
        debug_assert!(
            slot.kind == self.kind,
            "{slot:?} set on a {}",
            self.kind.name
        );
        self.capture.has(slot) && slot.kind == self.kind
    }

    /// Sets a field, if it is captured. The last value set wins.
    pub fn set<T: Settable>(&mut self, slot: Slot<T>, value: T::In<'_>) {
        if self.wants(slot) {
            let cell = T::cell(self, slot.field(), value);
            self.put(slot, cell);
        }
    }

    /// Sets a text field to the concatenation of these parts.
    pub fn set_parts(&mut self, slot: Slot<Text>, parts: &[&str]) {
        if self.wants(slot) {
            let start = self.arena.len();
            let mut left = slot.field().bytes_max.unwrap_or(usize::MAX);
            for part in parts {
                let kept = cut(part, left);
                self.arena.extend_from_slice(kept.as_bytes());
                // After a part that was cut, nothing is appended.
                left = if kept.len() < part.len() {
                    0
                } else {
                    left - kept.len()
                };
            }
            let cell = self.span_from(start).map_or(Cell::Unset, Cell::Text);
            self.put(slot, cell);
        }
    }

    /// Sets a text field from bytes. Bytes that are not UTF-8 are read as Latin-1.
    pub fn set_bytes(&mut self, slot: Slot<Text>, value: &[u8]) {
        if self.wants(slot) {
            match std::str::from_utf8(value) {
                Ok(text) => self.set(slot, text),
                Err(_) => self.set(slot, &headers::decode(value)),
            }
        }
    }

    /// Sets a field to null, if it is captured. A field that cannot be null becomes unset.
    pub fn set_null<T>(&mut self, slot: Slot<T>) {
        if self.wants(slot) {
            let cell = if slot.field().nullable() {
                Cell::Null
            } else {
                Cell::Unset
            };
            self.put(slot, cell);
        }
    }

    /// Sets a field from header lines (name, value) in wire order, if it is captured.
    ///
    /// The lines are those of the head, without pseudo-headers. For an HTTP/2 request without a `host` field, the first
    /// line is one made of `:authority`.
    pub fn set_headers<'a>(
        &mut self,
        slot: Slot<Headers>,
        rules: &HeaderRules,
        cookies: Cookies,
        lines: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) {
        if self.wants(slot) {
            let start = self.arena.len();
            headers::push_map(&mut self.arena, rules, cookies, lines.into_iter());
            let cell = self.span_from(start).map_or(Cell::Unset, Cell::Json);
            self.put(slot, cell);
        }
    }

    /// Sets the endpoint that has the traffic, and the time when it began.
    pub fn begin(&mut self, endpoint: Arc<str>, at: Timestamp) {
        self.endpoint = Some(endpoint);
        self.begun_at = at;
    }

    /// Replaces the endpoint that has the traffic.
    pub fn set_endpoint(&mut self, endpoint: Arc<str>) {
        self.endpoint = Some(endpoint);
    }

    /// Sets the time of completion, which becomes the event's timestamp and the time in its id.
    pub fn complete(&mut self, at: Timestamp) {
        self.at = at;
    }

    fn put<T>(&mut self, slot: Slot<T>, cell: Cell) {
        self.put_cell(slot.index, cell);
    }

    pub(crate) fn put_text(&mut self, index: usize, value: &str) {
        let field = &self.kind.fields[index];
        let cell = self.text_cell(field, value);
        self.cells[index] = cell;
    }

    pub(crate) fn put_int(&mut self, index: usize, value: i64) {
        self.cells[index] = Cell::Int(value);
    }

    /// Sets a field to encoded JSON.
    pub(crate) fn put_json(&mut self, index: usize, value: &str) {
        let start = self.arena.len();
        self.arena.extend_from_slice(value.as_bytes());
        let cell = self.span_from(start).map_or(Cell::Unset, Cell::Json);
        self.put_cell(index, cell);
    }

    pub(crate) fn text_cell(&mut self, field: &FieldDef, value: &str) -> Cell {
        let value = field.bytes_max.map_or(value, |max| cut(value, max));
        let start = self.arena.len();
        self.arena.extend_from_slice(value.as_bytes());
        self.span_from(start).map_or(Cell::Unset, Cell::Text)
    }

    pub(crate) fn logs_cell(&mut self, entries: &[Map<String, Value>]) -> Cell {
        let start = self.arena.len();
        let (mut kept, mut bytes) = (0, 0);
        self.arena.push(b'[');
        for entry in entries {
            let metadata = serde_json::to_vec(entry).unwrap_or_default();
            let length = metadata.len() + br#"{"metadata":}"#.len();
            let fits = length <= LOG_BYTES_MAX && bytes + length <= LOGS_BYTES_MAX;
            if kept == LOGS_MAX || metadata.is_empty() || !fits {
                continue;
            }
            if kept > 0 {
                self.arena.push(b',');
            }
            self.arena.extend_from_slice(br#"{"metadata":"#);
            self.arena.extend_from_slice(&metadata);
            self.arena.push(b'}');
            kept += 1;
            bytes += length;
        }
        self.arena.push(b']');
        self.logs_dropped = entries.len() - kept;
        self.span_from(start).map_or(Cell::Unset, Cell::Json)
    }

    /// The arena from `start` to its end; `None` beyond 4 GiB, which limits on heads make
    /// impossible.
    fn span_from(&self, start: usize) -> Option<Span> {
        Some(Span {
            start: u32::try_from(start).ok()?,
            end: u32::try_from(self.arena.len()).ok()?,
        })
    }

    /// Bytes of all texts and encoded values.
    pub fn value_bytes(&self) -> usize {
        self.arena.len()
    }

    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) -> Option<Span> {
        let start = self.arena.len();
        self.arena.extend_from_slice(bytes);
        self.span_from(start)
    }

    /// Sets a field. JSON is the last part of the arena.
    pub(crate) fn put_cell(&mut self, index: usize, cell: Cell) {
        if let Cell::Json(span) = cell {
            debug_assert_eq!(span.end as usize, self.arena.len(), "not at the end");
            self.json.push(span);
        }
        if let Some(place) = self.cells.get_mut(index) {
            *place = cell;
        }
    }

    /// Sets a field to its value in `other`, a record of the same kind.
    pub(crate) fn copy_cell(&mut self, other: &Self, index: usize) -> Option<()> {
        let cell = match other.cell(index) {
            Cell::Text(span) => Cell::Text(self.push_bytes(other.bytes_of(span))?),
            Cell::Json(span) => Cell::Json(self.push_bytes(other.bytes_of(span))?),
            cell => cell,
        };
        self.put_cell(index, cell);
        Some(())
    }

    /// Takes over the values of all fields of `other`, a record of the same kind.
    pub(crate) fn copy_values(&mut self, other: &Self) {
        self.cells.clone_from(&other.cells);
        self.arena.clone_from(&other.arena);
    }

    /// The values of all fields of its kind.
    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub(crate) fn cell(&self, index: usize) -> Cell {
        self.cells.get(index).copied().unwrap_or(Cell::Unset)
    }

    pub(crate) fn bytes_of(&self, span: Span) -> &[u8] {
        self.arena
            .get(span.start as usize..span.end as usize)
            .unwrap_or_default()
    }

    /// Whether it is certain that no text has a character that JSON escapes.
    pub(crate) fn has_plain_texts(&self) -> bool {
        let (mut from, mut is_plain) = (0, !self.json.is_full);
        for span in self.json.spans.iter().flatten() {
            let text = self.arena.get(from..span.start as usize);
            is_plain &= json::is_plain(text.unwrap_or_default());
            from = span.end as usize;
        }
        is_plain && json::is_plain(self.arena.get(from..).unwrap_or_default())
    }

    /// The text of a cell.
    pub(crate) fn text_of(&self, span: Span) -> &str {
        std::str::from_utf8(self.bytes_of(span)).unwrap_or_default()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let (cells, arena) = (&mut self.cells, &mut self.arena);
        if arena.capacity() > SPARE_ARENA_BYTES_MAX {
            return;
        }
        // A thread that ends keeps nothing.
        let _ended = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push((std::mem::take(cells), std::mem::take(arena)));
            }
        });
    }
}

/// The longest prefix of `text` that has at most `max` bytes and ends at a character boundary.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests;
