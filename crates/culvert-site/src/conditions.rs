//! Validators of a file, and the conditions of a request (RFC 9110, 13).

use std::fs::Metadata;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
};
use httpdate::{fmt_http_date, parse_http_date};

/// Dates of HTTP end with the year 9999.
const SECONDS_MAX: u64 = 253_402_300_799;

/// What tells one state of a file from another.
#[derive(Debug)]
pub(crate) struct Validators {
    /// The field `ETag`, strong: the times of file systems are finer than the seconds of `Last-Modified`.
    pub(crate) tag: String,
    /// Whole seconds. `None` if HTTP cannot express the time.
    modified: Option<SystemTime>,
}

/// What the conditions of a request say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Send,
    NotModified,
    Failed,
}

impl Validators {
    /// Those of a file; `coding` tells the encoded neighbours of a file from it.
    pub(crate) fn of(file: &Metadata, coding: Option<&str>) -> Self {
        let since = file.modified().ok();
        let since = since.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let nanos = since.map_or(0, |since| since.as_nanos());
        let suffix = coding.map(|coding| format!("-{coding}"));
        let seconds = since.map(|since| since.as_secs());
        Self {
            tag: format!(
                "\"{nanos:x}-{:x}{}\"",
                file.len(),
                suffix.unwrap_or_default()
            ),
            modified: seconds
                .filter(|seconds| *seconds <= SECONDS_MAX)
                .map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds)),
        }
    }

    /// The field `Last-Modified`.
    pub(crate) fn last_modified(&self) -> Option<String> {
        self.modified.map(fmt_http_date)
    }

    /// Decides in the order of RFC 9110, 13.2.2. Dates that cannot be read count as absent.
    pub(crate) fn verdict(&self, headers: &HeaderMap) -> Verdict {
        let is_later_than = |name: HeaderName| {
            let date = headers.get(name).and_then(|it| it.to_str().ok());
            let date = date.and_then(|it| parse_http_date(it).ok());
            date.zip(self.modified)
                .map(|(date, modified)| modified > date)
        };
        let has_failed = match headers.contains_key(IF_MATCH) {
            true => !self.matches(headers, IF_MATCH, false),
            false => is_later_than(IF_UNMODIFIED_SINCE) == Some(true),
        };
        if has_failed {
            return Verdict::Failed;
        }
        let is_known = match headers.contains_key(IF_NONE_MATCH) {
            true => self.matches(headers, IF_NONE_MATCH, true),
            false => is_later_than(IF_MODIFIED_SINCE) == Some(false),
        };
        match is_known {
            true => Verdict::NotModified,
            false => Verdict::Send,
        }
    }

    /// Whether a list of tags has the one of the file, or is `*`.
    fn matches(&self, headers: &HeaderMap, name: HeaderName, is_weak: bool) -> bool {
        let lists = headers
            .get_all(name)
            .iter()
            .filter_map(|it| it.to_str().ok());
        let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
        tags.any(|tag| {
            let tag = match is_weak {
                true => tag.strip_prefix("W/").unwrap_or(tag),
                false => tag,
            };
            tag == "*" || tag == self.tag
        })
    }

    /// Whether `If-Range` lets `Range` apply: it is absent, or has the very tag or date.
    pub(crate) fn allows_range(&self, headers: &HeaderMap) -> bool {
        let Some(field) = headers.get(IF_RANGE) else {
            return true;
        };
        let field = field.to_str().unwrap_or_default();
        field == self.tag || parse_http_date(field).is_ok_and(|date| self.modified == Some(date))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_decided_in_order() {
        use Verdict::{Failed, NotModified, Send};
        let file = Validators {
            tag: "\"a\"".into(),
            modified: Some(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap()),
        };
        let (same, earlier, later) = (
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:36 GMT",
            "Sun Nov  6 08:49:38 1994",
        );
        for (fields, verdict) in [
            (&[][..], Send),
            (&[("if-none-match", "\"a\"")], NotModified),
            (&[("if-none-match", "W/\"a\", \"b\"")], NotModified),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"b\"")], Send),
            (
                &[("if-none-match", "\"b\""), ("if-modified-since", same)],
                Send,
            ),
            (&[("if-modified-since", same)], NotModified),
            (&[("if-modified-since", later)], NotModified),
            (&[("if-modified-since", earlier)], Send),
            (&[("if-modified-since", "soon")], Send),
            (&[("if-match", "\"a\"")], Send),
            (&[("if-match", "W/\"a\"")], Failed),
            (&[("if-match", "\"b\"")], Failed),
            (
                &[("if-match", "\"a\""), ("if-none-match", "\"a\"")],
                NotModified,
            ),
            (&[("if-unmodified-since", earlier)], Failed),
            (&[("if-unmodified-since", same)], Send),
        ] {
            let headers = fields
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            assert_eq!(file.verdict(&headers.collect()), verdict, "{fields:?}");
        }
        for (field, is_allowed) in [
            ("\"a\"", true),
            ("W/\"a\"", false),
            ("\"b\"", false),
            (same, true),
            (later, false),
        ] {
            let headers = HeaderMap::from_iter([(IF_RANGE, field.parse().unwrap())]);
            assert_eq!(file.allows_range(&headers), is_allowed, "{field}");
        }
    }
}
