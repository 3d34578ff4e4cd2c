//! The holders of managed certificates: reserved domains, agent ingresses, and the installation's own names.

use culvert_base::{Fault, Timestamp, id};
use culvert_store::Document;

use crate::control::Control;
use crate::management::Managed;
use crate::own_certificate::{self, OwnCertificate};
use crate::resource::model::Model;
use crate::resource::model::agent_ingress::AgentIngress;
use crate::resource::model::management::Management;
use crate::resource::model::reserved_domain::ReservedDomain;
use crate::resource::model::tls_certificate::TlsCertificate;
use crate::resource::resource_type::ResourceType;
use crate::resource::{agent_ingress, reserved_domain};
use crate::stored;

/// The resources whose certificates can be managed.
static TYPES: [&ResourceType; 2] = [&reserved_domain::TYPE, &agent_ingress::TYPE];
/// The stored kinds whose certificates can be managed.
pub(super) static KINDS: [&str; 3] = [
    ReservedDomain::KIND,
    AgentIngress::KIND,
    own_certificate::KIND,
];

/// A resource with a name and, optionally, a policy for its certificate.
#[derive(Debug)]
pub(super) enum Holder {
    Domain(ReservedDomain),
    Ingress(AgentIngress),
    /// Names of the installation itself. Their certificate is in the same document.
    Own(OwnCertificate),
}

impl Holder {
    pub(super) fn read(document: &Document) -> Result<Self, Fault> {
        match document.head.kind.as_str() {
            AgentIngress::KIND => stored::read(document).map(Self::Ingress),
            own_certificate::KIND => stored::read(document).map(Self::Own),
            _ => stored::read(document).map(Self::Domain),
        }
    }

    /// The resource with this ID, if it exists and is managed.
    pub(super) async fn managed(
        control: &Control,
        id: &str,
    ) -> Result<Option<(Document, Self)>, Fault> {
        let prefix = id::split(id).map_or("", |(prefix, _)| prefix);
        let ty = TYPES.iter().find(|ty| ty.id_prefix == prefix);
        let kind = match ty {
            Some(ty) => ty.kind,
            None if prefix == own_certificate::PREFIX => own_certificate::KIND,
            None => return Ok(None),
        };
        let Some(document) = control.store.get(kind, id).await? else {
            return Ok(None);
        };
        let holder = Self::read(&document)?;
        let is_managed = holder.management().is_some();
        Ok(is_managed.then_some((document, holder)))
    }

    /// The resource's type; `None` for names of the installation, which are not a resource.
    pub(super) fn ty(&self) -> Option<&'static ResourceType> {
        match self {
            Self::Domain(_) => Some(&reserved_domain::TYPE),
            Self::Ingress(_) => Some(&agent_ingress::TYPE),
            Self::Own(_) => None,
        }
    }

    /// The owner of the domain, to whom the certificate belongs; empty for the admins.
    pub(super) fn owner_id(&self) -> &str {
        match self {
            Self::Domain(domain) => &domain.owner_id,
            Self::Ingress(_) | Self::Own(_) => "",
        }
    }

    /// The names of its certificate.
    pub(super) fn names(&self) -> Vec<&str> {
        match self {
            Self::Domain(domain) => vec![domain.name()],
            Self::Ingress(ingress) => vec![ingress.name()],
            Self::Own(own) => own.names.iter().map(String::as_str).collect(),
        }
    }

    /// The name at which challenge records are published: for wildcards of accounts the CNAME target.
    pub(super) fn challenge_record(&self) -> Option<String> {
        match self {
            Self::Domain(domain) => domain.challenge_target().map(str::to_owned),
            Self::Ingress(_) => None,
            Self::Own(own) => Some(own.challenge_record()),
        }
    }

    /// The chain of the certificate in use, PEM.
    pub(super) async fn chain_pem(&self, control: &Control) -> Result<Option<String>, Fault> {
        let id = match self {
            Self::Domain(domain) => domain.certificate_id.as_deref(),
            Self::Ingress(ingress) => ingress.certificate_id.as_deref(),
            Self::Own(own) => {
                let issued = own.issued.as_ref();
                return Ok(issued.map(|issued| issued.certificate_pem.clone()));
            }
        };
        let Some(id) = id else { return Ok(None) };
        let Some(document) = control.store.get(TlsCertificate::KIND, id).await? else {
            return Ok(None);
        };
        let certificate: TlsCertificate = stored::read(&document)?;
        Ok(Some(certificate.certificate_pem))
    }

    pub(super) fn management(&self) -> Option<&Management> {
        match self {
            Self::Domain(domain) => domain.management(),
            Self::Ingress(ingress) => ingress.management(),
            Self::Own(own) => Some(&own.management),
        }
    }

    pub(super) fn management_mut(&mut self) -> Option<&mut Management> {
        match self {
            Self::Domain(domain) => domain.management_mut(),
            Self::Ingress(ingress) => ingress.management_mut(),
            Self::Own(own) => Some(&mut own.management),
        }
    }

    /// Installs an issued certificate until it is renewed.
    pub(super) fn take_issued(&mut self, certificate_id: String, renews_at: Timestamp) {
        match self {
            Self::Domain(domain) => domain.take_issued(certificate_id, renews_at),
            Self::Ingress(ingress) => ingress.take_issued(certificate_id, renews_at),
            // It keeps the certificate itself.
            Self::Own(_) => {}
        }
    }

    /// Writes its state to its document.
    pub(super) fn write(&self, document: &mut Document) -> Result<(), Fault> {
        (document.body, document.refs) = match self {
            Self::Domain(domain) => (stored::write(domain)?, domain.refs()),
            Self::Ingress(ingress) => (stored::write(ingress)?, ingress.refs()),
            Self::Own(own) => (stored::write(own)?, Vec::new()),
        };
        Ok(())
    }
}
