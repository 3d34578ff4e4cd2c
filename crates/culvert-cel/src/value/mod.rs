//! Values: owned (`Value`) and borrowed (`ValueRef`).

pub(crate) mod time;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::value::time::{Duration, Timestamp};

/// A value that owns its content. Clones share it.
#[derive(Clone, Debug)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// Text.
    String(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A point in time.
    Timestamp(Timestamp),
    /// A length of time.
    Duration(Duration),
    /// A list.
    List(Arc<[Value]>),
    /// A map.
    Map(Arc<Map>),
    /// A type.
    Type(ValueType),
}

/// A value borrowed from a resolver, an expression or another value.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// Text.
    String(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A point in time.
    Timestamp(Timestamp),
    /// A length of time.
    Duration(Duration),
    /// A list.
    List(&'a [Value]),
    /// A map.
    Map(&'a Map),
    /// A type.
    Type(ValueType),
}

/// The type of a value, which is itself a value (`type(x) == int`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// `null_type`.
    Null,
    /// `bool`.
    Bool,
    /// `int`.
    Int,
    /// `uint`.
    Uint,
    /// `double`.
    Double,
    /// `string`.
    String,
    /// `bytes`.
    Bytes,
    /// `google.protobuf.Timestamp`.
    Timestamp,
    /// `google.protobuf.Duration`.
    Duration,
    /// `list`.
    List,
    /// `map`.
    Map,
    /// `type`.
    Type,
}

impl ValueType {
    pub(crate) const ALL: [Self; 12] = [
        Self::Null,
        Self::Bool,
        Self::Int,
        Self::Uint,
        Self::Double,
        Self::String,
        Self::Bytes,
        Self::Timestamp,
        Self::Duration,
        Self::List,
        Self::Map,
        Self::Type,
    ];

    /// The name of the type in expressions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            Self::List => "list",
            Self::Map => "map",
            Self::Type => "type",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Value {
    /// Borrows the value.
    pub fn borrow(&self) -> ValueRef<'_> {
        match self {
            Self::Null => ValueRef::Null,
            Self::Bool(value) => ValueRef::Bool(*value),
            Self::Int(value) => ValueRef::Int(*value),
            Self::Uint(value) => ValueRef::Uint(*value),
            Self::Double(value) => ValueRef::Double(*value),
            Self::String(value) => ValueRef::String(value),
            Self::Bytes(value) => ValueRef::Bytes(value),
            Self::Timestamp(value) => ValueRef::Timestamp(*value),
            Self::Duration(value) => ValueRef::Duration(*value),
            Self::List(value) => ValueRef::List(value),
            Self::Map(value) => ValueRef::Map(value),
            Self::Type(value) => ValueRef::Type(*value),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl ValueRef<'_> {
    /// The type of the value.
    pub fn kind(&self) -> ValueType {
        match self {
            Self::Null => ValueType::Null,
            Self::Bool(_) => ValueType::Bool,
            Self::Int(_) => ValueType::Int,
            Self::Uint(_) => ValueType::Uint,
            Self::Double(_) => ValueType::Double,
            Self::String(_) => ValueType::String,
            Self::Bytes(_) => ValueType::Bytes,
            Self::Timestamp(_) => ValueType::Timestamp,
            Self::Duration(_) => ValueType::Duration,
            Self::List(_) => ValueType::List,
            Self::Map(_) => ValueType::Map,
            Self::Type(_) => ValueType::Type,
        }
    }

    /// Copies the content into an owned value. Items of lists and maps are shared.
    pub fn to_value(&self) -> Value {
        match *self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Int(value) => Value::Int(value),
            Self::Uint(value) => Value::Uint(value),
            Self::Double(value) => Value::Double(value),
            Self::String(value) => Value::String(value.into()),
            Self::Bytes(value) => Value::Bytes(value.into()),
            Self::Timestamp(value) => Value::Timestamp(value),
            Self::Duration(value) => Value::Duration(value),
            Self::List(value) => Value::List(value.into()),
            Self::Map(value) => Value::Map(Arc::new(value.clone())),
            Self::Type(value) => Value::Type(value),
        }
    }

    /// Size in bytes without nested values. An item of a list or a map counts as 32 bytes.
    pub fn weight(&self) -> usize {
        match self {
            Self::String(value) => value.len(),
            Self::Bytes(value) => value.len(),
            Self::List(value) => value.len().saturating_mul(ITEM_BYTES),
            Self::Map(value) => value.len().saturating_mul(2 * ITEM_BYTES),
            _ => 0,
        }
    }

    /// Orders numbers across types, and other values within their type. `None` for values without an order;
    /// `Some(None)` for comparisons with a NaN.
    pub(crate) fn order(self, other: Self) -> Option<Option<Ordering>> {
        Some(match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(&b)),
            (Self::String(a), Self::String(b)) => Some(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(&b)),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(&b)),
            (a, b) => return order_numbers(a, b),
        })
    }

    /// A number as a double; `None` for other values.
    pub(crate) fn as_double(self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(number as f64),
            Self::Uint(number) => Some(number as f64),
            Self::Double(number) => Some(number),
            _ => None,
        }
    }
}

/// `None` if either is not a number; `Some(None)` if either is a NaN.
pub(crate) fn order_numbers(a: ValueRef<'_>, b: ValueRef<'_>) -> Option<Option<Ordering>> {
    use ValueRef::{Double, Int, Uint};
    Some(match (a, b) {
        (Int(a), Int(b)) => Some(a.cmp(&b)),
        (Uint(a), Uint(b)) => Some(a.cmp(&b)),
        (Double(a), Double(b)) => a.partial_cmp(&b),
        (Int(a), Uint(b)) => Some(i128::from(a).cmp(&i128::from(b))),
        (Uint(a), Int(b)) => Some(i128::from(a).cmp(&i128::from(b))),
        // CEL compares an integer with a double as doubles.
        (Int(a), Double(b)) => (a as f64).partial_cmp(&b),
        (Double(a), Int(b)) => a.partial_cmp(&(b as f64)),
        (Uint(a), Double(b)) => (a as f64).partial_cmp(&b),
        (Double(a), Uint(b)) => a.partial_cmp(&(b as f64)),
        _ => return None,
    })
}

/// The key of a map. An int and a uint with equal value are the same key.
#[derive(Clone, Debug)]
pub enum Key {
    /// `true` or `false`.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// Text.
    String(Arc<str>),
}

impl Key {
    /// Converts the key to a value.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Uint(value) => Value::Uint(*value),
            Self::String(value) => Value::String(Arc::clone(value)),
        }
    }

    /// `None` if the value's type cannot be a key.
    pub fn from_value(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Int(*value),
            Value::Uint(value) => Self::Uint(*value),
            Value::String(value) => Self::String(Arc::clone(value)),
            _ => return None,
        })
    }

    /// Borrows the key as a value.
    pub fn borrow(&self) -> ValueRef<'_> {
        match self {
            Self::Bool(value) => ValueRef::Bool(*value),
            Self::Int(value) => ValueRef::Int(*value),
            Self::Uint(value) => ValueRef::Uint(*value),
            Self::String(value) => ValueRef::String(value),
        }
    }
}

/// The sort key of a map key, and of values in look-ups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank<'a> {
    Bool(bool),
    Number(i128),
    String(&'a str),
}

impl<'a> Rank<'a> {
    /// `None` if no key can equal the value.
    fn of(value: ValueRef<'a>) -> Option<Self> {
        Some(match value {
            ValueRef::Bool(value) => Self::Bool(value),
            ValueRef::Int(value) => Self::Number(value.into()),
            ValueRef::Uint(value) => Self::Number(value.into()),
            // i128 holds every integral double that can equal an int or a uint.
            ValueRef::Double(value) if value.fract() == 0.0 => Self::Number(value as i128),
            ValueRef::String(value) => Self::String(value),
            _ => return None,
        })
    }

    fn of_key(key: &'a Key) -> Self {
        match key {
            Key::Bool(value) => Self::Bool(*value),
            Key::Int(value) => Self::Number((*value).into()),
            Key::Uint(value) => Self::Number((*value).into()),
            Key::String(value) => Self::String(value),
        }
    }
}

/// A map, sorted by key.
#[derive(Clone, Debug, Default)]
pub struct Map {
    entries: Vec<(Key, Value)>,
}

/// A map literal has a duplicate key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatedKey;

impl fmt::Display for RepeatedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("repeated key in a map")
    }
}

impl std::error::Error for RepeatedKey {}

impl Map {
    /// # Errors
    /// If two keys are equal.
    pub fn new(mut entries: Vec<(Key, Value)>) -> Result<Self, RepeatedKey> {
        entries.sort_by(|(a, _), (b, _)| Rank::of_key(a).cmp(&Rank::of_key(b)));
        let is_repeated = entries
            .windows(2)
            .any(|pair| matches!(pair, [(a, _), (b, _)] if Rank::of_key(a) == Rank::of_key(b)));
        if is_repeated {
            Err(RepeatedKey)
        } else {
            Ok(Self { entries })
        }
    }

    /// A map of these entries. Of entries with equal keys, the last one counts.
    pub fn last_wins(mut entries: Vec<(Key, Value)>) -> Self {
        // A stable sort: entries with equal keys keep their order.
        entries.sort_by(|(a, _), (b, _)| Rank::of_key(a).cmp(&Rank::of_key(b)));
        entries.dedup_by(|later, kept| {
            let is_repeated = Rank::of_key(&later.0) == Rank::of_key(&kept.0);
            if is_repeated {
                std::mem::swap(later, kept);
            }
            is_repeated
        });
        Self { entries }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries in the order of their keys.
    pub fn entries(&self) -> &[(Key, Value)] {
        &self.entries
    }

    /// The value of a key that equals `key`. Numbers of different types may be equal.
    pub fn get(&self, key: ValueRef<'_>) -> Option<&Value> {
        let wanted = Rank::of(key)?;
        let index = self
            .entries
            .binary_search_by(|(key, _)| Rank::of_key(key).cmp(&wanted))
            .ok()?;
        self.entries.get(index).map(|(_, value)| value)
    }
}

const ITEM_BYTES: usize = 32;
