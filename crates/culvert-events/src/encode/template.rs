//! The body of a request, written by a CEL expression over an event: a map, a list or a text.
//!
//! Variables: those of the envelope are `event.event_id`, `event.event_type`, `event.event_timestamp` (a timestamp),
//! `event.account_id`, `event.principal`, `event.object` and the other keys of [`Audit`](super::Audit). The fields of
//! traffic events below `event.object` have the types of the catalogue; all others are dynamic. `formatted` is the whole event,
//! in the format of its destination.
//!
//! An expression that has no result for an event, costs too much or writes too much is an error. There is never a part of a
//! body.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, LazyLock};

use culvert_cel::{
    Env, EvalError, Key, Limits, Map, Program, Resolver, Slot, Timestamp, Type, Value, ValueRef,
};
use serde_json::Value as Json;

use crate::catalogue::field::{FieldDef, Type as FieldType};
use crate::encode::EVENT_BYTES_MAX;
use crate::formats::read_json;
use crate::kinds;

/// Maximum bytes of a body.
pub const BODY_BYTES_MAX: usize = 512 << 10;
/// Maximum depth of nested objects and lists, in events and in bodies.
const DEPTH_MAX: usize = 64;
/// The limits of an expression.
const LIMITS: Limits = Limits {
    source_bytes_max: 8192,
    // Every text of an event can be part of a body.
    string_bytes_max: EVENT_BYTES_MAX,
    memory_bytes_max: 4 * BODY_BYTES_MAX as u64,
    ..Limits::POLICY
};

const FORMATTED: &str = "formatted";
const TIME: &str = "event.event_timestamp";

/// A compiled template.
#[derive(Debug)]
pub struct BodyTemplate {
    program: Program,
    /// Path and type of each variable that it reads.
    variables: Vec<(Slot, &'static str, Type)>,
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateBody {
    /// A map or a list, as JSON.
    Json(Vec<u8>),
    /// A text, as it is.
    Text(String),
}

/// Why a text is no template. Displays as `line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError(String);

/// Why a template has no body for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateFault {
    /// The expression failed, or reached a limit.
    Evaluation(EvalError),
    /// Its result is a number, a truth value or another value that is no body.
    Kind,
    /// The result has a value that JSON does not have, or is nested too deeply.
    Unwritable,
    /// The result is longer than [`BODY_BYTES_MAX`].
    TooLong,
    /// The event cannot be read.
    Event,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TemplateError {}

impl fmt::Display for TemplateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evaluation(error) => return write!(f, "{error}"),
            Self::Kind => "the result is not a map, a list or a string",
            Self::Unwritable => "the result has a value without a form in JSON",
            Self::TooLong => "the result is longer than 512 KiB",
            Self::Event => "the event is nested too deeply",
        })
    }
}

impl std::error::Error for TemplateFault {}

impl BodyTemplate {
    /// Compiles an expression: its types, its names and the estimate of its cost are checked.
    ///
    /// # Errors
    /// With line and column.
    pub fn compile(source: &str) -> Result<Self, TemplateError> {
        static DECLARED: LazyLock<(Env, Vec<(&'static str, Type)>)> = LazyLock::new(declared);
        let (env, variables) = &*DECLARED;
        let program = env.compile(source);
        let program = program.map_err(|error| TemplateError(error.to_string()))?;
        match program.result_type() {
            Type::Dyn | Type::String | Type::List(_) | Type::Map(..) => {}
            other => {
                let text =
                    format!("1:1: the result must be a map, a list or a string, it is a {other}");
                return Err(TemplateError(text));
            }
        }
        let used = program.slots().iter().filter_map(|slot| {
            let (path, of) = variables.get(usize::from(*slot))?;
            Some((*slot, *path, of.clone()))
        });
        Ok(Self {
            variables: used.collect(),
            program,
        })
    }

    /// The body for an event. `formatted` is the event in the format of its destination.
    ///
    /// # Errors
    /// If there is none; nothing of it may be sent then.
    pub fn body(&self, envelope: &[u8], formatted: &[u8]) -> Result<TemplateBody, TemplateFault> {
        let event = read_json(envelope).ok_or(TemplateFault::Event)?;
        let mut values = Vec::with_capacity(self.variables.len());
        for (slot, path, of) in &self.variables {
            let value = match *path {
                FORMATTED => {
                    let formatted = read_json(formatted).ok_or(TemplateFault::Event)?;
                    Some(of_json(&formatted, DEPTH_MAX)?)
                }
                path => value_at(&event, path, of)?,
            };
            values.push((*slot, value));
        }
        let result = self.program.eval(&Values(values));
        match result.map_err(TemplateFault::Evaluation)? {
            Value::String(text) if text.len() > BODY_BYTES_MAX => Err(TemplateFault::TooLong),
            Value::String(text) => Ok(TemplateBody::Text(text.as_ref().to_owned())),
            value @ (Value::List(_) | Value::Map(_)) => {
                let mut body = Vec::new();
                write(value.borrow(), DEPTH_MAX, &mut body)?;
                Ok(TemplateBody::Json(body))
            }
            _ => Err(TemplateFault::Kind),
        }
    }
}

/// The environment, and the variable of each slot.
fn declared() -> (Env, Vec<(&'static str, Type)>) {
    let mut variables = BTreeMap::new();
    for path in [
        "event.cause",
        "event.object",
        "event.previous",
        "event.principal",
        "event.truncated",
        FORMATTED,
    ] {
        variables.insert(path, Type::Dyn);
    }
    for path in ["event.account_id", "event.event_id", "event.event_type"] {
        variables.insert(path, Type::String);
    }
    variables.insert(TIME, Type::Timestamp);
    for field in kinds::ALL.iter().flat_map(|kind| kind.fields) {
        // Once for each field, and the program has them as long as it runs.
        let path: &'static str = format!("event.object.{}", field.path).leak();
        let of = type_of(field);
        let known = variables.entry(path).or_insert_with(|| of.clone());
        if *known != of {
            *known = Type::Dyn;
        }
    }
    let mut env = Env::new(LIMITS);
    for (index, (path, of)) in variables.iter().enumerate() {
        let slot = Slot::try_from(index).unwrap_or(Slot::MAX);
        env = env.with_slot(path, slot, of.clone());
    }
    (env, variables.into_iter().collect())
}

fn type_of(field: &FieldDef) -> Type {
    match field.ty {
        _ if field.nullable() => Type::Dyn,
        FieldType::Bool => Type::Bool,
        FieldType::Int32 | FieldType::Int64 => Type::Int,
        FieldType::Text => Type::String,
        _ => Type::Dyn,
    }
}

/// The value of a variable. `None` if the event lacks it, or has another type there.
fn value_at(event: &Json, path: &str, of: &Type) -> Result<Option<Value>, TemplateFault> {
    let mut keys = path.split('.').skip(1);
    let Some(found) = keys.try_fold(event, |at, key| at.get(key)) else {
        return Ok(None);
    };
    if path == TIME {
        let at = found.as_str().and_then(Timestamp::parse);
        return Ok(at.map(Value::Timestamp));
    }
    let value = of_json(found, DEPTH_MAX)?;
    let fits = match of {
        Type::Bool => matches!(value, Value::Bool(_)),
        Type::Int => matches!(value, Value::Int(_)),
        Type::String => matches!(value, Value::String(_)),
        _ => true,
    };
    Ok(fits.then_some(value))
}

/// The values of the variables. There are few, so a linear search is the fastest.
struct Values(Vec<(Slot, Option<Value>)>);

impl Resolver for Values {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        let found = self.0.iter().find(|(one, _)| *one == slot);
        found?.1.as_ref().map(Value::borrow)
    }
}

fn of_json(json: &Json, depth: usize) -> Result<Value, TemplateFault> {
    let below = || depth.checked_sub(1).ok_or(TemplateFault::Event);
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Value::Int(number),
            (None, Some(number), _) => Value::Uint(number),
            (None, None, Some(number)) => Value::Double(number),
            _ => return Err(TemplateFault::Event),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => {
            let depth = below()?;
            let items = items.iter().map(|item| of_json(item, depth));
            Value::List(items.collect::<Result<Vec<_>, _>>()?.into())
        }
        Json::Object(entries) => {
            let depth = below()?;
            let entries = entries.iter().map(|(key, value)| {
                let key = Key::String(key.as_str().into());
                Ok((key, of_json(value, depth)?))
            });
            let entries = entries.collect::<Result<Vec<_>, _>>()?;
            Value::Map(Arc::new(Map::last_wins(entries)))
        }
    })
}

/// Writes a value as JSON. Times are text of RFC 3339, durations text such as `1.5s`.
fn write(value: ValueRef<'_>, depth: usize, out: &mut Vec<u8>) -> Result<(), TemplateFault> {
    match value {
        ValueRef::Null => out.extend_from_slice(b"null"),
        ValueRef::Bool(value) => push(out, &value),
        ValueRef::Int(value) => push(out, &value),
        ValueRef::Uint(value) => push(out, &value),
        ValueRef::Double(value) if value.is_finite() => push(out, &value),
        ValueRef::String(text) => push_text(out, text),
        ValueRef::Timestamp(at) => push_text(out, &at.to_string()),
        ValueRef::Duration(length) => push_text(out, &length.to_string()),
        ValueRef::List(items) => {
            let depth = depth.checked_sub(1).ok_or(TemplateFault::Unwritable)?;
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(item.borrow(), depth, out)?;
            }
            out.push(b']');
        }
        ValueRef::Map(map) => {
            let depth = depth.checked_sub(1).ok_or(TemplateFault::Unwritable)?;
            out.push(b'{');
            let mut names = HashSet::new();
            for (at, (key, value)) in map.entries().iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                let name: Cow<'_, str> = match key {
                    Key::String(text) => Cow::Borrowed(text.as_ref()),
                    Key::Bool(key) => key.to_string().into(),
                    Key::Int(key) => key.to_string().into(),
                    Key::Uint(key) => key.to_string().into(),
                };
                push_text(out, &name);
                // Such as 1 and '1', of which each reader takes another one.
                if !names.insert(name) {
                    return Err(TemplateFault::Unwritable);
                }
                out.push(b':');
                write(value.borrow(), depth, out)?;
            }
            out.push(b'}');
        }
        ValueRef::Double(_) | ValueRef::Bytes(_) | ValueRef::Type(_) => {
            return Err(TemplateFault::Unwritable);
        }
    }
    match out.len() {
        0..=BODY_BYTES_MAX => Ok(()),
        _ => Err(TemplateFault::TooLong),
    }
}

fn push(out: &mut Vec<u8>, value: &dyn fmt::Display) {
    out.extend_from_slice(value.to_string().as_bytes());
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(Json::from(text).to_string().as_bytes());
}

#[cfg(test)]
mod tests;
