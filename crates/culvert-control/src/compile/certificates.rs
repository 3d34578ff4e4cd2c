//! Certificates: those of custom domains, agent ingresses and the installation's own names, and the fallback
//! certificates of platform names.

use std::sync::Arc;

use culvert_agents::ingress::model::AgentIngress;
use culvert_base::Fault;
use culvert_base::net::HostName;
use culvert_certificates::authority::Authority;
use culvert_certificates::management::Managed;
use culvert_certificates::own_certificate;
use culvert_edge_config::{Snapshot, SnapshotBuilder};
use culvert_endpoints::reserved_domain::model::ReservedDomain;
use culvert_resources::stored;
use culvert_store::Document;
use rustls::sign::CertifiedKey;
use tracing::error;

use super::state::CompileState;
use crate::control::Control;

impl Control {
    /// Gives the public certificates of the installation's own names to the listeners.
    pub(super) async fn compile_own_certificates(
        &self,
        state: &mut CompileState,
    ) -> Result<(), Fault> {
        let read = |document: Document| {
            own_certificate::certified(&self.certificates, &document).unwrap_or_else(|fault| {
                error!(cause = %fault.chain(), "certificate skipped");
                None
            })
        };
        let changes = state
            .own_certificates
            .refresh(&self.kernel.store, read)
            .await?;
        if !changes.is_empty() {
            state.due.certificates = true;
            let certificates = state.own_certificates.values().flatten().cloned();
            self.certificates
                .own_certificates
                .replace(certificates.collect());
        }
        Ok(())
    }

    /// A snapshot update with only the certificates in use.
    pub(super) async fn certificates_due(
        &self,
        authority: &mut Authority,
        state: &mut CompileState,
    ) -> Result<SnapshotBuilder, Fault> {
        let platform = &self.kernel.settings.edge_domain;
        let mut snapshot = Snapshot::builder();
        let (custom, mut bare) = self.custom_domains(state).await;
        for (name, key) in custom {
            snapshot = snapshot.certificate([name], key);
        }
        for (names, key) in state.own_certificates.values().flatten() {
            if !names.contains(platform) {
                snapshot = snapshot.certificate(names.iter().cloned(), key.clone());
            }
        }
        let mut public = state.own_certificates.values().flatten();
        let public = public.find(|(names, _)| names.contains(platform));
        let parents = state.parents.keys().cloned();
        let now = self.kernel.clock.now();
        for (mut names, key) in authority.certificates_below(parents, now, &*self.kernel.entropy)? {
            let mut key = key;
            if names.contains(platform) {
                if let Some((_, public)) = public {
                    key = public.clone();
                }
                names.append(&mut bare);
            }
            snapshot = snapshot.fallback_certificate(names, key);
        }
        Ok(snapshot)
    }

    /// Custom domains and agent ingresses with their certificates, and the names that have none. For the
    /// latter the edge presents the platform's certificate.
    pub(super) async fn custom_domains(
        &self,
        state: &mut CompileState,
    ) -> (Vec<(HostName, Arc<CertifiedKey>)>, Vec<HostName>) {
        let mut known = std::mem::take(&mut state.certificates);
        let mut covered: Vec<(HostName, Arc<CertifiedKey>)> = Vec::new();
        let mut bare = Vec::new();
        // If a name has two certificates, the later one wins: the reserved domain's.
        let ingresses = state.ingresses.values().map(ingress);
        for named in ingresses.chain(state.domains.values().map(custom_domain)) {
            let (name, certificate_id) = match named {
                Ok(Some(custom)) => custom,
                Ok(None) => continue,
                Err(fault) => {
                    error!(cause = %fault.chain(), "domain skipped");
                    continue;
                }
            };
            let Some(id) = certificate_id else {
                bare.push(name);
                continue;
            };
            let key = match state
                .certificates
                .get(&id)
                .cloned()
                .or_else(|| known.remove(&id))
            {
                Some(key) => Ok(key),
                None => self.certificates.open_certificate(&id).await,
            };
            match key {
                Ok(key) => {
                    state.certificates.insert(id, key.clone());
                    covered.push((name, key));
                }
                Err(fault) => {
                    error!(cause = %fault.chain(), "certificate skipped");
                    bare.push(name);
                }
            }
        }
        (covered, bare)
    }
}

/// The name of a custom domain and the ID of its certificate; `None` for a platform name.
fn custom_domain(document: &Document) -> Result<Option<(HostName, Option<String>)>, Fault> {
    let domain: ReservedDomain = stored::read(document)?;
    let Some((name, certificate_id)) = domain.custom() else {
        return Ok(None);
    };
    let name = HostName::parse(name)
        .map_err(|error| Fault::new(format!("compiling {}", document.head.id), error))?;
    Ok(Some((name, certificate_id.map(str::to_owned))))
}

/// The name of an agent ingress and the ID of its certificate; `None` while it has none.
fn ingress(document: &Document) -> Result<Option<(HostName, Option<String>)>, Fault> {
    let ingress: AgentIngress = stored::read(document)?;
    let Some(id) = ingress.certificate_id() else {
        return Ok(None);
    };
    let name = HostName::parse(ingress.name())
        .map_err(|error| Fault::new(format!("compiling {}", document.head.id), error))?;
    Ok(Some((name, Some(id.to_owned()))))
}
