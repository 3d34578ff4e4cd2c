//! Waits that other parties ask for.

use std::time::Duration;

use crate::Timestamp;

/// A wait before the next attempt that the other party asked for, as with `Retry-After` of HTTP or `RetryInfo` of gRPC.
/// It can only lengthen the own wait, so no value makes a loop without waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetryAfter(Duration);

/// The length of the longest text that is parsed.
const BYTES_MAX: usize = 64;

impl RetryAfter {
    /// The other party asked for this wait.
    pub const fn new(asked: Duration) -> Self {
        Self(asked)
    }

    /// Parses the value of the HTTP field `Retry-After`: seconds or a date. `None` for other texts.
    pub fn parse(value: &str, now: Timestamp) -> Option<Self> {
        let value = value.trim();
        if value.is_empty() || value.len() > BYTES_MAX {
            return None;
        }
        if value.bytes().all(|byte| byte.is_ascii_digit()) {
            // A number that does not fit is longer than any limit.
            let seconds = value.parse().unwrap_or(u64::MAX >> 1);
            return Some(Self(Duration::from_secs(seconds)));
        }
        let at = Timestamp::parse_http_date(value)?;
        Some(Self(at.since(now)))
    }

    /// The wait before the next attempt: `own`, or what was asked for if that is longer, but of that at most `most`.
    pub fn wait(asked: Option<Self>, own: Duration, most: Duration) -> Duration {
        asked.map_or(own, |Self(asked)| own.max(asked.min(most)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::parse("2026-11-20T19:53:18Z").unwrap()
    }

    #[test]
    fn a_wait_is_parsed_or_ignored() {
        for (value, expected) in [
            ("7", Some(7)),
            (" 120 ", Some(120)),
            ("0", Some(0)),
            ("Fri, 20 Nov 2026 19:54:18 GMT", Some(60)),
            ("Friday, 20-Nov-26 19:54:18 GMT", Some(60)),
            ("Fri Nov 20 19:54:18 2026", Some(60)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("99999999999999999999", Some(u64::MAX >> 1)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("Fri, 31 Nov 2026 19:54:18 GMT", None),
            ("Fri, 20 Nov 2026 19:54:18 CET", None),
            ("", None),
        ] {
            let expected = expected.map(|seconds| RetryAfter(Duration::from_secs(seconds)));
            assert_eq!(RetryAfter::parse(value, now()), expected, "{value:?}");
        }
    }

    #[test]
    fn a_wait_only_lengthens_the_own_one() {
        let (own, most) = (Duration::from_secs(4), Duration::from_secs(60));
        for (asked, expected) in [
            (None, 4),
            (Some(0), 4),
            (Some(3), 4),
            (Some(5), 5),
            (Some(61), 60),
            (Some(u64::MAX), 60),
        ] {
            let asked = asked.map(|seconds| RetryAfter(Duration::from_secs(seconds)));
            let wait = RetryAfter::wait(asked, own, most);
            assert_eq!(wait, Duration::from_secs(expected), "{asked:?}");
        }
        // The limit is for what others ask for.
        let asked = Some(RetryAfter(most));
        assert_eq!(RetryAfter::wait(asked, own, Duration::from_secs(1)), own);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_ignored(value in "\\PC{0,70}") {
            RetryAfter::parse(&value, now());
        }
    }
}
