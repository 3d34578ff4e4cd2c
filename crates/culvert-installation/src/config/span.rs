//! Durations as operators write them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A duration as operators write it: `250ms`, `30s`, `5m`, `12h`, `365d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Span(pub Duration);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a valid duration such as `250ms`, `30s`, `5m`, `12h` or `365d`"
            )
        };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        Ok(Self(Duration::from_millis(
            number.checked_mul(unit_ms).ok_or_else(wrong)?,
        )))
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        let ms = span.0.as_millis();
        let day = DAY.as_millis();
        if ms >= day && ms.is_multiple_of(day) {
            format!("{}d", ms / day)
        } else if ms.is_multiple_of(1000) {
            format!("{}s", ms / 1000)
        } else {
            format!("{ms}ms")
        }
    }
}
