//! IP restrictions: of API calls and agent sessions, which `culvert-identity` checks, and of public
//! endpoints, which the edge checks (contract: management API 1.2 and 2.9).
//!
//! The rules of all policies of a restriction count together: an address is allowed if one of them allows it
//! and none denies it. A restriction that is not enforced logs and allows.
//!
//! Restrictions are read before anything is served. If they cannot be read, the previous ones stay in force.

use std::collections::HashMap;
use std::sync::Arc;

use culvert_base::{Fault, IpSet};
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_resources::stored::read_set::ReadSet;
use culvert_store::{Document, Store};

use crate::ip::policy_model::IpPolicy;
use crate::ip::policy_rule_model::IpPolicyRule;
use crate::ip::restriction_model::{IpRestriction, RestrictionScope};
use crate::ip::rules;

/// The addresses that an IP restriction allows.
#[derive(Clone, Debug)]
pub struct Restriction {
    /// `ipx_…`, for the log.
    pub id: String,
    /// `ac_…` of the account that it protects.
    pub account: Arc<str>,
    /// Whether other addresses are rejected, or only logged.
    pub enforced: bool,
    /// The allowed addresses.
    pub admitted: Arc<IpSet>,
}

/// The restrictions in force.
#[derive(Debug, Default)]
pub struct Restrictions {
    /// What they were read from.
    pub read: ReadSet,
    /// Restrictions of the management API, by account.
    pub api: HashMap<String, Restriction>,
    /// Restrictions of agent sessions, by account.
    pub agents: HashMap<String, Restriction>,
    /// Restrictions of public endpoints.
    pub endpoints: Vec<Restriction>,
}

impl Restrictions {
    /// Reads the restrictions; `None` if nothing has changed since `before`.
    pub async fn load(store: &Store, before: &Self) -> Result<Option<Self>, Fault> {
        let mut loaded = Self::default();
        let epoch = store.epoch();
        // Read each policy once, even if several restrictions refer to it.
        let mut rules: HashMap<String, Option<Vec<Document>>> = HashMap::new();
        let mut guards = Vec::new();
        for document in store.all(IpRestriction::KIND).await? {
            let restriction: IpRestriction = stored::read(&document)?;
            if restriction.place == RestrictionScope::Dashboard {
                continue;
            }
            loaded.read.add(epoch, &document);
            for id in &restriction.ip_policy_ids {
                if !rules.contains_key(id) {
                    let account = &document.head.account;
                    let policy = store.get(IpPolicy::KIND, id).await?;
                    let of_it = match policy.filter(|policy| policy.head.account == *account) {
                        Some(_) => Some(rules::of_policy(store, account, id).await?),
                        None => None,
                    };
                    match &of_it {
                        Some(of_it) => of_it.iter().for_each(|rule| loaded.read.add(epoch, rule)),
                        None => loaded.read.add_missing(id),
                    }
                    rules.insert(id.clone(), of_it);
                }
            }
            guards.push((document.head, restriction));
        }
        if loaded.read == before.read {
            return Ok(None);
        }
        for (head, restriction) in guards {
            let mut prefixes = Vec::new();
            let mut is_whole = true;
            for id in &restriction.ip_policy_ids {
                let of_it = rules.get(id).and_then(Option::as_deref);
                is_whole &= of_it.is_some();
                for document in of_it.unwrap_or_default() {
                    let rule: IpPolicyRule = stored::read(document)?;
                    prefixes.push(rule.compile(&document.head)?);
                }
            }
            if !is_whole {
                // The deny rules of the policy are no longer known.
                prefixes.clear();
                tracing::error!(
                    restriction.id = head.id,
                    "IP policy of an IP restriction not found; it allows no address"
                );
            }
            let guard = Restriction {
                id: head.id,
                account: head.account.as_str().into(),
                enforced: restriction.enforced,
                admitted: Arc::new(IpSet::of(prefixes)),
            };
            match restriction.place {
                RestrictionScope::Api => {
                    loaded.api.insert(head.account, guard);
                }
                RestrictionScope::Endpoints => loaded.endpoints.push(guard),
                RestrictionScope::Agent => {
                    loaded.agents.insert(head.account, guard);
                }
                RestrictionScope::Dashboard => {}
            }
        }
        Ok(Some(loaded))
    }
}
