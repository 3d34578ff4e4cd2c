//! What the subject holds.

use std::sync::Arc;

use culvert_base::Fault;
use culvert_resources::resource::model::Model;
use culvert_resources::{Kernel, stored};
use rustls::sign::CertifiedKey;

use crate::authority::Authority;
use crate::management::ManagedType;
use crate::management::check::Checking;
use crate::own_certificate::OwnCertificates;
use crate::ports::{CertificateMeters, Certificates};
use crate::tls_certificate::model::TlsCertificate;

/// Issues and obtains certificates.
#[derive(Debug)]
pub struct CertificateManager {
    pub(crate) kernel: Arc<Kernel>,
    /// Obtains certificates for managed domains, if this process does.
    pub(crate) certificates: Option<Certificates>,
    /// Checks what certificates need, on demand.
    pub(crate) checking: Checking,
    /// The resources whose certificates can be managed.
    pub(crate) managed: &'static [ManagedType],
    pub(crate) meters: CertificateMeters,
    /// Public certificates of the installation's own names.
    pub own_certificates: Arc<OwnCertificates>,
    pub(crate) ca_pem: String,
    /// Held by the single task that compiles.
    pub authority: tokio::sync::Mutex<Authority>,
}

impl CertificateManager {
    /// The subject with the installation's authority. `certificates` is `None` in a process that obtains none for the
    /// resources in `managed`. `checking` runs on demand.
    pub fn new(
        kernel: Arc<Kernel>,
        authority: Authority,
        certificates: Option<Certificates>,
        checking: Checking,
        managed: &'static [ManagedType],
    ) -> Self {
        Self {
            kernel,
            certificates,
            checking,
            managed,
            meters: CertificateMeters::default(),
            own_certificates: Arc::default(),
            ca_pem: authority.ca_pem().to_owned(),
            authority: tokio::sync::Mutex::new(authority),
        }
    }

    /// Certificate of the installation's authority, PEM. Clients must trust it to reach HTTPS endpoints below
    /// the platform domain.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The key and chain of a stored TLS certificate.
    pub async fn open_certificate(&self, id: &str) -> Result<Arc<CertifiedKey>, Fault> {
        let document = self.kernel.store.get(TlsCertificate::KIND, id).await?;
        let document = document.ok_or_else(|| Fault::bare(format!("opening {id}: not found")))?;
        let certificate: TlsCertificate = stored::read(&document)?;
        certificate.certified_key(&self.kernel.seal, &document.head)
    }
}

impl AsRef<Kernel> for CertificateManager {
    fn as_ref(&self) -> &Kernel {
        &self.kernel
    }
}
