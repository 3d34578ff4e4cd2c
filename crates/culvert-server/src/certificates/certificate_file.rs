//! The operator's certificate files for the agent listener and the API, which SIGHUP reads again.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use culvert_installation::config::{Invalid, Settings};

/// A certificate from files. It can be replaced while the server runs.
#[derive(Debug)]
pub(crate) struct CertificateFile(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for CertificateFile {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl CertificateFile {
    /// Uses another certificate from the next handshake on.
    pub(crate) fn replace(&self, key: Arc<CertifiedKey>) {
        self.0.store(key);
    }
}

/// The listeners with certificate files, each with the section of its settings.
pub(crate) const SECTIONS: [&str; 2] = ["agents", "api.tls"];

/// The certificates of the listeners in [`SECTIONS`], where files are set.
pub(crate) type CertificateFiles = [Option<Arc<CertificateFile>>; 2];

/// The certificates that the settings name.
pub(crate) fn open(settings: &Settings) -> Result<CertificateFiles, Invalid> {
    let keys = read(settings)?;
    Ok(keys.map(|key| key.map(|key| Arc::new(CertificateFile(ArcSwap::new(key))))))
}

/// The certificates and keys in the files that the settings name.
pub(crate) fn read(settings: &Settings) -> Result<[Option<Arc<CertifiedKey>>; 2], Invalid> {
    let (agents, api) = (&settings.agents, &settings.api.tls);
    Ok([
        certified_key(SECTIONS[0], &agents.cert_file, &agents.key_file)?,
        certified_key(SECTIONS[1], &api.cert_file, &api.key_file)?,
    ])
}

fn certified_key(
    section: &str,
    certificate: &str,
    key: &str,
) -> Result<Option<Arc<CertifiedKey>>, Invalid> {
    if certificate.is_empty() && key.is_empty() {
        return Ok(None);
    }
    let key = if key.is_empty() { certificate } else { key };
    culvert_tls::server_certificate::read_certificate_files(certificate.as_ref(), key.as_ref())
        .map(Some)
        .map_err(|fault| {
            let why = fault.chain();
            Invalid(format!(
                "the files of `{section}.cert_file` and `{section}.key_file` cannot be used: {why}"
            ))
        })
}
