//! Values of the expression language: made from JSON, header fields and times, and converted to text.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_cel::{Key, Timestamp, Value, ValueRef};
use serde_json::{Number, Value as Json};

/// A map of these entries. If a key occurs twice, the later value is used.
pub fn map(entries: Vec<(&str, Value)>) -> Value {
    let mut unique: Vec<(Key, Value)> = Vec::with_capacity(entries.len());
    for (index, (key, value)) in entries.iter().enumerate() {
        let is_last = !entries
            .iter()
            .skip(index + 1)
            .any(|(later, _)| later == key);
        if is_last {
            unique.push((Key::String((*key).into()), value.clone()));
        }
    }
    Value::Map(Arc::new(culvert_cel::Map::new(unique).unwrap_or_default()))
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
pub(crate) fn of_json(json: &Json) -> Value {
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
    let mut names: Vec<(String, Vec<Value>)> = Vec::new();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let value = Value::from(&*value);
        match names.iter_mut().find(|(known, _)| *known == *name) {
            Some((_, values)) => values.push(value),
            None => names.push((name.into_owned(), vec![value])),
        }
    }
    let entries = names
        .into_iter()
        .map(|(name, values)| (Key::String(name.into()), Value::List(values.into())));
    Value::Map(Arc::new(
        culvert_cel::Map::new(entries.collect()).unwrap_or_default(),
    ))
}
