//! A TLS configuration that verifies certificates for one name.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

/// A TLS configuration for a library that connects to an address. Certificates are verified for
/// `name`, whatever name the library uses.
pub(crate) fn verified_for(
    name: ServerName<'static>,
    config: &ClientConfig,
    roots: Arc<rustls::RootCertStore>,
) -> Option<ClientConfig> {
    let provider = config.crypto_provider().clone();
    let inner = WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .ok()?;
    let mut config = config.clone();
    config.alpn_protocols.clear();
    config
        .dangerous()
        .set_certificate_verifier(Arc::new(Fixed { name, inner }));
    Some(config)
}

/// Verifies certificates for one name.
#[derive(Debug)]
struct Fixed {
    name: ServerName<'static>,
    inner: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Fixed {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.inner
            .verify_server_cert(end_entity, intermediates, &self.name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
