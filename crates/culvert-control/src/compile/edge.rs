//! The edge's input: a whole snapshot, or the changes since the last one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use culvert_access::ip::policy_model::IpPolicy;
use culvert_access::ip::policy_rule_model::IpPolicyRule;
use culvert_access::ip::restrictions::Restrictions;
use culvert_base::Fault;
use culvert_certificates::CertificateManager;
use culvert_certificates::authority::Authority;
use culvert_certificates::certificate_authority::model::CertificateAuthority;
use culvert_edge_config::{Change, Restriction, Snapshot, SnapshotBuilder};
use culvert_endpoints::forwarding::TableRights;
use culvert_endpoints::vault::model::Vault;
use culvert_endpoints::vault::secret_model::VaultSecret;
use culvert_event_config::ports::EdgePort;
use culvert_resources::resource::model::Model;
use culvert_tunnel::nodes::EndpointLocations;
use tracing::{debug, info};

use super::PASS_EVERY;
use super::state::{CompileState, Due, Ready};
use crate::control::Control;

/// Kinds that traffic policies refer to.
const POLICY_KINDS: [&str; 5] = [
    IpPolicy::KIND,
    IpPolicyRule::KIND,
    CertificateAuthority::KIND,
    Vault::KIND,
    VaultSecret::KIND,
];

impl Control {
    /// Reads the documents of the edge that have changed, and hands it the changes, or a whole snapshot if it is due.
    pub(super) async fn compile_edge(
        &self,
        edge: &dyn EdgePort,
        authority: &mut Authority,
        state: &mut CompileState,
    ) -> Result<(), Fault> {
        // Read the runs before and after the endpoints. An endpoint that moves from a stopping node meanwhile
        // is then on a known run, whichever of its two runs is read.
        let mut elsewhere = self.elsewhere(state).await?;
        self.read_endpoints(state).await?;
        elsewhere.extend(self.elsewhere(state).await?);
        self.find_runs(state, &mut elsewhere).await?;
        self.read_operators(state).await?;
        for informer_cache in [&mut state.domains, &mut state.ingresses] {
            let changes = informer_cache
                .refresh(&self.kernel.store, |document| document)
                .await?;
            state.due.certificates |= !changes.is_empty();
        }
        let changes = state
            .orders
            .refresh(&self.kernel.store, |document| document);
        state.due.challenges |= !changes.await?.is_empty();
        // Rules of IP policies reach the traffic policies that refer to them without a new snapshot.
        let (until, is_due) = self.is_touched(state.policies_at, &POLICY_KINDS).await;
        if is_due {
            state.policies_at = None;
            state
                .policies
                .refresh(&self.kernel.store, &self.kernel.seal)
                .await?;
        }
        state.policies_at = Some(until);
        let in_grace = self.kernel.clock.now() < self.endpoints.secret_echo_until;
        state.policies.judge(&state.uses.table, in_grace);
        self.resolve_upstream_tls(state).await?;
        let restrictions = self.identity.restrictions.load_full();
        let is_fresh = state
            .snapshot_at
            .is_some_and(|at| at.elapsed() < 60 * PASS_EVERY);
        let has_restrictions = state
            .restrictions
            .as_ref()
            .is_some_and(|before| before.read == restrictions.read);
        let is_whole = !(is_fresh && has_restrictions && state.elsewhere == elsewhere);
        let rights = Arc::clone(&state.uses.table);
        let has_rights = state.forward_rights.as_ref() == Some(&rights);
        let due = &state.due;
        let is_quiet = due.endpoints.is_empty() && !due.operators && has_rights;
        if !is_whole && is_quiet && !due.certificates && !due.challenges {
            return Ok(());
        }
        let operators = match is_whole || due.operators {
            true => Some(self.operators(state).await?),
            false => None,
        };
        self.publish_locations(state, &elsewhere, is_whole).await;
        let certificates = match is_whole || state.due.certificates {
            true => Some(self.certificates_due(authority, state).await?),
            false => None,
        };
        let own = self
            .agents
            .agents
            .as_ref()
            .map(|agents| agents.run.as_str());
        // The agent is connected to this run or to a run that this node can reach.
        let is_reached = |ready: &&Ready| match &ready.served {
            None => true,
            Some((_, run)) => own == Some(run.as_str()) || elsewhere.contains_key(run),
        };
        if is_whole {
            let snapshot = certificates
                .unwrap_or_else(Snapshot::builder)
                .logins(Arc::clone(&self.endpoints.policies.logins))
                .operators(operators.unwrap_or_default())
                .forward_rights(Arc::new(TableRights(Arc::clone(&rights))));
            let snapshot = snapshot_of(state, snapshot, &restrictions, is_reached);
            info!(
                endpoints = snapshot.len(),
                "endpoints published to the edge"
            );
            edge.publish(snapshot).await;
            state.snapshot_at = Some(Instant::now());
        } else {
            let mut change = change_of(state, is_reached);
            if let Some(operators) = operators {
                change.operators(operators);
            }
            if !has_rights {
                change.forward_rights(Arc::new(TableRights(Arc::clone(&rights))));
            }
            if let Some(certificates) = certificates {
                change.certificates_of(certificates.build());
            }
            debug!(
                endpoints = change.len(),
                of = state.endpoints.count(),
                "change published to the edge"
            );
            edge.apply(change).await;
        }
        state.due = Due::default();
        state.restrictions = Some(restrictions);
        state.forward_rights = Some(rights);
        state.elsewhere = elsewhere;
        Ok(())
    }

    /// Publishes through which nodes agents on other nodes are reached: all of them, or those that are due.
    async fn publish_locations(
        &self,
        state: &CompileState,
        elsewhere: &BTreeMap<String, String>,
        is_whole: bool,
    ) {
        let Some(nodes) = &self.agents.nodes else {
            return;
        };
        let address = |ready: &Ready| {
            let (_, run) = ready.served.as_ref()?;
            elsewhere.get(run).cloned()
        };
        if is_whole {
            let endpoints = state.endpoints.values().flatten();
            let endpoints = endpoints
                .filter_map(|ready| Some((ready.served.as_ref()?.0.clone(), address(ready)?)));
            let endpoints = endpoints.collect();
            nodes.publish(EndpointLocations { endpoints }).await;
        } else if state.due.locations {
            let moved = state.due.endpoints.iter().map(|id| {
                let ready = state.endpoints.get(id).and_then(Option::as_ref);
                (id.clone(), ready.and_then(address))
            });
            nodes.apply(moved.collect()).await;
        }
    }
}

/// A whole snapshot, from a builder that has all but restrictions, challenges and endpoints.
fn snapshot_of(
    state: &CompileState,
    mut snapshot: SnapshotBuilder,
    restrictions: &Restrictions,
    is_reached: impl Fn(&&Ready) -> bool,
) -> Snapshot {
    for restriction in &restrictions.endpoints {
        snapshot = snapshot.restriction(Restriction {
            id: restriction.id.clone(),
            account: Arc::clone(&restriction.account),
            enforced: restriction.enforced,
            admitted: Arc::clone(&restriction.admitted),
        });
    }
    for challenge in CertificateManager::challenges(state.orders.values()) {
        snapshot = snapshot.challenge(challenge);
    }
    for ready in state.endpoints.values().flatten().filter(is_reached) {
        snapshot = snapshot.endpoint(state.bound(ready));
    }
    snapshot.build()
}

/// The endpoints and challenges that are due.
fn change_of(state: &CompileState, is_reached: impl Fn(&&Ready) -> bool) -> Change {
    let mut change = Change::default();
    for id in &state.due.endpoints {
        let ready = state.endpoints.get(id).and_then(Option::as_ref);
        match ready.filter(&is_reached) {
            Some(ready) => change.put(state.bound(ready)),
            None => change.remove(id.clone()),
        }
    }
    if state.due.challenges {
        change.challenges(CertificateManager::challenges(state.orders.values()));
    }
    change
}
