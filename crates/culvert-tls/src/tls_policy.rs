//! TLS settings from policies: versions, the server certificate, and client authentication.

use std::fmt;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use culvert_base::sync::lock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

use crate::server_certificate::{Alpn, ServerCertificate};

/// Maximum number of certificates in a client's chain, and their total size in bytes.
const CHAIN_MAX: usize = 5;
const CHAIN_BYTES_MAX: usize = 32 << 10;
/// Maximum number of cached settings: one for each server certificate used with this TLS policy.
const KEPT_MAX: usize = 16;

/// Certificate authorities that a policy references. While it is empty, every handshake fails, whatever else the
/// policy trusts.
#[derive(Debug, Default)]
pub struct Authorities(ArcSwap<Vec<CertificateDer<'static>>>);

impl Authorities {
    /// Replaces the trusted certificates.
    pub fn replace(&self, certificates: Vec<CertificateDer<'static>>) {
        self.0.store(Arc::new(certificates));
    }
}

/// How client certificates are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// A certificate of a trusted authority is required.
    Verify,
    /// Any certificate is required.
    Any,
    /// A certificate is optional.
    Request,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl Version {
    const ALL: [(Self, &'static SupportedProtocolVersion); 2] = [
        (Self::Tls13, &rustls::version::TLS13),
        (Self::Tls12, &rustls::version::TLS12),
    ];
}

/// The settings of one or more `terminate-tls` actions. `None` means that no action sets the value.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// The lowest accepted version.
    pub min: Option<Version>,
    /// The highest accepted version.
    pub max: Option<Version>,
    /// Replaces the endpoint's certificate.
    pub key: Option<Arc<CertifiedKey>>,
    /// Always set if an action sets authorities.
    pub strategy: Option<Strategy>,
    /// The authorities of client certificates.
    pub trusted: Option<Arc<Trusted>>,
}

impl TlsSettings {
    /// These settings, completed by those of earlier actions. A setting is not lost if a later action does not set
    /// it.
    fn over(self, before: &Self) -> Self {
        Self {
            min: self.min.or(before.min),
            max: self.max.or(before.max),
            key: self.key.or_else(|| before.key.clone()),
            strategy: self.strategy.or(before.strategy),
            trusted: self.trusted.or_else(|| before.trusted.clone()),
        }
    }
}

/// The authorities that client certificates are verified against.
#[derive(Debug)]
pub struct Trusted {
    /// Certificates in the policy.
    pub inline: Vec<CertificateDer<'static>>,
    /// Authorities that the policy references.
    pub named: Vec<Arc<Authorities>>,
}

/// How a handshake is done: the merged settings of all `terminate-tls` actions that ran.
#[derive(Debug)]
pub struct TlsPolicy {
    settings: TlsSettings,
    versions: Vec<&'static SupportedProtocolVersion>,
    kept: Mutex<Vec<CachedCertificate>>,
}

/// Cached settings, and the values that they were built from.
struct CachedCertificate {
    key: Arc<CertifiedKey>,
    alpn: Alpn,
    named: Vec<Arc<Vec<CertificateDer<'static>>>>,
    presented: Arc<ServerCertificate>,
}

impl fmt::Debug for CachedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CachedCertificate")
    }
}

impl TlsPolicy {
    /// Whether clients are asked for certificates.
    pub fn asks_for_certificates(&self) -> bool {
        self.settings.strategy.is_some() || self.settings.trusted.is_some()
    }

    /// The settings of an action, completed by those of earlier actions. `None` if they permit no version of TLS.
    pub fn new(settings: TlsSettings, before: Option<&Self>) -> Option<Self> {
        let settings = match before {
            Some(before) => settings.over(&before.settings),
            None => settings,
        };
        let min = settings.min.unwrap_or(Version::Tls12);
        let max = settings.max.unwrap_or(Version::Tls13);
        let versions = Version::ALL.into_iter();
        let versions = versions.filter(|(version, _)| (min..=max).contains(version));
        let versions: Vec<_> = versions.map(|(_, version)| version).collect();
        if versions.is_empty() {
            tracing::warn!(
                "the terminate-tls actions of a traffic policy allow no TLS version; closing the connection"
            );
            return None;
        }
        Some(Self {
            settings,
            versions,
            kept: Mutex::default(),
        })
    }

    /// The settings of a handshake that presents `own`, unless the policy has another certificate. `None` if there is
    /// no certificate, no authority is trusted, or an authority that the policy references does not exist.
    pub fn present(
        &self,
        own: Option<&Arc<CertifiedKey>>,
        alpn: Alpn,
    ) -> Option<Arc<ServerCertificate>> {
        let key = self.settings.key.as_ref().or(own)?;
        let trusted = self.settings.trusted.as_ref();
        let named: Vec<_> = trusted
            .iter()
            .flat_map(|trusted| trusted.named.iter())
            .map(|authorities| authorities.0.load_full())
            .collect();
        if named.iter().any(|authorities| authorities.is_empty()) {
            tracing::warn!("a certificate authority of a traffic policy does not exist");
            return None;
        }
        let is_same = |kept: &CachedCertificate| {
            Arc::ptr_eq(&kept.key, key)
                && kept.alpn == alpn
                && kept.named.len() == named.len()
                && kept
                    .named
                    .iter()
                    .zip(&named)
                    .all(|(a, b)| Arc::ptr_eq(a, b))
        };
        let known = lock(&self.kept)
            .iter()
            .find(|kept| is_same(kept))
            .map(|kept| Arc::clone(&kept.presented));
        if known.is_some() {
            return known;
        }
        let made = self.make(key, alpn, &named).inspect_err(|error| {
            tracing::warn!(%error, "TLS settings of a traffic policy cannot be applied");
        });
        let presented = Arc::new(made.ok()?);
        let mut kept = lock(&self.kept);
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push(CachedCertificate {
            key: Arc::clone(key),
            alpn,
            named,
            presented: Arc::clone(&presented),
        });
        Some(presented)
    }

    fn make(
        &self,
        key: &Arc<CertifiedKey>,
        alpn: Alpn,
        named: &[Arc<Vec<CertificateDer<'static>>>],
    ) -> Result<ServerCertificate, Error> {
        let verifier = match self.settings.strategy {
            None => None,
            Some(strategy) => {
                let mut roots = RootCertStore::empty();
                let inline = self.settings.trusted.iter();
                let inline = inline.flat_map(|trusted| &trusted.inline);
                for root in inline.chain(named.iter().flat_map(|all| all.iter())) {
                    roots.add(root.clone())?;
                }
                Some(verifier(strategy, roots)?)
            }
        };
        ServerCertificate::under(Arc::clone(key), &self.versions, verifier, alpn)
    }
}

fn verifier(
    strategy: Strategy,
    roots: RootCertStore,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let hints = roots.subjects();
    if strategy == Strategy::Verify {
        let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let inner = built.map_err(|error| Error::General(error.to_string()))?;
        return Ok(Arc::new(Bounded(inner)));
    }
    Ok(Arc::new(Bounded(Arc::new(Unverified {
        is_mandatory: strategy == Strategy::Any,
        hints,
        provider,
    }))))
}

/// Accepts any X.509 v3 certificate for which the client has the key.
#[derive(Debug)]
struct Unverified {
    is_mandatory: bool,
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Unverified {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Versions 1 and 2 have no extensions that restrict the purpose of a certificate. The strategy `verify`
        // rejects them too (RFC 5280 section 4.1.2.1).
        match X509Certificate::from_der(leaf) {
            Ok(([], parsed)) if parsed.version() == X509Version::V3 => {
                Ok(ClientCertVerified::assertion())
            }
            _ => Err(CertificateError::BadEncoding.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Rejects chains that exceed the limits, before they are verified.
#[derive(Debug)]
struct Bounded(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Bounded {
    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let bytes: usize = others.iter().map(|one| one.len()).sum();
        if others.len() + 1 > CHAIN_MAX || leaf.len() + bytes > CHAIN_BYTES_MAX {
            return Err(Error::General("the client's chain is too long".to_owned()));
        }
        self.0.verify_client_cert(leaf, others, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Parses PEM certificates. `None` if there are none, or one is not a valid certificate.
pub fn certificates(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.ok().filter(|all| !all.is_empty())?;
    let mut roots = RootCertStore::empty();
    all.iter()
        .all(|one| roots.add(one.clone()).is_ok())
        .then_some(all)
}

/// Parses a chain and its key, both PEM. `None` if they do not parse or do not match.
pub fn certified(chain: &str, key: &str) -> Option<Arc<CertifiedKey>> {
    let chain = certificates(chain)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
    let key = aws_lc_rs::sign::any_supported_type(&key).ok()?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().ok()?;
    Some(Arc::new(certified))
}
