//! Public certificates for the installation's own names: the platform domain with its wildcard, and names of the API and
//! the agent listener.
//!
//! The settings name them. Each is a document with its certificate, which belongs to no account and has no events.
//! `certificates::acme` obtains and renews it. Until the first one is issued, listeners present a certificate of the
//! installation's own CA.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use culvert_base::net::HostName;
use culvert_base::{Fault, Timestamp};
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, Key};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::management::model::{KeyType, Management};
use crate::tls_certificate::model::TlsCertificate;
use crate::{CertificateManager, authority};

/// Kind of the documents with certificates of the installation's own names.
pub const KIND: &str = "own_certificate";
/// Prefix of the IDs of these documents, without the underscore.
pub const PREFIX: &str = "owncert";
const KEY: &str = "names";

/// Longest and shortest time between two checks of the certificate of the API.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
const RETRY_AFTER: Duration = Duration::from_secs(60);

const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "certificates of the installation's own names belong to no account",
};

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct OwnCertificate {
    format: Format<1>,
    pub names: Vec<String>,
    pub management: Management,
    /// The certificate in use. Its key is encrypted for the ID of this document.
    pub issued: Option<Box<TlsCertificate>>,
}

/// Names with a certificate.
pub type Certified = (Vec<HostName>, Arc<CertifiedKey>);

/// The certificates in use, for listeners to select from.
#[derive(Debug, Default)]
pub struct OwnCertificates(ArcSwap<Vec<Certified>>);

impl OwnCertificates {
    /// Replaces the certificates.
    pub fn replace(&self, certificates: Vec<Certified>) {
        self.0.store(Arc::new(certificates));
    }

    /// The certificate for a name that a client asked for, if one covers it.
    pub fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let certificates = self.0.load();
        let parent = name.split_once('.').map(|(_, parent)| parent);
        let covers = |own: &HostName| {
            let below = own.strip_prefix("*.");
            **own == *name || (below.is_some() && below == parent)
        };
        let mut found = certificates
            .iter()
            .filter(|(names, _)| names.iter().any(covers));
        found.next().map(|(_, key)| Arc::clone(key))
    }
}

impl OwnCertificate {
    /// Installs an issued certificate until it is renewed.
    pub(crate) fn take_issued(&mut self, certificate: TlsCertificate, renews_at: Timestamp) {
        self.issued = Some(Box::new(certificate));
        self.management.renews_at = Some(renews_at);
        self.management.job = None;
    }

    /// The name at which the records of its DNS challenges are published. All its names share the base.
    pub(crate) fn challenge_record(&self) -> String {
        let name = self.names.first().map_or("", String::as_str);
        format!("_acme-challenge.{}", name.trim_start_matches("*."))
    }
}

/// Selects the certificate of the API: the operator's, else a public one of the name that a client asks for, else one of
/// the installation's CA.
#[derive(Debug)]
pub struct ApiCertificate {
    operators: Option<Arc<dyn ResolvesServerCert>>,
    public: Arc<OwnCertificates>,
    own: ArcSwapOption<CertifiedKey>,
    /// Names of the certificate of the installation's CA.
    names: Vec<String>,
}

impl ResolvesServerCert for ApiCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(operators) = &self.operators {
            return operators.resolve(hello);
        }
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let public = name.and_then(|name| self.public.find(&name));
        public.or_else(|| self.own.load_full())
    }
}

/// The certificate of a document, for serving.
pub fn certified(
    manager: &CertificateManager,
    document: &Document,
) -> Result<Option<Certified>, Fault> {
    let own: OwnCertificate = stored::read(document)?;
    let Some(issued) = &own.issued else {
        return Ok(None);
    };
    let key = issued.certified_key(&manager.kernel.seal, &document.head)?;
    let names = own.names.iter().map(|name| HostName::parse(name));
    let names: Result<Vec<_>, _> = names.collect();
    let names = names.map_err(|error| Fault::new("reading the names of a certificate", error))?;
    Ok(Some((names, key)))
}

impl CertificateManager {
    /// The certificate of the API. `names` are those of the installation's CA, until [`CertificateManager::keep_api_certificate`]
    /// renews it.
    pub fn api_certificate(
        &self,
        operators: Option<Arc<dyn ResolvesServerCert>>,
        names: Vec<String>,
    ) -> Arc<ApiCertificate> {
        Arc::new(ApiCertificate {
            operators,
            public: Arc::clone(&self.own_certificates),
            own: ArcSwapOption::empty(),
            names,
        })
    }

    /// Issues the API's certificate of the installation's CA. Returns when to renew it.
    pub async fn renew_api_certificate(&self, of: &ApiCertificate) -> Result<Timestamp, Fault> {
        let now = self.kernel.clock.now();
        let signed = authority::sign_server(
            &self.kernel.store,
            &self.kernel.seal,
            &of.names,
            now,
            &*self.kernel.entropy,
        );
        let (key, renew_at) = signed.await?;
        of.own.store(Some(key));
        Ok(renew_at)
    }

    /// Renews the API's certificate of the installation's CA until cancelled.
    pub async fn keep_api_certificate(
        self: Arc<Self>,
        of: Arc<ApiCertificate>,
        mut renew_at: Timestamp,
        cancel: CancellationToken,
    ) {
        loop {
            let wait = renew_at.since(self.kernel.clock.now()).min(LOOK_EVERY);
            tokio::select! {
                () = tokio::time::sleep(wait.max(RETRY_AFTER)) => {}
                () = cancel.cancelled() => return,
            }
            if self.kernel.clock.now() < renew_at {
                continue;
            }
            match self.renew_api_certificate(&of).await {
                Ok(next) => renew_at = next,
                Err(fault) => {
                    error!(cause = %fault.chain(), "the certificate of the API was not renewed");
                }
            }
        }
    }

    /// Creates the documents of the names in the settings, and removes those of other names.
    pub(crate) async fn keep_own_names(&self, wanted: &[Vec<HostName>]) -> Result<(), Fault> {
        let mut wanted: BTreeMap<String, &Vec<HostName>> =
            wanted.iter().map(|names| (key_of(names), names)).collect();
        for document in self.kernel.store.all(KIND).await? {
            let own: OwnCertificate = stored::read(&document)?;
            if wanted.remove(&own.names.join(" ")).is_some() {
                continue;
            }
            info!(
                names = own.names.join(", "),
                "no longer managing a certificate"
            );
            match self
                .kernel
                .store
                .commit(Changes::remove(document.head, NOTHING))
                .await
            {
                Ok(_) | Err(CommitError::Stale) => {}
                Err(error) => return Err(Fault::new("removing a certificate", error)),
            }
        }
        for (key, names) in wanted {
            let id = self
                .kernel
                .ids
                .next(&*self.kernel.clock, &*self.kernel.entropy);
            let own = OwnCertificate {
                format: Format,
                names: names.iter().map(ToString::to_string).collect(),
                management: Management::begin(KeyType::Ecdsa, self.kernel.clock.now()),
                issued: None,
            };
            warn!(
                names = own.names.join(", "),
                "until a public certificate is issued, these names have one of the installation's own CA"
            );
            let document = Document {
                head: Head {
                    id: format!("{PREFIX}_{id}"),
                    kind: KIND.to_owned(),
                    account: String::new(),
                    revision: 0,
                    created_at: id.at(),
                    updated_at: id.at(),
                },
                body: stored::write(&own)?,
                keys: vec![Key::new(KEY, &*key)],
                refs: Vec::new(),
                topics: Vec::new(),
            };
            match self
                .kernel
                .store
                .commit(Changes::insert(document, NOTHING))
                .await
            {
                // Another node has created it.
                Ok(_) | Err(CommitError::Duplicate { .. }) => {}
                Err(error) => return Err(Fault::new("storing the names of a certificate", error)),
            }
        }
        Ok(())
    }
}

fn key_of(names: &[HostName]) -> String {
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    names.join(" ")
}
