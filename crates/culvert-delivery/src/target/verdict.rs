//! Results of a send: of a batch, and of each of its events.

use crate::failure::{Failure, FailureClass};

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it was taken.
    Delivered,
    /// Some of it was. One outcome per event, in the order of the batch.
    Partial(Vec<Outcome>),
    /// None of it was, or nobody knows.
    Failed(Failure),
}

/// What became of one event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Taken.
    Delivered,
    /// Not sent, because an event before it failed.
    NotTried,
    /// Sent and not taken.
    Failed(Failure),
}

/// What `outcomes` of a whole batch come to.
pub(crate) fn verdict(outcomes: Vec<Outcome>) -> Verdict {
    if outcomes
        .iter()
        .all(|outcome| *outcome == Outcome::Delivered)
    {
        return Verdict::Delivered;
    }
    match &outcomes[..] {
        [Outcome::Failed(only)] => Verdict::Failed(only.clone()),
        _ => Verdict::Partial(outcomes),
    }
}

/// The same where events go one after the other, until one does not: a first that was not taken for
/// no fault of its own speaks for all.
pub(crate) fn verdict_of_line(outcomes: Vec<Outcome>) -> Verdict {
    match outcomes.split_first() {
        Some((Outcome::Failed(failure), rest))
            if failure.class != FailureClass::Permanent
                && rest.iter().all(|outcome| *outcome == Outcome::NotTried) =>
        {
            Verdict::Failed(failure.clone())
        }
        _ => verdict(outcomes),
    }
}

/// Whether an event was not taken for no fault of its own, so that the next ones would not be either.
pub(crate) fn is_stuck(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(failure) if failure.class != FailureClass::Permanent)
}
