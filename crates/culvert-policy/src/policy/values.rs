//! Values of the expression language: made from JSON, header fields and times, and converted to text.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_cel::{EvalErrorKind, Key, Meter, Timestamp, Value, ValueRef};
use serde_json::{Number, Value as Json};

/// Most nested lists and maps of a value that an expression or an action yields.
const LEVELS_MAX: usize = 160;
/// Most bytes of such a value as text, and items in it. Lists and maps may contain the same value many times, so a value
/// that needs little memory can have a text of any length.
const WEIGHT_MAX: usize = 1 << 20;

/// A map of these entries. If a key occurs twice, the later value is used.
pub fn map(entries: Vec<(&str, Value)>) -> Value {
    let entries = entries.into_iter();
    let entries = entries.map(|(key, value)| (Key::String(key.into()), value));
    Value::Map(Arc::new(culvert_cel::Map::last_wins(entries.collect())))
}

/// A map of lists: the values of each name, in their order.
pub(crate) fn grouped(mut pairs: Vec<(String, Value)>) -> Value {
    // A stable sort, because clients choose how many names there are.
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut entries: Vec<(Key, Value)> = Vec::new();
    let mut pairs = pairs.into_iter().peekable();
    while let Some((name, first)) = pairs.next() {
        let mut values = vec![first];
        while let Some((_, value)) = pairs.next_if(|(next, _)| *next == name) {
            values.push(value);
        }
        entries.push((Key::String(name.into()), Value::List(values.into())));
    }
    Value::Map(Arc::new(culvert_cel::Map::last_wins(entries)))
}

/// Checks that a value can be converted to text or JSON: it is neither nested too deeply nor too large. Visits at most
/// as many items as a value may have.
pub(crate) fn check_size(value: ValueRef<'_>) -> Result<(), EvalErrorKind> {
    let mut left = WEIGHT_MAX;
    weigh(value, LEVELS_MAX, &mut |weight| {
        left = left
            .checked_sub(weight)
            .ok_or(EvalErrorKind::MemoryExceeded)?;
        Ok(())
    })
}

/// The same within an evaluation, which is charged for each item and byte.
pub(crate) fn charge(value: ValueRef<'_>, meter: &mut Meter<'_>) -> Result<(), EvalErrorKind> {
    weigh(value, LEVELS_MAX, &mut |weight| {
        meter.spend(1)?;
        meter.touch(weight)
    })
}

/// Passes the weight of each item of a value, about the length of its text.
fn weigh(
    value: ValueRef<'_>,
    levels: usize,
    spend: &mut dyn FnMut(usize) -> Result<(), EvalErrorKind>,
) -> Result<(), EvalErrorKind> {
    match value {
        ValueRef::List(items) => {
            let below = levels.checked_sub(1).ok_or(EvalErrorKind::DepthExceeded)?;
            spend(2)?;
            items
                .iter()
                .try_for_each(|item| weigh(item.borrow(), below, spend))
        }
        ValueRef::Map(map) => {
            let below = levels.checked_sub(1).ok_or(EvalErrorKind::DepthExceeded)?;
            spend(2)?;
            map.entries().iter().try_for_each(|(key, value)| {
                spend(key.borrow().weight() + 4)?;
                weigh(value.borrow(), below, spend)
            })
        }
        other => spend(other.weight().max(1)),
    }
}

/// A list of texts.
pub fn texts<'t>(items: impl IntoIterator<Item = &'t str>) -> Value {
    Value::List(items.into_iter().map(Value::from).collect())
}

/// A number as a value: integral ones are ints.
pub(crate) fn of_number(number: &Number) -> Value {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(number), ..) => Value::Int(number),
        (_, Some(number), _) => Value::Uint(number),
        (_, _, Some(number)) => Value::Double(number),
        _ => Value::Null,
    }
}

/// JSON as a value: integral numbers are ints.
pub fn of_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number.as_f64() {
            Some(double)
                if number.is_f64()
                    && double.fract() == 0.0
                    && double.abs() < 9_007_199_254_740_992.0 =>
            {
                Value::Int(double as i64)
            }
            _ => of_number(number),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::List(items.iter().map(of_json).collect()),
        Json::Object(entries) => map(entries
            .iter()
            .map(|(key, value)| (key.as_str(), of_json(value)))
            .collect()),
    }
}

/// Converts a value to JSON. Values without a JSON form become text as in a template.
pub fn to_json(value: ValueRef<'_>) -> Json {
    match value {
        ValueRef::Null => Json::Null,
        ValueRef::Bool(value) => Json::Bool(value),
        ValueRef::Int(value) => Json::from(value),
        ValueRef::Uint(value) => Json::from(value),
        ValueRef::Double(value) => Json::from(value),
        ValueRef::List(items) => items.iter().map(|item| to_json(item.borrow())).collect(),
        ValueRef::Map(map) => map
            .entries()
            .iter()
            .map(|(key, value)| (text(key.to_value().borrow()), to_json(value.borrow())))
            .collect(),
        other => Json::String(text(other)),
    }
}

/// A value as text.
pub fn text(value: ValueRef<'_>) -> String {
    let mut out = String::new();
    push_text(&mut out, value);
    out
}

/// Appends a value as text.
pub(crate) fn push_text(out: &mut String, value: ValueRef<'_>) {
    // Writing to a string cannot fail.
    let _ok = match value {
        ValueRef::Null => Ok(()),
        ValueRef::Bool(value) => write!(out, "{value}"),
        ValueRef::Int(value) => write!(out, "{value}"),
        ValueRef::Uint(value) => write!(out, "{value}"),
        ValueRef::Double(value) => write!(out, "{value}"),
        ValueRef::String(value) => out.write_str(value),
        ValueRef::Bytes(value) => out.write_str(&STANDARD.encode(value)),
        ValueRef::Timestamp(value) => write!(out, "{value}"),
        ValueRef::Duration(value) => write!(out, "{value}"),
        ValueRef::List(_) | ValueRef::Map(_) => write!(out, "{}", to_json(value)),
        ValueRef::Type(value) => write!(out, "{value}"),
    };
}

/// Converts a timestamp to the type of the expression language.
pub fn moment(at: culvert_base::Timestamp) -> Value {
    let nanos = at.unix_nanos();
    let (seconds, rest) = (
        nanos.div_euclid(1_000_000_000),
        nanos.rem_euclid(1_000_000_000),
    );
    let rest = u32::try_from(rest).unwrap_or(0);
    Timestamp::new(seconds, rest).map_or(Value::Null, Value::Timestamp)
}

/// A field value: UTF-8, else each byte as a character of Latin-1.
pub fn decoded(value: &http::HeaderValue) -> Cow<'_, str> {
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => text.into(),
        Err(_) => value.as_bytes().iter().copied().map(char::from).collect(),
    }
}

/// Parameters of a query by name, decoded.
pub(crate) fn query_parameters(query: &str) -> Value {
    let pairs = url::form_urlencoded::parse(query.as_bytes());
    grouped(
        pairs
            .map(|(name, value)| (name.into_owned(), Value::from(&*value)))
            .collect(),
    )
}
