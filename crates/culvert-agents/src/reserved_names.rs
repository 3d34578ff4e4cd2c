//! The names that are reserved for owners whose agents may reconnect, in the order in which they expire. Finding
//! what to remove costs as much as there is to remove, however many names are reserved.

use std::collections::{BTreeSet, HashMap, HashSet};

use culvert_base::{Fault, Timestamp};
use culvert_endpoints::host::{self, ReservedName};
use culvert_resources::stored::informer_cache::InformerCache;
use culvert_store::Store;

/// When a name expires, and the ID of its document.
type Expiry = (Timestamp, String);

#[derive(Debug)]
pub(crate) struct ReservedNames {
    names: InformerCache<Option<ReservedName>>,
    by_expiry: BTreeSet<Expiry>,
    by_owner: HashMap<String, BTreeSet<Expiry>>,
    /// Owners that may have more names than the limit.
    grown: HashSet<String>,
}

impl ReservedNames {
    pub(crate) fn empty() -> Self {
        Self {
            names: InformerCache::of(host::KIND),
            by_expiry: BTreeSet::new(),
            by_owner: HashMap::new(),
            grown: HashSet::new(),
        }
    }

    /// Reads what has changed.
    pub(crate) async fn refresh(&mut self, store: &Store) -> Result<(), Fault> {
        let changes = self
            .names
            .refresh(store, |document| host::kept(&document))
            .await?;
        for (id, before) in changes {
            if let Some(before) = before.flatten() {
                self.leave(&before, &id);
            }
            if let Some(now) = self.names.get(&id).cloned().flatten() {
                self.enter(&now, id);
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: &ReservedName, id: String) {
        let of_owner = self.by_owner.entry(name.owner_id.clone()).or_default();
        of_owner.insert((name.until, id.clone()));
        self.by_expiry.insert((name.until, id));
        self.grown.insert(name.owner_id.clone());
    }

    fn leave(&mut self, name: &ReservedName, id: &str) {
        let expiry = (name.until, id.to_owned());
        self.by_expiry.remove(&expiry);
        if let Some(of_owner) = self.by_owner.get_mut(&name.owner_id) {
            of_owner.remove(&expiry);
            if of_owner.is_empty() {
                self.by_owner.remove(&name.owner_id);
            }
        }
    }

    /// The expired names, and the names that each owner has beyond `max`, those that expire first. They are
    /// returned until they are removed.
    pub(crate) fn surplus(&mut self, now: Timestamp, max: usize) -> Vec<ReservedName> {
        let expired = self.by_expiry.iter().take_while(|(until, _)| *until <= now);
        let mut ids: BTreeSet<&str> = expired.map(|(_, id)| id.as_str()).collect();
        let by_owner = &self.by_owner;
        let n_over = |owner_id: &String| {
            let n_names = by_owner.get(owner_id).map_or(0, BTreeSet::len);
            n_names.saturating_sub(max)
        };
        self.grown.retain(|owner_id| n_over(owner_id) > 0);
        for owner_id in &self.grown {
            let of_owner = by_owner.get(owner_id).into_iter().flatten();
            ids.extend(of_owner.take(n_over(owner_id)).map(|(_, id)| id.as_str()));
        }
        let named = ids.into_iter().filter_map(|id| self.names.get(id));
        named.flatten().cloned().collect()
    }
}
