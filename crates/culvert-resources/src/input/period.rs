//! Lengths of time as bodies and filters have them: `90s`, `5m`, `1h30m`, `14d`.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The units, from the longest to the shortest, with their seconds.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// A length of time in whole seconds. It is shown as it was written, and compared by its length.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period {
    seconds: u64,
    /// The number of each unit, from the longest; `None` if it is not written.
    numbers: [Option<u64>; UNITS.len()],
}

impl Period {
    /// This many seconds, written with the longest units.
    pub const fn of_seconds(seconds: u64) -> Self {
        let mut numbers = [None; UNITS.len()];
        let (mut rest, mut at) = (seconds, 0);
        while at < UNITS.len() {
            let unit = UNITS[at].1;
            if rest >= unit {
                numbers[at] = Some(rest / unit);
                rest %= unit;
            }
            at += 1;
        }
        if seconds == 0 {
            numbers[UNITS.len() - 1] = Some(0);
        }
        Self { seconds, numbers }
    }

    /// Reads numbers with units, from the longest unit to the shortest, each at most once. A number has no leading zeros.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = [None; UNITS.len()];
        let (mut rest, mut seconds, mut next) = (text, 0_u64, 0);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, after) = rest.split_at_checked(digits)?;
            if number.len() > 1 && number.starts_with('0') {
                return None;
            }
            let letter = after.chars().next()?;
            let mut units = UNITS.into_iter().enumerate().skip(next);
            let (at, (_, unit)) = units.find(|(_, (known, _))| *known == letter)?;
            let number = number.parse::<u64>().ok()?;
            seconds = seconds.checked_add(number.checked_mul(unit)?)?;
            *numbers.get_mut(at)? = Some(number);
            (next, rest) = (at + 1, &after[1..]);
        }
        (next > 0).then_some(Self { seconds, numbers })
    }

    /// Its seconds.
    pub const fn seconds(self) -> u64 {
        self.seconds
    }

    /// As a duration.
    pub const fn time(self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

impl PartialEq for Period {
    fn eq(&self, other: &Self) -> bool {
        self.seconds == other.seconds
    }
}

impl Eq for Period {}

impl PartialOrd for Period {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Period {
    fn cmp(&self, other: &Self) -> Ordering {
        self.seconds.cmp(&other.seconds)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (letter, _)) in self.numbers.iter().zip(UNITS) {
            if let Some(number) = number {
                write!(f, "{number}{letter}")?;
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
            ("90m", 5_400, "1h30m"),
            ("1h0m1800s", 5_400, "1h30m"),
            ("14d", 14 * 86_400, "14d"),
            ("0s", 0, "0s"),
            ("0d0m", 0, "0s"),
        ] {
            let period = Period::parse(text).unwrap();
            let ours = Period::of_seconds(seconds);
            assert_eq!((period.seconds(), &*period.to_string()), (seconds, text));
            assert_eq!((ours, &*ours.to_string()), (period, shown), "{text}");
            assert_eq!(Period::parse(shown), Some(period));
        }
        for text in [
            "",
            "5",
            "m",
            "5x",
            "-5m",
            "5m1h",
            "05m",
            "1h00m",
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
