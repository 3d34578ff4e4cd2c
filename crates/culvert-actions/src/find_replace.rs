//! Find and replace in bodies, for request-body-find-replace and response-body-find-replace.
//!
//! The action evaluates the replacements. The exchange applies them to the whole body when the phase ends,
//! after decoding it if its coding is known.

use culvert_base::{Refusal, code};
use culvert_cel::{Slot, Value};
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::edits::Replacement;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::replace::{PROGRAM_BYTES_MAX, computed_pattern};
use culvert_policy::policy::run::{ActionResult, Flow};
use culvert_policy::policy::template::Template;
use regex::bytes::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;

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
                Some(text) => From::Pattern(context.pattern(
                    &field,
                    text,
                    "a regular expression (RE2), at most 1 KiB",
                    PROGRAM_BYTES_MAX,
                    |limit| RegexBuilder::new(text).size_limit(limit).build(),
                )?),
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
                    let text = template.strict(x).map(|text| computed_pattern(&text));
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
