//! Functions that read and write encodings: base64, JSON, query strings, URLs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_cel::{EvalErrorKind, Meter, Value, ValueRef};
use url::Url;

use super::row::{INVALID, NO_OVERLOAD, Row, global, member, new_text};
use crate::policy::values::query_parameters;
use crate::policy::values::{charge, map, of_json, text, to_json};

#[rustfmt::skip]
pub(super) fn rows() -> Vec<Row> {
    const TEXT: &[&str] = &["(string) -> string"];
    const IS: &[&str] = &["(string) -> bool"];
    const READ: &[&str] = &["(string) -> dyn"];
    const WRITE: &[&str] = &["(dyn) -> string"];
    const QUERY: &[&str] = &["(string) -> map(string, string)"];
    const PAIRS: &[&str] = &["(map(string, dyn)) -> string"];
    const URL: &[&str] = &["(string) -> map(string, dyn)"];
    vec![
        global("base64.encode", &["(bytes) -> string"], "The Base64 encoding of bytes.", encode_base64),
        global("base64.decode", &["(string) -> bytes"], "The decoded bytes of padded Base64.", decode_base64),
        member("encodeBase64", TEXT, "The Base64 encoding of a string.", encode_base64),
        member("decodeBase64", TEXT, "The decoded string of Base64.", decode_base64_text),
        global("json.decode", READ, "The decoded value of a JSON string.", decode_json),
        global("json.encode", WRITE, "A value encoded as JSON.", encode_json),
        member("decodeJson", READ, "The decoded value of a JSON string.", decode_json),
        member("encodeJson", WRITE, "A value encoded as JSON.", encode_json),
        member("isJson", IS, "Whether a string is valid JSON.", is_json),
        global("queryString.decode", QUERY, "The parameters of a query string, with the first value of each.", decode_query),
        global("queryString.encode", PAIRS, "A map encoded as a query string.", encode_query),
        member("decodeQueryString", QUERY, "The parameters of a query string, with the first value of each.", decode_query),
        member("encodeQueryString", PAIRS, "A map encoded as a query string.", encode_query),
        member("isQueryString", IS, "Whether a string is a valid query string, without spaces or control characters.", |a, _| one(a, is_query)),
        global("url.parse", URL, "The `host`, `scheme`, `path`, `query` and `port` of a URL.", parse_url),
        global("url.escape", TEXT, "The string encoded for a query value.", escape),
        global("url.unescape", TEXT, "The decoded string of a query value.", unescape),
        member("parseUrl", URL, "The `host`, `scheme`, `path`, `query` and `port` of a URL.", parse_url),
        member("escapeUrl", TEXT, "The string encoded for a query value.", escape),
        member("unescapeUrl", TEXT, "The decoded string of a query value.", unescape),
        member("isURL", IS, "Whether a string is a URL with a scheme and a host.", |a, _| one(a, |text| Url::parse(text).is_ok_and(|url| url.has_host()))),
    ]
}

fn one(arguments: &[ValueRef<'_>], is: impl Fn(&str) -> bool) -> Result<Value, EvalErrorKind> {
    match arguments {
        [ValueRef::String(text)] => Ok(Value::Bool(is(text))),
        _ => Err(NO_OVERLOAD),
    }
}

fn encode_base64(
    arguments: &[ValueRef<'_>],
    meter: &mut Meter<'_>,
) -> Result<Value, EvalErrorKind> {
    match arguments {
        [ValueRef::Bytes(bytes)] => new_text(STANDARD.encode(bytes), meter),
        [ValueRef::String(text)] => new_text(STANDARD.encode(text), meter),
        _ => Err(NO_OVERLOAD),
    }
}

fn decoded(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Vec<u8>, EvalErrorKind> {
    let [ValueRef::String(text)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    meter.make_string(text.len())?;
    STANDARD.decode(text).map_err(|_| INVALID)
}

fn decode_base64(
    arguments: &[ValueRef<'_>],
    meter: &mut Meter<'_>,
) -> Result<Value, EvalErrorKind> {
    Ok(Value::Bytes(decoded(arguments, meter)?.into()))
}

fn decode_base64_text(
    arguments: &[ValueRef<'_>],
    meter: &mut Meter<'_>,
) -> Result<Value, EvalErrorKind> {
    let text = String::from_utf8(decoded(arguments, meter)?).map_err(|_| INVALID)?;
    Ok(Value::from(text.as_str()))
}

fn decode_json(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(text)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    // The values need more memory than their text: an item of a list takes only two bytes of text.
    meter.make_string(text.len())?;
    meter.spend(text.len() as u64 / 4)?;
    check_depth(text)?;
    let json = serde_json::from_str(text).map_err(|_| INVALID)?;
    Ok(of_json(&json))
}

fn is_json(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(text)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    check_depth(text)?;
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    Ok(Value::Bool(is_json))
}

/// Checks that JSON is nested no deeper than its parser goes. Whether deeper JSON is valid is not known, so it is
/// neither an invalid argument nor no JSON.
fn check_depth(text: &str) -> Result<(), EvalErrorKind> {
    /// The limit of the parser.
    const LEVELS_MAX: usize = 127;
    let (mut levels, mut is_text, mut is_escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if std::mem::take(&mut is_escaped) => {}
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'[' | b'{' if !is_text => levels += 1,
            b']' | b'}' if !is_text => levels = levels.saturating_sub(1),
            _ => {}
        }
        if levels > LEVELS_MAX {
            return Err(EvalErrorKind::DepthExceeded);
        }
    }
    Ok(())
}

fn encode_json(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    match arguments {
        [value] => {
            charge(*value, meter)?;
            new_text(to_json(*value).to_string(), meter)
        }
        _ => Err(NO_OVERLOAD),
    }
}

fn decode_query(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(query)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    meter.make_string(query.len())?;
    let Value::Map(parameters) = query_parameters(query) else {
        return Err(INVALID);
    };
    meter.make_list(parameters.len())?;
    let firsts = parameters
        .entries()
        .iter()
        .filter_map(|(name, values)| match values {
            Value::List(values) => Some((text(name.to_value().borrow()), values.first()?.clone())),
            _ => None,
        });
    let firsts: Vec<(String, Value)> = firsts.collect();
    Ok(map(firsts
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()))
        .collect()))
}

fn encode_query(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::Map(parameters)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters.entries() {
        charge(value.borrow(), meter)?;
        let name = text(name.to_value().borrow());
        let values = match value {
            Value::List(values) => values.iter().map(|value| text(value.borrow())).collect(),
            value => vec![text(value.borrow())],
        };
        for value in values {
            meter.touch(name.len() + value.len())?;
            query.append_pair(&name, &value);
        }
    }
    new_text(query.finish(), meter)
}

fn is_query(text: &str) -> bool {
    !text.is_empty()
        && text.contains('=')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte))
}

fn parse_url(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(text)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    meter.make_string(text.len())?;
    let url = Url::parse(text).map_err(|_| INVALID)?;
    let port = url.port().map_or_else(String::new, |port| port.to_string());
    Ok(map(vec![
        ("scheme", Value::from(url.scheme())),
        ("host", Value::from(url.host_str().unwrap_or_default())),
        ("port", Value::from(port.as_str())),
        ("path", Value::from(url.path())),
        ("query", Value::from(url.query().unwrap_or_default())),
    ]))
}

fn escape(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    match arguments {
        [ValueRef::String(text)] => new_text(
            url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>(),
            meter,
        ),
        _ => Err(NO_OVERLOAD),
    }
}

fn unescape(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    match arguments {
        [ValueRef::String(text)] => {
            let spaced = text.replace('+', " ");
            new_text(percent_decoded(&spaced).ok_or(INVALID)?, meter)
        }
        _ => Err(NO_OVERLOAD),
    }
}

/// Decodes percent-encoding; `None` if an escape is malformed or the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let (digits, rest) = part.as_bytes().split_at_checked(2)?;
        let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
        let digits = std::str::from_utf8(digits).ok().filter(|_| is_hex)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest);
    }
    String::from_utf8(bytes).ok()
}
