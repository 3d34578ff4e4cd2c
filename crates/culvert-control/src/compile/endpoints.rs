//! Endpoints: their documents, the runs that their agents are connected to, and the Kubernetes operators that may
//! bind them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use culvert_access::use_table::UseTable;
use culvert_agents::heartbeat;
use culvert_base::Fault;
use culvert_certificates::authority;
use culvert_certificates::certificate_authority::model::CertificateAuthority;
use culvert_certificates::tls_certificate::model::TlsCertificate;
use culvert_edge_config::{EndpointBinding, Operator, Operators, Upstream};
use culvert_endpoints::endpoint::model::Endpoint;
use culvert_endpoints::kubernetes_operator::endpoint_selector::EndpointFacts;
use culvert_endpoints::traffic_policy::Compiled;
use culvert_policy::Scheme;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::Model;
use culvert_resources::settings::Settings;
use culvert_resources::stored;
use culvert_resources::stored::seal::Seal;
use culvert_store::Document;
use tracing::{error, warn};

use super::state::{CompileState, Ready};
use crate::control::Control;

/// Kinds that options of TLS to upstreams name.
const TLS_KINDS: [&str; 2] = [CertificateAuthority::KIND, TlsCertificate::KIND];

impl Control {
    /// Reads and compiles the endpoints that have changed.
    pub(super) async fn read_endpoints(&self, state: &mut CompileState) -> Result<(), Fault> {
        let policies = &mut state.policies;
        let settings = &self.kernel.settings;
        let ready =
            |document: Document| match ready(&document, settings, &self.kernel.seal, policies) {
                Ok(ready) => Some(ready),
                Err(fault) => {
                    error!(cause = %fault.chain(), "endpoint skipped");
                    None
                }
            };
        let changes = state.endpoints.refresh(&self.kernel.store, ready).await?;
        for (id, before) in changes {
            let now = state.endpoints.get(&id).and_then(Option::as_ref);
            let before = before.flatten();
            if now.is_some_and(|now| now.endpoint.policy.is_some()) {
                // It may refer to a policy that was not read yet. Until then that policy denies every
                // address.
                state.policies_at = None;
            } else {
                state.policies.forget(&id);
            }
            let parent = |ready: &Ready| {
                let (_, parent) = ready.certificate_host.as_deref()?.split_once('.')?;
                Some(parent.to_owned())
            };
            if let Some(parent) = now.and_then(parent) {
                let count = state.parents.entry(parent).or_default();
                *count += 1;
                state.due.certificates |= *count == 1;
            }
            if let Some(parent) = before.as_ref().and_then(parent)
                && let Some(count) = state.parents.get_mut(&parent)
            {
                *count -= 1;
                if *count == 0 {
                    state.parents.remove(&parent);
                    state.due.certificates = true;
                }
            }
            let is_served = |ready: &Ready| ready.served.is_some();
            state.due.locations |=
                now.is_some_and(is_served) || before.is_some_and(|ready| is_served(&ready));
            match now.is_some_and(|now| now.upstream_tls.is_some()) {
                true => state.upstream_tls.endpoints.insert(id.clone()),
                false => state.upstream_tls.endpoints.remove(&id),
            };
            state.due.endpoints.insert(id);
        }
        Ok(())
    }

    /// Reads the objects that options of TLS to upstreams name, if they or the rights to use them may have changed. The
    /// endpoints that get other options are due again.
    pub(super) async fn resolve_upstream_tls(&self, state: &mut CompileState) -> Result<(), Fault> {
        let known = &mut state.upstream_tls;
        if known.endpoints.is_empty() {
            known.read_at = None;
            return Ok(());
        }
        let (until, is_touched) = self.is_touched(known.read_at, &TLS_KINDS).await;
        let table = Arc::clone(&state.uses.table);
        let is_same_table = |by: &Arc<UseTable>| Arc::ptr_eq(by, &table);
        let is_all = is_touched || !known.read_by.as_ref().is_some_and(is_same_table);
        let due = &state.due.endpoints;
        let ids: Vec<String> = known
            .endpoints
            .iter()
            .filter(|id| is_all || due.contains(*id))
            .cloned()
            .collect();
        for id in ids {
            let Some(Some(ready)) = state.endpoints.get_mut(&id) else {
                continue;
            };
            let Some((head, owner_id, options)) = &ready.upstream_tls else {
                continue;
            };
            let (store, seal) = (&self.kernel.store, &self.kernel.seal);
            let resolved = options
                .resolve(store, seal, &table, (head, owner_id))
                .await?;
            let upstream = ready.endpoint.upstream.as_ref();
            if upstream.and_then(Upstream::tls) == Some(&resolved) {
                continue;
            }
            if let Err(withheld) = resolved.options() {
                warn!(endpoint.id = %id, cause = %withheld, "the upstream of an endpoint is not connected to");
            }
            let endpoint = culvert_edge_config::Endpoint::clone(&ready.endpoint);
            ready.endpoint = Arc::new(endpoint.with_upstream_tls(&Arc::new(resolved)));
            state.due.endpoints.insert(id);
        }
        state.upstream_tls.read_at = Some(until);
        state.upstream_tls.read_by = Some(table);
        Ok(())
    }

    /// Other runs whose agents this node can reach, with their addresses.
    pub(super) async fn elsewhere(
        &self,
        state: &mut CompileState,
    ) -> Result<BTreeMap<String, String>, Fault> {
        if self.agents.nodes.is_none() {
            return Ok(BTreeMap::new());
        }
        let read = |document: Document| {
            let address = heartbeat::address(&document).unwrap_or_else(|fault| {
                error!(cause = %fault.chain(), "node instance skipped");
                None
            });
            (document.head.id, address)
        };
        state.runs.refresh(&self.kernel.store, read).await?;
        let own = self.agents.agents.as_ref().map(|agents| &agents.run);
        let others = state.runs.values().filter(|(run, _)| Some(run) != own);
        Ok(others
            .filter_map(|(run, address)| Some((run.clone(), address.clone()?)))
            .collect())
    }

    /// Adds the runs that endpoints refer to and that are not known here yet. An endpoint that this process
    /// wrote is read in its latest state. This may include a later commit that moved it to a node that has
    /// just started. Commits of other nodes are otherwise seen here only after a short delay.
    pub(super) async fn find_runs(
        &self,
        state: &CompileState,
        elsewhere: &mut BTreeMap<String, String>,
    ) -> Result<(), Fault> {
        if self.agents.nodes.is_none() {
            return Ok(());
        }
        let own = self
            .agents
            .agents
            .as_ref()
            .map(|agents| agents.run.as_str());
        let run_of = |ready: &Ready| Some(ready.served.as_ref()?.1.clone());
        let due = state.due.endpoints.iter();
        let due = due.filter_map(|id| state.endpoints.get(id)?.as_ref().and_then(run_of));
        let mut named: BTreeSet<String> = due.collect();
        // In this case the whole snapshot is rebuilt.
        if *elsewhere != state.elsewhere {
            named.extend(state.endpoints.values().flatten().filter_map(run_of));
        }
        for run in named {
            if own == Some(run.as_str()) || elsewhere.contains_key(&run) {
                continue;
            }
            if let Some(document) = self.kernel.store.get(heartbeat::KIND, &run).await?
                && let Some(address) = heartbeat::address(&document)?
            {
                elsewhere.insert(run, address);
            }
        }
        Ok(())
    }

    /// Reads the Kubernetes operators that have changed. The endpoints that they may bind are due again.
    pub(super) async fn read_operators(&self, state: &mut CompileState) -> Result<(), Fault> {
        let accounts = state.operators.refresh(&self.kernel.store).await?;
        if accounts.is_empty() {
            return Ok(());
        }
        state.due.operators = true;
        let offered = state.endpoints.values().flatten();
        let offered = offered
            .filter(|ready| ready.facts.is_some() && accounts.contains(&ready.endpoint.account));
        let offered = offered.map(|ready| ready.endpoint.id.clone());
        state.due.endpoints.extend(offered);
        Ok(())
    }

    /// The Kubernetes operators that may connect.
    pub(super) async fn operators(&self, state: &CompileState) -> Result<Operators, Fault> {
        let operators: Vec<Operator> = state.operators.all().cloned().collect();
        if operators.is_empty() {
            return Ok(Operators::default());
        }
        Ok(Operators {
            authority: authority::operators_certificate(&self.kernel.store).await?,
            operators,
        })
    }
}

fn ready(
    document: &Document,
    settings: &Settings,
    seal: &Seal,
    policies: &mut Compiled,
) -> Result<Ready, Fault> {
    let endpoint: Endpoint = stored::read(document)?;
    let served = endpoint
        .served()
        .map(|served| (document.head.id.clone(), served.run.clone()));
    let ready = endpoint.compile(settings.public_ports, seal, &document.head, policies)?;
    let policy = ready.policy.as_ref();
    let ends_tls =
        ready.scheme == Scheme::Https || policy.is_some_and(|policy| policy.terminates_tls());
    let host = endpoint
        .certificate_host(&settings.edge_domain)
        .filter(|_| ends_tls);
    let base = Base {
        uri: "",
        ports: settings.public_ports,
        kubernetes_ingress: "",
        viewer: None,
    };
    let facts = match ready.binding {
        EndpointBinding::Kubernetes(_) => {
            let view = serde_json::to_value(endpoint.view(&document.head, base));
            let view = view.map_err(|error| Fault::new("reading an endpoint", error))?;
            EndpointFacts::of(&view)
        }
        EndpointBinding::Public | EndpointBinding::Internal => None,
    };
    Ok(Ready {
        facts,
        certificate_host: host.map(str::to_owned),
        endpoint: Arc::new(ready),
        served,
        upstream_tls: endpoint.upstream_tls_references().map(|options| {
            let owner_id = endpoint.principal_id().to_owned();
            (document.head.clone(), owner_id, options.clone())
        }),
    })
}
