//! The columns of a kind: the type and default of a field, and the typed handle to it.

use std::marker::PhantomData;

use culvert_base::Timestamp;

use crate::catalogue::kind::EventKind;
use crate::record::{Cell, Record};

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `true` or `false`.
    Bool,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer; a JSON number even beyond 2^53.
    Int64,
    /// UTF-8 text.
    Text,
    /// A time, as RFC 3339 with nine fractional digits.
    Timestamp,
    /// Header names to lists of values.
    Headers,
    /// The output of log actions: a list of objects.
    Logs,
}

impl Type {
    /// Its name in the reference page and the contract.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Text => "string",
            Self::Timestamp => "timestamp",
            Self::Headers => "Map<string, List<string>>",
            Self::Logs => "List<Map<string, any>>",
        }
    }

    /// The default of a field of this type, as JSON.
    const fn unset(self) -> &'static str {
        match self {
            Self::Bool => "false",
            Self::Int32 | Self::Int64 => "0",
            Self::Text => r#""""#,
            Self::Timestamp => r#""1970-01-01T00:00:00.000000000Z""#,
            Self::Headers => "{}",
            Self::Logs => "[]",
        }
    }
}

/// One row of a kind's table.
#[derive(Clone, Copy, Debug)]
pub struct FieldDef {
    /// Dotted path inside the event's object: `conn.client_ip`.
    pub path: &'static str,
    /// Its type.
    pub ty: Type,
    /// Its description for the reference page; one or more sentences.
    pub doc: &'static str,
    /// Whether filters may use it, as `ev.<path>`.
    pub filterable: bool,
    /// When it is null; `None` if it is never null.
    pub null_when: Option<&'static str>,
    /// The allowed values; empty for any.
    pub values: &'static [&'static str],
    /// Its default if it is not set, as JSON.
    pub unset: &'static str,
    /// Longer text is cut to this many bytes at a character boundary.
    pub bytes_max: Option<usize>,
    /// Like `bytes_max`, but only for events larger than [`crate::encode::EVENT_BYTES_MAX`].
    pub large_bytes_max: Option<usize>,
    /// Whether a subscription gets it only if it names it.
    pub by_name: bool,
}

/// A row with path, type and description: never null, not filterable, any value.
pub const fn field(path: &'static str, ty: Type, doc: &'static str) -> FieldDef {
    FieldDef {
        path,
        ty,
        doc,
        filterable: false,
        null_when: None,
        values: &[],
        unset: ty.unset(),
        bytes_max: None,
        large_bytes_max: None,
        by_name: false,
    }
}

impl FieldDef {
    /// Allows filters to use it.
    pub const fn filterable(mut self) -> Self {
        self.filterable = true;
        self
    }

    /// Makes it null in this case, and by default.
    pub const fn null_when(mut self, case: &'static str) -> Self {
        self.null_when = Some(case);
        self.unset = "null";
        self
    }

    /// Allows only these values. `unset`, one of them as JSON, is the default.
    pub const fn one_of(mut self, values: &'static [&'static str], unset: &'static str) -> Self {
        self.values = values;
        self.unset = unset;
        self
    }

    /// Makes this JSON its default.
    pub const fn or(mut self, unset: &'static str) -> Self {
        self.unset = unset;
        self
    }

    /// Leaves it out of events whose subscription does not name it.
    pub const fn by_name(mut self) -> Self {
        self.by_name = true;
        self
    }

    /// Cuts longer text.
    pub const fn at_most(mut self, bytes: usize) -> Self {
        self.bytes_max = Some(bytes);
        self
    }

    /// Cuts longer text if the whole event is too large.
    pub(crate) const fn at_most_when_large(mut self, bytes: usize) -> Self {
        self.large_bytes_max = Some(bytes);
        self
    }

    /// Whether it can be null.
    pub const fn nullable(&self) -> bool {
        self.null_when.is_some()
    }
}

/// The handle to one field of one kind, made by [`EventKind::slot`].
///
/// `T` is the type of the field, so a value of another type does not compile.
pub struct Slot<T> {
    pub(crate) kind: &'static EventKind,
    pub(crate) index: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Slot<T> {
    pub(crate) const fn new(kind: &'static EventKind, index: usize) -> Self {
        Self {
            kind,
            index,
            of: PhantomData,
        }
    }

    /// Its row of the table.
    pub fn field(self) -> &'static FieldDef {
        &self.kind.fields[self.index]
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slot<T> {}

impl<T> std::fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.kind.name, self.field().path)
    }
}

/// A type of slots: the marker of one [`Type`].
pub trait FieldType {
    /// The type of the fields that it applies to.
    const TYPE: Type;
}

/// A type whose values [`Record::set`] takes. Headers have [`Record::set_headers`] instead.
pub trait Settable: FieldType {
    /// The type of the value.
    type In<'a>;

    #[doc(hidden)]
    fn cell(record: &mut Record, field: &FieldDef, value: Self::In<'_>) -> Cell;
}

/// Marks a slot that takes `bool`.
#[derive(Debug)]
pub enum Bool {}

/// Marks a slot that takes `i32`.
#[derive(Debug)]
pub enum Int32 {}

/// Marks a slot that takes `i64`.
#[derive(Debug)]
pub enum Int64 {}

/// Marks a slot that takes `&str`.
#[derive(Debug)]
pub enum Text {}

/// Marks a slot that takes a [`Timestamp`].
#[derive(Debug)]
pub enum Time {}

/// Marks a slot that takes header lines.
#[derive(Debug)]
pub enum Headers {}

/// Marks a slot that takes the metadata of the log actions that ran, in order.
#[derive(Debug)]
pub enum Logs {}

impl FieldType for Bool {
    const TYPE: Type = Type::Bool;
}

impl FieldType for Int32 {
    const TYPE: Type = Type::Int32;
}

impl FieldType for Int64 {
    const TYPE: Type = Type::Int64;
}

impl FieldType for Text {
    const TYPE: Type = Type::Text;
}

impl FieldType for Time {
    const TYPE: Type = Type::Timestamp;
}

impl FieldType for Headers {
    const TYPE: Type = Type::Headers;
}

impl FieldType for Logs {
    const TYPE: Type = Type::Logs;
}

impl Settable for Bool {
    type In<'a> = bool;

    fn cell(_: &mut Record, _: &FieldDef, value: bool) -> Cell {
        Cell::Bool(value)
    }
}

impl Settable for Int32 {
    type In<'a> = i32;

    fn cell(_: &mut Record, _: &FieldDef, value: i32) -> Cell {
        Cell::Int(i64::from(value))
    }
}

impl Settable for Int64 {
    type In<'a> = i64;

    fn cell(_: &mut Record, _: &FieldDef, value: i64) -> Cell {
        Cell::Int(value)
    }
}

impl Settable for Text {
    type In<'a> = &'a str;

    fn cell(record: &mut Record, field: &FieldDef, value: &str) -> Cell {
        record.text_cell(field, value)
    }
}

impl Settable for Time {
    type In<'a> = Timestamp;

    fn cell(_: &mut Record, _: &FieldDef, value: Timestamp) -> Cell {
        Cell::Time(value)
    }
}

impl Settable for Logs {
    type In<'a> = &'a [serde_json::Map<String, serde_json::Value>];

    fn cell(record: &mut Record, _: &FieldDef, value: Self::In<'_>) -> Cell {
        record.logs_cell(value)
    }
}
