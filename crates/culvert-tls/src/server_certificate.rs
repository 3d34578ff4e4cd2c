//! Server certificates with the settings of their handshakes.

use std::path::Path;
use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_base::{Fault, Timestamp};
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// A server certificate with the settings of its handshakes.
#[derive(Debug)]
pub struct ServerCertificate {
    /// The chain and its private key.
    pub key: Arc<CertifiedKey>,
    /// The configuration that presents it.
    pub config: Arc<ServerConfig>,
    /// Verifies client certificates, if they are requested.
    pub clients: Option<Arc<dyn ClientCertVerifier>>,
}

/// The protocols that the edge offers by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/2 and HTTP/1.1.
    Http,
    /// No ALPN: the protocol is unknown.
    None,
}

impl ServerCertificate {
    /// Default settings: TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1, session tickets, no early data, no client
    /// certificates.
    pub fn plain(key: Arc<CertifiedKey>) -> Result<Arc<Self>, rustls::Error> {
        let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
        Self::under(key, &versions, None, Alpn::Http).map(Arc::new)
    }

    /// Settings with given versions, client verification and ALPN.
    pub(crate) fn under(
        key: Arc<CertifiedKey>,
        versions: &[&'static SupportedProtocolVersion],
        clients: Option<Arc<dyn ClientCertVerifier>>,
        alpn: Alpn,
    ) -> Result<Self, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider).with_protocol_versions(versions)?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients)),
        };
        let mut config = builder.with_cert_resolver(Arc::new(Only(Arc::clone(&key))));
        if alpn == Alpn::Http {
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        config.ticketer = aws_lc_rs::Ticketer::new()?;
        // Each resumption brings the next one. A second would only help a client that opens several connections together,
        // and costs every handshake.
        config.send_tls13_tickets = 1;
        config.require_ems = true;
        // Sessions are resumed from tickets, so the server stores none.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.max_early_data_size = 0;
        Ok(Self {
            key,
            config: Arc::new(config),
            clients,
        })
    }
}

/// Parses an operator's certificate: PEM that contains the chain and its private key. Also returns the DNS names of
/// the certificate.
///
/// # Errors
/// If it is not a chain with its key, or contains no host name.
pub fn read_certificate(pem: &[u8]) -> Result<(Vec<HostName>, Arc<CertifiedKey>), Fault> {
    let doing = "reading a certificate and its key";
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| Fault::new(doing, error))?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| Fault::new(doing, error))?;
    let leaf = chain
        .first()
        .ok_or_else(|| Fault::bare(format!("{doing}: there is no certificate")))?;
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| Fault::new(doing, error))?;
    let alternatives = parsed
        .subject_alternative_name()
        .map_err(|error| Fault::new(doing, error))?;
    let names: Vec<HostName> = alternatives
        .iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => HostName::parse(name).ok(),
            _ => None,
        })
        .collect();
    if names.is_empty() {
        return Err(Fault::bare(format!("{doing}: it covers no DNS name")));
    }
    let key =
        aws_lc_rs::sign::any_supported_type(&key).map_err(|error| Fault::new(doing, error))?;
    let certified = CertifiedKey::new(chain, key);
    certified
        .keys_match()
        .map_err(|error| Fault::new(doing, error))?;
    Ok((names, Arc::new(certified)))
}

/// The certificate of the operator's files, in PEM. The key may be in the file of the chain.
///
/// # Errors
/// If a file cannot be read, or they are not a chain with its key.
pub fn read_certificate_files(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, Fault> {
    let read = |path: &Path| {
        let doing = || format!("reading `{}`", path.display());
        std::fs::read(path).map_err(|error| Fault::new(doing(), error))
    };
    let mut pem = read(certificate)?;
    if key != certificate {
        pem.push(b'\n');
        pem.extend(read(key)?);
    }
    read_certificate(&pem).map(|(_, key)| key)
}

/// The end of a certificate's validity; `None` if it cannot be parsed.
pub fn expires_at(certificate: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let seconds = parsed.validity().not_after.timestamp();
    Some(Timestamp::from_unix_seconds(seconds))
}

/// Whether a certificate names another one as its issuer; false if one of them cannot be parsed.
pub fn names_issuer(certificate: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> bool {
    let read = |der| X509Certificate::from_der(der).map(|(_, parsed)| parsed);
    match (read(certificate), read(issuer)) {
        (Ok(certificate), Ok(issuer)) => certificate.issuer().as_raw() == issuer.subject().as_raw(),
        _ => false,
    }
}

/// A resolver with one certificate, which was selected by name before.
#[derive(Debug)]
pub struct Only(pub Arc<CertifiedKey>);

impl ResolvesServerCert for Only {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}
