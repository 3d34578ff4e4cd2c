//! The edge's input: a whole snapshot, or the changes since the last one.

use std::sync::Arc;
use std::time::Instant;

use culvert_base::Fault;
use culvert_edge::{Change, Snapshot};
use culvert_tunnel::nodes::Whereabouts;
use tracing::{debug, info};

use super::PASS_EVERY;
use super::state::{Due, Ready, ReconcileState};
use crate::authority::Authority;
use crate::control::Control;
use crate::ports::EdgePort;
use crate::resource::model::Model;
use crate::resource::model::certificate_authority::CertificateAuthority;
use crate::resource::model::ip_policy::IpPolicy;
use crate::resource::model::ip_policy_rule::IpPolicyRule;
use crate::resource::model::vault::Vault;
use crate::resource::model::vault_secret::VaultSecret;

/// Kinds that traffic policies refer to.
const POLICY_KINDS: [&str; 5] = [
    IpPolicy::KIND,
    IpPolicyRule::KIND,
    CertificateAuthority::KIND,
    Vault::KIND,
    VaultSecret::KIND,
];

impl Control {
    pub(super) async fn compile_edge(
        &self,
        edge: &dyn EdgePort,
        authority: &mut Authority,
        seen: &mut ReconcileState,
    ) -> Result<(), Fault> {
        // Read the runs before and after the endpoints. An endpoint that moves from a stopping node meanwhile
        // is then on a known run, whichever of its two runs is read.
        let mut elsewhere = self.elsewhere(seen).await?;
        self.read_endpoints(seen).await?;
        elsewhere.extend(self.elsewhere(seen).await?);
        self.find_runs(seen, &mut elsewhere).await?;
        self.read_operators(seen).await?;
        for informer_cache in [&mut seen.domains, &mut seen.ingresses] {
            let changes = informer_cache
                .refresh(&self.store, |document| document)
                .await?;
            seen.due.certificates |= !changes.is_empty();
        }
        let changes = seen.orders.refresh(&self.store, |document| document);
        seen.due.challenges |= !changes.await?.is_empty();
        // Rules of IP policies reach the traffic policies that refer to them without a new snapshot.
        let (until, is_due) = self.is_touched(seen.policies_at, &POLICY_KINDS).await;
        if is_due {
            seen.policies_at = None;
            seen.policies.refresh(&self.store, &self.seal).await?;
        }
        seen.policies_at = Some(until);
        let restrictions = self.restrictions.load_full();
        let is_fresh = seen
            .snapshot_at
            .is_some_and(|at| at.elapsed() < 60 * PASS_EVERY);
        let has_restrictions = seen
            .restrictions
            .as_ref()
            .is_some_and(|before| before.read == restrictions.read);
        let is_whole = !(is_fresh && has_restrictions && seen.elsewhere == elsewhere);
        let due = &seen.due;
        let is_quiet = due.endpoints.is_empty() && !due.operators;
        if !is_whole && is_quiet && !due.certificates && !due.challenges {
            return Ok(());
        }
        let operators = match is_whole || due.operators {
            true => Some(self.operators(seen).await?),
            false => None,
        };
        if let Some(nodes) = &self.nodes
            && (is_whole || due.whereabouts)
        {
            let place = |ready: &Ready| {
                let (id, run) = ready.served.as_ref()?;
                Some((id.clone(), elsewhere.get(run)?.clone()))
            };
            if is_whole {
                let endpoints = seen.endpoints.made().flatten().filter_map(place).collect();
                nodes.publish(Whereabouts { endpoints }).await;
            } else {
                let moved = due.endpoints.iter().map(|id| {
                    let ready = seen.endpoints.get(id).and_then(Option::as_ref);
                    (
                        id.clone(),
                        ready.and_then(place).map(|(_, address)| address),
                    )
                });
                nodes.apply(moved.collect()).await;
            }
        }
        let certificates = match is_whole || seen.due.certificates {
            true => Some(self.certificates_due(authority, seen).await?),
            false => None,
        };
        let own = self.agents.as_ref().map(|agents| agents.run.as_str());
        // The agent is connected to this run or to a run that this node can reach.
        let is_reached = |ready: &&Ready| match &ready.served {
            None => true,
            Some((_, run)) => own == Some(run.as_str()) || elsewhere.contains_key(run),
        };
        if is_whole {
            let mut snapshot = certificates
                .unwrap_or_else(Snapshot::builder)
                .logins(Arc::clone(&self.logins))
                .operators(operators.unwrap_or_default());
            for restriction in &restrictions.endpoints {
                snapshot = snapshot.restriction(restriction.clone());
            }
            for challenge in Self::challenges(seen.orders.made()) {
                snapshot = snapshot.challenge(challenge);
            }
            for ready in seen.endpoints.made().flatten().filter(is_reached) {
                snapshot = snapshot.endpoint(seen.bound(ready));
            }
            let snapshot = snapshot.build();
            info!(
                endpoints = snapshot.len(),
                "endpoints published to the edge"
            );
            edge.publish(snapshot).await;
            seen.snapshot_at = Some(Instant::now());
        } else {
            let mut change = Change::default();
            for id in &seen.due.endpoints {
                let ready = seen.endpoints.get(id).and_then(Option::as_ref);
                match ready.filter(is_reached) {
                    Some(ready) => change.put(seen.bound(ready)),
                    None => change.remove(id.clone()),
                }
            }
            if let Some(operators) = operators {
                change.operators(operators);
            }
            if seen.due.challenges {
                change.challenges(Self::challenges(seen.orders.made()));
            }
            if let Some(certificates) = certificates {
                change.certificates_of(certificates.build());
            }
            debug!(
                endpoints = change.len(),
                of = seen.endpoints.len(),
                "change published to the edge"
            );
            edge.apply(change).await;
        }
        seen.due = Due::default();
        seen.restrictions = Some(restrictions);
        seen.elsewhere = elsewhere;
        Ok(())
    }
}
