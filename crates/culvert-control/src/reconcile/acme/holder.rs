//! The resources that certificates are managed for: reserved domains and agent ingresses.

use culvert_base::{Fault, Timestamp, id};
use culvert_store::Document;

use crate::control::Control;
use crate::management::Managed;
use crate::resource::model::Model;
use crate::resource::model::agent_ingress::AgentIngress;
use crate::resource::model::management::Management;
use crate::resource::model::reserved_domain::ReservedDomain;
use crate::resource::resource_type::ResourceType;
use crate::resource::{agent_ingress, reserved_domain};
use crate::stored;

/// The resources whose certificates can be managed.
pub(super) static TYPES: [&ResourceType; 2] = [&reserved_domain::TYPE, &agent_ingress::TYPE];

/// A resource with a name and, optionally, a policy for its certificate.
#[derive(Debug)]
pub(super) enum Holder {
    Domain(ReservedDomain),
    Ingress(AgentIngress),
}

impl Holder {
    pub(super) fn read(document: &Document) -> Result<Self, Fault> {
        if document.head.kind == AgentIngress::KIND {
            stored::read(document).map(Self::Ingress)
        } else {
            stored::read(document).map(Self::Domain)
        }
    }

    /// The resource with this ID, if it exists and is managed.
    pub(super) async fn managed(
        control: &Control,
        id: &str,
    ) -> Result<Option<(Document, Self)>, Fault> {
        let prefix = id::split(id).map_or("", |(prefix, _)| prefix);
        let Some(ty) = TYPES.iter().find(|ty| ty.id_prefix == prefix) else {
            return Ok(None);
        };
        let Some(document) = control.store.get(ty.kind, id).await? else {
            return Ok(None);
        };
        let holder = Self::read(&document)?;
        let is_managed = holder.management().is_some();
        Ok(is_managed.then_some((document, holder)))
    }

    pub(super) fn ty(&self) -> &'static ResourceType {
        match self {
            Self::Domain(_) => &reserved_domain::TYPE,
            Self::Ingress(_) => &agent_ingress::TYPE,
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Domain(domain) => domain.name(),
            Self::Ingress(ingress) => ingress.name(),
        }
    }

    /// The CNAME target at which challenge records of a wildcard are published.
    pub(super) fn challenge_target(&self) -> Option<&str> {
        match self {
            Self::Domain(domain) => domain.challenge_target(),
            Self::Ingress(_) => None,
        }
    }

    pub(super) fn management(&self) -> Option<&Management> {
        match self {
            Self::Domain(domain) => domain.management(),
            Self::Ingress(ingress) => ingress.management(),
        }
    }

    pub(super) fn management_mut(&mut self) -> Option<&mut Management> {
        match self {
            Self::Domain(domain) => domain.management_mut(),
            Self::Ingress(ingress) => ingress.management_mut(),
        }
    }

    /// Installs an issued certificate until it is renewed.
    pub(super) fn take_issued(&mut self, certificate_id: String, renews_at: Timestamp) {
        match self {
            Self::Domain(domain) => domain.take_issued(certificate_id, renews_at),
            Self::Ingress(ingress) => ingress.take_issued(certificate_id, renews_at),
        }
    }

    /// Writes its state to its document.
    pub(super) fn write(&self, document: &mut Document) -> Result<(), Fault> {
        (document.body, document.refs) = match self {
            Self::Domain(domain) => (stored::write(domain)?, domain.refs()),
            Self::Ingress(ingress) => (stored::write(ingress)?, ingress.refs()),
        };
        Ok(())
    }
}
