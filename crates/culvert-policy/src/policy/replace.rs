//! Find and replace in bodies, for request-body-find-replace and response-body-find-replace.
//!
//! The action evaluates the replacements. The exchange applies them to the whole body when the phase ends,
//! after decoding it if its coding is known.

use bytes::Bytes;
use culvert_base::{Refusal, code};
use culvert_cel::{Slot, Value};
use culvert_http::coding::{self, NotDecoded};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};
use regex::bytes::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::policy::context::PolicyContext;
use crate::policy::edits::Replacement;
use crate::policy::exchange::Exchange;
use crate::policy::phase::Phase;
use crate::policy::rewrite::{PATTERN_BYTES_MAX, PROGRAM_BYTES_MAX, ReplacementPart, parts};
use crate::policy::run::{ActionResult, Flow};
use crate::policy::template::Template;

/// Maximum size of a body before and after replacement, in bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
const REPLACEMENTS_MAX: usize = 20;

/// The configuration of both actions.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FindReplace")]
pub(crate) struct Config {
    /// 1 to 20 replacements, in this order.
    replacements: Vec<Pair>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Replacement")]
struct Pair {
    /// Regular expression (RE2); every match is replaced. Supports `${…}`.
    from: String,
    /// Replacement; `$1` is the first group. Supports `${…}`.
    to: String,
}

/// A compiled configuration, which is evaluated per exchange.
#[derive(Debug)]
pub(crate) struct FindReplace {
    name: &'static str,
    pairs: Vec<(From, Template)>,
}

#[derive(Debug)]
enum From {
    Pattern(Regex),
    /// A pattern computed by an expression.
    Computed(Template),
}

impl FindReplace {
    /// Validates a configuration; `name` is the name of the action's result.
    pub(crate) fn compile(
        context: &PolicyContext<'_>,
        name: &'static str,
    ) -> Result<Self, Refusal> {
        let config: Config = context.config()?;
        let given = config.replacements;
        context.count("replacements", given.len(), REPLACEMENTS_MAX)?;
        let mut pairs = Vec::with_capacity(given.len());
        for (index, pair) in given.iter().enumerate() {
            let field = format!("replacements[{index}].from");
            if pair.from.is_empty() {
                return Err(context.refuse(
                    code::POLICY_VALUE_EMPTY,
                    &format!("`{field}` must not be empty"),
                ));
            }
            let from = context.template(&field, &pair.from)?;
            let from = match from.constant() {
                None => From::Computed(from),
                Some(text) => From::Pattern(pattern(text).ok_or_else(|| {
                    let why =
                        format!("`{field}` must be a regular expression (RE2), at most 1 KiB");
                    context.refuse(code::POLICY_VALUE_INVALID, &why)
                })?),
            };
            let to = context.template(&format!("replacements[{index}].to"), &pair.to)?;
            pairs.push((from, to));
        }
        Ok(Self { name, pairs })
    }

    /// Variables that the replacement reads.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let of = |(from, to): &(From, Template)| {
            let from = match from {
                From::Computed(template) => template.slots().collect(),
                From::Pattern(_) => Vec::new(),
            };
            from.into_iter().chain(to.slots()).collect::<Vec<_>>()
        };
        self.pairs.iter().flat_map(of).collect()
    }

    /// Evaluates the replacements. They are applied when the phase ends.
    pub(crate) fn run<'a>(&'a self, x: &mut Exchange<'_>) -> ActionResult<'a> {
        let is_request = x.phase == Phase::Request;
        for (from, to) in &self.pairs {
            let is_secret =
                to.is_secret() || matches!(from, From::Computed(from) if from.is_secret());
            if is_secret {
                x.hide(|hidden| match is_request {
                    true => hidden.has_request_body = true,
                    false => hidden.has_response_body = true,
                });
            }
            let from = match from {
                From::Pattern(pattern) => pattern.clone(),
                From::Computed(template) => {
                    let text = template.strict(x).map(|text| pattern(&text));
                    let Ok(Some(pattern)) = text else {
                        return x.fault().into();
                    };
                    pattern
                }
            };
            let to = to.render(x).into_owned();
            x.edits.replacements.push(Replacement { from, to });
        }
        let error = x.error();
        let count = i64::try_from(self.pairs.len()).unwrap_or(i64::MAX);
        let fields = vec![("replacements", Value::Int(count)), error];
        x.result(self.name, fields);
        Flow::Continue.into()
    }
}

fn pattern(text: &str) -> Option<Regex> {
    if text.len() > PATTERN_BYTES_MAX {
        return None;
    }
    let mut builder = RegexBuilder::new(text);
    builder.size_limit(PROGRAM_BYTES_MAX).build().ok()
}

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
            let pattern = pattern(from).unwrap();
            let made = replaced(&pattern, to, Bytes::from_static(b"a 1-2 b 3-4")).unwrap();
            assert_eq!(made, expected, "{from}");
        }
        let growing = pattern("").unwrap();
        let long = Bytes::from(vec![b'x'; BODY_BYTES_MAX / 2]);
        assert_eq!(replaced(&growing, "abc", long), Err(NotReplaced::TooLong));
        assert!(pattern("(").is_none());
    }
}
