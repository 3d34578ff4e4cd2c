//! Timestamps, durations and the calendar. Pure arithmetic without a clock.

use std::fmt;

/// Seconds and nanoseconds since 1970 in UTC, within the years 1 to 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    seconds: i64,
    nanos: u32,
}

/// A duration of up to 292 years, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration {
    nanos: i64,
}

/// The components of a timestamp in one time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Civil {
    pub(crate) year: i64,
    /// 1 to 12.
    pub(crate) month: i64,
    /// 1 to 31.
    pub(crate) day: i64,
    /// 0 to 365.
    pub(crate) day_of_year: i64,
    /// 0 is Sunday.
    pub(crate) day_of_week: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
    pub(crate) millisecond: i64,
}

impl Timestamp {
    /// `None` outside of the years 1 to 9999, or if `nanos` is a second or more.
    pub fn new(seconds: i64, nanos: u32) -> Option<Self> {
        ((FIRST_SECOND..=LAST_SECOND).contains(&seconds) && nanos < 1_000_000_000)
            .then_some(Self { seconds, nanos })
    }

    /// Seconds since 1970, rounded down.
    pub fn seconds(self) -> i64 {
        self.seconds
    }

    /// Nanoseconds within the second.
    /// The number of nanoseconds; negative for a duration into the past.
    pub fn nanos(self) -> u32 {
        self.nanos
    }

    /// Parses RFC 3339: `2009-02-13T23:31:30.5Z`, `…+02:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = Digits(text.as_bytes());
        let year = rest.number(4)?;
        rest.mark(b"-")?;
        let month = rest.number(2)?;
        rest.mark(b"-")?;
        let day = rest.number(2)?;
        rest.mark(b"Tt")?;
        let hour = rest.number(2)?;
        rest.mark(b":")?;
        let minute = rest.number(2)?;
        rest.mark(b":")?;
        let second = rest.number(2)?;
        let nanos = if rest.mark(b".").is_some() {
            rest.fraction()?
        } else {
            0
        };
        let offset = if rest.mark(b"Zz").is_some() {
            0
        } else {
            rest.offset()?
        };
        let is_date = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
        if !rest.0.is_empty() || !is_date || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let days = days_from_civil(year, month, day);
        Self::new(
            days * 86_400 + hour * 3_600 + minute * 60 + second - offset,
            nanos,
        )
    }

    pub(crate) fn plus(self, duration: Duration) -> Option<Self> {
        let nanos = self.total_nanos() + i128::from(duration.nanos);
        let seconds = i64::try_from(nanos.div_euclid(NANOS_PER_SECOND)).ok()?;
        Self::new(
            seconds,
            u32::try_from(nanos.rem_euclid(NANOS_PER_SECOND)).ok()?,
        )
    }

    pub(crate) fn minus(self, duration: Duration) -> Option<Self> {
        self.plus(Duration {
            nanos: duration.nanos.checked_neg()?,
        })
    }

    pub(crate) fn since(self, other: Self) -> Option<Duration> {
        let nanos = i64::try_from(self.total_nanos() - other.total_nanos()).ok()?;
        Some(Duration { nanos })
    }

    fn total_nanos(self) -> i128 {
        i128::from(self.seconds) * NANOS_PER_SECOND + i128::from(self.nanos)
    }

    /// The components at an offset in seconds east of UTC.
    pub(crate) fn civil(self, offset: i32) -> Civil {
        let local = self.seconds + i64::from(offset);
        let days = local.div_euclid(86_400);
        let second_of_day = local.rem_euclid(86_400);
        let (year, month, day) = civil_from_days(days);
        Civil {
            year,
            month,
            day,
            day_of_year: days - days_from_civil(year, 1, 1),
            day_of_week: (days + 4).rem_euclid(7),
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
            millisecond: i64::from(self.nanos / 1_000_000),
        }
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, with as many decimals as needed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.civil(0);
        let (date, time) = ((at.year, at.month, at.day), (at.hour, at.minute, at.second));
        write!(f, "{:04}-{:02}-{:02}T", date.0, date.1, date.2)?;
        write!(f, "{:02}:{:02}:{:02}", time.0, time.1, time.2)?;
        write_fraction(f, self.nanos)?;
        f.write_str("Z")
    }
}

impl Duration {
    /// A duration of `nanos` nanoseconds.
    pub fn from_nanos(nanos: i64) -> Self {
        Self { nanos }
    }

    /// Length in nanoseconds; negative for a duration into the past.
    pub fn nanos(self) -> i64 {
        self.nanos
    }

    /// Parses `1h30m`, `-1.5s`, `10ms`, `2us`, `3ns`, `0`.
    pub fn parse(text: &str) -> Option<Self> {
        let (is_negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Some(Self { nanos: 0 });
        }
        if rest.is_empty() {
            return None;
        }
        let mut total = 0_i128;
        while !rest.is_empty() {
            let whole = leading_digits(rest);
            rest = rest.get(whole.len()..)?;
            let decimals = match rest.strip_prefix('.') {
                Some(after) => {
                    let decimals = leading_digits(after);
                    rest = after.get(decimals.len()..)?;
                    decimals
                }
                None => "",
            };
            if whole.is_empty() && decimals.is_empty() {
                return None;
            }
            let (unit, nanos) = DURATION_UNITS
                .iter()
                .find(|(unit, _)| rest.starts_with(unit))?;
            rest = rest.get(unit.len()..)?;
            let whole: i128 = if whole.is_empty() {
                0
            } else {
                whole.parse::<u64>().ok()?.into()
            };
            total += whole * nanos;
            let mut place = *nanos;
            for digit in decimals.bytes() {
                place /= 10;
                total += i128::from(digit - b'0') * place;
            }
        }
        let nanos = i64::try_from(if is_negative { -total } else { total }).ok()?;
        Some(Self { nanos })
    }

    pub(crate) fn checked_add(self, other: Self) -> Option<Self> {
        Some(Self {
            nanos: self.nanos.checked_add(other.nanos)?,
        })
    }

    pub(crate) fn checked_sub(self, other: Self) -> Option<Self> {
        Some(Self {
            nanos: self.nanos.checked_sub(other.nanos)?,
        })
    }
}

impl fmt::Display for Duration {
    /// Seconds, with as many decimals as needed: `1.5s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nanos < 0 { "-" } else { "" };
        let nanos = self.nanos.unsigned_abs();
        write!(f, "{sign}{}", nanos / 1_000_000_000)?;
        write_fraction(f, u32::try_from(nanos % 1_000_000_000).unwrap_or_default())?;
        f.write_str("s")
    }
}

/// The offset of `UTC`, `Z`, `+02:00`, `-02:30` or `02:00` in seconds east of UTC. `None` for other texts.
pub(crate) fn fixed_offset(zone: &str) -> Option<i32> {
    if matches!(zone, "UTC" | "Z" | "") {
        return Some(0);
    }
    let mut rest = Digits(zone.as_bytes());
    let offset = if zone.starts_with(['+', '-']) {
        rest.offset()?
    } else {
        rest.hours()?
    };
    if rest.0.is_empty() {
        i32::try_from(offset).ok()
    } else {
        None
    }
}

fn write_fraction(f: &mut fmt::Formatter<'_>, nanos: u32) -> fmt::Result {
    if nanos == 0 {
        return Ok(());
    }
    let digits = format!("{nanos:09}");
    write!(f, ".{}", digits.trim_end_matches('0'))
}

fn leading_digits(text: &str) -> &str {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// The rest of the text.
struct Digits<'a>(&'a [u8]);

impl Digits<'_> {
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        head.iter().try_fold(0, |number, digit| {
            digit
                .is_ascii_digit()
                .then(|| number * 10 + i64::from(digit - b'0'))
        })
    }

    fn mark(&mut self, any_of: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        any_of.contains(first).then(|| {
            self.0 = rest;
            *first
        })
    }

    /// Parses one to nine digits as a fraction of a second, in nanoseconds.
    fn fraction(&mut self) -> Option<u32> {
        let length = self
            .0
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let digits = i64::from(u8::try_from(length).ok()?);
        let number = if (1..=9).contains(&digits) {
            self.number(length)?
        } else {
            return None;
        };
        let scale = (digits..9).fold(1, |scale, _| scale * 10);
        u32::try_from(number * scale).ok()
    }

    fn offset(&mut self) -> Option<i64> {
        let sign = self.mark(b"+-")?;
        let offset = self.hours()?;
        Some(if sign == b'-' { -offset } else { offset })
    }

    fn hours(&mut self) -> Option<i64> {
        let hours = self.number(2)?;
        self.mark(b":")?;
        let minutes = self.number(2)?;
        (hours < 24 && minutes < 60).then_some(hours * 3_600 + minutes * 60)
    }
}

fn is_leap_year(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap_year(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar, in which 400 years have 146,097 days.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last day of a year.
    let year = if month <= 2 { year - 1 } else { year };
    let cycle = year.div_euclid(400);
    let year_of_cycle = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_cycle = year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100 + day_of_year;
    cycle * 146_097 + day_of_cycle - 719_468
}

/// The inverse of `days_from_civil`.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let cycle = days.div_euclid(146_097);
    let day_of_cycle = days.rem_euclid(146_097);
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524
        - day_of_cycle / 146_096)
        / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = cycle * 400 + year_of_cycle + i64::from(month <= 2);
    (year, month, day)
}

const NANOS_PER_SECOND: i128 = 1_000_000_000;
/// 0001-01-01T00:00:00Z.
const FIRST_SECOND: i64 = -62_135_596_800;
/// 9999-12-31T23:59:59Z.
const LAST_SECOND: i64 = 253_402_300_799;
/// Longer names come before their prefixes.
const DURATION_UNITS: [(&str, i128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
