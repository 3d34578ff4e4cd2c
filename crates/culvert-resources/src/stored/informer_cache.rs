//! An in-memory cache of the documents of one kind, each converted when it is read and again when it changes.
//!
//! A refresh reads the documents that changed since the last one. Commits report the documents that they changed,
//! also those of other nodes, so a refresh reads only these. After a very large commit or a lost connection
//! this is not known, and the refresh queries the documents written since. That query does not report
//! removals. If the cache then has more members than the store has documents up to the same revision, the IDs are
//! compared. A commit between the two reads starts another refresh, which finds its changes. After a loss of commits
//! everything is read again, and all of it counts as changed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use culvert_base::Fault;
use culvert_store::{Document, Revision, Store};

/// The converted documents of a kind.
#[derive(Debug)]
pub struct InformerCache<T> {
    kind: &'static str,
    /// The cache includes all commits up to this revision.
    complete_to: Option<Revision>,
    /// Number of the latest revision that was read.
    revision: i64,
    members: BTreeMap<String, T>,
}

impl<T> InformerCache<T> {
    /// An empty cache of the documents of this kind.
    pub fn of(kind: &'static str) -> Self {
        Self {
            kind,
            complete_to: None,
            revision: 0,
            members: BTreeMap::new(),
        }
    }

    /// Reads what has changed. Returns each changed ID with its previous value.
    pub async fn refresh(
        &mut self,
        store: &Store,
        mut make: impl FnMut(Document) -> T,
    ) -> Result<Vec<(String, Option<T>)>, Fault> {
        let known = self.complete_to.unwrap_or(Revision::START);
        let (until, touched) = store.touched(known).await;
        // What was read in an earlier epoch may be lost, and its numbers used again.
        let read_before = match known.epoch == until.epoch {
            true => self.revision,
            false => 0,
        };
        // Read everything before changing the cache, so that a failed refresh changes nothing.
        let (mut written, mut removed) = (Vec::new(), Vec::new());
        let mut changes = Vec::new();
        let mut read_to = read_before.max(until.number);
        let mut read = |document: Document| {
            read_to = read_to.max(document.head.revision);
            let id = document.head.id.clone();
            written.push((id, make(document)));
        };
        match touched.filter(|_| self.complete_to.is_some()) {
            Some(touched) => {
                let of_kind = touched.into_iter().filter(|one| one.kind == self.kind);
                let ids: BTreeSet<String> = of_kind.map(|one| one.id).collect();
                for id in ids {
                    match store.get(self.kind, &id).await? {
                        Some(document) => read(document),
                        None => removed.push(id),
                    }
                }
            }
            None => {
                // Documents are converted while the database reads the next ones.
                store.each_changed(self.kind, read_before, read).await?;
                let is_new = |(id, _): &&(String, T)| !self.members.contains_key(id);
                let n_members = self.members.len() + written.iter().filter(is_new).count();
                // Later documents are not counted: they could take the places of removed ones.
                if store.count_until(self.kind, read_to).await? != n_members {
                    let there: HashSet<String> = store.ids(self.kind).await?.into_iter().collect();
                    let gone = self.members.keys().filter(|id| !there.contains(*id));
                    removed.extend(gone.cloned());
                    // Those that were removed after they were read.
                    let gone = written.extract_if(.., |(id, _)| !there.contains(id));
                    changes.extend(gone.map(|(id, _)| (id, None)));
                }
            }
        }
        for (id, made) in written {
            let before = self.members.insert(id.clone(), made);
            changes.push((id, before));
        }
        for id in removed {
            // One that was never a member is reported too: a refresh that failed may have converted it.
            let before = self.members.remove(&id);
            changes.push((id, before));
        }
        // The cache includes all commits up to this revision.
        self.revision = read_before.max(until.number);
        self.complete_to = Some(until);
        Ok(changes)
    }

    /// The epoch of the documents.
    pub fn epoch(&self) -> u64 {
        self.complete_to.map_or(0, |revision| revision.epoch)
    }

    /// The value of the document with this ID.
    pub fn get(&self, id: &str) -> Option<&T> {
        self.members.get(id)
    }

    /// The value of the document with this ID, to complete it by what else it depends on.
    pub fn get_mut(&mut self, id: &str) -> Option<&mut T> {
        self.members.get_mut(id)
    }

    /// The number of documents.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// The values, ordered by ID.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.members.values()
    }

    /// The IDs with their values, ordered by ID.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.members.iter()
    }

    /// Whether there is a document with this ID.
    pub fn contains(&self, id: &str) -> bool {
        self.members.contains_key(id)
    }
}
