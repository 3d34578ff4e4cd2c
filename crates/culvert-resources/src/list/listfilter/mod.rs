//! The `filter` parameter of lists: a subset of CEL over one object named `obj` (contract: management API
//! 1.10).
//!
//! Fields, types and the type of the result are checked before the first object is read, so evaluation cannot
//! fail. Comparisons follow the contract where it differs from CEL: an unset text equals both `""` and
//! `null`, an empty list equals `[]`, `null` and `""`, and a reference compares as its ID. `culvert-cel` parses
//! filters, and `checker` gives the syntax tree this meaning. Event subscriptions use the meaning of CEL, which is strict
//! where this one is lenient.
//!
//! `list` chooses the objects to evaluate and limits the cost.

mod checker;
pub mod span;

use culvert_base::{Refusal, Timestamp, code};
use culvert_store::TextField;
use serde_json::Value as Json;
pub(crate) use span::{Looked, Span};

/// A field that filters may name.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name after `obj.`.
    pub name: &'static str,
    /// What its values are, which decides the operators that it takes.
    pub shape: Shape,
}

/// The type of a field, and its location in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Text that the stored form has under the same name, so the store can search for it.
    Text,
    /// Text that the stored form does not have, so the store cannot search for it.
    Apart,
    /// Text that the stored form has in the object with this name.
    Within(&'static str),
    /// The same, where the view has the spelling of the caller: the stored one counts.
    Spelled(&'static str),
    /// An identifier: text without string functions.
    Id,
    /// An RFC 3339 time.
    Time,
    /// `true` or `false`.
    Flag,
    /// A list of strings.
    List,
    /// `{"id", "uri"}`; compares as its ID, with or without `.id`.
    Reference,
    /// A reference that the store indexes.
    Link,
    /// The first element of the list with this name.
    First(&'static str),
    /// The type of an endpoint, for which `agent` means `ephemeral`.
    EndpointType,
}

/// The fields of every resource that has an ID, a creation time, a description and metadata.
pub const ID: Field = field("id", Shape::Id);
/// The time of creation. A bound on it limits the objects that are read.
pub const CREATED_AT: Field = field("created_at", Shape::Time);
/// The description.
pub const DESCRIPTION: Field = field("description", Shape::Text);
/// The metadata.
pub const METADATA: Field = field("metadata", Shape::Text);

impl Field {
    /// Its location in the stored form; `None` for a field that the store cannot search.
    pub fn stored(self) -> Option<TextField> {
        let within = match self.shape {
            Shape::Within(object) | Shape::Spelled(object) => Some(object),
            Shape::Text => None,
            Shape::Id if self.name != ID.name => None,
            _ => return None,
        };
        let name = self.name;
        Some(TextField { name, within })
    }
}

/// The filter field with this name, which is also that of the view.
pub const fn field(name: &'static str, shape: Shape) -> Field {
    Field { name, shape }
}

/// Cost of one part of an expression, and of one byte of a text that it reads; a unit is about a nanosecond.
const PART_WORK: u64 = 10;
const TEXT_BYTE_WORK: u64 = 1;

/// A checked filter.
#[derive(Debug)]
pub(crate) struct ListFilter {
    expr: Expr,
    /// Number of parts of the expression.
    n_parts: u64,
    /// The fields it refers to, with the number of references.
    named: Vec<(Field, u64)>,
}

impl ListFilter {
    /// Checks `source` against the fields of a resource. `now` is the value of `time.now`.
    pub(crate) fn compile(
        source: &str,
        fields: &'static [Field],
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        let mut filter = Self {
            expr: checker::compile(source, fields, now)?,
            n_parts: 0,
            named: Vec::new(),
        };
        let (mut n_parts, mut named) = (0, Vec::new());
        filter.expr.count(&mut n_parts, &mut named);
        (filter.n_parts, filter.named) = (n_parts, named);
        Ok(filter)
    }

    /// Whether it refers to one of these fields.
    pub(crate) fn names(&self, fields: &[&str]) -> bool {
        let mut named = self.named.iter();
        named.any(|(field, _)| fields.contains(&field.name))
    }

    /// Bounds of all matching objects, so that the store reads fewer others.
    pub(crate) fn span(&self, shown_prefix: &str) -> Span {
        let mut span = Span::default();
        span.narrow(&self.expr, shown_prefix);
        span
    }

    /// Whether the object, as the API shows it, matches.
    pub(crate) fn matches(&self, object: &Json) -> bool {
        truth(&self.expr, object)
    }

    /// The maximum cost of evaluating it on the object.
    pub(crate) fn work(&self, object: &Json) -> u64 {
        let of_field = |(field, times): &(Field, u64)| {
            let length = match hold_field(*field, object) {
                Operand::Text(text) => text.len(),
                // Comparing an element of a list costs as much as a part of the expression.
                Operand::Stored(items) => items.len().saturating_mul(64),
                _ => 32,
            };
            let length = u64::try_from(length).unwrap_or(u64::MAX);
            length.saturating_mul(TEXT_BYTE_WORK).saturating_mul(*times)
        };
        let fields = self.named.iter().map(of_field);
        fields.fold(self.n_parts.saturating_mul(PART_WORK), u64::saturating_add)
    }
}

fn refusal(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(
        code::LIST_FILTER_INVALID,
        format!("The filter is invalid: {why}."),
    )
}

/// A checked expression.
#[derive(Debug)]
enum Expr {
    Bool(bool),
    Integer(i64),
    Text(String),
    Time(Timestamp),
    Null,
    List(Vec<Expr>),
    Field(Field),
    Size(Box<Expr>),
    Not(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Compare(Relation, Box<Expr>, Box<Expr>),
    In(Box<Expr>, Box<Expr>),
    Match(Match, Box<Expr>, Box<Expr>),
}

impl Expr {
    /// Counts its parts and the fields that it refers to.
    fn count(&self, n_parts: &mut u64, named: &mut Vec<(Field, u64)>) {
        *n_parts += 1;
        match self {
            Self::Field(field) => match named.iter_mut().find(|(one, _)| one.name == field.name) {
                Some((_, times)) => *times += 1,
                None => named.push((*field, 1)),
            },
            Self::List(items) => items.iter().for_each(|item| item.count(n_parts, named)),
            Self::Size(inner) | Self::Not(inner) => inner.count(n_parts, named),
            Self::And(a, b)
            | Self::Or(a, b)
            | Self::Compare(_, a, b)
            | Self::In(a, b)
            | Self::Match(_, a, b) => {
                a.count(n_parts, named);
                b.count(n_parts, named);
            }
            Self::Bool(_) | Self::Integer(_) | Self::Text(_) | Self::Time(_) | Self::Null => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    LessEqual,
    Equal,
    NotEqual,
    GreaterEqual,
    Greater,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    StartsWith,
    EndsWith,
    Contains,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Bool,
    Integer,
    Text,
    Id,
    Time,
    Null,
    List,
}

fn type_of(shape: Shape) -> Type {
    match shape {
        Shape::Text
        | Shape::Apart
        | Shape::Within(_)
        | Shape::Spelled(_)
        | Shape::First(_)
        | Shape::EndpointType => Type::Text,
        Shape::Id | Shape::Reference | Shape::Link => Type::Id,
        Shape::Time => Type::Time,
        Shape::Flag => Type::Bool,
        Shape::List => Type::List,
    }
}

/// The value of an expression for one object.
#[derive(Debug)]
enum Operand<'v> {
    Bool(bool),
    Integer(i64),
    /// Empty if unset.
    Text(&'v str),
    /// `None` if unset.
    Time(Option<Timestamp>),
    Null,
    /// A list of the object; empty if unset.
    Stored(&'v [Json]),
    Literal(&'v [Expr]),
}

fn truth(expr: &Expr, object: &Json) -> bool {
    match expr {
        Expr::Not(inner) => !truth(inner, object),
        Expr::And(a, b) => truth(a, object) && truth(b, object),
        Expr::Or(a, b) => truth(a, object) || truth(b, object),
        Expr::Compare(relation, a, b) => {
            compare(*relation, &hold(a, object), &hold(b, object), object)
        }
        Expr::In(value, list) => contains(&hold(list, object), &hold(value, object), object),
        Expr::Match(function, text, part) => match (hold(text, object), hold(part, object)) {
            (Operand::Text(text), Operand::Text(part)) => match function {
                Match::StartsWith => text.starts_with(part),
                Match::EndsWith => text.ends_with(part),
                Match::Contains => text.contains(part),
            },
            _ => false,
        },
        other => matches!(hold(other, object), Operand::Bool(true)),
    }
}

fn hold<'v>(expr: &'v Expr, object: &'v Json) -> Operand<'v> {
    match expr {
        Expr::Integer(number) => Operand::Integer(*number),
        Expr::Text(text) => Operand::Text(text),
        Expr::Time(at) => Operand::Time(Some(*at)),
        Expr::Null => Operand::Null,
        Expr::List(items) => Operand::Literal(items),
        Expr::Field(field) => hold_field(*field, object),
        Expr::Size(inner) => Operand::Integer(size(&hold(inner, object))),
        Expr::Bool(flag) => Operand::Bool(*flag),
        condition => Operand::Bool(truth(condition, object)),
    }
}

fn hold_field(field: Field, object: &Json) -> Operand<'_> {
    let value = || {
        field
            .name
            .split('.')
            .try_fold(object, |inner, name| inner.get(name))
    };
    match field.shape {
        Shape::Text
        | Shape::Apart
        | Shape::Within(_)
        | Shape::Spelled(_)
        | Shape::Id
        | Shape::EndpointType => Operand::Text(text(value())),
        Shape::Reference | Shape::Link => {
            Operand::Text(text(value().and_then(|value| value.get("id"))))
        }
        Shape::Time => Operand::Time(Timestamp::parse(text(value()))),
        Shape::Flag => Operand::Bool(value().and_then(Json::as_bool).unwrap_or(false)),
        Shape::List => Operand::Stored(value().and_then(Json::as_array).map_or(&[], Vec::as_slice)),
        Shape::First(list) => Operand::Text(text(object.get(list).and_then(|list| list.get(0)))),
    }
}

/// A text of the object; empty if unset.
fn text(value: Option<&Json>) -> &str {
    value.and_then(Json::as_str).unwrap_or_default()
}

fn size(held: &Operand<'_>) -> i64 {
    let size = match held {
        Operand::Text(text) => text.chars().count(),
        Operand::Stored(items) => items.len(),
        Operand::Literal(items) => items.len(),
        _ => 0,
    };
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn is_unset(held: &Operand<'_>) -> bool {
    match held {
        Operand::Text(text) => text.is_empty(),
        Operand::Stored(items) => items.is_empty(),
        Operand::Literal(items) => items.is_empty(),
        Operand::Time(at) => at.is_none(),
        Operand::Null => true,
        Operand::Bool(_) | Operand::Integer(_) => false,
    }
}

fn compare(relation: Relation, a: &Operand<'_>, b: &Operand<'_>, object: &Json) -> bool {
    use std::cmp::Ordering;
    let ordering = match (a, b) {
        (Operand::Integer(a), Operand::Integer(b)) => Some(a.cmp(b)),
        (Operand::Text(a), Operand::Text(b)) => Some(a.cmp(b)),
        (Operand::Time(Some(a)), Operand::Time(Some(b))) => Some(a.cmp(b)),
        _ => None,
    };
    match (relation, ordering) {
        (Relation::Equal, _) => equal(a, b, object),
        (Relation::NotEqual, _) => !equal(a, b, object),
        (Relation::Less, Some(ordering)) => ordering == Ordering::Less,
        (Relation::LessEqual, Some(ordering)) => ordering != Ordering::Greater,
        (Relation::GreaterEqual, Some(ordering)) => ordering != Ordering::Less,
        (Relation::Greater, Some(ordering)) => ordering == Ordering::Greater,
        // An unset time is neither before nor after another.
        (_, None) => false,
    }
}

fn equal(a: &Operand<'_>, b: &Operand<'_>, object: &Json) -> bool {
    match (a, b) {
        (Operand::Bool(a), Operand::Bool(b)) => a == b,
        (Operand::Integer(a), Operand::Integer(b)) => a == b,
        (Operand::Text(a), Operand::Text(b)) => a == b,
        (Operand::Time(a), Operand::Time(b)) => a == b,
        (Operand::Stored(_) | Operand::Literal(_), Operand::Stored(_) | Operand::Literal(_)) => {
            let (a, b) = (items(a, object), items(b, object));
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| equal(a, b, object))
        }
        _ => is_unset(a) && is_unset(b),
    }
}

fn contains(list: &Operand<'_>, value: &Operand<'_>, object: &Json) -> bool {
    items(list, object)
        .iter()
        .any(|item| equal(item, value, object))
}

fn items<'v>(list: &Operand<'v>, object: &'v Json) -> Vec<Operand<'v>> {
    match list {
        Operand::Literal(items) => items.iter().map(|item| hold(item, object)).collect(),
        Operand::Stored(items) => items
            .iter()
            .map(|item| match item {
                Json::String(text) => Operand::Text(text),
                Json::Bool(flag) => Operand::Bool(*flag),
                Json::Number(number) => Operand::Integer(number.as_i64().unwrap_or(i64::MAX)),
                _ => Operand::Null,
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
