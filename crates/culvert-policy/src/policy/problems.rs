//! All problems of a policy, each with its place in the document. A write reports the first one; an editor shows all.

use culvert_base::Refusal;
use culvert_yaml::Step;

/// How every refusal of a policy begins.
pub(crate) const INVALID: &str = "The traffic policy is invalid: ";

/// A problem of a policy.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Its place in the document: the smallest part that is checked separately.
    pub path: Vec<Step>,
    /// The field below that place, such as `bucket_key[0]`; empty if the problem is that of the whole place.
    pub field: String,
    /// The beginning of the expression in a template that it is about; empty for other problems.
    pub expression: String,
    /// Line and column in the expression, from 1. Columns count characters.
    pub in_expression: Option<(usize, usize)>,
    /// A sentence without a full stop and without the place.
    pub why: String,
    /// The whole refusal.
    pub refusal: Refusal,
}

/// Enough problems were found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enough;

/// The problems that were found so far.
#[derive(Debug)]
pub(crate) struct Problems {
    found: Vec<Problem>,
    max: usize,
}

impl Problems {
    /// Up to `max` problems.
    pub(crate) fn up_to(max: usize) -> Self {
        Self {
            found: Vec::new(),
            max,
        }
    }

    /// Notes a refusal at a place, which `shown` names in its message.
    pub(crate) fn note(
        &mut self,
        path: Vec<Step>,
        shown: &str,
        refusal: Refusal,
    ) -> Result<(), Enough> {
        self.found.push(Problem::of(path, shown, refusal));
        match self.found.len() < self.max {
            true => Ok(()),
            false => Err(Enough),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All of them, in the order of the text.
    pub(crate) fn into_vec(self) -> Vec<Problem> {
        self.found
    }
}

impl Problem {
    /// A refusal as a problem of a place. Its message has the beginning of all such messages, the place, and then a
    /// field between backticks or a position in an expression.
    pub fn of(path: Vec<Step>, shown: &str, refusal: Refusal) -> Self {
        let message = refusal.message.strip_prefix(INVALID);
        let message = message.unwrap_or(&refusal.message).trim_end_matches('.');
        let mut rest = message.strip_prefix(shown).unwrap_or(message);
        if let Some((ty, after)) = rest.strip_prefix(" (").and_then(|it| it.split_once(')')) {
            let is_type = ty
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'-');
            rest = if is_type { after } else { rest };
        }
        let rest = rest.strip_prefix(": ").unwrap_or(rest);
        let (field, after) = match rest.strip_prefix('`').and_then(|it| it.split_once('`')) {
            Some((field, after)) => (field.to_owned(), after.strip_prefix(": ").unwrap_or(rest)),
            None => (String::new(), rest),
        };
        let within = after.strip_prefix("the expression `");
        let (expression, why) = within
            .and_then(|within| within.split_once("` is invalid: "))
            .unwrap_or(("", after));
        let position = position(why);
        let why = position.map_or(why, |(_, why)| why).to_owned();
        Self {
            path,
            field,
            expression: expression.to_owned(),
            in_expression: position.map(|(position, _)| position),
            why,
            refusal,
        }
    }
}

/// The position that a message begins with, `2:5: …`, and the rest.
fn position(message: &str) -> Option<((usize, usize), &str)> {
    let (line, rest) = message.split_once(':')?;
    let (column, rest) = rest.split_once(": ")?;
    Some(((line.parse().ok()?, column.parse().ok()?), rest))
}
