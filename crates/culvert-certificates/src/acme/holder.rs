//! The holders of managed certificates: objects of resources, and the installation's own names.

use culvert_base::{Fault, Timestamp, id};
use culvert_resources::resource::ResourceType;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_store::Document;

use crate::CertificateManager;
use crate::management::Managed;
use crate::management::model::Management;
use crate::own_certificate::{self, OwnCertificate};
use crate::tls_certificate::model::TlsCertificate;

/// The stored kinds whose certificates can be managed.
pub(super) fn kinds(manager: &CertificateManager) -> impl Iterator<Item = &'static str> + use<> {
    let kinds = manager.managed.iter().map(|managed| managed.ty.kind);
    kinds.chain([own_certificate::KIND])
}

/// Something with a name and, optionally, a policy for its certificate.
#[derive(Debug)]
pub(super) enum Holder {
    /// An object of a resource.
    Object(&'static ResourceType, Box<dyn Managed>),
    /// Names of the installation itself. Their certificate is in the same document.
    Own(OwnCertificate),
}

impl Holder {
    pub(super) fn read(manager: &CertificateManager, document: &Document) -> Result<Self, Fault> {
        let kind = document.head.kind.as_str();
        if kind == own_certificate::KIND {
            return stored::read(document).map(Self::Own);
        }
        let found = manager
            .managed
            .iter()
            .find(|managed| managed.ty.kind == kind);
        let managed = found.ok_or_else(|| Fault::bare(format!("no certificates for a {kind}")))?;
        Ok(Self::Object(managed.ty, (managed.read)(document)?))
    }

    /// The object with this ID, if it exists and is managed.
    pub(super) async fn managed(
        manager: &CertificateManager,
        id: &str,
    ) -> Result<Option<(Document, Self)>, Fault> {
        let prefix = id::split(id).map_or("", |(prefix, _)| prefix);
        let mut types = manager.managed.iter().map(|managed| managed.ty);
        let kind = match types.find(|ty| ty.id_prefix == prefix) {
            Some(ty) => ty.kind,
            None if prefix == own_certificate::PREFIX => own_certificate::KIND,
            None => return Ok(None),
        };
        let Some(document) = manager.kernel.store.get(kind, id).await? else {
            return Ok(None);
        };
        let holder = Self::read(manager, &document)?;
        let is_managed = holder.management().is_some();
        Ok(is_managed.then_some((document, holder)))
    }

    /// The resource's type; `None` for names of the installation, which are not a resource.
    pub(super) fn ty(&self) -> Option<&'static ResourceType> {
        match self {
            Self::Object(ty, _) => Some(ty),
            Self::Own(_) => None,
        }
    }

    /// The owner of the domain, to whom the certificate belongs; empty for the admins.
    pub(super) fn owner_id(&self) -> &str {
        match self {
            Self::Object(_, object) => object.owner_id(),
            Self::Own(_) => "",
        }
    }

    /// The names of its certificate.
    pub(super) fn names(&self) -> Vec<&str> {
        match self {
            Self::Object(_, object) => vec![object.name()],
            Self::Own(own) => own.names.iter().map(String::as_str).collect(),
        }
    }

    /// The name at which challenge records are published, if it is another than that of the certificate.
    pub(super) fn challenge_record(&self) -> Option<String> {
        match self {
            Self::Object(_, object) => object.challenge_target().map(str::to_owned),
            Self::Own(own) => Some(own.challenge_record()),
        }
    }

    /// The chain of the certificate in use, PEM.
    pub(super) async fn chain_pem(
        &self,
        manager: &CertificateManager,
    ) -> Result<Option<String>, Fault> {
        let id = match self {
            Self::Object(_, object) => object.certificate_id(),
            Self::Own(own) => {
                let issued = own.issued.as_ref();
                return Ok(issued.map(|issued| issued.certificate_pem.clone()));
            }
        };
        let Some(id) = id else { return Ok(None) };
        let Some(document) = manager.kernel.store.get(TlsCertificate::KIND, id).await? else {
            return Ok(None);
        };
        let certificate: TlsCertificate = stored::read(&document)?;
        Ok(Some(certificate.certificate_pem))
    }

    pub(super) fn management(&self) -> Option<&Management> {
        match self {
            Self::Object(_, object) => object.management(),
            Self::Own(own) => Some(&own.management),
        }
    }

    pub(super) fn management_mut(&mut self) -> Option<&mut Management> {
        match self {
            Self::Object(_, object) => object.management_mut(),
            Self::Own(own) => Some(&mut own.management),
        }
    }

    /// Installs an issued certificate until it is renewed.
    pub(super) fn take_issued(&mut self, certificate_id: String, renews_at: Timestamp) {
        match self {
            Self::Object(_, object) => object.take_issued(certificate_id, renews_at),
            // It keeps the certificate itself.
            Self::Own(_) => {}
        }
    }

    /// Writes its state to its document.
    pub(super) fn write(&self, document: &mut Document) -> Result<(), Fault> {
        match self {
            Self::Object(_, object) => object.write(document)?,
            Self::Own(own) => {
                document.body = stored::write(own)?;
                document.refs = Vec::new();
            }
        }
        Ok(())
    }
}
