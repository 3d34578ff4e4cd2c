//! Functions on text: the strings extension of the language, and case in all scripts.

use culvert_base::text::hex;
use culvert_cel::{EvalErrorKind, Meter, Value, ValueRef};

use super::row::{INVALID, NO_OVERLOAD, Row, global, member, new_text};
use crate::policy::values::{charge, text as shown, to_json};

#[rustfmt::skip]
pub(super) fn rows() -> Vec<Row> {
    const MAP: &[&str] = &["(string) -> string"];
    const FIND: &[&str] = &["(string, string) -> int", "(string, string, int) -> int"];
    vec![
        member("charAt", &["(string, int) -> string"], "The character at a position.", char_at),
        member("indexOf", FIND, "Position of the first occurrence, from a position on; -1 if there is none.", index_of),
        member("lastIndexOf", FIND, "Position of the last occurrence, up to a position; -1 if there is none.", last_index_of),
        member("split", &["(string, string) -> list(string)", "(string, string, int) -> list(string)"], "The parts between separators, up to a maximum number.", split),
        member("join", &["(list(string)) -> string", "(list(string), string) -> string"], "The strings joined with a separator.", join),
        member("replace", &["(string, string, string) -> string", "(string, string, string, int) -> string"], "The string with occurrences replaced, up to a maximum number.", replace),
        member("substring", &["(string, int) -> string", "(string, int, int) -> string"], "The substring from a position to another.", substring),
        member("trim", MAP, "The string without leading and trailing white space.", |a, m| map(a, m, |text| text.trim().to_owned())),
        member("reverse", MAP, "The characters in reverse.", |a, m| map(a, m, |text| text.chars().rev().collect())),
        member("lowerAscii", MAP, "The string with ASCII letters in lower case.", |a, m| map(a, m, str::to_ascii_lowercase)),
        member("upperAscii", MAP, "The string with ASCII letters in upper case.", |a, m| map(a, m, str::to_ascii_uppercase)),
        member("lower", MAP, "The string in lower case.", |a, m| map(a, m, str::to_lowercase)),
        member("upper", MAP, "The string in upper case.", |a, m| map(a, m, str::to_uppercase)),
        member("format", &["(string, list(dyn)) -> string"], "The string with `%s`, `%d`, `%f`, `%e`, `%x`, `%X`, `%o` and `%b` replaced by the items.", format),
        global("strings.quote", MAP, "The string as a CEL literal.", |a, m| map(a, m, |text| serde_json::Value::from(text).to_string())),
    ]
}

fn map(
    arguments: &[ValueRef<'_>],
    meter: &mut Meter<'_>,
    change: impl Fn(&str) -> String,
) -> Result<Value, EvalErrorKind> {
    match arguments {
        [ValueRef::String(text)] => new_text(change(text), meter),
        _ => Err(NO_OVERLOAD),
    }
}

/// The byte offset of the character at that position. The end of the text is a valid position.
fn byte_at(text: &str, position: i64) -> Result<usize, EvalErrorKind> {
    let position = usize::try_from(position).map_err(|_| EvalErrorKind::IndexOutOfRange)?;
    let starts = text.char_indices().map(|(byte, _)| byte);
    let mut ends = starts.chain([text.len()]);
    ends.nth(position).ok_or(EvalErrorKind::IndexOutOfRange)
}

fn position(text: &str, byte: usize) -> Value {
    let before = text.get(..byte).unwrap_or_default().chars().count();
    Value::Int(i64::try_from(before).unwrap_or(i64::MAX))
}

fn char_at(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(text), ValueRef::Int(at)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    let rest = text.get(byte_at(text, *at)?..).unwrap_or_default();
    new_text(rest.chars().take(1).collect::<String>(), meter)
}

fn index_of(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let (text, part, from) = match arguments {
        [ValueRef::String(text), ValueRef::String(part)] => (text, part, 0),
        [
            ValueRef::String(text),
            ValueRef::String(part),
            ValueRef::Int(from),
        ] => (text, part, byte_at(text, *from)?),
        _ => return Err(NO_OVERLOAD),
    };
    let found = text.get(from..).unwrap_or_default().find(part);
    Ok(found.map_or(Value::Int(-1), |at| position(text, from + at)))
}

fn last_index_of(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let (text, part, up_to) = match arguments {
        [ValueRef::String(text), ValueRef::String(part)] => (text, part, text.len()),
        [
            ValueRef::String(text),
            ValueRef::String(part),
            ValueRef::Int(last),
        ] => {
            // An occurrence may begin there, so its end counts.
            let last = byte_at(text, *last)?;
            (text, part, text.len().min(last + part.len()))
        }
        _ => return Err(NO_OVERLOAD),
    };
    let head = &text[..text.floor_char_boundary(up_to)];
    Ok(head
        .rfind(part)
        .map_or(Value::Int(-1), |at| position(text, at)))
}

fn split(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let (text, separator, most) = match arguments {
        [ValueRef::String(text), ValueRef::String(separator)] => (text, separator, -1),
        [
            ValueRef::String(text),
            ValueRef::String(separator),
            ValueRef::Int(most),
        ] => (text, separator, *most),
        _ => return Err(NO_OVERLOAD),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let parts: Vec<&str> = match (separator.is_empty(), most) {
        (_, 0) => Vec::new(),
        // Between characters, not around them.
        (true, _) => {
            let mut parts: Vec<&str> = text.split("").filter(|part| !part.is_empty()).collect();
            if parts.len() > most {
                let start = byte_at(text, i64::try_from(most - 1).unwrap_or(i64::MAX))?;
                parts.truncate(most - 1);
                parts.push(text.get(start..).unwrap_or_default());
            }
            parts
        }
        (false, _) => text.splitn(most, separator).collect(),
    };
    meter.make_list(parts.len())?;
    let parts = parts.into_iter().map(|part| new_text(part, meter));
    Ok(Value::List(parts.collect::<Result<_, _>>()?))
}

fn join(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let (items, separator) = match arguments {
        [ValueRef::List(items)] => (items, ""),
        [ValueRef::List(items), ValueRef::String(separator)] => (items, *separator),
        _ => return Err(NO_OVERLOAD),
    };
    let mut joined = String::new();
    for (index, item) in items.iter().enumerate() {
        let ValueRef::String(item) = item.borrow() else {
            return Err(NO_OVERLOAD);
        };
        meter.touch(item.len() + separator.len())?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(item);
    }
    new_text(joined, meter)
}

fn replace(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let (text, from, to, most) = match arguments {
        [
            ValueRef::String(text),
            ValueRef::String(from),
            ValueRef::String(to),
        ] => (text, from, to, -1),
        [
            ValueRef::String(text),
            ValueRef::String(from),
            ValueRef::String(to),
            ValueRef::Int(most),
        ] => (text, from, to, *most),
        _ => return Err(NO_OVERLOAD),
    };
    let found = text.matches(from).count();
    let times = usize::try_from(most).unwrap_or(found).min(found);
    // Charged before the text is new_text, because a short text can become a long one.
    let length = text.len().saturating_add(to.len().saturating_mul(times));
    meter.make_string(length)?;
    Ok(Value::from(text.replacen(from, to, times).as_str()))
}

fn substring(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let (text, start, end) = match arguments {
        [ValueRef::String(text), ValueRef::Int(start)] => {
            (text, byte_at(text, *start)?, text.len())
        }
        [
            ValueRef::String(text),
            ValueRef::Int(start),
            ValueRef::Int(end),
        ] => (text, byte_at(text, *start)?, byte_at(text, *end)?),
        _ => return Err(NO_OVERLOAD),
    };
    let part = text.get(start..end).ok_or(EvalErrorKind::IndexOutOfRange)?;
    new_text(part, meter)
}

fn format(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(text), ValueRef::List(items)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    let (mut out, mut rest, mut items) = (String::new(), *text, items.iter());
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let (precision, after) = match after.strip_prefix('.') {
            None => (6, after),
            Some(after) => {
                let digits = after.bytes().take_while(u8::is_ascii_digit).count();
                let (digits, after) = after.split_at(digits);
                let precision = digits.parse::<usize>().ok().filter(|digits| *digits <= 100);
                (precision.ok_or(INVALID)?, after)
            }
        };
        let verb = after.chars().next().ok_or(INVALID)?;
        let item = items.next().ok_or(EvalErrorKind::IndexOutOfRange)?;
        charge(item.borrow(), meter)?;
        let part = formatted(verb, precision, item.borrow())?;
        meter.touch(part.len() + 64)?;
        out.push_str(&part);
        if out.len() > 1 << 20 {
            return Err(EvalErrorKind::MemoryExceeded);
        }
        rest = &after[verb.len_utf8()..];
    }
    out.push_str(rest);
    new_text(out, meter)
}

fn formatted(verb: char, precision: usize, item: ValueRef<'_>) -> Result<String, EvalErrorKind> {
    let number = match item {
        ValueRef::Int(number) => Some(i128::from(number)),
        ValueRef::Uint(number) => Some(i128::from(number)),
        ValueRef::Bool(flag) if verb == 'b' => Some(i128::from(flag)),
        _ => None,
    };
    let sign = if number.is_some_and(|number| number < 0) {
        "-"
    } else {
        ""
    };
    let size = number.map(i128::unsigned_abs);
    Ok(match (verb, item, size) {
        ('s', ValueRef::List(_) | ValueRef::Map(_), _) => to_json(item).to_string(),
        ('s', item, _) => shown(item),
        ('d', _, Some(size)) => format!("{sign}{size}"),
        ('b', _, Some(size)) => format!("{sign}{size:b}"),
        ('o', _, Some(size)) => format!("{sign}{size:o}"),
        ('x', _, Some(size)) => format!("{sign}{size:x}"),
        ('X', _, Some(size)) => format!("{sign}{size:X}"),
        ('x', ValueRef::String(text), _) => hex(text.as_bytes()),
        ('X', ValueRef::String(text), _) => hex(text.as_bytes()).to_ascii_uppercase(),
        ('x', ValueRef::Bytes(bytes), _) => hex(bytes),
        ('X', ValueRef::Bytes(bytes), _) => hex(bytes).to_ascii_uppercase(),
        ('d', ValueRef::Double(number), _) => shown(ValueRef::Double(number)),
        ('f', item, _) => format!("{:.precision$}", double(item)?),
        ('e', item, _) => {
            let text = format!("{:.precision$e}", double(item)?);
            // The exponent has a sign and two digits.
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let exponent: i32 = exponent.parse().unwrap_or_default();
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => return Err(INVALID),
    })
}

fn double(item: ValueRef<'_>) -> Result<f64, EvalErrorKind> {
    match item {
        ValueRef::Double(number) => Ok(number),
        ValueRef::Int(number) => Ok(number as f64),
        ValueRef::Uint(number) => Ok(number as f64),
        _ => Err(INVALID),
    }
}
