//! Ranges of bytes (RFC 9110, 14).

use std::ops::Range;

/// More ranges in one request count as none: their heads cost more than the file (RFC 9110, 14.2).
const RANGES_MAX: usize = 16;

/// What a request wants of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    Whole,
    /// At least one, none of them empty.
    Some(Vec<Range<u64>>),
    /// No byte of the file is in a range.
    Unsatisfiable,
}

/// Reads the field `Range` for a file of a length. An invalid or excessive one counts as absent.
pub(crate) fn parse(field: &str, length: u64) -> Ranges {
    let Some((unit, list)) = field.split_once('=') else {
        return Ranges::Whole;
    };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Ranges::Whole;
    }
    let (mut ranges, mut total, mut count) = (Vec::new(), 0_u64, 0_usize);
    for item in list.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        count += 1;
        let Some(range) = range(item, length).filter(|_| count <= RANGES_MAX) else {
            return Ranges::Whole;
        };
        if !range.is_empty() {
            total = total.saturating_add(range.end - range.start);
            ranges.push(range);
        }
    }
    match ranges.len() {
        _ if count == 0 => Ranges::Whole,
        0 => Ranges::Unsatisfiable,
        1 => Ranges::Some(ranges),
        // Ranges that overlap would make more of the file than it is.
        _ if total >= length => Ranges::Whole,
        _ => Ranges::Some(ranges),
    }
}

/// One range within the file, empty if it is behind its end. `None` if it is invalid.
fn range(text: &str, length: u64) -> Option<Range<u64>> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    if first.is_empty() {
        return Some(length.saturating_sub(number(last)?)..length);
    }
    let first = number(first)?;
    let end = match last {
        "" => length,
        last => {
            let last = number(last).filter(|last| *last >= first)?;
            last.saturating_add(1).min(length)
        }
    };
    Some(first.min(end)..end)
}

/// Digits; a number that is too large is as good as infinite.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        let some = |ranges: &[(u64, u64)]| {
            Ranges::Some(ranges.iter().map(|(start, end)| *start..*end).collect())
        };
        let many = |count| format!("bytes={}", vec!["0-0"; count].join(","));
        let huge = "9".repeat(40);
        for (field, expected) in [
            ("bytes=0-0", some(&[(0, 1)])),
            ("bytes=0-99", some(&[(0, 10)])),
            ("Bytes=2-", some(&[(2, 10)])),
            ("bytes=-3", some(&[(7, 10)])),
            ("bytes=-99", some(&[(0, 10)])),
            ("bytes= 0-1 , 3-4,", some(&[(0, 2), (3, 5)])),
            ("bytes=0-1,20-30", some(&[(0, 2)])),
            (&format!("bytes=1-{huge}"), some(&[(1, 10)])),
            ("bytes=10-", Ranges::Unsatisfiable),
            ("bytes=-0", Ranges::Unsatisfiable),
            (&format!("bytes={huge}-"), Ranges::Unsatisfiable),
            ("bytes=0-6,3-9", Ranges::Whole),
            ("bytes=3-1", Ranges::Whole),
            ("bytes=", Ranges::Whole),
            ("bytes=a-b", Ranges::Whole),
            ("bytes=+1-2", Ranges::Whole),
            ("bytes=-", Ranges::Whole),
            ("bytes 0-1", Ranges::Whole),
            ("lines=0-1", Ranges::Whole),
            (&many(17), Ranges::Whole),
        ] {
            assert_eq!(parse(field, 10), expected, "{field}");
        }
        assert_eq!(parse("bytes=0-", 0), Ranges::Unsatisfiable);
        assert!(matches!(parse(&many(16), 100), Ranges::Some(ranges) if ranges.len() == 16));
    }
}
