//! The conditions that most filters consist of: comparisons of variables with literals, joined by `&&`, `||` and `!`.
//!
//! They read variables in place and allocate nothing. Their units are charged once in advance; only a text search is
//! charged by the length of the text. `&&` and `||` absorb errors from either side, so operands may be reordered, and
//! the cheapest runs first.

use std::cmp::Ordering;

use crate::error::{EvalError, EvalErrorKind, Position, absorb};
use crate::eval::cost::{Meter, units_of};
use crate::eval::node::Comparison;
use crate::pattern::Pattern;
use crate::resolver::{Resolver, Slot};
use crate::value::ValueRef;

/// A condition that reads only variables.
#[derive(Debug)]
pub(crate) enum Condition {
    /// Compares an int variable with a literal.
    Number {
        slot: Slot,
        comparison: Comparison,
        literal: i64,
        at: Position,
    },
    /// Compares a string variable with a literal.
    Text {
        slot: Slot,
        test: TextTest,
        literal: Box<str>,
        at: Position,
    },
    /// Looks up an int variable in a list of literals.
    NumberIn {
        slot: Slot,
        literals: Box<[i64]>,
        at: Position,
    },
    /// Looks up a string variable in a list of literals.
    TextIn {
        slot: Slot,
        literals: Box<[Box<str>]>,
        at: Position,
    },
    /// Searches a string variable for a pattern.
    Matches {
        slot: Slot,
        pattern: Box<Pattern>,
        at: Position,
    },
    /// `has` of a variable.
    Present(Slot),
    Not(Box<Condition>),
    And(Box<[Condition]>),
    Or(Box<[Condition]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextTest {
    Equal,
    NotEqual,
    StartsWith,
    EndsWith,
    Contains,
}

impl Condition {
    /// Joins conditions with `&&`.
    pub(crate) fn and(parts: Vec<Self>) -> Self {
        Self::And(cheapest_first(parts))
    }

    /// Joins conditions with `||`.
    pub(crate) fn or(parts: Vec<Self>) -> Self {
        Self::Or(cheapest_first(parts))
    }

    /// The cost of visiting all nodes, without text searches.
    pub(crate) fn units(&self) -> u64 {
        match self {
            Self::Number { .. } | Self::Matches { .. } | Self::Present(_) => 1,
            Self::Text { literal, .. } => 1 + units_of(literal.len()),
            Self::NumberIn { literals, .. } => 1 + literals.len() as u64 / 4,
            Self::TextIn { literals, .. } => 1 + literals.len() as u64 / 4,
            Self::Not(operand) => 1 + operand.units(),
            Self::And(parts) | Self::Or(parts) => 1 + parts.iter().map(Self::units).sum::<u64>(),
        }
    }

    /// Evaluates the condition. Charges the meter for text searches only: `Node::Condition` has its [units](Self::units),
    /// which are charged first.
    #[inline]
    pub(crate) fn holds<R: Resolver + ?Sized>(
        &self,
        variables: &R,
        meter: &mut Meter<'_>,
    ) -> Result<bool, EvalError> {
        match self {
            Self::Number {
                slot,
                comparison,
                literal,
                at,
            } => Ok(comparison.holds(number(variables, *slot, *at)?.cmp(literal))),
            Self::Text {
                slot,
                test,
                literal,
                at,
            } => {
                let text = text(variables, *slot, *at)?;
                Ok(match test {
                    TextTest::Equal => *text == **literal,
                    TextTest::NotEqual => *text != **literal,
                    TextTest::StartsWith => text.starts_with(&**literal),
                    TextTest::EndsWith => text.ends_with(&**literal),
                    TextTest::Contains => {
                        meter.touch(text.len()).map_err(|kind| at.failed(kind))?;
                        text.contains(&**literal)
                    }
                })
            }
            Self::Matches { slot, pattern, at } => {
                let text = text(variables, *slot, *at)?;
                meter
                    .search(text.len(), pattern.weight())
                    .map_err(|kind| at.failed(kind))?;
                Ok(pattern.is_found_in(text))
            }
            Self::And(parts) => {
                let mut outcome = Ok(true);
                for part in parts {
                    match part.holds(variables, meter) {
                        Ok(true) => {}
                        Ok(false) => return Ok(false),
                        Err(error) => outcome = absorb(outcome, error)?,
                    }
                }
                outcome
            }
            Self::Or(parts) => {
                let mut outcome = Ok(false);
                for part in parts {
                    match part.holds(variables, meter) {
                        Ok(false) => {}
                        Ok(true) => return Ok(true),
                        Err(error) => outcome = absorb(outcome, error)?,
                    }
                }
                outcome
            }
            Self::NumberIn { slot, literals, at } => {
                Ok(literals.contains(&number(variables, *slot, *at)?))
            }
            Self::TextIn { slot, literals, at } => {
                let text = text(variables, *slot, *at)?;
                Ok(literals.iter().any(|literal| **literal == *text))
            }
            Self::Present(slot) => Ok(variables.value(*slot).is_some()),
            Self::Not(operand) => Ok(!operand.holds(variables, meter)?),
        }
    }

    /// The cost class that determines the order of operands.
    fn rank(&self) -> u64 {
        match self {
            Self::Number { .. } | Self::NumberIn { .. } | Self::Present(_) => 0,
            Self::Text {
                test: TextTest::Contains,
                ..
            } => 2,
            Self::Text { .. } | Self::TextIn { .. } => 1,
            Self::Matches { .. } => 3,
            Self::Not(operand) => operand.rank(),
            Self::And(parts) | Self::Or(parts) => {
                parts.iter().map(Self::rank).max().unwrap_or_default()
            }
        }
    }
}

/// Sorts by rank. Operands of equal rank keep their order.
fn cheapest_first(mut parts: Vec<Condition>) -> Box<[Condition]> {
    parts.sort_by_key(Condition::rank);
    parts.into()
}

#[inline]
fn text<R: Resolver + ?Sized>(variables: &R, slot: Slot, at: Position) -> Result<&str, EvalError> {
    match variables.value(slot) {
        Some(ValueRef::String(text)) => Ok(text),
        other => Err(mistyped(other.is_some(), at)),
    }
}

#[inline]
fn number<R: Resolver + ?Sized>(variables: &R, slot: Slot, at: Position) -> Result<i64, EvalError> {
    match variables.value(slot) {
        Some(ValueRef::Int(number)) => Ok(number),
        other => Err(mistyped(other.is_some(), at)),
    }
}

#[cold]
fn mistyped(has_value: bool, at: Position) -> EvalError {
    at.failed(if has_value {
        EvalErrorKind::NoSuchOverload
    } else {
        EvalErrorKind::NoValue
    })
}

impl Comparison {
    #[inline]
    pub(crate) fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterEqual => ordering.is_ge(),
        }
    }
}
