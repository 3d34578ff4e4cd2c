//! Reads, checks, merges and redacts configurations of targets.

pub(crate) mod headers;

use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use culvert_base::{Refusal, code};
use culvert_target::Checked;
use culvert_target::guard::{CheckedUrl, Rules};

/// The error for a target's field.
pub(crate) fn invalid(target: &str, sentence: impl fmt::Display) -> Refusal {
    Refusal::new(
        code::DELIVERY_VALUE_INVALID,
        format!("The {target} target is invalid: {sentence}."),
    )
}

/// Reads a configuration. Unknown fields and wrong types are errors.
pub(crate) fn parse<C: DeserializeOwned>(target: &str, given: &Value) -> Result<C, Refusal> {
    if !given.is_object() {
        return Err(invalid(target, "it must be an object"));
    }
    C::deserialize(given).map_err(|error| invalid(target, unquoted(&error.to_string())))
}

/// Maximum bytes of the name of a field that an error quotes.
const FIELD_BYTES_MAX: usize = 64;

/// The error without the value that the parser quotes: it may be a secret in the wrong field.
fn unquoted(message: &str) -> String {
    let said = match message.rsplit_once(", expected ") {
        Some((found, _)) if found.starts_with("unknown field") => {
            // A name that is no name may be a secret.
            let name = found.split('`').nth(1).unwrap_or_default();
            match name.len() <= FIELD_BYTES_MAX {
                true => message.to_owned(),
                false => "unknown field".to_owned(),
            }
        }
        Some((_, "struct Config")) => "it must be an object".to_owned(),
        Some((_, expected)) => {
            format!("a value has the wrong type; expected {expected}")
        }
        None => message.to_owned(),
    };
    said.trim_end_matches('.').chars().take(160).collect()
}

/// The stored form, with absent fields as `null`.
pub(crate) fn stored<C: Serialize>(config: &C) -> Checked {
    Checked {
        stored: serde_json::to_value(config).expect("a configuration is plain JSON"),
        shown_once: None,
    }
}

/// Copies a stored secret into a new configuration that omits it: absent, `null` or empty. `object` is the JSON
/// pointer to the object with the field.
pub(crate) fn keep_secret(stored: &Value, given: &mut Value, object: &str, field: &str) {
    let Some(Value::Object(holder)) = given.pointer_mut(object) else {
        return;
    };
    let is_absent = match holder.get(field) {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str() == Some(""),
    };
    let secret = stored.pointer(object).and_then(|holder| holder.get(field));
    let secret = secret.filter(|secret| !secret.is_null());
    if let (true, Some(secret)) = (is_absent, secret) {
        holder.insert(field.to_owned(), secret.clone());
    }
}

/// The stored form with a secret replaced by `with`, if present. `secret` is a JSON pointer.
pub(crate) fn hide(stored: &Value, secret: &str, with: Value) -> Value {
    let mut shown = stored.clone();
    if let Some(value) = shown.pointer_mut(secret) {
        *value = with;
    }
    shown
}

/// Checks a URL that a user configured.
pub(crate) fn checked_url(
    target: &str,
    field: &str,
    url: &str,
    rules: &Rules,
) -> Result<CheckedUrl, Refusal> {
    rules
        .url(url)
        .map_err(|denied| invalid(target, format_args!("`{field}` is invalid: {denied}")))
}

/// The pattern of URLs in schemas; [`checked_url`] checks the rest.
pub(crate) const HTTP_URL: &str = "^[Hh][Tt][Tt][Pp][Ss]?://";

/// The pattern of a [`ConfigDuration`] in schemas.
pub(crate) const DURATION: &str = "^([0-9]+(ms|[smhd]))+$";

/// The pattern of ARNs in schemas; the parts are checked by their own code.
pub(crate) const ARN: &str = "^arn:[^:]*:[^:]*:";

/// A duration in a configuration: whole numbers with `ms`, `s`, `m`, `h` or `d`, such as `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConfigDuration(pub(crate) Duration);

impl ConfigDuration {
    fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut total = Duration::ZERO;
        if rest.is_empty() || rest.len() > 32 {
            return None;
        }
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let number: u64 = number.parse().ok()?;
            let letters = tail.bytes().take_while(u8::is_ascii_lowercase).count();
            let (unit, tail) = tail.split_at(letters);
            let millis = match unit {
                "ms" => 1,
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return None,
            };
            total = total.checked_add(Duration::from_millis(number.checked_mul(millis)?))?;
            rest = tail;
        }
        Some(Self(total))
    }
}

impl fmt::Display for ConfigDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
            if millis > 0 && millis.is_multiple_of(size) {
                return write!(f, "{}{unit}", millis / size);
            }
        }
        write!(f, "{millis}ms")
    }
}

impl<'de> Deserialize<'de> for ConfigDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(
                "a duration must be a number followed by `ms`, `s`, `m`, `h` or `d`",
            )
        })
    }
}

impl Serialize for ConfigDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
