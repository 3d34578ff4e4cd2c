//! The entries of a copy of stored documents, which a node starts from while the database is away.

use culvert_store::Document;

/// One entry of a copy. A later one replaces an earlier one of the same document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEntry {
    /// A document, without what the edge does not need.
    Put(Document),
    /// The document with this ID is gone.
    Remove {
        /// The ID.
        id: String,
    },
    /// A named value that is stored besides the documents.
    Named {
        /// Its name.
        name: String,
        /// The value.
        value: String,
    },
}
