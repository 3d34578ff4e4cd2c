//! Caches the standing of owners between calls until the next commit.

use std::sync::{Mutex, PoisonError};

use culvert_base::Fault;
use culvert_resources::access::owner::Owner;
use culvert_resources::access::tenant::Account;
use culvert_resources::stored;
use culvert_store::{Revision, Store};
use hashlink::LruCache;
use tokio::sync::watch;

/// Owners and whether their accounts are suspended, each with the revision of the store that it was read at.
#[derive(Debug)]
pub struct Standings {
    revision: watch::Receiver<Revision>,
    known: Mutex<LruCache<String, (Revision, Owner, bool)>>,
}

/// Limit of cached owners.
pub(crate) const STANDINGS_MAX: usize = 1024;

impl Standings {
    pub(crate) fn new(revision: watch::Receiver<Revision>) -> Self {
        Self {
            revision,
            known: Mutex::new(LruCache::new(STANDINGS_MAX)),
        }
    }

    /// An owner, and whether their account is suspended.
    pub async fn of(&self, store: &Store, id: &str) -> Result<Option<(Owner, bool)>, Fault> {
        // Read the revision first: after a commit in between, the entry is outdated immediately.
        let revision = *self.revision.borrow();
        if let Some((known_at, owner, is_suspended)) = self.lock().get(id)
            && *known_at == revision
        {
            return Ok(Some((owner.clone(), *is_suspended)));
        }
        let Some((owner, account_id)) = Owner::load(store, id).await? else {
            return Ok(None);
        };
        let is_suspended = match store.get(Account::KIND, &account_id).await? {
            Some(document) => stored::read::<Account>(&document)?.suspended,
            None => true,
        };
        // The least recently used entry is evicted.
        self.lock()
            .insert(id.to_owned(), (revision, owner.clone(), is_suspended));
        Ok(Some((owner, is_suspended)))
    }

    pub(crate) fn lock(
        &self,
    ) -> std::sync::MutexGuard<'_, LruCache<String, (Revision, Owner, bool)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
