//! Results of a send: of a batch, and of each of its events.

use crate::failure::{Failure, FailureClass};

/// The result of a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole batch was accepted.
    Delivered,
    /// Some events were accepted. One outcome per event, in the order of the batch.
    Partial(Vec<Outcome>),
    /// No event was accepted, or the result is unknown.
    Failed(Failure),
}

impl Verdict {
    /// The failure, or the first of those of single events.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Delivered => None,
            Self::Failed(failure) => Some(failure),
            Self::Partial(outcomes) => outcomes.iter().find_map(|outcome| match outcome {
                Outcome::Failed(failure) => Some(failure),
                Outcome::Delivered | Outcome::NotTried => None,
            }),
        }
    }
}

/// The result of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Accepted.
    Delivered,
    /// Not sent, because an event before it failed.
    NotTried,
    /// Sent and not accepted.
    Failed(Failure),
}

/// The verdict on a batch with these outcomes.
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

/// The verdict on a batch whose events are sent in sequence until one fails. If the first fails for a reason other than
/// its content, the whole batch has failed.
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

/// Whether an event failed for a reason other than its content, so the next ones would fail too.
pub(crate) fn is_stuck(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(failure) if failure.class != FailureClass::Permanent)
}
