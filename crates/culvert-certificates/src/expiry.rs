//! When stored certificates expire.

use culvert_base::{Fault, Timestamp};
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_store::Document;

use crate::certificate_authority::model::CertificateAuthority;
use crate::own_certificate::{self, OwnCertificate};
use crate::ssh::host_certificate_model::SshHostCertificate;
use crate::ssh::user_certificate_model::SshUserCertificate;
use crate::tls_certificate::model::TlsCertificate;

/// The kinds of documents that may expire.
pub const KINDS: [&str; 5] = [
    TlsCertificate::KIND,
    CertificateAuthority::KIND,
    SshHostCertificate::KIND,
    SshUserCertificate::KIND,
    own_certificate::KIND,
];

/// The validity of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Since when it is valid.
    pub valid_from: Timestamp,
    /// Until when it is valid.
    pub expires_at: Timestamp,
    /// What it is for: host names, principals, or the name of an authority.
    pub names: Vec<String>,
    /// Whether the installation renews it.
    pub is_renewed: bool,
}

impl Expiry {
    /// When the certificate in a document expires. `None` for one that expires in centuries, one that is not issued yet,
    /// and a document of another kind.
    ///
    /// # Errors
    /// If the document cannot be read.
    pub fn of(document: &Document) -> Result<Option<Self>, Fault> {
        Ok(match document.head.kind.as_str() {
            TlsCertificate::KIND => Self::of_tls(&stored::read(document)?),
            CertificateAuthority::KIND => {
                let authority: CertificateAuthority = stored::read(document)?;
                let summary = authority.summary;
                let name = summary.subject_common_name;
                Self::between(&summary.not_before, &summary.not_after, vec![name], false)
            }
            SshHostCertificate::KIND => {
                let issued = stored::read::<SshHostCertificate>(document)?.issued;
                Some(Self {
                    valid_from: issued.valid_after,
                    expires_at: issued.valid_until,
                    names: issued.principals,
                    is_renewed: false,
                })
            }
            SshUserCertificate::KIND => {
                let issued = stored::read::<SshUserCertificate>(document)?.issued;
                Some(Self {
                    valid_from: issued.valid_after,
                    expires_at: issued.valid_until,
                    names: issued.principals,
                    is_renewed: false,
                })
            }
            own_certificate::KIND => {
                let own: OwnCertificate = stored::read(document)?;
                own.issued.as_deref().and_then(Self::of_tls)
            }
            _ => None,
        })
    }

    fn of_tls(certificate: &TlsCertificate) -> Option<Self> {
        let summary = &certificate.summary;
        let names = certificate.names.dns_names.clone();
        let is_renewed = certificate.issued_at.is_some();
        Self::between(&summary.not_before, &summary.not_after, names, is_renewed)
    }

    fn between(from: &str, to: &str, names: Vec<String>, is_renewed: bool) -> Option<Self> {
        Some(Self {
            valid_from: Timestamp::parse(from)?,
            expires_at: Timestamp::parse(to)?,
            names,
            is_renewed,
        })
    }
}
