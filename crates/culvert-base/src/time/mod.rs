//! Timestamps and clocks. Only this file reads the system time.

pub(crate) mod retention_clock;
pub mod retry_after;
pub mod steady_clock;

use std::fmt::{self, Debug, Write};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time in UTC, in nanoseconds since the Unix epoch. Displays and serialises as RFC 3339 in whole seconds:
/// `2025-09-04T10:11:14Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From nanoseconds since the Unix epoch.
    pub const fn from_unix_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// From whole seconds since the Unix epoch, clamped to the range of nanoseconds in 64 bits.
    pub const fn from_unix_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// From milliseconds since the Unix epoch, clamped to the range of nanoseconds in 64 bits.
    pub const fn from_unix_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn unix_nanos(self) -> i64 {
        self.0
    }

    /// Milliseconds since the Unix epoch, rounded down.
    pub const fn unix_millis(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// Seconds since the Unix epoch, rounded down.
    pub const fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Parses RFC 3339 with any offset and fraction. `None` for other texts.
    pub fn parse(text: &str) -> Option<Self> {
        let moment: jiff::Timestamp = text.parse().ok()?;
        i64::try_from(moment.as_nanosecond()).ok().map(Self)
    }

    /// Parses a date of HTTP in each of its forms (RFC 9110 5.6.7). `None` for other texts.
    pub fn parse_http_date(text: &str) -> Option<Self> {
        let read = |form| jiff::fmt::strtime::parse(form, text)?.to_datetime();
        let mut dates = HTTP_DATES.iter().filter_map(|form| read(form).ok());
        let moment = dates.next()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
        i64::try_from(moment.timestamp().as_nanosecond())
            .ok()
            .map(Self)
    }

    /// As a date of HTTP, without its fraction: `Sun, 06 Nov 1994 08:49:37 GMT`.
    pub fn to_http_date(self) -> String {
        let moment = jiff::Timestamp::from_second(self.unix_seconds()).unwrap_or_default();
        moment.strftime(HTTP_DATES[0]).to_string()
    }

    /// Truncates to whole seconds.
    pub const fn whole_seconds(self) -> Self {
        Self::from_unix_seconds(self.unix_seconds())
    }

    /// Adds `duration`, clamped.
    pub fn plus(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)),
        )
    }

    /// Subtracts `duration`, clamped.
    pub fn minus(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)),
        )
    }

    /// The time from `earlier` to `self`, or zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Formats as RFC 3339 with exactly `digits` (0 to 9) fractional digits and `Z`.
    fn write_rfc3339(self, out: &mut impl Write, digits: usize) -> fmt::Result {
        let (text, length) = self.rfc3339(digits);
        out.write_str(std::str::from_utf8(&text[..length]).map_err(|_| fmt::Error)?)
    }

    /// Formats as RFC 3339 in ASCII. Returns a buffer and the length of the text in it.
    pub fn rfc3339(self, digits: usize) -> ([u8; 30], usize) {
        let seconds = self.unix_seconds();
        let (year, month, day) = civil(seconds.div_euclid(86_400));
        // Both are in range whatever the time is.
        let of_day = u32::try_from(seconds.rem_euclid(86_400)).unwrap_or(0);
        let nanos = u32::try_from(self.0.rem_euclid(1_000_000_000)).unwrap_or(0);
        let mut text = *b"0000-00-00T00:00:00.000000000Z";
        let mut put = |at: usize, value: u32| {
            text[at..at + 2].copy_from_slice(&PAIRS[value as usize % 100]);
        };
        put(0, year / 100);
        put(2, year % 100);
        put(5, month);
        put(8, day);
        put(11, of_day / 3600);
        put(14, of_day / 60 % 60);
        put(17, of_day % 60);
        if digits > 0 {
            let (millis, rest) = (nanos / 1_000_000, nanos % 1_000_000);
            // The first of these digits is written over.
            put(20, millis / 10);
            put(21, millis % 100);
            if digits > 3 {
                put(23, rest / 10_000);
                put(25, rest / 100 % 100);
                put(27, rest % 100);
            }
        }
        let end = if digits == 0 { 19 } else { 20 + digits.min(9) };
        text[end] = b'Z';
        (text, end + 1)
    }

    /// RFC 3339 with milliseconds, as in event envelopes.
    pub fn to_millis_text(self) -> String {
        self.text(3)
    }

    /// RFC 3339 with nanoseconds, as in event fields of type timestamp.
    pub fn to_nanos_text(self) -> String {
        self.text(9)
    }

    fn text(self, digits: usize) -> String {
        let mut text = String::with_capacity(30);
        self.write_rfc3339(&mut text, digits)
            .expect("writing to a string cannot fail");
        text
    }
}

/// The forms of HTTP dates: the current one, and two that are obsolete but still read.
const HTTP_DATES: [&str; 3] = [
    "%a, %d %b %Y %H:%M:%S GMT",
    "%A, %d-%b-%y %H:%M:%S GMT",
    "%a %b %e %H:%M:%S %Y",
];

/// The decimal digits of each number below 100.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut value = 0;
    while value < 100 {
        pairs[value as usize] = [b'0' + value / 10, b'0' + value % 10];
        value += 1;
    }
    pairs
};

/// The offset from UTC, in seconds, of a named time zone such as `Europe/Vienna` at a time in Unix seconds. `None` if
/// the zone is unknown or the time is out of range.
pub fn zone_offset(zone: &str, unix_seconds: i64) -> Option<i32> {
    let zone = jiff::tz::TimeZone::get(zone).ok()?;
    let at = jiff::Timestamp::from_second(unix_seconds).ok()?;
    Some(zone.to_offset(at).seconds())
}

/// Year, month and day of a day number (days since the Unix epoch) in the Gregorian calendar, from the year 0 on. Years
/// begin in March here, so that the leap day is the last day of a year. 400 years have 146,097 days.
fn civil(days: i64) -> (u32, u32, u32) {
    // A time has 64 bits of nanoseconds, so its year is between 1677 and 2262.
    let shifted = u32::try_from(days + 719_468).unwrap_or(0);
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u32::from(month <= 2);
    (year, month, day)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_rfc3339(f, 0)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not an RFC 3339 time"))
    }
}

/// A source of the current time.
pub trait Clock: Debug + Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;

    /// How many times the clock was set, forward or back, while others may have kept times of it.
    fn times_set(&self) -> u64 {
        0
    }
}

/// The operating system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that reads the system clock"
    )]
    fn now(&self) -> Timestamp {
        let nanos = match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => {
                i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos)
            }
        };
        Timestamp(nanos)
    }
}

/// A clock that moves only by [`ManualClock::advance`] and [`ManualClock::set`].
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
    times_set: AtomicU64,
}

impl ManualClock {
    /// A clock that starts at `start`.
    pub fn at(start: Timestamp) -> Self {
        Self {
            now: AtomicI64::new(start.0),
            times_set: AtomicU64::new(0),
        }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(
            i64::try_from(by.as_nanos()).unwrap_or(i64::MAX),
            Ordering::SeqCst,
        );
    }

    /// Sets the clock to another time, before or after its own.
    pub fn set(&self, to: Timestamp) {
        self.now.store(to.0, Ordering::SeqCst);
        self.times_set.fetch_add(1, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn times_set(&self) -> u64 {
        self.times_set.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts() {
        let at = Timestamp::parse("2026-11-20T20:53:18.528374173+01:00").unwrap();
        assert_eq!(at.to_string(), "2026-11-20T19:53:18Z");
        assert_eq!(at.to_millis_text(), "2026-11-20T19:53:18.528Z");
        assert_eq!(at.to_nanos_text(), "2026-11-20T19:53:18.528374173Z");
        assert_eq!(Timestamp::parse("2026-11-20"), None);
        assert_eq!(
            Timestamp::from_unix_seconds(-1).to_string(),
            "1969-12-31T23:59:59Z"
        );
    }

    proptest! {
        #[test]
        fn every_moment_survives_its_text(nanos: i64) {
            let at = Timestamp(nanos);
            prop_assert_eq!(Timestamp::parse(&at.to_nanos_text()), Some(at));
        }

        #[test]
        fn fewer_digits_are_the_first_ones(nanos: i64, digits in 1usize..9) {
            let at = Timestamp(nanos);
            let (text, length) = at.rfc3339(digits);
            let whole = at.to_nanos_text();
            let expected = format!("{}Z", &whole[..20 + digits]);
            prop_assert_eq!(&text[..length], expected.as_bytes());
        }

        #[test]
        fn any_text_parses_or_refuses(text in ".{0,40}") {
            let _ = Timestamp::parse(&text);
        }
    }
}
