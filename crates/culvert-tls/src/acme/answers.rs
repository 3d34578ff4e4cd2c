//! Responses to pending challenges: a file over HTTP (RFC 8555 8.3), a certificate over TLS (RFC 8737).

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{Acceptor, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{Challenge, ChallengeKind};
use crate::server_certificate::Only;

/// The folder of the files.
const FOLDER: &str = "/.well-known/acme-challenge/";
/// The ALPN protocol of challenges.
const PROTOCOL: &[u8] = b"acme-tls/1";

/// The responses to all pending challenges, by host.
#[derive(Debug, Default)]
pub struct ChallengeAnswers {
    files: HashMap<String, Vec<(String, Bytes)>>,
    certificates: HashMap<String, Arc<ServerConfig>>,
}

/// Certificates of challenges, which later tables with the same challenges reuse.
pub type PreparedChallenges = Vec<(Challenge, Arc<ServerConfig>)>;

impl ChallengeAnswers {
    /// Puts challenges into tables. Takes their certificates from `prepared` or makes new ones, and drops all others
    /// there. A challenge whose certificate cannot be made has no response, and an error is logged.
    pub fn of(challenges: Vec<Challenge>, prepared: &mut PreparedChallenges) -> Self {
        let mut answers = Self::default();
        let before = std::mem::take(prepared);
        for challenge in challenges {
            let host = challenge.host.to_string();
            match challenge.kind {
                ChallengeKind::Http01 => {
                    let file = (challenge.token, challenge.answer.into());
                    answers.files.entry(host).or_default().push(file);
                }
                ChallengeKind::TlsAlpn01 => {
                    let known = before.iter().find(|(known, _)| *known == challenge);
                    let config = match known {
                        Some((_, config)) => Ok(Arc::clone(config)),
                        None => certificate(&challenge),
                    };
                    match config {
                        Ok(config) => {
                            answers.certificates.insert(host, Arc::clone(&config));
                            prepared.push((challenge, config));
                        }
                        Err(error) => {
                            tracing::error!(%error, host, "no certificate for a TLS-ALPN challenge");
                        }
                    }
                }
                // In the DNS, not here.
                ChallengeKind::Dns01 => {}
            }
        }
        answers
    }

    /// The file at a path, if it belongs to a pending challenge of this host.
    pub fn file(&self, host: &str, path: &str) -> Option<Bytes> {
        let token = path.strip_prefix(FOLDER)?;
        let mut files = self.files.get(host)?.iter();
        files.find_map(|(known, file)| (known == token).then(|| file.clone()))
    }

    /// Whether no file belongs to a pending challenge.
    pub fn has_no_files(&self) -> bool {
        self.files.is_empty()
    }

    /// The TLS settings for a challenge, if `hello` is a whole ClientHello that asks for the pending one of `name`.
    pub fn handshake(&self, name: &str, hello: &[u8]) -> Option<Arc<ServerConfig>> {
        let config = self.certificates.get(name)?;
        asks_for_a_challenge(hello).then(|| Arc::clone(config))
    }
}

/// Whether a whole ClientHello offers the protocol of challenges and no other.
fn asks_for_a_challenge(mut hello: &[u8]) -> bool {
    let mut acceptor = Acceptor::default();
    while !hello.is_empty() {
        if !matches!(acceptor.read_tls(&mut hello), Ok(1..)) {
            return false;
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let offered = accepted.client_hello().alpn();
                return offered.is_some_and(|offered| offered.eq([PROTOCOL]));
            }
            Err(_) => return false,
        }
    }
    false
}

/// A self-signed certificate with the answer to a challenge, and its TLS settings.
fn certificate(
    challenge: &Challenge,
) -> Result<Arc<ServerConfig>, Box<dyn std::error::Error + Send + Sync>> {
    let digest =
        ::aws_lc_rs::digest::digest(&::aws_lc_rs::digest::SHA256, challenge.answer.as_bytes());
    let mut params = CertificateParams::new(vec![challenge.host.to_string()])?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Only(Arc::new(CertifiedKey::new(
            vec![certificate.der().clone()],
            aws_lc_rs::sign::any_supported_type(&key)?,
        )))));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
