//! Which documents something was made from, to detect changes.

use culvert_store::{Document, Revision};

/// Documents by ID, each at its revision. Empty sets of different epochs are equal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReadSet(Vec<(String, Revision)>);

impl ReadSet {
    /// These documents, read in this epoch of the store or later.
    pub fn of<'a>(epoch: u64, documents: impl Iterator<Item = &'a Document>) -> Self {
        let mut read = Self::default();
        documents.for_each(|document| read.add(epoch, document));
        read
    }

    /// Records that `document` was read in this epoch of the store.
    pub fn add(&mut self, epoch: u64, document: &Document) {
        let number = document.head.revision;
        let id = document.head.id.clone();
        self.0.push((id, Revision { epoch, number }));
    }

    /// Adds one that does not exist.
    pub fn add_missing(&mut self, id: &str) {
        self.0.push((id.to_owned(), Revision::START));
    }

    /// Forgets all documents.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
