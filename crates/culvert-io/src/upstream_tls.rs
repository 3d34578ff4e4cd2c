//! TLS to the services that traffic is forwarded to: which certificates are accepted, and which one is presented.
//!
//! [`UpstreamTls`] is the one set of options for the edge and for the agent. Two services with different options never
//! share a connection or a session that can be resumed, because each set of options has its own configuration and
//! is part of the key of a pool.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::Arc;

use ::aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore,
    SignatureScheme,
};

/// Maximum number of pins.
pub const PINS_MAX: usize = 16;

/// How TLS to a service is set up. The default verifies its certificate against the authorities that the machine trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpstreamTls {
    /// How its certificate is verified.
    pub verification: Verification,
    /// The name to ask for and to verify; `None` for the host.
    pub server_name: Option<ServerName<'static>>,
    /// The certificate to present if the service asks for one.
    pub client: Option<ClientCertificate>,
}

/// How the certificate of a service is verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verification {
    /// By the authorities that the machine trusts.
    #[default]
    System,
    /// By these authorities and no others, and by the pins if there are any.
    Authorities(Vec<CertificateDer<'static>>, Vec<Pin>),
    /// By pins alone: the issuer, the names and the dates of the certificate do not matter.
    Pins(Vec<Pin>),
    /// Not at all: others on the network can read and change the traffic.
    Off,
}

/// SHA-256 of a certificate or of its public key, both DER-encoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pin([u8; 32]);

/// A certificate with its key, which proves to a service who connects.
#[derive(Clone, Debug)]
pub struct ClientCertificate(Arc<CertifiedKey>);

/// Why a TLS handshake with a service failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFailure {
    /// The certificate has expired or is not valid yet.
    Dates,
    /// No trusted authority signed the certificate.
    Issuer,
    /// The certificate is for other names.
    Name,
    /// The certificate matches no pin.
    Pin,
    /// Anything else.
    Other,
}

/// The certificate matches no pin.
#[derive(Debug, thiserror::Error)]
#[error(
    "the certificate matches no pin: its SHA-256 is {certificate}, that of its public key {key}"
)]
struct NotPinned {
    certificate: Pin,
    key: Pin,
}

/// The certificate is that of an authority, such as `openssl req -x509` makes it.
#[derive(Debug, thiserror::Error)]
#[error(
    "the certificate is self-signed or that of an authority, which no service may present; its SHA-256 is {0}, which can be a pin"
)]
struct IsAuthority(Pin);

/// Why a pin is refused: a sentence without a full stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pin is a SHA-256 in 64 hexadecimal digits or as `sha256//` and Base64")]
pub struct PinError;

impl UpstreamTls {
    /// Whether only a service with TLS can meet the options: it has to prove more than a name, or the client has to.
    pub fn needs_tls(&self) -> bool {
        let has_pins = match &self.verification {
            Verification::System | Verification::Off => false,
            Verification::Authorities(_, pins) => !pins.is_empty(),
            Verification::Pins(_) => true,
        };
        has_pins || self.server_name.is_some() || self.client.is_some()
    }

    /// Whether certificates are accepted without verification.
    pub fn is_unverified(&self) -> bool {
        self.verification == Verification::Off
    }

    /// The name to ask for and to verify at `host`. `None` if the host is neither a name nor an address.
    pub fn name(&self, host: &str) -> Option<ServerName<'static>> {
        match &self.server_name {
            Some(name) => Some(name.clone()),
            None => server_name(host),
        }
    }

    /// A configuration for TLS 1.2 and 1.3. `system` are the authorities that the machine trusts.
    ///
    /// # Errors
    ///
    /// A certificate of an authority is invalid.
    pub fn config(&self, system: &Arc<RootCertStore>) -> Result<ClientConfig, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let (roots, pins) = match &self.verification {
            Verification::System => (Some(Arc::clone(system)), &[][..]),
            Verification::Authorities(authorities, pins) => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority.clone())?;
                }
                (Some(Arc::new(roots)), &pins[..])
            }
            Verification::Pins(pins) => (None, &pins[..]),
            Verification::Off => (None, &[][..]),
        };
        let chain = match roots {
            None => None,
            Some(roots) => {
                let built =
                    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
                        .build();
                Some(built.map_err(|error| Error::General(error.to_string()))?)
            }
        };
        let verifier = Verifier {
            chain,
            pins: pins.to_vec(),
            is_off: self.is_unverified(),
            algorithms,
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        Ok(match &self.client {
            None => builder.with_no_client_auth(),
            Some(ClientCertificate(key)) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key))))
            }
        })
    }
}

/// A host name or an address, as the name of a certificate.
pub fn server_name(text: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(text.to_owned()).ok()
}

impl Pin {
    /// Reads 64 hexadecimal digits, perhaps with colons as `openssl x509 -fingerprint` prints them, or `sha256//` and
    /// Base64 as curl writes the pin of a public key.
    ///
    /// # Errors
    ///
    /// The text is neither.
    pub fn parse(text: &str) -> Result<Self, PinError> {
        // The longest form has 95 characters.
        if text.len() > 128 {
            return Err(PinError);
        }
        if let Some(encoded) = text.strip_prefix("sha256//") {
            let bytes = STANDARD.decode(encoded).map_err(|_| PinError)?;
            return bytes.try_into().map(Self).map_err(|_| PinError);
        }
        let digits: Vec<u32> = text
            .chars()
            .filter(|c| *c != ':')
            .map(|c| c.to_digit(16).ok_or(PinError))
            .collect::<Result<_, _>>()?;
        let (pairs, []) = digits.as_chunks::<2>() else {
            return Err(PinError);
        };
        let bytes: Vec<u8> = pairs
            .iter()
            .filter_map(|[high, low]| u8::try_from(high * 16 + low).ok())
            .collect();
        bytes.try_into().map(Self).map_err(|_| PinError)
    }

    fn of(der: &[u8]) -> Self {
        let mut pin = [0; 32];
        pin.copy_from_slice(digest::digest(&digest::SHA256, der).as_ref());
        Self(pin)
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ClientCertificate {
    /// Presents this chain, whose first certificate has this key.
    ///
    /// # Errors
    ///
    /// There is no certificate, or the key is not that of the first one.
    pub fn from_parts(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, Error> {
        let key = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())?;
        Ok(Self(Arc::new(key)))
    }

    /// Presents this certificate. Its key signs the handshake.
    pub fn new(key: Arc<CertifiedKey>) -> Self {
        Self(key)
    }
}

// The chain names the public key, and so the private one.
impl PartialEq for ClientCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.0.cert == other.0.cert
    }
}

impl Eq for ClientCertificate {}

impl Hash for ClientCertificate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.cert.hash(state);
    }
}

impl TlsFailure {
    /// The reason of a failed handshake.
    pub fn of(error: &io::Error) -> Self {
        let inner = error.get_ref();
        let inner = inner.and_then(|inner| inner.downcast_ref::<Error>());
        let Some(Error::InvalidCertificate(error)) = inner else {
            return Self::Other;
        };
        match error {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::Dates,
            // An authority of the same name may have another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Issuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::Name
            }
            CertificateError::Other(OtherError(other)) if other.is::<NotPinned>() => Self::Pin,
            CertificateError::Other(OtherError(other)) if other.is::<IsAuthority>() => Self::Issuer,
            _ => Self::Other,
        }
    }

    /// What a failed handshake says, without the names of types.
    pub fn explain(error: &io::Error) -> String {
        let inner = error.get_ref();
        match inner.and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(Error::InvalidCertificate(CertificateError::Other(OtherError(other)))) => {
                other.to_string()
            }
            Some(Error::InvalidCertificate(error)) => error.to_string(),
            _ if error.kind() == io::ErrorKind::UnexpectedEof => {
                "the service closed the connection during the TLS handshake".to_owned()
            }
            _ => error.to_string(),
        }
    }
}

/// The error of a handshake with a sentence that says why it failed. Errors of the network stay as they are.
pub fn explained(error: io::Error) -> io::Error {
    let inner = error.get_ref();
    if inner.is_none_or(|inner| !inner.is::<Error>()) {
        return error;
    }
    let why = TlsFailure::explain(&error);
    io::Error::new(error.kind(), format!("the TLS handshake failed: {why}"))
}

/// Verifies chains and pins.
#[derive(Debug)]
struct Verifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    pins: Vec<Pin>,
    is_off: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(chain) = &self.chain {
            chain
                .verify_server_cert(leaf, others, name, ocsp, now)
                .map_err(|error| named(error, leaf))?;
        }
        if !self.pins.is_empty() {
            let key = ParsedCertificate::try_from(leaf)?.subject_public_key_info();
            let (certificate, key) = (Pin::of(leaf), Pin::of(&key));
            if !self.pins.contains(&certificate) && !self.pins.contains(&key) {
                return Err(other(NotPinned { certificate, key }));
            }
        }
        if self.chain.is_none() && self.pins.is_empty() && !self.is_off {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The error with a name for the certificate of an authority, which the library for certificates has as text only.
fn named(error: Error, leaf: &CertificateDer<'_>) -> Error {
    match &error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(inner)))
            if inner.to_string() == "CaUsedAsEndEntity" =>
        {
            other(IsAuthority(Pin::of(leaf)))
        }
        _ => error,
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_read_in_the_forms_that_tools_print() {
        let hex = "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08";
        let pairs: Vec<&str> = hex
            .as_bytes()
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).unwrap())
            .collect();
        for text in [
            hex.to_owned(),
            hex.to_lowercase(),
            pairs.join(":"),
            "sha256//n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=".to_owned(),
        ] {
            assert_eq!(Pin::parse(&text), Ok(Pin::of(b"test")), "{text}");
            assert_eq!(Pin::of(b"test").to_string(), hex.to_lowercase());
        }
        for wrong in [
            "",
            ":",
            &hex[1..],
            &hex[2..],
            &format!("{hex}00"),
            &hex.replace('9', "g"),
            "sha256//",
            "sha256//n4bQ",
            &"0".repeat(1000),
        ] {
            assert_eq!(Pin::parse(wrong), Err(PinError), "{wrong}");
        }
    }

    #[test]
    fn options_that_differ_are_not_equal() {
        let pin = |text: &[u8]| Verification::Pins(vec![Pin::of(text)]);
        let with = |verification| UpstreamTls {
            verification,
            ..UpstreamTls::default()
        };
        let named = UpstreamTls {
            server_name: ServerName::try_from("a.example").ok(),
            ..UpstreamTls::default()
        };
        let all = [
            UpstreamTls::default(),
            named,
            with(Verification::Off),
            with(pin(b"a")),
            with(pin(b"b")),
            with(Verification::Authorities(Vec::new(), Vec::new())),
            with(Verification::Authorities(Vec::new(), vec![Pin::of(b"a")])),
        ];
        for (at, one) in all.iter().enumerate() {
            for (beside, other) in all.iter().enumerate() {
                assert_eq!(one == other, at == beside, "{one:?} {other:?}");
            }
        }
    }
}
