//! Reasons why a commit is refused.

use culvert_base::Fault;

/// Why a `Changes` was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A document to be replaced or removed has changed, is gone, or is referenced since it was read. Read it and decide
    /// again.
    #[error("the documents have changed since they were read")]
    Stale,
    /// Another document holds this unique value.
    #[error("another {kind} has this {name}")]
    Duplicate {
        /// Name of the resource, such as `api_key`.
        kind: String,
        /// Name of the key, or `id`.
        name: String,
    },
    /// A reference points at a document that does not exist.
    #[error("{field} names {to}, which does not exist")]
    Missing {
        /// The field with the reference.
        field: String,
        /// Id of the missing document.
        to: String,
    },
    /// A removed document is referenced by `by`, which blocks the removal.
    #[error("{id} is in use by {by}")]
    InUse {
        /// Id of the document that would be removed.
        id: String,
        /// Name of the resource that refers to it, such as `api_key`.
        by_kind: String,
        /// Id of the document that refers to it.
        by: String,
    },
    /// An answer with this ID is kept: the request was committed before.
    #[error("an answer to the same request is kept")]
    Kept,
    /// The owner of an answer has no room for it.
    #[error("the owner has too many kept responses")]
    NoRoom,
    /// An internal failure. Unless its message says otherwise, nothing was committed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why a step failed.
pub(crate) enum Failure {
    Refused(CommitError),
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<CommitError> for Failure {
    fn from(refused: CommitError) -> Self {
        Self::Refused(refused)
    }
}
