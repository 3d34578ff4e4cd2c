//! Why an attempt to obtain a certificate stops.

use culvert_base::Fault;
use culvert_store::CommitError;
use culvert_tls::acme::{Blame, Failure};

/// Why an attempt stops.
#[derive(Debug)]
pub(super) enum Halt {
    /// Another node or the owner of the domain changed the order or the domain first.
    Overtaken,
    /// The authority, the edge or the DNS failed.
    Failed {
        failure: Failure,
        /// Whether the order cannot continue.
        is_over: bool,
    },
    Faulted(Fault),
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Self::Faulted(fault)
    }
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self::Failed {
            is_over: failure.blame != Blame::Passing,
            failure,
        }
    }
}

impl From<CommitError> for Halt {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Stale | CommitError::Duplicate { .. } => Self::Overtaken,
            CommitError::Fault(fault) => Self::Faulted(fault),
            other => Self::Faulted(Fault::new("storing a step of an order", other)),
        }
    }
}
