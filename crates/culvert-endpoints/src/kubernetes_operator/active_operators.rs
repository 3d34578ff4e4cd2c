//! The Kubernetes operators that may connect: those that bind endpoints and whose owners are active.
//!
//! An operator has a certificate that is valid for a year, so its owner is checked here and not only where the certificate
//! was issued.

use std::collections::BTreeSet;
use std::sync::Arc;

use culvert_access::active_owners::ActiveOwners;
use culvert_base::Fault;
use culvert_edge_config::Operator;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_resources::stored::informer_cache::InformerCache;
use culvert_store::{Document, Store};
use tracing::error;

use crate::kubernetes_operator::CompiledOperator;
use crate::kubernetes_operator::endpoint_selector::EndpointFacts;
use crate::kubernetes_operator::model::KubernetesOperator;

/// The operators and whether their owners are active.
#[derive(Debug)]
pub struct ActiveOperators {
    /// `None` for an operator that binds nothing.
    operators: InformerCache<Option<CompiledOperator>>,
    owners: ActiveOwners,
    /// Owners that became active or inactive, until their operators are reported.
    changed_owners: BTreeSet<String>,
}

impl ActiveOperators {
    /// Knows no operator yet.
    pub fn empty() -> Self {
        Self {
            operators: InformerCache::of(KubernetesOperator::KIND),
            owners: ActiveOwners::empty(),
            changed_owners: BTreeSet::new(),
        }
    }

    /// Reads the changes. Returns the accounts whose operators changed.
    pub async fn refresh(&mut self, store: &Store) -> Result<BTreeSet<Arc<str>>, Fault> {
        let compile = |document: Document| {
            let operator = stored::read::<KubernetesOperator>(&document);
            let report = |fault: &Fault| error!(cause = %fault.chain(), "operator skipped");
            operator.inspect_err(report).ok()?.compile(&document.head)
        };
        self.owners.refresh(store, &mut self.changed_owners).await?;
        let changes = self.operators.refresh(store, compile).await?;
        // Nothing fails from here on, so no change is lost.
        let owners = std::mem::take(&mut self.changed_owners);
        let operators = self.operators.values().flatten();
        let of_owners = operators.filter(|one| owners.contains(&one.owner_id));
        let mut accounts: BTreeSet<Arc<str>> = of_owners
            .map(|one| Arc::clone(&one.operator.account))
            .collect();
        for (id, before) in changes {
            let now = self.operators.get(&id).and_then(Option::as_ref);
            let before = before.flatten();
            let either = now.or(before.as_ref());
            accounts.extend(either.map(|one| Arc::clone(&one.operator.account)));
        }
        Ok(accounts)
    }

    /// The operators that may connect.
    pub fn all(&self) -> impl Iterator<Item = &Operator> {
        self.active().map(|one| &one.operator)
    }

    /// The IDs of the operators of an account that select an endpoint.
    pub fn selecting(&self, account: &str, facts: &EndpointFacts) -> Arc<[String]> {
        let selecting = self
            .active()
            .filter(|one| *one.operator.account == *account && one.selectors.select(facts));
        selecting.map(|one| one.operator.id.clone()).collect()
    }

    fn active(&self) -> impl Iterator<Item = &CompiledOperator> {
        let operators = self.operators.values().flatten();
        operators.filter(|one| self.owners.has(&one.owner_id))
    }
}
