//! TLS before a server that has none.

use std::sync::Arc;

use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::certificate;

/// A proxy that terminates TLS for a server without TLS.
#[derive(Debug)]
pub struct TlsFront {
    /// Where it listens, at 127.0.0.1.
    pub port: u16,
    _task: JoinSet<()>,
}

/// Starts one with a certificate for `name`, which is in `cert.pem` in `folder`.
///
/// # Panics
///
/// When it cannot start.
pub async fn tls_front(folder: &TempDir, name: &str, behind: String) -> TlsFront {
    let made = certificate(folder, name);
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut links = JoinSet::new();
        while let Ok((near, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            links.spawn(async move {
                let mut near = acceptor.accept(near).await?;
                let mut far = TcpStream::connect(behind).await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    TlsFront { port, _task: task }
}
