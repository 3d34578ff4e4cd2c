//! The standard library: functions, their types and their implementation. Functions of the host are extensions.

pub(crate) mod extension;
pub(crate) mod standard;

use std::sync::Arc;

use crate::error::EvalErrorKind;
use crate::eval::cost::Meter;
use crate::resolver::Zones;
use crate::types::Type;
use crate::value::time::{Civil, Duration, Timestamp, fixed_offset};
use crate::value::{Value, ValueRef};

/// A function of the standard library. `matches` is here only with a computed pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Size,
    StartsWith,
    EndsWith,
    Contains,
    Matches,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Bool,
    Timestamp,
    Duration,
    Type,
    Dyn,
    Select(Selector),
}

/// A component of a timestamp or a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selector {
    FullYear,
    Month,
    Date,
    DayOfMonth,
    DayOfWeek,
    DayOfYear,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

/// How a function may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Global,
    Member,
    Both,
}

/// The function with this name, if this form of call is allowed.
pub(crate) fn find(name: &str, is_member: bool) -> Option<Function> {
    let (_, form, function) = FUNCTIONS.iter().find(|(known, ..)| *known == name)?;
    let fits = match form {
        Form::Both => true,
        Form::Global => !is_member,
        Form::Member => is_member,
    };
    fits.then_some(*function)
}

/// A suggestion for a misspelled name.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let plain = |name: &str| name.replace('_', "").to_ascii_lowercase();
    let wanted = match plain(name).as_str() {
        "includes" => "contains".to_owned(),
        "len" | "length" => "size".to_owned(),
        other => other.to_owned(),
    };
    FUNCTIONS
        .iter()
        .map(|(known, ..)| *known)
        .find(|known| plain(known) == wanted)
}

impl Function {
    /// The type of the result for arguments of these types, with the receiver first. `None` if there is no overload.
    /// An argument of type dyn matches all types.
    pub(crate) fn result(self, arguments: &[Type]) -> Option<Type> {
        let one_of = |types: &[Type]| match arguments {
            [Type::Dyn] => true,
            [only] => types.contains(only),
            _ => false,
        };
        let are_strings =
            |count| arguments.len() == count && arguments.iter().all(|of| fits(of, &Type::String));
        let (fits, result) = match self {
            Self::Size => {
                let fits = matches!(
                    arguments,
                    [Type::Dyn | Type::String | Type::Bytes | Type::List(_) | Type::Map(..)]
                );
                (fits, Type::Int)
            }
            Self::StartsWith | Self::EndsWith | Self::Contains | Self::Matches => {
                (are_strings(2), Type::Bool)
            }
            Self::Int => (
                one_of(&[
                    Type::Int,
                    Type::Uint,
                    Type::Double,
                    Type::String,
                    Type::Timestamp,
                ]),
                Type::Int,
            ),
            Self::Uint => (
                one_of(&[Type::Int, Type::Uint, Type::Double, Type::String]),
                Type::Uint,
            ),
            Self::Double => (
                one_of(&[Type::Int, Type::Uint, Type::Double, Type::String]),
                Type::Double,
            ),
            Self::String => {
                let fits = one_of(&[
                    Type::Bool,
                    Type::Int,
                    Type::Uint,
                    Type::Double,
                    Type::String,
                    Type::Bytes,
                    Type::Timestamp,
                    Type::Duration,
                ]);
                (fits, Type::String)
            }
            Self::Bytes => (one_of(&[Type::String, Type::Bytes]), Type::Bytes),
            Self::Bool => (one_of(&[Type::Bool, Type::String]), Type::Bool),
            Self::Timestamp => (
                one_of(&[Type::Int, Type::String, Type::Timestamp]),
                Type::Timestamp,
            ),
            Self::Duration => (one_of(&[Type::String, Type::Duration]), Type::Duration),
            Self::Type => (arguments.len() == 1, Type::Type),
            Self::Dyn => (arguments.len() == 1, Type::Dyn),
            Self::Select(selector) => {
                let fits = match arguments {
                    [Type::Timestamp | Type::Dyn] => true,
                    [Type::Duration] => selector.is_of_duration(),
                    [Type::Timestamp | Type::Dyn, Type::String | Type::Dyn] => true,
                    _ => false,
                };
                (fits, Type::Int)
            }
        };
        fits.then_some(result)
    }

    /// Calls the function. For the order of the arguments, see `result`.
    pub(crate) fn call(
        self,
        arguments: &[ValueRef<'_>],
        zones: Option<Zones>,
        meter: &mut Meter<'_>,
    ) -> Result<Value, EvalErrorKind> {
        for argument in arguments {
            if !matches!(argument, ValueRef::List(_) | ValueRef::Map(_)) {
                meter.touch(argument.weight())?;
            }
        }
        match (self, arguments) {
            (Self::Size, [of]) => size(*of).map(Value::Int),
            (
                Self::StartsWith | Self::EndsWith | Self::Contains,
                [ValueRef::String(text), ValueRef::String(part)],
            ) => Ok(Value::Bool(match self {
                Self::StartsWith => text.starts_with(part),
                Self::EndsWith => text.ends_with(part),
                _ => text.contains(part),
            })),
            (Self::Int, [of]) => to_int(*of).map(Value::Int),
            (Self::Uint, [of]) => to_uint(*of).map(Value::Uint),
            (Self::Double, [of]) => to_double(*of).map(Value::Double),
            (Self::String, [of]) => to_string(*of, meter),
            (Self::Bytes, [of]) => to_bytes(*of, meter),
            (Self::Bool, [of]) => to_bool(*of).map(Value::Bool),
            (Self::Timestamp, [of]) => to_timestamp(*of).map(Value::Timestamp),
            (Self::Duration, [of]) => to_duration(*of).map(Value::Duration),
            (Self::Type, [of]) => Ok(Value::Type(of.kind())),
            (Self::Select(selector), [ValueRef::Duration(of)]) => selector
                .of_duration(*of)
                .map(Value::Int)
                .ok_or(EvalErrorKind::NoSuchOverload),
            (Self::Select(selector), [ValueRef::Timestamp(of)]) => {
                Ok(Value::Int(selector.of_civil(of.civil(0))))
            }
            (Self::Select(selector), [ValueRef::Timestamp(of), ValueRef::String(zone)]) => {
                let offset = fixed_offset(zone)
                    .or_else(|| zones.and_then(|zones| zones(zone, of.seconds())))
                    .filter(|offset| offset.unsigned_abs() < 86_400)
                    .ok_or(EvalErrorKind::InvalidArgument)?;
                Ok(Value::Int(selector.of_civil(of.civil(offset))))
            }
            _ => Err(EvalErrorKind::NoSuchOverload),
        }
    }
}

impl Selector {
    fn is_of_duration(self) -> bool {
        matches!(
            self,
            Self::Hours | Self::Minutes | Self::Seconds | Self::Milliseconds
        )
    }

    /// A component of a duration. Hours, minutes and seconds are the whole duration in that unit; milliseconds are
    /// those within a second.
    fn of_duration(self, of: Duration) -> Option<i64> {
        let nanos = of.nanos();
        Some(match self {
            Self::Hours => nanos / 3_600_000_000_000,
            Self::Minutes => nanos / 60_000_000_000,
            Self::Seconds => nanos / 1_000_000_000,
            Self::Milliseconds => nanos / 1_000_000 % 1_000,
            _ => return None,
        })
    }

    fn of_civil(self, at: Civil) -> i64 {
        match self {
            Self::FullYear => at.year,
            Self::Month => at.month - 1,
            Self::Date => at.day,
            Self::DayOfMonth => at.day - 1,
            Self::DayOfWeek => at.day_of_week,
            Self::DayOfYear => at.day_of_year,
            Self::Hours => at.hour,
            Self::Minutes => at.minute,
            Self::Seconds => at.second,
            Self::Milliseconds => at.millisecond,
        }
    }
}

fn fits(of: &Type, wanted: &Type) -> bool {
    of == wanted || *of == Type::Dyn
}

fn size(of: ValueRef<'_>) -> Result<i64, EvalErrorKind> {
    let size = match of {
        ValueRef::String(text) => text.chars().count(),
        ValueRef::Bytes(bytes) => bytes.len(),
        ValueRef::List(items) => items.len(),
        ValueRef::Map(map) => map.len(),
        _ => return Err(EvalErrorKind::NoSuchOverload),
    };
    i64::try_from(size).map_err(|_| EvalErrorKind::OutOfRange)
}

fn to_int(of: ValueRef<'_>) -> Result<i64, EvalErrorKind> {
    match of {
        ValueRef::Int(value) => Ok(value),
        ValueRef::Uint(value) => i64::try_from(value).map_err(|_| EvalErrorKind::OutOfRange),
        // Both bounds are exclusive: a double cannot represent the largest int, only the number after it.
        ValueRef::Double(value) if value.abs() < 9_223_372_036_854_775_808.0 => Ok(value as i64),
        ValueRef::Double(_) => Err(EvalErrorKind::OutOfRange),
        ValueRef::String(text) => text.parse().map_err(|_| EvalErrorKind::InvalidArgument),
        ValueRef::Timestamp(value) => Ok(value.seconds()),
        _ => Err(EvalErrorKind::NoSuchOverload),
    }
}

fn to_uint(of: ValueRef<'_>) -> Result<u64, EvalErrorKind> {
    match of {
        ValueRef::Uint(value) => Ok(value),
        ValueRef::Int(value) => u64::try_from(value).map_err(|_| EvalErrorKind::OutOfRange),
        ValueRef::Double(value) if (0.0..18_446_744_073_709_551_616.0).contains(&value) => {
            Ok(value as u64)
        }
        ValueRef::Double(_) => Err(EvalErrorKind::OutOfRange),
        ValueRef::String(text) => text.parse().map_err(|_| EvalErrorKind::InvalidArgument),
        _ => Err(EvalErrorKind::NoSuchOverload),
    }
}

fn to_double(of: ValueRef<'_>) -> Result<f64, EvalErrorKind> {
    match of {
        ValueRef::Double(value) => Ok(value),
        ValueRef::Int(value) => Ok(value as f64),
        ValueRef::Uint(value) => Ok(value as f64),
        ValueRef::String(text) => text.parse().map_err(|_| EvalErrorKind::InvalidArgument),
        _ => Err(EvalErrorKind::NoSuchOverload),
    }
}

fn to_string(of: ValueRef<'_>, meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let text = match of {
        ValueRef::String(text) => {
            meter.make_string(text.len())?;
            return Ok(Value::String(text.into()));
        }
        ValueRef::Bytes(bytes) => {
            meter.make_string(bytes.len())?;
            let text = std::str::from_utf8(bytes).map_err(|_| EvalErrorKind::InvalidArgument)?;
            return Ok(Value::String(text.into()));
        }
        ValueRef::Bool(value) => value.to_string(),
        ValueRef::Int(value) => value.to_string(),
        ValueRef::Uint(value) => value.to_string(),
        ValueRef::Double(value) => double_text(value),
        ValueRef::Timestamp(value) => value.to_string(),
        ValueRef::Duration(value) => value.to_string(),
        _ => return Err(EvalErrorKind::NoSuchOverload),
    };
    meter.make_string(text.len())?;
    Ok(Value::String(text.into()))
}

/// The shortest text that parses as the same double. Very large and very small numbers have an exponent.
fn double_text(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && magnitude.is_finite() && !(1e-4..1e21).contains(&magnitude) {
        format!("{value:e}")
    } else if value.is_infinite() {
        (if value > 0.0 { "+Inf" } else { "-Inf" }).to_owned()
    } else {
        value.to_string()
    }
}

fn to_bytes(of: ValueRef<'_>, meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let bytes = match of {
        ValueRef::Bytes(bytes) => bytes,
        ValueRef::String(text) => text.as_bytes(),
        _ => return Err(EvalErrorKind::NoSuchOverload),
    };
    meter.make_string(bytes.len())?;
    Ok(Value::Bytes(Arc::from(bytes)))
}

fn to_bool(of: ValueRef<'_>) -> Result<bool, EvalErrorKind> {
    match of {
        ValueRef::Bool(value) => Ok(value),
        ValueRef::String("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        ValueRef::String("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        ValueRef::String(_) => Err(EvalErrorKind::InvalidArgument),
        _ => Err(EvalErrorKind::NoSuchOverload),
    }
}

fn to_timestamp(of: ValueRef<'_>) -> Result<Timestamp, EvalErrorKind> {
    match of {
        ValueRef::Timestamp(value) => Ok(value),
        ValueRef::Int(seconds) => Timestamp::new(seconds, 0).ok_or(EvalErrorKind::OutOfRange),
        ValueRef::String(text) => Timestamp::parse(text).ok_or(EvalErrorKind::InvalidArgument),
        _ => Err(EvalErrorKind::NoSuchOverload),
    }
}

fn to_duration(of: ValueRef<'_>) -> Result<Duration, EvalErrorKind> {
    match of {
        ValueRef::Duration(value) => Ok(value),
        ValueRef::String(text) => Duration::parse(text).ok_or(EvalErrorKind::InvalidArgument),
        _ => Err(EvalErrorKind::NoSuchOverload),
    }
}

const FUNCTIONS: [(&str, Form, Function); 25] = [
    ("size", Form::Both, Function::Size),
    ("startsWith", Form::Member, Function::StartsWith),
    ("endsWith", Form::Member, Function::EndsWith),
    ("contains", Form::Member, Function::Contains),
    ("matches", Form::Both, Function::Matches),
    ("int", Form::Global, Function::Int),
    ("uint", Form::Global, Function::Uint),
    ("double", Form::Global, Function::Double),
    ("string", Form::Global, Function::String),
    ("bytes", Form::Global, Function::Bytes),
    ("bool", Form::Global, Function::Bool),
    ("timestamp", Form::Global, Function::Timestamp),
    ("duration", Form::Global, Function::Duration),
    ("type", Form::Global, Function::Type),
    ("dyn", Form::Global, Function::Dyn),
    (
        "getFullYear",
        Form::Member,
        Function::Select(Selector::FullYear),
    ),
    ("getMonth", Form::Member, Function::Select(Selector::Month)),
    ("getDate", Form::Member, Function::Select(Selector::Date)),
    (
        "getDayOfMonth",
        Form::Member,
        Function::Select(Selector::DayOfMonth),
    ),
    (
        "getDayOfWeek",
        Form::Member,
        Function::Select(Selector::DayOfWeek),
    ),
    (
        "getDayOfYear",
        Form::Member,
        Function::Select(Selector::DayOfYear),
    ),
    ("getHours", Form::Member, Function::Select(Selector::Hours)),
    (
        "getMinutes",
        Form::Member,
        Function::Select(Selector::Minutes),
    ),
    (
        "getSeconds",
        Form::Member,
        Function::Select(Selector::Seconds),
    ),
    (
        "getMilliseconds",
        Form::Member,
        Function::Select(Selector::Milliseconds),
    ),
];
