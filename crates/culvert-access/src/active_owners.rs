//! Which users and bot users are active. Agent sessions and certificates of Kubernetes operators outlive the call that made
//! them, so they end when their owner is deactivated or deleted.

use std::collections::BTreeSet;

use culvert_base::Fault;
use culvert_resources::access::bot_user::BotUser;
use culvert_resources::access::owner::Owner;
use culvert_resources::access::user::User;
use culvert_resources::resource::model::Model;
use culvert_resources::stored::informer_cache::InformerCache;
use culvert_store::{Document, Store};
use tracing::error;

/// Whether each user and each bot user is active.
#[derive(Debug)]
pub struct ActiveOwners([InformerCache<bool>; 2]);

impl ActiveOwners {
    /// Knows no owner yet.
    pub fn empty() -> Self {
        Self([
            InformerCache::of(User::KIND),
            InformerCache::of(BotUser::KIND),
        ])
    }

    /// Reads what has changed. Adds the owners that became active or inactive to `changed`, also if a later read fails.
    pub async fn refresh(
        &mut self,
        store: &Store,
        changed: &mut BTreeSet<String>,
    ) -> Result<(), Fault> {
        // An owner that cannot be read is not active.
        let is_active = |document: Document| {
            let owner = Owner::read(&document);
            let report = |fault: &Fault| error!(cause = %fault.chain(), "owner skipped");
            owner.inspect_err(report).is_ok_and(|owner| owner.active)
        };
        for cache in &mut self.0 {
            for (id, before) in cache.refresh(store, is_active).await? {
                if before != cache.get(&id).copied() {
                    changed.insert(id);
                }
            }
        }
        Ok(())
    }

    /// Whether there is an active owner with this ID.
    pub fn has(&self, id: &str) -> bool {
        self.0.iter().any(|owners| owners.get(id) == Some(&true))
    }
}
