//! Reasons why a commit is refused.

use culvert_base::Fault;

/// Why a `Changes` was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A document to be replaced or removed has changed, is gone, or is referenced since it was read. Read it and decide
    /// again.
    #[error("the documents have changed since they were read")]
    Stale,
    /// Another document holds this unique value. `name` is the key's name, or `id`.
    #[error("another {kind} has this {name}")]
    Duplicate { kind: String, name: String },
    /// A reference points at a document that does not exist.
    #[error("{field} names {to}, which does not exist")]
    Missing { field: String, to: String },
    /// A removed document is referenced by `by`, which blocks the removal.
    #[error("{id} is in use by {by}")]
    InUse {
        id: String,
        by_kind: String,
        by: String,
    },
    /// An internal failure. Unless it says otherwise, nothing was committed.
    #[error(transparent)]
    Fault(#[from] Fault),
}
