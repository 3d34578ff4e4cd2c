//! Only nodes connect to nodes.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::agents::soon;
use crate::harness::{Harness, cluster};

/// Accepts any server certificate, so that only the verification of the client decides.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_listener_admits_only_nodes() {
    let Some(backend) = cluster(1).await else {
        return;
    };
    let culvert = Harness::start(&backend).await;
    let nodes = culvert.nodes.expect("it listens for other nodes");
    let made = rcgen::generate_simple_self_signed(["node.culvert.internal".into()]).unwrap();
    let key = || rustls_pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = || {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone))
    };
    let nobody = config().with_no_client_auth();
    let impostor = config().with_client_auth_cert(vec![made.cert.der().clone()], key());
    for config in [nobody, impostor.unwrap()] {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("node.culvert.internal").unwrap();
        let exchange = async {
            let socket = TcpStream::connect(nodes).await?;
            // The client finishes its handshake before the server has verified its certificate.
            let mut socket = connector.connect(name, socket).await?;
            let mut bytes = [0; 16];
            socket.read_exact(&mut bytes).await
        };
        let ended = soon("an end", exchange).await;
        assert!(ended.is_err(), "a stranger was let in");
    }
    culvert.stop().await;
}
