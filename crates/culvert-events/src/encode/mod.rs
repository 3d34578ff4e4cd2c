//! Encodes events as JSON: one object on one line, keys in the order of the catalogue (contract:
//! events 1 to 3).
//!
//! Traffic events are written from a [`Record`] by a [`Selection`], without serde: pieces of
//! prepared text with values between them. Audit events are written from the views that the API
//! shows.

mod audit;
pub(crate) mod json;
pub(crate) mod template;

use culvert_base::{Event, Timestamp};

use crate::catalogue::field::{FieldDef, Type};
use crate::record::{Cell, Record, cut};
use crate::selection::Selection;

pub use audit::{Audit, CallContext, Principal, Reference, Source, Via, caused_by};

/// Maximum size of an event in bytes.
pub const EVENT_BYTES_MAX: usize = 256 << 10;

/// Room for the list of fields that were shortened.
const TRUNCATED_BYTES_MAX: usize = 512;

/// About the size of an envelope without its object, with room for quotes and numbers.
const HEAD_BYTES: usize = 512;

/// Kind of the test events for destinations. Not in the catalogue.
pub const TEST: &str = "test";

/// The parts that were removed from an event to keep it within [`EVENT_BYTES_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "omitted fields are counted"]
pub struct Truncated {
    /// Header maps were emptied.
    pub headers: bool,
    /// Policy logs lost their last elements.
    pub logs: bool,
    /// Parts of the URL were cut.
    pub url: bool,
}

impl Truncated {
    /// The name of each removed part, as in `events_truncated_total{reason}`.
    pub fn reasons(self) -> impl Iterator<Item = &'static str> {
        [
            (self.headers, "headers"),
            (self.logs, "logs"),
            (self.url, "url"),
        ]
        .into_iter()
        .filter_map(|(is_left_out, reason)| is_left_out.then_some(reason))
    }
}

/// Appends the event of a completed `record` with the fields of `selection`, which is of the same
/// kind, without a newline. A field that was not captured is written with its default.
pub fn event(
    record: &Record,
    selection: &Selection,
    event_id: &str,
    out: &mut Vec<u8>,
) -> Truncated {
    debug_assert!(record.kind() == selection.kind(), "another kind");
    let start = out.len();
    write_event(record, selection, event_id, out, &EncodeLimits::ALL);
    if out.len() - start <= EVENT_BYTES_MAX {
        return Truncated::default();
    }
    shrink(record, selection, event_id, out, start)
}

/// Writes the event that begins at `start` again, and removes more in each round until it fits.
#[cold]
fn shrink(
    record: &Record,
    selection: &Selection,
    event_id: &str,
    out: &mut Vec<u8>,
    start: usize,
) -> Truncated {
    let mut truncated = Truncated {
        headers: true,
        ..Truncated::default()
    };
    let mut limits = EncodeLimits {
        headers: false,
        ..EncodeLimits::ALL
    };
    let mut again = |limits: &EncodeLimits| {
        out.truncate(start);
        write_event(record, selection, event_id, out, limits);
        (out.len() - start).saturating_sub(EVENT_BYTES_MAX - TRUNCATED_BYTES_MAX)
    };
    let mut excess = again(&limits);
    while excess > 0 && limits.logs_less < crate::record::LOGS_BYTES_MAX {
        truncated.logs = true;
        limits.logs_less += excess;
        excess = again(&limits);
    }
    if excess > 0 {
        truncated.url = true;
        limits.texts = false;
        again(&limits);
    }
    push_truncated(selection, truncated, out);
    truncated
}

/// Adds the paths of the fields that are shortened to the event that ends `out`.
fn push_truncated(selection: &Selection, truncated: Truncated, out: &mut Vec<u8>) {
    let (_, parts) = selection.template();
    let fields = parts
        .iter()
        .map(|part| &selection.kind().fields[part.field]);
    let shortened = fields.filter(|field| match field.ty {
        Type::Headers => truncated.headers,
        Type::Logs => truncated.logs,
        _ => truncated.url && field.large_bytes_max.is_some(),
    });
    out.pop();
    out.extend_from_slice(br#","truncated":["#);
    for (index, field) in shortened.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json::push_text(out, field.path.as_bytes());
    }
    out.extend_from_slice(b"]}");
}

/// The limits that an event is written with.
struct EncodeLimits {
    headers: bool,
    /// Bytes by which the logs must be shortened.
    logs_less: usize,
    /// Whether text is cut to `large_bytes_max` of its field.
    texts: bool,
}

impl EncodeLimits {
    const ALL: Self = Self {
        headers: true,
        logs_less: 0,
        texts: true,
    };
}

fn write_event(
    record: &Record,
    selection: &Selection,
    event_id: &str,
    out: &mut Vec<u8>,
    limits: &EncodeLimits,
) {
    let is_plain = record.has_plain_texts();
    let (template, parts) = selection.template();
    out.reserve(template.len() + record.value_bytes() + HEAD_BYTES);
    out.extend_from_slice(br#"{"event_id":""#);
    json::push_inner(out, event_id.as_bytes());
    out.extend_from_slice(selection.head());
    push_end_of_head(out, record.at(), record.account());
    let mut written = 0;
    for part in parts {
        let cell = record.cell(part.field);
        if matches!(cell, Cell::Unset) {
            continue;
        }
        out.extend_from_slice(&template[written..part.unset.start]);
        written = part.unset.end;
        let field = &record.kind().fields[part.field];
        match cell {
            Cell::Text(span) if is_plain && limits.texts => {
                out.push(b'"');
                out.extend_from_slice(record.bytes_of(span));
                out.push(b'"');
            }
            cell => push_value(record, field, cell, out, limits),
        }
    }
    out.extend_from_slice(&template[written..]);
}

/// Writes the envelope up to the account, and leaves its object open.
fn push_head(out: &mut Vec<u8>, id: &str, kind: &str, at: Timestamp, account: &str) {
    out.extend_from_slice(br#"{"event_id":""#);
    json::push_inner(out, id.as_bytes());
    out.extend_from_slice(br#"","event_type":""#);
    json::push_inner(out, kind.as_bytes());
    out.extend_from_slice(br#"","event_timestamp":""#);
    push_end_of_head(out, at, account);
}

/// Writes the timestamp and the account.
fn push_end_of_head(out: &mut Vec<u8>, at: Timestamp, account: &str) {
    json::push_time(out, at, 3);
    out.extend_from_slice(br#"","account_id":""#);
    json::push_inner(out, account.as_bytes());
}

fn push_value(
    record: &Record,
    field: &FieldDef,
    cell: Cell,
    out: &mut Vec<u8>,
    limits: &EncodeLimits,
) {
    match cell {
        // The template contains the default.
        Cell::Unset => {}
        Cell::Null => out.extend_from_slice(b"null"),
        Cell::Bool(true) => out.extend_from_slice(b"true"),
        Cell::Bool(false) => out.extend_from_slice(b"false"),
        Cell::Int(value) => json::push_int(out, value),
        Cell::Time(at) => {
            out.push(b'"');
            json::push_time(out, at, 9);
            out.push(b'"');
        }
        Cell::Text(span) if limits.texts => json::push_text(out, record.bytes_of(span)),
        Cell::Text(span) => {
            let text = record.text_of(span);
            let text = field.large_bytes_max.map_or(text, |max| cut(text, max));
            json::push_text(out, text.as_bytes());
        }
        Cell::Json(_) if field.ty == Type::Headers && !limits.headers => {
            out.extend_from_slice(b"{}")
        }
        Cell::Json(span) if field.ty == Type::Logs && limits.logs_less > 0 => {
            push_first_logs(out, record.bytes_of(span), limits.logs_less);
        }
        Cell::Json(span) => out.extend_from_slice(record.bytes_of(span)),
    }
}

/// Writes a list without its last elements, so that it is at least `less` bytes shorter.
fn push_first_logs(out: &mut Vec<u8>, logs: &[u8], less: usize) {
    let mut elements: Vec<&serde_json::value::RawValue> =
        serde_json::from_slice(logs).unwrap_or_default();
    let mut gone = 0;
    while gone < less
        && let Some(last) = elements.pop()
    {
        gone += last.get().len() + 1;
    }
    out.push(b'[');
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(element.get().as_bytes());
    }
    out.push(b']');
}

/// The test event for a destination: an empty object without a principal.
pub fn test(id: &str, at: Timestamp, account: &str) -> Event {
    let mut body = Vec::with_capacity(256);
    push_head(&mut body, id, TEST, at, account);
    body.extend_from_slice(br#"","principal":null,"object":{}}"#);
    finished(id, TEST, at, account, body)
}

fn finished(id: &str, kind: &str, at: Timestamp, account: &str, body: Vec<u8>) -> Event {
    Event {
        id: id.to_owned(),
        kind: kind.to_owned(),
        at,
        account: account.to_owned(),
        body: String::from_utf8(body).expect("written from text and by serde_json"),
    }
}

#[cfg(test)]
mod tests;
