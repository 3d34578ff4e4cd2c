//! Lengths of time as bodies and filters have them: `90s`, `5m`, `1h30m`, `14d`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The units, from the longest to the shortest, with their seconds.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// A length of time in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period(u64);

impl Period {
    /// This many seconds.
    pub const fn of_seconds(seconds: u64) -> Self {
        Self(seconds)
    }

    /// Reads numbers with units, from the longest unit to the shortest, each at most once.
    pub fn parse(text: &str) -> Option<Self> {
        let (mut rest, mut seconds, mut last_unit) = (text, 0_u64, u64::MAX);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, after) = rest.split_at_checked(digits)?;
            let letter = after.chars().next()?;
            let (_, unit) = UNITS.into_iter().find(|(known, _)| *known == letter)?;
            if unit >= last_unit {
                return None;
            }
            seconds = seconds.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
            (last_unit, rest) = (unit, &after[1..]);
        }
        (last_unit != u64::MAX).then_some(Self(seconds))
    }

    /// Its seconds.
    pub const fn seconds(self) -> u64 {
        self.0
    }

    /// As a duration.
    pub const fn time(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        if rest == 0 {
            return f.write_str("0s");
        }
        for (letter, unit) in UNITS {
            if rest >= unit {
                write!(f, "{}{letter}", rest / unit)?;
                rest %= unit;
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for Period {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not a length of time such as `90s`, `5m` or `14d`")
    }
}

impl From<Period> for String {
    fn from(period: Period) -> Self {
        period.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_and_shown() {
        for (text, seconds, shown) in [
            ("90s", 90, "1m30s"),
            ("5m", 300, "5m"),
            ("1h30m", 5_400, "1h30m"),
            ("14d", 14 * 86_400, "14d"),
            ("0s", 0, "0s"),
        ] {
            let period = Period::parse(text).unwrap();
            assert_eq!(
                (period.seconds(), &*period.to_string()),
                (seconds, shown),
                "{text}"
            );
            assert_eq!(Period::parse(shown), Some(period));
        }
        for text in [
            "",
            "5",
            "m",
            "5x",
            "-5m",
            "5m1h",
            "1m1m",
            "1.5h",
            " 5m",
            "5\u{e9}",
            "99999999999999999999d",
            "999999999999999999d",
        ] {
            assert_eq!(Period::parse(text), None, "{text}");
        }
    }
}
