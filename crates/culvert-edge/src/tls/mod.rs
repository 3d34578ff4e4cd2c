//! TLS at the edge: the settings a certificate is served with, and what a handshake settled.

pub(crate) mod peer;
pub(crate) mod terms;

use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_base::{Fault, Timestamp};
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{HandshakeKind, ProtocolVersion, ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::downstream::Agreed;
use crate::tls::peer::Peer;

/// The fatal alert `unrecognized_name`, as a whole record.
pub(crate) const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// A certificate as it is presented: with the settings of its handshakes.
#[derive(Debug)]
pub(crate) struct Presented {
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) config: Arc<ServerConfig>,
    /// What judges clients' certificates, if they are asked for.
    pub(crate) clients: Option<Arc<dyn ClientCertVerifier>>,
}

/// What the edge says it speaks inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alpn {
    /// HTTP/2 and HTTP/1.1.
    Http,
    /// Nothing: the edge does not know.
    None,
}

impl Presented {
    /// To anybody: TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1, tickets, no early data.
    pub(crate) fn plain(key: Arc<CertifiedKey>) -> Result<Arc<Self>, rustls::Error> {
        let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
        Self::under(key, &versions, None, Alpn::Http).map(Arc::new)
    }

    /// The same with other versions, and for certain clients.
    fn under(
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
        config.require_ems = true;
        // Sessions travel in tickets; nothing is kept here.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.max_early_data_size = 0;
        Ok(Self {
            key,
            config: Arc::new(config),
            clients,
        })
    }
}

/// Reads a certificate of the operator's: PEM, the chain and its private key in one text. With the
/// DNS names it is for.
///
/// # Errors
///
/// When it is not a chain with its key, or names no host.
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

/// Presents one certificate. Which one was decided before, by name.
#[derive(Debug)]
pub(crate) struct Only(pub(crate) Arc<CertifiedKey>);

impl ResolvesServerCert for Only {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// What a complete handshake settled, in the words of events.
pub(crate) fn agreed(connection: &rustls::ServerConnection) -> Agreed {
    let client = connection
        .peer_certificates()
        .and_then(|chain| chain.first());
    Agreed {
        suite: connection
            .negotiated_cipher_suite()
            .map(|suite| suite.suite()),
        is_13: connection.protocol_version() != Some(ProtocolVersion::TLSv1_2),
        is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        client: client.map(|leaf| Box::new(Peer::new(leaf))),
    }
}

/// Whether the certificate that a resumed session carries is still good. A handshake that was no resumption has
/// just verified it.
pub(crate) fn is_still_trusted(
    session: &rustls::ServerConnection,
    clients: &Arc<dyn ClientCertVerifier>,
    now: Timestamp,
) -> bool {
    if session.handshake_kind() != Some(HandshakeKind::Resumed) {
        return true;
    }
    match session.peer_certificates() {
        Some([leaf, others @ ..]) => {
            let now = UnixTime::since_unix_epoch(now.since(Timestamp::from_unix_nanos(0)));
            clients.verify_client_cert(leaf, others, now).is_ok()
        }
        _ => !clients.client_auth_mandatory(),
    }
}

/// The registered name of each suite this edge offers.
pub(crate) fn iana_name(suite: rustls::CipherSuite) -> Option<&'static str> {
    use rustls::CipherSuite as Suite;
    Some(match suite {
        Suite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        Suite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        Suite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => {
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
        }
        Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => {
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offered_suite_has_its_name() {
        for suite in aws_lc_rs::DEFAULT_CIPHER_SUITES {
            assert!(iana_name(suite.suite()).is_some(), "{suite:?}");
        }
    }
}
