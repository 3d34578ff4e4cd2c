//! The verdict on a batch, from the outcomes of its events.

use culvert_target::failure::FailureClass;
use culvert_target::{Outcome, Verdict};

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
