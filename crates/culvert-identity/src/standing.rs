//! Caches the standing of owners between calls until the next commit.

use std::sync::{Mutex, PoisonError};

use culvert_base::Fault;
use culvert_resources::access::key_rules::KeyRules;
use culvert_resources::access::owner::Owner;
use culvert_resources::access::tenant::Account;
use culvert_resources::stored;
use culvert_store::{Revision, Store};
use hashlink::LruCache;
use tokio::sync::watch;

/// An owner, and what its account says.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The owner.
    pub owner: Owner,
    /// Whether the account is suspended.
    pub is_suspended: bool,
    /// The rules of the account about API keys.
    pub key_rules: KeyRules,
}

/// The standing of owners, each with the revision of the store that it was read at.
#[derive(Debug)]
pub struct Standings {
    revision: watch::Receiver<Revision>,
    known: Mutex<LruCache<String, (Revision, Standing)>>,
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

    /// The standing of an owner. An account that cannot be read is an error, so its rules hold or nothing works.
    pub async fn of(&self, store: &Store, id: &str) -> Result<Option<Standing>, Fault> {
        // Read the revision first: after a commit in between, the entry is outdated immediately.
        let revision = *self.revision.borrow();
        if let Some((known_at, standing)) = self.lock().get(id)
            && *known_at == revision
        {
            return Ok(Some(standing.clone()));
        }
        let Some((owner, account_id)) = Owner::load(store, id).await? else {
            return Ok(None);
        };
        let (is_suspended, key_rules) = match store.get(Account::KIND, &account_id).await? {
            Some(document) => {
                let account: Account = stored::read(&document)?;
                (account.suspended, account.key_rules)
            }
            None => (true, KeyRules::default()),
        };
        let standing = Standing {
            owner,
            is_suspended,
            key_rules,
        };
        // The least recently used entry is evicted.
        self.lock()
            .insert(id.to_owned(), (revision, standing.clone()));
        Ok(Some(standing))
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, LruCache<String, (Revision, Standing)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
