//! Results of a send: of a batch, and of each of its events.

use crate::failure::Failure;

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
