//! Documents of one kind in memory, each made into something once and again when it has changed.
//!
//! A refresh reads what was committed since the last one. Commits say what they touched, also those of other nodes, so
//! they cost a look at those documents and nothing else. Where that is not known, as after a very large
//! commit or a lost connection, the
//! database is asked what was written since; nothing tells of a removal then, so when there are more
//! members than documents the ids are compared. Whatever is committed between the two readings is found
//! by the next refresh, which that commit wakes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use culvert_base::Fault;
use culvert_store::{Document, Store};

/// What the documents of a kind were made into.
#[derive(Debug)]
pub(crate) struct InformerCache<T> {
    kind: &'static str,
    /// All commits up to this revision are in it.
    complete_to: Option<i64>,
    /// The latest document that was read.
    revision: i64,
    members: BTreeMap<String, T>,
}

impl<T> InformerCache<T> {
    pub(crate) fn of(kind: &'static str) -> Self {
        Self {
            kind,
            complete_to: None,
            revision: 0,
            members: BTreeMap::new(),
        }
    }

    /// Reads what has changed. Each change is its id with what was there before.
    pub(crate) async fn refresh(
        &mut self,
        store: &Store,
        mut make: impl FnMut(Document) -> T,
    ) -> Result<Vec<(String, Option<T>)>, Fault> {
        let (until, touched) = store.touched(self.complete_to.unwrap_or(0)).await;
        // Everything is read before anything changes, so a failed refresh changes nothing.
        let (mut written, mut removed) = (Vec::new(), Vec::new());
        match touched.filter(|_| self.complete_to.is_some()) {
            Some(touched) => {
                let of_kind = touched.into_iter().filter(|one| one.kind == self.kind);
                let ids: BTreeSet<String> = of_kind.map(|one| one.id).collect();
                for id in ids {
                    match store.get(self.kind, &id).await? {
                        Some(document) => written.push(document),
                        None => removed.push(id),
                    }
                }
            }
            None => {
                written = store.changed(self.kind, self.revision).await?;
                let is_new = |one: &&Document| !self.members.contains_key(&one.head.id);
                let n_members = self.members.len() + written.iter().filter(is_new).count();
                if store.count(self.kind).await? != n_members {
                    let there: HashSet<String> = store.ids(self.kind).await?.into_iter().collect();
                    let gone = self.members.keys().filter(|id| !there.contains(*id));
                    removed.extend(gone.cloned());
                    written.retain(|one| there.contains(&one.head.id));
                }
            }
        }
        let mut changes = Vec::new();
        for document in written {
            changes.push(self.put(document, &mut make));
        }
        for id in removed {
            if let Some(made) = self.members.remove(&id) {
                changes.push((id, Some(made)));
            }
        }
        // All that was committed up to there is in it.
        self.revision = self.revision.max(until);
        self.complete_to = Some(until);
        Ok(changes)
    }

    fn put(
        &mut self,
        document: Document,
        make: &mut impl FnMut(Document) -> T,
    ) -> (String, Option<T>) {
        let id = document.head.id.clone();
        let before = self.members.insert(id.clone(), make(document));
        (id, before)
    }

    /// What the document with this id was made into.
    pub(crate) fn get(&self, id: &str) -> Option<&T> {
        self.members.get(id)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// What they were made into, in the order of their ids.
    pub(crate) fn made(&self) -> impl Iterator<Item = &T> {
        self.members.values()
    }

    /// Whether there is one with this id.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.members.contains_key(id)
    }
}
