//! Documents of one kind in memory, each made into something once and again when it has changed.
//!
//! A refresh reads what was committed since the last one. Nothing tells of a removal, so when there
//! are more members than documents the ids are compared. Whatever is committed between the two
//! readings is found by the next refresh, which that commit wakes.

use std::collections::{BTreeMap, HashSet};

use culvert_base::Fault;
use culvert_store::{Document, Store};

/// What the documents of a kind were made into.
#[derive(Debug)]
pub(crate) struct Mirror<T> {
    kind: &'static str,
    /// The latest that was read.
    revision: i64,
    members: BTreeMap<String, Member<T>>,
}

#[derive(Debug)]
struct Member<T> {
    revision: i64,
    made: T,
}

impl<T> Mirror<T> {
    pub(crate) fn of(kind: &'static str) -> Self {
        Self {
            kind,
            revision: 0,
            members: BTreeMap::new(),
        }
    }

    /// Reads what has changed.
    pub(crate) async fn refresh(
        &mut self,
        store: &Store,
        mut make: impl FnMut(Document) -> T,
    ) -> Result<(), Fault> {
        for document in store.changed(self.kind, self.revision).await? {
            let revision = document.head.revision;
            self.revision = self.revision.max(revision);
            let id = document.head.id.clone();
            let made = make(document);
            self.members.insert(id, Member { revision, made });
        }
        if store.count(self.kind).await? != self.members.len() {
            let there: HashSet<String> = store.ids(self.kind).await?.into_iter().collect();
            self.members.retain(|id, _| there.contains(id));
        }
        Ok(())
    }

    /// What they were made into, in the order of their ids.
    pub(crate) fn made(&self) -> impl Iterator<Item = &T> {
        self.members.values().map(|member| &member.made)
    }

    /// Whether there is one with this id.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.members.contains_key(id)
    }

    /// The id and revision of each, to know what is new.
    pub(crate) fn revisions(&self) -> impl Iterator<Item = (String, i64)> {
        let of = |(id, member): (&String, &Member<T>)| (id.clone(), member.revision);
        self.members.iter().map(of)
    }
}
