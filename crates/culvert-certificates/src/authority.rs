//! The installation's certificate authority, and the certificates it issues for platform names.
//!
//! The first start creates the authority. It is stored with its key encrypted, and all nodes of an
//! installation share it. Certificates for names below the platform domain are issued in memory, one for each
//! parent of names in use, and renewed well before they expire. Their keys are never stored.
//!
//! Certificates of custom domains are elsewhere.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{Clock, Entropy, Fault, IdMaker, Secret, Timestamp};
use culvert_resources::cx::Cx;
use culvert_resources::stored::seal::Seal;
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, Key, Store};
use culvert_tunnel::nodes::{self, Identity};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SerialNumber,
    SignatureAlgorithm,
};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

/// The kind of the documents of authorities.
pub const KIND: &str = "authority";
const PREFIX: &str = "authority";
const KEY: &str = "name";
const NAME: &str = "installation";
/// The authority of the client certificates of Kubernetes operators.
const OPERATORS: &str = "operators";
/// The authority of the certificates that nodes present to each other. It issues no others.
const NODES: &str = "nodes";

const DAY: Duration = Duration::from_secs(86_400);
/// Long enough for the authority to outlive an installation.
const AUTHORITY_DAYS: u32 = 7300;
const LEAF_DAYS: u32 = 90;
/// Operators request a new certificate only when their configuration changes.
const OPERATOR_DAYS: u32 = 365;
const OPERATOR_RENEW_BEFORE_DAYS: u32 = 180;
/// A certificate is renewed when fewer days are left.
const RENEW_BEFORE_DAYS: u32 = 30;

/// A new authority emits no event.
const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "authorities are the installation's, not an account's",
};

#[derive(Debug, Deserialize, Serialize)]
struct Stored {
    format: Format<1>,
    certificate_pem: String,
    /// Private key, PEM, encrypted.
    sealed_key: String,
}

/// A certificate with its key, and the names it is presented for.
pub type Certificate = (Vec<HostName>, Arc<CertifiedKey>);

/// Issues certificates of the installation's authority.
pub struct Authority {
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
    domain: HostName,
    /// Issued certificates, by the parent of their names.
    made: HashMap<String, IssuedCertificate>,
}

struct IssuedCertificate {
    key: Arc<CertifiedKey>,
    renew_at: Timestamp,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// Whether a document has the authority of the certificates that endpoints present.
pub fn is_of_endpoints(document: &Document) -> bool {
    let mut keys = document.keys.iter();
    keys.any(|key| key.name == KEY && key.value == NAME)
}

impl Authority {
    /// Reads the installation's authority, or creates it.
    pub async fn open(
        store: &Store,
        seal: &Seal,
        clock: &dyn Clock,
        entropy: &dyn Entropy,
        domain: HostName,
    ) -> Result<Self, Fault> {
        // If two nodes start concurrently, one creates it and the other reads it.
        for _ in 0..2 {
            if let Some(document) = store.find(KIND, KEY, NAME).await? {
                return Self::read(&document, seal, domain);
            }
            let document = make(seal, clock, entropy, NAME)?;
            match store.commit(Changes::insert(document, NOTHING)).await {
                Ok(_) | Err(CommitError::Duplicate { .. }) => {}
                Err(error) => return Err(Fault::new("storing the certificate authority", error)),
            }
        }
        Err(Fault::bare("reading the new certificate authority"))
    }

    fn read(document: &Document, seal: &Seal, domain: HostName) -> Result<Self, Fault> {
        let (ca_pem, issuer) = issuer(document, seal)?;
        Ok(Self {
            ca_pem,
            issuer,
            domain,
            made: HashMap::new(),
        })
    }

    /// The authority's certificate, PEM. Clients must trust it to reach HTTPS endpoints.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Certificates for the platform domain, the names directly below it, and the names directly below these parents.
    /// Drops certificates of parents that are no longer used.
    pub fn certificates_below(
        &mut self,
        parents: impl Iterator<Item = String>,
        now: Timestamp,
        entropy: &dyn Entropy,
    ) -> Result<Vec<Certificate>, Fault> {
        let own = self.domain.to_string();
        let mut parents: BTreeSet<String> = parents.collect();
        parents.insert(own.clone());
        self.made
            .retain(|parent, made| parents.contains(parent) && now < made.renew_at);
        parents
            .into_iter()
            .map(|parent| {
                let mut names = vec![format!("*.{parent}")];
                if parent == own {
                    names.push(parent.clone());
                }
                let key = match self.made.get(&parent) {
                    Some(made) => made.key.clone(),
                    None => {
                        let key = leaf(&self.issuer, &names, now, entropy)?;
                        let made = IssuedCertificate {
                            key: key.clone(),
                            renew_at: now.plus((LEAF_DAYS - RENEW_BEFORE_DAYS) * DAY),
                        };
                        self.made.insert(parent, made);
                        key
                    }
                };
                let names = names.iter().map(|name| HostName::parse(name));
                let names: Result<_, _> = names.collect();
                let names =
                    names.map_err(|error| Fault::new("naming a platform certificate", error))?;
                Ok((names, key))
            })
            .collect()
    }
}

/// Issues a server certificate of the installation's authority for names and addresses. Also returns when to
/// renew it.
pub async fn sign_server(
    store: &Store,
    seal: &Seal,
    names: &[String],
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<(Arc<CertifiedKey>, Timestamp), Fault> {
    let document = store
        .find(KIND, KEY, NAME)
        .await?
        .ok_or_else(|| Fault::bare("reading the certificate authority: not found"))?;
    let (_, issuer) = issuer(&document, seal)?;
    let renew_at = now.plus((LEAF_DAYS - RENEW_BEFORE_DAYS) * DAY);
    Ok((leaf(&issuer, names, now, entropy)?, renew_at))
}

/// Issues a certificate that a node presents to other nodes, as server and as client. Also returns when to
/// renew it. The first call creates the authority of nodes.
pub async fn sign_node(
    store: &Store,
    seal: &Seal,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
) -> Result<(Identity, Timestamp), Fault> {
    // If two nodes start concurrently, one creates it and the other reads it.
    for _ in 0..2 {
        let Some(document) = store.find(KIND, KEY, NODES).await? else {
            let document = make(seal, clock, entropy, NODES)?;
            match store.commit(Changes::insert(document, NOTHING)).await {
                Ok(_) | Err(CommitError::Duplicate { .. }) => continue,
                Err(error) => return Err(Fault::new("storing the CA of the nodes", error)),
            }
        };
        let (pem, issuer) = issuer(&document, seal)?;
        let now = clock.now();
        let names = [nodes::NAME.to_owned()];
        let usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = leaf_for(&issuer, &names, "culvert node", usages, now, entropy)?;
        let authority = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| Fault::new("reading the CA of the nodes", error))?;
        let renew_at = now.plus((LEAF_DAYS - RENEW_BEFORE_DAYS) * DAY);
        return Ok((Identity { key, authority }, renew_at));
    }
    Err(Fault::bare("reading the new CA of the nodes"))
}

/// An issued client certificate.
#[derive(Debug, Deserialize, Serialize)]
pub struct ClientCertificate {
    /// The certificate, PEM.
    pub pem: String,
    /// Start of its validity.
    pub not_before: Timestamp,
    /// End of its validity.
    pub not_after: Timestamp,
}

impl ClientCertificate {
    /// Whether to renew it.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now.plus(OPERATOR_RENEW_BEFORE_DAYS * DAY) > self.not_after
    }
}

/// Bytes of an uncompressed point.
pub const P256_POINT_BYTES: usize = 65;

/// A public key on P-256, an uncompressed point.
#[derive(Debug)]
pub struct P256Key(pub [u8; P256_POINT_BYTES]);

impl PublicKeyData for P256Key {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// Issues a client certificate for `key` to the Kubernetes operator with this ID. The returned changes create
/// the authority if this is its first certificate.
pub async fn sign_operator(
    cx: &Cx<'_>,
    key: &P256Key,
    operator_id: &str,
) -> Result<(ClientCertificate, Changes), Fault> {
    let failed = |error| Fault::new("signing the key of a Kubernetes operator", error);
    let (document, also) = match cx.store.find(KIND, KEY, OPERATORS).await? {
        Some(document) => (document, Changes::default()),
        None => {
            let document = make(cx.seal, cx.clock, cx.entropy, OPERATORS)?;
            (document.clone(), Changes::insert(document, NOTHING))
        }
    };
    let (_, issuer) = issuer(&document, cx.seal)?;
    let now = cx.clock.now().whole_seconds();
    let mut params = params(Vec::new(), OPERATOR_DAYS, now, cx.entropy)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, operator_id);
    params.distinguished_name = name;
    let certificate = ClientCertificate {
        pem: params.signed_by(key, &issuer).map_err(failed)?.pem(),
        not_before: now.minus(DAY),
        not_after: now.plus(OPERATOR_DAYS * DAY),
    };
    Ok((certificate, also))
}

/// The certificate of the authority that signs those of Kubernetes operators; `None` before its first signature.
pub async fn operators_certificate(
    store: &Store,
) -> Result<Option<CertificateDer<'static>>, Fault> {
    let Some(document) = store.find(KIND, KEY, OPERATORS).await? else {
        return Ok(None);
    };
    let stored: Stored = stored::read(&document)?;
    let certificate = CertificateDer::from_pem_slice(stored.certificate_pem.as_bytes())
        .map_err(|error| Fault::new("reading the CA of the Kubernetes operators", error))?;
    Ok(Some(certificate))
}

/// The certificate of a stored authority, PEM, and its issuer.
fn issuer(document: &Document, seal: &Seal) -> Result<(String, Issuer<'static, KeyPair>), Fault> {
    let failed = |error| Fault::new("reading the certificate authority", error);
    let stored: Stored = stored::read(document)?;
    let key = seal.open(&document.head.id, &stored.sealed_key)?;
    let key = KeyPair::from_pem(key.reveal()).map_err(failed)?;
    let issuer = Issuer::from_ca_cert_pem(&stored.certificate_pem, key).map_err(failed)?;
    Ok((stored.certificate_pem, issuer))
}

fn make(
    seal: &Seal,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
    authority: &str,
) -> Result<Document, Fault> {
    let failed = |error| Fault::new("creating the certificate authority", error);
    let id = IdMaker::new().next(clock, entropy);
    let mut params = params(Vec::new(), AUTHORITY_DAYS, clock.now(), entropy)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let mut name = DistinguishedName::new();
    // Part of the ID distinguishes the authorities of two installations in a trust store.
    let body = id.to_string();
    let short = body.get(body.len() - 6..).unwrap_or_default();
    name.push(DnType::CommonName, format!("culvert {authority} {short}"));
    params.distinguished_name = name;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    let head = Head {
        id: format!("{PREFIX}_{id}"),
        kind: KIND.to_owned(),
        account: String::new(),
        revision: 0,
        created_at: id.at(),
        updated_at: id.at(),
    };
    let key = Secret::new(key.serialize_pem());
    Ok(Document {
        body: stored::write(&Stored {
            format: Format,
            certificate_pem: certificate.pem(),
            sealed_key: seal.seal(entropy, &head.id, key.reveal())?,
        })?,
        head,
        keys: vec![Key::new(KEY, authority)],
        refs: Vec::new(),
        topics: Vec::new(),
    })
}

fn leaf(
    issuer: &Issuer<'static, KeyPair>,
    names: &[String],
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<Arc<CertifiedKey>, Fault> {
    let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf_for(
        issuer,
        names,
        "culvert platform names",
        usages,
        now,
        entropy,
    )
}

fn leaf_for(
    issuer: &Issuer<'static, KeyPair>,
    names: &[String],
    subject: &str,
    usages: Vec<ExtendedKeyUsagePurpose>,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<Arc<CertifiedKey>, Fault> {
    let failed = |error| Fault::new("creating a platform certificate", error);
    let mut params = params(names.to_vec(), LEAF_DAYS, now, entropy)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages;
    // Clients check the alternative names; the subject is for people.
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, subject);
    params.distinguished_name = name;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.signed_by(&key, issuer).map_err(failed)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = any_supported_type(&key)
        .map_err(|error| Fault::new("using the key of a platform certificate", error))?;
    Ok(Arc::new(CertifiedKey::new(
        vec![certificate.der().clone()],
        key,
    )))
}

/// The common parameters of all certificates.
fn params(
    names: Vec<String>,
    days: u32,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<CertificateParams, Fault> {
    let mut params = CertificateParams::new(names)
        .map_err(|error| Fault::new("naming a platform certificate", error))?;
    let moment = |at: Timestamp| {
        let seconds = u64::try_from(at.unix_seconds()).unwrap_or(0);
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    // Clients with slow clocks must accept a new certificate too.
    params.not_before = moment(now.minus(DAY));
    params.not_after = moment(now.plus(days * DAY));
    let mut serial: [u8; 16] = entropy.bytes();
    // Positive, and of full length.
    serial[0] = (serial[0] & 0x7F) | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}
