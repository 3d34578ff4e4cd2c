//! Errors of an operation: refusals of a request, and internal faults.

use culvert_base::{Fault, Refusal};

/// The API shows a refusal unchanged and a fault as one sentence. Only the log shows the causes of a fault.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid or not allowed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An internal failure.
    #[error(transparent)]
    Faulted(#[from] Fault),
}
