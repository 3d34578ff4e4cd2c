//! Responses to the challenges of certificate authorities: a file over HTTP, a certificate over TLS.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use culvert_http::authority::Authority;
use culvert_tls::acme::{Challenge, ChallengeKind};
use culvert_tls::server_certificate::Only;
use http::header::HOST;
use http::{Method, request};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{Acceptor, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// The path of the files.
const FOLDER: &str = "/.well-known/acme-challenge/";
/// The ALPN protocol of challenges (RFC 8737).
const PROTOCOL: &[u8] = b"acme-tls/1";

/// The challenge responses of one snapshot, by host.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    files: HashMap<String, Vec<(String, Bytes)>>,
    certificates: HashMap<String, Arc<ServerConfig>>,
}

/// Certificates of challenges, which later snapshots with the same challenges reuse.
pub(crate) type Prepared = Vec<(Challenge, Arc<ServerConfig>)>;

impl Answers {
    /// Puts challenges into tables. Drops the certificates of others.
    pub(crate) fn of(challenges: Vec<Challenge>, prepared: &mut Prepared) -> Self {
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

    /// The file of a plain request, if it belongs to a pending challenge of its host.
    pub(crate) fn file(&self, parts: &request::Parts) -> Option<Bytes> {
        if self.files.is_empty() || !(parts.method == Method::GET || parts.method == Method::HEAD) {
            return None;
        }
        let token = parts.uri.path().strip_prefix(FOLDER)?;
        let mut hosts = parts.headers.get_all(HOST).iter();
        let authority = Authority::of(&parts.uri, hosts.next()).ok()?;
        if hosts.next().is_some() {
            return None;
        }
        let mut files = self.files.get(&*authority.host)?.iter();
        files.find_map(|(known, file)| (known == token).then(|| file.clone()))
    }

    /// The TLS settings for a challenge, if this ClientHello is for a name with a pending one.
    pub(crate) fn handshake(&self, name: &str, hello: &[u8]) -> Option<Arc<ServerConfig>> {
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
