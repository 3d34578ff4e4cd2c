//! Replaces patterns in bodies.
//!
//! An action evaluates the replacements. The exchange applies them to the whole body when the phase ends,
//! after decoding it if its coding is known.

use bytes::Bytes;
use culvert_http::coding::{self, NotDecoded};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};
use regex::bytes::{Regex, RegexBuilder};

use crate::policy::edits::Replacement;

/// Maximum size of a body before and after replacement, in bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 1 << 10;
/// Maximum size of a compiled pattern, in bytes.
pub const PROGRAM_BYTES_MAX: usize = 1 << 20;

/// The pattern that an expression computed; `None` if it is not a regular expression or exceeds a limit. The limits are
/// those of computed patterns in expressions, because clients may determine the text.
pub fn computed_pattern(text: &str) -> Option<Regex> {
    if !is_cheap(text) {
        return None;
    }
    let mut builder = RegexBuilder::new(text);
    builder.size_limit(COMPUTED_BYTES_MAX).build().ok()
}

/// Whether a computed pattern may be compiled for a request.
pub fn is_cheap(text: &str) -> bool {
    text.len() <= PATTERN_BYTES_MAX && n_classes(text) <= COMPUTED_CLASSES_MAX
}

/// How many classes of many characters a pattern has, at most. Their tables take time, whatever the pattern does with
/// them.
pub fn n_classes(text: &str) -> usize {
    let mut count = 0;
    let mut first = ' ';
    for character in text.chars() {
        let is_escape = first == '\\' && "pPwWdDsSxuU".contains(character);
        // `[a-ÿ]`, and `[^ÿ]`.
        let is_range = !character.is_ascii() && ['-', '^', '['].contains(&first);
        let is_set = [('&', '&'), ('-', '-'), ('~', '~')].contains(&(first, character));
        count += usize::from(is_escape || is_range || is_set);
        first = character;
    }
    count
}

/// Maximum size of a compiled pattern that was computed, in bytes.
pub const COMPUTED_BYTES_MAX: usize = 256 << 10;
const COMPUTED_CLASSES_MAX: usize = 8;

/// Why a body was not searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReplaced {
    /// The body exceeds the limit, before or after replacement.
    #[error("the body is too long")]
    TooLong,
    /// Its coding is unknown, or it is not in its coding.
    #[error("the body cannot be decoded")]
    Coding,
}

/// Replaces parts of a body and updates its header fields.
///
/// # Errors
/// If the body cannot be searched, or the result is too long. The fields are then unchanged.
pub fn apply(
    replacements: &[Replacement],
    headers: &mut HeaderMap,
    body: Bytes,
) -> Result<Bytes, NotReplaced> {
    let plain = coding::decode(headers, body, BODY_BYTES_MAX).map_err(|why| match why {
        NotDecoded::TooLong => NotReplaced::TooLong,
        NotDecoded::Unknown | NotDecoded::Broken => NotReplaced::Coding,
    })?;
    let mut text = plain;
    for Replacement { from, to } in replacements {
        text = replaced(from, to, text)?;
    }
    headers.remove(CONTENT_ENCODING);
    headers.remove(CONTENT_LENGTH);
    coding::forget_digests(headers);
    coding::weaken(headers);
    Ok(text)
}

fn replaced(from: &Regex, to: &str, text: Bytes) -> Result<Bytes, NotReplaced> {
    let parts: Vec<ReplacementPart<'_>> = parts(to).collect();
    let (mut out, mut end) = (Vec::new(), 0);
    for captures in from.captures_iter(&text) {
        let Some(whole) = captures.get(0) else {
            continue;
        };
        out.extend_from_slice(text.get(end..whole.start()).unwrap_or_default());
        for part in &parts {
            out.extend_from_slice(match part {
                ReplacementPart::Text(text) => text.as_bytes(),
                ReplacementPart::Group(group) => {
                    captures.get(*group).map_or(&[], |group| group.as_bytes())
                }
            });
        }
        end = whole.end();
        if out.len() > BODY_BYTES_MAX {
            return Err(NotReplaced::TooLong);
        }
    }
    if end == 0 && out.is_empty() {
        return Ok(text);
    }
    out.extend_from_slice(text.get(end..).unwrap_or_default());
    if out.len() > BODY_BYTES_MAX {
        return Err(NotReplaced::TooLong);
    }
    Ok(out.into())
}

/// A part of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplacementPart<'t> {
    /// Text as it is.
    Text(&'t str),
    /// The text that a group of the pattern matched.
    Group(usize),
}

/// The parts: `$1` to `$99` are groups, `$$` is a dollar sign.
pub fn parts(to: &str) -> impl Iterator<Item = ReplacementPart<'_>> {
    let mut rest = to;
    std::iter::from_fn(move || {
        let (at, after) = match rest.find('$') {
            None if rest.is_empty() => return None,
            None => return Some(ReplacementPart::Text(std::mem::take(&mut rest))),
            Some(0) => (0, &rest[1..]),
            Some(at) => (at, ""),
        };
        if at > 0 {
            let (before, behind) = rest.split_at(at);
            rest = behind;
            return Some(ReplacementPart::Text(before));
        }
        let digits = after.bytes().take(2).take_while(u8::is_ascii_digit).count();
        let (number, behind) = after.split_at(digits);
        match number.parse() {
            Ok(group) => {
                rest = behind;
                Some(ReplacementPart::Group(group))
            }
            Err(_) => {
                rest = after.strip_prefix('$').unwrap_or(after);
                Some(ReplacementPart::Text("$"))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_in_bodies_are_replaced() {
        for (from, to, expected) in [
            ("(\\d+)-(\\d+)", "$2-$1", "a 2-1 b 4-3"),
            ("[ab] ", "", "1-2 3-4"),
            ("^a", "$$", "$ 1-2 b 3-4"),
            ("x", "y", "a 1-2 b 3-4"),
            (".*", "", ""),
        ] {
            let pattern = computed_pattern(from).unwrap();
            let made = replaced(&pattern, to, Bytes::from_static(b"a 1-2 b 3-4")).unwrap();
            assert_eq!(made, expected, "{from}");
        }
        let growing = computed_pattern("").unwrap();
        let long = Bytes::from(vec![b'x'; BODY_BYTES_MAX / 2]);
        assert_eq!(replaced(&growing, "abc", long), Err(NotReplaced::TooLong));
        assert!(computed_pattern("(").is_none());
        for class in [r"\pL", r"\w", r"[\x00-\x{10FFFF}]", "[ -\u{10FFFF}]"] {
            let many = format!("(?i){}", format!("{class}{{0}}").repeat(9));
            assert!(computed_pattern(&many).is_none(), "{class}");
        }
    }
}
