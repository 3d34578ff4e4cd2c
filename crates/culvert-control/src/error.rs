//! Why an operation did not do what it was asked: the caller's doing, or ours.

use culvert_base::{Fault, Refusal};

/// The two kinds of failure, told apart by type. The API shows a refusal as it is and a fault as one
/// sentence; only the log sees a fault's causes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller did, or asked, something that is not done.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Something of ours failed.
    #[error(transparent)]
    Faulted(#[from] Fault),
}
