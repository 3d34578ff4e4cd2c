//! Additional request headers in a configuration. Their values are secrets.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use culvert_base::{Refusal, Secret};

use crate::config::invalid;

const HEADERS_MAX: usize = 10;
const HEADER_BYTES_MAX: usize = 4096;
const REDACTED: &str = "[redacted]";

/// Names that only this server or the protocol may set.
const FORBIDDEN_HEADERS: &[&str] = &[
    "connection",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Parses the headers in a configuration.
///
/// # Errors
/// 5140 for too many headers, for names that only this server or the protocol may set, and for
/// values that are invalid in a header.
pub(crate) fn read(target: &str, given: &Map<String, Value>) -> Result<HeaderMap, Refusal> {
    if given.len() > HEADERS_MAX {
        return Err(invalid(target, "`headers` has more than 10 entries"));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let lower = name.to_ascii_lowercase();
        if FORBIDDEN_HEADERS.contains(&lower.as_str())
            || lower.starts_with("webhook-")
            || lower.starts_with("content-")
        {
            return Err(invalid(
                target,
                format_args!("the header `{lower}` cannot be set"),
            ));
        }
        let name: HeaderName = lower
            .parse()
            .map_err(|_| invalid(target, "a name in `headers` is not a valid header name"))?;
        let value = value
            .as_str()
            .filter(|text| text.len() <= HEADER_BYTES_MAX && *text != REDACTED)
            .and_then(|text| HeaderValue::from_str(text).ok())
            .ok_or_else(|| {
                invalid(
                    target,
                    format_args!(
                        "the value of the header `{name}` is invalid or longer than 4096 bytes"
                    ),
                )
            })?;
        if headers.insert(name, value).is_some() {
            return Err(invalid(target, "a header is repeated"));
        }
    }
    Ok(headers)
}

/// Copies stored values into a new configuration that omits them.
pub(crate) fn merge(stored: &Value, mut given: Value) -> Value {
    let Some(fields) = given.as_object_mut() else {
        return given;
    };
    let stored_headers = stored.get("headers").and_then(Value::as_object);
    if let (Some(Value::Object(headers)), Some(stored)) =
        (fields.get_mut("headers"), stored_headers)
    {
        for (name, value) in headers {
            let is_omitted = matches!(value.as_str(), Some("" | REDACTED)) || value.is_null();
            let old = stored
                .iter()
                .find(|(old, _)| old.eq_ignore_ascii_case(name))
                .map(|(_, value)| value);
            if let (true, Some(old)) = (is_omitted, old) {
                *value = old.clone();
            }
        }
    }
    given
}

/// The configuration with the names of headers, without values.
pub(crate) fn redact(stored: &Value) -> Value {
    let mut shown = stored.clone();
    if let Some(Value::Object(headers)) = shown.get_mut("headers") {
        for (_, value) in headers {
            *value = REDACTED.into();
        }
    }
    shown
}

/// The values of headers, which must not be shown.
pub(crate) fn secrets(given: &Map<String, Value>) -> Vec<Secret> {
    let values = given.values().filter_map(Value::as_str);
    values.map(|value| Secret::new(value.to_owned())).collect()
}
